"""Privacy events: the parameters of a mechanism, known before it runs; each has one canonical form."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from shared.errors import ParameterError, UnknownEvent

__all__ = [
    "REGISTRY",
    "Composition",
    "Event",
    "Events",
    "ExponentialMechanism",
    "Gaussian",
    "Laplace",
    "NoGuarantee",
    "RandomisedResponse",
    "Slicing",
    "SubsampledGaussian",
    "as_list",
    "from_canonical",
    "guaranteed",
    "is_free",
]


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
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
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
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise ParameterError(f"{name} must be a whole number of at least 1", given=repr(value))
        object.__setattr__(self, name, int(value))


@dataclass(frozen=True, kw_only=True)
class Gaussian(Event):
    """Noise N(0, sigma²) on every coordinate of a value with ℓ₂ `sensitivity` (0: the records are not used).

    >>> from shared.privacy.accountant import epsilon
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

    >>> from shared.privacy.accountant import pure_epsilon
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

    >>> from shared.privacy.accountant import pure_epsilon
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

    >>> from shared.privacy.accountant import epsilon, pure_epsilon
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
    >>> from shared.privacy.accountant import epsilon
    >>> epsilon(Composition(events=(one, one)), 1e-5) == epsilon([one, one], 1e-5)
    True
    """

    kind: ClassVar[str] = "composition"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        parts = tuple(from_canonical(part) if isinstance(part, Mapping) else part for part in self.events)
        if not 2 <= len(parts) <= 64 or any(type(part) not in REGISTRY.values() for part in parts):
            raise UnknownEvent("a composition must hold 2 to 64 events this version can account for")
        if any(isinstance(part, Composition) for part in parts):
            raise UnknownEvent("a composition must not hold another one")
        object.__setattr__(self, "events", parts)

    def to_canonical(self) -> dict[str, Any]:
        """As plain JSON values, its events in their order."""
        return {"event": self.kind, "events": [part.to_canonical() for part in self.events]}


Events = Event | Sequence[Event]
REGISTRY: dict[str, type[Event]] = {
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
    kind = REGISTRY.get(name) if isinstance(name, str) else None
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


def as_list(events: Events) -> list[Event]:
    """One event, or several with those of compositions. Raises: UnknownEvent."""
    found: list[Event] = []
    for event in [events] if isinstance(events, Event) else events:
        if type(event) not in REGISTRY.values():
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
    return not any(isinstance(event, NoGuarantee) for event in as_list(events))


def is_free(event: Event) -> bool:
    """True if nothing that a record says moves the event's output."""
    return (isinstance(event, Gaussian | Laplace) and event.sensitivity == 0) or (
        isinstance(event, Slicing) and event.distance == 0
    )
