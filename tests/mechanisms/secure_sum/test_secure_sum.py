"""The secure sum: exact with drop-outs, opened once, closed to a coordinator with colluding sites, priced by row."""

from __future__ import annotations

import dataclasses
import json
import math
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from scipy import optimize, stats
from stage.mechanisms.ring import KEYS, LOST, STEPS, TOLD, K, Ring, terms_of

from shared.base.canonical import canonical_json
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import IntegrityRefusal, ParameterError, Refusal, ReplayRefusal, SchemaRefusal, StateRefusal
from shared.mechanisms.secure_sum.coordinator import SumCoordinator
from shared.mechanisms.secure_sum.masks import combined, mask, pair_mask, require_full, shares_of
from shared.mechanisms.secure_sum.messages import (
    BOX,
    Agreement,
    KeyOffer,
    Lists,
    MaskedValue,
    Opening,
    Roster,
    SealedShares,
    SumAssent,
    Survivors,
)
from shared.mechanisms.secure_sum.price import trust_rows
from shared.mechanisms.secure_sum.site import noise_share
from shared.privacy.accountant import Gaussian


@pytest.mark.parametrize("step", [None, *STEPS])
@pytest.mark.parametrize("gone", [(3,), (0, 11)])
def test_the_sum_is_exact_whoever_drops_out_before_whichever_step(step, gone):
    ring = Ring(terms_of(), lost={k: step for k in gone} if step else {}).until("opening")
    assert (ring.coordinator.total() == ring.expected()).all()


def test_drop_outs_in_different_steps_are_counted_together():
    ring = Ring(terms_of(), lost={3: "masked", 8: "opening"}).until("opening")
    assert (ring.coordinator.total() == ring.expected()).all()
    ring = Ring(terms_of(), lost={3: "masked", 8: "opening", 9: "opening"}).until("opening")
    with pytest.raises(StateRefusal, match="10 of 12 sites must open"):
        ring.coordinator.total()


@pytest.mark.parametrize("step", STEPS[:-1])
def test_with_one_drop_out_too_many_nothing_is_opened(step):
    with pytest.raises(Refusal, match="10 of 12 sites must"):
        Ring(terms_of(), lost=dict.fromkeys((1, 2, 3), step)).until("opening").coordinator.total()


def test_without_the_masks_nothing_is_seen_of_a_site_and_the_masks_cancel_in_the_sum():
    ring = Ring(terms_of()).until("masked")
    words = {k: np.frombuffer(m.words, "<u8") for k, m in ring.coordinator._masked.items()}
    own = sum(mask(site._seed, 2) for site in ring.sites.values())
    total = (sum(words.values()) - own).astype(np.int64)
    assert (total * ring.terms.grid == ring.expected()).all()
    offset = {k: (words[k] - ring.values[k].astype(np.uint64)).astype(np.int64) for k in words}
    assert all((np.abs(value) > 2**40).all() for value in offset.values()), "as far away as 64 random bits are"


# -- the noise ------------------------------------------------------------------------------------------------------


def test_the_noise_of_all_but_the_lost_and_the_colluders_has_the_standard_deviation_of_the_terms():
    terms = terms_of(coordinates=4096)
    left = K - LOST - TOLD
    total = sum(noise_share(terms, noise) for noise in seeded_rng(3).spawn(left)) * terms.grid
    spread = total.std(ddof=1)
    assert stats.chi2.cdf(4095 * (spread / terms.sigma) ** 2, 4095) == pytest.approx(0.5, abs=0.4999)
    assert stats.kstest(total, stats.norm(scale=terms.sigma).cdf).pvalue > 1e-4


def test_the_law_of_summed_shares_is_a_rounded_normal_s():
    """Eight rounded normals, coarser than on any grid of the product: their exact convolution, against one normal."""
    s, grid = 2.0, np.arange(-60, 61)
    one = stats.norm.cdf((grid + 0.5) / s) - stats.norm.cdf((grid - 0.5) / s)
    pmf = np.array([1.0])
    for _ in range(8):
        pmf = np.convolve(pmf, one)
    at = np.arange(len(pmf)) - len(pmf) // 2
    moved = 5  # steps: the privacy loss of the sum, against that of a normal of variance 8 s²
    a, b = pmf[moved:], pmf[:-moved]
    epsilon = 0.6
    delta = np.maximum(a - math.exp(epsilon) * b, 0).sum()
    mu = moved / (s * math.sqrt(8))
    bound = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert 0.9 * bound < delta <= bound
    assert pmf @ at**2 == pytest.approx(8 * (s**2 + 1 / 12), rel=1e-6)


