"""A study that answers every kind of question, served for those who ask it through several doors.

python -m tests.stage.coordinator_side.doors      writes the answers that the R package's own tests read
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the other tests' modules are read as pytest reads them
    sys.path.insert(0, str(Path(__file__).parents[2]))

import httpx
import numpy as np
import pandas as pd
from stage.both_sides.service import started
from stage.coordinator_side.delivered import STUDIES, cohort, deliver, join
from stage.mechanisms.contacts import Ward, contacts_plan

from coordinator.analyst.remote import Pass, connect
from coordinator.config import AnalysisSettings
from coordinator.services.analysts import Analysts
from coordinator.services.authority import Authority
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.plans.plan import StudyPlan, sign_plan
from shared.simulated import contact_networks
from shared.wire.transport import SERVER_NAME

SITES = {"alpha": 200, "beta": 160, "gamma": 120}
COLUMNS = """
[dictionary.columns.arm]
kind = "nominal"
levels = ["placebo", "drug"]

[dictionary.columns.smoking]
kind = "nominal"
levels = ["never", "former", "current"]

[dictionary.columns.visits]
kind = "integer"
lower = 0
upper = 60
"""
ROOT = Path(__file__).resolve().parents[3]
PACKAGE, PAGE = ROOT / "deploy" / "r", ROOT / "docs" / "r.md"
RECORDED = PACKAGE / "tests" / "testthat" / "answers"
VIGNETTE = PACKAGE / "vignettes" / "tributarymeta.Rmd"
NEEDED = ("httr2", "jsonlite", "generics", "knitr", "metafor")


def lacking() -> str:
    """What R lacks here for the package; blank for nothing."""
    if shutil.which("Rscript") is None:
        return "Rscript is not installed"
    asked = f"cat(setdiff(c({', '.join(map(repr, NEEDED))}), rownames(installed.packages())))"
    missing = subprocess.run(["Rscript", "-e", asked], capture_output=True, text=True, check=True).stdout
    return f"R lacks {missing}" if missing else ""


def installed(library: Path) -> Callable[..., str]:
    """Install the package into a folder; what runs a script with it, and gives what that printed."""
    how = ["--no-docs", "--no-test-load", "--no-byte-compile", "--no-staged-install", f"--library={library}"]
    subprocess.run(["R", "CMD", "INSTALL", *how, PACKAGE], check=True, capture_output=True)

    def run(script: str, **variables: str) -> str:
        given = {**os.environ, "R_LIBS": str(library), "LC_ALL": "C.UTF-8", **variables}
        words = ["Rscript", "-e", f"suppressMessages(library(tributarymeta))\n{script}"]
        done = subprocess.run(words, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def page(knitted: str) -> str:
    """A page of the documentation from a knitted vignette: results' ids, which no two studies share, are shortened."""
    body = re.sub(r"^---\n.*?\n---\n", "# Ask a study from R\n", knitted, count=1, flags=re.DOTALL)
    return re.sub(r"\b[0-9a-f]{32}\b", "...", re.sub(r"\n{3,}", "\n\n", body))


def table(n: int, seed: int) -> pd.DataFrame:
    """A simulated release: the shipped cohort study's columns, two factors and a count."""
    rng = np.random.default_rng([seed, 1])
    made = cohort(n, seed)
    for name, levels in (("arm", ["placebo", "drug"]), ("smoking", ["never", "former", "current"])):
        made[name] = pd.Categorical(rng.choice(levels, n), categories=levels)
    return made.assign(visits=rng.negative_binomial(3, 0.4, n).clip(0, 60))


PATIENT = AnalysisSettings(rate=6000, burst=6000)
"""Requests a minute, and at once: all doors share one token here."""


