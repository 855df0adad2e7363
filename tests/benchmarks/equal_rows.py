"""The equal-rows check over the hard worlds: how often it refuses a harmless release, and how many copies it finds.

Every table is fitted and released the product's way; a release of latent noise holds nothing verbatim, so that every
refusal of one is false. Then one released row is replaced by the row of somebody who is unlike everybody else, and
found or not; and ten rows so (*together*). Beside it stands what the product did before, with chance from independent
columns.

*Tellable* are the copies that a test of this kind can find while it refuses one harmless release in a hundred: those
less likely than the least likely row that is hit by all but one in a hundred tables drawn from no record. A copy that
is likelier is what a stranger's row may be, whatever is done with it.

python -m tests.benchmarks.equal_rows [--half reporting|tuning] [--worlds a,b] [--kinds binary,…] [--n 300,1000]
    [--draws 6] [--sites 2] [--name equal_rows]
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from shared.base.randomness import seeded_rng
from shared.errors import Refusal
from shared.plans.encoding import Encoder
from shared.plans.plan import Training
from site_agent.release.checks import CHANCE
from site_agent.release.equal_rows import TABLES, ChanceHits, held_against, hits_on, in_released_form, keys_of
from site_agent.release.fitting import fit
from tests.benchmarks import record, worlds
from tests.benchmarks.zoo import listed, plan_of, seed_of

WEIGHTS = (0.0, 0.5, 0.8)
MANY = 10
"""Rows of which each is copied at once, beside one alone."""


def table(name: str, kind: str, n: int, site: int, draws: int) -> Counter[str] | None:
    """Counts of one table's releases; None where it is refused before a fit."""
    world = worlds.world(name)
    encoder = Encoder(dictionary=world.dictionary(kind))
    dictionary = encoder.dictionary
    raw = world(n, np.random.default_rng(seed_of(name, n, site)), site)
    real = dictionary.check(raw[list(dictionary.names)])
    rng = seeded_rng(seed_of("equal", name, kind, n, site))
    x = encoder.encode(real, rng)
    try:
        fitted = fit(plan_of(world, kind, 0.8, Training()), encoder, x, None, rng)
    except Refusal:
        return None
    flow = fitted.mechanism.flow

    def draw(places: Any) -> Any:
        return encoder.decode(flow.forward(rng.generator.standard_normal((len(places), encoder.d))))

    def simulated(tables: int) -> ChanceHits:
        return ChanceHits.simulated(real, flow.log_prob(x), dictionary, draw, tables=tables)

    every = cache(simulated)

    def chance(tables: int, enough: Any) -> ChanceHits:
        return every(tables)

    copies = in_released_form(real, dictionary)
    keys = keys_of(copies, dictionary)
    unlike = np.flatnonzero(np.isin(keys, every(TABLES).rows))
    likely = dict(zip(every(TABLES).rows.tolist(), every(TABLES).likely.tolist(), strict=True))
    # The third of 250, as of the 1 % of harmless releases that may be refused.
    least = sorted(simulated(1).least for _ in range(TABLES))[TABLES // 100]
    counts: Counter[str] = Counter()
    for w in WEIGHTS:
        mechanism = replace(fitted.mechanism, w=w)
        for _ in range(draws):
            released = encoder.decode(mechanism.release(x, rng))
            counts["releases"] += 1
            counts["refused"] += held_against(released, dictionary, chance).beyond_chance
            counts["refused by independence"] += hits_on(real, released, dictionary, CHANCE).beyond_chance
            for many in (1, MANY) if len(unlike) >= MANY else ():
                whose = rng.generator.choice(unlike, many, replace=False)
                leaked = released.copy()
                leaked.iloc[:many] = copies.iloc[whose]
                leaked = leaked.astype(copies.dtypes)
                found = held_against(leaked, dictionary, chance).beyond_chance
                if many > 1:
                    counts += Counter({"together": 1, "together found": found})
                    continue
                tellable = likely[keys[whose[0]].tolist()] < least
                counts += Counter({"copies": 1, "copies found": found, "copies tellable": tellable})
                counts["tellable copies found"] += tellable and found
                counts["copies found by independence"] += hits_on(real, leaked, dictionary, CHANCE).beyond_chance
    return counts


def main() -> None:
    """Run one half and write the results."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--half", choices=("tuning", "reporting"), default="reporting")
    asked.add_argument("--worlds", type=listed(str), default=())
    asked.add_argument("--kinds", type=listed(str), default=worlds.KINDS)
    asked.add_argument("--n", default=record.sized("300,1000", "300"))
    asked.add_argument("--draws", type=int, default=record.sized(6, 1))
    asked.add_argument("--sites", type=int, default=record.sized(2, 1))
    asked.add_argument("--name", default="", help="of the file; without it that of the half")
    given = asked.parse_args()
    half = given.worlds or (worlds.TUNING if given.half == "tuning" else worlds.REPORTING)
    half = record.sized(half, half[:1])
    results: dict[str, Any] = {"half": given.half, "worlds": {}}
    everything: Counter[str] = Counter()
    for name in half:
        world = worlds.world(name)
        counts: Counter[str] = Counter()
        for kind in record.sized([kind for kind in world.kinds if kind in given.kinds], world.kinds[:1]):
            for n in map(int, given.n.split(",")) if not world.sites else (0,):
                for site in range(min(world.sites, 4) if world.sites else given.sites):
                    counts += table(name, kind, n or 1000, site, given.draws) or Counter()
        print(name, dict(counts), flush=True)
        results["worlds"][name] = dict(counts)
        everything += counts
    shares = {
        "refused": everything["refused"] / everything["releases"],
        "refused by independence": everything["refused by independence"] / everything["releases"],
        "copies found": everything["copies found"] / everything["copies"],
        "together found": everything["together found"] / everything["together"],
        "copies tellable": everything["copies tellable"] / everything["copies"],
        "tellable copies found": everything["tellable copies found"] / max(1, everything["copies tellable"]),
        "copies found by independence": everything["copies found by independence"] / everything["copies"],
    }
    results |= {"all": dict(everything), "shares": {name: round(share, 4) for name, share in shares.items()}}
    print(results["shares"])
    chosen = [
        f" --{name} {','.join(getattr(given, name))}"
        for name, usual in {"worlds": (), "kinds": worlds.KINDS}.items()
        if getattr(given, name) != usual
    ]
    record.write(
        given.name or ("equal_rows" if given.half == "reporting" else "equal_rows_tuning"),
        results,
        seed=0,
        command=f"python -m tests.benchmarks.equal_rows --half {given.half}{''.join(chosen)} --n {given.n} "
        f"--draws {given.draws} --sites {given.sites}{f' --name {given.name}' if given.name else ''}",
    )


if __name__ == "__main__":
    main()
