"""Waves: due once whatever the clock says, appended without touching anybody twice, frozen rows unchanged."""

# ruff: noqa: F811
from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import time
from dataclasses import replace

import pandas as pd
import pytest
from stage.both_sides.service import Hub as Coordinator
from stage.hospital_side.ledger import DELTA, GAUSSIAN, KEY, acknowledge, drawing, forked, reserve
from stage.hospital_side.pipeline import deliver, kinds, quick, release, site, source  # noqa: F401
from stage.hospital_side.site_desk import hospital  # noqa: F401
from stage.plans.wave_plans import fit_of, grown, several

from shared.base.keys import SigningKey
from shared.errors import (
    BudgetRefusal,
    DifferencingRefusal,
    IntegrityRefusal,
    LedgerRefusal,
    NetworkRefusal,
    ParameterError,
    PlanChanged,
    Refusal,
    SmallN,
    StateRefusal,
    TooLarge,
    refusal_from_code,
)
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, Wave
from shared.privacy import accountant as privacy
from shared.privacy.composition import Charge, StudyCharges
from shared.releases.bundle import read_bundle
from site_agent.config import SiteFloors
from site_agent.decide import waves
from site_agent.desk import open_desk
from site_agent.ledger.book import Ledger
from site_agent.ledger.charge import Reservation
from site_agent.ledger.holds import LOST_CAP, Lost
from site_agent.release import drawing as mechanisms
from site_agent.release import sealed_state
from site_agent.release.outbox import Outbox
from site_agent.release.pipeline import making
from site_agent.release.site import WorkingSite

CURVE = tuple(float(value) for value in privacy.rdp(GAUSSIAN))


def once(times: int = 1) -> float:
    return privacy.epsilon_from_rdp(times * privacy.rdp(GAUSSIAN), DELTA)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger.create(tmp_path / "home" / "ledger.db", KEY, site="north")


def drawn(ledger: Ledger, wave: int, persons, *, touches="new", **other):
    hold = reserve(ledger, wave, touches=touches, **other)
    return ledger.start_drawing(ledger.mark_anchored(hold, acknowledge(ledger)), persons)


def total(ledger: Ledger) -> float:
    return ledger.study_total("heart", DELTA).epsilon


# -- whom a charge touches ----------------------------------------------------------------------------------------
def test_new_persons_do_not_pay_for_earlier_waves_and_disjoint_strata_do_not_add_up(ledger):
    drawn(ledger, 1, ["a", "b"], cap=once())
    drawn(ledger, 2, ["c"], cap=once())
    drawn(ledger, 3, ["d"], cap=once())
    assert total(ledger) == pytest.approx(once(), rel=1e-12)
    assert [line.total for line in ledger.statement("heart")] == pytest.approx([once()] * 3, rel=1e-12)
    with pytest.raises(BudgetRefusal):
        reserve(ledger, 4, touches="everybody", cap=once())
    assert len(ledger.holds()) == 3


def test_a_release_of_everybody_counts_against_everybody_whoever_was_drawn(ledger):
    drawn(ledger, 1, ["a", "b"], touches="everybody")
    drawn(ledger, 2, ["b", "c"], touches="everybody")
    drawn(ledger, 3, ["d", "e"], touches="everybody")
    assert total(ledger) == pytest.approx(once(3), rel=1e-12)
    reserve(ledger, 4, touches="everybody")
    assert total(ledger) == pytest.approx(once(4), rel=1e-12)
    drawn(ledger, 5, ["f"])
    drawn(ledger, 6, ["g"])
    assert total(ledger) == pytest.approx(once(5), rel=1e-12), "of the new ones each pays for one release"


def test_nobody_is_touched_twice_by_releases_of_new_persons(ledger):
    drawn(ledger, 1, ["a", "b"])
    hold = reserve(ledger, 2, touches="new")
    hold = ledger.mark_anchored(hold, acknowledge(ledger))
    entries = ledger.entries()
    with pytest.raises(DifferencingRefusal):
        ledger.start_drawing(hold, ["b", "c"])
    with pytest.raises(ParameterError):
        ledger.start_drawing(hold)
    assert ledger.entries() == entries
    assert ledger.start_drawing(hold, ["c"]).persons == 1


