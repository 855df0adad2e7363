"""Mechanism spec of latent noise: w and R, and by the posture what the price does and does not cover.

Every plan names this module, and many commands only read their plan: the accountant, the flows and SciPy behind them
take longer to import than all else, and are imported where a figure is worked out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_DOWN, Context
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

from shared.errors import PlanRefusal, SchemaRefusal
from shared.mechanisms.base import Effort, Extent, Facts, MechanismPlan, must, other_record, unit
from shared.privacy.stated import shown_epsilon, shown_price

if TYPE_CHECKING:
    import pandas as pd

    from shared.flows.base import Bijection
    from shared.mechanisms.latent_noise.noise import LatentNoise
    from shared.plans.plan import StudyPlan
    from shared.privacy import accountant as privacy
    from shared.terminal import ChecklistLine

__all__ = ["CONDITIONAL_ON", "FITTED_ON_THE_ROWS", "LatentNoisePlan", "carried_column", "mechanism"]

CONDITIONAL_ON: Mapping[str, str] = {
    "local": "flow, encoder, w and R",
    "holdout": "nothing: the flow was fitted on other persons, who are not covered",
    "public": "nothing: nothing was fitted on records",
    "private": "nothing: the price of fitting the flow is included",
}
"""Conditions of the ε under each posture. Encoder, w and R come from the plan under all four."""
TRAINED_BEFORE = "nothing: the flow was trained with noise, and charged before"
"""The same, where the plan names a flow that several sites have trained."""
TRAINED_EARLIER = "nothing: the flow was trained with noise for an earlier release, and charged then"
"""The same, where the release is drawn through the flow of an earlier one of its site."""
OPEN: Mapping[str, str] = {
    "weight": "A record beyond R keeps less of itself and gets more noise than others, so that the noise of a row "
    "tells how unusual its record is.",
    "rotation": "A record's direction is turned, and its distance from the middle is released as it is, up to R.",
    "matched": "The noise was chosen so that the released rows have the records' own means and covariances in the "
    "flow's space: whoever knows all records but one could work out that one's part in it.",
}
"""`release.vary`, and what a steward is told that it gives away."""
NOTHING_PROMISED = "nothing: no price is stated"
FITTED_ON_THE_ROWS = "The flow, its margins and its stopping point: they were fitted on the released records themselves"
"""Opening words of the sentence on what a release under posture ``local`` does not cover. A ledger's charge is read as
conditional on the flow by these words, so they must not change."""
ALSO_GIVEN = ", and everybody's true "
"""Before the column that a release carries over, in what its price takes as given."""
CARRIED = re.compile(r"The column (.*?): no formal guarantee\.")
"""Sentence on the column of a release that carries one over; the group is the column's name."""
TRAINED_APART = "The training of the flow, which has a price of its own"
"""Opening words of the sentence on the training, of a release through a flow that several sites have trained."""
CHARGED_EARLIER = "The training of the flow, which an earlier release of this study was charged"
"""The same, of a release through the flow of an earlier one."""
_SIX_DIGITS = Context(prec=6, rounding=ROUND_DOWN)


