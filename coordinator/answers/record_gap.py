"""Gap between a pooled answer and the answer that the records themselves would give, as far as it can be known."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from coordinator.pooling.cautions import DENIED, denial
from coordinator.pooling.gaps import Gap, released_flow, reperturbed
from coordinator.pooling.intervals import BENT, BETWEEN, UNMEASURED
from shared.errors import Refusal
from shared.estimands.answer import Estimand
from shared.estimands.kinds import CURVED
from shared.mechanisms.kinds import kind

if TYPE_CHECKING:
    from coordinator.pooling.pool import PooledResult
    from coordinator.store.store import Store
    from shared.plans.federated import FederatedFlow
from coordinator.answers.release_selection import ReleaseSelection, rows_of

__all__ = [
    "fitted_elsewhere",
    "released_again",
    "unknown_gap",
]

MEASURED_TO = 100_000
"""Released rows of all sites together up to which the stated distance held in nine cases of ten (docs/zoo.md)."""


def fitted_elsewhere(held: ReleaseSelection) -> dict[str, float | None]:
    """Site of released rows to training persons per released row, if the flow was fitted on others; else to None."""
    out: dict[str, float | None] = {}
    for site, releases in held.parts.items():
        receipt = releases[-1].receipt
        if kind(receipt.mechanism).draws_rows:
            share = float(receipt.parameters.get("holdout", 0.0))
            out[site] = share / (1 - share) if receipt.posture == "holdout" else None
    return out


def unknown_gap(held: ReleaseSelection, known: Collection[str], question: Estimand, result: PooledResult) -> str:
    """Reason why the gap is unknown at sites of released rows not in `known`; empty where it can be estimated.

    The gap counts the release's noise, which falls with the number of rows. The flow's own error does not, and from
    `MEASURED_TO` rows on it was seen to exceed the stated distance too often. So it was where rows deny the model: few
    of them decide such an answer, and a flow draws these worst. Both are asked of those sites alone, whose part of the
    distance is stated by the noise: at a site in `known` the flow's error was measured by releasing its rows again.
    """
    drawn = {site: parts[-1].receipt for site, parts in held.parts.items() if site not in known}
    drawn = {site: receipt for site, receipt in drawn.items() if kind(receipt.mechanism).draws_rows}
    unseen = sorted(site for site, receipt in drawn.items() if receipt.posture in ("public", "private"))
    if unseen:
        return _UNTOLD.format(f"the flow of {', '.join(unseen)} was not fitted on the records as they are")
    joint = sorted(site for site, receipt in drawn.items() if receipt.parameters.get("outcomes_last") != 1.0)
    if joint:
        return _UNTOLD.format(f"the flow of {', '.join(joint)} draws outcomes together with covariates")
    rows, which = sum(part.receipt.n for site in drawn for part in held.parts[site]), ""
    if known:
        which = f" of {', '.join(sorted(drawn))}, which could not be released again,"
    if rows > MEASURED_TO:
        return _UNTOLD.format(f"{rows:,} rows{which} are pooled, and no flow was seen to be so exact")
    if drawn and denial(result, drawn) >= DENIED:
        return _UNTOLD.format(
            f"the rows{which} deny the model behind {result.term}, and a flow draws worst the few that decide"
        )
    unmeasured = [words for words in UNMEASURED if drawn and any(words in caution for caution in result.doubts)]
    if unmeasured:
        said = {
            BENT: f"the outcome{which} is a curved function of a column that is drawn by a straight law",
            BETWEEN: f"the flow alone{which} says how the question's columns hang together",
        }
        return _UNTOLD.format(said.get(unmeasured[0], f"the model{which} has a curved function of a column"))
    if drawn and question.kind in CURVED and question.terms:
        return _UNTOLD.format(f"one hazard{which} is drawn for all groups, but for what their proportions are")
    return ""


_UNTOLD = (
    "How far the estimate from the records themselves lies from this one is not known: {}, and what that takes away or "
    "adds may be more than the release's noise."
)


def released_again(
    store: Store,
    held: ReleaseSelection,
    question: Estimand,
    term: str,
    times: int,
    trained: FederatedFlow | None,
) -> dict[str, Gap]:
    """Site to the gap of its estimate, where its rows' flow is public; a site that cannot answer has none.

    Args:
        held: the releases that the answer is from.
        question, term: the question, and one of its terms.
        times: number of times that the rows are released again.
        trained: the flow that the plan names.
    """
    from shared.mechanisms.latent_noise.plan import mechanism
    from shared.plans.encoding import Encoder

    taken = {stone.bundle_sha256 for stone in store.withdrawals(held.study)}
    out: dict[str, Gap] = {}
    for site, releases in held.parts.items():
        plan = store.plan(held.study, releases[-1].plan_version).plan
        encoder = Encoder(dictionary=plan.dictionary)
        flow = released_flow(plan, encoder, site, trained)
        if flow is None:
            continue
        levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
        try:
            rows = rows_of(store, releases, taken)
            found = reperturbed(mechanism(plan, flow), encoder, rows, question, levels=levels, times=times)
        except Refusal:
            continue  # the answer itself says why the site is not in it
        if term in found:
            out[site] = found[term]
    return out
