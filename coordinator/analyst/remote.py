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

import datetime as dt
import difflib
import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from coordinator.figures.style import FILES
from shared.base.canonical import closed, parse_json
from shared.base.clock import utc_now
from shared.errors import (
    AccessRefusal,
    DataFileRefusal,
    EstimateRefusal,
    IntegrityRefusal,
    ParameterError,
    Refusal,
    StateRefusal,
)
from shared.privacy.stated import shown_column, shown_price
from shared.terminal import write_table

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from coordinator.analyst.log_check import FollowedLog, LogAudit
    from coordinator.pooling.pool import PooledResult
    from shared.estimands.answer import Estimate, Scale
    from shared.releases.synthetic import Synthesis
    from shared.wire.transport import Client

__all__ = [
    "Connection",
    "HarmonisedResult",
    "Log",
    "Pass",
    "Picture",
    "Result",
    "ResultTable",
    "Study",
    "connect",
    "write_table",
]

PATIENCE = 120.0
_ON_CURVES = ("time", "survival", "lower", "upper", "at_risk", "events")
DOCUMENT_CAP = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Credentials of an analyst: one file, to be kept like a password.

    Args:
        address: ``host:port`` to dial.
        server_name: the name in the coordinator's certificate.
        ca_pem: the only authority that is believed.
        name, role, studies, expires: what the token is; the coordinator decides by its own record.
        token: the secret.
        witness: the key (hexadecimal) that signs the coordinator's log; blank in files of earlier versions.
    Raises: AccessRefusal, at reading: it is expired or not a token's file.
    """

    address: str
    server_name: str
    ca_pem: str = field(repr=False)
    name: str
    role: str
    studies: tuple[str, ...]
    expires: str
    token: str = field(repr=False)
    witness: str = ""

    def save(self, path: Path) -> None:
        """Write it so that its owner alone can read it. Raises: StorageRefusal."""
        from shared.base.keys import write_private

        write_private(path, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Pass:
        """Read it. Raises: DataFileRefusal (no such file), AccessRefusal (not a token's file, or expired)."""
        try:
            data = path.read_bytes()
        except OSError:
            raise DataFileRefusal(
                "the token's file must exist",
                given=f"{path}",
                next_step="The study lead makes it (coordinator analyst add); name it with --token.",
            ) from None
        try:
            given = parse_json(data)
            closed(given, {item.name for item in fields(cls)}, where="a token's file", refusal=AccessRefusal)
            made = cls(**{**given, "studies": tuple(given["studies"])})
            expires = dt.date.fromisoformat(made.expires)
        except (Refusal, TypeError, ValueError, KeyError, AttributeError):
            raise AccessRefusal("a token's file must be as coordinator analyst add wrote it", given="another") from None
        if utc_now().date() > expires:
            raise AccessRefusal(
                "a token must not be expired",
                given=f"last day {made.expires}",
                next_step="Ask the study lead for a new one (coordinator analyst add).",
            )
        return made


def connect(token: str | Path | Pass) -> Connection:
    """Connect to the coordinator that a token's file names. Raises: AccessRefusal, DataFileRefusal."""
    if isinstance(token, Pass):
        return Connection(token)
    return Connection(Pass.load(Path(token)), memory=Path(token).with_suffix(".log.json"))


class _Shown(ABC):
    """An object that prints as its table: in a terminal, in a notebook, as a text."""

    @abstractmethod
    def show(self, out: Console) -> None:
        """Draw it."""

    def __repr__(self) -> str:
        from rich.console import Console

        # A page of text, not a terminal: no colours, and one width wherever it is printed.
        out = Console(width=100, markup=False, highlight=False, emoji=False, color_system=None)
        with out.capture() as taken:
            self.show(out)
        return "\n".join(line.rstrip() for line in taken.get().strip("\n").splitlines())

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(repr(self))}</pre>"


class ResultTable(_Shown):
    """Rows that the coordinator sent, with the document they stand in.

    Args:
        title: one line above.
        rows: one mapping per row; the first one's keys are the columns.
        document: all that was sent.
    """

    def __init__(self, title: str, rows: list[dict[str, Any]], document: Mapping[str, Any]) -> None:
        self.title, self.rows, self.document = title, rows, document

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.rows[row]

    def to_frame(self) -> pd.DataFrame:
        """The rows as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(self.rows[0]) if self.rows else None)

    def show(self, out: Console) -> None:
        """Draw it."""
        from shared.terminal import table

        out.print(self.title, style="bold")
        if self.rows:
            heads = list(self.rows[0])
            numeric = [name for name in heads if all(isinstance(row[name], (int, float)) for row in self.rows)]
            out.print(table(heads, [[_cell(row[name]) for name in heads] for row in self.rows], right=numeric))
        else:
            out.print("none yet")

    def _repr_html_(self) -> str:
        return _html(self.title, self.to_frame() if self.rows else None)


class Log(ResultTable):
    """The multiplicity record of a study."""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of questions: answered (confirmatory and exploratory), distinct, and refused."""
        return dict(self.document["counts"])


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


