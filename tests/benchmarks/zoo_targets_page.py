"""Of docs/zoo.md the part about targets: what was asked, what is measured, and of what is missed where and how far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.answers.record_gap import MEASURED_TO
from tests.benchmarks import zoo_apart_page, zoo_page
from tests.benchmarks.worlds import KINDS
from tests.benchmarks.zoo_page import KEPT, LATENT_SIZES, REACH, reach, share, spread, table
from tests.benchmarks.zoo_words import BARS

__all__ = ["section"]

FRESH_AT = "seventeen-tables-that-were-picked-before-any-result-was-seen"
BLIND_AT = "twelve-tables-that-were-taken-by-a-rule"
DECLARED = "noisy moments, ε = 1, every coefficient declared"
HELD, TOLD = "holds the records' answer, %", "distance holds, %"


@dataclass(frozen=True, kw_only=True)
class Some:
    """Some answers of a record: where they are in words, their summary, and each coefficient's model and figures."""

    where: str
    found: Mapping[str, Any]
    terms: Sequence[tuple[str, Mapping[str, float]]]
    draws: int

    @property
    def answers(self) -> int:
        """Coefficients times draws."""
        return self.draws * len(self.terms)

    def outside(self) -> str:
        """How many answers do not hold the records', and the models that have most of them."""
        missed = Counter[str]()
        for model, one in self.terms:
            missed[model] += self.draws - round(one["held"] * self.draws)
        most = ", ".join(f"{model} {count}" for model, count in missed.most_common(2) if count)
        return f"{sum(missed.values())} of {self.answers} outside: {most}"

    def beside_cautions(self) -> str:
        """Where a caution stands by most of them, that it does."""
        stood = sum(one["right_cautioned"] + one["wrong_cautioned"] for _, one in self.terms) / self.answers
        return f"; a caution stands by {100 * stood:.0f} %" if stood > 0.5 else ""

    def farthest(self, name: str) -> str:
        """The model whose coefficient is farthest off."""
        return max(self.terms, key=lambda one: abs(one[1][name]))[0]

    def noise(self, own: bool) -> tuple[float, float]:
        """Median and 95th percentile of the mean of the draws' distances, were intervals exact and draws independent.

        An interval that is w times as wide as the records' has an error of its own of √(w² - 1) records' standard
        errors, which are √(1 - 1 / w²) of its own.
        """
        variances = [max(one["width"], 1.0) ** 2 - 1 for _, one in self.terms]
        variances = [v / (1 + v) if own else v for v in variances]
        spreads = [math.sqrt(v / self.draws) for v in variances if v]
        return _quantile(spreads, 0.5), _quantile(spreads, 0.95)


def _quantile(spreads: Sequence[float], share_below: float) -> float:
    """Of distances from 0 of normal errors, each of which has one of these spreads.

    >>> round(_quantile([1.0, 1.0], 0.95), 2)
    1.96
    """
    low, high = 0.0, 10 * max(spreads, default=0.0)
    for _ in range(60):
        middle = (low + high) / 2
        below = sum(math.erf(middle / s / math.sqrt(2)) for s in spreads) / max(len(spreads), 1)
        low, high = (middle, high) if below < share_below else (low, middle)
    return high


def _some(name: str, at: str, where: str = "", summary: str = "all", **only: Any) -> list[Some]:
    """The answers of a record at one ε or w, of the cells that are so; none where it was not measured."""
    record = zoo_page.results(name)
    if record is None:
        return []
    cells = [one for one in record["cells"] if all(one[key] == value for key, value in only.items())]
    terms = [
        (f"{one['world'].replace('_', ' ')}, {one['kind']}", spread(line))
        for one in cells
        for key, line in one.get("terms", {}).items()
        if key.endswith(at)
    ]
    found = record["summaries"][at].get(summary) or {}
    found = found or {
        key: 100 * sum(one[key] for _, one in terms) / len(terms)
        for key in ("held", "told")
        if terms and key in terms[0][1]
    }
    return [Some(where=where, found=found, terms=terms, draws=record["draws"])] if terms else []


Row = list[str]


