"""Released rows that equal the row of exactly one person: how many there are, and how many chance explains.

A released row may equal a real row because the cell is common: with three yes/no columns most rows do. What would
identify somebody is equality with a row that one person alone has. How many such hits a harmless release has cannot be
computed from the table: columns hang together, and no count of equal records tells how. It is simulated instead: M
tables are drawn through the release's own flow from no record. A release is beyond chance if

* it has more hits than each of the M tables has (many rows were copied), or
* its least likely hit is less likely under the flow than every hit of the M tables (one row was copied, of somebody
  whom chance does not meet; in a table of a few coarse columns a copy is what a stranger's row may be as well).

A harmless table is as the others are, so that each of the two happens with probability 1 / (M + 1) at most, whatever
the columns: 0.4 % at M = 250, and because a release beyond those is held against 2,000 others (`held_against`),
0.05 % in the end. Above `ROWS` records each table has `ROWS` rows, for as many records chosen by chance,
and the release is held against them by as many of its rows, chosen by chance before it is looked at: such parts are as
alike as the wholes are, so that both bounds hold at every n. What it costs: a single copied row is among those that
are looked at with probability `ROWS` / n.

Tables are drawn only until the release is within them: more of them can only have more hits, and less likely ones, so
that the answer is already that of all M (a Monte Carlo test that stops early, J. Besag and P. Clifford (1991),
Biometrika 78, 301). A release without a hit needs none.

A flow that had learned rows by heart would bring as many hits by chance as its release has, and this check would not
see it: the attacks look for that (`site_agent.release.audit.distances`).

Source: Barnard's test, G. A. Barnard (1963), J. R. Stat. Soc. B 25, 294.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import secure_rng
from shared.plans.dictionary import NUMERIC, Dictionary
from shared.plans.encoding import Encoder

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ChanceHits",
    "Hits",
    "held_against",
    "hits_by_independence",
    "hits_on",
    "in_released_form",
    "keys_of",
    "own_rows",
]

Codes = NDArray[np.int64]
Places = NDArray[np.intp]
Keys = NDArray[np.void]
Floats = NDArray[np.float64]
Chance = Callable[[int, "Callable[[ChanceHits], bool]"], "ChanceHits"]
"""Function that simulates the hits of that many tables drawn from no record, or of fewer once the predicate holds."""
TABLES, ROWS = 250, 8_000
"""Tables that are simulated, at every n; most rows of each, and of a release that is held against them."""
CONFIRMED = 2_000
"""Tables by which a release is refused: it must be beyond these as well."""
TOGETHER = 50_000
"""Rows that are drawn at once, about: decoding a table has a price of its own."""


@dataclass(frozen=True, kw_only=True)
class Hits:
    """Hits of a release.

    Args:
        found: released rows that equal the row of exactly one person, among those that were looked at.
        allowed: the most of them that chance explains.
        far: of these, rows less likely than any that chance brought.
        mean: hits that chance alone brings, as far as tables were drawn to see; NaN where none was needed.
        persons: how many have a row that nobody else has.
        others: how many persons there are.
        looked_at: released rows that were; all of them up to `ROWS`.
    """

    found: int
    allowed: float
    far: int = 0
    mean: float
    persons: int
    others: int
    looked_at: int

    @property
    def beyond_chance(self) -> bool:
        """True if there are more hits than chance explains, or one less likely than any that chance brought."""
        return self.found > self.allowed or self.far > 0


@dataclass(frozen=True, kw_only=True, eq=False)
class ChanceHits:
    """Hits of tables simulated through a flow from no record.

    Args:
        rows: key of each row that exactly one person has, in order.
        likely: likelihood of each of them under the flow, on any increasing scale.
        persons: number of persons, including those whose row equals another's.
        counts: hits of each simulated table.
        least: smallest `likely` of all rows that they hit; infinite if they hit none.
        places: places of a release's rows that are compared with them: as many as each table has.
    """

    rows: Keys
    likely: Floats
    persons: int
    counts: tuple[int, ...]
    least: float
    places: Places

    @property
    def share(self) -> float:
        """Share of a release's rows that are compared."""
        return len(self.places) / max(1, self.persons)

    @classmethod
    def simulated(
        cls,
        real: pd.DataFrame,
        likely: Floats,
        dictionary: Dictionary,
        draw: Callable[[Places], pd.DataFrame],
        *,
        tables: int = TABLES,
        enough: Callable[[ChanceHits], bool] = lambda so_far: False,
    ) -> ChanceHits:
        """Simulate tables like a release of no record, and count their hits.

        Args:
            real: (n, columns) records as the dictionary checked them.
            likely: (n,) likelihood of each of them under the distribution that `draw` draws from, on any increasing
                scale.
            draw: draws a row of no record for each of these places; only carried columns are the record's own.
            tables: most tables.
            enough: True if the hits so far suffice; called before the first table, and after some more.
        """
        n = len(real)
        size, rng = min(n, ROWS), secure_rng().generator

        def part() -> Places:
            return np.arange(n) if size == n else rng.choice(n, size, replace=False)

        keys, places, times = np.unique(
            keys_of(in_released_form(real, dictionary), dictionary), return_index=True, return_counts=True
        )
        # A record that the flow cannot place is as unlikely as any.
        rows, likely = keys[times == 1], np.nan_to_num(likely[places[times == 1]], nan=-np.inf, neginf=-np.inf)
        made = cls(rows=rows, likely=likely, persons=n, counts=(), least=np.inf, places=part())
        while len(made.counts) < tables and not enough(made):
            many = min(tables - len(made.counts), max(1, TOGETHER // max(1, size)))
            drawn = keys_of(draw(np.concatenate([part() for _ in range(many)])), dictionary)
            hits = np.isin(drawn, rows)
            counts = [int(one.sum()) for one in np.split(hits, many)]
            least = likely[np.searchsorted(rows, drawn[hits])].min(initial=made.least)
            made = replace(made, counts=(*made.counts, *counts), least=float(least))
        return made

    def of(self, released: pd.DataFrame, dictionary: Dictionary) -> Hits:
        """Hits of a released table, one row per person, and what chance explains of them."""
        drawn = keys_of(released.iloc[self.places[self.places < len(released)]], dictionary)
        hits = drawn[np.isin(drawn, self.rows)]
        return Hits(
            found=len(hits),
            allowed=float(max(self.counts, default=0)),
            far=int((self.likely[np.searchsorted(self.rows, hits)] < self.least).sum()),
            mean=float(np.mean(self.counts)) if self.counts else np.nan,
            persons=len(self.rows),
            others=self.persons,
            looked_at=len(drawn),
        )


def held_against(released: pd.DataFrame, dictionary: Dictionary, chance: Chance) -> Hits:
    """Hits of a release beside those of `TABLES` tables; where they are beyond those, beside `CONFIRMED` others."""
    first = chance(TABLES, lambda so_far: not so_far.of(released, dictionary).beyond_chance)
    found = first.of(released, dictionary)
    if not found.beyond_chance:
        return found

    def confirmed(so_far: ChanceHits) -> Hits:
        return replace(so_far, places=first.places).of(released, dictionary)

    return confirmed(chance(CONFIRMED, lambda so_far: not confirmed(so_far).beyond_chance))


def hits_on(real: pd.DataFrame, released: pd.DataFrame, dictionary: Dictionary, chance: float) -> Hits:
    """Hits of a table for which no flow is there to draw another: chance is that of independent columns, or larger.

    It is the larger of Good and Turing's figure (the probability of the classes seen once is 2 N₂/n, with N₂ classes
    seen twice) and of the product of leave-one-out frequencies; columns that hang together make it too small.
    """
    from scipy.stats import poisson

    ours = _codes(in_released_form(real, dictionary), dictionary)
    unique, counts = np.unique(ours, axis=0, return_counts=True)
    once = unique[counts == 1]
    mean = max(2.0 * int((counts == 2).sum()), hits_by_independence(ours, once))
    return Hits(
        found=int(np.isin(keys_of(released, dictionary), _as_keys(once)).sum()),
        allowed=float(poisson.isf(chance, mean)) if mean > 0 else 0.0,
        mean=mean,
        persons=len(once),
        others=len(ours),
        looked_at=len(released),
    )


def hits_by_independence(ours: Codes, once: Codes) -> float:
    """Expected hits on `once` among n draws with independent columns, each row left out of its own frequencies."""
    n = len(ours)
    if not len(once) or n < 2:
        return 0.0
    chance = np.ones(len(once))
    for j in range(ours.shape[1]):
        levels, counts = np.unique(ours[:, j], return_counts=True)
        chance *= (counts[np.searchsorted(levels, once[:, j])] - 1) / (n - 1)
    return float(n * chance.sum())


def own_rows(rows: pd.DataFrame, theirs: pd.DataFrame, dictionary: Dictionary) -> int:
    """Number of rows of a table that stand unchanged in the same place of another, and are unique in their own."""
    keys = keys_of(rows, dictionary)
    unchanged = keys[keys == keys_of(theirs, dictionary)]
    if not unchanged.size:  # of most tables: to sort them all takes longer than to compare them
        return 0
    unique, times = np.unique(keys, return_counts=True)
    return int(np.isin(unchanged, unique[times == 1]).sum())


def in_released_form(real: pd.DataFrame, dictionary: Dictionary) -> pd.DataFrame:
    """Real records in the form of a release: same rounding, same types. The draws only fill what decoding drops."""
    encoder = Encoder(dictionary=dictionary)
    return encoder.decode(encoder.encode(real, secure_rng()))


def keys_of(table: pd.DataFrame, dictionary: Dictionary) -> Keys:
    """One opaque value per row, (n,): equal exactly where two rows are, to the rounding of each column."""
    return _as_keys(_codes(table, dictionary))


# -- inside -----------------------------------------------------------------------------------------------------
def _as_keys(codes: Codes) -> Keys:
    """(n, columns) codes as n opaque values that can be sorted and compared."""
    return codes.view(f"V{codes.shape[1] * codes.itemsize}").ravel()


def _codes(table: pd.DataFrame, dictionary: Dictionary) -> Codes:
    """(n, columns) integers that are equal exactly where two cells are; -1 is missing.

    An unrounded number is compared to 1e-9 of its range: a copied record comes back from the flow with the rounding
    error of its arithmetic, and must still be found.
    """
    out = []
    for column in dictionary.released:
        values = table[column.name]
        if column.kind in NUMERIC:
            lower, upper = column.span
            number = values.astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
            step = (upper - lower) * 1e-9
            if column.kind == "integer":
                step = 1.0
            elif column.decimals is not None:
                step = 10.0**-column.decimals
            code = np.where(np.isnan(number), -1.0, np.round((np.nan_to_num(number) - lower) / step))
            out.append(np.asarray(code, dtype=np.int64))
        elif values.dtype.name == "category":
            out.append(np.asarray(values.cat.codes, dtype=np.int64))
        else:
            out.append(np.asarray(values.astype("Int64").fillna(-1), dtype=np.int64))
    return np.ascontiguousarray(np.column_stack(out))
