"""Replies of the web beside the analysts' service: computed by other clients themselves, which a browser cannot do.

They are a question in canonical form before it is asked, figures and words of an answer, receipts in words, and the
deliveries by wave. None of them reads data or adds a line to the record: they read plans, receipts, and the documents
of answers that were given. Only `monitor` asks: it is the service's own question, once for each wave.
"""

from __future__ import annotations

import datetime as dt
import json
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa

from coordinator.answers import resolving, waves
from coordinator.answers.release_selection import page_of
from coordinator.answers.spending import spending
from coordinator.store.log_watch import LogWatch
from coordinator.store.schema import asked as _lines
from coordinator.store.site_certificates import outlook
from coordinator.web.interface.crate import crate
from coordinator.web.interface.receipts import before, in_words
from shared.base.canonical import canonical_json, parse_json
from shared.base.clock import utc_now
from shared.errors import EstimateRefusal, RoleRefusal, StateRefusal
from shared.privacy.stated import shown_price
from shared.terminal import plain
from shared.wire.analyst_messages import (
    AnswerSiteRequest,
    BudgetsRequest,
    Document,
    ExplainRequest,
    FigureRequest,
    LooksFigureRequest,
    LooksRequest,
    MonitorRequest,
    ProofRequest,
    QueryRequest,
    ReleasesRequest,
    RowsChunk,
    StudySitesRequest,
)
from shared.wire.message_limits import CHUNK_BYTES
from shared.wire.site_messages import WatchRequest
from shared.wire.transport import Call

if TYPE_CHECKING:
    from coordinator.services.analysis import AnalysisService
    from coordinator.services.analysts import Account, Analyst
    from coordinator.store.rows import AcceptedRelease, ReleaseLine
    from coordinator.store.store import Store

__all__ = ["DerivedDocuments"]

DOCUMENT_CAP = 16 << 20
LOOK_BACK, RECENT = 400, 40  # lines of the record that are looked at for the newest answers, and how many of these
DRAWN = 256  # figures and words of answers that are kept in memory
READING = "coordinator.web.interface.reading"  # in a worker
DESIGN = "coordinator.planning.plan_form:judged"
SEEN = ("delivered", "late", "withdrawn", "missing", "planned")
"""States of a site in a wave that an analyst sees; the rest is between the site and the lead."""


