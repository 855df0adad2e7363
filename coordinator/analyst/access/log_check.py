"""Verification of the coordinator's log: each answer is proven to rest on releases in one append-only log.

The public key that verifies the log's heads is pinned in the token file. Heads seen so far are stored beside that file,
so that the next session detects a history that was changed in between. An auditor's token may read the log entry by
entry; that reveals accepted releases left out of studies, and revocations and closed waves that are not shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.base.canonical import parse_json
from shared.base.keys import PublicKey, write_private
from shared.base.merkle import leaf_hash
from shared.errors import IntegrityRefusal, Refusal, SchemaRefusal
from shared.wire.site_messages import LogView, WatchRequest
from shared.wire.tree_heads import (
    CheckedView,
    TreeHead,
    check_view,
    excused,
    open_head,
    proven_release,
    require_not_before,
)

__all__ = ["FollowedLog", "LogAudit", "audit"]

MOST = 512
"""Heads that are kept, at most: the newest."""


@dataclass(frozen=True, kw_only=True)
class LogAudit:
    """Result of an audit: the whole log, compared with what the coordinator shows of its studies.

    Args:
        head: the log's head that the entries hash to.
        releases: accepted releases in it.
        hidden: releases that stand in the log and in none of the studies: (entry, site).
        undone: entries by which a site, or the leads, took releases back that a study shows as if they stood:
            (entry, site).
        ended: revocations, and closings and reopenings of waves of these studies, that are not shown: (entry, what).
    """

    head: TreeHead
    releases: int
    hidden: tuple[tuple[int, str], ...]
    undone: tuple[tuple[int, str], ...]
    ended: tuple[tuple[int, str], ...] = ()


class FollowedLog:
    """The coordinator's log as this analyst has seen it.

    Args:
        key: the coordinator's pinned key.
        look: asks the coordinator for its log's head, with proofs.
        memory: file in which what was seen is kept; None for nowhere.
    """

    def __init__(self, key: PublicKey, look: Callable[[WatchRequest], LogView], memory: Path | None = None) -> None:
        self._key, self._look, self._memory = key, look, memory
        self._proven: set[tuple[int, str]] = set()  # heads of answers that were followed in this session
        self._heads: list[tuple[int, str]] = []
        self._met: list[str] = []
        if memory is not None:
            with suppress(OSError, Refusal, KeyError, TypeError, ValueError):
                said = parse_json(memory.read_bytes())
                self._heads = [(int(size), str(root)) for size, root in said["heads"]]
                self._met = [str(entry) for entry in said["restored"]]

    def require_proven(self, provenance: Mapping[str, Any]) -> None:
        """Hold an answer's provenance against the log. Raises: IntegrityRefusal, SignatureRefusal."""
        said = provenance.get("log")
        if not isinstance(said, dict):
            raise IntegrityRefusal(
                "an answer must be proven to rest on releases in the coordinator's log",
                given="no proof",
                next_step="Update the coordinator; else do not use the answer, and tell the study lead.",
            )
        head = open_head(str(said["head"]).encode(), self._key)
        for bundle, site in provenance.get("rests_on", provenance["bundles"]).items():
            if proven_release(said, bundle, head).get("site") != site:
                raise IntegrityRefusal("an answer must rest on the releases that it names", given="another's proof")
        if (head.size, head.root) not in self._proven:
            self.follow(head)
            self._proven.add((head.size, head.root))

    def follow(self, head: TreeHead | None = None) -> CheckedView:
        """Ask for the log as it is now: it goes on from all that was seen of it, and from `head`.

        Raises: IntegrityRefusal (another history), SignatureRefusal.
        """
        seen = [] if head is None else [(head.size, head.root)]
        last = max(self._heads, default=None)
        if last is not None and last not in seen:
            seen.append(last)
        checked = check_view(self._fetch_view([size for size, _ in seen]), self._key, seen)
        lost = [one for one, grew in zip(seen, checked.grew, strict=True) if not grew]
        if lost and (lost != [last] or not self._excused(checked)):
            raise self._fork(checked, lost)
        new = [entry.decode() for entry, _ in checked.restored if entry.decode() not in self._met]
        now = (checked.head.size, checked.head.root)
        if now not in self._heads or new:
            self._heads = [*(one for one in self._heads if one != now), now][-MOST:]
            self._met += new
            self._keep()
        return checked

    def require_one_log_with(self, data: bytes) -> TreeHead:
        """Hold a head that somebody else was shown against the log as it is shown here. Raises: as `follow`."""
        other = open_head(data, self._key)
        view = check_view(self._fetch_view([other.size]), self._key, [(other.size, other.root)])
        if not view.grew[0]:
            require_not_before(other, view)
        self.follow(other)
        return other

    def _fetch_view(self, sizes: Sequence[int]) -> LogView:
        view = self._look(WatchRequest(sizes=tuple(sizes)))
        if not view.head:
            raise IntegrityRefusal("the coordinator must show its log's head", given="none")
        return view

    def _excused(self, checked: CheckedView) -> bool:
        found = excused(checked, self._heads, {one.encode() for one in self._met}, self._fetch_view, self._key)
        if found is None:
            return False
        self._heads = [one for one in self._heads if one[0] <= found[1].size]
        return True

    def _fork(self, checked: CheckedView, lost: Sequence[tuple[int, str]]) -> IntegrityRefusal:
        where = ""
        if self._memory is not None:
            path = self._memory.with_suffix(".fork.json")
            body = {"seen": [list(one) for one in lost], "shown": checked.envelope.decode()}
            with suppress(Refusal):
                write_private(path, json.dumps(body).encode())
                where = f" {path.name} holds both."
        return IntegrityRefusal(
            "the coordinator's log must only grow",
            given="another history than the one that was seen before",
            next_step=f"Do not use its answers. Tell the study lead and a site.{where}",
        )

    def _keep(self) -> None:
        if self._memory is not None:
            with suppress(Refusal):  # a folder that cannot be written: the next session begins anew
                body = {"heads": [list(one) for one in self._heads], "restored": self._met}
                write_private(self._memory, json.dumps(body).encode())


