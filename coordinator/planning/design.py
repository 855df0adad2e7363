"""Design by accuracy: the least ε, over mechanisms and waves, at which a study's pooled interval is narrow enough.

A first answer comes from two made-up sites and one ε per mechanism; it is refined where it matters, at the ε that it
found, with more sites, until nothing moves or the time is up. What was simulated is kept in a file, line by line: the
next run takes it up, and another target over the same study needs nothing new.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coordinator.planning.predicted import (
    COVERED,
    SETTINGS,
    UNKNOWN,
    Setting,
    SiteVariance,
    half_width,
    plainly,
    plan_of,
    power,
    records,
    simulated,
)
from coordinator.planning.price import MANY, cost
from shared import software_version
from shared.base.canonical import canonical_json, sha256_hex
from shared.errors import ParameterError
from shared.privacy.composition import total_of_gaussians
from shared.privacy.stated import shown_epsilon

if TYPE_CHECKING:
    from coordinator.planning.published import Published
    from shared.estimands.questions import Estimand
    from shared.plans.plan import StudyPlan

__all__ = ["FrontierPoint", "PlanDesign", "Simulations", "Target", "designed", "written"]

Covered = Literal["everyone", "released", "given_flow"]
SEED = 20260105
FIRST_SITES, MORE_SITES = 2, 8
"""Sites that are made up for the first answer, and for the refined one."""
_NEAR = 2**0.5
"""An ε this near to a simulated one is read off it."""
_LEAST = 1 / 64
"""Least ε that is searched, as a share of the largest."""
_GRID = 13
"""Points of a curve, from the largest ε down to `_LEAST` of it, each a √2 below the last."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Target of a design: the precision or power wanted of one pooled answer, and the sites that contribute to it.

    Args:
        question: name of the planned question. term: which of its terms; the first one if blank.
        half_width: of its interval, on the analysis scale; None where a power is wanted.
        effect, power: the true effect, on the analysis scale, and the probability that the interval excludes no effect.
        sites: K. persons: of an average site in its first wave. later: new persons of a later wave.
        most: the largest ε that one person may be charged.
        covered: the least coverage of ε, a key of `COVERED`.
    """

    question: str
    term: str = ""
    half_width: float | None = None
    effect: float | None = None
    power: float = 0.8
    sites: int
    persons: int
    later: int = 0
    most: float
    covered: Covered = "everyone"
    level: float = 0.95

    def __post_init__(self) -> None:
        if (self.half_width is None) == (self.effect is None):
            raise ParameterError("a design must have either a half-width or an effect", given="both or neither")
        for name in ("half_width", "effect"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and (value > 0 or (name == "effect" and value))):
                raise ParameterError(f"{name} must be above 0 on the analysis scale", given=f"{value}")
        if not 0.05 < self.power < 1:
            raise ParameterError("power must be above 0.05 and below 1", given=f"{self.power}")
        if not (1 <= self.sites <= 1000 and 50 <= self.persons <= 10_000_000 and self.later >= 0):
            given = f"{self.sites} sites, {self.persons} persons, {self.later} later"
            raise ParameterError("sites must be in 1..1000, persons in 50..10000000, later 0 or more", given=given)
        if not 0 < self.most <= 100:
            raise ParameterError("the largest ε must be above 0 and at most 100", given=f"{self.most}")

    @property
    def wanted(self) -> float:
        """The half-width that is needed: as given, or the widest with which the power is reached."""
        if self.half_width is not None:
            return self.half_width
        assert self.effect is not None
        low, high = abs(self.effect) / 100, abs(self.effect) * 20
        for _ in range(50):
            middle = math.sqrt(low * high)
            reached = power(self.effect, middle, sites=self.sites, level=self.level) >= self.power
            low, high = (middle, high) if reached else (low, middle)
        return low


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """One way to release and what it buys.

    Args:
        epsilon: of one release of one person. total: charged to a person for all waves.
        half_width: of the pooled interval after all waves, analysis scale. power: None without an effect.
        wave: the first wave after which the target is met; 0 for none.
        covered: coverage of ε, in words.
    """

    setting: str
    epsilon: float
    total: float
    half_width: float
    power: float | None
    wave: int
    covered: str


@dataclass(frozen=True, kw_only=True)
class PlanDesign:
    """The frontier of a study, and what is recommended.

    Args:
        wanted: half-width on the analysis scale. scale: of the analysis.
        points: the curve of each setting, ε falling.
        least: setting to the point of the least ε at which the target is met.
        without: setting to why it has none; those that cannot be predicted among them.
        recommended: the point to take, of what covers enough; None where no setting reaches the target.
        others: further questions that the recommended plan answers, to their half-width (None: not known).
        stage: ``first`` or ``refined``.
        best: half-width that no ε can undercut (records themselves, pooled); tells whether more persons are needed.
    """

    study: str
    question: str
    term: str
    scale: str
    wanted: float
    points: tuple[FrontierPoint, ...]
    least: Mapping[str, FrontierPoint]
    without: Mapping[str, str]
    recommended: FrontierPoint | None
    others: Mapping[str, float | None]
    stage: str
    best: float | None
    sites: int
    persons: int
    waves: int


class Simulations:
    """Site variances that were simulated, kept in a file of one JSON line each; a torn last line is left out.

    Args:
        path: the file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, dict[str, SiteVariance]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    read = json.loads(line)
                    self._known[read["key"]] = {term: _read(one) for term, one in read["found"].items()}
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue

    def __call__(self, key: str, work: Callable[[], dict[str, SiteVariance]]) -> dict[str, SiteVariance]:
        """Variances cached under `key`, else the result of `work`, which is added to the cache and its file."""
        if key not in self._known:
            self._known[key] = work()
            if self._path is not None:
                kept = {
                    term: {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(one).items()}
                    for term, one in self._known[key].items()
                }
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "found": kept}) + "\n")
        return self._known[key]

    def __contains__(self, key: str) -> bool:
        return key in self._known


