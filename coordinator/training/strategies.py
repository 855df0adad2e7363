"""Flower's strategies between two checks: which answers reach its mean, and what is kept of its result.

Imported only where `flwr` is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from coordinator.training.state import SiteProgress, TrainingState
from shared.errors import NetworkRefusal, PlanChanged, Refusal, ReplayRefusal, SchemaRefusal, TooLarge
from shared.plans.federated import MOST_RECORDS, Shape, usable
from shared.plans.plan import StudyPlan
from shared.wire import flower

flower.prepare()
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import FedAdam, FedAvg  # noqa: E402

__all__ = ["STRATEGIES", "Averaging", "FedAdamStrategy"]

Array = NDArray[np.float64]
_REMEMBERED = 16
"""Hexadecimal digits of an answer's digest that are kept, to know it again."""


def _taken(plan: StudyPlan, shape: Shape, start: Array, round_: int, progress: SiteProgress, answer: Message) -> Array:
    """The weights in an answer, if it is one to this question; `progress.n` is set by the first.

    Raises: whatever the site refused with; SchemaRefusal, TooLarge, ReplayRefusal, PlanChanged.
    """
    federated = plan.federated
    assert federated is not None
    if answer.has_error():
        raise flower.refusal(answer.error)
    content = answer.content
    arrays, config = content.array_records.get(flower.ARRAYS), content.config_records.get(flower.CONFIG)
    figures = content.metric_records.get(flower.METRICS)
    if (
        set(content) != {flower.ARRAYS, flower.CONFIG, flower.METRICS}
        or arrays is None
        or config is None
        or figures is None
        or set(arrays) != {flower.WEIGHTS}
        or set(config) != {"plan", "server-round", "asked"}
        or set(figures) != {"n", "steps"}
    ):
        raise SchemaRefusal("an answer must hold one vector, what it answers and the number of records", given="others")
    if config["plan"] != plan.hash:
        raise PlanChanged("an answer must be to a question of this plan", given="another plan")
    if config["server-round"] != round_ or config["asked"] != flower.digest(start):
        raise ReplayRefusal(
            "an answer must be to the question that was asked", given=f"another one than round {round_}"
        )
    n = figures["n"]
    if (
        isinstance(n, bool)
        or not isinstance(n, int)
        or not 1 <= n <= MOST_RECORDS
        or figures["steps"] != (federated.local_steps)
    ):
        raise SchemaRefusal("an answer must say its number of records and the plan's number of steps", given="others")
    if progress.n not in (0, n):
        raise SchemaRefusal(
            "a site's number of records must stay what it was in its first answer", given=f"{n} for {progress.n}"
        )
    weights = usable(flower.weights(arrays[flower.WEIGHTS], shape.weights), shape)
    mark = flower.digest(weights)[:_REMEMBERED]
    if mark in progress.seen or np.array_equal(weights, start):
        raise ReplayRefusal("an answer must have noise of its own", given="weights that were seen before")
    moved, most = float(np.linalg.norm(weights - start)), federated.furthest(round_, n, shape.weights)
    if moved > most:
        raise TooLarge(
            f"an answer must be at most {most:.4g} away from the question, as far as a round can move it",
            given=f"{moved:.4g}",
        )
    progress.n = n
    progress.seen.append(mark)
    return weights


