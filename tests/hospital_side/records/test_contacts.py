"""The edge list beside a node table: what is read, what is left out and counted, and what is refused."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stage.mechanisms.contact_files import ARCS, LINES, NODES, TIES, WARDS, write

from shared.errors import ConfigRefusal, DataFileRefusal, DictionaryRefusal, MissingRefusal, Refusal, StateRefusal
from shared.mechanisms.base import EdgeRules
from site_agent.config import Edges, TableSource
from site_agent.records import table as records
from site_agent.records.contacts import Contacts
from site_agent.records.source import source_from_toml
from site_agent.records.table import Records


def read(source: TableSource, rules: EdgeRules | None = TIES) -> Records:
    return records.read(source, WARDS, key=b"k" * 32, rules=rules)


def network(source: TableSource, rules: EdgeRules = TIES) -> Contacts:
    found = read(source, rules).contacts
    assert found is not None
    return found


def test_an_undirected_network_has_each_edge_once_in_both_directions_and_none_to_oneself(tmp_path):
    found = network(write(tmp_path, LINES))
    # Rows: 007, a, c, d, e; b lacks an age and is left out with its edge.
    expected = np.zeros((5, 5), dtype=int)
    for i, j in ((0, 1), (1, 2), (3, 0)):
        expected[i, j] = expected[j, i] = 1
    np.testing.assert_array_equal(found.matrix.toarray(), expected)
    assert found.counts == {
        "edges": 3,
        "repeated lines": 2,
        "edges to oneself": 1,
        "with a person outside the table": 1,
        "with an incomplete row": 1,
        "persons without an edge": 1,
    }
    assert found.lines == 8


def test_a_directed_network_keeps_both_directions_apart(tmp_path):
    found = network(write(tmp_path, LINES), ARCS)
    expected = np.zeros((5, 5), dtype=int)
    for i, j in ((0, 1), (1, 0), (1, 2), (3, 0)):
        expected[i, j] = 1
    np.testing.assert_array_equal(found.matrix.toarray(), expected)
    assert (found.edges, found.isolates) == (4, 1)


def test_csv_parquet_and_graphml_hold_the_same_network(tmp_path):
    import networkx

    lines = ["007,a", "a,c", "d,007"]
    expected = network(write(tmp_path, lines))
    table = pd.DataFrame([line.split(",") for line in lines], columns=["u", "v"]).assign(weight=1.5)
    table.to_parquet(tmp_path / "edges.parquet")
    parquet = Edges(path=tmp_path / "edges.parquet", start="u", end="v")
    drawn = networkx.Graph()
    drawn.add_nodes_from((person, {"age": age or "NA"}) for person, age in NODES.itertuples(index=False))
    drawn.add_edges_from(line.split(",") for line in lines)
    networkx.write_graphml(drawn, tmp_path / "net.graphml")
    whole = TableSource(path=tmp_path / "net.graphml", columns={"id": "person"})
    for source in (
        TableSource(path=tmp_path / "nodes.csv", edges=parquet),
        TableSource(path=tmp_path / "nodes.csv", edges=Edges(path=tmp_path / "net.graphml")),
        whole,
    ):
        np.testing.assert_array_equal(network(source).matrix.toarray(), expected.matrix.toarray())
    assert read(whole).table["age"].tolist() == [40, 50, 60, 70, 80]
    assert records.count(whole) == 6
    with pytest.raises(DictionaryRefusal, match="must be directed"):
        network(whole, ARCS)


def test_identifiers_that_are_numbers_in_one_file_and_text_in_the_other_are_the_same(tmp_path):
    nodes = pd.DataFrame({"person": [1, 2, 3], "age": [40, 50, 60]})
    nodes.to_parquet(tmp_path / "nodes.parquet")
    (tmp_path / "edges.csv").write_text("from,to\n1,2\n2,3\n")
    found = network(TableSource(path=tmp_path / "nodes.parquet", edges=Edges(path=tmp_path / "edges.csv")), EdgeRules())
    assert found.edges == 2


def test_identifiers_are_compared_as_in_the_table_however_they_are_written(tmp_path):
    nodes = NODES.assign(person=["7", "A", "b", "c 1", "d", "e"])
    found = network(write(tmp_path, ["007,a", "A,C  1"], nodes), EdgeRules())
    assert found.edges == 2
    source = write(tmp_path, ["007,a", "A,C  1"], nodes)
    with pytest.raises(DictionaryRefusal, match="2 of 2 lines"):
        records.read(source, WARDS, key=b"k" * 32, rules=EdgeRules(), as_written=True)


def test_the_snapshot_is_of_both_files_and_of_where_one_ends(tmp_path):
    one = read(write(tmp_path, ["a,c"])).snapshot
    assert one == read(write(tmp_path, ["a,c"])).snapshot
    assert one != read(write(tmp_path, ["a,d"])).snapshot
    assert one != read(write(tmp_path, ["a,c"], NODES.assign(age="41"))).snapshot


CANARY = "CANARY-4711"


@pytest.mark.parametrize(
    ("lines", "header", "refusal", "words"),
    [
        ([f"{CANARY},a", "a,c"], "from,to", DictionaryRefusal, "1 of 2 lines"),
        (["a,", ",c", "a,c"], "from,to", MissingRefusal, "2 lines with a blank"),
        (["a,c"], CANARY + ",a", DictionaryRefusal, "0 and 0 among 2"),
        (["a,c,c"], "from,to,to", DictionaryRefusal, "1 and 2 among 3"),
        (["a,c", f"a,{CANARY},d"], "from,to", DataFileRefusal, "unequal length"),
        (["a,c", f'a,"{CANARY}'], "from,to", Refusal, "must"),
    ],
)
def test_what_is_no_edge_list_is_refused_by_column_rule_and_count_alone(tmp_path, lines, header, refusal, words):
    source = write(tmp_path, lines, header=header)
    with pytest.raises(refusal, match=words) as caught:
        read(source, EdgeRules())
    assert CANARY not in str(caught.value)
    assert [type(found) for found in records.problems(source, WARDS, rules=EdgeRules())] == [type(caught.value)]


@pytest.mark.parametrize("lines", [[], ["a,a"]])
def test_a_list_without_an_edge_is_a_problem_for_who_checks_the_data_and_none_for_a_release(tmp_path, lines):
    """Whether anybody met anybody may be one person's own affair."""
    source = write(tmp_path, lines)
    (problem,) = records.problems(source, WARDS, rules=EdgeRules())
    assert "must hold an edge" in problem.must
    assert (problem.given, read(source, EdgeRules()).contacts.edges) == (f"{len(lines)} lines, none that is one", 0)