def test_a_burnt_draw_may_be_drawn_again_for_its_price_and_an_unknown_one_counts_against_everybody(ledger):
    ledger.burn(drawn(ledger, 1, ["a", "b"]), "audit")
    with pytest.raises(BudgetRefusal):
        reserve(ledger, 1, touches="new", release_id="again", cap=once())
    again = drawn(ledger, 1, ["a"], release_id="again")
    assert total(ledger) == pytest.approx(once(2), rel=1e-12)
    ledger.burn(again, "audit")
    drawing(ledger, 2)
    assert total(ledger) == pytest.approx(once(3), rel=1e-12)
    drawn(ledger, 3, ["new"])
    assert total(ledger) == pytest.approx(once(3), rel=1e-12)


def test_the_total_is_never_below_what_some_person_was_charged_at_any_instant():
    """Random lives of releases, the truth counted person by person; the cap holds all the way."""
    rng = random.Random(5)
    for _ in range(60):
        charges, truth = [], {}
        for k in range(6):
            persons = frozenset(rng.sample("abcdefgh", rng.randint(1, 4)))
            kind = rng.choice(["drawn", "unknown", "new"])
            known = {"drawn": persons, "unknown": None, "new": None}[kind]
            beside = frozenset(range(k)) if kind == "new" else None
            charges.append(Charge(rdp=CURVE, pure=None, persons=known, beside=beside))
            for person in persons if kind == "drawn" else "abcdefgh" if kind == "unknown" else ():
                truth[person] = truth.get(person, 0) + 1
        assert StudyCharges(charges).total(DELTA) >= once(max(truth.values(), default=0)) * (1 - 1e-12)


def test_a_site_adds_the_worst_class_of_each_study(ledger):
    drawn(ledger, 1, ["a"], site_cap_epsilon=once(2))
    drawn(ledger, 2, ["b"], site_cap_epsilon=once(2))
    drawn(ledger, 1, ["c"], study="lung", site_cap_epsilon=once(2))
    assert ledger.site_total(DELTA) == pytest.approx(once(2), rel=1e-12)
    with pytest.raises(BudgetRefusal, match="site"):
        reserve(ledger, 1, study="skin", touches="new", site_cap_epsilon=once(2))
    reserve(ledger, 3, touches="new", site_cap_epsilon=once(2))


@pytest.mark.parametrize("harm", ["lost", "edited"])
def test_a_list_of_persons_that_is_lost_or_edited_is_refused_and_nothing_more_is_charged(ledger, harm):
    hold = drawn(ledger, 1, ["a", "b"])
    path = ledger.folder(hold) / "population.json"
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink() if harm == "lost" else path.write_bytes(b'["a"]')
    for refused in (lambda: reserve(ledger, 2, touches="new"), lambda: total(ledger), ledger.statement):
        with pytest.raises(IntegrityRefusal, match="list of persons"):
            refused()
    assert ledger.verify() == 4


def test_forty_thousand_persons_in_twelve_waves_are_composed_as_the_one_in_all_of_them():
    names = [f"{k:032x}" for k in range(40_000)]
    rng = random.Random(1)
    charges = [Charge(rdp=CURVE, pure=None, persons=rng.sample(names, 30_000)) for _ in range(12)]
    assert StudyCharges(charges).total(DELTA) == pytest.approx(once(12), rel=1e-12)


def test_an_open_reservation_is_carried_over_to_the_next_wave_and_charged_once(ledger):
    first = reserve(ledger, 1, touches="new", release_id="first")
    later = reserve(ledger, 2, touches="new", release_id="second", carry=True)
    assert (later.release_id, later.wave, later.merged, later.state) == ("first", 2, (1,), first.state)
    assert [entry.kind for entry in ledger.entries()] == ["genesis", "reserve", "carry"]
    drawn(ledger, 2, ["a"], carry=True)
    assert reserve(ledger, 3, touches="new", release_id="third", carry=True).release_id == "third"


@pytest.mark.parametrize("touches", ["new", "everybody"])
def test_a_reservation_for_other_persons_is_not_carried_over(ledger, touches):
    """It was charged for nobody but those, and draws nobody else: a plan that refreshes is no plan of new persons."""
    other = {"new": "everybody", "everybody": "new"}[touches]
    reserve(ledger, 1, touches=touches, release_id="first")
    later = reserve(ledger, 2, touches=other, release_id="second", carry=True)
    assert (later.release_id, later.touches, later.merged) == ("second", other, ())
    assert len(ledger.holds(later.study)) == 2


