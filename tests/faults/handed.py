"""Parsers of what goes between hospitals through the coordinator, and of what a coordinator hands out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from stage.mechanisms.opened_sum import opened_by
from stage.mechanisms.ring import Ring, terms_of
from stage.training.federation import trained

from coordinator.analyst.access.token_file import Pass
from coordinator.web.workbench import forms
from faults.fuzz import Target
from shared.base.canonical import canonical_json, parse_json
from shared.base.keys import SigningKey
from shared.base.merkle.tree import append, leaf_hash, peaks_root
from shared.errors import SchemaRefusal
from shared.mechanisms.secure_sum import messages
from shared.mechanisms.secure_sum.messages import ToldLevel
from shared.mechanisms.secure_sum.opened import OpenedSum
from shared.mechanisms.secure_sum.sent_look import SentLook, SentModel, SentVectorLook
from shared.mechanisms.secure_sum.steps import LookOrder
from shared.plans.federated import FederatedFlow
from shared.wire.site_messages import LogView
from shared.wire.tree_heads import TreeHead, check_view

__all__ = ["handed"]

FORM = (
    ("kind", "cox"),
    ("time", "years"),
    ("event", "died"),
    ("exposure", "sbp"),
    ("per", "10"),
    ("adjust", "age"),
    ("adjust", "sex"),
    ("subset_column", "sex"),
    ("subset_is", "=="),
    ("subset_value", "male"),
    ("level", "0.95"),
    ("wave", "2"),
)
COLUMNS: dict[str, dict[str, Any]] = {
    "sbp": {"kind": "continuous"},
    "sex": {"kind": "nominal", "levels": ["female", "male"]},
    "age": {"kind": "integer"},
}


def handed(folder: Path, key: SigningKey) -> Iterator[Target]:
    """One target for each.

    Args:
        folder: for files that are read. key: the coordinator's, which a stranger has: what it signs is read at all.
    """
    yield _summed()
    opened = opened_by(Ring(terms_of(), lost={3: "masked"}), 2.0)
    yield Target("opened sum", (opened.to_bytes(),), OpenedSum.from_bytes)
    asked = [LookOrder(look=look, pilots=opened.pilots).to_bytes(opened.terms) for look in _looks(opened)]
    yield Target("secure sum's looks", tuple(asked), lambda data: LookOrder.from_bytes(data, opened.terms))
    flow = trained(folder / "trained").canonical
    yield Target("trained flow", (flow,), lambda data: FederatedFlow.from_bytes(data))
    yield _grown(key)
    token = folder / "token.json"
    given = {"name": "ada", "role": "analyst", "studies": ["mini"], "address": "hub:8444", "server_name": "hub"}
    given |= {"ca_pem": "PEM", "token": "t" * 43, "expires": "2999-01-01", "witness": key.public.hex}

    def loaded(data: bytes) -> object:
        token.write_bytes(data)
        return Pass.load(token)

    yield Target("token's file", (canonical_json(given),), loaded)

    def filled(data: bytes) -> object:
        """A form as HTTP carries it: names and texts."""
        said = parse_json(data)
        if not (isinstance(said, list) and all(isinstance(one, list) and len(one) == 2 for one in said)):
            raise SchemaRefusal("a form must be names and texts")
        return forms.query_request("mini", [(str(name), str(text)) for name, text in said], COLUMNS)

    yield Target("page's form", (canonical_json([list(one) for one in FORM]),), filled)


def _summed() -> Target:
    """Every message of a secure sum, as it is read by whoever it is for."""
    terms, seen = terms_of(), dict[type, bytes]()

    class Heard(Ring):
        """A ring that keeps one message of each kind."""

        def up(self, site: int, message: Any) -> Any:
            seen.setdefault(type(message), message.to_bytes(self.terms))
            return super().up(site, message)

        down = up

    Heard(terms).until("opening")
    # A ring begins after the sites' levels.
    seen[ToldLevel] = ToldLevel(sender=0, events=41.5, charges=38.25).to_bytes(terms)
    kinds = list(seen)
    assert {kind.__name__ for kind in kinds} == set(messages.__all__) - {"BOX", "Lists"}

    def read(data: bytes) -> object:
        kind = next((one for one in kinds if f'"kind":"{one.kind}"'.encode() in data), kinds[0])
        return kind.from_bytes(data, terms)

    return Target("secure sum's messages", tuple(seen.values()), read)


def _looks(opened: OpenedSum) -> tuple[SentLook, SentVectorLook]:
    """One of one coefficient, and one of two."""
    one = next(iter(opened.parts.values())).look
    assert isinstance(one, SentLook)
    two = {name: (getattr(one, name),) * 2 for name in ("start", "along", "means")}
    same = {item.name: getattr(one, item.name) for item in fields(SentModel)}
    return one, SentVectorLook(**same, **two, weights=(0.4, 1.0), whitening=((1.0, 0.1), (0.1, 2.0)))


def _grown(key: SigningKey) -> Target:
    """A look at the log with proofs that it grew, and the word that it was restored; the head is truly signed."""
    peaks: tuple[bytes, ...] = ()
    roots = []
    for place in range(3):
        peaks = append(peaks, place, leaf_hash(b"entry %d" % place))
        roots.append(peaks_root(peaks).hex())

    def looked(data: bytes) -> object:
        said = parse_json(data)
        try:
            head = TreeHead(coordinator="hub", size=said["size"], root=said["root"], day=said["day"])
            growth = tuple(tuple(bytes.fromhex(one) for one in proof) for proof in said["growth"])
            seen = [(size, root) for size, root in said["seen"]]
            if not all(isinstance(size, int) and size > 0 and root in roots for size, root in seen):
                raise ValueError  # what was seen is one's own
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SchemaRefusal("a look at the log must have its form") from None
        view = LogView(head=head.sign(key).to_bytes(), growth=growth)
        return check_view(view, key.public, seen)

    third = leaf_hash(b"entry 2").hex()
    shown = {"size": 3, "root": roots[2], "day": "2026-01-05", "growth": [[third]], "seen": [[2, roots[1]]]}
    return Target("log's growth", (json.dumps(shown, sort_keys=True, separators=(",", ":")).encode(),), looked)
