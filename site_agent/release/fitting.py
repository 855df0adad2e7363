"""Four postures: which records a flow may be fitted on, and which rows may then be released.

Latent noise protects a row *given* the flow. What the flow itself carries about a person is another matter, and a plan
answers it by its posture; this module is where the answer is enforced.

- ``local``: the flow is fitted on the released rows. What it carries is not covered. Where the plan asks for it
  (`Training.transfer`), a site of few records begins at a flow that several sites have trained, and was charged then.
- ``holdout``: every person either trains or is released, for life. Whatever looks at records (margins, levels,
  whitening, early stopping, the refit) sees the training persons only, and a released row cannot change the flow.
- ``public``: nothing looks at a record. The flow is written down from the dictionary's bounds and the plan's
  reference figures.
- ``private``: that public flow is the start, and masked layers are trained in front of it by DP-SGD. Every person
  trains and is released, and the price of the training is part of the release's. Where the plan names a flow that
  several sites have trained (`site_agent.training.rounds`), that one is used, and nothing is fitted here: its price
  was charged when it was trained.

The trap avoided under ``holdout``: a role that depended on the other persons present (a shuffle, a sorted half) would
change for everybody when one person joins, and in the next wave a person who trained the sealed flow could be released.
A role here is a hash of the person's own pseudonym, which is itself keyed with a secret of the site.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import PlanRefusal, PolicyRefusal, TrainingRefusal
from shared.flows.affine import AffineAutoregressiveFlow
from shared.flows.base import Bijection
from shared.flows.chain import Composed
from shared.mechanisms.latent_noise.noise import LatentNoise
from shared.mechanisms.latent_noise.plan import carried_column, mechanism
from shared.plans.encoding import Encoder
from shared.plans.outcomes import planned_outcomes
from shared.plans.plan import StudyPlan
from shared.plans.public_start import public_start
from shared.privacy import accountant as privacy
from shared.releases.receipt import Receipt, planned_event

__all__ = [
    "FittedMechanism",
    "estimate_megabytes",
    "estimate_seconds",
    "fit",
    "public_flow",
    "public_start",
    "released_rows",
    "require_roles_kept",
    "sealed",
    "trains",
]

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
Progress = Callable[[float], None]
_IDLE_MB, _TORCH_MB = 155.0, 210.0
"""What a process takes that has read nothing yet, and what torch and nflows add to it."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FittedMechanism:
    """A flow, the mechanism on top of it, and the rows it may be used on.

    Args:
        mechanism: latent noise with the fitted flow and the plan's w and radius.
        released: places in the table of the rows that may be released, ascending.
        trained: how many rows the flow was fitted on; 0 under ``public``.
        epochs: passes over them.
        refit: fits the flow anew on some of the released rows; None where the flow never saw them without noise.
    """

    mechanism: LatentNoise
    released: Rows
    trained: int = 0
    epochs: int = 0
    refit: Callable[[Array, Noise, Progress], LatentNoise] | None = None

    def shadow(self, inside: Array, rng: Noise, progress: Progress) -> LatentNoise:
        """The mechanism that a membership attack is tried on: one that could have learned from `inside` alone.

        A flow fitted on the released rows (``local``) has seen everybody, so a second one is fitted on `inside`. The
        other postures' flow has seen nobody of the release, or everybody through noise, and stands for itself.
        """
        return self.mechanism if self.refit is None else self.refit(inside, rng, progress)


def fit(
    plan: StudyPlan,
    encoder: Encoder,
    x: Array,
    persons: Sequence[str] | None,
    rng: Noise,
    progress: Progress = lambda share: None,
    *,
    trained: Bijection | None = None,
) -> FittedMechanism:
    """Fit the flow of a plan by its posture's rule.

    Args:
        plan: posture, training, private, holdout, reference; w and radius of its release.
        encoder: of the plan's dictionary.
        x: (n, d) encoded records.
        persons: pseudonym of each row's person, in the order of the rows; None without a person column.
        rng: see the posture's trainer; under ``private`` its noise is the guarantee's.
        progress: called with the share done.
        trained: the flow that the plan names, if it names one: under ``private`` it is used as it is, under ``local``
            the fit may begin at it.
    Raises: TrainingRefusal; PlanRefusal (no person column under ``holdout``).
    """
    if plan.flow:
        if trained is None:
            raise PlanRefusal("the flow that the plan names must be used", given="none")
        if plan.posture == "local":
            return _local(plan, encoder, x, persons, rng, progress, trained)
        return FittedMechanism(mechanism=mechanism(plan, trained), released=released_rows(plan, len(x), persons))
    return {"local": _local, "holdout": _holdout, "public": _public, "private": _private}[plan.posture](
        plan, encoder, x, persons, rng, progress
    )