class Connection(_Shown, Mapping[str, "Study"]):
    """The studies that a token is for, by name.

    Args:
        given: the token.
        memory: file that keeps what was seen of the coordinator's log; beside the token's file where that was named.
    """

    def __init__(self, given: Pass, memory: Path | None = None) -> None:
        from coordinator.analyst.log_check import FollowedLog
        from shared.base.keys import PublicKey
        from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE
        from shared.wire.transport import Client, Credentials

        self.name = given.name
        self._client: Client = Client(
            address=given.address,
            server_name=given.server_name,
            credentials=Credentials(ca_pem=given.ca_pem, token=given.token),
            service=ANALYSIS_SERVICE,
            methods=ANALYSIS,
            request_cap=64 << 10,
        )
        self.followed: FollowedLog | None = None
        if given.witness:
            look = functools.partial(self._client.call, "Watch", timeout=PATIENCE)
            self.followed = FollowedLog(PublicKey(given.witness), look, memory)

    def audit_log(self) -> LogAudit:
        """Read the whole log, for a lead's or an auditor's token: what it names and no study of the token shows.

        Raises: RoleRefusal; StateRefusal (a token's file without the coordinator's key); IntegrityRefusal.
        """
        from coordinator.analyst.log_check import audit
        from shared.wire.messages import EntriesRequest, ReleasesRequest

        followed = self.require_followed()
        studies = {study: self.ask("Releases", ReleasesRequest(study=study))["releases"] for study in self}
        checked = followed.follow()
        entries: list[str] = []
        while len(entries) < checked.head.size:
            page = self.ask("Entries", EntriesRequest(after=len(entries)))["entries"]
            if not page:
                break
            entries += page
        return audit(checked, entries[: checked.head.size], studies)

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
        from shared.wire.messages import StudiesRequest

        document = self.ask("Studies", StudiesRequest())
        rows = []
        for study in document["studies"]:
            waves = study["delivered"]
            row = {"study": study["study"], "title": study["title"], "sites": len(study["sites"])}
            row |= {"waves": ", ".join(map(str, waves)) or None, "n": _total(study), "posture": study["posture"]}
            rows.append({**row, "last release": study["last_day"]})
        return ResultTable(f"{document['analyst']}, {document['role']}", rows, document)

    def ask(self, method: str, request: Any) -> Any:
        """One call; its document. Raises: the refusal of the coordinator, NetworkRefusal."""
        return parse_json(self._client.call(method, request, timeout=PATIENCE).json, cap=DOCUMENT_CAP)

    def stream(self, method: str, request: Any) -> Iterator[Any]:
        """One call that is answered by a stream."""
        found: Iterator[Any] = self._client.call(method, request, timeout=PATIENCE)
        return found

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


