"""Acceptance of a complete upload: open, check against the plan and earlier releases, move, flush, log."""

from __future__ import annotations

import datetime as dt
import logging
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coordinator.services.collect.round_queue import RoundQueue
from coordinator.services.collect.staging import Staging, no_room, size_of
from coordinator.services.collect.statements import StatementRules
from coordinator.services.compute.tasks import READING, require_stated
from coordinator.services.compute.workers import Busy, Ended, Failed, TaskLimits, Workers
from coordinator.services.quotas import CallRate
from coordinator.store.log_watch import LogWatch
from coordinator.store.store import AcceptedRelease, Store
from shared.base.durable import fsync_folder
from shared.base.failpoints import reach
from shared.base.keys import Envelope
from shared.errors import (
    BudgetRefusal,
    NetworkRefusal,
    RateRefusal,
    ReceiptRefusal,
    Refusal,
    SchemaRefusal,
    StateRefusal,
    StorageRefusal,
    TooLarge,
)
from shared.plans.plan import StudyPlan
from shared.privacy.stated import all_given, shown_epsilon, shown_price
from shared.releases.receipt import Receipt, charged_training
from shared.releases.statement import Statement
from shared.wire.site_messages import Acceptance, CoordinatorLimits

__all__ = ["MAX_BUNDLE", "Ingest"]

MAX_BUNDLE = CoordinatorLimits().max_bundle
CHECK = "coordinator.services.compute.tasks:check_bundle"
TABLE_FACTOR = 2  # a table may take this many times the largest bundle when it is decoded
MEMORY_FACTOR = 6  # and the process that reads it this many times: the file, the table, and a copy to check
CPU, WALL = 60, 120.0  # seconds that it may take
QUEUE = 120.0  # seconds that a bundle waits for a process to read it
OPENINGS = 2  # how often a bundle is opened whose opening does not end
# The second time it has the room of a table of its own size, many times over: more is for tables that are packed well.
LITTLE, LITTLE_FACTOR = 256 << 20, 8
_log = logging.getLogger("tributary.collect")


