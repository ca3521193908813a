"""The one interface between this package and a device: a `Driver` per device, in our own types.

Two implementations: `driver.cuda` (the CUDA driver) and `driver.host` (a simulated device). Everything
above is written against this file and tested on both.

Rules every implementation keeps:

- Any method may be called from any thread. A method that does not say "hot" makes the device's context
  current by itself. A hot method expects that the calling thread has called `bind()` since it last ran
  other code; it costs one driver call and nothing else.
- Nothing waits for the device except the methods named `*_synchronize` (they release the GIL), and what
  says so. Enqueueing methods return as soon as the work is in the stream.
- A failed call raises: `DriverError`; `DeviceLostError` once a fault has made the device unusable;
  `OutOfMemoryError` where memory ran out; `CompileError` for an image that cannot be loaded.
- Streams are first-in, first-out. Work in different streams is ordered by events only. Streams never
  synchronize with a default stream.
- Addresses are process addresses as `int` bytes; sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NewType, NoReturn, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np

    from ._arguments import ArgumentBlock
    from .graph import GraphHandle, Node

__all__ = [
    "DeviceLimits",
    "DeviceProperties",
    "Driver",
    "EventHandle",
    "FunctionHandle",
    "FunctionInfo",
    "HostFunction",
    "HostImage",
    "HostLaunch",
    "ModuleHandle",
    "ParameterInfo",
    "ParameterKind",
    "PoolStatistics",
    "StreamHandle",
]

StreamHandle = NewType("StreamHandle", int)
EventHandle = NewType("EventHandle", int)
ModuleHandle = NewType("ModuleHandle", int)
FunctionHandle = NewType("FunctionHandle", int)


@dataclass(frozen=True, kw_only=True)
class DeviceLimits:
    """What one launch may ask for. Axes are (x, y, z); sizes are bytes."""

    max_threads_per_block: int
    max_block: tuple[int, int, int]
    max_grid: tuple[int, int, int]
    max_shared_bytes_per_block: int
    """Dynamic shared memory a kernel may use without opting in (48 KiB on CUDA)."""
    max_shared_bytes_per_block_optin: int
    warp_size: int
    multiprocessors: int
    max_cluster_blocks: int
    """Blocks per cluster; 1 where clusters do not exist."""
    l2_cache_bytes: int
    stream_priorities: tuple[int, int]
    """(least, greatest): numerically greatest >= ... >= least is reversed, as in CUDA: (0, -5)."""


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """What does not change while the process lives."""

    name: str
    compute_capability: tuple[int, int]
    total_memory_bytes: int
    driver_version: tuple[int, int]
    """Newest CUDA version the driver supports, such as (13, 0)."""
    limits: DeviceLimits
    uuid: str


@dataclass(frozen=True, kw_only=True)
class PoolStatistics:
    """A snapshot of the device's stream-ordered pool, in bytes."""

    used_bytes: int
    used_high_bytes: int
    reserved_bytes: int
    reserved_high_bytes: int


class ParameterKind(Enum):
    """What is known of a kernel parameter. PTX tells kinds; a cubin tells only sizes."""

    UNKNOWN = "unknown"
    """A cubin's parameter: `size_bytes` bytes of anything."""
    INTEGER = "integer"
    """`.u8` to `.u64`, `.s8` to `.s64`, `.b8` to `.b64`: compilers do not keep signedness, so both fit; a
    64-bit one may also be an address."""
    FLOAT = "float"
    """`.f16`, `.f32`, `.f64`."""
    POINTER = "pointer"
    """`.u64` or `.b64` with `.ptr`: an address. Only newer compilers say so."""
    STRUCT = "struct"
    """A by-value array of bytes (`.b8 name[n]`)."""


@dataclass(frozen=True, kw_only=True)
class ParameterInfo:
    """One kernel parameter: where it lies in the argument block."""

    name: str
    offset_bytes: int
    size_bytes: int
    alignment_bytes: int = 1
    kind: ParameterKind = ParameterKind.UNKNOWN


@dataclass(frozen=True, kw_only=True)
class FunctionInfo:
    """What the driver (or the PTX) says about a kernel."""

    name: str
    parameters: tuple[ParameterInfo, ...]
    max_threads_per_block: int
    static_shared_bytes: int = 0
    local_bytes: int = 0
    registers: int = 0
    required_block: tuple[int, int, int] | None = None
    """`.reqntid`, where it is known."""


# ------------------------------------------------------------------ kernels of the host device


@dataclass(frozen=True, kw_only=True)
class HostLaunch:
    """One launch on the host device, as its function sees it."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory."""
    arguments: bytes
    """The packed argument block, laid out by the function's `ParameterInfo`s."""
    memory: object
    """The device's `HostMemory` (`driver.host`): load and store at addresses, with bounds checks."""
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False
    pick: Callable[[int], int] | None = None
    """On a seeded device: which of so many blocks goes on now. A step is one block then, whatever the clock says."""