class Study(_Shown):
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
        found: dict[str, Any] = next(study for study in studies if study["study"] == self.name)
        return found

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
        from shared.wire.messages import DescribeRequest

        document = self._connection.ask("Describe", DescribeRequest(study=self.name, column=column))
        rows = []
        for found in document["columns"]:
            span = f"{found['lower']:g} to {found['upper']:g}" if found["lower"] is not None else None
            row = {"column": found["name"], "meaning": found["label"], "kind": found["kind"], "unit": found["unit"]}
            row["values"] = span or ", ".join(map(str, found["levels"]))
            shares = found["missing_share"].values()
            row["missing at most"] = _percent(max(shares, default=0.0))
            row["not at"] = ", ".join(found["lacking"])
            if not column:
                rows.append(row)
                continue
            for site in sorted({*found["missing_share"], *found["lacking"]}):
                share = found["missing_share"].get(site)
                missing = "no such column" if share is None else _percent(share)
                rows.append({"site": site, "missing": missing, **{k: row[k] for k in ("meaning", "unit", "values")}})
        return ResultTable(f"{self.name}{f', {column}' if column else ''}", rows, document)

    def releases(self) -> ResultTable:
        """Every release: bundle, receipt, and whether its site took it back."""
        from shared.wire.messages import ReleasesRequest

        document = self._connection.ask("Releases", ReleasesRequest(study=self.name))
        rows = []
        for found in document["releases"]:
            row = {name: found[name] for name in ("wave", "site", "n", "release_id")}
            row |= {"bundle": found["bundle_sha256"][:12], "ε": shown_price(found["epsilon"], found["epsilon_given"])}
            row |= {"posture": found["receipt"]["posture"], "day": found["accepted_day"]}
            rows.append({**row, "state": f"withdrawn: {found['withdrawn']}" if found["withdrawn"] else "accepted"})
        return ResultTable(f"releases of {self.name}", rows, document)

    def rows(self, release_id: str) -> pd.DataFrame:
        """The privatised rows of one release, where the plan lets analysts have them; the download is recorded.

        Raises: PolicyRefusal, StateRefusal.
        """
        import io

        import pandas as pd

        from shared.wire.messages import RowsRequest

        parts = self._connection.stream("Rows", RowsRequest(study=self.name, release_id=release_id))
        table = pd.read_parquet(io.BytesIO(b"".join(part.data for part in parts)))
        table.attrs["label"] = "privatised rows, not patient records"
        return table

    def synthetic(self, site: str, **how: Any) -> Synthesis:
        """Synthesis from a site's noisy figures, fitted on this machine: its releases' rows are fetched once.

        ``study.synthetic("north", fit="moments", draws=5).draw().tables`` are five tables of one fit. Nothing is
        fitted at the coordinator, and no site is asked; the downloads stand in the study's record.

        Args:
            site: whose figures, as of the newest wave. how: as of `shared.releases.synthetic.Synthesis`.
        Raises: EstimateRefusal (no release, or of several kinds); PolicyRefusal (the plan does not let rows leave);
            from the drawing StateRefusal, where a release was taken back meanwhile.
        """
        from shared.plans.plan import StudyPlan
        from shared.releases.synthetic import Synthesis

        document = self.releases().document
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
        if any(plan.release != plans[-1].release for plan in plans):
            raise EstimateRefusal("a site's releases must be of one [release] to be added up", given="several")

        def still() -> None:
            if self.releases().document["held"].get(site) != held:
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
        return Synthesis(plans[-1], figures, about=about, still=still, **how)

    def log(self) -> Log:
        """The multiplicity record: every question to this study, by anyone, answered or refused."""
        from shared.wire.messages import LogRequest

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

    def explain(self, result_id: str) -> Explanation:
        """Provenance of a result of this study, by its id or the first digits. Raises: StateRefusal (none)."""
        from shared.wire.messages import ExplainRequest

        return Explanation(self._connection.ask("Explain", ExplainRequest(study=self.name, result_id=result_id)))

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
        from shared.wire.messages import QueryRequest

        known = ("method", "test", "level", "wave", "as_of", "combine", "label", "harmonise", "to", "densities")
        settings = {name: value for name, value in how.items() if name in known}
        options = {name: str(value) for name, value in how.items() if name not in known}
        request = QueryRequest(study=self.name, kind=kind, formula=formula, term=term, options=options, **settings)

        def requery(**changed: Any) -> Result:
            return self.query(kind, formula, **{"term": term, **how, **changed})

        return _result(self, self._connection.ask("Query", request), requery)

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

    def planned(self, name: str, *, term: str = "", **how: Any) -> Result:
        """Ask a planned analysis by its name; the record says ``confirmatory`` unless told otherwise."""
        return self.query("", name, term=term, **{"label": "confirmatory", **how})

    def cox(self, formula: str, *, term: str = "", **how: Any) -> Result:
        """Cox regression: ``Surv(time, event) ~ sbp + age``; the result is a hazard ratio."""
        return self.query("cox", formula, term=term, **how)

    def glm(self, formula: str, *, family: str = "binomial", term: str = "", **how: Any) -> Result:
        """A generalised linear model of family gaussian, binomial or poisson."""
        kinds = {"gaussian": "ols", "binomial": "logistic", "poisson": "poisson"}
        if family not in kinds:
            raise ParameterError(f"family must be one of {', '.join(kinds)}", given=repr(family))
        return self.query(kinds[family], formula, term=term, **how)

    def ols(self, formula: str, *, term: str = "", **how: Any) -> Result:
        """Linear regression."""
        return self.query("ols", formula, term=term, **how)

    def logistic(self, formula: str, *, term: str = "", **how: Any) -> Result:
        """Logistic regression; the result is an odds ratio."""
        return self.query("logistic", formula, term=term, **how)

    def poisson(self, formula: str, *, term: str = "", **how: Any) -> Result:
        """Poisson regression; the result is a rate ratio."""
        return self.query("poisson", formula, term=term, **how)

    def km(self, formula: str, *, at: float, term: str = "", **how: Any) -> Result:
        """Kaplan-Meier: the share without the event at time `at`: ``Surv(time, event) ~ arm``, or ``~ 1``."""
        return self.query("km", formula, term=term, at=at, **how)

    def rmst(self, formula: str, *, tau: float, term: str = "", **how: Any) -> Result:
        """Restricted mean survival time until `tau`."""
        return self.query("rmst", formula, term=term, tau=tau, **how)

    def logrank(self, formula: str, *, term: str = "", **how: Any) -> Result:
        """Log-rank comparison, as Peto's log hazard ratio: ``Surv(time, event) ~ arm``."""
        return self.query("logrank", formula, term=term, **how)

    def two_by_two(self, formula: str, *, measure: str = "OR", **how: Any) -> Result:
        """Two groups and an outcome: ``died ~ arm``; OR, RR or RD."""
        return self.query("two_by_two", formula, measure=measure, **how)

    def mean(self, column: str, **how: Any) -> Result:
        """Mean of a column."""
        return self.query("mean", column, **how)

    def proportion(self, outcome: str, **how: Any) -> Result:
        """Proportion of rows for which something holds, as in ``sbp > 140``."""
        return self.query("proportion", outcome, **how)

    def difference(self, formula: str, *, term: str = "", **how: Any) -> Result:
        """Difference of means to the first group: ``sbp ~ arm``."""
        return self.query("difference", formula, term=term, **how)

    def ratio(self, formula: str, *, term: str = "", **how: Any) -> Result:
        """Ratio of means to the first group: ``sbp ~ arm``."""
        return self.query("ratio", formula, term=term, **how)

    def correlation(self, *columns: str, structure: str = "pearson", **how: Any) -> Result:
        """Correlation of two columns; with structure ``cs`` the one correlation of all of them, of equal variance."""
        return self.query("correlation", f"~ {' + '.join(columns)}", structure=structure, **how)


