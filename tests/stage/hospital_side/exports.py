"""An audit export: what its own script says of it, and records that a site has falsified."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from stage.hospital_side.site_desk import PASSPHRASE, Hospital

from shared.base.canonical import canonical_json, sha256_hex
from shared.base.chain import GENESIS, extend_head
from shared.base.keys import Envelope, SigningKey
from site_agent.ledger.book import HEAD_TYPE
from site_agent.show import verifier
from site_agent.show.export import EXPORT_TYPE


def verified(folder: Path, *bundles: Path) -> str:
    """What is wrong; empty when everything holds."""
    try:
        verifier.check(folder, list(bundles))
    except verifier.Wrong as wrong:
        return str(wrong)
    except (KeyError, ValueError):
        return "damaged"
    return ""


def resigned(site: Hospital, folder: Path, change) -> str:
    """What the script says of a record that the site itself falsified: listed and signed anew."""
    key = SigningKey.load(site.home / "keys" / "release.pem")
    change(folder)
    if getattr(change, "chained", False):
        chained(folder, key)
    if getattr(change, "relived", False):
        relive(folder, site.home / "keys")
    body = json.loads(Envelope.from_bytes((folder / "manifest.json").read_bytes()).payload)
    body["head"] = json.loads((folder / "ledger.json").read_bytes())[-1]["hash"]
    body["files"] = {
        path.relative_to(folder).as_posix(): sha256_hex(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    (folder / "manifest.json").write_bytes(Envelope.sign(EXPORT_TYPE, canonical_json(body), [key]).to_bytes())
    return verified(folder)


def rewritten(name: str, change):
    def work(folder: Path) -> None:
        (path,) = sorted(folder.glob(name))[:1]
        body = json.loads(path.read_bytes())
        change(body)
        path.write_bytes(canonical_json(body))

    return work


def chained(folder: Path, key: SigningKey) -> None:
    entries = json.loads((folder / "ledger.json").read_bytes())
    head = GENESIS
    for number, entry in enumerate(entries, start=1):
        entry["seq"] = number
        said = {name: entry[name] for name in ("time", "kind", "body")} if "body" in entry else {}
        inner = sha256_hex(canonical_json(said)) if said else entry["told"]
        link = sha256_hex(canonical_json({"seq": number, "tags": entry["tags"], "told": inner}))
        entry["hash"] = head = extend_head(head, [link])
        payload = canonical_json({"site": "north", "seq": number, "head": head})
        entry["signature"] = key.sign(Envelope.encoding(HEAD_TYPE, payload)).hex()
    (folder / "ledger.json").write_bytes(canonical_json(entries))


@functools.cache
def key_of(path: Path) -> SigningKey:
    return SigningKey.load(path, PASSPHRASE if path.parent.name == "approvers" else None)


def relive(folder: Path, keys: Path) -> None:
    entries, release = json.loads((folder / "ledger.json").read_bytes()), key_of(keys / "release.pem")
    head, moved, stated = GENESIS, {}, {}
    for number, entry in enumerate(entries, start=1):
        old, body = entry["hash"], entry["body"]
        entry["seq"] = number
        if entry["kind"] == "anchor":
            body["seq"], body["head"] = moved[body["head"]]
        if entry["kind"] == "approve":
            message = Envelope.encoding(STATED, canonical_json(stated[body["release_id"]]))
            body["signature"] = key_of(keys / "approvers" / f"{body['name']}.pem").sign(message).hex()
        inner = sha256_hex(canonical_json({name: entry[name] for name in ("time", "kind", "body")}))
        link = sha256_hex(canonical_json({"seq": number, "tags": entry["tags"], "told": inner}))
        entry["hash"] = head = extend_head(head, [link])
        payload = canonical_json({"site": "north", "seq": number, "head": head})
        entry["signature"] = release.sign(Envelope.encoding(HEAD_TYPE, payload)).hex()
        moved.setdefault(old, (number, head))
        if entry["kind"] == "seal":
            path = folder / "releases" / body["release_id"] / "statement.json"
            said = json.loads(Envelope.from_bytes(path.read_bytes()).payload)
            stated[body["release_id"]] = {**said, "ledger_head": head}
    for name, said in stated.items():
        who = {e["body"]["name"] for e in entries if e["kind"] == "approve" and e["body"]["release_id"] == name}
        signers = [release, *(key_of(keys / "approvers" / f"{one}.pem") for one in sorted(who))]
        path = folder / "releases" / name / "statement.json"
        path.write_bytes(Envelope.sign(STATED, canonical_json(said), signers).to_bytes())
    (folder / "ledger.json").write_bytes(canonical_json(entries))


STATED = "application/vnd.tributary.release+json"
