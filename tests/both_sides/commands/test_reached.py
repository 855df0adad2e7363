"""One command of a program, made alone, is the command of the whole program, and refuses in the same words."""

from __future__ import annotations

import importlib

import pytest
import typer
from stage.house.light_verbs import PROGRAMS
from typer.main import get_command

from shared.terminal import run
from shared.terminal.reached import reached


def app_of(program):
    module, attribute = PROGRAMS[program]
    return getattr(importlib.import_module(module), attribute)


def walked(command, path=()):
    """(words, command) of every group and every verb."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walked(inner, (*path, name))


def facts(command):
    return [
        (one.name, one.opts, one.secondary_opts, one.type.name, one.default, one.required, one.nargs, one.help)
        for one in command.params
    ]


def answered(app, program, words, capsys):
    try:
        code = run(app, name=program, argv=words)
    except SystemExit as leave:
        code = leave.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_verb_that_is_made_alone_has_the_options_of_the_whole_program(program):
    app, verbs = app_of(program), 0
    for words, whole in walked(get_command(app)):
        alone = get_command(reached(app, words))
        for word in words:
            alone = alone.commands[word]
        assert (type(alone), alone.name, alone.help, facts(alone)) == (
            *(type(whole), whole.name, whole.help),
            facts(whole),
        )
        verbs += not hasattr(whole, "commands")
    assert verbs


@pytest.mark.parametrize("program", ["coordinator", "site-agent", "analyst"])
def test_of_a_program_only_the_verb_that_is_named_is_made(program):
    app = app_of(program)
    sizes = {
        words: sum(not hasattr(one, "commands") for _, one in walked(get_command(reached(app, words))))
        for words, whole in walked(get_command(app))
        if not hasattr(whole, "commands")
    }
    assert max(sizes.values()) <= 2 < len(sizes)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_refused_is_refused_as_by_the_whole_program(program, monkeypatch, capsys):
    app, lines = app_of(program), []
    for words, command in walked(get_command(app)):
        inner = list(getattr(command, "commands", ()))
        if inner:
            wrong = (["nonsense"], ["nonsense", inner[0]], ["--bogus", inner[0]], [inner[0][:-1]], ["--help", inner[0]])
            lines += [[*words, *more] for more in wrong]
            lines += [[*words, inner[-1], "--bogus=1"], ["--json", *words, inner[-1], "--bogus"]]
    for line in lines:
        alone = answered(app, program, line, capsys)
        with monkeypatch.context() as patched:
            patched.setattr("shared.terminal.reached.reached", lambda whole, _: whole)
            assert answered(app, program, line, capsys) == alone, line
        assert "--help" in line or alone[0], line


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["one"], {"one"}),
        (["--home", "one", "inner", "two"], {"inner"}),
        (["--home=x", "one"], {"one"}),
        (["inner"], {"inner"}),
        (["one", "--help"], {"one", "three", "inner"}),
        (["--help", "x", "one"], {"one", "three", "inner"}),
        (["four", "one"], {"one", "three", "inner"}),
        ([], {"one", "three", "inner"}),
    ],
)
def test_words_reach_what_the_program_would_run(words, made):
    app, inner = typer.Typer(), typer.Typer()
    app.callback()(lambda home="": None)
    for name in ("one", "three"):
        app.command(name)(lambda: None)
    inner.command("two")(lambda: None)
    app.add_typer(inner, name="inner")
    found = set(get_command(reached(app, words)).commands)
    assert made <= found
    assert len(found) <= max(2, len(made))
