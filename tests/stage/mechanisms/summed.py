"""A coordinator that serves and hospitals whose pilots it has, ready for a secure sum: real ledgers, real channel."""

from __future__ import annotations

import copy
import datetime as dt
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
import pytest
from stage.both_sides.service import Hub, SiteKeys
from stage.coordinator_side.delivered import cohort
from stage.mechanisms.sums import hearts

from coordinator.services.collect.sum_queue import SumQueue, progress_of
from coordinator.training.secure_sum.walk import run_sum
from shared.base.canonical import sha256_hex
from shared.base.keys import SigningKey
from shared.errors import Refusal
from shared.mechanisms.secure_sum.steps import SumStep
from shared.plans.plan import StudyPlan
from shared.wire.rounds import RoundOrder, number_of
from site_agent.config import SiteFloors, TableSource
from site_agent.ledger.book import Ledger
from site_agent.release.outbox import Outbox
from site_agent.release.pipeline.making import make_release
from site_agent.release.site import WorkingSite
from site_agent.training.rounds import Participant
from site_agent.training.secure_sum import giving
from site_agent.training.secure_sum.member import OwnRecords, member_of

TODAY = dt.date(2026, 6, 1)
NAMES = ("east", "mid", "north", "south", "west")


def text_of(keys: Mapping[str, str], drop_outs: int = 1) -> str:
    """The plan of hospitals with these keys: little noise, few figures."""
    further = f"horizon = 25.0\ndrop_outs = {drop_outs}\ncolluders = 1\nbins = 16\ntime_bins = 8\n"
    return hearts(keys, epsilon=40.0, budget=60.0, further=further)


class Dies(Exception):
    """As if the process had been killed here: nothing after it runs."""


BINARY = {
    'outcome = "survival"': 'outcome = "binary"',
    'responses = ["time", "cvd"]': 'responses = ["cvd"]',
    "horizon = 25.0\n": "",
    'columns.time = {kind = "time", upper = 30, event = "cvd"}\n': "",
    'columns.cvd = {kind = "event"}': 'columns.cvd = {kind = "binary"}\n'
    'columns.ward = {kind = "nominal", levels = ["a", "b", "c"]}',
    'covariates = ["age", "sbp"]': 'covariates = ["age", "ward", "sbp"]',
}
"""The same plan of yes or no, beside a column of three levels."""


def planned(keys, *, drop_outs: int = 1, **other: str) -> StudyPlan:
    text = text_of({name: key.public.hex for name, key in keys.items()}, drop_outs)
    for before, after in other.items():
        text = text.replace(before, after)
    return StudyPlan.from_toml(text)


