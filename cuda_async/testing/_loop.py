"""An event loop whose every turn is decided by the order of a seeded device, timers too.

It runs asyncio's tasks, and anyio's, as asyncio's own loop does (handles in the order they were scheduled), but has no
sockets, no signals, no subprocesses and no clock: a timer fires when the order says that time passes. What it does not
have it refuses in words. Before each handle, and while there is none, the device may act.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..driver.host import HOST, TIMER
from ..errors import SchedulingError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from contextvars import Context

    from ..driver.host import SeededEngine

__all__ = ["ExploringLoop"]

T = TypeVar("T")


class ExploringLoop(asyncio.AbstractEventLoop):
    """Runs one coroutine, and the tasks it starts, with the device of `engine`.

    Attributes:
        problems: what reached the exception handler.
    """

    advances_host_device = True
    """The engine need not ask for turns."""

    def __init__(self, engine: SeededEngine) -> None:
        self._engine = engine
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._now = 0.0
        self._tasks: list[
            weakref.ref[asyncio.Task[Any]]
        ] = []  # in order; they hold results, which are not ours
        self._generators: list[weakref.ref[AsyncGenerator[Any, Any]]] = []  # in the order they were begun
        self._closings: list[asyncio.Task[Any]] = []  # of generators
        self._closed = False
        self.problems: list[dict[str, Any]] = []

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, then cancel what it left behind and close its generators, as `asyncio.run` does.

        Raises:
            SchedulingError: every task waits, and nothing is left that could wake one.
        """
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._generator_begun, self._generator_dropped)
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main)
            try:
                self._run_until(task)
            finally:
                left = [t for t in (found() for found in self._tasks) if t is not None and not t.done()]
                for other in left:
                    other.cancel()
                self._run_what_ends(left)
                for generator in [found() for found in self._generators]:
                    if generator is not None:
                        self._generator_dropped(generator)
                self._run_what_ends(self._closings)
                self._report_failed_closings()
            result: T = task.result()
            return result
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            self._closed = True
            self._tasks.clear()
            self._generators.clear()
            self._closings.clear()
            self._ready.clear()
            self._timers.clear()

    def _run_what_ends(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Each of `tasks`, to which others may come meanwhile; one that cannot end is not the error to report."""
        for task in tasks:
            with contextlib.suppress(SchedulingError):
                self._run_until(task)

    def _run_until(self, task: asyncio.Task[Any]) -> None:
        act = self._engine.act
        while not task.done():
            while self._timers and self._timers[0][2].cancelled():
                heapq.heappop(self._timers)
            actor = act(host=bool(self._ready), timer=bool(self._timers))
            if actor == HOST:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
            elif actor == TIMER:
                self._now, _, timer = heapq.heappop(self._timers)
                self._ready.append(timer)
            elif actor is None:
                raise self._engine.stuck()

    # ---------------------------------------------------------------------------- asynchronous generators

    def _generator_begun(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.append(weakref.ref(generator))

    def _generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Have a task run what the generator does at its end. A task at once: so it is cancelled with the others."""
        if not self._closed:
            self._closings.append(self.create_task(generator.aclose()))

    def _report_failed_closings(self) -> None:
        for task in self._closings:
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is not None:
                message = "an error occurred during closing of an asynchronous generator"
                self.call_exception_handler({"message": message, "exception": error, "task": task})

    # ---------------------------------------------------------------------------- what tasks call

    def call_soon(  # type: ignore[override]  # typeshed types the arguments by a variadic
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (max(when, self._now), next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left out when its turn comes."""

    def time(self) -> float:
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self._tasks.append(weakref.ref(task))
        return task

    def get_task_factory(self) -> None:  # which anyio asks for
        """Tasks are asyncio's."""

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """As slow host work, at a moment the order decides."""
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self._engine.defer(work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)

    def raise_problem(self) -> None:
        """Raise the first error that reached the exception handler."""
        if self.problems:
            problem = self.problems[0]
            error = problem.get("exception") or SchedulingError("a problem reached the event loop")
            error.add_note(f"event loop: {problem.get('message')}")
            raise error

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._closed


# ------------------------------------------------------------------------------------ what there is not

_OF_THE_LOOP = (
    *("run_", "stop", "close", "shutdown_", "set_default_executor", "set_debug", "set_exception_handler"),
    *("get_exception_handler", "set_task_factory"),
)
"""How methods begin that run the loop or change it; the others are for what comes from outside."""


def _refusal(name: str) -> Callable[..., NoReturn]:
    if name.startswith(_OF_THE_LOOP):
        why = "explore() and replay() make the loop, run it and close it: the program only runs on it"
    else:
        why = (
            "its event loop has no sockets, pipes, files, signals or subprocesses, because no schedule decides when "
            "something comes from them; let the program take a stand-in for that part, such as an asyncio.Queue"
        )

    def refused(self: ExploringLoop, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"a program that is explored cannot use loop.{name}(): {why}")

    refused.__name__ = name
    return refused


for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(ExploringLoop):
        setattr(ExploringLoop, _name, _refusal(_name))
