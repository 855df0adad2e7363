"""Every step at which a process may die, on both sides, and the test that kills it there with SIGKILL.

A failpoint that no line here covers fails this test, and so does a line that covers none: whoever adds a step that
writes, renames or sends adds its kill. The names are read from the sources, those of `write_whole` with its places.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator
from functools import cache

import pytest

from tests.stage.house.sources import ROOT, located, parsed, production

RELEASES = "test_survival.py::test_wherever_release_or_approve_is_killed_one_charge_is_drawn_once_and_delivered_once"
TRAINING = "test_federating.py::test_a_site_killed_anywhere_answers_with_the_same_bytes_or_not_at_all"
ROUNDS = "test_federating.py::test_real_processes_killed_with_9_in_the_middle_still_train_one_flow"
GIVEN = "test_summing.py::test_a_site_that_is_killed_is_a_drop_out_charged_and_the_sum_is_that_of_the_others"
CONSENTED = "test_summing.py::test_a_site_killed_before_it_offers_keys_is_in_the_sum_when_it_begins_anew"
PASSED_BY = "test_summing.py::test_a_site_killed_while_it_notes_that_a_sum_went_on_without_it_hears_it_again"
SUMMED = "test_summing.py::test_a_coordinator_killed_at_any_step_goes_on_and_opens_one_sum"
INGEST = "test_collect.py::test_a_server_killed_at_any_step_ends_with_one_acceptance_when_the_site_asks_again"
WITHDRAWAL = "test_withdrawal.py::test_a_coordinator_killed_at_any_step_of_a_withdrawal_ends_with_it_done"
ROTATION = "test_membership.py::test_killed_on_its_way_a_rotation_is_brought_to_an_end_or_was_none"
SECRET = (
    "test_membership_kills.py::"
    "test_killed_while_it_changes_the_secret_of_persons_a_site_has_the_one_that_its_ledger_names"
)
RENEWAL = "test_renewal.py::test_a_site_killed_at_any_step_of_a_renewal_connects_and_ends_with_one_certificate"
FOLLOWING = "test_membership_kills.py::test_killed_while_it_pins_the_next_authority_a_site_follows_it_at_its_next_round"
PINNING = "test_authority_replaced.py::test_killed_while_it_pins_another_authority_a_site_pins_it_when_asked_again"
REPLACING = (
    "test_authority_replaced.py::"
    "test_killed_while_it_replaces_the_authority_a_coordinator_has_one_and_its_log_says_which"
)
ISSUING = (
    "test_membership_kills.py::"
    "test_killed_while_it_issues_a_certificate_and_while_it_is_shown_one_a_coordinator_goes_on_with_one"
)
SHOWING = (
    "test_membership_kills.py::"
    "test_killed_while_it_renews_the_servers_certificate_a_coordinator_shows_the_old_one_or_the_new"
)
CHANGED = (
    "test_membership_kills.py::test_killed_while_it_takes_a_change_of_keys_a_coordinator_has_it_once_or_not_at_all"
)
ALLOWED = "test_membership_kills.py::test_killed_while_the_lead_allows_a_replacement_it_is_in_force_once_or_waits"
GRANTED = "test_membership.py::test_killed_minus_nine_a_grant_is_in_the_log_once_or_not_at_all"
CLOSED = "test_wave_grid.py::test_a_lead_killed_while_closing_a_wave_closes_it_once"
NOTED = "test_wave_grid.py::test_a_lead_killed_after_a_note_finds_it_once_when_the_verb_is_run_again"
DELETED = "test_retention.py::test_killed_while_it_deletes_a_coordinator_has_not_begun_or_brings_it_to_its_end"
GATHERED = (
    "test_restore.py::"
    "test_killed_on_its_way_a_backup_or_restore_leaves_nothing_that_passes_for_one_and_can_be_run_again"
)
PUT_BACK = "test_site_backup.py::test_killed_on_its_way_back_the_old_home_or_the_new_one_is_there"

KILLED = {
    "site_agent": {
        "ledger.create.*": "test_survival.py::killed_while_joining",
        "ledger.withdrawn.*": "test_waves.py::test_a_withdrawal_that_is_killed_is_noted_or_not_and_can_be_repeated",
        "ledger.trained.*": "test_persons.py::test_a_drawing_that_is_killed_while_it_binds_who_trained_has_not_begun",
        "ledger.*": RELEASES,
        "outbox.*": RELEASES,
        "seal.*": RELEASES,
        "pipeline.*": RELEASES,
        "egress.*": RELEASES,
        "sum.order.*": CONSENTED,
        "sum.consent.*": CONSENTED,
        "sum.passed.*": PASSED_BY,
        "sum.*": GIVEN,
        "federate.*": TRAINING,  # one thread, by an exception that no handler knows; some with SIGKILL in the soak
        "keys.made": ROTATION,
        "keys.noted": ROTATION,
        "keys.before_replace": ROTATION,
        "keys.replaced": ROTATION,
        "keys.told": ROTATION,
        "keys.adopted": "test_membership.py::test_a_ledger_from_before_two_rotations_is_recovered_through_both",
        "approver.noted": "test_membership.py::"
        "test_killed_when_an_approver_was_noted_a_site_has_that_person_on_both_sides",
        "snapshot.*": SECRET,
        "renewal.*_pin": FOLLOWING,
        "renewal.*": RENEWAL,
        "authority.*": PINNING,
        "recovery.*": "test_site_backup.py::"
        "test_a_site_lost_and_put_back_spends_nothing_before_it_has_counted_what_it_forgot",
        "backup.*": PUT_BACK,
    },
    "coordinator": {
        "ingest.*": INGEST,
        "withdraw.*": WITHDRAWAL,
        "rounds.*": ROUNDS,
        "sum.*": SUMMED,
        "authority.*_server": SHOWING,
        "authority.*": REPLACING,
        "renewal.*": ISSUING,
        "grant.*": GRANTED,
        "leads.*": "test_membership_kills.py::"
        "test_killed_while_a_lead_joins_or_leaves_the_log_decides_and_the_files_follow",
        "keys.allowed": ALLOWED,
        "keys.*": CHANGED,
        "retention.ended": "test_retention.py::test_a_retired_study_leaves_every_site_and_nobody_is_let_in_again",
        "retention.*": DELETED,
        "standing.revoked": "test_wave_grid.py::"
        "test_the_end_of_a_standing_approval_is_kept_when_the_coordinator_dies_before_it_can_say_so",
        "wave.before_event": CLOSED,
        "wave.before_commit": CLOSED,
        "wave.closed": CLOSED,
        "wave.reopened": NOTED,
        "wave.reminded": NOTED,
        "result.saved": NOTED,
        "migration.switched": "test_store_migration.py::"
        "test_killed_when_the_settings_name_the_copy_they_name_a_whole_one",
        "migration.*": "test_store_migration.py::"
        "test_killed_on_its_way_a_copy_is_not_there_or_whole_and_is_made_by_the_same_call",
        "upgrade.*": "test_upgrade.py::test_killed_while_it_is_brought_up_a_store_is_the_old_or_the_new_one",
        "backup.*": GATHERED,
    },
    "shared": {
        "backup.written": PUT_BACK,
        "restore.*": PUT_BACK,
    },
}
"""By side and pattern, the first that fits: the test, or the function of tests, that kills a process there."""
FROM_SOURCES = {RELEASES, INGEST, WITHDRAWAL}
"""Tests that read the names from the sources themselves, and assert that each was reached."""
PLACES = {
    "site_agent/ledger/files.py": ("ledger.population", "ledger.trained"),
    "site_agent/release/outbox.py": ("outbox.checks", "outbox.audit", "seal.fit", "seal.rows"),
}
"""What is handed to `write_whole` where that is no plain text."""


@cache
def written() -> dict[str, frozenset[str]]:
    """Every failpoint of each side."""
    plain: dict[str, set[str]] = {side: set() for side in KILLED}
    steps, places = set[str](), set[str]()
    for path, tree in production():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).rpartition(".")[2]
            if called == "reach" and node.args:
                name = ast.unparse(node.args[0])
                if name.startswith("f'{place}."):
                    steps.add(name.removeprefix("f'{place}.").rstrip("'"))
                else:
                    plain[path.partition("/")[0]].add(ast.literal_eval(name))
            elif called == "write_whole":
                given = node.args[2]
                found = (given.value,) if isinstance(given, ast.Constant) else PLACES[path]
                places |= set(found)
    plain["site_agent"] |= {f"{place}.{step}" for place in places for step in steps}
    return {side: frozenset(names) for side, names in plain.items()}


def killed_by(side: str, name: str) -> str:
    """The test that kills a process of a side at a failpoint; blank if there is none."""
    return next((test for pattern, test in KILLED[side].items() if fnmatch.fnmatchcase(name, pattern)), "")


def texts(test: str) -> Iterator[str]:
    """Every text in a test, its parameters, and the constants of its file that it names."""
    file, _, name = test.partition("::")
    tree = parsed(ROOT / located(file))
    [function] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    tables = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and used & {ast.unparse(target) for target in node.targets}
    ]
    for root in (function, *tables):
        for node in ast.walk(root):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.parametrize("side", KILLED)
def test_a_process_is_killed_at_every_failpoint_of_each_side(side):
    names = written()[side]
    assert len(names) >= {"site_agent": 90, "coordinator": 50, "shared": 3}[side], "the sources are read"
    assert [name for name in sorted(names) if not killed_by(side, name)] == []
    idle = [p for p in KILLED[side] if not any(fnmatch.fnmatchcase(name, p) for name in names)]
    assert idle == [], "a line here that is about no failpoint"


@pytest.mark.parametrize("test", sorted({test for lines in KILLED.values() for test in lines.values()}))
def test_the_test_that_is_named_names_the_failpoint(test):
    said = {text.partition(":")[0] for text in texts(test)}
    if test in FROM_SOURCES:
        return
    for side in KILLED:
        for name in written()[side]:
            if killed_by(side, name) == test:
                room, _, step = name.rpartition(".")
                assert name in said or {f"{room}.", step} <= said, (side, name)
