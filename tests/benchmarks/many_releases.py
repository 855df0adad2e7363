"""A study with 20,000 releases: what its lists and an answer of its 500 sites cost, and how large every page of it is.

python -m tests.benchmarks.many_releases [sites [waves [name]]]

500 sites deliver 40 waves each under ``refresh``, a receipt, statement and signed head each, through the code that
accepts what was uploaded; bundles are on disk for the newest wave alone, since lists read none. Then a coordinator
answers over HTTPS, and each list and page is asked for as a lead: the first time after it started, and again. Two
questions of the newest wave are asked, then the first again many times, and their pages, too. A page's bytes are those
that are sent, its pictures with it. CPU seconds are those of the process that answers analysts.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.record import sized

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

SEED, AGAIN = 26, sized(100, 2)
QUESTIONS = {"model": "cox(time, cvd) ~ sbp/10 + age/10", "curve": "km(time, cvd, at = 5)"}


def plan_of(waves: int):
    """The shipped cohort study, each site's table replaced by every wave."""
    from stage.coordinator_side.delivered import cohort_plan

    from shared.plans.plan import Budget, Wave

    plan = cohort_plan()
    opens = [dt.date(2020, 1, 1) + dt.timedelta(days=30 * k) for k in range(waves)]
    made = tuple(Wave(number=k + 1, opens=day, closes=day + dt.timedelta(days=29)) for k, day in enumerate(opens))
    return replace(plan, waves=made, returning="refresh", budget=Budget(epsilon=1e6))


def filled(home: Path, sites: int, waves: int):
    """A stage whose store holds a release of each site in each wave."""
    from stage.browser.web_stage import WebStage
    from stage.coordinator_side.delivered import APPROVERS, cohort, join

    from shared.base.canonical import sha256_hex
    from shared.plans.plan import sign_plan
    from shared.releases.bundle import write_bundle
    from shared.releases.receipt import ReceiptDraft, write_receipt
    from shared.releases.statement import Statement

    stage, plan = WebStage(home), plan_of(waves)
    stage.store.add_plan(sign_plan(plan, [stage.lead]), plan)
    stage.store.bundles.folder.mkdir(parents=True, exist_ok=True)
    table = cohort(200, SEED)
    names = [f"site-{number:03}" for number in range(1, sites + 1)]
    for name in names:
        invitation = stage.authority.invite(
            name, [plan.study], address="localhost:1", leads=[stage.lead.public], days=300
        )
        stage.store.add_invitation(invitation)
        stage.keys[name] = join(stage.store, invitation)
    model = write_receipt(
        plan,
        ReceiptDraft(
            wave=1, site=names[0], release_id="0" * 32, agent_version="0.1.0", n=len(table), previous="0" * 64
        ),
    )
    for wave in range(1, waves + 1):
        for name in names:
            release_id = sha256_hex(f"{name} {wave}".encode())[:32]
            receipt = replace(model, wave=wave, site=name, release_id=release_id, flow_of=release_id)
            data = write_bundle(receipt, table) if wave == waves else receipt.to_bytes()
            statement = Statement(
                study=plan.study,
                plan_hash=plan.hash,
                plan_version=plan.version,
                wave=wave,
                site=name,
                release_id=release_id,
                recipient=plan.coordinator,
                bundle_sha256=sha256_hex(data),
                bundle_bytes=len(data),
                receipt_sha256=receipt.hash,
                ledger_head="0" * 64,
            )
            if wave == waves:
                (stage.store.bundles.folder / f"{statement.bundle_sha256}.zip").write_bytes(data)
            key = stage.keys[name]
            envelope = statement.sign([key, APPROVERS[key.public.key_id]])
            day = min(plan.waves[wave - 1].closes, dt.date(2026, 1, 5))
            stage.store.accept_release(statement=statement, envelope=envelope, receipt=receipt, today=day)
    return stage


