"""Images and manifests: they parse, name what exists, run verbs that are there, and nobody is root."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer
import yaml

import coordinator.cli
import site_agent.cli
from coordinator.config import CoordinatorConfig
from tests.stage.house.sources import ROOT

DEPLOY = ROOT / "deploy"
PROGRAMS = {"site": site_agent.cli.app, "coordinator": coordinator.cli.app}
CONTAINERFILE = (DEPLOY / "containers" / "Containerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
CLUSTER = {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes" / "coordinator.yaml").read_text())}
POD = CLUSTER["Deployment"]["spec"]["template"]["spec"]


def stages() -> dict[str, str]:
    parts = re.split(r"(?m)^FROM (\S+) AS (\w+)\n", CONTAINERFILE)[1:]
    return {name: f"FROM {base}\n{text}" for base, name, text in zip(*[iter(parts)] * 3, strict=True)}


def require_verb(role: str, words: list[str]) -> None:
    context = typer.main.get_command(PROGRAMS[role])
    verb = context.commands[words[0]]
    known = {option for one in verb.params for option in one.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("role", PROGRAMS)
def test_an_image_runs_a_verb_that_is_there_as_nobody_in_particular_and_is_looked_after(role):
    found = stages()
    require_verb(role, re.findall(r'"([^"]+)"', re.search(r"(?m)^CMD (\[.*\])", found[role])[1]))
    assert re.search(r"(?m)^HEALTHCHECK ", found[role])
    assert re.search(r"(?m)^USER (.*)$", found["runtime"])[1] == "10001:10001"
    assert "USER" not in found[role], "it is the one of the stage before"
    home = {"site": "TRIBUTARY_SITE_HOME", "coordinator": "TRIBUTARY_COORDINATOR_HOME"}[role]
    assert f"{home}=/state/home" in found[role]


def test_the_images_are_made_of_the_folder_of_wheels_and_of_no_index():
    assert "--no-index --require-hashes" in CONTAINERFILE
    assert re.findall(r"(?m)^COPY (?!--from)(\S+)", CONTAINERFILE) == ["build/wheelhouse"]
    targets = set(re.findall(r"--target (\w+)", CONTAINERFILE))
    assert targets == set(PROGRAMS)
    assert targets <= set(stages())


def test_what_libraries_test_themselves_with_is_left_out_of_both_kinds_of_image():
    [line] = re.findall(r"(?m)^ && (find .*)$", CONTAINERFILE)
    root = (DEPLOY / "containers" / "root.sh").read_text(encoding="utf-8")
    assert f"\n{line.replace('/opt/tributary', chr(34) + '$out/opt/tributary' + chr(34))}\n" in root


@pytest.mark.parametrize("path", ["compose.yaml", "flower/compose.yaml"])
def test_a_compose_file_names_what_exists_and_no_service_of_it_is_root_or_writes_its_root(path):
    read = yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))
    folder = (DEPLOY / path).parent
    for name, service in read["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert int(str(service["user"]).partition(":")[0]) > 0, name
        if "build" in service:
            made = service["build"]
            assert (folder / made["context"] / made["dockerfile"]).is_file()
            assert made["target"] in stages()
        else:
            assert re.search(r":[\w.-]*\d", service["image"]), f"{name}: a version, not whatever is newest"
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).partition(":")[0]
            assert source in read["volumes"] or source.startswith("./"), volume
        assert set(service.get("secrets", [])) <= set(read.get("secrets", {}))
        if isinstance(service.get("networks"), list):
            assert set(service["networks"]) <= set(read["networks"])


def test_the_coordinators_compose_file_runs_a_verb_and_shows_its_health_to_the_scraper_alone():
    service = COMPOSE["services"]["coordinator"]
    require_verb("coordinator", service["command"])
    shown = [port.split(":")[-1] for port in service["ports"]]
    assert shown == ["8443", "8444", "8445"]
    scraped = yaml.safe_load((DEPLOY / "containers" / "prometheus.yaml").read_text())["scrape_configs"]
    assert scraped[0]["static_configs"][0]["targets"] == ["coordinator:9464"]
    assert service["command"][-1].endswith(":9464")
    assert COMPOSE["networks"]["watch"] == {"internal": True}
    mounted = COMPOSE["services"]["prometheus"]["volumes"][0].split(":")[0]
    assert (DEPLOY / mounted).is_file()


def test_a_pod_is_not_root_writes_no_root_and_is_asked_where_it_answers():
    [container] = POD["containers"]
    require_verb("coordinator", container["args"])
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["runAsUser"] == 10001
    assert POD["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", "else the group may read the keys"
    assert POD["automountServiceAccountToken"] is False
    shut = container["securityContext"]
    assert (shut["readOnlyRootFilesystem"], shut["allowPrivilegeEscalation"]) == (True, False)
    assert shut["capabilities"] == {"drop": ["ALL"]}
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert container["args"][-1] == f"0.0.0.0:{ports['health']}"
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "health"}
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in POD["volumes"]}
    assert {one["targetPort"] for one in CLUSTER["Service"]["spec"]["ports"]} == {"sites", "analysts", "browsers"}
    label = CLUSTER["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert CLUSTER["Service"]["spec"]["selector"] == label
    assert CLUSTER["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": label}
    claim = next(one["persistentVolumeClaim"] for one in POD["volumes"] if "persistentVolumeClaim" in one)
    assert claim["claimName"] == CLUSTER["PersistentVolumeClaim"]["metadata"]["name"]
    page = (DEPLOY / "containers" / "README.md").read_text(encoding="utf-8")
    secrets = {"tributary-store", "tributary-keys"}
    assert all(f"secret generic {name}" in page for name in secrets)
    assert set(re.findall(r"(?:secretKeyRef: \{name: |secretName: )([\w-]+)", yaml_text())) == secrets
    defaults = CoordinatorConfig(home=ROOT, name="hub", address="h:1")
    assert POD["terminationGracePeriodSeconds"] >= defaults.drain_seconds + defaults.grace_seconds + 60


def test_a_job_makes_the_home_where_the_pods_look_for_it_and_as_shut_as_they_are():
    job = yaml.safe_load((DEPLOY / "kubernetes" / "init.yaml").read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    [made], [served] = job["containers"], POD["containers"]
    verb, *options = made["args"]
    require_verb("coordinator", [verb, *(word.partition("=")[0] for word in options)])
    for key in ("securityContext", "volumes", "serviceAccountName", "automountServiceAccountToken"):
        assert job[key] == POD[key], key
    for key in ("image", "env", "securityContext", "volumeMounts"):
        assert made[key] == served[key], key
    ports = {
        word.rpartition(":")[2] for word in options if word.partition("=")[0] in ("--address", "--analysts", "--web")
    }
    assert ports == {f"{one['containerPort']}" for one in served["ports"] if one["name"] != "health"}


def test_the_pages_first_command_of_compose_opens_every_port_that_is_shown():
    page = (DEPLOY / "containers" / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    [words] = re.findall(r"run --rm coordinator (init .*)", page)
    require_verb("coordinator", words.split())
    [of_the_agent] = re.findall(r"tributary-site (init .*)", page)
    require_verb("site", of_the_agent.split())
    shown = [port.partition(":")[0] for port in COMPOSE["services"]["coordinator"]["ports"]]
    assert re.findall(r":(\d+)", words) == shown


def yaml_text() -> str:
    return (DEPLOY / "kubernetes" / "coordinator.yaml").read_text(encoding="utf-8")


def test_every_variable_that_they_set_is_read_somewhere():
    texts = [CONTAINERFILE, yaml_text(), (DEPLOY / "compose.yaml").read_text(encoding="utf-8")]
    named = set(re.findall(r"TRIBUTARY_\w+", "".join(texts)))
    code = "".join(
        path.read_text(encoding="utf-8")
        for one in ("coordinator", "shared", "site_agent")
        for path in (ROOT / one).rglob("*.py")
    )
    assert {name for name in named if f'"{name}"' not in code} == set()


@pytest.mark.parametrize("script", ["root.sh", "try.sh", "walk.sh"])
def test_the_scripts_can_be_read_by_a_plain_shell(script):
    assert subprocess.run(["sh", "-n", DEPLOY / "containers" / script]).returncode == 0
    assert sys.platform != "win32"
