"""Output of every command: show an answer, show a refusal, and exit with its code.

A command is one library call. It returns a `VerbAnswer`: data for a program, and what a person reads, part by part;
`command` gives it ``--json`` and the rest of what the verbs of one program share. It raises a `Refusal`; `run` turns
that into one panel on stderr (what must hold, what to do next, who can fix it), or into ``{"refused": {...}}`` on
stdout where the command was given ``--json``, and returns the refusal's exit code.
Tracebacks never show local variables: at a hospital they would show records.

rich and typer are imported inside the functions, so that importing this costs nothing.
"""

from __future__ import annotations

import atexit
import dataclasses
import datetime as dt
import errno
import gc
import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from shared import software_version
from shared.errors import ParameterError, Refusal, StorageRefusal, UsageRefusal, lacking, require
from shared.terminal.spelling import spell_out
from shared.terminal.verb_options import VerbCommand

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import typer
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "FORMULA",
    "ChecklistLine",
    "Part",
    "VerbAnswer",
    "application",
    "checklist",
    "command",
    "console",
    "emit",
    "number",
    "one_line",
    "p_shown",
    "plain",
    "proven",
    "run",
    "show_refusal",
    "table",
    "tabled",
    "without_formulas",
    "write_table",
]

# What a terminal acts upon instead of showing it: control characters (but for a line's end), and marks that turn the
# direction of text so that it reads otherwise than it is.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BREAKS = re.compile("[\t\n\x0b-\r\x1c-\x1e\x85\u2028\u2029]\\s*|(?<=\\S)\\s{3,}")
"""Ends of lines, and white space that would fill one up to its end."""
FORMULA = re.compile(
    r"(?s)^(?=[\t\r\n])|(?:^|[;\t\r\n])(?=[=@＝＠]|[-+－＋](?:.*[|!=＝]|(?:.*[-+*/^&(,;:%<>{@])?\s*[^\W\d][\w.]*\s*\())"
)
"""The place before what a spreadsheet reads as a formula; a sign before no call, as in ``-1 to 3``, begins none.
Full-width signs are signs in some languages' spreadsheets (https://owasp.org/www-community/attacks/CSV_Injection), and
where the decimal sign is a comma a semicolon begins another cell, also in a file of commas."""
WIDTH = 100
"""Columns when nobody says otherwise (a pipe, a log file)."""
PARTS = {"site-agent": "site", "coordinator": "coordinator", "analyst": "client", "tributary": "site,coordinator"}
"""Name of a program to the extra of the distribution that it needs."""
OWN = ("shared", "site_agent", "coordinator", "tributary_meta")
SHELLS = ("bash", "zsh", "fish")
UNREAD = 141
"""Exit code of a command whose output nobody reads any more: as shells have it of a program that SIGPIPE ends."""
LEAST = 8
"""Letters that every column of a table is left, before ids and numbers of others are kept whole."""


def inert(value: Any) -> Any:
    """Text of others as letters only: nothing in it turns the direction of what follows, or is acted upon.

    Mark-up (`__html__`) stays mark-up: texts of others stand in it, too. A path becomes text; others stay as they are.

    >>> inert("a\u202eb\x1b[2J")
    'ab[2J'
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        return value
    letters = _COMMANDS.sub("", value)
    return type(value)(letters) if hasattr(value, "__html__") else letters


def one_line(value: Any) -> str:
    """A value as text that ends no line, nor pads one to its end: a text of others cannot look like further lines.

    >>> one_line("Blood pressure\\n\\nmember   fingerprint")
    'Blood pressure member fingerprint'
    """
    return _BREAKS.sub(" ", str(value))


def application(help_text: str, *, bare: bool = False) -> typer.Typer:
    """A command line in the house style: no traceback with local variables, and help when it is called bare.

    Args:
        help_text: its first line.
        bare: it has an answer of its own when called bare.

    >>> application("Say hello.").info.help
    'Say hello.'
    """
    import typer

    return typer.Typer(
        help=help_text,
        no_args_is_help=not bare,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
    )


def run(app: typer.Typer, *, name: str, argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; the one place where a refusal becomes output.

    Args:
        name: program name for the help text.
        argv: arguments without the program; None takes the process's own.
    Returns: 0, a `Refusal.exit_code`, 2 for a command line that cannot be read, 130 after Ctrl-C, `UNREAD` where
        what reads the output ended first (``| head``), or 1 after an error that nobody foresaw.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Starting allocates some hundred thousand objects that stay: to search them for garbage is a tenth of its time.
    gc.set_threshold(10_000, 20, 20)
    # At the end, too: what would be searched goes with the process, and the search takes a sixth of a short command.
    atexit.register(gc.freeze)
    spell_out()
    if arguments == ["--version"]:
        sys.stdout.write(f"{name} {software_version()}\n")
        return 0
    _complete(name, arguments)
    from shared.terminal.reached import reached, with_home

    try:
        arguments = with_home(app, arguments)
    except UsageRefusal as refusal:
        return show_refusal(refusal, as_json="--json" in arguments)
    app = reached(app, arguments)
    try:
        code = (_run_for_a_program if "--json" in arguments else _run)(app, name, arguments)
        sys.stdout.flush()  # here, where it can be told: at the interpreter's end a broken pipe is an error of its own
        sys.stderr.flush()
        return code
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # what is still buffered goes nowhere, without a word
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return UNREAD


def _complete(name: str, arguments: list[str]) -> None:
    """Let a shell complete this program's words: ``NAME --completion bash`` prints what the shell reads once."""
    variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
    if arguments[:1] == ["--completion"]:
        shell = " ".join(arguments[1:])
        if shell not in SHELLS:
            raise SystemExit(show_refusal(ParameterError(f"the shell must be one of {', '.join(SHELLS)}", given=shell)))
        os.environ[variable] = f"source_{shell}"
    if variable in os.environ:
        from typer.completion import completion_init

        completion_init()


