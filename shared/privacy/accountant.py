r"""Privacy accounting: privacy events, their exact (ε, δ), their composition, and what that means in words.

An *event* is the parameters of a mechanism, known before it runs; everything here is a function of events
alone. Neighbours are **replace-one with public n**, everywhere: every sensitivity is the largest change when
one record is exchanged for another. Each number is an upper bound, as tight as the mechanism allows:

* Gaussian noise: the analytic Gaussian mechanism (Balle & Wang 2018, Theorem 8), several compose into one;
* slicing: given U, a Gaussian mechanism whose sensitivity is random, hence an integral over χ²;
* everything else, and mixed lists: privacy loss distributions (dp-accounting), or a closed form.

Two totals. :func:`epsilon` of a list holds when all its parameters were fixed in advance (within one plan).
When later parameters may depend on earlier outputs (across plans), add the :func:`rdp` curves and use
:func:`epsilon_from_rdp`: Rényi accounting stays valid under adaptive choices.

dp-accounting's own event classes are not used: its two accountants read one Gaussian event under replace-one
with a factor of two between them. Distributions are built from *our* sensitivities by its low-level
constructors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError, UnknownEvent
from shared.privacy.stated import shown_epsilon

__all__ = [
    "ORDERS",
    "Composition",
    "Event",
    "ExponentialMechanism",
    "Gaussian",
    "Laplace",
    "NoGuarantee",
    "RandomisedResponse",
    "Slicing",
    "SubsampledGaussian",
    "calibrate",
    "epsilon",
    "epsilon_from_rdp",
    "from_canonical",
    "gaussian_delta",
    "guaranteed",
    "pure_epsilon",
    "rdp",
    "theorem2_epsilon",
    "translate",
    "w_for_epsilon",
]

Floats = NDArray[np.float64]

ORDERS: Floats = np.unique(np.concatenate([1 + 2.0 ** (np.arange(-96, 136) / 16), np.arange(2.0, 65.0)]))
"""The 289 Rényi orders of every curve: 1 + 2^(k/16) for k = -96..135, and the integers 2..64."""
ORDERS.setflags(write=False)

_NOT_MEANINGFUL = 10.0


# -- events ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Event:
    """The parameters of one mechanism. Its meaning never changes; new fields are optional."""

    kind: ClassVar[str]

    def to_canonical(self) -> dict[str, Any]:
        """As plain JSON values: the kind under `event`, then every field.

        >>> Gaussian(sigma=1, sensitivity=2).to_canonical()
        {'event': 'gaussian', 'sigma': 1.0, 'sensitivity': 2.0}
        """
        return {"event": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}

    @classmethod
    def from_canonical(cls, value: Mapping[str, Any]) -> Event:
        """As :func:`from_canonical`, but an event of another kind is refused as well (UnknownEvent)."""
        event = from_canonical(value)
        if not isinstance(event, cls):
            raise UnknownEvent(f"the event must be of kind {cls.kind}", given=str(event.kind))
        return event

    def _real(self, name: str, *, least: float = 0.0, open_: bool = True, most: float = math.inf) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise ParameterError(f"{name} must be a number", given=type(value).__name__)
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        if not (math.isfinite(value) and (value > least if open_ else value >= least) and value <= most):
            bracket = "(" if open_ else "["
            upper = f"{most:g}]" if math.isfinite(most) else "∞)"
            raise ParameterError(f"{name} must be in {bracket}{least:g}, {upper}", given=f"{value!r}")
        object.__setattr__(self, name, value)

    def _count(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ParameterError(f"{name} must be a whole number of at least 1", given=repr(value))
        object.__setattr__(self, name, int(value))


@dataclass(frozen=True, kw_only=True)
class Gaussian(Event):
    """Noise N(0, sigma²) on every coordinate of a value with ℓ₂ `sensitivity` (0: the records are not used).

    >>> round(epsilon(Gaussian(sigma=1.0, sensitivity=1.0), 1e-5), 4)
    4.3772
    """

    kind: ClassVar[str] = "gaussian"
    sigma: float
    sensitivity: float

    def __post_init__(self) -> None:
        self._real("sigma")
        self._real("sensitivity", open_=False)

    @property
    def mu(self) -> float:
        """sensitivity / sigma: the mechanism is μ-Gaussian-DP."""
        return self.sensitivity / self.sigma


@dataclass(frozen=True, kw_only=True)
class Laplace(Event):
    """Noise Lap(scale) on each of `coordinates` values, every one of which may move by `sensitivity`.

    A vector of ℓ₁ sensitivity Δ is coordinates=1, sensitivity=Δ: the worst neighbour moves one value.

    >>> pure_epsilon(Laplace(scale=2.0, sensitivity=1.0, coordinates=3))
    1.5
    """

    kind: ClassVar[str] = "laplace"
    scale: float
    sensitivity: float
    coordinates: int = 1

    def __post_init__(self) -> None:
        self._real("scale")
        self._real("sensitivity", open_=False)
        self._count("coordinates")


@dataclass(frozen=True, kw_only=True)
class Slicing(Event):
    """The slicing mechanism (U, XU + V): U is d × slices with variance 1/d, V has variance sigma².

    `distance` is the largest ℓ₂ distance between two records: 2 for rows clipped to norm 1 under replace-one.
    """

    kind: ClassVar[str] = "slicing"
    slices: int
    d: int
    sigma: float
    distance: float

    def __post_init__(self) -> None:
        self._count("slices")
        self._count("d")
        self._real("sigma")
        self._real("distance", open_=False)


@dataclass(frozen=True, kw_only=True)
class SubsampledGaussian(Event):
    """`steps` noisy sums over Poisson samples: each record enters with probability `rate`, clipped to norm
    C, and the noise has standard deviation noise_multiplier · C (DP-SGD). Replace-one: a record moves a sum
    by up to 2C.
    """

    kind: ClassVar[str] = "subsampled_gaussian"
    rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        self._real("rate", most=1.0)
        self._real("noise_multiplier")
        self._count("steps")


@dataclass(frozen=True, kw_only=True)
class ExponentialMechanism(Event):
    """One choice with probability proportional to exp(epsilon · utility / (2 · utility's sensitivity))."""

    kind: ClassVar[str] = "exponential_mechanism"
    epsilon: float

    def __post_init__(self) -> None:
        self._real("epsilon", open_=False)


@dataclass(frozen=True, kw_only=True)
class RandomisedResponse(Event):
    """One report of a person's own category, true or any other, whose odds are at most e^ε from person to person.

    Charged as any mechanism with that pure ε and nothing else known of it: the worst there is.

    >>> pure_epsilon([RandomisedResponse(epsilon=0.5)] * 2)
    1.0
    """

    kind: ClassVar[str] = "randomised_response"
    epsilon: float

    def __post_init__(self) -> None:
        self._real("epsilon", open_=False)


@dataclass(frozen=True, kw_only=True)
class NoGuarantee(Event):
    """A release of which no ε that means anything holds.

    Its ε is infinite, and nobody prints that as a price. Ledgers count such releases and add them to no total: the
    total of the others would say nothing beside it either way, and would be lost.

    Args:
        of: why: blank where the noise depends on the records; ``flow`` where the rows are drawn from a flow alone that
            was fitted on the very records they stand for.

    >>> epsilon(NoGuarantee(), 1e-5), pure_epsilon(NoGuarantee())
    (inf, None)
    """

    kind: ClassVar[str] = "no_guarantee"
    of: str = ""

    def __post_init__(self) -> None:
        if self.of not in ("", "flow"):
            raise UnknownEvent("what bounds nothing must be known to this version", given=repr(self.of)[:60])

    def to_canonical(self) -> dict[str, Any]:
        """As plain JSON values; without `of` where it is blank, as releases from before there was one have it."""
        return {"event": self.kind, "of": self.of} if self.of else {"event": self.kind}


@dataclass(frozen=True, kw_only=True)
class Composition(Event):
    """Several mechanisms that see the same records, all their parameters fixed in advance: one release, one price.

    >>> one = Gaussian(sigma=1.0, sensitivity=1.0)
    >>> epsilon(Composition(events=(one, one)), 1e-5) == epsilon([one, one], 1e-5)
    True
    """

    kind: ClassVar[str] = "composition"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        parts = tuple(from_canonical(part) if isinstance(part, Mapping) else part for part in self.events)
        if not 2 <= len(parts) <= 64 or any(type(part) not in _REGISTRY.values() for part in parts):
            raise UnknownEvent("a composition must hold 2 to 64 events this version can account for")
        if any(isinstance(part, Composition) for part in parts):
            raise UnknownEvent("a composition must not hold another one")
        object.__setattr__(self, "events", parts)

    def to_canonical(self) -> dict[str, Any]:
        """As plain JSON values, its events in their order."""
        return {"event": self.kind, "events": [part.to_canonical() for part in self.events]}


Events = Event | Sequence[Event]
_REGISTRY: dict[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        Gaussian,
        Laplace,
        Slicing,
        SubsampledGaussian,
        ExponentialMechanism,
        RandomisedResponse,
        NoGuarantee,
        Composition,
    )
}


def from_canonical(value: Mapping[str, Any]) -> Event:
    """The event written by :meth:`Event.to_canonical`.

    Raises: UnknownEvent, for a kind or a field that this version does not know, or a field that is missing.

    >>> from_canonical({"event": "exponential_mechanism", "epsilon": 0.5})
    ExponentialMechanism(epsilon=0.5)
    """
    name = value.get("event") if isinstance(value, Mapping) else None
    kind = _REGISTRY.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UnknownEvent(
            "a privacy event must be of a kind this version can account for",
            given=repr(name)[:60],
            next_step="Update the software of whoever reads it, or check where the event comes from.",
        )
    given = {key: item for key, item in value.items() if key != "event"}
    unknown = sorted(set(given) - {field.name for field in fields(kind)})
    if unknown:
        raise UnknownEvent(f"the event {name} must have only the fields this version knows", given=str(unknown)[:60])
    try:
        return kind(**given)
    except TypeError:
        raise UnknownEvent(f"the event {name} must have all its fields", given=str(sorted(given))[:60]) from None


def _listed(events: Events) -> list[Event]:
    found: list[Event] = []
    for event in [events] if isinstance(events, Event) else events:
        if type(event) not in _REGISTRY.values():
            raise UnknownEvent(
                "a privacy event must be of a kind this version can account for", given=type(event).__name__
            )
        found.extend(event.events if isinstance(event, Composition) else [event])
    return found


def guaranteed(events: Events) -> bool:
    """True if all events together have a finite ε.

    >>> guaranteed(Gaussian(sigma=1.0, sensitivity=1.0)), guaranteed(NoGuarantee())
    (True, False)
    """
    return not any(isinstance(event, NoGuarantee) for event in _listed(events))


def _checked_delta(delta: float) -> float:
    if not 0 <= delta < 1:
        raise ParameterError("delta must be in [0, 1)", given=repr(delta))
    return float(delta)


# -- one Gaussian ------------------------------------------------------------------------------------------
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def _gaussian_log_delta(mu: Any, eps: Any) -> Floats:
    """log δ of a μ-Gaussian-DP mechanism, elementwise; μ > 0, ε ≥ 0.

    The textbook difference of two tails cancels. With Mills' ratio R(x) = Φ(−x)/φ(x) it is
    δ = φ(a) [R(a) − R(b)], a = ε/μ − μ/2, b = a + μ, and for small μ the bracket is ∫ₐᵇ (1 − x R(x)) dx.
    """
    mu, eps = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(eps, dtype=np.float64))
    a = eps / mu - mu / 2
    b = a + mu
    result = np.empty(mu.shape)
    from scipy import special

    far = a < -30  # the second tail is φ(a) R(b), below e^-450: leaving it out is an upper bound
    result[far] = special.log_ndtr(-a[far])
    small = ~far & (mu < 0.5)
    if small.any():
        x = (a + mu / 2)[small][:, None] + (mu / 2)[small][:, None] * _NODES
        # Far out 1 − x R(x) cancels; 1/x² is an upper bound there.
        slope = np.where(x > 1e3, np.maximum(x, 1e3) ** -2, 1 - x * _mills(x))
        result[small] = _log_density(a[small]) + np.log((mu / 2)[small] * (slope @ _WEIGHTS))
    plain = ~far & ~small
    with np.errstate(divide="ignore"):  # so far out that δ is 0 in doubles
        result[plain] = _log_density(a[plain]) + np.log(_mills(a[plain]) - _mills(b[plain]))
    return result


