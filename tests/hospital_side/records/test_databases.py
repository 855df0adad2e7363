"""Tables that lie in a database: what is read, that nothing else is done there, and that no address is ever told."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from stage.hospital_side.site_desk import hospital  # noqa: F401
from stage.mechanisms.contact_files import LINES, NODES, TIES, WARDS
from stage.mechanisms.contact_files import write as write_files

from shared.errors import ConfigRefusal, DataFileRefusal, DictionaryRefusal, MissingRefusal, Refusal, StateRefusal
from site_agent.config import Edges, SiteConfig, TableSource
from site_agent.records import contacts
from site_agent.records import table as records
from site_agent.records.readers import databases

KEY = b"k" * 32
SECRET = "hunter2-7319"


def database(folder: Path, rows: list[tuple[object, ...]] | None = None) -> Path:
    """A SQLite file with a node table, an edge list and a view of both kinds of trap."""
    path = folder / "wards.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE people (person TEXT, age INTEGER)")
        people = rows if rows is not None else [(p, int(a) if a else None) for p, a in NODES.itertuples(index=False)]
        db.executemany("INSERT INTO people VALUES (?, ?)", people)
        db.execute('CREATE TABLE contacts ("from" TEXT, "to" TEXT, place TEXT)')
        ends = [line.split(",") for line in LINES]
        db.executemany(
            "INSERT INTO contacts VALUES (?, ?, 'ward')", [[None if e == "" else e for e in x] for x in ends]
        )
    db.close()
    return path


def source(path: Path, **settings: object) -> TableSource:
    return TableSource(path=path, table="people", **settings)


def query(folder: Path, text: str, name: str = "people.sql") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.fixture
def address(tmp_path, monkeypatch) -> str:
    """A variable that holds a database's address; the password in it is nobody's."""
    monkeypatch.setenv("WARDS_DB", f"sqlite:///{database(tmp_path)}")
    return "WARDS_DB"


def test_a_table_of_a_sqlite_file_is_the_table_of_a_file(tmp_path):
    one = records.read(source(database(tmp_path)), WARDS, key=KEY)
    files = replace(write_files(tmp_path, LINES), edges=None)
    two = records.read(files, WARDS, key=KEY)
    left, right = (table.sort_values("person").reset_index(drop=True) for table in (one.table, two.table))
    pd.testing.assert_frame_equal(left, right)
    assert (one.rows, one.n) == (two.rows, two.n) == (6, 5)
    assert (
        records.count(source(database(tmp_path / "."))) if False else records.count(source(tmp_path / "wards.sqlite"))
    )
    assert records.header(source(tmp_path / "wards.sqlite")) == ("person", "age")


def test_an_edge_list_in_a_database_makes_the_network_that_a_file_makes(tmp_path, monkeypatch):
    monkeypatch.setattr(databases, "BLOCK", 3)  # several blocks
    path = database(tmp_path)
    there = records.read(source(path, edges=Edges(path=path, table="contacts")), WARDS, key=KEY, rules=TIES)
    files = records.read(write_files(tmp_path, LINES), WARDS, key=KEY, rules=TIES)
    assert there.contacts.counts == files.contacts.counts

    def named(found: records.Records) -> set[tuple[str, str]]:
        persons = list(found.table["person"])
        return {(persons[i], persons[j]) for i, j in zip(*found.contacts.matrix.nonzero(), strict=True)}

    assert named(there) == named(files)
    assert len(named(there)) > 0


def test_a_query_is_asked_of_the_database_whose_address_a_variable_holds(tmp_path, address):
    text = "-- who is in the study; nobody else\nSELECT person, age AS age\nFROM people WHERE person <> 'x:y';\n"
    asked = TableSource(path=query(tmp_path, text), database=address)
    whole = source(tmp_path / "wards.sqlite")
    pd.testing.assert_frame_equal(records.read(asked, WARDS, key=KEY).table, records.read(whole, WARDS, key=KEY).table)
    names = query(tmp_path, "WITH w AS (SELECT person AS p FROM people) SELECT p FROM w", "names.sql")
    assert databases.columns(TableSource(path=names, database=address)) == ("p",)
    assert databases.count(TableSource(path=names, database=address)) == 6


def test_the_same_rows_are_the_same_snapshot_in_whatever_order_the_database_keeps_them(tmp_path):
    rows = [("a", 40), ("b", 50), ("c", None)]
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    given = (rows, rows[::-1], [("a", 41), *rows[1:]])
    one, two, other = (
        records.read(source(database(folder, part)), WARDS, key=KEY)
        for folder, part in zip(folders, given, strict=True)
    )
    assert one.snapshot == two.snapshot != other.snapshot
    pd.testing.assert_frame_equal(one.table, two.table)
    path = folders[0] / "wards.sqlite"
    network = source(path, edges=Edges(path=path, table="contacts"))
    before = records.read(network, WARDS, key=KEY, rules=TIES).snapshot
    with sqlite3.connect(path) as db:
        db.execute("""INSERT INTO contacts VALUES ('a', 'b', 'ward')""")
    db.close()
    assert before != records.read(network, WARDS, key=KEY, rules=TIES).snapshot


def test_nothing_can_be_written(tmp_path, address):
    path = tmp_path / "wards.sqlite"
    before = path.read_bytes()
    with pytest.raises(sqlite3.OperationalError):
        databases._read_only(path).execute("DELETE FROM people")
    for text in (
        "DELETE FROM people",
        "SELECT 1; DELETE FROM people",
        "PRAGMA writable_schema = ON",
        "",
        "WITH x AS (DELETE FROM people RETURNING person) SELECT * FROM x",
    ):
        with pytest.raises(DataFileRefusal):
            records.read(TableSource(path=query(tmp_path, text), database=address), WARDS, key=KEY)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*-wal"))


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        (r"note <> 'opt\out'", ["b", "c"]),
        (r"note <> ':x' AND note <> 'opt\out' AND note <> '\:x'", ["b", "c"]),
        ("note NOT LIKE '/*' AND consent = 1 AND note NOT LIKE '*/'", ["a", "b"]),
        ("note <> '--' AND consent = 1 -- a note; of no account\n ; /* the end */ -- ", ["a", "b"]),
        ("note <> 'it''s --' AND /* ' */ consent = 1", ["a", "b"]),
    ],
)
def test_a_query_reaches_the_database_as_it_was_written(tmp_path, monkeypatch, condition, left):
    """No condition is lost or altered on the way: those it names as gone do not come back."""
    path = tmp_path / "consent.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE people (person TEXT, note TEXT, consent INTEGER)")
        db.executemany("INSERT INTO people VALUES (?, ?, ?)", [("a", r"opt\out", 1), ("b", "x", 1), ("c", "y", 0)])
        db.commit()
    monkeypatch.setenv("WARDS_DB", f"sqlite:///{path}")
    asked = TableSource(
        path=query(tmp_path, f"/* who */ SELECT person FROM people WHERE {condition}"), database="WARDS_DB"
    )
    assert databases.table(asked, ["person"])["person"].tolist() == left
    assert databases.count(asked) == 2
    assert databases.columns(asked) == ("person",)


def test_no_address_and_no_value_is_ever_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WARDS_DB", f"postgresql://reader:{SECRET}@nowhere.invalid/x")
    asked = TableSource(path=query(tmp_path, f"SELECT '{SECRET}' AS person"), database="WARDS_DB")
    for wrong in (asked, replace(asked, path=query(tmp_path, "SELECT FROM nowhere", "b.sql"))):
        with pytest.raises(Refusal) as caught:
            records.header(wrong)
        assert SECRET not in str(caught.value) + repr(caught.value.__cause__) + repr(wrong)
    for value in (f"nonsense-{SECRET}", f"nosuchdb://reader:{SECRET}@host/x"):
        monkeypatch.setenv("WARDS_DB", value)
        with pytest.raises(StateRefusal) as caught:
            records.header(asked)
        assert SECRET not in str(caught.value)
    monkeypatch.delenv("WARDS_DB")
    with pytest.raises(StateRefusal, match="must hold the database's address"):
        records.header(asked)
    with pytest.raises(ConfigRefusal, match="never the address itself") as caught:
        TableSource(path=asked.path, database=f"postgresql://reader:{SECRET}@host/x")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "refusal", "words"),
    [
        (lambda p: TableSource(path=p), ConfigRefusal, "table must be given with a SQLite file"),
        (lambda p: TableSource(path=p, table="people", database="X"), ConfigRefusal, "database must be given with"),
        (lambda p: TableSource(path=p.with_suffix(".csv"), table="people"), ConfigRefusal, "and with nothing else"),
        (lambda p: TableSource(path=p.with_suffix(".sql")), ConfigRefusal, "database must be given with"),
        (
            lambda p: TableSource(path=p.with_name("no.db"), table="t"),
            DataFileRefusal,
            "must be a file on this machine",
        ),
        (lambda p: TableSource(path=p, table="nobody"), DataFileRefusal, "readable in its database"),
        (lambda p: TableSource(path=p, table='people" WHERE 1 = 0; --'), DataFileRefusal, "readable in its database"),
        (lambda p: TableSource(path=p, table="contacts"), DictionaryRefusal, "names of the dictionary"),
        (lambda p: source(p, edges=Edges(path=p, table="contacts", start="by")), DictionaryRefusal, "one column 'by'"),
        (lambda p: source(p, edges=Edges(path=p, table="gaps")), MissingRefusal, "2 lines"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(tmp_path, make, refusal, words):
    path = database(tmp_path)
    with sqlite3.connect(path) as db:
        db.execute("""CREATE VIEW gaps AS SELECT NULLIF("from", 'x') AS "from", NULLIF("to", 'c') AS "to" FROM contacts
            WHERE "from" <> "to" AND "from" IN ('x', 'b')""")
        db.execute("""INSERT INTO contacts VALUES ('b', 'c', '')""")
    db.close()

    def read() -> None:
        found = make(path)
        records.read(found, WARDS, key=KEY, rules=TIES if found.edges else None)

    with pytest.raises(refusal, match=words):
        read()


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "wards.db").write_text("person,age\n" * 200)
    with pytest.raises(DataFileRefusal, match="readable in its database"):
        records.read(source(tmp_path / "wards.db"), WARDS, key=KEY)


def test_settings_survive_the_file_and_hold_no_address(tmp_path, address):
    path = tmp_path / "wards.sqlite"
    both = {
        "mini": source(path, edges=Edges(path=path, table="contacts", start="from", end="to")),
        "other": TableSource(path=query(tmp_path, "SELECT 1"), database=address),
    }
    config = SiteConfig(
        home=tmp_path,
        site="north",
        coordinator="hub",
        address="hub:1",
        server_name="hub",
        ca_fingerprint="ab",
        leads=("ab" * 32,),
        data=both,
    )
    text = config.to_toml()
    assert "sqlite:///" not in text
    assert SiteConfig.from_toml(text, home=tmp_path).data == both


def test_a_site_adds_and_checks_a_table_of_a_database(hospital, plan, table):
    at = hospital.joined().approved(plan)
    path = hospital.folder / "cohort.sqlite"
    with sqlite3.connect(path) as db:
        table.to_sql("cohort", db, index=False)
    db.close()
    assert at.json("data", "add", str(path), "--table", "cohort", "--as", "mini")["missing"] == []
    checked = at.json("data", "check", "mini")
    assert (checked["rows"], checked["problems"]) == (len(table), [])
    at("data", "add", str(path), "--as", "mini", expect=2)
    at("data", "add", str(path), "--table", "cohort", "--database", "X", "--as", "mini", expect=2)


def test_identifiers_that_are_numbers_meet_their_edges(tmp_path):
    path = tmp_path / "n.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE people (person INTEGER, age REAL)")
        db.executemany("INSERT INTO people VALUES (?, 40.0)", [(k,) for k in range(5)])
        db.execute('CREATE TABLE contacts ("from" INTEGER, "to" INTEGER)')
        db.executemany("INSERT INTO contacts VALUES (?, ?)", [(0, 1), (1, 2), (4, 0)])
    db.close()
    found = records.read(source(path, edges=Edges(path=path, table="contacts")), WARDS, key=KEY, rules=TIES)
    assert isinstance(found.contacts, contacts.Contacts)
    assert found.contacts.edges == 3


def test_a_statement_that_cannot_be_run_is_told_in_the_databases_words_and_an_address_never(tmp_path, monkeypatch):
    base = tmp_path / "clinic.sqlite"
    with sqlite3.connect(base) as connection:
        connection.execute("CREATE TABLE people (person TEXT, age INTEGER)")
        connection.execute("INSERT INTO people VALUES ('p1', 41)")
    monkeypatch.setenv("DWH", f"sqlite:///{base}")
    query = tmp_path / "q.sql"
    query.write_text("SELECT person, agee FROM people")
    with pytest.raises(DataFileRefusal) as refused:
        records.header(TableSource(path=query, database="DWH"))
    assert refused.value.given == "no such column: agee"
    assert "Correct the statement" in refused.value.next_step
    query.write_text('SELECT person FROM "clinic.sqlite"')
    with pytest.raises(DataFileRefusal) as refused:
        records.header(TableSource(path=query, database="DWH"))
    assert refused.value.given == "OperationalError", "the address has that word: nothing of it is repeated"
