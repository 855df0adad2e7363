"""An answer in the habits of others: statsmodels' summary, broom's table, metafor's code, a paper's methods section.

Nothing is estimated here. Where another library pools again it gives the number that was sent, or there is a refusal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.analyst.shown import Shown, answered, caption_of, title_of
from shared.errors import IntegrityRefusal, PackageRefusal, ParameterError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

__all__ = ["ResultSummary", "metafor_code", "methods_text", "statsmodels_result", "tidy"]

_THERE: Mapping[str, Callable[[float], float]] = {
    "identity": float,
    "log": lambda value: math.log(value) if value > 0 else -math.inf,
    "logit": lambda share: math.log(share / (1 - share)) if 0 < share < 1 else math.copysign(math.inf, share - 0.5),
    "fisher_z": lambda r: math.atanh(r) if abs(r) < 1 else math.copysign(math.inf, r),
}
"""Link function of each scale: a value as it is read, to the analysis scale."""
_TO_R = {"log": "exp", "logit": "transf.ilogit", "fisher_z": "transf.ztor"}
_ESTIMATORS: Mapping[str, str] = {
    "FE": "a common effect was assumed",
    "DL": "by DerSimonian and Laird",
    "HE": "by Hedges and Olkin",
    "HS": "by Hunter and Schmidt",
    "HSk": "by Hunter and Schmidt, corrected for the number of sites",
    "SJ": "by Sidik and Jonkman",
    "ML": "by maximum likelihood",
    "REML": "by restricted maximum likelihood",
    "EB": "by empirical Bayes",
    "PM": "by Paule and Mandel",
    "PMM": "by Paule and Mandel, for the median",
}
_INTERVALS: Mapping[str, str] = {
    "z": "by the normal distribution",
    "t": "by the t distribution with one degree of freedom less than sites",
    "knha": "by Hartung, Knapp, Sidik and Jonkman",
    "adhoc": "by Hartung, Knapp, Sidik and Jonkman, never narrower than by the unadjusted standard error",
}
_BY_STATSMODELS = {"FE": "dl", "DL": "dl", "PM": "iterated"}


class WholeAnswer(Protocol):
    """Answer that can be drawn in full, on a terminal and as HTML: all that a summary needs of it."""

    def show_whole(self, out: Console) -> None:
        """Draw all of it."""
        ...

    def _repr_html_(self) -> str: ...


class ResultSummary(Shown):
    """The whole answer: both models, heterogeneity, all terms. Printed, or shown in a notebook.

    Args:
        result: the answer.
    """

    def __init__(self, result: WholeAnswer) -> None:
        self._result = result

    def show(self, out: Console) -> None:
        """Draw it."""
        self._result.show_whole(out)

    def as_text(self) -> str:
        """Text of the summary, the same as it prints."""
        return repr(self)

    def _repr_html_(self) -> str:
        return self._result._repr_html_()


def tidy(document: Mapping[str, Any], *, exponentiate: bool = False, sites: bool = False) -> pd.DataFrame:
    """A row per term of a question, each pooled by itself, under the names of R's broom.

    Args:
        document: an answer.
        exponentiate: take estimates and intervals back from the analysis scale; standard errors stay on it.
        sites: add a row per site (`type` study).
    Returns: `term, type, estimate, std.error, statistic, p.value, conf.low, conf.high, nobs` (sites), `effect`,
        `scale` (of the estimate), `reason` (why a term has none) and `cautions`.
    """
    import pandas as pd
    from scipy.special import ndtr, ndtri

    from shared.estimands.effects import shown

    scale, asked = document["scale"], answered(document)
    rows: list[dict[str, Any]] = []
    for one in document["table"]:
        row = {"term": one["term"], "type": "summary", "estimate": one["beta"], "std.error": one["se"]}
        if one["reason"]:
            row |= dict.fromkeys(("statistic", "p.value", "conf.low", "conf.high"))
        elif one["term"] == document["term"]:
            row |= {"statistic": asked["zval"], "p.value": asked["pval"]}
            row |= {"conf.low": asked["ci_lb"], "conf.high": asked["ci_ub"]}
        else:
            ends = {f"conf.{end}": _THERE[scale](one[name]) for end, name in (("low", "ci_lb"), ("high", "ci_ub"))}
            statistic = None if one["pval"] is None else one["beta"] / one["se"]
            row |= {"statistic": statistic, "p.value": one["pval"], **ends}
        row |= {"nobs": one["k"], "effect": one["effect"], "scale": scale, "reason": one["reason"]}
        rows.append({**row, "cautions": " ".join(one["cautions"])})
    half = float(ndtri((1 + document["level"]) / 2))
    for one in document["estimates"] if sites else ():
        y = one["yi"]
        row = {"term": one["site"], "type": "study", "estimate": y, "nobs": one["n"], "reason": one["reason"]}
        if y is not None:
            se = (one["vi_sampling"] + one["vi_privacy"]) ** 0.5
            row |= {"std.error": se, "statistic": y / se, "p.value": float(2 * ndtr(-abs(y / se)))}
            row |= {"conf.low": y - half * se, "conf.high": y + half * se}
        rows.append({**row, "effect": document.get("effect", ""), "scale": scale, "cautions": ""})
    table = pd.DataFrame(rows)
    if exponentiate:
        for name in ("estimate", "conf.low", "conf.high"):
            table[name] = [None if pd.isna(value) else shown(value, scale) for value in table[name]]
        table["scale"] = "identity"
    return table


def metafor_code(document: Mapping[str, Any]) -> str:
    """R code that pools the sites' estimates by metafor to the number that was sent, below its cautions.

    Args:
        document: an answer.
    """
    rows = {row["label"]: row for row in document["rows"]}
    how, scale, level = document["pooled"], document["scale"], f"{100 * document['level']:g}"
    words = [title_of(document), caption_of(document), *(f"caution: {one}" for one in document.get("doubts", ()))]
    alone = len(rows) == 1
    settings = f'method = "{"FE" if alone else how["method"]}", test = "{how["test"]}", level = {level}'
    # metafor stops its iterations early; the coordinator's tau² is the converged one.
    settings += "" if alone or how["method"] == "FE" else ", control = list(threshold = 1e-12, maxiter = 10000)"
    back = _TO_R.get(scale, "")
    axis = f", {'atransf' if scale == 'log' else 'transf'} = {back}" if back else ""
    lines = [f"# {_comment(one)}" for one in words]
    lines += ["library(metafor)", "sites <- data.frame("]
    lines += [f"  site = c({', '.join(json.dumps(label, ensure_ascii=False) for label in rows)}),"]
    lines += [f"  yi = c({_numbers([row['yi'] for row in rows.values()])}),"]
    lines += [f"  vi = c({_numbers([row['vi'] for row in rows.values()])})", ")"]
    lines += [f"fit <- rma(yi, vi, slab = site, data = sites, {settings})"]
    lines += [f"predict(fit{f', transf = {back}' if back else ''})", f"forest(fit{axis})"]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    """One line of a comment, whatever others wrote into it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(map(repr, values))