def _log_density(x: Floats) -> Floats:
    return -0.5 * x**2 - 0.5 * math.log(2 * math.pi)


def _mills(x: Floats) -> Floats:
    from scipy import special

    return math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2))


def gaussian_delta(mu: float, epsilon: float) -> float:
    r"""The exact δ of a μ-Gaussian-DP mechanism at ε ≥ 0.

    .. math:: \delta = \Phi(\mu/2 - \varepsilon/\mu) - e^{\varepsilon} \Phi(-\mu/2 - \varepsilon/\mu)

    Source: Balle & Wang (2018), Theorem 8.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    if not (mu >= 0 and epsilon >= 0):
        raise ParameterError("mu and epsilon must be at least 0", given=f"{mu!r} and {epsilon!r}")
    return 0.0 if mu == 0 else float(np.exp(_gaussian_log_delta(mu, epsilon)))


def _gaussian_epsilon(mu: float, delta: float) -> float:
    if mu == 0:
        return 0.0
    if delta == 0:
        return math.inf
    target = math.log(delta)
    if _gaussian_log_delta(mu, 0.0) <= target:
        return 0.0
    # δ(ε) ≤ Φ(μ/2 − ε/μ) ≤ exp(−(ε/μ − μ/2)²/2), which gives the upper end of the bracket.
    top = mu * mu / 2 + mu * math.sqrt(-2 * target)
    return _root(lambda eps: float(_gaussian_log_delta(mu, eps)) - target, 0.0, top)


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    """Zero of a falling f, to the last digits; the end at which f is not positive is preferred."""
    while f(high) > 0:
        high += 0.01 * abs(high) + 1e-300
    return _brent(f, low, high)


def _brent(f: Callable[[float], float], low: float, high: float) -> float:
    """A zero of f between two ends at which it has different signs, to 1e-14 of its size. Raises: ArithmeticError.

    Brent (1973), *Algorithms for Minimization Without Derivatives*, ch. 4: a secant or an inverse quadratic through the
    last points where that shrinks the bracket fast enough, else a bisection. Written out since a price is asked for in
    every command, and `scipy.optimize` takes longer to import than all prices of a study take to compute.
    """
    before, best = low, high  # of the last two points; `best` has the smaller |f|
    f_before, f_best = f(before), f(best)
    if f_before == 0:
        return before
    if f_best != 0 and (f_before < 0) == (f_best < 0):
        raise ArithmeticError("a zero must lie between ends with different signs")
    other, f_other = before, f_before  # across the zero from `best`
    step = last = 0.0
    for _ in range(500):
        if (f_before < 0) != (f_best < 0):  # signs, because a product of small numbers is 0
            other, f_other = before, f_before
            step = last = best - before
        if abs(f_other) < abs(f_best):
            before, best, other = best, other, best
            f_before, f_best, f_other = f_best, f_other, f_best
        least = (1e-300 + 1e-14 * abs(best)) / 2
        half = (other - best) / 2
        if f_best == 0 or abs(half) < least:
            return best
        if abs(last) > least and abs(f_best) < abs(f_before):
            if before == other:
                trial = -f_best * (best - before) / (f_best - f_before)
            else:
                to_before = (f_before - f_best) / (before - best)
                to_other = (f_other - f_best) / (other - best)
                bend = to_other * to_before * (f_other - f_before)
                trial = -f_best * (f_other * to_other - f_before * to_before) / bend if bend else math.inf
            fast = 2 * abs(trial) < min(abs(last), 3 * abs(half) - least)
            last, step = (step, trial) if fast else (half, half)
        else:
            last = step = half
        before, f_before = best, f_best
        best += step if abs(step) > least else math.copysign(least, half)
        f_best = f(best)
    return best


# -- slicing -----------------------------------------------------------------------------------------------
_BINS = 32768


def _slicing_bins(event: Slicing, tail: float, bins: int) -> tuple[Floats, Floats]:
    """Upper edges of μ and the bins' probabilities; above the last edge lies the probability `tail`."""
    from scipy import special

    k = event.slices  # degrees of freedom of χ²
    low, high = math.sqrt(2 * special.gammaincinv(k / 2, 1e-13)), math.sqrt(special.chdtri(k, tail))
    edges = np.linspace(low, high, bins + 1)[1:]
    below, above = special.chdtr(k, edges**2), special.chdtrc(k, edges**2)
    # Differences of the smaller tail, or the far bins would be noise; the first bin takes all below it.
    mass = np.diff(below, prepend=0.0)
    upper = np.concatenate([[False], above[:-1] < 0.5])
    mass[upper] = -np.diff(above)[upper[1:]]
    return edges * (event.distance / (event.sigma * math.sqrt(event.d))), mass