def _percent(what: str, some: Some, name: str = "held", least: float = 92.0, most: float = 100.0) -> Row:
    """A share that has a bar."""
    asked = f"≥ {least:g}" if most == 100.0 else f"{least:g} to {most:g}"
    measured = share(some.found, name, some.answers)
    reached = "yes" if least <= some.found[name] <= most else "no"
    if reached == "no":
        low, high = (float(part) for part in measured.partition("(")[2].rstrip(")").split(" to "))
        reached += ", within chance" if low <= most and high >= least else ""
        reached += f"; {some.outside()}" if name == "held" else some.beside_cautions()
    return [what, asked, measured, reached]


def _least(of: str, sizes: Sequence[Some], name: str = "held") -> list[Row]:
    """The lowest of all sizes, worlds or outcomes, with where it is and how many are below the bar."""
    there = [one for one in sizes if one.found.get(name) is not None]
    if not there:
        return []
    one = min(there, key=lambda size: float(size.found[name]))
    words, bar = (HELD, (92.0, 100.0)) if name == "held" else (TOLD, (85.0, 95.0))
    row = _percent(f"{of}: {words}, lowest: {one.where}", one, name, *bar)
    below = sum(size.found[name] < bar[0] for size in there)
    row[-1] += f"; {below} of {len(there)} are below" if below > 1 else ""
    return [row]


def _bias(what: str, some: Some, own: bool = False) -> Row:
    """Median and 95th percentile of distances, beside what noise alone would make."""
    name = "bias_own" if own else "bias"
    limits = (0.7, 0.7) if own else (0.4, 1.2)
    found = (float(some.found[f"{name}_median"]), float(some.found[f"{name}_p95"]))
    asked = "≤ 0.7" if own else "≤ 0.4 / ≤ 1.2"
    missed = [k for k in (0, 1) if found[k] > limits[k]]
    reached = "yes"
    if missed:
        noise = some.noise(own)
        reached = "no" if len(missed) == 2 else "median yes, 95th percentile no" if missed == [1] else "median no"
        reached += ", but not above noise" if all(found[k] <= noise[k] for k in missed) else ""
        reached += f": noise alone {noise[0]:.2f} / {noise[1]:.2f}"
    return [what, asked, f"{found[0]:.2f} / {found[1]:.2f}", f"{reached}; farthest: {some.farthest(name)}"]


def _latent() -> list[Row]:
    """Latent noise of the reported half."""
    of = "latent noise, w = 0.8"
    rows = []
    for one in _some("zoo", "w=0.8"):
        excess = float(one.found["I2_excess"])
        rows += [
            _bias(f"{of}: bias of a pooled coefficient, mean of {one.draws} draws, median / 95th percentile", one),
            _percent("its pooled interval holds the records' answer, %", one),
            ["I² released less real, points, mean", "≤ 10", f"{excess:.1f}", "yes" if excess <= 10 else "no"],
            _percent("distance given for nine cases of ten holds, %", one, "told", 85.0, 95.0),
        ]
    sizes = [
        (n * k, one)
        for n, name in LATENT_SIZES.items()
        for k in KEPT
        for one in _some(name, "w=0.8", f"at n = {n:,}, K = {k}", f"sites={k}", sites=k)
    ]
    by_type = [
        one
        for n, name in LATENT_SIZES.items()
        for kind in KINDS
        for one in _some(name, "w=0.8", f"{kind} at n = {n:,}, K = 4, 12 and 48", f"kind={kind}", kind=kind)
    ]
    given = [one for rows_pooled, one in sizes if rows_pooled <= MEASURED_TO]
    rows += _least(of, [one for _, one in sizes]) + _least(of, by_type) + _least(of, given, "told")
    rows += _tailed(of) + _distance_by_type(of)
    rows += _apart(f"{of}, by n and K", [one for _, one in sizes]) + _apart(f"{of}, by n and type", by_type)
    rows += _least(f"{of}, n = 1,000, K = 12, by world", _worlds("zoo", "w=0.8"), "told")
    rows += _least(f"{of}, seventeen tables, two draws", _worlds("zoo_fresh", "w=0.8"), "told")
    rows += _least(f"{of}, three of them, twelve draws", _worlds("zoo_fresh_again", "w=0.8"), "told")
    for one in sorted((one for _, one in sizes), key=lambda one: -float(one.found["bias_p95"]))[:1]:
        rows.append(_bias(f"{of}: bias of one draw, median / 95th percentile, farthest: {one.where}", one))
    return rows


