"""Tables of who takes part, and since when: grants, leads, keys of sites, releases that nobody relies on any more.

Each row holds the signed statement itself and its place in the log. Rows are read here; what writes them is
`coordinator.services.membership`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from coordinator.store import schema as db
from shared.base.canonical import canonical_json, parse_json
from shared.base.keys import Envelope, PublicKey
from shared.errors import StateRefusal
from shared.membership.authorities import AuthorityReplacement
from shared.membership.grants import Grant
from shared.membership.key_changes import KeyChange, SiteKeyring
from shared.membership.leads import LeadChange
from shared.membership.study_ends import StudyEnd
from shared.wire.certificates import LATE_TYPE

__all__ = [
    "authority_replacements",
    "begin_anew",
    "declined",
    "deputies",
    "distrusted",
    "end_leaf",
    "ever_granted",
    "grant_leaf",
    "granted",
    "grants",
    "key_changes",
    "key_leaf",
    "keyring",
    "lead_changes",
    "lead_leaf",
    "logged",
    "renewal_leaf",
    "renewals",
    "replacement_leaf",
    "require_open",
    "study_ends",
    "takes_part",
]

_word = sa.String(64)
grants = sa.Table(
    "grants",
    db.meta,
    sa.Column("site", _word, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("study", _word, nullable=False),
    sa.Column("granted", sa.Boolean, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
lead_changes = sa.Table(
    "lead_changes",
    db.meta,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
# A change without a place in the log waits for the study lead: its old key is lost, and did not sign it.
key_changes = sa.Table(
    "key_changes",
    db.meta,
    sa.Column("site", _word, sa.ForeignKey("sites.site"), primary_key=True),
    sa.Column("digest", _word, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), unique=True),
    sa.Column("day", sa.String(10), nullable=False),
)
# Those of earlier memberships of a site, which began anew with another folder: they are of the log, and of nobody now.
past_key_changes = sa.Table(
    "past_key_changes",
    db.meta,
    sa.Column("site", _word, primary_key=True),
    sa.Column("digest", _word, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
    sa.Column("day", sa.String(10), nullable=False),
)
# Certificates that followed another, each with the request that the site's release key signed.
renewals = sa.Table(
    "renewals",
    db.meta,
    sa.Column("serial", _word, primary_key=True),
    sa.Column("site", _word, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
# The leads' words by which another certificate authority took the place of one whose key was in other hands.
authority_replacements = sa.Table(
    "authority_replacements",
    db.meta,
    sa.Column("digest", _word, primary_key=True),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
study_ends = sa.Table(
    "study_ends",
    db.meta,
    sa.Column("study", sa.String(64), primary_key=True),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
)
deputies = sa.Table(
    "deputies",
    db.meta,
    sa.Column("site", _word, sa.ForeignKey("sites.site"), primary_key=True),
    sa.Column("name", _word, primary_key=True),
    sa.Column("deputy_of", _word, nullable=False),
    sa.Column("until", sa.String(10), nullable=False),
)
# Releases that were accepted after a day from which a site's keys may have been in other hands.
distrusted = sa.Table(
    "distrusted",
    db.meta,
    sa.Column("bundle_sha256", _word, primary_key=True),
    sa.Column("site", _word, nullable=False),
    sa.Column("since", sa.String(10), nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)
# What a steward chose to tell of a release that was declined.
declined = sa.Table(
    "declined",
    db.meta,
    sa.Column("site", _word, primary_key=True),
    sa.Column("digest", _word, primary_key=True),
    sa.Column("study", _word, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("decision", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)


def grant_leaf(said: Grant) -> dict[str, Any]:
    """A grant's entry in the log."""
    body = {"kind": "grant" if said.granted else "ungrant", "site": said.site, "study": said.study}
    return {**body, "number": said.number, "statement": said.digest}


def lead_leaf(said: LeadChange) -> dict[str, Any]:
    """The entry of a change of leads: the statement is public, and stands in it."""
    body = {"kind": "lead_change", "number": said.number, "name": said.name, "statement": said.digest}
    return {**body, "after": list(said.after), "threshold": said.threshold}


def key_leaf(said: KeyChange) -> dict[str, Any]:
    """The entry of a change of a site's keys."""
    names = ("site", "number", "role", "action", "old", "new")
    return {"kind": "key_change", "statement": said.digest, **{name: getattr(said, name) for name in names}}


def renewal_leaf(site: str, serial: str, asked: Envelope) -> dict[str, Any]:
    """The entry of a certificate that follows another: for which signed request, and whether that came by hand."""
    body = {"kind": "renewal", "site": site, "serial": serial, "statement": asked.digest}
    return body | ({"late": True} if asked.payload_type == LATE_TYPE else {})


def distrust_leaf(site: str, since: str, bundles: list[str]) -> dict[str, Any]:
    """The entry of a revocation that reaches back."""
    return {"kind": "distrusted", "site": site, "since": since, "bundles": sorted(bundles)}


def end_leaf(said: StudyEnd) -> dict[str, Any]:
    """The entry of a study's end."""
    return {"kind": "study_ended", "study": said.study, "statement": said.digest, "reason": said.reason}


