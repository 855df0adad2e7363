"""Questions to released networks, and a study of them from two files at a hospital to a pooled estimate."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from stage.both_sides.service import Hub
from stage.coordinator_side.delivered import STUDIES, site_estimates
from stage.mechanisms.contacts import contacts_plan
from stage.mechanisms.networks import arc_figures
from stage.processes.theatre import Theatre

from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from shared.errors import EstimateRefusal, ParameterError, Refusal, SchemaRefusal
from shared.estimands.answer import estimate, parse_estimand
from shared.estimands.questions import ACROSS, NETWORK, parse_formula
from shared.mechanisms.grand.answer import ARCS, CLUSTERING, figure
from shared.mechanisms.grand.edges import NEIGHBOURS, NUMBER, adjacency
from shared.mechanisms.grand.plan import GrandPlan
from shared.plans.plan import StudyPlan, Wave
from shared.simulated import contact_networks

TOLD = {"study": "contacts", "site": "north", "wave": 1}
WARDS = ["medicine", "surgery", "maternity"]


def drawn(n: int, seed: int, share: float = 0.2) -> pd.DataFrame:
    """A released network: n persons of three wards, who meet others of their own ward three times as often."""
    rng = np.random.default_rng(seed)
    ward, busy = rng.integers(0, 3, n), rng.uniform(0.5, 1.5, n)
    chance = share * np.where(ward[:, None] == ward, 1.0, 1 / 3) * busy * busy[:, None]
    met = np.triu(rng.random((n, n)) < chance, 1)
    table = pd.DataFrame(
        {
            "ward": pd.Categorical.from_codes(ward, WARDS),
            "staff": rng.integers(0, 2, n),
            "age": rng.integers(18, 90, n),
        }
    )
    table[NEIGHBOURS] = [np.flatnonzero(row).astype(np.int32) for row in met]
    return table


# -- the question -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("statistic", NETWORK)
def test_every_statistic_is_a_question_in_one_spelling(statistic):
    tail = " ~ ward" if statistic in ACROSS else ""
    scales = {"assortativity": "fisher_z", "recovery": "identity", "modularity": "identity"}
    asked = parse_estimand(f'network( "{statistic}" ){tail}')
    assert str(asked) == f"network({statistic}){tail}"
    assert asked == parse_estimand(str(asked)) == parse_formula("network", statistic + tail)
    assert asked.labels == (str(asked),)
    assert asked.scale == scales.get(statistic, "log")
    assert asked.columns == (("ward",) if tail else ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("network(triangel)", "Did you mean 'triangle'"),
        ("network(sbp > 3)", "must be about one of"),
        ("network(triangle) ~ ward", "takes no terms"),
        ("network(assortativity)", "one column after ~"),
        ("network(recovery)", "one column after ~"),
        ("network(recovery) ~ C(ward)", "one column after ~"),
        ("network(modularity) ~ ward", "takes no terms"),
        ("network(assortativity) ~ ward + staff", "one column after ~"),
        ("network(assortativity) ~ log(age)", "one column after ~"),
        ("network(triangle, subset = age > 60)", "takes no subset"),
        ("network(triangle, at = 3)", "takes the options"),
        ("network(triangle, edge)", "what to ask of the network"),
    ],
)
def test_a_question_that_no_network_answers_is_refused_when_it_is_made(text, words):
    with pytest.raises(ParameterError) as caught:
        parse_estimand(text)
    assert words in str(caught.value)


def test_a_table_of_rows_has_no_answer_about_a_network():
    with pytest.raises(EstimateRefusal, match="releases networks"):
        estimate(pd.DataFrame({"x": [1.0]}), parse_estimand("network(edge)"))


# -- the answer ---------------------------------------------------------------------------------------------------
def by_hand(matrix: np.ndarray, ward: np.ndarray, statistic: str) -> float:
    """The statistic on its scale from a dense matrix."""
    n, k = len(matrix), matrix.sum(axis=0)
    triangles, v = np.trace(matrix @ matrix @ matrix) / 6, (k * (k - 1) / 2).sum()
    if statistic == "assortativity":
        mixing = np.array([[matrix[ward == a][:, ward == b].sum() for b in range(3)] for a in range(3)]) / k.sum()
        chance = (mixing.sum(axis=0) ** 2).sum()
        return math.atanh((np.trace(mixing) - chance) / (1 - chance))
    values = {
        "edge": k.mean() / (n - 1),
        "v_shape": v / (3 * math.comb(n, 3)),
        "triangle": triangles / math.comb(n, 3),
        "star3": (k * (k - 1) * (k - 2) / 6).sum() / (4 * math.comb(n, 4)),
        "transitivity": 3 * triangles / v,
        # Of all 50 persons: the density among these, and their spread less what is chance among 40.
        "mean_degree": k.mean() / (n - 1) * 49,
        "degree_cv": math.sqrt(k.var() / k.mean() ** 2 - (1 / 39 - 1 / 49) / (k.mean() / (n - 1))),
    }
    return math.log(values[statistic])


CLUSTERED = ("recovery", "modularity")


@pytest.mark.parametrize("statistic", CLUSTERING)
def test_how_edges_close_or_mix_is_refused_of_a_drawn_network_with_where_to_ask(statistic):
    """The model decides it: its interval held the real value too seldom at every ε (network_counts.json)."""
    question = parse_estimand(f"network({statistic})" + (" ~ ward" if statistic in ACROSS else ""))
    for plan in (contacts_plan(), contacts_plan(release=GrandPlan(epsilon=2.0, d=2, directed=True))):
        with pytest.raises(EstimateRefusal, match="no ε mended that") as caught:
            plan.release.answer(plan, [(drawn(40, seed=3), 40)], question, levels={}, **TOLD)
        assert "network_counts" in caught.value.next_step


@pytest.mark.parametrize("statistic", ["triangle", "transitivity", "assortativity"])
def test_the_figures_that_are_refused_are_still_those_of_the_network(statistic):
    """A hospital compares them at home, and capped counts are measured against them."""
    table = drawn(40, seed=3)
    question = parse_estimand(f"network({statistic})" + (" ~ ward" if statistic == "assortativity" else ""))
    network = adjacency(table, directed=False)
    value, _ = figure(network, table, question, contacts_plan().dictionary)
    ward = table["ward"].cat.codes.to_numpy()
    assert value == pytest.approx(by_hand(network.toarray().astype(float), ward, statistic), rel=1e-9)


@pytest.mark.parametrize("statistic", [name for name in NETWORK if name not in (*CLUSTERED, *ARCS, *CLUSTERING)])
def test_an_answer_is_the_statistic_with_the_jackknife_s_variance_times_one_plus_n_over_m(statistic):
    plan = replace(contacts_plan(), holdout=0.2)
    table = drawn(40, seed=3)
    question = parse_estimand(f"network({statistic})")
    (found,) = plan.release.answer(plan, [(table, 40)], question, levels={}, **TOLD)
    matrix = adjacency(table, directed=False).toarray().astype(float)
    ward = table["ward"].cat.codes.to_numpy()
    assert found.yi == pytest.approx(by_hand(matrix, ward, statistic), rel=1e-9)
    keep = [np.delete(np.arange(40), i) for i in range(40)]
    left = np.array([by_hand(matrix[np.ix_(one, one)], ward[one], statistic) for one in keep])
    # In closed form on the statistic itself, and from there to its scale by the delta method.
    jackknife = 39 / 40 * ((np.exp(left) - np.exp(left).mean()) ** 2).sum() / math.exp(found.yi) ** 2
    # The coefficient of variation is corrected after the jackknife, by the delta method: alike up to a hundredth.
    assert found.vi_naive == pytest.approx(jackknife, rel=0.02 if statistic == "degree_cv" else 1e-9)
    assert found.vi_sampling == pytest.approx(found.vi_naive * (1 + 40 / 10), rel=1e-12)
    assert (found.n, found.vi_privacy, found.scale) == (40, 0.0, question.scale)
    assert "1 + n/m" in found.how


def rooms(n: int, seed: int, within: float = 0.3, between: float = 0.02) -> pd.DataFrame:
    """A released network of three wards whose persons mostly meet one another."""
    rng = np.random.default_rng(seed)
    table = drawn(n, seed)
    ward = table["ward"].cat.codes.to_numpy()
    met = np.triu(rng.random((n, n)) < np.where(ward[:, None] == ward, within, between), 1)
    return table.assign(**{NEIGHBOURS: [np.flatnonzero(row).astype(np.int32) for row in met]})


def test_communities_that_are_found_are_held_against_a_column_and_measured():
    plan = contacts_plan(release=GrandPlan(epsilon=2.0, d=2, communities=3))
    table = rooms(150, seed=1)
    ward = table["ward"].cat.codes.to_numpy()
    matrix = adjacency(table, directed=False).toarray().astype(float)
    recovery, modularity = (
        plan.release.answer(plan, [(table, 150)], parse_estimand(text), levels={}, **TOLD)[0]
        for text in ("network(recovery) ~ ward", "network(modularity)")
    )
    # The communities are the wards, nearly: so is what is said of them.
    assert 0.8 < recovery.yi <= 1
    k, same = matrix.sum(axis=0), ward[:, None] == ward
    assert modularity.yi == pytest.approx(((matrix - np.outer(k, k) / k.sum()) * same).sum() / k.sum(), abs=0.03)
    for found in (recovery, modularity):
        assert (found.n, found.scale) == (150, "identity")
        assert found.vi_sampling == pytest.approx(found.vi_naive * (1 + 150 / 150), rel=1e-12)
        assert "clustered anew" in found.how
        assert len(found.warnings) == 1
    # The same at every reading; nothing by chance, with an interval that says so; staff is no community.
    again = plan.release.answer(plan, [(table, 150)], parse_estimand("network(recovery) ~ ward"), levels={}, **TOLD)
    assert again[0] == recovery
    (staff,) = plan.release.answer(plan, [(table, 150)], parse_estimand("network(recovery) ~ staff"), levels={}, **TOLD)
    assert abs(staff.yi) < 3 * math.sqrt(staff.vi) + 0.02
    # Told by hand: leaving out every twentieth person, communities found anew.
    assert 0 < recovery.vi_naive < 0.05**2


def test_a_network_in_which_everybody_agrees_still_has_a_standard_error():
    table = rooms(90, seed=2, within=1.0, between=0.0)
    plan = contacts_plan()
    (found,) = plan.release.answer(plan, [(table, 90)], parse_estimand("network(recovery) ~ ward"), levels={}, **TOLD)
    assert (found.yi, found.vi_naive) == (1.0, pytest.approx((2 / 90) ** 2))


@pytest.mark.parametrize(
    ("text", "change", "words"),
    [
        ("network(recovery) ~ age", lambda t: t, "a column with levels"),
        ("network(recovery) ~ clinic", lambda t: t, "in the dictionary"),
        ("network(recovery) ~ ward", lambda t: t[t["ward"] == "surgery"], "two or more"),
        ("network(recovery) ~ ward", lambda t: t[:20], "two or more"),
        ("network(modularity)", lambda t: t, "how many communities"),
        ("network(recovery) ~ ward", lambda t: t.assign(staff=0), ""),
    ],
)
def test_communities_that_cannot_be_told_are_refused_with_the_reason(text, change, words):
    plan = contacts_plan()
    table = change(rooms(60, seed=3)).reset_index(drop=True)
    table[NEIGHBOURS] = [np.array([at for at in one if at < len(table)], dtype=np.int32) for one in table[NEIGHBOURS]]
    question = parse_estimand(text)
    if not words:
        assert plan.release.answer(plan, [(table, len(table))], question, levels={}, **TOLD)
        return
    with pytest.raises(Refusal, match=words):
        plan.release.answer(plan, [(table, len(table))], question, levels={}, **TOLD)


def test_degrees_are_of_the_whole_network_whatever_share_of_it_is_released():
    """One law at three shares: degrees of all 900 persons, within four standard errors of the one draw."""
    table = drawn(900, seed=8, share=0.06)
    matrix = adjacency(table, directed=False)
    k = np.asarray(matrix.sum(axis=0), dtype=float).ravel()
    whole = {"mean_degree": k.mean(), "degree_cv": k.std() / k.mean()}
    for holdout in (0.2, 0.5, 0.8):
        n = round(900 * (1 - holdout))
        for statistic, true in whole.items():
            question = parse_estimand(f"network({statistic})")
            value, variance = figure(matrix[:n][:, :n], table[:n], question, None, whole=900)
            assert value == pytest.approx(math.log(true), abs=4 * math.sqrt(variance) + 1e-9)
    # Appended waves are parts of one network: N is of both.
    plan = contacts_plan()
    parts = [(drawn(60, seed=1), 60), (drawn(60, seed=2), 60)]
    (mean,) = plan.release.answer(plan, parts, parse_estimand("network(mean_degree)"), levels={}, **TOLD)
    (edge,) = plan.release.answer(plan, parts, parse_estimand("network(edge)"), levels={}, **TOLD)
    assert mean.yi == pytest.approx(edge.yi + math.log(239))


def test_shapes_are_told_to_be_the_model_s_and_sparse_hold_outs_to_bias_them():
    plan = contacts_plan()

    def warned(statistic: str, share: float) -> tuple[str, ...]:
        question = parse_estimand(f"network({statistic})")
        return plan.release.answer(plan, [(drawn(60, 1, share), 60)], question, levels={}, **TOLD)[0].warnings

    assert warned("edge", 0.2) == ()
    for statistic in ("star3", "v_shape"):
        [only] = warned(statistic, 0.5)
        assert "as the model has it" in only
        assert any("few edges for each latent dimension" in said for said in warned(statistic, 0.1))


def test_two_appended_networks_are_averaged_and_what_the_held_out_add_is_not_averaged_away():
    plan = contacts_plan()
    tables = [(drawn(60, seed=1), 60), (drawn(40, seed=2), 40)]
    question = parse_estimand("network(edge)")
    (both,) = plan.release.answer(plan, tables, question, levels={}, **TOLD)
    one, two = (plan.release.answer(plan, [part], question, levels={}, **TOLD)[0] for part in tables)
    assert both.yi == pytest.approx(0.6 * one.yi + 0.4 * two.yi)
    assert both.vi_naive == pytest.approx(0.36 * one.vi_naive + 0.16 * two.vi_naive)
    frame = 0.6 * math.sqrt(one.vi_naive) + 0.4 * math.sqrt(two.vi_naive * 40 / 100)
    assert both.vi_sampling == pytest.approx(both.vi_naive + frame**2)
    assert both.n == 100


def test_waves_of_a_kept_frame_are_answered_as_one_network_drawn_from_the_first_hold_out():
    """Sixty persons and forty more, cut out of one table: every answer is the whole table's."""
    plan = contacts_plan()
    kept = replace(plan, release=replace(plan.release, keep="sealed"))
    whole = drawn(100, seed=6)
    met = adjacency(whole, directed=False).toarray()
    told = [np.flatnonzero(row) for row in np.triu(met)[:60, :60]]
    # With the later one of two waves, with the smaller number within one.
    later = [np.flatnonzero(np.r_[met[k, :60], np.zeros(k - 60, dtype=int), met[k, k:]]) for k in range(60, 100)]
    tables = []
    for rows, lists in ((slice(0, 60), told), (slice(60, 100), later)):
        table = whole[rows].drop(columns=NEIGHBOURS).reset_index(drop=True)
        table[NUMBER] = np.arange(rows.start, rows.stop, dtype=np.int32)
        table[NEIGHBOURS] = [one.astype(np.int32) for one in lists]
        kept.release.validate(kept, table, len(table))
        tables.append((table, len(table)))
    for text in ("network(v_shape)", "network(mean_degree)"):
        question = parse_estimand(text)
        (one,) = kept.release.answer(kept, tables, question, levels={}, **TOLD)
        (true,) = plan.release.answer(plan, [(whole, 100)], question, levels={}, **TOLD)
        assert (one.yi, one.vi_naive, one.n) == (true.yi, true.vi_naive, 100)
        assert one.vi_sampling == pytest.approx(one.vi_naive * (1 + 100 / 60), rel=1e-12)
    # With the first wave taken back, what is left is still drawn from what those held out then gave, and no more.
    for given, gave in ((tables, 60), (tables[1:], 40)):
        (one,) = kept.release.answer(kept, given, parse_estimand("network(edge)"), levels={}, **TOLD)
        assert one.vi_sampling == pytest.approx(one.vi_naive * (1 + one.n / gave), rel=1e-12)
    table, n = tables[1]
    few = (table.assign(**{NUMBER: (table[NUMBER] - 45).astype(np.int32)}), n)
    (one,) = kept.release.answer(kept, [few], parse_estimand("network(edge)"), levels={}, **TOLD)
    assert one.vi_sampling == pytest.approx(one.vi_naive * (1 + 40 / 15), rel=1e-12)


