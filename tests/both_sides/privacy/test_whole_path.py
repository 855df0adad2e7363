"""Two neighbouring tables through the whole path: beside the released table, nothing that leaves tells them apart.

Every ε on a receipt is of the released table and of what is made of it. Whatever else leaves the site (that a draw was
refused, and by what; the receipt; the statement; warnings, which decide whether a standing approval serves; how often
the coordinator is asked to witness the ledger, and how many entries it has by then; the record of `audit export`) is in
no price, and must therefore be a function of the plan, of who is in the table, and of the released table.

Two worlds differ in one person's record, have the same noise, and run `make_release`, or the site's own commands.
Their documents must be the same byte for byte, but for digests, signatures, ids and times. The neighbours are nasty: a
value that nobody else has, so that a released row which equals it is no chance; six records beyond the radius where the
other world has five; a record that an attack would find. By night the same worlds run many times under real noise, and
a lower bound on the ε of each event that shows must stay under the receipt's.
"""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from stage.hospital_side.shipped import KEY, Bench, study
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401

from shared.base.canonical import parse_json
from shared.base.keys import Envelope, SigningKey
from shared.base.randomness import Noise, seeded_rng
from shared.errors import DifferencingRefusal, Refusal
from shared.mechanisms.cross_products.plan import CrossProductsPlan
from shared.mechanisms.densities.plan import DensitiesPlan
from shared.mechanisms.grand.plan import GrandPlan
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.mechanisms.moments.plan import MomentsPlan
from shared.mechanisms.network_counts.plan import NetworkCountsPlan
from shared.mechanisms.slicing.plan import SlicingPlan
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Floors, PrivateTraining, StudyPlan, Training
from shared.privacy import accountant as privacy
from shared.privacy import meaning
from shared.simulated import contact_networks
from site_agent.records.pseudonyms import pseudonym
from site_agent.release import drawing, fitting
from site_agent.release.pipeline.opened import SealedRelease

ATTACK = drawing._attack
DRAWS = 3
"""A site draws again when a draw was refused, so often."""


# -- what leaves --------------------------------------------------------------------------------------------------
def masked(document: Any) -> str:
    """A document's bytes or plain values without what is random or a digest of everything: digests, keys, times."""
    text = document.decode() if isinstance(document, bytes) else json.dumps(document, sort_keys=True, default=str)
    text = re.sub(r'("bundle_bytes": ?)\d+', r"\1(length)", text)  # of the released table, compressed
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?", "(time)", text)
    text = re.sub(r"[0-9a-f]{32,}|[0-9a-f]{16}…", "(hex)", text)  # never the digits of a number
    return re.sub(r"[A-Za-z0-9+/_-]{40,}={0,2}", "(signed)", text)