class Ingest:
    """Takes a bundle whose bytes have arrived, or sets it apart.

    Args:
        store: the coordinator's store.
        staging: the folders of bundles.
        rules: of statements.
        watch: the log that is signed.
        boxes: trainings that the sites run together.
        refused: limit on the refused releases of a site.
        max_bundle: most bytes of one release.
        today: gives the UTC date.
    """

    def __init__(
        self,
        store: Store,
        staging: Staging,
        rules: StatementRules,
        watch: LogWatch,
        *,
        boxes: RoundQueue,
        refused: CallRate,
        max_bundle: int,
        today: Callable[[], dt.date],
    ) -> None:
        self._store, self._staging, self._rules, self._watch, self._boxes = store, staging, rules, watch, boxes
        self._refused, self._max_bundle, self._today = refused, max_bundle, today
        # Opening a bundle takes memory in proportion to its table; two at a time bound it.
        limits = TaskLimits(memory=MEMORY_FACTOR * max_bundle + (64 << 20), cpu=CPU, wall=WALL)
        self.opening = Workers(imports=READING, places=2, limits=limits, fresh=True)

    @property
    def limits(self) -> CoordinatorLimits:
        """The largest release that is taken."""
        return CoordinatorLimits(max_bundle=self._max_bundle, max_table=TABLE_FACTOR * self._max_bundle)

    def accept(
        self,
        part: Path,
        statement: Statement,
        envelope: Envelope,
        standing: Envelope | None,
        plan: StudyPlan,
        recheck: Callable[[Receipt], None],
    ) -> Acceptance:
        """Open, check, move, flush, log, commit: in this order, so that no step shows what a later one might undo.

        Args:
            recheck: asks again within the commit: during an upload of an hour a site may have been revoked, its plan
                replaced, its standing approval ended, its budget spent by another release.
        Raises: SchemaRefusal and others of the content, which is set apart; the refusal of `recheck`; NetworkRefusal,
            StorageRefusal and OSError: of this coordinator, so that the site sends the bundle again.
        """
        try:
            receipt = self._checked(part, statement, plan)
        except (NetworkRefusal, StateRefusal, StorageRefusal):  # of this coordinator, not of what was read
            raise
        except Refusal as refusal:
            self._set_apart(part, statement, envelope, refusal)
            raise
        # An object store may let a caller wait: none is asked in a transaction, for which every other writer waits.
        # What is put stays until the commit: only whoever has the turn of this upload takes it back, as the caller has.
        bundles, digest = self._store.bundles, statement.bundle_sha256
        whole = False
        try:
            reach("ingest.before_move")
            bundles.put(digest, part)
            whole = True
            reach("ingest.before_commit")
            acceptance = self._store.accept_release(
                statement=statement,
                envelope=envelope,
                receipt=receipt,
                today=self._today(),
                standing=standing,
                recheck=lambda: recheck(receipt),
                sign=self._watch.signer(self._today()),
            )
            reach("ingest.after_commit")
        except (Refusal, OSError) as error:
            if (whole or not part.exists()) and not self._store.named(digest):
                with suppress(Refusal, OSError):  # what stays is put again, or goes back to its offer at the next start
                    bundles.take_back(digest, part)
            if isinstance(error, OSError):
                raise no_room(error) from None
            raise
        part.unlink(missing_ok=True)
        part.with_suffix(".json").unlink(missing_ok=True)
        reach("ingest.done")
        return acceptance

    def _checked(self, part: Path, statement: Statement, plan: StudyPlan) -> Receipt:
        """The receipt of a bundle whose content is what its statement and plan say. Raises: the refusal of it."""
        try:
            receipt = self._opened(part, statement, plan)
            require_stated(receipt, statement)
            self._store.read(lambda c: self._require_among(receipt, statement, plan))
            return receipt
        except (Refusal, MemoryError, OSError):
            raise
        except Exception as error:
            # Content that breaks a reader in a way we did not foresee is content, not a fault of ours to repeat.
            what = str(error) if isinstance(error, Failed) else type(error).__name__
            _log.error("unexpected %s in a bundle", what)
            raise SchemaRefusal("a bundle's content must be readable", given="another form") from None

    def _require_among(self, receipt: Receipt, statement: Statement, plan: StudyPlan) -> None:
        """Hold a release against all that is known here as of now."""
        if self._rules.acknowledged(statement):
            self.require_once(receipt, plan)
        else:
            self.require_history(receipt, plan)
            self.require_trained(receipt, plan)

    def _opened(self, part: Path, statement: Statement, plan: StudyPlan) -> Receipt:
        """Open a bundle in a worker: with the usual room, and once more with little where that was not the end of it.

        Raises: the refusal of its content, TooLarge (more memory or time than any honest one takes); NetworkRefusal
        (the worker was ended from outside: the site sends again), StorageRefusal.
        """
        marker = part.with_suffix(".opened")  # a byte for each time that it was begun and not ended
        times = size_of(marker)
        if times >= OPENINGS:
            raise TooLarge("a bundle must be opened to the end", given=f"{times} times that it was not")
        usual = self.opening.limits
        room = min(usual.memory, LITTLE + LITTLE_FACTOR * size_of(part)) if times else usual.memory
        given = {
            "path": str(part),
            "cap": min(self.limits.max_table, room),
            "plan": plan.canonical.decode(),
            "statement": statement.to_bytes().decode(),
        }

        def begun() -> None:
            with marker.open("ab") as out:
                out.write(b".")
                out.flush()
                os.fsync(out.fileno())
            fsync_folder(self._staging.folder)
            reach("ingest.opening")

        try:
            reply = self.opening.run(
                CHECK,
                given,
                owner=statement.site,
                patience=QUEUE,
                begun=begun,
                limits=replace(usual, memory=room),
            )
        except Ended as ended:
            if not ended.limit and times + 1 < OPENINGS:
                raise NetworkRefusal(
                    "a bundle must be opened to the end", given="a process that was ended", next_step="Send it again."
                ) from None
            raise TooLarge(
                f"a bundle must be read within {room >> 20} MB of memory and {usual.cpu} s of computing", given="more"
            ) from None
        except Busy:
            raise NetworkRefusal("the coordinator must have a free place for a bundle", given="none") from None
        except (OSError, StorageRefusal) as error:
            marker.unlink(missing_ok=True)
            raise no_room(error) if isinstance(error, OSError) else error from None
        marker.unlink(missing_ok=True)
        return Receipt.from_bytes(reply["receipt"].encode())

    def require_trained(self, receipt: Receipt, plan: StudyPlan) -> None:
        """Hold what a receipt says of the training of its flow against that training. Raises: ReceiptRefusal.

        A flow that was not trained here has nothing to be held against. A site whose ledger began anew may have
        forgotten what it was charged for; its charge is counted there as a lost one.
        """
        flow = self._boxes.flow(plan.flow) if plan.flow else None
        if flow is None:
            return
        said = receipt.trained
        if not said:
            *_, begun_anew = self._store.witnessed(receipt.site)
            if flow.sites.get(receipt.site, {}).get("answered") and not begun_anew:
                raise ReceiptRefusal(
                    "a receipt of a site that trained the plan's flow must name its charge for that", given="none"
                )
            return
        for name in ("plan_hash", "rounds", "delta", "epsilon"):
            stated, true = said[name], getattr(flow, name)
            same = math.isclose(stated, true, rel_tol=1e-9) if isinstance(true, float) else stated == true
            if not same:
                raise ReceiptRefusal(f"a receipt's {name} of the training must be the training's", given="another")

    def require_once(self, receipt: Receipt, plan: StudyPlan) -> None:
        """Hold a release that was acknowledged before a restore against what its site has delivered since, if it has.

        It was held against all others then, but not against these. The cap is the widest that any version gave: an
        honest ledger was within the one of its day. Raises: as `require_history`.
        """
        if self._watch.went_on(receipt.site, receipt.study):
            versions = [stored.plan for stored in self._store.plans() if stored.plan.study == receipt.study]
            self.require_history(receipt, plan, cap=max(one.budget.epsilon for one in versions))

    def require_history(self, receipt: Receipt, plan: StudyPlan, *, cap: float | None = None) -> None:
        """Hold a release against those that arrived here before. Raises: BudgetRefusal, ReceiptRefusal.

        Args:
            cap: ε; the plan's where none is given.

        Their total is a lower bound of what the site has charged (`least_total`): what it never sent is not known here.
        """
        from shared.privacy import accountant as privacy
        from shared.privacy.composition import least_total
        from shared.releases.receipt import given, planned_event

        earlier = self._store.charged(receipt.study, receipt.site)
        earlier.pop(receipt.release_id, None)
        # Each version is looked up once, however many releases were drawn under it.
        numbers = {version for version, _ in earlier.values()}
        versions = {version: self._store.plan(receipt.study, version).plan for version in numbers}
        # Of what was set apart nobody here read the receipt: it may have been drawn through an earlier release's flow.
        charges = [
            (plan, privacy.from_canonical(receipt.event)),
            *(
                (
                    before,
                    privacy.from_canonical(release.receipt.event) if release else planned_event(before, reused=True),
                )
                for before, release in ((versions[version], release) for version, release in earlier.values())
            ),
        ]
        self._require_training_charged(receipt, plan, [release for _, release in earlier.values() if release])
        least, cap = least_total(charges, plan.budget.delta), plan.budget.epsilon if cap is None else cap
        if least > cap * (1 + 1e-9):
            condition = all_given((least, given(charged)) for charged, event in charges if privacy.guaranteed(event))
            raise BudgetRefusal(
                f"all that a site delivered must be within the plan's cap of ε = {shown_epsilon(cap)}",
                given=f"{shown_price(least, condition)} for {len(charges)} releases",
                next_step="The site's ledger may be an old copy: site-agent ledger recover.",
            )
        if len(receipt.previous) != 64 or set(receipt.previous) - set("0123456789abcdef"):
            raise ReceiptRefusal("a receipt's previous must be a SHA-256", given="another form")
        # Receipts of one ledger form a chain. Links that were never sent are missing here; a fork is not explained by
        # that, but by a ledger that the study lead has let begin anew since.
        forks = [
            release
            for _, release in earlier.values()
            if release is not None
            and release.receipt.previous == receipt.previous
            and release.log_index > self._store.began_anew(receipt.site)
        ]
        if forks:
            raise ReceiptRefusal(
                "a receipt must follow the site's last one",
                given="one that another release of the site follows already",
                next_step="The site's ledger may be an old copy: site-agent ledger recover.",
            )

    def _require_training_charged(self, receipt: Receipt, plan: StudyPlan, earlier: Sequence[AcceptedRelease]) -> None:
        """Hold a release that was charged without a training against the one that fitted its flow.

        Raises: StateRefusal (that release has not arrived here: nothing is wrong with these bytes), ReceiptRefusal.
        """
        training = charged_training(plan)
        if training is None or training in receipt.event.get("events", ()):
            return
        fitted = [release.receipt for release in earlier if release.release_id == receipt.flow_of]
        if not fitted:
            raise StateRefusal(
                "the release that was charged for the training of this one's flow must arrive before it",
                given="one that has not",
                next_step="Ask the site to deliver that release first.",
            )
        if not any(training in found.event.get("events", ()) for found in fitted):
            raise ReceiptRefusal(
                "a release that is not charged for the training of its flow must name the release that was",
                given="one that was not charged for this training",
            )

    def _set_apart(self, part: Path, statement: Statement, envelope: Envelope, refusal: Refusal) -> None:
        with suppress(RateRefusal):
            self._refused.take(statement.site)
        reach("ingest.before_quarantine")
        os.replace(part, self._staging.quarantine / f"{statement.bundle_sha256}.zip")
        reach("ingest.quarantine_moved")
        fsync_folder(self._staging.quarantine)
        self._store.quarantine(statement=statement, envelope=envelope, refusal=refusal, today=self._today())
        reach("ingest.quarantine_committed")
        part.with_suffix(".json").unlink(missing_ok=True)
        part.with_suffix(".opened").unlink(missing_ok=True)
        reach("ingest.quarantined")
        self._staging.expire_refused()