# -- the ledger's entries -----------------------------------------------------------------------------------------
def test_links_cannot_be_guessed_from_names_and_times(ledger, tmp_path):
    other = Ledger.create(tmp_path / "other" / "ledger.db", KEY, site="north")
    salts = []
    for one in (ledger, other):
        one.approve_plan(study="heart", version=1, plan_hash="a" * 64, approver="dr-lind")
        salts += [entry.body["salt"] for entry in one.entries()]
    assert len(set(salts)) == 4
    assert all(len(salt) == 32 for salt in salts)
    assert ledger.links(1) != other.links(1)


def test_an_entry_that_could_not_be_read_back_is_not_written(ledger):
    hold = ledger.show(ledger.seal(drawing(ledger), "b" * 64), {})
    before = ledger.entries()
    with pytest.raises(TooLarge):
        ledger.reject(hold, "x" * (1 << 20), by="ada")
    assert Ledger(ledger.path, KEY, site="north").entries() == before


def test_many_lost_charges_stand_in_several_entries_and_their_number_is_bounded(ledger):
    with pytest.raises(ParameterError):
        Lost(study="s", plan_hash="a" * 64, event={}, delta=DELTA, cap_epsilon=1.0, count=LOST_CAP + 1)
    one = Lost(study="heart", plan_hash="a" * 64, event=GAUSSIAN.to_canonical(), delta=DELTA, cap_epsilon=9.0)
    named = [replace(one, release_id=f"lost-{k}", wave=1, log_index=k, uncovered=("x" * 900,)) for k in range(1000)]
    receipt = replace(acknowledge(ledger), seq=9000)
    fingerprint = ledger.count_lost(receipt, named, accepted={})
    assert ledger.count_lost(receipt, named, accepted={}) == fingerprint
    reopened = Ledger(ledger.path, KEY, site="north")
    assert reopened.verify() > 3
    assert reopened.recoveries() == 1
    assert len(reopened.holds("heart")) == 1000


def test_folders_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        ledger = Ledger.create(tmp_path / "home" / "ledger.db", KEY, site="north")
        hold = drawn(ledger, 1, ["a"])
    finally:
        os.umask(before)
    for folder in (tmp_path / "home", tmp_path / "home" / "sealed", ledger.folder(hold)):
        assert folder.stat().st_mode & 0o777 == 0o700


# -- what a later wave does ---------------------------------------------------------------------------------------


def rows_of(site, made) -> sealed_state.ReleasedRows:
    return sealed_state.read_rows(site.ledger.folder(made.hold), made.hold)


def test_append_draws_each_person_once_through_the_first_flow_for_one_price(quick, tmp_path, plan, site, monkeypatch):
    many = several(plan)
    first = release(many, site, source(tmp_path, grown(300)))
    deliver(site, first)
    price = site.ledger.study_total("mini", 1e-6).epsilon
    monkeypatch.setattr(mechanisms, "_fit", lambda *_: pytest.fail("nothing is refitted"))
    changed = grown(300, 80)
    changed.loc[:99, "sbp"] = 200.0  # a changed record changes nothing until a refresh
    second = release(many, site, source(tmp_path, changed), wave=2)
    deliver(site, second)
    third = release(many, site, source(tmp_path, grown(300, 80, 60)), wave=3)
    assert [len(made.table) for made in (first, second, third)] == [300, 80, 60]
    whose = [person for made in (first, second, third) for person in rows_of(site, made).persons]
    assert len(whose) == len(set(whose)) == 440
    assert site.ledger.study_total("mini", 1e-6).epsilon == price
    x = fit_of(site, first).noisy
    for later in (second, third):
        assert (fit_of(site, later).flow.inverse(x) == fit_of(site, first).flow.inverse(x)).all()
        assert not fit_of(site, later).fresh


def test_too_few_new_persons_wait_and_are_in_the_next_wave_for_one_charge(quick, tmp_path, plan, site):
    many = several(plan)
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    spent = site.ledger.study_total("mini", 1e-6).epsilon
    with pytest.raises(SmallN, match="new persons") as caught:
        release(many, site, source(tmp_path, grown(300, 30)), wave=2)
    assert "merges with the next" in caught.value.next_step
    made = release(many, site, source(tmp_path, grown(300, 30, 30)), wave=3)
    assert len(made.table) == 60
    assert made.hold.merged == (2,)
    assert kinds(site).count("reserve") == 2
    assert site.ledger.study_total("mini", 1e-6).epsilon == spent
    with pytest.raises(StateRefusal, match="in turn"):
        release(many, site, source(tmp_path, grown(300, 30, 30)), wave=2)


