"""After the seal nothing that reads a released record decides, wherever persons are promised an ε."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from stage.both_sides.service import Hub as Service
from stage.coordinator_side.collect import plan as small_plan  # noqa: F401
from stage.coordinator_side.collect import refused
from stage.hospital_side.pipeline import quick, release, site, source  # noqa: F401
from stage.hospital_side.shipped import KEY, Bench, study
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401
from stage.hospital_side.standing import document, events, offered, sealed, standing
from stage.mechanisms.contacts import contacts_plan

from shared.base.randomness import seeded_rng
from shared.errors import (
    ApprovalRefusal,
    ChecksRefusal,
    NetworkRefusal,
    PausedRefusal,
    PlanChanged,
    PlanRefusal,
    PolicyRefusal,
    StorageRefusal,
)
from shared.mechanisms.latent_noise.noise import LatentNoise
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.mechanisms.moments.plan import MomentsPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Floors, PrivateTraining, StudyPlan
from shared.plans.standing import NO_RELEASE
from shared.releases.receipt import EARLIER_GATE, coverage
from shared.simulated import contact_networks
from site_agent import cli
from site_agent.decide.airlock import overview, standing_approval
from site_agent.records.pseudonyms import pseudonym
from site_agent.release import checks, drawing, fitting, networks
from site_agent.release.audit import attacks, report
from site_agent.release.pipeline import making

FAR = "2998-12-31"
POSTURES = {
    "public": {"release": LatentNoisePlan(epsilon=1.0), "posture": "public"},
    "holdout": {"release": LatentNoisePlan(epsilon=1.0), "posture": "holdout", "holdout": 0.5},
    "private": {
        "release": LatentNoisePlan(epsilon=2.0),
        "posture": "private",
        "private": PrivateTraining(rate=0.05, noise_multiplier=4.0, steps=5),
    },
}


@pytest.fixture(params=POSTURES)
def promised(request, plan) -> StudyPlan:
    return replace(plan, **POSTURES[request.param])


def copied(monkeypatch) -> None:
    """Every released row is as unlucky as can be: every check and every attack on records finds all of them."""

    def everything(hits):
        rule = "no released row may equal the row of exactly one person on all columns, beyond chance"
        return checks.Check(
            name="equal-rows", rule=rule, outcome="failed", measured=300.0, threshold=0.0, policy=checks.CHANCE
        )

    def beyond(found, limits):
        raise AssertionError("a gate was asked")

    monkeypatch.setattr(checks, "_equal_rows", everything)
    monkeypatch.setattr(report, "gate", beyond)


def shown(found: Shown) -> dict[str, object]:
    """What is told outside of the checks of a release, and which documents are."""
    folder = found.site.outbox.folder(found.hold.release_id)
    content = json.loads((folder / "outcomes.json").read_text())["content"]
    del content["checks_sha256"]  # of a document that stays at the site
    return {**content, "documents": sorted(path.name for path in folder.iterdir())}


def test_a_release_that_was_interrupted_is_held_alike_whatever_became_of_the_records(
    tmp_path, promised, table, monkeypatch
):
    """A night's extract in which one value was corrected, or is not allowed any more, must not keep it back."""
    plan = replace(promised, floors=replace(promised.floors, membership_auc=1.0))
    ends = {}
    for name, change in {"same": {}, "corrected": {"sbp": 141.5}, "not allowed": {"sbp": 9999.0}}.items():
        bench = Bench(tmp_path / name)
        with monkeypatch.context() as broken:
            broken.setattr(drawing, "_attack", lambda **_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                bench.release(plan, table, seeded_rng(1))
        changed = table.copy()
        for column, value in change.items():
            changed.loc[0, column] = value
        made = bench.release(plan, changed, seeded_rng(2))
        assert made.hold.state == "held"
        told = json.loads((bench.site.outbox.folder(made.hold.release_id) / "outcomes.json").read_text())["content"]
        ends[name] = {line["name"]: line["outcome"] for line in told["checks"]}, [w.name for w in made.warnings]
        broken_off = "could not be carried out" in made.audit["sentences"][1]
        assert broken_off == (name != "same")
        assert (made.left_out is None) == (name != "same")
    assert ends["same"] == ends["corrected"] == ends["not allowed"]


def test_a_reader_that_breaks_down_on_a_later_table_keeps_nothing_back(tmp_path, promised, table, monkeypatch):
    bench = Bench(tmp_path / "north")
    with monkeypatch.context() as broken:
        broken.setattr(drawing, "_attack", lambda **_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            bench.release(promised, table, seeded_rng(1))
    monkeypatch.setattr(making, "_read", lambda *_: 1 // 0)
    assert bench.release(promised, table, seeded_rng(2)).hold.state == "held"


def test_figures_that_were_interrupted_are_held_alike_whatever_became_of_the_records(tmp_path, monkeypatch):
    release = MomentsPlan(outcome="linear", responses=["sbp"], covariates=["sex", "age"], epsilon=2.0)
    columns = (
        Column(name="person", kind="person"),
        Column(name="sex", kind="binary"),
        Column(name="age", kind="continuous", lower=18, upper=100),
        Column(name="sbp", kind="continuous", lower=60, upper=260),
    )
    plan = study(release, Dictionary(name="two", version=1, columns=columns), posture="private")
    rng = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "person": [f"p{k}" for k in range(200)],
            "sex": rng.integers(0, 2, 200),
            "age": rng.uniform(20, 90, 200),
            "sbp": rng.uniform(100, 160, 200),
        }
    )
    ends = []
    for name, value in (("same", table["sbp"][0]), ("corrected", 141.5)):
        bench = Bench(tmp_path / name)
        with monkeypatch.context() as broken:
            broken.setattr(making, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                bench.release(plan, table, seeded_rng(1))
        table.loc[0, "sbp"] = value
        made = bench.release(plan, table, seeded_rng(2))
        ends.append([(check.name, check.outcome) for check in made.checks])
        assert made.hold.state == "held"
    assert ends[0] == ends[1]


class Shown:
    """A release by a hospital of its own, from the same noise as any other of these."""

    def __init__(self, folder, plan, table, edges=None) -> None:
        bench = Bench(folder)
        self.site, self.anchored = bench.site, bench.hub.anchored
        self.made = bench.release(plan, table, seeded_rng(1), edges=edges)
        self.hold = self.made.hold

    @property
    def note(self) -> str:
        return json.dumps([self.made.audit, [check.detail for check in self.made.checks]])


def test_what_checks_and_attacks_find_in_records_is_a_note_to_the_approver_and_nothing_else(
    tmp_path, promised, site, table, monkeypatch
):
    copied(monkeypatch)
    made = release(promised, site, source(tmp_path, table))
    assert made.hold.state == "held"
    assert {check.name for check in made.warnings} <= {"rare-levels"}, "of the released rows alone"
    assert "equal-rows" in [check.name for check in made.notable]
    assert made.audit["decides"] is False
    assert "decides nothing" in made.audit["sentences"][0]
    assert "is refused when" not in " ".join(made.audit["sentences"])
    told = json.loads((site.outbox.folder(made.hold.release_id) / "outcomes.json").read_text())["content"]["checks"]
    outcomes = {line["name"]: line["outcome"] for line in told}
    assert outcomes["equal-rows"] == outcomes["clipped"] == outcomes["audit"] == "note"


def left(found: Shown) -> dict[str, object]:
    """What a coordinator and an inspector are given of a release beside its table, without ids, digests and times."""
    return {
        "outcomes": shown(found),
        "receipt": replace(found.made.receipt, release_id="", flow_of=""),
        "ledger": [entry.kind for entry in found.site.ledger.entries()],
        "witnessed": [(one["seq"], one.get("after", 0), len(one.get("links", ()))) for one in found.anchored],
        "warnings": [check.name for check in found.made.warnings],
    }


def test_what_leaves_and_what_inspectors_are_given_is_the_same_whatever_was_found(
    tmp_path, promised, table, monkeypatch
):
    first = Shown(tmp_path / "first", promised, table)
    copied(monkeypatch)
    second = Shown(tmp_path / "second", promised, table)
    one, other = left(first), left(second)
    for part in one:
        assert one[part] == other[part], part
    notable = ["equal-rows" in [check.name for check in each.made.notable] for each in (first, second)]
    assert notable == [False, True], "for the approver's eyes alone"


def test_under_local_they_still_refuse_and_the_receipt_says_that_they_select(
    quick, tmp_path, plan, site, table, monkeypatch
):
    assert any("before that selection" in said for said in coverage(plan)[1])
    copied(monkeypatch)
    with pytest.raises(ChecksRefusal, match="equal the row of exactly one person"):
        release(plan, site, source(tmp_path, table))
    assert [hold.state for hold in site.ledger.holds()] == ["burnt"]


def test_an_attack_that_breaks_down_on_these_records_holds_nothing_up(tmp_path, plan, site, table, monkeypatch):
    def broken(**_):
        raise ZeroDivisionError("a record quoted here would be a leak")

    monkeypatch.setattr(attacks, "attack", broken)
    made = release(replace(plan, **POSTURES["public"]), site, source(tmp_path, table))
    assert made.hold.state == "held"
    assert made.audit["sentences"][1] == "The attacks could not be carried out on these records."
    assert "quoted" not in json.dumps(made.audit)


def raising(*_, **__):
    raise ZeroDivisionError("a record quoted here would be a leak")


def no_number(*_, **__):
    return {"degree": {"released": float("nan")}}


def endless(*_, **__):
    return replace(checks._EQUAL, outcome="failed", measured=float("inf"))


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (checks, "_equal_rows", raising),
        (checks, "_equal_rows", endless),
        (LatentNoise, "clipped_count", raising),
        (attacks, "attack", raising),
    ],
)
def test_whatever_breaks_down_on_the_records_of_rows_changes_nothing_outside(
    tmp_path, plan, table, monkeypatch, where, name, broken
):
    plan = replace(plan, **POSTURES["public"])
    whole = Shown(tmp_path / "whole", plan, table)
    monkeypatch.setattr(where, name, broken)
    found = Shown(tmp_path / "broken", plan, table)
    assert found.hold.state == "held"
    assert shown(found) == shown(whole)
    assert "could not be carried out on these records" in found.note
    assert "quoted" not in found.note


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (networks.NetworkRelease, "_utility", raising),
        (networks.NetworkRelease, "_utility", no_number),
        (networks.NetworkRelease, "attack", raising),
        (checks, "_equal_rows", raising),
        (checks, "_like_degrees", raising),
    ],
)
def test_whatever_breaks_down_on_the_records_of_a_network_changes_nothing_outside(
    tmp_path, monkeypatch, where, name, broken
):
    nodes, edges = contact_networks(np.random.default_rng(1), sites=1, n=160, mean_degree=12)["harbour"]
    whole = Shown(tmp_path / "whole", contacts_plan(), nodes, edges)
    monkeypatch.setattr(where, name, broken)
    found = Shown(tmp_path / "broken", contacts_plan(), nodes, edges)
    assert found.hold.state == "held"
    assert shown(found) == shown(whole)
    assert "could not be carried out on these records" in found.note
    assert "quoted" not in found.note


