"""The next certificate authority, made while the present one lives: ``coordinator ca rotate``.

The new one has the old one's name and, like all that is made here, its first day. The old one signs its key once: a
server shows that certificate beside its own, so that whoever pins the old one still connects, and sites take it as the
word by which they pin the new one. After that the old key signs nothing more. Sites' certificates are renewed under the
new one at their next round, and both are believed until the old one's own end.

The word (``ca-<number>.json``) is written last, in one step: before it nothing has changed, with it everything has.
"""

from __future__ import annotations

import datetime as dt
import fcntl

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.services.authority import Authority, _pem, authority_certificate, key_name, statement_name
from shared.base.failpoints import reach
from shared.base.keys import write_private
from shared.errors import CertificateRefusal, LockedRefusal, StateRefusal
from shared.wire.certificates import CA_DAYS, SITE_DAYS, AuthorityStatement

__all__ = ["WARNED_BEFORE_END", "rotate"]

WARNED_BEFORE_END = 2 * SITE_DAYS
"""Days before an authority's end at which its lead is told: half of them before sites can no longer be renewed."""


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def rotate(authority: Authority, *, dry_run: bool = False) -> tuple[Authority, AuthorityStatement | None]:
    """Make the next authority; (the one in force, the word that it follows; None in a dry run).

    Raises: StateRefusal (another has followed meanwhile, or is being made), CertificateRefusal (it has ended: nothing
        that it signs is believed).
    """
    now = authority.now()
    if authority.current() is not authority:
        raise StateRefusal("an authority must be the newest to be followed", given="one that was followed already")
    if now >= authority.ends:
        raise CertificateRefusal(
            "an authority must still last to sign the next one",
            given=f"one that ended on {authority.ends:%Y-%m-%d}",
            next_step="Set a new coordinator up and invite its sites anew.",
        )
    if dry_run:
        return authority, None
    folder, number = authority.folder, len(authority.before) + 2
    with (folder / "ca.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockedRefusal("one authority must be made at a time", given="a second command") from None
        if authority.current() is not authority:
            raise StateRefusal("an authority must be the newest to be followed", given="one that was followed already")
        key = ec.generate_private_key(ec.SECP256R1())
        name, since = authority.certificate.subject, authority.certificate.not_valid_before_utc
        made = authority_certificate(name, key.public_key(), key, since, now + dt.timedelta(days=CA_DAYS))
        cross = authority_certificate(name, key.public_key(), authority.key, since, authority.ends)
        said = AuthorityStatement(
            coordinator=authority.coordinator,
            before=authority.fingerprint,
            ca_pem=_text(made),
            cross_pem=_text(cross),
            day=now.date().isoformat(),
        )
        reach("authority.before_key")
        write_private(folder / key_name(number), _pem(key))  # of no authority yet: a crash here is tried again
        reach("authority.before_statement")
        write_private(folder / statement_name(number), said.signed(authority.witness).to_bytes())
        reach("authority.after_statement")
        return authority.current(), said
