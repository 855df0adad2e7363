"""Power that is lost at any moment loses nothing that was promised: ledger, outbox and store on a forgetful disk."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hurry import seed_of_today, soak
from stage.both_sides.service import Hub
from stage.coordinator_side.taken_back import taken_back
from stage.hospital_side.agent_life import assert_nothing_is_undercounted, assert_settled, run_agent
from stage.hospital_side.ledger import forked

from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.store.store import Store
from faults.disk import Record, faulty
from faults.served import ROOT, fast, sealed_of, served, small_plan, template  # noqa: F401
from shared.base.canonical import sha256_hex
from shared.errors import LedgerRefusal
from shared.releases.receipt import Receipt


def recorded_agent(folder: Path, home: Path, template: Receipt) -> Record:
    """Let an agent live in `home` on a recorded disk."""
    (folder / "receipt.json").write_bytes(template.to_bytes())
    before = Path(shutil.copytree(home, folder / "before", dirs_exist_ok=True))
    log = folder / "log"
    log.unlink(missing_ok=True)
    said = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "stage" / "hospital_side" / "agent_life.py"),
            str(folder / "receipt.json"),
        ],
        env={**os.environ, **faulty(home, log=log), "PYTHONPATH": str(ROOT)},
        input=f"{home}\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert said.stdout == "done\n", said
    return Record(home, log, before, elsewhere="hub")


@pytest.mark.fault("F3", "F4")
def test_a_power_cut_at_any_moment_of_a_release_costs_no_second_draw_and_no_charge(fast, template, tally):
    """A cut anywhere in a release, and anywhere in what then takes it up again."""
    rng = random.Random(seed_of_today(20))
    home, images = fast / "home", fast / "images"
    home.mkdir()
    record = recorded_agent(fast, home, template)
    assert_settled(home, template)
    cuts, again = soak(4, 350, usual=150), soak(1, 25, usual=10)
    for number, (step, variant) in enumerate(record.moments(cuts, rng)):
        image = images / f"{number}"
        record.image(step, variant, image, rng)
        assert_nothing_is_undercounted(image, fast / "scratch", template)
        if number < again:  # killed by another cut on its way back
            after_a_second_cut(fast, image, template, rng)
        else:
            assert forked(lambda image=image: run_agent(image, template)) == 0, f"step {step}, {variant}"
            assert_settled(image, template)
        shutil.rmtree(image)
    tally(cases=cuts, sites=1, bundles=cuts, lost=0, second_draws=0, undercounted=0)


def after_a_second_cut(folder: Path, image: Path, template: Receipt, rng: random.Random) -> None:
    """Cut the recovery of a cut at some moments, and let each come to its end."""
    (folder / "second").mkdir(exist_ok=True)
    shutil.rmtree(folder / "second" / "before", ignore_errors=True)
    record = recorded_agent(folder / "second", image, template)
    assert_settled(image, template)
    for step, variant in record.moments(6, rng):
        again = folder / "again"
        record.image(step, variant, again, rng)
        assert_nothing_is_undercounted(again, folder / "scratch", template)
        assert forked(lambda again=again: run_agent(again, template)) == 0, f"second cut, step {step}, {variant}"
        assert_settled(again, template)
        shutil.rmtree(again)


def test_the_forgetful_disk_forgets_what_was_not_flushed_and_nothing_else(fast):
    """The scales are weighed: files with and without a flush, renamed with and without one of their folder."""
    home, log = fast / "home", fast / "log"
    home.mkdir()
    script = """
import os, sqlite3, sys
os.chdir(sys.argv[1])
def made(name, flush):
    with open(name, "wb") as out:
        out.write(b"first")
        out.flush()
        if flush:
            os.fsync(out.fileno())
        out.write(b" second")
