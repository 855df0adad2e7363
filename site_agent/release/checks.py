"""Disclosure checks: what the sealed table must show beside the real one.

The table lies within the dictionary, no released row equals a real one more often than chance, rare levels and clipped
outliers are counted (`check_rows`). The outcome is a `CheckReport` with every threshold and tool version in it, bound
to the bundle's digest; it stays at the site. What must hold before a draw: `site_agent.release.pipeline.before_draw`.

What reads a released person's record after the seal decides nothing where somebody is promised an ε
(`StudyPlan.records_decide`): a table that was refused, or that needed a tick, for what it has in common with one record
would tell of that record at no price. There such a check is a *note*: the approver sees its figures, and it ends the
same way whatever the records were, also where it breaks down on them (`carried_out`). What reads the released table
alone is post-processing, and may decide anywhere.

*Beyond chance* has a meaning here: more hits on rows that one person alone has than tables have that are drawn through
the same flow and from no record (`site_agent.release.equal_rows`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from shared.base.canonical import canonical_json, parse_json
from shared.errors import ChecksRefusal, DictionaryRefusal, PausedRefusal, Refusal, SchemaRefusal
from shared.mechanisms.base import Aggregates
from shared.plans.dictionary import LEVELLED, Column, Dictionary
from shared.privacy.stated import FLOW, shown_price
from site_agent.config import Limits
from site_agent.release.equal_rows import CONFIRMED, TABLES, Chance, ChanceHits, Hits, held_against, hits_on

if TYPE_CHECKING:
    import pandas as pd

    from shared.plans.plan import StudyPlan

__all__ = [
    "Check",
    "CheckReport",
    "carried_out",
    "check_figures",
    "check_network",
    "check_rows",
    "level_counts",
    "tool_versions",
]

FORMAT = "tributary-checks/1"
CHANCE = 1e-3
"""Probability that a harmless release fails the equal-rows check: at most 1 / 2001 for each of its two halves."""
REHEARSALS = 5
"""Tables of persons drawn from the flow whose noise is tried before a record's is drawn."""
CLIPPED_WARNING = 0.05
MODEL_WARNING = 1.5
"""Factor between a motif's density among those held out and in their model that an approver is told of."""
DEGREES_WARNING = 1.5
"""Factor by which a released network may have more or fewer edges before an approver is told of it."""
BROKEN = "could not be carried out on these records"
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One rule, what was measured, and the threshold it was held against.

    Args:
        name: stable handle; an approver ticks a warning by it.
        rule: what must hold, in words.
        outcome: ``passed``, ``warning`` (a person must tick it), ``failed``, or ``note``: shown, and decides nothing.
        measured: a count; None where there is nothing to count.
        threshold: what it was compared with.
        detail: which columns, how many; never a value.
        policy: the threshold as policy states it, whatever table it is applied to: all that is told of it outside.
        notable: of a note, whether the rule does not hold: for the approver's eyes alone.
    """

    name: str
    rule: str
    outcome: Literal["passed", "warning", "failed", "note"]
    measured: float | None = None
    threshold: float | None = None
    detail: str = ""
    policy: float | None = None
    notable: bool = False

    def as_note(self) -> Check:
        """The same figures, deciding nothing."""
        return replace(self, outcome="note", notable=self.outcome != "passed")


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Every check of one sealed release, with the thresholds and tool versions that decided."""

    release_id: str
    bundle_sha256: str
    checks: tuple[Check, ...]
    limits: Mapping[str, float]
    versions: Mapping[str, str]

    @classmethod
    def of(
        cls, release_id: str, bundle_sha256: str, checks: tuple[Check, ...], *, limits: Limits, agent_version: str
    ) -> CheckReport:
        """Report of the checks of a sealed release, with the floors in force and the versions of the tools.

        Args:
            bundle_sha256: of its sealed bytes.
        """
        return cls(
            release_id=release_id,
            bundle_sha256=bundle_sha256,
            checks=checks,
            limits={name: float(value) for name, value in asdict(limits).items()},
            versions=tool_versions(agent_version),
        )

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that forbid the release."""
        return tuple(check for check in self.checks if check.outcome == "failed")

    @property
    def warnings(self) -> tuple[Check, ...]:
        """Checks that an approver must tick."""
        return tuple(check for check in self.checks if check.outcome == "warning")

    def require_passed(self) -> None:
        """Refuse a release that failed. Raises: ChecksRefusal, naming every failed check with its count."""
        if self.failed:
            raise ChecksRefusal(
                "; ".join(check.rule for check in self.failed),
                given="; ".join(
                    f"{check.name}: {check.measured:g}" for check in self.failed if check.measured is not None
                )
                or ", ".join(check.name for check in self.failed),
                next_step="Ask the lead for more noise (a lower w) or coarser columns; this draw stays spent.",
            )

    def to_bytes(self) -> bytes:
        """Canonical JSON, the content of ``checks.json``."""
        body = {"format": FORMAT, **asdict(self), "limits": dict(self.limits), "versions": dict(self.versions)}
        return canonical_json(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> CheckReport:
        """Read ``checks.json``. Raises: SchemaRefusal."""
        body = parse_json(data)
        try:
            if body.pop("format") != FORMAT:
                raise ValueError
            return cls(**{**body, "checks": tuple(Check(**check) for check in body["checks"])})
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SchemaRefusal(f"a check report must have the form {FORMAT}") from None


def level_counts(values: Any, levels: Collection[Any], column: Column) -> tuple[int, ...]:
    """Number of values at each level; then, where absence is a level, the number of absent ones."""
    known = tuple(int((values == level).sum()) for level in levels)
    return (*known, int(values.isna().sum())) if column.missing == "level" else known


def require_rehearsed(own: Sequence[int], simulated: Callable[[int], ChanceHits]) -> None:
    """Refuse a draw that the equal-rows check would most likely refuse once it is sealed. Raises: ChecksRefusal.

    Args:
        own: rows that still are their own person's and nobody else's, in tables of persons drawn from the flow.
        simulated: what that many tables drawn from no record hit, which comes on top.
    """
    if not np.median(own):  # what chance alone brings is within the most that it brings
        return
    for tables in (TABLES, CONFIRMED):  # as `held_against` asks
        chance = simulated(tables)
        most = max(chance.counts)
        usual = float(np.median(own)) * chance.share + float(np.mean(chance.counts))
        if usual <= most:
            return
    raise ChecksRefusal(
        _EQUAL.rule,
        given=f"equal-rows: about {usual:.0f} such rows to be expected at this w, where {most} may be chance",
        next_step="Ask the lead for more noise (a lower w) or coarser columns; nothing was drawn, and the "
        "reservation is kept.",
    )


def check_rows(
    plan: StudyPlan,
    released: pd.DataFrame,
    *,
    real: pd.DataFrame,
    limits: Limits,
    clipped: Callable[[], int],
    chance: Chance,
    beyond: float = 0.0,
    source: Sequence[int] | None = None,
) -> tuple[Check, ...]:
    """Hold a sealed table of synthetic rows beside the real one.

    Args:
        released: the table as read back from the sealed bundle.
        real: (n, columns) canonical values, as `Dictionary.check` returned them.
        clipped: counts the records whose latent lies outside the clipping ball.
        chance: what that many tables drawn from no record hit, or as few of them as are enough.
        beyond: share of records that the plan means to lie outside it, where it pulls them in (`LatentNoise.shrink`).
        source: of each released row the place of its record, in whose order `real` is; -1 where the row was copied from
            an earlier release. All were drawn for this one, in the order of `real`, if left out.
    """
    from shared.privacy.accountant import NoGuarantee
    from shared.releases.receipt import planned_event

    dictionary, decide, event = plan.dictionary, plan.records_decide, planned_event(plan)
    carried, vary = getattr(plan.release, "carry", ""), getattr(plan.release, "vary", "")
    places = np.arange(len(released)) if source is None else np.asarray(source)
    drawn, in_order = released[places >= 0].reset_index(drop=True), np.argsort(places[places >= 0])
    outliers, shared = _outliers(beyond), replace(_ALIKE, policy=float(limits.class_size))
    of_records: tuple[tuple[Check, Callable[[], Check]], ...] = (
        (
            _EQUAL,
            lambda: _equal_rows(
                held_against(drawn, dictionary, chance)
                if decide
                else chance(TABLES, lambda so_far: not so_far.of(drawn, dictionary).beyond_chance).of(drawn, dictionary)
            ),
        ),
        (outliers, lambda: _clip(outliers, clipped(), len(real))),
        *([(shared, lambda: _few_alike(shared, plan, real, drawn.iloc[in_order]))] if plan.quasi_identifiers else []),
    )
    return (
        _dictionary(released, dictionary),
        _persons(len(drawn), len(real), limits),
        _rare_levels(released, dictionary, limits),
        *(find() if decide else _note(rule, find) for rule, find in of_records),
        *(_carried(released, dictionary, carried, limits) if carried else ()),
        *((_varied(vary),) if vary else ()),
        *((_flow_alone(),) if isinstance(event, NoGuarantee) and event.of == "flow" else ()),
    )


def check_figures(
    plan: StudyPlan, released: pd.DataFrame, *, n: int, limits: Limits, clipped: Callable[[], int | None]
) -> tuple[Check, ...]:
    """Hold sealed figures against the plan. Whose records they are of cannot be seen in them: the price says so.

    Args:
        released: the table as read back from the sealed bundle.
        n: persons whose records they were taken of.
        clipped: counts those with a value beyond bounds that the plan sets for the figures; None without such, which
            is said without a look at a record.
    """
    rule = "the figures must be those that the plan names, and possible for so many persons and so much noise"
    try:
        plan.release.validate(plan, released, n)
    except Refusal as refusal:
        exact = Check(name="figures", rule=rule, outcome="failed", detail=str(refusal))
    else:
        exact = Check(name="figures", rule=rule, outcome="passed", detail=f"{len(released)} figures")
    found: tuple[Check, ...] = (exact, _persons(n, n, limits))
    broken: Check | None = _broken(_BEYOND)
    beyond = carried_out(lambda: _beyond(clipped()), broken)
    if beyond is not None:
        found += (beyond,)
    if exact.outcome != "passed" or not isinstance(plan.release, Aggregates):
        return found
    doubt = plan.release.doubt(plan, released, n)
    if not doubt:
        return found
    rule = "the figures must say more of the patients than of the noise"
    return *found, Check(name="too_few_for_the_price", rule=rule, outcome="warning", detail=doubt)


def check_network(
    plan: StudyPlan,
    released: pd.DataFrame,
    *,
    real: pd.DataFrame,
    beside: pd.DataFrame,
    ties: Callable[[], int],
    likeness: Mapping[str, tuple[float, float]],
    limits: Limits,
) -> tuple[Check, ...]:
    """Hold a sealed network against the plan, the persons behind it, and the persons held out.

    Args:
        released: the table as read back from the sealed bundle: attributes, and `neighbours`.
        real: (n, columns) canonical values of the released persons.
        beside: (m, columns) canonical values of the persons held out.
        ties: counts the edges between a released person and one held out; a directed pair can have two.
        likeness: of a motif, by how much its log density is larger in networks drawn from the model of those held out
            than in their own, and by how much that varies between draws; made of them alone.
    """
    rule = "a row per person, attributes within the dictionary, and edges that a network of so many persons can have"
    try:
        plan.release.validate(plan, released, len(real))
    except Refusal as refusal:
        exact = Check(name="network", rule=rule, outcome="failed", detail=str(refusal))
    else:
        exact = Check(name="network", rule=rule, outcome="passed", detail=f"{len(released)} persons")
    persons = Check(
        name="persons",
        rule=f"a release must hold at least {limits.persons} persons, and as many must be held out",
        outcome="passed" if min(len(real), len(beside)) >= limits.persons else "failed",
        measured=float(min(len(real), len(beside))),
        threshold=float(limits.persons),
        policy=float(limits.persons),
    )
    found: tuple[Check, ...] = (exact, persons)
    if exact.outcome != "passed":
        return found
    names = list(plan.dictionary.names)
    if names:
        rows = released[names]
        found += (
            _note(
                _COPIES,
                lambda: replace(
                    _equal_rows(hits_on(beside, rows, plan.dictionary, CHANCE)), name=_COPIES.name, rule=_COPIES.rule
                ),
            ),
            _rare_levels(rows, plan.dictionary, limits),
        )
    directed = plan.release.edges is not None and plan.release.edges.directed
    degrees, hubs = _degrees(released, directed=directed)
    return (
        *found,
        _note(_MODEL, lambda: _model(likeness)),
        _note(_DEGREES, lambda: _like_degrees(degrees, ties() / (len(real) * len(beside)))),
        hubs,
    )


def carried_out(find: Callable[[], Found], otherwise: Found) -> Found:
    """Result of `find` on released records, where it decides nothing; `otherwise` if it fails on them.

    A value that no document can hold (NaN, infinity) is a failure too. A release that was held back because of either
    would reveal something about a record.

    Args:
        find: reads records; returns a check, or the content of a document.
    Raises: PausedRefusal, OSError, MemoryError. No record causes these: the next run goes on from the sealed bytes.
    """
    try:
        found = find()
        canonical_json(asdict(found) if isinstance(found, Check) else found)
    except (PausedRefusal, OSError, MemoryError):
        raise
    except Exception as error:
        # The kind alone: an error's words may quote a record.
        logging.getLogger("tributary.audit").warning("a look at the records broke down: %s", type(error).__name__)
        return otherwise
    return found


def tool_versions(agent_version: str) -> dict[str, str]:
    """Versions of what decided."""
    return {"tributary": agent_version, "python": platform.python_version(), **_library_versions()}


@cache
def _library_versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    out = {}
    for name in ("numpy", "pandas", "pyarrow", "scipy", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            out[name] = version(name)
    return out


# -- the checks -------------------------------------------------------------------------------------------------
# What reads records, as it is known before any is read: name, rule and policy are told outside, however it ends.
_EQUAL = Check(
    name="equal-rows",
    rule="no released row may equal the row of exactly one person on all columns, beyond chance",
    outcome="note",
    policy=CHANCE,
)
_COPIES = Check(
    name="copies-of-held-out",
    rule="no released row should equal that of one person held out, beyond chance",
    outcome="note",
    policy=CHANCE,
)
_BEYOND = Check(
    name="beyond_bounds", rule="values beyond the bounds of the figures count at their bound", outcome="note"
)
_MODEL = Check(
    name="model",
    rule="networks drawn from the model of those held out should be like their own, in edges and triangles",
    outcome="note",
    threshold=MODEL_WARNING,
    policy=MODEL_WARNING,
)
_ALIKE = Check(
    name="quasi-identifiers",
    rule="each combination of the plan's quasi-identifiers should be shared by enough persons",
    outcome="note",
)
_DEGREES = Check(
    name="degrees",
    rule="a released person should have about as many edges as the real ones have to those held out",
    outcome="note",
    threshold=DEGREES_WARNING,
    policy=DEGREES_WARNING,
)


def _note(rule: Check, find: Callable[[], Check]) -> Check:
    """A check that reads records and decides nothing."""
    return carried_out(lambda: find().as_note(), _broken(rule))


def _broken(rule: Check) -> Check:
    return replace(rule, notable=True, detail=BROKEN)


def _dictionary(released: pd.DataFrame, dictionary: Dictionary) -> Check:
    rule = "the released table must lie within the dictionary"
    try:
        dictionary.validate_release(released)
    except DictionaryRefusal as refusal:
        return Check(name="dictionary", rule=rule, outcome="failed", detail=str(refusal))
    return Check(name="dictionary", rule=rule, outcome="passed", detail=f"all {len(dictionary.released)} columns")


def _persons(n: int, n_real: int, limits: Limits) -> Check:
    enough = n >= limits.persons and n == n_real
    return Check(
        name="persons",
        rule=f"a release must hold at least {limits.persons} persons, one row each",
        outcome="passed" if enough else "failed",
        measured=float(n),
        threshold=float(limits.persons),
        policy=float(limits.persons),
    )


def _equal_rows(hits: Hits) -> Check:
    said = [f"{hits.persons} of {hits.others} real rows are unlike all others"]
    said += [] if np.isnan(hits.mean) else [f"by chance about {hits.mean:.3g} would be hit"]
    said.append("1 is hit" if hits.found == 1 else f"{hits.found} are hit" if hits.found else "none are hit")
    said += [f"{hits.far} of these less likely than any hit that chance brought"] if hits.far else []
    if hits.looked_at < hits.others:
        said.append(f"{hits.looked_at} rows of the release, chosen by chance, were looked at")
    return replace(
        _EQUAL,
        outcome="failed" if hits.beyond_chance else "passed",
        measured=float(hits.found),
        threshold=hits.allowed,
        detail="; ".join(said),
    )


def _rare_levels(released: pd.DataFrame, dictionary: Dictionary, limits: Limits) -> Check:
    rare: dict[str, int] = {}
    for column in dictionary.released:
        if column.kind in LEVELLED:
            counts = released[column.name].value_counts(dropna=False)
            few = int(((counts > 0) & (counts < limits.rare_level)).sum())
            if few:
                rare[column.name] = few
    return Check(
        name="rare-levels",
        rule=f"a level should stand in at least {limits.rare_level} released rows",
        outcome="warning" if rare else "passed",
        measured=float(sum(rare.values())),
        threshold=0.0,
        detail=", ".join(f"{name}: {count} rare" for name, count in rare.items()),
        policy=float(limits.rare_level),
    )


def _carried(released: pd.DataFrame, dictionary: Dictionary, carried: str, limits: Limits) -> tuple[Check, ...]:
    check = Check(
        name="carried",
        rule="no column should be released as it is",
        outcome="warning",
        detail=f"every row has its person's true {carried}; no formal guarantee covers that column",
    )
    # `before_draw` has refused it for nothing; this is of the table that would leave.
    column = dictionary.column(carried)
    few = sum(count < limits.rare_level for count in level_counts(released[carried], column.levels, column))
    counts = Check(
        name="carried-counts",
        rule=f"each value of a column that is carried over must stand in at least {limits.rare_level} released rows",
        outcome="failed" if few else "passed",
        detail=f"{carried}: {few} values with fewer" if few else carried,
        policy=float(limits.rare_level),
    )
    return check, counts


def _varied(vary: str) -> Check:
    return Check(
        name="no-guarantee",
        rule="noise should be the same for everybody, so that an ε holds",
        outcome="warning",
        detail=f"noise that depends on the records ({vary}): no formal guarantee for any row, and no ε",
    )


def _flow_alone() -> Check:
    return Check(
        name="no-guarantee",
        rule="noise should be on the records, so that an ε holds",
        outcome="warning",
        detail=f"rows from the flow alone (w = 0), which was fitted on their records: {shown_price(None, FLOW)}",
    )


def _outliers(beyond: float) -> Check:
    """The rule of `_clip`, where the plan means a share of the records to lie outside."""
    most = CLIPPED_WARNING + round(beyond, 6)
    rule = f"at most {most:.0%} of the records should lie outside the clipping radius"
    return Check(name="clipped", rule=rule, outcome="note", policy=most)


def _clip(rule: Check, clipped: int, n: int) -> Check:
    most = rule.policy or 0.0
    return replace(
        rule,
        outcome="warning" if clipped > most * n else "passed",
        measured=float(clipped),
        threshold=float(np.floor(most * n)),
        detail="outliers are pulled in before noise is added; the count stays here",
    )


def _few_alike(rule: Check, plan: StudyPlan, real: pd.DataFrame, drawn: pd.DataFrame) -> Check:
    """Check for persons drawn who share their quasi-identifiers with few, and for released rows that keep these."""
    from site_agent.records.quasi_identifiers import small_classes

    widths, most = plan.quasi_identifiers, int(rule.policy or 0)
    found = small_classes(real, widths, most, released=drawn, dictionary=plan.dictionary)
    return replace(
        rule,
        outcome="warning" if found.persons else "passed",
        measured=float(found.persons),
        threshold=0.0,
        detail=f"{found.persons} of {found.of} persons are in {found.classes} combinations of fewer than {found.k}; "
        f"{found.kept} of their rows keep it; the counts stay here",
    )


def _beyond(clipped: int | None) -> Check | None:
    if clipped is None:
        return None
    return replace(_BEYOND, measured=float(clipped), detail=f"{clipped} records; the count stays here")


def _model(likeness: Mapping[str, tuple[float, float]]) -> Check:
    far = {name: over for name, (over, sd) in likeness.items() if not abs(over) <= math.log(MODEL_WARNING) + 2 * sd}
    return replace(
        _MODEL,
        outcome="warning" if far else "passed",
        measured=math.exp(min(700.0, max((abs(over) for over, _ in likeness.values()), default=0.0))),
        detail=", ".join(f"{name} by a factor of {math.exp(min(700.0, far[name])):.3g}" for name in far),
    )


def _degrees(released: pd.DataFrame, *, directed: bool) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Check]:
    """Edges of each released person, and whether the model drew nobody who is connected with everybody."""
    from shared.mechanisms.grand.edges import adjacency

    network = adjacency(released, directed=directed)
    n = network.shape[0]
    degrees = np.diff(network.indptr).astype(np.int64)
    if directed:
        degrees = degrees + np.bincount(network.indices, minlength=n)
    most = (n - 1) * (2 if directed else 1)
    everybody = int((degrees >= most).sum()) if n and degrees.mean() < most / 2 else 0
    hubs = Check(
        name="hubs",
        rule="nobody should be connected with everybody in a network where most pairs are not",
        outcome="passed" if not everybody else "warning",
        measured=float(everybody),
        threshold=0.0,
        policy=0.0,
    )
    return degrees, hubs


def _like_degrees(degrees: np.ndarray[Any, np.dtype[np.int64]], density: float) -> Check:
    """Check that the model drew a network with about as many edges as the real one."""
    mean, expected = float(degrees.mean()), density * (len(degrees) - 1)
    ratio = mean / expected if expected > 0 else None
    return replace(
        _DEGREES,
        outcome="passed" if ratio and 1 / DEGREES_WARNING <= ratio <= DEGREES_WARNING else "warning",
        measured=ratio,
        detail=f"{mean:.3g} edges a person",
    )