def pages_of(results, sites):
    """Name of a page of a study of so many sites to its address.

    Args:
        results: ids of two answers.
    """
    study, last = "/studies/cvd", -(-sites // 50)
    one, two = results
    return {
        "Studies": "/",
        "Study": study,
        "Ask": f"{study}/ask",
        "Answer": f"{study}/results/{one}",
        "Answer, a curve": f"{study}/results/{two}",
        "Site of an answer": f"{study}/results/{one}/sites/site-{sites:03}",
        "Comparison": f"{study}/compare?a={one}&b={two}",
        "Sites": f"{study}/sites",
        "Sites, last page": f"{study}/sites?page={last}",
        "Waves": f"{study}/waves",
        "Waves, last page": f"{study}/waves?page={last}",
        "Budgets": f"{study}/budgets",
        "Releases": f"{study}/releases",
        "Log": f"{study}/log",
        "Design": "/design",
    }


def sent(web, path):
    """An answer, and the bytes that were sent for it and for the pictures on it."""
    size = 0
    with web.stream("GET", path) as answer:
        answer.read()
        size += answer.num_bytes_downloaded
    assert answer.status_code == 200, (path, answer.status_code, answer.text[:400])
    for picture in sorted(set(re.findall(r'<img src="([^"]+)"', answer.text))):
        size += sent(web, picture)[1]
    return answer, size


def asked(stage, paths, web):
    """Path to what each answer took: CPU seconds of the process that answers, seconds, bytes."""
    from tests.benchmarks.analysis_load import spent

    found = {}
    for name, path in paths.items():
        pid = stage.running._analysis.pid
        before, begun = spent(pid), time.perf_counter()
        _, size = sent(web, path)
        seconds = time.perf_counter() - begun
        cpu = round(spent(pid) - before, 2)
        found[name] = {"cpu_s": cpu, "seconds": round(seconds, 3), "bytes": size}
        print(f"{name}: {found[name]}", flush=True)
    return found


def answered(web):
    """The ids of the answers to the two questions, and the seconds that each took."""
    ids, seconds = [], {}
    for name, formula in QUESTIONS.items():
        begun = time.perf_counter()
        answer = web.post("/v1/studies/cvd/queries", json={"formula": formula})
        seconds[name] = round(time.perf_counter() - begun, 1)
        assert answer.status_code == 200, answer.text[:400]
        ids.append(answer.json()["result"])
    return ids, seconds


def asked_again(stage, web):
    """CPU ms of the process that answers, and ms waited at the median, of a question that was asked before."""
    from tests.benchmarks.analysis_load import spent

    pid, waited = stage.running._analysis.pid, []
    before = spent(pid)
    for _ in range(AGAIN):
        begun = time.perf_counter()
        answer = web.post("/v1/studies/cvd/queries", json={"formula": QUESTIONS["model"]})
        waited.append(time.perf_counter() - begun)
        assert answer.status_code == 200, answer.text[:400]
    return {"cpu_ms": round(1000 * (spent(pid) - before) / AGAIN, 1), "ms": round(1000 * sorted(waited)[AGAIN // 2], 1)}


def main(sites: int, waves: int, name: str) -> None:
    """Make the study, serve it, ask for every list and page twice, and write what they took."""
    from tests.benchmarks import record

    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="many-releases-") as folder:
        begun = time.perf_counter()
        stage = filled(Path(folder) / "hub", sites, waves)
        made = round(time.perf_counter() - begun)
        print(f"{sites * waves} releases in {made} s", flush=True)
        token = stage.admit("lead", role="lead")
        stage.start(apart=True)
        try:
            with stage.web(token) as web:
                first = asked(stage, {"studies": "/v1/studies"}, web)
                middle = web.get("/v1/studies/cvd/releases?most=1").json()["more"] + sites * waves // 2
                lists = {
                    "studies": "/v1/studies",
                    "releases, first page": "/v1/studies/cvd/releases?most=200",
                    "releases, a later page": f"/v1/studies/cvd/releases?most=200&after={middle}",
                    "releases of a site": "/v1/studies/cvd/releases?most=200&site=site-007",
                    "receipts, a page": "/v1/studies/cvd/receipts?most=200&newest=true",
                    "waves, a page": "/v1/studies/cvd/waves?most=50",
                    "budgets": "/v1/studies/cvd/budgets",
                }
                listed = asked(stage, lists, web)
                ids, questions = answered(web)
                again = asked_again(stage, web)
                print(again, flush=True)
            with stage.web() as web:
                web.post("/sign-in", data={"token": token})
                pages = pages_of(ids, sites) | {"Releases, older": f"/studies/cvd/releases?after={middle}"}
                unread = asked(stage, pages, web)
                seen = asked(stage, pages, web)
        finally:
            stage.running.stop(1)
            stage.store.close()
    results = {
        "sites": sites,
        "waves": waves,
        "releases": sites * waves,
        "made_s": made,
        "first": first,
        "load_before": load,
    }
    results |= {
        "lists": listed,
        "pages": seen,
        "pages, the first time": unread,
        "questions_s": questions,
        "asked_again": again,
        "largest": max(one["bytes"] for one in (*listed.values(), *seen.values())),
    }
    print(record.write(name, results, SEED))


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*sized((*map(int, given[:2]), *(500, 40)[len(given) :]), (8, 1)), *(given[2:] or ["many_releases"]))
