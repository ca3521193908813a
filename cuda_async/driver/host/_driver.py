"""`HostDriver`: the `Driver` protocol on a simulated device.

Calls check their arguments and put entries into queues; everything that happens later is in `_work.py`, and when it
happens is the engine's. All host devices of a process share one engine thread, except stepped ones, which have an
engine that only moves when told (`_stepped.py`), and seeded ones, which have none (`_seeded.py`).

Streams, events, modules and functions are numbers to the layers above. Numbers are never reused in a process, so a
stale handle is an error and not somebody else's stream. An event of one host device may be waited for on another.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from typing import TYPE_CHECKING, NoReturn

from ...errors import (
    ClosedError,
    CompileError,
    CudaAsyncError,
    DeviceLostError,
    DriverError,
    OutOfMemoryError,
)
from .._protocol import EventHandle, FunctionHandle, HostLaunch, ModuleHandle, StreamHandle
from .._switches import poison_freed
from ..graph import GraphHandle, KernelNode, Node
from ._codes import driver_error, unknown_handle
from ._convert import can_convert
from ._engine import Engine
from ._entries import Entry, EventRecord, HandOnEntry, WaitEntry
from ._fork import Level, fork_safe_lock
from ._graph import HostGraph
from ._limits import LIMITS, check_launch, device_properties
from ._memory import HostMemory, pinned_allocate, pinned_release
from ._modules import Function, Module, load_image
from ._order import SteppedOrder
from ._pool import FreeTicket, Pool, UnknownAddressError
from ._seeded import process_engine
from ._settings import host_check
from ._stepped import SteppedControls
from ._work import (
    AllocateEntry,
    ConvertEntry,
    CopyEntry,
    FillEntry,
    FreeEntry,
    LaunchEntry,
    StridedCopyEntry,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from .._arguments import ArgumentBlock
    from .._protocol import Driver, FunctionInfo, HostImage, PoolStatistics
    from ._queue import Queue
    from .check import Checker, CheckReport

__all__ = ["HostDriver"]

_numbers = itertools.count(1)


class _Event:
    """What an event handle stands for."""

    __slots__ = ("__weakref__", "record", "timing")

    def __init__(self, timing: bool) -> None:
        self.timing = timing
        self.record: EventRecord | None = None


IDLE_S = 5.0
"""So long the thread of a device's own engine stays without work: a device that was dropped shall go."""
_events: weakref.WeakValueDictionary[EventHandle, _Event] = weakref.WeakValueDictionary()
"""Events of all devices: streams may wait for those of another."""


def _ask_for_stack(frames: int = 24) -> None:
    """Raises a `RecursionError` now, where one would come in the midst of a change of the pool's books."""
    if frames:
        _ask_for_stack(frames - 1)


