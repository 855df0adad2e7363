"""A release rehearsed on a table made from the dictionary alone: it costs nothing, and opens no connection.

It has a ledger, keys and outbox of its own in a sandbox folder, and a witness that is not a coordinator.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.base.canonical import parse_json
from shared.base.keys import Envelope, SigningKey
from shared.errors import (
    AuditRefusal,
    ChecksRefusal,
    Refusal,
    StateRefusal,
)
from shared.plans.plan import StudyPlan
from site_agent.config import Edges, Limits, SiteFloors, TableSource
from site_agent.release.site import WorkingSite

if TYPE_CHECKING:
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.plans.dictionary import Dictionary
    from shared.plans.repeated_rows import RepeatedRows
from site_agent.release.pipeline.making import make_release
from site_agent.release.pipeline.opened import SealedRelease
from site_agent.release.pipeline.stages import Progress

__all__ = [
    "Rehearsal",
    "made_up_edges",
    "made_up_table",
    "rehearse",
]

SANDBOX = "REHEARSAL.txt"


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The outcome of `rehearse`: a release in the sandbox, or what the checks said about the made-up table."""

    folder: Path
    release: SealedRelease | None
    refused: Refusal | None


# -- rehearsal --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class _Seen:
    seq: int
    head: str
    index: int = 0


class _SandboxWitness:
    """Acknowledges any head, as a coordinator would; nothing is sent."""

    def anchor(self, envelope: Envelope) -> _Seen:
        body = parse_json(envelope.payload)
        return _Seen(seq=body["seq"], head=body["head"])


def rehearse(
    *,
    plan: StudyPlan,
    folder: Path,
    name: str,
    agent_version: str,
    floors: SiteFloors,
    today: dt.date,
    progress: Progress | None = None,
    home: Path | None = None,
) -> Rehearsal:
    """Run everything on a made-up table in a sandbox: no record is read, no budget is spent, nothing is sent.

    Args:
        plan: any verified plan; it need not be approved.
        folder: the sandbox; what an earlier rehearsal left there is removed.
        name: the site's id.
        floors: the site's.
        today: UTC date; a plan whose waves are all closed or not yet open is rehearsed on its first day.
        progress: see `Progress`.
        home: the site's folder, where the flow lies that a plan may name.
    Raises: any refusal of a step before the attack audit; what the audit says about a made-up table is returned.
    """
    import shutil

    from shared.base.randomness import secure_rng
    from site_agent.ledger.book import Ledger
    from site_agent.release.outbox import Outbox

    if folder.exists():
        if not (folder / SANDBOX).exists():
            raise StateRefusal(
                "the sandbox must be a folder of rehearsals", given=folder.name, next_step="Name another folder."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o700)
    (folder / SANDBOX).write_text("Made-up data. This folder is removed by the next rehearsal.\n", encoding="utf-8")
    if plan.flow and home is not None:
        from site_agent.release import trained_flow

        digest = trained_flow.kept_flow(home, plan.flow).digest
        trained_flow.flow_path(folder, digest).parent.mkdir(mode=0o700)
        shutil.copy(trained_flow.flow_path(home, digest), trained_flow.flow_path(folder, digest))
    rng = secure_rng()
    limits = Limits.of(plan.floors, floors)
    source = TableSource(path=(folder / "made-up.csv").resolve())
    # Under `holdout` both those who train and those who are released must be enough.
    split = min(plan.holdout, 1 - plan.holdout) if plan.posture == "holdout" else 1.0
    made_up = made_up_table(plan, round(max(4 * limits.persons, 300) / split), rng, k=limits.minimum_k)
    made_up.to_csv(source.path, index=False)
    if plan.release.edges is not None:
        edges = Edges(path=(folder / "made-up-edges.csv").resolve())
        made_up_edges(list(made_up[plan.dictionary.person]), rng).to_csv(edges.path, index=False)
        source = replace(source, edges=edges)
    ledger = Ledger.create(folder / "ledger.db", SigningKey.generate(), site=name)
    site = WorkingSite(
        name=name,
        agent_version=agent_version,
        ledger=ledger,
        outbox=Outbox(folder, ledger),
        witness=_SandboxWitness(),
        snapshot_key=secrets.token_bytes(32),
        floors=floors,
        paused=lambda: False,
    )
    wave = next((w for w in plan.waves if w.opens <= today <= w.closes), None)
    day = today if wave else plan.waves[0].opens
    number = wave.number if wave else 1
    release: SealedRelease | None = None
    refused: Refusal | None = None
    try:
        release = make_release(plan=plan, wave=number, source=source, site=site, today=day, rng=rng, progress=progress)
    except (AuditRefusal, ChecksRefusal) as refusal:
        refused = refusal
    return Rehearsal(folder=folder, release=release, refused=refused)


