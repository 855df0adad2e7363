"""Bundles in an object store that speaks S3: each is an object, put whole or not at all, named by its digest.

Access keys come from where every tool of S3 looks for them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile's
file, or the machine's role; none stands in a URL or in the coordinator's settings.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from shared.base.durable import fsync_folder
from shared.base.failpoints import reach
from shared.errors import ConfigRefusal, Refusal, StateRefusal, StorageRefusal, lacking

__all__ = ["BundleObjects", "ObjectPlace"]

FRESH = 60.0  # seconds for which a listing tells whether an object that was verified is still the same
PROBE = b"whether this can be put, read and deleted"
CONNECT = 4  # seconds, of each of two attempts
ANSWER = 10  # seconds of a whole request, its attempts and all but its body included
PACE = 1_000_000  # bytes that a request may send in a second more
OWNER = "owner"  # the object that says whose the place is
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class ObjectPlace:
    """A place in an object store.

    Args:
        bucket: its bucket, which exists already.
        prefix: what the names of all objects begin with; blank for none.
        endpoint: URL of the service; blank for what AWS_ENDPOINT_URL says, or Amazon's own.
    """

    bucket: str
    prefix: str
    endpoint: str

    @classmethod
    def of(cls, url: str) -> ObjectPlace:
        """Read ``s3://bucket/prefix?endpoint=https://host``. Raises: ConfigRefusal, without the text.

        >>> ObjectPlace.of("s3://hub/bundles?endpoint=https://objects.example.org")
        ObjectPlace(bucket='hub', prefix='bundles', endpoint='https://objects.example.org')
        >>> ObjectPlace.of("s3://key:secret@hub/bundles")
        Traceback (most recent call last):
        shared.errors.ConfigRefusal: bundles must be s3://bucket/prefix or blank, got another form (not shown: it may \
