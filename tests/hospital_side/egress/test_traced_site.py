"""What a hospital's agent opens, and whom it dials, during a release and its delivery: as the kernel was asked.

The agent's own process runs under strace, without any privilege, with the folder of its table mounted read-only.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from stage.both_sides.joined import PASSPHRASE, Joined
from stage.both_sides.service import small_table
from stage.hospital_side.recovery import PLAN

from shared.mechanisms.tables.plan import TablesPlan
from tests.stage.house.sources import ROOT

TABLES = dataclasses.replace(PLAN, release=TablesPlan(epsilon=2.0), posture="private")
RELEASING = """
import json, sys
from shared.terminal import run
from site_agent import cli
home = sys.argv[1]
def said(*argv):
    assert run(cli.app, name="site-agent", argv=[*argv, "--home", home, "--json"]) == 0, argv
said("release", "mini", "--wave", "1")
from site_agent.desk import Desk
from pathlib import Path
[release] = Desk(Path(home)).ledger.holds("mini")
said("approve", release.release_id, "--as", "dr-lind")
"""
SYSTEM = (
    "/usr/lib/",
    "/lib/",
    "/lib64/",
    "/usr/local/lib/",
    "/usr/share/zoneinfo",
    "/usr/share/locale",
    "/proc/",
    "/sys/",
)
"""Shared libraries, zones and what the kernel says of the process and the machine: read, never written."""
ALSO = {"/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/resolv.conf", "/etc/hosts"}
ALSO |= {"/dev/null", "/dev/urandom", "/dev/tty", "/etc/gai.conf", "/etc/passwd", "/etc/ssl/openssl.cnf"}


@dataclass(frozen=True)
class Trace:
    """What one run asked of the kernel, and was given."""

    opened: frozenset[str]
    written: frozenset[str]
    dialled: frozenset[tuple[str, str]]
    others: frozenset[str]

    @classmethod
    def read(cls, path: Path, folder: Path) -> Trace:
        """Read strace's output; relative paths are of `folder`."""
        opened, written, dialled, others = set(), set(), set(), set()
        for line in path.read_text(errors="replace").splitlines():
            found = re.match(r"(\w+)\((.*)\)\s+= (-?\d+)", line)
            if (
                found is None
            ):  # an exit, a signal, or a call that another thread's line cuts in two: joined by strace -ff
                continue
            call, given, result = found.groups()
            if call in ("open", "openat", "openat2", "creat") and int(result) >= 0:
                name = re.search(r'"((?:[^"\\]|\\.)*)"', given)[1]
                place = os.path.normpath(folder / name)
                opened.add(place)
                if re.search(r"O_WRONLY|O_RDWR|O_CREAT", given):
                    written.add(place)
            elif call == "connect" and "AF_INET" in given:
                dialled.add(
                    (
                        re.search(r'inet_(?:addr|pton)\((?:AF_INET6, )?"(?:::ffff:)?([^"]+)"', given)[1],
                        re.search(r"htons\((\d+)\)", given)[1],
                    )
                )
            elif call == "bind" and "htons(0)" in given and '"::1"' in given:
                continue  # gRPC asks whether this machine has IPv6, of the loopback; nothing listens there
            elif call in ("listen", "execve") or (call == "bind" and "AF_NETLINK" not in given):
                others.add(f"{call}({given[:120]})")
        return cls(frozenset(opened), frozenset(written), frozenset(dialled), frozenset(others))


def traced(tmp_path: Path, home: Path, data: Path) -> Trace:
    """Run a release and its approval under strace, unprivileged, its table's folder mounted read-only."""
    if shutil.which("strace") is None or shutil.which("setpriv") is None:
        pytest.skip("strace or setpriv is not installed")
    out = tmp_path / "traces"
    out.mkdir(mode=0o777)
    work = tmp_path / "work"
    work.mkdir()
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77; shift; exec "$@"'
    shut = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--clear-groups"]
    strace = ["strace", "-ff", "-s", "4096", "-e", "trace=%file,%network", "-o", out / "t"]
    agent = [sys.executable, "-c", RELEASING, home]
    argv = ["unshare", "-m", "sh", "-c", script, "sh", data, *shut, *strace, *agent]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}", "TRIBUTARY_PASSPHRASE": PASSPHRASE, "OMP_NUM_THREADS": "1"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # what an administrator installs is compiled then
    ran = subprocess.run(list(map(str, argv)), cwd=work, env=env, capture_output=True, text=True, timeout=240)
    if ran.returncode == 77 or "unshare" in ran.stderr or "PTRACE" in ran.stderr:
        pytest.skip(f"this machine lets nobody mount or trace: {ran.stderr.strip()[-200:]}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    parts = [Trace.read(path, work) for path in out.glob("t.*")]
    return Trace(
        *(frozenset().union(*(getattr(one, field.name) for one in parts)) for field in dataclasses.fields(Trace))
    )


@pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's")
def test_a_release_opens_its_home_its_table_and_the_program_and_dials_one_address(tmp_path, monkeypatch, capsys):
    data, beside = tmp_path / "data", tmp_path / "beside"
    for folder in (data, beside):
        folder.mkdir()
        small_table(120).to_csv(folder / "mini.csv", index=False)
    with Joined(tmp_path, monkeypatch, capsys, TABLES) as hub:
        site = hub.site("north")
        site.approve_plan("mini")
        site("data", "add", data / "mini.csv", "--as", "mini")
        port = hub.server.port
        found = traced(tmp_path, site.home, data)
        assert len(hub.store.releases()) == 1, "it was delivered"
    assert found.dialled == {("127.0.0.1", f"{port}")}
    assert {one for one in found.others if not one.startswith("execve")} == set(), "it listens nowhere"
    assert [one for one in found.others if one.startswith("execve")] == [
        one for one in found.others if sys.executable in one
    ]
    program = {f"{path}" for path in (sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix), ROOT)}
    program |= {os.path.realpath(path) for path in program}

    def inside(path: str, *folders: Path | str) -> bool:
        return any(path == f"{folder}" or path.startswith(f"{folder}/") for folder in folders)

    # Python looks into the folder it runs in, which is empty here.
    strange = {
        path
        for path in found.opened
        if not inside(path, site.home, data, *program, tmp_path / "work")
        and not path.startswith(SYSTEM)
        and path not in ALSO
    }
    assert strange == set()
    assert f"{data / 'mini.csv'}" in found.opened
    assert f"{site.home / 'ledger.db'}" in found.written
    assert {path for path in found.written if not inside(path, site.home) and not path.startswith("/dev/")} == set()


def test_the_reader_of_traces_sees_a_second_address_a_listener_and_a_file_beside(tmp_path):
    (tmp_path / "t").write_text(
        'openat(AT_FDCWD, "../beside/mini.csv", O_RDONLY|O_CLOEXEC) = 3\n'
        'openat(AT_FDCWD, "/nowhere", O_RDONLY) = -1 ENOENT (No such file or directory)\n'
        'openat(AT_FDCWD, "/tmp/x", O_WRONLY|O_CREAT, 0600) = 4\n'
        'connect(5, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("192.0.2.7")}, 16) = -1 E (x)\n'
        "bind(5, {sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, 12) = 0\n"
        "listen(6, 100) = 0\n"
        "+++ exited with 0 +++\n"
    )
    found = Trace.read(tmp_path / "t", tmp_path / "work")
    assert found.opened == {f"{tmp_path / 'beside' / 'mini.csv'}", "/tmp/x"}
    assert found.written == {"/tmp/x"}
    assert found.dialled == {("192.0.2.7", "443")}
    assert found.others == {"listen(6, 100)"}
