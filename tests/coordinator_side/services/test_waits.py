"""Whoever is told to end ends, and whoever waits waits no longer than it says, whatever the others do."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import sys
import threading

import pytest
from stage.both_sides.service import Hub
from stage.both_sides.transport import client_of
from stage.coordinator_side.collect import refused
from stage.coordinator_side.front import MINI, authority, named, sites_port  # noqa: F401
from stage.house.upgrade import postgres  # noqa: F401

from coordinator.services import analysts_port
from coordinator.services.analysts_port import AnalystsProcess
from coordinator.store import engine
from coordinator.store import schema as db
from coordinator.store.engine import Database
from shared.errors import NetworkRefusal, Refusal, StorageRefusal
from shared.wire.site_messages import Chunk, SignedDocument, StudyRequest


def within_a_minute(work):
    """What `work` gives; a failure, and no hang, where it gives nothing."""
    gave = []
    thread = threading.Thread(target=lambda: gave.append(work()), daemon=True)
    thread.start()
    thread.join(60)
    assert gave, "it waits for ever"
    return gave[0]


def test_a_server_ends_though_a_handler_never_comes_back(authority, monkeypatch, caplog):
    monkeypatch.setattr("shared.wire.transport.server.STOPPING", 0.2)
    entered, released = threading.Event(), threading.Event()

    def held(call, request):
        entered.set()
        released.wait(120)
        return SignedDocument(envelope=b"plan")

    def ask() -> None:
        with client_of(server, named(authority, "north")) as client, pytest.raises(Refusal):
            client.call("FetchPlan", StudyRequest(study="heart"), timeout=40)

    asking = threading.Thread(target=ask)
    with sites_port(authority, {"FetchPlan": held}) as server:
        asking.start()
        try:
            assert entered.wait(60)
            assert within_a_minute(lambda: server.stop(0.0)) is False
            assert "1 calls are still worked on" in caplog.text
        finally:
            released.set()
            asking.join(60)


def test_a_handler_whose_clean_up_fails_keeps_no_server_from_ending(authority):
    def upload(call, first):
        try:
            while True:
                try:
                    yield
                except NetworkRefusal:  # the connection broke; it goes on all the same
                    yield
        finally:
            raise OSError("a disk that is gone")

    def chunks():
        yield Chunk(bundle_sha256="a" * 64, offset=0, data=b"x")
        yield Chunk(bundle_sha256="a" * 64, offset=1, data=b"x")
        raise NetworkRefusal("the site goes")

    with sites_port(authority, {"Upload": upload}) as server:
        with client_of(server, named(authority, "north")) as client, pytest.raises(NetworkRefusal):
            client.call("Upload", chunks(), timeout=40)
        assert within_a_minute(lambda: server.stop(0.0)) is True


def test_a_process_of_the_analysts_that_says_nothing_is_given_up(tmp_path, monkeypatch):
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr(analysts_port, "START", 0.2)
    monkeypatch.setattr(analysts_port, "ENDING", 0.2)

    def begin():
        with pytest.raises(NetworkRefusal) as caught:
            AnalystsProcess(tmp_path, "127.0.0.1:0", workers=1)
        return str(caught.value)

    assert "said nothing in 0.2 seconds" in within_a_minute(begin)


def test_a_lock_that_is_never_given_back_is_waited_for_as_long_as_is_said(postgres, monkeypatch):
    import sqlalchemy as sa

    monkeypatch.setattr(engine, "LONGEST_WAIT", 1.0)
    database = Database(postgres)
    other = sa.create_engine(postgres)
    try:
        with other.begin() as holder:
            holder.execute(sa.text("LOCK TABLE log IN ACCESS EXCLUSIVE MODE"))
            wait = lambda: refused(StorageRefusal, database.entries)  # noqa: E731
            assert "LockNotAvailable" in str(within_a_minute(wait))
            write = lambda: refused(StorageRefusal, lambda: database.write(lambda c: c.execute(db.log.delete())))  # noqa: E731
            assert "LockNotAvailable" in str(within_a_minute(write))
        assert database.entries() == 0
    finally:
        other.dispose()
        database.close()


def test_one_part_of_a_coordinator_that_does_not_close_leaves_none_of_the_others_open(tmp_path, monkeypatch):
    hub = Hub(tmp_path / "hub", MINI, "north")
    server = hub.serve()
    monkeypatch.setattr(server.service, "close", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        server.stop(0.0)
    with hub.serve():  # the home folder is free again
        pass
    hub.store.close()
