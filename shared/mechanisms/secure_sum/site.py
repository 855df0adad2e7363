"""A site's part in one secure sum: six steps in order, each taken once, and no secret on disk.

A step that refuses what it is given changes nothing, and may be asked again. One that gives something away is over
before it does. A site whose process ends in between is a drop-out of this sum: its secrets were in memory alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from shared.base.canonical import canonical_json
from shared.base.keys import SigningKey
from shared.base.randomness import Noise
from shared.errors import IntegrityRefusal, ParameterError, ReplayRefusal
from shared.mechanisms.secure_sum.masks import SECRET, commitment, mask, opened, pair_mask, sealed, shares_of
from shared.mechanisms.secure_sum.messages import (
    Agreement,
    KeyOffer,
    Lists,
    MaskedValue,
    Opening,
    Roster,
    SealedShares,
    SumAssent,
    Survivors,
)
from shared.mechanisms.secure_sum.terms import SumTerms

__all__ = ["SumSite", "members_digest", "noise_share"]

_STEPS = ("offer", "seal", "join", "mask", "agree", "open", "nothing more")


def noise_share(terms: SumTerms, noise: Noise) -> NDArray[np.int64]:
    """(coordinates,) one site's share of the noise in whole steps: rounded normals, exactly sampled."""
    return noise.lattice_gaussian_steps(terms.share_sigma, terms.coordinates, terms.grid)


def members_digest(terms: SumTerms, offers: Collection[KeyOffer]) -> bytes:
    """SHA-256 of the sum's terms and its members' keys: what each of them signs before anything is masked."""
    said = [offer.body() for offer in sorted(offers, key=lambda offer: offer.sender)]
    return hashlib.sha256(canonical_json({"sum": terms.digest.hex(), "members": said})).digest()


