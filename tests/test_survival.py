"""Wherever a process of the real product is killed, one charge buys one draw, and one draw is delivered once.

Here ``site-agent`` and ``coordinator`` run as processes with mutual TLS between them, and die by SIGKILL. What is
asserted is read without the product's code where that is possible: the ledger's rows from a copy of its file, the
draws from a note that the test takes before any byte is written, the bundles from the coordinator's folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from theatre import ROOT, Theatre, plan_toml

from shared import privacy

WAVES = 12
KILLED = -signal.SIGKILL
PLACES = {"ledger.head", "ledger.population", "outbox.statement", "outbox.checks", "outbox.audit"}
PLACES |= {"seal.bundle", "seal.fit", "seal.rows"}
# A crash between drawing and sealing, and then one at every step of cleaning up after it.
RECOVERY = (
    "seal.bundle.before_rename",
    "ledger.recover.before_burn",
    "outbox.recover.before_part",
    "outbox.recover.before_delete",
    "outbox.recover.after_delete",
)
CREATION = ("ledger.create.before_schema", "ledger.create.before_link", "ledger.create.after_link")


def written_failpoints() -> set[str]:
    """Every failpoint in the site's sources, places of `write_whole` filled in."""
    text = "".join(path.read_text() for path in sorted((ROOT / "site_agent").rglob("*.py")))
    names = set(re.findall(r'\breach\(f?"([^"]+)"\)', text))
    assert len(re.findall(r"\breach\(", text)) == len(re.findall(r'\breach\(f?"', text)), "each name is written out"
    # One of the seven is no step of a release: test_waves kills `withdraw` at each of its places.
    assert len(re.findall(r"write_whole\(", text)) == 1 + 7, "a new writer needs its place in this test"
    plain = {name for name in names if "{" not in name}
    return plain | {name.replace("{place}", place) for name in names - plain for place in PLACES}


@pytest.fixture
def theatre(tmp_path):
    stage = Theatre(tmp_path)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def table(tmp_path) -> Path:
    rng = np.random.default_rng(1)
    n = 300
    columns = {
        "person": [f"p{i}" for i in range(n)],
        "sbp": rng.normal(130, 15, n).clip(60, 290),
        "chol": rng.normal(220, 30, n).clip(60, 690),
        "died": rng.integers(0, 2, n),
    }
    path = tmp_path / "cohort.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


# -- an operator who does not give up -------------------------------------------------------------------------------
def killed_at(theatre: Theatre, site: str, point: str, *argv: object) -> None:
    answer = theatre.agent(site, *argv, expect=None, env={"TRIBUTARY_FAILPOINT": point})
    assert answer.code == KILLED, f"{point}: {answer}"
    assert_nothing_is_undercounted(theatre, site)


def release(theatre: Theatre, site: str, wave: int) -> str:
    """Release until something waits in the outbox; its id."""
    for _ in range(5):
        answer = theatre.agent(site, "release", "storm", "--wave", wave, expect=None)
        assert answer.code == 0 or answer.refused == "E_STATE", str(answer)
        waiting = answer.json["release_id"] if answer.code == 0 else theatre.waiting(site, wave)
        if waiting:
            return waiting
    raise AssertionError(f"wave {wave} at {site} does not get to the outbox: {answer}")


def one_wave(
    theatre: Theatre, site: str, wave: int, *, drawing: tuple[str, ...], sending: str = "", by_run: bool = False
) -> int:
    """Bring one wave to delivery, killed at each of these points on the way; how many kills.

    Args:
        by_run: the unattended agent is what is killed. What it had burnt, it leaves to a person.
    """
    for point in drawing:
        verb = ("run", "--once") if by_run else ("release", "storm", "--wave", wave)
        killed_at(theatre, site, point, *verb)
    waiting = release(theatre, site, wave)
    if sending:
        killed_at(theatre, site, sending, "approve", waiting, "--as", "steward")
    assert theatre.approve(site, waiting).json["state"] == "delivered"
    return len(drawing) + bool(sending)


# -- what must hold --------------------------------------------------------------------------------------------------
def assert_nothing_is_undercounted(theatre: Theatre, site: str) -> None:
    """Right after a crash, before any recovery: as many charges as draws, or more; and one seal per charge."""
    entries = theatre.entries(site)
    noted = Counter(line["kind"] for line in theatre.noted(site))
    kinds = Counter(kind for kind, _ in entries)
    assert noted["draw"] <= kinds["drawing"] <= kinds["reserve"]
    per_charge = Counter((kind, body.get("release_id")) for kind, body in entries if kind in ("drawing", "seal"))
    assert not per_charge or max(per_charge.values()) == 1


