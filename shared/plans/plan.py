"""The study plan: everything a steward agrees to, in one signed document.

A plan is written as TOML by the study lead, becomes canonical JSON, and is known from then on by the SHA-256 of
those bytes. It carries a version that only grows and a date on which it expires. A site acts on a plan only when
its own steward has approved that hash; changing one byte voids the approval.
"""

from __future__ import annotations

import datetime as dt
import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from shared.base.canonical import canonical_json, closed, is_digest, is_number, is_whole, parse_json, sha256_hex
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import ParameterError, PlanExpired, PlanRefusal
from shared.mechanisms.base import MechanismPlan, must
from shared.mechanisms.kinds import kind
from shared.plans.dictionary import NUMERIC, Dictionary
from shared.plans.federated import PREFIX, Federated, Shape, read_reference
from shared.plans.repeated_rows import released_columns
from shared.plans.retention import Retention
from shared.plans.training import PrivateTraining, Reference, Training

__all__ = [
    "FEWEST_ALIKE",
    "NEEDED",
    "PLAN_TYPE",
    "Budget",
    "Expected",
    "Federated",
    "Floors",
    "PrivateTraining",
    "Reference",
    "StudyPlan",
    "Training",
    "Wave",
    "open_plan",
    "read_section",
    "sign_plan",
]

