"""Attacks we tried on a release, at the site, before anyone is asked to approve it.

An audit is evidence, never a guarantee: it says how well these attacks did, with intervals, and nothing about better
ones. Its values are computed from records, stay at the site, and are never on a receipt; that a release passed is
visible by its delivery and is listed there as not covered.

The paper's rule alone is not enough. At w = 0.8, five columns and 2,500 records its membership attack scores an AUC of
0.52 and would pass, while the nearest released row is the record's own for one record in seven. So both are gates.

======================  ========================================================================================
membership AUC          score min_j |x - x̃_j|; records the flow was fitted on against records held back
                        (eq. 24-25; ties count one half), in whitened and in standardised distance
own-row linkage         share of records whose nearest released row is their own; also among the 5 % most extreme
twin probability        chance that another record is nearer than one's own released row (eq. 22)
median rank             other records nearer than one's own released row, the median (eq. 26)
likelihood ratio        score log mean_j N(y_j; √w clip(z), (1−w)I) / N(y_j; 0, I) of the release's latents y: the
                        attacker holds the site's own flow, w and R; AUC, and hits at 1 % false alarms
singling out            predicates on one or several columns, built from the release, that fit exactly one record
linkability             two halves of a person's columns lead to the same released rows
inference               a secret column is guessed from the released row nearest in all the others
======================  ========================================================================================

The last three come from Giomi et al. (2023), who attack a table and its control: a guess that succeeds as often on
persons who are not in the release says what patients are like, and nothing about who was there. What counts is the
excess over the control.

An attacker sees decoded values. The fractions and fills that encoding drew are nobody's knowledge, so every attack
here works on values, or on codes that are a function of values (`seen`, `recoded`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.mechanisms.latent_noise.noise import LatentNoise
from shared.plans.encoding import Encoder
from site_agent.release.audit.controlled import MOST_TARGETS, sampled_rows, table_attacks
from site_agent.release.audit.distances import linkage, membership_auc, standardising, twins, whitening
from site_agent.release.audit.likelihood import weighed
from site_agent.release.audit.rates import Array, rate
from site_agent.release.audit.report import EXTREME_SHARE, AuditLimits, AuditReport
from site_agent.release.audit.view import recoded, seen

__all__ = ["HELD_BACK", "MOST_LOOKED_FOR", "MOST_PROBED", "AttackedRows", "attack", "run_audit"]


HELD_BACK = 0.2
"""Share of the records that the flow behind an attack on membership never sees."""
_MOST_RATIOS = 40_000_000
MOST_LOOKED_FOR = 10_000
"""Records whose nearest released row is looked for, of each kind: a rate is told to a hundredth by them."""
MOST_PROBED = 50_000
"""Records that the membership attack splits into members and others."""
_MOST_RANKED = 100_000_000
"""Pairs of a record whose rank is told and another."""


@dataclass(frozen=True, kw_only=True)
class AttackedRows:
    """The encoded rows of one release that attacks are run on.

    Args:
        x: (n, d) encoded records of the release.
        released: (n, d) its rows before shuffling: row i belongs to record i.
        latents: (n, …) f⁻¹(x) of the noised columns, for finding the most extreme records.
        fitted_on: (n1, d) records that a second flow was fitted on, for the membership attack.
        held_back: (n0, d) records that it never saw.
        probe: (n1, d) a release of `fitted_on` by that flow.
    Raises: ParameterError, if shapes disagree.
    """

    x: Array
    released: Array
    latents: Array
    fitted_on: Array
    held_back: Array
    probe: Array

    def __post_init__(self) -> None:
        x, d = self.x, self.x.shape[1]
        shapes_fit = self.released.shape == x.shape and len(self.latents) == len(x)
        shapes_fit = shapes_fit and self.probe.shape == self.fitted_on.shape
        if not shapes_fit or self.held_back.shape[1] != d or len(self.held_back) < 2 or len(x) < 2:
            raise ParameterError("records, their release and the held-back records must fit together", given=f"d = {d}")


def attack(
    rows: AttackedRows, *, mechanism: LatentNoise, encoder: Encoder, limits: AuditLimits | None, rng: Noise
) -> AuditReport:
    """Every attack on one release; it refuses nothing (`gate` does).

    Args:
        mechanism: the one that drew `rows.probe`, whose flow was fitted on `rows.fitted_on`.
        encoder: of the study; attacks see what it decodes.
        limits: those in force, for the report; None where none refuses anything.
        rng: draws samples, halves of columns and predicates from its generator; the same state and arrays give the
            same report.
    """
    draws = rng.generator
    report = run_audit(rows, seen(encoder))
    codes = recoded(encoder)
    probe, most = rows.probe, _MOST_RATIOS // (2 * len(rows.probe))
    members, others = (sampled_rows(part, most, draws) for part in (rows.fitted_on, rows.held_back))
    return replace(
        report,
        likelihood=weighed(
            mechanism, members=codes(members), held_back=codes(others), released=codes(probe), bounded=True
        ),
        tables=table_attacks(
            members=encoder.decode(rows.fitted_on),
            held_back=encoder.decode(rows.held_back),
            released=encoder.decode(probe),
            dictionary=encoder.dictionary,
            draws=draws,
        ),
        limits=limits,
    )


def run_audit(rows: AttackedRows, view: Callable[[Array], Array] | None = None) -> AuditReport:
    """Attack a release.

    Args:
        view: what an attacker sees of encoded rows, (n, d) to (n, k); `seen(encoder)`. None compares encoded rows,
            and then the fractions and fills that an encoder draws at random link rows that nobody could link.
    """
    parts = (rows.x, rows.released, rows.fitted_on, rows.held_back, rows.probe)
    x, released, fitted_on, held_back, probe = parts if view is None else map(view, parts)
    whiten, standardise = whitening(x), standardising(x)
    white, white_rows = whiten(x), whiten(released)
    norms = np.linalg.norm(rows.latents, axis=1)
    extreme = _spread(np.flatnonzero(norms >= np.quantile(norms, 1 - EXTREME_SHARE)))
    linked = _spread(np.arange(len(x)))
    ranked = _spread(np.arange(len(x)), min(MOST_TARGETS, max(500, _MOST_RANKED // len(x))))
    twin, rank = twins(white, white_rows, ranked)
    probed, fitted_on, held_back = len(probe), _spread(fitted_on), _spread(held_back)
    return AuditReport(
        membership=membership_auc(whiten(fitted_on), whiten(held_back), whiten(probe)),
        membership_plain=membership_auc(standardise(fitted_on), standardise(held_back), standardise(probe)),
        own_row=rate(linkage(white, white_rows, linked), chance=1 / len(x)),
        extreme=rate(linkage(white, white_rows, extreme), chance=1 / len(x)),
        twin_probability=twin,
        median_rank=rank,
        n=len(x),
        n_fitted=len(fitted_on),
        n_held_back=len(held_back),
        n_extreme=len(extreme),
        n_ranked=len(ranked),
        n_linked=len(linked),
        n_probed=probed,
    )


def _spread(rows: NDArray[Any], most: int = MOST_LOOKED_FOR) -> NDArray[Any]:
    """At most so many of the rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)]
