"""The path of one release: its order, what each refusal costs, and what a crash leaves."""

# ruff: noqa: F811  (fixtures are imported by their names)
from __future__ import annotations

import datetime as dt
import io
import json
import secrets
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from stage.hospital_side.pipeline import TODAY, deliver, kinds, quick, release, site, source  # noqa: F401
from stage.hospital_side.site_desk import Hub

from shared.base.canonical import sha256_hex
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import (
    AuditRefusal,
    BudgetRefusal,
    ChecksRefusal,
    DifferencingRefusal,
    NetworkRefusal,
    PausedRefusal,
    PlanExpired,
    PlanRefusal,
    PolicyRefusal,
    Refusal,
    SmallN,
    StateRefusal,
    StorageRefusal,
)
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.plan import Budget, Wave
from shared.releases.bundle import read_bundle
from site_agent.config import SiteFloors, TableSource
from site_agent.ledger.book import Ledger
from site_agent.release import drawing
from site_agent.release.outbox import Outbox
from site_agent.release.pipeline.rehearsal import made_up_table, rehearse
from site_agent.release.pipeline.stages import FIGURES, STAGES, ReleaseStage
from site_agent.release.site import WorkingSite
from site_agent.show import screens


def test_a_release_goes_through_its_stages_in_order_and_waits_for_a_person(quick, tmp_path, plan, site, table):
    told: list[tuple[ReleaseStage, float]] = []
    made = release(plan, site, source(tmp_path, table), progress=lambda stage, share, left: told.append((stage, share)))
    assert tuple(dict.fromkeys(stage for stage, _ in told)) == STAGES
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == 1
    assert kinds(site) == ["genesis", "reserve", "anchor", "drawing", "seal", "hold"]
    assert made.hold.state == "held"
    assert site.witness.sent == []
    plan.dictionary.validate_release(made.table)


def test_what_waits_is_the_sealed_bundle_and_its_receipt_is_true(quick, tmp_path, plan, site, table):
    made = release(plan, site, source(tmp_path, table))
    path = site.outbox.bundle(made.hold.release_id)
    assert sha256_hex(path.read_bytes()) == made.hold.bundle_sha256
    bundle = read_bundle(path, cap=1 << 26)
    bundle.receipt.require_true(plan)
    assert bundle.receipt.n == 300
    assert bundle.receipt.study_epsilon == plan.budget.epsilon > site.ledger.study_total("mini", 1e-6).epsilon
    pd.testing.assert_frame_equal(bundle.table, made.table)


def test_no_person_and_no_identifier_is_in_the_bundle(quick, tmp_path, plan, site, table):
    table["person"] = [f"CANARY-{i}" for i in range(len(table))]
    made = release(plan, site, source(tmp_path, table))
    folder = site.outbox.folder(made.hold.release_id)
    for path in folder.iterdir():
        assert b"CANARY" not in path.read_bytes(), path.name
    assert "CANARY" not in json.dumps([entry.body for entry in site.ledger.entries()], default=str)


def test_rows_do_not_stand_where_their_person_stood(quick, tmp_path, plan, site, table):
    """At w near 1 a released row is nearly its record; sorted records must not come out sorted."""
    near = replace(plan, release=LatentNoisePlan(w=0.9), budget=Budget(epsilon=5000.0))
    ordered = table.sort_values("time").reset_index(drop=True)
    made = release(near, site, source(tmp_path, ordered))
    assert abs(np.corrcoef(np.arange(300), made.table["time"])[0, 1]) < 0.3


def test_the_same_seed_draws_the_same_rows_and_another_draws_others(quick, tmp_path, plan, table):
    def drawn(seed):
        folder = tmp_path / secrets.token_hex(4)
        ledger = Ledger.create(folder / "ledger.db", SigningKey.generate(), site="north")
        home = WorkingSite(
            name="north",
            agent_version="0.1.0",
            ledger=ledger,
            outbox=Outbox(folder, ledger),
            witness=Hub(),
            snapshot_key=b"k" * 32,
            floors=SiteFloors(),
            paused=lambda: False,
        )
        return release(plan, home, source(tmp_path, table), rng=seeded_rng(seed)).table

    pd.testing.assert_frame_equal(drawn(5), drawn(5))
    assert not drawn(5).equals(drawn(6))


