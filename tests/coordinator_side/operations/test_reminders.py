"""Reminders by mail and webhook, against a real SMTP server and a real HTTP server on loopback."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import socket
import ssl
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from stage.coordinator_side.delivered import TODAY
from stage.coordinator_side.wave_grid import DAY, Study

from coordinator.answers import reminders
from coordinator.answers.reminders import FILE_NAME, PASSWORD_VARIABLE, Notify, remind_due, send
from coordinator.cli import main
from coordinator.config import FILE_NAME as SETTINGS
from coordinator.config import CoordinatorConfig
from coordinator.services.authority import Authority
from shared.errors import ConfigRefusal

TEXTS = {"alpha": "Wave 1 closes on 2026-01-11.", "beta": "Wave 1 closes on 2026-01-11."}


class Mailbox:
    """What arrived at the mail server, and over what."""

    def __init__(self) -> None:
        self.mails, self.users = [], []

    async def handle_DATA(self, server, session, envelope):
        self.mails.append((envelope.rcpt_tos, envelope.content.decode(), session.ssl is not None))
        return "250 OK"

    def authenticator(self, server, session, envelope, mechanism, data):
        self.users.append((data.login, data.password))
        return AuthResult(success=data.password == b"right")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mail")
    made = Authority.create(folder, coordinator="hub", names=["127.0.0.1"])
    (folder / "ca.pem").write_text(made.ca_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca" / "server.pem")
    return str(folder / "ca.pem"), context


@pytest.fixture
def mail(authority):
    """Starts a mail server: its address, and its box."""
    running = []

    def start(tls: str) -> tuple[str, Mailbox]:
        box, (_, context) = Mailbox(), authority
        secure = {"tls_context": context, "require_starttls": True} if tls == "starttls" else {}
        if tls == "tls":
            secure = {"ssl_context": context}
        given = {"authenticator": box.authenticator, "auth_require_tls": tls == "starttls"}
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = Controller(box, hostname="127.0.0.1", port=port, **secure, **given)
        server.start()
        running.append(server)
        return f"127.0.0.1:{port}", box

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def hook():
    """A webhook's address, and what was sent to it."""
    got: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(302 if "moved" in self.path else 500 if "broken" in self.path else 200)
            if "moved" in self.path:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/secret-of-the-hook", got
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("tls", ["starttls", "tls", "none"])
def test_a_mail_goes_to_the_steward_and_the_leads_over_what_is_configured(mail, authority, monkeypatch, tls):
    address, box = mail(tls)
    monkeypatch.setenv(PASSWORD_VARIABLE, "right")
    user = "" if tls == "none" else "hub"
    notify = Notify(
        smtp=address, tls=tls, ca=authority[0], user=user, sender="hub@example.org",
        lead=("lead@example.org",), sites={"alpha": "steward@alpha.example.org"},
    )  # fmt: skip
    assert [(one.site, one.failed) for one in send(notify, "cvd", 1, TEXTS)] == [("alpha", ""), ("beta", "")]
    assert [to for to, _, _ in box.mails] == [["steward@alpha.example.org", "lead@example.org"], ["lead@example.org"]]
    assert all(secure == (tls == "starttls") for _, _, secure in box.mails), "the others: all of it, or nothing"
    assert "Study cvd, wave 1: alpha is awaited" in box.mails[0][1]
    assert box.users == ([] if tls == "none" else [(b"hub", b"right")] * 2)
    assert "right" not in "".join(text for _, text, _ in box.mails)


def test_what_cannot_be_sent_is_said_without_a_secret_and_stops_nothing(mail, hook, authority, monkeypatch):
    address, box = mail("starttls")
    sent = {"smtp": address, "sender": "hub@example.org", "lead": ("lead@example.org",)}
    stranger = Notify(**sent)  # the system's authorities have not signed this server
    assert {one.failed for one in send(stranger, "cvd", 1, TEXTS)} == {"SSLCertVerificationError"}
    monkeypatch.setenv(PASSWORD_VARIABLE, "wrong-and-secret")
    monkeypatch.setattr(reminders, "SECONDS", 3.0)  # this server says no more, and is waited for as long as that
    monkeypatch.setattr(reminders, "EACH", 0.0)
    refused = send(Notify(**sent, ca=authority[0], user="hub"), "cvd", 1, TEXTS)
    kinds = {
        "SMTPAuthenticationError",
        "SMTPServerDisconnected",
        "TimeoutError",
    }  # the last: of a server that says no more
    assert {one.failed for one in refused} <= kinds
    assert "secret" not in repr(refused)
    gone = Notify(**{**sent, "smtp": "127.0.0.1:1"})
    assert {one.failed for one in send(gone, "cvd", 1, TEXTS)} == {"ConnectionRefusedError"}
    for word in ("broken", "moved"):
        found = send(Notify(webhook=f"{hook[0]}/{word}"), "cvd", 1, TEXTS)
        assert {(one.way, one.failed) for one in found} == {("webhook", "HTTPError")}
        assert "secret" not in repr(found) + repr(Notify(webhook=hook[0]))
    assert len(hook[1]) == 4, "a redirection is not followed"
    assert box.mails == []


