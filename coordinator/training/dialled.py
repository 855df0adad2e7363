"""Flower's grid over the sites' own channel: a message becomes a signed round in a queue, and the sites dial in.

The strategies of `coordinator.training.federation` do not know the difference. What a site may see of a message is the
weights, the plan and the round; what comes back is what it signed, or the code of its refusal. Nothing is lost when
this process
stops: asked again, a round is the same round, and the answers to it are in the queue.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.store.round_queue import RoundQueue, SiteReply
from shared.base.canonical import sha256_hex
from shared.errors import (
    CATALOGUE,
    LockedRefusal,
    PlanRefusal,
    Refusal,
    RoleRefusal,
    SchemaRefusal,
    StateRefusal,
    TooLarge,
    require,
)
from shared.wire.message_limits import ROUND_CAP
from shared.wire.rounds import RoundOrder, node_id, pack, unpack
from shared.wire.site_messages import RoundAnswer, RoundReply

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

    from coordinator.store.store import RegisteredSite, Store
    from coordinator.training.federation import SiteProgress
    from shared.base.keys import SigningKey
    from shared.plans.federated import FederatedFlow
    from shared.plans.plan import StudyPlan

_log = logging.getLogger("tributary.federate")

__all__ = ["Carrier", "dialled_grid", "nodes", "train"]

POLL = 0.2


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


GRACE, MISSES = 60.0, 3
"""Seconds that the others are given at least once the quorum has answered; rounds missed in a row after which nobody
waits for a site."""
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

    if plan.federated is None:
        raise PlanRefusal("a training by all sites must have [federated] in its plan", given="none")
    sites = nodes(store, plan.study)
    if not sites:
        raise StateRefusal("a site must have joined the study", given="none", next_step="coordinator invite SITE.")
    queue = RoundQueue(store)
    folder = home / FOLDER / plan.study / plan.hash[:16]
    with _alone(folder):
        flow = federation.run(
            dialled_grid(
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
    _require_room(len(content))
    said = _order(plan, "finished", flow.rounds, content)
    queue.ask(said, content, (), key)
    return flow


def _enrolled(store: Store, name: str) -> RegisteredSite:
    """A site as it is enrolled now. Raises: RoleRefusal."""
    for site in store.sites():
        if site.site == name and site.state == "accepted":
            return site
    raise RoleRefusal("an answer must come from a site that has joined", given="one that has left")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a training's folder: two that run it would take different answers of one round. Raises: LockedRefusal."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockedRefusal(
                "one process must run a training",
                given="another one that does",
                next_step="Let it go on, or stop it first: coordinator federate status shows how far it is.",
            ) from None
        yield


def dialled_grid(
    queue: RoundQueue,
    plan: StudyPlan,
    sites: Mapping[int, str],
    key: SigningKey,
    *,
    carrier: tuple[Carrier, Callable[[str], RegisteredSite]] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Grid:
    """Flower's grid over the message queue.

    Args:
        sites: node id to site.
        key: signs what is asked.
        carrier: another way to the sites, and who they are.
        sleep: waits between two looks into the queue.
        clock: seconds, for how long.
    """
    from shared.wire import flower

    quorum = 1 if plan.federated is None else plan.federated.quorum
    flower.prepare()
    from flwr.app import ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
    from flwr.serverapp import Grid

    class Dialled(Grid):
        """Asks through the queue, and waits for the sites."""

        def __init__(self) -> None:
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
            """Its name is its round and its site: the same after a restart."""
            return flower.addressed(
                content,
                message_type=message_type,
                source=0,
                target=dst_node_id,
                name=f"{group_id}:{sites[dst_node_id]}",
                group=group_id,
                ttl=ttl or flower.DAY,
            )

        def get_node_ids(self) -> Iterable[int]:
            """All sites of the study."""
            return list(sites)

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            """Put one round into the boxes of those it is addressed to."""
            given = list(messages)
            rounds = {_question(plan, message) for message in given}
            if len(rounds) > 1 or any(message.metadata.message_type != "train" for message in given):
                raise StateRefusal("one round must be asked at a time, of all with the same weights", given="another")
            for number, content in rounds:
                names = sorted(sites[message.metadata.dst_node_id] for message in given)
                said = _order(plan, "train", number, content)
                queue.ask(said, content, names, key)
                if carrier is not None:
                    carrier[0].ask(RoundReply(envelope=said.sign(key).to_bytes(), content=content), names)
            self._open |= {message.metadata.message_id: message for message in given}
            return [message.metadata.message_id for message in given]

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            """Replies to these messages."""
            if carrier is not None:
                for site, given in carrier[0].answers():
                    try:
                        queue.answer(carrier[1](site), given)
                        carrier[0].taken(site)
                    except Exception as error:  # it has no answer in its box: a straggler, as if nothing had come
                        code = error.code if isinstance(error, Refusal) else type(error).__name__
                        _log.warning("an answer that %s sent was not taken: %s", site, code)
            found: list[Message] = []
            waiting: dict[str, dict[str, Message]] = {}
            for name in message_ids:
                if name in self._open:
                    message = self._open[name]
                    waiting.setdefault(message.metadata.group_id, {})[sites[message.metadata.dst_node_id]] = message
            for group, messages in waiting.items():
                # An answer is read once: what has been taken before is not read again at every look.
                answers = queue.answers(plan.study, plan.hash, int(group), among=messages)
                for site, answer in answers.items():
                    message = messages[site]
                    found.append(self._reply(message, answer, _question(plan, message)[1]))
                    del self._open[message.metadata.message_id]
            return found

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            """Wait until all have answered, or the time is over; who has not is a straggler.

            Once the quorum has answered the others are given as long again, and a minute at least. A site that missed
            three rounds in a row is asked like all, and not waited for.
            """
            names = list(self.push_messages(messages))
            began, reached = clock(), math.inf
            until = math.inf if timeout is None else began + timeout
            found: list[Message] = []
            while True:
                found += self.pull_messages(names)
                now = clock()
                if sum(not message.has_error() for message in found) >= quorum:
                    reached = min(reached, now)
                left = {sites[self._open[name].metadata.dst_node_id] for name in names if name in self._open}
                late = now >= min(until, reached + max(GRACE, reached - began))
                if not left or late or (reached <= now and all(self._missed.get(site, 0) >= MISSES for site in left)):
                    break
                sleep(POLL)
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
                refusal = (
                    error if isinstance(error, Refusal) else SchemaRefusal("an answer must be readable", given="not")
                )
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

    return Dialled()


def _question(plan: StudyPlan, message: Message) -> tuple[int, bytes]:
    """Round and content of a message: weights, and nothing else that could say more."""
    from shared.wire import flower

    records: Any = message.content
    config, array = records[flower.CONFIG], records[flower.ARRAYS][flower.WEIGHTS]
    if set(config) != {"plan", "server-round"} or config["plan"] != plan.hash:
        raise StateRefusal("a round must be asked with its plan and its number", given="something else")
    content = pack(array.numpy(), {})
    # The finished flow is the same weights as text.
    _require_room(len(content) * 4 // 3 + (1 << 18))
    return int(config["server-round"]), content


def _require_room(size: int) -> None:
    if size > ROUND_CAP:
        raise TooLarge(
            f"a flow that several sites train must fit into {ROUND_CAP} bytes",
            given=f"{size}",
            next_step="Plan fewer or smaller layers under [training].",
        )


def _order(plan: StudyPlan, kind: Any, number: int, content: bytes) -> RoundOrder:
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
