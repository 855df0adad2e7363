"""Years of a network in minutes, as whole processes: renewals, absence, kills, a new authority, one turned clock."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stage.both_sides.membership import Clock, Membership
from stage.house.version_before import tree_of_before
from stage.processes.theatre import Theatre, plan_toml

from coordinator.config import CoordinatorConfig
from coordinator.store.store import Store
from shared.base.clock import utc_now
from shared.privacy import accountant as privacy
from shared.wire.certificates import CertificateLife

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
SOAK = bool(os.environ.get("TRIBUTARY_SOAK"))
soaked = pytest.mark.skipif(not SOAK, reason="set TRIBUTARY_SOAK")


class Network:
    """A coordinator that serves as a process of its own, and sites whose agents run one round a process."""

    def __init__(self, folder: Path, monkeypatch, *sites: str) -> None:
        self.clock = Clock(folder, monkeypatch)
        self.member = Membership(folder, self.clock, *sites)
        self.member.close()
        self.home, self.homes = self.member.hub.home, self.member.homes
        config = CoordinatorConfig(home=self.home, name="hub", address="127.0.0.1:8443", names=("127.0.0.1",))
        (self.home / "coordinator.toml").write_text(config.to_toml())
        self.process: subprocess.Popen[str] | None = None
        self.port = self.member.hub.port

    def environment(self, failpoint: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "TRIBUTARY_FAILPOINT"}
        return kept | {"PYTHONPATH": str(ROOT)} | ({"TRIBUTARY_FAILPOINT": failpoint} if failpoint else {})

    def serve(self, failpoint: str = "") -> None:
        argv = [sys.executable, "-m", "coordinator.cli", "--home", str(self.home), "serve"]
        self.process = subprocess.Popen(
            [*argv, "--address", f"127.0.0.1:{self.port}"],
            env=self.environment(failpoint),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        assert "answers on" in self.process.stdout.readline()

    def end(self) -> int:
        """End the coordinator, if it has not ended; how."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    def site(self, name: str, *words: str, failpoint: str = "") -> tuple[int, str]:
        argv = [sys.executable, "-m", "site_agent.cli", *words, "--home", str(self.homes[name]), "--json"]
        done = subprocess.run(
            argv, env=self.environment(failpoint), capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT
        )
        return done.returncode, done.stdout

    def round(self, name: str, failpoint: str = "") -> dict[str, str]:
        code, out = self.site(name, "run", "--once", failpoint=failpoint)
        if code < 0:
            return {"killed": str(-code)}
        return {line["what"]: line["code"] for line in map(json.loads, out.splitlines())}

    def lead(self, *words: object) -> dict:
        argv = [sys.executable, "-m", "coordinator.cli", "--home", str(self.home), *map(str, words), "--json"]
        done = subprocess.run(
            argv, env=self.environment(""), capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def life(self, name: str) -> CertificateLife:
        return CertificateLife.of((self.homes[name] / "certificates/site.pem").read_text(), utc_now())


@pytest.fixture
def network(tmp_path, monkeypatch):
    made = Network(tmp_path, monkeypatch, "north", "south", "west")
    yield made
    if made.process is not None:
        made.end()


@pytest.mark.soak
@soaked
def test_processes_killed_in_the_middle_of_a_renewal_go_on_from_there(network):
    network.clock.turn(210)
    network.serve("renewal.after_commit")
    network.round("north")
    assert network.end() == -signal.SIGKILL
    network.serve()
    assert network.round("north", "renewal.before_key") == {"killed": f"{signal.SIGKILL.value}"}
    said = network.round("north")
    assert not {"not connected", "offline", "certificate not renewed", "no plan"} & said.keys()
    assert network.life("north").days > 390


class Years:
    """Sites, studies and their people over years: every step a wave, and between the waves what happens in years.

    Args:
        days: length of a step.
        away: steps at which the last site does not run.
        returning: what a wave does with persons of an earlier one; under ``frozen`` new ones come with each.
    """

    def __init__(
        self,
        theatre: Theatre,
        clock: Clock,
        sites: Sequence[str],
        *,
        days: int,
        away: Sequence[int] = (),
        returning: str = "refresh",
    ) -> None:
        self.theatre, self.clock, self.sites, self.days, self.away = theatre, clock, sites, days, away
        self.returning = returning
        self.start, self.due = utc_now().date(), set[tuple[str, int, str]]()
        self.approver = dict.fromkeys(sites, "steward")
        self.table = theatre.folder / "cohort.csv"
        self.admitted(2)
        self.adopted: set[tuple[str, str]] = set()

    def admitted(self, times: int) -> None:
        """The table after so many times 60 persons have come."""
        rng, n = np.random.default_rng(7), 60 * times
        sbp, chol, died = rng.uniform(100, 200, 960), rng.uniform(150, 300, 960), rng.integers(0, 2, 960)
        frame = pd.DataFrame({"person": [f"p{i}" for i in range(960)], "sbp": sbp, "chol": chol, "died": died})
        frame.head(n).to_csv(self.table, index=False)

    def plan(self, study: str, steps: int, *, retention: bool = True) -> str:
        """A wave at each step.

        Args:
            retention: False for a plan as the version before writes it.
        """
        expires = self.start + dt.timedelta(days=self.days * (steps + 2))
        text = plan_toml(study, waves=0, expires=expires, returning=self.returning)
        if not retention:
            text = text.partition("[retention]")[0] + "[release]" + text.partition("[release]")[2]
        waves = ""
        for step in range(1, steps + 1):
            opens = self.start + dt.timedelta(days=self.days * (step - 1))
            closes = opens + dt.timedelta(days=self.days // 2)
            waves += f"[[waves]]\nnumber = {step}\nopens = {opens}\ncloses = {closes}\n"
        return text.replace("[dictionary]", f"{waves}\n[dictionary]", 1)

    def open(self, study: str, steps: int, **how: bool) -> None:
        """The first study, and its sites."""
        self.theatre.open(self.plan(study, steps, **how))
        for site in self.sites:
            self.theatre.join(site, self.table, study)
            self.adopted.add((site, study))

    def adopt(self, site: str, study: str) -> None:
        """A site's steward agrees to a study."""
        self.theatre.agent(site, "plan", "fetch", study)
        self.theatre.agent(site, "data", "add", self.table, "--as", study)
        self.theatre.agent(site, "data", "map", study, "--ignore-rest")
        self.theatre.agent(site, "plan", "approve", study, "--as", self.approver[site], "--understood", "local")
        self.adopted.add((site, study))

    def here(self, step: int) -> list[str]:
        """Sites that run at this step."""
        return [site for site in self.sites if not (site == self.sites[-1] and step in self.away)]

    def round(self, site: str) -> None:
        """A round of the agent, which may not fail for a certificate, a key or a lead."""
        done = self.theatre.agent(site, "run", "--once", expect=None)
        codes = {line["what"] for line in map(json.loads, done.out.splitlines()) if "what" in line}
        bad = {"not connected", "offline", "certificate not renewed", "no plan", "not released"}
        assert not bad & codes, str(done)

    def decided(self, site: str, step: int) -> None:
        """A person approves what waits of this step, and it is sent."""
        for study in sorted(study for name, study in self.adopted if name == site):
            release = self.theatre.waiting(site, step, study)
            assert release, (site, study, step)
            approve = ("approve", release, "--as", self.approver[site])
            said = self.theatre.agent(site, *approve, expect=None).json
            if (
                said.get("refused", {}).get("code") == "E_NOT_APPROVED"
            ):  # outliers, as chance has them: they look, and tick
                said = self.theatre.agent(site, *approve, "--tick", said["refused"]["given"].split()[0]).json
            assert said["state"] == "delivered", said
            self.due.add((study, step, site))

    def step(self, step: int) -> None:
        """Time passes, and whatever is due is made, approved and sent."""
        self.clock.turn(self.days if step > 1 else 0)
        if self.returning == "frozen":
            self.admitted(step)
        for site in self.here(step):
            self.round(site)
            self.decided(site, step)

    # -- what happens in years --------------------------------------------------------------------------------------
    def upgraded(self) -> None:
        """All run the version before, and are updated one by one, with a first wave that is on its way.

        One site's release was delivered to the coordinator of before; one is approved and delivered by the agent of
        before to the updated coordinator; of the others one waits for a person while its agent is updated.
        """
        (first, second, *others), stage = self.sites, self.theatre
        for site in self.sites:
            self.round(site)
        self.decided(first, 1)
        stage.stop()
        waits = stage.waiting(second, 1)
        stage.agent(second, "approve", waits, "--as", self.approver[second], expect=None)
        queue = {row["release_id"]: row["state"] for row in stage.agent(second, "outbox", "list").json["releases"]}
        assert queue == {waits: "approved"}
        del stage.versions["coordinator"]
        stage.serve()
        self.round(first)
        self.decided(second, 1)
        for site in (*others, first, second):
            del stage.versions[site]
            for study in sorted(study for name, study in self.adopted if name == site):
                # An approval is of one version of the agent: a person looks again.
                stage.agent(site, "plan", "approve", study, "--as", self.approver[site], "--understood", "local")
            self.round(site)
            if site in others:
                self.decided(site, 1)

    def second_study(self, name: str, steps: int) -> None:
        """Another study is signed, and granted to all, at another time."""
        self.theatre.sign(self.plan(name, steps))
        for site in self.sites:
            self.theatre.coordinator("grant", site, "--study", name)
            self.theatre.agent(site, "grants")
            self.adopt(site, name)

    def new_authority(self) -> None:
        assert self.theatre.coordinator("ca", "rotate").json["rotated"]

    def new_keys(self, *sites: str) -> None:
        """Every kind of key of these sites, and a lead's."""
        for site in sites:
            for role in ("release", "tls", "snapshot"):
                self.theatre.agent(site, "rotate-key", role, "--as", self.approver[site])
        self.theatre.coordinator("lead", "add", "second", "--key", "lead")
        self.theatre.coordinator("lead", "retire", "lead", "--key", "second")
        for study in sorted({study for _, study in self.adopted}):
            self.theatre.coordinator("plan", "cosign", study, "--key", "second")

    def new_people(self, *sites: str) -> None:
        """At these sites the one who approves leaves, and another confirms the plans."""
        for site in sites:
            before, self.approver[site] = self.approver[site], "successor"
            self.theatre.agent(site, "approver", "add", self.approver[site], "--as", before)
            self.theatre.agent(site, "approver", "retire", before, "--as", self.approver[site])
            for study in sorted(study for name, study in self.adopted if name == site):
                words = ("plan", "approve", study, "--as", self.approver[site], "--understood", "local")
                self.theatre.agent(site, *words)

    def restored_site(self, site: str, step: int) -> None:
        """A site is lost, and put back from a backup of before its last wave, which it counts as spent."""
        archive = self.theatre.folder / f"{site}.backup"
        read_out = self.theatre.agent(site, "backup", archive).json["fingerprint"]
        self.step(step)
        shutil.rmtree(self.theatre.home(site))
        words = ("restore", archive, "--as", self.approver[site])
        self.theatre.agent(site, *words, "--fingerprint", read_out)
        found = self.theatre.agent(site, "ledger", "recover").json
        self.theatre.coordinator("reanchor", site, "--fingerprint", found["fingerprint"])
        assert self.theatre.agent(site, "ledger", "recover").json["state"] == "done"
        self.renewed_by_hand(site)

    def renewed_by_hand(self, site: str) -> None:
        """A site whose backup is from before its last renewal is given a certificate by its lead."""
        request, answer = (self.theatre.folder / f"{site}.{what}" for what in ("request", "answer"))
        shown = self.theatre.agent(site, "renew", "--late", "--out", request).json["fingerprint"]
        words = ("renew-late", site, "--request", request, "--out", answer, "--fingerprint", shown)
        self.theatre.coordinator(*words)
        self.theatre.agent(site, "renew", "--late", "--answer", answer)

    def restored_coordinator(self, step: int) -> None:
        """The coordinator is put back from before its last wave; its sites send that again."""
        archive = self.theatre.folder / f"backup-{step}.tar"
        (lead, *_) = self.theatre.coordinator("backup", archive).json["for"]
        self.step(step)
        self.theatre.stop()
        words = ("restore", archive, "--as", lead, "--replace", "--reason", "the disk failed")
        self.theatre.coordinator(*words, "--date", utc_now().date())
        self.theatre.serve()
        for site in self.here(step):
            self.round(site)
            self.theatre.agent(site, "resend", expect=None)

    # -- at the end -------------------------------------------------------------------------------------------------
    def drawn(self, site: str) -> tuple[dict[str, list[list[float]]], int]:
        """Whose rows went into each draw of a sealed release, from notes that no restore can undo.

        Returns: by release, a seal without a draw as one of nobody; and how many draws nothing was sealed after.
        """
        out: dict[str, list[list[float]]] = {}
        unsealed: list[list[float]] = []
        for note in self.theatre.noted(site):
            if note["kind"] == "draw":
                unsealed.append(note["rows"])
            elif note["kind"] == "seal":
                out.setdefault(note["release_id"], []).extend(unsealed or [[]])
                unsealed = []
        return out, len(unsealed)

    def under_counted(self, site: str, studies: dict[str, str]) -> int:
        """Studies whose stated total is below what was drawn of the person who was drawn most.

        Args:
            studies: of each release that was drawn.
        """
        stated = {total["study"]: total for total in self.theatre.agent(site, "budget").json["totals"]}
        events = {
            body["study"]: privacy.from_canonical(body["event"])
            for kind, body in self.theatre.entries(site)
            if kind in ("reserve", "lost") and "event" in body
        }
        persons: dict[str, Counter[float]] = {}
        for release, draws in self.drawn(site)[0].items():
            persons.setdefault(studies[release], Counter()).update(row for rows in draws for row in rows)
        wrong = 0
        for study, times in persons.items():
            most = times.most_common(1)[0][1]
            truth = privacy.epsilon_from_rdp(most * privacy.rdp(events[study]), stated[study]["delta"])
            wrong += not stated[study]["epsilon"] >= truth * (1 - 1e-12)
        return wrong

    def ended(self, record: Callable[[str, object], None], *, renewals: int) -> None:
        """Everything that was due is there once, paid for, verified by whoever looks."""
        stage = self.theatre
        with closing(Store.open(stage.hub)) as store:
            assert store.verify_log() == store.entries()
            record("signatures verified", store.verify_signatures())
            releases = store.releases()
            kinds = Counter(json.loads(entry.entry)["kind"] for entry in store.log())
        delivered = {(one.study, one.wave, one.site) for one in releases}
        studies = {one.release_id: one.study for one in releases}
        draws = second = under = exports = logs = 0
        for site in self.sites:
            found, unsealed = self.drawn(site)
            count = sum(map(len, found.values())) + unsealed
            draws += count
            second += count - len(found)
            under += self.under_counted(site, studies)
            stage.agent(site, "log")
            logs += 1
            for study in sorted(study for name, study in self.adopted if name == site):
                folder = stage.folder / f"export-{site}-{study}"
                stage.agent(site, "audit", "export", study, "--out", folder)
                said = subprocess.run([sys.executable, "verify.py"], cwd=folder, capture_output=True, text=True)
                assert said.returncode == 0, said.stdout + said.stderr
                exports += 1
        counts = {
            "days": round(self.clock.days),
            "waves due": len(self.due),
            "waves delivered": len(delivered & self.due),
            "draws": draws,
            "second draws": second,
            "budget under-counts": under,
            "exports verified": exports,
            "sites that verified the log": logs,
            "log entries": dict(sorted(kinds.items())),
        }
        for name, count in counts.items():
            record(name, count)
        assert delivered == self.due
        assert len(releases) == len(delivered) == draws
        assert (second, under) == (0, 0)
        assert kinds["renewal"] >= renewals


@pytest.fixture
def theatre(tmp_path, monkeypatch):
    clock = Clock(tmp_path, monkeypatch)
    made = Theatre(tmp_path / "years")
    yield made, clock
    made.close()


def test_two_sites_live_through_what_happens_in_years(theatre, record_property):
    """The years in little, of waves that copy what was released: absence, upgrade and three years has the soak."""
    stage, clock = theatre
    years = Years(stage, clock, ("north", "south"), days=210, returning="frozen")
    years.open("storm", 3)
    years.step(1)
    years.new_authority()
    years.new_keys("north")
    years.new_people("south")
    years.restored_coordinator(2)
    years.restored_site("south", 3)
    years.ended(record_property, renewals=2)


@pytest.mark.soak
@soaked
def test_three_years_of_two_studies_at_three_sites(theatre, tmp_path, record_property):
    """Thirteen quarters: upgrade, grants, every kind of key, people, absence, and a backup put back on each side."""
    stage, clock = theatre
    years = Years(stage, clock, ("north", "south", "west"), days=91, away=(8,))
    before = tree_of_before(tmp_path)
    stage.versions |= dict.fromkeys(("coordinator", *years.sites), before)
    years.open("storm", 13, retention=False)
    years.upgraded()
    for step in range(2, 14):
        if step == 3:
            years.second_study("heart", 13)
        elif step == 5:
            years.new_authority()
        elif step == 6:
            years.new_keys(*years.sites)
        elif step == 10:
            years.new_people(*years.sites)
        if step == 4:
            years.restored_site("south", step)
        elif step == 12:
            years.restored_coordinator(step)
        else:
            years.step(step)
    years.ended(record_property, renewals=3 * len(years.sites))


@pytest.mark.soak
@soaked
def test_three_years_pass_with_a_change_of_authority_an_absence_and_a_late_return(network, tmp_path, record_property):
    quarters = 13
    away = range(3, 9)  # of west: 20 months
    network.serve()
    rounds = 0
    for quarter in range(quarters):
        network.clock.turn(91)
        for name in ("north", "south", "west"):
            if name == "west" and quarter in away:
                continue
            if name == "south" and quarter == 1:  # a site has called since, so that the clock is believed
                assert network.lead("ca", "rotate")["rotated"]
            if name == "west" and quarter == away.stop:
                request, answer = tmp_path / "request", tmp_path / "answer"
                shown = json.loads(network.site(name, "renew", "--late", "--out", str(request))[1])["fingerprint"]
                network.lead("renew-late", name, "--request", request, "--out", answer, "--fingerprint", shown)
                assert network.site(name, "renew", "--late", "--answer", str(answer))[0] == 0
            for _ in range(2):
                said = network.round(name)
                rounds += 1
            assert not {"not connected", "offline", "certificate not renewed", "no plan"} & said.keys(), said
            assert network.life(name).days > 100
    assert network.end() == 0
    with closing(Store.open(network.home)) as store:
        store.verify_log()
        assert [one.state for one in store.sites()] == ["accepted"] * 3
    record_property("rounds", rounds)
    record_property("quarters", quarters)
