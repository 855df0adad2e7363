"""Commands of persons, with a study on which they can be run: for the benchmark of their start-up and its test.

A command that holds no table has no use for what tables are read, fitted and drawn with. Which library each loads is
read from `sys.modules` of its own process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stage.processes.ports import free_port
from stage.processes.theatre import PASSPHRASE, ROOT, Theatre, plan_toml

HEAVY = (
    *("numpy", "pandas", "pyarrow", "scipy", "scipy.stats", "statsmodels"),
    *("torch", "nflows", "dp_accounting", "matplotlib", "numpy.ma"),
)
STORED = ("sqlalchemy",)
"""What only the coordinator's commands need, of which nearly all read its store."""
CERTIFICATES = ("cryptography.x509",)
"""What only a command needs that reads or issues a certificate."""
CALLS = ("shared.wire.messages", "shared.wire.site_messages", *CERTIFICATES)
"""What only a command needs that calls the coordinator: every message that there is, and a certificate to show."""


@dataclass(frozen=True)
class Verb:
    """A command line; words in braces stand for what `study` made.

    Args:
        may: heavy libraries that it has a use for.
        bar: CPU seconds that it may take from a cold start; with `unlocks` the price of one guess comes on top. None
            where it holds a table.
        once: it changes what it is about, and is measured the first time.
    """

    module: str
    words: str
    may: tuple[str, ...] = ()
    bar: float | None = 0.4
    unlocks: bool = False
    once: bool = False

    @property
    def name(self) -> str:
        words = [word for word in self.words.split(" --")[0].split() if not word.startswith("{")]
        program = next(program for program, (module, _) in PROGRAMS.items() if module == self.module)
        return " ".join([program, *words])

    def argv(self, made: Mapping[str, str]) -> list[str]:
        home = ["--home", "{hub}"] if self.module == "coordinator.cli" else []
        return [word.format(**made) for word in (*home, *self.words.split())]


def _site(words: str, *, may: tuple[str, ...] = (), **more: Any) -> Verb:
    return Verb("site_agent.cli", words, may=("numpy", *may), **more)  # what a ledger adds up are arrays


def _hub(words: str, *, may: tuple[str, ...] = STORED, **more: Any) -> Verb:
    return Verb("coordinator.cli", words, may=may, **more)


def _ask(words: str, *, may: tuple[str, ...] = CALLS, **more: Any) -> Verb:
    return Verb("coordinator.analyst.commands", f"{words} --token {{token}}", may=may, **more)


PRICES = ("numpy",)
"""What computes a price: arrays, and of scipy one compiled file (`shared.privacy.compiled`)."""
TABLE = ("pandas", "pyarrow", "numpy.ma")
"""What shows a table's rows."""
MIXED = ("dp_accounting", "scipy", "scipy.stats", "numpy.ma")
"""What prices noise of which no closed form is known: of a flow's training, which stands on every list of prices."""
VERBS = (
    _site("status --json", may=CALLS),
    _site("join --json", may=CALLS),
    _site("plan fetch storm --json", may=CALLS),
    _site("plan show storm", may=PRICES),
    _site("plan approve storm --as steward --understood local --dry-run", may=PRICES),
    _site("plan revoke storm --as steward --dry-run"),
    _site("doctor", may=CALLS),
    _site("outbox list"),
    _site("outbox show {release}", may=TABLE, bar=None),
    _site("reject {release} --as steward --reason disclosure-risk --dry-run"),
    _site("send-back {release} --as steward --dry-run"),
    _site("budget", may=PRICES),
    _site("history"),
    _site("log", may=CALLS),
    _site("grants", may=CALLS),
    _site("renew --dry-run", may=CERTIFICATES),
    _site("pause --dry-run"),
    _site("standing list"),
    _site("waves storm", may=PRICES),
    _site("ledger verify"),
    _site("audit verify"),
    _site("audit-verify"),
    _site("resend storm --dry-run", may=CALLS),
    _site("passphrase --as steward --dry-run", unlocks=True),
    _site("approve {release} --as steward", may=CALLS, bar=0.6, unlocks=True, once=True),
    _hub("studies"),
    _hub("sites", may=(*STORED, *CERTIFICATES)),
    _hub("doctor", may=(*STORED, *CERTIFICATES)),
    _hub("invite south --study storm --out {folder}/south.json", may=(*STORED, *CERTIFICATES), once=True),
    _hub("accept north --fingerprint {fingerprint} --dry-run"),
    _hub("releases"),
    _hub("plan show storm", may=(*STORED, *PRICES)),
    _hub("plan sign {plan} --dry-run", may=(*STORED, *PRICES)),
    _hub("plan check deploy/studies/cvd.toml", may=(*STORED, *CERTIFICATES, *PRICES)),
    _hub("plan check deploy/studies/cohorts.toml", may=(*STORED, *CERTIFICATES, *PRICES)),  # noisy moments
    _hub("plan check deploy/studies/secure-sum.toml", may=(*STORED, *CERTIFICATES, *PRICES)),
    _hub("plan cost {plan}", may=(*STORED, *PRICES)),
    _hub("plan prices {plan}", may=(*STORED, *PRICES, *MIXED)),
    _hub("plan redcap {plan} --out {folder}/dictionary.csv --dry-run"),
    _hub("plan new fresh --out {folder}/fresh.toml --dry-run"),
    _hub("wave status storm", may=(*STORED, *CERTIFICATES)),
    _hub("wave remind storm 1 --dry-run", may=(*STORED, *CERTIFICATES)),  # of a site that joined late, by its first one
    _hub("wave close storm 1 --reason late --dry-run", may=(*STORED, *CERTIFICATES)),
    _hub("grants"),
    _hub("analyst list"),
    _hub("analyst revoke nora --dry-run"),
    _hub("revoke north --dry-run"),
    _hub("declined"),
    _hub("lead list"),
    _hub("ca rotate --dry-run", may=(*STORED, *CERTIFICATES)),
    _hub("analyst add ada --study storm --out {folder}/ada.json", may=(*STORED, *CERTIFICATES), once=True),
    _hub("log verify"),
    _hub("log head", may=(*STORED, *CERTIFICATES)),
    _ask("studies"),
    _ask("releases storm"),
    _ask("log storm"),
)

