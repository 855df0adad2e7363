"""What the commands that repeat the paper's experiments share.

What a command is asked, repetitions that survive being stopped, noise that is common to every w, an attack's curve, a
pooling, and how the figures look.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

from tests.benchmarks import record

OURS, PAPER, REAL, NONE = "#D55E00", "#7a8490", "#1b1f24", "#0072B2"
"""Colours: what we measured, the paper's figure, real data, w = 0."""

FALSE_ALARMS = np.linspace(0, 1, 51)
"""Where the curves of an attack are read off."""


def asked(doc, *, figures=True, **counts):
    """What a command of this kind is asked: how many of each, by name; a folder; with figures, whether only to draw."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    for name, count in counts.items():
        parser.add_argument(f"--{name}", type=int, default=record.sized(count, min(count, 1 + figures)))
    parser.add_argument("--folder", help="keep each repetition here, and go on from those that are there")
    if figures:
        parser.add_argument("--draw", action="store_true", help="only draw the figures again, from what was measured")
    return parser.parse_args()


def part(folder, name):
    """A folder of its own for one kind of repetition; none where nothing is kept."""
    return None if folder is None else f"{folder}/{name}"


def measured(name):
    """What a command has written."""
    return json.loads((record.RESULTS / f"{name}.json").read_text())["results"]


def repeated(folder, count, settings, one, *, first=0):
    """`one(b)` for b = first … count - 1, each kept in `folder/b.json` and not done again; None keeps nothing.

    `settings` are kept beside each: a folder that holds repetitions of other settings is not read.
    """
    told = json.loads(json.dumps(settings))
    out = []
    for b in range(first, count):
        path = None if folder is None else Path(folder) / f"{b}.json"
        if path is not None and path.exists():
            kept = json.loads(path.read_text())
            if kept["settings"] != told:
                raise SystemExit(f"{folder} holds repetitions of other settings: name another folder")
            out.append(kept["found"])
            continue
        began = time.process_time()
        found = one(b)
        found["cpu_seconds"] = time.process_time() - began
        out.append(json.loads(json.dumps(found)))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(".part")
            beside.write_text(json.dumps({"settings": told, "found": found}))
            os.replace(beside, path)
    return out


class Common:
    """The paper's noise: one Z for every w. Put on the grid of `LatentNoise`, which takes it for a source of noise."""

    def __init__(self, z):
        self.z = z

    def lattice_gaussian_steps(self, sigma, shape, grid):
        assert tuple(shape) == self.z.shape
        return np.rint(self.z * (sigma / grid)).astype(np.int64)


def matched(latents, z):
    """Noise whose sample mean is 0 and covariance I, and that is uncorrelated with these very latents: (n, d).

    A release then has the sample's moments exactly, in the flow's space: no ε is finite. Posture `local` alone.
    """
    design = np.column_stack([np.ones(len(z)), latents])
    rest = z - design @ np.linalg.lstsq(design, z, rcond=None)[0]
    return np.linalg.solve(np.linalg.cholesky(rest.T @ rest / len(rest)), rest.T).T


def resampled(values, statistic, seed, draws=2000):
    """`statistic` (along the first axis) of `draws` bootstrap samples of the values."""
    values = np.asarray(values)
    rng = np.random.default_rng(seed)
    return np.array([statistic(values[rng.integers(0, len(values), len(values))]) for _ in range(draws)])


