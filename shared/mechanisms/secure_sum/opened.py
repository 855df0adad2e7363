"""A secure sum that was opened, as its coordinator keeps it and whoever reads an answer from it checks it.

The sum alone is no answer: it was taken over looks that the sites' pilots gave, and is read from the same looks again.
So the document names the pilots by their bytes, has of each survivor its look and the level that it told, and the
signatures under the one list of survivors. They say whose numbers are in the sum; that it is their sum is the
coordinator's word, which alone has the masked numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json, is_digest, parse_json, sha256_hex
from shared.errors import IntegrityRefusal, ParameterError, SchemaRefusal
from shared.mechanisms.secure_sum.influences import level_of
from shared.mechanisms.secure_sum.messages import Agreement, Lists, Survivors
from shared.mechanisms.secure_sum.sent_look import AnySentLook, is_within, read_look
from shared.mechanisms.secure_sum.terms import MOST, SumTerms

if TYPE_CHECKING:
    from shared.plans.plan import StudyPlan

__all__ = ["CAP", "OpenedSum", "SumPart"]

CAP = 4 << 20
"""Bytes that an opened sum may have."""
_SIGMAS = 64
"""Of the noise: as many as `SumTerms` has room for."""


@dataclass(frozen=True, kw_only=True)
class SumPart:
    """A survivor's look, and the level that it sent before the sum; none of its numbers in the sum.

    Args:
        look: at which its influences were evaluated.
        events, charges: as it sent them, with noise (`influences.noisy_level`).
    """

    look: AnySentLook
    events: float
    charges: float


@dataclass(frozen=True, kw_only=True)
class OpenedSum:
    """One opened sum. Sites are known by their places among the terms' members.

    Args:
        pilots: place to the SHA-256 of the bundle, hexadecimal, of every release that the looks were made from: places
            are drawn towards each other, so that another release more would move all of them.
        parts: by place, of the survivors: they are the list that was signed.
        members: (32 bytes) digest of who sent shares, and of their keys (`site.members_digest`).
        signatures: by place, each under this list of survivors.
        total: the sum of the survivors' numbers with the noise of each.
    Raises: SchemaRefusal.
    """

    terms: SumTerms
    pilots: Mapping[int, str]
    parts: Mapping[int, SumPart]
    members: bytes
    signatures: Mapping[int, bytes]
    total: tuple[float, ...]

    def __post_init__(self) -> None:
        sites = range(len(self.terms.members))
        for name in ("pilots", "parts", "signatures"):
            value = getattr(self, name)
            _must(set(value) <= set(sites), f"an opened sum's {name} must be of its members", "others")
            object.__setattr__(self, name, {site: value[site] for site in sorted(value)})
        _must(len(self.parts) > 0, "an opened sum must have survivors", "none")
        _must(self.parts.keys() <= self.pilots.keys(), "a survivor of a sum must have a pilot", "one that has none")
        _must(all(map(is_digest, self.pilots.values())), "pilots must be SHA-256", "another text")
        _must(len(self.members) == 32, "members must be a digest of 32 bytes", len(self.members))
        _must(all(len(one) == 64 for one in self.signatures.values()), "a signature must have 64 bytes", "others")
        noisy = [number for part in self.parts.values() for number in (part.events, part.charges)]
        _must(_finite([*self.total, *noisy]), "the numbers of an opened sum must be finite", "others")

    @property
    def survivors(self) -> Survivors:
        """Sites whose numbers are in the sum."""
        return Survivors(sites=tuple(self.parts))

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in each number: every survivor's share is in it."""
        return self.terms.share_sigma * math.sqrt(len(self.parts))

    @property
    def start(self) -> tuple[float, ...]:
        """Coefficients at which the influences of all sites were evaluated."""
        start = next(iter(self.parts.values())).look.start
        return start if isinstance(start, tuple) else (start,)

    @property
    def sha256(self) -> str:
        """Of its bytes."""
        return sha256_hex(self.to_bytes())

    def verify(self, plan: StudyPlan) -> None:
        """Check that the plan allows this sum, and that at least the threshold of sites signed the survivors.

        Raises: IntegrityRefusal (other terms, too few survivors, looks that differ in what they must share, a number
            that no sum of these sites can have), SignatureRefusal.
        """
        from shared.mechanisms.secure_sum.plan import SecureSumPlan

        release, terms = plan.release, self.terms
        _holds(isinstance(release, SecureSumPlan), "the plan of an opened sum must ask for one", "another mechanism")
        assert isinstance(release, SecureSumPlan)
        _holds(terms == release.terms(plan, terms.wave), "an opened sum must have the plan's terms", "others")
        sites = self.survivors.sites
        _holds(len(sites) >= terms.threshold, f"{terms.threshold} sites must be in the sum", len(sites))
        _holds(self.signatures.keys() <= set(sites), "survivors must sign who they are", "a site that is none")
        digest = self.survivors.digest(self.members)
        signed = Agreement(about=Lists.SURVIVORS, digest=digest, signatures=self.signatures)
        signed.require(terms, Lists.SURVIVORS, digest)
        bounds, sigma = release.bounds(plan), release.level_event(plan).sigma
        common = next(iter(self.parts.values())).look.common
        for part in self.parts.values():
            look = part.look
            _holds(look.common == common, "all sites of a sum must be looked at from one place", "others")
            level = level_of(part.events, part.charges, sigma)
            _holds(math.isclose(look.level, level, abs_tol=1e-9), "a look's level must be the one told", "another")
            _holds(
                is_within(look, bounds),
                "a look must be within the plan's bounds",
                "others",
            )
        largest = len(sites) * terms.largest + _SIGMAS * self.sigma
        possible = len(self.total) == terms.coordinates and all(abs(one) <= largest for one in self.total)
        _holds(possible, f"a sum of {len(sites)} sites must be {terms.coordinates} numbers of their size", "others")

    # -- bytes ---------------------------------------------------------------------------------------------------
    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        parts = {
            f"{site}": {"look": part.look.to_canonical(), "events": part.events, "charges": part.charges}
            for site, part in self.parts.items()
        }
        body = {
            "type": "opened-sum",
            "terms": {field.name: getattr(self.terms, field.name) for field in fields(SumTerms)},
            "pilots": {f"{site}": digest for site, digest in self.pilots.items()},
            "parts": parts,
            "members": self.members.hex(),
            "signatures": {f"{site}": one.hex() for site, one in self.signatures.items()},
            "total": list(self.total),
        }
        return canonical_json(body)

    @staticmethod
    def from_bytes(data: bytes) -> OpenedSum:
        """The opened sum in these bytes. Raises: SchemaRefusal (another form, too long, not as it would be written)."""
        body = parse_json(data, cap=CAP)
        try:
            made = _read(body)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ParameterError):
            raise SchemaRefusal("an opened sum must have its form", given="another document") from None
        _must(made.to_bytes() == data, "an opened sum must be in canonical form", "other bytes of the same meaning")
        return made


