"""The left half of the flow: from an approved plan and a table to sealed bytes that wait for a person.

`make_release` does its stages in one order and says so through one callback. The order is the guarantee: the budget
is reserved and witnessed before a record is read; nothing is drawn before the floors hold; the one draw is sealed on
disk before anything is measured on it. After the seal nothing that reads a released record decides, wherever an ε is
promised to persons: checks and attacks are shown to the approver, and end alike whatever the records were. Only under
``local``, whose ε is conditional on the flow, may they refuse (`StudyPlan.records_decide`); such a release is burnt
with the reason, because one that is drawn again until it passes would have been drawn more than once. A refusal
*before* the draw keeps the reservation, and the next run, or the next wave, takes it up; a run that was killed *after*
the seal is checked and audited by the next one.

What a later wave does with a person already released is the plan's word (`StudyPlan.returning`), and `_choose` acts on
it: ``append`` draws new persons only, through the flow that the first release sealed; ``refresh`` draws everybody
anew; ``frozen`` draws new persons and copies the earlier rows as they are.

`rehearse` is the same function on a table made from the dictionary alone, with a ledger, keys and outbox of its own
in a sandbox folder and a witness that is not a coordinator: it costs nothing, and opens no connection.
"""

from __future__ import annotations

import datetime as dt
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json, parse_json
from shared.base.failpoints import reach
from shared.base.keys import Envelope, SigningKey, write_private
from shared.errors import (
    AuditRefusal,
    ChecksRefusal,
    PolicyRefusal,
    Refusal,
    StateRefusal,
    machine_failures,
)
from shared.plans.plan import StudyPlan
from site_agent.config import Edges, Limits, SiteFloors, TableSource
from site_agent.release.protocol import Chosen
from site_agent.release.site import WorkingSite

if TYPE_CHECKING:
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.flows.base import Bijection
    from shared.releases.receipt import Receipt
    from site_agent.ledger.book import Hold, Ledger, Touches
    from site_agent.records.table import Records
    from site_agent.release.checks import Check
    from site_agent.release.embeddings import EmbeddingBase
    from site_agent.release.outbox import Outbox
    from site_agent.release.protocol import Drawing
    from site_agent.release.sealed_state import SealedFlow

__all__ = [
    "STAGES",
    "Progress",
    "Rehearsal",
    "ReleaseStage",
    "RunEstimate",
    "SealedRelease",
    "estimate",
    "made_up_edges",
    "made_up_table",
    "make_release",
    "open_release",
    "record_decision",
    "rehearse",
    "require_open",
    "touches",
]


TABLE_CAP = 1 << 30
DOCUMENT_CAP = 256 << 20
SANDBOX = "REHEARSAL.txt"
DECISION_TYPE = "application/vnd.tributary.decision+json"


class ReleaseStage(StrEnum):
    """A step of `make_release`; the value is what a person reads."""

    RESERVE = "reserving the budget"
    ANCHOR = "having the ledger witnessed"
    READ = "reading the table"
    ENCODE = "encoding"
    FIT = "fitting the flow"
    DRAW = "adding the noise"
    DECODE = "decoding and shuffling"
    SEAL = "sealing"
    CHECKS = "checking for disclosure"
    AUDIT = "attacking the release"
    HOLD = "placing it in the outbox"


# Rough shares of the time, for the bar only; fitting and attacking take nearly all of it.
_WEIGHTS: dict[ReleaseStage, float] = {
    ReleaseStage.RESERVE: 1,
    ReleaseStage.ANCHOR: 1,
    ReleaseStage.READ: 2,
    ReleaseStage.ENCODE: 1,
    ReleaseStage.FIT: 58,
    ReleaseStage.DRAW: 3,
    ReleaseStage.DECODE: 1,
    ReleaseStage.SEAL: 1,
    ReleaseStage.CHECKS: 2,
    ReleaseStage.AUDIT: 29,
    ReleaseStage.HOLD: 1,
}
STAGES: tuple[ReleaseStage, ...] = tuple(_WEIGHTS)