def _slicing_delta(event: Slicing, delta: float, mu0: float = 0.0, bins: int = _BINS) -> Callable[[Any], Floats]:
    r"""The curve δ(ε) of one slicing release beside a μ₀-Gaussian one: a bound, not an estimate.

    .. math:: \delta(\varepsilon) = E\,\delta_{Gauss}(\varepsilon; \mu),
              \quad \mu^2 = \mu_0^2 + D^2 \chi^2_{m'} / (d \sigma^2)

    δ_Gauss rises with μ, so every bin is charged at its upper edge, and the tail above the last edge is
    charged in full: less than a millionth of `delta`.
    """
    tail = delta * 1e-7
    edges, mass = _slicing_bins(event, tail, bins)
    mu = np.sqrt(edges**2 + mu0**2)

    def curve(eps: Any) -> Floats:
        eps = np.atleast_1d(np.asarray(eps, dtype=np.float64))
        step = max(1, 2_000_000 // mu.size)
        parts = [np.exp(_gaussian_log_delta(mu, e[:, None])) @ mass for e in np.split(eps, range(step, eps.size, step))]
        return np.minimum(np.concatenate(parts) + tail, 1.0)

    return curve


@lru_cache(maxsize=256)  # an integral at each step of a root, and a plan asks for it again and again
def _slicing_epsilon(event: Slicing, delta: float, mu0: float = 0.0) -> float:
    if event.distance == 0:
        return _gaussian_epsilon(mu0, delta)
    if delta == 0:
        return math.inf
    curve = _slicing_delta(event, delta, mu0)
    if curve(0.0)[0] <= delta:
        return 0.0
    top = _gaussian_epsilon(math.hypot(mu0, _slicing_bins(event, delta * 1e-7, 2)[0][-1]), delta)
    return _root(lambda eps: math.log(curve(eps)[0] / delta), 0.0, top)


# -- Rényi -------------------------------------------------------------------------------------------------
def rdp(events: Events) -> Floats:
    """Rényi-DP curve at :data:`ORDERS`, (289,), in nats; rounded up to six digits; infinite where undefined.

    Curves add, also when later parameters depend on earlier outputs.

    >>> float(rdp(Gaussian(sigma=2.0, sensitivity=1.0))[ORDERS == 4.0][0]) >= 4 / 8
    True
    """
    total = np.zeros(ORDERS.size)
    for event, times in Counter(_listed(events)).items():
        total = total + times * _rdp(event)
    return total


@lru_cache(maxsize=256)
def _rdp(event: Event) -> Floats:
    a = ORDERS
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if isinstance(event, Gaussian):
            curve = a * event.mu**2 / 2
        elif isinstance(event, Laplace):
            t = event.sensitivity / event.scale
            one = np.logaddexp(np.log(a / (2 * a - 1)) + t * (a - 1), np.log((a - 1) / (2 * a - 1)) - t * a) / (a - 1)
            # Below a loss of 1e-3 the two terms cancel; α t²/2 is an upper bound for every pure mechanism.
            one = np.where(t < 1e-3, a * t * t / 2, one + 1e-15 / (a - 1))
            curve = event.coordinates * np.minimum(t, one)
        elif isinstance(event, Slicing):
            share = (event.distance / event.sigma) ** 2 * (a * a - a) / event.d
            curve = np.where(share < 1, -event.slices / (2 * (a - 1)) * np.log1p(-share), np.inf)
        elif isinstance(event, SubsampledGaussian):
            curve = event.steps * _subsampled_rdp(event.rate, event.noise_multiplier)
        elif isinstance(event, RandomisedResponse):
            # Whatever is ε-DP is ε²/2 zero-concentrated (Bun & Steinke 2016), and never more than ε.
            curve = np.minimum(a * event.epsilon**2 / 2, event.epsilon)
        elif isinstance(event, NoGuarantee):
            curve = np.full(a.size, np.inf)
        else:
            assert isinstance(event, ExponentialMechanism)
            # Bounded range ε: ε²/8 zero-concentrated (Cesar & Rogers 2021), and never more than ε.
            curve = np.minimum(a * event.epsilon**2 / 8, event.epsilon)
    curve = _rounded_up(curve)
    curve.setflags(write=False)
    return curve


def _rounded_up(curve: Floats) -> Floats:
    """Up to six significant digits: short in a receipt, and the same on machines whose last digits differ."""
    result = curve.copy()
    finite = np.isfinite(curve) & (curve > 0)
    digits = 5 - np.floor(np.log10(curve[finite]))
    # Divided by a power of ten, not multiplied by its inverse: the double nearest to the six digits.
    up, down = 10.0 ** np.maximum(digits, 0), 10.0 ** np.maximum(-digits, 0)
    result[finite] = np.ceil(curve[finite] * (1 + 1e-12) * up / down) / up * down
    return result


def _subsampled_rdp(q: float, s: float) -> Floats:
    """Rényi divergence at all orders between (1−q)N(0) + qN(1) and (1−q)N(0) + qN(−1), standard deviation s.

    The worst replace-one pair of one step: the two records pull in opposite directions. The integrand is
    analytic and falls off like a Gaussian, so the trapezoidal sum is exact to rounding.
    """
    from scipy import special

    if q == 1:
        return ORDERS * (2 / s) ** 2 / 2
    h = min(s, s * s) / 12
    result = np.empty(ORDERS.size)
    for group in np.array_split(np.arange(ORDERS.size), 24):
        top = ORDERS[group[-1]]
        span = 2 * top + 2 + 20 * s
        if span / h > 4e5:
            result[group] = np.inf
            continue
        # The integrand peaks between 0 and 2α − 1 (where q is near 1), with width s.
        x = np.arange(-2 - 12 * s, 2 * top + 1 + 12 * s, h)
        base = -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2 * math.pi))
        up = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * s * s))
        down = np.logaddexp(math.log1p(-q), math.log(q) + (-2 * x - 1) / (2 * s * s))
        for i in group:
            alpha = ORDERS[i]
            log_sum = special.logsumexp(base + alpha * up + (1 - alpha) * down) + math.log(h)
            # Near order 1 the logarithm is of order q², divided by α − 1: allow for rounding before dividing.
            result[i] = (max(log_sum, 0.0) + 1e-13) / (alpha - 1)
    return result


