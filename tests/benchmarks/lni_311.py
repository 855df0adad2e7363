"""Simulation 3.1.1 of the paper: Tables 1 and 2, Figures 2 to 4.

How far a correlation of 0.9 is read wrongly from rows drawn from the flow, from latent noise injection and from noise
added to the data, for n = 10,000 … 50,000; and how well the paper's attack tells members from strangers.

python -m tests.benchmarks.lni_311 [--first 800] [--others 100] [--real 2000] [--attacks 100] [--folder build/lni_311]

`first` repetitions at n = 10,000, `others` at each larger n, `real` at w = 1, where no flow is needed: some of the
paper's figures there lie below what the sample alone gives, and few repetitions would not tell by how much. A folder
keeps every repetition, so that a run that was stopped goes on. ``--draw`` only draws the figures again.
"""

from functools import partial

import numpy as np

from shared.base.randomness import seeded_rng
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
    distance,
    finish,
    measured,
    part,
    repeated,
    resampled,
    roc,
    shade,
    sheet,
)
from tests.benchmarks.paper.studies import gaussian_table

SEED, D, RHO = 311, 5, 0.9
SIZES = record.sized((10_000, 20_000, 30_000, 40_000, 50_000), (10_000, 20_000))
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
DRAWN = record.sized(50_000, 1000)
ATTACKED = record.sized(2500, 200)
ATTACK_WEIGHTS = (0.0, 0.1, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 1.0)
# The paper's five flows of 50 units; margins are left to the flow and nothing is clipped, as there.
SETTINGS = FlowSettings(flows=5, hidden=50, margins="none", epochs=record.sized(FlowSettings().epochs, 1))
RADIUS = 30.0
# Tables 1 and 2 as printed: n to (flow at w = 0; latent and direct noise at each w).
MAD = {
    10_000: (0.0016, (0.0018, 0.0016, 0.0015, 0.0012, 0.0010), (0.8996, 0.6755, 0.4502, 0.2251, 0.0010)),
    20_000: (0.0018, (0.0020, 0.0016, 0.0013, 0.0011, 0.0008), (0.9003, 0.6750, 0.4498, 0.2251, 0.0008)),
    30_000: (0.0018, (0.0018, 0.0014, 0.0012, 0.0009, 0.0006), (0.9003, 0.6753, 0.4505, 0.2252, 0.0006)),
    40_000: (0.0017, (0.0016, 0.0013, 0.0011, 0.0008, 0.0005), (0.9000, 0.6754, 0.4502, 0.2251, 0.0005)),
    50_000: (0.0014, (0.0015, 0.0011, 0.0009, 0.0007, 0.0005), (0.9000, 0.6752, 0.4501, 0.2250, 0.0005)),
}
BIAS = {
    10_000: (-0.0004, (-0.0007, -0.0004, -0.0002, -0.0001, 0.0), (-0.8996, -0.6755, -0.4502, -0.2251, 0.0001)),
    20_000: (-0.0002, (-0.0005, -0.0002, -0.0001, 0.0, 0.0), (-0.9003, -0.6750, -0.4498, -0.2251, 0.0001)),
    30_000: (-0.0003, (-0.0004, -0.0002, -0.0001, -0.0001, 0.0), (-0.9003, -0.6753, -0.4505, -0.2252, 0.0)),
    40_000: (-0.0001, (-0.0003, 0.0, -0.0002, 0.0, 0.0), (-0.9000, -0.6754, -0.4502, -0.2251, 0.0)),
    50_000: (-0.0004, (-0.0006, -0.0003, -0.0002, -0.0001, 0.0), (-0.9000, -0.6752, -0.4501, -0.2250, 0.0)),
}


def rho(rows):
    """The maximum likelihood estimate under compound symmetry, less the truth."""
    return float(np.corrcoef(rows, rowvar=False)[np.triu_indices(D, 1)].mean() - RHO)


def direct(x, w, z):
    """Noise added to the data themselves."""
    return np.sqrt(w) * x + np.sqrt(1 - w) * x.std(axis=0) * z


