"""An agent with a home that can be lost, and the plan and the event that it is charged for."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

from stage.both_sides.service import LEAD, SMALL, Hub, small_table
from stage.hospital_side.ledger import deliver

from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, StudyPlan, Wave
from shared.releases.receipt import planned_event
from site_agent.decide.plans import Plans
from site_agent.decide.recovery import recover
from site_agent.ledger.book import Ledger
from site_agent.ledger.charge import Reservation

PLAN = StudyPlan(
    study="mini",
    version=1,
    title="A small study",
    purpose="To test recovery.",
    coordinator="hub",
    expires=dt.date(2999, 1, 1),
    release=LatentNoisePlan(w=0.5),
    budget=Budget(epsilon=5000.0),
    waves=tuple(Wave(number=k, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)) for k in range(1, 13)),
    dictionary=SMALL,
    returning="refresh",
)
EVENT = planned_event(PLAN)


class Agent:
    """A site whose releases are made by hand, before a real coordinator."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.folder, self.keys = hub, folder, hub.sites["north"]
        self.ledger = Ledger.create(folder / "ledger.db", self.keys.release, site="north")
        self.plans = Plans(
            folder=folder / "plans",
            coordinator="hub",
            leads={LEAD.public.key_id: LEAD.public},
            threshold=1,
            approvers={"steward": self.keys.steward.public},
            memory=self.ledger,
        )
        self.door = hub.egress("north")

    def reserved(self, wave: int, release_id: str):
        return self.ledger.reserve(
            Reservation(
                study="mini",
                plan_hash=PLAN.hash,
                wave=wave,
                release_id=release_id,
                event=EVENT.to_canonical(),
                delta=PLAN.budget.delta,
                cap_epsilon=PLAN.budget.epsilon,
            )
        )

    def drawn(self, wave: int, name: str = ""):
        hold = self.reserved(wave, name or f"{wave:032d}")
        return self.ledger.start_drawing(
            self.ledger.mark_anchored(hold, self.door.anchor(self.ledger.anchor_envelope()))
        )

    def delivered(self, wave: int):
        hold = self.drawn(wave)
        sealed = self.hub.seal("north", wave=wave, release_id=hold.release_id, table=small_table(seed=wave))
        self.door.send(sealed.envelope, sealed.path)
        return deliver(self.ledger, hold, sealed.statement.bundle_sha256)

    def back_up(self) -> Path:
        return Path(shutil.copytree(self.folder, self.folder.with_name("backup"), dirs_exist_ok=True))

    def put_back(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.folder.with_name("backup"), self.folder)

    def recover(self):
        return recover(self.ledger, self.plans, self.door, ["mini"])

    def spent(self) -> float:
        return self.ledger.study_total("mini", PLAN.budget.delta).epsilon
