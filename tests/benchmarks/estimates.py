"""What a dry run tells of a release, beside what the release then takes: CPU seconds, peak memory, megabytes of bundle.

Each release is made whole by the site's own pipeline, in a process of its own, on one thread: from reading the table
to the outbox. It is told in that process before, and the table is made in another. The constants behind what is told
(`shared.mechanisms.base.Effort`, `site_agent.models.outcome_laws.laws.laws_cost`) were fitted to the sizes of `FITTED`;
those of `SIZES` were measured afterwards. Noisy moments, and the pilot of a secure sum, have fifteen covariates at
most: the largest of theirs is of sixteen columns. Of a secure sum the pilot is what a dry run tells of.

Latent noise without a question is of posture ``local``, and so are the kinds of question in `ASKED`, whose outcomes are
drawn last: each names all columns. ``holdout`` and ``private`` are latent noise under these postures.

python -m tests.benchmarks.estimates [MECHANISM …] [ROWSxCOLUMNS …]
"""

import datetime as dt
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd

from tests.benchmarks import record

SEED = 19
SMALLEST = {"tables": ((300, 5),), "network_counts": ((300, 5),)}
FITTED = {
    **dict.fromkeys(("tables", "densities", "slicing"), ((5_000, 10), (20_000, 20), (100_000, 10))),
    "latent_noise": ((5_000, 10), (10_000, 15), (20_000, 20), (50_000, 10)),
    **dict.fromkeys(
        ("logistic", "ols", "count", "cox", "holdout", "private"), ((5_000, 10), (10_000, 15), (40_000, 8))
    ),
    "two_questions": ((5_000, 10),),
    "holdout_logistic": ((10_000, 15),),
    "moments": ((1_000, 5),),
    "cross_products": ((5_000, 5), (5_000, 12), (20_000, 18)),
    "grand": ((5_000, 5), (16_000, 5)),
    "network_counts": ((5_000, 5), (20_000, 5)),
}
SIZES = {
    **dict.fromkeys(("tables", "densities"), ((2_000, 15), (50_000, 5), (50_000, 20), (500_000, 20))),
    "slicing": ((2_000, 15), (50_000, 5), (50_000, 20), (150_000, 20)),
    "latent_noise": ((3_000, 8), (15_000, 18), (30_000, 12), (100_000, 20), (500_000, 20), (1_000_000, 10)),
    **dict.fromkeys(
        ("logistic", "ols", "count", "cox", "holdout", "private"),
        ((3_000, 8), (15_000, 18), (50_000, 10), (500_000, 20)),
    ),
    "two_questions": ((10_000, 15),),
    "holdout_logistic": ((3_000, 8), (50_000, 10)),
    "moments": ((2_000, 10), (20_000, 5), (50_000, 10), (500_000, 16)),
    "cross_products": ((2_000, 10), (50_000, 20), (500_000, 20)),
    "secure_sum": ((2_000, 10), (50_000, 16), (500_000, 16)),
    "grand": ((2_000, 5), (8_000, 5), (40_000, 5)),
    "network_counts": ((2_000, 5), (10_000, 5)),
}
TODAY = dt.date(2026, 1, 5)
ASKED = {
    "logistic": ("logistic(died)",),
    "ols": ("ols(x1)",),
    "count": ("poisson(stays)",),
    "cox": ("cox(years, died)",),
    "two_questions": ("logistic(died)", "ols(x1)"),
    "holdout_logistic": ("logistic(died)",),
}
"""Questions of a plan of latent noise, and their outcomes."""
OUTCOMES = {"count": "stays", "cox": "years"}
NUMBER = 'kind = "continuous"\nlower = -6\nupper = 6\ndecimals = 3\n'
NOMINAL = 'kind = "nominal"\nlevels = ["a", "b", "c"]\n'
KINDS = {
    "stays": 'kind = "integer"\nlower = 0\nupper = 30\n',
    "years": 'kind = "time"\nupper = 12\ndecimals = 2\nevent = "died"\n',
}
TRAINED = """[private]
rate = 0.1
noise_multiplier = 2.2
steps = 150
[training]
flows = 2
hidden = 16
learning_rate = 0.02
"""


