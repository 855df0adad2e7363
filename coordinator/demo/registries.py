"""The demo's ``registry``: one dictionary and one question, answered from noisy tables and from the slicing mechanism.

Noisy tables trust the hospital to add up its own records; slicing noises every row by itself and needs a larger ε for
less. The figures say how much less.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.demo.play import DemoAnswer, SideBySide, around, in_files

if TYPE_CHECKING:
    from shared.plans.plan import StudyPlan

__all__ = ["Registries"]

SLICING_EPSILON = 20.0


class Registries(SideBySide):
    """Four registries; with `DemoOptions.sites` the largest so many."""

    shipped = "registries"
    focus = ("smoker", "sbp/10")

    def tables(self, folder: Path) -> dict[str, Path]:
        """The tables as CSV files."""
        import numpy as np

        from shared.simulated import registries

        made = registries(np.random.default_rng(self.options.seed), scale=self.options.scale)
        return in_files(folder, dict(list(made.items())[: self.options.sites]))

    def plans(self, today: dt.date) -> dict[str, str]:
        """The shipped plan of tables, and the same with the slicing mechanism: a plan has one mechanism."""
        text = around(self.text, today)
        release = f'[release]\nmechanism = "slicing"\nepsilon = {SLICING_EPSILON}\n'
        sliced = re.sub(r"^\[release\]\n(?:.+\n)+", release, text, count=1, flags=re.MULTILINE)
        return {
            "registry": text,
            "registry-slicing": sliced.replace('study = "registry"', 'study = "registry-slicing"'),
        }

    def labels(self, plans: Sequence[StudyPlan]) -> tuple[str, ...]:
        """The two mechanisms' names."""
        return tuple(plan.release.title for plan in plans)

    def unit(self, answer: DemoAnswer) -> str:
        """Label of the axis."""
        return (
            "Odds ratio of death, smokers to others" if answer.term == "smoker" else "Odds ratio of death per 10 mmHg"
        )

    @property
    def note(self) -> str:
        """Footnote: what each ε covers."""
        return (
            "gap: to the real records. Both ε cover every record and all that looked at it. Tables are added up inside "
            "the hospital and noised once; slicing noises every row, so that even the sums need not be trusted, and "
            "says far less at a far larger ε."
        )
