"""What one site and one token may leave at the coordinator, and who is told when it is nearly too much."""

from __future__ import annotations

import datetime as dt
import json
import os
from dataclasses import replace

import pytest
import sqlalchemy as sa
from stage.both_sides.service import SMALL, Hub, anchor_head, small_table

from coordinator import cli
from coordinator.config import AnalysisSettings, CoordinatorConfig, Quotas
from coordinator.services.analysts import Analyst, Analysts
from coordinator.services.quotas import CallRate
from coordinator.store.rows import ResultDraft
from coordinator.store.store import remember
from shared.base.clock import utc_now
from shared.errors import ConfigRefusal, DictionaryRefusal, ParameterError, RateRefusal, StateRefusal, TooLarge
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, StudyPlan, Wave
from shared.wire.site_messages import Offered, OfferRequest, SignedDocument, StudyRequest

DAY = dt.timedelta(days=1)
TODAY = dt.date(2026, 11, 23)


@pytest.fixture
def hub(tmp_path):
    always = dt.date(2000, 1, 1), dt.date(2999, 1, 1)
    study = StudyPlan(
        study="small",
        version=1,
        title="A small study",
        purpose="To fill a disk.",
        coordinator="hub",
        expires=always[1],
        release=LatentNoisePlan(w=0.8),
        budget=Budget(epsilon=1e9),
        waves=tuple(Wave(number=k, opens=always[0], closes=always[1]) for k in range(1, 31)),
        dictionary=SMALL,
        returning="refresh",
    )
    made = Hub.alike(tmp_path / "hub", study, "north", "south")
    yield made
    made.store.close()


def wrong(hub: Hub, wave: int, site: str = "north", n: int = 60):
    """A release whose content breaks the plan: it is refused when it is opened, and set apart."""
    table = small_table(n, seed=wave)
    table.loc[0, "sbp"] = 1e6
    return hub.seal(site, wave=wave, release_id=f"{wave:032x}", table=table)


def refuse(hub: Hub, site: str, *waves: int, n: int = 60) -> list[str]:
    """Deliver wrong releases; their digests."""
    digests = []
    with hub.egress(site, attempts=1) as egress:
        for wave in waves:
            sealed = wrong(hub, wave, site, n)
            with pytest.raises(DictionaryRefusal):
                egress.send(sealed.envelope, sealed.path)
            digests.append(sealed.statement.bundle_sha256)
    return digests


def kept(hub: Hub) -> set[str]:
    return {path.stem for path in (hub.home / "quarantine").glob("*.zip")}


def test_of_refused_bytes_the_oldest_go_and_their_digest_and_reason_stay(hub):
    first = wrong(hub, 1)
    quotas = Quotas(quarantine=first.statement.bundle_bytes * 5 // 2)
    with hub.serve(quotas=quotas):
        digests = refuse(hub, "north", 1, 2)
        other = refuse(hub, "south", 1)
        assert kept(hub) == {*digests, *other}
        digests += refuse(hub, "north", 3)
        assert kept(hub) == {*digests[1:], *other}, "another site's are its own affair"
        assert len(hub.store.quarantined(site="north")) == 3
        with hub.egress("north", attempts=1) as egress, pytest.raises(DictionaryRefusal):
            egress.send(first.envelope, first.path)  # the same bytes get the same answer, and are not taken again
    assert kept(hub) == {*digests[1:], *other}


def test_refused_bytes_and_unfinished_uploads_expire(hub):
    with hub.serve() as server:
        digests = refuse(hub, "north", 1, 2)
        sealed = hub.seal("north", wave=3, release_id="c" * 32)
        with hub.client("north") as client:
            said = client.call("Offer", OfferRequest(envelope=sealed.envelope.to_bytes()), timeout=60)
        assert said == Offered(offset=0)
        old = (utc_now() - 31 * DAY).timestamp()
        for path in (hub.home / "quarantine" / f"{digests[0]}.zip", *(hub.home / "staging").iterdir()):
            os.utime(path, (old, old))
        server.service.tend()
    assert kept(hub) == {digests[1]}
    assert list((hub.home / "staging").iterdir()) == []
    assert len(hub.store.quarantined()) == 2


@pytest.mark.fault("F15")
def test_a_clock_that_is_a_year_ahead_deletes_nothing(hub):
    with hub.serve():
        (digest,) = refuse(hub, "north", 1)
    analysts = Analysts(hub.store)
    name = answered(analysts, 1, today=utc_now().date())
    with hub.serve(now=lambda: utc_now() + 500 * DAY, today=lambda: utc_now().date() + 500 * DAY) as server:
        server.service.tend()
    assert kept(hub) == {digest}
    assert analysts.answer("small", name)


def test_what_is_under_way_of_one_site_is_bounded_in_bytes(hub):
    size = hub.seal("north").statement.bundle_bytes
    with hub.serve(quotas=Quotas(staging=3 * size)) as server:
        for wave in (1, 2, 3, 4):
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:032x}", table=small_table(60, wave))
            with hub.client("north") as client:
                client.call("Offer", OfferRequest(envelope=sealed.envelope.to_bytes()), timeout=60)
            part = hub.home / "staging" / f"north.{sealed.statement.bundle_sha256}.part"
            part.write_bytes(b"0" * (size - 100))
            old = utc_now().timestamp() - 100 + wave
            os.utime(part.with_suffix(".json"), (old, old))
        parts = list((hub.home / "staging").glob("*.part"))
        assert len(parts) in (1, 2)
        assert part in parts
        assert server.service is not None


