"""Looks as a coordinator may send them: what is refused is refused for the look, and no record is for itself."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from shared.base.randomness import seeded_rng
from shared.errors import SchemaRefusal
from shared.mechanisms.secure_sum.influences import Bounds, ModelAt, SumLook, noisy_level
from shared.mechanisms.secure_sum.sent_look import look_sent, read_look
from tests.benchmarks.secure_sum_attack import attacked_site

MOST = 1e12
TIMES = [0.0, 1e-300, 5e-291, 9e-291, 1e-290, 5e-101, 1e-100, 1.0, 36.0]
"""Of records, some within a first interval that is next to nothing."""
Y = np.array([[time, event] for time in TIMES for event in (0.0, 1.0) if time or event])


@pytest.fixture(scope="module")
def site():
    return attacked_site()


def extreme(site, first):
    """A look whose first interval is so short, and whose numbers are the largest that there may be."""
    sent, more = site.sent, len(site.sent.edges) - 2
    return replace(
        sent,
        edges=(0.0, first, *np.linspace(1.0, 36.0, more).tolist()),
        cumulative=(0.0,) + (MOST,) * (more + 1),
        effects=((30.0,) + (0.0,) * site.design.p,) * 2,
        along=((MOST,) * site.design.p,),
        means=((-MOST,) * (more + 1),),
        whitening=((MOST,),),
    )


def read(site, sent):
    """The look at as many records as there are outcomes, and these records' covariates."""
    x = np.repeat(site.x[:1], len(Y), axis=0)
    return look_sent(read_look(sent.to_canonical()), len(x), site.release.bounds(site.plan), site.design), x


def of_one(at, bounds):
    """The same look, along its one coefficient alone."""
    model = {name: getattr(at, name) for name in ModelAt.__dataclass_fields__}
    column = Bounds(column=0, unit=1.0, reach=bounds.reach, least=1.0, most=5.0)
    return SumLook(**model, bounds=column, along=at.along[0], means=at.means[0], psi=np.zeros((0, 0)), cut=5.0)


@pytest.mark.parametrize("first", [1e-290, 5e-324, 0.0])
def test_a_look_between_whose_times_slopes_are_not_finite_is_refused_whatever_the_records_are(site, first):
    with pytest.raises(SchemaRefusal, match="times must ascend"):
        read(site, extreme(site, first))


def test_under_any_look_that_is_not_refused_every_record_has_a_row_within_the_bounds(site):
    at, x = read(site, extreme(site, 1e-100))
    bounds = site.release.bounds(site.plan)
    for look in (at, of_one(at, bounds)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rows = look.rows(x, Y)
        assert np.isfinite(rows).all()
        assert rows.any(axis=1).all()
        assert np.abs(rows[:, 0]).max() <= bounds.reach * (1 + 1e-12)


@pytest.mark.parametrize("several", [True, False])
def test_a_record_whose_row_would_not_be_finite_adds_nothing_and_is_refused_nowhere(site, several):
    """No look that is read can make one: it is held once more here, where records are."""
    at, x = read(site, extreme(site, 1e-100))
    edges = at.outcome.edges.copy()
    edges[1] = 1e-290
    broken = replace(at, outcome=replace(at.outcome, edges=edges))
    look = broken if several else of_one(broken, site.release.bounds(site.plan))
    rows, level = look.rows(x, Y), look.level(x, Y)
    some = np.array([0.0 < time < 1e-290 for time, _ in Y])
    assert not rows[some].any()
    assert rows[~some].any(axis=1).all()
    assert np.isfinite(rows).all()
    assert level.min() >= 0
    assert level.max() <= 1
    assert np.abs(noisy_level(look, x, Y, 1.0, seeded_rng(1))).max() < 100
    site.terms.whole_steps(rows)
