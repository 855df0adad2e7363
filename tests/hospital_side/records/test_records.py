"""Reading a table: what is refused, in which words, and that no word of a refusal is a record."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from conftest import make_table
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.hospital_side.records import CANARY, KEY, refused, words, write

from shared.errors import (
    ConfigRefusal,
    DataFileRefusal,
    DataRefusal,
    DictionaryRefusal,
    DuplicatePerson,
    MissingRefusal,
)
from shared.mechanisms.base import EdgeRules
from shared.plans.dictionary import Column, Dictionary
from site_agent.config import Limits, SiteConfig, SiteFloors, TableSource
from site_agent.records import readers
from site_agent.records.identifiers import compared, normalised
from site_agent.records.mapping.declared import Combination, Recoding, Steps
from site_agent.records.pseudonyms import pseudonym
from site_agent.records.table import (
    header,
    named,
    person_space,
    problems,
    read,
    row_pseudonyms,
    suggestions,
)


def test_csv_and_parquet_give_the_same_records(tmp_path, table, dictionary):
    from_csv = read(write(tmp_path, table), dictionary, key=KEY)
    from_parquet = read(write(tmp_path, table, "cohort.parquet"), dictionary, key=KEY)
    pd.testing.assert_frame_equal(from_csv.table, from_parquet.table, check_dtype=False)
    assert from_csv.n == from_csv.rows == 300


WARDS = Dictionary(
    name="w",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="ward", kind="nominal", levels=("1", "2", "3"), missing="level"),
    ),
)
CODES = ("900000000000207008", "900000000000207009", "900000000000207010")  # as long as those of SNOMED CT


@pytest.mark.parametrize(
    ("kind", "levels"),
    [
        *((kind, ("1", "2", "3")) for kind in ("parquet", "floats", "graphml", "csv")),
        *((kind, CODES) for kind in ("parquet", "graphml")),
    ],
)
def test_how_others_values_are_read_does_not_hang_on_one_person_s_gap(tmp_path, kind, levels):
    """Whole numbers beside a gap become floats in many tools, and 1.0 is no level: everybody would be refused."""
    import networkx
    import pyarrow as pa
    import pyarrow.parquet as pq

    found, (first, second, third) = [], map(int, levels)
    wards = replace(WARDS, columns=(WARDS.columns[0], replace(WARDS.columns[1], levels=levels)))
    for gap in (second, None):
        path = tmp_path / f"{gap}.{'parquet' if kind == 'floats' else kind}"
        given = {"person": ["a", "b", "c", "d"], "ward": [first, gap, third, first]}
        if kind == "parquet":
            pq.write_table(pa.table({**given, "ward": pa.array(given["ward"], pa.int64())}), path)
        elif kind == "graphml":
            graph = networkx.Graph()
            for person, ward in zip(*given.values(), strict=True):
                graph.add_node(person, **({} if ward is None else {"ward": ward}))
            networkx.write_graphml(graph, path)
        else:
            write(tmp_path, pd.DataFrame(given), path.name)
        network = kind == "graphml"
        source = TableSource(path=path, columns={"id": "person"} if network else {})
        rules = EdgeRules(strangers="refuse") if network else None
        found.append(read(source, wards, key=KEY, rules=rules).table["ward"].tolist())
    whole, missing = found
    assert whole == [0, 1, 2, 0]
    assert [missing[k] for k in (0, 2, 3)] == [0, 2, 0]
    assert pd.isna(missing[1])


def test_a_column_of_a_network_file_is_there_whether_or_not_anybody_has_a_value(tmp_path):
    """The only value may be one person's: without it the column must not be lacking."""
    import networkx

    graph = networkx.Graph()
    for person in "abc":
        graph.add_node(person, **({"ward": 2} if person == "b" else {}))
    path = tmp_path / "net.graphml"
    networkx.write_graphml(graph, path)
    rules, source = EdgeRules(strangers="refuse"), TableSource(path=path, columns={"id": "person"})
    assert read(source, WARDS, key=KEY, rules=rules).table["ward"].notna().sum() == 1
    path.write_text(re.sub(r"<data key=[^/]*/data>", "", path.read_text()))
    assert read(source, WARDS, key=KEY, rules=rules).table["ward"].isna().all()


