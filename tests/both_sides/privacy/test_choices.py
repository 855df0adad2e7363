"""The exact law of what is chosen and not noised, worked out by asking the product itself.

A choice has no scale that ten thousand draws would tell. Here a chooser stands in for the sampler: it is told which of
the possible answers to give, and notes with what probability the sampler gives it by its own contract (`Noise.chosen`,
`uniform` and `likeliest`, which are held to that contract below). Going through all answers gives the whole law of a
released table, from the plan's own call; between neighbouring tables no outcome's odds may change by more than e^ε, and
the worst must come near it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from stage.hospital_side.shipped import Bench, Given, study
from stage.mechanisms.contacts import contacts, contacts_study

from shared.base.randomness import Noise, seeded_rng
from shared.mechanisms.densities import quantiles
from shared.mechanisms.densities.plan import DensitiesPlan
from shared.mechanisms.densities.quantiles import Quantiles
from shared.mechanisms.grand.labels import LabelPrivate
from shared.mechanisms.grand.plan import GrandPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import StudyPlan
from shared.privacy import accountant as privacy

Law = dict[Any, float]


class Chooser:
    """Gives the answers it is told to, beyond them the first, and notes how many there were and how likely each was.

    Args:
        told: the places of the answers among those that are possible, in the order in which they are asked for.
    """

    def __init__(self, told: tuple[int, ...]) -> None:
        self.told, self.options, self.probability = told, [], Fraction(1)
        self.log, self.rates = 0.0, set[Fraction]()

    def _next(self, weights: list[Any]) -> int:
        place = self.told[len(self.options)] if len(self.options) < len(self.told) else 0
        self.options.append(len(weights))
        self.probability *= weights[place]
        return place

    def chosen(self, rate: float, count: int) -> Any:
        true = Fraction(math.floor(Fraction(rate) * 2**64), 2**64)
        return np.array([self._next([true, 1 - true]) == 0 for _ in range(count)], dtype=bool)

    def uniform(self, bound: int, count: int) -> Any:
        return np.array([self._next([Fraction(1, bound)] * bound) for _ in range(count)], dtype=np.int64)

    def likeliest(self, short: Any, rate: Fraction) -> int:
        short = np.asarray(short)
        assert short.min() == 0
        self.rates.add(rate)
        log = -float(rate) * short
        place = self._next([1] * len(short))
        self.log += float(log[place] - np.logaddexp.reduce(log))
        return place

    def named(self, names: Any) -> list[Chooser]:
        assert len(set(names)) == len(names)
        return [self for _ in names]


def law(release: Callable[[Chooser], Any]) -> Law:
    """Every outcome of a release and its probability: a `Fraction`, or where exponentials decide, a double."""
    found: Law = {}
    left: list[tuple[int, ...]] = [()]
    while left:
        told = left.pop()
        chooser = Chooser(told)
        outcome = release(chooser)
        if len(chooser.options) > len(told):
            left += [(*told, place) for place in range(chooser.options[len(told)])]
            continue
        chance = chooser.probability if not chooser.log else math.exp(chooser.log)
        found[outcome] = found.get(outcome, 0) + chance
    assert float(sum(found.values())) == pytest.approx(1, abs=1e-12)
    return found


def worst(one: Law, other: Law) -> Any:
    """The largest ratio of the two probabilities of any outcome, either way round."""
    assert set(one) == set(other), "what one of them can give, the other can"
    return max(max(one[k] / other[k], other[k] / one[k]) for k in one)


def odds(epsilon: float) -> Fraction:
    """e^ε in fifty digits, from the double that stands on the receipt."""
    with localcontext() as context:
        context.prec = 50
        return Fraction(Decimal(epsilon).exp())


def densities(columns: int = 1, **settings: Any) -> StudyPlan:
    """Columns of eight whole numbers."""
    named = [f"x{k}" for k in range(columns)]
    dictionary = Dictionary(
        name="steps",
        version=1,
        columns=tuple(Column(name=name, kind="continuous", lower=0, upper=8) for name in named),
    )
    return study(DensitiesPlan(densities=[[name] for name in named], **settings), dictionary, posture="private")


def table(*columns: Any) -> pd.DataFrame:
    return pd.DataFrame({f"x{k}": np.array(values, dtype=float) for k, values in enumerate(columns)})


def released(plan: StudyPlan, records: pd.DataFrame) -> Law:
    """The law of the whole released table."""
    return law(lambda chooser: tuple(plan.release.draw(plan, records, chooser).iloc[:, -1]))


# -- quantiles ----------------------------------------------------------------------------------------------------
def borders(tree: Quantiles, values: list[float]) -> Law:
    return law(lambda chooser: tuple(tree.borders(np.array(values), chooser).tolist()))


def far_apart(tree: Quantiles, one: list[float], other: list[float]) -> float:
    """The largest logarithm of the ratio of two odds."""
    return math.log(worst(borders(tree, one), borders(tree, other)))


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
@pytest.mark.parametrize(("level", "cells", "near"), [(1, 32, 0.8), (2, 6, 0.4), (3, 6, 0.25)])
def test_no_record_changes_the_odds_of_any_quantiles_by_more_than_the_price_and_some_by_nearly_that(
    monkeypatch, level, cells, near, epsilon
):
    """The tree of medians that a plan makes, its own levels being 2 and more. Of one median the price is nearly met."""
    monkeypatch.setattr(quantiles, "CELLS", cells)
    plan = densities(basis="quantiles", level=2, epsilon=epsilon)
    tree = replace(plan.release.groups(plan)[0].tree, depth=level)
    price = privacy.pure_epsilon(tree.event)
    assert (1 - 1e-4) * epsilon < price <= epsilon
    low, next_, high = ((k + 0.5) / cells for k in (0, 1, cells - 1))
    # A median that one exchange makes as likely as all others; then whatever four persons may be exchanged for.
    found = far_apart(tree, [low, low, next_, next_], [low, high, next_, next_])
    if level < 3:
        draws = np.random.default_rng(3)
        for values in draws.choice([low, next_, 0.5, high], (12, 4)).tolist():
            for value in (low, next_, high):
                found = max(found, far_apart(tree, values, [value, *values[1:]]))
    assert near * price < found <= price * (1 + 1e-12)


def test_the_released_borders_have_the_law_of_the_tree_that_is_charged(monkeypatch):
    monkeypatch.setattr(quantiles, "CELLS", 6)
    plan = densities(basis="quantiles", level=2, epsilon=1.3)
    (group,) = plan.release.groups(plan)
    assert group.tree.event == plan.release.event(plan)
    values = [0.5, 0.5, 3.5, 7.9]
    assert released(plan, table(values)) == borders(group.tree, [value / 8 for value in values])


@pytest.mark.parametrize("level", [2, 3])
def test_each_border_is_drawn_at_the_rate_of_which_the_price_is_made(level):
    """The worst odds of a few cells stay below the price: a rate that is a little too high shows in itself alone."""
    plan = densities(basis="quantiles", level=level, epsilon=1.3)
    (group,) = plan.release.groups(plan)
    asked = Chooser(())
    group.tree.release([0.5, 0.5, 3.5, 7.9], asked)
    assert asked.rates == {group.tree.rate}
    # A record moves a score by 2, whatever the other was: odds of two borders by e^(4 rate), at each of the levels.
    assert float(4 * group.tree.rate * level) <= privacy.pure_epsilon(plan.release.event(plan)) <= 1.3


def test_quantiles_of_two_columns_share_the_price(monkeypatch):
    monkeypatch.setattr(quantiles, "CELLS", 4)
    plan = densities(2, basis="quantiles", level=2, epsilon=2.0)
    far, near = ([1.0, 1.0, 7.0], [7.0, 1.0, 7.0])
    assert far != near
    both = math.log(worst(*(released(plan, table(values, values)) for values in (far, near))))
    single = densities(1, basis="quantiles", level=2, epsilon=1.0)
    one = math.log(worst(*(released(single, table(values)) for values in (far, near))))
    assert both == pytest.approx(2 * one, rel=1e-4)
    assert both <= privacy.pure_epsilon(plan.release.event(plan)) <= 2.0


# -- reports ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("epsilon", [1.6, 3.0, 12.0])
def test_no_record_changes_the_odds_of_any_reports_by_more_than_the_price_and_the_worst_by_just_that(epsilon):
    plan = densities(trust="local", level=2, epsilon=epsilon)
    event = plan.release.event(plan)
    assert isinstance(event, privacy.RandomisedResponse)
    laws = [released(plan, table([value])) for value in (0.5, 2.5, 4.5, 6.5)]
    found = max(worst(one, other) for one, other in itertools.combinations(laws, 2))
    assert (1 - 1e-6) * odds(epsilon) < found <= odds(event.epsilon) <= odds(epsilon)
    # Beside a second person, whose report is another choice, it is no more; and a cell is as likely as any other.
    beside = [released(plan, table([value, 4.5])) for value in (0.5, 6.5)]
    assert worst(*beside) <= found
    assert len({laws[0][cell] for cell in laws[0]}) == 2


# -- labels -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 20.0])
@pytest.mark.parametrize("counts", [(1, 2, 3), (7, 1), (4,)])
def test_a_label_is_told_with_exactly_the_odds_that_are_stated_and_charged(epsilon, counts):
    made = LabelPrivate(epsilon=epsilon, counts=counts)
    laws = [
        law(lambda chooser, own=own: int(made.release(np.array([own]), ["ada"], chooser)[0]))
        for own in range(len(counts))
    ]
    for own, one in enumerate(laws):
        assert one == {told: made.probability(told, own) for told in range(len(counts))}
    if len(laws) > 1:
        found = max(worst(one, other) for one, other in itertools.combinations(laws, 2))
        assert (1 - 1e-6) * odds(epsilon) < found <= odds(epsilon)


def test_two_persons_labels_are_told_apart_from_each_other():
    """Joint odds are the products of their own: no choice is shared."""
    made = LabelPrivate(epsilon=1.0, counts=(1, 2))
    joint = law(lambda chooser: tuple(made.release(np.array([0, 1]), ["ada", "ben"], chooser).tolist()))
    assert joint == {
        (one, other): made.probability(one, 0) * made.probability(other, 1)
        for one, other in itertools.product(range(2), repeat=2)
    }


def test_the_choices_that_a_network_asks_for_cost_the_label_s_part_of_epsilon(tmp_path):
    """As `make_release` asks for them: the rate and the bound give the odds of the rarest label."""
    plan = contacts_study(GrandPlan(epsilon=4.0, d=2, communities=2))
    nodes, edges = contacts()
    source = Given(1)
    made = Bench(tmp_path).release(plan, nodes, source, edges=edges)
    kept = Counter((one.scale, one.shape) for one in source.asked if one.law == "chosen")
    others = Counter((one.scale, one.shape) for one in source.asked if one.law == "uniform")
    ((rate, _), times), ((held, _), as_many) = next(iter(kept.items())), next(iter(others.items()))
    assert len(kept) == len(others) == 1
    assert times == as_many == made.receipt.n, "for every released person, and once"
    rho = Fraction(rate)
    part = plan.release.parts()[0]
    # The rarest label decides, and a label has at least twenty persons held out: solved for how many it has.
    rarest = rho / ((1 - rho) * (odds(part) - 1)) * int(held)
    assert float(rarest) == pytest.approx(round(rarest), abs=1e-3)
    assert 20 <= round(rarest) <= int(held)
    assert 1 + rho / (1 - rho) * int(held) / round(rarest) <= odds(part)


# -- the chooser's contract ---------------------------------------------------------------------------------------
class Words(Noise):
    """A source whose keystream is a list of 64-bit words."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(_key=b"w" * 32)
        self.words = words

    def _words(self, count: int) -> Any:
        out, self.words = self.words[:count], self.words[count:]
        assert len(out) == count, "no more words than the contract asks for"
        return np.array(out, dtype=np.uint64)


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 0.5, 1e-18, 2.0**-64, 1 - 2.0**-53, 0.999, 0.0, 2.0**-65])
def test_a_person_enters_a_sample_on_exactly_as_many_words_of_the_keystream_as_the_rate_says(rate):
    threshold = math.floor(Fraction(rate) * 2**64)
    around = [word for word in (0, threshold - 1, threshold, threshold + 1, 2**64 - 1) if 0 <= word < 2**64]
    taken = Words(around).chosen(rate, len(around))
    assert taken.tolist() == [word < threshold for word in around]