def test_a_record_moves_a_site_s_whole_steps_by_no_more_than_is_charged():
    terms = terms_of(coordinates=4)
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((500, 4))
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)  # no two further apart than 2
    base, charged = terms.whole_steps(rows), terms.event(8).sensitivity
    moved = []
    for _ in range(200):
        other = rows.copy()
        other[0] = -rows[0] / np.linalg.norm(rows[0])
        rows[0] = rows[0] / np.linalg.norm(rows[0])
        moved.append(np.linalg.norm((terms.whole_steps(other) - terms.whole_steps(rows)) * terms.grid))
        rows[0] = rng.standard_normal(4)
    assert 1.99 < max(moved) <= charged <= 1.01 * 2
    assert (np.abs(base * terms.grid - rows.sum(axis=0)) < 1e3).all()


def test_a_sum_beyond_the_largest_is_capped_and_a_record_still_moves_it_by_no_more_than_is_charged():
    terms = terms_of(largest=100.0)
    rows = np.full((200, 2), 0.5**0.5)
    for others in (0, 58, 59, 120):  # the sum of the rest lies at, about, and within what is kept
        rows[:others] = 0
        less = np.vstack([rows[:-1], -rows[-1:]])
        a, b = terms.whole_steps(rows) * terms.grid, terms.whole_steps(less) * terms.grid
        assert (np.abs([a, b]) <= 100).all()
        assert np.linalg.norm(a - b) <= terms.event(8).sensitivity
    assert (terms.whole_steps(np.array([[0.0, -2e5]])) * terms.grid == [0, -100]).all()


def test_numbers_that_are_none_or_too_large_are_refused_before_anything_is_masked():
    terms = terms_of()
    for bad in (math.nan, math.inf, -math.inf, 1e300):
        with pytest.raises(StateRefusal, match="must be finite"):
            terms.whole_steps(np.array([[0.0, bad]]))
    ring = Ring(terms).until("members")
    agreed = ring.coordinator.agreement(Lists.MEMBERS)
    for wrong in (np.zeros(3, np.int64), np.zeros(2), np.array([0, 2**60]), np.array([-(2**63), 0])):
        with pytest.raises(ParameterError):
            ring.sites[0].mask(agreed, wrong, ring.noise[0])
    ring.sites[0].mask(agreed, np.zeros(2, np.int64), ring.noise[0])  # a refusal used nothing up


# -- the threshold, and what a coordinator that lies may try ----------------------------------------------------------


@pytest.mark.parametrize("sites", [5, 8, 12, 50])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_two_lists_and_both_secrets_of_a_site_are_out_of_reach_of_the_colluders_withstood(sites, lost):
    keys = tuple(SigningKey.generate() for _ in range(sites)) if sites > K else KEYS[:sites]
    told = sites - 2 * lost - 1
    if sites - lost - told < 2:
        told = sites - lost - 2
    terms = terms_of(keys, drop_outs=lost, colluders=told)
    most = terms.withstood
    assert most >= told
    honest = sites - most
    assert max(min(most + h, most + honest - h) for h in range(honest + 1)) < terms.threshold, "one more could not"
    with pytest.raises(ParameterError, match="K - 2 drop_outs"):
        terms_of(keys, drop_outs=lost, colluders=sites - 2 * lost)


def test_a_coordinator_with_half_of_the_sites_gets_no_two_lists_of_survivors_signed():
    """With a threshold of two thirds it would: six colluders sign both lists, and three honest sites each of them."""
    ring = Ring(terms_of()).until("masked")
    terms, victim = ring.terms, 11
    colluders, shown = range(6), {6: True, 7: True, 11: True, 8: False, 9: False, 10: False}
    lists = {
        True: Survivors(sites=tuple(range(12))),
        False: Survivors(sites=tuple(range(11))),  # the victim is said to be lost
    }
    members = ring.sites[0]._members
    for has, survivors in lists.items():
        digest = survivors.digest(members)
        signed = {k: SumAssent.signed(terms, k, Lists.SURVIVORS, digest, KEYS[k]).signature for k in colluders}
        for k in (k for k, which in shown.items() if which is has):
            signed[k] = ring.sites[k].agree(survivors).signature
            with pytest.raises(ReplayRefusal):
                ring.sites[k].agree(lists[not has])
        agreed = Agreement(about=Lists.SURVIVORS, digest=digest, signatures=dict(sorted(signed.items())))
        for k in (k for k, which in shown.items() if which is has):
            with pytest.raises(IntegrityRefusal, match="10 sites must sign one list"):
                ring.sites[k].open(agreed)
    assert victim in lists[True].sites


