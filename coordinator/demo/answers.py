"""How the demo shows what it found: figures, one table of all pooled values, and the same on the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coordinator.demo.play import BASELINE, REAL, Answer, Play
from shared.terminal import console

if TYPE_CHECKING:
    from coordinator.pooling import PooledResult

__all__ = ["row", "show", "write"]


def write(answers: Mapping[str, Answer], play: Play, out: Path) -> None:
    """Figures (SVG, PDF, PNG), one table of all pooled values (CSV), and the same as JSON."""
    import pandas as pd

    from coordinator import figures
    from coordinator.client import pooled_data
    from shared.terminal import plain

    rows: list[dict[str, Any]] = []
    document: dict[str, Any] = {}
    for key, answer in answers.items():
        first, *others = answer.arms
        ratio = answer.arms[first].scale == "log"
        unit = play.unit(answer)
        prices = _words(answer.epsilon)
        for other in answer.others.values():
            prices = {site: f"{price} / {_words(other).get(site, '–')}" for site, price in prices.items()}
        whose = f" ({' / '.join([first, *answer.others])})" if answer.others else ""
        together = (
            {"ε of both": {site: f"{both:.3g}" for site, both in answer.together.items()}} if answer.together else {}
        )
        noise = f" Noise: its part of the variance of {first}." if answer.others else ""
        told = f"ε at the plan's δ{whose}, {play.covers}.{noise} Real records: only in this demo."
        for label in answer.arms if answer.others else ():
            figures.forest(
                answer.arms[label],
                title=f"{answer.title}: {label}",
                note=answer.question,
                xlabel=f"{unit} (log scale)" if ratio else unit,
                columns={} if label == REAL else {"Posture": dict(answer.posture), "ε": _words(answer.priced(label))},
                name=label,
                path=out / f"forest_{key}_{re.sub(r'[^a-z0-9]+', '_', label)}.svg",
            )
        for suffix in ("svg", "pdf", "png"):
            figures.forest(
                answer.arms[first],
                title=answer.title,
                note=f"{answer.question}; {told}",
                xlabel=f"{unit} (log scale)" if ratio else unit,
                columns={"Posture": dict(answer.posture), "ε": prices} | together,
                name=first,
                compare={label: answer.arms[label] for label in others},
                path=out / f"forest_{key}.{suffix}",
            )
        document[key] = {"question": answer.question, "term": answer.term, "epsilon": dict(answer.epsilon)}
        document[key] |= {"together": dict(answer.together)} if answer.together else {}
        document[key]["arms"] = {label: plain(pooled_data(result)) for label, result in answer.arms.items()}
        real = answer.arms.get(REAL)
        for label, result in answer.arms.items():
            rows.append(row(key, label, result, real, answer.priced(label)))
    pd.DataFrame(rows).to_csv(out / "results.csv", index=False)
    (out / "results.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _words(epsilon: Mapping[str, float]) -> dict[str, str]:
    """ε per site as it is printed: whole from 10 upwards, two digits below."""
    return {site: f"{value:.0f}" if value >= 10 else f"{value:.2g}" for site, value in epsilon.items()}


def _rounded(value: float) -> float:
    """Four decimals; of a density that is a few in ten thousand, four digits."""
    return round(value, 4) if abs(value) >= 0.01 else float(f"{value:.4g}")


def _printed(value: float, sign: str = "") -> str:
    return f"{value:{sign}.3f}" if abs(value) >= 0.001 or value == 0 else f"{value:{sign}.1g}"


def row(
    key: str, label: str, result: PooledResult, real: PooledResult | None, epsilon: Mapping[str, float]
) -> dict[str, Any]:
    """One line of the table: the pooled ratio, its interval, its distance to the real one, and the price."""
    import math

    show: Callable[[float], float] = math.exp if result.scale == "log" else float
    costs = sorted(set(_words(epsilon).values()), key=float)
    cost = costs[0] if len(costs) == 1 else f"{costs[0]} to {costs[-1]}"
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
        "epsilon_per_site": {REAL: "not private", BASELINE: "0"}.get(label, cost),
        "excluded": "; ".join(f"{one.label}: {one.reason}" for one in result.excluded),
    }


def show(answers: Mapping[str, Answer], play: Play, out: Path, seconds: float) -> None:
    """The table of answers on the terminal, and where to look."""
    from rich import box
    from rich.table import Table

    screen = console()
    table = Table(
        title="Pooled by random effects (REML, ad hoc Knapp-Hartung)", title_justify="left", box=box.SIMPLE_HEAD
    )
    for heading in ("question", "tables", "estimate", "95 % interval", "gap", "I²", "ε"):
        justify: Literal["left", "right"] = "left" if heading in ("question", "tables") else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for key, answer in answers.items():
        for label, result in answer.arms.items():
            line = row(key, label, result, answer.arms.get(REAL), answer.priced(label))
            table.add_row(
                key if label == next(iter(answer.arms)) else "",
                label,
                _printed(line["estimate"]),
                f"{_printed(line['ci_lb'])} to {_printed(line['ci_ub'])}",
                "" if label == REAL or line["gap_to_real"] is None else _printed(line["gap_to_real"], "+"),
                f"{line['I2_percent']:.0f} %",
                line["epsilon_per_site"],
            )
        table.add_section()
    screen.print(table)
    screen.print(play.note, style="dim")
    accounts = next((answer.together for answer in answers.values() if answer.together), {})
    if accounts:
        each = ", ".join(f"{site} ε = {together:.4g}" for site, together in sorted(accounts.items()))
        screen.print(f"Both releases of a person together, by each hospital's own account: {each}.", highlight=False)
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