def epsilon_from_rdp(curve: Any, delta: float) -> float:
    r"""ε at δ from a curve over :data:`ORDERS`, never below 0.

    .. math:: \varepsilon = \min_\alpha \rho(\alpha) + \ln\frac{\alpha - 1}{\alpha}
              - \frac{\ln\delta + \ln\alpha}{\alpha - 1}

    Source: Canonne, Kamath & Steinke (2020), Proposition 12.

    >>> round(epsilon_from_rdp(rdp(Gaussian(sigma=2.0, sensitivity=1.0)), 1e-5), 2)
    2.17
    """
    delta = _checked_delta(delta)
    curve = np.asarray(curve, dtype=np.float64)
    if curve.shape != ORDERS.shape or np.isnan(curve).any() or (curve < 0).any():
        raise ParameterError("a Rényi curve must hold 289 non-negative values", given=f"shape {curve.shape}")
    if not curve.any():
        return 0.0
    if delta == 0:
        return math.inf
    values = curve + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(values.min()))


# -- composition -------------------------------------------------------------------------------------------
def pure_epsilon(events: Events) -> float | None:
    """The (ε, 0) guarantee: the plain sum, or None if some event has none.

    >>> pure_epsilon([ExponentialMechanism(epsilon=0.5), Laplace(scale=1.0, sensitivity=1.0)])
    1.5
    """
    total = 0.0
    for event in _listed(events):
        if isinstance(event, Laplace):
            total += event.coordinates * (event.sensitivity / event.scale)
        elif isinstance(event, ExponentialMechanism | RandomisedResponse):
            total += event.epsilon
        elif not _is_free(event):
            return None
    return total


