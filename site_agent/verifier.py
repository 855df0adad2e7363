"""Checks an audit export of Tributary with nothing but Python and the `cryptography` package.

Run ``python verify.py`` in the folder it lies in. It reads the other files and nothing else, opens no connection and
changes nothing. What it shows: the record was signed entry by entry by one key, no entry was changed or reordered, and
each release that is told here was approved by named people, over the bytes named, under a plan that the keys named as
the lead's had signed, before it was delivered. What it cannot show: whose the keys are (compare the fingerprints with
the hospital and with the study lead), what stands behind entries of which only the link is here (the site says: other
studies; compare the deliveries with the coordinator's log), what the released rows are (they are not in the export;
name bundle files on the command line to check theirs), or that an ε is right (recompute it from the receipt's event).
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

TYPE = "application/vnd.tributary.%s+json"


class Wrong(Exception):
    """Something is not as it was signed."""


def must(holds: object, what: str) -> None:
    """Stop at the first thing that is wrong."""
    if not holds:
        raise Wrong(what)


def sha(data: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: Any) -> bytes:
    """The one spelling of a JSON value that is hashed and signed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def signed(key: str, signature: bytes, kind: str, payload: bytes) -> bool:
    """Whether `signature` is that of the Ed25519 key (hexadecimal) over DSSE's encoding of type and payload."""
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def opened(path: Path, kind: str, keys: dict[str, str]) -> tuple[Any, set[str], bytes]:
    """An envelope's content, the names of those of `keys` that signed it, and its bytes."""
    body = json.loads(path.read_bytes())
    must(body["payloadType"] == TYPE % kind, f"{path.name} must be a {kind}")
    payload = base64.b64decode(body["payload"], validate=True)
    content = json.loads(payload)
    must(canonical(content) == payload, f"{path.name} must be in canonical form")
    values = [base64.b64decode(given["sig"], validate=True) for given in body["signatures"]]
    names = {name for name, key in keys.items() if any(signed(key, v, TYPE % kind, payload) for v in values)}
    return content, names, payload


def ledger(folder: Path, keys: dict[str, Any]) -> list[dict[str, Any]]:
    """Every entry, the chain and all signatures checked; of other studies only the link is here."""
    entries: list[dict[str, Any]] = json.loads((folder / "ledger.json").read_bytes())
    head = "0" * 64
    for number, entry in enumerate(entries, start=1):
        link = entry.get("link")
        if link is None:
            link = sha(canonical({name: entry[name] for name in ("seq", "time", "kind", "body")}))
        head = sha(bytes.fromhex(head) + bytes.fromhex(link))
        must(entry["seq"] == number and entry["hash"] == head, f"entry {number} must follow from those before it")
        payload = canonical({"site": keys["site"], "seq": number, "head": head})
        whole = signed(keys["release_key"], bytes.fromhex(entry["signature"]), TYPE % "ledger-head", payload)
        must(whole, f"entry {number} must be signed by the site's release key")
    first = entries[0].get("body", {})
    own = first.get("release_key") == keys["release_key"] and first.get("site") == keys["site"]
    must(own, "the first entry must name this site and its key")
    return entries


