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


def main() -> None:
    """Measure, print, and write the file."""
    from stage.browser.web_stage import WebStage
    from stage.coordinator_side.delivered import cohort_plan

    from coordinator.store.rows import REMEMBERED, envelope_of, receipt_of
    from tests.benchmarks import record
    from tests.benchmarks.processes import resident

    with tempfile.TemporaryDirectory() as folder:
        stage = WebStage(Path(folder) / "hub")
        stage.publish(cohort_plan(), {"alpha": 300})
        [release] = stage.store.releases("cvd")
        stage.store.close()
    receipt, envelope = release.receipt.to_bytes(), release.envelope
    own = release.release_id.encode()
    most, sizes = record.sized(REMEMBERED, 16), []
    for number in range(2 * most + 1):
        if number % (most // 4) == 0:
            gc.collect()
            sizes.append(round(resident(name="RssAnon"), 1))
        receipt_of(receipt.replace(own, b"%032x" % number))
        signed = replace(envelope, payload=envelope.payload.replace(own, b"%032x" % number))
        envelope_of(signed.to_bytes())
    results = {"most": most, "receipt_bytes": len(receipt), "every_quarter_mb": sizes}
    print(results)
    record.write("remembered_receipts", results, seed=0)


if __name__ == "__main__":
    main()