def test_a_statement_that_is_no_short_document_is_not_read(hub):
    sealed = hub.seal("north")
    long = replace(sealed.envelope.signatures[0], key_id="x" * 70_000)
    padded = replace(sealed.envelope, signatures=(*sealed.envelope.signatures, long))
    with hub.serve(), hub.client("north") as client, pytest.raises(TooLarge, match="65536 bytes"):
        client.call("Offer", OfferRequest(envelope=padded.to_bytes()), timeout=60)


def test_so_many_releases_of_a_site_are_refused_in_a_day_and_no_more(hub):
    with hub.serve(quotas=Quotas(refused_a_day=2)):
        refuse(hub, "north", 1, 2)
        sealed = hub.seal("north", wave=3, release_id="c" * 32)
        with hub.egress("north", attempts=1) as egress, pytest.raises(RateRefusal, match="2 releases refused in a day"):
            egress.send(sealed.envelope, sealed.path)
        refuse(hub, "south", 1)


def test_the_heads_of_a_sites_ledger_are_bounded_in_bytes_and_in_time(hub):
    def witnessed(seq: int, after: int = 0):
        envelope = hub.anchor("north", seq, after=after)
        with hub.client("north") as client:
            return client.call("Anchor", SignedDocument(envelope=envelope.to_bytes()), timeout=60)

    first = len(hub.anchor("north", 8).to_bytes())
    with hub.serve(quotas=Quotas(anchors=first + 2000)):
        assert witnessed(8).seq == 8
        for _ in range(20):
            assert witnessed(8).seq == 8, "what is witnessed already takes nothing"
        with pytest.raises(TooLarge, match="heads of one site's ledger"):
            witnessed(58, after=8)
        assert witnessed(10, after=8).seq == 10
    with hub.serve(quotas=Quotas(anchors=first + 2000)), pytest.raises(TooLarge):
        witnessed(40, after=10)  # what is there counts after a restart too
    assert hub.store.anchor_bytes()["north"] == sum(
        len(hub.anchor("north", seq, after=after).to_bytes()) for seq, after in ((8, 0), (10, 8))
    )
    with hub.serve(quotas=Quotas(anchor_calls=1)):
        witnessed(11, after=10)
        witnessed(12, after=11)
        with pytest.raises(RateRefusal, match="1 heads"):
            witnessed(13, after=12)
    assert anchor_head("north", 12).head == hub.store.anchor("north").head


def test_a_site_that_calls_too_often_waits_and_no_other_does(hub):
    with hub.serve(quotas=Quotas(calls=20)), hub.client("north") as north, hub.client("south") as south:
        for _ in range(10):
            north.call("Status", StudyRequest(study="small"), timeout=60)
        with pytest.raises(RateRefusal, match="20 times a minute"):
            north.call("Status", StudyRequest(study="small"), timeout=60)
        assert south.call("Status", StudyRequest(study="small"), timeout=60).holdings == ()


def test_a_rate_that_is_looked_at_is_not_used_up():
    now = [0.0]
    rate = CallRate(0.5, 1, "once in two seconds", lambda: now[0])
    for _ in range(3):
        rate.require("a")
    rate.take("a")
    with pytest.raises(RateRefusal):
        rate.require("a")
    now[0] = 2.0
    rate.require("a")
    with pytest.raises(ParameterError):
        Quotas(calls=0)


# -- answers ----------------------------------------------------------------------------------------------------
ADA = Analyst(role="analyst", site="ada", serial="a" * 16, studies=("small",))


def answered(analysts: Analysts, number: int, *, who: Analyst = ADA, size: int = 1000, today: dt.date = TODAY) -> str:
    name = f"{number:032x}"
    question = {"estimand": f"mean(x{number})", "term": "x"}
    draft = ResultDraft(study="small", wave=1, kind="analysis", question=question, used={}, numbers={})
    analysts.give(
        who,
        json.dumps({"n": "0" * size}).encode(),
        beside=lambda c: remember(c, draft, today=today),
        study="small",
        subject=name,
        today=today,
        kind="query",
        label="exploratory",
        planned="",
        question=question,
    )
    return name


