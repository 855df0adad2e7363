"""What a screen and the site's own page say of the budget."""

from __future__ import annotations

import asyncio
import io
from types import SimpleNamespace

from rich.console import Console
from stage.mechanisms.postures import TODAY

from site_agent.show.page import access
from site_agent.show.page import pages as page


def shown(print_to) -> str:
    """Everything that a screen prints."""
    out = Console(width=200, record=True, file=io.StringIO())
    print_to(out)
    return out.export_text()


def budget_page(at) -> str:
    """The budget as the site's own page tells it."""
    gate = access.Gate(announce=lambda password: None)
    config = SimpleNamespace(site=at.name, approvers={}, certificate=at.ledger.path.parent / "none.pem")
    at_desk = {"ledger": at.ledger, "home": at.ledger.path.parent, "replies": None}
    (at.ledger.path.parent / "site.toml").touch()
    desk = SimpleNamespace(**at_desk, paused=False, config=config)
    pages = page.AirlockPages(
        lambda: desk, gate=gate, hosts=("localhost:1",), agent_version="0.1.0", today=lambda: TODAY
    )
    app = pages.application()
    cookie = f"{gate.cookie}={gate.enter(gate.password)}".encode()
    sent = []

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/budget", "root_path": "", "query_string": b"", "scheme": "http"}
    asyncio.run(app({**scope, "headers": [(b"host", b"localhost:1"), (b"cookie", cookie)]}, receive, send))
    assert sent[0]["status"] == 200
    return b"".join(message.get("body", b"") for message in sent).decode()