def _is_free(event: Event) -> bool:
    return (isinstance(event, Gaussian | Laplace) and event.sensitivity == 0) or (
        isinstance(event, Slicing) and event.distance == 0
    )


def epsilon(events: Events, delta: float) -> float:
    """The ε at δ of one event, or of several whose parameters were all fixed in advance.

    Exact for Gaussian events, for one slicing event with any number of Gaussian ones, and for one Laplace
    event on one coordinate; otherwise the least of three valid bounds: a privacy loss distribution
    (pessimistic, within a fraction of a percent), the Rényi curve, and the pure sum.

    Returns: ε ≥ 0; infinite if no finite ε holds at this δ.
    Raises: ParameterError, if delta is outside [0, 1); UnknownEvent.

    >>> round(epsilon([Gaussian(sigma=5.0, sensitivity=3.0), Gaussian(sigma=5.0, sensitivity=4.0)], 1e-5), 4)
    4.3772
    """
    delta = _checked_delta(delta)
    found = [event for event in _listed(events) if not _is_free(event)]
    pure = pure_epsilon(found)
    if not found or pure == 0:
        return 0.0
    if not guaranteed(found):
        return math.inf
    if delta == 0:
        return math.inf if pure is None else pure
    mu = math.hypot(*(event.mu for event in found if isinstance(event, Gaussian)))
    rest = [event for event in found if not isinstance(event, Gaussian)]
    if not rest:
        return _gaussian_epsilon(mu, delta)
    if len(rest) == 1 and isinstance(rest[0], Slicing):
        return _slicing_epsilon(rest[0], delta, mu)
    if len(found) == 1 and isinstance(rest[0], Laplace) and rest[0].coordinates == 1:
        # δ(ε) = 1 − exp((ε − t)/2) below t, the pure ε.
        assert pure is not None
        return max(0.0, pure + 2 * math.log1p(-delta))
    bounds = [math.inf if pure is None else pure, epsilon_from_rdp(rdp(found), delta)]
    losses = _pld(found, delta)
    if losses is not None:
        bounds.append(float(losses.get_epsilon_for_delta(delta)))
    return min(bounds)


