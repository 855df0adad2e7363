"""Actions of the airlock's forms: each calls the function of a command, signed with the key of the typed passphrase."""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Any

from shared.errors import ApprovalRefusal, PlanChanged, UsageRefusal
from site_agent.show.page.frame import Frame
from site_agent.show.page.works import Works

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.requests import Request

    from site_agent.desk import Desk

__all__ = ["Decisions"]


class Decisions(Frame):
    """Decisions about releases, plans, approvals in advance and the pause; each returns the address to look at next."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.works = Works()

    # -- releases -----------------------------------------------------------------------------------------------
    def approve(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Sign the bytes that were shown, and send them when enough people have."""
        from site_agent.decide.airlock import approval

        release_id = request.path_params["release_id"]
        # The digest that stood on the page: what is approved is what was read, whatever happened in between.
        if form.get("bundle_sha256") != desk.outbox.get(release_id).bundle_sha256:
            raise ApprovalRefusal("the bytes approved must be the bytes shown", given="another digest")
        after = approval.approve(
            desk,
            release_id,
            ticked=form.getlist("tick"),
            by=self.typed(desk, form),
            now=self.now,
        )
        return f"/release/{release_id}?done={'approved' if after.hold.state == 'delivered' else 'signed'}"

    def decline(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Reject a release for good, or send it back with a question."""
        from site_agent.decide.airlock import approval

        release_id, verb = request.path_params["release_id"], form.get("verb")
        if verb not in ("reject", "send-back"):
            raise UsageRefusal("a release must be rejected or sent back", given="neither")
        approval.decline(
            desk,
            release_id,
            reason=form.get("reason", ""),
            by=self.typed(desk, form),
            for_good=verb == "reject",
        )
        return f"/release/{release_id}?done=declined"

    def withdraw(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Take a release back that was approved or sent."""
        from site_agent.decide.airlock import taking_back

        release_id = request.path_params["release_id"]
        taking_back.withdraw(
            desk,
            release_id,
            reason_code=form.get("reason", ""),
            note=form.get("note", ""),
            by=self.typed(desk, form),
        )
        return f"/release/{release_id}?done=withdrawn"

    # -- plans --------------------------------------------------------------------------------------------------
    def fetch_plan(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Fetch the newest plan of a study, and verify who signed it."""
        study = form.get("study", "")
        with desk.egress() as egress:
            envelope = egress.fetch_plan(study)
        desk.plans.receive(study, envelope, today=self.today())
        return "/plans?done=fetched"

    def approve_plan(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Approve the plan that was shown."""
        from site_agent.decide.airlock import plan_approval

        name, now = form.get("name", ""), self.now
        asking = plan_approval.plan_to_approve(desk, request.path_params["study"], name=name, today=now.today)
        if form.get("plan_hash") != asking.plan.hash:
            raise PlanChanged(
                "the plan approved must be the plan shown", given="another one", next_step="Read the new one first."
            )
        plan_approval.approve_plan(
            desk,
            asking,
            understood=form.get("understood") == asking.plan.posture,
            by=self.typed(desk, form),
            now=now,
            reason=form.get("reason", ""),
        )
        return "/plans?done=plan"

    def revoke_plan(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Take the approval of a plan back."""
        from site_agent.decide.airlock import standing_approval, taking_back

        name, reason = form.get("name", ""), form.get("reason", "")
        desk.config.approver_key(name)
        study = request.path_params["study"]
        taking_back.revoke_plan(desk, study, reason=reason, by=self.typed(desk, form))
        standing_approval.deliver_revocations(desk)
        return "/plans?done=revoked"

    def rehearse(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Begin a rehearsal on made-up data."""
        from site_agent.release.pipeline.rehearsal import rehearse

        plan = desk.plans.plan(request.path_params["study"])
        self.works.start(
            "rehearsal",
            plan.study,
            lambda tell: rehearse(
                plan=plan,
                folder=desk.home / "rehearsal" / plan.study,
                name=desk.config.site,
                agent_version=self.agent_version,
                floors=desk.config.floors,
                today=self.today(),
                progress=tell,
                home=desk.home,
            ),
        )
        return "/work"

    def make_release(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Begin the release of one wave, as the approver who can open the key that is named."""
        from site_agent.decide.airlock import drawing

        wave, now = form.get("wave", ""), self.now
        if not wave.isdigit():
            raise UsageRefusal("a wave must be named by its number", given=repr(wave))
        wanted = drawing.wanted(
            desk,
            request.path_params["study"],
            wave=int(wave),
            by=form.get("name", ""),
            now=now,
        )
        self.typed(desk, form).open_key()  # only who can open the key may be named as the author

        def run(tell: Any) -> Any:
            return drawing.draw(desk, wanted, now=now, progress=tell).made.hold

        self.works.start("release", wanted.plan.study, run)
        return "/work"

    def sign_standing(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Sign in advance for later releases within limits."""
        from site_agent.decide.airlock import standing_approval

        try:
            limit, until = float(form.get("max_epsilon", "").replace(",", ".")), form.get("until", "")
            last = dt.date.fromisoformat(until)
        except ValueError:
            limit, last = math.nan, dt.date.min
        if math.isnan(limit):
            raise UsageRefusal("limits must be a number and a day", given="something else")
        standing_approval.sign_standing(
            desk,
            request.path_params["study"],
            max_epsilon=limit,
            until=last,
            by=self.typed(desk, form),
            now=self.now,
        )
        return "/plans?done=standing"

    def revoke_standing(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """End an approval in advance."""
        from site_agent.decide.airlock import standing_approval

        reason = form.get("reason", "")
        digest = request.path_params["digest"]
        standing_approval.revoke_standing(desk, digest, reason=reason, by=self.typed(desk, form))
        standing_approval.deliver_revocations(desk)
        return "/plans"

    # -- the switch ---------------------------------------------------------------------------------------------
    def pause(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Stop the site at once. Stopping asks nobody who they are; starting again does."""
        from site_agent.decide.airlock import switch

        switch.pause(desk, "on the page")
        return "/"

    def resume(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Let the site go on."""
        from site_agent.decide.airlock import switch

        switch.resume(desk, reason="on the page", by=self.typed(desk, form))
        return "/"

    def logout(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """End this browser's session."""
        self.gate.leave(request.cookies.get(self.gate.cookie, ""))
        return "/login"
