r"""Outcomes by their laws given everything else: the last step of a flow, from latents to encoded records.

A planned regression asks for the law of an outcome *given* covariates. Drawn the other way round, covariates given the
outcome, that law is right only as far as every covariate's is in each of its groups: with normal scores and equal
variances it is linear discriminant analysis. Here it is fitted itself, with every covariate in its own unit among what
it reads, so that its score equations

.. math:: \sum_i \{ y_i - E(y \mid x_i) \} \, x_i = 0

hold on the records, and a regression on rows drawn from it finds the records' coefficients but for noise.

`OutcomesLast` holds one law per outcome, in the order in which they are drawn; each reads the covariates and the
outcomes before it. All are bijections in the dequantised sense, like `shared.flows.levels.Levels`: with y in a cell
whose probability given x is p, and below which there is F, and a share t of the cell below y,

.. math:: b = \Phi^{-1}( F(x) + p(x) \, t ),

b is standard normal and independent of x if the law is right. Latent noise enters b like any other coordinate: an event
is redrawn where noise takes b over the threshold :math:`\Phi^{-1}(F(x'))` of the *noised* covariates.

===========  ======================================================  ==========================================
law          for                                                     cells
===========  ======================================================  ==========================================
`LevelLaw`   events, binary, ordered, nominal columns                one a level; multinomial logistic
`TiltLaw`    measurements and counts                                 bins of the value, or of its distance from a
                                                                     regression; a baseline, tilted by x
`HazardLaw`  a time and its event                                    bins of the time: hazards of the event and of
                                                                     everything else that ends follow-up
===========  ======================================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import SchemaRefusal
from shared.flows.cells import LEAST, OfCell, mean_exponential, normalised, score_of, value_of

__all__ = ["HazardLaw", "LevelLaw", "OutcomeInputs", "TiltLaw"]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]

BEYOND = 1e-4
"""Share of those still followed up at the last time that was seen who are followed up longer."""
_REACH = 3.5
_STEEPEST, _FASTEST = 30.0, 300.0


def _frozen(value: Any, name: str, ndim: int, kind: Any = np.float64) -> NDArray[Any]:
    out = np.array(value, dtype=kind)
    if out.ndim != ndim or not np.isfinite(out).all():
        raise SchemaRefusal(f"{name} of an outcome's law must be {ndim}-dimensional and finite", given=f"{out.shape}")
    out.setflags(write=False)
    return out


# -- what a law reads --------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeInputs:
    """Features that an outcome's law computes from encoded records: *atoms*, and terms made of them.

    A levelled column gives an indicator of each level but the first; a numeric one its value in its own unit, centred
    and scaled, and later its normal score. The first `base` atoms are always terms; others are selected.

    Args:
        columns: encoded columns.
        counts: per column its levels, 0 for a numeric one.
        whole: per column whether values are whole numbers plus U(0, 1): the floor is read.
        gates: per column the dequantised column that is 1 or more where this one is missing; -1 for none. What is
            missing is read as 0.
        centre, scale: per column, of the value; not used of levelled ones.
        knots: per column (scores, values) of its normal score; None of levelled ones.
        extras: (terms, 3) of atoms a, b and a place: a's product with b; where b is -1, max(a - place, 0); where it is
            -2, a itself.
    """

    columns: tuple[int, ...]
    counts: tuple[int, ...]
    whole: tuple[bool, ...]
    gates: tuple[int, ...]
    centre: Array
    scale: Array
    knots: tuple[tuple[Array, Array] | None, ...]
    extras: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "centre", _frozen(self.centre, "a centre", 1))
        object.__setattr__(self, "scale", _frozen(self.scale, "a scale", 1))
        object.__setattr__(self, "extras", _frozen(np.reshape(self.extras, (-1, 3)), "extras", 2))
        lengths = {
            len(part) for part in (self.columns, self.counts, self.whole, self.gates, self.centre, self.scale)
        } | {len(self.knots)}
        if lengths != {len(self.columns)} or (self.scale <= 0).any():
            raise SchemaRefusal("what an outcome's law reads must have a count, gate, centre and scale per column")
        for count, pair in zip(self.counts, self.knots, strict=True):
            if (pair is None) != bool(count) or count == 1 or count < 0:
                raise SchemaRefusal("a numeric column must have knots, and a levelled one two levels or more")
            if pair is not None and (len(pair[0]) < 2 or any((np.diff(part) <= 0).any() for part in pair)):
                raise SchemaRefusal("the knots of a score must increase")
        if self.extras.size:
            first, second = self.extras[:, 0], self.extras[:, 1]
            if (first < 0).any() or (first >= self.atoms).any() or (second < -2).any() or (second >= self.atoms).any():
                raise SchemaRefusal("a term must be made of atoms that there are")

    @property
    def base(self) -> int:
        """Atoms that are always terms."""
        return sum(count - 1 if count else 1 for count in self.counts)

    @property
    def atoms(self) -> int:
        """All atoms: those, then the normal scores of the numeric columns."""
        return self.base + sum(count == 0 for count in self.counts)

    @property
    def width(self) -> int:
        """Number of features: an intercept, the base, the extras."""
        return 1 + self.base + len(self.extras)

    @property
    def reads(self) -> tuple[int, ...]:
        """Every encoded column that is looked at."""
        return (*self.columns, *(gate for gate in self.gates if gate >= 0))

    def all_atoms(self, x: Array) -> Array:
        """(n, atoms) of encoded records."""
        return self._atoms(x, scored=True)

    def lines(self, x: Array) -> Array:
        """(n, base): the first atoms alone, and values beyond what was seen as they are."""
        return self._atoms(x, scored=False)

    def _atoms(self, x: Array, *, scored: bool) -> Array:
        first: list[Array] = []
        scores: list[Array] = []
        for j, count in enumerate(self.counts):
            value = x[:, self.columns[j]]
            pair = self.knots[j]
            if pair is None:
                level = np.clip(np.floor(value), 0, count - 1)
                first += [(level == k).astype(np.float64) for k in range(1, count)]
                continue
            value = np.floor(value) if self.whole[j] else value
            there = 1.0 if self.gates[j] < 0 else (x[:, self.gates[j]] < 1).astype(np.float64)
            if scored:
                value = np.clip(value, pair[1][0], pair[1][-1])
                scores.append(np.clip(np.interp(value, pair[1], pair[0]), -_REACH, _REACH) * there)
            first.append((value - self.centre[j]) / self.scale[j] * there)
        return np.column_stack([*first, *scores]) if first else np.zeros((len(x), 0))

    def made(self, atoms: Array, extras: Array) -> Array:
        """(n, terms) made of atoms."""
        out = np.empty((len(atoms), len(extras)))
        for k, (a, b, place) in enumerate(extras):
            value = atoms[:, int(a)]
            out[:, k] = np.maximum(value - place, 0) if b == -1 else value if b == -2 else value * atoms[:, int(b)]
        return out

    def features(self, x: Array) -> Array:
        """(n, width): what the laws' coefficients multiply."""
        atoms = self.all_atoms(x)
        return np.hstack([np.ones((len(x), 1)), atoms[:, : self.base], self.made(atoms, self.extras)])

    def to_arrays(self) -> Arrays:
        """Named arrays."""
        pairs = [pair for pair in self.knots if pair is not None]
        empty = [np.zeros(0)]
        return {
            "read": np.array([self.columns, self.counts, self.whole, self.gates], dtype=np.int64).reshape(4, -1),
            "centre": self.centre,
            "scale": self.scale,
            "lengths": np.array([len(pair[0]) for pair in pairs], dtype=np.int64),
            "scores": np.concatenate([pair[0] for pair in pairs] or empty),
            "values": np.concatenate([pair[1] for pair in pairs] or empty),
            "extras": self.extras,
        }

    NAMES: ClassVar[tuple[str, ...]] = ("read", "centre", "scale", "lengths", "scores", "values", "extras")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> OutcomeInputs:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        read, lengths = np.asarray(arrays["read"]), np.asarray(arrays["lengths"])
        if read.ndim != 2 or len(read) != 4 or lengths.ndim != 1 or (lengths < 2).any():
            raise SchemaRefusal("what an outcome's law reads must be four rows, and knots two or more")
        columns, counts, whole, gates = ([int(v) for v in row] for row in read)
        scores, values = (np.asarray(arrays[name], dtype=np.float64) for name in ("scores", "values"))
        ends = np.cumsum(lengths)
        if len(lengths) != counts.count(0) or scores.shape != (lengths.sum(),) or values.shape != scores.shape:
            raise SchemaRefusal("a score must have as many knots as its length says")
        pieces = iter([slice(end - size, end) for end, size in zip(ends, lengths, strict=True)])
        knots: list[tuple[Array, Array] | None] = []
        for count in counts:
            piece = None if count else next(pieces)
            knots.append(None if piece is None else (scores[piece], values[piece]))
        return cls(
            columns=tuple(columns),
            counts=tuple(counts),
            whole=tuple(bool(v) for v in whole),
            gates=tuple(gates),
            centre=arrays["centre"],
            scale=arrays["scale"],
            knots=tuple(knots),
            extras=arrays["extras"],
        )


