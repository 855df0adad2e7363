"""Attacks we tried on a release, at the site, before anyone is asked to approve it.

An audit is evidence, never a guarantee: it says how well these attacks did, with intervals, and nothing about better
ones. Its values are computed from records, stay at the site, and are never on a receipt; that a release passed is
visible by its delivery and is listed there as not covered.

The paper's rule alone is not enough. At w = 0.8, five columns and 2,500 records its membership attack scores an AUC of
0.52 and would pass, while the nearest released row is the record's own for one record in seven. So both are gates.

======================  ========================================================================================
membership AUC          score min_j |x - x̃_j|; records the flow was fitted on against records held back
                        (eq. 24-25; ties count one half), in whitened and in standardised distance
own-row linkage         share of records whose nearest released row is their own; also among the 5 % most extreme
twin probability        chance that another record is nearer than one's own released row (eq. 22)
median rank             other records nearer than one's own released row, the median (eq. 26)
likelihood ratio        score log mean_j N(y_j; √w clip(z), (1−w)I) / N(y_j; 0, I) of the release's latents y: the
                        attacker holds the site's own flow, w and R; AUC, and hits at 1 % false alarms
singling out            predicates on one or several columns, built from the release, that fit exactly one record
linkability             two halves of a person's columns lead to the same released rows
inference               a secret column is guessed from the released row nearest in all the others
======================  ========================================================================================

The last three come from Giomi et al. (2023), who attack a table and its control: a guess that succeeds as often on
persons who are not in the release says what patients are like, and nothing about who was there. What counts is the
excess over the control.

An attacker sees decoded values. The fractions and fills that encoding drew are nobody's knowledge, so every attack
here works on values, or on codes that are a function of values (`seen`, `recoded`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats
from scipy.linalg import solve_triangular
from scipy.spatial import cKDTree

from shared.base.randomness import Noise
from shared.errors import AuditRefusal, ParameterError
from shared.flows.base import Bijection
from shared.mechanisms.latent_noise.noise import LatentNoise
from shared.plans.dictionary import NUMERIC, Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.plan import Floors

__all__ = [
    "AuditLimits",
    "AuditReport",
    "Excess",
    "LikelihoodAttack",
    "Rate",
    "attack",
    "gate",
    "latents_of",
    "likelihood_attack",
    "likelihood_ratios",
    "linkage",
    "membership_auc",
    "rate",
    "recoded",
    "run_audit",
    "seen",
    "signals",
    "table_attacks",
    "trade_off",
    "weighed",
    "whitening",
]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

EXTREME_SHARE = 0.05
"""The records with the largest latent norms that are looked at separately."""
FALSE_ALARMS = 0.01
"""Share of the held-back records that the likelihood-ratio attack may take for members."""
PREDICATES = 500
"""Predicates tried in each singling-out attack."""
PREDICATE_COLUMNS = (3, 6)
"""Fewest and most columns of a predicate on several; which and how many is drawn for each."""
NEIGHBOURS = 5
"""Released rows that either half of a person's columns may lead to."""
NEAR_ENOUGH = 0.05
"""A number is guessed right within this share of its column's public range."""
MOST_TARGETS = 2000
_MOST_PAIRS = 8_000_000
_MOST_RATIOS = 40_000_000


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A measured rate with its 95 % interval and what chance alone would give."""

    value: float
    low: float
    high: float
    chance: float


@dataclass(frozen=True, kw_only=True)
class AuditLimits:
    """Highest rates that pass the gate: the plan's floors, tightened by the site. A limit of 1 switches a gate off."""

    membership_auc: float
    own_row_linkage: float
    extreme_linkage: float


@dataclass(frozen=True, kw_only=True)
class LikelihoodAttack:
    """What an attacker achieves who holds the site's own flow, w and R, and weighs a record against chance.

    Attributes:
        auc: members against records held back, ties one half.
        hits: members recognised at the threshold, with Clopper and Pearson's interval *given that threshold*.
        false_alarms: records held back beyond the same threshold: at most 1 % of them, with the same interval.
        bound: most hits that any attacker of the mechanism can have at 1 % false alarms, given the flow.
        roc: (false alarms, hits) at every threshold, thinned to about a hundred.
        n_members, n_held_back: candidates weighed.
    """

    auc: Rate
    hits: Rate
    false_alarms: Rate
    bound: float
    roc: tuple[tuple[float, float], ...]
    n_members: int
    n_held_back: int


