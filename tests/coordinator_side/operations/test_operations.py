"""What a coordinator shows to machines that watch it: health, readiness, metrics, and its log."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from stage.both_sides.service import Hub
from stage.coordinator_side.collect import plan

from coordinator.config import CoordinatorConfig, LogSettings
from coordinator.operations import metrics
from coordinator.operations.logs import JsonLines
from coordinator.operations.port import Readiness
from shared.errors import ConfigRefusal, NetworkRefusal, Refusal, StorageRefusal
from shared.wire.analyst_messages import StudiesRequest
from shared.wire.door import REQUEST, Decision
from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE, SERVICE
from shared.wire.site_messages import StudyRequest
from shared.wire.transport import SERVER_NAME, Client, Credentials
from tests.stage.house.sources import ROOT

__all__ = ["plan"]  # the fixture
ANY = "127.0.0.1:0"
SHOWN = {
    "tributary_build_info",
    "tributary_site_calls_total",
    "tributary_site_calls_created",
    "tributary_site_call_duration_seconds_bucket",
    "tributary_site_call_duration_seconds_count",
    "tributary_site_call_duration_seconds_sum",
    "tributary_site_call_duration_seconds_created",
    "tributary_analyst_calls_total",
    "tributary_analyst_call_duration_seconds_bucket",
    "tributary_analyst_call_duration_seconds_count",
    "tributary_analyst_call_duration_seconds_sum",
    "tributary_ready",
    "tributary_check_ok",
    "tributary_connections",
    "tributary_calls_in_progress",
    "tributary_disk_free_bytes",
    "tributary_log_entries",
    "tributary_certificate_expiry_timestamp_seconds",
    "tributary_quota_used_ratio",
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
}
"""Every metric that there is. A new one is argued for here: nothing of a record, a site, a study or an analyst."""


def fetched(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def samples(text: str) -> list:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def counted(port: int) -> float:
    return sum(one.value for one in samples(fetched(port, "/metrics")[1]) if one.name == "tributary_site_calls_total")


def values(port: int) -> set[tuple[str, float]]:
    return {(one.name, one.value) for one in samples(fetched(port, "/metrics")[1])}


RULES = ROOT / "deploy" / "containers" / "prometheus-rules.yaml"


def test_each_alert_rests_on_metrics_labels_and_limits_that_there_are():
    from coordinator.services import authority, health
    from coordinator.services.quotas import ALARM

    [group] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = {one["alert"]: one for one in group["rules"]}
    used = {name for one in rules.values() for name in re.findall(r"\b(?:tributary|process)_\w+|\bup\b", one["expr"])}
    assert used - {"up"} <= SHOWN
    for one in rules.values():
        for label, asked in re.findall(r'(\w+)=~?"([^"]*)"', one["expr"]):
            if label != "job":
                assert set(asked.split("|")) <= metrics.LABELS[label], one["alert"]
        shown = re.findall(r"\$labels\.(\w+)", one["annotations"]["summary"])
        assert set(shown) <= set(metrics.LABELS)
        assert one["annotations"]["next"]
    assert rules["TributaryDiskFull"]["expr"].endswith(f"< {health.TOO_LITTLE_SPACE}")
    assert f"< {authority.WARNED_BEFORE_END} * 86400" in rules["TributaryAuthorityEnds"]["expr"]
    assert rules["TributaryQuotaNear"]["expr"].endswith(f"> {ALARM}")
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(?m)^\| `(Tributary\w+)` \|", page)) == set(rules)
    scraped = yaml.safe_load(RULES.with_name("prometheus.yaml").read_text(encoding="utf-8"))
    assert {f'job="{one["job_name"]}"' for one in scraped["scrape_configs"]} == {
        one for rule in rules.values() for one in re.findall(r'job="[^"]*"', rule["expr"])
    }
    [mounted] = scraped["rule_files"]
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    assert f"./containers/{RULES.name}:{mounted}:ro" in compose["services"]["prometheus"]["volumes"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_prometheus_reads_the_alerts(tmp_path):
    (tmp_path / RULES.name).write_text(RULES.read_text(encoding="utf-8"))
    (tmp_path / "test.yaml").write_text(RULES_TRIED)
    for words in (("check", "rules", RULES.name), ("test", "rules", "test.yaml")):
        said = subprocess.run(["promtool", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert said.returncode == 0, said.stdout + said.stderr


RULES_TRIED = """
rule_files: [prometheus-rules.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'tributary_site_calls_total{method="Offer",code="E_INTEGRITY"}', values: '_x5 1x60'}
      - {series: 'tributary_analyst_calls_total{method="other",code="E_REFUSED"}', values: '3x60'}
      - {series: 'tributary_check_ok{check="store"}', values: '1x10 0x60'}
    promql_expr_test:
      - expr: count(ALERTS{alertname="TributaryIntegrity", code="E_INTEGRITY", alertstate="firing"})
        eval_time: 7m
        exp_samples: [{labels: '{}', value: 1}]
      - {expr: 'ALERTS{alertname="TributaryIntegrity"}', eval_time: 40m, exp_samples: []}
      - {expr: 'ALERTS{alertname="TributaryStoreAway"}', eval_time: 9m, exp_samples: []}
      - expr: count(ALERTS{alertname=~"TributaryStoreAway|TributaryNotReady", alertstate="firing"})
        eval_time: 15m
        exp_samples: [{labels: '{}', value: 2}]
