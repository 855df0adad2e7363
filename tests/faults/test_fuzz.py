"""A few of the cases that `faults.fuzz` makes by the million, in every run of the suite, others each day."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable

import pytest
from hurry import soak

from faults.fuzz import TARGETS, fuzz
from shared.errors import Refusal


@pytest.mark.fault("F12")
@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_no_parser_of_strangers_bytes_does_anything_but_read_or_refuse(tally):
    seed = int(os.environ.get("TRIBUTARY_PART") or dt.date.today().toordinal())
    print(f"seed {seed}: TRIBUTARY_PART={seed} repeats it")
    cases = soak(40, 16_000, usual=400)
    wrong = {}
    for name, target in TARGETS.items():
        found = fuzz(target, seed=seed, cases=cases)
        tally(cases=found.cases)
        if found.wrong:
            wrong[name] = found.wrong
    assert wrong == {}


def _said(**changes: object) -> Callable[[bytes], bytes]:
    """The document with other values; of a post-box, its first answer with them."""

    def change(seed: bytes) -> bytes:
        body = json.loads(seed)
        one = body["answers"][0] if "answers" in body and not changes.keys() & body.keys() else body
        one.update(changes)
        for name in [name for name, value in one.items() if value is ...]:
            del one[name]
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    return change


def _twice(seed: bytes) -> bytes:
    body = json.loads(seed)
    body["answers"].insert(1, body["answers"][1])
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


FOUND: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("post-box: list", _said(call=...)),
    ("post-box: list", _said(sha256=...)),
    ("post-box: list", _said(method={})),
    ("post-box: list", _said(answers_to=[])),
    ("post-box: list", _said(answers_to="x")),
    ("change of keys", _said(new={})),
    (
        "certificate request",
        lambda seed: seed.replace(b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x03\x01\x47"),
    ),
    (
        "certificate request",
        lambda seed: seed.replace(b"\x2a\x86\x48\xce\x3d\x02\x01", b"\x2a\x86\x48\xce\x3d\x02\x47"),
    ),
    ("bundle: manifest", _said(rows=2**40)),
    ("bundle: manifest", _said(rows=2**80)),
    ("log's entries", lambda seed: b'["-1"]'),
    ("log's entries", lambda seed: b'["{}"]'),
    ("log's entries", lambda seed: b'["{\\"kind\\":\\"release\\",\\"site\\":\\"north\\"}"]'),
    ("file: REDCap's", lambda seed: seed.replace(b"record_id", b"record\rid")),
    ("trained flow", _said(event="x")),
    ("extract: xpt", lambda seed: seed.replace(b"\x00person", b"\x00\x00erson")),
    ("published margins", lambda seed: seed.replace(b"62", b"9" * 400)),
    ("provider's answers", lambda seed: seed.replace(b"example.org/authorization", b"example.org/\\u007f", 1)),
]


@pytest.mark.fault("F12")
@pytest.mark.parametrize(("name", "change"), FOUND, ids=lambda value: value if isinstance(value, str) else "")
def test_what_was_once_no_refusal_is_one(name, change):
    target = TARGETS[name]
    given = change(target.seeds[0])
    assert given != target.seeds[0]
    with pytest.raises(Refusal):
        target.run(given)


@pytest.mark.fault("F12")
def test_a_call_that_a_post_box_answers_twice_is_taken_once():
    """As an honest one does where a site asks for what all sites are told."""
    target = TARGETS["post-box: list"]
    target.run(_twice(target.seeds[0]))