def study(mechanism, columns):
    """A plan of one wave, with so many columns: an event, and numbers, two of every five in groups.

    Args:
        mechanism: a name of `SIZES`: a mechanism, or of latent noise a kind of question, or a posture.
    """
    names = [f"x{k}" for k in range(1, columns)]
    if mechanism in OUTCOMES:
        names[-1] = OUTCOMES[mechanism]
    levelled = {name: k % 5 in (3, 4) and name.startswith("x") for k, name in enumerate(names)}
    of = "latent_noise" if mechanism in (*ASKED, "holdout", "private") else mechanism
    if of in ("moments", "cross_products", "secure_sum"):
        levelled = dict.fromkeys(names, False)
    posture = "holdout" if mechanism == "grand" or "holdout" in mechanism else "local"
    posture = posture if of in ("latent_noise", "grand") and mechanism != "private" else "private"
    text = f"""
study = "estimates"
version = 1
title = "t"
purpose = "p"
coordinator = "hub"
expires = 2030-01-01
posture = "{posture}"
eligibility = "Everybody."
[retention]
until = 2035-01-01
keep = "k"
readers = "r"
{_asked(mechanism, names)}
[release]
{_released(of, names, levelled, 30.0 if mechanism == "private" else 6.0)}
{TRAINED if mechanism == "private" else ""}
[budget]
epsilon = 100.0
delta = 1e-7
[[waves]]
number = 1
opens = 2026-01-01
closes = 2026-02-01
[dictionary]
name = "estimates"
version = 1
[dictionary.columns.person]
kind = "person"
[dictionary.columns.died]
kind = "{"event" if "years" in names else "binary"}"
"""
    for name in names:
        text += f"[dictionary.columns.{name}]\n" + KINDS.get(name, NOMINAL if levelled[name] else NUMBER)
    return text


def _asked(mechanism, names):
    """The questions of a plan, each with all columns that are none of its outcomes."""
    lines = ["[estimands]"] if mechanism in ASKED else []
    for k, question in enumerate(ASKED.get(mechanism, ())):
        outcome = question[question.index("(") + 1 : -1].split(", ")
        others = " + ".join(name for name in ("died", *names) if name not in outcome)
        lines.append(f'asked_{k} = "{question} ~ {others}"')
    return "\n".join(lines)


def _released(mechanism, names, levelled, epsilon):
    """The settings of a mechanism; of latent noise at this ε, of which a training takes its part."""
    numbers = json.dumps([[name] for name in names if not levelled[name]])
    modelled = f'responses = ["died"]\ncovariates = {json.dumps(names)}'
    typical = ", ".join(f"{name} = [0.0, 1.1]" for name in names)
    members = ", ".join(f's{k} = "{k:064x}"' for k in range(1, 6))
    summed = f'coefficient = "x1"\nmembers = {{ {members} }}'
    counted = 'most_contacts = 60\nfigures = ["paths", "triangles"]'
    return {
        "tables": 'mechanism = "tables"\nepsilon = 1.0',
        "densities": f'mechanism = "densities"\ndensities = {numbers}\nepsilon = 2.0',
        "slicing": 'mechanism = "slicing"\nepsilon = 20.0',
        "latent_noise": f'mechanism = "latent_noise"\nepsilon = {epsilon}',
        "moments": f'mechanism = "moments"\nepsilon = 1.0\noutcome = "binary"\n{modelled}',
        "cross_products": f'mechanism = "cross_products"\nepsilon = 1.0\ncolumns = {json.dumps(["died", *names])}\n'
        f"typical = {{ {typical} }}",
        "secure_sum": f'mechanism = "secure_sum"\nepsilon = 1.0\noutcome = "binary"\n{modelled}\n{summed}',
        "grand": 'mechanism = "grand"\nepsilon = 4.0\nmodel = "inner_product"\nd = 2',
        "network_counts": f'mechanism = "network_counts"\nepsilon = 3.0\n{counted}',
    }[mechanism]


def table(n, columns, plan):
    """Correlated normals, cut at the bounds; groups of three. What is asked of follows what they have in common."""
    rng = np.random.default_rng((SEED, n, columns))
    common = rng.normal(size=n)
    drawn = rng.uniform(size=n)
    died = drawn < (1 / (1 + np.exp(1.5 - 0.5 * common)) if plan.estimands else 0.2)
    made = {"person": [f"p{k}" for k in range(n)], "died": died.astype(int)}
    for column in plan.dictionary.released:
        if column.name == "stays":
            made["stays"] = np.minimum(rng.poisson(np.exp(0.5 + 0.3 * common)), 30)
        elif column.name == "years":
            made["years"] = np.clip(rng.exponential(6 * np.exp(-0.4 * common)), 0.01, 12).round(2)
        elif column.name != "died":
            values = np.clip(0.5 * common + rng.normal(size=n), -6, 6).round(3)
            made[column.name] = np.array(["a", "b", "c"])[np.digitize(values, (-0.5, 0.5))] if column.levels else values
    return pd.DataFrame(made)