# -- refusals before the draw cost nothing ----------------------------------------------------------------------
def test_without_an_anchor_no_record_is_read(quick, tmp_path, plan, site):
    site.witness.down = True
    with pytest.raises(NetworkRefusal):
        release(plan, site, TableSource(path=tmp_path / "not-there.csv"))
    assert kinds(site) == ["genesis", "reserve"]


def test_without_budget_no_record_is_read_and_nobody_is_asked(quick, tmp_path, plan, site):
    with pytest.raises(BudgetRefusal):
        release(replace(plan, budget=Budget(epsilon=1.0)), site, TableSource(path=tmp_path / "not-there.csv"))
    assert kinds(site) == ["genesis"]
    assert site.witness.anchored == []


def test_a_small_table_is_refused_and_the_same_reservation_is_resumed_when_it_has_grown(
    quick, tmp_path, plan, site, table
):
    with pytest.raises(SmallN):
        release(plan, site, source(tmp_path, table.head(3)))
    made = release(plan, site, source(tmp_path, table))
    assert kinds(site).count("reserve") == 1
    assert made.hold.state == "held"


@pytest.mark.fault("F22", cases=5)
def test_five_failed_trainings_are_one_charge(tmp_path, plan, site, table, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(drawing, "_fit", fail)
    for _ in range(5):
        with pytest.raises(StorageRefusal, match="memory"):
            release(plan, site, source(tmp_path, table))
    assert kinds(site) == ["genesis", "reserve", "anchor"]


@pytest.mark.parametrize(
    ("change", "today", "wave", "kind"),
    [
        ({"expires": dt.date(2020, 1, 1)}, TODAY, 1, PlanExpired),
        ({}, TODAY, 2, PlanRefusal),
        (
            {"waves": (Wave(number=1, opens=dt.date(2030, 1, 1), closes=dt.date(2031, 1, 1)),)},
            TODAY,
            1,
            PolicyRefusal,
        ),
        (
            {"waves": (Wave(number=1, opens=dt.date(2020, 1, 1), closes=dt.date(2021, 1, 1)),)},
            TODAY,
            1,
            PolicyRefusal,
        ),
    ],
    ids=["expired", "not planned", "not yet open", "closed"],
)
def test_a_wave_that_is_not_due_is_refused_before_the_ledger_is_touched(
    quick, tmp_path, plan, site, table, change, today, wave, kind
):
    with pytest.raises(kind):
        release(replace(plan, **change), site, source(tmp_path, table), wave=wave, today=today)
    assert kinds(site) == ["genesis"]


def test_a_pause_stops_a_run_before_it_draws(quick, tmp_path, plan, site, table):
    answers = iter([False, True])
    with pytest.raises(PausedRefusal):
        release(plan, replace(site, paused=lambda: next(answers)), source(tmp_path, table))
    assert "drawing" not in kinds(site)


def test_waves_that_differ_by_a_handful_of_persons_are_refused(quick, tmp_path, plan, site, table):
    waves = tuple(Wave(number=i, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)) for i in (1, 2, 3))
    many = replace(plan, waves=waves, budget=Budget(epsilon=5000.0), returning="refresh")
    deliver(site, release(many, site, source(tmp_path, table)))
    with pytest.raises(DifferencingRefusal):
        release(many, site, source(tmp_path, table.head(295)), wave=2)
    release(many, site, source(tmp_path, table.head(290)), wave=2)


# -- after the draw nothing comes back --------------------------------------------------------------------------
def burnt(site: WorkingSite) -> str:
    hold = site.ledger.holds()[-1]
    assert hold.phase == "burnt"
    return hold.reason


def test_a_release_that_fails_its_checks_is_burnt_with_the_reason(quick, tmp_path, plan, site, table, monkeypatch):
    """A mechanism that hands the records through, and did not when it was rehearsed."""
    from shared.mechanisms.latent_noise.noise import LatentNoise

    monkeypatch.setattr(drawing.RowRelease, "rehearse", lambda self: None)
    monkeypatch.setattr(LatentNoise, "release", lambda self, x, rng: x)
    with pytest.raises(ChecksRefusal) as caught:
        release(plan, site, source(tmp_path, table))
    assert "E_CHECKS" in burnt(site)
    assert "spent" in caught.value.next_step
    assert site.ledger.study_total("mini", 1e-6).epsilon > 0


