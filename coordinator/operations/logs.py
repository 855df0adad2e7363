"""The service's log: lines for people, or one JSON object a line for a log collector, on stderr or in a file.

A line names peers, methods, codes and digests, never a value of a record: releases are not read into it. Whoever turns
the file over (logrotate) need not tell the service: the file is opened anew when another lies, or none, in its place.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from collections.abc import Mapping
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from shared.errors import StorageRefusal
from shared.wire.door import REQUEST

__all__ = ["JsonLines", "begin_log"]


class JsonLines(logging.Formatter):
    """One JSON object a line: ``time`` (UTC), ``level``, ``logger``, ``message``.

    Within a call there is ``request`` too, the same in each of its lines; the line of what became of it adds ``peer``,
    ``method``, ``code``, ``digest`` and ``seconds``. Of an exception its type is named, and no more.

    >>> line = logging.LogRecord("tributary.collect", logging.INFO, "", 0, "%d bundles", (3,), None)
    >>> json.loads(JsonLines().format(line))["message"]
    '3 bundles'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        said: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := REQUEST.get():
            said["request"] = request
        if record.exc_info and record.exc_info[0] is not None:
            said["error"] = record.exc_info[0].__name__
        return json.dumps({**said, **getattr(record, "call", {})}, ensure_ascii=False)


def begin_log(settings: Mapping[str, str]) -> None:
    """Configure the logging of this process.

    Args:
        settings: ``format`` (text or json), ``level`` (debug, info, warning, error) and ``file``
            (a path; blank: stderr).
    Raises: StorageRefusal, when the file cannot be opened.
    """
    place = settings.get("file", "")
    try:
        handler: logging.Handler = WatchedFileHandler(Path(place)) if place else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise StorageRefusal(
            "the log's file must be writable", given=f"{place}: {error.strerror}", next_step="See [logging] file."
        ) from None
    as_json = settings.get("format", "text") == "json"
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(message)s"))
    logging.basicConfig(level=settings.get("level", "info").upper(), handlers=[handler])
