"""CPU seconds for 10,000 meta-analyses of 12 studies in one call, one at a time, and by statsmodels where it is right.

And for 200 of 1,000 studies, and of both beside bare numpy: the formulas of DerSimonian and Laird, or Newton's steps to
the estimate of Paule and Mandel, with the mean and its error, without p values, intervals, I² and the look at the rows.
What is compared with numpy is run in turn.

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
from tests.benchmarks.flow_speed import in_turn

SEED, K = 12, 12
MANY, REPEATS = record.sized((10_000, 5), (100, 1))
LOOPED = record.sized(500, 5)  # one at a time, and scaled up
LARGE, LARGE_K = record.sized((200, 1000), (2, 40))


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


def weighted(y, v, tau2):
    w = 1 / (v + tau2[:, None])
    total = w.sum(axis=1)
    mean = (w * y).sum(axis=1) / total
    return mean, total, w, (w * (y - mean[:, None]) ** 2).sum(axis=1)


def bare_dl(y, v):
    """Mean, standard error and tau2 of each, as one writes them down."""
    _, total, w, q = weighted(y, v, np.zeros(len(y)))
    tau2 = np.maximum(0, (q - (y.shape[1] - 1)) / (total - (w**2).sum(axis=1) / total))
    mean, total, _, _ = weighted(y, v, tau2)
    return mean, 1 / np.sqrt(total), tau2


def bare_pm(y, v):
    """The same of Paule and Mandel, by Newton's steps for all until all stand still."""
    tau2 = np.zeros(len(y))
    for _ in range(100):
        mean, total, w, q = weighted(y, v, tau2)
        step = (q - (y.shape[1] - 1)) / ((w * (y - mean[:, None])) ** 2).sum(axis=1)
        tau2 = np.maximum(0, tau2 + step)
        if (np.abs(step) <= 1e-10 * tau2).all():
            break
    return mean, 1 / np.sqrt(total), tau2


def beside_numpy(analyses, k, rng):
    """CPU seconds of a call, of bare numpy and of statsmodels, in turn; statsmodels' are of some, scaled up.

    Of those whose Q is above its degrees of freedom: elsewhere statsmodels is wrong, and Newton's steps go astray.
    """
    v = rng.uniform(0.01, 0.3, (analyses, k))
    y = rng.normal(0, np.sqrt(v + 0.1))
    right = np.flatnonzero(estimate_tau2(y, v, "DL")[0] > 0)
    y, v = y[right], v[right]
    found = {"analyses": len(right), "studies_each": k}
    for method, bare, theirs in (("DL", bare_dl, "chi2"), ("PM", bare_pm, "iterated")):
        np.testing.assert_allclose(pool_many(y, v, method=method).tau2, bare(y, v)[2], rtol=1e-6, atol=1e-9)
        calls = {
            "ours": lambda method=method: pool_many(y, v, method=method),
            "numpy": lambda bare=bare: bare(y, v),
            "statsmodels": lambda theirs=theirs: statsmodels_fits(y[:LOOPED], v[:LOOPED], theirs),
        }
        seconds = in_turn(calls, REPEATS)
        scale = len(y) / min(len(y), LOOPED)
        seconds["statsmodels"] = {name: spent * scale for name, spent in seconds["statsmodels"].items()}
        found[method] = {
            "seconds": seconds,
            "over_numpy": seconds["ours"]["median"] / seconds["numpy"]["median"],
            "statsmodels_over": seconds["statsmodels"]["median"] / seconds["ours"]["median"],
        }
    return found


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
    sizes = {f"{analyses} of {k}": beside_numpy(analyses, k, rng) for analyses, k in ((MANY, K), (LARGE, LARGE_K))}
    results["beside_numpy"] = sizes
    for size, found in sizes.items():
        for method in ("DL", "PM"):
            one = found[method]
            print(
                f"{size} {method}: {one['over_numpy']:.2f} of numpy, statsmodels {one['statsmodels_over']:.2f} of ours"
            )
    for method, seconds in ours.items():
        print(f"{method:5s} {seconds['median']:.3f} s, a loop takes {results['loop_over_one_call'][method]:.0f} times")
    print(record.write("pooling_speed", results, SEED))


def whole(y, v):
    """Everything a forest plot shows."""
    result = pool(y, v)
    return result.fixed, result.tau2_interval, result.I2_interval, result.prediction_interval, result.sensitivity


if __name__ == "__main__":
    main()