class SumSite:
    """One site in one sum.

    Args:
        place: of this site among `terms.members`. key: the one that the plan knows it by.
        entropy: so many random bytes that nobody can guess.
    """

    def __init__(self, terms: SumTerms, place: int, key: SigningKey, entropy: Callable[[int], bytes]) -> None:
        if not 0 <= place < len(terms.members) or terms.members[place] != key.public.hex:
            raise ParameterError("the key must be that of the member at its place", given=f"{place}")
        self.terms, self.place, self._key = terms, place, key
        self._step = 0
        self._cipher, self._masks = (X25519PrivateKey.from_private_bytes(entropy(SECRET)) for _ in range(2))
        self._seed = entropy(SECRET)
        self._offers: dict[int, KeyOffer] = {}
        self._held: dict[int, bytes] = {}
        self._members = self._survivors = b""
        self._alive: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return f"SumSite(place={self.place}, next={_STEPS[self._step]!r})"

    def offer(self) -> KeyOffer:
        """Step 1: its public keys, signed. Raises: ReplayRefusal, as of every step out of its order."""
        self._next("offer")
        keys = (key.public_key().public_bytes_raw() for key in (self._cipher, self._masks))
        made = KeyOffer.signed(self.terms, self.place, (*keys, commitment(self._seed)), self._key)  # type: ignore[arg-type]
        self._offers = {self.place: made}
        self._step += 1
        return made

    def seal(self, roster: Roster) -> SealedShares:
        """Step 2: shares of both its secrets, a box for each other site. Raises: SignatureRefusal, IntegrityRefusal."""
        self._next("seal")
        offers = {offer.sender: offer for offer in roster.offers}
        if len(offers) < len(roster.offers) or offers.get(self.place) != self._offers[self.place]:
            raise IntegrityRefusal("a roster must have each site once, and this one's own keys", given="others")
        self._enough(offers, "offer keys")
        for offer in offers.values():
            offer.require(self.terms)
        seeds = shares_of(self._seed, self.terms)
        keys = shares_of(self._masks.private_bytes_raw(), self.terms)
        boxes = {
            site: sealed(self._cipher, offer.cipher, (self.place, site), seeds[site] + keys[site], self.terms)
            for site, offer in sorted(offers.items())
            if site != self.place
        }
        self._held = {self.place: seeds[self.place] + keys[self.place]}
        self._offers = offers
        self._step += 1
        return SealedShares(site=self.place, boxes=boxes)

    def join(self, delivered: SealedShares) -> SumAssent:
        """Step 3: the others' shares taken; those whose boxes are here are the members, and this site signs who."""
        self._next("join")
        others = set(delivered.boxes)
        if delivered.site != self.place or self.place in others or not others <= set(self._offers):
            raise IntegrityRefusal("boxes must be for this site, from sites of its roster", given="others")
        members = {site: self._offers[site] for site in (*others, self.place)}
        self._enough(members, "send shares")
        held = {
            site: opened(self._cipher, members[site].cipher, (site, self.place), box, self.terms)
            for site, box in delivered.boxes.items()
        }
        self._held = {self.place: self._held[self.place]} | held
        self._offers, self._members = members, members_digest(self.terms, members.values())
        self._step += 1
        return SumAssent.signed(self.terms, self.place, Lists.MEMBERS, self._members, self._key)

    def mask(self, agreement: Agreement, steps: NDArray[np.int64], noise: Noise) -> MaskedValue:
        """Step 4: its numbers and its share of the noise under its masks, when enough others saw the same members.

        From here on the sum counts as released by this site, whatever becomes of it.

        Args:
            steps: (coordinates,) of `SumTerms.whole_steps`.
        """
        self.require_members(agreement)
        if steps.shape != (self.terms.coordinates,) or steps.dtype != np.int64:
            raise ParameterError("the numbers must be whole steps of each coordinate", given=f"{steps.shape}")
        most = self.terms.largest / self.terms.grid
        if ((steps > most) | (steps < -most)).any():  # the least int64 has no absolute value
            raise ParameterError("the numbers must be within the terms' largest", given="more")
        masks = mask(self._seed, self.terms.coordinates)
        for site, offer in self._offers.items():
            if site != self.place:
                masks = masks + pair_mask(self._masks, self.place, (site, offer.mask), self.terms)
        self._step += 1
        words = (steps + noise_share(self.terms, noise)).astype(np.uint64) + masks
        return MaskedValue(sender=self.place, words=words.astype("<u8").tobytes())

    def require_members(self, agreement: Agreement) -> None:
        """Check that enough members signed the list of members that this site saw.

        Raises: IntegrityRefusal, SignatureRefusal, ReplayRefusal.
        """
        self._next("mask")
        agreement.require(self.terms, Lists.MEMBERS, self._members)

    def agree(self, survivors: Survivors) -> SumAssent:
        """Step 5: the one list of survivors that this site signs. Raises: IntegrityRefusal."""
        self._next("agree")
        alive = frozenset(survivors.sites)
        if not (self.place in alive and alive <= set(self._offers)):
            raise IntegrityRefusal("survivors must be members, and this site one of them", given="others")
        self._enough(alive, "send masked numbers")
        self._step += 1
        self._alive, self._survivors = alive, survivors.digest(self._members)
        return SumAssent.signed(self.terms, self.place, Lists.SURVIVORS, self._survivors, self._key)

    def open(self, agreement: Agreement) -> Opening:
        """Step 6: one share of each member, when enough others signed the same survivors. Its secrets are gone then."""
        self._next("open")
        agreement.require(self.terms, Lists.SURVIVORS, self._survivors)
        self._step += 1
        shares = {
            site: text[:SECRET] if site in self._alive else text[SECRET:] for site, text in sorted(self._held.items())
        }
        self._held = {}
        del self._cipher, self._masks, self._seed
        return Opening(sender=self.place, shares=shares)

    def _next(self, step: str) -> None:
        if _STEPS[self._step] != step:
            raise ReplayRefusal(
                f"a secure sum must go on with the step that is next here: {_STEPS[self._step]}", given=step
            )

    def _enough(self, sites: Collection[int], what: str) -> None:
        if len(sites) < self.terms.threshold:
            raise IntegrityRefusal(
                f"{self.terms.threshold} of {len(self.terms.members)} sites must {what}",
                given=f"{len(sites)}",
                next_step="Nothing is opened. A repetition is a new sum with a charge of its own.",
            )
