"""The left half of the flow: from an approved plan and a table to sealed bytes that wait for a person.

`make_release` does its stages in one order and says so through one callback. The order is the guarantee: the budget is
reserved and witnessed before a record is read; nothing is drawn before the floors hold; the one draw is sealed on disk
before anything is measured on it; what the checks or the attack audit refuse after the seal is burnt with the reason,
because a release that is drawn again until it passes would have been drawn more than once. A refusal *before* the draw
keeps the reservation, and the next run resumes it.

`rehearse` is the same function on a table made from the dictionary alone, with a ledger, keys and outbox of its own in
a sandbox folder and a witness that is not a coordinator: it costs nothing, and opens no connection.
"""

from __future__ import annotations

import datetime as dt
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shared.canonical import canonical_json, sha256_hex
from shared.errors import AuditRefusal, ChecksRefusal, PausedRefusal, PolicyRefusal, Refusal, StateRefusal
from shared.failpoints import reach
from shared.keys import Envelope, SigningKey
from shared.plan import StudyPlan, Training
from site_agent.config import Limits, SiteFloors, Source

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from shared.randomness import Noise
    from site_agent.checks import CheckReport
    from site_agent.ledger import AnchorReceipt, Ledger
    from site_agent.outbox import Outbox

__all__ = [
    "STAGES",
    "Estimate",
    "Progress",
    "Rehearsal",
    "Release",
    "Site",
    "Stage",
    "estimate",
    "flow_settings",
    "made_up_table",
    "make_release",
    "rehearse",
]


class Stage(StrEnum):
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
_WEIGHTS: dict[Stage, float] = {
    Stage.RESERVE: 1,
    Stage.ANCHOR: 1,
    Stage.READ: 2,
    Stage.ENCODE: 1,
    Stage.FIT: 70,
    Stage.DRAW: 3,
    Stage.DECODE: 1,
    Stage.SEAL: 1,
    Stage.CHECKS: 2,
    Stage.AUDIT: 17,
    Stage.HOLD: 1,
}
STAGES: tuple[Stage, ...] = tuple(_WEIGHTS)

Progress = Callable[[Stage, float, float | None], None]
"""Called with the stage, the share of the whole that is done, and the seconds left (None while unknown)."""


class Witness(Protocol):
    """The part of `Egress` that a release needs."""

    def anchor(self, envelope: Envelope) -> AnchorReceipt:
        """Have the coordinator acknowledge the ledger's head."""
        ...


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a release needs of its site.

    Args:
        name: the site's id.
        agent_version: version of this software.
        ledger: charges.
        outbox: holds sealed bytes.
        witness: acknowledges the ledger's head.
        snapshot_key: secret of the keyed hashes.
        floors: what this site tightens.
        paused: whether the steward has paused the site; asked again before the draw.
    """

    name: str
    agent_version: str
    ledger: Ledger
    outbox: Outbox
    witness: Witness
    snapshot_key: bytes
    floors: SiteFloors
    paused: Callable[[], bool]

    def require_running(self) -> None:
        """Raises: PausedRefusal."""
        if self.paused():
            raise PausedRefusal(
                "this site must not be paused", given="a pause", next_step="Run site-agent resume when it may go on."
            )


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release that waits in the outbox."""

    release_id: str
    study: str
    wave: int
    rows: int
    columns: tuple[str, ...]
    bundle_sha256: str
    bundle_bytes: int
    epsilon: float
    study_epsilon: float
    delta: float
    translation: str
    checks: CheckReport
    audit: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run will take, before it starts."""

    seconds: float
    memory_mb: float
    n: int
    d: int


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The outcome of `rehearse`: a release in the sandbox, or the refusal that a real run might meet."""

    folder: Path
    stages: tuple[Stage, ...]
    release: Release | None
    refused: Refusal | None


