"""Simulation 3.1.2 of the paper, Figures 5 to 9: the pooled slope of X2 of ten studies, released against real.

python -m tests.benchmarks.lni_312 [--repetitions 500] [--attacks 100] [--folder build/lni_312] [--draw]

A folder keeps every repetition, so that a run that was stopped goes on. ``--draw`` only draws the figures again.

python -m tests.benchmarks.lni_312 --oracles 500

puts the same tables and noise through flows without error: the true law, and the Gaussian of maximum likelihood.
"""

import math
import time

import numpy as np

from shared.base.randomness import seeded_rng
from shared.flows.affine import AffineAutoregressiveFlow
from shared.mechanisms.latent_noise.noise import LatentNoise
from site_agent.models.flow import FlowSettings, fit_flow
from tests.benchmarks import record
from tests.benchmarks.lni_repeat import (
    NONE,
    OURS,
    PAPER,
    REAL,
    Common,
    asked,
    attacked,
    dersimonian_laird,
    distance,
    finish,
    forest,
    matched,
    measured,
    part,
    repeated,
    roc,
    sheet,
)
from tests.benchmarks.paper.studies import known_studies, linear_studies

SEED = 312
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
EPOCHS = record.sized(FlowSettings().epochs, 1)
# The paper's architecture and split; margins are left to the flow, as there.
SETTINGS = {
    "paper": FlowSettings(flows=2, hidden=32, validation=0.3, margins="none", epochs=EPOCHS),
    "default": FlowSettings(epochs=EPOCHS),
}
# Not clipped: the comparison is with the paper's figures, and the radius would be part of the difference.
RADIUS = 30.0
# Mean distances in the text of 3.1.2, B = 500.
TO_REAL = {0.0: 0.0089, 0.8: 0.0042}
TO_TRUTH = {0.0: 0.0111, 0.8: 0.0080, 1.0: 0.0067}


def slope(table) -> tuple[float, float]:
    """Least squares: the slope of X2 and its variance."""
    x = np.column_stack([np.ones(len(table)), table[:, :4]])
    inverse = np.linalg.inv(x.T @ x)
    beta = inverse @ (x.T @ table[:, 4])
    sigma2 = ((table[:, 4] - x @ beta) ** 2).sum() / (len(table) - 5)
    return float(beta[2]), float(sigma2 * inverse[2, 2])


def one(b, attacks):
    """Ten studies, a flow each, the same noise at every w. The paper's settings are attacked in the first draws."""
    draws = np.random.default_rng([SEED, b])
    both = [np.split(rows, 2) for rows in linear_studies(draws, copies=2)]
    tables, fresh = [pair[0] for pair in both], [pair[1] for pair in both]
    noise = [draws.standard_normal(table.shape) for table in tables]
    sites = [slope(table) for table in tables]
    out = {"n": [len(table) for table in tables], "real": dersimonian_laird(sites), "sites": sites, "matched": []}
    for name, settings in SETTINGS.items():
        rng = seeded_rng(1000 * SEED + b)
        began = time.process_time()
        fitted = [fit_flow(table, settings, rng) for table in tables]
        told = {"fit_seconds": time.process_time() - began, "left": sum(f.epochs > 0 for f in fitted)}
        told |= {"pooled": [], "sites": {}, "auc": [], "hits": {}}
        for w in WEIGHTS:
            released = [
                LatentNoise(flow=f.flow, w=w, radius=RADIUS).release(table, Common(z))
                for f, table, z in zip(fitted, tables, noise, strict=True)
            ]
            slopes = [slope(rows) for rows in released]
            told["pooled"].append(dersimonian_laird(slopes))
            if name == "paper" and b < attacks:
                found = [attacked(*three) for three in zip(tables, fresh, released, strict=True)]
                told["auc"].append([auc for auc, _ in found])
                if b == 0:
                    told["hits"][f"w={w:g}"] = [hits for _, hits in found]
            if b == 0:
                told["sites"][f"w={w:g}"] = slopes
            if name == "paper" and w in TO_REAL:
                released = [
                    LatentNoise(flow=f.flow, w=w, radius=RADIUS).release(
                        table, Common(matched(f.flow.inverse(table), z))
                    )
                    for f, table, z in zip(fitted, tables, noise, strict=True)
                ]
                out["matched"].append(dersimonian_laird([slope(rows) for rows in released]))
        out[name] = told
    return out


