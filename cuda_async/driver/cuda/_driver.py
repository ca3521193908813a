"""The CUDA driver of one device: streams, events and launches on top of memory and modules.

Streams are never destroyed. Destroying one while another thread is inside any driver call has crashed
libcuda (CUDA 12 and 13), and a lock around every launch would cost more than a stream is worth; so a closed
stream is kept and given to the next who asks, once it is idle.

The primary context is retained and never released: other libraries of the process share it, threads may
still be inside a call when the interpreter ends, and the process's end frees everything anyway.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import time
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ...errors import ClosedError, CompileError, ContextError
from ...native import native
from .._protocol import EventHandle, FunctionHandle, StreamHandle
from ._bindings import FORKED, find_driver
from ._calls import entry_point, pointer
from ._errors import NOT_READY
from ._graphs import GraphCalls
from ._properties import PORTABLE_CLUSTER_BLOCKS, read_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._arguments import ArgumentBlock

__all__ = ["CudaDriver", "borrow_context", "open_cuda_driver"]

STREAM_NON_BLOCKING = 1
EVENT_BLOCKING_SYNC = 1
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 50e-6, 250e-6
"""Between two looks at an event that does not interrupt: a tenth of what was waited, within these bounds."""
EVENT_DISABLE_TIMING = 2
MAX_CACHED_CONFIGS = 256
CAPTURE_IMPLICIT = 906


class CudaDriver(GraphCalls):
    """One CUDA device, as `driver.Driver`. Made by `open_cuda_driver` and `borrow_context`."""

    def __init__(self, api: Any, ordinal: int, context: Any, device: Any) -> None:
        """
        Args:
            api: the module `cuda.bindings.driver`.
            ordinal: the device's number.
            context: the `CUcontext` to work in; it stays the caller's.
            device: the `CUdevice`.
        """
        super().__init__(api, ordinal, context, device)
        self.properties = read_properties(api, self._call, device)
        self._cuLaunchKernel = api.cuLaunchKernel
        self._cuLaunchKernelEx = api.cuLaunchKernelEx
        self._launch_by_pointers = entry_point(api, "cuLaunchKernelEx")
        self._cuStreamWaitEvent = entry_point(api, "cuStreamWaitEvent")
        self._cuEventRecord = entry_point(api, "cuEventRecord")
        self._cuEventQuery = entry_point(api, "cuEventQuery")
        self._stream_lock = threading.Lock()
        self._stream_priority: dict[int, int] = {}
        self._closed_streams: defaultdict[int, list[Any]] = defaultdict(list)
        self._borrowed_streams: dict[int, int] = {}
        self._configs: dict[object, Any] = {}
        self._large_clusters: set[int] = set()
        self._is_closed = False

    # -- the device

    def synchronize(self) -> None:
        """Wait until all streams of the context are empty."""
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        """Give cached memory back and refuse every later call. Never raises, and never waits for kernels.

        The pool stays: another thread may be inside of a call that uses it.
        """
        with _registry_lock:
            if _registry.get(self.ordinal) is self:
                del _registry[self.ordinal]
        if not self.is_usable:
            return
        with contextlib.suppress(Exception):  # at interpreter exit anything may be gone already
            self.pool_trim(0)
            self._destroy_uploaded()
        self._is_closed = True
        self._become_unusable(
            lambda: ClosedError(f"the driver of {self.label} is closed; open the device again")
        )

    # -- streams

    def stream_create(self, priority: int = 0) -> StreamHandle:
        """A stream that does not wait for the default stream; priorities outside the range are clamped."""
        least, greatest = self.properties.limits.stream_priorities
        priority = max(greatest, min(least, priority))
        stream = self._reuse_stream(priority)
        if stream is None:
            stream = self._call("cuStreamCreateWithPriority", STREAM_NON_BLOCKING, priority)
        handle = StreamHandle(int(stream))
        self._stream_priority[handle] = priority
        self._streams[handle] = stream
        return handle

    def _reuse_stream(self, priority: int) -> Any:
        """A closed stream that is idle and not left inside a capture; None where there is none."""
        idle = self._api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        with self._stream_lock:
            closed = self._closed_streams[priority]
            for i, stream in enumerate(closed):
                if self._is_done(stream) and self._call("cuStreamIsCapturing", stream) == idle:
                    del closed[i]
                    return stream
        return None

    def _is_done(self, stream: Any) -> bool:
        self.bind()
        code = self._api.cuStreamQuery(stream)[0]
        if code and int(code) != NOT_READY:
            self._fail("cuStreamQuery", code)
        return not code

    def stream_destroy(self, stream: StreamHandle) -> None:
        """Close a stream; what is in it still runs. A borrowed stream is only forgotten."""
        with self._stream_lock:
            native = self._streams[stream]
            borrowed = self._borrowed_streams.get(stream, 0)
            if borrowed > 1:
                self._borrowed_streams[stream] = borrowed - 1
                return
            del self._streams[stream]
            if borrowed:
                del self._borrowed_streams[stream]
            else:
                self._closed_streams[self._stream_priority.pop(stream)].append(native)

    def stream_borrow(self, address: int) -> StreamHandle:
        """A handle for another library's stream (a `CUstream` as an integer), which stays theirs.

        `stream_destroy` ends the loan. Each loan of the same stream is ended on its own.
        """
        handle = StreamHandle(int(address))
        with self._stream_lock:
            if handle not in self._streams:
                self._streams[handle] = self._api.CUstream(handle)
                self._borrowed_streams[handle] = 1
            elif handle in self._borrowed_streams:
                self._borrowed_streams[handle] += 1
            else:
                raise ContextError(
                    f"stream {handle:#x} is one of {self.label}'s own; use the stream object it belongs to"
                )
        return handle

    def stream_is_capturing(self, stream: StreamHandle) -> bool:
        """True while work put into the stream would become part of a graph, or would break a capture elsewhere."""
        self.bind()
        code, status = self._api.cuStreamIsCapturing(self._streams[stream])
        if int(code) == CAPTURE_IMPLICIT:  # the default stream, while one that waits for it is captured
            return True
        if code:
            self._fail("cuStreamIsCapturing", code)
        return bool(status != self._api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def stream_synchronize(self, stream: StreamHandle) -> None:
        """Wait until the stream is empty."""
        self._call("cuStreamSynchronize", self._streams[stream])

    def stream_query(self, stream: StreamHandle) -> bool:
        """True when all work in the stream is done."""
        return self._is_done(self._streams[stream])

    def stream_wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        """Later work in `stream` waits for the event's last record."""
        code = self._cuStreamWaitEvent(self._streams.pointers[stream], self._events.pointers[event], 0)
        if code:
            self._fail("cuStreamWaitEvent", code)

    # -- events

    def event_create(self, *, timing: bool = False, interrupts: bool = False) -> EventHandle:
        """A new event; `interrupts` is CU_EVENT_BLOCKING_SYNC."""
        flags = (0 if timing else EVENT_DISABLE_TIMING) | (EVENT_BLOCKING_SYNC if interrupts else 0)
        event = self._call("cuEventCreate", flags)
        handle = EventHandle(int(event))
        self._events[handle] = event
        if interrupts:
            self._interrupting.add(handle)
        return handle

    def event_destroy(self, event: EventHandle) -> None:
        """Close an event; waits that were enqueued on it still work."""
        native = self._events[event]
        del self._events[event]
        self._interrupting.discard(event)
        self._call("cuEventDestroy", native)

    def event_record(self, event: EventHandle, stream: StreamHandle) -> None:
        """Record the event at the end of the stream."""
        code = self._cuEventRecord(self._events.pointers[event], self._streams.pointers[stream])
        if code:
            self._fail("cuEventRecord", code)

    def event_record_context(self, event: EventHandle) -> None:
        """Record the event behind all that any stream of the context holds now, other libraries' streams too.

        Raises:
            DriverError: a stream of the context is being captured.
        """
        self._call("cuCtxRecordEvent", self._context, self._events[event])

    def event_query(self, event: EventHandle) -> bool:
        """True when the device is past the event's last record, or it was never recorded."""
        code = self._cuEventQuery(self._events.pointers[event])
        if code:
            if code == NOT_READY:
                return False
            self._fail("cuEventQuery", code)
        return True

    def event_synchronize(self, event: EventHandle) -> None:
        """Wait, asleep, until the device is past the event's last record."""
        if event in self._interrupting:
            self._call("cuEventSynchronize", self._events[event])
            return
        pause_s = SHORTEST_PAUSE_S  # the driver would spin
        while not self.event_query(event):
            time.sleep(pause_s)
            pause_s = min(1.1 * pause_s, LONGEST_PAUSE_S)

    def forget_interrupts(self) -> None:
        """From now on `event_synchronize` looks at all events from time to time."""
        self._interrupting.clear()

    def event_notify(self, event: EventHandle, callback: Callable[[], object]) -> bool:
        """Not here: see `Driver.notifies`."""
        raise TypeError("a CUDA device does not call back; sleep in event_synchronize")

    def check_may_wait(self) -> None:
        """Every thread may: see `Driver.notifies`."""

    def stream_hand_on(self, stream: StreamHandle, event: EventHandle) -> None:
        """Not here: see `Driver.hands_failures_on`."""
        raise TypeError("a CUDA device is lost by work that fails; nothing is handed on")

    def event_elapsed_ms(self, start: EventHandle, end: EventHandle) -> float:
        """Milliseconds between the records of two timing events the device is past."""
        return float(self._call("cuEventElapsedTime", self._events[start], self._events[end]))

    # -- launches

    def launch(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        arguments: ArgumentBlock,
    ) -> None:
        """Enqueue a kernel."""
        grid_x, grid_y, grid_z = grid
        block_x, block_y, block_z = block
        code = self._cuLaunchKernel(
            self._functions[function],
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes,
            self._streams[stream],
            arguments.pointers_address,
            0,
        )[0]
        if code:
            self._fail("cuLaunchKernel", code)

    def bind_launch(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        arguments: ArgumentBlock,
    ) -> Callable[[], int]:
        """A launch with everything looked up once.

        `cuLaunchKernelEx` with a ready configuration has 4 arguments where `cuLaunchKernel` has 11. They are made
        pointers once, and handed to the driver's entry point: the bindings would convert them in every call, which
        takes them 0.2 us more.
        """
        config = self._build_config(grid, block, shared_bytes, stream, None, False)
        if native is not None:
            entry = ctypes.cast(self._launch_by_pointers, ctypes.c_void_p).value
            native_function = int(self._functions[function])
            launch: Callable[[], int] = native.Enqueue(
                entry, config.getPtr(), native_function, arguments.pointers_address, (config, arguments)
            )
            return launch
        enqueue = functools.partial(
            self._launch_by_pointers,
            pointer(config.getPtr()),
            pointer(int(self._functions[function])),
            pointer(arguments.pointers_address),
            None,
        )
        enqueue.kept = config, arguments  # type: ignore[attr-defined]  # what is pointed to
        return enqueue

    def launch_failed(self, result: object) -> NoReturn:
        """Raise what a bound launch returned."""
        self._fail("cuLaunchKernelEx", result)

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
        programmatic: bool = False,
    ) -> None:
        """Enqueue a kernel with cluster dimensions, as a cooperative launch, or so that it may begin early."""
        native = self._functions[function]
        key = (grid, block, shared_bytes, stream, cluster, cooperative, programmatic)
        config = self._configs.get(key)
        if config is None:
            config = self._make_config(*key)
        if cluster is not None and function not in self._large_clusters:
            self._allow_large_cluster(function, cluster)
        code = self._cuLaunchKernelEx(config, native, arguments.pointers_address, 0)[0]
        if code:
            self._fail("cuLaunchKernelEx", code)

    def _make_config(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        cluster: tuple[int, int, int] | None,
        cooperative: bool,
        programmatic: bool = False,
    ) -> Any:
        """A cached `CUlaunchConfig`. The driver only reads it, so equal launches of all threads share one."""
        config = self._build_config(grid, block, shared_bytes, stream, cluster, cooperative, programmatic)
        if len(self._configs) >= MAX_CACHED_CONFIGS:
            self._configs.clear()
        self._configs[grid, block, shared_bytes, stream, cluster, cooperative, programmatic] = config
        return config

    def _build_config(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        cluster: tuple[int, int, int] | None,
        cooperative: bool,
        programmatic: bool = False,
    ) -> Any:
        api = self._api
        attributes = []
        if cluster is not None:
            attribute = api.CUlaunchAttribute()
            attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = api.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster
            attribute.value = value
            attributes.append(attribute)
        if cooperative:
            attribute = api.CUlaunchAttribute()
            attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            value = api.CUlaunchAttributeValue()
            value.cooperative = 1
            attribute.value = value
            attributes.append(attribute)
        if programmatic:
            attribute = api.CUlaunchAttribute()
            attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value = api.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            attribute.value = value
            attributes.append(attribute)
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared_bytes
        config.hStream = self._streams[stream]
        config.attrs = attributes
        config.numAttrs = len(attributes)
        return config

    def _allow_large_cluster(self, function: FunctionHandle, cluster: tuple[int, int, int]) -> None:
        """Clusters of more than 8 blocks are not portable: the kernel has to opt in, once."""
        if cluster[0] * cluster[1] * cluster[2] <= PORTABLE_CLUSTER_BLOCKS:
            return
        attribute = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        self._call("cuFuncSetAttribute", self._functions[function], attribute, 1)
        self._large_clusters.add(function)