hold a secret). For example s3://hub/bundles?endpoint=https://objects.example.org; keys stay in the environment.
        """
        try:
            parts = urlsplit(url)
            asked = parse_qs(parts.query, strict_parsing=bool(parts.query))
            endpoint = asked.pop("endpoint", [""])
            host = urlsplit(endpoint[0])
            prefix = parts.path.strip("/")
            right = (
                parts.scheme == "s3"
                and re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc)
                and re.fullmatch(r"[A-Za-z0-9._/-]*", prefix)
                and not (asked or parts.fragment or host.username or host.password or len(endpoint) > 1)
            )
        except ValueError:
            right = False
        if not right:
            raise ConfigRefusal(
                "bundles must be s3://bucket/prefix or blank",
                given="another form (not shown: it may hold a secret)",
                next_step="For example s3://hub/bundles?endpoint=https://objects.example.org; keys stay in the "
                "environment.",
            )
        loopback = host.scheme == "http" and host.hostname in ("127.0.0.1", "localhost", "::1")
        if endpoint[0] and host.scheme != "https" and not loopback:
            raise ConfigRefusal("an object store must be spoken to by TLS", given="an endpoint without https")
        return cls(bucket=parts.netloc, prefix=prefix, endpoint=endpoint[0])


class BundleObjects:
    """See `coordinator.store.bundles.BundleStore`.

    Args:
        place: see `ObjectPlace.of`.
    Raises: ConfigRefusal; PackageRefusal, at the first call.
    """

    def __init__(self, place: str) -> None:
        self.place, self._of = place, ObjectPlace.of(place)
        self._root = "/".join(filter(None, (self._of.bucket, self._of.prefix)))
        self._states: dict[str, Hashable] = {}
        self._looked, self._looking = float("-inf"), threading.Lock()

    @cached_property
    def _files(self) -> Any:
        """The file system: made where it is first asked, as its thread does not outlive a fork."""
        try:
            from botocore.handlers import add_expect_header
            from s3fs import S3FileSystem
        except ImportError:
            raise lacking("s3fs", "coordinator") from None
        files = S3FileSystem(
            endpoint_url=self._of.endpoint or None,
            use_listings_cache=False,
            skip_instance_cache=True,
            max_concurrency=1,  # a large bundle's parts are not all in memory at once
            config_kwargs={"connect_timeout": CONNECT, "read_timeout": ANSWER, "retries": {"total_max_attempts": 2}},
        )
        files.retries = 1  # those of the client are enough
        files.connect()
        # It waits for the word to go on without any limit: a store that hangs would hold a delivery for ever.
        files.s3.meta.events.unregister("before-call.s3", add_expect_header)
        # So it would with a body that it takes no more bytes of; and two attempts wait for twice as long as one.
        files.s3._make_api_call = _bounded(files.s3._make_api_call)
        return files

    def _key(self, digest: str) -> str:
        return f"{self._root}/{digest}.zip"

    def put(self, digest: str, path: Path) -> None:
        """Send a file's bytes; it stays where it is. Raises: StorageRefusal."""
        with _as_refusals():
            self._files.put_file(f"{path}", self._key(digest))
        reach("ingest.after_move")
        self._forget(digest)

    def take_back(self, digest: str, path: Path) -> None:
        """Remove the object, and have its bytes at `path`. Raises: StorageRefusal."""
        if not path.exists():
            with suppress(FileNotFoundError), self.read(digest) as file:
                with path.open("wb") as back:
                    back.write(file.read_bytes())
                    back.flush()
                    os.fsync(back.fileno())
                fsync_folder(path.parent)
        self.delete(digest)

    @contextmanager
    def read(self, digest: str) -> Iterator[Path]:
        """A copy that ends with the block. Raises: FileNotFoundError, StorageRefusal."""
        with tempfile.NamedTemporaryFile(prefix="tributary-bundle-") as copy:
            try:
                with self._may_lack():
                    self._files.get_file(self._key(digest), copy.name)
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, "no such object", f"{digest}.zip") from None
            yield Path(copy.name)

    def holds(self, digest: str) -> bool:
        """Whether the object is there now. Raises: StorageRefusal."""
        return self._asked_for(digest) is not None

    def state(self, digest: str) -> Hashable:
        """Entity tag and size of the bundle's object, as `BundleStore.state`, at most `FRESH` seconds old.

        All objects are listed together, a thousand in a call, because a question may rest on that many bundles.

        Returns: None where there is no such object.
        Raises: StorageRefusal.
        """
        with self._looking:
            if time.monotonic() - self._looked > FRESH:
                self._states, self._looked = self._listed(), time.monotonic()
            if digest not in self._states:
                self._states[digest] = self._asked_for(digest)
            found = self._states[digest]
            if found is None:
                del self._states[digest]
            return found

    def delete(self, digest: str) -> bool:
        """Remove the object; False where there is none. Raises: StorageRefusal."""
        if not self.holds(digest):
            return False
        with suppress(FileNotFoundError), self._may_lack():
            self._files.rm_file(self._key(digest))
        self._forget(digest)
        return True

    def names(self) -> set[str]:
        """Digests of all objects. Raises: StorageRefusal."""
        return set(self._listed())

    def try_out(self) -> tuple[str, str]:
        """Put, read, delete an object: the place, and a warning if what is deleted stays. Raises: StorageRefusal."""
        digest = hashlib.sha256(PROBE).hexdigest()
        with _as_refusals():
            self._files.pipe_file(self._key(digest), PROBE)
            if self._files.cat_file(self._key(digest)) != PROBE:
                raise OSError
            self._files.rm_file(self._key(digest))
            kept = self._files.is_bucket_versioned(self._of.bucket)
        return self.place, "the bucket keeps versions, deleted bundles too" if kept else ""

    def claim(self, owner: str, *, dry_run: bool = False) -> None:
        """Mark the place as one coordinator's, unless it is marked. Raises: StateRefusal, StorageRefusal."""
        key = f"{self._root}/{OWNER}"
        with suppress(FileNotFoundError), self._may_lack():
            return self._require(owner, self._files.cat_file(key))
        if not dry_run:
            with _as_refusals():
                self._files.pipe_file(key, owner.encode())
                said = self._files.cat_file(key)
            self._require(owner, said)  # of two that claim it at once, one was the last

    def _require(self, owner: str, said: bytes) -> None:
        if said != owner.encode():
            raise StateRefusal(
                "bundles of two coordinators must not lie in one place",
                given="the place of another one",
                next_step="Name another prefix (bundles in coordinator.toml). Where that one is no more, its object "
                f"{OWNER} may be deleted.",
            )

    def _asked_for(self, digest: str) -> Hashable:
        with suppress(FileNotFoundError), self._may_lack():
            return _state(self._files.info(self._key(digest)))
        return None

    @contextmanager
    def _may_lack(self) -> Iterator[None]:
        """As `_as_refusals`, but let FileNotFoundError through where the object is lacking and its bucket is there.

        The server gives one answer for a lacking bucket and a lacking object, and without this the bundles of a
        bucket that is away would count as lost.
        """
        lacking = None
        with _as_refusals():
            try:
                yield
            except FileNotFoundError as error:
                self._files.call_s3("head_bucket", Bucket=self._of.bucket)
                lacking = error
        if lacking is not None:
            raise lacking

    def _listed(self) -> dict[str, Hashable]:
        with _as_refusals():
            found = self._files.find(self._root, detail=True)  # with a depth it would pass over errors
        named = {key: key.removeprefix(f"{self._root}/").removesuffix(".zip") for key in found}
        return {name: _state(found[key]) for key, name in named.items() if _DIGEST.fullmatch(name)}

    def _forget(self, digest: str) -> None:
        with self._looking:
            self._states.pop(digest, None)


def _bounded(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A client's `call`, that ends with TimeoutError after `ANSWER` seconds and what its body may take."""

    async def bounded(operation: str, given: dict[str, Any]) -> Any:
        return await asyncio.wait_for(call(operation, given), ANSWER + len(given.get("Body", b"")) / PACE)

    return bounded


def _state(said: dict[str, Any]) -> Hashable:
    return said["ETag"], said["size"]


@contextmanager
def _as_refusals() -> Iterator[None]:
    """Turn errors of the object store into StorageRefusal; other errors pass."""
    try:
        yield
    except Refusal:
        raise
    except Exception as error:
        from botocore.exceptions import BotoCoreError, ConnectTimeoutError, NoCredentialsError, ReadTimeoutError

        if not isinstance(error, OSError | BotoCoreError):
            raise
        late = isinstance(error, TimeoutError | ConnectTimeoutError | ReadTimeoutError)
        given = "no answer in time" if late else type(error).__name__
        rule, mend = "must answer", "try again when it does"
        if isinstance(error, PermissionError | NoCredentialsError):
            rule, given = "must let this process in", "access denied"
            mend = "mend the access keys, or what they may do in the bucket: get, put, delete, list"
        elif isinstance(error, FileNotFoundError):
            rule, given, mend = "must have their bucket", "none of this name", "mend bundles in coordinator.toml"
        raise StorageRefusal(
            f"the object store of the bundles {rule}",
            given=given,
            next_step=f"Nothing is lost: {mend}. See coordinator doctor.",
        ) from None
