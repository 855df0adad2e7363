"""Lists of releases: which they name, what they read for it, and how they are paged."""

from __future__ import annotations

import pytest
from delivered import take_back
from test_wave_grid import Study

from coordinator.answers.release_selection import DeliveredSites, holding


@pytest.fixture
def study(tmp_path):
    """Three sites that delivered two waves each, in an order of their own."""
    made = Study(tmp_path / "home")
    for site, wave in (("beta", 1), ("alpha", 1), ("gamma", 1), ("gamma", 2), ("alpha", 2), ("beta", 2)):
        made.deliver(site, wave)
    yield made
    made.store.close()


def test_what_sites_delivered_is_read_once_and_again_when_the_log_has_grown(study, monkeypatch):
    delivered, store = DeliveredSites(study.store), study.store
    sites, day = delivered.of("cvd")
    assert (sites["alpha"]["waves"], sites["alpha"]["n"], day) == ([1, 2], {"1": 301, "2": 302}, "2026-01-05")
    assert sites["alpha"]["epsilon_given"] == "the flow", "the ε of a flow that was fitted on the records"
    [newest] = [one for one in store.releases("cvd", 2) if one.site == "alpha"]
    assert sites["alpha"]["study_epsilon"] == newest.receipt.study_epsilon

    read = []
    lines, bundles = store.release_lines, store.releases_of
    monkeypatch.setattr(store, "release_lines", lambda *args, **more: read.append("lines") or lines(*args, **more))
    monkeypatch.setattr(store, "releases_of", lambda asked: read.append(n := list(asked)) or bundles(n))
    assert delivered.of("cvd") == (sites, day)
    assert read == []
    study.deliver("alpha", 3)
    assert delivered.of("cvd")[0]["alpha"]["waves"] == [1, 2, 3]
    assert sum(len(one) for one in read if one != "lines") == 3 + 1, "each site's newest receipt, and the new price"
    take_back(store, "alpha", study.keys["alpha"], wave=3)
    assert delivered.of("cvd")[0]["alpha"]["waves"] == [1, 2]


def test_a_line_of_a_list_is_the_release_without_what_is_read_of_its_receipt(study):
    take_back(study.store, "beta", study.keys["beta"], wave=2)
    for withdrawn in (False, True):
        lines = study.store.release_lines("cvd", withdrawn=withdrawn)
        whole = study.store.releases("cvd", withdrawn=withdrawn)
        names = lines[0].__dataclass_fields__
        assert len(lines) == 5 + withdrawn
        assert [[getattr(one, name) for name in names] for one in lines] == [
            [getattr(one, name) for name in names] for one in whole
        ]
    held = holding(study.store, "cvd")
    assert {site: [one.wave for one in own] for site, own in held.parts.items()} == {
        "alpha": [2],
        "beta": [1],
        "gamma": [2],
    }


@pytest.mark.parametrize("newest", [False, True])
def test_pages_of_the_log_name_every_release_once_in_its_order(study, newest):
    take_back(study.store, "gamma", study.keys["gamma"], wave=1)
    every = [one.release_id for one in study.store.logged_releases("cvd", newest=newest)]
    assert len(every) == len(set(every)) == 6
    found, after = [], None
    while page := study.store.logged_releases("cvd", most=4, after=after, newest=newest):
        found += [one.release_id for one in page]
        after = page[-1].log_index
    assert found == every
    own = study.store.logged_releases("cvd", site="gamma", wave=1)
    assert [(one.site, one.wave, one.withdrawn) for one in own] == [("gamma", 1, "consent")]