@pytest.mark.parametrize("blank", ["", "  ", "\t", '""'])
def test_a_blank_line_of_a_table_of_one_column_is_a_person_with_a_missing_value(tmp_path, blank):
    """How many rows are released is told, and the plan allows the record: neither fewer, nor a refusal of everybody."""
    alone = Dictionary(name="w", version=1, columns=(WARDS.columns[1],))
    path = tmp_path / "wards.csv"
    path.write_text(f"ward\n1\n{blank}\n3\n")
    found = read(TableSource(path=path), alone, key=KEY)
    assert found.n == found.rows == 3
    assert found.table["ward"].isna().tolist() == [False, True, False]
    assert readers.reader(TableSource(path=path)).count(TableSource(path=path)) == 3


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_every_offered_encoding_is_read(tmp_path, encoding):
    dictionary = Dictionary(
        name="m", version=1, columns=(Column(name="ward", kind="nominal", levels=("Süd", "Köln", "été")),)
    )
    table = pd.DataFrame({"ward": ["Süd", "Köln", "été"] * 20})
    assert read(write(tmp_path, table, encoding=encoding), dictionary, key=KEY).n == 60


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path, table, dictionary):
    path = tmp_path / "bom.csv"
    table.to_csv(path, index=False, encoding="utf-8-sig")
    assert header(TableSource(path=path))[0] == "person"
    assert read(TableSource(path=path), dictionary, key=KEY).n == 300


def test_another_delimiter_and_other_names_are_mapped(tmp_path, table, dictionary):
    renamed = table.rename(columns={"sbp": "SBP (mmHg)"}).assign(ward="x")
    source = write(tmp_path, renamed, "cohort.tsv", delimiter="\t", columns={"SBP (mmHg)": "sbp"}, ignore=("ward",))
    assert "sbp" in read(source, dictionary, key=KEY).table


def test_identifiers_stay_text_and_are_not_read_as_numbers(tmp_path, table, dictionary):
    table["person"] = [f"{i:05d}.0" for i in range(len(table))]
    assert read(write(tmp_path, table), dictionary, key=KEY).table["person"].iloc[0] == "00000.0"


def test_the_snapshot_changes_with_the_bytes_and_with_the_key(tmp_path, table, dictionary):
    source = write(tmp_path, table)
    first = read(source, dictionary, key=KEY).snapshot
    assert read(source, dictionary, key=b"o" * 32).snapshot != first
    table.loc[0, "sbp"] += 1
    assert read(write(tmp_path, table), dictionary, key=KEY).snapshot != first


def test_reading_leaves_the_folder_and_the_file_as_they_were(tmp_path, table, dictionary):
    source = write(tmp_path, table)
    before = source.path.read_bytes()
    source.path.chmod(0o400)
    read(source, dictionary, key=KEY)
    assert [path.name for path in tmp_path.iterdir()] == ["cohort.csv"]
    assert source.path.read_bytes() == before


def pseudonyms(records, dictionary, *, key):
    return frozenset(row_pseudonyms(records, dictionary, key=key))


def test_pseudonyms_are_keyed_and_hide_the_person(tmp_path, table, dictionary):
    records = read(write(tmp_path, table), dictionary, key=KEY)
    here = pseudonyms(records, dictionary, key=KEY)
    assert len(here) == 300
    assert not here & pseudonyms(records, dictionary, key=b"o" * 32)
    assert not here & set(table["person"])