def witnessed(anchored: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """What the coordinator sees each time it witnesses the ledger: the entry, the one before, links between them."""
    return [(one["seq"], one.get("after", 0), len(one.get("links", ()))) for one in anchored]


def bundled(path: Path) -> dict[str, str]:
    """What stands in a bundle beside the released table, its digest and its length."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert sorted(files) == ["manifest.json", "receipt.json", "table.parquet"]
    manifest = parse_json(files["manifest.json"])
    del manifest["files"]["table.parquet"]
    return {"manifest": masked(manifest), "receipt": masked(files["receipt.json"])}


def world(
    folder: Path, plan: StudyPlan, tables: list[pd.DataFrame], edges: pd.DataFrame | None = None, seed: int = 1
) -> tuple[list[Any], list[SealedRelease]]:
    """Every wave of a plan, drawn again where a draw was refused: what leaves beside the released tables, and these."""
    bench, told, made = Bench(folder), [], []
    for wave, table in enumerate(tables, start=1):
        for draw in range(DRAWS):
            try:
                one = bench.release(plan, table, seeded_rng(100 * seed + 10 * wave + draw), edges=edges, wave=wave)
            except Refusal as refusal:
                told.append((wave, "refused", type(refusal).__name__, refusal.code))
                continue
            path = bench.site.outbox.bundle(one.hold.release_id)
            told.append((wave, "held", bundled(path), [warning.name for warning in one.warnings]))
            told.append(masked(bench.site.outbox.statement(one.hold.release_id).payload))
            # An inspector is given which checks there were, and how each ended.
            told.append(masked((bench.site.outbox.folder(one.hold.release_id) / "outcomes.json").read_bytes()))
            bench.deliver(one)
            made.append(one)
            break
    told.append([entry.kind for entry in bench.site.ledger.entries()])
    told.append(witnessed(bench.hub.anchored))
    return told, made


# -- nasty neighbours ---------------------------------------------------------------------------------------------
N = 128


@dataclass(frozen=True)
class Neighbours:
    """A dictionary, the persons of one world, and the record that some have in the other.

    It is one person's. Where a test exchanges several, it asks for what follows from one: documents that are the same
    in neighbouring worlds are the same in their neighbours' too.
    """

    dictionary: Dictionary
    table: Callable[[int], pd.DataFrame]
    persons: tuple[int, ...]
    record: dict[str, Any]

    def worlds(self, waves: list[int]) -> Iterator[list[pd.DataFrame]]:
        """Both worlds' tables, wave by wave of so many persons."""
        for changed in (False, True):
            tables = [self.table(n) for n in waves]
            for table in tables if changed else ():
                for name, value in self.record.items():
                    table.loc[list(self.persons), name] = value
            yield tables


def steps(top: int) -> Dictionary:
    """A number of few values, and three yes or no: cells that a flow hits."""
    flags = [Column(name=f"b{k}", kind="binary") for k in (1, 2, 3)]
    columns = (Column(name="person", kind="person"), Column(name="k", kind="integer", lower=0, upper=top), *flags)
    return Dictionary(name="steps", version=1, columns=columns)


def patterns(values: range) -> Callable[[int], pd.DataFrame]:
    """Each combination of these values equally often; the first person has the first one."""
    rows = [(k, *bits) for k in values for bits in itertools.product((0, 1), repeat=3)]

    def table(n: int) -> pd.DataFrame:
        out = pd.DataFrame([rows[i % len(rows)] for i in range(n)], columns=["k", "b1", "b2", "b3"])
        return out.assign(person=[f"p{i}" for i in range(n)])[["person", "k", "b1", "b2", "b3"]]

    return table


SQUARE = Dictionary(
    name="square",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="x", kind="continuous", lower=0, upper=1),
        Column(name="y", kind="continuous", lower=0, upper=1),
    ),
)


def middle(beyond: int) -> Callable[[int], pd.DataFrame]:
    """Records in the middle, but for so many in the corner, beyond the radius."""

    def table(n: int) -> pd.DataFrame:
        values = np.random.default_rng(0).uniform(0.3, 0.7, (n, 2))
        values[:beyond] = 1.0
        return pd.DataFrame({"person": [f"p{i}" for i in range(n)], "x": values[:, 0], "y": values[:, 1]})

    return table


def roles(plan: StudyPlan, n: int, *, train: bool = False) -> tuple[int, ...]:
    """The persons who are released; or, under posture holdout, those who train and are not."""
    told = [fitting.trains(plan, pseudonym(f"p{i}", key=KEY)) for i in range(n)]
    return tuple(i for i in range(n) if plan.posture != "holdout" or told[i] == train)


UNIQUE = Neighbours(steps(4), patterns(range(4)), (0,), {"k": 4, "b1": 1, "b2": 1, "b3": 1})
"""Nobody else has four; a row that equals it was refused in one world and held in the other."""
SIXTH = Neighbours(SQUARE, middle(5), (40,), {"x": 1.0, "y": 1.0})
"""Of a hundred persons five may lie beyond the radius, and a sixth is a warning."""

POSTURES: dict[str, dict[str, Any]] = {
    "public": {},
    "private": {
        "private": PrivateTraining(rate=0.05, noise_multiplier=4.0, steps=4),
        "training": Training(flows=1, hidden=4),
    },
    "holdout": {"holdout": 0.4, "training": Training(flows=1, hidden=8, epochs=4, patience=2)},
}


def rows_plan(posture: str, neighbours: Neighbours, *, waves: int, **more: Any) -> StudyPlan:
    settings = {"release": LatentNoisePlan(w=0.01), **POSTURES[posture], **more}
    return study(dictionary=neighbours.dictionary, posture=posture, waves=waves, **settings)


