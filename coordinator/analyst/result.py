"""The answer to one question: an estimate per site and the pooled result, as tables, figures and further analyses.

Nothing is estimated here: figures pool again from the estimates that were sent, and are not drawn where that gives
another number than the one that was sent.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

from coordinator.analyst.shown import (
    Explanation,
    LevelAnswers,
    Monitoring,
    Picture,
    ResultTable,
    Shown,
    Terms,
    answered,
    caption_of,
    drawn,
    effect_of,
    headed,
    pooled_line,
    title_of,
)
from coordinator.figures.style import FILES
from shared.errors import EstimateRefusal, IntegrityRefusal, ParameterError
from shared.terminal import write_table

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from coordinator.analyst.elsewhere import ResultSummary
    from coordinator.pooling.pool import PooledResult
    from shared.estimands.answer import Estimate

__all__ = ["Further", "Meta", "Result", "ResultOrigin", "estimate_of", "monitoring"]

_ON_CURVES = ("time", "survival", "lower", "upper", "at_risk", "events")


class ResultOrigin(Protocol):
    """Study that a result comes from, with the methods that a result calls."""

    def dictionary(self, column: str = "") -> ResultTable:
        """The study's columns."""
        ...

    def explain(self, result: str) -> Explanation:
        """Provenance of a result."""
        ...


