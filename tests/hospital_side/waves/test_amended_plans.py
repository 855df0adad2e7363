"""What a later wave may take over from an earlier one when the plan, or the way persons are told apart, has changed."""

# ruff: noqa: F811
from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from conftest import make_table
from stage.hospital_side.pipeline import deliver, kinds, quick, release, site, source  # noqa: F401
from stage.plans.wave_plans import fit_of, grown, several

from shared.errors import DifferencingRefusal, PlanChanged, PlanRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, PrivateTraining, Training
from shared.privacy import accountant as privacy
from site_agent.release import drawing

DEAR = Budget(epsilon=1e9)
CHEAP = PrivateTraining(rate=0.1, noise_multiplier=2.0, steps=10)
NOISY = PrivateTraining(rate=0.5, noise_multiplier=0.5, steps=50)


@pytest.mark.parametrize("returning", ["append", "refresh", "frozen"])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"posture": "public"}),
        ({}, {"posture": "private", "private": CHEAP}),
        ({"posture": "private", "private": NOISY}, {"private": CHEAP}),
        ({}, {"training": Training(epochs=7)}),
    ],
    ids=["local to public", "local to private", "cheaper training", "other training"],
)
def test_a_sealed_flow_is_not_used_under_a_plan_that_would_have_fitted_it_otherwise(
    quick,
    tmp_path,
    plan,
    site,
    returning,
    first,
    then,
):
    """The receipt of the later wave would say of that flow what its own plan says, and it would not be true."""
    many = replace(several(plan, returning=returning, budget=DEAR), release=LatentNoisePlan(w=0.04), **first)
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    with pytest.raises(PlanChanged, match="posture"):
        release(replace(many, version=2, **then), site, source(tmp_path, grown(300, 80)), wave=2)
    assert kinds(site).count("drawing") == 1


@pytest.mark.parametrize("returning", ["append", "refresh", "frozen"])
def test_a_study_with_a_flow_from_a_search_goes_on_through_that_flow_alone(
    quick, tmp_path, monkeypatch, plan, site, returning
):
    many = several(plan, returning=returning, budget=DEAR)
    many = replace(many, training=replace(plan.training, search=True), release=LatentNoisePlan(w=0.04))
    with pytest.raises(PlanRefusal, match=r"training\.search must be left out") as refused:
        release(many, site, source(tmp_path, grown(300)))
    assert "reserved" not in kinds(site), "refused before any charge"
    assert ("new study" in refused.value.next_step) is (returning != "refresh")
    with monkeypatch.context() as before:  # as the version whose sites tried several networks
        before.setattr(Training, "require_one_network", lambda *given: None)
        first = release(many, site, source(tmp_path, grown(300)))
    deliver(site, first)
    amended = replace(many, version=2, purpose="As before, for a second year.")
    made = release(amended, site, source(tmp_path, grown(300, 80)), wave=2)
    assert (made.receipt.flow_of, fit_of(site, made).fresh) == (first.receipt.release_id, False)
    deliver(site, made)
    if returning != "refresh":  # what that refusal says of the sites that have released
        without = replace(amended, version=3, training=replace(many.training, search=False))
        with pytest.raises(PlanChanged, match="posture"):
            release(without, site, source(tmp_path, grown(300, 160)), wave=3)
    else:
        waves = tuple(replace(wave, refit=True) for wave in amended.waves)
        new, before = replace(amended, version=3, waves=waves), len(kinds(site))
        with pytest.raises(PlanRefusal, match=r"training\.search must be left out"):
            release(new, site, source(tmp_path, grown(300, 80)), wave=3)
        assert len(kinds(site)) == before
        alone = replace(new, training=replace(new.training, search=False))
        assert fit_of(site, release(alone, site, source(tmp_path, grown(300, 80)), wave=3)).fresh


