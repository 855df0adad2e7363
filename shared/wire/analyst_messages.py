"""Messages between an analyst and a coordinator: one frozen value each, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.base.canonical import is_word
from shared.errors import TooLarge
from shared.wire.message_limits import FORMULA_CAP, LABELS, PLACES, RELEASES_CAP, must

__all__ = [
    "FIGURE_FILES",
    "AnswerSiteRequest",
    "BudgetsRequest",
    "DescribeRequest",
    "Document",
    "EntriesRequest",
    "ExplainRequest",
    "FigureRequest",
    "LogRequest",
    "LooksFigureRequest",
    "LooksRequest",
    "MonitorRequest",
    "ProofRequest",
    "QueryRequest",
    "ReleasesRequest",
    "RowsChunk",
    "RowsRequest",
    "StudiesRequest",
    "StudySitesRequest",
]


FIGURE_FILES = ("svg", "pdf", "png", "csv")


# -- what analysts say ------------------------------------------------------------------------------------------
def _must_be_study(study: str) -> None:
    must(is_word(study), "a study must be a plain word")


@dataclass(frozen=True, kw_only=True)
class StudiesRequest:
    """Request for the studies of the caller's token."""


@dataclass(frozen=True, kw_only=True)
class DescribeRequest:
    """The dictionary of a study, or one column of it."""

    study: str
    column: str = ""

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        must(len(self.column) <= 256, "a column's name must be short")


@dataclass(frozen=True, kw_only=True)
class ReleasesRequest:
    """The releases of a study: all of them, or a page in the order of the log.

    Args:
        most: releases of a page, of which there may be fewer than that; 0 for all, in one answer.
        after: beyond this place in the log, which the page before names as ``more``; none for the first page.
        newest: from the newest to the oldest.
        site: of this site alone; of all when empty.
        wave: of this wave alone; 0 for all.
    """

    study: str
    most: int = 0
    after: int | None = None
    newest: bool = False
    site: str = ""
    wave: int = 0

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        must(0 <= self.most <= RELEASES_CAP, f"a page must have at most {RELEASES_CAP} releases")
        must(self.after is None or 0 <= self.after < PLACES, "a place in the log must be a number")
        must(not self.site or is_word(self.site), "a site must be a plain word")
        must(0 <= self.wave < 1 << 31, "a wave is a number")


@dataclass(frozen=True, kw_only=True)
class StudySitesRequest:
    """A study by its sites, all or a page of them; over HTTPS alone.

    Args:
        most: sites of a page; 0 for all.
        page: which page, from 1.
    """

    study: str
    most: int = 0
    page: int = 1

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        must(0 <= self.most < 1 << 31 and 1 <= self.page < 1 << 31, "a page is a number from 1")


@dataclass(frozen=True, kw_only=True)
class BudgetsRequest:
    """Request for the privacy losses of a study's releases; over HTTPS alone."""

    study: str

    def __post_init__(self) -> None:
        _must_be_study(self.study)


@dataclass(frozen=True, kw_only=True)
class QueryRequest:
    """One question to the accepted releases of a study.

    Args:
        kind: what to estimate, as in ``cox``; empty when `formula` is the whole question or a planned analysis' name.
        formula: as in ``Surv(time, event) ~ sbp + age``.
        options: further parts of the question, name to text.
        term: which term to pool; the first when empty.
        method, test, level: of the pooling.
        wave: the table as of this wave; 0 for the newest that has a release.
        as_of: a revision of the wave.
        combine: put all refreshes of a site together.
        label: one of `LABELS`; empty for what the plan says of the question: confirmatory if it stands there.
        harmonise: a column, or several parted by commas, to be mapped onto the scale of the site `to`, beside the
            answer as it stands; or empty.
        densities: the study that the maps are made of; the one beside the study when empty.
    """

    study: str
    formula: str
    kind: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    term: str = ""
    method: str = "REML"
    test: str = "adhoc"
    level: float = 0.95
    wave: int = 0
    as_of: int | None = None
    combine: bool = False
    label: str = ""
    harmonise: str = ""
    to: str = ""
    densities: str = ""

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        if self.densities:
            _must_be_study(self.densities)
        must(bool(self.harmonise) == bool(self.to), "harmonising must name a column and a site")
        must(bool(self.harmonise) or not self.densities, "a study of densities must come with a column to map")
        if len(self.formula) > FORMULA_CAP:
            raise TooLarge(f"a formula must have at most {FORMULA_CAP} letters", given=f"{len(self.formula)}")
        must(bool(self.formula.strip()), "a question must have a formula, or the name of a planned analysis")
        must(not self.kind or is_word(self.kind), "the kind of a question must be a plain word")
        short = all(is_word(name) and len(text) <= FORMULA_CAP for name, text in self.options.items())
        must(len(self.options) <= 16 and short, "the options of a question must be few and short")
        for name in ("term", "method", "test", "harmonise", "to"):
            must(len(getattr(self, name)) <= 256, f"a {name} must be short")
        must(0 < self.level < 1, "a level must lie in (0, 1)")
        must(0 <= self.wave < 1 << 31 and (self.as_of is None or 0 <= self.as_of < 1 << 31), "a wave is a number")
        must(self.label in ("", *LABELS), f"a label must be one of {', '.join(LABELS)}")


