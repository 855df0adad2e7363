"""What must be refused is refused by the real processes, with the exit code that is documented."""

from __future__ import annotations

import fcntl

from stage.processes.survival import assert_settled, table, theatre  # noqa: F401
from stage.processes.theatre import Theatre, plan_toml


def refused(answer, code: str, exit_code: int) -> None:
    assert (answer.refused, answer.code) == (code, exit_code), str(answer)


def test_what_must_be_refused_is_refused_and_goes_on_when_the_cause_is_gone(theatre: Theatre, table):  # noqa: F811
    theatre.open(plan_toml())
    theatre.join("north", table, "storm")
    ask = ("release", "storm", "--wave", 1)

    with (theatre.home("north") / "agent.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(theatre.agent("north", *ask, expect=None), "E_LOCKED", 30)

    late = theatre.agent("north", *ask, expect=None, env={"TRIBUTARY_TODAY": "3000-01-01"})
    refused(late, "E_PLAN_EXPIRED", 10)

    full = theatre.agent("north", *ask, expect=None, file_size=4096)
    refused(full, "E_STORAGE", 30)

    theatre.stop()
    refused(theatre.agent("north", *ask, expect=None), "E_NETWORK", 20)
    theatre.serve()
    held_back = theatre.agent("north", *ask).json
    theatre.approve("north", held_back["release_id"])
    counts = assert_settled(theatre, {"north": 1})
    assert (counts["draws"], counts["delivered"]) == (1, 1)

    theatre.coordinator("revoke", "north")
    shut_out = theatre.agent("north", "plan", "fetch", "storm", expect=None)
    assert shut_out.refused, str(shut_out)
    assert shut_out.code == 21, str(shut_out)


def test_an_invitation_is_good_for_one_site_once(theatre: Theatre):  # noqa: F811
    theatre.open(plan_toml())
    invitation = theatre.invite("north", "storm")
    for home in ("north", "thief"):
        theatre.agent(home, "init", "--invitation", invitation, "--approver", "steward")
    theatre.agent("north", "join")
    answer = theatre.agent("thief", "join", expect=None)
    assert answer.refused == "E_TOKEN", str(answer)
