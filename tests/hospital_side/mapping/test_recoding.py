"""A hospital's own values: m and w, decimal commas, other units. Read as the steward wrote down, and never guessed."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from stage.hospital_side.site_desk import hospital  # noqa: F401

from shared.errors import ConfigRefusal, DictionaryRefusal
from shared.plans.dictionary import Column, Dictionary
from site_agent.config import Recoding, SiteConfig, TableSource
from site_agent.records import table as records
from site_agent.records.mapping.recoding import faults, recoded, with_point

NUMBER = Column(name="chol", kind="continuous", unit="mg/dL", lower=40, upper=800, missing_codes=(-9,), missing="level")
SEX = Column(name="sex", kind="binary", levels=(0, 1))
DICTIONARY = Dictionary(name="d", version=1, columns=(Column(name="person", kind="person"), NUMBER, SEX))
GERMAN = "person;chol;sex\n" + "".join(
    f"p{i};{5 + i / 10:.1f};{'m' if i % 2 else 'w'}\n".replace(".", ",") for i in range(20)
)


@pytest.fixture
def german(tmp_path):
    path = tmp_path / "auszug.csv"
    path.write_text(GERMAN)
    return TableSource(path=path, delimiter=";")


def test_a_messy_extract_is_read_as_it_was_written_down(german):
    assert len(records.problems(german, DICTIONARY)) == 2
    values = {"chol": Recoding(decimal=",", factor=38.67), "sex": Recoding(levels={"m": "1", "w": "0"})}
    found = records.read(replace(german, values=values), DICTIONARY, key=b"k" * 32)
    assert found.table["chol"].tolist() == pytest.approx([38.67 * (5 + i / 10) for i in range(20)])
    assert found.table["sex"].tolist() == [i % 2 for i in range(20)]


def test_every_problem_is_told_at_once_with_the_verb_that_helps(german):
    german.path.write_text(GERMAN.replace("chol", "Chol").replace("p3;", "p2;"))
    found = records.problems(german, DICTIONARY)
    said = " ".join(f"{problem.must} {problem.given} {problem.next_step}" for problem in found)
    assert len(found) == 4
    assert "no 'chol'" in said
    assert "Did you mean site-agent data map STUDY Chol=chol?" in said
    assert "1 repeated rows" in said
    assert "with 2 different values" in said
    assert "--level sex:VALUE=1" in said
    mapped = replace(german, columns={"Chol": "chol"})
    [number] = [problem for problem in records.problems(mapped, DICTIONARY) if "'chol'" in problem.must]
    assert number.next_step == (
        "20 of them are numbers with a decimal comma: site-agent data map STUDY --decimal-comma chol"
    )


def test_a_column_breaks_several_rules_and_each_is_counted():
    values = pd.Series(["a", "30", "900", "-9", ""])
    rules = [(problem.must.split("must ")[1], problem.given) for problem in NUMBER.compare(values)[1]]
    one = "1 row that does not"
    assert rules == [("be a number", one), ("be at least 40", one), ("be at most 800", one)]
    assert len(replace(NUMBER, missing="refuse").compare(values)[1]) == 4
    with pytest.raises(DictionaryRefusal, match="must be a number"):
        NUMBER.check(values)


def test_what_could_be_read_either_way_is_no_number():
    said = with_point(pd.Series(["2,3", "1.234,5", "1.234", "2.3", "-0,5", "12", "x"])).tolist()
    assert said == ["2.3", "1234.5", "1.234?", "2.3", "-0.5", "12", "x"]


def test_codes_of_missing_values_have_no_unit():
    out = recoded(pd.Series(["5", "-9", None, "n/a"]), Recoding(factor=38.67), NUMBER)
    assert [out[0], out[1], out[3]] == [193.35, "-9", "n/a"]
    assert pd.isna(out[2])


def test_a_hospitals_own_words_for_what_is_not_known_are_missing_values(german):
    text = GERMAN.replace("5,3;m", "n.b.;m").replace("5,4;w", "-1;w").replace("5,5;m", "5,5;k.A.")
    german.path.write_text(text)
    lenient = replace(DICTIONARY, columns=(DICTIONARY.columns[0], NUMBER, replace(SEX, missing="complete_case")))
    known = {"chol": Recoding(decimal=",", factor=38.67), "sex": Recoding(levels={"m": "1", "w": "0"})}
    found = records.problems(replace(german, values=known), lenient)
    assert [one.given.split(",")[0] for one in found] == ["1 row that does not"] * 3
    assert "--level chol:VALUE=, once for each" in found[0].next_step
    assert "--level chol:VALUE=" in found[1].next_step
    values = {
        "chol": Recoding(decimal=",", factor=38.67, levels={"n.b.": "", "-1": ""}),
        "sex": Recoding(levels={"m": "1", "w": "0", "k.A.": ""}),
    }
    assert values["sex"].words == "m is 1, w is 0, k.A. is missing"
    read = records.read(replace(german, values=values), lenient, key=b"k" * 32)
    assert (len(read.table), int(read.table["chol"].isna().sum())) == (19, 2), "no sex: left out, as the lead declared"
    [refused] = records.problems(replace(german, values=values), DICTIONARY)
    assert "'sex' must have no missing value" in refused.must, (
        "what is missing is for the plan to say, not for the site"
    )


def test_dates_in_a_column_of_numbers_are_called_dates(german):
    german.path.write_text(GERMAN.replace("5,3;m", "3.4.2021;m"))
    values = {"chol": Recoding(decimal=","), "sex": Recoding(levels={"m": "1", "w": "0"})}
    found = records.problems(replace(german, values=values), DICTIONARY)
    assert "1 of them are dates, where the study has a number of mg/dL" in found[0].next_step


def test_a_recoding_is_part_of_what_was_read(german):
    values = {"chol": Recoding(decimal=",", factor=38.67), "sex": Recoding(levels={"m": "1", "w": "0"})}
    one = records.read(replace(german, values=values), DICTIONARY, key=b"k" * 32)
    other = records.read(
        replace(german, values=values | {"sex": Recoding(levels={"m": "0", "w": "1"})}), DICTIONARY, key=b"k" * 32
    )
    assert one.snapshot != other.snapshot


def test_persons_are_never_recoded(german):
    with pytest.raises(DictionaryRefusal, match="persons"):
        records.read(replace(german, values={"person": Recoding(levels={"p1": "p2"})}), DICTIONARY, key=b"k" * 32)


def test_settings_with_recodings_read_back(german, tmp_path):
    values = {"chol": Recoding(decimal=",", factor=38.67, offset=-1), "sex": Recoding(levels={"m": "1", 'w "x"': "0"})}
    config = SiteConfig(
        home=tmp_path,
        site="north",
        coordinator="hub",
        address="h:1",
        server_name="h",
        ca_fingerprint="",
        leads=(),
        data={"heart": replace(german, values=values)},
    )
    config.save()
    assert SiteConfig.load(tmp_path) == config
    for wrong in ({"factor": 0}, {"decimal": "."}, {"factor": "x"}, {"levels": {"m": 1}}):
        with pytest.raises(ConfigRefusal):
            Recoding(**wrong)


def test_data_map_says_how_values_are_read_and_a_newer_extract_keeps_it(hospital, plan, tmp_path):
    at = hospital.joined().approved(plan)
    table = make_table(300)
    table["sex"] = table["sex"].map({"male": "m", "female": "w"})
    table["sbp"] = [f"{value / 10:.2f}".replace(".", ",") for value in table["sbp"]]
    path = tmp_path / "auszug.csv"
    table.to_csv(path, index=False, sep=";")
    at("data", "add", str(path), "--as", "mini")
    problems = at.json("data", "check", "mini", expect=40)["problems"]
    assert len(problems) == 2
    assert all(problem["next_step"].count("site-agent data map mini --") for problem in problems)
    at("data", "map", "mini", "--level", "sex:m=male", "--level", "sex:w=female", "--decimal-comma", "all")
    shown = at("data", "map", "mini", "--factor", "sbp=10")
    assert "m is male, w is female" in shown
    assert "decimal comma, times 10" in shown
    assert at.json("data", "check", "mini")["rows"] == 300
    assert at.json("data", "check", "mini")["recoded_never_seen"] == {}
    at("data", "map", "mini", "--level", "sex:f=female")
    assert at.json("data", "check", "mini")["recoded_never_seen"] == {"sex": 1}
    assert "sex: 1 of 3 recoded values never occur" in " ".join(at("data", "check", "mini").split())
    assert at.json("data", "add", str(path), "--as", "mini")["values"]["sbp"] == {"decimal": ",", "factor": 10.0}
    assert "Did you mean 'male'?" in at.refused("data", "map", "mini", "--level", "sex:m=mal", expect=2)["next_step"]
    at.refused("data", "map", "mini", "--factor", "sex=2", expect=2)
    at.refused("data", "map", "mini", "--factor", "sbp=two", expect=2)
    at.refused("data", "map", "mini", "--level", "person:a=b", expect=2)
    at.json("data", "map", "mini", "--as-is", "sex")
    assert len(at.json("data", "check", "mini", expect=40)["problems"]) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lyon.ods", "CSV UTF-8"),
        ("lyon.rds", "Export it from there"),
        (".", "Export it as CSV"),
        ("x.doc", "Export it"),
    ],
)
def test_a_file_of_another_kind_is_answered_to_the_steward_with_what_to_do(hospital, plan, tmp_path, name, words):
    at = hospital.joined().approved(plan)
    said = at.refused("data", "add", str(tmp_path / name), "--as", "mini", expect=40)
    assert words in said["next_step"]
    assert "site.toml" not in said["next_step"]
    assert said["fixer"] == "data steward"


def test_numbers_of_a_database_are_recoded_too():
    out = recoded(pd.Series(np.array([5.0, 6.0])), Recoding(factor=2), replace(NUMBER, missing_codes=()))
    assert out.tolist() == [10.0, 12.0]


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([0.0, 1.0, np.nan, 1.0]),
        pd.Series([False, True, None, True]),
        pd.Series([False, True, None, True], dtype="boolean"),
        pd.Series([0, 1, None, 1], dtype="Int64"),
        pd.Series(["0.0", "1.00", None, "01"]),
    ],
)
def test_a_reversed_code_is_turned_however_its_file_writes_it(values):
    how = Recoding(levels={"0": "1", "1": "0"})
    assert faults(values, how, SEX) == ()
    assert SEX.compare(recoded(values, how, SEX))[0].tolist() == pytest.approx([1, 0, np.nan, 0], nan_ok=True)
    named = Column(name="sex", kind="nominal", levels=("m", "w"))
    if values.dtype != "str" and values.iloc[1] != "1.00":
        assert recoded(values, Recoding(levels={"0": "w", "1.0": "m"}), named).tolist()[:2] == ["w", "m"]


def test_a_column_of_floats_is_turned_from_parquet_to_what_is_checked(tmp_path):
    table = pd.DataFrame({"person": ["a", "b", "c"], "chol": [200.0, 210.0, 220.0], "sex": [0.0, 1.0, np.nan]})
    table.to_parquet(tmp_path / "t.parquet")
    source = TableSource(path=tmp_path / "t.parquet", values={"sex": Recoding(levels={"0": "1", "1": "0"})})
    open_ended = replace(DICTIONARY, columns=(*DICTIONARY.columns[:2], replace(SEX, missing="level")))
    assert records.problems(source, open_ended) == ()
    assert records.read(source, open_ended, key=b"k" * 32).table["sex"].tolist()[:2] == [1, 0]


def test_a_value_that_is_not_named_and_is_a_level_of_others_is_refused_and_counted(german):
    german.path.write_text(GERMAN.replace("p4;5,4;w", "p4;5,4;1").replace("p6;5,6;w", "p6;5,6;1e0"))
    values = {"chol": Recoding(decimal=",", factor=38.67), "sex": Recoding(levels={"m": "1", "w": "0"})}
    source = replace(german, values=values)
    [problem] = records.problems(source, DICTIONARY)
    assert "'sex'" in problem.must
    assert problem.given == "2 rows with one that is not"
    with pytest.raises(DictionaryRefusal, match="every value named"):
        records.read(source, DICTIONARY, key=b"k" * 32)
    named = Recoding(levels={"m": "1", "w": "0", "1": "1"})
    assert records.problems(replace(source, values=values | {"sex": named}), DICTIONARY) == ()


def test_one_value_under_two_names_is_one_level():
    values = pd.Series(["1", "0"])
    assert faults(values, Recoding(levels={"1": "0", "1.0": "0", "0": "1"}), SEX) == ()
    [fault] = faults(values, Recoding(levels={"1": "0", "1.0": "1", "0": "1"}), SEX)
    assert "one value is one level" in fault.must


def test_a_number_that_is_a_code_of_missing_ones_once_converted_is_refused():
    degrees = Column(name="t", kind="continuous", lower=-50, upper=60, missing="level", missing_codes=(-9,))
    celsius = Recoding(factor=1 / 1.8, offset=-32 / 1.8)
    [fault] = faults(pd.Series(["15.8", "-9", "50", ""]), celsius, degrees)
    assert (fault.must.split(" ")[1], fault.given) == ("'t'", "1 rows that do")
    assert faults(pd.Series(["15.9", "-9", "50", ""]), celsius, degrees) == ()
    assert len(faults(pd.Series([99.9]), Recoding(factor=10), replace(NUMBER, missing_codes=(999.0,)))) == 1


def test_commas_and_words_in_one_column_are_told_at_once_and_a_word_only_where_it_may_be_missing(german):
    german.path.write_text(GERMAN.replace("5,3;m", "k.A.;m").replace("5,4;w", "k.A.;w"))
    [number] = [one for one in records.problems(german, DICTIONARY) if "'chol'" in one.must]
    assert "18 of them are numbers with a decimal comma" in number.next_step
    assert "2 are no number either way: site-agent data map STUDY --level chol:VALUE=" in number.next_step
    strict = replace(DICTIONARY, columns=(DICTIONARY.columns[0], replace(NUMBER, missing="refuse"), SEX))
    [number] = [one for one in records.problems(german, strict) if "'chol'" in one.must]
    assert "the plan lets none be missing here" in number.next_step
    assert "VALUE=" not in number.next_step