class Checked(FedAvg):
    """Below: whom to ask, and which answers reach Flower's mean."""

    plan: StudyPlan
    shape: Shape
    nodes: dict[int, str]
    state: TrainingState

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        content = RecordDict(
            {
                flower.ARRAYS: arrays,
                flower.CONFIG: ConfigRecord({"plan": self.plan.hash, "server-round": server_round}),
            }
        )
        return [grid.create_message(content, "train", node, str(server_round)) for node in self.nodes]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        federated = self.plan.federated
        assert federated is not None
        start, found = self.state.weights, {}
        reasons: dict[str, Refusal] = {}
        for reply in replies:
            site = self.nodes.get(reply.metadata.src_node_id)
            if site is None or site in found or site in reasons:
                continue  # nobody asked it, or not twice
            progress = self.state.sites[site]
            try:
                weights = _taken(self.plan, self.shape, start, server_round, progress, reply)
            except Refusal as error:
                reasons[site] = error
                continue
            reply.content = RecordDict(
                {
                    flower.ARRAYS: ArrayRecord({flower.WEIGHTS: flower.vector(weights)}),
                    flower.METRICS: MetricRecord({"n": min(progress.n, federated.most_records)}),
                }
            )
            found[site] = reply
        if len(found) < federated.quorum:
            raise _too_few(self.plan, server_round, len(found), len(self.nodes), reasons)
        for site in self.nodes.values():
            progress = self.state.sites[site]
            if site in found:
                progress.answered.append(server_round)
            elif site in reasons:
                progress.refused[str(server_round)] = [reasons[site].code, str(reasons[site])]
            else:
                progress.missed.append(server_round)
        # By name: a sum of doubles depends on the order, and who answers first must not matter.
        return super().aggregate_train(server_round, [found[site] for site in sorted(found)])


class Resumable(FedAvg):
    """Above: rounds go on from the state, and each is written down when Flower has its result."""

    def __init__(
        self, plan: StudyPlan, shape: Shape, sites: dict[str, int], state: TrainingState, keep: Callable[[], None]
    ) -> None:
        assert plan.federated is not None
        super().__init__(weighted_by_key="n", arrayrecord_key=flower.ARRAYS, configrecord_key=flower.CONFIG)
        self.plan, self.shape, self.state, self.keep = plan, shape, state, keep
        self.nodes = {node: site for site, node in sites.items()}
        self.before = state.round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return super().configure_train(self.before + server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, figures = super().aggregate_train(self.before + server_round, replies)
        assert arrays is not None
        self.state.weights = usable(arrays[flower.WEIGHTS].numpy(), self.shape)
        self.state.round = self.before + server_round
        self.remember()
        self.keep()
        return arrays, figures

    def remember(self) -> None:
        """Store the optimiser's state for the next round."""


class Averaging(Resumable, Checked):
    """FedAvg: the mean of the sites' weights."""


class FedAdamStrategy(Resumable, FedAdam, Checked):
    """FedAdam: Adam at the coordinator, on the way from the old weights to the mean."""

    def __init__(
        self, plan: StudyPlan, shape: Shape, sites: dict[str, int], state: TrainingState, keep: Callable[[], None]
    ) -> None:
        super().__init__(plan, shape, sites, state, keep)
        assert plan.federated is not None
        self.tau = plan.federated.floor
        if state.mean is not None and state.square is not None:
            self.m_t, self.v_t = {flower.WEIGHTS: state.mean}, {flower.WEIGHTS: state.square}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One step of Adam, as long as the plan has it in this round."""
        assert self.plan.federated is not None
        self.eta = self.plan.federated.server_step(self.before + server_round)
        return super().aggregate_train(server_round, replies)

    def remember(self) -> None:
        """Both moments, so that a training that is taken up again takes the same next step."""
        assert self.m_t is not None
        assert self.v_t is not None
        self.state.mean, self.state.square = self.m_t[flower.WEIGHTS], self.v_t[flower.WEIGHTS]


STRATEGIES: Mapping[str, type[Averaging] | type[FedAdamStrategy]] = {"fedavg": Averaging, "fedadam": FedAdamStrategy}
"""Strategies by their name in a plan."""


def _too_few(plan: StudyPlan, round_: int, found: int, sites: int, reasons: Mapping[str, Refusal]) -> NetworkRefusal:
    assert plan.federated is not None
    codes = ", ".join(f"{site}: {error.code}" for site, error in sorted(reasons.items())[:12])
    return NetworkRefusal(
        f"round {round_} must be answered by at least {plan.federated.quorum} of {sites} sites",
        given=f"{found} answers that could be taken" + (f"; refused: {codes}" if codes else ""),
        next_step="Run the training again when the sites are back: it goes on with this round.",
    )
