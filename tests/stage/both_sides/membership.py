"""A coordinator and sites with real folders, real mutual TLS, and one clock that a test turns: for tests of years."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

from stage.both_sides.service import LEAD, SMALL, Hub

from coordinator.services.compute import workers
from coordinator.services.compute.tasks import ANSWERING, READING
from shared.base.clock import CLOCK_VARIABLE
from shared.base.keys import write_private
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.invitation import certificate_fingerprint
from shared.plans.plan import Budget, StudyPlan, Wave
from site_agent.config import SiteConfig
from site_agent.decide import attending
from site_agent.decide.plans import AgentNow
from site_agent.desk import Desk, open_desk, today
from site_agent.ledger.book import Ledger

ALWAYS = dt.date(2000, 1, 1), dt.date(2999, 1, 1)


def study_plan(name: str = "small", **changes) -> StudyPlan:
    values = {
        "study": name,
        "version": 1,
        "title": "A small study",
        "purpose": "To last for years.",
        "coordinator": "hub",
        "expires": ALWAYS[1],
        "release": LatentNoisePlan(w=0.8),
        "budget": Budget(epsilon=1e5),
        "waves": (Wave(number=1, opens=ALWAYS[1].replace(year=2998), closes=ALWAYS[1]),),
        "dictionary": SMALL,
    }
    return StudyPlan(**{**values, **changes})


class Clock:
    """The clock of every program of this test, those that it starts too."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.path, self.days = folder / "clock", 0.0
        self.turn(0)
        for imports in (READING, ANSWERING):
            workers._fork_server(imports)  # it outlives this test, and with it the environment that it began in
        monkeypatch.setenv(CLOCK_VARIABLE, str(self.path))
        monkeypatch.delenv("TRIBUTARY_TODAY", raising=False)

    def turn(self, days: float) -> None:
        """Let days pass for everybody."""
        self.days += days
        part = self.path.with_suffix(".part")
        part.write_text(f"{86_400 * self.days}")
        part.replace(self.path)


class Membership:
    """A served coordinator and the folders of its sites.

    A server's connections are made anew for each call of a site, as the agent does.
    """

    def __init__(self, folder: Path, clock: Clock, *sites: str) -> None:
        self.folder, self.clock = folder, clock
        self.hub = Hub(folder / "hub", study_plan(), *sites)
        self.server = self.hub.serve()
        self.homes = {site: self._folder(site) for site in sites}

    def _folder(self, site: str) -> Path:
        """A site's folder as ``init`` and ``join`` leave it."""
        home, keys = self.folder / site, self.hub.sites[site]
        config = SiteConfig(
            home=home,
            site=site,
            coordinator="hub",
            address=f"127.0.0.1:{self.hub.port}",
            server_name="tributary-coordinator",
            ca_fingerprint=certificate_fingerprint(self.hub.authority.ca_pem),
            leads=(LEAD.public.hex,),
            threshold=1,
            studies=("small",),
            approvers={"steward": keys.steward.public.hex},
        )
        keys.release.save(config.release_key)
        write_private(config.tls_key, keys.identity[0].encode())
        write_private(config.snapshot_key, b"k" * 32)
        write_private(config.ca, self.hub.authority.ca_pem.encode())
        write_private(config.ca.with_name("witness.pub"), f"{self.hub.authority.witness.public.hex}\n".encode())
        write_private(config.certificate, keys.certificate.encode())
        Ledger.create(config.ledger, keys.release, site=site)
        config.save()
        return home

    def desk(self, site: str = "north") -> Desk:
        return open_desk(self.homes[site])

    def round(self, site: str = "north", **settings) -> dict[str, str]:
        """One round of the site's agent: what it said, by what happened; no refusal is let pass unseen."""
        told: list[attending.AttendEvent] = []
        working = lambda egress: None  # noqa: E731  (no wave of these plans is due)
        attending.attend(
            self.desk(site), site=working, now=AgentNow(version="1", today=today()), say=told.append, **settings
        )
        return {one.what: f"{one.code} {one.detail}".strip() for one in told}

    def connects(self, site: str = "north") -> bool:
        with self.desk(site).egress(attempts=1) as egress:
            return egress.status("small") == ()

    def serve_anew(self) -> None:
        self.server.stop(0)
        self.server = self.hub.serve()
        for home in self.homes.values():
            text = (home / "site.toml").read_text()
            old = text.split('address = "', 1)[1].split('"', 1)[0]
            (home / "site.toml").write_text(text.replace(old, f"127.0.0.1:{self.hub.port}"))

    def close(self) -> None:
        self.server.stop(0)
        self.hub.store.close()


def kinds(site) -> list[str]:
    return [entry.kind for entry in site.desk.ledger.entries()]


def verified(site, study: str = "mini") -> str:
    """What the script in an export of a site says, run as a stranger would."""
    out = site.home / f"export-{len(kinds(site))}"
    site("audit", "export", study, "--out", out)
    done = subprocess.run([sys.executable, "verify.py"], cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