def one(n, b):
    """One table of n records: what each method reads wrongly. One flow and one noise serve every w."""
    draws = np.random.default_rng([SEED, n, b])
    x, z = gaussian_table(draws, n, D, RHO), draws.standard_normal((n, D))
    fitted = fit_flow(x, SETTINGS, seeded_rng(SEED * 10**9 + n * 10_000 + b))
    latent = [
        rho(LatentNoise(flow=fitted.flow, w=w, radius=RADIUS).release(x, Common(z))) if w < 1 else rho(x)
        for w in WEIGHTS
    ]
    return {
        "flow": rho(fitted.flow.forward(draws.standard_normal((DRAWN, D)))),
        "latent": latent,
        "direct": [rho(direct(x, w, z)) for w in WEIGHTS],
        "epochs": fitted.epochs,
    }


def one_real(n, b):
    """w = 1 alone, which needs no flow."""
    return {"real": rho(gaussian_table(np.random.default_rng([SEED, n, b]), n, D, RHO))}


def one_attack(b):
    """Members against strangers at n = 2,500."""
    draws = np.random.default_rng([SEED, ATTACKED, b])
    x, fresh = gaussian_table(draws, ATTACKED, D, RHO), gaussian_table(draws, ATTACKED, D, RHO)
    z = draws.standard_normal(x.shape)
    flow = fit_flow(x, SETTINGS, seeded_rng(SEED * 10**9 + ATTACKED * 10_000 + b)).flow
    out = {"latent": [], "direct": []}
    for w in ATTACK_WEIGHTS:
        released = LatentNoise(flow=flow, w=w, radius=RADIUS).release(x, Common(z)) if w < 1 else x
        for method, rows in (("latent", released), ("direct", direct(x, w, z))):
            auc, hits = attacked(x, fresh, rows)
            out[method].append({"auc": auc, "hits": hits} if b == 0 else {"auc": auc})
    return out


def expected(n, w):
    """The mean distance that a flow without any error has, from the sample and the noise alone.

    The estimate has the variance v = 2 (1−ρ)² (1 + 4ρ)² / (20 n); noise of weight w adds (1 − w²) v.
    """
    v = 2 * (1 - RHO) ** 2 * (1 + (D - 1) * RHO) ** 2 / (D * (D - 1) * n)
    return float(np.sqrt(2 / np.pi * v * (2 - w * w)))


def exponent(gaps):
    """alpha of MAD ~ n^-alpha by least squares over the sizes, gaps at each, with a 90 % bootstrap interval."""
    log_n = np.log(SIZES) - np.mean(np.log(SIZES))

    def of(mads):
        return -(np.log(mads) @ log_n) / (log_n @ log_n)

    absolute = [np.abs(row) for row in gaps]
    mads = np.stack([resampled(row, lambda v: v.mean(), SEED + k) for k, row in enumerate(absolute)], axis=1)
    low, high = np.quantile(of(mads), [0.05, 0.95])
    return {"alpha": float(of(np.array([row.mean() for row in absolute]))), "low": float(low), "high": float(high)}


