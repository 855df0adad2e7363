"""Every ε that a person is shown is the accountant's, of the event whose noise was really drawn.

First a real release, from a file to a bundle: its own rows give back the scale of the noise in them, and the printed ε
lies within what that scale allows; with the noise a tenth off it does not. Then every other place that prints an ε is
held to that receipt. Last the source is walked: nobody else computes an ε, nobody does arithmetic with one, nobody
writes one down as a number, and what a sentence shows after an ε is one of a few known fields.
"""

from __future__ import annotations

import ast
import datetime as dt
import io
import itertools
import json
import math
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from stage.both_sides.noise import Scaled
from stage.coordinator_side.delivered import cohort, cohort_plan, deliver, join
from stage.hospital_side.site_desk import Hub

from shared.base.canonical import parse_json
from shared.base.keys import SigningKey
from shared.errors import BudgetRefusal
from shared.flows.affine import AffineAutoregressiveFlow
from shared.mechanisms.latent_noise.noise import LatentNoise
from shared.mechanisms.latent_noise.plan import LatentNoisePlan, mechanism
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan, Wave, sign_plan
from shared.privacy import accountant as privacy
from shared.privacy import calibration, meaning
from shared.privacy.accountant import Gaussian, epsilon, from_canonical
from shared.privacy.calibration import w_for_epsilon
from shared.privacy.composition import Charge, StudyCharges
from shared.privacy.stated import shown_epsilon
from shared.releases.bundle import read_bundle
from shared.releases.receipt import Receipt, planned_event
from site_agent.config import SiteFloors, TableSource
from site_agent.ledger.book import Ledger
from site_agent.ledger.charge import Reservation
from site_agent.release import drawing
from site_agent.release.fitting import FittedMechanism, released_rows
from site_agent.release.outbox import Outbox
from site_agent.release.pipeline.making import make_release
from site_agent.release.site import WorkingSite
from tests.stage.house.sources import production

ROOT = Path(__file__).resolve().parents[3]
TODAY = dt.date(2026, 1, 5)
N, RADIUS, DELTA, CLAIM = 5_000, 0.25, 1e-5, 2.0
ALPHA = 1e-6


def extremes(waves: int = 2) -> StudyPlan:
    """Two columns, no person, one release of ε = 2; the mechanism clips every record to a ball of radius 1/4."""
    days = {"opens": dt.date(2000, 1, 1), "closes": dt.date(2999, 1, 1)}
    return StudyPlan(
        study="extremes",
        version=1,
        title="Two extremes",
        purpose="To read the noise back from what leaves.",
        coordinator="hub",
        expires=dt.date(2999, 12, 31),
        release=LatentNoisePlan(w=w_for_epsilon(CLAIM, DELTA, RADIUS), radius=RADIUS),
        budget=Budget(epsilon=20.0, delta=DELTA),
        returning="refresh",
        waves=tuple(Wave(number=k + 1, refit=k > 0, **days) for k in range(waves)),
        dictionary=Dictionary(
            name="extremes",
            version=1,
            columns=(
                Column(name="sbp", kind="continuous", lower=0, upper=200),
                Column(name="chol", kind="continuous", lower=0, upper=200),
            ),
        ),
    )


class Tampered(Scaled):
    """A source for a whole run whose noise alone is off by a factor."""

    @property
    def generator(self) -> np.random.Generator:
        return self.inner.generator


def make_site(folder: Path) -> WorkingSite:
    ledger = Ledger.create(folder / "ledger.db", SigningKey.generate(), site="north")
    return WorkingSite(
        name="north",
        agent_version="0.1.0",
        ledger=ledger,
        outbox=Outbox(folder, ledger),
        witness=Hub(),
        snapshot_key=b"k" * 32,
        floors=SiteFloors(),
        paused=lambda: False,
    )


