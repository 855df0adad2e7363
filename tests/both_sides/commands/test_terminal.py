"""A command's answers and refusals look and leave alike everywhere."""

import io
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import typer

from shared import terminal
from shared.errors import CATALOGUE, BudgetRefusal


def commands():
    app = terminal.application("Two commands.")

    @app.command()
    def spend(json: bool = False) -> None:
        raise BudgetRefusal("the study must fit its [budget]", given="ε 9", next_step="Amend the plan.")

    @app.command()
    def read(path: str, json: bool = False) -> None:
        with open(path) as file:
            terminal.emit(file.read(), as_json=json)

    return app


def test_a_refusal_is_a_panel_on_stderr_and_its_exit_code(capsys):
    assert terminal.run(commands(), name="t", argv=["spend"]) == 11
    shown = capsys.readouterr()
    assert shown.out == ""
    for words in ("E_BUDGET", "the study must fit its [budget]", "ε 9", "Amend the plan.", "study lead"):
        assert words in shown.err


def test_a_refusal_is_json_on_stdout_when_json_was_asked_for(capsys):
    assert terminal.run(commands(), name="t", argv=["spend", "--json"]) == 11
    shown = capsys.readouterr()
    refused = json.loads(shown.out)["refused"]
    assert (refused["code"], refused["exit_code"], refused["next_step"]) == ("E_BUDGET", 11, "Amend the plan.")
    assert shown.err == ""


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=lambda kind: kind.__name__)
def test_every_refusal_has_a_panel(kind, capsys):
    assert terminal.show_refusal(kind("a rule holds")) == kind.exit_code
    assert kind.code in capsys.readouterr().err


def test_an_unreadable_file_is_a_storage_refusal_and_not_a_traceback(capsys, tmp_path):
    assert terminal.run(commands(), name="t", argv=["read", str(tmp_path / "absent.csv")]) == 30
    shown = capsys.readouterr().err
    assert "absent.csv" in shown
    assert "Traceback" not in shown


