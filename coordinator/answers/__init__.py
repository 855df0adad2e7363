"""Answers from releases: questions per site, curves, harmonised columns, synthetic tables, budgets, waves."""
