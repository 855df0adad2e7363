"""The special functions of prices are scipy's to the last bit, with and without the way around its start."""

from __future__ import annotations

import importlib.machinery
import subprocess
import sys

import numpy as np
import pytest
from scipy import special as whole

from shared.privacy import meaning
from shared.privacy.compiled import FUNCTIONS, special
from tests.stage.house.sources import ROOT

LINE = np.concatenate([np.linspace(-40, 40, 20_001), np.geomspace(1e-300, 1e300, 20_001), [-np.inf, 0.0, np.inf]])


@pytest.fixture
def afresh():
    special.cache_clear()
    yield
    special.cache_clear()


@pytest.mark.parametrize("name", ["erfcx", "log_ndtr", "ndtr"])
def test_a_function_of_one_number_is_that_of_scipy_to_the_last_bit(name):
    for line in (LINE, -LINE):
        assert getattr(special(), name)(line).tobytes() == getattr(whole, name)(line).tobytes()


def test_the_radius_of_every_width_is_that_of_scipy_to_the_last_bit():
    halves = np.arange(1, 1001) / 2
    for inside in (0.9, 0.99, 1e-13, 0.5):
        assert special().gammaincinv(halves, inside).tobytes() == whole.gammaincinv(halves, inside).tobytes()


def test_the_score_of_one_in_a_hundred_is_that_of_scipy_to_the_last_bit():
    for alpha in (0.01, 0.05):
        assert meaning._score(alpha) == float(whole.ndtri(alpha))


def test_scipy_can_be_imported_after_its_compiled_functions():
    code = """
import sys
from shared.privacy.compiled import special
before = special().erfcx(1.5)
assert not any(name.split(".")[0] == "scipy" for name in sys.modules)
import scipy.special, scipy.stats
assert special().erfcx(1.5) == before == scipy.special.erfcx(1.5)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("lacking", ["the file", "a function", "what it links to"])
def test_another_layout_of_scipy_costs_time_and_changes_nothing(afresh, monkeypatch, tmp_path, lacking):
    if lacking == "the file":
        monkeypatch.setattr("shared.privacy.compiled._FILE", "_of_another_version")
    elif lacking == "a function":
        monkeypatch.setattr("shared.privacy.compiled.FUNCTIONS", (*FUNCTIONS, "of_another_version"))
    else:

        def refused(*_):
            raise ImportError("no such library")

        monkeypatch.setattr(importlib.machinery.ExtensionFileLoader, "create_module", refused)
    assert special() is whole
