"""State of a training after a completed round, and the format of its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shared.base.canonical import canonical_json, parse_json
from shared.errors import PlanChanged, SchemaRefusal
from shared.plans.federated import FLOW_CAP, Shape, from_text, to_text, usable
from shared.plans.plan import StudyPlan

__all__ = ["SiteProgress", "TrainingState"]

Weights: TypeAlias = NDArray[np.float64]
FORMAT = "tributary-federated-state/1"


@dataclass(kw_only=True)
class SiteProgress:
    """Progress of one site in a training.

    Attributes:
        node: its id in the grid.
        n: its number of records, as its first answer said; 0 before that.
        answered: rounds whose answer was taken.
        missed: rounds without an answer in time.
        refused: round to (code, reason): by the site itself, or of what it sent.
        seen: digests of the answers taken.
    """

    node: int
    n: int = 0
    answered: list[int] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class TrainingState:
    """State of a training after `round` completed rounds."""

    round: int
    weights: Weights
    mean: Weights | None
    square: Weights | None
    sites: dict[str, SiteProgress]

    def to_bytes(self, plan: StudyPlan) -> bytes:
        """Canonical JSON, with the plan that it is of."""
        return canonical_json(
            {
                "format": FORMAT,
                "plan": plan.hash,
                "round": self.round,
                "weights": to_text(self.weights),
                "mean": None if self.mean is None else to_text(self.mean),
                "square": None if self.square is None else to_text(self.square),
                "sites": {site: vars(progress) for site, progress in self.sites.items()},
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, plan: StudyPlan, shape: Shape) -> TrainingState:
        """Raises: SchemaRefusal, PlanChanged."""
        body = parse_json(data, cap=4 * FLOW_CAP)
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise SchemaRefusal(f"the state of a training must be of format {FORMAT}")
        if body.get("plan") != plan.hash:
            raise PlanChanged(
                "a training must go on under the plan that it began with",
                given=f"a state of plan {str(body.get('plan'))[:12]}…",
                next_step="Give the training of another plan a folder of its own.",
            )
        try:
            vectors = {
                name: None if body[name] is None else usable(from_text(body[name]), shape)
                for name in ("weights", "mean", "square")
            }
            sites = {str(site): SiteProgress(**said) for site, said in body["sites"].items()}
            state = cls(round=int(body["round"]), sites=sites, **cast(Any, vectors))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SchemaRefusal("the state of a training must have every field, each of its type") from None
        if state.weights is None:
            raise SchemaRefusal("the state of a training must have weights")
        return state
