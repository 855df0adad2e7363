"""Figures as an art editor takes them: files, sizes, fonts, greys, axes, aligned numbers; and pictures, looked at."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coordinator.analyst.commands import main
from coordinator.analyst.own.table import OwnTable, read_table
from coordinator.figures import companions
from coordinator.figures.forest import forest
from coordinator.figures.style import FILES, JOURNALS, styled
from coordinator.pooling.further.refits import cumulative, ordered
from coordinator.pooling.pool import pool, pool_estimates
from shared.errors import ParameterError
from shared.estimands.answer import Estimate

PICTURES = Path(__file__).parents[2] / "reference" / "pictures"
SITES = ("Berlin", "Lyon", "Porto", "Zürich")


def estimates(*yi: float) -> list[Estimate]:
    return [
        Estimate(
            study="s",
            site=site,
            wave=1,
            term="sbp/10",
            yi=y,
            vi_sampling=0.01 * (k + 1),
            vi_privacy=0.004,
            vi_naive=0.01,
            n=400 * (k + 1),
            scale="log",
        )
        for k, (site, y) in enumerate(zip(SITES, yi, strict=True))
    ]


@pytest.fixture
def result():
    return replace(pool_estimates(estimates(0.1, 0.3, 0.2, 0.5)), effect="Odds ratio")


def columns() -> dict[str, dict[str, str]]:
    return {"Posture": dict.fromkeys(SITES, "local"), "ε": dict.fromkeys(SITES, "104.6")}


@pytest.mark.parametrize("suffix", FILES)
def test_a_figure_is_written_to_each_kind_of_file_the_same_bytes_each_time(result, tmp_path, suffix):
    for name in ("one", "two"):
        forest(result, title="Title", columns=columns(), path=tmp_path / f"{name}{suffix}")
    one, two = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two
    begins = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG", ".eps": b"%!PS-Adobe-3.0 EPSF"}
    assert one.startswith(begins.get(suffix, (b"II*\x00", b"MM\x00*")))


def test_letters_are_letters_unless_outlines_are_asked_for(result, tmp_path):
    forest(result, title="Title of it", path=tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "Zürich</text>" in text
    assert "Verdana" in text
    with styled(outlines=True):
        forest(result, title="Title of it", path=tmp_path / "b.svg")
    assert "<text" not in (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize("journal", [name for name in JOURNALS if not name.endswith("column")])
def test_a_journals_width_is_the_figures(result, tmp_path, journal):
    from PIL import Image

    with styled(journal=journal) as how:
        forest(result, title="Title", path=tmp_path / "a.png")
        forest(result, title="Title", path=tmp_path / "a.svg")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] / how.dpi * 25.4 == pytest.approx(how.width, abs=0.5)
    points = float(re.search(r'width="([\d.]+)pt"', (tmp_path / "a.svg").read_text())[1])
    assert points / 72 * 25.4 == pytest.approx(how.width, abs=0.5)


def test_a_width_whose_letters_nobody_could_read_is_refused_with_one_that_will_do(result, tmp_path):
    with styled(width=60), pytest.raises(ParameterError, match=r"at least 5 points, got .* Give it \d+ mm"):
        forest(result, title="Title", columns=columns(), path=tmp_path / "a.pdf")


def test_in_greys_there_is_no_colour_and_series_differ(result, tmp_path):
    from PIL import Image

    other = replace(pool_estimates(estimates(0.2, 0.1, 0.3, 0.4)), effect="Odds ratio")
    with styled(grey=True, dpi=100):
        figure = forest(result, compare={"real": other}, path=tmp_path / "a.png")
    red, green, blue = (np.asarray(Image.open(tmp_path / "a.png").convert("RGB"))[..., k].astype(int) for k in range(3))
    assert max(np.abs(red - green).max(), np.abs(green - blue).max()) == 0
    marks = {line.get_gid(): line for axes in figure.axes for line in axes.lines if line.get_gid()}
    one, two = marks["site-0-0"].get_color()[0], marks["site-0-1"].get_color()[0]
    assert abs(one - two) > 0.25
    assert marks["site-0-0"].get_marker() != marks["site-0-1"].get_marker()


def test_axis_ticks_label_and_digits_are_those_asked_for(result):
    with styled(xlim=(0.5, 4), ticks=(0.5, 1, 2, 4), xlabel="OR per 10 mmHg", digits=3):
        figure = forest(result)
    axes = figure.axes[1]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "1", "2", "4"]
    assert np.exp(axes.get_xlim()) == pytest.approx((0.5, 4))
    assert axes.get_xlabel() == "OR per 10 mmHg"
    assert "1.105" in [text.get_text() for text in figure.axes[0].texts]
    for wrong in ({"xlim": (-1.0, 2.0)}, {"xlim": (2.0, 1.0)}, {"digits": 20}, {"dpi": 5}, {"width": 1.0}):
        with pytest.raises(ParameterError), styled(**wrong):
            forest(result)
    with pytest.raises(ParameterError, match="font must be installed"), styled(font="No Such Letters"):
        pass
    with pytest.raises(ParameterError, match="journal must be one of"), styled(journal="lancette"):
        pass


@pytest.mark.parametrize("yi", [(0.1, 0.3, 0.2, 0.5), (-3.0, 0.1, 2.2, 3.9), (0.0, 4.0, 5.0, 6.0)])
def test_numbers_of_a_column_have_the_same_decimals_and_stand_under_each_other(yi):
    found = replace(pool_estimates(estimates(*yi)), effect="Odds ratio")
    figure = forest(found)
    texts = [text for text in figure.axes[0].texts if re.fullmatch(r"[\d,]+\.\d+", text.get_text())]
    assert {len(text.get_text().partition(".")[2]) for text in texts} == {2}
    assert {text.get_weight() for text in texts} == {"normal"}, "bold digits are wider, and would shift the points"
    places = {round(text.get_position()[0], 6) for text in texts}
    assert len(places) == 1


def test_weights_say_of_which_model_and_columns_what_they_mean(result):
    said = [text.get_text() for text in forest(result, columns=columns()).axes[0].texts]
    assert {"Weight (random)", "All 4", "4,000", "100.0 %"} <= set(said)
    foot = " ".join(said)
    for words in ("n: rows that the answer rests on", "Noise: part of", "Posture: what"):
        assert words in foot
    own = [text.get_text() for text in forest(pool([0.1, 0.2], [0.01, 0.02])).axes[0].texts]
    assert "Study" in own
    assert "Site" not in own
    both = forest(result, columns=columns(), compare={"real": result}, name="released")
    assert "of 'released' alone" in " ".join(text.get_text() for text in both.axes[0].texts)


def test_very_wide_axes_have_at_least_three_labels():
    figure = forest(replace(pool([0.1, 2.2], [0.4, 0.5]), scale="log", effect="Odds ratio"))
    labels = [label.get_text() for label in figure.axes[1].get_xticklabels()]
    assert 3 <= len(labels) <= 6
    assert "1" in labels
    assert all("e" not in label for label in labels)


def test_a_cumulative_figure_follows_the_year(tmp_path, capsys):
    years = {"C": 1980, "A": 1960, "B": 1970}
    path = tmp_path / "t.csv"
    pd.DataFrame({"trial": list(years), "year": list(years.values()), "yi": [0.3, 0.1, 0.2], "vi": [0.1] * 3}).to_csv(
        path
    )
    argv = ["forest", str(path), "--kind", "cumulative", "--sort", "year", "--labels", "trial"]
    assert main([*argv, "--out", str(tmp_path / "a.svg")]) == 0
    text = (tmp_path / "a.svg").read_text()
    assert text.index(">A<") < text.index(">B<") < text.index(">C<")
    found = pool([0.3, 0.1, 0.2], [0.1] * 3, labels=list(years))
    assert [label for label, _ in cumulative(ordered(found, "year", values=years))] == ["A", "B", "C"]
    assert ordered(found, "x", values={"A": 1, "C": 0}).labels == ("C", "A", "B"), "without a value comes last"


def test_a_funnel_of_many_names_those_outside_has_contours_and_both_centres():
    rng = np.random.default_rng(1)
    vi = rng.uniform(0.01, 0.3, 60)
    many = replace(pool(rng.normal(0.3, np.sqrt(vi)), vi), scale="log", effect="Risk ratio")
    drawn = companions.funnel(many, contours=True)
    gids = {item.get_gid() for axes in drawn.figure.axes for item in (*axes.lines, *axes.patches)}
    assert {"contour-0", "contour-1", "contour-2", "region", "pooled", "random"} <= gids
    inside = abs(np.array(many.yi) - many.fixed.beta) <= 1.96 * np.sqrt(np.array(many.vi))
    named = {
        text.get_text() for axes in drawn.figure.axes for text in axes.texts if text.get_text().startswith("study")
    }
    assert named <= {label for label, within in zip(many.labels, inside, strict=True) if not within}
    low, high = drawn.figure.axes[1].get_xlim()
    region = next(item for item in drawn.figure.axes[1].patches if item.get_gid() == "region")
    assert low < region.get_xy()[:, 0].min()
    assert region.get_xy()[:, 0].max() < high
    proportion = replace(pool([0.1, 0.2], [0.1, 0.1]), scale="logit", effect="Proportion")
    with pytest.raises(ParameterError, match="can be none"):
        companions.funnel(proportion, contours=True)


def test_a_bubble_plot_draws_the_meta_regression(result, tmp_path, capsys):
    from coordinator.pooling.moderators import regress

    years = {site: 1990.0 + 3 * k for k, site in enumerate(SITES)}
    drawn = companions.draw("bubble", result, moderator=("year", years))
    line = next(item for item in drawn.figure.axes[1].lines if item.get_gid() == "line")
    fit = regress(result.yi, result.vi, {"year": list(years.values())}, labels=list(SITES))
    assert np.interp(1995.0, *line.get_data()) == pytest.approx(fit.beta[0] + fit.beta[1] * 1995.0, abs=1e-6)
    rows = tuple(replace(row, vi_common=0.09) for row in result.estimates)
    wide, band = (
        next(item for item in one.figure.axes[1].collections if item.get_gid() == "band").get_paths()[0].get_extents()
        for one in (companions.draw("bubble", replace(result, estimates=rows), moderator=("year", years)), drawn)
    )
    assert wide.height > 1.05 * band.height
    with pytest.raises(ParameterError, match="moderator of numbers"):
        companions.draw("bubble", result, moderator=("region", dict.fromkeys(SITES, "north")))


# -- a table of one's own -------------------------------------------------------------------------------------------
TRIALS = pd.DataFrame(
    {
        "author": ["Comstock", "Aronson", "Comstock"],
        "alloc": ["random", "random", "other"],
        "logrr": [-0.3, -0.9, -0.4],
        "se": [0.1, 0.5, 0.2],
        "tpos": [4, 6, 3],
        "tneg": [119, 300, 228],
        "cpos": [11, 29, 11],
        "cneg": [128, 274, 209],
    }
)


def pooled(capsys, *argv) -> dict:
    assert main([*map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_of_one_name_are_numbered_in_every_verb(tmp_path, capsys):
    path = tmp_path / "t.csv"
    TRIALS.to_csv(path, index=False)
    said = pooled(capsys, "pool", path, "--yi", "logrr", "--sei", "se", "--labels", "author", "--subgroup", "alloc")
    assert [row["label"] for row in said["rows"]] == ["Comstock", "Aronson", "Comstock (2)"]
    assert set(said["subgroups"]["groups"]) == {"random", "other"}
    pooled(capsys, "forest", path, "--yi", "logrr", "--sei", "se", "--subgroup", "alloc", "--out", tmp_path / "a.svg")


def test_standard_errors_semicolons_and_decimal_commas_are_read(tmp_path, capsys):
    path, german = tmp_path / "t.csv", tmp_path / "g.csv"
    TRIALS.assign(vi=TRIALS["se"] ** 2).to_csv(path, index=False)
    TRIALS.to_csv(german, index=False, sep=";", decimal=",", encoding="cp1252")
    own = pooled(capsys, "pool", path, "--yi", "logrr")
    assert pooled(capsys, "pool", german, "--yi", "logrr", "--sei", "se")["pooled"]["beta"] == pytest.approx(
        own["pooled"]["beta"]
    )


def test_counts_are_pooled_row_by_row_under_random_effects_and_drawn(tmp_path, capsys):
    from coordinator.pooling.further.two_by_two import TwoByTwoTables, effect_sizes

    path = tmp_path / "t.csv"
    TRIALS.to_csv(path, index=False)
    cells = ("--cells", "tpos,tneg,cpos,cneg", "--measure", "RR")
    said = pooled(capsys, "pool", path, *cells)
    names = ("tpos", "tneg", "cpos", "cneg")
    tables = TwoByTwoTables(**dict(zip(("ai", "bi", "ci", "di"), (TRIALS[name] for name in names), strict=True)))
    sizes = effect_sizes(tables, "RR")
    assert [row["yi"] for row in said["rows"]] == pytest.approx(sizes.yi.tolist())
    assert (said["scale"], said["effect"]) == ("log", "Risk ratio")
    assert main(["forest", str(path), *cells, "--out", str(tmp_path / "a.svg"), "--journal", "nature"]) == 0
    assert "Risk ratio (log scale)" in (tmp_path / "a.svg").read_text()


def test_what_a_file_says_of_its_scale_and_effect_is_believed(tmp_path, capsys):
    path = tmp_path / "t.csv"
    TRIALS.assign(scale="log", effect="Hazard ratio").to_csv(path, index=False)
    argv = ["pool", str(path), "--yi", "logrr", "--sei", "se"]
    assert main(argv) == 0
    assert "hazard ratio" in capsys.readouterr().out
    assert main([*argv, "--effect", "Odds ratio"]) == 0
    assert "odds ratio" in capsys.readouterr().out


def test_the_estimates_of_an_answer_are_pooled_as_the_study_pooled_them(tmp_path, capsys):
    """With what every site may be off by alike, and the cautions: `coordinator pool --out`, then `analyst pool`."""
    from types import SimpleNamespace

    from coordinator.cli.answers import _estimates
    from shared.estimands.floors import FAR

    rows = [replace(row, vi_common=0.01 * k) for k, row in enumerate(estimates(0.1, 0.3, 0.2, 0.5))]
    rows[1] = replace(rows[1], warnings=("No record was seen here.",), vi_sandwich=0.05, attenuation=0.2)
    lacks = replace(rows[0], site="Split", yi=None, vi_sampling=None, vi_privacy=0.0, vi_naive=None, reason=FAR)
    whole = pool_estimates([*rows, lacks])
    assert len(whole.doubts) >= 2
    path = tmp_path / "estimates.csv"
    answer = SimpleNamespace(estimates=[*rows, lacks], result=replace(whole, effect="Odds ratio"))
    _estimates(answer).to_csv(path, index=False)
    said = pooled(capsys, "pool", path, "--mods", "n")
    ours, study = said["pooled"], whole
    assert [ours[name] for name in ("beta", "ci_lb", "ci_ub")] == pytest.approx([study.beta, study.ci_lb, study.ci_ub])
    assert (sorted(said["doubts"]), said["effect"]) == (sorted(whole.doubts), "Odds ratio")
    assert [row["ci_ub"] - row["yi"] for row in said["rows"]] == pytest.approx(
        [1.959964 * error for error in whole.row_errors], rel=1e-6
    )
    assert said["excluded"] == [{"label": "Split", "reason": FAR}]
    assert main(["pool", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Lyon: No record was seen here." in printed


ANSWERED = pd.DataFrame(
    {"site": SITES, "yi": [0.1, 0.3, 0.2, 0.5], "vi": 0.02, "vi_common": 0.01, "vi_privacy": 0.004}
).assign(attenuation=0.0, n=400, cautions="The rows deny it.", other=[1.0, 3.0, 2.0, 5.0], ov=0.5)


def answered(folder: Path, **columns):
    """The table of an answer with other columns, pooled as an analyst pools it."""
    path = folder / "answered.csv"
    ANSWERED.assign(**columns).to_csv(path, index=False)
    return OwnTable(file=path).pooled(method="REML", test="adhoc", level=0.95)


@pytest.mark.parametrize("cell", ["a", "0,01", "inf", "-0.01"])
@pytest.mark.parametrize("name", ["vi_common", "vi_privacy", "attenuation", "n"])
def test_a_figure_of_an_answer_that_is_no_number_is_refused_by_column_and_row(tmp_path, name, cell):
    cell = "7.5" if (name, cell) == ("attenuation", "-0.01") else cell
    cells = ["0.01", "0.01", cell, "0.01"]
    with pytest.raises(ParameterError, match=f"each {name} of the table must be a number") as caught:
        answered(tmp_path, **{name: cells})
    assert f"{cell!r} at Porto" in str(caught.value)
    lacks = answered(tmp_path, **{name: cells, "yi": [0.1, 0.3, None, 0.5]})  # a row that is not used
    assert [row.label for row in lacks.excluded] == ["Porto"]


def test_a_blank_figure_of_an_answer_is_nought_with_a_note(tmp_path):
    blank, nought = (answered(tmp_path, vi_common=[0.01, cell, 0.01, 0.01]) for cell in ("", 0.0))
    assert blank.se == nought.se
    assert "vi_common is blank, and taken as 0: Lyon." in blank.notes
    assert not any("blank" in note for note in nought.notes)


def test_other_estimates_of_a_file_have_none_of_what_stands_beside_its_own(tmp_path):
    path = tmp_path / "answered.csv"
    ANSWERED.assign(attenuation=0.4).to_csv(path, index=False)
    how = {"method": "REML", "test": "adhoc", "level": 0.95}
    found = OwnTable(file=path, yi="other", vi="ov").pooled(**how)
    alone = pool(ANSWERED.other, ANSWERED.ov, **how)
    assert (found.beta, found.se, found.doubts) == (alone.beta, alone.se, ())
    assert (
        "The file's vi_common, attenuation, cautions are of its yi and vi, and not read for other columns."
        in found.notes
    )
    assert OwnTable(file=path).pooled(**how).doubts


# -- pictures -------------------------------------------------------------------------------------------------------
def pictures(result) -> dict[str, object]:
    rng = np.random.default_rng(2)
    vi = rng.uniform(0.01, 0.2, 30)
    many = replace(pool(rng.normal(0.3, np.sqrt(vi)), vi), scale="log", effect="Risk ratio")
    years = ("year", {site: 1990.0 + 3 * k for k, site in enumerate(SITES)})
    other = replace(pool_estimates(estimates(0.2, 0.1, 0.3, 0.4)), effect="Odds ratio")
    title = "Odds ratio for death, per 10 mmHg of systolic blood pressure"
    return {
        "forest": lambda path: forest(result, title=title, columns=columns(), path=path),
        "series": lambda path: forest(result, columns=columns(), compare={"real": other}, path=path),
        "funnel": lambda path: companions.funnel(many, contours=True, path=path),
        "bubble": lambda path: companions.draw("bubble", result, moderator=years, path=path),
    }


def drawn_small(draw, path: Path) -> np.ndarray:
    """A figure as a picture of greys, 480 dots wide."""
    from PIL import Image

    with styled(dpi=100):
        draw(path)
    picture = Image.open(io.BytesIO(path.read_bytes())).convert("L")
    return np.asarray(picture.resize((480, round(480 * picture.size[1] / picture.size[0]))), dtype=float)


@pytest.mark.parametrize("name", ["forest", "series", "funnel", "bubble"])
def test_a_figure_looks_as_it_did_when_it_was_last_looked_at(result, tmp_path, name):
    """`python -m tests.coordinator_side.figures.test_figure_production` draws the pictures anew.

    Look at them before you commit them.
    """
    from PIL import Image

    now = drawn_small(pictures(result)[name], tmp_path / "now.png")
    before = np.asarray(Image.open(PICTURES / f"{name}.png").convert("L"), dtype=float)
    assert now.shape == before.shape
    assert np.abs(now - before).mean() < 1.0, "another picture"
    assert (np.abs(now - before) > 80).mean() < 0.004, "something moved"


def test_no_line_below_a_figure_leaves_it_at_few_dots_per_inch(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(3)
    many = pool(rng.normal(0.2, 0.3, 12), rng.uniform(0.04, 0.3, 12), labels=[f"site {i}" for i in range(12)])
    with styled(dpi=80):
        companions.funnel(many, path=tmp_path / "funnel.png")
    dots = np.asarray(Image.open(tmp_path / "funnel.png").convert("L"))
    assert dots[:, -3:].min() > 200, "letters at the right edge"


def test_rows_are_named_by_the_column_that_tells_them_apart(tmp_path):
    path = tmp_path / "trials.csv"
    path.write_text("study,yi,vi,alloc\nA 1990,0.1,0.04,random\nB 1994,0.3,0.05,alternate\nC 2001,0.2,0.03,random\n")
    assert OwnTable(file=path).names(read_table(path)) == ["A 1990", "B 1994", "C 2001"]
    path.write_text("study,yi,vi,ward\nheart,0.1,0.04,north\nheart,0.3,0.05,north\nheart,0.2,0.03,east\n")
    assert OwnTable(file=path).names(read_table(path)) == ["north", "north (2)", "east"]


def test_an_axis_of_nothing_but_zeros_shows_no_rounding_error():
    alike = pool(np.array([0.1, 0.12, 0.11, 0.1]), np.array([0.04, 0.05, 0.03, 0.06]), labels=list("abcd"))
    drawn = companions.influence_panel(alike)
    spans = [axes.get_xlim() for axes in drawn.figure.axes[1:]]
    assert min(high - low for low, high in spans) > 1e-6


if __name__ == "__main__":
    import tempfile

    from PIL import Image

    PICTURES.mkdir(exist_ok=True)
    made = replace(pool_estimates(estimates(0.1, 0.3, 0.2, 0.5)), effect="Odds ratio")
    for called, draw in pictures(made).items():
        with tempfile.TemporaryDirectory() as folder:
            dots = drawn_small(draw, Path(folder) / "x.png")
        Image.fromarray(dots.astype("uint8")).save(PICTURES / f"{called}.png", optimize=True)