PLAN_TYPE = "application/vnd.tributary.plan+json"
PLAN_CAP = 1 << 20
FEWEST_ALIKE = 10
Posture = Literal["local", "holdout", "private", "public"]
POSTURES: tuple[Posture, ...] = ("local", "holdout", "private", "public")
Returning = Literal["append", "refresh", "frozen"]
NEEDED: Mapping[str, str] = {
    "study": 'study = "stroke" (a plain word)',
    "version": "version = 1",
    "title": 'title = "…" (one line)',
    "purpose": 'purpose = "…" (what the releases are for)',
    "coordinator": 'coordinator = "tributary-hub" (the name in coordinator.toml)',
    "expires": "expires = 2028-12-31",
    "release": '[release] with mechanism = "latent_noise" and w = 0.005',
    "budget": "[budget] with epsilon = 8.0 and delta = 1e-6",
    "waves": "[[waves]] with number = 1, opens = 2026-01-01 and closes = 2026-12-31",
    "dictionary": "[dictionary] with name, version and a table [dictionary.columns.NAME] for each column",
}
"""Entries that every plan must have, each with an example."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Cap on the privacy loss of one person in this study, (ε, δ), composed by RDP.

    Args:
        epsilon: cap on ε at `delta`.
        delta: δ_total of the study; must be below 1/(10 n) at every site.
    """

    epsilon: float
    delta: float = 1e-6

    def __post_init__(self) -> None:
        must(0 < self.epsilon < math.inf, "budget.epsilon must be positive and finite", self.epsilon)
        must(0 < self.delta <= 1e-3, "budget.delta must be in (0, 0.001]", self.delta)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Expected size of the study; nothing is enforced, warnings are computed from it.

    Args:
        sites: K, sites that will release.
        persons: persons of an average site.
    """

    sites: int
    persons: int

    def __post_init__(self) -> None:
        for name in ("sites", "persons"):
            value = getattr(self, name)
            must(1 <= value <= 1_000_000_000, f"expected.{name} must be in 1..1000000000", value)


@dataclass(frozen=True, kw_only=True)
class Floors:
    """Disclosure floors of the study. A site may tighten them, never loosen them.

    Args:
        persons: fewest persons in a release.
        rare_level: a level with fewer rows than this is a warning that the approver ticks.
        membership_auc: highest AUC of the membership attack that passes the gate.
        own_row_linkage: highest share of records whose nearest released row is their own.
        extreme_linkage: the same among the 5 % of records with the largest latent norm.
        approvals: approvers who must sign a release.
        author_apart: whether whoever had the release made must not approve it.
        standing: whether an approver of a site may sign in advance, within limits: see `shared.plans.standing`.
        approval: ``after`` the draw, on the exact bytes, or ``before`` it: an approver signs in advance, no person sees
            the bytes before they leave, and so no choice is made by what is in them.
        leads: study leads who must sign the plan, where it asks for more than the coordinator's settings do.
        minimum_k: persons who must share each combination of `StudyPlan.quasi_identifiers`, else nothing is drawn; 0
            where the approver is told of smaller ones and decides.
    """

    persons: int = 50
    rare_level: int = 10
    membership_auc: float = 0.55
    own_row_linkage: float = 0.05
    extreme_linkage: float = 0.20
    approvals: int = 1
    author_apart: bool = False
    standing: bool = False
    approval: Literal["after", "before"] = "after"
    leads: int = 1
    minimum_k: int = 0
    later: ClassVar[tuple[str, ...]] = ("approval", "leads", "minimum_k")

    def __post_init__(self) -> None:
        must(isinstance(self.author_apart, bool), "floors.author_apart must be true or false", self.author_apart)
        must(isinstance(self.standing, bool), "floors.standing must be true or false", self.standing)
        must(self.approval in ("after", "before"), "floors.approval must be 'after' or 'before'", repr(self.approval))
        must(
            self.approval == "after" or (self.standing and self.approvals == 1 and not self.author_apart),
            "floors.approval = 'before' must go with standing = true and one approver, who may have it made",
            f"standing = {str(self.standing).lower()}, approvals = {self.approvals}, author_apart = "
            f"{str(self.author_apart).lower()}",
        )
        must(self.persons >= 50, "floors.persons must be at least 50", self.persons, "Floors can only be tightened.")
        must(self.rare_level >= 10, "floors.rare_level must be at least 10", self.rare_level)
        must(0.5 <= self.membership_auc <= 1, "floors.membership_auc must be in [0.5, 1]", self.membership_auc)
        for name in ("own_row_linkage", "extreme_linkage"):
            must(0 < getattr(self, name) <= 1, f"floors.{name} must be in (0, 1]", getattr(self, name))
        must(1 <= self.approvals <= 5, "floors.approvals must be in 1..5", self.approvals)
        must(1 <= self.leads <= 16, "floors.leads must be in 1..16", self.leads)
        enough = self.minimum_k == 0 or self.minimum_k >= FEWEST_ALIKE
        must(enough, f"floors.minimum_k must be at least {FEWEST_ALIKE}", self.minimum_k)


@dataclass(frozen=True, kw_only=True)
class Wave:
    """One planned release of every site.

    Args:
        number: 1, 2, 3, …
        opens: first day on which a site may draw.
        closes: deadline for delivery.
        refit: whether a ``refresh`` fits a new flow; without it, and always under ``append`` and ``frozen``, a wave
            is released through the sealed flow of the first one.
        quorum: deliveries below which the coordinator does not close the wave without a reason; 0 for none.
    """

    number: int
    opens: dt.date
    closes: dt.date
    refit: bool = False
    quorum: int = 0

    def __post_init__(self) -> None:
        must(self.number >= 1, "a wave's number must be at least 1", self.number)
        must(self.opens <= self.closes, "a wave must open before it closes", f"{self.opens} and {self.closes}")
        must(isinstance(self.refit, bool), "a wave's refit must be true or false", self.refit)
        must(0 <= self.quorum <= 10_000, "a wave's quorum must be in 0..10000", self.quorum)


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The study plan: what is released, in which waves, by which mechanism and under which budget.

    Args:
        study: short name, a plain word.
        version: 1, 2, 3, …; a site refuses a lower one than it has seen.
        purpose: what the releases are for, in words.
        coordinator: id of the only recipient; a bundle for another coordinator is refused by it.
        expires: last day on which the plan may be acted upon.
        posture: what may be fitted on which records; see `shared.releases.receipt.coverage`.
        release: the mechanism and its parameters: see `shared.mechanisms.base`.
        private: DP-SGD's parameters; with posture ``private``, and only with it.
        holdout: share of persons who train the flow and are never released; used with posture ``holdout``. A later
            version must not change it: roles are for life.
        reference: column to what is publicly known of it, for postures ``public`` and ``private``.
        returning: what a later wave does with a person already released: ``append`` releases new persons only,
            ``refresh`` everybody anew, ``frozen`` copies the sealed rows and adds the new persons'.
        budget: cap per person.
        eligibility: the rule that says who is in the table; by it, n is public.
        estimands: planned analyses, name to formula.
        row_download: whether analysts may download the released rows.
        federated: training of one flow by all sites together; it is charged by itself, and the rows of this plan are
            not drawn through what comes out.
        flow: ``federated:<digest>`` of a flow that an earlier plan's sites have trained: with posture ``private``, in
            the place of [private]; with posture ``local``, to begin at (`Training.transfer`).
        expected: how large the lead expects the study to be; None where the plan does not say.
        retention: what becomes of the releases; None in plans from before it was asked for.
        quasi_identifiers: columns that others may know of a patient: name to the width of the bands, in the column's
            unit, within which two values count as one; 1 of levels. Of rows that follow single records, each.
        dictionary: columns, bounds and levels.

    `StudyPlan.from_toml(plan.to_toml())` is not promised; `from_bytes(plan.to_bytes())` is the identity.
    """

    study: str
    version: int
    title: str
    purpose: str
    coordinator: str
    expires: dt.date
    release: MechanismPlan
    budget: Budget
    waves: tuple[Wave, ...]
    dictionary: Dictionary
    posture: Posture = "local"
    training: Training = field(default_factory=Training)
    private: PrivateTraining | None = None
    holdout: float = 0.5
    reference: Mapping[str, Reference] = field(default_factory=dict)
    returning: Returning = "append"
    floors: Floors = field(default_factory=Floors)
    eligibility: str = ""
    estimands: Mapping[str, str] = field(default_factory=dict)
    row_download: bool = False
    federated: Federated | None = None
    flow: str = ""
    expected: Expected | None = None
    retention: Retention | None = None
    quasi_identifiers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("study", "coordinator"):
            value = getattr(self, name)
            plain = bool(value) and len(value) <= 64 and value.replace("-", "").replace("_", "").isalnum()
            must(plain and value.isascii(), f"{name} must be a plain word (letters, digits, - and _)", repr(value))
        must(self.version >= 1, "version must be at least 1", self.version)
        must(bool(self.title.strip() and self.purpose.strip()), "title and purpose must say something", "blank text")
        must(
            self.retention is None or self.retention.until >= self.expires,
            "retention.until must not be before the plan expires",
            self.retention and self.retention.until,
        )
        must(self.posture in POSTURES, f"posture must be one of {', '.join(POSTURES)}", repr(self.posture))
        must(0.05 <= self.holdout <= 0.95, "holdout must be in [0.05, 0.95]", self.holdout)
        _must_be_references(self.reference, self.dictionary)
        must(
            not self.reference or self.posture in ("public", "private"),
            "[reference] must be given with posture 'public' or 'private' only: the others fit the start to records",
            f"posture {self.posture!r}",
        )
        must(
            self.posture != "private" or self.training.family == "affine",
            "training.family must be 'affine' with posture 'private': training with noise knows no other",
            repr(self.training.family),
        )
        must(
            self.training.outcomes == "joint" or self._may_draw_outcomes_last,
            "training.outcomes must be 'joint' but for latent noise with posture 'local' or 'holdout', margins "
            "'normal_scores' and no release.carry: laws of outcomes are fitted to records, without noise",
            f"posture {self.posture!r}, mechanism {self.release.mechanism!r}",
            "Leave training.outcomes out.",
        )
        must(self.returning in ("append", "refresh", "frozen"), "returning is unknown", repr(self.returning))
        known = self.dictionary.person is not None
        must(
            known or self.posture != "holdout",
            "posture 'holdout' must have a person column: who trains is decided per person, for life",
            "none",
        )
        must(
            known or len(self.waves) == 1 or self.returning == "refresh",
            f"several waves that {self.returning} must have a person column",
            "none",
            "Add one, or let every wave refresh.",
        )
        numbers = [wave.number for wave in self.waves]
        must(numbers == list(range(1, len(numbers) + 1)) and bool(numbers), "waves must be numbered 1, 2, …", numbers)
        self._require_federated()
        must(
            bool(self.dictionary.names) or self.release.edges is not None,
            "a dictionary must have at least one column to release",
            "none",
        )
        must(
            self.floors.approval == "after" or not self.records_decide,
            "floors.approval must be 'after' with posture 'local': its checks read records and may refuse the table",
            repr(self.floors.approval),
        )
        self._require_quasi_identifiers()
        self.release.require(self)

    @property
    def _may_draw_outcomes_last(self) -> bool:
        return (
            self.release.draws_rows
            and self.posture in ("local", "holdout")
            and self.training.margins == "normal_scores"
            and not getattr(self.release, "carry", "")
        )

    def _require_quasi_identifiers(self) -> None:
        columns = {column.name: column for column in self.dictionary.released}
        given = self.quasi_identifiers
        unknown = ", ".join(repr(name) for name in given if name not in columns)
        must(not unknown, "[quasi_identifiers] must name columns of the dictionary", unknown)
        for name, width in given.items():
            number = is_number(width) and 0 < width < math.inf
            must(number, f"quasi_identifiers.{name} must be the width of a band, above 0", repr(width)[:40])
            if columns[name].kind in NUMERIC:
                lower, upper = columns[name].span
                apart = (upper - lower) / 1e6 <= width < upper - lower
                must(apart, f"quasi_identifiers.{name} must be a band that tells values within its bounds apart", width)
            else:
                must(width == 1, f"quasi_identifiers.{name} must be 1: its levels are no numbers", width)
        must(
            not given or self.release.draws_rows,
            "[quasi_identifiers] must go with rows that follow single records, which latent noise releases",
            repr(self.release.mechanism),
        )
        must(
            not self.floors.minimum_k or (bool(given) and self.records_decide),
            "floors.minimum_k must go with [quasi_identifiers] and posture 'local': where everybody is promised an ε, "
            "nothing that reads a record decides what leaves",
            f"posture {self.posture!r}, {len(given)} quasi-identifiers",
        )

    def _require_federated(self) -> None:
        digest = self.flow.removeprefix(PREFIX)
        named = self.flow.startswith(PREFIX) and is_digest(digest)
        must(not self.flow or named, "flow must be 'federated:' and the digest of a trained flow", repr(self.flow)[:80])
        begins = self.posture == "local" and self.training.transfer
        must(
            not self.flow or self.posture == "private" or begins,
            "flow must be given with posture 'private' only: a trained flow has learned from every site's records. "
            "With posture 'local' a site may begin at it, by training.transfer = true",
            f"posture {self.posture!r}",
        )
        must(
            not self.training.transfer or (begins and bool(self.flow) and self.training.family == "affine"),
            "training.transfer must go with posture 'local', affine layers and a flow that several sites have trained",
            f"posture {self.posture!r}, {'a' if self.flow else 'no'} flow",
        )
        fitted = self.posture in ("local", "holdout") and self.federated is None
        must(
            self.training.engine == "auto" or fitted,
            "training.engine must be 'auto' but with posture 'local' or 'holdout', without [federated]",
            repr(self.training.engine),
        )
        if self.federated is None:
            return
        must(
            self.training.family == "affine" and not self.training.spectral,
            "training.family must be 'affine' with [federated], without training.spectral",
            repr(self.training.family),
        )
        # Known here, before anybody approves or is charged, and not at the first round.
        from shared.plans.encoding import Encoder

        Shape.of(Encoder(dictionary=self.dictionary).d, self.training)
        for site, table in self.federated.reference.items():
            _must_be_references({**self.reference, **table}, self.dictionary, f"federated.reference.{site}")

    @cached_property
    def canonical(self) -> bytes:
        """Canonical JSON of the plan: what is hashed and signed."""
        return canonical_json(self.to_canonical())

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical bytes: the plan's only name."""
        return sha256_hex(self.canonical)

    @property
    def redraws(self) -> bool:
        """True if a later wave may draw the same person again: under ``refresh``, or without a person column."""
        return self.returning == "refresh" or self.dictionary.person is None

    @property
    def records_decide(self) -> bool:
        """True if checks and attacks that read records may refuse a sealed release: under ``local`` alone.

        There no ε speaks of the flow, and the site's gates are what stands between it and the records. Everywhere else
        an ε is promised for whatever table leaves, and a refusal that follows from a record would be outside of it.
        """
        return self.posture == "local"

    def wave(self, number: int) -> Wave:
        """The planned wave `number`. Raises: PlanRefusal."""
        for wave in self.waves:
            if wave.number == number:
                return wave
        known = ", ".join(f"{wave.number}" for wave in self.waves)
        raise PlanRefusal("the wave must be in the plan", given=f"{number}", next_step=f"Waves of the plan: {known}.")

    def require_current(self, today: dt.date) -> None:
        """Refuse a plan whose expiry has passed. Raises: PlanExpired."""
        if today > self.expires:
            raise PlanExpired(
                "a plan must not be expired",
                given=f"expiry {self.expires}",
                next_step="Ask the study lead for a new version.",
            )

    def to_canonical(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        out: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Dictionary):
                out[item.name] = value.to_canonical()
            elif isinstance(value, tuple):
                out[item.name] = [_plain(wave) for wave in value]
            elif item.name == "reference":
                out[item.name] = {column: _plain(known) for column, known in value.items()}
            elif item.name in ("federated", "flow", "expected", "retention", "quasi_identifiers"):
                # Absent, not null: plans that know nothing of it keep the hash they were approved by.
                if value:
                    out[item.name] = _plain(value)
            elif item.name == "release":
                # The same of impossible cells: of plans that declare none, no word.
                out[item.name] = {k: v for k, v in _plain(value).items() if k != "zeros" or v}
            else:
                out[item.name] = _plain(value)
        return out

    @classmethod
    def from_canonical(cls, given: Mapping[str, Any]) -> StudyPlan:
        """Read plain values; unknown keys are refused with the nearest known one. Raises: PlanRefusal."""
        closed(given, {item.name for item in fields(cls)}, where="a study plan", refusal=PlanRefusal)
        parts: dict[str, Any] = dict(given)
        try:
            for name, kind in (
                ("release", _mechanism(parts.get("release"))),
                ("training", Training),
                ("budget", Budget),
                ("floors", Floors),
                ("private", PrivateTraining),
                ("expected", Expected),
                ("retention", Retention),
            ):
                if parts.get(name) is not None:
                    parts[name] = read_section(kind, parts[name], name)
            if parts.get("federated") is not None:
                parts["federated"] = read_section(Federated, parts["federated"], "federated")
            references = dict(parts.get("reference", {}))
            parts["reference"] = {str(k): read_section(Reference, v, f"reference.{k}") for k, v in references.items()}
            parts["dictionary"] = Dictionary.from_canonical(parts["dictionary"])
            parts["waves"] = tuple(read_section(Wave, wave, "waves") for wave in parts["waves"])
            parts["expires"] = _date(parts["expires"])
            parts["quasi_identifiers"] = {str(k): v for k, v in dict(parts.get("quasi_identifiers", {})).items()}
            parts["estimands"] = {str(k): str(v) for k, v in dict(parts.get("estimands", {})).items()}
            return cls(**parts)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            absent = [name for name in NEEDED if name not in given]
            raise PlanRefusal(
                "a study plan must have every required field, each of its type",
                given=f"no {', '.join(absent)}" if absent else type(error).__name__,
                next_step=f"Add {'; '.join(NEEDED[name] for name in absent)}." if absent else "See plan check.",
            ) from None

    @classmethod
    def from_toml(cls, text: str) -> StudyPlan:
        """Read a plan as a lead writes it. Columns stand as tables: ``[dictionary.columns.sbp]``.

        Raises: PlanRefusal, DictionaryRefusal.
        """
        try:
            given = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            step = "Correct that line; coordinator plan new STUDY writes a commented plan to compare it with."
            raise PlanRefusal("a study plan must be TOML", given=str(error), next_step=step) from None
        dictionary = given.get("dictionary")
        if isinstance(dictionary, dict) and isinstance(dictionary.get("columns"), dict):
            for name, column in dictionary["columns"].items():
                must(isinstance(column, dict), "every column of a dictionary must be a table", f"{name!r}"[:40])
            columns = [{"name": name, **column} for name, column in dictionary["columns"].items()]
            given["dictionary"] = released_columns({**dictionary, "columns": columns})
        if isinstance(given.get("release"), dict):
            # What a lead leaves out is today's default; what a signed plan leaves out, the default of its day.
            written = given["release"]
            given["release"] = {**_mechanism(written).today(written), **written}
        plan = cls.from_canonical(given)
        written = given.get("training")
        if plan._may_draw_outcomes_last and not (isinstance(written, dict) and "outcomes" in written):
            plan = replace(plan, training=replace(plan.training, outcomes="last"))
        return plan

    @classmethod
    def from_bytes(cls, data: bytes) -> StudyPlan:
        """Read canonical bytes. Raises: SchemaRefusal, PlanRefusal."""
        given = parse_json(data, cap=PLAN_CAP)
        must(isinstance(given, dict), "a study plan must be a JSON object", type(given).__name__)
        plan = cls.from_canonical(given)
        must(plan.canonical == data, "a study plan must be in canonical form", "another form")
        return plan