class Result(_Shown):
    """The answer to one question: a row per site; `meta` is the pooled result.

    Args:
        study: where it was asked.
        document: the coordinator's answer.
        again: asks the same question with other settings.
    """

    def __init__(self, study: Study, document: Mapping[str, Any], requery: Callable[..., Result]) -> None:
        self._study, self.document, self._requery = study, document, requery

    @property
    def id(self) -> str:
        """The result's id, for `Study.explain` and the paper."""
        return str(self.document["result"])

    @property
    def beta(self) -> float:
        """The pooled estimate, on the scale of the analysis (the logarithm of a ratio)."""
        return float(self.document["pooled"]["beta"])

    @property
    def se(self) -> float:
        """Its standard error."""
        return float(self.document["pooled"]["se"])

    @property
    def pooled(self) -> PooledResult:
        """Pooled again from the sites' estimates that were sent. Raises: IntegrityRefusal (another number)."""
        return self._pooled(self.document)

    def _pooled(self, document: Mapping[str, Any]) -> PooledResult:
        from dataclasses import replace
        from math import isclose

        from coordinator.pooling.pool import pool_estimates

        how = self.document["asked"]
        rows = [_estimate(row) for row in document["estimates"]]
        found = pool_estimates(rows, method=how["method"], test=how["test"], level=how["level"])
        found = replace(found, effect=self.document.get("effect", ""))
        if not isclose(found.beta, document["pooled"]["beta"], rel_tol=1e-6, abs_tol=1e-9):
            raise IntegrityRefusal(
                "this computer must pool to the number that was sent",
                given="another",
                next_step="Install the coordinator's version (see explain).",
            )
        return found

    def meta(self, **changed: Any) -> Meta:
        """The pooled result; with another method, test or level the question is asked again, and recorded.

        Args:
            changed: method, test, level, and whatever else `Study.query` takes.
        """
        return Meta(self._requery(**changed) if changed else self)

    @overload
    def forest(
        self,
        path: str | Path,
        kind: str = "forest",
        title: str = "",
        *,
        subgroups: str | Mapping[str, Any] = "",
        favours: tuple[str, str] | None = None,
        sort: str = "",
    ) -> Path: ...
    @overload
    def forest(
        self,
        path: None = None,
        kind: str = "forest",
        title: str = "",
        *,
        subgroups: str | Mapping[str, Any] = "",
        favours: tuple[str, str] | None = None,
        sort: str = "",
    ) -> Picture: ...
    def forest(
        self,
        path: str | Path | None = None,
        kind: str = "forest",
        title: str = "",
        *,
        subgroups: str | Mapping[str, Any] = "",
        favours: tuple[str, str] | None = None,
        sort: str = "",
    ) -> Path | Picture:
        """Draw the forest plot (or funnel, leave-one-out, cumulative, baujat, influence) to .svg, .pdf or .png.

        A forest plot's numbers, mark by mark, are written to .csv.

        Args:
            path: the file; without one it is a picture that a notebook shows.
            subgroups: ``posture``, or any fact about the sites, site -> level: each level with its own diamond.
            favours: what lies left and right of the null line.
            sort: its rows by ``name``, ``estimate`` or ``weight``; as the sites stand when blank.
        """
        from coordinator.analyst.show import draw

        document = self.document
        title = title or document["title"]
        how = {
            "title": title,
            "note": _caption(document),
            "columns": document["columns"],
            "favours": favours,
            "sort": sort,
        }
        how["group"] = self._group(subgroups)
        return _drawn(lambda file: draw(self.pooled, kind, path=file, **how), title, path, kind)

    def further(
        self,
        *,
        mods: Mapping[str, Mapping[str, Any]] | None = None,
        subgroups: str | Mapping[str, Any] = "",
        bayes: bool = False,
        scale: float = 0.5,
        exact: bool = False,
        diagnostics: bool = False,
    ) -> Further:
        """Further analyses of a pooled result, computed here from the sites' estimates.

        Args:
            mods: moderator -> (site -> value): one meta-regression on all of them.
            subgroups: as in `forest`.
            bayes: the posterior under a half-normal prior of this `scale` on tau.
            exact: the intervals for few studies.
            diagnostics: leave-one-out, influence, Egger, Begg, trim-and-fill.
        """
        from coordinator.pooling.analyses import AnalysisRequest, analyse
        from shared.terminal import plain

        group = self._group(subgroups)
        request = AnalysisRequest(
            mods=mods or {}, group=group, bayes=bayes, scale=scale, exact=exact, diagnostics=diagnostics
        )
        return Further(self, analyse(self.pooled, request), plain)

    def by(self, column: str) -> ResultTable:
        """The same question of the rows of each level of a column, and whether the levels differ.

        Each level is a question of its own, and stands in the study's record.

        Args:
            column: a column of the dictionary that has levels.
        Raises: ParameterError (no such column, or one of numbers), and the coordinator's refusals.
        """
        from scipy.special import chdtrc

        from coordinator.analyst.show import p_shown

        known = {row["column"]: row for row in self._study.dictionary()}
        levels = {one["name"]: one["levels"] for one in self._study.dictionary().document["columns"]}
        if not levels.get(column):
            listed = ", ".join(name for name, found in levels.items() if found)
            near = difflib.get_close_matches(column, known, n=1)
            facts = ", ".join(self.document["columns"])
            raise ParameterError(
                "subgroups must be the levels of a column, or of a fact about the sites",
                given=repr(column) + ("" if column not in known else ", which holds numbers"),
                next_step=(f"Did you mean {near[0]!r}? " if near and near[0] != column else "")
                + f"Columns with levels: {listed or 'none'}; facts: {facts}.",
            )
        held = str(self.document["asked"].get("subset") or _subset(self.document["estimand"]))
        rows: list[dict[str, Any]] = []
        for level in levels[column]:
            only = f'{column} == "{level}"' if isinstance(level, str) else f"{column} == {level}"
            line: dict[str, Any] = {"level": str(level), "sites": None, "estimate": None, "ci_lb": None, "ci_ub": None}
            try:
                found = self._requery(subset=f"({held}) & {only}" if held else only).document
            except EstimateRefusal as refusal:
                rows.append({**line, "beta": None, "se": None, "reason": str(refusal)})
                continue
            own = {name: found["pooled"][name] for name in ("beta", "se")}
            rows.append({**line, "sites": found["k"], **found["pooled"]["shown"], **own, "reason": None})
        there = [row for row in rows if row["beta"] is not None]
        weights = [1 / row["se"] ** 2 for row in there]
        title = f"{_title(self.document)}, by {column}"
        if len(there) > 1:
            mean = sum(w * row["beta"] for w, row in zip(weights, there, strict=True)) / sum(weights)
            q = sum(w * (row["beta"] - mean) ** 2 for w, row in zip(weights, there, strict=True))
            title += (
                f": levels differ by Q {q:.2f} on {len(there) - 1} df, p {p_shown(float(chdtrc(len(there) - 1, q)))}"
            )
        return ResultTable(title, rows, {"column": column, "rows": rows})

    def _group(self, subgroups: str | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        """Name and levels of subgroups. Raises: ParameterError: no such fact about the sites."""
        columns = self.document["columns"]
        group = ("", subgroups) if isinstance(subgroups, Mapping) else (subgroups, columns.get(subgroups, {}))
        if subgroups and not group[1]:
            raise ParameterError(
                "subgroups of sites must be a fact about them",
                given=repr(subgroups),
                next_step=f"Facts: {', '.join(columns)}. For a column of the patients take `by`, or --subgroup alone.",
            )
        return group if subgroups else None

    def curves(self) -> ResultTable:
        """Of a km question: the share without the event at public times, with the rows at risk, site by site.

        Raises: ParameterError: another kind of question.
        """
        document = self._curves()
        rows = [
            {"curve": curve["label"], **dict(zip(_ON_CURVES, values, strict=True))}
            for curve in (*document["curves"], *document.get("pooled", ()))
            for values in zip(*(curve[name] for name in _ON_CURVES), strict=True)
        ]
        return ResultTable(f"{document['title']}: {document['axis']}", rows, document)

    @overload
    def curve(self, path: str | Path, *, sites: Sequence[str] = (), bands: bool | None = None) -> Path: ...
    @overload
    def curve(self, path: None = None, *, sites: Sequence[str] = (), bands: bool | None = None) -> Picture: ...
    def curve(
        self, path: str | Path | None = None, *, sites: Sequence[str] = (), bands: bool | None = None
    ) -> Path | Picture:
        """Draw the Kaplan-Meier curves of a km question, with the rows at risk below.

        Args:
            path: the file; without one it is a picture that a notebook shows.
            sites: only these, without the pooled curve; all when empty.
            bands: draw the pointwise intervals of the sites; by default with up to three curves.
        Raises: ParameterError: another kind of question, or more curves than can be told apart.
        """
        from coordinator.figures.over_time import km_figure
        from shared.estimands.survival import GridCurve

        document = self._curves()
        shown = [
            GridCurve(**curve) for curve in document["curves"] if not sites or curve["label"].split(", ")[0] in sites
        ]
        how = {"title": document["title"], "note": document["note"], "left_out": document["left_out"], "bands": bands}
        words = {"xlabel": document["axis"], "ylabel": f"Share without {document['event']}"}
        how["pooled"] = [GridCurve(**curve) for curve in document.get("pooled", ()) if not sites]
        return _drawn(lambda file: km_figure(shown, path=file, **how, **words), document["title"], path)

    def _curves(self) -> dict[str, Any]:
        document: dict[str, Any] | None = self.document.get("curves")
        if document is None:
            raise ParameterError(
                "only a km question that a site could answer has curves",
                given=str(self.document["estimand"]),
                next_step='Ask study.km("Surv(time, event) ~ 1", at=...).',
            )
        return document

    def explain(self) -> Explanation:
        """Bundles, receipts, plan and code versions behind it; who asked; whether it is stale."""
        return self._study.explain(self.id)

    def export(self, path: str | Path, kind: str = "forest") -> Path:
        """Write it: the table of the sites' estimates (.csv, .parquet), all that was sent (.json), or a figure.

        Args:
            kind: of a figure: as in `forest`, or ``curve``.
        Raises: ParameterError: another suffix.
        """
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix == ".json":
            path.write_text(json.dumps(self.document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        elif suffix in (".csv", ".parquet"):
            write_table(self.to_frame(), path)
        elif suffix in FILES:
            _ = self.curve(path) if kind == "curve" else self.forest(path, kind)
        else:
            raise ParameterError(
                f"a result's file must end in .csv, .parquet, .json, {', '.join(FILES)}", given=repr(path.name)
            )
        return path

    def to_frame(self) -> pd.DataFrame:
        """One row per site, as `analyst pool` reads them."""
        import pandas as pd

        names = ["site", "study", "wave", "term", "n", "scale", "yi"]
        names += ["vi_sampling", "vi_privacy", "vi_naive", "vi_common", "reason"]
        table = pd.DataFrame(
            [{name: row[name] for name in names} for row in self.document["estimates"]], columns=list(names)
        )
        table.insert(7, "vi", table["vi_sampling"] + table["vi_privacy"])
        return table.assign(effect=self.document.get("effect", ""))

    def terms(self) -> ResultTable:
        """Every term of the question, each pooled by itself: what a paper's table of coefficients needs."""
        document = self.document
        return ResultTable(f"{document['study']}: {document['estimand']}", list(document.get("table", ())), document)

    def show_whole(self, out: Console) -> None:
        """Draw it with the pooled result and all terms of the question."""
        from coordinator.analyst.show import show_pooled, show_terms

        document, pooled = self.document, self.pooled
        _headed(out, document)
        show_pooled(out, pooled, extra=self._sizes())
        for sentence in document.get("cautions", ()):
            out.print(f"note  {sentence}", style="dim")
        if len(document.get("table", ())) > 1:
            out.print()
            show_terms(out, document["table"], document["level"])
        out.print(f"result {self.id}", style="dim")

    def _sizes(self) -> dict[str, dict[str, str]]:
        return {"n": {row["site"]: f"{row['n']:,}" for row in self.document["estimates"] if row["yi"] is not None}}

    def show(self, out: Console) -> None:
        """Draw it."""
        from math import isfinite

        from shared.estimands.effects import SCALES, shown
        from shared.terminal import number, table

        document = self.document
        scale = document["scale"]
        _headed(out, document)
        rows = []
        for row in document["estimates"]:
            if row["yi"] is None:
                rows.append([row["site"], None, None, row["n"] or None, row["reason"]])
                continue
            se = (row["vi_sampling"] + row["vi_privacy"]) ** 0.5
            value = shown(row["yi"], scale)
            rows.append([row["site"], number(value) if isfinite(value) else "∞", number(se), row["n"], ""])
        head, error = _effect(document), f"se of its {SCALES[scale]}" if SCALES[scale] else "se"
        out.print(table(["site", head, error, "n", "left out because"], rows, right=[head, error, "n"]))
        out.print(_line(document))
        for sentence in document.get("cautions", ()):
            out.print(f"note  {sentence}", style="dim")
        out.print(f"result {self.id}", style="dim")

    def _repr_html_(self) -> str:
        from html import escape

        from coordinator.analyst.show import html_table, paragraphs, pooled_html, terms_table

        document = self.document
        parts = [f"<p><b>{escape(_title(document))}</b></p>", paragraphs([_caption(document), _line(document)])]
        parts += [pooled_html(self.pooled, extra=self._sizes())]
        parts += [paragraphs([f"note: {sentence}" for sentence in document.get("cautions", ())])]
        if len(document.get("table", ())) > 1:
            heads, cells = terms_table(document["table"], document["level"])
            parts += ["<p><b>all terms, each pooled by itself</b></p>", html_table(heads, cells, worded=heads[:1])]
        return "".join([*parts, paragraphs([f"result {self.id}"])])


class HarmonisedResult(Result):
    """An answer as it stands, and beside it what a column mapped onto one site's scale makes of it.

    All of `Result` is about the answer as it stands: nobody sees the harmonised one alone.
    """

    @property
    def mapping(self) -> Mapping[str, Any]:
        """The harmonised part of the document: maps, estimates, pooled result, warnings."""
        found: Mapping[str, Any] = self.document["harmonised"]
        return found

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings against harmonising, in sentences."""
        return tuple(self.mapping["warnings"])

    @property
    def raw(self) -> float | None:
        """The estimate of all rows in one table, as if one laboratory had measured them."""
        value = self.mapping["raw"]["yi"]
        return None if value is None else float(value)

    @property
    def harmonised(self) -> PooledResult:
        """Pooled again as `Result.pooled`, from the mapped rows' estimates; its interval holds the maps' variance."""
        from dataclasses import replace

        pooled = self._pooled(self.mapping)
        return replace(pooled, shared=pooled.shared + float(self.mapping["map_variance"]))

    def forest(self, path: Any = None, kind: str = "forest", title: str = "", **how: Any) -> Any:
        """Draw the three answers in one forest plot; of another kind, the figure of the answer as it stands.

        Args: as of `Result.forest`; there are no subgroups and sides beside the three answers.
        Raises: ParameterError.
        """
        if kind != "forest" or any(how.values()):
            return super().forest(path, kind, title, **how)
        from coordinator.answers.harmonise import draw

        mapping = self.mapping
        what = mapping["column"].replace(",", " and ")
        title = title or f"{self.document['study']}: {self.document['term']}, {what} on the scale of {mapping['to']}"
        words = {"title": title, "question": self.document["estimand"], "warnings": self.warnings}
        arms = (self.pooled, self.harmonised, _estimate(mapping["raw"]))
        return _drawn(
            lambda file: draw(*arms, map_variance=mapping["site_map_variance"], path=file, **words), title, path
        )

    def show(self, out: Console) -> None:
        """Draw it."""
        from shared.terminal import number, table

        mapping, document = self.mapping, self.document
        out.print(mapping["lines"][0], style="bold")
        out.print(_caption(document), style="dim")
        mapped = {row["site"]: row for row in mapping["estimates"]}
        rows = []
        for row in document["estimates"]:
            other = mapped.get(row["site"], row)
            spread = mapping["site_map_variance"].get(row["site"])
            cells = [_value(row, document["scale"]), _value(other, document["scale"])]
            why = row["reason"] or other["reason"]
            rows.append([row["site"], *cells, None if spread is None else number(spread**0.5), row["n"] or None, why])
        heads = ["site", "as released", "harmonised", "se of map", "n", "left out because"]
        out.print(table(heads, rows, right=heads[1:5]))
        for line in mapping["lines"][1:]:
            out.print(line, style="yellow" if line.startswith("warning") else None)
        out.print(f"result {self.id}", style="dim")

    def _repr_html_(self) -> str:
        return _html(self.mapping["lines"][0], self.to_frame(), *self.mapping["lines"][1:])

    def to_frame(self) -> pd.DataFrame:
        """One row per site: the estimate as released and its variance, and the same after mapping."""
        frame = super().to_frame()
        mapped = {row["site"]: row for row in self.mapping["estimates"]}
        known = [mapped.get(site, {"yi": None, "vi_sampling": None, "vi_privacy": 0.0}) for site in frame["site"]]
        frame["yi_harmonised"] = [row["yi"] for row in known]
        frame["vi_harmonised"] = [
            None if row["yi"] is None else row["vi_sampling"] + row["vi_privacy"] for row in known
        ]
        frame["vi_map"] = [self.mapping["site_map_variance"].get(site) for site in frame["site"]]
        return frame


def _result(study: Study, document: Mapping[str, Any], requery: Callable[..., Result]) -> Result:
    """The answer as its kind of object, once every release that it rests on is proven to stand in the log.

    Raises: IntegrityRefusal.
    """
    study.require_proven(document)
    return (HarmonisedResult if "harmonised" in document else Result)(study, document, requery)


def _estimate(row: Mapping[str, Any]) -> Estimate:
    from shared.estimands.answer import Estimate

    return Estimate(**{**row, "receipts": tuple(row["receipts"]), "warnings": tuple(row["warnings"])})


def _value(row: Mapping[str, Any], scale: Scale) -> str | None:
    """An estimate off the analysis scale, with its standard error on it."""
    from shared.estimands.effects import shown
    from shared.terminal import number

    if row["yi"] is None:
        return None
    return f"{number(shown(row['yi'], scale))} ({number((row['vi_sampling'] + row['vi_privacy']) ** 0.5)})"


class Picture:
    """A figure that a notebook shows.

    Args:
        title: what it is of.
        svg: the drawing.
    """

    def __init__(self, title: str, svg: str) -> None:
        self.title, self.svg = title, svg

    def __repr__(self) -> str:
        return f"figure: {self.title}"

    def _repr_svg_(self) -> str:
        return self.svg


def _drawn(draw: Callable[[Path], object], title: str, path: str | Path | None, kind: str = "") -> Path | Picture:
    """The figure that `draw` writes: a file, or without one a picture. Raises: ParameterError: another suffix."""
    from tempfile import TemporaryDirectory

    from coordinator.analyst.show import check_figure

    if path is None:
        with TemporaryDirectory() as folder:
            draw(Path(folder) / "figure.svg")
            return Picture(title, (Path(folder) / "figure.svg").read_text(encoding="utf-8"))
    path = Path(path)
    check_figure(path, kind)
    draw(path)
    return path


class Meta(_Shown):
    """The pooled result of an answer, with its heterogeneity."""

    def __init__(self, result: Result) -> None:
        self.result, self.document = result, result.document

    def __getattr__(self, name: str) -> Any:
        document = self.__dict__.get("document", {})
        if name in document.get("pooled", {}):
            return document["pooled"][name]
        raise AttributeError(name)

    def to_frame(self) -> pd.DataFrame:
        """Both models, one row each."""
        import pandas as pd

        return pd.DataFrame(
            [self.document["fixed"], self.document["pooled"]], index=pd.Index(["fixed", "random"], name="effects")
        )

    def _repr_html_(self) -> str:
        from coordinator.analyst.show import paragraphs, pooled_html

        cautions = [f"note: {sentence}" for sentence in self.document.get("cautions", ())]
        return pooled_html(self.result.pooled) + paragraphs(cautions)

    def show(self, out: Console) -> None:
        """Draw it."""
        from coordinator.analyst.show import show_pooled

        show_pooled(out, self.result.pooled)


class Further(_Shown):
    """Answers beyond the pooled result: `document` holds them as plain values, `answers` as the library gave them."""

    def __init__(self, result: Result, answers: dict[str, Any], plain: Callable[[Any], Any]) -> None:
        self._result, self.answers = result, answers
        self.document: dict[str, Any] = plain(answers)

    def __getitem__(self, name: str) -> Any:
        return self.answers[name]

    def show(self, out: Console) -> None:
        """Draw them."""
        from coordinator.pooling.analyses import show

        show(out, self._result.pooled, self.answers)


class Explanation(_Shown):
    """Provenance of a result: releases, receipts, plan, code, who asked."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document

    @property
    def stale(self) -> tuple[str, ...]:
        """Reasons why the same question has other releases behind it today; empty where it has not."""
        return tuple(self.document["stale"])

    def to_frame(self) -> pd.DataFrame:
        """One row per release."""
        import pandas as pd

        rows = [{k: v for k, v in row.items() if k != "receipt"} for row in self.document["releases"]]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        document = self.document["answer"]
        plan, code = document["provenance"]["plan"], document["provenance"]["code"]
        notes = [f"stale: {why}" for why in self.stale] + [
            _line(document),
            *(f"note: {sentence}" for sentence in document.get("cautions", ())),
            f"plan version {plan['version']}, {plan['hash']}",
        ]
        notes.append(", ".join(f"{name} {version}" for name, version in code.items()))
        return _html(f"result {self.document['result']}: {_title(document)}", self.to_frame(), *notes)

    def show(self, out: Console) -> None:
        """Draw it."""
        from shared.terminal import number, table

        document = self.document["answer"]
        out.print(f"result {self.document['result']}: {_title(document)}", style="bold")
        out.print(_caption(document), style="dim")
        for why in self.stale:
            out.print(f"stale: {why}", style="bold red")
        out.print(_line(document))
        found = [row for row in document["estimates"] if row.get("vi_naive") is not None]
        for how in dict.fromkeys(row["how"] for row in found):
            out.print(f"variance by {how}")
        parts = [
            [row["site"], *(number(row[name] ** 0.5) for name in ("vi_sampling", "vi_privacy", "vi_naive"))]
            for row in found
        ]
        heads = ["site", "se of patients and flow", "of noise", "naive"]
        out.print(table(heads, parts, right=heads[1:]))
        for note in document["notes"]:
            out.print(f"note    {note}", style="dim")
        plan, code = document["provenance"]["plan"], document["provenance"]["code"]
        out.print(f"plan    version {plan['version']}, {plan['hash']}")
        out.print(f"code    {', '.join(f'{name} {version}' for name, version in code.items())}")
        rows = [
            [row["site"], row["wave"], row["n"], row["bundle_sha256"][:16], row["receipt_hash"][:16], row["log_index"]]
            for row in self.document["releases"]
        ]
        heads = ["site", "wave", "n", "bundle", "receipt", "log entry"]
        out.print(table(heads, rows, right=["wave", "n", "log entry"]))
        for line in self.document["asked_by"]:
            out.print(f"asked by {line['analyst']} on {line['day']}, {line['label']}")


def _effect(document: Mapping[str, Any]) -> str:
    """What the estimates are called; a coordinator of version 0.1 does not say."""
    return str(document.get("effect", "")).lower() or ("ratio" if document["scale"] == "log" else "estimate")


def _subset(estimand: str) -> str:
    """The filter that a question holds; blank without one."""
    from shared.estimands.questions import parse_estimand

    return parse_estimand(estimand).subset


def _title(document: Mapping[str, Any]) -> str:
    return str(document["title"])


def _caption(document: Mapping[str, Any]) -> str:
    """What stands under a title; an answer that was kept by an earlier version has less of it."""
    return str(document.get("caption") or f"{document['study']}, wave {document['wave']}. {document['told']}")


def _headed(out: Console, document: Mapping[str, Any]) -> None:
    out.print(_title(document), style="bold")
    out.print(_caption(document), style="dim")


def _line(document: Mapping[str, Any]) -> str:
    """The pooled result in one line, off the analysis scale."""
    from shared.estimands.effects import shown
    from shared.terminal import number

    pooled = document["pooled"]
    value, low, high = (number(shown(pooled[name], document["scale"])) for name in ("beta", "ci_lb", "ci_ub"))
    how = f"{pooled['method']}, {pooled['test']}, {document['k']} sites"
    return f"pooled {_effect(document)} {value} ({100 * document['level']:g} % CI {low} to {high}; {how})"


def _html(title: str, frame: pd.DataFrame | None, *notes: str) -> str:
    """HTML for a notebook: a heading, a table, sentences below it. Names and texts of others are only text."""
    from html import escape

    shown = "<p>none yet</p>" if frame is None else frame.to_html(index=frame.index.name is not None, na_rep="–")
    return f"<p><b>{escape(title)}</b></p>{shown}{''.join(f'<p>{escape(note)}</p>' for note in notes)}"


def _cell(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value if value != "" else None


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _persons(facts: Mapping[str, Any], returning: str) -> int:
    """Released rows of a site's newest wave; under append of all its waves, which are different persons."""
    by_wave: Mapping[str, int] = facts["n"]
    return sum(by_wave.values()) if returning == "append" else by_wave[max(by_wave, key=int)]


def _total(study: Mapping[str, Any]) -> int:
    return sum(_persons(facts, study["returning"]) for facts in study["sites"].values())
