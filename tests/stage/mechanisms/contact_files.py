"""A hospital's two files: persons, and who met whom."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from shared.mechanisms.base import EdgeRules
from shared.plans.dictionary import Column, Dictionary
from site_agent.config import Edges, TableSource

WARDS = Dictionary(
    name="wards",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="age", kind="integer", lower=0, upper=110, missing="complete_case"),
    ),
)
NODES = pd.DataFrame({"person": ["007", "a", "b", "c", "d", "e"], "age": ["40", "50", "", "60", "70", "80"]})
LINES = ["007,a", "a,007", "a,c", "a,c", "c,c", "b,a", " d ,007", "x,a"]
TIES, ARCS = EdgeRules(strangers="leave_out"), EdgeRules(directed=True, strangers="leave_out")


def write(folder: Path, lines: list[str], nodes: pd.DataFrame = NODES, header: str = "from,to") -> TableSource:
    nodes.to_csv(folder / "nodes.csv", index=False)
    (folder / "edges.csv").write_text("\n".join([header, *lines]) + "\n")
    return TableSource(path=folder / "nodes.csv", edges=Edges(path=folder / "edges.csv"))