def _run_for_a_program(app: typer.Typer, name: str, arguments: list[str]) -> int:
    """Run a command line whose answer a program reads: one that cannot be read is answered as a refusal is."""
    import click

    def bare(*, args: list[str], prog_name: str) -> None:
        code = app(args=args, prog_name=prog_name, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)

    try:
        return _run(bare, name, arguments)
    except click.exceptions.Abort:
        return 130
    except click.ClickException as error:
        usage = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else name
        unread = UsageRefusal(
            "the command line must be one that this command reads",
            given=error.format_message(),
            next_step=f"See {usage} --help.",
        )
        return show_refusal(unread, as_json=True)


def _run(app: Callable[..., Any], name: str, arguments: list[str]) -> int:
    try:
        app(args=arguments, prog_name=name)
    except SystemExit as leave:
        from click.utils import PacifyFlushWrapper  # what click puts in the place of a pipe that nobody reads

        if isinstance(sys.stdout, PacifyFlushWrapper):
            return UNREAD
        return leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
    except KeyboardInterrupt:
        return 130
    except Refusal as refusal:
        return show_refusal(refusal, as_json="--json" in arguments)
    except OSError as error:
        named = os.path.basename(str(error.filename)) if error.filename else "the file or folder"
        failed = StorageRefusal(
            f"{named} must be readable and writable",
            given=error.strerror or type(error).__name__,
            next_step="Check the path, its owner and the free space.",
        )
        return show_refusal(failed, as_json="--json" in arguments)
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] in OWN:
            return _show_fault(error, as_json="--json" in arguments)
        return show_refusal(lacking(error.name, PARTS.get(name, "")), as_json="--json" in arguments)
    except Exception as error:
        if type(error).__module__.startswith("click."):
            raise  # a command line that cannot be read, asked for as JSON
        return _show_fault(error, as_json="--json" in arguments)
    return 0


def _show_fault(error: Exception, *, as_json: bool) -> int:
    """Say where an unforeseen error arose and of which kind it is, never in its own words: libraries quote the cell
    they stumbled over, and what is printed at a hospital ends up in log files."""
    import traceback

    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    for part in reversed(chain):
        sys.stderr.write("".join(traceback.format_tb(part.__traceback__)))
        sys.stderr.write(f"{type(part).__name__} (its message is not shown: it may quote a record)\n")
    fault = Refusal(
        "the command must not meet an error that nobody foresaw",
        given=type(error).__name__,
        next_step="Report the places above to the study lead; they name code, and no data.",
    )
    return show_refusal(fault, as_json=as_json)


def show_refusal(refusal: Refusal, *, as_json: bool = False) -> int:
    """Write a refusal to stderr as a panel, or to stdout as JSON; returns its exit code.

    >>> show_refusal(Refusal("w must be in [0, 1)", given="1.2", next_step="Lower w."), as_json=True)
    {
      "refused": {
        "code": "E_REFUSED",
        "must": "w must be in [0, 1)",
        "given": "1.2",
        "next_step": "Lower w.",
        "fixer": "whoever ran the command",
        "exit_code": 1
      }
    }
    1
    """
    if as_json:
        body = {name: getattr(refusal, name) for name in ("code", "must", "given", "next_step", "fixer", "exit_code")}
        emit({"refused": body}, as_json=True)
        return refusal.exit_code
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    lines = (
        ("must hold", refusal.must),
        ("given", refusal.given),
        ("do next", refusal.next_step),
        ("who can fix it", refusal.fixer),
    )
    for label, text in lines:
        if text:
            grid.add_row(label, Text(text))
    title = Text.assemble(("refused: ", "bold red"), (refusal.code, "bold red"))
    console(stderr=True).print(Panel(grid, title=title, title_align="left", border_style="red", padding=(0, 1)))
    return refusal.exit_code