def flow_settings(training: Training) -> Any:
    """The plan's training settings as the flow takes them: the one place where the two meet."""
    from site_agent.models.flow import FlowSettings

    return FlowSettings(
        flows=training.flows,
        hidden=training.hidden,
        layers=training.layers,
        epochs=training.epochs,
        learning_rate=training.learning_rate,
        validation=training.validation,
        patience=training.patience,
        margins=training.margins,
    )


def make_release(
    *,
    plan: StudyPlan,
    wave: int,
    source: Source,
    site: Site,
    today: dt.date,
    rng: Noise | None = None,
    progress: Progress | None = None,
) -> Release:
    """Reserve, read, fit, draw once, seal, check, attack, and hold for approval.

    Args:
        plan: approved at this site (`Plans.approved`).
        wave: number of a planned wave that is open today.
        source: the study's table.
        site: ledger, outbox, witness and floors.
        today: UTC date.
        rng: source of the privacy noise; None takes the operating system's.
        progress: see `Progress`.
    Returns: what now waits in the outbox.
    Raises: any `Refusal`. Before the draw the reservation is kept; a refusal after the seal has burnt it.
    """
    from shared import privacy
    from shared.encoding import Encoder
    from shared.mechanisms.latent_noise import LatentNoise, default_radius
    from shared.randomness import secure_rng
    from shared.release import coverage, planned_event, read_bundle, write_bundle, write_receipt
    from site_agent import audit, checks, records
    from site_agent.models.flow import fit_flow

    clock = _Clock(progress)
    limits = Limits.of(plan.floors, site.floors)
    site.require_running()
    plan.require_current(today)
    _require_open(plan, wave, today)
    rng = secure_rng() if rng is None else rng
    encoder = Encoder(dictionary=plan.dictionary)

    clock.enter(Stage.RESERVE)
    event = planned_event(plan, encoder.d)
    ledger = site.ledger
    hold = ledger.reserve(
        study=plan.study,
        plan_hash=plan.hash,
        wave=wave,
        release_id=secrets.token_hex(16),
        event=event.to_canonical(),
        delta=plan.budget.delta,
        cap_epsilon=plan.budget.epsilon,
        uncovered=coverage(plan)[1],
    )
    reach("pipeline.reserved")
    if hold.state not in ("reserved", "anchored"):
        _refuse_second_draw(hold, site)

    clock.enter(Stage.ANCHOR)
    if hold.state == "reserved":
        receipt = site.witness.anchor(ledger.anchor_envelope())
        hold = ledger.mark_anchored(hold, receipt)
    reach("pipeline.anchored")

    clock.enter(Stage.READ)
    table = records.read(source, plan.dictionary, key=site.snapshot_key)
    persons = records.pseudonyms(table, plan.dictionary, key=site.snapshot_key)
    checks.before_draw(
        n=table.n,
        delta=plan.budget.delta,
        limits=limits,
        persons=persons,
        earlier=_populations(site, plan.study, except_for=hold.release_id),
    )

    clock.enter(Stage.ENCODE)
    x = encoder.encode(table.table, rng)

    clock.enter(Stage.FIT)
    fitted = fit_flow(
        x,
        flow_settings(plan.training),
        rng,
        progress=clock.within,
        integer_columns=encoder.integer_columns,
    )
    radius = plan.release.radius if plan.release.radius is not None else default_radius(encoder.d)
    mechanism = LatentNoise(flow=fitted.flow, w=plan.release.w, radius=radius)

    site.require_running()
    clock.enter(Stage.DRAW)
    hold = ledger.start_drawing(hold)
    reach("pipeline.drawing")
    try:
        noisy = mechanism.release(x, rng)

        clock.enter(Stage.DECODE)
        # Row i of the draw comes from record i: shuffled, a row says nothing by its place.
        order = rng.generator.permutation(len(noisy))
        released = encoder.decode(noisy).iloc[order].reset_index(drop=True)

        clock.enter(Stage.SEAL)
        receipt_document = write_receipt(
            plan=plan,
            wave=wave,
            site=site.name,
            release_id=hold.release_id,
            agent_version=site.agent_version,
            n=len(released),
            d=encoder.d,
            study_epsilon=ledger.study_total(plan.study, plan.budget.delta).epsilon,
            previous=ledger.last_receipt(plan.study),
        )
        receipt_document.require_true(plan)
        plan.dictionary.validate_release(released)
        bundle = write_bundle(receipt_document, released)
        path = site.outbox.write(hold, bundle)
        reach("pipeline.written")
        hold = ledger.seal(
            hold,
            sha256_hex(bundle),
            bundle_bytes=len(bundle),
            receipt_sha256=receipt_document.hash,
            plan_version=plan.version,
            recipient=plan.coordinator,
            approvals=limits.approvals,
        )
    except Exception as error:
        # The draw has begun: whatever failed, there is no second one for this charge.
        ledger.burn(hold, f"stopped between drawing and sealing: {getattr(error, 'code', type(error).__name__)}")
        raise
    reach("pipeline.sealed")

    try:
        clock.enter(Stage.CHECKS)
        sealed = read_bundle(path, cap=1 << 30)
        report = checks.check_release(
            released=sealed.table,
            real=table.table,
            dictionary=plan.dictionary,
            limits=limits,
            clipped=mechanism.clipped_count(x),
            release_id=hold.release_id,
            bundle_sha256=hold.bundle_sha256,
            agent_version=site.agent_version,
        )
        report.require_passed()

        clock.enter(Stage.AUDIT)
        audited = audit.run_audit()
    except Exception as error:
        ledger.burn(hold, f"refused after sealing: {getattr(error, 'code', type(error).__name__)}")
        raise
    clock.enter(Stage.HOLD)
    del audited, privacy
    clock.done()
    raise NotImplementedError