Progress = Callable[[ReleaseStage, float, float | None], None]
"""Called with the stage, the share of the whole that is done, and the seconds left (None while unknown)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SealedRelease:
    """A sealed release as its approver sees it.

    Args:
        hold: its charge and state.
        receipt: inside the bundle.
        checks: disclosure checks; stay here.
        audit: outcome of the attacks; stays here.
        left_out: source rows without a complete record; None where nobody could count them.
        snapshot: keyed hash of the file that was read.
        read: gives the table inside the bundle; who only signs it needs none.
    """

    hold: Hold
    receipt: Receipt
    checks: tuple[Check, ...]
    audit: Mapping[str, Any]
    left_out: int | None
    snapshot: str = ""
    read: Callable[[], pd.DataFrame] = field(repr=False, compare=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Inside the bundle: the exact rows that would leave. Raises: IntegrityRefusal."""
        return self.read()

    @property
    def warnings(self) -> tuple[Check, ...]:
        """Checks that an approver must tick."""
        return tuple(check for check in self.checks if check.outcome == "warning")

    @property
    def notable(self) -> tuple[Check, ...]:
        """Notes whose rule does not hold: for the approver to know."""
        return tuple(check for check in self.checks if check.notable)


@dataclass(frozen=True, kw_only=True)
class RunEstimate:
    """What a run will take, before it starts."""

    seconds: float
    memory_mb: float
    n: int
    d: int


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The outcome of `rehearse`: a release in the sandbox, or what the checks said about the made-up table."""

    folder: Path
    release: SealedRelease | None
    refused: Refusal | None


@machine_failures()
def make_release(
    *,
    plan: StudyPlan,
    wave: int,
    source: TableSource,
    site: WorkingSite,
    today: dt.date,
    author: str = "agent",
    rng: Noise | None = None,
    progress: Progress | None = None,
) -> SealedRelease:
    """Reserve, read, fit, draw once, seal, check, attack, and hold for approval.

    Args:
        plan: approved at this site (`Plans.approved`).
        wave: number of a planned wave that is open today.
        source: the study's table.
        site: ledger, outbox, witness and floors.
        today: UTC date.
        author: the approver who asks for it; ``agent`` where the calendar does.
        rng: source of the privacy noise; None takes the operating system's.
        progress: see `Progress`.
    Returns: what now waits in the outbox.
    Raises: any `Refusal`. Before the draw the reservation is kept; a refusal after the seal has burnt it.
    """
    from shared.base.randomness import secure_rng
    from shared.releases.receipt import coverage, planned_event, write_bundle, write_receipt
    from site_agent.records import table as records
    from site_agent.release import checks, fitting
    from site_agent.release.drawing import drawing_of

    clock = _ReleaseClock(progress, site.require_running)
    limits = Limits.of(plan.floors, site.floors)
    ledger, outbox = site.ledger, site.outbox
    site.require_running()
    plan.require_current(today)
    require_open(plan, wave, today)
    rng = secure_rng() if rng is None else rng
    base = _base(ledger, plan, wave)
    drawn = any(hold.wave == wave and hold.drawn and hold.phase != "burnt" for hold in ledger.holds(plan.study))
    sealed = None if drawn else _sealed(plan, wave, ledger, base)  # what is drawn goes on from its own folder
    reused = _reused(plan, wave, ledger, sealed)
    trained = _trained(plan, site)  # before anything is charged: it may have to be fetched first
    embedding = _embedding_base(plan, ledger, base)

    clock.enter(ReleaseStage.RESERVE)
    hold = ledger.reserve(
        study=plan.study,
        plan_hash=plan.hash,
        wave=wave,
        release_id=secrets.token_hex(16),
        event=planned_event(plan, reused=reused).to_canonical(),
        delta=plan.budget.delta,
        cap_epsilon=plan.budget.epsilon,
        touches=touches(plan),
        uncovered=coverage(plan, reused=reused)[1],
        site_cap_epsilon=site.budget.epsilon,
        site_delta=site.budget.delta,
        carry=True,
    )
    reach("pipeline.reserved")
    if hold.state == "sealed":
        return _finish(hold, _taken_up(hold, plan, source, site, rng), plan, site, limits, rng, clock)
    if hold.state not in ("reserved", "anchored"):
        _refuse_second_draw(hold)

    clock.enter(ReleaseStage.ANCHOR)
    if hold.state == "reserved":
        hold = ledger.mark_anchored(hold, site.witness.anchor(ledger.anchor_envelope()))
    reach("pipeline.anchored")

    clock.enter(ReleaseStage.READ)
    table = _read(plan, source, site)
    everyone = records.row_pseudonyms(table, plan.dictionary, key=site.secret(plan.study))
    as_written = ledger.as_written(plan.study)
    space = records.person_space(source, plan.dictionary, key=site.secret(plan.study), as_written=as_written)
    roles = plan.posture == "holdout"
    ledger.require_same_persons(hold, space, roles=roles)
    if everyone is not None and (roles or hold.touches == "new"):
        ledger.require_present(hold, everyone, share=limits.still_present, snapshot=table.snapshot)
    # Under `holdout` whoever trains is in the table and not in the release: floors and populations are the release's.
    fitting.require_roles_kept(plan, _earlier_receipts(outbox, plan.study, except_for=hold.release_id))
    eligible = [int(row) for row in fitting.released_rows(plan, table.n, everyone)]
    chosen = _choose(plan, ledger, outbox, hold, base, everyone, eligible)
    others, unlike = _of_other_studies(plan, ledger, space)
    checks.before_draw(
        n=len(chosen.rows),
        total=chosen.total,
        delta=plan.budget.delta,
        limits=limits,
        persons=chosen.population,
        earlier={**chosen.earlier, **others},
        waits=base is not None and hold.touches == "new",
        withdrawn=chosen.withdrawn,
        leaving=chosen.leaving,
        sizes=(*chosen.sizes, *unlike),
        held=len(chosen.train) if plan.release.edges is not None and plan.posture == "holdout" else None,
        exact=checks.exact_counts(plan, table.table.iloc[list(chosen.rows)]),
    )
    drawing = drawing_of(plan, trained.flow if trained else None, embedding)
    drawing.take(table, everyone, chosen, sealed)
    names = None if everyone is None else [everyone[i] for i in chosen.rows]
    trained_on = None
    if everyone is not None and roles:
        # Through a sealed flow nobody is fitted on: who was stands with the release that the flow is of.
        trained_on = [] if drawing.flow_of else [everyone[i] for i in chosen.train]
        ledger.require_roles_kept(hold, names or (), trained_on, flow_of=drawing.flow_of)

    clock.enter(ReleaseStage.ENCODE)
    drawing.encode(rng)

    clock.enter(ReleaseStage.FIT)
    drawing.fit(rng, clock.within)
    drawing.rehearse()

    site.require_running()
    site.approved(plan)
    clock.enter(ReleaseStage.DRAW)
    # Asked once more while nothing is lost: an offline site keeps its reservation instead of burning it below.
    site.witness.anchor(ledger.anchor_envelope())
    hold = ledger.start_drawing(hold, names, space=space, trained=trained_on, flow_of=drawing.flow_of)
    reach("pipeline.drawing")
    try:
        # The *drawing* entry is witnessed before any noise of the rows exists. A copy of this folder, or a snapshot
        # put back, writes another drawing entry, and the coordinator refuses it as not grown from this one: one charge,
        # one draw.
        site.witness.anchor(ledger.anchor_envelope())
        drawing.draw(rng)

        clock.enter(ReleaseStage.DECODE)
        released = drawing.released(rng)

        clock.enter(ReleaseStage.SEAL)
        receipt = write_receipt(
            plan=plan,
            wave=wave,
            site=site.name,
            release_id=hold.release_id,
            agent_version=site.agent_version,
            n=drawing.n,
            drawn=drawing.drawn,
            flow_of=drawing.flow_of,
            reused=reused,
            previous=ledger.last_receipt(plan.study),
            trained=trained.charge if trained else None,
            hospitals=len(source.hospitals),
        )
        receipt.require_true(plan)
        plan.release.validate(plan, released, receipt.n)
        hold = outbox.seal(
            hold,
            write_bundle(receipt, released),
            receipt,
            approvals=limits.approvals,
            files=drawing.files(hold.release_id),
            author=author,
            author_apart=limits.author_apart,
        )
    except Exception as error:
        # The draw has begun: whatever failed, there is no second one for this charge.
        ledger.burn(hold, f"stopped between drawing and sealing: {_name(error)}")
        raise
    reach("pipeline.sealed")
    return _finish(hold, drawing, plan, site, limits, rng, clock)


def _sealed(plan: StudyPlan, wave: int, ledger: Ledger, base: Hold | None) -> SealedFlow | None:
    """The flow of an earlier release that a wave is drawn through; None where it fits its own.

    Raises: IntegrityRefusal (lost or edited), SchemaRefusal.
    """
    from shared.releases.receipt import refits
    from site_agent.release import sealed_state

    if base is None or not plan.release.draws_rows or refits(plan, plan.wave(wave)):
        return None
    return sealed_state.read_fit(ledger.folder(base), base)


def _reused(plan: StudyPlan, wave: int, ledger: Ledger, sealed: SealedFlow | None) -> bool:
    """Whether a wave is charged as drawn through a flow whose training this ledger was charged before.

    What is charged is fixed at the reservation: one that stands at the full price, of an agent of version 0.1, keeps
    it, and one that was drawn keeps what it was drawn at, whatever became of the earlier release.
    """
    from shared.releases.receipt import charged_training

    training = charged_training(plan)
    if training is None:
        return False
    holds = ledger.holds(plan.study)
    trained = {hold.release_id for hold in holds if hold.drawn and training in hold.event.get("events", ())}
    for hold in holds:
        if hold.wave == wave and hold.phase != "burnt" and not hold.rounds:
            if training in hold.event.get("events", ()):
                return False
            if hold.drawn:
                return True
    return sealed is not None and sealed.flow_of in trained


def _read(plan: StudyPlan, source: TableSource, site: WorkingSite) -> Records:
    """The table as this study reads it. Raises: as `site_agent.records.table.read`."""
    from site_agent.records import table as records

    as_written = site.ledger.as_written(plan.study)
    return records.read(
        source, plan.dictionary, key=site.secret(plan.study), rules=plan.release.edges, as_written=as_written
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class _Trained:
    """A flow that several sites have trained, as this one uses it, and what its ledger says of the training."""

    flow: Bijection
    charge: Mapping[str, Any]


def _trained(plan: StudyPlan, site: WorkingSite) -> _Trained | None:
    """The flow that a plan names; None where it names none. Raises: StateRefusal, PlanChanged."""
    if not plan.flow:
        return None
    from shared.plans.encoding import Encoder
    from site_agent.release import trained_flow

    known = trained_flow.kept_flow(site.ledger.path.parent, plan.flow)
    return _Trained(
        flow=trained_flow.federated_flow(known, Encoder(dictionary=plan.dictionary), site.name),
        charge=trained_flow.charge_of(site.ledger, known),
    )


def _embedding_base(plan: StudyPlan, ledger: Ledger, base: Hold | None) -> EmbeddingBase | None:
    """What a network goes on from that keeps its frame. Raises: as `site_agent.release.embeddings.embedding_base`."""
    if plan.release.edges is None:
        return None
    from site_agent.release import embeddings

    return embeddings.embedding_base(plan, ledger, base)


def touches(plan: StudyPlan) -> Touches:
    """Whom a release of this plan may touch before its persons are known: see `shared.privacy.composition`."""
    return "everybody" if plan.redraws else "new"


def _finish(
    hold: Hold, drawing: Drawing, plan: StudyPlan, site: WorkingSite, limits: Limits, rng: Noise, clock: _ReleaseClock
) -> SealedRelease:
    """Check, attack and hold a sealed release."""
    from shared.releases.receipt import read_bundle
    from site_agent.release import checks

    ledger, outbox = site.ledger, site.outbox
    try:
        clock.enter(ReleaseStage.CHECKS)
        table = read_bundle(outbox.bundle(hold.release_id), cap=TABLE_CAP).table
        report = checks.CheckReport.of(
            hold.release_id,
            hold.bundle_sha256,
            drawing.checks(table, limits),
            limits=limits,
            agent_version=site.agent_version,
        )
        report.require_passed()

        clock.enter(ReleaseStage.AUDIT)
        attack = partial(drawing.attack, limits, rng, clock.within)
        audited = attack() if plan.records_decide else checks.carried_out(attack, drawing.unattacked)
    except (ChecksRefusal, AuditRefusal) as error:
        # Anything else refuses nothing (a pause, a full disk): the next run goes on from the sealed bytes.
        ledger.burn(hold, f"refused after sealing: {_name(error)}")
        raise

    clock.enter(ReleaseStage.HOLD)
    content = {**parse_json(report.to_bytes()), "snapshot": drawing.rows.snapshot, "left_out": drawing.left_out}
    # The keyed hash of the source is in both: their digests go into an export, and could be guessed without it.
    audit = {**audited, "snapshot": drawing.rows.snapshot} if audited else audited
    outbox.hold(hold.release_id, checks=content, audit=audit)
    reach("pipeline.held")
    clock.done()
    return open_release(outbox, hold.release_id)


def _taken_up(hold: Hold, plan: StudyPlan, source: TableSource, site: WorkingSite, rng: Noise) -> Drawing:
    """What a run that was killed after its seal had in memory, as far as its table is still there.

    Raises: StateRefusal, where checks and attacks may decide and the table is no longer the one that was drawn from:
        they would be of others. Elsewhere a record that has changed since must hold nothing up.
    """
    from site_agent.release import checks, sealed_state
    from site_agent.release.drawing import drawing_of

    folder = site.ledger.folder(hold)
    trained = _trained(plan, site)
    # What it goes on from lies in its own folder; the release before is not asked for.
    embedding = _embedding_base(plan, site.ledger, None)
    drawing = drawing_of(plan, trained.flow if trained else None, embedding)

    def resumed() -> bool:
        table = _read(plan, source, site)
        if table.snapshot != sealed_state.read_rows(folder, hold).snapshot:
            return False
        drawing.resume(table, hold, folder, rng)
        return True

    if plan.records_decide:
        if not resumed():
            raise StateRefusal(
                "a sealed release must be audited on the table it was drawn from",
                given="a table that has changed since",
                next_step=f"Put that table back for one run, or run site-agent reject {hold.release_id[:8]}: "
                "it stays charged.",
            )
    elif not checks.carried_out(resumed, False):
        drawing = drawing_of(plan, trained.flow if trained else None, embedding)
        drawing.without_records(hold, folder)
    return drawing


def open_release(outbox: Outbox, release_id: str) -> SealedRelease:
    """Everything an approver is shown of a sealed release, read back from the exact bytes.

    Raises: StateRefusal (no such release), IntegrityRefusal (the bytes are not those that were sealed).
    """
    from shared.releases.receipt import read_bundle, read_receipt

    hold = outbox.get(release_id)
    receipt = read_receipt(outbox.bundle(release_id))
    documents: dict[str, Any] = {}
    for name in ("checks", "audit"):
        path = outbox.folder(release_id) / f"{name}.json"
        if path.exists():
            documents[name] = parse_json(path.read_bytes(), cap=DOCUMENT_CAP)["content"]
    checks = documents.get("checks", {})
    return SealedRelease(
        hold=hold,
        receipt=receipt,
        read=lambda: read_bundle(outbox.bundle(release_id), cap=TABLE_CAP).table,
        checks=tuple(_check(given) for given in checks.get("checks", ())),
        audit=documents.get("audit", {}),
        left_out=checks.get("left_out", 0),
        snapshot=str(checks.get("snapshot", "")),
    )


def record_decision(
    outbox: Outbox, release_id: str, *, name: str, key: SigningKey, ticked: Sequence[str], today: dt.date
) -> None:
    """File which warnings an approver ticked, signed by the approver, beside the checks. It stays at the site."""
    hold = outbox.get(release_id)
    body = {
        "release_id": release_id,
        "bundle_sha256": hold.bundle_sha256,
        "documents": dict(hold.documents),
        "approver": name,
        "ticked": sorted(ticked),
        "day": today.isoformat(),
    }
    envelope = Envelope.sign(DECISION_TYPE, canonical_json(body), [key])
    write_private(outbox.folder(release_id) / f"decision-{name}.json", envelope.to_bytes())


def estimate(plan: StudyPlan, source: TableSource) -> RunEstimate:
    """Time and memory of a run on a table, before it starts; the table's rows are counted, not checked."""
    from shared.plans.encoding import Encoder
    from site_agent.records import table as records
    from site_agent.release.fitting import estimate_seconds

    d = Encoder(dictionary=plan.dictionary).d
    n = records.count(source)
    if plan.release.edges is not None:
        # Every pair of persons is gone through once to fit and once to draw; three more times for the figures.
        return RunEstimate(seconds=5.0 + 2e-6 * n * n, memory_mb=300.0 + 2e-2 * n, n=n, d=d)
    if not plan.release.draws_rows:
        return RunEstimate(
            seconds=2.0 + 1e-5 * n * d, memory_mb=150.0 + 2e-5 * n * d, n=n, d=d
        )  # reading, and counting
    seconds, megabytes = estimate_seconds(plan, n, d)
    return RunEstimate(seconds=seconds, memory_mb=megabytes, n=n, d=d)


