"""Running one configuration: made, verified, looked at, measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from cuda_async import Device, DeviceOp, SingleStream, use_device
from cuda_async.errors import DeviceLostError, SchedulingError
from cuda_async.scheduling import running_library

from ..bench import Comparison, MeasureOptions, compare, measure
from ._space import Config
from ._trial import Status

__all__ = ["Here", "Make", "Outcome", "Runner", "Verify"]

# Any: what operations yield is the caller's
Make = Callable[[Config], Callable[[], DeviceOp[Any]]]
Verify = Callable[[Any], object]

_MAX_ERROR = 2000
_LOOK = MeasureOptions(warm_up_ms=0, measure_ms=0, min_runs=3, max_runs=3)


class Outcome(NamedTuple):
    """What became of a configuration."""

    status: Status
    ms: float | None = None
    error: str = ""


class Runner(Protocol):
    """Runs configurations; used in a `with` block."""

    def run(self, config: Config, slow_ms: float | None) -> Outcome:
        """Verify and measure; in full unless a short look takes more than `slow_ms`."""
        ...

    def compare(self, first: Config, second: Config) -> Comparison | Outcome:
        """Both in turns; an outcome where that did not work."""
        ...

    def __enter__(self) -> Runner: ...

    def __exit__(self, *error: object) -> None: ...


class Here:
    """Runs them in this process."""

    def __init__(
        self, make: Make, verify: Verify | None, device: Device, options: MeasureOptions | None
    ) -> None:
        library = running_library()
        if library is not None:
            raise SchedulingError(
                f"a search blocks, and this is the thread of a running {library} loop; use a worker thread: "
                "await asyncio.to_thread(tk.tune.search, ...)"
            )
        self._make = make
        self._verify = verify
        self._device = device
        self._options = options or MeasureOptions()

    def __enter__(self) -> Here:
        self._stream = self._device.create_stream(name="tune")
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def run(self, config: Config, slow_ms: float | None) -> Outcome:
        with use_device(self._device):
            try:
                make = self._make(dict(config))
                if not callable(make):
                    raise TypeError(f"make(config) gives a function that makes the operation, got {make!r}")
                operation = make()
                if not isinstance(operation, DeviceOp):
                    raise TypeError(f"what make(config) gives makes an operation, got {operation!r}")
                value = operation.schedule(SingleStream(self._stream)).sync()
            except DeviceLostError:
                raise  # nothing can run any more: no fault of the next configurations
            except Exception as error:
                return Outcome("invalid", None, _text(error))
            if self._verify is not None:
                try:
                    is_right = self._verify(value)
                except Exception as error:
                    return Outcome("wrong", None, _text(error))
                if is_right is not None and not is_right:
                    return Outcome("wrong", None, "verify said so")
            del value
            try:
                return self._measured(make, slow_ms)
            except DeviceLostError:
                raise
            except Exception as error:
                return Outcome("invalid", None, _text(error))

    def _measured(self, make: Callable[[], DeviceOp[Any]], slow_ms: float | None) -> Outcome:
        if slow_ms is not None:
            look = replace(_LOOK, flush_cache=self._options.flush_cache)
            seen_ms = measure(make, device=self._device, options=look).median_ms
            if seen_ms > slow_ms:
                return Outcome("slow", seen_ms)
        return Outcome("ok", measure(make, device=self._device, options=self._options).median_ms)

    def compare(self, first: Config, second: Config) -> Comparison | Outcome:
        with use_device(self._device):
            try:
                makes = self._make(dict(first)), self._make(dict(second))
                return compare(*makes, device=self._device, options=self._options)
            except DeviceLostError:
                raise
            except Exception as error:
                return Outcome("invalid", None, _text(error))


def _text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _MAX_ERROR else f"{text[:_MAX_ERROR]}..."