def test_colluders_and_a_full_opening_of_the_others_do_not_unmask_a_site():
    """All shares that seven colluders hold, and all that the honest sites open, give one of a site's two secrets."""
    ring = Ring(terms_of()).until("survivors")
    terms, victim = ring.terms, 11
    agreed = ring.coordinator.agreement(Lists.SURVIVORS)
    held = {k: ring.sites[k]._held for k in range(7)}
    opened = {k: ring.sites[k].open(agreed) for k in range(7, 12)}
    assert all(len(m.shares[victim]) == 32 for m in opened.values()), "of the key for masks there are seven shares"
    seeds = {k: text[victim][:32] for k, text in held.items()} | {k: m.shares[victim] for k, m in opened.items()}
    known = np.frombuffer(ring.coordinator._masked[victim].words, "<u8") - mask(combined(seeds, terms), 2)
    for k in range(7):  # the masks with the colluders come off; those with four honest sites stay
        known = known + pair_mask(ring.sites[k]._masks, k, (victim, ring.coordinator._offers[victim].mask), terms)
    assert (np.abs(known.astype(np.int64)) > terms.largest / terms.grid).all()


def test_fewer_shares_than_the_threshold_fit_any_secret():
    terms = terms_of()
    shares = shares_of(bytes(range(32)), terms)
    some = dict(enumerate(shares[: terms.threshold - 1]))
    assert combined({**some, 11: shares[11]}, terms) == bytes(range(32))
    assert combined({**some, 11: os.urandom(32)}, terms) != bytes(range(32))


def test_nothing_is_opened_twice_and_no_step_is_taken_twice_or_out_of_order():
    ring = Ring(terms_of())
    site, c = ring.sites[0], ring.coordinator
    early = Agreement(about=Lists.SURVIVORS, digest=bytes(32), signatures={})
    with pytest.raises(ReplayRefusal):
        site.open(early)
    ring.until("opening")
    c.total()
    steps = {
        "offer": lambda: site.offer(),
        "seal": lambda: site.seal(c.roster()),
        "join": lambda: site.join(c.boxes_for(0)),
        "mask": lambda: site.mask(c.agreement(Lists.MEMBERS), ring.values[0], ring.noise[0]),
        "agree": lambda: site.agree(c.survivors()),
        "open": lambda: site.open(c.agreement(Lists.SURVIVORS)),
    }
    for name, again in steps.items():
        with pytest.raises(ReplayRefusal, match=f"nothing more, got {name}"):
            again()
    assert not hasattr(site, "_seed")


def test_a_site_masks_nothing_for_members_whom_too_few_others_saw():
    ring = Ring(terms_of()).until("members")
    agreed = ring.coordinator.agreement(Lists.MEMBERS)
    few = dataclasses.replace(agreed, signatures=dict(list(agreed.signatures.items())[:9]))
    other = dataclasses.replace(agreed, digest=bytes(32))
    for wrong in (few, other, dataclasses.replace(agreed, about=Lists.SURVIVORS)):
        with pytest.raises(IntegrityRefusal):
            ring.sites[0].mask(wrong, ring.values[0], ring.noise[0])
    forged = dataclasses.replace(agreed, signatures=agreed.signatures | {3: bytes(64)})
    with pytest.raises(IntegrityRefusal, match="signed by the member"):
        ring.sites[0].mask(forged, ring.values[0], ring.noise[0])


def test_keys_of_the_coordinator_s_own_are_refused():
    ring = Ring(terms_of()).until("offer")
    c = ring.coordinator
    stranger = KeyOffer.signed(ring.terms, 3, (os.urandom(32), os.urandom(32), bytes(32)), SigningKey.generate())
    with pytest.raises(IntegrityRefusal, match="signed by the member"):
        SumCoordinator(ring.terms).take_offer(stranger)
    offers = c.roster().offers
    with pytest.raises(IntegrityRefusal, match="signed by the member"):
        ring.sites[0].seal(Roster(offers=(*offers[:3], stranger, *offers[4:])))
    with pytest.raises(IntegrityRefusal, match="each site once"):
        ring.sites[0].seal(Roster(offers=(*offers, offers[4])))
    with pytest.raises(IntegrityRefusal, match="each site once"):
        ring.sites[0].seal(Roster(offers=offers[1:]))
    with pytest.raises(IntegrityRefusal, match="10 of 12"):
        ring.sites[0].seal(Roster(offers=offers[:9]))


