"""A site that was away for longer than its certificate lives, and what everybody is told before that happens."""

from __future__ import annotations

import datetime as dt
import json
import shutil

import pytest
from stage.both_sides.membership import Clock, Membership, study_plan

from coordinator import cli as coordinator_cli
from coordinator.config import CoordinatorConfig
from coordinator.services.authority import Authority, rotate
from coordinator.services.health import authority_line, plan_lines
from coordinator.store.site_certificates import outlook
from shared.base.clock import utc_now
from shared.errors import CertificateRefusal, IntegrityRefusal, SignatureRefusal, StateRefusal
from shared.plans.plan import Wave
from shared.terminal import run
from shared.wire.certificates import BOTH_GOOD_DAYS, RENEW_DAYS, SITE_DAYS, CertificateLife
from shared.wire.signed_messages import AnchorHead
from site_agent import cli, identity
from site_agent.decide.joining import renewal


@pytest.fixture
def clock(tmp_path, monkeypatch):
    return Clock(tmp_path, monkeypatch)


@pytest.fixture
def member(tmp_path, clock):
    made = Membership(tmp_path, clock, "north", "south")
    home = made.hub.home
    config = CoordinatorConfig(home=home, name="hub", address="127.0.0.1:8443", names=("127.0.0.1",))
    (home / "coordinator.toml").write_text(config.to_toml())
    yield made
    made.close()


