"""What it costs to start a command: CPU seconds of every verb's help, and of verbs that persons run, each from cold.

Run: ``python -m tests.benchmarks.startup [--repeats 3]``; ``--quick`` measures a few once, and ``--only "plan prices"``
those that are run whose name has these words, the others keeping their figures. Every measurement is a fresh
interpreter with its modules compiled, as after installation; the least of the repeats counts, since whatever else the
machine does only adds. Beside a command that opens a key stands the price of one guess at its passphrase (decision
0034), which is no overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks import record

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests import their neighbours by name
from stage.house.light_verbs import PROGRAMS, VERBS, environment, loaded, study

HELP_BAR = 0.4


def spent(module: str, argv: list[str], env: dict[str, str]) -> tuple[float, float, int]:
    """(CPU seconds, peak MB, exit code) of a command line, its children included."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    pid = os.fork()
    if not pid:
        for place in range(3):
            os.dup2(nowhere, place)
        os.execve(sys.executable, [sys.executable, "-m", module, *argv], env)
    os.close(nowhere)
    _, status, usage = os.wait4(pid, 0)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def guess() -> float:
    """CPU seconds of one guess at a passphrase."""
    from shared.base.keys import COST
    from shared.base.locked import lock

    begun = time.process_time()
    lock(b"secret", "correct horse battery", COST)
    return time.process_time() - begun


def every_verb() -> list[tuple[str, str, list[str]]]:
    """(name, module, words) of each verb of each program."""
    import importlib

    from typer.main import get_command

    def walk(command: Any, words: list[str]) -> list[list[str]]:
        inner = getattr(command, "commands", None)
        return (
            [words] if inner is None else [found for name, one in inner.items() for found in walk(one, [*words, name])]
        )

    out = []
    for program, (module, attribute) in PROGRAMS.items():
        for words in walk(get_command(getattr(importlib.import_module(module), attribute)), []):
            out.append((" ".join([program, *words]), module, words))
    return out


def main() -> None:
    """Measure and write."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--repeats", type=int, default=record.sized(3, 1))
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--only", metavar="WORDS", nargs="*", default=[])
    given = asked.parse_args()
    quick = record.sized(given.quick, True)
    repeats = 1 if quick else given.repeats
    results: dict[str, Any] = {"bars": {"help": HELP_BAR}, "help": {}, "run": {}}
    if given.only:
        results = json.loads((record.RESULTS / "startup.json").read_text(encoding="utf-8"))["results"]
    with tempfile.TemporaryDirectory() as name, study(Path(name)) as (stage, made):
        env = environment(stage) | {"PYTHONPYCACHEPREFIX": f"{name}/compiled", "OMP_NUM_THREADS": "1"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        verbs = every_verb()
        for title, module, words in [] if given.only else verbs[:: 20 if quick else 1]:
            argv = [*words, "--help"]
            tries = [spent(module, argv, env) for _ in range(repeats + 1)][1:]  # the first compiles
            assert all(code == 0 for *_, code in tries), title
            results["help"][title] = {"cpu_s": round(min(t[0] for t in tries), 3), "mb": round(tries[0][1])}
        price = results.setdefault("guess_cpu_s", round(guess(), 3))
        for verb in VERBS[:: 8 if quick else 1]:
            if given.only and not any(words in verb.name for words in given.only):
                continue
            argv = verb.argv(made)
            [heavy] = loaded([(verb.module, [*argv, "--dry-run"] if verb.once else argv)], env)
            tries = [spent(verb.module, argv, env) for _ in range(1 if verb.once else repeats)]
            assert all(code == 0 for *_, code in tries), verb.name
            cpu = min(t[0] for t in tries)
            results["run"][verb.name] = {
                "cpu_s": round(cpu, 3),
                "mb": round(tries[-1][1]),
                "bar_s": verb.bar,
                "with_a_guess": verb.unlocks,
                "heavy": heavy["heavy"],
                "within": verb.bar is None or cpu <= verb.bar + price * verb.unlocks,
            }
            print(f"{verb.name:60s} {cpu:6.3f} s  {', '.join(heavy['heavy'])}", flush=True)
    results["help_most_s"] = max(one["cpu_s"] for one in results["help"].values())
    results["help_within"] = results["help_most_s"] <= HELP_BAR
    results["verbs"] = len(results["help"])
    run = results["run"]
    barred = [one for one in run.values() if one["bar_s"] is not None]
    results["run_verbs"] = len(barred)
    results["run_within"] = sum(one["within"] for one in barred)
    ran = {title for title, *_ in verbs if any(f"{name} ".startswith(f"{title} ") for name in run)}
    results["verbs_run"] = len(ran)
    results["run_most_s"] = max(one["cpu_s"] for one in barred if not one["with_a_guess"])
    if "site-agent approve" in run:
        results["approve_beside_guess_s"] = round(run["site-agent approve"]["cpu_s"] - price, 3)
    print(f"help of {results['verbs']} verbs: at most {results['help_most_s']} s; run: {results['run_within']} within")
    if not given.quick:
        record.write("startup", results, seed=1, command="python -m tests.benchmarks.startup")


if __name__ == "__main__":
    main()