def replacement_leaf(said: AuthorityReplacement) -> dict[str, Any]:
    """The entry of an authority that took another's place: the statement is public, and stands in it."""
    body = {"kind": "authority_replaced", "before": said.before, "after": said.after, "statement": said.digest}
    return {**body, "day": said.day, "reason": said.reason}


def require_open(c: sa.Connection, study: str) -> None:
    """Refuse what belongs to a study that is over. Raises: StateRefusal."""
    if c.execute(sa.select(study_ends.c.study).where(study_ends.c.study == study)).first() is not None:
        raise StateRefusal(
            "a study must not have been retired",
            given=f"{study}, which its leads have ended",
            next_step="Nothing more is made or taken of it. A new study has a name and a plan of its own.",
        )


def granted(c: sa.Connection, site: str) -> dict[str, bool]:
    """The last word of the leads on each study that a site was granted."""
    rows = c.execute(sa.select(grants).where(grants.c.site == site).order_by(grants.c.number))
    return {row.study: bool(row.granted) for row in rows}


def takes_part(c: sa.Connection, site: str, invited: Sequence[str]) -> list[str]:
    """Studies of a site that joins by an invitation, with what it was granted and not taken out of since."""
    said = granted(c, site)
    return [*invited, *(study for study, within in said.items() if within and study not in invited)]


def ever_granted(c: sa.Connection, site: str) -> set[str]:
    """Studies that a site takes part in, or did: by invitation or by grant."""
    invited = c.execute(sa.select(db.invitations.c.studies).where(db.invitations.c.site == site)).scalars()
    return {name for given in invited for name in json.loads(given)} | granted(c, site).keys()


def begin_anew(c: sa.Connection, site: str) -> None:
    """Lay aside what a site's earlier membership changed of its keys: a new folder begins with keys and chain anew."""
    own = key_changes.c.site == site
    names = [column.name for column in past_key_changes.columns]
    kept = sa.select(*(key_changes.c[name] for name in names)).where(own & key_changes.c.log_index.is_not(None))
    c.execute(past_key_changes.insert().from_select(names, kept))
    c.execute(key_changes.delete().where(own))
    c.execute(deputies.delete().where(deputies.c.site == site))


# Asked in each call, and so written once.
_KEYS = sa.select(db.site_keys).where(db.site_keys.c.site == sa.bindparam("site"))
_DEPUTIES = sa.select(deputies).where(deputies.c.site == sa.bindparam("site"))


def keyring(c: sa.Connection, site: str) -> SiteKeyring | None:
    """The keys of a site that are in force; None of a site that is not known."""
    rows = c.execute(_KEYS, {"site": site}).all()
    release = [PublicKey(row.public_key) for row in rows if row.role == "release"]
    if not release:
        return None
    return SiteKeyring(
        release=release[0],
        approvers={row.name: PublicKey(row.public_key) for row in rows if row.role == "approver"},
        deputies=deputies_of(c, site),
    )


def deputies_of(c: sa.Connection, site: str) -> dict[str, tuple[str, str]]:
    """Approvers of a site who stand in for others: name to (approver, ISO date until which)."""
    return {row.name: (row.deputy_of, row.until) for row in c.execute(_DEPUTIES, {"site": site})}


def logged(c: sa.Connection) -> dict[int, bytes]:
    """What the log must say at each place that a row here names."""
    out: dict[int, Mapping[str, Any]] = {}
    for row in c.execute(sa.select(grants)):
        out[row.log_index] = grant_leaf(Grant.said(Envelope.from_bytes(row.envelope)))
    for row in c.execute(sa.select(lead_changes)):
        out[row.log_index] = lead_leaf(LeadChange.said(Envelope.from_bytes(row.envelope)))
    for table in (key_changes, past_key_changes):
        for row in c.execute(sa.select(table).where(table.c.log_index.is_not(None))):
            out[row.log_index] = key_leaf(KeyChange.said(Envelope.from_bytes(row.envelope)))
    for row in c.execute(sa.select(renewals)):
        out[row.log_index] = renewal_leaf(row.site, row.serial, Envelope.from_bytes(row.envelope))
    back: dict[int, list[Any]] = {}
    for row in c.execute(sa.select(distrusted)):
        back.setdefault(row.log_index, []).append(row)
    for index, rows in back.items():
        out[index] = distrust_leaf(rows[0].site, rows[0].since, [row.bundle_sha256 for row in rows])
    for row in c.execute(sa.select(authority_replacements)):
        out[row.log_index] = replacement_leaf(AuthorityReplacement.said(Envelope.from_bytes(row.envelope)))
    for row in c.execute(sa.select(study_ends)):
        out[row.log_index] = end_leaf(StudyEnd.said(Envelope.from_bytes(row.envelope)))
    for row in c.execute(sa.select(db.deletions)):  # the columns decide what is hidden: they are held to it as well
        out[row.log_index] = {**parse_json(row.entry), "study": row.study, "plan_hash": row.plan_hash}
    return {index: canonical_json(leaf) for index, leaf in out.items()}