def _tailed(of: str) -> list[Row]:
    """Counts beside a covariate with a Pareto tail, which were asked apart."""
    cells = [
        one
        for n in (1000, 5000)
        for k in KEPT
        for one in _some("zoo_heavy_tails", "w=0.8", f"at n = {n:,}, K = {k}", "of cells", kind="count", n=n, sites=k)
    ]
    rows = _least(f"{of}, [counts beside a heavy tail](#counts-beside-a-heavy-tail)", cells)
    for one in _some("zoo_heavy_tails", "w=0.8", "", "kind=count", kind="count"):
        rows.append(_bias("the same, all n and K: bias of one draw, median / 95th percentile", one))
    rows += _least("the same", cells, "told")
    for kind in ("survival", "count"):
        for one in _some("zoo_heavy_tails_logged_20000", "w=0.8", "", f"kind={kind}", kind=kind):
            logged = "that world with [the marker's logarithm](#the-markers-logarithm) planned"
            rows.append(_percent(f"{of}, {logged}, {kind} at n = 20,000, K = 4, 12 and 48: {HELD}", one))
    return rows


def _distance_by_type(of: str) -> list[Row]:
    """Where the distance holds least often by type, n and K, of what is below the limit to which one is given.

    Records keep whether a caution stands by an answer, and not which; the distances beside them are counted.
    """
    cells = [
        one
        for n, name in LATENT_SIZES.items()
        for k in KEPT
        if n * k <= MEASURED_TO
        for kind in KINDS
        for one in _some(name, "w=0.8", f"{kind} at n = {n:,}, K = {k}", "of its cells", kind=kind, sites=k)
    ]
    rows = _least(of, cells, "told")
    for row in rows:
        one = min(cells, key=lambda cell: float(cell.found["told"]))
        missed = Counter(model for model, term in one.terms if not term["told"])
        stood = sum(bool(term["right_cautioned"] + term["wrong_cautioned"]) for _, term in one.terms)
        row[-1] += f"; {sum(missed.values())} of {one.answers} beyond it: "
        row[-1] += ", ".join(f"{model} {count}" for model, count in missed.most_common(3))
        row[-1] += f"; a caution stands by {stood} of the {one.answers}"
    return rows


def _worlds(name: str, at: str) -> list[Some]:
    record = zoo_page.results(name) or {"cells": []}
    found = []
    for world in dict.fromkeys(one["world"] for one in record["cells"]):
        found += _some(name, at, f"of {world.replace('_', ' ')}", f"world={world}", world=world)
    return found


def _apart(of: str, sizes: Sequence[Some]) -> list[Row]:
    """The lowest and the highest I² released less real of several sizes or types, and how many are beyond the bar.

    Below it a release hides what hospitals differ by, which was not asked and is as wrong.
    """
    there = [one for one in sizes if one.found.get("I2_excess") is not None]
    if not there:
        return []
    excess = [float(one.found["I2_excess"]) for one in there]
    ends = [f"{value:+.1f} {there[excess.index(value)].where}" for value in (min(excess), max(excess))]
    above, below = sum(value > 10 for value in excess), sum(value < -10 for value in excess)
    reached = f"no: {above} of {len(there)} above" if above else "yes"
    reached += f"; {below} of {len(there)} below −10, where differences are hidden" if below else ""
    measured = "; ".join(ends if len(there) > 1 else ends[:1]).replace("-", "−")
    return [[f"{of}: I² released less real, points, mean, lowest and highest", "≤ 10", measured, reached]]


def _by(key: str, names: Sequence[str], at: str, where: str) -> list[Some]:
    """Noisy figures of each K and of each value of this key of its cells.

    Args:
        where: the value and its K in words.
    """
    found = []
    for name in names:
        record = zoo_page.results(name) or {"cells": [], "sites": 0}
        for value in dict.fromkeys(one[key] for one in record["cells"]):
            said = where.format(value, record["sites"])
            found += _some(name, at, said, f"{key}={value}", **{key: value})
    return found


