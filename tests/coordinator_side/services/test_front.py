"""Strangers at the port: who holds calls, connections or bytes takes from nobody but themselves."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import pytest
from stage.both_sides.service import Hub, SiteKeys
from stage.both_sides.transport import client_of, site_credentials
from stage.coordinator_side.front import (
    MINI,
    authority,  # noqa: F401
    named,
    sites_port,
)

from coordinator.services.analysts import Analysts
from coordinator.services.analysts_port import AnalystsProcess
from coordinator.services.authority import Authority
from coordinator.services.collect.server import ServerSettings
from shared.errors import AccessRefusal, CertificateRefusal, NetworkRefusal, RateRefusal, TokenRefusal
from shared.wire import messages as wire
from shared.wire import site_messages
from shared.wire.analyst_messages import Document, StudiesRequest
from shared.wire.door import GuardedConnection
from shared.wire.site_messages import Chunk, OfferRequest, SignedDocument, StudyRequest
from shared.wire.transport import (
    SERVER_NAME,
    CallLimits,
    Client,
    Credentials,
    Peer,
    PortSettings,
    RetryLater,
    Server,
    Service,
)
from shared.wire.transport.ends import CODE_KEY
from site_agent.egress import Egress

ROOT = Path(__file__).parents[3]
ANALYSTS = wire.ANALYSIS_SERVICE
HELD = 16  # the threads that a port had


def identify(token: str) -> Peer:
    if token != "good":
        raise AccessRefusal("a call must carry a token that is in force", given="none")
    return Peer(role="analyst", site="ada", serial="1")


@contextlib.contextmanager
def analysts_port(authority, **settings):
    handlers = dict.fromkeys(wire.ANALYSIS, lambda call, request: Document(json=b"{}"))
    service = Service(name=wire.ANALYSIS_SERVICE, methods=wire.ANALYSIS, handlers=handlers, waiting=64)
    port = PortSettings(listen="127.0.0.1:0", credentials=authority.server, **{"workers": HELD, **settings})
    with Server(service, port, identify=identify) as server:
        yield server


class Stranger:
    """Calls of a client that keeps no rule: opened, and never spoken on, or broken off."""

    def __init__(self, port: int, credentials: Credentials, service: str) -> None:
        import grpc

        secure = grpc.ssl_channel_credentials(
            credentials.ca_pem.encode(), credentials.key_pem.encode() or None, credentials.cert_pem.encode() or None
        )
        options = [("grpc.ssl_target_name_override", "tributary-coordinator"), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.secure_channel(f"127.0.0.1:{port}", secure, options)
        self._service, self._silence, self.calls = service, threading.Event(), []

    def call(self, method: str, *said: bytes):
        """Open a call, say something, and never end."""

        def never():
            yield from said
            self._silence.wait(60)

        made = self._channel.stream_stream(f"/{self._service}/{method}")(never(), timeout=50)
        self.calls.append(made)
        return made

    def close(self) -> None:
        self._silence.set()
        self._channel.close()


@contextlib.contextmanager
def stranger(port: int, credentials: Credentials, service: str = wire.SERVICE):
    made = Stranger(port, credentials, service)
    try:
        yield made
    finally:
        made.close()


def code_of(call) -> str:
    """The code that a call was ended with."""
    import grpc

    with pytest.raises(grpc.RpcError):
        next(call)
    return dict(call.trailing_metadata()).get(CODE_KEY, call.code().name)


def analyst(authority: Authority, port: int, token: str = "good") -> Client:
    return Client(
        address=f"127.0.0.1:{port}",
        server_name=SERVER_NAME,
        credentials=Credentials(ca_pem=authority.ca_pem, token=token),
        service=wire.ANALYSIS_SERVICE,
        methods=wire.ANALYSIS,
    )


def until(holds) -> None:
    """Wait for what is on its way."""
    limit = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < limit, "it did not come to that"
        time.sleep(0.02)


def asks(client: Client):
    return client.call("FetchPlan", StudyRequest(study="heart"), timeout=40)


# -- calls that are held ------------------------------------------------------------------------------------------
def test_sixteen_calls_without_token_or_message_do_not_keep_an_analyst_out(authority):
    nobody = Credentials(ca_pem=authority.ca_pem)
    with analysts_port(authority) as server, stranger(server.port, nobody, wire.ANALYSIS_SERVICE) as held:
        for _ in range(HELD):
            held.call("Studies")
        time.sleep(0.5)
        with analyst(authority, server.port) as honest:
            assert honest.call("Studies", StudiesRequest(), timeout=40).json == b"{}"
        assert code_of(held.calls[0]) == "E_ACCESS", "refused, though it never said anything"


def test_whoever_holds_a_token_and_calls_keeps_no_other_token_out(authority, monkeypatch):
    known = {"good": "1", "other": "2"}
    monkeypatch.setattr(
        sys.modules[__name__], "identify", lambda token: Peer(role="analyst", site="a", serial=known[token])
    )
    with analysts_port(authority) as server, contextlib.ExitStack() as open_:
        held = [open_.enter_context(analyst(authority, server.port)) for _ in range(4)]
        silent, calls = threading.Event(), []
        for client in held:  # the token is in the client's own metadata
            call = client._channel.stream_stream(f"/{wire.ANALYSIS_SERVICE}/Studies")
            for _ in range(4):
                never = (b"" for _ in range(1) if silent.wait(60))
                calls.append(call(never, timeout=50, metadata=client._metadata))
        time.sleep(0.5)
        other = open_.enter_context(analyst(authority, server.port, "other"))
        assert other.call("Studies", StudiesRequest(), timeout=40).json == b"{}"
        silent.set()


def test_a_site_that_holds_calls_keeps_no_other_site_out_and_is_told_so(authority):
    north, south = named(authority, "north"), named(authority, "south")
    with (
        sites_port(authority, {}) as server,
        stranger(server.port, north) as held,
        client_of(server, north) as late,
        client_of(server, south) as honest,
    ):
        for _ in range(HELD):
            held.call("Upload")
            held.call("Status")
        time.sleep(0.5)
        assert asks(honest).envelope == b"plan"
        with pytest.raises(RateRefusal, match="this caller"):
            asks(late)


@pytest.mark.fault("F10")
def test_a_revoked_site_and_an_invitation_that_has_served_hold_nothing(minis):
    hub, used = minis
    hub.store.revoke_site("north")
    bootstrap = Credentials(
        ca_pem=hub.authority.ca_pem, cert_pem=used.bootstrap_cert_pem, key_pem=used.bootstrap_key_pem
    )
    port = hub.port
    with stranger(port, hub.credentials("north")) as revoked, stranger(port, bootstrap) as served:
        for _ in range(HELD):
            revoked.call("Upload")
            served.call("Enrol")
        time.sleep(0.5)
        with hub.egress("south", attempts=1, timeout=40.0) as honest:
            assert honest.status("mini") == ()
        assert code_of(revoked.calls[0]) == CertificateRefusal.code
        assert code_of(served.calls[0]) == TokenRefusal.code


@pytest.mark.fault("F10")
def test_of_the_calls_of_a_revoked_certificate_one_is_looked_up(authority):
    asked = []

    def admit(peer):
        asked.append(peer.site)
        time.sleep(0.2)  # all the others are there
        raise CertificateRefusal("the certificate must be of a site that takes part", given="a revoked one")

    with sites_port(authority, {}, admit=admit) as server, stranger(server.port, named(authority, "gone")) as revoked:
        for _ in range(HELD):
            revoked.call("Upload")
        assert {code_of(call) for call in revoked.calls} == {CertificateRefusal.code}
    assert asked == ["gone"]


def test_an_address_of_certificates_that_open_nothing_is_carried_to_tls_less_often(authority):
    def admit(peer):
        if peer.site == "gone":
            raise CertificateRefusal("the certificate must be of a site that takes part", given="a revoked one")

    limits = CallLimits(opened=1.0, per_address=24)
    for site, waits in (("north", False), ("gone", True)):
        with sites_port(authority, {}, admit=admit, limits=limits) as server:
            for _ in range(2):
                with client_of(server, named(authority, site)) as client, contextlib.suppress(CertificateRefusal):
                    asks(client)
            assert (server._door.turn("127.0.0.1") > 0) == waits


def test_the_certificate_of_an_invitation_serves_until_the_site_has_shown_its_own(minis):
    hub, used = minis
    with pytest.raises(TokenRefusal), Egress.from_invitation(used) as egress:
        egress._ask("Enrol", site_messages.EnrolRequest(token=used.token, envelope=b"{}"))
    again = hub.invite("west")
    hub.store.revoke_site("west")
    with pytest.raises(Exception) as caught, Egress.from_invitation(again) as egress:
        egress._ask("Enrol", site_messages.EnrolRequest(token=again.token, envelope=b"{}"))
    assert not isinstance(caught.value, TokenRefusal), "a new invitation is open: its request was read"


@pytest.fixture
def minis(tmp_path):
    """A coordinator that serves two sites, and a third one that joined by its invitation and has called since."""
    hub = Hub(tmp_path / "hub", MINI, "north", "south")
    with hub.serve(workers=4):
        used = hub.invite("west")
        keys = hub.sites["west"] = SiteKeys("west")
        asked = {
            "token": used.token,
            "site": "west",
            "csr_pem": keys.identity[1],
            "signer": keys.release,
            "approvers": {"steward": keys.steward.public},
        }
        with Egress.from_invitation(used) as egress:
            egress.enrol(**asked)
            hub.store.accept_site("west", keys.release.public.fingerprint)
            keys.certificate = egress.enrol(**asked).certificate_pem
            assert egress.enrol(**asked).certificate_pem, "until it was shown, the answer may have been lost"
        with hub.egress("west") as egress:
            egress.status("mini")
        yield hub, used
    hub.store.close()


def test_a_message_that_does_not_come_ends_its_call_and_a_silent_connection_ends(authority):
    limits = CallLimits(first=0.3, proving=0.5)
    with sites_port(authority, {}, limits=limits) as server:
        with stranger(server.port, named(authority, "north")) as held:
            assert code_of(held.call("Status")) == NetworkRefusal.code
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as bare:
            assert ended(bare), "a connection that says nothing"
        context = ssl.create_default_context(cadata=authority.ca_pem)
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        with context.wrap_socket(raw, server_hostname="tributary-coordinator") as secure, contextlib.suppress(OSError):
            while secure.recv(4096):
                pass


def ended(bare: socket.socket) -> bool:
    try:
        return bare.recv(1) == b""
    except ConnectionResetError:
        return True


# -- uploads that are slow ----------------------------------------------------------------------------------------
def upload(call, chunk):
    """A handler that takes a stream as it comes."""
    total = 0
    while chunk is not None:
        total += len(chunk.data)
        chunk = yield
    return SignedDocument(envelope=b"%d" % total)


@pytest.mark.fault("F18")
def test_sixteen_slow_uploads_keep_no_other_site_out(authority):
    chunk = wire.encode(Chunk(bundle_sha256="a" * 64, offset=0, data=b"x"))
    with sites_port(authority, {"Upload": upload}) as server, contextlib.ExitStack() as open_:
        for number in range(HELD):
            slow = open_.enter_context(stranger(server.port, named(authority, f"slow{number}")))
            slow.call("Upload", chunk)
        time.sleep(1.0)
        with client_of(server, named(authority, "south")) as honest:
            assert asks(honest).envelope == b"plan"


CHUNK = Chunk(bundle_sha256="a" * 64, offset=0, data=b"x")


def test_an_upload_whose_next_message_does_not_come_ends(authority):
    limits, north = CallLimits(idle=0.3), named(authority, "north")
    with sites_port(authority, {"Upload": upload}, limits=limits) as server, stranger(server.port, north) as slow:
        assert code_of(slow.call("Upload", wire.encode(CHUNK))) == NetworkRefusal.code


def counting(seen):
    """A handler of uploads that notes whose each message is."""

    def taken(call, chunk):
        while chunk is not None:
            seen.append(call.peer.site)
            chunk = yield
        return SignedDocument(envelope=b"all")

    return taken


def test_one_peer_is_read_so_many_bytes_a_second_and_no_other_waits_for_it(authority):
    """At a kilobyte a second one message is more than a minute's worth."""
    seen, limits, north = [], CallLimits(bytes_per_second=1 << 10), named(authority, "north")
    table = {"Upload": counting(seen)}
    with sites_port(authority, table, limits=limits) as server, stranger(server.port, north) as fast:
        fast.call("Upload", *[wire.encode(CHUNK)] * 8)
        until(lambda: "north" in seen)
        for number in range(8):
            with client_of(server, named(authority, f"south{number}")) as honest:
                assert asks(honest).envelope == b"plan"
    assert seen == ["north"]


