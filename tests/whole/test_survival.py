"""Wherever a process of the real product is killed, one charge buys one draw, and one draw is delivered once.

Here ``site-agent`` and ``coordinator`` run as processes with mutual TLS between them, and die by SIGKILL. What is
asserted is read without the product's code where that is possible: the ledger's rows from a copy of its file, the
draws from a note that the test takes before any byte is written, the bundles from the coordinator's folder.
"""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hurry import part_of_today
from stage.processes.survival import LIVES, NEW, WAVES, WRONGS, assert_settled, cohort, study_of, table, theatre, wrongs  # noqa: F401
from stage.processes.theatre import ROOT, Theatre, plan_toml

KILLED = -signal.SIGKILL
PLACES = {"ledger.head", "ledger.population", "outbox.statement", "outbox.checks", "outbox.audit"}
PLACES |= {"seal.bundle", "seal.fit", "seal.rows"}
RECOVERY = (
    "seal.bundle.before_rename",
    "ledger.recover.before_burn",
    "outbox.recover.before_part",
    "outbox.recover.before_delete",
    "outbox.recover.after_delete",
)
CREATION = ("ledger.create.before_schema", "ledger.create.before_link", "ledger.create.after_link")

OTHER_VERBS = ("federate.", "sum.", "renewal.", "keys.", "approver.", "snapshot.", "backup.", "recovery.", "authority.")
"""Steps of no release: `test_kill_matrix.py` and `test_summing.py` say where a site is killed at them."""


def written_failpoints() -> set[str]:
    """Every failpoint in the site's sources, places of `write_whole` filled in."""
    text = "".join(path.read_text() for path in sorted((ROOT / "site_agent").rglob("*.py")))
    names = set(re.findall(r'\breach\(f?"([^"]+)"\)', text))
    assert len(re.findall(r"\breach\(", text)) == len(re.findall(r'\breach\(f?"', text)), "each name is written out"
    # One of the seven is no step of a release, nor are those of a training or a sum that several sites run.
    assert len(re.findall(r"write_whole\(", text)) == 1 + 7 + 4 + 4, "a new writer needs its place in this test"
    names = {name for name in names if not name.startswith(OTHER_VERBS)}
    plain = {name for name in names if "{" not in name}
    return plain | {name.replace("{place}", place) for name in names - plain for place in PLACES}


def admit(theatre: Theatre, site: str, wave: int) -> Path:
    """The hospital's table as of a wave: it grows, unless everybody is released each time anyway."""
    path = theatre.folder / f"{site}.csv"
    cohort(NEW * (2 if study_of(site) == "refresh" else wave)).to_csv(path, index=False)
    return path


# -- an operator who does not give up -------------------------------------------------------------------------------
def killed_at(theatre: Theatre, site: str, point: str, *argv: object) -> None:
    answer = theatre.agent(site, *argv, expect=None, env={"TRIBUTARY_FAILPOINT": point})
    assert answer.code == KILLED, f"{point}: {answer}"
    assert_nothing_is_undercounted(theatre, site)


def release(theatre: Theatre, site: str, wave: int) -> str:
    """Release until something waits in the outbox; its id."""
    for _ in range(5):
        answer = theatre.agent(site, "release", study_of(site), "--wave", wave, expect=None)
        assert answer.code == 0 or answer.refused == "E_STATE", str(answer)
        waiting = answer.json["release_id"] if answer.code == 0 else theatre.waiting(site, wave, study_of(site))
        if waiting:
            return waiting
    raise AssertionError(f"wave {wave} at {site} does not get to the outbox: {answer}")


def one_wave(
    theatre: Theatre, site: str, wave: int, *, drawing: tuple[str, ...], sending: str = "", by_run: bool = False
) -> int:
    """Bring one wave to delivery, killed at each of these points on the way; how many kills.

    Args:
        by_run: the unattended agent is what is killed. What was burnt, it leaves to a person.
    """
    by_hand = ("release", study_of(site), "--wave", wave)
    for point in drawing:
        interrupted, burnt = draws_without_a_seal(theatre, site, wave)
        if interrupted and point not in RECOVERY:
            assert theatre.agent(site, *by_hand, expect=None).refused == "E_STATE", "burnt first, and told"
        unattended = by_run and not interrupted and not burnt
        killed_at(theatre, site, point, *(("run", "--once") if unattended else by_hand))
    waiting = release(theatre, site, wave)
    if sending:
        killed_at(theatre, site, sending, "approve", waiting, "--as", "steward")
    assert theatre.approve(site, waiting).json["state"] == "delivered"
    return len(drawing) + bool(sending)