def sealed(
    plan: StudyPlan,
    encoder: Encoder,
    flow: Bijection,
    *,
    n: int,
    epochs: int = 0,
    fresh: bool = False,
    begin: Bijection | None = None,
) -> FittedMechanism:
    """A flow that was sealed with a release, for `n` rows that are all released through it.

    Args:
        epochs: passes over the records it was fitted with.
        fresh: whether it was fitted for this very release, so that under ``local`` it has seen these rows.
        begin: the flow that the plan names for sites to begin at.
    """
    return FittedMechanism(
        mechanism=mechanism(plan, flow),
        released=np.arange(n),
        epochs=epochs,
        refit=_refit(plan, encoder, epochs, flow, begin) if fresh and plan.posture == "local" else None,
    )


def released_rows(plan: StudyPlan, n: int, persons: Sequence[str] | None) -> Rows:
    """Places of the rows that may be released, ascending; known before anything is encoded or fitted.

    Args:
        n: rows of the table; persons: see `fit`.
    """
    if plan.posture != "holdout":
        return np.arange(n)
    if persons is None or len(persons) != n:
        raise PlanRefusal("posture 'holdout' must have a person column", given="none")
    return np.flatnonzero([not trains(plan, person) for person in persons])


def trains(plan: StudyPlan, person: str) -> bool:
    """True if a person trains the flow of this study and is never released; it stays so in every wave.

    It depends on the pseudonym, the study and the plan's share, and on no other person.

    Args:
        person: pseudonym, a keyed hash made at the site (`site_agent.records.table`).
    """
    digest = hashlib.sha256(b"tributary role\0" + plan.study.encode() + b"\0" + person.encode()).digest()
    return int.from_bytes(digest[:8], "big") < plan.holdout * 2**64


def require_roles_kept(plan: StudyPlan, earlier: Iterable[Receipt]) -> None:
    """Refuse a plan under which somebody who trained would be released, or who was released would train.

    And one that would put releases of which an ε is stated beside others of which none is.

    Args:
        earlier: receipts of the study's releases that left, or still may.
    Raises: PolicyRefusal.
    """
    now = plan.holdout if plan.posture == "holdout" else None
    promised = privacy.guaranteed(planned_event(plan))
    for receipt in earlier:
        if (receipt.stated_epsilon is not None) != promised:
            raise PolicyRefusal(
                "a study must not have releases with a formal guarantee and without one: its total would speak of all",
                given=f"{'a' if promised else 'no'} guarantee now, {'no' if promised else 'a'} one before",
                next_step="Ask the study lead for a new study.",
            )
        before = receipt.parameters.get("holdout")
        if before != now:
            raise PolicyRefusal(
                "who trains and who is released must stay as it was in this study's earlier releases",
                given=f"{_split(now)} now, {_split(before)} in release {receipt.release_id[:8]}",
                next_step="Ask the study lead for a plan with the same posture and holdout, or for a new study.",
            )


def _split(share: float | None) -> str:
    return "no holdout" if share is None else f"a holdout of {share:g}"


def public_flow(plan: StudyPlan, encoder: Encoder) -> Composed:
    """The flow that the dictionary and the plan's reference figures give: see `shared.plans.public_start`."""
    return public_start(encoder, plan.reference)


def estimate_seconds(plan: StudyPlan, n: int, d: int) -> float:
    """Likely time of fitting on this machine, and of fitting again for the audit: a dry run's.

    Most flows stop early: half of what one takes that does not. Laws of outcomes, and steps that a plan counts, do not.
    """
    from site_agent.models.flow import FlowSettings, fit_seconds

    if plan.posture in ("local", "holdout"):
        own, inner = _own_of(plan, n, d)
        # A plan with `search` has no wave any more but through an earlier flow: this is more than it takes.
        seconds = fit_seconds(own, inner, replace(plan.training, search=False)) / 2
        outcomes = planned_outcomes(plan)
        if outcomes is not None:
            from site_agent.models.outcome_laws.laws import laws_cost
            from site_agent.release.audit.attacks import HELD_BACK, MOST_PROBED

            shadow = round((1 - HELD_BACK) * min(own, MOST_PROBED)) if plan.posture == "local" else 0
            seconds += sum(laws_cost(size, outcomes)[0] for size in (own, shadow) if size)
        return seconds
    if plan.private is None:
        return fit_seconds(n, d, FlowSettings(flows=0)) / 2
    from site_agent.models.private_flow import seconds_per_step

    return plan.private.steps * seconds_per_step(n, d, plan.training, plan.private)


