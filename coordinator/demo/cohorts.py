"""The demo's studies of survival and disease: simulated cohorts by latent noise or noisy moments, and real hospitals.

``cvd`` is twelve simulated cohorts with the sizes, means, standard deviations and event rates of Table 3 of the Latent
Noise Injection paper; ``cohorts`` the same tables as noisy moments and behind one noise for all, at a small ε;
``first`` three small hospitals with the plan that a newcomer copies; ``heart`` the four hospitals of the UCI heart
disease records (`--data`).
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from coordinator.demo.play import BASELINE, STUDIES, DemoAnswer, SideBySide, around, in_files, setting
from shared.errors import LockedRefusal, ParameterError, Refusal, StateRefusal, StorageRefusal

if TYPE_CHECKING:
    from coordinator.demo.play import DemoOptions
    from coordinator.demo.stage import DemoStage
    from shared.mechanisms.secure_sum.plan import SecureSumPlan
    from shared.plans.plan import StudyPlan

__all__ = ["Cohorts", "First", "Heart", "MomentsPlay"]

HOSPITALS = 6
"""Least number of hospitals of the shipped plan of a secure sum, of which two may be lost and one collude."""
WAIT = "10"
"""Minutes for which a hospital and the coordinator wait for each other in a sum."""


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
        largest = sorted(cohorts, key=lambda name: -len(cohorts[name]))[: self.options.sites]
        self.smallest = min((len(cohorts[name]) for name in largest), default=0)
        return in_files(folder, {name: cohorts[name] for name in largest})

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
    """The same cohorts at one small ε: noisy moments, every coefficient declared and none, and one noise for all.

    A secure sum needs the hospitals' keys in its plan, so it is signed once all have joined; where there are fewer than
    `HOSPITALS` the demo does without.
    """

    needs = ("Crypto",)
    figure_each = True
    covers = "every record covered"
    seen = ""
    """What the ε of the secure sum is by who looks together; blank where the demo does without."""

    def plans(self, today: dt.date) -> dict[str, str]:
        """The plan at the ε that was asked for, and the same with nothing declared."""
        text = around(self.text, today)
        study = setting(text, "study").strip('"')
        text = self._at_epsilon(text)
        # Planned coefficients alone: any other question is answered from rows drawn anew, and costs a minute.
        plain = re.sub(r"^unadjusted = .*\n", "", text, flags=re.MULTILINE)
        plain = re.sub(r"^declared = .*", "declared = []", plain, flags=re.MULTILINE)
        name = f"{study}-plain"
        return {study: text, name: plain.replace(f'study = "{study}"', f'study = "{name}"', 1)}

    def labels(self, plans: Sequence[StudyPlan]) -> tuple[str, ...]:
        """Names of the plans' releases."""
        declared, _, *summed = (plan.release.title for plan in plans)
        return declared, f"{declared}, nothing declared", *summed

    def steps(self, stage: DemoStage) -> int:
        """Joining, two steps for each release of three plans, and the sum."""
        count = len(stage.tables)
        return super().steps(stage) + (1 + 3 * count + count if count >= HOSPITALS else 0)

    def act(self, stage: DemoStage, everywhere: Callable[[Callable[[str], None]], None]) -> None:
        """Join; then the plan that names all keys; release under all plans; then one sum, all at once."""
        self.ask(stage)
        everywhere(stage.join)
        study = self._signed(stage) if len(stage.tables) >= HOSPITALS else ""

        def rest(site: str) -> None:
            if study:
                stage.coordinator("grant", site, "--study", study)
                stage.agent(site, "plan", "fetch", study)
                self.add_data(stage, site, study)
                stage.agent(site, "plan", "approve", study, "--as", "steward")
                stage.step(f"{site}: plan of the secure sum approved by the steward")
            stage.release(site)

        everywhere(rest)
        if study:
            self._add_up(stage, study)

    def _signed(self, stage: DemoStage) -> str:
        """The plan of the sum with the keys of all who joined, signed by the lead; its study's name."""
        keys = {one["site"]: one["release_key"] for one in stage.coordinator("sites")}
        text = around((STUDIES / "secure-sum.toml").read_text(encoding="utf-8"), dt.date.today())
        members = "".join(f'"{site}" = "{key}"\n' for site, key in sorted(keys.items()))
        text = re.sub(
            r"^\[release\.members\].*\n(?:(?!\[).*\n)*", f"[release.members]\n{members}\n", text, flags=re.MULTILINE
        )
        text = self._at_epsilon(text)
        study = setting(text, "study").strip('"')
        self._say_who_looks(text)
        stage.plans[study] = text
        path = stage.state / f"{study}.toml"
        path.write_text(text, encoding="utf-8")
        stage.coordinator("plan", "sign", str(path))
        stage.step("plan of the secure sum signed by the lead: it names every hospital's key")
        return study

    def _at_epsilon(self, text: str) -> str:
        """The text of a plan at the ε that was asked for; as it is where none was."""
        epsilon = self.options.epsilon
        return text if epsilon is None else re.sub(r"(?m)^epsilon = \S+", f"epsilon = {epsilon}", text, count=1)

    def _say_who_looks(self, text: str) -> None:
        """Have figures and table say of which ε is meant: a site's part is hidden by the noise of those who keep it."""
        from shared.plans.plan import StudyPlan
        from shared.privacy.stated import shown_epsilon

        plan = StudyPlan.from_toml(text)
        release = cast("SecureSumPlan", plan.release)
        rows = {who: shown_epsilon(epsilon) for who, epsilon in release.seen_by(plan).items()}
        many = release.colluders
        most = f"at most {many} site{' shows' if many == 1 else 's show'} the coordinator all it has"
        everybody, worst = list(rows.items())[-1]
        self.covers = f"every record covered; the secure sum's holds while {most}, and is {worst} to {everybody}"
        self.seen = (
            f" The secure sum's ε holds while {most}, or is a key of the "
            f"coordinator's own; by who looks together: {'; '.join(f'{who}: ε {rows[who]}' for who in rows)}. The "
            "table's is a little below the plan's, because noise is raised for rounding."
        )

    def _add_up(self, stage: DemoStage, study: str) -> None:
        """Every hospital stays until the sum is opened; its approver consents, shown what it tells, and to whom."""
        stage.report(stage.done, stage.steps, "adding up behind one noise, all hospitals at once")

        def give(site: str) -> None:
            stage.agent(site, "federate", study, "--wait", WAIT)
            stage.step(f"{site}: in the sum, its part seen by nobody")

        def consent() -> None:
            refused: Refusal = StateRefusal("a hospital must be asked for its consent", given="none")
            waiting, until = set(stage.tables), time.monotonic() + 60 * float(WAIT)
            while waiting and time.monotonic() < until:
                for site in sorted(waiting):
                    try:
                        stage.agent(site, "consent", study, "--as", "steward")
                        waiting.remove(site)
                    except (StateRefusal, StorageRefusal, LockedRefusal) as refusal:  # not asked yet, or a moment's
                        refused = refusal
                time.sleep(0.5)
            if waiting:
                raise refused

        with ThreadPoolExecutor(len(stage.tables) + 1) as pool:
            parts = [*(pool.submit(give, site) for site in stage.tables), pool.submit(consent)]
            stage.coordinator("federate", "run", study, "--timeout", WAIT)
            for part in parts:
                part.result()

    @property
    def note(self) -> str:
        """Footnote: what each ε covers."""
        return (
            "gap: to the real records. ε covers every record and all that looked at it. The hospitals' own rows beside "
            "the secure sum are what each released by itself; of the sum nobody sees a part." + self.seen
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
        return in_files(folder, small_hospitals(rng, sites=self.options.sites or 3, n=n))

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
