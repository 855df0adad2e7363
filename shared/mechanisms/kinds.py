"""The mechanisms that a plan may name, each with the class of its settings."""

from __future__ import annotations

import difflib
import functools
import importlib
import re
from collections.abc import Mapping

from shared.errors import PlanRefusal
from shared.mechanisms.base import MechanismPlan

__all__ = ["KINDS", "kind"]

KINDS: Mapping[str, str] = {
    "latent_noise": "shared.mechanisms.latent_noise.plan:LatentNoisePlan",
    "moments": "shared.mechanisms.moments.plan:MomentsPlan",
    "secure_sum": "shared.mechanisms.secure_sum.plan:SecureSumPlan",
    "cross_products": "shared.mechanisms.cross_products.plan:CrossProductsPlan",
    "tables": "shared.mechanisms.tables.plan:TablesPlan",
    "slicing": "shared.mechanisms.slicing.plan:SlicingPlan",
    "densities": "shared.mechanisms.densities.plan:DensitiesPlan",
    "network_counts": "shared.mechanisms.network_counts.plan:NetworkCountsPlan",
    "grand": "shared.mechanisms.grand.plan:GrandPlan",
}


def kind(name: object) -> type[MechanismPlan]:
    """The class of a mechanism's settings. Raises: PlanRefusal."""
    where = KINDS.get(name) if isinstance(name, str) else None
    if where is None:
        near = difflib.get_close_matches(re.sub(r"\W+", "_", str(name).lower()), list(KINDS), n=1)
        raise PlanRefusal(
            f"release.mechanism must be one of {', '.join(KINDS)}",
            given=repr(name)[:60],
            next_step=f"Did you mean {near[0]!r}?" if near else "Set one of them.",
        )
    return _class_at(where)


@functools.cache
def _class_at(where: str) -> type[MechanismPlan]:
    module, name = where.split(":")
    found: type[MechanismPlan] = getattr(importlib.import_module(module), name)
    return found