def estimate_megabytes(plan: StudyPlan, n: int, d: int) -> float:
    """Likely peak memory of a process that fits; 0 where nothing is fitted without noise."""
    from site_agent.models.flow import fit_megabytes

    if plan.posture not in ("local", "holdout"):
        return 0.0
    own, inner = _own_of(plan, n, d)
    arrays = fit_megabytes(own, inner, plan.training)
    outcomes = planned_outcomes(plan)
    if outcomes is not None:
        from site_agent.models.outcome_laws.laws import laws_cost

        arrays = max(arrays, laws_cost(own, outcomes)[1])
    return _IDLE_MB + (_TORCH_MB if plan.training.by_nflows else 0.0) + arrays


def _own_of(plan: StudyPlan, n: int, d: int) -> tuple[int, int]:
    """Records that a flow is fitted on, and columns that it has: outcomes that are drawn last are none of them."""
    outcomes = planned_outcomes(plan)
    return (
        n if plan.posture == "local" else max(1, round(plan.holdout * n)),
        d if outcomes is None else d - len(outcomes.drawn),
    )


def _as_planned(plan: StudyPlan, encoder: Encoder, progress: Progress) -> dict[str, Any]:
    """What a fit takes from the plan beside its settings, by the parameters of `fit_flow`."""
    return {
        "integer_columns": encoder.integer_columns,
        "progress": lambda part, share, left: progress(share),
        "carried": carried_column(plan),
        "outcomes": planned_outcomes(plan),
    }


# -- one function per posture -------------------------------------------------------------------------------------
def _local(
    plan: StudyPlan,
    encoder: Encoder,
    x: Array,
    persons: Sequence[str] | None,
    rng: Noise,
    progress: Progress,
    begin: Bijection | None = None,
) -> FittedMechanism:
    from site_agent.models.flow import fit_flow

    fitted = fit_flow(x, plan.training, rng, shared=begin, **_as_planned(plan, encoder, progress))
    return FittedMechanism(
        mechanism=mechanism(plan, fitted.flow),
        released=released_rows(plan, len(x), persons),
        trained=len(x),
        epochs=fitted.epochs,
        refit=_refit(plan, encoder, fitted.epochs, fitted.flow, begin),
    )


def _refit(
    plan: StudyPlan, encoder: Encoder, epochs: int, flow: Bijection, begin: Bijection | None
) -> Callable[[Array, Noise, Progress], LatentNoise]:
    def refit(inside: Array, rng: Noise, progress: Progress) -> LatentNoise:
        from site_agent.models.flow import FlowSettings, fit_flow, network_of, refit_flow

        settings = replace(FlowSettings.of(plan.training), **network_of(flow))
        if begin is not None:
            # Whether it began at the shared flow is not known of a sealed one: the shadow model decides like the fit
            # did.
            fitted = fit_flow(inside, settings, rng, shared=begin, **_as_planned(plan, encoder, progress))
        else:
            fitted = refit_flow(inside, settings, rng, epochs=epochs, **_as_planned(plan, encoder, progress))
        return mechanism(plan, fitted.flow)

    return refit


def _holdout(
    plan: StudyPlan, encoder: Encoder, x: Array, persons: Sequence[str] | None, rng: Noise, progress: Progress
) -> FittedMechanism:
    from site_agent.models.flow import fit_flow, smallest_n

    released = released_rows(plan, len(x), persons)
    train = np.setdiff1d(np.arange(len(x)), released)
    if len(train) < smallest_n(encoder.d):
        raise TrainingRefusal(
            f"posture 'holdout' must have at least {smallest_n(encoder.d)} persons who train",
            given=f"{len(train)} at a share of {plan.holdout:g}",
            next_step="Wait for more records, or ask the study lead for a larger holdout.",
        )
    fitted = fit_flow(x[train], plan.training, rng, **_as_planned(plan, encoder, progress))
    return FittedMechanism(mechanism=mechanism(plan, fitted.flow), released=released, trained=len(train))


def _public(
    plan: StudyPlan, encoder: Encoder, x: Array, persons: Sequence[str] | None, rng: Noise, progress: Progress
) -> FittedMechanism:
    return FittedMechanism(
        mechanism=mechanism(plan, public_flow(plan, encoder)), released=released_rows(plan, len(x), persons)
    )


def _private(
    plan: StudyPlan, encoder: Encoder, x: Array, persons: Sequence[str] | None, rng: Noise, progress: Progress
) -> FittedMechanism:
    from site_agent.models.private_flow import private_layers

    assert plan.private is not None, "StudyPlan holds [private] with this posture"
    start = public_flow(plan, encoder)
    layers = private_layers(start.inverse(x), plan.training, plan.private, rng, progress=progress)
    d = encoder.d
    flow = Composed(
        first=AffineAutoregressiveFlow(mean=np.zeros(d), scale=np.eye(d), layers=layers), second=start.second
    )
    return FittedMechanism(
        mechanism=mechanism(plan, flow), released=released_rows(plan, len(x), persons), trained=len(x)
    )
