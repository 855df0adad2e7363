"""The way of a network through a site: who is split off, what is read, what leaves, and what a reader may take."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import datetime as dt
import io
import json
import math
import shutil
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stage.hospital_side.pipeline import deliver
from stage.hospital_side.site_desk import Hub, hospital  # noqa: F401
from stage.mechanisms.contacts import (
    DAYS,
    KEY,
    TODAY,
    Ward,
    contacts_plan,
    ward,  # noqa: F401
)

from shared.base.keys import write_private
from shared.errors import (
    EstimateRefusal,
    IntegrityRefusal,
    PlanChanged,
    PlanRefusal,
    Refusal,
    SchemaRefusal,
    SmallN,
    StateRefusal,
    TrainingRefusal,
)
from shared.mechanisms.grand.edges import NEIGHBOURS, NUMBER, REACHED, adjacency, held_out, union
from shared.mechanisms.grand.labels import LabelPrivate
from shared.mechanisms.grand.noise import coordinates
from shared.mechanisms.grand.plan import GrandPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan, Wave
from shared.privacy import accountant as privacy
from shared.privacy.stated import shown_epsilon
from shared.releases.bundle import read_bundle, write_bundle
from shared.releases.receipt import ReceiptDraft, in_words, write_receipt
from shared.simulated import contact_networks
from site_agent.config import SiteFloors
from site_agent.ledger.book import Ledger
from site_agent.records import table as records
from site_agent.release import fitting
from site_agent.release.outbox import Outbox
from site_agent.release.pipeline.rehearsal import rehearse
from site_agent.release.pipeline.stages import NETWORK, ReleaseStage
from site_agent.release.site import WorkingSite


@pytest.fixture(scope="module")
def study() -> StudyPlan:
    return contacts_plan()


# -- the plan -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("release", "p"),
    [
        (GrandPlan(epsilon=1.0, d=3), 3 + 1 + 3),
        (GrandPlan(epsilon=1.0, d=3, model="rdpg"), 3 + 3),
        (GrandPlan(epsilon=1.0, d=3, directed=True), 2 * 4 + 3),
        (GrandPlan(epsilon=1.0, d=3, model="rdpg", directed=True), 6 + 3),
        (GrandPlan(epsilon=1.0, most=5), 5 + 1 + 3),
    ],
)
def test_the_price_is_exactly_epsilon_and_p_stands_on_the_receipt(study, release, p):
    plan = replace(study, release=release)
    facts = release.facts(plan)
    assert (facts.d, facts.parameters["p"], facts.parameters["scale"]) == (p, p, p / 1.0)
    assert privacy.pure_epsilon(release.event(plan)) == pytest.approx(1.0, rel=1e-12)
    assert privacy.epsilon(release.event(plan), 1e-6) <= 1.0
    assert StudyPlan.from_bytes(plan.canonical) == plan
    assert f"p = {p}" in release.details(plan)


def test_a_smaller_dimension_than_the_plan_s_largest_has_the_same_noise_and_pays_less(study):
    plan = replace(study, release=GrandPlan(epsilon=1.0, most=6))
    most, chosen = plan.release.mechanism_of(plan), plan.release.mechanism_of(plan, latent=2)
    assert chosen.scale == most.scale
    for epsilon in (0.1, 0.3, 0.7, 1.1, 2.3):  # where a division of its own would round to less than is stated
        plan = replace(study, release=GrandPlan(epsilon=epsilon, most=6))
        stated = plan.release.event(plan).scale
        assert {plan.release.mechanism_of(plan, latent=d).scale for d in range(1, 7)} == {stated}
    assert chosen.p == coordinates("inner_product", 2, attributes=3)
    assert chosen.epsilon == pytest.approx(6 / 10)


LABELLED = [{"communities": 3}, {"by": "ward"}, {"communities": 2, "label_share": 0.3}]


@pytest.mark.parametrize("first", LABELLED)
@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 2.0, 10 / 3, 10.0, 1e3])
def test_a_label_told_first_is_a_part_of_the_price_and_not_an_addition_to_it(study, first, epsilon):
    plan = replace(study, release=GrandPlan(epsilon=epsilon, d=2, **first))
    event, plain = plan.release.event(plan), replace(study, release=GrandPlan(epsilon=epsilon, d=2))
    label, coordinates = event.events
    assert (label.kind, coordinates.kind) == ("randomised_response", "laplace")
    share = first.get("label_share", 0.5)
    assert label.epsilon == pytest.approx(share * epsilon, rel=1e-12)
    # A column that is told first is no coordinate.
    assert coordinates.coordinates == plain.release.event(plain).coordinates - ("by" in first)
    assert privacy.pure_epsilon(coordinates) == pytest.approx((1 - share) * epsilon, rel=1e-12)
    assert epsilon * (1 - 1e-12) < privacy.pure_epsilon(event) <= epsilon
    assert privacy.epsilon(event, 1e-6) <= epsilon
    assert privacy.from_canonical(event.to_canonical()) == event
    assert StudyPlan.from_bytes(plan.canonical) == plan
    facts = plan.release.facts(plan)
    assert facts.parameters["scale"] == coordinates.scale
    assert (facts.parameters["labels"], facts.parameters["label_share"]) == (first.get("communities", 3.0), share)
    covered = " ".join(plan.release.covered(plan))
    assert "add up to exactly the ε of the plan" in covered
    assert f"x = {shown_epsilon(label.epsilon)}" in covered
    assert f"p = {coordinates.coordinates} coordinates" in covered
    assert "told first" in plan.release.details(plan)


def test_a_plan_without_a_label_has_the_bytes_and_the_receipt_it_always_had(study):
    told = json.loads(study.canonical)["release"]
    assert set(told) == {"directed", "d", "epsilon", "mechanism", "model", "most", "strangers"}
    assert set(study.release.facts(study).parameters) == {"p", "scale", "latent", "directed", "holdout"}
    assert study.release.event(study).kind == "laplace"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"release": {"epsilon": 1.0, "communities": 1}}, r"2\.\.20"),
        ({"release": {"epsilon": 1.0, "communities": 21}}, r"2\.\.20"),
        ({"release": {"epsilon": 1.0, "communities": True}}, r"2\.\.20"),
        ({"release": {"epsilon": 1.0, "communities": 2.0}}, r"2\.\.20"),
        ({"release": {"epsilon": 1.0, "communities": 2, "by": "ward"}}, "not both"),
        ({"release": {"epsilon": 1.0, "by": "ward", "keep": "sealed"}}, "must not come with release.by"),
        ({"release": {"epsilon": 1.0, "by": "age"}}, "column with levels"),
        ({"release": {"epsilon": 1.0, "by": "person"}}, "column with levels"),
        ({"release": {"epsilon": 1.0, "by": "clinic"}}, "no such column"),
        ({"release": {"epsilon": 1.0, "by": 3}}, "a column's name"),
        ({"release": {"epsilon": 1.0, "communities": 3, "label_share": 0.0}}, r"\[0\.05, 0\.95\]"),
        ({"release": {"epsilon": 1.0, "communities": 3, "label_share": 1.0}}, r"\[0\.05, 0\.95\]"),
        ({"release": {"epsilon": 1.0, "communities": 3, "label_share": float("nan")}}, r"\[0\.05, 0\.95\]"),
        ({"release": {"epsilon": 1.0, "label_share": 0.3}}, "must come with"),
        ({"release": {"epsilon": 0.0}}, "positive and finite"),
        ({"release": {"epsilon": float("inf")}}, "positive and finite"),
        ({"release": {"epsilon": True}}, "positive and finite"),
        ({"release": {"epsilon": 1e-9, "d": 2}}, "noise of each coordinate"),
        ({"release": {"epsilon": 1.0, "model": "sbm"}}, "one of inner_product"),
        ({"release": {"epsilon": 1.0, "d": 0}}, r"1\.\.32"),
        ({"release": {"epsilon": 1.0, "most": 64}}, r"1\.\.32"),
        ({"release": {"epsilon": 1.0, "model": "grdpg", "directed": True}}, "grdpg"),
        ({"release": {"epsilon": 1.0, "strangers": "keep"}}, "refuse, leave_out"),
        ({"posture": "local"}, "posture 'holdout'"),
        ({"posture": "private"}, "posture 'holdout'"),
        ({"returning": "refresh", "waves": (Wave(number=1, **DAYS), Wave(number=2, **DAYS))}, "deleted with each run"),
        ({"returning": "frozen", "waves": (Wave(number=1, **DAYS), Wave(number=2, **DAYS))}, "append or refresh"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_plan(changes, words):
    given = changes.get("release")
    with pytest.raises(PlanRefusal, match=words):
        contacts_plan(**{**changes, "release": GrandPlan(**given) if given else GrandPlan(epsilon=1.0, d=2)})


def test_a_column_of_neighbours_and_a_table_without_anything_to_release_are_refused(plan):
    person = Column(name="person", kind="person")
    taken = Dictionary(name="c", version=1, columns=(person, Column(name=NEIGHBOURS, kind="binary")))
    with pytest.raises(PlanRefusal, match="holds the edges"):
        contacts_plan(dictionary=taken)
    bare = Dictionary(name="c", version=1, columns=(person,))
    assert contacts_plan(dictionary=bare).dictionary.names == ()
    with pytest.raises(PlanRefusal, match="at least one column to release"):
        replace(plan, dictionary=bare)


def test_a_receipt_says_in_plain_words_who_is_not_covered_and_what_a_row_is_not(study):
    covered, not_covered = " ".join(study.release.covered(study)), " ".join(study.release.not_covered(study))
    assert "replace-one node" in covered
    assert "p = 6 coordinates" in covered
    assert "NO guarantee at all" in not_covered
    assert "about 50 %" in not_covered
    assert "who is a member, and how many there are, is not hidden" in not_covered
    assert "at small ε individual correspondence is gone" in not_covered
    assert "those who trained the model are not covered" in in_words(study, study.release.event(study))


# -- the site -------------------------------------------------------------------------------------------------------
def test_a_site_releases_a_network_of_the_persons_who_are_not_held_out(ward, study):
    site = ward.site()
    made = ward.release(study, site, seed=5)
    held = ward.roles(study)
    assert made.hold.state == "held"
    assert made.receipt.n == made.receipt.drawn == int((~held).sum())
    assert {check.outcome for check in made.checks} == {"passed", "note"}
    assert set(made.audit["utility"]) == {"degree", "v_shape", "triangle", "eigenvector", "harmonic"}
    degree = made.audit["utility"]["degree"]
    assert degree["released"] < degree["plain noise"] / 3
    assert set(degree) > {"without noise", "from the held-out alone", "two parts of the real one"}
    bundle = read_bundle(site.outbox.bundle(made.hold.release_id), cap=1 << 26)
    bundle.receipt.require_true(study)
    assert (bundle.receipt.epsilon, bundle.receipt.posture) == (2.0, "holdout")
    study.release.validate(study, bundle.table, made.receipt.n)
    network = adjacency(bundle.table, directed=False)
    assert (network != network.T).nnz == 0
    assert network.diagonal().sum() == 0
    # As many edges as the true ones among them, up to what 139 persons of one distribution and others differ by.
    own = read_records(ward, study).contacts.matrix[~held][:, ~held]
    assert network.sum() == pytest.approx(own.sum(), rel=0.4)
    folder = site.outbox.folder(made.hold.release_id)
    assert not (folder / "fit.npz").exists()
    assert all(b"harbour" not in path.read_bytes() for path in folder.iterdir())


def test_of_a_large_network_no_more_persons_are_drawn_for_the_steward_than_are_compared(study, ward, monkeypatch):
    """Plain noise ties half of all pairs: of 20,000 released persons the network took four gigabytes."""
    from site_agent.models.latent_space import LatentSpace
    from site_agent.release import networks

    drawn, draw = [], LatentSpace.draw

    def counted(self, latents, *rest, **given):
        drawn.append(len(latents))
        return draw(self, latents, *rest, **given)

    monkeypatch.setattr(LatentSpace, "draw", counted)
    monkeypatch.setattr(networks, "LARGE", 60)
    monkeypatch.setattr(networks, "MOST_COMPARED", 50)
    made = ward.release(study)
    assert drawn[-3:] == [50, 50, 50]
    assert set(made.audit["utility"]["degree"]) >= {
        "released",
        "without noise",
        "from the held-out alone",
        "plain noise",
    }


def test_what_is_compared_is_drawn_of_those_alone_and_is_the_same_to_the_last_bit(study, ward, monkeypatch):
    """Of 8,000 released persons plain noise ties 16 million pairs: the whole network took half a gigabyte."""
    from site_agent.models.latent_space import LatentSpace
    from site_agent.release import networks

    drawn, draw = [], LatentSpace.draw

    def whole(self, latents, key, names=None, *, among=None, **given):
        network = draw(self, latents, key, names, **given)
        return network if among is None else network[among][:, among]

    def kept(self, latents, key, names=None, *, among=None, **given):
        network = draw(self, latents, key, names, among=among, **given)
        drawn.append((len(latents), network.shape[0]))
        return network

    monkeypatch.setattr(networks, "MOST_COMPARED", 50)
    found = []
    for name, drawing in (("whole", whole), ("kept", kept)):
        with monkeypatch.context() as patch:
            patch.setattr(LatentSpace, "draw", drawing)
            found.append(ward.release(study, ward.site(name), seed=3).audit["utility"])
    assert found[0] == found[1]
    assert [size for _, size in drawn[-3:]] == [50, 50, 50]
    assert all(n > 50 for n, _ in drawn[-3:])


def read_records(ward: Ward, plan: StudyPlan) -> records.Records:
    return records.read(ward.source, plan.dictionary, key=KEY, rules=plan.release.edges)


def test_ties_among_the_released_are_never_read(ward, study):
    """A¹¹ is poisoned: every two released persons are tied; what leaves is the same, row by row and edge by edge."""
    held = dict(zip(ward.nodes["person"], ward.roles(study), strict=True))
    among = np.array([not held[a] and not held[b] for a, b in ward.edges.itertuples(index=False)])
    free = [name for name, out in held.items() if not out]
    every = pd.DataFrame([(a, b) for k, a in enumerate(free) for b in free[k + 1 :]], columns=["from", "to"])
    tables = []
    for name, edges in (("a", ward.edges), ("b", pd.concat([ward.edges[~among], every]))):
        one = replace(ward, edges=edges)
        tables.append(one.release(study, one.site(name), seed=3).table)
    assert among.sum() > 200
    pd.testing.assert_frame_equal(tables[0], tables[1])


def test_every_coordinate_of_every_released_person_gets_the_noise_that_is_charged(ward, study, monkeypatch):
    """834 draws of Lap(b): the mean of |e| is within 25 % of b but once in a thousand million."""
    from shared.mechanisms.grand.noise import NodePrivate

    given, privatise = [], NodePrivate.privatise

    def watched(self, latents, frame, noise, into, labelled):
        given.append((latents.shape, noise))
        return privatise(self, latents, frame, noise, into, labelled)

    monkeypatch.setattr(NodePrivate, "privatise", watched)
    made = ward.release(study)
    [(shape, noise)] = given
    assert shape == noise.shape == (made.receipt.n, made.receipt.parameters["p"])
    assert np.abs(noise).mean() == pytest.approx(made.receipt.parameters["scale"], rel=0.25)
    assert len(np.unique(noise)) > 0.99 * noise.size


def test_a_second_wave_releases_new_persons_only_and_keeps_everybody_s_role(ward, study):
    two = replace(study, waves=(*study.waves, Wave(number=2, **DAYS)))
    site = ward.site()
    nodes, edges = contact_networks(np.random.default_rng(1), sites=1, n=600, mean_degree=14)["harbour"]
    first = set(nodes["person"][:300])
    early = edges[edges["from"].isin(first) & edges["to"].isin(first)]
    deliver(site, replace(ward, nodes=nodes[:300], edges=early).release(two, site))
    made = replace(ward, nodes=nodes, edges=edges).release(two, site, wave=2)
    held = replace(ward, nodes=nodes).roles(two)
    assert made.receipt.n == int((~held[300:]).sum())
    assert site.ledger.study_total(two.study, two.budget.delta).epsilon <= 2.0 + 1e-9
    other = replace(two, holdout=0.3, version=2)
    with pytest.raises(Refusal, match="who trains and who is released must stay"):
        fitting.require_roles_kept(other, [made.receipt])


def test_a_refresh_charges_everybody_again(ward, study):
    plan = replace(study, returning="refresh", waves=(*study.waves, Wave(number=2, refit=True, **DAYS)))
    site = ward.site()
    first = ward.release(plan, site)
    deliver(site, first)
    made = ward.release(plan, site, wave=2)
    assert made.receipt.n == first.receipt.n
    assert made.receipt.epsilon < site.ledger.study_total(plan.study, plan.budget.delta).epsilon <= 4.0


def test_a_run_that_was_killed_after_its_seal_is_checked_by_the_next_one(ward, study, monkeypatch):
    from site_agent.release.pipeline import making

    site = ward.site()
    with monkeypatch.context() as broken:
        broken.setattr(making, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ward.release(study, site)
    made = ward.release(study, site)
    assert made.hold.state == "held"
    # How like the real network it is may be warned of: that is chance.
    assert "failed" not in {check.outcome for check in made.checks}
    assert [entry.kind for entry in site.ledger.entries()].count("drawing") == 1


def test_a_killed_run_is_held_alike_where_its_table_has_changed_since(ward, study, monkeypatch):
    from site_agent.release.pipeline import making

    ends = []
    for name, nodes in (("same", ward.nodes), ("changed", ward.nodes.iloc[::-1])):
        site = ward.site(name)
        with monkeypatch.context() as broken:
            broken.setattr(making, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                ward.release(study, site)
        made = replace(ward, nodes=nodes).release(study, site)
        assert made.hold.state == "held"
        ends.append([(check.name, check.outcome) for check in made.checks])
    assert ends[0] == ends[1]


def test_a_directed_network_and_one_without_attributes_go_the_same_way(ward, study):
    bare = Dictionary(name="c", version=1, columns=(Column(name="person", kind="person"),))
    plan = replace(study, dictionary=bare, release=GrandPlan(epsilon=50.0, d=1, directed=True, model="rdpg"))
    plan = replace(plan, budget=Budget(epsilon=60.0, delta=1e-6))
    made = replace(ward, nodes=ward.nodes[["person"]]).release(plan)
    assert list(made.table.columns) == [NEIGHBOURS]
    network = adjacency(made.table, directed=True)
    assert (network != network.T).nnz > 0
    assert made.receipt.parameters["p"] == 2


def test_the_hold_out_may_choose_the_dimension_and_the_receipt_is_the_plan_s(ward, study):
    plan = replace(study, release=GrandPlan(epsilon=3.0, model="rdpg", most=3))
    made = ward.release(plan)
    made.receipt.require_true(plan)
    assert made.receipt.parameters["p"] == 6


def test_a_rehearsal_draws_a_network_from_the_dictionary_alone(tmp_path, study):
    stages: list[ReleaseStage] = []
    done = rehearse(
        plan=study,
        folder=tmp_path / "r",
        name="north",
        agent_version="0.1.0",
        floors=SiteFloors(),
        today=TODAY,
        progress=lambda stage, share, left: stages.append(stage),
    )
    assert done.refused is None
    assert NEIGHBOURS in done.release.table.columns
    assert tuple(dict.fromkeys(stages)) == tuple(NETWORK), "its stages were those of a flow"
    assert ReleaseStage.FIT not in stages


@pytest.mark.parametrize("first", [{"communities": 2}, {"by": "ward"}])
def test_a_site_tells_a_label_first_with_the_noise_that_is_charged(ward, study, monkeypatch, first):
    """What `release` gave is what stands in the released table, and its law is that of the plan's part of ε."""
    from shared.mechanisms.grand.noise import NodePrivate

    told, placed = [], []
    release, privatise = LabelPrivate.release, NodePrivate.privatise

    def watched(self, labels, names, rng):
        told.append((self, labels, tuple(names), release(self, labels, names, rng)))
        return told[-1][3]

    def seen(self, latents, frame, noise, into, labelled):
        placed.append((self, frame, noise, labelled, privatise(self, latents, frame, noise, into, labelled)))
        return placed[-1][4]

    monkeypatch.setattr(LabelPrivate, "release", watched)
    monkeypatch.setattr(NodePrivate, "privatise", seen)
    plan = replace(study, release=GrandPlan(epsilon=2.0, d=2, **first))
    made = ward.release(plan, seed=4)
    [(response, own, names, drawn)], [(mechanism, frame, noise, labelled, _)] = told, placed
    n = made.receipt.n
    assert len(set(names)) == len(own) == n
    assert response.epsilon == 1.0
    assert response.counts == tuple(np.bincount(labelled.reference))
    assert sum(response.counts) == len(frame) == int(ward.roles(plan).sum())
    assert (labelled.own is own, labelled.released is drawn) == (True, True)
    # 139 labels, each kept with about the stated probability: five standard deviations, and 1.1 times is refuted by
    # tests/mechanisms/networks/test_labels.py.
    expected = np.array([response.truth(label) for label in own])
    spread = math.sqrt((expected * (1 - expected)).sum())
    assert abs((own == drawn).sum() - expected.sum()) < 5 * spread
    assert mechanism.scale == made.receipt.parameters["scale"] == noise.shape[1] / 1.0
    assert np.abs(noise).mean() == pytest.approx(mechanism.scale, rel=0.25)
    assert made.receipt.epsilon == pytest.approx(2.0, rel=1e-3)
    assert made.receipt.event["event"] == "composition"
    assert {check.outcome for check in made.checks} <= {"passed", "warning", "note"}
    if "by" in first:
        counts = made.table["ward"].value_counts()[["medicine", "surgery", "maternity"]]
        places = np.bincount(drawn, minlength=3)
        assert sorted(counts) == sorted(places)
        assert any(said.startswith("The column 'ward' is told as 3") for said in made.audit["sentences"])
    else:
        assert any(said.startswith("Communities found among the persons held out") for said in made.audit["sentences"])
    made.receipt.require_true(plan)
    plan.release.validate(plan, made.table, n)