class House:
    """A coordinator that has the study, and a token for it."""

    def __init__(self, home: Path) -> None:
        self.home, lead = home, SigningKey.generate()
        self.authority = Authority.create(home, coordinator="tributary-hub", names=("127.0.0.1", "localhost"))
        store = Store.open(home)
        plan = StudyPlan.from_toml((STUDIES / "cvd.toml").read_text() + COLUMNS)
        self.plan, self.sites, self._store, self._keys, self._lead = plan, tuple(SITES), store, {}, lead
        tables = {site: table(n, seed) for seed, (site, n) in enumerate(SITES.items())}
        self._publish(plan, tables)
        web = {"listen": "127.0.0.1:0", "certificate": "", "key": ""}
        self.running = started(home, analysts="127.0.0.1:0", web=web, analysis=PATIENT)
        self.url = f"https://127.0.0.1:{self.running.web_port}"
        self.token, self.file = self._admit("ada", plan.study)

    def _publish(self, plan: StudyPlan, tables: Mapping[str, pd.DataFrame]) -> None:
        """Sign a plan, and deliver a release of it from each site."""
        self._store.add_plan(sign_plan(plan, [self._lead]), plan)
        for site, released in tables.items():
            leads = [self._lead.public]
            given = self.authority.invite(site, [plan.study], address="localhost:1", leads=leads, days=300)
            self._store.add_invitation(given)
            self._keys[site] = join(self._store, given)
            deliver(self._store, plan, site, self._keys[site], released)

    def _admit(self, name: str, study: str) -> tuple[Pass, Path]:
        """A token of one study, and its file."""
        today = dt.datetime.now(dt.UTC).date()
        account, token = Analysts(self._store).add(name, studies=(study,), role="analyst", days=30, today=today)
        given = Pass(
            address=f"127.0.0.1:{self.running.analysts_port}",
            server_name=SERVER_NAME,
            ca_pem=self.authority.ca_pem,
            name=name,
            role="analyst",
            studies=(study,),
            expires=account.expires.isoformat(),
            token=token,
        )
        file = self.home / f"{name}.token.json"
        given.save(file)
        return given, file

    def client(self, token: Pass | None = None) -> httpx.Client:
        """Who asks over HTTPS with the token."""
        tls = ssl.create_default_context(cadata=self.token.ca_pem)
        bearer = {"authorization": f"Bearer {(token or self.token).token}"}
        return httpx.Client(base_url=self.url, verify=tls, headers=bearer, timeout=120)

    def networks(self, folder: Path) -> tuple[Pass, Path]:
        """Publish a study of networks, of three wards' contacts; a token of it, and its file."""
        plan, released = contacts_plan(coordinator="tributary-hub"), {}
        for ward, files in contact_networks(np.random.default_rng(1), sites=3, n=200, mean_degree=12).items():
            (folder / ward).mkdir()
            released[ward] = Ward(folder / ward, *files).release(plan).table
        self._publish(plan, released)
        return self._admit("ned", plan.study)

    def second_wave(self) -> None:
        """Each site delivers again, persons of its own."""
        for seed, (site, n) in enumerate(SITES.items()):
            deliver(self._store, self.plan, site, self._keys[site], table(n + 30, 40 + seed), wave=2)


def _lean(document: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without what no test of the package reads: proofs, hashes, curves."""
    kept = {name: value for name, value in document.items() if name not in ("curves", "receipts", "sources")}
    held = {name: document["provenance"][name] for name in ("plan", "code")}
    rows = [{**row, "receipts": []} for row in document["rows"]]
    return {
        **kept,
        "provenance": held,
        "rows": rows,
        "estimates": [{**r, "receipts": []} for r in document["estimates"]],
    }


AGREE = {"rel_tol": 1e-9, "abs_tol": 1e-12}
"""Two recorded numbers within this are one: machines differ in the last digits, and the package's tests read six."""
OF_A_RUN = ("day",)
"""What is another whenever it is asked."""


def settled(found: Any, recorded: Any) -> Any:
    """What was found, with what is recorded in its place wherever both agree.

    >>> settled({"beta": 0.30000000000000004, "day": "2026-11-29", "k": 4}, {"beta": 0.3, "day": "2026-11-27", "k": 3})
    {'beta': 0.3, 'day': '2026-11-27', 'k': 4}
    """
    if isinstance(found, dict) and isinstance(recorded, dict):
        same = [name for name in OF_A_RUN if name in found and name in recorded]
        kept = {name: settled(value, recorded.get(name)) for name, value in found.items()}
        return kept | {name: recorded[name] for name in same}
    if isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        return [settled(*pair) for pair in zip(found, recorded, strict=True)]
    if isinstance(found, float) and isinstance(recorded, float) and math.isclose(found, recorded, **AGREE):
        return recorded
    return found


def write_answer(path: Path, document: Any) -> None:
    """Write an answer as JSON; of a file that is there only what has moved."""
    found = json.loads(json.dumps(document))
    if path.exists():
        found = settled(found, json.loads(path.read_text(encoding="utf-8")))
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Ask, and write what was answered."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        house = House(Path(folder))
        with connect(house.token) as connection:
            study = connection["cvd"]
            found = {
                "cox": _lean(study.cox("Surv(time, cvd) ~ sbp/10 + C(smoking) + strata(arm)").document),
                "interaction": _lean(study.logistic("cvd ~ age * arm", term="age:arm[drug]").document),
                "survival": _lean(study.km("Surv(time, cvd) ~ 1", at=5).document),
                "studies": connection.studies().document,
                "dictionary": study.dictionary().document,
                "log": study.log().document,
            }
        run = installed(Path(folder))
        knitted = Path(folder) / "r.md"
        run(
            f"knitr::knit({str(VIGNETTE)!r}, {str(knitted)!r}, quiet = TRUE)",
            TRIBUTARY_URL=house.url,
            TRIBUTARY_ANALYST_TOKEN=str(house.file),
        )
        house.running.stop()
        PAGE.write_text(page(knitted.read_text(encoding="utf-8")), encoding="utf-8")
    RECORDED.mkdir(parents=True, exist_ok=True)
    for name, document in found.items():
        write_answer(RECORDED / f"{name}.json", document)


if __name__ == "__main__":
    main()
