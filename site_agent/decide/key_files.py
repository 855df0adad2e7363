"""The site's keys as files: which one is in force after a crash, and what is kept of those that were.

The ledger says which key is in force. A new release key lies in ``release.next.pem`` before the ledger names it, and
takes the place of ``release.pem`` after: whichever of the two the ledger ends with is the right one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shared.base.at_rest import machine_secret
from shared.base.durable import fsync_folder
from shared.base.failpoints import reach
from shared.base.keys import SigningKey, encrypt_at_rest, unencrypted, write_private
from shared.errors import IntegrityRefusal, LedgerRefusal, StateRefusal
from shared.membership.key_changes import snapshot_mark
from site_agent.ledger.book import Ledger
from site_agent.lock import StateLock

if TYPE_CHECKING:
    from pathlib import Path

    from site_agent.config import SiteConfig

__all__ = [
    "encrypt_keys",
    "keep_snapshot_key",
    "keep_tag_key",
    "put_in_force",
    "put_snapshot_in_force",
    "release_key",
    "snapshot_keys",
    "unattended",
]


def release_key(config: SiteConfig) -> SigningKey:
    """The agent's key that the ledger ends with; a rotation that was interrupted after its entry is brought to an end.

    Raises: StateRefusal (none), StorageRefusal.
    """
    if config.next_release_key.exists() and config.ledger.exists():
        following = SigningKey.load(config.next_release_key)
        try:
            Ledger(config.ledger, following, site=config.site)
        except LedgerRefusal:
            # Not named by the ledger: the key from before is in force, and the next rotation takes another one.
            return SigningKey.load(config.release_key)
        put_in_force(config)
    if config.ledger.exists() and not config.release_key.exists():
        step = "Put it back from a backup, or have another one: site-agent rotate-key release --lost --as NAME."
        raise StateRefusal("the agent's key must be there", given=f"no {config.release_key.name}", next_step=step)
    return SigningKey.load(config.release_key)


def unattended(config: SiteConfig) -> list[Path]:
    """Files that may hold a private key which the agent opens unattended."""
    return sorted(config.release_key.parent.glob("*.pem"))


def encrypt_keys(config: SiteConfig) -> list[Path]:
    """Encrypt what lies in the clear of `unattended`, where this machine has a secret; the files that changed.

    Raises: LockedRefusal, when somebody works in this folder.
    """
    if machine_secret() is None or not unencrypted(unattended(config)):
        return []
    with StateLock(config.home):
        return encrypt_at_rest(unattended(config))


def put_in_force(config: SiteConfig) -> None:
    """Let the next release key take the place of the one before."""
    reach("keys.before_replace")
    os.replace(config.next_release_key, config.release_key)
    fsync_folder(config.release_key.parent)
    reach("keys.replaced")


def keep_tag_key(config: SiteConfig) -> None:
    """Keep the first release key for the tags of studies: with another one, no export could show what is a study's."""
    if not config.tag_key.exists():
        write_private(config.tag_key, config.release_key.read_bytes())


def keep_snapshot_key(config: SiteConfig) -> str:
    """Keep the secret in force for the studies that began under it; its mark."""
    key = config.snapshot_key.read_bytes()
    mark = snapshot_mark(key)
    write_private(config.former_snapshot_key(mark), key)
    return mark


def put_snapshot_in_force(config: SiteConfig, mark: str) -> None:
    """Let the next secret, if it is the one that the ledger names, take the place of the one before."""
    following = config.snapshot_key.with_name("snapshot.next.key")
    if following.exists() and snapshot_mark(following.read_bytes()) == mark:
        os.replace(following, config.snapshot_key)
        fsync_folder(config.snapshot_key.parent)
        reach("snapshot.replaced")


def snapshot_keys(config: SiteConfig, marks: Mapping[str, str]) -> dict[str, bytes]:
    """The secret of each study that began under another one than the one in force. Raises: IntegrityRefusal (lost)."""
    out = {}
    for study, mark in marks.items():
        if not mark:
            continue
        path = config.former_snapshot_key(mark)
        key = path.read_bytes() if path.exists() else b""
        if snapshot_mark(key) != mark:
            raise IntegrityRefusal(
                f"the secret under which {study} began must be in keys/snapshot",
                given="another key" if key else "none",
                next_step="Restore it from a backup: with another key every person would look new.",
            )
        out[study] = key
    return out
