"""Standing approvals, and releases that they may let through."""

from __future__ import annotations

import json

from stage.both_sides.service import Hub as Service
from stage.both_sides.service import small_table
from stage.hospital_side.site_desk import Hospital

from shared.base.keys import Envelope, SigningKey
from shared.plans.standing import Standing

FAR = "2998-12-31"


def events(site: Hospital, expect: int = 0) -> list[dict]:
    lines = site("run", "--once", "--json", expect=expect).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def document(**changes) -> Standing:
    values = {
        "study": "mini",
        "site": "north",
        "plan_hash": "ab" * 32,
        "agent_version": "0.1.0",
        "max_epsilon": 1e6,
        "until": FAR,
        "n": 60,
        "release_id": "ab" * 16,
        "approver": "steward",
        "number": 1,
        "day": "2026-01-05",
    }
    return Standing(**{**values, **changes})


def sealed(hub: Service, n: int = 60, wave: int = 2):
    release = hub.sites["north"].release
    return hub.seal("north", wave=wave, release_id=f"{wave:032x}", table=small_table(n, seed=n), signers=[release])


def offered(hub: Service, one, envelope: Envelope | None):
    with hub.egress("north") as egress:
        return egress.send(one.envelope, one.path, standing=envelope)


def standing(hub: Service, key: SigningKey | None = None, **changes) -> Envelope:
    made = document(**{"plan_hash": hub.plan.hash, **changes})
    return made.sign(key or hub.sites["north"].steward)
