"""Analysts ask a running coordinator over TLS: who may ask, what is answered, and what never gets through."""

# ruff: noqa: F811  (fixtures are imported by their names)
from __future__ import annotations

import datetime as dt
import doctest
import json
import logging
import math
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from stage.coordinator_side.analysis import ADJUSTED, SITES, asked_by, desk, own, study  # noqa: F401
from stage.coordinator_side.delivered import TODAY, cohort, cohort_plan, take_back
from stage.house.pages import ROOT, Terminal

import shared.releases.bundle
from coordinator import cli
from coordinator.analyst import commands as client
from coordinator.analyst.commands import connect
from coordinator.analyst.remote import Pass, Study
from coordinator.answers import queries
from coordinator.answers.curves import curves as made_curves
from coordinator.answers.release_selection import holding
from coordinator.config import FILE_NAME, AnalysisSettings
from coordinator.pooling.pool import pool_estimates
from coordinator.services import analysis, documents
from coordinator.services.authority import Authority
from coordinator.services.compute.workers import Workers
from coordinator.services.documents import FORMULA_LETTERS
from shared.errors import (
    AccessRefusal,
    CertificateRefusal,
    DataFileRefusal,
    NetworkRefusal,
    ParameterError,
    PolicyRefusal,
    RateRefusal,
    Refusal,
    RoleRefusal,
    SchemaRefusal,
    StateRefusal,
    TooLarge,
)
from shared.wire.analyst_messages import Document, QueryRequest
from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE
from shared.wire.transport import SERVER_NAME, Client, Credentials


# -- one answer, whoever asks ---------------------------------------------------------------------------------------
def test_python_the_command_line_and_the_leads_own_question_give_the_same_numbers(desk, study, tmp_path, capsys):
    answer = study.cox(ADJUSTED, term="sbp")
    file = tmp_path / "ada.token.json"
    desk.admit("cli").save(file)
    argv = ["cox", "cvd", ADJUSTED, "--term", "sbp", "--token", str(file), "--json"]
    assert client.main(argv) == 0
    by_command = json.loads(capsys.readouterr().out)
    lead = ["--home", str(desk.home), "pool", "cvd", "--wave", "1", "--formula"]
    assert cli.main([*lead, "cox(time, cvd) ~ sbp/10 + age/10", "--term", "sbp", "--json"]) == 0
    by_lead = json.loads(capsys.readouterr().out)
    assert by_command == answer.document
    for name in ("pooled", "fixed", "estimates", "rows", "prediction_interval", "tau2_interval"):
        assert by_lead[name] == answer.document[name]
    assert (answer.beta, answer.se) == (by_lead["pooled"]["beta"], by_lead["pooled"]["se"])
    assert answer.pooled.ci_lb == by_lead["pooled"]["ci_lb"]
    figure = [*lead[:2], "figure", *lead[3:], "cox(time, cvd) ~ sbp/10 + age/10", "--out", str(tmp_path / "a.svg")]
    assert cli.main(figure) == 0
    drawn = [path.read_text() for path in (tmp_path / "a.svg", answer.forest(tmp_path / "b.svg"))]
    assert drawn[0] == drawn[1]
    with_store = queries.ask(desk.store, holding(desk.store, "cvd", 1), "cox(time, cvd) ~ sbp/10 + age/10", term="sbp")
    assert with_store.result.beta == answer.beta


def test_an_answer_names_its_bundles_plan_and_code(desk, study):
    answer = study.planned("adjusted")
    told = answer.document["provenance"]
    assert told["bundles"] == {r.bundle_sha256: r.site for r in desk.store.releases("cvd")}
    assert told["plan"] == {"version": 1, "hash": desk.plans["cvd"].hash}
    assert {"tributary", "numpy", "scipy", "pandas", "python"} == set(told["code"])  # whatever computes, and no more
    explained = answer.explain()
    assert explained.stale == ()
    assert {row["bundle_sha256"] for row in explained.document["releases"]} == set(told["bundles"])
    assert explained.document["releases"][0]["receipt"]["covered"]
    assert explained.document["asked_by"][-1]["label"] == "confirmatory"
    for words in (answer.id, "alpha", told["plan"]["hash"], "numpy", "asked by ada"):
        assert words in repr(explained)


def test_a_kind_and_a_formula_mean_what_the_planned_spelling_means(study):
    assert study.cox("Surv( time , cvd ) ~ sbp/10").id == study.planned("unadjusted").id
    assert study.query("", "cox(time, cvd) ~ sbp/10").document["planned"] == "unadjusted"
    assert study.mean("sbp").document["estimand"] == "mean(sbp)"
    assert study.correlation("sbp", "age").document["estimand"] == "correlation(sbp, age)"
    assert study.proportion("sbp > 140").document["scale"] == "logit"
    by_family = [study.glm("cvd ~ age/10").id, study.logistic("cvd ~ age/10").id]
    assert by_family[0] == by_family[1]
    assert study.glm("sbp ~ age", family="gaussian").id == study.ols("sbp ~ age").id
    older = study.cox("Surv(time, cvd) ~ sbp/10", subset="age >= 50")
    assert older.document["estimand"] == "cox(time, cvd, subset = age >= 50) ~ sbp/10"
    assert older.document["estimates"][0]["n"] < SITES["alpha"]
    assert 0 < study.km("Surv(time, cvd) ~ 1", at=5).document["k"] <= 3
    with pytest.raises(ParameterError, match="its own options"):
        study.query("", "adjusted", ties="breslow")


def test_other_pooling_is_another_question_to_the_same_releases_and_fits_no_site_again(study, monkeypatch):
    answer = study.planned("adjusted")
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:fit_nothing")
    fixed = answer.meta(method="FE", test="z")
    assert fixed.beta == pytest.approx(answer.meta().document["fixed"]["beta"], rel=1e-12)
    assert fixed.result.id != answer.id
    assert study.planned("adjusted", term="hdl").document["term"] == "hdl/15"


def test_objects_print_render_and_become_tables(desk, study, tmp_path):
    answer = study.planned("adjusted")
    for shown in (repr(answer), repr(answer.meta()), repr(study), repr(study.releases())):
        assert all(site in shown for site in SITES)
        assert "\x1b" not in shown
    assert "Traceback" not in repr(study.log())
    frame = answer.to_frame()
    assert list(frame["site"]) == sorted(SITES)
    assert (frame["vi"] == frame["vi_sampling"] + frame["vi_privacy"]).all()
    assert list(answer.meta().to_frame().index) == ["fixed", "random"]
    shown = (answer, answer.meta(), answer.explain(), study.log(), study.releases(), study.dictionary())
    for each in shown:
        assert "<table" in each._repr_html_()
        assert len(each.to_frame()) > 0
    assert str(desk.plans["cvd"].hash) in answer.explain()._repr_html_()
    for bundle in answer.document["provenance"]["bundles"]:
        assert bundle in list(answer.explain().to_frame()["bundle_sha256"])
    assert answer.forest()._repr_svg_() == answer.forest(tmp_path / "same.svg").read_text()
    with pytest.raises(Refusal):
        study.query("", "<script>alert(1)</script>")
    assert "<script>" not in study.log()._repr_html_()
    with connect(desk.admit()) as connection:
        assert "cvd" in repr(connection)
        assert "<table" in connection._repr_html_()
    assert "<svg" in answer.forest(tmp_path / "f.svg").read_text()
    assert "<svg" in answer.forest(tmp_path / "l.svg", kind="leave-one-out").read_text()


