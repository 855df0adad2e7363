"""Checks an audit export of Tributary with nothing but Python and the `cryptography` package.

Run ``python verify.py`` in the folder it lies in, or ``python verify.py FOLDER`` for an export that lies elsewhere. It
reads the files of that export and nothing else, opens no connection and changes nothing. What it shows: the record was
signed entry by entry by one key; no entry was changed, reordered or, if it is about this study, left out; what became
of each charge follows the agent's own rules, step by step; each release was drawn under a plan that the keys named as
the lead's had signed and that a person had approved, the signed approval in the ledger with its tick on what the
posture leaves open; and each delivery that the ledger notes was approved before by named people, over the bytes named,
a tick on each warning that the outcomes name.

``--coordinator-list FILE`` takes what the coordinator signed of this site (there: ``coordinator log list SITE STUDY
--out FILE``), and shows that the record is the whole of it: every head that the coordinator witnessed is one of this
ledger, every release it accepted is told here, and the site names no more studies than it takes part in.

What it cannot show: whose the keys are (compare the fingerprints with the hospital, the study lead and the
coordinator); that the site's software was ours, wrote down what it found and asked the person who ticked, because an
agent that lies from the start signs its lies as it goes; what the released rows are (they are not in the export; name
bundle files on the command line to check theirs); what was done outside the agent; or that an ε is right (recompute it
from the receipt's event; of a secure sum this is done here, for each group of hospitals that the receipt names). Where
it does not know, a line begins with "!".
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import itertools
import json
import math
import re
import signal
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

TYPE = "application/vnd.tributary.%s+json"
FORMATS = ("tributary-ledger/2", "tributary-ledger/3")
LEAVES_PERSONS_OPEN = ("local", "holdout")
"""Postures that must be approved with a tick on what they leave open."""
MOVES: dict[str, tuple[set[str], str]] = {
    "anchor": ({"reserved", "anchored"}, "anchored"),
    "carry": ({"reserved", "anchored"}, "anchored"),
    "persons_confirmed": ({"reserved", "anchored"}, "anchored"),
    "drawing": ({"anchored"}, "drawing"),
    "train": ({"anchored"}, "training"),
    **dict.fromkeys(("round", "witnessed", "answer"), ({"training", "delivered"}, "training")),
    "sum_consented": ({"delivered"}, "delivered"),
    "trained": ({"training"}, "trained"),
    "seal": ({"drawing"}, "sealed"),
    "hold": ({"sealed", "held", "sent_back"}, "held"),
    "send_back": ({"held", "sent_back"}, "sent_back"),
    "approve": ({"held", "sent_back", "approved"}, "held"),
    "commit": ({"approved"}, "delivered"),
    "reject": ({"sealed", "held", "sent_back"}, "rejected"),
    "burn": ({"reserved", "anchored", "drawing", "training", "sealed", "held", "sent_back", "approved"}, "burnt"),
    "withdraw": ({"reserved", "anchored", "training", "sealed", "held", "sent_back", "approved", "delivered"}, "burnt"),
    "tombstone": ({"withdrawn", "burnt"}, "withdrawn"),
}
"""Each step of a charge: the states it may follow, and the state it leads to."""
WITNESSED = ("anchor", "witnessed")
"""Kinds of entry that name a head which the coordinator has witnessed."""
NOTHING = "0" * 64
Body = dict[str, Any]
Files = dict[str, bytes]


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
    """True if `signature` is that of the Ed25519 key (hexadecimal) over DSSE's encoding of type and payload."""
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def people(keys: Body) -> dict[str, list[str]]:
    """The keys of each person who may sign: of those who approve here, and of those who did and no longer do."""
    out = {name: [key] for name, key in keys["approvers"].items()}
    for name, former in keys.get("retired_approvers", {}).items():
        out[name] = [*out.get(name, []), *former]
    return out


def opened(name: str, data: bytes, kind: str, keys: dict[str, list[str]]) -> tuple[Any, set[str], bytes]:
    """An envelope's content, the names of those of `keys` that signed it, and its bytes."""
    body = json.loads(data)
    must(body["payloadType"] == TYPE % kind, f"{name} must be a {kind}")
    payload = base64.b64decode(body["payload"], validate=True)
    content = json.loads(payload)
    must(canonical(content) == payload, f"{name} must be in canonical form")
    values = [base64.b64decode(given["sig"], validate=True) for given in body["signatures"]]
    names = {n for n, own in keys.items() if any(signed(key, v, TYPE % kind, payload) for key in own for v in values)}
    return content, names, payload


def gaussians(event: Body) -> list[float]:
    """Of each Gaussian mechanism that an event is made of, in its order: (sensitivity / σ)²."""
    if event["event"] == "composition":
        return [one for part in event["events"] for one in gaussians(part)]
    must(event["event"] == "gaussian", "what a secure sum is charged must be made of Gaussian noise")
    return [(event["sensitivity"] / event["sigma"]) ** 2]


def gaussian_epsilon(squares: float, delta: float) -> float:
    """The ε of Gaussian mechanisms whose (sensitivity / σ)² add up to `squares` (Balle and Wang 2018, theorem 8)."""
    mu, low, high = math.sqrt(squares), 0.0, 700.0
    for _ in range(200):
        middle = (low + high) / 2
        far, near = (math.erfc((middle / mu + side * mu / 2) / math.sqrt(2)) / 2 for side in (1, -1))
        low, high = (low, middle) if near - math.exp(middle) * far <= delta else (middle, high)
    return high


