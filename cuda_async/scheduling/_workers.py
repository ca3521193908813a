"""Threads for slow host work: compiling, loading, staging, first use.

Daemon threads, started when there is more to do than idle ones: a slow compiler cannot hold up the
interpreter's exit, which is why this is not a `ThreadPoolExecutor`.

There are few of them, so work that can only wait for what another one does gives its thread back: it raises
`WaitElsewhere`, and is begun again when that is over. Where a thread is lent for the whole of a call, as in
`sync()`, it waits: `may_wait_elsewhere()` tells.
"""

from __future__ import annotations

import _thread
import os
import threading
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ..driver._bell import Bell, call_each
from ..driver._inline import current_runner
from ..errors import ContextError
from ._watchdog import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Unfinished",
    "WaitElsewhere",
    "WorkerTask",
    "abandoned_work",
    "block_on",
    "check_not_forked",
    "forks",
    "left_behind",
    "may_wait_elsewhere",
    "run_in_worker",
    "waiting_elsewhere",
]

MAX_WORKERS = 8


class _Workers:
    def __init__(self) -> None:
        self.queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0
        self.idle = 0

    def submit(self, work: Callable[[], None]) -> None:
        with self.lock:
            if self.idle:
                self.idle -= 1
            elif self.threads < MAX_WORKERS:
                # Thread.start() waits until the thread runs, for which it needs the interpreter lock: milliseconds
                # on an event loop's thread.
                try:
                    _thread.start_new_thread(self.run, ())
                    self.threads += 1
                except RuntimeError:
                    # From Python 3.12 on there is none as the interpreter exits; one that is there takes it, or nobody.
                    if not self.threads or threading.main_thread().is_alive():
                        raise
        self.queue.put(work)

    def run(self) -> None:
        while True:
            work = self.queue.get()
            try:
                work()
            except BaseException:  # it should not; another thread takes this one's place
                with self.lock:
                    self.threads -= 1
                raise
            del work
            with self.lock:
                # Work that found no idle thread may be waiting in the queue.
                if self.queue.empty():
                    self.idle += 1


_workers = _Workers()
_abandoned: dict[Unfinished, None] = {}  # in order, so that a seeded device does the same each time
_abandoned_lock = threading.Lock()


_forks = 0


def forks() -> int:
    """How many forks this process is away from the first: what was begun at another number, nobody goes on with."""
    return _forks


def check_not_forked(begun: int, what: str) -> None:
    """Raises `ContextError` where `what`, begun when `forks()` was that, is the parent's."""
    if begun != _forks:
        raise ContextError(
            f"{what} was begun before fork(), and the parent's threads go on with it there only; "
            'start worker processes with multiprocessing.get_context("spawn")'
        )


def _forget_threads() -> None:
    global _forks, _workers, _abandoned, _abandoned_lock
    _forks += 1
    _workers = _Workers()
    _abandoned = {}
    _abandoned_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def run_in_worker(work: Callable[[], None]) -> None:
    """Run `work` on a worker thread, soon. It must not raise."""
    runner = current_runner()
    if runner is None:
        _workers.submit(work)
    else:
        runner.defer(work)


def block_on(begin: Callable[[Callable[[], None]], object], describe: Callable[[], str]) -> None:
    """Block this thread until the callback given to `begin` is called, from any thread.

    `describe()` says for what, to the watchdog.
    """
    bell = Bell()
    begin(bell.ring)
    runner = current_runner()
    if runner is None:
        with waiting(None, describe):
            bell.wait()
    else:
        runner.wait_until(lambda: bell.is_rung)


class WaitElsewhere(BaseException):
    """The work cannot go on yet, and shall be begun again once `subscribe` has called what it is given, maybe twice.

    No `Exception`: nothing between the work and its thread is to take it for a failure.
    """

    def __init__(self, subscribe: Callable[[Callable[[], None]], None]) -> None:
        super().__init__()
        self.subscribe = subscribe


class _Allowed(threading.local):
    value = False


_allowed = _Allowed()


def may_wait_elsewhere() -> bool:
    """True where `WaitElsewhere` may be raised."""
    return _allowed.value


@contextmanager
def waiting_elsewhere(allowed: bool) -> Iterator[None]:
    """Whether what runs inside, on this thread, may raise `WaitElsewhere`."""
    before, _allowed.value = _allowed.value, allowed
    try:
        yield
    finally:
        _allowed.value = before


def left_behind() -> str:
    """What `drain()` waits for, in words."""
    return "work on a worker thread that nobody else waits for"


class Unfinished:
    """Work that holds things until it is done, and that `drain()` can wait for."""

    __slots__ = ("_callbacks", "_done")

    def __init__(self) -> None:
        self._done = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """Whether it is."""
        return self._done

    def abandon(self) -> None:
        """Nobody waits for it any more, except `drain()`."""
        with _abandoned_lock:
            if not self._done:
                _abandoned[self] = None

    def finish(self) -> None:
        """It is done, and holds nothing any more."""
        self._note_done()
        self._tell()

    def _note_done(self) -> None:
        with _abandoned_lock:
            self._done = True
            _abandoned.pop(self, None)

    def _tell(self) -> None:
        try:
            call_each(self._callbacks)
        finally:  # behind an interrupt in there: who is left
            call_each(self._callbacks)

    def begin_waiting(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` when it is done, at once if it is; returns how to give up."""
        with _abandoned_lock:
            done = self._done
            if not done:
                self._callbacks.append(wake)
        if done:
            wake()
        return lambda: None

    def block(self) -> None:
        """Block this thread until it is done."""
        block_on(self.begin_waiting, left_behind)


class _Once:
    """Work that may be submitted several times, and is done once."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = [work]

    def __call__(self) -> None:
        try:
            work = self._work.pop()
        except IndexError:
            return
        work()


class WorkerTask(Unfinished):
    """A call on a worker thread, started here; `finished` is called after it, on that thread. It must not raise.

    Whoever waits may give up, the thread goes on: what it holds is held until then, and `drain()` waits for it.
    """

    __slots__ = ("_finished", "_work")

    def __init__(self, work: Callable[[], None], finished: Callable[[], None]) -> None:
        super().__init__()
        self._work: Callable[[], None] | None = work
        self._finished: Callable[[], None] | None = finished
        run_in_worker(self._run)

    def _run(self) -> None:
        work, finished = self._work, self._finished
        assert work is not None
        assert finished is not None
        over = True
        try:
            work()
        except WaitElsewhere as waiting:
            over = False
            again = _Once(self._run)
            waiting.subscribe(lambda: run_in_worker(again))
        finally:
            if over:
                self._work = self._finished = None
                del work  # and what it holds, before anybody hears of it
                self._note_done()
                finished()
                self._tell()


def abandoned_work() -> list[Unfinished]:
    """What still goes on though nobody waits for it."""
    with _abandoned_lock:
        return list(_abandoned)
