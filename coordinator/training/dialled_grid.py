"""Flower's grid over the sites' own channel: a message becomes a signed round in a queue, and the sites dial in.

The strategies of `coordinator.training.strategies` do not know the difference. What a site may see of a message is the
weights, the plan and the round; what comes back is what it signed, or the code of its refusal. Nothing is lost when
this process stops: asked again, a round is the same round, and the answers to it are in the queue.
Imported only where `flwr` is used.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shared.base.canonical import sha256_hex
from shared.errors import CATALOGUE, Refusal, SchemaRefusal, StateRefusal, TooLarge
from shared.wire import flower
from shared.wire.message_limits import ROUND_CAP
from shared.wire.rounds import RoundOrder, pack, unpack
from shared.wire.site_messages import RoundAnswer, RoundReply

flower.prepare()
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402

if TYPE_CHECKING:
    from coordinator.services.collect.round_queue import RoundQueue, SiteReply
    from coordinator.store.store import RegisteredSite
    from shared.base.keys import SigningKey
    from shared.plans.plan import StudyPlan

_log = logging.getLogger("tributary.federate")

__all__ = ["Carrier", "DialledGrid", "order_of", "require_room"]

POLL = 0.2
GRACE, MISSES = 60.0, 3
"""Seconds that the others are given at least once the quorum has answered; rounds missed in a row after which nobody
waits for a site."""


class Carrier(Protocol):
    """Another way for the same signed questions and answers, beside the queue that sites poll."""

    def ask(self, order: RoundReply, sites: Sequence[str]) -> None:
        """Bring a question to these sites, until the next one."""
        ...

    def answers(self) -> Iterable[tuple[str, RoundAnswer]]:
        """Replies that have arrived since, by site. None of it has been looked at."""
        ...

    def taken(self, site: str) -> None:
        """An answer of this site was verified and is in its box: it need not be asked again."""
        ...


class DialledGrid(Grid):
    """Flower's grid over the message queue: asks through it, and waits for the sites.

    Args:
        sites: node id to site.
        key: signs what is asked.
        carrier: another way to the sites, and who they are.
        sleep: waits between two looks into the queue.
        clock: seconds, for how long.
    """

    def __init__(
        self,
        queue: RoundQueue,
        plan: StudyPlan,
        sites: Mapping[int, str],
        key: SigningKey,
        *,
        carrier: tuple[Carrier, Callable[[str], RegisteredSite]] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._plan, self._sites, self._key = queue, plan, sites, key
        self._carrier, self._sleep, self._clock = carrier, sleep, clock
        self._quorum = 1 if plan.federated is None else plan.federated.quorum
        self._open: dict[str, Message] = {}
        self._missed: dict[str, int] = {}

    def set_run(self, run: Any) -> None:
        """There is only one."""

    @property
    def run(self) -> Any:
        """None: there is no runtime."""
        return None

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Its name is its round and its site: the same after a restart.

        Args: as of Flower's `Grid.create_message`: what is asked, of which kind, of which node, in which round, and
            for how many seconds it holds; a day where that is left out.
        """
        return flower.addressed(
            content,
            message_type=message_type,
            source=0,
            target=dst_node_id,
            name=f"{group_id}:{self._sites[dst_node_id]}",
            group=group_id,
            ttl=ttl or flower.DAY,
        )

    def get_node_ids(self) -> Iterable[int]:
        """All sites of the study."""
        return list(self._sites)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Put one round into the boxes of those it is addressed to."""
        given = list(messages)
        rounds = {_question(self._plan, message) for message in given}
        if len(rounds) > 1 or any(message.metadata.message_type != "train" for message in given):
            raise StateRefusal("one round must be asked at a time, of all with the same weights", given="another")
        for number, content in rounds:
            names = sorted(self._sites[message.metadata.dst_node_id] for message in given)
            said = order_of(self._plan, "train", number, content)
            self._queue.ask(said, content, names, self._key)
            if self._carrier is not None:
                self._carrier[0].ask(RoundReply(envelope=said.sign(self._key).to_bytes(), content=content), names)
        self._open |= {message.metadata.message_id: message for message in given}
        return [message.metadata.message_id for message in given]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to these messages."""
        if self._carrier is not None:
            for site, given in self._carrier[0].answers():
                try:
                    self._queue.answer(self._carrier[1](site), given)
                    self._carrier[0].taken(site)
                except Exception as error:  # it has no answer in its box: a straggler, as if nothing had come
                    code = error.code if isinstance(error, Refusal) else type(error).__name__
                    _log.warning("an answer that %s sent was not taken: %s", site, code)
        found: list[Message] = []
        waiting: dict[str, dict[str, Message]] = {}
        for name in message_ids:
            if name in self._open:
                message = self._open[name]
                waiting.setdefault(message.metadata.group_id, {})[self._sites[message.metadata.dst_node_id]] = message
        for group, messages in waiting.items():
            # An answer is read once: what has been taken before is not read again at every look.
            answers = self._queue.answers(self._plan.study, self._plan.hash, int(group), among=messages)
            for site, answer in answers.items():
                message = messages[site]
                found.append(self._reply(message, answer, _question(self._plan, message)[1]))
                del self._open[message.metadata.message_id]
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Wait until all have answered, or the time is over; who has not is a straggler.

        Once the quorum has answered the others are given as long again, and a minute at least. A site that missed
        three rounds in a row is asked like all, and not waited for.
        """
        names = list(self.push_messages(messages))
        began, reached = self._clock(), math.inf
        until = math.inf if timeout is None else began + timeout
        found: list[Message] = []
        while True:
            found += self.pull_messages(names)
            now = self._clock()
            if sum(not message.has_error() for message in found) >= self._quorum:
                reached = min(reached, now)
            left = {self._sites[self._open[name].metadata.dst_node_id] for name in names if name in self._open}
            late = now >= min(until, reached + max(GRACE, reached - began))
            if not left or late or (reached <= now and all(self._missed.get(site, 0) >= MISSES for site in left)):
                break
            self._sleep(POLL)
        for name in names:
            site = name.partition(":")[2]
            self._missed[site] = self._missed.get(site, 0) + 1 if self._open.pop(name, None) else 0
        return found

    def _reply(self, message: Message, answer: SiteReply | Refusal, content: bytes) -> Message:
        """A site's signed reply as a message of Flower's: the checks on the weights are the strategy's."""
        try:
            if isinstance(answer, Refusal):
                raise answer
            said = answer.said
            if said.code:
                raise _given_up(said.code)
            weights, numbers = unpack(answer.content)
            config: dict[str, Any] = {
                "plan": said.plan_hash,
                "server-round": said.round,
                "asked": flower.digest(
                    unpack(content)[0].astype("f8")
                ),  # the boxes hold the answer to this very question
            }
            given: Any = RecordDict(
                {
                    flower.ARRAYS: ArrayRecord({flower.WEIGHTS: flower.vector(weights.astype("f8"))}),
                    flower.METRICS: MetricRecord(dict(numbers)),
                    flower.CONFIG: ConfigRecord(config),
                }
            )
        except Exception as error:
            # An answer is taken once: one that broke this process would break it at every attempt to go on.
            refusal = error if isinstance(error, Refusal) else SchemaRefusal("an answer must be readable", given="not")
            given = flower.refused(refusal)
        assert isinstance(given, RecordDict | Error)
        return flower.addressed(
            given,
            message_type="train",
            source=message.metadata.dst_node_id,
            target=0,
            name=f"{message.metadata.message_id}:answer",
            answers=message.metadata.message_id,
            group=message.metadata.group_id,
        )