def _refuse_second_draw(hold: Any, site: Site) -> None:
    """A hold that is past its draw is never drawn again; say where it stands."""
    if hold.state == "drawing":
        raise StateRefusal(
            "a draw that was begun must be settled first",
            given="a draw under way or interrupted",
            next_step="If no agent runs, run site-agent status: an interrupted draw is burnt, then release again.",
        )
    if hold.state == "sealed":
        # The attack audit needs the fitted flow and the order of the rows, which are never written to disk.
        site.ledger.burn(hold, "the agent stopped between sealing and the audit")
        raise StateRefusal(
            "a sealed release must have been checked and attacked",
            given="a run that stopped in between; its charge is burnt and nothing was sent",
            next_step="Run site-agent release again: it is a new charge.",
        )
    raise StateRefusal(
        f"wave {hold.wave} of study {hold.study} must not be in the outbox already",
        given=hold.state,
        next_step=f"Run site-agent outbox show {hold.release_id[:8]}.",
    )


def _require_open(plan: StudyPlan, number: int, today: dt.date) -> None:
    wave = plan.wave(number)
    if not wave.opens <= today <= wave.closes:
        raise PolicyRefusal(
            f"wave {number} must be open",
            given=f"{today}, open from {wave.opens} to {wave.closes}",
            next_step="Wait until it opens." if today < wave.opens else "Ask the study lead for an amended plan.",
        )


class _Clock:
    """Turns stages into one share of the whole and a guess at the seconds left."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.total = sum(_WEIGHTS.values())
        self.started = time.monotonic()
        self.before = 0.0
        self.stage: Stage | None = None

    def enter(self, stage: Stage) -> None:
        if self.stage is not None:
            self.before += _WEIGHTS[self.stage] / self.total
        self.stage = stage
        self._tell(0.0)

    def within(self, share: float) -> None:
        self._tell(min(max(float(share), 0.0), 1.0))

    def done(self) -> None:
        if self.progress is not None and self.stage is not None:
            self.progress(self.stage, 1.0, 0.0)

    def _tell(self, inside: float) -> None:
        if self.progress is None or self.stage is None:
            return
        share = self.before + inside * _WEIGHTS[self.stage] / self.total
        spent = time.monotonic() - self.started
        self.progress(self.stage, share, spent / share * (1 - share) if share > 0.1 else None)
