"""Views for an approver: a release beside its plan and earlier releases, the ledger's history and totals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.privacy.stated import shown_delta

if TYPE_CHECKING:
    import pandas as pd

    from shared.plans.plan import StudyPlan
    from site_agent.desk import Desk
    from site_agent.release.outbox import Outbox
    from site_agent.release.pipeline.opened import SealedRelease

__all__ = [
    "Earlier",
    "compare",
    "gated",
    "history",
    "planned",
    "totals",
]

SHIFTS = 3
"""Columns that are named when two releases are held side by side."""
STEPS = {
    "genesis": "ledger begun",
    "reserve": "charged",
    "anchor": "charge witnessed",
    "carry": "charge carried over",
    "drawing": "drawing begun",
    "seal": "sealed",
    "hold": "put in the outbox",
    "send_back": "sent back",
    "approve": "approved",
    "commit": "delivered",
    "reject": "rejected",
    "burn": "burnt",
    "withdraw": "withdrawn",
    "tombstone": "withdrawal settled",
    "standing": "approved in advance",
    "standing_revoked": "standing approval ended",
    "standing_told": "coordinator told of it",
    "persons_withdrew": "consent withdrawn",
    "persons_confirmed": "other persons confirmed",
    "left": "study left",
    "lost": "lost charges counted",
    "recovered": "ledger recovered",
    "study_granted": "study granted by the lead",
    "study_ungranted": "study taken away by the lead",
    "leads_changed": "leads changed",
    "keys_changed": "keys changed",
    "keys_told": "coordinator told of it",
    "persons_apart": "persons told apart",
    "authority_replaced": "authority replaced",
    "plan_approved": "plan approved",
    "plan_revoked": "plan revoked",
    "paused": "paused",
    "resumed": "resumed",
    "train": "training begun",
    "round": "round begun",
    "witnessed": "round witnessed",
    "answer": "round answered",
    "trained": "training ended",
    "sum_consented": "part in the sum consented to",
}
"""The ledger's entries in a steward's words."""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """An earlier release of the study beside the one that waits.

    Args:
        rows, rows_now: released rows, then and now.
        added, removed: columns only one of the two has.
        shifts: the columns that moved most, in words.
    """

    release_id: str
    wave: int
    state: str
    plan_version: int
    epsilon: float | None
    epsilon_given: str
    rows: int
    rows_now: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    shifts: tuple[str, ...]


# -- what the approver is shown ---------------------------------------------------------------------------------
def planned(plan: StudyPlan, made: SealedRelease) -> tuple[tuple[str, bool], ...]:
    """The release held against its plan: sentences, and whether each is true of these bytes."""
    from shared.errors import Refusal

    columns = [column.name for column in plan.dictionary.released]
    try:
        plan.release.validate(plan, made.table, made.receipt.n)
        within = True
    except Refusal:
        within = False
    if plan.release.draws_rows:
        same = list(made.table.columns) == columns
        form: tuple[tuple[str, bool], ...] = (
            (f"exactly the {len(columns)} planned columns, in the plan's order, and no other", same),
            ("every value within the dictionary's bounds and levels", within),
        )
    else:
        form = (("exactly the planned figures, each possible for the plan's noise", within),)
    return (
        *form,
        (f"sent to {plan.coordinator} and nobody else", made.receipt.recipient == plan.coordinator),
        (
            f"priced by the plan's event at δ = {shown_delta(plan.budget.delta)}",
            made.receipt.delta == plan.budget.delta,
        ),
    )


def compare(desk: Desk, made: SealedRelease) -> tuple[Earlier, ...]:
    """The release beside every earlier one of its study that left, or still may, the latest first."""
    from shared.mechanisms.kinds import kind
    from site_agent.release.pipeline import opened

    out: list[Earlier] = []
    gone = desk.ledger.deleted()
    for hold in desk.ledger.holds(made.hold.study):
        if hold.release_id == made.hold.release_id:
            break
        over = hold.phase == "burnt" and not hold.left
        if over or not hold.bundle_sha256 or hold.release_id in gone:
            continue
        before = opened.open_release(desk.outbox, hold.release_id)
        then, now = before.table, made.table
        rows = kind(made.receipt.mechanism).draws_rows
        out.append(
            Earlier(
                release_id=hold.release_id,
                wave=hold.wave,
                state=hold.state,
                plan_version=hold.plan_version,
                epsilon=hold.epsilon,
                epsilon_given=hold.given,
                rows=len(then),
                rows_now=len(now),
                added=tuple(name for name in now.columns if name not in then.columns),
                removed=tuple(name for name in then.columns if name not in now.columns),
                shifts=_shifts(then, now) if rows else (),
            )
        )
    return tuple(reversed(out))


def _shifts(then: pd.DataFrame, now: pd.DataFrame) -> tuple[str, ...]:
    """The columns that moved most between two released tables, in words."""
    import pandas as pd

    found: list[tuple[float, str]] = []
    for name in now.columns:
        if name not in then.columns:
            continue
        if pd.api.types.is_numeric_dtype(then[name].dtype) and then[name].nunique() > 2:
            spread = float(then[name].std()) or 1.0
            moved = (float(now[name].mean()) - float(then[name].mean())) / spread
            found.append((abs(moved), f"{name}: mean {moved:+.2f} standard deviations"))
        else:
            shares = [
                column.astype("string").fillna("missing").value_counts(normalize=True)
                for column in (then[name], now[name])
            ]
            gone = shares[1].sub(shares[0], fill_value=0.0).to_dict()
            level = max(gone, key=lambda each: abs(gone[each]))
            found.append((2 * abs(gone[level]), f"{name}: share of “{level}” {100 * gone[level]:+.1f} points"))
    return tuple(words for _, words in sorted(found, reverse=True)[:SHIFTS])


def gated(outbox: Outbox, release_id: str) -> bool:
    """True if a release was selected by checks that read records, outside of the ε that its receipt states.

    Version 0.1 refused a sealed table for an exact function of records under every posture, and asked for a tick for
    others; version 0.2.0 drew no capped counts of a network whose linear program was too large. Their receipts say so
    in the words of that time; what they promised is not rewritten.
    """
    from shared.mechanisms.network_counts.plan import NetworkCountsPlan
    from shared.releases.bundle import read_bundle
    from shared.releases.receipt import EARLIER_GATE
    from site_agent.release.pipeline.opened import TABLE_CAP

    receipt = read_bundle(outbox.bundle(release_id), cap=TABLE_CAP).receipt
    gates = receipt.mechanism in ("latent_noise", "grand") and receipt.posture != "local"
    return (gates and EARLIER_GATE in receipt.not_covered) or bool(
        {*NetworkCountsPlan.retired} & {*receipt.not_covered}
    )


def history(desk: Desk) -> list[dict[str, Any]]:
    """History for readers, in order: the ledger's entries, and between them what was refused.

    A refused attempt has no number (``seq`` is 0) and names its ``verb`` and ``code``. ``step`` is for people, ``kind``
    for programs.
    """
    from shared.errors import CATALOGUE

    def meant(code: str) -> str:
        known = CATALOGUE.get(code)
        return f"{known.meaning.rstrip('.')} ({code})" if known else code

    refused: list[dict[str, Any]] = [
        {
            "seq": 0,
            "time": line.time,
            "kind": "refused",
            "step": "refused",
            "release_id": line.release_id,
            "who": line.who or ("agent" if line.agent else "not named"),
            "reason": " ".join(part for part in (line.verb, line.study) if part) + f": {meant(line.code)}",
            "verb": line.verb,
            "code": line.code,
            "study": line.study,
            "after": line.after,
            "hash": line.hash,
        }
        for line in desk.refusals.lines()
    ]
    rows: list[dict[str, Any]] = []
    for entry in desk.ledger.entries():
        rows.append(
            {
                "seq": entry.seq,
                "time": entry.time,
                "kind": entry.kind,
                "step": STEPS.get(entry.kind, entry.kind.replace("_", " ")),
                "release_id": entry.body.get("release_id", ""),
                "who": entry.body.get("name") or entry.body.get("by") or _nobody(entry.kind),
                "reason": entry.body.get("reason", ""),
                "hash": entry.hash,
            }
        )
        while refused and refused[0]["after"] <= entry.seq:
            rows.append(refused.pop(0))
    return [*rows, *refused]


def _nobody(kind: str) -> str:
    """Actor of an entry that no person has signed."""
    return "not named" if kind == "paused" else "agent"


def totals(desk: Desk, study: str | None = None) -> list[dict[str, Any]]:
    """Privacy loss charged per study, at its δ, under its cap."""
    lines = desk.ledger.statement(study)
    out = []
    for name in dict.fromkeys(line.study for line in lines):
        delta = next(line.delta for line in reversed(lines) if line.study == name)
        spent = desk.ledger.study_total(name, delta)
        out.append(
            {
                "study": name,
                "delta": delta,
                "epsilon": spent.stated,
                "epsilon_given": spent.given,
                "cap": spent.cap,
                "releases": spent.releases,
                "burnt": spent.burnt,
                "open": spent.open,
                "open_words": spent.open_words,
            }
        )
    return out
