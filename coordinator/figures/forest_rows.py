"""Content of a forest plot: its rows from top to bottom, and the lines under its axis.

Positions on the page are not set here: `coordinator.figures.forest_page` places and draws the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from coordinator.figures.style import LANE, ROW
from coordinator.figures.wording import TESTS, View, heterogeneity_words, model_name, p_words, signed, significant
from coordinator.pooling.pool import PooledResult

if TYPE_CHECKING:
    from coordinator.pooling.subgroups import Subgroups

__all__ = ["ForestLane", "ForestRow", "between", "footer", "limits", "meanings", "rows_of", "short_heterogeneity"]

_SQUARE = 0.155  # side of the heaviest site's square, inches


@dataclass(frozen=True)
class ForestLane:
    """One mark with its text: a site, a diamond or a prediction interval of one series."""

    series: int
    beta: float | None
    lb: float | None
    ub: float | None
    weight: float | None = None
    side: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class ForestRow:
    """One row of the plot; `gid` names its mark, without the number of the series.

    Kind ``group`` is the head of a subgroup, ``group diamond`` its pooled effect, ``words`` a line of small text.
    """

    kind: Literal["site", "diamond", "prediction", "excluded", "group", "group diamond", "words", "total"]
    label: str
    lanes: tuple[ForestLane, ...] = ()
    cells: tuple[str, ...] = ()
    gid: str = ""

    @property
    def height(self) -> float:
        """Height in inches: lanes lie closer together than rows."""
        return 0.2 if self.kind == "words" else ROW + LANE * (max(len(self.lanes), 1) - 1)

    @property
    def above(self) -> float:
        """Room above it."""
        return 0.08 if self.kind == "group" else 0.0


# -- words and numbers ---------------------------------------------------------------------------------------
def _overall(result: PooledResult) -> str:
    def words(row: PooledResult, model: str) -> str:
        if row.test == "z":
            return f"z = {signed(row.zval, 2)}, {p_words(row.pval)} ({model})"
        return f"t = {signed(row.zval, 2)}, df = {row.df}, {p_words(row.pval)} ({model})"

    models = [words(result.fixed, "fixed effect")] if result.method == "FE" else [words(result, "random effects")]
    if result.method != "FE":
        models.append(words(result.fixed, "fixed effect"))
    return "Overall effect: " + "; ".join(models)


def limits(result: PooledResult) -> list[tuple[float, float]]:
    """Lower and upper end of each row's own interval, on the analysis scale."""
    from scipy.special import ndtri

    z = -float(ndtri((1 - result.level) / 2))
    return [(y - z * se, y + z * se) for y, se in zip(result.yi, result.row_errors, strict=True)]


# -- the page ------------------------------------------------------------------------------------------------
def rows_of(
    results: Sequence[PooledResult],
    columns: Mapping[str, Mapping[str, str]],
    groups: Subgroups | None = None,
    by: str = "",
) -> tuple[tuple[str, ...], list[ForestRow]]:
    """Headings of the columns beside the sites, and all rows but those of the whole table."""
    first = results[0]
    sites = list(dict.fromkeys(label for row in results for label in row.labels))
    counts = {
        label: f"{e.n:,}" for row in reversed(results) for label, e in zip(row.labels, row.estimates, strict=False)
    }
    shares = {
        label: f"{share:.0f} %" for label, share in zip(first.labels, first.noise_share, strict=True) if share > 0
    }
    cells: dict[str, Mapping[str, str]] = {"n": counts} if counts else {}
    cells |= columns
    if shares:
        cells["Noise"] = {label: shares.get(label, "0 %") for label in first.labels}
    heaviest = max(weight for row in results for weight in row.weights)
    ends = [limits(row) for row in results]
    places = [dict(zip(row.labels, range(row.k), strict=True)) for row in results]
    by_site: dict[str, ForestRow] = {}
    for number, label in enumerate(sites):
        lanes = []
        for s, row in enumerate(results):
            i = places[s].get(label)
            if i is None:
                lanes.append(
                    ForestLane(s, None, None, None, note="excluded" if _is_excluded(row, label) else "no estimate")
                )
                continue
            side = _SQUARE * math.sqrt(row.weights[i] / heaviest)
            lanes.append(ForestLane(s, row.yi[i], *ends[s][i], weight=row.weights[i], side=side))
        texts = tuple(column.get(label, "") for column in cells.values())
        by_site[label] = ForestRow("site", label, tuple(lanes), texts, gid=f"site-{number}")
    rows = list(by_site.values()) if groups is None else _grouped(by_site, groups, by)
    listed = [e.label for row in results for e in row.excluded if e.label not in sites]
    if groups is not None and listed:
        rows.append(ForestRow("group", "No estimate"))
    for label in dict.fromkeys(listed):
        lane = ForestLane(0, None, None, None, note="excluded")
        rows.append(ForestRow("excluded", label, (lane,), tuple(column.get(label, "") for column in cells.values())))

    alone = len(results) == 1 and first.k > 1
    total = f"{sum(e.n for e in first.estimates):,}" if alone and first.estimates else ""

    def diamonds(label: str, chosen: Sequence[PooledResult]) -> None:
        own = alone and chosen[0] is first  # the model whose weights stand above
        lanes = tuple(
            ForestLane(s, row.beta, row.ci_lb, row.ci_ub, weight=100.0 if own else None) for s, row in enumerate(chosen)
        )
        gid = "random" if label.startswith("Random") else "fixed" if label.startswith("Fixed") else "own"
        rows.append(ForestRow("diamond", label, lanes, gid=gid))

    if all(row.k == 1 for row in results):
        diamonds("Not pooled: one site only", results)
        return tuple(cells), rows
    if total:
        rows.append(ForestRow("total", f"All {first.k}", cells=tuple(total if head == "n" else "" for head in cells)))
    diamonds(model_name(first.fixed), [row.fixed for row in results])
    if first.method != "FE":
        diamonds(model_name(first), results)
        predicted = [row.prediction_interval for row in results]
        if any(not interval.empty for interval in predicted):
            bars = tuple(ForestLane(s, None, each.lb, each.ub) for s, each in enumerate(predicted))
            rows.append(ForestRow("prediction", f"Prediction interval, a new {first.unit}", bars, gid="prediction"))
    return tuple(cells), rows