def test_the_dictionary_tells_meaning_unit_and_missing_share_of_each_site(own):
    table = cohort(200, 1)
    own.publish(
        cohort_plan(
            **{
                'label = "HDL cholesterol"': 'missing = "level"\nlabel = "HDL cholesterol"',
                "version = 1\ntitle": "version = 2\ntitle",
            }
        )
    )
    gaps = cohort(200, 2)
    gaps["hdl"] = gaps["hdl"].where(gaps.index >= 50)
    own.add("cvd", "alpha", table)
    own.add("cvd", "beta", gaps)
    with connect(own.start().admit()) as connection:
        found = connection["cvd"].dictionary("hdl")
        assert {row["site"]: row["missing"] for row in found} == {"alpha": "0 %", "beta": "25 %"}
        (column,) = found.document["columns"]
        assert (column["unit"], column["missing_share"]["beta"]) == ("mg/dL", 0.25)
        assert {"time", "cvd", "age", "sbp", "chol", "hdl"} == {row["column"] for row in connection["cvd"].dictionary()}


# -- who may --------------------------------------------------------------------------------------------------------
def test_a_token_is_kept_as_a_hash_and_written_for_its_owner_alone(desk, tmp_path, capsys):
    file = tmp_path / "eve.token.json"
    argv = ["--home", str(desk.home), "analyst", "add", "eve", "--study", "cvd", "--out", str(file), "--json"]
    assert cli.main([*argv, "--dry-run"]) == 0
    assert not file.exists()
    capsys.readouterr()
    assert cli.main(argv) == 0
    said = capsys.readouterr().out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = json.loads(file.read_text())["token"]
    assert token not in said
    assert token not in repr(Pass.load(file))
    for path in desk.home.glob("store.db*"):
        assert token.encode() not in path.read_bytes()
        assert token.partition(".")[2].encode() not in path.read_bytes()
    with connect(file) as connection:
        assert list(connection) == ["cvd"]
    assert cli.main(["--home", str(desk.home), "analyst", "revoke", "eve"]) == 0
    with connect(file) as connection, pytest.raises(AccessRefusal):
        connection.studies()
    capsys.readouterr()
    assert cli.main(["--home", str(desk.home), "analyst", "list", "--json"]) == 0
    (line,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "eve"]
    assert (line["state"], "token_sha256" in line) == ("revoked", False)
    assert cli.main(["--home", str(desk.home), "analyst", "revoke", "eve"]) == 2


def test_a_token_is_replaced_by_one_for_the_same_and_the_old_one_ends_then_or_after_some_days(desk, tmp_path, capsys):
    def said(*argv):
        code = cli.main(["--home", str(desk.home), "analyst", *argv, "--json"])
        answer = json.loads(capsys.readouterr().out)
        return answer if code == 0 else answer["refused"]["code"]

    step = "coordinator analyst add makes a new one"
    with pytest.raises(StateRefusal, match=step):
        desk.analysts.replaceable("rae", today=TODAY)
    now = dt.datetime.now(dt.UTC).date()
    files = [tmp_path / f"{number}.json" for number in range(4)]
    first = said("add", "rae", "--study", "cvd", "--role", "lead", "--out", f"{files[0]}")
    assert said("replace", "rae", "--out", f"{files[1]}", "--dry-run")["created"] is False
    assert not files[1].exists()
    assert said("replace", "rae", "--out", f"{files[1]}", "--overlap", "31") == "E_PARAMETER"
    second = said("replace", "rae", "--out", f"{files[1]}", "--overlap", "7", "--days", "30")
    assert (second["replaced"], second["until"]) == (first["id"], f"{now + dt.timedelta(days=7)}")
    before, after = (Pass.load(file) for file in files[:2])
    assert (after.role, after.studies, after.expires) == (
        before.role,
        before.studies,
        f"{now + dt.timedelta(days=30)}",
    )
    for file in files[:2]:
        with connect(file) as connection:
            assert list(connection) == ["cvd"], "both are good meanwhile"
    identify = desk.analysts.identify
    assert identify(before.token, today=now + dt.timedelta(days=7)).site == "rae"
    with pytest.raises(AccessRefusal):
        identify(before.token, today=now + dt.timedelta(days=8))
    assert said("replace", "rae", "--out", f"{files[2]}") == "E_STATE", "which of the two?"
    third = said("replace", second["id"], "--out", f"{files[2]}")
    assert third["until"] == f"{now}"
    with connect(files[1]) as connection, pytest.raises(AccessRefusal):
        connection.studies()
    with connect(files[2]) as connection:
        assert list(connection) == ["cvd"]
    assert said("replace", second["id"], "--out", f"{files[3]}") == "E_STATE", "a revoked token has no successor"
    assert not files[3].exists()
    kept = [one for one in desk.analysts.accounts() if one.name == "rae"]
    assert sorted(one.state(now) for one in kept) == ["in force", "in force", "revoked"]


def test_a_token_stays_good_until_the_one_in_its_place_lies_in_its_file(desk, tmp_path, monkeypatch):
    """The store knows a token's digest alone: of one that no file could be written of nobody would ever have it."""
    account, token = desk.analysts.add("ines", studies=("cvd",), today=TODAY)

    def full(account, token):
        raise OSError(28, "no room")

    with pytest.raises(OSError, match="no room"):
        desk.analysts.replace(account.id, today=TODAY, hand_over=full)
    assert desk.analysts.identify(token, today=TODAY).site == "ines"
    assert [one.name for one in desk.analysts.accounts()].count("ines") == 1


@pytest.mark.fault("F21")
def test_unknown_wrong_expired_and_revoked_tokens_get_one_answer(desk):
    good = desk.admit("mia")
    public = good.token.partition(".")[0]
    old = desk.admit("old", today=dt.date(2020, 1, 1), days=1)
    gone = desk.admit("gone")
    desk.analysts.revoke("gone", today=TODAY)
    answers = set()
    for token in (
        "nonsense",
        f"{public}.{'x' * 43}",
        f"{'0' * 16}.{good.token.partition('.')[2]}",
        old.token,
        gone.token,
    ):
        with desk.raw(token) as line, pytest.raises(AccessRefusal) as refused:
            line.call("Query", QueryRequest(study="cvd", formula="adjusted"), timeout=20)
        answers.add(str(refused.value))
    assert len(answers) == 1
    with desk.raw("") as line, pytest.raises(AccessRefusal, match="none"):
        line.call("Query", QueryRequest(study="cvd", formula="adjusted"), timeout=20)
    with pytest.raises(AccessRefusal, match="2020"):
        Pass.load(desk.save(old))