@pytest.fixture
def lead(member, capsys):
    def command(*words: object) -> tuple[int, dict]:
        capsys.readouterr()
        code = coordinator_cli.main(["--home", str(member.hub.home), *map(str, words), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return command


@pytest.fixture
def site(member, capsys):
    def command(*words: object, name: str = "north") -> tuple[int, dict]:
        capsys.readouterr()
        argv = [*map(str, words), "--json", "--home", str(member.homes[name])]
        code = run(cli.app, name="site-agent", argv=argv)
        return code, json.loads(capsys.readouterr().out)

    return command


def keep_believed(lead) -> None:
    """Nobody has called for a year: a person compares the clock, as doctor asks."""
    assert lead("clock", "confirm", "--utc", f"{utc_now():%Y-%m-%d %H:%M}")[0] == 0


def test_a_site_that_was_away_too_long_is_renewed_by_hand_and_keeps_ledger_and_keys(member, clock, lead, site):
    config, away = member.desk().config, member.folder
    kept = {path: path.read_bytes() for path in (config.ledger, config.release_key, config.snapshot_key)}
    clock.turn(SITE_DAYS + 30)
    code, refused = site("renew")
    assert (code, refused["refused"]["code"]) == (21, "E_CERT")
    assert "renew --late" in refused["refused"]["next_step"]
    assert site("status")[1]["next"] == ["site-agent renew --late --out FILE"]
    assert site("renew", "--late")[0] == 2
    assert site("renew", "--late", "--out", away / "request", "--dry-run")[1]["written"] is False
    code, asked = site("renew", "--late", "--out", away / "request")
    assert code == 0
    words = ["renew-late", "north", "--request", away / "request", "--out", away / "answer", "--fingerprint"]
    code, refused = lead(*words, asked["fingerprint"])
    assert (code, refused["refused"]["code"]) == (21, "E_CERT"), "the clock: nobody has called for a year"
    keep_believed(lead)
    code, refused = lead(*words, "0000 " * 8)
    assert (code, refused["refused"]["code"]) == (30, "E_SIGNATURE")
    assert lead("renew-late", "south", *words[2:], asked["fingerprint"])[0] == 2
    assert lead(*words, asked["fingerprint"], "--dry-run")[1]["renewed"] is False
    assert not (away / "answer").exists()
    assert lead(*words, asked["fingerprint"])[1]["renewed"] is True
    assert site("renew", "--late", "--answer", away / "answer", "--dry-run")[1]["renewed"] is False
    code, done = site("renew", "--late", "--answer", away / "answer")
    assert (code, done["renewed"]) == (0, True)
    assert member.connects()
    assert {path: path.read_bytes() for path in kept} == kept
    assert site("status")[1]["certificate"]["state"] == "good"
    assert lead("sites")[1][0]["certificate_warning"] == ""


def test_a_site_that_was_away_over_a_change_of_authority_follows_it_by_hand(member, clock, lead, site):
    rotate(Authority.load(member.hub.home))
    clock.turn(SITE_DAYS + 30)
    keep_believed(lead)
    _, asked = site("renew", "--late", "--out", member.folder / "request")
    paths = ["--request", member.folder / "request", "--out", member.folder / "answer"]
    assert lead("renew-late", "north", *paths, "--fingerprint", asked["fingerprint"])[0] == 0
    assert site("renew", "--late", "--answer", member.folder / "answer")[0] == 0
    assert len(identity.pinned(member.desk().config)) == 2
    assert renewal.due(member.desk().config) == ""
    assert member.connects()


def test_a_folder_that_was_put_back_from_before_its_last_renewal_comes_back_by_hand(member, clock, lead, site):
    old = member.folder / "old"
    shutil.copytree(member.homes["north"], old)
    clock.turn(SITE_DAYS - RENEW_DAYS + 1)
    member.round()
    clock.turn(BOTH_GOOD_DAYS + 1)
    newer = member.homes["north"]
    member.homes["north"] = old
    with pytest.raises(CertificateRefusal, match="a newer one has followed"):
        member.connects()
    assert "renew --late" in member.round()["certificate not renewed"]
    _, asked = site("renew", "--late", "--out", member.folder / "request")
    paths = ["--request", member.folder / "request", "--out", member.folder / "answer"]
    code, _ = lead("renew-late", "north", *paths, "--fingerprint", asked["fingerprint"])
    assert code == 0
    assert site("renew", "--late", "--answer", member.folder / "answer")[0] == 0
    assert member.connects()
    # The folder that it was copied from is the old one now: it renews nothing, and has a week.
    member.homes["north"] = newer
    clock.turn(SITE_DAYS - RENEW_DAYS + 1)
    assert "a newer one has followed" in member.round()["certificate not renewed"]


def late(member, clock, **settings) -> tuple[bytes, object]:
    """A late request, opened by the lead."""
    clock.turn(SITE_DAYS + 30)
    data, _ = renewal.ask_late(member.desk(), **settings)
    return data, member.server.service.certificates.late_request(data)


def answered(member, opened):
    service = member.server.service
    authority = service._authority
    return service.certificates.answer_late(
        opened,
        opened.fingerprint,
        issue=lambda csr_pem, name, serial: authority.issue(csr_pem, name, serial=serial),
        statements=authority.statements,
        believed=[*authority.before, authority.ca_pem],
        witness=authority.witness,
        today=utc_now().date(),
    )


def test_an_answer_is_taken_for_the_request_it_answers_and_under_the_pinned_key_only(member, clock):
    data, opened = late(member, clock)
    answer = answered(member, opened)
    assert answered(member, opened) == answer, "asked again, the same"
    assert renewal.ask_late(member.desk())[0] == data, "asked again, the same"
    with pytest.raises(StateRefusal, match="asked for"):
        renewal.take_late(member.desk("south"), answer.to_bytes())
    renewal.ask_late(member.desk("south"))
    with pytest.raises(IntegrityRefusal, match="own request"):
        renewal.take_late(member.desk("south"), answer.to_bytes())
    forged = type(answer).sign(answer.payload_type, answer.payload, [member.desk().release_key]).to_bytes()
    with pytest.raises(SignatureRefusal):
        renewal.take_late(member.desk(), forged)
    renewal.take_late(member.desk(), answer.to_bytes())
    assert member.connects()
    with pytest.raises(StateRefusal):
        renewal.take_late(member.desk(), answer.to_bytes())


def test_a_late_request_of_another_key_or_of_a_site_that_was_revoked_is_refused(member, clock):
    data, opened = late(member, clock)
    south = opened.request.signed(member.desk("south").release_key, late=True).to_bytes()
    channel = opened.request.signed(member.desk().release_key).to_bytes()  # one for the channel is none for the hand
    for other in (south, channel):
        with pytest.raises(SignatureRefusal):
            member.server.service.certificates.late_request(other)
    member.hub.store.revoke_site("north")
    with pytest.raises(StateRefusal, match="invite"):
        member.server.service.certificates.late_request(data)
    with pytest.raises(CertificateRefusal, match="revoked"):
        answered(member, opened)


def test_a_late_request_of_a_ledger_that_was_put_back_says_so(member, clock):
    data, opened = late(member, clock)
    assert not opened.behind
    request = opened.request
    newer = member.hub.anchor("north", request.seq + 3)
    member.hub.store.add_anchor(AnchorHead.from_bytes(newer.payload), newer)
    assert member.server.service.certificates.late_request(data).behind


@pytest.mark.parametrize("place", ["before_keep", "after_keep", "before_certificate", "before_key", "before_forget"])
def test_a_site_killed_while_it_takes_a_late_answer_takes_it_again(member, clock, monkeypatch, place):
    class Killed(BaseException):
        pass

    def reach(name):
        if name == f"renewal.{place}":
            raise Killed

    _, opened = late(member, clock)
    answer = answered(member, opened).to_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("site_agent.identity.reach", reach)
        with pytest.raises(Killed):
            renewal.take_late(member.desk(), answer)
    if place == "before_forget":
        assert member.connects()
    renewal.take_late(member.desk(), answer)
    assert member.connects()
    assert renewal.due(member.desk().config) == ""


def test_warnings_come_at_90_30_7_and_1_days_on_both_sides_and_not_before(member, clock, lead, site):
    """Nobody renews here: the agent does not run."""
    config, sites = member.desk().config, member.hub.store.sites()

    def warned(left: int) -> tuple[int | None, bool, bool]:
        clock.turn(SITE_DAYS - left - clock.days)
        now = utc_now()
        life = identity.certificate_life(config, now)
        return life.warned, bool(identity.ending(config, now)), bool(outlook(sites, now)[0].warning)

    def shown() -> tuple[str, str, bool, bool]:
        """What status, doctor, `sites` and `wave status` say."""
        doctor = next(one for one in site("doctor")[1]["checks"] if one["name"] == "certificate")
        row, waves = lead("sites")[1][0], lead("wave", "status", "small")[1]
        state = site("status")[1]["certificate"]["state"]
        return state, doctor["state"], bool(row["certificate_warning"]), bool(waves["certificates"])

    quiet, loud = (None, False, False), (True, True)
    assert warned(RENEW_DAYS - 5) == quiet
    assert shown() == ("due", "ok", False, False)
    assert [warned(left) for left in (92, 90, 32, 30, 9, 7, 3, 1)] == [
        quiet,
        *((days, *loud) for days in (90, 90, 30, 30, 7, 7, 1)),
    ]
    assert shown() == ("near", "warn", True, True)
    clock.turn(3)
    code, found = site("doctor")
    assert code == 21
    assert "renew --late" in next(one for one in found["checks"] if one["name"] == "certificate")["fix"]
    assert "ended on" in lead("sites")[1][0]["certificate_warning"]


def test_a_life_is_told_in_words():
    now = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)

    def words(days: float) -> str:
        return CertificateLife(ends=now + dt.timedelta(days=days), days=int(days // 1)).words

    assert words(300) == "300 days left; the next one is asked for from 2027-04-13"
    assert words(100) == "100 days left; the next one is due since 2026-09-25"
    assert words(1) == "1 day left: it ends on 2027-01-02, and should have been renewed since 2026-06-18"
    assert words(-3) == "ended on 2026-12-29"


def test_a_plan_is_red_where_it_outlives_what_does_not_renew_by_itself(member, clock, lead):
    now, authority = utc_now(), Authority.load(member.hub.home)
    sites = member.hub.store.sites()

    def lines(years: float, at: dt.datetime = now) -> list[tuple[str, str]]:
        closes = now.date() + dt.timedelta(days=int(365 * years))
        plan = study_plan(waves=(Wave(number=1, opens=now.date(), closes=closes),))
        return [(one.name, one.state) for one in plan_lines(plan, sites, authority, at)]

    assert lines(3) == [("certificates", "ok")], "longer than a certificate, and it renews by itself"
    assert lines(11) == [("certificates", "ok"), ("authority", "ok")], "the authority can follow for years yet"
    stuck = now + dt.timedelta(days=SITE_DAYS - 60)
    assert lines(3, stuck) == [("certificates", "fail")] * 2, "no agent has renewed for months"
    assert lines(0.5, stuck) == [], "before that it is over"
    end = authority.ends - dt.timedelta(days=500)
    assert ("authority", "fail") in lines(11, end)
    assert authority_line(authority, end).state == "warn"
    assert authority_line(authority, authority.ends - dt.timedelta(days=100)).state == "fail"
    assert [one.warning for one in outlook(sites, now)] == ["", ""]


def test_plan_check_and_doctor_say_what_renews_when(member, clock, lead, tmp_path):
    from coordinator.planning.template import template

    path = tmp_path / "plan.toml"
    path.write_text(template("small", coordinator="hub", today=utc_now().date()))
    found = [one for one in lead("plan", "check", path)[1]["checks"] if one["name"] == "certificates"]
    assert [one["state"] for one in found] == ["ok"]
    assert "renew by themselves" in found[0]["detail"]
    checks = lead("doctor")[1]["checks"]
    assert not [one for one in checks if one["name"] == "certificates" and one["state"] != "ok"]