def distance(gaps, paper=None, seed=0):
    """Mean absolute distance of (B,) gaps, its 90 % bootstrap interval, the bias; beside the paper's where known."""
    gaps = np.asarray(gaps)
    absolute = np.abs(gaps)
    low, high = np.quantile(resampled(absolute, lambda v: v.mean(axis=0), seed), [0.05, 0.95])
    out = {
        "mad": float(absolute.mean()),
        "mad_low": float(low),
        "mad_high": float(high),
        "bias": float(gaps.mean()),
        "bias_se": float(gaps.std(ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else 0.0,
    }
    if paper is not None:
        out |= {"paper": paper, "ratio": out["mad"] / paper, "ratio_low": low / paper, "ratio_high": high / paper}
    return {key: float(value) for key, value in out.items()}


def attacked(inside, outside, released):
    """The paper's attack, eq. 24-25: (AUC, hits at `FALSE_ALARMS`). A record near a released row is called a member."""
    tree = cKDTree(released)
    near, far = (tree.query(rows)[0] for rows in (inside, outside))
    ordered = np.sort(near)
    # Members that are nearer than a stranger, ties one half.
    below, at_most = (np.searchsorted(ordered, far, side=side) for side in ("left", "right"))
    auc = float((below + at_most).mean() / (2 * len(near)))
    hits = np.searchsorted(ordered, np.quantile(far, FALSE_ALARMS), side="right") / len(near)
    hits[0], hits[-1] = (near < far.min()).mean(), 1.0
    return auc, hits.round(4).tolist()


def dersimonian_laird(pairs):
    """Random-effects mean and standard error from (estimate, variance) pairs (paper, eq. 10).

    Written out, so that an experiment rests on the mechanism alone.
    """
    y, v = np.array(pairs).T
    weight = 1 / v
    fixed = (weight * y).sum() / weight.sum()
    q = (weight * (y - fixed) ** 2).sum()
    tau2 = max(0.0, (q - (len(y) - 1)) / (weight.sum() - (weight**2).sum() / weight.sum()))
    weight = 1 / (v + tau2)
    return float((weight * y).sum() / weight.sum()), float(weight.sum() ** -0.5)


def sheet(rows, columns, width, height, **more):
    """A figure and its panels, in the look of all figures here."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 8, "axes.titlesize": 9, "legend.fontsize": 7})
    mpl.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    made, panels = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, **more)
    return made, panels


def shade(w):
    """A colour for each w: yellow where nothing is left of the data, dark where nothing is hidden."""
    from matplotlib import colormaps

    return colormaps["viridis_r"](0.95 - 0.9 * (1 - w) ** 0.5)


def roc(axes, hits, *, bold=None, chance=True, **style):
    """Curves of an attack by w, the one of w = `bold` in red; `hits` has them under "w=…"."""
    for name, curve in hits.items():
        w = float(name.removeprefix("w="))
        own = {"color": "#d00000", "linewidth": 2.1, "zorder": 5} if w == bold else {"color": shade(w)}
        axes.plot(FALSE_ALARMS, curve, label=f"w = {w:g}", **style | own)
    if chance:
        axes.plot([0, 1], [0, 1], color=PAPER, linestyle="--", linewidth=0.8)
    axes.set_aspect("equal")


def forest(axes, kinds, rows_of, names):
    """Estimates of studies and their pooled one below, a colour for each kind: the paper's Figures 7 and 15.

    Args:
        kinds: (key, colour, label), real rows first.
        rows_of: key to (centre, low, high) of each study and last of all together.
        names: of the studies.
    """
    for step, (key, colour, label) in enumerate(kinds):
        rows, shift = rows_of(key), 0.22 * (1 - step)
        at = [*(len(names) - k + shift for k in range(len(names))), -0.4 + shift]
        wide = [[c - low for c, low, _ in rows], [high - c for c, _, high in rows]]
        centres = [c for c, _, _ in rows]
        axes.errorbar(centres, at, xerr=wide, fmt="o", markersize=3.5, linewidth=1.2, color=colour, label=label)
    axes.axhline(0.3, color=PAPER, linewidth=0.8)
    axes.axvline(1, color=PAPER, linestyle="--", linewidth=0.8)
    axes.set_yticks([*range(len(names), 0, -1), -0.4], [*names, "pooled"])


def finish(made, name, title, description, note="", rect=(0, 0, 1, 1)):
    """Write `results/<name>.svg`, and a PNG beside it where the environment names a folder for it."""
    import matplotlib.pyplot as plt

    from coordinator.figures.files import save

    if note:
        made.text(0.01, 0.008, note, fontsize=7, color="#444")
    made.tight_layout(rect=rect)
    save(made, record.RESULTS / f"{name}.svg", title=title, description=description)
    if looked := os.environ.get("TRIBUTARY_PNG"):
        made.savefig(Path(looked) / f"{name}.png", dpi=80)
    plt.close(made)
    return record.RESULTS / f"{name}.svg"