# -- rehearsal --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class _Seen:
    seq: int
    head: str
    index: int = 0


class _SandboxWitness:
    """Acknowledges any head, as a coordinator would; nothing is sent."""

    def anchor(self, envelope: Envelope) -> _Seen:
        body = parse_json(envelope.payload)
        return _Seen(seq=body["seq"], head=body["head"])


def rehearse(
    *,
    plan: StudyPlan,
    folder: Path,
    name: str,
    agent_version: str,
    floors: SiteFloors,
    today: dt.date,
    progress: Progress | None = None,
    home: Path | None = None,
) -> Rehearsal:
    """Run everything on a made-up table in a sandbox: no record is read, no budget is spent, nothing is sent.

    Args:
        plan: any verified plan; it need not be approved.
        folder: the sandbox; what an earlier rehearsal left there is removed.
        name: the site's id.
        agent_version: version of this software.
        floors: the site's.
        today: UTC date; a plan whose waves are all closed or not yet open is rehearsed on its first day.
        progress: see `Progress`.
        home: the site's folder, where the flow lies that a plan may name.
    Raises: any refusal of a step before the attack audit; what the audit says about a made-up table is returned.
    """
    import shutil

    from shared.base.randomness import secure_rng
    from site_agent.ledger.book import Ledger
    from site_agent.release.outbox import Outbox

    if folder.exists():
        if not (folder / SANDBOX).exists():
            raise StateRefusal(
                "the sandbox must be a folder of rehearsals", given=folder.name, next_step="Name another folder."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o700)
    (folder / SANDBOX).write_text("Made-up data. This folder is removed by the next rehearsal.\n", encoding="utf-8")
    if plan.flow and home is not None:
        from site_agent.release import trained_flow

        digest = trained_flow.kept_flow(home, plan.flow).digest
        trained_flow.flow_path(folder, digest).parent.mkdir(mode=0o700)
        shutil.copy(trained_flow.flow_path(home, digest), trained_flow.flow_path(folder, digest))
    rng = secure_rng()
    limits = Limits.of(plan.floors, floors)
    source = TableSource(path=(folder / "made-up.csv").resolve())
    # Under `holdout` both those who train and those who are released must be enough.
    split = min(plan.holdout, 1 - plan.holdout) if plan.posture == "holdout" else 1.0
    made_up = made_up_table(plan, round(max(4 * limits.persons, 300) / split), rng)
    made_up.to_csv(source.path, index=False)
    if plan.release.edges is not None:
        edges = Edges(path=(folder / "made-up-edges.csv").resolve())
        made_up_edges(list(made_up[plan.dictionary.person]), rng).to_csv(edges.path, index=False)
        source = replace(source, edges=edges)
    ledger = Ledger.create(folder / "ledger.db", SigningKey.generate(), site=name)
    site = WorkingSite(
        name=name,
        agent_version=agent_version,
        ledger=ledger,
        outbox=Outbox(folder, ledger),
        witness=_SandboxWitness(),
        snapshot_key=secrets.token_bytes(32),
        floors=floors,
        paused=lambda: False,
    )
    wave = next((w for w in plan.waves if w.opens <= today <= w.closes), None)
    day = today if wave else plan.waves[0].opens
    number = wave.number if wave else 1
    release: SealedRelease | None = None
    refused: Refusal | None = None
    try:
        release = make_release(plan=plan, wave=number, source=source, site=site, today=day, rng=rng, progress=progress)
    except (AuditRefusal, ChecksRefusal) as refusal:
        refused = refusal
    return Rehearsal(folder=folder, release=release, refused=refused)


