"""What makes a file that was renamed or removed stay so after a power cut."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["fsync_folder"]


def fsync_folder(folder: Path) -> None:
    """Flush a folder to disk: what was renamed into it, or removed from it, survives a power cut. Raises: OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
