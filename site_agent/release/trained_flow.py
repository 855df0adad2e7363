"""The flow that several sites have trained, as it lies at this site: where, what it cost here, and how it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import PlanChanged, StateRefusal

if TYPE_CHECKING:
    from shared.flows.chain import Composed
    from shared.plans.encoding import Encoder
    from shared.plans.federated import FederatedFlow
    from site_agent.ledger.book import Ledger

__all__ = ["FLOWS", "charge_of", "federated_flow", "flow_path", "kept_flow"]

FLOWS = "flows"
"""Folder of the trained flows that came back, each named by its digest."""


def charge_of(ledger: Ledger, flow: FederatedFlow) -> dict[str, Any]:
    """Charge of a trained flow at this site: event, day, approval; empty where it took no part.

    Raises: PlanChanged, where the flow is not the one that this site's training ended with, or not of its charge.
    """
    mine = [hold for hold in ledger.holds() if hold.rounds and hold.plan_hash == flow.plan_hash and hold.drawn]
    if not mine:
        return {}
    hold = mine[-1]
    said = (dict(flow.event), flow.delta, flow.rounds, round(flow.epsilon, 9))
    if hold.flow not in ("", flow.digest) or said != (
        dict(hold.event),
        hold.delta,
        hold.rounds,
        round(hold.epsilon or 0.0, 9),
    ):
        raise PlanChanged(
            "a flow of a training in which this site took part must be the one that it ended with, at its price",
            given=f"{flow.digest[:12]}…" + (f" for {hold.flow[:12]}…" if hold.flow else " with another price"),
            next_step="Nothing was charged. Ask the study lead which flow the plan should name.",
        )
    approved = [
        entry.body["name"]
        for entry in ledger.entries()
        if entry.kind == "plan_approved" and entry.body["plan_hash"] == hold.plan_hash and entry.seq < hold.reserved_seq
    ]
    return {
        "release_id": hold.release_id,
        "plan_hash": hold.plan_hash,
        "day": hold.day,
        "approver": approved[-1] if approved else "agent",
        "rounds": hold.rounds,
        "epsilon": hold.epsilon,
        "delta": hold.delta,
    }


def flow_path(home: Path, digest: str) -> Path:
    """Path of a trained flow."""
    return home / FLOWS / f"{digest}.json"


def kept_flow(home: Path, name: str) -> FederatedFlow:
    """The trained flow that a plan names. Raises: StateRefusal (it is not here), PlanChanged (another one)."""
    from shared.plans.federated import PREFIX, FederatedFlow

    path = flow_path(home, name.removeprefix(PREFIX))
    if not path.exists():
        raise StateRefusal(
            "the flow that the plan names must be at this site",
            given="no such file",
            next_step="Run site-agent federate STUDY: it fetches the flow that the training ended with.",
        )
    return FederatedFlow.from_bytes(path.read_bytes(), name=name)


def federated_flow(trained: FederatedFlow, encoder: Encoder, site: str) -> Composed:
    """A trained flow as the site uses it, latents to encoded records: its public start behind the trained layers.

    Raises: PlanChanged, if the flow is one of other columns.
    """
    import numpy as np

    from shared.flows.affine import AffineAutoregressiveFlow
    from shared.flows.chain import Composed
    from shared.plans.public_start import public_start

    if trained.dictionary_hash != encoder.dictionary.hash or trained.shape.d != encoder.d:
        raise PlanChanged(
            "a trained flow must be one of the plan's own dictionary",
            given=f"dictionary {trained.dictionary_hash[:12]}…",
            next_step="Ask the study lead for a plan with the dictionary of the training.",
        )
    start = public_start(encoder, trained.references(site))
    affine = AffineAutoregressiveFlow(mean=np.zeros(encoder.d), scale=np.eye(encoder.d), layers=trained.layers())
    return Composed(first=affine, second=start.second)