_LEAST_PLD_DELTA = 1e-11
"""Below this δ the rounding of the Fourier transforms inside a composition could be of δ's own size."""
_LARGEST_PLD_EPSILON = 300.0
"""Above it the Rényi bound stands alone: distributions would overflow, and no such ε means anything."""
_MOST_PLD_REPEATS = 100_000
"""An event from a stranger may claim any number of steps; beyond this it is charged by its Rényi curve."""
_SLICING_PLD_BINS = 512


def _pld(found: Sequence[Event], delta: float) -> Any:
    """The privacy loss distribution of a list without free events, pessimistic; None if out of its reach."""
    scale = epsilon_from_rdp(rdp(found), delta)
    pure = pure_epsilon(found)
    scale = scale if pure is None else min(scale, pure)
    range_ = max(_largest_loss(event, delta) for event in found)
    if delta < _LEAST_PLD_DELTA or max(scale, range_) > _LARGEST_PLD_EPSILON:
        return None
    if max(_repeats(event) for event in found) * len(found) > _MOST_PLD_REPEATS:
        return None
    from dp_accounting.pld import common, pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    # Fine beside the total, but never so fine that one event takes more than 100,000 points.
    step = max(scale / 5000, range_ / 1e5, 1e-7)
    parts: list[Any] = []
    mu = math.hypot(*(event.mu for event in found if isinstance(event, Gaussian)))
    if mu > 0:
        parts.append(pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=step, use_connect_dots=True))
    for event, times in Counter(event for event in found if not isinstance(event, Gaussian)).items():
        if isinstance(event, Laplace):
            one = pld.from_laplace_mechanism(
                event.scale / event.sensitivity, value_discretization_interval=step, use_connect_dots=True
            )
        elif isinstance(event, SubsampledGaussian):
            one = pld.from_gaussian_mechanism(
                event.noise_multiplier,
                value_discretization_interval=step,
                sampling_prob=event.rate,
                use_connect_dots=True,
                neighboring_relation=pld.NeighborRel.REPLACE_ONE,
            )
        elif isinstance(event, Slicing):
            one = _slicing_pld(event, delta, step, pld, pld_pmf)
        else:
            assert isinstance(event, ExponentialMechanism | RandomisedResponse)
            one = pld.from_privacy_parameters(
                common.DifferentialPrivacyParameters(event.epsilon, 0.0), value_discretization_interval=step
            )
        times *= _repeats(event)
        parts.append(one.self_compose(times) if times > 1 else one)
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    return total


def _repeats(event: Event) -> int:
    if isinstance(event, SubsampledGaussian):
        return event.steps
    return event.coordinates if isinstance(event, Laplace) else 1


def _largest_loss(event: Event, delta: float) -> float:
    """About the largest privacy loss of one step of an event that its distribution has to hold."""
    if isinstance(event, Gaussian):
        return event.mu**2 / 2 + 10 * event.mu
    if isinstance(event, Laplace):
        return event.sensitivity / event.scale
    if isinstance(event, Slicing):
        mu = float(_slicing_bins(event, delta * 1e-7, 2)[0][-1])
        return mu**2 / 2 + 10 * mu
    if isinstance(event, SubsampledGaussian):
        # log(1 + q(e^m − 1)), m the loss of one sum at ten standard deviations if the record is in it.
        m = (1 + 20 * event.noise_multiplier) / (2 * event.noise_multiplier**2)
        return math.log1p(event.rate * math.expm1(m)) if m < 700 else m
    assert isinstance(event, ExponentialMechanism | RandomisedResponse)
    return event.epsilon