def test_a_release_that_fails_its_audit_is_burnt_with_the_reason(quick, tmp_path, plan, site, table, monkeypatch):
    def refuse(*_, **__):
        raise AuditRefusal("the membership attack must not succeed", given="AUC 0.9")

    monkeypatch.setattr(drawing, "_attack", refuse)
    with pytest.raises(AuditRefusal):
        release(plan, site, source(tmp_path, table))
    assert "E_AUDIT" in burnt(site)


@pytest.mark.fault("F22")
def test_a_failure_between_drawing_and_sealing_is_burnt_and_its_words_are_not_kept(
    quick, tmp_path, plan, site, table, monkeypatch
):
    def fail(self, x):
        raise ValueError("CANARY-7319")

    monkeypatch.setattr(drawing.RowRelease, "released", fail)
    with pytest.raises(ValueError, match="CANARY"):
        release(plan, site, source(tmp_path, table))
    assert "ValueError" in burnt(site)
    assert "CANARY" not in json.dumps([entry.body for entry in site.ledger.entries()])


def test_a_wave_that_waits_in_the_outbox_is_not_drawn_again(quick, tmp_path, plan, site, table):
    made = release(plan, site, source(tmp_path, table))
    with pytest.raises(StateRefusal) as caught:
        release(plan, site, source(tmp_path, table))
    assert made.hold.release_id[:8] in caught.value.next_step
    assert kinds(site).count("drawing") == 1


@pytest.mark.parametrize("returning", ["append", "refresh", "frozen"])
def test_a_run_that_stopped_before_its_audit_is_audited_by_the_next_one(
    quick, tmp_path, plan, site, table, monkeypatch, returning
):
    """One charge, one draw, and the attacks see the same records and the same drawn rows as they would have."""
    given: list[dict] = []

    def stop(**seen):
        given.append(seen)
        if len(given) == 1:
            raise KeyboardInterrupt
        return {"membership_auc": 0.5}

    monkeypatch.setattr(drawing, "_attack", stop)
    where = source(tmp_path, table)
    plan = replace(plan, returning=returning)
    with pytest.raises(KeyboardInterrupt):
        release(plan, site, where)
    made = release(plan, site, where)
    assert made.hold.state == "held"
    assert kinds(site).count("drawing") == 1
    before, after = given
    np.testing.assert_array_equal(before["noisy"], after["noisy"])
    for x in (before["x"], after["x"]):
        first, second = (seen["fitted"].mechanism.flow.inverse(x) for seen in given)
        np.testing.assert_array_equal(first, second)
    encoder = before["encoder"]
    pd.testing.assert_frame_equal(encoder.decode(before["x"]), encoder.decode(after["x"]))