def true_law(beta):
    """The flow of a study's own law: X standard normal, Y = β₀ + β X + ε with ε of variance 0.5."""
    scale = np.eye(5)
    scale[4] = [*beta[1:], math.sqrt(0.5)]
    return AffineAutoregressiveFlow(mean=np.array([0, 0, 0, 0, beta[0]]), scale=scale)


def gaussian(table):
    """The flow of maximum likelihood in the right family: nothing is left to be learned but what the sample hides."""
    return AffineAutoregressiveFlow(mean=table.mean(axis=0), scale=np.linalg.cholesky(np.cov(table.T, ddof=0)))


def one_oracle(b):
    """The tables and the noise of `one`, through flows that nobody had to train."""
    draws = np.random.default_rng([SEED, b])
    both = [(beta, np.split(rows, 2)[0]) for beta, rows in known_studies(draws, copies=2)]
    noise = [draws.standard_normal(table.shape) for _, table in both]
    sites = [slope(table) for _, table in both]
    real = dersimonian_laird(sites)[0]
    out = {"sites": sites}
    for name, flow in (("true law", lambda beta, _: true_law(beta)), ("maximum likelihood", lambda _, t: gaussian(t))):
        flows = [flow(beta, table) for beta, table in both]
        out[name] = []
        for w in TO_REAL:
            released = [
                LatentNoise(flow=f, w=w, radius=RADIUS).release(table, Common(z))
                for f, (_, table), z in zip(flows, both, noise, strict=True)
            ]
            out[name].append(dersimonian_laird([slope(rows) for rows in released])[0] - real)
    return out


def oracles_summed_up(found):
    """Distances to the real estimate, and what theory says of the noise alone."""
    results = {"repetitions": len(found)}
    for name in ("true law", "maximum likelihood"):
        gaps = np.array([row[name] for row in found])
        results[name] = {f"w={w}": distance(gaps[:, k], TO_REAL[w], SEED) for k, w in enumerate(TO_REAL)}
    for w in TO_REAL:
        least = expected(found, w)
        results.setdefault("noise alone, by theory", {})[f"w={w}"] = {"mad": least, "ratio": least / TO_REAL[w]}
    return results


def expected(found, w):
    """The mean distance that a flow without any error has, from its noise alone: √(2/π) √(1 − w²) SE of the pooled.

    √w z + √(1−w) Z has the sample covariance w S + (1−w) S_Z + 2 √(w(1−w)) S_zZ; what is not S in it has 1 − w²
    times the variance that S itself has. Without heterogeneity between studies, which is small and kept.
    """
    weights = [sum(1 / variance for _, variance in row["sites"]) for row in found]
    return float(np.mean(np.sqrt(2 / math.pi * (1 - w * w) / np.array(weights))))


