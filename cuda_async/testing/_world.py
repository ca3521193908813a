"""A process in small: one seeded device that is the only and default one, for one run of a program."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ..driver._inline import set_runner
from ..driver.host import HostDriver, SeededEngine
from ..scheduling import Device, running_library, use_device
from ..scheduling import _device as devices
from ._loop import ExploringLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..driver.host import DrawnOrder

__all__ = ["run_program"]


# Any: a program may return what it likes, or a coroutine of it.
def run_program(
    program: Callable[[Device], Any], order: DrawnOrder, memory_bytes: int, check: bool = False
) -> None:
    """Run `program(device)` once, on a new device and, if it is a coroutine function, a new loop, as `order` decides.

    Then the device finishes what is left. Raises what the program raised, what reached the loop's exception handler, or
    a failure of the device that nobody was told of; RuntimeError where an event loop runs already; TypeError where the
    program returned what only runs once somebody iterates or awaits it.
    """
    if running_library() is not None:
        raise RuntimeError("programs are explored on a loop of their own: call this outside of event loops")
    engine = SeededEngine(order, alone=True)
    driver = HostDriver(
        engine=engine, memory_bytes=memory_bytes, poison=True, check="raise" if check else None
    )
    order.begin(driver)
    device = Device._make("host", 0, driver)
    try:
        with _only(device, engine), use_device(device):
            try:
                started = program(device)
                if isinstance(started, Coroutine):
                    loop = ExploringLoop(engine)  # type: ignore[abstract]  # it is as much of a loop as is needed
                    loop.run(started)
                    loop.raise_problem()
                elif (
                    inspect.isgenerator(started)
                    or inspect.isasyncgen(started)
                    or inspect.isawaitable(started)
                ):
                    raise TypeError(
                        "a program that is explored is a function or coroutine function of the device, and "
                        f"{getattr(program, '__qualname__', program)} returned a value of type "
                        f"{type(started).__name__!r}, which nobody runs: write `async def`, and "
                        "await there what is to run"
                    )
                del started
            except BaseException:
                with contextlib.suppress(Exception):  # the first error counts
                    engine.finish()
                raise
            engine.finish()
            if device.is_healthy:
                device.synchronize()
    finally:
        device._close("the run is over")


@contextlib.contextmanager
def _only(device: Device, engine: SeededEngine) -> Iterator[None]:
    """`device` is the process's only one, and its engine runs what worker threads do."""
    before, default = dict(devices._registry), devices._default
    runner = set_runner(engine)
    devices._registry.clear()
    devices._registry[str(device)] = devices._default = device
    try:
        yield
    finally:
        devices._registry.clear()
        devices._registry.update(before)
        devices._default = default
        set_runner(runner)
