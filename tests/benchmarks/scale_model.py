"""A coordinator with its analysts, hospitals and machines as events, with costs that were measured.

What the product does is done here as it does it: calls in the making and the threads that answer them, places for
questions in turn by analyst, a worker's limits, what a worker keeps of tables and of estimates, the analyst's own
patience, two bundles that are opened at a time, one transaction that writes. What a step costs is given
(`Costs`); who comes when is drawn.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tests.benchmarks.scale_events import Clock, Cores, Places, Turns, Wait

IN_THE_MAKING, PATIENCE, CLIENT, OPENED = 64, 30.0, 120.0, 2
"""Calls that one serving process has at most; seconds that a question waits for a place, and an analyst's program for
an answer; bundles that are opened at a time. A test holds them against the product's own."""
NO_ROOM, NO_PLACE, TOO_MUCH, LEFT = REFUSED = (
    "no room for a call",
    "no place for a question",
    "more computing than a question may take",
    "the program that asked had left",
)
KINDS = ("repeated", "pooled otherwise", "new")
AGAIN = 10.0  # seconds after which who was refused goes on
PIECES = 64  # into which a question is cut where it is computed in pieces


@dataclass(frozen=True, kw_only=True)
class Costs:
    """CPU seconds of each step, by what was measured; bytes.

    Args:
        fit: of one new question to all sites, their tables in the worker's memory, by the question's kind.
        cold: the same where no table is there: each bundle is read, decoded, and worked out for the first time.
        lost: the same where a worker has been asked before, but does not have what it worked out of these tables.
        kept: share of the sites of whose tables a worker still has that when the next question comes.
        pooled: of the worker, for estimates that the store has kept.
        parts: into which a question is dealt out where so many workers may work on it at once (`dealt`).
        serving: of the process that answers analysts, by the kind of call.
        client: of the analyst's own program for each; 0 where that runs elsewhere.
        write: of the one transaction that writes, by a question; it is a part of `serving`.
        bundle: bytes of all sites' bundles. reread: whether what was lost is read from its bundle again.
        deliver: of the process that takes a bundle. open: of the process that reads it. commit: of the transaction.
        send: of the hospital's own program, where that runs on the same machine.
        task: seconds that a task takes to a worker and back, beyond its work.
    """

    fit: dict[str, float]
    cold: dict[str, float]
    lost: dict[str, float]
    kept: float
    pooled: float
    serving: dict[str, float]
    client: dict[str, float] = field(default_factory=dict)
    write: float = 0.0
    bundle: float = 0.0
    reread: bool = True
    deliver: float = 0.0
    open: float = 0.0
    commit: float = 0.0
    send: float = 0.0
    task: float = 0.0
    parts: int = 1

    def again(self, model: str) -> float:
        """CPU seconds of a new question in a worker that was asked before."""
        return self.fit[model] + (1 - self.kept) * (self.lost[model] - self.fit[model])

    def quicker(self, times: float) -> Costs:
        """The same on a machine that computes so many times as fast."""
        seconds = {
            name: getattr(self, name) / times for name in ("pooled", "write", "deliver", "open", "commit", "send")
        }
        kinds = {
            name: {kind: value / times for kind, value in getattr(self, name).items()}
            for name in ("fit", "cold", "lost", "serving", "client")
        }
        return replace(self, **seconds, **kinds)


