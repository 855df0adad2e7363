"""Tributary for analysts, under the name it is installed by: ask a study, pool estimates, draw figures.

A thin face of `coordinator` and `shared`: every name here is defined there.

>>> import tributary_meta as tm
>>> result = tm.pool([0.21, 0.35, 0.12], [0.010, 0.020, 0.015], labels=["north", "south", "east"])
>>> print(f"{result.beta:.2f} ({result.ci_lb:.2f} to {result.ci_ub:.2f})")
0.21 (-0.08 to 0.51)
"""

from __future__ import annotations


def _in_the_way() -> None:
    """Refuse a file beside the notebook that is named like one of the packages below, by its path.

    Raises: ImportError.
    """
    import sys
    from importlib.util import find_spec
    from pathlib import Path

    here = Path(__file__).resolve().parent
    for name in ("shared", "coordinator"):
        loaded = sys.modules.get(name)
        spec = getattr(loaded, "__spec__", None) if loaded else find_spec(name)
        found = getattr(loaded, "__file__", None) if loaded else spec and spec.origin
        if not found:
            continue  # the import below says that it is not there
        if Path(found).resolve() != here / name / "__init__.py":
            text = f"{name} must be Tributary's own package, got {found}. Rename that file, and restart Python: "
            raise ImportError(f"{text}Python looks beside a notebook first.", name=name, path=found)


_in_the_way()
del _in_the_way

from coordinator.analyst.asynchronous import AsyncConnection, AsyncStudy, connect_async  # noqa: E402
from coordinator.analyst.own.table import read_table  # noqa: E402
from coordinator.analyst.remote import Connection, Study, connect, sign_in  # noqa: E402
from coordinator.analyst.result import Result  # noqa: E402
from coordinator.figures.companions import baujat_plot, bubble, funnel, influence_panel  # noqa: E402
from coordinator.figures.forest import forest  # noqa: E402
from coordinator.figures.over_time import budget_figure, km_figure, waves_figure  # noqa: E402
from coordinator.pooling.further.refits import cumulative, leave_one_out  # noqa: E402
from coordinator.pooling.pool import PooledResult, pool, pool_estimates  # noqa: E402
from coordinator.services.at_home import open_home  # noqa: E402
from shared.errors import Refusal  # noqa: E402
from shared.estimands.answer import Estimate  # noqa: E402

__all__ = [
    "AsyncConnection",
    "AsyncStudy",
    "Connection",
    "Estimate",
    "PooledResult",
    "Refusal",
    "Result",
    "Study",
    "baujat_plot",
    "bubble",
    "budget_figure",
    "connect",
    "connect_async",
    "cumulative",
    "forest",
    "funnel",
    "influence_panel",
    "km_figure",
    "leave_one_out",
    "open_home",
    "pool",
    "pool_estimates",
    "read_table",
    "sign_in",
    "waves_figure",
]