def _read(one: Mapping[str, Any]) -> SiteVariance:
    given: dict[str, Any] = {name: math.nan if value is None else value for name, value in one.items()}
    return SiteVariance(**given | {"unlike": tuple(given["unlike"])})


class _Study:
    """One study's settings, and what was simulated of them."""

    def __init__(self, plan: StudyPlan, target: Target, published: Published, known: Simulations) -> None:
        from shared.estimands.questions import parse_estimand

        if target.question not in plan.estimands:
            given = ", ".join(plan.estimands) or "none"
            raise ParameterError("the question must be planned", given=target.question, next_step=f"Planned: {given}.")
        if plan.dictionary.repeated is not None:
            raise ParameterError(
                "a study that is simulated must have one row of a person",
                given=plan.dictionary.repeated.words,
                next_step="Plan it without [dictionary.repeated] to see what noise costs; see coordinator plan cost.",
            )
        estimands = {name: plainly(formula, plan.dictionary) for name, formula in plan.estimands.items()}
        plan = replace(plan, estimands=estimands)
        self.plan, self.target, self.published, self.known = plan, target, published, known
        self.question: Estimand = parse_estimand(plan.estimands[target.question])
        inside = set(self.question.columns)
        same = {
            name: formula
            for name, formula in plan.estimands.items()
            if name != target.question and set(parse_estimand(formula).columns) <= inside
        }
        self.questions = {target.question: plan.estimands[target.question], **same}
        self.found: dict[str, list[dict[str, SiteVariance]]] = {name: [] for name in SETTINGS}
        self.most_sites: dict[tuple[str, float], int] = {}
        self.term = target.term

    def key(self, setting: Setting, sites: int) -> str:
        """The name of a simulation: everything it depends on."""
        parts = {
            "software": software_version(),
            "dictionary": self.plan.dictionary.hash,
            "delta": self.plan.budget.delta,
            "holdout": self.plan.holdout,
            "questions": dict(self.questions),
            "published": hashlib.sha256(repr(self.published).encode()).hexdigest(),
            "setting": [setting.name, setting.epsilon],
            "persons": self.target.persons,
            "sites": sites,
        }
        return sha256_hex(canonical_json(parts))

    def run(self, setting: Setting, sites: int, progress: Callable[[str], None]) -> None:
        """Simulate a setting, or read it where it is known."""
        key, began = self.key(setting, sites), time.monotonic()
        kept = key in self.known

        def work() -> dict[str, SiteVariance]:
            n = self.target.persons
            return simulated(self.plan, setting, self.questions, self.published, n=n, sites=sites, seed=SEED)

        found = self.known(key, work)
        self.found[setting.name] = [
            one for one in self.found[setting.name] if _epsilon(one) != setting.epsilon or not one
        ] + [found]
        self.most_sites[setting.name, setting.epsilon] = sites
        how = "read from the file" if kept else f"{time.monotonic() - began:.1f} s"
        progress(
            f"{setting.name} at ε {shown_epsilon(setting.epsilon)}: {sites} sites of {self.target.persons:,} ({how})"
        )
        if not self.term:
            labels = [at.split(": ", 1)[1] for at in found if at.startswith(f"{self.target.question}: ")]
            self.term = next((label for label in labels if label), "")

    def nearest(self, name: str, epsilon: float) -> dict[str, SiteVariance] | None:
        """The simulation of a setting whose ε is nearest."""
        have = [one for one in self.found[name] if one]
        return min(have, key=lambda one: abs(math.log(_epsilon(one)) - math.log(epsilon)), default=None)

    def half(self, name: str, epsilon: float, wave: int, at: str = "") -> float:
        """Half-width after a wave; not a number where there is none."""
        found = self.nearest(name, epsilon)
        one = (found or {}).get(at or f"{self.target.question}: {self.term}")
        if one is None or one.lost:
            return math.nan
        target = self.target
        sizes = [target.persons, *([target.later] * (wave - 1) if target.later else [])]
        if self.plan.redraws or not one.sums:
            variance, common = one.at(sum(sizes), epsilon)
        else:
            common = one.common
            variance = 1 / sum(1 / one.at(size, epsilon)[0] for size in sizes)
        between = self.published.between
        unlike = one.unlike
        return half_width(variance, common, sites=target.sites, between=between, level=target.level, unlike=unlike)

    def waves(self) -> int:
        """Waves that bring somebody new; one, where none does."""
        return len(self.plan.waves) if self.target.later else 1

    def point(self, name: str, epsilon: float) -> FrontierPoint | None:
        """Frontier point of a setting at an ε; None where it has no answer, or the budget does not afford it."""
        half = self.half(name, epsilon, self.waves())
        if math.isnan(half):
            return None
        effect = self.target.effect
        wanted = self.target.wanted
        reached = next((w for w in range(1, self.waves() + 1) if self.half(name, epsilon, w) <= wanted), 0)
        return FrontierPoint(
            setting=name,
            epsilon=epsilon,
            total=_total(self.plan, epsilon),
            half_width=half,
            power=None if effect is None else power(effect, half, sites=self.target.sites, level=self.target.level),
            wave=reached,
            covered=COVERED[SETTINGS[name]],
        )

    @cached_property
    def largest(self) -> float:
        """The largest ε of one release that a person may be charged in every wave that draws them."""
        most = self.target.most
        low, high = most / 1000, most
        for _ in range(20):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if _total(self.plan, middle) <= most else (low, middle)
        return math.floor(low * 1000) / 1000

    def least(self, name: str) -> FrontierPoint | None:
        """The point of the least ε at which the target is met."""
        high = self.largest
        low = high * _LEAST
        wanted, waves = self.target.wanted, self.waves()
        if not self.half(name, high, waves) <= wanted:
            return None
        if not self.half(name, low, waves) <= wanted:
            while high / low > 1.005:
                middle = math.sqrt(low * high)
                low, high = (low, middle) if self.half(name, middle, waves) <= wanted else (middle, high)
        else:
            high = low
        return self.point(name, _rounded(high, self.largest))


