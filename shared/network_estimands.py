r"""From released networks to one number per site: motif densities, transitivity, degrees, assortativity.

What a network says is one draw of a law that was learned from the m persons held out, so that two samples stand behind
every figure: the variance is :math:`(1 + n/m)` times the node jackknife's (`shared.networks`), of which the first part
is what somebody who takes the network for the real one would state. Densities and ratios are pooled as logarithms,
assortativity as Fisher's z, both by the delta method.

Where a study appends waves, a site has several networks of different persons. Their figures are averaged by n; the
parts of their variances that come from persons held out are added as if they were the same persons, which they mostly
are. Where the plan keeps its frames, the waves are one network, edges between them included, and all of it is drawn
from what the persons held out at the first wave gave: m is theirs. Of a directed network, motifs are those of the
network without directions; what is about directions (`ARCS`) is asked of it alone.

Densities and transitivity mean the same in a network of some of its persons. Degrees do not: they are stated for the
hospital's whole network of N persons, released, held out and of all waves, from the density that its released persons
have among themselves. A mean degree is the density times N − 1; the squared coefficient of variation loses what is
chance, one over the mean degree, of n persons, and gets that of N.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from shared.dictionary import LEVELLED, Dictionary
from shared.errors import EstimateRefusal
from shared.estimands import Estimand, Estimate
from shared.prescriptions.grand import GrandPlan, adjacency, held_out, union

if TYPE_CHECKING:
    from shared.networks import Motifs
    from shared.plan import StudyPlan

__all__ = ["answer", "figure"]

_FOR = (
    "A network answers network(…), such as network(triangle). Attributes are noised one after the other, and their "
    "means can be off by a standard error: ask for them in a study of tables."
)
_DRAWN_TOWARDS_ZERO = (
    "drawn towards 0: what an attribute has to do with the edges is kept only nearly, and less in a smaller site"
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
"""What is asked of networks with directions alone."""
_SHAPES = ("v_shape", "triangle", "star3", "transitivity", "degree_cv")
_HOW = "node jackknife of the released network, times 1 + n/m"


def answer(
    plan: StudyPlan,
    tables: Sequence[tuple[pd.DataFrame, int]],
    question: Estimand,
    *,
    levels: Mapping[str, Any],
    **told: Any,
) -> list[Estimate]:
    """One site's estimate from its released networks.

    Args:
        tables: released tables and their n, in the order of their waves, of different persons.
        levels, told: as of `shared.prescriptions.Answering.answer`.
    Raises: EstimateRefusal: a motif that is not there, an attribute without a correlation, a question of another kind.
    """
    assert isinstance(plan.release, GrandPlan)
    if question.kind != "network":
        raise EstimateRefusal("the question must be one that a network answers", given=str(question), next_step=_FOR)
    directed = plan.release.directed
    if question.outcome in ARCS and not directed:
        raise EstimateRefusal(
            f"network({question.outcome}) must be asked of a network with directions",
            given="one without",
            next_step="Ask network(transitivity) or network(degree_cv), or plan release.directed = true.",
        )
    total = sum(n for _, n in tables)
    yi = own = shared_ = 0.0
    so_far, fewest = 0, math.inf
    whole = total + held_out(plan, total)
    networks: list[tuple[Any, pd.DataFrame, int]]
    if plan.release.sealed:
        together = pd.concat([table for table, _ in tables], ignore_index=True)
        networks = [(union([table for table, _ in tables], directed=directed), together, total)]
    else:
        networks = [(adjacency(table, directed=directed), table, n) for table, n in tables]
    for network, table, n in networks:
        so_far += n
        value, variance = figure(network, table, question, plan.dictionary, whole=whole)
        m = held_out(plan, tables[0][1] if plan.release.sealed else so_far)
        fewest = min(fewest, network.nnz / max(1, n * (n - 1)) * m / plan.release.widest)
        share = n / total
        yi += share * value
        own += share**2 * variance
        shared_ += share * math.sqrt(variance * n / m)
    warnings: tuple[str, ...] = (_DRAWN_TOWARDS_ZERO,) if question.outcome == "assortativity" else ()
    if question.outcome in ARCS:
        apart = question.outcome in ("reciprocity", "directed_transitivity")
        warnings = (_OF_THE_MODEL, *((_DIRECTIONS_APART,) if apart else ()))
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
            how=_HOW,
            warnings=warnings,
            **told,
        )
    ]


def figure(
    network: Any,
    rows: pd.DataFrame,
    question: Estimand,
    dictionary: Dictionary | None,
    *,
    whole: int | None = None,
) -> tuple[float, float]:
    """One figure of one network and its jackknife variance, both on the scale they are pooled on.

    Args:
        network: (n, n) sparse, 0 and 1, without loops.
        rows: (n, …) attributes in the dictionary's own spelling; asked for assortativity alone.
        question: of kind ``network``.
        whole: persons of the network whose degrees are meant, of whom these n are a random part; n where None.
    Raises: EstimateRefusal.

    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> from shared.questions import parse_estimand
    >>> wheel = np.roll(np.eye(8), 1, axis=0)
    >>> wheel[0, 1:] = 1
    >>> value, _ = figure(csr_array(wheel), pd.DataFrame(), parse_estimand("network(mean_degree)"), dictionary=None)
    >>> round(math.exp(value), 4)
    3.25
    """
    from shared.networks import assortativity, motifs, simple

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
    if question.outcome in ARCS:
        return _of_arcs(network, question.outcome, whole)
    found = motifs(plain)
    if question.outcome == "degree_cv" and whole is not None:
        return _variation(found, n, whole)
    moment = found.log("edge" if question.outcome == "mean_degree" else question.outcome)
    return moment.yi + (math.log((whole or n) - 1) if question.outcome == "mean_degree" else 0.0), moment.vi


def _of_arcs(network: Any, outcome: str, whole: int | None) -> tuple[float, float]:
    """A figure of a network with directions, as a logarithm."""
    from shared.networks import arcs

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
