"""Reference values of flexible parametric survival, by lifelines' likelihood, derivatives and optimiser.

python tests/reference/flexible_make.py > tests/reference/flexible.json      in an environment with lifelines

lifelines' own spline regression lets covariates move time, not the hazard; its spline basis and its machinery are kept,
and the model is Royston and Parmar's. Knots are flexsurv's: quantiles of the log event times, ends the outermost.
"""

import json

import autograd.numpy as np
import lifelines
import pandas as pd
from lifelines.fitters import ParametricRegressionFitter
from lifelines.fitters.mixins import SplineFitterMixin


class RoystonParmar(SplineFitterMixin, ParametricRegressionFitter):
    KNOWN_MODEL = False
    _scipy_fit_method, _scipy_fit_options = "SLSQP", {"ftol": 1e-15, "maxiter": 5000}

    def __init__(self, knots):
        self.knots = knots
        self._fitted_parameter_names = ["beta_"] + [f"gamma{k}_" for k in range(len(knots))]
        super().__init__()

    def _create_initial_point(self, Ts, E, entries, weights, Xs):
        start = {name: np.array([0.0]) for name in self._fitted_parameter_names}
        start |= {"beta_": np.zeros(len(Xs["beta_"].columns)), "gamma0_": np.array([-2.0]), "gamma1_": np.array([1.0])}
        return [start]

    def _cumulative_hazard(self, params, T, Xs):
        y = np.log(T)
        eta = params["gamma0_"] + params["gamma1_"] * y + np.dot(Xs["beta_"], params["beta_"])
        for k in range(1, len(self.knots) - 1):
            eta = eta + params[f"gamma{k + 1}_"] * self.basis(y, self.knots[k], self.knots[0], self.knots[-1])
        return np.exp(eta)


def main():
    table = pd.read_csv("tests/reference/survival.csv")
    table["age"] = table["age"] - 60
    times = np.log(table["time"][table["event"] == 1])
    found = {"versions": {"lifelines": lifelines.__version__}}
    for name, df, more in (
        ("df2", 2, {}),
        ("df3", 3, {}),
        ("df4", 4, {}),
        ("df3_weights", 3, {"weights_col": "w"}),
        ("df3_entry", 3, {"entry_col": "entry"}),
    ):
        knots = np.quantile(times, np.linspace(0, 1, df + 1))
        regressors = {"beta_": "age + arm - 1", **{f"gamma{k}_": "1" for k in range(len(knots))}}
        used = table[["time", "event", "age", "arm", *more.values()]]
        fit = RoystonParmar(knots).fit(used, "time", "event", regressors=regressors, **more)
        rows = fit.summary.loc["beta_"]
        found[name] = {
            "loglik": float(fit.log_likelihood_),
            "beta": {term: float(rows.loc[term, "coef"]) for term in ("age", "arm")},
            "se": {term: float(rows.loc[term, "se(coef)"]) for term in ("age", "arm")},
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