def test_a_directed_network_is_asked_without_its_directions():
    arcs = csr_array(np.array([[0, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0] * 5, [1, 0, 0, 0, 0]]))
    value, _ = figure(arcs, pd.DataFrame(), parse_estimand("network(edge)"), None)
    assert math.exp(value) == pytest.approx(4 / 10)


@pytest.mark.parametrize("statistic", [name for name in ARCS if name not in CLUSTERING])
def test_directions_are_asked_of_networks_that_have_them(statistic):
    plan = contacts_plan()
    question = parse_estimand(f"network({statistic})")
    with pytest.raises(EstimateRefusal, match="a network with directions"):
        plan.release.answer(plan, [(drawn(40, seed=3), 40)], question, levels={}, **TOLD)
    plan = replace(plan, holdout=0.2, release=replace(plan.release, directed=True))
    rng = np.random.default_rng(2)
    table, chance = drawn(60, seed=3), rng.uniform(0.1, 0.5, 60)
    dense = (rng.random((60, 60)) < chance[:, None] * chance[rng.permutation(60)] * 2) * (1 - np.eye(60))
    table[NEIGHBOURS] = [np.flatnonzero(row).astype(np.int32) for row in dense]
    (found,) = plan.release.answer(plan, [(table, 60)], question, levels={}, **TOLD)
    expected = dict(zip(("arc", *ARCS), arc_figures(dense), strict=True))
    if statistic.endswith("_cv"):  # of all 75 persons: less what is chance among 60
        square = expected[statistic] ** 2 - (1 / 59 - 1 / 74) / expected["arc"]
        expected[statistic] = math.sqrt(square)
    assert found.yi == pytest.approx(math.log(expected[statistic]), rel=1e-9)
    assert found.vi_sampling == pytest.approx(found.vi_naive * (1 + 60 / 15), rel=1e-12)
    assert any("one by one" in said for said in found.warnings) == (not statistic.endswith("_cv"))