def _must_be_references(given: Mapping[str, Reference], dictionary: Dictionary, where: str = "reference") -> None:
    """Refuse reference figures that are impossible within a column's public bounds."""
    columns = {column.name: column for column in dictionary.released}
    unknown = sorted(set(given) - set(columns))
    must(not unknown, f"[{where}] must name columns of the dictionary", ", ".join(unknown))
    for name, known in given.items():
        kind = columns[name].kind
        if kind in ("binary", "event"):
            must(0 < known.mean < 1, f"{where}.{name}.mean must be a share in (0, 1)", known.mean)
            continue
        must(kind in NUMERIC, f"[{where}] must not name {name}: levels have no mean", kind)
        lower, upper = columns[name].span
        must(lower < known.mean < upper, f"{where}.{name}.mean must lie within the public bounds", known.mean)
        # No law on [lower, upper] with this mean is wider than the one on its two ends.
        widest = math.sqrt((known.mean - lower) * (upper - known.mean))
        must(0 < known.sd < 0.9 * widest, f"{where}.{name}.sd must be positive and below {0.9 * widest:.4g}", known.sd)


def _mechanism(release: Any) -> type[MechanismPlan]:
    return kind(release.get("mechanism", "latent_noise") if isinstance(release, Mapping) else "latent_noise")


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        # Absent at its default, what came later: plans that know nothing of it keep the hash they were approved by.
        later = {item.name: _default(item) for item in fields(value) if item.name in getattr(type(value), "later", ())}
        absent = later | dict(getattr(type(value), "before", {}))
        shown = [
            item for item in fields(value) if item.name not in absent or getattr(value, item.name) != absent[item.name]
        ]
        return {item.name: _plain(getattr(value, item.name)) for item in shown}
    return value


