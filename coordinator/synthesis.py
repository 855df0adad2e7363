"""Synthetic rows of one site, from the noisy figures that it released: post-processing, as often as anybody likes.

A release of figures (tables, slicing, moments) holds no rows, but a model can be fitted to it and rows drawn from that.
Neither is seen by the site, and its ledger does not move. A slicing release takes any of the fits of
`shared.generators.fits`; figures of other mechanisms have one each.

The seed decides every number, and stands in the record beside the bundles, the settings and the table's own digest:
who has the record and the store can make the same table again. Rows leave a coordinator only where stewards approved
that rows do, and drawn rows are no exception: the plan must say ``row_download = true``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator import queries
from coordinator.analysis import versions
from shared.errors import EstimateRefusal, ParameterError, PolicyRefusal
from shared.generators.fits import Progress, Settings
from shared.prescriptions import Figures
from shared.prescriptions.slicing import SlicingPlan

if TYPE_CHECKING:
    import pandas as pd

    from coordinator.store import Store

__all__ = ["MOST_ROWS", "Drawn", "Synthesis"]

MOST_ROWS = 1_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """Rows, and the record of where they came from. No table where the fit was stopped before its end."""

    table: pd.DataFrame | None
    record: dict[str, Any]


class Synthesis:
    """What would be fitted, known before it is.

    Args:
        wave: the site's figures as of this wave; the newest if 0.
        fit: one of `shared.generators.fits.FITS` for a slicing release; of other figures empty. Empty is ``moments``.
        number: of the draw, the seed of fit and rows. rows: how many, as many as there are persons if 0.
        more: further `Settings`.
    Raises: ParameterError; PolicyRefusal (no rows may leave); EstimateRefusal (no figures of the site, or of several
        kinds); StateRefusal, as `coordinator.queries.moved`.
    """

    def __init__(
        self,
        store: Store,
        study: str,
        site: str,
        *,
        wave: int = 0,
        fit: str = "",
        number: int = 0,
        rows: int = 0,
        **more: Any,
    ) -> None:
        held = queries.holding(store, study, wave)
        releases = held.parts.get(site)
        if not releases:
            raise EstimateRefusal(
                f"{site} must have an accepted release as of wave {held.wave}",
                given="none",
                next_step="See coordinator releases.",
            )
        plans = {one.plan_version: store.plan(study, one.plan_version).plan for one in releases}
        self.plan = plans[releases[-1].plan_version]
        if not all(plan.row_download for plan in (*plans.values(), store.plan(study).plan)):
            raise PolicyRefusal(
                "the plan must let rows leave the coordinator",
                given="row_download = false",
                next_step="Questions are answered without it: coordinator pool.",
            )
        if not isinstance(self.plan.release, Figures):
            raise ParameterError(
                "the release must be of noisy figures",
                given=f"rows by {self.plan.release.title}",
                next_step="Its rows are there already: analyst rows.",
            )
        if any(plan.release != self.plan.release for plan in plans.values()):
            raise EstimateRefusal("a site's releases must be of one [release] to be added up", given="several")
        if fit and not isinstance(self.plan.release, SlicingPlan):
            raise ParameterError(
                f"figures by {self.plan.release.title} must be fitted in their own way",
                given=f"--fit {fit[:40]}",
                next_step="Leave --fit out.",
            )
        if not 0 <= rows <= MOST_ROWS:
            raise ParameterError(f"rows must be in 1..{MOST_ROWS}", given=f"{rows}")
        self.settings = Settings(fit=fit or "moments", seed=number, **more)
        self._store, self._used = store, {one.bundle_sha256 for one in releases}
        taken = self._taken()
        self._figures = [(queries.rows_of(store, [one], taken), one.receipt.n) for one in releases]
        self._rows = rows or sum(n for _, n in self._figures)
        self.record: dict[str, Any] = {
            "study": study,
            "site": site,
            "wave": held.wave,
            "mechanism": self.plan.release.mechanism,
            "rows": self._rows,
            "seed": number,
            "releases": [
                {"release_id": one.release_id, "bundle_sha256": one.bundle_sha256, "receipt": one.receipt.hash}
                for one in releases
            ],
            "code": versions(),
        }

    def _taken(self) -> set[str]:
        return {stone.bundle_sha256 for stone in self._store.withdrawals(self.plan.study)}

    def draw(self, *, checkpoint: Path | None = None, watch: Callable[[Progress], bool | None] | None = None) -> Drawn:
        """Fit, and draw. Raises: StateRefusal (taken back meanwhile); as `shared.generators.fits.generator`."""
        release, rng = self.plan.release, np.random.default_rng([self.settings.seed, 4])
        record = dict(self.record)
        if isinstance(release, SlicingPlan):
            fitted = release.generator(self.plan, self._figures, self.settings, checkpoint=checkpoint, watch=watch)
            told = {"steps": fitted.steps, "best_step": fitted.best_step, "finished": fitted.finished}
            record |= {"fit": asdict(self.settings) | told}
            if not fitted.finished:
                return Drawn(table=None, record=record)
            table = fitted.generator.rows(self._rows, rng)[1]
        else:
            assert isinstance(release, Figures)
            import pandas as pd

            n = sum(n for _, n in self._figures)
            count = -(-self._rows // n)
            made = release.synthetic(self.plan, self._figures, draws=count, rng=rng)
            table = pd.concat(made, ignore_index=True).iloc[: self._rows]
            record |= {"fit": None}
        if self._taken() & self._used:
            raise queries.moved()  # what a site took back while the fit ran gives no rows
        text = table.to_csv(index=False).encode()
        return Drawn(table=table, record=record | {"csv_sha256": hashlib.sha256(text).hexdigest()})