# -------------------------------------------------------------------------------- unusable drivers

# Nothing is left to give back, so giving back is no error: owners close what they hold in any order.
_QUIET = (
    "check_may_wait",
    "close",
    "event_destroy",
    "forget_interrupts",
    "graph_destroy",
    "memory_free_async",
    "module_unload",
    "pinned_free",
    "pool_trim",
    "stream_destroy",
)
_REFUSED = (
    "bind",
    "capture_begin",
    "capture_end",
    "convert_async",
    "convert_prepare",
    "copy_device_to_device_async",
    "copy_device_to_host_async",
    "copy_host_to_device_async",
    "copy_strided_async",
    "event_create",
    "event_notify",
    "event_elapsed_ms",
    "event_query",
    "event_record",
    "event_record_context",
    "event_synchronize",
    "fill_async",
    "function_allow_shared_bytes",
    "function_info",
    "graph_create",
    "graph_launch",
    "graph_update",
    "bind_launch",
    "launch",
    "launch_failed",
    "launch_with_attributes",
    "memory_alloc_async",
    "module_function",
    "module_function_names",
    "module_global",
    "module_load",
    "pinned_alloc",
    "pointer_device",
    "prepare",
    "pool_set_release_threshold",
    "pool_statistics",
    "stream_borrow",
    "stream_create",
    "stream_hand_on",
    "stream_is_capturing",
    "stream_query",
    "stream_synchronize",
    "stream_wait_event",
    "synchronize",
)


