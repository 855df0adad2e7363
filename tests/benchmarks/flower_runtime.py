"""How long the training of test_flower_runtime.py takes: SuperLink and two SuperNodes on loopback, three rounds.

python -m tests.benchmarks.flower_runtime

Wall time, most of which is waiting: nodes ask every three seconds, and every message starts a process. ``ready`` is
from nothing to registered nodes, theatre included; ``trained`` from `flwr run` to the finished flow; ``whole`` is the
test, with an unsigned app that is refused and the same training by the own channel.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main():
    from tests.benchmarks.record import write

    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "soak",
            "tests/mechanisms/joint_training/test_flower_runtime.py",
        ]
        subprocess.run(words, check=True, env={**os.environ, "TRIBUTARY_TIMES": str(times)})
        results = {"wall_seconds": json.loads(times.read_text()), "sites": 2, "rounds": 3}
    print(write("flower_runtime", results, seed=0))


if __name__ == "__main__":
    main()
