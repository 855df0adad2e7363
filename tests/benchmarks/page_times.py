"""How long a person waits for a drawn answer in a browser: a new question of sixteen sites, and one asked before.

python -m tests.benchmarks.page_times [questions]

Debian's Chromium on the workbench of a coordinator whose analysts' port is a process of its own, 1,000 rows a site, all
on one machine. *New*: from the press of Ask to the forest plot decoded and painted, each question another. *Asked
again*: the same, in a window that has nothing in its cache. *Opened*: the answer's own address in such a window. Before
the first one question is asked, which reads the tables.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.record import sized

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the suite's own stage

SEED = 26
ROWS, SITES = sized((1000, 16), (200, 2))
PRESS = """() => {
  sessionStorage.begun = performance.timeOrigin + performance.now();
  document.querySelector('#send').click();
}"""
DRAWN = """async () => {
  const figure = document.querySelector('.figure img');
  await figure.decode();
  await new Promise(then => requestAnimationFrame(() => requestAnimationFrame(then)));
  const begun = Number(sessionStorage.begun) || performance.timeOrigin;
  return [(performance.timeOrigin + performance.now() - begun) / 1000, figure.naturalWidth];
}"""


def waited(window: Any) -> float:
    """Seconds until the answer of the window stands there drawn."""
    window.wait_for_url("**/results/*", wait_until="commit")
    window.wait_for_selector(".figure img")
    seconds, width = window.evaluate(DRAWN)
    assert width > 100
    return float(seconds)


def asked(window: Any, age: int) -> float:
    """Seconds from the press of Ask to the drawn answer."""
    window.goto("/studies/cvd/ask")
    window.get_by_label("Exposure").select_option("sbp")
    window.get_by_label("Per so many of its units").fill("10")
    window.locator("[name=adjust][value=age]").check()
    window.locator("[name=subset_column]").select_option("age")
    window.locator("[name=subset_is]").select_option(">=")
    window.locator("[name=subset_value]").fill(f"{age}")
    window.get_by_text(f"cox(time, cvd, subset = age >= {age}) ~ sbp/10 + age").wait_for()
    window.evaluate(PRESS)
    return waited(window)


def followed(window: Any, place: str) -> float:
    """Seconds from the opening of an answer's address to its drawing."""
    window.goto(place, wait_until="commit")
    return waited(window)


def shares(seconds: list[float]) -> dict[str, float]:
    """Half, 95 % and all of them within so many seconds."""
    ordered = sorted(seconds)
    at = {"median": len(ordered) // 2, "p95": min(len(ordered) - 1, round(0.95 * len(ordered))), "max": -1}
    return {name: round(ordered[k], 3) for name, k in at.items()}


def main(questions: int = sized(20, 1)) -> None:
    """Ask, ask again, open, and write what each took."""
    from playwright.sync_api import sync_playwright
    from stage.browser.web_stage import WebStage
    from stage.browser.windows import CHROMIUM, enter, opened
    from stage.coordinator_side.delivered import cohort_plan

    from tests.benchmarks import record
    from tests.benchmarks.analysis_load import spent

    with tempfile.TemporaryDirectory(prefix="page-times-") as folder, sync_playwright() as started:
        stage = WebStage(Path(folder) / "hub")
        stage.publish(cohort_plan(), sites={f"site-{k:02}": ROWS for k in range(SITES)})
        token = stage.admit("ada")
        stage.start(apart=True)
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        load, times, cpu = os.getloadavg()[0], dict[str, list[float]](), dict[str, float]()
        pid = stage.running._analysis.pid

        def taken(name: str, ask: Callable[[], list[float]]) -> None:
            before = spent(pid)
            times.setdefault(name, []).extend(ask())
            cpu[name] = cpu.get(name, 0.0) + spent(pid) - before

        try:
            with opened(chromium, stage.url) as window:
                enter(window, token)
                taken("unread", lambda: [asked(window, 30)])
                taken("new", lambda: [asked(window, 31 + k) for k in range(questions)])
                places = [f"{stage.url}/studies/cvd/results/{one}" for one in _results(stage, token)]
            for k in range(questions):
                with opened(chromium, stage.url) as window:
                    enter(window, token)
                    taken("asked again", lambda window=window, k=k: [asked(window, 31 + k)])
                with opened(chromium, stage.url) as window:
                    enter(window, token)
                    taken("opened", lambda window=window, k=k: [followed(window, places[k])])
        finally:
            chromium.close()
            stage.running.stop(1)
            stage.store.close()
    results = {"sites": SITES, "rows": ROWS, "questions": questions, "load_before": round(load, 1)}
    results |= {"seconds": {name: shares(found) for name, found in times.items()}}
    results |= {"coordinator_cpu_s": {name: round(cpu[name] / len(found), 3) for name, found in times.items()}}
    for name, found in results["seconds"].items():
        print(name, found)
    print(record.write("page_times", results, SEED))


def _results(stage: Any, token: str) -> list[str]:
    """The ids of the answers that were given."""
    with stage.web(token) as web:
        lines = web.get("/v1/studies/cvd/log").json()["lines"]
    return [line["subject"] for line in lines if line["kind"] == "query"][1:]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
