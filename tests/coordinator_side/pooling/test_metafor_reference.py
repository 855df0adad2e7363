"""Every number of the public metafor reference is compared, or is named below as not offered.

One walk over the whole file: a leaf that is neither compared, nor an input, nor on the list of what we do not offer,
fails. So a new quantity in the file cannot be passed over in silence.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from coordinator.pooling.diagnostics import baujat, begg, egger, influence, shrunken, trim_and_fill
from coordinator.pooling.further.few_studies import henmi_copas
from coordinator.pooling.further.refits import cumulative, leave_one_out
from coordinator.pooling.further.two_by_two import TwoByTwoTables, effect_sizes, mantel_haenszel, peto
from coordinator.pooling.moderators import regress
from coordinator.pooling.pool import pool
from coordinator.pooling.subgroups import subgroups
from shared.errors import EstimateRefusal

REFERENCE = json.loads((Path(__file__).parents[2] / "reference" / "metafor_public.json").read_text())

# Where we do something else on purpose, or nothing. Each is named in docs/pooling.md.
NOT_OFFERED = {
    r"glmm_OR/.*": "one-stage logistic mixed models",
    r".*/tau2_metafor_default": "what metafor's loose default stopping rule gives",
    r".*/iteration_threshold": "a setting of metafor's iterations",
    r".*/pred_interval/simple/.*@tau0": "no width when tau2 is 0",
    r".*/(warnings|error)(/\d+)?": "metafor's wording",
    r"RE/.*/fitstats/.*": "likelihood and information criteria",
    r"misc/failsafe_n_rosenthal": "fail-safe N",
}
INPUTS = {
    r"(name|source|measure|scale|K)",
    r"(study|yi|vi|raw)/.*",
    r"meta_regression/(moderators|X)/.*",
    r"meta_regression/\w+/terms/\d+",
    r"subgroups/(group|levels)/\d+",
    r"cumulative/order/\d+",
    r"two_by_two/[abcd]i/\d+",
    r"subgroups/.*/subgroups/[^/]+/warnings/\d+",
}
# metafor forms y'Py by multiplying out P, which loses digits where a moderator is a calendar year; ours are the exact
# ones, see the test against fractions below.
LOOSE = {
    "meta_regression/(FE|DL|HE|SJ|HS)_": 1e-8,
    "trimfill/REML": 1e-3,
    "tau2_ci": 1e-6,
    "meta_regression/REML_QP": 1e-6,
}
CLOSED = re.compile(r"(^|/)(FE|DL|HE|HS|HSk|SJ)(_|/|$)|two_by_two|baujat_FE|unweighted_HE|begg|egger_lm")


def leaves(tree, path=()):
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, list | tuple):
        for i, value in enumerate(tree):
            yield from leaves(value, (*path, str(i)))
    else:
        yield "/".join(path), tree


def attributes(thing, names):
    found = {name: getattr(thing, there) for name, there in names.items()}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found.items()}


TESTED = {"beta": "beta", "se": "se", "stat": "zval", "pval": "pval", "ci_lb": "ci_lb", "ci_ub": "ci_ub"}


def ends(interval):
    return {"lb": interval.lb, "ub": interval.ub}


def one_test(y, v, method, test):
    ours = pool(y, v, method=method, test=test)
    tree = attributes(ours, TESTED) | {"df": ours.df, "s2w": max(1.0, ours.s2w) if test == "adhoc" else ours.s2w}
    kinds = ("default", "simple", "riley")
    return tree | {"pred_interval": {kind: ends(ours.prediction(kind)) for kind in kinds}}


def model(y, v, method):
    ours = pool(y, v, method=method)
    names = ("QE", "QEp", "I2", "H2", "tau2", "tau", "se_tau2", "typical_v")
    tree = {name: getattr(ours, name) for name in names} | {"QE_df": ours.df, "weights_pct": list(ours.weights)}
    return tree | {"tests": {test: one_test(y, v, method, test) for test in ("z", "t", "knha", "adhoc")}}


def interval_of_tau2(result, interval):
    there = not interval.empty
    i2 = interval.map(lambda t: 100 * t / (t + result.typical_v))
    h2 = interval.map(lambda t: t / result.typical_v + 1)
    rows = {"tau2": interval, "tau": interval.map(np.sqrt), "I2": i2, "H2": h2}
    tree = {name: ends(row) | {"est": getattr(result, name)} for name, row in rows.items()}
    # metafor shows an empty interval as [0, 0]; ours is empty.
    blank = {"tau2": 0, "tau": 0, "I2": 0, "H2": 1}
    return (
        tree
        if there
        else {name: row | {"lb": blank[name], "ub": blank[name]} for name, row in tree.items()} | {"empty": True}
    )


def refits(whole, rows):
    names = {"estimate": "beta", "zval": "zval", "tval": "zval", "Q": "QE", "Qp": "QEp", "k": "k"}
    names |= {name: name for name in ("se", "pval", "ci_lb", "ci_ub", "tau2", "I2", "H2")}
    return {there: [getattr(row, mine) for _, row in rows] for there, mine in names.items()}


def regression(data, name):
    y, v, x = data["yi"], data["vi"], data["meta_regression"]["X"]
    if name == "REML_QP_95_tau2":
        ours = regress(y, v, x, test="z")
        return ends(ours.tau2_interval) | {"est": ours.tau2}
    method, test = name.split("_")
    ours = regress(y, v, x, method=method, test=test)
    further = ("vcov", "df", "tau2", "QE", "QEp", "QM", "QM_df", "QMp", "I2", "H2", "R2")
    s2w = max(1.0, ours.s2w) if test == "adhoc" else ours.s2w
    return attributes(ours, TESTED | {name: name for name in further}) | {"QE_df": ours.df, "s2w": s2w}


def groups(data, name):
    method, test, kind, _ = name.split("_")
    ours = subgroups(pool(data["yi"], data["vi"], method=method, test=test), data["subgroups"]["group"])
    if kind == "common":
        return attributes(ours.common, {name: name for name in ("tau2", "QM", "QM_df", "QMp", "QE", "QEp")})
    names = TESTED | {name: name for name in ("k", "tau2", "QE", "QEp", "I2", "df", "s2w")}
    each = {level: attributes(row, names) for level, row in ours.groups.items()}
    return {"subgroups": each, "Q_between": ours.Q_between, "Q_between_df": ours.df, "Q_between_p": ours.p_between}


def asymmetry(data, name):
    y, v = data["yi"], data["vi"]
    if name == "begg_ranktest":
        return attributes(begg(pool(y, v), least=3), {"tau": "stat", "pval": "pval"})
    kind, *rest = name.split("_")
    if kind == "egger":
        ours = egger(pool(y, v), predictor=rest[1], least=3)
    else:
        ours = egger(pool(y, v, method=rest[0], test=rest[1]), model="rma", predictor=rest[2], least=3)
    names = {"stat": "stat", "pval": "pval", "df": "df", "limit_est": "limit", "coef": "coef", "coef_se": "coef_se"}
    names |= {"limit_ci_lb": "limit_lb", "limit_ci_ub": "limit_ub"}
    tau2 = regress(y, v, {"x": np.sqrt(v)}, method=rest[0], test="z").tau2 if kind == "rma" else None
    return attributes(ours, names) | {"tau2": tau2}


def filled(data, name):
    method, estimator = name.split("_")
    ours = trim_and_fill(pool(data["yi"], data["vi"], method=method, test="z"), estimator=estimator, least=3)
    names = {name: name for name in ("side", "k0", "se_k0", "p_k0", "filled_yi", "filled_vi")}
    refit = attributes(ours.result, TESTED | {"tau2": "tau2", "QE": "QE", "I2": "I2", "k_total": "k"})
    return attributes(ours, names) | refit


def influences(data, name):
    method, test = name.split("_")
    ours = influence(pool(data["yi"], data["vi"], method=method, test=test))
    names = {name: name for name in ("rstudent", "dffits", "cook_d", "cov_r", "tau2_del", "QE_del", "hat", "rstandard")}
    return attributes(ours, names | {"weight_pct": "weight", "dfbeta_intercept": "dfbeta", "flagged": "influential"})


def miscellany(data):
    y, v = data["yi"], data["vi"]
    found = henmi_copas(pool(y, v))
    simple = pool(y, [1] * len(y), method="FE", test="z")
    # Unweighted: the plain mean, with the variance that tau2 by HE gives it.
    tau2 = pool(y, v, method="HE").tau2
    se = float(np.sqrt((np.array(v) + tau2).sum())) / len(y)
    return {
        "blup_REML": attributes(shrunken(pool(y, v, test="z")), {n: n for n in ("pred", "se", "pi_lb", "pi_ub")}),
        "baujat_FE": attributes(baujat(pool(y, v, method="FE", test="z")), {"x": "x", "y": "y"}),
        "baujat_REML": attributes(baujat(pool(y, v, test="z")), {"x": "x", "y": "y"}),
        "henmi_copas": {"beta": found.beta, "se": found.se, "tau2": found.tau2}
        | {"ci_lb": found.interval.lb, "ci_ub": found.interval.ub},
        "unweighted_HE": {"beta": simple.beta, "se": se, "tau2": tau2, "stat": simple.beta / se}
        | {"pval": float(2 * special.ndtr(-abs(simple.beta / se)))}
        | {"ci_lb": simple.beta - 1.959963984540054 * se, "ci_ub": simple.beta + 1.959963984540054 * se},
    }


def tables(data):
    counts = TwoByTwoTables(**{cell: data[cell] for cell in ("ai", "bi", "ci", "di")})
    heterogeneity = {name: name for name in ("QE", "QEp", "I2")}
    odds = ("CMH", "CMH_p", "tarone", "tarone_p", "breslow_day", "breslow_day_p", "k_yi")
    return {
        "escalc": {name: attributes(effect_sizes(counts, name), {"yi": "yi", "vi": "vi"}) for name in data["escalc"]},
        "MH": {
            name: attributes(mantel_haenszel(counts, name), TESTED | heterogeneity | {n: n for n in odds})
            for name in data["MH"]
        },
        "Peto": attributes(peto(counts), TESTED | heterogeneity),
    }


def section(data, name):
    """Our tree for one section of a data set, in the shape of the file."""
    y, v = data["yi"], data["vi"]
    if name == "FE":
        return model(y, v, "FE")
    if name == "RE":
        return {method: model(y, v, method) for method in data["RE"]}
    if name == "tau2_ci":
        fits = {"QP_95": ("REML", 0.95), "QP_90": ("REML", 0.9), "QP_95_at_DL": ("DL", 0.95)}
        tree = {}
        for key, (method, level) in fits.items():
            ours = pool(y, v, method=method, level=level)
            tree[key] = interval_of_tau2(ours, ours.tau2_interval)
        for method in ("REML", "ML"):
            ours = pool(y, v, method=method)
            tree[f"PL_95_{method}"] = interval_of_tau2(ours, ours.tau2_likelihood_interval)
        return tree
    if name in ("leave_one_out", "cumulative"):
        tree = {}
        for key in data[name]:
            if key != "order":
                method, test = key.split("_")
                whole = pool(y, v, method=method, test=test)
                order = [i - 1 for i in data["cumulative"]["order"]]
                tree[key] = refits(whole, leave_one_out(whole) if name == "leave_one_out" else cumulative(whole, order))
        return tree
    builders = {
        "small_study_tests": asymmetry,
        "trimfill": filled,
        "influence": influences,
        "meta_regression": regression,
        "subgroups": groups,
    }
    if name in builders:
        inputs = ("moderators", "X", "group", "levels")
        return {key: builders[name](data, key) for key in data[name] if key not in inputs}
    if name == "misc":
        return miscellany(data)
    return tables(data[name]) if name == "two_by_two" else {}


@cache
def our_leaves(dataset, name):
    return dict(leaves(section(REFERENCE["datasets"][dataset], name), (name,)))


def tolerance(path):
    for start, rel in LOOSE.items():
        if re.match(start, path):
            return rel
    return 1e-10 if CLOSED.search(path) else 1e-7


def agrees(ours, theirs, path):
    if theirs is None:  # metafor has no number: neither may we show one that is not finite
        return ours is None or ours == ours
    if isinstance(theirs, str | bool) or ours is None:
        return ours == theirs
    if theirs == 0 or abs(theirs) < 1e-9:
        small = pytest.approx(theirs, rel=tolerance(path), abs=0)
        return ours == small or (abs(ours) < 1e-9 and abs(theirs) < 1e-12) or abs(ours - theirs) < 1e-12
    return ours == pytest.approx(theirs, rel=tolerance(path), abs=0)


SECTIONS = [(d, s) for d, data in REFERENCE["datasets"].items() for s in data]


@pytest.mark.parametrize(("dataset", "name"), SECTIONS)
def test_every_number_of_the_reference_is_matched_or_named_as_not_offered(dataset, name):
    content = REFERENCE["datasets"][dataset][name]
    ours = our_leaves(dataset, name) if isinstance(content, dict) else {}
    wrong = []
    for path, theirs in leaves(content, (name,)):
        if any(re.fullmatch(pattern, path) for pattern in (*NOT_OFFERED, *INPUTS)):
            continue
        if "pred_interval/simple" in path and ours.get(path) is None:
            # tau2 is 0: metafor draws an interval without width, we say why there is none
            other = path.replace("/lb", "/x").replace("/ub", "/lb").replace("/x", "/ub")
            assert theirs == pytest.approx(dict(leaves(content, (name,)))[other]), path
            continue
        if path not in ours:
            wrong.append(f"{path} is neither compared nor named as not offered")
        elif not agrees(ours[path], theirs, path):
            wrong.append(f"{path}: {ours[path]!r}, metafor {theirs!r}")
    assert not wrong, "\n".join(wrong[:40])


def test_the_walk_would_notice_a_wrong_digit():
    ours = our_leaves("bcg", "RE")
    assert ours["RE/REML/tau2"] == pytest.approx(0.31324325813648074, rel=1e-7)
    assert not agrees(ours["RE/REML/tau2"] * (1 + 1e-6), 0.31324325813648074, "RE/REML/tau2")
    assert not agrees(ours["RE/DL/tau2"] * (1 + 1e-9), REFERENCE["datasets"]["bcg"]["RE"]["DL"]["tau2"], "RE/DL/tau2")


def exact_least_squares(y, v, x):
    """Coefficients and weighted residual sum of squares in rational arithmetic, by Gauss and Jordan."""
    w = [1 / Fraction(value) for value in v]
    rows = [[Fraction(cell) for cell in (1, *row)] for row in x]
    p, y = len(rows[0]), [Fraction(value) for value in y]
    a = [[sum(wi * r[i] * r[j] for wi, r in zip(w, rows, strict=True)) for j in range(p)] for i in range(p)]
    a = [[*row, sum(wi * r[i] * yi for wi, r, yi in zip(w, rows, y, strict=True))] for i, row in enumerate(a)]
    for i in range(p):
        a[i] = [cell / a[i][i] for cell in a[i]]
        for j in range(p):
            if j != i:
                a[j] = [one - a[j][i] * other for one, other in zip(a[j], a[i], strict=True)]
    beta = [row[p] for row in a]
    fitted = [sum(cell * b for cell, b in zip(r, beta, strict=True)) for r in rows]
    return beta, sum(wi * (yi - f) ** 2 for wi, yi, f in zip(w, y, fitted, strict=True))


def test_a_regression_on_years_is_exact_to_thirteen_digits():
    data = REFERENCE["datasets"]["bcg"]
    x = data["meta_regression"]["X"]
    beta, q = exact_least_squares(data["yi"], data["vi"], x)
    ours = regress(data["yi"], data["vi"], x, method="FE", test="z")
    assert abs(ours.QE / float(q) - 1) < 1e-13
    assert ours.beta == pytest.approx([float(b) for b in beta], rel=1e-12)


@pytest.mark.parametrize("rule", REFERENCE["zero_cells"]["rules"])
def test_zero_cells_follow_the_stated_rule(rule):
    data = REFERENCE["zero_cells"]
    ai, ci = np.array(data["ai"]), np.array(data["ci"])
    counts = TwoByTwoTables(ai=ai, bi=np.array(data["n1i"]) - ai, ci=ci, di=np.array(data["n2i"]) - ci)
    measure, to, drop = rule.split("_")
    ours = effect_sizes(counts, measure, to=to, drop00=drop == "drop00")
    for mine, theirs in ((ours.yi, data["rules"][rule]["yi"]), (ours.vi, data["rules"][rule]["vi"])):
        assert mine == pytest.approx(np.array(theirs, dtype=float), rel=1e-10, nan_ok=True)
    missing = sum(value is None or not v for value, v in zip(*map(data["rules"][rule].get, ("yi", "vi")), strict=True))
    assert len(ours.excluded) == missing


def test_tables_with_zeros_pool_as_metafor_pools_them():
    data = REFERENCE["zero_cells"]["tables"]
    ours = dict(leaves(tables(data)))
    for path, theirs in leaves({key: data[key] for key in ("escalc", "MH", "Peto")}):
        if "warnings" not in path:
            assert agrees(ours[path], theirs, f"two_by_two/{path}"), path


# In these the recorded numbers are rounding noise, an error, or a row that we exclude with its reason.
JUDGED_BY_SANITY = {"all_equal", "zero_variance_one", "zero_variance_all", "negative_variance"}
EDGES = {case["name"]: case for case in REFERENCE["edge_cases"]}


@pytest.mark.parametrize("name", [name for name in EDGES if name not in JUDGED_BY_SANITY and "mods" not in EDGES[name]])
def test_edge_cases_that_metafor_survives_match_it(name):
    case = EDGES[name]
    yi, vi = case["yi"], case["vi"]
    for key, theirs in case.items():
        if not re.fullmatch(r"[A-Z]+_(z|knha|adhoc)", key) or "error" in theirs:
            continue
        method, test = key.split("_")
        ours = pool(yi, vi, method=method, test=test)
        names = TESTED | {n: n for n in ("k", "tau2", "QE", "QEp", "I2", "H2")}
        for there, mine in names.items():
            if there in theirs and theirs[there] is not None:
                # After a shift by 1e6 the inputs carry ten digits of the differences, and p-values fewer.
                rel = 1e-5 if name == "shift_1e6" else 1e-7
                assert getattr(ours, mine) == pytest.approx(theirs[there], rel=rel, abs=1e-9), (key, there)


@pytest.mark.parametrize("name", sorted(JUDGED_BY_SANITY))
def test_edge_cases_that_metafor_does_not_survive_give_a_result_or_a_reason(name):
    case = EDGES[name]
    for method in ("FE", "DL", "REML", "PM", "ML", "SJ", "HE"):
        for test in ("z", "knha", "adhoc"):
            if name == "zero_variance_all":
                with pytest.raises(EstimateRefusal, match="variance is zero"):
                    pool(case["yi"], case["vi"], method=method, test=test)
                continue
            ours = pool(case["yi"], case["vi"], method=method, test=test)
            assert ours.ci_lb < ours.ci_ub
            assert len(ours.excluded) == sum(v <= 0 for v in case["vi"])


def test_as_many_coefficients_as_rows_are_refused_but_for_the_exact_fixed_fit():
    case = EDGES["mods_too_many"]
    for method in ("DL", "REML"):
        with pytest.raises(EstimateRefusal, match="more rows than coefficients"):
            regress(case["yi"], case["vi"], case["mods"], method=method)
    ours = regress(case["yi"], case["vi"], case["mods"], method="FE", test="z")
    assert ours.beta == pytest.approx(case["FE_z"]["beta"])
    assert any("exact" in note for note in ours.notes)


@pytest.mark.parametrize("key", ["FE_z", "DL_z", "REML_z"])
def test_a_collinear_moderator_is_dropped_by_name(key):
    case = EDGES["mods_collinear"]
    ours = regress(case["yi"], case["vi"], case["mods"], method=key.split("_")[0], test="z")
    assert ours.beta == pytest.approx(case[key]["beta"], rel=1e-7)
    assert ours.vcov == pytest.approx(np.array(case[key]["vcov"]), rel=1e-7)
    assert [row.label for row in ours.dropped] == ["moderator 2"]
    assert any("collinear" in note for note in ours.notes)
