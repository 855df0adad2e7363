"""Privacy accounting: the exact (ε, δ) of privacy events and of their composition.

An *event* is the parameters of a mechanism, known before it runs (`shared.privacy.events`, named here too);
everything here is a function of events alone. Neighbours are **replace-one with public n**, everywhere: every
sensitivity is the largest change when one record is exchanged for another. Each number is an upper bound, as tight
as the mechanism allows:

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
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from shared.privacy.events import (
    Composition,
    Event,
    Events,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoGuarantee,
    RandomisedResponse,
    Slicing,
    SubsampledGaussian,
    as_list,
    from_canonical,
    guaranteed,
    is_free,
)
from shared.privacy.gaussian import gaussian_delta, gaussian_epsilon
from shared.privacy.renyi import ORDERS, checked_delta, epsilon_from_rdp, rdp
from shared.privacy.slicing_loss import slicing_bins, slicing_epsilon, slicing_pld

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
    "epsilon",
    "epsilon_from_rdp",
    "from_canonical",
    "gaussian_delta",
    "guaranteed",
    "loss_distribution",
    "pure_epsilon",
    "rdp",
]


# -- composition -------------------------------------------------------------------------------------------
def pure_epsilon(events: Events) -> float | None:
    """The (ε, 0) guarantee: the plain sum, or None if some event has none.

    >>> pure_epsilon([ExponentialMechanism(epsilon=0.5), Laplace(scale=1.0, sensitivity=1.0)])
    1.5
    """
    total = 0.0
    for event in as_list(events):
        if isinstance(event, Laplace):
            total += event.coordinates * (event.sensitivity / event.scale)
        elif isinstance(event, ExponentialMechanism | RandomisedResponse):
            total += event.epsilon
        elif not is_free(event):
            return None
    return total


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
    delta = checked_delta(delta)
    found = [event for event in as_list(events) if not is_free(event)]
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
        return gaussian_epsilon(mu, delta)
    if len(rest) == 1 and isinstance(rest[0], Slicing):
        return slicing_epsilon(rest[0], delta, mu)
    if len(found) == 1 and isinstance(rest[0], Laplace) and rest[0].coordinates == 1:
        # δ(ε) = 1 − exp((ε − t)/2) below t, the pure ε.
        assert pure is not None
        return max(0.0, pure + 2 * math.log1p(-delta))
    return _composed(tuple(found), delta)


@lru_cache(maxsize=256)  # a tenth of a second, and every step of a release asks for the price of the same events
def _composed(found: tuple[Event, ...], delta: float) -> float:
    """The least of the bounds on a list of which no closed form is known."""
    pure = pure_epsilon(found)
    bounds = [math.inf if pure is None else pure, epsilon_from_rdp(rdp(found), delta)]
    losses = loss_distribution(found, delta)
    if losses is not None:
        bounds.append(float(losses.get_epsilon_for_delta(delta)))
    return min(bounds)


_LEAST_PLD_DELTA = 1e-11
"""Below this δ the rounding of the Fourier transforms inside a composition could be of δ's own size."""
_LARGEST_PLD_EPSILON = 300.0
"""Above it the Rényi bound stands alone: distributions would overflow, and no such ε means anything."""
_MOST_PLD_REPEATS = 100_000
"""An event from a stranger may claim any number of steps; beyond this it is charged by its Rényi curve."""


def loss_distribution(found: Sequence[Event], delta: float) -> Any:
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
            one = slicing_pld(event, delta, step, pld, pld_pmf)
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
        mu = float(slicing_bins(event, delta * 1e-7, 2)[0][-1])
        return mu**2 / 2 + 10 * mu
    if isinstance(event, SubsampledGaussian):
        # log(1 + q(e^m − 1)), m the loss of one sum at ten standard deviations if the record is in it.
        m = (1 + 20 * event.noise_multiplier) / (2 * event.noise_multiplier**2)
        return math.log1p(event.rate * math.expm1(m)) if m < 700 else m
    assert isinstance(event, ExponentialMechanism | RandomisedResponse)
    return event.epsilon