def test_nobody_tied_to_anybody_held_out_is_a_note_like_any_other(tmp_path):
    """The expected number of edges is 0, and the ratio to it no number that a document can hold."""
    plan = contacts_plan()
    nodes, edges = contact_networks(np.random.default_rng(1), sites=1, n=160, mean_degree=12)["harbour"]
    held = {one for one in nodes["person"] if fitting.trains(plan, pseudonym(one, key=KEY))}
    one, other = (edges.iloc[:, k].isin(held) for k in (0, 1))
    whole = Shown(tmp_path / "tied", plan, nodes, edges)
    apart = Shown(tmp_path / "apart", plan, nodes, edges[one == other])
    lines = [{line["name"]: line["outcome"] for line in shown(each)["checks"]} for each in (whole, apart)]
    assert lines[0]["degrees"] == lines[1]["degrees"] == "note"


def test_what_reads_the_released_table_alone_still_decides_when_the_rest_breaks_down(
    tmp_path, plan, site, table, monkeypatch
):
    monkeypatch.setattr(checks, "_equal_rows", raising)
    monkeypatch.setattr(
        checks, "_dictionary", lambda *_: checks.Check(name="dictionary", rule="within it", outcome="failed")
    )
    with pytest.raises(ChecksRefusal, match="within it"):
        release(replace(plan, **POSTURES["public"]), site, source(tmp_path, table))
    assert [hold.state for hold in site.ledger.holds()] == ["burnt"]


