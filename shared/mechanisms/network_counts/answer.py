r"""From capped counts to one number per site: densities, transitivity, degrees, mixing by a column.

Every figure is a function of a few counts, each with Laplace noise of a known scale and independent of the others; its
variance follows by the delta method. It is of the hospital's *own* network as it was: what other persons would have
given stands in no variance, and a pool with random effects takes it for what hospitals differ by.

*What a cap left out.* A count under a cap Δ is at most the real one. Beside it stands the count under a smaller cap,
and their difference is what those between the two caps have: where it is more than its noise (two standard deviations)
there are most likely persons beyond Δ as well, and what they would add is taken for :data:`BEYOND` times the
difference, give or take as much. Where the correction is more than :data:`MOST_BEYOND` of a count, it is refused. A
difference that its noise could be as well puts nothing back; but it may be persons, and :data:`UNSURE` of it is given
or taken all the same. That is right of many persons a little beyond Δ. What a few far beyond it have, as staff who meet
hundreds, is in neither count, so that a caution with its direction stands by every figure but where even one person
at Δ would be seen in the difference.

*How wide.* A sum of few Laplace variables has heavier tails than a Gaussian one of its variance: 95 of 100 draws of one
lie within log 20 scales, which is 1.53 and not 1.41 scales times 1.96. Every variance is therefore that of a Gaussian
with this very interval, :math:`(b \log 20 / 1.96)^2`. A count or a figure that is not :data:`CLEAR` standard deviations
away from 0 has no useful logarithm, and mixing whose standard error is above :data:`WIDEST` says nothing: they are
refused. The first bar is so high because those that pass a low one are those that chance made large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from shared.errors import EstimateRefusal
from shared.estimands.answer import Estimand, Estimate, Origin

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from shared.mechanisms.network_counts.plan import NetworkCountsPlan
    from shared.plans.plan import StudyPlan

__all__ = ["answer"]

BEYOND = 0.75
MOST_BEYOND = 0.25
UNSURE = 0.5
"""The least with which 95 of 100 intervals of every figure but mixing held, on the choosing half of the worlds."""
CLEAR = 5.0
WIDEST = 0.15
_WIDTH = (math.log(20) / 1.959964) ** 2
_HOW = "capped counts of the whole network under their noise, to first order"
_OWN = (
    "of this hospital's own network as it was: what other persons would have given is in no interval; pool hospitals "
    "with random effects"
)
_LEFT_OUT = (
    "{seen} Of persons far beyond a cap, as staff who meet hundreds, too little is put back, and no interval includes "
    "that: {figure} is then {direction}, in made-up wards of 1,000 in which 3 met 150 or 2 met 400 under a cap of 40. "
    "Read it as of persons with few contacts; and plan release.most_contacts above what anybody's work brings, as "
    "rosters tell it and not these records."
)
_SURE = (
    "A count at half its cap is lower by more than its noise: some persons are most likely beyond the cap (of {cap} "
    "contacts), and count as if at it."
)
_HIDDEN = (
    "Whoever has more than {cap} contacts counts as if some of them were not there, and the noise hides whether there "
    "is anybody."
)
_DIRECTIONS = {
    "edge": "too low, by 9 to 17 %",
    "mean_degree": "too low, by 9 to 17 %",
    "v_shape": "too low, by 56 to 87 %",
    "triangle": "too low, by 3 to 40 %",
    "transitivity": (
        "too low where those whom they meet know each other, and too high where they do not, 2.2 to 4.5 times as high"
    ),
    "assortativity": ("too low where they keep to their own level, and too high where they meet all, by .04 to .07"),
}
_NEEDS = {
    "edge": ("edges",),
    "mean_degree": ("edges",),
    "v_shape": ("paths",),
    "triangle": ("triangles",),
    "transitivity": ("paths", "triangles"),
    "assortativity": ("alike", "apart", "ends"),
}
Counts = Mapping[str, "tuple[NDArray[np.float64], NDArray[np.float64]]"]


def answer(
    plan: StudyPlan,
    release: NetworkCountsPlan,
    tables: Sequence[tuple[pd.DataFrame, int]],
    question: Estimand,
    **origin: Unpack[Origin],
) -> list[Estimate]:
    """One site's estimate from its released counts; of several releases, which are of different persons, by their n.

    Args:
        release: the plan's mechanism.
        tables: released counts and their n, one pair per release.
        question: of kind ``network``, of a planned figure.
        origin: as of `shared.mechanisms.base.Answering.answer`.
    Raises: EstimateRefusal: a figure that was not planned, one that the noise drowns, one that the caps cut.
    """
    needs = require_answerable(release, question)
    total = sum(n for _, n in tables)
    yi = vi = 0.0
    cut = sorted(_left_out(release, plan, table, n, question.outcome) for table, n in tables)
    for table, n in tables:
        value, variance = _figure(_counts(release, plan, table, needs, question), n, question.outcome)
        yi += n / total * value
        vi += (n / total) ** 2 * variance
    return [
        Estimate(
            term=question.labels[0],
            yi=yi,
            vi_sampling=0.0,
            vi_privacy=vi,
            n=total,
            scale=question.scale,
            how=_HOW,
            warnings=(_OWN, *list(filter(None, cut))[:1]),  # what is seen before what is hidden
            **origin,
        )
    ]


def require_answerable(release: NetworkCountsPlan, question: Estimand) -> tuple[str, ...]:
    """Names of the counts that a question needs. Raises: EstimateRefusal, where the plan does not count them."""
    if question.kind != "network" or question.outcome not in _NEEDS:
        raise EstimateRefusal(
            f"capped counts must be asked network(…) of one of {', '.join(_NEEDS)}",
            given=str(question),
            next_step="Other shapes need a study of a node-private network (GRAND); how uneven degrees are is what "
            "the caps cut.",
        )
    needs = _NEEDS[question.outcome]
    missing = [name for name in needs if name in ("paths", "triangles") and name not in release.figures]
    if question.outcome == "assortativity" and question.terms[0] not in release.by:
        missing = [f"mixing by {question.terms[0]}"]
    if missing:
        raise EstimateRefusal(
            "a figure of capped counts must have been planned: nothing else was counted",
            given=f"{question} without {' and '.join(missing)}",
            next_step="Plan it in release.figures or release.by, in a new study or a wave that refreshes.",
        )
    return needs


def _counts(
    release: NetworkCountsPlan, plan: StudyPlan, table: pd.DataFrame, needs: Sequence[str], question: Estimand
) -> Counts:
    """Name to values and their variances, what the caps left out put back. Raises: EstimateRefusal."""
    of = question.terms[0] if question.outcome == "assortativity" else ""
    found: dict[str, list[Any]] = {}
    for block, values in release.read(plan, table):
        if block.name in needs and block.of in ("", of):
            found.setdefault(block.name, []).append((values, np.full(len(values), _WIDTH * block.scale**2), block.cap))
    out = {}
    for name, both in found.items():
        (values, variance, cap), *smaller = both
        for fewer, its, _ in smaller:
            values, variance = _put_back(name, cap, (values, variance), (fewer, its))
        # Of edges within levels and between two only a share is asked: the ends, all together, say of how many.
        if name not in _SHARES and not values.sum() > CLEAR * math.sqrt(variance.sum()):
            raise EstimateRefusal(
                f"the number of {_WORDS[name]} must be more than its noise",
                given=f"less than {CLEAR:g} times the noise at this ε and these caps",
                next_step="Plan a larger ε, smaller caps if nobody has as many, or fewer figures.",
            )
        out[name] = (values, variance)
    return out


_SHARES = ("alike", "apart")
_WORDS = {
    "edges": "edges",
    "paths": "paths of two edges",
    "triangles": "triangles",
    "alike": "edges within a level",
    "apart": "edges between two levels",
    "ends": "edges by level",
}


def _put_back(name: str, cap: int, full: Any, fewer: Any) -> tuple[Any, Any]:
    (values, variance), (low, its) = full, fewer
    gap = values - low
    sure = gap > 2 * np.sqrt(variance + its)
    more = np.where(sure, BEYOND * gap, 0.0)
    doubt = np.where(sure, more**2 + BEYOND**2 * (variance + its), (UNSURE * np.maximum(gap, 0.0)) ** 2)
    if (more > MOST_BEYOND * np.abs(values)).any():
        raise EstimateRefusal(
            f"the cap of {cap} {_WORDS[name]} a person must leave out little",
            given=f"a smaller one leaves out {float(np.max(gap / np.abs(values))):.0%}",
            next_step="Plan a larger release.most_contacts (or most_paths, most_triangles), which makes more noise.",
        )
    return values + more, variance + doubt


def _left_out(release: NetworkCountsPlan, plan: StudyPlan, table: pd.DataFrame, n: int, figure: str) -> str:
    """Caution on persons far beyond a cap; "" where there is nobody beyond it, or a single one would be seen."""
    names, gaps = {"edges", *_NEEDS[figure]}, []
    blocks = [(block, float(values.sum())) for block, values in release.read(plan, table) if block.name in names]
    for (full, most), (fewer, least) in itertools.pairwise(blocks):
        if full.name == fewer.name and not full.of and full.cap < _MOST_OF[full.name](n):
            error = math.sqrt(_WIDTH * (full.scale**2 + fewer.scale**2))
            gaps.append((most - least, error, full.cap - fewer.cap))
    if all(gap + 2 * error < one for gap, error, one in gaps):
        return ""
    seen = _SURE if any(gap > 2 * error for gap, error, _ in gaps) else _HIDDEN
    seen = seen.format(cap=release.most_contacts)
    return _LEFT_OUT.format(seen=seen, figure=f"network({figure})", direction=_DIRECTIONS[figure])


_MOST_OF: Mapping[str, Callable[[int], int]] = {
    "edges": lambda n: n - 1,
    "paths": lambda n: 3 * math.comb(n - 1, 2),
    "triangles": lambda n: math.comb(n - 1, 2),
}
"""What one of n persons may be part of at most: a cap of as much leaves nothing out."""


def _figure(counts: Counts, n: int, name: str) -> tuple[float, float]:
    """The figure on its scale, and its variance."""
    value, sd = _spread(counts, n, name)
    if name == "assortativity":
        return _as_z(value, sd)
    if not value > CLEAR * sd:
        raise EstimateRefusal(
            f"network({name}) must be more than its noise",
            given=f"less than {CLEAR:g} times the noise at this ε and these caps",
            next_step="Leave the site out of this estimand; plan a larger ε, or smaller caps if nobody has as many.",
        )
    return math.log(value), (sd / value) ** 2


def _spread(counts: Counts, n: int, name: str) -> tuple[float, float]:
    """The figure as it is, and its standard deviation by the delta method."""
    at = np.concatenate([values for values, _ in counts.values()])
    variance = np.concatenate([its for _, its in counts.values()])
    sizes = np.cumsum([len(values) for values, _ in counts.values()])[:-1]

    def of(flat: NDArray[np.float64]) -> float:
        return _FIGURES[name](dict(zip(counts, np.split(flat, sizes), strict=True)), n)

    slope = [(of(at + step) - of(at - step)) / (2 * step.sum()) for step in np.diag(1e-4 * np.sqrt(variance))]
    return of(at), math.sqrt(float(np.square(slope) @ variance))


def _as_z(value: float, sd: float) -> tuple[float, float]:
    """A coefficient as Fisher's z, with the variance of the wider side of its interval.

    Whether it is refused depends on the noise beside the number of edges, and hardly on the coefficient: else those
    that are answered would be those that chance made large.
    """
    if not sd <= WIDEST:
        raise EstimateRefusal(
            f"network(assortativity) must have a standard error of at most {WIDEST:g}",
            given="a wider one: the noise at this ε and these caps drowns it",
            next_step="Leave the site out of this estimand; plan a larger ε, or smaller caps if nobody has as many.",
        )
    middle = min(max(value, sd - 1), 1 - sd)
    ends = (max(middle - 1.96 * sd, sd / 4 - 1), min(middle + 1.96 * sd, 1 - sd / 4))
    z = math.atanh(middle)
    return z, (max(abs(math.atanh(end) - z) for end in ends) / 1.96) ** 2


def _mixing(counts: Mapping[str, NDArray[np.float64]], n: int) -> float:
    """Newman's coefficient: edges within levels, of all, beside what the ends alone give."""
    ends, alike = counts["ends"] / counts["ends"].sum(), float(counts["alike"][0])
    chance = float(ends @ ends)
    return (alike / (alike + float(counts["apart"][0])) - chance) / (1 - chance)


_FIGURES: Mapping[str, Callable[[Mapping[str, Any], int], float]] = {
    "edge": lambda counts, n: float(counts["edges"][0]) / math.comb(n, 2),
    "mean_degree": lambda counts, n: 2 * float(counts["edges"][0]) / n,
    "v_shape": lambda counts, n: float(counts["paths"][0]) / (3 * math.comb(n, 3)),
    "triangle": lambda counts, n: float(counts["triangles"][0]) / math.comb(n, 3),
    "transitivity": lambda counts, n: 3 * float(counts["triangles"][0]) / float(counts["paths"][0]),
    "assortativity": _mixing,
}
