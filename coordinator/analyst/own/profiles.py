"""Likelihood profiles from other software: the six forms of EvidenceSynthesis, identified by their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from coordinator.pooling.rows import Excluded
from shared.errors import ParameterError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from coordinator.pooling.further.profiles import PooledProfile, Profile, ProfilePosterior

__all__ = ["FORMS", "profiles_of", "show_profiles"]

FORMS: Mapping[str, tuple[str, ...]] = {
    "normal": ("logRr", "seLogRr"),
    "custom": ("mu", "sigma", "gamma"),
    "skew normal": ("mu", "sigma", "alpha"),
    "grid with gradients": ("point", "value", "derivative"),
    "adaptive grid": ("point", "value"),
}
"""Form to its columns. The first three have a row for each site, the others one for each point of a site; a table whose
columns are named by numbers is a ``grid``: a row for each site, its log-likelihood at each of them."""


def form_of(names: Sequence[str]) -> str:
    """Form of a table with these columns: a key of `FORMS`, or ``grid``. Raises: ParameterError."""
    found = next((form for form, columns in FORMS.items() if {*columns} <= {*names}), "")
    if not found and sum(_number(name) is not None for name in names) >= 2:
        return "grid"
    if not found:
        offered = "; ".join(f"{', '.join(columns)} ({form})" for form, columns in FORMS.items())
        raise ParameterError(
            "a table of likelihood profiles must have the columns of one of EvidenceSynthesis' forms",
            given=", ".join(names[:12]),
            next_step=f"One of: {offered}; or columns named by numbers (grid).",
        )
    return found


def profiles_of(given: pd.DataFrame, labels: Sequence[str], of: str) -> tuple[str, list[Profile], list[Excluded]]:
    """The form of a table, its profiles, and the sites whose profile cannot be used.

    Args:
        given: the table. labels: (rows,) a name for each, where a row is a site.
        of: the column that names the site, where a row is a point; blank for the only column of words.
    Raises: ParameterError: none of the forms, or no column that names the site.
    """
    from coordinator.analyst.own.table import column
    from coordinator.pooling.further import profiles as made

    form = form_of([str(name) for name in given.columns])
    makers: Mapping[str, Callable[..., Profile]] = {
        "normal": made.normal_profile,
        "custom": made.custom_profile,
        "skew normal": made.skew_normal_profile,
    }
    waiting: list[tuple[str, Callable[[], Profile]]]
    if form in makers:
        rows = zip(labels, _numbers(given, FORMS[form]), strict=True)
        waiting = [(label, partial(makers[form], label, *map(float, row))) for label, row in rows]
    elif form == "grid":
        names = [name for name in given.columns if _number(str(name)) is not None]
        at = [_number(str(name)) for name in names]
        rows = zip(labels, _numbers(given, names), strict=True)
        waiting = [(label, partial(made.grid_profile, label, at, row)) for label, row in rows]  # type: ignore[arg-type]
    else:
        words = [str(name) for name in given.columns if name not in FORMS["grid with gradients"]]
        if not of and len(words) != 1:
            raise ParameterError(
                "a table with a row for each point must have one column that names the site",
                given=", ".join(words) or "none",
                next_step="Name it with --labels.",
            )
        sites = column(given, of or words[0]).astype(str)
        parts = [(label, given[sites == label]) for label in dict.fromkeys(sites)]
        waiting = [(label, partial(made.grid_profile, label, *_numbers(one, FORMS[form]).T)) for label, one in parts]
    found, lost = [], []
    for label, make in waiting:
        try:
            found.append(make())
        except ParameterError as refusal:
            lost.append(Excluded(label, str(refusal)))
    return form, found, lost


def show_profiles(
    out: Console, form: str, found: PooledProfile, posterior: ProfilePosterior | None, shown: Callable[[float], str]
) -> None:
    """Draw pooled profiles for a person.

    Args:
        shown: a value of the analysis scale, as people read it.
    """
    from shared.terminal import number, p_shown, table

    def ends(low: float | None, high: float | None) -> str:
        return f"{'–' if low is None else shown(low)} to {'–' if high is None else shown(high)}"

    percent = f"{100 * found.level:g} % CI"
    rows = [[label, "–" if at is None else shown(at)] for label, at in zip(found.labels, found.own, strict=True)]
    out.print(table(["study", "highest at"], rows, right=["highest at"]))
    out.print()
    if found.beta is None:
        out.print(found.reason, style="yellow")
    else:
        words = f"likelihoods added ({form}; {len(found.labels)} studies): {shown(found.beta)}"
        out.print(f"{words} ({percent} {ends(found.interval.lb, found.interval.ub)})", style="bold")
    if found.interval.reason and found.interval.reason != found.reason:
        out.print(found.interval.reason, style="yellow")
    if found.QE is not None and found.QEp is not None and found.df:
        out.print(f"one common effect: likelihood ratio {found.QE:.2f} on {found.df} df, p {p_shown(found.QEp)}")
    if posterior is not None:
        heads = ["posterior", "median", f"{100 * posterior.level:g} % interval"]
        rows = [["mean effect", shown(posterior.mu.median), ends(posterior.mu.lb, posterior.mu.ub)]]
        rows.append(["τ", number(posterior.tau.median), f"{number(posterior.tau.lb)} to {number(posterior.tau.ub)}"])
        out.print()
        out.print(f"effects that vary between studies: {posterior.prior}", style="bold")
        out.print(table(heads, rows, right=heads[1:]))
    for row in found.excluded:
        out.print(f"left out  {row.label}: {row.reason}", style="yellow")
    if found.uninformative:
        out.print(f"note  says nothing of the effect: {', '.join(found.uninformative)}", style="dim")
    for note in (*found.notes, *(posterior.notes if posterior is not None else ())):
        out.print(f"note  {note}", style="dim")


def _number(text: str) -> float | None:
    """A column's name as a number; R writes X0.5 and X.0.5 for 0.5 and -0.5 where it mends names."""
    for said in (text, text.replace("X.", "-", 1) if text.startswith("X.") else text.removeprefix("X")):
        try:
            return float(said)
        except ValueError:
            continue
    return None


def _numbers(given: pd.DataFrame, names: Sequence[str]) -> Any:
    import pandas as pd

    return given[list(names)].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=float)