def draws_without_a_seal(theatre: Theatre, site: str, wave: int) -> tuple[bool, bool]:
    """Whether a draw of this wave was begun and neither sealed nor burnt; and whether one was burnt."""
    entries = theatre.entries(site)
    mine = {body["release_id"] for kind, body in entries if kind == "reserve" and body["wave"] == wave}
    begun, sealed, burnt = (
        {body["release_id"] for kind, body in entries if kind == wanted} & mine
        for wanted in ("drawing", "seal", "burn")
    )
    return bool(begun - sealed - burnt), bool(burnt)


# -- what must hold --------------------------------------------------------------------------------------------------
def assert_nothing_is_undercounted(theatre: Theatre, site: str) -> None:
    """Right after a crash, before any recovery: as many charges as draws, or more; and one seal per charge."""
    entries = theatre.entries(site)
    noted = Counter(line["kind"] for line in theatre.noted(site))
    kinds = Counter(kind for kind, _ in entries)
    assert noted["draw"] <= kinds["drawing"] <= kinds["reserve"]
    per_charge = Counter((kind, body.get("release_id")) for kind, body in entries if kind in ("drawing", "seal"))
    assert not per_charge or max(per_charge.values()) == 1


# -- kill -9 at the site ---------------------------------------------------------------------------------------------
def points_passed(theatre: Theatre, site: str, wave: int) -> tuple[list[str], list[str]]:
    """Each failpoint that an undisturbed release passes, and an approval, in order: the wave is delivered."""
    lists = []
    for step in ("release", "approve"):
        before = len(theatre.noted(site))
        if step == "release":
            theatre.agent(site, "release", study_of(site), "--wave", wave, hooks=["trace"])
        else:
            theatre.approve(site, theatre.waiting(site, wave, study_of(site)), hooks=["trace"])
        lists.append([line["name"] for line in theatre.noted(site)[before:] if line["kind"] == "reach"])
    return lists[0], lists[1]


def chosen(passed: list[str], *, every: bool) -> list[str]:
    """``name:k``, in order: each failpoint once, early or late; around each commit, and with `every`, everywhere."""
    times, seen = Counter(passed), Counter()
    early_or_late = {name: 1 + number % times[name] for number, name in enumerate(sorted(times))}
    out = []
    for name in passed:
        seen[name] += 1
        whole = every or name in ("ledger.before_commit", "ledger.after_commit")
        if whole or seen[name] == early_or_late[name]:
            out.append(f"{name}:{seen[name]}")
    return out


def together(drawing: list[str], passed: list[str]) -> list[tuple[str, ...]]:
    """The same points in fewer waves: one after another where each is still passed as often after those before it.

    First those that burn the draw, since each new charge begins anew. Then one before the drawing, and after it one
    that is passed once anyway, after the seal. Or one after the seal that is passed often.
    """
    place = {f"{name}:{passed[:k].count(name) + 1}": k for k, name in enumerate(passed)}
    begun, entered = place["pipeline.drawing:1"], place["seal.before_entry:1"]
    burning = [point for point in drawing if begun <= place[point] <= entered]
    early = [point for point in drawing if place[point] < begun]
    late = [point for point in drawing if place[point] > entered]
    once = [point for point in late if passed.count(point.partition(":")[0]) == 1]
    often = [point for point in late if point not in once]
    waves = [(point, *once[k :: len(early)]) for k, point in enumerate(early)] + [(point,) for point in often]
    others = range(0, len(waves), 2)  # the rest has nothing burnt, so that an unattended agent is killed there as well
    burnt = {k: burning[number :: len(others)] for number, k in enumerate(others)}
    return [(*burnt.get(k, ()), *points) for k, points in enumerate(waves)]


