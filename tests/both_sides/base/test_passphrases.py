"""Whence a passphrase comes, what is said before it is typed, and how it is changed."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import getpass
import json
import sys

import pytest
from stage.hospital_side.site_desk import PASSPHRASE, hospital  # noqa: F401

from coordinator import cli
from shared.base.keys import SigningKey
from shared.base.passphrases import changed, chosen, opened
from shared.errors import ParameterError, PassphraseRefusal, UsageRefusal
from site_agent.desk import open_desk
from site_agent.show.page.access import PAUSE, TRIES, KeyOpener

NEW = "four words nobody guesses"


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in ("TRIBUTARY_PASSPHRASE", "TRIBUTARY_NEW_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def typing(monkeypatch):
    """A person who types these answers; what was asked is kept."""
    asked: list[str] = []

    def sit_down(*answers: str) -> list[str]:
        left = iter(answers)

        def answer(prompt: str, stream: object = None) -> str:
            asked.append(prompt)
            return next(left)

        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(getpass, "getpass", answer)
        return asked

    return sit_down


@pytest.fixture
def path(tmp_path):
    SigningKey.generate().save(tmp_path / "ada.pem", PASSPHRASE)
    return tmp_path / "ada.pem"


def coordinator(capsys, home, *words: object) -> tuple[int, dict]:
    code = cli.main(["--home", str(home), *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_length_is_said_before_a_passphrase_is_typed_and_a_short_one_may_be_typed_again(typing):
    asked = typing("short", "long enough, this one", "with a slip", NEW, NEW)
    assert chosen("ada") == NEW
    assert "at least 12 characters" in asked[0]
    assert len(asked) == 5


def test_after_three_tries_a_new_passphrase_is_refused_with_its_reason(typing):
    typing("short", "shorter", "no")
    with pytest.raises(ParameterError, match="12 characters, got 2"):
        chosen("ada")


def test_a_lead_may_have_no_passphrase_and_an_approver_must(typing):
    typing("", "", "", "")
    assert chosen("lead", optional=True) is None
    with pytest.raises(ParameterError, match="12 characters"):
        chosen("ada")


def test_a_wrong_passphrase_may_be_typed_again(typing, path):
    typing("correct hearse", PASSPHRASE)
    assert opened(path, "ada").public
    typing("wrong", "wrong", "wrong")
    with pytest.raises(PassphraseRefusal, match="Type it once more"):
        opened(path, "ada")


def test_without_a_terminal_a_passphrase_is_missing_and_not_wrong(path):
    with pytest.raises(UsageRefusal, match="no terminal to ask on") as refused:
        opened(path, "dr-lind")
    assert "TRIBUTARY_PASSPHRASE_DR_LIND" in refused.value.next_step


def test_a_passphrase_is_changed_and_the_key_stays(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_ADA", PASSPHRASE)
    with pytest.raises(UsageRefusal, match="new passphrase of ada"):
        changed(path, "ada")
    monkeypatch.setenv("TRIBUTARY_NEW_PASSPHRASE", PASSPHRASE)
    with pytest.raises(ParameterError, match="another one"):
        changed(path, "ada")
    monkeypatch.setenv("TRIBUTARY_NEW_PASSPHRASE", "too short")
    with pytest.raises(ParameterError, match="12 characters"):
        changed(path, "ada")
    monkeypatch.setenv("TRIBUTARY_NEW_PASSPHRASE", NEW)
    assert changed(path, "ada", dry_run=True).public
    assert path.read_bytes() == before
    key = changed(path, "ada")
    assert SigningKey.load(path, NEW).public == key.public
    with pytest.raises(PassphraseRefusal):
        SigningKey.load(path, PASSPHRASE)


def test_the_site_changes_an_approvers_passphrase(hospital, monkeypatch):
    hospital.joined()
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", PASSPHRASE)
    monkeypatch.setenv("TRIBUTARY_NEW_PASSPHRASE", NEW)
    assert hospital.json("passphrase", "--as", "dr-lind", "--dry-run")["changed"] is False
    assert hospital.json("passphrase", "--as", "dr-lind")["changed"] is True
    path = hospital.home / "keys/approvers/dr-lind.pem"
    assert SigningKey.load(path, NEW).public.hex == open_desk(hospital.home).config.approvers["dr-lind"]
    assert hospital.json("passphrase", "--as", "dr-lind", expect=30)["refused"]["code"] == "E_PASSPHRASE"
    hospital.refused("passphrase", "--as", "mallory", expect=2)


def test_a_short_passphrase_leaves_no_half_made_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "short")
    code, answer = coordinator(capsys, tmp_path / "hub", "init", "--name", "hub")
    assert (code, answer["refused"]["code"]) == (2, "E_PARAMETER")
    assert not (tmp_path / "hub").exists()


def test_a_lead_without_a_passphrase_gets_one_and_then_must_give_it(tmp_path, monkeypatch, capsys):
    hub = tmp_path / "hub"
    assert coordinator(capsys, hub, "init", "--name", "hub")[0] == 0
    public = (hub / "keys/lead.pub").read_text().strip()
    monkeypatch.setenv("TRIBUTARY_NEW_PASSPHRASE_LEAD", NEW)
    assert coordinator(capsys, hub, "passphrase", "lead", "--dry-run")[1]["changed"] is False
    assert SigningKey.load(hub / "keys/lead.pem").public.hex == public
    assert coordinator(capsys, hub, "passphrase", "lead")[1]["changed"] is True
    assert SigningKey.load(hub / "keys/lead.pem", NEW).public.hex == public
    code, answer = coordinator(capsys, hub, "passphrase", "lead")
    assert (code, answer["refused"]["given"]) == (2, "no terminal to ask on"), "none was given: that is not a wrong one"
    assert coordinator(capsys, hub, "passphrase", "nobody")[0] == 2


def test_after_five_wrong_passphrases_the_page_tries_no_more_for_a_while(hospital):
    now = [0.0]
    desk, opener = open_desk(hospital.joined("dr-lind", "dr-berg").home), KeyOpener(clock=lambda: now[0])
    for _ in range(TRIES):
        with pytest.raises(PassphraseRefusal, match="must open"):
            opener.opened(desk, "dr-lind", "a guess")
    with pytest.raises(PassphraseRefusal, match="after a pause, got 5 wrong ones in a row"):
        opener.opened(desk, "dr-lind", PASSPHRASE)
    assert opener.opened(desk, "dr-berg", PASSPHRASE).public
    now[0] = PAUSE + 1
    with pytest.raises(PassphraseRefusal, match="must open"):
        opener.opened(desk, "dr-lind", "a guess")
    now[0] += PAUSE + 1  # the second pause is twice as long
    with pytest.raises(PassphraseRefusal, match="after a pause"):
        opener.opened(desk, "dr-lind", PASSPHRASE)
    now[0] += PAUSE
    assert opener.opened(desk, "dr-lind", PASSPHRASE).public
    with pytest.raises(PassphraseRefusal, match="must open"):
        opener.opened(desk, "dr-lind", "a guess")