def made_up_table(plan: StudyPlan, n: int, rng: Noise) -> pd.DataFrame:
    """A source table made from the dictionary alone: uniform within bounds and levels, a tenth missing where allowed.

    It says nothing about any hospital, and therefore nothing about how well the study will work there.
    """
    import numpy as np
    import pandas as pd

    draws = rng.generator
    out: dict[str, Any] = {}
    for column in plan.dictionary.columns:
        if column.kind == "person":
            out[column.name] = [f"made-up-{i}" for i in range(n)]
            continue
        values: Any
        if column.kind == "integer":
            values = draws.integers(int(column.span[0]), int(column.span[1]) + 1, n).astype(object)
        elif column.kind in ("continuous", "time"):
            lower, upper = column.span
            values = np.round(draws.uniform(lower, upper, n), 6 if column.decimals is None else column.decimals)
            values = np.clip(values, lower, upper).astype(object)
        else:
            values = np.array(column.levels, dtype=object)[draws.integers(0, len(column.levels), n)]
        if column.missing != "refuse":
            values[draws.random(n) < 0.1] = None
        if column.missing_codes:
            # A code for "missing" may lie within the bounds; drawn by accident it would be missing where it must not.
            codes = {str(code) for code in column.missing_codes} | {
                f"{c:g}" for c in column.missing_codes if not isinstance(c, str)
            }
            hit = np.array([str(v) in codes or (isinstance(v, float) and f"{v:g}" in codes) for v in values])
            spare = (column.span[0] + column.span[1]) / 2 if column.kind in ("continuous", "integer", "time") else None
            values[hit] = int(spare) if column.kind == "integer" and spare is not None else spare
        out[column.name] = values
    return pd.DataFrame(out)


