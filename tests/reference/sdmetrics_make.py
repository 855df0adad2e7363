"""Write the scores that sdmetrics gives to two pairs of tables: a reference for `tests/benchmarks/tables_quality.py`.

It needs pandas below 3, so it runs in an environment of its own, on tables that this repository writes for it:

python -m tests.reference.sdmetrics_make tables FOLDER       (here)
python tests/reference/sdmetrics_make.py scores FOLDER       (where sdmetrics 0.32.0 is installed)
"""

import itertools
import json
import sys
from pathlib import Path

NUMBERS = ("age", "income")


def pairs():
    """Two pairs of tables: of one law; and one whose columns are torn apart, one shifted and one with levels gone."""
    import numpy as np

    from tests.benchmarks.tables_quality import census_like

    real, other = census_like(1500, 1), census_like(1200, 2)
    rng = np.random.default_rng(3)
    torn = other.apply(lambda column: rng.permutation(column.to_numpy()))
    torn["age"] = (torn["age"] * 0.8 + 5).clip(17, 95)
    torn["c2"] = torn["c2"].clip(0, 4)
    return {"same": (real, other), "torn": (real, torn)}


def scores(folder):
    """What sdmetrics says of each pair of tables in a folder."""
    import pandas as pd
    import sdmetrics
    from sdmetrics.column_pairs import ContingencySimilarity, CorrelationSimilarity
    from sdmetrics.single_column import KSComplement, TVComplement

    out = {"sdmetrics": sdmetrics.__version__}
    for name in ("same", "torn"):
        real, rows = (pd.read_csv(folder / f"{name}-{side}.csv") for side in ("real", "rows"))
        levelled = [column for column in real if column not in NUMBERS]
        real, rows = (t.astype({c: str for c in levelled}) for t in (real, rows))

        def mean(metric, columns, real=real, rows=rows):
            return float(pd.Series([metric.compute(real[c], rows[c]) for c in columns]).mean())

        out[name] = {
            "ks": mean(KSComplement, NUMBERS),
            "tv": mean(TVComplement, levelled),
            "contingency": mean(ContingencySimilarity, [list(p) for p in itertools.combinations(levelled, 2)]),
            "correlation": mean(CorrelationSimilarity, [list(NUMBERS)]),
        }
    return out


if __name__ == "__main__":
    where = Path(sys.argv[2])
    if sys.argv[1] == "tables":
        where.mkdir(parents=True, exist_ok=True)
        for key, tables in pairs().items():
            for side, table in zip(("real", "rows"), tables, strict=True):
                table.to_csv(where / f"{key}-{side}.csv", index=False)
    else:
        target = Path(__file__).with_name("sdmetrics.json")
        target.write_text(json.dumps(scores(where), indent=1, sort_keys=True) + "\n")
