"""One release, from the reservation to the outbox: reserve, read, fit, draw once, seal, check, attack, hold."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shared.base.canonical import parse_json
from shared.base.failpoints import reach
from shared.errors import (
    AuditRefusal,
    ChecksRefusal,
    PolicyRefusal,
    Refusal,
    StateRefusal,
    machine_failures,
)
from shared.plans.plan import StudyPlan
from site_agent.config import Limits, TableSource
from site_agent.release.site import WorkingSite

if TYPE_CHECKING:
    from shared.base.randomness import Noise
    from shared.flows.base import Bijection
    from shared.releases.receipt import Receipt
    from site_agent.ledger.book import Hold, Ledger, Reservation, Touches
    from site_agent.records.table import Records
    from site_agent.release.embeddings import EmbeddingBase
    from site_agent.release.outbox import Outbox
    from site_agent.release.protocol import Drawing
    from site_agent.release.sealed_state import SealedFlow
from site_agent.release.pipeline.before_charge import require_able, require_openable
from site_agent.release.pipeline.opened import TABLE_CAP, SealedRelease, open_release
from site_agent.release.pipeline.population import base_of, choose, of_other_studies
from site_agent.release.pipeline.stages import Progress, ReleaseClock, ReleaseStage, weights_of

__all__ = [
    "make_release",
    "require_open",
    "touches",
]


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
        author: the approver who asks for it; ``agent`` where the calendar does.
        rng: source of the privacy noise; None takes the operating system's.
        progress: see `Progress`.
    Returns: what now waits in the outbox.
    Raises: any `Refusal`. Before the draw the reservation is kept; a refusal after the seal has burnt it.
    """
    from shared.base.randomness import secure_rng
    from shared.releases.bundle import write_bundle
    from shared.releases.receipt import ReceiptDraft, write_receipt
    from site_agent.records import table as records
    from site_agent.release import fitting
    from site_agent.release.drawing import drawing_of
    from site_agent.release.pipeline.before_draw import before_draw, counted, require_apart

    clock = ReleaseClock(progress, site.require_running, weights_of(plan))
    limits = Limits.of(plan.floors, site.floors)
    ledger, outbox = site.ledger, site.outbox
    site.require_running()
    plan.require_current(today)
    require_open(plan, wave, today)
    require_able(plan, source, site)
    rng = secure_rng() if rng is None else rng
    base = base_of(ledger, plan, wave)
    drawn = any(hold.wave == wave and hold.drawn and hold.phase != "burnt" for hold in ledger.holds(plan.study))
    sealed = None if drawn else _sealed(plan, wave, ledger, base)  # what is drawn goes on from its own folder
    reused = _reused(plan, wave, ledger, sealed)
    trained = _trained(plan, site)  # before anything is charged: it may have to be fetched first
    embedding = _embedding_base(plan, ledger, base)

    clock.enter(ReleaseStage.RESERVE)
    hold = ledger.reserve(_reservation(plan, wave, reused, site))
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
    fitting.require_roles_kept(plan, _earlier_receipts(outbox, plan.study, except_for=hold.release_id))
    chosen = choose(plan, ledger, outbox, hold, everyone, table.n)
    others, unlike = of_other_studies(plan, ledger, space)
    before_draw(
        n=len(chosen.rows),
        total=chosen.total,
        delta=plan.budget.delta,
        limits=limits,
        waits=base is not None and hold.touches == "new",
        held=len(chosen.train) if plan.release.edges is not None and plan.posture == "holdout" else None,
        counts=counted(plan, table.table, chosen.rows),
    )
    require_apart(
        len(chosen.rows),
        limits,
        persons=chosen.population,
        earlier={**chosen.earlier, **others},
        withdrawn=chosen.withdrawn,
        leaving=chosen.leaving,
        sizes=(*chosen.sizes, *unlike),
    )
    require_openable(plan, source, len(chosen.rows) + len(chosen.stayed), site.coordinator_takes)
    drawing = drawing_of(plan, trained.flow if trained else None, embedding)
    drawing.take(table, everyone, chosen, sealed)
    names, trained_on = None if everyone is None else chosen.of(everyone), None
    if everyone is not None and roles:
        # Through a sealed flow nobody is fitted on: who was stands with the release that the flow is of.
        trained_on = [] if drawing.flow_of else [everyone[i] for i in chosen.train]
        ledger.require_roles_kept(hold, names or (), trained_on, flow_of=drawing.flow_of)
    del table, everyone  # whatever is read of them later on, the drawing has

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
            plan,
            ReceiptDraft(
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
                mapping=source.mapping_hash,
            ),
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
    del released  # what is checked is read back from the sealed bytes
    reach("pipeline.sealed")
    return _finish(hold, drawing, plan, site, limits, rng, clock)