@pytest.mark.parametrize("bound", [2, 3, 5, 8, 13])
def test_whole_numbers_are_even_on_the_words_of_the_keystream(bound):
    """Leading bits decide; those past the bound are drawn again, so that each number has as many of them."""
    bits = (bound - 1).bit_length()
    seen: Counter[int] = Counter()
    for head, tail in itertools.product(range(2**bits), (0, 2 ** (64 - bits) - 1)):
        given = Words([(head << (64 - bits)) | tail, 0])
        value = int(given.uniform(bound, 1)[0])
        if len(given.words) == 1:
            seen[value] += 1
    assert seen == {k: 2 for k in range(bound)}


def test_the_exponential_mechanism_takes_a_proposal_with_the_probability_of_its_own_score(monkeypatch):
    """Proposals are even, and one that falls short by s is taken with probability e^(-rate s), asked for as a whole
    number of units and a rest: so many of the first as the geometric law gives, and the rest by its own Bernoulli."""
    asked: list[tuple[list[int], int, list[int]]] = []

    class Noted(Noise):
        def _uniform_below(self, count: int, t: int) -> Any:
            return np.arange(count) % t

        def _bernoulli_exp(self, u: Any, t: int) -> Any:
            self.rest = (u.tolist(), t)
            return np.ones(len(u), dtype=bool)

        def _geometric(self, count: int) -> Any:
            asked.append((*self.rest, []))
            return np.full(count, 2)

    short, rate = np.array([7, 3, 0, 9]), Fraction(3, 4)
    # Proposed in turn. Rate times short: 21/4, 9/4, 0, 27/4, so that wholes are 5, 2, 0, 6; two are had.
    assert Noted(_key=b"n" * 32).likeliest(short, rate) == 1
    rest, unit, _ = asked[0]
    assert unit == 4
    assert rest[:4] == [21 % 4, 9 % 4, 0, 27 % 4]


def test_choices_come_from_the_keystream_alone():
    """Whether the floating-point generator was used before changes none of them."""
    one, other = seeded_rng(5), seeded_rng(5)
    other.generator.random(1000)
    for ask in (lambda rng: rng.chosen(0.3, 500), lambda rng: rng.uniform(7, 500)):
        np.testing.assert_array_equal(ask(one), ask(other))
    assert one.likeliest(np.arange(50), Fraction(1, 9)) == other.likeliest(np.arange(50), Fraction(1, 9))
