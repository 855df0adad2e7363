"""CPU time and memory of capped counts where somebody, or everybody, knows many.

python -m tests.benchmarks.network_time [NAME …] [--before DIRECTORY]

Each count is made in a process of its own: CPU seconds of the count alone, and the most memory that the process held.
What the file holds of other counts stays. With ``--before``, the same of an older version's code, whose package
`shared` lies in that directory, for at most :data:`LIMIT` CPU seconds each: where it did not end, `ended` is 0.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import json
import resource
import subprocess
from pathlib import Path

import numpy as np
from scipy import sparse

SEED = 5
LIMIT = 60


def ends(rng, n, mean):
    """About n · mean / 2 edges between persons by chance."""
    return tuple(rng.integers(0, n, (2, n * mean // 2)))


def star(n):
    return np.zeros(n - 1, dtype=int), np.arange(1, n)


def hub(n, mean):
    """Somebody whom all know, and all know about so many others too."""
    return [np.r_[one, other] for one, other in zip(ends(np.random.default_rng(SEED), n, mean), star(n), strict=True)]


def hubs(n, many, known, mean):
    """Several who are known to so many."""
    rng = np.random.default_rng(SEED)
    a, b = ends(rng, n, mean)
    theirs = [rng.permutation(np.arange(many, n))[:known] for _ in range(many)]
    return np.r_[a, np.repeat(np.arange(many), known)], np.r_[b, np.concatenate(theirs)]


def dense(n, share):
    a, b = np.triu_indices(n, 1)
    met = np.random.default_rng(SEED).random(len(a)) < share
    return a[met], b[met]


def tail(n, mean, most):
    """Degrees with a heavy tail: weights of Pareto's law with exponent 1.5."""
    rng = np.random.default_rng(SEED)
    weight = np.minimum(rng.pareto(1.5, n) + 1, most)
    return rng.choice(n, (2, n * mean // 2), p=weight / weight.sum())


CASES = {
    "star of 2,000, paths at 100": (star, (2_000,), "paths", 100),
    "star of 12,000, paths at 100": (star, (12_000,), "paths", 100),
    "hub of 3,000, paths at 100": (hub, (3_000, 20), "paths", 100),
    "hub of 12,000, paths at 100": (hub, (12_000, 20), "paths", 100),
    "hub of 12,000, paths at 600": (hub, (12_000, 20), "paths", 600),
    "hub of 12,000, triangles at 15": (hub, (12_000, 20), "triangles", 15),
    "five hubs of 5,000, paths at 100": (hubs, (12_000, 5, 5_000, 10), "paths", 100),
    "clique of 2,000, paths at 100": (dense, (2_000, 1.0), "paths", 100),
    "clique of 2,000, triangles at 100": (dense, (2_000, 1.0), "triangles", 100),
    "dense 1,500, paths at 100": (dense, (1_500, 0.3), "paths", 100),
    "dense 1,500, triangles at 100": (dense, (1_500, 0.3), "triangles", 100),
    "heavy tail of 30,000, paths at 870": (tail, (30_000, 10, 3_000), "paths", 870),
    "heavy tail of 30,000, triangles at 20": (tail, (30_000, 10, 3_000), "triangles", 20),
}


def spent():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def one(name):
    """Count in this process, and print what it took."""
    from shared.mechanisms.grand.counts import simple
    from shared.mechanisms.network_counts import capped

    made, how, motif, cap = CASES[name]
    a, b = made(*how)
    n = how[0]
    ties = simple(sparse.csr_array((np.ones(2 * len(a)), (np.r_[a, b], np.r_[b, a])), shape=(n, n)))
    before = spent()
    value = {"paths": capped.capped_paths, "triangles": capped.capped_triangles}[motif](ties, cap)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu_s": spent() - before, "peak_mb": memory, "value": value, "ended": 1}))


def measured(name, code, limit):
    told = subprocess.run(
        [sys.executable, __file__, "--one", name],
        env=os.environ | {"PYTHONPATH": str(code)},
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)) if limit else None,
        check=False,
    )
    return json.loads(told.stdout) if told.returncode == 0 else {"cpu_s": limit, "ended": 0}


def main():
    given = sys.argv[1:]
    if given[:1] == ["--one"]:
        return one(given[1])
    from tests.benchmarks import record

    path = record.RESULTS / "network_time.json"
    code, when = Path(__file__).parents[2], "now"
    if "--before" in given:
        at = given.index("--before")
        code, when, given = given[at + 1], "before", given[:at] + given[at + 2 :]
    for name in given or CASES:
        found = measured(name, code, LIMIT if when == "before" else 0)
        print(when, name, found, flush=True)
        held = json.loads(path.read_text())["results"] if path.exists() else {}
        held[when] = {**held.get(when, {}), name: found}
        record.write("network_time", held, seed=SEED, command="python -m tests.benchmarks.network_time")


if __name__ == "__main__":
    main()
