"""The service units: what they run exists, how far they are shut, and that the software lives behind it."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

import coordinator.cli
import site_agent.cli
from shared.errors import ConfigRefusal, StateRefusal, StorageRefusal
from tests.stage.house.sources import ROOT

UNITS = ROOT / "deploy" / "systemd"
SERVICES = ("tributary-site.service", "tributary-coordinator.service")
BACKUPS = ("tributary-site-backup.service", "tributary-coordinator-backup.service")
TIMED = ("tributary-site.service", *BACKUPS, "tributary-coordinator-log-verify.service")
EVERY = tuple(dict.fromkeys((*SERVICES, *TIMED)))
PROGRAMS = {"site-agent": site_agent.cli.app, "coordinator": coordinator.cli.app}


def unit(name: str) -> configparser.ConfigParser:
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str
    read.read(UNITS / name)
    return read


def test_every_unit_of_the_folder_is_looked_at_here():
    assert {path.name for path in UNITS.glob("*.service")} == set(EVERY)
    assert {path.stem for path in UNITS.glob("*.timer")} == {name.removesuffix(".service") for name in TIMED}


@pytest.mark.parametrize("name", EVERY)
def test_a_unit_runs_a_verb_that_is_there(name):
    started = unit(name)["Service"]["ExecStart"].removeprefix("/bin/sh -c 'exec ").partition(' "')[0]
    program, *words = started.split()
    context = verb = typer.main.get_command(PROGRAMS[program.rpartition("/")[2]])
    for word in (word for word in words if not word.startswith(("-", "/"))):
        verb = verb.commands[word]
    known = {option for one in (*context.params, *verb.params) for option in one.opts}
    assert {word for word in words if word.startswith("-")} <= known


def run_line(line: str, user: str, folder: Path) -> None:
    """Run a unit's line as systemd does, but for its specifiers, with `folder` in the state folder's place."""
    words = shlex.split(
        line.removeprefix("-").replace("%%", "%").replace("$$", "$").replace(f"/var/lib/{user}", f"{folder}")
    )
    words = [re.sub(r"/opt/tributary/bin/[\w-]+", f"{folder}/program", word) for word in words]
    subprocess.run(words, check=True)


@pytest.mark.parametrize("name", BACKUPS)
def test_backups_that_fail_each_night_fill_no_disk_and_leave_the_newest(name, tmp_path):
    user = unit(name)["Service"]["User"]
    lines = re.findall(r"(?m)^ExecStartPre=(.*)$", (UNITS / name).read_text(encoding="utf-8"))
    role, kept = user.removeprefix("tributary-"), tmp_path / "backups"
    kept.mkdir()
    for age, made in ((30, "a.backup"), (20, "b.backup"), (1, "c.backup.part"), (0, "d.backup.part")):
        (kept / f"{role}-{made}").touch()
        os.utime(kept / f"{role}-{made}", (time.time() - 86_400 * age,) * 2)
    for line in lines:
        run_line(line, user, tmp_path)
    assert {path.name for path in kept.iterdir()} == {f"{role}-b.backup", f"{role}-d.backup.part"}


@pytest.mark.parametrize("name", BACKUPS)
def test_a_backup_is_a_new_file_each_time_and_what_is_old_goes_after_it(name, tmp_path):
    """As systemd has the lines run, but for its specifiers; the program writes what it was given."""
    service = unit(name)["Service"]
    kept = tmp_path / "backups"
    kept.mkdir()
    (tmp_path / "program").write_text('#!/bin/sh\nfor one; do last=$one; done\necho "$@" > "$last"\n')
    (tmp_path / "program").chmod(0o755)
    role = service["User"].removeprefix("tributary-")
    for age, made in ((20, f"{role}-old.backup"), (10, f"{role}-newer.backup"), (20, "by-hand.backup")):
        (kept / made).touch()
        os.utime(kept / made, (time.time() - 86_400 * age,) * 2)
    for line in (service["ExecStart"], service["ExecStartPost"]):
        run_line(line, service["User"], tmp_path)
    [new] = {path.name for path in kept.iterdir()} - {f"{role}-newer.backup", "by-hand.backup"}
    assert re.fullmatch(role + r"-\d{8}T\d{6}Z\.backup", new)
    assert "backup" in (kept / new).read_text().split()
    assert service["StateDirectory"] == f"{service['User']} {service['User']}/backups"


@pytest.mark.parametrize("name", TIMED)
def test_what_a_timer_starts_has_the_secret_and_the_shutting_of_its_roles_service(name):
    """So that the keys open, and that nothing is let in by a door that the service itself has shut."""
    mine = (UNITS / name).read_text(encoding="utf-8").splitlines()
    role = f"{unit(name)['Service']['User']}.service"
    for line in (UNITS / role).read_text(encoding="utf-8").partition("[Service]\n")[2].splitlines():
        name_of, _, value = line.partition("=")
        freer = {"ExecStart", "Type", "IPAddressDeny", "LimitNOFILE", "TasksMax", "TimeoutStopSec", "WantedBy"}
        freer |= {"LogsDirectory", "LogsDirectoryMode", "WorkingDirectory", "Restart", "RestartSec", "StateDirectory"}
        if not value or name_of in freer | {"RestartPreventExitStatus"}:
            continue
        narrower = name_of == "RestrictAddressFamilies" and "PrivateNetwork=yes" in mine
        assert line in mine or narrower, line
    assert (UNITS / name).with_suffix(".timer").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_reads_every_unit_and_timer(tmp_path):
    for path in (*UNITS.glob("*.service"), *UNITS.glob("*.timer")):
        text = re.sub(r"/opt/tributary/bin/[\w-]+", "/bin/true", path.read_text(encoding="utf-8"))
        (tmp_path / path.name).write_text(text)
    ran = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    said = subprocess.run(
        ran, capture_output=True, text=True, timeout=60, env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    )
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_a_unit_is_shut_to_two_of_ten(name):
    ran = ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=20", str(UNITS / name)]
    said = subprocess.run(ran, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stdout + said.stderr
    assert float(re.search(r"exposure level for \S+: ([\d.]+)", said.stdout)[1]) <= 2.0


@pytest.mark.parametrize(("name", "variable"), list(zip(SERVICES, ("SITE", "COORDINATOR"), strict=True)))
def test_what_a_person_types_runs_as_the_service_does(name, variable):
    """Else the keys that a service has encrypted open for it alone, and the agent's runs for seconds in an hour."""
    service = unit(name)["Service"]
    text = (UNITS / "tributary-as").read_text(encoding="utf-8")
    assert subprocess.run(["sh", "-n", UNITS / "tributary-as"]).returncode == 0
    program, home = service["ExecStart"].split()[0].rpartition("/")[2], f"/var/lib/{service['User']}/home"
    assert f"  {program}) user={service['User']} home=TRIBUTARY_{variable}_HOME ;;" in text
    assert service["StateDirectory"] == service["User"]
    assert home in (UNITS / name).read_text(encoding="utf-8")
    assert '--setenv="$home=/var/lib/$user/home"' in text
    assert service["LoadCredentialEncrypted"] == f"{service['User']}-keys"
    assert '--property=LoadCredentialEncrypted="$user-keys" --property=EnvironmentFile="-/etc/$user.env"' in text
    assert service["EnvironmentFile"] == f"-/etc/{service['User']}.env"
    assert f"Environment=TRIBUTARY_KEY_FILE=%d/{service['User']}-keys" in (UNITS / name).read_text(encoding="utf-8")
    asked = subprocess.run([UNITS / "tributary-as", "sh"], capture_output=True, text=True)
    assert (asked.returncode, asked.stdout) == (2, "")


