"""The R package of `deploy/r`, run by R itself: what it pools, how its formulas are read, and what it is answered.

The package's own tests are run by `R CMD check` (.ci/run); here R stands beside Python.
"""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest
from stage.coordinator_side.doors import PAGE, RECORDED, VIGNETTE, installed, lacking, page, write_answer
from stage.coordinator_side.doors_asked import (
    NETWORKS,
    QUESTIONS,
    TABLES,
    Question,
    house,  # noqa: F401
)

from coordinator.analyst import commands as client
from coordinator.analyst.elsewhere import metafor_code
from coordinator.analyst.remote import connect
from coordinator.analyst.shown import pooled_line
from coordinator.pooling.pool import pool
from coordinator.web.workbench.asked_elsewhere import copies
from shared.errors import ParameterError
from shared.estimands.kinds import KINDS, OPTIONS
from shared.estimands.questions import parse_formula


@pytest.fixture(scope="module")
def r(tmp_path_factory):
    """Runs a script with the package installed; what it printed."""
    if missing := lacking():
        pytest.skip(missing)
    return installed(tmp_path_factory.mktemp("library"))


FORMULAS = {
    "Surv(time, cvd) ~ sbp + strata(sex)": ("cox", "Surv(time, cvd) ~ sbp + strata(sex)"),
    "Surv(time = years, event = num > 0) ~ sbp/10": ("cox", "Surv(years, num > 0) ~ sbp/10"),
    "died ~ chol.total/40 + as.factor(z) * age + offset(log(years)) - 1": (
        "logistic",
        "died ~ chol_total/40 + C(z) * age + offset(log(years)) - 1",
    ),
    "y ~ I(-x^2 + 3 * (a - 2)/b) + a:b": ("ols", "y ~ I(-(x^2) + ((3 * (a - 2)) / b)) + a:b"),
    "~ sbp > 140 & !(arm == 'drug' | age < 1e-7)": (
        "proportion",
        "~ (sbp > 140) & !((arm == 'drug') | (age < 0.0000001))",
    ),
}


def test_r_formulas_are_read_as_the_questions_that_they_are_in_r(r):
    said = json.loads(
        r(
            f"formulas <- list({', '.join(FORMULAS)})\n"
            "cat(jsonlite::toJSON(vapply(formulas, tributarymeta:::question_text, '')))"
        )
    )
    for text, (kind, meant) in zip(said, FORMULAS.values(), strict=True):
        # factor() and C() are two names of one thing.
        found, expected = (str(parse_formula(kind, formula)) for formula in (text, meant))
        assert found.replace("factor(", "C(") == expected


def test_answers_that_agree_are_recorded_by_the_same_bytes_and_only_what_moved_is_written(tmp_path):
    path, answer = tmp_path / "cox.json", json.loads((RECORDED / "cox.json").read_text(encoding="utf-8"))
    write_answer(path, answer)
    before = path.read_bytes()
    assert before == (RECORDED / "cox.json").read_bytes()

    def nudged(part):
        if isinstance(part, dict):
            return {name: nudged(value) for name, value in part.items()}
        if isinstance(part, list):
            return [nudged(one) for one in part]
        return part * (1 + 1e-14) if isinstance(part, float) else part

    assert nudged(answer) != answer
    write_answer(path, nudged(answer))
    assert path.read_bytes() == before
    moved = nudged(answer)
    moved["pooled"]["beta"] *= 1 + 1e-6
    write_answer(path, moved)
    answer["pooled"]["beta"] = moved["pooled"]["beta"]
    assert json.loads(path.read_text()) == answer


def test_code_for_metafor_pools_in_r_to_the_number_that_was_sent(r, tmp_path):
    for name in ("cox", "survival", "interaction"):
        document = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
        script = f"pdf(NULL); {{\n{metafor_code(document)}}}\n"
        (tmp_path / f"{name}.R").write_text(
            script + "cat('numbers', sprintf('%.17g', c(fit$beta, fit$se, fit$pval)), '\\n')"
        )
    said = r("\n".join(f"source({str(tmp_path / name)!r})" for name in ("cox.R", "survival.R", "interaction.R")))
    found = [list(map(float, line.split()[1:])) for line in said.splitlines() if line.startswith("numbers")]
    for name, numbers in zip(("cox", "survival", "interaction"), found, strict=True):
        pooled = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))["pooled"]
        assert numbers == pytest.approx([pooled[key] for key in ("beta", "se", "pval")], rel=1e-6)


