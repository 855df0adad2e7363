"""Of docs/zoo.md the part about four real hospitals."""

from __future__ import annotations

from tests.benchmarks import zoo_page
from tests.benchmarks.zoo_page import LATENT, by_mechanism, latent, table

__all__ = ["section"]

MODELS = {"binary": "disease, logistic", "linear": "highest pulse, linear"}


def section() -> str:
    """The section; empty where nothing was measured."""
    sizes = zoo_page.results(f"{zoo_page.HEART}/patients")
    found = zoo_page.results(f"{zoo_page.HEART}/latent")
    if sizes is None or found is None:
        return ""
    patients = ", ".join(f"{size}" for size in sizes[:-1])
    rows = [
        [at.removeprefix("w="), *latent("", parts["all"], found["draws"])] for at, parts in found["summaries"].items()
    ]
    names = {f"{zoo_page.HEART}/moments": "noisy moments, every coefficient declared"}
    parts = [
        HEAD.format(patients=f"{patients} and {sizes[-1]}", draws=found["draws"]),
        table(("w", *LATENT), rows),
        by_mechanism(names, own_sites=True),
        BY_TERM,
        _by_term(),
        WORDS,
    ]
    return "\n".join(parts)


def _by_term() -> str:
    """Every coefficient, by both mechanisms."""
    told: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for part in MECHANISMS:
        for one in (zoo_page.results(f"{zoo_page.HEART}/{part}") or {"cells": []})["cells"]:
            for key, figures in one.get("terms", {}).items():
                found = {name: float(value) for name, value in (word.split("=") for word in figures.split())}
                told.setdefault((MODELS[one["kind"]], key.partition(", ")[0]), {})[part] = found
    rows = []
    for (model, term), each in told.items():
        own = next(iter(each.values()))
        row = [model, term, f"{own['real']:.3g} ({own['real_se']:.2g})"]
        for part in MECHANISMS:
            one = each.get(part)
            bias = one and one["bias" if part == "latent" else "bias_real"]
            row.append(f"{bias:.1f}; {one['width']:.1f}; {100 * one['held']:.0f} %" if one else "–")
        rows.append(row)
    heads = ("model", "coefficient", "the records' pooled answer (standard error)")
    return table((*heads, *(f"{of}: bias in the records' errors; width; holds" for of in MECHANISMS.values())), rows)


MECHANISMS = {"latent": "latent noise, w = 0.8", "moments": "noisy moments, ε = 1"}
HEAD = """## Four small real hospitals

The UCI heart disease tables of Cleveland, Budapest, Switzerland and Long Beach ({patients} patients with every column).
They are asked a logistic model of the disease and a linear one of the highest pulse, each on age, sex and angina.
{draws} draws of each went through latent noise (w = 0.8, outcomes last) and noisy moments (ε = 1, every coefficient \
declared), and are held against what the hospitals' own records pool to.
`python -m tests.benchmarks.zoo_heart` makes these figures; the tables are in no repository.
No setting was chosen by them; their logistic model is also `heart` in the tables above.
"""
BY_TERM = """
By coefficient, the mean of all draws:
"""
WORDS = """
Through latent noise the hospitals' answer is nearly as sure as from their records.
At ε = 1 noisy moments of so few patients keep the large effects on the disease, in intervals several times as wide.
Of the effect of age on the pulse they keep a small part in the mean of all draws.
Its pooled interval is so wide that it mostly holds the records' answer, while those of single hospitals hold theirs \
too seldom; neither shows that the error has one sign.
The hospitals differ less in both releases than in the records, because noise hides part of the difference.
"""