def acknowledged(folder: Path, keys: dict[str, Any], entries: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """(release, digest) of every acceptance that the coordinator's pinned key signed; all its answers are checked."""
    kinds = {"seq": "anchor-receipt", "accepted_day": "acceptance", "withdrawn_day": "withdrawn"}
    out = set()
    for said in json.loads((folder / "acknowledged.json").read_bytes()):
        body = {name: value for name, value in said.items() if name not in ("kind", "signature")}
        payload = canonical({**body, "site": keys["site"]})
        (kind,) = (kinds[name] for name in kinds if name in body)
        whole = signed(keys["witness_key"], bytes.fromhex(said["signature"]), TYPE % kind, payload)
        must(whole, "each answer of the coordinator must be signed by its pinned key")
        must(said["kind"] != "Fork", "the coordinator must not have signed two histories: see acknowledged.json")
        if said["kind"] == "AnchorReceipt":
            # What a ledger that was put back had witnessed before, it has counted as spent and no longer holds.
            gone = said["seq"] <= max((e["body"]["seq"] for e in entries if e.get("kind") == "recovered"), default=0)
            here = 0 < said["seq"] <= len(entries) and entries[said["seq"] - 1]["hash"] == said["head"]
            must(here or gone, "a witnessed head must be one of this ledger")
        elif said["kind"] == "Acceptance":
            out.add((said["release_id"], said["bundle_sha256"]))
    return out


def mark(key: str) -> str:
    """A key's fingerprint as people read it aloud."""
    digest = sha(bytes.fromhex(key))[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def standings(entries: list[dict[str, Any]], keys: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every standing approval in the ledger: its content, its signature checked, and from where to where it held."""
    out: dict[str, dict[str, Any]] = {}
    for entry in entries:
        body = entry.get("body", {})
        if entry.get("kind") == "standing":
            text = json.loads(body["envelope"])
            payload = base64.b64decode(text["payload"], validate=True)
            said = json.loads(payload)
            must(
                sha(payload) == body["standing"] and canonical(said) == payload, "a standing approval must be as noted"
            )
            key = keys["approvers"].get(said["approver"], "")
            values = [base64.b64decode(given["sig"], validate=True) for given in text["signatures"]]
            own = text["payloadType"] == TYPE % "standing" and body["name"] == said["approver"] and key
            own = own and any(signed(key, value, TYPE % "standing", payload) for value in values)
            must(own, "a standing approval must be signed by the person it names")
            out[body["standing"]] = {**said, "from": entry["seq"], "to": len(entries) + 1}
        ended = [body["standing"]] if entry.get("kind") == "standing_revoked" else []
        if entry.get("kind") in ("plan_revoked", "left"):
            ended = [digest for digest, one in out.items() if one["study"] == body["study"]]
        for digest in ended:
            out[digest]["to"] = min(out[digest]["to"], entry["seq"])
    return out


def stood_in(
    entry: dict[str, Any], given: dict[str, Any] | None, charged: dict[str, Any], keys: dict[str, Any]
) -> bool:
    """Whether a standing approval was good for the release it approved, as far as the ledger tells."""
    return given is not None and (
        given["from"] < entry["seq"] < given["to"]
        and (given["site"], given["study"]) == (keys["site"], charged["study"])
        and given["approver"] == entry["body"]["name"]
        and keys["approvers"].get(given["approver"]) == entry["body"]["key"]
        and given["plan_hash"] == charged["plan_hash"]
        and charged["epsilon"] <= given["max_epsilon"]
        and entry["time"][:10] <= given["until"]
    )


def release(
    folder: Path,
    told: list[dict[str, Any]],
    keys: dict[str, Any],
    plans: dict[str, dict[str, Any]],
    standing: dict[str, dict[str, Any]],
    left: bool,
) -> str:
    """One release: its entries, statement, receipt, checks, decisions and withdrawal agree. Returns: its digest.

    Once the site has left the study its files are gone, and the ledger names them.
    """
    name = folder.name
    by = {entry["kind"]: entry for entry in told}
    seal = by["seal"]["body"]
    people, agent = keys["approvers"], {"agent": keys["release_key"]}
    stated, signers, payload = opened(folder / "statement.json", "release", {**people, **agent})
    must("agent" in signers, f"{name}: the statement must be signed by the site")
    must(stated["ledger_head"] == by["seal"]["hash"], f"{name}: the statement must name its seal")
    for item in ("bundle_sha256", "bundle_bytes", "receipt_sha256", "recipient", "plan_version"):
        must(stated[item] == seal[item], f"{name}: {item} must be the sealed one")
    # A reservation that waited was carried over to a later wave, perhaps of a later plan, at the same price.
    start, charged = by["reserve"], dict(by["reserve"]["body"])
    for entry in told:
        if entry["kind"] == "carry" and entry["seq"] < by["seal"]["seq"]:
            start = entry
            charged |= {item: entry["body"][item] for item in ("wave", "plan_hash")}
    must(stated["plan_hash"] == charged["plan_hash"], f"{name}: it must be of the plan that was charged")
    signed_before = plans.get(charged["plan_hash"], {}).get("approved", [])
    must(any(seq < start["seq"] for seq in signed_before), f"{name}: its plan must have been approved before")
    for entry in told:
        if entry["kind"] in ("reject", "send_back"):
            body = entry["body"]
            said = {"release_id": name, "bundle_sha256": seal["bundle_sha256"], "decision": entry["kind"]}
            said |= {"by": body["by"], "reason_sha256": sha(body["reason"].encode())}
            own = people.get(body["by"]) == body.get("key") and body.get("key")
            own = own and signed(body["key"], bytes.fromhex(body["signature"]), TYPE % "decline", canonical(said))
            must(own, f"{name}: who declines must be a registered person, and sign it")
    if "commit" in by:
        commit = by["commit"]
        agreed: list[dict[str, Any]] = []
        for entry in told:
            # Showing other documents, or sending back, voids what was approved before.
            agreed = [] if entry["kind"] in ("hold", "send_back") else agreed
            if entry["kind"] == "approve" and entry["seq"] < commit["seq"]:
                here, who = entry["body"].get("standing"), entry["body"]["name"]
                # A person takes the place of a standing approval: of their own, or of one that did not serve.
                over = not here and len(agreed) >= seal["approvals"]
                agreed = [body for body in agreed if not (body.get("standing") and (over or body["name"] == who))]
                agreed += [entry["body"]]
                if here:
                    good = stood_in(entry, standing.get(here), charged, keys)
                    must(good, f"{name}: a standing approval must be good for the release it approved")
        advance = [body["name"] for body in agreed if body.get("standing")]
        must(len(advance) <= 1, f"{name}: one standing approval at most stands in for a person")
        for body in (body for body in agreed if not body.get("standing")):
            value = bytes.fromhex(body["signature"])
            own = people.get(body["name"]) == body["key"] and signed(body["key"], value, TYPE % "release", payload)
            must(own, f"{name}: each approval must be of a registered person, over the statement")
        names = {body["name"] for body in agreed}
        must(len(names) >= max(1, seal["approvals"]), f"{name}: enough people must have approved before delivery")
        must(names <= signers | set(advance), f"{name}: the statement must carry their signatures")
        apart = not seal.get("author_apart") or stated["author"] not in names
        must(apart, f"{name}: whoever had it made must not have approved it")
        must(
            commit["body"]["bundle_sha256"] == stated["bundle_sha256"], f"{name}: what arrived must be what was sealed"
        )
    must(left or (folder / "receipt.json").exists(), f"{name}: its receipt must be here")
    must(left or "hold" not in by or (folder / "checks.json").exists(), f"{name}: its checks must be here")
    if (folder / "receipt.json").exists():
        data = (folder / "receipt.json").read_bytes()
        receipt = json.loads(data)
        must(sha(data) == stated["receipt_sha256"], f"{name}: the receipt must be the sealed one")
        same = all(receipt[item] == charged[item] for item in ("event", "epsilon", "delta", "wave"))
        must(same, f"{name}: the receipt must state the charged event and price")
    if (folder / "checks.json").exists():
        data = (folder / "checks.json").read_bytes()
        must(sha(data) == by["hold"]["body"]["documents"]["checks.json"], f"{name}: the checks must be those shown")
        must(json.loads(data)["bundle_sha256"] == stated["bundle_sha256"], f"{name}: they must be of these bytes")
    for path in sorted(folder.glob("decision-*.json")):
        said, names, _ = opened(path, "decision", people)
        must(said["approver"] in names, f"{name}: a decision must be signed by the person it names")
        must(said["bundle_sha256"] == stated["bundle_sha256"], f"{name}: a decision must be about these bytes")
    if (folder / "withdrawal.json").exists():
        said, names, _ = opened(folder / "withdrawal.json", "withdrawal", {**people, **agent})
        must({"agent", by["withdraw"]["body"]["by"]} <= names, f"{name}: a withdrawal must carry two signatures")
        must(said["release_id"] == name, f"{name}: a withdrawal must be of this release")
    return str(stated["bundle_sha256"])


def check(folder: Path, bundles: list[Path]) -> list[str]:
    """Check everything; the sentences to print. Raises: Wrong."""
    keys = json.loads((folder / "keys.json").read_bytes())
    manifest, names, _ = opened(folder / "manifest.json", "audit-export", {"agent": keys["release_key"]})
    must(names, "the list of files must be signed by the site's release key")
    there = {
        p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    must(there == {"manifest.json", *manifest["files"]}, "the folder must hold exactly the files of its list")
    for name, digest in manifest["files"].items():
        must(sha((folder / name).read_bytes()) == digest, f"{name} must be as it was exported")
    entries = ledger(folder, keys)
    must(manifest["head"] == entries[-1]["hash"], "the export must end with the head that was signed")
    plans: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / "plans").glob("plan-*.json")):
        _, leads, payload = opened(path, "plan", keys["leads"])
        must(len(leads) >= keys["threshold"], f"{path.name} must be signed by the study lead")
        plans[sha(payload)] = {"approved": []}
    for path in sorted((folder / "plans").glob("approval-*.json")):
        said, names, _ = opened(path, "plan-approval", keys["approvers"])
        must(said["approver"] in names and said["plan_hash"] in plans, f"{path.name} must be a signed approval")
    for entry in entries:
        if entry.get("kind") == "plan_approved" and entry["body"]["plan_hash"] in plans:
            plans[entry["body"]["plan_hash"]]["approved"].append(entry["seq"])
    standing = standings(entries, keys)
    told: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if "release_id" in entry.get("body", {}):
            told.setdefault(entry["body"]["release_id"], []).append(entry)
    sealed = {name for name, list_ in told.items() if any(entry["kind"] == "seal" for entry in list_)}
    must(sealed == {p.name for p in (folder / "releases").glob("*")}, "every sealed release must be in the export")
    left = any(entry.get("kind") == "left" for entry in entries)
    digests = [release(folder / "releases" / name, told[name], keys, plans, standing, left) for name in sorted(sealed)]
    accepted = acknowledged(folder, keys, entries)
    arrived = [e["body"] for list_ in told.values() for e in list_ if e["kind"] == "commit"]
    told_of = {(body["release_id"], body["bundle_sha256"]) for body in arrived}
    must(accepted <= told_of or lost(entries), "every delivery that the coordinator acknowledged must be told here")
    countersigned = sum((body["release_id"], body["bundle_sha256"]) in accepted for body in arrived)
    for path in bundles:
        must(sha(path.read_bytes()) in digests, f"{path.name} must be one of the sealed bundles")
    withheld = sum("link" in entry for entry in entries)
    whose = {"site": keys["release_key"], **{f"study lead {name}": key for name, key in keys["leads"].items()}}
    whose |= {f"approver {name}": key for name, key in keys["approvers"].items()}
    whose |= {"coordinator": keys["witness_key"]} if keys.get("witness_key") else {}
    return [
        f"{len(manifest['files'])} files are as they were exported.",
        f"{len(entries)} ledger entries follow from each other and are signed; {withheld} of them are links only.",
        f"{len(plans)} plans are signed by the study lead.",
        f"{len(sealed)} releases: statement, receipt, checks, approvals and delivery agree.",
        *([f"{len(standing)} standing approvals are signed, and good for what they approved."] if standing else []),
        f"{countersigned} of {len(arrived)} deliveries are acknowledged under the coordinator's signature.",
        *([f"{len(bundles)} bundle files are sealed ones."] if bundles else []),
        *(
            ["What stands behind the links is not shown here; compare the deliveries with the coordinator:"]
            if withheld
            else []
        ),
        "Compare these keys with the people they belong to:",
        *(f"  {name}: {mark(key)}" for name, key in whose.items()),
    ]


def lost(entries: list[dict[str, Any]]) -> bool:
    """Whether the ledger was once put back: then it lacks what was delivered in between, and says what it counted."""
    return any(entry.get("kind") == "recovered" for entry in entries)


def main() -> int:
    """0 when everything holds, 1 when something does not."""
    try:
        for line in check(Path(__file__).resolve().parent, [Path(name) for name in sys.argv[1:]]):
            sys.stdout.write(f"{'✓ ' if line.endswith('.') else ''}{line}\n")
    except (Wrong, OSError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        sys.stdout.write(f"✗ {error if isinstance(error, Wrong) else f'a file is damaged ({type(error).__name__})'}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
