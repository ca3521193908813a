"""The driver as recorded operations see it: what enqueues becomes a node, the rest is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..driver.graph import ConvertNode, CopyNode, FillNode, KernelNode, StridedCopyNode
from ..errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ..driver import ArgumentBlock, Driver, FunctionHandle, StreamHandle
    from ._recorder import Lane

__all__ = ["RecordingDriver"]

_WAITING = "it waits for the device or looks at it, and nothing runs while a graph is recorded"
REFUSED = {
    "copy_device_to_host_async": (
        "to_host()",
        "its array would be written over by the next launch; record up to the tensor, and go on with "
        "graph.launch().to_host()",
    ),
    "memory_alloc_async": (
        "an allocation by ctx.driver.memory_alloc_async",
        "its address would change from launch to launch; ctx.empty() gives memory that belongs to the graph",
    ),
    "memory_free_async": (
        "a free by ctx.driver.memory_free_async",
        "later launches would use freed memory; drop the tensor instead",
    ),
    "pool_trim": ("pool_trim", _WAITING),
    "synchronize": ("synchronize", _WAITING),
    "stream_synchronize": ("stream_synchronize", _WAITING),
    "stream_query": ("stream_query", _WAITING),
    "stream_wait_event": ("stream_wait_event", "branches of a graph are made with parallel()"),
    "event_record": ("event_record", "record the event behind graph.launch() instead"),
    "event_query": ("event_query", _WAITING),
    "event_synchronize": ("event_synchronize", _WAITING),
    "graph_launch": ("graph_launch by the driver", "use graph.launch(), which becomes part of the graph"),
}
"""Calls of the driver that cannot become nodes: what messages call them, and why or what to do."""


class RecordingDriver:
    """One lane's `Driver`. What does not enqueue goes to the device's own."""

    def __init__(self, lane: Lane, real: Driver) -> None:
        self._lane = lane
        self._real = real

    def __getattr__(self, name: str) -> Any:  # what the device's driver has
        refused = REFUSED.get(name)
        if refused is not None:
            raise CaptureError(f"{refused[0]} cannot be part of a graph: {refused[1]}")
        return getattr(self._real, name)

    def copy_host_to_device_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        if size_bytes:
            self._lane.add(CopyNode(dst=dst, src=src, size_bytes=size_bytes, from_host=True))

    def copy_device_to_device_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        if size_bytes:
            self._lane.add(CopyNode(dst=dst, src=src, size_bytes=size_bytes))

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
        if all(shape):
            self._lane.add(
                StridedCopyNode(
                    dst=dst,
                    dst_strides_bytes=tuple(dst_strides_bytes),
                    src=src,
                    src_strides_bytes=tuple(src_strides_bytes),
                    shape=tuple(shape),
                    itemsize=itemsize,
                )
            )

    def fill_async(self, dst: int, pattern: bytes, count: int, stream: StreamHandle) -> None:
        if count:
            self._lane.add(FillNode(dst=dst, pattern=bytes(pattern), count=count))

    def convert_async(
        self,
        dst: int,
        dst_dtype: np.dtype[np.generic],
        src: int,
        src_dtype: np.dtype[np.generic],
        count: int,
        stream: StreamHandle,
    ) -> None:
        if count:
            self._lane.add(
                ConvertNode(dst=dst, dst_dtype=dst_dtype, src=src, src_dtype=src_dtype, count=count)
            )

    def launch(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        arguments: ArgumentBlock,
    ) -> None:
        self.launch_with_attributes(
            function, grid, block, shared_bytes, stream, arguments, cluster=None, cooperative=False
        )

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
        self._lane.add(
            KernelNode(
                name=self._lane.recorder.kernel_name(function),
                function=function,
                grid=grid,
                block=block,
                shared_bytes=shared_bytes,
                arguments=arguments.copy(),
                cluster=cluster,
                cooperative=cooperative,
                programmatic=programmatic,
            )
        )

    def bind_launch(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        arguments: ArgumentBlock,
    ) -> Any:  # a call that enqueues
        def enqueue() -> int:
            self.launch(function, grid, block, shared_bytes, stream, arguments)
            return 0

        return enqueue
