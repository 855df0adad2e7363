"""The log as analysts watch it: no answer without proof, one history, nothing hidden from whoever reads all of it."""

from __future__ import annotations

import copy
import datetime as dt
import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from stage.both_sides.service import Hub, anchor_head
from stage.coordinator_side.analysis import ADJUSTED, OTHER, Desk
from stage.coordinator_side.collect import refused
from stage.coordinator_side.delivered import cohort, cohort_plan, take_back
from stage.hospital_side.recovery import PLAN

from coordinator import cli
from coordinator.analyst import commands
from coordinator.analyst.access.log_check import FollowedLog
from coordinator.analyst.commands import connect
from coordinator.services.membership import Members
from coordinator.store.log_watch import LogWatch
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.errors import IntegrityRefusal, RoleRefusal, SignatureRefusal, StateRefusal
from shared.wire.analyst_messages import EntriesRequest, StudiesRequest
from shared.wire.site_messages import WatchRequest
from shared.wire.tree_heads import TreeHead, check_view, open_head
from site_agent.egress import AcknowledgedReplies, new_tls_identity

TODAY = dt.date(2026, 5, 1)


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path / "hub")
    made.publish(cohort_plan())
    for seed, site in enumerate(("alpha", "beta", "gamma")):
        made.add("cvd", site, cohort(300, seed))
    made.start()
    yield made
    made.stop()


def token(desk, name="ada", role="analyst"):
    path = desk.home / f"{name}.token.json"
    replace(desk.admit(name, role=role), witness=desk.authority.witness.public.hex).save(path)
    return path


def revoke(desk, site):
    """End the access of a site that has its certificate."""
    csr = new_tls_identity(site)[1]
    desk.store.set_certificate(site, "", desk.authority.issue(csr, site))
    desk.store.revoke_site(site)


