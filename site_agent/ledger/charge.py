"""Charges of a site: totals of one study and of all, the caps on them, and the statement of every charge.

A total is that of the worst class of persons (`shared.privacy.composition`); every hold counts, whatever its state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.base.canonical import canonical_json
from shared.errors import BudgetRefusal, ParameterError, StateRefusal
from shared.privacy import composition
from shared.privacy.composition import Charge, StudyCharges
from shared.privacy.stated import CHARGED_BEFORE, all_given, shown_delta, shown_epsilon, shown_price
from site_agent.ledger.chain import Chain
from site_agent.ledger.files import require_settled
from site_agent.ledger.holds import Hold, Phase, Touches, curve_of, price_of, require_word
from site_agent.ledger.members import told_apart
from site_agent.ledger.persons import beside, persons_of
from site_agent.ledger.state import Book

__all__ = [
    "Reservation",
    "Spent",
    "StatementLine",
    "forecast",
    "reserve",
    "site_price",
    "site_total",
    "statement",
    "study_total",
]


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Total ε charged to a study, or to the whole site, at one δ, for the class of persons charged most.

    Args:
        epsilon: the total that the cap applies to: ε of the summed Rényi curves, or Σ of pure ε where that is less.
        shown: the exact ε while there is one release, else `epsilon`.
        cap: the cap of the latest reservation; None before the first.
        releases: number of charges, burnt ones included.
        burnt: number of charges whose release was burnt or rejected.
        open: number of releases without a formal guarantee, which no total contains.
        open_words: text shown in place of their price; blank where there are none.
        given: condition under which the total holds (`epsilon_given`); blank for none.
    """

    study: str
    delta: float
    epsilon: float
    shown: float
    cap: float | None
    releases: int
    burnt: int
    open: int = 0
    open_words: str = ""
    given: str = ""

    @property
    def stated(self) -> float | None:
        """`epsilon` for display: None if no release has a formal guarantee, where it would be 0."""
        return None if 0 < self.releases == self.open else self.epsilon


