"""Faults of many forms, drawn by chance as often as is asked: what a test pins by hand, these make by the hundred.

A seed is printed with a failure; ``TRIBUTARY_PART`` repeats it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import os
import random

import pytest
from hurry import soak
from stage.both_sides.clocks import NOW, judged, seen
from stage.both_sides.lying_coordinator import agent
from stage.both_sides.service import LEAD, Hub, SiteKeys, small_table
from stage.coordinator_side.analysis import Desk
from stage.coordinator_side.collect import offer, plan
from stage.coordinator_side.delivered import cohort, cohort_plan
from stage.coordinator_side.sandbox import BOMBS, delivered_within, sealed_around
from stage.coordinator_side.sandbox import hub as hub_of_64_mb

from coordinator.analyst.commands import connect
from coordinator.config import Quotas
from shared.base.keys import SigningKey
from shared.errors import (
    ApprovalRefusal,
    DictionaryRefusal,
    IntegrityRefusal,
    ParameterError,
    PlanChanged,
    PlanExpired,
    PlanRefusal,
    ReceiptRefusal,
    Refusal,
    ReplayRefusal,
    RoleRefusal,
    SchemaRefusal,
    SignatureRefusal,
    SmallN,
    TooLarge,
)
from shared.plans.plan import sign_plan
from shared.wire.signed_messages import countersigned
from shared.wire.site_messages import Offered

__all__ = ["agent", "hub_of_64_mb", "plan"]  # the fixtures


@pytest.fixture
def rng():
    seed = int(os.environ.get("TRIBUTARY_PART") or dt.date.today().toordinal())
    print(f"seed {seed}: TRIBUTARY_PART={seed} repeats it")
    return random.Random(seed)


@pytest.fixture
def hub(tmp_path, plan):
    made = Hub.alike(tmp_path / "hub", plan, "north", "south")
    with made.serve(quotas=Quotas(calls=10**7, anchor_calls=10**7, refused_a_day=10**6)):
        yield made
    made.store.close()


# -- what is offered -------------------------------------------------------------------------------------------------
@pytest.mark.fault("F8")
def test_no_statement_is_taken_in_another_place_or_under_another_plan(hub, plan, rng, tally):
    newer = dataclasses.replace(plan, version=2)
    expired = dataclasses.replace(plan, version=3, expires=dt.date(2020, 1, 1))
    old = hub.seal("north", wave=2, release_id="02" * 16)
    hub.store.add_plan(sign_plan(newer, [LEAD]), newer)
    taken = hub.seal("north", plan=newer)
    with hub.egress("north") as egress:
        acceptance = egress.send(taken.envelope, taken.path)

    def replay() -> tuple[type[Refusal], dict]:
        """What is offered, and how it is refused; `taken` has wave 1."""
        wave, name = rng.randrange(2, 41), f"{rng.getrandbits(128):032x}"
        fresh = {"wave": wave, "release_id": name, "table": small_table(seed=rng.getrandbits(30)), "plan": newer}
        same = {"data": taken.path.read_bytes(), "plan": newer}
        return rng.choice(
            [
                (ReplayRefusal, {**fresh, "wave": 1}),
                (ReplayRefusal, {**fresh, "release_id": taken.statement.release_id}),
                (ReplayRefusal, {**same, "statement_changes": {"release_id": name, "wave": wave}}),
                (ReplayRefusal, {**fresh, "statement_changes": {"site": "south"}}),
                (ReplayRefusal, {**fresh, "statement_changes": {"recipient": f"hub{rng.randrange(99)}"}}),
                (RoleRefusal, {**fresh, "statement_changes": {"study": f"mini{rng.randrange(99)}"}}),
                (PlanRefusal, {**fresh, "wave": rng.randrange(41, 10_000)}),
                (PlanRefusal, {**fresh, "plan": dataclasses.replace(newer, title=name)}),
                (PlanChanged, {**fresh, "plan": plan}),
            ]
        )

    times = soak(9, 870, usual=90)
    late = times // 9
    with hub.client("north") as client:
        for _ in range(times):
            kind, given = replay()
            with pytest.raises(kind):
                offer(client, hub.seal("north", **given))
        with pytest.raises(PlanChanged):
            offer(client, old)
        hub.store.add_plan(sign_plan(expired, [LEAD]), expired)
        for _ in range(late):
            given = {"wave": rng.randrange(2, 41), "release_id": f"{rng.getrandbits(128):032x}", "plan": expired}
            with pytest.raises(PlanExpired):
                offer(client, hub.seal("north", **given))
        assert offer(client, taken).acceptance == acceptance
    accepted = len(hub.store.releases()) - 1
    tally(cases=times + late + 1, offered=times + late + 1, accepted=accepted)
    assert accepted == 0
    assert hub.store.quarantined() == ()


@pytest.mark.fault("F10")
def test_no_set_of_keys_but_the_pinned_ones_in_their_roles_signs_a_release(hub, rng, tally):
    north, south = hub.sites["north"], hub.sites["south"]
    stranger, twin = SigningKey.generate(), SiteKeys("north")
    others = [stranger, twin.release, twin.steward, south.release, south.steward, LEAD, hub.authority.witness]
    times = soak(15, 580, usual=60)
    with hub.client("north") as client:
        for _ in range(times):
            own = rng.choice([[], [north.release], [north.steward], [north.release, north.steward]])
            signers = own + rng.sample(others, rng.randrange(0 if len(own) == 1 else 1, 4))
            sealed = hub.seal("north", release_id=f"{rng.getrandbits(128):032x}", signers=signers)
            envelope = sealed.envelope
            if len(own) == 2:  # both that it takes, and then one of them is forged
                place = rng.randrange(2)
                bad = bytearray(envelope.signatures[place].value)
                bad[rng.randrange(64)] ^= 1 << rng.randrange(8)
                forged = dataclasses.replace(envelope.signatures[place], value=bytes(bad))
                kept = [*envelope.signatures[:place], forged, *envelope.signatures[place + 1 : 2]]
                envelope = dataclasses.replace(envelope, signatures=tuple(kept))
            with pytest.raises((SignatureRefusal, RoleRefusal, ApprovalRefusal)):
                offer(client, dataclasses.replace(sealed, envelope=envelope))
        assert hub.contents() == set()
        assert offer(client, hub.seal("north")).offset == 0
    tally(cases=times, offered=times, accepted=len(hub.store.releases()))
    assert hub.store.releases() == ()


@pytest.mark.fault("F13")
def test_wrong_content_drawn_by_chance_is_kept_apart_and_told(hub, plan, rng, tally):
    def wrong() -> tuple[tuple[type[Refusal], ...], dict]:
        table = small_table(rng.randrange(50, 90), seed=rng.getrandbits(30))
        row, far = rng.randrange(len(table)), rng.choice((-1, 1)) * 10.0 ** rng.randrange(4, 12)
        value = table["sbp"].where(table.index != row, rng.choice((far, float("nan"), float("inf"))))
        text, more = f"{rng.getrandbits(40):x}", rng.randrange(1, 500)
        return rng.choice(
            [
                ((DictionaryRefusal, SchemaRefusal), {"table": table.assign(sbp=value)}),
                ((DictionaryRefusal, SchemaRefusal), {"table": table.assign(sex=text)}),
                ((DictionaryRefusal,), {"table": table.assign(**{f"x{text}": 1.0})}),
                ((DictionaryRefusal,), {"table": table.drop(columns=rng.choice(["sex", "sbp"]))}),
                ((SmallN,), {"table": small_table(rng.randrange(2, 50), seed=more)}),
                ((IntegrityRefusal,), {"data": rng.randbytes(rng.randrange(1, 3000))}),
                ((ReceiptRefusal,), {"table": table, "receipt_changes": {"epsilon": rng.uniform(0.01, 5)}}),
                ((ReceiptRefusal,), {"table": table, "receipt_changes": {"n": len(table) + more}}),
                ((ReceiptRefusal,), {"table": table, "receipt_changes": {"study_epsilon": rng.uniform(0.01, 50)}}),
                ((ReceiptRefusal,), {"table": table, "statement_changes": {"receipt_sha256": f"{more:064x}"}}),
                ((ReplayRefusal,), {"table": table, "receipt_changes": {"wave": rng.randrange(2, 40)}}),
            ]
        )

    times = soak(6, 520, usual=40)
    for turn in range(times):
        site = f"site{turn // 20}"  # what was refused counts against a site's budget and its room
        if site not in hub.sites:
            hub.join(site)
        kinds, given = wrong()
        sealed = hub.seal(site, release_id=f"{rng.getrandbits(128):032x}", **given)
        with hub.egress(site, sleep=lambda seconds: None) as egress:
            with pytest.raises(kinds) as caught:
                egress.send(sealed.envelope, sealed.path)
            [told] = [one for one in egress.status("mini") if one.release_id == sealed.statement.release_id]
        assert (told.state, told.code, told.reason) == ("quarantined", caught.value.code, str(caught.value))
    accepted = len(hub.store.releases())
    tally(cases=times, offered=times, accepted=accepted)
    assert accepted == 0
    assert hub.store.verify_log() == 0
    assert {name.split("/")[0] for name in hub.contents()} == {"quarantine"}


@pytest.mark.fault("F11")
def test_bombs_of_many_sizes_are_refused_while_the_server_hardly_grows(hub_of_64_mb, rng, tally):
    hub, times = hub_of_64_mb, soak(1, 210, usual=10)
    for turn in range(times):
        make, many = BOMBS[rng.choice(list(BOMBS))]
        table, rows = make(many + 2000 * rng.randrange(1 + many // 8000))
        given = {"wave": 1 + turn % 19, "release_id": f"{rng.getrandbits(128):032x}"}
        sealed = sealed_around(hub, table, rows, n=rng.choice((rows, 60, rows // 2 + 60)), **given)
        assert isinstance(delivered_within(hub, sealed, megabytes=64), (SchemaRefusal, ReceiptRefusal, TooLarge))
    accepted = len(hub.store.releases())
    tally(cases=times, offered=times, accepted=accepted)
    assert accepted == 0


# -- whose word is taken ---------------------------------------------------------------------------------------------
@pytest.mark.fault("F15")
def test_the_order_of_clocks_rests_on_more_than_half_of_those_heard(rng, tally):
    times = soak(60, 60)
    for _ in range(times):
        right, wrong = rng.randrange(5), rng.randrange(5)
        clocks = [seen(f"r{k}", rng.uniform(-100, 100), days=rng.randrange(9)) for k in range(right)]
        days = [rng.choice((-1, 1)) * rng.uniform(2, 4000) for _ in range(wrong)]
        clocks += [seen(f"w{k}", 86_400 * days[k], days=rng.randrange(9)) for k in range(wrong)]
        rng.shuffle(clocks)
        assert judged(*clocks).believed is (right > 0 and right >= wrong)
        jump = dt.timedelta(days=rng.uniform(200, 2000))
        assert not judged(*clocks, now=NOW + jump).believed, "nobody has seen that day"
    tally(cases=times)


@pytest.mark.fault("F19")
def test_no_acceptance_or_receipt_is_believed_that_is_not_of_these_bytes_and_this_log(agent, rng, tally, caplog):
    hub, key = agent.hub, agent.hub.authority.witness
    caplog.set_level(logging.CRITICAL)
    first = hub.seal("north")
    honest = agent.door.send(first.envelope, first.path)
    known = agent.door.anchor(hub.anchor("north", 1))
    before = hub.witness("north").checkpoint()
    times, stranger = soak(18, 182, usual=60), SigningKey.generate()

    def lie(true, names: list[str]):
        """`true` with another value, signed anew or not at all, or with no other value and by another key or name."""
        name, number = rng.choice(names), rng.randrange(1, 10_000)
        value = getattr(true, name)
        other = dataclasses.replace(true, **{name: value + number if isinstance(value, int) else f"{number:064x}"})
        return rng.choice(
            [
                countersigned(other, key, "north"),
                other,
                dataclasses.replace(true, signature=rng.randbytes(64)),
                countersigned(true, key, "south"),
                countersigned(true, stranger, "north"),
            ]
        )

    kept, forks = hub.witness("north").path, 0
    replies = kept.read_bytes()
    for _ in range(times):
        if rng.random() < 0.5:
            told = lie(honest, ["study", "wave", "site", "release_id", "bundle_sha256", "log_index", "log_root"])
            agent.lies["Offer"] = lambda call, request, told=told: Offered(acceptance=told)
            with pytest.raises((IntegrityRefusal, SignatureRefusal, SchemaRefusal)):
                agent.door.send(first.envelope, first.path)
        else:
            told = lie(known, ["seq", "head", "index", "log_root"])
            agent.lies["Anchor"] = lambda call, request, told=told: told
            with pytest.raises((IntegrityRefusal, SignatureRefusal, SchemaRefusal)):
                agent.door.anchor(hub.anchor("north", 1))
        if hub.witness("north").forks():  # by the coordinator's own word: then nothing is sent at all
            forks += 1
            agent.lies.clear()
            with pytest.raises(IntegrityRefusal, match="only grow"):
                agent.door.send(first.envelope, first.path)
            kept.write_bytes(replies)
    assert forks
    agent.lies.clear()
    assert hub.witness("north").checkpoint() == before
    assert agent.door.send(first.envelope, first.path) == honest
    tally(cases=times, log_lies=times, log_lies_missed=0)


# -- what analysts ask -----------------------------------------------------------------------------------------------
@pytest.mark.fault("F21")
def test_questions_put_together_from_hostile_pieces_are_refused_by_type(tmp_path, rng, tally):
    pieces = [
        "__import__('os')",
        ".__class__",
        "`sbp`",
        "' OR '1'='1",
        "{sbp}",
        ";",
        "\x00",
        "../../etc/passwd",
        "$(id)",
    ]
    pieces += [
        "lambda: 0",
        "exec('1')",
        "\u202e",
        "~ ~",
        "%s%n",
        "sbp" * 50,
        "I(sbp**9**9)",
        "[sbp]",
        "\\",
        "(" * 60,
        "<b>",
    ]
    desk = Desk(tmp_path / "hub", rate=10**6, burst=10**6)
    desk.publish(cohort_plan())
    desk.add("cvd", "alpha", cohort(200, 1))
    desk.start()
    times = soak(8, 465, usual=40)
    try:
        with connect(desk.admit()) as connection:
            study = connection["cvd"]
            for _ in range(times):
                formula = "Surv(time, cvd) ~ sbp + age"
                for piece in rng.sample(pieces, rng.randrange(1, 4)):
                    place = rng.randrange(len("Surv(time, cvd) ~"), len(formula) + 1)
                    formula = formula[:place] + " " + piece + " " + formula[place:]
                with pytest.raises((ParameterError, SchemaRefusal, TooLarge)) as caught:
                    study.cox(formula)
                assert not any(words in str(caught.value) for words in ("Traceback", ".py", str(tmp_path)))
            assert study.log().counts["refused"] == times
            assert study.mean("sbp").document["k"] == 1, "an honest question is answered all the same"
    finally:
        desk.stop()
    tally(cases=times)
