"""Further analyses of a pooled result, as data for a program and as words for a person.

Both command lines (`analyst pool`, `coordinator pool`) take the same further questions; they meet here, so that the
numbers and the words are the same. What cannot be answered says why, in the place of its numbers: a question too many
does not cost the answers to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.pooling.pool import PooledResult
from coordinator.pooling.rows import Interval
from shared.errors import EstimateRefusal, ParameterError

if TYPE_CHECKING:
    from rich.console import Console

    from coordinator.pooling.moderators import RegressionResult

__all__ = ["SEED", "AnalysisRequest", "analyse", "show"]

SEED = 1
"""Seed of the simulated critical value of the exact interval: the same question has the same answer."""


@dataclass(frozen=True, kw_only=True)
class AnalysisRequest:
    """Further questions.

    Args:
        mods: moderator -> (label -> value): one meta-regression on all of them.
        group: name and (label -> level) of the subgroups; None asks for none.
        bayes: ask for the posterior; `scale` is that of the half-normal prior on tau.
        exact: ask for the intervals for few studies.
        diagnostics: ask for leave-one-out, influence, Egger, Begg and trim-and-fill.
    """

    mods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    group: tuple[str, Mapping[str, Any]] | None = None
    bayes: bool = False
    scale: float = 0.5
    exact: bool = False
    diagnostics: bool = False


def analyse(result: PooledResult, request: AnalysisRequest) -> dict[str, Any]:
    """Answer what was asked, as JSON holds it; an answer that cannot be given is ``{"reason": ...}``.

    Raises: ParameterError: a parameter outside its domain.
    """
    from coordinator.pooling.diagnostics import begg, egger, influence, trim_and_fill
    from coordinator.pooling.document import pooled_data
    from coordinator.pooling.further.few_studies import bayes, exact_interval, henmi_copas
    from coordinator.pooling.further.refits import leave_one_out
    from coordinator.pooling.subgroups import regressed, subgroups

    answers: dict[str, Any] = {}
    if request.mods:
        columns = {name: [values.get(label) for label in result.labels] for name, values in request.mods.items()}
        try:
            fit = regressed(result, columns)
            answers["regression"] = regression_data(fit)
        except EstimateRefusal as refusal:
            answers["regression"] = {"reason": str(refusal)}
    if request.group is not None:
        name, levels = request.group
        try:
            found = subgroups(result, [levels.get(label) for label in result.labels])
        except ParameterError as refusal:
            answers["subgroups"] = {"by": name, "reason": str(refusal)}
        else:
            answers["subgroups"] = {
                "by": name,
                "groups": {level: pooled_data(row) for level, row in found.groups.items()},
                "Q_between": found.Q_between,
                "df": found.df,
                "p_between": found.p_between,
                "common": None if found.common is None else regression_data(found.common),
                "notes": found.notes,
            }
    if request.exact:
        import numpy as np

        try:
            answers["exact"] = exact_interval(result, np.random.default_rng(SEED))
            answers["henmi_copas"] = henmi_copas(result)
        except EstimateRefusal as refusal:
            answers["refused"] = {"intervals for few studies": str(refusal)}
    if request.bayes:
        try:
            answers["bayes"] = bayes(result, scale=request.scale)
        except EstimateRefusal as refusal:
            answers["refused"] = {**answers.get("refused", {}), "Bayesian pooling": str(refusal)}
    if request.diagnostics:
        filled = trim_and_fill(result)
        refit = None if filled.result is None else pooled_data(filled.result)
        answers["leave_one_out"] = {label: _short(row) for label, row in leave_one_out(result)}
        answers["influence"] = influence(result)
        answers["egger"], answers["begg"] = egger(result), begg(result)
        names = ("side", "k0", "se_k0", "filled_yi", "filled_vi", "reason")
        answers["trim_and_fill"] = {name: getattr(filled, name) for name in names} | {"result": refit}
    return answers


def regression_data(fit: RegressionResult) -> dict[str, Any]:
    """A meta-regression as JSON holds it."""
    names = ("method", "test", "level", "k", "df", "dropped", "excluded", "notes")
    terms = ("terms", "beta", "se", "zval", "pval", "ci_lb", "ci_ub", "vcov", "QM", "QM_df", "QMp")
    left = ("tau2", "se_tau2", "tau2_interval", "I2", "H2", "R2", "QE", "QEp")
    return {name: getattr(fit, name) for name in (*names, *terms, *left)}


def show(out: Console, result: PooledResult, answers: Mapping[str, Any]) -> None:
    """Draw the answers of `analyse` for a person, off the analysis scale."""
    from shared.estimands.effects import shown
    from shared.terminal import number, table

    def value(x: float) -> str:
        return number(x) if result.scale == "identity" else f"{shown(x, result.scale):.3f}"

    def between(lb: float, ub: float) -> str:
        return f"{value(lb)} to {value(ub)}"

    percent = f"{100 * result.level:g} % CI"

    def head(title: str) -> None:
        out.print()
        out.print(title, style="bold")

    def interval(found: Interval) -> str:
        return found.reason if found.lb is None or found.ub is None else between(found.lb, found.ub)

    if "regression" in answers:
        fit = answers["regression"]
        head("meta-regression")
        if "reason" in fit:
            out.print(fit["reason"], style="yellow")
        else:
            rows = [
                [term, number(b), f"{number(lb)} to {number(ub)}", f"{p:.3f}"]
                for term, b, lb, ub, p in zip(
                    fit["terms"], fit["beta"], fit["ci_lb"], fit["ci_ub"], fit["pval"], strict=True
                )
            ]
            out.print(table(["term", "coefficient", percent, "p"], rows, right=["coefficient", percent, "p"]))
            df = ", ".join(map(str, fit["QM_df"]))
            out.print(
                f"moderators: QM {fit['QM']:.2f} on {df} df, p {fit['QMp']:.3f}   R² {fit['R2']:.0f} %   "
                f"left between sites: τ² {number(fit['tau2'])}, QE {fit['QE']:.2f}, p {fit['QEp']:.3f}"
            )
            _notes(out, fit["notes"])
    if "subgroups" in answers:
        found = answers["subgroups"]
        head(f"subgroups by {found['by']}")
        if "reason" in found:
            out.print(found["reason"], style="yellow")
        else:
            rows = [
                [level, row["k"], value(fit["beta"]), between(fit["ci_lb"], fit["ci_ub"]), f"{fit['I2']:.0f} %"]
                for level, row in found["groups"].items()
                for fit in [row["pooled"]]
            ]
            out.print(table(["group", "sites", "estimate", percent, "I²"], rows, right=["sites", "estimate", percent]))
            own = f"Q {found['Q_between']:.2f} on {found['df']} df, p {found['p_between']:.3f}"
            line, common = f"between groups: {own}", found["common"]
            if common is not None:
                df = ", ".join(map(str, common["QM_df"]))
                line = f"between groups, one common τ²: {'F' if len(common['QM_df']) > 1 else 'QM'} {common['QM']:.2f}"
                line += f" on {df} df, p {common['QMp']:.3f}   each with its own τ² (χ²): {own}"
            out.print(line)
            _notes(out, found["notes"])
    for name, reason in answers.get("refused", {}).items():
        out.print(f"{name}: {reason}", style="yellow")
    if "exact" in answers:
        head("for few studies")
        exact, copas = answers["exact"], answers["henmi_copas"]
        rows = [["exact (simulated, Berger-Boos)", value(exact.beta), interval(exact.interval)]]
        rows.append(["Henmi-Copas", value(copas.beta), interval(copas.interval)])
        out.print(table(["interval", "estimate", percent], rows, right=["estimate", percent]))
    if "bayes" in answers:
        found = answers["bayes"]
        head(f"Bayesian, τ half-normal({number(found.scale)}), flat prior on the mean")
        rows = [["mean effect", value(found.mu.median), between(found.mu.lb, found.mu.ub)]]
        rows.append(["a new site", value(found.prediction.median), between(found.prediction.lb, found.prediction.ub)])
        rows.append(["τ", number(found.tau.median), f"{number(found.tau.lb)} to {number(found.tau.ub)}"])
        for label, effect in zip(found.labels, found.effects, strict=True):
            rows.append([f"  {label}", value(effect.median), between(effect.lb, effect.ub)])
        heads = ["posterior", "median", f"{100 * found.level:g} % interval"]
        out.print(table(heads, rows, right=heads[1:]))
        _notes(out, found.notes)
    if "influence" in answers:
        _show_diagnostics(out, answers, value, percent)


def _show_diagnostics(out: Console, answers: Mapping[str, Any], value: Any, percent: str) -> None:
    from shared.terminal import number, table

    out.print()
    out.print("without each site", style="bold")
    found, loo = answers["influence"], answers["leave_one_out"]
    rows = []
    for i, (label, row) in enumerate(loo.items()):
        more = [number(found.rstudent[i]), number(found.cook_d[i])] if not found.reason else ["–", "–"]
        flag = "influential" if not found.reason and found.influential[i] else ""
        rows.append([label, value(row["beta"]), f"{value(row['ci_lb'])} to {value(row['ci_ub'])}", *more, flag])
    heads = ["left out", "estimate", percent, "residual", "Cook's D"]
    if rows:
        out.print(table([*heads, ""], rows, right=heads[1:]))
    for test in (answers["egger"], answers["begg"]):
        words = test.reason or f"{test.stat:.2f}, p {test.pval:.3f}"
        out.print(f"{test.name}: {words}", style="dim" if test.reason else "")
    filled = answers["trim_and_fill"]
    if filled["reason"]:
        out.print(f"trim-and-fill: {filled['reason']}", style="dim")
    else:
        refit = filled["result"]["pooled"]
        ends = f"{value(refit['ci_lb'])} to {value(refit['ci_ub'])}"
        out.print(f"trim-and-fill: {filled['k0']} on the {filled['side']}, then {value(refit['beta'])} ({ends})")


def _short(row: PooledResult) -> dict[str, float]:
    names = ("beta", "se", "pval", "ci_lb", "ci_ub", "tau2", "I2", "QE")
    return {name: getattr(row, name) for name in names}


def _notes(out: Console, notes: Sequence[str]) -> None:
    for note in notes:
        out.print(f"note  {note}", style="dim")
