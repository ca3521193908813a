"""Where slow host work runs when a seeded host device decides about everything.

Normally worker threads do it. On a seeded device, when it runs is one more thing to draw, so the device takes it and
runs it in the thread that advances the device: see `host/_seeded.py`. The layers above ask here, and know no device.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["InlineRunner", "current_runner", "set_runner"]


class InlineRunner(Protocol):
    """Takes over what worker threads do."""

    def defer(self, work: Callable[[], None]) -> None:
        """Run `work` at some moment from now on. It does not raise."""
        ...

    def wait_until(self, condition: Callable[[], bool]) -> object:
        """Let the device and deferred work go on until `condition()`."""
        ...


_runner: InlineRunner | None = None
_asked = False


def current_runner() -> InlineRunner | None:
    """Who runs slow host work; None for worker threads.

    Opening the first device is slow work already, so the first call asks the environment.
    """
    global _asked
    if not _asked:
        _asked = True
        if os.environ.get("CUDA_ASYNC_HOST_SEED", "").strip():
            from .host._seeded import process_engine

            process_engine()
    return _runner


def set_runner(runner: InlineRunner | None) -> InlineRunner | None:
    """Let `runner` do it from now on; returns who did before."""
    global _runner
    before, _runner = _runner, runner
    return before
