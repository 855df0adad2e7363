"""What a search among networks buys and costs: the default one beside the best of the paper's grid, in three worlds.

The product offered it in plans (`[training] search`), and does no more: these are its figures.

Three of the simulated cohorts as they are, the same with columns that bend with age (`lni_transfer`), each of at most
700 persons; and the curved pair of columns by which the fits of this package are tested, of 600 records. For each:
mean log-likelihood of up to 1,000 other persons, distance of the adjusted log hazard ratio, CPU seconds of a fit.

python -m tests.benchmarks.lni_search [--draws 1] [--folder build/lni_search]
"""

import itertools
import time
from dataclasses import replace

import numpy as np
from scipy import special

from shared.base.randomness import seeded_rng
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from site_agent.models.flow import FlowSettings, fit_flow, network_of
from tests.benchmarks import record
from tests.benchmarks.lni_cohorts import PAPERS_GRID, log_hr
from tests.benchmarks.lni_repeat import Common, asked, repeated
from tests.benchmarks.lni_transfer import ENCODER, cohorts, compared, encoded

SEED = 24
N, FRESH, COHORTS = record.sized((700, 1000, 3), (200, 200, 1))
BENDS = {"cohorts as simulated": 0.0, "cohorts that bend": 0.8}
CURVED = "a curved pair"
CURVED_N, CURVED_TABLES = record.sized((600, 3), (100, 1))
WAYS = ("default", "search")
WEIGHTS = (0.0, 0.8)


def curved(draws, n):
    """x normal, y = x² and noise, rotated by nothing."""
    x = draws.normal(size=n)
    return np.column_stack([x, x**2 + 0.4 * draws.normal(size=n)])


def searched(x, seed, **more):
    """The settings of the grid's likeliest network on held-back records; of equal ones the smallest."""
    ranked = []
    for k, one in enumerate(PAPERS_GRID):
        tried = fit_flow(x, replace(FlowSettings(), **one, gate=0.0, refit=False), seeded_rng(seed), **more).report
        ranked.append((round(tried.best_nll, 9), one["flows"] * one["layers"] * one["hidden"], k))
    # As unlikely to be passed by chance by the best of all as the plain gate is by one.
    gate = -float(special.ndtri(special.ndtr(-FlowSettings().gate) / len(PAPERS_GRID)))
    return replace(FlowSettings(), **PAPERS_GRID[min(ranked)[2]], gate=gate)


def both(x, fresh, seed, **more):
    """Each way's flow, with what it cost and how likely other persons are under it."""
    out = {}
    for way in WAYS:
        began = time.process_time()
        settings = FlowSettings() if way == "default" else searched(x, seed, **more)
        made = fit_flow(x, settings, seeded_rng(seed), **more)
        spent = time.process_time() - began
        told = {"cpu": spent, "held_out": float(made.flow.log_prob(fresh).mean()), "left": made.epochs > 0}
        out[way] = made.flow, told | {"network": network_of(made.flow)}
    return out


def one(b):
    """One draw of all worlds."""
    out = {}
    for world, bend in BENDS.items():
        draws, sites = np.random.default_rng([SEED, b]), []
        for k, whole in enumerate(itertools.islice(cohorts(draws, bend).values(), COHORTS)):
            order = draws.permutation(len(whole))
            n = min(N, len(whole) - 200)
            table, others = (whole.iloc[part].reset_index(drop=True) for part in (order[:n], order[n : n + FRESH]))
            x, z = encoded(table, b), draws.standard_normal((n, ENCODER.d))
            real, site = log_hr(table, True)[0], {}
            fits = both(x, encoded(others, b), 1000 * b + k, integer_columns=ENCODER.integer_columns)
            for way, (flow, told) in fits.items():
                site[way] = told
                for w in WEIGHTS:
                    noisy = LatentNoise(flow=flow, w=w, radius=default_radius(ENCODER.d))
                    site[way][f"w={w:g}"] = abs(log_hr(ENCODER.decode(noisy.release(x, Common(z))), True)[0] - real)
            sites.append(site)
        out[world] = sites
    draws = np.random.default_rng([SEED, b, 1])
    out[CURVED] = []
    for k in range(CURVED_TABLES):
        fits = both(curved(draws, CURVED_N), curved(draws, 4000), 1000 * b + k)
        out[CURVED].append({way: told for way, (_, told) in fits.items()})
    return out


def summed_up(found):
    """Means of both ways, and the paired difference of search to default with its standard error."""
    results = {"draws": len(found), "records": N}
    for world in (*BENDS, CURVED):
        sites = [site for run in found for site in run[world]]
        names = {"held_out": "held_out_log_likelihood", "cpu": "cpu_seconds_of_a_fit"}
        names |= {f"w={w:g}": f"site_log_hr, w={w:g}" for w in WEIGHTS if f"w={w:g}" in sites[0]["default"]}
        told = {}
        for key, name in names.items():
            values = compared(*([site[way][key] for site in sites] for way in WAYS))
            told[name] = {"default": values.pop("alone"), "search": values.pop("transfer"), **values}
        cpu = told["cpu_seconds_of_a_fit"]
        told["times_the_cpu"] = cpu["search"] / cpu["default"]
        for way in WAYS:
            told[f"left_the_start_{way}"] = sum(site[way]["left"] for site in sites)
        results[world] = {"fits": len(sites), **told}
        print(world, results[world], flush=True)
    return results


def main() -> None:
    given = asked(__doc__, figures=False, draws=1)
    settings = {"seed": SEED, "n": N, "cohorts": COHORTS, "bends": BENDS, "ways": repr(WAYS), "weights": WEIGHTS}
    print(record.write("lni_search", summed_up(repeated(given.folder, given.draws, settings, one)), seed=SEED))


if __name__ == "__main__":
    main()
