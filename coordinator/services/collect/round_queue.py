"""Letter boxes of a training that the sites run together: what each round asks, and what each site answered.

The sites dial in and empty their box; nothing here reaches out. Every question and every answer is in the database
before anybody is told that it is, so that the server, and whoever runs the training, may stop at any moment and go on
where they were. Two rules hold whatever is sent: a round is asked with one content (what a round was about never
changes while answers to it are on their way), and a site answers a round once (the same bytes again get the same
receipt, other bytes are refused as a replay). Sites come and go meanwhile: who joins is asked the open round as well,
and who has left does not answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sqlalchemy as sa

from coordinator.services.collect.sum_queue import require_readable
from coordinator.store.schema import opened_sums
from coordinator.store.schema import round_asked as _orders
from coordinator.store.schema import round_of as _of
from coordinator.store.store import RegisteredSite, Store
from shared.base.canonical import sha256_hex
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import Refusal, ReplayRefusal, RoleRefusal, RoundsRefusal, StateRefusal
from shared.mechanisms.secure_sum.steps import SumStep
from shared.wire.rounds import PASSED_BY, Answered, RoundOrder, open_answer, open_order, step_of, unpack
from shared.wire.site_messages import RoundAnswer, RoundReceipt, RoundReply

if TYPE_CHECKING:
    from shared.plans.federated import FederatedFlow

__all__ = ["RoundQueue", "SiteReply", "TrainingProgress"]


@dataclass(frozen=True, kw_only=True)
class SiteReply:
    """One site's answer to one round, as it signed it with the key that it had then."""

    said: Answered
    content: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """Progress of a training.

    Args:
        plan_hash: of the plan that asks for it.
        round: the last one that was asked; 0 before the first.
        answered: of that round, site to blank, or to the code of the refusal for which it gave nothing; a site that
            has not answered is not in it.
        waiting: of that round, the sites that have not answered.
        finished: SHA-256 of the flow; blank until there is one.
    """

    plan_hash: str
    round: int
    answered: Mapping[str, str]
    waiting: tuple[str, ...]
    finished: str = ""