def test_frozen_rows_are_the_sealed_ones_and_only_new_persons_are_drawn_and_charged(quick, tmp_path, plan, site):
    many = several(plan, returning="frozen")
    first = release(many, site, source(tmp_path, grown(300)))
    deliver(site, first)
    changed = grown(300, 60)
    changed.loc[:299, "sbp"] = 199.0
    second = release(many, site, source(tmp_path, changed), wave=2)
    assert len(second.table) == 360
    assert second.hold.persons == 60
    tables = []
    for made in (first, second):
        table = read_bundle(site.outbox.bundle(made.hold.release_id), cap=1 << 26).table
        tables.append(table.assign(whose=rows_of(site, made).persons).set_index("whose"))
    pd.testing.assert_frame_equal(tables[1].loc[tables[0].index], tables[0])
    assert site.ledger.study_total("mini", 1e-6).epsilon == pytest.approx(
        privacy.epsilon_from_rdp(second.hold.rdp, 1e-6), rel=1e-12
    )


def test_refresh_draws_everybody_anew_through_the_sealed_flow_and_refits_only_when_planned(
    quick,
    tmp_path,
    plan,
    site,
):
    many = several(plan, returning="refresh", budget=Budget(epsilon=5000.0))
    many = replace(many, waves=(*many.waves[:2], replace(many.waves[2], refit=True), many.waves[3]))
    made = []
    for wave in (1, 2, 3):
        made.append(release(many, site, source(tmp_path, grown(300, 40 * wave)), wave=wave))
        deliver(site, made[-1])
    assert [fit_of(site, one).fresh for one in made] == [True, False, True]
    assert len(made[2].table) == 420
    assert not set(map(tuple, fit_of(site, made[0]).noisy)) & set(map(tuple, fit_of(site, made[1]).noisy))


def test_a_wave_waits_for_the_first_one_and_follows_it_or_takes_its_place(quick, tmp_path, plan, site):
    many, where = several(plan, budget=Budget(epsilon=5000.0)), source(tmp_path, grown(300))
    first = release(many, site, where)
    with pytest.raises(StateRefusal, match="must be delivered, or rejected"):
        release(many, site, where, wave=2)
    site.outbox.reject(first.hold.release_id, "rare levels", by="ada")
    second = release(many, site, where, wave=2)
    assert fit_of(site, second).fresh
    assert len(second.table) == 300


def test_a_plan_with_other_noise_does_not_append_through_the_sealed_flow(quick, tmp_path, plan, site):
    many = several(plan)
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    with pytest.raises(PlanChanged, match="sealed with the first"):
        release(
            replace(many, version=2, release=LatentNoisePlan(w=0.7)), site, source(tmp_path, grown(300, 60)), wave=2
        )


def test_populations_that_differ_by_one_are_refused_against_the_table_as_of_a_wave(quick, tmp_path, plan, site):
    many = several(plan, budget=Budget(epsilon=5000.0))
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    deliver(site, release(many, site, source(tmp_path, grown(300, 60)), wave=2))
    anew = replace(many, version=2, returning="refresh")
    with pytest.raises(DifferencingRefusal, match="1 beside"):
        release(anew, site, source(tmp_path, grown(300, 60).iloc[:-1]), wave=3)


def test_a_lost_list_of_rows_stops_the_comparison_instead_of_passing_it(quick, tmp_path, plan, site):
    many = several(plan, returning="refresh", budget=Budget(epsilon=5000.0))
    made = release(many, site, source(tmp_path, grown(300)))
    deliver(site, made)
    (site.ledger.folder(made.hold) / sealed_state.ROWS).unlink()
    with pytest.raises(IntegrityRefusal, match="sealed"):
        release(many, site, source(tmp_path, grown(299)), wave=2)


# -- persons who withdraw -----------------------------------------------------------------------------------------
def pseudonyms(table: pd.DataFrame) -> list[str]:
    from site_agent.records.pseudonyms import pseudonym

    return [pseudonym(person, key=b"k" * 32) for person in table["person"]]