class Hospital:
    """One member with a folder of its own: `start` is a process of its agent, as a thread."""

    def __init__(self, hub: Hub, name: str, rows: int, seed: int) -> None:
        self.hub, self.name, self.plan = hub, name, hub.plan
        self.home = hub.home.parent / f"site-{name}"
        self.home.mkdir()
        self.keys = hub.sites[name]
        table = cohort(rows, seed, columns=("time", "cvd", "age", "sbp"))
        table.insert(0, "person", [f"{name}-{k}" for k in range(rows)])
        if "ward" in self.plan.dictionary.names:
            table = table.drop(columns="time").assign(ward=[("abc" * rows)[k + k // 7] for k in range(rows)])
        table.to_csv(self.home / "cohort.csv", index=False)
        self.secret = secrets.token_bytes(32)
        self.begin()

    def begin(self) -> None:
        """With what lies in its folder."""
        self.source = TableSource(path=self.home / "cohort.csv")
        self.ledger = Ledger.create(self.home / "ledger.db", self.keys.release, site=self.name)
        self.outbox = Outbox(self.home, self.ledger, approvers={"steward": self.keys.steward.public})
        self.said: list[tuple[str, SumStep]] = []
        self.failed: Exception | None = None
        self.thread: threading.Thread | None = None

    def copied(self, hub: Hub) -> Hospital:
        """The same one beside a copy of its coordinator, with a copy of its folder."""
        made = copy.copy(self)
        made.hub, made.home = hub, hub.home.parent / self.home.name
        shutil.copytree(self.home, made.home)
        made.begin()
        return made

    def site(self, door) -> WorkingSite:
        return WorkingSite(
            name=self.name,
            agent_version="0",
            ledger=self.ledger,
            outbox=self.outbox,
            witness=door,
            snapshot_key=self.secret,
            floors=SiteFloors(),
            paused=self.ledger.paused,
        )

    def deliver(self) -> None:
        """Make the pilot, approve it, and send it."""
        with self.hub.egress(self.name) as egress:
            made = make_release(plan=self.plan, wave=1, source=self.source, site=self.site(egress), today=TODAY)
            self.outbox.approve(made.hold.release_id, self.keys.steward, "steward")
            envelope, bundle = self.outbox.envelope(made.hold.release_id), self.outbox.bundle(made.hold.release_id)
            self.outbox.delivered(made.hold.release_id, egress.send(envelope, bundle))

    def give(self, *, wait: float = 30.0, held: float = 25.0, door=lambda egress: egress) -> None:
        with self.hub.egress(self.name, attempts=3, sleep=lambda _: None) as egress:
            giving.give(
                Participant(
                    plan=self.plan,
                    source=self.source,
                    site=self.site(egress),
                    door=door(egress),
                    today=TODAY,
                    locked=nullcontext,
                ),
                wait=wait,
                held=held,
                progress=self.hears,
            )

    def hears(self, what: str, step: SumStep) -> None:
        """An approver consents as soon as the sum waits for it."""
        if (what, step) not in self.said:
            self.said.append((what, step))
        if what == "waits for consent":
            self.consent()

    def consent(self) -> None:
        from site_agent.training.secure_sum import consent

        page = consent.waiting_order(self.ledger, self.name, self.plan)
        consent.give_consent(self.ledger, page, name="steward", key=self.keys.steward)

    def start(self, **settings) -> threading.Thread:
        def run() -> None:
            try:
                self.give(**settings)
            except Exception as error:
                self.failed = error

        self.thread = threading.Thread(target=run)
        self.thread.start()
        return self.thread

    def answer(self, said: RoundOrder, content: bytes) -> None:
        """One order to a fresh process of this site, which has no secrets."""
        with self.hub.egress(self.name) as egress:
            settings = (self.plan, self.source, self.site(egress), egress, None, self.hears)
            giving.SumWork(*settings).answer(said, content)

    @property
    def hold(self):
        [hold] = self.ledger.holds()
        return hold

    @property
    def answered(self) -> list[int]:
        return [number for number, one in sorted(self.hold.begun.items()) if one.answer]

    def exact(self, look) -> np.ndarray:
        """What this site's records add at that look, without noise."""
        member = member_of(self.ledger, self.name, self.plan)
        with self.hub.egress(self.name) as egress:
            records = OwnRecords.read(member, self.source, self.site(egress))
        return records.steps(look) * member.terms.grid


class SumStage:
    """The coordinator and all hospitals, pilots delivered."""

    def __init__(self, folder, names=NAMES, rows: int = 400, *, url: str = "", late=(), **other) -> None:
        keys = {name: SigningKey.generate() for name in names}
        self.plan = planned(keys, **other)
        self.hub = Hub(folder / "hub", self.plan, url=url)
        for name in names:
            self.hub.sites[name] = SiteKeys(name, release=keys[name])
            self.hub.join(name)
        self.server = self.hub.serve()
        self.hospitals = {name: Hospital(self.hub, name, rows, k) for k, name in enumerate(names)}
        for name, hospital in self.hospitals.items():
            if name not in late:
                hospital.deliver()
        self.steps: list = []

    def copied(self, folder) -> SumStage:
        """The same stage in another folder, as this one was when it was closed."""
        made = copy.copy(self)
        made.hub = self.hub.copied(folder / "hub")
        made.server = made.hub.serve()
        made.hospitals = {name: one.copied(made.hub) for name, one in self.hospitals.items()}
        made.steps = []
        return made

    def run(self, timeout: float = 60.0, gone=(), without=()):
        """The coordinator's part. A step's time is over when nobody is waited for but those that are gone for good."""
        ticks = [0.0]

        def clock() -> float:
            now = progress_of(self.hub.store, self.plan)
            dead = [name for name in gone if not self.hospitals[name].thread.is_alive()]
            if len(dead) == len(gone) and now.step and set(now.waiting) <= set(dead):
                ticks[0] += 2 * timeout
            return ticks[0]

        return run_sum(
            self.hub.store,
            self.plan,
            self.hub.authority.witness,
            timeout=timeout,
            without=without,
            progress=self.steps.append,
            sleep=lambda seconds: time.sleep(seconds / 4),
            clock=clock,
        )

    def whole(self, *, gone=(), doors=None, ended=()):
        """Everybody's part and the coordinator's.

        doors: of those who dial another way. ended: who would wait for an order when the sum is opened.
        """
        for name, one in self.hospitals.items():
            one.start(**({"door": doors[name]} if name in (doors or {}) else {}))
        try:
            opened = self.run(gone=gone)
        except Refusal:
            self._end(self.hospitals)
            raise
        else:
            self._end(ended)
            return opened
        finally:
            for one in self.hospitals.values():
                one.thread.join()

    def _end(self, names) -> None:
        for name in names:
            self.hospitals[name].ledger.pause(name="", reason="nothing comes any more")

    def order(self, name: str, step: SumStep) -> tuple[RoundOrder, bytes]:
        """What the coordinator has asked a site in a step."""
        place = list(self.plan.release.members).index(name)
        content = SumQueue(self.hub.store, self.plan).order_contents(step)[place]
        return as_order(self.plan, number_of(step, place), content), content

    def close(self) -> None:
        self.server.stop(0)
        self.hub.store.close()

    def exact(self, opened) -> np.ndarray:
        """The survivors' sum without noise, from their own tables."""
        names = list(self.plan.release.members)
        return sum(self.hospitals[names[place]].exact(part.look) for place, part in opened.parts.items())


_delivered: list[SumStage] = []


@pytest.fixture
def stage(tmp_path, tmp_path_factory):
    """One of its own for each test; the pilots of all were drawn and delivered once in this process."""
    if not _delivered:
        _delivered.append(SumStage(tmp_path_factory.mktemp("delivered")))
        _delivered[0].close()
    made = _delivered[0].copied(tmp_path)
    yield made
    made.close()


def as_order(plan: StudyPlan, number: int, content: bytes) -> RoundOrder:
    given = {"study": plan.study, "plan_hash": plan.hash, "kind": "sum", "round": number}
    return RoundOrder(**given, content_sha256=sha256_hex(content), content_bytes=len(content))


def dying(monkeypatch, thread, place: str, time: int = 1) -> None:
    """Stop a thread (as `thread` says it) at a failpoint, like a kill: no handler of ours knows the exception."""
    import coordinator.services.collect.sum_queue
    import coordinator.store.waves
    import coordinator.training.secure_sum.walk
    import site_agent.egress
    from site_agent.ledger import chain, drawing, files, state

    seen: list[str] = []

    def reach(name: str) -> None:
        if threading.current_thread() is thread():
            seen.append(name)
            if name == place and seen.count(name) == time:
                raise Dies(name)

    ours = (coordinator.services.collect.sum_queue, coordinator.store.waves, coordinator.training.secure_sum.walk)
    for module in (*ours, giving, site_agent.egress, chain, drawing, files, state):
        monkeypatch.setattr(module, "reach", reach)


__all__ = ["BINARY", "NAMES", "Dies", "Hospital", "SumStage", "as_order", "dying", "planned", "stage"]