def test_of_one_peers_connections_the_longest_silent_goes_and_no_other_peers(authority):
    with sites_port(authority, {}, limits=CallLimits(per_peer=2)) as server, contextlib.ExitStack() as open_:
        for site in ("south", "north", "north", "north", "north"):
            assert asks(open_.enter_context(client_of(server, named(authority, site)))).envelope == b"plan"
        until(lambda: server.load[0] == 3)
        assert sorted(known.peer for known in server._door._all) == ["site north", "site north", "site south"]


def test_one_connection_has_so_many_calls_at_once(authority):
    seen, limits, north = [], CallLimits(streams=2), named(authority, "north")
    table = {"Upload": counting(seen)}
    with sites_port(authority, table, limits=limits) as server, stranger(server.port, north) as many:
        for _ in range(6):
            many.call("Upload", wire.encode(CHUNK))
        until(lambda: len(seen) == 2)
        with client_of(server, named(authority, "south")) as honest:
            assert asks(honest).envelope == b"plan"
        assert len(seen) == 2


def test_a_stream_that_breaks_off_leaves_its_handler(authority):
    seen = []

    def patient(call, chunk):
        try:
            while chunk is not None:
                chunk = yield
        finally:
            seen.append("left")

    with sites_port(authority, {"Upload": patient}) as server, stranger(server.port, named(authority, "n")) as leaving:
        call = leaving.call("Upload", wire.encode(Chunk(bundle_sha256="a" * 64, offset=0, data=b"x")))
        time.sleep(0.5)
        call.cancel()
        until(lambda: seen == ["left"])