@pytest.mark.parametrize("returning", ["append", "frozen"])
def test_a_plan_that_gives_an_epsilon_has_later_waves(quick, tmp_path, plan, site, returning):
    many = several(replace(plan, release=LatentNoisePlan(epsilon=8.0)), returning=returning)
    first = release(many, site, source(tmp_path, grown(300)))
    deliver(site, first)
    second = release(many, site, source(tmp_path, grown(300, 80)), wave=2)
    assert second.receipt.epsilon == pytest.approx(8.0)
    assert not fit_of(site, second).fresh
    assert second.receipt.drawn == 80
    assert second.receipt.n == (80 if returning == "append" else 380)
    assert second.receipt.flow_of == first.receipt.flow_of == first.receipt.release_id
    assert any("copied" in sentence for sentence in second.receipt.covered) == (returning == "frozen")


def test_persons_under_new_identifiers_are_charged_as_the_same_persons(quick, tmp_path, plan, site):
    many = several(plan, returning="refresh", budget=DEAR)
    many = replace(many, waves=(many.waves[0], replace(many.waves[1], refit=True), *many.waves[2:]))
    table = grown(300)
    deliver(site, release(many, site, source(tmp_path, table)))
    columns = tuple(replace(c, name="nhs") if c.kind == "person" else c for c in many.dictionary.columns)
    amended = replace(many, version=2, dictionary=replace(many.dictionary, version=2, columns=columns))
    renamed = table.rename(columns={"person": "nhs"}).assign(nhs=[f"nhs{k}" for k in range(300)])
    made = release(amended, site, source(tmp_path, renamed), wave=2)
    event = privacy.from_canonical(made.receipt.event)
    delta = many.budget.delta
    truth = privacy.epsilon_from_rdp(2 * privacy.rdp(event), delta)
    assert site.ledger.study_total("mini", delta).epsilon == pytest.approx(truth)
    assert made.receipt.study_epsilon == many.budget.epsilon, "what was charged so far is the site's own"


@pytest.mark.parametrize("returning", ["append", "frozen"])
@pytest.mark.parametrize("change", ["key", "mapping"])
def test_new_persons_are_not_believed_to_be_new_under_another_key_or_column(
    quick,
    tmp_path,
    plan,
    site,
    returning,
    change,
):
    many = several(plan, returning=returning)
    where = source(tmp_path, grown(300))
    deliver(site, release(many, site, where))
    if change == "key":
        other, where = replace(site, snapshot_key=b"z" * 32), source(tmp_path, grown(300, 80))
    else:
        table = grown(300, 80)
        other = site
        where = source(tmp_path, table.rename(columns={"person": "pid"}).assign(pid=[f"p{k}" for k in range(380)]))
        where = replace(where, columns={"pid": "person"})
    with pytest.raises(DifferencingRefusal, match="told apart"):
        release(many, other, where, wave=2)
    assert kinds(site).count("drawing") == 1


def test_where_nobody_can_be_told_apart_two_sizes_must_be_the_same_or_far_apart(quick, tmp_path, plan, site):
    columns = tuple(c for c in plan.dictionary.columns if c.kind != "person")
    many = several(
        replace(plan, dictionary=replace(plan.dictionary, columns=columns)), returning="refresh", budget=DEAR
    )
    table = grown(300).drop(columns="person")
    deliver(site, release(many, site, source(tmp_path, table)))
    with pytest.raises(DifferencingRefusal, match="as many rows"):
        release(many, site, source(tmp_path, table.iloc[:-1]), wave=2)
    assert release(many, site, source(tmp_path, table), wave=2).receipt.n == 300


def test_a_disk_that_is_full_during_the_audit_does_not_burn_the_sealed_bytes(
    quick,
    tmp_path,
    plan,
    site,
    monkeypatch,
):
    where = source(tmp_path, make_table(300))
    attack = drawing._attack

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(drawing, "_attack", full)
    with pytest.raises(OSError, match="no space"):
        release(plan, site, where)
    [hold] = site.ledger.holds()
    assert hold.state == "sealed"
    monkeypatch.setattr(drawing, "_attack", attack)
    made = release(plan, site, where)
    assert made.hold.bundle_sha256 == hold.bundle_sha256
    assert kinds(site).count("drawing") == 1