def test_r_pools_a_table_of_ones_own_as_analyst_pool_does(r, tmp_path):
    rng = np.random.default_rng(7)
    tables = [
        {"yi": rng.normal(0.3, spread, k).tolist(), "vi": rng.uniform(0.01, 0.2, k).tolist()}
        for k, spread in ((1, 0), (2, 0.5), (3, 0.05), (6, 0.6), (40, 0.2))
    ]
    tables.append({"yi": [0.1, 0.4, None, 0.2, 0.9], "vi": [0.05, 0.02, 0.1, 0.0, 0.04]})
    (tmp_path / "tables.json").write_text(json.dumps(tables))
    said = r(
        f"""tables <- jsonlite::fromJSON({str(tmp_path / "tables.json")!r}, simplifyDataFrame = FALSE)
        for (one in tables) for (how in list(c("REML", "adhoc"), c("DL", "knha"), c("ML", "z"))) {{
          found <- pool_table(as.data.frame(one), method = how[1], test = how[2])
          fit <- found$random
          numbers <- c(fit$beta, fit$se, fit$ci.lb, fit$ci.ub, fit$tau2, fit$I2, fit$QE)
          numbers <- c(numbers, found$fixed$beta, found$fixed$se)
          cat(sprintf("%.17g", numbers), nrow(found$excluded), "\\n")
        }}"""
    )
    lines = iter(said.splitlines())
    for one in tables:
        for method, test in (("REML", "adhoc"), ("DL", "knha"), ("ML", "z")):
            result = pool(one["yi"], one["vi"], method=method, test=test)
            names = ("beta", "se", "ci_lb", "ci_ub", "tau2", "I2", "QE")
            expected = [*(getattr(result, name) for name in names), result.fixed.beta, result.fixed.se]
            found = [float(word) for word in next(lines).split()]
            assert found[-1] == len(result.excluded)
            if result.k == 1:  # one row has no heterogeneity: R says 100 %
                del expected[4:7], found[4:7]
            assert found[:-1] == pytest.approx(expected, rel=1e-6, abs=1e-7), (method, test, one)


TIDY = ("estimate", "std.error", "statistic", "p.value", "conf.low", "conf.high")
FIGURES = ("beta", "se", "ci_lb", "ci_ub", "pval", "tau2", "I2", "QE")
R_ASKS = """
hub <- connect(Sys.getenv("TRIBUTARY_URL"))
cvd <- study(hub, "cvd")
digits <- function(x) if (length(x)) sprintf("%.17g", unlist(x)) else character()
for (asked in parse(text = readLines(Sys.getenv("QUESTIONS")))) {
  answer <- eval(asked)
  document <- answer$document
  sites <- as.data.frame(answer)
  said <- list(id = document$result, line = format(answer), effect = document$effect,
               pooled = digits(document$pooled[FIGURES]), sites = digits(c(sites$yi, sites$vi)),
               tidy = digits(stats::na.omit(unlist(tidy(answer)[TIDY]))))
  cat(jsonlite::toJSON(said, auto_unbox = TRUE), "\\n", sep = "")
}
fit <- as_rma(cox(cvd, Surv(time, cvd) ~ sbp/10))
forest(cox(cvd, Surv(time, cvd) ~ sbp/10), file = Sys.getenv("FIGURE"))
refused <- tryCatch(cox(cvd, Surv(time, cvd) ~ spb/10), tributary_refusal = identity)
said <- list(rma = digits(c(fit$beta, fit$se)), code = refused$code, status = refused$status,
             said = conditionMessage(refused))
cat(jsonlite::toJSON(said, auto_unbox = TRUE), "\\n", sep = "")
cat(nrow(questions(cvd)), "\\n")
knitr::knit(Sys.getenv("VIGNETTE"), Sys.getenv("KNITTED"), quiet = TRUE)
"""


def by_form(web: httpx.Client, one: Question) -> Any:
    """What the workbench's form is answered, sent without a browser (`test_browser_door.py` has one)."""
    place = f"/studies/{one.study}/ask"
    csrf = re.search('name="csrf" value="([^"]+)"', web.get(place).text)[1]
    fields = {"kind": one.kind, "formula": one.formula} if one.kind else {"planned": one.formula}
    sent = web.post(place, data={"csrf": csrf, **fields, **{k: f"{v}" for k, v in one.options.items()}})
    assert sent.status_code == 303, sent.text
    return web.get(f"/v1{sent.headers['location']}").json()["answer"]