def test_ties_among_the_released_are_never_read_for_a_community_either(ward, study):
    held = dict(zip(ward.nodes["person"], ward.roles(study), strict=True))
    among = np.array([not held[a] and not held[b] for a, b in ward.edges.itertuples(index=False)])
    plan = replace(study, release=GrandPlan(epsilon=6.0, d=2, communities=3))
    tables = []
    for name, edges in (("a", ward.edges), ("b", ward.edges[~among])):
        one = replace(ward, edges=edges)
        tables.append(one.release(plan, one.site(name), seed=3).table)
    pd.testing.assert_frame_equal(tables[0], tables[1])


def test_more_communities_than_the_held_out_can_fill_are_refused_before_anything_is_charged(ward, study):
    site = ward.site()
    with pytest.raises(TrainingRefusal, match="at least 20 persons who are held out"):
        ward.release(replace(study, release=GrandPlan(epsilon=2.0, d=2, communities=20)), site)
    assert "drawing" not in [entry.kind for entry in site.ledger.entries()]


def test_levels_that_few_of_the_held_out_have_are_told_together_and_none_is_told_of_nobody_else():
    from site_agent.release.networks import _by_column

    plan = contacts_plan(release=GrandPlan(epsilon=2.0, d=2, by="ward"))

    def places(*held: int):
        beside = pd.DataFrame({"ward": np.repeat([0.0, 1.0, 2.0], held)})
        return _by_column(plan.release, plan, pd.DataFrame({"ward": [0.0, 1.0, 2.0]}), beside)

    draws = np.random.default_rng(1)
    many = places(60, 40, 25)
    assert (many.counts, many.own.tolist()) == ((60, 40, 25), [0, 1, 2])
    np.testing.assert_array_equal(many.levels(np.array([2, 0, 1]), draws), [2, 0, 1])
    # Together they are enough for a place of their own: 12 and 13 of 25.
    two = places(60, 12, 13)
    assert (two.counts, two.own.tolist()) == ((60, 25), [0, 1, 1])
    found = np.bincount(two.levels(np.ones(2000, dtype=np.int64), draws), minlength=3)
    assert found[0] == 0
    assert found[1] == pytest.approx(2000 * 12 / 25, abs=5 * 22)
    # Not even that, or nobody at all: they join the largest, and are told as often as the held-out have them.
    for few, left in (((60, 40, 3), (63, 40)), ((60, 40, 0), (60, 40))):
        joined = places(*few)
        assert (joined.counts, joined.own.tolist()) == (left, [0, 1, 0])
        assert (joined.levels(np.zeros(50, dtype=np.int64), draws) != 1).all()
    assert places(10, 10, 10).counts == (30,)