def test_a_sealed_release_is_not_audited_on_another_table(quick, tmp_path, plan, site, table, monkeypatch):
    def stop(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(drawing, "_attack", stop)
    with pytest.raises(KeyboardInterrupt):
        release(plan, site, source(tmp_path, table))
    with pytest.raises(StateRefusal, match="drawn from"):
        release(plan, site, source(tmp_path, table.head(299)))
    assert site.ledger.holds()[-1].state == "sealed"


# -- rehearsal --------------------------------------------------------------------------------------------------
def test_a_made_up_table_fits_the_dictionary_it_is_made_from(dictionary, plan):
    checked = dictionary.check(made_up_table(plan, 500, seeded_rng(1)))
    assert len(checked) == 500
    assert checked["smoker"].isna().any()


def test_a_rehearsal_runs_every_stage_and_touches_nothing_but_its_folder(quick, tmp_path, plan):
    stages: list[ReleaseStage] = []
    folder = tmp_path / "rehearsal" / "mini"
    for _ in range(2):  # the second removes what the first left
        done = rehearse(
            plan=plan,
            folder=folder,
            name="north",
            agent_version="0.1.0",
            floors=SiteFloors(),
            today=TODAY,
            progress=lambda stage, share, left: stages.append(stage),
        )
    assert set(stages) == set(STAGES)
    assert done.release is not None
    assert done.release.hold.state == "held"
    assert [path.name for path in tmp_path.iterdir()] == ["rehearsal"]


def test_a_release_of_noisy_figures_speaks_of_no_flow_no_rows_and_no_attack(quick, tmp_path, plan):
    stages: list[ReleaseStage] = []
    figures = replace(
        plan, release=TablesPlan(epsilon=1.0), posture="private", training=replace(plan.training, outcomes="joint")
    )
    done = rehearse(
        plan=figures,
        folder=tmp_path / "rehearsal" / "mini",
        name="north",
        agent_version="0.1.0",
        floors=SiteFloors(),
        today=TODAY,
        progress=lambda stage, share, left: stages.append(stage),
    )
    assert tuple(dict.fromkeys(stages)) == tuple(FIGURES)
    assert ReleaseStage.FIT not in FIGURES
    assert ReleaseStage.AUDIT not in FIGURES
    assert done.release is not None
    assert done.release.holds_figures
    drawn = Console(file=io.StringIO(), width=100)
    screens.release_page(drawn, done.release)
    said = drawn.file.getvalue()
    assert f"The figures   first 8 of {len(done.release.table)}" in said
    assert "The rows" not in said


def test_a_rehearsal_never_empties_a_folder_it_did_not_make(quick, tmp_path, plan):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StateRefusal):
        rehearse(plan=plan, folder=tmp_path, name="north", agent_version="0.1.0", floors=SiteFloors(), today=TODAY)
    assert (tmp_path / "thesis.txt").exists()


def test_every_refusal_of_the_path_says_what_to_do_next(quick, tmp_path, plan, site, table):
    for make in (
        lambda: release(plan, site, source(tmp_path, table.head(3))),
        lambda: release(plan, replace(site, paused=lambda: True), source(tmp_path, table)),
        lambda: release(plan, site, source(tmp_path, table), wave=7),
        lambda: release(replace(plan, budget=Budget(epsilon=1.0)), site, source(tmp_path, table)),
    ):
        with pytest.raises(Refusal) as caught:
            make()
        assert caught.value.next_step


# -- with the real flow and the real attacks ----------------------------------------------------------------------
def test_the_whole_path_with_a_trained_flow_and_real_attacks(tmp_path, plan, site, table):
    shares: list[float] = []
    gentle = replace(plan, release=LatentNoisePlan(w=0.2))
    made = release(gentle, site, source(tmp_path, table), progress=lambda stage, share, left: shares.append(share))
    assert shares == sorted(shares)
    assert made.hold.state == "held"
    assert made.audit["n_held_back"] == 60
    assert made.audit["n_fitted"] == 240
    assert 0 <= made.audit["membership"]["value"] <= 1
    assert any("AUC" in sentence for sentence in made.audit["sentences"])
    plan.dictionary.validate_release(made.table)


def test_rows_that_are_nearly_the_records_fail_the_real_audit_and_are_burnt(tmp_path, plan, site, table):
    floors = replace(plan.floors, membership_auc=0.55, own_row_linkage=0.05, extreme_linkage=0.2)
    bold = replace(plan, release=LatentNoisePlan(w=0.99), budget=Budget(epsilon=1e6), floors=floors)
    with pytest.raises(AuditRefusal):
        release(bold, site, source(tmp_path, table))
    assert "E_AUDIT" in burnt(site)


def test_a_site_may_ask_more_of_the_audit_than_the_plan(tmp_path, plan, site, table):
    with pytest.raises(AuditRefusal):
        release(plan, replace(site, floors=SiteFloors(own_row_linkage=0.001)), source(tmp_path, table))


def test_the_drawing_itself_is_witnessed_before_any_noise_exists(tmp_path, plan, site, table):
    """A snapshot put back after a draw would draw again; its drawing entry is not the witnessed one."""
    told = []
    whole = site.witness.anchor
    site.witness.anchor = lambda envelope: told.append(site.ledger.holds()[-1].state) or whole(envelope)
    release(plan, site, source(tmp_path, table))
    assert told[-1] == "drawing"