def made_up_edges(persons: Sequence[str], rng: Noise) -> pd.DataFrame:
    """An edge list made of nothing: some of the persons meet more people than others, about ten each."""
    import numpy as np
    import pandas as pd

    draws = rng.generator
    n = len(persons)
    busy = draws.uniform(0.3, 1.7, n)
    ends: list[Any] = [np.empty((2, 0), dtype=np.int64)]
    # By rows: all pairs of a site with a high floor at once would be gigabytes.
    for i in range(n):
        j = i + 1 + np.flatnonzero(draws.random(n - 1 - i) < np.minimum(10 / n * busy[i] * busy[i + 1 :], 1))
        ends.append(np.stack([np.full(len(j), i), j]))
    start, end = np.hstack(ends)
    names = np.array(persons, dtype=object)
    return pd.DataFrame({"from": names[start], "to": names[end]})


# -- inside -----------------------------------------------------------------------------------------------------


def _choose(
    plan: StudyPlan,
    ledger: Ledger,
    outbox: Outbox,
    hold: Hold,
    base: Hold | None,
    persons: Sequence[str] | None,
    eligible: Sequence[int],
) -> Chosen:
    """Who is drawn in this wave, of the rows that `eligible` be: see `StudyPlan.returning`."""
    from shared.releases.receipt import read_bundle
    from site_agent.release.sealed_state import read_rows

    if persons is None:
        # Nobody can be told apart: two releases of nearly as many rows may be of all but one and the same persons.
        sizes = [
            len(read_rows(ledger.folder(other), other).source)
            for other in ledger.holds(plan.study)
            if other.may_be_out and other.release_id != hold.release_id and other.files
        ]
        return Chosen(rows=tuple(eligible), total=len(eligible), sizes=tuple(sizes))
    withdrawn = ledger.persons_withdrawn(plan.study)
    taken = ledger.taken(hold) if hold.touches == "new" else frozenset[str]()
    rows = tuple(i for i in eligible if persons[i] not in taken and persons[i] not in withdrawn)
    train = tuple(i for i in sorted({*range(len(persons))} - set(eligible)) if persons[i] not in withdrawn)
    population = frozenset(persons[i] for i in rows)
    earlier: dict[str, frozenset[str]] = {}
    table: frozenset[str] = frozenset()
    last: Hold | None = None
    for other in ledger.holds(plan.study):
        if other.may_be_out and other.release_id != hold.release_id and other.files:
            own = frozenset(read_rows(ledger.folder(other), other).persons)
            # An appended release adds to the table as of its wave; any other one replaces it.
            table = own if own & table else own | table
            earlier |= {other.release_id: own, f"{other.release_id} and before": table}
            last = other if other.state == "delivered" else last
    if hold.touches == "everybody":
        left = table - population
        return Chosen(
            rows=rows,
            train=train,
            population=population,
            total=len(population),
            earlier=earlier,
            withdrawn=len(left & withdrawn),
            leaving=len(left),
        )
    if plan.returning == "append" or last is None:
        total = len(taken | population)
        return Chosen(rows=rows, train=train, population=population, total=total, earlier=earlier)
    before = read_rows(ledger.folder(last), last).persons
    leaving = withdrawn & set(before)
    stays = [k for k, person in enumerate(before) if person not in leaving]
    copied = read_bundle(outbox.bundle(last.release_id), cap=TABLE_CAP).table.iloc[stays]
    stayed = tuple(before[k] for k in stays)
    return Chosen(
        rows=rows,
        stayed=stayed,
        copied=copied,
        population=population | set(stayed),
        total=len(taken | population),
        earlier=earlier,
        withdrawn=len(leaving),
        leaving=len(leaving),
    )