class Result(Shown):
    """The answer to one question: a row per site; `meta` is the pooled result.

    Args:
        study: the study that was asked.
        document: the coordinator's answer.
        again: asks the same question with other settings.
    """

    def __init__(self, study: ResultOrigin, document: Mapping[str, Any], requery: Callable[..., Result]) -> None:
        self._study, self.document, self._requery = study, document, requery

    @property
    def id(self) -> str:
        """The result's id, for `Study.explain` and the paper."""
        return str(self.document["result"])

    @property
    def beta(self) -> float:
        """The pooled estimate, or the secure sum's, on the scale of the analysis (the logarithm of a ratio)."""
        return float(answered(self.document)["beta"])

    @property
    def se(self) -> float:
        """Its standard error."""
        return float(answered(self.document)["se"])

    @property
    def pooled(self) -> PooledResult:
        """Pooled again from the sites' estimates that were sent, and the secure sum beside it, where there is one.

        Raises: IntegrityRefusal (another number).
        """
        return self._pooled(self.document)

    def _pooled(self, document: Mapping[str, Any]) -> PooledResult:
        from dataclasses import replace
        from math import isclose

        from coordinator.pooling.pool import pool_estimates
        from coordinator.pooling.secure_sum.answer import SummedAnswer

        how = self.document["asked"]
        rows = [estimate_of(row) for row in document["estimates"]]
        found = pool_estimates(rows, method=how["method"], test=how["test"], level=how["level"])
        total = SummedAnswer.of(document["summed"]) if "summed" in document else None
        found = replace(found, effect=self.document.get("effect", ""), summed=total)
        if total is not None:  # cautions are of what each site released: notes beside a sum, as at the coordinator
            found = replace(found, notes=total.beside(found.notes, found.doubts), doubts=())
        if not isclose(found.beta, document["pooled"]["beta"], rel_tol=1e-6, abs_tol=1e-9):
            raise IntegrityRefusal(
                "this computer must pool to the number that was sent",
                given="another",
                next_step="Install the coordinator's version (see explain).",
            )
        return found

    def meta(self, **changed: Any) -> Meta:
        """The pooled result; with another method, test or level the question is asked again, and recorded.

        Args:
            changed: method, test, level, and whatever else `Study.query` takes.
        """
        return Meta(self._requery(**changed) if changed else self)

    @overload
    def forest(
        self,
        path: str | Path,
        kind: str = "forest",
        title: str = "",
        *,
        subgroups: str | Mapping[str, Any] = "",
        favours: tuple[str, str] | None = None,
        sort: str = "",
    ) -> Path: ...
    @overload
    def forest(
        self,
        path: None = None,
        kind: str = "forest",
        title: str = "",
        *,
        subgroups: str | Mapping[str, Any] = "",
        favours: tuple[str, str] | None = None,
        sort: str = "",
    ) -> Picture: ...
    def forest(
        self,
        path: str | Path | None = None,
        kind: str = "forest",
        title: str = "",
        *,
        subgroups: str | Mapping[str, Any] = "",
        favours: tuple[str, str] | None = None,
        sort: str = "",
    ) -> Path | Picture:
        """Draw the forest plot (or funnel, leave-one-out, cumulative, baujat, influence) to .svg, .pdf or .png.

        A forest plot's numbers, mark by mark, are written to .csv.

        Args:
            path: the file; without one it is a picture that a notebook shows.
            subgroups: ``posture``, or any fact about the sites, site -> level: each level with its own diamond.
            favours: labels left and right of the null line.
            sort: its rows by ``name``, ``estimate`` or ``weight``; as the sites stand when blank.
        """
        from coordinator.analyst.show import FigureContent, draw

        document = self.document
        content = FigureContent(
            title=title or document["title"],
            note=caption_of(document),
            columns=document["columns"],
            favours=favours,
            sort=sort,
            group=self._group(subgroups),
        )
        return drawn(lambda file: draw(self.pooled, kind, content, path=file), content.title, path, kind)

    def further(
        self,
        *,
        mods: Mapping[str, Mapping[str, Any]] | None = None,
        subgroups: str | Mapping[str, Any] = "",
        bayes: bool = False,
        scale: float = 0.5,
        exact: bool = False,
        diagnostics: bool = False,
    ) -> Further:
        """Further analyses of a pooled result, computed here from the sites' estimates.

        Args:
            mods: moderator -> (site -> value): one meta-regression on all of them.
            subgroups: as in `forest`.
            bayes: the posterior under a half-normal prior of this `scale` on tau.
            exact: the intervals for few studies.
            diagnostics: leave-one-out, influence, Egger, Begg, trim-and-fill.
        """
        from coordinator.pooling.further.analyses import AnalysisRequest, analyse
        from shared.terminal import plain

        group = self._group(subgroups)
        request = AnalysisRequest(
            mods=mods or {}, group=group, bayes=bayes, scale=scale, exact=exact, diagnostics=diagnostics
        )
        return Further(self, analyse(self.pooled, request), plain)

    def by(self, column: str) -> LevelAnswers:
        """The same question of the rows of each level of a column, and whether the levels differ.

        Each level is a question of its own, and stands in the study's record. Cochran's Q between them takes their
        answers as independent: what a hospital's levels have in common, and releases' errors that they share, are not
        taken off, so that where hospitals differ it tells a difference less readily than the interaction in a model.

        Args:
            column: a column of the dictionary that has levels.
        Raises: ParameterError (no such column, or one of numbers), and the coordinator's refusals.
        """
        from scipy.special import chdtrc

        from coordinator.analyst.show import p_shown

        known = {row["column"]: row for row in self._study.dictionary()}
        levels = {one["name"]: one["levels"] for one in self._study.dictionary().document["columns"]}
        if not levels.get(column):
            listed = ", ".join(name for name, found in levels.items() if found)
            near = difflib.get_close_matches(column, known, n=1)
            facts = ", ".join(self.document["columns"])
            raise ParameterError(
                "subgroups must be the levels of a column, or of a fact about the sites",
                given=repr(column) + ("" if column not in known else ", which holds numbers"),
                next_step=(f"Did you mean {near[0]!r}? " if near and near[0] != column else "")
                + f"Columns with levels: {listed or 'none'}; facts: {facts}.",
            )
        held = str(self.document["asked"].get("subset") or _subset(self.document["estimand"]))
        rows: list[dict[str, Any]] = []
        for level in levels[column]:
            only = f'{column} == "{level}"' if isinstance(level, str) else f"{column} == {level}"
            line: dict[str, Any] = {"level": str(level), "sites": None, "estimate": None, "ci_lb": None, "ci_ub": None}
            try:
                found = self._requery(subset=f"({held}) & {only}" if held else only).document
            except EstimateRefusal as refusal:
                rows.append({**line, "beta": None, "se": None, "reason": str(refusal)})
                continue
            own = {name: found["pooled"][name] for name in ("beta", "se")}
            rows.append({**line, "sites": found["k"], **found["pooled"]["shown"], **own, "reason": None})
        there = [row for row in rows if row["beta"] is not None]
        weights = [1 / row["se"] ** 2 for row in there]
        title = f"{title_of(self.document)}, by {column}"
        if len(there) > 1:
            mean = sum(w * row["beta"] for w, row in zip(weights, there, strict=True)) / sum(weights)
            q = sum(w * (row["beta"] - mean) ** 2 for w, row in zip(weights, there, strict=True))
            df = len(there) - 1
            title += f": levels differ by Q {q:.2f} on {df} df, p {p_shown(float(chdtrc(df, q)))}, taken as independent"
        effect, level = str(self.document.get("effect", "")), float(self.document["level"])
        return LevelAnswers(title, rows, {"column": column, "rows": rows}, effect=effect, level=level)

    def _group(self, subgroups: str | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        """Name and levels of subgroups. Raises: ParameterError: no such fact about the sites."""
        columns = self.document["columns"]
        group = ("", subgroups) if isinstance(subgroups, Mapping) else (subgroups, columns.get(subgroups, {}))
        if subgroups and not group[1]:
            raise ParameterError(
                "subgroups of sites must be a fact about them",
                given=repr(subgroups),
                next_step=f"Facts: {', '.join(columns)}. For a column of the patients take `by`, or --subgroup alone.",
            )
        return group if subgroups else None

    def curves(self) -> ResultTable:
        """Of a km question: the share without the event at public times, with the rows at risk, site by site.

        Raises: ParameterError: another kind of question.
        """
        document = self._curves()
        rows = [
            {"curve": curve["label"], **dict(zip(_ON_CURVES, values, strict=True))}
            for curve in (*document["curves"], *document.get("pooled", ()))
            for values in zip(*(curve[name] for name in _ON_CURVES), strict=True)
        ]
        return ResultTable(f"{document['title']}: {document['axis']}", rows, document)

    @overload
    def curve(self, path: str | Path, *, sites: Sequence[str] = (), bands: bool | None = None) -> Path: ...
    @overload
    def curve(self, path: None = None, *, sites: Sequence[str] = (), bands: bool | None = None) -> Picture: ...
    def curve(
        self, path: str | Path | None = None, *, sites: Sequence[str] = (), bands: bool | None = None
    ) -> Path | Picture:
        """Draw the Kaplan-Meier curves of a km question, with the rows at risk below.

        Args:
            path: the file; without one it is a picture that a notebook shows.
            sites: only these, without the pooled curve; all when empty.
            bands: draw the pointwise intervals of the sites; by default with up to three curves.
        Raises: ParameterError: another kind of question, or more curves than can be told apart.
        """
        from coordinator.figures.over_time import km_figure
        from shared.estimands.fits.survival import GridCurve

        document = self._curves()
        shown = [
            GridCurve(**curve) for curve in document["curves"] if not sites or curve["label"].split(", ")[0] in sites
        ]
        how = {"title": document["title"], "note": document["note"], "left_out": document["left_out"], "bands": bands}
        words = {"xlabel": document["axis"], "ylabel": f"Share without {document['event']}"}
        how["pooled"] = [GridCurve(**curve) for curve in document.get("pooled", ()) if not sites]
        return drawn(lambda file: km_figure(shown, path=file, **how, **words), document["title"], path)

    def dose_response(self, path: str | Path, *, term: str = "") -> Path:
        """Draw a curve of the question (`ns`, `bs`, `poly`), pooled, with its band.

        Args:
            term: which, where there are several: the term or its column.
        Raises: ParameterError: no such curve.
        """
        from coordinator.figures.dose_response import curve_figure, curve_of

        document = self.document
        entry = curve_of(document.get("joint", ()), term)
        how = {"scale": document["scale"], "effect": document.get("effect", ""), "note": caption_of(document)}
        curve_figure(entry, **how, title=title_of(document), path=path)
        return Path(path)

    def _curves(self) -> dict[str, Any]:
        document: dict[str, Any] | None = self.document.get("curves")
        if document is None:
            raise ParameterError(
                "only a km question that a site could answer has curves",
                given=str(self.document["estimand"]),
                next_step='Ask study.km("Surv(time, event) ~ 1", at=...).',
            )
        return document

    def explain(self) -> Explanation:
        """Bundles, receipts, plan and code versions behind it; who asked; whether it is stale."""
        return self._study.explain(self.id)

    def export(self, path: str | Path, kind: str = "forest") -> Path:
        """Write it: the table of the sites' estimates (.csv, .parquet), all that was sent (.json), or a figure.

        Args:
            kind: of a figure: as in `forest`, ``curve`` or ``dose-response``.
        Raises: ParameterError: another suffix.
        """
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix == ".json":
            path.write_text(json.dumps(self.document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        elif suffix in (".csv", ".parquet"):
            write_table(self.to_frame(), path)
        elif suffix in FILES:
            draws: dict[str, Callable[[Path], Path]] = {"curve": self.curve, "dose-response": self.dose_response}
            _ = draws[kind](path) if kind in draws else self.forest(path, kind)
        else:
            raise ParameterError(
                f"a result's file must end in .csv, .parquet, .json, {', '.join(FILES)}", given=repr(path.name)
            )
        return path

    def to_frame(self) -> pd.DataFrame:
        """One row per site, as `analyst pool` reads them."""
        import pandas as pd

        from coordinator.pooling.cautions import beside_each

        names = ["site", "study", "wave", "term", "n", "scale", "yi"]
        names += ["vi_sampling", "vi_privacy", "vi_naive", "vi_common", "attenuation", "reason"]
        given = self.document["estimates"]
        table = pd.DataFrame([{name: row[name] for name in names} for row in given], columns=list(names))
        table.insert(7, "vi", table["vi_sampling"] + table["vi_privacy"])
        said = beside_each([row["warnings"] for row in given], self.document["doubts"])
        return table.assign(effect=self.document.get("effect", ""), cautions=said)

    def summary(self) -> ResultSummary:
        """The whole answer, as statsmodels' results have it: print it, or let a notebook show it."""
        from coordinator.analyst.elsewhere import ResultSummary

        return ResultSummary(self)

    def tidy(self, *, exponentiate: bool = False, sites: bool = False) -> pd.DataFrame:
        """Every term under the names of R's broom, on the scale that the column `scale` says.

        Args: as of `coordinator.analyst.elsewhere.tidy`.
        """
        from coordinator.analyst.elsewhere import tidy

        return tidy(self.document, exponentiate=exponentiate, sites=sites)

    def methods(self) -> str:
        """A paragraph for a paper's methods section, made of the answer's own words and numbers."""
        from coordinator.analyst.elsewhere import methods_text

        return " ".join(methods_text(self.document))

    def to_metafor_code(self) -> str:
        """R code that pools the sites' estimates by metafor to the same number."""
        from coordinator.analyst.elsewhere import metafor_code

        return metafor_code(self.document)

    def to_statsmodels(self) -> Any:
        """A `CombineResults` of statsmodels, for answers by FE, DL or PM. Raises: ParameterError, PackageRefusal."""
        from coordinator.analyst.elsewhere import statsmodels_result

        return statsmodels_result(self.document)

    def terms(self) -> Terms:
        """Every term of the question, each pooled by itself: what a paper's table of coefficients needs."""
        document = self.document
        rows = [{k: v for k, v in row.items() if k != "cautions"} for row in document.get("table", ())]
        return Terms(f"{document['study']}: {document['estimand']}", rows, document)

    def show_whole(self, out: Console) -> None:
        """Draw it with the pooled result and all terms of the question."""
        from coordinator.analyst.show import joint_lines, show_pooled, show_terms

        document, pooled = self.document, self.pooled
        headed(out, document)
        show_pooled(out, pooled, extra=self._sizes())
        for sentence in document.get("cautions", ()):
            out.print(f"note  {sentence}", style="dim")
        if len(document.get("table", ())) > 1:
            out.print()
            show_terms(out, document["table"], document["level"], said=pooled.doubts, joint=joint_lines(document))
        out.print(f"result {self.id}", style="dim")

    def _sizes(self) -> dict[str, dict[str, str]]:
        return {"n": {row["site"]: f"{row['n']:,}" for row in self.document["estimates"] if row["yi"] is not None}}

    def show(self, out: Console) -> None:
        """Draw it."""
        from math import isfinite

        from coordinator.analyst.show import show_cautions
        from shared.estimands.effects import SCALES, shown
        from shared.terminal import number, table

        document = self.document
        scale = document["scale"]
        headed(out, document)
        show_cautions(out, document.get("doubts", ()))
        rows = []
        for row in document["estimates"]:
            if row["yi"] is None:
                rows.append([row["site"], None, None, row["n"] or None, row["reason"]])
                continue
            se = (row["vi_sampling"] + row["vi_privacy"]) ** 0.5
            value = shown(row["yi"], scale)
            rows.append([row["site"], number(value) if isfinite(value) else "∞", number(se), row["n"], ""])
        head, error = effect_of(document), f"se of its {SCALES[scale]}" if SCALES[scale] else "se"
        out.print(table(["site", head, error, "n", "left out because"], rows, right=[head, error, "n"]))
        out.print(pooled_line(document))
        for sentence in document.get("cautions", ()):
            out.print(f"note  {sentence}", style="dim")
        out.print(f"result {self.id}", style="dim")

    def _repr_html_(self) -> str:
        from html import escape

        from coordinator.analyst.show import (
            cautions_html,
            further_cautions,
            html_table,
            joint_lines,
            paragraphs,
            pooled_html,
            terms_table,
            unanswered_terms,
        )

        document = self.document
        pooled = self.pooled
        parts = [f"<p><b>{escape(title_of(document))}</b></p>", paragraphs([caption_of(document)])]
        parts += [pooled_html(pooled, line=pooled_line(document), extra=self._sizes())]
        parts += [paragraphs([f"note: {sentence}" for sentence in document.get("cautions", ())])]
        if len(document.get("table", ())) > 1:
            heads, cells = terms_table(document["table"], document["level"])
            more = cautions_html(further_cautions(document["table"], pooled.doubts))
            parts += [
                "<p><b>all terms, each pooled by itself</b></p>",
                more,
                html_table(heads, cells, worded=heads[:1]),
                paragraphs([*unanswered_terms(document["table"]), *joint_lines(document)]),
            ]
        return "".join([*parts, paragraphs([f"result {self.id}"])])


class Meta(Shown):
    """The pooled result of an answer, with its heterogeneity: of a secure sum, that of the releases beside it."""

    def __init__(self, result: Result) -> None:
        self.result, self.document = result, result.document

    def __getattr__(self, name: str) -> Any:
        document = self.__dict__.get("document", {})
        if name in document.get("summed", {}) and name != "tau2":
            return document["summed"][name]
        if name in document.get("pooled", {}):
            return document["pooled"][name]
        raise AttributeError(name)

    def to_frame(self) -> pd.DataFrame:
        """Both models, one row each, and a secure sum, where there is one."""
        import pandas as pd

        names = {"fixed": "fixed", "pooled": "random"} | ({"summed": "sum"} if "summed" in self.document else {})
        rows = [self.document[name] for name in names]
        return pd.DataFrame(rows, index=pd.Index(list(names.values()), name="effects"))

    def _repr_html_(self) -> str:
        from coordinator.analyst.show import paragraphs, pooled_html

        cautions = [f"note: {sentence}" for sentence in self.document.get("cautions", ())]
        return pooled_html(self.result.pooled) + paragraphs(cautions)

    def show(self, out: Console) -> None:
        """Draw it."""
        from coordinator.analyst.show import show_pooled

        show_pooled(out, self.result.pooled)


class Further(Shown):
    """Answers beyond the pooled result: `document` holds them as plain values, `answers` as the library gave them."""

    def __init__(self, result: Result, answers: dict[str, Any], plain: Callable[[Any], Any]) -> None:
        self._result, self.answers = result, answers
        self.document: dict[str, Any] = plain(answers)

    def __getitem__(self, name: str) -> Any:
        return self.answers[name]

    def show(self, out: Console) -> None:
        """Draw them."""
        from coordinator.pooling.further.analyses import show

        show(out, self._result.pooled, self.answers)


def monitoring(
    given: Mapping[int, Result],
    *,
    last: int,
    returning: str,
    spending: str,
    missing: Mapping[int, str],
) -> Monitoring:
    """The looks at answers to one question, wave by wave.

    Args:
        given: wave to its answer. last: wave of the plan. returning: as the plan has it; waves that `append` add
            independent patients.
        spending: ``obrien-fleming`` or ``pocock``. missing: wave to why it has no answer.
    Raises: EstimateRefusal: no answer; ParameterError: answers to several questions.
    """
    from coordinator.pooling.further.sequential import monitored

    names = ("estimand", "term", "method", "test", "level")
    asked = {tuple(one.document["asked"][name] for name in names) for one in given.values()}
    if len(asked) > 1:
        must = "looks must be at one question, with one term, pooled in one way"
        raise ParameterError(must, given="; ".join(sorted({one[0] for one in asked})))
    looks = [(f"wave {wave}", wave / last, given[wave].pooled) for wave in sorted(given)]
    found = monitored(looks, spending=spending, independent=returning == "append")  # type: ignore[arg-type]
    results = {wave: given[wave].id for wave in sorted(given)}
    return Monitoring(found, of=given[max(given)].document, results=results, missing=missing)


def estimate_of(row: Mapping[str, Any]) -> Estimate:
    """One site's estimate, from its row of a document."""
    from shared.estimands.answer import Estimate

    return Estimate(**{**row, "receipts": tuple(row["receipts"]), "warnings": tuple(row["warnings"])})


def _subset(estimand: str) -> str:
    """The filter that a question holds; blank without one."""
    from shared.estimands.questions import parse_estimand

    return parse_estimand(estimand).subset
