"""The demo's study of a flow that all hospitals train together: train, name the flow in the plan, release through it.

The tables are the twelve simulated cohorts. Each hospital runs one agent for the whole training, which dials in for
each round; the coordinator's trainer runs beside its server. What is shown is the pooled hazard ratio of rows that were
drawn through the flow, every record covered, and that of the real records.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from coordinator.demo.cohorts import Cohorts
from coordinator.demo.play import DemoAnswer, around, beside_real, pooled_real, setting

if TYPE_CHECKING:
    import datetime as dt

    from coordinator.demo.stage import DemoStage

__all__ = ["FederatedPlay"]

WAIT = "10"
"""Minutes for which a hospital waits for the next round, and the coordinator for the last hospital."""


class FederatedPlay(Cohorts):
    """Twelve cohorts train one flow; with `DemoOptions.sites` the largest so many."""

    needs = ("flwr",)
    covers = "every record covered, by this and the training's"

    def plans(self, today: dt.date) -> dict[str, str]:
        """Version 1: it trains, and releases nothing."""
        text = around(self.text, today)
        if self.options.sites is not None:
            text = re.sub(r"^quorum = \d+", f"quorum = {max(1, self.options.sites - 1)}", text, flags=re.MULTILINE)
        return {setting(text, "study").strip('"'): text}

    def steps(self, stage: DemoStage) -> int:
        """Joining, training, and two for each release."""
        return len(stage.tables) * (2 + 1 + 2) + 2

    def act(self, stage: DemoStage, everywhere: Callable[[Callable[[str], None]], None]) -> None:
        """Join; train, all at once; then the plan's next version names the flow, and each hospital releases."""
        [study] = stage.plans
        everywhere(stage.join)
        stage.report(stage.done, stage.steps, "training one flow, all hospitals at once")

        def hospital(site: str) -> None:
            stage.agent(site, "federate", study, "--wait", WAIT)
            stage.step(f"{site}: answered its rounds, has the flow")

        with ThreadPoolExecutor(len(stage.tables)) as pool:
            parts = [pool.submit(hospital, site) for site in stage.tables]
            trained = stage.coordinator("federate", "run", study, "--timeout", WAIT)
            for part in parts:
                part.result()
        stage.step(f"{trained['rounds']} rounds; the flow has a digest")
        stage.plans[study] = named(stage.plans[study], trained["flow"])
        path = stage.state / f"{study}-v2.toml"
        path.write_text(stage.plans[study], encoding="utf-8")
        stage.coordinator("plan", "sign", str(path))
        stage.step("version 2 names the flow, signed by the lead")

        def release(site: str) -> None:
            stage.agent(site, "plan", "fetch", study)
            stage.agent(site, "plan", "approve", study, "--as", "steward")
            stage.release(site)

        everywhere(release)

    def answers(self, stage: DemoStage) -> dict[str, DemoAnswer]:
        """Every planned question: pooled from the releases and from the real records."""
        real = partial(pooled_real, stage.tables, term="sbp/10")
        return beside_real(stage, real, label="released through the flow", term="sbp/10")

    @property
    def note(self) -> str:
        """Footnote: what each ε covers."""
        from shared.plans.plan import StudyPlan
        from shared.privacy.stated import shown_epsilon

        training = StudyPlan.from_toml(self.text)
        assert training.federated is not None
        epsilon = shown_epsilon(training.federated.epsilon(training.budget.delta))
        return (
            f"gap: to the real records. ε is that of the rows, whatever the flow; the training of the flow was charged "
            f"before it began, ε = {epsilon} to every participant of every cohort. Nothing was fitted beside that."
        )


def named(text: str, flow: str) -> str:
    """The plan's next version: it names the flow, and trains no more."""
    text = re.sub(r"^\[federated[^\]]*\]\n(?:(?!\[).*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^version = 1$", "version = 2", text, count=1, flags=re.MULTILINE)
    return re.sub(r"^posture = .*$", f'posture = "private"\nflow = "{flow}"', text, count=1, flags=re.MULTILINE)