class RoundQueue:
    """The message queue of all trainings, in the coordinator's database. Safe for several processes.

    Args:
        store: the coordinator's store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read, self._write = store.read, store.write

    # -- the coordinator's side ---------------------------------------------------------------------------------
    def ask(self, said: RoundOrder, content: bytes, sites: Sequence[str], key: SigningKey) -> None:
        """Queue a round for `sites`, or a finished flow up for all.

        Again adds the sites that have no box of this round yet, and changes nothing else.

        Args:
            key: the coordinator's witness key.
        Raises: ReplayRefusal, where the round was asked before with another content.
        """
        envelope = said.sign(key).to_bytes()
        open_order(envelope, content, key.public)

        def put(c: sa.Connection) -> None:
            same = (_orders.c.study == said.study) & (_orders.c.plan_hash == said.plan_hash)
            found = c.execute(
                sa.select(_orders.c.number, _orders.c.digest).where(
                    same & (_orders.c.kind == said.kind) & (_orders.c.round == said.round)
                )
            ).first()
            if found is not None:
                if found.digest != said.digest:
                    raise ReplayRefusal(
                        f"round {said.round} must be asked once, with one content",
                        given="another question",
                        next_step="Go on from the training's own folder; a training is not begun anew under one plan.",
                    )
                known = set(c.execute(sa.select(_of.c.site).where(_of.c.asked == found.number)).scalars())
                new = [{"asked": found.number, "site": site} for site in sites if site not in known]
                if new:
                    c.execute(_of.insert(), new)
                return
            values = {"study": said.study, "plan_hash": said.plan_hash, "kind": said.kind, "round": said.round}
            made = c.execute(
                _orders.insert().values(**values, digest=said.digest, envelope=envelope, content=content)
            ).inserted_primary_key
            assert made is not None
            reach("rounds.before_ask")
            if sites:
                c.execute(_of.insert(), [{"asked": made[0], "site": site} for site in sites])

        self._write(put)
        reach("rounds.after_ask")

    def answers(
        self, study: str, plan_hash: str, number: int, *, among: Collection[str] | None = None
    ) -> dict[str, SiteReply | Refusal]:
        """Sites' replies to a round, by site; or the reason why a site's reply cannot be taken.

        Args:
            among: of these sites only; the others' answers are not read.
        """
        query = (
            sa.select(_of.c.site, _of.c.envelope, _of.c.content, _of.c.key)
            .join(_orders, _orders.c.number == _of.c.asked)
            .where((_orders.c.study == study) & (_orders.c.plan_hash == plan_hash) & (_orders.c.round == number))
            .where((_orders.c.kind == "train") & _of.c.envelope.is_not(None))
        )
        if among is not None:
            query = query.where(_of.c.site.in_(sorted(among)))
        out: dict[str, SiteReply | Refusal] = {}
        for row in self._read(lambda c: c.execute(query).all()):
            content = bytes(row.content)
            try:
                said = open_answer(bytes(row.envelope), content, PublicKey(row.key))
                out[row.site] = SiteReply(said=said, content=content)
            except Refusal as refusal:  # one damaged row must not hide the others
                out[row.site] = refusal
        return out

    def flow(self, name: str) -> FederatedFlow | None:
        """The finished flow of that name (``federated:<digest>``); None where none of the trainings here gave it."""
        from shared.plans.federated import PREFIX, FederatedFlow

        done = self._finished(name.removeprefix(PREFIX))
        return None if done is None else FederatedFlow.from_bytes(bytes(done.content))

    def progress(self, study: str) -> TrainingProgress | None:
        """Progress of the newest training of a study; None where none was begun."""
        last = self._last(study, "train", "finished")
        if last is None:
            return None
        rows = self._read(
            lambda c: c.execute(sa.select(_of).where(_of.c.asked == last.number).order_by(_of.c.site)).all()
        )
        answered = {}
        for row in rows:
            if row.envelope is not None:
                signed = Envelope.from_bytes(bytes(row.envelope))
                answered[row.site] = _said(signed.payload).code
        return TrainingProgress(
            plan_hash=last.plan_hash,
            round=last.round,
            answered=answered,
            waiting=tuple(row.site for row in rows if row.envelope is None),
            finished=sha256_hex(bytes(last.content)) if last.kind == "finished" else "",
        )

    # -- a site's side ------------------------------------------------------------------------------------------
    def next(self, site: RegisteredSite, study: str, flow: str = "") -> RoundReply:
        """The newest training's current order to a site; empty where there is none.

        Args:
            flow: SHA-256 of a finished flow that the site needs, whatever other training has begun since.
        """
        last = self._finished(flow, study) if flow else self._last(study)
        if last is None:
            return RoundReply()
        if last.kind == "sum":
            return self._own_step(site, last)
        if last.kind == "train":
            envelope = sa.select(_of.c.envelope).where((_of.c.asked == last.number) & (_of.c.site == site.site))
            found = self._read(lambda c: c.execute(envelope).first())
            if found is None or found.envelope is not None:
                return RoundReply()
        return RoundReply(envelope=bytes(last.envelope), content=bytes(last.content))

    def answer(self, site: RegisteredSite, given: RoundAnswer) -> RoundReceipt:
        """Take a site's answer, once.

        Raises: SignatureRefusal, SchemaRefusal, TooLarge, IntegrityRefusal (what it signed is not what came);
            ReplayRefusal (another site's, another training's, other bytes than it sent before, or another question);
            RoleRefusal (not asked); RoundsRefusal (no such round); StateRefusal (the round is over).
        """
        said = open_answer(given.envelope, given.content, site.release_key)
        if said.site != site.site:
            raise ReplayRefusal("an answer must be the calling site's", given="another site's")
        if not said.code:  # an answer is taken once: what cannot be read later must not be in the box
            self._require_readable(said, given.content)

        taken = {"envelope": given.envelope, "content": given.content, "key": site.release_key.hex}

        def take(c: sa.Connection) -> None:
            mine = (_orders.c.study == said.study) & _orders.c.kind.in_(("train", "sum"))
            last = c.execute(sa.select(_orders).where(mine).order_by(_orders.c.number.desc())).first()
            if last is None or said.plan_hash != last.plan_hash:
                raise ReplayRefusal("an answer must be to the training that is under way", given="another")
            row = c.execute(
                sa.select(_orders).where(
                    mine & (_orders.c.plan_hash == said.plan_hash) & (_orders.c.round == said.round)
                )
            ).first()
            if row is None:
                raise RoundsRefusal("an answer must be to a round that was asked", given=f"round {said.round}")
            if row.digest != said.asked:
                raise ReplayRefusal("an answer must be to the very question of its round", given="to another one")
            place = (_of.c.asked == row.number) & (_of.c.site == site.site)
            place_taken = c.execute(sa.select(_of.c.envelope, _of.c.content).where(place)).first()
            if place_taken is None:
                raise RoleRefusal("an answer must come from a site that was asked", given="one that was not")
            if place_taken.envelope is not None:
                # The words and the weights: a site that lost the receipt may have another key when it sends them again.
                taken_before = _payload(place_taken.envelope), bytes(place_taken.content)
                if taken_before != (_payload(given.envelope), given.content):
                    raise ReplayRefusal("a site must answer a round once", given="a second, different answer")
                return
            same_step = row.kind == last.kind == "sum" and step_of(row.round) == step_of(last.round)
            if (row.number != last.number and not same_step) or self._is_finished(c, said):
                raise StateRefusal("a round must be answered before the next is asked", given="an answer too late")
            reach("rounds.before_answer")
            c.execute(_of.update().where(place).values(**taken))

        self._write(take)
        reach("rounds.after_answer")
        return RoundReceipt(study=said.study, round=said.round, answer=sha256_hex(said.to_bytes()))

    # -- inside -------------------------------------------------------------------------------------------------
    def _last(self, study: str, *kinds: str) -> sa.Row[tuple[object, ...]] | None:
        query = sa.select(_orders).where(_orders.c.study == study).order_by(_orders.c.number.desc()).limit(1)
        query = query.where(_orders.c.kind.in_(kinds)) if kinds else query
        return self._read(lambda c: c.execute(query).first())

    def _own_step(self, site: RegisteredSite, last: sa.Row[tuple[object, ...]]) -> RoundReply:
        """A site's own order in the step of a sum that was asked last, until it is answered.

        Raises: StateRefusal, where that step is not asked of this site and no newer plan waits for a sum of its own.
        """
        query = (
            sa.select(_orders)
            .join(_of, _of.c.asked == _orders.c.number)
            .where(
                (_orders.c.study == last.study) & (_orders.c.plan_hash == last.plan_hash) & (_orders.c.kind == "sum")
            )
            .where((_of.c.site == site.site) & _of.c.envelope.is_(None))
            .order_by(_orders.c.number.desc())
        )
        row = self._read(lambda c: c.execute(query).first())
        if row is None or step_of(row.round) != step_of(last.round):
            self._require_asked(site, last)
            return RoundReply()
        return RoundReply(envelope=bytes(row.envelope), content=bytes(row.content))

    def _require_asked(self, site: RegisteredSite, last: sa.Row[tuple[object, ...]]) -> None:
        step = step_of(last.round)
        query = sa.select(_orders.c.round).join(_of, _of.c.asked == _orders.c.number).where(_of.c.site == site.site)
        query = query.where((_orders.c.plan_hash == last.plan_hash) & (_orders.c.kind == "sum"))
        mine = {step_of(number) for number in self._read(lambda c: c.execute(query).scalars().all())}
        if step not in mine and self._store.plan(str(last.study)).plan.hash == last.plan_hash:
            raise StateRefusal(
                PASSED_BY,
                given=f"one that is not asked for its {SumStep(step).title}",
                next_step="Nothing more is asked of this site in this sum. The study lead sees which sites are in it "
                "(coordinator federate status).",
            )

    def _require_readable(self, said: Answered, content: bytes) -> None:
        asked = sa.select(_orders.c.kind).where((_orders.c.digest == said.asked) & (_orders.c.kind == "sum"))
        if self._read(lambda c: c.execute(asked).first()) is None:
            unpack(content)
            return
        for stored in self._store.plans():
            if stored.plan.hash == said.plan_hash:
                require_readable(stored.plan, said.round, content)

    def _finished(self, digest: str, study: str = "") -> sa.Row[tuple[object, ...]] | None:
        """The row of a finished flow, of one study or of any."""
        query = sa.select(_orders).where(_orders.c.kind == "finished")
        if study:
            query = query.where(_orders.c.study == study)
        for row in self._read(lambda c: c.execute(query).all()):
            if sha256_hex(bytes(row.content)) == digest:
                return row
        return None

    @staticmethod
    def _is_finished(c: sa.Connection, said: Answered) -> bool:
        same = (_orders.c.study == said.study) & (_orders.c.plan_hash == said.plan_hash)
        opened = sa.select(opened_sums.c.log_index).where(opened_sums.c.plan_hash == said.plan_hash)
        over = (sa.select(_orders.c.number).where(same & (_orders.c.kind == "finished")), opened)
        return any(c.execute(query).first() is not None for query in over)


def _payload(envelope: bytes) -> bytes:
    return Envelope.from_bytes(bytes(envelope)).payload


def _said(payload: bytes) -> Answered:
    from shared.base.canonical import parse_json

    return Answered(**parse_json(payload))