def _slicing_pld(event: Slicing, delta: float, step: float, pld: Any, pld_pmf: Any) -> Any:
    curve = _slicing_delta(event, delta, bins=_SLICING_PLD_BINS)
    top = math.ceil(_gaussian_epsilon(_slicing_bins(event, delta * 1e-7, 2)[0][-1], delta * 1e-7) / step)
    positive = curve(np.arange(top + 1) * step)
    positive = np.minimum.accumulate(positive)
    # A slicing release is its own mirror image: δ(−ε) = 1 − e^{−ε}(1 − δ(ε)).
    negative = 1 - np.exp(-np.arange(top, 0, -1) * step) * (1 - positive[:0:-1])
    deltas = np.clip(np.concatenate([negative, positive]), 0, 1)
    return pld.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -top, top, np.minimum.accumulate(deltas))
    )


# -- calibration -------------------------------------------------------------------------------------------
def calibrate(family: str | type[Event], epsilon: float, delta: float, **fixed: Any) -> Any:
    """The event of `family` that costs `epsilon` at `delta`; `fixed` gives all but the noise.

    Args:
        family: an event class or its kind; what is solved for is sigma (Gaussian, Slicing), scale (Laplace,
            for the pure ε, whatever δ), noise_multiplier (SubsampledGaussian) or epsilon
            (ExponentialMechanism).
        epsilon: target, positive and finite.
        delta: in (0, 1); may be 0 for Laplace and ExponentialMechanism.
    Raises: ParameterError.

    >>> calibrate("laplace", 0.5, 0.0, sensitivity=1.0, coordinates=2).scale
    4.0
    >>> round(calibrate(Gaussian, 1.0, 1e-5, sensitivity=1.0).sigma, 3)
    3.731
    """
    kind = _REGISTRY.get(family) if isinstance(family, str) else family
    if kind not in _REGISTRY.values() or kind is Composition or kind is NoGuarantee:
        raise UnknownEvent("a family must be one this version can account for", given=repr(family)[:60])
    delta = _checked_delta(delta)
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ParameterError("a target epsilon must be positive and finite", given=repr(epsilon))
    if kind is ExponentialMechanism or kind is RandomisedResponse:
        return kind(epsilon=epsilon, **fixed)
    if kind is Laplace:
        unit = Laplace(scale=1.0, **fixed)
        return Laplace(scale=unit.coordinates * unit.sensitivity / epsilon, **fixed)
    if delta == 0:
        raise ParameterError("delta must be positive for a mechanism without a pure guarantee", given="0")
    if kind is Gaussian:
        unit_gaussian = Gaussian(sigma=1.0, **fixed)
        return Gaussian(sigma=unit_gaussian.sensitivity / _mu_for_epsilon(epsilon, delta), **fixed)
    if kind is Slicing:
        return Slicing(sigma=_slicing_sigma(Slicing(sigma=1.0, **fixed), epsilon, delta), **fixed)

    def cost(log_noise: float) -> float:
        return _cost(SubsampledGaussian(noise_multiplier=math.exp(log_noise), **fixed), delta)

    low = high = 0.0
    while cost(high) > epsilon and high < 40:
        low, high = high, high + 1.0
    while cost(low) <= epsilon and low > -40:
        low, high = low - 1.0, low
    if not cost(high) <= epsilon < cost(low):
        raise ParameterError("the target epsilon must be within reach of some noise", given=repr(epsilon))
    # The distribution is on a grid, so the cost has tiny steps: halve, and keep the side that honours the
    # target.
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) > epsilon else (low, middle)
    return SubsampledGaussian(noise_multiplier=math.exp(high), **fixed)


_cost = epsilon


def _slicing_sigma(unit: Slicing, target: float, delta: float) -> float:
    """The sigma at which the curve passes through (target, delta); `unit` is the event at sigma 1."""
    if unit.distance == 0:
        raise ParameterError("distance must be positive to be calibrated", given="0")
    edges, mass = _slicing_bins(unit, delta * 1e-7, _BINS)

    def excess(log_sigma: float) -> float:
        inside = float(np.exp(_gaussian_log_delta(edges / math.exp(log_sigma), target)) @ mass)
        return math.log(max(inside + delta * 1e-7, 1e-300) / delta)

    # Between the noise for the median row length and that for the longest one, with room to spare.
    high = math.log(edges[-1] / _mu_for_epsilon(target, delta))
    low = high - 1.0
    while excess(low) <= 0:
        low -= 1.0
    return math.exp(_root(excess, low, high + 1e-6))


def _mu_for_epsilon(target: float, delta: float) -> float:
    log_delta = math.log(delta)
    # From ε = μ²/2 + μ √(2 ln 1/δ) as a bound downwards, and ε ≥ μ²/2 − μ z upwards.
    low = high = math.sqrt(2 * target - 2 * log_delta) - math.sqrt(-2 * log_delta)
    while float(_gaussian_log_delta(high, target)) < log_delta:
        high *= 2
    while float(_gaussian_log_delta(low, target)) > log_delta:
        low /= 2
    return _root(lambda mu: log_delta - float(_gaussian_log_delta(mu, target)), low, high)


def w_for_epsilon(epsilon: float, delta: float, radius: float) -> float:
    """The data weight w at which latent noise injection costs `epsilon` at `delta`, clipped to `radius`.

    >>> round(w_for_epsilon(1.0, 1e-5, 3.0), 4)
    0.002
    """
    mu = 1 / calibrate(Gaussian, epsilon, delta, sensitivity=1.0).sigma
    if not (math.isfinite(radius) and radius > 0):
        raise ParameterError("radius must be positive and finite", given=repr(radius))
    return mu * mu / (mu * mu + 4 * radius * radius)


