"""Questions and how a table of rows answers them: formulas, regressions, survival."""
