"""Answers as a person reads them, worked out in a worker: a figure, the words of all of it, one site closely."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shared.errors import ParameterError
from shared.terminal import plain

if TYPE_CHECKING:
    from coordinator.analyst.result import Result, ResultOrigin

__all__ = ["figure", "looks", "result_of", "site_of", "words"]


def result_of(document: Mapping[str, Any]) -> Result:
    """An answer as an analyst's own end has it, read from its document alone."""
    from coordinator.analyst.harmonised import HarmonisedResult
    from coordinator.analyst.result import Result

    def refuse_query(**_: Any) -> Result:
        raise ParameterError("a figure must be of the answer as it was given", given="another")

    kind = HarmonisedResult if "harmonised" in document else Result
    return kind(cast("ResultOrigin", None), document, refuse_query)  # it asks nothing of the study


def figure(given: Mapping[str, Any]) -> None:
    """Write a figure of an answer, or the table of its sites, to a file; read from its document alone.

    Args:
        given: ``document`` (the answer), ``kind`` (of `Result.export`, or ``table``) and ``path``.
    Raises: ParameterError (no such figure); IntegrityRefusal (another number than the one that was given).
    """
    result, path = result_of(given["document"]), Path(given["path"])
    if given["kind"] == "table" and path.suffix == ".csv" and "cells" in given["document"]:
        from coordinator.analyst.table_one import TableOne

        TableOne(given["document"]).write(path)
    elif given["kind"] in ("table", "curve", "dose-response"):
        result.export(path, given["kind"])
    else:
        result.forest(path, given["kind"])


def looks(given: Mapping[str, Any]) -> dict[str, Any]:
    """The looks at answers to one question, and their boundaries; drawn as well where a file is named.

    Args:
        given: ``documents`` (the answers), ``last`` and ``returning`` (of the plan), ``spending``, ``missing`` (wave as
            text to why it has no look), and ``path``, blank for none.
    Returns: `coordinator.analyst.shown.Monitoring` as plain values, and its table.
    Raises: ParameterError; EstimateRefusal (no look); IntegrityRefusal (another number than the one that was given).
    """
    from coordinator.analyst.result import monitoring

    found = monitoring(
        {int(document["wave"]): result_of(document) for document in given["documents"]},
        missing={int(wave): why for wave, why in given["missing"].items()},
        **{name: given[name] for name in ("last", "returning", "spending")},
    )
    if given["path"]:
        found.figure(given["path"])
    heads, rows = found.text
    return {**found.document, "heads": heads, "worded": heads[:1], "rows": rows}