# -- identifiers ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("P1", "p1"),
        ("00017", "17"),
        ("  A 7 ", "a\u00a0 7"),
        ("Ⅷ-12", "viii-12"),
        ("１２３", "0123"),
        ("Straße", "STRASSE"),
        ("P\u200b1", "P1"),
        ("\ufeffP\u00ad1\u200e", "p1"),
        ("\u200b00017", "17"),
        ("٠٠١٧", "17"),
        ("００１７", "۱۷"),
    ],
)
def test_identifiers_that_differ_in_how_they_are_written_are_one_persons(tmp_path, table, dictionary, one, other):
    assert normalised(one) == normalised(other) == normalised(normalised(one))
    found = []
    for name in (one, other):
        records = read(write(tmp_path, table.assign(person=[name, *table["person"][1:]])), dictionary, key=KEY)
        found.append(pseudonyms(records, dictionary, key=KEY))
    assert found[0] == found[1]
    both = table.assign(person=[one, other, *table["person"][2:]])
    assert "leading zeros" in refused(DuplicatePerson, write(tmp_path, both), dictionary).next_step
    assert [type(p) for p in problems(write(tmp_path, both), dictionary)] == [DuplicatePerson]


@given(st.text(st.characters() | st.sampled_from("0٠۱１ \u200b\u00ad\u0345\u0301ßİᾳΣς가ᄀ")))
@settings(max_examples=1000)
def test_what_was_normalised_once_stays_as_it_is(text):
    once = normalised(text)
    assert normalised(once) == once
    assert not [character for character in once if unicodedata.category(character) == "Cf"]


@pytest.mark.parametrize("kind", ["float64", "float32", "Float64"])
def test_whole_numbers_of_a_float_column_are_the_identifiers_that_they_were_before_one_was_missing(
    tmp_path, table, dictionary, kind
):
    """Whoever writes integers with a gap gets floats: 17.0 is how pandas shows 17, and nobody's identifier."""
    found = []
    for name, column in (("int", "int64"), ("float", kind)):
        where = tmp_path / f"{name}.parquet"
        table.assign(person=pd.Series(range(10**6, 10**6 + len(table)), dtype=column)).to_parquet(where)
        found.append(pseudonyms(read(TableSource(path=where), dictionary, key=KEY), dictionary, key=KEY))
    assert found[0] == found[1]


def test_floats_that_are_no_whole_numbers_stay_as_they_are():
    names = pd.Series([17.0, 17.5, None, 1e17, float("inf")])
    assert compared(names, as_written=False).dropna().tolist() == ["17", "17.5", f"1{'0' * 17}", "inf"]
    mixed = pd.Index([17.0, 17, None, "17.0", "x"], dtype=object)
    assert compared(mixed, as_written=False).dropna().tolist() == ["17", "17", "17.0", "x"]
    assert compared(names, as_written=True)[0] == "17.0", "a study goes on as it began"
    assert compared(pd.Index([17.0]), as_written=False)[0] == "17"


@pytest.mark.parametrize(("one", "other"), [("0", "1"), ("a1", "a01"), ("10", "1"), ("1.0", "1"), ("p 1", "p1")])
def test_identifiers_that_may_be_two_persons_stay_two(one, other):
    assert normalised(one) != normalised(other)


def test_an_earlier_study_reads_its_identifiers_as_they_are_written(tmp_path, table, dictionary):
    """What a ledger holds already was made so; the figures are of the version before identifiers were normalised."""
    where = TableSource(path=tmp_path / "cohort.csv", columns={"pid": "person"})
    small = Dictionary(name="m", version=1, columns=(Column(name="person", kind="person"), dictionary.column("sex")))
    old = person_space(where, small, key=KEY, as_written=True)
    assert old == "0da0506d07666e234fae40ae0e5a9112"
    assert person_space(where, small, key=KEY) == f"normalised-{old}"
    assert pseudonym("P1", key=KEY) == "b0a107bbf0114d58655105b77a37dff2"
    both = write(tmp_path, table.assign(person=[" P1", "p1", "00017", "17", *table["person"][4:]]))
    found = read(both, dictionary, key=KEY, as_written=True)
    assert list(found.table["person"][:4]) == ["P1", "p1", "00017", "17"]
    assert problems(both, dictionary, as_written=True) == ()


def test_the_text_of_records_shows_none(tmp_path, table, dictionary):
    table.loc[0, "person"] = CANARY
    records = read(write(tmp_path, table), dictionary, key=KEY)
    assert CANARY not in repr(records)
    assert CANARY not in f"{records}"