@pytest.mark.fault("F10")
def test_a_revocation_ends_an_upload_that_runs(authority, monkeypatch):
    monkeypatch.setattr("shared.wire.transport.server.RECHECK", 0.0)
    revoked = threading.Event()

    def admit(peer):
        if revoked.is_set():
            raise CertificateRefusal("the certificate must be of a site that takes part", given="a revoked one")

    def chunks():
        for place in range(100):
            yield Chunk(bundle_sha256="a" * 64, offset=place, data=b"x")
            if place == 3:
                revoked.set()
            time.sleep(0.02)

    with (
        sites_port(authority, {"Upload": upload}, admit=admit) as server,
        client_of(server, named(authority, "north")) as client,
        pytest.raises(CertificateRefusal),
    ):
        client.call("Upload", chunks(), timeout=60)


def test_a_handler_that_has_to_wait_gives_its_thread_back(authority, monkeypatch):
    taken = threading.Event()
    taken.set()
    tried = []

    def offer(call, request):
        tried.append(call.peer.site)
        if taken.is_set():
            raise RetryLater(
                NetworkRefusal("one upload of a bundle must end before the next", given="one that has not")
            )
        return site_messages.Offered(offset=7)

    answers = []

    def ask(site: str) -> None:
        with client_of(server, named(authority, site)) as client:
            answers.append(client.call("Offer", OfferRequest(envelope=b"x"), timeout=30).offset)

    with sites_port(authority, {"Offer": offer}) as server:
        waiting = [threading.Thread(target=ask, args=(f"w{number}",)) for number in range(8)]
        for thread in waiting:
            thread.start()
        until(lambda: len(set(tried)) == 8)
        with client_of(server, named(authority, "south")) as honest:
            assert asks(honest).envelope == b"plan"
        taken.clear()
        for thread in waiting:
            thread.join(120)
        assert answers == [7] * 8
        taken.set()
        monkeypatch.setattr("shared.wire.transport.server.PATIENCE", 0.1)
        with (
            client_of(server, named(authority, "north")) as client,
            pytest.raises(NetworkRefusal, match="before the next"),
        ):
            client.call("Offer", OfferRequest(envelope=b"x"), timeout=60)


