"""The channel: mutual TLS, deadlines, sizes, and refusals that keep their type."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import logging
import socket
import ssl
import subprocess
import sys
import threading

import pytest
from stage.both_sides.transport import (
    SERVICE,
    authority,  # noqa: F401
    client_of,
    dated_credentials,
    site_credentials,
)

from coordinator.services.authority import Authority
from shared import errors
from shared.errors import CATALOGUE, CertificateRefusal, NetworkRefusal, PlanRefusal, Refusal, TooLarge
from shared.wire import messages as wire
from shared.wire.door import bound_socket
from shared.wire.site_messages import Chunk, SignedDocument, StudyRequest
from shared.wire.transport import Client, PortSettings, Server, Service, peer_of


class Answers:
    """Handlers that a test sets."""

    def __init__(self) -> None:
        self.reply = lambda call, request: SignedDocument(envelope=b"plan")

    @property
    def handlers(self):
        return {name: lambda call, request: self.reply(call, request) for name in wire.COLLECTION}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("foreign"), coordinator="hub")


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers()


@pytest.fixture(scope="module")
def server(authority, answers):
    service = Service(name=SERVICE, methods=wire.COLLECTION, handlers=answers.handlers)
    with Server(service, PortSettings(listen="127.0.0.1:0", credentials=authority.server, workers=4)) as running:
        yield running


def ask(client: Client, timeout: float = 10.0):
    return client.call("FetchPlan", StudyRequest(study="heart"), timeout=timeout)


def test_a_site_asks_and_the_server_knows_who_it_is(authority, answers, server):
    seen = []
    answers.reply = lambda call, request: seen.append((call.peer, request)) or SignedDocument(envelope=b"plan")
    with client_of(server, site_credentials(authority)) as client:
        assert ask(client) == SignedDocument(envelope=b"plan")
    [(peer, request)] = seen
    assert (peer.role, peer.site, request.study) == ("site", "north", "heart")


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_refusal_keeps_its_type_and_words_over_the_wire(authority, answers, server, code):
    kind = CATALOGUE[code]

    def refuse(call, request):
        raise kind("ε must be at most 3", given="4", next_step="Lower it.")

    answers.reply = refuse
    with client_of(server, site_credentials(authority)) as client, pytest.raises(Refusal) as caught:
        ask(client)
    assert type(caught.value) is kind
    assert str(caught.value) == "ε must be at most 3, got 4. Lower it."


def test_an_unexpected_error_becomes_a_plain_refusal(authority, answers, server, caplog):
    def explode(call, request):
        raise KeyError("/srv/secret/path patient 4711")

    answers.reply = explode
    with client_of(server, site_credentials(authority)) as client, pytest.raises(Refusal) as caught:
        ask(client)
    assert (type(caught.value), caught.value.code) == (Refusal, "E_REFUSED")
    assert "4711" not in str(caught.value) + caplog.text
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("operation", ["send_initial_metadata", "write", "abort"])
def test_a_caller_who_has_gone_is_no_error_of_the_server(authority, answers, monkeypatch, caplog, operation):
    """gRPC cancels the call's task then, and what is under way on it fails: a busy loop may hear of that alone."""
    monkeypatch.setattr(Server, "_answer", failing(operation, gone=True))

    def refuse(call, request):
        raise PlanRefusal("a plan must be there")

    answers.reply = refuse if operation == "abort" else lambda call, request: SignedDocument(envelope=b"plan")
    service = Service(name=SERVICE, methods=wire.COLLECTION, handlers=answers.handlers)
    settings = PortSettings(listen="127.0.0.1:0", credentials=authority.server, workers=4)
    with (
        caplog.at_level(logging.INFO),
        Server(service, settings) as running,
        client_of(running, site_credentials(authority)) as client,
        pytest.raises(NetworkRefusal),
    ):
        ask(client, timeout=2.0)
    assert "unexpected" not in caplog.text
    assert "ExecuteBatchError" not in caplog.text
    code = PlanRefusal.code if operation == "abort" else NetworkRefusal.code
    assert f" FetchPlan {code}" in caplog.text


def failing(operation, *, gone):
    """A server's answer in which this operation on the call fails, because its caller has gone or by itself."""
    from grpc._cython import cygrpc

    class Failing:
        def __init__(self, context):
            self.context, self.task = context, asyncio.current_task()

        def __getattr__(self, name):
            return getattr(self.context, name) if name != operation else self.fail

        async def fail(self, *_):
            if gone:
                self.task.cancel()
            raise cygrpc.ExecuteBatchError('Failed "execute_batch": ()')

    async def answer(self, name, method, request, context, before=Server._answer):
        await before(self, name, method, request, Failing(context))

    return answer


