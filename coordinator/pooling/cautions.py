r"""Cautions on a pooled estimate: what its interval does not hold, or holds only by a guess, each once for the pool.

A caution says which coefficient, how much, which way where that is known, and what may be done; it stands beside few
answers that are right (docs/zoo.md says how many). Whatever is true of most answers, or of a limit in the number of
sites, is a note and no caution.

* Warnings of the sites' estimates: a posture whose flow saw no record, a curve that only a flow can draw, a
  coefficient that a plan of noisy moments does not declare, or whose two figures contradict each other. That of
  undeclared ones stands by right answers too: nothing that is released tells them from the wrong ones.
* Rows that deny the question's model: their influences vary `DENIED` times as much as its standard error says. What
  chance does to such an answer is in the interval, with the rows' own spread; but a few rows decide it, and these are
  what a flow draws worst. Of all that released rows tell, this told answers outside their intervals from others best
  (chosen on the half of the hard worlds that settings are chosen by). Counts that vary more than a Poisson law by one
  factor for all rows, as nearly all counts of patients do, are no such case: their dispersion is taken out first.
* Sites left out by their outcome, for too few events, a curve at 0 or 1, or separation: which sites these are is no
  chance, and in which direction their lack moves the answer is known.
* A bias that flows were measured to have and that was counted into the interval.

The conditions of the paper's theorem are no cautions, and a reader is told of them after everything else (`theorem3`).
Theorem 3 says that the random-effects estimate from released rows has the limit of the one from the records,

.. math:: \sqrt K (\tilde\theta_R - \hat\theta_R) = o_p(1)

on three conditions beside those of each study: :math:`K^{1/2}(\delta_{1n}^2 + \delta_{1n}\sqrt{\delta_{2n}}) = o(1)`,
:math:`K/n = o(1)` and :math:`\tau_0 > 0`, with :math:`\delta_{1n}` the error of the flow and :math:`\delta_{2n}` that
of 1 − w. Where w is fixed and the flow errs like :math:`n^{-1/2}`, the first is the second: each site's error from its
flow is of one size whatever K is, and K sites must not be so many that their pooled standard error falls below it.
Without a variance between sites nothing else is in that standard error.

A limit has no threshold. Ours, `SITES_PER_PERSON` and `FEWEST_SITES`, are rules of thumb with the paper's own settings
well inside. A condition that does not hold is a warning, never a refusal: the answer may be right all the same, and its
interval (`coordinator.pooling.intervals`) does not rest on the theorem.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from shared.errors import ParameterError
from shared.estimands.floors import OutcomeLoss, kind_of
from shared.mechanisms.base import HIDDEN

if TYPE_CHECKING:
    from shared.estimands.answer import Estimate, Scale

__all__ = [
    "DENIED",
    "FEWEST_SITES",
    "SITES_PER_PERSON",
    "Condition",
    "Doubted",
    "beside_each",
    "denial",
    "doubts",
    "drawn_in",
    "in_common",
    "lacking",
    "left_out",
    "theorem3",
]

DENIED = 1.25
"""Mean over the pool of sandwich over model variance from which rows are said to deny the model."""
_MUCH = 0.5
"""Bias, in standard errors, from which a caution is given: not in a 95 % interval, it lowers coverage below 92 %."""


_LEFT_OUT = {
    OutcomeLoss.EDGE: (
        "because their log-binomial likelihood has no maximum with all risks below 1. These are sites where effects "
        "are strong, so the pooled answer is drawn towards no effect; risk_ratio asks the same of every site."
    ),
    OutcomeLoss.SEPARATED: (
        "because terms separate the outcome there, as where all events lie on one side. These are sites where effects"
        " are strong or events few, so the pooled answer is drawn towards no effect."
    ),
    OutcomeLoss.NO_MAXIMUM: (
        "because no maximum of their likelihood was found, as where terms separate the outcome. If they do, these are"
        " sites where effects are strong or events few, and the pooled answer is drawn towards no effect."
    ),
    OutcomeLoss.FEW: (
        "for too few events. Where an effect prevents events these are sites where it is strong, so the pooled answer"
        " may be drawn towards no effect."
    ),
    OutcomeLoss.NONE: (
        "because the outcome is 0 in every row there. Where it is an event that an effect prevents, these are sites "
        "where the effect is strong, so the pooled answer may be drawn towards no effect."
    ),
    OutcomeLoss.NONE_OF_A_GROUP: (
        "because the outcome is 0 in every row of a group there. Where it is an event that an effect prevents, these "
        "are sites where the effect is strong, so the pooled answer may be drawn towards no effect."
    ),
    OutcomeLoss.NONE_OF_A_COLUMN: (
        "because every row there has 0. The pooled answer is of the other sites: where no value is below 0, a mean"
        " is drawn up."
    ),
    OutcomeLoss.ALL_OF_A_COLUMN: (
        "because every row there has 1. The pooled answer is of the other sites: where no value is above 1, a mean"
        " is drawn down."
    ),
    OutcomeLoss.ALL: (
        "because the outcome is 1 in every row there. Where it is an event that nearly everybody has, risks hardly "
        "differ, so a pooled difference or ratio of risks may be drawn away from none."
    ),
    OutcomeLoss.FEW_BY_A_TIME: (
        "for too few events by the time asked, or none. The pooled answer is of the sites with more, so survival and "
        "its mean are drawn down, incidence and hazard up; at a later time more sites have an answer."
    ),
    OutcomeLoss.ALL_BY_A_TIME: (
        "because everybody had had the event by the time asked. The pooled answer is of the other sites, so survival "
        "is drawn up, and incidence down; at an earlier time more sites have an answer."
    ),
}
"""Why sites are left out by their outcome, and in which direction the pooled answer lacks them."""
_OF_A_DIFFERENCE = {
    OutcomeLoss.FEW: (
        "for too few events. Where events are rare a difference is small, so a pooled difference may be drawn away "
        "from none, and a probit coefficient towards no effect."
    ),
    OutcomeLoss.NONE: (
        "because the outcome is 0 in every row there. Where it is an event, a difference is small where events are "
        "rare, so a pooled difference may be drawn away from none, and a probit coefficient towards no effect."
    ),
}
"""The same of an answer on the identity scale."""


class Doubted(Protocol):
    """Pooled result, with the fields that cautions read (`coordinator.pooling.pool.PooledResult`)."""

    @property
    def term(self) -> str:
        """The coefficient."""

    @property
    def scale(self) -> Scale:
        """Analysis scale of the coefficient."""

    @property
    def weights(self) -> tuple[float, ...]:
        """Percent, of the estimates."""

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """Estimates that were pooled."""

    @property
    def shared(self) -> float:
        """Variance that all of them have in common."""

    @property
    def se(self) -> float:
        """Standard error of the pool."""

    @property
    def se_model(self) -> float:
        """The same from the weights alone."""

    @property
    def critical(self) -> float:
        """Half the width of an interval in standard errors."""


def in_common(estimates: Sequence[Estimate], weights: Sequence[float]) -> float:
    """Variance of a weighted mean from what all estimates may be off by alike: (Σ w √vi_common)², w in percent."""
    return float(np.array(weights) / 100 @ [row.vi_common**0.5 for row in estimates]) ** 2


def doubts(result: Doubted, estimates: Sequence[Estimate]) -> list[str]:
    """The cautions of a pooled estimate.

    Args:
        result: the pool.
        estimates: of all sites that were given one, those it does not use among them.
    """
    said: dict[str, list[str]] = {}
    for row in estimates:
        for sentence in row.warnings:
            said.setdefault(sentence, []).append(row.site)
    found = [s if len(who) == len(estimates) else f"{', '.join(who)}: {s}" for s, who in said.items()]
    if not _describes(result.term) and (ratio := denial(result)) >= DENIED:
        found.append(_denied(result, ratio))
    if lost := drawn_in(result):
        found.append(_drawn_in(result, lost))
    return found


def beside_each(warnings: Sequence[Sequence[str]], cautions: Sequence[str]) -> list[str]:
    """The cautions of a pool as cells of its sites' rows, one a line: each site's own, and in every row those of all.

    >>> beside_each([["Flow unseen."], []], ["north: Flow unseen.", "Rows deny it."])
    ['Flow unseen.\\nRows deny it.', 'Rows deny it.']
    """
    own = {sentence for row in warnings for sentence in row}
    rest = [said for said in cautions if not any(said == one or said.endswith(f": {one}") for one in own)]
    return ["\n".join([*row, *rest]) for row in warnings]


def _describes(term: str) -> bool:
    """True for a share, quartile or other description: it has no model that rows could deny, and no covariate."""
    from shared.estimands.columns import TableCell

    try:
        TableCell.read(term)
    except ParameterError:
        return False
    return True


def left_out(estimates: Sequence[Estimate]) -> list[str]:
    """The cautions that sites are left out by their outcome, where some are: how many, why, and the direction.

    >>> from shared.estimands.answer import Estimate
    >>> row = Estimate(study="s", site="A", wave=1, term="x", yi=None, vi_sampling=None, n=9, reason="no rows")
    >>> left_out([row])
    []
    """
    lost: dict[str, set[str]] = {}
    for row in estimates:
        if (kind := kind_of(row.reason)) is None:
            continue
        why = _LEFT_OUT[kind]
        if kind in _OF_A_DIFFERENCE and row.scale == "identity":
            mean = row.term.startswith("rmst(")
            why = _LEFT_OUT[OutcomeLoss.FEW_BY_A_TIME] if mean else _OF_A_DIFFERENCE[kind]
        lost.setdefault(why, set()).add(row.site)
    of, waves = len({row.site for row in estimates}), len({row.wave for row in estimates}) > 1
    return [
        f"{len(sites)} of {of} sites {'are' if len(sites) > 1 else 'is'} left out{' in a wave' if waves else ''} {why}"
        for why, sites in lost.items()
    ]


def denial(result: Doubted, sites: Collection[str] | None = None) -> float:
    """Sandwich variance over model variance of the coefficient in the released rows, averaged over sites by weight.

    1 for a site where it is unknown. The model variance of counts includes the rows' own dispersion.

    Args:
        sites: those to average over; all if left out.
    """
    rows = [
        (row.vi_sandwich or row.vi_naive) / (row.vi_naive * max(row.dispersion, 1.0)) if row.vi_naive else 1.0
        for row in result.estimates
    ]
    weights = np.array(result.weights) / 100
    if sites is not None:
        weights = np.where([row.site in sites for row in result.estimates], weights, 0.0)
        if not weights.sum():
            return 1.0
        weights = weights / weights.sum()
    return float(weights @ rows)


def drawn_in(result: Doubted) -> float:
    """The known bias of a pool's flows; 0 where it is too small beside the standard error to cost an interval much.

    Left out of an interval it would make it known to be false.
    """
    weights = np.array(result.weights) / 100
    lost = float(weights @ [row.attenuation * (row.yi or 0.0) for row in result.estimates])
    return lost if abs(lost) > _MUCH * result.se_model else 0.0


def _denied(result: Doubted, ratio: float) -> str:
    levels = all(part.endswith("]") for part in re.sub(r"\[[^\]]*\]", "[]", result.term).split(":"))
    change = "another model" if levels else "a bounded or logarithmic covariate, or another model"
    return (
        f"The rows of these releases, or drawn from them, deny the model behind {result.term}: it varies over them "
        f"{ratio:.1f} times as much as the model says, as it does where a few rows decide it. How far such rows are "
        f"from the records is not known, in either direction. Ask again with {change} of the outcome, and see whether "
        "the answer stays."
    )


def _drawn_in(result: Doubted, lost: float) -> str:
    far = f"a factor of {math.exp(abs(lost)):.3f}" if result.scale == "log" else f"{abs(lost):.2g}"
    return (
        f"Flows that draw an event together with its covariates were measured to draw such an answer towards zero: "
        f"{result.term} by about {far}, which its interval holds in both directions. A plan with outcomes drawn "
        'last (training.outcomes = "last") does not.'
    )


def lacking(result: Doubted) -> str:
    """Note that what a model may lack, and not what was sampled or noised, sets an interval's width; "" where not."""
    if in_common(result.estimates, result.weights) <= result.se**2 / 2:
        return ""
    if any(HIDDEN in sentence for row in result.estimates for sentence in row.warnings):
        return ""  # what noise hides is said already, and what narrows it
    half = result.critical * math.sqrt(result.shared)
    far = f"by a factor of up to {math.exp(half):.2f}" if result.scale == "log" else f"by up to {half:.2g}"
    return (
        f"The interval of {result.term} is mostly doubt about the planned model: what it lacks, as a bend, an "
        f"interaction or levels that exclude each other, may move the coefficient {far} at every site alike, in either "
        "direction. More sites or a larger epsilon do not narrow it; declaring the coefficient in the next plan may, "
        "and a mechanism that keeps rows does."
    )