def test_one_peer_has_a_quarter_of_the_threads_at_most(authority):
    guard, now, most = threading.Lock(), [0], [0]

    def busy(call, request):
        with guard:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with guard:
            now[0] -= 1
        return SignedDocument(envelope=b"plan")

    with (
        sites_port(authority, {"FetchPlan": busy}, workers=8) as server,
        client_of(server, named(authority, "north")) as client,
    ):
        threads = [threading.Thread(target=asks, args=(client,)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert most == [2]


# -- connections --------------------------------------------------------------------------------------------------
def test_two_hundred_silent_connections_make_room_for_one_that_speaks(authority):
    with sites_port(authority, {}, limits=CallLimits(per_address=32)) as server, contextlib.ExitStack() as open_:
        silent = [
            open_.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60)) for _ in range(200)
        ]
        with client_of(server, named(authority, "south")) as honest:
            assert asks(honest).envelope == b"plan"
            assert ended(silent[0])
            assert asks(honest).envelope == b"plan", "one that has spoken is not closed for newcomers"


def test_of_connections_that_have_come_and_gone_nothing_is_kept(authority):
    """Silent ones, half a handshake, held and broken-off calls, wrong tokens: what a server holds does not grow."""

    def come_and_go(server) -> None:
        with contextlib.ExitStack() as open_:
            for k in range(60):
                bare = open_.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
                bare.sendall(b"\x16\x03\x01\x02"[: k % 5])
            wrong = open_.enter_context(analyst(authority, server.port, "bad"))
            with pytest.raises(AccessRefusal):
                wrong.call("Studies", StudiesRequest(), timeout=40)
            for _ in range(5):
                held = open_.enter_context(stranger(server.port, Credentials(ca_pem=authority.ca_pem), ANALYSTS))
                calls = [held.call("Studies") for _ in range(8)]
                for call in calls[::2]:
                    call.cancel()
            until(lambda: server.load[0] >= 60)
        until(lambda: server.load == (0, 0))
        # gRPC keeps how the last call ended until the next one comes: with its connection, where it was refused.
        with analyst(authority, server.port) as good:
            good.call("Studies", StudiesRequest(), timeout=40)
        until(lambda: server.load == (0, 0))

    def kept(server) -> list[object]:
        """Connections of this server, and tasks of the loop that all servers of the process share."""
        gc.collect()
        mine = lambda one: (  # noqa: E731
            one._door is server._door
            if isinstance(one, GuardedConnection)
            else isinstance(one, asyncio.Task) and one.get_loop() is server._loop
        )
        return [one for one in gc.get_objects() if mine(one)]

    def beyond(server, before: int) -> list[str]:
        """What is kept, each with who holds it, where that is more than before."""
        found = kept(server)
        if len(found) <= before:
            return []
        told = []
        for one in found:
            holders = [by for by in gc.get_referrers(one) if by is not found]
            names = {by.f_code.co_name if isinstance(by, FrameType) else type(by).__name__ for by in holders}
            told.append(f"{one!r:.160}, held by {', '.join(sorted(names))}")
        return told

    with analysts_port(authority, limits=CallLimits(guesses=1000, proving=60.0)) as server:
        come_and_go(server)  # with whatever is made once
        before = 0
        for _ in range(20):  # its own tasks come and go, too
            before = max(before, len(kept(server)))
            time.sleep(0.05)
        for _ in range(3):
            come_and_go(server)
        limit = time.monotonic() + 120
        while (left := beyond(server, before)) and time.monotonic() < limit:
            time.sleep(0.02)
        assert not left, "\n".join([f"{before} were kept before, and now:", *left])
        assert not server._door.names
        assert set(server._guests) == {"1"}, "nothing of whom nobody knows"


