"""`site-agent page`: the airlock in a browser, for people who do not live in a terminal.

The page decides nothing of its own: every button is the function of `site_agent.decide.airlock` that the command
calls, and every figure is read from ledger, outbox and plans at the moment of asking. It binds to this machine's
loopback address and no other, asks for a password that the terminal shows and that works once, and loads nothing from
anywhere.

What an open port on one's own machine invites, and what stands against it: another site's script posting here (a
token in each form, `SameSite=Strict`, the `Origin` header); a name that is made to resolve to 127.0.0.1 (the `Host`
header); a script that found its way into a cell (autoescape, and a policy under which no script runs at all);
somebody else on the same machine (the password, and nothing is approved without the approver's own passphrase).
"""

from __future__ import annotations

import datetime as dt
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import ApprovalRefusal, Refusal, UsageRefusal
from shared.terminal import inert
from site_agent.show.access import Gate, KeyOpener, Session

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from shared.base.keys import SigningKey
    from site_agent.desk import Desk

__all__ = ["Gate", "application", "prepare", "serve"]

PAGES = Path(__file__).parent / "pages"
ROWS = 50
FORM_CAP = 16 << 10
LOOPBACK = ("127.0.0.1", "::1")
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not no-referrer: a browser would then send `Origin: null` with this page's own forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
STATES = {"held": "reserved", "sealed": "sealed", "delivered": "delivered", "burnt": "burnt, stays charged"}
MISSING = {"refuse": "none allowed", "level": "released as a level", "complete_case": "row left out"}


