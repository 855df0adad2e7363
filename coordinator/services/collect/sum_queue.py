"""The message queue of a secure sum: what each step asks of each site, and what each site answered.

One step is asked of all its sites in one transaction, each with an order of its own, and the next step closes it: what
a site answers after that is too late. Who was asked in a step says who was still there after the one before it, so that
a coordinator that stopped goes on with exactly these and draws up no list anew. The sites dial in, as for a training
(`coordinator.services.collect.round_queue`), whose tables these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from coordinator.store.schema import round_asked as _orders
from coordinator.store.schema import round_of as _of
from shared.base.canonical import parse_json, sha256_hex
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import Refusal, ReplayRefusal
from shared.mechanisms.secure_sum.plan import SecureSumPlan
from shared.mechanisms.secure_sum.steps import SiteAnswer, SumStep, site_answer
from shared.wire.rounds import RoundOrder, number_of, open_answer, place_of, step_of

if TYPE_CHECKING:
    from coordinator.store.store import Store
    from shared.plans.plan import StudyPlan

__all__ = ["SumProgress", "SumQueue", "progress_of", "require_readable"]


@dataclass(frozen=True, kw_only=True)
class SumProgress:
    """Progress of a secure sum, in the step that was asked last.

    Args:
        plan_hash: of its plan.
        step: 0 before the first.
        answered: site to blank, or to the code for which it gave nothing.
        waiting: sites that have not answered.
        opened: SHA-256 of the opened sum; blank until there is one.
    """

    plan_hash: str
    step: int
    answered: Mapping[str, str]
    waiting: tuple[str, ...]
    opened: str = ""


class SumQueue:
    """The message queue of one plan's sum, in the coordinator's database. Safe for several processes.

    Args:
        plan: a plan whose ``[release]`` is a secure sum.
    """

    def __init__(self, store: Store, plan: StudyPlan) -> None:
        assert isinstance(plan.release, SecureSumPlan)
        self._store, self._plan = store, plan
        self._sites = tuple(plan.release.members)
        self._terms = plan.release.terms(plan)
        self._mine = (_orders.c.study == plan.study) & (_orders.c.plan_hash == plan.hash)

    def ask(self, step: SumStep, contents: Mapping[int, bytes], key: SigningKey) -> None:
        """Ask a step of all its sites at once, or change nothing where it was asked before.

        Args:
            contents: by the place of the site.
            key: the coordinator's witness key.
        Raises: ReplayRefusal, where another process has asked it of others, or with other contents.
        """
        orders = {place: self._order(number_of(step, place), content) for place, content in contents.items()}

        def put(c: sa.Connection) -> None:
            before = self._rows(c, step)
            if before:
                if {place: row.digest for place, row in before.items()} != {
                    place: said.digest for place, said in orders.items()
                }:
                    raise ReplayRefusal(
                        f"step {step} of a sum must be asked once, with one content for each site",
                        given="another",
                        next_step="Another process runs this sum. Let it go on.",
                    )
                return
            for place, said in sorted(orders.items()):
                number = self._insert(c, said, contents[place], key)
                reach("sum.before_ask")
                c.execute(_of.insert().values(asked=number, site=self._sites[place]))

        self._store.write(put)
        reach("sum.after_ask")

    def order_contents(self, step: SumStep) -> dict[int, bytes]:
        """The content of each site's order in a step, by its place; empty where it was not asked."""
        rows = self._store.read(lambda c: self._rows(c, step))
        return {place: bytes(row.content) for place, row in rows.items()}

    def answers(self, step: SumStep) -> dict[int, SiteAnswer | Refusal | str]:
        """Sites' messages in a step, by place; the code for which a site gave none; why one cannot be read."""
        query = (
            sa.select(_orders.c.round, _of.c.envelope, _of.c.content, _of.c.key)
            .join(_orders, _orders.c.number == _of.c.asked)
            .where(self._mine & (_orders.c.kind == "sum") & _of.c.envelope.is_not(None))
            .where(_orders.c.round.between(number_of(step, 0), number_of(step, 127)))
        )
        out: dict[int, SiteAnswer | Refusal | str] = {}
        for row in self._store.read(lambda c: c.execute(query).all()):
            place, content = place_of(row.round), bytes(row.content)
            try:
                said = open_answer(bytes(row.envelope), content, PublicKey(row.key))
                out[place] = said.code or site_answer(step, place, content, self._terms)
            except Refusal as refusal:  # one damaged row must not hide the others
                out[place] = refusal
        return out

    def _order(self, number: int, content: bytes) -> RoundOrder:
        return RoundOrder(
            study=self._plan.study,
            plan_hash=self._plan.hash,
            kind="sum",
            round=number,
            content_sha256=sha256_hex(content),
            content_bytes=len(content),
        )

    def _rows(self, c: sa.Connection, step: SumStep) -> dict[int, Any]:
        query = sa.select(_orders.c.round, _orders.c.digest, _orders.c.content).where(
            self._mine & (_orders.c.kind == "sum") & _orders.c.round.between(number_of(step, 0), number_of(step, 127))
        )
        return {place_of(row.round): row for row in c.execute(query).all()}

    def _insert(self, c: sa.Connection, said: RoundOrder, content: bytes, key: SigningKey) -> int:
        values = {"study": said.study, "plan_hash": said.plan_hash, "kind": said.kind, "round": said.round}
        made = c.execute(
            _orders.insert().values(**values, digest=said.digest, envelope=said.sign(key).to_bytes(), content=content)
        ).inserted_primary_key
        assert made is not None
        return int(made[0])


def progress_of(store: Store, plan: StudyPlan) -> SumProgress:
    """Progress of the sum of a plan."""
    mine = (_orders.c.study == plan.study) & (_orders.c.plan_hash == plan.hash)
    rows = store.read(
        lambda c: c.execute(
            sa.select(_orders.c.round, _of.c.site, _of.c.envelope)
            .join(_orders, _orders.c.number == _of.c.asked)
            .where(mine & (_orders.c.kind == "sum"))
            .order_by(_of.c.site)
        ).all()
    )
    step = max((step_of(row.round) for row in rows), default=0)
    now = [row for row in rows if step_of(row.round) == step]
    opened = store.opened_sum(plan.hash)
    return SumProgress(
        plan_hash=plan.hash,
        step=step,
        answered={row.site: _code(bytes(row.envelope)) for row in now if row.envelope is not None},
        waiting=tuple(row.site for row in now if row.envelope is None),
        opened="" if opened is None else opened.sha256,
    )


def require_readable(plan: StudyPlan, number: int, content: bytes) -> None:
    """Refuse bytes that are no message of that site in that step. Raises: SchemaRefusal, ReplayRefusal."""
    assert isinstance(plan.release, SecureSumPlan)
    site_answer(SumStep(step_of(number)), place_of(number), content, plan.release.terms(plan))


def _code(envelope: bytes) -> str:
    return str(parse_json(Envelope.from_bytes(envelope).payload)["code"])
