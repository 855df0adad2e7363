"""The receipt: what was promised, to whom, at which price, and what is not covered.

It is a function of the plan's and mechanism's parameters only, never of a record; the hash of the site's mapping in it
is salted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from shared.base.canonical import canonical_json, closed, parse_json, sha256_hex
from shared.errors import ReceiptRefusal, SchemaRefusal
from shared.mechanisms.base import unit
from shared.mechanisms.latent_noise.plan import ALSO_GIVEN, TRAINED_BEFORE, TRAINED_EARLIER
from shared.plans.plan import FEWEST_ALIKE, StudyPlan, Wave
from shared.privacy.events import Event, NoGuarantee, from_canonical, guaranteed
from shared.privacy.stated import CHARGED_BEFORE, FLOW
from shared.releases.metadata import LABEL, VERSION

__all__ = [
    "LABEL",
    "LEAVES_PERSONS_OPEN",
    "TRAINED",
    "Receipt",
    "ReceiptDraft",
    "charged_training",
    "coverage",
    "given",
    "in_words",
    "planned_event",
    "planned_events",
    "refits",
    "unit",
    "write_receipt",
]

TRAINED = ("release_id", "plan_hash", "day", "approver", "rounds", "epsilon", "delta")
"""Fields of `Receipt.trained`, the charge of a training: its ledger entry, plan, day, approver, number of rounds, and
total price."""
MOST_HOSPITALS = 1000
"""Behind one site."""
DIGEST, WORD = re.compile("[0-9a-f]{64}"), re.compile("[A-Za-z0-9_-]{1,64}")
EARLIER_GATE = "That the release passed the site's checks and audit: its delivery shows it."
"""Gate stated by receipts of version 0.1, whose agents refused sealed tables by exact functions of records under every
posture. `site-agent audit verify` finds those releases by it."""
_VARIED = NoGuarantee().to_canonical()
LEAVES_PERSONS_OPEN = ("local", "holdout")
"""Postures under which some person's record shapes the flow without noise: approved only with a tick on that."""


