"""Output of the demo: figures, one table of all pooled values, and the same on the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coordinator.demo.play import BASELINE, REAL, DemoAnswer, Play, Prices
from coordinator.demo.warm import Aside
from shared.privacy.stated import raised, shown_column, shown_epsilon, shown_price
from shared.terminal import console

if TYPE_CHECKING:
    from coordinator.pooling.pool import PooledResult

__all__ = ["row", "show", "summed", "write"]


def write(answers: Mapping[str, DemoAnswer], play: Play, out: Path, aside: Aside) -> None:
    """Figures (SVG, PDF, PNG), one table of all pooled values (CSV), and the same as JSON."""
    import pandas as pd

    from coordinator.pooling.document import pooled_data
    from shared.terminal import plain

    rows: list[dict[str, Any]] = []
    document: dict[str, Any] = {}
    drawings: list[Callable[[], None]] = []  # what waits for one

    def draw(*shown: PooledResult, **how: Any) -> None:
        drawings.append(aside.begin(partial(_drawn, *shown, **how)))

    for key, answer in answers.items():
        first, *others = answer.arms
        ratio = answer.arms[first].scale == "log"
        unit = play.unit(answer)
        priced = [dict([shown_column(answer.priced(label))]) for label in (first, *answer.apart)]
        whose = f" ({' / '.join([first, *answer.apart])})" if answer.others else ""
        together = dict([shown_column(answer.together, "ε of all")]) if answer.together else {}
        noise = f" Noise: its part of the variance of {first}." if answer.apart else ""
        open_ = f" {BASELINE}: {_price(answer.priced(BASELINE))[0]}." if BASELINE in answer.others else ""
        adding = any(result.summed for result in answer.arms.values())
        sums = (
            " Secure sum: its rows are what each site released by itself, its random effects the sum." if adding else ""
        )
        caption = f"ε at the plan's δ{whose}, {play.covers}.{open_}{noise}{sums} Real records: only in this demo."
        for label in answer.arms if answer.apart and play.figure_each else ():
            draw(
                answer.arms[label],
                title=f"{answer.title}: {label}",
                note=_note(answer.question, answer.arms[label], play.covers),
                xlabel=f"{unit} (log scale)" if ratio else unit,
                columns={}
                if label == REAL
                else {"Posture": dict(answer.posture)} | dict([shown_column(answer.priced(label))]),
                name=label,
                path=out / f"forest_{key}_{re.sub(r'[^a-z0-9]+', '_', label)}.svg",
            )
        draw(
            answer.arms[first],
            title=answer.title,
            note=f"{answer.question}; {caption}",
            xlabel=f"{unit} (log scale)" if ratio else unit,
            columns={"Posture": dict(answer.posture)} | _beside(priced) | together,
            name=first,
            compare={label: summed(answer.arms[label]) for label in others},
            path=[out / f"forest_{key}.{suffix}" for suffix in ("svg", "pdf", "png")],
        )
        document[key] = {"question": answer.question, "term": answer.term} | _plain("epsilon", answer.epsilon)
        document[key] |= _plain("together", answer.together) if answer.together else {}
        document[key]["arms"] = {label: plain(pooled_data(result)) for label, result in answer.arms.items()}
        real = answer.arms.get(REAL)
        for label, result in answer.arms.items():
            rows.append(row(key, label, result, real, answer.priced(label)))
    pd.DataFrame(rows).to_csv(out / "results.csv", index=False)
    (out / "results.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for drawn in drawings:
        drawn()


def _drawn(result: PooledResult, **how: Any) -> None:
    from coordinator.figures.forest import forest

    forest(result, **how)


def summed(result: PooledResult) -> PooledResult:
    """A secure sum in the place of the releases that it was taken over; any other result as it is."""
    from coordinator.figures.forest import sum_of

    return next(iter(sum_of(result).values()), result)


def _plain(name: str, prices: Prices) -> dict[str, Any]:
    """ε per site, and beside it what it takes as given."""
    numbers = {site: epsilon for site, (epsilon, _) in prices.items()}
    return {name: numbers, f"{name}_given": {site: given for site, (_, given) in prices.items()}}


def _note(question: str, result: PooledResult, covers: str) -> str:
    """The line below the figure of one arm: of a secure sum it says to whom the ε in it holds."""
    return f"{question}; ε at the plan's δ, {covers}." if result.summed else question


def _beside(columns: Sequence[Mapping[str, Mapping[str, str]]]) -> dict[str, dict[str, str]]:
    """Columns of several arms as one where their headings agree, else beside each other."""
    out: dict[str, dict[str, str]] = {}
    for column in columns:
        for heading, cells in column.items():
            before = out.get(heading)
            out[heading] = (
                dict(cells) if before is None else {s: f"{text} / {cells.get(s, '–')}" for s, text in before.items()}
            )
    return out


def _price(prices: Prices) -> tuple[str, str]:
    """ε of an arm's sites, smallest to largest, or the text in its place; and its condition."""
    stated = {epsilon for epsilon, _ in prices.values() if epsilon is not None}
    apart = dict.fromkeys(shown_price(None, given) for epsilon, given in prices.values() if epsilon is None)
    ends = list(dict.fromkeys(shown_epsilon(end) for end in (min(stated), max(stated)))) if stated else []
    given = " and ".join(dict.fromkeys(given for epsilon, given in prices.values() if epsilon is not None and given))
    return ", ".join([*([" to ".join(ends)] if ends else []), *apart]), given


