"""Membership, by statements that leads and sites have signed: grants, leads, keys, approvers.

Everything is a signed statement that follows the one before it (`shared.membership.statements`), is logged in the
transaction that applies it, and is taken once however often it is shown. After a restore from a backup, sites show the
coordinator the statements that it has lost, so that leads need not sign them anew.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from coordinator.config import FILE_NAME, CoordinatorConfig
from coordinator.store import membership as tables
from coordinator.store import schema as db
from coordinator.store.engine import append_entry
from coordinator.store.members import retire_keys
from coordinator.store.membership import require_open
from coordinator.store.rows import RegisteredSite
from coordinator.store.store import Store
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey, write_private
from shared.errors import ReplayRefusal, RoleRefusal, SchemaRefusal, SignatureRefusal, StateRefusal, TooLarge
from shared.membership.authorities import AuthorityReplacement
from shared.membership.declined import DECLINED_TYPE, open_notice
from shared.membership.grants import GRANT_TYPE, Grant
from shared.membership.key_changes import KEY_CHANGE_TYPE, KeyChange, SiteKeyring, after, open_key_change
from shared.membership.leads import LEAD_CHANGE_TYPE, LeadChange, Leads, open_lead_change
from shared.membership.statements import Chained, ChainPlace, require_next

if TYPE_CHECKING:
    from shared.wire.site_messages import MembershipReply

__all__ = ["Members"]

NOTICES_CAP = 1000
"""Most declined releases that one site may report."""


class Members:
    """Membership in one coordinator's store.

    Args:
        store: the store.
        coordinator: the coordinator's id.
    """

    def __init__(self, store: Store, coordinator: str) -> None:
        self._store, self.coordinator = store, coordinator
        self._read, self._write = store.read, store.write

    # -- grants -----------------------------------------------------------------------------------------------------
    def grants(self, site: str) -> tuple[tuple[Grant, Envelope], ...]:
        """The grants of a site and their ends, oldest first."""
        return self._read(lambda c: _grants(c, site))

    def takes_part(self, site: str, invited: Sequence[str]) -> list[str]:
        """Studies of a site that is invited to some: those, and what it was granted and not taken out of since."""
        return self._read(lambda c: tables.takes_part(c, site, invited))

    def places(self, site: str) -> tuple[str, str]:
        """Last places of the chain of leads and of a site's chain of grants; blank where a chain has not begun."""
        ends = (self.lead_changes()[-1:], self.grants(site)[-1:])
        leads, grants = (str(ChainPlace(number=s.number, digest=s.digest)) if s else "" for s in map(_said, ends))
        return leads, grants

    def grant(self, envelope: Envelope, leads: Leads) -> int:
        """Take a lead's word on a site and a study; the same again changes nothing. Its place in the log.

        Raises: SignatureRefusal (not enough of the leads), ReplayRefusal (not the next of this site), StateRefusal (the
            site takes no part), PlanRefusal (no such study).
        """
        said = Grant.from_bytes(envelope.require(GRANT_TYPE, leads.trusted, threshold=leads.threshold))
        if said.coordinator != self.coordinator:
            raise ReplayRefusal("a grant must be of this coordinator", given="another's")
        self._store.plan(said.study)

        def work(c: sa.Connection) -> int:
            known = _grants(c, said.site)
            if said.digest in [one.digest for one, _ in known]:
                where = (tables.grants.c.site == said.site) & (tables.grants.c.number == said.number)
                return int(c.execute(sa.select(tables.grants.c.log_index).where(where)).scalar_one())
            require_next(said, known[-1][0] if known else None)
            if said.granted:
                require_open(c, said.study)
            row = c.execute(sa.select(db.sites).where(db.sites.c.site == said.site)).first()
            if row is None or row.state != "accepted":
                raise StateRefusal(
                    "a site must take part to be granted a study, or taken out of one",
                    given="an unknown site" if row is None else f"one that is {row.state}",
                    next_step="coordinator invite names the studies of a site that joins anew.",
                )
            reach("grant.before_log")
            index, _ = append_entry(c, tables.grant_leaf(said))
            values = {"site": said.site, "number": said.number, "study": said.study, "granted": said.granted}
            c.execute(tables.grants.insert().values(**values, envelope=envelope.to_bytes(), log_index=index))
            others = [study for study in json.loads(row.studies) if study != said.study]
            studies = json.dumps([*others, said.study] if said.granted else others)
            c.execute(db.sites.update().where(db.sites.c.site == said.site).values(studies=studies))
            reach("grant.before_commit")
            return index

        index = self._write(work)
        reach("grant.committed")
        return index

    def require_known(self, site: RegisteredSite, study: str) -> None:
        """Refuse a study that a site takes no part in and never did. Raises: RoleRefusal."""
        if study not in site.studies and study not in self._read(lambda c: tables.ever_granted(c, site.site)):
            raise RoleRefusal("the site must be invited to the study", given=study, next_step="Ask the study lead.")

    # -- leads ------------------------------------------------------------------------------------------------------
    def lead_changes(self) -> tuple[tuple[LeadChange, Envelope], ...]:
        """Every change of leads, oldest first."""
        return self._read(_lead_changes)

    def leads(self, home: Path) -> Leads:
        """Current leads: by the last change, or, before the first, by the keys in the home folder and its settings."""
        changes = self.lead_changes()
        if changes:
            return Leads(keys=changes[-1][0].after, threshold=changes[-1][0].threshold)
        keys = sorted({path.read_text().strip() for path in (home / "keys").glob("*.pub")})
        threshold = CoordinatorConfig.load(home).threshold if (home / FILE_NAME).exists() else 1
        return Leads(keys=tuple(keys), threshold=threshold)

    def change_leads(self, envelope: Envelope, leads: Leads) -> int:
        """Take a change of leads that begins at `leads`; the same again changes nothing. Its place in the log.

        Raises: as `open_lead_change`.
        """
        place = sa.select(tables.lead_changes.c.log_index)
        known_as = tables.lead_changes.c.number == LeadChange.said(envelope).number
        again = self._read(lambda c: c.execute(place.where(known_as)).scalar())
        if again is not None and LeadChange.said(envelope) in [said for said, _ in self.lead_changes()]:
            return int(again)
        said = open_lead_change(envelope, leads=leads, coordinator=self.coordinator)

        def work(c: sa.Connection) -> int:
            known = _lead_changes(c)
            require_next(said, known[-1][0] if known else None)
            index, _ = append_entry(c, tables.lead_leaf(said))
            values = {"number": said.number, "envelope": envelope.to_bytes(), "log_index": index}
            c.execute(tables.lead_changes.insert().values(**values))
            return index

        index = self._write(work)
        reach("leads.committed")
        return index

    def settle_leads(self, home: Path) -> None:
        """Bring the files of the home folder to where the log's changes of leads are; a crash may have come between.

        The name of a lead is a file of their public key; whoever has left is moved aside, private key and all.
        """
        keys = home / "keys"
        changes = [said for said, _ in self.lead_changes()]
        for said in changes:
            public = keys / f"{said.name}.pub"
            if said.joins and said.joins in changes[-1].after and not public.exists():
                write_private(public, f"{said.joins}\n".encode())
            if said.leaves and public.exists() and public.read_text().strip() == said.leaves:
                (keys / "retired").mkdir(mode=0o700, exist_ok=True)
                for path in (keys / f"{said.name}.pem", public):
                    if path.exists():
                        path.rename(keys / "retired" / path.name)
        if changes and (home / FILE_NAME).exists():
            config = CoordinatorConfig.load(home)
            if config.threshold != changes[-1].threshold:
                write_private(home / FILE_NAME, replace(config, threshold=changes[-1].threshold).to_toml().encode())

    # -- the certificate authority ----------------------------------------------------------------------------------
    def note_replacements(self, replaced: Iterable[bytes]) -> None:
        """Log every replacement of the authority that is in ``ca/`` and not here; again changes nothing.

        The file is what puts it in force: a crash may have come between, or the database is from a backup of before.
        """
        known = sa.select(tables.authority_replacements.c.digest)
        envelopes = [Envelope.from_bytes(data) for data in replaced]
        if {one.digest for one in envelopes} <= set(self._read(lambda c: c.execute(known).scalars().all())):
            return

        def work(c: sa.Connection) -> None:
            there = set(c.execute(known).scalars())
            for envelope in envelopes:
                if envelope.digest not in there:
                    index, _ = append_entry(c, tables.replacement_leaf(AuthorityReplacement.said(envelope)))
                    values = {"digest": envelope.digest, "envelope": envelope.to_bytes(), "log_index": index}
                    c.execute(tables.authority_replacements.insert().values(**values))
            reach("authority.before_commit")

        self._write(work)
        reach("authority.logged")

    # -- keys of sites ----------------------------------------------------------------------------------------------
    def key_changes(self, site: str) -> tuple[tuple[KeyChange, Envelope], ...]:
        """The changes of a site's keys that are in force, oldest first."""
        return self._read(lambda c: _key_changes(c, site))

    def waiting(self, site: str | None = None) -> tuple[tuple[KeyChange, Envelope], ...]:
        """Replacements of lost keys that wait for the study lead."""
        query = sa.select(tables.key_changes).where(tables.key_changes.c.log_index.is_(None))
        if site is not None:
            query = query.where(tables.key_changes.c.site == site)
        rows = self._read(lambda c: c.execute(query.order_by(tables.key_changes.c.site)).all())
        envelopes = [Envelope.from_bytes(row.envelope) for row in rows]
        return tuple((KeyChange.said(one), one) for one in envelopes)

    def in_force(self, site: RegisteredSite, today: dt.date) -> RegisteredSite:
        """The site with those approvers who may approve today."""
        ring = self._read(lambda c: tables.keyring(c, site.site) if tables.deputies_of(c, site.site) else None)
        return site if ring is None else replace(site, approvers=ring.on(today))

    def stands_in(self, site: str) -> dict[str, str]:
        """Deputies of a site, each with the approver for whom they stand in."""
        return {name: given[0] for name, given in self._read(lambda c: tables.deputies_of(c, site)).items()}

    def change_key(self, site: str, envelope: Envelope, today: dt.date) -> KeyChange:
        """Take a change of a site's keys: logged and in force at once, or, where the old key is lost, waiting.

        Raises: SignatureRefusal, ApprovalRefusal, SchemaRefusal, ReplayRefusal (another site's, or not the next one),
            TooLarge (beyond `MOST_CHANGES` of one site).
        """
        said = KeyChange.said(envelope)
        if (said.coordinator, said.site) != (self.coordinator, site):
            raise ReplayRefusal("a change of keys must be of the calling site and this coordinator", given="another's")

        def work(c: sa.Connection) -> None:
            known = _key_changes(c, site)
            if said.digest in [one.digest for one, _ in known]:
                return
            require_next(said, known[-1][0] if known else None)
            ring = _ring(c, site)
            open_key_change(envelope, ring, needed=self._needed(c, site, ring))
            place = (tables.key_changes.c.site == site) & tables.key_changes.c.log_index.is_(None)
            c.execute(tables.key_changes.delete().where(place))
            index = None if said.lost else _apply(c, said, ring)
            _keep(c, said, envelope, index, today)

        self._write(work)
        reach("keys.committed")
        return said

    def allow(self, site: str, fingerprint: str, today: dt.date) -> KeyChange:
        """Put a replacement in force whose new key the study lead has compared with the steward.

        Raises: StateRefusal (none waits), SignatureRefusal (another key).
        """
        wanted = "".join(fingerprint.lower().split())

        def work(c: sa.Connection) -> KeyChange:
            place = (tables.key_changes.c.site == site) & tables.key_changes.c.log_index.is_(None)
            row = c.execute(sa.select(tables.key_changes).where(place)).first()
            if row is None:
                raise StateRefusal(
                    "a site must have asked to replace a lost key",
                    given=f"nothing of {site} that waits",
                    next_step="Its steward runs site-agent rotate-key release --lost, or site-agent approver replace.",
                )
            envelope = Envelope.from_bytes(row.envelope)
            said = KeyChange.said(envelope)
            if wanted != "".join(PublicKey(said.new).fingerprint.split()):
                raise SignatureRefusal(
                    "the fingerprint must be that of the new key",
                    given="another",
                    next_step="Ask the steward to read it out. If it differs, somebody else asked: revoke the site.",
                )
            known = _key_changes(c, site)
            require_next(said, known[-1][0] if known else None)
            ring = _ring(c, site)
            open_key_change(envelope, ring, needed=self._needed(c, site, ring))
            c.execute(tables.key_changes.update().where(place).values(log_index=_apply(c, said, ring)))
            return said

        done = self._write(work)
        reach("keys.allowed")
        return done

    def _needed(self, c: sa.Connection, site: str, ring: SiteKeyring) -> int:
        """Approvers who must sign a change: as many as the strictest of the site's plans asks for, if there are."""
        row = c.execute(sa.select(db.sites.c.studies).where(db.sites.c.site == site)).scalar_one()
        studies = set(json.loads(row))
        most = max(
            (stored.plan.floors.approvals for stored in self._store.plans() if stored.plan.study in studies), default=1
        )
        return min(most, len(ring.approvers) - len(ring.deputies))

    # -- what stewards chose to tell ---------------------------------------------------------------------------------
    def note_declined(self, site: RegisteredSite, envelope: Envelope, today: dt.date) -> None:
        """Keep a person's word on a release that they declined; again changes nothing.

        Raises: SignatureRefusal, ReplayRefusal, RoleRefusal, TooLarge (beyond `NOTICES_CAP` of one site).
        """
        # Shown again it is not held against who approves now: its person may have left. Another's signature under the
        # same words is nothing shown again.
        mine = tables.declined.c.site == site.site
        shown = sa.select(tables.declined.c.envelope).where(mine & (tables.declined.c.digest == envelope.digest))
        if self._read(lambda c: c.execute(shown).scalar()) == envelope.to_bytes():
            return
        said = open_notice(envelope, site.approvers, coordinator=self.coordinator, site=site.site)
        self.require_known(site, said.study)

        def work(c: sa.Connection) -> None:
            known = set(c.execute(sa.select(tables.declined.c.digest).where(mine)).scalars())
            if envelope.digest in known:
                return
            if len(known) >= NOTICES_CAP:
                raise TooLarge(f"a site may tell of at most {NOTICES_CAP} declined releases", given=f"{len(known)}")
            names = ("study", "wave", "decision", "reason")
            values = {"site": site.site, "digest": envelope.digest, **{name: getattr(said, name) for name in names}}
            c.execute(tables.declined.insert().values(**values, envelope=envelope.to_bytes(), day=today.isoformat()))

        self._write(work)

    def declined(self, study: str = "") -> tuple[dict[str, Any], ...]:
        """Declined releases that stewards chose to report, of all studies if `study` is blank; oldest first."""
        names = ("day", "site", "study", "wave", "decision", "reason")
        query = sa.select(*(tables.declined.c[name] for name in names)).order_by(tables.declined.c.day)
        if study:
            query = query.where(tables.declined.c.study == study)
        return tuple(dict(row) for row in self._read(lambda c: c.execute(query).mappings().all()))

    # -- keys that were in other hands --------------------------------------------------------------------------------
    def distrust(self, site: str, since: dt.date, today: dt.date) -> tuple[str, ...]:
        """Rely no more on what was accepted of a site on a day or after it; ids of those releases.

        They stay in the log and on the disk; no question sees them, and results that rest on them are stale.
        """

        def work(c: sa.Connection) -> tuple[str, ...]:
            already = sa.select(tables.distrusted.c.bundle_sha256)
            query = sa.select(db.releases.c.bundle_sha256, db.releases.c.release_id).where(
                (db.releases.c.site == site)
                & (db.releases.c.accepted_day >= since.isoformat())
                & db.releases.c.bundle_sha256.not_in(already)
            )
            rows = c.execute(query.order_by(db.releases.c.log_index)).all()
            if not rows:
                return ()
            leaf = tables.distrust_leaf(site, since.isoformat(), [row.bundle_sha256 for row in rows])
            index, _ = append_entry(c, leaf)
            values = {"site": site, "since": since.isoformat(), "log_index": index, "day": today.isoformat()}
            c.execute(tables.distrusted.insert(), [{"bundle_sha256": row.bundle_sha256, **values} for row in rows])
            return tuple(row.release_id for row in rows)

        return self._write(work)

    # -- one call of a site -----------------------------------------------------------------------------------------
    def exchange(
        self, site: RegisteredSite, statements: Iterable[Envelope], home: Path, today: dt.date
    ) -> MembershipReply:
        """Take what a site shows, in order, and say all that is known of it.

        A change of leads may come from a site as well: this coordinator was put back, and has forgotten it. It counts
        as ever by the signatures of those who lead here.

        Raises: any refusal of a statement: those before it stay taken.
        """
        from shared.wire.site_messages import MembershipReply

        waits = []
        for envelope in statements:
            if envelope.payload_type == KEY_CHANGE_TYPE:
                said = self.change_key(site.site, envelope, today)
                waits += [said.digest] if said.lost and said.digest in self._waiting(site.site) else []
            elif envelope.payload_type == GRANT_TYPE:
                if Grant.said(envelope).site != site.site:
                    raise ReplayRefusal("a grant must be of the calling site", given="another's")
                self.grant(envelope, self.leads(home))
            elif envelope.payload_type == DECLINED_TYPE:
                self.note_declined(site, envelope, today)
            elif envelope.payload_type == LEAD_CHANGE_TYPE:
                self.change_leads(envelope, self.leads(home))
                self.settle_leads(home)
            else:
                raise SchemaRefusal("a statement must be of a known type", given="another")
        return MembershipReply(
            grants=tuple(one.to_bytes() for _, one in self.grants(site.site)),
            leads=tuple(one.to_bytes() for _, one in self.lead_changes()),
            keys=tuple(one.to_bytes() for _, one in self.key_changes(site.site)),
            taken=tuple(waits),
        )

    def _waiting(self, site: str) -> set[str]:
        return {said.digest for said, _ in self.waiting(site)}


