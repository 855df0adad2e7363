"""Clock readings of the other side, each signed in answer to one request, and the offset of our clock from its.

Waves, expiries and certificates depend on clocks, and a machine cannot detect that its own is wrong. So each side signs
its clock's reading: the site in its request, the coordinator in its reply to that request (a nonce binds the two, so
that no older reading can be replayed). The site knows when it sent the request and when the reply came, and the
coordinator read its clock in between.
"""

from __future__ import annotations

import datetime as dt
import secrets
from dataclasses import asdict, dataclass, fields

from shared.base.canonical import canonical_json, parse_json
from shared.base.clock import utc_now
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import IntegrityRefusal, SchemaRefusal

__all__ = [
    "CLOCK_TYPE",
    "TOLERATED",
    "WRONG",
    "ClockOffset",
    "ClockReading",
    "open_reading",
    "span",
    "unverified_reading",
    "utc_now",
]

CLOCK_TYPE = "application/vnd.tributary.clock+json"
TOLERATED = dt.timedelta(minutes=2)
"""Clocks that are no further apart than this agree."""
WRONG = dt.timedelta(hours=1)
"""Of clocks that are further apart than this, one is wrong."""


@dataclass(frozen=True, kw_only=True)
class ClockReading:
    """Payload of a reading (`CLOCK_TYPE`), signed by whoever's clock it is.

    Args:
        site: the site that asks; in the answer the same, so that it is an answer to nobody else.
        nonce: 32 hexadecimal digits, drawn for one question.
        time: ISO, UTC, to the millisecond.
    """

    site: str
    nonce: str
    time: str

    def __post_init__(self) -> None:
        texts = all(isinstance(text, str) and len(text) <= 64 for text in (self.site, self.nonce, self.time))
        if not (texts and len(self.nonce) == 32 and set(self.nonce) <= set("0123456789abcdef")):
            raise SchemaRefusal("a clock's reading must have a site, a nonce of 32 hexadecimal digits and a time")
        try:
            written = _written(self.when)
        except (ValueError, OverflowError):
            written = None
        if written != self.time:
            raise SchemaRefusal("a clock's reading must be a UTC time to the millisecond")

    @classmethod
    def question(cls, site: str, now: dt.datetime) -> ClockReading:
        """A site's own reading, as a question for the other side's."""
        return cls(site=site, nonce=secrets.token_hex(16), time=_written(now))

    def answered(self, now: dt.datetime) -> ClockReading:
        """The other side's reading, in answer to this one."""
        return ClockReading(site=self.site, nonce=self.nonce, time=_written(now))

    @property
    def when(self) -> dt.datetime:
        """The time it says."""
        return dt.datetime.strptime(self.time, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=dt.UTC)

    def signed(self, key: SigningKey) -> Envelope:
        """This reading, signed."""
        return Envelope.sign(CLOCK_TYPE, canonical_json(asdict(self)), [key])


def open_reading(envelope: Envelope, key: PublicKey, *, question: ClockReading | None = None) -> ClockReading:
    """The reading that `key` signed, in answer to `question` where there is one.

    Raises: SignatureRefusal, SchemaRefusal, IntegrityRefusal (an answer to another question).
    """
    envelope.require(CLOCK_TYPE, {key.key_id: key})
    reading = unverified_reading(envelope)
    if question is not None and (reading.site, reading.nonce) != (question.site, question.nonce):
        raise IntegrityRefusal("a clock's reading must answer the question that was asked", given="another's")
    return reading


def unverified_reading(envelope: Envelope) -> ClockReading:
    """A reading by whoever signed it: good to be answered, and for nothing else. Raises: SchemaRefusal."""
    body = parse_json(envelope.payload, cap=1 << 10)
    if not isinstance(body, dict) or body.keys() != {item.name for item in fields(ClockReading)}:
        raise SchemaRefusal("a clock's reading must have site, nonce and time")
    return ClockReading(**body)


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """Offset of our clock from theirs, and its uncertainty.

    Args:
        seconds: ours minus theirs; positive if ours is ahead.
        within: it is known to ± this many seconds.
    """

    seconds: float
    within: float

    @classmethod
    def between(cls, asked: dt.datetime, theirs: dt.datetime, answered: dt.datetime) -> ClockOffset:
        """From our clock when we asked and when we were answered, and from theirs between the two.

        >>> noon = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC)
        >>> ClockOffset.between(noon, noon + dt.timedelta(seconds=31), noon + dt.timedelta(seconds=2))
        ClockOffset(seconds=-30.0, within=1.0)
        """
        middle = asked + (answered - asked) / 2
        return cls(seconds=(middle - theirs).total_seconds(), within=abs((answered - asked).total_seconds()) / 2)

    @property
    def state(self) -> str:
        """``agree`` within `TOLERATED`, ``differ`` within `WRONG`, else ``wrong``: one of the clocks must be set."""
        apart = max(0.0, abs(self.seconds) - self.within)
        return (
            "agree" if apart <= TOLERATED.total_seconds() else "differ" if apart <= WRONG.total_seconds() else "wrong"
        )

    @property
    def words(self) -> str:
        """As people say it: ``2 days ahead``."""
        return f"{span(self.seconds)} {'ahead' if self.seconds > 0 else 'behind'}"


def span(seconds: float) -> str:
    """A time span in its largest unit.

    >>> span(-172_900), span(5400), span(90), span(0.4)
    ('2 days', '90 minutes', '90 seconds', '0 seconds')
    """
    for name, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if abs(seconds) >= 2 * size or (name == "minutes" and abs(seconds) > 3 * size):
            return f"{round(abs(seconds) / size)} {name}"
    return f"{round(abs(seconds))} seconds"


def _written(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"