@pytest.mark.parametrize("epsilon", [1e-3, 1e3])
def test_a_label_at_extreme_prices_and_no_other_column_than_it(ward, study, epsilon):
    bare = replace(study.dictionary, columns=study.dictionary.columns[:2])
    release = GrandPlan(epsilon=epsilon, d=1, directed=True, model="rdpg", by="ward")
    plan = replace(study, dictionary=bare, release=release, budget=Budget(epsilon=2e3, delta=1e-6))
    made = replace(ward, nodes=ward.nodes[["person", "ward"]]).release(plan)
    assert list(made.table.columns) == ["ward", NEIGHBOURS]
    assert made.receipt.parameters["p"] == 2
    real = ward.nodes["ward"][~ward.roles(plan)].value_counts()
    if epsilon == 1e3:
        pd.testing.assert_series_equal(
            made.table["ward"].astype(str).value_counts().sort_index(), real.sort_index(), check_names=False
        )


# -- refusals before the draw cost nothing -----------------------------------------------------------------------------
def complete(people: list[str]) -> pd.DataFrame:
    return pd.DataFrame([(a, b) for k, a in enumerate(people) for b in people[k + 1 :]], columns=["from", "to"])


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda w, p: replace(w, nodes=w.nodes[:1], edges=w.edges[:0].assign(x=1)), Refusal),
        (lambda w, p: replace(w, edges=w.edges[:0]), Refusal),
        (lambda w, p: replace(w, nodes=w.nodes[:40], edges=complete(list(w.nodes["person"][:40]))), SmallN),
        (
            lambda w, p: replace(w, nodes=w.nodes[~w.roles(p) | (w.roles(p).cumsum() <= 20)], edges=None),
            SmallN,
        ),
        (lambda w, p: replace(w, edges=complete(list(w.nodes["person"][~w.roles(p)]))), TrainingRefusal),
        (lambda w, p: replace(w, nodes=w.nodes.assign(age=200)), Refusal),
    ],
    ids=["one node", "no edge", "forty nodes", "twenty held out", "no edge among them", "outside the kind"],
)
def test_what_no_network_can_be_made_of_is_refused_before_the_draw(ward, study, change, refusal):
    changed = change(ward, study)
    if changed.edges is None:
        changed = replace(changed, edges=complete(list(changed.nodes["person"])))
    site = ward.site()
    with pytest.raises(refusal):
        changed.release(study, site)
    assert "drawing" not in [entry.kind for entry in site.ledger.entries()]


