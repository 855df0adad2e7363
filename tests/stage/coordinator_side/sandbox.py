"""Tables that are made to take a reader's memory, sealed as a site would."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stage.both_sides.service import SMALL, Hub

from coordinator.config import Quotas
from shared.errors import Refusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, StudyPlan, Wave
from shared.releases import bundle as bundles
from shared.releases.receipt import LABEL

MB = 1 << 20
ALWAYS = (dt.date(2000, 1, 1), dt.date(2999, 1, 1))
PLAN = StudyPlan(
    study="mini",
    version=1,
    title="A small study",
    purpose="To test delivery.",
    coordinator="hub",
    expires=dt.date(2999, 1, 1),
    release=LatentNoisePlan(w=0.8),
    budget=Budget(epsilon=1e5),
    waves=tuple(Wave(number=k, opens=ALWAYS[0], closes=ALWAYS[1]) for k in range(1, 20)),
    dictionary=SMALL,
    returning="refresh",
)


@pytest.fixture
def hub(tmp_path):
    hub = Hub.alike(tmp_path / "hub", PLAN, "north", "south")
    # What is refused in one test here is more than a hospital may have refused in a day.
    with hub.serve(max_bundle=64 * MB, quotas=Quotas(refused_a_day=10**6)):
        yield hub
    hub.store.close()


def parquet(table: pa.Table, **settings) -> bytes:
    sink = io.BytesIO()
    labelled = table.replace_schema_metadata({b"label": LABEL.encode()})
    pq.write_table(labelled, sink, **{"compression": "zstd", "write_statistics": False, **settings})
    return sink.getvalue()


def words(rows: int, word: str) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [word])


def numbers(rows: int) -> pa.Array:
    return pa.array(np.full(rows, 120.0))


PIECE = 2000


def repeated(piece: pa.Table, times: int) -> bytes:
    """A file of one row group in which a small table stands many times over, and which is small itself."""
    table = pa.concat_tables([piece] * times)
    return parquet(table, row_group_size=len(table))


def long_words(rows: int) -> tuple[bytes, int]:
    """One text of a thousand letters, and as many places that name it."""
    piece = pa.table({"sbp": numbers(PIECE), "sex": ["m" * 1000] * PIECE})
    return repeated(piece, rows // PIECE), rows


def long_levels(rows: int) -> tuple[bytes, int]:
    """The same where the index says that they are levels: then it is one level, and no level of the plan."""
    piece = pa.table({"sbp": numbers(PIECE), "sex": words(PIECE, "m" * 1000)})
    return repeated(piece, rows // PIECE), rows


def equal_numbers(rows: int) -> tuple[bytes, int]:
    return parquet(pa.table({"sbp": numbers(rows), "sex": words(rows, "male")}), row_group_size=rows), rows


def listed_words(rows: int) -> tuple[bytes, int]:
    """A list of long words for each person."""
    lists = pa.array([["m" * 1000] * 20] * (PIECE // 20))
    return repeated(pa.table({"sbp": numbers(PIECE // 20), "sex": lists}), 20 * rows // PIECE), rows


def varint(value: int) -> bytes:
    value, out = 2 * value, b""  # zigzag of a number that is not negative
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def lying_index(rows: int) -> tuple[bytes, int]:
    """An index that counts a hundred times the rows that the pages have."""
    true, lie = 1 << 20, rows
    data, _ = equal_numbers(true)
    index = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - index : -8]
    assert len(varint(true)) == len(varint(lie))
    assert footer.count(varint(true)) >= 4  # the file's rows, the group's, and two columns'
    return data[: -8 - index] + footer.replace(varint(true), varint(lie)) + data[-8:], lie


def lying_columns(rows: int) -> tuple[bytes, int]:
    """An index whose columns claim more values than their row group has rows."""
    true = 1 << 20
    data, _ = equal_numbers(true)
    index = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - index : -8]
    first = footer.index(varint(true)) + 4  # the file's rows stay
    changed = footer[:first] + footer[first:].replace(varint(true), varint(rows), 2)
    return data[: -8 - index] + changed + data[-8:], true


def many_groups(rows: int) -> tuple[bytes, int]:
    return parquet(pa.table({"sbp": numbers(rows), "sex": words(rows, "male")}), row_group_size=1), rows


def claimed_columns(rows: int) -> tuple[bytes, int]:
    """A file whose row group claims to list 900,000 columns and has two: 600 MB for who makes room for them."""
    plain = io.BytesIO()
    table = pa.table({"sbp": numbers(rows), "sex": words(rows, "male")})
    pq.write_table(table, plain, write_statistics=False, store_schema=False)
    data = plain.getvalue()
    index = int.from_bytes(data[-8:-4], "little")
    before, footer = data[: -8 - index], data[-8 - index : -8]
    groups = footer.index(b"\x19\x1c\x19\x2c")  # a list of one group, which begins with a list of two columns
    footer = footer[: groups + 3] + b"\xfc" + varint(450_000) + footer[groups + 4 :]  # a length has no sign: twice it
    return before + footer + len(footer).to_bytes(4, "little") + b"PAR1", rows


def wide_values(rows: int) -> tuple[bytes, int]:
    """Values of a fixed width that no plan names."""
    fixed = pa.array([b"m" * 1000] * PIECE, pa.binary(1000))
    return repeated(pa.table({"sbp": numbers(PIECE), "sex": fixed}), rows // PIECE), rows


BOMBS = {
    "a long word, repeated": (long_words, 400_000),
    "a long level, repeated": (long_levels, 400_000),
    "equal numbers": (equal_numbers, 20_000_000),
    "lists of long words": (listed_words, 20_000),
    "rows that only the index has": (lying_index, 1 << 26),
    "columns that only the index has": (lying_columns, 1 << 26),
    "many row groups": (many_groups, 5_000),
    "wide values": (wide_values, 400_000),
    "columns that a list only claims": (claimed_columns, 60),
}


def sealed_around(hub: Hub, table: bytes, rows: int, *, n: int, site: str = "north", **more):
    """A release in exact form around a table file, signed for `n` persons."""
    changes = {"n": n, "drawn": n}
    receipt = hub.seal(site, receipt_changes=changes, **more).receipt
    parts = {"receipt.json": receipt.to_bytes(), "table.parquet": table}
    manifest = bundles._manifest(receipt, ["sbp", "sex"], rows, bundles._digests(parts))
    out = io.BytesIO()
    bundles._write_archive(out, {"manifest.json": manifest, **parts})
    return hub.seal(site, receipt_changes=changes, data=out.getvalue(), **more)


def resident(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def delivered_within(hub: Hub, sealed, *, megabytes: float) -> Refusal:
    """The refusal of a delivery during which this process, which serves, grew by no more."""
    with hub.egress("north", timeout=300.0, sleep=lambda s: None) as egress:
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        with pytest.raises(Refusal) as caught:
            egress.send(sealed.envelope, sealed.path)
        assert resident("VmHWM") - before < megabytes
    return caught.value
