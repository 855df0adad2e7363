"""The study of two assays: one hospital measures cholesterol on another scale, and is mapped onto the reference's.

Every hospital releases twice: rows by latent noise, and noisy densities for the maps. What is held against the real
records here are those on one scale, which no hospital could have pooled.
"""

from __future__ import annotations

import datetime as dt
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.demo.play import REAL, STUDIES, DemoAnswer, DemoOptions, Play, around, in_files, pooled_real

if TYPE_CHECKING:
    from coordinator.demo.stage import DemoStage

__all__ = ["Assay"]

COLUMN, REFERENCE, TERM = "chol", "cleveland", "chol/40"


class Assay(Play):
    """Three simulated hospitals, one of them with another assay of cholesterol."""

    covers = "of the rows given the flow, of the densities for every record"

    def __init__(self, options: DemoOptions) -> None:
        super().__init__(options)
        self.truth: dict[str, Path] = {}

    def plans(self, today: dt.date) -> dict[str, str]:
        """The plan with rows, and the one with densities."""
        names = ("assay", "assay-densities")
        return {name: around((STUDIES / f"{name}.toml").read_text(encoding="utf-8"), today) for name in names}

    def tables(self, folder: Path) -> dict[str, Path]:
        """The tables as the hospitals have them; beside them, for the comparison alone, those of one assay."""
        import numpy as np

        from shared.simulated import assay_hospitals

        made = assay_hospitals(np.random.default_rng(self.options.seed), n=max(100, round(2500 * self.options.scale)))
        measured, alike = (dict(list(tables.items())[: self.options.sites]) for tables in made)
        self.truth = in_files(folder / "one_assay", alike)
        return in_files(folder, measured)

    def answers(self, stage: DemoStage) -> dict[str, DemoAnswer]:
        """The planned question as released and harmonised; the figure of all three answers is drawn as well."""
        from coordinator.answers.harmonise import ARMS, Harmonisation, harmonised
        from coordinator.answers.release_selection import holding
        from coordinator.config import CoordinatorConfig
        from coordinator.store.store import Store
        from shared.plans.plan import StudyPlan

        plan = StudyPlan.from_toml(stage.plans["assay"])
        [(name, formula)] = plan.estimands.items()
        with closing(Store.open(stage.hub, CoordinatorConfig.load(stage.hub).store)) as store:
            by = Harmonisation(column=COLUMN, to=REFERENCE)
            seen = harmonised(store, holding(store, "assay"), name, by, term=TERM)
            priced = {release.site: release.receipt.epsilon for release in store.releases(seen.densities)}
        for suffix in ("svg", "pdf", "png"):
            seen.figure(stage.out / f"forest_three_answers.{suffix}", title=f"{plan.title}: three answers")
        epsilon = {source.site: source.price for source in seen.answer.sources}
        both = {
            site: (None if value is None else value + (priced.get(site) or 0.0), given)
            for site, (value, given) in epsilon.items()
        }
        return {
            name: DemoAnswer(
                title=f"{plan.title}: {name}",
                question=formula,
                term=TERM,
                arms={
                    ARMS[1]: seen.intercepts,
                    ARMS[2]: seen.harmonised,
                    REAL: pooled_real(self.truth, plan, formula, TERM),
                },
                epsilon=epsilon,
                posture={source.site: source.posture for source in seen.answer.sources},
                others={ARMS[2]: both},
            )
        }

    def unit(self, answer: DemoAnswer) -> str:
        """Label of the axis."""
        return "mmHg per 40 mg/dL"

    @property
    def note(self) -> str:
        """Footnote: what each ε covers, and what the real records are."""
        return (
            "gap: to the real records on one assay, which only a demo has. ε of the rows is exact for each released "
            "row given the flow, and no meaningful guarantee above 10; what the densities add covers every record. "
            "Harmonising assumes that the hospitals' patients are alike."
        )