@pytest.mark.fault("F21")
def test_another_study_is_refused_like_one_that_does_not_exist(desk):
    token = desk.admit("noa").token
    texts = []
    with desk.raw(token) as line:
        for name in ("lungs", "livers"):
            for method in ("Query", "Describe", "Releases", "Explain", "Log"):
                kind = ANALYSIS[method].request
                more = {"Query": {"formula": "adjusted"}, "Explain": {"result_id": "ab" * 16}}.get(method, {})
                with pytest.raises(AccessRefusal) as refused:
                    line.call(method, kind(study=name, **more), timeout=20)
                texts.append(str(refused.value).replace(name, "X"))
            with pytest.raises(AccessRefusal):
                list(line.call("Rows", ANALYSIS["Rows"].request(study=name, release_id="ab"), timeout=20))
    assert len(set(texts)) == 1


def test_a_result_of_another_study_cannot_be_explained(desk, study):
    with connect(desk.admit("both", studies=("lungs",))) as other:
        theirs = other["lungs"].mean("sbp").id
    with pytest.raises(StateRefusal) as refused:
        study.explain(theirs)
    with pytest.raises(StateRefusal) as unknown:
        study.explain("ab" * 16)
    assert str(refused.value).replace(theirs, "X") == str(unknown.value).replace("ab" * 16, "X")


def test_an_auditor_reads_the_record_and_asks_nothing(desk):
    with connect(desk.admit("aud", studies=("cvd", "lungs"), role="auditor")) as connection:
        audited = connection["lungs"]
        assert len(audited.releases()) == 1
        audited.log()
        with pytest.raises(RoleRefusal):
            audited.mean("sbp")
        with pytest.raises(RoleRefusal):
            audited.rows(audited.releases()[0]["release_id"])


def test_rows_leave_only_where_the_plan_of_the_release_lets_them_and_are_recorded(desk, study):
    with pytest.raises(PolicyRefusal, match="row_download"):
        study.rows(study.releases()[0]["release_id"])
    with connect(desk.admit("rob", studies=("lungs",))) as mine:
        release = mine["lungs"].releases()[0]["release_id"]
        rows = mine["lungs"].rows(release)
        assert all(line["kind"] != "rows" for line in mine["lungs"].log().document["lines"])
    pd.testing.assert_frame_equal(rows, cohort(200, 7), check_dtype=False)
    with connect(desk.admit("boss", studies=("lungs",), role="lead")) as leads:
        (line,) = [line for line in leads["lungs"].log().document["lines"] if line["kind"] == "rows"]
    assert (line["analyst"], line["subject"]) == ("rob", release)


def test_a_later_plan_opens_no_rows_that_were_released_before_it(own):
    released = own.add("cvd", "alpha", cohort(200, 1))
    own.publish(
        cohort_plan(**{"row_download = false": "row_download = true", "version = 1\ntitle": "version = 2\ntitle"})
    )
    with connect(own.start().admit()) as connection, pytest.raises(PolicyRefusal, match="row_download"):
        connection["cvd"].rows(released)


# -- how much -------------------------------------------------------------------------------------------------------
@pytest.mark.fault("F21")
def test_of_ten_thousand_questions_a_minute_a_token_has_its_share_and_no_other_waits(desk):
    now = [0.0]
    settings = AnalysisSettings(rate=600, burst=100)
    service = analysis.AnalysisService(
        desk.store, settings, today=lambda: dt.datetime.now(dt.UTC).date(), clock=lambda: now[0]
    )
    flood, calm = desk.admit("flood").token, desk.admit("still").token
    before, let, steady = len(desk.analysts.record("cvd")), 0, 0
    for k in range(1_000):  # the first six seconds of such a minute
        now[0] = 60 * k / 10_000
        try:
            service.identify(flood)
            let += 1
        except RateRefusal:
            pass
        if k % 100 == 0:
            steady += service.identify(calm).site == "still"
    assert (let, steady) == (159, 10)  # a hundred at once, then ten a second
    assert len(desk.analysts.record("cvd")) == before


@pytest.mark.fault("F21")
def test_a_token_that_asks_too_often_is_refused_and_no_other(own):
    own.add("cvd", "alpha", cohort(200, 1))
    own.start()
    with connect(own.admit()) as greedy, connect(own.admit("calm")) as calm:
        with pytest.raises(RateRefusal, match="60 times a minute"):
            assert [greedy.studies() for _ in range(100)] == []
        assert list(calm) == ["cvd"]


@pytest.mark.fault("F21")
def test_a_megabyte_of_formula_is_refused_before_it_is_read(desk, caplog):
    with desk.raw(desk.admit("big").token) as line:
        request = QueryRequest(study="cvd", kind="cox", formula="Surv(time, cvd) ~ sbp")
        object.__setattr__(request, "formula", "Surv(time, cvd) ~ sbp" + " + sbp" * 200_000)
        with caplog.at_level(logging.INFO, "tributary"), pytest.raises(TooLarge, match="65536"):
            line.call("Query", request, timeout=20)
        object.__setattr__(request, "formula", "Surv(time, cvd) ~ " + "+ sbp" * 5000)
        with pytest.raises(TooLarge, match="4096"):
            line.call("Query", request, timeout=20)
        object.__setattr__(request, "formula", "Surv(time, cvd) ~ sbp" + " + sbp" * 400)
        with pytest.raises(ParameterError):
            line.call("Query", request, timeout=20)


@pytest.mark.fault("F21")
def test_a_call_without_a_deadline_or_with_an_endless_one_is_refused(desk):
    with desk.raw(desk.admit("late").token) as line, pytest.raises(NetworkRefusal, match="deadline"):
        line.call("Studies", ANALYSIS["Studies"].request(), timeout=5000)


def test_an_analyst_does_not_believe_another_authority(desk, tmp_path):
    stranger = Authority.create(tmp_path, coordinator="other", names=("127.0.0.1",))
    given = replace(desk.admit(), ca_pem=stranger.ca_pem)
    with connect(given) as connection, pytest.raises((CertificateRefusal, NetworkRefusal)):
        connection.studies()


def test_sites_port_takes_no_token_and_the_analysts_port_answers_no_site(desk):
    token = desk.admit("ida").token
    sites = Client(
        address=f"127.0.0.1:{desk.running.port}",
        server_name=SERVER_NAME,
        credentials=Credentials(ca_pem=desk.authority.ca_pem, token=token),
        service=ANALYSIS_SERVICE,
        methods=ANALYSIS,
    )
    with sites, pytest.raises((CertificateRefusal, NetworkRefusal)):
        sites.call("Studies", ANALYSIS["Studies"].request(), timeout=10)


@pytest.mark.fault("F21", cases=4)
@pytest.mark.parametrize("after", [2**31 - 1, 2**31, 2**52, 2**63 - 1])
def test_a_page_beyond_what_a_database_counts_is_empty_or_refused_by_type(desk, after):
    """A column of 32 bits is compared to no larger number by PostgreSQL: that was an unexpected fault."""
    with desk.raw(desk.admit(f"page{after}", role="lead").token) as line:
        for method, given in (("Releases", {"study": "cvd", "most": 5}), ("Log", {"study": "cvd"}), ("Entries", {})):
            request = ANALYSIS[method].request(**given)
            object.__setattr__(request, "after", after)
            if after < 2**31:
                line.call(method, request, timeout=60)
            else:
                with pytest.raises(SchemaRefusal):
                    line.call(method, request, timeout=60)