@pytest.mark.parametrize(("model", "epsilon"), [("inner_product", 1e-3), ("rdpg", 1e3), ("grdpg", 1e3)])
def test_a_complete_network_and_extreme_prices_give_a_network_that_is_possible(ward, study, model, epsilon):
    plan = replace(study, release=GrandPlan(epsilon=epsilon, d=1, model=model), budget=Budget(epsilon=2e3, delta=1e-6))
    whole = replace(ward, edges=complete(list(ward.nodes["person"])))
    made = whole.release(plan)
    network = adjacency(made.table, directed=False)
    n = made.receipt.n
    assert network.nnz / (n * (n - 1)) > 0.9


def test_an_approver_is_told_of_a_release_that_copies_the_persons_held_out_and_nobody_else_is(ward, study, monkeypatch):
    from shared.mechanisms.grand.noise import NodePrivate

    height = Column(name="height", kind="continuous", lower=100, upper=220)
    columns = (*study.dictionary.columns, height)
    with pytest.raises(PlanRefusal, match="must be rounded"):
        replace(study, dictionary=replace(study.dictionary, columns=columns))
    columns = (*study.dictionary.columns, replace(height, decimals=2))
    plan = replace(study, dictionary=replace(study.dictionary, columns=columns))
    rng = np.random.default_rng(2)
    tall = replace(ward, nodes=ward.nodes.assign(height=rng.normal(170, 10, len(ward.nodes))))
    monkeypatch.setattr(
        NodePrivate, "privatise", lambda self, z, frame, noise, into, labelled: into[rng.integers(0, len(into), len(z))]
    )
    made = tall.release(plan)
    assert "copies-of-held-out" in [check.name for check in made.notable]
    assert "copies-of-held-out" not in [check.name for check in made.warnings]