# -- the paper's conditions ----------------------------------------------------------------------------------------
SITES_PER_PERSON = 1 / 50
"""Most sites per person of an average site. The paper's simulation 3.1.2 has 10 to about 875, 1 to 88."""
FEWEST_SITES = 5
"""Least number of sites: with fewer, τ₀ cannot be distinguished from 0, and K is not large."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition of Theorem 3 that is not seen to hold.

    Args:
        name: ``K against n``, ``many sites`` or ``tau``.
        must: the condition.
        given: the present state, in words.
        fix: remedy.
    """

    name: Literal["K against n", "many sites", "tau"]
    must: str
    given: str
    fix: str

    @property
    def sentence(self) -> str:
        """The condition in one sentence, for a reader of an answer."""
        return f"Theorem 3 of Shen and Tian asks that {self.must}; here {self.given}. {self.fix}"


def theorem3(sites: int, persons: float, *, tau2: float | None = None, common: bool = False) -> tuple[Condition, ...]:
    """The conditions of Theorem 3 that are not seen to hold; none where all are.

    Args:
        sites: K, sites that are pooled.
        persons: n, persons of an average site.
        tau2: estimated variance between sites; None before there is an answer.
        common: True if one common effect is pooled (``FE``), so that τ₀ is taken to be 0.
    Raises: ParameterError: no site, or no person.

    >>> [found.name for found in theorem3(12, 2000)], [found.name for found in theorem3(12, 300, tau2=0.0)]
    ([], ['K against n', 'tau'])
    """
    if sites < 1 or not (math.isfinite(persons) and persons > 0):
        raise ParameterError("sites and persons must be positive", given=f"{sites} sites, {persons:g} persons")
    found = []
    if sites > SITES_PER_PERSON * persons:
        enough = math.ceil(sites / SITES_PER_PERSON)
        found.append(
            Condition(
                name="K against n",
                must="there be few sites beside the persons of one (K/n → 0)",
                given=f"{sites} sites have {persons:,.0f} persons each (our rule: {enough:,} or more)",
                fix="A flow's error does not shrink with the number of sites: take fewer, larger ones.",
            )
        )
    if sites < FEWEST_SITES:
        found.append(
            Condition(
                name="many sites",
                must="there be many sites (K → ∞)",
                given=f"{'there is 1' if sites == 1 else f'there are {sites}'}",
                fix="Read the sites' own estimates beside the pooled one.",
            )
        )
    if common or (tau2 is not None and tau2 <= 0):
        given, fix = "one common effect is pooled", "Pool random effects."
        if not common:
            given = "the estimated τ² is 0"
            fix = "The pooled standard error holds no difference between sites to cover a flow's error."
        found.append(Condition(name="tau", must="sites differ (τ₀ > 0)", given=given, fix=fix))
    return tuple(found)
