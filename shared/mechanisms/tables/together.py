r"""Answers of several sites from noisy tables: one model of all sites' counts, and a step to each one's own.

A site's own model draws what noise drowns towards "no association" (`shared.mechanisms.tables.one_step`), at every site
alike: a mean of sites is as far off as one of them, and surer. The sum of the sites' tables has the same cells, and K
times the persons under √K times the noise, so a model of it has far less drowned. It is what every site starts from,
with the site's own one-way margins (`LatentClasses.among`); then one step leads to the site's own counts,

.. math:: \hat\theta_k = \theta(P_k) + \sum_t \langle g_{k,t}, \; c_{k,t} / n_k - p_{k,t} \rangle,

with g one function for all sites, damped as far as the noise of all counts together asks: the mean of the sites is then
the step of the sum, and each site by itself has more noise than it would alone. With s, φ₂ and the errors as there,

    vi_sampling = v̄ + E(φ − g)² / (m n_k)        vi_privacy = σ²/n_k² ‖g‖² + ((step_k − step) / 3)²
    vi_common   = s² E(φ₂ − g)² + 0.05² E(φ − φ₂)² + (step / 3)²

where step is the mean over the sites. What the model lacks it lacks at every site: no further site makes it smaller.

Where sites lie apart in two columns at once that are asked about, a model of the sum takes what is between sites for
what is within them, and g has the centre of nobody. There each site has a model of its own margins, whose classes are
everybody's (`shared.mechanisms.tables.apart`), and a g found on its own rows, damped for the noise of all counts. What
the model lacks stays common.

A site with more persons than all others together would decide by itself how those are read, and whether at all; what it
says of its persons nobody can check. It is left out, and answers for itself (`shared.mechanisms.base.balanced`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shared.estimands.answer import Estimand, Estimate, Origin
from shared.mechanisms.base import balanced
from shared.mechanisms.tables.apart import between, fitted_apart
from shared.mechanisms.tables.coarse import coarse, unspread
from shared.mechanisms.tables.latent_class import consistent
from shared.mechanisms.tables.one_step import Drawn, Released, combined, correlated, draw, draw_along, fitted
from shared.plans.dictionary import Dictionary

__all__ = ["APART", "summed", "together"]

APART = 0.02
"""Larger correlation between the sites alone, of two columns that are asked about: they are not read as if alike."""
_ROWS, _OWN_ROWS, _ROWS_APART = 10_000, 2_000, 120_000
"""Most rows of one synthetic table: of everybody's, on which g is found, of a site's, and of all sites' that lie apart,
each of which finds a g of its own."""


def summed(releases: Sequence[Released]) -> Released:
    """Releases of different persons, cell by cell: of the same tables under the same noise."""
    counts = tuple(np.sum(parts, axis=0) for parts in zip(*(one.counts for one in releases), strict=True))
    return Released(
        tables=releases[0].tables,
        counts=counts,
        n=sum(one.n for one in releases),
        releases=sum(one.releases for one in releases),
    )


def together(
    sites: Mapping[str, Released],
    dictionary: Dictionary,
    question: Estimand,
    *,
    levels: Mapping[str, Sequence[Any]],
    origins: Mapping[str, Origin],
) -> dict[str, list[Estimate]]:
    """Site to one estimate per term, by the module's rule; sites that answer for themselves are not in it.

    Those are all where the question has no influence function, or is of a mean or a share: noise draws none of these
    anywhere, and a site alone has less of it.

    Args:
        sites: what each released, of the same tables.
        levels: as of `estimate`. origins: site to study, site, wave and receipts.
    Raises: EstimateRefusal, as `answer` of one site, of all their counts.
    """
    if question.kind in ("mean", "proportion"):
        return {}
    sites = {site: sites[site] for site in balanced({site: one.n for site, one in sites.items()})}
    if not sites:
        return {}
    everybody = summed(list(sites.values()))
    hides = unspread(question, coarse(everybody.tables, everybody.counts, everybody.n, everybody.variance))
    apart = between(list(sites.values()), everybody, question.columns) > APART
    drawn = (_apart if apart else _alike)(sites, everybody, dictionary, question, levels, origins)
    if not drawn:
        return {}
    share = np.array([released.n for released in sites.values()]) / everybody.n
    steps = share @ [[move.by for move in one.moves] for one in drawn.values()]
    return {
        site: correlated(
            [combined(sites[site], question, one, k, hides, mean_step=float(step)) for k, step in enumerate(steps)],
            one,
            sites[site].n,
        )
        for site, one in drawn.items()
    }


def _alike(
    sites: Mapping[str, Released],
    everybody: Released,
    dictionary: Dictionary,
    question: Estimand,
    levels: Mapping[str, Sequence[Any]],
    origins: Mapping[str, Origin],
) -> dict[str, Drawn]:
    """Answers from one model of the sum, with each site's margins, and one g; none without an influence function.

    Args:
        everybody: the sum of the sites' counts. The others: as of `together`.
    Raises: EstimateRefusal, as `answer` of one site.
    """
    model = fitted(everybody)
    origin = next(iter(origins.values()))
    along = draw(everybody, model, dictionary, question, levels=levels, most_rows=_ROWS, **origin).moves
    drawn = {}
    for site, released in sites.items() if along else ():
        margins, _ = consistent(released.tables, released.counts, released.n)
        own = model.among([margin / released.n for margin in margins], released.n)
        how: dict[str, Any] = {"levels": levels, "most_rows": _OWN_ROWS}
        drawn[site] = draw_along(released, own, dictionary, question, along, **how, **origins[site])
    return drawn


def _apart(
    sites: Mapping[str, Released],
    everybody: Released,
    dictionary: Dictionary,
    question: Estimand,
    levels: Mapping[str, Sequence[Any]],
    origins: Mapping[str, Origin],
) -> dict[str, Drawn]:
    """Answers from each site's model of `fitted_apart`, and a g of its own; none without an influence function.

    Args:
        everybody: the sum of the sites' counts. The others: as of `together`.
    Raises: EstimateRefusal, as `answer` of one site.
    """
    models = fitted_apart(list(sites.values()), everybody)
    hiding, rows = everybody.variance / everybody.n**2, max(_OWN_ROWS, min(_ROWS, _ROWS_APART // len(sites)))
    drawn = {}
    for (site, released), model in zip(sites.items(), models, strict=True):
        own = replace(released, hiding=hiding)
        drawn[site] = draw(own, model, dictionary, question, levels=levels, most_rows=rows, **origins[site])
        if not drawn[site].moves:
            return {}
    return drawn
