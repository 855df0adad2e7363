"""Three people's first walks, from nothing, in real processes: how many commands, checks and seconds to a first result.

python -m tests.benchmarks.walks      (half a minute of computing)

A study lead writes a plan of their own over the template, with five of the mistakes that people make in it; a steward
has an extract as a German hospital's system writes it; an analyst goes from a token to a figure in a file. A person's
time is modelled, as one who types every character at 0.28 s a key and reads every word that is printed at 238 a minute;
the machine's share of it is its computing, as on one that does nothing else.

Sources: Card, Moran and Newell (1980), The keystroke-level model, 0.28 s for an average typist; Brysbaert (2019), How
many words do we read per minute?, 238 of non-fiction. What they think about is in neither.
"""

from __future__ import annotations

import difflib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.stage.processes.stopping import started

ROOT = Path(__file__).resolve().parents[2]
KEY, WORD = 0.28, 60 / 238
PROGRAMS = {
    "coordinator": ["-m", "coordinator.cli"],
    "site-agent": ["-m", "site_agent.cli"],
    "analyst": ["-c", "import sys; from coordinator.analyst.commands import main; sys.exit(main())"],
}
PLAN = """\
[estimands]
main = "logistic(readmitted) ~ ntprobnp/1000 + age/10 + C(sex)"
crude = "logistic(readmited) ~ ntprobnp"

[dictionary]
name = "hfread"
version = 1

[dictionary.columns.patient]
kind = "person"
label = "patient"

[dictionary.columns.age]
kind = "numeric"
label = "age at admission"
unit = "years"
lower = 18
upper = 110

[dictionary.columns.sex]
kind = "binary"
label = "sex"
levels = ["female", "male"]

[dictionary.columns.nyha]
kind = "ordinal"
label = "NYHA class at discharge"
levels = ["I", "II", "III", "IV"]

[dictionary.columns.ntprobnp]
kind = "continuous"
label = "NT-proBNP at discharge"
unit = "ng/L"
lower = 5
upper = 70000
decimals = 0
missing = "level"
missing_codes = [-9]

[dictionary.columns.lvef]
kind = "continuous"
label = "ejection fraction"
unit = "%"
lower = 80
upper = 5
decimals = 1
missing = "levels"

[dictionary.columns.readmitted]
kind = "binary"
label = "readmitted within 90 days"
"""
HEAD = (
    ("One line that says what the study is", "Readmission after heart failure"),
    (
        "What the releases are for, in words a data steward can hold against the ethics approval.",
        "Does a higher NT-proBNP at discharge go with readmission within 90 days?",
    ),
    (
        "Everyone admitted with a first event between two dates, aged 18 or over.",
        "Everyone discharged alive after heart failure in 2024 or 2025, aged 18 or over.",
    ),
    ("w = 0.005", "w = 0.3"),
    ("epsilon = 8.0", "epsilon = 60"),
)
MENDED = (
    ('"numeric"', '"integer"'),
    ('"ordinal"', '"ordered"'),
    ('"levels"', '"level"'),
    ("readmited", "readmitted"),
    ("lower = 80\nupper = 5\n", "lower = 5\nupper = 80\n"),
)