def test_the_log_of_the_page_lies_where_the_unit_lets_it_be_written():
    service = unit("tributary-coordinator.service")["Service"]
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^(/var/log/\S+)/[^/ ]+ \{$", page) == [f"/var/log/{service['LogsDirectory']}"]


def test_the_page_makes_the_folder_of_the_secret_before_it_writes_there():
    """Debian 12 has none."""
    page = (UNITS / "README.md").read_text(encoding="utf-8")
    assert 0 < page.index("mkdir -p -m 700 /etc/credstore.encrypted\n") < page.index("systemd-creds encrypt")


def test_a_command_gets_the_secret_of_its_role_and_its_own_words(tmp_path):
    """By a `systemd-run` that only runs what it is to run; the program it ends in is a shell script beside it."""
    there = tmp_path / "bin"
    there.mkdir()
    script = (UNITS / "tributary-as").read_text(encoding="utf-8").replace("/opt/tributary/bin/", f"{there}/")
    (tmp_path / "as").write_text(script)
    (there / "systemd-run").write_text('#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\nexec "$@"\n')
    (there / "coordinator").write_text('#!/bin/sh\necho "$TRIBUTARY_KEY_FILE" "$#" "$@"\n')
    for name in ("systemd-run", "coordinator"):
        (there / name).chmod(0o755)
    env = {"PATH": f"{there}:/usr/bin:/bin", "CREDENTIALS_DIRECTORY": "/run/secret"}
    said = subprocess.run(
        ["sh", tmp_path / "as", "coordinator", "accept", "a b"], env=env, capture_output=True, text=True
    )
    assert said.stdout == "/run/secret/tributary-coordinator-keys 2 accept a b\n", said.stderr


def test_a_refusal_that_no_start_mends_is_not_tried_for_ever():
    service = unit("tributary-coordinator.service")["Service"]
    assert {ConfigRefusal.exit_code, StateRefusal.exit_code} == {int(service["RestartPreventExitStatus"])}
    assert StorageRefusal.exit_code != ConfigRefusal.exit_code, "a database server that is away comes back"


@pytest.mark.parametrize("page", [UNITS / "README.md", ROOT / "docs" / "operators-manual.md"])
def test_a_secret_is_shown_before_it_is_encrypted_and_never_replaced(page, tmp_path):
    """Both roles on one machine: the second must not take the first one's secret, and what is pasted twice neither."""
    text = page.read_text(encoding="utf-8")
    (lines,) = re.findall(r"(?ms)^keys=(?:tributary-site|tributary-coordinator)-keys\n\[.*?unset secret\n", text)
    there = tmp_path / "bin"
    there.mkdir()
    (there / "systemd-creds").write_text('#!/bin/sh\ncat > "$4"\n')
    (there / "systemd-creds").chmod(0o755)
    ran = ["sh", "-c", lines.replace("/etc/credstore.encrypted", f"{tmp_path}")]
    env = {"PATH": f"{there}:/usr/bin:/bin"}
    first, second = (subprocess.run(ran, env=env, capture_output=True, text=True).stdout for _ in range(2))
    (made,) = tmp_path.glob("tributary-*-keys")
    assert (first, second) == (f"for the safe: {made.read_text()}", "")
    assert len(made.read_text().strip()) == 64


def test_no_secret_of_the_containers_is_kept_by_git_or_sent_to_a_build():
    page = (ROOT / "deploy" / "containers" / "README.md").read_text(encoding="utf-8")
    assert "mkdir -m 700 deploy/secrets" in page
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    sent = [line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    copied = re.findall(r"(?m)^COPY (?!--)(\S+) ", (ROOT / "deploy/containers/Containerfile").read_text())
    assert sent == ["*", *(f"!{one}" for one in copied)]


DENIED = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, as MemoryDenyWriteExecute= asks
    sys.exit(77)
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
except PermissionError:
    print("denied")
import numpy as np
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from site_agent.models.flow import FlowSettings, fit_flow
import grpc, pyarrow.parquet, scipy.optimize
key = SigningKey.generate()
assert key.public.verifies(key.sign(b"text"), b"text")
fit_flow(np.random.default_rng(1).gamma(2.0, size=(80, 2)), FlowSettings(flows=2, hidden=8, epochs=2), seeded_rng(1))
grpc.insecure_channel("localhost:1").close()
print("lives")
"""


def test_no_page_of_memory_need_be_written_and_run():
    said = subprocess.run([sys.executable, "-c", DENIED], cwd=ROOT, capture_output=True, text=True)
    if said.returncode == 77:
        pytest.skip("the kernel has no such switch")
    assert said.stdout.split() == ["denied", "lives"], said.stderr[-2000:]