def assert_settled(theatre: Theatre, waves: dict[str, int]) -> Counter:
    """After everything: I2, I4, I5, I7 and I8 over all sites. Returns the counts."""
    counts: Counter = Counter()
    accepted = defaultdict(list)
    for row in theatre.coordinator("releases").json["accepted"]:
        accepted[row["site"]].append(row)
        data = (theatre.hub / "bundles" / f"{row['bundle_sha256']}.zip").read_bytes()
        assert hashlib.sha256(data).hexdigest() == row["bundle_sha256"]
    for site in waves:
        entries = theatre.entries(site)
        of_kind = defaultdict(lambda: defaultdict(list))
        for seq, (kind, body) in enumerate(entries):
            of_kind[kind][body.get("release_id")].append((seq, body))
        charges = {key: found[0][1] for key, found in of_kind["reserve"].items()}
        assert all(len(found) == 1 for found in of_kind["reserve"].values())

        # One draw for one charge, and always the same bytes.
        noted = theatre.noted(site)
        draws = [line for line in noted if line["kind"] == "draw"]
        digests = defaultdict(set)
        for line in noted:
            if line["kind"] == "seal":
                digests[line["release_id"]].add(line["digest"])
        for key, found in of_kind["seal"].items():
            assert {body["bundle_sha256"] for _, body in found} == digests[key], "sealed as drawn"
        second = sum(len(found) - 1 for found in digests.values()) + len(draws) - len({d["digest"] for d in draws})
        second += sum(len(found) - 1 for kind in ("drawing", "seal") for found in of_kind[kind].values())
        assert second == 0

        # One acceptance per wave and per charge, of the sealed and approved bytes.
        rows = accepted[site]
        assert len({row["release_id"] for row in rows}) == len({row["wave"] for row in rows}) == len(rows)
        assert len(rows) == waves[site]
        for row in rows:
            key, digest = row["release_id"], row["bundle_sha256"]
            (sealed, seal), (approved, approval), (sent, commit) = (
                of_kind[kind][key][0] for kind in ("seal", "approve", "commit")
            )
            assert digest == seal["bundle_sha256"] == approval["bundle_sha256"] == commit["bundle_sha256"]
            assert charges[key]["wave"] == row["wave"]
            assert commit["log_index"] == row["log_index"]
            assert sealed < approved < sent

        # What was not delivered stays paid for.
        delivered, burnt = {row["release_id"] for row in rows}, set(of_kind["burn"])
        assert delivered | burnt == set(charges)
        assert not delivered & burnt
        [total] = theatre.agent(site, "budget").json["totals"]
        assert (total["releases"], total["burnt"]) == (len(charges), len(burnt))
        event = privacy.from_canonical(next(iter(charges.values()))["event"])
        truth = privacy.epsilon_from_rdp(len(draws) * privacy.rdp(event), total["delta"])
        under = int(not (total["epsilon"] >= truth * (1 - 1e-12) and len(charges) >= len(draws)))
        assert under == 0
        over = int(total["epsilon"] > total["cap"])
        assert over == 0
        unapproved = sum(
            row["bundle_sha256"] not in {body["bundle_sha256"] for _, body in of_kind["approve"][row["release_id"]]}
            for row in rows
        )
        assert unapproved == 0
        assert theatre.agent(site, "audit-verify").json["ok"]
        remains = [path.name for path in theatre.home(site).rglob("*.part")]
        assert remains == []
        kept = {path.parent.name for path in theatre.home(site).glob("sealed/*/bundle.zip")}
        assert kept == set(of_kind["seal"]), "bytes that were drawn and not sealed are gone"
        counts += Counter(charges=len(charges), draws=len(draws), delivered=len(delivered), burnt=len(burnt))
        counts.update(second=second, under=under, over=over, unapproved=unapproved)
    log = theatre.coordinator("log").json
    assert log["verified"] is True
    assert {path.stem for path in (theatre.hub / "bundles").glob("*.zip")} == {
        row["bundle_sha256"] for rows in accepted.values() for row in rows
    }
    return counts


# -- kill -9 at the site ---------------------------------------------------------------------------------------------
def points_passed(theatre: Theatre, site: str) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """How often each failpoint is passed by an undisturbed release, and by an approval: wave 1, delivered."""
    lists = []
    for step in ("release", "approve"):
        before = len(theatre.noted(site))
        if step == "release":
            theatre.agent(site, "release", "storm", "--wave", 1, hooks=["trace"])
        else:
            theatre.approve(site, theatre.waiting(site, 1), hooks=["trace"])
        names = [line["name"] for line in theatre.noted(site)[before:] if line["kind"] == "reach"]
        lists.append(sorted(Counter(names).items()))
    return lists[0], lists[1]


