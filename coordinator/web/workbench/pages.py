"""The workbench: pages for people, server-rendered, each made of what the analysts' service answers to its reader.

A page asks the service as any client does, as the person who is signed in: what a token may not read stands on no
page. Looking changes nothing; a question is asked by a form alone, with the session's token in it, from this site's own
pages. No mark-up of others is ever written: names and texts are escaped, and the policy of every page runs no script
and loads nothing but this site's two files.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from coordinator.planning.plan_form import BLANK, COLUMN_FIELDS, MECHANISMS, first_form, toml_of
from coordinator.pooling import METHODS, TESTS
from coordinator.web.interface.api import Api, connection_of, said_of
from coordinator.web.interface.operations import FILES, OPERATIONS, ZIP, Operation
from coordinator.web.interface.problems import PROBLEM, problem
from coordinator.web.sign_in.sessions import COOKIE, Sessions, SignedIn
from coordinator.web.workbench import forms
from coordinator.web.workbench.asked_elsewhere import copies, copies_of_looks
from coordinator.web.workbench.burndown import HEIGHT, WIDTH, course
from coordinator.web.workbench.comparing import differences, named, site_rows
from coordinator.web.workbench.sign_in_pages import SignInPages
from shared.base.canonical import parse_json
from shared.errors import AccessRefusal, Refusal, RoleRefusal, SchemaRefusal
from shared.estimands.kinds import KINDS, OPTIONS
from shared.estimands.questions import NETWORK
from shared.plans.dictionary import KINDS as COLUMN_KINDS
from shared.privacy.stated import shown_delta, shown_epsilon, shown_price
from shared.terminal import inert
from shared.wire.analyst_messages import (
    AnswerSiteRequest,
    BudgetsRequest,
    DescribeRequest,
    ExplainRequest,
    FigureRequest,
    LogRequest,
    LooksFigureRequest,
    LooksRequest,
    MonitorRequest,
    ProofRequest,
    QueryRequest,
    ReleasesRequest,
    StudiesRequest,
    StudySitesRequest,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from coordinator.services.analysts import Analyst
    from coordinator.web.sign_in.provider import Provider

__all__ = ["POLICY", "Pages"]

FOLDER = Path(__file__).parents[1] / "pages"
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
ASSETS: Mapping[str, str] = {"style.css": "text/css", "workbench.js": "text/javascript", "mark.svg": "image/svg+xml"}
FORM = "application/x-www-form-urlencoded"
DOCUMENT_CAP = 16 << 20
COURSES = 20  # drawings of budgets on one page
PAGE = 50  # lines of a list on one page
STANDING = Operation(name="standing", path="/standing", summary="", request=ReleasesRequest, reply="")
DESIGN = Operation(name="design", path="/design", summary="", request=dict, reply="")
_BY_NAME = {one.name: one for one in (*OPERATIONS, STANDING)}
_log = logging.getLogger("tributary.analysts")
View = Callable[["Request", "Analyst", SignedIn], Awaitable[Response]]


class Pages:
    """The pages of one coordinator.

    Args:
        api: the HTTP interface; the pages share its service, places and jobs.
        sessions: the sessions.
        person: makes the identity of who signed in by a provider.
        provider: by which people sign in; None for tokens alone.
        house, first_code: as of `coordinator.web.workbench.sign_in_pages.SignInPages`.
    """

    def __init__(
        self,
        api: Api,
        sessions: Sessions,
        person: Callable[..., Analyst],
        provider: Provider | None = None,
        *,
        house: Callable[[], Mapping[str, str]] = dict,
        first_code: str = "",
    ) -> None:
        self._api, self._sessions, self._person, self._provider = api, sessions, person, provider
        how: dict[str, Any] = {"house": house, "first_code": first_code, "draw": self._draw, "form": self._form}
        self._sign_in = SignInPages(api, sessions, provider, **how)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=inert,
        )
        self._templates.globals |= {"price": shown_price, "epsilon": shown_epsilon, "delta": shown_delta}
        self._assets = {name: (FOLDER / name).read_text(encoding="utf-8") for name in ASSETS}

    def routes(self) -> list[Route]:
        """The routes of the pages."""
        study = "/studies/{study}"
        seen: Mapping[str, View] = {
            "/": self._studies,
            "/design": self._design,
            study: self._study,
            f"{study}/ask": self._ask,
            f"{study}/waves": self._waves,
            f"{study}/releases/{{release_id}}/proof": self._proof,
            f"{study}/sites": self._sites,
            f"{study}/budgets": self._budgets,
            f"{study}/releases": self._releases,
            f"{study}/log": self._log,
            f"{study}/compare": self._compare,
            f"{study}/looks": self._looks,
            f"{study}/looks.{{suffix}}": self._looks_figure,
            f"{study}/results/{{result_id}}": self._answer,
            f"{study}/results/{{result_id}}/crate.zip": self._crate,
            f"{study}/results/{{result_id}}/sites/{{site}}": self._answer_site,
            f"{study}/results/{{result_id}}/{{kind}}.{{suffix}}": self._figure,
            "/jobs/{job}/events": self._events,
        }
        done: Mapping[str, View] = {
            "/design": self._designed,
            "/design/plan.toml": self._plan_file,
            f"{study}/ask": self._answer_question,
            f"{study}/check": self._checked,
            f"{study}/begin": self._begun,
            f"{study}/results/{{result_id}}/looks": self._monitored,
            "/jobs/{job}/cancel": self._cancelled,
            "/sign-out": self._sign_out,
        }
        return [
            *(Route(f"/{name}", functools.partial(self._asset, name)) for name in ASSETS),
            *self._sign_in.routes(),
            *(Route(path, self._for_reader(view), methods=["GET"]) for path, view in seen.items()),
            *(Route(path, self._for_sender(view), methods=["POST"]) for path, view in done.items()),
        ]

    # -- who reads --------------------------------------------------------------------------------------------------
    def _for_reader(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        """A page for who is signed in; a refusal is a page too."""

        async def endpoint(request: Request) -> Response:
            cookie, places = request.cookies.get(COOKIE, ""), self._api.places
            session = await places.looked_up(functools.partial(self._sessions.find, cookie))
            if session is None:
                return RedirectResponse("/sign-in", status_code=303)
            try:
                who = await self._identified(request, session)
                if (connection := connection_of(request)) is not None:
                    connection.proved(who.serial)
                return await view(request, who, session)
            except AccessRefusal as refusal:
                if refusal.code == "E_ACCESS" and "token" in refusal.must and "study" not in refusal.must:
                    await places.looked_up(functools.partial(self._sessions.leave, cookie))
                    return self._sign_in.page(None, refusal, 401)
                return self._refused(request, session, refusal)
            except Refusal as refusal:
                return self._refused(request, session, refusal)
            except Exception as caught:
                _log.error("unexpected %s in a page", type(caught).__name__)
                broken = Refusal("The page could not be made", next_step="Ask the study lead to look at the log.")
                return self._refused(request, session, broken)

        return endpoint

    async def _identified(self, request: Request, session: SignedIn) -> Analyst:
        """Analyst who reads the page, within their rate limit. Raises: AccessRefusal, RateRefusal."""
        found = session.person
        if found is None:
            return await self._api.identified(request, session.token)
        self._api.service.rate.take(found.serial)
        return found.peer(self._person)

    def _refused(self, request: Request, session: SignedIn, refusal: Refusal) -> Response:
        said = problem(refusal)
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse(said, status_code=said["status"], media_type=PROBLEM)
        study = "" if isinstance(refusal, AccessRefusal) else request.path_params.get("study", "")
        return self._draw("refused.html", session, status=said["status"], refusal=refusal, study=study)

    def _for_sender(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        """A form that was sent: only from this site's pages, and only with the session's token in it."""

        async def checked(request: Request, who: Analyst, session: SignedIn) -> Response:
            form = await self._form(request)
            given = dict(form).get("csrf", "")
            if not secrets.compare_digest(given.encode(), session.csrf.encode()):
                raise SchemaRefusal("a form must be one of this session's pages", given="another")
            request.state.form = [(name, text) for name, text in form if name != "csrf"]
            return await view(request, who, session)

        return self._for_reader(checked)

    async def _form(self, request: Request) -> list[tuple[str, str]]:
        """The fields of a form. Raises: SchemaRefusal: not sent by a page of this site."""
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        mine = origin is None or secrets.compare_digest(origin.encode(), f"https://{host}".encode())
        if not mine or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise SchemaRefusal("a form must be sent by a page of this site", given="another's")
        if kind != FORM:
            raise SchemaRefusal(f"a form must be {FORM}", given=repr(kind[:40]))
        try:
            return QueryParams((await self._api.body(request)).decode()).multi_items()
        except ValueError:
            raise SchemaRefusal("a form must be readable", given="another text") from None

    def _draw(self, name: str, session: SignedIn | None, *, status: int = 200, **values: Any) -> Response:
        common = {"session": session, "study": "", "here": "", "provider": self._provider is not None}
        text = self._templates.get_template(name).render({**common, **values})
        return Response(text, status_code=status, media_type="text/html", headers={"content-security-policy": POLICY})

    async def _document(self, request: Request, who: Analyst, name: str, asked: Any) -> Any:
        found = await self._api.handled(request, _BY_NAME[name], asked, who)
        return parse_json(found.json, cap=DOCUMENT_CAP)

    # -- in and out -------------------------------------------------------------------------------------------------
    async def _asset(self, name: str, request: Request) -> Response:
        return Response(self._assets[name], media_type=ASSETS[name], headers={"cache-control": "max-age=300"})

    async def _sign_out(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        await self._api.places.looked_up(functools.partial(self._sessions.leave, request.cookies.get(COOKIE, "")))
        answer = RedirectResponse("/sign-in", status_code=303)
        answer.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
        return answer

    # -- a plan in the making ---------------------------------------------------------------------------------------
    async def _design(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        if who.role != "lead":
            raise RoleRefusal("the role must be lead", given=who.role)
        recipient = await self._api.places.looked_up(self._api.derived.recipient)
        form = first_form(coordinator=recipient, today=dt.datetime.now(dt.UTC).date())
        return self._designer(session, form, None)

    def _designer(self, session: SignedIn, form: Mapping[str, Any], found: Mapping[str, Any] | None) -> Response:
        blank = [dict.fromkeys(COLUMN_FIELDS, "")] * BLANK
        values: dict[str, Any] = {
            "form": form,
            "rows": [*form["columns"], *blank],
            "found": found,
            "column_kinds": COLUMN_KINDS,
            "mechanisms": MECHANISMS,
        }
        return self._draw("design.html", session, **values)

    async def _designed(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        """The form as it was sent, with the results of its check; these alone for the page's own script."""
        form = _plan_form(request.state.form)
        found = await self._api.handled(request, DESIGN, form, who)
        if request.headers.get("accept", "").startswith("text/x-fragment"):
            return self._draw("design_said.html", session, found=found)
        return self._designer(session, form, found)

    async def _plan_file(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        headers = {"content-disposition": 'attachment; filename="plan.toml"'}
        return Response(toml_of(_plan_form(request.state.form)), media_type="application/toml", headers=headers)

    # -- pages ------------------------------------------------------------------------------------------------------
    async def _studies(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        known = await self._document(request, who, "studies", StudiesRequest())
        return self._draw("studies.html", session, studies=known["studies"])

    async def _facts(self, request: Request, who: Analyst) -> dict[str, Any]:
        """The study of a page, as `studies` says it. Raises: AccessRefusal (none of the reader's)."""
        known = await self._document(request, who, "studies", StudiesRequest())
        name = request.path_params["study"]
        for found in known["studies"]:
            if found["study"] == name:
                return dict(found)
        raise AccessRefusal(
            "the study must be one that you may read", given=repr(name[:64]), next_step="See the list of studies."
        )

    async def _study(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        facts = await self._facts(request, who)
        study = facts["study"]
        standing = await self._document(request, who, "standing", ReleasesRequest(study=study))
        once = facts["returning"] == "append"  # waves of new persons are added up
        persons = {
            site: sum(own["n"].values()) if once else own["n"][str(own["waves"][-1])]
            for site, own in facts["sites"].items()
        }
        values = {"facts": facts, "standing": standing, "persons": persons}
        return self._draw("study.html", session, study=study, here="study", **values)

    async def _form_values(self, request: Request, who: Analyst) -> dict[str, Any]:
        facts = await self._facts(request, who)
        described = await self._document(request, who, "describe", DescribeRequest(study=facts["study"]))
        columns = forms.with_repeated(described["columns"], described.get("repeated"))
        options = (option for kind in KINDS.values() for option in kind.options)
        return {
            "study": facts["study"],
            "facts": facts,
            "columns": columns,
            "kinds": KINDS,
            "options": {name: OPTIONS[name] for name in dict.fromkeys(options)},
            "statistics": NETWORK,
            "methods": METHODS,
            "tests": TESTS,
            "comparisons": forms.COMPARISONS,
        }

    async def _ask(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        values = await self._form_values(request, who)
        chosen = {"planned": request.query_params.get("planned", ""), "adjust": []}
        return self._draw("ask.html", session, here="ask", chosen=chosen, refusal=None, **values)

    async def _question(self, request: Request, who: Analyst) -> QueryRequest:
        study = request.path_params["study"]
        described = await self._document(request, who, "describe", DescribeRequest(study=study))
        columns = forms.with_repeated(described["columns"], described.get("repeated"))
        return forms.query_request(study, request.state.form, {one["name"]: one for one in columns})

    async def _answer_question(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        """Ask, and show the answer; a question that is refused stands in its form again."""
        try:
            found = await self._document(request, who, "query", await self._question(request, who))
        except Refusal as refusal:
            values = await self._form_values(request, who)
            form = request.state.form
            chosen = {**dict(form), "adjust": [text for name, text in form if name == "adjust"]}
            chosen.setdefault("planned", "")
            status = problem(refusal)["status"]
            return self._draw("ask.html", session, here="ask", status=status, chosen=chosen, refusal=refusal, **values)
        return RedirectResponse(f"/studies/{request.path_params['study']}/results/{found['result']}", status_code=303)

    async def _checked(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        """Question of the form so far, checked; a fault in it is a reply with ``problem``, not an error status."""
        try:
            return JSONResponse(await self._document(request, who, "check", await self._question(request, who)))
        except Refusal as refusal:
            return JSONResponse({"problem": problem(refusal)})

    async def _begun(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        job = self._api.begin(who, await self._question(request, who))
        return JSONResponse(said_of(job), status_code=202)

    async def _events(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        return self._api.events(self._api.jobs.of(who, request.path_params["job"]))

    async def _cancelled(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        job = self._api.jobs.of(who, request.path_params["job"])
        self._api.jobs.cancel(job)
        return JSONResponse(said_of(job))

    async def _answer(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        from coordinator.pooling.further.sequential import SPENDING

        study = request.path_params["study"]
        asked = ExplainRequest(study=study, result_id=request.path_params["result_id"])
        explained = await self._document(request, who, "explain", asked)
        words = await self._document(request, who, "words", asked)
        answer = explained["answer"]
        values = {
            "explained": explained,
            "answer": answer,
            "words": words,
            "copies": copies(answer, request.headers.get("host", "")),
            "spendings": SPENDING,
        }
        return self._draw("answer.html", session, study=study, here="ask", **values)

    async def _answer_site(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        """One site of an answer, with the receipts of the releases that it answered from."""
        path = request.path_params
        study, site = path["study"], path["site"]
        asked = ExplainRequest(study=study, result_id=path["result_id"])
        found = await self._document(
            request, who, "site", AnswerSiteRequest(study=study, result_id=asked.result_id, site=site)
        )
        explained = await self._document(request, who, "explain", asked)
        behind = {one["bundle_sha256"] for one in explained["releases"] if one["site"] == site}
        receipts = await self._document(request, who, "receipts", ReleasesRequest(study=study, site=site))
        values = {"site": site, "found": found, "explained": explained, "answer": explained["answer"]}
        values["receipts"] = [one for one in receipts["receipts"] if one["bundle_sha256"] in behind]
        return self._draw("site.html", session, study=study, here="ask", **values)

    async def _monitored(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        """Ask an answer's question as of each wave, and show the looks."""
        study = request.path_params["study"]
        explained = await self._document(
            request, who, "explain", ExplainRequest(study=study, result_id=request.path_params["result_id"])
        )
        question = explained["answer"]["asked"]
        how = {name: question[name] for name in ("term", "method", "test", "level")}
        spending = dict(request.state.form).get("spending", "")
        asked = MonitorRequest(study=study, formula=question["estimand"], spending=spending, **how)
        found = await self._document(request, who, "monitor", asked)
        place = f"results={','.join(found['results'].values())}&spending={found['spending']}"
        return RedirectResponse(f"/studies/{study}/looks?{place}", status_code=303)

    async def _looks(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        study, given = request.path_params["study"], request.query_params
        asked = LooksRequest(study=study, **{name: given.get(name, "") for name in ("results", "spending")})
        found = await self._document(request, who, "looks", asked)
        values = {
            "found": found,
            "query": request.url.query,
            "copies": copies_of_looks(found, request.headers.get("host", "")),
        }
        return self._draw("looks.html", session, study=study, here="log", **values)

    async def _looks_figure(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        study, given = request.path_params["study"], request.query_params
        asked = LooksFigureRequest(
            study=study,
            suffix=request.path_params["suffix"],
            **{name: given.get(name, "") for name in ("results", "spending")},
        )
        found = await self._api.handled(request, _BY_NAME["looks_figure"], asked, who)
        return self._api.file(request, found, FILES[asked.suffix])

    async def _crate(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        asked = ExplainRequest(study=request.path_params["study"], result_id=request.path_params["result_id"])
        return self._api.file(request, await self._api.handled(request, _BY_NAME["crate"], asked, who), ZIP)

    async def _compare(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        """Two answers side by side; with none or one of them, the newest to choose from."""
        study = (await self._facts(request, who))["study"]
        ids = [request.query_params.get(name, "") for name in ("a", "b")]
        pair = []
        for of, result_id in (found for text in ids if (found := named(study, text))[1]):
            asked = ExplainRequest(study=of, result_id=result_id)
            explained = await self._document(request, who, "explain", asked)
            pair.append((explained, await self._document(request, who, "words", asked)))
        values: dict[str, Any] = {"ids": ids, "pair": pair if len(pair) == 2 else [], "differs": [], "sites": []}
        if values["pair"]:
            (left, one), (right, two) = pair
            rows = site_rows(one, two)
            values |= {"differs": differences(left, right), "sites": rows[:PAGE], "of": len(rows)}
        recent = await self._api.places.looked_up(functools.partial(self._api.derived.recent, study))
        return self._draw("compare.html", session, study=study, here="log", recent=recent, **values)

    async def _budgets(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        study = request.path_params["study"]
        found = await self._document(request, who, "budgets", BudgetsRequest(study=study))
        page, rows = _page(request), [*found["courses"], *sorted(found["open"].items())]
        shown = rows[COURSES * (page - 1) : COURSES * page]
        waves = tuple(found["waves"])
        drawn = [course(one, cap=found["cap"], waves=waves) for one in shown if not isinstance(one, tuple)]
        values = {"found": found, "courses": drawn, "open": [one for one in shown if isinstance(one, tuple)]}
        values |= {"width": WIDTH, "height": HEIGHT, "page": page, "more": len(rows) > COURSES * page}
        return self._draw("budgets.html", session, study=study, here="budgets", **values)

    async def _figure(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        path = request.path_params
        asked = FigureRequest(**{name: path[name] for name in ("study", "result_id", "kind", "suffix")})
        found = await self._api.handled(request, _BY_NAME["figure"], asked, who)
        return self._api.file(request, found, FILES[asked.suffix])

    async def _waves(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        study = request.path_params["study"]
        page = _page(request)
        grid = await self._document(request, who, "waves", StudySitesRequest(study=study, most=PAGE, page=page))
        return self._draw("waves.html", session, study=study, here="waves", grid=grid, page=page)

    async def _proof(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        """Proof of a release's place in the log, which the page itself verifies."""
        seen, path = _number(request.query_params.get("seen", "")) or 0, request.path_params
        asked = ProofRequest(study=path["study"], release_id=path["release_id"], seen=seen)
        return JSONResponse(await self._document(request, who, "proof", asked))

    async def _sites(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        study, page = request.path_params["study"], _page(request)
        found = await self._document(request, who, "sites", StudySitesRequest(study=study, most=PAGE, page=page))
        return self._draw("sites.html", session, study=study, here="sites", found=found, page=page)

    async def _releases(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        """A page of releases, the newest first; of a site or a wave alone, where one is chosen."""
        study, given = request.path_params["study"], request.query_params
        site, wave = given.get("site", "").strip()[:64], _number(given.get("wave", "")) or 0
        older, newer = _number(given.get("after", "")), _number(given.get("before", ""))

        async def page(newest: bool, after: int | None) -> tuple[list[dict[str, Any]], int | None]:
            asked = ReleasesRequest(study=study, most=PAGE, newest=newest, after=after, site=site, wave=wave)
            found = await self._document(request, who, "receipts", asked)
            return found["receipts"], found["more"]

        if newer is None:
            shown, more = await page(True, older)
            back = shown[0]["log_index"] if shown and older is not None else None
        else:
            rest, back = await page(False, newer)
            shown, more = rest[::-1], rest[0]["log_index"] if rest else None
        standing = await self._document(request, who, "standing", ReleasesRequest(study=study))
        chosen = {"site": site, "wave": wave}
        keep = {name: value for name, value in chosen.items() if value}
        values: dict[str, Any] = {"receipts": shown, "sites": standing["sites"], "chosen": chosen, "keep": keep}
        values |= {"more": more, "back": back}
        return self._draw("releases.html", session, study=study, here="releases", **values)

    async def _log(self, request: Request, who: Analyst, session: SignedIn) -> Response:
        study = request.path_params["study"]
        after = _number(request.query_params.get("after", "")) or 0
        found = await self._document(request, who, "log", LogRequest(study=study, after=after))
        return self._draw("log.html", session, study=study, here="log", found=found, after=after)


def _plan_form(fields: list[tuple[str, str]]) -> dict[str, Any]:
    """The designer's form as it was sent. Raises: SchemaRefusal (fields that are not its own)."""
    first = first_form(coordinator="", today=dt.date(2026, 1, 1))
    given = {name: "" for name in first if name != "columns"}
    cells: dict[str, list[str]] = {name: [] for name in COLUMN_FIELDS}
    for name, text in fields:
        if name.startswith("column_") and name.removeprefix("column_") in cells:
            cells[name.removeprefix("column_")].append(text)
        elif name in given:
            given[name] = text
        else:
            raise SchemaRefusal("the form must be the designer's", given=repr(name[:40]))
    if len({len(texts) for texts in cells.values()}) != 1:
        raise SchemaRefusal("every column must have all its fields", given="others")
    rows = [dict(zip(COLUMN_FIELDS, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    return {**given, "columns": [row for row in rows if any(text.strip() for text in row.values())]}


def _page(request: Request) -> int:
    """The page of a list that is asked for; the first where none is that can be read."""
    return max(1, min(_number(request.query_params.get("page", "")) or 1, 99_999))


def _number(text: str) -> int | None:
    """The number that an address holds; None where it holds none that can be read."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None
