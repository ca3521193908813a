"""Which stream the next operation runs on. A policy is an object with one method."""

from __future__ import annotations

import itertools
from typing import Protocol

from ..errors import SchedulingError
from ._current import current_device, default_device_if_known
from ._device import Device
from ._stream import Stream

__all__ = ["LeastLoaded", "PriorityStreams", "SchedulingPolicy", "SingleStream", "StreamPoolRoundRobin"]


class SchedulingPolicy(Protocol):
    """Chooses streams. One policy serves many tasks and threads at once."""

    def next_stream(self) -> Stream:
        """The stream for the next operation; called once per operation that is run, and per `parallel` branch.

        A policy that is slow at first may have an attribute `is_ready`; while it is false, the first call is made on a
        worker thread.
        """
        ...


class _Pool:
    """Streams of one device, made on first use."""

    def __init__(self, device: Device | None, count: int, priority: int = 0) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise SchedulingError(f"a stream pool needs a number of streams, at least 1, got {count!r}")
        if device is not None and not isinstance(device, Device):
            raise TypeError(f'a stream pool is of a Device such as ca.Device("cuda:0"), got {device!r}')
        self._device = device
        self._count = count
        self._priority = priority
        self._streams: list[Stream] = []

    @property
    def is_ready(self) -> bool:
        """False when the next stream would open the device, which is slow."""
        if len(self._streams) == self._count:
            return True
        device = self._device or default_device_if_known()
        return device is not None and device.is_open

    @property
    def streams(self) -> list[Stream]:
        streams = self._streams
        if len(streams) < self._count:
            device = self._device or current_device()
            with device._pool_lock:
                while len(self._streams) < self._count:
                    self._streams.append(device.create_stream(priority=self._priority))
        return streams

    def renew(self) -> list[Stream]:
        """The streams, with others in the places of those that somebody closed."""
        streams = self.streams
        device = streams[0].device
        with device._pool_lock:
            for i, stream in enumerate(streams):
                if stream._closed:
                    streams[i] = device.create_stream(priority=self._priority)
        return streams


class StreamPoolRoundRobin:
    """`count` streams in turn: the default, with 4 streams, of every device."""

    def __init__(self, count: int = 4, *, device: Device | None = None, priority: int = 0) -> None:
        self._pool = _Pool(device, count, priority)
        self._turn = itertools.count()

    @property
    def is_ready(self) -> bool:
        """False when `next_stream()` would be slow, because it opens the device."""
        return self._pool.is_ready

    def next_stream(self) -> Stream:
        """The next stream in turn."""
        streams = self._pool.streams
        turn = next(self._turn) % len(streams)
        stream = streams[turn]
        return stream if not stream._closed else self._pool.renew()[turn]


class SingleStream:
    """Everything on one stream, in order."""

    def __init__(self, stream: Stream | None = None, *, device: Device | None = None) -> None:
        if stream is not None and not isinstance(stream, Stream):
            raise TypeError(f"SingleStream takes a Stream, got {stream!r}; device.create_stream() makes one")
        self._stream = stream
        self._pool = None if stream is not None else _Pool(device, 1)

    @property
    def is_ready(self) -> bool:
        """False when `next_stream()` would be slow, because it opens the device."""
        return self._pool is None or self._pool.is_ready

    def next_stream(self) -> Stream:
        """Always the same stream."""
        if self._pool is None:
            assert self._stream is not None
            return self._stream
        stream = self._pool.streams[0]
        return stream if not stream._closed else self._pool.renew()[0]


class LeastLoaded:
    """The stream with the fewest submissions that are not done; ties go to the one used longest ago."""

    def __init__(self, count: int = 4, *, device: Device | None = None) -> None:
        self._pool = _Pool(device, count)
        self._turn = itertools.count()
        self._last_used: dict[Stream, int] = {}

    @property
    def is_ready(self) -> bool:
        """False when `next_stream()` would be slow, because it opens the device."""
        return self._pool.is_ready

    def next_stream(self) -> Stream:
        """The least loaded stream, by what is known now."""
        streams = self._pool.streams
        if any(stream._closed for stream in streams):
            streams = self._pool.renew()
            self._last_used = {s: turn for s, turn in list(self._last_used.items()) if not s._closed}
        for stream in streams:
            stream._refresh()
        chosen = min(streams, key=lambda s: (len(s._pending) + s._dirty, self._last_used.get(s, -1)))
        self._last_used[chosen] = next(self._turn)
        return chosen


class PriorityStreams:
    """Streams of a high and a normal priority; `high()` and `normal()` are policies for `.schedule()`.

    Used itself as a policy it takes the normal ones.
    """

    def __init__(self, count: int = 2, *, device: Device | None = None) -> None:
        self._device = device
        self._count = count
        self._normal = StreamPoolRoundRobin(count, device=device)
        self._high: StreamPoolRoundRobin | None = None

    def normal(self) -> SchedulingPolicy:
        """The policy that uses streams of normal priority."""
        return self._normal

    def high(self) -> SchedulingPolicy:
        """The policy that uses streams of the greatest priority the device has."""
        high = self._high
        if high is None:
            device = self._device or current_device()
            greatest = device.limits.stream_priorities[1]
            with device._pool_lock:
                high = self._high
                if high is None:
                    high = self._high = StreamPoolRoundRobin(self._count, device=device, priority=greatest)
        return high

    @property
    def is_ready(self) -> bool:
        """False when `next_stream()` would be slow, because it opens the device."""
        return self._normal.is_ready

    def next_stream(self) -> Stream:
        """A stream of normal priority."""
        return self._normal.next_stream()
