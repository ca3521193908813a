"""Sharing a loop's thread: how much enqueueing may happen in one turn of an event loop.

A thousand tasks that become ready at once would otherwise enqueue in a single turn of their loop, and hold up all other
tasks and timers for as long as that takes. So tasks count what they spend. Once a turn's time is used up, a task queues
here, and each later turn lets as many go on as are likely to fit, in the order they came.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from ..driver._inline import current_runner
from ..scheduling import running_library

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_ENQUEUEING_S", "current_turn"]

MAX_ENQUEUEING_S = 2e-3
"""How long the tasks of a loop may enqueue in one turn."""


class Turn:
    """What a loop's tasks spent enqueueing in this turn, and who waits for the next.

    Attributes:
        spent_s: in this turn. average_s: per run of a task, lately.
    """

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.average_s = 1e-4
        self._waiting: deque[tuple[Callable[[], None], Callable[..., object]]] = deque()
        self._is_asked = False  # a turn was asked for: `_begin` will be called
        self._loop: object = None

    def spend(self, seconds: float) -> None:
        """A task enqueued for so long. With a seeded device, time decides nothing."""
        if current_runner() is not None:
            return
        self.spent_s += seconds
        self.average_s += 0.1 * (seconds - self.average_s)

    async def give_way(self) -> None:
        """Suspend the running task until a later turn has time for it."""
        if running_library() == "trio":
            await self._give_way_trio()
        else:
            await self._give_way_asyncio()

    async def _give_way_asyncio(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        self._queue(wake, loop, loop.call_soon)
        await future

    async def _give_way_trio(self) -> None:
        trio = sys.modules["trio"]
        token = trio.lowlevel.current_trio_token()
        task = trio.lowlevel.current_task()
        waiting = True

        def wake() -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                trio.lowlevel.reschedule(task)

        def abort(_: Any) -> Any:  # trio's types stay out: trio is optional
            nonlocal waiting
            waiting = False
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            self._queue(wake, token, token.run_sync_soon)
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:  # after an interrupt too, which may come before the task waits
            waiting = False

    def _queue(self, wake: Callable[[], None], loop: object, soon: Callable[..., object]) -> None:
        if self._loop is not loop:
            self._change_loop(loop)
        self._waiting.append((wake, soon))
        if not self._is_asked:
            soon(self._begin, loop)
            self._is_asked = True  # not before: an interrupt in between would leave all that wait

    def _change_loop(self, loop: object) -> None:
        """Another loop runs on this thread now. Tasks of the last one may still want to go on, in a loop that was only
        left for a while."""
        self._loop = loop
        self._is_asked = False
        while self._waiting:
            wake, soon = self._waiting.popleft()
            try:
                soon(wake)
            except RuntimeError:  # it has ended (trio says so with a RuntimeError too)
                continue

    def _begin(self, loop: object) -> None:
        """A new turn: wake those that are likely to fit; the rest waits for the next."""
        if self._loop is not loop:
            return
        self._is_asked = False
        self.spent_s = 0.0
        count = max(1, int(MAX_ENQUEUEING_S / max(self.average_s, 1e-6)))
        waiting = self._waiting
        for _ in range(min(count, len(waiting))):
            waiting.popleft()[0]()
        if waiting:
            with contextlib.suppress(RuntimeError):  # the loop is ending, and so are they
                waiting[0][1](self._begin, loop)
                self._is_asked = True


class _Turns(threading.local):
    """Of each thread, since a thread runs one loop at a time."""

    def __init__(self) -> None:
        self.turn = Turn()


_turns = _Turns()


def current_turn() -> Turn:
    """Of the running thread's loop."""
    return _turns.turn
