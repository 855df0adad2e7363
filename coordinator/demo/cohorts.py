"""The demo's studies of survival and disease: simulated cohorts by latent noise or noisy moments, and real hospitals.

``cvd`` is twelve simulated cohorts with the sizes, means, standard deviations and event rates of Table 3 of the Latent
Noise Injection paper; ``cohorts`` the same tables released as noisy moments at a small ε, beside their latent noise;
``first`` three small hospitals with the plan that a newcomer copies; ``heart`` the four hospitals of the UCI heart
disease records (`--data`).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from coordinator.demo.play import BASELINE, STUDIES, DemoAnswer, SideBySide, around, setting
from shared.errors import ParameterError

if TYPE_CHECKING:
    from coordinator.demo.play import DemoOptions
    from shared.plans.plan import StudyPlan

__all__ = ["Cohorts", "First", "Heart", "MomentsPlay"]


class _RowsPlay(SideBySide):
    """Latent noise, beside the same plan with w = 0."""

    focus: ClassVar[tuple[str, ...]] = ("sbp/10",)
    covers = "given the flow"

    def plans(self, today: dt.date) -> dict[str, str]:
        text = around(self.text, today)
        study = setting(text, "study").strip('"')
        baseline = re.sub(r"^w = \S+", "w = 0.0", text, count=1, flags=re.MULTILINE)
        return {study: text, f"{study}-w0": baseline.replace(f'study = "{study}"', f'study = "{study}-w0"', 1)}

    def labels(self, plans: Sequence[StudyPlan]) -> tuple[str, ...]:
        """Names of the plans' releases."""
        from shared.mechanisms.latent_noise.plan import mechanism

        return f"released, w = {mechanism(plans[0]).w:.4g}", BASELINE, *(plan.release.title for plan in plans[2:])

    @property
    def note(self) -> str:
        return (
            "gap: to the real records. ε is exact for each released row given the flow; the flow itself was fitted "
            "on the same records and is not covered. At ε above 10 this is not a meaningful formal guarantee."
        )


class Cohorts(_RowsPlay):
    """Twelve simulated cohorts; with `DemoOptions.sites` the largest so many.

    Beside the paper's mechanism stands the same question at ε = 1, from noisy moments of the same records: what a
    hospital could defend. Cohorts too small for it (`DemoOptions.scale`) do without.
    """

    figure_each = False

    def __init__(self, options: DemoOptions) -> None:
        super().__init__(options)
        self.smallest = 0

    def tables(self, folder: Path) -> dict[str, Path]:
        """The tables as CSV files."""
        import numpy as np

        from shared.simulated import cvd_cohorts

        cohorts = cvd_cohorts(np.random.default_rng(self.options.seed), scale=self.options.scale)
        out: dict[str, Path] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(cohorts, key=lambda name: -len(cohorts[name]))[: self.options.sites]:
            out[name] = folder / f"{name}.csv"
            cohorts[name].to_csv(out[name], index=False)
        self.smallest = min(len(cohorts[name]) for name in out) if out else 0
        return out

    def plans(self, today: dt.date) -> dict[str, str]:
        """Latent noise as the paper sets it, with w = 0, and the same question at ε = 1."""
        plans = super().plans(today)
        text = around((STUDIES / "cohorts.toml").read_text(encoding="utf-8"), today)
        if self.smallest < int(setting(text, "persons")):
            return plans
        # Planned coefficients cost seconds; any other question is answered from rows drawn anew, and costs a minute.
        text = re.sub(r"^unadjusted = .*\n", "", text, flags=re.MULTILINE)
        name = f"{next(iter(plans))}-moments"
        self.covers = "given the flow; that of the noisy moments covers every record"
        return plans | {name: text.replace('study = "cohorts"', f'study = "{name}"', 1)}

    @property
    def note(self) -> str:
        """Footnote: what each ε covers."""
        more = (
            ""
            if self.covers == _RowsPlay.covers
            else " The noisy moments cover every record and all that looked at it."
        )
        return super().note + more

    def unit(self, answer: DemoAnswer) -> str:
        """Label of the axis."""
        return "Hazard ratio per 10 mmHg"


class MomentsPlay(Cohorts):
    """The same cohorts as noisy moments, beside latent noise as the paper sets it."""

    figure_each = True
    covers = "of which the first covers every record, the second each row given the flow"

    def plans(self, today: dt.date) -> dict[str, str]:
        """The plan at the ε that was asked for, and latent noise as the paper sets it."""
        text = around(self.text, today)
        study = setting(text, "study").strip('"')
        if self.options.epsilon is not None:
            text = re.sub(r"^epsilon = \S+", f"epsilon = {self.options.epsilon}", text, count=1, flags=re.MULTILINE)
        rows = around((STUDIES / "cvd.toml").read_text(encoding="utf-8"), today)
        return {study: text, f"{study}-rows": rows.replace('study = "cvd"', f'study = "{study}-rows"', 1)}

    def labels(self, plans: Sequence[StudyPlan]) -> tuple[str, ...]:
        """Names of the two plans' releases."""
        from shared.mechanisms.latent_noise.plan import mechanism

        return plans[0].release.title, f"latent noise, w = {mechanism(plans[1]).w:.4g}"

    @property
    def note(self) -> str:
        """Footnote: what each ε covers."""
        return (
            "gap: to the real records. ε of the noisy moments covers every record and all that looked at it; ε of "
            "latent noise covers each released row given the flow, and not the flow."
        )


class First(_RowsPlay):
    """Three small simulated hospitals and the plan that a newcomer copies; with `DemoOptions.sites` so many of them."""

    def plans(self, today: dt.date) -> dict[str, str]:
        """The shipped plan alone."""
        return SideBySide.plans(self, today)

    def tables(self, folder: Path) -> dict[str, Path]:
        """The tables as CSV files."""
        import numpy as np

        from shared.simulated import small_hospitals

        rng, n = np.random.default_rng(self.options.seed), max(100, round(1000 * self.options.scale))
        folder.mkdir(parents=True, exist_ok=True)
        out: dict[str, Path] = {}
        for name, table in small_hospitals(rng, sites=self.options.sites or 3, n=n).items():
            out[name] = folder / f"{name}.csv"
            table.to_csv(out[name], index=False)
        return out

    def labels(self, plans: Sequence[StudyPlan]) -> tuple[str, ...]:
        """Name of the release."""
        return super().labels(plans)[:1]

    def unit(self, answer: DemoAnswer) -> str:
        """Label of the axis."""
        return "Odds ratio of death per 10 mmHg"


class Heart(_RowsPlay):
    """The four hospitals of the UCI heart disease records, from the folder of their files."""

    focus = ("age", "sex", "exang")

    def tables(self, folder: Path) -> dict[str, Path]:
        """The tables as CSV files."""
        data = self.options.data
        if data is None or not data.is_dir():
            raise ParameterError("the heart study must be given its folder", given="none", next_step="Add --data DIR.")
        return {path.stem: path.resolve() for path in sorted(data.glob("*.csv"))}

    def unit(self, answer: DemoAnswer) -> str:
        """Label of the axis."""
        return f"Odds ratio, {answer.term}"