def made_up_table(plan: StudyPlan, n: int, rng: Noise, *, k: int = 0) -> pd.DataFrame:
    """A source table made from the dictionary alone: uniform within bounds and levels, a tenth missing where allowed.

    Where a person may have several rows, each has as many as may be kept. At least `k` share each combination of
    quasi-identifiers, where the plan names any.
    It says nothing about any hospital, and therefore nothing about how well the study will work there.
    """
    import numpy as np
    import pandas as pd

    if (repeated := plan.dictionary.repeated) is not None:
        wide = replace(plan, dictionary=replace(plan.dictionary, repeated=None))
        return _rows_of(made_up_table(wide, n, rng, k=k), plan.dictionary, repeated)
    draws = rng.generator
    out: dict[str, Any] = {}
    for column in plan.dictionary.columns:
        if column.kind == "person":
            out[column.name] = [f"made-up-{i}" for i in range(n)]
            continue
        values: Any
        if column.kind == "integer":
            values = draws.integers(int(column.span[0]), int(column.span[1]) + 1, n).astype(object)
        elif column.kind in ("continuous", "time"):
            lower, upper = column.span
            values = np.round(draws.uniform(lower, upper, n), 6 if column.decimals is None else column.decimals)
            values = np.clip(values, lower, upper).astype(object)
        else:
            values = np.array(column.levels, dtype=object)[draws.integers(0, len(column.levels), n)]
        if column.missing != "refuse":
            values[draws.random(n) < 0.1] = None
        if column.missing_codes:
            # A code for "missing" may lie within the bounds; drawn by accident it would be missing where it must not.
            codes = {str(code) for code in column.missing_codes} | {
                f"{c:g}" for c in column.missing_codes if not isinstance(c, str)
            }
            hit = np.array([str(v) in codes or (isinstance(v, float) and f"{v:g}" in codes) for v in values])
            spare = (column.span[0] + column.span[1]) / 2 if column.kind in ("continuous", "integer", "time") else None
            values[hit] = int(spare) if column.kind == "integer" and spare is not None else spare
        out[column.name] = values
    if k and plan.quasi_identifiers:
        whose = draws.permutation(np.arange(n) % max(1, n // k))
        out |= {name: out[name][whose] for name in plan.quasi_identifiers}
    return pd.DataFrame(out)


def _rows_of(table: pd.DataFrame, dictionary: Dictionary, repeated: RepeatedRows) -> pd.DataFrame:
    """Several rows of a person of one: the source of a table as it is released."""
    import pandas as pd

    released = {name for column in repeated.columns for name in repeated.names(column)}
    same = [column.name for column in dictionary.columns if column.name not in released]
    parts = []
    for row in range(repeated.rows):
        part = table[same].assign(**{name: table[repeated.names(name)[row]] for name in repeated.columns})
        parts.append(part.assign(**{repeated.order: repeated.visits[row]}) if repeated.visits else part)
    rows = pd.concat(parts, ignore_index=True)
    if not repeated.visits:
        rows = rows[rows[repeated.order].notna()].drop_duplicates([str(dictionary.person), repeated.order])
    return rows[[column.name for column in dictionary.source.columns]]


def made_up_edges(persons: Sequence[str], rng: Noise) -> pd.DataFrame:
    """An edge list made of nothing: some of the persons meet more people than others, about ten each."""
    import numpy as np
    import pandas as pd

    draws = rng.generator
    n = len(persons)
    busy = draws.uniform(0.3, 1.7, n)
    ends: list[Any] = [np.empty((2, 0), dtype=np.int64)]
    # By rows: all pairs of a site with a high floor at once would be gigabytes.
    for i in range(n):
        j = i + 1 + np.flatnonzero(draws.random(n - 1 - i) < np.minimum(10 / n * busy[i] * busy[i + 1 :], 1))
        ends.append(np.stack([np.full(len(j), i), j]))
    start, end = np.hstack(ends)
    names = np.array(persons, dtype=object)
    return pd.DataFrame({"from": names[start], "to": names[end]})
