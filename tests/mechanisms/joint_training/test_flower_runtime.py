"""The same training on Flower's deployment runtime, as `deploy/flower` says: real SuperLink, SuperNodes and sites.

Everything is on loopback: the SuperLink behind a proxy that lets nothing but the nodes' path through, two hospitals
whose nodes know one signer of apps, and beside them the coordinator that they joined. The training is then run once
more by the sites' own channel, and what was charged, witnessed and made is compared.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml
from stage.both_sides.service import Hub
from stage.processes.ports import free_port
from stage.training.shared_flow import PLAN, WHOLE, Hospital

from coordinator.training import dialled
from shared.base.canonical import sha256_hex
from shared.base.keys import SigningKey
from shared.errors import ConfigRefusal, NetworkRefusal, RoundsRefusal, SchemaRefusal, SignatureRefusal, TooLarge
from shared.plans.federated import FederatedFlow
from shared.plans.plan import StudyPlan
from shared.wire import flower
from shared.wire.message_limits import ROUND_CAP
from shared.wire.rounds import RoundOrder
from shared.wire.site_messages import RoundAnswer, RoundReply
from site_agent.training import runtime

REPOSITORY = Path(__file__).parents[3]
DEPLOY = REPOSITORY / "deploy" / "flower"
BIN = Path(sys.executable).parent
PATIENCE = 300.0
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PATH": os.environ["PATH"]}
FEDERATED = """
[federated]
rounds = 3
local_steps = 2
rate = 0.2
noise_multiplier = 1.0
quorum = 2
"""


def until(holds, what: str, every: float = 0.5) -> None:
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit, what
        time.sleep(every)


# -- keys -------------------------------------------------------------------------------------------------------------
def tls(folder: Path) -> None:
    """A certificate authority of the network, and the certificate of its SuperLink."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def certificate(name: str, key, issuer: str, by, *extensions):
        made = x509.CertificateBuilder().public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        made = made.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        now = dt.datetime.now(dt.UTC)
        made = made.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=2))
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
        for extension in extensions:
            made = made.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return made.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    root, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (folder / "ca.crt").write_bytes(
        certificate("root", root, "root", root, x509.BasicConstraints(ca=True, path_length=None))
    )
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    (folder / "server.crt").write_bytes(certificate("localhost", own, "root", root, names))
    plain = serialization.NoEncryption()
    pem = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "server.key").write_bytes(pem)


