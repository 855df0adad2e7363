"""CPU seconds for 10,000 meta-analyses of 12 studies in one call, one at a time, and by statsmodels where it is right.

python -m tests.benchmarks.pooling_speed
"""

import time

import numpy as np

from coordinator.pooling.diagnostics import influence
from coordinator.pooling.further.many import pool_many
from coordinator.pooling.further.refits import leave_one_out
from coordinator.pooling.heterogeneity import estimate_tau2
from coordinator.pooling.pool import pool
from tests.benchmarks import record

SEED, MANY, K, REPEATS = 12, 10_000, 12, 5
LOOPED = 500  # one at a time, and scaled up


def cpu_seconds(call, scaled_by=1.0, repeats=REPEATS):
    """Smallest, median and largest CPU time of some runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append((time.process_time() - start) * scaled_by)
    times.sort()
    return {"min": times[0], "median": times[repeats // 2], "max": times[-1]}


def one_at_a_time(y, v, method):
    return [pool(y[i], v[i], method=method) for i in range(LOOPED)]


def statsmodels_fits(y, v, method):
    from statsmodels.stats.meta_analysis import combine_effects

    return [combine_effects(a, b, method_re=method, use_t=False) for a, b in zip(y, v, strict=True)]


def main():
    rng = np.random.default_rng(SEED)
    v = rng.uniform(0.01, 0.3, (MANY, K))
    y = rng.normal(0, np.sqrt(v + 0.1))
    # statsmodels leaves a negative tau2 as it is, so only analyses with Q above its degrees of freedom are timed.
    right = np.flatnonzero(estimate_tau2(y, v, "DL")[0] > 0)[:LOOPED]
    ours, loop = {}, {}
    for method in ("FE", "DL", "REML", "PM"):
        ours[method] = cpu_seconds(lambda method=method: pool_many(y, v, method=method))
        loop[method] = cpu_seconds(lambda method=method: one_at_a_time(y, v, method), MANY / LOOPED, 3)
    theirs = {"DL": cpu_seconds(lambda: statsmodels_fits(y[right], v[right], "chi2"), MANY / len(right), 3)}
    theirs["PM"] = cpu_seconds(lambda: statsmodels_fits(y[right], v[right], "iterated"), MANY / len(right), 3)
    ten = pool(y[0, :10], v[0, :10])
    results = {
        "analyses": MANY,
        "studies_each": K,
        "unit": "CPU seconds for all analyses; loops are measured on some and scaled up",
        "looped_on": LOOPED,
        "statsmodels_on": len(right),
        "one_call": ours,
        "loop": loop,
        "statsmodels": theirs,
        "loop_over_one_call": {m: loop[m]["median"] / ours[m]["median"] for m in ours},
        "statsmodels_over_one_call": {m: theirs[m]["median"] / ours[m]["median"] for m in theirs},
        "ten_studies_milliseconds": {
            "forest_plot_numbers": cpu_seconds(lambda: whole(y[0, :10], v[0, :10]), 1000, 21),
            "leave_one_out_and_influence": cpu_seconds(lambda: (leave_one_out(ten), influence(ten)), 1000, 21),
        },
    }
    for method, seconds in ours.items():
        print(f"{method:5s} {seconds['median']:.3f} s, a loop takes {results['loop_over_one_call'][method]:.0f} times")
    print(record.write("pooling_speed", results, SEED))


def whole(y, v):
    """Everything a forest plot shows."""
    result = pool(y, v)
    return result.fixed, result.tau2_interval, result.I2_interval, result.prediction_interval, result.sensitivity


if __name__ == "__main__":
    main()
