"""The `Drawing` of a plan: rows by latent noise, or noisy statistics.

Latent noise fits a flow and adds noise to every record; a `shared.mechanisms.base.Aggregates` computes noisy statistics
of all of them; a network (`site_agent.release.networks`) is fitted on some persons and drawn for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shared.mechanisms.base import Aggregates
from shared.mechanisms.grand.plan import GrandPlan
from site_agent.release import sealed_state
from site_agent.release.protocol import Chosen, Drawing, Progress, unread

if TYPE_CHECKING:
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.flows.base import Bijection
    from shared.plans.encoding import Encoder
    from shared.plans.plan import StudyPlan
    from site_agent.config import Limits
    from site_agent.ledger.book import Hold
    from site_agent.records.contacts import Contacts
    from site_agent.records.table import Records
    from site_agent.release.checks import Check
    from site_agent.release.embeddings import EmbeddingBase
    from site_agent.release.equal_rows import ChanceHits
    from site_agent.release.fitting import FittedMechanism

__all__ = ["drawing_of"]

NOTES = (
    "What the attacks found decides nothing: the price bounds what any attack can learn of a person, and a release "
    "that was refused for what it has in common with a record would tell of that record."
)
REHEARSED = 250_000
"""Rows by which a larger table is rehearsed first.