@pytest.mark.parametrize("words", ["nonsense", "for ever", "drop by drop", "continued", "greeting"])
def test_whatever_a_server_says_it_ends_and_the_others_are_told(hook, authority, monkeypatch, words):
    """A server that is not one, or never ends: known by its kind of fault, in time, and no other way waits for it."""
    monkeypatch.setattr(reminders, "SECONDS", 3.0)
    monkeypatch.setattr(reminders, "EACH", 0.0)
    over = threading.Event()

    def serve(server) -> None:
        while not over.is_set():
            try:
                caller, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(caller,)).start()

    def answer(caller) -> None:
        with caller, contextlib.suppress(OSError):
            if words == "nonsense":
                caller.sendall(b"HELLO secret\r\n\r\n")
            while words != "nonsense" and not over.is_set():
                if words == "drop by drop":
                    over.wait(0.05)
                said = {"for ever": b"220-more\r\n" * 4096, "drop by drop": b"2", "greeting": b"220-" + b"x" * 65536}
                caller.sendall(said.get(words, b"HTTP/1.1 100 Continue\r\n\r\n"))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        place = f"127.0.0.1:{server.getsockname()[1]}"
        one = Notify(smtp=place, tls="none", sender="hub@example.org", lead=("a@b.org",), webhook=hook[0])
        other = Notify(webhook=f"http://{place}/secret")
        try:
            found = [*send(one, "cvd", 1, {"alpha": "x"}), *send(other, "cvd", 1, {"alpha": "x"})]
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert [(one.way, bool(one.failed)) for one in found] == [("mail", True), ("webhook", False), ("webhook", True)]
    assert "secret" not in repr(found)
    assert len(hook[1]) == 1


def test_a_webhook_on_this_machine_goes_through_no_proxy(hook, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert [one.failed for one in send(Notify(webhook=hook[0]), "cvd", 1, {"alpha": "x"})] == [""]


def test_a_setting_that_would_send_in_the_open_or_nowhere_is_refused(tmp_path):
    good = {"smtp": "mail.example.org:587", "sender": "hub@example.org"}
    for wrong in (
        {"webhook": "http://chat.example.org/x"},
        {"webhook": "file:///etc/passwd"},
        {"webhook": "https://me:secret@chat.example.org/x"},
        {"webhook": "https://[::1"},
        {"webhook": "https://chat.example.org:port/x"},
        {**good, "tls": "none"},
        {**good, "smtp": "127.0.0.1:25", "tls": "none", "user": "hub"},
        {**good, "tls": "maybe"},
        {**good, "smtp": "mail.example.org"},
        {**good, "sender": "hub"},
        {**good, "lead": ("a\n@b",)},
        {**good, "sites": {"north": 3}},
    ):
        with pytest.raises(ConfigRefusal):
            Notify(**wrong)
    assert not Notify.load(tmp_path).configured
    for text in ("smpt = 'x'", "lead = 'a@b.org'", "smtp = 3", "]"):
        (tmp_path / FILE_NAME).write_text(text)
        with pytest.raises(ConfigRefusal):
            Notify.load(tmp_path)


def test_open_waves_are_reminded_of_on_their_days_once_and_by_the_verb(tmp_path, hook, capsys, monkeypatch):
    made = Study(tmp_path / "home")
    with closing(made.store):
        made.deliver("alpha", 1)
        closes = made.plan.waves[0].closes
        assert remind_due(made.store, made.home, closes - 7 * DAY) == (), "nothing is configured"
        (made.home / FILE_NAME).write_text(f'webhook = "{hook[0]}"\n')
        days = [closes - 8 * DAY, closes - 7 * DAY, closes - 7 * DAY, closes - DAY, closes + DAY, closes + 7 * DAY]
        assert [len(remind_due(made.store, made.home, day)) for day in days] == [0, 2, 0, 2, 0, 2]
        assert {one["site"] for one in hook[1]} == {"beta", "gamma"}
        assert all("Wave 1 opened" in one["text"] for one in hook[1])
        values = {"home": made.home, "name": "tributary-hub", "address": "127.0.0.1:8443", "names": ("127.0.0.1",)}
        (made.home / SETTINGS).write_text(CoordinatorConfig(**values).to_toml())
        monkeypatch.setattr("coordinator.cli.releases.today", lambda: TODAY)
        assert main(["--home", str(made.home), "wave", "remind", "cvd", "1", "--json"]) == 0
        sent = json.loads(capsys.readouterr().out)["sent"]
        assert sent == [{"site": site, "way": "webhook", "failed": ""} for site in ("beta", "gamma")]
        assert dt.date.fromisoformat(made.store.reminders("cvd", "beta")[0].day) == TODAY
        assert reminders.BEFORE_END == (14, 7, 1)