@pytest.mark.parametrize("error", [PausedRefusal("this site must not be paused"), OSError(28, "full"), MemoryError()])
def test_what_is_of_no_record_still_stops_the_run_and_refuses_nothing(tmp_path, plan, site, table, monkeypatch, error):
    def stopped(*_, **__):
        raise error

    monkeypatch.setattr(checks, "_equal_rows", stopped)
    # Too little memory is told as what it is, so that a run goes on with the other studies.
    with pytest.raises(StorageRefusal if isinstance(error, MemoryError) else type(error)):
        release(replace(plan, **POSTURES["public"]), site, source(tmp_path, table))
    assert [hold.state for hold in site.ledger.holds()] == ["sealed"]


def test_a_pause_during_the_attacks_is_still_a_pause(tmp_path, plan, site, table, monkeypatch):
    def paused(*_, **__):
        raise PausedRefusal("this site must not be paused")

    monkeypatch.setattr(attacks, "attack", paused)
    with pytest.raises(PausedRefusal):
        release(replace(plan, **POSTURES["public"]), site, source(tmp_path, table))
    assert [hold.state for hold in site.ledger.holds()] == ["sealed"]


def test_the_words_for_the_approver_say_whose_choice_is_not_in_the_price(promised, plan):
    said = " ".join(coverage(promised)[1])
    assert "the choice itself is not in the price" in said
    assert EARLIER_GATE not in said
    before = replace(promised, floors=Floors(standing=True, approval="before"))
    assert "Nobody saw the table before it left" in " ".join(coverage(before)[1])