Where most such parts have none that stays as it is, there are so few in all that about one release in a hundred, at
most, has one among the `equal_rows.ROWS` rows that are looked at.
"""


def drawing_of(plan: StudyPlan, trained: Bijection | None = None, base: EmbeddingBase | None = None) -> Drawing:
    """The drawing that a plan's mechanism asks for.

    Args:
        trained: the flow that the plan names (`StudyPlan.flow`), if it names one.
        base: what a network goes on from that keeps its frame.
    """
    if isinstance(plan.release, GrandPlan):
        from site_agent.release import networks

        return networks.drawing(plan, plan.release, base)
    return AggregateRelease(plan, plan.release) if isinstance(plan.release, Aggregates) else RowRelease(plan, trained)


class RowRelease(Drawing):
    """Latent noise: a flow between records and latents, noise on the latents, one synthetic row per record."""

    unattacked: ClassVar[Mapping[str, Any]] = {
        "decides": False,
        "sentences": [NOTES, "The attacks could not be carried out on these records."],
    }

    def __init__(self, plan: StudyPlan, trained: Bijection | None = None) -> None:
        from shared.plans.encoding import Encoder

        super().__init__(plan)
        self._trained = trained
        self._encoder = Encoder(dictionary=plan.dictionary)
        self._by_chance: dict[int, ChanceHits] = {}

    def take(
        self, table: Records, persons: Sequence[str] | None, chosen: Chosen, base: sealed_state.SealedFlow | None
    ) -> None:
        if base is not None:
            from shared.mechanisms.latent_noise.plan import mechanism

            planned = mechanism(self.plan)
            base.require_fits(self.plan, w=planned.w, radius=planned.radius, noise=self.plan.returning != "refresh")
            self.flow_of = base.flow_of
        self._base, self._chosen, self._persons = base, chosen, persons
        self._snapshot = table.snapshot
        self.left_out = table.rows - table.n
        # Whoever is neither drawn nor trains, be it by a withdrawal, is not looked at.
        self._present = list(chosen.rows) if base is not None else sorted({*chosen.rows, *chosen.train})
        self._records = table.table.iloc[self._present].reset_index(drop=True)
        self._real = table.table.iloc[list(chosen.rows)].reset_index(drop=True)

    def encode(self, rng: Noise) -> None:
        self._x = self._encoder.encode(self._records, rng)
        del self._records

    def fit(self, rng: Noise, progress: Progress) -> None:
        from site_agent.release import fitting

        # Under `local` the plan's flow is where the first fit may begin; a wave after it has the sealed one.
        if self.plan.flow and (self._base is None or self.plan.posture != "local"):
            self._fitted = fitting.fit(self.plan, self._encoder, self._x, None, rng, progress, trained=self._trained)
        elif self._base is None:
            names = self._persons
            if names is not None and len(self._present) < len(names):
                names = [names[i] for i in self._present]
            self._fitted = _fit(self.plan, self._encoder, self._x, names, rng, progress)
        else:
            self._fitted = fitting.sealed(self.plan, self._encoder, self._base.flow, n=len(self._x))
        self._x = self._x[self._fitted.released]

    def draw(self, rng: Noise) -> None:
        self._noisy = self._fitted.mechanism.release(self._x, rng)
        self.drawn = len(self._noisy)

    def released(self, rng: Noise) -> pd.DataFrame:
        # Row i of the draw comes from record i: once shuffled, a row says nothing by its place.
        chosen = self._chosen
        order = [int(k) for k in rng.generator.permutation(len(self._noisy) + len(chosen.stayed))]
        table = chosen.after(self._encoder.decode(self._noisy)).iloc[order].reset_index(drop=True)
        self.n = len(table)
        source = [*chosen.rows, *([-1] * len(chosen.stayed))]
        whose = [] if self._persons is None else [*chosen.of(self._persons), *chosen.stayed]
        self.rows = sealed_state.ReleasedRows(
            snapshot=self._snapshot,
            source=tuple(source[k] for k in order),
            persons=tuple(whose[k] for k in order) if whose else (),
        )
        return table

    def files(self, release_id: str) -> Mapping[str, bytes]:
        mechanism = self._fitted.mechanism
        fit = sealed_state.SealedFlow(
            flow=mechanism.flow,
            epochs=self._fitted.epochs,
            w=mechanism.w,
            radius=mechanism.radius,
            dictionary=self.plan.dictionary.hash,
            fitted_by=sealed_state.fitted_by(self.plan),
            flow_of=self.flow_of or release_id,
            fresh=self._base is None,
            noisy=self._noisy,
        )
        return {sealed_state.FIT: fit.to_bytes(), sealed_state.ROWS: self.rows.to_bytes()}

    def resume(self, table: Records, hold: Hold, folder: Any, rng: Noise) -> None:
        from site_agent.release import fitting

        self.rows = sealed_state.read_rows(folder, hold)
        fit = sealed_state.read_fit(folder, hold)
        drawn = sorted(i for i in self.rows.source if i >= 0)
        self._real = table.table.iloc[drawn].reset_index(drop=True)
        self._x = self._encoder.encode(self._real, rng)
        self._noisy = fit.noisy
        self._fitted = fitting.sealed(
            self.plan,
            self._encoder,
            fit.flow,
            n=len(self._real),
            epochs=fit.epochs,
            fresh=fit.fresh,
            begin=self._trained,
        )
        self.left_out = table.rows - table.n

    def without_records(self, hold: Hold, folder: Any) -> None:
        from site_agent.release import fitting

        self.rows = sealed_state.read_rows(folder, hold)
        fit = sealed_state.read_fit(folder, hold)
        drawn = sum(i >= 0 for i in self.rows.source)
        self._real = self._x = unread(drawn)
        self._noisy = fit.noisy
        self._fitted = fitting.sealed(self.plan, self._encoder, fit.flow, n=drawn, epochs=fit.epochs, fresh=fit.fresh)

    def checks(self, table: pd.DataFrame, limits: Limits) -> tuple[Check, ...]:
        from site_agent.release.checks import check_rows

        return check_rows(
            self.plan,
            table,
            real=self._real,
            limits=limits,
            clipped=lambda: self._fitted.mechanism.clipped_count(self._latents),
            chance=self._chance,
            beyond=self._fitted.mechanism.beyond,
            source=self.rows.source,
        )

    def rehearse(self) -> None:
        from shared.base.randomness import secure_rng
        from site_agent.release.checks import REHEARSALS, require_rehearsed

        mechanism = self._fitted.mechanism
        # What shrinks or varies by records cannot be tried on others.
        if not self.plan.records_decide or mechanism.w == 0 or mechanism.shrink != 1 or mechanism.vary:
            return
        own, every = list[int](), np.arange(len(self._x))
        rng = secure_rng().generator
        for _ in range(REHEARSALS):
            some = rng.choice(every, REHEARSED, replace=False) if len(every) > REHEARSED else every
            found = self._rehearsed(some)
            # A row that is alone among some may not be among all.
            own.append(self._rehearsed(every) if found and some is not every else found)
            if own.count(0) > REHEARSALS // 2:  # the median of them all is known
                break
        require_rehearsed(own, self._chance)

    def _rehearsed(self, places: Any) -> int:
        """Rows that latent noise leaves as they are and that are alone in their table, in one of persons drawn anew."""
        from site_agent.release.equal_rows import own_rows

        mechanism = self._fitted.mechanism
        z, carried = self._latents_of_nobody(places), list(mechanism.carried)
        norms = np.linalg.norm(np.delete(z, carried, axis=1), axis=1, keepdims=True)
        near = np.sqrt(mechanism.w) * z * np.minimum(1.0, mechanism.radius / np.maximum(norms, 1e-300))
        noised = near + np.sqrt(1 - mechanism.w) * self._latents_of_nobody(places)
        noised[:, carried] = z[:, carried]
        rows, theirs = (self._encoder.decode(mechanism.flow.forward(one)) for one in (z, noised))
        return own_rows(rows, theirs, self.plan.dictionary)

    def _latents_of_nobody(self, places: Any) -> Any:
        """Latents in the places of these records that are of no record but for carried columns."""
        from shared.base.randomness import secure_rng

        z = secure_rng().generator.standard_normal((len(places), self._encoder.d))
        carried = list(self._fitted.mechanism.carried)
        z[:, carried] = self._x[places][:, carried]  # the flow leaves them alone
        return z

    def _chance(self, tables: int, enough: Callable[[ChanceHits], bool] | None = None) -> ChanceHits:
        """Hits of that many tables drawn from this flow and no record; of fewer tables once `enough` is True.

        They are drawn here, not by the mechanism: one that passed records through would raise these hits as well.
        """
        from site_agent.release.equal_rows import ChanceHits

        flow = self._fitted.mechanism.flow

        def draw(places: Any) -> pd.DataFrame:
            return self._encoder.decode(flow.forward(self._latents_of_nobody(places)))

        if tables in self._by_chance:  # those simulated for the rehearsal serve the release as well
            return self._by_chance[tables]
        made = ChanceHits.simulated(
            self._real,
            flow.log_prob(self._x),
            self.plan.dictionary,
            draw,
            tables=tables,
            enough=enough or (lambda so_far: False),
        )
        if enough is None:
            self._by_chance[tables] = made
        return made

    @cached_property
    def _latents(self) -> Any:
        """Latents of the records that were drawn: the checks and the attacks read them."""
        return self._fitted.mechanism.latents(self._x)

    def attack(self, limits: Limits, rng: Noise, progress: Progress) -> dict[str, Any]:
        return _attack(
            decide=self.plan.records_decide,
            x=self._x,
            latents=self._latents,
            noisy=self._noisy,
            fitted=self._fitted,
            encoder=self._encoder,
            limits=limits,
            rng=rng,
            progress=progress,
        )


class AggregateRelease(Drawing):
    """Noisy figures of the records, taken in one step; nothing is fitted that one could probe."""

    unattacked: ClassVar[Mapping[str, Any]] = {
        "tried": False,
        "sentences": [
            "No attack was tried: what leaves is noised for everybody alike, by the price that is stated.",
            "The price in words bounds what any attack can learn of a person, those alike that nobody has thought "
            "of yet.",
        ],
    }

    def __init__(self, plan: StudyPlan, figures: Aggregates) -> None:
        super().__init__(plan)
        self._figures = figures

    def take(
        self, table: Records, persons: Sequence[str] | None, chosen: Chosen, base: sealed_state.SealedFlow | None
    ) -> None:
        self._real = self._records(table, chosen.rows)
        self.n = self.drawn = len(self._real)
        self.left_out = table.rows - table.n
        self.rows = sealed_state.ReleasedRows(
            snapshot=table.snapshot,
            source=chosen.rows,
            persons=() if persons is None else chosen.of(persons),
        )

    def encode(self, rng: Noise) -> None:
        """Figures are taken of the checked records themselves; whatever else was read is gone by now."""
        from site_agent.records.blocks import give_back

        give_back()

    def fit(self, rng: Noise, progress: Progress) -> None:
        """Nothing is fitted: what is to be noised is taken, and may be refused before anything is drawn."""
        self._measured = self._figures.measure(self.plan, self._real, rng)
        self._clipped = _found_now(partial(self._figures.clipped, self.plan, self._real))
        del self._real  # a large table leaves no room for what is written once it is drawn

    def rehearse(self) -> None:
        """No check of figures reads a record."""

    def draw(self, rng: Noise) -> None:
        self._table = self._figures.draw(self.plan, self._measured, rng)
        del self._measured

    def released(self, rng: Noise) -> pd.DataFrame:
        table = self._table
        del self._table  # what is checked is read back from the sealed bytes: a large one would be in memory twice
        return table

    def files(self, release_id: str) -> Mapping[str, bytes]:
        return {sealed_state.ROWS: self.rows.to_bytes()}

    def resume(self, table: Records, hold: Hold, folder: Any, rng: Noise) -> None:
        self.rows = sealed_state.read_rows(folder, hold)
        self.n = self.drawn = len(self.rows.source)
        self._clipped = partial(self._figures.clipped, self.plan, self._records(table, self.rows.source))
        self.left_out = table.rows - table.n

    def without_records(self, hold: Hold, folder: Any) -> None:
        self.rows = sealed_state.read_rows(folder, hold)
        self.n = self.drawn = len(self.rows.source)
        self._clipped = partial(self._figures.clipped, self.plan, unread(self.n))

    def checks(self, table: pd.DataFrame, limits: Limits) -> tuple[Check, ...]:
        from site_agent.release.checks import check_figures

        return check_figures(self.plan, table, n=self.n, limits=limits, clipped=self._clipped)

    def attack(self, limits: Limits, rng: Noise, progress: Progress) -> dict[str, Any]:
        """A report that no attack was tried, because the stated ε bounds every one."""
        return dict(self.unattacked)

    def _records(self, table: Records, rows: Sequence[int]) -> pd.DataFrame:
        """The records of some rows, without who they are; of a network with the edges among them."""
        person = self.plan.dictionary.person
        real = table.table if person is None else table.table.drop(columns=person)
        if len(rows) < len(real):  # else all of them, and no copy
            real = real.iloc[list(rows)].reset_index(drop=True)
        return real if table.contacts is None else _with_edges(real, table.contacts, list(rows))


# -- inside -----------------------------------------------------------------------------------------------------
def _with_edges(real: pd.DataFrame, contacts: Contacts, rows: list[int]) -> pd.DataFrame:
    """The records of some rows with the edges among them, each at its smaller place."""
    from scipy.sparse import triu

    from shared.mechanisms.grand.edges import NEIGHBOURS

    upper = triu(contacts.matrix[rows][:, rows], k=1, format="csr")
    upper.sort_indices()
    lists: list[Any] = np.split(upper.indices.astype(np.int32), upper.indptr[1:-1])
    return real.assign(**{NEIGHBOURS: lists})


def _found_now(find: Callable[[], int | None]) -> Callable[[], int | None]:
    """Call `find` now, and return a function that returns its result or raises its error."""
    try:
        found = find()
    except Exception as error:
        failed = error

        def fails() -> int | None:
            raise failed

        return fails
    return lambda: found


def _fit(
    plan: StudyPlan,
    encoder: Encoder,
    x: Any,
    persons: Sequence[str] | None,
    rng: Noise,
    progress: Progress,
) -> FittedMechanism:
    from site_agent.release.fitting import fit

    return fit(plan, encoder, x, persons, rng, progress)


def _attack(
    *,
    decide: bool,
    x: Any,
    latents: Any,
    noisy: Any,
    fitted: FittedMechanism,
    encoder: Encoder,
    limits: Limits,
    rng: Noise,
    progress: Callable[[float], None],
) -> dict[str, Any]:
    """Attack the release; hold the outcome against the limits where it may `decide`. Raises: AuditRefusal.

    The membership attack is tried on another release, of four fifths of the records: one of all of them leaves nobody
    to be wrong about. It is drawn through the flow that could have learned from those alone (`FittedMechanism.shadow`),
    attacked and thrown away: it never reaches the disk. Of a large table it is one of `MOST_PROBED` records: among
    fewer rows a member is easier to tell, so that what passes there passes; what does not is tried among all.
    """
    from site_agent.release.audit.attacks import HELD_BACK, MOST_PROBED, AttackedRows, attack
    from site_agent.release.audit.report import AuditLimits, AuditReport, beyond, gate

    in_force = AuditLimits(
        membership_auc=limits.membership_auc,
        own_row_linkage=limits.own_row_linkage,
        extreme_linkage=limits.extreme_linkage,
    )

    def tried_on(most: int) -> AuditReport:
        order = rng.generator.permutation(len(x))[:most]
        cut = round(HELD_BACK * len(order))
        held_back, inside = x[order[:cut]], x[order[cut:]]
        shadow = fitted.shadow(inside, rng, lambda share: progress(0.8 * share))
        return attack(
            AttackedRows(
                x=x,
                released=noisy,
                latents=latents,
                fitted_on=inside,
                held_back=held_back,
                probe=shadow.release(inside, rng),
            ),
            mechanism=shadow,
            encoder=encoder,
            limits=in_force if decide else None,
            rng=rng,
        )

    report = tried_on(MOST_PROBED)
    if decide and len(x) > MOST_PROBED and beyond(report, in_force):
        report = tried_on(len(x))
    sentences = list(report.sentences())
    if not decide:
        return {**report.to_canonical(), "decides": False, "sentences": [NOTES, *sentences]}
    gate(report, in_force)
    return {**report.to_canonical(), "sentences": sentences}