def test_too_few_held_out_for_the_floor_are_refused_before_anything_is_charged(ward, study):
    plan = replace(study, holdout=0.2)
    site = replace(ward.site(), floors=SiteFloors(persons=100))
    with pytest.raises(SmallN, match="must be held out"):
        ward.release(plan, site)
    assert "drawing" not in [entry.kind for entry in site.ledger.entries()]
    assert [hold.state for hold in site.ledger.holds(plan.study)] == ["anchored"]


def test_more_edges_than_a_reader_takes_are_refused_before_anything_is_charged(ward, study, monkeypatch):
    from site_agent.release import networks

    monkeypatch.setattr(networks, "MOST_EDGES", 300)
    site = ward.site()
    with pytest.raises(TrainingRefusal, match="at most 300 edges"):
        ward.release(study, site)
    assert "drawing" not in [entry.kind for entry in site.ledger.entries()]


def test_an_approver_is_told_of_a_model_that_does_not_fit_the_held_out(ward, study):
    """Rooms of fifteen in which nearly everybody knows everybody: two dimensions cannot say that."""
    names = list(ward.nodes["person"])
    rooms = pd.concat([complete(names[k : k + 15]) for k in range(0, 300, 15)])
    made = replace(ward, edges=rooms.sample(frac=0.8, random_state=1)).release(study)
    assert "model" in [check.name for check in made.notable]
    assert made.audit["densities"]["transitivity"]["log_ratio"] < -0.3
    assert any(said.startswith("Densities of the released network") for said in made.audit["sentences"])


# -- the reader -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def released(study) -> pd.DataFrame:
    """Sixty persons, drawn by hand, as the wire gives them back."""
    rng = np.random.default_rng(4)
    n = 60
    lists = [np.flatnonzero(rng.random(n - 1 - i) < 0.2).astype(np.int32) + np.int32(i + 1) for i in range(n)]
    table = pd.DataFrame(
        {
            "ward": pd.Categorical(
                rng.choice(["medicine", "surgery", "maternity"], n), ["medicine", "surgery", "maternity"]
            ),
            "staff": rng.integers(0, 2, n),
            "age": rng.integers(18, 90, n),
        }
    )
    table[NEIGHBOURS] = lists
    return table


def test_a_network_goes_through_a_bundle_and_comes_back(tmp_path, study, released):
    receipt = write_receipt(
        study, ReceiptDraft(wave=1, site="north", release_id="ab" * 16, agent_version="0.1.0", n=60, previous="0" * 64)
    )
    path = tmp_path / "bundle.zip"
    path.write_bytes(write_bundle(receipt, released))
    back = read_bundle(path, cap=1 << 24).table
    study.release.validate(study, back, 60)
    assert (adjacency(back, directed=False) != adjacency(released, directed=False)).nnz == 0
    assert path.read_bytes() == write_bundle(receipt, back)