def _epsilon(found: Mapping[str, SiteVariance]) -> float:
    return next(iter(found.values())).epsilon


def _rounded(value: float, most: float) -> float:
    """Up, to three digits: what a plan can say, and no less than was needed."""
    digits = 2 - math.floor(math.log10(value))
    return min(math.ceil(value * 10**digits - 1e-9) / 10**digits, most)


def _total(plan: StudyPlan, epsilon: float) -> float:
    """Charged to a person for all waves by releases of this ε: one Gaussian mechanism each, as a ledger composes it."""
    return total_of_gaussians(len(plan.waves) if plan.redraws else 1, epsilon, plan.budget.delta)


def designed(
    plan: StudyPlan,
    target: Target,
    published: Published,
    *,
    known: Simulations | None = None,
    seconds: float = 110.0,
    first: Callable[[PlanDesign], None] | None = None,
    progress: Callable[[str], None] = lambda words: None,
) -> PlanDesign:
    """The frontier of a study and its recommendation.

    Args:
        known: earlier simulations; this run adds to them.
        seconds: wall time after which nothing further is simulated; 0 for the first answer alone.
        first: called with the first answer as soon as there is one.
        progress: called with a line on each simulation.
    Raises: ParameterError: a question that is not planned, or a target outside its bounds.
    """
    study = _Study(plan, target, published, known or Simulations(None))
    began = time.monotonic()
    for name in SETTINGS:
        study.run(Setting(name=name, epsilon=_rounded(study.largest / 4, study.largest)), FIRST_SITES, progress)
    answer = _design(study, "first")
    if first is not None:
        first(answer)
    many, stage = min(MORE_SITES, max(target.sites, FIRST_SITES)), "first"
    while time.monotonic() - began < seconds:
        todo = _worth(study, many)
        if todo is None:
            break
        study.run(todo, many, progress)
        stage = "refined"
    return _design(study, stage)