def narrow(d: int) -> AffineAutoregressiveFlow:
    """x = z / 100: nearly every record is outside the ball, and decoding cuts no noise off."""
    return AffineAutoregressiveFlow(mean=np.zeros(d), scale=np.eye(d) / 100)


@pytest.fixture
def given_flow(monkeypatch):
    """A flow that is simply given, and no attacks: what is looked at here is the noise."""

    def fitted(plan, encoder, x, persons, rng, progress):
        rows = released_rows(plan, len(x), persons)
        return FittedMechanism(mechanism=mechanism(plan, narrow(encoder.d)), released=rows)

    monkeypatch.setattr(drawing, "_fit", fitted)
    monkeypatch.setattr(drawing, "_attack", lambda *_, **__: {})


def run(site: WorkingSite, folder: Path, *, wave: int = 1, rng: Any = None) -> tuple[Receipt, pd.DataFrame]:
    """5,000 people with one extreme record, through the whole agent; what its bundle holds."""
    for (
        waiting
    ) in site.ledger.holds():  # a wave that nobody has decided on holds up the next; rejected, it stays charged
        if waiting.state == "held":
            site.ledger.reject(waiting, "to go on to the next wave", by="steward")
    path = folder / "table.csv"
    pd.DataFrame({"sbp": np.full(N, 200.0), "chol": np.full(N, 100.0)}).to_csv(path, index=False)
    made = make_release(plan=extremes(), wave=wave, source=TableSource(path=path), site=site, today=TODAY, rng=rng)
    bundle = read_bundle(site.outbox.bundle(made.hold.release_id), cap=1 << 26)
    return bundle.receipt, bundle.table


def noise_of(table: pd.DataFrame, w: float) -> np.ndarray:
    """What was added to the known record, in the latent space in which the event speaks; written out here."""
    latents = 100 * (2 * table[["sbp", "chol"]].to_numpy() / 200 - 1)
    return latents - np.array([RADIUS * w**0.5, 0.0])


def within(receipt: Receipt, table: pd.DataFrame) -> bool:
    """Whether the printed ε is one that the noise in the table, and the clipping radius, can mean.

    The noise gives an interval for its own scale, wrong once in a million; the distance between two clipped records
    is known; ε at both ends of the interval encloses the truth.
    """
    w = receipt.parameters["w"]
    noise = noise_of(table, w)
    total, df = float((noise**2).sum()), noise.size
    sigmas = [math.sqrt(total / stats.chi2.isf(ALPHA / 2, df)), math.sqrt(total / stats.chi2.ppf(ALPHA / 2, df))]
    apart = 2 * RADIUS * math.sqrt(w)
    high, low = (epsilon(Gaussian(sigma=sigma, sensitivity=apart), receipt.delta) for sigma in sigmas)
    return low <= receipt.epsilon <= high


# -- a real release -----------------------------------------------------------------------------------------------
def test_the_printed_epsilon_is_that_of_the_noise_in_the_released_rows(given_flow, tmp_path):
    """With the operating system's randomness, as in production: wrong once in a million runs of this test."""
    receipt, table = run(make_site(tmp_path / "home"), tmp_path)
    assert within(receipt, table)
    assert receipt.epsilon == pytest.approx(CLAIM)
    noise = noise_of(table, receipt.parameters["w"]) / from_canonical(receipt.event).sigma
    assert stats.kstest(noise.ravel(), stats.norm.cdf).pvalue > ALPHA


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1])
def test_the_same_comparison_fails_when_the_noise_is_off(given_flow, tmp_path, factor):
    receipt, table = run(make_site(tmp_path / "home"), tmp_path, rng=Tampered(factor, 91))
    assert not within(receipt, table)
    receipt, table = run(make_site(tmp_path / "again"), tmp_path, rng=Tampered(1.0, 91))
    assert within(receipt, table)


