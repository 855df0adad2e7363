"""Looks by wave: the boundaries of R's gsDesign, error rates by simulation, and looks that are not independent.

tests/reference/sequential_make.py writes the reference.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.figures.monitoring import monitoring_figure
from coordinator.pooling.further.sequential import SPENDING, boundaries, monitored, spent
from coordinator.pooling.pool import pool
from shared.errors import EstimateRefusal, ParameterError

CELLS = json.loads((Path(__file__).parents[2] / "reference" / "sequential.json").read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell['design']}, {cell['spending']}, {cell['alpha']}")
def test_boundaries_are_those_of_gsdesign(cell):
    ours = boundaries(cell["t"], cell["information"], alpha=cell["alpha"], spending=cell["spending"])
    assert ours == pytest.approx(cell["bounds"], abs=1e-6)


def crossed(bound: np.ndarray, information: np.ndarray, draws: int = 200_000) -> float:
    rng = np.random.default_rng(5)
    score = np.cumsum(rng.standard_normal((draws, len(bound))) * np.sqrt(np.diff(information, prepend=0.0)), axis=1)
    return float((np.abs(score) / np.sqrt(information) >= bound).any(axis=1).mean())


@pytest.mark.parametrize("spending", SPENDING)
def test_all_looks_together_spend_the_error_rate(spending):
    information = np.array([90.0, 300.0, 370.0, 400.0])
    bound = boundaries([0.25, 0.5, 0.75, 1.0], information, alpha=0.05, spending=spending)
    assert crossed(bound, information) == pytest.approx(0.05, abs=0.002)
    assert crossed(np.full(4, 1.96), information) > 0.09  # what nobody allowed for


@pytest.mark.parametrize("spending", SPENDING)
def test_the_union_bound_holds_whatever_the_correlation_is(spending):
    steps = np.diff(spent([0.25, 0.5, 0.75, 1.0], 0.05, spending), prepend=0.0)
    looks = [(f"wave {k}", k / 4, pool([0.0, 0.1], [0.02, 0.02], test="z")) for k in (1, 2, 3, 4)]
    found = monitored(looks, spending=spending, independent=False)
    assert [look.nominal for look in found.looks] == pytest.approx(steps, rel=1e-9)
    assert sum(look.nominal for look in found.looks) == pytest.approx(0.05)
    assert "correlation is not known" in found.notes[0]


def test_a_look_that_knows_no_more_has_a_boundary_of_its_own():
    bound = boundaries([0.5, 1.0], [100.0, 100.0], alpha=0.05, spending="pocock")
    alone = monitored([("a", 0.5, pool([0.1], [0.01])), ("b", 1.0, pool([0.1], [0.01]))], spending="pocock")
    assert bound[1] > boundaries([0.5, 1.0], [50.0, 100.0], alpha=0.05, spending="pocock")[1]
    assert "No more is known than at the look before: b" in alone.notes[0]


def test_repeated_intervals_and_crossings_are_of_the_p_value():
    results = [pool([0.3, 0.5, 0.4][:k], [0.02, 0.03, 0.02][:k], test="adhoc") for k in (2, 3)]
    found = monitored([("wave 1", 0.5, results[0]), ("wave 2", 1.0, results[1])], spending="pocock")
    for look, result in zip(found.looks, results, strict=True):
        wide = replace(result, level=1 - look.nominal)
        assert (look.ci_lb, look.ci_ub) == (wide.ci_lb, wide.ci_ub)
        assert look.crossed == (result.pval <= look.nominal) == (not look.ci_lb <= 0 <= look.ci_ub)


def test_what_cannot_be_monitored_is_refused():
    with pytest.raises(EstimateRefusal, match="must have a look"):
        monitored([], spending="pocock")
    with pytest.raises(ParameterError, match="spending must be one of"):
        spent([1.0], 0.05, "haybittle")
    with pytest.raises(ParameterError, match="must increase"):
        boundaries([0.5, 0.5], alpha=0.05, spending="pocock")


def test_looks_are_drawn_with_their_boundaries(tmp_path):
    looks = [(f"wave {k}", k / 4, pool([0.1] * (k + 1), [0.02] * (k + 1), test="z")) for k in (1, 2, 3)]
    found = monitored(looks, spending="obrien-fleming")
    drawn = monitoring_figure(found, title="A title", path=tmp_path / "looks.svg")
    svg = (tmp_path / "looks.svg").read_text(encoding="utf-8")
    assert all(f'id="{gid}"' in svg for gid in ("looks", "upper", "lower"))
    assert "wave 3: z" in drawn.words
    assert "no look is beyond its boundary" in drawn.words
