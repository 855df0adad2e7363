"""Waves as the study lead sees them: a calendar to propose, and a grid of who has delivered.

The coordinator cannot start a wave, and asks no site for anything. A calendar is a new draft version of the plan; once
it is signed and a site's steward has approved it, the site works from its own copy. What the grid shows is what the
coordinator holds: that a site has something waiting for an approver it can only guess, from the site's ledger having
been witnessed since its last delivery, and the grid says so with a question mark.
"""

from __future__ import annotations

import calendar as months
import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shared.errors import IntegrityRefusal, ParameterError
from shared.plans.plan import StudyPlan, Wave

if TYPE_CHECKING:
    from coordinator.store.rows import Quarantined, ReleaseLine, Tombstone, WaveRecord
    from coordinator.store.store import Store

__all__ = ["STATES", "Cell", "WaveGrid", "WaveLine", "draft", "grid", "reminder", "scheduled"]

STATES: Mapping[str, str] = {
    "delivered": "accepted, and read by analysts",
    "late": "accepted after the wave was closed: a revision of it",
    "withdrawn": "taken back by its site; read by nobody",
    "quarantined": "arrived with wrong content; read by nobody",
    "held?": "the site's ledger has moved since its last delivery: something may wait for an approver there",
    "waiting": "nothing yet; whether the site is at work the coordinator cannot know",
    "rejected": "a person there rejected its release, and chose to tell it (coordinator declined)",
    "missing": "the wave was closed without it",
    "planned": "the wave is not open yet",
    "taken out": "a lead took the site out of the study, or revoked it: nothing more is taken of it",
}
_NOTHING_MISSING = ("delivered", "late", "planned", "taken out")
SPARE = 31  # days for which a plan outlives its last wave


# -- a calendar ---------------------------------------------------------------------------------------------------
def scheduled(
    plan: StudyPlan,
    *,
    every: str,
    count: int,
    window: int,
    start: dt.date | None = None,
    quorum: int = 0,
    today: dt.date,
) -> StudyPlan:
    """The next version of a plan, with `count` new waves after those that have opened.

    Args:
        every: ``month``, ``quarter``, ``week`` or ``N days``.
        count: new waves.
        window: days for which each stays open.
        start: day on which the first of them opens; one period after the last kept wave when left out.
        quorum: deliveries below which a wave is not closed without a reason.
        today: waves that opened by this day stay as they are.
    Raises: ParameterError.

    >>> from coordinator.planning.template import template
    >>> plan = StudyPlan.from_toml(template("stroke", coordinator="hub", today=dt.date(2026, 1, 1)))
    >>> new = scheduled(plan, every="month", count=2, window=10, today=dt.date(2026, 2, 1))
    >>> [(wave.number, str(wave.opens), str(wave.closes)) for wave in new.waves[1:]]
    [(2, '2026-02-28', '2026-03-10'), (3, '2026-03-28', '2026-04-07')]
    """
    for name, value, most in (("count", count, 1000), ("window", window, 3650)):
        if not 1 <= value <= most:
            raise ParameterError(f"{name} must be in 1..{most}", given=f"{value}")
    opened = tuple(wave for wave in plan.waves if wave.opens <= today)
    opens = start or _later(opened[-1].opens if opened else today, every, 1)
    if start is None and opens <= today:
        opens = today + dt.timedelta(days=1)
    if opened and opens <= opened[-1].opens:
        raise ParameterError("the first new wave must open after the last one", given=f"{opens}")
    made = []
    for k in range(count):
        first = _later(opens, every, k)
        last = first + dt.timedelta(days=window)
        made.append(Wave(number=len(opened) + k + 1, opens=first, closes=last, quorum=quorum))
    expires = max(plan.expires, made[-1].closes + dt.timedelta(days=SPARE))
    return replace(plan, version=plan.version + 1, waves=(*opened, *made), expires=expires)


def _later(day: dt.date, every: str, times: int) -> dt.date:
    """`day` and so many periods; the last day of a shorter month stands for a day that it does not have."""
    found = re.fullmatch(r"(\d{1,4}) ?d(?:ays?)?", every.strip())
    days = {"week": 7}.get(every, int(found.group(1)) if found else 0)
    if days:
        return day + dt.timedelta(days=days * times)
    if every not in ("month", "quarter"):
        raise ParameterError("every must be month, quarter, week or a number of days", given=repr(every))
    year, month = divmod(day.month - 1 + (3 if every == "quarter" else 1) * times, 12)
    year, month = day.year + year, month + 1
    return dt.date(year, month, min(day.day, months.monthrange(year, month)[1]))


