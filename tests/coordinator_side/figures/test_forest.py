"""The forest plot: coordinates and words are read from the figure, not from pixels."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from coordinator.figures import forest_page
from coordinator.figures.forest import describe, forest, forest_table
from coordinator.figures.style import styled
from coordinator.figures.wording import view_of
from coordinator.pooling.pool import pool, pool_estimates
from coordinator.pooling.subgroups import subgroups
from shared.errors import ParameterError
from shared.estimands.answer import Estimate

SITES = ["Aachen", "Bergen", "Coimbra", "Dijon", "Exeter", "Freiburg"]


def site(name, yi, vi, **more):
    given = {"study": "s", "site": name, "wave": 1, "term": "sbp/10", "yi": yi, "vi_sampling": vi, "n": 1234}
    return Estimate(**(given | {"scale": "log"} | more))


@pytest.fixture
def result():
    rows = [site(name, 0.1 * i, 0.01 * (i + 1), vi_privacy=0.005) for i, name in enumerate(SITES)]
    rows.append(site("Zürich", None, None, n=122, reason="separates the outcome"))
    return pool_estimates(rows)


def words(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text()]


def texts_by_word(figure):
    return {text.get_text(): text for axes in figure.axes for text in axes.texts if text.get_text()}


def marks(figure):
    axes = figure.axes[1]
    return {item.get_gid(): item for item in (*axes.lines, *axes.patches) if item.get_gid()}


def boxes(figure):
    renderer = figure.canvas.get_renderer()
    return [
        (text.get_text(), text.get_window_extent(renderer))
        for axes in figure.axes
        for text in axes.texts
        if text.get_text()
    ]


def test_every_mark_stands_where_the_result_says(result):
    drawn = marks(forest(result))
    for i in range(result.k):
        half = 1.959963984540054 * math.sqrt(result.vi[i])
        assert drawn[f"site-{i}"].get_xdata()[0] == result.yi[i]
        assert drawn[f"site-{i}-ci"].get_xdata() == pytest.approx([result.yi[i] - half, result.yi[i] + half])
    for name, model in (("fixed", result.fixed), ("random", result)):
        x = drawn[name].get_xy()[:, 0]
        assert (x.min(), x.max()) == pytest.approx((model.ci_lb, model.ci_ub))
        assert model.beta in x
    bar = drawn["prediction"]
    assert bar.get_x() == pytest.approx(result.prediction_interval.lb)
    assert bar.get_x() + bar.get_width() == pytest.approx(result.prediction_interval.ub)
    assert set(drawn["null"].get_xdata()) == {0.0}
    assert set(drawn["pooled"].get_xdata()) == {result.beta}
    assert drawn["pooled"].get_linestyle() != "-"


def test_the_area_of_a_square_is_proportional_to_its_weight(result):
    drawn = marks(forest(result))
    area = np.array([drawn[f"site-{i}"].get_markersize() ** 2 for i in range(result.k)])
    assert area / area.sum() == pytest.approx(np.array(result.weights) / 100)


def test_the_words_are_all_there(result):
    posture = {name: "central" for name in (*SITES, "Zürich")}
    text = words(
        forest(result, title="Blood pressure", note="Per 10 mmHg.", columns={"Posture": posture, "ε": {"Aachen": "2"}})
    )
    for expected in (
        "Blood pressure",
        "Per 10 mmHg.",
        "Site",
        "n",
        "Posture",
        "ε",
        "Noise",
        "Weight (random)",
        "All 6",
        *SITES,
    ):
        assert expected in text
    assert text.count("1,234") == 6
    assert text.count("central") == 7
    assert "Fixed effect (inverse variance)" in text
    assert "Random effects (REML, Knapp-Hartung, ad hoc)" in text
    joined = " ".join(text)
    for part in ("τ² = ", "I² = ", "Q = ", "df = 5", "Overall effect: t = ", "z = "):
        assert part in joined
    assert "Excluded: Zürich (separates the outcome)." in joined
    assert "33 %" in text


def test_ratios_are_shown_back_transformed_on_a_log_axis(result):
    figure = forest(result)
    axes = figure.axes[1]
    for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
        assert math.exp(place) == pytest.approx(float(label.get_text()))
    assert f"{math.exp(result.yi[5]):.2f}" in words(figure)
    plain = forest(result, ratio=False)
    assert "0.50" in words(plain)


def test_proportions_and_correlations_are_shown_on_their_own_scale():
    for scale, show in (("logit", lambda x: 1 / (1 + math.exp(-x))), ("fisher_z", math.tanh)):
        rows = [site(name, 0.3 * i - 0.5, 0.04, scale=scale) for i, name in enumerate(SITES)]
        figure = forest(pool_estimates(rows))
        axes = figure.axes[1]
        labels = [float(label.get_text().replace("−", "-")) for label in axes.get_xticklabels()]
        assert labels == pytest.approx([show(place) for place in axes.get_xticks()])
        assert len(labels) >= 3
        assert ("null" in marks(figure)) == (scale == "fisher_z")


def test_the_null_line_can_be_moved_or_left_out(result):
    assert marks(forest(result, null=0.2))["null"].get_xdata()[0] == 0.2
    assert "null" not in marks(forest(result, null=None))
    mean = pool_estimates(
        [site(name, 140 + i, 4.0, scale="identity", term="mean(sbp)") for i, name in enumerate(SITES)]
    )
    assert "null" not in marks(forest(mean))


def test_an_interval_that_leaves_the_axis_is_clipped_with_an_arrow():
    wide = pool([0.1, 0.2, 0.15, 0.3, 0.0], [0.01, 0.012, 0.02, 9.0, 0.015])
    figure = forest(wide)
    low, high = figure.axes[1].get_xlim()
    drawn = marks(figure)
    assert drawn["site-3-ci"].get_xdata() == pytest.approx([low, high])
    assert "site-3-clipped" in drawn
    assert "site-0-clipped" not in drawn
    assert "[−5.58," in words(figure)


def test_a_diamond_is_never_clipped_unless_the_axis_was_set():
    two = pool([0.1, 0.9], [0.02, 0.03])
    figure = forest(two)
    low, high = figure.axes[1].get_xlim()
    x = marks(figure)["random"].get_xy()[:, 0]
    assert low < two.ci_lb == pytest.approx(x.min())
    assert high > two.ci_ub == pytest.approx(x.max())
    with styled(xlim=(-0.5, 1.5), ticks=(-0.5, 0.0, 1.0)):
        figure = forest(two)
    axes = figure.axes[1]
    assert axes.get_xlim() == (-0.5, 1.5)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["−0.5", "0", "1"]
    x = marks(figure)["random"].get_xy()[:, 0]
    assert x.min() < -0.5, "an arrowhead at the end of the axis"
    assert x.min() > two.ci_lb


def test_two_sites_have_no_prediction_interval_and_one_site_is_not_pooled():
    two = forest(pool([0.1, 0.9], [0.02, 0.03]))
    assert "prediction" not in marks(two)
    assert any("side by side" in text for text in words(two))
    one = forest(pool([0.4], [0.09], labels=["Aachen"]))
    assert not {"fixed", "random", "prediction"} & set(marks(one))
    assert "Not pooled: one site only" in words(one)


def test_a_fixed_effect_result_draws_one_diamond():
    drawn = marks(forest(pool([0.1, 0.4, 0.2], [0.02, 0.03, 0.1], method="FE", test="z")))
    assert "fixed" in drawn
    assert "random" not in drawn


def test_an_empty_interval_is_called_empty():
    text = " ".join(words(forest(pool([0.3, 0.3001, 0.2999, 0.3], [0.1, 0.2, 0.3, 0.1]))))
    assert "95 % CI empty" in text


def test_a_comparison_stands_beside_in_other_colours_and_shapes(result):
    other = pool_estimates([site(name, 0.1 * i + 0.05, 0.01) for i, name in enumerate(SITES[:5])])
    figure = forest(result, name="released", compare={"real": other})
    drawn = marks(figure)
    first, second = drawn["site-0-0"], drawn["site-0-1"]
    assert first.get_color() != second.get_color()
    assert first.get_marker() != second.get_marker()
    assert first.get_ydata()[0] < second.get_ydata()[0]
    assert second.get_xdata()[0] == other.yi[0]
    assert {"random-0", "random-1", "fixed-0", "fixed-1", "prediction-1"} <= set(drawn)
    assert "site-5-1" not in drawn
    text = words(figure)
    assert "released" in text
    assert "real" in text
    assert "no estimate" in text


@pytest.mark.parametrize(
    ("scale", "yi", "vi"),
    [
        ("log", [0.01, 0.02, 0.03], 1e-4),
        ("log", [0.1, 0.5, 0.9], 0.04),
        ("log", [-3.0, 0.5, 2.0], 0.04),
        ("log", [0.0, 5.0, 14.0], 1.0),
        ("log", [-90.0, 50.0, 140.0], 1.0),
        ("logit", [-7.0, -6.5, -5.8], 0.04),
        ("logit", [-9.0, 0.0, 9.0], 0.04),
        ("logit", [3.0, 3.5, 4.0], 0.04),
        ("fisher_z", [0.1, 0.2, 2.0], 0.01),
        ("identity", [1e-6, 2e-6, 3e-6], 1e-14),
        ("identity", [1e7, 2e7, 3e7], 1e12),
    ],
)
def test_the_axis_has_some_labels_and_they_stand_apart(scale, yi, vi):
    figure = forest(pool_estimates([site(name, y, vi, scale=scale) for name, y in zip(SITES, yi, strict=False)]))
    axes = figure.axes[1]
    renderer = figure.canvas.get_renderer()
    spans = [label.get_window_extent(renderer) for label in axes.get_xticklabels()]
    assert 2 <= len(spans) <= 9
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(spans))


@pytest.mark.parametrize("case", ["plain", "long", "compare", "groups", "two", "huge"])
def test_no_two_words_overlap_and_nothing_leaves_the_page(case, result):
    long = {"Posture": dict.fromkeys(SITES, "trusted aggregator"), "ε": dict.fromkeys(SITES, "0.25")}
    figures = {
        "plain": lambda: forest(result, title="Title"),
        "long": lambda: forest(
            pool([0.1, 0.2, 0.3], [0.01, 0.02, 0.03], labels=["University Hospital of the Northern Isles", "B", "C"]),
            title="A very long title that has to be broken into several lines because no page is as wide as this " * 2,
            note="A note that is long as well, so that it, too, runs over the end of the line and must be broken. " * 2,
        ),
        "compare": lambda: forest(result, columns=long, compare={"real": result, "w = 0": result}),
        "groups": lambda: forest(
            result,
            groups=subgroups(result, LEVELS),
            by="posture",
            favours=("Favours what was done at first", "Favours what was done in the end"),
        ),
        "two": lambda: forest(pool([0.1, 0.9], [0.02, 0.03])),
        "huge": lambda: forest(pool([12345.6, -23456.7, 99999.9], [1e7, 2e7, 1e8])),
    }
    figure = figures[case]()
    found = boxes(figure)
    width, height = figure.get_size_inches() * figure.dpi
    for i, (text, box) in enumerate(found):
        assert box.x0 >= 0, text
        assert box.x1 <= width, text
        assert box.y0 >= 0, text
        assert box.y1 <= height, text
        for other, next_box in found[i + 1 :]:
            apart = box.x1 <= next_box.x0 + 0.5 or next_box.x1 <= box.x0 + 0.5
            assert apart or abs((box.y0 + box.y1) - (next_box.y0 + next_box.y1)) / 2 > 8, (text, other)


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_the_same_result_gives_the_same_bytes(tmp_path, suffix, result):
    files = [tmp_path / f"{i}.{suffix}" for i in range(2)]
    for file in files:
        forest(result, title="Blood pressure", path=file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(files[0].read_bytes()) > 2000


def test_an_svg_tells_in_words_what_it_shows(tmp_path):
    rows = [site("A & B <hospital>", 0.1, 0.02), site("C", 0.3, 0.02), site("D", None, None, reason="no events")]
    forest(pool_estimates(rows), title="Age & sex", path=tmp_path / "plot.svg")
    root = ElementTree.fromstring((tmp_path / "plot.svg").read_text())
    assert [child.tag.split("}")[1] for child in root][:2] == ["title", "desc"]
    assert root[0].text == "Age & sex"
    assert "A & B <hospital> 1.11" in root[1].text
    assert "Excluded: D, no events" in root[1].text
    assert root.attrib["role"] == "img"


def test_dollar_signs_in_names_are_only_dollar_signs():
    assert "a $x$ b" in words(forest(pool([0.1, 0.2], [0.1, 0.1], labels=["a $x$ b", "$"]), title="$\\frac$"))


def test_what_cannot_be_drawn_is_refused(tmp_path, result):
    with pytest.raises(ParameterError, match="must end in"):
        forest(result, path=tmp_path / "plot.bmp")
    with pytest.raises(ParameterError, match="different names"):
        forest(result, name="real", compare={"real": result})
    with pytest.raises(ParameterError, match="share one scale"):
        forest(result, compare={"other": pool([0.1], [0.1])})


def test_the_table_holds_what_the_plot_shows(result):
    table = forest_table(result)
    assert table["row"].tolist() == ["site"] * 6 + ["fixed", "random", "prediction", "excluded"]
    sites = table[table["row"] == "site"]
    assert sites["estimate"].tolist() == pytest.approx(np.exp(result.yi))
    assert sites["weight"].sum() == pytest.approx(100)
    assert sites["noise_share"].iloc[0] == pytest.approx(100 * 0.005 / 0.015)
    assert table.set_index("row").loc["random", "ci_ub"] == pytest.approx(math.exp(result.ci_ub))
    assert table.iloc[-1]["reason"] == "separates the outcome"
    assert table.to_csv(index=False).startswith("row,label,n,estimate,ci_lb,ci_ub,yi,se,weight,noise_share,reason")


def test_the_table_of_a_plot_with_subgroups_has_their_diamonds_and_the_test_for_a_difference(result):
    groups = subgroups(result, LEVELS | {"Freiburg": "public"})
    table = forest_table(result, groups=groups, by="posture")
    heads = ["site"] * 3 + ["group"] + ["site"] * 2 + ["group"] + ["site", "group"]
    assert table["row"].tolist() == [*heads, "fixed", "random", "prediction", "excluded", "between"]
    local = groups.groups["local"]
    diamond = table[table["label"] == "posture local"].iloc[0]
    assert (diamond["yi"], diamond["ci_ub"]) == pytest.approx((local.beta, math.exp(local.ci_ub)))
    assert diamond["reason"].startswith("τ² = ")
    assert table[table["group"] == "local"]["label"].tolist() == [*local.labels, "posture local"]
    alone = table[table["label"] == "posture public"].iloc[0]
    assert (alone["reason"], math.isnan(alone["yi"])) == ("one site: nothing was pooled", True)
    assert "Difference between groups (posture), one common τ²: F = " in table.iloc[-1]["reason"]
    unknown = forest_table(result, groups=subgroups(result, {"Aachen": "local"}))
    assert unknown["row"].tolist()[:3] == ["site", "group", "site"]


def test_the_description_names_sites_models_and_the_missing(result):
    text = describe(result)
    for part in ("6 sites: Aachen 1.00", "Fixed effect", "Random effects", "Prediction interval", "Excluded: Zürich"):
        assert part in text
    assert "Nothing was pooled" in describe(pool([0.4], [0.09]))


def test_importing_the_figures_does_not_import_matplotlib():
    import subprocess
    import sys

    code = (
        "import sys, coordinator.figures.forest, shared.estimands.answer; "
        "print({'matplotlib', 'statsmodels'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# -- subgroups and sides ------------------------------------------------------------------------------------------
LEVELS = {"Aachen": "local", "Bergen": "holdout", "Coimbra": "local", "Dijon": "holdout", "Exeter": "local"}


def test_each_subgroup_stands_apart_with_its_own_diamond_and_the_test_for_a_difference_below(result):
    groups = subgroups(result, LEVELS | {"Freiburg": "public"})
    figure = forest(result, groups=groups, by="posture")
    drawn, text = marks(figure), words(figure)
    place = {label: item.get_position()[1] for label, item in texts_by_word(figure).items()}
    order = ["Posture: local", "Aachen", "Coimbra", "Exeter", "Random effects, 3 sites", "Posture: holdout", "Bergen"]
    order += ["Dijon", "Random effects, 2 sites", "Posture: public", "Freiburg", "One site: nothing was pooled"]
    order += ["No estimate", "Zürich", "Fixed effect (inverse variance)"]
    assert [place[label] for label in order] == sorted(place[label] for label in order)
    low, high = figure.axes[1].get_xlim()
    for number, level in enumerate(("local", "holdout")):
        model, outline = groups.groups[level], drawn[f"group-{number}"].get_xy()
        assert model.beta in outline[:, 0]
        assert outline[:, 0].min() == pytest.approx(model.ci_lb) or model.ci_lb < low
        assert outline[:, 0].max() == pytest.approx(model.ci_ub) or model.ci_ub > high
        assert outline[:, 1].mean() == pytest.approx(place[f"Random effects, {model.k} sites"], abs=0.02)
        assert any(f"Q = {model.QE:.2f}, df = {model.df}" in line and line.startswith("τ²") for line in text)
    assert "group-2" not in drawn
    for i, label in enumerate(result.labels):  # a site keeps its number and its weight in whatever group it stands
        assert drawn[f"site-{i}"].get_xdata()[0] == result.yi[i]
        assert drawn[f"site-{i}"].get_ydata()[0] == pytest.approx(place[label])
    joined = " ".join(text)
    assert f"Difference between groups (posture), one common τ²: F = {groups.common.QM:.2f}, df = 2 and 3" in joined
    assert f"; each group with its own τ² (χ²): Q = {groups.Q_between:.2f}, df = 2, " in joined
    assert {"fixed", "random", "prediction"} <= set(drawn)


def test_sites_without_a_level_are_drawn_and_said_to_be_in_no_group(result):
    figure = forest(result, groups=subgroups(result, LEVELS), by="posture")
    assert "Posture: not known" in words(figure)
    assert "site-5" in marks(figure)
    assert "Without a group, and left out: Freiburg." in words(figure)


def test_the_words_of_a_plot_tell_its_groups(result):
    text = describe(result, groups=subgroups(result, LEVELS | {"Freiburg": "public"}), by="posture")
    assert "posture local (3 sites) " in text
    assert "posture public: one site, nothing was pooled" in text
    assert "Difference between groups (posture), one common τ²: F = " in text


def test_the_sides_of_the_null_line_are_named_under_the_ends_of_the_axis(result):
    figure = forest(result, favours=("Favours the drug", "Favours the placebo, or the care that was usual before"))
    found = texts_by_word(figure)
    plot = figure.axes[1].get_window_extent(figure.canvas.get_renderer())
    left = found["← Favours the drug"].get_window_extent(figure.canvas.get_renderer())
    right = next(item for text, item in found.items() if text.endswith("→"))
    right = right.get_window_extent(figure.canvas.get_renderer())
    assert left.x0 == pytest.approx(plot.x0, abs=2)
    assert right.x1 == pytest.approx(plot.x1, abs=2)
    assert left.y1 < plot.y0
    with pytest.raises(ParameterError, match="must have the line"):
        forest(result, favours=("less", "more"), null=None)


def test_groups_are_of_the_result_that_is_drawn_and_stand_without_a_comparison(result):
    groups = subgroups(result, LEVELS)
    with pytest.raises(ParameterError, match="one by one"):
        forest(result, groups=groups, compare={"real": result})
    with pytest.raises(ParameterError, match="of the same result"):
        forest(pool([0.1, 0.2], [0.1, 0.1]), groups=groups)


def test_a_network_s_density_is_compared_with_nothing():
    """Its logarithm is pooled, but 1 is no line of no effect, and a density no ratio."""
    density = dataclasses.replace(pool([-2.5, -2.4, -2.6], [0.01, 0.02, 0.01]), scale="log")
    assert view_of([density], None, "auto").null == 0
    shown = view_of([dataclasses.replace(density, term="network(transitivity)")], None, "auto")
    assert (shown.null, shown.name) == (None, "Estimate (log scale)")


def test_the_column_of_map_errors_is_said_to_be_of_the_harmonised_answer():
    from coordinator.figures.forest_rows import meanings

    said = meanings(("n", "Map SE"), {"site by site": None, "harmonised": None})
    assert "n: of 'site by site' alone" in said
    assert "Map SE: standard error that its map adds to a site's harmonised estimate" in said


@pytest.mark.parametrize("ratio", [False, True])
def test_numbers_laid_out_once_stand_where_each_by_itself_would(result, tmp_path, monkeypatch, ratio):
    paths = [tmp_path / "once.svg", tmp_path / "singly.svg"]
    other = pool_estimates([site(name, 0.5 - 7.3 * i, 0.1) for i, name in enumerate(SITES)])
    for path in paths:
        forest(result, compare={"other": other}, ratio=ratio, path=path)
        monkeypatch.setattr(forest_page, "_DIGITS", frozenset())
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("collecting", [True, False])
def test_a_drawing_leaves_the_collection_of_garbage_as_it_was(collecting):
    assert gc.isenabled()
    try:
        if not collecting:
            gc.disable()
        forest(pool([0.1, 0.2], [0.01, 0.02]))
        assert gc.isenabled() == collecting
        with pytest.raises(ParameterError, match="svg"):
            forest(pool([0.1, 0.2], [0.01, 0.02]), path=Path("figure.svgz"))
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
