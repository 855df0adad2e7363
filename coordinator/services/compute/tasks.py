"""Tasks of the workers (`workers`, beside this): check a bundle against its plan, and answer from released tables.

Each task takes and returns plain values. A worker that answers caches what it has read and computed, tables, sites'
estimates and surrogate samplers, so that the next question of the study finds them. The server names the releases that
an answer rests on, and the worker looks them up: an answer never rests on other releases than those its id was made of.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import EstimateRefusal, ReceiptRefusal, ReplayRefusal, SmallN, StorageRefusal
from shared.mechanisms.base import Answering
from shared.plans.plan import StudyPlan
from shared.terminal import plain

if TYPE_CHECKING:
    from coordinator.answers import queries, release_selection, site_answers
    from coordinator.services.compute.kept_estimates import KeptEstimates
    from coordinator.store.store import AcceptedRelease, Store
    from shared.estimands.questions import Estimand
    from shared.mechanisms.base import Extent
    from shared.releases.receipt import Receipt

__all__ = [
    "READING",
    "answer",
    "check_bundle",
    "held_of",
    "missing",
    "opened_of",
    "read_own",
    "rows",
    "selection_of",
]

READING = (
    *("pandas", "pyarrow.parquet", "pyarrow.compute", "pyarrow.pandas_compat", "pyarrow.vendored.version"),
    *("scipy.special", "encodings.cp437", "shared.mechanisms.latent_noise.noise"),
    *("shared.flows.base", "shared.plans.encoding", "shared.privacy.calibration", "shared.privacy.meaning"),
    *("shared.releases.bundle", "shared.releases.statement"),
    *(f"shared.mechanisms.{kind}.plan" for kind in ("latent_noise", "moments", "tables", "slicing", "densities")),
    "shared.mechanisms.secure_sum.plan",
    "shared.privacy.compiled:special",
    "coordinator.services.compute.tasks:read_own",
)
"""Modules imported, and functions called, to read a bundle: each is read in a process of its own.