@pytest.mark.parametrize("returning", ["refresh", "frozen"])
def test_who_withdrew_leaves_only_together_with_ten_others(quick, tmp_path, plan, site, returning):
    many = several(plan, returning=returning, budget=Budget(epsilon=5000.0))
    table = grown(300, 60)
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    gone = pseudonyms(table)
    site.ledger.note_persons("mini", gone[:1])
    with pytest.raises(DifferencingRefusal, match="withdrew"):
        release(many, site, source(tmp_path, table), wave=2)
    assert site.ledger.note_persons("mini", gone[:11]) == 10
    made = release(many, site, source(tmp_path, table), wave=2)
    assert len(made.table) == 349
    assert not set(rows_of(site, made).persons) & set(gone[:11])
    notes = [entry.body["kept"] for entry in site.ledger.entries() if entry.kind == "persons_withdrew"]
    assert [(note["added"], note["count"]) for note in notes] == [(1, 1), (10, 11)]
    assert gone[0] not in str(notes)


@pytest.mark.parametrize("returning", ["refresh", "frozen"])
def test_one_who_withdrew_stalls_no_wave_when_ten_others_leave_by_lot_for_good(quick, tmp_path, plan, site, returning):
    many = several(plan, returning=returning, budget=Budget(epsilon=5000.0))
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    (one, *_) = gone = pseudonyms(grown(300))
    site.ledger.note_persons("mini", [one])
    asked = {"others": 10, "floor": 50}
    assert waves.by_lot(site.ledger, "mini", ["nobody of the table"], **asked) == set()
    with pytest.raises(SmallN, match="must stay"):
        waves.by_lot(site.ledger, "mini", [one], others=10, floor=290)
    lot = waves.by_lot(site.ledger, "mini", [one], **asked)
    assert len(lot) == 10
    assert lot < set(gone[1:])
    assert lot != waves.by_lot(site.ledger, "mini", [one], **asked), (
        "another draw of the lot (one in 10^18 is the same)"
    )
    site.ledger.note_persons("mini", lot)
    assert waves.by_lot(site.ledger, "mini", {one, *lot}, **asked) == set()
    for wave in (2, 3):
        made = release(many, site, source(tmp_path, grown(300, 60 * (wave - 1))), wave=wave)
        deliver(site, made)
        assert len(made.table) == 289 + 60 * (wave - 1)
        assert not set(rows_of(site, made).persons) & {one, *lot}


def test_who_withdrew_is_never_appended(quick, tmp_path, plan, site):
    many = several(plan)
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    table = grown(300, 80)
    site.ledger.note_persons("mini", pseudonyms(table)[-3:])
    assert len(release(many, site, source(tmp_path, table), wave=2).table) == 77


@pytest.mark.fault("F1")
@pytest.mark.parametrize("step", ["before_write", "before_fsync", "before_rename", "after_rename", "after_fsync"])
def test_a_withdrawal_that_is_killed_is_noted_or_not_and_can_be_repeated(ledger, step):
    ledger.note_persons("heart", ["a"])

    def note() -> None:
        os.environ["TRIBUTARY_FAILPOINT"] = f"ledger.withdrawn.{step}"
        ledger.note_persons("heart", ["b"])

    assert forked(note) == -9
    assert ledger.persons_withdrawn("heart") == {"a"}
    assert ledger.note_persons("heart", ["b"]) == 1
    assert ledger.persons_withdrawn("heart") == {"a", "b"}


# -- a snapshot put back ------------------------------------------------------------------------------------------
def test_a_snapshot_taken_at_the_anchor_and_put_back_after_the_run_does_not_draw_again(
    quick,
    tmp_path,
    plan,
    table,
    monkeypatch,
):
    """The whole folder, with a real coordinator: its files agree with each other, and only the witness can tell."""
    hub = Coordinator(tmp_path / "hub", plan, "north")
    home, copy = tmp_path / "home", tmp_path / "copy"
    with hub.serve():
        door = hub.egress("north")

        def opened():
            ledger = Ledger.create(home / "ledger.db", hub.sites["north"].release, site="north")
            return WorkingSite(
                name="north",
                agent_version="0.1.0",
                ledger=ledger,
                outbox=Outbox(home, ledger),
                witness=door,
                snapshot_key=b"k" * 32,
                floors=SiteFloors(),
                paused=lambda: False,
            )

        def snapshot(name: str) -> None:
            if name == "pipeline.anchored" and not copy.exists():
                shutil.copytree(home, copy)

        monkeypatch.setattr(making, "reach", snapshot)
        where = source(tmp_path, table)
        release(plan, opened(), where)
        shutil.rmtree(home)
        shutil.copytree(copy, home)
        put_back = opened()
        assert put_back.ledger.holds()[-1].state == "anchored"
        draws = []
        monkeypatch.setattr("shared.mechanisms.latent_noise.noise.LatentNoise.release", lambda *_: draws.append(1))
        with pytest.raises(LedgerRefusal):
            release(plan, put_back, where)
        assert draws == []
        door.close()
    hub.store.close()