def _of_other_studies(plan: StudyPlan, ledger: Ledger, space: str) -> tuple[dict[str, frozenset[str]], list[int]]:
    """Releases of this site's other studies with which a release must not be compared too closely.

    Where neither has a price for everybody, nothing but this guard stands between the two: two tables of all but one
    and the same persons would show the one. Two studies are of the same people unless an approver has told them apart.

    Returns: release to pseudonyms; and the sizes of those that tell persons apart by something else, who may all the
        same be the same people.
    """
    from site_agent.release.sealed_state import read_rows

    if not plan.records_decide:
        return {}, []
    holds = [hold for hold in ledger.holds() if hold.study != plan.study and hold.may_be_out and hold.files]
    gone, apart = ledger.deleted(), ledger.told_apart({plan.study, *(hold.study for hold in holds)})
    persons: dict[str, frozenset[str]] = {}
    sizes = []
    for hold in holds:
        bounded = hold.epsilon is not None and not hold.given
        if bounded or hold.release_id in gone or (plan.study, hold.study) in apart:
            continue
        rows = read_rows(ledger.folder(hold), hold)
        persons[hold.release_id] = frozenset(rows.persons)
        if not space or hold.space != space:
            sizes.append(len(rows.source))
    return persons, sizes


def _base(ledger: Ledger, plan: StudyPlan, wave: int) -> Hold | None:
    """The release whose sealed flow a later wave uses, the latest that fitted one; None where this is the first.

    Raises: StateRefusal, when the wave is out of turn. Turns follow the ledger's order, never a clock.
    """
    own = [
        hold
        for hold in ledger.holds(plan.study)
        if hold.phase != "burnt" and hold.state != "withdrawn" and not hold.rounds
    ]
    later = [hold for hold in own if hold.wave > wave]
    if later:
        raise StateRefusal(
            f"waves must be released in turn: wave {wave} before wave {later[0].wave}",
            given=f"wave {later[0].wave}, {later[0].state}",
            next_step=f"Whoever belongs to wave {wave} takes part in the next one.",
        )
    done = [hold for hold in own if hold.phase == "delivered" and hold.wave < wave and hold.files]
    open_now = [hold for hold in own if hold.drawn and hold.phase != "delivered" and hold.wave < wave]
    alone = plan.returning == "refresh" and plan.wave(wave).refit
    if open_now and not alone and (not done or plan.returning == "frozen" or plan.release.sealed):
        first = open_now[0]
        raise StateRefusal(
            f"wave {first.wave} must be delivered, or rejected, before wave {wave} builds on it",
            given=first.state,
            next_step=f"Run site-agent outbox show {first.release_id[:8]}.",
        )
    return done[-1] if done else None


