"""A site's part in a training that Flower's deployment runtime carries: the same rounds, by another way.

The runtime starts a process for every message, from an app that it was sent (`deploy/flower`). That app only names
`app`, and the process holds the folder of the site: the very questions that a site otherwise dials in for come as two
byte strings in a message, and the answer goes back as two. The coordinator's pinned key must have signed a question, so
that whoever else can reach the runtime gets nothing asked; and the round is charged, begun, witnessed over the site's
own channel, sealed and signed as always (`site_agent.training.rounds`), before its answer is handed to the runtime.

Plans, approvals, witnessing and the finished flow never travel by the runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from shared.errors import IntegrityRefusal, PlanChanged, Refusal, RoundsRefusal, SchemaRefusal, StateRefusal
from shared.wire import flower
from shared.wire.site_messages import RoundAnswer, RoundReply

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    from shared.base.keys import Envelope, PublicKey
    from shared.wire.rounds import RoundOrder
    from shared.wire.site_messages import RoundReceipt
    from site_agent.desk import Desk
    from site_agent.egress import Egress
    from site_agent.ledger.book import AnchoredHead
    from site_agent.training.rounds import RoundDoor

_log = logging.getLogger("tributary.runtime")

__all__ = ["answered", "app", "once"]

PATIENCE = 240.0
"""Seconds for which one question is tried again, while another process of the site is at work or the coordinator does
not answer: less than `coordinator.training.runtime.LOST`, after which another process is asked. A round that this one
has begun and that was not witnessed in time is given up for good, as nobody could tell any more whether it was
drawn."""


def app() -> ClientApp:
    """The app that `deploy/flower` names. The site's folder comes from the environment of the node, as for all verbs.

    Whatever has no signed answer is answered by one constant error; why, is noted at the site alone.
    """
    flower.prepare()
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    from site_agent.desk import open_desk

    made = ClientApp()

    @made.train()
    def train(message: Message, context: Context) -> Message:
        del context  # its run_config is the coordinator's, and decides nothing here
        try:
            given = answered(open_desk(None), flower.carried(message))
        except Exception as error:
            _log.warning("a question has no answer: %s", error.code if isinstance(error, Refusal) else "E_INTERNAL")
            return Message(flower.unanswered(), reply_to=message)
        return Message(flower.carrying(given.envelope, given.content), reply_to=message)

    return made


def answered(desk: Desk, given: tuple[bytes, bytes]) -> RoundAnswer:
    """The signed answer to a signed question, once and as `site_agent.training.rounds.take_part` makes it.

    Args:
        given: envelope and content, from anybody.
    Raises: what `take_part` raises, where no answer was signed.
    """
    try:
        desk.require_running()
        return _answered(desk, given)
    except Refusal as refusal:
        desk.note_refusal("federate", refusal, agent=True)
        raise


def _answered(desk: Desk, given: tuple[bytes, bytes]) -> RoundAnswer:
    from site_agent.desk import agent_now, today, working_site
    from site_agent.training import rounds

    with desk.egress() as egress:
        said, content = egress.round_order(RoundReply(envelope=given[0], content=given[1]))
        plan, _ = desk.plans.approved(said.study, agent_now())
        if said.kind != "train":
            raise SchemaRefusal("a round must be asked for", given=said.kind)
        if said.plan_hash != plan.hash:
            raise PlanChanged(
                "the training must be that of the approved plan",
                given=f"plan {said.plan_hash[:12]}…",
                next_step="Compare plans: site-agent plan show.",
            )

        def take(door: RoundDoor, wait: float) -> None:
            rounds.take_part(
                rounds.Participant(
                    plan=plan,
                    source=desk.config.source(plan.study),
                    site=working_site(desk, egress),
                    door=door,
                    today=today(),
                    locked=desk.locked,
                ),
                home=desk.home,
                wait=wait,
            )

        return once(egress, (said, content), take)


def once(egress: Egress, question: tuple[RoundOrder, bytes], take: Callable[[RoundDoor, float], None]) -> RoundAnswer:
    """The signed answer to a verified question, tried by one part in the training for as long as `PATIENCE`.

    That one part knows which rounds it has begun and not drawn: after a moment without the coordinator's witness it
    goes on with them, where a new one would have to give them up.

    Args:
        take: `site_agent.training.rounds.take_part` by a door, waiting for so many seconds.
    Raises: what `take` raises, where no answer was signed.
    """
    relay = _Relay(egress, question)
    try:
        take(relay, PATIENCE)
    except _Given:
        pass
    except Refusal:
        if relay.given is None:  # else the answer is the refusal's code, signed
            raise
    if relay.given is None:
        raise RoundsRefusal("a question must have an answer in time", given="none")
    return relay.given


class _Given(Exception):
    """Ends a part in the training that has answered its question."""


class _Relay:
    """A door of one question (`site_agent.training.rounds.RoundDoor`): heads are witnessed by the site's own, the
    answer is kept."""

    def __init__(self, egress: Egress, question: tuple[RoundOrder, bytes]) -> None:
        self._egress, self._question = egress, question
        self.given: RoundAnswer | None = None

    def anchor(self, envelope: Envelope) -> AnchoredHead:
        return self._egress.anchor(envelope)

    def next_round(self, study: str, flow: str = "") -> tuple[RoundOrder, bytes] | None:
        if self.given is not None:
            raise _Given
        return self._question

    def answer_round(self, answer: Envelope, content: bytes, key: PublicKey) -> RoundReceipt:
        from shared.wire.site_messages import RoundReceipt

        try:
            said, self.given = self._egress.leaving(answer, content, key)
        except StateRefusal as refusal:  # to whom is asked it means "too late", which nobody but a coordinator can say
            raise IntegrityRefusal("an answer must be what the ledger lets leave", given=refusal.code) from None
        return RoundReceipt(study=said.study, round=said.round, answer=answer.digest)
