"""CPU seconds that a question costs where answers are computed, by how many sites answer it.

python -m tests.benchmarks.question_sites [sites ...]

1,000 rows a site, in one process, as a worker of `coordinator serve` has it: *unread* is the first question that reads
the tables, *new* the median of three others, *mean* a mean, *pooled otherwise* the last of them by another method. Of
the mean, *estimate* is what is worked out of the column itself, and *variance* what the release does to it.

*Kept* is the same in a process of its own that was started afterwards, on what the first has left in the store: its
first question, by another method, another one, and a mean.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the suite's own stage

from coordinator.pooling.pool import Pooling
from tests.benchmarks import record

SEED, ROWS, SITES = 24, 1000, record.sized((16, 121, 500), (3,))
QUESTION = "cox(time, cvd, subset = age >= {}) ~ sbp/10 + age/10"
MEANS = ("mean(sbp)", "mean(age)", "mean(chol)")
ROOM = 256 << 20  # bytes of estimates that are kept, as where no setting says otherwise


class Worker:
    """What a worker process has: the store, and what it remembers."""

    def __init__(self, store: Any) -> None:
        from coordinator.answers.site_answers import EstimateCache
        from coordinator.services.compute.kept_estimates import KeptEstimates

        self.store, self.cache = store, EstimateCache()
        self.cache.kept = KeptEstimates(store, ROOM)

    def seconds(self, question: str, **how: Any) -> float:
        """CPU seconds of a question that every site answers."""
        from coordinator.answers.queries import ask
        from coordinator.answers.release_selection import holding

        begun = time.process_time()
        answer = ask(self.store, holding(self.store, "cvd", 1), question, cache=self.cache, **how)
        taken = time.process_time() - begun
        assert not answer.result.excluded
        return round(taken, 4)


def of_means(worker: Worker) -> dict[str, float]:
    """The median of some means, and its two parts."""
    from coordinator.answers import site_answers

    spent = Counter[str]()
    whole = {name: getattr(site_answers, name) for name in ("estimating", "releasing")}

    def watched(name: str) -> Any:
        def work(*given: Any, **how: Any) -> Any:
            begun = time.process_time()
            try:
                return (yield from whole[name](*given, **how))
            finally:
                spent[name] += time.process_time() - begun

        return work

    found = []
    try:
        for name in whole:
            setattr(site_answers, name, watched(name))
        for question in MEANS:
            spent.clear()
            found.append((worker.seconds(question), spent["estimating"], spent["releasing"]))
    finally:
        for name, work in whole.items():
            setattr(site_answers, name, work)
    mean, estimate, variance = sorted(found)[1]
    return {"mean_s": mean, "mean_estimate_s": round(estimate, 4), "mean_variance_s": round(variance, 4)}


def of_sites(sites: int) -> dict[str, Any]:
    """What so many sites take."""
    import sqlalchemy as sa
    from stage.coordinator_side.delivered import cohort, cohort_plan
    from stage.coordinator_side.tables_delivered import hub

    from coordinator.store.schema import kept_questions

    with (
        tempfile.TemporaryDirectory() as folder,
        hub(Path(folder), cohort_plan(), *(cohort(ROWS, SEED + k) for k in range(sites))) as (store, _),
    ):
        worker = Worker(store)
        found = {"unread_s": worker.seconds(QUESTION.format(30))}
        found["new_s"] = sorted(worker.seconds(QUESTION.format(31 + k)) for k in range(3))[1]
        found |= of_means(worker)
        found["pooled_otherwise_s"] = worker.seconds(QUESTION.format(33), pooling=Pooling(method="DL"))
        sizes = store.read(lambda c: c.execute(sa.select(kept_questions.c.bytes)).scalars().all())
        found["kept_bytes_of_a_site"] = round(max(sizes) / sites)
        argv = [sys.executable, "-m", "tests.benchmarks.question_sites", "kept", *map(str, store.place)]
        return found | json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def kept(url: str, home: str, bundles: str) -> dict[str, float]:
    """What the same takes in this process, which was just started and has imported what a worker has."""
    from coordinator.services.compute.tasks import ANSWERING
    from coordinator.store.store import Store

    for name in ANSWERING:
        importlib.import_module(name.partition(":")[0])
    worker = Worker(Store(url, Path(home), bundles))
    found = {"kept_first_s": worker.seconds(QUESTION.format(30), pooling=Pooling(method="DL"))}
    return found | {"kept_s": worker.seconds(QUESTION.format(31)), "kept_mean_s": worker.seconds(MEANS[0])}


def main() -> None:
    """Measure, and write the JSON."""
    if sys.argv[1:2] == ["kept"]:
        print(json.dumps(kept(*sys.argv[2:])))
        return
    wanted = [int(text) for text in sys.argv[1:]] or list(SITES)
    results = {f"{sites}": of_sites(sites) for sites in wanted}
    for sites, found in results.items():
        print(sites, *(f"{name} {value:.3f}" for name, value in found.items()))
    if wanted == list(SITES):
        record.write("question_sites", {"rows": ROWS, "sites": results}, seed=SEED)


if __name__ == "__main__":
    main()