class DerivedDocuments:
    """Checks, figures, words, receipts and waves. Safe for many threads.

    Args:
        service: the analysts' service, whose gates, workers and answers these are.
        store: the coordinator's store.
        today: gives the UTC date.
    """

    def __init__(self, service: AnalysisService, store: Store, today: Callable[[], dt.date]) -> None:
        self._service, self._store, self._today = service, store, today
        self._watch = LogWatch(store)
        self._guard = threading.Lock()
        self._made: OrderedDict[tuple[str, ...], bytes] = OrderedDict()

    def forget(self) -> None:
        """Leave nothing of an answer in memory."""
        with self._guard:
            self._made = OrderedDict()

    def first(self) -> list[str] | None:
        """The studies that are here while nobody holds a token; None once somebody does."""
        return self._studies() if self._service.analysts.nobody() else None

    def first_token(self, name: str) -> tuple[Account, str]:
        """The first token, a lead's of all the studies here, made while nobody holds one.

        Raises: ParameterError (the name); StateRefusal (somebody does, or there is no study).
        """
        if not (studies := self._studies()):
            raise StateRefusal(
                "there must be a study before somebody can be let in to it",
                given="none",
                next_step="Make one: coordinator plan new STUDY, then coordinator plan sign.",
            )
        return self._service.analysts.add(name, studies=studies, role="lead", today=self._today(), first=True)

    def _studies(self) -> list[str]:
        return sorted({stored.plan.study for stored in self._store.plans()})

    def check(self, call: Call, request: QueryRequest) -> Document:
        """A question in one spelling, and the planned analysis that it is. Raises: ParameterError, as the question."""
        self._service.admitted(call, request.study)
        store = self._store
        plan = store.plan(request.study).plan
        asked = resolving.question(request.kind, request.formula, request.options, planned=plan.estimands)
        found, planned = resolving.resolve(plan, asked, lack=lambda name: resolving.lacking(store, request.study, name))
        label = request.label or ("confirmatory" if planned else "exploratory")
        return _document({"estimand": str(found), "planned": planned, "label": label, "kind": found.kind})

    # -- an answer that was given -----------------------------------------------------------------------------------
    def figure(self, call: Call, request: FigureRequest) -> Iterator[RowsChunk]:
        """A figure of a result that was given, or its table.

        Raises: ParameterError (no such figure), StateRefusal (no such result, or taken back), EstimateRefusal.
        """

        def draw(document: Mapping[str, Any], who: Analyst) -> bytes:
            with tempfile.TemporaryDirectory(prefix="tributary-figure-") as folder:
                path = Path(folder) / f"figure.{request.suffix}"
                given = {"document": document, "kind": request.kind, "path": f"{path}"}
                self._service.computed(f"{READING}:figure", given, who, call)
                return path.read_bytes()

        asked = ExplainRequest(study=request.study, result_id=request.result_id)
        drawn = self._of_answer(call, asked, (request.kind, request.suffix), draw)
        yield from _chunks(drawn)

    def words(self, call: Call, request: ExplainRequest) -> Document:
        """A result as a person reads it: tables of text, sentences, cautions. Raises: StateRefusal."""

        def say(document: Mapping[str, Any], who: Analyst) -> bytes:
            return canonical_json(self._service.computed(f"{READING}:words", {"document": document}, who, call))

        return Document(json=self._of_answer(call, request, ("words",), say))

    def site(self, call: Call, request: AnswerSiteRequest) -> Document:
        """One site of a result: its estimate in its parts, and the others without it. Raises: ParameterError."""

        def say(document: Mapping[str, Any], who: Analyst) -> bytes:
            given = {"document": document, "site": request.site}
            return canonical_json(self._service.computed(f"{READING}:site_of", given, who, call))

        asked = ExplainRequest(study=request.study, result_id=request.result_id)
        return Document(json=self._of_answer(call, asked, ("site", request.site), say))

    def monitor(self, call: Call, request: MonitorRequest) -> Document:
        """A question as of each wave, each a line of the record, and boundaries that allow for all looks.

        Raises: ParameterError, and what the question raises; EstimateRefusal: no wave has an answer.
        """
        from coordinator.pooling.further.sequential import require_spending

        require_spending(request.spending)
        who = self._service.admitted(call, request.study)
        documents, missing = [], {}
        for wave in self._delivered(request.study):
            try:
                answer = self._service.query(call, request.as_of(wave))
                documents.append(parse_json(answer.json, cap=DOCUMENT_CAP))
            except EstimateRefusal as refusal:
                missing[f"{wave}"] = str(refusal).rstrip(".")
        return _document(self._looked(call, who, request, documents, missing))

    def looks(self, call: Call, request: LooksRequest) -> Document:
        """Answers that were given to one question as of several waves, held against such boundaries.

        Raises: StateRefusal (no such result); ParameterError (answers to several questions, no such spending).
        """
        return _document(self._given_looks(call, request))

    def looks_figure(self, call: Call, request: LooksFigureRequest) -> Iterator[RowsChunk]:
        """The same, drawn. Raises: as `looks`."""
        with tempfile.TemporaryDirectory(prefix="tributary-figure-") as folder:
            path = Path(folder) / f"looks.{request.suffix}"
            self._given_looks(call, request, f"{path}")
            drawn = path.read_bytes()
        yield RowsChunk(data=drawn)

    def _given_looks(self, call: Call, request: LooksRequest, path: str = "") -> dict[str, Any]:
        who = self._service.admitted(call, request.study)
        asked = [ExplainRequest(study=request.study, result_id=one) for one in request.ids]
        documents = [self._service.stored_answer(one) for one in asked]
        seen = {document["wave"] for document in documents}
        none = {f"{wave}": "no answer as of it is named" for wave in self._delivered(request.study) if wave not in seen}
        return self._looked(call, who, request, documents, none, path)

    def _looked(
        self,
        call: Call,
        who: Analyst,
        request: MonitorRequest | LooksRequest,
        documents: Sequence[Mapping[str, Any]],
        missing: Mapping[str, str],
        path: str = "",
    ) -> dict[str, Any]:
        plan = self._store.plan(request.study).plan
        given: dict[str, Any] = {"documents": documents, "missing": missing, "spending": request.spending, "path": path}
        given |= {"last": max(wave.number for wave in plan.waves), "returning": plan.returning}
        return self._service.computed(f"{READING}:looks", given, who, call)

    def _delivered(self, study: str) -> list[int]:
        return sorted({wave for facts in self._service.delivered.of(study).sites.values() for wave in facts["waves"]})

    def crate(self, call: Call, request: ExplainRequest) -> Iterator[RowsChunk]:
        """An answer with all that stands behind it, as a Research Object Crate. Raises: StateRefusal."""
        explained = parse_json(self._service.explain(call, request).json, cap=DOCUMENT_CAP)
        result_id = explained["result"]
        said = parse_json(self.words(call, request).json, cap=DOCUMENT_CAP)
        files = {}
        for kind, suffix in (("forest", "svg"), ("table", "csv")):
            asked = FigureRequest(study=request.study, result_id=result_id, kind=kind, suffix=suffix)
            files[f"{kind}.{suffix}"] = b"".join(part.data for part in self.figure(call, asked))
        yield from _chunks(crate(explained, said, files))

    def budgets(self, call: Call, request: BudgetsRequest) -> Document:
        """Cumulative ε of the releases against the plan's cap, wave by wave, and after further waves.

        A site with a release that has no ε is under ``open``, with the words in place of a price.
        """
        self._service.admitted(call, request.study)
        plan = self._store.plan(request.study).plan
        cap = {"study": request.study, "version": plan.version, "cap": plan.budget.epsilon, "delta": plan.budget.delta}
        waves = sorted(wave.number for wave in plan.waves)
        prices, lines = self._service.delivered.prices, self._store.release_lines(request.study, withdrawn=True)
        known = prices.of(lines)
        paid = [(line.site, known[line.bundle_sha256]) for line in lines]
        open_ = {site: shown_price(None, price.given) for site, price in paid if price.epsilon is None}
        if {site for site, _ in paid} <= set(open_):  # there is no ε to add up
            return _document({**cap, "waves": waves, "courses": [], "open": open_})
        found = spending(self._store, request.study, prices)
        courses = []
        for one in found.courses:
            left = [wave for wave, epsilon in one.planned if epsilon <= found.cap]
            points = {"spent": one.spent, "planned": one.planned, "given": one.given}
            courses.append({"sites": one.sites, **points, "last_affordable": max(left, default=None)})
        return _document({**cap, "waves": waves, "courses": courses, "open": found.open})

    def design(self, call: Call, form: Mapping[str, Any]) -> dict[str, Any]:
        """Review, price list and cost of a draft plan, for leads; nothing is stored.

        What is signed of a study is told to those whose token is for it.
        """
        from coordinator.planning.review import KnownStudy

        who = cast("Analyst", call.peer)
        if who.role != "lead":
            raise RoleRefusal("the role must be lead", given=who.role)
        study = form["study"].strip()
        known = KnownStudy.of(self._store, study) if study in who.studies else KnownStudy()
        given = {"form": dict(form), "today": self._today().isoformat(), "known": known.to_plain()}
        return self._service.computed(DESIGN, given, who, call)

    def recipient(self) -> str:
        """The name under which plans here name this coordinator; blank while there is none."""
        return next((stored.plan.coordinator for stored in self._store.plans()), "")

    def recent(self, study: str) -> list[dict[str, Any]]:
        """The newest answers of a study, each once: id, question, day; for who may read it."""
        query = sa.select(_lines.c.subject, _lines.c.question, _lines.c.day)
        query = query.where((_lines.c.study == study) & (_lines.c.kind == "query"))
        rows = self._store.read(lambda c: c.execute(query.order_by(_lines.c.number.desc()).limit(LOOK_BACK)).all())
        found: dict[str, dict[str, Any]] = {}
        for row in rows:
            estimand = str(json.loads(row.question).get("estimand", ""))
            found.setdefault(row.subject, {"result": row.subject, "estimand": estimand, "day": row.day})
        return list(found.values())[:RECENT]

    def _of_answer(
        self,
        call: Call,
        request: ExplainRequest,
        what: tuple[str, ...],
        make: Callable[[Mapping[str, Any], Analyst], bytes],
    ) -> bytes:
        who = self._service.admitted(call, request.study)
        # The answer is looked up each time: one that was deleted, or an end of the study, ends its figures too.
        document = self._service.stored_answer(request)
        call.digest = document["result"]
        place = (document["result"], *what)
        with self._guard:
            known = self._made.get(place)
        if known is None:
            known = make(document, who)
            with self._guard:
                self._made[place] = known
                while len(self._made) > DRAWN:
                    self._made.popitem(last=False)
        return known

    # -- what arrived -----------------------------------------------------------------------------------------------
    def receipts(self, call: Call, request: ReleasesRequest) -> Document:
        """Releases of a study with their receipts in words, in the order of the log: all, or a page.

        Each has beside it what changed since the site's wave before.
        """
        self._service.admitted(call, request.study)
        lines = self._store.release_lines(request.study, withdrawn=True)
        earlier = before([one for one in lines if request.site in ("", one.site)])
        known = {} if request.most else self._store.releases_of(earlier.values())

        def said_of(release: AcceptedRelease) -> dict[str, Any]:
            bundle = earlier.get(release.release_id, "")
            return in_words(release, known.get(bundle) or (self._store.by_bundle(bundle) if bundle else None))

        _, said, more = page_of(self._store, request, said_of)
        return _document({"study": request.study, "receipts": said, "more": more})

    def proof(self, call: Call, request: ProofRequest) -> Document:
        """A release's entry in the log, the proof that the newest head holds it, and that the log only grew.

        Raises: StateRefusal (no such release, or a log without a signed head).
        """
        self._service.admitted(call, request.study)
        lines = self._store.release_lines(request.study, withdrawn=True)
        places = [one.log_index for one in lines if one.release_id == request.release_id]
        asked = WatchRequest(sizes=(request.seen,) if request.seen else (), entries=tuple(places))
        view = self._watch.view(asked, self._today())
        if not view.entries:
            raise StateRefusal(
                "the release must be one of this study that stands in a signed log", given=repr(request.release_id)
            )
        (entry,) = view.entries
        said = {"head": view.head.decode(), "index": entry.index, "entry": entry.entry.decode()}
        growth = [part.hex() for proof in view.growth for part in proof]
        return _document({**said, "proof": [part.hex() for part in entry.proof], "growth": growth})

    def standing(self, call: Call, request: ReleasesRequest) -> Document:
        """Sites that take part or have delivered, and what the newest receipts say that no ε covers."""
        self._service.admitted(call, request.study)
        found = self._service.delivered.of(request.study)
        sites = sorted({*self._store.members(request.study), *found.sites})
        return _document({"study": request.study, "sites": sites, "uncovered": found.uncovered})

    def sites(self, call: Call, request: StudySitesRequest) -> Document:
        """Sites of a study as its leads need them: keys, certificates, and what arrived. Raises: RoleRefusal."""
        self._service.admitted(call, request.study, ("lead",))
        known = [one for one in self._store.sites() if request.study in one.studies]
        shown = known[request.most * (request.page - 1) : request.most * request.page] if request.most else known
        lives = {one.site: one for one in outlook(shown, utc_now())}
        arrived: dict[str, list[ReleaseLine]] = {}
        for line in self._store.release_lines(request.study, withdrawn=True):
            arrived.setdefault(line.site, []).append(line)
        apart: dict[str, list[str]] = {}
        for found in self._store.quarantined(study=request.study):
            apart.setdefault(found.site, []).append(found.code)
        rows = []
        for one in shown:
            life, lines = lives.get(one.site), arrived.get(one.site, [])
            row: dict[str, Any] = {
                "site": one.site,
                "state": one.state,
                "fingerprint": one.fingerprint,
                "reason": one.reason,
            }
            row |= {"certificate_days": life.life.days if life is not None and life.life is not None else None}
            row |= {"warning": life.warning if life else "", "mend": life.mend if life and life.warning else ""}
            row |= {"releases": sum(not line.withdrawn for line in lines), "quarantined": apart.get(one.site, [])}
            row |= {"withdrawn": sum(bool(line.withdrawn) for line in lines)}
            rows.append({**row, "last_day": max((line.accepted_day for line in lines), default=None)})
        pages = -(-len(known) // request.most) if request.most else 1
        return _document({"study": request.study, "sites": rows, "of": len(known), "pages": pages})

    def waves(self, call: Call, request: StudySitesRequest) -> Document:
        """Deliveries by wave and site, of all sites or a page; only leads and auditors see why a site is late."""
        who = self._service.admitted(call, request.study)
        whole = waves.grid(self._store, request.study, self._today())
        found = plain(whole.page(request.most, request.page) if request.most else whole)
        count = len(whole.sites)
        found |= {"of": count, "pages": -(-count // request.most) if request.most else 1}
        states = dict(waves.STATES)
        if who.role == "analyst":
            states = {name: words for name, words in states.items() if name in (*SEEN, "waiting")}
            found["waiting_for"] = []
            for wave in found["waves"]:
                for cell in wave["cells"]:
                    cell |= {"code": "", "reminded": "", "day": cell["day"] if cell["state"] in SEEN else ""}
                    cell["state"] = cell["state"] if cell["state"] in SEEN else "waiting"
        return _document({**found, "words": states})


def _chunks(data: bytes) -> Iterator[RowsChunk]:
    return (RowsChunk(data=data[start : start + CHUNK_BYTES]) for start in range(0, len(data), CHUNK_BYTES))


def _document(document: Mapping[str, Any]) -> Document:
    return Document(json=canonical_json(plain(document)))