"""
"""A first wrong call is told, one that lies long back is not; a database that is away, and nobody who is ready."""


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def stranger(hub: Hub, address: str) -> Client:
    shown = Credentials(ca_pem=hub.authority.ca_pem, token="nobody's")
    return Client(
        address=address, server_name=SERVER_NAME, credentials=shown, service=ANALYSIS_SERVICE, methods=ANALYSIS
    )


def soon(holds, seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def health(port: int, service: str = "") -> int:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        asked = health_pb2.HealthCheckRequest(service=service)
        return health_pb2_grpc.HealthStub(channel).Check(asked, timeout=20).status


def test_metrics_name_methods_and_codes_and_nothing_that_a_site_or_a_study_has_said(tmp_path, plan):
    hub = Hub(tmp_path, plan, "north-ward-7")
    with hub.serve(health=ANY, health_grpc=ANY) as server, hub.client("north-ward-7") as client:
        client.call("Status", StudyRequest(study=plan.study), timeout=20)
        for study in ("canary-4711", "canary-4712"):
            with pytest.raises(Refusal):
                client.call("FetchPlan", StudyRequest(study=study), timeout=20)
        assert soon(lambda: counted(server.monitor.port) == 3), "a call is counted once its answer is on its way"
        code, text = fetched(server.monitor.port, "/metrics")
    assert code == 200
    found = samples(text)
    assert {sample.name for sample in found} <= SHOWN
    for sample in found:
        for label, value in sample.labels.items():
            if label == "le":
                assert value == "+Inf" or float(value) in metrics.SECONDS
            elif label == "version":
                assert re.fullmatch(r"[0-9a-z.+]{1,40}|unknown", value)
            else:
                assert value in metrics.LABELS[label]
    values = {(sample.name, *sorted(sample.labels.values())): sample.value for sample in found}
    assert values["tributary_site_calls_total", "Status", "ok"] == 1
    assert sum(n for (name, *labels), n in values.items() if "FetchPlan" in labels and name.endswith("_total")) == 2
    assert values["tributary_ready",] == 1
    assert values["tributary_log_entries",] == hub.store.entries()
    for word in ("north", "canary", plan.study, f"{tmp_path}"):
        assert word not in text


def test_a_word_that_is_not_on_a_labels_list_becomes_other():
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    counted = metrics.CallMetrics("site", registry)
    counted.observe(Decision(method="/etc/passwd", code="3 persons", seconds=0.1))
    text, _ = metrics.exposition(registry, "")
    assert b'tributary_site_calls_total{code="other",method="other"} 1.0' in text
    assert b"passwd" not in text
    assert b"persons" not in text


def test_a_coordinator_is_ready_until_it_is_told_to_end_and_alive_until_it_has(tmp_path, plan):
    hub = Hub(tmp_path, plan, "north")
    with hub.serve(health=ANY, health_grpc=ANY, analysts=ANY) as server:
        port, grpc_port = server.monitor.port, server.monitor.grpc_port
        assert fetched(port, "/healthz") == (200, '{"alive":true}')
        assert fetched(port, "/readyz")[0] == 200
        serving = health_pb2.HealthCheckResponse.SERVING
        assert [health(grpc_port, name) for name in ("", SERVICE, ANALYSIS_SERVICE)] == 3 * [serving]
        with pytest.raises(grpc.RpcError) as unknown:
            health(grpc_port, "north")
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        server.drain()
        code, text = fetched(port, "/readyz")
        assert (code, json.loads(text)["checks"]["serving"]) == (503, "draining")
        assert fetched(port, "/healthz")[0] == 200
        assert health(grpc_port) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert {s.value for s in samples(fetched(port, "/metrics")[1]) if s.name == "tributary_ready"} == {0.0}
        with hub.client("north") as client:  # who has not noticed is answered
            client.call("Status", StudyRequest(study=plan.study), timeout=20)
    with pytest.raises(urllib.error.URLError):
        fetched(port, "/healthz")


def test_a_store_that_fails_or_hangs_makes_a_coordinator_unready_and_is_named_by_its_code_alone(monkeypatch):
    monkeypatch.setattr("coordinator.operations.port.LOOK", 0.01)
    heard, well, hanging = [], threading.Event(), threading.Event()
    well.set()

    def store() -> None:
        if blocked:
            hanging.wait()
        if not well.is_set():
            raise StorageRefusal("the database must be readable", given="north.csv")

    blocked = False
    readiness = Readiness({"store": store}, heard.append)
    try:
        assert readiness.ready
        well.clear()
        assert soon(lambda: heard == [True, False])
        assert readiness.checks == {"serving": "ok", "store": "E_STORAGE"}
        well.set()
        assert soon(lambda: heard == [True, False, True])
        blocked = True
        monkeypatch.setattr("coordinator.operations.port.STALE", 0.05)
        assert soon(lambda: readiness.checks["store"] == "late")
        assert not readiness.ready
    finally:
        hanging.set()
        readiness.close()


@pytest.mark.parametrize("key", ["health", "health_grpc"])
def test_a_port_that_is_taken_is_a_refusal_and_leaves_the_home_free(tmp_path, plan, key):
    hub = Hub(tmp_path, plan, "north")
    with hub.serve(health=ANY) as server:
        taken = f"127.0.0.1:{server.port}"
        home = tmp_path / "other"
        other = Hub(home, plan, "north")
        with pytest.raises(NetworkRefusal, match="port"):
            other.serve(**{key: taken})
    with other.serve():
        pass


def test_nothing_is_opened_where_the_settings_name_no_port(tmp_path, plan):
    with Hub(tmp_path, plan, "north").serve() as server:
        assert server.monitor is None


# -- the log ----------------------------------------------------------------------------------------------------------
def test_every_line_of_a_call_has_its_request_and_the_last_says_what_became_of_it(tmp_path, plan, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    hub = Hub(tmp_path, plan, "north")
    form, lines = JsonLines(), []
    monkeypatch.setattr(caplog.handler, "emit", lambda record: lines.append(json.loads(form.format(record))))
    with hub.serve() as server, hub.client("north") as client:
        require = server.service._members.require_known

        def spoken(site, study):
            logging.getLogger("tributary.collect").warning("in the middle of it")
            return require(site, study)

        monkeypatch.setattr(server.service._members, "require_known", spoken)
        for _ in range(2):
            client.call("Status", StudyRequest(study=plan.study), timeout=20)
        monkeypatch.setattr(server.service._members, "require_known", lambda site, study: 1 / 0)
        with pytest.raises(Refusal) as caught:
            client.call("Status", StudyRequest(study=plan.study), timeout=20)
    middle = [line for line in lines if line["message"] == "in the middle of it"]
    ended = [line for line in lines if line.get("method") == "Status"]
    assert [line["request"] for line in middle] == [line["request"] for line in ended[:2]]
    assert len({line["request"] for line in ended}) == 3
    assert {key: ended[0][key] for key in ("level", "peer", "code", "digest")} == {
        "level": "info",
        "peer": "north",
        "code": "ok",
        "digest": "",
    }
    assert ended[0]["seconds"] >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", ended[0]["time"])
    assert ended[2]["code"] == "E_REFUSED"
    assert ended[2]["request"] in str(caught.value), "the lead is asked to look for it"
    assert REQUEST.get() == ""


def test_an_exception_is_named_in_a_line_and_nothing_it_says():
    try:
        raise ValueError("north.csv: 187.25")
    except ValueError:
        line = logging.LogRecord("x", logging.ERROR, "", 0, "it broke", (), sys.exc_info())
    said = json.loads(JsonLines().format(line))
    assert (said["error"], said["level"]) == ("ValueError", "error")
    assert "187" not in json.dumps(said)


@pytest.mark.parametrize(
    "text",
    ['[logging]\nformat = "xml"', '[logging]\nlevel = "all"', "[logging]\nfile = 3", '[logging]\nformt = "json"'],
)
def test_a_setting_of_the_log_that_nobody_knows_is_refused(tmp_path, text):
    with pytest.raises(ConfigRefusal, match="logging"):
        CoordinatorConfig.from_toml(f'name = "hub"\naddress = "h:1"\n{text}\n', home=tmp_path)


def served(home, *options: str) -> subprocess.Popen:
    argv = [sys.executable, "-m", "coordinator.cli", "--home", f"{home}", "serve", "--address", ANY, *options]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_told_to_end_it_is_first_unready_then_lets_calls_end_and_its_log_may_be_turned_over(tmp_path, plan):
    """The command itself, with its analysts' process: JSON in a file that is moved away meanwhile, drain, exit 0."""
    hub = Hub(tmp_path / "home", plan, "north")
    log = tmp_path / "log.jsonl"
    config = CoordinatorConfig(
        home=hub.home,
        name=plan.coordinator,
        address="127.0.0.1:8443",
        names=("127.0.0.1",),
        analysts=free_address(),
        listen=ANY,
        health=ANY,
        drain_seconds=1,
        logging=LogSettings(format="json", file=f"{log}"),
    )
    (hub.home / "coordinator.toml").write_text(config.to_toml())
    assert CoordinatorConfig.load(hub.home) == replace(config, home=hub.home)
    server = served(hub.home)
    try:
        hub.port = int(re.search(r"answers on 127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
        analysts = server.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
        assert "analysts" in analysts
        with hub.client("north") as client:
            client.call("Status", StudyRequest(study=plan.study), timeout=20)
            os.rename(log, tmp_path / "log.1")
            client.call("Status", StudyRequest(study=plan.study), timeout=20)
            # A call that the signal finds in the middle: its message comes only once the service is unready.
            gate = threading.Event()

            def chunks():
                gate.wait(20)
                return
                yield

            outcome: list[Refusal] = []

            def upload() -> None:
                try:
                    client.call("Upload", chunks(), timeout=20)
                except Refusal as refusal:
                    outcome.append(refusal)

            running = threading.Thread(target=upload)
            running.start()
            with stranger(hub, config.analysts) as asking, pytest.raises(Refusal):
                asking.call("Studies", StudiesRequest(), timeout=20)
            assert soon(lambda: ("tributary_calls_in_progress", 1.0) in values(port))
            assert ("tributary_analyst_calls_total", 1.0) in values(port), "counted by the other process"
            server.send_signal(signal.SIGTERM)
            assert soon(lambda: fetched(port, "/readyz")[0] == 503)
            gate.set()
            running.join(20)
        assert [refusal.code for refusal in outcome] == ["E_INTEGRITY"], "its own answer, not a broken line"
        rest, errors = server.communicate(timeout=60)
    finally:
        server.kill()
        server.wait()
    assert (server.returncode, rest, errors) == (0, "", "")
    before, after = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in ("log.1", log)
    )
    assert [line["method"] for line in before if "method" in line] == ["Status"]
    assert [line["method"] for line in after if "method" in line] == ["Status", "Upload"]
    assert any("not ready: serving draining" in line["message"] for line in after)


def test_the_operators_page_names_every_metric_and_every_check():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    stems = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in SHOWN if not name.startswith("process_")}
    missing = {name for name in stems if name not in page and f"{name}_total" not in page}
    assert missing == set()
    assert all(f"`{name}`" in page for name in metrics.LABELS["check"] - {"other"})
    prometheus = (ROOT / "deploy" / "containers" / "prometheus.yaml").read_text(encoding="utf-8")
    (job,) = re.findall(r"job_name: (\S+)", prometheus)
    ended = f'up{{job="{job}"}} == 0 or absent(tributary_ready)'
    assert f"`tributary_ready == 0 or {ended}`" in page