@dataclass(frozen=True, kw_only=True)
class Excess:
    """How often an attack on a table succeeds, and how often the same attack succeeds on people who are not in it.

    Attributes:
        name: ``singling out, one column``, ``singling out, several columns``, ``linkability``, ``inference of NAME``.
        attack, control: success rates with Clopper and Pearson's intervals; `chance` of the attack is the control.
        excess: attack less control, with Newcombe's interval; 0 is what an attack on a stranger gives. Giomi et al.
            divide it by 1 - control.
        n_attack, n_control: guesses of each.
    """

    name: str
    attack: Rate
    control: Rate
    excess: Rate
    n_attack: int
    n_control: int

    def sentence(self, what: str) -> str:
        """One line for a steward."""
        e = self.excess
        return (
            f"{what}: {self.attack.value:.1%} of {self.n_attack:,} tries, against {self.control.value:.1%} for people "
            f"who are not in it; difference {100 * e.value:+.1f} points ({100 * e.low:+.1f} to {100 * e.high:+.1f})."
        )


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What the attacks achieved on one release.

    Attributes:
        membership: AUC in whitened distance.
        membership_plain: AUC in standardised Euclidean distance, the paper's.
        own_row: share of records linked to their own row.
        extreme: the same among the records with the 5 % largest latent norms.
        twin_probability: eq. 22, over all pairs of `n_ranked` records and the others.
        median_rank: eq. 26, over the same records.
        n: records in the release; n_fitted, n_held_back: of the membership attack.
        n_extreme: records in `extreme`; n_ranked: at most 2,000, evenly spaced, because a rank looks at every pair.
        likelihood: of an attacker who holds the flow; None where it was not tried.
        tables: attacks on the released table against a control group; inference once for each column.
        limits: those in force.
    """

    membership: Rate
    membership_plain: Rate
    own_row: Rate
    extreme: Rate
    twin_probability: float
    median_rank: float
    n: int
    n_fitted: int
    n_held_back: int
    n_extreme: int = 0
    n_ranked: int = 0
    likelihood: LikelihoodAttack | None = None
    tables: tuple[Excess, ...] = ()
    limits: AuditLimits | None = None

    def to_canonical(self) -> dict[str, Any]:
        """Plain values for a JSON file that stays at the site."""
        return asdict(self)

    @classmethod
    def from_canonical(cls, given: Mapping[str, Any]) -> AuditReport:
        """Read what `to_canonical` wrote."""
        values: dict[str, Any] = {name: given[name] for name in cls.__dataclass_fields__ if name in given}
        for name in ("membership", "membership_plain", "own_row", "extreme"):
            values[name] = Rate(**values[name])
        if values.get("likelihood"):
            found = _rates(values["likelihood"])
            found["roc"] = tuple((float(a), float(b)) for a, b in found["roc"])
            values["likelihood"] = LikelihoodAttack(**found)
        values["tables"] = tuple(Excess(**_rates(one)) for one in values.get("tables", ()))
        if values.get("limits"):
            values["limits"] = AuditLimits(**values["limits"])
        return cls(**values)

    def sentences(self) -> tuple[str, ...]:
        """The report for a steward, in words."""
        m, own, extreme = self.membership, self.own_row, self.extreme
        out = [
            f"Attacks we tried on {self.n:,} released rows; others may do better. Low figures are evidence, "
            "not a promise.",
            f"Telling who is behind the rows and who is not: AUC {m.value:.2f} (95 % interval {m.low:.2f} to "
            f"{m.high:.2f}); "
            "0.50 is guessing.",
            f"Someone who holds a record finds its own row for {own.value:.1%} of records "
            f"({own.low:.1%} to {own.high:.1%}; guessing finds {own.chance:.2%}).",
            f"Among the {EXTREME_SHARE:.0%} most unusual records: {extreme.value:.0%} "
            f"({extreme.low:.0%} to {extreme.high:.0%}).",
            f"For the median of {self.n_ranked or self.n:,} records {self.median_rank:,.0f} others are nearer than its "
            f"own released row; for a random pair the chance is {self.twin_probability:.1%}.",
        ]
        if self.likelihood is not None:
            a = self.likelihood
            out.append(
                f"Someone who also holds the flow, w and R: AUC {a.auc.value:.2f} ({a.auc.low:.2f} to "
                f"{a.auc.high:.2f}); with {a.false_alarms.value:.1%} false alarms it recognises {a.hits.value:.1%} "
                f"of patients ({a.hits.low:.1%} to {a.hits.high:.1%}). Weighed: {a.n_members:,} members, "
                f"{a.n_held_back:,} held back. {_bound_in_words(a.bound)}"
            )
        named = {one.name: one for one in self.tables}
        for name, what in (
            ("singling out, one column", "A rule on one column that fits exactly one patient"),
            ("singling out, several columns", "A rule on several columns that fits exactly one patient"),
            ("linkability", "Two halves of a patient's columns joined through the released rows"),
        ):
            if name in named:
                out.append(named[name].sentence(what))
        guessed = [one for one in self.tables if one.name.startswith("inference of ")]
        if guessed:
            worst = max(guessed, key=lambda one: one.excess.value)
            out.append(
                worst.sentence(f"Guessing one column from all others, worst of {len(guessed)}, {worst.name[13:]}")
            )
        return (*out, *self._limit_sentences())

    def _limit_sentences(self) -> Iterator[str]:
        if self.limits is None:
            return
        usual, now = Floors(), self.limits
        yield (
            f"Limits in force: AUC {now.membership_auc:.2f}, own row {now.own_row_linkage:.0%}, among the most unusual "
            f"{now.extreme_linkage:.0%}. A release is refused when the whole 95 % interval of a figure is beyond it."
        )
        loose = [name for name, limit in asdict(now).items() if limit > getattr(usual, name)]
        if loose:
            yield (
                "The plan allows more than usual (AUC "
                f"{usual.membership_auc:.2f}, own row {usual.own_row_linkage:.0%}, most unusual "
                f"{usual.extreme_linkage:.0%})."
            )
        off = [_GATES[name] for name, limit in asdict(now).items() if limit >= 1]
        if off:
            yield f"The plan switches these gates off: {', '.join(off)}."
        above = [name for name, rate, limit in _held_against(self, now) if rate.value > limit >= rate.low]
        if above:
            yield f"Above the limit, but within chance of it: {', '.join(above)}."


def _bound_in_words(bound: float) -> str:
    if bound >= 0.9995:
        return "The mechanism alone keeps no attacker from recognising practically every patient."
    return (
        f"Given the flow, the mechanism keeps every attacker to whom the flow itself tells nothing to {bound:.1%} at "
        "1 % false alarms."
    )


def _rates(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: Rate(**value) if isinstance(value, Mapping) else value for name, value in given.items()}


_GATES = {
    "membership_auc": "membership AUC",
    "own_row_linkage": "own-row linkage",
    "extreme_linkage": "own-row linkage of the most extreme 5 %",
}


def attack(
    *,
    x: Array,
    released: Array,
    latents: Array,
    fitted_on: Array,
    held_back: Array,
    probe: Array,
    mechanism: LatentNoise,
    encoder: Encoder,
    limits: AuditLimits | None,
    rng: Noise,
) -> AuditReport:
    """Every attack on one release; it refuses nothing (`gate` does).

    Args:
        x, released, latents, fitted_on, held_back, probe: as in `run_audit`.
        mechanism: the one that drew `probe`, whose flow was fitted on `fitted_on`.
        encoder: of the study; attacks see what it decodes.
        limits: those in force, for the report; None where none refuses anything.
        rng: draws samples, halves of columns and predicates from its generator; the same state and arrays give the
            same report.
    """
    from dataclasses import replace

    draws = rng.generator
    report = run_audit(
        x=x,
        released=released,
        latents=latents,
        fitted_on=fitted_on,
        held_back=held_back,
        probe=probe,
        view=seen(encoder),
    )
    codes = recoded(encoder)
    members, others = (_sample(rows, _MOST_RATIOS // (2 * len(probe)), draws) for rows in (fitted_on, held_back))
    return replace(
        report,
        likelihood=weighed(
            mechanism, members=codes(members), held_back=codes(others), released=codes(probe), bounded=True
        ),
        tables=table_attacks(
            members=encoder.decode(fitted_on),
            held_back=encoder.decode(held_back),
            released=encoder.decode(probe),
            dictionary=encoder.dictionary,
            draws=draws,
        ),
        limits=limits,
    )


def run_audit(
    *,
    x: Array,
    released: Array,
    latents: Array,
    fitted_on: Array,
    held_back: Array,
    probe: Array,
    view: Callable[[Array], Array] | None = None,
) -> AuditReport:
    """Attack a release.

    Args:
        x: (n, d) encoded records of the release.
        released: (n, d) its rows before shuffling: row i belongs to record i.
        latents: (n, …) f⁻¹(x) of the noised columns, for finding the most extreme records.
        fitted_on: (n1, d) records that a second flow was fitted on, for the membership attack.
        held_back: (n0, d) records that it never saw.
        probe: (n1, d) a release of `fitted_on` by that flow.
        view: what an attacker sees of encoded rows, (n, d) to (n, k); `seen(encoder)`. None compares encoded rows,
            and then the fractions and fills that an encoder draws at random link rows that nobody could link.
    Raises: ParameterError, if shapes disagree.
    """
    d = x.shape[1]
    shapes_fit = released.shape == x.shape and len(latents) == len(x) and probe.shape == fitted_on.shape
    if not shapes_fit or held_back.shape[1] != d or len(held_back) < 2 or len(x) < 2:
        raise ParameterError("records, their release and the held-back records must fit together", given=f"d = {d}")
    if view is not None:
        x, released, fitted_on, held_back, probe = (view(rows) for rows in (x, released, fitted_on, held_back, probe))
    whiten, standardise = whitening(x), _standardising(x)
    flags = linkage(whiten(x), whiten(released))
    norms = np.linalg.norm(latents, axis=1)
    extreme = norms >= np.quantile(norms, 1 - EXTREME_SHARE)
    ranked = np.linspace(0, len(x) - 1, min(len(x), MOST_TARGETS)).astype(int)
    twin, rank = _twins(whiten(x), whiten(released), ranked)
    return AuditReport(
        membership=membership_auc(whiten(fitted_on), whiten(held_back), whiten(probe)),
        membership_plain=membership_auc(standardise(fitted_on), standardise(held_back), standardise(probe)),
        own_row=rate(flags, chance=1 / len(x)),
        extreme=rate(flags[extreme], chance=1 / len(x)),
        twin_probability=twin,
        median_rank=rank,
        n=len(x),
        n_fitted=len(fitted_on),
        n_held_back=len(held_back),
        n_extreme=int(extreme.sum()),
        n_ranked=len(ranked),
    )


def seen(encoder: Encoder) -> Callable[[Array], Array]:
    """What an attacker sees of encoded rows: decoded values, no fractions of levels, no fills of missing values.

    Numeric columns become their values, a missing one the middle of its bounds and an indicator; ordered levels and
    events become their place, nominal levels an indicator for each but the first.

    >>> from shared.plans.dictionary import Column, Dictionary
    >>> from shared.plans.encoding import Encoder
    >>> columns = (Column(name="cvd", kind="event"), Column(name="visits", kind="integer", lower=2, upper=9))
    >>> seen(Encoder(dictionary=Dictionary(name="mini", version=1, columns=columns)))(np.array([[1.7, 3.2]]))
    array([[1., 5.]])
    """

    def view(rows: Array) -> Array:
        table = encoder.decode(rows)
        out: list[Array] = []
        for column in encoder.dictionary.released:
            place = _places(column, table)
            absent = np.isnan(place)
            if column.kind in NUMERIC:
                out.append(np.where(absent, sum(column.span) / 2, place))
                if column.missing == "level":
                    out.append(absent.astype(np.float64))
                continue
            place = np.where(absent, float(len(column.levels)), place)
            if column.kind == "nominal":
                out += [(place == k).astype(np.float64) for k in range(1, len(column.levels) + 1)]
            else:
                out.append(place)
        return np.column_stack(out)

    return view


def recoded(encoder: Encoder) -> Callable[[Array], Array]:
    """Encoded rows as someone would encode them who sees the decoded table: every level in the middle of its place.

    A flow needs codes, and the true fractions are nobody's knowledge.

    >>> from shared.plans.dictionary import Column, Dictionary
    >>> from shared.plans.encoding import Encoder
    >>> columns = (Column(name="cvd", kind="event"), Column(name="visits", kind="integer", lower=2, upper=9))
    >>> recoded(Encoder(dictionary=Dictionary(name="mini", version=1, columns=columns)))(np.array([[1.7, 3.2]]))
    array([[1.5, 3.5]])
    """

    def recode(rows: Array) -> Array:
        table = encoder.decode(rows)
        exact = pd.DataFrame({c.name: _places(c, table) for c in encoder.dictionary.released})
        out = encoder.encode(exact, _Middle())  # type: ignore[arg-type]
        return np.asarray(out, dtype=np.float64)

    return recode


class _Middle:
    """In the place of a source of randomness: every uniform draw is the middle of its range."""

    @property
    def generator(self) -> _Middle:
        return self

    def random(self, n: int) -> Array:
        return np.full(n, 0.5)

    def uniform(self, low: float, high: float, n: int) -> Array:
        return np.full(n, (low + high) / 2)


def _places(column: Column, table: pd.DataFrame) -> Array:
    """A decoded column as numbers, (n,): its values, or the places of its levels; NaN where missing."""
    values = table[column.name]
    if column.kind in NUMERIC:
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    place = np.full(len(values), np.nan)
    for k, level in enumerate(column.levels):
        place[(values == level).fillna(False).to_numpy(dtype=bool)] = k
    return place


# -- the gate ---------------------------------------------------------------------------------------------------
def gate(report: AuditReport, limits: AuditLimits) -> None:
    """Refuse a release on which an attack does better than the limits allow, or on which too little can be told.

    A refused draw stays charged, so a refusal must not be an accident: a figure is refused when its *whole* 95 %
    interval lies beyond the limit. A release whose true figures are within the limits is then refused in about one
    run in forty at worst for each figure, whatever the number of records. The other side of the rule: a sample is too
    small to tell when even an attack that succeeded on every record would not be refused. Linkage and membership are
    each held to that, because a weight of 1 shows in the first and a flow that memorised its records only in the
    second; the handful of extreme records is not.

    Raises: AuditRefusal.
    """
    for name, best, limit, counted in (
        (
            "membership attack",
            1 - _auc_half_width(1.0, 0.0, report.n_fitted, report.n_held_back),
            limits.membership_auc,
            "held",
        ),
        ("linkage attack", _share(report.n, report.n, chance=0.0).low, limits.own_row_linkage, "all"),
    ):
        if best <= limit < 1:
            count = f"{report.n_held_back} held-back records" if counted == "held" else f"{report.n} records"
            raise AuditRefusal(
                f"the {name} must be able to exceed its limit of {limit:.2f} were every record copied",
                given=f"{count}: too small to tell",
                next_step="Wait for more persons in the table.",
            )
    beyond = [(name, rate, limit) for name, rate, limit in _held_against(report, limits) if rate.low > limit]
    if beyond:
        name, rate, limit = max(beyond, key=lambda item: item[1].low - item[2])
        others = f"; {len(beyond)} limits are exceeded" if len(beyond) > 1 else ""
        raise AuditRefusal(
            f"{name} must be at most {limit:.2f}",
            given=f"{rate.value:.2f}, 95 % interval from {_beyond(rate.low, limit)}{others}",
            next_step="Ask the study lead for a smaller w.",
        )


def _held_against(report: AuditReport, limits: AuditLimits) -> tuple[tuple[str, Rate, float], ...]:
    return (
        ("membership AUC", report.membership, limits.membership_auc),
        ("membership AUC (standardised distance)", report.membership_plain, limits.membership_auc),
        ("own-row linkage", report.own_row, limits.own_row_linkage),
        ("own-row linkage of the most extreme 5 %", report.extreme, limits.extreme_linkage),
    )


def _beyond(value: float, limit: float) -> str:
    """The value with as many digits as show that it is beyond the limit.

    >>> _beyond(0.71, 0.60), _beyond(0.6004, 0.60)
    ('0.71', '0.6004')
    """
    return next(text for k in range(2, 18) if float(text := f"{value:.{k}f}") > limit)


def membership_auc(inside: Array, outside: Array, release: Array) -> Rate:
    """AUC of "the nearest released row is nearer for records the flow was fitted on", ties one half.

    Args:
        inside: (n1, d) records the flow was fitted on; outside: (n0, d) records held back; release: (n1, d).
    Returns: the AUC with DeLong's interval; chance is 0.5.
    Source: latent-noise-injection, eq. 24-25; DeLong, DeLong and Clarke-Pearson (1988).

    >>> rng = np.random.default_rng(1)
    >>> a, b = rng.normal(size=(300, 2)), rng.normal(size=(100, 2))
    >>> membership_auc(a, b, a).value
    1.0
    """
    tree = cKDTree(release)
    return _auc(-tree.query(inside)[0], -tree.query(outside)[0])


def _auc(inside: Array, outside: Array) -> Rate:
    """AUC of scores that are larger for members, (n1,) and (n0,), with DeLong's interval."""
    n1, n0 = len(inside), len(outside)
    ranks = stats.rankdata(np.concatenate([inside, outside]))
    # Share of outside scores that are smaller, for each inside one, and the reverse (ties one half).
    above = (ranks[:n1] - stats.rankdata(inside)) / n0
    below = 1 - (ranks[n1:] - stats.rankdata(outside)) / n1
    auc = float(above.mean())
    variance = float(above.var(ddof=1) / n1 + below.var(ddof=1) / n0)
    half = _auc_half_width(auc, variance, n1, n0)
    return Rate(value=auc, low=max(0.0, auc - half), high=min(1.0, auc + half), chance=0.5)


