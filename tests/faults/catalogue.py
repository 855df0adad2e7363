"""The faults by number with the repeats that are asked of each, the counts, and the invariants over those counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["COUNTS", "FAULTS", "INVARIANTS", "Fault", "Invariant"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what is done, how often that is asked for, and what must happen."""

    what: str
    asked: int
    must: str


FAULTS: Mapping[str, Fault] = {
    "F1": Fault(
        what="the site is killed at each failpoint",
        asked=1000,
        must="the same sealed bytes or no release; spent at least what is true; accepted once at most",
    ),
    "F2": Fault(
        what="the coordinator is killed in the middle of an ingest",
        asked=1000,
        must="what was acknowledged is there; what was not is absent or completed; no reader sees a half",
    ),
    "F3": Fault(what="power is lost: what was not flushed is gone", asked=500, must="as F1 and F2"),
    "F4": Fault(what="a crash during the recovery from F1 to F3", asked=200, must="it converges"),
    "F5": Fault(
        what="the disk is full, at the site and at the coordinator",
        asked=90,
        must="a typed refusal, nothing corrupted, it goes on with room; no acknowledgement without room",
    ),
    "F6": Fault(
        what="a read-only disk, a permission lost, a stale lock, two agents",
        asked=80,
        must="a typed refusal that names the file; a second agent is refused",
    ),
    "F7": Fault(what="one bundle delivered again and again by 32 clients", asked=10_000, must="accepted once"),
    "F8": Fault(
        what="replays of a wave, a study, a site; an older plan; an expired one",
        asked=1000,
        must="all refused",
    ),
    "F9": Fault(what="flipped bits of envelope and payload", asked=10_000, must="all refused, none read"),
    "F10": Fault(what="forged signatures and roles", asked=600, must="refused, each with its code"),
    "F11": Fault(what="bundles that decode to much", asked=250, must="refused within twice the cap and 5 s"),
    "F12": Fault(
        what="malformed bytes to every parser", asked=1_000_000, must="a typed refusal; no crash, no second lost"
    ),
    "F13": Fault(what="wrong content under valid signatures", asked=600, must="kept apart, and told"),
    "F14": Fault(what="certificates at the edges of their lives", asked=100, must="refused or renewed; warned before"),
    "F15": Fault(what="clocks that are wrong or jump", asked=100, must="tolerated or named; order rests on no clock"),
    "F16": Fault(what="races for the last unit of budget", asked=1000, must="one wins"),
    "F17": Fault(what="a ledger put back, edited, deleted", asked=150, must="found out; nothing is released"),
    "F18": Fault(
        what="a network that drops, cuts, delays, repeats and flips bits", asked=120, must="delivered once, or told why"
    ),
    "F19": Fault(what="a coordinator that lies", asked=200, must="found out by a site or a reader of the log"),
    "F20": Fault(
        what="hostile questions of a federated training", asked=400, must="refused before a file of records is opened"
    ),
    "F21": Fault(what="hostile questions of analysts", asked=500, must="refused, limited, apart"),
    "F22": Fault(
        what="what training rests on fails", asked=100, must="a typed refusal, the charge as is said, no half bundle"
    ),
    "F23": Fault(
        what="a newer version and back again with releases waiting",
        asked=20,
        must="nothing lost",
    ),
    "F24": Fault(what="a withdrawal while analysts ask", asked=100, must="stale within a second; its origin is whole"),
}

COUNTS = (
    "cases",
    "sites",
    "bundles",
    "lost",
    "duplicated",
    "offered",
    "accepted",
    "overspends",
    "undercounted",
    "second_draws",
    "unapproved",
    "canaries",
    "canary_hits",
    "log_lies",
    "log_lies_missed",
    "reads",
    "half_reads",
    "answers",
    "answers_changed",
)
"""What a test may count; what ought not to happen is counted as well, and must be 0."""


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """What must hold over everything that was counted: these counts are 0, though those above 0 gave them a chance."""

    what: str
    zero: tuple[str, ...]
    tried: str

    def holds(self, counts: Mapping[str, int]) -> bool:
        """Whether it was tried and held."""
        return counts.get(self.tried, 0) > 0 and not any(counts.get(name, 0) for name in self.zero)


INVARIANTS: Mapping[str, Invariant] = {
    "I1": Invariant(what="nothing acknowledged is lost", zero=("lost",), tried="bundles"),
    "I2": Invariant(what="each release is accepted once", zero=("duplicated",), tried="bundles"),
    "I3": Invariant(what="nothing invalid is accepted", zero=("accepted",), tried="offered"),
    "I4": Invariant(
        what="no cap is exceeded, no charge forgotten", zero=("overspends", "undercounted"), tried="bundles"
    ),
    "I5": Invariant(what="one charge buys one draw", zero=("second_draws",), tried="bundles"),
    "I6": Invariant(what="no planted value leaves", zero=("canary_hits",), tried="canaries"),
    "I7": Invariant(what="nothing is accepted that nobody approved", zero=("unapproved",), tried="bundles"),
    "I8": Invariant(what="the log finds every lie", zero=("log_lies_missed",), tried="log_lies"),
    "I9": Invariant(what="no reader sees half a release", zero=("half_reads",), tried="reads"),
    "I10": Invariant(what="the answer after a crash is the one before", zero=("answers_changed",), tried="answers"),
}