def exchanged(plan: StudyPlan, neighbours: Neighbours, n: int) -> Neighbours:
    """The same; under posture holdout of persons who are released: of those who train nothing is promised.

    One in five who train has the record already, so that the flow draws it. Records beyond the radius are as many as
    a warning is made of, whatever the fitted flow makes of the others.
    """
    if plan.posture != "holdout":
        return neighbours
    train, several = roles(plan, n, train=True)[::5], neighbours is SIXTH

    def table(n: int) -> pd.DataFrame:
        out = middle(0)(n) if several else neighbours.table(n)
        for name, value in () if several else neighbours.record.items():
            out.loc[list(train), name] = value
        return out

    return replace(neighbours, table=table, persons=roles(plan, n)[: 12 if several else 1])


@pytest.fixture(autouse=True, scope="module")
def prices() -> Iterator[None]:
    """Prices are functions of events alone: computed once for all worlds of a plan."""
    with pytest.MonkeyPatch.context() as patched:
        for room, name in ((privacy, "loss_distribution"), (meaning, "translate"), (privacy, "epsilon")):
            patched.setattr(room, name, remembered(getattr(room, name)))
        yield


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[str, Any] = {}

    def answer(*given: Any, **named: Any) -> Any:
        asked = repr((given, sorted(named.items())))
        if asked not in known:
            known[asked] = function(*given, **named)
        return known[asked]

    return answer


# -- the same in both worlds, exactly -----------------------------------------------------------------------------
@pytest.mark.parametrize("posture", POSTURES)
def test_a_value_that_nobody_else_has_decides_nothing_that_leaves_beside_the_table(posture, tmp_path):
    """Nor how often it is drawn: a row that equals such a record was refused, one that equals it by chance was held."""
    n = 250 if posture == "holdout" else N
    plan = rows_plan(posture, UNIQUE, waves=1)
    one, other = (
        world(tmp_path / str(k), plan, tables) for k, tables in enumerate(exchanged(plan, UNIQUE, n).worlds([n]))
    )
    assert one[0] == other[0]


@pytest.mark.parametrize("returning", ["append", "refresh", "frozen"])
@pytest.mark.parametrize("posture", POSTURES)
def test_a_sixth_record_beyond_the_radius_decides_nothing_beside_the_table_in_this_wave_or_the_next(
    posture, returning, tmp_path
):
    """Of a person of the first wave, whom the second draws again, whose row it copies, or whom it leaves alone."""
    plan = rows_plan(posture, SIXTH, waves=2, returning=returning)
    first = {"holdout": 170}.get(posture, 100)
    waves = [first, first if returning == "refresh" else 2 * first]
    one, other = (
        world(tmp_path / str(k), plan, tables) for k, tables in enumerate(exchanged(plan, SIXTH, first).worlds(waves))
    )
    assert one[0] == other[0]
    assert [made.receipt.wave for made in one[1]] == [1, 2]


ILL = Dictionary(
    name="ill",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="died", kind="binary"),
        Column(name="age", kind="continuous", lower=16, upper=100),
        Column(name="male", kind="binary"),
        Column(name="visits", kind="integer", lower=0, upper=40),
    ),
)


def ill(n: int) -> pd.DataFrame:
    draws = np.random.default_rng(2)
    return pd.DataFrame(
        {
            "person": [f"p{i}" for i in range(n)],
            "died": draws.integers(0, 2, n),
            "age": draws.uniform(40, 60, n),
            "male": draws.integers(0, 2, n),
            "visits": draws.integers(0, 3, n),
        }
    )


