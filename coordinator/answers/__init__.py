"""From releases to an answer: questions per site, curves, harmonised columns, synthetic tables, budgets, waves."""