@dataclass(frozen=True, kw_only=True)
class LatentNoisePlan(MechanismPlan):
    """Latent Noise Injection as the plan fixes it: by a weight, or by the ε that one release may cost.

    Args:
        w: weight of the data, in [0, 1).
        epsilon: ε of one release at the budget's δ; w is then solved for (`mechanism`), and under
            posture ``private`` gets what the training leaves. Exactly one of `w` and `epsilon` is given.
        radius: R, the norm to which latents are clipped; None takes the square root of the 0.99 quantile of χ²_d, and
            of the 0.9 quantile where `shrink` is above 1 or `vary` is ``weight``.
        shrink: p, 1 to 8. Above 1 a latent beyond R is pulled further in than to R, to R (R/r)^{p−1}, so that an
            unusual record does not stand out in its released row; the price follows from w and R alone, as before.
        carry: an event or binary column whose true value is released in every row. No guarantee covers it, and the
            receipt says so; posture ``local`` only. Blank for none: every column is drawn through the noise.
        vary: of plans that were signed when noise could depend on the records: ``weight``, ``rotation`` or ``matched``
            (`shared.mechanisms.latent_noise.noise.varied`), with posture ``local`` and no guarantee of any kind. It
            gained nothing over `shrink` (tests/benchmarks/results/extremes.json); no new plan is signed with it.
    """

    w: float | None = None
    epsilon: float | None = None
    radius: float | None = None
    shrink: float = 1.0
    carry: str = ""
    vary: Literal["", "weight", "rotation", "matched"] = ""
    mechanism: Literal["latent_noise"] = "latent_noise"
    title: ClassVar[str] = "latent noise injection"
    draws_rows: ClassVar[bool] = True
    later: ClassVar[tuple[str, ...]] = ("shrink", "carry", "vary")

    @property
    def unseen(self) -> str:
        """As of `MechanismPlan.unseen`."""
        return (
            "An error of the fitted or assumed flow is in every row, and does not fall with the number of patients as "
            "the noise does: at hospitals of many thousand, coefficients of columns with heavy tails may lie outside "
            "their interval (docs/zoo.md)."
        )

    def __post_init__(self) -> None:
        must(self.mechanism == "latent_noise", "release.mechanism must be 'latent_noise'", repr(self.mechanism))
        must((self.w is None) != (self.epsilon is None), "release must give either w or epsilon", self._both)
        if self.w is not None:
            must(0 <= self.w < 1, "release.w must be in [0, 1)", self.w, "Lower w, or give release.epsilon instead.")
        if self.epsilon is not None:
            must(0 < self.epsilon < math.inf, "release.epsilon must be positive and finite", self.epsilon)
        if self.radius is not None:
            must(self.radius > 0 and math.isfinite(self.radius), "release.radius must be positive", self.radius)
        must(1 <= self.shrink <= 8, "release.shrink must be in [1, 8]", self.shrink, "Take 2, or leave it out.")
        must(
            self.vary in ("", *OPEN),
            f"release.vary must be one of {', '.join(OPEN)}, or left out",
            repr(self.vary)[:60],
        )

    def require(self, plan: StudyPlan) -> None:
        """[private] with its posture, and only with it; or in its place a flow that several sites have trained."""
        must(
            (plan.private is not None or (bool(plan.flow) and plan.posture != "local")) == (plan.posture == "private"),
            "[private] must be given with posture 'private', and only with it; or flow in its place",
            f"posture {plan.posture!r}, {'no ' if plan.private is None else ''}[private]",
        )
        must(plan.private is None or not plan.flow, "[private] must not be given with flow", "both")
        if self.carry:
            self._require_carried(plan)
        if self.vary:
            self._require_varied(plan)

    def require_same_noise(self) -> None:
        """Refuse a new plan whose noise depends on the records: one that was signed is worked by as it was."""
        must(
            not self.vary,
            "release.vary must be left out of a new plan: its releases would have no formal guarantee",
            repr(self.vary),
            "Take release.shrink = 3.0, which hides unusual records as well at an ε that holds; for means and "
            "covariances take release.mechanism = 'moments'.",
        )

    def review(self, plan: StudyPlan, signed: MechanismPlan | None = None) -> list[ChecklistLine]:
        """A red line where the plan asks for noise that depends on the records, and its last version did not."""
        from shared.terminal import ChecklistLine

        if isinstance(signed, LatentNoisePlan) and signed.vary == self.vary:
            return []
        try:
            self.require_same_noise()
        except PlanRefusal as refusal:
            return [ChecklistLine.of("guarantee", refusal)]
        return []

    def _require_varied(self, plan: StudyPlan) -> None:
        leave = 'Write posture = "local", or leave release.vary out.'
        must(
            plan.posture == "local",
            "release.vary must be given with posture 'local' only: noise that depends on records keeps no promise",
            f"posture {plan.posture!r}",
            leave,
        )
        must(
            self.w is not None,
            "release.vary must be given with release.w: no ε is stated, and none can be solved from",
            "epsilon",
            "Write w in the place of epsilon.",
        )
        must(
            self.shrink == 1 and not self.carry,
            "release.vary must be given without release.shrink and release.carry",
            f"shrink = {self.shrink:g}, carry = {self.carry[:60]!r}",
        )
        must(
            len(plan.waves) == 1,
            "release.vary must be given with one wave: what several draws tell together nobody has bounded",
            f"{len(plan.waves)} waves",
            "Plan one wave, or leave release.vary out.",
        )
        must(
            not plan.floors.standing,
            "floors.standing must be false with release.vary: a standing approval is good for a price",
            "true",
            "Leave floors.standing out.",
        )
        must(
            self.vary != "rotation" or mechanism(plan).d > 1,
            "release.vary = 'rotation' must have two columns to turn a direction in",
            "one column",
        )

    def _require_carried(self, plan: StudyPlan) -> None:
        must(
            plan.posture == "local",
            "release.carry must be given with posture 'local' only: what is carried over is released without noise, "
            "and the other postures promise that nobody's record is",
            f"posture {plan.posture!r}",
            'Write posture = "local", or leave release.carry out.',
        )
        # The difference of two waves of the same persons would tell who changed, at no ε that anything counts.
        must(
            len(plan.waves) == 1 or not plan.redraws,
            "release.carry must be given with waves that draw nobody again",
            f"returning {plan.returning!r}, {len(plan.waves)} waves",
            'Write returning = "frozen" or "append", plan one wave, or leave release.carry out.',
        )
        must(
            self.w != 0,
            "release.carry must be given with a w above 0: true values in rows at ε = 0 would pass for a release that "
            "costs nothing",
            "w = 0",
            "Raise w, or leave release.carry out.",
        )
        kinds = {column.name: column.kind for column in plan.dictionary.released}
        must(
            kinds.get(self.carry) in ("event", "binary"),
            "release.carry must name a released event or binary column",
            repr(self.carry)[:60],
        )
        must(len(kinds) > 1, "release.carry must leave a column to noise", "one column")
        must(
            plan.training.margins == "normal_scores",
            "training.margins must be 'normal_scores' with release.carry",
            repr(plan.training.margins),
        )

    @property
    def _both(self) -> str:
        return "neither" if self.w is None else f"w = {self.w:g} and epsilon = {self.epsilon}"

    def _flow_alone(self, plan: StudyPlan) -> bool:
        """True if the rows depend on the records only through the flow that was fitted on them."""
        return plan.posture == "local" and self.w == 0 and not self.vary

    def event(self, plan: StudyPlan) -> privacy.Event:
        """Noise on the rows, and the training of the flow where that is priced.

        Of rows from a flow alone that was fitted on their records nothing has a price: the noise is on no record, and
        its ε of 0 would speak of nothing.
        """
        from shared.privacy import accountant as privacy

        if self._flow_alone(plan):
            return privacy.NoGuarantee(of="flow")
        noise: privacy.Event = mechanism(plan).event
        training = _training(plan)
        return noise if training is None else privacy.Composition(events=(training, noise))

    def facts(self, plan: StudyPlan) -> Facts:
        """w, R, and what the posture adds to them."""
        noise = mechanism(plan)
        parameters = {"w": noise.w, "radius": noise.radius}
        if noise.shrink > 1:
            parameters["shrink"] = noise.shrink
        if noise.vary:
            parameters[f"vary_{noise.vary}"] = 1.0
        if plan.training.outcomes == "last":
            parameters["outcomes_last"] = 1.0
        if plan.posture == "holdout":
            parameters["holdout"] = plan.holdout
        if plan.private is not None:
            parameters |= {name: float(value) for name, value in asdict(plan.private).items()}
        return Facts(
            d=noise.d,
            parameters=parameters,
            conditional_on=NOTHING_PROMISED
            if self.vary or self._flow_alone(plan)
            else (TRAINED_BEFORE if _used(plan) else CONDITIONAL_ON[plan.posture]) + self._also_given,
            # DP-SGD adds its noise to sums over persons; latent noise alone is added to each row by itself.
            model="local" if plan.private is None else "central",
            epsilon_paper=_paper(plan, noise),
        )

    @property
    def _also_given(self) -> str:
        return f"{ALSO_GIVEN}{self.carry}" if self.carry else ""

    def covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """By posture: a row given its flow, the released persons, or everybody."""
        person = unit(plan) == "patient"
        record = "one person's record" if person else "one row of the hospital's table"
        everyone = "Every person in the table" if person else "Every row of the hospital's table"
        other = other_record(plan) + (f" with the same {self.carry}" if self.carry else "")
        if self.vary:
            return ("Nothing: there is no formal guarantee for any row.",)
        if self._flow_alone(plan):
            return ("Nothing: no row holds anything but what the flow carries, and nothing bounds that.",)
        promise = (
            f"replacing {record} by {other} changes the probability of any released table by at most the stated (ε, δ)"
        )
        if plan.posture == "local":
            whose = "Each person's released row" if person else "Each released row"
            but = f" but for {self.carry}" if self.carry else ""
            covered = f"{whose}{but}, given the flow, the encoder, the weight w and the clipping radius R: {promise}."
        elif plan.posture == "holdout":
            covered = (
                f"Every person who is released: replacing the record of one of them by {other} changes the "
                "probability of any released table by at most the stated (ε, δ). The flow was fitted on other "
                "persons; the encoder, the weight w and the clipping radius R come from the plan."
            )
        elif plan.posture == "public":
            covered = (
                f"{everyone}: {promise}. The encoder and the flow were made from the dictionary and from figures that "
                "were public before; the weight w and the clipping radius R come from the plan. Nothing was fitted on "
                "a record."
            )
        elif plan.flow:
            covered = (
                f"{everyone}, in the released rows: {promise}, whatever the flow. The flow was trained before by "
                "several sites together, with noise (DP-SGD) from a public start. Each of them charged that training "
                "to every person of its table before the first round: it is in the total of the study that trained, "
                "and not in this price."
            )
        else:
            covered = f"{everyone}, {self._own_training(promise)}"
        if self.shrink > 1:
            covered += (
                " The latents of unusual records, those beyond R, are pulled in towards the middle before the noise "
                f"(shrink {self.shrink:g}); the noise is the same for everybody, and so is the price."
            )
        copied: tuple[str, ...] = ()
        if plan.returning == "frozen" and len(plan.waves) > 1:
            copied = (
                "Rows that are copied from an earlier release of the study: each is that release's row, unchanged. It "
                "was drawn and charged then, and costs nothing more.",
            )
        return (covered, *copied)

    def _own_training(self, promise: str) -> str:
        """Words of the guarantee where the site trains the flow itself with noise (posture ``private``)."""
        return (
            f"in the training of the flow and in the released rows together: {promise}. The flow was trained with "
            "noise (DP-SGD) from a public start, for a number of steps fixed in the plan, and the stated price is that "
            "of the training and of the rows."
        )

    def reused(self, plan: StudyPlan) -> LatentNoisePlan:
        """Posture ``private``: the rows alone, for the flow is the output of a training that was charged already.

        With T the training of the release that fitted it and L the noise on rows, k releases through one flow cost
        T ∘ Lᵏ: each further one reads no record but those that it draws.
        """
        if plan.private is None:
            return self
        return _Reused(**{item.name: getattr(self, item.name) for item in fields(self)})

    def not_covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """Sentences on the parts of the fitting that no noise protects."""
        begun = (
            "The training of the flow at which a site with few records may begin: several sites trained it before, "
            "with noise (DP-SGD), and each charged that to every person of its table. It is in the total of the "
            "study that trained, and not in this price. What is fitted from there on is as the next sentence says.",
        )
        if self.vary:
            who = "Every person" if unit(plan) == "patient" else "Every row"
            return (
                f"{who}: no formal guarantee. {OPEN[self.vary]} So no ε is stated, no total holds this release, and "
                "nothing bounds what it tells of a record.",
                *(begun if plan.flow else ()),
                f"{FITTED_ON_THE_ROWS}, and nothing bounds what they carry about a person. The site audited the "
                "release by the attacks it could try; that is evidence, not a guarantee.",
            )
        if plan.posture == "local":
            carried: tuple[str, ...] = ()
            if self.carry:
                whose = "Every person's" if unit(plan) == "patient" else "Every row's"
                carried = (
                    f"The column {self.carry}: no formal guarantee. {whose} true value of it is carried over to the "
                    "released row as it is, without noise. The stated ε does not speak of it, and no ε would hold "
                    f"for it. Whoever tells which row is whose reads the true {self.carry} there.",
                    f"The number of {'persons' if unit(plan) == 'patient' else 'rows'} with each value of {self.carry}"
                    " is released exactly, of each wave.",
                )
            when = ", of this wave or of the one whose flow is used again" if len(plan.waves) > 1 else ""
            bounded = "not bounded by this ε"
            if self._flow_alone(plan):
                bounded = "bounded by nothing: so no ε is stated of rows from it alone (w = 0), and no total holds them"
            return (
                *carried,
                *(begun if plan.flow else ()),
                f"{FITTED_ON_THE_ROWS}{when} (posture 'local'), and what they carry about a person is {bounded}. The "
                "site audited the release by the attacks it could try; that is evidence, not a guarantee.",
            )
        if plan.posture == "holdout":
            return (
                f"The persons who train the flow, about {100 * plan.holdout:g} % of the table: their records shape the "
                "flow, and no noise is promised to them. Who trains is decided by a keyed hash of the person's "
                "identifier, for life; whoever trains is never released in this study.",
            )
        if plan.posture == "private":
            apart = (
                f"{TRAINED_APART}: a person of a hospital that took part in it has lost what was charged then and what "
                "is charged now, together.",
            )
            return (
                *(apart if plan.flow else ()),
                "Rounding in the arithmetic of the training: its gradients are floating-point numbers. Its noise is "
                "drawn exactly, on a grid, and every gradient is clipped a millionth tighter than the plan says to "
                "leave room for rounding; that the room is enough is our calculation, and nobody else has checked it.",
            )
        return ()

    def extent(self, plan: StudyPlan, n: int) -> Extent:
        """A row per person."""
        return Extent(rows=n, texts=plan.dictionary.widths, numbers=len(plan.dictionary.released))

    def effort(self, plan: StudyPlan, n: int, d: int) -> Effort:
        """As of `MechanismPlan`."""
        # Models of levels grow with the square of the columns, where they are fitted, which under ``local`` the audit
        # does again; beyond 50,000 records a part of them says where to begin, and attacks are tried on that many. What
        # draws and prices a training's noise takes a second and 40 MB.
        n = max(1, round(n * (1 - plan.holdout))) if plan.posture == "holdout" else n
        few, trained = min(n, 50_000), plan.private is not None
        fits = {"local": 2, "holdout": 1}.get(plan.posture, 0)
        rows = fits * (0.4e-6 * few + 0.15e-6 * (n - few)) * d**2 if fits else (7e-6 * few + 3e-6 * (n - few)) * d
        return Effort(
            seconds=1.3 + rows + 2.5e-9 * few * min(n, 15_000) + 0.9 * trained,
            memory_mb=165 + (2.2e-4 * few + 1.5e-4 * (n - few)) * d + 40 * trained,
            bundle_mb=0.03 + 1.5e-6 * n * d,
        )

    def validate(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """The dictionary's columns, types, bounds and levels; one row per person."""
        if len(table) != n:
            raise SchemaRefusal("a release of rows must have one row per person", given=f"{len(table)} rows for {n}")
        plan.dictionary.validate_release(table)

    def details(self, plan: StudyPlan) -> str:
        """w, R, and what is done beyond it."""
        noise = mechanism(plan)
        beyond = f", shrink {noise.shrink:g} beyond it" if noise.shrink > 1 else ""
        carried = f", {self.carry} carried over as it is" if self.carry else ""
        varied = f", noise that depends on records ({self.vary}): no formal guarantee" if self.vary else ""
        return f"w = {noise.w:.4g}, R = {noise.radius:.4g}{beyond}{carried}{varied}"


class _Reused(LatentNoisePlan):
    """A release under posture ``private`` through the flow of an earlier one: see `LatentNoisePlan.reused`."""

    def event(self, plan: StudyPlan) -> privacy.Event:
        """The noise on the rows."""
        return mechanism(plan).event

    def facts(self, plan: StudyPlan) -> Facts:
        """As of the release that fitted the flow; the noise is on each row by itself."""
        return replace(super().facts(plan), conditional_on=TRAINED_EARLIER, model="local")

    def not_covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """The training as well."""
        return (
            f"{CHARGED_EARLIER}: a person of that release has lost what was charged then and what is charged now, "
            "together. The study's total holds both.",
            *super().not_covered(plan),
        )

    def _own_training(self, promise: str) -> str:
        return (
            f"in the released rows: {promise}, whatever the flow. The flow was trained with noise (DP-SGD) for an "
            "earlier release of the study, which was charged that training: it is in the total of the study, and not "
            "in this price."
        )


def mechanism(plan: StudyPlan, flow: Bijection | None = None) -> LatentNoise:
    """The latent noise that a plan prescribes: its w, solved for where the plan gives an ε, and its radius.

    Args:
        flow: between latents and encoded records; None takes a surrogate of the plan's width, which is enough for the
            figures: they depend on neither a flow nor a record.
    Raises: PlanRefusal, if the plan's training leaves nothing of its release.epsilon.
    """
    from shared.flows.base import Identity
    from shared.mechanisms.latent_noise.noise import INSIDE, INSIDE_SHRUNK, LatentNoise, default_radius
    from shared.plans.encoding import Encoder

    if flow is None:
        flow = Identity(d=Encoder(dictionary=plan.dictionary).d)
    release = plan.release
    if not isinstance(release, LatentNoisePlan):
        raise PlanRefusal("release.mechanism must be latent_noise for a flow to be used", given=repr(release.mechanism))
    radius = release.radius
    if radius is None:
        near = release.shrink > 1 or release.vary == "weight"
        radius = default_radius(flow.d - bool(release.carry), inside=INSIDE_SHRUNK if near else INSIDE)
    w = release.w
    if w is None:
        assert release.epsilon is not None
        # To six digits, towards more noise: a solver's last digits differ between machines, and then two would not
        # agree on one receipt.
        w = float(_SIX_DIGITS.create_decimal(_solved(release.epsilon, plan.budget.delta, radius, _training(plan))))
    carried = carried_column(plan)
    return LatentNoise(
        flow=flow,
        w=w,
        radius=radius,
        shrink=release.shrink,
        carried=() if carried is None else (carried,),
        vary=release.vary,
    )


def _used(plan: StudyPlan) -> bool:
    """True if rows are drawn through the flow that the plan names, without further training."""
    return bool(plan.flow) and plan.posture != "local"


def carried_column(plan: StudyPlan) -> int | None:
    """Index of the encoded column that a plan carries over unchanged; None for none."""
    from shared.plans.encoding import Encoder

    name = getattr(plan.release, "carry", "")
    return Encoder(dictionary=plan.dictionary).columns.index(name) if name else None


def _training(plan: StudyPlan) -> privacy.SubsampledGaussian | None:
    """Event of training the flow with DP-SGD; None except under posture ``private``."""
    from shared.privacy import accountant as privacy

    if plan.private is None:
        return None
    return privacy.SubsampledGaussian(
        rate=plan.private.rate, noise_multiplier=plan.private.noise_multiplier, steps=plan.private.steps
    )


@lru_cache(maxsize=64)
def _solved(target: float, delta: float, radius: float, training: privacy.SubsampledGaussian | None) -> float:
    """The largest w (to a tenth of a percent under ``private``, where it has no closed form) that costs `target`."""
    from shared.privacy import accountant as privacy
    from shared.privacy import calibration

    alone = calibration.w_for_epsilon(target, delta, radius)
    if training is None:
        return alone

    def fits(log_share: float) -> bool:
        w = alone * math.exp(log_share)
        noise = privacy.Gaussian(sigma=math.sqrt(1 - w), sensitivity=2 * radius * math.sqrt(w))
        return privacy.epsilon((training, noise), delta) <= target

    low, high = -9.0, 0.0
    if not fits(low):
        raise PlanRefusal(
            f"training must leave something of release.epsilon = {shown_epsilon(target)}",
            given=f"training that costs {shown_price(privacy.epsilon(training, delta), delta=delta)} by itself",
            next_step="Raise private.noise_multiplier, plan fewer steps or a lower rate, or raise release.epsilon.",
        )
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return alone * math.exp(low)


def _paper(plan: StudyPlan, noise: LatentNoise) -> float | None:
    """Theorem 2's ε*, beside the exact one so that readers of the paper find their number; it knows no training."""
    from shared.privacy import calibration

    if plan.posture == "private" or noise.vary or (plan.posture == "local" and noise.w == 0):
        return None
    return calibration.theorem2_epsilon(w=noise.w, C=2 * noise.radius, delta=plan.budget.delta)
