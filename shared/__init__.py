"""The shared contract of both sides: dictionary, plan, encoding, mechanisms, accounting, receipts, wire."""

from __future__ import annotations

__all__ = ["DISTRIBUTION", "software_version"]

DISTRIBUTION = "tributary-meta"
"""Name of the distribution that pip installs; `tributary` on the public index is another project."""


def software_version() -> str:
    """Version of this software as it was installed; plan approvals are bound to it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # run from a source tree
        return "0+source"
