"""The airlock page in German: every text and sentence is in the catalogue, and what is signed stays as it is signed."""

# ruff: noqa: F811  (fixtures are imported by their names)
from __future__ import annotations

import html
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from stage.browser.page import PATHS, TOKEN, browser, decision, ready, released  # noqa: F401
from stage.hospital_side.audits import full_report
from stage.hospital_side.site_desk import PASSPHRASE, hospital  # noqa: F401

from shared.privacy.stated import CHARGED_BEFORE, FLOW, shown_price
from site_agent.show.page.language import COOKIE, NAMES, SENTENCE, language, read

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "deploy"))
import catalogues  # noqa: E402

OTHERS = [code for code in NAMES if code != "en"]
PLACES = re.compile(r"%\(\w+\)s|\{\d+\}|<[^>]+>")
SIGNED = re.compile(r'<ul class="signed" lang="en">(.*?)</ul>', re.DOTALL)
ENGLISH = re.compile(r'<span class="as-said" lang="en">(.*?)</span>', re.DOTALL)


@pytest.mark.parametrize("code", OTHERS)
def test_a_catalogue_has_what_the_sources_say_and_nothing_is_left_untranslated(code):
    path = ROOT / "site_agent/show/page/languages" / f"{code}.po"
    assert catalogues.written(code) == path.read_bytes(), "make catalogues writes what is new"
    for one in read(code):
        if one.id:
            forms = [one.string] if isinstance(one.string, str) else list(one.string)
            assert all(forms), one.id


@pytest.mark.parametrize("code", OTHERS)
def test_a_translation_has_the_places_and_the_mark_up_of_its_text(code):
    for one in read(code):
        if not one.id:
            continue
        sources, said = ([part] if isinstance(part, str) else list(part) for part in (one.id, one.string))
        for text in said:
            wanted = {tuple(sorted(PLACES.findall(source))) for source in sources}
            assert tuple(sorted(PLACES.findall(text))) in wanted, text
            if one.context == SENTENCE:
                assert text.endswith(".") == sources[0].endswith("."), text


def test_numbers_and_days_are_written_as_in_german():
    german = language("de")
    assert german.value("12,345.6") == "12.345,6"
    assert german.value("2026-11-27") == "27.11.2026"
    assert german.translated(shown_price(401.2, FLOW)) == "401,2 bei gegebenem Flow"
    assert german.translated(shown_price(2.5, delta=1e-6)) == "ε = 2,5 bei δ = 1e-06"
    assert german.translated(shown_price(2.5, CHARGED_BEFORE, delta=1e-6)) == (
        "ε = 2,5 bei δ = 1e-06, bei gegebenem Flow, der früher belastet wurde"
    )
    assert german.translated("a release must hold at least 1,000 persons") == (
        "eine Datenfreigabe muss mindestens 1.000 Personen enthalten"
    )


def test_every_page_is_in_german_but_for_what_is_signed(ready, browser):
    release_id = released(ready)
    page, shown = ready.json("plan", "show", "mini"), ready.json("outbox", "show", release_id)
    # The fixture's attack is none: what one says is looked at below.
    signed = {"Attacks we tried on 300 released rows; others may do better."}
    signed |= {
        " ".join(str(one).split())
        for facts in (page, shown)
        for one in (*facts.get("covered", ()), *facts["not_covered"])
    }
    for path in ("/login", *PATHS, f"/release/{release_id}", f"/release/{release_id}/preview", "/data/mini"):
        if path == "/":
            browser.login()
        answer = browser.get(path, Accept_Language="de-CH, en;q=0.5")
        assert answer.status == 200, path
        assert '<html lang="de"' in answer.text, path
        for block in SIGNED.findall(answer.text):
            signed |= {
                " ".join(html.unescape(line).split()) for line in re.findall(r"<li>(.*?)</li>", block, re.DOTALL)
            }
        left = {" ".join(html.unescape(text).split()) for text in ENGLISH.findall(answer.text)}
        assert left <= signed, path
    words = browser.get(f"/release/{release_id}", Accept_Language="de").words
    for said in ("Datenfreigabe", "keine ist getroffen", "eine Datenfreigabe muss mindestens 50 Personen enthalten"):
        assert said in words


def test_what_an_audit_says_is_told_in_german_to_the_last_sentence():
    german = language("de")
    for sentence in full_report().sentences():
        assert "as-said" not in german.said(sentence), sentence
    told = "300 of 310 real rows are unlike all others; by chance about 0.5 would be hit; 2 are hit"
    assert german.translated(told) == (
        "300 von 310 echten Zeilen sind allen anderen unähnlich; durch Zufall würden etwa 0,5 getroffen; "
        "2 sind getroffen"
    )


def test_the_reader_chooses_and_is_asked_no_more(ready, browser):
    browser.login()
    token = TOKEN.search(browser.get("/").text).group(1)
    chosen = browser.ask("POST", "/language", {"csrf": token, "language": "de", "back": "/budget"})
    assert (chosen.status, chosen.headers["Location"]) == (303, "/budget")
    assert f"{COOKIE}=de" in chosen.headers["Set-Cookie"]
    browser.cookie += f"; {COOKIE}=de"
    assert "Was jeder Person belastet werden darf" in browser.get("/budget", Accept_Language="en").words
    assert browser.ask("POST", "/language", {"csrf": token, "language": "xx"}).status == 403


def test_what_is_signed_is_shown_in_the_words_of_the_signature(ready, browser, plan):
    page = ready.json("plan", "show", "mini")
    browser.login()
    words = browser.get("/plans", Accept_Language="de").words
    for said in (*page["covered"], *page["not_covered"], page["hash"]):
        assert said in words


def test_a_refusal_is_told_in_german_with_its_code(ready, browser, plan):
    release_id = released(ready)
    given = decision(ready, release_id)
    browser.login()
    token = TOKEN.search(browser.get("/").text).group(1)
    answer = browser.ask(
        "POST",
        f"/release/{release_id}/approve",
        {**given, "csrf": token, "passphrase": PASSPHRASE + "x"},
        Accept_Language="de",
    )
    assert "E_PASSPHRASE" in answer.words
    assert "die Passphrase muss die Schlüsseldatei" in answer.words
    assert ENGLISH.findall(answer.text) == []
    ready.publish(replace(plan, version=2, title="Andere"))
    ready("plan", "fetch", "mini")
    assert "hier nicht freigegeben" in browser.get("/plans", Accept_Language="de").words