def _auc_half_width(auc: float, variance: float, n1: int, n0: int) -> float:
    """Of the 95 % interval."""
    if auc in (0.0, 1.0):
        # Perfect separation has a variance of 0. It is no surer than that many successes in a row, one for each
        # record of the smaller group: Clopper and Pearson's bound.
        return float(1 - 0.025 ** (1 / min(n1, n0)))
    # All scores equal give 0 as well; half a discordant pair is the least that can be told apart.
    return float(stats.norm.ppf(0.975)) * math.sqrt(max(variance, 1 / (12 * n1 * n0)))


def linkage(x: Array, released: Array) -> NDArray[np.bool_]:
    """For each record: is its nearest released row its own? Ties count for the attacker.

    Args:
        x, released: (n, d), row i of one belonging to row i of the other.
    """
    nearest = cKDTree(released).query(x)[0]
    own = np.linalg.norm(x - released, axis=1)
    return np.asarray(own <= nearest * (1 + 1e-12))


def _twins(x: Array, released: Array, ranked: NDArray[np.int_]) -> tuple[float, float]:
    """Twin probability (eq. 22) and median rank (eq. 26) of the records at `ranked`."""
    own = np.linalg.norm(x[ranked] - released[ranked], axis=1)
    closer = cKDTree(x).query_ball_point(x[ranked], np.nextafter(own, 0), return_length=True) - 1  # not oneself
    closer = np.maximum(closer, 0)
    return float(closer.mean() / (len(x) - 1)), float(np.median(closer))