def test_answers_are_bounded_by_bytes_and_age_and_the_record_of_questions_is_whole(hub):
    analysts = Analysts(hub.store, Quotas(answers=40_000, answer_days=400))
    old = answered(analysts, 0, today=TODAY - 401 * DAY)
    names = [answered(analysts, k) for k in range(1, 13)]
    eve = [answered(analysts, k, who=replace(ADA, site="eve")) for k in range(101, 103)]
    assert analysts.prune(TODAY) == 4  # the old one, and ada's beyond a quarter of all
    assert [analysts.answer("small", name) is None for name in [old, *names]] == [True] * 4 + [False] * 9
    assert all(analysts.answer("small", name) for name in eve)
    assert len(analysts.record("small")) == 15, "what the paper counts is never deleted"
    assert len(hub.store.results("small")) == 11
    assert analysts.stored_bytes()["ada"] <= 10_000
    assert answered(analysts, 1) == names[0]
    assert analysts.answer("small", names[0]), "asked again, it is there again"
    assert analysts.prune(TODAY) == 1
    assert analysts.prune(TODAY) == 0


def test_the_database_of_a_coordinator_that_is_asked_and_asked_stops_growing(hub):
    analysts = Analysts(hub.store, Quotas(answers=400_000))

    def pages() -> int:
        return analysts._read(lambda c: int(c.exec_driver_sql("PRAGMA page_count").scalar()))

    sizes = []
    for round_ in range(4):
        for k in range(30):
            answered(analysts, 100 * round_ + k, size=10_000)
            if k % 10 == 9:
                analysts.prune(TODAY)
        sizes.append(pages() * 4096)
    assert sizes[-1] - sizes[-2] < 30 * 2000, "a line of the record each, and no answer more"


@pytest.mark.fault("F23")
def test_answers_of_an_earlier_version_are_nobodys_and_expire_like_others(hub):
    analysts = Analysts(hub.store, Quotas(answer_days=400))
    name = answered(analysts, 1)
    analysts._write(lambda c: c.execute(sa.text("delete from answers_kept")))
    assert analysts.stored_bytes() == {}
    assert analysts.prune(TODAY) == 0
    assert list(analysts.stored_bytes()) == [""]
    assert analysts.prune(TODAY + 401 * DAY) == 1
    assert analysts.answer("small", name) is None


# -- who is told --------------------------------------------------------------------------------------------------
def test_who_is_near_a_quota_is_named_in_the_log_and_wherever_the_lead_looks(hub, caplog, capsys):
    sealed = wrong(hub, 1, n=60_000)
    with hub.serve() as server:
        refuse(hub, "north", 1, n=60_000)
    most = sealed.statement.bundle_bytes * 10 // 9 >> 20 or 1
    config = CoordinatorConfig(home=hub.home, name="hub", address="127.0.0.1:8443", site_refused_mb=most)
    (hub.home / "coordinator.toml").write_text(config.to_toml())
    os.truncate(hub.home / "quarantine" / f"{sealed.statement.bundle_sha256}.zip", int(0.9 * (most << 20)))
    with hub.serve(quotas=config.quotas) as server:
        server.service.tend()
    assert f"near its quota: north: refused bundles, {0.9 * most:.4g} of {most} MB" in caplog.text

    def said(*words: str) -> str:
        capsys.readouterr()
        assert cli.main(["--home", str(hub.home), *words]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "! quotas north: refused bundles" in said("doctor")
    assert "near its quota: north: refused bundles" in said("sites")


def test_quotas_are_settings_that_are_read_back(tmp_path):
    config = CoordinatorConfig(home=tmp_path, name="hub", address="h:1", max_bundle_mb=2048, site_staging_mb=5)
    assert CoordinatorConfig.from_toml(config.to_toml(), home=tmp_path) == config
    assert config.quotas.staging == 2048 << 20, "one bundle fits always"
    with pytest.raises(ConfigRefusal, match="answer_days"):
        replace(config, answer_days=0)


def test_an_answer_that_was_deleted_says_how_to_have_it_again(hub):
    from coordinator.services.analysis import AnalysisService
    from shared.wire.analyst_messages import ExplainRequest
    from shared.wire.transport import Call

    service = AnalysisService(hub.store, today=lambda: TODAY)
    with pytest.raises(StateRefusal, match="ask again"):
        service.explain(Call(peer=ADA), ExplainRequest(study="small", result_id="ab" * 16))
    service.close()


def test_a_token_asks_so_often_in_a_day_and_no_more(hub):
    from coordinator.services.analysis import AnalysisService
    from shared.errors import Refusal
    from shared.wire.analyst_messages import QueryRequest
    from shared.wire.transport import Call

    service = AnalysisService(hub.store, AnalysisSettings(a_day=2), today=lambda: TODAY)
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            service.query(Call(peer=ADA), QueryRequest(study="small", formula="nonsense ~"))
        assert not isinstance(caught.value, RateRefusal)
    with pytest.raises(RateRefusal, match="2 times a day"):
        service.query(Call(peer=ADA), QueryRequest(study="small", formula="nonsense ~"))
    assert len(Analysts(hub.store).record("small")) == 2, "what is refused for its rate is no look, and no line"
    service.close()