def draft(plan: StudyPlan) -> str:
    """A plan as TOML for the lead to read, check and sign; it reads back as the same plan."""
    body = plan.to_canonical()
    dictionary = dict(body.pop("dictionary"))
    columns = {column["name"]: {k: v for k, v in column.items() if k != "name"} for column in dictionary.pop("columns")}
    lines = [
        "# A draft: coordinator plan check, plan cost, plan sign. Every site approves it before it acts on it.",
        "",
    ]
    tables = {**body, "dictionary": {**dictionary, "columns": columns}}
    text = "\n".join([*lines, *_toml(tables)]) + "\n"
    if StudyPlan.from_toml(text) != plan:
        raise IntegrityRefusal("a draft must read back as the plan it was made of", given="another plan")
    return text


def _toml(body: Mapping[str, Any], at: str = "") -> Iterator[str]:
    def nested(value: Any) -> bool:
        return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))

    for key, value in body.items():
        if value is not None and not nested(value):
            yield f"{_word(key)} = {_value(value)}"
    for key, value in body.items():
        name = f"{at}.{_word(key)}" if at else _word(key)
        if isinstance(value, Mapping) and value:
            yield from ("", f"[{name}]", *_toml(value, name))
        elif nested(value):
            for item in value:
                yield from ("", f"[[{name}]]", *_toml(item, name))


