"""CPU milliseconds of a site's ledger as it grows: to open it in a new process, to charge a release, to read it.

Each release leaves seven entries, from its charge to its commit. Opening is what every command of a person begins
with; imports are not in it.

python -m tests.benchmarks.ledger_speed
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shared.base.canonical import parse_json
from shared.base.keys import SigningKey
from shared.privacy import accountant as privacy
from site_agent.ledger.book import Ledger
from site_agent.ledger.charge import Reservation
from site_agent.ledger.entries import AnchoredHead
from tests.benchmarks import record

SIZES, REPEATS = record.sized(((100, 400, 1600, 10_000), 9), ((20,), 1))
EVENT = privacy.Gaussian(sigma=40.0, sensitivity=1.0).to_canonical()
PERSON = SigningKey.generate()
OPENED = """
import sys, time
from pathlib import Path
from shared.base.keys import SigningKey
from site_agent.ledger.book import Ledger
home = Path(sys.argv[1])
key = SigningKey.load(home / "key")
start = time.process_time()
Ledger(home / "ledger.db", key, site="north")
print(1000 * (time.process_time() - start))
"""


class Anchored(AnchoredHead):
    """The coordinator's word for the head as it is."""

    def __init__(self, ledger):
        body = parse_json(ledger.anchor_payload())
        self._seen = body["seq"], body["head"]

    seq = property(lambda self: self._seen[0])
    head = property(lambda self: self._seen[1])
    index = property(lambda self: 0)


def charged(ledger, wave):
    return ledger.reserve(
        Reservation(
            study="heart",
            plan_hash="a" * 64,
            wave=wave,
            release_id=f"heart-{wave}",
            event=EVENT,
            delta=1e-6,
            cap_epsilon=1e9,
        )
    )


def delivered(ledger, hold):
    """The rest of a release, from its anchor to its commit."""
    hold = ledger.start_drawing(ledger.mark_anchored(hold, Anchored(ledger)))
    hold = ledger.show(ledger.seal(hold, "b" * 64), {})
    hold = ledger.approve(hold, name="ada", key=PERSON.public, signature=b"s" * 64, bundle_sha256="b" * 64)

    class Accepted:
        release_id, bundle_sha256, log_index, log_root = hold.release_id, "b" * 64, 7, "c" * 64

    ledger.commit(hold, Accepted())


def timed(work, times=REPEATS):
    """Median CPU milliseconds of a call."""
    took = []
    for _ in range(times):
        start = time.process_time()
        work()
        took.append(1000 * (time.process_time() - start))
    return statistics.median(took)


def main():
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        key = SigningKey.generate()
        key.save(home / "key")
        ledger = Ledger.create(home / "ledger.db", key, site="north")
        wave, start = 0, time.process_time()
        for size in SIZES:
            while len(ledger.entries()) < size:
                wave += 1
                delivered(ledger, charged(ledger, wave))
            filled = time.process_time() - start
            opened = [
                float(subprocess.run([sys.executable, "-c", OPENED, folder], check=True, capture_output=True).stdout)
                for _ in range(REPEATS)
            ]
            held = timed(ledger.holds)
            verified = timed(ledger.verify, 3)
            took = []
            for _ in range(REPEATS):
                wave += 1
                start_one = time.process_time()
                hold = charged(ledger, wave)
                took.append(1000 * (time.process_time() - start_one))
                delivered(ledger, hold)
            results[str(size)] = {
                "open_ms": statistics.median(opened),
                "reserve_ms": statistics.median(took),
                "holds_ms": held,
                "verify_s": verified / 1000,
                "filled_s": filled,
                "mb": (home / "ledger.db").stat().st_size / 1e6,
            }
            print(size, {name: round(value, 2) for name, value in results[str(size)].items()}, flush=True)
    print(record.write("ledger_speed", {"entries": results, "unit": "ms of CPU, medians"}, 0))


if __name__ == "__main__":
    main()