def _refuse(self: CudaDriver, *_: object, **__: object) -> object:
    assert self._reason is not None
    raise self._reason()


def _do_nothing(self: CudaDriver, *_: object, **__: object) -> None:
    return None


def _free_of_closed(self: CudaDriver, address: int) -> None:
    """The context of a closed device lives on, and what arrays have of it goes back as they do."""
    if self._is_closed:
        CudaDriver.pinned_free(self, address)


UnusableDriver = cast(
    "type[CudaDriver]",
    type(
        "UnusableDriver",
        (CudaDriver,),
        {
            "__module__": __name__,
            "__doc__": "A driver whose device is lost, closed, or of a forked process: every call says so.",
            **dict.fromkeys(_REFUSED, _refuse),
            **dict.fromkeys(_QUIET, _do_nothing),
            "pinned_free": _free_of_closed,
        },
    ),
)
CudaDriver.unusable_class = UnusableDriver


# ---------------------------------------------------------------------------------------- opening

_registry_lock = threading.RLock()
_registry: dict[int, CudaDriver] = {}
_alive: weakref.WeakSet[CudaDriver] = weakref.WeakSet()


def open_cuda_driver(ordinal: int) -> CudaDriver:
    """The driver of CUDA device `ordinal`, one per process, in the device's primary context. Slow at first.

    Raises:
        ContextError: packages, the NVIDIA driver or the device are missing, or the process was forked from
            one that had used CUDA; the message says which, and what to do.
    """
    found = find_driver()
    if not 0 <= ordinal < found.device_count:
        last = found.device_count - 1
        there = "cuda:0" if last == 0 else f"cuda:0 to cuda:{last}"
        raise ContextError(f"cuda:{ordinal} does not exist; this machine has {there}")
    with _registry_lock:
        driver = _registry.get(ordinal)
        if driver is None:
            driver = _registry[ordinal] = _open(found.api, ordinal)
        return driver