def test_a_motif_that_is_not_there_excludes_the_site_with_the_reason():
    table = drawn(40, seed=3)
    table[NEIGHBOURS] = [np.array([i + 1] if i % 2 == 0 else [], dtype=np.int32) for i in range(40)]
    plan = contacts_plan()
    with pytest.raises(EstimateRefusal, match="positive"):
        plan.release.answer(plan, [(table, 40)], parse_estimand("network(v_shape)"), levels={}, **TOLD)


@pytest.mark.parametrize("text", ["mean(age)", "proportion(staff == 1)", "ols(age) ~ staff", "correlation(age, staff)"])
def test_attributes_answer_no_question_of_their_own(text):
    """Their intervals were measured, and held too little: tests/benchmarks/network_attributes.py."""
    plan = contacts_plan()
    with pytest.raises(EstimateRefusal, match="one that a network answers"):
        plan.release.answer(plan, [(drawn(60, seed=5), 60)], parse_estimand(text), levels={}, **TOLD)


# -- the coordinator ----------------------------------------------------------------------------------------------
def test_a_coordinator_over_the_wire_takes_a_network_and_pools_it(tmp_path):
    plan = contacts_plan()
    plan = replace(plan, waves=(*plan.waves, Wave(number=2, opens=plan.waves[0].opens, closes=plan.waves[0].closes)))
    sites = ("north", "south", "west")
    hub = Hub(tmp_path / "hub", plan, *sites)
    with hub.serve():
        for place, site in enumerate(sites):
            table = drawn(80 + 10 * place, seed=place)
            with hub.egress(site) as egress:
                if not place:
                    loops = table.assign(**{NEIGHBOURS: [np.array([0], dtype=np.int32), *table[NEIGHBOURS][1:]]})
                    wrong = hub.seal(site, table=loops, release_id="cd" * 16)
                    with pytest.raises(SchemaRefusal, match="ascending"):
                        egress.send(wrong.envelope, wrong.path)
                right = hub.seal(site, table=table, release_id=f"{place}b" * 16)
                egress.send(right.envelope, right.path)
        found = ask(hub.store, holding(hub.store, plan.study, 1), 'network("v_shape")')
        wards = ask(hub.store, holding(hub.store, plan.study, 1), "network(recovery) ~ ward")
        (other,) = {row.reason for row in site_estimates(hub.store, plan.study, 1, "cox(age, staff) ~ ward")}
    assert (found.result.k, found.result.scale) == (3, "log")
    assert found.result.ci_lb < found.result.beta < found.result.ci_ub
    assert [row.n for row in found.estimates] == [80, 90, 100]
    assert "network(…)" in other
    assert (wards.result.k, wards.result.scale) == (3, "identity")
    assert wards.result.ci_lb < wards.result.beta < wards.result.ci_ub
    hub.store.close()


