"""The draw of a moments release: block after block, each looked at through what the blocks before it say."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.mechanisms.moments.copula import POINTS, pilot
from shared.mechanisms.moments.noise import Design, MomentsRelease, product_steps, score_steps
from shared.mechanisms.moments.spec import MomentsSpec, grids_of, sigma_of

__all__ = ["moments", "noised"]

Integers = NDArray[np.int64]

_CHUNK = 1 << 15


def noised(spec: MomentsSpec, block: int, sums: Integers, noise: Noise) -> Integers:
    """Sums of a block, in steps, with the noise that its event states."""
    return sums + noise.lattice_gaussian_steps(sigma_of(spec, block), sums.shape, grids_of(spec)[block])


def moments(checked: pd.DataFrame, design: Design, noise: Noise, *, points: int = POINTS) -> MomentsRelease:
    """Privatise a table that `Dictionary.check` returned; a pilot fit has so many `points`.

    Raises: DictionaryRefusal, MissingRefusal, before anything is drawn.
    """
    x, y = design.matrices(checked)
    spec = design.spec
    release = MomentsRelease(
        n=len(x),
        histograms=tuple(noised(spec, 0, table, noise) for table in design.counts(x, y)),
        moments=np.zeros((design.features, 1 + design.p), dtype=np.int64),
        products=np.zeros(design.p * (design.p + 1) // 2, dtype=np.int64),
        score=np.zeros(len(spec.declared), dtype=np.int64),
    )
    lens = design.lens(release)
    chunks = range(0, len(x), _CHUNK)
    inner = [lens.moment_steps(x[k : k + _CHUNK], y[k : k + _CHUNK]).sum(axis=0) for k in chunks]
    products = [product_steps(lens.wide_steps(x[k : k + _CHUNK])) for k in chunks]
    release = MomentsRelease(
        n=len(x),
        histograms=release.histograms,
        moments=noised(spec, 1, np.sum(inner, axis=0), noise),
        products=noised(spec, 2, np.sum(products, axis=0), noise),
        score=release.score,
    )
    if not spec.declared:
        return release
    # Where the score looks is what the blocks above say; the same function reads it on the other side.
    score = pilot(release, design, points)
    found = [score_steps(score.rows(x[k : k + _CHUNK], y[k : k + _CHUNK]), spec.score).sum(axis=0) for k in chunks]
    return MomentsRelease(
        n=len(x),
        histograms=release.histograms,
        moments=release.moments,
        products=release.products,
        score=noised(spec, 3, np.sum(found, axis=0), noise),
    )