# The only one of that age, and the only one with so many visits; nobody lies beyond the bounds of the densities.
EXTREME = Neighbours(ILL, ill, (3,), {"died": 1, "age": 100.0, "male": 1, "visits": 40})
FIGURES: dict[str, Any] = {
    "tables": TablesPlan(epsilon=0.5, bins={"age": 4, "visits": 3}),
    "moments": MomentsPlan(
        epsilon=0.8, outcome="binary", responses=("died",), covariates=("age", "male", "visits"), declared=("male",)
    ),
    "slicing": SlicingPlan(sigma=6.0, slices=12),
    "cross-products": CrossProductsPlan(
        epsilon=0.8, columns=("died", "age", "visits"), typical={"age": (50, 15), "visits": (3, 3)}
    ),
    "histograms": DensitiesPlan(densities=[["age"], ["age", "visits"]], epsilon=0.5, bounds={"age": (30, 70)}),
    "smooth densities": DensitiesPlan(densities=[["age"]], epsilon=0.5, basis="daubechies3"),
    "quantiles": DensitiesPlan(densities=[["age"]], epsilon=0.5, basis="quantiles", level=2),
    "reports of each record": DensitiesPlan(densities=[["age"]], epsilon=2.0, trust="local"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_record_decides_nothing_that_leaves_beside_the_figures(name, tmp_path):
    returning = "refresh" if name == "tables" else "append"
    waves = 2 if name in ("tables", "quantiles") else 1
    plan = study(FIGURES[name], ILL, posture="private", waves=waves, returning=returning)
    people = [80, 80 if returning == "refresh" else 160][:waves]
    one, other = (world(tmp_path / str(k), plan, tables) for k, tables in enumerate(EXTREME.worlds(people)))
    assert one[0] == other[0]
    assert len(one[1]) == waves
    if name != "quantiles":  # among the same borders, choices are mostly the same
        tables = [each[1][0].table.iloc[:, -1].tolist() for each in (one, other)]
        assert tables[0] != tables[1], "the released figures themselves do depend on the record"


# -- networks -----------------------------------------------------------------------------------------------------
CONTACTS = Dictionary(
    name="contacts",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="ward", kind="nominal", levels=("medicine", "surgery", "maternity")),
        Column(name="staff", kind="binary"),
        Column(name="age", kind="integer", lower=18, upper=110),
    ),
)


NETWORKS: dict[str, Any] = {
    "drawn": GrandPlan(epsilon=2.0, d=2),
    "drawn by ward": GrandPlan(epsilon=2.0, d=2, by="ward"),
    "counted": NetworkCountsPlan(epsilon=2.0, most_contacts=20, by=("ward",)),
}


@pytest.mark.parametrize("how", NETWORKS)
def test_a_released_person_of_a_network_decides_nothing_that_leaves_beside_the_network(how, tmp_path):
    """Tied to everybody in one world and to nobody in the other, of another ward, and the only one of that age."""
    plan = study(NETWORKS[how], CONTACTS, posture="private" if how == "counted" else "holdout")
    nodes, edges = contact_networks(np.random.default_rng(1), sites=1, n=200, mean_degree=12)["harbour"]
    names = list(nodes["person"])
    released = fitting.released_rows(plan, len(names), [pseudonym(one, key=KEY) for one in names])
    person = names[released[0]]
    nodes["age"] = nodes["age"].clip(20, 90)
    others = edges[(edges.iloc[:, :2] != person).all(axis=1)]
    ends = list(others.columns[:2])
    tied = pd.DataFrame({ends[0]: person, ends[1]: [name for name in names if name != person]})
    alone = nodes.assign(age=nodes["age"].where(nodes["person"] != person, 110))
    here = nodes.assign(ward=nodes["ward"].where(nodes["person"] != person, "surgery"))
    one, other = (
        world(tmp_path / str(k), plan, [table], ties)
        for k, (table, ties) in enumerate([(alone, others), (here, pd.concat([others, tied], ignore_index=True))])
    )
    assert one[0] == other[0]


def test_the_only_edge_of_a_network_decides_nothing_that_leaves_beside_its_counts(tmp_path):
    """A list of no edge looks like a wrong export. It is also what is left where the only person who met another met
    nobody, or where the one line of the list names somebody outside."""
    plan = study(NetworkCountsPlan(epsilon=2.0, most_contacts=20, strangers="leave_out"), CONTACTS, posture="private")
    nodes, edges = contact_networks(np.random.default_rng(1), sites=1, n=80)["harbour"]
    ends, names = list(edges.columns[:2]), list(nodes["person"])
    lists = [[(names[0], names[1])], [], [(names[0], "somebody else")]]
    first, *others = (
        world(tmp_path / str(k), plan, [nodes], pd.DataFrame(lines, columns=ends)) for k, lines in enumerate(lists)
    )
    assert len(first[1]) == 1
    assert [other[0] for other in others] == [first[0]] * 2


