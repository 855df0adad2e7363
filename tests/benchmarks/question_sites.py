"""CPU seconds that a question costs where answers are computed, by how many sites answer it.

python -m tests.benchmarks.question_sites [sites ...]

1,000 rows a site, in one process, as a worker of `coordinator serve` has it: *unread* is the first question that reads
the tables, *new* the median of three others, *mean* a mean, *pooled otherwise* the last of them by another method.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the suite's own stage

from tests.benchmarks import record

SEED, ROWS, SITES = 24, 1000, record.sized((16, 121, 500), (3,))
QUESTION = "cox(time, cvd, subset = age >= {}) ~ sbp/10 + age/10"


def of_sites(sites: int) -> dict[str, Any]:
    """What so many sites take."""
    from delivered import cohort, cohort_plan
    from test_intervals import hub

    from coordinator.answers.queries import ask
    from coordinator.answers.release_selection import holding
    from coordinator.answers.site_answers import EstimateCache
    from coordinator.pooling.pool import Pooling

    with (
        tempfile.TemporaryDirectory() as folder,
        hub(Path(folder), cohort_plan(), *(cohort(ROWS, SEED + k) for k in range(sites))) as (store, _),
    ):
        cache = EstimateCache()

        def seconds(question: str, **how: Any) -> float:
            begun = time.process_time()
            answer = ask(store, holding(store, "cvd", 1), question, cache=cache, **how)
            assert answer.result.k == sites
            return time.process_time() - begun

        def answered(question: str, **how: Any) -> float:
            return round(seconds(question, **how), 4)

        unread = answered(QUESTION.format(30))
        new = sorted(answered(QUESTION.format(31 + k)) for k in range(3))
        means = sorted(answered(f"mean({name})") for name in ("sbp", "age", "chol"))
        again = answered(QUESTION.format(33), pooling=Pooling(method="DL"))
        return {"unread_s": unread, "new_s": new[1], "mean_s": means[1], "pooled_otherwise_s": again}


def main() -> None:
    """Measure, and write the JSON."""
    wanted = [int(text) for text in sys.argv[1:]] or list(SITES)
    results = {f"{sites}": of_sites(sites) for sites in wanted}
    for sites, found in results.items():
        print(sites, *(f"{name} {value:.3f}" for name, value in found.items()))
    if wanted == list(SITES):
        record.write("question_sites", {"rows": ROWS, "sites": results}, seed=SEED)


if __name__ == "__main__":
    main()
