"""The burn-down of a study's budget as a drawing of bars: what is spent, and what further waves would spend.

Bars are plain numbers here; the page draws them, and a table beside them says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["HEIGHT", "WIDTH", "Bar", "Course", "course"]

WIDTH, HEIGHT = 640, 150
_BASE, _TOP, _LEFT = 118.0, 34.0, 8.0


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One wave's bar, in the drawing's units; `spent` and `further` are heights.

    Args:
        wave: its number. epsilon: the total by then; None where there is none.
        state: ``spent``, ``affordable``, ``beyond`` (above the cap) or ``none`` (no such release).
    """

    wave: int
    x: float
    width: float
    y: float
    height: float
    epsilon: float | None
    left: float | None
    state: str


@dataclass(frozen=True, kw_only=True)
class Course:
    """The bars of sites whose releases print alike.

    Args:
        cap: height of the budget's line.
        further: True if the plan has a wave that has not arrived.
    """

    sites: tuple[str, ...]
    bars: tuple[Bar, ...]
    cap: float
    given: str
    last_affordable: int | None
    further: bool


def course(found: Mapping[str, Any], *, cap: float, waves: tuple[int, ...]) -> Course:
    """The bars of one course.

    Args:
        found: one of the courses of `DerivedDocuments.budgets`. cap: ε of the plan. waves: its waves.

    >>> one = {"sites": ["north"], "spent": [[1, 2.0]], "planned": [[2, 4.0], [3, 9.0]], "given": "",
    ...        "last_affordable": 2}
    >>> [(bar.wave, bar.state, bar.left) for bar in course(one, cap=8.0, waves=(1, 2, 3, 4)).bars]
    [(1, 'spent', 6.0), (2, 'affordable', 4.0), (3, 'beyond', 0.0), (4, 'none', None)]
    """
    spent, planned = ({int(wave): float(epsilon) for wave, epsilon in found[name]} for name in ("spent", "planned"))
    numbers = sorted({*waves, *spent, *planned})
    top = max([cap, *(min(epsilon, 1.25 * cap) for epsilon in (*spent.values(), *planned.values()))])
    step = (WIDTH - 2 * _LEFT) / max(1, len(numbers))
    scale = (_BASE - _TOP) / top
    bars = []
    for place, wave in enumerate(numbers):
        epsilon = spent.get(wave, planned.get(wave))
        state = (
            "none" if epsilon is None else "spent" if wave in spent else "affordable" if epsilon <= cap else "beyond"
        )
        height = 0.0 if epsilon is None else min(epsilon, top) * scale
        bars.append(
            Bar(
                wave=wave,
                x=round(_LEFT + place * step + 0.12 * step, 2),
                width=round(0.76 * step, 2),
                y=round(_BASE - height, 2),
                height=round(height, 2),
                epsilon=epsilon,
                left=None if epsilon is None else max(0.0, cap - epsilon),
                state=state,
            )
        )
    line = round(_BASE - cap * scale, 2)
    return Course(
        sites=tuple(found["sites"]),
        bars=tuple(bars),
        cap=line,
        given=found["given"],
        last_affordable=found["last_affordable"],
        further=bool(planned),
    )
