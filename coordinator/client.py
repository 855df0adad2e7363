"""The analyst's library and command line: `coordinator.analyst.commands`, under the name that documents promise."""

from coordinator.analyst.commands import *  # noqa: F403
from coordinator.analyst.commands import __all__ as __all__
from coordinator.analyst.commands import main as main
