"""Sites that die and go on: their theatre, their persons, and what must hold after everything."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stage.processes.theatre import Theatre

from shared.privacy import accountant as privacy

WAVES = 12
NEW = 60
"""Persons who are new in each wave."""


LIVES = ("refresh", "append", "frozen")
"""What a plan does with persons who were released before; also the study that lives so."""


# A crash between drawing and sealing, and then one at every step of cleaning up after it.
WRONGS = ("second", "under", "over", "unapproved")


@pytest.fixture
def theatre(tmp_path):
    stage = Theatre(tmp_path)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "cohort.csv"
    cohort(2 * NEW).to_csv(path, index=False)
    return path


def cohort(n: int) -> pd.DataFrame:
    """The first n persons; no two have the same blood pressure, by which a draw's persons are told apart."""
    rng = np.random.default_rng(1)
    most = WAVES * NEW
    columns = {
        "person": [f"p{i}" for i in range(most)],
        "sbp": rng.normal(130, 15, most).clip(60, 290),
        "chol": rng.normal(220, 30, most).clip(60, 690),
        "died": rng.integers(0, 2, most),
    }
    return pd.DataFrame(columns)[:n]


def study_of(site: str) -> str:
    """A site that is called after a way of life lives so; every other one is in the study called storm."""
    life = site.partition("-")[0]
    return life if life in LIVES else "storm"


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
        if study_of(site) in ("append", "frozen"):
            assert_each_person_left_once(theatre, site, rows)
        assert theatre.agent(site, "audit-verify").json["ok"]
        remains = [path.name for path in theatre.home(site).rglob("*.part")]
        assert remains == []
        kept = {path.parent.name for path in theatre.home(site).glob("sealed/*/bundle.zip")}
        assert kept == set(of_kind["seal"]), "bytes that were drawn and not sealed are gone"
        counts.update(charges=len(charges), delivered=len(delivered), burnt=len(burnt))
        counts.update(wrongs(theatre, site, entries, rows))
    assert [counts[wrong] for wrong in WRONGS] == [0, 0, 0, 0]
    log = theatre.coordinator("log").json
    assert log["verified"] is True
    assert {path.stem for path in (theatre.hub / "bundles").glob("*.zip")} == {
        row["bundle_sha256"] for rows in accepted.values() for row in rows
    }
    return counts


def wrongs(theatre: Theatre, site: str, entries: list[tuple[str, dict]], accepted: list[dict]) -> dict[str, int]:
    """How many draws there were, and the four counts that must be 0.

    Args:
        entries: of the site's ledger, and of whatever it was before a backup was put back.
        accepted: the site's releases at the coordinator.
    """
    noted = theatre.noted(site)
    draws = [line for line in noted if line["kind"] == "draw"]
    sealed, digests, approved = defaultdict(set), defaultdict(set), defaultdict(set)
    for line in noted:
        if line["kind"] == "seal":
            digests[line["release_id"]].add(line["digest"])
    for kind, body in entries:
        if kind in ("seal", "approve"):
            (sealed if kind == "seal" else approved)[body["release_id"]].add(body["bundle_sha256"])
    assert all(found == digests[key] for key, found in sealed.items()), "sealed as drawn"
    second = sum(len(found) - 1 for found in digests.values()) + len(draws) - len({d["digest"] for d in draws})
    begun = Counter((kind, body["release_id"]) for kind, body in entries if kind in ("drawing", "seal"))
    second += sum(times - 1 for times in begun.values())
    # The most draws that any one person's row went into; under refresh everybody's went into each.
    most = Counter(row for line in draws for row in line["rows"]).most_common(1)[0][1]
    assert study_of(site) in ("append", "frozen") or most == len(draws)
    event = privacy.from_canonical(next(body["event"] for kind, body in entries if kind == "reserve"))
    [total] = theatre.agent(site, "budget").json["totals"]
    truth = privacy.epsilon_from_rdp(most * privacy.rdp(event), total["delta"])
    enough = total["epsilon"] >= truth * (1 - 1e-12) and total["releases"] >= len(draws)
    return {
        "draws": len(draws),
        "second": second,
        "under": int(not enough),
        "over": int(total["epsilon"] > total["cap"]),
        "unapproved": sum(row["bundle_sha256"] not in approved[row["release_id"]] for row in accepted),
    }


def assert_each_person_left_once(theatre: Theatre, site: str, accepted: list[dict]) -> None:
    """Under append and frozen: one drawn row for one person, in the wave in which the person was new."""
    drawn_for, rows = {}, []
    for line in theatre.noted(site):
        if line["kind"] == "draw":
            rows = line["rows"]
        elif line["kind"] == "seal":
            drawn_for[line["digest"]] = rows
    seen: Counter = Counter()
    before: Counter = Counter()
    for row in sorted(accepted, key=lambda row: row["wave"]):
        seen.update(drawn_for[row["bundle_sha256"]])
        with zipfile.ZipFile(theatre.hub / "bundles" / f"{row['bundle_sha256']}.zip") as bundle:
            table = pd.read_parquet(io.BytesIO(bundle.read("table.parquet")))
        lines = Counter(table.itertuples(index=False, name=None))
        if study_of(site) == "frozen":  # the sealed rows, as they were, and the new ones
            assert before <= lines
            before = lines
            assert len(table) == NEW * row["wave"]
        else:
            assert len(table) == NEW
    assert set(seen.values()) == {1}
    assert len(seen) == NEW * len(accepted)