@dataclass
class Walk:
    """What one person typed, and what it took."""

    folder: Path
    settings: dict[str, str]
    steps: list[str] = field(default_factory=list)
    refused: int = 0
    typed: int = 0
    read: int = 0
    machine: float = 0.0
    cpu: float = 0.0
    table_fits: float = 0.0

    def __call__(self, line: str, *, expect: int = 0) -> str:
        """Run one command line; what it printed."""
        program, *words = _words(line)
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, *PROGRAMS[program], *words],
            cwd=self.folder,
            env=os.environ | self.settings,
            capture_output=True,
            text=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == expect, f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        self.machine += time.perf_counter() - began
        self.cpu += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.steps.append(" ".join(_words(line)[:3]))
        self.refused += expect != 0
        self.typed += len(line) + 1
        self.read += len((done.stdout + done.stderr).split())
        return done.stdout

    def edited(self, before: str, after: str) -> str:
        """Count what a person types to make one text of the other."""
        changes = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False).get_opcodes()
        self.typed += sum(len("\n".join(after.splitlines()[c:d])) for kind, *_, c, d in changes if kind != "equal")
        return after

    @property
    def minutes(self) -> float:
        """A person's time until now, as modelled."""
        return round((self.typed * KEY + self.read * WORD + self.cpu) / 60, 1)

    @property
    def facts(self) -> dict[str, Any]:
        """As plain values."""
        checks = sum("check" in step for step in self.steps)
        return {
            "commands": len(self.steps),
            "checks": checks,
            "refusals": self.refused,
            "characters": self.typed,
            "words": self.read,
            "machine_s": round(self.machine, 1),
            "cpu_s": round(self.cpu, 1),
            "minutes": self.minutes,
            "minutes_until_the_table_fits": self.table_fits,
            "steps": self.steps,
        }


def _words(line: str) -> list[str]:
    import shlex

    return shlex.split(line)


def _free() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def extract(path: Path, seed: int, n: int = 800) -> None:
    """A messy extract: Windows letters, semicolons, decimal commas, k.A., dd.mm.yyyy, a person twice, two typos."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        bnp = np.exp(rng.normal(7.5, 1))
        again = rng.random() < 1 / (1 + np.exp(3.4 - 0.35 * np.log(bnp)))
        rows.append(
            [
                f"P{i:05d}",
                f"{rng.integers(1, 29):02d}.{rng.integers(1, 13):02d}.2024",
                str(rng.integers(45, 95)),
                str(rng.choice(["männlich", "weiblich"])),
                str(rng.choice(["I", "II", "III", "IV"], p=[0.15, 0.45, 0.3, 0.1])),
                "n.b." if rng.random() < 0.04 else f"{bnp:.0f}",
                "k.A." if rng.random() < 0.05 else f"{np.clip(rng.normal(42, 9), 6, 79):.1f}".replace(".", ","),
                "ja" if again else "nein",
            ]
        )
    rows[50][2] = "203"
    rows.append(rows[3])
    heads = ["PatNr", "Aufnahme", "Alter", "Geschlecht", "NYHA-Stadium", "NTproBNP", "EF (%)", "Wiederaufnahme"]
    path.write_text("\n".join(";".join(row) for row in [heads, *rows]) + "\n", encoding="cp1252")


def corrected(path: Path) -> None:
    """What the steward does at the source: the second row of a person and the row with an impossible age go."""
    lines = path.read_text(encoding="cp1252").splitlines()
    kept = {line.split(";")[0]: line for line in lines if line.split(";")[2] != "203"}
    path.write_text("\n".join(kept.values()) + "\n", encoding="cp1252")


def lead(walk: Walk, port: int) -> None:
    """From nothing to a signed plan of one's own and an invitation."""
    at = f"--address localhost:{port} --listen 127.0.0.1:{port} --analysts localhost:{port + 1}"
    walk(f"coordinator init {at}")
    walk("coordinator plan new hfread")
    file = walk.folder / "hfread.toml"
    template = file.read_text()
    text = template[: template.index("[estimands]")] + PLAN
    for old, new in HEAD:
        text = text.replace(old, new)
    first = text.index("opens = ")
    text = text[:first] + "opens = 2026-01-02" + text[first + 18 :]
    file.write_text(walk.edited(template, text))
    walk("coordinator plan check hfread.toml", expect=10)
    for old, new in MENDED:
        text = text.replace(old, new)
    file.write_text(walk.edited(file.read_text(), text))
    walk("coordinator plan check hfread.toml")
    walk("coordinator plan cost hfread.toml")
    walk("coordinator plan sign hfread.toml")
    walk("coordinator invite nord --study hfread --out nord.invitation")