def test_two_waves_are_two_draws(given_flow, tmp_path):
    site = make_site(tmp_path / "home")
    first, second = (run(site, tmp_path, wave=wave)[1] for wave in (1, 2))
    ours, theirs = (set(table.itertuples(index=False, name=None)) for table in (first, second))
    assert len(ours & theirs) < 50  # the same noise in another order would share all its 5,000 rows


def test_when_noise_is_drawn_its_charge_is_written_and_witnessed(given_flow, tmp_path, monkeypatch):
    site = make_site(tmp_path / "home")
    whole, seen = LatentNoise.release, []

    def release(self, x, rng):
        last = site.ledger.entries()[-1]
        seen.append(
            (last.kind, site.witness.anchored[-1]["head"] == last.hash, site.ledger.study_total("extremes", DELTA))
        )
        return whole(self, x, rng)

    monkeypatch.setattr(LatentNoise, "release", release)
    receipt, _ = run(site, tmp_path)
    kind, witnessed, spent = seen[0]
    assert (kind, witnessed) == ("drawing", True)
    assert 0 < spent.epsilon <= receipt.study_epsilon


# -- every other place that shows it ------------------------------------------------------------------------------
@pytest.fixture
def released(given_flow, tmp_path):
    site = make_site(tmp_path / "home")
    return site, run(site, tmp_path)[0]


def test_every_figure_of_a_receipt_follows_from_its_event_and_delta(released):
    _, receipt = released
    event = from_canonical(receipt.event)
    assert event == planned_event(extremes()) == Gaussian(sigma=event.sigma, sensitivity=event.sensitivity)
    assert receipt.epsilon == epsilon(event, receipt.delta)
    assert receipt.epsilon_paper == calibration.theorem2_epsilon(receipt.parameters["w"], 2 * RADIUS, receipt.delta)
    assert receipt.epsilon_paper > receipt.epsilon
    assert receipt.epsilon_pure is None
    np.testing.assert_array_equal(receipt.rdp, privacy.rdp(event))
    words = meaning.translate(event, delta=receipt.delta, unit="record", given=receipt.given)
    assert receipt.translation.endswith(words)
    assert receipt.study_epsilon == extremes().budget.epsilon


def test_the_budget_statement_charges_what_the_receipts_print(given_flow, tmp_path):
    site = make_site(tmp_path / "home")
    receipts = [run(site, tmp_path, wave=wave)[0] for wave in (1, 2)]
    lines = site.ledger.statement("extremes")
    assert [line.epsilon for line in lines] == [receipt.epsilon for receipt in receipts]
    assert len({receipt.study_epsilon for receipt in receipts}) == 1, "no receipt tells what was charged before it"
    spent = site.ledger.study_total("extremes", DELTA)
    event = from_canonical(receipts[0].event)
    totals = [privacy.epsilon_from_rdp(k * privacy.rdp(event), DELTA) for k in (1, 2)]
    assert [line.total for line in lines] == totals
    assert spent.epsilon == totals[-1]
    # By Rényi curves, because a later wave may be decided in the light of an earlier one: above the fixed-plan total.
    assert spent.epsilon >= epsilon([event, event], DELTA)

    from rich.console import Console

    from site_agent.show import screens

    out = Console(file=io.StringIO(), width=200)
    total = {"study": "extremes", "delta": DELTA, "epsilon": spent.epsilon, "cap": spent.cap, "open": 0}
    screens.budget(out, lines, [total | {"epsilon_given": spent.given}])
    shown = out.file.getvalue()
    for value in (receipts[0].epsilon, totals[0], spent.epsilon):
        assert shown_epsilon(value) in shown