def key_pair(path: Path, kind: str) -> str:
    """A private key in OpenSSH form; the public one is returned, and lies beside it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    key = ec.generate_private_key(ec.SECP384R1()) if kind == "node" else ed25519.Ed25519PrivateKey.generate()
    private = serialization.PrivateFormat.OpenSSH
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    path.with_suffix(".pub").write_text(public)
    return public


# -- the proxy --------------------------------------------------------------------------------------------------------
def proxy(pki: Path, target: int) -> ThreadingHTTPServer:
    """What deploy/flower/nginx.conf does: TLS, and ``POST /v1/fleet/`` alone is passed on."""

    class Fleet(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.startswith("/v1/fleet/"):
                self.send_error(404)
                return
            context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
            line = http.client.HTTPSConnection("127.0.0.1", target, context=context, timeout=60)
            with contextlib.closing(line):
                kept = {
                    name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")
                }
                line.request("POST", self.path, body, kept)
                answer = line.getresponse()
                content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Fleet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


# -- Flower's processes -----------------------------------------------------------------------------------------------
class Network:
    """A SuperLink, its proxy, and a node for each hospital of a theatre. Processes are ended by their own ids."""

    def __init__(self, stage, folder: Path, sites: tuple[str, ...]) -> None:
        self.stage, self.folder, self.running = stage, folder, []
        try:
            self.open(sites)
        except BaseException:
            self.close()
            raise

    def open(self, sites: tuple[str, ...]) -> None:
        stage, folder = self.stage, self.folder
        self.pki = folder / "pki"
        self.pki.mkdir(parents=True)
        tls(self.pki)
        self.signer = self.pki / "signer.key"
        (self.pki / "trusted.yaml").write_text(f"fpk_lead: '{key_pair(self.signer, 'signer')}'\n")
        self.fab = self.build()
        self.hub, self.port = free_port(), free_port()
        given = self.folder / "lead.json"
        words = [sys.executable, DEPLOY / "hub.py", "sign", self.fab, self.signer, "fpk_lead"]
        given.write_text(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        self.start("hub", sys.executable, DEPLOY / "hub.py", "serve", self.fab, given, "--port", self.hub)
        self.start(
            "superlink",
            BIN / "flower-superlink",
            *("--host", "127.0.0.1", "--port", self.port, "--database", folder / "state.db"),
            *("--ssl-certfile", self.pki / "server.crt", "--ssl-keyfile", self.pki / "server.key"),
            *("--ssl-ca-certfile", self.pki / "ca.crt", "--enable-supernode-auth"),
            "--disable-runtime-dependency-installation",
            TRIBUTARY_COORDINATOR_HOME=str(stage.hub),
        )
        (self.home("cli") / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.pki / "ca.crt"}"\n'
        )
        until(lambda: self.cli("list", "here", "--format", "json", check=False).returncode == 0, "the SuperLink")
        self.proxy = proxy(self.pki, self.port)
        nodes = []
        for site in sites:
            key_pair(self.pki / f"{site}.key", "node")
            nodes.append(f"{site} = {self.registered(site)}\n")
            self.start(
                site,
                BIN / "flower-supernode",
                *("--superlink", f"127.0.0.1:{self.proxy.server_address[1]}", "--port", free_port()),
                *("--root-certificates", self.pki / "ca.crt", "--trusted-entities", self.pki / "trusted.yaml"),
                *("--auth-supernode-private-key", self.pki / f"{site}.key"),
                TRIBUTARY_SITE_HOME=str(stage.home(site)),
            )
        (stage.hub / "flower-nodes.toml").write_text("".join(nodes))

    def registered(self, site: str) -> str:
        """The node's number at the SuperLink, which answers slowly at first on a busy machine."""
        said: list[str] = []
        for _ in range(5):
            made = self.cli("supernode", "register", self.pki / f"{site}.pub", "here", "--format", "json", check=False)
            said.append(made.stdout + made.stderr)
            with contextlib.suppress(ValueError, KeyError):
                return str(json.loads(made.stdout)["node-id"])
            time.sleep(3)
        raise AssertionError("\n".join(said))

    def home(self, name: str) -> Path:
        path = self.folder / "flwr" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def environment(self, name: str, **more: str) -> dict[str, str]:
        kept = {word: os.environ[word] for word in ("PATH", "HOME", "LANG", "TMPDIR") if word in os.environ}
        return {
            **kept,
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            **QUIET,
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_HOME": str(self.home(name)),
            "PATH": f"{BIN}:{kept['PATH']}",
            "FLWR_SUPERGRID_API_URL": f"http://127.0.0.1:{getattr(self, 'hub', 9)}",
            **more,
        }

    def start(self, name: str, *words: object, **more: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running.append(
                subprocess.Popen(
                    [str(word) for word in words],
                    env=self.environment(name, **more),
                    cwd=self.home(name),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def cli(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(BIN / "flwr"), *map(str, words)],
            env=self.environment("cli"),
            cwd=self.home("cli"),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def build(self) -> Path:
        self.cli("build", "--app", DEPLOY / "app")
        [fab] = self.home("cli").glob("*.fab")
        return fab

    def run(self, app: object, study: str) -> str:
        done = self.cli("run", app, "here", "--run-config", f'study="{study}" timeout=4.0', "--format", "json")
        return str(json.loads(done.stdout[done.stdout.index("{") :])["run-id"])

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        if hasattr(self, "proxy"):
            self.proxy.shutdown()
            self.proxy.server_close()
        for process in reversed(self.running):
            ids = descendants(process.pid)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(120)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            for number in ids:  # they end with their parent, sooner or later
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


def descendants(number: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = path.read_text()
            parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, left = [], [number]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def free(lock: Path) -> bool:
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


@pytest.mark.soak
def test_a_training_on_flowers_runtime_charges_witnesses_and_makes_what_the_own_channel_does(tmp_path):
    from stage.processes.survival import cohort
    from stage.processes.theatre import Theatre, plan_toml

    began = time.monotonic()
    stage, network = Theatre(tmp_path / "stage"), None
    try:
        texts = {
            study: plan_toml(study).replace("[budget]", FEDERATED + "\n[budget]", 1) for study in ("storm", "calm")
        }
        stage.open(*texts.values())
        for k, site in enumerate(("north", "south")):
            table = tmp_path / f"{site}.csv"
            cohort(120).iloc[60 * k : 60 * k + 60].to_csv(table, index=False)
            stage.join(site, table, "storm", "calm")
        network = Network(stage, tmp_path / "flower", ("north", "south"))
        ready = time.monotonic()

        # Through the proxy there is no way to submit an app, to list nodes or to take a task.
        for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/openapi.json", "/health"):
            context = ssl.create_default_context(cafile=str(network.pki / "ca.crt"))
            line = http.client.HTTPSConnection(
                "127.0.0.1", network.proxy.server_address[1], context=context, timeout=20
            )
            with contextlib.closing(line):
                line.request("POST", path, b"")
                assert line.getresponse().status == 404

        # An app that nobody signed is run by no node, though it is the same app, sent by the same SuperLink.
        unsigned = network.run(DEPLOY / "app", "storm")
        until(lambda: all("could not be verified" in network.log(site) for site in ("north", "south")), "a refusal")
        network.cli("stop", unsigned, "here")
        for site in ("north", "south"):
            assert not {"reserve", "round"} & {kind for kind, _ in stage.entries(site)}
        [lock] = stage.hub.glob("federated/storm/*/lock")
        until(lambda: free(lock), "the end of the stopped run")

        # The signed one trains.
        started = time.monotonic()
        network.run("@tributary/training", "storm")
        status = lambda study: stage.coordinator("federate", "status", study).json  # noqa: E731
        until(lambda: status("storm")["flow"], "a flow", every=2.0)
        trained = time.monotonic()
        for site in ("north", "south"):
            stage.agent(site, "federate", "storm")  # the finished flow comes by the site's own channel

        # The same by the own channel.
        sites = {
            site: stage.start(
                "site_agent.cli", "federate", "calm", "--wait", "2", env={"TRIBUTARY_SITE_HOME": str(stage.home(site))}
            )
            for site in ("north", "south")
        }
        stage.coordinator("federate", "run", "calm", "--timeout", "2")
        assert [command.wait() for command in sites.values()] == [0, 0]

        flows = {}
        for study in ("storm", "calm"):
            [path] = stage.hub.glob(f"federated/{study}/*/flow.json")
            flows[study] = FederatedFlow.from_bytes(path.read_bytes())
            flows[study].require_true(StudyPlan.from_toml(texts[study]))
        same = ("shape", "reference", "rounds", "event", "delta", "epsilon", "sites")
        for name in same:
            assert getattr(flows["storm"], name) == getattr(flows["calm"], name), name
        assert {site: said["answered"] for site, said in flows["storm"].sites.items()} == {"north": 3, "south": 3}
        assert flows["storm"].digest != flows["calm"].digest  # noise of its own
        for site in ("north", "south"):
            told = {}
            for study in ("storm", "calm"):
                entries = stage.entries(site)
                ids = {b["release_id"] for kind, b in entries if kind == "reserve" and b["study"] == study}
                assert len(ids) == 1
                mine = [(kind, body) for kind, body in entries if body.get("release_id") in ids]
                assert mine[-1][1]["flow_sha256"] == flows[study].digest
                charge = {name: mine[0][1][name] for name in ("event", "delta", "rounds", "wave", "uncovered")}
                told[study] = (
                    [kind for kind, _ in mine],
                    charge,
                    mine[2][1].get("persons", 0),
                )
            assert told["storm"] == told["calm"]
            assert told["storm"][0] == ["reserve", "anchor", "train", *["round", "witnessed", "answer"] * 3, "trained"]
            stage.agent(site, "audit", "verify")
        took = {"ready": ready - began, "trained": trained - started, "whole": time.monotonic() - began}
        if path := os.environ.get("TRIBUTARY_TIMES"):
            Path(path).write_text(json.dumps({name: round(seconds, 1) for name, seconds in took.items()}))
    finally:
        if network is not None:
            network.close()
        stage.close()


# -- without a runtime ------------------------------------------------------------------------------------------------
def test_the_app_that_is_sent_names_installed_code_and_brings_none():
    written = {path.name: path.read_text() for path in (DEPLOY / "app" / "tributary_training").glob("*.py")}
    assert set(written) == {"__init__.py", "client.py", "server.py"}
    for name, side in (("client.py", "site_agent"), ("server.py", "coordinator")):
        lines = [line for line in written[name].splitlines()[1:] if line]
        assert lines == [f"from {side}.training import runtime", "app = runtime.app()"]
    asked = tomllib.loads((DEPLOY / "app" / "pyproject.toml").read_text())["project"]["dependencies"]
    assert asked == ["flwr>=1.41.0,<1.43"]  # nothing else that an installer could fetch


class Local:
    """A carrier of this process: each site answers at once, as its node's process would."""

    def __init__(self, hospitals, spoil=None) -> None:
        self.hospitals, self.spoil, self.given = {one.name: one for one in hospitals}, spoil, []
        self.kept: list[str] = []
        self.door = lambda door, one: door

    def ask(self, asked: RoundReply, sites) -> None:
        for name in sorted(set(sites) & set(self.hospitals)):
            one = self.hospitals[name]
            with one.hub.egress(name) as egress:

                def take(door, wait, one=one):
                    one.take_part(wait=wait, door=lambda _: self.door(door, one))

                given = runtime.once(egress, egress.round_order(asked), take)
            self.given += [] if self.spoil is None else self.spoil(name, given)
            self.given.append((name, given))

    def answers(self):
        given, self.given = self.given, []
        return given

    def taken(self, site: str) -> None:
        self.kept.append(site)


def carried_training(hub, carrier) -> FederatedFlow:
    return dialled.train(
        home=hub.home, store=hub.store, plan=PLAN, key=hub.authority.witness, timeout=20.0, carrier=carrier
    )


def test_a_carrier_brings_the_same_rounds_and_what_it_spoils_is_not_taken(tmp_path):
    hub = Hub(tmp_path / "hub", PLAN, "north", "south")
    with hub.serve():
        hospitals = [Hospital(hub, "north"), Hospital(hub, "south")]

        def spoil(name: str, given: RoundAnswer):
            """Before the true one: other bytes, another site's, and a form of nothing."""
            other = "south" if name == "north" else "north"
            return [
                (name, RoundAnswer(envelope=given.envelope, content=given.content[:-1] + b"x")),
                (other, given),
                ("stranger", given),
                (name, RoundAnswer(envelope=b"{}", content=b"")),
            ]

        carrier = Local(hospitals, spoil)
        away = []

        class Blip:
            """A door that finds the coordinator away once, when a round was begun: it costs no round."""

            def __init__(self, door, one) -> None:
                self.door, self.one = door, one

            def __getattr__(self, name: str):
                return getattr(self.door, name)

            def anchor(self, envelope):
                if self.one.ledger.entries()[-1].kind == "round" and self.one.name not in away:
                    away.append(self.one.name)
                    raise NetworkRefusal("the coordinator must answer", given="nothing")
                return self.door.anchor(envelope)

        carrier.door = Blip
        flow = carried_training(hub, carrier)
        assert away == ["north", "south"]
        assert carrier.kept == ["north", "south"] * 3  # each once, whatever came before it
        flow.require_true(PLAN)
        assert {site: said["answered"] for site, said in flow.sites.items()} == {"north": 3, "south": 3}
        for hospital in hospitals:
            hospital.take_part(wait=0)  # the finished flow comes by the own channel
            kinds = [entry.kind for entry in hospital.ledger.entries()]
            assert kinds == ["genesis", "reserve", "anchor", "train", *["round", "witnessed", "answer"] * 3, "trained"]
            assert hospital.charged >= WHOLE
        # What the pinned coordinator did not sign asks nothing, whoever brings it.
        said = RoundOrder(
            study=PLAN.study,
            plan_hash=PLAN.hash,
            kind="train",
            round=1,
            content_sha256=sha256_hex(b"w"),
            content_bytes=1,
        )
        forged = RoundReply(envelope=said.sign(SigningKey.generate()).to_bytes(), content=b"w")
        with hub.egress("north") as egress, pytest.raises(SignatureRefusal):
            egress.round_order(forged)
    hub.store.close()


class Nodes:
    """A grid of nodes that answer, fail, or forget."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, tuple[bytes, bytes]]] = []
        self.replies: list = []

    def create_message(self, content, kind, node, group, ttl):
        return flower.addressed(content, message_type=kind, source=0, target=node, name="x", group=group, ttl=ttl)

    def push_messages(self, messages):
        names = []
        for message in messages:
            self.asked.append((message.metadata.dst_node_id, flower.carried(message)))
            names.append(f"m{len(self.asked)}")
        return names

    def pull_messages(self, names):
        found = [reply for reply in self.replies if reply.metadata.reply_to_message_id in set(names)]
        self.replies = []
        return found

    def reply(self, name: str, node: int, content) -> None:
        self.replies.append(
            flower.addressed(content, message_type="train", source=node, target=0, name=f"r{name}", answers=name)
        )


def test_a_site_that_gave_no_answer_or_was_never_heard_of_is_asked_again_and_a_stranger_is_not_heard():
    from flwr.app import Error

    from coordinator.training.runtime import LOST, RETRY, Carried

    now = [0.0]
    grid = Nodes()
    carrier = Carried(grid, {"north": 1, "south": 2, "west": 3}, clock=lambda: now[0])
    carrier.ask(RoundReply(envelope=b"{}", content=b"weights"), ["north", "south", "guest"])
    assert grid.asked == [(1, (b"{}", b"weights")), (2, (b"{}", b"weights"))]
    grid.reply("m1", 1, flower.carrying(b"signed", b"new"))
    grid.reply("m2", 3, flower.carrying(b"signed", b"another node's"))
    [(site, given)] = carrier.answers()
    assert (site, given.envelope, given.content) == ("north", b"signed", b"new")
    carrier.taken("north")
    assert len(grid.asked) == 2
    now[0] = LOST  # south's message went with its node
    assert list(carrier.answers()) == []
    assert [node for node, _ in grid.asked] == [1, 2, 2]
    grid.reply("m3", 2, Error(code=5, reason="Node Unavailable"))
    assert list(carrier.answers()) == []
    now[0] += RETRY
    carrier.answers()
    assert [node for node, _ in grid.asked] == [1, 2, 2, 2]
    grid.reply("m4", 2, flower.carrying(b"signed", b"late"))
    assert [site for site, _ in carrier.answers()] == ["south"]
    now[0] += RETRY  # it was not taken: the network had spoiled it
    carrier.answers()
    assert [node for node, _ in grid.asked] == [1, 2, 2, 2, 2]
    grid.reply("m5", 2, flower.carrying(b"signed", b"late"))
    assert [site for site, _ in carrier.answers()] == ["south"]
    carrier.taken("south")
    now[0] += 10 * LOST
    carrier.answers()
    assert len(grid.asked) == 5  # all have answered


def test_what_has_no_signed_answer_leaves_by_one_constant_word_whatever_the_refusal(monkeypatch):
    """Texts and codes of refusals tell of records: of how many a rule does not hold, and that one does not hold."""
    from flwr.app import Context, RecordDict

    from shared.errors import CATALOGUE

    app = runtime.app()
    asked = flower.addressed(flower.carrying(b"a", b"b"), message_type="train", source=0, target=1, name="q")
    context = Context(run_id=0, node_id=1, node_config={}, state=RecordDict(), run_config={})
    raised = [kind("column 'sbp' must be at most 270", given="3 rows that do not") for kind in CATALOGUE.values()]
    replies = set()
    for error in [*raised, KeyError("p-17"), MemoryError()]:

        def answered(at, given, error=error):
            raise error

        monkeypatch.setattr(runtime, "answered", answered)
        monkeypatch.setattr("site_agent.desk.open_desk", lambda home: None)
        reply = app(asked, context)
        assert not reply.has_content()
        replies.add((reply.error.code, reply.error.reason))
    assert replies == {(flower.ERROR, "E_REFUSED")}


def test_a_question_without_an_answer_is_refused_once_its_time_is_over():
    """A part that ends without an answer, as one whose answer comes too late, does not begin again for ever."""
    with pytest.raises(RoundsRefusal, match="answer in time"):
        runtime.once(None, None, lambda door, wait: None)


def test_what_the_runtime_brings_is_two_byte_strings_or_nothing():
    from flwr.app import ConfigRecord, RecordDict

    def sent(content):
        return flower.addressed(content, message_type="train", source=1, target=2)

    assert flower.carried(sent(flower.carrying(b"a", b"b"))) == (b"a", b"b")
    for wrong in (
        RecordDict({}),
        RecordDict({"round": ConfigRecord({"envelope": b"a"})}),
        RecordDict({"round": ConfigRecord({"envelope": "a", "content": b"b"})}),
        RecordDict({"round": ConfigRecord({"envelope": b"a", "content": b"b"}), "more": ConfigRecord({})}),
        flower.refused(SchemaRefusal("no", given="x")),
    ):
        with pytest.raises(SchemaRefusal):
            flower.carried(sent(wrong))
    with pytest.raises(TooLarge):
        flower.carried(sent(flower.carrying(b"a", bytes(ROUND_CAP + 1))))


@pytest.mark.parametrize(
    "text", ["north = 1\nsouth = 1", "north = 0", 'north = "1"', "north = true", "north", "[north]"]
)
def test_the_list_of_nodes_gives_each_site_a_node_of_its_own(tmp_path, text):
    from coordinator.training.runtime import NODES, nodes_of

    with pytest.raises(ConfigRefusal):
        nodes_of(tmp_path)
    (tmp_path / NODES).write_text("north = 18446744073709551615\nsouth = 2\n")
    assert nodes_of(tmp_path) == {"north": (1 << 64) - 1, "south": 2}
    (tmp_path / NODES).write_text(text)
    with pytest.raises(ConfigRefusal):
        nodes_of(tmp_path)


def test_the_recipe_lets_the_nodes_path_through_and_nothing_else():
    rules = (DEPLOY / "nginx.conf").read_text()
    assert re.findall(r"location ([^{]+) \{", rules) == ["~ ^/v1/fleet/(?<call>[a-z-]+)$", "/"]
    assert "return 404" in rules
    # nginx matches the path it has normalised: without a URI here, what was written ("fleet/../control") is passed on.
    assert re.findall(r"proxy_pass ([^;]+);", rules) == ["https://127.0.0.1:8000/v1/fleet/$call"]
    recipe = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name in ("superlink", "node"):
        said = recipe[name]["environment"]
        assert said["FLWR_TELEMETRY_ENABLED"] == "0"
        assert said["FLWR_DISABLE_UPDATE_CHECK"] == said["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
        assert said["FLWR_SUPERGRID_API_URL"].startswith("http://127.0.0.1:")
        words = recipe[name]["command"]
        assert not {"--insecure", "--allow-runtime-dependency-installation"} & set(words)
        known = subprocess.run(
            [BIN / words[0], "--help"], capture_output=True, text=True, check=False, env=QUIET
        ).stdout
        assert all(word in known for word in words if word.startswith("--")), words
    link, node = recipe["superlink"]["command"], recipe["node"]["command"]
    assert link[link.index("--host") + 1] == "127.0.0.1"
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(link)
    assert {"--trusted-entities", "--auth-supernode-private-key", "--root-certificates"} <= set(node)
    # Only the proxy has a port of its own; the others share its loopback.
    assert [name for name, service in recipe.items() if "ports" in service] == ["front"]
    assert {recipe[name]["network_mode"] for name in ("superlink", "hub")} == {"service:front"}