def hack(home, *statements):
    with closing(sqlite3.connect(home / "store.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_every_release_that_an_answer_rests_on_is_proven_to_stand_in_the_signed_log(desk):
    with connect(token(desk)) as connection:
        study = connection["cvd"]
        answer = study.cox(ADJUSTED, term="sbp")
        provenance = answer.document["provenance"]
        log = provenance["log"]
        head = open_head(log["head"].encode(), desk.authority.witness.public)
        assert (head.size, head.root) == (desk.store.entries(), desk.store.log()[-1].root)
        assert set(log["entries"]) == set(provenance["rests_on"])
        for entry in log["entries"].values():
            assert json.loads(entry["entry"])["kind"] == "release"
        assert connection["cvd"].result(answer.id).document == answer.document
        require = connection.followed.require_proven

        def another(said):
            """The proof of one release under the name of another, as if both were of its site."""
            said["provenance"]["log"]["entries"][first] = log["entries"][second]
            said["provenance"]["rests_on"][first] = provenance["rests_on"][second]

        other = TreeHead(coordinator="hub", size=head.size, root="ab" * 32, day=head.day)
        first, second = sorted(log["entries"])[:2]
        for change, kind in (
            (lambda said: said["provenance"].pop("log"), IntegrityRefusal),
            (lambda said: said["provenance"]["log"]["entries"].pop(first), IntegrityRefusal),
            (lambda said: said["provenance"]["log"]["nodes"].__setitem__(0, "cd" * 32), IntegrityRefusal),
            (lambda said: said["provenance"]["log"]["entries"][first]["proof"].append(99), IntegrityRefusal),
            (
                lambda said: said["provenance"]["log"]["entries"].update({first: log["entries"][second]}),
                IntegrityRefusal,
            ),
            (another, IntegrityRefusal),
            (lambda said: said["provenance"]["rests_on"].update({first: "delta"}), IntegrityRefusal),
            (lambda said: said["provenance"]["rests_on"].update({"ef" * 32: "delta"}), IntegrityRefusal),
            (
                lambda said: said["provenance"]["log"].update(
                    head=other.sign(SigningKey.generate()).to_bytes().decode()
                ),
                SignatureRefusal,
            ),
            (
                lambda said: said["provenance"]["log"].update(
                    head=other.sign(desk.authority.witness).to_bytes().decode()
                ),
                IntegrityRefusal,
            ),
        ):
            said = copy.deepcopy(answer.document)
            change(said)
            refused(kind, lambda said=said: require(said["provenance"]))
        require(provenance)
    # A token of an earlier version has no key to check by, and is answered as before.
    with connect(replace(desk.admit("old"), witness="")) as connection:
        assert connection["cvd"].cox(ADJUSTED, term="sbp").document == answer.document
        refused(StateRefusal, connection.require_followed)


@pytest.mark.fault("F19", log_lies=2)
def test_a_hidden_release_or_withdrawal_is_found_by_whoever_reads_the_whole_log(desk, capsys):
    lead = token(desk, "eve", role="lead")
    take_back(desk.store, "gamma", desk.keys["gamma"])
    desk.running.service.start()  # signs the log as it is now
    with connect(lead) as connection:
        found = connection.audit_log()
        assert (found.releases, found.hidden, found.undone) == (3, (), ())
        hidden = desk.store.releases("cvd", site="beta")[0]
        hack(
            desk.home, "PRAGMA foreign_keys=OFF", "DELETE FROM releases WHERE site = 'beta'", "DELETE FROM withdrawals"
        )
        found = connection.audit_log()
        assert found.hidden == ((hidden.log_index, "beta"),)
        assert [site for _, site in found.undone] == ["gamma"]
    refused(IntegrityRefusal, desk.store.verify_log)
    assert commands.main(["log-check", "--all", "--token", str(lead)]) == 30
    said = capsys.readouterr().out
    assert "a release of beta that no study of this token shows" in said
    with connect(token(desk)) as connection:
        refused(RoleRefusal, lambda: connection.ask("Entries", EntriesRequest()))
        refused(RoleRefusal, lambda: connection._client.call("Watch", WatchRequest(entries=(0,)), timeout=60))


@pytest.mark.fault("F19", log_lies=1)
def test_a_hidden_word_that_releases_are_not_believed_is_found_by_whoever_reads_the_whole_log(desk):
    lead, day = token(desk, "eve", role="lead"), dt.date(2000, 1, 1)
    assert len(Members(desk.store, "tributary-hub").distrust("beta", day, TODAY)) == 1
    entry = desk.store.entries() - 1
    desk.running.service.start()  # signs the log as it is now
    with connect(lead) as connection:
        assert connection.audit_log().undone == ()
        hack(desk.home, "DELETE FROM distrusted")
        assert connection.audit_log().undone == ((entry, "beta"),)
    refused(IntegrityRefusal, desk.store.verify_log)


@pytest.mark.fault("F19", log_lies=2)
def test_a_hidden_revocation_or_closing_of_a_wave_is_found_by_whoever_reads_the_whole_log(desk, capsys):
    lead, analyst = token(desk, "eve", role="lead"), token(desk)
    first = desk.store.entries()
    desk.store.close_wave("cvd", 1, expected=("alpha", "beta", "gamma"), today=TODAY)
    desk.store.reopen_wave("cvd", 1, reason="one is late", today=TODAY)
    revoke(desk, "beta")
    desk.running.service.start()  # signs the log as it is now
    with connect(lead) as connection, connect(analyst) as other:
        assert connection.audit_log().ended == ()
        told = other.ask("Studies", StudiesRequest())
        assert told["revocations"] == [{"site": "beta", "log_index": first + 2}]
        assert [(one["wave"], one["closed"], one["log_index"]) for one in told["closings"]] == [
            (1, True, first),
            (1, False, first + 1),
        ]
        for table, hidden in (
            ("revoked", ((first + 2, "the revocation of beta"),)),
            ("wave_events", ((first, "the closing of wave 1 of cvd"), (first + 1, "the reopening of wave 1 of cvd"))),
        ):
            kept = desk.home / f"{table}.db"
            hack(desk.home, f"VACUUM INTO '{kept}'")
            hack(desk.home, f"DELETE FROM {table}")
            assert connection.audit_log().ended == hidden
            assert commands.main(["log-check", "--all", "--token", str(lead)]) == 30
            said = capsys.readouterr().out
            assert all(f"entry {at}: {what} is not shown" in said for at, what in hidden)
            refused(IntegrityRefusal, desk.store.verify_log)
            hack(desk.home, f"ATTACH '{kept}' AS kept", f"INSERT INTO {table} SELECT * FROM kept.{table}")
        # One that is shown at a place where the log has another entry is none of the log's.
        hack(desk.home, f"UPDATE revoked SET log_index = {first}")
        assert connection.audit_log().ended == ((first + 2, "the revocation of beta"),)


def test_an_analyst_is_shown_no_revocations_and_closings_of_other_studies(desk):
    desk.publish(cohort_plan(**OTHER))
    desk.add("lungs", "north", cohort(200, 7))
    desk.store.close_wave("lungs", 1, expected=(), today=TODAY)
    revoke(desk, "lungs-north")
    with connect(token(desk)) as connection:
        told = connection.ask("Studies", StudiesRequest())
    assert (told["revocations"], told["closings"]) == ([], [])


@pytest.mark.fault("F19", log_lies=1)
def test_what_one_session_saw_of_the_log_the_next_one_holds_the_coordinator_to(tmp_path):
    key = SigningKey.generate()

    def coordinator(name, *seqs):
        """A coordinator whose log holds these anchors of a site, and that signs by the same key."""
        hub = Hub(tmp_path / name, PLAN, "north")
        for seq in seqs:
            hub.store.add_anchor(*_anchor(hub, seq, name if seq > 2 else ""))
        return LogWatch(hub.store, coordinator="hub", key=key)

    def _anchor(hub, seq, branch):
        head = anchor_head("north", seq, branch=branch, since=2)
        return head, hub.anchor("north", seq, branch=branch, since=2)

    first = coordinator("first", 1, 2, 3, 4)
    memory = tmp_path / "ada.log.json"

    def session(watch, file=memory):
        return FollowedLog(key.public, lambda request: watch.view(request, TODAY), file)

    assert session(first).follow().head.size == 4
    assert session(first).follow().grew == (True,)
    # The coordinator is put back to two entries and goes on otherwise.
    second = coordinator("second", 1, 2, 5)
    refused(IntegrityRefusal, session(second).follow)
    assert json.loads(memory.with_suffix(".fork.json").read_text())["seen"] == [[4, _root(first)]]
    # Who saw nothing of it yet is told by a head that somebody else was shown.
    stranger = session(second, tmp_path / "bob.log.json")
    stranger.follow()
    shown = first.head(TODAY)[1]
    refused(IntegrityRefusal, lambda: stranger.require_one_log_with(shown))
    # It says so: what was seen beyond two entries is excused, once, and recorded.
    second.restore({"archive": "", "reason": "the disk failed", "size": 2}, TODAY)
    assert session(second).follow().head.size == 4
    # A head from before tells nothing any more, and accuses nobody.
    said = refused(IntegrityRefusal, lambda: session(second).require_one_log_with(shown))
    assert "put back to 2" in str(said)
    kept = json.loads(memory.read_text())
    assert len(kept["restored"]) == 1
    assert session(second).follow().grew == (True,)
    third = coordinator("third", 1, 2, 6, 7)
    third._store.note_restoration(json.loads(kept["restored"][0]))
    refused(IntegrityRefusal, session(third).follow)


def test_an_answer_names_the_sites_that_a_restored_coordinator_has_not_heard_of(desk, capsys):
    """What such a site withdrew after the backup is in it until the site says so again, also in an answer kept."""
    watch = LogWatch(desk.store, coordinator="tributary-hub", key=desk.authority.witness)

    def told(connection):
        return [one for one in connection["cvd"].cox(ADJUSTED, term="sbp").document["cautions"] if "put back" in one]

    with connect(token(desk)) as connection:
        assert told(connection) == []
        watch.note_gap("alpha", "cvd", (), TODAY)
        watch.restore({"archive": "", "reason": "the disk failed"}, TODAY)
        watch.note_gap("beta", "cvd", (), TODAY)
        [said] = told(connection)
        assert "alpha, gamma have not compared" in said, "whoever compared before it has not since"
        argv = [
            "--home",
            str(desk.home),
            "pool",
            "cvd",
            "--formula",
            "cox(time, cvd) ~ sbp/10 + age/10",
            "--term",
            "sbp",
            "--json",
        ]
        assert cli.main(argv) == 0
        assert said in json.loads(capsys.readouterr().out)["cautions"]
        for site in ("alpha", "gamma"):
            watch.note_gap(site, "cvd", (), TODAY)
        assert told(connection) == [], "nothing of it is kept"


@pytest.mark.fault("F15", "F19", log_lies=1)
def test_a_restoration_that_is_dated_ahead_or_on_no_day_excuses_no_head(tmp_path):
    """Every head to come would be of before it, and a fork never told from it."""
    key, hub = SigningKey.generate(), Hub(tmp_path / "hub", PLAN, "north")
    hub.store.add_anchor(anchor_head("north", 1), hub.anchor("north", 1))
    watch = LogWatch(hub.store, coordinator="hub", key=key)
    size = watch.restore({"archive": "", "reason": "the disk failed"}, TODAY)
    request = WatchRequest(sizes=())
    assert check_view(watch.view(request, TODAY), key.public, []).head.size == size + 1
    said = refused(
        IntegrityRefusal, lambda: check_view(watch.view(request, TODAY - dt.timedelta(days=1)), key.public, [])
    )
    assert TODAY.isoformat() in str(said)
    word = json.loads(hub.store.log()[size].entry)
    for day in ("9999-12-31", "zzz", "20260101"):
        other = Hub(tmp_path / day, PLAN, "north")
        other.store.add_anchor(anchor_head("north", 1), other.anchor("north", 1))
        other.store.note_restoration({**word, "root": other.store.root(1), "day": day})
        dated = LogWatch(other.store, coordinator="hub", key=key)
        refused(IntegrityRefusal, lambda dated=dated: check_view(dated.view(request, TODAY), key.public, []))
        other.store.close()
    hub.store.close()


def test_a_site_keeps_a_head_that_may_be_of_before_a_restoration(tmp_path):
    key, hub = SigningKey.generate(), Hub(tmp_path / "hub", PLAN, "north")
    hub.store.add_anchor(anchor_head("north", 1), hub.anchor("north", 1))
    watch = LogWatch(hub.store, coordinator="hub", key=key)
    watch.restore({"archive": "", "reason": "the disk failed"}, TODAY)
    shown = TreeHead(coordinator="hub", size=9, root="ab" * 32, day=TODAY.isoformat()).sign(key).to_bytes()
    site = AcknowledgedReplies(key.public, "north", tmp_path / "acknowledged.jsonl")

    def look(sizes):
        return watch.view(WatchRequest(sizes=tuple(sizes)), TODAY)

    site.watch(look)
    seen = site.heads()
    for _ in range(2):
        refused(IntegrityRefusal, lambda: site.one_log_with(shown, look))
    assert [one["head"] for one in site.replies() if one["kind"] == "Before"] == [shown.decode()], "once"
    assert (site.heads(), [one for one in site.replies() if one["kind"] == "Fork"]) == (seen, [])
    hub.store.close()


def test_a_word_excuses_nothing_that_was_seen_before_the_size_it_names(tmp_path):
    """The log is said to go on from two entries, and these two are others than were seen."""
    key = SigningKey.generate()
    watches = []
    for name, branch in (("first", ""), ("second", "other")):
        hub = Hub(tmp_path / name, PLAN, "north")
        for seq in (1, 2, 3):
            hub.store.add_anchor(anchor_head("north", seq, branch=branch), hub.anchor("north", seq, branch=branch))
        watches.append(LogWatch(hub.store, coordinator="hub", key=key))
    first, second = watches
    shown = [first]
    followed = FollowedLog(key.public, lambda request: shown[0].view(request, TODAY), tmp_path / "ada.log.json")
    followed.follow()
    second.restore({"archive": "", "reason": "a fire", "size": 3}, TODAY)
    shown[0] = second
    refused(IntegrityRefusal, followed.follow)


def _root(watch):
    return open_head(watch.head(TODAY)[1], watch._key.public).root


def test_a_release_is_seen_by_nobody_before_a_signed_head_holds_it(tmp_path):
    """The process that answers analysts has no key: the head it shows was written with the release."""
    hub = Hub(tmp_path / "hub", PLAN, "north")
    with hub.serve(), hub.egress("north") as north:
        sealed = hub.seal("north")
        acceptance = north.send(sealed.envelope, sealed.path)
        with closing(Store.open(hub.home)) as other:
            size, head = LogWatch(other).head(TODAY)
    assert size == acceptance.log_index + 1
    assert open_head(head, hub.authority.witness.public).root == acceptance.log_root
    hub.store.close()