def application(
    open_desk: Callable[[], Desk],
    *,
    gate: Gate,
    hosts: tuple[str, ...],
    agent_version: str,
    today: Callable[[], dt.date],
) -> Starlette:
    """The pages of one site.

    Args:
        open_desk: opens the site's folder; called anew for each request, so that nothing shown is stale.
        gate: who is let in.
        hosts: the values of ``Host`` that are answered, with their port.
        agent_version: version of this software, for approvals.
        today: gives the UTC date.
    """
    import jinja2
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import QueryParams
    from starlette.middleware import Middleware
    from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Route

    from shared.base.clock import utc_now
    from shared.privacy import stated
    from site_agent.decide import reconciliation
    from site_agent.identity import ending

    opener = KeyOpener()

    def typed(desk: Desk, form: QueryParams) -> Callable[[], SigningKey]:
        return lambda: opener.opened(desk, form.get("name", ""), form.get("passphrase", ""))

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        finalize=inert,
    )
    templates.globals["stated"] = stated
    style = (PAGES / "style.css").read_text(encoding="utf-8")

    def draw(name: str, desk: Desk, session: Session | None, *, status: int = 200, **values: Any) -> HTMLResponse:
        common = {
            "site": desk.config.site,
            "session": session,
            "paused": desk.paused,
            "differing": reconciliation.sentence(reconciliation.noted(desk)) if session else "",
            "ending": ending(desk.config, utc_now()) if session else "",
            "everybody": tuple(desk.config.approvers),
            "here": "",
        }
        return HTMLResponse(templates.get_template(name).render({**common, **values}), status_code=status)

    def seen(view: Callable[[Desk, Session, Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """A page for people who are in; a refusal is a page too."""

        async def endpoint(request: Request) -> Response:
            session = gate.session(request.cookies.get(gate.cookie, ""))
            if session is None:
                return RedirectResponse("/login", status_code=303)

            def work() -> Response:
                desk = open_desk()
                try:
                    return view(desk, session, request)
                except Refusal as refusal:
                    back = "/" if request.url.path != "/" else "/audit"
                    return draw("refused.html", desk, session, status=409, refusal=refusal, back=back)

            return await run_in_threadpool(work)

        return endpoint

    def done(decide: Callable[[Desk, Request, QueryParams], str]) -> Callable[[Request], Awaitable[Response]]:
        """A form that changes something: only from this page, only with its token; then look at the result."""

        async def endpoint(request: Request) -> Response:
            session = gate.session(request.cookies.get(gate.cookie, ""))
            if session is None:
                return RedirectResponse("/login", status_code=303)
            form = await filled(request)
            if form is None or not secrets.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
                return PlainTextResponse("This form is not one of this page. Load the page again.", status_code=403)

            def work() -> Response:
                desk = open_desk()
                try:
                    return RedirectResponse(decide(desk, request, form), status_code=303)
                except Refusal as refusal:
                    release_id = request.path_params.get("release_id", "")
                    verb = form.get("verb") if form.get("verb") in ("reject", "send-back") else ""
                    verb = verb or request.url.path.rpartition("/")[2]
                    verb = "standing revoke" if "digest" in request.path_params else verb
                    desk.note_refusal(verb, refusal, release_id=release_id, who=form.get("name", ""))
                    back = f"/release/{release_id}" if release_id else "/"
                    return draw("refused.html", desk, session, status=409, refusal=refusal, back=back)

            return await run_in_threadpool(work)

        return endpoint

    async def filled(request: Request) -> QueryParams | None:
        """The fields of a form that this page sent; None for anything else."""
        origin = request.headers.get("origin")
        if origin is not None and origin not in [f"http://{host}" for host in hosts]:
            return None
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return None
        if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
            return None
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > FORM_CAP:
                return None
        return QueryParams(body)

    # -- in and out ---------------------------------------------------------------------------------------------
    async def login(request: Request) -> Response:
        wrong = False
        if request.method == "POST":
            form = await filled(request)
            if form is None:
                return PlainTextResponse("This form is not one of this page. Load the page again.", status_code=403)
            cookie = gate.enter(form.get("password", ""))
            if cookie is not None:
                answer = RedirectResponse("/", status_code=303)
                answer.set_cookie(gate.cookie, cookie, httponly=True, samesite="strict", path="/")
                return answer
            wrong = True
        return draw("login.html", open_desk(), None, wrong=wrong, status=401 if wrong else 200)

    def logout(desk: Desk, request: Request, form: QueryParams) -> str:
        gate.leave(request.cookies.get(gate.cookie, ""))
        return "/login"

    async def css(request: Request) -> Response:
        return Response(style, media_type="text/css")

    # -- pages --------------------------------------------------------------------------------------------------
    def outbox(desk: Desk, session: Session, request: Request) -> Response:
        rows = list(reversed(desk.outbox.list()))
        waiting = sum(hold.state in ("held", "sent_back") for hold in rows)
        return draw("outbox.html", desk, session, here="/", rows=rows, waiting=waiting)

    def release(desk: Desk, session: Session, request: Request) -> Response:
        from shared.wire.signed_messages import REASONS

        number = request.query_params.get("page", "1")
        said = request.query_params.get("done", "")
        values = _release_values(desk, request.path_params["release_id"], int(number) if number.isdigit() else 1)
        notices = {
            "approved": "Signed and sent. The coordinator has accepted these bytes.",
            "signed": "Signed. It waits for another approver.",
            "withdrawn": "Withdrawn. It is not sent from now on.",
            "declined": "Noted in the ledger.",
        }
        return draw("release.html", desk, session, here="/", done=notices.get(said, ""), reasons=REASONS, **values)

    def budget(desk: Desk, session: Session, request: Request) -> Response:
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
        return draw("budget.html", desk, session, here="/budget", studies=studies, states=STATES)

    def plans(desk: Desk, session: Session, request: Request) -> Response:
        from site_agent.decide.airlock import standing_approval
        from site_agent.decide.plan_facts import plan_facts
        from site_agent.show.screens import charged_words

        found = [plan_facts(desk, desk.plans.plan(study), today()) for study in desk.plans.studies()]
        standing = standing_approval.standing_lines(desk, today())
        return draw(
            "plans.html",
            desk,
            session,
            here="/plans",
            grants=sorted(desk.ledger.membership().studies.items()),
            plans=found,
            missing=MISSING,
            standing=standing,
            charged_words=charged_words,
        )

    def audit(desk: Desk, session: Session, request: Request) -> Response:
        from site_agent.decide.airlock import overview
        from site_agent.show import export

        return draw(
            "audit.html", desk, session, here="/audit", found=export.verify(desk), rows=overview.history(desk)[::-1]
        )

    def missing(desk: Desk, session: Session, request: Request) -> Response:
        return draw("missing.html", desk, session, status=404)

    # -- decisions ----------------------------------------------------------------------------------------------
    def approve(desk: Desk, request: Request, form: QueryParams) -> str:
        from site_agent.decide.airlock import approval

        release_id = request.path_params["release_id"]
        # The digest that stood on the page: what is approved is what was read, whatever happened in between.
        if form.get("bundle_sha256") != desk.outbox.get(release_id).bundle_sha256:
            raise ApprovalRefusal("the bytes approved must be the bytes shown", given="another digest")
        name = form.get("name", "")
        after = approval.approve(
            desk,
            release_id,
            name=name,
            ticked=form.getlist("tick"),
            open_key=typed(desk, form),
            agent_version=agent_version,
            today=today(),
        )
        return f"/release/{release_id}?done={'approved' if after.hold.state == 'delivered' else 'signed'}"

    def decline(desk: Desk, request: Request, form: QueryParams) -> str:
        from site_agent.decide.airlock import approval

        release_id, name, verb = request.path_params["release_id"], form.get("name", ""), form.get("verb")
        if verb not in ("reject", "send-back"):
            raise UsageRefusal("a release must be rejected or sent back", given="neither")
        approval.decline(
            desk,
            release_id,
            name=name,
            reason=form.get("reason", ""),
            open_key=typed(desk, form),
            for_good=verb == "reject",
        )
        return f"/release/{release_id}?done=declined"

    def withdraw(desk: Desk, request: Request, form: QueryParams) -> str:
        from site_agent.decide.airlock import taking_back

        release_id, name = request.path_params["release_id"], form.get("name", "")
        taking_back.withdraw(
            desk,
            release_id,
            name=name,
            reason_code=form.get("reason", ""),
            note=form.get("note", ""),
            open_key=typed(desk, form),
        )
        return f"/release/{release_id}?done=withdrawn"

    def pause(desk: Desk, request: Request, form: QueryParams) -> str:
        from site_agent.decide.airlock import switch

        # Stopping asks nobody who they are; starting again does.
        switch.pause(desk, "on the page")
        return "/"

    def resume(desk: Desk, request: Request, form: QueryParams) -> str:
        from site_agent.decide.airlock import switch

        name = form.get("name", "")
        switch.resume(desk, name=name, reason="on the page", open_key=typed(desk, form))
        return "/"

    def revoke(desk: Desk, request: Request, form: QueryParams) -> str:
        from site_agent.decide.airlock import standing_approval

        name = form.get("name", "")
        digest = request.path_params["digest"]
        standing_approval.revoke_standing(
            desk, digest, name=name, reason=form.get("reason", ""), open_key=typed(desk, form)
        )
        standing_approval.deliver_revocations(desk)
        return "/plans"

    async def not_found(request: Request, error: Exception) -> Response:
        return await seen(missing)(request)

    return Starlette(
        routes=[
            Route("/style.css", css),
            Route("/login", login, methods=["GET", "POST"]),
            Route("/logout", done(logout), methods=["POST"]),
            Route("/", seen(outbox)),
            Route("/budget", seen(budget)),
            Route("/plans", seen(plans)),
            Route("/audit", seen(audit)),
            Route("/pause", done(pause), methods=["POST"]),
            Route("/resume", done(resume), methods=["POST"]),
            Route("/standing/{digest}/revoke", done(revoke), methods=["POST"]),
            Route("/release/{release_id}", seen(release)),
            Route("/release/{release_id}/approve", done(approve), methods=["POST"]),
            Route("/release/{release_id}/decline", done(decline), methods=["POST"]),
            Route("/release/{release_id}/withdraw", done(withdraw), methods=["POST"]),
        ],
        middleware=[Middleware(_Guard, hosts=hosts)],
        exception_handlers={404: not_found},
    )


def prepare(
    open_desk: Callable[[], Desk],
    *,
    listen: str,
    port: int,
    agent_version: str,
    today: Callable[[], dt.date],
    announce: Callable[[str, str], None],
) -> tuple[uvicorn.Server, Any]:
    """A server, not yet running, and the bound socket it runs on: ``server.run(sockets=[socket])``.

    Args:
        listen: a loopback address.
        port: 0 takes a free one.
        announce: called with the address and each new password.
    Raises: UsageRefusal: not a loopback address, or the port is taken.
    """
    import uvicorn

    if listen not in LOOPBACK:
        raise UsageRefusal(
            "the page must be served to this machine only",
            given=repr(listen),
            next_step=f"--listen takes {' or '.join(LOOPBACK)}. From afar, use your hospital's remote desktop or ssh.",
        )
    settings = uvicorn.Config(
        "",
        host=listen,
        port=port,
        # Its own configuration would close the handlers of everything that logs in this process.
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=3,
    )
    try:
        bound = settings.bind_socket()
    except SystemExit:
        raise UsageRefusal("the port must be free", given=f"{port}", next_step="Name another with --port.") from None
    chosen = int(bound.getsockname()[1])
    shown = f"[{listen}]" if ":" in listen else listen
    gate = Gate(announce=lambda password: announce(f"http://{shown}:{chosen}/", password), port=chosen)
    settings.app = application(
        open_desk,
        gate=gate,
        hosts=(f"{shown}:{chosen}", f"localhost:{chosen}"),
        agent_version=agent_version,
        today=today,
    )
    return uvicorn.Server(settings), bound


def serve(open_desk: Callable[[], Desk], **settings: Any) -> None:
    """Serve the pages until Ctrl-C; arguments and refusals are those of `prepare`."""
    server, bound = prepare(open_desk, **settings)
    try:
        server.run(sockets=[bound])
    finally:
        bound.close()


class _Guard:
    """Answers only to the names of this page, and gives every answer the headers that keep it here."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.datastructures import Headers, MutableHeaders
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        if Headers(scope=scope).get("host", "") not in self.hosts:
            await PlainTextResponse("This page has another name.", status_code=421)(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)


def _release_values(desk: Desk, release_id: str, page: int) -> Mapping[str, Any]:
    """Values of a release's page, read back from the sealed bytes."""
    import pandas as pd

    from shared.releases.receipt import LABEL
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
        "label": LABEL,
        "draws_rows": plan.release.draws_rows,
        "rows": rows,
        "columns": list(made.table.columns),
        "numeric": {c for c in made.table.columns if pd.api.types.is_numeric_dtype(made.table[c].dtype)},
        "table": [[cell(value) for value in row] for row in part.itertuples(index=False)],
        "first": first + 1,
        "last": first + len(part),
        "page": page,
        "pages": pages,
        "checks": made.checks,
        "warnings": made.warnings,
        "sentences": list(made.audit.get("sentences", ())),
        "planned": overview.planned(plan, made),
        "changes": plan_changes(desk, made),
        "earlier": overview.compare(desk, made),
        "approvers": [name for name in desk.config.approvers if not (hold.author_apart and name == hold.author)],
        "untold": hold.left and hold.withdrawal is not None and not hold.withdrawal.settled,
    }
