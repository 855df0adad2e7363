r"""Forecast of the half-widths of a study's pooled intervals after its next waves, from released figures alone.

A site's variance is split as its answer says, into a part of the patients and a part of the noise. With N persons in
place of n the first part is n/N times as large; the second as well where the noise is on rows, and (n/N)² times where
it is on sums of a table that is released anew. New persons released by themselves are a further table beside the first.
Some parts do not shrink: the error of a flow that later waves draw through as well, as it is of the persons whom the
flow was fitted on; the variance between sites; the error that all sites share; and the scatter of the sites' answers
beyond their variances:

.. math:: h' = t_{K-1} \sqrt{s^2 \Bigl(\sum_i 1 / (v_i' + \hat\tau^2)\Bigr)^{-1} + c}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import ParameterError, Refusal, StateRefusal
from shared.releases.receipt import refits

if TYPE_CHECKING:
    import datetime as dt

    from coordinator.pooling.pool import PooledResult
    from coordinator.store.store import Store
    from shared.estimands.answer import Estimate
    from shared.plans.plan import StudyPlan

__all__ = ["ForecastTerm", "ForecastWave", "StudyForecast", "forecast", "grown", "term_ahead"]


@dataclass(frozen=True, kw_only=True)
class ForecastWave:
    """A wave to come.

    Args:
        number, opens: as planned.
        persons: of all sites together, in the table as of it.
        half_width: of the pooled interval then, on the analysis scale, if sites go on to differ as they do now.
        alike: the same if they do not differ: few sites tell little of by how much they do.
        total: ε that the person who is charged most has been charged by then; None without a formal guarantee.
    """

    number: int
    opens: dt.date
    persons: int
    half_width: float
    alike: float
    total: float | None


@dataclass(frozen=True, kw_only=True)
class ForecastTerm:
    """Forecast of one term of a planned answer.

    Args:
        question, term: its planned name, and the term. scale: of the analysis.
        sites: number of sites in its pooled answer. now: its half-width today, on the analysis scale.
        least: lower limit of the half-width for any number of persons of these sites; 0 where they do not seem to
            differ, and no error of a flow remains.
        waves: those to come. reached: the first with the wanted half-width; 0 if none has it, or none is wanted.
        why: reason why nothing is forecast; blank where something is.
    """

    question: str
    term: str
    scale: str = "identity"
    sites: int = 0
    now: float = math.nan
    least: float = math.nan
    waves: tuple[ForecastWave, ...] = ()
    reached: int = 0
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class StudyForecast:
    """A study's forecast after a wave: `later` released persons of an average site in each wave to come.

    `measured` is True where `later` is what the waves so far have brought; `epsilon_given` is what every ε takes as
    given, blank for nothing.
    """

    study: str
    wave: int
    persons: int
    later: float
    measured: bool
    epsilon_given: str
    terms: tuple[ForecastTerm, ...]


def forecast(
    store: Store, study: str, *, later: float | None = None, question: str = "", wanted: float | None = None
) -> StudyForecast:
    """Forecast of the planned answers after the planned waves that no site has delivered to yet.

    Args:
        later: new persons of an average site in each wave, including those whom a flow is trained on; the average of
            the waves so far where None.
        question: name of one planned question; all of them if blank.
        wanted: half-width on the analysis scale.
    Raises: StateRefusal (nothing delivered yet, no wave to come, a network); ParameterError (no such question; one
        wave alone, and `later` not given).
    """
    from coordinator.planning.price import cost

    plan = store.plan(study).plan
    if plan.release.edges is not None:
        raise StateRefusal(
            "a forecast must be of answers about persons, which narrow as persons are added",
            given="a study of a network, whose figures do so by no law that is known",
            next_step=f"See the answers so far: coordinator pool {study}.",
        )
    if question and question not in plan.estimands:
        known = ", ".join(plan.estimands) or "none"
        raise ParameterError("the question must be planned", given=question, next_step=f"Planned: {known}.")
    sizes = _sizes(store, study, plan)
    if not sizes:
        raise StateRefusal(
            "a forecast must begin from released figures",
            given="no release yet",
            next_step="Before the first wave: coordinator plan design PLAN, from published margins.",
        )
    wave = max(number for of in sizes.values() for number in of)
    ahead = [planned for planned in plan.waves if planned.number > wave]
    if not ahead:
        raise StateRefusal(
            "a forecast must have a wave to come",
            given=f"wave {wave} delivered, the last one that is planned",
            next_step=f"coordinator wave schedule {study} --every quarter --count 4 --window 30 writes further ones.",
        )
    whole = plan.returning != "append"  # a wave's release then holds all of its site
    brought = _brought(sizes, wave, whole=whole)
    if later is None and brought is None:
        raise ParameterError(
            "how many new persons a wave brings must be known",
            given="one wave so far, and no --later",
            next_step="Give --later PERSONS, of an average site in each wave.",
        )
    new = brought if later is None else later
    assert new is not None
    if not new >= 0:
        raise ParameterError("new persons must be 0 or more", given=f"{new:g}")
    if later is not None and plan.posture == "holdout":
        new *= 1 - plan.holdout  # whoever trains is never released, and in no answer
    price = cost(plan)
    totals = {one.number: one.total for one in price.waves}
    terms: list[ForecastTerm] = []
    for name in [question] if question else plan.estimands:
        terms += _question(store, plan, wave, name, new, totals, wanted)
    return StudyForecast(
        study=study,
        wave=wave,
        persons=sum(of[max(of)] if whole else sum(of.values()) for of in sizes.values()),
        later=new,
        measured=later is None,
        epsilon_given=price.epsilon_given,
        terms=tuple(terms),
    )


def _sizes(store: Store, study: str, plan: StudyPlan) -> dict[str, dict[int, int]]:
    """Site to its persons by wave, as the receipts of what is not withdrawn say."""
    from coordinator.answers.release_selection import DeliveredSites

    found = DeliveredSites(store).of(study).sites
    return {site: {int(wave): n for wave, n in facts["n"].items()} for site, facts in sorted(found.items())}


def _brought(sizes: Mapping[str, Mapping[int, int]], wave: int, *, whole: bool) -> float | None:
    """New persons of an average site in an average wave after its first; None where no site has delivered to two."""
    new, waves = 0, 0
    for of in sizes.values():
        first, last = min(of), max(of)
        if last > first:
            new += of[last] - of[first] if whole else sum(of.values()) - of[first]
            waves += wave - first
    return max(new / waves, 0.0) if waves else None


def _question(
    store: Store, plan: StudyPlan, wave: int, name: str, later: float, totals: Mapping[int, float], wanted: float | None
) -> list[ForecastTerm]:
    """Forecast of each term of a planned question."""
    from coordinator.answers.queries import ask
    from coordinator.answers.release_selection import holding

    try:
        answer = ask(store, holding(store, plan.study, wave), plan.estimands[name])
    except Refusal as refusal:
        return [ForecastTerm(question=name, term="", why=str(refusal))]
    out = []
    for term, found in {answer.term: answer.result, **answer.others}.items():
        if isinstance(found, str):
            out.append(ForecastTerm(question=name, term=term, why=found))
        elif found.summed is not None:
            why = "it is a secure sum's, whose noise is not that of its sites"
            out.append(ForecastTerm(question=name, term=term, why=why))
        else:
            out.append(term_ahead(plan, wave, name, term, found, later, totals, wanted))
    return out


def term_ahead(
    plan: StudyPlan,
    wave: int,
    name: str,
    term: str,
    found: PooledResult,
    later: float,
    totals: Mapping[int, float],
    wanted: float | None = None,
) -> ForecastTerm:
    """Forecast of one pooled term from its answer as of `wave`.

    Args:
        found: the pooled answer as of that wave, of at least one site.
        later: persons of an average site whom each wave releases for the first time. wanted: as of `forecast`.
        totals: wave to the ε charged by then.
    """
    used = [row for row in found.estimates if row.vi is not None]
    ahead = [one for one in plan.waves if one.number > wave]
    factor = (found.se**2 - found.shared) / found.se_model**2  # of Knapp and Hartung

    def half(variances: Sequence[float], tau2: float, factor: float) -> float:
        weight = sum(1 / (v + tau2) for v in variances)
        return found.critical * math.sqrt(factor / weight + found.shared)

    waves = []
    for step, one in enumerate(ahead, 1):
        variances = [grown(row, later, step, plan) for row in used]
        persons = sum(map(_persons, used)) + round(later * step * len(used))
        waves.append(
            ForecastWave(
                number=one.number,
                opens=one.opens,
                persons=persons,
                half_width=half(variances, found.tau2, factor),
                alike=half(variances, 0.0, 1.0),
                total=totals.get(one.number),
            )
        )
    now = found.critical * found.se
    stays = [found.tau2 + (0.0 if any(refits(plan, one) for one in ahead) else _of_flow(row, plan)) for row in used]
    within = factor / sum(1 / one for one in stays) if all(stays) else 0.0
    least = found.critical * math.sqrt(within + found.shared)
    reached = next((one.number for one in waves if wanted is not None and one.half_width <= wanted), 0)
    return ForecastTerm(
        question=name,
        term=term,
        scale=found.scale,
        sites=len(used),
        now=now,
        least=least,
        waves=tuple(waves),
        reached=reached,
    )


def grown(row: Estimate, later: float, waves: int, plan: StudyPlan) -> float:
    """Variance of a site's answer after further waves with so many new persons each, squared units of its estimate.

    >>> from shared.estimands.answer import Estimate
    >>> from coordinator.planning.template import template
    >>> import datetime as dt
    >>> from shared.plans.plan import StudyPlan
    >>> plan = StudyPlan.from_toml(template("stroke", coordinator="hub", today=dt.date(2026, 1, 1)))
    >>> row = Estimate(study="s", site="A", wave=1, term="age", yi=0.2, vi_sampling=0.03, vi_privacy=0.01, n=100)
    >>> plan.returning, plan.release.draws_rows, round(grown(row, 100, 1, plan), 4)
    ('append', True, 0.02)
    """
    patients, noise = row.vi_sampling or 0.0, row.vi_privacy
    now = _persons(row)
    if plan.release.draws_rows:
        flow = _of_flow(row, plan)
        ahead = [one for one in plan.waves if one.number > row.wave][:waves]
        fitted = max((k for k, one in enumerate(ahead, 1) if refits(plan, one)), default=0)
        return (patients - flow + noise) * now / (now + later * waves) + flow * now / (now + later * fitted)
    if plan.returning != "append":
        times = now / (now + later * waves)
        return patients * times + noise * times**2
    if not later:
        return patients + noise
    times = now / later
    # Of several releases each has noise of its own, on the sums of its share of the persons.
    new = patients * times + noise * times**2 / max(len(row.receipts), 1)
    return 1 / (1 / (patients + noise) + waves / new)


def _persons(row: Estimate) -> int:
    """Persons in a site's table, with those not in the answer; new persons are taken to have the same share of them."""
    return row.n + row.n_missing + row.n_outside


def _of_flow(row: Estimate, plan: StudyPlan) -> float:
    """Part of a variance that is the error of the flow behind the rows (`coordinator.pooling.intervals.parts`)."""
    if not row.vi_naive:
        return 0.0
    kept = math.sqrt(max(0.0, 1 - row.vi_privacy / (row.vi_naive * row.sandwich_ratio)))
    among = 0.0 if plan.posture == "holdout" else 2 * kept * (1 - kept)  # who is released has trained the flow
    return max(0.0, (row.vi_sampling or 0.0) - row.vi_naive * (kept**2 + among))
