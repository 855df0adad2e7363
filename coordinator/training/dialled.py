"""A training by the sites that dial in: it has its folder alone, and the finished flow is up for all of them.

Flower's part is in `coordinator.training.federation`, the way to the sites in `coordinator.training.dialled_grid`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.services.collect.round_queue import RoundQueue
from shared.errors import (
    LockedRefusal,
    PlanRefusal,
    RoleRefusal,
    StateRefusal,
    require,
)
from shared.wire.rounds import node_id

if TYPE_CHECKING:
    from coordinator.store.store import RegisteredSite, Store
    from coordinator.training.dialled_grid import Carrier
    from coordinator.training.federation import SiteProgress
    from shared.base.keys import SigningKey
    from shared.plans.federated import FederatedFlow
    from shared.plans.plan import StudyPlan

__all__ = ["alone", "nodes", "train"]

FOLDER = "federated"


def nodes(store: Store, study: str) -> dict[str, int]:
    """Every site that has joined the study, with the number by which Flower knows it."""
    joined = {site.site: site for site in store.sites()}
    return {
        name: node_id(joined[name].release_key) for name in store.members(study) if joined[name].state == "accepted"
    }


def train(
    *,
    home: Path,
    store: Store,
    plan: StudyPlan,
    key: SigningKey,
    timeout: float = 3600.0,
    progress: Callable[[int, Mapping[str, SiteProgress]], None] | None = None,
    carrier: Carrier | None = None,
) -> FederatedFlow:
    """Run the training of a plan with the sites that dial in, or go on with it; the flow is then up for all of them.

    Args:
        home: the coordinator's folder; state and flow are kept in ``federated/<study>/<plan hash>``.
        plan: with [federated].
        key: the coordinator's witness key, which signs every round.
        timeout: seconds that a round waits for its quorum.
        progress: see `coordinator.training.federation.run`.
        carrier: another way to the sites; what comes by it is checked like an answer of a site that dials in.
    Raises: see `coordinator.training.federation.run`; TooLarge (a flow that one message does not hold); StateRefusal
        (no site); LockedRefusal (another process runs it).
    """
    require("flwr")
    from coordinator.training import federation
    from coordinator.training.dialled_grid import DialledGrid, order_of, require_room

    if plan.federated is None:
        raise PlanRefusal("a training by all sites must have [federated] in its plan", given="none")
    sites = nodes(store, plan.study)
    if not sites:
        raise StateRefusal("a site must have joined the study", given="none", next_step="coordinator invite SITE.")
    queue = RoundQueue(store)
    folder = home / FOLDER / plan.study / plan.hash[:16]
    with alone(folder):
        flow = federation.run(
            DialledGrid(
                queue,
                plan,
                {node: site for site, node in sites.items()},
                key,
                carrier=None if carrier is None else (carrier, lambda name: _enrolled(store, name)),
            ),
            plan,
            sites,
            folder,
            timeout=timeout,
            report=progress,
        )
    content = flow.canonical
    require_room(len(content))
    said = order_of(plan, "finished", flow.rounds, content)
    queue.ask(said, content, (), key)
    return flow


def _enrolled(store: Store, name: str) -> RegisteredSite:
    """A site as it is enrolled now. Raises: RoleRefusal."""
    for site in store.sites():
        if site.site == name and site.state == "accepted":
            return site
    raise RoleRefusal("an answer must come from a site that has joined", given="one that has left")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a training's folder, or a sum's: two that run it would take different answers. Raises: LockedRefusal."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockedRefusal(
                "one process must run a training or a sum",
                given="another one that does",
                next_step="Let it go on, or stop it first: coordinator federate status shows how far it is.",
            ) from None
        yield
