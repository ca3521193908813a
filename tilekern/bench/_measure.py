"""Measuring operations with the device's own events.

Theory. A repetition is enqueued as: overwrite a buffer larger than the L2 cache, so that the operation finds
nothing of its operands there; an event; the operation; an event. The time between the events is the device's,
but it has the host's in it if the device must wait for the operation to be enqueued. Overwriting the cache does not
hide that: a fast GPU does it in 30 us, and Python needs as long for the rest. So up to 16 repetitions are enqueued
behind a kernel that does nothing for as long as that takes. If it is over before the last of them is enqueued,
they do not count: the next wait is longer, or, beyond 20 ms, the repetitions are fewer. One that is late by itself
waits for the device while it is enqueued; then its time is both.

The host device has no such wait: there, very short operations measure the host. Repetitions in which something had
to be prepared first (compiled, loaded) do not count, and nothing is measured before a warm-up.

Two operations are compared in strict turns, A B A B, and by the ratios of neighbours: clocks and temperature
change slowly, so both of a pair see the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuda_async import (
    Device,
    DeviceFuture,
    DeviceOp,
    Module,
    SingleStream,
    Stream,
    current_device,
    empty,
    fill,
)
from cuda_async.driver import EventHandle
from cuda_async.errors import SchedulingError
from cuda_async.scheduling import running_library

from ._timing import Comparison, Timing, median_interval

if TYPE_CHECKING:
    from cuda_async import Function, Tensor

__all__ = ["Make", "MeasureOptions", "compare", "measure"]

# Any: what the operation yields does not matter
Make = Callable[[], DeviceOp[Any]]
"""Makes an operation, a new one every time: operations run once."""

# a repetition of one operation: the event before, what was started, the event behind
_Enqueued = tuple[EventHandle, DeviceFuture[Any], EventHandle | None]
_IN_FLIGHT = 16
_MAX_WAIT_NS = 20_000_000
_MARGIN_NS = 100_000
_WAIT = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry wait_ns(.param .u64 duration) {
    .reg .u64 %began, %now, %duration;
    .reg .pred %more;
    ld.param.u64 %duration, [duration];
    mov.u64 %began, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %began;
    setp.lt.u64 %more, %now, %duration;
    @%more bra again;
    ret;
}
"""
"""The device's timer counts nanoseconds (PTX ISA, special registers: %globaltimer)."""
_FLUSH_BYTES = (64 << 20, 512 << 20)
_WARM_UP_RUNS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureOptions:
    """How long to measure.

    Attributes:
        warm_up_ms: run unmeasured for that long, at least twice.
        measure_ms: aim at as many repetitions as fit.
        min_runs, max_runs: but at least and at most so many.
        flush_cache: overwrite the L2 cache before each repetition; ignored on the host device.
    """

    warm_up_ms: float = 25.0
    measure_ms: float = 100.0
    min_runs: int = 5
    max_runs: int = 1000
    flush_cache: bool = True

    def __post_init__(self) -> None:
        for name in ("warm_up_ms", "measure_ms"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
                raise ValueError(f"{name} is a number of milliseconds from 0 on, got {value!r}")
        if not all(type(n) is int for n in (self.min_runs, self.max_runs)) or not (
            1 <= self.min_runs <= self.max_runs
        ):
            raise ValueError(
                f"min_runs and max_runs are whole numbers with 1 <= min_runs <= max_runs, got {self.min_runs!r} "
                f"and {self.max_runs!r}"
            )


def measure(make: Make, *, device: Device | None = None, options: MeasureOptions | None = None) -> Timing:
    """What an operation takes on the device. Blocks: on an event loop, `await asyncio.to_thread(measure, ...)`.

    Everything that the operation does counts, so allocate outside of it: `kernel.bind(...)` and then
    `lambda: bound.launch()` measures the kernel alone.

    Args:
        make: makes the operation; called for every repetition.
        device: where; the current one if not given.
        options: how long; 25 ms of warm-up and about 100 ms of repetitions if not given.
    Raises:
        SchedulingError: called on the thread of a running event loop. Whatever the operation raises.
    """
    chosen = options or MeasureOptions()
    with _Lab(device, chosen) as lab:
        runs = lab.warm_up([make])
        return Timing(tuple([sample for (sample,) in lab.run([make], runs)]))


def compare(
    first: Make, second: Make, *, device: Device | None = None, options: MeasureOptions | None = None
) -> Comparison:
    """Two operations that are run in turns, and the ratio of what they take. Blocks, as `measure` does."""
    chosen = options or MeasureOptions()
    with _Lab(device, chosen) as lab:
        runs = lab.warm_up([first, second])
        pairs = lab.run([first, second], runs)
    ratios = [b / a for a, b in pairs if a > 0]
    if not ratios:
        raise ValueError("the first operation takes no time that the device can measure")
    return Comparison(
        Timing(tuple([a for a, _ in pairs])),
        Timing(tuple([b for _, b in pairs])),
        statistics.median(ratios),
        median_interval(ratios),
    )


class _Lab:
    """A stream of its own, and what flushes the cache."""

    def __init__(self, device: Device | None, options: MeasureOptions) -> None:
        library = running_library()
        if library is not None:
            raise SchedulingError(
                f"measuring blocks, and this is the thread of a running {library} loop; use a worker thread: "
                "await asyncio.to_thread(tk.bench.measure, ...)"
            )
        self._options = options
        self._device = (device or current_device()).open()
        self._flush: Tensor | None = None
        self._wait: Function | None = None
        self._wait_ns = 1_000_000
        self._in_flight = _IN_FLIGHT
        self._events: list[EventHandle] = []
        self._free: list[EventHandle] = []

    def __enter__(self) -> _Lab:
        self._stream: Stream = self._device.create_stream(name="bench")
        self._policy = SingleStream(self._stream)
        if self._device.kind == "host":
            return self
        self._wait = Module.from_ptx(_WAIT, name="wait").function("wait_ns")
        self._wait.launch(1, 1, 0).sync_on(self._stream)  # loads it
        if self._options.flush_cache:
            low, high = _FLUSH_BYTES
            size = min(max(2 * self._device.limits.l2_cache_bytes, low), high)
            self._flush = empty((size // 4,), "int32").sync_on(self._stream)
            fill(self._flush, 0).sync_on(self._stream)
        return self

    def __exit__(self, *error: object) -> None:
        self._flush = None
        for event in self._events:
            self._device.driver.event_destroy(event)
        self._stream.close()

    def warm_up(self, makes: list[Make]) -> int:
        """Run until it is warm; how many repetitions fit into the time to measure."""
        options = self._options
        began = time.perf_counter()
        runs = 0
        while runs < _WARM_UP_RUNS or (time.perf_counter() - began) * 1e3 < options.warm_up_ms:
            for make in makes:
                _made(make).sync_on(self._stream)
            runs += 1
            if runs == 1:
                began = time.perf_counter()  # the first run compiles
        took_ms = sum(sum(group) for group in self.run(makes, 3)) / 3
        fitting = int(options.measure_ms / took_ms) if took_ms > 0 else options.max_runs
        return min(max(fitting, options.min_runs), options.max_runs)

    def run(self, makes: list[Make], runs: int) -> list[tuple[float, ...]]:
        """Samples in milliseconds, `runs` times one of each operation, in turn."""
        samples: list[tuple[float, ...]] = []
        spoilt = 0
        while len(samples) < runs:
            batch, in_time = self._batch(makes, min(self._in_flight, runs - len(samples)))
            for group in batch:
                times = [self._read(*parts) for parts in group]
                if None in times:
                    spoilt += 1
                elif in_time:
                    samples.append(tuple([t for t in times if t is not None]))
            if spoilt > runs + _IN_FLIGHT:
                raise SchedulingError(
                    "the operation prepares something every time it runs, so its time on the device cannot be told "
                    "from the host's; allocate and load what it needs before, and measure the rest"
                )
        return samples

    def _batch(self, makes: list[Make], count: int) -> tuple[list[list[_Enqueued]], bool]:
        """Enqueue `count` repetitions; whether they count, by the device having waited until they were enqueued."""
        if self._wait is None:
            return [[self._enqueue(make) for make in makes] for _ in range(count)], True
        self._wait.launch(1, 1, self._wait_ns).start(self._policy)
        over = self._stream.record()
        began = time.perf_counter_ns()
        batch = [[self._enqueue(make) for make in makes] for _ in range(count)]
        took_ns = time.perf_counter_ns() - began
        in_time = not over.is_done or (count == 1 and self._wait_ns == _MAX_WAIT_NS)
        over.close()
        self._wait_ns = min(_MAX_WAIT_NS, 2 * took_ns + _MARGIN_NS)
        if not in_time and took_ns > _MAX_WAIT_NS:
            self._in_flight = max(1, count // 2)
        return batch, in_time

    def _enqueue(self, make: Make) -> _Enqueued:
        op = _made(make)
        if self._flush is not None:
            fill(self._flush, 0).start(self._policy)
        before = self._record()
        future = op.start(self._policy)
        # what goes on on a worker thread is not enqueued yet
        return before, future, None if future.state == "enqueueing" else self._record()

    def _record(self) -> EventHandle:
        """A timing event, and nothing else: `Stream.record` has one more behind it, which would count."""
        driver = self._device.driver
        driver.bind()
        if not self._free:
            self._free.append(driver.event_create(timing=True))
            self._events.append(self._free[-1])
        event = self._free.pop()
        driver.event_record(event, self._stream.handle)
        return event

    def _read(
        self, before: EventHandle, future: DeviceFuture[Any], after: EventHandle | None
    ) -> float | None:
        future.sync()
        self._free.append(before)
        if after is None:
            return None
        driver = self._device.driver
        driver.event_synchronize(after)
        self._free.append(after)
        return driver.event_elapsed_ms(before, after)


def _made(make: Make) -> DeviceOp[Any]:
    if not callable(make):
        raise TypeError(
            f"a function that makes operations is measured, since each runs once: lambda: ...; got {make!r}"
        )
    op = make()
    if not isinstance(op, DeviceOp):
        raise TypeError(f"a function that makes operations is measured; it gave {type(op).__name__}")
    return op
