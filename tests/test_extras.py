"""What not everybody installs: a plan or a table that needs it is refused before the charge, with the command."""

from __future__ import annotations

import dataclasses
import re
import sys
import tomllib

import pytest
import typer
from stage.pipeline import kinds, quick, release, site, source

from coordinator.demo import demo
from shared import errors
from shared.errors import EXTRAS, PackageRefusal, PlanRefusal
from shared.plans.plan import StudyPlan
from shared.terminal import PARTS, run
from tests.sources import ROOT

__all__ = ["quick", "site"]  # the fixtures
OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
FIRST = (ROOT / "deploy" / "studies" / "first.toml").read_text(encoding="utf-8")


def without(monkeypatch, *modules: str) -> None:
    """This machine as it would be without them."""
    found = errors.find_spec
    monkeypatch.setattr(errors, "find_spec", lambda name: None if name in modules else found(name))


def test_every_module_named_in_a_refusal_is_brought_by_its_extra():
    for module, extra in EXTRAS.items():
        brought = {re.split(r"[^\w-]", line)[0].lower() for line in OPTIONAL[extra]}
        assert {module, f"python-{module}"} & brought
    assert {part for parts in PARTS.values() for part in parts.split(",")} <= OPTIONAL.keys()


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


@pytest.mark.parametrize(
    ("name", "module", "extras"),
    [
        ("site-agent", "networkx", "site,graphml"),
        ("site-agent", "starlette.applications", "site"),
        ("coordinator", "flwr", "coordinator,federated"),
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