def _earlier_receipts(outbox: Outbox, study: str, *, except_for: str) -> list[Receipt]:
    """Receipts of the earlier releases of a study that left, or still may."""
    from shared.releases.receipt import read_receipt

    ids = [
        hold.release_id
        for hold in outbox.list()
        if hold.study == study and hold.release_id != except_for and (hold.phase != "burnt" or hold.left)
    ]
    filed = [release_id for release_id in ids if (outbox.folder(release_id) / "bundle.zip").exists()]
    return [read_receipt(outbox.bundle(release_id)) for release_id in filed]


def _check(given: Mapping[str, Any]) -> Check:
    from site_agent.release.checks import Check

    return Check(**given)


def _name(error: Exception) -> str:
    """A failure for the ledger: a refusal's code, or a kind of error; never its words, which may quote a record."""
    return error.code if isinstance(error, Refusal) else type(error).__name__


def _refuse_second_draw(hold: Hold) -> None:
    """A hold that is past its draw is never drawn again; say where it stands."""
    if hold.state == "drawing":
        raise StateRefusal(
            "a draw that was begun must be settled first",
            given="a draw under way or interrupted",
            next_step="If no other agent runs, run site-agent release: this draw is burnt, the next is a new charge.",
        )
    raise StateRefusal(
        f"wave {hold.wave} of study {hold.study} must not be in the outbox already",
        given=hold.state,
        next_step=f"Run site-agent outbox show {hold.release_id[:8]}.",
    )