def coverage(plan: StudyPlan, *, reused: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sentences for a steward: what the guarantee of a plan covers, and what it does not.

    Args:
        reused: as of `planned_event`.
    Returns: (covered, not_covered).
    """
    count = " and from who was drawn to train," if plan.posture == "holdout" else ""
    what = "released rows" if plan.release.draws_rows else "persons behind the figures"
    always: tuple[str, ...] = (
        f"The number of {what}: it follows from the plan's eligibility rule{count} and is public.",
        "A person who is a patient of several hospitals: losses add up, and no hospital can see it.",
        _chosen_by(plan),
        "Other studies with the same patients: each has a budget of its own, and losses add up unless the site has "
        "set a budget over all of them.",
    )
    if unit(plan) != "patient":
        always += (
            "A person with several rows: the study has no person column, so the guarantee is for one row, and the "
            "losses of a person's rows add up.",
        )
    release = plan.release.reused(plan) if reused else plan.release
    return release.covered(plan) + _all_rows(plan), release.not_covered(plan) + always + told_apart(plan) + left_out(
        plan
    )


def _all_rows(plan: StudyPlan) -> tuple[str, ...]:
    """Sentence that the guarantee is for all rows of a person together; none where a plan has no repeated rows."""
    repeated = plan.dictionary.repeated
    if repeated is None:
        return ()
    return (
        f"A person's record is all of their rows that are kept, {repeated.words}: whatever is stated of a record is of "
        "exchanging all of them together, and no row is priced by itself.",
    )


def told_apart(plan: StudyPlan) -> tuple[str, ...]:
    """By what persons are told apart, where a plan has a person column: totals and roles hold as far as that goes."""
    if plan.dictionary.person is None:
        return ()
    return (
        "Somebody under another identifier counts as somebody else: persons are told apart by the column "
        f"{plan.dictionary.person!r}, of which case, white space, unseen characters, Unicode form and leading zeros "
        "are ignored (not where the site began the study with an agent that did not).",
    )


def _chosen_by(plan: StudyPlan) -> str:
    """Sentences: what other than noise selects the released table."""
    if plan.records_decide:
        return (
            "Which table leaves: the site's checks and attack audit read the records, and refuse a table that fails "
            "them. What is stated holds of a table before that selection; a delivery shows that it passed."
        ) + _shared_by_few(plan)
    if plan.floors.approval == "before":
        return (
            "When the plan's approver decided: before the draw. Nobody saw the table before it left, and no check or "
            "attack that reads a released record refused or delayed it."
        )
    return (
        "The choice of whoever approves: the table may be held beside the site's own records before it is approved. No "
        "check or attack that reads a released record refuses or delays it, but a person may, and may have another "
        "drawn. Each draw is charged; the choice itself is not in the price."
    )


def _shared_by_few(plan: StudyPlan) -> str:
    """Sentence on what checks of the records reveal about combinations of quasi-identifiers; blank without any."""
    if not plan.quasi_identifiers:
        return ""
    named = ", ".join(
        name if plan.dictionary.column(name).levels else f"{name} in bands of {width:g}"
        for name, width in plan.quasi_identifiers.items()
    )
    if not plan.floors.minimum_k:
        return (
            f" Whether each combination of {named} among those drawn is of at least {FEWEST_ALIKE} persons, or of as "
            "many as the site asks for, is told with the outcomes of its checks."
        )
    return (
        f" So it shows that each combination of {named} among those drawn is of at least {plan.floors.minimum_k} "
        "persons; a wave that waits may show that one is not."
    )


def left_out(plan: StudyPlan) -> tuple[str, ...]:
    """Sentence that the number of rows reveals how many rows with a missing value were left out; none if none are."""
    complete_case = tuple(c.name for c in plan.dictionary.released if c.missing == "complete_case")
    if not complete_case:
        return ()
    return (f"How many rows had a missing value in {', '.join(complete_case)}: those rows are left out.",)


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Receipt of one release: its guarantee, its privacy loss and its provenance.

    `event` is the canonical form of a `shared.privacy.accountant` event; every other figure follows from it and
    `delta`, and `require_true` says so.

    Args:
        returning: what the plan's waves do with persons released before.
        n: persons in the release; of a release of rows, its rows.
        drawn: of these, those drawn for this release; the others are copied from an earlier one (``frozen``).
        flow_of: id of the release for which the flow was fitted; this one's, unless a sealed flow is used again.
        epsilon: of this release alone, at `delta`; None where it has no formal guarantee. Shown to people as
            `stated_epsilon`, with what it takes as given (`given`).
        study_epsilon: the most that the study may cost a person here by this version of the plan, at `delta`: its cap.
            It takes as given what any release of the study does, an earlier one too. Until version 0.1 it was what the
            ledger had charged so far, which told how often a draw was refused.
        hospitals: how many stand behind a site that speaks for several under one steward's agreement; 0 for a site that
            is one. Their number by the agreement, not counted in records.
        trained: where the plan names a flow that several sites have trained, and this one was among them: what its
            ledger was charged for that (`TRAINED`), before the first round; empty otherwise.
        mapping: SHA-256 of the file by which the site made the study's table of its extract, which stays there; blank
            where nothing was mapped, or by an earlier version.
    """

    study: str
    plan_hash: str
    plan_version: int
    dictionary_hash: str
    wave: int
    site: str
    release_id: str
    recipient: str
    agent_version: str
    mechanism: str
    parameters: Mapping[str, float]
    event: Mapping[str, Any]
    neighbours: str
    unit: str
    contributions: int
    model: str
    conditional_on: str
    posture: str
    returning: str
    n: int
    drawn: int
    flow_of: str
    d: int
    delta: float
    epsilon: float | None
    epsilon_paper: float | None
    epsilon_pure: float | None
    rdp: tuple[float | None, ...]
    study_epsilon: float
    translation: str
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    previous: str
    trained: Mapping[str, Any] = field(default_factory=dict)
    hospitals: int = 0
    mapping: str = ""

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical form."""
        return sha256_hex(self.to_bytes())

    @property
    def given(self) -> str:
        """Condition of the stated price, or what has no bound where no price is stated; blank for neither."""
        if self.conditional_on in (TRAINED_BEFORE, TRAINED_EARLIER):
            return CHARGED_BEFORE
        if self.posture != "local" or dict(self.event) == _VARIED:
            return ""
        carried = self.conditional_on.partition(ALSO_GIVEN)[2]
        return f"{FLOW} and the true {carried}" if carried else FLOW

    @property
    def given_in_total(self) -> str:
        """Conditions under which this release's share of the study's total ε holds; blank where there are none.

        A flow that an earlier release was charged for is none: the total contains that charge.
        """
        return "" if self.conditional_on == TRAINED_EARLIER else self.given

    @property
    def stated_epsilon(self) -> float | None:
        """`epsilon` as people may be shown it.

        None as well where an earlier version stated 0 for rows from a flow alone that was fitted on their records.
        """
        return None if self.given == FLOW and self.epsilon == 0 else self.epsilon

    @property
    def stated_study_epsilon(self) -> float | None:
        """`study_epsilon` as people may be shown it: None where this release has no formal guarantee.

        No cap holds such a release, and a number would pass for a guarantee.
        """
        return None if self.stated_epsilon is None else self.study_epsilon

    @property
    def stated_translation(self) -> str:
        """`translation` as people may be shown it: of rows from a flow alone, not what an earlier version said."""
        if self.epsilon is None or self.stated_epsilon is not None:
            return self.translation
        from shared.privacy import meaning

        return meaning.translate(NoGuarantee(of="flow"), unit="patient" if self.unit == "patient" else "record")

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        # Not asdict, which copies every number of the curve: a table of releases reads a receipt per line.
        body = {item.name: getattr(self, item.name) for item in fields(self)}
        body |= {"parameters": dict(self.parameters), "event": dict(self.event), "trained": dict(self.trained)}
        if not self.trained:  # absent, as on receipts from before there was such a training
            del body["trained"]
        for name in ("hospitals", "mapping"):
            if not body[name]:  # the same
                del body[name]
        return canonical_json(body)

    @classmethod
    def from_bytes(cls, data: bytes, *, one: Callable[[Any], Any] | None = None) -> Receipt:
        """Read canonical JSON. Raises: SchemaRefusal.

        Args:
            one: gives one object for equal parts, of a caller who holds many receipts: most parts are.
        """
        body = flat_document(data, cls, "a receipt")
        for name in ("rdp", "covered", "not_covered"):
            body[name] = tuple(body[name])
        if one is not None:
            body = {name: one(value) for name, value in body.items()}
        receipt = cls(**body)
        if not (isinstance(receipt.agent_version, str) and VERSION.fullmatch(receipt.agent_version)):
            raise SchemaRefusal("a receipt's agent_version must be a version", given="another text")
        if receipt.to_bytes() != data:
            raise SchemaRefusal("a receipt must be in canonical form")
        receipt.__dict__["hash"] = sha256_hex(data)  # these bytes are the canonical form
        return receipt

    def require_true(self, plan: StudyPlan) -> None:
        """Recompute every figure from the plan and the event. Raises: ReceiptRefusal, UnknownEvent.

        The coordinator runs this on every bundle, the agent before it seals one.
        """
        from shared.privacy import accountant as privacy

        event = from_canonical(self.event)
        curve = _finite(privacy.rdp(event))
        least = 0 if plan.returning == "frozen" and self.wave > 1 else self.n
        if not least <= self.drawn <= self.n or not WORD.fullmatch(self.flow_of):
            raise ReceiptRefusal(
                "a receipt must say how many of its rows were drawn, and through which release's flow",
                given=f"{self.drawn} of {self.n} rows",
            )
        if self.hospitals and not 2 <= self.hospitals <= MOST_HOSPITALS:
            raise ReceiptRefusal(
                f"a site must speak for itself, or for 2 to {MOST_HOSPITALS} hospitals", given=f"{self.hospitals}"
            )
        if self.mapping and not DIGEST.fullmatch(self.mapping):
            raise ReceiptRefusal("a receipt must name its mapping by SHA-256", given="another form")
        if self.trained and (not plan.flow or not _is_charge(self.trained)):
            raise ReceiptRefusal(
                "a receipt must name a training's charge under a plan that names its flow, and in full",
                given="another form",
            )
        # Through an earlier release's flow the rows alone are charged; agents of version 0.1 charged all of it again.
        through = planned_event(plan, reused=True).to_canonical()
        reused = self.flow_of != self.release_id and _agree(dict(self.event), through)
        expected: dict[str, Any] = {
            **_planned(plan, reused=reused),
            "epsilon": _stated(event, plan.budget.delta),
            "epsilon_pure": privacy.pure_epsilon(event),
            "rdp": curve,
            "translation": in_words(plan, event, reused=reused),
        }
        said = {"not_covered": tuple(line for line in self.not_covered if line not in plan.release.retired)}
        for name, value in expected.items():
            if not _agree(said.get(name, getattr(self, name)), value):
                raise ReceiptRefusal(
                    f"the receipt's {name} must be what its event and plan give",
                    given="another value",
                    next_step="Update the agent and the coordinator to the same version, or ask the site.",
                )


def planned_event(plan: StudyPlan, *, reused: bool = False) -> Event:
    """The privacy event that one release under this plan is charged as, before it runs.

    Args:
        reused: whether it is drawn through the flow of an earlier release of its site, which was charged the training.
    """
    return (plan.release.reused(plan) if reused else plan.release).event(plan)


def planned_events(plan: StudyPlan, waves: int | None = None) -> tuple[Event, ...]:
    """The events of a plan's waves where each is delivered: the flow is fitted in the first, and where a wave refits.

    Args:
        waves: how many; None takes the plan's. Those beyond the plan's refit nothing.
    """
    count = len(plan.waves) if waves is None else waves
    fitted, reusing = planned_event(plan), planned_event(plan, reused=True)
    numbered = {wave.number: wave for wave in plan.waves}
    return tuple(
        fitted if number == 1 or refits(plan, numbered.get(number)) else reusing for number in range(1, count + 1)
    )


def charged_training(plan: StudyPlan) -> Mapping[str, Any] | None:
    """The event, in canonical form, of the training that is charged with the release that fits the flow.

    Returns: None where fitting has no price, or is charged by itself.
    """
    fitted, reusing = planned_event(plan), planned_event(plan, reused=True)
    return None if fitted == reusing else fitted.to_canonical()["events"][0]


def refits(plan: StudyPlan, wave: Wave | None) -> bool:
    """True if a wave fits a flow of its own although that of an earlier wave could be used again."""
    return plan.returning == "refresh" and wave is not None and wave.refit


def given(plan: StudyPlan, *, reused: bool = False) -> str:
    """Condition of a plan's price, or what has no bound where no price is stated (`shared.privacy.stated`).

    Args:
        reused: as of `planned_event`.
    """
    if plan.posture == "private" and (plan.flow or (reused and charged_training(plan) is not None)):
        return CHARGED_BEFORE
    if plan.posture != "local" or planned_event(plan) == NoGuarantee():
        return ""
    carried = getattr(plan.release, "carry", "")
    return f"{FLOW} and the true {carried}" if carried else FLOW


def in_words(plan: StudyPlan, event: Event, *, reused: bool = False) -> str:
    """The price in words, with what it does not cover said first: it is the sentence that people quote."""
    words = _in_words(plan, event, reused)
    repeated = plan.dictionary.repeated
    return words if repeated is None else f"{words} This is of a patient with {repeated.words}, all together."


def _in_words(plan: StudyPlan, event: Event, reused: bool) -> str:
    from shared.privacy import meaning

    who = "patient" if unit(plan) == "patient" else "record"
    if carried := getattr(plan.release, "carry", ""):
        # "At most 1 % could be recognised" would be quoted without its condition, and is not true of these rows.
        return (
            f"Given the {plan.release.facts(plan).conditional_on}, which this does not cover: the price speaks of the "
            f"other columns alone. Everybody's true {carried} is released, and no figure bounds how surely a {who} "
            "could be recognised with it."
        )
    condition = given(plan, reused=reused)
    held = FLOW if condition == CHARGED_BEFORE else condition
    words = meaning.translate(event, delta=plan.budget.delta, unit=who, given=held)
    if not guaranteed(event):
        return words
    if condition == CHARGED_BEFORE:
        return f"Given the flow, whose training was charged before and adds to this: {words}"
    if plan.posture == "local":
        return f"Given the {plan.release.facts(plan).conditional_on}, which this does not cover: {words}"
    if plan.posture == "holdout":
        trained = f"those who trained the {plan.release.fits} are not covered"
        return f"For the persons who are released; {trained}: {words}"
    if (most := plan.release.most_seen(plan)) is not None:
        others, worst = most
        said = meaning.translate(worst, delta=plan.budget.delta, unit=who)
        return f"{words.removesuffix('.')} but the other sites' noise. To {others}, who know that: {said}"
    return words


def _is_charge(given: Mapping[str, Any]) -> bool:
    """True if this has the form of a training's charge: when, how much and by whose approval."""
    numbers = [given.get(name) for name in ("epsilon", "delta")]
    texts = [given.get(name) for name in ("release_id", "plan_hash", "day", "approver")]
    return (
        given.keys() == set(TRAINED)
        and all(isinstance(number, float) and 0 < number < math.inf for number in numbers)
        and type(given["rounds"]) is int
        and given["rounds"] >= 1
        and all(isinstance(text, str) and WORD.fullmatch(text) for text in texts)
        and bool(DIGEST.fullmatch(given["plan_hash"]))
    )


def _planned(plan: StudyPlan, *, reused: bool) -> dict[str, Any]:
    """Everything on a receipt that the plan alone decides, and whether a flow is used again."""
    covered, not_covered = coverage(plan, reused=reused)
    release = plan.release.reused(plan) if reused else plan.release
    return {
        "study": plan.study,
        "plan_hash": plan.hash,
        "plan_version": plan.version,
        "dictionary_hash": plan.dictionary.hash,
        "recipient": plan.coordinator,
        "mechanism": plan.release.mechanism,
        **asdict(release.facts(plan)),
        "event": release.event(plan).to_canonical(),
        "unit": unit(plan),
        "contributions": 1,
        "posture": plan.posture,
        "returning": plan.returning,
        "delta": plan.budget.delta,
        "study_epsilon": plan.budget.epsilon,
        "covered": covered,
        "not_covered": not_covered,
    }


def _agree(left: Any, right: Any) -> bool:
    """Equal; floats to 1e-9 relative, because two machines may round a special function differently."""
    if isinstance(left, float) and isinstance(right, (int, float)):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        return len(left) == len(right) and all(map(_agree, left, right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_agree(left[key], right[key]) for key in left)
    return bool(left == right)


def _stated(event: Event, delta: float) -> float | None:
    """The ε that a receipt states; None where there is no guarantee, for infinity is no price."""
    from shared.privacy import accountant as privacy

    return privacy.epsilon(event, delta) if guaranteed(event) else None


def _finite(curve: Any) -> tuple[float | None, ...]:
    """An RDP curve for JSON: orders at which it is undefined are null."""
    return tuple(float(value) if math.isfinite(value) else None for value in curve)


@dataclass(frozen=True, kw_only=True)
class ReceiptDraft:
    """Facts of one release that, with its plan, determine every figure of its receipt.

    Args:
        n: persons in the release (public); of a release of rows, its rows.
        previous: hash of the site's previous receipt in this study, or 64 zeros.
        drawn: rows drawn for this release; None for all.
        flow_of: release for which the flow was fitted; blank for this one.
        reused: True if it was charged as a release through that flow (`planned_event`).
        trained, hospitals, mapping: see `Receipt`.
    """

    wave: int
    site: str
    release_id: str
    agent_version: str
    n: int
    previous: str
    drawn: int | None = None
    flow_of: str = ""
    reused: bool = False
    trained: Mapping[str, Any] | None = None
    hospitals: int = 0
    mapping: str = ""


def write_receipt(plan: StudyPlan, draft: ReceiptDraft) -> Receipt:
    """The receipt of a release that this plan prescribes; every figure follows from the parameters."""
    from shared.privacy import accountant as privacy

    event = planned_event(plan, reused=draft.reused)
    return Receipt(
        **_planned(plan, reused=draft.reused),
        wave=draft.wave,
        site=draft.site,
        release_id=draft.release_id,
        agent_version=draft.agent_version,
        n=draft.n,
        drawn=draft.n if draft.drawn is None else draft.drawn,
        flow_of=draft.flow_of or draft.release_id,
        epsilon=_stated(event, plan.budget.delta),
        epsilon_pure=privacy.pure_epsilon(event),
        rdp=_finite(privacy.rdp(event)),
        translation=in_words(plan, event, reused=draft.reused),
        previous=draft.previous,
        trained=dict(draft.trained or {}),
        hospitals=draft.hospitals,
        mapping=draft.mapping,
    )


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "Mapping[str, float]": (dict,),
    "Mapping[str, Any]": (dict,),
    "tuple[str, ...]": (list,),
    "tuple[float | None, ...]": (list,),
}


def flat_document(data: bytes, kind: Any, what: str) -> dict[str, Any]:
    """A flat JSON document with exactly the dataclass's fields, each of its type."""
    body = parse_json(data)
    if not isinstance(body, dict):
        raise SchemaRefusal(f"{what} must be a JSON object")
    types = {item.name: str(item.type) for item in fields(kind)}
    closed(body, types, where=what, refusal=SchemaRefusal)
    optional = {
        item.name for item in fields(kind) if item.default_factory is not MISSING or item.default is not MISSING
    }
    for name, written in types.items():
        if name in optional and name not in body:
            continue
        if name not in body or not isinstance(body[name], _JSON_TYPES[written]) or isinstance(body[name], bool):
            raise SchemaRefusal(f"{what} must have {name} of type {written}")
        if isinstance(body[name], int) and not abs(body[name]) < 1 << 53:
            raise SchemaRefusal(f"{what} must have a {name} that is a count", given="a larger number")
    return body
