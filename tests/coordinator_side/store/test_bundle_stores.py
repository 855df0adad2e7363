"""Where bundles are kept: a folder and an object store, held to the same contract, and a coordinator on the second."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pandas as pd
import pytest
from stage.both_sides.service import LEAD, Hub, small_table
from stage.coordinator_side.collect import Servers, failpoints, plan
from stage.coordinator_side.delivered import TODAY, cohort, cohort_plan, join, take_back
from stage.coordinator_side.delivered import deliver as put_release
from stage.coordinator_side.several_servers import SITES, Processes, delivered, require_stored
from stage.plans.retention import AFTER, ENDS
from stage.processes.object_store import object_server, place

from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.cli import main
from coordinator.config import FILE_NAME, CoordinatorConfig
from coordinator.operations.migration import copied, put_elsewhere
from coordinator.services import backup
from coordinator.services.authority import Authority
from coordinator.services.collect import ingest
from coordinator.services.quotas import delete_due
from coordinator.store.bundles import bundle_store
from coordinator.store.bundles import objects as objects_module
from coordinator.store.bundles.objects import BundleObjects, ObjectPlace
from coordinator.store.store import Store
from shared.errors import ConfigRefusal, IntegrityRefusal, Refusal, StateRefusal, StorageRefusal
from shared.plans.plan import sign_plan
from tests.stage.house.sources import ROOT

__all__ = ["object_server", "place", "plan"]  # the fixtures
DATA = b"a bundle", b"another one"
DIGESTS = [hashlib.sha256(data).hexdigest() for data in DATA]


@pytest.fixture(params=["folder", "objects"])
def kept(request, tmp_path):
    (tmp_path / "bundles").mkdir()
    return bundle_store("" if request.param == "folder" else request.getfixturevalue("place"), tmp_path)


def written(folder: Path, data: bytes) -> Path:
    (path := folder / "part").write_bytes(data)
    return path


def test_what_is_put_is_read_named_and_deleted_by_its_digest(kept, tmp_path):
    assert kept.names() == set()
    assert not kept.holds(DIGESTS[0])
    assert kept.state(DIGESTS[0]) is None
    with pytest.raises(FileNotFoundError), kept.read(DIGESTS[0]):
        pass
    for digest, data in zip(DIGESTS, DATA, strict=True):
        for _ in range(2):  # a second time is no other bundle
            kept.put(digest, written(tmp_path, data))
        with kept.read(digest) as path:
            assert path.read_bytes() == data
    assert kept.names() == set(DIGESTS)
    assert kept.holds(DIGESTS[0])
    assert kept.delete(DIGESTS[0])
    assert not kept.delete(DIGESTS[0])
    assert kept.names() == {DIGESTS[1]}
    assert kept.try_out()[1] == ""
    assert kept.names() == {DIGESTS[1]}, "what was tried is gone"


def test_other_bytes_under_a_name_are_another_state(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(objects_module, "FRESH", 0.0)
    kept.put(DIGESTS[0], written(tmp_path, DATA[0]))
    before = kept.state(DIGESTS[0])
    assert kept.state(DIGESTS[0]) == before
    kept.put(DIGESTS[0], written(tmp_path, DATA[0][::-1]))
    assert kept.state(DIGESTS[0]) != before
    kept.delete(DIGESTS[0])
    assert kept.state(DIGESTS[0]) is None


@pytest.mark.parametrize("gone", [False, True])
def test_what_is_taken_back_lies_where_it_came_from(kept, tmp_path, gone):
    part = written(tmp_path, DATA[0])
    kept.put(DIGESTS[0], part)
    if gone:
        part.unlink(missing_ok=True)
    kept.take_back(DIGESTS[0], part)
    assert (part.read_bytes(), kept.names()) == (DATA[0], set())
    part.unlink()
    kept.take_back(DIGESTS[0], part)
    assert not part.exists()


@pytest.mark.parametrize(
    "text",
    ["s3://", "s3://SECRET/x", "s3://a:secret@hub/x", "https://secret/x", "s3://hub/x?key=secret", "s3://hub/x#secret"],
)
def test_a_place_of_another_form_is_refused_and_never_shown(text):
    with pytest.raises(ConfigRefusal) as caught:
        ObjectPlace.of(text)
    assert "secret" not in str(caught.value).lower().replace("it may hold a secret", "")


def test_an_endpoint_in_the_clear_is_for_this_machine_alone():
    ObjectPlace.of("s3://hub/x?endpoint=http://127.0.0.1:9000")
    with pytest.raises(ConfigRefusal, match="TLS"):
        ObjectPlace.of("s3://hub/x?endpoint=http://objects.example.org")


@contextmanager
def away(server):
    """It answers nobody, and is not waited for as long as it would be otherwise."""
    with pytest.MonkeyPatch.context() as patch, server.away():
        patch.setattr(objects_module, "ANSWER", 1)
        patch.setattr(objects_module, "PACE", 1 << 30)
        yield


# -- deliveries -----------------------------------------------------------------------------------------------------
@pytest.mark.fault("F2")
def test_a_server_killed_around_the_moment_of_storing_ends_with_one_acceptance(tmp_path, plan, place, tally):
    places = [
        name for name in failpoints() if "move" in name or "commit" in name or name.endswith(("done", "recovery"))
    ]
    places = [name for name in places if "quarantine" not in name]
    hub = Hub(tmp_path / "hub", plan, "north", bundles=place)
    servers, killed = Servers(hub), []
    try:
        for wave, point in enumerate(places, start=1):
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=small_table(seed=wave))
            answers = []

            def deliver(sealed=sealed, answers=answers, attempts=1) -> None:
                door = hub.egress("north", attempts=attempts, sleep=lambda seconds: None)
                with door as egress, contextlib.suppress(Refusal):
                    answers.append(egress.send(sealed.envelope, sealed.path))

            if "recover" in point:
                assert servers.run("ingest.after_move", deliver) == "killed"
            killed += [point] if servers.run(point, deliver) == "killed" else []
            servers.run("none", lambda deliver=deliver: deliver(attempts=3))
            [release] = [release for release in hub.store.releases() if release.wave == wave]
            assert release.acceptance == answers[-1]
    finally:
        servers.close()
    assert killed == places
    assert hub.store.bundles.names() == {release.bundle_sha256 for release in hub.store.releases()}
    assert not any(name.startswith("staging/") for name in hub.contents())
    assert list((hub.home / "bundles").iterdir()) == []
    assert hub.store.verify_log() == len(places)
    tally(cases=len(killed), bundles=len(places), sites=1, lost=0, duplicated=0)
    hub.store.close()


def test_of_two_processes_on_postgresql_one_is_killed_and_what_was_acknowledged_is_stored(
    tmp_path, plan, place, postgres
):
    url = postgres.database(f"objects_{hashlib.sha256(place.encode()).hexdigest()[:16]}")
    hub = Hub(tmp_path / "hub", plan, *SITES, url=url, bundles=place)
    with Processes(hub, 2) as processes:
        (first, _), _ = processes
        ports = [port for _, port in processes]
        heard, refused = delivered(hub, ports, lambda count: os.kill(first, signal.SIGKILL) if count == 3 else None)
    assert "E_NETWORK" in refused, "nobody has noticed that it was killed"
    require_stored(hub, heard)
    hub.store.close()


def test_what_is_stored_is_acknowledged_though_the_object_store_hangs_from_then_on(
    tmp_path, plan, place, object_server, monkeypatch
):
    """In the transaction that logs a release nobody asks the object store: every other writer would wait as well."""
    hub = Hub(tmp_path / "hub", plan, "north", bundles=place)
    sealed, hanging = hub.seal("north"), contextlib.ExitStack()
    hang = lambda point: hanging.enter_context(away(object_server)) if point == "ingest.before_commit" else None  # noqa: E731
    with hub.serve(), hub.egress("north", attempts=1) as egress, hanging:
        monkeypatch.setattr(ingest, "reach", hang)
        acceptance = egress.send(sealed.envelope, sealed.path)
    assert hub.store.releases()[0].acceptance == acceptance
    pd.testing.assert_frame_equal(hub.store.table(hub.store.releases()[0]), small_table())
    hub.store.close()


TURN = """
import sys
from pathlib import Path
from coordinator.config import Quotas
from coordinator.services.collect.staging import Staging
from coordinator.store.store import Store
home, part = map(Path, sys.argv[1:])
staging = Staging(home, Store.open(home), Quotas())
with staging.turn(part):
    print("had the turn")
