"""A table as an attacker sees it: decoded values, or codes that are a function of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from shared.plans.dictionary import NUMERIC, Column
from shared.plans.encoding import Encoder
from site_agent.release.audit.rates import Array

__all__ = ["places_of", "recoded", "seen"]


def seen(encoder: Encoder) -> Callable[[Array], Array]:
    """Function from encoded rows to an attacker's view: decoded values, no fractions of levels, no imputed values.

    Numeric columns become their values, a missing one the middle of its bounds and an indicator; ordered levels and
    events become their place, nominal levels an indicator for each but the first.

    >>> from shared.plans.dictionary import Column, Dictionary
    >>> from shared.plans.encoding import Encoder
    >>> columns = (Column(name="cvd", kind="event"), Column(name="visits", kind="integer", lower=2, upper=9))
    >>> seen(Encoder(dictionary=Dictionary(name="mini", version=1, columns=columns)))(np.array([[1.7, 3.2]]))
    array([[1., 5.]])
    """

    def view(rows: Array) -> Array:
        table = encoder.decode(rows)
        out: list[Array] = []
        for column in encoder.dictionary.released:
            place = places_of(column, table)
            absent = np.isnan(place)
            if column.kind in NUMERIC:
                out.append(np.where(absent, sum(column.span) / 2, place))
                if column.missing == "level":
                    out.append(absent.astype(np.float64))
                continue
            place = np.where(absent, float(len(column.levels)), place)
            if column.kind == "nominal":
                out += [(place == k).astype(np.float64) for k in range(1, len(column.levels) + 1)]
            else:
                out.append(place)
        return np.column_stack(out)

    return view


def recoded(encoder: Encoder) -> Callable[[Array], Array]:
    """Encoded rows as someone would encode them who sees the decoded table: every level in the middle of its place.

    A flow needs codes, and the true fractions are nobody's knowledge.

    >>> from shared.plans.dictionary import Column, Dictionary
    >>> from shared.plans.encoding import Encoder
    >>> columns = (Column(name="cvd", kind="event"), Column(name="visits", kind="integer", lower=2, upper=9))
    >>> recoded(Encoder(dictionary=Dictionary(name="mini", version=1, columns=columns)))(np.array([[1.7, 3.2]]))
    array([[1.5, 3.5]])
    """

    def recode(rows: Array) -> Array:
        table = encoder.decode(rows)
        exact = pd.DataFrame({c.name: places_of(c, table) for c in encoder.dictionary.released})
        out = encoder.encode(exact, _Middle())  # type: ignore[arg-type]
        return np.asarray(out, dtype=np.float64)

    return recode


class _Middle:
    """In the place of a source of randomness: every uniform draw is the middle of its range."""

    @property
    def generator(self) -> _Middle:
        return self

    def random(self, n: int) -> Array:
        return np.full(n, 0.5)

    def uniform(self, low: float, high: float, n: int) -> Array:
        return np.full(n, (low + high) / 2)


def places_of(column: Column, table: pd.DataFrame) -> Array:
    """A decoded column as numbers, (n,): its values, or the places of its levels; NaN where missing."""
    values = table[column.name]
    if column.kind in NUMERIC:
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    place = np.full(len(values), np.nan)
    for k, level in enumerate(column.levels):
        place[(values == level).fillna(False).to_numpy(dtype=bool)] = k
    return place
