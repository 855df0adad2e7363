"""What the serving process remembers of releases: receipts and signatures, of so many at most; megabytes when full.

python -m tests.benchmarks.remembered_receipts

Receipts of the shipped cohort study, each told apart by its release, are read until the memory of them has been filled
and filled again: what it holds by then is all that it ever holds.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def anonymous() -> float:
    """Megabytes of this process that are backed by no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Measure, print, and write the file."""
    from delivered import cohort_plan
    from web_stage import WebStage

    from coordinator.store.releases import _envelope, _receipt
    from tests.benchmarks import record

    with tempfile.TemporaryDirectory() as folder:
        stage = WebStage(Path(folder) / "hub")
        stage.publish(cohort_plan(), {"alpha": 300})
        [release] = stage.store.releases("cvd")
        stage.store.close()
    receipt, envelope = release.receipt.to_bytes(), release.envelope
    own = release.release_id.encode()
    most, sizes = record.sized(_receipt.cache_info().maxsize, 16), []
    for number in range(2 * most + 1):
        if number % (most // 4) == 0:
            gc.collect()
            sizes.append(round(anonymous(), 1))
        _receipt(receipt.replace(own, b"%032x" % number))
        signed = replace(envelope, payload=envelope.payload.replace(own, b"%032x" % number))
        _envelope(signed.to_bytes())
    results = {"most": most, "receipt_bytes": len(receipt), "every_quarter_mb": sizes}
    print(results)
    record.write("remembered_receipts", results, seed=0)


if __name__ == "__main__":
    main()