def lists(change):
    def spoil(table: pd.DataFrame) -> pd.DataFrame:
        own = [one.copy() for one in table[NEIGHBOURS]]
        return table.assign(**{NEIGHBOURS: change(own)})

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.drop(columns=NEIGHBOURS), "dictionary's columns"),
        (lambda t: t.assign(name="x"), "dictionary's columns"),
        (lambda t: t.iloc[:-1], "one row per person"),
        (lambda t: t.assign(age=200), "within the dictionary"),
        (lists(lambda own: [one.astype(np.int64) for one in own]), "32-bit"),
        (lists(lambda own: [one.astype(np.float32) for one in own]), "32-bit"),
        (lists(lambda own: ["1, 2", *own[1:]]), "32-bit"),
        (lists(lambda own: [np.array([[1]], dtype=np.int32), *own[1:]]), "32-bit"),
        (lists(lambda own: [*own[:-1], np.array([0], dtype=np.int32)]), "ascending"),
        (lists(lambda own: [np.array([0], dtype=np.int32), *own[1:]]), "ascending"),
        (lists(lambda own: [np.array([3, 2], dtype=np.int32), *own[1:]]), "ascending"),
        (lists(lambda own: [np.array([2, 2], dtype=np.int32), *own[1:]]), "ascending"),
        (lists(lambda own: [np.array([60], dtype=np.int32), *own[1:]]), "ascending"),
        (lists(lambda own: [np.array([-1], dtype=np.int32), *own[1:]]), "ascending"),
    ],
)
def test_a_hostile_site_may_send_no_other_network(study, released, spoil, words):
    study.release.validate(study, released, 60)
    with pytest.raises(Refusal, match=words) as caught:
        study.release.validate(study, spoil(released), 60)
    assert isinstance(caught.value, SchemaRefusal) or "dictionary" in str(caught.value)


def test_a_small_file_that_unpacks_to_a_large_list_is_refused_before_it_is_read(tmp_path):
    from shared.releases.metadata import LABEL
    from shared.releases.table_file import read_table

    for many, refused in ((400_000, True), (100, False)):
        offsets = pa.array(np.linspace(0, many, 101).astype(np.int32))
        packed = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(many, np.int32)))
        table = pa.table({NEIGHBOURS: packed}).replace_schema_metadata({b"label": LABEL.encode()})
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd", write_statistics=False)
        data = memoryview(sink.getvalue())
        assert len(data) < 3000
        if refused:
            with pytest.raises(SchemaRefusal, match="fit in memory"):
                read_table(data, [NEIGHBOURS], 100, 1 << 20, None, lambda: None)
        else:
            assert len(read_table(data, [NEIGHBOURS], 100, 1 << 20, None, lambda: None)) == 100


def test_how_many_were_held_out_follows_from_the_plan_s_share(study):
    assert held_out(study, 239) == 239
    assert held_out(replace(study, holdout=0.2), 400) == 100
    assert json.loads(study.canonical)["release"]["mechanism"] == "grand"


# -- waves that go on from a sealed frame ------------------------------------------------------------------------------
def two_waves(study: StudyPlan, **changes: object) -> StudyPlan:
    return replace(
        study,
        release=replace(study.release, **{"keep": "sealed", "epsilon": 8.0, "model": "rdpg", **changes}),
        waves=(*study.waves, Wave(number=2, **DAYS), Wave(number=3, **DAYS)),
    )


@dataclass(frozen=True)
class Grown:
    """A network that grows from wave to wave: 240 persons, 360, 480."""

    ward: Ward
    plan: StudyPlan
    site: WorkingSite

    def until(self, count: int, **changes: object) -> Ward:
        present = set(self.ward.nodes["person"][:count])
        edges = self.ward.edges[self.ward.edges["from"].isin(present) & self.ward.edges["to"].isin(present)]
        return replace(self.ward, **{"nodes": self.ward.nodes[:count], "edges": edges, **changes})

    def reference(self, made):
        from site_agent.release.embeddings import EMBEDDING, EmbeddingStore

        data = (self.site.outbox.folder(made.hold.release_id) / EMBEDDING).read_bytes()
        return EmbeddingStore(self.site.ledger.path.parent, "contacts").open(data, made.hold.release_id)

    def wave(self, number: int, plan: StudyPlan | None = None, **changes: object):
        ward = self.until(120 + 120 * number, **changes)
        return ward.release(plan or self.plan, self.site, wave=number)

    def copied(self, folder: Path) -> Grown:
        """The same site, in a folder of its own."""
        home, old = folder / "home", self.site.ledger
        shutil.copytree(old.path.parent, home)
        ledger = Ledger(home / "ledger.db", old.signer, site="north")
        site = replace(self.site, ledger=ledger, outbox=Outbox(home, ledger), witness=deepcopy(self.site.witness))
        return replace(self, ward=replace(self.ward, folder=folder), site=site)


def grow(folder: Path, plan: StudyPlan) -> Grown:
    ward = Ward(folder, *contact_networks(np.random.default_rng(1), sites=1, n=480, mean_degree=24)["harbour"])
    return Grown(ward, plan, ward.site())


@pytest.fixture(scope="module")
def begun(tmp_path_factory, study) -> tuple[Grown, object]:
    """A site whose first wave is delivered; copied for each test."""
    grown = grow(tmp_path_factory.mktemp("begun"), two_waves(study))
    first = grown.wave(1)
    deliver(grown.site, first)
    return grown, first


@pytest.fixture
def grown(begun, tmp_path) -> Grown:
    return begun[0].copied(tmp_path)


@pytest.fixture
def first(begun):
    return begun[1]


def test_a_later_wave_places_new_persons_through_the_sealed_frame_and_charges_them_alone(grown, first, monkeypatch):
    from site_agent.models import latent_fit

    def no_fit(*_: object, **__: object) -> None:
        raise AssertionError("a later wave fits nothing")

    monkeypatch.setattr(latent_fit, "fit", no_fit)
    second = grown.wave(2)
    held = grown.ward.roles(grown.plan)
    assert second.receipt.n == second.receipt.drawn == int((~held[240:360]).sum())
    assert second.receipt.flow_of == first.hold.release_id
    # Nobody of the first wave is charged again, in the study's total as in the list of whose each row is.
    assert grown.site.ledger.study_total(grown.plan.study, grown.plan.budget.delta).epsilon <= 8.0 + 1e-9
    folders = [grown.site.outbox.folder(made.hold.release_id) for made in (first, second)]
    persons = [set(json.loads((folder / "rows.json").read_bytes())["persons"]) for folder in folders]
    assert not persons[0] & persons[1]
    # The waves are one network: edges within the second, and between it and the first, which is as it was.
    n1, n2 = first.receipt.n, second.receipt.n
    assert second.table[NUMBER].tolist() == list(range(n1, n1 + n2))
    whole = union([first.table, second.table], directed=False)
    assert (whole[:n1, :n1] != adjacency(first.table, directed=False)).nnz == 0
    assert (whole[n1:, n1:] != adjacency(second.table, directed=False)).nnz == 0
    blocks = [whole[:n1, :n1].mean(), whole[:n1, n1:].mean(), whole[n1:, n1:].mean()]
    assert max(blocks) < 3 * min(blocks)
    assert min(blocks) > 0.005


