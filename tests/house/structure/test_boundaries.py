"""Who may import whom, what is lazy, and what may not appear at all."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stage.house.sources import PACKAGES, ROOT, parsed

FIGURES = (
    "site_agent/show/figures.py",
    *(
        f"coordinator/figures/{name}.py"
        for name in ("canvas", "files", "forest", "forest_page", "companions", "over_time", "style")
    ),
)
HEAVY = {"torch", "nflows", "matplotlib", "flwr", "grpc", "statsmodels", "starlette", "uvicorn", "jinja2"}
# Loaded by the verb that serves it, and by nothing else.
SERVED = {
    (f"site_agent/show/page/{name}.py", "starlette") for name in ("entering", "frame", "pages", "serving", "tables")
}
SERVED |= {("site_agent/show/page/frame.py", "jinja2")}
SERVED |= {(f"coordinator/training/{name}.py", "flwr") for name in ("dialled_grid", "strategies")}
SERVED |= {
    (f"coordinator/web/{name}.py", "starlette")
    for name in ("interface/api", "workbench/sign_in_pages", "workbench/pages")
}
SERVED |= {("coordinator/web/workbench/pages.py", "jinja2")}
SERVED |= {("coordinator/web/server.py", name) for name in ("starlette", "uvicorn")}
# The demo looks for a free port.
SOCKETS = {"shared/wire/transport/ends.py", "shared/wire/transport/client.py", "shared/wire/transport/server.py"}
SOCKETS |= {"shared/wire/door.py", "coordinator/demo/stage.py", "coordinator/demo/warm.py"}
SOCKETS |= {"coordinator/operations/port.py"}  # for machines that watch, where the settings name it
SOCKETS |= {"coordinator/web/sign_in/provider.py"}  # the provider that the settings name
SOCKETS |= {"coordinator/analyst/access/sign_in.py"}  # an analyst's own end, to the coordinator that it names
SOCKETS |= {"coordinator/web/server.py"}  # the HTTPS port, behind the same door
SOCKETS |= {"coordinator/store/bundles/objects.py"}  # the object store that the settings name
SOCKETS |= {
    "site_agent/show/network_path.py"
}  # `doctor`, to the proxy or the coordinator; it sends nothing of the site
SOCKETS |= {"coordinator/answers/reminders.py"}  # mail and a webhook, to the addresses of notify.toml alone


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, at the top of the file) for every import of a file."""
    tree = parsed(path)
    top = {id(node) for node in tree.body}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append((node.module or "", id(node) in top))
            found += [(f"{node.module}.{alias.name}", id(node) in top) for alias in node.names]
    return found


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def strays(path: Path) -> list[str]:
    """What a file imports that it must not, in words."""
    package, found = name(path).split("/")[0], []
    allowed = {"shared": {"shared"}, "site_agent": {"shared", "site_agent"}, "coordinator": {"shared", "coordinator"}}
    for module, at_top in imports(path):
        root = module.split(".")[0]
        if root in PACKAGES and root not in allowed[package]:
            found.append(f"imports {module}")
        if root in HEAVY and at_top and (name(path), root) not in SERVED:
            found.append(f"imports {root} at the top of the file")
        if root == "torch" and not name(path).startswith(("site_agent/models/", "shared/mechanisms/slicing/")):
            found.append("imports torch")
        if root == "matplotlib" and name(path) not in FIGURES:
            found.append("imports matplotlib")
        if (
            root in ("grpc", "socket", "http", "urllib", "requests", "httpx", "s3fs", "botocore")
            and name(path) not in SOCKETS
        ):
            found.append("opens connections")
        if root in ("pickle", "dill", "joblib", "shelve", "marshal", "tests", "prototypes"):
            found.append(f"imports {root}")
    return [f"{name(path)} {what}" for what in found]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_file_stays_in_its_room(package):
    assert [stray for path in sources() if name(path).startswith(f"{package}/") for stray in strays(path)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_evaluated_or_unpickled(package):
    found = []
    for path in sources():
        for node in ast.walk(parsed(path)) if name(path).startswith(f"{package}/") else ():
            if not isinstance(node, ast.Call):
                continue
            if ast.unparse(node.func) in ("eval", "exec", "torch.load", "torch.save", "pd.read_pickle"):
                found.append(f"{name(path)}: {ast.unparse(node.func)}")
            for keyword in node.keywords:
                false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg == "allow_pickle" and not false:
                    found.append(f"{name(path)} allows pickle")
    assert found == []


def test_an_idle_site_agent_holds_no_table_no_accountant_and_no_training():
    """What a round of `site-agent run` imports when nothing is due: 76 MB of pandas would be held for nothing."""
    code = """
import sys
from pathlib import Path
from site_agent.decide import attending, plans, waves
from site_agent.decide.airlock import approval, overview, standing_approval
from site_agent import egress
from site_agent.release.pipeline import making
from site_agent.training import rounds
from shared.plans.plan import StudyPlan
plan = StudyPlan.from_toml(Path(sys.argv[1]).read_text())
assert plan.federated and waves and attending and making
print(*sys.modules)
"""
    study = ROOT / "deploy" / "studies" / "federated.toml"
    words = [sys.executable, "-c", code, str(study)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"pandas", "pyarrow", "scipy", "dp_accounting", "torch", "flwr", "statsmodels"} & set(
        done.stdout.split()
    )


@pytest.mark.parametrize(
    "module", ["site_agent.cli", "coordinator.cli", "coordinator.analyst.commands", "coordinator.demo"]
)
def test_help_is_instant_because_nothing_heavy_is_imported(module):
    code = f"import sys, {module}; print(' '.join(sorted(m for m in sys.modules if '.' not in m)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    heavy = (HEAVY | {"pandas", "scipy", "dp_accounting", "sqlalchemy", "pyarrow"}) & set(loaded.stdout.split())
    assert not heavy, f"{module} imports {sorted(heavy)}"


def test_every_module_says_what_it_is_for():
    for path in sources():
        if "_pb2" not in path.name:
            assert ast.get_docstring(parsed(path)), f"{name(path)} has no docstring"


def borrowed(tree: ast.AST) -> set[str]:
    """Test modules that a file imports, at its top or within a function."""
    named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [
        one.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for one in node.names
    ]
    return {part for name in named for part in name.split(".") if part.startswith("test_")}


def test_what_tests_share_stands_on_their_stage_and_in_no_test_module():
    """Who imports a test module runs its top, and breaks when somebody changes a test."""
    found = {name(path): borrowed(parsed(path)) for path in sorted((ROOT / "tests").rglob("*.py"))}
    assert {path: modules for path, modules in found.items() if modules} == {}, "move it into tests/stage"


@pytest.mark.parametrize(
    "planted",
    [
        "import test_store",
        "from test_store import put",
        "from tests import test_store",
        "def f():\n    from tests.test_store import put as other",
    ],
)
def test_a_test_module_that_is_imported_is_found(planted):
    assert borrowed(ast.parse(planted)) == {"test_store"}
    assert borrowed(ast.parse("from stage.coordinator_side.mini_store import put\nfrom pytest import testing")) == set()