"""


def test_what_is_stored_and_not_yet_logged_no_other_process_takes_back(tmp_path, plan, place, monkeypatch):
    """Two processes may have the same upload; without its turn the second neither stores nor takes back."""
    hub = Hub(tmp_path / "hub", plan, "north", bundles=place)
    sealed, said = hub.seal("north"), []

    def other(point):
        if point in ("ingest.before_commit", "ingest.done"):
            part = hub.home / "staging" / f"north.{sealed.statement.bundle_sha256}.part"
            argv = [sys.executable, "-c", TURN, f"{hub.home}", f"{part}"]
            ran = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{ROOT}"})
            said.append(ran.stdout or ran.stderr)

    monkeypatch.setattr(ingest, "reach", other)
    with hub.serve(), hub.egress("north", attempts=1, timeout=60.0) as egress:
        egress.send(sealed.envelope, sealed.path)
        other("ingest.done")  # when it is over, the turn is free
    assert ["one upload of a bundle must end before the next" in line for line in said] == [True, True, False]
    assert said[2] == "had the turn\n"
    hub.store.close()


def test_while_a_refused_bundle_is_taken_back_other_processes_write(tmp_path, plan, place, postgres, monkeypatch):
    url = postgres.database(f"taken_{hashlib.sha256(place.encode()).hexdigest()[:16]}")
    hub = Hub(tmp_path / "hub", plan, "north", url=url, bundles=place)
    sealed, written_meanwhile = hub.seal("north"), []

    def take_back(self, digest, path):
        with closing(Store.open(hub.home, url, place)) as other, ThreadPoolExecutor(1) as pool:
            written_meanwhile.append(pool.submit(other.write, lambda c: "written").result(10))
        BundleObjects.delete(self, digest)

    monkeypatch.setattr(BundleObjects, "take_back", take_back)
    with hub.serve(), hub.egress("north", attempts=1) as egress:
        revoke = lambda point: hub.store.revoke_site("north") if point == "ingest.before_commit" else None  # noqa: E731
        monkeypatch.setattr(ingest, "reach", revoke)
        with pytest.raises(Refusal) as caught:
            egress.send(sealed.envelope, sealed.path)
    assert (caught.value.code, written_meanwhile) == ("E_CERT", ["written"])
    assert (hub.store.bundles.names(), list(hub.store.releases())) == (set(), [])
    hub.store.close()


@pytest.mark.parametrize("bundles", ["folder", "objects"])
def test_a_start_deletes_no_bundle_that_another_database_may_have_accepted(tmp_path, plan, bundles, request):
    """A home that was put back, or an empty store by mistake, must not take away what was acknowledged since."""
    place = request.getfixturevalue("place") if bundles == "objects" else ""
    hub = Hub(tmp_path / "hub", plan, "north", bundles=place)
    (tmp_path / "apart").mkdir()
    with hub.serve():
        hub.store.bundles.put(DIGESTS[0], written(tmp_path / "apart", DATA[0]))
    with hub.serve():
        assert hub.store.bundles.names() == {DIGESTS[0]}
    hub.store.close()


def test_while_the_object_store_is_away_a_delivery_waits_sealed_and_is_taken_afterwards(
    tmp_path, plan, place, object_server
):
    hub = Hub(tmp_path / "hub", plan, "north", bundles=place)
    sealed = hub.seal("north")
    with hub.serve(), hub.egress("north", attempts=1, timeout=60.0) as egress:
        with away(object_server), pytest.raises(Refusal) as caught:
            egress.send(sealed.envelope, sealed.path)
        assert caught.value.code == "E_STORAGE"
        assert not hub.store.releases()
        assert not hub.store.quarantined()
        acceptance = egress.send(sealed.envelope, sealed.path)
    assert hub.store.releases()[0].acceptance == acceptance
    hub.store.close()


def every_call(kept, path: Path) -> dict:
    """Each call that asks the store."""
    return {
        "put": lambda: kept.put(DIGESTS[0], path),
        "read": lambda: kept.read(DIGESTS[0]).__enter__(),
        "holds": lambda: kept.holds(DIGESTS[0]),
        "state": lambda: kept.state(DIGESTS[0]),
        "delete": lambda: kept.delete(DIGESTS[0]),
        "take_back": lambda: kept.take_back(DIGESTS[0], path),
        "names": lambda: kept.names(),
        "claim": lambda: kept.claim("me"),
        "try_out": lambda: kept.try_out(),
    }


@pytest.mark.timeout(120)
def test_a_store_that_hangs_holds_no_call_for_ever_however_much_it_sends(tmp_path, place, object_server):
    """Of a large bundle the system takes what its buffers hold, and then waits until the other side reads."""
    kept, large = bundle_store(place, tmp_path), tmp_path / "large"
    kept.put(DIGESTS[0], written(tmp_path, DATA[0]))
    with large.open("wb") as file:
        file.truncate(40 << 20)
    calls = {**every_call(kept, tmp_path / "part"), "put large": lambda: kept.put(DIGESTS[1], large)}
    with away(object_server):
        said = {}
        for name, call in calls.items():
            with pytest.raises(StorageRefusal) as caught:
                call()
            said[name] = caught.value.given
    assert said == dict.fromkeys(calls, "no answer in time")
    kept.put(DIGESTS[1], large)
    assert set(DIGESTS) <= kept.names()


def test_the_page_says_how_long_a_store_that_hangs_holds_a_call():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert f"for {objects_module.ANSWER} seconds at most each call" in page


# -- a place that is not there, not ours, or another coordinator's -----------------------------------------------------
@contextmanager
def denied(server, place):
    """The access keys are known no more."""
    with server.denying():
        yield


@contextmanager
def without_bucket(server, place):
    """Somebody deletes the bucket, and makes it again at the end with what was in it."""
    client, bucket = server.client(), ObjectPlace.of(place).bucket
    keys = [one["Key"] for one in client.list_objects_v2(Bucket=bucket).get("Contents", ())]
    kept = {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
    for key in kept:
        client.delete_object(Bucket=bucket, Key=key)
    client.delete_bucket(Bucket=bucket)
    yield
    client.create_bucket(Bucket=bucket)
    for key, data in kept.items():
        client.put_object(Bucket=bucket, Key=key, Body=data)


SHUT = pytest.mark.parametrize(
    ("shut", "word"), [(denied, "access denied"), (without_bucket, "none of this name")], ids=["denied", "no-bucket"]
)


@SHUT
def test_a_place_that_cannot_be_entered_lacks_no_bundle(tmp_path, place, object_server, shut, word):
    kept, part = bundle_store(place, tmp_path), written(tmp_path, DATA[0])
    kept.put(DIGESTS[0], part)
    calls = every_call(kept, part)
    with shut(object_server, place):
        said = {}
        for name, call in calls.items():
            with pytest.raises(StorageRefusal) as caught:
                call()
            said[name] = caught.value.given
    assert said == dict.fromkeys(calls, word)
    assert kept.holds(DIGESTS[0])


@SHUT
def test_while_a_place_cannot_be_entered_nothing_is_set_apart_forgotten_or_left_out(
    tmp_path, plan, place, object_server, shut, word
):
    hub = Hub(tmp_path / "hub", plan, "north", bundles=place)
    first, second = hub.seal("north"), hub.seal("north", wave=2, release_id="2" * 32, table=small_table(seed=2))
    with hub.serve(), hub.egress("north", attempts=1) as egress:
        egress.send(first.envelope, first.path)
        with shut(object_server, place):
            with pytest.raises(Refusal) as caught:
                egress.send(second.envelope, second.path)
            assert (caught.value.code, word in str(caught.value)) == ("E_STORAGE", True)
            assert (len(hub.store.releases()), hub.store.quarantined()) == (1, ())
            with pytest.raises(StorageRefusal, match=word):
                hub.store.table(hub.store.releases()[0])
        egress.send(second.envelope, second.path)
    assert [len(hub.store.table(release)) for release in hub.store.releases()] == [len(small_table())] * 2
    hub.store.close()


def test_two_coordinators_never_share_a_place(tmp_path, plan, place):
    mine, other = (Hub(tmp_path / name, plan, "north", bundles=place) for name in ("mine", "other"))
    empty = Store.open(tmp_path)
    for _ in range(2):  # a second start is the same coordinator's
        mine.serve().stop()
    with pytest.raises(StateRefusal, match="another one") as caught:
        other.serve()
    assert "owner" in caught.value.next_step
    with pytest.raises(StateRefusal, match="another one"):
        put_elsewhere(empty, place, owner="other", dry_run=True)
    assert mine.store.bundles.names() == set()
    nobody = place.replace("/bundles?", "/empty?")
    put_elsewhere(empty, nobody, owner="other", dry_run=True)
    bundle_store(nobody, tmp_path).claim("me")  # what was only looked at is not marked
    for store in (mine.store, other.store, empty):
        store.close()


# -- questions ------------------------------------------------------------------------------------------------------
@pytest.fixture
def study(tmp_path, place, monkeypatch):
    """A store with three sites of the cohort, their bundles in the object store."""
    monkeypatch.setattr(objects_module, "FRESH", 0.0)
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    store, made = Store.open(tmp_path, bundles=place), cohort_plan()
    store.add_plan(sign_plan(made, [LEAD]), made)
    keys = {}
    for seed, site in enumerate(("alpha", "beta", "gamma")):
        invitation = authority.invite(site, ["cvd"], address="localhost:1", leads=[LEAD.public], days=300)
        store.add_invitation(invitation)
        keys[site] = join(store, invitation)
        put_release(store, made, site, keys[site], cohort(400, seed))
    yield store, keys
    store.close()


def changed(store: Store, server, site: str, data: bytes | None) -> None:
    """Somebody else writes to the bucket."""
    of = ObjectPlace.of(store.bundles.place)
    [release] = [release for release in store.releases() if release.site == site]
    where = {"Bucket": of.bucket, "Key": f"{of.prefix}/{release.bundle_sha256}.zip"}
    if data is None:
        server.client().delete_object(**where)
    else:
        server.client().put_object(**where, Body=data)


def test_an_object_that_is_altered_or_missing_costs_its_site_and_no_other(study, object_server):
    store, _ = study
    assert ask(store, holding(store, "cvd", 1), "adjusted").result.labels == ("alpha", "beta", "gamma")
    changed(store, object_server, "beta", b"damaged" * 100)
    answer = ask(store, holding(store, "cvd", 1), "adjusted")
    assert (answer.result.labels, answer.result.excluded[0].label) == (("alpha", "gamma"), "beta")
    assert "zip" in answer.result.excluded[0].reason
    changed(store, object_server, "beta", None)
    assert "where bundles are kept" in ask(store, holding(store, "cvd", 1), "adjusted").result.excluded[0].reason


def test_while_the_object_store_is_away_a_question_is_refused_and_not_answered_without_sites(study, object_server):
    store, _ = study
    with away(object_server), pytest.raises(StorageRefusal, match="object store"):
        ask(store, holding(store, "cvd", 1), "adjusted")
    assert ask(store, holding(store, "cvd", 1), "adjusted").result.labels == ("alpha", "beta", "gamma")


def test_what_a_site_takes_back_is_no_object_any_more(study):
    store, keys = study
    digest = take_back(store, "beta", keys["beta"])
    assert digest not in store.bundles.names()
    assert ask(store, holding(store, "cvd", 1), "adjusted").result.labels == ("alpha", "gamma")


# -- what looks after them --------------------------------------------------------------------------------------------
@pytest.fixture
def home(tmp_path, place):
    """A coordinator's home with two releases of a study that ends, its bundles in the object store."""
    hub = Hub(tmp_path / "hub", ENDS, "north", bundles=place)
    hub.config = CoordinatorConfig(
        home=hub.home, name=ENDS.coordinator, address="127.0.0.1:8443", names=("127.0.0.1",), bundles=place
    )
    (hub.home / FILE_NAME).write_text(hub.config.to_toml())
    for wave in (1, 2):
        sealed = hub.seal("north", wave=wave, release_id=f"{wave:032d}", table=small_table(seed=wave))
        hub.store.bundles.put(sealed.statement.bundle_sha256, sealed.path)
        said = {"statement": sealed.statement, "envelope": sealed.envelope, "receipt": sealed.receipt}
        hub.store.accept_release(**said, today=TODAY)
    yield hub
    hub.store.close()


