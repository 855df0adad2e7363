"""How much memory `site-agent run` holds while it waits: a real process between two rounds; its plan trains a flow.

python -m tests.benchmarks.idle_agent

``idle``: the agent was started when nothing was due; its first round has asked the coordinator for plans and for the
training. ``after a release``: one that has made a release, and then began anew to wait.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
FEDERATED = "[federated]\nrounds = 3\nrate = 0.2\nnoise_multiplier = 1.0\n\n"


def resident(home, passphrase, log):
    """MB of an agent that has made a round and sleeps."""
    env = {**os.environ, "TRIBUTARY_SITE_HOME": str(home), "TRIBUTARY_PASSPHRASE": passphrase, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        agent = subprocess.Popen([sys.executable, "-m", "site_agent.cli", "run", "--json"], env=env, stdout=out)
    try:
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
    finally:
        agent.terminate()
        agent.wait()


def main():
    from test_survival import cohort
    from theatre import PASSPHRASE, Theatre, plan_toml

    from tests.benchmarks.record import write

    with tempfile.TemporaryDirectory() as folder:
        stage = Theatre(Path(folder) / "stage")
        try:
            stage.open(plan_toml("storm").replace("[budget]", FEDERATED + "[budget]", 1))
            table = Path(folder) / "table.csv"
            cohort(60).to_csv(table, index=False)
            stage.join("north", table, "storm")
            log = Path(folder) / "log"
            after = resident(stage.home("north"), PASSPHRASE, log)  # its first round makes the due wave
            idle = resident(stage.home("north"), PASSPHRASE, log)  # started again, nothing is due
        finally:
            stage.close()
    results = {"resident_mb": {"idle": idle, "after a release": after}}
    print(results)
    print(write("idle_agent", results, seed=0))


if __name__ == "__main__":
    main()