class HostDriver(SteppedControls):
    """One simulated device. Use `open_host_driver` for the process's own devices.

    Args:
        ordinal: its number.
        stepped: a private device for tests that advances only when told; see `SteppedControls`.
        memory_bytes: its memory; by default what the environment says.
        engine: what advances its streams, for devices that share one of their own; by default the process's.
        poison: whether freed memory is filled with 0xDD; by default what the environment says.
        check: whether to look for races and misuse of memory (`check/`): `"raise"` fails what has them, `"collect"`
            only collects them, `""` does not look; by default what the environment says. A device that differs from
            the process's in this has an engine of its own.
    Attributes:
        memory: the device's address space. Memory of other owners (NumPy arrays) becomes accessible to kernels with
            `memory.add_foreign`.
        pool: the stream-ordered pool.
        engine: what advances the queues.
    """

    kind = "host"
    notifies = True
    hands_failures_on = True

    def __init__(
        self,
        ordinal: int = 0,
        *,
        stepped: bool = False,
        memory_bytes: int | None = None,
        engine: Engine | None = None,
        poison: bool | None = None,
        check: str | None = None,
    ) -> None:
        self.ordinal = ordinal
        if memory_bytes is not None:
            if isinstance(memory_bytes, bool) or not isinstance(memory_bytes, int):
                raise TypeError(f"a device's memory is a number of bytes, got {memory_bytes!r}")
            if memory_bytes < 1:
                raise ValueError(f"a device has at least 1 byte of memory, got {memory_bytes}")
        self.memory = HostMemory(memory_bytes)
        self.properties = device_properties(ordinal, self.memory.size_bytes)
        self.pool = Pool(self.memory, f"host:{ordinal}")
        wanted = host_check()
        self._check_mode = wanted if check is None else check
        self._has_engine = engine is None and not stepped and bool(self._check_mode) != bool(wanted)
        if self._has_engine:
            engine = Engine(idle_s=IDLE_S)
        self.engine = engine or (Engine(SteppedOrder(), threaded=False) if stepped else process_engine())
        self.checker: Checker | None = None
        if self._check_mode:
            from .check import process_checker

            self.checker = self.engine.checker = self.memory.checker = process_checker()
            self.memory.program_knows_all = stepped
        self._order_lock = fork_safe_lock(Level.REGISTRY)
        self._streams: dict[StreamHandle, Queue] = {}
        self._events: dict[EventHandle, _Event] = {}
        self._modules: dict[ModuleHandle, Module] = {}
        self._functions: dict[FunctionHandle, Function] = {}
        self._graphs: dict[GraphHandle, HostGraph] = {}
        self._pinned: dict[int, int] = {}
        self._poison = poison_freed() if poison is None else poison
        self._refusal: Callable[[], CudaAsyncError] | None = None
        SteppedControls.__init__(self, stepped)

    def __repr__(self) -> str:
        return f"<HostDriver {self.ordinal}{' stepped' if self.is_stepped else ''}>"

    def bind(self) -> None:
        """Nothing to do."""

    def synchronize(self) -> None:
        self._check()
        first: CudaAsyncError | None = None
        for queue in self.engine.queues_of(self):
            try:
                self.engine.wait_queue(queue)
            except CudaAsyncError as error:
                first = first or error
        self.pool.synchronized()
        if first is not None:
            raise first

    @property
    def check_raises(self) -> bool:
        """Whether work fails for what the checker finds in it."""
        return self._check_mode == "raise"

    def leaks(self) -> list[CheckReport]:
        """What of the pool is still allocated, on a device that checks; also noted among the findings."""
        if self.checker is None:
            return []
        blocks = [self.memory.block_of(address) for address in self.pool.given_out()]
        return self.checker.leaked(f"host:{self.ordinal}", [block for block in blocks if block is not None])

    @property
    def is_closed(self) -> bool:
        """True after `close()`."""
        return self._refusal is _closed

    def close(self) -> None:
        """Drop all work, unload all modules and refuse everything from now on.

        Pinned memory stays until it is freed: arrays made on it may outlive the device.
        """
        self._refuse(_closed)
        self.memory.checker = None  # what goes now goes with the device
        with contextlib.suppress(Exception):
            for module in list(self._modules.values()):
                module.unload()
        self.memory.retire()
        if self.checker is not None:
            for queue in self._streams.values():
                self.checker.released(queue, is_over=True)
            self.checker.retired(self.memory.base, self.memory.base + self.memory.size_bytes)
        for table in (self._streams, self._events, self._modules, self._functions, self._graphs):
            table.clear()
        if self._has_engine:
            self.engine.close()

    def fail_device(self, error: Exception) -> None:
        """The device is lost, as a CUDA device is after a fault.

        Pending work is dropped; every later call, and everybody who waits, gets a `DeviceLostError` with `error` as
        its cause and the names of the kernels that were in flight.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"a device is lost by an error, got {error!r}")
        kernels = self.engine.kernels_of(self)

        def lost() -> CudaAsyncError:
            running = f" while running {', '.join(kernels)}" if kernels else ""
            problem = DeviceLostError(f"host:{self.ordinal} is lost{running}: {error}", kernels)._said_by(
                self
            )
            problem.__cause__ = error
            return problem

        self._refuse(lost)

    def _refuse(self, refusal: Callable[[], CudaAsyncError]) -> None:
        self._refusal = refusal
        self.engine.stop(self, refusal)

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal()

    # ---------------------------------------------------------------------------- streams

    def stream_create(self, priority: int = 0) -> StreamHandle:
        self._check()
        least, greatest = LIMITS.stream_priorities
        handle = StreamHandle(next(_numbers))
        self._streams[handle] = self.engine.add_queue(self, min(max(priority, greatest), least))
        return handle

    def stream_destroy(self, stream: StreamHandle) -> None:
        """Work in the stream still runs."""
        queue = self._queue(stream, "cuStreamDestroy")
        del self._streams[stream]
        self.engine.remove_queue(queue)
        if self.checker is not None:
            self.checker.released(queue)

    def stream_synchronize(self, stream: StreamHandle) -> None:
        queue = self._queue(stream, "cuStreamSynchronize")
        try:
            self.engine.wait_queue(queue)
        finally:
            self.pool.synchronized()

    def stream_query(self, stream: StreamHandle) -> bool:
        queue = self._queue(stream, "cuStreamQuery")
        self.engine.look(queue)
        if queue.entries:
            return False
        if self.checker is not None:
            self.checker.observed_queue(queue)
        self.engine.raise_failure(queue)
        return True

    def stream_wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        record = self._event(event, "cuStreamWaitEvent").record
        if record is not None:
            self._enqueue(stream, WaitEntry(record), "cuStreamWaitEvent")

    def stream_hand_on(self, stream: StreamHandle, event: EventHandle) -> None:
        record = self._event(event, "cuStreamWaitEvent").record
        if record is not None:
            self._enqueue(stream, HandOnEntry(record), "cuStreamWaitEvent")

    def _queue(self, stream: StreamHandle, call: str) -> Queue:
        queue = self._streams.get(stream)
        if queue is None or self._refusal is not None:
            self._check()
            raise unknown_handle(call, "stream", stream)
        return queue

    def _enqueue(self, stream: StreamHandle, entry: Entry, call: str) -> None:
        self.engine.enqueue(self._queue(stream, call), entry)

    # ---------------------------------------------------------------------------- events

    def event_create(self, *, timing: bool = False, interrupts: bool = False) -> EventHandle:
        self._check()
        handle = EventHandle(next(_numbers))
        _events[handle] = self._events[handle] = _Event(timing)
        return handle

    def event_destroy(self, event: EventHandle) -> None:
        self._event(event, "cuEventDestroy")
        self._events.pop(event, None)

    def event_record(self, event: EventHandle, stream: StreamHandle) -> None:
        found = self._event(event, "cuEventRecord")
        record = EventRecord()
        self._enqueue(stream, record, "cuEventRecord")
        found.record = record

    def event_query(self, event: EventHandle) -> bool:
        record = self._event(event, "cuEventQuery").record
        if record is None:
            return True
        self.engine.look(record)
        if not record.done:  # not asked again: another thread may complete it now
            return False
        if self.checker is not None:
            self.checker.observed(record)
        return _is_done(record)

    def event_synchronize(self, event: EventHandle) -> None:
        record = self._event(event, "cuEventSynchronize").record
        if record is not None:
            self.engine.wait_record(record)
            self.pool.synchronized()

    def forget_interrupts(self) -> None:
        """Nothing here interrupts."""

    def event_notify(self, event: EventHandle, callback: Callable[[], object]) -> bool:
        record = self._event(event, "cuEventQuery").record
        return record is not None and self.engine.notify(record, callback)

    def check_may_wait(self) -> None:
        """Raise `ReentrancyError` on a thread that is running a step."""
        self.engine.check_not_in_step()

    def event_elapsed_ms(self, start: EventHandle, end: EventHandle) -> float:
        times = []
        for what, handle in (("start", start), ("end", end)):
            event = self._event(handle, "cuEventElapsedTime")
            if not event.timing or event.record is None:
                hint = "was created without timing" if not event.timing else "was never recorded"
                raise driver_error(
                    "cuEventElapsedTime", "CUDA_ERROR_INVALID_HANDLE", f"the {what} event {hint}"
                )
            if not _is_done(event.record):
                hint = f"the {what} event is not done; synchronize with it first"
                raise driver_error("cuEventElapsedTime", "CUDA_ERROR_NOT_READY", hint)
            times.append(event.record.time_s)
        return (times[1] - times[0]) * 1e3

    def _event(self, event: EventHandle, call: str) -> _Event:
        found = self._events.get(event)
        if found is None or self._refusal is not None:
            self._check()
            found = _events.get(event)
            if found is None:
                raise unknown_handle(call, "event", event)
        return found

    # ---------------------------------------------------------------------------- memory

    def memory_alloc_async(self, size_bytes: int, stream: StreamHandle) -> int:
        _ask_for_stack()
        queue = self._queue(stream, "cuMemAllocAsync")
        if size_bytes <= 0:
            raise driver_error("cuMemAllocAsync", "CUDA_ERROR_INVALID_VALUE", f"{size_bytes} bytes asked for")
        self.engine.look(self.pool)
        with self._order_lock:  # the pool's books and the queue must have one order
            grant = self.pool.allocate(size_bytes, queue)
            try:
                if grant.wait_for is not None:
                    self.engine.enqueue(queue, WaitEntry(grant.wait_for.passed))
                self.engine.enqueue(queue, AllocateEntry(self.memory, grant.address, size_bytes))
            except CudaAsyncError:
                raise
            except BaseException:  # an interrupt: nobody will hear of this address
                self.memory_free_async(grant.address, stream)
                raise
        return grant.address

    def memory_free_async(self, address: int, stream: StreamHandle) -> None:
        _ask_for_stack()
        queue = self._queue(stream, "cuMemFreeAsync")
        passed = EventRecord()
        with self._order_lock:
            try:
                ticket = self.pool.free(address, queue, passed)
                self._enqueue_free(queue, address, ticket)
            except UnknownAddressError as error:
                raise driver_error("cuMemFreeAsync", "CUDA_ERROR_INVALID_VALUE", str(error)) from None
            except CudaAsyncError:
                raise
            except BaseException:  # an interrupt
                freed = self.pool.ticket_of(passed)
                if freed is not None and not any(entry.completes is passed for entry in list(queue.entries)):
                    self._enqueue_free(queue, address, freed)
                raise

    def _enqueue_free(self, queue: Queue, address: int, ticket: FreeTicket) -> None:
        freed = self.freed if self.is_stepped else None
        self.engine.enqueue(
            queue, FreeEntry(self.memory, self.pool, address, ticket, freed, poison=self._poison)
        )

    def pool_trim(self, keep_bytes: int = 0) -> None:
        self._check()
        self.pool.trim(keep_bytes)

    def pool_set_release_threshold(self, size_bytes: int) -> None:
        self._check()
        self.pool.release_threshold_bytes = size_bytes

    def pool_statistics(self) -> PoolStatistics:
        self._check()
        return self.pool.statistics()

    def pinned_alloc(self, size_bytes: int) -> int:
        self._check()
        if size_bytes <= 0:
            raise driver_error("cuMemHostAlloc", "CUDA_ERROR_INVALID_VALUE", f"{size_bytes} bytes asked for")
        try:
            address = pinned_allocate(size_bytes)
        except (OSError, MemoryError, OverflowError) as error:
            used = sum(self._pinned.values())
            raise OutOfMemoryError(
                f"the system has no {size_bytes} bytes of memory for the host: {error}",
                size_bytes,
                used,
                used,
            ) from error
        self._pinned[address] = size_bytes
        return address

    def pinned_ranges(self) -> list[tuple[int, int]]:
        """(address, size) of the pinned memory that is there, in the order in which it was allocated."""
        return list(self._pinned.items())

    def pinned_free(self, address: int) -> None:
        """On a closed or lost device too."""
        try:
            pinned_release(address)
        except ValueError as error:
            raise driver_error("cuMemFreeHost", "CUDA_ERROR_INVALID_VALUE", str(error)) from None
        self._pinned.pop(address, None)

    def copy_host_to_device_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        self._copy(dst, src, size_bytes, stream, "cuMemcpyHtoDAsync")

    def copy_device_to_host_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        self._copy(dst, src, size_bytes, stream, "cuMemcpyDtoHAsync")

    def copy_device_to_device_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        self._copy(dst, src, size_bytes, stream, "cuMemcpyDtoDAsync")

    def _copy(self, dst: int, src: int, size_bytes: int, stream: StreamHandle, call: str) -> None:
        if size_bytes < 0:
            raise driver_error(call, "CUDA_ERROR_INVALID_VALUE", f"{size_bytes} bytes")
        if size_bytes:
            self._enqueue(stream, CopyEntry(self.memory, dst, src, size_bytes), call)

    def copy_strided_async(
        self,
        dst: int,
        dst_strides_bytes: Sequence[int],
        src: int,
        src_strides_bytes: Sequence[int],
        shape: Sequence[int],
        itemsize: int,
        stream: StreamHandle,
    ) -> None:
        call, bad = "cuMemcpyStrided", "CUDA_ERROR_INVALID_VALUE"
        if not len(dst_strides_bytes) == len(src_strides_bytes) == len(shape):
            counts = f"{len(dst_strides_bytes)} and {len(src_strides_bytes)} strides for {len(shape)} axes"
            raise driver_error(call, bad, counts)
        if itemsize <= 0 or any(n < 0 for n in shape):
            raise driver_error(call, bad, f"shape {tuple(shape)} of {itemsize}-byte elements")
        if all(shape):
            if any(n > 1 and not stride for n, stride in zip(shape, dst_strides_bytes)):
                raise driver_error(call, bad, "a stride of 0 in the destination: its elements would overlap")
            entry = StridedCopyEntry(
                self.memory, dst, dst_strides_bytes, src, src_strides_bytes, shape, itemsize
            )
            self._enqueue(stream, entry, call)

    def fill_async(self, dst: int, pattern: bytes, count: int, stream: StreamHandle) -> None:
        call, bad = "cuMemsetAsync", "CUDA_ERROR_INVALID_VALUE"
        if len(pattern) not in (1, 2, 4, 8):
            raise driver_error(call, bad, f"a pattern of {len(pattern)} bytes; give 1, 2, 4 or 8")
        if dst % len(pattern) or count < 0:
            raise driver_error(call, bad, f"{count} times {len(pattern)} bytes at {dst:#x}")
        if count:
            self._enqueue(stream, FillEntry(self.memory, dst, pattern, count), call)

    def convert_async(
        self,
        dst: int,
        dst_dtype: np.dtype[np.generic],
        src: int,
        src_dtype: np.dtype[np.generic],
        count: int,
        stream: StreamHandle,
    ) -> None:
        """Float to int: what does not fit is clamped, NaN gives 0."""
        _check_conversion(dst_dtype, src_dtype)
        if count < 0:
            raise driver_error("convert", "CUDA_ERROR_INVALID_VALUE", f"{count} elements")
        if count:
            entry = ConvertEntry(self.memory, dst, dst_dtype, src, src_dtype, count)
            self._enqueue(stream, entry, "convert")

    def convert_prepare(self, dst_dtype: np.dtype[np.generic], src_dtype: np.dtype[np.generic]) -> None:
        """Nothing to compile; only checks the types."""
        _check_conversion(dst_dtype, src_dtype)

    # ---------------------------------------------------------------------------- modules

    def module_load(self, image: bytes | HostImage, name: str = "") -> ModuleHandle:
        self._check()
        module = load_image(image, name, self.memory)
        handle = ModuleHandle(next(_numbers))
        self._modules[handle] = module
        return handle

    def module_unload(self, module: ModuleHandle) -> None:
        """The module's memory is gone at once, for kernels under way too."""
        found = self._module(module, "cuModuleUnload")
        del self._modules[module]
        for handle in found.handles.values():
            self._functions.pop(handle, None)
        found.unload()

    def module_function_names(self, module: ModuleHandle) -> list[str]:
        return list(self._module(module, "cuModuleEnumerateFunctions").functions)

    def module_function(self, module: ModuleHandle, name: str) -> FunctionHandle:
        found = self._module(module, "cuModuleGetFunction")
        handle = found.handles.get(name)
        if handle is None:
            if name not in found.functions:
                raise LookupError(f"there is no kernel {name!r} in {found.name}")
            function = Function(found.functions[name])
            with contextlib.suppress(CompileError):  # told when it is launched
                function.prepare()
            handle = FunctionHandle(next(_numbers))
            self._functions[handle] = function  # first: whoever sees the handle may use it
            first = found.handles.setdefault(name, handle)
            if first != handle:
                del self._functions[handle]
            return first
        return handle

    def module_global(self, module: ModuleHandle, name: str) -> tuple[int, int]:
        found = self._module(module, "cuModuleGetGlobal")
        if name not in found.globals:
            raise LookupError(f"there is no global variable {name!r} in {found.name}")
        return found.globals[name]

    def function_info(self, function: FunctionHandle) -> FunctionInfo:
        return self._function(function, "cuFuncGetAttribute").info

    def function_allow_shared_bytes(self, function: FunctionHandle, size_bytes: int) -> None:
        found = self._function(function, "cuFuncSetAttribute")
        most = max(0, LIMITS.max_shared_bytes_per_block_optin - found.info.static_shared_bytes)
        if not 0 <= size_bytes <= most:
            hint = f"{size_bytes} bytes of dynamic shared memory for {found.info.name}; it can have {most}"
            raise driver_error("cuFuncSetAttribute", "CUDA_ERROR_INVALID_VALUE", hint)
        found.shared_bytes = max(found.shared_bytes, size_bytes + found.info.static_shared_bytes)

    def launch(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        arguments: ArgumentBlock,
    ) -> None:
        self._launch(function, grid, block, shared_bytes, stream, arguments, None, False)

    def bind_launch(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        arguments: ArgumentBlock,
    ) -> Callable[[], Exception | int]:
        def enqueue() -> Exception | int:
            try:
                self.launch(function, grid, block, shared_bytes, stream, arguments)
            except CudaAsyncError as error:  # behind an interrupt, it may be enqueued
                return error
            return 0

        return enqueue

    def launch_failed(self, result: object) -> NoReturn:
        assert isinstance(result, Exception)
        raise result

    def launch_with_attributes(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        arguments: ArgumentBlock,
        *,
        cluster: tuple[int, int, int] | None,
        cooperative: bool,
        programmatic: bool = False,  # streams of this device begin nothing early
    ) -> None:
        self._launch(function, grid, block, shared_bytes, stream, arguments, cluster, cooperative)

    def _launch(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        arguments: ArgumentBlock,
        cluster: tuple[int, int, int] | None,
        cooperative: bool,
    ) -> None:
        entry = self._launch_entry(function, grid, block, shared_bytes, arguments, cluster, cooperative)
        self._enqueue(stream, entry, "cuLaunchKernel")

    def _launch_entry(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: ArgumentBlock,
        cluster: tuple[int, int, int] | None,
        cooperative: bool,
    ) -> LaunchEntry:
        """A checked launch."""
        found = self._function(function, "cuLaunchKernel")
        found.prepare()
        check_launch(
            found.info,
            grid,
            block,
            shared_bytes,
            found.shared_bytes,
            cluster=cluster,
            cooperative=cooperative,
        )
        launch = HostLaunch(
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
            arguments=bytes(arguments),
            memory=self.memory,
            cluster=cluster,
            cooperative=cooperative,
            pick=self.engine.block_picker(),
        )
        entry = LaunchEntry(found.function, launch)
        declared = arguments.declared
        if self.checker is not None and declared is not None and declared.arguments == launch.arguments:
            entry.declared = declared
        return entry

    def _module(self, module: ModuleHandle, call: str) -> Module:
        self._check()
        found = self._modules.get(module)
        if found is None:
            raise unknown_handle(call, "module", module)
        return found

    def _function(self, function: FunctionHandle, call: str) -> Function:
        found = self._functions.get(function)
        if found is None or self._refusal is not None:
            self._check()
            raise unknown_handle(call, "function", function)
        return found

    # ---------------------------------------------------------------------------- graphs

    def graph_create(self, nodes: Sequence[Node]) -> GraphHandle:
        self._check()
        handle = GraphHandle(next(_numbers))
        self._graphs[handle] = HostGraph(nodes, self.memory, self._node_entry)
        return handle

    def graph_update(self, graph: GraphHandle, node: Node) -> bool:
        found = self._graph(graph, "cuGraphExecNodeSetParams")
        try:
            found.update(node)
        except DriverError:  # as with the CUDA driver: it comes out as the graph is made anew
            return False
        return True

    def graph_launch(self, graph: GraphHandle, stream: StreamHandle) -> None:
        self._enqueue(stream, self._graph(graph, "cuGraphLaunch").entry(), "cuGraphLaunch")

    def graph_destroy(self, graph: GraphHandle) -> None:
        self._graph(graph, "cuGraphExecDestroy")
        del self._graphs[graph]

    def _node_entry(self, node: KernelNode) -> LaunchEntry:
        return self._launch_entry(
            node.function,
            node.grid,
            node.block,
            node.shared_bytes,
            node.arguments,
            node.cluster,
            node.cooperative,
        )

    def _graph(self, graph: GraphHandle, call: str) -> HostGraph:
        found = self._graphs.get(graph)
        if found is None or self._refusal is not None:
            self._check()
            raise unknown_handle(call, "graph", graph)
        return found


def _is_done(record: EventRecord) -> bool:
    if not record.done:
        return False
    if record.failure is not None:
        raise record.failure.tell()
    return True


def _check_conversion(dst_dtype: np.dtype[np.generic], src_dtype: np.dtype[np.generic]) -> None:
    if not (can_convert(dst_dtype) and can_convert(src_dtype)):
        hint = f"{src_dtype} to {dst_dtype}; there are bool, integers, floats, bfloat16 and 8-bit floats"
        raise driver_error("convert", "CUDA_ERROR_INVALID_VALUE", hint)


def _closed() -> CudaAsyncError:
    return ClosedError("the host device is closed; open it again with open_host_driver()")


if TYPE_CHECKING:

    def _is_a_driver(driver: HostDriver) -> Driver:
        return driver
