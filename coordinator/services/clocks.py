"""Trust in this machine's clock, by the sites' signed readings of theirs; without it no certificate is issued.

A certificate, an invitation, the server's own renewal: each is dated by this machine's clock, and one that is a year
ahead for an hour would date them a year wrong. So nothing is issued unless a person confirmed this clock within `WORD`
days, or, of the sites heard within `REMEMBERED` days, at least as many agree with it as do not. While no site has been
heard in that time, the set-up, the last confirmation or a site's last reading vouches for it for as many days. A clock
that is not trusted stops nothing else: releases are accepted, and existing certificates stay in use.

Limits of this: a broken or hostile site that is the only one here can stop certificates from being issued, until a
person confirms the clock; it cannot cause one to be issued. A majority of sites with the same error would be trusted.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from cryptography import x509

from coordinator.store.schema import clock_words as _words
from coordinator.store.schema import site_clocks as _readings
from coordinator.store.store import Store
from shared.errors import CertificateRefusal, ParameterError
from shared.wire.clocks import TOLERATED, WRONG, span

__all__ = ["ClockVerdict", "SeenClocks", "SiteClock", "judge", "restoration_day"]

REMEMBERED = 45
"""Days for which a reading counts; with no site heard for so long, those for which the last word or the set-up does."""
WORD = 7
"""Days for which a person's word counts for more than the sites' readings."""


@dataclass(frozen=True, kw_only=True)
class SiteClock:
    """The last signed reading of one site's clock.

    Args:
        offset: its clock minus ours, in seconds; what the way takes makes it a little smaller.
        day: of ours when it came.
    """

    site: str
    offset: float
    day: dt.date

    @property
    def state(self) -> str:
        """``agrees`` within `TOLERATED`, ``differs`` within `WRONG`, else ``wrong``: one of the clocks must be set."""
        apart = abs(self.offset)
        return (
            "agrees" if apart <= TOLERATED.total_seconds() else "differs" if apart <= WRONG.total_seconds() else "wrong"
        )

    @property
    def words(self) -> str:
        """The offset in words, as in '90 seconds behind this clock'."""
        return f"{span(self.offset)} {'ahead of' if self.offset > 0 else 'behind'} this clock"


@dataclass(frozen=True, kw_only=True)
class ClockVerdict:
    """Verdict on the trust in this clock, with its reason."""

    believed: bool
    why: str

    def require(self) -> None:
        """Raises: CertificateRefusal, when this clock is not believed."""
        if not self.believed:
            raise CertificateRefusal(
                "a clock must be one that others see before anything is dated by it",
                given=self.why,
                next_step="Set the clock (NTP), then coordinator clock confirm; coordinator clock shows who says what.",
            )


def judge(
    now: dt.datetime,
    readings: Sequence[SiteClock],
    *,
    vouched: dt.date,
    word: dt.date | None,
    valid: tuple[dt.datetime, dt.datetime],
) -> ClockVerdict:
    """Verdict on `now`, the time by this machine's clock.

    Args:
        now: time by this machine's clock.
        readings: the last one of each accepted site. One that is dated after tomorrow agrees with nothing: our clock
            has gone back since, or was ahead when it came.
        vouched: day on which the authority was made, by whoever set the coordinator up.
        word: day on which a person last confirmed the clock, by the clock of then.
        valid: first and last moment of the authority's own certificate.
    """
    today = now.date()
    if not valid[0] - WRONG <= now <= valid[1]:
        when = "before" if now < valid[0] else "after"
        return ClockVerdict(believed=False, why=f"{today}, which is {when} the authority's own certificate")

    def lately(day: dt.date, days: int = REMEMBERED) -> bool:
        return -1 <= (today - day).days <= days

    if word is not None and lately(word, WORD):
        return ClockVerdict(believed=True, why=f"a person confirmed it on {word}")
    # Ours has gone back, or was ahead when they called: which of the two, only who has called since can tell.
    after = [one for one in readings if one.day > today + dt.timedelta(days=1)]
    fresh = [one for one in readings if lately(one.day, 1 if after else REMEMBERED)]
    against = [one for one in fresh if one.state == "wrong"]
    agree = len(fresh) - len(against)
    if len(against) > agree:
        named = ", ".join(f"{one.site} is {one.words}" for one in against[:3])
        return ClockVerdict(believed=False, why=f"{today}, and {named}")
    if agree:
        return ClockVerdict(believed=True, why=f"{agree} of {len(fresh)} sites agreed with it lately")
    if after:
        latest = max(after, key=lambda one: one.day)
        return ClockVerdict(believed=False, why=f"{today}, and {latest.site} was heard on {latest.day}")
    days = [*([word] if word else []), *(one.day for one in readings)]
    last = max([vouched, *(day for day in days if day <= today + dt.timedelta(days=1))])
    if lately(last):
        return ClockVerdict(believed=True, why=f"no site's clock has been read lately; set up or confirmed on {last}")
    return ClockVerdict(
        believed=False, why=f"{today}, which nobody else has seen: the last day that others saw was {last}"
    )


class SeenClocks:
    """The sites' readings and people's words, in the coordinator's database.

    Args:
        store: the coordinator's store.
        certificate: the authority's own.
    """

    def __init__(self, store: Store, certificate: x509.Certificate) -> None:
        self._read, self._write = store.read, store.write
        self._store = store
        self._valid = certificate.not_valid_before_utc, certificate.not_valid_after_utc

    def follow(self, certificate: x509.Certificate) -> None:
        """Judge by the dates of the authority that has followed."""
        self._valid = certificate.not_valid_before_utc, certificate.not_valid_after_utc

    def note(self, site: str, said: dt.datetime, now: dt.datetime) -> SiteClock:
        """Keep what a site's clock said when ours said `now`; the last reading of each site is kept."""
        made = SiteClock(site=site, offset=round((said - now).total_seconds(), 3), day=now.date())
        values = {"offset": made.offset, "day": made.day.isoformat()}

        def work(c: sa.Connection) -> None:
            if not c.execute(_readings.update().where(_readings.c.site == site).values(**values)).rowcount:
                c.execute(_readings.insert().values(site=site, **values))

        self._write(work)
        return made

    def readings(self) -> tuple[SiteClock, ...]:
        """The last reading of each site that is accepted now, by name: one that was revoked has no voice."""
        accepted = {site.site for site in self._store.sites() if site.state == "accepted"}
        rows = self._read(lambda c: c.execute(sa.select(_readings).order_by(_readings.c.site)).all())
        return tuple(
            SiteClock(site=row.site, offset=row.offset, day=dt.date.fromisoformat(row.day))
            for row in rows
            if row.site in accepted
        )

    def verdict(self, now: dt.datetime) -> ClockVerdict:
        """Verdict on `now` as the time (`judge`)."""
        newest = sa.select(_words.c.day).order_by(_words.c.number.desc()).limit(1)
        word = self._read(lambda c: c.execute(newest).scalar())
        return judge(
            now,
            self.readings(),
            vouched=self._valid[0].date(),
            word=dt.date.fromisoformat(word) if word else None,
            valid=self._valid,
        )

    def confirm(self, said: dt.datetime, now: dt.datetime, *, dry_run: bool = False) -> None:
        """A person says that it is `said` by another clock; readings that this one dated later are forgotten with that.

        Raises: ParameterError (ours says something else), CertificateRefusal (no time of this authority).
        """
        if abs(said - now) > WRONG:
            raise ParameterError(
                "the time read off another clock must be this machine's",
                given=f"{said:%Y-%m-%d %H:%M} where this machine has {now:%Y-%m-%d %H:%M} UTC",
                next_step="Set the clock (NTP) first.",
            )
        judge(now, (), vouched=now.date(), word=None, valid=self._valid).require()

        def work(c: sa.Connection) -> None:
            c.execute(_readings.delete().where(_readings.c.day > (now.date() + dt.timedelta(days=1)).isoformat()))
            c.execute(_words.insert().values(day=now.date().isoformat()))

        if not dry_run:
            self._write(work)


def restoration_day(clocks: SeenClocks, now: dt.datetime, said: dt.date | None) -> dt.date:
    """The day that a log's restoration is dated by: this clock's, where others see it or a person read the date.

    A date that is still to come would stop every site until that day, and no later word takes it back. A backup that
    nobody has been heard since vouches for no clock: then a person's word is all there is, and enough.

    Args:
        said: the date on another clock, if a person has read it there.
    Raises: CertificateRefusal (nobody vouches for this clock), ParameterError (it says another date).
    """
    if said is not None and abs((said - now.date()).days) > 1:
        raise ParameterError(
            "the date read off another clock must be this machine's",
            given=f"{said} where this machine has {now:%Y-%m-%d}",
            next_step="Set the clock (NTP) first.",
        )
    verdict = clocks.verdict(now)
    if said is None and not verdict.believed:
        raise CertificateRefusal(
            "a restoration must be dated by a clock that others see: sites stop until its day",
            given=verdict.why,
            next_step="Set the clock (NTP), read the date off another one, and add it: --date YYYY-MM-DD.",
        )
    return now.date()
