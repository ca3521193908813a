"""Waiting for everything: `drain()`, and a clean end of the process.

What the device may still use belongs to the process, not to a task or a loop: submissions hold it until the
device has passed them (`_submission`), freed memory goes behind its last use (`_device._collect`). No thread
blocks for it; `drain()` is for those who want to see it done.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

from ..errors import DeviceLostError
from ._callbacks import check_not_in_callback
from ._current import default_device_if_known
from ._device import Device, all_open_devices
from ._put_off import do_what_was_put_off
from ._waiting import checkpoint, wait_for_callback, wait_for_submission
from ._workers import abandoned_work, left_behind

if TYPE_CHECKING:
    from collections.abc import Generator

    from ._submission import Submission

__all__ = ["drain"]


class Drain:
    """Waits until the devices are past everything enqueued so far. Made by `drain()`."""

    __slots__ = ()

    def sync(self) -> None:
        """Block this thread until it is so."""
        check_not_in_callback("drain().sync()")
        for work in abandoned_work():
            work.block()
        for _ in range(2):  # freeing what was dropped enqueues the frees
            for submission in _open_submissions():
                try:
                    submission.synchronize()
                except Exception as error:
                    if error is not submission.error:
                        raise  # the waiting failed
                    continue  # it belongs to whoever awaited that work
            _collect_all()

    def __await__(self) -> Generator[Any, Any, None]:
        check_not_in_callback("await drain()")
        return self._wait().__await__()

    async def _wait(self) -> None:
        for work in abandoned_work():
            await wait_for_callback(work.begin_waiting, left_behind)
        for _ in range(2):
            await checkpoint()  # what the loop's callbacks of ended tasks hold goes with its next turn
            for submission in _open_submissions():
                try:
                    await wait_for_submission(submission)
                except Exception as error:
                    if error is not submission.error:
                        raise  # the waiting failed
                    continue  # it belongs to whoever awaited that work
            _collect_all()


def drain() -> Drain:
    """Wait for all work of this process, cancelled or forgotten work too, and free what it held.

    That is of the devices that `Device(name)` gives, and of the current one: of several devices that a test has made
    for itself, the others do not count.

    `await drain()`, or `drain().sync()`. Errors of that work are not raised here: they belong to its awaits. Those of
    futures that were dropped without being asked are logged, as by the next operation that runs.

    Raises:
        ReentrancyError: inside a callback, whose operation it would wait for.
    """
    return Drain()


def _devices() -> list[Device]:
    devices = all_open_devices()
    current = default_device_if_known()
    if current is not None and current.is_open and current not in devices:
        devices.append(current)
    return devices


def _open_submissions() -> list[Submission]:
    _collect_all()
    return [submission for device in _devices() for submission in device._submit_all()]


def _collect_all() -> None:
    do_what_was_put_off()  # what that holds goes with it
    for device in _devices():
        try:
            device.collect(everything=True)
        except DeviceLostError as lost:
            device._note_lost(lost)


def _at_exit() -> None:
    """Let work in flight finish or give it up, and close drivers; never raises, never hangs on a lost device."""
    for device in all_open_devices():
        try:
            device._pinned = None  # the end of the process frees it, and waits for nothing
            device._close("the interpreter is exiting")
        except Exception as error:
            print(f"cuda_async: closing {device} failed: {error}", file=sys.stderr)


atexit.register(_at_exit)