@dataclass(frozen=True, kw_only=True)
class StatementLine:
    """One charge as a bank statement prints it.

    Args:
        epsilon_given: what `epsilon` takes as given, or what nothing bounds; blank for nothing.
        total: the study's total at this line's δ up to this line, for the persons who were charged most; None on the
            line of a charge that is in no total.
        total_given: what `total` takes as given: all that any charge up to this line does.
        persons: how many persons it touches; None where that is not known. A release of everybody counts against
            everybody, however many it touched.
    """

    date: str
    study: str
    wave: int
    release_id: str
    what: str
    epsilon: float | None
    total: float | None
    cap: float
    delta: float
    state: Phase
    detail: str
    uncovered: tuple[str, ...]
    persons: int | None = None
    merged: tuple[int, ...] = ()
    epsilon_given: str = ""
    total_given: str = ""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Charge requested for one release, or for one training by all sites, and the caps that apply to it.

    Args:
        release_id: letters, digits, - and _, at most 64; never used before. When an open hold is returned it
            keeps its own.
        event: canonical form of a `shared.privacy.accountant` event.
        delta: the study's δ.
        cap_epsilon: most ε the study may be charged at `delta`.
        touches: ``new`` promises that the release touches no person whom a release of the study has touched before;
            `start_drawing` enforces it.
        uncovered: what the guarantee does not cover, in words; listed on the statement, never added up.
        site_cap_epsilon: most ε that all studies of the site may be charged, or None.
        site_delta: the δ of that; `delta` where it is None.
        carry: take over the undrawn reservation of an earlier wave of the study, if there is one at the same
            price, instead of charging another.
        rounds: number of rounds of a training by all sites, which has wave 0; `event` then covers all of them.
        follow: number of rounds that follow the delivery of a release; `event` then covers the release and all rounds.
    Raises: ParameterError.
    """

    study: str
    plan_hash: str
    wave: int
    release_id: str
    event: Mapping[str, Any]
    delta: float
    cap_epsilon: float
    touches: Touches = "everybody"
    uncovered: Sequence[str] = ()
    site_cap_epsilon: float | None = None
    site_delta: float | None = None
    carry: bool = False
    rounds: int = 0
    follow: int = 0

    def __post_init__(self) -> None:
        require_word(self.study, "study")
        require_word(self.release_id, "release_id")
        if not (isinstance(self.wave, int) and (self.wave == 0 if self.rounds else self.wave >= 1)):
            raise ParameterError("a wave's number must be at least 1, and a training has none", given=repr(self.wave))
        for given in (self.delta, self.delta_of_site):
            if not 0 < given < 1:
                raise ParameterError("delta must be in (0, 1)", given=repr(given))
        for cap in (self.cap_epsilon, self.site_cap_epsilon):
            if cap is not None and not (math.isfinite(cap) and cap >= 0):
                raise ParameterError("a cap on epsilon must be finite and at least 0", given=repr(cap))

    @property
    def delta_of_site(self) -> float:
        """The δ at which the cap on all studies is held."""
        return self.delta if self.site_delta is None else self.site_delta


def reserve(ledger: Chain, reservation: Reservation) -> Hold:
    """Charge a release before anything reads records; or return the open hold of this study and wave.

    The total is that of the worst class of persons, whoever they will turn out to be: see
    `shared.privacy.composition`.

    Raises: BudgetRefusal; StateRefusal (this wave is delivered, or is open under another plan or event);
        UnknownEvent; ParameterError; LedgerRefusal; StorageRefusal.
    """
    study, wave, delta = reservation.study, reservation.wave, reservation.delta
    price = price_of(reservation.event, delta)  # before the ledger is locked
    canonical = price["event"]
    with ledger.transaction(write=True) as book:
        require_settled(book.path)
        going = _going_on(book, study, wave, plan_hash=reservation.plan_hash, training=bool(reservation.rounds))
        if going is not None and reservation.rounds:
            return going
        if going is not None:
            # What was drawn before the site had a cap goes its way; what was not must not be drawn under one.
            if going.state in ("reserved", "anchored"):
                _require_guarantee(book, going.epsilon, going.event, reservation.site_cap_epsilon)
            return _resumed(going, plan_hash=reservation.plan_hash, event=canonical, delta=delta)
        _require_guarantee(book, price["epsilon"], canonical, reservation.site_cap_epsilon)
        release_id = reservation.release_id
        if release_id in book.holds:
            raise StateRefusal("a release id must be new", given=release_id, next_step="Draw another id.")
        terms: dict[str, Any] = {
            "wave": wave,
            "plan_hash": reservation.plan_hash,
            "cap_epsilon": reservation.cap_epsilon,
        }
        terms["uncovered"] = list(reservation.uncovered)
        waiting = _waiting(book, reservation, canonical) if reservation.carry else None
        if waiting is None:
            terms |= {"study": study, "release_id": release_id, "touches": reservation.touches, **price}
            terms |= {
                name: count for name, count in (("rounds", reservation.rounds), ("follow", reservation.follow)) if count
            }
            book.append("reserve", terms)
        else:
            release_id = waiting.release_id
            book.move(release_id, "carry", terms)
        # The transaction is given up, entry and all, when the total with it is too large.
        _require_within(book, study, delta, reservation.cap_epsilon)
        if reservation.site_cap_epsilon is not None:
            _require_within(book, None, reservation.delta_of_site, reservation.site_cap_epsilon)
        return book.holds[release_id]


def _going_on(book: Book, study: str, wave: int, *, plan_hash: str, training: bool) -> Hold | None:
    """The hold of this wave that is not burnt; of a training, the one of this plan."""
    for hold in book.of(study):
        same = hold.rounds and hold.plan_hash == plan_hash if training else hold.wave == wave
        if same and hold.phase != "burnt":
            return hold
    return None


def _waiting(book: Book, reservation: Reservation, event: Mapping[str, Any]) -> Hold | None:
    """The last undrawn reservation of an earlier wave that was charged the same, for the same sort of persons."""
    found = [
        hold
        for hold in book.of(reservation.study)
        if hold.wave < reservation.wave
        and not hold.rounds
        and hold.state in ("reserved", "anchored")
        and (dict(hold.event), hold.delta, hold.touches) == (dict(event), reservation.delta, reservation.touches)
    ]
    return found[-1] if found else None


def _resumed(hold: Hold, *, plan_hash: str, event: Mapping[str, Any], delta: float) -> Hold:
    if hold.state in ("delivered", "withdrawn"):
        raise StateRefusal(
            f"wave {hold.wave} of study {hold.study} must not be released yet",
            given=f"a {hold.state} release",
            next_step="See site-agent budget.",
        )
    if (hold.plan_hash, dict(hold.event), hold.delta) != (plan_hash, dict(event), delta):
        raise StateRefusal(
            f"the open reservation of wave {hold.wave} must be of the same plan and event",
            given="another plan, or another price",
            next_step=f"site-agent withdraw {hold.release_id[:8]} --as NAME --reason policy gives the earlier one up; "
            "its charge stays. Then release again.",
        )
    return hold


def charges_of(book: Book, study: str) -> StudyCharges:
    """The charges of a study in order of reservation, each with whom it touches. Raises: IntegrityRefusal."""
    own = book.of(study)
    place: dict[str, int] = {}
    everybody: dict[tuple[int, float | None], Charge] = {}
    charges = []
    for hold in own:
        # Of a charge against everybody the list narrows nothing: whoever is written otherwise is not on it twice.
        if hold.touches != "new":
            same = (id(hold.rdp), hold.epsilon_pure)
            if same not in everybody:
                everybody[same] = Charge(rdp=hold.rdp, pure=hold.epsilon_pure)
            charges.append(everybody[same])
            continue
        place = place or {one.release_id: k for k, one in enumerate(own)}
        apart = None if hold.drawn else frozenset(place[name] for name in beside(book, hold))
        persons = persons_of(book, hold)
        charges.append(Charge(rdp=hold.rdp, pure=hold.epsilon_pure, persons=persons, beside=apart))
    return StudyCharges(charges)


def _total(book: Book, study: str | None, delta: float) -> float:
    """Of one study; or of all, for None."""
    if study is not None:
        return charges_of(book, study).total(delta)
    names = list(dict.fromkeys(hold.study for hold in book.holds.values()))
    apart = told_apart(book, names)
    pairs = {frozenset({names.index(one), names.index(other)}) for one, other in apart}
    return composition.site_total([charges_of(book, name) for name in names], delta, pairs)


def study_total(book: Book, study: str, delta: float) -> Spent:
    """Total charged to `study` so far, at `delta`: every hold counts, whatever its state.

    Raises: IntegrityRefusal (a list of persons is lost or was edited).
    """
    found = book.of(study)
    total = shown = charges_of(book, study).total(delta)
    # The event of a lost draw (wave 0) is unknown: its curve is the maximum over several.
    if len(found) == 1 and (found[0].wave or found[0].rounds):
        from shared.privacy import accountant as privacy

        shown = min(total, privacy.epsilon(privacy.from_canonical(found[0].event), delta))
    return Spent(
        study=study,
        delta=delta,
        epsilon=total,
        shown=shown,
        cap=found[-1].cap_epsilon if found else None,
        releases=len(found),
        burnt=sum(hold.phase == "burnt" for hold in found),
        open=sum(hold.epsilon is None for hold in found),
        open_words="; ".join(dict.fromkeys(shown_price(None, hold.given) for hold in found if hold.epsilon is None)),
        given=_given(found),
    )


def site_total(book: Book, delta: float) -> float:
    """ε at `delta` of somebody in the worst class of every study. Raises: IntegrityRefusal."""
    return _total(book, None, delta)


def site_price(book: Book, delta: float) -> tuple[float | None, str]:
    """The site's total as people may be shown it (`Spent.stated`), and what it takes as given."""
    holds = book.holds.values()
    total = _total(book, None, delta)
    return None if holds and all(hold.epsilon is None for hold in holds) else total, _given(holds)