def back_up(hub, out):
    return backup.back_up(hub.config, out, leads={"lead": LEAD.public}, software="0", today=TODAY)[0]


@pytest.mark.parametrize("replace", [False, True])
def test_a_backup_brings_its_bundles_back_into_the_object_store(home, tmp_path, replace):
    assert back_up(home, tmp_path / "backup.tar").releases == 2
    tables = [home.store.table(release) for release in home.store.releases()]
    digests = home.store.bundles.names()
    for digest in digests:
        home.store.bundles.delete(digest)
    with pytest.raises(Refusal, match="every accepted bundle"):
        back_up(home, tmp_path / "second.tar")
    home.store.close()
    if not replace:
        shutil.rmtree(home.home)
    backup.restore(
        tmp_path / "backup.tar", home.home, key=LEAD, replace=replace, reason="a fire", day=lambda clocks: TODAY
    )
    with closing(Store.open(home.home, bundles=home.bundles)) as store:
        assert store.bundles.names() == digests
        assert list((home.home / "bundles").glob("*")) == [], "what is in the object store is not in the home as well"
        for table, release in zip(tables, store.releases(), strict=True):
            pd.testing.assert_frame_equal(store.table(release), table)


def test_a_drill_needs_no_object_store(home, tmp_path, object_server, monkeypatch):
    back_up(home, tmp_path / "backup.tar")
    monkeypatch.setattr(objects_module, "CONNECT", 1)
    with object_server.away():
        lines, code = backup.drill(tmp_path / "backup.tar", home.home, key=LEAD)
    assert code == 0, lines


