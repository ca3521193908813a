"""`explore`: one program under many schedules."""

from __future__ import annotations

import gc
import hashlib
import operator
import threading
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..driver.host import ReplayedOrder, SeededOrder
from ..memory import free_left_behind
from ._search import Search
from ._trace import format_trace, parse_trace
from ._world import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..driver.host import DrawnOrder
    from ..scheduling import Device

__all__ = ["Exploration", "Failure", "explore", "replay"]

_COLLECT_EVERY = 50
_MEMORY_BYTES = 16 << 20

_one_at_a_time = threading.RLock()  # a run takes the process's default device for itself


@dataclass(frozen=True)
class Failure:
    """A run that failed.

    Attributes:
        error: what it raised. seed: of its schedule; None in an exhaustive search.
        trace: its decisions, for `replay`.
        runs: how many runs there were, with it.
    """

    error: BaseException
    seed: int | None
    trace: tuple[int, ...]
    runs: int

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"seed {self.seed}, "
        return f"{seed}run {self.runs}: {type(self.error).__name__}: {self.error}\ntrace: {format_trace(self.trace)}"


@dataclass
class Exploration:
    """What runs of a program showed.

    Attributes:
        runs: how many there were. redundant: how many of them, in an exhaustive search, differed from another one only
            in the order of neighbours that have nothing to do with each other.
        distinct: how many different schedules, counted by traces.
        complete: whether these were all schedules there are, up to that order.
        failure: the first run that failed.
    """

    runs: int = 0
    redundant: int = 0
    complete: bool = False
    failure: Failure | None = None
    _seen: set[bytes] = field(default_factory=set, repr=False)

    @property
    def distinct(self) -> int:
        return len(self._seen)

    def digests(self) -> frozenset[bytes]:
        """The traces, 8 bytes of a hash each: to count over several explorations."""
        return frozenset(self._seen)


def explore(
    program: Callable[[Device], Any],
    *,
    seeds: int | Iterable[int] = 1000,
    exhaustive: bool = False,
    limit: int = 100_000,
    check: bool = False,
    memory_bytes: int = _MEMORY_BYTES,
    raising: bool = True,
) -> Exploration:
    """Run `program(device)` under many schedules of a host device made anew for each run.

    In a run the device is the default and only one, and one order decides about everything: which stream and which
    block goes on and for how long, when completions come, when slow host work runs, when timers fire. A coroutine
    function runs on a loop of its own, made for this: asyncio tasks, locks, queues and timeouts work, sockets and
    subprocesses do not, and no time passes. At its end the device finishes what is left.

    The program must depend on nothing but the schedule, so it may not use threads, clocks, or random numbers without a
    seed. It fails by raising. Tensors and operations of one run mean nothing in the next: make them in the program.

    Args:
        seeds: how many seeds, from 0, or which ones: whole numbers from 0. Each is one run.
        exhaustive: go through all schedules instead, except those that differ only in the order of neighbours that
            touch nothing in common. For small programs: a few streams with a few entries. Blocks of a kernel run in
            order.
        limit: the most runs of an exhaustive search.
        check: also look for races and misuse of memory in each run, as `CUDA_ASYNC_HOST_CHECK=1` does: what is not
            ordered is found though it went well this time. Takes several times as long.
        memory_bytes: of the device.
        raising: raise the error of the first run that fails, with its seed and trace as a note; otherwise return it.
    Raises:
        SchedulingError: in a run, all waits for something that cannot come; or the program depends on more than the
            schedule.
        TypeError, ValueError: no number of seeds, no seed, or a limit below 1.
    """
    chosen: Iterable[int] = () if exhaustive else _chosen_seeds(seeds)
    if operator.index(limit) < 1:
        raise ValueError(f"limit is {limit}; give a number of runs from 1")
    found = Exploration()
    with _one_at_a_time:
        was_enabled = gc.isenabled()
        gc.disable()  # it would run at moments of its own, and with it finalizers
        gc.freeze()
        try:
            if exhaustive:
                _search(program, found, limit, memory_bytes, check)
            else:
                for seed in chosen:
                    if _run(program, SeededOrder(seed), seed, found, memory_bytes, check):
                        break
                if not found.runs:
                    raise ValueError(
                        "explore() has run nothing: the seeds are empty; give a number of them from 1"
                    )
        finally:
            gc.collect()  # devices of runs that are over, while it need not look through everything else
            gc.unfreeze()
            free_left_behind()
            if was_enabled:
                gc.enable()
    failure = found.failure
    if failure is not None and raising:
        again = f"seeds=[{failure.seed}]" if failure.seed is not None else "exhaustive=True"
        alike = ", check=True" if check else ""
        if memory_bytes != _MEMORY_BYTES:
            alike += f", memory_bytes={memory_bytes}"
        failure.error.add_note(
            f"in run {failure.runs} of {getattr(program, '__qualname__', program)}; again: "
            f"explore(..., {again}{alike}), or replay(..., {format_trace(failure.trace)!r}{alike})"
        )
        raise failure.error
    return found


def _chosen_seeds(seeds: Any) -> Iterable[int]:
    """Which seeds they are; whether each is one, `SeededOrder` checks."""
    if isinstance(seeds, Iterable) and not isinstance(seeds, str | bytes):
        return seeds
    try:
        count = operator.index(seeds)
    except TypeError:
        raise TypeError(f"seeds is a number of seeds, or an iterable of them, got {seeds!r}") from None
    if count < 1:
        raise ValueError(f"seeds is {count}; give a number of seeds from 1, or an iterable of seeds")
    return range(count)


def _search(
    program: Callable[[Device], Any], found: Exploration, limit: int, memory_bytes: int, check: bool
) -> None:
    search = Search()
    while found.runs < limit and not search.complete:
        order = search.order()
        if _run(program, order, None, found, memory_bytes, check):
            return
        found.redundant += order.redundant
        search.turn_back()
    found.complete = search.complete


def _run(
    program: Callable[[Device], Any],
    order: DrawnOrder,
    seed: int | None,
    found: Exploration,
    memory_bytes: int,
    check: bool,
) -> bool:
    """One run; True when it failed."""
    found.runs += 1
    if found.runs % _COLLECT_EVERY == 0:
        gc.collect()
    try:
        run_program(program, order, memory_bytes, check)
    except Exception as error:
        found.failure = Failure(error, seed, tuple(order.trace), found.runs)
        return True
    if not getattr(order, "redundant", False):
        found._seen.add(hashlib.blake2b(array("i", order.trace).tobytes(), digest_size=8).digest())
    return False


def replay(
    program: Callable[[Device], Any],
    trace: str | Sequence[int],
    *,
    check: bool = False,
    memory_bytes: int = _MEMORY_BYTES,
) -> tuple[int, ...]:
    """Run `program(device)` once more as a trace says, that of a `Failure` or as text.

    Args:
        check, memory_bytes: as `explore` had them.
    Returns:
        The trace of this run: the same, and longer where the recorded one had ended.
    Raises:
        SchedulingError: the program took another way.
        ValueError: the trace is empty, and the program is one with decisions.
    """
    order = ReplayedOrder(parse_trace(trace) if isinstance(trace, str) else trace)
    with _one_at_a_time:
        run_program(program, order, memory_bytes, check)
    if order.trace and not order.recorded:
        raise ValueError(
            f"the trace is empty, so nothing was replayed: the program had {len(order.trace)} decisions to make; "
            "give the trace of a failure"
        )
    return tuple(order.trace)