# -- wrong questions --------------------------------------------------------------------------------------------------
@pytest.mark.fault("F21")
@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os').system('id')",
        "Surv(time, cvd) ~ sbp; import os",
        "Surv(time, cvd) ~ exec('1')",
        "Surv(time, cvd) ~ sbp.__class__",
        "Surv(time, cvd) ~ `sbp`",
        "Surv(time, cvd) ~ sbp' OR '1'='1",
        "Surv(time, cvd) ~ {sbp}",
        "Surv(time, cvd)) ~ (sbp",
        "Surv(time, cvd) ~ sbp ~ age",
        "((((((((((((((((((((((((((((((((((((((((((((((((((",
        "Surv(time, cvd) ~ sbp\x00",
        "Surv(time, cvd) ~ ../../etc/passwd",
    ],
)
def test_an_attempt_at_injection_is_a_typed_refusal_and_nothing_else(study, formula):
    before = study.log()
    with pytest.raises(Refusal) as refused:
        study.cox(formula)
    assert refused.value.code in ("E_PARAMETER", "E_SCHEMA")
    log = study.log()
    *_, last = log.document["lines"]
    assert (last["kind"], last["subject"], last["question"]["formula"]) == ("refused", refused.value.code, formula)
    assert "\x00" not in repr(log) + log._repr_html_()
    for words in ("Traceback", ".py", str(Path(queries.__file__).parent)):
        assert words not in str(refused.value)
    assert log.counts == {**before.counts, "refused": before.counts["refused"] + 1}


def test_a_kind_that_is_no_kind_is_refused_with_those_there_are(study):
    with pytest.raises(ParameterError, match="logistic"):
        study.query("regress", "sbp ~ age")
    with pytest.raises(Refusal, match="plain word"):
        study.query("os.system", "sbp ~ age")


def test_an_unknown_column_is_refused_with_the_nearest_names_and_the_sites_that_lack_it(study):
    with pytest.raises(ParameterError, match=r"'spb', which all 3 sites lack.*Nearest: sbp"):
        study.cox("Surv(time, cvd) ~ spb")
    with pytest.raises(ParameterError, match=r"'hdll', which all 3 sites lack.*Nearest: hdl"):
        study.dictionary("hdll")


def test_a_term_that_one_site_cannot_support_leaves_that_site_out_with_its_reason(own):
    flat = cohort(200, 3)
    flat["hdl"] = 50.0
    for site, table in {"alpha": cohort(300, 1), "beta": cohort(300, 2), "flat": flat}.items():
        own.add("cvd", site, table)
    with connect(own.start().admit()) as connection:
        answer = connection["cvd"].cox("Surv(time, cvd) ~ hdl + sbp", term="hdl")
        assert answer.document["k"] == 2
        (row,) = [row for row in answer.document["estimates"] if row["yi"] is None]
        assert (row["site"], "constant" in row["reason"]) == ("flat", True)
        assert "constant" in repr(answer)


def test_a_column_that_came_later_names_the_site_whose_release_lacks_it(own):
    own.add("cvd", "alpha", cohort(300, 1))
    column = '[dictionary.columns.bmi]\nkind = "continuous"\nlower = 10\nupper = 80\n\n[dictionary.columns.sbp]'
    own.publish(cohort_plan(**{"[dictionary.columns.sbp]": column, "version = 1\ntitle": "version = 2\ntitle"}))
    new = cohort(300, 2).assign(bmi=range(20, 320))
    new["bmi"] = new["bmi"] / 10 + 10.0
    own.add("cvd", "beta", new[["time", "cvd", "age", "chol", "hdl", "bmi", "sbp"]])
    with connect(own.start().admit()) as connection:
        answer = connection["cvd"].mean("bmi")
        (left_out,) = [row for row in answer.document["estimates"] if row["yi"] is None]
        assert (left_out["site"], "no column bmi" in left_out["reason"]) == ("alpha", True)
        (found,) = connection["cvd"].dictionary("bmi").document["columns"]
        assert found["lacking"] == ["alpha"]


# -- kept answers -----------------------------------------------------------------------------------------------------
def test_two_analysts_at_once_get_one_computation_and_the_same_bytes(own, monkeypatch):
    for seed, site in enumerate(("alpha", "beta")):
        own.add("cvd", site, cohort(300, seed))
    own.start()
    asked = []
    real = Workers.run

    def counted(*given, **more):
        asked.append(threading.get_ident())
        return real(*given, **more)

    monkeypatch.setattr(Workers, "run", counted)  # the server runs in this process: the real one, counted
    passes = [own.admit(name) for name in ("ada", "ben")]

    def ask(given):
        with own.raw(given.token) as line:
            return line.call("Query", QueryRequest(study="cvd", formula="adjusted"), timeout=60)

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(ask, passes)
    assert isinstance(one, Document)
    assert one == two
    assert len(asked) == 1
    assert ask(passes[0]) == one
    assert len(asked) == 1
    with connect(own.admit("cy")) as connection:
        assert [line["analyst"] for line in connection["cvd"].log()] in (["ada", "ben", "ada"], ["ben", "ada", "ada"])


def test_questions_that_meet_a_cold_table_at_once_read_its_bundle_once(own, monkeypatch):
    own.add("cvd", "alpha", cohort(300, 1))
    own.start()
    (release,) = own.store.releases("cvd")
    read, real = [], shared.releases.bundle.read_bundle

    def counted(*given, **more):
        read.append(1)
        time.sleep(0.05)
        return real(*given, **more)

    monkeypatch.setattr(shared.releases.bundle, "read_bundle", counted)
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(own.store.table, [release] * 4))
    assert len(read) == 1
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])


@pytest.mark.fault("F24")
def test_a_new_release_makes_a_new_answer_and_the_old_one_is_called_stale(own):
    for seed, site in enumerate(("alpha", "beta", "gamma")):
        own.add("cvd", site, cohort(300, seed))
    with connect(own.start().admit()) as connection, connect(own.admit("ben")) as second:
        mine = Study(connection, "cvd")
        first = mine.query("", "unadjusted")
        assert first.explain().stale == ()
        take_back(own.store, "beta", own.keys["beta"])
        later = second["cvd"].query("", "unadjusted")
        assert later.id != first.id
        assert later.document["k"] == 2
        assert first.explain().stale == ("beta has withdrawn its release of wave 1",)
        assert "stale: beta has withdrawn" in repr(first.explain())
        assert [line["state"] for line in mine.log()] == ["stale", None]
    stale = [saved for saved in own.store.results("cvd") if saved.withdrawn]
    assert [saved.kind for saved in stale] == ["analysis"]