def words(given: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as a person reads it.

    Args:
        given: ``document``.
    Returns: `coordinator.analyst.show.PooledText` as plain values, with ``line`` (the pooled result), ``terms`` and
        ``sensitivity`` (tables), ``mapped`` (of a harmonised answer: its sentences), ``described`` (of a Table 1, a
        cross-table or a histogram: the table itself, pooled), and ``methods`` (for a paper).
    Raises: IntegrityRefusal (another number than the one that was given).
    """
    from coordinator.analyst.elsewhere import methods_text
    from coordinator.analyst.show import (
        further_cautions,
        joint_lines,
        p_shown,
        pooled_text,
        terms_table,
        unanswered_terms,
    )
    from coordinator.analyst.shown import answered, pooled_line
    from shared.terminal import number

    document = given["document"]
    pooled = result_of(document).pooled
    sizes = {row["site"]: f"{row['n']:,}" for row in document["estimates"] if row["yi"] is not None}
    text = pooled_text(pooled, extra={"n": sizes, **document["columns"]})
    rows = []
    for name, fit in [
        ("as answered", answered(document)),
        *([("releases alone", document["pooled"])] if "summed" in document else []),
        *((f"{fit['method']}, {fit['test']}", fit) for fit in document.get("sensitivity", ())),
        ("fixed effect", document["fixed"]),
        *([] if document["naive"] is None else [("released rows taken for patients", document["naive"])]),
    ]:
        shown = fit["shown"]
        ends = f"{number(shown['ci_lb'])} to {number(shown['ci_ub'])}"
        rows.append([name, number(shown["estimate"]), ends, p_shown(fit["pval"]), number(fit["tau2"])])
    heads = ["pooled by", text.heads[1], text.heads[2], "p", "τ²"]
    terms: dict[str, Any] | None = None
    if len(document.get("table", ())) > 1:
        own, cells = terms_table(document["table"], document["level"])
        more = [*further_cautions(document["table"], pooled.doubts), *unanswered_terms(document["table"])]
        terms = {"heads": own, "worded": own[:1], "rows": cells, "cautions": more}
    said: dict[str, Any] = plain(text)
    return {
        **said,
        "sentences": [*text.sentences, *joint_lines(document)],
        "worded": sorted(text.worded),
        "line": pooled_line(document),
        "terms": terms,
        "sensitivity": {"heads": heads, "worded": heads[:1], "rows": rows},
        "mapped": document.get("harmonised", {}).get("lines", []),
        "described": _described(document) if "cells" in document else None,
        "methods": methods_text(document),
    }


def _described(document: Mapping[str, Any]) -> dict[str, Any]:
    from coordinator.analyst.table_one import TableOne

    found = TableOne(document)
    heads, rows = found.wide()
    joint = [f"independence: {one['reason'] or one['sentence']}" for one in document["joint"]]
    shown = {**_table(heads, rows), "worded": heads[:2], "heading": found.heading}
    return {**shown, "sentences": [*joint, *found.notes], "cautions": list(found.cautions)}


def site_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of one site in an answer, in words.

    Args:
        given: ``document`` (the answer) and ``site``.
    Returns: ``reason`` (why it has no estimate; blank if it has one), ``facts`` (pairs of name and text), ``without``
        and ``influence`` (tables as of `words`, or None), ``sentences`` and ``cautions``.
    Raises: ParameterError (no such site); IntegrityRefusal (a recomputed number differs from the answer's).
    """
    from shared.estimands.effects import SCALES, shown
    from shared.terminal import number

    document, site = given["document"], given["site"]
    row = next((one for one in document["estimates"] if one["site"] == site), None)
    if row is None:
        known = ", ".join(one["site"] for one in document["estimates"])
        raise ParameterError("the site must be one of the answer's", given=repr(site), next_step=f"Its sites: {known}.")
    used = next((one for one in document["rows"] if one["label"] == site), None)
    left_out = next((one["reason"] for one in document["excluded"] if one["label"] == site), "")
    scale, name = document["scale"], str(document.get("effect", "")).lower() or "estimate"
    facts: dict[str, str] = {}
    if used is not None:
        ends = " to ".join(number(used["shown"][end]) for end in ("ci_lb", "ci_ub"))
        facts[name] = f"{number(shown(row['yi'], scale))} ({100 * document['level']:g} % CI {ends})"
        parts = {"": used["vi"], "patients and flow": used["vi_sampling"], "noise of the release": used["vi_privacy"]}
        whole, *two = (f"{words} {number(vi**0.5)}".strip() for words, vi in parts.items())
        on = f" on the {SCALES[scale]} scale" if SCALES[scale] else ""
        facts[f"estimate{on}"] = f"{number(used['yi'])}, standard error {whole}"
        naive = number(used["vi_naive"] ** 0.5)
        facts["standard error by its parts"] = f"{', '.join(two)}; {naive} if released rows were patients"
        facts["share of noise in its variance"] = f"{used['noise_share']:.0f} %"
        facts["weight"] = f"{used['weight']:.1f} %"
    facts["rows"] = f"{row['n']:,}"
    for words, count in (("rows without a value", row["n_missing"]), ("rows outside the question", row["n_outside"])):
        if count:
            facts[words] = f"{count:,}"
    found: dict[str, Any] = {"without": None, "influence": None, "sentences": []}
    if used is not None and document["k"] > 1:
        found = _among_the_others(document, site)
    return {"reason": row["reason"] or left_out, "facts": [*facts.items()], "cautions": list(row["warnings"]), **found}


def _among_the_others(document: Mapping[str, Any], site: str) -> dict[str, Any]:
    """The pooled result with and without a site, and how much the site moves it."""
    from coordinator.analyst.show import p_shown
    from coordinator.pooling.diagnostics import influence
    from coordinator.pooling.further.refits import leave_one_out
    from shared.estimands.effects import shown
    from shared.terminal import number

    pooled, scale = result_of(document).pooled, document["scale"]
    name = str(document.get("effect", "")).lower() or "estimate"
    heads = ["pooled from", name, f"{100 * document['level']:g} % CI", "p", "τ²"]
    rows = []
    for label, fit in (("all sites", pooled), (f"all but {site}", dict(leave_one_out(pooled))[site])):
        ends = [None if end is None else number(shown(end, scale)) for end in (fit.ci_lb, fit.ci_ub)]
        interval = "–" if None in ends else " to ".join(map(str, ends))
        rows.append([label, number(shown(fit.beta, scale)), interval, p_shown(fit.pval), number(fit.tau2)])
    found = influence(pooled)
    if found.reason:
        return {"without": _table(heads, rows), "influence": None, "sentences": [f"Influence: {found.reason}."]}
    at = found.labels.index(site)
    measures = [
        ["distance from the others' pooled effect, in standard errors", number(found.rstudent[at])],
        ["Cook's distance", number(found.cook_d[at])],
        ["change of the pooled effect, in standard errors (DFBETAS)", number(found.dfbeta[at])],
        ["variance of the pooled effect without it, as a multiple", number(found.cov_r[at])],
    ]
    word = "is" if found.influential[at] else "is not"
    said = f"{site} {word} influential by metafor's rule (Viechtbauer and Cheung 2010)."
    influenced = _table(["measure", "of this site"], measures)
    return {"without": _table(heads, rows), "influence": influenced, "sentences": [said]}


def _table(heads: list[str], rows: list[list[str]]) -> dict[str, Any]:
    return {"heads": heads, "worded": heads[:1], "rows": rows}