def _by_size(names: Sequence[str], at: str) -> list[Some]:
    return _by("n", names, at, "at n = {:,}, K = {}")


def _by_type(names: Sequence[str], at: str) -> list[Some]:
    return _by("kind", names, at, "{} at K = {}, all n")


def _figures() -> list[Row]:
    """Noisy figures of the reported half."""
    rows = []
    for name, which in {"zoo_moments": "every", "zoo_moments_none_declared_after": "no"}.items():
        for one in _some(name, "epsilon=1"):
            of = f"noisy moments, ε = 1, {which} coefficient declared"
            draws = "one draw" if one.draws == 1 else f"mean of {one.draws} draws"
            rows += [
                _percent(f"{of}: {HELD}", one),
                _bias(f"{of}: bias in own standard errors, {draws}, median / 95th percentile", one, own=True),
            ]
    names = [f"zoo_moments_k{k}" for k in KEPT]
    rows += _least(DECLARED, _by_size(names, "epsilon=1")) + _least("the same", _by_type(names, "epsilon=1"))
    rows += _least("the same, by world, n = 2,000, K = 12", _worlds("zoo_moments", "epsilon=1"))
    rows += _apart(f"{DECLARED}, by n and K", _by_size(names, "epsilon=1"))
    rows += _apart("the same, by type and K", _by_type(names, "epsilon=1"))
    new = _by("kind", ["zoo_moments"], "epsilon=1", "{}")
    rows += _apart("the same, n = 2,000, K = 12, and real tables, by type", new)
    for epsilon in ("1", "3"):
        nominal = _some("zoo_moments_nominal", f"epsilon={epsilon}", "over both")
        rows += _apart(f"noisy moments, ε = {epsilon}, two tables with a nominal covariate", nominal)
    rows += [*_refused_late(names), *_logged()]
    for mechanism, epsilon, words in (
        ("tables", 1, "noisy tables"),
        ("densities", 1, "densities (a mean)"),
        ("slicing", 3, "slicing"),
    ):
        names = [f"zoo_{mechanism}_k{k}" for k in KEPT]
        rows += _least(f"{words}, ε = {epsilon}", _by_size(names, f"epsilon={epsilon}"))
        if mechanism != "densities":
            rows += _least("the same", _by_type(names, f"epsilon={epsilon}"))
        rows += _apart(f"{words}, ε = {epsilon}, by n and K", _by_size(names, f"epsilon={epsilon}"))
        if mechanism != "slicing":
            twelve = _by("kind", [f"zoo_{mechanism}"], f"epsilon={epsilon}", "{}")
            rows += _apart("the same, n = 2,000, K = 12, by type", twelve)
    rows += _least("cross-products, ε = 1", _by_size(zoo_page.CROSS_PRODUCTS, "epsilon=1"))
    rows += _apart("cross-products, ε = 1, by n and K", _by_size(zoo_page.CROSS_PRODUCTS, "epsilon=1"))
    return rows


def _refused_late(names: Sequence[str]) -> list[Row]:
    """Models of noisy moments that are refused once ε is charged, at most of these records, with the reason."""
    records = [(record["sites"], record) for record in map(zoo_page.results, names) if record]
    found = []
    for sites, record in records:
        for n in dict.fromkeys(one["n"] for one in record["cells"]):
            cells = [one for one in record["cells"] if one["n"] == n]
            late = [one for one in cells if "histograms" in one.get("refused", "")]
            found.append((len(late), len(cells), f"at n = {n:,}, K = {sites}", late))
    if not found:
        return []
    late, asked, where, cells = max(found, key=lambda one: one[0])
    sizes = sum(one[0] == late for one in found)
    models = Counter(one["world"].replace("_", " ") for one in cells)
    return [
        [
            "noisy moments, ε = 1: models that are refused after the charge, most of several sizes",
            "0",
            f"{late} of {asked}, so {where}",
            f"no; as many at {sizes} of {len(found)} sizes: one cell of a covariate's histogram holds most persons, "
            f"which only the release shows: {', '.join(f'{world} {count}' for world, count in models.items())}",
        ]
    ]