SERVING = """
import resource, sys, pathlib
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
from coordinator.services.collect.server import serve
serve(pathlib.Path(sys.argv[1]), "127.0.0.1:0", ready=lambda port: print(port, flush=True))
"""


def test_more_connections_than_files_may_be_open_stop_no_delivery(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2000)), hard))
    hub = Hub(tmp_path / "hub", MINI, "north")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    serving = subprocess.Popen(
        [sys.executable, "-c", SERVING, hub.home], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        assert serving.stdout is not None
        hub.port = int(serving.stdout.readline())
        with contextlib.ExitStack() as open_:
            for _ in range(500):
                with contextlib.suppress(OSError):
                    open_.enter_context(socket.create_connection(("127.0.0.1", hub.port), timeout=2))
            sealed = hub.seal("north")
            with hub.egress("north", attempts=2, timeout=40.0) as egress:
                assert egress.send(sealed.envelope, sealed.path).site == "north"
    finally:
        serving.terminate()
        serving.wait(120)
        serving.stdout.close()
        hub.store.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_calls_that_are_broken_off_again_and_again_end_their_connection(authority, caplog):
    with (
        caplog.at_level(logging.INFO, logger="tributary.transport"),
        sites_port(authority, {}) as server,
        stranger(server.port, named(authority, "north")) as rapid,
        client_of(server, named(authority, "south")) as honest,
    ):
        rapid.call("Status")
        time.sleep(0.3)

        def ended():
            for call in [rapid.call("Status") for _ in range(8)]:  # one that no handler has begun counts for nothing
                call.cancel()
            return "refused or broken off" in caplog.text

        until(ended)
        assert asks(honest).envelope == b"plan"


def test_an_older_tls_has_no_call_let_in(authority, tmp_path, caplog):
    mine, pair = named(authority, "north"), tmp_path / "pair.pem"
    pair.write_text(mine.cert_pem + mine.key_pem)
    context = ssl.create_default_context(cadata=authority.ca_pem)
    context.load_cert_chain(pair)
    context.set_alpn_protocols(["h2"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    said = {
        ":method": "POST",
        ":scheme": "https",
        ":path": f"/{wire.SERVICE}/FetchPlan",
        ":authority": "tributary-coordinator",
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-timeout": "8S",
    }
    block = b"".join(b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in said.items())
    frames = b"\0\0\0\4\0\0\0\0\0" + len(block).to_bytes(3, "big") + b"\1\4\0\0\0\1" + block  # settings, headers
    with (
        caplog.at_level(logging.INFO, logger="tributary.transport"),
        sites_port(authority, {}) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw,
        context.wrap_socket(raw, server_hostname="tributary-coordinator") as secure,
    ):
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames)
        until(lambda: "north FetchPlan" in caplog.text or "127.0.0.1 FetchPlan" in caplog.text)
        with contextlib.suppress(ConnectionResetError):
            while secure.recv(4096):
                pass
    assert "FetchPlan E_CERT" in caplog.text


def test_a_refusal_is_told_a_few_times_and_then_counted(authority, caplog):
    nobody = Credentials(ca_pem=authority.ca_pem)
    with (
        caplog.at_level(logging.INFO, logger="tributary.transport"),
        analysts_port(authority) as server,
        stranger(server.port, nobody, wire.ANALYSIS_SERVICE) as held,
    ):
        for _ in range(20):
            assert code_of(held.call("Studies")) == "E_ACCESS"
    lines = [line for line in caplog.messages if "E_ACCESS" in line]
    assert len(lines) == 6
    assert "127.0.0.1" in lines[0]
    assert lines[-1].endswith("15 more within a minute")


def test_wrong_tokens_of_one_address_are_looked_up_so_often_and_whoever_is_in_goes_on(authority, monkeypatch):
    looked = []

    def counted(token: str) -> Peer:
        if token != "good":
            looked.append(token)
        return known(token)

    known = identify
    monkeypatch.setattr(sys.modules[__name__], "identify", counted)
    limits = CallLimits(guesses=0.5, strikes=1000)
    with analysts_port(authority, limits=limits) as server, analyst(authority, server.port) as good:
        good.call("Studies", StudiesRequest(), timeout=60)
        codes = []
        with analyst(authority, server.port, "a guess") as bad:
            for _ in range(30):
                with pytest.raises((AccessRefusal, RateRefusal)) as refused:
                    bad.call("Studies", StudiesRequest(), timeout=60)
                codes.append(type(refused.value))
        assert len(looked) <= 8
        assert codes[-1] is RateRefusal
        assert codes == [AccessRefusal] * len(looked) + [RateRefusal] * (30 - len(looked))
        good.call("Studies", StudiesRequest(), timeout=60)


def test_a_handshake_that_fails_is_told(authority, tmp_path, caplog):
    foreign = named(Authority.create(tmp_path / "other", coordinator="hub"), "north")
    with (
        caplog.at_level(logging.INFO, logger="tributary.transport"),
        sites_port(authority, {}) as server,
        client_of(server, dataclasses.replace(foreign, ca_pem=authority.ca_pem)) as client,
    ):
        with pytest.raises(CertificateRefusal):
            asks(client)
        until(lambda: "closed 127.0.0.1 no handshake, or a certificate that is not believed" in caplog.text)


def test_a_call_is_the_certificates_whoever_else_is_connected(authority):
    def whose(call, request):
        return SignedDocument(envelope=call.peer.site.encode())

    with sites_port(authority, {"FetchPlan": whose}) as server, contextlib.ExitStack() as open_:
        clients = {
            site: open_.enter_context(client_of(server, named(authority, site))) for site in ("north", "south", "west")
        }
        for _ in range(3):
            for site, client in clients.items():
                assert asks(client).envelope == site.encode()


def test_the_sites_port_is_gone_from_the_disk_when_it_is_closed(authority):
    with sites_port(authority, {}) as server, client_of(server, site_credentials(authority)) as client:
        asks(client)
        folder = server._door.inner.parent
        assert folder.stat().st_mode & 0o077 == 0
        assert [path.name for path in folder.iterdir()] == ["server"]
    assert not folder.exists()


# -- the analysts' process ------------------------------------------------------------------------------------------
def test_analysts_are_answered_by_a_process_of_their_own_that_is_started_again(tmp_path):
    hub = Hub(tmp_path / "hub", MINI, "north")
    _, token = Analysts(hub.store).add("ada", studies=["mini"], days=30, today=dt.datetime.now(dt.UTC).date())

    def answered() -> bool:
        with analyst(hub.authority, running.analysts_port, token) as client:
            try:
                return b"mini" in client.call("Studies", StudiesRequest(), timeout=40).json
            except NetworkRefusal:
                return False

    with hub.serve(analysts="127.0.0.1:0", apart=True) as running:
        assert answered()
        first = running._analysis.pid
        assert first != os.getpid()
        os.kill(first, signal.SIGKILL)
        with hub.egress("north", attempts=1) as egress:
            assert egress.status("mini") == (), "sites feel nothing of it"
        until(answered)
        assert running._analysis.pid != first
        with pytest.raises(NetworkRefusal, match="port"):
            AnalystsProcess(hub.home, f"127.0.0.1:{running.analysts_port}", **dataclasses.asdict(ServerSettings()))
        last = running._analysis.pid
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)
    hub.store.close()
