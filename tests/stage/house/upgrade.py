"""Home folders of an earlier version, and a PostgreSQL of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stage.processes.database_server import database_server

FIXTURE = Path(__file__).parents[2] / "fixtures" / "home-0.2.0.tar.xz"


@pytest.fixture(scope="module")
def postgres():
    """A PostgreSQL server of our own, on a socket; the URL of its database."""
    with database_server("upgrade") as server:
        yield server.url


def _ticks(home, release_id):
    checks = json.loads((home / "sealed" / release_id / "checks.json").read_bytes())["content"]
    return [word for name, one in checks.items() if "warn" in json.dumps(one) for word in ("--tick", name)]
