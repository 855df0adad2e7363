"""Analysts ask over HTTPS: the same answers as over gRPC, the same gates, and nothing that a browser could misuse."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import doctest
import io
import socket
import ssl
import time

import pandas as pd
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from stage.browser.web_stage import QUESTION, WEB, stage, web_stage  # noqa: F401
from stage.coordinator_side.delivered import TODAY

from coordinator.config import AnalysisSettings, CoordinatorConfig, WebConfig
from coordinator.services import analysis
from coordinator.services.authority import Authority
from coordinator.web.interface import openapi, operations, problems
from coordinator.web.server import HEADERS
from coordinator.web.workbench import forms
from shared.errors import CertificateRefusal, ConfigRefusal, Refusal
from shared.wire.analyst_messages import QueryRequest, RowsRequest
from shared.wire.messages import ANALYSIS
from shared.wire.site_messages import WatchRequest
from shared.wire.transport import CallLimits

DOCUMENT = openapi.document()
READS = {
    "/v1/studies": "Studies",
    "/v1/studies/cvd/dictionary": "Dictionary",
    "/v1/studies/cvd/dictionary?column=sbp": "Dictionary",
    "/v1/studies/cvd/releases": "Releases",
    "/v1/studies/cvd/log": "Log",
    "/v1/log/entries": "Entries",
}
OWN = {
    "/v1/studies/cvd/waves": "Waves",
    "/v1/studies/cvd/receipts": "Receipts",
    "/v1/studies/cvd/budgets": "Budgets",
}


@pytest.fixture(scope="module")
def lead(stage) -> str:
    return stage.admit("lena", ("cvd", "lungs"), "lead")


@pytest.fixture(scope="module")
def web(stage, lead):
    with stage.web(lead) as client:
        yield client


@pytest.fixture(scope="module")
def answer(web) -> dict:
    answered = web.post("/v1/studies/cvd/queries", json=QUESTION)
    assert answered.status_code == 200, answered.text
    return answered.json()


def require_schema(document, name: str) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    assert [error.message for error in Draft202012Validator(schema).iter_errors(document)] == []


# -- one service, two doors ---------------------------------------------------------------------------------------
def test_every_document_is_the_one_that_grpc_gives_byte_for_byte(stage, lead, web, answer):
    with stage.grpc(lead) as client:
        for path, name in READS.items():
            method = {"Dictionary": "Describe"}.get(name, name)
            kind = ANALYSIS[method].request
            given = {"study": "cvd"} if "/cvd/" in path else {}
            given |= {"column": "sbp"} if "column" in path else {}
            assert web.get(path).content == client.call(method, kind(**given), timeout=60).json, path
        asked = client.call("Query", QueryRequest(study="cvd", **QUESTION), timeout=60)
        assert web.post("/v1/studies/cvd/queries", json=QUESTION).content == asked.json
        explained = ANALYSIS["Explain"].request(study="cvd", result_id=answer["result"])
        over_web = web.get(f"/v1/studies/cvd/results/{answer['result']}")
        assert over_web.content == client.call("Explain", explained, timeout=60).json


def test_the_log_is_watched_with_the_same_head_and_the_same_proofs(stage, lead, web):
    with stage.grpc(lead) as client:
        seen = client.call("Watch", WatchRequest(sizes=(1, 3)), timeout=60)
    view = web.get("/v1/log?sizes=1,3").json()
    require_schema(view, "LogView")
    assert view["head"].encode() == seen.head
    assert [[bytes.fromhex(part) for part in proof] for proof in view["growth"]] == [list(one) for one in seen.growth]


def test_rows_come_as_the_same_parquet_and_stand_in_the_record(stage, lead, web):
    release = web.get("/v1/studies/lungs/releases").json()["releases"][0]
    answered = web.get(f"/v1/studies/lungs/releases/{release['release_id']}/rows")
    assert answered.headers["content-type"] == "application/vnd.apache.parquet"
    assert len(pd.read_parquet(io.BytesIO(answered.content))) == release["n"]
    with stage.grpc(lead) as client:
        request = RowsRequest(study="lungs", release_id=release["release_id"])
        assert b"".join(part.data for part in client.call("Rows", request, timeout=60)) == answered.content
    lines = web.get("/v1/studies/lungs/log").json()["lines"]
    assert [line["subject"] for line in lines if line["kind"] == "rows"] == [release["release_id"]] * 2


def test_a_question_is_a_line_of_the_record_answered_or_refused_and_a_check_is_none(web, answer):
    before = web.get("/v1/studies/cvd/log").json()["lines"]
    checked = web.post("/v1/studies/cvd/checks", json={"formula": "unadjusted"}).json()
    assert checked == {
        "estimand": "cox(time, cvd) ~ sbp/10",
        "planned": "unadjusted",
        "label": "confirmatory",
        "kind": "cox",
    }
    assert web.post("/v1/studies/cvd/queries", json=QUESTION).json()["result"] == answer["result"]
    assert web.post("/v1/studies/cvd/queries", json={"kind": "mean", "formula": "weight"}).status_code == 422
    lines = web.get("/v1/studies/cvd/log").json()["lines"][len(before) :]
    assert [(line["kind"], line["subject"]) for line in lines] == [
        ("query", answer["result"]),
        ("refused", "E_PARAMETER"),
    ]


def test_a_tokens_rate_is_one_for_both_doors(tmp_path):
    stage = web_stage(tmp_path / "hub").start(analysis=AnalysisSettings(rate=1, burst=3))
    try:
        token = stage.admit()
        with stage.grpc(token) as client, stage.web(token) as web:
            client.call("Studies", ANALYSIS["Studies"].request(), timeout=20)
            assert [web.get("/v1/studies").status_code for _ in range(3)] == [200, 200, 429]
            assert web.get("/v1/studies").headers["retry-after"]
            with pytest.raises(Refusal, match="times a minute"):
                client.call("Studies", ANALYSIS["Studies"].request(), timeout=20)
    finally:
        stage.running.stop(0.2)
        stage.store.close()


# -- the document that says so --------------------------------------------------------------------------------------
def test_the_openapi_document_is_valid_and_names_every_method_of_the_service(web):
    assert web.get("/v1/openapi.json").json() == DOCUMENT
    OpenAPIV31SpecValidator(DOCUMENT).validate()
    named = {one.name.capitalize() for one in operations.OPERATIONS}
    assert set(ANALYSIS) <= named
    body = DOCUMENT["paths"]["/v1/studies/{study}/queries"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["required"] == ["formula"]
    assert body["schema"]["properties"]["level"]["default"] == 0.95
    assert {n for n, part in body["schema"]["properties"].items() if "description" not in part} == {"to"}


@pytest.mark.parametrize(("path", "name"), (READS | OWN).items())
def test_every_answer_has_the_form_that_the_document_says(web, answer, path, name):
    require_schema(web.get(path).json(), name)


def test_an_answer_and_its_explanation_have_the_form_that_the_document_says(web, answer):
    require_schema(answer, "Answer")
    require_schema(web.get(f"/v1/studies/cvd/results/{answer['result']}").json(), "Explanation")
    require_schema(web.post("/v1/studies/cvd/checks", json=QUESTION).json(), "Check")
    require_schema(web.get(f"/v1/studies/cvd/results/{answer['result']}/words").json(), "Words")
    with pytest.raises(AssertionError):
        require_schema({**answer, "pooled": {}}, "Answer")


# -- figures --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("file", "kind", "begins"),
    [
        ("forest.svg", "image/svg+xml", b"<?xml"),
        ("forest.pdf", "application/pdf", b"%PDF"),
        ("funnel.png", "image/png", b"\x89PNG"),
        ("table.csv", "text/csv", b"site,"),
    ],
)
def test_a_result_is_drawn_from_its_document(web, answer, file, kind, begins):
    drawn = web.get(f"/v1/studies/cvd/results/{answer['result'][:12]}/{file}")
    assert drawn.headers["content-type"].partition(";")[0] == kind
    assert drawn.content.startswith(begins)
    again = web.get(f"/v1/studies/cvd/results/{answer['result']}/{file}")
    assert again.content == drawn.content


def test_a_figure_in_lines_is_sent_compressed_to_whoever_takes_it_so_and_nothing_else_is(web, answer):
    place = f"/v1/studies/cvd/results/{answer['result']}"
    found = web.get(f"{place}/forest.svg")
    assert found.headers["content-encoding"] == "gzip"
    assert found.num_bytes_downloaded < len(found.content) / 4
    plain = web.get(f"{place}/forest.svg", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == found.content
    for path in (place, f"{place}/table.csv", f"{place}/forest.pdf"):
        assert "content-encoding" not in web.get(path).headers, path


# -- jobs -----------------------------------------------------------------------------------------------------------
def test_a_job_says_how_far_it_is_and_gives_the_answer_of_the_question(web, answer):
    begun = web.post("/v1/studies/cvd/jobs", json={**QUESTION, "level": 0.9})
    assert begun.status_code == 202
    require_schema(begun.json(), "Job")
    with web.stream("GET", begun.headers["location"] + "/events") as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        said = [line.removeprefix("event: ") for line in events.iter_lines() if line.startswith("event: ")]
    assert said[-1] == "done"
    assert set(said) <= {"waiting", "computing", "done"}
    job = web.get(begun.headers["location"]).json()
    require_schema(job, "Job")
    assert job["answer"] == web.post("/v1/studies/cvd/queries", json={**QUESTION, "level": 0.9}).json()


def test_a_refused_job_says_why(web):
    begun = web.post("/v1/studies/cvd/jobs", json={"kind": "mean", "formula": "weight"})
    until = time.monotonic() + 20
    while (job := web.get(begun.headers["location"]).json())["state"] != "refused":
        assert time.monotonic() < until
        time.sleep(0.05)
    require_schema(job, "Job")
    assert job["problem"]["code"] == "E_PARAMETER"


def test_a_job_is_ended_by_whoever_began_it_and_by_nobody_else(stage, web, monkeypatch):
    monkeypatch.setattr(analysis, "ANSWER", "stage.browser.web_stage:slow")
    begun = web.post("/v1/studies/cvd/jobs", json={**QUESTION, "level": 0.8})
    place = begun.headers["location"]
    with stage.web(stage.admit("eve")) as other:
        assert other.delete(place).status_code == 404
        assert other.get(place + "/events").status_code == 404
    until = time.monotonic() + 30
    while web.get(place).json()["state"] != "computing":
        assert time.monotonic() < until
        time.sleep(0.05)
    ended = web.delete(place).json()
    assert (ended["state"], ended["problem"]["code"]) == ("cancelled", "E_NETWORK")
    lines = web.get("/v1/studies/cvd/log").json()["lines"]
    until = time.monotonic() + 20
    while not (lines := [one for one in web.get("/v1/studies/cvd/log").json()["lines"] if "0.8" in str(one)] or lines):
        assert time.monotonic() < until
    assert lines[-1]["kind"] == "refused"


# -- who may, and what never gets through ---------------------------------------------------------------------------
REFUSED = [
    ("GET", "/v1/studies", {"authorization": ""}, None, 401, "E_ACCESS"),
    ("GET", "/v1/studies", {"authorization": "Bearer 0123456789abcdef.wrong"}, None, 401, "E_ACCESS"),
    ("GET", "/v1/studies", {"authorization": "Basic YTpi"}, None, 401, "E_ACCESS"),
    ("GET", "/v1/studies/other/dictionary", {}, None, 403, "E_ACCESS"),
    ("GET", "/v1/studies/cvd/dictionary?column=sbq", {}, None, 422, "E_PARAMETER"),
    ("GET", "/v1/studies/cvd/dictionary?colum=sbp", {}, None, 400, "E_SCHEMA"),
    ("GET", "/v1/studies/cvd/dictionary?column=a&column=b", {}, None, 400, "E_SCHEMA"),
    ("GET", "/v1/studies/cvd/log?after=-1", {}, None, 400, "E_SCHEMA"),
    ("GET", "/v1/log?sizes=1,x", {}, None, 400, "E_SCHEMA"),
    ("GET", "/v1/log?entries=1", {}, None, 403, "E_ROLE"),
    ("GET", "/v1/studies/cvd/results/0000", {}, None, 404, "E_STATE"),
    ("GET", "/v1/studies/cvd/releases/0000/rows", {}, None, 404, "E_STATE"),
    ("GET", "/v1/jobs/0000", {}, None, 404, "E_STATE"),
    ("POST", "/v1/studies/cvd/queries", {}, b"{}", 400, "E_SCHEMA"),
    ("POST", "/v1/studies/cvd/queries", {}, b'{"kind": "cox", "formula": "\\ud800"}', 400, "E_SCHEMA"),
    ("POST", "/v1/studies/cvd/queries", {}, b'{"formula": "mean(sbp)", "level": "0.9"}', 400, "E_SCHEMA"),
    ("POST", "/v1/studies/cvd/queries", {}, b'{"formula": "mean(sbp)", "level": 2}', 400, "E_SCHEMA"),
    ("POST", "/v1/studies/cvd/queries", {}, b'{"formula": "mean(sbp)", "wave": true}', 400, "E_SCHEMA"),
    ("POST", "/v1/studies/cvd/queries", {}, b'{"formula": "a", "formula": "b"}', 400, "E_SCHEMA"),
    ("POST", "/v1/studies/cvd/queries", {}, b"[1]", 400, "E_SCHEMA"),
    ("POST", "/v1/studies/cvd/queries", {"content-type": "text/plain"}, b"{}", 400, "E_SCHEMA"),
    ("POST", "/v1/studies/cvd/queries", {}, b'{"formula": "mean(sbp)", "method": "XX"}', 422, "E_PARAMETER"),
    ("POST", "/v1/studies/cvd/queries", {}, b" " * (70 << 10), 413, "E_TOO_LARGE"),
    ("GET", "/v1/studies", {"tributary-protocol": "7-9"}, None, 400, "E_NETWORK"),
    ("GET", "/v0/studies", {}, None, 404, "E_NETWORK"),
    ("DELETE", "/v2/studies/cvd", {}, None, 404, "E_NETWORK"),
]


@pytest.mark.parametrize(("verb", "path", "headers", "body", "status", "code"), REFUSED)
def test_a_refusal_is_a_problem_document_that_says_what_to_do(web, verb, path, headers, body, status, code):
    kind = {"content-type": "application/json"} if body is not None else {}
    answered = web.request(verb, path, headers={**kind, **headers}, content=body)
    said = answered.json()
    assert (answered.status_code, said["status"], said["code"]) == (status, status, code)
    assert answered.headers["content-type"] == "application/problem+json"
    require_schema(said, "Problem")
    assert web.get(said["type"]).json()["code"] == code
    assert ("www-authenticate" in answered.headers) == (status == 401)


WRONG_VERBS = [
    ("DELETE", "/v1/studies", "GET, HEAD"),
    ("OPTIONS", "/v1/studies", "GET, HEAD"),
    ("GET", "/v1/studies/cvd/queries", "POST"),
    ("HEAD", "/v1/studies/cvd/queries", "POST"),
    ("TRACE", "/v1/studies/cvd/queries", "POST"),
    ("PUT", "/v1/jobs/0000", "DELETE, GET, HEAD"),
    ("POST", "/v1", "GET, HEAD"),
    ("POST", "/v1/openapi.json", "GET, HEAD"),
    ("POST", "/", "GET, HEAD"),
    ("PATCH", "/design", "GET, HEAD, POST"),
    ("DELETE", "/sign-in", "GET, HEAD, POST"),
    ("GET", "/sign-out", "POST"),
    ("HEAD", "/studies/cvd/begin", "POST"),
    ("PURGE", "/style.css", "GET, HEAD"),
]


@pytest.mark.parametrize(("verb", "path", "allowed"), WRONG_VERBS)
def test_a_wrong_verb_at_an_address_is_a_problem_that_says_which_it_takes(web, verb, path, allowed):
    answered = web.request(verb, path, headers={"accept": "text/html"})
    assert (answered.status_code, answered.headers["allow"]) == (405, allowed)
    assert answered.headers["content-type"] == "application/problem+json"
    assert {name: answered.headers[name] for name in HEADERS} == dict(HEADERS)
    if verb == "HEAD":
        assert answered.content == b""
        return
    said = answered.json()
    require_schema(said, "Problem")
    assert (said["status"], said["code"], said["given"]) == (405, "E_USAGE", repr(verb))
    assert allowed in said["next_step"]


@pytest.mark.parametrize(("verb", "path"), [("OPTIONS", "/v2/studies"), ("GET", "/v1/studies/"), ("PURGE", "/none")])
def test_an_address_that_is_none_is_unknown_by_any_verb(web, verb, path):
    answered = web.request(verb, path, follow_redirects=False)
    assert (answered.status_code, answered.json()["status"]) == (404, 404)


def test_roles_hold_here_as_well(stage):
    with stage.web(stage.admit("audrey", role="auditor")) as auditor, stage.web(stage.admit("ann")) as analyst:
        refused = auditor.post("/v1/studies/cvd/queries", json=QUESTION)
        assert (refused.status_code, refused.json()["code"]) == (403, "E_ROLE")
        assert auditor.get("/v1/log/entries").status_code == 200
        assert analyst.get("/v1/log/entries").json()["code"] == "E_ROLE"
        assert analyst.get("/v1/studies/lungs/log").json()["code"] == "E_ACCESS"


def test_a_token_that_was_taken_back_opens_nothing(stage):
    token = stage.admit("gone")
    with stage.web(token) as web:
        assert web.get("/v1/studies").status_code == 200
        stage.analysts.revoke("gone", today=TODAY)
        assert web.get("/v1/studies").status_code == 401


@pytest.mark.parametrize("path", ["/v1/studies", "/v1/openapi.json", "/v9", "/v1", "/v1/problems/E_NONE"])
def test_every_response_tells_a_browser_to_run_nothing_and_keep_nothing(web, path):
    answered = web.get(path)
    assert {name: answered.headers[name] for name in HEADERS} == dict(HEADERS)
    assert "server" not in answered.headers


def test_an_unforeseen_fault_says_nothing_of_itself(stage, web, monkeypatch):
    service = stage.running._analysis.service

    def broken(*_):
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(service, "studies", broken)
    answered = web.get("/v1/studies")
    assert answered.status_code == 500
    assert "secret" not in answered.text
    assert answered.json()["code"] == "E_REFUSED"


def test_an_older_tls_is_not_spoken(stage):
    old = ssl.create_default_context(cadata=stage.authority.ca_pem)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", stage.running.web_port)) as line,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        old.wrap_socket(line, server_hostname="127.0.0.1")


def test_an_address_that_shows_many_wrong_tokens_is_not_heard_for_a_while(tmp_path):
    stage = web_stage(tmp_path / "hub").start(limits=CallLimits(guesses=0.05, strikes=8))
    try:
        seen = []
        for _ in range(4):
            with stage.web("0123456789abcdef.wrong") as guesser:
                seen.append(guesser.get("/v1/studies").status_code)
        assert seen == [401, 429, 429, 429]
    finally:
        stage.running.stop(0.2)
        stage.store.close()


# -- serving --------------------------------------------------------------------------------------------------------
def shown(stage):
    with stage.web() as web:
        return web.get("/v1")


def test_a_certificate_that_was_renewed_is_shown_without_a_restart(tmp_path):
    def certificate(name):
        other = Authority.create(tmp_path / name, coordinator="other-hub", names=("127.0.0.1",))
        made = other.server()
        (tmp_path / "web.pem").write_text(made.cert_pem)
        (tmp_path / "web.key").write_text(made.key_pem)
        return other

    first = certificate("one")
    stage = web_stage(tmp_path / "hub")
    files = {"certificate": f"{tmp_path / 'web.pem'}", "key": f"{tmp_path / 'web.key'}"}
    stage.start(web={**WEB, **files}, analysts="")
    try:
        assert stage.running.analysts_port == 0
        stage.tls = ssl.create_default_context(cadata=first.ca_pem)
        assert shown(stage).json()["api"] == "v1"
        second = certificate("two")
        stage.running._analysis.web.renew()
        stage.tls = ssl.create_default_context(cadata=second.ca_pem)
        assert shown(stage).status_code == 200
        (tmp_path / "web.key").write_text("no key")
        stage.running._analysis.web.renew()  # said in the log; the old one goes on
        assert shown(stage).status_code == 200
    finally:
        stage.running.stop(0.2)
        stage.store.close()


def test_a_certificate_that_cannot_be_used_ends_the_start_and_leaves_nothing_behind(tmp_path):
    stage = web_stage(tmp_path / "hub")
    with pytest.raises(CertificateRefusal, match=r"\[web\]"):
        stage.start(web={**WEB, "certificate": "/none.pem", "key": "/none.key"})
    stage.start().running.stop(0.2)
    stage.store.close()


def test_a_process_of_its_own_answers_over_https_alone(tmp_path):
    stage = web_stage(tmp_path / "hub").start(analysts="", apart=True)
    try:
        with stage.web(stage.admit()) as web:
            assert web.get("/v1/studies").json()["analyst"] == "ada"
    finally:
        stage.running.stop(0.2)
        stage.store.close()


def test_settings_say_where_and_with_which_certificate(tmp_path):
    plain = {"name": "hub", "address": "hub.example.org:8443", "listen": "0.0.0.0:8443", "home": tmp_path}
    config = CoordinatorConfig(**plain, web=WebConfig(address="hub.example.org:8445", certificate="w.pem", key="w.key"))
    assert CoordinatorConfig.from_toml(config.to_toml(), home=tmp_path) == config
    assert config.web_settings["listen"] == "0.0.0.0:8445"
    assert config.web_settings["certificate"] == f"{tmp_path}/w.pem"
    assert config.web_settings["issuer"] == config.web_settings["client_secret"] == ""
    none = CoordinatorConfig(**plain)
    assert CoordinatorConfig.from_toml(none.to_toml(), home=tmp_path).web_settings is None


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("address = 'here'", "web.address must be host:port"),
        ("addres = 'here:1'", "section with an address"),
        ("address = 'here:1'\ncertifcate = 'x'", "Did you mean 'certificate'"),
        ("address = 'here:1'\ncertificate = 'x'", "named together"),
        ("address = 'here:1'\nkey = 7", "must be text"),
        ("address = 'here:1'\nissuer = 'https://id.example.org'", "named together"),
        ("address = 'here:1'\nissuer = 'http://id.example.org'\nclient_id = 'x'", "https address"),
    ],
)
def test_a_mistyped_setting_is_refused_with_its_name(tmp_path, table, words):
    text = CoordinatorConfig(name="hub", address="hub:8443", home=tmp_path).to_toml() + f"[web]\n{table}\n"
    with pytest.raises(ConfigRefusal, match=words):
        CoordinatorConfig.from_toml(text, home=tmp_path)


@pytest.mark.parametrize("module", [openapi, problems, forms])
def test_doctests(module):
    assert doctest.testmod(module).failed == 0
