"""Approver's consent before this site offers its keys: the result of the sum, its recipients, and this site's look.

The order that the coordinator signed is stored beside the release. Its look, the plan and the table determine the
site's contribution. Neither the table nor these numbers are shown: a consent based on them would depend on the records,
and the participation in a sum is visible to all.

A site's agent checks its own key among the plan's members. The others came to the study lead through the coordinator,
which could have made them: only persons can compare them, and the approver may say with which hospitals they did. That
is kept here with what was consented to, and is sent nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.keys import PublicKey
from shared.errors import IntegrityRefusal, SchemaRefusal, StateRefusal, UsageRefusal
from shared.mechanisms.secure_sum.sent_look import SentLook, is_within
from shared.mechanisms.secure_sum.steps import LookOrder, SumStep
from shared.privacy.stated import shown_delta, shown_epsilon
from shared.wire.rounds import PASSED_BY, RoundOrder
from site_agent.ledger.files import write_whole
from site_agent.training.secure_sum.member import NEXT_SUM, ORDER, SumMember, member_of, passed_by, what_it_costs

if TYPE_CHECKING:
    from shared.base.keys import SigningKey
    from shared.plans.plan import StudyPlan
    from site_agent.ledger.book import Hold, Ledger

__all__ = ["ConsentPage", "give_consent", "waiting_order"]

DOCUMENT = "sum-consent-{}.json"
"""Named by the first letters of its SHA-256, which the ledger has: none stands in the place of one that was signed."""
_MOST = 4 << 20
_COMPARE = (
    "Before you consent: telephone the hospitals that are not compared, at numbers that neither the coordinator nor "
    "the study lead gave you, compare the fingerprints with what their own site-agent status shows, and add "
    "--compared SITE for each."
)


@dataclass(frozen=True, kw_only=True)
class ConsentPage:
    """Request for an approver's consent.

    Args:
        asked: digest of the order. order: its content.
        compared: members whose keys the approver says to have compared with the hospitals themselves.
        uncompared: ε if all other members' keys were the coordinator's own.
        document: canonical JSON of all that is consented to; its SHA-256 stands in the ledger.
        sentences: the same in words.
        advice: how to compare the keys that were not, before consent is given; empty where all were.
    """

    member: SumMember
    asked: str
    order: LookOrder
    compared: tuple[str, ...]
    uncompared: float
    document: bytes
    sentences: tuple[str, ...]
    advice: str


def waiting_order(ledger: Ledger, site: str, plan: StudyPlan, compared: Sequence[str] = ()) -> ConsentPage:
    """The order that waits for consent.

    Args:
        compared: members whose keys the approver has compared.
    Raises: StateRefusal (none does), IntegrityRefusal (another content than was signed), PlanRefusal, UsageRefusal (no
    other member of that name).
    """
    member = member_of(ledger, site, plan)
    if passed_by(ledger, member.hold):
        raise StateRefusal(
            PASSED_BY, given="one that the sum went on without", next_step=f"{what_it_costs(member.hold)} {NEXT_SUM}"
        )
    left = _uncompared(member, site, compared)
    uncompared = member.release.seen_with(plan, len(left))
    path = ledger.folder(member.hold) / ORDER
    if not path.exists() or SumStep.OFFER in member.hold.begun:
        raise StateRefusal(
            "an order of the sum must wait for consent",
            given="keys that were offered already" if SumStep.OFFER in member.hold.begun else "none",
            next_step=f"Run site-agent federate {plan.study}: it asks the coordinator.",
        )
    said, content = _stored_order(path.read_bytes())
    if sha256_hex(content) != said.content_sha256:
        raise IntegrityRefusal("the order's content must be the one that was signed", given="another")
    order = LookOrder.from_bytes(content, member.terms)
    if not is_within(order.look, member.release.bounds(plan)):
        raise IntegrityRefusal("the order's look must be within the plan's bounds", given="another")
    document = {
        "study": plan.study,
        "plan_hash": plan.hash,
        "site": site,
        "release_id": member.hold.release_id,
        "asked": said.digest,
        "sum": member.terms.digest.hex(),
        "look": order.look.to_canonical(),
        "seen_by": dict(member.release.seen_by(plan)),
    }
    if compared:
        document["compared"] = {name: PublicKey(member.release.keys[name]).fingerprint for name in sorted({*compared})}
    return ConsentPage(
        member=member,
        asked=said.digest,
        order=order,
        compared=tuple(sorted({*compared})),
        uncompared=uncompared,
        document=canonical_json(document),
        sentences=_sentences(member, order, _of_keys(left, uncompared)),
        advice=_COMPARE if left else "",
    )


def give_consent(ledger: Ledger, page: ConsentPage, *, name: str, key: SigningKey) -> Hold:
    """Note an approver's consent; the document that it signs lies beside the release.

    Raises: StateRefusal (a second consent of this person to the same order); as of `Ledger.consent`.
    """
    hold = ledger.hold(page.member.hold.release_id)
    if hold.consent == page.asked and name in hold.consents:
        raise StateRefusal(
            "an approver must consent to an order of the sum once",
            given=f"{name}, who has",
            next_step="What was signed stays, and says which keys were compared by then. Run site-agent federate "
            f"{page.member.plan.study}.",
        )
    digest = sha256_hex(page.document)
    write_whole(ledger.folder(page.member.hold) / DOCUMENT.format(digest[:16]), page.document, "sum.consent")
    return ledger.consent(page.member.hold, asked=page.asked, document_sha256=digest, name=name, key=key)


def _stored_order(data: bytes) -> tuple[RoundOrder, bytes]:
    body: Any = parse_json(data, cap=_MOST)
    try:
        said = RoundOrder(**parse_json(body["order"].encode()))
        return said, body["content"].encode()
    except (KeyError, TypeError, AttributeError):
        raise SchemaRefusal("a kept order must be words and content", given="another file") from None


def _uncompared(member: SumMember, site: str, compared: Sequence[str]) -> tuple[str, ...]:
    """The other members whose keys were not compared. Raises: UsageRefusal."""
    others = [name for name in member.release.members if name != site]
    if strange := [name for name in compared if name not in others]:
        raise UsageRefusal(
            "keys must have been compared with other members of the sum",
            given=", ".join(map(repr, strange))[:200],
            next_step=f"Members beside this site: {', '.join(others)}.",
        )
    return tuple(name for name in others if name not in compared)


def _of_keys(left: Sequence[str], epsilon: float) -> str:
    """What the rows rest on, and what holds where `left` were never compared."""
    said = (
        "These rows count a member as a hospital if its key is the hospital's own. This site has checked its own key; "
        "whoever lists keys that it made itself under the names of others knows their share of the noise."
    )
    if not left:
        return f"{said} You say that you have compared the key of every other hospital with it."
    return (
        f"{said} Not compared: {', '.join(left)}. If these were the coordinator's own, what holds is "
        f"ε = {shown_epsilon(epsilon)}, though no hospital tells it anything."
    )


def _sentences(member: SumMember, order: LookOrder, of_keys: str) -> tuple[str, ...]:
    plan, terms, look = member.plan, member.terms, order.look
    release, bounds = member.release, member.release.bounds(member.plan)
    sites, delta = len(terms.members), shown_delta(plan.budget.delta)
    rows = "; ".join(f"{who}: ε = {shown_epsilon(epsilon)}" for who, epsilon in release.seen_by(plan).items())
    of, units = release.coefficient, f"{release.units:g}"
    if isinstance(look, SentLook):
        added = (
            f"{sites} sites add up two numbers each, about the coefficient of {of} per {units}: how far this site's "
            "records would move it from where all sites are looked at, and how much they say of it."
        )
        seen = (
            f"coefficient {look.start:.4g}, weight {look.weight:.3g}, influences cut at {look.cut:.3g}, "
            f"level {look.level:+.3g}"
        )
    else:
        several = ", ".join(f"{name} per {per:g}" for name, per in release.coefficients.items())
        added = (
            f"{sites} sites add up {terms.coordinates} numbers each, about the coefficients of {several}: how far this "
            "site's records would move each from where all sites are looked at, and how much they say of each. One "
            "noise is shared out among them, and a record moves all together by no more than it would move one."
        )
        if release.variants:
            variants = "; ".join(release.variants)
            added += f" Among these numbers are those of the first coefficient of each of: {variants}."
        places = [
            f"{name} {start:.4g} (weight {weight:.3g})"
            for name, start, weight in zip(
                (*release.coefficients, *release.variants), look.start, look.weights, strict=True
            )
        ]
        about = f", records drawn in about a point {math.hypot(*look.offset):.2g} from 0" if look.offset else ""
        seen = f"coefficients {', '.join(places)}, level {look.level:+.3g}{about}"
    return (
        added,
        f"The coordinator sees the sum of all and no site's part. {terms.threshold} sites must stay to the end: with "
        "fewer nothing is opened, and the charge stays.",
        f"The sum carries noise of standard deviation {terms.sigma:.4g} at least, of which this site adds its share "
        f"({terms.share_sigma:.4g}). A record counts for {bounds.reach:g} at most, whatever the coordinator sends.",
        f"What holds of a patient, pilot and level included, by who looks together: {rows}; each at δ = {delta}.",
        of_keys,
        f"The coordinator's look: {seen}.",
        "After this consent the six steps of the sum need nobody. With the fourth of them, masked numbers, this site's "
        "part is given and cannot be taken back.",
    )