def documents(one: Question, study: Any, web: httpx.Client, file: Any, capsys: Any) -> dict[str, Any]:
    """Door to the document that a question is answered with."""
    body = {"kind": one.kind, "formula": one.formula, "options": {k: f"{v}" for k, v in one.options.items()}}
    https = web.post(f"/v1/studies/{one.study}/queries", json=body).json()
    capsys.readouterr()
    assert client.main([*one.argv, "--json", "--token", str(file)]) == 0
    command = json.loads(capsys.readouterr().out)
    python = study.query(one.kind, one.formula, **one.options).document
    return {"Python": python, "HTTPS": https, "command": command, "form": by_form(web, one)}


def test_no_question_of_the_documentation_is_missing_from_the_table_of_doors():
    asked = (*QUESTIONS, *TABLES, *NETWORKS)
    assert {one.kind for one in asked} == {*KINDS, ""}
    options = {name for one in asked for name in one.options}
    # Repeated columns are the plan's, which this study has none of: tests/both_sides/estimands/test_repeated_models.py.
    assert options == (set(OPTIONS) | {"subset"}) - {"repeated"}
    page = (PAGE.parent / "estimands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \|", page, flags=re.MULTILINE)
    named = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    kinds = {found[1] for text in named if (found := re.match(r"(\w+)\(", text)) and found[1] in KINDS}
    assert kinds == set(KINDS)
    functions = re.compile(r"([A-Za-z_]\w*)\(")
    written = {name for text in named for name in functions.findall(text)} - {*KINDS, "C"}  # C is factor
    assert written <= {name for one in asked for name in functions.findall(one.formula)}


def test_every_question_has_the_same_figures_through_five_doors(r, house, tmp_path, capsys):
    (tmp_path / "questions.R").write_text("".join(f"{one.r}\n" for one in QUESTIONS))
    printed = r(
        f"FIGURES <- c{FIGURES}; TIDY <- c{TIDY}\n{R_ASKS}",
        TRIBUTARY_URL=house.url,
        TRIBUTARY_ANALYST_TOKEN=str(house.file),
        QUESTIONS=str(tmp_path / "questions.R"),
        FIGURE=str(tmp_path / "forest.svg"),
        VIGNETTE=str(VIGNETTE),
        KNITTED=str(tmp_path / "r.md"),
    ).splitlines()
    in_r = [json.loads(line) for line in printed[: len(QUESTIONS)]]
    table = []
    with connect(house.token) as connection, house.client() as web:
        study = connection["cvd"]
        assert web.post("/sign-in", data={"token": house.token.token}).status_code == 303
        for one, found in zip(QUESTIONS, in_r, strict=True):
            tidy = study.query(one.kind, one.formula, **one.options).tidy()
            tidied = [x for name in TIDY for x in tidy[name].dropna()]
            for door, document in documents(one, study, web, house.file, capsys).items():
                sites = [row["yi"] for row in document["estimates"]]
                sites += [row["vi_sampling"] + row["vi_privacy"] for row in document["estimates"]]
                pooled = [value for name in FIGURES if (value := document["pooled"][name]) is not None]
                table.append(
                    (one.r, door, document["result"], pooled, sites, pooled_line(document), document["effect"])
                )
            figures = ([float(word) for word in found[name]] for name in ("pooled", "sites"))
            table.append((one.r, "R", found["id"], *figures, found["line"], found["effect"]))
            assert [float(word) for word in found["tidy"]] == pytest.approx(tidied, rel=1e-12, abs=1e-14)
        for row in table:
            reference = next(other for other in table if other[0] == row[0])
            assert row[2:] == reference[2:], row[:2]
        assert len(table) == 5 * len(QUESTIONS)
        # What stands around a number: metafor's own fit, the figure, the refusal, and the record.
        answer = study.cox("Surv(time, cvd) ~ sbp/10")
        last = json.loads(printed[len(QUESTIONS)])
        assert [float(word) for word in last["rma"]] == pytest.approx([answer.beta, answer.se], rel=1e-6)
        drawn = web.get(f"/v1/studies/cvd/results/{answer.id}/forest.svg").content
        assert (tmp_path / "forest.svg").read_bytes() == drawn
        with pytest.raises(ParameterError) as refused:
            study.cox("Surv(time, cvd) ~ spb/10")
        assert (last["code"], last["status"], last["said"]) == ("E_PARAMETER", 422, str(refused.value))
        assert int(printed[len(QUESTIONS) + 1]) == len(QUESTIONS) + 3
    shown, there = (page(path.read_text(encoding="utf-8")).split() for path in (tmp_path / "r.md", PAGE))
    assert shown == there, "docs/r.md is not what R prints: python -m tests.stage.coordinator_side.doors"