# -- the file ---------------------------------------------------------------------------------------------------
def test_an_absent_file_is_refused(tmp_path, dictionary):
    refused(DataFileRefusal, TableSource(path=tmp_path / "gone.csv"), dictionary)


@pytest.mark.parametrize("name", ["empty.csv", "empty.parquet"])
def test_an_empty_file_is_refused(tmp_path, dictionary, name):
    (tmp_path / name).touch()
    refusal = refused(DataFileRefusal, TableSource(path=tmp_path / name), dictionary)
    assert "0 bytes" in refusal.given


def test_a_file_of_a_header_alone_is_refused(tmp_path, table, dictionary):
    refused(DataFileRefusal, write(tmp_path, table.iloc[:0]), dictionary)


def test_the_wrong_encoding_is_refused_and_the_right_one_is_asked_for(tmp_path, table, dictionary):
    table["clinic"] = "süd " + CANARY
    source = write(tmp_path, table, encoding="cp1252")
    refusal = refused(DataFileRefusal, replace(source, encoding="utf-8"), dictionary)
    assert "--encoding" in refusal.next_step


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_parquet_file_is_refused(tmp_path, table, dictionary, share):
    table.loc[0, "clinic"] = CANARY
    source = write(tmp_path, table, "cohort.parquet")
    data = source.path.read_bytes()
    source.path.write_bytes(data[: max(1, int(share * len(data)))])
    refused(DataFileRefusal, source, dictionary)


def test_a_csv_file_cut_off_in_a_line_is_refused(tmp_path, table, dictionary):
    source = write(tmp_path, table)
    source.path.write_text("\n".join(source.path.read_text().splitlines()[:100]) + f"\n{CANARY},3.5,1")
    assert "1 rows with fewer" in refused(DataFileRefusal, source, dictionary).given


@pytest.mark.parametrize("rows", ["all", "one"])
def test_rows_longer_than_the_header_are_refused(tmp_path, table, dictionary, rows):
    source = write(tmp_path, table)
    lines = source.path.read_text().splitlines()
    longer = [
        lines[0],
        *(f"{line},{CANARY}" if rows == "all" or i == 7 else line for i, line in enumerate(lines[1:])),
    ]
    source.path.write_text("\n".join(longer))
    refused(DataFileRefusal, source, dictionary)


def test_an_open_quote_is_refused(tmp_path, table, dictionary):
    source = write(tmp_path, table)
    source.path.write_text(source.path.read_text().replace("p1-150", f'"{CANARY}'))
    refused(DataFileRefusal, source, dictionary)


def test_a_file_without_a_header_does_not_show_its_first_patient(tmp_path, table, dictionary):
    table.loc[0, "person"] = CANARY
    path = tmp_path / "bare.csv"
    table.to_csv(path, index=False, header=False)
    refused(DictionaryRefusal, TableSource(path=path), dictionary)


# -- the columns ------------------------------------------------------------------------------------------------
def test_a_column_the_dictionary_does_not_know_is_refused_until_it_is_ignored_by_name(tmp_path, table, dictionary):
    source = write(tmp_path, table.assign(ward=CANARY))
    refusal = refused(DictionaryRefusal, source, dictionary)
    assert "ward" in refusal.given
    assert read(replace(source, ignore=("ward",)), dictionary, key=KEY).n == 300


def test_an_absent_column_is_refused_by_name(tmp_path, table, dictionary):
    assert "'sbp'" in refused(DictionaryRefusal, write(tmp_path, table.drop(columns="sbp")), dictionary).given


def test_two_source_columns_for_one_are_refused(tmp_path, table, dictionary):
    source = write(tmp_path, table.assign(SBP=1), columns={"SBP": "sbp"})
    refused(DictionaryRefusal, source, dictionary)


def test_a_repeated_name_is_refused(tmp_path, table, dictionary):
    source = write(tmp_path, table)
    lines = source.path.read_text().splitlines()
    source.path.write_text("\n".join([lines[0] + ",sbp", *(line + f",{CANARY}" for line in lines[1:])]))
    refused(DataFileRefusal, source, dictionary)