# -- who is looked at, and who is somebody else -------------------------------------------------------------------
@pytest.mark.parametrize("posture", ["private", "holdout"])
def test_whoever_withdrew_is_looked_at_by_no_later_release_not_even_to_train_on(posture, tmp_path):
    """Both worlds release the very same table when the record that was withdrawn is another."""
    plan = rows_plan(posture, SIXTH, waves=2, returning="refresh")
    plan = replace(plan, waves=(plan.waves[0], replace(plan.waves[1], refit=True)))
    n = 190 if posture == "holdout" else 110
    person = roles(plan, n, train=posture == "holdout")[0]
    found = []
    for k, record in enumerate([(0.5, 0.5), (0.1, 0.95)]):
        bench, table = Bench(tmp_path / str(k)), middle(0)(n)
        bench.deliver(bench.release(plan, table, seeded_rng(1)))
        gone = [pseudonym(f"p{i}", key=KEY) for i in {person, *range(n - 40, n)}]
        bench.site.ledger.note_persons(plan.study, gone, name="ada", key=SigningKey.generate())
        table.loc[person, ["x", "y"]] = record
        found.append(bench.release(plan, table, seeded_rng(2), wave=2).table)
    pd.testing.assert_frame_equal(*found)


def test_persons_told_apart_by_another_key_are_not_taken_for_new_ones(tmp_path):
    plan = rows_plan("public", SIXTH, waves=2, returning="append")
    bench = Bench(tmp_path)
    bench.deliver(bench.release(plan, middle(0)(100), seeded_rng(1)))
    bench.site = replace(bench.site, snapshot_key=b"another key".ljust(32))
    with pytest.raises(DifferencingRefusal, match="told apart"):
        bench.release(plan, middle(0)(200), seeded_rng(2), wave=2)


# -- by the site's own commands: standing approvals and the record for strangers ----------------------------------
def record(site: Hospital, folder: Path) -> dict[str, str]:
    """The files of `audit export`, but for the script, which is the same everywhere."""
    site("audit", "export", "gate", "--out", str(folder))
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "verify.py"
    }
    # Of an envelope what was signed; the rest of it is keys and signatures.
    signed = [name for name in files if re.search(r"(manifest|statement|decision-[\w-]+)\.json$", name)]
    files |= {name: Envelope.from_bytes(files[name]).payload for name in signed}
    return {name: masked(data) for name, data in files.items()}


def approved(site: Hospital, made: dict[str, Any]) -> None:
    ticks = [word for warning in made["warnings"] for word in ("--tick", warning["name"])]
    if made["state"] == "held":
        site("approve", made["release_id"], "--as", "dr-lind", *ticks)


def test_a_record_decides_neither_whether_a_standing_approval_serves_nor_what_strangers_are_shown(
    hospital, monkeypatch, tmp_path
):
    """Wave 2 has a record beyond the radius more in one world: with a warning, a person would have to sign."""
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_DR_LIND", PASSPHRASE)
    monkeypatch.setattr(drawing, "_attack", ATTACK)
    sources: list[Noise] = []
    ids: list[int] = []
    monkeypatch.setattr(
        "shared.base.randomness.secure_rng", lambda: sources.append(seeded_rng(len(sources))) or sources[-1]
    )
    monkeypatch.setattr("secrets.token_hex", lambda size: ids.append(0) or f"{len(ids):0{2 * size}x}")
    plan = rows_plan("public", SIXTH, waves=2, returning="refresh", floors=Floors(standing=True))
    hospital.joined("dr-lind").publish(plan)
    hospital("plan", "fetch", "gate")
    hospital("plan", "approve", "gate", "--as", "dr-lind", "--understood", "public")
    shutil.copytree(hospital.home, tmp_path / "before")
    hub = {name: value for name, value in vars(hospital.hub).items() if name != "ca"}
    heard = deepcopy(hub)
    seen = []
    for k, (table,) in enumerate(SIXTH.worlds([100])):
        shutil.rmtree(hospital.home)
        shutil.copytree(tmp_path / "before", hospital.home)
        vars(hospital.hub).update(deepcopy(heard))
        sources.clear()
        ids.clear()
        hospital.with_table(middle(0)(100), study="gate")
        approved(hospital, hospital.json("release", "gate", "--wave", "1"))
        hospital("standing", "add", "gate", "--as", "dr-lind", "--max-epsilon", "9", "--until", "2998-12-31")
        table.to_csv(hospital.folder / "cohort.csv", index=False)
        made = hospital.json("release", "gate", "--wave", "2")
        approved(hospital, made)
        seen.append(
            {
                "wave 2": (made["state"], made["standing"]),
                "statements": [masked(envelope.payload) for envelope, _ in hospital.hub.sent],
                "by": [len(envelope.signatures) for envelope, _ in hospital.hub.sent],
                "standing": [each is not None and masked(each.payload) for each in hospital.hub.stood],
                "witnessed": witnessed(hospital.hub.anchored),
                "record": record(hospital, tmp_path / f"record {k}"),
            }
        )
    one, other = seen
    for part in one:
        assert one[part] == other[part], part