def audit(
    checked: CheckedView,
    entries: Sequence[str],
    studies: Mapping[str, Sequence[Mapping[str, Any]]],
    shown: Mapping[str, Any],
) -> LogAudit:
    """Hold every entry of a log against what the coordinator shows: releases, revocations, closings of waves.

    Args:
        checked: a look whose head is of these entries.
        entries: all of them, as texts.
        studies: study to its releases, as the coordinator tells them to analysts.
        shown: its list of studies, with ``revocations`` and ``closings``.
    Raises: IntegrityRefusal (the entries are not those of the head; nothing is shown of what is over), SchemaRefusal.
    """
    if not {"revocations", "closings"} <= shown.keys():
        raise IntegrityRefusal(
            "the coordinator must show which sites were revoked and which waves closed",
            given="none of it",
            next_step="Update the coordinator.",
        )
    over = {(one["log_index"], _revocation(one["site"])) for one in shown["revocations"]}
    over |= {(one["log_index"], _turn(one["study"], one["wave"], one["closed"])) for one in shown["closings"]}
    from shared.base.merkle.tree import append, peaks_root

    peaks: tuple[bytes, ...] = ()
    for place, entry in enumerate(entries):
        peaks = append(peaks, place, leaf_hash(entry.encode()))
    if len(entries) != checked.head.size or peaks_root(peaks).hex() != checked.head.root:
        raise IntegrityRefusal("the log's entries must be those of its head", given="others")
    known = {one["bundle_sha256"]: one for releases in studies.values() for one in releases}
    hidden, undone, ended, count = [], [], [], 0
    for place, entry in enumerate(entries):
        body = parse_json(entry.encode())
        body = body if isinstance(body, dict) else {}
        what = _ended(body, studies)
        if what and (place, what) not in over:
            ended.append((place, what))
        kind, bundles, site = _entry(body)
        if kind == "release":
            count += 1
            if bundles[0] not in known:
                hidden.append((place, site))
        elif any(bundle in known and not known[bundle]["withdrawn"] for bundle in bundles):
            undone.append((place, site))
    return LogAudit(head=checked.head, releases=count, hidden=tuple(hidden), undone=tuple(undone), ended=tuple(ended))


def _revocation(site: object) -> str:
    return f"the revocation of {site}"


def _turn(study: object, wave: object, closed: bool) -> str:
    return f"the {'closing' if closed else 'reopening'} of wave {wave} of {study}"


def _ended(body: Mapping[str, Any], studies: Collection[str]) -> str:
    """Revocation, or closing or reopening of a wave, recorded by an entry, in words; blank for any other entry."""
    kind = body.get("kind")
    if kind == "revocation":
        return _revocation(body.get("site"))
    if kind in ("wave_closed", "wave_reopened") and body.get("study") in tuple(studies):
        return _turn(body["study"], body.get("wave"), kind == "wave_closed")
    return ""


def _entry(body: Mapping[str, Any]) -> tuple[str, list[str], str]:
    """Kind of an entry, and the bundles and the site that it names, if it does. Raises: SchemaRefusal."""
    kind, bundles = body.get("kind"), list[Any]()
    if kind in ("release", "withdrawal"):
        bundles = [body.get("bundle")]
    elif kind == "distrusted":
        named = body.get("bundles")
        bundles = named if isinstance(named, list) else [None]
    words = [kind, *bundles, *([body.get("site")] if bundles else [])]
    if not all(isinstance(word, str) for word in words):
        raise SchemaRefusal(
            "an entry of the log must say what it is of, and a release's which one",
            given="another form",
            next_step="Tell the study lead and a site.",
        )
    return str(kind), bundles, str(body.get("site", ""))
