"""Which queue advances next, and what else an order decides.

This is the only place that decides an order among streams. A plain `Order` chooses among ready queues. A `DrawnOrder`
decides everything there is to decide on a seeded device (`_seeded.py`): at each point where the host and the device
meet, who goes on. Actors are numbers: `HOST` (the program goes on), `CALLBACK` (the next completion is told to who
asked for it), `WORKER` (the next piece of slow host work runs), `TIMER` (time passes until the next timer), and
`FIRST_QUEUE` + n for the stream made n-th. The numbers chosen are the order's *trace*: with it the run replays.
"""

from __future__ import annotations

import operator
import random
import time
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import SchedulingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._driver import HostDriver
    from ._entries import Entry
    from ._queue import Queue
    from ._seeded import SeededEngine

__all__ = [
    "CALLBACK",
    "FIRST_QUEUE",
    "HOST",
    "TIMER",
    "WORKER",
    "DrawnOrder",
    "FairOrder",
    "Order",
    "ReplayedOrder",
    "SeededOrder",
    "SteppedOrder",
]

HOST = 0
CALLBACK = 1
WORKER = 2
TIMER = 3
FIRST_QUEUE = 4

MOST_HOST_TURNS = 200
"""After so many decisions for the host in a row the device gets its turn: a program may poll for ever."""


class Order(Protocol):
    """Chooses among ready queues."""

    def next_queue(self, ready: Sequence[Queue]) -> Queue:
        """The queue whose first entry takes one step now; one of `ready`.

        `ready` is never empty and holds the queues whose first entry can advance now, in the order in which they
        became ready.
        """
        ...


class FairOrder:
    """Fair shares of time within a priority; higher priorities first, but nobody waits long.

    - Smaller priority numbers go first.
    - Among equals, the one that has used the least time. Time used while others were not ready does not count
      against anybody: the engine lifts a queue that becomes ready to the level of those that are.
    - Whoever has been ready for `patience_s` without a step goes first, so low priorities do not starve.
    """

    def __init__(self, patience_s: float = 0.008) -> None:
        self.patience_s = patience_s

    def next_queue(self, ready: Sequence[Queue]) -> Queue:
        if len(ready) == 1:
            return ready[0]
        longest = min(ready, key=_ready_since)
        if time.perf_counter() - longest.ready_since > self.patience_s:
            return longest
        return min(ready, key=_by_priority_and_share)


class SteppedOrder:
    """The queue that became ready first: the same order on every run, whatever the clock says."""

    def next_queue(self, ready: Sequence[Queue]) -> Queue:
        return ready[0]


class DrawnOrder:
    """Decides for a seeded device. Subclasses say how.

    Attributes:
        trace: what was decided so far: actors, and -1 - n where the n-th of several blocks was picked.
        engine: the one it decides for, set by that.
        watches: whether `enqueued` and `passed` want to hear of everything, decided upon or not.
        picks_blocks: whether launches ask which of their blocks goes next; without it they run in order.
    """

    engine: SeededEngine
    watches = False
    picks_blocks = True

    def __init__(self) -> None:
        self.trace: list[int] = []

    def decide(self, actors: Sequence[int]) -> int:
        """One of `actors`, of which there are two or more, in a fixed order: `HOST` first if it is there."""
        raise NotImplementedError

    def decide_number(self, count: int) -> int:
        """A number from 0 to `count` - 1."""
        raise NotImplementedError

    def choose(self, actors: Sequence[int]) -> int:
        """Who goes on now; noted in the trace where there is a choice."""
        if len(actors) == 1:
            return actors[0]
        actor = self.decide(actors)
        self.trace.append(actor)
        return actor

    def pick(self, count: int) -> int:
        """Which of `count` blocks of a launch goes on now."""
        if count == 1:
            return 0
        number = self.decide_number(count)
        self.trace.append(-1 - number)
        return number

    def next_queue(self, ready: Sequence[Queue]) -> Queue:
        """For those that step the engine by hand."""
        actor = self.choose([FIRST_QUEUE + queue.number for queue in ready])
        return next(queue for queue in ready if FIRST_QUEUE + queue.number == actor)

    def begin(self, driver: HostDriver) -> None:
        """A run begins, on this device alone; not told on devices that serve more than one."""

    def passed(self, actor: int, subject: object) -> None:
        """`actor` acts now: a queue with its first entry, or the program with what its call is about."""

    def enqueued(self, entry: Entry) -> None:
        """The program is about to enqueue this."""


