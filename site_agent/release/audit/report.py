"""Results of the attacks on one release, the limits on them, and the sentences about both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shared.errors import AuditRefusal
from shared.plans.plan import Floors
from site_agent.release.audit.rates import Rate, auc_half_width, binomial_rate

__all__ = [
    "EXTREME_SHARE",
    "FALSE_ALARMS",
    "AuditLimits",
    "AuditReport",
    "Excess",
    "LikelihoodAttack",
    "beyond",
    "gate",
]


EXTREME_SHARE = 0.05
"""The records with the largest latent norms that are looked at separately."""
FALSE_ALARMS = 0.01
"""Share of the held-back records that the likelihood-ratio attack may take for members."""
_PROBED_OF_ALL = 0.79  # of all records four fifths are probed, the rest held back


@dataclass(frozen=True, kw_only=True)
class AuditLimits:
    """Highest rates that pass the gate: the plan's floors, tightened by the site. A limit of 1 switches a gate off."""

    membership_auc: float
    own_row_linkage: float
    extreme_linkage: float


@dataclass(frozen=True, kw_only=True)
class LikelihoodAttack:
    """Success of an attacker who knows the site's flow, w and R, and tests each record by its likelihood ratio.

    Attributes:
        auc: members against records held back, ties one half.
        hits: share of members beyond the threshold, with Clopper and Pearson's interval *given that threshold*.
        false_alarms: share of records held back beyond the same threshold: at most 1 %, with the same interval.
        bound: largest hit rate that any attacker of the mechanism can have at 1 % false alarms, given the flow.
        roc: (false alarms, hits) at every threshold, thinned to about a hundred.
        n_members, n_held_back: numbers of records tested.
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
    """Success rate of an attack on a table, and of the same attack on people who are not in it.

    Attributes:
        name: ``singling out, one column``, ``singling out, several columns``, ``linkability``, ``inference of NAME``.
        attack, control: success rates with Clopper and Pearson's intervals; `chance` of the attack is the control.
        excess: attack less control, with Newcombe's interval; 0 if it succeeds no more often than on strangers. Giomi
            et al. divide it by 1 - control.
        n_attack, n_control: number of guesses of each.
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
    """Results of the attacks on one release.

    Attributes:
        membership: AUC in whitened distance.
        membership_plain: AUC in standardised Euclidean distance, the paper's.
        own_row: share of records linked to their own row.
        extreme: the same among the records with the 5 % largest latent norms.
        twin_probability: eq. 22, over all pairs of `n_ranked` records and the others.
        median_rank: eq. 26, over the same records.
        n: records in the release; n_linked: of them in `own_row`, 0 for all. n_fitted, n_held_back: of the membership
            attack. n_extreme: records in `extreme`. Of each at most 10,000, evenly spaced.
        n_ranked: at most 2,000, evenly spaced, because a rank looks at every pair; fewer of many records.
        n_probed: rows of the release that membership, the likelihood ratio and the attacks on tables were tried on.
        likelihood: of an attacker who holds the flow; None where it was not tried.
        tables: attacks on the released table against a control group; inference once for each column.
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
    n_linked: int = 0
    n_probed: int = 0
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
            f"Someone who holds a record finds its own row for {own.value:.1%} of {self.n_linked or self.n:,} records "
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
        if 0 < self.n_probed < _PROBED_OF_ALL * self.n:
            out.append(
                f"Who is behind the rows, what the flow adds and what tables show was tried on a release of "
                f"{self.n_probed:,} records: a patient is one among fewer there, and easier to tell."
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
    linked = report.n_linked or report.n
    for name, best, limit, counted in (
        (
            "membership attack",
            1 - auc_half_width(1.0, 0.0, report.n_fitted, report.n_held_back),
            limits.membership_auc,
            "held",
        ),
        ("linkage attack", binomial_rate(linked, linked, chance=0.0).low, limits.own_row_linkage, "all"),
    ):
        if best <= limit < 1:
            count = f"{report.n_held_back} held-back records" if counted == "held" else f"{linked} records"
            raise AuditRefusal(
                f"the {name} must be able to exceed its limit of {limit:.2f} were every record copied",
                given=f"{count}: too small to tell",
                next_step="Wait for more persons in the table.",
            )
    if found := beyond(report, limits):
        name, rate, limit = max(found, key=lambda item: item[1].low - item[2])
        others = f"; {len(found)} limits are exceeded" if len(found) > 1 else ""
        raise AuditRefusal(
            f"{name} must be at most {limit:.2f}",
            given=f"{rate.value:.2f}, 95 % interval from {_beyond(rate.low, limit)}{others}",
            next_step="Its charge stays. See site-agent curve STUDY for a w at which attacks find less, and ask the "
            "lead to amend the plan to it.",
        )


def beyond(report: AuditReport, limits: AuditLimits) -> list[tuple[str, Rate, float]]:
    """Figures whose whole 95 % interval lies beyond their limit: what each is, the figure, the limit."""
    return [(name, rate, limit) for name, rate, limit in _held_against(report, limits) if rate.low > limit]


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
