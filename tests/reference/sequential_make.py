"""Boundaries of looks by gsdesign's integration, on stdout: the reference of test_sequential.py.

It needs `gsdesign` (0.1.5 wrote the file), whose ``h1`` and ``hupdate`` are the grid and the recursion of R's gsDesign;
the spending functions are written here anew.
"""

import json
from importlib.metadata import version
from statistics import NormalDist

import numpy as np
from gsdesign import h1, hupdate

N, POINTS = NormalDist(), 80
SPENT = {
    "obrien-fleming": lambda t, alpha: 2 * (2 - 2 * N.cdf(N.inv_cdf(1 - alpha / 4) / t**0.5)),
    "pocock": lambda t, alpha: alpha * float(np.log(1 + (np.e - 1) * t)),
}
DESIGNS = {
    "five alike": ([0.2, 0.4, 0.6, 0.8, 1.0], [0.2, 0.4, 0.6, 0.8, 1.0]),
    "three, uneven": ([0.25, 0.7, 1.0], [0.25, 0.7, 1.0]),
    "four, and information apart from time": ([0.25, 0.5, 0.75, 1.0], [90.0, 300.0, 370.0, 400.0]),
}


def beyond(design, k, c, last):
    """P(|Z_k| >= c and no look before it crossed), both sides."""
    info = design[k]
    if k == 0:
        return 2 * N.cdf(-c)
    return 2 * float(np.sum(hupdate(POINTS, 0.0, info, c, np.inf, 0.0, design[k - 1], last)[2]))


def bounds(times, information, alpha, spending):
    found, last, before = [], None, 0.0
    for k, t in enumerate(times):
        step = SPENT[spending](t, alpha) - before
        low, high = 0.0, 9.0
        for _ in range(60):
            c = (low + high) / 2
            low, high = (c, high) if beyond(information, k, c, last) > step else (low, c)
        found.append(c)
        before += step
        inside = (-c, c)
        last = (
            h1(POINTS, 0.0, information[0], *inside)
            if k == 0
            else hupdate(POINTS, 0.0, information[k], *inside, 0.0, information[k - 1], last)
        )
    return found


cells = [
    {
        "design": name,
        "t": t,
        "information": info,
        "alpha": alpha,
        "spending": spending,
        "bounds": bounds(t, info, alpha, spending),
    }
    for name, (t, info) in DESIGNS.items()
    for alpha in (0.05, 0.01)
    for spending in SPENT
]
print(json.dumps({"versions": {"gsdesign": version("gsdesign")}, "cells": cells}, indent=1))