R_TABLES = """
digits <- function(x) cat(sprintf("%.17g", stats::na.omit(unlist(x))), "\\n")
cvd <- study(connect(Sys.getenv("TRIBUTARY_URL")), "cvd")
contacts <- study(connect(Sys.getenv("TRIBUTARY_URL"), token = Sys.getenv("NETWORKS")), "contacts")
for (asked in parse(text = readLines(Sys.getenv("QUESTIONS")))) {
  table <- suppressMessages(eval(asked))
  if (is.data.frame(table)) digits(t(table[c("estimate", "ci_lb", "ci_ub")])) else {
    sites <- as.data.frame(table)
    digits(c(table$document$pooled[FIGURES], sites$yi, sites$vi))
  }
}
"""


def figures(document: Mapping[str, Any]) -> list[float]:
    """The cells of a table; of any other answer the pooled figures and the sites' estimates."""
    if "cells" in document:
        found = [cell[name] for cell in document["cells"] for name in ("estimate", "ci_lb", "ci_ub")]
        return [value for value in found if value is not None]
    rows = document["estimates"]
    sites = [row["yi"] for row in rows] + [row["vi_sampling"] + row["vi_privacy"] for row in rows]
    pooled = [document["pooled"][name] for name in FIGURES]
    return [value for value in pooled if value is not None] + sites


def test_tables_and_networks_have_the_same_figures_through_five_doors(r, house, tmp_path, capsys):
    asked, (token, file) = (*TABLES, *NETWORKS), house.networks(tmp_path)
    (tmp_path / "questions.R").write_text("".join(f"{one.r}\n" for one in asked))
    printed = r(
        f"FIGURES <- c{FIGURES}; {R_TABLES}",
        TRIBUTARY_URL=house.url,
        TRIBUTARY_ANALYST_TOKEN=str(house.file),
        NETWORKS=str(file),
        QUESTIONS=str(tmp_path / "questions.R"),
    ).splitlines()
    for one, line in zip(asked, printed, strict=True):
        mine = (token, file) if one.study == "contacts" else (house.token, house.file)
        with connect(mine[0]) as connection, house.client(mine[0]) as web:
            assert web.post("/sign-in", data={"token": mine[0].token}).status_code == 303
            found = documents(one, connection[one.study], web, mine[1], capsys)
            numbers = figures(found["Python"])
            share = found["Python"].get("effect") == "Share of pairs connected"
            # A share, a mean and a density are compared with nothing.
            level = found["Python"].get("scale") == "logit" or str(found["Python"].get("term", "")).startswith("mean(")
            untested = found["Python"].get("pooled", {}).get("pval", 0) is None
            assert untested == (share or level), one.r
            assert len(numbers) >= 14 - untested
            assert [float(word) for word in line.split()] == numbers, one.r
            for door, document in found.items():
                assert (document["result"], figures(document)) == (found["Python"]["result"], numbers), (one.r, door)


def test_what_the_workbench_gives_to_copy_asks_the_same_question_in_r_and_in_python(r, house):
    with connect(house.token) as connection:
        some = "smoking == 'never' | smoking == 'former'"
        document = connection["cvd"].cox("Surv(time, cvd) ~ sbp/10 + C(smoking)", subset=some).document
    texts = dict(copies(document, house.url.removeprefix("https://")))
    in_r = texts["R"].replace("NAME.token.json", str(house.file))
    in_r = (
        in_r.removesuffix("answer")
        + "cat(sprintf('%.17g %.17g', answer$document$pooled$beta, answer$document$pooled$se))"
    )
    pooled = [document["pooled"][name] for name in ("beta", "se")]
    assert [float(word) for word in r(in_r).split()] == pooled
    scope = {}
    exec(texts["Python"].replace("NAME.token.json", str(house.file)), scope)
    assert [scope["answer"].document["pooled"][name] for name in ("beta", "se")] == pooled
    assert scope["answer"].document["asked"] == document["asked"]