def chosen(passed: list[tuple[str, int]], *, every: bool) -> list[str]:
    """``name:k``: each failpoint once, early or late; around each commit, and in the soak everywhere, each time."""
    out = []
    for number, (name, times) in enumerate(passed):
        whole = every or name in ("ledger.before_commit", "ledger.after_commit")
        out += [f"{name}:{k}" for k in (range(1, times + 1) if whole else [1 + number % times])]
    return out


@pytest.mark.parametrize("rounds", [1, pytest.param(25, marks=pytest.mark.soak)])
def test_wherever_release_or_approve_is_killed_one_charge_is_drawn_once_and_delivered_once(
    theatre, table, rounds, record_property
):
    soak = rounds > 1
    if soak:  # TRIBUTARY_SOAK=1 asks for all rounds, a larger number for so many
        asked = int(os.environ.get("TRIBUTARY_SOAK") or 0)
        if not asked:
            pytest.skip("set TRIBUTARY_SOAK")
        rounds = asked if asked > 1 else rounds
    theatre.open(plan_toml(waves=WAVES))
    theatre.join("first", table, "storm")
    on_release, on_approve = points_passed(theatre, "first")
    # Each transaction reads its whole ledger: many sites with few waves are quicker than the reverse.
    drawing: list[tuple[str, ...]] = [RECOVERY, *((point,) for point in chosen(on_release, every=soak))]
    sending = chosen(on_approve, every=soak)
    sending += [""] * (len(drawing) - len(sending))
    cases = list(zip(drawing, sending, strict=True)) * rounds
    hands = {f"site{k}": cases[k::8] for k in range(8)}
    if soak:
        hands = {f"site{k}": cases[k : k + WAVES] for k in range(0, len(cases), WAVES)}
    waves = {"first": 1} | {site: len(mine) for site, mine in hands.items()}

    def play(site: str) -> int:
        theatre.join(site, table, "storm")
        return sum(
            one_wave(theatre, site, wave, drawing=first, sending=then, by_run=len(first) == 1 and wave % 2 == 0)
            for wave, (first, then) in enumerate(hands[site], start=1)
        )

    with ThreadPoolExecutor(2) as pool:
        killed = sum(pool.map(play, hands))
    hit = Counter(point.partition(":")[0] for first, then in cases for point in (*first, then) if point)
    hit.update(killed_while_joining(theatre, "last", table))
    killed += len(CREATION)
    waves["last"] = one_delivered(theatre, "last")
    assert set(hit) == written_failpoints()
    counts = assert_settled(theatre, waves)
    for name, count in {"rounds": rounds, "killed": killed, "failpoints": len(hit), **counts}.items():
        record_property(name, count)
    print(
        f"\nsite killed {killed} times at {len(hit)} failpoints: {counts['charges']} charges, {counts['draws']} draws, "
        f"{counts['delivered']} delivered, {counts['burnt']} burnt, second draws {counts['second']}, "
        f"under-counts {counts['under']}, overspends {counts['over']}, unapproved {counts['unapproved']}"
    )


def killed_while_joining(theatre: Theatre, site: str, table: Path) -> list[str]:
    """Join, after the first command was killed at every step of making the ledger; the places."""
    invitation = theatre.invite(site, "storm")
    setup = ("init", "--invitation", invitation, "--approver", "steward")
    for point in CREATION:
        answer = theatre.agent(site, *setup, expect=None, env={"TRIBUTARY_FAILPOINT": point})
        assert answer.code == KILLED, f"{point}: {answer}"
    made = theatre.agent(site, *setup).json
    theatre.agent(site, "join")
    theatre.coordinator("accept", site, "--fingerprint", made["fingerprint"])
    theatre.agent(site, "join")
    theatre.adopt(site, table, "storm")
    return list(CREATION)


def one_delivered(theatre: Theatre, site: str) -> int:
    """An undisturbed wave, and what asking again does: nothing is drawn or sent twice."""
    one_wave(theatre, site, 1, drawing=())
    again = theatre.agent(site, "approve", theatre.waiting(site, 1), "--as", "steward").json
    assert (again["state"], again["accepted"]) == ("delivered", None)
    assert theatre.agent(site, "release", "storm", "--wave", 1, expect=None).refused == "E_STATE"
    return 1


# -- kill -9 at the coordinator --------------------------------------------------------------------------------------
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
        '{"kind": "draw", "digest": "00"}\n',
        f'{{"kind": "seal", "release_id": "{first["release_id"]}", "wave": 1, "digest": "00"}}\n',
    ):
        (theatre.notes / "north").write_text(honest + lie)
        with pytest.raises(AssertionError):
            assert_settled(theatre, {"north": 1})
    (theatre.notes / "north").write_text(honest + '{"kind": "draw", "digest": "00"}\n')
    with pytest.raises(AssertionError):
        assert_nothing_is_undercounted(theatre, "north")