def _worth(study: _Study, sites: int) -> Setting | None:
    """The next simulation that may move the answer; None where nothing does."""
    for name in SETTINGS:
        nearest = study.nearest(name, study.largest)
        if nearest is None or all(one.lost for one in nearest.values()):
            continue
        least = study.least(name)
        epsilon = study.largest if least is None else least.epsilon
        near = study.nearest(name, epsilon)
        at = study.largest if near is None else _epsilon(near)
        apart = abs(math.log(at) - math.log(epsilon))
        if apart > math.log(_NEAR):
            return Setting(name=name, epsilon=_rounded(epsilon, study.largest))
        if study.most_sites[name, at] < sites:
            return Setting(name=name, epsilon=at)
    return None


def _design(study: _Study, stage: str) -> PlanDesign:
    target, largest = study.target, study.largest
    points, least, without = [], {}, dict(UNKNOWN)
    for name in SETTINGS:
        curve = [study.point(name, largest / _NEAR**k) for k in range(_GRID)]
        points += [point for point in curve if point is not None]
        found = study.least(name)
        if found is not None:
            least[name] = found
        elif curve[0] is not None:
            without[name] = f"half-width {curve[0].half_width:.3g} even at ε {shown_epsilon(largest)}"
        else:
            first = study.nearest(name, largest) or {}
            lost = next((one.lost for one in first.values() if one.lost), "it does not answer this question")
            without[name] = lost
    enough = list(COVERED)[: list(COVERED).index(target.covered) + 1]
    ranked = sorted(
        (point for name, point in least.items() if SETTINGS[name] in enough),
        key=lambda point: (enough.index(SETTINGS[point.setting]), point.total, point.wave),
    )
    recommended = ranked[0] if ranked else None
    others: dict[str, float | None] = {}
    if recommended is not None:
        found_at = study.nearest(recommended.setting, recommended.epsilon) or {}
        for at in found_at:
            if at != f"{target.question}: {study.term}":
                half = study.half(recommended.setting, recommended.epsilon, study.waves(), at)
                others[at] = None if math.isnan(half) else half
    return PlanDesign(
        study=study.plan.study,
        question=target.question,
        term=study.term,
        scale=study.question.scale,
        wanted=target.wanted,
        points=tuple(points),
        least=least,
        without=without,
        recommended=recommended,
        others=others,
        stage=stage,
        best=_best(study),
        sites=target.sites,
        persons=target.persons,
        waves=study.waves(),
    )


def _best(study: _Study) -> float | None:
    """Half-width that the patients alone give, without noise or fit: what no ε undercuts."""
    found = study.nearest("latent_noise_local", study.largest)
    one = (found or {}).get(f"{study.target.question}: {study.term}")
    if one is None or one.lost:
        return None
    target = study.target
    persons = target.persons + target.later * (study.waves() - 1)
    alone = records(study.plan, study.questions, study.published, n=target.persons, seed=SEED)
    variance = alone.get(f"{target.question}: {study.term}", math.nan) * target.persons / persons
    if math.isnan(variance):
        return None
    return half_width(variance, 0.0, sites=target.sites, between=study.published.between, level=target.level)


def written(plan: StudyPlan, target: Target, point: FrontierPoint) -> StudyPlan:
    """The plan of a recommendation: its release, posture, columns, expected size, and the budget it needs.

    Raises: PlanRefusal.
    """
    from shared.estimands.questions import parse_estimand
    from shared.plans.plan import Expected

    inside = set(parse_estimand(plan.estimands[target.question]).columns)
    kept = {
        name: formula
        for name, formula in plan.estimands.items()
        if name == target.question or set(parse_estimand(formula).columns) <= inside
    }
    first = {target.question: plan.estimands[target.question], **kept}
    setting = Setting(name=point.setting, epsilon=point.epsilon)
    if setting.rows:
        first = dict(plan.estimands)
    first = {name: plainly(formula, plan.dictionary) for name, formula in first.items()}
    changed = plan_of(plan, setting, first)
    needed = (
        math.ceil(cost(replace(changed, budget=replace(plan.budget, epsilon=float(MANY)))).waves[-1].total * 100) / 100
    )
    return replace(
        changed,
        budget=replace(plan.budget, epsilon=needed),
        expected=Expected(sites=target.sites, persons=target.persons),
    )
