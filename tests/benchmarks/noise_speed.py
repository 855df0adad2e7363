"""CPU seconds for a million exact noise values, and for OpenDP's float path, scaled up from fewer.

python -m tests.benchmarks.noise_speed
"""

import time

from shared.base.randomness import seeded_rng
from shared.privacy.grids import grid_for
from tests.benchmarks import record

SEED, SCALE = 20, 1.3
MANY, FEW, REPEATS = record.sized((1_000_000, 2_000, 5), (1000, 20, 1))


def cpu_seconds(call, scaled_by=1.0):
    """Smallest, median and largest CPU time of five runs."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        times.append((time.process_time() - start) * scaled_by)
    times.sort()
    return {"min": times[0], "median": times[REPEATS // 2], "max": times[-1]}


def opendp_calls():
    """OpenDP's float mechanisms on a vector of FEW zeros."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False))
    zeros = [0.0] * FEW
    laplace = dp.m.make_laplace(domain, dp.l1_distance(T=float), scale=SCALE)
    gaussian = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=SCALE)
    return {"laplace": lambda: laplace(zeros), "gaussian": lambda: gaussian(zeros)}


def main():
    rng, grid = seeded_rng(SEED), grid_for(SCALE)
    results = {
        "values": MANY,
        "scale": SCALE,
        "grid": grid,
        "unit": "CPU seconds for `values` values, one thread",
        "ours": {
            "laplace": cpu_seconds(lambda: rng.lattice_laplace_steps(SCALE, MANY, grid) * grid),
            "gaussian": cpu_seconds(lambda: rng.lattice_gaussian_steps(SCALE, MANY, grid) * grid),
        },
        "opendp": {name: cpu_seconds(call, MANY / FEW) for name, call in opendp_calls().items()},
        "opendp_measured_on": FEW,
    }
    for library in ("ours", "opendp"):
        for name, seconds in results[library].items():
            print(f"{library:7s} {name:9s} {seconds['median']:8.2f} s")
    print(record.write("noise_speed", results, SEED))


if __name__ == "__main__":
    main()