def _read(body: Any) -> OpenedSum:
    if body.pop("type") != "opened-sum" or set(body) != {field.name for field in fields(OpenedSum)}:
        raise ValueError
    given = body["terms"]
    if set(given) != {field.name for field in fields(SumTerms)} or not isinstance(given["members"], list):
        raise ValueError
    terms = SumTerms(**(given | {"members": tuple(given["members"])}))
    parts = {}
    for site, part in _by_place(body["parts"]).items():
        if set(part) != {field.name for field in fields(SumPart)}:
            raise ValueError
        look = read_look(part["look"])
        parts[site] = SumPart(look=look, events=_number(part["events"]), charges=_number(part["charges"]))
    return OpenedSum(
        terms=terms,
        pilots=_by_place(body["pilots"]),
        parts=parts,
        members=bytes.fromhex(body["members"]),
        signatures={site: bytes.fromhex(one) for site, one in _by_place(body["signatures"]).items()},
        total=tuple(_number(one) for one in body["total"]),
    )


def _by_place(value: Any) -> dict[int, Any]:
    if not isinstance(value, dict) or len(value) > MOST or not all(re.fullmatch("[0-9]{1,3}", key) for key in value):
        raise ValueError
    return {int(key): item for key, item in value.items()}


def _number(value: Any) -> float:
    if type(value) is not float:
        raise ValueError
    return value


def _finite(values: list[float]) -> bool:
    return all(type(value) is float and math.isfinite(value) for value in values)


def _must(holds: bool, must: str, given: object) -> None:
    if not holds:
        raise SchemaRefusal(must, given=str(given))


def _holds(holds: bool, must: str, given: object) -> None:
    if not holds:
        raise IntegrityRefusal(must, given=str(given), next_step="Ask the coordinator for the opened sum of this plan.")