def _said(end: Sequence[tuple[Chained, Envelope]]) -> Chained | None:
    return end[0][0] if end else None


def _grants(c: sa.Connection, site: str) -> tuple[tuple[Grant, Envelope], ...]:
    query = sa.select(tables.grants.c.envelope).where(tables.grants.c.site == site).order_by(tables.grants.c.number)
    envelopes = [Envelope.from_bytes(data) for data in c.execute(query).scalars()]
    return tuple((Grant.said(one), one) for one in envelopes)


def _lead_changes(c: sa.Connection) -> tuple[tuple[LeadChange, Envelope], ...]:
    query = sa.select(tables.lead_changes.c.envelope).order_by(tables.lead_changes.c.number)
    envelopes = [Envelope.from_bytes(data) for data in c.execute(query).scalars()]
    return tuple((LeadChange.said(one), one) for one in envelopes)


def _key_changes(c: sa.Connection, site: str) -> tuple[tuple[KeyChange, Envelope], ...]:
    place = (tables.key_changes.c.site == site) & tables.key_changes.c.log_index.is_not(None)
    query = sa.select(tables.key_changes.c.envelope).where(place).order_by(tables.key_changes.c.number)
    envelopes = [Envelope.from_bytes(data) for data in c.execute(query).scalars()]
    return tuple((KeyChange.said(one), one) for one in envelopes)


