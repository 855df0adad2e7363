"""Manual pages and completion are made of the command trees: no verb is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest
import typer
from stage.house.light_verbs import PROGRAMS

from shared.errors import CATALOGUE
from tests.stage.house.sources import ROOT


@pytest.fixture(scope="module")
def man():
    spec = importlib.util.spec_from_file_location("man", ROOT / "deploy" / "man.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_a_page_of_each_program_with_every_verb_and_every_exit_code(man, tmp_path):
    assert {name: module for name, (module, _) in PROGRAMS.items()} == man.PROGRAMS
    man.main(tmp_path)
    for name, module in man.PROGRAMS.items():
        page = (tmp_path / "man1" / f"{name}.1").read_text(encoding="utf-8")
        root = typer.main.get_command(importlib.import_module(module).app)
        for path, command in man.commands(root, (name,)):
            assert f".SS {man.roff(' '.join(path))}\n" in page
            assert all(man.roff(one.opts[0]) in page for one in command.params if one.param_type_name == "option")
        assert all(code in page for code in CATALOGUE)
    if shutil.which("groff"):
        pages = sorted((tmp_path / "man1").iterdir())
        read = subprocess.run(["groff", "-man", "-ww", "-Tutf8", *pages], capture_output=True, text=True)
        assert read.stderr == ""


def test_no_command_lists_more_than_twelve_options_at_a_time(man):
    """``--help`` shows each group in a list of its own; ``--help`` itself stands among those without a group."""
    lists = Counter()
    for name, module in man.PROGRAMS.items():
        for path, command in man.commands(typer.main.get_command(importlib.import_module(module).app), (name,)):
            lists[path, None] += 1
            for one in command.params:
                if one.param_type_name == "option" and not one.hidden:
                    lists[path, one.rich_help_panel] += 1
    assert len(lists) > 100
    assert [found for found in lists.items() if found[1] > 12] == []


def test_a_shell_is_told_the_verbs_that_begin_so(capfd):
    env = {
        **os.environ,
        "_SITE_AGENT_COMPLETE": "complete_bash",
        "COMP_WORDS": "site-agent plan app",
        "COMP_CWORD": "2",
    }
    said = subprocess.run([sys.executable, "-m", "site_agent.cli"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert said.stdout.split() == ["approve"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell, capsys, monkeypatch):
    from shared.terminal import run

    monkeypatch.setenv("_ANALYST_COMPLETE", "")  # taken back afterwards
    module, name = PROGRAMS["analyst"]
    assert run(getattr(importlib.import_module(module), name), name="analyst", argv=["--completion", shell]) == 0
    assert "_ANALYST_COMPLETE=complete_" in capsys.readouterr().out
