"""CPU milliseconds for proofs of a log of 100,000 entries, from a store on disk; and for a site's look at each answer.

A look is the signed head with growth proofs from two sizes.

python -m tests.benchmarks.log_proofs
"""

import datetime as dt
import random
import tempfile
import time
from pathlib import Path

from coordinator.store import schema as db
from coordinator.store.log_watch import LogWatch
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.base.merkle.tree import append, leaf_hash, peaks_root, verify_consistency, verify_inclusion
from shared.wire.site_messages import WatchRequest
from tests.benchmarks import record

SEED = 20
ENTRIES, PROOFS = record.sized((100_000, 2000), (40, 4))
TODAY = dt.date(2026, 5, 1)


def filled(store):
    """Write the log's rows as acceptances do, many to a transaction."""
    peaks, rows, roots = (), [], []
    for index in range(ENTRIES):
        data = b'{"kind":"anchor","seq":%d,"site":"north"}' % index
        leaf = leaf_hash(data)
        peaks = append(peaks, index, leaf)
        roots.append(peaks_root(peaks))
        rows.append({"index": index, "entry": data, "leaf": leaf, "peaks": b"".join(peaks), "root": roots[-1].hex()})
    store.write(lambda c: c.execute(db.log.insert(), rows))
    return roots


def spread(seconds):
    """Milliseconds: least, median, 99 % and most."""
    ordered = sorted(1000 * value for value in seconds)
    at = {"min": 0, "median": len(ordered) // 2, "p99": int(0.99 * len(ordered)), "max": -1}
    return {name: round(ordered[place], 4) for name, place in at.items()}


def timed(work, given):
    """CPU time of each call, which other jobs on the machine hardly touch, and what it gave."""
    took, made = [], []
    for one in given:
        start = time.process_time()
        made.append(work(*one))
        took.append(time.process_time() - start)
    return spread(took), made


def main():
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder))
        roots = filled(store)
        entries = store.log()
        start = time.process_time()
        store.prove_growth(1)
        first = 1000 * (time.process_time() - start)
        pairs = [tuple(sorted(rng.sample(range(1, ENTRIES + 1), 2))) for _ in range(PROOFS)]
        growth, proofs = timed(store.prove_growth, pairs)
        for (old, new), proof in zip(pairs, proofs, strict=True):
            assert verify_consistency(old, new, proof, roots[old - 1], roots[new - 1])
        places = [(rng.randrange(ENTRIES), ENTRIES) for _ in range(PROOFS)]
        inclusion, proofs = timed(store.prove, places)
        for (index, size), proof in zip(places, proofs, strict=True):
            assert verify_inclusion(leaf_hash(entries[index].entry), index, size, proof, roots[-1])
        watch = LogWatch(store, coordinator="hub", key=SigningKey.generate())
        looks = [(WatchRequest(sizes=pair), TODAY) for pair in pairs]
        view, _ = timed(watch.view, looks)
        store.close()
    results = {"entries": ENTRIES, "proofs": PROOFS, "unit": "ms of CPU", "first_after_start": round(first, 1)}
    results |= {"growth": growth, "inclusion": inclusion, "look": view}
    print(results)
    print(record.write("log_proofs", results, SEED))


if __name__ == "__main__":
    main()
