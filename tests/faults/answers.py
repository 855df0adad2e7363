"""Parsers of what other programs answer or hand over: an identity provider, a browser, a log, files of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from coordinator.analyst.access.log_check import audit
from coordinator.analyst.own.table import read_table
from coordinator.planning.published import Published
from coordinator.web.interface.operations import OPERATIONS
from coordinator.web.sign_in import provider
from coordinator.web.sign_in.kept import SignInStore
from faults.fuzz import Target
from shared.base.canonical import canonical_json, parse_json
from shared.base.merkle.tree import append, leaf_hash, peaks_root
from shared.errors import NetworkRefusal, SchemaRefusal
from shared.estimands.questions import parse_estimand
from shared.plans.codebook import from_codebook
from shared.plans.dictionary import Column, Dictionary
from shared.plans.redcap import from_redcap
from shared.wire.tree_heads import CheckedView, TreeHead, proven_release

__all__ = ["answers"]

ISSUER, CLIENT = "https://idp.example.org", "tributary"
REDCAP = """\
"Variable / Field Name","Form Name","Section Header","Field Type","Field Label",\
"Choices, Calculations, OR Slider Labels","Field Note","Text Validation Type OR Show Slider Number",\
"Text Validation Min","Text Validation Max","Identifier?","Branching Logic (Show field only if...)","Required Field?",\
"Custom Alignment","Question Number (surveys only)","Matrix Group Name","Matrix Ranking?","Field Annotation"
record_id,base,,text,Record,,,,,,,,,,,,,
age,base,,text,Age (years),,,integer,18,110,,,y,,,,,
sex,base,,radio,Sex,"1, Male | 2, Female",,,,,,,,,,,,
fup,base,,text,Follow-up,,,number_2dp,0,10,,,,,,,,"@TRIBUTARY={""kind"": ""time""}"
"""
DDI = """<codeBook xmlns="ddi:codebook:2_5"><dataDscr>
<var name="age" intrvl="contin" dcml="1"><labl>Age</labl><valrng><range UNITS="REAL" min="18" max="110"/></valrng>
<invalrng><item VALUE="-9"/></invalrng></var>
<var name="sex" intrvl="discrete"><labl>Sex</labl><catgry><catValu>1</catValu><labl>male</labl></catgry>
<catgry missing="Y"><catValu>9</catValu></catgry><catgry><catValu>2</catValu></catgry></var></dataDscr></codeBook>
"""
MARGINS = """\
between = 0.1
[columns.age]
mean = 62
sd = 13
[columns.died]
share = 0.1
[effects]
"age/10" = 0.4
[correlations]
"age, died" = 0.2
"""
TRIALS = "study,yi,vi,n\nA,0.1,0.02,40\nB,-0.3,0.05,61\n"


def answers(folder: Path) -> Iterator[Target]:
    """One target for each; `folder` holds the files that they are given."""
    yield Target("provider's answers", (_of_provider(),), _signed_in(folder / "sign-ins"))
    yield Target("provider's refusal", (b'{"error": "slow_down"}',), provider._error_of)
    yield Target("web's question", _asked(), _read)
    yield from _log()
    for name, text, read in (
        ("codebook.xml", DDI, lambda path: from_codebook(path, name="book")),
        ("trials.csv", TRIALS, read_table),
    ):
        yield Target(f"file: {name}", (text.encode(),), _file(folder / name, read), "text")
    parquet = folder / "trials.parquet"
    pd.DataFrame({"study": ["A", "B"], "yi": [0.1, -0.3]}).to_parquet(parquet)
    yield Target("file: trials.parquet", (parquet.read_bytes(),), _file(parquet, read_table), "bytes", apart=True)
    redcap = REDCAP.encode()
    yield Target("file: REDCap's", (redcap,), lambda data: from_redcap(_text(data), name="book"), "text")
    columns = (Column(name="age", kind="integer", lower=18, upper=110), Column(name="died", kind="binary"))
    question, words = parse_estimand("logistic(died) ~ age/10"), Dictionary(name="d", version=1, columns=columns)
    yield Target(
        "published margins", (MARGINS.encode(),), lambda data: Published.read(_text(data), question, words), "text"
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def run(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return run


# -- an identity provider ----------------------------------------------------------------------------------------
def _of_provider() -> bytes:
    """What one says in a sign-in, from its configuration to who it is."""
    claims = {
        "iss": ISSUER,
        "aud": CLIENT,
        "sub": "42",
        "iat": 1_000_000,
        "exp": 2_000_000,
        "nonce": "n",
        "preferred_username": "Ada",
        "tributary_role": ["analyst"],
        "tributary_studies": ["cvd", "mini"],
    }
    ends = ("authorization_endpoint", "token_endpoint", "jwks_uri", "device_authorization_endpoint")
    places = {name: f"{ISSUER}/{name}" for name in (*ends, "introspection_endpoint", "userinfo_endpoint")}
    device = {"device_code": "d", "user_code": "AB-CD", "verification_uri": f"{ISSUER}/go", "expires_in": 600}
    given = {
        "configuration": {"issuer": ISSUER, **places},
        "claims": claims,
        "header": {"alg": "ES256", "kid": "1"},
        "token": {"access_token": "a", "refresh_token": "r"},
        "keys": [],
        "device": {**device, "interval": 5},
        "active": {"active": True},
    }
    return canonical_json(given)


def _signed_in(folder: Path) -> Callable[[bytes], object]:
    from joserfc import jwt
    from joserfc.jwk import ECKey

    from coordinator.store.store import Store

    folder.mkdir()
    kept = SignInStore(Store.open(folder))
    key = ECKey.generate_key("P-256", {"kid": "1"})

    class Said(provider.Provider):
        """A provider whose every document is given, its token signed with its own key."""

        def __init__(self, said: Mapping[str, Any]) -> None:
            own = {"issuer": ISSUER, "client_id": CLIENT, "redirect": "https://hub/back"}
            super().__init__(**own, kept=kept, now=lambda: 1_500_000.0)
            self._said = said

        async def _fetched(
            self, url: str, form: Mapping[str, str] | None = None, *, bearer: str = ""
        ) -> dict[str, Any]:
            names = {"configuration": "configuration", "device_auth": "device", "introspection": "active"}
            names |= {"userinfo": "active", "jwks": "keys", "token": "token"}
            name = next((name for part, name in names.items() if part in url), "")
            found: Any = self._said.get(name)
            if name == "keys":
                own = key.as_dict(private=False)
                found = {"keys": [own, *found] if isinstance(found, list) else found}
            if name == "token" and isinstance(found, dict) and "id_token" not in found:
                found = {**found, "id_token": self._token()}
            return dict(found) if isinstance(found, dict) else {}

        def _token(self) -> Any:
            header, claims = self._said.get("header"), self._said.get("claims")
            try:
                return jwt.encode(header, claims, key)  # type: ignore[arg-type]
            except Exception:  # our own signing refuses a header that nobody would sign
                return header

    async def run(said: Mapping[str, Any]) -> object:
        asked = Said(said)
        cookie, _ = await asked.begin()
        begun = kept.find("begun", cookie)
        assert begun is not None
        claims = said.get("claims")
        if isinstance(claims, dict) and claims.get("nonce") == "n":
            asked._said = {**said, "claims": {**claims, "nonce": begun.content["nonce"]}}
        await asked.device()
        person = await asked.finish(cookie, {"state": begun.content["state"], "code": "c"})
        return await asked.confirmed(person)

    def taken(data: bytes) -> object:
        try:
            given = json.loads(data)  # as httpx reads it: what is no JSON is refused there
        except (ValueError, RecursionError):
            raise NetworkRefusal("the provider must answer") from None
        return asyncio.run(run(given if isinstance(given, dict) else {}))

    return taken


# -- a browser, or any program ---------------------------------------------------------------------------------------
def _asked() -> tuple[bytes, ...]:
    """A call of each operation with every setting that it has."""
    values: dict[str, Any] = {"str": "mini", "int": 3, "float": 0.5, "bool": True, "int | None": 3}
    named = {"label": "exploratory", "suffix": "svg"}
    seeds = []
    for one in OPERATIONS:
        given = {name: named.get(name, values.get(str(field.type), {})) for name, (field, _) in one.elsewhere.items()}
        path = {name: named.get(name, "mini") for name in one.in_path}
        if one.verb == "POST":
            seeds.append({"name": one.name, "path": path, "query": {}, "body": given})
        else:
            query = {n: "true" if v is True else "3" if isinstance(v, int) else v or "mini" for n, v in given.items()}
            query |= {name: "1,2" for name, (_, kind) in one.elsewhere.items() if kind == tuple[int, ...]}
            seeds.append({"name": one.name, "path": path, "query": query, "body": None})
    return tuple(canonical_json(seed) for seed in seeds)


def _read(data: bytes) -> object:
    given = parse_json(data)
    known = {one.name: one for one in OPERATIONS}
    try:
        one, path, query, body = (given[name] for name in ("name", "path", "query", "body"))
        # A path and a query are texts, whoever sends them.
        texts = all(isinstance(value, str) for part in (path, query) for value in part.values())
        if not texts or one not in known or set(path) != set(known[one].in_path):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SchemaRefusal("a call must be made as HTTP carries it") from None
    return known[one].read(path, query, body)


# -- a coordinator's log, as analysts read it ----------------------------------------------------------------------
def _log() -> Iterator[Target]:
    release = {"kind": "release", "statement": "ab" * 32, "bundle": "cd" * 32, "site": "north"}
    closing = {"kind": "wave_closed", "study": "mini", "wave": 1}
    others = ({**release, "kind": "withdrawal"}, closing, {"kind": "revocation", "site": "north"})
    entries = [canonical_json(one).decode() for one in (release, *others)]
    studies = {"mini": [{"bundle_sha256": "cd" * 32, "withdrawn": "2026-01-05"}]}

    def head(said: list[str]) -> TreeHead:
        peaks: tuple[bytes, ...] = ()
        for place, entry in enumerate(said):
            peaks = append(peaks, place, leaf_hash(entry.encode("utf-8", "surrogateescape")))
        return TreeHead(coordinator="hub", size=max(len(said), 1), root=peaks_root(peaks).hex(), day="2026-01-05")

    def audited(data: bytes) -> object:
        """A head that is true of the entries: a coordinator signs what it likes."""
        given = parse_json(data)
        said = given if isinstance(given, list) and all(isinstance(one, str) for one in given) else []
        view = CheckedView(head=head(said), envelope=b"{}", grew=(), restored=())
        return audit(view, said, studies, {"revocations": [], "closings": []})

    def proven(data: bytes) -> object:
        given = parse_json(data)
        if not isinstance(given, dict):
            raise SchemaRefusal("a log's part of an answer must be an object")
        return proven_release(given, "cd" * 32, head(entries[:1]))

    shown = {"entries": {"cd" * 32: {"index": 0, "entry": entries[0], "proof": []}}, "nodes": {}}
    yield Target("log's entries", (canonical_json(entries),), audited)
    yield Target("log's proof", (canonical_json(shown),), proven)
