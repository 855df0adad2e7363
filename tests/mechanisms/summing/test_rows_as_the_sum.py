"""Synthetic rows of a study whose secure sum is opened: the planned regression on them, pooled, is the sum's answer."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace

import numpy as np
import pytest
from stage.coordinator_side.delivered import APPROVERS, take_back
from stage.mechanisms.summed import SumStage

from coordinator.analyst.access.token_file import Pass
from coordinator.analyst.remote import connect
from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.answers.synthesis import synthesis
from coordinator.pooling.pool import pool, pool_estimates
from coordinator.pooling.secure_sum.answer import SummedAnswer
from coordinator.pooling.secure_sum.row_effects import row_effects
from coordinator.services.analysts import Analysts
from shared.errors import EstimateRefusal, StateRefusal
from shared.estimands.answer import Estimate, estimate, parse_estimand
from shared.wire.transport import SERVER_NAME

PLANNED = "cox(time, cvd) ~ sbp + age"
NAMES = ("a", "b", "c", "d", "e", "f")


def pilots(seed, *, tau, noise):
    """Pilots of six sites around .3, and a sum's answer beside them."""
    rng = np.random.default_rng(seed)
    own = rng.uniform(0.002, 0.02, len(NAMES))
    more = noise * rng.uniform(0.5, 2, len(NAMES))
    yi = rng.normal(0.3, np.sqrt(own + more + tau**2))
    rows = [
        Estimate(study="s", site=name, wave=1, term="x", yi=y, vi_sampling=v, vi_privacy=w, n=100, scale="log")
        for name, y, v, w in zip(NAMES, yi, own, more, strict=True)
    ]
    total = SummedAnswer(estimate=0.31, variance=0.004, noise=0.001, cut=0.0, tau2=tau**2, sites=NAMES)
    return pool_estimates(rows, method="REML", test="adhoc"), total