def test_what_a_plan_says_it_will_cost_is_what_its_release_costs(released):
    from coordinator.planning.price import cost
    from site_agent.decide.plan_facts import _price

    _, receipt = released
    asked = cost(extremes())
    at_site = _price(extremes(), planned_event(extremes()))
    assert asked.epsilon == at_site["epsilon"] == receipt.epsilon
    assert asked.paper == receipt.epsilon_paper
    assert asked.waves[0].total == privacy.epsilon_from_rdp(privacy.rdp(planned_event(extremes())), DELTA)
    assert asked.waves[-1].total == at_site["all_waves"]
    assert asked.translation == at_site["translation"]
    assert receipt.translation == asked.translation
    assert asked.rows == asked.epsilon  # nothing was trained with noise
    event = planned_event(extremes())
    at_eight = Gaussian(sigma=math.sqrt(1 - asked.w_for_8), sensitivity=2 * RADIUS * math.sqrt(asked.w_for_8))
    assert epsilon(at_eight, DELTA) == pytest.approx(8.0)
    assert asked.epsilon == epsilon(event, DELTA)


def test_analysts_and_the_demo_are_shown_the_epsilon_of_the_receipts(tmp_path):
    from coordinator.answers.queries import ask
    from coordinator.answers.release_selection import holding
    from coordinator.demo import answers, play
    from coordinator.services.authority import Authority
    from coordinator.store.store import Store

    lead, plan = SigningKey.generate(), cohort_plan()
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    with closing(Store.open(tmp_path)) as store:
        store.add_plan(sign_plan(plan, [lead]), plan)
        for seed, site in enumerate(("alpha", "beta", "gamma")):
            invitation = authority.invite(site, ["cvd"], address="localhost:1", leads=[lead.public], days=300)
            store.add_invitation(invitation)
            deliver(store, plan, site, join(store, invitation), cohort(400, seed))
        answer = ask(store, holding(store, plan.study, 1), "cox(time, cvd) ~ sbp/10")
        receipts = {release.site: release.receipt for release in store.releases(plan.study, 1)}
    shown = {source.site: source.price for source in answer.sources}
    assert shown == {site: (receipt.epsilon, "the flow") for site, receipt in receipts.items()}
    value = epsilon(planned_event(plan), plan.budget.delta)
    assert {told for told, _ in shown.values()} == {value}
    row = answers.row("q", "released", answer.result, answer.result, shown)
    assert (row["epsilon_per_site"], row["epsilon_given"]) == (shown_epsilon(value), "the flow")
    real = answers.row("q", play.REAL, answer.result, answer.result, shown)
    assert (real["epsilon_per_site"], real["epsilon_given"]) == ("not private", "")


def test_a_cap_is_held_against_the_same_number(given_flow, tmp_path, monkeypatch):
    site = make_site(tmp_path / "home")
    tight = privacy.epsilon_from_rdp(privacy.rdp(planned_event(extremes())), DELTA) * (1 - 1e-6)
    from dataclasses import replace

    plan = replace(extremes(), budget=Budget(epsilon=tight, delta=DELTA))
    path = tmp_path / "none.csv"
    with pytest.raises(BudgetRefusal):
        make_release(plan=plan, wave=1, source=TableSource(path=path), site=site, today=TODAY)
    assert [entry.kind for entry in site.ledger.entries()] == ["genesis"]


def test_a_burnt_charge_still_counts_against_the_cap(tmp_path):
    ledger = make_site(tmp_path / "home").ledger
    event = planned_event(extremes())
    two = privacy.epsilon_from_rdp(2 * privacy.rdp(event), DELTA)
    charge = {"study": "extremes", "plan_hash": "0" * 64, "event": event.to_canonical(), "delta": DELTA}
    hold = ledger.reserve(Reservation(**charge, wave=1, release_id="a", cap_epsilon=two * 0.99))
    ledger.burn(hold, "a wasted draw")
    with pytest.raises(BudgetRefusal):
        ledger.reserve(Reservation(**charge, wave=1, release_id="b", cap_epsilon=two * 0.99))
    ledger.reserve(Reservation(**charge, wave=1, release_id="c", cap_epsilon=two * 1.01))


