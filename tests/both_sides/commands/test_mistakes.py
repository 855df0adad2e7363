"""Eighty mistakes that people make, verb by verb: each is answered in words that help, and by no value of a record."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import make_table
from stage.coordinator_side.homes import collected, homes, hub, written  # noqa: F401
from stage.hospital_side.site_desk import hospital  # noqa: F401

from coordinator.analyst.commands import main as analyst
from shared.errors import CATALOGUE

SECRET = "Geheim"  # begins each identifier of the tables here: on no screen
Mistake = tuple[str, str, str]  # the command line, the code, and what must stand in the answer


def answered(mistakes: Iterable[Mistake], ask: Callable[[list[str]], tuple[int, str, str]], **names: Any) -> list[str]:
    """What is wrong with the answers to (command line, code, pattern): nothing, where all help."""
    wrong = []
    for line, code, pattern in mistakes:
        argv = shlex.split(line.format(**names))
        exit_code, out, err = ask(argv)
        document = json.loads(out) if out.strip().startswith("{") else {}
        said = document.get("refused", {})
        for check in document.get("checks", ()):  # of a plan: all faults at once, each with its fix
            if check["state"] == "fail":
                before = said.get("must", "")
                said = {"code": check["name"], "must": f"{before} {check['detail']}", "next_step": check["fix"]}
        words = " ".join(str(said.get(part, "")) for part in ("must", "given", "next_step"))
        faults = {
            "no refusal": not said,
            f"code {said.get('code')}, not {code}": bool(said) and not re.match(f"({code})", str(said.get("code"))),
            "exit code": code in CATALOGUE and exit_code != CATALOGUE[code].exit_code,
            f"nothing of {pattern!r}": not re.search(pattern, words),
            "no next step": bool(said) and not said.get("next_step"),
            "a traceback": "Traceback" in out + err,
            "a value of a record": SECRET in out + err,
        }
        wrong += [f"{line}\n   {fault}: {words}" for fault, found in faults.items() if found]
    return wrong


STEWARD_BEFORE_INIT = (
    ("status", "E_STATE", "site-agent init"),
    ("init --invitation {folder}/nothing --approver ines", "E_USAGE", "nothing.* does not exist"),
    ("init --invitation {table} --approver ines", "E_SCHEMA", "cohort.csv"),
    ("init --invitation {plan_file} --approver ines", "E_SCHEMA", "--invitation"),
    ("init --invitation {invitation} --approver 'Dr. Müller'", "E_USAGE", "dr-mueller"),
    ("init --invitation {invitation}", "E_USAGE", "--approver"),
    ("intit --invitation {invitation}", "E_USAGE", "init"),
    ("init --invitaton {invitation} --approver ines", "E_USAGE", "--invitation"),
)
STEWARD_BEFORE_JOIN = (
    ("plan fetch mini", "E_STATE", "site-agent join"),
    ("plan show mini", "E_STATE", "plan fetch mini"),
    ("release mini", "E_STATE", "plan fetch mini"),
    ("data add {table} --as mini", "E_STATE", "plan fetch mini"),
    ("init --invitation {invitation} --approver ines", "E_STATE", "site-agent status"),
)
STEWARD_WITH_PLAN = (
    ("plan show mni", "E_STATE", "mini"),
    ("plan approve mini --as dr-lund --understood local", "E_CONFIG", "dr-lind"),
    ("plan approve mini --as dr-lind", "E_NOT_APPROVED", "--understood local"),
    ("plan approve mini --as dr-lind --understood lokal", "E_NOT_APPROVED", "--understood local"),
    ("plan show mini --version 7", "E_STATE", "1"),
    ("release mini", "E_NOT_APPROVED", "plan approve mini"),
    ("data add {folder}/cohrt.csv --as mini", "E_DATA_FILE", "cohrt.csv, which is not there"),
    ("data add {folder}/table.xlsx --as mini", "E_DATA_FILE", "table.xlsx, which is not there"),
    ("data add {folder}/table.xls --as mini", "E_DATA_FILE", "Save as, .xlsx"),
    ("data add {folder} --as mini", "E_DATA_FILE", "CSV or Parquet"),
    ("data add {empty} --as mini", "E_DATA_FILE", "empty"),
    ("data add {table} --as mni", "E_STATE", "mini"),
    ("data add {table}", "E_USAGE", "--as"),
    ("data add {table} --as mini --database DWH", "E_USAGE", ".sql"),
    ("data add {query} --as mini", "E_CONFIG", "--database"),
    ("data add {query} --as mini --database DWH", "E_STATE", "DWH"),
    ("data check mini", "E_STATE", "data add"),
    ("data map mini Alter=age", "E_STATE", "data add"),
)
STEWARD_WITH_TABLE = (
    ("data map mini pressure", "E_USAGE", "FILE_NAME=NAME"),
    ("data map mini bp=sbp", "E_USAGE", "sbp"),
    ("data map mini persn=person --ignore bpp", "E_USAGE", "'persn', 'bpp'.*'person', 'sbp'"),
    ("data map mini sbp=pressure", "E_DICTIONARY", "pressure"),
    ("data map mini --level sex:male", "E_USAGE", "sex:m=1"),
    ("data map mini --level sex:m=mail", "E_USAGE", "Did you mean 'male'"),
    ("data map mini --level sexx:m=male", "E_DICTIONARY", "sex"),
    ("data map mini --level person:m=male", "E_USAGE", "person"),
    ("data map mini --decimal-comma sex", "E_USAGE", "sex"),
    ("data map mini --factor sbp:10", "E_DICTIONARY", "Did you mean 'sbp'"),
    ("data map mini --factor sbp=ten", "E_USAGE", "chol=38.67"),
    ("data map mini --factor sbp=0", "E_CONFIG|E_USAGE", "factor"),
    ("release mini --wave 7", "E_PLAN|E_STATE|E_USAGE", "1"),
    ("release mini --by dr-lund", "E_CONFIG", "dr-lind"),
    ("release mnii", "E_STATE", "mini"),
    ("outbox show 1234", "E_STATE|E_USAGE", "outbox list"),
    ("approve 1234 --as dr-lind", "E_STATE|E_USAGE", "outbox list"),
    ("waves mnii", "E_STATE", "mini"),
    ("curve mnii", "E_STATE", "mini"),
    ("curve mini --out curve.doc", "E_USAGE", "svg"),
    ("standing add mini --as dr-lind --max-epsilon 1 --until 2026-13-01", "E_USAGE", "2027-03-31"),
    ("grants --jsn", "E_USAGE", "--json"),
    ("leave mni --as dr-lind", "E_STATE", "mini"),
)
STEWARD_WITH_RELEASE = (
    ("approve {release} --as dr-lund", "E_CONFIG", "dr-lind"),
    ("approve {other} --as dr-lind", "E_", "outbox list"),
    ("reject {release} --as dr-lind", "E_USAGE", "--reason"),
    ("withdraw {release} --as dr-lind --reason because", "E_USAGE", "consent"),
    ("release mini", "E_STATE", "waves mini"),
    ("outbox show {release} --rows -1", "E_USAGE", "rows"),
)
LEAD_BEFORE_INIT = (
    ("studies", "E_STATE", "coordinator init"),
    ("init --address localhost", "E_CONFIG|E_USAGE", "port"),
    ("init --threshold 2", "E_PARAMETER", "Repeat --lead"),
    ("init --lead 'Dr. Huber'", "E_", "dr-huber"),
)
LEAD = (
    ("plan new 'heart failure'", "E_", "heart"),
    ("plan check {folder}/nothing.toml", "E_", "plan new"),
    ("plan check {table}", "", "must be TOML"),
    ("plan check {typo}", "", "continuous"),
    ("plan cost {broken}", "E_", "line"),
    ("plan sign {typo}", "E_", "continuous|integer"),
    ("plan show cvdd", "E_PLAN", "Did you mean 'cvd'"),
    ("plan show cvd --version 9", "E_PLAN", "Versions of cvd: 1"),
    ("plan amend cvdd", "E_PLAN", "Did you mean 'cvd'"),
    ("invite 'St. Mary' --study cvd --out {folder}/a.invitation", "E_", "st-mary|St"),
    ("invite delta --study cdv --out {folder}/b.invitation", "E_PLAN", "Did you mean 'cvd'"),
    ("invite delta --study cvd --out {table}", "E_STATE", "cohort.csv"),
    ("accept waitng --fingerprint '0000 0000'", "E_STATE", "waiting"),
    ("accept waiting --fingerprint '0000 0000 0000 0000 0000 0000 0000 0000'", "E_", "telephone|fingerprint"),
    ("accept alpha --fingerprint '0000 0000 0000 0000 0000 0000 0000 0000'", "E_SIGNATURE", "read it out"),
    ("revoke alhpa", "E_PARAMETER", "Did you mean 'alpha'"),
    ("revoke alpha --since 31.12.2025", "E_PARAMETER", "2027-03-31"),
    ("pool cvdd --estimand adjusted", "E_PLAN", "Did you mean 'cvd'"),
    ("pool cvd --estimand adjustd", "E_", "adjusted"),
    ("pool cvd --estimand adjusted --term spb", "E_", "sbp"),
    ("pool cvd --estimand 'cox(time, cvd) ~ spb'", "E_", "sbp"),
    ("pool cvd --estimand 'coxx(time, cvd) ~ sbp'", "E_", "cox"),
    ("pool cvd --estimand 'cox(time, cvd ~ sbp'", "E_", "."),
    ("pool cvd", "E_", "--estimand"),
    ("pool cvd --estimand adjusted --wave 9", "E_PLAN", "Waves of the plan: 1"),
    ("pool cvd --estimand adjusted --method REMM", "E_", "REML"),
    ("pool cvd --estimand adjusted --level 95", "E_", "0.95|between 0 and 1"),
    ("figure cvd --estimand adjusted --out {folder}/forest.doc", "E_PARAMETER", "svg"),
    ("figure cvd --estimand adjusted --kind forrest --out {folder}/f.svg", "E_", "forest"),
    ("release show 12345678", "E_", "coordinator releases"),
    ("releases --study cdv", "E_PLAN", "Did you mean 'cvd'"),
    ("wave status cdv", "E_PLAN", "Did you mean 'cvd'"),
    ("wave remind cvd 9", "E_PLAN", "Waves of the plan: 1"),
    ("analyst add ada --study cvd", "E_", "analysts = "),
    ("grant alpha --study cdv", "E_PLAN", "Did you mean 'cvd'"),
    ("clock confirm --utc gestern", "E_PARAMETER", "2026-12-31 23:59"),
)
ANALYST = (
    ("pool {folder}/nothing.csv", "E_", "nothing.csv"),
    ("pool {table}", "E_PARAMETER", "'yi' and 'vi'.*--yi"),
    ("pool {own} --yi effct", "E_", "effect"),
    ("pool {own} --yi effect --vi variance --method DLL", "E_", "DL"),
    ("pool {own} --yi effect --vi variance --test hksj", "E_", "knha"),
    ("pool {own} --yi effect --vi variance --mods yaer", "E_", "year"),
    ("pool {own} --yi effect --vi variance --level 95", "E_", "0.95|between 0 and 1"),
    ("forest {own} --yi effect --vi variance --out {folder}/f.eqs", "E_PARAMETER", "eps"),
    ("forest {own} --yi effect --vi variance --kind funel --out {folder}/f.svg", "E_", "funnel"),
    ("tables {own}", "E_", "."),
    ("studies --token {folder}/nothing.json", "E_", "nothing.json"),
    ("studies --token {own}", "E_", "token"),
    ("studies", "E_", "TRIBUTARY_ANALYST_TOKEN|--token"),
    ("logistc cvd 'died ~ age'", "E_USAGE", "logistic"),
)


@pytest.fixture
def files(tmp_path) -> dict[str, Any]:
    """Files that people name by mistake, and one of each that is right."""
    table = make_table(300)
    table["person"] = [f"{SECRET}-{i}" for i in range(len(table))]
    found = {"folder": tmp_path, "table": tmp_path / "cohort.csv", "own": tmp_path / "own.csv"}
    table.to_csv(found["table"], index=False)
    found["own"].write_text("study,effect,variance,year\na,0.1,0.04,2001\nb,0.3,0.05,2004\nc,0.2,0.03,2009\n")
    for name, text in (("empty", ""), ("query", "select 1"), ("plan_file", 'study = "mini"'), ("broken", "[release\n")):
        found[name] = tmp_path / {"empty": "empty.csv", "query": "q.sql"}.get(name, f"{name}.toml")
        found[name].write_text(text)
    return found


def test_a_steward_is_helped_at_every_stage(hospital, plan, files, monkeypatch):
    def ask(argv: list[str]) -> tuple[int, str, str]:
        from shared.terminal import run
        from site_agent import cli

        hospital.capsys.readouterr()
        exit_code = run(cli.app, name="site-agent", argv=[*argv, "--home", str(hospital.home), "--json"])
        return (exit_code, *hospital.capsys.readouterr())

    names = files | {"invitation": hospital.invitation}
    wrong = answered(STEWARD_BEFORE_INIT, ask, **names)
    hospital("init", "--invitation", str(hospital.invitation), "--approver", "dr-lind")
    wrong += answered(STEWARD_BEFORE_JOIN, ask, **names)
    hospital("join")
    hospital.publish(plan)
    hospital("plan", "fetch", "mini")
    wrong += answered(STEWARD_WITH_PLAN, ask, **names)
    hospital("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
    hospital("data", "add", str(files["table"]), "--as", "mini")
    wrong += answered(STEWARD_WITH_TABLE, ask, **names)
    names["release"] = hospital.json("release", "mini")["release_id"][:8]
    names["other"] = "".join("1" if digit != "1" else "2" for digit in names["release"])
    wrong += answered(STEWARD_WITH_RELEASE, ask, **names)
    with monkeypatch.context() as patch:
        patch.setenv("TRIBUTARY_PASSPHRASE", "not the right one at all")
        lost = (("approve {release} --as dr-lind", "E_PASSPHRASE", "dr-lind"),)
        wrong += answered(lost, ask, **names)
    assert wrong == [], "\n".join(wrong)


def test_a_lead_is_helped_at_every_stage(collected, written, files, capsys, tmp_path):
    from coordinator.cli import main

    def asking(home: Path) -> Callable[[list[str]], tuple[int, str, str]]:
        def ask(argv: list[str]) -> tuple[int, str, str]:
            capsys.readouterr()
            exit_code = main(["--home", str(home), *argv, "--json"])
            return (exit_code, *capsys.readouterr())

        return ask

    names = files | {"typo": tmp_path / "typo.toml"}
    names["typo"].write_text(written.read_text().replace('kind = "continuous"', 'kind = "numeric"'))
    wrong = answered(LEAD_BEFORE_INIT, asking(tmp_path / "new"), **names)
    wrong += answered(LEAD, asking(collected.home), **names)
    assert wrong == [], "\n".join(wrong)


def test_an_analyst_is_helped(files, capsys, monkeypatch):
    monkeypatch.delenv("TRIBUTARY_ANALYST_TOKEN", raising=False)

    def ask(argv: list[str]) -> tuple[int, str, str]:
        capsys.readouterr()
        exit_code = analyst([*argv, "--json"])
        return (exit_code, *capsys.readouterr())

    wrong = answered(ANALYST, ask, **files)
    assert wrong == [], "\n".join(wrong)


def test_there_are_eighty_of_them_at_least():
    tables = (STEWARD_BEFORE_INIT, STEWARD_BEFORE_JOIN, STEWARD_WITH_PLAN, STEWARD_WITH_TABLE, STEWARD_WITH_RELEASE)
    assert len({line for each in (*tables, LEAD_BEFORE_INIT, LEAD, ANALYST) for line, _, _ in each}) >= 80
