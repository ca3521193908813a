"""Interrupts that do not come: a look, once a second, at what threads sleep for in the driver.

A thread that sleeps in the driver for an event is woken by an interrupt of the device's, and by nothing else: there the
NVIDIA driver waits without a limit. (Seen once on an H200 that other processes filled, and whose contexts they broke:
all threads of two processes of five slept there for minutes, while programs that only look went on.) So while threads
sleep for events that interrupt, this one looks at those events. Whoever waits is told then, at the latest. Where a
thread sleeps on for another second, an interrupt was lost: another thread takes its place, and from then on the
device's events do not interrupt; waits look for themselves.
"""

from __future__ import annotations

import _thread
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._device import Device
    from ._submission import Submission

__all__ = ["LOOK_S", "look_out"]

LOOK_S = 1.0
"""How often."""

_logger = logging.getLogger("cuda_async")


def look_out(device: Device) -> None:
    """Lock held. A thread of the device's is about to sleep: have a thread that looks."""
    if device._lookout:
        return
    device._lookout = True
    try:
        _thread.start_new_thread(_look, (device,))
    except (RuntimeError, MemoryError):  # there is none to be had: the next who sleeps tries again
        device._lookout = False


def _look(device: Device) -> None:
    passed: set[Submission] = set()  # those that the device was past at the last look
    try:
        while True:
            time.sleep(LOOK_S)
            asleep = look(device, passed)
            if not asleep:
                return
            passed = {submission for submission in asleep if submission.done}
    except BaseException:  # a callback raised, which it should not; the next who sleeps starts another thread
        with device._lock:
            device._lookout = False
        raise


def look(device: Device, passed: set[Submission]) -> list[Submission]:
    """Look once; what threads slept for. `passed`: what the device was past at the last look already."""
    is_lost = False
    with device._lock:
        asleep = []
        for stream in device._streams:
            submission = stream._asleep_for
            if submission is None or submission.events is not device._interrupting_events:
                continue
            is_lost |= submission in passed
            if submission not in passed or not stream._give_up_waiter():
                asleep.append(submission)
        if is_lost:
            device._interrupts_lost = True
            device._interrupts = False
            if device._driver is not None:
                device._driver.forget_interrupts()
        if not asleep:
            device._lookout = False
    if is_lost:
        _logger.warning(
            "%s: a thread slept on in the driver for a second behind the end of what it waited for: an interrupt was "
            "lost. Waits look for themselves from now on",
            device,
        )
    for submission in asleep:
        submission.poll()
    return asleep