def ties(n):
    """An edge list of ten contacts a person on average."""
    rng = np.random.default_rng((SEED, n))
    pairs = np.unique(np.sort(rng.integers(0, n, (5 * n, 2)), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return pd.DataFrame({"from": [f"p{k}" for k in pairs[:, 0]], "to": [f"p{k}" for k in pairs[:, 1]]})


def one(mechanism, n, columns):
    """Told and taken of one release; run in a process of its own."""
    from stage.hospital_side.site_desk import Hub

    from shared.base.keys import SigningKey
    from shared.plans.plan import StudyPlan
    from site_agent.config import Edges, SiteFloors, TableSource
    from site_agent.ledger.book import Ledger
    from site_agent.release.outbox import Outbox
    from site_agent.release.pipeline import stages
    from site_agent.release.pipeline.making import make_release
    from site_agent.release.site import WorkingSite

    text = study(mechanism, columns)
    if n >= 10**6:
        text = text.replace("delta = 1e-7", "delta = 1e-8")  # below 1/(10 n)
    if n > 400_000:
        text = text.replace("rate = 0.1\n", "rate = 0.05\n")  # a step of training has 40,000 records at most
    plan = StudyPlan.from_toml(text)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        maker = os.fork()  # so that what making the table takes is neither told nor taken
        if not maker:
            table(n, columns, plan).to_csv(folder / "table.csv", index=False)
            if plan.release.edges is not None:
                ties(n).to_csv(folder / "edges.csv", index=False)
            os._exit(0)
        _, status = os.waitpid(maker, 0)
        if status:
            return os.waitstatus_to_exitcode(status)
        edges = Edges(path=folder / "edges.csv") if plan.release.edges is not None else None
        source = TableSource(path=folder / "table.csv", edges=edges)
        told = stages.estimate(plan, source)
        if os.fork():
            _, status = os.wait()
            return os.waitstatus_to_exitcode(status)
        # A child counts what the release takes, and not what telling it took.
        ledger = Ledger.create(folder / "home" / "ledger.db", SigningKey.generate(), site="north")
        site = WorkingSite(
            name="north",
            agent_version="0",
            ledger=ledger,
            outbox=Outbox(folder / "home", ledger),
            witness=Hub(),
            snapshot_key=b"k" * 32,
            floors=SiteFloors(),
            paused=lambda: False,
        )
        made = make_release(plan=plan, wave=1, source=source, site=site, today=TODAY)
        size = site.outbox.bundle(made.hold.release_id).stat().st_size / 1e6
        used = resource.getrusage(resource.RUSAGE_SELF)
        taken = {
            "seconds": used.ru_utime + used.ru_stime + START,
            "memory_mb": used.ru_maxrss / 1024,
            "bundle_mb": size,
        }
        print(json.dumps({"told": {name: getattr(told, name) for name in taken}, "taken": taken}), flush=True)
        os._exit(0)


START = 1.0
"""CPU seconds of starting Python and importing, which the child has from its parent."""


def main():
    if sys.argv[1:2] == ["one"]:
        sys.exit(one(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    path = record.RESULTS / "estimates.json"
    kept = json.loads(path.read_text())["results"] if path.exists() else {"fitted": {}, "after": {}}
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    sizes_asked = {word for word in sys.argv[1:] if word[0].isdigit()}
    asked, failed = {*sys.argv[1:]} - sizes_asked, list[str]()
    for half, sizes in record.sized((("fitted", FITTED), ("after", SIZES)), (("after", SMALLEST),)):
        for mechanism, cases in sizes.items():
            if asked and mechanism not in asked:
                continue
            for n, columns in cases:
                if sizes_asked and f"{n}x{columns}" not in sizes_asked:
                    continue
                argv = [sys.executable, "-m", "tests.benchmarks.estimates", "one", mechanism, str(n), str(columns)]
                start = time.monotonic()
                done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
                if done.returncode:
                    failed.append(f"{mechanism} {n}x{columns}")
                    print(half, mechanism, n, columns, "failed", done.stderr.strip().splitlines()[-1:], flush=True)
                    continue
                found = json.loads(done.stdout.strip().splitlines()[-1])
                found["ratio"] = {name: found["taken"][name] / value for name, value in found["told"].items()}
                kept[half].setdefault(mechanism, {})[f"{n}x{columns}"] = found
                shown = {
                    name: (round(found["told"][name], 2), round(found["taken"][name], 2)) for name in found["told"]
                }
                print(half, mechanism, n, columns, shown, f"{time.monotonic() - start:.0f} s", flush=True)
    ratios = [value for of in kept["after"].values() for case in of.values() for value in case["ratio"].values()]
    kept["after_within"] = {
        str(factor): 100 * sum(1 / factor <= ratio <= factor for ratio in ratios) / max(len(ratios), 1)
        for factor in (1.5, 2, 3)
    }
    kept["after_figures"] = len(ratios)
    kept["after_factor"] = {
        mechanism: max(max(value, 1 / value) for case in of.values() for value in case["ratio"].values())
        for mechanism, of in sorted(kept["after"].items())
    }
    print(kept["after_within"], record.write("estimates", kept, SEED, command="python -m tests.benchmarks.estimates"))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