def test_a_caller_who_is_there_is_told_at_once_of_an_operation_that_fails(authority, answers, monkeypatch, caplog):
    answers.reply = lambda call, request: SignedDocument(envelope=b"plan")
    monkeypatch.setattr(Server, "_answer", failing("write", gone=False))
    service = Service(name=SERVICE, methods=wire.COLLECTION, handlers=answers.handlers)
    settings = PortSettings(listen="127.0.0.1:0", credentials=authority.server, workers=4)
    with (
        caplog.at_level(logging.INFO),
        Server(service, settings) as running,
        client_of(running, site_credentials(authority)) as client,
        pytest.raises(Refusal) as refused,
    ):
        ask(client, timeout=20.0)
    assert refused.value.code == Refusal.code
    assert "unexpected ExecuteBatchError" in caplog.text


def test_text_from_the_other_side_cannot_control_a_terminal(authority, answers, server):
    def rude(call, request):
        raise PlanRefusal("\x1b[2J\nred\x07" + "x" * 5000)

    answers.reply = rude
    with client_of(server, site_credentials(authority)) as client, pytest.raises(PlanRefusal) as caught:
        ask(client)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 2000


@pytest.mark.fault("F14", offered=1)
def test_a_certificate_of_another_authority_is_refused_by_the_server(authority, foreign, answers, server):
    answers.reply = lambda call, request: pytest.fail("a foreign certificate was let in")
    with client_of(server, site_credentials(foreign, authority.ca_pem)) as client, pytest.raises(CertificateRefusal):
        ask(client)


@pytest.mark.fault("F14")
def test_a_server_of_another_authority_is_refused_by_the_site(authority, foreign, server):
    with client_of(server, site_credentials(authority, foreign.ca_pem)) as client, pytest.raises(CertificateRefusal):
        ask(client)


@pytest.mark.fault("F14")
def test_a_server_with_another_name_is_refused_by_the_site(authority, server):
    mine = site_credentials(authority)
    with client_of(server, mine, "other.example.org") as client, pytest.raises(CertificateRefusal):
        ask(client)


@pytest.mark.fault("F14", offered=1)
@pytest.mark.parametrize(("first", "last", "says"), [(-9, -1, "expired"), (1, 9, "valid already")])
def test_a_certificate_out_of_its_dates_is_refused_on_either_side(
    authority, answers, server, monkeypatch, first, last, says
):
    answers.reply = lambda call, request: pytest.fail("a certificate out of its dates was let in")
    credentials = dated_credentials(authority, dt.timedelta(days=first), dt.timedelta(days=last))
    with pytest.raises(CertificateRefusal, match=says):
        client_of(server, credentials)
    # A site that does not look:
    monkeypatch.setattr("shared.wire.transport.client.require_current", lambda pem, whose: None)
    with client_of(server, credentials) as client, pytest.raises(CertificateRefusal):
        ask(client)


@pytest.mark.fault("F14", offered=1)
def test_a_certificate_that_expires_while_its_connection_lives_is_refused(authority, answers, server, monkeypatch):
    answers.reply = lambda call, request: SignedDocument(envelope=b"plan")
    with client_of(server, site_credentials(authority)) as client:
        ask(client)
        real = peer_of
        later = dt.timedelta(days=1000)
        monkeypatch.setattr("shared.wire.transport.server.peer_of", lambda pem, now: real(pem, now + later))
        with pytest.raises(CertificateRefusal, match="renew it late"):
            ask(client)


@pytest.mark.fault("F14", offered=1)
def test_a_certificate_without_a_role_is_refused(authority, answers, server):
    answers.reply = lambda call, request: pytest.fail("a server's certificate was let in as a site")
    mine = authority.server()
    with client_of(server, mine) as client, pytest.raises(CertificateRefusal):
        ask(client)


@pytest.mark.fault("F14", offered=2)
def test_there_is_no_way_in_without_a_certificate(authority, answers, server):
    import grpc

    answers.reply = lambda call, request: pytest.fail("somebody without a certificate was let in")
    path = f"/{SERVICE}/FetchPlan"
    options = [("grpc.ssl_target_name_override", "tributary-coordinator")]
    secure = grpc.ssl_channel_credentials(root_certificates=authority.ca_pem.encode())
    address = f"127.0.0.1:{server.port}"
    for channel in (grpc.insecure_channel(address), grpc.secure_channel(address, secure, options)):
        with channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path)(b"", timeout=5)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.fault("F14")