# -- by night: many runs under real noise -------------------------------------------------------------------------
ALPHA = 1e-6
RUNS = 400


def least_epsilon(one: Counter[Any], other: Counter[Any], runs: int, delta: float) -> dict[Any, float]:
    """For each event, a lower bound on ε at δ from how often it was seen in each world (Clopper-Pearson)."""
    found: dict[Any, float] = {}
    for event in {*one, *other}:
        for many, few in ((one[event], other[event]), (other[event], one[event])):
            low = float(stats.beta.ppf(ALPHA, many, runs - many + 1)) if many else 0.0
            high = float(stats.beta.isf(ALPHA, few + 1, runs - few)) if few < runs else 1.0
            bound = math.log((low - delta) / high) if low > delta else 0.0
            found[event] = max(found.get(event, 0.0), bound)
    return found


def events(folder: Path, plan: StudyPlan, table: pd.DataFrame, row: dict[str, Any], seed: int) -> list[Any]:
    """What somebody outside can tell of one release: whether it came, at which try, and whether the row is in it."""
    told, made = world(folder, plan, [table], seed=seed)
    refused = sum(one[1] == "refused" for one in told if isinstance(one, tuple))
    hit = bool(made) and bool((made[0].table[list(row)] == pd.Series(row)).all(axis=1).any())
    receipt = asdict(made[0].receipt) if made else {}
    return [
        ("delivered", bool(made)),
        ("delivered and contains the row", bool(made) and hit),
        ("delivered and does not contain the row", bool(made) and not hit),
        ("delivered at the first try and contains the row", bool(made) and hit and not refused),
        ("tries", refused),
        ("study_epsilon", receipt.get("study_epsilon")),
        ("witnessed", str(told[-1])),
        ("warnings", str([one[3] for one in told if isinstance(one, tuple) and one[1] == "held"])),
    ]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("posture", "release"),
    [
        ("public", LatentNoisePlan(w=0.0)),
        ("public", LatentNoisePlan(epsilon=0.5)),
        ("private", LatentNoisePlan(epsilon=2.0)),
        ("holdout", LatentNoisePlan(epsilon=0.5)),
    ],
    ids=str,
)
def test_no_event_that_shows_outside_has_a_larger_epsilon_than_the_receipt(posture, release, tmp_path, record_property):
    """Nobody else has the value of the exchanged person, and a row with it is drawn by chance in some of the runs."""
    n = 256 if posture != "holdout" else 430
    neighbours = Neighbours(steps(24), patterns(range(0, 24, 3)), (0,), {"k": 24, "b1": 1, "b2": 1, "b3": 1})
    plan = rows_plan(posture, neighbours, waves=1, release=release)
    counts: list[Counter[Any]] = []
    for k, (table,) in enumerate(exchanged(plan, neighbours, n).worlds([n])):
        seen: Counter[Any] = Counter()
        for run in range(RUNS):
            folder = tmp_path / f"{k} {run}"
            seen.update(one for one in events(folder, plan, table, neighbours.record, 1000 * k + run + 1) if one[1])
            shutil.rmtree(folder)
        counts.append(seen)
    stated = privacy.epsilon(plan.release.event(plan), plan.budget.delta)
    bounds = least_epsilon(*counts, RUNS, plan.budget.delta)
    record_property("runs in each world", RUNS)
    record_property("stated epsilon", round(stated, 4))
    record_property("largest lower bound", round(max(bounds.values()), 4))
    assert {event: bound for event, bound in bounds.items() if bound > stated} == {}
