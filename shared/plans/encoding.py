"""Table <-> matrix: checked records in, (n, d) float64 out, and back with names, dtypes, levels and bounds restored.

The encoder is made from the dictionary alone. Nothing is fitted here, so it depends on no record and needs no
budget; whatever is fitted (margins, whitening, flow) belongs to the site's model and stands on the receipt.

======================  =============================================================================
kind                    encoded as
======================  =============================================================================
continuous              affine, public bounds to [-1, 1]
time                    logit of c + (1 - 2c) t/upper, c = 1e-3 (paper 4.2; the range is the *public* follow-up)
rounded to decimals     of both: the value plus U(-½, ½) of its last decimal first, so that ties become a density
integer                 value - lower + U(0, 1), decoded by the floor
binary, event,          level index + U(0, 1), decoded by the floor: for 0/1 a threshold at 1, not at 0 as the
ordered, nominal        paper prints (b + U lies in [0, 1) for 0 and in [1, 2) for 1)
missing as a level      of a levelled column: one more level, the last; of a numeric column: a second column,
                        missing + U(0, 1), and in the value's place a draw that depends on no record
======================  =============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import SchemaRefusal
from shared.plans.dictionary import NUMERIC, Column, Dictionary

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ENCODER_VERSION", "Encoder", "scaled", "typed"]

Array = NDArray[np.float64]

ENCODER_VERSION = 1
"""Grows whenever the same records would be encoded otherwise: a flow fitted before is then of no use."""
EDGE = 1e-3
"""c of the scaled logit: keeps t = 0 and t = upper finite."""


def scaled(column: Column, share: Array) -> Array:
    """The code of a continuous or time column at each `share` of its public range: no draw, so no dequantisation.

    >>> scaled(Column(name="sbp", kind="continuous", lower=70, upper=270), np.array([0.0, 0.5, 1.0]))
    array([-1.,  0.,  1.])
    """
    if column.kind == "continuous":
        return np.asarray(2 * share - 1)
    share = EDGE + (1 - 2 * EDGE) * np.clip(share, 0, 1)
    return np.asarray(np.log(share) - np.log1p(-share))


def typed(column: Column, values: Array) -> pd.Series:
    """Canonical values as they are released: rounded, within the bounds, and of the column's dtype.

    Args:
        values: (n,) numbers, or codes of the levels; NaN where missing. Numbers may lie outside the bounds.

    >>> sex = Column(name="sex", kind="binary", levels=("female", "male"), missing="level")
    >>> typed(sex, np.array([1.0, np.nan])).tolist()
    ['male', nan]
    """
    import pandas as pd

    if column.kind in NUMERIC:
        if column.kind == "integer":
            values = np.floor(values)
        elif column.decimals is not None:
            values = np.round(values, column.decimals)
        # Plus zero: what was rounded to it from below is no "-0" in a table that people read.
        return pd.Series(np.clip(values, *column.span) + 0.0).astype(column.dtype)
    absent = np.isnan(values)
    level = np.where(absent, 0, values).astype(np.int64)
    if isinstance(column.dtype, pd.CategoricalDtype):
        return pd.Series(pd.Categorical.from_codes(np.where(absent, -1, level), dtype=column.dtype))
    plain = np.asarray(column.levels, dtype=np.float64)[level]
    return pd.Series(np.where(absent, np.nan, plain)).astype(column.dtype)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """The dictionary's columns as a matrix.

    >>> import pandas as pd
    >>> from shared.base.randomness import seeded_rng
    >>> columns = (Column(name="sbp", kind="continuous", lower=70, upper=270, decimals=0),
    ...            Column(name="cvd", kind="event"))
    >>> encoder = Encoder(dictionary=Dictionary(name="mini", version=1, columns=columns))
    >>> checked = encoder.dictionary.check(pd.DataFrame({"sbp": [120.0, 140.0], "cvd": [0, 1]}))
    >>> x = encoder.encode(checked, seeded_rng(1))
    >>> x.shape, encoder.columns
    ((2, 2), ('sbp', 'cvd'))
    >>> encoder.decode(x)["cvd"].tolist()
    [0, 1]
    """

    dictionary: Dictionary
    columns: tuple[str, ...] = field(init=False)
    integer_columns: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        names: list[str] = []
        integers: list[int] = []
        for column in self.dictionary.released:
            if column.kind not in ("continuous", "time"):
                integers.append(len(names))
            names.append(column.name)
            if column.kind in NUMERIC and column.missing == "level":
                integers.append(len(names))
                names.append(f"{column.name} missing")
        object.__setattr__(self, "columns", tuple(names))
        object.__setattr__(self, "integer_columns", tuple(integers))

    @property
    def d(self) -> int:
        """Number of encoded columns."""
        return len(self.columns)

    def encode(self, checked: pd.DataFrame, rng: Noise) -> Array:
        """Encode a table that `Dictionary.check` returned.

        Args:
            checked: (n, columns) canonical values, NaN where missing.
            rng: draws the dequantisation, which carries no guarantee.
        Returns: (n, d), finite.
        """
        n = len(checked)
        draws = rng.generator
        out: list[Array] = []
        for column in self.dictionary.released:
            value = checked[column.name].to_numpy(dtype=np.float64)
            absent = np.isnan(value)
            if column.kind in NUMERIC:
                # The place of a missing value is filled from the public bounds: a fill taken from other rows
                # would carry their records into this one, and the row would no longer be separable.
                lower, upper = column.span
                fill = lower + (upper - lower) * draws.uniform(0.25, 0.75, n)
                value = np.where(absent, np.floor(fill) if column.kind == "integer" else fill, value)
                out.append(self._numeric(column, value, draws))
                if column.missing == "level":
                    out.append(absent + draws.random(n))
            else:
                out.append(np.where(absent, float(len(column.levels)), value) + draws.random(n))
        return np.column_stack(out)

    def _numeric(self, column: Column, value: Array, draws: np.random.Generator) -> Array:
        lower, upper = column.span
        if column.kind == "integer":
            return value - lower + draws.random(len(value))
        if column.decimals is not None:
            value = value + (draws.random(len(value)) - 0.5) * 10.0**-column.decimals
        return scaled(column, (value - lower) / (upper - lower))

    def decode(self, x: Array) -> pd.DataFrame:
        """Decode (n, d) back to a table with the dictionary's names, dtypes, levels and bounds.

        Any finite x gives a valid table: values are clipped to the bounds, codes to the levels.
        Raises: SchemaRefusal, if x has the wrong shape or a value that is not finite.
        """
        import pandas as pd

        x = np.asarray(x, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != self.d or not np.isfinite(x).all():
            raise SchemaRefusal(f"an encoded matrix must be finite and have {self.d} columns", given=f"shape {x.shape}")
        out: dict[str, pd.Series] = {}
        at = 0
        for column in self.dictionary.released:
            code = x[:, at]
            at += 1
            absent = np.zeros(len(x), dtype=bool)
            if column.kind in NUMERIC:
                value = self._denumeric(column, code)
                if column.missing == "level":
                    absent = x[:, at] >= 1
                    at += 1
                out[column.name] = typed(column, np.where(absent, np.nan, value))
                continue
            known = len(column.levels)
            level = np.clip(np.floor(code), 0, known if column.missing == "level" else known - 1)
            out[column.name] = typed(column, np.where(level == known, np.nan, level))
        return pd.DataFrame(out)

    def _denumeric(self, column: Column, code: Array) -> Array:
        lower, upper = column.span
        if column.kind == "integer":
            return np.clip(np.floor(code) + lower, lower, upper)
        if column.kind == "continuous":
            share = (code + 1) / 2
        else:
            share = (1 / (1 + np.exp(-np.clip(code, -700, 700))) - EDGE) / (1 - 2 * EDGE)
        return np.asarray(lower + np.clip(share, 0, 1) * (upper - lower))