@runtime_checkable
class HostFunction(Protocol):
    """A kernel the host device can run: an interpreted PTX entry, or a tile kernel's interpreter."""

    @property
    def info(self) -> FunctionInfo:
        """Name, parameters and limits."""
        ...

    def start(self, launch: HostLaunch) -> Iterator[None]:
        """Run the launch in small steps: the engine calls `next` until the iterator ends.

        Each step takes at most about 2 ms; state is kept between steps, and other streams' steps run in
        between. An exception ends the launch and becomes the error of everything that waits for it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class HostImage:
    """A module for the host device that is Python objects instead of bytes (tile kernels)."""

    functions: Mapping[str, HostFunction]
    name: str = "host image"


# ------------------------------------------------------------------------------------ driver


class Driver(Protocol):
    """One device. See the module's rules."""

    kind: str
    """`"cuda"` or `"host"`."""
    ordinal: int
    properties: DeviceProperties
    notifies: bool
    """Whether `event_notify` works. The CUDA driver runs no host callback after a device error, so there a thread
    sleeps in `event_synchronize` instead."""
    hands_failures_on: bool
    """Whether work that fails leaves the device well: then what waits for the event behind it fails too, and does not
    run (`stream_hand_on`). A CUDA device is lost."""

    def bind(self) -> None:
        """Make the device's context current on this thread (hot; nothing to do on the host device)."""
        ...

    def synchronize(self) -> None:
        """Wait until all streams are empty."""
        ...

    def close(self) -> None:
        """Give back what the driver holds; used at interpreter exit and by tests. Never raises."""
        ...

    # -- streams
    def stream_create(self, priority: int = 0) -> StreamHandle: ...
    def stream_destroy(self, stream: StreamHandle) -> None:
        """The handle is gone; work in the stream is still done."""
        ...

    def stream_synchronize(self, stream: StreamHandle) -> None: ...
    def stream_query(self, stream: StreamHandle) -> bool:
        """True when all work in the stream is done."""
        ...

    def stream_wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        """Later work in `stream` waits for the event's last record. Hot."""
        ...

    def stream_hand_on(self, stream: StreamHandle, event: EventHandle) -> None:
        """What failed before the event's last record fails what comes next in `stream`, which waits for that already.

        As `stream_wait_event`, but nothing waits. Only where `hands_failures_on`.
        """
        ...

    # -- events
    def event_create(self, *, timing: bool = False, interrupts: bool = False) -> EventHandle:
        """A new event. Without `timing` it is cheaper and `event_elapsed_ms` refuses it.

        Args:
            interrupts: the device interrupts the host whenever it is past a record (CU_EVENT_BLOCKING_SYNC), so that
                `event_synchronize` hears of it at once. That costs the host microseconds each time, waited for or not;
                without it `event_synchronize` looks from time to time.
        """
        ...

    def event_destroy(self, event: EventHandle) -> None: ...
    def event_record(self, event: EventHandle, stream: StreamHandle) -> None:
        """Hot."""
        ...

    def event_query(self, event: EventHandle) -> bool:
        """True when the device is past the event's last record (or it was never recorded). Hot.

        Raises the error of work that the record covers, each time it is asked: on the host device the
        kernel's own (`MemoryFault`, `KernelError`), after which the stream works on; on CUDA
        `DeviceLostError`.
        """
        ...

    def event_synchronize(self, event: EventHandle) -> None:
        """Block this thread, asleep, until `event_query` is true; raises the same."""
        ...

    def forget_interrupts(self) -> None:
        """An interrupt did not come: from now on `event_synchronize` looks from time to time, whatever the event."""
        ...

    def event_notify(self, event: EventHandle, callback: Callable[[], object]) -> bool:
        """Call `callback` once, from a thread of the driver, when the event's last record is done or has failed.

        Never calls it from inside this method: False, and no call, when that is so already. Only where `notifies`.
        """
        ...

    def check_may_wait(self) -> None:
        """Raise where this thread is doing work of the device's, which would wait for itself. Only where `notifies`.

        Raises:
            ReentrancyError: it is.
        """
        ...

    def event_elapsed_ms(self, start: EventHandle, end: EventHandle) -> float: ...

    # -- memory
    def memory_alloc_async(self, size_bytes: int, stream: StreamHandle) -> int:
        """Stream-ordered allocation of `size_bytes` > 0 from the device's pool; 256-byte aligned. Hot.

        Raises `OutOfMemoryError`; the pool is left as it was.
        """
        ...

    def memory_free_async(self, address: int, stream: StreamHandle) -> None:
        """Stream-ordered free. Hot."""
        ...

    def pool_trim(self, keep_bytes: int = 0) -> None:
        """Give cached, unused memory back to the system, keeping at least `keep_bytes` reserved."""
        ...

    def pool_set_release_threshold(self, size_bytes: int) -> None:
        """How much the pool may keep reserved when somebody synchronizes; at first, everything."""
        ...

    def pool_statistics(self) -> PoolStatistics: ...

    def pinned_alloc(self, size_bytes: int) -> int:
        """Page-locked host memory that every device of the process may copy from and to. Slow."""
        ...

    def pinned_free(self, address: int) -> None:
        """No copy uses it any more. Of a closed driver too: arrays on such memory may outlive it."""
        ...

    def copy_host_to_device_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        """`src` is pinned. Hot."""
        ...

    def copy_device_to_host_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        """`dst` is pinned. Hot."""
        ...

    def copy_device_to_device_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        """Hot."""
        ...

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
        """Copy an N-d array element by element, device to device; strides in bytes, may be 0 in `src`."""
        ...

    def fill_async(self, dst: int, pattern: bytes, count: int, stream: StreamHandle) -> None:
        """Write `count` copies of `pattern` (1, 2, 4 or 8 bytes) back to back, `dst` aligned to it."""
        ...

    def convert_async(
        self,
        dst: int,
        dst_dtype: np.dtype[np.generic],
        src: int,
        src_dtype: np.dtype[np.generic],
        count: int,
        stream: StreamHandle,
    ) -> None:
        """Convert `count` contiguous elements. Rounds once, to nearest even.

        Float to int truncates; what does not fit is clamped, and NaN gives 0.

        The first use of a pair of types may compile: `convert_prepare` does that ahead of time.
        """
        ...

    def convert_prepare(self, dst_dtype: np.dtype[np.generic], src_dtype: np.dtype[np.generic]) -> None: ...

    # -- modules
    def module_load(self, image: bytes | HostImage, name: str = "") -> ModuleHandle:
        """Load PTX text, a cubin or a fatbin (bytes), or, on the host device, a `HostImage`. Slow.

        `name` is used in messages. The host device takes PTX and `HostImage` only.
        Raises `CompileError` with the driver's log, the PTX line, both architectures or versions.
        """
        ...

    def module_unload(self, module: ModuleHandle) -> None: ...
    def module_function_names(self, module: ModuleHandle) -> list[str]: ...
    def module_function(self, module: ModuleHandle, name: str) -> FunctionHandle:
        """Raises `LookupError` when there is no such kernel; the caller knows how to say it."""
        ...

    def module_global(self, module: ModuleHandle, name: str) -> tuple[int, int]:
        """(address, size in bytes) of a module's global variable. Raises `LookupError`."""
        ...

    def function_info(self, function: FunctionHandle) -> FunctionInfo: ...
    def function_allow_shared_bytes(self, function: FunctionHandle, size_bytes: int) -> None:
        """Opt in to `size_bytes` of dynamic shared memory."""
        ...

    def launch(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        arguments: ArgumentBlock,
    ) -> None:
        """Enqueue a kernel; `arguments` is copied before the call returns. No axis of the grid is 0. Hot."""
        ...

    def bind_launch(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        arguments: ArgumentBlock,
    ) -> Callable[[], object]:
        """`launch` with everything looked up once: a call enqueues the kernel with what `arguments` holds then. Hot.

        The call does not raise. It returns 0 on success; of anything else `launch_failed` says what is wrong. (A check
        in Python costs a tenth of a launch, and the caller has a place for it.)
        """
        ...

    def launch_failed(self, result: object) -> NoReturn:
        """Raise what a bound launch returned."""
        ...

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
        """`launch` with cluster dimensions or as a cooperative launch. Hot.

        A programmatic one may begin before what precedes it on the stream has ended; it waits by itself.
        """
        ...

    # -- graphs
    def graph_create(self, nodes: Sequence[Node]) -> GraphHandle:
        """Make something of `nodes` that can be launched; each comes after those it depends on. Slow.

        Runs nothing. What can be uploaded ahead of the first launch is; launches wait for that, in any stream.
        """
        ...

    def graph_update(self, graph: GraphHandle, node: Node) -> bool:
        """Launches from now on use the node's fields as they are now; those in flight do not.

        False where that cannot be: the graph has to be made anew.
        """
        ...

    def graph_launch(self, graph: GraphHandle, stream: StreamHandle) -> None:
        """Enqueue all nodes of the graph. The caller orders launches of one graph in several streams. Hot."""
        ...

    def graph_destroy(self, graph: GraphHandle) -> None:
        """The handle is gone. No launch of it may be in flight."""
        ...
