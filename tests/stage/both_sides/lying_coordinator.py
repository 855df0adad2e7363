"""A site before a coordinator whose methods a test may replace."""

from __future__ import annotations

import pytest
from stage.both_sides.service import Hub
from stage.hospital_side.recovery import PLAN, Agent

from coordinator.services.collect.service import CollectionService


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """A site before a coordinator whose methods a test may replace: ``agent.lies["Status"] = function``."""
    lies = {}
    honest = CollectionService.handlers.fget

    def handlers(self):
        def of(name, method):
            return lambda call, request: lies.get(name, lambda *_: method(call, request))(call, request)

        return {name: of(name, method) for name, method in honest(self).items()}

    monkeypatch.setattr(CollectionService, "handlers", property(handlers))
    hub = Hub(tmp_path / "hub", PLAN, "north", "south")
    with hub.serve():
        made = Agent(hub, tmp_path / "site")
        made.lies = lies
        yield made
        made.door.close()
    hub.store.close()
