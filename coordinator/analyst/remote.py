"""An analyst's end of the coordinator: connect, choose a study, ask, and know what the answer rests on.

    study = connect("ada.token.json")["heart"]
    answer = study.cox("Surv(time, event) ~ sbp + age", term="sbp")
    answer.meta()
    answer.forest("forest.svg")

Nothing is estimated here: each site's estimate and the pooled result are what the coordinator sent, and every object
is a way of looking at that one JSON document. Only figures pool again, from the sites' estimates in the document and
with the code that the coordinator uses; if that gives another number than the one that was sent, no figure is drawn.

An object prints as a table in a terminal, renders in a notebook, and becomes a DataFrame with ``to_frame()``.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from coordinator.analyst.access.token_file import Pass
from coordinator.analyst.harmonised import HarmonisedResult
from coordinator.analyst.options import as_verb
from coordinator.analyst.questions import Questions
from coordinator.analyst.result import Result, monitoring
from coordinator.analyst.shown import Explanation, Log, Monitoring, ResultTable, Shown, percent
from shared.base.canonical import parse_json
from shared.errors import (
    AccessRefusal,
    EstimateRefusal,
    IntegrityRefusal,
    ParameterError,
    SchemaRefusal,
    StateRefusal,
    require,
)
from shared.privacy.stated import shown_column, shown_price
from shared.terminal import write_table

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from coordinator.analyst.access.log_check import FollowedLog, LogAudit
    from coordinator.pooling.pool import PooledResult
    from shared.estimands.questions import Estimand
    from shared.releases.synthetic import Synthesis

__all__ = [
    "Caller",
    "Connection",
    "Pass",
    "Study",
    "connect",
    "sign_in",
    "write_table",
]

PATIENCE = 120.0
DOCUMENT_CAP = 8 << 20
RELEASES_PAGE = 200


def connect(token: str | Path | Pass) -> Connection:
    """Connect to the coordinator that a token's file names. Raises: AccessRefusal, DataFileRefusal."""
    if isinstance(token, Pass):
        return _connected(token)
    return _connected(Pass.load(Path(token)), memory=Path(token).with_suffix(".log.json"))


def sign_in(address: str, *, ca: str | Path = "", say: Callable[[str], None] = print) -> Connection:
    """Sign in by the hospital's provider, and connect; arguments and refusals as of `access.sign_in.signed_in`."""
    from coordinator.analyst.access.sign_in import signed_in

    return _connected(signed_in(address, ca=ca, say=say))


def _connected(given: Pass, memory: Path | None = None) -> Connection:
    """A connection by a token; `memory` keeps what was seen of the coordinator's log."""
    from coordinator.analyst.access.log_check import FollowedLog
    from shared.base.keys import PublicKey
    from shared.wire.message_limits import ASKED_CAP
    from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE
    from shared.wire.transport import Client, Credentials

    client: Client = Client(
        address=given.address,
        server_name=given.server_name,
        credentials=Credentials(ca_pem=given.ca_pem, token=given.token),
        service=ANALYSIS_SERVICE,
        methods=ANALYSIS,
        request_cap=ASKED_CAP,
    )
    if not given.witness:
        return Connection(given.name, client)
    look = functools.partial(client.call, "Watch", timeout=PATIENCE)
    return Connection(given.name, client, FollowedLog(PublicKey(given.witness), look, memory))


def _counted(lines: list[dict[str, Any]]) -> dict[str, int]:
    answered = [line for line in lines if line["kind"] == "query"]
    labels = [line["label"] for line in answered]
    return {
        "answered": len(answered),
        "confirmatory": labels.count("confirmatory"),
        "exploratory": labels.count("exploratory"),
        "different": len({line["subject"] for line in answered}),
        "stale": sum(line["stale"] for line in answered),
        "refused": sum(line["kind"] == "refused" for line in lines),
        "downloads": sum(line["kind"] == "rows" for line in lines),
    }