def test_a_release_that_a_refresh_replaces_makes_its_results_stale(own):
    own.publish(cohort_plan(**{"version = 1\ntitle": 'version = 2\nreturning = "refresh"\ntitle'}))
    for wave, site, seed in ((1, "alpha", 1), (1, "beta", 2), (2, "alpha", 3)):
        own.add("cvd", site, cohort(300, seed), wave=wave)
    with connect(own.start().admit()) as connection:
        mine = connection["cvd"]
        first, older = mine.mean("sbp"), mine.mean("sbp", wave=1)
        own.add("cvd", "beta", cohort(300, 4), wave=2)
        later = mine.mean("sbp")
        assert later.beta != first.beta
        assert first.explain().stale == ("a release of beta was replaced by a later one", "beta has delivered since")
        assert older.explain().stale == ()
        assert [line["state"] for line in mine.log()] == ["stale", None, None]
        assert mine.log().counts["stale"] == 1


def test_the_record_has_every_question_with_its_label_day_and_analyst(desk):
    with connect(desk.admit("zoe")) as connection:
        mine = connection["cvd"]
        answer = mine.cox("Surv(time, cvd) ~ chol/40")
        mine.cox("Surv(time, cvd) ~ chol/40", label="confirmatory")
        lines = [line for line in mine.log().document["lines"] if line["analyst"] == "zoe"]
    assert [line["label"] for line in lines] == ["exploratory", "confirmatory"]
    assert {line["subject"] for line in lines} == {answer.id}
    assert {line["day"] for line in lines} == {dt.datetime.now(dt.UTC).date().isoformat()}
    assert lines[0]["question"]["estimand"] == "cox(time, cvd) ~ chol/40"


def test_an_answer_that_was_given_is_read_once_and_its_line_stays_the_same(desk, study, monkeypatch):
    read, parse = [], documents.parse_json
    monkeypatch.setattr(documents, "parse_json", lambda data, **more: read.append(len(data)) or parse(data, **more))
    for _ in range(3):
        study.query("", "mean(age, subset = age >= 41)")
    first, *others = [vars(line) for line in desk.analysts.record("cvd")][-3:]
    assert [{**line, "number": first["number"]} for line in others] == [first, first]
    assert len(read) == 1, "the second time; the first is not read at all"
    desk.running._analysis.service.forget()
    study.query("", "mean(age, subset = age >= 41)")
    assert len(read) == 2


def test_the_record_says_of_a_planned_question_what_its_heading_says_however_it_was_asked(desk):
    formula = cohort_plan().estimands["unadjusted"].partition("~")[2]
    with connect(desk.admit("eve")) as connection:
        mine = connection["cvd"]
        asked = [mine.cox(f"Surv(time, cvd) ~ {formula}"), mine.query("", "unadjusted"), mine.mean("sbp")]
        asked.append(mine.query("", "unadjusted", label="exploratory"))
        lines = [line for line in mine.log().document["lines"] if line["analyst"] == "eve"]
    assert ["planned analysis" in answer.document["told"] for answer in asked] == [True, True, False, True]
    assert [line["label"] for line in lines] == ["confirmatory", "confirmatory", "exploratory", "exploratory"]


def test_the_record_counts_answered_and_refused_questions_of_this_study_alone(desk):
    long = "Surv(time, cvd) ~ sbp" + " + sbp" * 300
    with connect(desk.admit("kim", studies=("lungs",))) as one, connect(desk.admit("lee", studies=("cvd",))) as two:
        mine = one["lungs"]
        before, theirs = mine.log().counts, two["cvd"].log().counts
        answer = mine.mean("chol")
        mine.mean("chol", label="confirmatory")
        mine.mean("hdl")
        for formula in ("mean(spb)", "", "nothing", long):
            with pytest.raises(Refusal):
                mine.query("", formula) if formula else mine.cox(long)
        with pytest.raises(AccessRefusal):
            Study(two, "lungs").mean("sbp")
        with connect(desk.admit("max", studies=("lungs",), role="auditor")) as third, pytest.raises(RoleRefusal):
            third["lungs"].mean("sbp")
        log = mine.log()
        grown = {name: log.counts[name] - before[name] for name in before}
        assert grown == {
            "answered": 3,
            "confirmatory": 1,
            "exploratory": 2,
            "different": 2,
            "stale": 0,
            "refused": 5,
            "downloads": 0,
        }
        assert two["cvd"].log().counts == theirs
        refused = [line for line in log.document["lines"] if line["kind"] == "refused"][-5:]
    assert [line["analyst"] for line in refused] == ["kim"] * 4 + ["max"]
    assert [line["subject"] for line in refused] == ["E_PARAMETER"] * 4 + ["E_ROLE"]
    assert "Nearest: sbp" in refused[0]["question"]["why"]
    assert refused[1]["question"]["formula"] == long[:FORMULA_LETTERS]
    assert "E_ROLE" in repr(log)
    assert max(len(line["question"]) for line in log) <= 60
    assert f"{log.counts['refused']} refused" in log.title
    assert answer.id[:12] in {line["result"] for line in log}


def test_lines_that_wait_for_the_disk_together_are_written_together_and_fail_apart(own):
    own.start()
    writes, gate, first = [], threading.Event(), threading.Event()

    def write(work):
        writes.append(1)
        first.set()
        assert gate.wait(120)
        return own.store.write(work)

    own.analysts._together._write = write
    who = own.analysts.identify(own.analysts.add("ada", studies=["cvd"], today=TODAY)[1], today=TODAY)

    def spoiled(c):
        raise StateRefusal("what is written beside the answer must be whole", given="half of it")

    def note(k):
        line = {"study": "cvd", "kind": "query", "subject": f"{k}", "question": {}, "label": "", "today": TODAY}
        if k != 3:
            own.analysts.note(who, **line)
        else:
            own.analysts.give(who, b"{}", beside=spoiled, planned="", **line)

    with ThreadPoolExecutor(8) as pool:
        begun = [pool.submit(note, 0)]
        assert first.wait(120)
        begun += [pool.submit(note, k) for k in range(1, 8)]
        limit = time.monotonic() + 120
        while len(own.analysts._together._waiting) < 7 and time.monotonic() < limit:
            time.sleep(0.01)
        gate.set()
        failed = [k for k, done in enumerate(begun) if done.exception(120) is not None]
    assert failed == [3]
    assert own.analysts.answer("cvd", "3") is None
    assert sorted(line.subject for line in own.analysts.record("cvd")) == ["0", "1", "2", "4", "5", "6", "7"]
    assert len(writes) == 1 + 1 + 7  # the first; the seven together, which one of them spoils; each again


