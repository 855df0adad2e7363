"""How far the last two steps of a site are apart, in its own errors, where noisy moments of twelve sites are read.

And how far the sums of a numeric covariate are from what its histogram makes of them: by both it is decided which site
has no answer (`shared.mechanisms.moments.together`: `CONTRADICTED` was chosen on the tuning half, `UNSETTLED` is from
when six steps were taken whatever they did). Every coefficient is declared, ε = 1; the real tables are not here.

python -m tests.benchmarks.moments_settling
"""

import numpy as np

from shared.base.randomness import seeded_rng
from shared.errors import Refusal
from shared.mechanisms.moments import together
from tests.benchmarks import record, worlds
from tests.benchmarks.worlds import real
from tests.benchmarks.zoo import seed_of
from tests.benchmarks.zoo_moments import KINDS, plan_of

SEED, EPSILON = 20261130, 1.0
SITES, N, WORLDS, TYPES = record.sized((12, 2000, None, KINDS), (2, 500, 1, KINDS[:1]))


def releases(world, kind):
    """What each site releases, with the plan's design."""
    plan = plan_of(world, kind, EPSILON, "moments", True)
    design, made = plan.release.design(plan), []
    for site in range(SITES):
        table = world(N, np.random.default_rng(seed_of(world.name, N, site, seed=SEED)), site)
        noise = seeded_rng(seed_of(world.name, kind, EPSILON, site, seed=SEED))
        figures = plan.release.draw(plan, plan.dictionary.check(table[list(plan.dictionary.names)]), noise)
        made.append((plan.release.release(plan, figures, len(table)), design))
    return made


def main():
    steps = {}
    took = together._Site.step

    def step(self, uniforms):
        found = took(self, uniforms)
        steps.setdefault(id(self), []).append((found.slopes.ravel(), np.diag(found.sampling + found.privacy) ** 0.5))
        return found

    together._Site.step = step
    results = {}
    for half, names in (("tuning", worlds.TUNING), ("reporting", worlds.REPORTING)):
        apart, denied, lost, rounds = [], [], 0, []
        for name in [name for name in names if name not in real.NAMES][:WORLDS]:
            world = worlds.world(name)
            for kind in TYPES:
                try:
                    given = releases(world, kind)
                except Refusal as refusal:
                    print(half, name, kind, "none:", str(refusal)[:80], flush=True)
                    continue
                steps.clear()
                found = [place.effects for place in together.places(given, alike=True)]
                lost += sum(bool(one.lost) for one in found)
                apart += [float(np.max(np.abs(b - a) / e)) for (a, _), (b, e) in (x[-2:] for x in steps.values())]
                denied += [together._Site(*one, levels=True).denied() for one in given]
                rounds.append(len(next(iter(steps.values()))))
                print(half, name, kind, round(max(apart[-SITES:]), 3), rounds[-1], lost, flush=True)
        figures = {"studies": len(rounds), "sites": len(apart), "lost": lost, "rounds": float(np.mean(rounds))}
        far = {f"apart_p{q}": float(np.percentile(apart, q)) for q in (50, 99, 100)}
        results[half] = (
            figures | far | {"denied_p100": float(np.max(denied)), "denied_p99": float(np.percentile(denied, 99))}
        )
    limits = {"unsettled": together.UNSETTLED, "contradicted": together.CONTRADICTED}
    print(record.write("moments_settling", results | {"limits": limits}, SEED))


if __name__ == "__main__":
    main()
