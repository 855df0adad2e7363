"""How much memory `site-agent run` holds while it waits: a real process between two rounds; its plan trains a flow.

python -m tests.benchmarks.idle_agent

``idle``: the agent was started when nothing was due; its first round has asked the coordinator for plans and for the
training. ``after a release``: one that has made a release, and then began anew to wait. ``rounds``: what an agent
takes of the processor and sends and gets over the line, a minute, where each round is a minute after the last
(`--every 1`) and where it is an hour, as it is by itself: sixty of them are counted from what the rounds took.
"""

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.benchmarks.record import sized
from tests.stage.processes.stopping import started

EVERY, ROUNDS, WARMING = sized((1, 10, 30), (0.05, 2, 10))
FEDERATED = "[federated]\nrounds = 3\nrate = 0.2\nnoise_multiplier = 1.0\n\n"


def resident(home, passphrase, log):
    """MB of an agent that has made a round and sleeps."""
    env = {**os.environ, "TRIBUTARY_SITE_HOME": str(home), "TRIBUTARY_PASSPHRASE": passphrase, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "site_agent.cli", "run", "--json"]
    with log.open("wb") as out, started(argv, env=env, stdout=out) as agent:
        seen, limit = [], time.monotonic() + 300
        while time.monotonic() < limit:
            time.sleep(5)
            status = Path(f"/proc/{agent.pid}/status").read_text()
            spent = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            seen.append((int(status.split("VmRSS:")[1].split()[0]), *map(int, spent)))
            busy = seen[-1][1] - seen[max(0, len(seen) - 4)][1]
            # It sleeps a second at a time: what it spends on that is less than a clock tick in five seconds or so.
            if len(seen) > 4 and busy <= 8 and len({size for size, *_ in seen[-4:]}) == 1:
                return seen[-1][0] / 1024
        raise SystemExit("the agent did not come to rest")


def of_rounds(home, passphrase, log, relay):
    """A minute of an agent that asks each minute: share of a processor, and bytes both ways by the relay's count."""
    env = {**os.environ, "TRIBUTARY_SITE_HOME": str(home), "TRIBUTARY_PASSPHRASE": passphrase, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "site_agent.cli", "run", "--json", "--every", f"{EVERY}"]
    with log.open("wb") as out, started(argv, env=env, stdout=out) as agent:

        def now():
            spent = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()[11:15]
            return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK"), relay.passed

        time.sleep(WARMING)  # its start and its first round are not its waiting
        (cpu, sent), begun = now(), time.monotonic()
        time.sleep(60 * EVERY * ROUNDS)
        (cpu_after, sent_after), minutes = now(), (time.monotonic() - begun) / 60
    rounds = minutes / EVERY
    return {
        "every_minutes": EVERY,
        "minutes": minutes,
        "cpu_percent": 100 * (cpu_after - cpu) / 60 / minutes,
        "bytes_a_minute": (sent_after - sent) / minutes,
        "bytes_a_round": (sent_after - sent) / rounds,
        "bytes_a_minute_at_a_round_an_hour": (sent_after - sent) / rounds / 60,
    }


class Counted:
    """What passes a relay, in both directions."""

    passed = 0

    def __call__(self, piece, _):
        self.passed += len(piece.data)
        return piece.data


def main():
    from faults.proxy import through
    from stage.processes.survival import cohort
    from stage.processes.theatre import PASSPHRASE, Theatre, plan_toml

    from tests.benchmarks.record import write

    with tempfile.TemporaryDirectory() as folder:
        stage, counted = Theatre(Path(folder) / "stage"), Counted()
        with contextlib.ExitStack() as closing:
            closing.callback(stage.close)
            stage.relay = closing.enter_context(through(stage.port, counted, seed=1)).port
            stage.open(plan_toml("storm").replace("[budget]", FEDERATED + "[budget]", 1))
            table = Path(folder) / "table.csv"
            cohort(60).to_csv(table, index=False)
            stage.join("north", table, "storm")
            log = Path(folder) / "log"
            after = resident(stage.home("north"), PASSPHRASE, log)  # its first round makes the due wave
            idle = resident(stage.home("north"), PASSPHRASE, log)  # started again, nothing is due
            rounds = of_rounds(stage.home("north"), PASSPHRASE, log, counted)
    results = {"resident_mb": {"idle": idle, "after a release": after}, "rounds": rounds}
    print(results)
    print(write("idle_agent", results, seed=0))


if __name__ == "__main__":
    main()