Part: TypeAlias = "str | tuple[str, str] | Callable[[Console], None] | None"
"""A part of a screen: a line, a line and its style, or what draws on a console; None is left out."""


class VerbAnswer:
    """The answer of a verb.

    Args:
        data: what a program reads; see `plain`.
        parts: what a person reads, from top to bottom; without any, they read the JSON too.
    """

    def __init__(self, data: Any, *parts: Part, code: int = 0) -> None:
        self.data, self.parts, self.code = data, parts, code

    def show(self, out: Console) -> None:
        """Draw it."""
        for part in self.parts:
            if isinstance(part, str):
                out.print(part)
            elif isinstance(part, tuple):
                out.print(part[0], style=part[1])
            elif part is not None:
                part(out)


def tabled(
    columns: Sequence[str], cells: Iterable[Sequence[Any]], *, right: Iterable[str] = ()
) -> Callable[[Console], None]:
    """A `table` as a part of a screen."""
    return lambda out: out.print(table(columns, cells, right=right))


def command(
    verb: Callable[..., VerbAnswer],
    shared: Sequence[Parameter],
    given: Mapping[str, Any],
    opened: Callable[[Mapping[str, Any], Collection[str]], AbstractContextManager[Mapping[str, Any]]],
) -> Callable[..., None]:
    """The command behind a verb: its own options, then those that the verbs of a program share; it shows the view.

    Args:
        verb: each of its parameters is an option, a dataclass whose fields are options, or what `opened` gives.
        shared: ``json``, what else every verb has, and ``dry_run`` for those that take it.
        given: what stands for the type of each thing that `opened` gives, by its name in annotations.
        opened: from the options and the names of the verb's parameters to what it works with, until it has answered.
    """

    def answered(made: VerbCommand, said: Mapping[str, Any]) -> None:
        with opened(said, made.own.keys()) as works_with:
            known = {**said, **works_with}
            for name, group in made.groups.items():
                known[name] = group(**{one.name: said[one.name] for one in dataclasses.fields(group)})
            answer = verb(**{name: known[name] for name in made.own})
            emit(answer.data, as_json=said["json"], show=answer.show if answer.parts else None)
        if answer.code:
            from typer import Exit

            raise Exit(answer.code)

    return VerbCommand(verb, shared, given, answered)