def _open(api: Any, ordinal: int) -> CudaDriver:
    device = _ask(api, ordinal, "cuDeviceGet", ordinal)
    pools = api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
    if not _ask(api, ordinal, "cuDeviceGetAttribute", pools, device):
        raise ContextError(
            f"cuda:{ordinal} has no stream-ordered memory pools, which this package allocates from; "
            "a vGPU needs unified memory enabled for that"
        )
    context = _ask(api, ordinal, "cuDevicePrimaryCtxRetain", device)
    return _start(CudaDriver(api, ordinal, context, device))


def _start(driver: CudaDriver) -> CudaDriver:
    # Where the driver has no PTX compiler, the operations that need these kernels say so.
    with contextlib.suppress(CompileError):
        driver.prepare()
    _alive.add(driver)
    return driver


def _ask(api: Any, ordinal: int, name: str, *arguments: Any) -> Any:
    """A call before there is a driver object to fail through."""
    from ._errors import describe_code

    code, value = getattr(api, name)(*arguments)
    if code:
        raise ContextError(f"cuda:{ordinal} cannot be opened: {name}: {describe_code(api, code)}")
    return value


def borrow_context(address: int) -> CudaDriver:
    """A driver that works in another library's context (a `CUcontext` as an integer), which stays theirs.

    The context must live as long as the driver is used. For the primary context of a device this is the
    driver that `open_cuda_driver` gives.

    Raises:
        ContextError: there is no CUDA driver, or the address is not a context.
    """
    api = find_driver().api
    context = api.CUcontext(int(address))
    code, before = api.cuCtxGetCurrent()
    code, *_ = api.cuCtxSetCurrent(context)
    try:
        if not code:
            code, device = api.cuCtxGetDevice()
        if code:
            from ._errors import describe_code

            raise ContextError(f"{address:#x} is not a usable CUDA context: {describe_code(api, code)}")
    finally:
        api.cuCtxSetCurrent(before)
    ordinal = int(device)
    driver = open_cuda_driver(ordinal)
    if int(driver._context) == int(address):
        return driver
    return _start(CudaDriver(api, ordinal, context, device))


def _mark_forked() -> None:
    """In a forked child: every driver of the parent is unusable, and says why."""
    global _registry_lock
    _registry_lock = threading.RLock()
    for driver in list(_alive):
        driver._state_lock = threading.Lock()
        driver._become_unusable(lambda: ContextError(FORKED))
    _registry.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