def statsmodels_result(document: Mapping[str, Any]) -> Any:
    """The `statsmodels.stats.meta_analysis.CombineResults` of the sites' estimates; its intervals are normal.

    Args:
        document: an answer.
    Raises: PackageRefusal; ParameterError (an estimator of tau² that statsmodels has not, or one site);
        IntegrityRefusal (another number than the one that was sent).
    """
    if find_spec("statsmodels") is None:
        raise PackageRefusal("statsmodels must be installed", given="none", next_step="pip install statsmodels")
    method, rows = document["pooled"]["method"], document["rows"]
    if method not in _BY_STATSMODELS or len(rows) < 2:
        raise ParameterError(
            f"statsmodels must pool two sites or more, by {', '.join(_BY_STATSMODELS)}",
            given=f"{len(rows)} by {method}",
            next_step='Ask result.meta(method="PM").result; to_metafor_code() takes any.',
        )
    import numpy as np
    from statsmodels.stats.meta_analysis import combine_effects

    yi, vi = (np.array([row[name] for row in rows]) for name in ("yi", "vi"))
    names, alpha = [row["label"] for row in rows], 1 - document["level"]
    made = combine_effects(yi, vi, method_re=_BY_STATSMODELS[method], row_names=names, alpha=alpha)
    found = float(made.mean_effect_fe if method == "FE" else made.mean_effect_re)
    if not math.isclose(found, document["pooled"]["beta"], rel_tol=1e-6, abs_tol=1e-9):
        raise IntegrityRefusal("statsmodels must pool to the number that was sent", given="another")
    return made


