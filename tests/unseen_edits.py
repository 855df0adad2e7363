"""Twenty edits that no list of the tests knew: ``python -m tests.unseen_edits``.

`tests.mutations` has edits that the tests were written to notice. These say how many the suite notices by itself.
Of the product's comparisons and conditions in modules that `tests.mutations` does not edit, command lines and the demo
left out, 70 were drawn (``random.Random(18)``, over 11,428 in 455 modules at `1328c658`); these are the first twenty
whose edit changes more than a text or a running time, chosen and edited before a test of theirs was looked at.

Each runs the tests of the folder that mirrors the edited module's, then the test modules that import it. The file
``tests/benchmarks/results/unseen_edits.json`` keeps what became of each at first: a later run adds what became of those
that had survived. No test of `tests/coordinator_side/services` noticed the edit of `server.py`: it names the folder
whose tests did so all along.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import record
from tests.mutations import Edit, Mutation, copied
from tests.mutations import _pytest as pytest_in

ROOT = Path(__file__).resolve().parent.parent
VERIFIER = "site_agent/show/verifier.py"
MEMBERSHIP = "coordinator/services/membership.py"
COORDINATOR, HOSPITAL, BOTH = "tests/coordinator_side", "tests/hospital_side", "tests/both_sides"


def unseen(name: str, path: str, old: str, new: str, folder: str) -> Mutation:
    """An edit, and the folder whose tests should notice it.

    Args:
        old: what stands in the file at `path`.
        new: what is put in its place.
    """
    return Mutation(name, (Edit(path, old, new),), (folder,))


EDITS: tuple[Mutation, ...] = (
    unseen(
        "the last order of any kind, where the last of some kinds is asked",
        "coordinator/services/collect/round_queue.py",
        "query.where(_orders.c.kind.in_(kinds)) if kinds else query",
        "query",
        f"{COORDINATOR}/services",
    ),
    unseen(
        "the classical test of asymmetry without its residual variance",
        "coordinator/pooling/diagnostics.py",
        'test: Test = "knha" if model == "lm" else result.test',
        "test: Test = result.test",
        f"{COORDINATOR}/pooling",
    ),
    unseen(
        "bytes between the columns of a released table",
        "shared/releases/metadata.py",
        "if not (tiled and plain):",
        "if not plain:",
        f"{BOTH}/releases",
    ),
    unseen(
        "a formula in a kind's brackets with terms after them",
        "shared/estimands/questions.py",
        'if len(inside) == 1 and (inside[0].kind, inside[0].value) == ("binary", "~") and right is None:',
        'if len(inside) == 1 and (inside[0].kind, inside[0].value) == ("binary", "~"):',
        f"{BOTH}/estimands",
    ),
    unseen(
        "a site that has left a study asked for an invitation to it",
        MEMBERSHIP,
        "if study not in site.studies and study not in",
        "if study not in site.studies or study not in",
        f"{COORDINATOR}/services",
    ),
    unseen(
        "a dictionary column from two source columns",
        "site_agent/records/table.py",
        "targets.count(to) > 1})",
        "targets.count(to) > 2})",
        f"{HOSPITAL}/records",
    ),
    unseen(
        "a site's own floor dropped where the plan has none",
        "site_agent/config.py",
        "chosen |= {} if ours is None else {item.name: ours}",
        "chosen |= {}",
        f"{HOSPITAL}/decide",
    ),
    unseen(
        "nobody answered over HTTPS where analysts have no port beside it",
        "coordinator/services/collect/server.py",
        "answers = bool(mine.analysts or mine.web)",
        "answers = bool(mine.analysts)",
        f"{COORDINATOR}/web",
    ),
    unseen(
        "an enrolment without a token",
        "shared/wire/site_messages.py",
        "must(0 < len(self.token) <= 256 and self.token.isascii()",
        "must(len(self.token) <= 256 and self.token.isascii()",
        f"{BOTH}/wire",
    ),
    unseen(
        "columns that are merely alike taken for the same",
        "shared/estimands/fits/identified.py",
        "singular <= 1e-9 * max(singular[0], 1e-300)",
        "singular <= 1e-2 * max(singular[0], 1e-300)",
        f"{BOTH}/estimands",
    ),
    unseen(
        "scrypt with an n that is no power of two",
        "shared/base/locked.py",
        "self.n >= 2 and self.n & (self.n - 1) == 0 and",
        "self.n >= 2 and",
        f"{BOTH}/base",
    ),
    unseen(
        "an export in which a release that was taken back stands",
        VERIFIER,
        '            elif kind == "withdraw":\n                taken_back.add(name)\n',
        '            elif kind == "withdrawal":\n                taken_back.add(name)\n',
        f"{HOSPITAL}/show",
    ),
    unseen(
        "waves that are not yet open left out of what is to come",
        "site_agent/decide/plan_facts.py",
        'if line.state in ("due", "not yet open")]\n    totals',
        'if line.state in ("due",)]\n    totals',
        f"{HOSPITAL}/decide",
    ),
    unseen(
        "an export whose rounds go on from no delivery",
        VERIFIER,
        'must(within and after, f"{name}: round',
        'must(within, f"{name}: round',
        f"{HOSPITAL}/show",
    ),
    unseen(
        "a time confirmed by a clock that is behind",
        "coordinator/services/clocks.py",
        "if abs(said - now) > WRONG:",
        "if said - now > WRONG:",
        f"{COORDINATOR}/services",
    ),
    unseen(
        "an answer taken from a node that was not asked",
        "coordinator/training/runtime.py",
        "if not site or reply.metadata.src_node_id != self._nodes[site]:",
        "if not site:",
        "tests/mechanisms/joint_training",
    ),
    unseen(
        "releases of the very day trusted on, when a key was in other hands from it",
        MEMBERSHIP,
        "(db.releases.c.accepted_day >= since.isoformat())",
        "(db.releases.c.accepted_day > since.isoformat())",
        f"{COORDINATOR}/services",
    ),
    unseen(
        "hinges of an outcome's law that are lines",
        "shared/flows/outcomes.py",
        "np.maximum(value - place, 0) if b == -1",
        "value - place if b == -1",
        f"{BOTH}/flows",
    ),
    unseen(
        "refused bytes kept beyond the quota until they are old",
        "coordinator/services/quotas.py",
        "if old or total > quotas.quarantine:",
        "if old:",
        f"{COORDINATOR}/services",
    ),
    unseen(
        "a floor that is true",
        "site_agent/config.py",
        "(is_whole(value) and value >= least)",
        "(isinstance(value, int) and value >= least)",
        f"{HOSPITAL}/records",
    ),
)


def importing(path: str) -> list[str]:
    """Test modules that import a module of the product, those that name it most first."""
    module = path.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    said = re.compile(rf"^ *(?:from|import) (?:{re.escape(module)}\b|{re.escape(package)} import .*\b{name}\b)", re.M)
    found = {}
    for test in (ROOT / "tests").rglob("test_*.py"):
        text = test.read_text(encoding="utf-8")
        if said.search(text):
            found[str(test.relative_to(ROOT))] = text.count(name)
    return sorted(found, key=lambda test: (-found[test], test))


def failed(root: Path, tests: Sequence[str]) -> str:
    """The first test that fails in a tree, itself or what prepares it, without its parameters; blank if none does."""
    _, said = pytest_in(root, tests)
    return "".join(re.findall(r"^(?:FAILED|ERROR) (tests/[\w/]+\.py::\w+)", said, flags=re.MULTILINE)[:1])


def noticed(root: Path, edit: Edit, folder: str) -> tuple[str, float]:
    """The test that fails under an edit and passes without it, blank if none does; and the seconds that it took."""
    began, whole, tests = time.monotonic(), (root / edit.path).read_text(), [folder, *importing(edit.path)]
    while True:
        try:
            (root / edit.path).write_text(edit.applied(root))
            by = failed(root, tests)
        finally:
            (root / edit.path).write_text(whole)
        if not by or not failed(root, [by]):
            return by.rpartition("/")[2], time.monotonic() - began
        tests += ["--deselect", by]  # it fails of the copy, not of the edit


def main() -> int:
    """Run the edits that the file does not hold as noticed, and write it after each."""
    file = record.RESULTS / "unseen_edits.json"
    rows = json.loads(file.read_text())["results"]["by"] if file.exists() else {}
    with copied() as root:
        for one in EDITS:
            row = rows.setdefault(one.name, {})
            if row.get("noticed"):
                continue
            by, seconds = noticed(root, one.edits[0], one.tests[0])
            row |= {"noticed": bool(by), "by": by, "seconds": round(seconds, 1)}
            row.setdefault("noticed_at_first", bool(by))
            print(f"{'noticed' if by else 'SURVIVED':9s} {seconds:5.0f} s  {one.name}  {by}", flush=True)
            at_first = sum(line["noticed_at_first"] for line in rows.values())
            now = sum(line["noticed"] for line in rows.values())
            record.write(
                "unseen_edits",
                {"edits": len(rows), "noticed_at_first": at_first, "noticed": now, "by": rows},
                seed=18,
                command="python -m tests.unseen_edits",
            )
    return 0 if all(row["noticed"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