# -- the calendar -------------------------------------------------------------------------------------------------
def year(plan, **other):
    """A wave a month, open for its first twenty days."""
    calendar = tuple(Wave(number=k, opens=dt.date(2026, k, 1), closes=dt.date(2026, k, 20)) for k in range(1, 13))
    return replace(plan, waves=calendar, budget=Budget(epsilon=1e9), **other)


def live(plan, days, path, *, seed=1) -> tuple[Ledger, list[int]]:
    """An agent that looks at the calendar on each of these days; what it drew, in the ledger's order."""
    rng = random.Random(seed)
    ledger = Ledger.create(path / "ledger.db", SigningKey.generate(), site="north")
    made = []
    holds = ledger.holds("mini")
    for day in days:
        wave = waves.due(plan, holds, day)
        if wave is None:
            continue
        hold = ledger.reserve(
            Reservation(
                study="mini",
                plan_hash=plan.hash,
                wave=wave.number,
                release_id=f"r{len(ledger.holds())}-{len(ledger.entries())}",
                event=GAUSSIAN.to_canonical(),
                delta=DELTA,
                cap_epsilon=1e9,
                touches="new",
                carry=True,
            )
        )
        if hold.state == "reserved":
            hold = ledger.mark_anchored(hold, acknowledge(ledger))
        holds = ledger.holds("mini")
        if rng.random() < 0.2:
            continue  # too few persons, a full disk, a pause: the reservation stays open
        ledger.start_drawing(hold, [f"p{len(made)}"])
        made.append(wave.number)
        if rng.random() < 0.2:
            ledger.burn(ledger.hold(hold.release_id), "audit")
        else:
            ledger.seal(hold, "b" * 64)
            ledger.show(ledger.hold(hold.release_id), {})
        holds = ledger.holds("mini")
    return ledger, made


def days(start: str, count: int, step: int = 1):
    first = dt.date.fromisoformat(start)
    return [first + dt.timedelta(days=k) for k in range(0, count, step)]


def test_twelve_waves_with_a_month_of_outage_are_made_once_each(plan, tmp_path):
    outage = {day for day in days("2026-05-25", 30)}
    ledger, made = live(year(plan), [day for day in days("2025-12-01", 420) if day not in outage], tmp_path)
    assert made == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]
    states = {line.number: line.state for line in waves.calendar(year(plan), ledger.holds(), dt.date(2027, 1, 5))}
    assert states[6] == "merged"
    assert ledger.study_total("mini", DELTA).epsilon == pytest.approx(once(), rel=1e-12)


@pytest.mark.fault("F15")
@pytest.mark.parametrize("seed", range(4))
def test_no_clock_makes_a_wave_twice_or_out_of_turn(plan, tmp_path, seed):
    """A year ahead, a year back, backwards, at random: at most one draw for each wave, in ascending order."""
    rng = random.Random(seed)
    order = days("2026-01-01", 365, 5)
    skewed = [day + dt.timedelta(days=rng.choice([0, 0, 365, -365])) for day in order]
    for number, sequence in enumerate((skewed, order[::-1], rng.sample(order, len(order)))):
        ledger, made = live(year(plan), sequence, tmp_path / str(number), seed=seed)
        assert made == sorted(set(made))
        assert [hold.reserved_seq for hold in ledger.holds()] == sorted(h.reserved_seq for h in ledger.holds())