# -- laws ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class LevelLaw:
    """A levelled outcome: multinomial logistic regression.

    Args:
        coefficients: (features, levels).
    """

    kind: ClassVar[int] = 0
    column: int
    inputs: OutcomeInputs
    coefficients: Array

    def __post_init__(self) -> None:
        coefficients = _frozen(self.coefficients, "coefficients", 2)
        if coefficients.shape[0] != self.inputs.width or coefficients.shape[1] < 2:
            raise SchemaRefusal("a levelled outcome must have a coefficient per feature, and two levels or more")
        object.__setattr__(self, "coefficients", coefficients)

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns it draws."""
        return (self.column,)

    def shares(self, x: Array, features: Array | None = None) -> Array:
        """(n, levels): probabilities of the levels."""
        logits = (self.inputs.features(x) if features is None else features) @ self.coefficients
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return normalised(odds / odds.sum(axis=1, keepdims=True))

    def draw(self, x: Array, features: Array | None = None) -> None:
        """Latents in the outcome's column to values, in place; `features` of x where the caller has them."""
        low = np.arange(self.coefficients.shape[1], dtype=np.float64)
        x[:, self.column] = value_of(x[:, self.column], self.shares(x, features), low, low + 1, None)

    def undraw(self, x: Array, z: Array) -> Array:
        """Latents of records x into z, in place. Returns: log |det|, (n,)."""
        low = np.arange(self.coefficients.shape[1], dtype=np.float64)
        z[:, self.column], slope, _ = score_of(x[:, self.column], self.shares(x), low, low + 1, None)
        return slope

    def to_arrays(self) -> Arrays:
        """Named arrays."""
        return {"at": np.array([self.column]), "coefficients": self.coefficients}

    NAMES: ClassVar[tuple[str, ...]] = ("at", "coefficients")

    @classmethod
    def from_arrays(cls, inputs: OutcomeInputs, arrays: Mapping[str, NDArray[Any]]) -> LevelLaw:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        (column,) = _places(arrays["at"], 1)
        return cls(column=column, inputs=inputs, coefficients=arrays["coefficients"])


