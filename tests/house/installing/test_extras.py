"""What not everybody installs: a plan or a table that needs it is refused before the charge, with the command."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import tomllib
from contextlib import closing
from importlib.metadata import packages_distributions

import pytest
import typer
from stage.hospital_side.pipeline import kinds, quick, release, site, source
from stage.house.lacking import without
from stage.mechanisms import summed

from coordinator.demo import demo
from coordinator.store.store import Store
from coordinator.training.secure_sum.walk import run_sum
from shared.base.keys import SigningKey
from shared.errors import EXTRAS, PackageRefusal, PlanRefusal
from shared.plans.plan import StudyPlan
from shared.terminal import OWN, PARTS, run
from tests.stage.house.sources import ROOT, production

__all__ = ["quick", "site"]  # the fixtures
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = PROJECT["optional-dependencies"]
FIRST = (ROOT / "deploy" / "studies" / "first.toml").read_text(encoding="utf-8")


BESIDE = {"click", "markupsafe", "botocore", "statsmodels", "grpc_tools"}
"""Part of typer, Jinja2 and s3fs; with a refusal of its own; for who works on the code."""


def brought_by(*parts: str) -> set[str]:
    """The modules that are there with these extras, and without any."""
    lines = [*PROJECT["dependencies"], *(line for part in parts for line in OPTIONAL[part])]
    names = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in lines}
    found = packages_distributions().items()
    return {module for module, by in found if names & {one.lower().replace("_", "-") for one in by}}


def test_every_module_named_in_a_refusal_is_brought_by_its_extra():
    for module, extra in EXTRAS.items():
        assert module in brought_by(extra), extra
    assert {part for parts in PARTS.values() for part in parts.split(",")} <= OPTIONAL.keys()


@pytest.mark.parametrize(
    ("package", "parts"), [("site_agent", ["site"]), ("coordinator", ["coordinator"]), ("shared", ["site"])]
)
def test_what_a_package_imports_comes_with_it_or_is_named_where_it_lacks(package, parts):
    """Else the refusal names a command that does not bring it."""
    known = {*sys.stdlib_module_names, *OWN, *brought_by(*parts), *EXTRAS, *BESIDE}
    imported = {
        name.partition(".")[0]: path
        for path, tree in production()
        if path.startswith(f"{package}/")
        for node in ast.walk(tree)
        for name in (
            [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert {name: path for name, path in imported.items() if name not in known} == {}


def test_a_plan_that_says_nothing_of_an_engine_keeps_its_hash_and_one_that_does_has_another():
    plain = StudyPlan.from_toml(FIRST)
    assert plain.hash.startswith("706faf0672944f36"), "as docs/first-ten-minutes.md prints it"
    chosen = StudyPlan.from_toml(FIRST.replace("[release]", '[training]\nengine = "nflows"\n\n[release]'))
    assert chosen.training.by_nflows
    assert chosen.hash != plain.hash
    assert StudyPlan.from_bytes(chosen.canonical) == chosen


@pytest.mark.parametrize(("posture", "engine"), [("public", "nflows"), ("local", "jax")])
def test_an_engine_that_would_train_nothing_or_that_nobody_knows_is_refused_in_the_plan(posture, engine):
    text = FIRST.replace("[release]", f'[training]\nengine = "{engine}"\n\n[release]')
    with pytest.raises(PlanRefusal, match=r"training\.engine must be"):
        StudyPlan.from_toml(text.replace('posture = "local"', f'posture = "{posture}"'))


def test_a_plan_that_asks_for_nflows_is_refused_before_the_charge_where_torch_lacks(
    quick, tmp_path, plan, site, table, monkeypatch
):
    asked = dataclasses.replace(plan, training=dataclasses.replace(plan.training, engine="nflows"))
    without(monkeypatch, "torch")
    with pytest.raises(PackageRefusal) as caught:
        release(asked, site, source(tmp_path, table))
    assert caught.value.next_step == "pip install 'tributary-meta[torch]'"
    assert kinds(site) == ["genesis"]


def test_a_secure_sum_is_refused_before_the_charge_and_before_anybody_is_asked_where_its_library_lacks(
    tmp_path, site, table, monkeypatch
):
    asked = summed.planned({name: SigningKey.generate() for name in summed.NAMES})
    without(monkeypatch, "Crypto")
    with pytest.raises(PackageRefusal) as caught:
        release(asked, site, source(tmp_path, table), today=summed.TODAY)
    assert caught.value.next_step == "pip install 'tributary-meta[secure-sum]'"
    assert kinds(site) == ["genesis"]
    with closing(Store.open(tmp_path)) as store, pytest.raises(PackageRefusal, match="coordinator,secure-sum"):
        run_sum(store, asked, SigningKey.generate())


@pytest.mark.parametrize(
    ("name", "module", "extras"),
    [
        ("site-agent", "networkx", "site,graphml"),
        ("site-agent", "starlette.applications", "site"),
        ("coordinator", "flwr", "coordinator,federated"),
        ("site-agent", "Crypto.Protocol", "site,secure-sum"),
        ("analyst", "matplotlib.figure", "client,figures"),
        ("analyst", "grpc", "client"),
    ],
)
def test_each_program_names_what_to_install(name, module, extras, capsys):
    app = typer.Typer()

    @app.command()
    def broken() -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    assert run(app, name=name, argv=[]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"'tributary-meta[{extras}]'" in said
    assert "E_PACKAGE" in said


def test_a_module_of_our_own_that_lacks_is_a_fault_of_ours(capsys):
    app = typer.Typer()

    @app.command()
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'shared.nowhere'", name="shared.nowhere")

    assert run(app, name="analyst", argv=[]) == 1
    assert "E_PACKAGE" not in capsys.readouterr().err


@pytest.mark.parametrize("ask", ["figure", "parquet", "demo"])
def test_a_library_call_without_its_extra_is_a_refusal_and_not_an_import_error(ask, tmp_path, monkeypatch):
    """As `client` alone leaves a machine: neither figures nor Parquet, and no demo."""
    import tributary_meta as tm

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # what Python then says has the whole name
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    without(monkeypatch, "pyarrow", "sqlalchemy")
    (tmp_path / "table.parquet").write_bytes(b"")
    calls = {
        "figure": lambda: tm.forest(tm.pool([0.1, 0.2], [0.01, 0.02])),
        "parquet": lambda: tm.read_table(tmp_path / "table.parquet"),
        "demo": lambda: demo(out=tmp_path / "out"),
    }
    with pytest.raises(PackageRefusal, match="tributary-meta") as caught:
        calls[ask]()
    assert caught.value.next_step.endswith(
        {"figure": "[figures]'", "parquet": "[parquet]'", "demo": "coordinator,sql]'"}[ask]
    )
    assert not (tmp_path / "out").exists()
