"""The equal-rows check over the hard worlds: how often it refuses a harmless release, and how many copies it finds.

Every table is fitted and released the product's way; a release of latent noise holds nothing verbatim, so that every
refusal of one is false. Then one released row is replaced by the row of somebody who is unlike everybody else, and
found or not. Beside it stands what the product did before, with chance from independent columns.

python -m tests.benchmarks.equal_rows [--half reporting|tuning] [--n 300,1000] [--draws 6] [--sites 2]
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
from tests.benchmarks.zoo import plan_of, seed_of

WEIGHTS = (0.0, 0.5, 0.8)


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

    @cache
    def every(tables: int) -> ChanceHits:
        def draw(places: Any) -> Any:
            return encoder.decode(flow.forward(rng.generator.standard_normal((len(places), encoder.d))))

        return ChanceHits.simulated(real, flow.log_prob(x), dictionary, draw, tables=tables)

    def chance(tables: int, enough: Any) -> ChanceHits:
        return every(tables)

    copies = in_released_form(real, dictionary)
    keys = keys_of(copies, dictionary)
    unlike = np.flatnonzero(np.isin(keys, every(TABLES).rows))
    counts: Counter[str] = Counter()
    for w in WEIGHTS:
        mechanism = replace(fitted.mechanism, w=w)
        for _ in range(draws):
            released = encoder.decode(mechanism.release(x, rng))
            counts["releases"] += 1
            counts["refused"] += held_against(released, dictionary, chance).beyond_chance
            counts["refused by independence"] += hits_on(real, released, dictionary, CHANCE).beyond_chance
            if len(unlike):
                whose = int(rng.generator.choice(unlike))
                released.iloc[0] = copies.iloc[whose]
                leaked = released.astype(copies.dtypes)
                found = held_against(leaked, dictionary, chance).beyond_chance
                counts["copies found by independence"] += hits_on(real, leaked, dictionary, CHANCE).beyond_chance
                counts["copies"] += 1
                counts["copies found"] += found
    return counts


def main() -> None:
    """Run one half and write the results."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--half", choices=("tuning", "reporting"), default="reporting")
    asked.add_argument("--n", default=record.sized("300,1000", "300"))
    asked.add_argument("--draws", type=int, default=record.sized(6, 1))
    asked.add_argument("--sites", type=int, default=record.sized(2, 1))
    given = asked.parse_args()
    half = worlds.TUNING if given.half == "tuning" else worlds.REPORTING
    half = record.sized(half, half[:1])
    results: dict[str, Any] = {"half": given.half, "worlds": {}}
    everything: Counter[str] = Counter()
    for name in half:
        world = worlds.world(name)
        counts: Counter[str] = Counter()
        for kind in record.sized(world.kinds, world.kinds[:1]):
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
        "copies found by independence": everything["copies found by independence"] / everything["copies"],
    }
    results |= {"all": dict(everything), "shares": {name: round(share, 4) for name, share in shares.items()}}
    print(results["shares"])
    record.write(
        "equal_rows" if given.half == "reporting" else "equal_rows_tuning",
        results,
        seed=0,
        command=f"python -m tests.benchmarks.equal_rows --half {given.half} --n {given.n} --draws {given.draws} "
        f"--sites {given.sites}",
    )


if __name__ == "__main__":
    main()
