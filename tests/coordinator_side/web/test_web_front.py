"""Strangers and crowds before the HTTPS port: what each takes of it, and that nobody at work is put out for them."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stage.browser.web_stage import web_stage

from coordinator.services import analysis
from coordinator.web import server
from shared.wire.transport import CallLimits

MEAN = {"kind": "mean", "formula": "sbp"}


@pytest.fixture
def served(tmp_path):
    """Serves a stage of so many connections, and ends it."""
    with contextlib.ExitStack() as open_:

        def serve(**limits):
            stage = web_stage(tmp_path / "hub").start(limits=CallLimits(**limits))
            open_.callback(stage.store.close)
            open_.callback(stage.running.stop, 0.2)
            return stage

        yield serve


def dialled(stage, address="127.0.0.1"):
    """A connection from one of this machine's addresses, with TLS."""
    raw = socket.create_connection(("127.0.0.1", stage.running.web_port), timeout=60, source_address=(address, 0))
    return stage.tls.wrap_socket(raw, server_hostname="127.0.0.1")


def said(line, path, *headers):
    """The status of a call over this connection, its answer read to the end."""
    line.sendall("\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode())
    text = b""
    while b"\r\n\r\n" not in text:
        part = line.recv(4096)
        if not part:
            raise ConnectionError("the connection was closed")
        text += part
    head, _, body = text.partition(b"\r\n\r\n")
    length = next(int(one.split(b":")[1]) for one in head.split(b"\r\n") if one.lower().startswith(b"content-length"))
    while len(body) < length:
        body += line.recv(4096)
    return int(head.split()[1])


def ended(line):
    """True once the other side has closed."""
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        while line.recv(4096):
            pass
    return True


def until(holds):
    """Wait for what is on its way."""
    limit = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < limit, "it did not come to that"
        time.sleep(0.02)


def is_open(line, token):
    """True if the connection still answers."""
    with contextlib.suppress(OSError):
        return said(line, "/v1/studies", f"Authorization: Bearer {token}") == 200
    return False


def test_a_question_that_is_computed_is_not_put_out_by_its_callers_further_connections(served, monkeypatch):
    stage = served(per_peer=2)
    token = stage.admit()
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:slowly")
    with stage.web(token) as asking, ThreadPoolExecutor(1) as threads, contextlib.ExitStack() as open_:
        asked = threads.submit(asking.post, "/v1/studies/cvd/queries", json=MEAN)
        until(lambda: [*stage.home.glob("asked.*")])
        for _ in range(4):
            assert is_open(open_.enter_context(dialled(stage)), token)
        (stage.home / "go").touch()
        assert asked.result(60).status_code in (200, 422)


@pytest.mark.fault("F21")
def test_a_question_whose_caller_has_left_is_computed_no_further(served, monkeypatch):
    stage = served()
    token = stage.admit()
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:slowly")
    body = json.dumps(MEAN).encode()
    head = [
        "POST /v1/studies/cvd/queries HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "",
        "",
    ]
    with dialled(stage) as line:
        line.sendall("\r\n".join(head).encode() + body)
        until(lambda: [*stage.home.glob("asked.*")])
        [asked] = stage.home.glob("asked.*")
        worker = Path("/proc") / asked.name.split(".")[1]
        assert worker.exists()
    until(lambda: not worker.exists())


def test_whoever_was_let_in_without_a_token_makes_room_before_one_who_has_shown_it(served):
    stage = served(connections=3)
    token = stage.admit()
    with contextlib.ExitStack() as open_:
        honest = open_.enter_context(dialled(stage))
        assert is_open(honest, token)
        for address in ("127.0.0.2", "127.0.0.3"):
            assert said(open_.enter_context(dialled(stage, address)), "/sign-in") == 200
        newcomer = open_.enter_context(dialled(stage, "127.0.0.4"))
        assert said(newcomer, "/sign-in") == 200
        assert is_open(honest, token)


def test_persons_behind_one_address_are_counted_by_their_tokens(served):
    stage = served(per_peer=2)
    tokens = [stage.admit(name) for name in ("ada", "ben", "cy", "dan")]
    with contextlib.ExitStack() as open_:
        lines = []
        for token in tokens:
            line = open_.enter_context(dialled(stage))
            assert said(line, "/sign-in") == 200
            assert is_open(line, token)
            lines.append(line)
        assert [is_open(line, token) for line, token in zip(lines, tokens, strict=True)] == [True] * 4


def test_wrong_tokens_are_bounded_behind_a_call_that_anybody_may_make(served):
    stage = served(guesses=0.05, strikes=8)
    seen = []
    for _ in range(3):
        with dialled(stage) as line:
            assert said(line, "/sign-in") == 200
            seen.append(said(line, "/v1/studies", "Authorization: Bearer 0123456789abcdef.wrong"))
    assert seen == [401, 429, 429]


def test_the_last_refusal_on_a_connection_says_so_and_the_next_call_goes_by_another(served):
    stage = served(strikes=4)
    with stage.web(stage.admit()) as web:
        answered = [web.get("/v1/studies/cvd/log?after=-1") for _ in range(9)]
    assert [one.status_code for one in answered] == [400] * 9
    assert [one.headers.get("connection") == "close" for one in answered] == [place in (3, 7) for place in range(9)]


def test_a_second_call_that_never_comes_whole_ends_its_connection(served, monkeypatch):
    monkeypatch.setattr(server, "QUIET", 0.5)
    stage = served()
    with dialled(stage) as line:
        assert is_open(line, stage.admit())
        line.settimeout(20)
        line.sendall(b"GET /v1/studies HTTP/1.1\r\nHost: 127.0.0.1\r\nX")
        assert ended(line)


def test_an_answer_that_is_not_taken_ends_its_connection(served):
    stage = served(idle=1.0)
    token, door = stage.admit("lena", ("cvd", "lungs"), "lead"), stage.running._analysis.web._door
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(60)
    raw.connect(("127.0.0.1", stage.running.web_port))
    with stage.tls.wrap_socket(raw, server_hostname="127.0.0.1") as line:
        call = f"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        assert is_open(line, token)
        line.sendall(call.encode() * 200)
        until(lambda: not door.carried)