@pytest.mark.parametrize("one", TABLES, ids=lambda one: one.r)
def test_what_is_given_to_copy_of_a_table_gives_the_table(r, house, one, capsys):
    with connect(house.token) as connection:
        document = connection["cvd"].query(one.kind, one.formula, subset="age >= 50", **one.options).document
    texts = {name: text.replace("NAME.token.json", str(house.file)) for name, text in copies(document, house.url[8:])}
    scope = {}
    exec(texts["Python"], scope)
    assert scope["answer"].cells == document["cells"]
    capsys.readouterr()
    assert client.main([*shlex.split(texts["command"])[1:], "--json", "--token", str(house.file)]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == document["cells"]
    said = r(texts["R"].removesuffix("answer") + "cat(sprintf('%.17g', stats::na.omit(answer$estimate)))")
    assert [float(word) for word in said.split()] == [
        cell["estimate"] for cell in document["cells"] if cell["estimate"] is not None
    ]


R_LOOKS = """
hub <- connect(Sys.getenv("TRIBUTARY_URL"))
cvd <- study(hub, "cvd")
looks <- monitor(cvd, Surv(time, cvd) ~ sbp/10, kind = "cox", spending = "pocock")
figure(looks, Sys.getenv("FIGURE"))
shown <- as.data.frame(looks)
cat(sprintf("%.17g", unlist(t(shown[, -1]))), "\n")
cat(jsonlite::toJSON(list(labels = shown$label, ids = looks$document$results, said = looks$document$sentence),
                     auto_unbox = TRUE), "\n")
print(looks)
"""


def test_looks_by_wave_have_the_same_figures_through_every_door(r, house, tmp_path, capsys):
    """Last of this study's tests: a second wave arrives."""
    house.second_wave()
    said = r(R_LOOKS, TRIBUTARY_URL=house.url, TRIBUTARY_ANALYST_TOKEN=str(house.file), FIGURE=str(tmp_path / "r.svg"))
    digits, rest, *printed = said.splitlines()
    rest = json.loads(rest)
    question = "cox(time, cvd) ~ sbp/10"
    with connect(house.token) as connection, house.client() as web:
        looks = connection["cvd"].monitor(question, spending="pocock")
        python = looks.document
        assert [one["label"] for one in python["looks"]] == rest["labels"] == ["wave 1", "wave 2"]
        capsys.readouterr()
        argv = ["monitor", "cvd", question, "--spending", "pocock", "--token", str(house.file)]
        assert client.main([*argv, "--json"]) == 0
        command = json.loads(capsys.readouterr().out)
        lines = len(connection["cvd"].log().document["lines"])
        https = web.post("/v1/studies/cvd/looks", json={"formula": question, "spending": "pocock"}).json()
        assert len(connection["cvd"].log().document["lines"]) == lines + 2, "each wave's question is a line"
        # The page of an answer asks the rest, and its own page shows what was asked.
        assert web.post("/sign-in", data={"token": house.token.token}).status_code == 303
        answer = f"/studies/cvd/results/{python['results']['1']}"
        csrf = re.search('name="csrf" value="([^"]+)"', web.get(answer).text)[1]
        sent = web.post(f"{answer}/looks", data={"csrf": csrf, "spending": "pocock"})
        assert sent.status_code == 303, sent.text
        place = sent.headers["location"]
        page, form = web.get(place).text, web.get(f"/v1{place}").json()
        lines = len(connection["cvd"].log().document["lines"])
        for door, found in (("command", command), ("HTTPS", https), ("form", form)):
            # An answer's page names its term, as nobody else did: the figures are the same, the ids are not.
            same = [name for name in python if door != "form" or name != "results"]
            assert {name: found[name] for name in same} == {name: python[name] for name in same}, door
        heads, rows = looks.text
        assert (https["heads"], https["rows"]) == (heads, rows)
        for cell in (cell for row in rows for cell in row):
            assert cell in page
            assert cell in "\n".join(printed)
        assert [float(word) for word in digits.split()] == pytest.approx(
            [float(value) for one in python["looks"] for name, value in one.items() if name != "label"], rel=1e-15
        )
        assert (rest["ids"], rest["said"]) == (python["results"], python["sentence"])
        figure = web.get(f"/v1{place.replace('/looks?', '/looks.svg?')}").content
        assert (tmp_path / "r.svg").read_bytes() == figure == web.get(place.replace("/looks?", "/looks.svg?")).content
        assert len(connection["cvd"].log().document["lines"]) == lines, "looking asks nothing"
        ids = python["results"]
        other = connection["cvd"].mean("sbp").id
        for results, spending, code in (
            (ids["1"], "bonferroni", "E_PARAMETER"),
            (f"{ids['1']},{other}", "pocock", "E_PARAMETER"),
            ("0000", "pocock", "E_STATE"),
            (",", "pocock", "E_SCHEMA"),
        ):
            refused = web.get("/v1/studies/cvd/looks", params={"results": results, "spending": spending}).json()
            assert refused["code"] == code, refused
        one = web.get("/v1/studies/cvd/looks", params={"results": ids["2"], "spending": "pocock"}).json()
        assert (list(one["results"]), list(one["missing"])) == (["2"], ["1"])
        refused = web.post("/v1/studies/cvd/looks", json={"formula": question, "spending": "bonferroni"}).json()
        assert refused["code"] == "E_PARAMETER"