def test_the_total_of_a_study_is_that_of_the_person_who_lost_most():
    curve = privacy.rdp(planned_event(extremes()))
    charges = [Charge(rdp=tuple(curve), pure=None, persons=who) for who in (("a", "b"), ("b", "c"), ("d",))]
    assert StudyCharges(charges).total(DELTA) == privacy.epsilon_from_rdp(2 * curve, DELTA)


def test_the_receipt_says_who_is_protected_against_what(released):
    _, receipt = released
    # Nothing says here which rows are one person's, so that the promise is for a row and calls nobody a patient.
    assert (receipt.neighbours, receipt.unit, receipt.contributions) == ("replace_one", "row", 1)
    assert "patient" not in receipt.translation
    assert receipt.model == "local"
    assert receipt.delta < 1 / (10 * receipt.n)


# -- nowhere else in the source -----------------------------------------------------------------------------------
COMPUTE = {
    "shared/mechanisms/moments/spec.py",  # the noise that a plan's ε asks for: test_moments.py computes the ε of it
    "shared/mechanisms/slicing/noise.py",  # likewise, with U's rounding in it: test_slicing.py
    "shared/releases/receipt.py",  # the receipt, and its recomputation
    "shared/plans/federated.py",  # the receipt of a training by all sites: test_federation.py
    "shared/mechanisms/latent_noise/plan.py",  # the w that an ε asks for, and the paper's figure
    "shared/mechanisms/densities/plan.py",  # the noise that an ε asks for
    "shared/mechanisms/densities/local.py",  # the noise that a report's ε asks for
    "shared/mechanisms/tables/plan.py",  # the noise that an ε asks for
    "shared/mechanisms/cross_products/plan.py",  # the noise that an ε asks for
    "shared/mechanisms/secure_sum/plan.py",  # the noise that an ε asks for
    "shared/mechanisms/secure_sum/price.py",  # by who looks together: by hand in test_secure_sum.py
    "site_agent/ledger/charge.py",  # what is shown of a single charge
    "site_agent/ledger/holds.py",  # the price of a charge
    "shared/privacy/composition.py",  # totals
    "site_agent/decide/waves.py",  # the total with the waves to come
    "site_agent/show/curve.py",  # what other weights would cost
    "site_agent/decide/airlock/standing_approval.py",  # whether a signature in advance is good for the planned release
    "site_agent/decide/plan_facts.py",  # a plan's price before it is approved
    "site_agent/decide/recovery.py",  # the dearest plan of a study, when a ledger was put back
    "coordinator/planning/price.py",  # a plan's price before it is signed
}
"""The only files that ask the accountant for an ε. What they ask about is held to a real release above."""
ACCOUNTANT_ROOMS = ("shared.privacy.accountant", "shared.privacy.calibration")
ACCOUNTANT = {"epsilon", "epsilon_from_rdp", "pure_epsilon", "theorem2_epsilon", "w_for_epsilon", "calibrate"}


def test_only_a_few_files_compute_an_epsilon_and_all_of_them_by_the_accountant():
    found = set()
    for place, tree in production():
        for node in ast.walk(tree):
            called = getattr(node, "func", None)
            if (
                isinstance(called, ast.Attribute)
                and ast.unparse(called.value) in ("privacy", "calibration")
                and called.attr in ACCOUNTANT
            ):
                found.add(place)
            own = place in ("shared/privacy/calibration.py", "shared/privacy/meaning.py")
            if isinstance(node, ast.ImportFrom) and node.module in ACCOUNTANT_ROOMS and not own:
                names = {alias.name for alias in node.names} & ACCOUNTANT
                assert not names, f"{place} imports {names}: say privacy.epsilon, so that it is seen"
    assert found == COMPUTE


