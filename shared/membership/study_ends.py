"""The end of a study, as its leads sign it: nothing more is asked, made or taken of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shared.base.canonical import is_word
from shared.membership.statements import Chained, must_be

__all__ = ["STUDY_END_TYPE", "StudyEnd"]

STUDY_END_TYPE = "application/vnd.tributary.study-end+json"
REASON_CAP = 500


@dataclass(frozen=True, kw_only=True)
class StudyEnd(Chained):
    """A lead's word that a study is over. It is the first and only one of its chain.

    Args:
        plan_hash: of the plan that was newest then; its retention says until when releases are kept.
        reason: a line for everybody who reads the log.
    """

    TYPE: ClassVar[str] = STUDY_END_TYPE
    FORMAT: ClassVar[str] = "tributary-study-end/1"
    WHAT: ClassVar[str] = "the end of a study"

    coordinator: str
    study: str
    plan_hash: str
    reason: str

    def __post_init__(self) -> None:
        super().__post_init__()
        must_be(all(map(is_word, (self.coordinator, self.study))), "the end of a study must name it by a plain word")
        must_be(self.number == 1, "a study must end once")
        line = isinstance(self.reason, str) and 0 < len(self.reason) <= REASON_CAP and self.reason.isprintable()
        must_be(line, f"a reason must be a line of at most {REASON_CAP} letters")
