"""Estimands, as analysts meet them: everything public in `shared.estimands`, under the coordinator's name."""

from __future__ import annotations

from shared.estimands import Estimand, Estimate, Scale, estimate, parse_estimand, parse_formula

__all__ = ["Estimand", "Estimate", "Scale", "estimate", "parse_estimand", "parse_formula"]