class SeededOrder(DrawnOrder):
    """Draws from a seed: the same seed and the same program give the same decisions, in every process.

    Uniform draws rarely let one stream lag far behind, where many faults show. So the seed first chooses a way:

    - even: every actor alike;
    - weights: each actor gets a weight of its own, up to 200 times another's;
    - ranks: each actor gets a rank and the first one always goes, until it is sent to the end of the line, which
      happens at random, every 2 to 50 decisions (Burckhardt et al., "A Randomized Scheduler with Probabilistic
      Guarantees of Finding Bugs", ASPLOS 2010).

    Raises:
        TypeError, ValueError: the seed is no whole number from 0.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """From now on as a new order with that seed."""
        self.seed = seed = _as_seed(seed)
        self.trace = []
        self._chance = random.Random(seed)
        self._host_turns = 0
        self._of_actor: dict[int, float] = {}
        way = self._chance.randrange(5)
        self._draw: Callable[[Sequence[int]], int] = (self._even, self._by_weight, self._by_rank)[
            (way + 1) // 2
        ]
        self._demotion = 1.0 / self._chance.choice((2, 5, 10, 20, 50))
        self._last_rank = 0.0

    def decide(self, actors: Sequence[int]) -> int:
        if actors[0] != HOST:
            self._host_turns = 0
            return self._draw(actors)
        if self._host_turns >= MOST_HOST_TURNS:
            actors = actors[1:]
        actor = self._draw(actors)
        self._host_turns = self._host_turns + 1 if actor == HOST else 0
        return actor

    def decide_number(self, count: int) -> int:
        return int(self._chance.random() * count)

    def _even(self, actors: Sequence[int]) -> int:
        return actors[int(self._chance.random() * len(actors))]

    def _by_weight(self, actors: Sequence[int]) -> int:
        weights = self._of_actor
        total = 0.0
        for actor in actors:
            if actor not in weights:
                weights[actor] = self._chance.choice((0.02, 0.2, 1.0, 4.0))
            total += weights[actor]
        left = self._chance.random() * total
        for actor in actors:
            left -= weights[actor]
            if left < 0:
                return actor
        return actors[-1]

    def _by_rank(self, actors: Sequence[int]) -> int:
        ranks = self._of_actor
        best, best_rank = actors[0], -float("inf")
        for actor in actors:
            rank = ranks.get(actor)
            if rank is None:
                rank = ranks[actor] = self._chance.random()
            if rank > best_rank:
                best, best_rank = actor, rank
        if self._chance.random() < self._demotion:
            self._last_rank -= 1.0
            ranks[best] = self._last_rank
        return best


class ReplayedOrder(DrawnOrder):
    """Decides as a trace says; past its end, for the last actor each time.

    Attributes:
        recorded: the trace it follows.

    Raises (when it decides):
        SchedulingError: the trace names an actor that cannot act now: it is of another program.
    """

    def __init__(self, trace: Sequence[int]) -> None:
        super().__init__()
        self.recorded = tuple(trace)

    def decide(self, actors: Sequence[int]) -> int:
        position = len(self.trace)
        if position >= len(self.recorded):
            return actors[-1]
        actor = self.recorded[position]
        if actor not in actors:
            raise self._departed(position)
        return actor

    def decide_number(self, count: int) -> int:
        position = len(self.trace)
        if position >= len(self.recorded):
            return 0
        number = -1 - self.recorded[position]
        if not 0 <= number < count:
            raise self._departed(position)
        return number

    def _departed(self, position: int) -> SchedulingError:
        return SchedulingError(
            f"the run departed from the recorded trace at decision {position}: it is of another program, or the "
            "program depends on more than the schedule (time, threads, random numbers)"
        )


def _as_seed(seed: Any) -> int:
    """A negative number would draw what its absolute value does; of other things, not all draw the same each time."""
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"a seed is a whole number from 0, got {seed!r}") from None
    if number < 0:
        raise ValueError(f"a seed is a whole number from 0, got {seed!r}")
    return number


def _ready_since(queue: Queue) -> float:
    return queue.ready_since


def _by_priority_and_share(queue: Queue) -> tuple[int, float]:
    return queue.priority, queue.used_s