def _grouped(by_site: Mapping[str, ForestRow], groups: Subgroups, by: str) -> list[ForestRow]:
    """The sites under the heads of their groups, each group with its diamond and its own heterogeneity."""
    rows: list[ForestRow] = []
    left = dict(by_site)
    by = by[:1].upper() + by[1:]
    for number, (level, model) in enumerate(groups.groups.items()):
        rows.append(ForestRow("group", f"{by}: {level}" if by else level))
        rows += [left.pop(label) for label in model.labels]
        if model.k == 1:
            rows.append(ForestRow("words", f"One {model.unit}: nothing was pooled"))
            continue
        lane = ForestLane(0, model.beta, model.ci_lb, model.ci_ub)
        short = "Fixed effect" if model.method == "FE" else "Random effects"
        rows.append(ForestRow("group diamond", f"{short}, {model.k} {model.units}", (lane,), gid=f"group-{number}"))
        rows.append(ForestRow("words", short_heterogeneity(model)))
    if left:
        rows += [ForestRow("group", f"{by}: not known" if by else "No group"), *left.values()]
    return rows


def short_heterogeneity(model: PooledResult) -> str:
    """τ², I² and Q of one group, as a line."""
    tau2 = "" if model.method == "FE" else f"τ² = {significant(model.tau2)}, "
    return f"{tau2}I² = {model.I2:.0f} %, Q = {model.QE:.2f}, df = {model.df}, {p_words(model.QEp)}"


def _is_excluded(result: PooledResult, label: str) -> bool:
    return any(row.label == label for row in result.excluded)


_MEANINGS = {
    "n": "n: rows that the answer rests on",
    "Noise": "Noise: part of a site's variance that is noise of its release",
    "Map SE": "Map SE: standard error that its map adds to a site's harmonised estimate",
    "Posture": "Posture: what a site's flow may be fitted on (local: on the released records)",
}


def meanings(headings: Sequence[str], series: Mapping[str, PooledResult]) -> str:
    """Explanation of the columns beside the sites, and of the series that they belong to."""
    said = [text for head, text in _MEANINGS.items() if head in headings]
    own = [head for head in headings if head not in ("Posture", "Map SE")]
    if len(series) > 1 and own:
        said.append(f"{', '.join(own)}: of {next(iter(series))!r} alone, unless a cell has several")
    return "; ".join(said)


def between(groups: Subgroups, by: str) -> list[tuple[str, str, bool]]:
    """The tests for a difference between the groups, and what must be said of them; as lines of the footer."""
    lines: list[tuple[str, str, bool]] = []
    if groups.df:
        own = f"Q = {groups.Q_between:.2f}, df = {groups.df}, {p_words(groups.p_between)}"
        text = f"Difference between groups{f' ({by})' if by else ''}"
        if groups.common is None:
            text += f": {own}"
        else:
            df = groups.common.QM_df
            name = f"Q = {groups.common.QM:.2f}, df = {df[0]}"
            if len(df) > 1:
                name = f"F = {groups.common.QM:.2f}, df = {df[0]} and {df[1]}"
            text += f", one common τ²: {name}, {p_words(groups.common.QMp)}; each group with its own τ² (χ²): {own}"
        lines.append(("", text, False))
    return lines + [("", note, True) for note in groups.notes if not note.startswith("One row only")]


def footer(series: Mapping[str, PooledResult], view: View) -> list[tuple[str, str, bool]]:
    """Lines under the axis: the series they speak of (when there are several), the text, whether it is an aside."""
    lines: list[tuple[str, str, bool]] = []
    for called, result in series.items():
        name = called if len(series) > 1 else ""
        found = [(heterogeneity_words(result), False), (_overall(result), False)] if result.k > 1 else []
        if view.null is None:  # nobody asks whether a mortality or a mean is 0
            found = found[:1]
        if result.pooled_noise_share >= 0.5:
            share = f"{result.pooled_noise_share:.0f} %"
            pooled = "pooled estimate" if result.summed is None else "pooled releases"
            whose = pooled if result.k > 1 else "estimate"
            found.append((f"Privacy noise: {share} of the variance of the {whose}", True))
        others = [row for row in result.sensitivity if row.test != result.test] if result.method != "FE" else []
        if others:
            given = "; ".join(
                f"{TESTS[row.test]} {view.number(row.ci_lb)} to {view.number(row.ci_ub)}" for row in others
            )
            found.append((f"Other intervals of the random effect: {given}", True))
        found += [(f"Excluded: {row.label} ({row.reason}).", True) for row in result.excluded]
        found += [(note, True) for note in result.notes if "rows are excluded" not in note]
        lines += [(name if i == 0 else "", text, aside) for i, (text, aside) in enumerate(found)]
    return lines
