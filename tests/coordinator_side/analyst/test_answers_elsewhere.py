"""An answer in the habits of statsmodels, broom and metafor: the same numbers, and nothing that could be run."""

from __future__ import annotations

import json
import math

import pytest
from scipy.special import expit
from stage.coordinator_side.doors import RECORDED

from coordinator.analyst.elsewhere import metafor_code, statsmodels_result, tidy
from coordinator.analyst.result import Result
from coordinator.pooling.document import pooled_data
from coordinator.pooling.pool import pool
from shared.errors import IntegrityRefusal, PackageRefusal, ParameterError
from shared.terminal import plain


def answer(name="cox", **changed):
    return {**json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8")), **changed}


def pooled_again(document, method):
    """The answer as it would be by another estimator."""
    rows = document["rows"]
    found = pool([row["yi"] for row in rows], [row["vi"] for row in rows], method=method)
    return {**document, "pooled": plain(pooled_data(found))["pooled"]}


def test_tidy_has_brooms_names_and_the_numbers_that_were_sent():
    document = answer()
    table, pooled = tidy(document), document["pooled"]
    numbers = ["estimate", "std.error", "statistic", "p.value", "conf.low", "conf.high"]
    assert list(table)[:8] == ["term", "type", *numbers]
    assert list(table.term) == document["terms"]
    asked = table.iloc[0]
    assert asked.tolist()[2:8] == [pooled[name] for name in ("beta", "se", "zval", "pval", "ci_lb", "ci_ub")]
    other, sent = table.iloc[1], document["table"][1]
    assert (other["conf.low"], other["conf.high"]) == (math.log(sent["ci_lb"]), math.log(sent["ci_ub"]))
    back = tidy(document, exponentiate=True)
    assert back.estimate.tolist() == [row["estimate"] for row in document["table"]]
    assert set(table.scale) == {"log"}
    assert set(back.scale) == {"identity"}
    assert back["std.error"].tolist() == table["std.error"].tolist()


def test_tidy_has_sites_cautions_and_terms_without_an_estimate():
    document = answer("interaction")
    assert "flow" in tidy(document).cautions[2]
    document["table"][1] |= {
        "reason": "constant",
        **dict.fromkeys(("beta", "se", "pval", "ci_lb", "ci_ub", "estimate")),
    }
    document["estimates"][1] |= {"yi": None, "vi_sampling": None, "vi_privacy": None, "reason": "no events"}
    table = tidy(document, exponentiate=True, sites=True)
    assert table.estimate.isna().tolist() == [False, True, False, False, True, False]
    assert table.reason.tolist() == ["", "constant", "", "", "no events", ""]
    first = document["rows"][0]
    site = table[table.term == first["label"]].iloc[0]
    assert site["conf.low"] == pytest.approx(first["shown"]["ci_lb"])
    assert site.nobs == first["n"]


def test_the_ends_of_other_scales_come_back_to_where_they_were():
    for name in ("survival", "cox"):
        document = answer(name)
        other = {**document, "term": "another"}  # then no row is the one that was asked for
        ends = tidy(other)[["conf.low", "conf.high"]].iloc[0].tolist()
        assert ends == pytest.approx([document["pooled"]["ci_lb"], document["pooled"]["ci_ub"]])
    share = tidy(answer("survival"), exponentiate=True).iloc[0]
    assert share["conf.low"] == expit(answer("survival")["pooled"]["ci_lb"])


def test_a_summary_is_the_whole_answer_with_its_cautions_first():
    document = answer("interaction")
    for name in ("rows", "estimates"):
        for row in document[name]:
            row["receipts"] = ["00" * 32]
    made = Result(None, document, lambda **_: None).summary()
    text = made.as_text()
    assert text.index("caution") < text.index("random effects (REML, adhoc)") < text.index("all terms")
    assert "caution" in made._repr_html_()


def test_statsmodels_pools_to_the_number_that_was_sent_or_says_why_not():
    for method, name in (("PM", "mean_effect_re"), ("DL", "mean_effect_re"), ("FE", "mean_effect_fe")):
        document = pooled_again(answer(), method)
        made = Result(None, document, lambda **_: None).to_statsmodels()
        assert getattr(made, name) == pytest.approx(document["pooled"]["beta"], rel=1e-6)
        assert list(made.row_names)[:3] == ["alpha", "beta", "gamma"]
    with pytest.raises(ParameterError, match="PM"):
        statsmodels_result(answer())
    document["pooled"]["beta"] += 1e-3
    with pytest.raises(IntegrityRefusal):
        statsmodels_result(document)


def test_without_statsmodels_the_refusal_says_what_to_install(monkeypatch):
    monkeypatch.setattr("coordinator.analyst.elsewhere.find_spec", lambda name: None)
    with pytest.raises(PackageRefusal, match="pip install statsmodels"):
        statsmodels_result(pooled_again(answer(), "PM"))


def test_code_for_metafor_holds_what_others_wrote_as_a_comment_only():
    hostile = answer("interaction", title="risk\nsystem('id')\u2028q()\r")
    assert Result(None, hostile, lambda **_: None).to_metafor_code() == metafor_code(hostile)
    lines = metafor_code(hostile).splitlines()
    assert lines[0] == "# risk?system('id')?q()?"
    assert lines[2].startswith("# caution: ")
    assert next(line for line in lines if not line.startswith("#")) == "library(metafor)"
