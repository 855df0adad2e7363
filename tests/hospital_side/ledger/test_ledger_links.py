"""An entry of the ledger is hashed from the bytes that lie there: to the same link, and nothing else passes for it."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.chain import GENESIS, extend_head
from shared.errors import LedgerRefusal
from site_agent.ledger import entries
from site_agent.ledger.entries import link_of, read_entries

TIME = "2026-01-01T00:00:00Z"
ODD = st.sampled_from(["rdp", "tags", "kept", ",", "]", '"rdp":[1.0]', ',"tags":["a"]', '"kept":{}', "é", "a\\"])
WORDS = ODD | st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
TAGS = st.lists(st.sampled_from([sha256_hex(b"heart"), sha256_hex(b"lung")]), unique=True)
BODIES = st.builds(
    lambda own, tags, kept, rdp: {**own, **kept, **rdp, "salt": "00", "tags": tags},
    st.dictionaries(WORDS, VALUES, max_size=3).map(lambda own: {k: v for k, v in own.items() if k != "kept"}),
    TAGS,
    st.just({}) | st.dictionaries(WORDS, VALUES, max_size=3).map(lambda kept: {"kept": kept}),
    st.just({}) | VALUES.map(lambda rdp: {"rdp": rdp}) | st.just({"rdp": [0.5, 1e-6, None]}),
)


def row(kind, raw, body):
    """The first entry of a ledger, with the hash that follows from what `body` says."""
    return (1, TIME, kind, raw, GENESIS, extend_head(GENESIS, [link_of(1, TIME, kind, body)]), b"")


UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@UNHURRIED
@given(body=BODIES, kind=st.sampled_from(["reserve", "drawing"]))
def test_every_entry_is_read_as_it_is_written(body, kind):
    [entry] = read_entries([row(kind, canonical_json(body), body)], cached=False)
    assert entry.body == body
    assert entry.link == link_of(1, TIME, kind, body)
    assert copy.deepcopy(entry.body) == body


@UNHURRIED
@given(body=BODIES, other=BODIES, kind=st.sampled_from(["reserve", "drawing"]))
def test_another_body_never_has_the_hash(body, other, kind):
    if other != body:
        with pytest.raises(LedgerRefusal):
            read_entries([row(kind, canonical_json(other), body)], cached=False)


BODY = {
    "event": {"event": "gaussian", "sigma": 4.0},
    "kept": {"persons": 70},
    "rdp": [0.5, None],
    "salt": "00",
    "tags": [sha256_hex(b"heart")],
    "wave": 1,
}
TEXT = canonical_json(BODY)
TAG = b',"tags":["' + sha256_hex(b"heart").encode() + b'"]'
KEPT = b'"kept":{"persons":70}'
DIGEST = b'"kept":"' + sha256_hex(b'{"persons":70}').encode() + b'"'
FORGED = {
    "smaller": TEXT.replace(b"4.0", b"9.0"),
    "spaced": TEXT.replace(b'"wave":1', b'"wave": 1'),
    "another spelling": TEXT.replace(b"4.0", b"4.00"),
    "escaped": TEXT.replace(b"gaussian", b"g\\u0061ussian"),
    "a tag less": TEXT.replace(TAG, b',"tags":[]'),
    "tags first": b'{"tags"' + TAG.removeprefix(b',"tags"') + b"," + TEXT.replace(TAG, b"")[1:],
    "tags last": TEXT.replace(TAG, b"")[:-1] + TAG + b"}",
    "tags in a part": TEXT.replace(TAG, b"").replace(b'"sigma":4.0', b'"sigma":4.0' + TAG),
    "tags twice": TEXT.replace(b'"sigma":4.0', b'"sigma":4.0' + TAG),
    "no tags": TEXT.replace(TAG, b""),
    "what is kept by its digest": TEXT.replace(KEPT, DIGEST),
    "other counts": TEXT.replace(b"70", b"71"),
    "what is kept in a part": TEXT.replace(KEPT, DIGEST).replace(b'"sigma":4.0', b'"k":1,' + KEPT),
    "a name twice": TEXT[:-1] + b',"wave":1}',
    "a curve twice": TEXT[:-1] + b',"rdp":[0.5,null]}',
    "a curve in a part": TEXT.replace(b',"rdp":[0.5,null]', b"").replace(b"4.0", b'4.0,"rdp":[0.5,null]'),
    "another curve": TEXT.replace(b"[0.5,null]", b"[0.25,null]"),
    "a curve and a comma": TEXT.replace(b"[0.5,null],", b"[0.5,null],,"),
    "cut off": TEXT[:-1],
    "two in one": TEXT + TEXT,
}


@pytest.mark.fault("F17")
@pytest.mark.parametrize("kind", ["reserve", "drawing"])
@pytest.mark.parametrize("raw", FORGED.values(), ids=FORGED)
def test_no_other_bytes_pass_for_an_entry(raw, kind):
    read_entries([row(kind, TEXT, BODY)], cached=False)
    assert raw != TEXT
    with pytest.raises(LedgerRefusal, match="entry 1 must"):
        read_entries([row(kind, raw, BODY)], cached=False)


def test_what_stands_in_a_part_as_well_is_read_by_the_definition():
    beside = {"kept": BODY["kept"], "more": {"a": 1, "tags": BODY["tags"]}}
    body = {**BODY, "event": {**BODY["event"], "parts": [beside]}}
    [entry] = read_entries([row("drawing", canonical_json(body), body)], cached=False)
    assert entry.body == body


def test_a_curve_of_a_part_is_not_the_bodys():
    """Whoever has the key may write what they like, but not an entry that two programs read as two."""
    raw = b'{"event":{"a":1,"rdp":[0.5]},"salt":"00","tags":[]}'
    assert entries._body("reserve", raw) == parse_json(raw)
    for wrong in (b'{,"rdp":[0.5]}', b'{"a":1,"rdp":[0.5],}', b'["a","rdp":[0.5]]'):
        with pytest.raises(Exception, match="JSON"):
            entries._body("reserve", wrong)
