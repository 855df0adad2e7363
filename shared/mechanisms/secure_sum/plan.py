"""Mechanism spec of a secure sum: pilots that each site releases, and one noise for what all sites add together.

A release is the pilot: noisy moments (`shared.mechanisms.moments`), by which all sites are looked at from one place.
Its charge holds all that follows under it as well, the level of the site's events and its part in the sum, so that
nothing is reserved later. The budget is one μ of which each part has its share of the square; `epsilon` is what holds
when the coordinator and as many sites as the plan's `colluders` look together (`seen_by`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from shared.base.canonical import is_list, is_number, is_word
from shared.errors import ParameterError, PlanRefusal, SchemaRefusal
from shared.mechanisms.base import Aggregates, Extent, Facts, MechanismPlan, ReleasedTables, must, other_record, unit
from shared.mechanisms.moments.plan import MomentsPlan
from shared.mechanisms.secure_sum.influences import Bounds
from shared.mechanisms.secure_sum.price import TrustRow, trust_row, trust_rows
from shared.mechanisms.secure_sum.steps import SumStep
from shared.mechanisms.secure_sum.terms import SumTerms
from shared.mechanisms.secure_sum.vectors import MOST_COEFFICIENTS, VectorBounds, coordinates
from shared.privacy import calibration
from shared.privacy.accountant import Composition, Event, Gaussian
from shared.privacy.gaussian import gaussian_epsilon
from shared.privacy.stated import shown_delta, shown_epsilon

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.estimands.answer import Estimand, Estimate, Origin
    from shared.mechanisms.secure_sum.variants import Variant
    from shared.plans.plan import StudyPlan
    from shared.terminal import ChecklistLine

__all__ = ["SecureSumPlan", "SummedTerm"]

_NUMBERS = 2
"""Numbers that are summed per coefficient: the influences, and their squares."""
_ROUNDED = 1.01
"""Factor by which the noise is raised for rounding to the grid, which adds at most 1 % to the sensitivity."""
_LEAST_SHARE = 0.01

MEASURED_FROM = 1.0
"""The least ε at which every sum of these files is answered, and squared distances to the records' own answer are at
most what an answer states of them, also of few small hospitals (``tests/benchmarks/results/secure_sum_stated_*.json``,
``secure_sum_small.json``)."""
_LEAST_TRIED = 0.25
"""(``secure_sum_quarter*.json``)"""


@dataclass(frozen=True, kw_only=True)
class SummedTerm:
    """A term of a question whose coefficient is summed.

    Args:
        place: among `SecureSumPlan.coefficients`. column: among the pilot's covariates.
        units: for which the question asks it. per: the same in units of the sum.
    """

    place: int
    column: int
    units: float
    per: float


@dataclass(frozen=True, kw_only=True)
class SecureSumPlan(Aggregates):
    """One coefficient or several, of which every site's part is hidden in the sum of all.

    Args:
        epsilon: of pilot, level and sum together, per patient, with the plan's colluders; δ is the budget's.
        outcome, responses, covariates, horizon, bins, time_bins: of the pilot, as of `MomentsPlan`.
        coefficient: the covariate whose coefficient is summed. units: of it, for which the coefficient is told.
        further: covariates whose coefficients are summed with it, as one vector, to the units of each.
        variants: questions other than the planned one, of fewer covariates, in a subgroup or within a window of time;
            the coefficient of the first term of each is in the vector, too.
        members: site to the public key by which it signs its releases, hexadecimal: a site's new key is a new plan.
        drop_outs, colluders: d and c of `SumTerms`.
        pilot, level: shares of μ²; the sum has the rest.
        reach, least, most: of the `Bounds` on a record's influence. Of a vector `reach` alone, in no unit.
        places: how the pilots are read. ``together`` takes columns to follow what all sites' histograms say of them,
            and hazards to change within an interval, and has one coefficient as a vector of one, so that how near
            records are held follows from the pilots in whatever unit. ``apart``: as plans from before have it.
        held: about which point vectors are drawn in: ``zero``, or ``centred``, where each site's public model expects
            nothing to be taken from the sum by it, for ε ≥ 1: below, a noisy pilot's model can put it far off.
    """

    epsilon: float
    outcome: Literal["survival", "binary"]
    responses: Sequence[str]
    covariates: Sequence[str]
    coefficient: str
    members: Mapping[str, str]
    units: float = 1.0
    drop_outs: int = 1
    colluders: int = 1
    pilot: float = 0.6
    level: float = 0.05
    reach: float = 1.2
    least: float = 2.0
    most: float = 8.0
    horizon: float | None = None
    bins: int = 32
    time_bins: int = 16
    further: Mapping[str, float] = field(default_factory=dict)
    places: Literal["together", "apart"] = "together"
    held: Literal["centred", "zero"] = "zero"
    variants: Sequence[str] = ()
    mechanism: Literal["secure_sum"] = "secure_sum"
    title: ClassVar[str] = "secure sum"
    straight: ClassVar[bool] = True
    later: ClassVar[tuple[str, ...]] = ("further", "held", "variants")
    before: ClassVar[Mapping[str, Any]] = {"places": "apart"}
    follow: ClassVar[int] = len(SumStep)
    needs: ClassVar[tuple[str, ...]] = ("Crypto",)
    bundle_of: ClassVar[tuple[float, float]] = MomentsPlan.bundle_of

    def __post_init__(self) -> None:
        for name in ("responses", "covariates", "variants"):
            value = getattr(self, name)
            what = "questions" if name == "variants" else "columns"
            must(is_list(value), f"release.{name} must be a list of {what}", repr(value)[:60])
            object.__setattr__(self, name, tuple(value))
        must(
            self.coefficient in self.covariates,
            "release.coefficient must be one of release.covariates",
            repr(self.coefficient)[:60],
        )
        must(self.places in ("together", "apart"), "release.places must be together or apart", repr(self.places)[:60])
        must(self.held in ("centred", "zero"), "release.held must be centred or zero", repr(self.held)[:60])
        self._require_further()
        must(self.outcome in ("survival", "binary"), "release.outcome must be survival or binary", self.outcome)
        self._require_members()
        for name in ("epsilon", "units", "reach", "least", "most", "pilot", "level"):
            value = getattr(self, name)
            must(0 < value < math.inf, f"release.{name} must be positive and finite", value)
        must(
            self.held == "zero" or self.vectors,
            'release.held = centred must go with release.places = "together", or release.further',
            self.places,
        )
        must(
            self.held == "zero" or self.epsilon >= 1,
            "release.held = centred must go with ε of 1 or more: below, an answer was seen far off",
            f"ε {shown_epsilon(self.epsilon)}",
        )
        shares = (self.pilot, self.level, 1 - self.pilot - self.level)
        must(
            min(shares) >= _LEAST_SHARE,
            f"release.pilot and release.level must leave each part, and the sum, {_LEAST_SHARE:g} of the budget",
            f"{self.pilot:g} and {self.level:g}",
        )
        must(self.least <= self.most, "release.least must not be above release.most", f"{self.least:g}, {self.most:g}")

    def _require_members(self) -> None:
        members = self.members
        named = isinstance(members, Mapping) and all(isinstance(part, str) for one in members.items() for part in one)
        must(named, "release.members must be a table of sites, each with its key", repr(members)[:60])
        # As an invitation names a site: another name could look like a second site's line where keys are compared.
        strange = [site for site in members if not is_word(site)]
        must(
            not strange,
            "release.members must be named by plain words: ASCII letters, digits, - and _, at most 64",
            ", ".join(map(repr, strange))[:60],
        )
        alike = Counter(site.lower() for site in members)
        must(
            max(alike.values(), default=1) == 1,
            "names of release.members must differ by more than small and capital letters",
            ", ".join(site for site in members if alike[site.lower()] > 1)[:60],
        )
        # In the order of their names, whatever the order in which they are written: a site is known by its place.
        object.__setattr__(self, "members", {site: members[site].lower() for site in sorted(members)})

    def _require_further(self) -> None:
        given = self.further
        named = isinstance(given, Mapping) and all(
            is_number(units) and 0 < units < math.inf for units in given.values()
        )
        must(named, "release.further must be a table of covariates, each with its units", repr(given)[:60])
        object.__setattr__(self, "further", {name: float(given[name]) for name in sorted(given)})
        must(
            set(given) <= {*self.covariates} - {self.coefficient} and len(given) < MOST_COEFFICIENTS,
            f"release.further must be of at most {MOST_COEFFICIENTS - 1} of release.covariates other than "
            "release.coefficient",
            ", ".join(map(repr, given))[:60],
        )
        must(
            1 + len(given) + len(self.variants) <= MOST_COEFFICIENTS,
            f"release.further and release.variants must leave at most {MOST_COEFFICIENTS} coefficients in the sum",
            1 + len(given) + len(self.variants),
        )
        # A level in one may be any text, and they are read by who consents.
        must(
            all(
                isinstance(text, str) and text.isprintable() and " ".join(text.split()) == text
                for text in self.variants
            ),
            "release.variants must each be one line of printed characters, with single spaces",
            f"{len(self.variants)} variants",
        )
        must(
            self.places == "together" or not self.variants,
            'release.variants must go with release.places = "together"',
            self.places,
        )
        usual = {item.name: item.default for item in fields(self) if item.name in ("least", "most")}
        must(
            not self.vectors or all(getattr(self, name) == value for name, value in usual.items()),
            "release.least and release.most must be left out: how near records are held follows from the pilots",
            f"{self.least:g} and {self.most:g}",
        )

    # -- its parts -----------------------------------------------------------------------------------------------
    def first(self, delta: float) -> MomentsPlan:
        """The pilot, at its own ε."""
        return MomentsPlan(
            epsilon=gaussian_epsilon(_mu(self.epsilon, delta) * math.sqrt(self.pilot), delta),
            outcome=self.outcome,
            responses=self.responses,
            covariates=self.covariates,
            exposures=tuple(self.coefficients),
            horizon=self.horizon,
            bins=self.bins,
            time_bins=self.time_bins,
        )

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Covariates whose coefficients are summed, `coefficient` the first, to the units of each."""
        return {self.coefficient: self.units, **self.further}

    @property
    def vectors(self) -> bool:
        """True if each record contributes a vector to the sum, with one entry per coefficient (even for only one)."""
        return bool(self.further) or self.places == "together"

    def questions(self, plan: StudyPlan) -> tuple[Variant, ...]:
        """The variants of the planned model, in the plan's order. Raises: PlanRefusal: one that no sum can have."""
        if not self.variants:
            return ()
        from shared.mechanisms.secure_sum.variants import planned_variants

        return planned_variants(tuple(self.variants), self._first(plan).design(plan), tuple(self.coefficients))

    def bounds(self, plan: StudyPlan) -> Bounds | VectorBounds:
        """On what one record adds to the sum."""
        columns = self._first(plan).design(plan).spec.covariates
        if self.vectors:
            places = tuple(columns.index(name) for name in self.coefficients)
            return VectorBounds(
                columns=places,
                units=tuple(self.coefficients.values()),
                reach=self.reach,
                centred=self.held == "centred",
                variants=self.questions(plan),
            )
        return Bounds(
            column=columns.index(self.coefficient),
            unit=self.units,
            reach=self.reach,
            least=self.least,
            most=self.most,
        )

    def level_event(self, plan: StudyPlan) -> Gaussian:
        """Of the level that a site tells of its events (`influences.noisy_level`)."""
        mu = _mu(self.epsilon, plan.budget.delta) * math.sqrt(self.level)
        return Gaussian(sigma=math.sqrt(2) / mu, sensitivity=math.sqrt(2))

    def terms(self, plan: StudyPlan, wave: int = 1) -> SumTerms:
        """Of the sum under a wave."""
        return self._terms(plan.budget.delta, plan.hash, wave)

    def seen_by(self, plan: StudyPlan) -> Mapping[str, float]:
        """Of everything under the plan: the coordinator alone, with its colluders, with half, with all others.

        By how many they are, ascending: three rows where the plan has no colluders, or half of the sites.
        """
        return {_who(row, len(self.members)): row.epsilon for row in self._rows(plan)}

    def seen_with(self, plan: StudyPlan, colluders: int) -> float:
        """ε of everything under the plan against the coordinator with so many other sites, or keys of its own."""
        return trust_row(self._visible(plan), [self._priced(plan)], plan.budget.delta, colluders).epsilon

    def _rows(self, plan: StudyPlan) -> tuple[TrustRow, ...]:
        return trust_rows(self._visible(plan), [self._priced(plan)], plan.budget.delta)

    @property
    def unseen(self) -> str:
        """As of `MechanismPlan.unseen`, and the known defect of the interval."""
        sites = (
            "Nobody sees a site's part of the sum: false or mistaken numbers of one move the answer and leave no "
            "trace in it. What each site releases by itself beside it shows a site that is off there, and no other."
        )
        return " ".join(filter(None, (sites, self.interval_doubt)))

    @property
    def interval_doubt(self) -> str:
        """Known defect of the sum's interval under this plan, in a sentence; blank where none is known."""
        if self.epsilon >= MEASURED_FROM:
            return ""
        if self.epsilon < _LEAST_TRIED:
            return (
                f"No interval of a secure sum was tried at an ε below {_LEAST_TRIED:g} (docs/benchmarks/secure-sum.md)."
            )
        return (
            f"At an ε below {MEASURED_FROM:g} a secure sum of few small hospitals is not always answered, and where it "
            "is, its error was measured to be larger than stated (docs/benchmarks/secure-sum.md)."
        )

    def review(self, plan: StudyPlan, signed: MechanismPlan | None = None) -> list[ChecklistLine]:
        """Checklist: ε against each group of colluding parties; warnings on the interval and the planned analyses."""
        from shared.estimands.questions import parse_estimand
        from shared.terminal import ChecklistLine

        rows = "; ".join(f"{who}: ε {shown_epsilon(epsilon)}" for who, epsilon in self.seen_by(plan).items())
        rows += "; a member's key that the coordinator made itself counts as a site: have the sites compare the keys"
        lines = [ChecklistLine(name="who looks", detail=rows)]
        if self.interval_doubt:
            fix = f"Plan an ε of {MEASURED_FROM:g}, or more and larger hospitals."
            lines.append(ChecklistLine(name="interval", state="warn", detail=self.interval_doubt.rstrip("."), fix=fix))
        asked = [parse_estimand(formula) for formula in plan.estimands.values()]
        missed = [question for question in asked if not self.summed_terms(plan, question)]
        if len(missed) == len(asked):
            kind = "cox" if self.outcome == "survival" else "logistic"
            model = f"{kind}({', '.join(self.responses)}) ~ {' + '.join(self.covariates)}"
            detail = "no planned analysis is answered by it: what each site releases by itself answers all others"
            units = " and ".join(f"{name}/{per:g}" for name, per in self.coefficients.items())
            fix = f"Plan {model}, the coefficient's units as in {units}."
            lines.append(ChecklistLine(name="secure sum", state="warn", detail=detail, fix=fix))
        possible = [str(question) for question in missed if self._could_be_summed(plan, question)]
        if possible and len(self.coefficients) + len(self.variants) < MOST_COEFFICIENTS:
            detail = f"not answered by it, and could be: {'; '.join(possible)}"
            fix = "Name them in release.variants: the first coefficient of each is then summed, too, at the same ε."
            lines.append(ChecklistLine(name="variants", state="warn", detail=detail, fix=fix))
        return lines

    def _could_be_summed(self, plan: StudyPlan, question: Estimand) -> bool:
        from shared.mechanisms.secure_sum.variants import planned_variants

        try:
            planned_variants((str(question),), self._first(plan).design(plan), tuple(self.coefficients))
        except PlanRefusal:
            return False
        return self.places == "together"

    def most_seen(self, plan: StudyPlan) -> tuple[str, Event]:
        """The coordinator and all other sites, to whom one share of the noise is left."""
        event = Composition(events=(*self._visible(plan), self._priced(plan).event(1)))
        return list(self.seen_by(plan))[-1], event

    def _first(self, plan: StudyPlan) -> MomentsPlan:
        return self.first(plan.budget.delta)

    def _visible(self, plan: StudyPlan) -> tuple[Gaussian, ...]:
        pilot = self._first(plan).event(plan)
        assert isinstance(pilot, Gaussian), "blocks whose sensitivity is joint are one Gaussian mechanism"
        return pilot, self.level_event(plan)

    def _priced(self, plan: StudyPlan) -> SumTerms:
        """Terms at no plan's hash: the price does not depend on it, and is asked for before there is one."""
        return self._terms(plan.budget.delta, "0" * 64, 1)

    def _terms(self, delta: float, plan_hash: str, wave: int) -> SumTerms:
        mu = _mu(self.epsilon, delta) * math.sqrt(1 - self.pilot - self.level)
        return SumTerms(
            plan=plan_hash,
            wave=wave,
            label="sum",
            members=tuple(self.members.values()),
            drop_outs=self.drop_outs,
            colluders=self.colluders,
            coordinates=coordinates(len(self.coefficients) + len(self.variants)) if self.vectors else _NUMBERS,
            sensitivity=2 * self.reach,
            sigma=_ROUNDED * 2 * self.reach / mu,
            # A site's million records at their longest rows; a larger sum is brought to it.
            largest=1e6 * self.reach,
        )

    # -- what every mechanism is asked ---------------------------------------------------------------------------
    def require(self, plan: StudyPlan) -> None:
        """One wave, a coefficient that the pilot has, and terms that a sum can have. Raises: PlanRefusal."""
        super().require(plan)
        must(len(plan.waves) == 1, "a secure sum must have one wave: a site joins one sum, once", len(plan.waves))
        design = self._first(plan).design(plan).spec.covariates
        must(self.coefficient in design, "release.coefficient must not be nominal", self.coefficient)
        nominal = [name for name in self.further if name not in design]
        must(not nominal, "release.further must not be nominal", ", ".join(nominal))
        self.questions(plan)
        self._require_keys(plan.study)
        try:
            self._priced(plan)
        except (ParameterError, SchemaRefusal) as refusal:
            raise PlanRefusal(
                f"[release] of a secure sum: {refusal.must}",
                given=refusal.given,
                next_step="Correct the plan's members, drop_outs or colluders.",
            ) from None

    def _require_keys(self, study: str) -> None:
        for site, key in self.members.items():
            if len(key) != 64 or key.strip("0123456789abcdef"):
                raise PlanRefusal(
                    f"release.members must give the release key of {site}, 64 hexadecimal digits",
                    given=repr(key)[:60],
                    next_step="Take its release_key in coordinator sites --json. A site stands there once it has "
                    f"joined: coordinator invite {site} --study {study} --plan-later --out FILE.",
                )

    @property
    def keys(self) -> Mapping[str, str]:
        """Of the members: whoever holds one of these knows that member's noise."""
        return self.members

    def require_site(self, site: str, key: str) -> None:
        """Refuse a site that is no member, or is one under another key. Raises: PlanRefusal."""
        must(site in self.members, "this site must be among the members of the plan's sum", site)
        must(
            self.members[site] == key,
            "the plan must name this site's release key: a site with a new key needs an amended plan",
            f"another key for {site}",
        )

    def event(self, plan: StudyPlan) -> Composition:
        """Pilot, level and sum, as the sum is where the plan's colluders tell the coordinator all they have."""
        terms = self._priced(plan)
        left = len(self.members) - self.drop_outs - self.colluders
        return Composition(events=(*self._visible(plan), terms.event(left)))

    def facts(self, plan: StudyPlan) -> Facts:
        """The pilot's, and of the sum who takes part and its noise."""
        pilot, terms = self._first(plan).facts(plan), self._priced(plan)
        return Facts(
            d=pilot.d,
            parameters={
                **pilot.parameters,
                "sigma_level": self.level_event(plan).sigma,
                "sigma_sum": terms.sigma,
                "sites": float(len(self.members)),
                "drop_outs": float(self.drop_outs),
                "colluders": float(self.colluders),
            },
            conditional_on=pilot.conditional_on,
            model=pilot.model,
        )

    def details(self, plan: StudyPlan) -> str:
        """Coefficient, sites and noise, in half a line."""
        more = f" and {len(self.variants)} variants of the model" if self.variants else ""
        return (
            f"{' and '.join(self.coefficients)}{more} in one sum of {len(self.members)} sites, "
            f"{self.drop_outs} of which "
            "may drop out; "
            f"noise of {self._priced(plan).sigma:.4g} on the sum; pilot: {self._first(plan).details(plan)}"
        )

    def covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """As of noisy figures, then by who looks together."""
        delta = plan.budget.delta
        record = "one person's record" if unit(plan) == "patient" else "one row of the hospital's table"
        # In the order that receipts were signed with: the plan's colluders before half, also where they are more.
        signed = sorted(self._rows(plan), key=lambda row: (row.colluders > 0, row.colluders != self.colluders))
        rows = "; ".join(f"{_who(row, len(self.members))}: ε = {shown_epsilon(row.epsilon)}" for row in signed)
        return (
            f"Everybody in the table: replacing {record} by {other_record(plan)} changes the probability of all that "
            "this hospital gives, its pilot, the level of its events and its part in the sum, by at most (ε, δ). "
            "How large ε is depends on who looks together, because each hospital knows its own share of the noise: "
            f"{rows}; each at δ = {shown_delta(delta)}.",
        )

    def extent(self, plan: StudyPlan, n: int) -> Extent:
        """Of the pilot."""
        return self._first(plan).extent(plan, n)

    def draw(self, plan: StudyPlan, records: pd.DataFrame, rng: Noise) -> pd.DataFrame:
        """The pilot's noisy figures."""
        return self._first(plan).draw(plan, records, rng)

    def validate(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """As the pilot's."""
        self._first(plan).validate(plan, table, n)

    def doubt(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> str:
        """Nothing: what a pilot leaves in doubt the sum tells."""
        return ""

    def synthetic(
        self,
        plan: StudyPlan,
        tables: ReleasedTables,
        *,
        draws: int,
        rng: np.random.Generator,
        effects: Mapping[int, float] | None = None,
    ) -> list[pd.DataFrame]:
        """Tables drawn of the pilots' fit.

        Args:
            effects: summed coefficients behind the rows, by the place of the covariate and per unit of it; the pilots'
                own where left out, and then nothing of the sum is in them.
        """
        return self._first(plan).synthetic(plan, tables, draws=draws, rng=rng, effects=effects)

    def plans(self, plan: StudyPlan, question: Estimand) -> bool:
        """True if a question is the planned model itself, or its coefficient is summed as a variant's."""
        return self._first(plan).plans(plan, question) or bool(self.summed_terms(plan, question))

    def question(self, plan: StudyPlan) -> Estimand:
        """The planned model, per unit of each covariate, as it is asked.

        Raises: ParameterError, where it cannot be asked so.
        """
        from shared.estimands.questions import Estimand

        terms = tuple(self.covariates)
        if self.outcome == "survival":
            return Estimand(kind="cox", terms=terms, duration=self.responses[0], event=self.responses[1])
        return Estimand(kind="logistic", terms=terms, outcome=self.responses[0])

    def summed_terms(self, plan: StudyPlan, question: Estimand) -> dict[str, SummedTerm]:
        """Label to the terms whose coefficients are summed; none where a question is neither planned nor a variant."""
        bounds = self.bounds(plan)
        columns = bounds.columns if isinstance(bounds, VectorBounds) else (bounds.column,)
        first, variants = self._first(plan), self.questions(plan)
        if variants:
            from shared.mechanisms.secure_sum.variants import normal_window

            question = normal_window(question, first.design(plan))
        terms = first.planned_terms(plan, question) or []
        own = tuple(self.coefficients.values())
        found = {
            label: SummedTerm(place=columns.index(at), column=at, units=units, per=units / own[columns.index(at)])
            for at, label, units in terms
            if at in columns
        }
        for place, variant in enumerate(variants, start=len(columns)):
            for at, label, units in variant.terms_in(question):
                found[label] = SummedTerm(place=place, column=at, units=units, per=units / variant.unit)
        return found

    def answer(
        self,
        plan: StudyPlan,
        tables: ReleasedTables,
        question: Estimand,
        *,
        levels: Mapping[str, Any],
        **origin: Unpack[Origin],
    ) -> list[Estimate]:
        """A site's own answer: of its pilot.

        Args: as of `shared.mechanisms.base.Answering.answer`.
        Raises: EstimateRefusal, as the mechanism of the pilot.
        """
        return self._first(plan).answer(plan, tables, question, levels=levels, **origin)

    def together(
        self, plan: StudyPlan, sites: Mapping[str, ReleasedTables], question: Estimand, *, origins: Mapping[str, Origin]
    ) -> dict[str, list[Estimate]]:
        """The sites' own answers, of their pilots."""
        return self._first(plan).together(plan, sites, question, origins=origins)


def _who(row: TrustRow, sites: int) -> str:
    """Colluding parties of a row, in words.

    >>> [_who(TrustRow(count, 1.0), 6) for count in (0, 1, 3, 5)]
    ['the coordinator', 'the coordinator and 1 site', 'the coordinator and 3 sites', 'the coordinator and all 5 others']
    """
    if not row.colluders:
        return "the coordinator"
    if row.colluders == sites - 1:
        return f"the coordinator and all {row.colluders} others"
    return f"the coordinator and {row.colluders} site{'s' if row.colluders > 1 else ''}"


@lru_cache(maxsize=64)
def _mu(epsilon: float, delta: float) -> float:
    return float(1 / calibration.calibrate(Gaussian, epsilon, delta, sensitivity=1.0).sigma)
