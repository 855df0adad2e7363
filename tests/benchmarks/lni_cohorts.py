"""Section 4 of the paper on twelve simulated cohorts: Tables 4 to 6, Figures 10 to 15.

The cohorts have the sizes and margins of the paper's Table 3, and no person of them ever lived. For each: a network
from the paper's grid by held-back likelihood, then the largest w at which the paper's attack stays below 0.55, then
what the release at that w hides and what it keeps.

python -m tests.benchmarks.lni_cohorts [--draws 10] [--folder build/lni_cohorts] [--draw]

The first draw is the one that tables and figures show. ``--draw`` only draws the figures again.
"""

import json
import math
import time
from functools import partial

import numpy as np
from scipy.spatial import cKDTree
from scipy.stats import gaussian_kde

from shared.base.randomness import seeded_rng
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.plans.encoding import Encoder
from site_agent.models.flow import FlowSettings, fit_flow
from site_agent.release.audit.distances import linkage, whitening
from site_agent.release.audit.view import seen
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import cvd_tables, dictionary
from tests.benchmarks.lni_repeat import (
    NONE,
    OURS,
    REAL,
    Common,
    asked,
    attacked,
    dersimonian_laird,
    finish,
    forest,
    measured,
    repeated,
    roc,
    sheet,
)