def named(node: ast.AST) -> str:
    """The last name of an expression: `receipt.epsilon`, `row["epsilon"]`, `epsilon`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    if isinstance(node, ast.Subscript):
        return named(node.value)
    return getattr(node, "id", "")


def test_nobody_does_arithmetic_with_an_epsilon():
    """Neither d times an ε nor a sum of several: that is the accountant's business."""
    allowed = {
        (
            "coordinator/services/collect/ingest.py",
            "plan.budget.epsilon * (1 + 1e-09)",
        ),  # a cap, with room for another libm
        ("site_agent/show/screens.py", "total['epsilon'] / total['cap']"),  # the length of a bar
        ("site_agent/show/page/pages.py", "total['epsilon'] / cap"),  # the same on the page
        ("site_agent/show/page/pages.py", "cap - total['epsilon']"),  # what is left of a cap
        ("coordinator/web/workbench/burndown.py", "cap - epsilon"),  # the same on the workbench
        (
            "shared/mechanisms/grand/noise.py",
            "self.p / self.epsilon",
        ),  # the noise: its event is asked in test_network_release
        ("shared/mechanisms/network_counts/plan.py", "weight * self.epsilon"),  # a count's noise: test_network_counts
        ("shared/mechanisms/grand/noise.py", "1 / self.epsilon"),  # the noise as the paper prints it
        ("shared/mechanisms/grand/noise.py", "self.p * self.epsilon"),  # what that really costs
        (
            "shared/mechanisms/densities/plan.py",
            "self.epsilon / len(columns)",
        ),  # each group's part: test_densities adds up
        ("shared/mechanisms/grand/plan.py", "self.epsilon * fewer"),  # the same noise on fewer coordinates
    }
    of_plans = ("shared/privacy/composition.py", "shared/privacy/stated.py")  # not the accountant's own
    found = set()
    for place, tree in production():
        if place.startswith("shared/privacy/") and place not in of_plans:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and any("epsilon" in named(side) for side in (node.left, node.right)):
                found.add((place, ast.unparse(node)))
            if isinstance(node, ast.AugAssign) and "epsilon" in named(node.target):
                found.add((place, ast.unparse(node)))
    assert found <= allowed, found - allowed


def test_nobody_writes_an_epsilon_down_as_a_number():
    for place, tree in production():
        for node in ast.walk(tree):
            given = []
            if isinstance(node, ast.keyword) and node.arg and "epsilon" in node.arg:
                given = [node.value]
            if isinstance(node, ast.Dict):
                given = [
                    v for k, v in zip(node.keys, node.values, strict=True) if "epsilon" in str(getattr(k, "value", ""))
                ]
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                given = [node.value] if any("epsilon" in named(target) for target in targets) else []
            for value in given:
                number = isinstance(value, ast.Constant) and isinstance(value.value, int | float)
                assert not number or value.value is None, f"{place}:{node.lineno}"


FROM = {
    "epsilon": "a receipt's, a hold's, a price's or a cap's field",
    "study_epsilon": "a receipt's field",
    "stated_study_epsilon": "the same field; none where the release has no formal guarantee",
    "paper": "Cost.paper: Theorem 2, called looser and never charged",
    "w_for_8": "Cost.w_for_8",
    "spent": "a study's total",
    "all_waves": "a study's total with all planned waves",
    "with_waves_to_come": "a study's total with the planned waves that are still to come",
    "eps": "a point of the curve of weights",
    "least": "the least that a receipt's total can be",
    "together": "what somebody in all of a site's releases would have spent",
    "rows": "Cost.rows: the part of a price that is the rows' noise",
    "training": "Cost.training: the training by all sites, charged before its first round",
    "total": "Ledger's or Cost's composed total",
    "cap": "the plan's budget",
    "worst_epsilon": "the cap of a site's own settings on whoever sees most of a secure sum",
    "worst": "the largest of a plan's prices by who looks together",
    "max_epsilon": "the limit that an approver signed in a standing approval",
    "delta": "the plan's budget",
    "charged": "a plan's price in words",
    "most": "the largest ε that a design may charge a person",
    "largest": "the same, of one release",
    "highest": "the largest of the sources' receipts",
    "target": "the plan's own target",
    "_NOT_MEANINGFUL": "the limit above which a guarantee is called none",
}
"""The last name of each value that may stand right after an ε, and what it is."""