def forecast(
    book: Book, study: str, events: Sequence[Mapping[str, Any]], delta: float, *, touches: Touches
) -> tuple[float, ...]:
    """The study's total after each of further releases, drawn in their turn and charged as these events.

    Args:
        book: the site's ledger; nothing is written to it.
        study: whose charges the further ones are added to.
        events: the charged event of each further release, in their turn.
        delta: the δ of the plan's budget, at which totals are stated.
        touches: whom they touch: everybody, or by ``new`` persons whom no release has touched, a training perhaps.
    Returns: one ε per event.
    """
    prices = {canonical_json(event): price_of(event, delta) for event in events}
    charges = list(charges_of(book, study).charges)
    trainings = frozenset(k for k, hold in enumerate(book.of(study)) if hold.rounds)
    apart = trainings if touches == "new" else None
    new = {of: Charge(rdp=curve_of(price), pure=price["epsilon_pure"], beside=apart) for of, price in prices.items()}
    ahead = StudyCharges([*charges, *(new[canonical_json(event)] for event in events)])
    return tuple(ahead.total(delta, len(charges) + k) for k in range(1, len(events) + 1))


def statement(book: Book, study: str | None = None) -> list[StatementLine]:
    """Every charge with the study's running total, in order of reservation. Raises: IntegrityRefusal."""
    lines: list[StatementLine] = []
    seen: dict[str, list[Hold]] = {}
    holds = [hold for hold in book.holds.values() if study is None or hold.study == study]
    composed = {name: charges_of(book, name) for name in dict.fromkeys(hold.study for hold in holds)}
    for hold in holds:
        upto = seen.setdefault(hold.study, [])
        upto.append(hold)
        lines.append(
            StatementLine(
                date=hold.day,
                study=hold.study,
                wave=hold.wave,
                release_id=hold.release_id,
                what=str(hold.event["event"]),
                epsilon=hold.epsilon,
                total=None if hold.epsilon is None else composed[hold.study].total(hold.delta, len(upto)),
                cap=hold.cap_epsilon,
                delta=hold.delta,
                state=hold.phase,
                detail=f"taken back: {hold.reason}" if hold.state == "withdrawn" else hold.reason or hold.state,
                uncovered=hold.uncovered,
                persons=hold.persons,
                merged=hold.merged,
                epsilon_given=hold.given,
                total_given="" if hold.epsilon is None else _given(upto),
            )
        )
    return lines


