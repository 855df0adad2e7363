"""Several coefficients of each study, pooled together: a table with a row for each, and a study's covariances."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import ParameterError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from rich.console import Console

    from coordinator.pooling.multivariate import JointResult, JointRow

__all__ = ["TogetherOptions", "joint_rows_of", "show_joint"]

together_option = partial(typer.Option, rich_help_panel="Several coefficients")


@dataclass(frozen=True, kw_only=True)
class TogetherOptions:
    """Options for reading and pooling a table with several coefficients of each study."""

    terms: Annotated[
        str, together_option("--terms", help="Column that names the coefficient: pool all of them together.")
    ] = ""
    rvars: Annotated[
        str,
        together_option("--rvars", help="With --terms: columns that hold a study's covariance matrix, as in v1i,v2i."),
    ] = ""
    rho: Annotated[
        float | None,
        together_option("--rho", help="With --terms, in place of --rvars: correlation of a study's estimates."),
    ] = None
    structure: Annotated[
        str, together_option("--structure", help="Of the covariance between studies: un, diag, cs or prop.")
    ] = ""


def joint_rows_of(
    given: pd.DataFrame, study: str, yi: np.ndarray, vi: np.ndarray, options: TogetherOptions
) -> tuple[list[JointRow], list[str]]:
    """The studies of a table, each with all its coefficients, and the coefficients in the order of the table.

    Args:
        given: a row for each coefficient of a study. study: the column that names the study.
        yi: (rows,) estimates. vi: (rows,) their variances, with ``rho``.
        options: ``rvars`` as metafor's ``vcalc`` has it: of a study with p coefficients its rows hold, in the first p
            of these columns and in their own order, its covariance matrix.
    Raises: ParameterError: neither or both of ``rvars`` and ``rho``, or a covariance matrix that is none.
    """
    import numpy as np
    import pandas as pd

    from coordinator.analyst.own.table import column
    from coordinator.pooling.multivariate import JointRow

    if bool(options.rvars) == (options.rho is not None):
        raise ParameterError(
            "--terms must be given one of --rvars and --rho",
            given="both" if options.rvars else "neither",
            next_step="--rho 0 if a study's estimates are of different patients.",
        )
    if options.rho is not None and not -1 < options.rho < 1:
        raise ParameterError("--rho must be in (-1, 1)", given=f"{options.rho:g}")
    said, studies = column(given, options.terms).astype(str), column(given, study).astype(str)
    terms = list(dict.fromkeys(said))
    names = [name.strip() for name in options.rvars.split(",") if name.strip()]
    held = np.array([pd.to_numeric(column(given, name), errors="coerce") for name in names]).T
    rows = []
    for label in dict.fromkeys(studies):
        at = np.flatnonzero(studies == label)
        place = [terms.index(said.iloc[i]) for i in at]
        if len(set(place)) < len(at):
            raise ParameterError("a study must have each coefficient once", given=f"{label}: one twice")
        if names and len(at) > len(names):
            words = f"{label}: {len(at)} coefficients, {len(names)} columns"
            raise ParameterError("--rvars must name as many columns as a study has coefficients", given=words)
        if names:
            own = held[at][:, : len(at)]
        else:
            alike = options.rho or 0.0
            own = np.sqrt(np.outer(vi[at], vi[at])) * (alike + (1 - alike) * np.eye(len(at)))
        if not np.allclose(own, own.T, rtol=1e-6, equal_nan=True):
            raise ParameterError("the covariance matrix of a study must be symmetric", given=label)
        own_yi, cov = np.full(len(terms), np.nan), np.full((len(terms), len(terms)), np.nan)
        own_yi[place], cov[np.ix_(place, place)] = yi[at], own
        rows.append(JointRow(label=label, yi=own_yi, cov=cov))
    return rows, terms


def show_joint(out: Console, found: JointResult, ratio: bool) -> None:
    """Draw coefficients pooled together: a row for each, the joint test, and what was left out."""
    from math import exp

    from scipy.special import ndtr, stdtr

    from shared.terminal import number, p_shown, table

    def shown(values: np.ndarray) -> list[str]:
        return [f"{exp(value):.3f}" if ratio else number(value) for value in values]

    half = found.critical * found.se
    z = abs(found.beta / found.se)
    p = 2 * (ndtr(-z) if found.test == "z" else stdtr(found.df, -z))
    heads = ["coefficient", "ratio" if ratio else "estimate", f"{100 * found.level:g} % CI", "p", "τ between"]
    ends = zip(shown(found.beta - half), shown(found.beta + half), strict=True)
    rows = [
        [term, at, f"{low} to {high}", p_shown(float(value)), number(float(tau) ** 0.5)]
        for term, at, (low, high), value, tau in zip(
            found.terms, shown(found.beta), ends, p, found.psi.diagonal(), strict=True
        )
    ]
    out.print(table(heads, rows, right=heads[1:]))
    out.print(found.sentence.replace("sites", "studies"), style="bold")
    out.print(f"heterogeneity: Q {found.QE:.2f} on {found.df} df, p {p_shown(found.QEp)}")
    for label, reason in found.excluded:
        out.print(f"left out  {label}: {reason}", style="yellow")
    for note in found.notes:
        out.print(f"note  {note.replace(' sites', ' studies')}", style="dim")
