"""The analyst's library and command line: `coordinator.analyst.commands`, under the name that documents promise."""

from coordinator.analyst.commands import app, connect, main, read_table
from coordinator.analyst.show import check_figure, draw, show_pooled, sides

__all__ = ["app", "check_figure", "connect", "draw", "main", "read_table", "show_pooled", "sides"]
