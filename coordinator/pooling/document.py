"""A pooled result as a document: every row, both models and every derived figure."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from coordinator.pooling.pool import PooledResult
from shared.estimands.effects import shown

__all__ = ["pooled_data"]


def pooled_data(result: PooledResult) -> dict[str, Any]:
    """A pooled result as JSON holds it: every row, both models, every derived figure, and a secure sum beside them."""

    def back(y: float, low: float, high: float) -> dict[str, float]:
        """Estimate and interval on the scale on which they are read."""
        return {name: shown(x, result.scale) for name, x in (("estimate", y), ("ci_lb", low), ("ci_ub", high))}

    def model(fit: PooledResult) -> dict[str, Any]:
        names = ("method", "test", "beta", "se", "zval", "pval", "ci_lb", "ci_ub", "tau2", "I2", "H2", "QE", "QEp")
        untested = {} if fit.compares else {"zval": None, "pval": None}
        return {name: getattr(fit, name) for name in names} | untested | {"shown": back(fit.beta, fit.ci_lb, fit.ci_ub)}

    half = NormalDist().inv_cdf((1 + result.level) / 2)
    shares = result.noise_share
    sources = result.estimates or (None,) * result.k
    rows = []
    for i, source in enumerate(sources):
        y, se = result.yi[i], result.row_errors[i]
        row: dict[str, Any] = {
            "label": result.labels[i],
            "yi": y,
            "vi": result.vi[i],
            "ci_lb": y - half * se,
            "ci_ub": y + half * se,
            "shown": back(y, y - half * se, y + half * se),
        }
        row["weight"] = result.weights[i]
        if source is not None:
            row |= {"n": source.n, "noise_share": shares[i], "receipts": list(source.receipts)}
            row |= {
                name: getattr(source, name) for name in ("vi_sampling", "vi_privacy", "vi_naive", "vi_common", "how")
            }
        rows.append(row)
    beside = {} if result.summed is None else {"summed": result.summed.data(result.scale)}
    return {
        **beside,
        "term": result.term,
        "scale": result.scale,
        "effect": result.effect,
        "level": result.level,
        "k": result.k,
        "rows": rows,
        "pooled": model(result),
        "fixed": model(result.fixed),
        "se_tau2": result.se_tau2,
        "tau2_interval": result.tau2_interval,
        "I2_interval": result.I2_interval,
        "H2_interval": result.H2_interval,
        "sensitivity": [model(row) for row in result.sensitivity],
        "noise_share": result.pooled_noise_share,
        "spread": dict(zip(("hospitals", "releases", "patients"), result.spread, strict=True)),
        "naive": None if result.naive is None else model(result.naive),
        "prediction_interval": result.prediction_interval,
        "excluded": result.excluded,
        "notes": result.notes,
        "doubts": result.doubts,
        "receipts": result.receipts,
    }