def summed_up(found, real, attacks):
    """Everything that the tables and figures show.

    Args: n to its repetitions, n to those at w = 1, and the attacks.
    """
    results = {"attacks": len(attacks), "largest_ratio_high": {}, "alpha": {}}
    results["repetitions"] = {f"n={n}": len(rows) for n, rows in found.items()}
    results["repetitions_at_w=1"] = len(real[SIZES[0]])
    results["share_of_fits_that_left_the_gaussian_start"] = float(
        np.mean([row["epochs"] > 0 for rows in found.values() for row in rows])
    )
    results["cpu_seconds_per_repetition"] = {
        f"n={n}": float(np.mean([row["cpu_seconds"] for row in rows])) for n, rows in found.items()
    }
    for n, rows in found.items():
        of = {"flow": distance([row["flow"] for row in rows], MAD[n][0], SEED) | {"paper_bias": BIAS[n][0]}}
        for place, method in ((1, "latent"), (2, "direct")):
            of[method] = {
                f"w={w:g}": distance(
                    [row[method][k] for row in rows] if w < 1 else [row["real"] for row in real[n]],
                    MAD[n][place][k],
                    SEED,
                )
                | {"paper_bias": BIAS[n][place][k]}
                for k, w in enumerate(WEIGHTS)
            }
        for k, w in enumerate(WEIGHTS):
            least = expected(n, w)
            of["latent"][f"w={w:g}"] |= {"of_a_flow_without_error": least, "least_ratio": least / MAD[n][1][k]}
        results[f"n={n}"] = of
        results["largest_ratio_high"][f"n={n}"] = max(row["ratio_high"] for row in of["latent"].values())
    results["cells_within"] = sum(
        row["ratio_high"] <= 1.25 for n in SIZES for row in results[f"n={n}"]["latent"].values()
    )
    results["cells"] = len(SIZES) * len(WEIGHTS)
    for k, w in enumerate(WEIGHTS):
        gaps = [[row["latent"][k] for row in found[n]] if w < 1 else [row["real"] for row in real[n]] for n in SIZES]
        paper = np.polyfit(np.log(SIZES), np.log([MAD[n][1][k] for n in SIZES]), 1)[0]
        results["alpha"][f"w={w:g}"] = exponent(gaps) | {"paper": float(-paper)}
    gaps = [[row["flow"] for row in found[n]] for n in SIZES]
    paper = np.polyfit(np.log(SIZES), np.log([MAD[n][0] for n in SIZES]), 1)[0]
    results["alpha"]["flow"] = exponent(gaps) | {"paper": float(-paper)}
    for method in ("latent", "direct"):
        results[f"attack_{method}"] = {}
        for k, w in enumerate(ATTACK_WEIGHTS):
            aucs = [row[method][k]["auc"] for row in attacks]
            results[f"attack_{method}"][f"w={w:g}"] = {
                "auc": float(np.mean(aucs)),
                "auc_sd": float(np.std(aucs)),
                "hits_of_the_first": attacks[0][method][k]["hits"],
            }
    return results


