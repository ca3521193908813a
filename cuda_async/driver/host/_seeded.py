"""The engine of a seeded device: no thread of its own, and every choice drawn by one `DrawnOrder`.

Theory. A run is a sequence of actions: the program's calls of the driver, steps of streams, completions told to who
asked, pieces of slow host work, timers. Which sequences can be depends on the device; which one it is, on timing. Here
it depends on the order's decisions alone. The engine advances only where program and device meet:

- at a *call*: before the driver does what it was called for, streams may take any number of steps. No completions are
  told there, as the caller may hold locks that whoever is told needs;
- at a *wait* (a blocking call): streams step, completions are told and host work runs until it is over;
- at a *turn* of an event loop: the same, between two turns, while somebody waits for the device.

So a program with one thread has as many schedules as there are sequences of decisions, and a sequence replays. What is
not decided here: turns of several threads (the first one there advances; the others go on), clocks, and when the
garbage collector finds cycles.

Slow host work (`_inline`) waits in `_jobs` for its turn; without an event loop in the thread nobody would come back to
it, so there it is done before `defer` returns.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from ...errors import SchedulingError
from .._inline import set_runner
from ._engine import Engine
from ._order import CALLBACK, FIRST_QUEUE, HOST, TIMER, WORKER, DrawnOrder, SeededOrder
from ._settings import host_seed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ._entries import Entry, EventRecord
    from ._queue import Queue

__all__ = ["SeededEngine", "process_engine"]

_LOOK_AGAIN_S = 0.002
"""While another thread advances, or has to come first."""


class _OfThread(threading.local):
    in_job = False


class SeededEngine(Engine):
    """An engine that advances where program and device meet, as `order` decides.

    Args:
        order: of this engine alone.
        alone: no other thread uses the device. Then a wait that nothing can end is an error at once.
    Attributes:
        host_acts: what the program's call that is decided upon is about: a record it looks at, the pool, a queue, or
            None for a call that only enqueues, for a wait and for a turn of a loop.
        in_turn: the decision is about a turn of a loop or a wait, not about a call.
    """

    order: DrawnOrder

    def __init__(self, order: DrawnOrder, *, alone: bool = False) -> None:
        super().__init__(order, threaded=False)
        order.engine = self
        self.alone = alone
        self.host_acts: object = None
        self.in_turn = False
        self._advancer: tuple[int, FrameType] | None = (
            None  # the thread that advances, and the call that does
        )
        self._completions: deque[Callable[[], object]] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._awaited: dict[EventRecord, None] = {}
        self._pumped: weakref.WeakSet[Any] = weakref.WeakSet()  # loops of any library
        self._thread_state = _OfThread()

    def block_picker(self) -> Callable[[int], int]:
        return self.order.pick if self.order.picks_blocks else _first

    def queues(self) -> tuple[Queue, ...]:
        """All that there are."""
        return tuple(self._queues)

    # ---------------------------------------------------------------------------- calls

    def enqueue(self, queue: Queue, entry: Entry) -> None:
        if self.order.watches:
            self.order.enqueued(entry)
        self._point(None)
        super().enqueue(queue, entry)

    def look(self, subject: object) -> None:
        self._point(subject)

    def _point(self, subject: object) -> None:
        """The program calls the driver: streams may step first."""
        order = self.order
        if self._ready and self._stepping != threading.get_ident() and self._may_advance():
            try:
                self.host_acts = subject
                self.in_turn = False
                while ready := self._ready_by_actor():
                    actor = order.choose([HOST, *ready])
                    if actor == HOST:
                        break
                    self._step(actor, ready[actor])
            finally:
                self._advancer = None
        if order.watches:
            order.passed(HOST, subject)

    def _may_advance(self) -> bool:
        """Take the part of who advances, for the function that calls this; False where it is taken.

        An interrupt can end a function anywhere, also between this and its `try`. So what is kept is the call, and one
        that is over keeps nobody from advancing.
        """
        me, caller = threading.get_ident(), sys._getframe(1)
        with self._lock:
            if self._advancer is not None:
                thread, call = self._advancer
                running: FrameType | None = caller
                while running is not None and running is not call:
                    running = running.f_back
                if thread != me or running is not None:
                    return False
            self._advancer = (me, caller)
        return True

    def _ready_by_actor(self) -> dict[int, Queue]:
        return {FIRST_QUEUE + queue.number: queue for queue in tuple(self._ready)}

    def _step(self, actor: int, queue: Queue) -> None:
        try:
            if self.order.watches:
                self.order.passed(actor, queue.entries[0])
            self.step(queue)
        except LookupError:  # cleared by another thread
            pass

    # ---------------------------------------------------------------------------- waits and turns

    def act(self, *, host: bool = False, timer: bool = False) -> int | None:
        """One action of anybody: chooses, and does it unless it is the caller's.

        Args:
            host: the program may go on. timer: a timer may fire.
        Returns:
            Who acted, or shall: `HOST` and `TIMER` are for the caller to do. None when nobody can.
        """
        if not self._may_advance():
            return None
        work: Callable[[], object] | None = None
        try:
            ready = self._ready_by_actor()
            actors = [HOST] if host else []
            if self._completions:
                actors.append(CALLBACK)
            if self._jobs:
                actors.append(WORKER)
            if timer:
                actors.append(TIMER)
            actors += ready
            if not actors:
                return None
            self.host_acts = None
            self.in_turn = True
            actor = self.order.choose(actors)
            if actor == CALLBACK:
                work = self._completions.popleft()
            elif actor == WORKER:
                number = self.order.pick(len(self._jobs))
                work = self._jobs[number]
                del self._jobs[number]
            elif actor >= FIRST_QUEUE:
                self._step(actor, ready[actor])
                return actor
        finally:
            self._advancer = None
        if self.order.watches:
            self.order.passed(actor, None)
        if actor == WORKER:
            self._run_job(work)
        elif work is not None:
            work()
        return actor

    def wait_until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Advance until `condition()`; False when that took longer than `timeout_s`.

        Raises:
            SchedulingError: nothing can advance any more, and no other thread is there to change that.
        """
        deadline = math.inf if timeout_s is None else time.perf_counter() + timeout_s
        while not condition():
            self.check_not_in_step()
            if self.act() is not None:
                continue
            if self.alone and not condition():
                raise self.stuck()
            if time.perf_counter() > deadline:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def finish(self) -> None:
        """Advance until nothing can."""
        while self.act() is not None:
            pass

    def stuck(self) -> SchedulingError:
        """The error for a wait that nothing can end."""
        blocked = sum(queue.blocked_on is not None for queue in self._queues)
        return SchedulingError(
            "the program waits for something that can never come: no stream can advance"
            + (f", {blocked} wait for events" if blocked else "")
            + ", no completion is to be told, no host work is left, and no timer runs"
        )

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        done = self.wait_until(condition, timeout_s)
        if self.order.watches:
            self.order.passed(HOST, None)
        return done

    # ---------------------------------------------------------------------------- completions and host work

    def notify(self, record: EventRecord, callback: Callable[[], object]) -> bool:
        if not self._has_turns():
            while not record.done and self._advance_only():
                pass
        self._point(record)
        if not super().notify(record, callback):
            return False
        self._awaited[record] = None
        self._keep_turning()
        return True

    def _advance_only(self) -> bool:
        """One step of a stream, and nothing else: the caller may hold locks."""
        if not self._may_advance():
            return False
        try:
            ready = self._ready_by_actor()
            if not ready:
                return False
            actor = self.order.choose([*ready])
            self._step(actor, ready[actor])
            return True
        finally:
            self._advancer = None

    def _tell(self, due: list[Callable[[], object]]) -> None:
        self._completions.extend(due)

    def defer(self, work: Callable[[], None]) -> None:
        self._jobs.append(work)
        if self._has_turns():
            self._keep_turning()
        else:
            while self._is_awaited() and self.act() is not None:
                pass

    def _run_job(self, work: Callable[[], object] | None) -> None:
        """As on a thread of its own: it sees no running loop."""
        assert work is not None
        loop = _running_loop()
        set_running_loop = getattr(sys.modules.get("asyncio"), "_set_running_loop", None)
        nested = self._thread_state.in_job
        self._thread_state.in_job = True
        try:
            if loop is not None and set_running_loop is not None:
                set_running_loop(None)
            work()
        finally:
            self._thread_state.in_job = nested
            if loop is not None and set_running_loop is not None:
                set_running_loop(loop)

    def _is_awaited(self) -> bool:
        """Whether somebody waits for completions or host work."""
        if self._completions or self._jobs:
            return True
        for record in tuple(self._awaited):
            if not record.done:
                return True
            self._awaited.pop(record, None)
        return False

    # ---------------------------------------------------------------------------- turns of loops

    def _has_turns(self) -> bool:
        """Whether somebody comes back to what is left to do: a loop in this thread, or who runs the job."""
        return self._thread_state.in_job or _running_loop() is not None or _in_trio_task()

    def _keep_turning(self) -> None:
        """Have this thread's loop call `_turn` until nobody waits for the device."""
        loop = _running_loop()
        if loop is not None:
            if getattr(loop, "advances_host_device", False) or loop in self._pumped:
                return
            self._pumped.add(loop)
            loop.call_soon(self._turn, loop, loop.call_soon)
        elif _in_trio_task():
            token = sys.modules["trio"].lowlevel.current_trio_token()
            if token not in self._pumped:
                self._pumped.add(token)
                token.run_sync_soon(self._turn, token, token.run_sync_soon)

    def _turn(self, loop: object, soon: Callable[..., object]) -> None:
        while self._is_awaited():
            actor = self.act(host=True)
            if actor is None or actor == HOST:
                with contextlib.suppress(RuntimeError):  # the loop is ending; nobody in it waits any more
                    soon(self._turn, loop, soon)
                    return
                break
        self._pumped.discard(loop)

    def _restart_in_child(self) -> None:
        super()._restart_in_child()
        self._advancer = None
        self._completions.clear()
        self._jobs.clear()
        self._awaited.clear()
        self._pumped.clear()


# Another thread may be importing asyncio or trio right now: what they do not define yet, nobody runs in.


def _running_loop() -> Any:
    running_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running_loop() if running_loop is not None else None


def _in_trio_task() -> bool:
    in_trio_task = getattr(sys.modules.get("trio.lowlevel"), "in_trio_task", None)
    return in_trio_task is not None and in_trio_task()


def _first(count: int) -> int:
    return 0


_process_engine: Engine | None = None
_process_lock = threading.Lock()


def process_engine() -> Engine:
    """The engine that all devices of the process share, made on first use: seeded when the environment says so."""
    global _process_engine
    with _process_lock:
        if _process_engine is None:
            seed = host_seed()
            if seed is None:
                _process_engine = Engine()
            else:
                engine = SeededEngine(SeededOrder(seed))
                set_runner(engine)
                _process_engine = engine
        return _process_engine
