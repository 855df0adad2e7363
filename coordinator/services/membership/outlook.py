"""What renews when, and what does not: sites' certificates, the authority's own, and a plan that is to outlive them.

Sites renew by themselves from half of a certificate's life on. So few days left are never news about the calendar, but
about an agent that does not run, is of an earlier version, or is refused; and only a person can mend that.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.services.membership.authority_change import WARNED_BEFORE_END
from shared.terminal import ChecklistLine
from shared.wire.certificates import SITE_DAYS, CertificateLife

if TYPE_CHECKING:
    from coordinator.services.authority import Authority
    from coordinator.store.store import RegisteredSite
    from shared.plans.plan import StudyPlan

__all__ = ["SiteOutlook", "authority_line", "outlook", "plan_lines"]


@dataclass(frozen=True, kw_only=True)
class SiteOutlook:
    """One accepted site's certificate as it stands now.

    Args:
        life: None where the site has not fetched its first one.
    """

    site: str
    life: CertificateLife | None

    @property
    def warning(self) -> str:
        """What its lead should hear; blank while everything goes by itself."""
        if self.life is None or self.life.state in ("good", "due"):
            return ""
        return f"certificate of {self.site}: {self.life.words}"

    @property
    def mend(self) -> str:
        """What mends it."""
        if self.life is not None and self.life.state == "over":
            return f"{self.site} runs site-agent renew --late; you answer with coordinator renew-late {self.site}."
        return (
            f"Ask {self.site} whether its agent runs (site-agent run, of this version); site-agent renew says why not."
        )


def outlook(sites: Sequence[RegisteredSite], now: dt.datetime) -> tuple[SiteOutlook, ...]:
    """Every accepted site's certificate, by name."""
    return tuple(
        SiteOutlook(site=one.site, life=CertificateLife.of(one.certificate_pem, now) if one.certificate_pem else None)
        for one in sites
        if one.state == "accepted"
    )


def authority_line(authority: Authority, now: dt.datetime) -> ChecklistLine:
    """How long the authority lasts; a warning while there is still time for the next one to be made at leisure."""
    left = (authority.ends - now) // dt.timedelta(days=1)
    until = authority.ends - dt.timedelta(days=SITE_DAYS)
    detail = f"the authority's has {left} days left; sites renew under it until {until:%Y-%m-%d}"
    state = "ok" if left >= WARNED_BEFORE_END else "warn" if left >= SITE_DAYS else "fail"
    return ChecklistLine(
        name="authority",
        state=state,  # type: ignore[arg-type]
        detail=detail,
        fix="" if state == "ok" else "coordinator ca rotate: sites follow by themselves.",
    )


def plan_lines(
    plan: StudyPlan, sites: Sequence[RegisteredSite], authority: Authority, now: dt.datetime
) -> list[ChecklistLine]:
    """A plan's calendar held against what its sites hold: red where it outlives what does not renew by itself."""
    last = max(wave.closes for wave in plan.waves)
    known = [one for one in outlook(sites, now) if one.life is not None]
    members = {one.site for one in sites if plan.study in one.studies}
    lines = [
        ChecklistLine(name="certificates", state="fail", detail=f"{one.warning}; wave until {last}", fix=one.mend)
        for one in known
        if one.site in members and one.warning and one.life is not None and one.life.ends.date() <= last
    ]
    good = [one for one in known if one.site in members and not one.warning]
    if good:
        first = min(good, key=lambda one: one.life.renews if one.life else last)
        assert first.life is not None
        many = f"{len(good)} site{'s' if len(good) > 1 else ''}"
        detail = f"{many} renew by themselves while their agents run; next {first.site}, from {first.life.renews}"
        lines.append(ChecklistLine(name="certificates", state="ok", detail=detail))
    if authority.ends.date() <= last:
        line = authority_line(authority, now)
        late = (authority.ends - now) // dt.timedelta(days=1) < WARNED_BEFORE_END
        by = authority.ends - dt.timedelta(days=SITE_DAYS)
        detail = (
            f"ends on {authority.ends:%Y-%m-%d}, before the last wave closes ({last}); the next one by {by:%Y-%m-%d}"
        )
        lines.append(ChecklistLine(name="authority", state="fail" if late else "ok", detail=detail, fix=line.fix))
    return lines
