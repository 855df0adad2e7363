"""The report of figures that moved since they were committed, on files that are made up."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.benchmarks import drift
from tests.benchmarks.record import COMMITTED

PAGES = {("fits", "gap/w=0"): {"moments.md": ".3f"}, ("fits", "seconds"): {"running.md": ".1f", "sites.md": ".0f"}}


def compared(before, now, **how):
    return {one.place: one for one in drift.compared("fits", before, now, PAGES, **how)}


def nested(place, value):
    for key in reversed(place.split("/")):
        value = {key: value}
    return value


def test_a_figure_that_moved_by_more_than_a_fifth_is_listed_with_its_page():
    found = compared({"gap": {"w=0": 0.010, "w=1": 0.010}}, {"gap": {"w=0": 0.013, "w=1": 0.0119}})
    assert [*found] == ["gap/w=0"]
    one = found["gap/w=0"]
    assert (one.before, one.now, one.pages, one.cost) == (0.010, 0.013, ("moments.md",), False)
    assert one.ratio == pytest.approx(1.3)


def test_how_far_is_far_is_asked():
    before, now = {"gap": {"w=1": 1.0}}, {"gap": {"w=1": 1.15}}
    assert compared(before, now) == {}
    assert [*compared(before, now, beyond=0.1)] == ["gap/w=1"]


def test_near_zero_a_figure_moves_by_more_than_one_unit_of_the_last_place_that_its_page_shows():
    assert compared({"gap": {"w=0": 0.001}}, {"gap": {"w=0": 0.002}}) == {}
    assert [*compared({"gap": {"w=0": 0.001}}, {"gap": {"w=0": 0.0021}})] == ["gap/w=0"]
    assert [*compared({"gap": {"w=1": 0.001}}, {"gap": {"w=1": 0.002}})] == ["gap/w=1"], "no page rounds this one"


def test_the_finest_of_several_pages_counts():
    assert compared({"seconds": 0.1}, {"seconds": 0.2}) == {}
    assert [*compared({"seconds": 0.1}, {"seconds": 0.3})] == ["seconds"]


def test_from_zero_every_step_is_far_and_has_no_ratio():
    [one] = compared({"wrong": 0}, {"wrong": 2}).values()
    assert one.ratio is None
    assert compared({"wrong": 0}, {"wrong": 0}) == {}


@pytest.mark.parametrize(("before", "now", "far"), [("nan", "nan", False), ("nan", "1", True), ("1", "nan", True)])
def test_what_is_no_number_moves_where_the_other_is_one(before, now, far):
    assert drift.moved(float(before), float(now), 0.2) is far


def test_what_appears_and_what_goes_is_listed():
    found = compared({"gap": {"w=0": 1.0}, "rows": [1, 2]}, {"gap": {"w=1": 1.0}, "rows": [1]})
    assert {place: (one.before, one.now) for place, one in found.items()} == {
        "gap/w=0": (1.0, None),
        "rows/1": (2.0, None),
        "gap/w=1": (None, 1.0),
    }


@pytest.mark.parametrize(
    ("place", "cost"),
    [
        ("seconds", True),
        ("open_ms", True),
        ("cpu_seconds/plain", True),
        ("after/peak_mb", True),
        ("fit/taken_s/median", True),
        ("cells/normal/bias_se", False),
        ("gap/sbp", False),
        ("sites", False),
        ("share/w=0.8", False),
    ],
)
def test_seconds_and_megabytes_stand_apart(place, cost):
    [one] = drift.compared("some", nested(place, 1.0), nested(place, 2.0), {})
    assert one.cost is cost


def test_of_a_file_in_seconds_every_figure_is_the_machines():
    [one] = drift.compared("some", {"ours": 1.0}, {"ours": 2.0, "unit": "CPU seconds, doubles"}, {})
    assert one.cost


def test_every_figure_of_the_pages_is_known_with_its_format():
    shown = drift.shown()
    assert len(shown) > 1000
    for (file, place), pages in shown.items():
        assert drift.write.number(file, place) is not None
        assert all(drift.last_place(form) > 0 for form in pages.values()), (file, place, pages)


@pytest.fixture
def folder(tmp_path):
    """A folder with two files of today, in one of which a figure of a page is twice what it was."""
    (file, place), _ = next(one for one in drift.shown().items() if drift.write.number(*one[0]) > 1)
    kept = drift.committed("HEAD", file)
    at = kept["results"]
    *way, last = place.split("/")
    for key in way:
        at = at[int(key) if isinstance(at, list) else key]
    at[last] *= 2
    (tmp_path / f"{file}.json").write_text(json.dumps(kept))
    other = "coverage" if file != "coverage" else "load"
    (tmp_path / f"{other}.json").write_text((COMMITTED / f"{other}.json").read_text())
    return tmp_path, file, place, other


def run(*words):
    command = [sys.executable, "-m", "tests.benchmarks.drift", *map(str, words)]
    return subprocess.run(command, cwd=drift.ROOT, capture_output=True, text=True, check=False)


def test_the_command_says_what_moved_and_how_old_the_rest_is(folder):
    path, file, place, other = folder
    told = run("--results", path)
    assert told.returncode == 0, told.stderr
    assert f"  {file}:{place}  " in told.stdout
    assert ", 2.00 times (" in told.stdout
    assert f"  {other} 20" in told.stdout
    again = json.loads(run("--results", path, "--json").stdout)
    assert [(one["file"], one["place"], one["ratio"]) for one in again["figures"]] == [(file, place, 2.0)]
    assert [(age["file"], age["product_commits"] >= 0) for age in again["ages"]] == [(other, True)]


def test_strict_fails_where_a_figure_on_a_page_moved_and_only_there(folder):
    path, _, _, other = folder
    assert run("--results", path, "--strict").returncode == 1
    assert run("--results", path, "--strict", other).returncode == 0
    assert run("--results", path, "--strict", "--beyond", "1.5").returncode == 0
