"""The demo's contact networks: three simulated hospitals, each released as a node-private network (GRAND)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.demo.play import DemoAnswer, Play, beside_real, in_files
from shared.errors import ParameterError

if TYPE_CHECKING:
    from coordinator.demo.stage import DemoStage
    from coordinator.pooling.pool import PooledResult
    from shared.plans.plan import StudyPlan

__all__ = ["NetworkPlay"]

_UNITS = {
    "contacts": "Share of pairs in contact",
    "paths": "Share of possible V-shapes that are there",
    "unevenness": "Coefficient of variation of degrees",
}


class NetworkPlay(Play):
    """Wards of three hospitals; with `DemoOptions.sites` the largest so many."""

    covers = "every released person covered, the persons held out not"

    def tables(self, folder: Path) -> dict[str, Path]:
        """Node tables as CSV files, each beside its edge list."""
        import numpy as np

        from shared.simulated import contact_networks

        n = round(1200 * self.options.scale)
        if n < 250:
            raise ParameterError(
                "scale must leave enough persons to hold half of them out", given=f"{self.options.scale}"
            )
        sites = 3 if self.options.sites is None else self.options.sites
        made = contact_networks(np.random.default_rng(self.options.seed), sites, n)
        files = in_files(folder, {name: nodes for name, (nodes, _) in made.items()})
        for name, (_, edges) in made.items():
            edges.to_csv(_edges(files[name]), index=False)
        return files

    def add_data(self, stage: DemoStage, site: str, study: str) -> None:
        """A hospital names its node table and its edge list."""
        path = stage.tables[site]
        stage.agent(site, "data", "add", str(path), "--as", study, "--edges", str(_edges(path)))

    def answers(self, stage: DemoStage) -> dict[str, DemoAnswer]:
        """Every planned question, pooled from the releases and from the real networks."""
        return beside_real(stage, partial(_real, stage.tables))

    def unit(self, answer: DemoAnswer) -> str:
        """Label of the axis."""
        return _UNITS.get(answer.title.rpartition(": ")[2], answer.question)

    @property
    def note(self) -> str:
        """Footnote: who is covered."""
        return (
            "gap: to the real networks, released persons and held-out ones together. ε is exact for each released "
            "person with all contacts and attributes; the persons held out have no guarantee. No row is a person's."
        )


def _edges(nodes: Path) -> Path:
    return nodes.with_name(f"{nodes.stem}-contacts.csv")


def _real(tables: Mapping[str, Path], plan: StudyPlan, formula: str) -> PooledResult:
    """Pool the real networks, all persons of them: possible here only because they are simulated."""
    import numpy as np
    import pandas as pd
    from scipy.sparse import csr_array

    from coordinator.pooling.pool import pool_estimates
    from shared.estimands.answer import Estimate, parse_estimand
    from shared.mechanisms.grand.answer import figure

    question = parse_estimand(formula)
    rows = []
    for site, path in sorted(tables.items()):
        nodes, edges = pd.read_csv(path), pd.read_csv(_edges(path))
        n = len(nodes)
        places = [pd.Index(nodes["person"]).get_indexer(edges[end]) for end in ("from", "to")]
        network = csr_array((np.ones(len(edges)), tuple(places)), shape=(n, n))
        yi, vi = figure(network, nodes, question, plan.dictionary)
        rows.append(
            Estimate(
                study=plan.study,
                site=site,
                wave=1,
                term=question.labels[0],
                yi=yi,
                vi_sampling=vi,
                n=n,
                scale=question.scale,
            )
        )
    return pool_estimates(rows)
