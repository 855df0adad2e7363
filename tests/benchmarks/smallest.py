"""Start benchmarks at their smallest size, each in a process of its own: what went stale with the product falls over.

python -m tests.benchmarks.smallest "NAME ARGUMENT …" …

One process imports what most of them import, and is forked for each (`multiprocessing`'s fork server): nothing that one
leaves behind is there for another, and none pays for the imports. What they write goes to a temporary folder. How small
the smallest is, each says itself (`record.sized`).
"""

from __future__ import annotations

import os
import runpy
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

HERE = Path(__file__).parent
LIMIT = 300.0
"""Seconds after which a benchmark is stopped."""
ENDING = 30.0
"""Seconds that it then has to stop what it has started."""
PRELOADED = [
    "numpy",
    "pandas",
    "scipy.stats",
    "torch",
    "statsmodels.api",
    "matplotlib.pyplot",
    "grpc",
    "cryptography.x509",
]


def commands() -> list[str]:
    """The benchmarks that are commands, by name."""
    paths = [path for path in HERE.rglob("*.py") if '\nif __name__ == "__main__":' in path.read_text()]
    return sorted(".".join(path.relative_to(HERE).with_suffix("").parts) for path in paths)


def start(command: str, folder: Path) -> tuple[int | None, str]:
    """(exit status, what was said) of a benchmark; None where it was stopped after `LIMIT` seconds.

    Args:
        command: the benchmark's name, and what it is given. folder: for what it writes.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    log = folder / "said.txt"
    process = context.Process(target=_run, args=(shlex.split(command), str(folder), str(log), sys.path))
    process.start()
    process.join(LIMIT)
    status = process.exitcode
    if status is None:
        process.terminate()  # what it has started in other groups, a database for one, only it can stop
        process.join(ENDING)
        end_group(process)
        process.join()
    return status, log.read_text(errors="replace") if log.exists() else ""


def end_group(process: BaseProcess) -> None:
    """Kill what is left of the group that a process leads or has led.

    The fork server waits for the leader, not this process. As long as one of the group lives, nobody else has the
    leader's number: where a process has it again, the group is gone, and the number is another's.
    """
    assert process.pid is not None
    if process.exitcode is None or not Path(f"/proc/{process.pid}").exists():
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _run(words: Sequence[str], folder: str, log: str, path: Sequence[str]) -> None:
    os.setsid()
    said = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for place in (1, 2):
        os.dup2(said, place)
    os.environ["TRIBUTARY_SMALLEST"] = folder
    sys.path[:] = path
    sys.argv = list(words)
    try:
        runpy.run_module(f"tests.benchmarks.{words[0]}", run_name="__main__", alter_sys=True)
    finally:
        print(f"{sum(os.times()[:4]):.1f} CPU seconds", flush=True)


def main() -> None:
    """Start those that are named, and say what each took; exit status 1 where one failed."""
    failed = 0
    for command in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            status, said = start(command, Path(folder))
            left = sorted(path.name for path in Path(folder).iterdir() if path.suffix in (".json", ".svg"))
            print(f"{command}: {time.monotonic() - begun:.1f} s, wrote {', '.join(left) or 'nothing'}")
            print("".join(f"  {line}\n" for line in said.splitlines()[-1 if status == 0 else -30 :]), flush=True)
        failed += status != 0
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