def _word(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        return value
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's escapes are TOML's, but for DEL, which JSON leaves bare.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


# -- who has delivered? -------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Cell:
    """One site in one wave.

    Args:
        state: a key of `STATES`.
        day: ISO date of the delivery or withdrawal, or blank.
        revision: of a late release, the revision it made.
        code: code of the refusal for which it was quarantined.
        reminded: ISO date of the last reminder, or blank.
    """

    site: str
    state: str
    day: str = ""
    revision: int | None = None
    code: str = ""
    reminded: str = ""


@dataclass(frozen=True, kw_only=True)
class WaveLine:
    """One wave of the grid.

    Args:
        state: ``planned``, ``open``, ``overdue`` (its deadline has passed and nobody has closed it) or ``closed``.
        revision: in force; None while it is not closed.
        missing: sites that have nothing accepted in it and could have.
    """

    number: int
    opens: dt.date
    closes: dt.date
    state: str
    quorum: int
    delivered: int
    revision: int | None
    missing: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def awaited(self) -> tuple[str, ...]:
        """The missing sites that can still be asked: not where a release was taken back, or is known to be rejected."""
        gone = {cell.site for cell in self.cells if cell.state in ("withdrawn", "rejected")}
        return tuple(site for site in self.missing if site not in gone)


@dataclass(frozen=True, kw_only=True)
class WaveGrid:
    """A study's waves by its sites.

    Args:
        waiting_days: the longest that a site is waited for in a wave that is not closed, in days since the wave opened
            or, where it joined after that, since it joined; None when nobody is waited for.
        waiting_wave: that wave. waiting_for: the sites that are waited for in it so long.
    """

    study: str
    version: int
    today: dt.date
    sites: tuple[str, ...]
    waves: tuple[WaveLine, ...]
    waiting_days: int | None
    waiting_wave: int | None
    waiting_for: tuple[str, ...]

    def page(self, most: int, page: int) -> WaveGrid:
        """The grid with the cells of `most` sites, from page 1; facts of whole waves are unchanged."""
        cut = slice(most * (page - 1), most * page)
        waves = tuple(replace(wave, cells=wave.cells[cut]) for wave in self.waves)
        return replace(self, sites=self.sites[cut], waves=waves)


def grid(store: Store, study: str, today: dt.date) -> WaveGrid:
    """State of each wave of a study at each site. Raises: PlanRefusal (no such study)."""
    plan = store.plan(study).plan
    releases = store.release_lines(study, withdrawn=True)
    members = frozenset(store.members(study))
    sites = tuple(sorted({*members, *(release.site for release in releases)}))
    known = _Arrivals(
        members=members,
        apart=store.quarantined(study=study),
        withdrawn=store.withdrawals(study),
        reminded=store.reminded(study),
        rejected=store.rejected(study),
        moved=store.last_moved(),
        last={release.site: release for release in sorted(releases, key=lambda one: one.log_index)},
        newest={release.site: release.wave for release in sorted(releases, key=lambda one: one.wave)},
    )
    held: dict[int, dict[str, ReleaseLine]] = {wave.number: {} for wave in plan.waves}
    for release in releases:
        held.setdefault(release.wave, {})[release.site] = release
    lines = tuple(
        _line(store.wave_record(study, wave.number), wave, sites, held[wave.number], known, today)
        for wave in plan.waves
    )
    waits = _waits(lines, store)
    longest = min(waits.values(), default=None)
    waited = min((wave for (wave, _), since in waits.items() if since == longest), default=None)
    return WaveGrid(
        study=study,
        version=plan.version,
        today=today,
        sites=sites,
        waves=lines,
        waiting_days=None if longest is None else max((today - longest).days, 0),
        waiting_wave=waited,
        waiting_for=tuple(site for (wave, site), since in waits.items() if (wave, since) == (waited, longest)),
    )


def _waits(lines: Sequence[WaveLine], store: Store) -> dict[tuple[int, str], dt.date]:
    """(wave, site) of each that can still be asked -> the day since which it could have sent."""
    from coordinator.store.site_certificates import joined_days

    open_ = [line for line in lines if line.state in ("open", "overdue")]
    wanted = {site for line in open_ for site in line.awaited}
    joined = joined_days(store, [one for one in store.sites() if one.site in wanted])
    return {
        (line.number, site): max(line.opens, joined.get(site, line.opens)) for line in open_ for site in line.awaited
    }


@dataclass(frozen=True, kw_only=True)
class _Arrivals:
    """Data of a study's grid of sites and waves, read once for all of its cells.

    Args:
        members: sites that take part in it now.
        reminded: (wave, site) to the day of the last reminder.
        rejected: (wave, site) to the day on which a person there reported the rejection.
        moved: site to the index in the log at which its ledger was last witnessed.
        last: site to the release that arrived last.
        newest: site to the newest wave that it delivered.
    """

    members: frozenset[str]
    apart: tuple[Quarantined, ...]
    withdrawn: tuple[Tombstone, ...]
    reminded: Mapping[tuple[int, str], str]
    rejected: Mapping[tuple[int, str], str]
    moved: Mapping[str, int]
    last: Mapping[str, ReleaseLine]
    newest: Mapping[str, int]


def _line(
    record: WaveRecord,
    wave: Wave,
    sites: tuple[str, ...],
    held: Mapping[str, ReleaseLine],
    known: _Arrivals,
    today: dt.date,
) -> WaveLine:
    apart = {found.site: found for found in known.apart if found.wave == wave.number}
    late = {revision.log_index: revision.number for revision in record.revisions if revision.cause == "late"}
    withdrawn = {stone.site: stone for stone in known.withdrawn if stone.wave == wave.number}
    state = "overdue" if today > wave.closes else "open" if today >= wave.opens else "planned"
    state = "closed" if record.closed else state
    cells = []
    for site in sites:
        reminded = "" if site in held else known.reminded.get((wave.number, site), "")
        if site in held and held[site].withdrawn:
            cells.append(Cell(site=site, state="withdrawn", day=withdrawn[site].day))
        elif site in held:
            revision = late.get(held[site].log_index)
            name = "delivered" if revision is None else "late"
            cells.append(Cell(site=site, state=name, day=held[site].accepted_day, revision=revision))
        elif site in apart:
            found = apart[site]
            name = "withdrawn" if site in withdrawn else "quarantined"
            cells.append(Cell(site=site, state=name, day=found.day, code=found.code, reminded=reminded))
        elif day := known.rejected.get((wave.number, site)):
            cells.append(Cell(site=site, state="rejected", day=day, reminded=reminded))
        elif site not in known.members and state != "closed":
            cells.append(Cell(site=site, state="taken out"))
        elif state == "planned":
            cells.append(Cell(site=site, state="planned"))
        elif state == "closed":
            cells.append(Cell(site=site, state="missing", reminded=reminded))
        else:
            arrived = known.last[site].log_index if site in known.last else -1
            earlier = known.newest.get(site, 0) < wave.number
            name = "held?" if earlier and known.moved.get(site, -1) > arrived else "waiting"
            cells.append(Cell(site=site, state=name, reminded=reminded))
    there = [cell for cell in cells if cell.state in ("delivered", "late")]
    missing = tuple(cell.site for cell in cells if cell.state not in _NOTHING_MISSING)
    return WaveLine(
        number=wave.number,
        opens=wave.opens,
        closes=wave.closes,
        state=state,
        quorum=wave.quorum,
        delivered=len(there),
        revision=record.revision,
        missing=missing,
        cells=tuple(cells),
    )


def reminder(plan: StudyPlan, line: WaveLine, site: str, today: dt.date) -> str:
    """Reminder for a site's steward: plain text, nothing of it secret."""
    cell = next(cell for cell in line.cells if cell.site == site)
    left = (line.closes - today).days
    when = f"It closes on {line.closes}, in {left} days." if left >= 0 else f"Its deadline was {line.closes}."
    what = {
        "quarantined": f"A release arrived and was set aside ({cell.code}) (see site-agent status). It was not used.",
        "held?": "A release may be waiting for an approver: site-agent outbox.",
    }.get(cell.state, "Nothing has arrived yet.")
    closing = (
        "The wave is closed; what arrives now becomes a revision of it."
        if line.state == "closed"
        else "What arrives after the wave is closed becomes a revision of it."
    )
    return (
        f"To the data steward of {site}\n"
        f"Study {plan.study}: {plan.title}\n\n"
        f"Wave {line.number} opened on {line.opens}. {when}\n"
        f"{what}\n{closing}\n\n"
        "Only you decide what leaves your hospital; nothing is fetched from outside. To see where you stand:\n"
        "  site-agent status\n"
        "  site-agent outbox\n"
    )
