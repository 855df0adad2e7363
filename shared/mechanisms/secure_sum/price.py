r"""Privacy loss of a secure sum by colluding parties, row by row from the coordinator alone to everybody else.

A site knows its own share of the noise, and the share is missing where the site drops out. A coordinator that colludes
with m sites, in a sum of which d may drop out, sees one site's records behind the noise of h = max(K - d - m, 1) sites,
that site among them: the noise variance is h / (K - d - c) of the plan's. Each site's own release beside the sum is
seen by everybody. With more than `SumTerms.withstood` colluders the masks hide nothing, and h is 1.
A member whose key the coordinator made itself is one of the m, though no hospital colludes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import ParameterError
from shared.mechanisms.secure_sum.terms import SumTerms
from shared.privacy import accountant as privacy
from shared.privacy.accountant import Event

__all__ = ["TrustRow", "trust_row", "trust_rows"]


@dataclass(frozen=True)
class TrustRow:
    """Number of sites that collude with the coordinator, and the ε for every patient of any other site.

    Args:
        colluders: sites that show the coordinator their records, secrets and noise.
    """

    colluders: int
    epsilon: float


def trust_rows(visible: Sequence[Event], sums: Sequence[SumTerms], delta: float) -> tuple[TrustRow, ...]:
    """The coordinator alone, with the plan's c sites, with half of all, and with all but one: each once, ascending.

    Args:
        visible: events of what each site releases by itself, of everything under one plan.
        sums: the rounds, with the same members, drop-outs and colluders.
    Raises: ParameterError.
    """
    if not sums or len({(terms.members, terms.drop_outs, terms.colluders) for terms in sums}) != 1:
        raise ParameterError("the rounds of a plan must have the same sites and thresholds", given="others")
    sites = len(sums[0].members)
    counts = sorted({0, sums[0].colluders, sites // 2, sites - 1})
    return tuple(trust_row(visible, sums, delta, colluders) for colluders in counts)


def trust_row(visible: Sequence[Event], sums: Sequence[SumTerms], delta: float, colluders: int) -> TrustRow:
    """The coordinator with so many of the sites; `visible` and `sums` as of `trust_rows`."""
    first = sums[0]
    hidden = max(len(first.members) - first.drop_outs - colluders, 1) if colluders <= first.withstood else 1
    events = [*visible, *(terms.event(hidden) for terms in sums)]
    return TrustRow(colluders, privacy.epsilon(events, delta))
