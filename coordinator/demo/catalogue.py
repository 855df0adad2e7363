"""The demo's studies by name, each with its play."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from coordinator.demo.play import Asked, Play
from shared.errors import ParameterError

__all__ = ["PLAYS", "play_of"]

PLAYS: Mapping[str, str] = {
    "cvd": "coordinator.demo.cohorts:Cohorts",
    "cohorts": "coordinator.demo.cohorts:Moments",
    "heart": "coordinator.demo.cohorts:Heart",
    "federated": "coordinator.demo.federated:Federated",
    "network": "coordinator.demo.network:Network",
    "registry": "coordinator.demo.registries:Registries",
    "assay": "coordinator.demo.assay:Assay",
}
"""Name of a study to its play."""


def play_of(asked: Asked) -> Play:
    """The play of a study. Raises: ParameterError."""
    if asked.study not in PLAYS:
        raise ParameterError(f"the study must be one of {', '.join(PLAYS)}", given=repr(asked.study)[:40])
    module, name = PLAYS[asked.study].split(":")
    made: type[Play] = getattr(importlib.import_module(module), name)
    return made(asked)