def _sealed(plan: StudyPlan, wave: int, ledger: Ledger, base: Hold | None) -> SealedFlow | None:
    """The flow of an earlier release that a wave is drawn through; None where it fits its own.

    Raises: IntegrityRefusal (lost or edited), SchemaRefusal; PlanRefusal: it would choose among several networks.
    """
    from shared.releases.receipt import refits
    from site_agent.release import sealed_state

    if base is None or not plan.release.draws_rows or refits(plan, plan.wave(wave)):
        plan.training.require_one_network(plan.returning)
        return None
    return sealed_state.read_fit(ledger.folder(base), base)


def _reused(plan: StudyPlan, wave: int, ledger: Ledger, sealed: SealedFlow | None) -> bool:
    """True if a wave is charged as drawn through a flow whose training this ledger has charged before.

    The charge is fixed at the reservation: one at the full price, made by an agent of version 0.1, keeps it, and a
    wave already drawn keeps the charge it was drawn under, whatever became of the earlier release.
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


def _reservation(plan: StudyPlan, wave: int, reused: bool, site: WorkingSite) -> Reservation:
    """Reservation of this release, under a new id; it takes over one of an earlier wave that was never drawn."""
    from shared.releases.receipt import coverage, planned_event
    from site_agent.ledger.charge import Reservation

    return Reservation(
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
        follow=plan.release.follow,
    )


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
    """`site_agent.release.embeddings.embedding_base` of a network; None of any other release."""
    if plan.release.edges is None:
        return None
    from site_agent.release import embeddings

    return embeddings.embedding_base(plan, ledger, base)


def touches(plan: StudyPlan) -> Touches:
    """Persons whom a release of this plan may touch, before they are known: see `shared.privacy.composition`."""
    return "everybody" if plan.redraws else "new"


def _finish(
    hold: Hold, drawing: Drawing, plan: StudyPlan, site: WorkingSite, limits: Limits, rng: Noise, clock: ReleaseClock
) -> SealedRelease:
    """Check, attack and hold a sealed release."""
    from shared.releases.bundle import read_bundle
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
    """State of a run that was killed after its seal; without the records if the table has changed since.

    Raises: StateRefusal, where checks and attacks may decide and the table is no longer the one that was drawn from:
        they would be about other records. Elsewhere a record that has changed since must not block the release.
    """
    from site_agent.release import checks, sealed_state
    from site_agent.release.drawing import drawing_of

    folder = site.ledger.folder(hold)
    trained = _trained(plan, site)
    # Its starting point lies in its own folder; the earlier release is not needed.
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


def _earlier_receipts(outbox: Outbox, study: str, *, except_for: str) -> list[Receipt]:
    """Receipts of the earlier releases of a study that left, or still may."""
    from shared.releases.bundle import read_receipt

    ids = [
        hold.release_id
        for hold in outbox.list()
        if hold.study == study and hold.release_id != except_for and (hold.phase != "burnt" or hold.left)
    ]
    filed = [release_id for release_id in ids if (outbox.folder(release_id) / "bundle.zip").exists()]
    return [read_receipt(outbox.bundle(release_id)) for release_id in filed]


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
