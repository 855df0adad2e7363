"""The draw of a moments release: block after block, each looked at through what the blocks before it say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.base.randomness import Noise
from shared.mechanisms.moments.copula import POINTS, pilot
from shared.mechanisms.moments.noise import Design, MomentsRelease, product_steps, score_steps
from shared.mechanisms.moments.spec import MomentsSpec, grids_of, sigma_of
from shared.mechanisms.row_blocks import row_blocks

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

__all__ = ["moments", "noised"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


def noised(spec: MomentsSpec, block: int, sums: Integers, noise: Noise) -> Integers:
    """Sums of a block, in steps, with the noise that its event states."""
    return sums + noise.lattice_gaussian_steps(sigma_of(spec, block), sums.shape, grids_of(spec)[block])


def moments(checked: pd.DataFrame, design: Design, noise: Noise, *, points: int = POINTS) -> MomentsRelease:
    """Privatise a table that `Dictionary.check` returned; a pilot fit has so many `points`.

    The table is gone through once for each block of figures. A record's part of them is whole numbers before it is
    added, so that the sums are the same in whichever blocks of rows.

    Raises: DictionaryRefusal, MissingRefusal, before anything is drawn.
    """
    design.require_complete(checked)
    spec = design.spec

    def summed(part: Callable[[Array, Array], Sequence[Integers]]) -> list[Integers]:
        found = [part(*design.matrices(rows)) for rows in row_blocks(checked)]
        return [np.sum(parts, axis=0) for parts in zip(*found, strict=True)]

    release = MomentsRelease(
        n=len(checked),
        histograms=tuple(noised(spec, 0, table, noise) for table in summed(design.counts)),
        moments=np.zeros((design.features, 1 + design.p), dtype=np.int64),
        products=np.zeros(design.p * (design.p + 1) // 2, dtype=np.int64),
        score=np.zeros(len(spec.declared), dtype=np.int64),
    )
    lens = design.lens(release)
    inner, products = summed(lambda x, y: (lens.moment_steps(x, y).sum(axis=0), product_steps(lens.wide_steps(x))))
    release = replace(release, moments=noised(spec, 1, inner, noise), products=noised(spec, 2, products, noise))
    if not spec.declared:
        return release
    # Where the score looks is what the blocks above say; the same function reads it on the other side.
    score = pilot(release, design, points)
    (found,) = summed(lambda x, y: (score_steps(score.rows(x, y), spec.score).sum(axis=0),))
    return replace(release, score=noised(spec, 3, found, noise))