def steward(walk: Walk, invited: Path, accept: Any) -> None:
    """From an invitation and a messy extract to a first release that is delivered."""
    extract(walk.folder / "auszug.csv", seed=7)
    walk(f"site-agent init --invitation {invited} --approver eva")
    walk("site-agent join")
    accept(walk)
    walk("site-agent join")
    walk("site-agent plan fetch hfread")
    walk("site-agent plan show hfread")
    walk("site-agent data add auszug.csv --as hfread")
    names = "PatNr=patient Alter=age Geschlecht=sex NYHA-Stadium=nyha NTproBNP=ntprobnp 'EF (%)=lvef'"
    walk(f"site-agent data map hfread {names} Wiederaufnahme=readmitted --ignore-rest")
    walk("site-agent data check hfread", expect=40)
    values = "--level sex:männlich=male --level sex:weiblich=female --level readmitted:ja=1 --level readmitted:nein=0"
    walk(f"site-agent data map hfread {values} --decimal-comma lvef --level lvef:k.A.= --level ntprobnp:n.b.=")
    corrected(walk.folder / "auszug.csv")
    walk("site-agent data check hfread")
    walk.table_fits = walk.minutes
    walk("site-agent plan approve hfread --as eva --understood local")
    walk("site-agent curve hfread")
    walk("site-agent release hfread")
    waiting = json.loads(walk("site-agent outbox list --json"))["releases"]
    release = waiting[0]["release_id"][:8]
    walk(f"site-agent outbox figures {release}")
    walk(f"site-agent approve {release} --as eva")


def analyst(walk: Walk) -> None:
    """From a token to a figure in a file."""
    walk("analyst studies")
    walk("analyst describe hfread")
    walk('analyst logistic hfread "readmitted ~ ntprobnp/1000 + age/10 + C(sex)" --forest answer.svg')
    assert (walk.folder / "answer.svg").stat().st_size > 2_000


def measured(folder: Path) -> dict[str, Any]:
    """All three walks."""
    port = _free()
    shared = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100", "HOME": str(folder)}
    shared["TRIBUTARY_PASSPHRASE"] = "only for this walk"
    walks = {}
    for who in ("lead", "steward", "analyst"):
        (folder / who).mkdir()
        walks[who] = Walk(folder=folder / who, settings=dict(shared))
    lead(walks["lead"], port)
    serving = [sys.executable, *PROGRAMS["coordinator"], "serve"]
    home = folder / "lead"
    options = {"cwd": home, "env": os.environ | shared, "stderr": subprocess.STDOUT}
    with (folder / "serve.log").open("w") as log, started(serving, stdout=log, **options):
        _answers(port)

        def accept(site: Walk) -> None:
            heard = json.loads(_quiet(site, "site-agent status --json"))["fingerprint"]
            walks["lead"](f"coordinator accept nord --fingerprint '{heard}'")

        steward(walks["steward"], home / "nord.invitation", accept)
        walks["lead"]("coordinator analyst add ada --study hfread")
        walks["analyst"].settings["TRIBUTARY_ANALYST_TOKEN"] = str(home / "ada.token.json")
        analyst(walks["analyst"])
    return {who: walk.facts for who, walk in walks.items()}


def _quiet(walk: Walk, line: str) -> str:
    """A command that stands for a telephone: nobody types it."""
    program, *words = _words(line)
    called = [sys.executable, *PROGRAMS[program], *words]
    settings = os.environ | walk.settings
    return subprocess.run(called, cwd=walk.folder, env=settings, capture_output=True, text=True, check=True).stdout


def _answers(port: int) -> None:
    for _ in range(600):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the coordinator does not answer")


def main() -> None:
    """Walk, and keep what it took."""
    from tests.benchmarks.record import write

    with tempfile.TemporaryDirectory() as folder:
        results = measured(Path(folder))
    for who, facts in results.items():
        print(who, {name: value for name, value in facts.items() if name != "steps"})
    print(write("walks", results, seed=7))


if __name__ == "__main__":
    main()
