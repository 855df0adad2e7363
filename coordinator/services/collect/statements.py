"""Checks that need a signed statement alone: its signatures, the plan and wave it acts upon, the approvals it has."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import TypeVar

from coordinator.services.membership import Members
from coordinator.store.log_watch import LogWatch
from coordinator.store.releases import require_kept
from coordinator.store.store import RegisteredSite, Store
from shared.base.keys import Envelope
from shared.errors import (
    ApprovalRefusal,
    PlanChanged,
    PlanRefusal,
    ReplayRefusal,
    RoleRefusal,
    SchemaRefusal,
    TooLarge,
)
from shared.plans.plan import StudyPlan
from shared.plans.standing import STANDING_TYPE, broken_limit, open_standing
from shared.releases.receipt import Receipt
from shared.releases.statement import AGENT, STATEMENT_TYPE, Statement
from shared.wire.site_messages import Acceptance

__all__ = ["StatementRules", "canonical_envelope"]

T = TypeVar("T")


class StatementRules:
    """The rules that an offered statement is held to, before a byte of its bundle is taken and again at the commit.

    Args:
        store: the coordinator's store.
        members: the sites' signed keys and approvers.
        watch: releases that sites have shown to be acknowledged here before they were lost.
        coordinator: its name.
        max_bundle: most bytes of one release.
        today: gives the UTC date.
    """

    def __init__(
        self,
        store: Store,
        members: Members,
        watch: LogWatch,
        *,
        coordinator: str,
        max_bundle: int,
        today: Callable[[], dt.date],
    ) -> None:
        self._store, self._members, self._watch = store, members, watch
        self._coordinator, self._max_bundle, self._today = coordinator, max_bundle, today

    def invited(self, site: RegisteredSite, study: str) -> None:
        """Raises: RoleRefusal, unless the lead has invited the site to the study."""
        if study not in site.studies:
            raise RoleRefusal("the site must be invited to the study", given=study, next_step="Ask the study lead.")

    def answered_or(
        self, site: RegisteredSite, statement: Statement, decided: Callable[[], T]
    ) -> tuple[Acceptance, None] | tuple[None, T]:
        """The acceptance that these bytes got before, or else what is `decided` of them, as of the same moment.

        Raises: what they got before, if it was a refusal of their content; what `decided` raises.
        """

        def work(_: object) -> tuple[Acceptance, None] | tuple[None, T]:
            known = self._store.accepted(statement)
            if known is not None:
                return known, None
            for apart in self._store.quarantined(bundle_sha256=statement.bundle_sha256, site=site.site):
                raise apart.refusal
            return None, decided()

        return self._store.read(work)

    def signed(self, site: RegisteredSite, envelope: Envelope) -> Statement:
        """The statement, when this site's release key signed it and it is about this site and this coordinator."""
        release_key = {site.release_key.key_id: site.release_key}
        approvers = {key.key_id: key for key in site.approvers.values()}
        if not envelope.verified_by(release_key) and envelope.verified_by(approvers):
            raise RoleRefusal("a release must be signed by the site's release key", given="an approver's key only")
        statement = Statement.from_bytes(envelope.require(STATEMENT_TYPE, release_key))
        for name, expected in (("site", site.site), ("recipient", self._coordinator)):
            if getattr(statement, name) != expected:
                raise ReplayRefusal(f"the statement's {name} must be this {name}", given="another")
        if statement.bundle_bytes > self._max_bundle:
            raise TooLarge(f"a bundle must have at most {self._max_bundle} bytes", given=f"{statement.bundle_bytes}")
        if statement.bundle_bytes < 1 or len(statement.bundle_sha256) != 64 or not statement.release_id.isalnum():
            raise SchemaRefusal("a statement must name a release id, and its bundle by size and SHA-256")
        return statement

    def planned(
        self, site: RegisteredSite, statement: Statement, envelope: Envelope, standing: Envelope | None
    ) -> StudyPlan:
        """The plan the statement acts upon: known, newest, in force, its wave open, its approvals given."""
        self.invited(site, statement.study)
        self._store.read(lambda c: require_kept(c, plans=[statement.plan_hash]))
        if self.acknowledged(statement):
            return self._as_acknowledged(site, statement, envelope, standing)
        newest = self._store.plan(statement.study).plan
        if statement.plan_hash != newest.hash or statement.plan_version != newest.version:
            known = {stored.plan.hash for stored in self._store.plans()}
            if statement.plan_hash in known:
                raise PlanChanged(
                    f"a release must follow plan version {newest.version}",
                    given=f"version {statement.plan_version}",
                    next_step=f"Run site-agent plan fetch {statement.study}, then site-agent plan show.",
                )
            raise PlanRefusal("a release must follow a plan that the coordinator knows", given="another hash")
        newest.require_current(self._today())
        wave = newest.wave(statement.wave)
        if self._today() + dt.timedelta(days=1) < wave.opens:  # a site's clock and zone may be a day ahead
            raise PlanRefusal("a wave must be open", given=f"wave {wave.number}, which opens on {wave.opens}")
        approvers = {key.key_id: key for key in site.approvers.values()}
        signers = envelope.verified_by(approvers)
        if newest.floors.approval == "before" and standing is None:
            raise ApprovalRefusal(
                "a release of this plan must be approved before it is drawn",
                given="no standing approval",
                next_step="Run site-agent standing add, then site-agent run.",
            )
        if standing is not None:
            signers |= {self._stands(site, statement, newest, standing)}
        signed = {name for name, key in site.approvers.items() if key.key_id in signers}
        # A deputy signs in the place of another approver: the two together are one.
        stands_in = self._members.stands_in(site.site) if len(signed) > 1 else {}
        approved = len({stands_in.get(name, name) for name in signed})
        if newest.floors.author_apart and statement.author != AGENT:
            author = site.approvers.get(statement.author)
            if author is None or author.key_id in signers:
                raise ApprovalRefusal(
                    "whoever had the release made must be an approver of the site and must not approve it",
                    given=f"author {statement.author!r}",
                    next_step="Another approver of the site decides.",
                )
        if approved < newest.floors.approvals:
            raise ApprovalRefusal(
                f"a release must be signed by {newest.floors.approvals} approver(s) of the site",
                given=f"{approved}",
                next_step="Approve it (site-agent approve) with a key that was named when the site joined.",
            )
        return newest

    def acknowledged(self, statement: Statement) -> bool:
        """True if the site has shown this coordinator's own word that it once accepted these bytes."""
        return self._watch.acknowledged(statement.site, statement.bundle_sha256)

    def _as_acknowledged(
        self, site: RegisteredSite, statement: Statement, envelope: Envelope, standing: Envelope | None
    ) -> StudyPlan:
        """The plan of a release that was accepted here before a backup was put back, which may be an older one now.

        Days, limits and budgets were held against it then. Raises: PlanRefusal, ApprovalRefusal.
        """
        plan = self._store.plan(statement.study, statement.plan_version).plan
        if plan.hash != statement.plan_hash:
            raise PlanRefusal(
                f"version {statement.plan_version} of the plan must be the one that the release was drawn under",
                given="another",
                next_step="The study lead signs that version again: coordinator plan sign.",
            )
        approvers = {key.key_id: key for key in site.approvers.values()}
        signers = envelope.verified_by(approvers)
        if standing is not None and standing.payload_type == STANDING_TYPE:
            signers |= standing.verified_by(approvers)
        if len(signers) < plan.floors.approvals:
            raise ApprovalRefusal(
                f"a release must be signed by {plan.floors.approvals} approver(s) of the site", given=f"{len(signers)}"
            )
        return plan

    def _stands(self, site: RegisteredSite, statement: Statement, plan: StudyPlan, envelope: Envelope) -> str:
        """Handle of the approver whose standing approval is good for this statement, as far as that says.

        Raises: SignatureRefusal, ReplayRefusal, ApprovalRefusal.
        """
        if not plan.floors.standing:
            raise _not_standing("the plan must allow a standing approval")
        standing = open_standing(envelope, site.approvers)
        if (standing.site, standing.study) != (site.site, statement.study):
            raise ReplayRefusal("a standing approval must be of the calling site and this study", given="another")
        if self._store.standing_revoked(site.site, envelope.digest):
            raise _not_standing("it must not have been revoked")
        limit = broken_limit(
            standing, plan_hash=statement.plan_hash, today=self._today(), epsilon=None, n=None, last_n=None
        )
        if limit:
            raise _not_standing(limit)
        return site.approvers[standing.approver].key_id

    def require_size(self, site: RegisteredSite, receipt: Receipt, envelope: Envelope, plan: StudyPlan) -> None:
        """The limits of a standing approval that only the bundle shows. Raises: ApprovalRefusal.

        The content is whole and may still be approved by a person: it is not set apart.
        """
        approvers = {key.key_id: key for key in site.approvers.values()}
        earlier = [
            one
            for one in self._store.releases(receipt.study, site=site.site)
            if not one.withdrawn and one.envelope.verified_by(approvers)  # by hand: size must not creep wave by wave
        ]
        last = max(earlier, key=lambda one: one.log_index, default=None)
        ahead = plan.floors.approval == "before"
        standing = open_standing(envelope, site.approvers)
        limit = broken_limit(
            standing,
            plan_hash=receipt.plan_hash,
            today=self._today(),
            epsilon=math.inf if receipt.stated_epsilon is None else receipt.epsilon,
            n=None if ahead else receipt.n,
            last_n=None if last is None else last.n,
        )
        if not limit and receipt.agent_version != standing.agent_version:
            limit = "the agent's version must be the one it was signed for"
        if limit:
            raise _not_standing(limit)


def canonical_envelope(data: bytes) -> Envelope:
    """An envelope in its one form: base64 has several spellings of the same signature, and one is enough."""
    envelope = Envelope.from_bytes(data)
    if envelope.to_bytes() != data:
        raise SchemaRefusal("an envelope must be in canonical form", given="another form")
    return envelope


def _not_standing(limit: str) -> ApprovalRefusal:
    return ApprovalRefusal(
        "a standing approval must be good for the release",
        given=f"one that is not: {limit}",
        next_step="A person approves it at the site: site-agent approve.",
    )
