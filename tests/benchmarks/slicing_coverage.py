"""Whether intervals from slicing releases hold the truth, and what they are made of: adjusted log odds ratios.

python -m tests.benchmarks.slicing_coverage [--times 40] [--large 0] [--large-n 100000]

One hospital as in `tables_coverage`; fresh patients, directions and noise each time; replace-one, eight directions per
entry. `--large` repeats it that often for a large hospital at the higher price. `parts` are the mean shares of the
variance: of the patients and the draw (`patients`), of the noise on the lines that came through (`seen`), of room for
association that this noise hides (`drowned`), of what pairs of columns cannot say (`beyond`), and of a step being
straight (`bent`). `undamped_se` is the standard error that the noise alone would give an answer without that room: what
an estimate costs that takes nothing on trust.
"""

import argparse
from contextlib import contextmanager

import numpy as np

from shared.base.randomness import seeded_rng
from shared.mechanisms.slicing import answers as answering
from shared.mechanisms.slicing import projections
from shared.mechanisms.slicing.noise import RowCode, SlicingMechanism, noise_for
from tests.benchmarks import record
from tests.benchmarks.tables_coverage import DELTA, LEVELS, PLAN, QUESTION, TRUTH, N, covered

EPSILONS = record.sized((3.0, 8.0), (8.0,))
CODE = RowCode(dictionary=PLAN.dictionary)


@contextmanager
def watched(steps):
    """Every step that is made meanwhile, with the standard error of the same without damping."""
    made = answering._ProjectionStep.__call__

    def call(self, phi):
        moved = made(self, phi)
        along = self._centred.T @ phi / self._rows
        whole = np.linalg.lstsq(self._square, along, rcond=1e-10)[0]
        steps.append(float(np.sqrt(whole @ self._scatter @ whole)))
        return moved

    answering._ProjectionStep.__call__ = call
    try:
        yield
    finally:
        answering._ProjectionStep.__call__ = made


def measured(epsilon, times, n):
    """Coverage and parts of the variance, by term."""
    sigma = noise_for(epsilon, DELTA, d=CODE.d, slices=8 * CODE.d, distance=CODE.distance)
    mechanism = SlicingMechanism(d=CODE.d, slices=8 * CODE.d, sigma=sigma, distance=CODE.distance)
    parts = {name: [] for name, _ in TRUTH.values()}

    def answers(records, k):
        release = mechanism.release(CODE.encode(records), seeded_rng(k))
        steps = []
        with watched(steps):
            found = answering.answer(CODE, projections.moments(CODE, [release], sigma), QUESTION, levels=LEVELS)
        for row, undamped in zip(found, steps, strict=True):
            if row.yi is not None and row.term in TRUTH:
                whole = row.vi + row.vi_common
                shares = {"seen": row.vi_privacy / whole, "room": row.vi_common / whole}
                shares["patients"] = row.vi_sampling / whole
                parts[TRUTH[row.term][0]].append({**shares, "undamped_se": undamped})
        return found

    out = covered(answers, times=times, n=n)
    for name, each in parts.items():
        out[name]["parts"] = {part: float(np.mean([one[part] for one in each])) for part in each[0]}
        print(name, {part: round(share, 3) for part, share in out[name]["parts"].items()}, flush=True)
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=record.sized(40, 2))
    parser.add_argument("--large", type=int, default=0, help="times of the large hospital; 0 for none")
    parser.add_argument("--large-n", type=int, default=100_000)
    asked = parser.parse_args()
    results = {"n": N, "times": asked.times, "delta": DELTA, "slices": 8 * CODE.d}
    for epsilon in EPSILONS:
        print(f"epsilon = {epsilon:g}")
        results[f"epsilon={epsilon:g}"] = measured(epsilon, asked.times, N)
    if asked.large:
        results["large"] = {"n": asked.large_n, "times": asked.large, "epsilon": EPSILONS[-1]}
        results["large"] |= measured(EPSILONS[-1], asked.large, asked.large_n)
    print(record.write("slicing_coverage", results, seed=0))


if __name__ == "__main__":
    main()
