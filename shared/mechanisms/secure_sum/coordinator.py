"""The coordinator's part in one secure sum: it passes messages on, counts who is left, and takes the masks off the sum.

It learns the sum of the survivors' numbers with the noise of each, and is believed in nothing: what it could gain by
other lists, other keys or a second opening, the sites refuse (`shared.mechanisms.secure_sum.site`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from shared.errors import IntegrityRefusal, ReplayRefusal, StateRefusal
from shared.mechanisms.secure_sum.masks import Words, combined, commitment, mask, pair_mask
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
from shared.mechanisms.secure_sum.site import members_digest
from shared.mechanisms.secure_sum.terms import SumTerms

__all__ = ["SumCoordinator"]


class SumCoordinator:
    """One sum as its coordinator sees it. Messages may come in any order within a step; those too late are refused."""

    def __init__(self, terms: SumTerms) -> None:
        self.terms = terms
        self._offers: dict[int, KeyOffer] = {}
        self._shares: dict[int, SealedShares] = {}
        self._masked: dict[int, MaskedValue] = {}
        self._openings: dict[int, Opening] = {}
        self._signatures: dict[str, dict[int, bytes]] = {Lists.MEMBERS: {}, Lists.SURVIVORS: {}}
        self._roster: Roster | None = None
        self._members: tuple[int, ...] = ()
        self._survivors: Survivors | None = None
        self._total: NDArray[np.int64] | None = None

    def take_offer(self, offer: KeyOffer) -> None:
        """A site's keys. Raises: SignatureRefusal, IntegrityRefusal (a weak one), ReplayRefusal (again, or late)."""
        offer.require(self.terms)
        self._first(offer.sender, self._offers, late=self._roster is not None)
        self._offers[offer.sender] = offer

    def roster(self) -> Roster:
        """Whoever offered keys until now; nobody after it. Raises: StateRefusal, below the threshold."""
        if self._roster is None:
            self._enough(self._offers, "offer keys")
            self._roster = Roster(offers=tuple(self._offers[site] for site in sorted(self._offers)))
        return self._roster

    def take_shares(self, shares: SealedShares) -> None:
        """A site's boxes. Raises: IntegrityRefusal (not one for each other site of the roster), ReplayRefusal."""
        self._first(shares.site, self._shares, late=self._roster is None or bool(self._members))
        self.require_shares(shares)
        self._shares[shares.site] = shares

    def require_shares(self, shares: SealedShares) -> None:
        """Raises: IntegrityRefusal: not one box for each other site of the roster."""
        if {*shares.boxes, shares.site} != set(self._offers) or shares.site in shares.boxes:
            raise IntegrityRefusal("a site must send a box to each other site of the roster", given="others")

    def boxes_for(self, site: int) -> SealedShares:
        """The others' boxes for a member; the members are those whose shares have come until now."""
        if not self._members:
            self._enough(self._shares, "send shares")
            self._members = tuple(sorted(self._shares))
        self._known(site, self._members)
        return SealedShares(site=site, boxes={j: self._shares[j].boxes[site] for j in self._members if j != site})

    def take_assent(self, assent: SumAssent) -> None:
        """A site's signature. Raises: IntegrityRefusal (under another list), SignatureRefusal, ReplayRefusal."""
        self.require_assent(assent)
        signed = self._signatures[assent.about]
        self._first(assent.sender, signed, late=False)
        signed[assent.sender] = assent.signature

    def require_assent(self, assent: SumAssent) -> None:
        """Raises: IntegrityRefusal (another list, or no member's), SignatureRefusal, StateRefusal (no list yet)."""
        one = Agreement(about=assent.about, digest=assent.digest, signatures={assent.sender: assent.signature})
        one.verify(self.terms, assent.about, self._digest(assent.about))
        self._known(assent.sender, self._members)

    def agreement(self, about: str) -> Agreement:
        """The signatures under a list. Raises: StateRefusal, below the threshold."""
        signed = self._signatures[about]
        self._enough(signed, f"sign the {about}")
        return Agreement(about=about, digest=self._digest(about), signatures=dict(sorted(signed.items())))

    def take_masked(self, masked: MaskedValue) -> None:
        """A member's masked numbers. Raises: IntegrityRefusal (no member), ReplayRefusal (a second time, or late)."""
        self._known(masked.sender, self._members)
        self._first(masked.sender, self._masked, late=self._survivors is not None)
        self._masked[masked.sender] = masked

    @property
    def members_digest(self) -> bytes:
        """Of the members and their keys, as each of them signed it. Raises: StateRefusal, before they are known."""
        return self._digest(Lists.MEMBERS)

    def survivors(self) -> Survivors:
        """Whoever's masked numbers have come until now; nobody's after it. Raises: StateRefusal."""
        if self._survivors is None:
            self._enough(self._masked, "send masked numbers")
            self._survivors = Survivors(sites=tuple(sorted(self._masked)))
        return self._survivors

    def take_opening(self, opening: Opening) -> None:
        """A site's shares. Raises: IntegrityRefusal, ReplayRefusal."""
        self.require_opening(opening)
        self._first(opening.sender, self._openings, late=self._total is not None)
        self._openings[opening.sender] = opening

    def require_opening(self, opening: Opening) -> None:
        """Raises: IntegrityRefusal: no member's, or not one share of each."""
        self._known(opening.sender, self._members)
        if set(opening.shares) != set(self._members):
            raise IntegrityRefusal("a site must open one share of each member", given="others")

    def total(self) -> NDArray[np.float64]:
        """(coordinates,) the survivors' sum with the noise of each, in the data's units.

        Raises: StateRefusal (too few shares), IntegrityRefusal (shares that do not give a member's secret).
        """
        if self._total is None:
            self._enough(self._openings, "open their shares")
            alive = set(self.survivors().sites)
            words: Words = np.zeros(self.terms.coordinates, dtype=np.uint64)
            for site in sorted(alive):
                words = words + np.frombuffer(self._masked[site].words, dtype="<u8")
            for site in self._members:
                words = words - (self._own_mask(site) if site in alive else self._lost_masks(site, alive))
            self._total = words.astype(np.int64)
        return np.asarray(self._total * self.terms.grid, dtype=np.float64)

    def _secret(self, site: int, holds: Callable[[bytes], bool]) -> bytes:
        """A site's secret, also where one of more shares than are needed is false. Raises: IntegrityRefusal."""
        shares = {holder: opening.shares[site] for holder, opening in self._openings.items()}
        spare = len(shares) > self.terms.threshold
        for without in (None, *(sorted(shares) if spare else ())):
            found = combined({holder: one for holder, one in shares.items() if holder != without}, self.terms)
            if holds(found):
                return found
        raise IntegrityRefusal(
            "opened shares must give the secret that its site committed to",
            given=f"others of site {site}",
            next_step="A site has sent a false share; this sum is not opened.",
        )

    def _own_mask(self, site: int) -> Words:
        seed = self._secret(site, lambda found: commitment(found) == self._offers[site].commitment)
        return mask(seed, self.terms.coordinates)

    def _lost_masks(self, site: int, alive: Collection[int]) -> Words:
        """Sum of the survivors' masks with a lost site: the negative of that site's masks with them."""

        def holds(found: bytes) -> bool:
            made = X25519PrivateKey.from_private_bytes(found)
            return made.public_key().public_bytes_raw() == self._offers[site].mask

        key = X25519PrivateKey.from_private_bytes(self._secret(site, holds))
        words: Words = np.zeros(self.terms.coordinates, dtype=np.uint64)
        for other in sorted(alive):
            words = words - pair_mask(key, site, (other, self._offers[other].mask), self.terms)
        return words

    def _digest(self, about: str) -> bytes:
        if not self._members:
            raise StateRefusal("members must be known before anybody signs", given="none")
        members = members_digest(self.terms, [self._offers[site] for site in self._members])
        if about == Lists.MEMBERS:
            return members
        if self._survivors is None:
            raise StateRefusal("survivors must be known before anybody signs who", given="none")
        return self._survivors.digest(members)

    def _first(self, site: int, taken: Collection[int], *, late: bool) -> None:
        if late or site in taken:
            raise ReplayRefusal(
                "a site must say each thing once, and in its step", given=f"site {site} once more or late"
            )

    def _known(self, site: int, among: Collection[int]) -> None:
        if site not in among:
            raise IntegrityRefusal("the site must be a member of this sum", given=f"site {site}")

    def _enough(self, sites: Collection[int], what: str) -> None:
        if len(sites) < self.terms.threshold:
            raise StateRefusal(
                f"{self.terms.threshold} of {len(self.terms.members)} sites must {what}",
                given=f"{len(sites)}",
                next_step="Wait for the others. A sum that they do not finish is never opened, and stays charged.",
            )
