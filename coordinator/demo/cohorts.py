"""The demo's studies of survival and disease: simulated cohorts by latent noise or noisy moments, and real hospitals.

``cvd`` is twelve simulated cohorts with the sizes, means, standard deviations and event rates of Table 3 of the Latent
Noise Injection paper; ``cohorts`` the same tables released as noisy moments at a small ε, beside their latent noise;
``heart`` the four hospitals of the UCI heart disease records (`--data`).
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from coordinator.demo.play import BASELINE, STUDIES, DemoAnswer, SideBySide, around, setting
from shared.errors import ParameterError

if TYPE_CHECKING:
    from shared.plans.plan import StudyPlan

__all__ = ["Cohorts", "Heart", "MomentsPlay"]


class _RowsPlay(SideBySide):
    """Latent noise, beside the same plan with w = 0."""

    focus: ClassVar[tuple[str, ...]] = ("sbp/10",)
    covers = "given the flow"

    def plans(self, today: dt.date) -> dict[str, str]:
        text = around(self.text, today)
        study = setting(text, "study").strip('"')
        baseline = re.sub(r"^w = \S+", "w = 0.0", text, count=1, flags=re.MULTILINE)
        return {study: text, f"{study}-w0": baseline.replace(f'study = "{study}"', f'study = "{study}-w0"', 1)}

    def labels(self, shown: StudyPlan, other: StudyPlan) -> tuple[str, str]:
        """Names of the two plans' releases."""
        from shared.mechanisms.latent_noise.plan import mechanism

        return f"released, w = {mechanism(shown).w:.4g}", BASELINE

    @property
    def note(self) -> str:
        return (
            "gap: to the real records. ε is exact for each released row given the flow; the flow itself was fitted "
            "on the same records and is not covered. At ε above 10 this is not a meaningful formal guarantee."
        )


class Cohorts(_RowsPlay):
    """Twelve simulated cohorts; with `DemoOptions.sites` the largest so many."""

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
        return out

    def unit(self, answer: DemoAnswer) -> str:
        """Label of the axis."""
        return "Hazard ratio per 10 mmHg"


class MomentsPlay(Cohorts):
    """The same cohorts as noisy moments, beside latent noise as the paper sets it."""

    covers = "of which the first covers every record, the second each row given the flow"

    def plans(self, today: dt.date) -> dict[str, str]:
        """The plan at the ε that was asked for, and latent noise as the paper sets it."""
        text = around(self.text, today)
        study = setting(text, "study").strip('"')
        if self.options.epsilon is not None:
            text = re.sub(r"^epsilon = \S+", f"epsilon = {self.options.epsilon}", text, count=1, flags=re.MULTILINE)
        rows = around((STUDIES / "cvd.toml").read_text(encoding="utf-8"), today)
        return {study: text, f"{study}-rows": rows.replace('study = "cvd"', f'study = "{study}-rows"', 1)}

    def labels(self, shown: StudyPlan, other: StudyPlan) -> tuple[str, str]:
        """Names of the two plans' releases."""
        from shared.mechanisms.latent_noise.plan import mechanism

        return shown.release.title, f"latent noise, w = {mechanism(other).w:.4g}"

    @property
    def note(self) -> str:
        """Footnote: what each ε covers."""
        return (
            "gap: to the real records. ε of the noisy moments covers every record and all that looked at it; ε of "
            "latent noise covers each released row given the flow, and not the flow."
        )


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