def emit(data: Any, *, as_json: bool, show: Callable[[Console], None] | None = None) -> None:
    """Write a command's answer: JSON for a program, or `show` for a person.

    Args:
        data: dataclasses, mappings, sequences, dates, numbers; see `plain`.
        as_json: what the command was asked for by ``--json``.
        show: draws the answer on the console; without it the JSON is written in either case.
    """
    if as_json or show is None:
        narrow = "utf" not in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()  # JSON has escapes of its own
        text = json.dumps(plain(data), indent=2, ensure_ascii=narrow, allow_nan=False)
        sys.stdout.write(_COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")
    else:
        show(console())


_PLAIN = {str, int, bool, type(None)}


def plain(value: Any) -> Any:
    """`value` as JSON can hold it; a number that is not finite becomes null, bytes become hexadecimal digits.

    >>> plain({"day": dt.date(2026, 1, 5), "x": (1.5, float("nan"))})
    {'day': '2026-01-05', 'x': [1.5, None]}
    """
    exact = type(value)
    if exact in _PLAIN or exact is float:  # nearly everything is, in a document of thousands
        return value if exact is not float or math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # a numpy scalar
        return plain(value.item())
    if hasattr(value, "tolist"):  # a numpy array
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def console(*, stderr: bool = False) -> Console:
    """A console that neither guesses at markup nor colours numbers; `WIDTH` columns where there is no terminal."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Inert(Console):
        """Texts of others (a plan, a coordinator's reason) reach a terminal as letters, never as commands to it."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                plain_text = segment.control or not _COMMANDS.search(segment.text)
                yield segment if plain_text else Segment(inert(segment.text), segment.style)

        def on_broken_pipe(self) -> None:
            """Nobody reads on: end as click does where a bare print meets that. Raises: BrokenPipeError."""
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH
    return Inert(file=stream, width=width, markup=False, highlight=False, emoji=False)


@dataclass(frozen=True, kw_only=True)
class ChecklistLine:
    """One line of a checklist: green, a warning, or red with its fix.

    Args:
        name: what was looked at, in two or three words.
        state: ``ok``, ``warn`` or ``fail``.
        detail: what was found.
        fix: what to do; required unless the state is ``ok``.
    """

    name: str
    state: Literal["ok", "warn", "fail"] = "ok"
    detail: str = ""
    fix: str = ""

    @classmethod
    def of(cls, name: str, refusal: Refusal) -> ChecklistLine:
        """The red line of a refusal."""
        given = f" (got {refusal.given})" if refusal.given else ""
        return cls(name=name, state="fail", detail=refusal.must + given, fix=refusal.next_step or refusal.fixer)


def proven(parts: Mapping[str, Callable[[], str]]) -> tuple[list[ChecklistLine], int]:
    """Look at each part of a backup, up to the first that is not whole.

    Returns: a line for each, and 0 or the exit code of the refusal.
    """
    lines = []
    for name, look in parts.items():
        try:
            lines.append(ChecklistLine(name=name, detail=look()))
        except Refusal as refusal:
            return [*lines, ChecklistLine.of(name, refusal)], refusal.exit_code
    return lines, 0


def checklist(out: Console, checks: Iterable[ChecklistLine]) -> None:
    """Draw a checklist: a mark, the name, what was found; the fix below it."""
    from rich.table import Table
    from rich.text import Text

    marks = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for check in checks:
        mark, style = marks[check.state]
        text = Text(check.detail)
        if check.fix and check.state != "ok":
            text.append(f"\n→ {check.fix}", style="cyan")
        grid.add_row(Text(mark, style=style), Text(check.name), text)
    out.print(grid)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[str] = (), title: str = ""
) -> Table:
    """A calm table: a rule under the header, no boxes; `None` is an en dash.

    Args:
        rows: cells; a rich `Text` keeps its style and its lines, everything else is written as text in one.
        right: headers of the columns that hold numbers.
        title: one line above, left.
    """
    from rich import box
    from rich.console import ConsoleOptions
    from rich.table import Table
    from rich.text import Text

    numeric = set(right)
    lines = [
        [cell if isinstance(cell, Text) else Text("–" if cell is None else one_line(cell)) for cell in row]
        for row in rows
    ]
    widths = [max([len(name), *(len(line[k]) for line in lines if k < len(line))]) for k, name in enumerate(columns)]
    words = [
        max(
            len(word)
            for text in (name, *(line[k].plain for line in lines if k < len(line)))
            for word in text.split() or [""]
        )
        for k, name in enumerate(columns)
    ]

    def copied(k: int) -> bool:
        """True if every cell of column `k` has 32 characters: only ids, which people copy, have that length."""
        return {len(line[k]) for line in lines if k < len(line)} == {32}

    class Whole(Table):
        """A table that breaks no id and no number as long as there is room for them: texts give way first."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Any:
            room = options.max_width - 3 * (len(widths) - 1) - sum(min(word, LEAST) for word in words)
            for k in sorted(range(len(widths)), key=lambda k: (not copied(k), words[k])):
                if widths[k] == words[k] and (more := words[k] - min(words[k], LEAST)) <= room:
                    self.columns[k].no_wrap, room = True, room - more
            return super().__rich_console__(console, options)

    made = Whole(
        box=box.SIMPLE_HEAD,
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        header_style="dim",
        pad_edge=False,
        show_edge=False,
    )
    for name in columns:
        made.add_column(Text(name), justify="right" if name in numeric else "left", overflow="fold")
    for line in lines:
        made.add_row(*line)
    return made


def p_shown(value: float | None) -> str:
    """A p-value in three decimals, or that it is below the least of these; a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def number(value: float) -> str:
    """Four significant digits, without exponents where a reader expects none.

    >>> number(0.04301), number(12.3456), number(0.0), number(-1234567.0), number(2.5e-9)
    ('0.04301', '12.35', '0', '-1234567', '2.5e-09')
    """
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3e}"
    return f"{value:.4g}" if abs(value) < 1e-4 else f"{value:#.4g}".rstrip(".")


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """The table as a CSV may hold it: an apostrophe stands before a text that a spreadsheet would run as a formula.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"level": ["=A1()", "-1 to 3", "a;=A1"], "n": [1, 2, 3]})
    >>> without_formulas(table).to_csv(index=False)
    "level,n\\n'=A1(),1\\n-1 to 3,2\\na;'=A1,3\\n"
    """

    def still(value: Any) -> Any:
        return FORMULA.sub(r"\g<0>'", value) if isinstance(value, str) else value

    texts = [place for place, kind in enumerate(table.dtypes) if kind.kind not in "biufcmM"]
    columns = {table.columns[place]: table.iloc[:, place].map(still) for place in texts}
    return table.assign(**columns).rename(columns=still)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table to .csv or .parquet. Raises: ParameterError: another suffix."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise ParameterError("the table must end in .csv or .parquet", given=repr(path.name))
    if suffix == ".csv":
        without_formulas(table).to_csv(path, index=False)
    else:
        require("pyarrow")
        table.to_parquet(path, index=False)
