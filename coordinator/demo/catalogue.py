"""The demo's studies by name, each with its play."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from coordinator.demo.play import DemoOptions, Play
from shared.errors import ParameterError

__all__ = ["PLAYS", "play_of"]

PLAYS: Mapping[str, str] = {
    "cvd": "coordinator.demo.cohorts:Cohorts",
    "cohorts": "coordinator.demo.cohorts:MomentsPlay",
    "first": "coordinator.demo.cohorts:First",
    "heart": "coordinator.demo.cohorts:Heart",
    "federated": "coordinator.demo.federated:FederatedPlay",
    "network": "coordinator.demo.network:NetworkPlay",
    "registry": "coordinator.demo.registries:Registries",
    "assay": "coordinator.demo.assay:Assay",
}
"""Name of a study to its play."""


def play_of(options: DemoOptions) -> Play:
    """The play of a study. Raises: ParameterError."""
    if options.study not in PLAYS:
        raise ParameterError(f"the study must be one of {', '.join(PLAYS)}", given=repr(options.study)[:40])
    module, name = PLAYS[options.study].split(":")
    made: type[Play] = getattr(importlib.import_module(module), name)
    return made(options)
