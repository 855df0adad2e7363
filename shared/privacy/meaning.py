"""Meaning of an (ε, δ) in words: the power of the best attack by someone who knows everything but one record."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from shared.errors import ParameterError
from shared.privacy.accountant import epsilon, loss_distribution, pure_epsilon
from shared.privacy.compiled import special
from shared.privacy.events import Event, Events, Gaussian, Laplace, NoGuarantee, Slicing, as_list, guaranteed, is_free
from shared.privacy.slicing_loss import PLD_BINS, slicing_delta
from shared.privacy.stated import shown_epsilon

__all__ = [
    "translate",
]

_NOT_MEANINGFUL = 10.0
_SCORE_OF_ONE_IN_100 = -2.3263478740408408


# -- in words ----------------------------------------------------------------------------------------------
def translate(
    events: Events, false_alarm: float = 0.01, delta: float = 1e-6, *, unit: str = "patient", given: str = ""
) -> str:
    """Sentence: success of the best possible attacker, from the exact trade-off curve.

    The attacker knows every other record and both candidates for one patient, and tells which of the two was
    used. Above ε = 10 at `delta` a second sentence says that this is not a meaningful formal guarantee.

    Args:
        events: what was charged, together.
        false_alarm: rate, in (0, 1), at which the attacker wrongly recognises somebody.
        delta: at which ε is held against 10.
        unit: whom the guarantee is about: "patient", or "record" where one patient may have several.
        given: what the price takes as given, such as "the flow": the bound is then on an attacker to whom that tells
            nothing of the patient.
    Raises: ParameterError: a rate outside (0, 1).

    >>> translate(Gaussian(sigma=1.0, sensitivity=1.0))
    'At 1 % false alarms, at most 9.3 % of patients could be recognised, whatever the attacker knows.'
    >>> translate(Gaussian(sigma=1.0, sensitivity=1.0), given="the flow").partition("recognised ")[2]
    'by an attacker who holds the flow and every other record, and learns nothing of the patient from the flow itself.'
    """
    if not 0 < false_alarm < 1:
        raise ParameterError("a false-alarm rate must be in (0, 1)", given=repr(false_alarm))
    if not guaranteed(events):
        if NoGuarantee(of="flow") in as_list(events):
            return (
                f"Not bounded: the rows are drawn from the flow alone, which was fitted on these very records, and "
                f"nothing bounds how surely a {unit} could be recognised by them."
            )
        return f"No formal guarantee: nothing bounds how surely a {unit} could be recognised."
    power = math.ceil(_power(tuple(as_list(events)), false_alarm) * 1000 - 1e-9) / 10
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


def _score(alpha: float) -> float:
    """The quantile of the normal law, without `scipy.special` for the rate that every sentence is about."""
    if alpha == 0.01:
        return _SCORE_OF_ONE_IN_100
    from scipy.special import ndtri

    return float(ndtri(alpha))


@lru_cache(maxsize=256)  # up to half a second, for the same receipt at each of its steps
def _power(listed: tuple[Event, ...], alpha: float) -> float:
    """The largest true-positive rate at false-positive rate alpha."""
    found = [event for event in listed if not is_free(event)]
    if all(isinstance(event, Gaussian) for event in found):
        mu = math.hypot(*(event.mu for event in found if isinstance(event, Gaussian)))
        return float(special().ndtr(_score(alpha) + mu))
    if len(found) == 1 and isinstance(found[0], Laplace) and found[0].coordinates == 1:
        t = found[0].sensitivity / found[0].scale
        if alpha <= math.exp(-t) / 2:
            return alpha * math.exp(t)
        return 1 - math.exp(-t) / (4 * alpha) if alpha <= 0.5 else 1 - math.exp(-t) * (1 - alpha)
    eps = np.linspace(0, 60, 6001)
    mu = math.hypot(*(event.mu for event in found if isinstance(event, Gaussian)))
    rest = [event for event in found if not isinstance(event, Gaussian)]
    if len(rest) == 1 and isinstance(rest[0], Slicing):
        deltas = slicing_delta(rest[0], 1e-6, mu, bins=PLD_BINS)(eps)
    else:
        losses = loss_distribution(found, 1e-6)
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
