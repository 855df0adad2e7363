"""The Analysis service: what an analyst may ask over the network, and nothing that reaches a site.

Every answer comes from `coordinator.answers.queries`; this module decides who may have it, how often, and keeps what
was given. A call goes through the same gates in the same order: its size (before it is read), its token, the token's
rate, its form, the token's studies, the role. A study that the token is not for is refused with the same words as one
that does not exist, before anything of it is looked at.

An answer is one JSON document whose id is the hash of all that it depends on: the releases in force, those withdrawn,
the question, the plan and the versions of the code. So the same question to the same releases is computed once,
however many ask it at once, and a new release makes a new answer without anything being thrown away. Whether an old
answer is stale is never written into it: that is said when it is explained.

What reads a table runs in a worker process (`coordinator.services.compute`), within limits, in turns by token, and ends
when whoever asked has left. Here nothing is read but the database.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from coordinator.answers import release_selection, resolving
from coordinator.config import AnalysisSettings, Quotas
from coordinator.services.analysts import PAGE, Analyst, Analysts, QueryLine
from coordinator.services.compute.engine import PATIENCE, ComputeEngine
from coordinator.services.compute.parts import dealt
from coordinator.services.compute.tasks import selection_of
from coordinator.services.compute.workers import TaskLimits
from coordinator.services.documents import (
    GivenAnswer,
    document_of,
    known_answers,
    release_document,
    set_hash,
    tried,
)
from coordinator.services.quotas import CallRate
from coordinator.store.log_watch import LogWatch
from coordinator.store.rows import ReleaseLine
from coordinator.store.store import ResultDraft, Store, remember
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.errors import (
    AccessRefusal,
    PolicyRefusal,
    RateRefusal,
    Refusal,
    RoleRefusal,
    StateRefusal,
)
from shared.plans.plan import StudyPlan
from shared.releases.synthetic import versions
from shared.terminal import plain
from shared.wire.analyst_messages import (
    DescribeRequest,
    Document,
    EntriesRequest,
    ExplainRequest,
    LogRequest,
    QueryRequest,
    ReleasesRequest,
    RowsChunk,
    RowsRequest,
    StudiesRequest,
)
from shared.wire.message_limits import ASKED_LONGEST, CHUNK_BYTES
from shared.wire.site_messages import LogView, WatchRequest
from shared.wire.transport import MESSAGE_CAP, Call, Handler

__all__ = ["AnalysisService"]

PRUNE_EVERY = 64  # new answers after which those that are too many are deleted
ASKING, DOWNLOADS = ("analyst", "lead"), ("lead", "auditor")
ANSWER = "coordinator.services.compute.tasks:answer"
_log = logging.getLogger("tributary.analysis")


class AnalysisService:
    """The analysts' service. Safe for many threads.

    Args:
        store: the coordinator's store.
        settings: rate limits and resources of questions.
        quotas: quotas of stored answers and sites' estimates.
        today: gives the UTC date.
        clock: gives seconds that only grow.
    """

    def __init__(
        self,
        store: Store,
        settings: AnalysisSettings | None = None,
        *,
        quotas: Quotas | None = None,
        today: Callable[[], dt.date],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self.analysts = store, Analysts(store, quotas)
        self._watch = LogWatch(store)
        self.delivered = release_selection.DeliveredSites(store)
        """Cache of each site's deliveries."""
        self._today = today
        mine = settings or AnalysisSettings()
        self.rate = CallRate(mine.rate / 60, mine.burst, f"a token may ask {mine.rate:g} times a minute", clock)
        self._daily = CallRate(mine.a_day / 86_400, mine.a_day, f"a token may ask {mine.a_day} times a day", clock)
        self._given = 0
        self.signed_in: Callable[[str], Analyst | None] = lambda token: None
        """Analyst whose session by the hospital's provider has this token, else None; the web server sets it."""
        limits = TaskLimits(memory=mine.memory, cpu=mine.cpu, wall=ASKED_LONGEST)
        self._engine = ComputeEngine(mine.compute, places=mine.at_once, limits=limits)
        self._turns: WeakValueDictionary[str, _QueryLock] = WeakValueDictionary()
        self._guard = threading.Lock()
        self._missing: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._holdings: OrderedDict[tuple[object, ...], release_selection.ReleaseSelection] = OrderedDict()
        self._known = known_answers()

    def start(self) -> None:
        """Begin what the first question would have to wait for."""
        self.analysts.prune()
        self._engine.start()

    def close(self) -> None:
        """End the processes that wait for a question."""
        self._engine.close()

    def forget(self) -> None:
        """Leave nothing in memory of what releases held until now."""
        with self._guard:
            self._holdings, self._missing, self._known = OrderedDict(), OrderedDict(), known_answers()
        self._engine.forget()

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """One function per method of the service."""
        return {
            "Studies": self.studies,
            "Describe": self.describe,
            "Releases": self.releases,
            "Query": self.query,
            "Rows": self.rows,
            "Explain": self.explain,
            "Log": self.log,
            "Watch": self.watch,
            "Entries": self.entries,
        }

    # -- who may ------------------------------------------------------------------------------------------------
    def identify(self, token: str) -> Analyst:
        """The analyst of a token, within its rate limit. Raises: AccessRefusal, RateRefusal."""
        who = self.signed_in(token) or self.analysts.identify(token, today=self._today())
        self.rate.take(who.serial)
        return who

    def admitted(self, call: Call, study: str, roles: tuple[str, ...] = ()) -> Analyst:
        """The caller, when its token is for the study and its role may do this. Raises: AccessRefusal, RoleRefusal."""
        who = call.peer
        assert isinstance(who, Analyst)
        if study not in who.studies:
            raise AccessRefusal(
                "the study must be one that the token is for",
                given=repr(study),
                next_step=f"Yours: {', '.join(who.studies)}.",
            )
        if roles and who.role not in roles:
            raise RoleRefusal(f"the role must be {' or '.join(roles)}", given=who.role)
        return who

    # -- what there is ------------------------------------------------------------------------------------------
    def studies(self, call: Call, request: StudiesRequest) -> Document:
        """The studies of the token: sites, waves, persons, postures, planned analyses; what the log says is over.

        Whoever may read the whole log is shown all revocations, others those of sites that delivered to their studies.
        """
        who = call.peer
        assert isinstance(who, Analyst)
        known = {stored.plan.study for stored in self._store.plans()}
        studies = [self._study(study) for study in who.studies if study in known]
        sites = None if who.role in DOWNLOADS else {site for one in studies for site in one["sites"]}
        ended = self._watch.ended(who.studies, sites)
        return document_of({"analyst": who.site, "role": who.role, "studies": studies, **ended})

    def _study(self, study: str) -> dict[str, Any]:
        plan = self._store.plan(study).plan
        found = self.delivered.of(study)
        return {
            "study": study,
            "title": plan.title,
            "purpose": plan.purpose,
            "version": plan.version,
            "plan_hash": plan.hash,
            "posture": plan.posture,
            "returning": plan.returning,
            "waves": [wave.number for wave in plan.waves],
            "delivered": sorted({wave for facts in found.sites.values() for wave in facts["waves"]}),
            "sites": found.sites,
            "last_day": found.last_day,
            "estimands": dict(plan.estimands),
            "row_download": plan.row_download,
            "note": "Rows are privatised, not patient records.",
        }

    def describe(self, call: Call, request: DescribeRequest) -> Document:
        """The dictionary with the share of missing values per site, in its newest release.

        Raises: ParameterError (no such column: the nearest ones, and which sites lack it).
        """
        who = self.admitted(call, request.study)
        plan = self._store.plan(request.study).plan
        columns = [column for column in plan.dictionary.released if request.column in ("", column.name)]
        if not columns:
            raise resolving.no_column(
                plan, request.column, resolving.lacking(self._store, request.study, request.column)
            )
        newest = {release.site: release for release in self._store.release_lines(request.study)}
        by_bundle = self._shares(list(newest.values()), who, call)
        shares = {site: by_bundle[release.bundle_sha256] for site, release in sorted(newest.items())}
        holds = {
            site: self._store.plan(release.study, release.plan_version).plan.dictionary.names
            for site, release in sorted(newest.items())
        }
        described = []
        for column in columns:
            facts = {
                name: getattr(column, name)
                for name in ("name", "kind", "label", "unit", "lower", "upper", "levels", "missing", "decimals")
            }
            described.append(
                {
                    **facts,
                    "missing_share": {s: row[column.name] for s, row in shares.items() if column.name in row},
                    "lacking": [site for site, names in holds.items() if column.name not in names],
                }
            )
        repeated = plan.dictionary.repeated
        rows = {} if repeated is None else {"repeated": repeated.to_canonical()}
        return document_of({"study": request.study, "version": plan.version, "columns": described, **rows})

    def _shares(self, releases: Sequence[ReleaseLine], who: Analyst, call: Call) -> dict[str, dict[str, float]]:
        """Bundle to column to the share of its values that are missing; of the last few hundred from memory."""
        with self._guard:
            known = {one.bundle_sha256: self._missing.get(one.bundle_sha256) for one in releases}
        new = [digest for digest, shares in known.items() if shares is None]
        if new:
            given = {"store": self._store.place, "study": releases[0].study, "bundles": new}
            found = self.computed("coordinator.services.compute.tasks:missing", given, who, call)
            with self._guard:
                self._missing.update(found)
                while len(self._missing) > 512:
                    self._missing.popitem(last=False)
            known |= found
        return {digest: shares for digest, shares in known.items() if shares is not None}

    def releases(self, call: Call, request: ReleasesRequest) -> Document:
        """Releases with their receipts, all or a page; withdrawn ones are named, and answer nothing."""
        self.admitted(call, request.study)
        found, listed, more = release_selection.page_of(self._store, request, release_document)
        if request == ReleasesRequest(study=request.study):
            listed.sort(key=lambda one: (one["wave"], one["site"]))
        # What a site's table is made of now, and under which plans: who may have its rows can fit to them.
        shown = {release.release_id: release.plan_version for release in found}
        held = {
            site: [one for one in ids if one in shown] for site, ids in self.delivered.of(request.study).held.items()
        }
        versions = sorted({shown[one] for ids in held.values() for one in ids})
        return document_of(
            {
                "study": request.study,
                "releases": listed,
                "held": {site: ids for site, ids in held.items() if ids},
                "plans": {f"{v}": self._store.plan(request.study, v).plan.to_canonical() for v in versions},
                "more": more,
            }
        )

    # -- questions ----------------------------------------------------------------------------------------------
    def query(self, call: Call, request: QueryRequest) -> Document:
        """Answer one question, from what was kept if it was asked before; a line of the record either way.

        A question that is refused is a line as well, with its code; one that is not for this token is none.
        Raises: AccessRefusal, RoleRefusal, RateRefusal, and what `coordinator.answers.queries.ask` raises.
        """
        who = self.admitted(call, request.study)
        self._daily.take(who.serial)
        try:
            if who.role not in ASKING:
                raise RoleRefusal(f"the role must be {' or '.join(ASKING)}", given=who.role)
            return self._answered(who, call, request)
        except Exception as caught:
            # A look that gave no number was a look all the same: the paper counts it apart.
            refusal = caught if isinstance(caught, Refusal) else Refusal("The coordinator could not answer")
            self.analysts.note(
                who,
                study=request.study,
                kind="refused",
                subject=refusal.code,
                question=tried(request, refusal),
                label=request.label or "exploratory",
                today=self._today(),
            )
            raise

    def _answered(self, who: Analyst, call: Call, request: QueryRequest) -> Document:
        study, plan = request.study, self._store.plan(request.study).plan
        question = resolving.question(request.kind, request.formula, request.options, planned=plan.estimands)
        found, _ = resolving.resolve(plan, question, lack=lambda name: resolving.lacking(self._store, study, name))
        held = self._held(plan, request.wave, request.as_of, request.combine)
        rests, withdrawn = dict(held.rests), [stone.bundle_sha256 for stone in held.withdrawn]
        maps: dict[str, str] = {}
        if request.harmonise:
            from coordinator.answers.harmonise import beside

            maps = {"harmonised": request.harmonise, "to": request.to, "densities": request.densities or beside(study)}
            self.admitted(call, maps["densities"])
            drawn = self._held(self._store.plan(maps["densities"]).plan, 0, None, combine=False)
            rests |= drawn.rests
            withdrawn += [stone.bundle_sha256 for stone in drawn.withdrawn]
        query: dict[str, Any] = {
            "estimand": str(found),
            "term": request.term,
            "method": request.method,
            "test": request.test,
        }
        query |= {"level": request.level, "wave": held.wave, "as_of": request.as_of, "combine": request.combine}
        state = {"used": rests, "withdrawn": withdrawn, "revisions": plain(held.revisions)}
        state |= {} if held.opened is None else {"opened": held.opened.sha256}
        made_by = {"plan": plan.hash, "code": versions()}
        result_id = sha256_hex(canonical_json({"study": study, "question": query | maps, **state, **made_by}))[:32]
        call.digest = result_id

        def line(given: GivenAnswer) -> dict[str, Any]:
            return {
                "study": study,
                "kind": "query",
                "subject": result_id,
                "question": {**given.question, "rests_on": set_hash(rests)},
                "label": request.label or ("confirmatory" if given.planned else "exploratory"),
                "planned": given.planned,
                "today": self._today(),
            }

        # The record is written before the answer leaves: no number is seen that does not stand in it.
        with self._guard:
            turn = self._turns.setdefault(result_id, _QueryLock())
        with turn:
            data = self.analysts.answer(study, result_id)
            if data is None:
                given: dict[str, Any] = {"store": self._store.place, "study": study, "held": selection_of(held)}
                given |= {"estimand": str(found), "maps": maps, "result": result_id, "rests": rests}
                names = ("term", "method", "test", "level")  # checked where they are used
                room = self.analysts.quotas.estimates
                given |= {"how": {name: getattr(request, name) for name in names}, "estimates": room}
                parts = [] if maps else dealt(plan, found, held, workers=self._engine.each, room=room)
                made = self.computed(ANSWER, given, who, call, parts)
                if made["damaged"]:
                    _log.warning("%d kept estimates of %s were damaged, and were made again", made["damaged"], study)
                document = self._proven(made["told"])
                rest = {name: made[name] for name in ("wave", "used", "numbers")}
                draft = ResultDraft(study=study, kind="analysis", question=document["asked"], **rest)
                saved = functools.partial(remember, draft=draft, today=self._today())
                data = self.analysts.give(who, canonical_json(document), beside=saved, **line(GivenAnswer.of(document)))
                self._given += 1
                if self._given % PRUNE_EVERY == 0:
                    self.analysts.prune()
                return self._cautioned(Document(json=data), rests)
        known = self._known.of(data)
        self.analysts.note(who, **line(known))
        if known.proven:
            return self._cautioned(Document(json=data), rests)
        document = self._proven(parse_json(data, cap=MESSAGE_CAP))  # kept by a version that proved nothing
        return self._cautioned(document_of(document), rests)

    def _cautioned(self, answer: Document, rests: Mapping[str, str]) -> Document:
        """The answer, stored ones too, with a caution on sites that have not compared since a restore."""
        sites = release_selection.uncompared(self._store, rests)
        if not sites:
            return answer
        document = parse_json(answer.json, cap=MESSAGE_CAP)
        said = [release_selection.uncompared_caution(sites), *document.get("cautions", ())]
        return document_of({**document, "cautions": said})

    def _proven(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document with the log's signed head, and for every release that it rests on the proof that it is there.

        A release is seen in the same transaction that signs a head which holds it; a store without heads proves none.
        """
        provenance = document["provenance"]
        size, head = self._watch.head(self._today())
        rests = provenance.get("rests_on", provenance["bundles"])
        found = self._store.log_places(rests)
        if not all(digest in found and found[digest] < size for digest in rests):
            return document
        places = {found[digest]: digest for digest in rests}
        nodes: dict[str, int] = {}  # neighbours share most of their proofs
        logged = {
            places[one.index]: {
                "index": one.index,
                "entry": one.entry.decode(),
                "proof": [nodes.setdefault(part.hex(), len(nodes)) for part in one.proof],
            }
            for one in self._watch.logged(places, size)
        }
        log = {"head": head.decode(), "nodes": list(nodes), "entries": logged}
        return {**document, "provenance": {**provenance, "log": log}}

    def _held(self, plan: StudyPlan, wave: int, as_of: int | None, combine: bool) -> release_selection.ReleaseSelection:
        """`release_selection.holding`, from memory as long as the log has not grown: it cannot have changed."""
        place = (plan.hash, wave, as_of, combine, self._store.entries())
        with self._guard:
            known = self._holdings.get(place)
        if known is None:
            known = release_selection.holding(self._store, plan.study, wave, as_of=as_of, combine=combine)
            with self._guard:
                self._holdings[place] = known
                while len(self._holdings) > 256:
                    self._holdings.popitem(last=False)
        return known

    def explain(self, call: Call, request: ExplainRequest) -> Document:
        """All that stands behind a result, who asked for it, and why it is stale, if it is. Raises: StateRefusal."""
        self.admitted(call, request.study)
        document = self.stored_answer(request)
        if "log" not in document["provenance"]:
            document = self._proven(document)
        used = document["provenance"]["bundles"]
        found = sorted(self._store.releases_of(used).values(), key=lambda one: (one.wave, one.site))
        studies = [request.study, *([document["asked"]["densities"]] if "densities" in document["asked"] else [])]
        releases = [release_document(release) for study in studies for release in found if release.study == study]
        version = document["provenance"]["plan"]["version"]
        asked = self.analysts.record(request.study, subject=document["result"])
        return document_of(
            {
                "result": document["result"],
                "answer": document,
                "stale": self._stale(request.study, document["asked"], document["provenance"]),
                "releases": releases,
                "plan": self._store.plan(request.study, version).plan.to_canonical(),
                "asked_by": self._lines(request.study, asked),
            }
        )

    def stored_answer(self, request: ExplainRequest) -> dict[str, Any]:
        """The answer that is kept under an id, or under the one id that begins so. Raises: StateRefusal."""
        result_id = self.analysts.result_id(request.study, request.result_id)
        data = self.analysts.answer(request.study, result_id) if result_id else None
        if data is None:
            raise StateRefusal(
                "the result must be one that is kept in this study",
                given=repr(request.result_id),
                next_step="See log. One that was given long ago may be deleted: ask again, the question stands there.",
            )
        return dict(parse_json(data, cap=MESSAGE_CAP))

    def _stale(self, study: str, query: Mapping[str, Any], provenance: Mapping[str, Any]) -> list[str]:
        """Reasons why the same question has other releases behind it today, in sentences."""
        used, rests = provenance["bundles"], provenance.get("rests_on", provenance["bundles"])
        withdrawn = {
            stone.bundle_sha256: stone
            for one in (study, query.get("densities", study))
            for stone in self._store.withdrawals(one)
        }
        why = [
            f"{site} has withdrawn its release of wave {withdrawn[digest].wave}"
            for digest, site in sorted(used.items(), key=lambda item: item[1])
            if digest in withdrawn
        ]
        now_used, now_rests = self._now(study, query)
        why += [
            f"a release of {site} was replaced by a later one"
            for digest, site in sorted(used.items(), key=lambda item: item[1])
            if digest not in now_used and digest not in withdrawn
        ]
        why += [f"{site} has delivered since" for digest, site in sorted(now_rests.items()) if digest not in rests]
        return why

    def _now(self, study: str, query: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
        """The bundles that the same question would be answered from today, and all that it would depend on."""
        now = self._held(self._store.plan(study).plan, query["wave"], query["as_of"], query["combined"])
        if "densities" not in query:
            return now.used, now.rests
        try:
            maps = self._held(self._store.plan(query["densities"]).plan, 0, None, combine=False)
        except StateRefusal:  # none is left
            return now.used, now.rests
        return {**now.used, **maps.used}, {**now.rests, **maps.rests}

    # -- the log of what was accepted ---------------------------------------------------------------------------
    def watch(self, call: Call, request: WatchRequest) -> LogView:
        """The log's newest signed head, and that it grew from sizes seen before. Raises: RoleRefusal (entries)."""
        if request.entries:
            raise RoleRefusal(
                "entries of the log must come with an answer, or be read in order", given="some by number"
            )
        return self._watch.view(request, self._today())

    def entries(self, call: Call, request: EntriesRequest) -> Document:
        """The log's entries in order, for leads and auditors: they name sites and closings of all studies.

        Raises: RoleRefusal.
        """
        who = call.peer
        assert isinstance(who, Analyst)
        if who.role not in DOWNLOADS:
            raise RoleRefusal(f"the role must be {' or '.join(DOWNLOADS)}", given=who.role)
        head, entries = self._watch.page(request.after, self._today())
        return document_of({"head": head.decode(), "entries": entries})

    # -- the record ---------------------------------------------------------------------------------------------
    def log(self, call: Call, request: LogRequest) -> Document:
        """The record of a study: every question, answered or refused. Downloads are shown to leads and auditors."""
        who = self.admitted(call, request.study)
        lines = self.analysts.record(request.study, after=request.after)
        last = lines[-1].number if len(lines) == PAGE else None
        shown = [line for line in lines if line.kind != "rows" or who.role in DOWNLOADS]
        return document_of({"study": request.study, "lines": self._lines(request.study, shown), "next": last})

    def _lines(self, study: str, lines: Iterable[QueryLine]) -> list[dict[str, Any]]:
        """Lines as plain values; a question that would be answered from other releases today is stale."""
        now: dict[tuple[int, int | None, bool, str], str] = {}
        out = []
        for line in lines:
            question = line.question
            stale = False
            if line.kind == "query":
                place = (question["wave"], question["as_of"], question["combined"], question.get("densities", ""))
                if place not in now:
                    now[place] = set_hash(self._now(study, question)[1])
                stale = now[place] != question["rests_on"]
            out.append({**plain(line), "stale": stale})
        return out

    # -- rows ---------------------------------------------------------------------------------------------------
    def rows(self, call: Call, request: RowsRequest) -> Iterator[RowsChunk]:
        """The rows of a release as Parquet; the download is in the record before the first byte leaves.

        Raises: PolicyRefusal (the plan does not let analysts have rows), StateRefusal (no such release, or withdrawn).
        """
        who = self.admitted(call, request.study, ASKING)
        found = [r for r in self._store.release_lines(request.study) if r.release_id == request.release_id]
        if not found:
            raise StateRefusal(
                "the release must be an accepted one of this study",
                given=repr(request.release_id),
                next_step="See releases.",
            )
        (release,) = found
        call.digest = release.bundle_sha256
        # What a steward approved is the plan that the release was drawn under: a later version opens nothing earlier.
        own = self._store.plan(request.study, release.plan_version).plan
        if not (own.row_download and self._store.plan(request.study).plan.row_download):
            raise PolicyRefusal(
                "the plan must let analysts download rows",
                given="row_download = false",
                next_step="Questions about them are free: ask one. Downloads take a plan that every site approves.",
            )
        place = {"wave": release.wave, "site": release.site, "bundle_sha256": release.bundle_sha256, "n": release.n}
        with tempfile.NamedTemporaryFile(prefix="tributary-rows-") as file:
            given = {"store": self._store.place, "study": request.study, "bundle": release.bundle_sha256}
            self.computed("coordinator.services.compute.tasks:rows", {**given, "path": file.name}, who, call)
            self.analysts.note(
                who, study=request.study, kind="rows", subject=release.release_id, question=place, today=self._today()
            )
            while data := file.read(CHUNK_BYTES):
                yield RowsChunk(data=data)

    # -- turns --------------------------------------------------------------------------------------------------
    def computed(
        self, task: str, given: Mapping[str, Any], who: Analyst, call: Call, parts: Sequence[Sequence[str]] = ()
    ) -> Any:
        """Result of a task, run in a worker. Raises: what it refuses, RateRefusal, EstimateRefusal, NetworkRefusal.

        Args: as of `ComputeEngine.run_in_parts`.
        """
        return self._engine.run_in_parts(task, given, parts, owner=who.serial, left=call.left, begun=call.begun)


class _QueryLock:
    """A lock that a dictionary may hold weakly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=2 * PATIENCE):
            raise RateRefusal("the same question must be answered first", given="one that is not", next_step="Wait.")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
