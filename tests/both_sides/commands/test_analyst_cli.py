"""`analyst` pools a table of yi and vi on its own: no server, no torch."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from coordinator.analyst.commands import main, read_table
from coordinator.pooling.further.two_by_two import TwoByTwoTables, mantel_haenszel
from coordinator.pooling.pool import pool
from shared.errors import DataFileRefusal
from shared.terminal import number

ROWS = pd.DataFrame(
    {
        "trial": ["Alpha", "Beta", "Gamma", "Delta", "Lost", "Exact"],
        "year": [1948, 1949, 1960, 1977, 1980, 1981],
        "yi": [-0.8893, -1.5854, -1.3481, -1.4416, None, 0.3],
        "vi": [0.3256, 0.1946, 0.4154, 0.0200, 0.1, 0.0],
    }
)


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "trials.csv"
    ROWS.to_csv(path, index=False)
    return path


def answer(capsys, *argv):
    code = main([*map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_pool_prints_what_the_library_gives(csv, capsys):
    code, said = answer(capsys, "pool", csv)
    expected = pool(ROWS["yi"], ROWS["vi"], labels=list(ROWS["trial"]))
    assert code == 0
    assert said["k"] == 4
    assert said["pooled"]["beta"] == expected.beta
    assert said["pooled"]["ci_lb"] == expected.ci_lb
    assert said["fixed"]["beta"] == expected.fixed.beta
    assert [row["label"] for row in said["rows"]] == ["Alpha", "Beta", "Gamma", "Delta"]
    assert {row["label"] for row in said["excluded"]} == {"Lost", "Exact"}
    assert sum(row["weight"] for row in said["rows"]) == pytest.approx(100)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_every_kind_of_table_gives_the_same_answer(tmp_path, capsys, suffix):
    path = tmp_path / f"trials{suffix}"
    if suffix == ".parquet":
        ROWS.to_parquet(path)
    else:
        ROWS.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    _, said = answer(capsys, "pool", path, "--method", "DL", "--test", "z")
    assert said["pooled"]["beta"] == pool(ROWS["yi"], ROWS["vi"], method="DL", test="z").beta


def test_the_table_for_people_names_every_row_and_every_row_left_out(csv, capsys):
    assert main(["pool", str(csv), "--exp"]) == 0
    shown = capsys.readouterr().out
    for words in (*ROWS["trial"], "fixed effect", "random effects (REML, adhoc)", "prediction interval", "I²", "τ²"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_mistyped_column_is_refused_with_the_nearest_one(csv, capsys):
    assert main(["pool", str(csv), "--yi", "y_i"]) == 2
    assert "Did you mean 'yi'?" in capsys.readouterr().err


def test_describe_says_what_could_not_be_pooled(csv, capsys):
    code, said = answer(capsys, "describe", csv)
    assert code == 0
    assert (said["rows"], said["usable"]) == (6, 4)
    assert len(said["excluded"]) == 2


def test_describe_of_a_table_without_yi_points_at_the_options(tmp_path, capsys):
    path = tmp_path / "other.csv"
    pd.DataFrame({"study": ["A"], "logHR": [0.1], "se2": [0.2]}).to_csv(path, index=False)
    assert main(["describe", str(path)]) == 0
    assert "--yi" in capsys.readouterr().out


def test_a_table_without_a_usable_row_leaves_with_the_code_of_data(tmp_path, capsys):
    path = tmp_path / "none.csv"
    pd.DataFrame({"yi": [None, None], "vi": [1.0, 1.0]}).to_csv(path, index=False)
    code, said = answer(capsys, "pool", path)
    assert code == 40
    assert said["refused"]["code"] == "E_ESTIMATE"


@pytest.mark.parametrize("content", ["", "yi,vi\n", 'yi,vi\n"1,2\n'], ids=["empty", "no row", "open quote"])
def test_a_broken_table_is_a_refusal(tmp_path, content):
    path = tmp_path / "broken.csv"
    path.write_text(content)
    with pytest.raises(DataFileRefusal):
        read_table(path)


def test_another_kind_of_file_is_a_refusal(tmp_path):
    with pytest.raises(DataFileRefusal, match="csv"):
        read_table(f"{tmp_path}/trials.xlsx")  # as an analyst writes it


def test_an_unknown_method_is_refused(csv, capsys):
    code, said = answer(capsys, "pool", csv, "--method", "MAGIC")
    assert (code, said["refused"]["code"]) == (2, "E_PARAMETER")


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_a_forest_plot_is_written(csv, tmp_path, capsys, suffix):
    pytest.importorskip("coordinator.figures.forest")
    out = tmp_path / f"forest{suffix}"
    code, said = answer(capsys, "forest", csv, "--out", out)
    assert (code, said["written"]) == (0, True)
    assert out.stat().st_size > 1000


def test_a_forest_plot_has_subgroups_and_sides_and_its_numbers_can_be_written(csv, tmp_path, capsys):
    out, numbers = tmp_path / "forest.svg", tmp_path / "forest.csv"
    facts = pd.read_csv(csv).assign(era=["forties", "forties", "later", "later", "later", "later"])
    facts.to_csv(csv, index=False)
    more = ("--subgroup", "era", "--favours", "Favours drug|Favours placebo", "--labels", "trial")
    assert answer(capsys, "forest", csv, "--out", out, *more)[0] == 0
    assert "era later" in out.read_text()
    assert answer(capsys, "forest", csv, "--out", numbers, *more)[0] == 0
    rows = pd.read_csv(numbers)
    assert rows[rows["row"] == "group"]["label"].tolist() == ["era forties", "era later"]
    assert answer(capsys, "forest", csv, "--out", numbers, "--labels", "trial", "--sort", "estimate")[0] == 0
    assert pd.read_csv(numbers)["label"].tolist()[:4] == ["Beta", "Delta", "Gamma", "Alpha"]
    assert answer(capsys, "forest", csv, "--out", out, "--sort", "weight", "--column", "year", *more)[0] == 0
    assert "1977" in out.read_text()
    assert rows[rows["label"] == "era forties"]["yi"].item() == pool(ROWS["yi"][:2], ROWS["vi"][:2]).beta
    for wrong in (
        ("--sort", "size"),
        ("--kind", "funnel", "--sort", "name"),
        ("--kind", "funnel", *more),
        ("--favours", "one side"),
        ("--subgroup", "eraa"),
    ):
        assert main(["forest", str(csv), "--out", str(out), *wrong]) == 2
    assert main(["forest", str(csv), "--out", str(numbers), "--kind", "funnel"]) == 2


def test_a_dry_run_of_a_figure_writes_nothing(csv, tmp_path, capsys):
    out = tmp_path / "forest.svg"
    code, said = answer(capsys, "forest", csv, "--out", out, "--dry-run")
    assert (code, said["written"], out.exists()) == (0, False, False)


def test_a_figure_of_another_kind_is_refused(csv, tmp_path, capsys):
    assert main(["forest", str(csv), "--out", str(tmp_path / "forest.gif")]) == 2
    assert ".svg" in capsys.readouterr().err


@pytest.mark.parametrize("value", [0.0, 1.0, -0.04301, 12.3456, 123456.0, 3e-9, 7e12])
def test_a_number_reads_back_to_four_digits(value):
    assert float(number(value)) == pytest.approx(value, rel=1e-3)


def test_help_and_pooling_need_neither_torch_nor_grpc_and_help_needs_no_matplotlib(csv):
    run = "import sys; from coordinator.analyst.commands import main; main(sys.argv[1:]); print(*sys.modules)"
    for argv, absent in (
        (["--help"], {"torch", "grpc", "matplotlib", "pandas", "scipy", "statsmodels"}),
        (["pool", str(csv)], {"torch", "grpc", "matplotlib"}),
    ):
        made = subprocess.run([sys.executable, "-c", run, *argv], capture_output=True, text=True, check=True)
        assert not absent & set(made.stdout.splitlines()[-1].split())


COUNTED = pd.DataFrame(
    {
        "trial": ["Alpha", "Beta", "Gamma", "Delta"],
        "ai": [4, 6, 3, 62],
        "bi": [119, 300, 228, 13536],
        "ci": [11, 29, 11, 248],
        "di": [128, 274, 209, 12619],
    }
)


def test_further_questions_are_answered_in_json_and_in_words(csv, capsys):
    flags = ("--mods", "year", "--subgroup", "trial", "--bayes", "--exact", "--diagnostics")
    code, said = answer(capsys, "pool", csv, *flags)
    assert code == 0
    assert said["regression"]["terms"] == ["intercept", "year"]
    assert set(said["subgroups"]["groups"]) == {"Alpha", "Beta", "Gamma", "Delta"}
    assert said["exact"]["interval"]["lb"] < said["pooled"]["beta"] < said["exact"]["interval"]["ub"]
    assert said["bayes"]["mu"]["lb"] < said["bayes"]["mu"]["ub"]
    assert "off below 10" in said["egger"]["reason"]
    assert list(said["leave_one_out"]) == ["Alpha", "Beta", "Gamma", "Delta"]
    assert main(["pool", str(csv), "--exp", *flags]) == 0
    shown = capsys.readouterr().out
    for words in ("meta-regression", "subgroups by trial", "exact (simulated", "half-normal(0.5", "without each site"):
        assert words in shown


def test_the_same_question_has_the_same_exact_interval(csv, capsys):
    one = answer(capsys, "pool", csv, "--exact")[1]["exact"]
    assert one == answer(capsys, "pool", csv, "--exact")[1]["exact"]


def test_a_mistyped_moderator_is_refused_with_the_nearest_column(csv, capsys):
    assert main(["pool", str(csv), "--mods", "yaer"]) == 2
    assert "Did you mean 'year'?" in capsys.readouterr().err


def test_more_moderators_than_rows_cost_only_their_own_answer(csv, capsys):
    code, said = answer(capsys, "pool", csv, "--mods", "year", "--mods", "vi", "--mods", "trial")
    assert code == 0
    assert "more rows than coefficients" in said["regression"]["reason"]
    assert said["pooled"]["beta"] is not None


def test_tables_of_counts_are_pooled(tmp_path, capsys):
    path = tmp_path / "counts.csv"
    COUNTED.to_csv(path, index=False)
    expected = mantel_haenszel(TwoByTwoTables(**{cell: COUNTED[cell] for cell in ("ai", "bi", "ci", "di")}))
    code, said = answer(capsys, "tables", path)
    assert (code, said["beta"], said["k"]) == (0, expected.beta, 4)
    assert main(["tables", str(path), "--measure", "RR"]) == 0
    assert "RR 0." in capsys.readouterr().out
    assert answer(capsys, "tables", path, "--method", "Peto")[1]["method"] == "Peto"
    assert main(["tables", str(path), "--method", "Peto", "--measure", "RD"]) == 2
    assert main(["tables", str(path), "--cells", "ai,bi"]) == 2


@pytest.mark.parametrize("kind", ["leave-one-out", "cumulative", "funnel", "baujat", "influence"])
def test_the_figures_beside_the_forest_plot_are_written(csv, tmp_path, capsys, kind):
    out = tmp_path / f"{kind}.svg"
    code, said = answer(capsys, "forest", csv, "--kind", kind, "--out", out)
    assert (code, said["kind"]) == (0, kind)
    assert "<desc" in out.read_text()


def test_an_unknown_kind_of_figure_is_refused(csv, tmp_path, capsys):
    assert main(["forest", str(csv), "--kind", "pie", "--out", str(tmp_path / "x.svg")]) == 2
    assert "leave-one-out" in capsys.readouterr().err
