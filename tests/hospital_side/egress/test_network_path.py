"""What stands between a hospital and its coordinator: each kind is told apart, and a proxy before the ports is run."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import Name, NameAttribute
from cryptography.x509.oid import NameOID
from stage.both_sides.service import Hub
from stage.coordinator_side.collect import plan
from stage.hospital_side.site_desk import certificate
from stage.processes.nginx import STREAM

from coordinator.config import CoordinatorConfig
from shared.errors import CertificateRefusal, NetworkRefusal, StoreAway
from shared.wire.site_messages import StudyRequest
from shared.wire.transport import CallLimits
from site_agent.show.network_path import proxy_for, walk
from tests.stage.house.sources import ROOT

__all__ = ["plan"]  # the fixture
ANY = "127.0.0.1:0"
SERIAL_NOUGHT = """-----BEGIN CERTIFICATE-----
MIIBWjCCAQCgAwIBAgIBADAKBggqhkjOPQQDAjAMMQowCAYDVQQDDAF4MB4XDTI2
MTEzMDE5MjEzNloXDTM2MTEyNzE5MjEzNlowDDEKMAgGA1UEAwwBeDBZMBMGByqG
SM49AgEGCCqGSM49AwEHA0IABARC/Gn8G5tt8LGxcw4RYT8h6J1FPnoK6cAT3Cco
Bs5ZNKuz68s+ArSnNb/e1VkJKt2taCJIh87n220wwTCmsaijUzBRMB0GA1UdDgQW
BBSqSysYzIEzJkCeaQg1Y0L3I3zHtTAfBgNVHSMEGDAWgBSqSysYzIEzJkCeaQg1
Y0L3I3zHtTAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIFto/elD
BK+engQ0H0AbDR1sW8WEFprYPFBzMF8InllWAiEA1RhkfW7oqUiB8Gk4eFzwNe8/
/+xx66dT1kK1PKUoJAQ=
-----END CERTIFICATE-----
"""
"""A certificate with the number 0, of which cryptography warns."""


@pytest.fixture(scope="module")
def served(tmp_path_factory, plan):
    hub = Hub(tmp_path_factory.mktemp("hub"), plan, "north")
    with hub.serve(health=ANY):
        yield hub
    hub.store.close()


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port at which each connection is given to `answer`, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take(line: socket.socket) -> None:
            with suppress(OSError), line:
                answer(line)

        def run() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=take, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=run, daemon=True).start()
        yield server.getsockname()[1]
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def proxy(
    *, password: str = "", scheme: str = "Basic", code: int = 200, to: int = 0
) -> Callable[[socket.socket], None]:
    """A hospital's proxy: it may ask for a password (base64), refuse, or lead to another place than was asked."""

    def answer(line: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += line.recv(4096)
        if password and f"Proxy-Authorization: Basic {password}".encode() not in asked:
            line.sendall(
                b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: %s realm=x\r\n\r\n"
                % scheme.encode()
            )
            return
        if code != 200:
            line.sendall(b"HTTP/1.1 %d No\r\n\r\n" % code)
            return
        port = to or int(re.match(rb"CONNECT [^ ]*:(\d+) ", asked)[1])
        with socket.create_connection(("127.0.0.1", port)) as inner:
            line.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            threading.Thread(target=pump, args=(inner, line), daemon=True).start()
            pump(line, inner)

    return answer


@pytest.fixture(scope="module")
def inspector(tmp_path_factory):
    """A box that opens TLS by a certificate of the hospital's own authority: (how it answers, that authority)."""
    folder = tmp_path_factory.mktemp("box")
    key, leaf = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = Name([NameAttribute(NameOID.COMMON_NAME, "Example Hospital Inspection CA")])
    (folder / "ca.pem").write_text(certificate("Example Hospital Inspection CA", key.public_key(), key))
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "box.pem").write_text(
        leaf.private_bytes(*plain).decode() + certificate("hub.example.org", leaf.public_key(), key, name)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "box.pem")

    def answer(line: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(line, server_side=True) as secure:
            secure.recv(1)

    return answer, folder / "ca.pem"


def seen(hub: Hub, environ: dict[str, str] | None = None, address: str = "") -> tuple[str, str, str]:
    found = walk(address or f"127.0.0.1:{hub.port}", [hub.authority.ca_pem], environ or {})
    return found.step, found.given, found.ask


def test_the_way_is_free_with_a_proxy_and_without(served):
    assert seen(served)[0] == "way"
    with listening(proxy()) as port:
        assert seen(served, {"https_proxy": f"http://127.0.0.1:{port}"})[0] == "way"
    with listening(proxy(password="c3RvcmtlOnAgdw==")) as port:
        assert seen(served, {"https_proxy": f"http://storke:p%20w@127.0.0.1:{port}"})[0] == "way"


@pytest.mark.parametrize(
    ("user", "settings", "step", "given", "ask"),
    [
        (
            "",
            {"password": "eDp5"},
            "password",
            "407 to CONNECT without a password (basic)",
            "http://name:password@proxy:port",
        ),
        ("x:z@", {"password": "eDp5"}, "password", "407 to CONNECT with a password", "wrong or locked"),
        ("", {"password": "eDp5", "scheme": "NTLM"}, "password", "(ntlm)", "an account by Basic"),
        ("", {"code": 403}, "tunnel", "403 to CONNECT", "allow CONNECT to 127.0.0.1:"),
        ("", {"code": 502}, "tunnel", "502 to CONNECT", "allow CONNECT"),
    ],
)
def test_what_a_proxy_answers_is_told_apart_and_its_password_is_not_shown(served, user, settings, step, given, ask):
    with listening(proxy(**settings)) as port:
        found = seen(served, {"https_proxy": f"http://{user}127.0.0.1:{port}"})
    assert (found[0], given in found[1], ask in found[2]) == (step, True, True), found
    assert "x:z" not in f"{found}"


def test_what_is_no_proxy_no_route_or_no_name_is_told_apart(served):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        assert seen(served, address=nobody)[0] == "route"
        assert seen(served, {"https_proxy": f"http://{nobody}"})[0] == "proxy"
    with listening(lambda line: line.sendall(b"220 mail.example.org ESMTP\r\n\r\n")) as port:
        assert seen(served, {"https_proxy": f"127.0.0.1:{port}"})[0] == "proxy"
    assert seen(served, address="no-such-name.invalid:8443")[0] == "name"
    with listening(lambda line: line.recv(10) and line.sendall(b"HTTP/1.1 200 OK\r\n\r\nPlease log in")) as port:
        assert seen(served, address=f"127.0.0.1:{port}")[0] == "tls"


def test_a_box_that_opens_tls_is_told_from_another_server_by_the_hospitals_own_bundle(served, inspector):
    answer, authority = inspector
    with listening(answer) as box, listening(proxy(to=box)) as port:
        for environ in ({}, {"https_proxy": f"http://127.0.0.1:{port}"}):
            step, given, ask = seen(served, {**environ, "SSL_CERT_FILE": f"{authority}"}, f"127.0.0.1:{box}")
            assert step == "inspection"
            assert "Example Hospital Inspection CA" in given
            assert "exempt 127.0.0.1" in ask
        step, given, ask = seen(served, address=f"127.0.0.1:{box}")
    assert step == "authority"
    assert "not pinned" in given
    assert "another server answers there" in ask


@pytest.mark.filterwarnings("error")
def test_a_bundle_with_certificates_that_cannot_be_read_names_its_others(served, inspector, tmp_path):
    answer, authority = inspector
    bundle = tmp_path / "bundle.pem"
    damaged = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    bundle.write_text(damaged + SERIAL_NOUGHT + authority.read_text())
    with listening(answer) as box:
        assert seen(served, {"SSL_CERT_FILE": f"{bundle}"}, f"127.0.0.1:{box}")[0] == "inspection"


def test_the_proxy_that_is_looked_at_is_the_one_that_grpc_asks():
    both = {"http_proxy": "http://a:1", "https_proxy": "http://b:2"}
    assert proxy_for("hub:8443", both) == "http://b:2"
    assert proxy_for("hub:8443", {**both, "grpc_proxy": "http://c:3"}) == "http://c:3"
    assert proxy_for("hub:8443", {**both, "no_proxy": "x, hub"}) == ""
    assert proxy_for("hub:8443", {**both, "no_grpc_proxy": "x", "no_proxy": "hub"}) == "http://b:2"
    assert proxy_for("hub:8443", {}) == ""


# -- before the coordinator's port ------------------------------------------------------------------------------------
@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_haproxy_as_we_ship_it_passes_mutual_tls_and_sends_nothing_to_who_drains(tmp_path, plan, monkeypatch):
    hub = Hub(tmp_path / "hub", plan, "north")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        front = probe.getsockname()[1]
    with hub.serve(health=ANY) as server:
        text = (ROOT / "deploy" / "haproxy.cfg").read_text(encoding="utf-8")
        text = text.replace("bind 0.0.0.0:8443", f"bind 127.0.0.1:{front}").replace("inter 2s", "inter 100ms")
        text = text.replace("check port 9464", f"check port {server.monitor.port}")
        text = text.replace("10.0.0.11:8443", f"127.0.0.1:{server.port}")
        text = re.sub(r"    server two .*\n", "", text)
        path = tmp_path / "haproxy.cfg"
        path.write_text(text)
        running = subprocess.Popen(["haproxy", "-db", "-f", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert until(lambda: dialled(front))
            hub.port = front
            with hub.client("north") as client:
                client.call("Status", StudyRequest(study=plan.study), timeout=20)
            assert walk(f"127.0.0.1:{front}", [hub.authority.ca_pem], {}).step == "way"

            def away() -> None:
                raise StoreAway("the coordinator's database must answer")

            monkeypatch.setitem(server.monitor._readiness._checks, "store", away)
            assert until(lambda: not server.monitor._readiness.ready)
            time.sleep(1.0)  # haproxy has asked ten times
            with hub.client("north") as client:  # it is the coordinator that says what is wrong
                client.call("Status", StudyRequest(study=plan.study), timeout=20)
            server.drain()

            def refused() -> bool:
                try:
                    with hub.client("north") as client:
                        client.call("Status", StudyRequest(study=plan.study), timeout=5)
                except (NetworkRefusal, CertificateRefusal):  # taken, and closed at once: there is nobody to pass it to
                    return True
                return False

            assert until(refused)
        finally:
            running.terminate()
            running.wait(20)


@pytest.mark.skipif(
    shutil.which("nginx") is None or not STREAM.exists(), reason="nginx is not installed, or its stream module"
)
def test_nginx_as_we_ship_it_passes_mutual_tls_and_dials_the_next_where_one_is_gone(tmp_path, plan):
    hub = Hub(tmp_path / "hub", plan, "north")
    with socket.socket() as probe, socket.socket() as nobody:
        probe.bind(("127.0.0.1", 0))
        nobody.bind(("127.0.0.1", 0))  # never listens: a coordinator that has died
        front, dead = probe.getsockname()[1], nobody.getsockname()[1]
        probe.close()
        with hub.serve() as server:
            text = (ROOT / "deploy" / "nginx-stream.conf").read_text(encoding="utf-8")
            for shipped, here in (("0.0.0.0:8443", front), ("10.0.0.11:8443", dead), ("10.0.0.12:8443", server.port)):
                assert shipped in text
                text = text.replace(shipped, f"127.0.0.1:{here}")
            text = text.replace("modules/ngx_stream_module.so", f"{STREAM}")
            path = tmp_path / "nginx.conf"
            path.write_text(f"pid {tmp_path}/nginx.pid;\nerror_log {tmp_path}/error.log;\ndaemon off;\n{text}")
            running = subprocess.Popen(["nginx", "-c", path, "-e", tmp_path / "error.log"], stderr=subprocess.DEVNULL)
            try:
                assert until(lambda: dialled(front))
                hub.port = front
                for _ in range(3):
                    with hub.client("north") as client:
                        client.call("Status", StudyRequest(study=plan.study), timeout=20)
            finally:
                running.terminate()
                running.wait(20)
        hub.store.close()


CROWD = "127.0.0.2"  # the site's own calls come from another address of this machine


@pytest.mark.parametrize("program", ["haproxy", "nginx"])
def test_a_crowd_at_one_address_before_the_balancer_leaves_room_for_the_others(tmp_path, plan, program):
    """With the limit that is shipped: what one address holds open beyond it is closed, and a site's call passes."""
    if shutil.which(program) is None or (program == "nginx" and not STREAM.exists()):
        pytest.skip(f"{program} is not installed")
    most = CoordinatorConfig(home=tmp_path, name="hub", address="127.0.0.1:1").connections_per_address
    hub = Hub(tmp_path / "hub", plan, "north")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        front = probe.getsockname()[1]
    with hub.serve(health=ANY, limits=CallLimits(per_address=512)) as server, ExitStack() as open_ones:
        running = balancer(program, tmp_path, front, server.port, server.monitor.port, most)
        try:
            assert until(lambda: dialled(front))
            lines = [
                open_ones.enter_context(socket.create_connection(("127.0.0.1", front), 5, source_address=(CROWD, 0)))
                for _ in range(most + 40)
            ]
            assert until(lambda: sum(map(closed, lines)) == 40)
            hub.port = front
            with hub.client("north") as client:
                client.call("Status", StudyRequest(study=plan.study), timeout=20)
        finally:
            running.terminate()
            running.wait(20)
    hub.store.close()


def balancer(program: str, folder: Path, front: int, port: int, health: int, most: int) -> subprocess.Popen[bytes]:
    """A balancer as it is shipped, before one coordinator; its own check of the file comes first."""
    if program == "haproxy":
        text = (ROOT / "deploy" / "haproxy.cfg").read_text(encoding="utf-8")
        assert f"{{ sc_conn_cur(0) gt {most} }}" in text
        text = text.replace("inter 2s", "inter 100ms").replace("check port 9464", f"check port {health}")
        text = re.sub(r"    server two .*\n", "", text)
    else:
        text = (ROOT / "deploy" / "nginx-stream.conf").read_text(encoding="utf-8")
        assert f"limit_conn addresses {most};" in text
        text = text.replace("modules/ngx_stream_module.so", f"{STREAM}")
        text = re.sub(r" +server 10\.0\.0\.12.*\n", "", text)
        text = f"pid {folder}/nginx.pid;\nerror_log {folder}/error.log;\ndaemon off;\n{text}"
    text = text.replace("0.0.0.0:8443", f"0.0.0.0:{front}").replace("10.0.0.11:8443", f"127.0.0.1:{port}")
    path = folder / f"{program}.cfg"
    path.write_text(text)
    words = {
        "haproxy": (["haproxy", "-c", "-f", path], ["haproxy", "-db", "-f", path]),
        "nginx": (
            ["nginx", "-t", "-c", path, "-e", folder / "error.log"],
            ["nginx", "-c", path, "-e", folder / "error.log"],
        ),
    }
    checked, run = words[program]
    said = subprocess.run(checked, capture_output=True, text=True, timeout=60)
    assert (said.returncode, re.findall(r"(?i)warning|\[warn\]", said.stderr)) == (0, []), said.stderr
    return subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def closed(line: socket.socket) -> bool:
    """True if the other side has closed the connection."""
    line.setblocking(False)
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def dialled(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def until(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return found