def _question(plan: StudyPlan, message: Message) -> tuple[int, bytes]:
    """Round and content of a message: weights, and nothing else that could say more."""
    records: Any = message.content
    config, array = records[flower.CONFIG], records[flower.ARRAYS][flower.WEIGHTS]
    if set(config) != {"plan", "server-round"} or config["plan"] != plan.hash:
        raise StateRefusal("a round must be asked with its plan and its number", given="something else")
    content = pack(array.numpy(), {})
    # The finished flow is the same weights as text.
    require_room(len(content) * 4 // 3 + (1 << 18))
    return int(config["server-round"]), content


def require_room(size: int) -> None:
    """Raises: TooLarge, for a flow that one message does not hold."""
    if size > ROUND_CAP:
        raise TooLarge(
            f"a flow that several sites train must fit into {ROUND_CAP} bytes",
            given=f"{size}",
            next_step="Plan fewer or smaller layers under [training].",
        )


def order_of(plan: StudyPlan, kind: Any, number: int, content: bytes) -> RoundOrder:
    """Order of a round, for the coordinator to sign: its plan, its kind, its number, and the digest of its content."""
    return RoundOrder(
        study=plan.study,
        plan_hash=plan.hash,
        kind=kind,
        round=number,
        content_sha256=sha256_hex(content),
        content_bytes=len(content),
    )


def _given_up(code: str) -> Refusal:
    return CATALOGUE[code]("a site must have an answer to a round", given=f"none: {code}")
