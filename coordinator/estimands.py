"""Estimands, as analysts meet them: everything public in `shared.estimands.answer`, under the coordinator's name."""

from __future__ import annotations

from shared.estimands.answer import Estimand, Estimate, Scale, estimate, parse_estimand, parse_formula

__all__ = ["Estimand", "Estimate", "Scale", "estimate", "parse_estimand", "parse_formula"]
