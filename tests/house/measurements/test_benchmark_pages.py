"""The pages of figures are what `make docs` writes from the files that benchmarks left."""

from __future__ import annotations

import json
import re

import pytest

from tests.benchmarks import zoo_apart_page, zoo_page, zoo_sizes_page
from tests.benchmarks.pages import write

TEMPLATES = sorted(write.HERE.rglob("*.md"))
WRITTEN = write.pages()


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of results with one file, of which a part is of older code."""
    (tmp_path / "fits.json").write_text(
        '{"command": "python -m fits", "results": {"now": {"gap": -0.0001}, "then": {"gap": 0.25}},'
        ' "older": [{"places": "then/*", "why": "noise is less since."}]}'
    )
    monkeypatch.setattr(write, "RESULTS", tmp_path)
    write.record.cache_clear()
    yield
    write.record.cache_clear()


def lines(text: str) -> list[str]:
    section = write.Section("../")
    return [*section.lines(text), *section.sources()]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_every_page_of_figures_is_what_the_command_writes(path):
    assert path.read_text(encoding="utf-8") == WRITTEN[path], "make docs writes it anew"


def test_the_page_that_a_person_reads_first_is_short():
    assert len(WRITTEN[write.DOCS / "benchmarks.md"].splitlines()) <= 60


def test_no_page_of_figures_is_left_without_a_template():
    assert {*(write.DOCS / "benchmarks").glob("*.md")} <= {*WRITTEN}


def test_every_file_of_figures_is_on_a_page():
    templates = "".join(path.read_text(encoding="utf-8") for path in TEMPLATES)
    unread = {path.stem for path in write.RESULTS.glob("*.json")} - {*re.findall(r"[{ ](\w+):\S", templates)}
    zoo = {*zoo_page.LATENT_NOISE, *zoo_page.FIGURES, *zoo_page.LATER, *zoo_page.LATER_FIGURES, *zoo_page.FRESH}
    zoo |= {
        *zoo_page.BLIND,
        zoo_page.UNSEEN,
        zoo_page.HEART,
        zoo_page.DOUBTS,
        *zoo_apart_page.APART.values(),
        *zoo_apart_page.TRIED.values(),
        *zoo_sizes_page.TAILED_LOGGED,
        *(name for row in zoo_apart_page.MENDED.values() for name in row.values()),
    }
    assert unread - zoo == set()


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_no_measured_figure_is_typed_by_hand(template):
    for table in re.findall(r"(?:^\|.*\|\n)+", template.read_text(encoding="utf-8"), flags=re.MULTILINE):
        head, _, *rows = [line.strip("|").split("|") for line in table.splitlines()]
        if "measured" in [cell.strip() for cell in head]:
            at = [cell.strip() for cell in head].index("measured")
            assert [row[at] for row in rows if re.fullmatch(r"\s*-?[\d.,]+\s*", row[at])] == []


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_every_picture_of_a_page_of_figures_exists(path):
    for link in re.findall(r"\]\(([^)#]+)\)", WRITTEN[path]):
        assert (path.parent / link).exists(), link


def test_a_figure_is_read_from_its_file_and_its_command_stands_below(results):
    text = "\n".join(lines("It is {fits:now/gap:.1f}."))
    assert text.startswith("It is 0.0.")
    assert "[fits.json](../tests/benchmarks/results/fits.json), by `python -m fits`" in text


def test_cells_are_read_by_the_names_of_row_and_column(results):
    rows = "| | the gap `gap` |\n|---|---|\n| before `then` | .2f (0.3) |\n| asked | 1 |\n"
    written = lines(f"<!-- cells fits:{{row}}/{{column}} -->\n{rows}")
    assert written[:4] == ["| | the gap |", "|---|---|", "| before | 0.25 † (0.3) |", "| asked | 1 |"]


def test_words_on_a_target_follow_the_figure(results):
    said = lines("{fits:then/gap:? < 0.25} {fits:then/gap:? ≤ 0.25} {fits:then/gap:? ≥ 0.25} {fits:now/gap:? > 0.25}")
    assert said[0] == "**missed** † reached † reached † **missed**"
    rows = "| | the gap `gap` |\n|---|---|\n| now | .1f: ? < 1 |\n"
    assert (
        lines(f"<!-- cells fits:{{row}}/{{column}} and fits:{{row}}/{{column}} -->\n{rows}")[2]
        == "| now | 0.0: reached |"
    )


def test_a_figure_of_older_code_says_so_until_it_is_measured_again(results):
    text = "\n".join(lines("{fits:then/gap:.0%}"))
    assert "25 % †" in text
    assert "† Measured with older code: noise is less since." in text


def test_repetitions_that_were_refused_are_said_beside_their_number(results):
    said = "{few:repetitions:.0f} repetitions"
    for refused, shown in ((2, "12 (2 of them not answered) repetitions"), (0, "12 repetitions")):
        counted = {"command": "python -m few", "results": {"repetitions": 12, "refused": refused}}
        (write.RESULTS / "few.json").write_text(json.dumps(counted))
        write.record.cache_clear()
        assert lines(said)[0] == shown


def test_a_place_without_a_number_is_named(results):
    with pytest.raises(KeyError, match=r"fits\.json has no now/width"):
        lines("{fits:now/width:.1f}")
