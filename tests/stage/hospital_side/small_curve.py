"""A price curve of few rows, weights and draws."""

from __future__ import annotations

from site_agent.show.curve import price_curve


def quick(monkeypatch):
    """Few rows, weights and draws: what is tested is who may see which table, and where the file lies."""
    monkeypatch.setattr("site_agent.cli.release.MADE_UP_ROWS", 80)
    monkeypatch.setitem(price_curve.__kwdefaults__, "grid", (0.0, 0.5))
    monkeypatch.setitem(price_curve.__kwdefaults__, "draws", 1)