def _date(value: Any) -> dt.date:
    return value if type(value) is dt.date else dt.date.fromisoformat(str(value))


def read_section(kind: Any, given: Any, where: str) -> Any:
    """A table of settings as its dataclass. Raises: PlanRefusal; TypeError (a setting is missing)."""
    if not isinstance(given, Mapping):
        raise PlanRefusal(f"[{where}] must be a table of settings", given=type(given).__name__)
    types = {item.name: str(item.type) for item in fields(kind)}
    closed(given, types, where=f"[{where}]", refusal=PlanRefusal)
    out: dict[str, Any] = dict(getattr(kind, "before", {}))
    for key, value in given.items():
        if types[key] == "dt.date":
            value = _date(value)
        elif kind is Federated and key == "reference":
            value = read_reference(value, lambda known, place: read_section(Reference, known, place))
        elif types[key].startswith("float") and value is not None:
            must(is_number(value), f"{where}.{key} must be a number", value)
            value = float(value)
        elif types[key] == "int":
            must(is_whole(value), f"{where}.{key} must be a whole number", value)
        out[key] = value
    return kind(**out)


def sign_plan(plan: StudyPlan, keys: list[SigningKey]) -> Envelope:
    """Sign a plan as its lead(s)."""
    if not keys:
        raise ParameterError("a plan must be signed by at least one lead", given="no key")
    return Envelope.sign(PLAN_TYPE, plan.canonical, keys)


def open_plan(envelope: Envelope, leads: Mapping[str, PublicKey], *, threshold: int = 1) -> StudyPlan:
    """The plan inside an envelope signed by `threshold` pinned leads, and by as many as it asks for itself.

    Raises: SignatureRefusal, PlanRefusal. Nothing is parsed before the signatures hold.
    """
    plan = StudyPlan.from_bytes(envelope.require(PLAN_TYPE, leads, threshold=threshold))
    envelope.require(PLAN_TYPE, leads, threshold=max(threshold, plan.floors.leads))
    return plan
