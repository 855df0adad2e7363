"""CPU seconds and memory of one guess at the passphrase of an approver's or a lead's key, at the product's price.

python -m tests.benchmarks.passphrase_cost

Each guess is wrong, as a thief's are, and runs in a process of its own, whose peak memory over that of one that only
imports is what the guess takes. Beside it: a guess at a file of 0.1.0, encrypted as its library chose.
"""

import json
import statistics
import subprocess
import sys

from tests.benchmarks import record

GUESSES, OLD_GUESSES = record.sized((12, 2000), (1, 2))
SCRIPT = """
import json, pathlib, sys, time
from shared.base.locked import KeyCost, lock, unlock

def peak():
    told = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in told if line.startswith("VmHWM"))

cheap = unlock(lock(b"secret", "correct horse", KeyCost(n=2, r=1, p=1)), "correct horse")  # imports
before, file = peak(), sys.stdin.buffer.read()
taken, guesses = [], json.loads(sys.argv[1])
for number in range(guesses):
    start = time.process_time()
    assert unlock(file, f"wrong guess {number}") is None
    taken.append(time.process_time() - start)
print(json.dumps({"taken": taken, "mb": peak() - before}))
"""


def old_guess() -> float:
    """CPU milliseconds of a guess at an encrypted PKCS#8 file of the library's own choice."""
    import time

    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    hidden = form.BestAvailableEncryption(b"correct horse")
    data = Ed25519PrivateKey.generate().private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, hidden)
    start = time.process_time()
    for number in range(OLD_GUESSES):
        try:
            form.load_pem_private_key(data, b"wrong %d" % number)
        except ValueError:
            continue
        raise AssertionError("a wrong passphrase opened a key")
    return 1000 * (time.process_time() - start) / OLD_GUESSES


def main() -> None:
    """Measure, print, and write the file."""
    from shared.base.keys import COST
    from shared.base.locked import lock

    file = lock(b"secret", "correct horse", COST)
    made = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(GUESSES)], input=file, capture_output=True, check=True
    )
    told = json.loads(made.stdout)
    results = {
        "guesses": GUESSES,
        "cpu_seconds": {
            "min": round(min(told["taken"]), 3),
            "median": round(statistics.median(told["taken"]), 3),
            "max": round(max(told["taken"]), 3),
        },
        "memory_mb": round(told["mb"], 1),
        "parameters": {"n": COST.n, "r": COST.r, "p": COST.p},
        "before": {"cpu_ms": round(old_guess(), 3), "guesses": OLD_GUESSES},
    }
    print(results)
    record.write("passphrase_cost", results, seed=0)


if __name__ == "__main__":
    main()