class Caller(Protocol):
    """Client of the service that answers questions: over the network, or in this process."""

    def call(self, method: str, request: Any, *, timeout: float) -> Any:
        """Reply of the service's method to `request`. Raises: the refusal that it answers with."""
        ...

    def close(self) -> None:
        """Close the client; it makes no further calls."""
        ...


class Connection(Shown, Mapping[str, "Study"]):
    """The studies that somebody may ask, by name.

    Args:
        name: name of the analyst.
        client: carries the questions.
        followed: the coordinator's log as a token's file follows it; None: answers are held to no log.
    """

    def __init__(self, name: str, client: Caller, followed: FollowedLog | None = None) -> None:
        self.name, self._client, self.followed = name, client, followed

    def audit_log(self) -> LogAudit:
        """Read the whole log, for a lead's or an auditor's token: what it names and the coordinator does not show.

        Raises: RoleRefusal; StateRefusal (a token's file without the coordinator's key); IntegrityRefusal.
        """
        from coordinator.analyst.access.log_check import audit
        from shared.wire.analyst_messages import EntriesRequest, StudiesRequest

        # The head comes first: what is logged meanwhile is shown, and held to no entry.
        checked = self.require_followed().follow()
        shown = self.ask("Studies", StudiesRequest())
        studies = {one["study"]: self.releases(one["study"])["releases"] for one in shown["studies"]}
        entries: list[str] = []
        while len(entries) < checked.head.size:
            page = self.ask("Entries", EntriesRequest(after=len(entries)))["entries"]
            if not page:
                break
            entries += page
        return audit(checked, entries[: checked.head.size], studies, shown)

    def require_followed(self) -> FollowedLog:
        """The coordinator's log as this token follows it. Raises: StateRefusal: a file of an earlier version."""
        if self.followed is None:
            raise StateRefusal(
                "a token's file must hold the key that signs the coordinator's log",
                given="none: it was made by an earlier version",
                next_step="Ask the study lead for a new one (coordinator analyst add).",
            )
        return self.followed

    def studies(self) -> ResultTable:
        """Table of the studies: sites, waves, persons, postures."""
        from shared.wire.analyst_messages import StudiesRequest

        document = self.ask("Studies", StudiesRequest())
        rows = []
        for study in document["studies"]:
            waves = study["delivered"]
            row = {"study": study["study"], "title": study["title"], "sites": len(study["sites"])}
            row |= {"waves": ", ".join(map(str, waves)) or None, "n": _total(study), "posture": study["posture"]}
            rows.append({**row, "last release": study["last_day"]})
        return ResultTable(f"{document['analyst']}, {document['role']}", rows, document)

    def releases(self, study: str, *, site: str = "", wave: int = 0, most: int = 0) -> dict[str, Any]:
        """Releases of a study by wave and site, put together from as many pages as there are.

        Args:
            site, wave: of these alone, where given. most: the newest so many; 0 for all.
        Returns: the document of a list that was asked for whole.
        """
        from shared.wire.analyst_messages import ReleasesRequest

        found: dict[str, Any] = {"study": study, "releases": [], "held": {}, "plans": {}}
        after = None
        while True:
            size = min(most - len(found["releases"]), RELEASES_PAGE) if most else RELEASES_PAGE
            asked = ReleasesRequest(study=study, most=size, after=after, newest=bool(most), site=site, wave=wave)
            try:
                page = self.ask("Releases", asked)
            except SchemaRefusal:  # a coordinator from before there were pages refuses what it does not know
                if after is not None or site or wave or most:
                    raise
                return dict(self.ask("Releases", ReleasesRequest(study=study)))
            found["releases"] += page["releases"]
            for name, ids in page["held"].items():
                found["held"].setdefault(name, []).extend(ids)
            found["plans"] |= page["plans"]
            after = page["more"]
            if after is None or (most and len(found["releases"]) >= most):
                break
        waves = {one["release_id"]: one["wave"] for one in found["releases"]}
        held = {name: sorted(ids, key=lambda one: waves[one]) for name, ids in sorted(found["held"].items())}
        return {**found, "held": held, "releases": sorted(found["releases"], key=lambda r: (r["wave"], r["site"]))}

    def ask(self, method: str, request: Any) -> Any:
        """One call; its document. Raises: the refusal of the coordinator, NetworkRefusal."""
        return parse_json(self._client.call(method, request, timeout=PATIENCE).json, cap=DOCUMENT_CAP)

    def stream(self, method: str, request: Any) -> Iterator[Any]:
        """One call that is answered by a stream."""
        return self._client.call(method, request, timeout=PATIENCE)

    def __getitem__(self, study: str) -> Study:
        known = list(self)
        if study not in known:
            near = difflib.get_close_matches(study, known, n=1)
            raise AccessRefusal(
                "the study must be one that the token is for",
                given=repr(study),
                next_step=f"Did you mean {near[0]!r}?" if near else f"Yours: {', '.join(known) or 'none'}.",
            )
        return Study(self, study)

    def __iter__(self) -> Iterator[str]:
        return iter([row["study"] for row in self.studies()])

    def __len__(self) -> int:
        return len(self.studies())

    def show(self, out: Console) -> None:
        """Draw it."""
        self.studies().show(out)

    def _repr_html_(self) -> str:
        return self.studies()._repr_html_()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Study(Questions, Shown):
    """One study: its dictionary, its releases, and whatever is asked of them.

    Args:
        connection: an open connection.
        name: the study.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self.name = connection, name

    def require_proven(self, document: Mapping[str, Any]) -> None:
        """Hold an answer against the coordinator's log; nothing with a token of an earlier version.

        Raises: IntegrityRefusal.
        """
        if self._connection.followed is not None:
            self._connection.followed.require_proven(document["provenance"])

    # -- what there is ------------------------------------------------------------------------------------------
    def facts(self) -> dict[str, Any]:
        """Title, purpose, waves, sites, planned analyses."""
        studies = self._connection.studies().document["studies"]
        return next(study for study in studies if study["study"] == self.name)

    def show(self, out: Console) -> None:
        """Draw it."""
        from shared.terminal import table

        document = self.facts()
        out.print(f"{document['study']}: {document['title']}", style="bold")
        out.print(
            f"plan version {document['version']}, posture {document['posture']}, {document['returning']}. "
            f"{document['note']}"
        )
        rows = []
        paid = {site: (facts["study_epsilon"], facts["epsilon_given"]) for site, facts in document["sites"].items()}
        head, spent = shown_column(paid, "ε at most")
        for site, facts in sorted(document["sites"].items()):
            waves = ", ".join(map(str, facts["waves"]))
            rows.append([site, waves, _persons(facts, document["returning"]), facts["posture"], spent[site]])
        out.print(table(["site", "waves", "n", "posture", head], rows, right=["n", head]))
        out.print(f"last release: {document['last_day'] or 'none yet'}")
        if document["estimands"]:
            out.print("planned analyses:")
            for name, formula in document["estimands"].items():
                out.print(f"  {name}: {formula}")

    def dictionary(self, column: str = "") -> ResultTable:
        """Meaning, unit and the share of missing values per site. Raises: ParameterError (no such column)."""
        from shared.wire.analyst_messages import DescribeRequest

        document = self._connection.ask("Describe", DescribeRequest(study=self.name, column=column))
        rows = []
        for found in document["columns"]:
            span = f"{found['lower']:g} to {found['upper']:g}" if found["lower"] is not None else None
            row = {"column": found["name"], "meaning": found["label"], "kind": found["kind"], "unit": found["unit"]}
            row["values"] = span or ", ".join(map(str, found["levels"]))
            shares = found["missing_share"].values()
            row["missing at most"] = percent(max(shares, default=0.0))
            row["not at"] = ", ".join(found["lacking"])
            if not column:
                rows.append(row)
                continue
            for site in sorted({*found["missing_share"], *found["lacking"]}):
                share = found["missing_share"].get(site)
                missing = "no such column" if share is None else percent(share)
                rows.append({"site": site, "missing": missing, **{k: row[k] for k in ("meaning", "unit", "values")}})
        return ResultTable(f"{self.name}{f', {column}' if column else ''}", rows, document)

    @as_verb
    def releases(
        self,
        *,
        site: Annotated[str, typer.Option("--site", help="Of this site alone.")] = "",
        wave: Annotated[int, typer.Option("--wave", help="Of this wave alone.")] = 0,
        most: Annotated[int, typer.Option("--most", help="The newest alone, so many at most.")] = 0,
    ) -> ResultTable:
        """List a study's releases with their receipts; withdrawn ones are marked."""
        document = self._connection.releases(self.name, site=site, wave=wave, most=most)
        rows = []
        for found in document["releases"]:
            row = {name: found[name] for name in ("wave", "site", "n", "release_id")}
            row |= {"ε": shown_price(found["epsilon"], found["epsilon_given"])}
            row |= {"posture": found["receipt"]["posture"], "day": found["accepted_day"]}
            rows.append({**row, "state": f"withdrawn: {found['withdrawn']}" if found["withdrawn"] else "accepted"})
        return ResultTable(f"releases of {self.name}", rows, document)

    def rows(self, release_id: str) -> pd.DataFrame:
        """The privatised rows of one release, where the plan lets analysts have them; the download is recorded.

        Raises: PolicyRefusal, StateRefusal.
        """
        import io

        import pandas as pd

        from shared.wire.analyst_messages import RowsRequest

        require("pyarrow")
        parts = self._connection.stream("Rows", RowsRequest(study=self.name, release_id=release_id))
        data = b"".join(part.data for part in parts)
        try:
            table = pd.read_parquet(io.BytesIO(data))
        except Exception as error:  # a damaged file fails in a dozen classes
            raise IntegrityRefusal("a release's rows must come as a Parquet file", given=type(error).__name__) from None
        table.attrs["label"] = "privatised rows, not patient records"
        return table

    def synthetic(self, site: str, *, number: int = 0, rows: int = 0, draws: int = 1) -> Synthesis:
        """Synthesis from a site's noisy figures, fitted on this machine: its releases' rows are fetched once.

        ``study.synthetic("north", draws=5).draw().tables`` are five tables of one fit. Nothing is
        fitted at the coordinator, and no site is asked; the downloads stand in the study's record.

        Args:
            site: whose figures, as of the newest wave.
            number, rows, draws: as of `shared.releases.synthetic.Synthesis`.
        Raises: EstimateRefusal (no release, or of several kinds); PolicyRefusal (the plan does not let rows leave);
            from the drawing StateRefusal, where a release was taken back meanwhile.
        """
        from coordinator.pooling.secure_sum.row_effects import as_the_sum
        from shared.mechanisms.base import require_addable
        from shared.plans.plan import StudyPlan
        from shared.releases.synthetic import Synthesis

        document = self.releases(site=site).document
        held = document["held"].get(site)
        if not held:
            raise EstimateRefusal(
                f"{site} must have an accepted release of {self.name}", given="none", next_step="See analyst releases."
            )
        known = {one["release_id"]: one for one in document["releases"]}
        plans = []
        for release_id in held:
            plan = StudyPlan.from_canonical(document["plans"][str(known[release_id]["plan_version"])])
            if plan.hash != known[release_id]["plan_hash"]:
                raise IntegrityRefusal("a plan must be the one that a release was drawn under", given="another")
            plans.append(plan)
        require_addable(plans)

        # Under a secure sum the other sites' pilots are behind the rows, too.
        behind = "" if plans[-1].release.follow else site
        before = self.releases(site=behind).document["held"] | {site: held}

        def still() -> None:
            if self.releases(site=behind).document["held"] != before:
                raise StateRefusal(
                    "the releases must stay the same while rows are drawn", given="others", next_step="Draw again."
                )

        figures = [(self.rows(release_id), int(known[release_id]["receipt"]["n"])) for release_id in held]
        used = [
            {
                "release_id": release_id,
                "bundle_sha256": known[release_id]["bundle_sha256"],
                "receipt": known[release_id]["receipt_hash"],
            }
            for release_id in held
        ]
        about = {"study": self.name, "site": site, "wave": known[held[-1]]["wave"], "releases": used}

        def answered(question: Estimand, term: str) -> PooledResult:
            return self.query("", str(question), term=term).pooled

        found = as_the_sum(plans[-1], site, about, answered)
        return Synthesis(plans[-1], figures, still=still, number=number, rows=rows, draws=draws, **found)

    @as_verb
    def log(self) -> Log:
        """The multiplicity record: every question to a study, by anyone, answered or refused."""
        from shared.wire.analyst_messages import LogRequest

        rows: list[dict[str, Any]] = []
        lines: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            document = self._connection.ask("Log", LogRequest(study=self.name, after=after))
            lines += document["lines"]
            after = document["next"]
        for line in lines:
            question, state = line["question"], "stale" if line["stale"] else None
            what = line["planned"] or question.get("estimand")
            if line["kind"] == "refused":
                state = f"refused: {line['subject']}"
                what = f"{question['kind']}: {question['formula']}" if question["kind"] else question["formula"]
                what = "".join(letter if letter.isprintable() else "?" for letter in what)  # anyone typed it
                what = what if len(what) <= 60 else f"{what[:59]}…"
            row = {"no": line["number"], "day": line["day"], "analyst": line["analyst"], "label": line["label"]}
            row |= {
                "question": what or f"rows of {question['site']}",
                "term": question.get("term"),
                "wave": question["wave"],
            }
            result = None if line["kind"] == "refused" else line["subject"][:12]
            rows.append({**row, "state": state, "result": result})
        counts = _counted(lines)
        words = f"{counts['answered']} answered ({counts['confirmatory']} confirmatory, {counts['exploratory']} "
        words += f"exploratory; {counts['different']} different), {counts['refused']} refused"
        return Log(
            f"questions asked of {self.name}: {words}", rows, {"study": self.name, "counts": counts, "lines": lines}
        )

    @as_verb
    def explain(self, result: Annotated[str, typer.Argument(help="The result's id.")]) -> Explanation:
        """Say what a result rests on: bundles, receipts, plan, code, who asked; and whether it is stale."""
        from shared.wire.analyst_messages import ExplainRequest

        return Explanation(self._connection.ask("Explain", ExplainRequest(study=self.name, result_id=result)))

    def result(self, result_id: str) -> Result:
        """A result that was given in this study, as it was given; its id or the first digits. Raises: StateRefusal."""
        document = self.explain(result_id).document["answer"]
        question = document["asked"]
        how = {name: question[name] for name in ("term", "method", "test", "level", "wave", "as_of")}
        how |= {"combine": question["combined"]}
        if "harmonised" in question:
            how |= {"harmonise": question["harmonised"], "to": question["to"], "densities": question["densities"]}

        def requery(**changed: Any) -> Result:
            return self.query("", question["estimand"], **{**how, **changed})

        return _result(self, document, requery)

    # -- questions ----------------------------------------------------------------------------------------------
    def query(self, kind: str, formula: str, *, term: str = "", **how: Any) -> Result:
        """Ask one question: an estimate per site and the pooled result. No site is contacted; it costs no ε.

        Args:
            kind: as in ``cox``; blank when `formula` is the whole question or the name of a planned analysis.
            formula: as in ``Surv(time, event) ~ sbp + age``.
            term: which term to pool; the first when blank.
            how: method, test, level, wave, as_of, combine, label (confirmatory or exploratory; by the plan
                where it is left out); anything else is an option of the question itself.
        Raises: the coordinator's refusals.
        """
        from shared.wire.analyst_messages import QueryRequest

        known = ("method", "test", "level", "wave", "as_of", "combine", "label", "harmonise", "to", "densities")
        settings = {name: value for name, value in how.items() if name in known}
        options = {name: str(value) for name, value in how.items() if name not in known}
        request = QueryRequest(study=self.name, kind=kind, formula=formula, term=term, options=options, **settings)

        def requery(**changed: Any) -> Result:
            return self.query(kind, formula, **{"term": term, **how, **changed})

        return _result(self, self._connection.ask("Query", request), requery)

    def monitor(
        self, formula: str, *, kind: str = "", spending: str = "obrien-fleming", term: str = "", **how: Any
    ) -> Monitoring:
        """Ask a question as of each wave, and hold every look against a boundary that allows for all of them.

        The error rate, 1 less the level, is spent over the waves of the plan; each wave's question is recorded.

        Args:
            formula, kind, term: the question, as of `query`.
            spending: ``obrien-fleming`` or ``pocock``.
            how: as of `query`, but no wave.
        Raises: ParameterError; EstimateRefusal: no wave has an answer.
        """
        from coordinator.pooling.further.sequential import require_spending

        require_spending(spending)
        facts = self.facts()
        given, missing = {}, {}
        for wave in facts["delivered"]:
            try:
                given[wave] = self.query(kind, formula, term=term, wave=wave, **how)
            except EstimateRefusal as refusal:
                missing[wave] = str(refusal).rstrip(".")
        last, returning = max(facts["waves"]), facts["returning"]
        return monitoring(given, last=last, returning=returning, spending=spending, missing=missing)

    def harmonise(
        self,
        column: str | Sequence[str],
        *,
        to: str,
        formula: str = "",
        kind: str = "",
        densities: str = "",
        **how: Any,
    ) -> HarmonisedResult:
        """Ask a question as it stands, and with a column mapped onto one site's scale, side by side.

        The maps are made of the noisy densities of a study beside this one, so nothing more is spent. They assume that
        the sites' patients are alike in the column: read the warnings.

        Args:
            column: what hospitals measure differently; two or three columns are mapped together, where their density
                was released together.
            to: the site whose scale counts.
            formula, kind: the question, as of `query`; the planned analysis that the column stands in when left out.
            densities: the study of densities; ``STUDY-densities`` when left out.
            how: as of `query`.
        Raises: ParameterError (none or several planned analyses hold the column), and the coordinator's refusals.
        """
        columns = [part.strip() for part in column.split(",")] if isinstance(column, str) else list(column)
        said = " and ".join(columns)
        if not formula:
            from shared.estimands.questions import parse_estimand

            planned = self.facts()["estimands"]
            holding = [name for name, text in planned.items() if set(columns) <= set(parse_estimand(text).columns)]
            if len(holding) != 1:
                raise ParameterError(
                    f"the question must be named, unless {said} stands in one planned analysis",
                    given=", ".join(holding) or "in none",
                    next_step="Give formula=, a planned analysis or a question.",
                )
            [formula] = holding
        found = self.query(kind, formula, harmonise=",".join(columns), to=to, densities=densities, **how)
        assert isinstance(found, HarmonisedResult)
        return found


def _result(study: Study, document: Mapping[str, Any], requery: Callable[..., Result]) -> Result:
    """The answer as its kind of object, once every release that it rests on is proven to stand in the log.

    Raises: IntegrityRefusal.
    """
    study.require_proven(document)
    return (HarmonisedResult if "harmonised" in document else Result)(study, document, requery)


def _persons(facts: Mapping[str, Any], returning: str) -> int:
    """Released rows of a site's newest wave; under append of all its waves, which are different persons."""
    by_wave: Mapping[str, int] = facts["n"]
    return sum(by_wave.values()) if returning == "append" else by_wave[max(by_wave, key=int)]


def _total(study: Mapping[str, Any]) -> int:
    return sum(_persons(facts, study["returning"]) for facts in study["sites"].values())
