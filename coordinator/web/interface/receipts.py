"""Receipts in words, each beside the receipt of the site's wave before: what changed from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shared.privacy.stated import shown_price

if TYPE_CHECKING:
    from coordinator.store.rows import AcceptedRelease, ReleaseLine

__all__ = ["before", "in_words", "since"]

_FACTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "persons": lambda one: f"{one['n']:,}",
    "mechanism": lambda one: str(one["mechanism"]).replace("_", " "),
    "posture": lambda one: str(one["posture"]),
    "price": lambda one: str(one["price"]),
    "what the price means": lambda one: str(one["translation"]),
    "plan": lambda one: f"version {one['plan_version']}",
}


def before(lines: Sequence[ReleaseLine]) -> dict[str, str]:
    """Release to the bundle of the site's newest release of an earlier wave, of those not withdrawn; none of a first.

    Args:
        lines: all releases of a study, by wave and site.
    """
    newest: dict[str, list[ReleaseLine]] = {}
    found = {}
    for line in lines:
        earlier = [one for one in newest.get(line.site, []) if one.wave < line.wave]
        if earlier:
            found[line.release_id] = earlier[-1].bundle_sha256
        if not line.withdrawn:
            newest.setdefault(line.site, []).append(line)
    return found


def in_words(release: AcceptedRelease, earlier: AcceptedRelease | None) -> dict[str, Any]:
    """A release with its receipt in words, and what changed `since` the site's wave before; None of a first."""
    said = _words(release)
    return {**said, "since": None if earlier is None else since(_words(earlier), said)}


def _words(release: AcceptedRelease) -> dict[str, Any]:
    names = ("release_id", "site", "wave", "n", "plan_version", "plan_hash", "bundle_sha256", "log_index")
    receipt = release.receipt
    facts = {name: getattr(release, name) for name in (*names, "accepted_day", "withdrawn")}
    facts |= {"mechanism": receipt.mechanism, "posture": receipt.posture, "receipt_hash": receipt.hash}
    facts |= {"price": shown_price(receipt.stated_epsilon, receipt.given, delta=receipt.delta)}
    facts |= {"translation": receipt.stated_translation}
    return {**facts, "covered": list(receipt.covered), "not_covered": list(receipt.not_covered)}


def since(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Changes between the receipts, in words, of two releases.

    Returns: ``wave`` of the earlier; ``changes``, each (fact, earlier value, present value); and the sentences added to
        and dropped from what is covered and what is not: ``covered``, ``no_longer_covered``, ``not_covered``,
        ``no_longer_open``.

    >>> one = {"wave": 1, "n": 1200, "mechanism": "latent_noise", "posture": "local", "price": "ε 3",
    ...        "translation": "t", "plan_version": 1, "covered": ["rows"], "not_covered": ["the flow"]}
    >>> found = since(one, {**one, "wave": 2, "n": 1300, "not_covered": ["the flow", "twins"]})
    >>> found["changes"], found["not_covered"], found["no_longer_covered"]
    ([['persons', '1,200', '1,300']], ['twins'], [])
    """
    both = {name: (said(earlier), said(now)) for name, said in _FACTS.items()}

    def came(name: str, of: Mapping[str, Any], to: Mapping[str, Any]) -> list[str]:
        return [sentence for sentence in to[name] if sentence not in of[name]]

    return {
        "wave": earlier["wave"],
        "changes": [[name, was, is_] for name, (was, is_) in both.items() if was != is_],
        "covered": came("covered", earlier, now),
        "no_longer_covered": came("covered", now, earlier),
        "not_covered": came("not_covered", earlier, now),
        "no_longer_open": came("not_covered", now, earlier),
    }
