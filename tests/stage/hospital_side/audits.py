"""Reports of an audit, with figures that were made up."""

from __future__ import annotations

from site_agent.release.audit.rates import Rate
from site_agent.release.audit.report import AuditLimits, AuditReport, Excess, LikelihoodAttack


def rate(value, half=0.01):
    return Rate(value=value, low=value - half, high=value + half, chance=0.001)


def report_of(auc=0.5, plain=0.5, own=0.01, extreme=0.05, half=0.01, n=1000, n_held_back=200, **more):
    return AuditReport(
        membership=rate(auc, half),
        membership_plain=rate(plain),
        own_row=rate(own),
        extreme=rate(extreme),
        twin_probability=0.4,
        median_rank=300.0,
        n=n,
        n_fitted=n - n_held_back,
        n_held_back=n_held_back,
        **more,
    )


def full_report():
    def excess(name, a, b):
        found = [Rate(value=v, low=v - 0.01, high=v + 0.01, chance=b) for v in (a, b, a - b)]
        return Excess(name=name, attack=found[0], control=found[1], excess=found[2], n_attack=1500, n_control=200)

    return report_of(
        auc=0.585,
        likelihood=LikelihoodAttack(
            auc=rate(0.62),
            hits=rate(0.041),
            false_alarms=rate(0.01),
            bound=0.9871,
            roc=((0.0, 0.01), (0.5, 0.6), (1.0, 1.0)),
            n_members=800,
            n_held_back=200,
        ),
        tables=(
            excess("singling out, one column", 0.33, 0.31),
            excess("singling out, several columns", 0.09, 0.07),
            excess("linkability", 0.05, 0.049),
            excess("inference of sbp", 0.25, 0.24),
            excess("inference of sex", 0.61, 0.55),
        ),
        limits=AuditLimits(membership_auc=0.58, own_row_linkage=0.05, extreme_linkage=0.20),
    )
