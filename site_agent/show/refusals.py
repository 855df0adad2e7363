"""Log of refusals: one line per attempt, in a log of the site's own (``refused.jsonl``).

A line tells when, which verb, the refusal's code, the study, the release and the approver who was named, and how many
entries the ledger had then, so that `history` can put both in order. It tells nothing that was typed or read: a name
that is not a registered approver's, a study nobody knows and an id of no release are left out, and so are the words
of the refusal, which count records. Lines are chained and signed like the ledger's. They are not *in* the ledger,
because after a restored backup each missing entry of that may have paid for a draw and is counted so.

What a person tries is noted each time, what the calendar meets again and again once a day: `SAME` and `A_DAY` bound
what a loop can write.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.chain import GENESIS, extend_head
from shared.base.clock import utc_now
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import IntegrityRefusal, Refusal

__all__ = ["A_DAY", "SAME", "Refusals", "Refused"]

REFUSED_TYPE = "application/vnd.tributary.refused+json"
SAME = 10
"""Most lines of one UTC day about the same attempt of a person with the same outcome."""
A_DAY = 200
"""Most lines of one UTC day."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """One line.

    Args:
        verb: what was tried, as on the command line.
        study, release_id, who: blank where there is none, or where what was given is not known here.
        after: number of the ledger's entries then.
        agent: whether the calendar tried, and no person.
    """

    seq: int
    time: str
    verb: str
    code: str
    study: str
    release_id: str
    who: str
    after: int
    agent: bool
    previous: str = GENESIS
    hash: str = ""
    signature: str = ""

    def chained(self, previous: str) -> Refused:
        """The line as it follows `previous`, not signed yet."""
        said = {name: value for name, value in asdict(self).items() if name not in ("previous", "hash", "signature")}
        return replace(self, previous=previous, hash=extend_head(previous, [sha256_hex(canonical_json(said))]))


class Refusals:
    """The log of one site.

    Args:
        path: ``refused.jsonl``; made with its first line.
        signer: the site's release key.
        site: the site's id.
        former: release keys of the site that may have signed earlier lines.
    """

    def __init__(self, path: Path, signer: SigningKey, *, site: str, former: Sequence[PublicKey] = ()) -> None:
        self.path, self.signer, self.site = path, signer, site
        self.keys = {signer.public, *former}

    def note(
        self,
        verb: str,
        code: str,
        *,
        study: str = "",
        release_id: str = "",
        who: str = "",
        after: int = 0,
        agent: bool = False,
    ) -> None:
        """Add a line, unless the day has enough of them.

        Args: as of `Refused`.
        Raises: OSError.
        """
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b") as book:
            fcntl.flock(book, fcntl.LOCK_EX)
            data = book.read()
            lines = _parsed(data)
            now = utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
            new = Refused(
                seq=len(lines) + 1,
                time=now,
                verb=verb,
                code=code,
                study=study,
                release_id=release_id,
                who=who,
                after=after,
                agent=agent,
            )
            today = [line for line in lines if line.time[:10] == now[:10]]
            if _enough(today, new):
                return
            new = new.chained(lines[-1].hash if lines else GENESIS)
            new = replace(new, signature=self.signer.sign(self._message(new)).hex())
            # What a crash left of a line is written over.
            book.seek(data.rfind(b"\n") + 1)
            book.truncate()
            book.write(canonical_json(asdict(new)) + b"\n")
            book.flush()
            os.fsync(book.fileno())

    def lines(self) -> tuple[Refused, ...]:
        """Every line, verified. Raises: IntegrityRefusal, for one that was changed, added by others or taken out."""
        data = self.path.read_bytes() if self.path.exists() else b""
        previous = GENESIS
        out = []
        for number, text in enumerate(data.split(b"\n")[:-1], start=1):
            try:
                line = Refused(**parse_json(text))
                good = line.seq == number and replace(line.chained(previous), signature=line.signature) == line
                signature, message = bytes.fromhex(line.signature), self._message(line)
                good = good and any(key.verifies(signature, message) for key in self.keys)
            except (Refusal, TypeError, ValueError):
                good = False
            if not good:
                raise IntegrityRefusal(
                    f"line {number} of {self.path.name} must be as this site wrote it",
                    given="another line",
                    next_step="Keep the file and find out who edited it. The ledger and its charges are not concerned.",
                )
            out.append(line)
            previous = line.hash
        return tuple(out)

    def _message(self, line: Refused) -> bytes:
        body = canonical_json({"site": self.site, "seq": line.seq, "hash": line.hash})
        return Envelope.encoding(REFUSED_TYPE, body)


def _enough(today: Sequence[Refused], new: Refused) -> bool:
    same = sum(_what(line) == _what(new) for line in today)
    return len(today) >= A_DAY or same >= (1 if new.agent else SAME)


def _what(line: Refused) -> tuple[str, str, str, str, str, bool]:
    return line.verb, line.code, line.study, line.release_id, line.who, line.agent


def _parsed(data: bytes) -> list[Refused]:
    """The lines as they stand, for the next one to follow: what cannot be read is found by `Refusals.lines`."""
    names = {item.name for item in fields(Refused)}
    out = []
    for text in data.split(b"\n")[:-1]:
        try:
            body = parse_json(text)
        except Refusal:
            continue
        if isinstance(body, dict) and set(body) == names:
            out.append(Refused(**body))
    return out
