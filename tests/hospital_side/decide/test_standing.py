"""Standing approval: signed once by a person, used only within every one of its limits, refused by whoever checks."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import copy
import datetime as dt
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_table
from stage.both_sides.service import Hub as Service
from stage.browser.page import served
from stage.coordinator_side.collect import plan as small_plan  # noqa: F401
from stage.coordinator_side.collect import refused
from stage.hospital_side.exports import resigned, rewritten, verified
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401
from stage.hospital_side.standing import FAR, document, events, offered, sealed, standing

from coordinator.services.collect import ingest
from shared.base.keys import Envelope, SigningKey
from shared.errors import (
    ApprovalRefusal,
    NetworkRefusal,
    ReplayRefusal,
    SchemaRefusal,
    SignatureRefusal,
)
from shared.plans.plan import Budget, Floors
from shared.plans.standing import Revocation, Standing, broken_limit, open_revocation, open_standing
from site_agent import cli
from site_agent.release import drawing
from site_agent.release.checks import Check
from site_agent.release.pipeline import opened
from site_agent.show import verifier

WITHIN = "100000"


def allowed(plan, **floors):
    """Three waves of everybody, by a plan that allows standing approvals."""
    waves = tuple(replace(plan.waves[0], number=number) for number in (1, 2, 3))
    return replace(
        plan,
        waves=waves,
        budget=Budget(epsilon=50_000.0),
        returning="refresh",
        floors=replace(plan.floors, **{"standing": True, **floors}),
    )


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> dict:
    """Where the first test leaves its hospital for the others."""
    return {"folder": tmp_path_factory.mktemp("shelf")}


def rare_levels(patch, outcome: str) -> None:
    found = Check(name="rare-levels", rule="no rare level", outcome=outcome)
    patch.setattr("site_agent.release.checks._rare_levels", lambda *_: found)


@pytest.fixture
def ready(hospital, plan, monkeypatch, shelf) -> Hospital:
    """Wave 1 approved by a person; nothing in the table is rare."""
    for name in ("DR_LIND", "DR_BERG"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", PASSPHRASE)
    rare_levels(monkeypatch, "passed")
    if "lead" in shelf:
        shutil.copytree(shelf["folder"] / "site", hospital.home)
        shutil.copy(shelf["folder"] / "cohort.csv", hospital.folder)
        toml = hospital.home / "site.toml"
        toml.write_text(toml.read_text().replace(str(shelf["from"]), str(hospital.folder)))
        hospital.lead = shelf["lead"]
        vars(hospital.hub).update(copy.deepcopy(shelf["hub"]))
        return hospital
    site = hospital.joined("dr-lind", "dr-berg").approved(allowed(plan)).with_table(make_table(300))
    first = site.json("release", "mini", "--wave", "1")
    assert first["standing"] == {"used": "", "limit": ""}
    site("approve", first["release_id"], "--as", "dr-berg")
    shutil.copytree(site.home, shelf["folder"] / "site")
    shutil.copy(site.folder / "cohort.csv", shelf["folder"])
    heard = {name: value for name, value in vars(site.hub).items() if name != "ca"}
    shelf |= {"from": site.folder, "lead": site.lead, "hub": copy.deepcopy(heard)}
    return site


def add(site: Hospital, name: str = "dr-lind", epsilon: str = WITHIN, until: str = FAR, expect: int = 0):
    return site.json("standing", "add", "mini", "--as", name, "--max-epsilon", epsilon, "--until", until, expect=expect)


def states(site: Hospital) -> list[str]:
    return [release["state"] for release in site.json("outbox", "list")["releases"]]


# -- used -----------------------------------------------------------------------------------------------------------
def test_a_release_within_every_limit_is_sent_without_asking_again(ready):
    add(ready)
    made = ready.json("release", "mini", "--wave", "2")
    assert made["standing"] == {"used": "dr-lind", "limit": ""}
    assert (made["state"], made["accepted"]["log_index"]) == ("delivered", 1)
    envelope, _ = ready.hub.sent[1]
    assert len(envelope.signatures) == 1, "nobody opened a person's key"
    keys = {
        name: SigningKey.load(ready.home / f"keys/approvers/{name}.pem", PASSPHRASE).public for name in ("dr-lind",)
    }
    assert open_standing(ready.hub.stood[1], keys).approver == "dr-lind"
    assert ready.hub.stood[0] is None
    (line,) = ready.json("standing", "list")["standing"]
    assert (line["state"], line["used"], line["n"]) == ("in force", 1, 300)
    assert "Standing approvals" in ready("standing", "list")


def test_the_page_does_not_say_of_a_release_that_was_sent_that_it_was_not(ready):
    from stage.browser.page import ended, posted, served

    add(ready)
    with served(ready.home) as browser:
        browser.login()
        who = {"name": "dr-lind", "passphrase": PASSPHRASE, "wave": "2"}
        posted(browser, "/plans/mini/release", who, at="/plans")
        words = browser.get(ended(browser).headers["Location"]).words
    assert states(ready) == ["delivered", "delivered"]
    assert ("nothing has been sent" in words, "Signed and sent" in words) == (False, True)


def test_the_calendar_uses_it_and_says_so(ready):
    add(ready)
    said = [(event["what"], event["wave"]) for event in events(ready)]
    assert said == [("approved", 2), ("sent", 2)]
    assert states(ready) == ["delivered", "delivered"]


def test_what_could_not_be_sent_is_sent_by_the_next_round(ready, monkeypatch):
    add(ready)
    send = ready.hub.send

    def lost(*_, **__):
        raise NetworkRefusal("the coordinator must answer", given="no answer")

    with monkeypatch.context() as patched:
        patched.setattr(ready.hub, "send", lost)
        ready("release", "mini", "--wave", "2", expect=20)
    assert states(ready) == ["delivered", "approved"]
    assert send == ready.hub.send
    assert ("sent", 2) in [(event["what"], event["wave"]) for event in events(ready)]


def test_a_dry_run_signs_nothing(ready):
    ready("standing", "add", "mini", "--as", "dr-lind", "--max-epsilon", "9", "--until", FAR, "--dry-run")
    assert ready.json("standing", "list")["standing"] == []


def test_with_two_people_asked_for_it_stands_in_for_one(hospital, plan, monkeypatch):
    for name in ("DR_LIND", "DR_BERG"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", PASSPHRASE)
    rare_levels(monkeypatch, "passed")
    site = hospital.joined("dr-lind", "dr-berg").approved(allowed(plan, approvals=2)).with_table(make_table(300))
    first = site.json("release", "mini", "--wave", "1")["release_id"]
    for name in ("dr-lind", "dr-berg"):
        site("approve", first, "--as", name)
    add(site, "dr-lind")
    add(site, "dr-berg")
    made = site.json("release", "mini", "--wave", "2")
    assert (made["state"], made["standing"]["used"]) == ("held", "dr-berg")
    assert [e for e in events(site) if e["wave"] == 2] == [], "a second one does not make two people"
    assert states(site) == ["delivered", "held", "held"]
    assert site.json("approve", made["release_id"], "--as", "dr-lind")["state"] == "delivered"
    assert site.hub.stood[1] is not None


# -- each limit alone -----------------------------------------------------------------------------------------------
def too_dear(site, plan, patch):
    add(site, epsilon="0.001")


def ended(site, plan, patch):
    add(site, until="2026-03-01")
    patch.setenv("TRIBUTARY_TODAY", "2026-03-02")


def revoked(site, plan, patch):
    site("standing", "revoke", add(site)["id"][:8], "--as", "dr-berg", "--reason", "enough")


def another_plan(site, plan, patch):
    add(site)
    site.approved(replace(allowed(plan), version=2, title="Another"))


def another_agent(site, plan, patch):
    add(site)
    patch.setattr("importlib.metadata.version", lambda name: "9.9")
    site("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")


def grown(site, plan, patch):
    add(site)
    site.with_table(make_table(360))


def shrunk(site, plan, patch):
    add(site)
    site.with_table(make_table(240))


def no_audit(site, plan, patch):
    add(site)
    patch.setattr(drawing, "_attack", lambda **_: {})


def warned(site, plan, patch):
    add(site)
    check = Check(name="rare_level", rule="no rare level", outcome="warning")
    patch.setattr(opened.SealedRelease, "warnings", (check,))


def plan_was_revoked(site, plan, patch):
    add(site)
    site("plan", "revoke", "mini", "--as", "dr-berg", "--reason", "a pause for thought")
    site("plan", "approve", "mini", "--as", "dr-berg", "--understood", "local")


LIMITS = [
    (too_dear, "one release must cost at most"),
    (ended, "it must not have ended (it did on 2026-03-01)"),
    (revoked, ""),
    (plan_was_revoked, ""),
    (another_plan, "the plan must be the one it was signed for"),
    (another_agent, "version must be the one it was signed for"),
    (grown, "n must change by less than 20 % (360 rows after 300)"),
    (shrunk, "n must change by less than 20 % (240 rows after 300)"),
    (no_audit, "the audit must have passed"),
    (warned, "no warning may need a tick (rare_level)"),
]


@pytest.mark.parametrize(("cause", "said"), LIMITS, ids=lambda value: getattr(value, "__name__", ""))
def test_each_limit_alone_leaves_the_release_to_a_person_and_is_named(ready, plan, monkeypatch, cause, said):
    if cause is ended:
        monkeypatch.setenv("TRIBUTARY_TODAY", "2026-02-01")
    cause(ready, plan, monkeypatch)
    (event,) = [event for event in events(ready) if event["wave"] == 2]
    assert event["what"] == "waits for a person", event
    assert said in event["detail"]
    assert ("standing approval was not used" in event["detail"]) == bool(said)
    assert states(ready) == ["delivered", "held"]
    assert len(ready.hub.sent) == 1


def test_the_author_does_not_approve_in_advance_where_the_two_must_be_different_people(ready):
    toml = ready.home / "site.toml"
    toml.write_text(toml.read_text().replace("[floors]\n", "[floors]\nauthor_apart = true\n"))
    add(ready)
    made = ready.json("release", "mini", "--wave", "2", "--by", "dr-lind")
    assert "whoever had it made (dr-lind) must not approve it" in made["standing"]["limit"]
    ready("approve", made["release_id"], "--as", "dr-berg")
    assert ready.json("release", "mini", "--wave", "3", "--by", "dr-berg")["standing"]["used"] == "dr-lind"


def test_a_release_that_somebody_sent_back_waits_for_a_person(ready):
    made = ready.json("release", "mini", "--wave", "2")
    ready("send-back", made["release_id"], "--as", "dr-berg", "--reason", "why so many?")
    add(ready)
    events(ready)
    assert states(ready)[:2] == ["delivered", "sent_back"]


def test_one_that_was_revoked_before_the_bytes_left_sends_nothing_and_a_person_takes_over(ready, monkeypatch):
    digest = add(ready)["id"]

    def lost(*_, **__):
        raise NetworkRefusal("the coordinator must answer", given="no answer")

    with monkeypatch.context() as patched:
        patched.setattr(ready.hub, "send", lost)
        ready("release", "mini", "--wave", "2", expect=20)
    ready("standing", "revoke", digest, "--as", "dr-lind")
    (event,) = [event for event in events(ready) if event["wave"] == 2]
    assert (event["what"], event["code"]) == ("not sent", "E_NOT_APPROVED")
    assert len(ready.hub.sent) == 1
    release_id = ready.json("outbox", "list")["releases"][-1]["release_id"]
    answer = ready.json("approve", release_id, "--as", "dr-lind")
    assert (answer["state"], answer["approvals"]) == ("delivered", ["dr-lind"])
    assert ready.hub.stood[1] is None
    assert len(ready.hub.sent[1][0].signatures) == 2


def test_size_does_not_creep_and_the_coordinator_is_told_of_the_end(ready):
    """300 rows were approved by hand; 350 are within a fifth of that, and 400 of 350, but not of 300."""
    digest = add(ready)["id"]
    ready.with_table(make_table(350, seed=2))
    assert ready.json("release", "mini", "--wave", "2")["standing"]["used"] == "dr-lind"
    ready.with_table(make_table(400, seed=3))
    made = ready.json("release", "mini", "--wave", "3")
    assert made["standing"]["limit"] == "n must change by less than 20 % (400 rows after 300)"
    (line,) = [row for row in ready.json("history")["entries"] if row["kind"] == "refused"]
    assert (line["verb"], line["code"], line["release_id"]) == (
        "standing approval",
        "E_NOT_APPROVED",
        made["release_id"],
    )
    (shown,) = ready.json("standing", "list")["standing"]
    assert (shown["measure"], shown["used"], shown["told"]) == (300, 1, None)
    ready.hub.down = True
    assert ready.json("standing", "revoke", digest, "--as", "dr-berg", "--reason", "enough")["told"] is False
    assert "standing revoke" not in [event["what"] for event in events(ready, expect=20)]
    ready.hub.down = False
    assert "told of a revocation" in [event["what"] for event in events(ready)]
    assert "told of a revocation" not in [event["what"] for event in events(ready)]
    (told,) = ready.hub.revoked
    keys = {name: cli.open_desk(ready.home).outbox.approvers[name] for name in ("dr-lind", "dr-berg")}
    said = open_revocation(told, keys)
    assert (said.standing, said.approver, said.site) == (digest, "dr-berg", "north")
    assert ready.json("standing", "list")["standing"][0]["told"] is True
    assert ready.json("audit", "verify")["decisions"] == 1


def test_revoking_the_plan_tells_the_coordinator_that_nothing_is_approved_in_advance(ready):
    digests = {add(ready)["id"], add(ready, "dr-berg")["id"]}
    ready("plan", "revoke", "mini", "--as", "dr-lind", "--reason", "the ethics board asks")
    assert {json.loads(envelope.payload)["standing"] for envelope in ready.hub.revoked} == digests
    assert ready.json("audit", "verify")["decisions"] == 3


def test_the_page_shows_it_and_an_approver_ends_it_there(ready):
    digest = add(ready, epsilon="1234")["id"]
    with served(ready.home) as browser:
        browser.login()
        words = browser.get("/plans").words
        assert f"{digest[:8]} dr-lind in force at most 1234 {FAR} within 20 % of 300 0" in words
        end, who = f"/standing/{digest}/revoke", {"name": "dr-berg", "reason": "enough"}
        assert "E_PASSPHRASE" in browser.post(end, {**who, "passphrase": "a guess"}).text
        assert "revoked" in browser.post(end, {**who, "passphrase": PASSPHRASE}).words
        assert "refused not named" not in browser.get("/audit").words
        assert "standing revoke: No passphrase was given" in browser.get("/audit").words
    assert len(ready.hub.revoked) == 1
    (line,) = [row for row in ready.json("history")["entries"] if row["kind"] == "refused"]
    assert (line["verb"], line["who"]) == ("standing revoke", "dr-berg")


# -- making one -----------------------------------------------------------------------------------------------------
def test_it_cannot_be_made_before_a_person_has_approved_a_release(hospital, plan):
    site = hospital.joined("dr-lind").approved(allowed(plan)).with_table(make_table(300))
    assert "first release" in add(site, expect=12)["refused"]["must"]


def test_it_cannot_be_made_where_the_plan_does_not_allow_it(hospital, plan):
    site = hospital.joined("dr-lind").approved(allowed(plan, standing=False)).with_table(make_table(300))
    assert "must allow" in add(site, expect=10)["refused"]["must"]
    assert Floors().standing is False


@pytest.mark.parametrize(("epsilon", "until"), [("0", FAR), ("nan", FAR), ("2", "2020-01-01"), ("2", "3000-01-01")])
def test_a_limit_that_means_nothing_is_refused(ready, epsilon, until):
    add(ready, epsilon=epsilon, until=until, expect=2)
    assert ready.json("standing", "list")["standing"] == []


def test_only_who_can_open_the_key_signs_or_revokes(ready, monkeypatch):
    digest = add(ready)["id"]
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_DR_BERG", "something else")
    add(ready, "dr-berg", expect=30)
    ready("standing", "revoke", digest, "--as", "dr-berg", expect=30)
    add(ready, "mallory", expect=2)
    assert [line["state"] for line in ready.json("standing", "list")["standing"]] == ["in force"]


def test_one_made_again_after_it_was_revoked_is_another_one(ready):
    first = add(ready)["id"]
    ready("standing", "revoke", first, "--as", "dr-lind", "--dry-run")
    ready("standing", "revoke", first, "--as", "dr-lind")
    ready("standing", "revoke", first, "--as", "dr-lind", expect=2)
    second = add(ready)["id"]
    assert first != second
    assert ready.json("release", "mini", "--wave", "2")["standing"]["used"] == "dr-lind"


# -- the document ---------------------------------------------------------------------------------------------------


def test_the_document_reads_back_and_nothing_else_does():
    made = document()
    assert Standing.from_bytes(made.to_bytes()) == made
    body = json.loads(made.to_bytes())
    for change in ({"n": 0}, {"max_epsilon": 2}, {"until": "soon"}, {"more": 1}, {"n": True}, {"approver": ""}):
        with pytest.raises(SchemaRefusal):
            Standing.from_bytes(json.dumps({**body, **change}, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize(("n", "kept"), [(81, True), (80, False), (119, True), (120, False)])
def test_a_change_of_a_fifth_is_too_much_exactly(n, kept):
    day = dt.date(2026, 1, 5)
    limit = broken_limit(document(), plan_hash="ab" * 32, today=day, epsilon=1.0, n=n, last_n=100)
    assert (limit == "") is kept


# -- the coordinator ------------------------------------------------------------------------------------------------
@pytest.fixture
def hub(tmp_path, small_plan):
    plan = replace(small_plan, floors=Floors(standing=True))
    service = Service(tmp_path / "hub", plan, "north", "south")
    with service.serve():
        first = service.seal("north")
        with service.egress("north") as egress:
            egress.send(first.envelope, first.path)
        yield service
    service.store.close()


def test_the_coordinator_takes_it_for_the_approver_who_signed_it_once_and_for_good(hub):
    one = sealed(hub)
    acceptance = offered(hub, one, standing(hub))
    assert offered(hub, one, standing(hub)) == acceptance
    assert hub.store.release(one.statement.release_id).standing == standing(hub)
    assert hub.store.verify_log() == len(hub.store.log())
    assert hub.store.verify_signatures() == 2
    assert json.loads(hub.store.log()[acceptance.log_index].entry)["standing"] == standing(hub).digest


def stranger(hub):
    return standing(hub, SigningKey.generate())


def another_person(hub):
    return standing(hub, approver="somebody")


def altered(hub):
    made = standing(hub)
    return replace(made, payload=document(plan_hash=hub.plan.hash, max_epsilon=2e6).to_bytes())


def by_the_agent(hub):
    return standing(hub, hub.sites["north"].release)


FORGED = [
    (stranger, SignatureRefusal),
    (another_person, SignatureRefusal),
    (altered, SignatureRefusal),
    (by_the_agent, SignatureRefusal),
    (lambda hub: standing(hub, until="2026-01-01"), ApprovalRefusal),
    (lambda hub: standing(hub, plan_hash="cd" * 32), ApprovalRefusal),
    (lambda hub: standing(hub, max_epsilon=0.001), ApprovalRefusal),
    (lambda hub: standing(hub, agent_version="0.0.9"), ApprovalRefusal),
    (lambda hub: standing(hub, site="south"), ReplayRefusal),
    (lambda hub: standing(hub, study="other"), ReplayRefusal),
    (lambda hub: sealed(hub).envelope, SignatureRefusal),
    (lambda hub: None, ApprovalRefusal),
]


@pytest.mark.parametrize(("forge", "kind"), FORGED)
def test_the_coordinator_refuses_what_is_forged_over_or_too_small_and_a_person_may_still_approve(hub, forge, kind):
    one = sealed(hub)
    refused(kind, lambda: offered(hub, one, forge(hub)))
    assert len(hub.store.releases()) == 1
    assert hub.store.quarantined() == ()
    with hub.egress("north") as egress:
        egress.send(one.envelope.also_signed(hub.sites["north"].steward), one.path)
    assert hub.store.release(one.statement.release_id).standing is None


def test_the_coordinator_holds_the_size_against_the_last_release_that_a_person_signed(hub):
    for n in (72, 100):
        refused(ApprovalRefusal, lambda n=n: offered(hub, sealed(hub, n), standing(hub)))
    offered(hub, sealed(hub, 71, wave=3), standing(hub))
    larger = sealed(hub, 85, wave=4)
    refused(ApprovalRefusal, lambda: offered(hub, larger, standing(hub)))  # less than a fifth above 71, but not 60
    with hub.egress("north") as egress:
        egress.send(larger.envelope.also_signed(hub.sites["north"].steward), larger.path)
    offered(hub, sealed(hub, 100, wave=5), standing(hub))


def test_the_coordinator_takes_nothing_under_one_that_an_approver_of_the_site_has_ended(hub):
    made, steward = standing(hub), hub.sites["north"].steward
    over = Revocation(study="mini", site="north", standing=made.digest, approver="steward")
    for forged, kind in (
        (over.sign(SigningKey.generate()), SignatureRefusal),
        (over.sign(hub.sites["north"].release), SignatureRefusal),
        (replace(over, site="south").sign(steward), ReplayRefusal),
        (replace(over, approver="somebody").sign(steward), SignatureRefusal),
    ):
        with hub.egress("north") as egress:
            refused(kind, lambda forged=forged: egress.revoke_standing(forged))
    assert not hub.store.standing_revoked("north", made.digest)
    with hub.egress("north") as egress:
        for _ in range(2):
            egress.revoke_standing(over.sign(steward))
    one = sealed(hub)
    assert "revoked" in str(refused(ApprovalRefusal, lambda: offered(hub, one, made)))
    assert not hub.store.standing_revoked("south", made.digest), "each site ends its own"
    offered(hub, one, standing(hub, number=2))


def test_one_that_is_ended_while_its_release_is_uploaded_has_approved_nothing(hub, monkeypatch):
    """The offer came before the end, the commit after it: the commit decides."""
    made, steward = standing(hub), hub.sites["north"].steward
    over = Revocation(study="mini", site="north", standing=made.digest, approver="steward").sign(steward)

    def ended(place):
        if place == "ingest.before_commit":
            hub.store.revoke_standing("north", made.digest, over, dt.date(2026, 5, 1))

    one = sealed(hub)
    with monkeypatch.context() as patch:
        patch.setattr(ingest, "reach", ended)
        assert "revoked" in str(refused(ApprovalRefusal, lambda: offered(hub, one, made)))
    assert hub.store.by_bundle(one.statement.bundle_sha256) is None
    assert hub.store.verify_log() == len(hub.store.log())


def test_the_coordinator_takes_no_first_release_by_it(tmp_path, small_plan):
    service = Service(tmp_path / "first", replace(small_plan, floors=Floors(standing=True)), "north")
    with service.serve():
        refused(ApprovalRefusal, lambda: offered(service, sealed(service), standing(service)))
    service.store.close()


def test_the_coordinator_takes_none_that_the_plan_does_not_allow(tmp_path, small_plan):
    service = Service(tmp_path / "none", small_plan, "north")
    with service.serve():
        first = service.seal("north")
        with service.egress("north") as egress:
            egress.send(first.envelope, first.path)
        assert "allow" in str(refused(ApprovalRefusal, lambda: offered(service, sealed(service), standing(service))))
    service.store.close()


def test_two_approvals_are_not_had_from_one_person(tmp_path, small_plan):
    plan = replace(small_plan, floors=Floors(standing=True, approvals=2))
    service = Service(tmp_path / "two", plan, "north")
    with service.serve():
        one = sealed(service)
        signed = replace(one, envelope=one.envelope.also_signed(service.sites["north"].steward))
        refused(ApprovalRefusal, lambda: offered(service, signed, standing(service)))
    service.store.close()


# -- the record -----------------------------------------------------------------------------------------------------
@pytest.fixture
def record(ready, tmp_path) -> Path:
    add(ready)
    ready("release", "mini", "--wave", "2")
    out = tmp_path / "record"
    ready("audit", "export", "mini", "--out", str(out))
    return out


def test_a_stranger_checks_a_standing_approval_with_the_rest(record):
    done = subprocess.run([sys.executable, "-I", str(record / "verify.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 standing approvals are signed" in done.stdout


def test_a_stranger_finds_one_that_was_not_good(ready, record, tmp_path, monkeypatch):
    """The ledger as the site itself might rewrite it: the chain and its signatures are as they should be."""
    entries = json.loads((record / "ledger.json").read_bytes())
    keys = json.loads((record / "keys.json").read_bytes())
    whole = verifier.ledger  # it also says which keys were in force when

    def rewritten(files, keys, study):
        whole(files, keys, study)
        return rewritten_entries

    monkeypatch.setattr(verifier, "ledger", rewritten)
    (at,) = [place for place, entry in enumerate(entries) if entry.get("kind") == "standing"]
    (used,) = [entry for entry in entries if entry.get("kind") == "approve" and "standing" in entry["body"]]
    key = SigningKey.load(ready.home / "keys/approvers/dr-lind.pem", PASSPHRASE)
    honest = Standing.from_bytes(Envelope.from_bytes(entries[at]["body"]["envelope"].encode()).payload)

    def said(made: Standing, signer: SigningKey = key) -> str:
        envelope = made.sign(signer)
        body = entries[at]["body"]
        body |= {"standing": envelope.digest, "envelope": envelope.to_bytes().decode(), "name": made.approver}
        used["body"]["standing"] = envelope.digest
        return verified(record)

    rewritten_entries = entries
    assert said(honest) == ""
    assert "signed by the person it names" in said(honest, SigningKey.generate())
    for change in ({"max_epsilon": 0.001}, {"until": "2020-01-01"}, {"plan_hash": "ab" * 32}, {"site": "south"}):
        assert "good for the release" in said(replace(honest, **change)), change
    assert said(honest) == ""
    used["body"]["standing"] = "cd" * 32
    assert "good for the release" in verified(record)
    assert said(honest) == ""
    entries[at], entries[at - 1] = {"kind": "x", "seq": 1, "body": {}}, entries[at - 1]
    assert "good for the release" in verified(record)
    assert keys["approvers"]["dr-lind"] == key.public.hex


def dearer_size(site, patch):
    site.with_table(make_table(360))


def unticked(site, patch):
    rare_levels(patch, "warning")


def not_audited(site, patch):
    patch.setattr(drawing, "_attack", lambda **_: {})


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (dearer_size, "whose size differs by less than 20 % from the last one"),
        (unticked, "no warning may need a tick where nobody looked (rare-levels)"),
        (not_audited, "must have passed the audit"),
    ],
)
def test_a_stranger_rechecks_each_limit_that_the_agent_was_made_to_pass_over(ready, monkeypatch, cause, said):
    add(ready)
    monkeypatch.setattr("site_agent.decide.airlock.standing_approval._limit", lambda *_, **__: "")
    cause(ready, monkeypatch)
    assert ready.json("release", "mini", "--wave", "2")["state"] == "delivered"
    assert said in ready.refused("audit", "verify", expect=30)["given"]


def test_a_record_that_was_edited_is_found(ready, record, tmp_path):
    def larger(entries):
        (body,) = [entry["body"] for entry in entries if entry.get("kind") == "standing"]
        body["envelope"] = body["envelope"].replace("a", "b", 1)

    falsified = tmp_path / "falsified"
    shutil.copytree(record, falsified)
    assert "must follow" in resigned(ready, falsified, rewritten("ledger.json", larger))
