"""No value of a planted record leaves the hospital, or is said aloud in it.

Two hundred records carry what cannot occur by chance: person ids, numbers with fifteen digits in columns that nothing
rounds, and a free text in a column that the study ignores. After data check, release and approval by the real
processes, every byte is searched: the coordinator's folder, what both sides printed, the encrypted traffic, the
messages inside it, and the site's own folder. The same after runs that fail.
"""

from __future__ import annotations

import base64
import contextlib
import io
import socket
import struct
import threading
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stage.processes.theatre import Theatre, plan_toml

PLANTED, ROWS = 200, 300
NUMBERS = ("sbp", "chol")


@pytest.fixture(scope="module")
def records() -> pd.DataFrame:
    rng = np.random.default_rng(131)
    ids = [rng.bytes(8).hex() for _ in range(2 * PLANTED)]
    return pd.DataFrame(
        {
            "person": [f"CANARY-{ids[i]}" if i < PLANTED else f"p{i}" for i in range(ROWS)],
            "sbp": rng.uniform(100, 200, ROWS),
            "chol": rng.uniform(150, 300, ROWS),
            "died": rng.integers(0, 2, ROWS),
            "notes": [f"CANARY-{ids[PLANTED + i]}" if i < PLANTED else "" for i in range(ROWS)],
        }
    )