def summed_up(found):
    """Everything that the figures show."""
    real = np.array([row["real"][0] for row in found])
    results = {
        "repetitions": len(found),
        "cpu_seconds_per_repetition": float(np.mean([row["cpu_seconds"] for row in found])),
    }
    for name in SETTINGS:
        pooled = np.array([[pair[0] for pair in row[name]["pooled"]] for row in found])
        to_real = {f"w={w}": distance(pooled[:, k] - real, TO_REAL.get(w), SEED) for k, w in enumerate(WEIGHTS)}
        to_truth = {f"w={w}": distance(pooled[:, k] - 1, TO_TRUTH.get(w), SEED) for k, w in enumerate(WEIGHTS)}
        to_truth["w=1.0"] = distance(real - 1, TO_TRUTH[1.0], SEED)
        results[name] = {
            "mean_absolute_gap_to_real": {w: row["mad"] for w, row in to_real.items()},
            "standard_error_of_it": {
                f"w={w}": float(np.std(np.abs(pooled[:, k] - real)) / math.sqrt(len(found)))
                for k, w in enumerate(WEIGHTS)
            },
            "mean_absolute_gap_to_truth": {w: row["mad"] for w, row in to_truth.items()},
            "to_real": to_real,
            "to_truth": to_truth,
            "mean_standard_error": {
                "real": float(np.mean([row["real"][1] for row in found])),
                **{f"w={w}": float(np.mean([r[name]["pooled"][k][1] for r in found])) for k, w in enumerate(WEIGHTS)},
            },
            "share_of_fits_that_left_the_gaussian_start": sum(row[name]["left"] for row in found) / (10 * len(found)),
            "cpu_seconds_per_ten_sites": float(np.mean([row[name]["fit_seconds"] for row in found])),
        }
    for w in TO_REAL:
        least = expected(found, w)
        results.setdefault("flow_without_error", {})[f"w={w}"] = {"mad": least, "ratio": least / TO_REAL[w]}
        k = list(TO_REAL).index(w)
        gaps = np.array([row["matched"][k][0] for row in found]) - real
        results.setdefault("matched_noise", {})[f"w={w}"] = distance(gaps, TO_REAL[w], SEED)
    aucs = np.array([row["paper"]["auc"] for row in found if row["paper"]["auc"]])
    first = found[0]
    results["attack"] = {
        "repetitions": len(aucs),
        "mean_auc_at_w=0.8": float(aucs[:, WEIGHTS.index(0.8)].mean()),
        "auc": {f"w={w:g}": aucs[:, k].mean(axis=0).tolist() for k, w in enumerate(WEIGHTS)},
        "auc_se": {f"w={w:g}": (aucs[:, k].std(axis=0) / math.sqrt(len(aucs))).tolist() for k, w in enumerate(WEIGHTS)},
        "hits_of_the_first": first["paper"]["hits"],
    }
    results["first"] = {
        "n": first["n"],
        "real": {"sites": first["sites"], "pooled": first["real"]},
        **{
            f"w={w:g}": {"sites": first["paper"]["sites"][f"w={w:g}"], "pooled": first["paper"]["pooled"][k]}
            for k, w in enumerate(WEIGHTS)
            if w in TO_REAL
        },
    }
    results["scatter"] = {
        "real": real.round(5).tolist(),
        **{
            f"w={w:g}": [round(row["paper"]["pooled"][WEIGHTS.index(w)][0], 5) for row in found]
            for w in sorted(TO_REAL)
        },
    }
    return results