def test_a_renewed_server_certificate_is_used_without_a_restart(authority, answers, server):
    answers.reply = lambda call, request: SignedDocument(envelope=b"plan")

    def shown() -> str:
        context = ssl.create_default_context(cadata=authority.ca_pem)
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw,
            context.wrap_socket(raw, server_hostname="tributary-coordinator") as secure,
        ):
            return ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True))

    before = shown()
    authority.renew_server(["127.0.0.1"])
    assert shown() != before
    with client_of(server, site_credentials(authority)) as client:
        ask(client)


@pytest.mark.fault("F11", offered=1)
def test_a_message_over_the_cap_is_refused(authority, answers, server, monkeypatch):
    answers.reply = lambda call, request: pytest.fail("it was read")
    monkeypatch.setattr(wire, "encode", lambda value: bytes(6 << 20))
    with client_of(server, site_credentials(authority)) as client, pytest.raises(TooLarge):
        ask(client)


@pytest.mark.fault("F9", offered=1)
def test_bytes_that_are_no_message_are_refused(authority, answers, server, monkeypatch):
    answers.reply = lambda call, request: pytest.fail("it was read")
    real = wire.encode
    monkeypatch.setattr(wire, "encode", lambda value: b"\xff" * 40 if isinstance(value, StudyRequest) else real(value))
    with client_of(server, site_credentials(authority)) as client, pytest.raises(errors.SchemaRefusal):
        ask(client)


def test_a_call_has_a_deadline_of_at_most_an_hour(authority, answers, server):
    answers.reply = lambda call, request: pytest.fail("it was answered")
    with client_of(server, site_credentials(authority)) as client:
        for timeout in (7200.0, None):
            with pytest.raises(NetworkRefusal, match="deadline"):
                ask(client, timeout=timeout)


def test_a_server_that_does_not_answer_in_time_is_a_network_refusal(authority, answers, server):
    release = threading.Event()

    def slow(call, request):
        release.wait(10)
        return SignedDocument(envelope=b"plan")

    answers.reply = slow
    with client_of(server, site_credentials(authority)) as client, pytest.raises(NetworkRefusal, match="in time"):
        ask(client, timeout=0.3)
    release.set()


def test_a_server_that_is_not_there_is_a_network_refusal_that_says_what_to_check(authority, server):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gone = dataclasses.make_dataclass("Gone", [("port", int)])(port)
    with client_of(gone, site_credentials(authority)) as client, pytest.raises(NetworkRefusal, match="outbound rule"):
        ask(client, timeout=5)


def test_a_closed_client_says_so(authority, server):
    client = client_of(server, site_credentials(authority))
    client.close()
    with pytest.raises(NetworkRefusal):
        ask(client)


def test_what_goes_wrong_while_reading_the_file_is_raised_as_it_is(authority, answers, server):
    def takes(call, first):  # more than there is: an answer of the server's own could be there before the error
        while (yield) is not None:
            pass
        raise errors.IntegrityRefusal("an upload must be whole", given="a part")

    answers.reply = takes

    def chunks():
        yield Chunk(bundle_sha256="a" * 64, offset=0, data=b"x")
        raise errors.StorageRefusal("the sealed bundle must be readable")

    with client_of(server, site_credentials(authority)) as client, pytest.raises(errors.StorageRefusal):
        client.call("Upload", chunks(), timeout=10)


def test_a_port_that_is_taken_is_refused(authority, answers, server):
    service = Service(name=SERVICE, methods=wire.COLLECTION, handlers=answers.handlers)
    taken = PortSettings(listen=f"127.0.0.1:{server.port}", credentials=authority.server)
    with pytest.raises(NetworkRefusal, match="choose another port in coordinator") as refusal:
        Server(service, taken)
    assert f":{server.port}, which is in use" in refusal.value.given


def test_credentials_never_show_their_key(authority):
    assert "PRIVATE" not in repr(site_credentials(authority))


@pytest.mark.parametrize("module", ["shared.wire.transport", "shared.plans.invitation", "site_agent.egress"])
def test_grpc_is_imported_when_a_connection_is_made_and_not_before(module):
    code = f"import sys, {module}; print('grpc' in sys.modules, 'pandas' in sys.modules)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["False", "False"]


def test_an_accepted_connection_sends_the_end_of_an_answer_at_once():
    """What Nagle's algorithm holds back until the reader has acknowledged the rest, a reader waits 40 ms for."""
    with bound_socket("127.0.0.1:0") as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