SEED = 40
WEIGHTS = (0.0, 0.25, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
LIMIT = 0.55
FIXED = 0.8
ADJUSTED = (("sbp", 10.0), ("age", 10.0), ("chol", 40.0), ("hdl", 15.0))
SHOWN = "ARIC-M"
BOXES = {
    "age": "age, years",
    "hdl": "HDL, mg/dL",
    "time": "time, years",
    "sbp": "SBP, mmHg",
    "chol": "cholesterol, mg/dL",
}
# The paper's Tables 4 to 6, of cohorts that these ones only resemble: network, w, median rank and probability at w.
PAPERS = {
    "ARIC-M": ((128, 1, 5), 0.85, 16, 0.015),
    "ARIC-F": ((64, 1, 4), 0.90, 10, 0.009),
    "CARDIA-M": ((64, 2, 4), 0.85, 9, 0.027),
    "CARDIA-F": ((128, 1, 4), 0.80, 15, 0.023),
    "CHS-M": ((64, 2, 4), 0.75, 18, 0.029),
    "CHS-F": ((64, 1, 5), 0.80, 15, 0.022),
    "MESA-M": ((32, 2, 4), 0.85, 7, 0.014),
    "MESA-F": ((32, 2, 5), 0.85, 9, 0.018),
    "Framingham-M": ((64, 1, 5), 0.75, 11, 0.034),
    "Framingham-F": ((64, 1, 4), 0.75, 12, 0.035),
    "Jackson-M": ((32, 1, 3), 0.50, 64, 0.127),
    "Jackson-F": ((32, 2, 3), 0.85, 4, 0.021),
}
PAPER_HR = {"real": 1.171, "chosen": 1.148, "w=0": 1.121}
SETTINGS = {"gate": 2.0, "validation": 0.2, "epochs": record.sized(FlowSettings().epochs, 1)}
PAPERS_GRID = tuple(
    {"hidden": hidden, "layers": layers, "flows": flows}
    for flows in record.sized((2, 3, 4, 5), (2,))
    for layers in record.sized((1, 2), (1,))
    for hidden in record.sized((32, 64, 128), (32,))
)
"""The networks among which the paper's section 4 chooses."""


def chosen_network(x, integers, seed):
    """The grid's best by held-back likelihood, the gate open; the smaller one of two that are equal."""
    best, network, spent = None, None, time.process_time()
    for candidate in PAPERS_GRID:
        settings = FlowSettings(**candidate, **SETTINGS | {"gate": 0.0}, refit=False)
        found = fit_flow(x, settings, seeded_rng(seed), integer_columns=integers).report
        size = candidate["hidden"] * candidate["flows"] * candidate["layers"]
        rank = (round(found.best_nll, 9), size)
        if best is None or rank < best:
            best, network = rank, candidate | {"gain": found.gain, "gain_se": found.gain_se}
    return network | {"cpu_seconds": time.process_time() - spent}


def log_hr(table, adjusted):
    """Cox: log hazard ratio of 10 mmHg, its variance."""
    columns = ADJUSTED if adjusted else ADJUSTED[:1]
    x = np.column_stack([table[name].to_numpy(dtype=float) / unit for name, unit in columns])
    fit = cox(
        x - x.mean(axis=0),
        SurvivalOutcome(time=table["time"].to_numpy(dtype=float), event=table["cvd"].to_numpy(dtype=float)),
    )
    return [float(fit.beta[0]), float(fit.cov[0, 0])]


def standardised(x):
    mean, scale = x.mean(axis=0), x.std(axis=0)
    return lambda rows: (rows - mean) / scale


def hidden(x, released, rng):
    """Median rank (eq. 26) and probability (eq. 22) of 2,000 records at most, in standardised distance."""
    pick = rng.choice(len(x), min(len(x), 2000), replace=False)
    own = np.linalg.norm(x[pick] - released[pick], axis=1)
    nearer = cKDTree(x).query_ball_point(x[pick], np.nextafter(own, 0), return_length=True) - 1
    nearer = np.maximum(nearer, 0)
    return {"median_rank": float(np.median(nearer)), "probability": float(nearer.mean() / (len(x) - 1))}


def one(b, networks=None):
    """One draw of the twelve cohorts. `networks`: those of the first draw, for every other one."""
    encoder = Encoder(dictionary=dictionary())
    view, radius = seen(encoder), default_radius(encoder.d)
    out = {}
    for place, (name, table) in enumerate(cvd_tables(np.random.default_rng([SEED, b])).items()):
        draws, seed = np.random.default_rng([SEED, b, place]), SEED * 10**6 + b * 100 + place
        x = encoder.encode(encoder.dictionary.check(table), seeded_rng(seed))
        z = draws.standard_normal(x.shape)
        integers = encoder.integer_columns
        network = networks[name] if networks else chosen_network(x, integers, seed)
        settings = FlowSettings(**{key: network[key] for key in ("hidden", "layers", "flows")}, **SETTINGS)

        order = draws.permutation(len(x))
        held, inside = order[: len(x) // 5], order[len(x) // 5 :]
        fitted = fit_flow(x[inside], settings, seeded_rng(seed), integer_columns=integers)
        scale = standardised(view(x))
        aucs, curves = {}, {}
        for w in WEIGHTS:
            probe = LatentNoise(flow=fitted.flow, w=w, radius=radius).release(x[inside], Common(z[inside]))
            auc, hits = attacked(scale(view(x[inside])), scale(view(x[held])), scale(view(probe)))
            aucs[f"w={w:g}"], curves[f"w={w:g}"] = auc, hits
        best = max((w for w in WEIGHTS if aucs[f"w={w:g}"] < LIMIT), default=0.0)

        fitted = fit_flow(x, settings, seeded_rng(seed), integer_columns=integers)
        site = {"n": len(x), "network": network, "epochs": fitted.epochs, "w": best, "auc": aucs}
        site["real"] = {"unadjusted": log_hr(table, False), "adjusted": log_hr(table, True)}
        site["real"]["events"] = float(table["cvd"].mean())
        rows = {"real": x}
        for key, w in (("chosen", best), ("w=0", 0.0), ("fixed", FIXED)):
            rows[key] = LatentNoise(flow=fitted.flow, w=w, radius=radius).release(x, Common(z))
            decoded = encoder.decode(rows[key])
            site[key] = hidden(scale(view(x)), scale(view(rows[key])), draws)
            whiten = whitening(view(x))
            site[key]["own_row_linkage"] = float(linkage(whiten(view(x)), whiten(view(rows[key]))).mean())
            site[key]["events"] = float(decoded["cvd"].mean())
            site[key] |= {"unadjusted": log_hr(decoded, False), "adjusted": log_hr(decoded, True)}
        if b == 0:
            site["hits"] = curves
            site["shown"] = shown(name, x, rows, fitted.flow, z, encoder, scale, draws)
        out[name] = site
        print(b, name, network["flows"], round(best, 2), flush=True)
    return out


def shown(name, x, rows, flow, z, encoder, scale, draws):
    """What Figures 11 to 14 need of one cohort."""
    view = seen(encoder)
    values = {key: view(part) for key, part in rows.items()}
    real, n = scale(values["real"]), len(x)
    pairs = real[draws.permutation(n)] - real[draws.permutation(n)]
    apart = {"two real": np.linalg.norm(pairs[(pairs != 0).any(axis=1)], axis=1)}
    for key in ("chosen", "w=0"):
        apart[key] = np.linalg.norm(real - scale(values[key]), axis=1)
    at = np.linspace(0, 8, 61)
    tables = {key: encoder.decode(part) for key, part in rows.items()}
    out = {
        "apart": {key: gaussian_kde(part)(at).round(4).tolist() for key, part in apart.items()},
        "boxes": {
            column: {
                key: np.quantile(tables[key][column], [0.05, 0.25, 0.5, 0.75, 0.95]).round(2).tolist()
                for key in ("real", "chosen")
            }
            for column in BOXES
        },
    }
    if name == SHOWN:
        some = draws.choice(n, 300, replace=False)
        out["pairs"] = {
            key: tables[key][["sbp", "time"]].to_numpy(dtype=float)[some].round(2).tolist()
            for key in ("real", "chosen", "w=0")
        }
        columns = [encoder.columns.index(c) for c in ("sbp", "time", "age", "hdl", "chol")]
        mean, spread = x.mean(axis=0), x.std(axis=0)
        three, steps = draws.choice(n, 3, replace=False), np.linspace(0, 1, 41)
        latents = flow.inverse(x[three])
        way = np.stack([flow.forward(np.sqrt(w) * latents + np.sqrt(1 - w) * z[three]) for w in steps], axis=1)
        out["ways"] = ((way - mean) / spread)[:, :, columns].round(3).tolist()
        out["background"] = ((x - mean) / spread)[some][:, columns].round(2).tolist()
    return out


def pooled(sites, key, model):
    return dersimonian_laird([site[key][model] for site in sites.values()])


def summed_up(found):
    """Tables 4 to 6 and what the figures show, of the first draw; the pooled hazard ratio over all draws."""
    first = {name: site for name, site in found[0].items() if name != "cpu_seconds"}
    results = {"draws": len(found), "first": first, "pooled": {}, "gap": {}, "signed_gap": {}, "site_gap": {}}
    results["cpu_seconds_per_draw"] = float(np.mean([row["cpu_seconds"] for row in found[1:] or found]))
    results["search_cpu_seconds"] = sum(site["network"]["cpu_seconds"] for site in first.values())
    results["networks_kept"] = sum(site["epochs"] > 0 for site in first.values())
    results["mean_w"] = float(np.mean([site["w"] for site in first.values()]))
    results["largest_event_gap"] = {
        key: max(
            abs(site[key]["events"] - site["real"]["events"])
            for row in found
            for name, site in row.items()
            if name != "cpu_seconds"
        )
        for key in ("chosen", "fixed", "w=0")
    }
    for model in ("unadjusted", "adjusted"):
        gaps, apart = {}, {}
        for row in found:
            sites = {name: site for name, site in row.items() if name != "cpu_seconds"}
            for key in ("chosen", "w=0", "fixed"):
                ends = [math.exp(pooled(sites, which, model)[0]) for which in (key, "real")]
                gaps.setdefault(key, []).append(ends[0] - ends[1])
                apart.setdefault(key, []).append(
                    np.mean([abs(site[key][model][0] - site["real"][model][0]) for site in sites.values()])
                )
        results["gap"][model] = {key: float(np.mean(np.abs(values))) for key, values in gaps.items()}
        results["signed_gap"][model] = {key: float(np.mean(values)) for key, values in gaps.items()}
        results["site_gap"][model] = {key: float(np.mean(values)) for key, values in apart.items()}
        results["pooled"][model] = {}
        for key in ("real", "chosen", "w=0", "fixed"):
            centre, se = pooled(first, key, model)
            hr = {"hr": math.exp(centre), "low": math.exp(centre - 1.96 * se), "high": math.exp(centre + 1.96 * se)}
            results["pooled"][model][key] = hr
    return results


def draw(results):
    """Figures 10 to 15."""
    sites = results["first"]

    def panels_of(height=6.6):
        made, panels = sheet(3, 4, 11, height)
        return made, dict(zip(sites, panels.flat, strict=False)), panels

    made, of, panels = panels_of(8.6)
    for name, axes in of.items():
        best = sites[name]["w"]
        roc(axes, {f"w={w:g}": sites[name]["hits"][f"w={w:g}"] for w in WEIGHTS}, bold=best, chance=False)
        axes.set_title(f"{name}, w = {best:g}", loc="left")
    for axes in panels[-1]:
        axes.set_xlabel("false alarms")
    for axes in panels[:, 0]:
        axes.set_ylabel("members recognised")
    finish(
        made,
        "lni_cohorts_figure10",
        "Twelve simulated cohorts: how well members are recognised",
        "The paper's Figure 10 from simulated cohorts: ROC curves by w, the chosen w in red.",
        f"Red: the chosen w, the largest one with an area below {LIMIT}. Others from w = 0 (yellow) to 0.95 (dark).",
        rect=(0, 0.02, 1, 1),
    )

    made, of, panels = panels_of()
    at = np.linspace(0, 8, 61)
    kinds = (
        ("two real", REAL, "two real persons"),
        ("chosen", OURS, "own row, chosen w"),
        ("w=0", NONE, "own row, w = 0"),
    )
    for name, axes in of.items():
        for key, colour, label in kinds:
            axes.plot(at, sites[name]["shown"]["apart"][key], color=colour, label=label)
        axes.set_title(f"{name}, w = {sites[name]['w']:g}", loc="left")
        axes.set(ylim=(0, None), yticks=[])
    for axes in panels[-1]:
        axes.set_xlabel("standardised distance")
    made.legend(*panels[0, 0].get_legend_handles_labels(), loc="lower center", ncols=3)
    finish(
        made,
        "lni_cohorts_figure11",
        "Twelve simulated cohorts: distances between rows",
        "The paper's Figure 11 from simulated cohorts.",
        rect=(0, 0.04, 1, 1),
    )

    seen_of = sites[SHOWN]["shown"]
    made, panels = sheet(1, 4, 11.5, 3.4)
    background, ways = np.array(seen_of["background"]), np.array(seen_of["ways"])
    for axes, (k, label) in zip(panels[0], enumerate(("time", "age", "HDL", "cholesterol"), 1), strict=True):
        axes.plot(background[:, 0], background[:, k], ".", color="#c3c9d0", markersize=3)
        for way, colour in zip(ways, (OURS, NONE, "#009E73"), strict=True):
            axes.plot(way[:, 0], way[:, k], color=colour, linewidth=1.6)
            axes.plot(*way[0, [0, k]], "*", color=colour, markersize=9)
            axes.plot(*way[-1, [0, k]], "o", color=colour, markersize=5)
        axes.set(xlabel="SBP, standardised", ylabel=f"{label}, standardised")
    finish(
        made,
        "lni_cohorts_figure12",
        f"{SHOWN}: how three rows move as w goes from 0 to 1",
        "The paper's Figure 12 from a simulated cohort: a star at w = 0, a circle at w = 1.",
        f"{SHOWN}, three simulated persons: star w = 0, circle w = 1. Grey: 300 others. Time as its logit.",
        rect=(0, 0.05, 1, 1),
    )

    made, panels = sheet(1, 2, 9.5, 4.0, sharex=True, sharey=True)
    real = np.array(seen_of["pairs"]["real"])
    for axes, key, label in zip(panels[0], ("w=0", "chosen"), ("w = 0", f"w = {sites[SHOWN]['w']:g}"), strict=True):
        made_up = np.array(seen_of["pairs"][key])
        lines = np.stack([real, made_up], axis=1)
        axes.plot(lines[:, :, 0].T, lines[:, :, 1].T, color="#b5bcc4", linewidth=0.5, zorder=1)
        axes.plot(real[:, 0], real[:, 1], "o", color=NONE, markersize=3, label="real")
        axes.plot(made_up[:, 0], made_up[:, 1], "x", color=OURS, markersize=3.5, label="released")
        axes.set(xlabel="SBP, mmHg", ylabel="time to event or end, years")
        axes.set_title(f"{SHOWN}, {label}: 300 rows", loc="left", weight="bold")
    made.legend(*panels[0, 0].get_legend_handles_labels(), loc="lower center", ncols=2)
    finish(
        made,
        "lni_cohorts_figure13",
        f"{SHOWN}: where each row goes",
        "The paper's Figure 13 from a simulated cohort.",
        rect=(0, 0.06, 1, 1),
    )

    made, panels = sheet(5, 1, 8.6, 10.5, sharex=True)
    for axes, (column, label) in zip(panels[:, 0], BOXES.items(), strict=True):
        for shift, key, colour in ((-0.18, "real", NONE), (0.18, "chosen", OURS)):
            boxes = []
            for name in sites:
                low, q1, middle, q3, high = sites[name]["shown"]["boxes"][column][key]
                boxes.append({"whislo": low, "q1": q1, "med": middle, "q3": q3, "whishi": high, "fliers": []})
            drawn = axes.bxp(
                boxes,
                positions=np.arange(len(sites)) + shift,
                widths=0.3,
                showfliers=False,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": colour, "alpha": 0.45, "edgecolor": colour},
                medianprops={"color": REAL},
                whiskerprops={"color": colour},
                capprops={"color": colour},
            )
            drawn["boxes"][0].set_label("real" if key == "real" else "released, chosen w")
        axes.set_ylabel(label)
    panels[-1, 0].set_xticks(range(len(sites)), list(sites), rotation=30, ha="right")
    made.legend(*panels[0, 0].get_legend_handles_labels(), loc="lower center", ncols=2)
    finish(
        made,
        "lni_cohorts_figure14",
        "Twelve simulated cohorts: margins, released beside real",
        "The paper's Figure 14 from simulated cohorts: boxes are quartiles, whiskers the 5th and 95th percentile.",
        "Boxes: quartiles. Whiskers: 5th and 95th percentile.",
        rect=(0, 0.025, 1, 1),
    )

    made, panels = sheet(1, 2, 10.5, 6.4, sharey=True)
    kinds = (("real", REAL, "real"), ("chosen", OURS, "chosen w"), ("w=0", NONE, "w = 0"))
    for axes, model in zip(panels[0], ("unadjusted", "adjusted"), strict=True):

        def rows_of(key, model=model):
            rows = [(site[key][model][0], 1.96 * math.sqrt(site[key][model][1])) for site in sites.values()]
            centre = results["pooled"][model][key]
            return [
                *([math.exp(e) for e in (at, at - half, at + half)] for at, half in rows),
                [centre[name] for name in ("hr", "low", "high")],
            ]

        forest(axes, kinds, rows_of, list(sites))
        axes.set_xscale("log")
        ticks = [0.8, 1, 1.25, 1.5, 2]
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.minorticks_off()
        axes.set_xlabel("hazard ratio per 10 mmHg, 95 % interval")
        axes.set_title(model, loc="left", weight="bold")
    made.legend(*panels[0, 0].get_legend_handles_labels(), loc="lower center", ncols=3)
    finish(
        made,
        "lni_cohorts_figure15",
        "Twelve simulated cohorts: hazard ratio of 10 mmHg",
        "The paper's Figure 15 from simulated cohorts: real, released at the chosen w and at w = 0.",
        rect=(0, 0.04, 1, 1),
    )


def main() -> None:
    given = asked(__doc__, draws=10)
    if not given.draw:
        settings = {"seed": SEED, "weights": WEIGHTS, "limit": LIMIT, "grid": PAPERS_GRID, "settings": SETTINGS}
        first = repeated(given.folder, 1, settings, one)
        networks = {name: site["network"] for name, site in first[0].items() if name != "cpu_seconds"}
        others = repeated(given.folder, given.draws, settings, partial(one, networks=networks), first=1)
        found = first + others
        results = summed_up(found)
        print(json.dumps(results["gap"]), json.dumps(results["pooled"], indent=1))
        print(record.write("lni_cohorts", results, seed=SEED))
    draw(measured("lni_cohorts"))


if __name__ == "__main__":
    main()
