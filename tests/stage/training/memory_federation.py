"""A training without a network or a disk: one process holds the grid and every site's source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.plans.plan import StudyPlan
from shared.wire import flower

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

Array = NDArray[np.float64]


def memory_grid(apps: Mapping[int, Callable[[Message], Message | None]]) -> Grid:
    """Flower's grid inside one process: for tests, benchmarks and rehearsals.

    Args:
        apps: node id to what answers a message; None for no answer in time. A Flower `ClientApp` becomes one by
            ``lambda message: app(message, context)``.
    """
    flower.prepare()
    from flwr.serverapp import Grid

    class MemoryGrid(Grid):
        """Asks one app after the other, when the answers are pulled."""

        def __init__(self) -> None:
            self._waiting: dict[str, Message] = {}
            self._count = 0

        def set_run(self, run: Any) -> None:
            """There is only one."""

        @property
        def run(self) -> Any:
            """None: there is no runtime."""
            return None

        def create_message(
            self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
        ) -> Message:
            """See `shared.wire.flower.addressed`."""
            self._count += 1
            return flower.addressed(
                content,
                message_type=message_type,
                source=0,
                target=dst_node_id,
                name=f"m{self._count}",
                group=group_id,
                ttl=ttl or flower.DAY,
            )

        def get_node_ids(self) -> Iterable[int]:
            """All of them."""
            return list(apps)

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            """Keep them."""
            names = []
            for message in messages:
                names.append(message.metadata.message_id)
                self._waiting[names[-1]] = message
            return names

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            """The apps' replies."""
            found = []
            for name in message_ids:
                message = self._waiting.pop(name)
                answer = apps[message.metadata.dst_node_id](message)
                if answer is not None:
                    found.append(answer)
            return found

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            """Both, one after the other."""
            return self.pull_messages(self.push_messages(messages))

    return MemoryGrid()


@dataclass(kw_only=True, eq=False)
class MemorySource:
    """A source without a disk: for tests, benchmarks and rehearsals on made-up records. It approves everything."""

    plan: StudyPlan
    site: str
    encoded: Array = field(repr=False)
    rng: Noise
    claimed: list[int] = field(default_factory=list)
    answers: dict[int, tuple[str, Array]] = field(default_factory=dict, repr=False)

    def answered(self, round_: int) -> tuple[str, Array] | None:
        """See `TrainingSource`."""
        return self.answers.get(round_)

    def allow(self, round_: int) -> None:
        """Every round; it is written down."""
        self.claimed.append(round_)

    def records(self) -> Array:
        """See `TrainingSource`."""
        return self.encoded

    def noise(self) -> Noise:
        """See `TrainingSource`."""
        return self.rng

    def keep(self, round_: int, start_digest: str, weights: Array) -> None:
        """See `TrainingSource`."""
        self.answers[round_] = (start_digest, weights)
