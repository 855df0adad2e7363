"""The service units: what they run exists, how far they are shut, and that the software lives behind it."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys

import pytest
import typer

import coordinator.cli
import site_agent.cli
from tests.sources import ROOT

UNITS = ROOT / "deploy" / "systemd"
SERVICES = ("tributary-site.service", "tributary-coordinator.service")
PROGRAMS = {"site-agent": site_agent.cli.app, "coordinator": coordinator.cli.app}


def unit(name: str) -> configparser.ConfigParser:
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str
    read.read(UNITS / name)
    return read


@pytest.mark.parametrize("name", SERVICES)
def test_a_unit_runs_a_verb_that_is_there(name):
    program, *words = unit(name)["Service"]["ExecStart"].split()
    context = typer.main.get_command(PROGRAMS[program.rpartition("/")[2]])
    given = [word for word in words if not word.startswith(("-", "/"))]
    verb = context.commands[given[0]]
    known = {option for one in (*context.params, *verb.params) for option in one.opts}
    assert {word for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_a_unit_is_shut_to_two_of_ten(name):
    ran = ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=20", str(UNITS / name)]
    said = subprocess.run(ran, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stdout + said.stderr
    assert float(re.search(r"exposure level for \S+: ([\d.]+)", said.stdout)[1]) <= 2.0


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
