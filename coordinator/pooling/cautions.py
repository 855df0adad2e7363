r"""Warnings on answers from released rows: when the paper's Theorem 3 does not apply.

Theorem 3 says that the random-effects estimate from released rows has the limit of the one from the records,

.. math:: \sqrt K (\tilde\theta_R - \hat\theta_R) = o_p(1)

on three conditions beside those of each study: :math:`K^{1/2}(\delta_{1n}^2 + \delta_{1n}\sqrt{\delta_{2n}}) = o(1)`,
:math:`K/n = o(1)` and :math:`\tau_0 > 0`, with :math:`\delta_{1n}` the error of the flow and :math:`\delta_{2n}` that
of 1 − w. Where w is fixed and the flow errs like :math:`n^{-1/2}`, the first is the second: each site's error from its
flow is of one size whatever K is, and K sites must not be so many that their pooled standard error falls below it.
Without a variance between sites nothing else is in that standard error.

A limit has no threshold. Ours, `SITES_PER_PERSON` and `FEWEST_SITES`, are rules of thumb with the paper's own settings
well inside. A condition that does not hold is a warning, never a refusal: the answer may be right all the same, and its
interval (`coordinator.pooling.intervals`) does not rest on the theorem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from shared.errors import ParameterError

__all__ = ["FEWEST_SITES", "SITES_PER_PERSON", "Condition", "theorem3"]

SITES_PER_PERSON = 1 / 50
"""Most sites per person of an average site. The paper's simulation 3.1.2 has 10 to about 875, 1 to 88."""
FEWEST_SITES = 5
"""With fewer sites τ₀ cannot be told from 0, and K is not large."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition of Theorem 3 that is not seen to hold.

    Args:
        name: ``K against n``, ``many sites`` or ``tau``.
        must: what must hold.
        given: what is.
        fix: what may be done about it.
    """

    name: Literal["K against n", "many sites", "tau"]
    must: str
    given: str
    fix: str

    @property
    def sentence(self) -> str:
        """In one sentence, for a reader of an answer."""
        return f"Theorem 3 of Shen and Tian asks that {self.must}; here {self.given}. {self.fix}"


def theorem3(sites: int, persons: float, *, tau2: float | None = None, common: bool = False) -> tuple[Condition, ...]:
    """The conditions of Theorem 3 that are not seen to hold; none where all are.

    Args:
        sites: K, sites that are pooled.
        persons: n, persons of an average site.
        tau2: estimated variance between sites; None before there is an answer.
        common: whether one common effect is pooled (``FE``), so that τ₀ is taken to be 0.
    Raises: ParameterError: no site, or no person.

    >>> [found.name for found in theorem3(12, 2000)], [found.name for found in theorem3(12, 300, tau2=0.0)]
    ([], ['K against n', 'tau'])
    """
    if sites < 1 or not (math.isfinite(persons) and persons > 0):
        raise ParameterError("sites and persons must be positive", given=f"{sites} sites, {persons:g} persons")
    found = []
    if sites > SITES_PER_PERSON * persons:
        enough = math.ceil(sites / SITES_PER_PERSON)
        found.append(
            Condition(
                name="K against n",
                must="there be few sites beside the persons of one (K/n → 0)",
                given=f"{sites} sites have {persons:,.0f} persons each (our rule: {enough:,} or more)",
                fix="A flow's error does not shrink with the number of sites: take fewer, larger ones.",
            )
        )
    if sites < FEWEST_SITES:
        found.append(
            Condition(
                name="many sites",
                must="there be many sites (K → ∞)",
                given=f"{'there is 1' if sites == 1 else f'there are {sites}'}",
                fix="Read the sites' own estimates beside the pooled one.",
            )
        )
    if common:
        found.append(
            Condition(
                name="tau",
                must="sites differ (τ₀ > 0)",
                given="one common effect is pooled",
                fix="Pool random effects.",
            )
        )
    elif tau2 is not None and tau2 <= 0:
        found.append(
            Condition(
                name="tau",
                must="sites differ (τ₀ > 0)",
                given="the estimated τ² is 0",
                fix="The pooled standard error holds no difference between sites to cover a flow's error.",
            )
        )
    return tuple(found)
