"""Receipts, bundles and statements: deterministic bytes, true figures, and nothing opened that is not exact."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from io import BytesIO

import pandas as pd
import pytest
from conftest import make_table

from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import IntegrityRefusal, PolicyRefusal, ReceiptRefusal, Refusal, SchemaRefusal
from shared.mechanisms.base import Extent
from shared.plans.encoding import Encoder
from shared.privacy import accountant as privacy
from shared.releases.bundle import _write_archive, read_bundle, write_bundle
from shared.releases.receipt import LABEL, Receipt, ReceiptDraft, coverage, write_receipt
from shared.releases.statement import STATEMENT_TYPE, Statement

CAP = 64 << 20


@pytest.fixture(scope="module")
def released(dictionary) -> pd.DataFrame:
    encoder = Encoder(dictionary=dictionary)
    return encoder.decode(encoder.encode(dictionary.check(make_table(120)), seeded_rng(3)))


@pytest.fixture(scope="module")
def receipt(plan, dictionary) -> Receipt:
    return write_receipt(
        plan, ReceiptDraft(wave=1, site="north", release_id="ab" * 16, agent_version="0.1.0", n=120, previous="0" * 64)
    )


def test_a_bundle_gives_back_its_receipt_and_table(tmp_path, receipt, released, dictionary):
    data = write_bundle(receipt, released)
    path = tmp_path / "bundle.zip"
    path.write_bytes(data)
    bundle = read_bundle(path, cap=CAP)
    assert bundle.receipt == receipt
    pd.testing.assert_frame_equal(bundle.table, released)
    dictionary.validate_release(bundle.table)


def test_columns_that_are_read_together_are_those_that_are_read_one_by_one(monkeypatch, tmp_path, receipt, released):
    table = released.assign(
        count=range(120), share=[0.5, None] * 60, word=["a", "bb", None] * 40, known=[True, False] * 60
    )
    together = read_bundle_bytes(tmp_path, write_bundle(receipt, table)).table
    pd.testing.assert_frame_equal(together, table)
    monkeypatch.setattr("shared.releases.table_file.TOGETHER", 0)
    pd.testing.assert_frame_equal(read_bundle_bytes(tmp_path, write_bundle(receipt, table)).table, together)


def test_the_same_release_is_the_same_bytes(receipt, released):
    assert write_bundle(receipt, released) == write_bundle(receipt, released.copy())


def test_any_tool_opens_a_bundle_and_reads_what_it_is(receipt, released):
    with zipfile.ZipFile(BytesIO(write_bundle(receipt, released))) as archive:
        assert LABEL.encode() in archive.read("manifest.json")
        assert LABEL.encode() in archive.read("table.parquet")
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}


def test_a_receipt_that_follows_from_its_plan_is_true(receipt, plan):
    receipt.require_true(plan)
    assert receipt.epsilon == pytest.approx(
        privacy.epsilon(privacy.Gaussian(sigma=0.2**0.5, sensitivity=2 * 0.8**0.5 * receipt.parameters["radius"]), 1e-6)
    )
    assert receipt.epsilon_paper > receipt.epsilon


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 1.0},
        {"epsilon": 0.999 * 1e3},
        {"delta": 1e-5},
        {"rdp": (0.0,) * 289},
        {"not_covered": ()},
        {"covered": ("Everything.",)},
        {"translation": "Nobody can be recognised."},
        {"plan_hash": "0" * 64},
        {"recipient": "elsewhere"},
        {"posture": "private"},
        {"event": {"name": "gaussian", "sigma": 10.0, "sensitivity": 1.0}},
        {"event": {"name": "magic", "sigma": 1.0}},
        {"parameters": {"w": 0.1, "radius": 4.0}},
    ],
)
def test_a_receipt_that_says_anything_else_is_refused(receipt, plan, change):
    with pytest.raises((ReceiptRefusal, PolicyRefusal, SchemaRefusal)):
        dataclasses.replace(receipt, **change).require_true(plan)


def test_halved_noise_would_show_on_the_receipt(receipt, plan):
    event = privacy.from_canonical(receipt.event)
    half = dataclasses.replace(event, sigma=event.sigma / 2)
    assert privacy.epsilon(half, receipt.delta) > 2 * receipt.epsilon
    with pytest.raises(ReceiptRefusal, match="event"):
        dataclasses.replace(receipt, event=half.to_canonical()).require_true(plan)


def test_every_flipped_byte_of_a_bundle_is_refused_even_without_its_digest(tmp_path, receipt, released):
    data = write_bundle(receipt, released)
    # Every byte of the archive's own structure, and of the contents every 97th.
    ends = [*range(0, 200), *range(len(data) - 300, len(data))]
    for place in [*ends, *range(200, len(data) - 300, 97)]:
        changed = bytearray(data)
        changed[place] ^= 0x10
        with pytest.raises(Refusal):
            read_bundle_bytes(tmp_path, bytes(changed))


@pytest.mark.parametrize("where", ["before", "after", "comment", "between"])
def test_a_bundle_with_one_byte_more_is_refused(tmp_path, receipt, released, where):
    """A zip file may carry bytes that no tool shows: here there is no room for them."""
    data = write_bundle(receipt, released)
    with zipfile.ZipFile(BytesIO(data)) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    if where in ("before", "after"):
        changed = b"x" + data if where == "before" else data + b"x"
    else:
        out = BytesIO()
        with zipfile.ZipFile(out, "w") as made:
            for name, content in parts.items():
                entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                entry.create_system, entry.external_attr = 3, 0o644 << 16
                if where == "between" and name == "receipt.json":
                    entry.extra = b"\x99\x99\x01\x00x"
                made.writestr(entry, content)
            made.comment = b"x" if where == "comment" else b""
        changed = out.getvalue()
        with zipfile.ZipFile(BytesIO(changed)) as archive:
            assert archive.testzip() is None
    with pytest.raises((IntegrityRefusal, SchemaRefusal)):
        read_bundle_bytes(tmp_path, changed)


def sealed_again(receipt, released, *, manifest=lambda text: text, parquet=lambda data: data):
    """A bundle in exact form around another manifest or table file."""
    with zipfile.ZipFile(BytesIO(write_bundle(receipt, released))) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    table = parquet(parts["table.parquet"])
    body = parse_json(parts["manifest.json"])
    body["files"]["table.parquet"] = {"sha256": sha256_hex(table), "bytes": len(table)}
    out = BytesIO()
    members = {"manifest.json": manifest(canonical_json(body)), "receipt.json": parts["receipt.json"]}
    _write_archive(out, {**members, "table.parquet": table})
    return out.getvalue()


def test_a_manifest_says_what_the_bundle_holds_and_nothing_else(tmp_path, receipt, released):
    assert read_bundle_bytes(tmp_path, sealed_again(receipt, released)).receipt == receipt
    for manifest in (
        lambda text: text.replace(b'"rows":', b'"note":"x","rows":'),
        lambda text: text.replace(b'{"columns"', b'{ "columns"'),
        lambda text: text.replace(b'"columns":["', b'"columns":["x","'),
    ):
        with pytest.raises(SchemaRefusal):
            read_bundle_bytes(tmp_path, sealed_again(receipt, released, manifest=manifest))


def test_a_table_file_with_room_for_anything_else_is_refused(tmp_path, receipt, released):
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(released, preserve_index=False)
    usual = {**arrow.schema.metadata, b"label": LABEL.encode()}

    def written(metadata, **settings):
        def make(data: bytes) -> bytes:
            sink = BytesIO()
            options = {"compression": "zstd", "write_statistics": False, **settings}
            pq.write_table(arrow.replace_schema_metadata(metadata), sink, **options)
            return sink.getvalue()

        return make

    def gap(data: bytes) -> bytes:
        footer = int.from_bytes(data[-8:-4], "little")
        return data[: -8 - footer] + b"hidden" + data[-8 - footer :]

    assert sealed_again(receipt, released, parquet=written(usual)) == write_bundle(receipt, released)
    pandas = json.loads(usual[b"pandas"])
    for make in (
        written({**usual, b"note": b"x"}),
        written({key: value for key, value in usual.items() if key != b"label"}),
        written({**usual, b"label": b"patient records"}),
        written({**usual, b"pandas": json.dumps({**pandas, "note": "x"}).encode()}),
        written({**usual, b"pandas": json.dumps({**pandas, "creator": "x" * 100_000}).encode()}),
        gap,
    ):
        with pytest.raises((SchemaRefusal, IntegrityRefusal)):
            read_bundle_bytes(tmp_path, sealed_again(receipt, released, parquet=make))


def test_metadata_that_says_more_than_types_is_refused_where_it_comes_from_a_stranger(tmp_path, receipt, released):
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(released, preserve_index=False)
    usual = {**arrow.schema.metadata, b"label": LABEL.encode()}
    pandas = json.loads(usual[b"pandas"])
    texts = {name: released[name].astype(str).str.len().max() for name in released}
    extent = Extent(rows=len(released), texts={name: int(length) for name, length in texts.items()})

    def written(change, **settings):
        def make(data: bytes) -> bytes:
            sink = BytesIO()
            told = {**usual, b"pandas": json.dumps({**pandas, **change}).encode()}
            options = {"compression": "zstd", "write_statistics": False, **settings}
            pq.write_table(arrow.replace_schema_metadata(told), sink, **options)
            return sink.getvalue()

        return make

    def read(make):
        (tmp_path / "bundle.zip").write_bytes(sealed_again(receipt, released, parquet=make))
        return read_bundle(tmp_path / "bundle.zip", cap=CAP, before=lambda _: extent)

    assert len(read(written({})).table) == len(released)
    first, *more = pandas["columns"]
    for make in (
        written({"attributes": {"note": "a patient's name"}}),
        written({}, write_statistics=True),
        written({"pandas_version": "three one one; and a patient's name"}),
        written({"creator": {"library": "pyarrow", "note": "x" * 70}}),
        written({"index_columns": ["a patient's name"]}),
        written({"columns": [{**first, "numpy_type": "a patient's name"}, *more]}),
        written({"columns": [{**first, "metadata": {"encoding": "a patient's name"}}, *more]}),
        written({"columns": [{**first, "metadata": "a patient's name"}, *more]}),
        written({"column_indexes": ["a patient's name"]}),
    ):
        with pytest.raises(SchemaRefusal, match="nothing else"):
            read(make)


@pytest.mark.parametrize("version", ["\x1b[2J", "0.1.0; rm", "", "x" * 65, "Größe"])
def test_an_agents_version_is_a_version(receipt, version):
    said = dataclasses.replace(receipt, agent_version=version)
    with pytest.raises(SchemaRefusal, match="agent_version"):
        Receipt.from_bytes(said.to_bytes())


def read_bundle_bytes(folder, data):
    path = folder / "bundle.zip"
    path.write_bytes(data)
    return read_bundle(path, cap=CAP)


@pytest.mark.parametrize("length", [0, 1, 100, 2000])
def test_a_truncated_bundle_is_refused(tmp_path, receipt, released, length):
    data = write_bundle(receipt, released)
    with pytest.raises((IntegrityRefusal, SchemaRefusal)):
        read_bundle_bytes(tmp_path, data[:length])
    with pytest.raises((IntegrityRefusal, SchemaRefusal)):
        read_bundle_bytes(tmp_path, data[: len(data) - 1 - length])


def test_extra_missing_and_compressed_members_are_refused(tmp_path, receipt, released):
    with zipfile.ZipFile(BytesIO(write_bundle(receipt, released))) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}

    def archive_of(members, method=zipfile.ZIP_STORED):
        out = BytesIO()
        with zipfile.ZipFile(out, "w", method) as made:
            for key, data in members.items():
                made.writestr(key, data)
        return out.getvalue()

    for bad in (
        archive_of(parts),  # the right members with other dates
        archive_of({**parts, "model.pt": b"weights"}),
        archive_of({k: v for k, v in parts.items() if k != "receipt.json"}),
        archive_of(parts, zipfile.ZIP_DEFLATED),
        archive_of({**parts, "manifest.json": b" " * (2 << 20)}),
    ):
        with pytest.raises((IntegrityRefusal, SchemaRefusal)):
            read_bundle_bytes(tmp_path, bad)


def test_a_table_larger_than_the_cap_is_refused(tmp_path, receipt, released):
    path = tmp_path / "bundle.zip"
    path.write_bytes(write_bundle(receipt, released))
    with pytest.raises(SchemaRefusal, match="fit in memory"):
        read_bundle(path, cap=1000)


def test_a_statement_binds_every_id_and_names_what_it_is(receipt):
    statement = Statement(
        study="mini",
        plan_hash=receipt.plan_hash,
        plan_version=1,
        wave=1,
        site="north",
        release_id=receipt.release_id,
        recipient="hub",
        bundle_sha256="c" * 64,
        bundle_bytes=10,
        receipt_sha256=receipt.hash,
        ledger_head="d" * 64,
    )
    key = SigningKey.generate()
    payload = statement.sign([key]).require(STATEMENT_TYPE, {key.public.key_id: key.public})
    assert Statement.from_bytes(payload) == statement
    for bad in (
        payload.replace(b"c" * 64, b"/../../bundles_x/" + b"p" * 47),
        payload.replace(receipt.release_id.encode(), b"../" + receipt.release_id[3:].encode()),
    ):
        with pytest.raises(SchemaRefusal, match="plain ids"):
            Statement.from_bytes(bad)
    for bad in (b"{}", payload + b" ", payload.replace(b'"wave":1', b'"wave":"1"')):
        with pytest.raises(SchemaRefusal):
            Statement.from_bytes(bad)


def test_what_is_covered_and_what_is_not_is_said_in_these_words(plan):
    covered, not_covered = coverage(plan)
    assert covered == (
        "Each person's released row, given the flow, the encoder, the weight w and the clipping radius R: replacing "
        "one person's record by any other changes the probability of any released table by at most the stated "
        "(ε, δ).",
    )
    assert not_covered[0].startswith("The flow, its margins and its stopping point")
    assert len(not_covered) == 6
    assert "told apart by the column 'person'" in not_covered[-1]
    nobody = dataclasses.replace(
        plan.dictionary, columns=tuple(c for c in plan.dictionary.columns if c.kind != "person")
    )
    assert not any("identifier" in line for line in coverage(dataclasses.replace(plan, dictionary=nobody))[1])
