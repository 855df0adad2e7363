"""Sites and a coordinator of a secure sum in one process."""

from __future__ import annotations

import os

import numpy as np

from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.mechanisms.secure_sum.coordinator import SumCoordinator
from shared.mechanisms.secure_sum.messages import Lists
from shared.mechanisms.secure_sum.site import SumSite, noise_share
from shared.mechanisms.secure_sum.terms import SumTerms

K, LOST, TOLD = 12, 2, 2
KEYS = tuple(SigningKey.generate() for _ in range(K))


STEPS = ("offer", "shares", "members", "masked", "survivors", "opening")


def terms_of(keys=KEYS, **changed):
    given = {
        "plan": "ab" * 32,
        "wave": 1,
        "label": "a",
        "members": tuple(key.public.hex for key in keys),
        "drop_outs": LOST,
        "colluders": TOLD,
        "coordinates": 2,
        "sensitivity": 2.0,
        "sigma": 3.0,
        "largest": 1e5,
    }
    return SumTerms(**(given | changed))


class Ring:
    """Sites and their coordinator, each message through its bytes; whoever is in `lost` is gone before that step."""

    def __init__(self, terms, keys=KEYS, lost=None, seed=1):
        self.terms, self.lost = terms, lost or {}
        self.sites = {k: SumSite(terms, k, key, os.urandom) for k, key in enumerate(keys)}
        self.noise = dict(enumerate(seeded_rng(seed).spawn(len(keys))))
        self.values = {k: np.array([1000 * k + 7, -(3**k)]) for k in self.sites}
        self.coordinator = SumCoordinator(terms)
        self.sent = {k: 0 for k in self.sites}
        self.got = {k: 0 for k in self.sites}

    def up(self, site, message):
        data = message.to_bytes(self.terms)
        self.sent[site] += len(data)
        return type(message).from_bytes(data, self.terms)

    def down(self, site, message):
        data = message.to_bytes(self.terms)
        self.got[site] += len(data)
        return type(message).from_bytes(data, self.terms)

    def living(self, step):
        gone = {k for k, at in self.lost.items() if STEPS.index(at) <= STEPS.index(step)}
        return [k for k in self.sites if k not in gone]

    def until(self, last):
        c = self.coordinator
        for step in STEPS[: STEPS.index(last) + 1]:
            for k in self.living(step):
                site = self.sites[k]
                if step == "offer":
                    c.take_offer(self.up(k, site.offer()))
                elif step == "shares":
                    c.take_shares(self.up(k, site.seal(self.down(k, c.roster()))))
                elif step == "members":
                    c.take_assent(self.up(k, site.join(self.down(k, c.boxes_for(k)))))
                elif step == "masked":
                    agreed = self.down(k, c.agreement(Lists.MEMBERS))
                    c.take_masked(self.up(k, site.mask(agreed, self.values[k], self.noise[k])))
                elif step == "survivors":
                    c.take_assent(self.up(k, site.agree(self.down(k, c.survivors()))))
                else:
                    c.take_opening(self.up(k, site.open(self.down(k, c.agreement(Lists.SURVIVORS)))))
        return self

    def expected(self, seed=1):
        noise = dict(enumerate(seeded_rng(seed).spawn(len(self.sites))))
        alive = self.living("masked")
        return sum(self.values[k] + noise_share(self.terms, noise[k]) for k in alive) * self.terms.grid