# -- the whole way ------------------------------------------------------------------------------------------------
@pytest.fixture
def theatre(tmp_path):
    stage = Theatre(tmp_path)
    yield stage
    stage.close()


def test_two_files_at_a_hospital_become_an_estimate_at_a_real_coordinator(theatre, tmp_path):
    text = (STUDIES / "network.toml").read_text()
    nodes, edges = contact_networks(np.random.default_rng(3), sites=1, n=240, mean_degree=12)["harbour"]
    files = {name: tmp_path / f"{name}.csv" for name in ("nodes", "contacts")}
    nodes.to_csv(files["nodes"], index=False)
    edges.rename(columns={"from": "who", "to": "whom"}).assign(day=1).to_csv(files["contacts"], index=False)
    theatre.open(text)
    invitation = theatre.invite("north", "network")
    made = theatre.agent("north", "init", "--invitation", invitation, "--approver", "steward").json
    theatre.agent("north", "join")
    theatre.coordinator("accept", "north", "--fingerprint", made["fingerprint"])
    theatre.agent("north", "join")
    theatre.agent("north", "plan", "fetch", "network")
    alone = theatre.agent("north", "data", "add", files["nodes"], "--as", "network", expect=None)
    assert (alone.refused, alone.code) == ("E_STATE", 2), str(alone)
    add = ("data", "add", files["nodes"], "--as", "network", "--edges", files["contacts"])
    theatre.agent("north", *add)
    unnamed = theatre.agent("north", "data", "check", "network", expect=40).json
    assert [problem["code"] for problem in unnamed["problems"]] == ["E_DICTIONARY"]
    theatre.agent("north", *add, "--from", "who", "--to", "whom")
    counted = theatre.agent("north", "data", "check", "network").json["network"]
    assert (counted["edges"], counted["repeated lines"]) == (len(edges), 0)
    unticked = theatre.agent("north", "plan", "approve", "network", "--as", "steward", expect=None)
    assert unticked.code == 12
    theatre.agent("north", "plan", "approve", "network", "--as", "steward", "--understood", "holdout")
    release = theatre.agent("north", "release", "network", "--wave", 1).json
    shown = theatre.agent("north", "outbox", "show", release["release_id"]).json
    # Released persons beside the real ones of the same places, and not those who were held out.
    [figure_file] = theatre.agent("north", "outbox", "figures", release["release_id"]).json["files"]
    assert figure_file.endswith("columns.svg")
    ticks = [word for warning in release.get("warnings", []) for word in ("--tick", warning["name"])]
    theatre.agent("north", "approve", release["release_id"], "--as", "steward", *ticks)
    [accepted] = theatre.coordinator("releases").json["accepted"]
    assert accepted["release_id"] == release["release_id"]
    pooled = theatre.coordinator("pool", "network", "--wave", 1, "--estimand", "contacts").json
    [row] = pooled["estimates"]
    real = math.log(2 * len(edges) / (240 * 239))
    assert row["yi"] == pytest.approx(real, abs=6 * math.sqrt(row["vi_sampling"] + row["vi_privacy"]))
    # What the steward was shown to decide by stays at the hospital: sealed with the release, and in no bundle.
    said = str(shown)
    assert "Triangles of a person: released" in said
    assert "NO guarantee at all" in said
    bundles = b"".join(path.read_bytes() for path in (theatre.hub / "bundles").iterdir())
    assert b"harbour" not in bundles
    assert b"Triangles of a person" not in bundles


def test_the_shipped_study_reads_and_costs_what_it_says():
    plan = StudyPlan.from_toml((STUDIES / "network.toml").read_text())
    assert StudyPlan.from_bytes(plan.canonical) == plan
    assert (plan.posture, plan.release.epsilon) == ("holdout", 4.0)
    opening = " ".join(Path(STUDIES / "network.toml").read_text().replace("\n#", " ").split())
    assert "they have NO guarantee" in opening[:400]