def test_a_mapping_of_a_column_that_is_gone_is_refused(tmp_path, table, dictionary):
    refused(DictionaryRefusal, write(tmp_path, table, columns={"SBP": "sbp"}), dictionary)


# -- the values -------------------------------------------------------------------------------------------------
VALUES = [
    ("sbp", f"{CANARY}", DictionaryRefusal, "must be a number"),
    ("sbp", 7319, DictionaryRefusal, "must be at most 270"),
    ("sbp", -7319, DictionaryRefusal, "must be at least 70"),
    ("visits", 3.7319, DictionaryRefusal, "whole number"),
    ("grade", CANARY, DictionaryRefusal, "level of the dictionary"),
    ("sex", CANARY, DictionaryRefusal, "level of the dictionary"),
    ("cvd", 7319, DictionaryRefusal, "level of the dictionary"),
    ("sbp", None, MissingRefusal, "no missing value"),
    ("person", None, MissingRefusal, "identify every row"),
]


@pytest.mark.parametrize("name", ["cohort.csv", "cohort.parquet"])
@pytest.mark.parametrize(("column", "value", "kind", "rule"), VALUES)
def test_a_value_outside_is_refused_by_column_rule_and_count(
    tmp_path, table, dictionary, name, column, value, kind, rule
):
    if name == "cohort.parquet":
        table[column] = table[column].astype(str)  # one type per column
    table[column] = table[column].astype(object)
    table.loc[[3, 5], column] = None if value is None else str(value)
    refusal = refused(kind, write(tmp_path, table, name), dictionary)
    assert column in refusal.must
    assert rule in refusal.must
    assert "2" in refusal.given


def test_a_column_without_any_value_is_refused(tmp_path, table, dictionary):
    refusal = refused(MissingRefusal, write(tmp_path, table.assign(sbp="")), dictionary)
    assert "sbp" in refusal.must
    assert "300 rows" in refusal.given


def test_a_person_who_stands_twice_is_refused_by_count(tmp_path, table, dictionary):
    table.loc[[1, 2], "person"] = CANARY
    assert "1 repeated" in refused(DuplicatePerson, write(tmp_path, table), dictionary).given


def test_problems_lists_every_column_where_reading_stops_at_the_first(tmp_path, dictionary):
    table = make_table(80)
    table["sbp"] = table["sbp"].astype(object)
    table.loc[0, "sbp"] = CANARY
    table.loc[[1, 2], "grade"] = CANARY
    table.loc[1, "person"] = table.loc[0, "person"]
    found = problems(write(tmp_path, table), dictionary)
    assert [type(refusal) for refusal in found] == [DuplicatePerson, DictionaryRefusal, DictionaryRefusal]
    assert all(isinstance(refusal, DataRefusal) and CANARY not in words(refusal) for refusal in found)


def test_no_problems_is_when_reading_succeeds(tmp_path, table, dictionary):
    assert problems(write(tmp_path, table), dictionary) == ()


def test_names_that_look_alike_are_proposed_once(dictionary):
    found = suggestions(["SBP (mmHg)", "Sex", "sex", "postcode"], dictionary)
    assert found["SBP (mmHg)"] == "sbp"
    assert "postcode" not in found
    assert list(found.values()).count("sex") == 1


# -- settings ---------------------------------------------------------------------------------------------------
def settings(home: Path, **change) -> SiteConfig:
    values = {
        "home": home,
        "site": "north",
        "coordinator": "hub",
        "address": "hub.example.org:8443",
        "server_name": "hub.example.org",
        "ca_fingerprint": "ab cd",
        "leads": ("ab" * 32,),
    }
    return SiteConfig(**{**values, **change})