def _given(holds: Iterable[Hold]) -> str:
    """Conditions under which the total of these charges holds: the union of their own; blank for none.

    A flow trained by several sites is no condition where its training is among these charges, made to everybody.
    """
    holds = tuple(holds)
    trained = {hold.study for hold in holds if hold.rounds}
    return all_given(
        (hold.epsilon, "" if hold.given_in_total == CHARGED_BEFORE and hold.study in trained else hold.given_in_total)
        for hold in holds
    )


def _require_guarantee(book: Book, epsilon: float | None, event: Mapping[str, Any], site_cap: float | None) -> None:
    """Under a cap on all studies, that this release and all that are or may get out have a price."""
    if site_cap is None:
        return
    if epsilon is None:
        raise BudgetRefusal(
            "a release without a formal guarantee must not be made where a site has a budget over all studies",
            given="noise that depends on the records"
            if event == {"event": "no_guarantee"}
            else "rows from a flow alone that is fitted on their records (posture 'local', w = 0)",
            next_step="Ask the study lead for a plan whose releases have a price.",
        )
    # A lost or a rejected draw that nobody outside has seen is not among them; what was once sent stays.
    out = [
        hold
        for hold in book.holds.values()
        if hold.epsilon is None and (hold.left or (hold.drawn and hold.phase in ("held", "sealed")))
    ]
    if out:
        raise BudgetRefusal(
            "a budget over all studies must be one of everything that the site releases",
            given=f"{len(out)} releases without a formal guarantee, which no total holds",
            next_step="Leave [budget] out of site.toml; or withdraw those releases, if none was ever approved.",
        )


def _require_within(book: Book, study: str | None, delta: float, cap: float) -> None:
    total = _total(book, study, delta)
    # Written so that a total that is not a number is refused.
    if not total <= cap:
        raise BudgetRefusal(
            f"the total of the {'site' if study is None else f'study {study}'} must stay within its cap of "
            f"ε = {shown_epsilon(cap)} at δ = {shown_delta(delta)}",
            given=f"ε = {shown_epsilon(total)} with this release, for the persons charged most",
            next_step="See site-agent budget; a larger budget needs an amended plan."
            if study is not None
            else "See site-agent budget; the site's own cap stands in site.toml under [budget].",
        )