def _by_versions(sources: Sequence[Mapping[str, Any]], newest: int) -> str:
    """The beginning of a sentence on the versions of the plan that releases were made and are answered under.

    >>> _by_versions([{"plan_version": 1}, {"plan_version": 1}], 2)
    'The releases were made under version 1, and answered under version 2'
    """
    made = sorted({source["plan_version"] for source in sources} - {newest})
    if not made:
        return f"The answer rests on version {newest}"
    older = f"version{'s' * (len(made) > 1)} {', '.join(map(str, made))}"
    all_older = all(source["plan_version"] != newest for source in sources)
    return f"{'The' if all_older else 'Some'} releases were made under {older}, and answered under version {newest}"


def methods_text(document: Mapping[str, Any]) -> list[str]:
    """Sentences for the methods section of a paper that reports an answer; each number with its scale.

    Args:
        document: the answer.
    """
    from shared.estimands.effects import SCALES
    from shared.terminal import number

    asked, pooled, rows = document["asked"], document["pooled"], document["rows"]
    made = document["provenance"]
    plan, sizes = made["plan"], [row["n"] for row in rows]
    each = f", {min(sizes):,} to {max(sizes):,} each" if len(sizes) > 1 else ""
    said = [
        f"{document['k']} site{'' if document['k'] == 1 else 's'} released privatised data (study {document['study']}, "
        f"wave {document['wave']}; n = {sum(sizes):,}{each}).",
        f"{_by_versions(document['sources'], plan['version'])} of the study's signed plan (SHA-256 {plan['hash']}).",
    ]
    for name, words in (("posture", "What the fits rest on (posture)"), ("ε", "Privacy loss of a release (ε)")):
        if held := document["columns"].get(name):
            by_text = {text: sorted(site for site in held if held[site] == text) for text in sorted(set(held.values()))}
            one = len(by_text) == 1
            parts = [f"{text} at {'every site' if one else ', '.join(names)}" for text, names in by_text.items()]
            said.append(f"{words}: {'; '.join(parts)}.")
    scale = f" on the {SCALES[document['scale']]} scale" if SCALES[document["scale"]] else ""
    said.append(
        f"At each site we estimated {document['title'][:1].lower()}{document['title'][1:]} "
        f"({asked['estimand']}) from its release."
    )
    ways = sorted({row["how"] for row in rows if row.get("how")})
    if ways:
        said.append(f"A site's variance holds what its release added ({'; '.join(ways)}) beside sampling.")
    level = f"{100 * document['level']:g} %"
    if document["k"] > 1:
        fitted = _ESTIMATORS[pooled["method"]]
        fitted = fitted if pooled["method"] == "FE" else f"the variance between sites (τ²) was estimated {fitted}"
        said.append(
            f"Estimates were pooled{scale} by inverse variance; {fitted}, and {level} intervals were made "
            f"{_INTERVALS[pooled['test']]}."
        )
        if (share := document.get("noise_share")) is not None:
            said.append(f"Noise of the releases is {number(share)} % of the variance of the pooled estimate.")
    if (total := document.get("summed")) is not None:
        said.append(
            f"The answer is one step from the pooled releases, by a secure sum over {len(total['sites'])} sites of "
            f"each record's bounded influence, with one noise for all, which is "
            f"{number(100 * total['noise'] / total['variance'])} % of its variance; its interval is by the t "
            "distribution with one degree of freedom less than sites."
        )
    said += [f"{one['label']} was left out: {one['reason']}." for one in document["excluded"]]
    said.append(
        f"The analysis stands in the plan as {document['planned']!r}."
        if document["planned"]
        else "The analysis does not stand in the plan: it is exploratory."
    )
    code = ", ".join(f"{name} {version}" for name, version in sorted(made["code"].items()))
    return [*said, f"Computed with {code}; result {document['result']}."]