def folder():
    handle = os.open(".", os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
made("flushed", True)
made("unflushed", False)
folder()
made("nameless", True)
os.rename("flushed", "renamed")
base = sqlite3.connect("base.db")
base.execute("CREATE TABLE t (n)")
base.execute("INSERT INTO t VALUES (7)")
base.commit()
base.close()
"""
    env = {**os.environ, **faulty(home, log=log)}
    subprocess.run([sys.executable, "-c", script, str(home)], env=env, check=True)
    record = Record(home, log)
    ends = {variant: fast / variant for variant in ("none", "all")}
    for variant, out in ends.items():
        record.image(len(record.steps), variant, out, random.Random(1))
    left = {path.name: path.read_bytes() for path in ends["none"].iterdir() if path.suffix != ".db"}
    assert left.pop("flushed", left.pop("renamed", b"")) == b"first"
    assert left.pop("unflushed") == b""
    whole = {path.name: path.read_bytes() for path in ends["all"].iterdir()}
    assert whole == {path.name: path.read_bytes() for path in home.iterdir()}
    assert {"renamed", "nameless", "base.db"} <= whole.keys()
    assert whole["renamed"] == whole["unflushed"] == b"first second"


# -- the coordinator -------------------------------------------------------------------------------------------------
WAVES = 3


@dataclass(frozen=True)
class Told:
    """What a site was told, and how long the server's record was by then."""

    size: int
    kind: str
    site: str
    wave: int
    answer: object
    kept: int = 0
    """How long the site's own record of answers was by then."""


def answer_of(store: Store) -> str:
    """The pooled answer of wave 1, to the last digit."""
    result = ask(store, holding(store, "mini", 1), "mean(sbp)").result
    return repr(result)


def a_day(hub: Hub, sites: tuple[str, ...], size: Callable[[], int]) -> list[Told]:
    """Waves from every site, a withdrawal of the last; each answer as the site got it."""
    told = []
    for wave in range(1, WAVES + 1):
        for site in sites:
            sealed = sealed_of(hub, site, wave)
            with hub.egress(site) as egress:
                head = egress.anchor(hub.anchor(site, wave))
                told.append(Told(size(), "anchor", site, wave, head, kept(hub, site)))
                told.append(Told(size(), "release", site, wave, egress.send(sealed.envelope, sealed.path)))
                told[-1] = dataclasses.replace(told[-1], size=size(), kept=kept(hub, site))
                if wave == WAVES:
                    done = egress.withdraw(taken_back(hub, sealed))
                    told.append(Told(size(), "withdrawal", site, wave, done, kept(hub, site)))
    return told


def record_of(hub: Hub, site: str) -> Path:
    """The file in which this site keeps what it was told."""
    return hub.home / f"acknowledged.{site}.jsonl"


def kept(hub: Hub, site: str) -> int:
    return record_of(hub, site).stat().st_size


@pytest.mark.fault("F3", "F4")
def test_a_power_cut_at_any_moment_at_the_coordinator_loses_nothing_that_was_acknowledged(fast, plan, tally):
    """What a site was told is there after the cut; what it was not told goes through once when it asks again."""
    sites = ("north", "south")
    hub = Hub(fast / "hub", small_plan(plan, WAVES), *sites)
    hub.store.close()
    log, before = fast / "log", fast / "before"
    shutil.copytree(hub.home, before)
    with served(hub, hub.home, **faulty(hub.home, log=log)):
        told = a_day(hub, sites, lambda: log.stat().st_size)
    record = Record(hub.home, log, before)
    memory = {site: record_of(hub, site).read_bytes() for site in sites}
    with closing(Store.open(hub.home)) as store:
        expected = answer_of(store)
    rng, cuts, again = random.Random(seed_of_today(21)), soak(4, 150, usual=100), soak(1, 10, usual=4)
    lost = changed = asked = 0
    for number, (step, variant) in enumerate(record.moments(cuts, rng)):
        image = fast / "image"
        record.image(step, variant, image, rng)
        known = [one for one in told if one.size <= record.ends[step - 1]]
        with closing(Store.open(image)) as store:
            lost += missing(store, image, known)
            if {("north", 1), ("south", 1)} <= {(release.site, release.wave) for release in store.releases()}:
                asked += 1
                changed += answer_of(store) != expected
        if number < again:
            # A site remembers what it was told by then, and nothing of what came after the cut: the same deliveries,
            # asked for again site by site, stand in another order, and that is rightly another history.
            for site in sites:
                length = max((one.kept for one in known if one.site == site), default=0)
                record_of(hub, site).write_bytes(memory[site][:length])
            changed += taken_up_again(hub, image, sites, told, expected)
        shutil.rmtree(image)
    assert (lost, changed) == (0, 0)
    tally(cases=cuts, sites=len(sites), bundles=cuts * WAVES * len(sites), lost=lost, duplicated=0)
    tally(answers=again + asked, answers_changed=changed)


def missing(store: Store, home: Path, known: list[Told]) -> int:
    """How much of what sites were told is not there, as the files lie; and the log is whole."""
    store.verify_log()
    there = {(release.site, release.wave): release for release in store.releases()}
    buried = {(stone.site, stone.wave) for stone in store.withdrawals()}
    lost = 0
    for one in known:
        place = (one.site, one.wave)
        if one.kind == "anchor":
            lost += store.anchor(one.site) is None or store.anchor(one.site).seq < one.wave
        elif one.kind == "withdrawal":
            lost += place not in buried
        elif place not in buried:
            path = home / "bundles" / f"{there[place].bundle_sha256}.zip" if place in there else None
            lost += path is None or not path.exists() or sha256_hex(path.read_bytes()) != there[place].bundle_sha256
            lost += place in there and there[place].acceptance != one.answer
    return lost


def taken_up_again(hub: Hub, image: Path, sites: tuple[str, ...], told: list[Told], expected: str) -> int:
    """Serve what the cut left, let every site ask for everything once more; whether the answer changed."""
    with closing(Store.open(image)) as store:
        already = {(release.site, release.wave): release.acceptance for release in store.releases()}
        buried = {(stone.site, stone.wave) for stone in store.withdrawals()}
    with served(hub, image):
        for site in sites:
            with hub.egress(site) as egress:
                for wave in range(1, WAVES + 1):
                    sealed = sealed_of(hub, site, wave)
                    with contextlib.suppress(LedgerRefusal):  # a head from before one that is known
                        egress.anchor(hub.anchor(site, wave))
                    if (site, wave) not in buried:
                        answer = egress.send(sealed.envelope, sealed.path)
                        assert already.get((site, wave), answer) == answer
                    if wave == WAVES:
                        egress.withdraw(taken_back(hub, sealed))
    with closing(Store.open(image)) as store:
        found = [(release.site, release.wave) for release in store.releases()]
        assert sorted(found) == sorted((site, wave) for site in sites for wave in range(1, WAVES))
        store.verify_log()
        names = {path.name for folder in ("bundles", "staging") for path in (image / folder).glob("*")}
        assert names == {f"{release.bundle_sha256}.zip" for release in store.releases()}
        return int(answer_of(store) != expected)
