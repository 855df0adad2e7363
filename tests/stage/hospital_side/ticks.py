"""The ticks that a release's warnings ask for."""

from __future__ import annotations

from stage.hospital_side.site_desk import Hospital


def ticks(site: Hospital, release_id: str) -> list[str]:
    warned = site.json("outbox", "show", release_id)["warnings"]
    return [word for warning in warned for word in ("--tick", warning["name"])]
