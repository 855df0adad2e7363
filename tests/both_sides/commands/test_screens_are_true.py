"""What a screen prints is so: prices of the plan that was given, failures that a timer sees, versions, plain zeros."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import datetime as dt
import io
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import make_table
from cryptography.hazmat.primitives.asymmetric import ec
from rich.console import Console
from stage.hospital_side.site_desk import certificate, hospital  # noqa: F401
from stage.mechanisms.contacts import contacts_plan
from stage.plans.wave_plans import several

from coordinator.analyst import commands as analyst
from coordinator.analyst.remote import Pass, connect
from coordinator.cli import main as coordinator
from coordinator.demo import main as tributary
from coordinator.planning import price as pricing
from coordinator.planning.template import template
from shared.errors import AuditRefusal, CertificateRefusal, NetworkRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column
from shared.plans.encoding import typed
from shared.plans.plan import StudyPlan
from shared.privacy import accountant as privacy
from shared.terminal import table
from site_agent import cli
from site_agent.records.table import dialect

STUDIES = Path(__file__).parents[3] / "deploy" / "studies"


def test_a_plan_that_sets_an_epsilon_is_priced_at_it_and_not_at_the_papers_w():
    plan = replace(StudyPlan.from_toml((STUDIES / "first.toml").read_text()), release=LatentNoisePlan(epsilon=2.0))
    first = pricing.prices(plan)[0]
    own = pricing.cost(plan)
    assert first.epsilon == pytest.approx(own.epsilon, rel=1e-6) == pytest.approx(2.0, rel=1e-3)
    assert first.name == f"latent noise, w = {own.w:.4g}"
    assert first.width == pricing._latent_width(own.w) != pricing._latent_width(pricing.PAPER_W)


def test_the_lead_composes_waves_as_a_ledger_does_by_whichever_bound_is_smaller():
    plan = contacts_plan(returning="refresh")
    event = plan.release.event(plan)
    pure = privacy.pure_epsilon(event)
    assert pure is not None, "Laplace noise has a pure price"
    totals = [wave.total for wave in pricing.cost(plan, waves=4).waves]
    for number, total in enumerate(totals, start=1):
        composed = privacy.epsilon_from_rdp(number * privacy.rdp(event), plan.budget.delta)
        assert total == pytest.approx(min(number * pure, composed))
    assert totals[0] == pytest.approx(pure)


def test_a_timer_sees_that_a_site_is_cut_off_and_not_that_a_person_is_awaited(hospital, plan):
    at = hospital.joined().approved(several(plan, 2)).with_table(make_table(300))
    at.hub.down = True
    at("run", "--once", expect=20)
    at.hub.down = False
    at("run", "--once")
    assert "must be delivered, or rejected" in at("run", "--once")


def test_a_revoked_site_is_not_told_that_it_has_joined(hospital, plan, monkeypatch):
    at = hospital.joined().approved(plan)
    assert "has joined" in at("join")

    def turned_away(*_: object) -> None:
        raise CertificateRefusal("the certificate must be of a site that takes part", given="a revoked one")

    monkeypatch.setattr(type(at.hub), "status", turned_away)
    assert "has joined" not in at("join", expect=21)


def test_approving_what_was_withdrawn_says_that_it_is_over_and_not_to_withdraw_it(hospital, plan):
    at = hospital.joined().approved(plan).with_table(make_table(300))
    short = at.json("release", "mini", "--wave", "1")["release_id"][:8]
    at("approve", short, "--as", "dr-lind")
    at("withdraw", short, "--as", "dr-lind", "--reason", "policy")
    at.publish(replace(plan, version=2))
    at("plan", "fetch", "mini")
    at("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
    said = at.refused("approve", short, "--as", "dr-lind", expect=2)
    assert said["given"] == "one that was withdrawn, which is for good"
    assert "site-agent withdraw" not in said["next_step"]


def test_the_wrong_file_or_a_name_with_spaces_is_told_to_the_steward_with_the_right_one(hospital, tmp_path):
    other = tmp_path / "registry.toml"
    other.write_text('study = "registry"')
    said = hospital.refused("init", "--invitation", str(other), "--approver", "ines", expect=30)
    assert said["given"] == "registry.toml: another file"
    assert "coordinator invite" in said["must"]
    assert "--invitation" in said["next_step"]
    said = hospital.refused("init", "--invitation", str(hospital.invitation), "--approver", "Dr. Eva Müller", expect=2)
    assert "--approver dr-eva-mueller" in said["next_step"]
    assert "site.toml" not in said["next_step"]


@pytest.mark.parametrize(
    ("name", "main"),
    [("site-agent", cli.main), ("coordinator", coordinator), ("analyst", analyst.main), ("tributary", tributary)],
)
def test_each_command_tells_its_version(name, main, capsys):
    try:
        code = main(["--version"])
    except SystemExit as leave:
        code = leave.code
    assert code == 0
    assert capsys.readouterr().out.startswith(f"{name} 0.")


def test_a_released_zero_has_no_sign():
    column = Column(name="oldpeak", kind="continuous", lower=-2, upper=6, decimals=1)
    values = typed(column, np.array([-0.04, 0.0, -1.0]))
    assert [f"{value:g}" for value in values] == ["0", "0", "-1"]


GERMAN = "Patient;Alter;Größe;Bluthochdruck\np1;61;1,72;ja\n"


@pytest.mark.parametrize(
    ("text", "encoding", "seen"),
    [
        (GERMAN, "cp1252", ("cp1252", ";")),
        (GERMAN, "utf-8", ("utf-8", ";")),
        (GERMAN, "utf-8-sig", ("utf-8", ";")),
        (GERMAN.replace(";", "\t"), "utf-8", ("utf-8", "\t")),
        ("person,age\np1,61\n", "utf-8", ("utf-8", ",")),
        ('"a;b",age,"c|d|e|f"\n', "utf-8", ("utf-8", ",")),
        ("person\n", "utf-8", ("utf-8", ",")),
    ],
)
def test_a_file_is_read_as_its_beginning_says(tmp_path, text, encoding, seen):
    path = tmp_path / "extract.csv"
    path.write_bytes(text.encode(encoding))
    assert dialect(path) == seen
    assert dialect(tmp_path / "none.csv") == ("utf-8", ",")


def test_a_german_extract_is_placed_without_options_and_what_was_mapped_stays(hospital, plan, tmp_path):
    at = hospital.joined().approved(plan)
    table = make_table(300).rename(columns={"sbp": "Blutdruck"})
    path = tmp_path / "auszug.csv"
    table.to_csv(path, index=False, sep=";", encoding="cp1252")
    assert "with a semicolon between fields" in at("data", "add", str(path), "--as", "mini")
    at("data", "map", "mini", "Blutdruck=sbp")
    assert at.json("data", "add", str(path), "--as", "mini", "--delimiter", ";")["columns"]["Blutdruck"] == "sbp"
    refused = at.refused("data", "map", "mini", "Alter=sbp", expect=2)
    assert "'Alter'" in refused["given"]
    assert at.json("data", "add", str(path), "--as", "mini")["columns"]["Blutdruck"] == "sbp"


def test_each_check_says_on_which_side_of_its_limit_a_count_is_good(hospital, plan):
    at = hospital.joined().approved(plan).with_table(make_table(300))
    shown = " ".join(at("release", "mini").split())
    assert "at least 50" in shown
    assert "at most" in shown
    assert re.search(
        r"real rows are unlike all others; (by chance about \S+ would be hit; )?(none|\d+) (are|is) hit", shown
    )
    assert "may be" in shown


def test_a_release_is_made_of_the_wave_that_is_due_and_the_approver_is_told_of_its_figures(hospital, plan):
    at = hospital.joined().approved(several(plan, 2)).with_table(make_table(300))
    found = at.json("release", "mini")
    assert found["wave"] == 1
    short = found["release_id"][:8]
    assert f"site-agent outbox figures {short}" in at("outbox", "show", short)
    at("reject", short, "--as", "dr-lind", "--reason", "no")


def test_a_bank_statement_says_why_its_total_is_above_its_charge(hospital, plan):
    at = hospital.joined().approved(plan).with_table(make_table(300))
    at("release", "mini")
    assert "may lie above the exact price" in " ".join(at("budget").split())


def test_ctrl_c_says_what_is_charged_and_that_going_on_is_free(hospital, plan, monkeypatch):
    at = hospital.joined().approved(plan).with_table(make_table(300))

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("site_agent.release.drawing._fit", stopped)
        said = at("release", "mini", expect=130)
    assert "Wave 1 is charged (" in said
    assert "charges nothing more" in said
    before = at.json("budget")["totals"][0]["epsilon"]
    at("release", "mini")
    assert at.json("budget")["totals"][0]["epsilon"] == before
    with monkeypatch.context() as patch:
        patch.setattr("site_agent.release.pipeline.making.make_release", stopped)
        at.publish(replace(several(plan, 2), version=2))
        at("plan", "fetch", "mini")
        at("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
        assert "before anything was charged" in at("release", "mini", "--wave", "2", expect=130)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_screens_can_be_written_to_a_pipe_of_any_encoding(encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(STUDIES.parents[1])}
    for argv in (["plan", "cost", "first.toml"], ["plan", "cost", "first.toml", "--json"]):
        made = subprocess.run(
            [sys.executable, "-m", "coordinator.cli", *argv[:2], str(STUDIES / argv[2]), *argv[3:]],
            capture_output=True,
            env=environment,
            check=False,
        )
        assert (made.returncode, b"Traceback" in made.stderr) == (0, False)
        text = made.stdout.decode(encoding)
        assert json.loads(text)["study"] == "first" if "--json" in argv else "eps = 174.7" in text


def test_ids_are_whole_in_a_narrow_table():
    out = io.StringIO()
    rows = [["3f2a91bc77de", "exploratory", "logistic(num > 0) ~ age + sex + exang + thalach"]] * 2
    Console(width=60, file=out).print(table(["result", "label", "question"], rows))
    assert "3f2a91bc77de" in out.getvalue()
    assert "exploratory" in out.getvalue()
    narrow = io.StringIO()
    Console(width=30, file=narrow).print(table(["result", "label", "question"], rows[:1]))
    columns = zip(*(line.split() for line in narrow.getvalue().splitlines()[2:4]), strict=False)
    assert "3f2a91bc77de" in "".join("".join(part) for part in columns), "folded where it must be, and never cut off"


def test_an_analyst_without_a_network_is_not_told_of_sealed_releases_or_hospital_it():
    given = dict.fromkeys(("name", "role", "expires"), "x") | {"studies": ("heart",), "token": "t" * 43}
    key = ec.generate_private_key(ec.SECP256R1())
    ca = certificate("ca", key.public_key(), key)
    with (
        connect(Pass(address="127.0.0.1:9", server_name="hub", ca_pem=ca, **given)) as connection,
        pytest.raises(NetworkRefusal) as refused,
    ):
        connection.studies()
    assert "sealed" not in str(refused.value)
    assert refused.value.fixer == "you, or whoever runs the coordinator"


def test_the_agent_asks_the_hospitals_proxy_for_a_tunnel_as_the_manual_says():
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        program = (
            "import sys; from shared.wire.transport import Client, Credentials; "
            "from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE; "
            "from shared.wire.analyst_messages import StudiesRequest\n"
            "c = Client(address='coordinator.example:8443', server_name='x', credentials=Credentials("
            "ca_pem=sys.argv[1], token='t'), service=ANALYSIS_SERVICE, methods=ANALYSIS)\n"
            "try: c.call('Studies', StudiesRequest(), timeout=5)\nexcept Exception: pass"
        )
        key = ec.generate_private_key(ec.SECP256R1())
        environment = {**os.environ, "https_proxy": f"http://127.0.0.1:{proxy.getsockname()[1]}"}
        environment |= {"no_proxy": "", "PYTHONPATH": str(STUDIES.parents[1])}
        asked = subprocess.Popen(
            [sys.executable, "-c", program, certificate("ca", key.public_key(), key)], env=environment
        )
        try:
            proxy.settimeout(30)
            line, _ = proxy.accept()
            with line:
                assert line.recv(200).startswith(b"CONNECT coordinator.example:8443 HTTP/1.1")
        finally:
            asked.kill()
            asked.wait()


def test_the_command_that_a_plan_page_names_approves_that_plan(hospital, plan):
    at = hospital.joined()
    at.publish(plan)
    at("plan", "fetch", "mini")
    [named] = re.findall(r"plan approve mini --as NAME.*", at("plan", "show", "mini"))
    said = at(*named.replace("NAME", "dr-lind").split())
    assert "site-agent data add FILE --as mini" in said, "without a table nothing can be released"
    at.with_table(make_table(300))
    assert "site-agent curve mini" in at("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")


def test_a_burnt_draw_is_told_wherever_the_next_step_is(hospital, plan, monkeypatch):
    at = hospital.joined().approved(plan).with_table(make_table(300))

    def too_good(*_: object, **__: object) -> None:
        raise AuditRefusal("own-row linkage must be at most 0.05", given="0.18", next_step="Its charge stays.")

    with monkeypatch.context() as patch:
        patch.setattr("site_agent.release.drawing._attack", too_good)
        at("release", "mini", expect=10)
    assert "wave 1: its draw is burnt" in at("status")
    assert at.json("status")["next"] == ["site-agent waves mini"]
    assert "site-agent release mini --wave 1" in at("waves", "mini")
    assert "site-agent release mini --wave 1" in at.refused("release", "mini", expect=2)["next_step"]


def test_a_mistyped_column_of_the_file_is_answered_with_the_nearest_where_its_first_line_is_a_header(
    hospital, plan, tmp_path
):
    at = hospital.joined().approved(plan)
    path = tmp_path / "auszug.csv"
    names = {name: f"{name}_neu" for name in plan.dictionary.names}
    make_table(300).rename(columns=names).to_csv(path, index=False)
    at("data", "add", str(path), "--as", "mini")
    pairs = [f"{there}={name}" for name, there in names.items()]
    said = at.refused("data", "map", "mini", *pairs, "--ignore", "persom", expect=2)
    assert said["given"] == "'persom'"
    assert said["next_step"] == "Did you mean 'person'?"
    said = at.refused("data", "map", "mini", "--ignore", "Huber, Anna", expect=2)
    assert "Did you mean" not in said["next_step"], "of a first line that may be a patient nothing is shown"


def test_of_one_site_nothing_is_said_of_differences_between_sites():
    from coordinator.analyst.show import pooled_text, terms_table
    from coordinator.pooling.pool import pool

    text = pooled_text(pool(np.array([0.2]), np.array([0.04]), labels=["north"]))
    assert [line[0] for line in text.models] == ["not pooled"]
    row = {"term": "age", "effect": "Odds ratio", "reason": "", "estimate": 1.1, "ci_lb": 1.0, "ci_ub": 1.2}
    one, two = (row | {"pval": 0.04, "k": k, "tau2": 0.0, "I2": 0.0} for k in (1, 2))
    assert [cells[-2:] for cells in terms_table([one, two], 0.95)[1]] == [[None, None], ["0", "0 %"]]


def test_why_a_term_has_no_answer_stands_below_the_table_and_not_in_a_column_of_figures():
    from coordinator.analyst.show import terms_table, unanswered_terms

    blank = dict.fromkeys(("estimate", "ci_lb", "ci_ub", "pval", "k", "tau2", "I2"))
    row = {"term": "ward[b]", "effect": "Odds ratio", "reason": "no finite estimate at any site", **blank}
    assert terms_table([row], 0.95)[1] == [["ward[b]", *[None] * 6]]
    assert unanswered_terms([row]) == ["ward[b]: no finite estimate at any site"]


def test_a_level_that_few_sites_have_says_which_sites_it_lacks_and_why():
    """It stood in the table with the number of its sites alone."""
    from coordinator.analyst.show import unanswered_terms
    from coordinator.answers.queries import PooledAnswer
    from coordinator.pooling.pool import pool_estimates
    from shared.estimands.answer import Estimate
    from shared.estimands.floors import NO_ROWS

    few = "4 rows in a group: fewer than 5 residual degrees of freedom"
    west = {"west": "no rows at the time"}  # of no level: the line of the answer says so
    rows = [
        {"term": "arm[a]", "reason": "", "k": 3, "left_out": west},
        {"term": "arm[b]", "reason": "", "k": 1, "left_out": {"east": "no rows", "mid": "no rows", **west}},
        {"term": "arm[c]", "reason": "", "k": 2, "left_out": {"mid": few, **west}},
    ]
    assert unanswered_terms(rows) == [
        "arm[b]: of 1 site only (east, mid: no rows)",
        f"arm[c]: of 2 sites only (mid: {few})",
    ]
    assert unanswered_terms([{**row, "left_out": {}} for row in rows]) == []
    asked = {"study": "s", "wave": 1, "n": 300}
    every = [Estimate(site=site, term="arm[a]", yi=0.2, vi_sampling=0.03, **asked) for site in ("east", "mid")]
    fewer = [
        Estimate(site="east", term="arm[b]", yi=None, vi_sampling=None, reason=NO_ROWS, **asked),
        Estimate(site="mid", term="arm[b]", yi=0.1, vi_sampling=0.02, **asked),
    ]
    made = PooledAnswer(
        study="s",
        wave=1,
        estimand="km(time, died, at = 5) ~ arm",
        planned="",
        term="arm[a]",
        terms=("arm[a]", "arm[b]"),
        estimates=tuple(every),
        result=pool_estimates(every),
        sources=(),
        others={"arm[b]": pool_estimates(fewer)},
    )
    assert unanswered_terms(made.table) == [f"arm[b]: of 1 site only (east: {NO_ROWS})"]
    assert unanswered_terms([{name: row[name] for name in ("term", "reason", "k")} for row in rows]) == []


def test_a_template_names_the_file_that_it_is():
    text = template("hf", coordinator="hub", today=dt.date(2026, 1, 1), file="own.toml")
    assert re.findall(r"coordinator plan \w+ (\S+)", text) == ["own.toml"] * 3


def test_the_short_page_of_a_plan_keeps_what_is_ticked_and_the_full_one_what_is_signed(hospital, plan):
    at = hospital.joined()
    at.publish(plan)
    at("plan", "fetch", "mini")
    page = at.json("plan", "show", "mini")
    short, full = (" ".join(at("plan", "show", "mini", *more).split()) for more in ([], ["--full"]))
    for said in (*page["covered"], *page["not_covered"], page["price"]["translation"], "plan approve mini --as NAME"):
        assert said in short
        assert said in full
    for said in (page["hash"], page["dictionary_hash"], "Floors in force", "charged so far"):
        assert said in full
        assert said not in short
    assert "--full" in short


def test_an_answer_says_how_many_rows_lacked_a_value():
    from coordinator.pooling.pool import pool_estimates
    from shared.estimands.answer import Estimate

    told = {"study": "s", "wave": 1, "term": "age", "yi": 0.2, "vi_sampling": 0.03}
    rows = [Estimate(site="north", n=770, n_missing=48, **told), Estimate(site="south", n=500, **told)]
    assert any("48 of 818 of north" in note for note in pool_estimates(rows).notes)
    assert not any("left out" in note for note in pool_estimates(rows[1:]).notes)


def test_rows_of_an_own_table_are_studies_and_those_of_releases_sites():
    from coordinator.analyst.show import pooled_text
    from coordinator.figures.forest import describe
    from coordinator.pooling.pool import pool

    result = pool([0.1, 0.3, 0.5, 0.9], [0.02, 0.03, 0.04, 0.03], labels=["A", "B", "C", "D"])
    text = pooled_text(result)
    assert text.models[-1][-1] == "a new study's effect"
    assert text.sentences[0].startswith("between studies")
    assert describe(result).startswith("4 studies: A")


def test_the_answer_of_one_site_is_not_called_pooled():
    from coordinator.analyst.shown import pooled_line

    pooled = {"beta": 0.0, "ci_lb": -0.1, "ci_ub": 0.1, "method": "REML", "test": "z"}
    document = {"pooled": pooled, "scale": "identity", "level": 0.95, "effect": "Mean", "k": 1}
    assert pooled_line(document) == "mean 0 (95 % CI -0.1000 to 0.1000; one site, not pooled)"
    assert pooled_line({**document, "k": 2}) == "pooled mean 0 (95 % CI -0.1000 to 0.1000; REML, z, 2 sites)"
