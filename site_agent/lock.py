"""One agent at a time in a state folder.

The lock is the kernel's (``flock`` on ``agent.lock``), not the file's existence: it ends with the process, however
that ends, so there is no stale lock to clear by hand. The file holds the process id only to name it in a refusal.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from shared.errors import LockedRefusal, StorageRefusal

__all__ = ["StateLock"]


class StateLock:
    """Hold the state folder `home`, as a context manager.

    Raises, on entering: LockedRefusal (another agent holds it), StorageRefusal (the folder cannot be written).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home, StateLock(Path(home)):
    ...     sorted(path.name for path in Path(home).iterdir())
    ['agent.lock']
    """

    def __init__(self, home: Path) -> None:
        self.path = home / "agent.lock"
        self._handle: int | None = None

    def __enter__(self) -> StateLock:
        import fcntl

        try:
            # Not inherited by programs the agent starts, or they would keep the lock when the agent is gone.
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageRefusal(
                f"the agent's lock file {self.path.name} must be writable",
                given=error.strerror or "an error",
                next_step="Check the state folder's owner, permissions and free space.",
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise LockedRefusal(
                f"one agent at a time must hold the state folder, by its lock file {self.path.name}",
                given=f"a running agent with process id {holder}",
                next_step="Wait for it, or stop that agent; the lock ends with it. Do not delete the file.",
            ) from None
        self._handle = handle
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            self._release()
            raise StorageRefusal(
                f"the agent's lock file {self.path.name} must be writable",
                given=error.strerror or "an error",
                next_step="Free space in the state folder.",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
