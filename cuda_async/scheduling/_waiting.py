"""Waiting without blocking the loop, on asyncio, uvloop and trio.

A wait first polls through the loop, so that other tasks run between two looks: a short operation is seen
within microseconds. The bound adapts to how long recent waits took; past it, a thread that sleeps in the driver
wakes the task, which costs the loop nothing. Both ways ask the driver, so both notice a device error.
"""

from __future__ import annotations

import sys
import time
import types
from typing import TYPE_CHECKING, Any

from ._watchdog import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ._submission import Submission

    # Takes what to call when it is time (once, from any thread); returns how to give up waiting.
    Begin = Callable[[Callable[[], None]], Callable[[], None]]

__all__ = ["checkpoint", "running_library", "wait_for_callback", "wait_for_submission", "wait_until_done"]


def running_library() -> str | None:
    """`"asyncio"` (uvloop too) or `"trio"` when the caller runs in a task of one, else None."""
    # Another thread may be importing them right now: what they do not define yet, nobody runs in.
    modules = sys.modules
    in_trio_task = getattr(modules.get("trio.lowlevel"), "in_trio_task", None)
    if in_trio_task is not None and in_trio_task():
        return "trio"
    running_loop = getattr(modules.get("asyncio"), "_get_running_loop", None)
    if running_loop is not None and running_loop() is not None:
        return "asyncio"
    return None


def _require_library() -> str:
    library = running_library()
    if library is None:
        raise RuntimeError(
            "no running event loop: await device operations inside asyncio, uvloop or trio, or use .sync()"
        )
    return library


@types.coroutine
def _next_turn() -> Generator[None, None, None]:
    """Let asyncio run everything that is ready, then go on."""
    yield


async def checkpoint() -> None:
    """Let other tasks run, and be cancelled if that was asked for."""
    if _require_library() == "trio":
        import trio

        await trio.lowlevel.checkpoint()
    else:
        await _next_turn()


async def wait_for_submission(submission: Submission) -> None:
    """Suspend this task until the device has passed `submission`; raises the submission's error.

    Cancelling stops the waiting only.
    """
    await wait_until_done(submission)
    submission.raise_error()


async def wait_until_done(submission: Submission) -> None:
    """Suspend this task until the device has passed `submission`, or that has failed."""
    if not submission.poll():
        library = _require_library()
        device = submission.stream.device
        began = time.perf_counter()
        poll_until = began + device._poll_budget_s()
        device._pollers.append(None)
        try:
            while time.perf_counter() < poll_until:
                if library == "trio":
                    await sys.modules["trio"].lowlevel.checkpoint()
                else:
                    await _next_turn()
                if submission.poll():
                    break
        finally:
            device._pollers.pop()
        sleeps = not submission.done
        if sleeps:

            def begin(wake: Callable[[], None]) -> Callable[[], None]:
                if not submission.add_callback(wake):
                    wake()
                return lambda: submission.remove_callback(wake)

            with waiting(submission, _nothing_else):
                await _wait_for_callback(begin)
        device._note_wait(time.perf_counter() - began, sleeps)


def _nothing_else() -> str:
    return ""


async def wait_for_callback(begin: Begin, describe: Callable[[], str]) -> None:
    """Suspend this task until the callback given to `begin` is called, from any thread.

    `describe()` says for what, to the watchdog.
    """
    with waiting(None, describe):
        await _wait_for_callback(begin)


async def _wait_for_callback(begin: Begin) -> None:
    if _require_library() == "trio":
        await _wait_trio(begin)
    else:
        await _wait_asyncio(begin)


async def _wait_asyncio(begin: Begin) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop is closed: it loses a wake-up, nothing else
            pass

    give_up = begin(wake)
    try:
        await future
    except GeneratorExit:
        # Left behind by a closed loop, and maybe being collected inside a lock that giving up needs. The wake-up finds
        # nobody.
        raise
    except BaseException:
        give_up()
        raise


async def _wait_trio(begin: Begin) -> None:
    import trio

    token = trio.lowlevel.current_trio_token()
    task = trio.lowlevel.current_task()
    waiting = True

    def finish() -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            trio.lowlevel.reschedule(task)

    def wake() -> None:
        try:
            token.run_sync_soon(finish)
        except trio.RunFinishedError:  # the run is over: it loses a wake-up, nothing else
            pass

    def abort(_: Any) -> Any:  # trio's types stay out: trio is optional
        nonlocal waiting
        waiting = False
        return trio.lowlevel.Abort.SUCCEEDED

    give_up: Callable[[], None] | None = None
    try:
        give_up = begin(wake)
        await trio.lowlevel.wait_task_rescheduled(abort)
    except GeneratorExit:  # as with asyncio
        waiting = False
        raise
    except (
        BaseException
    ):  # maybe an interrupt, before the task waited: no wake-up may reach what it does next
        waiting = False
        if give_up is not None:
            give_up()
        raise