# -- the scanner ----------------------------------------------------------------------------------------------------
class Scanner:
    """Searches bytes for every form of the canaries: text, base64, hexadecimal, doubles of either byte order."""

    def __init__(self, records: pd.DataFrame) -> None:
        planted = records.iloc[:PLANTED]
        self.values = {name: planted[name].to_numpy() for name in NUMBERS}
        forms: set[bytes] = set()
        for text in (*planted["person"], *planted["notes"]):
            # Without its common beginning, which alone would say nothing about a record.
            for part in (text, text.removeprefix("CANARY-")):
                forms |= {part.encode(), part.encode("utf-16-le"), *_base64(part.encode())}
        for value in (v for column in self.values.values() for v in column):
            # Ten of the sixteen digits are enough to know it by, however it is rounded when it is printed.
            forms |= {f"{value:.15f}"[:11].encode(), *_base64(repr(float(value)).encode())}
            for order in ("<d", ">d"):
                double = struct.pack(order, value)
                forms |= {double, double.hex().encode()}
        self.starts: dict[int, list[bytes]] = {}
        for form in forms:
            assert len(form) >= 8
            self.starts.setdefault(int.from_bytes(form[:8], "little"), []).append(form)
        self.sorted = np.array(sorted(self.starts), dtype=np.uint64)

    def hits(self, data: bytes) -> int:
        """How often a canary stands in `data`, at any offset."""
        found = 0
        for shift in range(min(8, max(0, len(data) - 7))):
            words = np.frombuffer(data, dtype="<u8", offset=shift, count=(len(data) - shift) // 8)
            for place in np.flatnonzero(np.isin(words, self.sorted)):
                at = shift + 8 * int(place)
                found += sum(data.startswith(form, at) for form in self.starts[int(words[place])])
        return found

    def inside(self, data: bytes) -> int:
        """The same, and within every member of an archive and every cell of a table, which are compressed."""
        found = self.hits(data)
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for name in archive.namelist():
                    found += self.inside(archive.read(name))
        elif data[:4] == b"PAR1":
            table = pd.read_parquet(io.BytesIO(data))
            found += self.hits(table.to_csv().encode())
            for name, planted in self.values.items():
                if name in table:
                    cells = table[name].to_numpy(dtype=np.float64)
                    found += int(np.isclose(cells[:, None], planted[None, :], rtol=1e-10, atol=0).sum())
        return found

    def folder(self, *places: Path) -> tuple[int, int]:
        """(hits, bytes searched) in all files below `places`."""
        found = searched = 0
        for path in _files(places):
            data = path.read_bytes()
            searched += len(data)
            found += self.inside(data) + self.hits(path.name.encode())
        return found, searched


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        yield from (path for path in sorted([place, *place.rglob("*")]) if path.is_file())


def _base64(data: bytes) -> Iterator[bytes]:
    """What of `data` stands in base64 whatever stands before and after it."""
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + data).rstrip(b"=")
        inner = coded[(8 * shift + 5) // 6 : -1]
        if len(inner) >= 10:
            yield inner


# -- the wire --------------------------------------------------------------------------------------------------------
class Relay:
    """Passes every byte between site and coordinator on, and keeps it."""

    def __init__(self, folder: Path) -> None:
        self.kept = folder / "traffic"
        self.target = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self.open += [near, far]
                for here, there in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(here, there), daemon=True).start()

    def _pass(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                with self.lock, self.kept.open("ab") as out:
                    out.write(data)
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        # shutdown wakes the thread that waits in accept; close alone does not.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for line in self.open:
            line.close()


@pytest.fixture
def theatre(tmp_path):
    relay = Relay(tmp_path)
    stage = Theatre(tmp_path / "stage", relay=relay.port, plaintext=True)
    relay.target = stage.port
    try:
        yield stage
    finally:
        stage.close()
        relay.close()


@pytest.fixture
def table(tmp_path, records) -> Path:
    path = tmp_path / "cohort.csv"
    records.to_csv(path, index=False)
    return path


# -- tests -----------------------------------------------------------------------------------------------------------
def test_the_scanner_finds_a_canary_in_each_form_and_nothing_else(records, tmp_path):
    scanner = Scanner(records)
    person, value, note = records.loc[7, "person"], float(records.loc[7, "sbp"]), records.loc[7, "notes"]
    for form in (
        person.encode(),
        note.removeprefix("CANARY-").encode(),
        repr(value).encode(),
        f"{value:.10f}".encode(),
        struct.pack("<d", value),
        struct.pack(">d", value),
        struct.pack("<d", value).hex().encode(),
        base64.b64encode(f'{{"person":"{person}"}}'.encode()),
    ):
        for shift in range(9):
            assert scanner.hits(b"x" * shift + form + b" and so on") >= 1, form
    table = pd.DataFrame({"sbp": [1.0, value, 2.0], "chol": [1.0, 2.0, 3.0]})
    with zipfile.ZipFile(tmp_path / "bundle.zip", "w") as archive:
        archive.writestr("table.parquet", table.to_parquet(compression="zstd"))
    assert scanner.folder(tmp_path)[0] >= 1
    harmless = records.iloc[PLANTED:][["person", "sbp", "chol", "died"]]
    assert scanner.hits(harmless.to_csv().encode()) == 0
    assert scanner.inside(harmless[["sbp", "chol"]].to_parquet()) == 0


@pytest.mark.fault("I6")
def test_no_planted_value_leaves_the_site_or_is_printed(theatre, table, records, tmp_path, tally):
    scanner = Scanner(records)
    theatre.open(plan_toml())
    theatre.join("north", table, "storm")
    for as_json in (True, False):
        theatre.agent("north", "data", "check", "storm", as_json=as_json)
    held = theatre.agent("north", "release", "storm", "--wave", 1).json
    for as_json in (True, False):
        theatre.agent("north", "outbox", "show", held["release_id"], as_json=as_json)
    theatre.approve("north", held["release_id"])
    for verb in ("status", "budget", "history"):
        theatre.agent("north", verb, as_json=False)
    theatre.coordinator("releases")
    theatre.stop()

    assert scanner.hits(table.read_bytes()) >= 4 * PLANTED, "they were planted"
    places = (theatre.hub, theatre.captured, theatre.notes, theatre.home("north"), tmp_path / "traffic")
    assert (theatre.notes / "plaintext").stat().st_size > held["bundle_bytes"]
    assert (tmp_path / "traffic").stat().st_size > held["bundle_bytes"]
    found, searched = scanner.folder(*places)
    print(f"\n{4 * PLANTED} canaries, {searched} bytes searched, {found} hits")
    tally(sites=1, bundles=1, canaries=4 * PLANTED, canary_hits=found)
    assert found == 0


def broken_tables(records: pd.DataFrame) -> dict[str, bytes]:
    """Tables that are refused, or that no reader foresaw; what is wrong is, or stands beside, a canary."""
    text = records.to_csv(index=False)
    first, second = text.splitlines(keepends=True)[1:3]

    def put(column: str, value: object) -> bytes:
        return records.astype(object).assign(**{column: [value, *records[column][1:]]}).to_csv(index=False).encode()

    return {
        "a value out of bounds": records.assign(sbp=records["sbp"] + 1000).to_csv(index=False).encode(),
        "text where a number must be": put("sbp", records["person"][0]),
        "a level that is not planned": put("died", records["notes"][0]),
        "the same person twice": (text + first).encode(),
        "a line cut off": text[:-20].encode() + second[:30].encode(),
        "an open quote": text.replace(first, '"' + first).encode(),
        "another encoding": text.replace("CANARY-", "CANÄRY-", 3).encode("latin-1"),
        "no header": "".join(text.splitlines(keepends=True)[1:]).encode(),
        "a number no double can hold": put("chol", f"1e999{records['person'][1]}"),
    }


@pytest.mark.fault("I6")
def test_what_a_failing_run_says_holds_no_planted_value(theatre, table, records):
    scanner = Scanner(records)
    theatre.open(plan_toml())
    theatre.join("north", table, "storm")
    for name, data in broken_tables(records).items():
        table.write_bytes(data)
        for argv, as_json in ((("data", "check", "storm"), False), (("release", "storm", "--wave", 1), True)):
            answer = theatre.agent("north", *argv, as_json=as_json, expect=None)
            assert answer.code == 40, f"{name}: {answer}"
    records.to_csv(table, index=False)
    # A fault that nobody foresaw, whose text quotes a cell.
    env = {"THEATRE_TABLE": str(table)}
    for as_json in (True, False):
        answer = theatre.agent(
            "north", "release", "storm", "--wave", 1, as_json=as_json, expect=None, env=env, hooks=["stumble"]
        )
        assert answer.code > 0, str(answer)
        assert answer.err or answer.out
    theatre.stop()
    places = (theatre.hub, theatre.captured, theatre.notes, theatre.home("north"))
    for path in _files((theatre.captured,)):
        assert scanner.hits(path.read_bytes()) == 0, f"{path.name}: {path.read_text()[-300:]}"
    assert scanner.folder(*places)[0] == 0