def _ring(c: sa.Connection, site: str) -> SiteKeyring:
    ring = tables.keyring(c, site)
    if ring is None:
        raise StateRefusal("a site must have joined to change its keys", given="an unknown site")
    return ring


def _keep(c: sa.Connection, said: KeyChange, envelope: Envelope, index: int | None, today: dt.date) -> None:
    values = {"site": said.site, "digest": said.digest, "number": said.number, "log_index": index}
    c.execute(tables.key_changes.insert().values(**values, envelope=envelope.to_bytes(), day=today.isoformat()))


def _apply(c: sa.Connection, said: KeyChange, ring: SiteKeyring) -> int:
    """Log a change and pin what it makes of the site's keys; its place in the log."""
    reach("keys.before_log")
    index, _ = append_entry(c, tables.key_leaf(said))
    if said.role in ("release", "approver"):
        ring = after(said, ring)
        retire_keys(c, said.site)
        keys = [{"site": said.site, "role": "release", "name": "", "public_key": ring.release.hex}]
        for name, key in ring.approvers.items():
            keys.append({"site": said.site, "role": "approver", "name": name, "public_key": key.hex})
        c.execute(db.site_keys.insert(), keys)
        c.execute(tables.deputies.delete().where(tables.deputies.c.site == said.site))
        for name, (deputy_of, until) in ring.deputies.items():
            values = {"site": said.site, "name": name, "deputy_of": deputy_of, "until": until}
            c.execute(tables.deputies.insert().values(**values))
    reach("keys.before_commit")
    return index