def test_a_later_wave_tells_communities_of_the_frame_that_was_kept(study, tmp_path, monkeypatch):
    """By the first wave's persons held out alone, at the label's part of what a new person pays."""
    plan = two_waves(study, d=2, communities=2)
    grown, told = grow(tmp_path, plan), []
    release = LabelPrivate.release

    def noted(mechanism, labels, names, rng):
        told.append((mechanism.epsilon, mechanism.counts, len(names)))
        return release(mechanism, labels, names, rng)

    monkeypatch.setattr(LabelPrivate, "release", noted)
    made = [grown.wave(1)]
    deliver(grown.site, made[0])
    made.append(grown.wave(2))
    held = int(grown.ward.roles(plan)[:240].sum())
    assert [(epsilon, sum(counts), n) for epsilon, counts, n in told] == [(4.0, held, m.receipt.n) for m in made]
    assert union([m.table for m in made], directed=False)[: made[0].receipt.n, made[0].receipt.n :].nnz > 20


@pytest.mark.parametrize("directed", [False, True])
def test_edges_between_two_persons_are_the_same_whichever_wave_asks(study, tmp_path, directed):
    """Drawn again from the last wave's frame: all that every wave released is there, edge by edge."""
    plan = two_waves(study, d=1, model="rdpg" if directed else "inner_product", directed=directed)
    grown, tables = grow(tmp_path, plan), []
    for wave in (1, 2) if directed else (1, 2, 3):
        made = grown.wave(wave)
        deliver(grown.site, made)
        tables.append(made.table)
    told = [NUMBER, NEIGHBOURS, REACHED] if directed else [NUMBER, NEIGHBOURS]
    assert list(tables[0].columns)[3:] == told
    frame = grown.reference(made)
    again = frame.space.draw(frame.private, frame.key, [str(number) for number in frame.numbers])
    assert len(frame.releases) == len(tables)
    assert (union(tables, directed=directed) != again).nnz == 0
    n1 = len(tables[0])
    assert again[:n1, n1:].nnz > 10
    # One whose release was taken back is in no table: its edges are left out, everybody else's stay.
    keep = np.r_[:n1, n1 + len(tables[1]) : len(frame.numbers)]
    assert (union([tables[0], *tables[2:]], directed=directed) != again[keep][:, keep]).nnz == 0


def test_ties_among_the_new_and_between_new_and_old_are_never_read(grown, tmp_path):
    """A¹¹ of a second wave is poisoned, to the persons of the first one too; what leaves is the same."""
    later = grown.until(360)
    held = dict(zip(grown.ward.nodes["person"], grown.ward.roles(grown.plan), strict=True))
    free = [name for name in later.nodes["person"] if not held[name]]
    among = np.array([not held[a] and not held[b] for a, b in later.edges.itertuples(index=False)])
    tables = []
    for name, edges in (("a", later.edges), ("b", pd.concat([later.edges[~among], complete(free)]))):
        (tmp_path / name).mkdir()
        copy = grown.copied(tmp_path / name)
        made = replace(copy.until(360), edges=edges).release(grown.plan, copy.site, wave=2, seed=11)
        tables.append(made.table)
    assert among.sum() > 200
    pd.testing.assert_frame_equal(tables[0], tables[1])


def test_only_a_plan_that_asks_for_it_keeps_a_frame_and_then_under_a_key(grown, first, ward, study):
    from site_agent.release.embeddings import EMBEDDING, EmbeddingStore

    site = ward.site("plain")
    made = ward.release(study, site)
    assert not (site.outbox.folder(made.hold.release_id) / EMBEDDING).exists()
    assert not EmbeddingStore(site.ledger.path.parent, "contacts").path.exists()
    assert NUMBER not in made.table
    data = (grown.site.outbox.folder(first.hold.release_id) / EMBEDDING).read_bytes()
    frame = grown.reference(first)
    assert len(frame.private) == len(first.table)
    assert frame.positions.astype("<f8").tobytes()[:64] not in data
    assert frame.held[0].encode() not in data
    assert repr(frame) == "Frame(rdpg, d = 2)"
    vault = EmbeddingStore(grown.site.ledger.path.parent, "contacts")
    assert vault.path.stat().st_mode & 0o777 == 0o600
    for wrong, where in ((data, "another"), (data[:-1] + bytes([data[-1] ^ 1]), first.hold.release_id), (b"", "x")):
        with pytest.raises(IntegrityRefusal, match="sealed under this study's key"):
            vault.open(wrong, where)
    vault.path.write_bytes(b"\0" * 32)
    with pytest.raises(IntegrityRefusal):
        vault.open(data, first.hold.release_id)


def test_a_frame_that_is_deleted_is_gone_and_no_wave_goes_on_from_it(grown, first):
    from site_agent.release.embeddings import EMBEDDING, EmbeddingStore

    vault = EmbeddingStore(grown.site.ledger.path.parent, "contacts")
    assert vault.forget(grown.site.ledger) == 1
    assert not vault.path.exists()
    assert not (grown.site.outbox.folder(first.hold.release_id) / EMBEDDING).exists()
    assert vault.forget(grown.site.ledger) == 0
    entries = len(grown.site.ledger.entries())
    with pytest.raises(StateRefusal, match="none: it was deleted"):
        grown.wave(2)
    assert len(grown.site.ledger.entries()) == entries  # refused before anything was charged


def test_a_network_whose_key_was_in_no_backup_goes_on_when_somebody_puts_it_back(grown, first):
    from site_agent.release.embeddings import EmbeddingStore

    vault = EmbeddingStore(grown.site.ledger.path.parent, "contacts")
    key, entries = vault.path.read_bytes(), len(grown.site.ledger.entries())
    vault.path.unlink()  # as a restore leaves it: the frame is there, its key is not
    with pytest.raises(StateRefusal, match="put back from a backup, which holds none") as refused:
        grown.wave(2)
    assert "keys/frames" in refused.value.next_step
    write_private(vault.path, bytes(32))
    with pytest.raises(IntegrityRefusal, match="no backup holds it"):
        grown.wave(2)
    assert len(grown.site.ledger.entries()) == entries, "refused before anything was charged"
    write_private(vault.path, key)
    assert grown.wave(2).table is not None