def theorem2_epsilon(w: float, C: float, delta: float) -> float:
    r"""The paper's own value, for its tables; :func:`epsilon` is what a release is charged.

    .. math:: \varepsilon^* = \frac{w C^2}{2(1 - w)} + C \sqrt{\frac{2 w \ln(1/\delta)}{1 - w}}

    Source: latent-noise-injection, Theorem 2.

    >>> round(theorem2_epsilon(0.5, 6.0, 1e-5), 1)
    46.8
    """
    if not (0 <= w < 1 and C >= 0 and 0 < delta < 1):
        raise ParameterError("w must be in [0, 1), C at least 0 and delta in (0, 1)", given=f"{w!r}, {C!r}, {delta!r}")
    return w * C**2 / (2 * (1 - w)) + C * math.sqrt(2 * w * math.log(1 / delta) / (1 - w))


# -- in words ----------------------------------------------------------------------------------------------
def translate(
    events: Events, false_alarm: float = 0.01, delta: float = 1e-6, *, unit: str = "patient", given: str = ""
) -> str:
    """Sentence: success of the best possible attacker, from the exact trade-off curve.

    The attacker knows every other record and both candidates for one patient, and tells which of the two was
    used. Above ε = 10 at `delta` a second sentence says that this is not a meaningful formal guarantee. `unit` is
    whom the guarantee is about: "patient", or "record" where one patient may have several. `given` is what the price
    takes as given, such as "the flow": the bound is then on an attacker to whom that tells nothing of the patient.

    >>> translate(Gaussian(sigma=1.0, sensitivity=1.0))
    'At 1 % false alarms, at most 9.3 % of patients could be recognised, whatever the attacker knows.'
    >>> translate(Gaussian(sigma=1.0, sensitivity=1.0), given="the flow").partition("recognised ")[2]
    'by an attacker who holds the flow and every other record, and learns nothing of the patient from the flow itself.'
    """
    if not 0 < false_alarm < 1:
        raise ParameterError("a false-alarm rate must be in (0, 1)", given=repr(false_alarm))
    if not guaranteed(events):
        if NoGuarantee(of="flow") in _listed(events):
            return (
                f"Not bounded: the rows are drawn from the flow alone, which was fitted on these very records, and "
                f"nothing bounds how surely a {unit} could be recognised by them."
            )
        return f"No formal guarantee: nothing bounds how surely a {unit} could be recognised."
    power = math.ceil(_power(_listed(events), false_alarm) * 1000 - 1e-9) / 10
    alarms = f"At {100 * false_alarm:g} % false alarms"
    if power >= 100:
        text = f"{alarms}, nothing keeps an attacker from recognising practically every {unit}."
    else:
        attacker = (
            f" by an attacker who holds {given} and every other record, and learns nothing of the {unit} from {given} "
            "itself"
            if given
            else ", whatever the attacker knows"
        )
        text = f"{alarms}, at most {power:g} % of {unit}s could be recognised{attacker}."
    if epsilon(events, delta) > _NOT_MEANINGFUL:
        text += f" With ε above {shown_epsilon(_NOT_MEANINGFUL)}, this is not a meaningful formal guarantee."
    return text


def _power(listed: list[Event], alpha: float) -> float:
    """The largest true-positive rate at false-positive rate alpha."""
    found = [event for event in listed if not _is_free(event)]
    if all(isinstance(event, Gaussian) for event in found):
        from scipy import special

        mu = math.hypot(*(event.mu for event in found if isinstance(event, Gaussian)))
        return float(special.ndtr(special.ndtri(alpha) + mu))
    if len(found) == 1 and isinstance(found[0], Laplace) and found[0].coordinates == 1:
        t = found[0].sensitivity / found[0].scale
        if alpha <= math.exp(-t) / 2:
            return alpha * math.exp(t)
        return 1 - math.exp(-t) / (4 * alpha) if alpha <= 0.5 else 1 - math.exp(-t) * (1 - alpha)
    eps = np.linspace(0, 60, 6001)
    mu = math.hypot(*(event.mu for event in found if isinstance(event, Gaussian)))
    rest = [event for event in found if not isinstance(event, Gaussian)]
    if len(rest) == 1 and isinstance(rest[0], Slicing):
        deltas = _slicing_delta(rest[0], 1e-6, mu, bins=_SLICING_PLD_BINS)(eps)
    else:
        losses = _pld(found, 1e-6)
        deltas = np.ones_like(eps) if losses is None else np.atleast_1d(losses.get_delta_for_epsilon(eps))
    # Every (ε, δ) bounds the attacker twice: by power ≤ e^ε α + δ and by 1 − α ≤ e^ε (1 − power) + δ.
    bounds = [
        1.0,
        float(np.min(deltas + np.exp(eps) * alpha)),
        float(np.min(1 - np.exp(-eps) * (1 - alpha - deltas))),
    ]
    pure = pure_epsilon(found)
    if pure is not None:
        bounds += [1 - math.exp(-pure) * (1 - alpha), math.exp(min(pure, 700.0)) * alpha]
    return min(bounds)
