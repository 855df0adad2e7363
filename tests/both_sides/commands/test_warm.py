"""The demo's commands are forked from one warm process, and each is as alone as one that is started anew."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from coordinator.demo.catalogue import play_of
from coordinator.demo.play import DemoOptions
from coordinator.demo.stage import DemoStage
from coordinator.demo.warm import Aside, Cold, EndedCommand, Warm
from shared.errors import ChecksRefusal, ParameterError, StateRefusal

TESTS = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every command is started anew")


@pytest.fixture(scope="module")
def warm():
    with closing(Warm(ENV, ("stage.processes.small_command",))) as made:
        yield made


def told(done):
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_each_command_is_a_process_of_its_own_that_finds_nothing_of_the_others(warm):
    first, second = (
        told(warm.run("stage.processes.small_command", ["tell", word], {"WORD": word})) for word in ("a", "b")
    )
    assert first["pid"] != second["pid"]
    assert first["parent"] == second["parent"] != os.getpid()
    assert (first["seen"], second["seen"]) == (["a"], ["b"])
    assert (first["word"], second["word"]) == ("a", "b")
    assert told(warm.run("stage.processes.small_command", ["tell", "c"], {}))["word"] is None
    assert first["draw"] != second["draw"], "noise is drawn anew in each"


def test_a_command_ends_as_one_that_is_started_anew(warm):
    for argv in (["tell", "a", "3"], ["break"], ["die"]):
        ours, theirs = (start.run("stage.processes.small_command", argv, {}) for start in (warm, Cold(ENV)))
        assert ours.code == theirs.code == {"tell": 3, "break": 1, "die": -9}[argv[0]]
        assert ("as it was told to" in ours.err) == (argv == ["break"])


def test_what_a_passphrase_opened_at_a_place_is_paid_for_once_there_and_nowhere_else(warm, tmp_path):
    path, word = tmp_path / "steward.pem", "correct horse battery"
    made = told(warm.run("stage.processes.small_command", ["make", str(path), word], {}, at="north"))
    assert made["guesses"] == 1
    for at, guesses in (("north", 0), ("south", 1), ("south", 0), ("north", 0), ("", 1), ("", 1)):
        found = told(warm.run("stage.processes.small_command", ["open", str(path), word], {}, at=at))
        assert (found["key"], found["guesses"]) == (made["key"], guesses), at


def test_what_is_open_at_a_place_is_still_read_from_its_file_and_opened_by_its_passphrase(warm, tmp_path):
    path, word = tmp_path / "steward.pem", "correct horse battery"
    told(warm.run("stage.processes.small_command", ["make", str(path), word], {}, at="east"))
    assert warm.run("stage.processes.small_command", ["open", str(path), "another passphrase"], {}, at="east").code == 1
    path.chmod(0o644)
    assert "StorageRefusal" in warm.run("stage.processes.small_command", ["open", str(path), word], {}, at="east").err
    path.unlink()
    assert "StateRefusal" in warm.run("stage.processes.small_command", ["open", str(path), word], {}, at="east").err


def test_of_a_command_it_is_told_what_it_took(warm):
    idle, busy = (
        warm.run("stage.processes.small_command", [verb, *rest], {}) for verb, *rest in (["tell", "a"], ["work", "0.3"])
    )
    assert idle.cpu < 0.25 < busy.cpu < 3


def gone(pid: int, seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def written(path: Path) -> int:
    until = time.monotonic() + 30
    while time.monotonic() < until and not (path.exists() and path.read_text()):
        time.sleep(0.01)
    return int(path.read_text())


def test_what_goes_on_is_told_to_stop_and_what_is_left_ends_with_the_line(tmp_path):
    with closing(Warm(ENV, ("stage.processes.small_command",))) as made:
        one, other = (
            made.start("stage.processes.small_command", ["stay", str(tmp_path / name)], {}, tmp_path / "log")
            for name in "ab"
        )
        first, second = written(tmp_path / "a"), written(tmp_path / "b")
        assert (one.poll(), other.poll()) == (None, None)
        one.stop(10)
        assert one.poll() == -15
        assert gone(first)
    assert not Path(f"/proc/{second}").exists(), "the warm process waits for what it has ended"
    with pytest.raises((StateRefusal, KeyError)):
        made.run("stage.processes.small_command", ["tell", "a"], {})


def working(number: int) -> tuple[int, int]:
    if number < 0:
        raise ParameterError("a number must be positive", given=str(number))
    return number, os.getpid()


def test_commands_find_ready_what_a_rehearsal_made_and_draw_their_own_noise_and_keys():
    modules = ("stage.processes.small_command", "site_agent.ledger.holds", "site_agent.release.pipeline.rehearsal")
    with closing(Warm(ENV, modules)) as made:
        first, second, third = (told(made.run("stage.processes.small_command", ["ready"], {})) for _ in range(3))
    assert first["ready"] == 0 < second["ready"], "while the first command works, a made-up table is released"
    for word in ("draw", "key"):
        assert len({first[word], second[word], third[word]}) == 3


def test_what_is_set_aside_is_done_in_other_processes_and_a_refusal_arrives():
    with closing(Aside(2, ())) as aside:
        begun = [aside.begin(partial(working, number)) for number in (*range(5), -1)]
        done = [ended() for ended in begun[:-1]]
        assert [number for number, _ in done] == list(range(5))
        assert os.getpid() not in {pid for _, pid in done}
        with pytest.raises(ParameterError, match="a number must be positive, got -1"):
            begun[-1]()
    assert all(gone(pid) for _, pid in done)


def test_where_nothing_is_forked_what_is_set_aside_is_done_once_when_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    done = []
    with closing(Aside(2, ())) as aside:
        ended = aside.begin(partial(done.append, 1))
        assert not done
        ended(), ended()
    assert done == [1]


class Recorded:
    """A stage, and what set aside for it, that say in what order they were asked."""

    def __init__(self, sites, plans):
        self.tables, self.plans, self.hub, self.asked, self.aside = dict.fromkeys(sites), plans, Path(), [], self

    def join(self, site):
        self.asked.append(f"{site} joins")

    def release(self, site, *studies):
        self.asked += [f"{site} releases {study}" for study in studies]

    def begin(self, work):
        self.asked.append(f"answer {work.args[1]}" if isinstance(work.args[1], str) else "real records")


def test_an_answer_is_begun_as_soon_as_its_releases_are_there_the_dearest_first():
    shown = play_of(DemoOptions(study="cvd"))
    shown.smallest = 1000
    stage = Recorded("ab", shown.plans(dt.date(2026, 11, 29)))
    shown.act(stage, lambda scene: [scene(site) for site in stage.tables])
    assert stage.asked == [
        *["real records"] * 2,
        *("a joins", "a releases cvd-moments", "b joins", "b releases cvd-moments", "answer cvd-moments"),
        *("a releases cvd-w0", "b releases cvd-w0", "answer cvd-w0", "answer cvd-w0"),
        *("a releases cvd", "b releases cvd", "answer cvd", "answer cvd"),
    ]


class Refusing:
    """A launcher whose hospital's first draw is refused by the checks, as one harmless draw in 2,000 is."""

    def __init__(self) -> None:
        self.ran = []

    def run(self, module, argv, env, *, at=""):
        self.ran.append(argv[0])
        refused = {"code": "E_CHECKS", "must": "no released row may equal a real one", "given": "1", "next_step": ""}
        if self.ran.count("release") == 1 and argv[0] == "release":
            return EndedCommand(14, json.dumps({"refused": refused}), "")
        return EndedCommand(0, json.dumps({"release_id": "ab" * 16, "warnings": []}), "")


def test_a_draw_that_the_checks_refuse_is_made_once_more(tmp_path):
    shown = play_of(DemoOptions(study="first"))
    stage = DemoStage(
        out=tmp_path, launcher=Refusing(), aside=None, play=shown, tables={"north": tmp_path / "north.csv"}
    )
    stage.release("north")
    assert stage.launcher.ran == ["release", "release", "approve"]
    stage.launcher.ran = []
    stage.launcher.run = lambda *given, **named: EndedCommand(
        14, '{"refused": {"code": "E_CHECKS", "must": "no", "next_step": ""}}', ""
    )
    with pytest.raises(ChecksRefusal):
        stage.release("north")