def _rounded(value: float) -> float:
    """Four decimals; of a density that is a few in ten thousand, four digits."""
    return round(value, 4) if abs(value) >= 0.01 else float(f"{value:.4g}")


def _printed(value: float, sign: str = "") -> str:
    return f"{value:{sign}.3f}" if abs(value) >= 0.001 or value == 0 else f"{value:{sign}.1g}"


def row(key: str, label: str, result: PooledResult, real: PooledResult | None, prices: Prices) -> dict[str, Any]:
    """One line of the table: the pooled ratio, its interval, its distance to the real one, and the price.

    Args:
        key: name of the question. label: the tables it was put to.
        result: of these tables.
        real: of the patients themselves; None where there is none.
        prices: site to ε of a release, and its condition.
    """
    from shared.estimands.effects import shown

    def show(y: float) -> float:
        return shown(y, result.scale)

    cost, given = ("not private", "") if label == REAL else _price(prices)
    result = summed(result)
    return {
        "question": key,
        "tables": label,
        "sites": result.k,
        "estimate": _rounded(show(result.beta)),
        "ci_lb": _rounded(show(result.ci_lb)),
        "ci_ub": _rounded(show(result.ci_ub)),
        "gap_to_real": None if real is None else _rounded(show(result.beta) - show(real.beta)),
        "tau2": round(result.tau2, 5),
        "I2_percent": round(result.I2, 1),
        "epsilon_per_site": cost,
        "epsilon_given": given,
        "excluded": "; ".join(f"{one.label}: {one.reason}" for one in result.excluded),
    }


def show(answers: Mapping[str, DemoAnswer], play: Play, out: Path, seconds: float) -> None:
    """The table of answers on the terminal, and where to look."""
    from rich import box
    from rich.table import Table

    screen = console()
    table = Table(
        title="Pooled by random effects (REML, ad hoc Knapp-Hartung)", title_justify="left", box=box.SIMPLE_HEAD
    )
    lines = {
        (key, label): row(key, label, result, answer.arms.get(REAL), answer.priced(label))
        for key, answer in answers.items()
        for label, result in answer.arms.items()
    }
    priced = {
        at: " given ".join(filter(None, (line["epsilon_per_site"], line["epsilon_given"])))
        for at, line in lines.items()
    }
    last, prices = raised("ε", priced)
    # A narrow terminal breaks labels and prices between their words, and no number within itself.
    broken = {"tables": [label for _, label in lines], last: list(prices.values())}
    words = {heading: max(len(word) for text in texts for word in text.split()) for heading, texts in broken.items()}
    for heading in ("question", "tables", "estimate", "95 % interval", "gap", "I²", last):
        justify: Literal["left", "right"] = "left" if heading in ("question", "tables") else "right"
        table.add_column(heading, justify=justify, no_wrap=heading not in words, min_width=words.get(heading))
    for key, answer in answers.items():
        for label in answer.arms:
            line = lines[key, label]
            table.add_row(
                key if label == next(iter(answer.arms)) else "",
                label,
                _printed(line["estimate"]),
                f"{_printed(line['ci_lb'])} to {_printed(line['ci_ub'])}",
                "" if label == REAL or line["gap_to_real"] is None else _printed(line["gap_to_real"], "+"),
                f"{line['I2_percent']:.0f} %",
                prices[key, label],
            )
        table.add_section()
    screen.print(table)
    screen.print(play.note, style="dim")
    accounts = next((answer.together for answer in answers.values() if answer.together), {})
    if accounts:
        each = ", ".join(f"{site} ε = {shown_price(*together)}" for site, together in sorted(accounts.items()))
        screen.print(f"All releases of a person together, by each hospital's own account: {each}.", highlight=False)
    warned: dict[str, list[str]] = {}
    for key, answer in answers.items():
        for label, result in answer.arms.items():
            for text in result.notes if label != REAL else ():
                if "not in this interval" in text:
                    warned.setdefault(text, []).append(f"{key} ({label})")
    for text, where in warned.items():
        screen.print(f"warning: {', '.join(where)}: {text}", style="yellow", highlight=False)
    excluded = {f"{r.label}: {r.reason}" for a in answers.values() for arm in a.arms.values() for r in arm.excluded}
    for text in sorted(excluded):
        screen.print(f"excluded  {text}", style="dim", highlight=False)
    figures = sorted(path.name for path in out.glob("forest_*.svg"))
    screen.print(f"done in {seconds:.0f} s. Look at {out}/: {', '.join(figures)}, results.csv", highlight=False)
