"""What slicing keeps of the census-like table of `tables_quality`: the same metrics, under two meanings of ε.

By the neighbours of the paper (two rows at distance 1) there is less noise than what replacing one person by any other
takes; both are printed, and only the second is what a plan prescribes.

python -m tests.benchmarks.slicing_quality
"""

import time

import numpy as np

from shared.generators.projections import fit, moments
from shared.mechanisms.slicing import RowCode, Slicing, noise_for
from shared.randomness import seeded_rng
from tests.benchmarks import record
from tests.benchmarks.tables_quality import DELTA, DICTIONARY, SEEDS, N, census_like, quality, summary

EPSILONS = (5.1, 8.1)


def main():
    code = RowCode(dictionary=DICTIONARY)
    slices = 8 * code.d
    worlds = {"distance 1": 1.0, "replace-one": code.distance}
    found = {f"epsilon={e:g} {name}": [] for e in EPSILONS for name in worlds}
    seconds, sigmas = [], {}
    for seed in range(SEEDS):
        real, others = (census_like(n, 3 * seed + k) for k, n in ((0, N), (2, N // 2)))
        rows = code.encode(DICTIONARY.check(real))
        for epsilon in EPSILONS:
            for name, distance in worlds.items():
                cell = f"epsilon={epsilon:g} {name}"
                sigma = noise_for(epsilon, DELTA, d=code.d, slices=slices, distance=distance)
                # The claim of a smaller distance is the paper's; the rows are what they are.
                mechanism = Slicing(d=code.d, slices=slices, sigma=sigma)
                release = mechanism.release(rows, seeded_rng(seed))
                sigmas[cell], start = sigma, time.process_time()
                model = fit(code, moments(code, [release], sigma))
                seconds.append(time.process_time() - start)
                found[cell].append(quality(real, model.rows(N, np.random.default_rng(seed))[1], others))
        print(seed, {name: {k: round(v, 3) for k, v in each[-1].items()} for name, each in found.items()}, flush=True)
    results = {name: summary(each) for name, each in found.items()}
    results |= {"n": N, "delta": DELTA, "seeds": SEEDS, "slices": slices, "d": code.d, "sigma": sigmas}
    results["fit_cpu_seconds"] = {"median": float(np.median(seconds)), "most": float(max(seconds))}
    print(record.write("slicing_quality", results, seed=0))


if __name__ == "__main__":
    main()