def test_a_plan_that_changes_its_mind_about_the_frame_or_the_model_is_refused(grown):
    for change, words in (({"keep": "deleted"}, "keep must stay"), ({"d": 1}, "the model, holdout, dictionary")):
        other = replace(grown.plan, version=2, release=replace(grown.plan.release, **change))
        with pytest.raises(PlanChanged, match=words):
            grown.wave(2, other)


def test_new_persons_are_placed_by_those_held_out_who_are_still_there(grown, first):
    frame = grown.reference(first)
    kept = frame.without(frame.held[:3], frame.releases)
    assert kept.held == frame.held[3:]
    assert np.array_equal(kept.positions, frame.positions[3:])
    assert len(frame.without((), ()).private) == 0
    gone = set(grown.ward.nodes["person"][:60])
    nodes, edges = grown.ward.nodes[:360], grown.until(360).edges
    nodes = nodes[~nodes["person"].isin(gone)]
    edges = edges[~edges["from"].isin(gone) & ~edges["to"].isin(gone)]
    second = grown.wave(2, nodes=nodes, edges=edges)
    assert second.receipt.n == int((~grown.ward.roles(grown.plan)[240:360]).sum())


def test_a_killed_wave_of_a_kept_frame_is_taken_up_and_the_next_waits_for_it(grown, monkeypatch):
    from site_agent.release.pipeline import making

    with monkeypatch.context() as broken:
        broken.setattr(making, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            grown.wave(2)
    made = grown.wave(2)
    assert made.hold.state == "held"
    with pytest.raises(StateRefusal, match="must be delivered, or rejected"):
        grown.wave(3)


def test_a_reader_takes_no_numbers_that_waves_cannot_have(grown, first):
    plan, table, n = grown.plan, first.table, first.receipt.n
    plan.release.validate(plan, table, n)
    ahead = table[NEIGHBOURS].tolist()
    ahead[0] = np.array([n], dtype=np.int32)
    for column, wrong in (
        (NUMBER, table[NUMBER].astype(np.int64)),
        (NUMBER, table[NUMBER] - np.int32(1)),
        (NUMBER, table[NUMBER].to_numpy()[::-1]),
        (NEIGHBOURS, ahead),
    ):
        with pytest.raises(SchemaRefusal):
            plan.release.validate(plan, table.assign(**{column: wrong}), n)
    with pytest.raises(SchemaRefusal):
        plan.release.validate(plan, table.drop(columns=NUMBER), n)
    with pytest.raises(EstimateRefusal, match="of one person"):
        union([table, table], directed=False)
    with pytest.raises(PlanRefusal, match="append"):
        replace(plan, returning="refresh", waves=(plan.waves[0], replace(plan.waves[1], refit=True)))
    with pytest.raises(PlanRefusal, match="one of deleted, sealed"):
        GrandPlan(epsilon=1.0, keep="forever")
    assert "encrypted" in " ".join(plan.release.not_covered(plan))
    assert "charges them alone" in " ".join(plan.release.covered(plan))


def test_a_site_shows_what_it_keeps_of_a_network_and_deletes_it_asked_or_when_the_plan_is_over(
    hospital,
    study,
    ward,
    monkeypatch,
):
    days = {"opens": dt.date(2026, 1, 1), "closes": dt.date(2026, 2, 1)}
    release = replace(study.release, keep="sealed", model="rdpg", d=1)
    plan = replace(study, study="mini", release=release, waves=(Wave(number=1, **days),))
    at = hospital.joined()
    monkeypatch.setenv("TRIBUTARY_TODAY", "2026-01-15")
    at.publish(plan)
    at("plan", "fetch", "mini")
    at("plan", "approve", "mini", "--as", "dr-lind", "--understood", "holdout")
    at("data", "add", str(ward.source.path), "--as", "mini", "--edges", str(ward.source.edges.path))
    assert at.json("data", "frame", "mini")["frames"] == 0
    made = at.json("release", "mini", "--wave", "1")["release_id"]
    assert "1 sealed frames are kept" in at("data", "frame", "mini")
    shown = at.json("data", "frame", "mini")
    assert (shown["planned"], shown["frames"], shown["key"]) == ("sealed", 1, True)
    archive = hospital.home.with_name("backup")
    at("backup", str(archive))
    words = ("restore", str(archive), "--as", "dr-lind", "--key", str(hospital.home / "keys/approvers/dr-lind.pem"))
    assert at.json(*words, "--check")["unopened"] == ["mini"]
    # A wave that is charged and under way may still need it.
    key = hospital.home / "keys" / "frames" / "mini.key"
    refused = at.refused("data", "frame", "mini", "--delete", expect=2)
    assert (refused["code"], refused["given"]) == ("E_STATE", "wave 1, which is held")
    assert f"site-agent approve {made[:8]}" in refused["next_step"]
    assert key.exists()
    warned = at.json("outbox", "show", made)["warnings"]
    at("approve", made, "--as", "dr-lind", *(word for one in warned for word in ("--tick", one["name"])))
    assert at.json("data", "frame", "mini", "--delete", "--dry-run")["deleted"] == 1
    assert at.json("data", "frame", "mini")["frames"] == 1
    assert "frame" not in at("run", "--once")
    # A clock that is some days ahead costs nothing.
    monkeypatch.setenv("TRIBUTARY_TODAY", "2026-03-03")
    assert "frame" not in at("run", "--once")
    assert key.exists()
    monkeypatch.setenv("TRIBUTARY_TODAY", "2026-03-04")
    assert "would delete the frame" in at("run", "--dry-run")
    assert key.exists()
    assert "deleted the frame" in at("run", "--once")
    assert not key.exists()
    assert not list(hospital.home.rglob("frame.sealed"))
    assert "Nothing is kept" in at("data", "frame", "mini")
    assert at.json("data", "frame", "mini", "--delete")["deleted"] == 0
    at("audit", "verify")


def test_communities_are_told_in_a_later_wave_of_a_kept_frame_too(study, tmp_path):
    plan = two_waves(study, communities=2, d=2)
    grown = grow(tmp_path, plan)
    first = grown.wave(1)
    deliver(grown.site, first)
    # Some who were held out have left, so that the frame has more persons than those who place the new ones.
    gone = set(grown.ward.nodes["person"][:40])
    nodes, edges = grown.ward.nodes[:360], grown.until(360).edges
    nodes = nodes[~nodes["person"].isin(gone)]
    edges = edges[~edges["from"].isin(gone) & ~edges["to"].isin(gone)]
    second = grown.wave(2, nodes=nodes, edges=edges)
    assert second.receipt.n == int((~grown.ward.roles(plan)[240:360]).sum())
    assert union([first.table, second.table], directed=False)[: first.receipt.n, first.receipt.n :].nnz > 10