def draw(results):
    """Figures 2 to 4."""
    lines = {"latent": "latent noise injection", "direct": "noise added to the data"}
    counts = results["repetitions"]
    said = f"{counts[f'n={SIZES[0]}']:,} repetitions at n = {SIZES[0]:,}, {counts[f'n={SIZES[-1]}']:,} at larger n"
    said += f" ({results['repetitions_at_w=1']:,} at w = 1)"
    for number, what, ylabel in (
        (2, "mad", "mean absolute distance to 0.9"),
        (3, "bias", "bias"),
    ):
        made, panels = sheet(1, 3, 10.5, 3.7)
        for axes, method in zip(panels[0], ("flow", "latent", "direct"), strict=True):
            names = [""] if method == "flow" else [f"w={w:g}" for w in WEIGHTS]
            for k, name in enumerate(names):
                cells = [results[f"n={n}"][method] if not name else results[f"n={n}"][method][name] for n in SIZES]
                colour = OURS if method == "flow" else shade(WEIGHTS[k])
                label = name.replace("=", " = ") or "ours"
                known = "paper" if what == "mad" else "paper_bias"
                axes.plot(SIZES, [cell[known] for cell in cells], color=colour, linestyle=":", linewidth=1.2)
                axes.plot(SIZES, [cell[what] for cell in cells], color=colour, marker="o", markersize=3.5, label=label)
                if what == "mad":
                    low, high = ([cell[f"mad_{end}"] for cell in cells] for end in ("low", "high"))
                else:
                    low, high = ([cell["bias"] + sign * 1.645 * cell["bias_se"] for cell in cells] for sign in (-1, 1))
                axes.fill_between(SIZES, low, high, color=colour, alpha=0.15, linewidth=0)
            if what == "mad" and method != "direct":
                start = results[f"n={SIZES[0]}"]
                first = start["flow"]["mad"] if method == "flow" else start["latent"]["w=1"]["mad"]
                rate = [first * (n / SIZES[0]) ** -0.5 for n in SIZES]
                axes.plot(SIZES, rate, color="#c00000", linestyle="--", linewidth=1, label="1/√n")
            if what == "mad":
                axes.set(yscale="log", xscale="log")
                axes.set_xticks(SIZES, [f"{n // 1000}" for n in SIZES])
                axes.minorticks_off()
                if method != "direct":
                    ticks = (0.0005, 0.0007, 0.001, 0.0014, 0.002)
                    axes.set_yticks(ticks, [f"{t:.4f}" for t in ticks])
                    axes.set_ylim(0.00042, 0.0023)
            else:
                axes.axhline(0, color=PAPER, linewidth=0.8)
                axes.set_xticks(SIZES, [f"{n // 1000}" for n in SIZES])
                if method != "direct":
                    axes.set_ylim(-0.0009, 0.0003)
            axes.set(xlabel="records, thousands", ylabel=ylabel)
            named = {"flow": f"{DRAWN:,} rows of the flow"} | lines
            axes.set_title(named[method], loc="left", weight="bold")
            if not (what == "bias" and method == "direct"):  # no room, and the colours are those of its neighbour
                axes.legend(ncols=2 if method == "direct" or what == "bias" else 1)
        finish(
            made,
            f"lni_311_figure{number}",
            f"Simulation 3.1.1: {ylabel}",
            f"The paper's Figure {number} from our own numbers.",
            f"Solid: ours, {said}, 90 % intervals shaded. Dotted: the paper's tables, 100 repetitions, as printed.",
            rect=(0, 0.04, 1, 1),
        )
    made, panels = sheet(1, 3, 10.5, 3.7)
    shown = (0.0, 0.25, 0.5, 0.75, 0.9, 0.975, 1.0)
    for axes, method in zip(panels[0], lines, strict=False):
        hits = {f"w={w:g}": results[f"attack_{method}"][f"w={w:g}"]["hits_of_the_first"] for w in shown}
        roc(axes, hits, linewidth=1.3)
        axes.set(xlabel="false alarms", ylabel="members recognised")
        axes.set_title(f"{lines[method]}, one table", loc="left", weight="bold")
        axes.legend(loc="lower right")
    axes = panels[0][2]
    for method, colour in (("latent", OURS), ("direct", NONE)):
        of = results[f"attack_{method}"]
        axes.plot(
            ATTACK_WEIGHTS,
            [of[f"w={w:g}"]["auc"] for w in ATTACK_WEIGHTS],
            color=colour,
            marker="o",
            markersize=3,
            label=lines[method],
        )
    axes.plot([0.75, 0.975], [0.52, 0.71], color=REAL, marker="x", linestyle="none", label="the paper's text")
    axes.axhline(0.5, color=PAPER, linestyle="--", linewidth=0.8)
    axes.set(xlabel="w", ylabel="area under the curve", ylim=(0.48, 1.02))
    axes.set_title(f"mean of {results['attacks']} tables", loc="left", weight="bold")
    axes.legend(loc="upper left")
    finish(
        made,
        "lni_311_figure4",
        "Simulation 3.1.1: the membership attack",
        f"The paper's Figure 4 from our own {results['attacks']} tables of {ATTACKED:,} records.",
    )


def main() -> None:
    given = asked(__doc__, first=800, others=100, real=2000, attacks=100)
    if not given.draw:
        settings = {"seed": SEED, "sizes": SIZES, "weights": WEIGHTS, "flow": repr(SETTINGS), "radius": RADIUS}
        within = partial(part, given.folder)
        attacks = repeated(within("attack"), given.attacks, settings | {"attacked": ATTACK_WEIGHTS}, one_attack)
        found, real = {}, {}
        for n in SIZES:
            count = given.first if n == SIZES[0] else given.others
            found[n] = repeated(within(f"n{n}"), count, settings, partial(one, n))
            real[n] = repeated(None, given.real, settings, partial(one_real, n))
        results = summed_up(found, real, attacks)
        for n in SIZES:
            print(n, {w: round(cell["ratio_high"], 3) for w, cell in results[f"n={n}"]["latent"].items()})
        print(record.write("lni_311", results, seed=SEED))
    draw(measured("lni_311"))


if __name__ == "__main__":
    main()