def _logged() -> list[Row]:
    """Of the worlds whose models are refused so, with the logarithm of the column in question planned."""
    record = zoo_page.results("zoo_moments_logged") or {"cells": []}
    late = sum("refused" in one for one in record["cells"])
    of = "the same three worlds, with [the marker's logarithm](#the-markers-logarithm) planned: models that are refused"
    rows = [[of, "0", f"{late} of {len(record['cells'])}", "no" if late else "yes"]] if record["cells"] else []
    return rows + [_percent(f"the same: {HELD}", one) for one in _some("zoo_moments_logged", "epsilon=1")]


def _real(of: str, records: Sequence[tuple[str, str, str]]) -> list[Row]:
    """Of real tables that were written down before any result was seen: each record, where in it, and in words."""
    rows = []
    for name, at, words in records:
        for one in _some(name, at):
            own = at != "w=0.8"
            units = "bias in own standard errors" if own else "bias"
            rows += [
                _percent(f"{of}: {words}: {HELD}", one),
                _bias(f"the same: {units}, mean of {one.draws} draws, median / 95th percentile", one, own=own),
            ]
    return rows


def _fresh() -> list[Row]:
    """Of the tables that were picked before any result was seen."""
    return _real(
        f"seventeen [tables that were picked before any result was seen](#{FRESH_AT})",
        (
            ("zoo_fresh", "w=0.8", "latent noise, w = 0.8"),
            ("zoo_fresh_draws", "w=0.8", "latent noise, w = 0.8, once more (`zoo_fresh_draws.json`)"),
            ("zoo_tables_fresh", "epsilon=1", "noisy tables, ε = 1, seven models"),
            ("zoo_moments_fresh", "epsilon=1", DECLARED),
        ),
    )


def _blind() -> list[Row]:
    """Of the tables that were taken by a rule."""
    of = f"twelve [tables that were taken by a rule](#{BLIND_AT})"
    rows = _real(
        of,
        (
            ("zoo_blind", "w=0.8", "latent noise, w = 0.8"),
            ("zoo_tables_blind", "epsilon=1", "noisy tables, ε = 1, four models"),
            ("zoo_moments_blind", "epsilon=1", DECLARED),
        ),
    )
    for one in _some("zoo_blind", "w=0.8"):
        rows.append(_percent(f"{of}: latent noise, w = 0.8: {TOLD}", one, "told", 85.0, 95.0))
    for name, at, words in (
        ("zoo_blind", "w=0.8", "latent noise, w = 0.8"),
        ("zoo_moments_blind", "epsilon=1", DECLARED),
    ):
        rows += _apart(f"{of}: {words}", _some(name, at, "over all"))
    return rows


def _cautions() -> list[Row]:
    """Of each mechanism, over all its records: wrong answers that carry a caution, and right ones."""
    rows = []
    for words, names in REACH.items():
        found = reach(names)
        wrong, right = found["wrong"], found["right"]
        caught, most = found["wrong_cautioned"], found["most"]
        if not right + wrong:
            continue
        said = 100 * found["right_cautioned"] / right
        if wrong:
            can = f"[can be expected](#what-a-caution-can-catch): {100 * most:.0f} %"
            reached = "yes" if caught >= 0.8 * wrong else f"no; {can}"
        else:
            reached = "cannot be said: none is wrong"
        dagger = zoo_page.daggers(names)
        rows += [
            [f"{words}: wrong answers that carry a caution", "≥ 80 %", f"{caught:.0f} of {wrong:.0f}", reached],
            [
                f"{words}: right answers that do, %",
                "≤ 20",
                f"{said:.1f}{dagger}",
                "yes" if said <= 20 else f"no: {REASONS.get(words, 'not known why')}",
            ],
        ]
    return rows


REASONS = {
    "noisy moments, nothing declared": "each undeclared coefficient carries one",
    "noisy tables, simulated worlds": "one released bin holds most of the marker, so that none is adjusted for it; "
    "of [its logarithm](#the-markers-logarithm) it is not so",
    "densities (a mean)": "each says how far its bins may put it off",
    "slicing": "each says that, of how three columns depend together, its interval holds only a small error",
    "cross-products": "noise hides a column's spread at few patients",
}
"""What the cautions by right answers say, where they stand by too many."""


