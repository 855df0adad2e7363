"""A clock of events, and what is queued for on it: cores that share themselves, places in order of arrival.

Whoever does something is a generator: it yields what it waits for, and goes on when that is there.

>>> clock = Clock()
>>> machine, done = Cores(clock, 1), []
>>> def job(seconds):
...     yield machine.work(seconds)
...     done.append(round(clock.now, 6))
>>> for seconds in (1.0, 2.0):
...     clock.begin(job(seconds))
>>> clock.run()
>>> done  # both share the core until the first is done
[2.0, 3.0]
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

Resume = Callable[..., None]
Wait = Callable[[Resume], None]
Steps = Generator[Wait, Any, None]


class Clock:
    """Seconds that pass from event to event."""

    def __init__(self) -> None:
        self.now, self._number = 0.0, 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, seconds: float, work: Callable[..., None], *given: Any) -> None:
        """Call `work` so many seconds from now."""
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, work, given))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now, _, work, given = heapq.heappop(self._events)
            work(*given)

    def begin(self, steps: Steps) -> None:
        """Have a generator take its steps."""
        self._step(steps, None)

    def _step(self, steps: Steps, value: Any) -> None:
        try:
            wait = steps.send(value)
        except StopIteration:
            return
        wait(lambda value=None: self._step(steps, value))

    def sleep(self, seconds: float) -> Wait:
        """Wait."""
        return lambda resume: self.after(seconds, resume)


class Cores:
    """Cores that share themselves evenly among what runs, as an operating system's do: none has more than one.

    Args:
        count: how many; what runs on a network of one line is shared in the same way.
    """

    def __init__(self, clock: Clock, count: float) -> None:
        self._clock, self.count = clock, count
        self._jobs: list[tuple[float, int, Resume]] = []
        self._had, self._last, self._number, self._era = 0.0, 0.0, 0, 0
        self.busy = self.waited = 0.0

    def work(self, seconds: float) -> Wait:
        """So many seconds of one core."""
        return lambda resume: self._add(seconds, resume)

    def _rate(self) -> float:
        return min(1.0, self.count / len(self._jobs)) if self._jobs else 0.0

    def _pass(self) -> None:
        passed, self._last = self._clock.now - self._last, self._clock.now
        running = min(len(self._jobs), self.count)
        self._had += passed * self._rate()
        self.busy += passed * running
        self.waited += passed * (len(self._jobs) - running)

    def _add(self, seconds: float, resume: Resume) -> None:
        self._pass()
        self._number += 1
        heapq.heappush(self._jobs, (self._had + seconds, self._number, resume))
        self._plan()

    def _plan(self) -> None:
        self._era += 1
        if self._jobs:
            self._clock.after(max(0.0, self._jobs[0][0] - self._had) / self._rate(), self._ended, self._era)

    def _ended(self, era: int) -> None:
        if era != self._era:
            return
        self._pass()
        ended = []
        while self._jobs and self._jobs[0][0] <= self._had + 1e-9:
            ended.append(heapq.heappop(self._jobs)[2])
        self._plan()
        for resume in ended:
            resume()


class Places:
    """Places that are given in the order in which they were asked for.

    `waited` adds up the seconds of all who waited for one, `busy` those for which places were held.
    """

    def __init__(self, clock: Clock, count: int) -> None:
        self._clock, self.count, self._free = clock, count, count
        self._line: deque[tuple[float, Resume]] = deque()
        self._since = self.waited = self.busy = 0.0

    def _pass(self) -> None:
        passed, self._since = self._clock.now - self._since, self._clock.now
        self.busy += passed * (self.count - self._free)

    def take(self) -> Wait:
        """Wait for a place."""
        return self._take

    def _take(self, resume: Resume) -> None:
        if self._free:
            self._pass()
            self._free -= 1
            resume()
        else:
            self._line.append((self._clock.now, resume))

    def leave(self) -> None:
        """Give it to who waits longest."""
        if self._line:
            since, resume = self._line.popleft()
            self.waited += self._clock.now - since
            self._clock.after(0.0, resume)
        else:
            self._pass()
            self._free += 1

    def within(self, *waits: Wait) -> Iterator[Wait]:
        """Wait for a place, then for these, and leave it."""
        yield self._take
        yield from waits
        self.leave()


class Turns:
    """Places for questions as `coordinator.services.compute.workers.Workers` gives them.

    In turn by owner, no owner more than its share; where none came free for half a second, an owner who runs nothing
    has a spare one. Whoever waits for longer than the patience has none.
    """

    SPARE_AFTER, LOOK = 0.5, 0.2  # each who waits looks once in so many seconds whether there is a spare place

    def __init__(self, clock: Clock, places: int, spares: int, patience: float) -> None:
        self._clock, self._places, self._spares, self._patience = clock, places, spares, patience
        self._waiting: OrderedDict[int, tuple[Any, float, Resume]] = OrderedDict()
        self._running: dict[Any, int] = {}
        self._served: dict[Any, int] = {}
        self._number, self._last, self._count = 0, 0.0, 0
        self._planned = False
        self.waited = 0.0

    def take(self, owner: Any) -> Wait:
        """Wait for a place; False where none came in time."""
        return lambda resume: self._take(owner, resume)

    def _take(self, owner: Any, resume: Resume) -> None:
        self._number += 1
        self._waiting[self._number] = (owner, self._clock.now, resume)
        self._clock.after(self._patience, self._give_up, self._number)
        self._look()

    def _give_up(self, number: int) -> None:
        if number in self._waiting:
            owner, since, resume = self._waiting.pop(number)
            self.waited += self._clock.now - since
            self._forget(owner)
            resume(False)

    def leave(self, owner: Any) -> None:
        """Give it back."""
        self._count -= 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._forget(owner)
        self._look()

    def _forget(self, owner: Any) -> None:
        if owner not in self._running and all(one[0] != owner for one in self._waiting.values()):
            self._served.pop(owner, None)

    def _look(self) -> None:
        while (number := self._next()) is not None:
            owner, since, resume = self._waiting.pop(number)
            self._count += 1
            self._running[owner] = self._running.get(owner, 0) + 1
            self._number += 1
            self._served[owner], self._last = self._number, self._clock.now
            self.waited += self._clock.now - since
            self._clock.after(0.0, resume, True)

    def _next(self) -> int | None:
        free, each, now = self._places - self._count, max(1, self._places - 1), self._clock.now
        if free <= -self._spares or not self._waiting:
            return None
        soonest = None
        for number, (owner, since, _) in sorted(
            self._waiting.items(), key=lambda item: (self._served.get(item[1][0], 0), item[0])
        ):
            mine, quiet = self._running.get(owner, 0), now - max(since, self._last)
            if (free > 0 and mine < each) or (mine == 0 and quiet > self.SPARE_AFTER):
                return number
            if mine == 0:
                soonest = min(soonest or self.SPARE_AFTER, self.SPARE_AFTER - quiet)
        if soonest is not None and not self._planned:  # look again when a spare place may be had
            self._planned = True
            self._clock.after(max(0.0, soonest) + self.LOOK / 2, self._again)
        return None

    def _again(self) -> None:
        self._planned = False
        self._look()