def who_looks(release: Body, event: Body, delta: float) -> dict[int, float]:
    """Of a secure sum: number of hospitals that tell the coordinator all they have -> ε of every patient of the others.

    The charged event has the sum's noise as it is where the plan's `colluders` do. The fewer hospitals' noise is
    unknown to those who look, the more the sum tells; with more than the masks withstand, only a hospital's own is.
    """
    sites, lost, colluders = len(release["members"]), release["drop_outs"], release["colluders"]
    withstood = 2 * (sites - lost) - sites - 1
    *seen, summed = gaussians(event)
    found = {}
    for many in sorted({0, colluders, sites // 2, sites - 1}):
        hidden = max(sites - lost - many, 1) if many <= withstood else 1
        found[many] = gaussian_epsilon(sum(seen) + summed * (sites - lost - colluders) / hidden, delta)
    return found


def mark(key: str) -> str:
    """A key's fingerprint as people read it aloud."""
    digest = sha(bytes.fromhex(key))[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


# -- the ledger -----------------------------------------------------------------------------------------------------
def ledger(files: Files, keys: Body, study: str) -> list[Body]:
    """Every entry, the chain and all signatures checked; of other studies only what the chain needs is here.

    Each entry carries the tags of the studies that it is about (none: all of the site), and the tag of this study is
    known: no entry about it can be shown without what it says.
    """
    entries: list[Body] = json.loads(files["ledger.json"])
    made = keys.get("tag_keys") or [{"from": 1, "key": keys["release_key"], "proof": keys["study_tag"]}]
    of_study = canonical({"site": keys["site"], "study": study})
    for one in made:
        own = one["proof"] and signed(one["key"], bytes.fromhex(one["proof"]), TYPE % "study-tag", of_study)
        must(own or (not one["proof"] and one is not made[-1]), "the study's tag must be signed by the site's key")
    first = entries[0].get("body", {})
    chain = KeyChain(first.get("release_key", keys["release_key"]), keys, entries)
    head, tagged = NOTHING, False
    for number, entry in enumerate(entries, start=1):
        about, whole = entry.get("tags"), "body" in entry
        said = {name: entry[name] for name in ("time", "kind", "body")} if whole else {}
        if about is not None:
            link = sha(
                canonical({"seq": number, "tags": about, "told": sha(canonical(said)) if whole else entry["told"]})
            )
        else:
            link = sha(canonical({"seq": number, **said})) if whole else entry["link"]
        before, head = head, sha(bytes.fromhex(head) + bytes.fromhex(link))
        must(entry["seq"] == number and entry["hash"] == head, f"entry {number} must follow from those before it")
        if whole and entry["kind"] == "keys_changed":
            chain.follow(entry, before)
        payload = canonical({"site": keys["site"], "seq": number, "head": head})
        own = signed(chain.key, bytes.fromhex(entry["signature"]), TYPE % "ledger-head", payload)
        must(own, f"entry {number} must be signed by the site's release key")
        must(about is not None or not tagged, f"entry {number} must say which studies it is about")
        tagged = about is not None
        proof = [one["proof"] for one in made if one["from"] <= number][-1]
        tag = sha(bytes.fromhex(proof)) if proof else ""
        apart = whole or not tagged or (about and tag not in about)
        must(apart, f"entry {number} is about this study, and must be told")
        if whole and tagged:
            of = [entry["body"]["study"]] if "study" in entry["body"] else []
            of += [charge["study"] for charge in entry["body"].get("charges", ())] if entry["kind"] == "lost" else []
            must(study not in of or tag in (about or []) or not tag, f"entry {number} must carry the tag of its study")
            must(set(of) <= {study}, f"entry {number} must name the study whose tag it carries")
    named = (first.get("release_key"), first.get("site")) == (chain.keys[0], keys["site"])
    must(named, "the first entry must name this site and its key")
    must(chain.key == keys["release_key"], "the last release key must be the one that signs this export")
    must(made[-1]["proof"] == keys["study_tag"], "the study's tag must be signed by the site's key")
    own = [(one["from"], one["key"]) for one in made]
    must(own == chain.tags, "the keys of the tags must be those that the ledger names")
    keys["release_keys"], keys["key_chain"] = chain.keys, chain
    must(first.get("format") in FORMATS, "the ledger must be of a format that this script knows")
    must(first["format"] == FORMATS[0] or "tags" in entries[0], "entry 1 must say which studies it is about")
    for entry in entries:
        if entry.get("kind") in WITNESSED:
            at = entry["body"]["seq"]
            here = 1 <= at < entry["seq"] and entries[at - 1]["hash"] == entry["body"]["head"]
            must(here, f"entry {entry['seq']} must name a witnessed head of this ledger")
    return entries


class KeyChain:
    """The release keys of a ledger, one after the other, and who signed each change; who approved here, and when.

    Args:
        key: the one that signs the first entry.
        keys: every one so far.
        tags: (first entry, key) of those that made the tags of studies.
        changes: how many changes of keys and approvers there were.
        lost: (entry, whose key) of each that the key before has not signed.
        since, until: by approver's key, the entry by which it came into force here, and by which it ended.
        stands: by a deputy's key, for whom they stand in.
        last_days: by a deputy's key, the last day on which it signs anything.
        signed: (entry, how many approvers signed it, how many could have) of each change that was made here.
    """

    def __init__(self, key: str, keys: Body, entries: list[Body]) -> None:
        self.key, self.keys, self.tags, self.known = key, [key], [(1, key)], keys
        self.changes, self.last = 0, NOTHING
        self.lost: list[tuple[int, str]] = []
        self.since: dict[str, int] = {}
        self.until: dict[str, int] = {}
        self.stands: dict[str, str] = {}
        self.last_days: dict[str, str] = {}
        self.days = {entry["seq"]: entry["time"][:10] for entry in entries if "time" in entry}
        self.signed: list[tuple[int, int, int]] = []
        made = [entry["body"]["envelopes"] for entry in entries if entry.get("kind") == "keys_changed"]
        said = [json.loads(base64.b64decode(json.loads(text)["payload"])) for texts in made for text in texts]
        # Who joins later signs nothing before; whom nothing here ends may have left by hand, nobody knows when.
        self.joining = {one["new"] for one in said if one["role"] == "approver"}
        self.listed = {*keys.get("approvers", {}).values(), *self.joining, *(one["old"] for one in said)}

    def people_at(self, seq: int) -> dict[str, list[str]]:
        """The keys of each person who could sign entry `seq`: those that were in force there."""
        late, day = 1 << 62, self.days.get(seq, "")
        start = {key: self.since.get(key, late) for key in self.joining}
        over = {key for key, last in self.last_days.items() if day > last}
        return {
            name: [key for key in own if start.get(key, 0) < seq < self.until.get(key, late) and key not in over]
            for name, own in people(self.known).items()
        }

    def lasting(self, seq: int) -> set[str]:
        """Names of those who could sign entry `seq` and stood in for nobody."""
        here = self.people_at(seq)
        return {name for name, own in here.items() if (set(own) - self.stands.keys()) & self.listed}

    def follow(self, entry: Body, before: str) -> None:
        """Take the changes of an entry. Raises: Wrong: one that those who must have not signed, or of another place."""
        what, seq = f"entry {entry['seq']}: a change of keys", entry["seq"]
        again = entry["body"].get("again")
        must(len(entry["body"]["envelopes"]) == 1 or again, f"{what} must be one")
        for text in entry["body"]["envelopes"]:
            body = json.loads(text)
            claimed = json.loads(base64.b64decode(body["payload"]))
            shown = claimed["new"] if claimed["role"] in ("release", "approver") else ""
            # No person can have such a name: the agent's keys are nobody's word.
            known = {"the key before": [self.key], "the new key": [shown] if shown else []}
            # Who joined by an earlier change of this entry may sign a later one. A deputy signs none.
            here = {
                name: [key for key in own if key not in self.stands]
                for name, own in self.people_at(seq + 1 if again else seq).items()
            }
            said, signers, payload = opened(what, text.encode(), "key-change", {**here, **known})
            place = (said["site"], said["coordinator"]) == (self.known["site"], self.known["coordinator"])
            must(place, f"{what} must be of this site and its coordinator")
            must((said["number"], said["previous"]) == (self.changes + 1, self.last), f"{what} must follow the last")
            at = (said["seq"], said["head"]) == (seq - 1, before)
            must(at or again, f"{what} must be for the place where it stands")
            release, lost = said["role"] == "release", said["action"] == "replace"
            followed = "the key before" in signers or (release and lost)
            must(followed, f"{what} must be signed by the release key before it")
            must("the new key" in signers or not shown, f"{what} must be signed by the new key")
            # Whoever lost a key cannot sign with it: the others do, as far as there are any.
            able = {name for name, own in here.items() if set(own) & self.listed}
            able -= {said["name"]} if lost else set()
            named = signers & (here.keys() - ({said["name"]} if lost else set()))
            must(named or (lost and not release and not able), f"{what} must be signed by somebody who approves here")
            must(not release or said["old"] == self.key, f"{what} must begin at the key in force")
            if not again:
                self.signed.append((seq, len(named), len(able)))
            if lost:
                self.lost.append((seq, f"of {said['name']}" if said["name"] else "of the site"))
            if release:
                self.key = said["new"]
                self.keys.append(self.key)
                self.tags += [(seq, self.key)] if entry["body"].get("new_tags") else []
            elif said["role"] == "approver":
                self._person(said, seq)
            self.changes, self.last = said["number"], sha(payload)

    def _person(self, said: Body, seq: int) -> None:
        """Take a change of an approver. Who stood in for somebody who leaves does so no longer."""
        ended = [said["old"]] if said["old"] else []
        if said["action"] == "retire":
            ended += [key for key, name in self.stands.items() if name == said["name"]]
        for key in ended:
            self.until.setdefault(key, seq)
        if said["new"]:
            self.since[said["new"]] = seq
            stands = said.get("deputy_of") or self.stands.get(said["old"], "")
            last = said.get("until") or self.last_days.get(said["old"], "")
            self.stands |= {said["new"]: stands} if stands else {}
            self.last_days |= {said["new"]: last} if last else {}


class Acknowledged:
    """Answers to the site that the coordinator's pinned key has signed, verified.

    Args:
        places: (release, digest) of every acceptance, and its places in the log: two where a restored coordinator has
            accepted it again.
        heads: (entry, hash) of every head of the ledger that it witnessed.
        forks: answers that show another history of its log than others do: no fault of the site's.
        restored: number of signed notices that its log was restored from a backup.
    """

    def __init__(self, files: Files, keys: Body, entries: list[Body]) -> None:
        self.places: dict[tuple[str, str], set[int]] = {}
        self.heads: set[tuple[int, str]] = set()
        self.forks: list[Body] = []
        self.restored = 0
        for said in json.loads(files["acknowledged.json"]):
            if "signature" in said:
                self._reply(said, keys, entries)
            else:
                _, names, _ = opened("a head of the log", said["head"].encode(), "tree-head", pinned(keys))
                must(names, "each head of the coordinator's log must be signed by its pinned key")
                self.restored += said["kind"] == "Restored" and said["rewound"]
                if said["kind"] == "Fork":
                    self.forks.append(said)

    def _reply(self, said: Body, keys: Body, entries: list[Body]) -> None:
        kinds = {"seq": "anchor-receipt", "accepted_day": "acceptance", "withdrawn_day": "withdrawn"}
        body = {name: value for name, value in said.items() if name not in ("kind", "signature")}
        payload = canonical({**body, "site": keys["site"]})
        (kind,) = (kinds[name] for name in kinds if name in body)
        whole = signed(keys["witness_key"], bytes.fromhex(said["signature"]), TYPE % kind, payload)
        must(whole, "each answer of the coordinator must be signed by its pinned key")
        if said["kind"] == "Fork":
            self.forks.append(said)
        elif said["kind"] == "AnchorReceipt":
            # What a ledger that was put back had witnessed before, it has counted as spent and no longer holds.
            gone = 1 <= said["seq"] <= max((one["body"].get("seq", 0) for one in recoveries(entries)), default=0)
            must(gone or is_here(said, entries), "a witnessed head must be one of this ledger")
            self.heads.add((said["seq"], said["head"]))
        elif said["kind"] == "Acceptance":
            self.places.setdefault((said["release_id"], said["bundle_sha256"]), set()).add(said["log_index"])


def pinned(keys: Body) -> dict[str, list[str]]:
    """The coordinator's key that the site has pinned."""
    return {"coordinator": [keys["witness_key"]] if keys["witness_key"] else []}


def is_here(head: Body, entries: list[Body]) -> bool:
    """True if a witnessed head is one of this ledger."""
    return 1 <= head["seq"] <= len(entries) and bool(entries[head["seq"] - 1]["hash"] == head["head"])


def recoveries(entries: list[Body]) -> list[Body]:
    """Entries of a ledger that was put back: it lacks what was delivered in between, and counted or noted it."""
    return [entry for entry in entries if entry.get("kind") in ("lost", "recovered")]


# -- leads ----------------------------------------------------------------------------------------------------------
class LeadChain:
    """History of the study leads, from the ledger's changes of leads, each signed by enough of the leads before it.

    Args:
        sets: (first entry, keys, threshold) of each set of leads.
        known: every lead's key, present or former, by itself.
        changes: number of changes.
        open: contradictions and gaps between the ledger and the leads that the site names, in words.
    """

    def __init__(self, keys: Body, entries: list[Body]) -> None:
        now, former = frozenset(keys["leads"].values()), frozenset(keys.get("former_leads", {}).values())
        self.sets: list[tuple[int, frozenset[str], int]] = []
        self.changes, self.open, last = 0, list[str](), ""
        for entry in entries:
            if entry.get("kind") != "leads_changed":
                continue
            what, text = f"entry {entry['seq']}: a change of leads", entry["body"]["envelope"]
            claimed = json.loads(base64.b64decode(json.loads(text)["payload"]))
            before, after = frozenset(claimed["before"]), frozenset(claimed["after"])
            said, signers, payload = opened(what, text.encode(), "lead-change", {key: [key] for key in before | after})
            must(said["coordinator"] == keys["coordinator"], f"{what} must be of the site's coordinator")
            led = (before, said["threshold_before"])
            follows = not self.sets or (*led, said["previous"]) == (*self.sets[-1][1:], last)
            must(follows, f"{what} must follow the last")
            enough = 1 <= said["threshold_before"] <= len(signers & before)
            must(enough and after - before <= signers, f"{what} must be signed by those who led before, and who joins")
            self.sets += [] if self.sets else [(0, *led)]
            self.sets.append((entry["seq"], after, said["threshold"]))
            self.changes, last = self.changes + 1, sha(payload)
        if self.sets and self.sets[-1][1:] != (now, keys["threshold"]):
            self.open.append("the leads that the site names are not those to whom the changes in its ledger lead")
        if not self.sets or self.open:
            self.sets.append((0, now, keys["threshold"]))
        lost = former.difference(*(led for _, led, _ in self.sets))
        if lost:
            # Forgotten with a ledger that was put back: nothing shows how many of them had to sign.
            self.open.append(f"{len(lost)} former leads are named of whom no change in the ledger tells")
            self.sets.append((0, now | lost, 1))
        self.known = {key: [key] for _, led, _ in self.sets for key in led}

    def enough(self, signers: set[str], seq: int, least: int = 1, *, then: bool = False) -> bool:
        """True if as many signed as had to of those who led at some place up to entry `seq`; `then`, at that entry."""
        sets = [one for one in self.sets if one[0] <= seq]
        newest = max(at for at, _, _ in sets)
        return any(len(signers & led) >= max(count, least) for at, led, count in sets if at == newest or not then)

    def words(self, entries: list[Body], keys: Body) -> list[str]:
        """Warnings, one for each replacement of the coordinator's authority that the old authority has not signed.

        Raises: Wrong: a replacement or a grant is not signed by the leads, or a replacement not by the coordinator.
        """
        lines, types = [], {"study_granted": "grant", "study_ungranted": "grant"}
        own = {"the coordinator": [keys["witness_key"]]} if keys.get("witness_key") else {}
        for entry in entries:
            kind = entry.get("kind", "")
            if kind not in {*types, "authority_replaced"}:
                continue
            seq, body = entry["seq"], entry["body"]
            type_of = types.get(kind, "authority-replacement")
            what = f"entry {seq}: {'a grant' if kind in types else 'another authority'}"
            said, signers, _ = opened(what, body["envelope"].encode(), type_of, {**self.known, **own})
            place = (said["coordinator"], said.get("site", keys["site"])) == (keys["coordinator"], keys["site"])
            same = (
                (said["study"], said["granted"]) == (body["study"], kind == "study_granted") if kind in types else True
            )
            must(place and same, f"{what} must say what it says")
            must(self.enough(signers, seq), f"{what} must be signed by the study lead")
            if kind not in types:
                must(own.keys() <= signers, f"{what} must be signed by the coordinator")
                lines.append(
                    f"! entry {seq}: the coordinator's authority was replaced on {said['day']}: {said['reason']}"
                )
        return lines


# -- plans ----------------------------------------------------------------------------------------------------------
class VerifiedPlans:
    """The plans of the study, each signed by its lead, and when which of them was approved here.

    Args:
        at: (entry, plan's hash, approval or None where only the entry knows of it) in order; hash "" from where the
            approval was taken back.
    """

    def __init__(self, files: Files, keys: Body, study: str, entries: list[Body]) -> None:
        self.known: dict[str, Body] = {}
        self.at: list[tuple[int, str, Body | None]] = []
        chain = LeadChain(keys, entries)
        keys["lead_chain"] = chain
        signed_by: dict[int, tuple[str, set[str], str, int]] = {}
        for name, data in named(files, "plans/plan-"):
            plan, leads, payload = opened(name, data, "plan", chain.known)
            signed_by[plan["version"]] = (name, leads, sha(payload), plan["floors"].get("leads", 1))
            here = (plan["study"], plan["coordinator"]) == (study, keys["coordinator"])
            must(here, f"{name} must be of this study and its coordinator")
            self.known[sha(payload)] = plan
        earlier = 1
        for _, (name, leads, digest, asked) in sorted(signed_by.items()):
            taken = [entry["seq"] for entry in entries if entry.get("body", {}).get("plan_hash") == digest]
            # As many as it asks for, and as the version before did: one lead alone does not end that two must.
            enough = chain.enough(leads, min(taken, default=len(entries)), max(asked, earlier))
            must(enough, f"{name} must be signed by the study lead")
            if not chain.enough(leads, min(taken, default=len(entries)), max(asked, earlier), then=True):
                chain.open.append(f"{name} is signed by enough of those who led before, not when it was approved here")
            earlier = asked
        noted = {}
        for entry in entries:
            body = entry.get("body", {})
            if entry.get("kind") == "plan_approved":
                what = f"entry {entry['seq']}: the approval of a plan"
                must(body["plan_hash"] in self.known, f"{what} must be of a plan that is here")
                must("envelope" in body or "tags" not in entry, f"{what} must hold what the person signed")
                said = None
                if "envelope" in body:
                    persons = keys["key_chain"].people_at(entry["seq"])
                    said, names, payload = opened(what, body["envelope"].encode(), "plan-approval", persons)
                    must(
                        body["name"] == said["approver"] and body["name"] in names,
                        f"{what} must be signed by the person it names",
                    )
                    self.agrees(said, body, what)
                    noted[sha(payload)] = said
                self.at.append((entry["seq"], body["plan_hash"], said))
            elif entry.get("kind") in ("plan_revoked", "study_ungranted"):
                self.at.append((entry["seq"], "", None))
        undocumented = {
            (body["version"], body["plan_hash"], body["name"]): place for place, body in self.of_old(entries)
        }
        for name, data in named(files, "plans/approval-"):
            said, names, payload = opened(name, data, "plan-approval", people(keys))
            must(said["approver"] in names and said["plan_hash"] in self.known, f"{name} must be a signed approval")
            own = (said["plan_version"], said["plan_hash"], said["approver"])
            must(sha(payload) in noted or own in undocumented, f"{name} must be an approval that the ledger has noted")
            if own in undocumented:
                self.agrees(said, {"version": own[0], "plan_hash": own[1]}, name)
                place = undocumented[own]
                self.at = [(seq, plan, said if seq == place else was) for seq, plan, was in self.at]

    @staticmethod
    def of_old(entries: list[Body]) -> list[tuple[int, Body]]:
        """Approvals from before the ledger kept their documents: the file beside the plan is the last one's."""
        old = [e for e in entries if e.get("kind") == "plan_approved" and "envelope" not in e["body"]]
        return [(entry["seq"], entry["body"]) for entry in old]

    def agrees(self, said: Body, noted: Body, what: str) -> None:
        """An approval must be of the plan and version that the ledger noted, with the tick its posture asks for."""
        plan = self.known[noted["plan_hash"]]
        same = (said["plan_hash"], said["plan_version"]) == (noted["plan_hash"], noted["version"])
        same = same and noted["version"] == plan["version"] and said["study"] == plan["study"]
        same = same and said["posture"] == plan["posture"]
        must(same and said["dictionary_hash"] == sha(canonical(plan["dictionary"])), f"{what} must be of its plan")
        ticked = said["understood"] or plan["posture"] not in LEAVES_PERSONS_OPEN
        must(ticked, f"{what} must tick what posture {plan['posture']} leaves open")

    def approvals_at(self, seq: int) -> int:
        """Approvers whom the plan that was approved last before an entry asks for; 0 where none was, or no more."""
        last = [plan for place, plan, _ in self.at if place < seq and plan in self.known][-1:]
        return int(self.known[last[0]]["floors"]["approvals"]) if last else 0

    def memberships(self, keys: Body, entries: list[Body]) -> None:
        """Raises: Wrong: a grant that no lead signed, or a change of keys that fewer signed than the plan asked for."""
        keys["lead_words"] = keys["lead_chain"].words(entries, keys)
        for seq, count, able in keys["key_chain"].signed:
            asked = min(able, self.approvals_at(seq))
            must(count >= asked, f"entry {seq}: a change of keys must be signed by {asked} who approve here")
        for entry in entries:
            if entry.get("kind") == "persons_apart" and "tags" in entry:
                seq, chain = entry["seq"], keys["key_chain"]
                names = {one["name"] for one in signatures(entry["body"])} & chain.lasting(seq)
                asked = min(len(chain.lasting(seq)), self.approvals_at(seq))
                must(len(names) >= asked, f"entry {seq} (persons_apart) must be signed by {asked} who approve here")

    def in_force(self, plan_hash: str, seq: int, what: str) -> Body | None:
        """The approval of a plan at an entry. Raises: Wrong: the plan was not the approved one there."""
        last = [(plan, said) for place, plan, said in self.at if place < seq][-1:]
        must(last, f"{what}: its plan must have been approved before")
        must(last[0][0], f"{what}: its plan's approval must not have been revoked before")
        must(last[0][0] == plan_hash, f"{what}: its plan must be the one approved last before")
        return last[0][1]


def named(files: Files, start: str) -> list[tuple[str, bytes]]:
    """Files whose name begins with `start`."""
    return [(name, files[name]) for name in sorted(files) if name.startswith(start)]


# -- standing approvals ---------------------------------------------------------------------------------------------
def standings(entries: list[Body], keys: Body) -> dict[str, Body]:
    """Every standing approval in the ledger: its content, its signature checked, and from where to where it held."""
    out: dict[str, Body] = {}
    for entry in entries:
        body = entry.get("body", {})
        if entry.get("kind") == "standing":
            what = f"entry {entry['seq']}: a standing approval"
            persons = keys["key_chain"].people_at(entry["seq"])
            said, names, payload = opened(what, body["envelope"].encode(), "standing", persons)
            must(sha(payload) == body["standing"], f"{what} must be as noted")
            must(
                body["name"] == said["approver"] and body["name"] in names,
                f"{what} must be signed by the person it names",
            )
            out[body["standing"]] = {**said, "from": entry["seq"], "to": len(entries) + 1}
        ended = [body["standing"]] if entry.get("kind") == "standing_revoked" else []
        if entry.get("kind") in ("plan_revoked", "left", "study_ungranted"):
            ended = [digest for digest, one in out.items() if one["study"] == body["study"]]
        for digest in ended:
            out[digest]["to"] = min(out[digest]["to"], entry["seq"])
    return out


# -- decisions about the site ---------------------------------------------------------------------------------------
PERSONS = {"persons_withdrew", "persons_confirmed", "persons_apart"}
DECIDED = PERSONS | {"plan_revoked", "standing_revoked", "left", "resumed", "sum_consented"}


def signatures(body: Body) -> list[Body]:
    """Signatures of a decision: that of the person it names, and those of its co-signers."""
    return [body, *body.get("beside", [])]


def decided(entries: list[Body], keys: Body) -> int:
    """Number of signed decisions about the site: each names the entry before it, and is good there only."""
    found = 0
    for before, entry in itertools.pairwise(entries):
        body, kind = entry.get("body", {}), entry.get("kind")
        if "tags" not in entry or not (kind in DECIDED or (kind == "paused" and "signature" in body)):
            continue
        said = {name: value for name, value in body.items() if name not in ("salt", "key", "signature", "beside")}
        payload = canonical({"site": keys["site"], "kind": kind, "previous": before["hash"], "body": said})
        for one in signatures(body):
            own = one.get("key") in keys["key_chain"].people_at(entry["seq"]).get(one.get("name"), [])
            own = own and signed(one["key"], bytes.fromhex(one["signature"]), TYPE % "site-decision", payload)
            must(own, f"entry {entry['seq']} ({kind}) must be signed by the person it names")
        found += 1
    return found


# -- releases -------------------------------------------------------------------------------------------------------
class VerifiedRelease:
    """One sealed release: its entries in order, and its files.

    Once the site has left the study its files are gone (`gone`), and the ledger names them. Where the ledger was put
    back and knows of the delivery from the coordinator alone (`put_back`), the approvals may be in what the coordinator
    was sent (`sent`), if its list has that; where nothing shows them it is `open` who approved.
    """

    def __init__(self, name: str, files: Files, entries: list[Body], gone: bool) -> None:
        self.name, self.entries, self.gone = name, entries, gone
        start = f"releases/{name}/"
        self.files = {path.removeprefix(start): data for path, data in files.items() if path.startswith(start)}
        self.by = {entry["kind"]: entry for entry in entries}
        self.seal: Body = self.by["seal"]["body"]
        # A reservation that waited was carried over to a later wave, perhaps of a later plan, at the same price.
        self.start, self.charged = self.by["reserve"], dict(self.by["reserve"]["body"])
        for entry in entries:
            if entry["kind"] == "carry" and entry["seq"] < self.by["seal"]["seq"]:
                self.start = entry
                self.charged |= {item: entry["body"][item] for item in ("wave", "plan_hash", "cap_epsilon")}
        self.receipt: Body | None = json.loads(self.files["receipt.json"]) if "receipt.json" in self.files else None
        self.outcomes: list[Body] = []
        if "outcomes.json" in self.files:
            self.outcomes = json.loads(self.files["outcomes.json"])["content"]["checks"]
        self.stated: Body = {}
        self.put_back, self.open = False, False
        self.sent: bytes | None = None

    def must(self, holds: object, what: str) -> None:
        """Stop, naming the release."""
        must(holds, f"{self.name}: {what}")

    def agreed(self, before: int) -> list[tuple[int, Body]]:
        """The approvals that counted before an entry, each with its own: showing other documents voids them."""
        out: list[tuple[int, Body]] = []
        for entry in self.entries:
            if entry["seq"] >= before:
                break
            out = [] if entry["kind"] in ("hold", "send_back") else out
            if entry["kind"] == "approve":
                body = entry["body"]
                # A person takes the place of a standing approval: of their own, or of one that did not serve.
                over = not body.get("standing") and len(out) >= self.seal["approvals"]
                out = [(s, b) for s, b in out if not (b.get("standing") and (over or b["name"] == body["name"]))]
                out.append((entry["seq"], body))
        return out

    def stood(self, before: int, entries: list[Body]) -> bool:
        """True if it was approved before an entry, and not withdrawn or given up since."""
        counted = [entry["body"] for entry in recoveries(entries) if entry["seq"] < before]
        if any(self.name in body.get("burnt", ()) for body in counted):
            return False
        if any(e["kind"] in ("withdraw", "burn", "reject") and e["seq"] < before for e in self.entries):
            return False
        known = any(self.name in body.get("accepted", ()) for body in counted)
        return known or len(self.agreed(before)) >= max(1, self.seal["approvals"])

    def check(self, keys: Body, plans: VerifiedPlans, delivered: bool) -> None:
        """Entries, statement, receipt, outcomes, decisions and withdrawal agree.

        Args:
            delivered: whether it arrived, by the ledger or by the coordinator's list.
        """
        persons, agent = people(keys), {"agent": keys["release_keys"]}
        self.stated, signers, payload = opened(
            "statement.json", self.files["statement.json"], "release", persons | agent
        )
        stated, by = self.stated, self.by
        self.must("agent" in signers, "the statement must be signed by the site")
        self.must(stated["ledger_head"] == by["seal"]["hash"], "the statement must name its seal")
        for item in ("bundle_sha256", "bundle_bytes", "receipt_sha256", "recipient", "plan_version"):
            self.must(stated[item] == self.seal[item], f"{item} must be the sealed one")
        own = {item: self.charged[item] for item in ("study", "wave")} | {"site": keys["site"], "release_id": self.name}
        self.must(all(stated[item] == value for item, value in own.items()), "the statement must be of this release")
        self.must(stated["plan_hash"] == self.charged["plan_hash"], "it must be of the plan that was charged")
        self.must(stated["recipient"] == keys["coordinator"], "it must be for the site's coordinator")

        plans.in_force(self.charged["plan_hash"], self.start["seq"], self.name)
        budget = plans.known[self.charged["plan_hash"]]["budget"]
        same = (self.charged["cap_epsilon"], self.charged["delta"]) == (budget["epsilon"], budget["delta"])
        self.must(same, "its charge must be held to the plan's budget")
        drawn = by["drawing"]["seq"]
        heads = [e["body"]["seq"] for e in self.entries if e["kind"] == "anchor"]
        witnessed = any(self.entries[0]["seq"] <= seq < drawn for seq in heads)
        self.must(witnessed, "its charge must have been witnessed before it was drawn")
        approval = plans.in_force(self.charged["plan_hash"], drawn, self.name)
        self.declines(persons)
        self.papers(approval, plans.known[self.charged["plan_hash"]])
        self.approvals(persons, plans, signers, payload, delivered, keys["key_chain"])
        self.withdrawal(persons | agent)

    def declines(self, persons: dict[str, list[str]]) -> None:
        """Check that each ``reject`` and ``send_back`` is signed by the registered person it names. Raises: Wrong."""
        for entry in self.entries:
            if entry["kind"] in ("reject", "send_back"):
                body = entry["body"]
                said = {"release_id": self.name, "bundle_sha256": self.seal["bundle_sha256"], "decision": entry["kind"]}
                said |= {"by": body["by"], "reason_sha256": sha(body["reason"].encode())}
                own = body.get("key") in persons.get(body["by"], [])
                own = own and signed(body["key"], bytes.fromhex(body["signature"]), TYPE % "decline", canonical(said))
                self.must(own, "who declines must be a registered person, and sign it")

    def papers(self, approval: Body | None, plan: Body) -> None:
        """Its receipt is the sealed one and says what was approved; its outcomes are those of the checks shown."""
        self.must(self.gone or self.receipt is not None, "its receipt must be here")
        if self.receipt is not None:
            receipt = self.receipt
            same = sha(self.files["receipt.json"]) == self.stated["receipt_sha256"]
            self.must(same, "the receipt must be the sealed one")
            same = all(receipt[item] == self.charged[item] for item in ("event", "epsilon", "delta", "wave"))
            self.must(same, "the receipt must state the charged event and price")
            # Its own cap; until version 0.1 what the ledger had charged by then, which is below it.
            self.must(receipt["study_epsilon"] <= plan["budget"]["epsilon"], "the receipt must keep the plan's cap")
            if plan["release"]["mechanism"] == "secure_sum":
                self.sum_prices(plan["release"])
            same = all(receipt[item] == self.stated[item] for item in ("study", "site", "release_id", "plan_hash"))
            self.must(same and receipt["posture"] == plan["posture"], "the receipt must be of this release and plan")
            if approval is not None:
                same = receipt["agent_version"] == approval["agent_version"]
                self.must(same, "it must be made by the agent that the plan was approved for")
                open_ends = plan["posture"] in LEAVES_PERSONS_OPEN
                same = not open_ends or receipt["not_covered"] == approval["understood"]
                self.must(same, "what its receipt leaves open must have been ticked with the plan")
        for entry in self.entries:
            bound = entry["kind"] != "hold" or "tags" not in entry or "outcomes.json" in entry["body"]["documents"]
            self.must(bound, "the outcomes of its checks must be among the documents shown")
        shown = self.by["hold"]["body"]["documents"] if "hold" in self.by else {}
        self.must(self.gone or not shown or "outcomes.json" in self.files, "the outcomes of its checks must be here")
        if "outcomes.json" in self.files:
            data = self.files["outcomes.json"]
            body = json.loads(data)
            same = shown.get("outcomes.json", sha(data)) == sha(data) and canonical(body) == data
            same = same and body["content"]["checks_sha256"] == shown["checks.json"]
            self.must(same, "the outcomes must be those of the checks shown")
            same = (body["release_id"], body["bundle_sha256"]) == (self.name, self.stated["bundle_sha256"])
            self.must(same, "the outcomes must be of these bytes")

    def sum_prices(self, release: Body) -> None:
        """Its receipt states, of each group that may look at a sum together, the ε of its event. Raises: Wrong."""
        receipt, others = self.receipt or {}, len(release["members"]) - 1
        prices = who_looks(release, receipt["event"], receipt["delta"])
        right = math.isclose(receipt["epsilon"], prices[release["colluders"]], rel_tol=1e-6)
        self.must(right, "its ε must be that of its event")
        text = " ".join(receipt["covered"])
        for many, epsilon in prices.items():
            who = f" and {many} site{'s' * (many > 1)}" * (many > 0) if many < others else f" and all {many} others"
            found = re.search(rf"the coordinator{who}: ε = ([0-9.]+)", text)
            # Printed to four digits, rounded up.
            said = float(found[1]) if found else math.inf
            right = math.isclose(said, epsilon, rel_tol=1.1e-3)
            right = right and (said >= epsilon or math.isclose(said, epsilon, rel_tol=1e-6))
            self.must(right, f"its receipt must state ε for the coordinator{who}")

    def approvals(
        self,
        persons: dict[str, list[str]],
        plans: VerifiedPlans,
        signers: set[str],
        payload: bytes,
        delivered: bool,
        chain: KeyChain,
    ) -> None:
        """Check the approvals: by registered people, over these bytes, with every tick, under the plan in force then.

        Args:
            persons: name to keys. signers: names of those who signed the statement. payload: its bytes.
            delivered: as of `check`. chain: keys in force at each entry.
        Raises: Wrong.
        """
        commit = self.by.get("commit")
        agreed = self.agreed(commit["seq"] if commit else self.entries[-1]["seq"] + 1)
        warnings = {check["name"] for check in self.outcomes if check["outcome"] == "warning"}
        decided = {}
        for name in self.files:
            if name.startswith("decision-"):
                said, names, _ = opened(name, self.files[name], "decision", persons)
                self.must(said["approver"] in names, "a decision must be signed by the person it names")
                same = (said["bundle_sha256"], said["release_id"]) == (self.stated["bundle_sha256"], self.name)
                self.must(same, "a decision must be about these bytes")
                decided[said["approver"]] = said
        for seq, body in agreed:
            plans.in_force(self.charged["plan_hash"], seq, self.name)
            if body.get("standing"):
                continue
            own = body["key"] in chain.people_at(seq).get(body["name"], [])
            own = own and signed(body["key"], bytes.fromhex(body["signature"]), TYPE % "release", payload)
            self.must(own, "each approval must be of a registered person, over the statement")
            said = decided.get(body["name"])
            self.must(self.gone or said, f"the decision of {body['name']} must be here")
            if said:
                shown = self.by["hold"]["body"]["documents"]
                self.must(said["documents"] == shown, "a decision must be on the documents shown")
                self.must(warnings <= set(said["ticked"]), f"{body['name']} must have ticked every warning")
        advance = [body["name"] for _, body in agreed if body.get("standing")]
        names = {body["name"] for _, body in agreed}
        self.must(len(advance) <= 1, "one standing approval at most stands in for a person")
        self.must(names <= signers | set(advance), "the statement must carry their signatures")
        apart = not self.seal.get("author_apart") or self.stated["author"] not in names
        self.must(apart, "whoever had it made must not have approved it")
        plan = plans.known[self.charged["plan_hash"]]
        ahead = plan["floors"].get("approval") != "before" or all(body.get("standing") for _, body in agreed)
        self.must(ahead, "a release that is approved before its draw must carry no signature of a person who saw it")
        needed = max(1, self.seal["approvals"], plan["floors"]["approvals"])
        # A deputy and the one for whom they stand in are one.
        names = {str(chain.stands.get(body["key"], body["name"])) for _, body in agreed}
        if delivered and self.put_back and not commit:
            # The ledger was put back to before its approval: then only what the coordinator was sent shows it.
            if self.sent is not None:
                _, also, sent = opened("what the coordinator was sent", self.sent, "release", persons)
                self.must(sent == payload, "what the coordinator was sent must be the sealed statement")
                names |= {chain.stands.get(key, name) for name in also for key in persons[name][:1]}
            self.open = len(names) < needed
        enough = not delivered or self.open or len(names) >= needed
        self.must(enough, "enough people must have approved before delivery")
        failed = any(check["outcome"] not in ("passed", "warning", "note") for check in self.outcomes)
        self.must(not agreed or not failed, "what failed a check must not be approved")
        if commit:
            same = commit["body"]["bundle_sha256"] == self.stated["bundle_sha256"]
            self.must(same, "what arrived must be what was sealed")

    def withdrawal(self, keys: dict[str, list[str]]) -> None:
        """Check that a withdrawal, if there is one, is signed by the agent and by an approver. Raises: Wrong."""
        self.must("withdraw" not in self.by or "withdrawal.json" in self.files, "its withdrawal must be here")
        if "withdrawal.json" in self.files:
            said, names, _ = opened("withdrawal.json", self.files["withdrawal.json"], "withdrawal", keys)
            by = self.by["withdraw"]["body"]["by"]
            self.must({"agent", by} <= names, "a withdrawal must carry two signatures")
            same = (said["release_id"], said["bundle_sha256"]) == (self.name, self.stated["bundle_sha256"])
            self.must(same, "a withdrawal must be of this release")


# -- what became of each charge -------------------------------------------------------------------------------------
def in_turn(entry: Body, begun: dict[int, int], charged: int, following: bool) -> None:
    """Note in `begun` that a round is begun, witnessed or answered. Raises: Wrong: out of its turn, or twice."""
    body, name, number = entry["body"], entry["body"]["release_id"], entry["body"]["number"]
    if entry["kind"] == "round":
        within = max(begun, default=0) < number <= charged
        after = not following or number == 1 or begun.get(number - 1) == -1  # a delivery: each goes on from the last
        must(within and after, f"{name}: round {number} must be in its turn, and one that was charged")
        begun[number] = entry["seq"]
    elif entry["kind"] == "witnessed":
        seen = 0 <= begun.get(number, -1) <= body["seq"]
        must(seen, f"{name}: round {number} must be witnessed once it is begun")
        begun[number] = 0
    else:
        once = begun.get(number) == 0
        must(once, f"{name}: round {number} must be witnessed before it is answered, and answered once")
        begun[number] = -1


def filed(name: str, body: Body, given: list[Body], state: str) -> list[Body]:
    """The approvals with one more. Raises: Wrong: no more was needed."""
    # A person takes the place of a standing approval: of their own, or of one that did not serve.
    over = state == "approved" and not body.get("standing")
    must(
        state != "approved" or (over and any(one.get("standing") for one in given)),
        f"{name}: it must need no further approval",
    )
    return [*(one for one in given if not (one.get("standing") and (over or one["name"] == body["name"]))), body]


def lives(entries: list[Body]) -> list[str]:
    """Replay every charge that is told, as the agent does. Returns: deliveries that were noted during a pause.

    Raises: Wrong: a step that may not follow the one before, or a draw or an approval while the site was paused.
    """
    states: dict[str, str] = {}
    needed: dict[str, int] = {}
    given: dict[str, list[Body]] = {}
    taken_back: set[str] = set()
    rounds: dict[str, tuple[int, int]] = {}  # of a training, and of what follows a delivery; of that the consents
    consents: dict[str, tuple[str, set[str]]] = {}
    wave: dict[str, int] = {}
    begun: dict[str, dict[int, int]] = {}  # by round: the entry that began it; 0 once witnessed, -1 once answered
    paused, late = False, []
    for entry in entries:
        body, kind = entry.get("body", {}), entry.get("kind", "")
        if kind in ("paused", "resumed"):
            paused = kind == "paused"
        elif kind in ("lost", "recovered"):
            for charge in body["charges"]:
                name = charge["release_id"]
                must(name not in states, f"entry {entry['seq']}: a lost release must be one that the ledger lacks")
                states |= {name: "burnt" if charge["log_index"] is None else "delivered"} if name else {}
            states |= {name: "delivered" for name in body.get("accepted", ()) if name in states}
            states |= {name: "burnt" for name in body.get("burnt", ()) if name in states}
        elif kind == "reserve":
            must(body["release_id"] not in states, f"{body['release_id']}: it must be charged once")
            states[body["release_id"]] = "reserved"
            rounds[body["release_id"]], begun[body["release_id"]] = (body.get("rounds", 0), body.get("follow", 0)), {}
            wave[body["release_id"]] = body["wave"]
        elif "release_id" in body:
            name = body["release_id"]
            state = states.get(name, "unknown")
            allowed, following = MOVES.get(kind, (set(), ""))
            must(state in allowed, f"{name}: entry {entry['seq']} ({kind}) must not follow when it is {state}")
            calm = not paused or kind not in ("drawing", "train", "round", "approve")
            must(calm, f"{name}: entry {entry['seq']} ({kind}) must not stand in a pause")
            rounds.setdefault(name, (0, 0))  # counted when the ledger was put back
            apart = kind not in (("train",) if not rounds[name][0] else ("carry", "persons_confirmed", "drawing"))
            must(apart, f"{name}: entry {entry['seq']} ({kind}) must be of the sort that was charged")
            after, (asked, names) = state == "delivered", consents.get(name, ("", set()))
            if kind == "carry":
                following, wave[name] = state, body["wave"]
            elif kind == "persons_confirmed":
                must(body["wave"] == wave[name], f"{name}: persons must be confirmed for the wave that is reserved")
                following = state
            elif kind in ("round", "witnessed", "answer"):
                in_turn(entry, begun[name], rounds[name][after], after)
                following = state
                agreed = body.get("asked") == asked and len(names) >= needed.get(name, 1)
                free = not after or (kind, body["number"]) != ("round", 2)
                must(
                    free or agreed, f"{name}: approvers must consent before the second round that follows its delivery"
                )
            elif kind == "sum_consented":
                consents[name] = (body["asked"], {*(names if asked == body["asked"] else ()), body["name"]})
            elif kind == "seal":
                needed[name], given[name] = body["approvals"], []
            elif kind in ("hold", "send_back"):
                given[name] = []
            elif kind == "approve":
                given[name] = filed(name, body, given[name], state)
                following = "approved" if len(given[name]) >= needed[name] else following
            elif kind == "withdraw":
                taken_back.add(name)
                following = "withdrawn" if state == "delivered" else following
            elif kind == "tombstone":
                must(name in taken_back, f"{name}: a tombstone must follow a withdrawal")
                following = state if body["log_index"] is None else following
            elif kind == "commit" and paused:
                # What was sent before may be acknowledged after.
                late.append(name)
            states[name] = following
    return late


def counted(entries: list[Body], study: str) -> tuple[dict[str, int | None], int]:
    """Charges counted by restored ledgers: releases by name and place in the log, and draws without a name.

    Raises: Wrong: one that says it was put back, and has counted nothing.
    """
    named: dict[str, int | None] = {}
    nameless = 0
    for place, entry in enumerate(entries):
        if entry.get("kind") not in ("lost", "recovered"):
            continue
        for charge in entry["body"]["charges"]:
            if charge["release_id"]:
                named[charge["release_id"]] = charge["log_index"]
            elif charge["study"] == study:
                nameless += charge["count"]
        named |= entry["body"].get("accepted", {})
        if entry["kind"] == "recovered":
            # Its charges stand just before it; those of other studies are not told here.
            before = entries[place - 1]
            some = "body" not in before or (before["kind"] == "lost" and before["body"]["charges"])
            some = some or entry["body"]["charges"]
            must(some, f"entry {entry['seq']}: a ledger that was put back must count what it lacks")
    return named, nameless


def stood_in(
    release: VerifiedRelease,
    seq: int,
    body: Body,
    given: Body | None,
    keys: Body,
    plan: Body,
    releases: dict[str, VerifiedRelease],
    entries: list[Body],
) -> None:
    """Hold a release that a standing approval approved against every limit of it, as far as the record tells.

    Args:
        seq, body: the entry that used the approval, and what it says.
        given: the approval with its first and last entry; None where the ledger has none of this name.
        plan: that the release was charged under. releases: all of the export, by name.
    Raises: Wrong.
    """
    charged, receipt = release.charged, release.receipt
    good = given is not None and (
        given["from"] < seq < given["to"]
        and (given["site"], given["study"]) == (keys["site"], charged["study"])
        and given["approver"] == body["name"]
        and body["key"] in keys["key_chain"].people_at(seq).get(given["approver"], [])
        and given["plan_hash"] == charged["plan_hash"]
        and charged["epsilon"] is not None
        and charged["epsilon"] <= given["max_epsilon"]
        and entries[seq - 1]["time"][:10] <= given["until"] <= plan["expires"]
        and plan["floors"]["standing"]
    )
    release.must(good, "a standing approval must be good for the release it approved")
    if given is None or receipt is None:
        return
    same = given["agent_version"] == receipt["agent_version"]
    release.must(same, "a standing approval must be for the agent that made the release")
    if plan["floors"].get("approval") == "before":
        drawn = release.by["drawing"]["seq"]
        release.must(given["from"] < drawn, "a release of this plan must have been approved before it was drawn")
        return
    first = releases.get(given["release_id"])
    seen = first is not None and first.stood(given["from"], entries)
    seen = seen and (first is None or first.receipt is None or first.receipt["n"] == given["n"])
    release.must(seen, "a standing approval must rest on a release that was approved before it, of the size it names")
    reserved = sorted(releases.values(), key=lambda one: -int(one.entries[0]["seq"]))
    others = [one for one in reserved if one is not release and one.stood(seq, entries)]
    # What another standing approval let through is no measure: size could creep by a fifth each wave.
    last = next((one for one in others if any(not by.get("standing") for _, by in one.agreed(seq))), None)
    release.must(last is not None, "a person must have approved a release before a standing approval is used")
    if last is not None and last.receipt is not None:
        before = last.receipt["n"]
        close = 5 * abs(receipt["n"] - before) < before
        release.must(
            close, "a standing approval is for a release whose size differs by less than 20 % from the last one by hand"
        )
    warned = [check["name"] for check in release.outcomes if check["outcome"] not in ("passed", "note")]
    release.must(not warned, f"no warning may need a tick where nobody looked ({', '.join(warned)})")
    audited = any(check["name"] == "audit" for check in release.outcomes)
    release.must(audited, "what a standing approval approves must have passed the audit")


# -- the coordinator's list -----------------------------------------------------------------------------------------
def listed(
    data: bytes,
    keys: Body,
    study: str,
    entries: list[Body],
    entries_of: dict[str, list[Body]],
    sealed: dict[str, VerifiedRelease],
    kept: Acknowledged,
) -> Body:
    """Hold the record against what the coordinator signed of the site: nothing it witnessed or accepted is missing.

    What a restored coordinator has forgotten, its own signatures of before show (`kept`).

    Args:
        data: the signed list. keys: those of the export.
        entries: the ledger's. entries_of: those of a charge, by its name. sealed: releases by name.
    Raises: Wrong.
    """
    must(keys["witness_key"], "the site must have pinned the coordinator's key")
    body, names, _ = opened("the coordinator's list", data, "site-list", {"coordinator": [keys["witness_key"]]})
    must(names, "the coordinator's list must be signed by the key that the site has pinned")
    same = (body["site"], body["study"]) == (keys["site"], study)
    must(same, "the coordinator's list must be of this site and study")
    heads = body["anchors"]
    newest = max((head["line"] for head in heads), default=0)
    left = {(one["body"]["seq"], one["body"]["head"]) for one in recoveries(entries) if "seq" in one["body"]}
    for line in range(newest + 1):
        of = [head for head in heads if head["line"] == line]
        lacks = [head for head in of if not is_here(head, entries)]
        # A ledger that was put back lacks heads of a line it has left: then it names the last of them, and has counted.
        counted = line < newest and of and (of[-1]["seq"], of[-1]["head"]) in left
        must(not lacks or counted, "every head that the coordinator witnessed must be one of this ledger")
    known = {(head["seq"], head["head"]) for head in heads}
    must(left <= known, "a ledger that was put back must name a head that the coordinator has witnessed")
    for entry in entries:
        if entry.get("kind") in WITNESSED and entry["body"]["index"] < body["size"]:
            here = (entry["body"]["seq"], entry["body"]["head"]) in known | kept.heads
            must(here, f"entry {entry['seq']} must name a head that the coordinator has witnessed")
    back = [entry["body"] for entry in recoveries(entries)]
    counted_lost = {charge["release_id"] for one in back for charge in one["charges"]}
    # Reserved here, and drawn in the time that a ledger that was put back has forgotten.
    closed = {name for one in back for what in ("accepted", "burnt") for name in one.get(what, ())}
    counted_lost |= closed & (entries_of.keys() - sealed.keys())
    accepted = {}
    for one in [*body["releases"], *body["quarantined"]]:
        name = one["release_id"]
        here = name in sealed and sealed[name].seal["bundle_sha256"] == one["bundle_sha256"]
        must(here or name in counted_lost, f"{name}: what the coordinator has of this study must be told here")
    for one in body["releases"]:
        name = one["release_id"]
        accepted[name] = one
        if name in sealed and "statement" in one:
            sealed[name].sent = one["statement"].encode()
        gone = one["withdrawn"] and name in sealed
        taken = not gone or "withdraw" in sealed[name].by
        must(taken, f"{name}: its withdrawal at the coordinator must be told here")
        if name in sealed:
            drawn, seal = sealed[name].by["drawing"]["seq"], sealed[name].by["seal"]["seq"]
            witnessed = {head["seq"] for head in heads if is_here(head, entries)} | {seq for seq, _ in kept.heads}
            seen = any(drawn <= seq < seal for seq in witnessed)
            must(seen, f"{name}: its drawing must have been witnessed before its bytes were sealed")
    for name, list_ in entries_of.items():
        for entry in list_:
            if entry["kind"] == "commit" and entry["body"]["log_index"] < body["size"]:
                one = accepted.get(name, {})
                places = {one.get("log_index"), *kept.places.get((name, one.get("bundle_sha256", "")), ())}
                must(
                    entry["body"]["log_index"] in places,
                    f"{name}: its delivery must be one that the coordinator has logged",
                )
    tags = {tag for entry in entries for tag in entry.get("tags", ())}
    must(len(tags) <= body["studies"], "the ledger must be about no more studies than the site takes part in")
    return {"anchors": len(heads), "releases": accepted.keys(), "size": body["size"], "day": body["day"]}


# -- all of it ------------------------------------------------------------------------------------------------------
def examine(files: Files, study: str, coordinator_list: bytes | None = None) -> Body:
    """Check everything but the list of files. Returns: how many there are of each. Raises: Wrong."""
    keys = json.loads(files["keys.json"])
    entries = ledger(files, keys, study)
    plans = VerifiedPlans(files, keys, study, entries)
    plans.memberships(keys, entries)
    standing = standings(entries, keys)
    entries_of: dict[str, list[Body]] = {}
    for entry in entries:
        if "release_id" in entry.get("body", {}):
            entries_of.setdefault(entry["body"]["release_id"], []).append(entry)
    names = {name for name, list_ in entries_of.items() if any(entry["kind"] == "seal" for entry in list_)}
    here = {name.split("/")[1] for name in files if name.startswith("releases/")}
    must(names == here, "every sealed release must be in the export")
    deleted = {item["release_id"] for e in entries if e.get("kind") == "left" for item in e["body"]["deleted"]}
    releases = {name: VerifiedRelease(name, files, entries_of[name], name in deleted) for name in sorted(names)}
    kept = Acknowledged(files, keys, entries)
    commits = {(e["body"]["release_id"], e["body"]["bundle_sha256"]): e for e in entries if e.get("kind") == "commit"}
    found: Body = {}
    arrived = {name for name, _ in commits}
    if coordinator_list is not None:
        found["list"] = listed(coordinator_list, keys, study, entries, entries_of, releases, kept)
        arrived |= found["list"]["releases"]
    signatures = 0
    back = {name for one in recoveries(entries) for name in one["body"].get("accepted", ())}
    for name, release in releases.items():
        release.put_back = name in back
        release.check(keys, plans, name in arrived | back)
        signatures += sum("signature" in entry["body"] for entry in release.entries)
    for release in releases.values():
        for seq, body in release.agreed(len(entries) + 1):
            if body.get("standing"):
                plan = plans.known[release.charged["plan_hash"]]
                stood_in(release, seq, body, standing.get(body["standing"]), keys, plan, releases, entries)
    previous = NOTHING
    for entry in entries:
        if entry.get("kind") == "seal":
            receipt = releases[entry["body"]["release_id"]].receipt
            follows = receipt is None or receipt["previous"] == previous
            must(follows, f"{entry['body']['release_id']}: its receipt must follow that of the release before")
            previous = entry["body"]["receipt_sha256"] or NOTHING
    interrupted = lives(entries)
    found_back, nameless = counted(entries, study)
    missing = [(name, at) for (name, digest), at in kept.places.items() if (name, digest) not in commits]
    whole = sum(found_back.get(name) not in at for name, at in missing) <= nameless
    must(whole, "every delivery that the coordinator acknowledged must be told here")
    for key, entry in commits.items():
        at = entry["body"]["log_index"]
        # Taken again after a restore, it stands elsewhere by now, and that one answer may be all that is kept.
        same = at in kept.places.get(key, {at}) or kept.restored
        must(same, f"{key[0]}: its delivery must stand where the coordinator has logged it")
    late = [
        key[0]
        for key, entry in commits.items()
        if [plan for seq, plan, _ in plans.at if seq < entry["seq"]][-1:] == [""]
    ]
    decisions = decided(entries, keys)
    return found | {
        "keys": keys,
        "entries": len(entries),
        "head": entries[-1]["hash"],
        "withheld": sum("body" not in entry for entry in entries),
        "old": sum("link" in entry for entry in entries),
        "plans": len(plans.known),
        "approvals": sum(said is not None for _, _, said in plans.at),
        "releases": len(releases),
        "digests": {release.seal["bundle_sha256"] for release in releases.values()},
        "signatures": signatures,
        "decisions": decisions,
        "standing": len(standing),
        "deliveries": len(commits),
        "countersigned": sum(key in kept.places for key in commits),
        "late": late,
        "interrupted": interrupted,
        "open": [name for name, release in releases.items() if release.open],
        "forks": len(kept.forks),
    }


def check(folder: Path, bundles: list[Path], coordinator_list: Path | None = None) -> list[str]:
    """Check everything; the sentences to print. Raises: Wrong."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    must({"keys.json", "manifest.json"} & files.keys(), f"{folder} must be the folder of an audit export")
    agent = {"agent": [json.loads(files["keys.json"])["release_key"]]}
    manifest, names, _ = opened("manifest.json", files.pop("manifest.json"), "audit-export", agent)
    must(names, "the list of files must be signed by the site's release key")
    must(files.keys() == manifest["files"].keys(), "the folder must hold exactly the files of its list")
    for name, digest in manifest["files"].items():
        must(sha(files[name]) == digest, f"{name} must be as it was exported")
    found = examine(files, manifest["study"], coordinator_list.read_bytes() if coordinator_list else None)
    keys = found["keys"]
    must(manifest["head"] == found["head"], "the export must end with the head that was signed")
    must(not found["forks"], "the coordinator must not have signed two histories: see acknowledged.json")
    must(manifest["site"] == keys["site"], "the export must be of the site of its keys")
    for path in bundles:
        must(sha(path.read_bytes()) in found["digests"], f"{path.name} must be one of the sealed bundles")
    whose = {"site": keys["release_key"], **{f"study lead {name}": key for name, key in keys["leads"].items()}}
    whose |= {f"approver {name}": key for name, key in keys["approvers"].items()}
    for name, former in keys.get("retired_approvers", {}).items():
        whose |= {f"former approver {name}{f' ({place})' if place else ''}": key for place, key in enumerate(former)}
    whose |= {f"former study lead {name}": key for name, key in keys.get("former_leads", {}).items()}
    whose |= {f"site, until its {n}. change of keys": key for n, key in enumerate(keys["release_keys"][:-1], start=1)}
    whose |= {"coordinator": keys["witness_key"]} if keys.get("witness_key") else {}
    lines = [
        f"{len(manifest['files'])} files are as they were exported.",
        f"{found['entries']} ledger entries follow from each other and are signed; {found['withheld']} of them are "
        "about other studies.",
        f"{found['plans']} plans are signed by the study lead.",
        f"{found['approvals']} approvals of plans are signed by the person they name, ticks included.",
        f"{found['releases']} releases: statement, receipt, checks, approvals and delivery agree.",
    ]
    if found["standing"]:
        lines.append(f"{found['standing']} standing approvals are signed, and good for what they approved.")
    chain, leads = keys["key_chain"], keys["lead_chain"]
    if leads.changes:
        lines.append(f"{leads.changes} changes of leads are signed by those who led before.")
    lines += [*(f"! {what}" for what in leads.open), *keys["lead_words"]]
    if chain.changes:
        lines.append(
            f"{chain.changes} changes of keys and approvers are signed by the key before, and by who approved."
        )
    for seq, key in chain.lost:
        lines.append(f"! entry {seq}: the key {key} was lost, and another took its place without its word")
    lines += [
        f"! entries {one['from']} to the next loss: what made their tags is lost, and nobody can show that all are told"
        for one in keys.get("tag_keys", ())
        if not one["proof"]
    ]
    counted = f"{found['countersigned']} of {found['deliveries']} deliveries"
    lines.append(f"{counted} are acknowledged under the coordinator's signature.")
    if bundles:
        lines.append(f"{len(bundles)} bundle files are sealed ones.")
    if "list" in found:
        own = found["list"]
        lines.append(
            f"The coordinator's list of {own['day']}, at {own['size']} log entries: its {own['anchors']} heads and "
            f"{len(own['releases'])} releases are told here, and no other."
        )
    else:
        lines.append("! Whether this is the newest record, and all of it, only the coordinator's list shows:")
        lines.append("  coordinator log list SITE STUDY --out FILE, then python verify.py --coordinator-list FILE")
    if found["old"]:
        words = "entries are from before entries had tags: whether they are of this study is open"
        lines.append(f"! {found['old']} {words}")
    noted = {
        "late": "its delivery was noted after its plan's approval was revoked",
        "interrupted": "its delivery was noted during a pause",
        "open": "the ledger was put back, and nothing here shows who approved it before it was delivered",
    }
    lines += [f"! {name}: {words}" for kind, words in noted.items() for name in found[kind]]
    return [
        *lines,
        "Compare these keys with the people they belong to:",
        *(f"  {n}: {mark(k)}" for n, k in whose.items()),
    ]


def main() -> int:
    """0 when everything holds, 1 when something does not."""
    parser = argparse.ArgumentParser(description="Checks the audit export in whose folder it lies, or FOLDER.")
    parser.add_argument("named", nargs="*", type=Path, metavar="FOLDER | BUNDLE", help="an export; its sealed bundles")
    parser.add_argument("--coordinator-list", type=Path, help="what coordinator log list wrote for this site and study")
    given = parser.parse_args()
    at = [] if given.named and given.named[0].is_dir() else [Path(__file__).resolve().parent]
    folder, *bundles = at + list(given.named)
    try:
        for line in check(folder, bundles, given.coordinator_list):
            sys.stdout.write(f"{'✓ ' if line.endswith('.') else ''}{line}\n")
    except Exception as error:  # whatever stops a reader of other people's files, they are not as they were exported
        sys.stdout.write(f"✗ {error if isinstance(error, Wrong) else f'a file is damaged ({type(error).__name__})'}\n")
        return 1
    return 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # where what reads this ends first (| head), it ends as other programs do
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