SMALL = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
]
"""Every key of small order, by its u as RFC 7748 encodes it: 0, 1, two of order 8, -1; p and p + 1 are 0 and 1."""


def weak_offer(ring, use, point=SMALL[0]):
    """Site 3's offer, signed by itself, with a point of small order as one of its keys."""
    made = ring.sites[3].offer()
    public = {"cipher": made.cipher, "mask": made.mask} | {use: bytes.fromhex(point)}
    return KeyOffer.signed(ring.terms, 3, (*public.values(), made.commitment), KEYS[3])


@pytest.mark.parametrize("use", ["cipher", "mask"])
def test_an_offer_with_a_point_of_small_order_is_dropped_and_the_others_go_on(use):
    ring = Ring(terms_of(), lost={3: "offer"})
    with pytest.raises(IntegrityRefusal, match="full point"):
        ring.coordinator.take_offer(weak_offer(ring, use))
    ring.until("opening")
    assert 3 not in ring.coordinator.survivors().sites
    assert (ring.coordinator.total() == ring.expected()).all()


@pytest.mark.parametrize("use", ["cipher", "mask"])
def test_a_site_that_is_given_a_point_of_small_order_refuses_before_it_has_changed_anything(use):
    ring = Ring(terms_of(), lost={3: "offer"})
    weak = weak_offer(ring, use)
    ring.until("offer")
    for k in ring.living("shares"):
        with pytest.raises(IntegrityRefusal, match="full point"):
            ring.sites[k].seal(Roster(offers=(*ring.coordinator.roster().offers, weak)))
        assert not ring.sites[k]._held
        ring.coordinator.take_shares(ring.sites[k].seal(ring.coordinator.roster()))
    c = ring.coordinator
    assert {ring.sites[k].join(c.boxes_for(k)).digest for k in ring.living("members")} == {c.members_digest}


@pytest.mark.parametrize("point", SMALL)
def test_each_point_of_small_order_is_found_by_whichever_private_key(point):
    with pytest.raises(IntegrityRefusal, match="full point"):
        require_full(bytes.fromhex(point))
    for _ in range(20):
        own = X25519PrivateKey.generate()
        with pytest.raises(ValueError, match="computing shared key"):
            own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(point)))
        require_full(own.public_key().public_bytes_raw())


def test_numbers_that_cannot_be_masked_draw_no_noise_and_may_be_masked_again():
    ring = Ring(terms_of()).until("members")
    site, c = ring.sites[0], ring.coordinator
    agreed, honest = c.agreement(Lists.MEMBERS), site._offers[3]
    site._offers[3] = dataclasses.replace(honest, mask=bytes(32))
    with pytest.raises(IntegrityRefusal, match="full point"):
        site.mask(agreed, ring.values[0], ring.noise[0])
    site._offers[3] = honest
    for k, one in ring.sites.items():
        c.take_masked(one.mask(agreed, ring.values[k], ring.noise[k]))
    for one in ring.sites.values():
        c.take_assent(one.agree(c.survivors()))
    for one in ring.sites.values():
        c.take_opening(one.open(c.agreement(Lists.SURVIVORS)))
    assert (c.total() == ring.expected()).all(), "with the noise that would have been drawn at first"


def test_one_site_s_boxes_that_do_not_open_end_the_sum_and_each_refusal_names_it():
    """Written down in docs/threat-model.md as not defended."""
    ring = Ring(terms_of()).until("offer")
    c = ring.coordinator
    for k, site in ring.sites.items():
        made = site.seal(c.roster())
        c.take_shares(dataclasses.replace(made, boxes={j: os.urandom(BOX) for j in made.boxes}) if k == 3 else made)
    for k, site in ring.sites.items():
        if k != 3:
            with pytest.raises(IntegrityRefusal, match="site 3's does not"):
                site.join(c.boxes_for(k))
    with pytest.raises(StateRefusal, match="10 of 12 sites must sign the members"):
        c.agreement(Lists.MEMBERS)