COPIED = {"equal_rows": "n = 300 and 1,000"}
"""Records of `tests.benchmarks.equal_rows`, and of what."""


def _others() -> list[Row]:
    """Networks, what is told before a run, and equal rows."""
    rows = []
    if counts := zoo_page.results("network_counts"):
        for n in (700, 2000):
            found = counts["counts"][f"N={n}, epsilon=3"]["all"]
            for name in ("transitivity", "mixing by ward"):
                one = found[name]
                answered = f"{100 * one['answered'] / one['asked']:.0f} % are answered"
                held = share({"held": 100 * one["covered"]}, "held", one["answered"])
                reached = "yes" if one["covered"] >= 0.9 else "no"
                what = f"networks, ε = 3, {n:,} persons, {name}, capped counts: holds the network's own, %"
                rows.append([what, "≥ 90, or refused", f"{held}; {answered}", f"{reached}; GRAND's are refused"])
    if told := zoo_page.results("estimates"):
        ratios = [
            (ratio, f"{what.partition('_')[0]} of {mechanism.replace('_', ' ')}, {_size(size)}")
            for mechanism, sizes in told["after"].items()
            for size, one in sizes.items()
            for what, ratio in one["ratio"].items()
        ]
        ratio, where = max(ratios, key=lambda one: abs(math.log(one[0])))
        within = sum(1 / 1.5 <= one <= 1.5 for one, _ in ratios)
        short = sorted(name for name, sizes in told["after"].items() if "500000" not in " ".join(sizes))
        rows.append(
            [
                "time, memory and bundle that are foretold before a run: within a factor of 1.5, to 500,000 rows",
                "all",
                f"{within} of {len(ratios)}",
                f"{'yes' if within == len(ratios) else 'no'}; farthest: {where}, {ratio:.2f} times; "
                f"not at 500,000: {', '.join(name.replace('_', ' ') for name in short)}",
            ]
        )
    rows.append(
        [
            "equal rows: rehearsed",
            "before the charge",
            "before the draw",
            "no: a fit reads records, so that ε is reserved before it "
            "([decision 22](decisions/0022-nothing-that-reads-a-record-decides.md))",
        ]
    )
    for name, where in COPIED.items():
        if record := zoo_page.results(name):
            rows += _copies(record, where)
    return rows


def _size(size: str) -> str:
    """Rows and columns as a person writes them.

    >>> _size("500000x20")
    '500,000 rows of 20 columns'
    """
    rows, _, columns = size.partition("x")
    return f"{int(rows):,} rows of {columns} columns"


def _copies(record: Mapping[str, Any], where: str) -> list[Row]:
    of, found = record["all"], {name: 100 * part for name, part in record["shares"].items()}
    refused = of.get("refused", 0)
    missed = Counter({world: one["together"] - one.get("together found", 0) for world, one in record["worlds"].items()})
    most = ", ".join(f"{world.replace('_', ' ')} {count}" for world, count in missed.most_common(3) if count)
    together = of["together"] - of.get("together found", 0)
    blind = f"{100 - found['copies tellable']:.0f} % are as likely as a stranger's row"
    blind += f", and of the others {found['tellable copies found']:.0f} % are found"
    return [
        [
            f"equal rows, {where}: harmless releases that are refused, %",
            "≤ 1",
            f"{found['refused']:.2f}: {refused} of {of['releases']:,}",
            "yes" if found["refused"] <= 1 else "no",
        ],
        [
            f"equal rows, {where}: planted copies that are found, %",
            "100",
            share(found, "copies found", of["copies"]),
            "yes" if found["copies found"] == 100 else f"no: {blind}",
        ],
        [
            "the same, ten copies in one release, %",
            "100",
            share(found, "together found", of["together"]),
            f"no: {together} not found, {most}" if together else "yes",
        ],
    ]


def section() -> str:
    """What was asked for, beside what is measured; of no record that is not there."""
    rows = [*_latent(), *_figures(), *_fresh(), *_blind(), *zoo_apart_page.targets(), *_cautions(), *_others()]
    return table(("what", "target", "measured", "reached?"), rows) + BARS
