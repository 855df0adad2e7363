"""The coordinator's part in a training that Flower's deployment runtime carries: the same rounds, by another way.

The runtime's grid is only a carrier (`coordinator.training.dialled_grid.Carrier`). Questions are signed and answers
checked as for sites that dial in, and both are in the same queue: a training may be begun by one way and ended by the
other, and a site of the same study that has no node dials in. What Flower loses (a node that was started again forgets
its message) is asked again; the site then sends the very bytes that it has sealed.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConfigRefusal, PlanRefusal
from shared.wire import flower
from shared.wire.site_messages import RoundAnswer, RoundReply

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

__all__ = ["NODES", "Carried", "app", "nodes_of"]

NODES = "flower-nodes.toml"
"""File in the coordinator's folder: site = node id, as ``flwr supernode register`` printed it."""
RETRY, LOST = 5.0, 300.0
"""Seconds after which a site is asked again: one that gave no answer, and one of which nothing was heard at all."""
_TTL = 3600.0
_MOST_NODE = 1 << 64


def app() -> ServerApp:
    """The app that `deploy/flower` names: trains the newest plan of the study in its run's configuration.

    The coordinator's folder comes from the environment of the SuperLink, and not from the run, which every node sees.
    """
    flower.prepare()
    from flwr.serverapp import ServerApp

    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        from coordinator.config import CoordinatorConfig, default_home
        from coordinator.services.authority import Authority
        from coordinator.store.store import Store
        from coordinator.training.dialled import train

        config = CoordinatorConfig.load(default_home())
        store = Store.open(config.home, config.store, config.bundles)
        try:
            plan = store.plan(str(context.run_config.get("study", ""))).plan
            if plan.federated is None:
                raise PlanRefusal("a training by all sites must have [federated] in its plan", given="none")
            train(
                home=config.home,
                store=store,
                plan=plan,
                key=Authority.load(config.home).witness,
                timeout=60 * float(context.run_config.get("timeout", 60)),
                carrier=Carried(grid, nodes_of(config.home)),
            )
        finally:
            store.close()

    return made


def nodes_of(home: Path) -> dict[str, int]:
    """Site to Flower's number of its node. Raises: ConfigRefusal."""
    try:
        said = tomllib.loads((home / NODES).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigRefusal(f"{NODES} must be readable", given=type(error).__name__) from None
    numbers = list(said.values())
    if not all(type(number) is int and 0 < number < _MOST_NODE for number in numbers) or len(set(numbers)) < len(
        numbers
    ):
        raise ConfigRefusal(
            f"{NODES} must give each site the id of a node of its own",
            given="something else",
            next_step="Write site = id, as flwr supernode register printed it.",
        )
    return said


class Carried:
    """Flower's grid as a carrier.

    Args:
        grid: of the runtime.
        nodes: site to node id; only these are asked by this way.
        clock: seconds.
    """

    def __init__(self, grid: Grid, nodes: Mapping[str, int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._grid, self._nodes, self._clock = grid, dict(nodes), clock
        self._order: RoundReply | None = None
        self._out: dict[str, str] = {}
        self._due: dict[str, float] = {}

    def ask(self, order: RoundReply, sites: Sequence[str]) -> None:
        """See `Carrier`."""
        self._order, self._out = order, {}
        self._due = {site: self._clock() for site in sites if site in self._nodes}
        self._push()

    def answers(self) -> Iterable[tuple[str, RoundAnswer]]:
        """See `Carrier`."""
        found: list[tuple[str, RoundAnswer]] = []
        for reply in self._grid.pull_messages(list(self._out)) if self._out else ():
            site = self._out.pop(reply.metadata.reply_to_message_id, "")
            if not site or reply.metadata.src_node_id != self._nodes[site]:
                continue
            try:
                envelope, content = flower.carried(reply)
                found.append((site, RoundAnswer(envelope=envelope, content=content)))
            except Exception:  # whatever a node sent: one that broke this process would break it at every attempt
                pass
            # Asked again unless it is `taken`: bytes that the network spoiled come once more, as they were sealed.
            self._due[site] = self._clock() + RETRY
        self._push()
        return found

    def taken(self, site: str) -> None:
        """See `Carrier`."""
        self._due.pop(site, None)

    def _push(self) -> None:
        now = self._clock()
        late = [site for site, due in self._due.items() if due <= now]
        if not late or self._order is None:
            return
        content = flower.carrying(self._order.envelope, self._order.content)
        messages = [self._grid.create_message(content, "train", self._nodes[site], "", _TTL) for site in late]
        for site, name in zip(late, self._grid.push_messages(messages), strict=True):
            if name:
                self._out[name] = site
            self._due[site] = now + LOST