@pytest.mark.parametrize("tau", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_effects_of_rows_pool_to_the_sum_and_to_its_interval(tau, noise, seed):
    answer, total = pilots(seed, tau=tau, noise=noise)
    found = row_effects(replace(answer, summed=total))
    own = [one.vi_sampling for one in answer.estimates]
    again = pool(list(found.values()), own, method="REML", test="adhoc")
    assert math.isclose(again.beta, total.estimate, abs_tol=1e-9)
    assert math.isclose(again.ci_ub - again.ci_lb, total.ci_ub - total.ci_lb, rel_tol=1e-3)
    # Each site is as far from the sum as its pilot was, in standard deviations of the real estimates.
    own_sd, seen_sd = np.sqrt(np.array(own) + tau**2), np.sqrt(np.array(answer.vi) + tau**2)
    standard = (np.array(answer.yi) - total.estimate) / seen_sd * own_sd
    assert np.corrcoef(list(found.values()), standard)[0, 1] > 1 - 1e-9


def test_pilots_that_agree_by_chance_are_drawn_as_far_apart_as_the_interval_says():
    answer, total = pilots(2, tau=0.0, noise=0.2)
    rows = [replace(one, yi=0.3 + 0.002 * (one.yi - 0.3)) for one in answer.estimates]
    found = row_effects(replace(pool_estimates(rows, method="REML", test="adhoc"), summed=total))
    again = pool(list(found.values()), [one.vi_sampling for one in rows], method="REML", test="adhoc")
    assert math.isclose(again.ci_ub - again.ci_lb, total.ci_ub - total.ci_lb, rel_tol=1e-3)


def test_without_a_sum_there_is_nothing_to_answer_as():
    answer, _ = pilots(1, tau=0.0, noise=0.0)
    with pytest.raises(EstimateRefusal, match="opened sum"):
        row_effects(answer)


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    made = SumStage(
        tmp_path_factory.mktemp("sum"), **{'posture = "private"': 'posture = "private"\nrow_download = true'}
    )
    yield made
    made.close()


def test_rows_are_of_the_pilot_until_the_sum_is_opened_and_answer_as_the_sum_then(stage):
    store, sites = stage.hub.store, list(stage.hospitals)
    question = parse_estimand(PLANNED)

    def pooled():
        planned = {site: synthesis(store, "hearts", site) for site in sites}
        rows = {site: one.draw() for site, one in planned.items()}
        found = [
            row
            for site, drawn in rows.items()
            for row in estimate(drawn.tables[0], question, study="hearts", site=site, wave=1)
            if row.term == "sbp"
        ]
        return pool_estimates(found, method="REML", test="adhoc"), {site: one.record for site, one in rows.items()}

    before, records = pooled()
    assert {record["effect"] for record in records.values()} == {
        "of the site's pilot: the secure sum does not answer here"
    }
    stage.whole()
    total = ask(store, holding(store, "hearts", 1), PLANNED, term="sbp").result.summed
    after, records = pooled()
    # Of 400 rows the regression's weights are not quite those that the pilots tell.
    assert abs(after.beta - total.estimate) < 0.35 * total.se
    assert 0.8 < (after.ci_ub - after.ci_lb) / (total.ci_ub - total.ci_lb) < 1.25
    for site, found, variance in zip(after.labels, after.yi, after.vi, strict=True):
        effect = records[site]["effect"]
        assert (effect["term"], effect["pooled"]) == ("sbp", total.estimate)
        assert abs(effect["site"] - found) < 0.4 * math.sqrt(variance)
    own = {site: record["effect"]["site"] for site, record in records.items()}
    moved = [
        abs(own[site] - found) / math.sqrt(total.variance) for site, found in zip(before.labels, before.yi, strict=True)
    ]
    assert max(moved) > 0.3


def admitted(stage, name: str) -> tuple[Analysts, Pass]:
    """An analyst of the study, at a coordinator that serves analysts."""
    analysts = Analysts(stage.hub.store)
    today = dt.datetime.now(dt.UTC).date()
    account, token = analysts.add(name, studies=("hearts",), role="analyst", days=30, today=today)
    stage.server.stop(0)
    stage.server = stage.hub.serve(analysts="127.0.0.1:0")
    return analysts, Pass(
        address=f"127.0.0.1:{stage.server.analysts_port}",
        server_name=SERVER_NAME,
        ca_pem=stage.hub.authority.ca_pem,
        name=name,
        role="analyst",
        studies=("hearts",),
        expires=account.expires.isoformat(),
        token=token,
    )


def test_an_analyst_draws_the_rows_that_the_coordinator_draws(stage):
    """Over the network, the planned question asked once for the effect: the same bytes."""
    if stage.hub.store.opened_sum(stage.plan.hash) is None:
        stage.whole()
    analysts, given = admitted(stage, "ada")
    with connect(given) as connection:
        mine = connection["hearts"].synthetic("mid", number=3).draw().record
    theirs = synthesis(stage.hub.store, "hearts", "mid", number=3).draw().record
    assert mine["csv_sha256"] == theirs["csv_sha256"]
    assert mine["effect"]["site"] == theirs["effect"]["site"]
    assert sorted(line.kind for line in analysts.record("hearts")) == ["query", "rows"]


def test_a_pilot_of_another_site_that_is_taken_back_takes_the_rows_with_it(stage):
    store = stage.hub.store
    if store.opened_sum(stage.plan.hash) is None:
        stage.whole()
    first, *_, last = stage.hospitals
    keys = stage.hospitals[last].keys
    APPROVERS[keys.release.public.key_id] = keys.steward
    with connect(admitted(stage, "grace")[1]) as connection:
        planned = synthesis(store, "hearts", first), connection["hearts"].synthetic(first)
        take_back(store, last, keys.release, study="hearts")
        for one in planned:
            with pytest.raises(StateRefusal, match="stay the same"):
                one.draw()
        for one in (synthesis(store, "hearts", first), connection["hearts"].synthetic(first)):
            assert one.draw().record["effect"] == "of the site's pilot: the secure sum does not answer here"
