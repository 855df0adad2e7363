"""The coordinator's side of a federated training: Flower's strategies, named sites, a state on disk, typed refusals.

`run` drives Flower's own `FedAvg` or `FedAdam` over any `Grid`. What is added is what a network of hospitals needs:

* **Named sites.** A round goes to the nodes of the given sites, by id, and never to "all that are connected".
* **Nothing believed.** An answer is taken only if it is of this plan and round, to these weights, one vector of the
  right length with finite entries, no further away than the training can move it, and was not sent before. The reason
  of every refusal is kept by site and round. A site's weight in the mean is its number of records, said once and for
  all, and no more than the plan lets a site count for.
* **Quorum.** A round that fewer sites answer stops the training with a reason; stragglers are asked again in the next.
* **A state on disk**, whole after every round. `run` goes on where it stopped, after a crash of either side: a site
  that has answered the round gives the same answer again, and nothing is charged twice.

The coordinator holds no record and is trusted with nobody's privacy: every answer has its noise in it already. A site
that lies can spoil the flow, by no more per round than the bound above; it cannot learn more than the flow.

There is no early stopping: a loss on records would be one more release to pay for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.training.state import SiteProgress, TrainingState
from shared.base.keys import write_private
from shared.errors import (
    ParameterError,
    PlanRefusal,
    StorageRefusal,
)
from shared.plans.encoding import Encoder
from shared.plans.federated import (
    FederatedFlow,
    Shape,
    first_weights,
    price,
    stated,
)
from shared.plans.plan import StudyPlan
from shared.wire import flower

if TYPE_CHECKING:
    from flwr.serverapp import Grid

__all__ = ["FLOW", "STATE", "SiteProgress", "run", "seed_of"]

Array = NDArray[np.float64]

STATE, FLOW = "training.json", "flow.json"
"""Files in the training's folder: the state after the last whole round, and the flow when all are done."""


def seed_of(plan: StudyPlan) -> int:
    """The public seed of the first weights: the plan's hash."""
    return int.from_bytes(hashlib.sha256(b"tributary federated start\0" + plan.hash.encode()).digest()[:8], "big")


def run(
    grid: Grid,
    plan: StudyPlan,
    sites: Mapping[str, int],
    folder: Path,
    *,
    timeout: float = 3600.0,
    report: Callable[[int, Mapping[str, SiteProgress]], None] | None = None,
) -> FederatedFlow:
    """Train the plan's flow with these sites, or go on with a training that was interrupted.

    Args:
        grid: brings messages to nodes and answers back.
        plan: with [federated].
        sites: site to node id; these are asked, and no others.
        folder: of this training's state and result; made if it is not there.
        timeout: seconds that a round waits for answers.
        report: called after every round with its number and what each site has done.
    Returns: the flow, which is also in the folder.
    Raises: NetworkRefusal, if fewer sites than the quorum answered a round: the state before that round is kept, and
        the same call goes on from it. PlanRefusal, PlanChanged, ParameterError, StorageRefusal, SchemaRefusal.
    """
    from flwr.app import ArrayRecord

    from coordinator.training.strategies import STRATEGIES

    if plan.federated is None:
        raise PlanRefusal("a training by all sites must have [federated] in its plan", given="none")
    if len(set(sites.values())) != len(sites) or len(sites) < plan.federated.quorum:
        raise ParameterError(
            f"a training must have at least {plan.federated.quorum} sites, each with a node of its own",
            given=f"{len(sites)} sites and {len(set(sites.values()))} nodes",
        )
    folder.mkdir(parents=True, exist_ok=True)
    shape = Shape.of(Encoder(dictionary=plan.dictionary).d, plan.training)
    done = folder / FLOW
    if done.exists():
        flow = FederatedFlow.from_bytes(_read(done))
        flow.require_true(plan)
        return flow
    state = _opened(folder, plan, shape)
    for site, node in sites.items():
        state.sites.setdefault(site, SiteProgress(node=node)).node = node

    def keep() -> None:
        write_private(folder / STATE, state.to_bytes(plan))
        if report is not None:
            report(state.round, state.sites)

    left = plan.federated.rounds - state.round
    if left:
        strategy = STRATEGIES[plan.federated.strategy](plan, shape, dict(sites), state, keep)
        strategy.start(
            grid, ArrayRecord({flower.WEIGHTS: flower.vector(state.weights)}), num_rounds=left, timeout=timeout
        )
    flow = _flow(plan, shape, state)
    write_private(done, flow.canonical)
    return flow


def _opened(folder: Path, plan: StudyPlan, shape: Shape) -> TrainingState:
    path = folder / STATE
    if path.exists():
        return TrainingState.from_bytes(_read(path), plan, shape)
    return TrainingState(round=0, weights=first_weights(shape, seed_of(plan)), mean=None, square=None, sites={})


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageRefusal(f"{path.name} must be readable", given=error.strerror or "an error") from error


def _flow(plan: StudyPlan, shape: Shape, state: TrainingState) -> FederatedFlow:
    assert plan.federated is not None
    event = plan.federated.event
    return FederatedFlow(
        study=plan.study,
        plan_hash=plan.hash,
        dictionary_hash=plan.dictionary.hash,
        shape=shape,
        weights=state.weights,
        reference=stated(plan),
        rounds=state.round,
        event=event.to_canonical(),
        delta=plan.budget.delta,
        epsilon=price(event, plan.budget.delta),
        sites={
            site: {
                "n": progress.n,
                "answered": len(progress.answered),
                "refused": sorted({code for code, _ in progress.refused.values()}),
            }
            for site, progress in state.sites.items()
        },
    )
