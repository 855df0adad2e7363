"""A refusal as HTTP says it: a status, and a problem document (RFC 9457) with what must hold, was given, and to do."""

from __future__ import annotations

from typing import Any

from shared import errors
from shared.errors import CATALOGUE, Refusal

__all__ = ["PROBLEM", "problem", "problem_kind", "status_of"]

PROBLEM = "application/problem+json"
TEXT_CAP = 2000
_STATUS: tuple[tuple[type[Refusal], int], ...] = (
    (errors.TooLarge, 413),
    (errors.RateRefusal, 429),
    (errors.UnknownMethod, 404),
    (errors.StateRefusal, 404),
    (errors.StoreAway, 503),
    (errors.StorageRefusal, 507),
    (errors.CertificateRefusal, 403),
    (errors.PolicyRefusal, 403),
    (errors.UsageRefusal, 422),
    (errors.DataRefusal, 422),
    (errors.IntegrityRefusal, 400),
    (errors.NetworkRefusal, 503),
)


def status_of(refusal: Refusal) -> int:
    """HTTP status of a refusal; programs that need the cause read its code.

    >>> status_of(errors.EstimateRefusal("no events")), status_of(errors.RoleRefusal("a lead"))
    (422, 403)
    """
    return next((status for kind, status in _STATUS if isinstance(refusal, kind)), 500)


def problem(refusal: Refusal, status: int | None = None) -> dict[str, Any]:
    """The problem document of a refusal.

    Args:
        status: another than `status_of` gives.

    >>> found = problem(errors.RoleRefusal("the role must be lead", given="analyst"))
    >>> found["status"], found["code"], found["must"], found["given"]
    (403, 'E_ROLE', 'the role must be lead', 'analyst')
    """
    refusal = refusal.outside
    said = {"must": refusal.must, "given": refusal.given, "next_step": refusal.next_step, "detail": str(refusal)}
    return {
        "type": f"/v1/problems/{refusal.code}",
        "title": refusal.meaning,
        "status": status_of(refusal) if status is None else status,
        "code": refusal.code,
        **{name: text[:TEXT_CAP] for name, text in said.items()},
    }


def problem_kind(code: str) -> dict[str, Any]:
    """Kind of problem with this code of a refusal: type, title and code. Raises: KeyError."""
    kind = CATALOGUE[code]
    return {"type": f"/v1/problems/{code}", "title": kind.meaning, "code": code}
