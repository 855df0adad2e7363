"""Grid spacing for discrete noise: fine enough to cost no more privacy than noise on the real line."""

from __future__ import annotations

import math

import numpy as np

from shared.base.randomness import MAX_RATIO
from shared.errors import ParameterError

__all__ = ["grid_for", "rounding_reach"]


def grid_for(sigma: float, *, sensitivity: float | None = None, coordinates: int = 1, norm: int = 2) -> float:
    """The largest power of two that is at most sigma / 1024: a grid too fine to matter for utility.

    Rounding to it adds less than 1e-7 of the noise's own variance. Rounding the *data* to the nearest multiple can
    also lengthen the difference of two of them, by g √coordinates (ℓ₂) or g · coordinates (ℓ₁): with a thousand
    coordinates that is no longer nothing. A mechanism that rounds to nearest gives its `sensitivity`, gets a grid
    that adds at most 1 % of it, and charges for it (`rounding_reach`). One that rounds towards zero adds nothing.

    Args:
        sensitivity: of the unrounded data, in `norm`; None where rounding adds nothing.
        coordinates: values of one record that are rounded.
        norm: 1 or 2, the norm of `sensitivity`.

    >>> grid_for(1.0) == 2.0**-10, grid_for(0.99) == 2.0**-11
    (True, True)
    >>> grid_for(1.0, sensitivity=0.5, coordinates=1000) == 2.0**-13        # g √1000 ≤ 0.005
    True
    """
    if not (math.isfinite(sigma) and sigma > 2.0**-900):
        raise ParameterError("a noise scale must be positive and finite", given=repr(sigma))
    most = sigma / 1024
    if sensitivity is not None:
        if not (math.isfinite(sensitivity) and sensitivity > 0):
            raise ParameterError("a sensitivity must be positive and finite", given=repr(sensitivity))
        most = min(most, 0.01 * sensitivity / rounding_reach(1.0, coordinates, norm))
    if most < sigma / MAX_RATIO:
        raise ParameterError(
            "the sensitivity must not be a vanishing part of the noise", given=f"{sensitivity!r} beside {sigma!r}"
        )
    return math.ldexp(0.5, math.frexp(most)[1])


def rounding_reach(grid: float, coordinates: int, norm: int = 2) -> float:
    """Largest increase of a sensitivity in `norm` from rounding `coordinates` values to multiples of `grid`.

    >>> round(rounding_reach(0.5, 4), 9), rounding_reach(0.5, 4, norm=1)
    (1.0, 2.0)
    """
    if isinstance(coordinates, bool) or not isinstance(coordinates, int | np.integer) or coordinates < 1:
        raise ParameterError("coordinates must be a whole number of at least 1", given=repr(coordinates))
    if norm not in (1, 2):
        raise ParameterError("norm must be 1 or 2", given=repr(norm))
    # Upwards by one unit in the last place: a root that was rounded down would be no bound.
    return grid * (coordinates if norm == 1 else math.nextafter(math.sqrt(coordinates), math.inf))