def draw(results):
    """Figures 5 to 9."""
    from matplotlib import colormaps
    from scipy.stats import gaussian_kde

    attack, first, scatter = results["attack"], results["first"], results["scatter"]
    studies = len(first["n"])
    made, panels = sheet(2, 5, 11.5, 5.6, sharex=True, sharey=True)
    for k, axes in enumerate(panels.flat):
        roc(axes, {f"w={w:g}": attack["hits_of_the_first"][f"w={w:g}"][k] for w in WEIGHTS}, bold=0.8)
        axes.set_title(f"study {k + 1}, n = {first['n'][k]}", loc="left")
    for axes in panels[1]:
        axes.set_xlabel("false alarms")
    for axes in panels[:, 0]:
        axes.set_ylabel("members recognised")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    made.legend(handles, labels, loc="lower center", ncols=12, fontsize=7)
    finish(
        made,
        "lni_312_figure5",
        "Simulation 3.1.2: how well members are recognised, one draw",
        "The paper's Figure 5 from our own numbers: an ROC curve per study and w.",
        rect=(0, 0.05, 1, 1),
    )

    made, panels = sheet(1, 1, 6.2, 4.0)
    axes = panels[0, 0]
    for k in range(studies):
        axes.errorbar(
            WEIGHTS,
            [attack["auc"][f"w={w:g}"][k] for w in WEIGHTS],
            [attack["auc_se"][f"w={w:g}"][k] for w in WEIGHTS],
            color=colormaps["tab10"](k),
            linewidth=1,
            capsize=1.5,
            label=f"study {k + 1}",
        )
    axes.axhline(0.5, color=PAPER, linestyle="--", linewidth=0.8)
    axes.axvline(0.8, color=PAPER, linestyle=":", linewidth=0.8)
    axes.set(xlabel="w", ylabel="area under the curve, mean ± one standard error")
    axes.legend(loc="upper left", ncols=2)
    finish(
        made,
        "lni_312_figure6",
        "Simulation 3.1.2: mean area under the curve by w",
        f"The paper's Figure 6 from our own {attack['repetitions']} draws.",
    )

    made, panels = sheet(1, 1, 6.4, 5.2)
    axes = panels[0, 0]
    kinds = (("real", REAL, "real (w = 1)"), ("w=0.8", OURS, "w = 0.8"), ("w=0", NONE, "w = 0"))

    def rows_of(key):
        rows = [(e, math.sqrt(v)) for e, v in first[key]["sites"]] + [tuple(first[key]["pooled"])]
        return [(e, e - 1.96 * se, e + 1.96 * se) for e, se in rows]

    forest(axes, kinds, rows_of, [f"study {k + 1}" for k in range(studies)])
    axes.set_xlabel("slope of X2, 95 % interval")
    made.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=3)
    finish(
        made,
        "lni_312_figure7",
        "Simulation 3.1.2: one draw of ten studies",
        "The paper's Figure 7 from our own numbers: slopes of ten studies and pooled, real and released.",
        rect=(0, 0.05, 1, 1),
    )

    made, panels = sheet(1, 1, 4.8, 4.6)
    axes = panels[0, 0]
    for key, colour, label in (("w=0", NONE, "w = 0"), ("w=0.8", OURS, "w = 0.8")):
        axes.plot(scatter["real"], scatter[key], ".", markersize=4, alpha=0.55, color=colour, label=label)
    ends = [min(scatter["real"]) - 0.005, max(scatter["real"]) + 0.005]
    axes.plot(ends, ends, color=REAL, linewidth=1, label="w = 1 (real)")
    axes.set(xlabel="pooled slope, real", ylabel="pooled slope, released", aspect="equal")
    axes.legend(loc="upper left")
    finish(
        made,
        "lni_312_figure8",
        "Simulation 3.1.2: pooled slopes, released against real",
        f"The paper's Figure 8 from our own {results['repetitions']} repetitions.",
    )

    made, panels = sheet(1, 1, 5.4, 3.6)
    axes = panels[0, 0]
    at = np.linspace(0.95, 1.05, 301)
    for key, colour, label in (("real", REAL, "real (w = 1)"), *((k, c, n) for k, c, n in kinds[1:])):
        axes.plot(at, gaussian_kde(scatter[key])(at), color=colour, label=label)
    axes.axvline(1, color=PAPER, linestyle="--", linewidth=0.8)
    axes.set(xlabel="pooled slope of X2", ylabel="density", ylim=(0, None))
    axes.legend(loc="upper left")
    finish(
        made,
        "lni_312_figure9",
        "Simulation 3.1.2: densities of the pooled slope",
        f"The paper's Figure 9 from our own {results['repetitions']} repetitions.",
    )


def main() -> None:
    given = asked(__doc__, repetitions=500, attacks=100, oracles=0)
    if given.oracles:
        settings = {"seed": SEED, "radius": RADIUS, "weights": list(TO_REAL)}
        found = repeated(part(given.folder, "oracle"), given.oracles, settings, one_oracle)
        results = oracles_summed_up(found)
        print(results)
        print(record.write("lni_312_oracle", results, seed=SEED))
        return
    if not given.draw:
        settings = {"seed": SEED, "weights": WEIGHTS, "flows": repr(SETTINGS), "radius": RADIUS}
        settings["attacks"] = given.attacks
        found = repeated(given.folder, given.repetitions, settings, lambda b: one(b, given.attacks))
        results = summed_up(found)
        for name in SETTINGS:
            print(name, {w: results[name]["to_real"][w] for w in ("w=0.0", "w=0.8")}, flush=True)
        print(record.write("lni_312", results, seed=SEED))
    draw(measured("lni_312"))


if __name__ == "__main__":
    main()