def test_boxes_are_for_one_site_and_whole():
    ring = Ring(terms_of()).until("shares")
    boxes = ring.coordinator.boxes_for(0)
    for wrong in (
        ring.coordinator.boxes_for(1),
        dataclasses.replace(boxes, boxes={**boxes.boxes, 4: boxes.boxes[5]}),
        dataclasses.replace(boxes, boxes=dict(list(boxes.boxes.items())[:8])),
    ):
        with pytest.raises(IntegrityRefusal):
            ring.sites[0].join(wrong)
    ring.sites[0].join(boxes)


@pytest.mark.parametrize(
    "claimed", [tuple(range(9)), tuple(range(1, 12)), (*range(11), 12)], ids=["too few", "not itself", "no member"]
)
def test_a_site_agrees_to_no_survivors_but_enough_members_with_itself(claimed):
    ring = Ring(terms_of(), lost={11: "offer"}).until("masked")
    with pytest.raises(IntegrityRefusal):
        ring.sites[0].agree(Survivors(sites=claimed))


def opened_with_false_shares(ring, liars, about):
    """The coordinator once all have opened, some of them a false share of the secrets of one site."""
    c = ring.coordinator
    for k in ring.living("opening"):
        opening = ring.sites[k].open(c.agreement(Lists.SURVIVORS))
        if k in liars:
            opening = dataclasses.replace(opening, shares=opening.shares | {about: bytes(32)})
        c.take_opening(opening)
    return c


@pytest.mark.parametrize("about", [4, 6])  # of one that is lost, and of one that survived
def test_one_false_share_is_left_out_where_there_is_one_to_spare(about):
    ring = Ring(terms_of(), lost={4: "masked"}).until("survivors")
    assert (opened_with_false_shares(ring, {0}, about).total() == ring.expected()).all()


@pytest.mark.parametrize(
    ("liars", "lost"), [({0, 3}, {4: "masked"}), ({0}, {4: "masked", 8: "opening"})], ids=["two", "none to spare"]
)
def test_a_false_share_too_many_is_noticed_and_nothing_is_told_in_its_place(liars, lost):
    ring = Ring(terms_of(), lost=lost).until("survivors")
    with pytest.raises(IntegrityRefusal, match="committed"):
        opened_with_false_shares(ring, liars, 4).total()


def test_the_coordinator_takes_each_message_once_and_none_late():
    ring = Ring(terms_of(), lost={5: "masked"}).until("masked")
    c, terms = ring.coordinator, ring.terms
    for again in (
        lambda: c.take_offer(c._offers[0]),
        lambda: c.take_shares(c._shares[0]),
        lambda: c.take_masked(c._masked[0]),
    ):
        with pytest.raises(ReplayRefusal):
            again()
    c.survivors()
    late = ring.sites[5].mask(c.agreement(Lists.MEMBERS), ring.values[5], ring.noise[5])
    with pytest.raises(ReplayRefusal, match="late"):
        c.take_masked(late)
    with pytest.raises(IntegrityRefusal, match="member"):
        SumCoordinator(terms).take_masked(late)


# -- bytes ----------------------------------------------------------------------------------------------------------


def messages():
    ring = Ring(terms_of()).until("survivors")
    c = ring.coordinator
    assent = SumAssent.signed(ring.terms, 1, Lists.MEMBERS, bytes(32), KEYS[1])
    return ring.terms, (
        c._offers[0],
        c.roster(),
        c.boxes_for(2),
        assent,
        c.agreement(Lists.MEMBERS),
        c._masked[1],
        c.survivors(),
        ring.sites[1].open(c.agreement(Lists.SURVIVORS)),
    )


def test_every_message_reads_as_it_was_written_and_in_no_other_bytes():
    terms, found = messages()
    assert {type(one) for one in found} == {
        KeyOffer,
        Roster,
        SealedShares,
        SumAssent,
        Agreement,
        MaskedValue,
        Survivors,
        Opening,
    }
    other = terms_of(label="b")
    for one in found:
        data = one.to_bytes(terms)
        assert type(one).from_bytes(data, terms) == one
        with pytest.raises(ReplayRefusal):
            type(one).from_bytes(data, other)
        with pytest.raises(SchemaRefusal):
            type(one).from_bytes(data.replace(b'":', b'": ', 1), terms)
        with pytest.raises(SchemaRefusal, match="bytes"):
            type(one).from_bytes(data + b" " * 20_000, terms)
        for kind in {type(two) for two in found} - {type(one)}:
            with pytest.raises(SchemaRefusal, match="kind"):
                kind.from_bytes(data, terms)