def test_what_is_kept_no_longer_is_no_object_any_more(home):
    assert delete_due(home.store, home.home, AFTER) == ("mini",)
    assert home.store.bundles.names() == set()


def test_a_store_is_copied_with_its_bundles_read_where_they_are(home, tmp_path, object_server):
    assert copied(home.store, f"sqlite:///{tmp_path / 'copy.db'}").bundles == 2
    release = home.store.releases()[0]
    home.store.bundles.put(release.bundle_sha256, written(tmp_path, b"other bytes"))
    with pytest.raises(IntegrityRefusal, match="where bundles are kept"):
        copied(home.store, f"sqlite:///{tmp_path / 'second.db'}")


@pytest.fixture
def said(capsys, monkeypatch):
    """Runs a verb; its answer as JSON."""
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "correct horse battery")

    def work(home, *argv):
        capsys.readouterr()
        main(["--home", f"{home}", *argv, "--json"])
        out = json.loads(capsys.readouterr().out)
        return out.get("refused", out)

    return work


def test_bundles_go_to_a_folder_and_to_another_bucket_and_the_settings_follow(home, said, object_server):
    other, digests = object_server.bucket(), home.store.bundles.names()
    home.store.close()
    assert said(home.home, "store", "bundles", "folder", "--dry-run")["copied"] == 2
    assert CoordinatorConfig.load(home.home).bundles == home.bundles
    for asked, named in (("folder", ""), (other, other)):
        moved = said(home.home, "store", "bundles", asked)
        assert (moved["bundles"], moved["copied"]) == (2, 2)
        assert CoordinatorConfig.load(home.home).bundles == named
        with closing(Store.open(home.home, bundles=named)) as store:
            assert store.bundles.names() == digests
            assert all(len(store.table(release)) for release in store.releases())
    assert said(home.home, "store", "bundles", other)["code"] == "E_PARAMETER"
    assert not list(home.home.glob(".*copied"))


def test_the_doctor_counts_bundles_that_are_lacking_and_names_a_bucket_that_keeps_what_is_deleted(
    home, said, object_server
):
    def line():
        [found] = [one for one in said(home.home, "doctor")["checks"] if one["name"] == "bundles"]
        return found

    assert line()["state"] == "ok"
    bucket = ObjectPlace.of(home.bundles).bucket
    object_server.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert (line()["state"], "versions" in line()["detail"]) == ("warn", True)
    home.store.bundles.delete(home.store.releases()[0].bundle_sha256)
    assert (line()["state"], "1 of 2" in line()["detail"]) == ("fail", True)


def test_init_tries_the_object_store_before_it_makes_a_home(tmp_path, place, said):
    missing = place.replace("/bundles?", "-missing/bundles?")
    refused = said(tmp_path / "none", "init", "--name", "hub", "--address", "localhost:1", "--bundles", missing)
    assert refused["code"] == "E_STORAGE"
    assert not (tmp_path / "none" / FILE_NAME).exists()
    said(tmp_path / "hub", "init", "--name", "hub", "--address", "localhost:1", "--bundles", place)
    assert CoordinatorConfig.load(tmp_path / "hub").bundles == place