@pytest.mark.fault("F1")
@pytest.mark.parametrize(
    ("lives", "rounds", "every"),
    [
        pytest.param(LIVES, 1, False, id="1"),
        pytest.param(LIVES, 12, False, marks=pytest.mark.soak, id="12"),
        pytest.param(("refresh",), 1, True, marks=pytest.mark.soak, id="refresh-every-passage"),
        pytest.param(("append",), 1, True, marks=pytest.mark.soak, id="append-every-passage"),
        pytest.param(("frozen",), 1, True, marks=pytest.mark.soak, id="frozen-every-passage"),
    ],
)
def test_wherever_release_or_approve_is_killed_one_charge_is_drawn_once_and_delivered_once(
    theatre, lives, rounds, every, record_property, tally
):
    """Killed in every wave, also where a later one draws new persons through the flow of the first.

    A round kills at each failpoint once, in a hurry one in eight of them; with `every`, at each passage in a wave.
    """
    asked = int(os.environ.get("TRIBUTARY_SOAK") or 0)
    if (rounds > 1 or every) and not asked:
        pytest.skip("set TRIBUTARY_SOAK")
    if rounds > 1 and asked > 1:  # TRIBUTARY_SOAK=1 asks for all rounds, a larger number for so many
        rounds = asked
    # So wide that no wave has outliers by chance, which a person would have to tick.
    theatre.open(*(plan_toml(study=life, waves=WAVES, returning=life, radius=100.0) for life in lives))
    first = f"{lives[-1]}-0"
    theatre.join(first, admit(theatre, first, 1), study_of(first))
    points_passed(theatre, first, 1)
    admit(theatre, first, 2)
    release_passes, approve_passes = points_passed(theatre, first, 2)
    drawn = [RECOVERY, *together(chosen(release_passes, every=every), release_passes)]
    sending = chosen(approve_passes, every=every)
    longest = max(len(drawn), len(sending))
    drawn += [()] * (longest - len(drawn))
    sending += [""] * (longest - len(sending))
    whole = list(zip(drawn, sending, strict=True))
    reached = Counter(point.partition(":")[0] for before, then in whole for point in (*before, then) if point)
    assert {*reached, *CREATION} == written_failpoints()
    cases = part_of_today(whole, 8) if rounds == 1 and not every else whole * rounds
    # Few waves at many sites in the soak, because each transaction reads its whole ledger. Wave 1 is left alone.
    many = max(len(lives), -(-len(cases) // (WAVES - 1)))
    hands = {f"{lives[k % len(lives)]}-{k + 1}": cases[k::many] for k in range(many)}
    waves = {first: 2} | {site: 1 + len(mine) for site, mine in hands.items()}
    stormy = frozenset(list(hands)[:rounds])
    assert len(stormy) == rounds

    def play(site: str) -> int:
        table = admit(theatre, site, 1)
        if site in stormy:
            killed_while_joining(theatre, site, table)
        else:
            theatre.join(site, table, study_of(site))
        one_delivered(theatre, site)
        count = 0
        for wave, (before, then) in enumerate(hands[site], start=2):
            admit(theatre, site, wave)
            count += one_wave(theatre, site, wave, drawing=before, sending=then, by_run=wave % 2 == 0)
        return count

    assert max(waves.values()) > 2, "an agent is killed in even waves, a person's command in odd ones"
    with ThreadPoolExecutor(2) as pool:
        killed = sum(pool.map(play, hands)) + rounds * len(CREATION)
    hit = Counter(point.partition(":")[0] for before, then in cases for point in (*before, then) if point)
    hit.update(CREATION * rounds)
    assert not asked or min(hit[point] for point in written_failpoints()) >= rounds
    counts = assert_settled(theatre, waves)
    for name, count in {"rounds": rounds, "killed": killed, "failpoints": len(hit), **counts}.items():
        record_property(name, count)
    tally(cases=killed, sites=len(waves), failpoints=hit, failpoints_written=written_failpoints(), **as_tally(counts))
    print(f"\nsite killed {killed} times at {len(hit)} failpoints, {' and '.join(lives)}: {in_words(counts)}")


def as_tally(counts: Counter) -> dict[str, int]:
    """These counts by the names of `faults.catalogue.COUNTS`."""
    names = {"delivered": "bundles", "second": "second_draws", "under": "undercounted", "over": "overspends"}
    return {name: counts[mine] for mine, name in {**names, "unapproved": "unapproved"}.items()}


def in_words(counts: Counter) -> str:
    return (
        f"{counts['charges']} charges, {counts['draws']} draws, {counts['delivered']} delivered, "
        f"{counts['burnt']} burnt, second draws {counts['second']}, under-counts {counts['under']}, "
        f"overspends {counts['over']}, unapproved {counts['unapproved']}"
    )


def killed_while_joining(theatre: Theatre, site: str, table: Path) -> None:
    """Join, after the first command was killed at every step of making the ledger."""
    invitation = theatre.invite(site, study_of(site))
    setup = ("init", "--invitation", invitation, "--approver", "steward")
    for point in CREATION:
        answer = theatre.agent(site, *setup, expect=None, env={"TRIBUTARY_FAILPOINT": point})
        assert answer.code == KILLED, f"{point}: {answer}"
    made = theatre.agent(site, *setup).json
    theatre.agent(site, "join")
    theatre.coordinator("accept", site, "--fingerprint", made["fingerprint"])
    theatre.agent(site, "join")
    theatre.adopt(site, table, study_of(site))


def one_delivered(theatre: Theatre, site: str) -> None:
    """An undisturbed wave, and what asking again does: nothing is drawn or sent twice."""
    one_wave(theatre, site, 1, drawing=())
    again = theatre.agent(site, "approve", theatre.waiting(site, 1, study_of(site)), "--as", "steward").json
    assert (again["state"], again["accepted"]) == ("delivered", None)
    assert theatre.agent(site, "release", study_of(site), "--wave", 1, expect=None).refused == "E_STATE"


# -- a backup put back -----------------------------------------------------------------------------------------------
COUNTING = tuple(f"ledger.{step}" for step in ("before_insert", "after_insert", "before_commit", "after_commit"))
COUNTING += tuple(f"ledger.head.{step}" for step in ("before_write", "before_fsync", "before_rename"))
"""Where `ledger recover` is killed, each time a step further than the last."""
WITNESSING = ("egress.before_keep", "egress.after_keep")


@pytest.mark.fault("F4", "F17")
@pytest.mark.parametrize("rounds", [1, pytest.param(25, marks=pytest.mark.soak)])
def test_a_backup_put_back_after_the_seal_or_before_it_is_made_good_whatever_kills_the_recovery(
    theatre, rounds, record_property, tally
):
    if rounds > 1:
        asked = int(os.environ.get("TRIBUTARY_SOAK") or 0)
        if not asked:
            pytest.skip("set TRIBUTARY_SOAK")
        rounds = asked if asked > 1 else rounds
    theatre.open(plan_toml(study="append", waves=WAVES, returning="append", radius=100.0))
    counts: Counter = Counter()
    for turn in range(rounds):
        counts.update(put_back_twice(theatre, f"append-{turn}", WITNESSING[turn % 2]))
    assert [counts[wrong] for wrong in WRONGS] == [0, 0, 0, 0]
    assert theatre.coordinator("log", "verify").json["verified"]
    for name, count in {"rounds": rounds, **counts}.items():
        record_property(name, count)
    tally(cases=counts["killed"] + 2 * rounds, sites=rounds, **as_tally(counts))
    print(f"\nbackups put back {2 * rounds} times, recovery killed {counts['killed']} times: {in_words(counts)}")


def put_back_twice(theatre: Theatre, site: str, witnessing: str) -> Counter:
    """A site whose folder is put back to between seal and acknowledgement, then to before the draw; what it counts.

    Args:
        witnessing: where it is killed once the study lead has let it go on.
    """
    home, entries = theatre.home(site), {}

    def remember() -> None:
        entries.update({body["salt"]: (kind, body) for kind, body in theatre.entries(site)})

    def put_back(backup: Path) -> None:
        remember()
        shutil.rmtree(home)
        shutil.copytree(backup, home)

    def accepted() -> list[dict]:
        return [row for row in theatre.coordinator("releases").json["accepted"] if row["site"] == site]

    theatre.join(site, admit(theatre, site, 1), "append")
    one_wave(theatre, site, 1, drawing=())
    early = Path(shutil.copytree(home, theatre.folder / f"{site}-early"))
    admit(theatre, site, 2)
    waiting = release(theatre, site, 2)
    late = Path(shutil.copytree(home, theatre.folder / f"{site}-late"))
    assert theatre.approve(site, waiting).json["state"] == "delivered"
    before = accepted()

    put_back(late)  # sealed there, and acknowledged since: the same bytes are sent again, and taken once
    assert theatre.approve(site, waiting).json["state"] == "delivered"
    assert accepted() == before
    assert theatre.agent(site, "ledger", "recover").json["state"] == "whole"

    put_back(early)  # nothing there of a release that was drawn, sealed and delivered
    admit(theatre, site, 3)
    assert theatre.agent(site, "release", "append", "--wave", 3, expect=None).refused == "E_LEDGER"
    assert sum(line["kind"] == "draw" for line in theatre.noted(site)) == 2
    for point in COUNTING:
        answer = theatre.agent(site, "ledger", "recover", expect=None, env={"TRIBUTARY_FAILPOINT": point})
        assert answer.code == KILLED, f"{point}: {answer}"
    found = theatre.agent(site, "ledger", "recover").json
    assert found["state"] == "counted"
    assert theatre.agent(site, "ledger", "recover").json["fingerprint"] == found["fingerprint"]
    found_there = theatre.entries(site)
    assert [kind for kind, _ in found_there].count("recovered") == 1
    charges = [charge for kind, body in found_there if kind == "lost" for charge in body["charges"]]
    assert waiting in [charge["release_id"] for charge in charges]
    theatre.coordinator("reanchor", site, "--fingerprint", found["fingerprint"])
    answer = theatre.agent(site, "ledger", "recover", expect=None, env={"TRIBUTARY_FAILPOINT": witnessing})
    assert answer.code == KILLED, f"{witnessing}: {answer}"
    assert theatre.agent(site, "ledger", "recover").json["state"] == "whole", "the coordinator had heard of it"
    one_wave(theatre, site, 3, drawing=())
    remember()
    rows = accepted()
    assert [row["wave"] for row in rows] == [1, 2, 3]
    assert theatre.agent(site, "audit-verify").json["ok"]
    charges = sum(kind == "reserve" for kind, _ in entries.values())
    done = Counter(charges=charges, delivered=len(rows), burnt=charges - len(rows))
    done.update(killed=len(COUNTING) + 1, **wrongs(theatre, site, list(entries.values()), rows))
    return done


# -- kill -9 at the coordinator --------------------------------------------------------------------------------------
@pytest.mark.fault("F2", cases=2, bundles=2, sites=1)
def test_a_coordinator_killed_in_the_middle_of_an_ingest_accepts_the_release_once(theatre, table):
    theatre.open(plan_toml(waves=2))
    theatre.join("north", table, "storm")

    # Killed after its commit and started again at once: the agent's own retries bring the answer home.
    waiting = release(theatre, "north", 1)
    theatre.stop()
    server = theatre.serve("ingest.after_commit")
    with ThreadPoolExecutor(1) as pool:
        approving = pool.submit(theatre.approve, "north", waiting, expect=None)
        assert server.wait() == KILLED
        theatre.serve()
        first = approving.result()
    assert first.code == 0, str(first)
    assert first.json["state"] == "delivered"

    # Killed before its commit and left lying: the approval is kept, and approving again sends the same bytes.
    waiting = release(theatre, "north", 2)
    theatre.stop()
    server = theatre.serve("ingest.before_commit")
    answer = theatre.approve("north", waiting, expect=None)
    assert server.wait() == KILLED
    assert (answer.code, answer.refused) == (20, "E_NETWORK"), str(answer)
    assert "again" in answer.json["refused"]["next_step"]
    theatre.serve()
    assert [row["wave"] for row in theatre.coordinator("releases").json["accepted"]] == [1], "not acknowledged, absent"
    assert theatre.approve("north", waiting).json["state"] == "delivered"
    counts = assert_settled(theatre, {"north": 2})
    assert (counts["charges"], counts["draws"], counts["delivered"]) == (2, 2, 2)


def test_the_checks_of_this_file_find_a_second_draw_and_a_missing_charge(theatre, table):
    """The scales are weighed: what the tests above hold to be 0 is not 0 by construction."""
    theatre.open(plan_toml(waves=1))
    theatre.join("north", table, "storm")
    assert_nothing_is_undercounted(theatre, "north")
    theatre.approve("north", release(theatre, "north", 1))
    assert_settled(theatre, {"north": 1})
    honest = (theatre.notes / "north").read_text()
    first = next(line for line in theatre.noted("north") if line["kind"] == "seal")
    for lie in (
        '{"kind": "draw", "digest": "00", "rows": []}\n',
        f'{{"kind": "seal", "release_id": "{first["release_id"]}", "wave": 1, "digest": "00"}}\n',
    ):
        (theatre.notes / "north").write_text(honest + lie)
        with pytest.raises(AssertionError):
            assert_settled(theatre, {"north": 1})
    (theatre.notes / "north").write_text(honest + '{"kind": "draw", "digest": "00", "rows": []}\n')
    with pytest.raises(AssertionError):
        assert_nothing_is_undercounted(theatre, "north")