def test_a_command_line_that_cannot_be_read_leaves_with_2(capsys):
    assert terminal.run(commands(), name="t", argv=["spend", "--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["say", "--loud"], ["shout"], ["say", "--times", "x"]])
def test_a_command_line_that_cannot_be_read_is_json_where_json_was_asked_for(given, capsys):
    app = terminal.application("Say hello.")

    @app.callback()
    def _group() -> None: ...

    @app.command()
    def say(times: int = 1, json: bool = False) -> None:
        raise typer.Exit(times)

    assert terminal.run(app, name="demo", argv=[*given, "--json"]) == 2
    shown = capsys.readouterr()
    refused = json.loads(shown.out)["refused"]
    assert refused["code"] == "E_USAGE"
    assert given[-1] in refused["given"]
    assert "demo" in refused["next_step"]
    assert shown.err == ""
    assert terminal.run(app, name="demo", argv=["say", "--times", "3", "--json"]) == 3, "a command's own exit code"


def test_plain_values_hold_nothing_json_has_no_form_for():
    @dataclass
    class Answer:
        x: object

    given = Answer({"a": np.float64("inf"), "b": np.arange(2), "c": b"\x01", "d": {1: np.int64(3)}})
    assert terminal.plain(given) == {"x": {"a": None, "b": [0, 1], "c": "01", "d": {"1": 3}}}


def test_the_checklist_shows_the_fix_of_what_is_not_green(capsys):
    checks = [
        terminal.ChecklistLine(name="clock", detail="in step"),
        terminal.ChecklistLine(name="disk", state="fail", fix="Free it."),
    ]
    terminal.checklist(terminal.console(), checks)
    shown = capsys.readouterr().out
    assert "✓ clock" in shown
    assert "✗ disk" in shown
    assert "→ Free it." in shown


def test_importing_it_imports_neither_rich_nor_typer():
    code = "import sys, shared.terminal; print([m for m in ('rich', 'typer') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_text_of_others_cannot_command_the_terminal(capsys):
    from shared.errors import Refusal
    from shared.terminal import console, emit, show_refusal, table

    hostile = "\x1b]0;owned\x07\x1b[2Jcleared\x9b31m \u202egnirts\r\x08 ends"
    console().print(hostile)
    console().print(table(("a",), [(hostile,)]))
    show_refusal(Refusal("must " + hostile, given=hostile, next_step=hostile))
    emit({"reason": hostile}, as_json=True)
    out, err = capsys.readouterr()
    for code in ("\x1b", "\x07", "\x08", "\r", "\x9b", "\u202e"):
        assert code not in out, repr(code)
        assert code not in err, repr(code)
    assert "cleared" in out
    assert json.loads(out[out.index("{") :])["reason"] == hostile, "a program gets what was sent"


def test_an_id_that_people_copy_is_whole_at_a_hundred_columns_beside_long_names():
    from rich.console import Console

    ids, heads = ("a" * 32, "b" * 32), ["wave", "site", "n", "release_id", "ε", "posture", "day", "state"]
    rows = [[1, "university-hospital", 12_345, one, "104.6", "private", "2026-11-23", "withdrawn"] for one in ids]
    out = Console(width=100, file=io.StringIO())
    out.print(terminal.table(heads, rows, right=["wave", "n"]))
    assert all(one in out.file.getvalue() for one in ids)


def test_a_command_ends_without_a_search_for_what_goes_with_its_process_anyway():
    code = (
        "import atexit, gc, typer; from shared import terminal; app = typer.Typer(); app.command()(lambda: None); "
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000)); "
        "raise SystemExit(terminal.run(app, name='hello', argv=[]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


UNREAD = """
import sys
from shared import terminal

app = terminal.application("x")


@app.command()
def show(json: bool = False):
    if ROWS < 0:
        raise terminal.UsageRefusal("it must work", given="not", next_step="Nothing.")
    for row in range(ROWS):
        terminal.emit({"row": row}, as_json=json, show=lambda out: out.print("hello " * 30))


sys.stdin.readline()  # until nobody reads
raise SystemExit(terminal.run(app, name="x"))
"""


@pytest.mark.parametrize("rows", [-1, 1, 5000])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_command_that_nobody_reads_any_more_ends_without_a_word(rows, options):
    """`analyst pool … | head` ended with 1, the code of a command that failed; a refusal with a traceback."""
    code = UNREAD.replace("ROWS", str(rows))
    pipe, both = subprocess.PIPE, rows < 0  # a refusal is on stderr: as with 2>&1
    process = subprocess.Popen(
        [sys.executable, "-c", code, *options], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT if both else pipe
    )
    with process:
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        said = b"" if both else process.stderr.read()
    assert (process.returncode, said) == (terminal.UNREAD, b"")


def test_home_is_read_before_the_verb_and_after_it_by_either_program(capsys, tmp_path):
    """One program has it before its verbs and the other after them; whoever runs both wrote it in the wrong place."""
    import coordinator.cli
    import site_agent.cli

    def answer(app, name, *argv):
        code = terminal.run(app, name=name, argv=list(map(str, argv)))
        return code, json.loads(capsys.readouterr().out)

    hub, north = tmp_path / "hub", tmp_path / "north"
    lead = partial(answer, coordinator.cli.app, "coordinator")
    assert lead("init", "--home", hub, "--name", "heart", "--json")[0] == 0
    assert (hub / "coordinator.toml").exists()
    assert lead("--home", hub, "clock", "--json")[0] == lead("clock", f"--home={hub}", "--json")[0] == 0
    assert lead("plan", "--home", hub, "cost", "--json") == lead("--home", hub, "plan", "cost", "--json")
    steward = partial(answer, site_agent.cli.app, "site-agent")
    for argv in (("status",), ("plan", "show", "heart")):
        code, said = steward(*argv, "--home", north, "--json")
        assert (code, said["refused"]["code"]) == (2, "E_STATE")
        assert steward("--home", north, *argv, "--json") == (code, said)
        assert steward(argv[0], "--home", north, *argv[1:], "--json") == (code, said)
    assert terminal.run(site_agent.cli.app, name="site-agent", argv=["--home", str(north), "--help"]) == 0
    assert "status" in capsys.readouterr().out


def test_what_follows_two_dashes_is_not_taken_for_the_home():
    import coordinator.cli
    import site_agent.cli
    from shared.terminal.reached import with_home

    words = ["harmonise", "--", "--home", "x"]
    assert with_home(coordinator.cli.app, words) == with_home(site_agent.cli.app, words) == words


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        (["sites", "--home"], "no folder after it"),
        (["--home", "--json", "sites"], "--json"),
        (["--home", "a", "sites", "--home=b"], "a and b"),
    ],
)
def test_home_that_names_no_folder_or_two_is_refused(argv, given, capsys):
    """The last of two won without a word, and a verb was taken for the folder."""
    import coordinator.cli
    from shared.terminal.reached import with_home

    assert terminal.run(coordinator.cli.app, name="coordinator", argv=argv) == 2
    shown = capsys.readouterr()
    assert given in shown.out + shown.err
    twice = ["--home", "a", "sites", "--home=a"]
    assert with_home(coordinator.cli.app, twice) == ["--home", "a", "sites"]
