"""A plan as it is written."""

from __future__ import annotations

TOML = """
study = "mini"
version = 2
title = "Blood pressure and events"
purpose = "To estimate one hazard ratio."
coordinator = "hub"
expires = 2030-06-30

[release]
w = 0.8

[budget]
epsilon = 300

[[waves]]
number = 1
opens = 2026-01-01
closes = 2026-03-31

[estimands]
pressure = "mean(sbp)"

[dictionary]
name = "mini"
version = 1
[dictionary.columns.person]
kind = "person"
[dictionary.columns.sbp]
kind = "continuous"
unit = "mmHg"
lower = 70
upper = 270
"""