def test_a_result_can_be_had_again_and_written_as_a_table_json_or_a_figure(desk, study, tmp_path, capsys):
    answer = study.logistic("cvd ~ age/10")
    again = study.result(answer.id[:8])
    assert again.document == answer.document
    assert again.meta(method="FE").beta == answer.meta(method="FE").beta
    frame = pd.read_csv(answer.export(tmp_path / "a.csv"))
    assert list(frame["yi"]) == list(answer.to_frame()["yi"])
    said = {line for cell in answer.to_frame()["cautions"] for line in cell.split("\n") if line}
    assert all(any(one.endswith(line) for line in said) for one in answer.document["doubts"])
    assert bool(said) == bool(answer.document["doubts"])
    assert json.loads(answer.export(tmp_path / "a.json").read_text()) == answer.document
    with pytest.raises(ParameterError, match=r"\.json"):
        answer.export(tmp_path / "a.doc")
    file = str(desk.save(desk.admit("exp")))
    for name in ("b.csv", "b.json", "b.svg"):
        argv = ["export", "cvd", answer.id, "--out", str(tmp_path / name), "--token", file, "--json"]
        assert client.main([*argv, "--dry-run"]) == 0
        assert not (tmp_path / name).exists()
        assert client.main(argv) == 0
    assert (tmp_path / "b.csv").read_text() == (tmp_path / "a.csv").read_text()
    assert (tmp_path / "b.json").read_text() == (tmp_path / "a.json").read_text()
    assert "<svg" in (tmp_path / "b.svg").read_text()
    release = desk.store.releases("cvd")[0].release_id
    capsys.readouterr()
    assert client.main(["export", "cvd", release, "--out", str(tmp_path / "r.csv"), "--token", file]) == 10
    assert "row_download" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "r.csv").exists()


def test_the_pooled_curve_of_a_spline_comes_with_its_answer_and_is_drawn(desk, study, tmp_path, capsys):
    answer = study.logistic("cvd ~ ns(age, df = 2) + sbp/10")
    [joint] = answer.document["joint"]
    assert (joint["curve"]["of"], len(joint["curve"]["x"]), joint["reason"]) == ("age", 61, "")
    assert study.query("", answer.document["estimand"]).beta == answer.beta  # with its knots written out
    drawn = answer.dose_response(tmp_path / "a.svg", term="age").read_text()
    file, out = str(desk.save(desk.admit("dose"))), str(tmp_path / "b.svg")
    argv = ["export", "cvd", answer.id, "--kind", "dose-response", "--out", out, "--token", file]
    assert client.main(argv) == 0
    assert (tmp_path / "b.svg").read_text() == drawn
    capsys.readouterr()
    assert client.main(["logistic", "cvd", "cvd ~ ns(age, df = 2) + sbp/10", "--token", file]) == 0
    with pytest.raises(ParameterError, match="must be of one curve"):
        study.logistic("cvd ~ age").dose_response(tmp_path / "c.svg")


def test_the_curves_of_a_km_answer_are_those_of_the_releases_at_public_times(desk, study, tmp_path, capsys):
    answer = study.km("Surv(time, cvd) ~ 1", at=5.0)
    table = answer.curves().to_frame()
    assert set(table["curve"]) == {*SITES, "pooled"}
    for row in answer.document["estimates"]:  # the curve at 5 is the site's own answer about 5
        (point,) = table[(table["curve"] == row["site"]) & (table["time"] == 5.0)].to_dict("records")
        assert math.log(point["survival"] / (1 - point["survival"])) == pytest.approx(row["yi"], rel=1e-12)
    by_site = made_curves(desk.store, "cvd", 1, "km(time, cvd, at = 5)")
    assert [curve["survival"] for curve in answer.document["curves"]["curves"]] == [
        list(c.survival) for c in by_site.curves
    ]
    drawn = answer.curve(tmp_path / "km.svg").read_text()
    assert answer.curve()._repr_svg_() == drawn
    file = str(desk.save(desk.admit("kmf")))
    argv = ["km", "cvd", "Surv(time, cvd) ~ 1", "--at", "5", "--curve", str(tmp_path / "cli.svg"), "--token", file]
    assert client.main(argv) == 0
    out = ["--out", str(tmp_path / "export.svg"), "--kind", "curve", "--token", file]
    assert client.main(["export", "cvd", answer.id, *out]) == 0
    assert (tmp_path / "cli.svg").read_text() == (tmp_path / "export.svg").read_text() == drawn
    with pytest.raises(ParameterError, match="km question"):
        study.mean("sbp").curve()


def test_a_question_is_monitored_by_wave_from_python_and_the_command_line(desk, study, capsys, tmp_path):
    found = study.monitor("logistic(cvd) ~ age", spending="pocock")
    looks = found.document["looks"]
    assert looks[-1]["beta"] == study.logistic("cvd ~ age").beta
    assert looks[0]["boundary"] > 1.96 or len(study.facts()["waves"]) == 1
    assert "boundary" in repr(found)
    assert found.figure(tmp_path / "looks.svg").exists()
    argv = [
        "monitor",
        "cvd",
        "logistic(cvd) ~ age",
        "--spending",
        "pocock",
        "--token",
        str(desk.save(desk.admit("looks"))),
    ]
    assert client.main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["looks"] == looks


def test_a_table_one_is_asked_from_python_and_the_command_line_and_written(desk, study, capsys, tmp_path):
    found = study.table_one("age", "sbp", by="cvd")
    file, out = str(desk.save(desk.admit("one"))), tmp_path / "one.html"
    argv = ["table-one", "cvd", "age", "sbp", "--by", "cvd", "--out", str(out), "--token", file, "--json"]
    assert client.main(argv) == 0
    assert json.loads(capsys.readouterr().out) == found.document
    assert out.read_text(encoding="utf-8") == found.html()
    lead = ["--home", str(desk.home), "table-one", "cvd", "age", "sbp", "--by", "cvd", "--wave", "1", "--json"]
    assert cli.main(lead) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == found.document["cells"]
    assert found.document["term"] == "mean(age)", "whose notes are printed"
    frame = found.to_frame()
    assert len(frame.site.unique()) == 4
    alone = study.mean("sbp", subset="cvd == 1")
    pooled = frame[(frame.site == "all sites") & (frame.statistic == "mean") & (frame.group == "1")]
    assert pooled[pooled.column == "sbp"].estimate.item() == pytest.approx(alone.beta, rel=0.02)
    assert frame[frame.statistic == "missing"].estimate.max() < 0.02
    assert client.main(["table-one", "cvd", "age", "--out", "one.docx", "--token", file]) != 0