def test_a_message_with_any_field_lacking_or_of_another_form_is_refused():
    terms, found = messages()
    for one in found:
        body = json.loads(one.to_bytes(terms))
        for name in body.keys() - {"kind", "sum"}:
            for value in (None, -1, 12, 1.5, "", "AA==", "é", [], {}, [[]], {"12": "AA=="}, {"x": "AA=="}, True):
                if value != body[name] and not (value in ([], {}) and isinstance(body[name], list | dict)):
                    with pytest.raises(Refusal):
                        type(one).from_bytes(canonical_json(body | {name: value}), terms)
            lacking = {key: value for key, value in body.items() if key != name}
            with pytest.raises(SchemaRefusal):
                type(one).from_bytes(canonical_json(lacking), terms)
        with pytest.raises(SchemaRefusal):
            type(one).from_bytes(canonical_json(body | {"more": 1}), terms)


@pytest.mark.parametrize(
    "wrong",
    [
        {"members": tuple(key.public.hex for key in KEYS[:4])},
        {"members": (KEYS[0].public.hex,) * 12},
        {"drop_outs": -1},
        {"drop_outs": 5, "colluders": 2},
        {"colluders": 9},
        {"plan": "x"},
        {"label": "A b"},
        {"wave": 0},
        {"coordinates": 0},
        {"sigma": math.nan},
        {"sensitivity": 0.0},
        {"largest": math.inf},
        {"largest": 1e18},
    ],
)
def test_terms_that_promise_nothing_are_refused(wrong):
    with pytest.raises(Refusal):
        terms_of(**wrong)


@pytest.mark.parametrize("name", ["wave", "label", "drop_outs", "colluders", "coordinates", "sensitivity", "sigma"])
def test_each_term_is_in_the_digest(name):
    changed = {
        "wave": 2,
        "label": "b",
        "drop_outs": 1,
        "colluders": 1,
        "coordinates": 3,
        "sensitivity": 1.0,
        "sigma": 4.0,
    }
    assert terms_of(**{name: changed[name]}).digest != terms_of().digest


def test_a_site_sends_and_reads_few_bytes():
    ring = Ring(terms_of()).until("opening")
    assert max(ring.sent.values()) + max(ring.got.values()) < 20_000


# -- the price ------------------------------------------------------------------------------------------------------


def by_hand(mus, delta):
    """ε of Gaussian mechanisms together, from the textbook formula, sharing no code with the product."""
    mu = math.sqrt(sum(m**2 for m in mus))

    def over(e):
        return stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu) - delta

    return optimize.brentq(over, 0.0, 50.0)


def test_the_four_rows_are_what_they_are_by_hand():
    delta, visible = 1e-6, Gaussian(sigma=5.0, sensitivity=1.0)
    rounds = [terms_of(label=label, sigma=sigma, sensitivity=2.0) for label, sigma in (("a", 20.0), ("b", 12.0))]
    rows = trust_rows([visible], rounds, delta)
    assert [row.colluders for row in rows] == [0, 2, 6, 11]
    for row, hidden in zip(rows, (10, 8, 4, 1), strict=True):
        mus = [1 / 5.0] + [2 / (s * math.sqrt(hidden / 8)) for s in (20.0, 12.0)]
        assert row.epsilon == pytest.approx(by_hand(mus, delta), rel=5e-3)
        assert row.epsilon >= by_hand(mus, delta)
    assert rows[0].epsilon < rows[1].epsilon < rows[2].epsilon < rows[3].epsilon


def test_beyond_what_the_masks_withstand_the_whole_share_is_charged():
    """Eight sites, three drop-outs: with four colluders both secrets of a site can be had, its own noise is left."""
    keys = KEYS[:8]
    terms = terms_of(keys, drop_outs=3, colluders=1)
    assert terms.withstood == 1
    half, rest = trust_rows([], [terms], 1e-6)[2:]
    assert half.epsilon == rest.epsilon == pytest.approx(by_hand([2 / (3 / 2)], 1e-6), rel=5e-3)


def test_rounds_with_other_sites_have_no_common_price():
    with pytest.raises(ParameterError, match="same sites"):
        trust_rows([], [terms_of(), terms_of(drop_outs=1)], 1e-6)
    with pytest.raises(ParameterError, match="same sites"):
        trust_rows([], [], 1e-6)