def test_after_an_epsilon_stands_a_number_of_known_origin():
    seen = 0
    for place, tree in production():
        for node in ast.walk(tree):
            if not isinstance(node, ast.JoinedStr):
                continue
            for before, part in itertools.pairwise([ast.Constant(""), *node.values]):
                said = str(before.value) if isinstance(before, ast.Constant) else ""
                if isinstance(part, ast.FormattedValue) and re.search(r"ε( above)?\s*[=≤≈:]?\s*$", said):
                    value = part.value
                    while isinstance(value, ast.Call):  # a formatter, or the accountant itself
                        if named(value.func) in ACCOUNTANT | {"_compose"}:
                            break
                        value = value.args[0]
                    value = value.value if isinstance(value, ast.Starred) else value
                    seen += 1
                    known = named(value) in FROM or isinstance(value, ast.Call)
                    assert known, f"{place}:{node.lineno}: {ast.unparse(part.value)}"
    assert seen >= 15


PRICED = re.compile(r"epsilon|delta|\bcap\b|\btotal\b|\bspent\b")
"""What a price is called, in a template."""


def test_every_epsilon_and_delta_is_formatted_by_one_function_that_rounds_up():
    """No format of anybody's own: after ε or δ, of a value that is called so, or in a page."""
    for place, tree in production():
        if place == "shared/privacy/stated.py":
            continue
        for node in ast.walk(tree):
            shaped: list[ast.AST] = []
            if isinstance(node, ast.JoinedStr):
                for before, part in itertools.pairwise([ast.Constant(""), *node.values]):
                    said = str(before.value) if isinstance(before, ast.Constant) else ""
                    if isinstance(part, ast.FormattedValue) and part.format_spec is not None:
                        shaped.append(part.value)
                        after = re.search(r"[εδ]( above)?\s*[=≤≈:]?\s*$", said)
                        assert not after, f"{place}:{node.lineno}: {ast.unparse(part)}"
            if isinstance(node, ast.Call) and named(node.func) in ("round", "number", "format") and node.args:
                shaped.append(node.args[0])
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                shaped.append(node.right)
            for value in shaped:
                price = named(value) in ("delta", "cap") or named(value).endswith("epsilon")
                assert not price or (place, ast.unparse(node)) in NO_PRINT, (
                    f"{place}:{node.lineno}: {ast.unparse(value)}"
                )
    for page in sorted((ROOT / "site_agent" / "show" / "pages").glob("*.html")):
        for shown in re.findall(r"{{(.*?)}}", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            assert "format" not in shown or not PRICED.search(shown), f"{page.name}: {shown}"


NO_PRINT = {("site_agent/release/trained_flow.py", "round(flow.epsilon, 9)")}
"""Numbers that are compared, and shown to nobody."""


def test_every_receipt_in_the_product_is_written_by_one_function_and_checked_by_another():
    made = {
        place
        for place, tree in production()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and named(node.func) == "Receipt"
    }
    checked = {
        place
        for place, tree in production()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and named(node.func) == "require_true"
    }
    assert made <= {"shared/releases/receipt.py"}
    assert {"site_agent/release/pipeline/making.py", "coordinator/services/compute/tasks.py"} <= checked


def test_a_bundle_shows_no_other_figure_of_its_price(released):
    """What leaves holds one receipt; the manifest beside it says nothing of ε."""
    import zipfile

    site, receipt = released
    hold = site.outbox.list()[0]
    with zipfile.ZipFile(site.outbox.bundle(hold.release_id)) as archive:
        assert parse_json(archive.read("receipt.json"))["epsilon"] == receipt.epsilon == hold.epsilon
        assert "epsilon" not in json.dumps(parse_json(archive.read("manifest.json")))
    assert dict(hold.event) == dict(receipt.event)