def test_a_day_is_a_day_in_utc_wherever_the_machine_stands(monkeypatch):
    """Auckland is a day ahead, Honolulu behind, and one night in March has no two o'clock."""
    from site_agent import cli

    monkeypatch.delenv("TRIBUTARY_TODAY", raising=False)
    seen = set()
    for zone in ("Pacific/Auckland", "Pacific/Honolulu", "Europe/Berlin", "UTC"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        seen.add(cli.today())
    monkeypatch.delenv("TZ")
    time.tzset()
    assert len(seen) <= 2  # two only if midnight passed meanwhile
    assert max(seen) - min(seen) <= dt.timedelta(days=1)


@pytest.mark.fault("F15")
@pytest.mark.parametrize(
    ("zone", "night"),
    [
        ("Europe/Berlin", "2026-03-29"),
        ("Europe/Berlin", "2026-10-25"),
        ("America/New_York", "2026-03-08"),
        ("America/New_York", "2026-11-01"),
    ],
)
def test_a_night_on_which_the_clocks_change_makes_each_wave_exactly_once(plan, tmp_path, monkeypatch, zone, night):
    """A wave a day, looked at every quarter of an hour: an hour that comes twice, or not at all, changes nothing."""
    from site_agent import cli

    start = dt.datetime.fromisoformat(night).replace(tzinfo=dt.UTC) - dt.timedelta(days=2)
    instants = [start + dt.timedelta(minutes=15 * k) for k in range(4 * 24 * 5)]
    calendar = tuple(
        Wave(number=k + 1, opens=day, closes=day) for k, day in enumerate(days(start.date().isoformat(), 5))
    )
    shown: list[dt.datetime] = []

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            # Without a zone: what the wall clock of this machine shows.
            return shown[-1].astimezone(tz) if tz else shown[-1].astimezone().replace(tzinfo=None)

    monkeypatch.delenv("TRIBUTARY_TODAY", raising=False)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        monkeypatch.setattr("site_agent.desk.dt.datetime", Clock)
        read = []
        for instant in instants:
            shown.append(instant)
            read.append(cli.today())
        offsets = {instant.astimezone().utcoffset() for instant in instants}
        monkeypatch.undo()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert len(offsets) == 2, "the clocks do change"
    _, made = live(replace(plan, waves=calendar, budget=Budget(epsilon=1e9)), read, tmp_path)
    assert made == [1, 2, 3, 4, 5]
    assert read == [instant.date() for instant in instants], "each wave on its own day in UTC"


def test_what_the_waves_cost_depends_on_what_they_do_with_returning_persons(plan):
    events = [GAUSSIAN] * 12
    append = waves.cost(several(plan, 12, budget=Budget(epsilon=once(3))), events)
    assert append.totals == pytest.approx([once()] * 12, rel=1e-12)
    assert append.affordable == 12
    refresh = waves.cost(several(plan, 12, returning="refresh", budget=Budget(epsilon=once(3))), events)
    assert refresh.totals == pytest.approx([once(k) for k in range(1, 13)], rel=1e-12)
    assert refresh.affordable == 3


# -- unattended ---------------------------------------------------------------------------------------------------
def test_a_site_whose_coordinator_lacks_its_database_is_not_told_of_its_own_network(hospital, plan, table, monkeypatch):
    at = hospital.joined().approved(plan).with_table(table)
    monkeypatch.setattr("site_agent.show.network_path.walk", lambda *given: pytest.fail("the way was looked at"))

    def away() -> None:
        found = refusal_from_code("E_STORE_AWAY", "the coordinator's database must answer, got no connection to it.")
        found.next_step = "Tell the study lead."
        raise found

    monkeypatch.setattr(at.hub, "_up", away)
    doctor = " ".join(at("doctor", expect=20).split())
    assert "✗ coordinator the coordinator's database must answer, got no connection to it." in doctor
    assert "compared with nobody's: its database does not answer" in doctor
    status = " ".join(at("status").split())
    assert "The coordinator answers, but its database does not" in status
    assert at.json("status")["store_away"] is True
    assert "the coordinator's database is away" in at("run", "--once", expect=20)
    assert not (at.home / "refused.jsonl").exists(), "it is no refusal of this site"


def test_the_agent_makes_what_is_due_sends_what_is_approved_and_survives_the_coordinator(hospital, plan, table):
    at = hospital.joined().approved(several(plan, 2)).with_table(table)
    at.hub.down = True
    assert "offline" in at("run", "--once", expect=20)
    assert at.json("budget")["lines"] == []
    at.hub.down = False
    assert "would release" in at("run", "--dry-run")
    assert "waits for a person" in at("run", "--once")
    assert "not released" in at("run", "--once")  # wave 2 waits until wave 1 is delivered
    (row,) = at.json("outbox", "list")["releases"]
    shown = at.json("outbox", "show", row["release_id"])
    ticks = [word for warning in shown["warnings"] for word in ("--tick", warning["name"])]
    real, at.hub.send = at.hub.send, lambda *_, **__: (_ for _ in ()).throw(NetworkRefusal("the hub must answer"))
    at("approve", row["release_id"], "--as", "dr-lind", *ticks, expect=20)
    at.hub.send = real
    assert "sent" in at("run", "--once")
    assert len(at.hub.sent) == 1
    at("pause")
    assert "paused" in at("run", "--once")
    at("resume", "--as", "dr-lind")
    (one,) = at.json("waves", "mini")["studies"]
    assert one["waves"][0]["state"] == "delivered"
    assert one["last_affordable"] in (None, 2)
    assert "delivered" in at("waves", "mini")


def test_persons_withdraw_from_a_file_and_only_their_number_is_told(hospital, plan, table):
    at = hospital.joined().approved(plan).with_table(table)
    at("run", "--once")
    ids = at.folder / "ids.txt"
    ids.write_text("\n".join([*table["person"].head(12), "  "]))
    assert at.json("withdraw-person", "mini", "--as", "dr-lind", "--id-file", str(ids), "--dry-run")["added"] == 12
    answer = at.json("withdraw-person", "mini", "--as", "dr-lind", "--id-file", str(ids))
    assert (answer["given"], answer["added"], answer["released_before"]) == (12, 12, 12)
    assert at.json("withdraw-person", "mini", "--as", "dr-lind", "--id-file", str(ids))["added"] == 0
    answer = at.json("withdraw-person", "mini", "--as", "dr-lind", "--id-file", str(ids), "--by-lot")
    assert answer["by_lot"] == 0, "the plan appends: nobody leaves the table, and no wave waits"
    said = at("withdraw-person", "mini", "--as", "dr-lind", "--id-file", str(ids))
    assert "stays in the answers" in said
    assert "leaves the table" not in said
    assert table["person"][0] not in at("history", "--last", "0")


def test_an_identifier_that_is_of_nobody_is_named_by_its_line(hospital, plan, table):
    """In quotes, or below a header, it would withdraw nobody, and the person would be drawn again."""
    at = hospital.joined().approved(plan).with_table(table)
    ids = at.folder / "ids.txt"
    first, second = table["person"].head(2)
    ids.write_text(f'person\n{first}\n\n"{second}"\n')
    told = ("withdraw-person", "mini", "--as", "dr-lind", "--id-file", str(ids), "--dry-run")
    answer = at.json(*told)
    assert (answer["given"], answer["released_before"], answer["in_table"]) == (3, 0, 1)
    assert answer["lines_of_nobody"] == [1, 4]
    said = " ".join(at(*told).split())
    assert "in no release and not in the table as it is now: line 1, 4 of the file" in said
    assert str(second) not in said
    ids.write_text(f"{first}\n")
    assert "of the file" not in at(*told)
    at.with_table(table.assign(sbp="much"))
    assert at.json(*told)["in_table"] is None
    assert "the table cannot be read" in " ".join(at(*told).split())


def test_a_head_of_the_ledger_tells_of_no_withdrawal_of_consent_before_something_else_asks_for_one(
    hospital, plan, table
):
    """Alone, at that minute, it would say that somebody of this hospital withdrew."""
    at = hospital.joined().approved(plan).with_table(table)
    at("run", "--once")
    before = list(at.hub.anchored)
    ids = at.folder / "ids.txt"
    ids.write_text(str(table["person"][3]))
    assert at.json("withdraw-person", "mini", "--as", "dr-lind", "--id-file", str(ids))["added"] == 1
    at("run", "--once")
    assert at.hub.anchored == before
    at("pause", "--as", "dr-lind")
    noted = next(entry.seq for entry in open_desk(at.home).ledger.entries() if entry.kind == "persons_withdrew")
    assert before[-1]["seq"] < noted < at.hub.anchored[-1]["seq"], "with the next one, then"


def test_the_site_budget_is_enforced_and_shown_and_its_absence_is_said(hospital, plan, table):
    at = hospital.joined().approved(plan).with_table(table)
    assert "No site budget is set" in at("budget")
    path = at.home / "site.toml"
    path.write_text(path.read_text().replace("[budget]\n", "[budget]\nsite_epsilon = 1.0\n"))
    assert at.json("budget")["site"]["cap"] == 1.0
    body = at.refused("release", "mini", "--wave", "1", expect=11)
    assert "site" in body["must"]


def test_a_pause_ends_a_fit_within_moments_and_keeps_the_reservation(quick, tmp_path, plan, site, table, monkeypatch):
    paused = []

    def fit(plan, encoder, x, persons, rng, progress):
        for k in range(100):
            if k == 3:
                paused.append(True)
            progress(k / 100)
        raise AssertionError("the fit went on")

    monkeypatch.setattr(mechanisms, "_fit", fit)
    with pytest.raises(Refusal, match="paused"):
        release(plan, replace(site, paused=lambda: bool(paused)), source(tmp_path, table))
    assert site.ledger.holds()[-1].state == "anchored"