def test_settings_come_back_from_their_file(tmp_path):
    source = TableSource(
        path=tmp_path / 'odd "name" \\ ü.csv', encoding="cp1252", columns={"SBP\t(mmHg)": "sbp"}, ignore=("a b", "c")
    )
    config = settings(
        tmp_path,
        approvers={"dr-lind": "cd" * 32},
        floors=SiteFloors(persons=80, membership_auc=0.52),
        data={"cvd": source},
    )
    config.save()
    assert SiteConfig.load(tmp_path) == config
    assert (tmp_path / "site.toml").stat().st_mode & 0o077 == 0


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path):
    text = settings(tmp_path).to_toml()
    for wrong, near in (("adress = 'x'\n", "address"), ("[floor]\n", "floors")):
        with pytest.raises(ConfigRefusal) as caught:
            SiteConfig.from_toml(
                text.replace("[floors]\n", "") + wrong if "[" in wrong else wrong + text, home=tmp_path
            )
        assert near in caught.value.next_step


@pytest.mark.parametrize("path", ["https://x.org/a.csv", "s3://bucket/a.csv", "//server/share/a.csv", "a.csv"])
def test_a_table_is_a_local_absolute_path(path):
    with pytest.raises(ConfigRefusal):
        TableSource(path=Path(path) if "://" not in path and "//" not in path else path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "loose"),
    [("persons", 49), ("rare_level", 9), ("approvals", 0), ("approvals", True), ("membership_auc", 1.5)],
)
def test_a_floor_below_the_products_is_refused(name, loose):
    with pytest.raises(ConfigRefusal):
        SiteFloors(**{name: loose})


def test_no_setting_lowers_a_floor(plan):
    import itertools

    for persons, auc, approvals in itertools.product((None, 50, 51, 9999), (None, 0.01, 0.6, 1.0), (None, 1, 5)):
        limits = Limits.of(plan.floors, SiteFloors(persons=persons, membership_auc=auc, approvals=approvals))
        assert limits.persons >= plan.floors.persons
        assert limits.membership_auc <= plan.floors.membership_auc
        assert limits.approvals >= plan.floors.approvals
        assert limits.persons >= (persons or 0)


def test_a_first_line_with_one_lucky_word_is_not_taken_for_names(tmp_path):
    """The first line of a file without a header is a patient: none of it is shown as a column name."""
    dictionary = Dictionary(
        name="d",
        version=1,
        columns=(
            Column(name="person", kind="person"),
            Column(name="age", kind="integer", lower=18, upper=110, unit="years"),
            Column(name="sex", kind="nominal", levels=("male", "female")),
            Column(name="site", kind="nominal", levels=("sex", "none")),
        ),
    )
    path = tmp_path / "t.csv"
    path.write_text("4711,81,male,sex\n4712,60,female,none\n")
    assert named(TableSource(path=path), dictionary) == (False, ())
    lacking, beyond, *_ = found = problems(TableSource(path=path), dictionary)
    shown = " ".join(map(words, (*found, refused(DictionaryRefusal, TableSource(path=path), dictionary))))
    assert not re.search(r"4711|\b81|'male'", shown)
    assert "no 'person', 'age', 'site'" in lacking.given
    assert "3 that are not, and are not shown" in beyond.given
    path.write_text("SMITH JOHN,81,SMITH JOHN,sex\nDOE JANE,60,DOE JANE,none\n")
    assert "SMITH" not in " ".join(map(words, problems(TableSource(path=path), dictionary)))
    path.write_text("4711,81,male,sex\n4712,60,female,none\n")
    combined = Steps(persons=Combination())
    assert "no 'person'" in problems(TableSource(path=path, steps=combined), dictionary)[0].given
    path.write_text("id,age,sex,ward\n4711,81,male,sex\n")
    assert named(TableSource(path=path), dictionary) == (True, ("id", "age", "sex", "ward"))


def test_a_column_without_a_name_that_is_ignored_is_no_hospital(tmp_path):
    """As pandas writes one; a recoding has the table read whole."""
    path = tmp_path / "t.csv"
    path.write_text(",person,age\n0,a,31\n1,b,42\n")
    dictionary = Dictionary(
        name="d",
        version=1,
        columns=(Column(name="person", kind="person"), Column(name="age", kind="integer", lower=18, upper=110)),
    )
    for values in ({}, {"age": Recoding(factor=1.0, offset=1.0)}):
        source = TableSource(path=path, ignore=("",), values=values)
        assert problems(source, dictionary) == ()
        assert read(source, dictionary, key=KEY).n == 2
