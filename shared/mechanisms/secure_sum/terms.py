r"""The terms of one secure sum: who takes part, how many may be lost or collude, and how large the noise is.

K sites, d of which may drop out and c of which may show the coordinator all they have. The threshold t = K - d is the
number of sites that must agree to a list, and whose shares open a secret. A site signs one list of survivors and gives
of each member one share: of the mask that it added for itself if the list has it, else of its masks with the others.
Two lists that both reach t, or both secrets of one site, take 2 (t - c) honest sites, each counted once, so that

.. math:: 2 t - K > c

makes them impossible. It holds for up to 2t - K - 1 colluders, `SumTerms.withstood`: at K = 12 and d = 2 for 7.

Source: K. Bonawitz et al. (2017), CCS, 1175, section 6.3, whose threshold is for parties that may also lie.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shared.base.canonical import canonical_json, is_digest, is_whole
from shared.base.keys import PublicKey
from shared.errors import ParameterError, StateRefusal
from shared.privacy.accountant import Gaussian
from shared.privacy.grids import grid_for, rounding_reach

__all__ = ["FEWEST", "MOST", "SumTerms"]

FEWEST, MOST = 5, 128
"""Sites of one sum."""
_LABEL = re.compile(r"[a-z0-9-]{1,32}")


@dataclass(frozen=True, kw_only=True)
class SumTerms:
    """All that is fixed before a sum begins. Every message and key of it is bound to `digest`.

    Args:
        plan: SHA-256 of the study plan, hexadecimal. wave: of that plan. label: of the round in the wave.
        members: public keys of the sites, as the plan has them; a site is known by its place here.
        drop_outs: d. colluders: c.
        coordinates: numbers that are summed.
        sensitivity: most that the exchange of one record moves a site's numbers, in ℓ₂, before they are rounded.
        sigma: standard deviation of the noise that is left in each number when d sites are lost and c told theirs.
        largest: most that a number of one site may be, in size: no less than its records times the longest of a row.
    Raises: ParameterError.
    """

    plan: str
    wave: int
    label: str
    members: tuple[str, ...]
    drop_outs: int
    colluders: int
    coordinates: int
    sensitivity: float
    sigma: float
    largest: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(PublicKey(key).hex for key in self.members))
        sites = len(self.members)
        _must(len(set(self.members)) == sites, "the sites of a sum must have different keys", "one twice")
        _must(FEWEST <= sites <= MOST, f"a secure sum must have {FEWEST} to {MOST} sites", sites)
        _must(_whole(self.drop_outs, 0) and _whole(self.colluders, 0), "drop-outs and colluders must be counts", "not")
        _must(
            sites - 2 * self.drop_outs > self.colluders,
            "K - 2 drop_outs must be more than colluders, or two lists of survivors could both be signed",
            f"{sites} sites, {self.drop_outs} and {self.colluders}",
        )
        _must(sites - self.drop_outs - self.colluders >= 2, "two sites' noise must be left", self.colluders)
        _must(_whole(self.wave, 1), "a wave must be a whole number of at least 1", repr(self.wave))
        _must(is_digest(self.plan), "a plan must be named by its SHA-256", "another text")
        _must(bool(_LABEL.fullmatch(self.label)), "a round's label must be a-z, 0-9 and -", repr(self.label)[:60])
        _must(_whole(self.coordinates, 1) and self.coordinates <= 4096, "1 to 4096 numbers must be summed", "others")
        for name in ("sensitivity", "sigma", "largest"):
            value = getattr(self, name)
            _must(
                isinstance(value, float) and math.isfinite(value) and value > 0,
                f"{name} must be positive and finite",
                repr(value),
            )
        room = sites * (self.largest + 64 * self.sigma) / self.grid
        _must(room < 2.0**62, "the sum must have room in 64 bits", f"{room:.3g} steps")

    @property
    def threshold(self) -> int:
        """t: sites that must agree to a list, and whose shares open a secret."""
        return len(self.members) - self.drop_outs

    @property
    def withstood(self) -> int:
        """Most colluders with whom a coordinator gets no site's numbers out of their masks, whatever it sends."""
        return 2 * self.threshold - len(self.members) - 1

    @property
    def share_sigma(self) -> float:
        """Standard deviation of one site's share of the noise: σ / √(K - d - c)."""
        return self.sigma / math.sqrt(len(self.members) - self.drop_outs - self.colluders)

    @property
    def grid(self) -> float:
        """The step in which everything is counted: a power of two, far below each share of the noise."""
        return grid_for(self.share_sigma, sensitivity=self.sensitivity, coordinates=self.coordinates)

    def event(self, shares: int) -> Gaussian:
        """The privacy event of the sum where the noise of that many sites is known to nobody who looks.

        A sum of rounded normals is a rounded normal as nearly as double precision tells: its chances differ by a factor
        1 ± 4 K exp(-π² s²), with s ≥ 1024 the steps in a share's σ (P. Kairouz, Z. Liu, T. Steinke 2021, lemma 5, by
        Poisson summation).
        """
        _must(_whole(shares, 1) and shares <= len(self.members), "shares must be of sites", repr(shares))
        reach = self.sensitivity + rounding_reach(self.grid, self.coordinates)
        return Gaussian(sigma=self.share_sigma * math.sqrt(shares), sensitivity=reach)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the terms in canonical JSON."""
        body = {"type": "secure-sum", **{name: getattr(self, name) for name in self.__dataclass_fields__}}
        return hashlib.sha256(canonical_json(body | {"members": list(self.members)})).digest()

    def whole_steps(self, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        """(coordinates,) sum of a site's rows, each rounded to whole steps before it is added, within `largest`.

        A sum beyond `largest` is brought to it and not refused: a site that then is absent would tell that of its
        records. To bring two sums within bounds never takes them further apart.

        Args:
            rows: (n, coordinates), of which no two are further apart than `sensitivity`.
        Raises: ParameterError (not this shape), StateRefusal (a number that is none).
        """
        rows = np.asarray(rows, dtype=np.float64)
        _must(rows.ndim == 2 and rows.shape[1] == self.coordinates, "rows must have the sum's coordinates", rows.shape)
        in_steps = np.abs(rows).sum(axis=0) / self.grid
        if not (np.isfinite(rows).all() and (in_steps < 2.0**62).all()):
            raise StateRefusal("what a site adds to a sum must be finite", given="a number that is not")
        total = np.rint(rows / self.grid).astype(np.int64).sum(axis=0)
        most = math.floor(self.largest / self.grid)
        return np.asarray(np.clip(total, -most, most), dtype=np.int64)


def _whole(value: object, least: int) -> bool:
    return is_whole(value) and value >= least


def _must(holds: bool, must: str, given: object) -> None:
    if not holds:
        raise ParameterError(must, given=str(given))