@dataclass(frozen=True, kw_only=True)
class MonitorRequest:
    """One question as of each wave that was delivered; over HTTPS alone: an analyst's own end asks wave by wave.

    Args:
        spending: which boundary.
        formula, kind, options, term, method, test, level, label: as of `QueryRequest`.
    """

    study: str
    formula: str
    kind: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    term: str = ""
    method: str = "REML"
    test: str = "adhoc"
    level: float = 0.95
    label: str = ""
    spending: str = "obrien-fleming"

    def __post_init__(self) -> None:
        self.as_of(0)
        must(is_word(self.spending), "the spending of an error rate must be a plain word")

    def as_of(self, wave: int) -> QueryRequest:
        """The question as of a wave; 0 for the newest."""
        asked = {name: value for name, value in vars(self).items() if name != "spending"}
        return QueryRequest(wave=wave, **asked)


@dataclass(frozen=True, kw_only=True)
class LooksRequest:
    """Answers to one question as of several waves, held against boundaries that allow for all looks; over HTTPS alone.

    Args:
        results: their ids, parted by commas. spending: which boundary.
    """

    study: str
    results: str
    spending: str = "obrien-fleming"

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        must(0 < len(self.ids) <= 200, "a monitored study must have looks, 200 at most")
        must(all(len(one) <= 64 and one.isalnum() for one in self.ids), "a result id must be a plain word")
        must(is_word(self.spending), "the spending of an error rate must be a plain word")

    @property
    def ids(self) -> list[str]:
        """The results, one by one."""
        return [one.strip() for one in self.results.split(",")]


@dataclass(frozen=True, kw_only=True)
class LooksFigureRequest(LooksRequest):
    """The same, drawn.

    Args:
        suffix: ``svg``, ``pdf`` or ``png``.
    """

    suffix: str

    def __post_init__(self) -> None:
        super().__post_init__()
        must(self.suffix in FIGURE_FILES[:3], f"a figure's file must end in one of {', '.join(FIGURE_FILES[:3])}")


@dataclass(frozen=True, kw_only=True)
class RowsRequest:
    """The rows of one release."""

    study: str
    release_id: str

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        must(0 < len(self.release_id) <= 64 and self.release_id.isalnum(), "a release id must be a plain word")


@dataclass(frozen=True, kw_only=True)
class ProofRequest:
    """The place of a release in the coordinator's log; over HTTPS alone: an answer carries its proofs with it.

    Args:
        seen: size of the log as seen before, from which it is proven to have only grown; 0 for none.
    """

    study: str
    release_id: str
    seen: int = 0

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        must(0 < len(self.release_id) <= 64 and self.release_id.isalnum(), "a release id must be a plain word")
        must(0 <= self.seen < 1 << 53, "a log's size must be a count")


@dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """Request for the provenance of a result."""

    study: str
    result_id: str

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        must(0 < len(self.result_id) <= 64 and self.result_id.isalnum(), "a result id must be a plain word")


@dataclass(frozen=True, kw_only=True)
class AnswerSiteRequest:
    """One site of a result; over HTTPS alone."""

    study: str
    result_id: str
    site: str

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        must(0 < len(self.result_id) <= 64 and self.result_id.isalnum(), "a result id must be a plain word")
        must(is_word(self.site), "a site must be a plain word")


@dataclass(frozen=True, kw_only=True)
class FigureRequest:
    """A result's figure, or its table, as a file; over HTTPS alone: an analyst's own end draws by itself.

    Args:
        kind: ``forest``, one of its companions (``funnel``, ``leave-one-out`` …), ``curve``, or ``table``.
        suffix: ``svg``, ``pdf``, ``png``; of a forest plot's marks and of the table of sites ``csv``.
    """

    study: str
    result_id: str
    kind: str
    suffix: str

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        must(0 < len(self.result_id) <= 64 and self.result_id.isalnum(), "a result id must be a plain word")
        must(is_word(self.kind), "the kind of a figure must be a plain word")
        must(self.suffix in FIGURE_FILES, f"a figure's file must end in one of {', '.join(FIGURE_FILES)}")


@dataclass(frozen=True, kw_only=True)
class LogRequest:
    """The record of questions of a study, from after line `after`."""

    study: str
    after: int = 0

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        must(0 <= self.after < PLACES, "a line of the record is a number")


@dataclass(frozen=True, kw_only=True)
class EntriesRequest:
    """Entries of the coordinator's log, from the one numbered `after`."""

    after: int = 0

    def __post_init__(self) -> None:
        must(0 <= self.after < PLACES, "a place in the log must be a number")


@dataclass(frozen=True, kw_only=True)
class Document:
    """An answer: canonical JSON."""

    json: bytes


@dataclass(frozen=True, kw_only=True)
class RowsChunk:
    """A piece of a Parquet file."""

    data: bytes