@dataclass(frozen=True, kw_only=True)
class Machines:
    """What is bought, and how it is set.

    Args:
        cores: of the machine that serves.
        elsewhere: cores of the machines that compute (`compute = "dask://…"`); 0 where the first machine does.
        processes: that serve.
        places: questions that each of them has computed at a time (`analyst_places`), and as many spare ones.
        threads: that answer calls (`workers`).
        seconds: of computing that a question may take (`analyst_seconds`).
        network: bytes a second of the line to the bundles.
        in_pieces: whether a question is computed by many workers at once, each of which has read the tables of its own
            sites: the product deals a question out to whichever workers are free.
        one_process: whether questions are computed by the interpreter that answers calls, as before version 0.3.
    """

    cores: float
    elsewhere: int = 0
    processes: int = 1
    places: int = 2
    threads: int = 16
    seconds: float = 240.0
    network: float = 1.25e8
    in_pieces: bool = False
    one_process: bool = False


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Who asks what.

    Args:
        analysts: each asks one question after the other.
        seconds: for which they go on; questions asked by then are seen to their end.
        thinks: mean seconds between an answer and the next question, exponential; 0 for none.
        mix: share of each of `KINDS`.
        models: share of each kind of question among new ones.
        each: questions of one analyst, instead of `seconds`; 0 for no limit.
    """

    analysts: int
    seconds: float = 0.0
    thinks: float = 0.0
    mix: tuple[float, float, float] = (0.0, 0.0, 1.0)
    models: tuple[tuple[str, float], ...] = (("cox", 1.0),)
    each: int = 0


class Worker:
    """A process that computes: whether it has read the tables."""

    def __init__(self, *, warm: bool = False) -> None:
        self.warm = warm


class Serving:
    """A process that answers analysts: an interpreter, threads, places for questions, and the workers that wait."""

    def __init__(self, clock: Clock, machines: Machines) -> None:
        self.calls, self.idle = 0, list[Worker]()
        self.interpreter = Places(clock, 1)
        self.threads = Places(clock, machines.threads)
        self.turns = Turns(clock, machines.places, machines.places, PATIENCE)


class Coordinator:
    """All of it: machines, processes, and what became of each question and bundle."""

    def __init__(self, machines: Machines, costs: Costs, seed: int) -> None:
        self.machines, self.costs, self.rng = machines, costs, np.random.default_rng(seed)
        self.clock = clock = Clock()
        self.cores = Cores(clock, machines.cores)
        self.far = Cores(clock, machines.elsewhere) if machines.elsewhere else self.cores
        apart = machines.elsewhere and not machines.in_pieces
        self.hands = Places(clock, machines.elsewhere) if apart else None
        self.elsewhere = [Worker() for _ in range(machines.elsewhere)]
        self.serving = [Serving(clock, machines) for _ in range(machines.processes)]
        self.network = Cores(clock, 1)
        self.writer = Places(clock, 1)
        self.takers = [(Places(clock, 1), Places(clock, machines.threads)) for _ in range(machines.processes)]
        self.openers = [Places(clock, OPENED) for _ in range(machines.processes)]
        self.clients = Places(clock, 1)
        self.asked: Counter[str] = Counter()
        self.answered: dict[str, list[float]] = defaultdict(list)
        self.refused: Counter[str] = Counter()
        self.delivered: list[float] = []
        self.moved = self.ends = 0.0

    # -- questions ------------------------------------------------------------------------------------------------
    def analyst(self, number: int, asking: Asking) -> Iterator[Wait]:
        """One analyst's day."""
        asked_before, count = False, 0
        kinds, models = np.cumsum(asking.mix), np.cumsum([share for _, share in asking.models])
        while True:
            if asking.thinks:
                yield self.clock.sleep(self.rng.exponential(asking.thinks))
            if (asking.each and count >= asking.each) or (not asking.each and self.clock.now > asking.seconds):
                return
            count += 1
            kind = KINDS[min(2, int(np.searchsorted(kinds, self.rng.random(), side="right")))]
            model = asking.models[min(len(models) - 1, int(np.searchsorted(models, self.rng.random(), side="right")))]
            if kind == "pooled otherwise" and not asked_before:
                kind = "new"
            asked_before |= kind == "new"
            begun = self.clock.now
            self.asked[kind] += 1
            # Its own program is a part of the wait where it shares the machine.
            yield from self._by(self.clients, self.costs.client.get(kind, 0.0))
            why = yield from self._call(self.serving[number % len(self.serving)], number, kind, model[0])
            if why:
                self.refused[why] += 1
                yield self.clock.sleep(AGAIN)
            else:
                self.answered[kind].append(self.clock.now - begun)
            self.ends = max(self.ends, self.clock.now)

    def _by(self, interpreter: Places, seconds: float) -> Iterator[Wait]:
        """So long a step of one interpreter."""
        if seconds:
            yield from interpreter.within(self.cores.work(seconds))

    def _call(self, at: Serving, owner: int, kind: str, model: str) -> Iterator[Wait]:
        """One call; why it was refused, blank where it was answered."""
        if at.calls >= IN_THE_MAKING:
            return NO_ROOM
        at.calls += 1
        late = self.clock.now + CLIENT
        yield at.threads.take()
        cost = self.costs.serving[kind]
        yield from self._by(at.interpreter, cost / 2)
        why = ""
        if kind != "repeated":
            apart = 1 if kind != "new" or self.machines.in_pieces else min(self.machines.places - 1, self.costs.parts)
            if apart > 1:
                yield self._parts(at, owner, model, late, apart)
            if (yield at.turns.take(owner)):
                why = yield from self._computed(at, kind if apart < 2 else "pooled otherwise", model, late)
                at.turns.leave(owner)
            else:
                why = NO_PLACE
        if not why:
            yield from self._by(at.interpreter, cost / 2 - self.costs.write)
            yield self.writer.take()
            yield self.cores.work(self.costs.write)
            self.writer.leave()
            if self.clock.now > late:
                why = LEFT
        at.threads.leave()
        at.calls -= 1
        return why

    def _parts(self, at: Serving, owner: int, model: str, late: float, count: int) -> Wait:
        """A question's sites dealt out to so many workers: over when the last of them is."""

        def wait(resume):
            left = [count]

            def part() -> Iterator[Wait]:
                if (yield at.turns.take(owner)):
                    yield from self._computed(at, "new", model, late, count)
                    at.turns.leave(owner)
                left[0] -= 1
                if not left[0]:
                    resume()

            for _ in range(count):
                self.clock.begin(part())

        return wait

    def _computed(self, at: Serving, kind: str, model: str, late: float, parts: int = 1) -> Iterator[Wait]:
        """What a worker does, of one of so many parts; why it did not."""
        if self.hands is not None:
            yield self.hands.take()
            worker = self.elsewhere.pop(int(self.rng.integers(len(self.elsewhere))))
        else:
            worker = at.idle.pop() if at.idle else Worker(warm=self.machines.in_pieces)
        if self.costs.task:
            yield self.clock.sleep(self.costs.task)
        work, read = (one / parts for one in self._work(worker, kind, model))
        if read:
            self.moved += read
            yield self.network.work(read / self.machines.network)
        room = max(0.0, late - self.clock.now)
        done = min(work, self.machines.seconds, room)
        if self.machines.in_pieces:
            yield self._pieces(done)
        elif self.machines.one_process:
            yield from self._by(at.interpreter, done)
        else:
            yield self.far.work(done)
        ended = work > done
        if self.hands is not None:
            # The product looks for an answer from elsewhere after a tenth of what it has waited, 0.2 s at most.
            yield self.clock.sleep(min(0.1, done / 20))
            self.elsewhere.append(worker)
            self.hands.leave()
        elif not ended and len(at.idle) < self.machines.places:
            at.idle.append(worker)
        if not ended:
            return ""
        return TOO_MUCH if done < room else LEFT

    def _pieces(self, seconds: float) -> Wait:
        """As many pieces at once: over when the last of them is."""

        def wait(resume):
            left = [PIECES]

            def ended(_=None):
                left[0] -= 1
                if not left[0]:
                    resume()

            for _ in range(PIECES):
                self.far.work(seconds / PIECES)(ended)

        return wait

    def _work(self, worker: Worker, kind: str, model: str) -> tuple[float, float]:
        """CPU seconds of a question in this worker, and bytes that it has to read."""
        costs = self.costs
        if kind == "pooled otherwise":
            return costs.pooled, 0.0
        before, worker.warm = worker.warm, True
        if not before:
            return costs.cold[model], costs.bundle
        return costs.again(model), (1 - costs.kept) * costs.bundle * costs.reread

    # -- bundles --------------------------------------------------------------------------------------------------
    def hospital(self, number: int, begins: float) -> Iterator[Wait]:
        """One delivery."""
        yield self.clock.sleep(begins)
        begun, costs = self.clock.now, self.costs
        interpreter, threads = self.takers[number % len(self.takers)]
        openers = self.openers[number % len(self.openers)]
        yield from self._by(self.clients, costs.send / 2)
        yield from self._by(interpreter, costs.deliver / 2)
        yield threads.take()
        yield from openers.within(self.cores.work(costs.open))
        yield from self.writer.within(self.cores.work(costs.commit))
        threads.leave()
        yield from self._by(interpreter, max(0.0, costs.deliver / 2 - costs.commit))
        yield from self._by(self.clients, costs.send / 2)
        self.delivered.append(self.clock.now - begun)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to: seconds by kind of question, what was refused and why, what each thing was used for.

    Args:
        waited: seconds that all who waited for something waited for it.
    """

    asked: dict[str, int]
    seconds: dict[str, dict[str, float]]
    refused: dict[str, int]
    delivered: dict[str, float]
    use: dict[str, float]
    waited: dict[str, float]
    moved: float
    core_seconds: float
    lasted: float

    @property
    def answered(self) -> int:
        """Questions that were."""
        return int(sum(found["count"] for found in self.seconds.values()))

    @property
    def bottleneck(self) -> str:
        """Where most seconds were waited; blank where nobody waited."""
        name = max(self.waited, key=lambda one: self.waited[one])
        return name if self.waited[name] > 0 else ""


def shares(values: list[float]) -> dict[str, float]:
    """Count, and what half, 95 and 99 in 100 are within."""
    found = np.quantile(values, (0.5, 0.95, 0.99)) if values else (0.0, 0.0, 0.0)
    return {"count": len(values), **{name: float(one) for name, one in zip(("p50", "p95", "p99"), found, strict=True)}}


def simulated(
    machines: Machines,
    costs: Costs,
    asking: Asking | None = None,
    *,
    bundles: int = 0,
    within: float = 0.0,
    warm: bool = False,
    seed: int = 1,
) -> Outcome:
    """What happens when these analysts ask, and so many bundles are delivered within so many seconds.

    Args:
        warm: whether each process has workers that have read the tables.
    """
    made = Coordinator(machines, costs, seed)
    if warm:
        for one in made.serving:
            one.idle = [Worker(warm=True) for _ in range(machines.places)]
    lots = made.rng.uniform(0, within, bundles)
    for number in range(bundles):
        made.clock.begin(made.hospital(number, float(lots[number])))
    if asking is not None:
        for number in range(asking.analysts):
            made.clock.begin(made.analyst(number, asking))
    made.clock.run()
    lasted = max(made.ends, asking.seconds if asking else 0.0, 1e-9)
    far = made.far if made.far is not made.cores else None
    waited = {
        "cores of the serving machine" if far else "cores": made.cores.waited,
        "places for questions": sum(one.turns.waited for one in made.serving),
        "threads that answer": sum(one.threads.waited for one in made.serving),
        "the interpreter that answers": sum(one.interpreter.waited for one in made.serving),
        "the line to the bundles": made.network.waited,
        "the transaction that writes": made.writer.waited,
        "places where bundles are opened": sum(one.waited for one in made.openers),
        "the interpreter that takes bundles": sum(one.waited for one, _ in made.takers),
    }
    interpreters = [one.interpreter for one in made.serving]
    use = {
        "cores": made.cores.busy / made.machines.cores / lasted,
        "elsewhere": far.busy / made.machines.elsewhere / lasted if far else 0.0,
        "interpreter": sum(one.busy for one in interpreters) / len(interpreters) / lasted,
        "threads": sum(one.threads.busy / one.threads.count for one in made.serving) / len(interpreters) / lasted,
        "writer": made.writer.busy / lasted,
        "network": made.network.busy / lasted,
    }
    if far is not None:
        waited |= {"cores elsewhere": far.waited, "workers elsewhere": made.hands.waited if made.hands else 0.0}
    return Outcome(
        asked=dict(made.asked),
        seconds={kind: shares(found) for kind, found in made.answered.items()},
        refused=dict(made.refused),
        delivered=shares(made.delivered),
        use=use,
        waited=waited,
        moved=made.moved,
        core_seconds=made.cores.busy + (far.busy if far else 0.0),
        lasted=lasted,
    )
