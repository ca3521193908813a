"""Threads for slow host work: compiling, loading, staging, first use.

Daemon threads, started when there is more to do than idle ones: a slow compiler cannot hold up the
interpreter's exit, which is why this is not a `ThreadPoolExecutor`.
"""

from __future__ import annotations

import _thread
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_in_worker"]

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
                _thread.start_new_thread(self.run, ())
                self.threads += 1
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


def _forget_threads() -> None:
    global _workers
    _workers = _Workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def run_in_worker(work: Callable[[], None]) -> None:
    """Run `work` on a worker thread, soon. It must not raise."""
    _workers.submit(work)
