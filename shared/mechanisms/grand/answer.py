r"""From released networks to one number per site: motif densities, degrees, communities.

What a network says is one draw of a law that was learned from the m persons held out, so that two samples stand behind
every figure: the variance is :math:`(1 + n/m)` times the node jackknife's (`shared.mechanisms.grand.counts`), of which
the first part is what somebody who takes the network for the real one would state. Densities and ratios are pooled as
logarithms, by the delta method. How edges close and stay with a column is asked of capped counts (`CLUSTERING`).

Where a study appends waves, a site has several networks of different persons. Their figures are averaged by n; the
parts of their variances that come from persons held out are added as if they were the same persons, which they mostly
are. Where the plan keeps its frames, the waves are one network, edges between them included, and all of it is drawn
from what the persons held out at the first wave gave: m is theirs. Of a directed network, motifs are those of the
network without directions; what is about directions (`ARCS`) is asked of it alone.

Communities are found by spectral clustering of the released network, and nobody's standard error for them has a closed
form: every twentieth person is left out in turn, and the communities are found anew each time
(`shared.mechanisms.grand.counts`). How far they agree with a column (the adjusted Rand index) and how strong they are
(modularity) are pooled as they are.

Densities mean the same in a network of some of its persons. Degrees do not: they are stated for the
hospital's whole network of N persons, released, held out and of all waves, from the density that its released persons
have among themselves. A mean degree is the density times N − 1; the squared coefficient of variation loses what is
chance, one over the mean degree, of n persons, and gets that of N.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from shared.base.process import deferred
from shared.errors import EstimateRefusal
from shared.estimands.answer import Estimand, Estimate, Origin
from shared.mechanisms.grand.edges import NUMBER, adjacency, held_out, union
from shared.plans.dictionary import LEVELLED, Dictionary

if TYPE_CHECKING:
    import pandas as pd

    from shared.mechanisms.grand.counts import Motifs
    from shared.mechanisms.grand.plan import GrandPlan
    from shared.plans.plan import StudyPlan
else:
    pd = deferred("pandas")

__all__ = ["answer", "figure"]

_FOR = (
    "A network answers network(…), such as network(edge). Attributes are noised one after the other, and their "
    "means can be off by a standard error: ask for them in a study of tables."
)
_FROM_NOISY_LABELS = (
    "drawn towards 0: a person's edges and the column are told apart, each with noise; less so where the plan tells "
    "this column first (release.by), yet by a quarter even then, at any price"
)
_OF_WHAT_IS_FOUND = (
    "communities are told with noise, and what clustering finds of them is less than there is; more than 0 also where "
    "there are none"
)
_OF_THE_MODEL = (
    "as the model has it: what it cannot draw, such as groups in which everybody knows everybody, is kept only nearly; "
    "no interval covers that"
)
_FEW_EDGES = (
    "too high, perhaps by half: the persons held out have few edges for each latent dimension, from which positions "
    "are learned badly; more so in a sparser or smaller site"
)
_DIRECTIONS_APART = (
    "too low where people answer each other: given two persons' positions, the model draws the two directions between "
    "them one by one"
)
LEAST_EDGES = 5.0
"""Edges among themselves that the held-out need, each and for each latent dimension, for an answer without warning."""
ARCS = ("reciprocity", "in_degree_cv", "out_degree_cv", "directed_transitivity")
"""Estimands of directed networks only."""
CLUSTERING = ("triangle", "transitivity", "directed_transitivity", "assortativity")
"""Refused: what a model of positions draws of them is its own. Over networks that nobody tuned to, an interval of
triangles, of transitivity and of mixing held the real value in far fewer than 95 of 100, at every ε
(`network_counts.json`)."""
_SHAPES = ("v_shape", "star3", "degree_cv")
_HOW = "node jackknife of the released network, times 1 + n/m"
_HOW_BY_PARTS = "jackknife of twenty parts of the released network, clustered anew, times 1 + n/m"
LEAST_OF_A_COMMUNITY = 10
"""Persons of a network for each community that is looked for in it."""


def require_answerable(release: GrandPlan, question: Estimand) -> None:
    """Refuse a question that no released network answers. Raises: EstimateRefusal."""
    if question.kind != "network":
        raise EstimateRefusal("the question must be one that a network answers", given=str(question), next_step=_FOR)
    if question.outcome in CLUSTERING:
        raise EstimateRefusal(
            f"network({question.outcome}) must not be asked of a node-private network: its interval did not hold the "
            "real network's value, and no ε mended that",
            given="a figure of how edges close, or stay with a column, which the model behind the release decides",
            next_step='Plan release.mechanism = "network_counts", which counts it of everybody at a price.',
        )
    if question.outcome in ARCS and not release.directed:
        raise EstimateRefusal(
            f"network({question.outcome}) must be asked of a network with directions",
            given="one without",
            next_step="Ask network(degree_cv), or plan release.directed = true.",
        )


def answer(
    plan: StudyPlan,
    release: GrandPlan,
    tables: Sequence[tuple[pd.DataFrame, int]],
    question: Estimand,
    *,
    levels: Mapping[str, Any],
    **origin: Unpack[Origin],
) -> list[Estimate]:
    """One site's estimate from its released networks.

    Args:
        release: the plan's mechanism.
        tables: released tables and their n, in the order of their waves, of different persons.
        levels, origin: as of `shared.mechanisms.base.Answering.answer`.
    Raises: EstimateRefusal: a motif that is not there, an attribute without a correlation, a question of another kind.
    """
    require_answerable(release, question)
    directed = release.directed
    total = sum(n for _, n in tables)
    yi = own = shared_ = 0.0
    so_far, fewest = 0, math.inf
    whole = total + held_out(plan, total)
    networks: list[tuple[Any, pd.DataFrame, int]]
    if release.sealed:
        together = pd.concat([table for table, _ in tables], ignore_index=True)
        networks = [(union([table for table, _ in tables], directed=directed), together, total)]
    else:
        networks = [(adjacency(table, directed=directed), table, n) for table, n in tables]
    for network, table, n in networks:
        so_far += n
        value, variance = figure(
            network, table, question, plan.dictionary, whole=whole, communities=_planned(plan, release, question)
        )
        m = held_out(plan, _of_first_wave(*tables[0]) if release.sealed else so_far)
        fewest = min(fewest, network.nnz / max(1, n * (n - 1)) * m / release.widest)
        share = n / total
        yi += share * value
        own += share**2 * variance
        shared_ += share * math.sqrt(variance * n / m)
    said = {
        "recovery": _FROM_NOISY_LABELS,
        "modularity": _OF_WHAT_IS_FOUND,
    }.get(question.outcome)
    warnings: tuple[str, ...] = () if said is None else (said,)
    if question.outcome in ARCS:
        warnings = (_OF_THE_MODEL, *((_DIRECTIONS_APART,) if question.outcome == "reciprocity" else ()))
    if question.outcome in _SHAPES:
        warnings = (_OF_THE_MODEL, *((_FEW_EDGES,) if fewest < LEAST_EDGES else ()))
    return [
        Estimate(
            term=question.labels[0],
            yi=yi,
            vi_sampling=own + shared_**2,
            vi_naive=own,
            n=total,
            scale=question.scale,
            how=_HOW_BY_PARTS if question.outcome in ("recovery", "modularity") else _HOW,
            warnings=warnings,
            **origin,
        )
    ]


def figure(
    network: Any,
    rows: pd.DataFrame,
    question: Estimand,
    dictionary: Dictionary | None,
    *,
    whole: int | None = None,
    communities: int | None = None,
) -> tuple[float, float]:
    """One figure of one network and its jackknife variance, both on the scale they are pooled on.

    Args:
        network: (n, n) sparse, 0 and 1, without loops.
        rows: (n, …) attributes in the dictionary's own spelling; asked for assortativity and recovery alone.
        question: of kind ``network``.
        whole: persons of the network whose degrees are meant, of whom these n are a random part; n where None.
        communities: how many are looked for, asked for modularity.
    Raises: EstimateRefusal.

    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> from shared.estimands.questions import parse_estimand
    >>> wheel = np.roll(np.eye(8), 1, axis=0)
    >>> wheel[0, 1:] = 1
    >>> value, _ = figure(csr_array(wheel), pd.DataFrame(), parse_estimand("network(mean_degree)"), dictionary=None)
    >>> round(math.exp(value), 4)
    3.25
    """
    from shared.mechanisms.grand.counts import assortativity, motifs, simple

    plain = simple(network)
    n = plain.shape[0]
    if question.outcome == "assortativity":
        assert dictionary is not None, "assortativity is of a column"
        column = dictionary.column(question.terms[0])
        across = assortativity(
            plain,
            column.check(rows[column.name]).to_numpy(),
            levels=len(column.levels) if column.kind in LEVELLED else None,
        )
        if not abs(across.yi) < 1:
            raise EstimateRefusal("assortativity must lie within -1 and 1", given="a correlation of one or less")
        return math.atanh(across.yi), across.vi / (1 - across.yi**2) ** 2
    if question.outcome in ("recovery", "modularity"):
        return _of_communities(plain, rows, question, dictionary, communities)
    if question.outcome in ARCS:
        return _of_arcs(network, question.outcome, whole)
    found = motifs(plain)
    if question.outcome == "degree_cv" and whole is not None:
        return _variation(found, n, whole)
    moment = found.log("edge" if question.outcome == "mean_degree" else question.outcome)
    return moment.yi + (math.log((whole or n) - 1) if question.outcome == "mean_degree" else 0.0), moment.vi


def _of_first_wave(table: pd.DataFrame, n: int) -> int:
    """Number of persons released by the first wave, read off the first table that is left.

    At most so many: there may have been waves between. Fewer make the frame smaller and the interval wider.
    """
    before = int(table[NUMBER].iloc[0])
    return min(n, before) if before else n


def _planned(plan: StudyPlan, release: GrandPlan, question: Estimand) -> int | None:
    """Number of communities by the plan, if it is needed. Raises: EstimateRefusal, where it speaks of none."""
    if question.outcome != "modularity":
        return None
    if not release.labelled:
        raise EstimateRefusal(
            "the plan must say how many communities there are for their strength to be asked",
            given="neither release.communities nor release.by",
            next_step="Ask network(recovery) ~ ward: how far communities agree with a column.",
        )
    return release.labels_of(plan)


def _of_communities(
    network: Any, rows: pd.DataFrame, question: Estimand, dictionary: Dictionary | None, planned: int | None
) -> tuple[float, float]:
    """Agreement of found communities with a column, or their modularity; and its variance by leaving parts out."""
    import numpy as np

    from shared.mechanisms.grand.clusters import adjusted_rand, communities, left_out, modularity

    n, codes = network.shape[0], None
    k = planned or 0
    if question.outcome == "recovery":
        assert dictionary is not None, "recovery is of a column"
        column = dictionary.column(question.terms[0])
        if column.kind not in LEVELLED:
            raise EstimateRefusal(
                "recovery must be of a column with levels",
                given=f"{column.name!r}, {column.kind}",
                next_step="Ask it of a column with levels.",
            )
        values = column.check(rows[column.name]).to_numpy(dtype=np.float64)
        known = np.flatnonzero(~np.isnan(values))
        network, codes = network[known][:, known], values[known].astype(np.int64)
        n, k = len(known), len(np.unique(codes))
    if k < 2 or n < k * LEAST_OF_A_COMMUNITY:
        raise EstimateRefusal(
            f"communities must be two or more, of at least {LEAST_OF_A_COMMUNITY} persons each on average",
            given=f"{n} persons, {k} {'level' if codes is not None else 'communities'}{'s' if k != 1 else ''}",
            next_step="Leave the site out of this estimand.",
        )

    def of(chosen: Any) -> float:
        part = network[chosen][:, chosen]
        # A start of its own for every part, and the same at every reading.
        found = communities(part, k, np.random.default_rng(len(chosen)))
        return modularity(part, found) if codes is None else adjusted_rand(found, codes[chosen])

    value, variance = left_out(of, n)
    if codes is not None:
        # Everybody agreed in every part: one person in another community would move the index by about 2 / n.
        variance = max(variance, (2 / n) ** 2)
    if not (math.isfinite(value) and math.isfinite(variance) and variance > 0):
        raise EstimateRefusal(
            "communities must part persons who are connected, whichever are left out",
            given=f"{network.nnz // 2} edges of {n} persons",
            next_step="Leave the site out of this estimand.",
        )
    return value, variance


def _of_arcs(network: Any, outcome: str, whole: int | None) -> tuple[float, float]:
    """A figure of a network with directions, as a logarithm."""
    from shared.mechanisms.grand.counts import arcs

    found = arcs(network)
    if outcome.endswith("degree_cv") and whole is not None:
        return _variation(found, found.n, whole, cv=outcome, density="arc")
    moment = found.log(outcome)
    return moment.yi, moment.vi


def _variation(
    found: Motifs, n: int, whole: int, *, cv: str = "degree_cv", density: str = "edge"
) -> tuple[float, float]:
    """The log coefficient of variation of degrees in the whole network, and its variance by the delta method.

    With edge density e, chance adds 1 / (e (n - 1)) to the square of the one that is seen among n persons.
    """
    import numpy as np

    at = [found.at(density), found.at(cv)]
    edge, spread = (float(found.values[place]) for place in at)
    found.log(cv)
    more = 1 / (n - 1) - 1 / (whole - 1)
    square = spread**2 - more / edge
    if not square > 0:
        raise EstimateRefusal(
            "degrees must vary by more than chance among the released to say how they vary in the whole network",
            given=f"{n} persons",
            next_step="Leave the site out of this estimand.",
        )
    slope = np.array([more / edge**2, 2 * spread]) / (2 * square)
    return math.log(square) / 2, float(slope @ found.covariance[np.ix_(at, at)] @ slope)
