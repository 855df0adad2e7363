"""Transport maps beside OTT-JAX, on one grid and by resampling: ``python -m tests.benchmarks.transport_ott``.

Two noisy densities of two columns (the paper's release, as in `transport_grid`), 64 × 64 cells, the same entropic blur,
onto the target and onto itself: by `GridMap`, and by OTT's Sinkhorn on its separable `Grid`, in doubles, compiled and
run once before. *By resampling*, as the paper does: points drawn from both densities by rejection, as many as
`transport_grid` draws for POT, OTT's Sinkhorn between them at the same blur, and its entropic map. Errors are of all
maps at the same fresh places. CPU seconds of all threads, run in turn.

OTT-JAX is of this benchmark alone (extra ``rivals``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.answers.maps import FINE, GridMap
from shared.mechanisms.densities.scaling import Coefficients
from tests.benchmarks import record
from tests.benchmarks.transport_grid import PLACES, SIDE, SMOOTH, error, mixture, resampled, smooth

Floats = NDArray[np.float64]
PERSONS, EPSILON, BLUR, SAMPLES = 1000, 3.0, 5e-4, 2000


class ByOtt:
    """OTT's maps between densities of one grid."""

    def __init__(self, side: int) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)
        import jax.numpy as jnp
        from ott.geometry.grid import Grid
        from ott.problems.linear.linear_problem import LinearProblem
        from ott.solvers.linear.sinkhorn import Sinkhorn

        centres = (np.arange(side) + 0.5) / side
        # Its cost is the squared distance; ours is half of it.
        geometry = Grid(x=[jnp.array(centres)] * 2, epsilon=2 * BLUR)
        places = np.stack(np.meshgrid(centres, centres, indexing="ij")).reshape(2, -1)

        def solve(a: Any, b: Any) -> Any:
            found = Sinkhorn(threshold=1e-3, max_iterations=4000)(LinearProblem(geometry, a=a, b=b))
            return jnp.stack([found.apply(jnp.array(x), axis=1) for x in places]) / a, found.converged

        self.side, self._solve = side, jax.jit(solve)

    def between(self, source: Floats, target: Floats) -> GridMap:
        """The same map as `GridMap.between`, read off in the same way."""
        (there, one), (stay, other) = (self._solve(source.ravel(), onto.ravel()) for onto in (target, source))
        assert bool(one)
        assert bool(other)
        made = GridMap.__new__(GridMap)
        made._moves = np.asarray(there - stay).reshape(2, self.side, self.side)
        return made


class ByResampling:
    """OTT's entropic maps between points that are drawn from both densities."""

    def __init__(self) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)
        from ott.geometry.pointcloud import PointCloud
        from ott.problems.linear.linear_problem import LinearProblem
        from ott.solvers.linear.sinkhorn import Sinkhorn

        def solve(x: Any, y: Any, places: Any) -> Any:
            geometry = PointCloud(x, y, epsilon=2 * BLUR)
            found = Sinkhorn(threshold=1e-3, max_iterations=4000)(LinearProblem(geometry))
            return found.to_dual_potentials().transport(places), found.converged

        self._solve = jax.jit(solve)

    def between(self, source: Floats, target: Floats, rng: np.random.Generator) -> Callable[[Floats], Floats]:
        """A map, which is found anew wherever it is read off: compiled once for as many places."""
        x, y = (resampled(each, SAMPLES, rng) for each in (source, target))

        def mapped(places: Floats) -> Floats:
            found, converged = self._solve(x, y, places)
            assert bool(converged)
            return np.asarray(found)

        return mapped


def main() -> None:
    """Measure, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=9)
    given = parser.parse_args()
    assert PERSONS < FINE  # a plan of so few would take a coarser grid than the one compared here
    ott, clouds, made = ByOtt(SIDE[2]), ByResampling(), Coefficients(basis=SMOOTH, columns=2, scale=1.0)
    seconds: dict[str, list[float]] = {"ours": [], "ott": [], "ott resampled": []}
    errors: dict[str, list[float]] = {name: [] for name in seconds}
    for k in range(given.draws):
        rng = np.random.default_rng((given.seed, k))
        points = rng.random((PERSONS, 2)), mixture(rng.random((PERSONS, 2)))
        source, target = (smooth(each, EPSILON, made.sensitivity * made.step, rng) for each in points)
        places = rng.random((PLACES, 2))

        def cloud(a: Floats = source, b: Floats = target, k: int = k) -> Callable[[Floats], Floats]:
            return clouds.between(a, b, np.random.default_rng((given.seed, k, 1)))

        maps: dict[str, Callable[[], Callable[[Floats], Floats]]] = {
            "ours": lambda source=source, target=target: GridMap.between(source, target),
            "ott": lambda source=source, target=target: ott.between(source, target),
            "ott resampled": cloud,
        }
        for one in maps.values() if k == 0 else ():
            one()(places)  # is compiled
        for name, one in maps.items():
            begun = time.process_time()
            found = one()(places)
            seconds[name].append(time.process_time() - begun)
            errors[name].append(error(found, mixture(places)))
    cpu = {name: float(np.median(values)) for name, values in seconds.items()}
    mse = {name: float(np.mean(values)) for name, values in errors.items()}
    results: dict[str, Any] = {"draws": given.draws, "side": SIDE[2], "samples": SAMPLES}
    results |= {"cpu_seconds": cpu, "mse": mse}
    results |= {"ott_over_ours": cpu["ott"] / cpu["ours"], "mse_ratio": mse["ours"] / mse["ott"]}
    results |= {"resampled_over_ours": cpu["ott resampled"] / cpu["ours"]}
    results |= {"mse_ratio_to_resampled": mse["ours"] / mse["ott resampled"]}
    print(results)
    print(record.write("transport_ott", results, seed=given.seed))


if __name__ == "__main__":
    main()
