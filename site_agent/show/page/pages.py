"""`site-agent page`: the airlock in a browser, for people who do not live in a terminal.

The page decides nothing of its own: every button is the function that the command calls, and every figure is read from
ledger, outbox and plans at the moment of asking.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from shared.errors import CATALOGUE
from site_agent.show.page.decisions import Decisions
from site_agent.show.page.entering import Entering
from site_agent.show.page.language import Language, marked
from site_agent.show.page.tables import Tables

if TYPE_CHECKING:
    from starlette.requests import Request

    from site_agent.desk import Desk
    from site_agent.show.page.access import Session

__all__ = ["AirlockPages"]

ROWS = 50
CHARGES = {
    "held": marked("reserved"),
    "sealed": marked("sealed"),
    "delivered": marked("delivered"),
    "burnt": marked("burnt, stays charged"),
}
STATES = {
    "held": marked("waits for approval"),
    "sent_back": marked("sent back"),
    "approved": marked("approved"),
    "delivered": marked("delivered"),
    "rejected": marked("rejected"),
    "withdrawn": marked("withdrawn"),
    "burnt": marked("burnt"),
    "sealed": marked("sealed"),
}
OUTCOMES = {
    "passed": marked("passed"),
    "warning": marked("warning"),
    "failed": marked("failed"),
    "note": marked("note"),
}
REASONS = {
    "consent": marked("consent withdrawn"),
    "error": marked("an error"),
    "policy": marked("a rule of this site"),
    "other": marked("another reason"),
}
KINDS = {
    "continuous": marked("number"),
    "integer": marked("whole number"),
    "binary": marked("two levels"),
    "ordered": marked("levels in order"),
    "nominal": marked("levels without an order"),
    "time": marked("follow-up time"),
    "event": marked("event"),
    "person": marked("person"),
}
MISSING = {
    "refuse": marked("none allowed"),
    "level": marked("released as a level"),
    "complete_case": marked("row left out"),
}
NOTICES = {
    "approved": marked("Signed and sent. The coordinator has accepted these bytes."),
    "signed": marked("Signed. It waits for another approver."),
    "withdrawn": marked("Withdrawn. It is not sent from now on."),
    "declined": marked("Noted in the ledger."),
    "made": marked("Drawn and sealed. It is held here; nothing has been sent."),
    "fetched": marked("Fetched and verified. Nothing is done by it before it is approved here."),
    "plan": marked("The plan is approved."),
    "revoked": marked("The approval is taken back."),
    "standing": marked("Signed in advance."),
}
STAGES = {
    "rehearsal": marked("Rehearsal of %(study)s on made-up data"),
    "release": marked("Release of %(study)s"),
}


class AirlockPages(Entering, Tables, Decisions):
    """The pages of one site: what each address shows; what each form does is `Decisions`, `Entering` and `Tables`."""

    def application(self) -> Starlette:
        """The application that answers."""
        shown = {
            "/": self._outbox,
            "/budget": self._budget,
            "/plans": self._plans,
            "/audit": self._audit,
            "/work": self._work,
            "/start": self.start,
            "/data": self.tables,
            "/data/{study}": self.table,
            "/release/{release_id}": self._release,
            "/release/{release_id}/preview": self._preview,
        }
        decided = {
            "/logout": self.logout,
            "/pause": self.pause,
            "/resume": self.resume,
            "/start/make": self.make,
            "/start/join": self.join,
            "/standing/{digest}/revoke": self.revoke_standing,
            "/plans/fetch": self.fetch_plan,
            "/plans/{study}/approve": self.approve_plan,
            "/plans/{study}/revoke": self.revoke_plan,
            "/plans/{study}/rehearse": self.rehearse,
            "/plans/{study}/release": self.make_release,
            "/plans/{study}/standing": self.sign_standing,
            "/data/{study}/file": self.place,
            "/data/{study}/map": self.map,
            "/release/{release_id}/approve": self.approve,
            "/release/{release_id}/decline": self.decline,
            "/release/{release_id}/withdraw": self.withdraw,
        }
        return Starlette(
            routes=[
                Route("/style.css", self.css),
                Route("/login", self.login, methods=["GET", "POST"]),
                Route("/language", self.choose, methods=["POST"]),
                *(Route(path, self.seen(view)) for path, view in shown.items()),
                *(Route(path, self.done(decision), methods=["POST"]) for path, decision in decided.items()),
            ],
            exception_handlers={404: self._not_found},
        )

    def running(self, lang: Language) -> str:
        """The work in the background, in words."""
        work = self.works.running
        return "" if work is None else f"{lang(STAGES[work.kind], study=work.study)}: {work.share:.0%}"

    # -- pages --------------------------------------------------------------------------------------------------
    def _outbox(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        rows = list(reversed(desk.outbox.list()))
        waiting = sum(hold.state in ("held", "sent_back") for hold in rows)
        return self.draw(
            "outbox.html", desk, session, lang, here="/", rows=rows, waiting=waiting, words=_translated(STATES, lang)
        )

    def _release(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        number = request.query_params.get("page", "1")
        release_id = request.path_params["release_id"]
        values = _release_values(desk, release_id, int(number) if number.isdigit() else 1)
        return self.draw(
            "release.html",
            desk,
            session,
            lang,
            here="/",
            address=f"/release/{release_id}",
            done=_notice(request, lang),
            reasons=_translated(REASONS, lang),
            words=_translated(STATES, lang),
            outcomes=_translated(OUTCOMES, lang),
            **values,
        )

    def _preview(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        from site_agent.decide.airlock import approval
        from site_agent.show import preview

        release_id = request.path_params["release_id"]
        made = approval.shown(desk, release_id)
        plan = desk.plans.plan(made.hold.study, made.receipt.plan_version)
        columns = plan.dictionary.released if plan.release.draws_rows else ()
        real = preview.real_rows(desk, made, plan) if columns else None
        margins: list[preview.ReleasedMargin] = []
        planned: tuple[preview.PlannedTerm, ...] = ()
        if real is not None:
            margins = [preview.margin(one, real.table[one.name], made.table[one.name]) for one in columns]
            planned = preview.planned_terms(plan, real.table, made.table)
        return self.draw(
            "preview.html",
            desk,
            session,
            lang,
            here="/",
            address=f"/release/{release_id}/preview",
            hold=made.hold,
            same=real is None or real.same,
            real_rows=0 if real is None else len(real.table),
            rows=len(made.table),
            margins=margins,
            planned=planned,
        )

    def _budget(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        from site_agent.decide.airlock import overview

        lines = desk.ledger.statement()
        studies = []
        for total in overview.totals(desk):
            mine = [line for line in lines if line.study == total["study"]]
            cap = total["cap"] or 0.0
            studies.append(
                {
                    "total": {**total, "cap": cap},
                    "left": None if total["epsilon"] is None else max(0.0, cap - total["epsilon"]),
                    "filled": 0
                    if total["epsilon"] is None
                    else round(1000 * min(1.0, total["epsilon"] / cap if cap else 1.0)),
                    "lines": mine,
                    "uncovered": list(dict.fromkeys(text for line in mine for text in line.uncovered)),
                }
            )
        states = _translated(CHARGES, lang)
        return self.draw(
            "budget.html", desk, session, lang, here="/budget", address="/budget", studies=studies, states=states
        )

    def _plans(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        from site_agent.decide.airlock import plan_approval, standing_approval
        from site_agent.decide.plan_facts import charged_words, due_numbers, plan_facts

        today, found = self.today(), []
        for study in desk.plans.studies():
            plan = desk.plans.plan(study)
            own = {"asks_tick": plan_approval.asks_tick(plan), "due": due_numbers(desk, plan, today)}
            found.append({**plan_facts(desk, plan, today), **own})
        return self.draw(
            "plans.html",
            desk,
            session,
            lang,
            here="/plans",
            address="/plans",
            done=_notice(request, lang),
            grants=[
                (study, granted)
                for study, granted in sorted(desk.ledger.membership().studies.items())
                if not (granted and desk.ledger.in_force(study))  # an approved plan is shown as such
            ],
            plans=found,
            studies=sorted({*desk.config.studies, *desk.plans.studies()}),
            missing=_translated(MISSING, lang),
            kinds=_translated(KINDS, lang),
            standing=standing_approval.standing_lines(desk, today),
            charged_words=charged_words,
        )

    def _audit(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        from site_agent.decide.airlock import overview
        from site_agent.show import export

        rows = overview.history(desk)[::-1]
        meanings = {code: kind.meaning for code, kind in CATALOGUE.items()}
        return self.draw(
            "audit.html",
            desk,
            session,
            lang,
            here="/audit",
            address="/audit",
            found=export.verify(desk),
            rows=rows,
            meanings=meanings,
        )

    def _work(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        work = self.works.last
        if work is None:
            return RedirectResponse("/plans", status_code=303)
        over = work.over.is_set()
        if over and work.refusal is not None:
            return self.refused(desk, session, lang, work.refusal, "/plans")
        if over and work.kind == "release":
            # An approval in advance may have signed it, and sent it, too.
            done = {"held": "?done=made", "delivered": "?done=approved"}.get(work.outcome.state, "")
            return RedirectResponse(f"/release/{work.outcome.release_id}{done}", status_code=303)
        return self.draw(
            "work.html",
            desk,
            session,
            lang,
            here="/plans",
            address="/work",
            refresh=0 if over else 3,
            title=lang(STAGES[work.kind], study=work.study),
            work=work,
            over=over,
        )

    def _missing(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        return self.draw("missing.html", desk, session, lang, status=404)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        return await self.seen(self._missing)(request)


def _translated(words: Mapping[str, str], lang: Language) -> dict[str, str]:
    return {key: lang(text) for key, text in words.items()}


def _notice(request: Request, lang: Language) -> str:
    """Confirmation of the action that was just taken, by ``done`` in the address; blank without one."""
    said = NOTICES.get(request.query_params.get("done", ""))
    return "" if said is None else lang(said)


def _release_values(desk: Desk, release_id: str, page: int) -> Mapping[str, Any]:
    """Values of a release's page, read back from the sealed bytes."""
    import pandas as pd

    from site_agent.decide.airlock import approval, overview
    from site_agent.decide.plan_facts import plan_changes
    from site_agent.show.screens import cell

    made = approval.shown(desk, release_id)
    hold = made.hold
    rows = len(made.table)
    pages = max(1, math.ceil(rows / ROWS))
    page = min(max(1, page), pages)
    first = (page - 1) * ROWS
    part = made.table.iloc[first : first + ROWS]
    plan = desk.plans.plan(hold.study, made.receipt.plan_version)
    return {
        "hold": hold,
        "receipt": made.receipt,
        "draws_rows": plan.release.draws_rows,
        "figures": made.holds_figures,
        "rows": rows,
        "columns": list(made.table.columns),
        "numeric": {c for c in made.table.columns if pd.api.types.is_numeric_dtype(made.table[c].dtype)},
        "table": [[cell(value) for value in row] for row in part.itertuples(index=False)],
        "first": first + 1,
        "last": first + len(part),
        "page": page,
        "pages_of_rows": pages,
        "checks": made.checks,
        "warnings": made.warnings,
        "sentences": list(made.audit.get("sentences", ())),
        "planned": overview.planned(plan, made),
        "changes": plan_changes(desk, made),
        "earlier": overview.compare(desk, made),
        "approvers": [name for name in desk.config.approvers if not (hold.author_apart and name == hold.author)],
        "untold": hold.left and hold.withdrawal is not None and not hold.withdrawal.settled,
    }
