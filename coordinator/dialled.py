"""Flower's grid over the sites' own channel: a message becomes a signed round in letter boxes, and the sites dial in.

The strategies of `coordinator.federation` do not know the difference. What a site may see of a message is the weights,
the plan and the round; what comes back is what it signed, or the code of its refusal. Nothing is lost when this process
stops: asked again, a round is the same round, and the answers to it are in the boxes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.rounds import Answer, LetterBoxes
from shared.canonical import sha256_hex
from shared.errors import CATALOGUE, PlanRefusal, Refusal, StateRefusal, TooLarge
from shared.rounds import Asked, node_id, pack, unpack
from shared.wire import ROUND_CAP

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

    from coordinator.federation import Progress
    from coordinator.store import Store
    from shared.federated import FederatedFlow
    from shared.keys import SigningKey
    from shared.plan import StudyPlan

__all__ = ["dialled_grid", "nodes", "train"]

POLL = 0.2
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
    told: Callable[[int, Mapping[str, Progress]], None] | None = None,
) -> FederatedFlow:
    """Run the training of a plan with the sites that dial in, or go on with it; the flow is then up for all of them.

    Args:
        home: the coordinator's folder; state and flow are kept in ``federated/<study>/<plan hash>``.
        plan: with [federated].
        key: the coordinator's witness key, which signs every round.
        timeout: seconds that a round waits for the last site.
        told: see `coordinator.federation.run`.
    Raises: see `coordinator.federation.run`; TooLarge (a flow that one message does not hold); StateRefusal (no site).
    """
    from coordinator import federation

    if plan.federated is None:
        raise PlanRefusal("a training by all sites must have [federated] in its plan", given="none")
    sites = nodes(store, plan.study)
    if not sites:
        raise StateRefusal("a site must have joined the study", given="none", next_step="coordinator invite SITE.")
    boxes = LetterBoxes(store)
    flow = federation.run(
        dialled_grid(boxes, plan, {node: site for site, node in sites.items()}, key),
        plan,
        sites,
        home / FOLDER / plan.study / plan.hash[:16],
        timeout=timeout,
        told=told,
    )
    content = flow.canonical
    _require_room(len(content))
    said = _asked(plan, "finished", flow.rounds, content)
    boxes.ask(said, content, (), key)
    return flow


def dialled_grid(
    boxes: LetterBoxes,
    plan: StudyPlan,
    sites: Mapping[int, str],
    key: SigningKey,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Grid:
    """Flower's grid over letter boxes.

    Args:
        sites: node id to site.
        key: signs what is asked.
        sleep: waits between two looks into the boxes.
    """
    from shared import flower

    flower.prepare()
    from flwr.app import ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
    from flwr.serverapp import Grid

    class Dialled(Grid):
        """Asks through the boxes, and waits for the sites."""

        def __init__(self) -> None:
            self._open: dict[str, Message] = {}

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
                boxes.ask(_asked(plan, "train", number, content), content, names, key)
            self._open |= {message.metadata.message_id: message for message in given}
            return [message.metadata.message_id for message in given]

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            """What has been answered of these."""
            found: list[Message] = []
            known: dict[int, dict[str, Answer]] = {}
            for name in message_ids:
                message = self._open.get(name)
                if message is None:
                    continue
                number, content = _question(plan, message)
                if number not in known:
                    known[number] = boxes.answers(plan.study, plan.hash, number)
                answer = known[number].get(sites[message.metadata.dst_node_id])
                if answer is not None:
                    found.append(self._reply(message, answer, content))
                    del self._open[name]
            return found

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            """Wait until all have answered, or the time is over; who has not is a straggler."""
            names = list(self.push_messages(messages))
            until = None if timeout is None else time.monotonic() + timeout
            found: list[Message] = []
            while len(found) < len(names):
                found += self.pull_messages(names)
                if len(found) == len(names) or (until is not None and time.monotonic() >= until):
                    break
                sleep(POLL)
            for name in names:
                self._open.pop(name, None)
            return found

        def _reply(self, message: Message, answer: Answer, content: bytes) -> Message:
            """What a site signed, as a message of Flower's: the checks on the weights are the strategy's."""
            said = answer.said
            try:
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
                        flower.FIGURES: MetricRecord(dict(numbers)),
                        flower.CONFIG: ConfigRecord(config),
                    }
                )
            except Refusal as refusal:
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
    from shared import flower

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


def _asked(plan: StudyPlan, kind: Any, number: int, content: bytes) -> Asked:
    return Asked(
        study=plan.study,
        plan_hash=plan.hash,
        kind=kind,
        round=number,
        content_sha256=sha256_hex(content),
        content_bytes=len(content),
    )


def _given_up(code: str) -> Refusal:
    return CATALOGUE[code]("a site must have an answer to a round", given=f"none: {code}")