@dataclass(frozen=True, kw_only=True, eq=False)
class TiltLaw:
    r"""A numeric outcome: a baseline in bins, tilted by what is read.

    .. math:: p(r \mid x) \propto f_0(r) \exp\{ \textstyle\sum_m \theta_m(x) \phi_m(r) \}, \quad r = y - \mu(x)

    with :math:`\phi_m` straight within each bin, :math:`\theta_m` and :math:`\mu` linear in the features. A normal
    linear model, a Poisson regression and a proportional likelihood ratio model (Luo and Tsai 2012) are of this form.

    Args:
        shift: (features,), of μ; zeros for none.
        edges: (bins + 1,), of r.
        base: (bins,), logarithms of f0's masses, up to a constant.
        slope: (bins,), how steeply f0 grows within each bin.
        low, high: (m, bins): φ at the ends of each bin.
        coefficients: (features - 1, m), of θ.
        blank: (3,): the column that is 1 or more where this one is missing, and between which codes what stands in its
            place then lies evenly: that has a latent like any other. Empty where none is missing, or in older flows.
    """

    kind: ClassVar[int] = 1
    column: int
    inputs: OutcomeInputs
    shift: Array
    edges: Array
    base: Array
    slope: Array
    low: Array
    high: Array
    coefficients: Array
    blank: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        for name in (*self.NAMES[1:], "blank"):
            ndim = 2 if name in ("low", "high", "coefficients") else 1
            object.__setattr__(self, name, _frozen(getattr(self, name), name, ndim))
        bins, m, width = len(self.base), len(self.low), self.inputs.width
        fits = self.shift.shape == (width,) and self.coefficients.shape == (width - 1, m)
        fits = fits and self.edges.shape == (bins + 1,) and self.low.shape == self.high.shape == (m, bins)
        fits = fits and self.slope.shape == (bins,) and self.blank.shape in ((0,), (3,))
        if not fits or bins < 1 or (np.diff(self.edges) <= 0).any():
            raise SchemaRefusal("a tilted outcome's arrays must fit one another, and its edges increase")

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns it draws."""
        return (self.column,)

    def cells(self, x: Array, features: Array | None = None) -> tuple[Array, Array, OfCell]:
        """(μ, probabilities of the bins, steepness within them): (n,), (n, bins), of a bin of each row (n,)."""
        features = self.inputs.features(x) if features is None else features
        theta = features[:, 1:] @ self.coefficients
        low, high = (np.clip(theta @ part, -_STEEPEST, _STEEPEST) for part in (self.low, self.high))
        steep = high - low + self.slope
        logs = self.base + low + mean_exponential(steep)[0]
        odds = np.exp(logs - logs.max(axis=1, keepdims=True))
        mass = normalised(odds / odds.sum(axis=1, keepdims=True))
        return features @ self.shift, mass, lambda cell: steep[np.arange(len(steep)), cell]

    def draw(self, x: Array, features: Array | None = None) -> None:
        """Latents in the outcome's column to values, in place; `features` of x where the caller has them."""
        mean, mass, steep = self.cells(x, features)
        v = x[:, self.column]
        value = mean + value_of(v, mass, self.edges[:-1], self.edges[1:], steep)
        for gone, low, high in self._missing(x):
            value = np.where(gone, value_of(v, np.ones((len(x), 1)), low, high, None), value)
        x[:, self.column] = value

    def undraw(self, x: Array, z: Array) -> Array:
        """Latents of records x into z, in place. Returns: log |det|, (n,)."""
        mean, mass, steep = self.cells(x)
        rest = x[:, self.column] - mean
        v, slope, _ = score_of(rest, mass, self.edges[:-1], self.edges[1:], steep)
        for gone, low, high in self._missing(x):
            other, across, _ = score_of(x[:, self.column], np.ones((len(x), 1)), low, high, None)
            v, slope = np.where(gone, other, v), np.where(gone, across, slope)
        z[:, self.column] = v
        return slope

    def _missing(self, x: Array) -> Iterator[tuple[NDArray[np.bool_], Array, Array]]:
        """Mask of the rows of x whose value is missing, and the lower and upper end of the codes that replace it."""
        if len(self.blank):
            yield x[:, int(self.blank[0])] >= 1, self.blank[1:2], self.blank[2:]

    def to_arrays(self) -> Arrays:
        """Named arrays."""
        found = {"at": np.array([self.column])} | {name: getattr(self, name) for name in self.NAMES[1:]}
        return found | ({"blank": self.blank} if len(self.blank) else {})

    NAMES: ClassVar[tuple[str, ...]] = ("at", "shift", "edges", "base", "slope", "low", "high", "coefficients")
    LATER: ClassVar[tuple[str, ...]] = ("blank",)

    @classmethod
    def from_arrays(cls, inputs: OutcomeInputs, arrays: Mapping[str, NDArray[Any]]) -> TiltLaw:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        (column,) = _places(arrays["at"], 1)
        given = {name: arrays[name] for name in (*cls.NAMES[1:], *cls.LATER) if name in arrays or name in cls.NAMES}
        return cls(column=column, inputs=inputs, **given)


