"""A site's part in a training that Flower's deployment runtime carries: the same rounds, by another way.

The runtime starts a process for every message, from an app that it was sent (`deploy/flower`). That app only names
`app`, and the process holds the folder of the site: the very questions that a site otherwise dials in for come as two
byte strings in a message, and the answer goes back as two. The coordinator's pinned key must have signed a question, so
that whoever else can reach the runtime gets nothing asked; and the round is charged, begun, witnessed over the site's
own channel, sealed and signed as always (`site_agent.rounds`), before its answer is handed to the runtime.

Plans, approvals, witnessing and the finished flow never travel by the runtime.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shared import flower
from shared.errors import LockedRefusal, PlanChanged, Refusal, SchemaRefusal, StateRefusal
from shared.wire import RoundAnswer, RoundReply

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    from shared.keys import Envelope, PublicKey
    from shared.rounds import Asked
    from shared.wire import RoundReceipt
    from site_agent.desk import Desk
    from site_agent.egress import Egress
    from site_agent.ledger import AnchorReceipt

__all__ = ["answered", "app"]

PATIENCE = 60.0
"""Seconds for which a process waits for another one of the site that is at work, before it gives no answer."""


def app() -> ClientApp:
    """The app that `deploy/flower` names. The site's folder comes from the environment of the node, as for all verbs.

    A refusal is answered as Flower's error, with its code; any other error with its class alone.
    """
    flower.prepare()
    from flwr.app import Context, Error, Message
    from flwr.clientapp import ClientApp

    from site_agent.desk import desk

    made = ClientApp()

    @made.train()
    def train(message: Message, context: Context) -> Message:
        del context  # its run_config is the coordinator's, and decides nothing here
        try:
            given = answered(desk(None), flower.carried(message))
        except Refusal as error:
            return Message(flower.refused(error), reply_to=message)
        except Exception as error:
            reason = f"E_REFUSED {type(error).__name__}"  # its text might tell of records
            return Message(Error(code=flower.ERROR, reason=reason), reply_to=message)
        return Message(flower.carrying(given.envelope, given.content), reply_to=message)

    return made


def answered(at: Desk, given: tuple[bytes, bytes]) -> RoundAnswer:
    """The signed answer to a signed question, once and as `site_agent.rounds.take_part` makes it.

    Args:
        given: envelope and content, from anybody.
    Raises: what `take_part` raises, where no answer was signed.
    """
    from site_agent import rounds
    from site_agent.cli.release import working_site
    from site_agent.desk import agent_version, today

    at.require_running()
    with at.egress() as egress:
        said, content = egress.asked(RoundReply(envelope=given[0], content=given[1]))
        plan, _ = at.plans.approved(said.study, agent_version=agent_version(), today=today())
        if said.kind != "train":
            raise SchemaRefusal("a round must be asked for", given=said.kind)
        if said.plan_hash != plan.hash:
            raise PlanChanged(
                "the training must be that of the approved plan",
                given=f"plan {said.plan_hash[:12]}…",
                next_step="Compare plans: site-agent plan show.",
            )
        relay = _Relay(egress, (said, content))
        until = time.monotonic() + PATIENCE
        while relay.given is None:
            try:
                relay.question = (said, content)
                rounds.take_part(
                    plan=plan,
                    source=at.config.source(plan.study),
                    site=working_site(at, egress),
                    door=relay,
                    home=at.home,
                    today=today(),
                    locked=at.locked,
                )
                break
            except LockedRefusal:
                if time.monotonic() >= until:
                    raise
                time.sleep(1.0)
            except Refusal:
                if relay.given is None:  # else the answer is the refusal's code, signed
                    raise
    if relay.given is None:
        raise StateRefusal("a round must have an answer that may leave", given="none")
    return relay.given


class _Relay:
    """A door of one question (`site_agent.rounds.Door`): heads are witnessed by the site's own, the answer is kept."""

    def __init__(self, egress: Egress, question: tuple[Asked, bytes]) -> None:
        self._egress = egress
        self.question: tuple[Asked, bytes] | None = question
        self.given: RoundAnswer | None = None

    def anchor(self, envelope: Envelope) -> AnchorReceipt:
        return self._egress.anchor(envelope)

    def next_round(self, study: str, flow: str = "") -> tuple[Asked, bytes] | None:
        question, self.question = self.question, None
        return question

    def answer_round(self, answer: Envelope, content: bytes, key: PublicKey) -> RoundReceipt:
        from shared.wire import RoundReceipt

        said, self.given = self._egress.leaving(answer, content, key)
        return RoundReceipt(study=said.study, round=said.round, answer=answer.digest)
