"""A release that was taken back."""

from __future__ import annotations

from stage.both_sides.service import Hub

from shared.base.keys import Envelope
from shared.wire.signed_messages import Withdrawal


def taken_back(hub: Hub, sealed, *, signers=None, **changes) -> Envelope:
    said, keys = sealed.statement, hub.sites[sealed.statement.site]
    values = {name: getattr(said, name) for name in ("study", "site", "wave", "release_id", "bundle_sha256")}
    document = Withdrawal(**{**values, "reason_code": "consent", **changes})
    return document.sign([keys.release, keys.steward] if signers is None else signers)