@dataclass(frozen=True, kw_only=True, eq=False)
class HazardLaw:
    r"""A time and its event: hazards in bins of the time, of the event (1) and of any other end of follow-up (0).

    .. math:: m_{jk}(x) = \exp\{ a_{jk} + x^\top \beta_{j s(k)} \}, \quad j = 0, 1

    Whoever is followed up at the beginning of bin k leaves in it with probability :math:`1 - e^{-m_{0k} - m_{1k}}`, by
    the event with the share :math:`m_{1k}` of it: a proportional hazards model, of which s(k) says from when on a
    coefficient is another one. Within a bin that is `timed` hazards are constant; within another (a value on which
    records heap) times lie evenly. From the last bin but one everybody leaves but one in 10,000.

    Args:
        inputs: what is read, of the time; the event reads the bin as well.
        edges: (bins + 1,), of the encoded time.
        rates: (2, bins): a.
        segments: (bins,): s, 0, 1, ….
        timed: (bins,): 1 where hazards are constant within the bin, else 0.
        coefficients: (2, segments, features - 1): β.
    """

    kind: ClassVar[int] = 2
    time: int
    event: int
    inputs: OutcomeInputs
    edges: Array
    rates: Array
    segments: NDArray[np.int64]
    timed: NDArray[np.int64]
    coefficients: Array

    def __post_init__(self) -> None:
        for name, ndim in (("edges", 1), ("rates", 2), ("coefficients", 3)):
            object.__setattr__(self, name, _frozen(getattr(self, name), name, ndim))
        for name in ("segments", "timed"):
            object.__setattr__(self, name, _frozen(getattr(self, name), name, 1, np.int64))
        segments, timed = self.segments, self.timed
        bins = len(self.edges) - 1
        fits = self.rates.shape == (2, bins) and segments.shape == (bins,) and bins >= 2
        fits = fits and self.coefficients.shape[0] == 2 and self.coefficients.shape[2] == self.inputs.width - 1
        if not fits or (np.diff(self.edges) <= 0).any() or self.time == self.event:
            raise SchemaRefusal("a hazard's arrays must fit one another, and its edges increase")
        if timed.shape != (bins,) or not set(timed.tolist()) <= {0, 1}:
            raise SchemaRefusal("a hazard must say of each bin whether it is constant there")
        if (segments < 0).any() or (segments >= self.coefficients.shape[1]).any():
            raise SchemaRefusal("a hazard's segments must be there")

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns it draws."""
        return (self.time, self.event)

    def cells(self, x: Array, features: Array | None = None) -> tuple[Array, OfCell, OfCell]:
        """(probabilities of the bins, steepness within them, share of the event): (n, bins), of a bin of each (n,)."""
        features = (self.inputs.features(x) if features is None else features)[:, 1:]
        # A hazard is what its segment makes of the row times the bin's own: one product, and few exponentials.
        bins = np.arange(self.coefficients.shape[1])[:, None] == self.segments
        other, own = (
            np.exp(np.clip(features @ beta.T, -_STEEPEST, _STEEPEST))
            @ (bins * np.exp(np.clip(rate, -_FASTEST, _FASTEST)))
            for rate, beta in zip(self.rates, self.coefficients, strict=True)
        )
        total, rows = other + own, np.arange(len(features))
        survives = np.ones((len(total), total.shape[1] - 1))
        np.exp(-np.cumsum(total[:, :-2], axis=1), out=survives[:, 1:])
        mass = np.empty_like(total)
        np.subtract(survives[:, :-1], survives[:, 1:], out=mass[:, :-2])
        mass[:, -2], mass[:, -1] = survives[:, -1] * (1 - BEYOND), survives[:, -1] * BEYOND

        def steep(cell: NDArray[np.int64]) -> Array:
            return np.asarray(-np.minimum(total[rows, cell], _STEEPEST) * self.timed[cell])

        def share(cell: NDArray[np.int64]) -> Array:
            return np.clip(own[rows, cell] / total[rows, cell], LEAST, 1 - LEAST)

        return normalised(mass), steep, share

    def draw(self, x: Array, features: Array | None = None) -> None:
        """Latents in the time's and the event's columns to values, in place; `features` of x where they are known."""
        mass, steep, share = self.cells(x, features)
        time = value_of(x[:, self.time], mass, self.edges[:-1], self.edges[1:], steep)
        own, low = share(self._bin(time)), np.array([0.0, 1.0])
        x[:, self.event] = value_of(x[:, self.event], np.column_stack([1 - own, own]), low, low + 1, None)
        x[:, self.time] = time

    def undraw(self, x: Array, z: Array) -> Array:
        """Latents of records x into z, in place. Returns: log |det|, (n,)."""
        mass, steep, share = self.cells(x)
        z[:, self.time], slope, cell = score_of(x[:, self.time], mass, self.edges[:-1], self.edges[1:], steep)
        own, low = share(cell), np.array([0.0, 1.0])
        both = np.column_stack([1 - own, own])
        z[:, self.event], more, _ = score_of(x[:, self.event], both, low, low + 1, None)
        return slope + more

    def _bin(self, time: Array) -> NDArray[np.int64]:
        return np.clip(np.searchsorted(self.edges[:-1], time, side="right") - 1, 0, len(self.edges) - 2)

    def to_arrays(self) -> Arrays:
        """Named arrays."""
        return {"at": np.array([self.time, self.event])} | {name: getattr(self, name) for name in self.NAMES[1:]}

    NAMES: ClassVar[tuple[str, ...]] = ("at", "edges", "rates", "segments", "timed", "coefficients")

    @classmethod
    def from_arrays(cls, inputs: OutcomeInputs, arrays: Mapping[str, NDArray[Any]]) -> HazardLaw:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        time, event = _places(arrays["at"], 2)
        return cls(time=time, event=event, inputs=inputs, **{name: arrays[name] for name in cls.NAMES[1:]})


def _places(at: NDArray[Any], count: int) -> list[int]:
    places = [int(place) for place in np.asarray(at).reshape(-1)]
    if len(places) != count:
        raise SchemaRefusal(f"this outcome's law must name {count} column{'s' * (count > 1)}")
    return places
