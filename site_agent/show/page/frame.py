"""Base of every page of the airlock: templates in the reader's language, access control, protection of the forms.

Threats to an open port on one's own machine, and the defences: another site's script posting here (a token in each
form, `SameSite=Strict`, the `Origin` header); DNS rebinding to 127.0.0.1 (the `Host` header); a script injected into a
table's cell (autoescape, and a policy under which no script runs at all); somebody else on the same machine (the
password, and nothing is approved without the approver's own passphrase).
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from shared.base.clock import utc_now
from shared.errors import Refusal, machine_failures
from shared.privacy import stated
from shared.terminal import inert
from site_agent.decide import reconciliation
from site_agent.decide.airlock.signing import Approver
from site_agent.decide.plans import AgentNow
from site_agent.identity import ending
from site_agent.show.page.access import Gate, KeyOpener, Session
from site_agent.show.page.language import COOKIE, NAMES, Language, chosen, marked

if TYPE_CHECKING:
    from starlette.requests import Request

    from site_agent.desk import Desk

__all__ = ["FORM_CAP", "TEMPLATES", "Decision", "Frame", "View", "reader"]

TEMPLATES = Path(__file__).parent / "templates"
FORM_CAP = 64 << 10
A_YEAR = 365 * 86400
PAGES = (
    ("/", marked("Outbox")),
    ("/plans", marked("Plans")),
    ("/data", marked("Data")),
    ("/budget", marked("Budget")),
    ("/audit", marked("Audit")),
)
FIRST_RUN = (("/start", marked("First run")),)
View = Callable[["Desk", Session, "Request", Language], Response]
"""A page: the desk, who looks, what was asked, in which language."""
Decision = Callable[["Desk", "Request", QueryParams], str]
"""A form: the desk, what was asked, its fields; returns the address of the page that shows the result."""


def reader(request: Request) -> Language:
    """The language of whoever asks."""
    return chosen(request.cookies.get(COOKIE, ""), request.headers.get("accept-language", ""))


class Frame:
    """The pages' common part.

    Args:
        open_desk: opens the site's folder; called anew for each request, so that nothing shown is stale.
        hosts: the values of ``Host`` that are answered, with their port.
        agent_version: version of this software, for approvals.
    """

    def __init__(
        self,
        open_desk: Callable[[], Desk],
        *,
        gate: Gate,
        hosts: tuple[str, ...],
        agent_version: str,
        today: Callable[[], dt.date],
    ) -> None:
        self.open_desk, self.gate, self.hosts = open_desk, gate, hosts
        self.agent_version, self.today, self.opener = agent_version, today, KeyOpener()
        self._environments: dict[str, jinja2.Environment] = {}

    @property
    def now(self) -> AgentNow:
        """Version of this software, and the day."""
        return AgentNow(version=self.agent_version, today=self.today())

    @cached_property
    def style(self) -> str:
        """The style sheet."""
        return (TEMPLATES / "style.css").read_text(encoding="utf-8")

    def typed(self, desk: Desk, form: QueryParams) -> Approver:
        """The person whom a form names, whose key the passphrase in it opens."""
        name = form.get("name", "")
        return Approver(name, lambda: self.opener.opened(desk, name, form.get("passphrase", "")))

    def running(self, lang: Language) -> str:
        """Background job that runs now, in words; blank where none does."""
        return ""

    def draw(
        self,
        name: str,
        desk: Desk,
        session: Session | None,
        lang: Language,
        *,
        status: int = 200,
        refresh: int = 0,
        **values: Any,
    ) -> HTMLResponse:
        """A page of a template.

        Args:
            refresh: seconds after which a browser asks again; 0 for never.
        """
        made = (desk.home / "site.toml").exists()
        inside = made and session is not None
        common = {
            "site": desk.config.site if made else "",
            "session": session,
            "pages": [(path, lang(title)) for path, title in (PAGES if made else FIRST_RUN)],
            "paused": made and desk.paused,
            "differing": reconciliation.sentence(reconciliation.noted(desk)) if inside else "",
            "ending": ending(desk.config, utc_now()) if inside else "",
            "everybody": tuple(desk.config.approvers) if made else (),
            "running": self.running(lang) if inside else "",
            "here": "",
            "address": "/",
            "lang": lang,
            "languages": NAMES,
        }
        text = self._environment(lang).get_template(name).render({**common, **values})
        return HTMLResponse(text, status_code=status, headers={"refresh": f"{refresh}"} if refresh else None)

    def seen(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        """A page for people who are in; a refusal is a page too."""

        async def endpoint(request: Request) -> Response:
            session = self.gate.session(request.cookies.get(self.gate.cookie, ""))
            if session is None:
                return RedirectResponse("/login", status_code=303)
            lang = reader(request)

            def work() -> Response:
                desk = self.open_desk()
                if not (desk.home / "site.toml").exists() and request.url.path != "/start":
                    return RedirectResponse("/start", status_code=303)
                try:
                    with machine_failures():
                        return view(desk, session, request, lang)
                except Refusal as refusal:
                    back = "/" if request.url.path != "/" else "/audit"
                    return self.refused(desk, session, lang, refusal, back)

            return await run_in_threadpool(work)

        return endpoint

    def refused(self, desk: Desk, session: Session, lang: Language, refusal: Refusal, back: str) -> Response:
        """A refusal as a page.

        Args:
            desk: the site's folder.
            refusal: what is told, with status 409.
            back: address of the page that a reader can go on to.
        """
        return self.draw("refused.html", desk, session, lang, status=409, refusal=refusal, back=back, address=back)

    def done(self, decide: Decision) -> Callable[[Request], Awaitable[Response]]:
        """A form that changes something: only from this page, only with its token; then look at the result."""

        async def endpoint(request: Request) -> Response:
            session = self.gate.session(request.cookies.get(self.gate.cookie, ""))
            if session is None:
                return RedirectResponse("/login", status_code=303)
            form, lang = await self.filled(request), reader(request)
            if form is None or not secrets.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
                return foreign(lang)

            def work() -> Response:
                desk = self.open_desk()
                try:
                    with machine_failures():
                        return RedirectResponse(decide(desk, request, form), status_code=303)
                except Refusal as refusal:
                    release_id = request.path_params.get("release_id", "")
                    study, who = request.path_params.get("study", ""), form.get("name", "")
                    verb = _verb(request, form)
                    desk.note_refusal(verb, refusal, release_id=release_id, study=study, who=who)
                    back = f"/release/{release_id}" if release_id else form.get("back", "/")
                    return self.refused(desk, session, lang, refusal, own_address(back))

            return await run_in_threadpool(work)

        return endpoint

    async def filled(self, request: Request) -> QueryParams | None:
        """The fields of a form that this page sent; None for anything else."""
        origin = request.headers.get("origin")
        if origin is not None and origin not in [f"http://{host}" for host in self.hosts]:
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
    async def login(self, request: Request) -> Response:
        """The password of the terminal, which works once."""
        wrong, lang = False, reader(request)
        if request.method == "POST":
            form = await self.filled(request)
            if form is None:
                return foreign(lang)
            cookie = self.gate.enter(form.get("password", ""))
            if cookie is not None:
                answer = RedirectResponse("/", status_code=303)
                answer.set_cookie(self.gate.cookie, cookie, httponly=True, samesite="strict", path="/")
                return answer
            wrong = True
        status = 401 if wrong else 200
        return self.draw("login.html", self.open_desk(), None, lang, wrong=wrong, status=status, address="/login")

    async def choose(self, request: Request) -> Response:
        """The language of this reader from now on; whoever has not signed in yet may choose one too."""
        form = await self.filled(request)
        if form is None or form.get("language") not in NAMES:
            return foreign(reader(request))
        answer = RedirectResponse(own_address(form.get("back", "/")), status_code=303)
        answer.set_cookie(COOKIE, form["language"], max_age=A_YEAR, httponly=True, samesite="strict", path="/")
        return answer

    async def css(self, request: Request) -> Response:
        """The style sheet."""
        return Response(self.style, media_type="text/css")

    # -- inside -------------------------------------------------------------------------------------------------
    def _environment(self, lang: Language) -> jinja2.Environment:
        """The templates in one language."""
        if found := self._environments.get(lang.code):
            return found
        made = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            finalize=inert,
            extensions=["jinja2.ext.i18n"],
        )
        made.install_gettext_translations(lang.translations, newstyle=True)  # type: ignore[attr-defined]
        made.globals |= {"stated": stated, "said": lang.said, "translated": lang.translated}
        made.filters |= {"number": lang.number, "figure": lang.number, "day": lang.day, "when": lang.value}
        self._environments[lang.code] = made
        return made


def foreign(lang: Language) -> PlainTextResponse:
    """The answer to a form that is none of this page."""
    return PlainTextResponse(lang("This form is not one of this page. Load the page again."), status_code=403)


def own_address(text: str) -> str:
    """An address of this page, as a form gave it; the first page for any other."""
    plain = text.startswith("/") and not text.startswith("//") and text.isprintable() and "\\" not in text
    return text if plain else "/"


def _verb(request: Request, form: QueryParams) -> str:
    """By which name a refused form stands in the site's log: that of the command which does the same."""
    last = request.url.path.rpartition("/")[2]
    if "digest" in request.path_params:
        return "standing revoke"
    if "study" in request.path_params:
        return {"release": "release", "standing": "standing add", "rehearse": "try"}.get(last, f"plan {last}")
    return form.get("verb", "") if form.get("verb") in ("reject", "send-back") else last