Networks are left out for their size.
"""
ANSWERING = (
    *READING,
    "sqlalchemy.dialects.sqlite",
    "coordinator.store.store",
    "coordinator.answers.curves",
    "coordinator.answers.harmonise",
    "coordinator.services.compute.kept_estimates",
    "shared.releases.synthetic",
)
"""Modules imported to answer a question."""
LABEL = b"privatised rows, not patient records"


# -- bundles --------------------------------------------------------------------------------------------------------
def check_bundle(given: Mapping[str, Any]) -> dict[str, Any]:
    """Open a staged bundle and hold it against its statement and plan, its receipt before its table.

    Args:
        given: ``path``, ``cap`` (bytes of the decoded table), ``plan`` and ``statement`` as canonical JSON text.
    Returns: ``receipt``: its canonical JSON text.
    Raises: the refusal of its content; StorageRefusal (the file cannot be read).
    """
    from shared.releases.bundle import read_bundle
    from shared.releases.statement import Statement

    plan = StudyPlan.from_bytes(given["plan"].encode())
    statement = Statement.from_bytes(given["statement"].encode())

    def before(receipt: Receipt) -> Extent:
        require_stated(receipt, statement)
        receipt.require_true(plan)
        if receipt.n < plan.floors.persons:
            raise SmallN(f"a release must have at least {plan.floors.persons} persons", given=f"{receipt.n}")
        return plan.release.extent(plan, receipt.n)

    try:
        bundle = read_bundle(Path(given["path"]), cap=given["cap"], before=before)
    except OSError as error:
        raise StorageRefusal(
            "the coordinator must be able to read the bundle", given=error.strerror or "an error"
        ) from None
    plan.release.validate(plan, bundle.table, bundle.receipt.n)
    return {"receipt": bundle.receipt.to_bytes().decode()}


def read_own() -> None:
    """Read a small bundle of this program's own, so that what a first reading makes, each worker has when it is forked.

    It saves time and nothing else.
    """
    import datetime as dt
    import tempfile

    import pandas as pd

    from shared.base.canonical import sha256_hex
    from shared.base.chain import GENESIS
    from shared.mechanisms.latent_noise.plan import LatentNoisePlan
    from shared.plans.dictionary import Column, Dictionary
    from shared.plans.plan import Budget, Wave
    from shared.releases.bundle import write_bundle
    from shared.releases.receipt import ReceiptDraft, write_receipt
    from shared.releases.statement import Statement

    begin, end, room = dt.date(2000, 1, 1), dt.date(2999, 1, 1), 1e6  # of a plan that nobody signs
    number = Column(name="number", kind="continuous", lower=0, upper=1)
    group = Column(name="group", kind="binary", levels=("a", "b"))
    plan = StudyPlan(
        study="own",
        version=1,
        title="A bundle of this program's own",
        purpose="To have read one.",
        coordinator="own",
        expires=end,
        release=LatentNoisePlan(w=0.8),
        budget=Budget(epsilon=room),
        waves=(Wave(number=1, opens=begin, closes=end),),
        dictionary=Dictionary(name="own", version=1, columns=(number, group)),
    )
    levels = pd.Categorical(["a", "b"] * 50, categories=["a", "b"])
    table = pd.DataFrame({"number": [0.25, 0.5] * 50, "group": levels})
    release = "0" * 32
    receipt = write_receipt(
        plan, ReceiptDraft(wave=1, site="own", release_id=release, agent_version="0", n=len(table), previous=GENESIS)
    )
    data = write_bundle(receipt, table)
    statement = Statement(
        wave=1,
        site="own",
        release_id=release,
        study=plan.study,
        plan_hash=plan.hash,
        plan_version=plan.version,
        recipient=plan.coordinator,
        bundle_sha256=sha256_hex(data),
        bundle_bytes=len(data),
        receipt_sha256=receipt.hash,
        ledger_head=GENESIS,
    )
    given = {"cap": 1 << 20, "plan": plan.canonical.decode(), "statement": statement.to_bytes().decode()}
    with suppress(OSError, StorageRefusal), tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        check_bundle({**given, "path": file.name})


def require_stated(receipt: Receipt, statement: Any) -> None:
    """Hold a receipt against the statement that was signed. Raises: ReceiptRefusal, ReplayRefusal."""
    if receipt.hash != statement.receipt_sha256:
        raise ReceiptRefusal("the receipt must be the one that was signed", given="another")
    for name in ("study", "plan_hash", "plan_version", "wave", "site", "release_id", "recipient"):
        if getattr(receipt, name) != getattr(statement, name):
            raise ReplayRefusal(f"the receipt's {name} must be the statement's", given="another")


# -- questions ------------------------------------------------------------------------------------------------------
def selection_of(held: release_selection.ReleaseSelection) -> dict[str, Any]:
    """A holding as plain values: its releases and tombstones by their bundles' digests, a secure sum by its plan's."""
    return {
        "wave": held.wave,
        "as_of": held.as_of,
        "combined": held.combined,
        "parts": {site: [one.bundle_sha256 for one in releases] for site, releases in held.parts.items()},
        "behind": {site: [one.bundle_sha256 for one in releases] for site, releases in held.behind.items()},
        "withdrawn": [stone.bundle_sha256 for stone in held.withdrawn],
        "revisions": [[wave, revision] for wave, revision in held.revisions.items()],
        "opened": "" if held.opened is None else held.opened.document.terms.plan,
    }


def held_of(store: Store, study: str, selection: Mapping[str, Any]) -> release_selection.ReleaseSelection:
    """The holding that `selection_of` wrote. Raises: StateRefusal (its releases are no longer known)."""
    from coordinator.answers import release_selection

    named = [digest for name in ("parts", "behind") for digests in selection[name].values() for digest in digests]
    known = store.releases_of(named)
    stones = {stone.bundle_sha256: stone for stone in store.withdrawals(study)}
    try:
        parts, behind = (
            {site: tuple(known[digest] for digest in digests) for site, digests in selection[name].items()}
            for name in ("parts", "behind")
        )
        withdrawn = tuple(stones[digest] for digest in selection["withdrawn"])
    except KeyError:
        raise release_selection.moved() from None
    return release_selection.ReleaseSelection(
        study=study,
        wave=selection["wave"],
        as_of=selection["as_of"],
        combined=selection["combined"],
        parts=parts,
        behind=behind,
        withdrawn=withdrawn,
        revisions={wave: revision for wave, revision in selection["revisions"]},
        opened=store.opened_sum(selection["opened"]) if selection["opened"] else None,
    )


def answer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one question.

    Args:
        given: ``store`` (`Store.place`), ``estimates`` (bytes of sites' estimates that may be kept there), ``study``,
            ``held`` (`selection_of`), ``estimand`` in one spelling, ``how`` (term, method, test, level), ``maps`` (what
            is harmonised; empty for nothing), ``result`` (the answer's id), and ``rests`` (bundle to site: all that the
            id was made of).
    Returns: ``told`` (the document that is sent), ``used`` (bundle to site), ``wave``, ``numbers``, and ``damaged``:
        how many kept estimates were, and were made again.
    Raises: what `coordinator.answers.queries.ask` raises.
    """
    from coordinator.answers import queries
    from coordinator.pooling.pool import Pooling
    from shared.estimands.questions import parse_estimand
    from shared.releases.synthetic import versions

    store, cache, kept = opened_of(given)
    study, found, maps = given["study"], parse_estimand(given["estimand"]), given["maps"]
    held, pooling = held_of(store, study, given["held"]), {**given["how"]}
    how: dict[str, Any] = {"term": pooling.pop("term"), "pooling": Pooling(**pooling), "cache": cache}
    document: Mapping[str, Any]
    if maps:
        document, result, used = _harmonised(store, held, found, maps, how)
    else:
        result = queries.ask(store, held, found, **how)
        document, used = {"asked": result.query, **result.document}, result.used
    plan = store.plan(study).plan
    provenance = {
        "bundles": used,
        "rests_on": given["rests"],
        "receipts": sorted({source.receipt for source in result.sources}),
        "plan": {"version": plan.version, "hash": plan.hash},
        "code": versions(),
    }
    if (opened := held.opened) is not None:
        provenance["sum"] = {"sha256": opened.sha256, "log_index": opened.log_index, "day": opened.day}
    document_sent = {"result": given["result"], **document, "provenance": provenance}
    if result.estimand.startswith("km("):
        document_sent["curves"] = _curves(store, result)
    made = {"told": plain(document_sent), "used": dict(used), "wave": result.wave, "numbers": result.numbers}
    return {**made, "damaged": kept.damaged}