def test_a_receipt_tells_nothing_of_what_was_charged_before(tmp_path, plan, site, table):
    """A draw that was rejected, and the one after it: their receipts differ in nothing that counts draws."""
    plan = replace(plan, **POSTURES["public"])
    first = release(plan, site, source(tmp_path, table))
    site.ledger.burn(site.ledger.hold(first.hold.release_id), "for the test")
    second = release(plan, site, source(tmp_path, table))
    assert first.receipt.study_epsilon == second.receipt.study_epsilon == plan.budget.epsilon


# -- releases of earlier versions -----------------------------------------------------------------------------------
def test_releases_of_earlier_versions_that_a_gate_selected_are_named(tmp_path, plan, site, table, monkeypatch):
    from shared.releases import receipt as receipts

    public = replace(plan, **POSTURES["public"])
    monkeypatch.setattr(receipts, "_chosen_by", lambda plan: EARLIER_GATE)
    earlier = release(public, site, source(tmp_path, table))
    conditional = release(replace(public, study="second", posture="local"), site, source(tmp_path, table))
    monkeypatch.undo()
    now = release(replace(public, study="third"), site, source(tmp_path, table))
    assert overview.gated(site.outbox, earlier.hold.release_id)
    assert not overview.gated(site.outbox, conditional.hold.release_id)
    assert not overview.gated(site.outbox, now.hold.release_id)