def test_survival_questions_give_the_same_numbers_from_python_and_the_command_line(desk, study, capsys):
    files = [str(desk.save(desk.admit(name))) for name in ("sur", "sura", "surb")]  # each has its share of a minute
    asked = {
        ("km", "Surv(time, cvd) ~ 1", "--at", "5"): study.km("Surv(time, cvd) ~ 1", at=5.0),
        ("rmst", "Surv(time, cvd) ~ I(age > 55)", "--tau", "6"): study.rmst("Surv(time, cvd) ~ I(age > 55)", tau=6.0),
        ("cumhaz", "Surv(time, cvd) ~ 1", "--at", "5"): study.cumhaz("Surv(time, cvd) ~ 1", at=5.0),
        ("cuminc", "Surv(time, cvd) ~ I(age > 55)", "--competing", "sbp > 150", "--at", "5"): study.cuminc(
            "Surv(time, cvd) ~ I(age > 55)", competing="sbp > 150", at=5.0
        ),
        ("rmst-regression", "Surv(time, cvd) ~ age", "--tau", "6"): study.rmst_regression(
            "Surv(time, cvd) ~ age", tau=6.0
        ),
        ("schoenfeld", "Surv(time, cvd) ~ age", "--transform", "identity"): study.schoenfeld(
            "Surv(time, cvd) ~ age", transform="identity"
        ),
        ("finegray", "Surv(time, cvd) ~ age/10", "--competing", "sbp > 150"): study.finegray(
            "Surv(time, cvd) ~ age/10", competing="sbp > 150"
        ),
        ("aft", "Surv(time, cvd) ~ age/10", "--dist", "lognormal"): study.aft(
            "Surv(time, cvd) ~ age/10", dist="lognormal"
        ),
        ("flexible", "Surv(time, cvd) ~ age/10", "--df", "2"): study.flexible("Surv(time, cvd) ~ age/10", df=2),
        ("logrank", "Surv(time, cvd) ~ I(age > 55)"): study.logrank("Surv(time, cvd) ~ I(age > 55)"),
        ("cox", "Surv(time, cvd) ~ sbp/10", "--subset", "age >= 50"): study.cox(
            "Surv(time, cvd) ~ sbp/10", subset="age >= 50"
        ),
    }
    asked |= {
        ("ols", "sbp ~ age/10", "--term", "age"): study.ols("sbp ~ age/10", term="age"),
        ("logistic", "cvd ~ age/10"): study.logistic("cvd ~ age/10"),
        ("poisson", "cvd ~ age + offset(log(time))"): study.poisson("cvd ~ age + offset(log(time))"),
        ("risk-ratio", "cvd ~ age/10"): study.risk_ratio("cvd ~ age/10"),
        ("log-binomial", "cvd ~ age/10"): study.log_binomial("cvd ~ age/10"),
        ("quasipoisson", "cvd ~ age/10"): study.quasipoisson("cvd ~ age/10"),
        ("negbin", "cvd ~ age/10"): study.negbin("cvd ~ age/10"),
        ("probit", "cvd ~ age/10"): study.probit("cvd ~ age/10"),
        ("glm", "cvd ~ age/10", "--link", "cloglog"): study.cloglog("cvd ~ age/10"),
        ("glm", "sbp ~ age/10", "--family", "Gamma"): study.gamma("sbp ~ age/10"),
        ("ordinal", "cvd ~ age/10"): study.ordinal("cvd ~ age/10"),
        ("multinomial", "cvd ~ age/10"): study.multinomial("cvd ~ age/10"),
        ("quantile", "sbp ~ age/10", "--tau", "0.9"): study.quantile("sbp ~ age/10", tau=0.9),
        ("gee", "sbp ~ age/10", "--cluster", "hdl", "--corstr", "independence"): study.gee(
            "sbp ~ age/10", cluster="hdl", corstr="independence"
        ),
        ("gee", "cvd ~ age/10", "--cluster", "hdl", "--family", "binomial"): study.gee(
            "cvd ~ age/10", cluster="hdl", family="binomial"
        ),
        ("mixed", "sbp ~ age/10", "--cluster", "hdl"): study.mixed("sbp ~ age/10", cluster="hdl"),
        ("standardised", "cvd ~ age/10 + sbp", "--of", "age", "--contrast", "NNT"): study.standardised(
            "cvd ~ age/10 + sbp", of="age", contrast="NNT"
        ),
        ("two-by-two", "cvd ~ I(age > 55)", "--measure", "RR"): study.two_by_two("cvd ~ I(age > 55)", measure="RR"),
        ("difference", "sbp ~ I(age > 55)"): study.difference("sbp ~ I(age > 55)"),
        ("ratio", "sbp ~ I(age > 55)"): study.ratio("sbp ~ I(age > 55)"),
        ("mean", "sbp"): study.mean("sbp"),
        ("proportion", "sbp > 140"): study.proportion("sbp > 140"),
        ("correlation", "sbp", "age"): study.correlation("sbp", "age"),
        ("correlation", "sbp", "age", "hdl", "--structure", "cs"): study.correlation(
            "sbp", "age", "hdl", structure="cs"
        ),
    }
    for at, ((kind, *rest), answer) in enumerate(asked.items()):
        assert client.main([kind, "cvd", *rest, "--token", files[at % 3], "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == answer.document
        assert answer.document["k"] == 3, answer


def test_a_planned_analysis_is_asked_of_the_rows_for_which_something_holds(desk, study):
    """Subgroups of a planned analysis were refused, as it must hold its own options."""
    alone = study.cox("Surv(time, cvd) ~ sbp/10 + age/10 + chol/40 + hdl/15", subset="age > 55").document
    for asked in ("adjusted", study.planned("adjusted").document["estimand"]):
        found = study.query("", asked, subset="age > 55").document
        assert (found["estimand"], found["pooled"]) == (alone["estimand"], alone["pooled"])
        assert not found["planned"]


def test_a_column_names_its_term_where_it_has_one(desk, study):
    assert study.ols("sbp ~ C(cvd) + age", term="C(cvd)").document["term"] == "C(cvd)[1]"


def test_what_may_be_asked_of_a_pooled_result_may_be_asked_of_an_answer(desk, study, tmp_path, capsys):
    file = str(desk.save(desk.admit("fur")))
    answer = study.cox(ADJUSTED)
    levels = {"alpha": "north", "beta": "north", "gamma": "south"}
    years = {"alpha": 1990, "beta": 2000, "gamma": 2020}
    found = answer.further(subgroups=levels, mods={"year": years}, bayes=True, exact=True, diagnostics=True)
    assert list(found["leave_one_out"]) == list(SITES)
    north = found["subgroups"]["groups"]["north"]
    assert (
        north["pooled"]["beta"] == pool_estimates([row for row in answer.pooled.estimates if row.site != "gamma"]).beta
    )
    assert found["regression"]["terms"] == ("intercept", "year")
    assert "subgroups by" in repr(found)
    argv = ["cox", "cvd", ADJUSTED, "--diagnostics", "--bayes", "--subgroup", "posture", "--token", file]
    drawn = str(tmp_path / "f.csv")
    assert client.main([*argv, "--forest", drawn, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["leave_one_out"] == json.loads(json.dumps(found.document["leave_one_out"]))
    assert set(told["subgroups"]["groups"]) == {"local"}
    assert "posture local" in Path(drawn).read_text()
    assert client.main(argv) == 0
    assert "without each site" in capsys.readouterr().out
    out = ["--out", drawn, "--subgroup", "posture", "--favours", "less|more", "--token", file]
    assert client.main(["export", "cvd", answer.id, *out]) == 0
    with pytest.raises(ParameterError, match="Facts: posture"):
        answer.further(subgroups="size")


def test_a_fault_that_nobody_foresaw_says_nothing_of_what_it_met(desk, study, monkeypatch, caplog):
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:broken")
    with caplog.at_level(logging.INFO, "tributary"), pytest.raises(Refusal) as refused:
        study.mean("chol")
    assert refused.value.code == "E_REFUSED"
    assert "unexpected RuntimeError in a question" in caplog.text
    assert "212" not in str(refused.value) + caplog.text


def test_a_closed_wave_asked_as_of_a_revision_is_answered_as_it_was(own):
    for seed, site in enumerate(("alpha", "beta")):
        own.add("cvd", site, cohort(300, seed))
    own.store.close_wave("cvd", 1, expected=["alpha", "beta", "gamma"], reason="test", today=TODAY)
    with connect(own.start().admit()) as connection:
        mine = connection["cvd"]
        yesterday = mine.planned("adjusted")
        own.add("cvd", "gamma", cohort(300, 9))
        today, again = mine.planned("adjusted"), mine.planned("adjusted", as_of=0)
        assert (today.document["k"], again.document["k"]) == (3, 2)
        assert again.beta == yesterday.beta
        assert again.explain().stale == ()
        assert yesterday.explain().stale == ("gamma has delivered since",)
        with pytest.raises(ParameterError, match="revision"):
            mine.planned("adjusted", as_of=7)


@pytest.mark.parametrize("sites", [1, 2])
def test_one_site_or_two_are_shown_without_a_gap(own, sites, tmp_path):
    for seed in range(sites):
        own.add("cvd", f"site{seed}", cohort(300, seed))
    with connect(own.start().admit()) as connection:
        answer = connection["cvd"].cox(ADJUSTED, term="sbp")
        assert answer.document["k"] == sites
        for shown in (repr(answer), repr(answer.meta()), repr(answer.explain()), answer._repr_html_()):
            assert "None" not in shown
            assert "nan" not in shown
        assert "<svg" in answer.forest(tmp_path / "f.svg").read_text()


def test_a_question_that_finds_no_free_place_is_recorded_as_refused(own, monkeypatch):
    own.add("cvd", "alpha", cohort(300, 1))
    own.analysis = replace(own.analysis, at_once=1)
    own.start()
    monkeypatch.setattr("coordinator.services.compute.engine.PATIENCE", 0.2)
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:slowly")
    with connect(own.admit()) as one, connect(own.admit("ben")) as two, ThreadPoolExecutor(1) as pool:
        first = pool.submit(Study(one, "cvd").mean, "sbp")
        asked_by(own, 1)
        try:
            with pytest.raises(RateRefusal, match="free place"):
                Study(two, "cvd").mean("age")
        finally:
            (own.home / "go").touch()
        assert first.result(120).document["k"] == 1
        log = two["cvd"].log()
        assert sorted((line["analyst"], line["state"]) for line in log) == [("ada", None), ("ben", "refused: E_RATE")]
        assert (log.counts["answered"], log.counts["refused"]) == (1, 1)


def test_coordinator_serve_answers_analysts_beside_sites_and_stops_when_told_to(own):
    own.add("cvd", "alpha", cohort(300, 1))
    own.start()
    own.running.stop(0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = (own.home / FILE_NAME).read_text()
    own.address = f"127.0.0.1:{port}"
    config = re.sub('^listen = "[^"]*"', 'listen = "127.0.0.1:0"', config, flags=re.MULTILINE)
    config = re.sub('^analysts = "[^"]*"', f'analysts = "{own.address}"', config, flags=re.MULTILINE)
    (own.home / FILE_NAME).write_text(config)
    argv = [sys.executable, "-m", "coordinator.cli", "--home", str(own.home), "serve"]
    wide = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=wide
    ) as server:
        try:
            server.stdout.readline()
            assert f"analysts are answered on {own.address}" in server.stdout.readline()
            with connect(own.admit()) as connection:
                assert connection["cvd"].mean("sbp").document["k"] == 1
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=120)
        finally:
            server.kill()
    assert server.returncode == 0
    assert " ada Query ok " in errors
    assert "Traceback" not in errors


# -- the page --------------------------------------------------------------------------------------------------------
def test_the_analysts_page_does_what_it_says(own, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "analysts.md").read_text(encoding="utf-8")
    for seed, (site, n) in enumerate(SITES.items()):
        own.add("cvd", site, cohort(n, seed))
    own.start()
    folder = tmp_path / "page"
    folder.mkdir()
    terminal = Terminal(folder)
    terminal.env["TRIBUTARY_COORDINATOR_HOME"] = str(own.home)
    monkeypatch.chdir(folder)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    python = "".join(re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL))
    example = doctest.DocTestParser().get_doctest(python, {}, "analysts.md", "analysts.md", 0)
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", page, flags=re.MULTILINE | re.DOTALL)
    ran = False
    for language, block, shown in blocks:
        if language == "sh":
            said = " ".join(terminal.run(block).split())
            for line in filter(None, shown.splitlines()):
                assert " ".join(line.split()) in said, f"{line!r} is not in what this block says:\n{said}"
        elif not ran:  # one interpreter, as a reader has it
            out: list[str] = []
            assert runner.run(example, out=out.append).failed == 0, "".join(out)
            ran = True
    assert ran
    assert "<svg" in (folder / "forest.svg").read_text()
    assert (folder / "forest.svg").read_text() == (folder / "again.svg").read_text()


# -- the analyst's own computer ---------------------------------------------------------------------------------------
def test_a_missing_or_foreign_token_file_is_a_refusal_with_the_next_step(tmp_path, capsys):
    with pytest.raises(DataFileRefusal, match="coordinator analyst add"):
        connect(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"token": 1}')
    with pytest.raises(AccessRefusal):
        connect(tmp_path / "other.json")
    assert client.main(["studies", "--token", str(tmp_path / "none.json")]) == DataFileRefusal.exit_code


def test_every_verb_answers_in_words_and_in_json(desk, tmp_path, capsys):
    file = tmp_path / "vera.token.json"
    desk.admit("vera", studies=("cvd", "lungs"), role="lead").save(file)
    token = ("--token", str(file))
    assert client.main(["query", "cvd", "adjusted", "--label", "confirmatory", *token, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    release = desk.store.releases("lungs")[0].release_id
    verbs = {
        ("studies",): "cvd",
        ("describe", "cvd"): "mmHg",
        ("describe", "cvd", "sbp"): "alpha",
        ("releases", "cvd"): "accepted",
        ("query", "cvd", "adjusted", "--forest", str(tmp_path / "f.svg")): "random effects",
        ("cox", "cvd", "Surv(time, cvd) ~ age/10"): "ratio",
        ("glm", "cvd", "cvd ~ age/10"): "ratio",
        ("km", "cvd", "Surv(time, cvd) ~ 1", "--at", "5"): "estimate",
        ("export", "cvd", result, "--out", str(tmp_path / "result.csv")): "wrote",
        ("export", "lungs", release, "--out", str(tmp_path / "again.csv")): "not patient records",
        ("explain", "cvd", result): "plan    version 1",
        ("log", "cvd"): "confirmatory",
        ("rows", "lungs", release, "--out", str(tmp_path / "rows.csv")): "not patient records",
    }
    for verb, words in verbs.items():
        assert client.main([*verb, *token]) == 0, verb
        assert words in capsys.readouterr().out, verb
        assert client.main([*verb, *token, "--json"]) == 0
        json.loads(capsys.readouterr().out)
    assert len(pd.read_csv(tmp_path / "rows.csv")) == 200
    assert client.main(["cox", "cvd", "Surv(time, cvd) ~ spb", *token]) == 2
    assert "all 3 sites lack" in " ".join(capsys.readouterr().err.split())