def _harmonised(
    store: Store,
    held: release_selection.ReleaseSelection,
    question: Estimand,
    maps: Mapping[str, str],
    how: Mapping[str, Any],
) -> tuple[dict[str, Any], queries.PooledAnswer, dict[str, str]]:
    """The document, the answer as released that stands in it, and the bundles of both studies."""
    from coordinator.answers.harmonise import Harmonisation, harmonised

    by = Harmonisation(column=maps["harmonised"], to=maps["to"], source=maps["densities"])
    seen = harmonised(store, held, question, by, **how)
    return {"asked": seen.query, **seen.document}, seen.answer, {**seen.answer.used, **seen.used}


def _curves(store: Store, result: queries.PooledAnswer) -> dict[str, Any] | None:
    """The curves behind the one time that was asked about, read off at public times; None where no site has one."""
    from coordinator.answers import release_selection
    from coordinator.answers.curves import curves

    try:
        made = curves(
            store,
            result.study,
            result.wave,
            result.estimand,
            as_of=result.as_of,
            combine=result.combined,
            level=result.result.level,
        )
    except EstimateRefusal:
        return None
    if made.used != result.used:
        raise release_selection.moved()
    names = ("title", "axis", "event", "left_out", "curves", "pooled")
    return {**{name: getattr(made, name) for name in names}, "note": made.provenance}


# -- tables ---------------------------------------------------------------------------------------------------------
def missing(given: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Bundle to column to the share of its values that are missing.

    Args:
        given: ``store``, ``study``, and ``bundles``: digests.
    """
    import numpy as np

    store, _ = _opened(*given["store"])
    found: dict[str, dict[str, float]] = {}
    for digest in given["bundles"]:
        release = _release(store, given["study"], digest)
        table = store.table(release)
        plan = store.plan(release.study, release.plan_version).plan
        if isinstance(plan.release, Answering):
            figures = [(table, release.receipt.n)]
            try:
                [table] = plan.release.synthetic(plan, figures, draws=1, rng=np.random.default_rng(0))
            except EstimateRefusal:  # densities hold no rows: what is missing is not known column by column
                table = table.iloc[:0, :0]
        found[digest] = {str(name): float(share) for name, share in table.isna().mean().items()}
    return found


def rows(given: Mapping[str, Any]) -> None:
    """Write a release's rows to a file, as Parquet.

    Args:
        given: ``store``, ``study``, ``bundle`` (its digest) and ``path``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    store, _ = _opened(*given["store"])
    table = pa.Table.from_pandas(store.table(_release(store, given["study"], given["bundle"])), preserve_index=False)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"label": LABEL})
    pq.write_table(table, given["path"])


def _release(store: Store, study: str, digest: str) -> AcceptedRelease:
    from coordinator.answers import release_selection

    found = store.by_bundle(digest)
    if found is None or found.study != study:
        raise release_selection.moved()
    return found


def opened_of(given: Mapping[str, Any]) -> tuple[Store, site_answers.EstimateCache, KeptEstimates]:
    """The store of a question, what this worker has worked out of it, and what all of them have."""
    from coordinator.services.compute.kept_estimates import KeptEstimates

    store, cache = _opened(*given["store"])
    cache.kept = kept = KeptEstimates(store, given["estimates"])
    return store, cache, kept


@functools.lru_cache(maxsize=8)
def _opened(url: str, home: str, bundles: str) -> tuple[Store, site_answers.EstimateCache]:
    """The store that the server has, and what was worked out from it lately: this worker's own."""
    from coordinator.answers import site_answers
    from coordinator.store.store import Store

    return Store(url, Path(home), bundles), site_answers.EstimateCache()