def test_after_an_update_that_says_other_things_are_open_the_plan_is_approved_again(hospital, plan, monkeypatch):
    from shared.releases import receipt as receipts

    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_DR_LIND", PASSPHRASE)
    with monkeypatch.context() as patch:
        patch.setattr(receipts, "_chosen_by", lambda plan: EARLIER_GATE)
        hospital.joined("dr-lind").approved(plan).with_table(make_table(300))
    refusal = hospital.refused("release", "mini", "--wave", "1", expect=PlanChanged.exit_code)
    assert "what was ticked" in refusal["must"]
    assert hospital.json("budget")["lines"] == []
    hospital("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
    hospital("release", "mini", "--wave", "1")
    hospital("audit", "verify")


# -- approved before the draw ---------------------------------------------------------------------------------------
def ahead(plan: StudyPlan, **floors) -> StudyPlan:
    return replace(
        plan, **POSTURES["public"], floors=replace(plan.floors, **{"standing": True, "approval": "before", **floors})
    )


@pytest.fixture
def desk(hospital, plan, monkeypatch) -> Hospital:
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_DR_LIND", PASSPHRASE)
    return hospital.joined("dr-lind").approved(ahead(plan)).with_table(make_table(300))


def add(desk: Hospital, expect: int = 0):
    return desk.json("standing", "add", "mini", "--as", "dr-lind", "--max-epsilon", "2", "--until", FAR, expect=expect)


def test_nothing_is_charged_before_somebody_has_approved(desk):
    refusal = desk.json("release", "mini", "--wave", "1", expect=ApprovalRefusal.exit_code)
    assert "before it is drawn" in json.dumps(refusal)
    assert [event["code"] for event in events(desk)] == [ApprovalRefusal.code]
    assert desk.json("budget")["lines"] == []


def test_a_first_release_is_sent_as_it_is_drawn_and_nobody_opens_a_key(desk, tmp_path):
    assert add(desk)["release_id"] == NO_RELEASE
    made = desk.json("release", "mini", "--wave", "1")
    assert made["standing"] == {"used": "dr-lind", "limit": ""}
    assert made["state"] == "delivered"
    out = tmp_path / "record"
    desk("audit", "export", "mini", "--out", str(out))
    done = subprocess.run([sys.executable, "-I", str(out / "verify.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def unsent(desk: Hospital, monkeypatch) -> str:
    """Drawn and approved ahead; then the coordinator did not answer."""
    add(desk)
    with monkeypatch.context() as patch:

        def gone(*_, **__):
            raise NetworkRefusal("the coordinator must answer", given="no answer")

        patch.setattr(desk.hub, "send", gone)
        desk.json("release", "mini", "--wave", "1", expect=NetworkRefusal.exit_code)
    [one] = desk.json("outbox", "list")["releases"]
    assert one["state"] == "approved"
    return one["release_id"]


def test_nobody_is_shown_it_and_nobody_signs_it_by_hand_while_it_waits_to_be_sent(desk, monkeypatch):
    release_id = unsent(desk, monkeypatch)
    for verb in (("outbox", "show"), ("outbox", "figures"), ("synthetic",)):
        more = ("--out", str(desk.folder / "rows.csv")) if verb == ("synthetic",) else ()
        assert "must not be looked at" in desk.refused(*verb, release_id, *more, expect=PolicyRefusal.exit_code)["must"]
    desk("approve", release_id, "--as", "dr-lind")
    envelope, _ = desk.hub.sent[-1]
    assert len(envelope.signatures) == 1, "it was sent again, and nobody's key was opened"
    assert desk.json("outbox", "show", release_id)["state"] == "delivered"


def test_a_signature_that_was_made_after_the_draw_approves_nothing(desk, monkeypatch):
    first = add(desk)["id"]
    with monkeypatch.context() as patch:
        patch.setattr(
            standing_approval,
            "approve_by_standing",
            lambda at, i, *_, **__: standing_approval.StandingUse(hold=at.outbox.get(i)),
        )
        made = desk.json("release", "mini", "--wave", "1")
    assert made["state"] == "held"
    assert "checks" not in made
    desk("standing", "revoke", first[:8], "--as", "dr-lind", "--reason", "second thoughts")
    add(desk)
    assert not [event for event in events(desk) if event["what"] == "approved"]
    refusal = desk.refused("approve", made["release_id"], "--as", "dr-lind", expect=ApprovalRefusal.exit_code)
    assert "by nobody who has seen it" in refusal["must"]
    desk("withdraw", made["release_id"], "--as", "dr-lind", "--reason", "policy")
    desk("audit", "verify")


def test_one_that_ended_during_the_fit_is_asked_for_again_before_the_draw(desk, monkeypatch):
    made_by = add(desk)["id"]
    quick_one = drawing._fit

    def slow(*args):
        cli.open_desk(desk.home).ledger.revoke_standing(made_by, name="dr-lind", reason="second thoughts")
        return quick_one(*args)

    monkeypatch.setattr(drawing, "_fit", slow)
    refusal = desk.json("release", "mini", "--wave", "1", expect=ApprovalRefusal.exit_code)
    assert "before it is drawn" in json.dumps(refusal)
    assert [hold.state for hold in cli.open_desk(desk.home).ledger.holds()] == ["anchored"]


def test_a_site_that_wants_two_people_refuses_before_the_charge(desk):
    toml = desk.home / "site.toml"
    toml.write_text(toml.read_text().replace("[floors]\n", "[floors]\napprovals = 2\n"))
    add(desk)
    refusal = desk.json("release", "mini", "--wave", "1", expect=PolicyRefusal.exit_code)
    assert "one approver" in json.dumps(refusal)
    assert desk.json("budget")["lines"] == []


@pytest.mark.parametrize(
    "floors", [{"standing": False}, {"approvals": 2}, {"author_apart": True}, {"approval": "never"}]
)
def test_a_plan_that_cannot_be_kept_is_refused(plan, floors):
    with pytest.raises(PlanRefusal, match=r"floors\.approval"):
        ahead(plan, **floors)
    with pytest.raises(PlanRefusal, match="posture 'local'"):
        replace(plan, floors=Floors(standing=True, approval="before"))


def test_a_plan_that_says_nothing_of_it_keeps_its_hash(plan):
    assert "approval" not in plan.to_canonical()["floors"]
    assert StudyPlan.from_bytes(ahead(plan).canonical) == ahead(plan)


def test_the_coordinator_takes_a_first_release_that_was_approved_ahead_and_none_that_was_not(tmp_path, small_plan):
    plan = replace(small_plan, **POSTURES["public"], floors=Floors(standing=True, approval="before"))
    service = Service(tmp_path / "ahead", plan, "north")
    with service.serve():
        one = sealed(service)
        by_hand = replace(one, envelope=one.envelope.also_signed(service.sites["north"].steward))
        refused(ApprovalRefusal, lambda: offered(service, by_hand, None))
        offered(service, one, standing(service, n=1, release_id=NO_RELEASE))
        # A fifth more or less is no limit here: nobody has seen a size.
        offered(service, sealed(service, 100, wave=3), standing(service, n=1, release_id=NO_RELEASE))
    service.store.close()
    assert document(n=1, release_id=NO_RELEASE).n == 1
