"""The scores that benchmarks of synthetic tables print are those of the package that the papers use."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.tables_quality import census_like, quality
from tests.reference.sdmetrics_make import pairs


def test_scores_are_those_of_sdmetrics():
    reference = json.loads((Path(__file__).parents[2] / "reference" / "sdmetrics.json").read_text())
    for name, (real, rows) in pairs().items():
        found = quality(real, rows, census_like(300, 9))
        for metric, value in reference[name].items():
            assert found[metric] == pytest.approx(value, abs=5e-7), (name, metric)
