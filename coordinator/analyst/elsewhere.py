"""An answer in the habits of other libraries: statsmodels' summary, broom's table, metafor's code.

Nothing is estimated here. Where another library pools again it gives the number that was sent, or there is a refusal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.analyst.shown import Shown, caption_of, title_of
from shared.errors import IntegrityRefusal, PackageRefusal, ParameterError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

__all__ = ["ResultSummary", "metafor_code", "statsmodels_result", "tidy"]

_THERE: Mapping[str, Callable[[float], float]] = {
    "identity": float,
    "log": lambda value: math.log(value) if value > 0 else -math.inf,
    "logit": lambda share: math.log(share / (1 - share)) if 0 < share < 1 else math.copysign(math.inf, share - 0.5),
    "fisher_z": lambda r: math.atanh(r) if abs(r) < 1 else math.copysign(math.inf, r),
}
"""From what is read to the analysis scale."""
_TO_R = {"log": "exp", "logit": "transf.ilogit", "fisher_z": "transf.ztor"}
_BY_STATSMODELS = {"FE": "dl", "DL": "dl", "PM": "iterated"}


class WholeAnswer(Protocol):
    """What a summary asks of an answer."""

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
        """As it prints."""
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

    scale, asked = document["scale"], document["pooled"]
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
            row |= {"statistic": one["beta"] / one["se"], "p.value": one["pval"], **ends}
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