PROGRAMS = {
    "site-agent": ("site_agent.cli", "app"),
    "coordinator": ("coordinator.cli", "app"),
    "analyst": ("coordinator.analyst.commands", "app"),
    "tributary": ("coordinator.demo", "app"),
}


@contextlib.contextmanager
def study(folder: Path, n: int = 200) -> Iterator[tuple[Theatre, dict[str, str]]]:
    """A coordinator that serves, and a hospital whose release waits for a person; and what `Verb.argv` fills in."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "person": [f"p{k}" for k in range(n)],
            "sbp": rng.normal(130, 15, n),
            "chol": rng.normal(220, 30, n),
            "died": rng.integers(0, 2, n),
        }
    )
    table.to_csv(folder / "table.csv", index=False)
    asks = '[estimands]\nalive = "logistic(died) ~ sbp/10"\n\n[dictionary]\n'
    ours, other = (plan_toml(name).replace("[dictionary]\n", asks) for name in ("storm", "other"))
    (folder / "plan.toml").write_text(other)
    stage = Theatre(folder / "stage")
    try:
        stage.open(ours)
        stage.stop()
        settings = stage.hub / "coordinator.toml"
        settings.write_text(settings.read_text().replace('analysts = ""', f'analysts = "127.0.0.1:{free_port()}"'))
        stage.serve()
        stage.join("north", folder / "table.csv", "storm")
        stage.agent("north", "release", "storm", "--wave", "1")
        release = stage.waiting("north", 1)
        token = folder / "nora.json"
        stage.coordinator("analyst", "add", "nora", "--study", "storm", "--out", token)
        fingerprint = stage.agent("north", "status").json["fingerprint"]
        made = {"hub": str(stage.hub), "folder": str(folder), "plan": str(folder / "plan.toml")}
        yield stage, {**made, "release": release, "fingerprint": fingerprint, "token": str(token)}
    finally:
        stage.close()


def environment(stage: Theatre) -> dict[str, str]:
    """What a person's commands are started with."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TRIBUTARY_SITE_HOME": str(stage.home("north")),
        "TRIBUTARY_PASSPHRASE": PASSPHRASE,
    }


def loaded(lines: Sequence[tuple[str, Sequence[str]]], env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Per command line (module, arguments) its exit code and the heavy libraries of its process.

    The processes of a program are forked from one that has its command line put together and has imported nothing
    heavy, which saves most of the time.
    """
    found: dict[int, dict[str, Any]] = {}
    for program in sorted({module for module, _ in lines}):
        mine = {k: [module, list(argv)] for k, (module, argv) in enumerate(lines) if module == program}
        done = subprocess.run(
            [sys.executable, "-c", _FORK, *IMPORTED.get(program, ())],
            input=json.dumps(list(mine.values())),
            capture_output=True,
            text=True,
            env=dict(env),
            cwd=ROOT,
            check=True,
        )
        found |= dict(zip(mine, map(json.loads, done.stdout.splitlines()), strict=True))
    return [
        {"code": one["code"], "heavy": [name for name in (*HEAVY, *STORED, *CALLS) if name in one["modules"]]}
        for _, one in sorted(found.items())
    ]


_PLAIN = ("rich.console", "rich.table", "sqlite3", "shared.releases.receipt", "shared.mechanisms.latent_noise.plan")
IMPORTED = {
    "site_agent.cli": ("site_agent.cli", "site_agent.decide.airlock", "site_agent.ledger.book", *_PLAIN),
    "coordinator.cli": ("coordinator.cli", "coordinator.store.store", "sqlalchemy.dialects.sqlite", *_PLAIN),
    "coordinator.analyst.commands": ("coordinator.analyst.commands",),
}
"""What every command of a program may have imported: with the store comes `STORED`."""
_FORK = """
import functools, importlib, json, os, sys, typer.main
typer.main.get_command = functools.cache(typer.main.get_command)
for name in sys.argv[1:]:
    app = getattr(importlib.import_module(name), "app", None)
    if app is not None:
        typer.main.get_command(app)
for module, argv in json.loads(sys.stdin.read()):
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(ours)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for place in range(3):
            os.dup2(nowhere, place)
        code = 1
        try:
            code = importlib.import_module(module).main(argv) or 0
        except SystemExit as leave:
            code = leave.code
        finally:
            os.write(theirs, json.dumps({"code": code, "modules": list(sys.modules)}).encode())
            os._exit(0)
    os.close(theirs)
    print(os.fdopen(ours).read(), flush=True)
    os.waitpid(pid, 0)
"""
