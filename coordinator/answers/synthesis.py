"""Synthetic rows of one site from what its releases hold here: see `shared.releases.synthetic`.

Rows leave a coordinator only where stewards approved that rows do, and drawn rows are no exception: the plan must say
``row_download = true``. Where the sites' secure sum is opened, a site's rows are drawn at an effect at which the rows
of all sites answer as the sum does (`coordinator.pooling.secure_sum.row_effects`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.answers import release_selection
from coordinator.pooling.secure_sum.row_effects import as_the_sum
from shared.errors import EstimateRefusal, PolicyRefusal
from shared.mechanisms.base import require_addable
from shared.releases.synthetic import Synthesis

if TYPE_CHECKING:
    from coordinator.pooling.pool import PooledResult
    from coordinator.store.store import Store
    from shared.estimands.questions import Estimand

__all__ = ["synthesis"]


def synthesis(
    store: Store, study: str, site: str, *, wave: int = 0, number: int = 0, rows: int = 0, draws: int = 1
) -> Synthesis:
    """Synthesis from a site's figures as of a wave; the newest if 0.

    Args: number, rows, draws: as of `Synthesis`.
    Raises: ParameterError; PolicyRefusal (no rows may leave); EstimateRefusal (no figures of the site, or of several
        kinds); from the drawing StateRefusal, where a release was taken back meanwhile.
    """
    held = release_selection.holding(store, study, wave)
    releases = held.parts.get(site)
    if not releases:
        raise EstimateRefusal(
            f"{site} must have an accepted release as of wave {held.wave}",
            given="none",
            next_step="See coordinator releases.",
        )
    plans = {one.plan_version: store.plan(study, one.plan_version).plan for one in releases}
    plan = plans[releases[-1].plan_version]
    if not all(one.row_download for one in (*plans.values(), store.plan(study).plan)):
        raise PolicyRefusal(
            "the plan must let rows leave the coordinator",
            given="row_download = false",
            next_step="Questions are answered without it: coordinator pool.",
        )
    require_addable([plans[one.plan_version] for one in releases])

    def taken() -> set[str]:
        return {stone.bundle_sha256 for stone in store.withdrawals(study)}

    used_by = {one.bundle_sha256 for one in releases}

    def still() -> None:
        if taken() & used_by:
            raise release_selection.moved()  # what a site took back while the fit ran gives no rows

    withdrawn = taken()
    figures = [(release_selection.rows_of(store, [one], withdrawn), one.receipt.n) for one in releases]
    used = [
        {"release_id": one.release_id, "bundle_sha256": one.bundle_sha256, "receipt": one.receipt.hash}
        for one in releases
    ]
    about = {"study": study, "site": site, "wave": held.wave, "releases": used}

    def answered(question: Estimand, term: str) -> PooledResult:
        from coordinator.answers.queries import ask

        return ask(store, held, question, term=term).result

    found = as_the_sum(plan, site, about, answered)
    if held.opened is not None and "drawn" in found:  # then every pilot of the sum is behind the rows
        used_by |= set(held.opened.document.pilots.values())
    return Synthesis(plan, figures, still=still, number=number, rows=rows, draws=draws, **found)