def rate(flags: Flags, *, chance: float) -> Rate:
    """A share with its Clopper-Pearson interval."""
    return _share(int(flags.sum()), len(flags), chance=chance)


def _share(k: int, n: int, *, chance: float, level: float = 0.95) -> Rate:
    """k of n with Clopper and Pearson's interval; of none, nothing is known."""
    tail = (1 - level) / 2
    low = float(special.betaincinv(k, n - k + 1, tail)) if k else 0.0
    high = float(special.betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return Rate(value=k / n if n else 0.0, low=low, high=high, chance=chance)


def whitening(x: Array) -> Any:
    """Map to coordinates in which x has unit covariance; a ridge keeps a constant column harmless."""
    mean = x.mean(axis=0)
    covariance = np.atleast_2d(np.cov(x, rowvar=False, bias=True))
    scale = np.where(np.diag(covariance) > 0, np.diag(covariance), 1.0)
    factor = np.linalg.cholesky(covariance + np.diag(1e-9 * scale))
    return lambda values: solve_triangular(factor, (values - mean).T, lower=True).T


def _standardising(x: Array) -> Any:
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return lambda values: (values - mean) / scale


# -- who holds the flow ------------------------------------------------------------------------------------------
def weighed(
    mechanism: LatentNoise, *, members: Array, held_back: Array, released: Array, bounded: bool = False
) -> LikelihoodAttack:
    """`likelihood_attack` by somebody who knows everything about a mechanism but its noise.

    Args:
        members, held_back, released: (n, d) rows as they are seen, encoded (`recoded`).
        bounded: whether the report says what no attacker could exceed.
    """
    flow, carried = mechanism.flow, mechanism.carried
    others = [j for j in range(flow.d) if j not in carried]
    (inside, own_w), (outside, their_w) = (_centred(mechanism, rows, others) for rows in (members, held_back))
    y = mechanism.unrestored(latents_of(flow, released)[:, others])
    # What is carried over is seen as it is: a record can only be behind a row that has its own.
    own, theirs, there = (np.floor(rows[:, list(carried)]) for rows in (members, held_back, released))
    ratios = [np.full(len(signal), -np.inf) for signal in (inside, outside)]
    for level in np.unique(there, axis=0) if carried else there[:1]:
        rows = y[(there == level).all(axis=1)]
        for ratio, signal, w, given in zip(ratios, (inside, outside), (own_w, their_w), (own, theirs), strict=True):
            here = (given == level).all(axis=1)
            ratio[here] = likelihood_ratios(signal[here], rows, w=w if isinstance(w, float) else w[here])
    promised = bounded and not carried and not mechanism.vary
    return _attacked(*ratios, bound=trade_off(mechanism.plain_event.mu, FALSE_ALARMS) if promised else 1.0)


def _centred(mechanism: LatentNoise, rows: Array, others: Sequence[int]) -> tuple[Array, float | Array]:
    """Where the release of each row is centred in latents, (n, d), and 1 − the variance of its noise.

    Of a turned direction to first order: noise of a row at distance r has r²/d times the variance of others.
    """
    w = mechanism.w
    if not mechanism.vary:
        how: dict[str, float] = {"w": w, "radius": mechanism.radius, "shrink": mechanism.shrink}
        return signals(mechanism.flow, rows, **how, others=others), w
    z = latents_of(mechanism.flow, rows)[:, list(others)]
    norm = np.linalg.norm(z, axis=1)
    inside = np.minimum(1.0, mechanism.radius / np.where(norm > 0, norm, 1.0))
    if mechanism.vary == "weight":
        weight = w * inside**4
        return np.sqrt(weight)[:, None] * z, weight
    signal = math.sqrt(w) * inside[:, None] * z
    if mechanism.vary == "rotation":
        # Never quite without noise, or a record in the middle would have a density of its own.
        return signal, 1 - (1 - w) * np.maximum((norm * inside) ** 2 / z.shape[1], 1e-3)
    return signal, w


def signals(
    flow: Bijection,
    rows: Array,
    *,
    w: float,
    radius: float,
    shrink: float = 1.0,
    others: Sequence[int] | None = None,
) -> Array:
    """√w a(|z|) z with z = f⁻¹(x), (n, d): where the release of each row is centred; of the columns `others` alone."""
    z = latents_of(flow, rows)
    z = z if others is None else z[:, list(others)]
    norm = np.linalg.norm(z, axis=1, keepdims=True)
    return np.asarray(math.sqrt(w) * z * np.minimum(1.0, radius / np.where(norm > 0, norm, 1.0)) ** shrink)


def latents_of(flow: Bijection, rows: Array) -> Array:
    """f⁻¹ of rows, (n, d), finite whatever the rows are."""
    with np.errstate(all="ignore"):
        z = np.asarray(flow.inverse(rows), dtype=np.float64)
    # A row that the flow cannot place is the centre; far out a latent only needs its direction.
    return np.clip(np.where(np.isnan(z).any(axis=1, keepdims=True), 0.0, z), -1e3, 1e3)


def likelihood_ratios(candidates: Array, released: Array, *, w: float | Array) -> Array:
    r"""How much likelier a release is with a candidate in it than without, as a logarithm, (k,).

    .. math:: \log \frac1n \sum_j \frac{N(y_j; s, (1-w) I)}{N(y_j; 0, I)}

    Args:
        candidates: (k, d) signals s of the candidates.
        released: (n, d) latents y of the released rows, in any order.
        w: weight of the data, in [0, 1); or (k,) 1 − the variance of the noise of each candidate.

    By Neyman and Pearson's lemma no test is better when the other rows are draws from the flow and the candidate's
    place is unknown.

    >>> likelihood_ratios(np.zeros((1, 2)), np.ones((5, 2)), w=0.0)
    array([0.])
    """
    if isinstance(w, float) and not w:
        return np.zeros(len(candidates))
    variance = np.broadcast_to(1 - np.asarray(w, dtype=np.float64), len(candidates))
    square = (released**2).sum(axis=1)
    out = np.empty(len(candidates))
    step = max(1, 2_000_000 // len(released))
    for at in range(0, len(candidates), step):
        s, v = candidates[at : at + step], variance[at : at + step, None]
        terms = (s @ released.T) / v + square * (0.5 - 0.5 / v)
        out[at : at + step] = special.logsumexp(terms, axis=1) - (s**2).sum(axis=1) / (2 * v[:, 0])
    return out - 0.5 * released.shape[1] * np.log(variance) - math.log(len(released))


def likelihood_attack(
    *, members: Array, held_back: Array, released: Array, w: float, bound: float = 1.0
) -> LikelihoodAttack:
    """Weigh members and records held back by `likelihood_ratios`, and call the highest ones members.

    The threshold is the lowest at which at most 1 % of the records held back raise a false alarm; with fewer than a
    hundred of them none may.

    Args:
        members, held_back: (n1, d) and (n0, d) signals.
        released: (n, d) latents of the released rows.
        bound: of `trade_off`, for the report.
    """
    inside, outside = (likelihood_ratios(s, released, w=w) for s in (members, held_back))
    return _attacked(inside, outside, bound=bound)


def _attacked(inside: Array, outside: Array, *, bound: float) -> LikelihoodAttack:
    """How well members (n1,) and records held back (n0,) are told apart by their likelihood ratios."""
    n1, n0 = len(inside), len(outside)
    threshold = np.sort(outside)[-1 - int(FALSE_ALARMS * n0)]
    return LikelihoodAttack(
        auc=_auc(inside, outside),
        hits=_share(int((inside > threshold).sum()), n1, chance=FALSE_ALARMS),
        false_alarms=_share(int((outside > threshold).sum()), n0, chance=FALSE_ALARMS),
        bound=bound,
        roc=_roc(inside, outside),
        n_members=n1,
        n_held_back=n0,
    )


def _roc(inside: Array, outside: Array) -> tuple[tuple[float, float], ...]:
    """(false alarms, hits) from (0, 0) to (1, 1) over every threshold among the records held back, thinned."""
    thresholds = np.sort(outside)[::-1]
    if len(thresholds) > 100:
        # Even steps of the logarithm: the corner that matters is where nearly nobody is falsely accused.
        thresholds = thresholds[np.unique(np.geomspace(1, len(thresholds), 100).astype(int) - 1)]
    ordered_in, ordered_out = np.sort(inside), np.sort(outside)
    alarms = 1 - np.searchsorted(ordered_out, thresholds, side="right") / len(outside)
    hits = 1 - np.searchsorted(ordered_in, thresholds, side="right") / len(inside)
    return tuple(dict.fromkeys([*((float(a), float(h)) for a, h in zip(alarms, hits, strict=True)), (1.0, 1.0)]))


def trade_off(mu: float, false_alarms: float) -> float:
    """Most hits that any attacker of a μ-Gaussian-DP mechanism can have at a rate of false alarms.

    Source: Dong, Roth & Su (2022), eq. 6.

    >>> round(trade_off(1.0, 0.01), 3)
    0.092
    """
    return float(special.ndtr(special.ndtri(false_alarms) + mu))


# -- attacks on a table, against a control group -------------------------------------------------------------------
def table_attacks(
    *,
    members: pd.DataFrame,
    held_back: pd.DataFrame,
    released: pd.DataFrame,
    dictionary: Dictionary,
    draws: np.random.Generator,
) -> tuple[Excess, ...]:
    """Singling out, linkability and the inference of every column, each against records that were held back.

    Args:
        members: (n1, columns) records whose release is attacked.
        held_back: (n0, columns) records that had no part in it.
        released: (n, columns) the release, in any order.
        dictionary: its released columns are compared, missing values as a value of their own.
        draws: chooses which records, predicates and halves of columns are tried, at most 2,000 of each.
    Returns: one `Excess` per attack; attacks that a table does not allow (one column only, no predicate that singles
        anybody out) are left out. Intervals of the columns' inference hold for all columns together (Bonferroni).
    Source: Giomi, Boenisch, Wehmeyer & Tasnádi (2023), A unified framework for quantifying privacy risk in synthetic
        data. Written from the paper's definitions; sizes are made equal instead of being corrected for.
    """
    columns = dictionary.released
    inside, outside, table = ([_places(c, part) for c in columns] for part in (members, held_back, released))
    out: list[Excess] = []
    size = min(len(members), len(held_back), MOST_TARGETS)
    # How often a rule fits exactly one record depends on how many there are.
    one = draws.permutation(len(members))[:size], draws.permutation(len(held_back))[:size]
    same = [v[one[0]] for v in inside], [v[one[1]] for v in outside]
    for name, predicates in (
        ("singling out, one column", _univariate(columns, table, draws)),
        ("singling out, several columns", _multivariate(columns, table, draws)),
    ):
        if predicates:
            hit = [np.array([_matches(p, part).sum() == 1 for p in predicates]) for part in same]
            out.append(_excess(name, hit[0], hit[1]))
    if len(columns) < 2:
        return tuple(out)
    most = min(MOST_TARGETS, max(100, _MOST_PAIRS // len(released)))
    flags = []
    for part, n in ((inside, len(members)), (outside, len(held_back))):
        chosen = draws.permutation(n)[:most]
        flags.append(_neighbours(columns, [v[chosen] for v in part], table, draws))
    out.append(_excess("linkability", flags[0][0], flags[1][0]))
    level = 1 - 0.05 / len(columns)
    for k, column in enumerate(columns):
        out.append(_excess(f"inference of {column.name}", flags[0][1][:, k], flags[1][1][:, k], level=level))
    return tuple(out)


_Predicate = tuple[tuple[int, str, float], ...]
"""Conditions (column, how to compare, with what) that must all hold; NaN compares with missing."""


def _univariate(columns: Sequence[Column], table: Sequence[Array], draws: np.random.Generator) -> list[_Predicate]:
    """Values that one released row has, and the ends of numeric columns."""
    found: list[_Predicate] = []
    for j, (column, values) in enumerate(zip(columns, table, strict=True)):
        distinct, count = np.unique(values, return_counts=True, equal_nan=True)
        found += [((j, "=", float(v)),) for v in distinct[count == 1]]
        present = values[~np.isnan(values)]
        if column.kind in NUMERIC and len(present):
            found += [((j, "<=", float(present.min())),), ((j, ">=", float(present.max())),)]
    return [found[i] for i in draws.permutation(len(found))[:PREDICATES]]


def _multivariate(columns: Sequence[Column], table: Sequence[Array], draws: np.random.Generator) -> list[_Predicate]:
    """What one released row has and no other: levels equal, numbers at least as far from the middle."""
    if len(columns) < 2:
        return []
    least, most = (min(width, len(columns)) for width in PREDICATE_COLUMNS)
    middle = [
        float(np.nanmedian(v)) if c.kind in NUMERIC and not np.isnan(v).all() else math.nan
        for c, v in zip(columns, table, strict=True)
    ]
    found: dict[_Predicate, None] = {}
    for _ in range(4 * PREDICATES):
        if len(found) == PREDICATES:
            break
        row = int(draws.integers(len(table[0])))
        chosen = sorted(int(j) for j in draws.permutation(len(columns))[: int(draws.integers(least, most + 1))])
        parts = []
        for j in chosen:
            value = float(table[j][row])
            how = "=" if columns[j].kind not in NUMERIC or math.isnan(value) else ">=" if value > middle[j] else "<="
            parts.append((j, how, value))
        if _matches(tuple(parts), table).sum() == 1:
            found[tuple(parts)] = None
    return list(found)


def _matches(predicate: _Predicate, table: Sequence[Array]) -> Flags:
    out = np.ones(len(table[0]), dtype=bool)
    for j, how, value in predicate:
        v = table[j]
        if math.isnan(value):
            out &= np.isnan(v)
        else:
            out &= v == value if how == "=" else v <= value if how == "<=" else v >= value
    return out


def _neighbours(
    columns: Sequence[Column], targets: Sequence[Array], table: Sequence[Array], draws: np.random.Generator
) -> tuple[Flags, Flags]:
    """For each target: do two halves of its columns lead to one released row, (k,); is each column guessed, (k, c).

    Distances are Gower's: the share of the public range between numbers, 1 between levels and from a missing value.
    """
    n, c = len(targets[0]), len(columns)
    linked, guessed = np.zeros(n, dtype=bool), np.zeros((n, c), dtype=bool)
    k = min(NEIGHBOURS, len(table[0]))
    for rows in np.array_split(np.arange(n), max(1, n // 64)):
        if not len(rows):
            continue
        apart = [_gower(column, v[rows], t) for column, v, t in zip(columns, targets, table, strict=True)]
        total = np.sum(apart, axis=0)
        half = draws.permutation(c)[: c // 2]
        one = np.sum([apart[j] for j in half], axis=0)
        near = [np.argpartition(part, k - 1, axis=1)[:, :k] for part in (one, total - one)]
        linked[rows] = (near[0][:, :, None] == near[1][:, None, :]).any(axis=(1, 2))
        for j, column in enumerate(columns):
            best = np.argmin(total - apart[j], axis=1)
            guess, truth = table[j][best], targets[j][rows]
            reach = NEAR_ENOUGH * (column.span[1] - column.span[0]) if column.kind in NUMERIC else 0.0
            guessed[rows, j] = (np.abs(guess - truth) <= reach) | (np.isnan(guess) & np.isnan(truth))
    return linked, guessed


def _gower(column: Column, targets: Array, table: Array) -> NDArray[np.float32]:
    """Distances in one column, (k, n)."""
    a, b = targets.astype(np.float32)[:, None], table.astype(np.float32)
    if column.kind in NUMERIC:
        out = np.abs(a - b) / np.float32(column.span[1] - column.span[0])
    else:
        out = (a != b).astype(np.float32)
    missing_a, missing_b = np.isnan(a), np.isnan(b)
    if missing_a.any() or missing_b.any():
        out = np.where(missing_a | missing_b, np.float32(1), out)
        out[missing_a & missing_b] = 0
    return np.asarray(out, dtype=np.float32)


def _excess(name: str, attack: Flags, control: Flags, *, level: float = 0.95) -> Excess:
    a, b = int(attack.sum()), int(control.sum())
    n, m = len(attack), len(control)
    p, q = a / n, b / m
    (l1, u1), (l2, u2) = _wilson(a, n, level), _wilson(b, m, level)
    return Excess(
        name=name,
        attack=_share(a, n, chance=q, level=level),
        control=_share(b, m, chance=q, level=level),
        excess=Rate(
            value=p - q,
            low=p - q - math.hypot(p - l1, u2 - q),
            high=p - q + math.hypot(u1 - p, q - l2),
            chance=0.0,
        ),
        n_attack=n,
        n_control=m,
    )


def _wilson(k: int, n: int, level: float) -> tuple[float, float]:
    """Wilson's interval: of two of them Newcombe (1998, method 10) makes one for a difference."""
    z = float(stats.norm.ppf(0.5 + level / 2))
    p = k / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def _sample(rows: Array, most: int, draws: np.random.Generator) -> Array:
    return rows if len(rows) <= most else rows[np.sort(draws.permutation(len(rows))[:most])]
