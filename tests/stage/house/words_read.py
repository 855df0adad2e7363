"""Whether benchmarks take the words that they are given: read by each one's own parser, and nothing is measured.

python -m tests.stage.house.words_read "NAME WORD …" …

Parsers are made inside of `main`. So each benchmark is run as the command that it is, and ends where its parser has
read the words. All run in one process, which imports once what they share.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from tests.stage.house.sources import ROOT

__all__ = ["refused"]


CPU_SECONDS = 20.0
"""After so many of its own a benchmark is taken to have begun: imports take a few."""


class _Read(BaseException):
    """The words were read: the benchmark ends here."""


class _Begun(BaseException):
    """It has no parser, and measures."""


def refused(commands: Sequence[str]) -> dict[str, str]:
    """What is wrong with each command whose words its benchmark does not take.

    Args:
        commands: of benchmarks with a parser: any other would run.
    """
    argv = [sys.executable, "-m", "tests.stage.house.words_read", *commands]
    with tempfile.TemporaryDirectory() as folder:  # nothing is written, and if it were, not over committed figures
        environment = {**os.environ, "TRIBUTARY_SMALLEST": folder}
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, env=environment, cwd=ROOT)
    return dict(json.loads(done.stdout))


def _wrong(command: str) -> str:
    name, *words = shlex.split(command)
    sys.argv = [name, *words]
    said = io.StringIO()
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            runpy.run_module(f"tests.benchmarks.{name}", run_name="__main__", alter_sys=True)
    except _Read:
        return ""
    except _Begun:
        return "it measures without a parser"
    except SystemExit:
        return said.getvalue().strip().rpartition("\n")[2] or "it ended"
    except ImportError as error:
        return f"not installed: {error.name}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    return "it ended without a parser"


def main() -> None:
    """Say what is wrong, as JSON."""
    read = argparse.ArgumentParser.parse_args

    def parse_args(parser: argparse.ArgumentParser, *given: Any, **more: Any) -> None:
        read(parser, *given, **more)
        raise _Read

    def begun(*_: object) -> None:
        raise _Begun

    signal.signal(signal.SIGVTALRM, begun)
    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign, assignment]
    print(json.dumps({command: wrong for command in sys.argv[1:] if (wrong := _wrong(command))}))


if __name__ == "__main__":
    main()
