"""Compiling many variants side by side before they are needed, with a line that says how far it is."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from cuda_async import DeviceOp, ExecutionContext

from ._kernel import timed
from ._launch import CompileOp

if TYPE_CHECKING:
    from ._timings import CompileTimings

__all__ = ["WarmUp", "make_warm_up"]

MAX_THREADS = 16
_WIDTH = 24


def make_warm_up(
    operations: Sequence[CompileOp],
    progress: bool | Callable[[int, int, str], object] | None,
    threads: int | None,
) -> WarmUp:
    """`warm_up`, as users call it."""
    for op in operations:
        if not isinstance(op, CompileOp):
            raise TypeError(f"warm_up takes operations made by kernel.compile(...), got {type(op).__name__}")
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ValueError(f"threads is a number from 1 on, got {threads!r}")
    taken = []
    for op in operations:
        op._take()
        taken.append(op)
    return WarmUp(tuple(taken), progress, threads)


class WarmUp(DeviceOp["tuple[CompileTimings, ...]"]):
    """Compiles many variants. Made by `warm_up`."""

    def __init__(
        self,
        operations: tuple[CompileOp, ...],
        progress: bool | Callable[[int, int, str], object] | None,
        threads: int | None,
    ) -> None:
        self._operations = operations
        self._progress = progress
        self._threads = threads
        self._timings: tuple[CompileTimings, ...] = ()

    def prepare(self, ctx: ExecutionContext) -> None:
        from concurrent.futures import ThreadPoolExecutor

        operations = self._operations
        if not operations:
            return
        report = _Progress(len(operations), self._progress)

        def compile_one(op: CompileOp) -> list[CompileTimings]:
            with timed() as found:
                op.prepare(ctx)
            report.done(op._kernel.name)
            return found

        workers = min(self._threads or min(os.cpu_count() or 1, MAX_THREADS), len(operations))
        with ThreadPoolExecutor(workers, "tilekern-compile") as pool:
            futures = [pool.submit(compile_one, op) for op in operations]
        report.end()
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            message = f"{len(errors)} of {len(operations)} variants did not compile"
            raise BaseExceptionGroup(message, errors)
        self._timings = tuple([timing for future in futures for timing in future.result()])

    def execute(self, ctx: ExecutionContext) -> tuple[CompileTimings, ...]:
        return self._timings


class _Progress:
    """A line such as `[######......] 12/24 matmul 3.2 s`."""

    def __init__(self, total: int, how: bool | Callable[[int, int, str], object] | None) -> None:
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        self._call = how if callable(how) else None
        self._began = time.perf_counter()
        stream: TextIO | None = sys.stderr
        is_terminal = stream is not None and stream.isatty()
        self._draws = is_terminal and not callable(how) and how is not False
        self._prints = not is_terminal and how is True and stream is not None

    def done(self, name: str) -> None:
        with self._lock:
            self._done += 1
            if self._call is not None:
                self._call(self._done, self._total, name)
            elif self._draws:
                sys.stderr.write(f"\r\x1b[2K{self._line(name)}")
                sys.stderr.flush()
            elif self._prints:
                sys.stderr.write(f"{self._line(name)}\n")

    def end(self) -> None:
        if self._draws:
            sys.stderr.write("\n")
            sys.stderr.flush()

    def _line(self, name: str) -> str:
        filled = _WIDTH * self._done // self._total
        bar = "#" * filled + "." * (_WIDTH - filled)
        return f"[{bar}] {self._done}/{self._total} {name} {time.perf_counter() - self._began:.1f} s"
