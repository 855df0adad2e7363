"""The compiled special functions that a price needs, without what else `scipy.special` imports.

``from scipy import special`` takes 0.15 CPU seconds, a fiftieth of it for its compiled functions and the rest for what
it offers to other array libraries and for tools that numpy builds with. Every command that names a price would pay for
that, and it computes a handful of values. The functions are of the same file, so that no digit differs.
"""

from __future__ import annotations

from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

__all__ = [
    "FUNCTIONS",
    "special",
]

FUNCTIONS = ("erfcx", "gammaincinv", "log_ndtr", "ndtr")
"""What `special` has for sure; `scipy.special` has more."""
_FILE = "_special_ufuncs"


@cache
def special() -> Any:
    """A module with `FUNCTIONS`: scipy's compiled file alone; all of `scipy.special` where scipy has another layout.

    >>> float(special().ndtr(0.0))
    0.5
    """
    scipy = find_spec("scipy")  # finds it and imports nothing
    folders = [str(Path(place) / "special") for place in (scipy and scipy.submodule_search_locations) or ()]
    spec = PathFinder.find_spec(_FILE, folders)
    if spec is not None and spec.loader is not None:
        try:
            found = module_from_spec(spec)
            spec.loader.exec_module(found)
        except ImportError:  # for instance where scipy itself says which libraries it needs
            found = None
        if all(hasattr(found, name) for name in FUNCTIONS):
            return found
    from scipy import special as whole

    return whole