def require_open(plan: StudyPlan, number: int, today: dt.date) -> None:
    """Refuse a wave that is not planned, or not open today. Raises: PlanRefusal, PolicyRefusal."""
    wave = plan.wave(number)
    if not wave.opens <= today <= wave.closes:
        raise PolicyRefusal(
            f"wave {number} must be open",
            given=f"{today}, open from {wave.opens} to {wave.closes}",
            next_step="Wait until it opens." if today < wave.opens else "Ask the study lead for an amended plan.",
        )


class _ReleaseClock:
    """Turns stages into one share of the whole and a guess at the seconds left, and asks whether to go on.

    Args:
        progress: who is told.
        require: refuses while the site is paused. It is not asked from the draw to the seal, where stopping would
            burn the charge.
    """

    def __init__(self, progress: Progress | None, require: Callable[[], None]) -> None:
        self.progress, self.require = progress, require
        self.total = sum(_WEIGHTS.values())
        self.started = time.monotonic()
        self.before = 0.0
        self.reported = 0.0
        self.stage: ReleaseStage | None = None

    def enter(self, stage: ReleaseStage) -> None:
        if self.stage is not None:
            self.before += _WEIGHTS[self.stage] / self.total
        self.stage = stage
        self._report(0.0)

    def within(self, share: float) -> None:
        self._report(min(max(float(share), 0.0), 1.0))

    def done(self) -> None:
        if self.progress is not None and self.stage is not None:
            self.progress(self.stage, 1.0, 0.0)

    def _report(self, inside: float) -> None:
        if self.stage in (ReleaseStage.READ, ReleaseStage.ENCODE, ReleaseStage.FIT, ReleaseStage.AUDIT):
            self.require()
        if self.progress is None or self.stage is None:
            return
        share = self.before + inside * _WEIGHTS[self.stage] / self.total
        spent = time.monotonic() - self.started
        self.reported = share = max(self.reported, share)
        self.progress(self.stage, share, spent / share * (1 - share) if share > 0.1 else None)