def test_damaged_files_are_refused_without_their_words(tmp_path):
    source = write(tmp_path, ["a,c"])
    (tmp_path / "edges.csv").write_bytes(b"from,to\na,\xff\xfe\n")
    with pytest.raises(DataFileRefusal, match="whole, and readable as csv"):
        read(source)
    for name, content in (("e.parquet", b"PAR1 cut"), ("e.graphml", b"<graphml><node"), ("e.csv", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataFileRefusal):
            read(TableSource(path=source.path, edges=Edges(path=tmp_path / name)))
    (tmp_path / "e.graphml").write_text('<!DOCTYPE x [<!ENTITY a "aaaa">]><graphml>&a;</graphml>')
    with pytest.raises(DataFileRefusal, match="document type"):
        read(TableSource(path=source.path, edges=Edges(path=tmp_path / "e.graphml")))
    # In another encoding a parser would find what a search for ASCII bytes does not.
    hidden = '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE x [<!ENTITY a "aaaa">]><graphml/>'
    for content in (hidden.encode("utf-16"), hidden.encode("utf-16-be"), hidden.replace("UTF-16", "cp037").encode()):
        (tmp_path / "e.graphml").write_bytes(content)
        with pytest.raises(DataFileRefusal, match="UTF-8"):
            read(TableSource(path=source.path, edges=Edges(path=tmp_path / "e.graphml")))
    with pytest.raises(DataFileRefusal, match="not there"):
        read(TableSource(path=source.path, edges=Edges(path=tmp_path / "none.csv")))


def test_a_network_needs_an_edge_list_and_nothing_else_may_have_one(tmp_path):
    source = write(tmp_path, ["a,c"])
    with pytest.raises(StateRefusal, match="must have an edge list"):
        read(TableSource(path=source.path))
    with pytest.raises(StateRefusal, match="must have no edges"):
        read(source, None)


def test_where_the_edges_lie_stands_in_the_settings_and_reads_back(tmp_path):
    from site_agent.config import SiteConfig

    edges = Edges(path=tmp_path / "c.tsv", delimiter="\t", start="who", end="whom")
    source = TableSource(path=tmp_path / "n.csv", edges=edges)
    config = SiteConfig(
        home=tmp_path,
        site="north",
        coordinator="hub",
        address="h:1",
        server_name="h",
        ca_fingerprint="00",
        leads=("ab" * 32,),
        data={"wards": source, "whole": TableSource(path=tmp_path / "n.graphml")},
    )
    assert SiteConfig.from_toml(config.to_toml(), home=tmp_path) == config
    with pytest.raises(ConfigRefusal, match="two columns"):
        Edges(path=tmp_path / "c.csv", start="a", end="a")
    with pytest.raises(ConfigRefusal, match=r"\[data.wards\].edges"):
        source_from_toml("wards", {"path": "/n.csv", "edges": {"path": "/e.csv", "form": "x"}})


BIG = """
import re, sys
from pathlib import Path
import numpy as np
from site_agent.config import Edges
from site_agent.records.contacts import read
from shared.mechanisms.base import EdgeRules
folder, n, lines = Path(sys.argv[1]), 50_000, int(sys.argv[2])
found = read(Edges(path=folder / "edges.csv"), [f"ward-{i:06d}" for i in range(n)], [], EdgeRules())
# Of this program: the other count begins with what its parent had when it forked.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(found.edges, found.lines, peak // 1024)
"""


def big_list(folder: Path, lines: int, n: int = 50_000) -> int:
    """A list of random edges between n persons; how many different ones it holds."""
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, n, lines), rng.integers(0, n, lines)
    with (folder / "edges.csv").open("w") as file:
        file.write("from,to\n")
        for k in range(0, lines, 1_000_000):
            part = zip(a[k : k + 1_000_000], b[k : k + 1_000_000], strict=True)
            file.write("".join(f"ward-{i:06d},ward-{j:06d}\n" for i, j in part))
    keep = a != b
    return len(np.unique(np.minimum(a, b)[keep] * n + np.maximum(a, b)[keep]))


@pytest.mark.parametrize(
    ("lines", "megabytes"), [(200_000, 1024), pytest.param(10_000_000, 4096, marks=pytest.mark.soak)]
)
def test_a_long_list_is_read_within_a_limit_of_memory(tmp_path, lines, megabytes, record_property):
    """In a process of its own, whose whole address space is limited: libraries included."""
    edges = big_list(tmp_path, lines)
    limit = max(megabytes, 2048) << 20  # libraries alone reserve more than a gigabyte of addresses

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    made = subprocess.run(
        [sys.executable, "-c", BIG, str(tmp_path), str(lines)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert made.returncode == 0, made.stderr[-800:]
    counted, read_, peak = map(int, made.stdout.split())
    record_property("peak_mb", peak)
    assert (counted, read_) == (edges, lines)
    assert peak < megabytes
