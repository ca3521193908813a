"""Graphs on the CUDA driver: nodes of ours become nodes of a `CUgraph`, which is instantiated.

Every node is added explicitly; no stream is captured, so nothing another thread does can break the making of a graph,
and nothing is forbidden to other threads meanwhile. The exception is other libraries' work: what they enqueue on a
stream of ours that is being captured (in the relaxed mode, which forbids nothing) becomes one child graph.

One node of ours may become several of the driver's (a strided copy of many axes) or none. What follows it depends on
its last. The nodes of a child are added to the graph itself: CUDA refuses conditional nodes in child graphs.

A conditional node is steered by a handle that a kernel sets: one that reads the predicate stands before it, and before
each further turn of a loop at the end of the body. That kernel calls `cudaGraphSetConditional`, which the driver
provides to the PTX that it compiles.

What was instantiated is uploaded at once, in a stream that is there for that alone. A launch is ordered behind earlier
launches of the same graph and what its own stream holds, and with uploads in other streams it is not. Where the device
came to a first launch before the end of the upload, as eight processes had it in turns, that never ended (H200; each of
four processes within its first fifteen graphs, and with the wait none). So the first launch waits for the upload, and
a graph that is destroyed without one goes when it is uploaded.

The `CUgraph` is kept with what was instantiated of it: parameters of nodes are changed by naming its nodes.

Source: CUDA Driver API, "Graph Management" (cuGraphUpload, cuGraphLaunch); CUDA C++ Programming Guide, "Conditional
Graph Nodes".
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from ...errors import CaptureError, CudaAsyncError, DriverError, OutOfMemoryError
from ..graph import (
    ChildNode,
    ConditionalNode,
    ConditionKind,
    ConvertNode,
    CopyNode,
    EmptyNode,
    FillNode,
    ForeignNode,
    GraphHandle,
    KernelNode,
    Node,
    StridedCopyNode,
    leaves,
)
from ._calls import HandleTable, entry_point
from ._convert import check_convertible
from ._errors import OUT_OF_MEMORY
from ._kernel_text import BLOCK_THREADS
from ._memory import LONG_ROW_BYTES, MemoryCalls
from ._strided import plan_copy, split_axes, strided_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._arguments import ArgumentBlock
    from .._protocol import EventHandle, FunctionHandle, StreamHandle

__all__ = ["GraphCalls"]


class _Graph:
    """A graph of the driver's.

    Attributes:
        native: the `CUgraph`. executable: the `CUgraphExec`; None for captured work.
        nodes: the driver's node for each of ours that can be changed in place.
    """

    def __init__(self, native: Any, executable: Any = None) -> None:
        self.native = native
        self.executable = executable
        self.nodes: dict[Node, Any] = {}


class GraphCalls(MemoryCalls):
    """The part of the CUDA driver that knows graphs."""

    if TYPE_CHECKING:  # the part that launches has them

        def _allow_large_cluster(self, function: FunctionHandle, cluster: tuple[int, int, int]) -> None: ...
        def stream_create(self, priority: int = 0) -> StreamHandle: ...
        def stream_synchronize(self, stream: StreamHandle) -> None: ...
        def stream_wait_event(self, stream: StreamHandle, event: EventHandle) -> None: ...
        def event_create(self) -> EventHandle: ...
        def event_record(self, event: EventHandle, stream: StreamHandle) -> None: ...
        def event_query(self, event: EventHandle) -> bool: ...
        def event_destroy(self, event: EventHandle) -> None: ...

    def __init__(self, api: Any, ordinal: int, context: Any, device: Any) -> None:
        super().__init__(api, ordinal, context, device)
        self._graphs = HandleTable("graph")
        self._cuGraphLaunch = entry_point(api, "cuGraphLaunch")
        self._upload_lock = threading.Lock()
        self._upload_stream: StreamHandle | None = None
        self._uploads: dict[GraphHandle, EventHandle] = {}
        """Behind the upload of each graph that was not launched."""
        self._never_launched: deque[tuple[EventHandle, _Graph]] = deque()
        """Destroyed without a launch, and maybe not uploaded."""

    def graph_create(self, nodes: Sequence[Node]) -> GraphHandle:
        """Make and instantiate a `CUgraph`, and upload it."""
        graph = _Graph(self._call("cuGraphCreate", 0))
        try:
            self._add_all(graph, graph.native, nodes, (), is_top=True)
            graph.executable = self._call("cuGraphInstantiate", graph.native, 0)
            uploaded = self._upload(graph)
        except BaseException:
            self._destroy(graph)
            raise
        handle = GraphHandle(int(graph.executable))
        self._graphs[handle] = graph
        self._uploads[handle] = uploaded
        return handle

    def _upload(self, graph: _Graph) -> EventHandle:
        """Begin; the event behind it."""
        with self._upload_lock:
            stream = self._upload_stream
            if stream is None:
                stream = self._upload_stream = self.stream_create()
        event = self.event_create()
        try:
            self._call("cuGraphUpload", graph.executable, self._streams[stream])
            self.event_record(event, stream)
        except BaseException:
            self.event_destroy(event)
            with contextlib.suppress(CudaAsyncError):  # the caller destroys the graph
                self.stream_synchronize(stream)
            raise
        return event

    def graph_launch(self, graph: GraphHandle, stream: StreamHandle) -> None:
        """Enqueue the graph."""
        pointers = self._graphs.pointers[graph], self._streams.pointers[stream]
        uploaded = self._uploads.get(graph)
        if uploaded is not None:
            self.stream_wait_event(stream, uploaded)
        code = self._cuGraphLaunch(*pointers)
        if code == OUT_OF_MEMORY and self._make_room():
            code = self._cuGraphLaunch(*pointers)
        if code:
            self._fail("cuGraphLaunch", code)
        if uploaded is not None:  # later launches are ordered behind this one
            del self._uploads[graph]
            self.event_destroy(uploaded)

    def graph_update(self, graph: GraphHandle, node: Node) -> bool:
        """Change a node of the executable graph, where that is possible."""
        found = self._graphs[graph]
        native = found.nodes.get(node)
        if native is None:
            return False
        try:
            if isinstance(node, KernelNode):
                self._call(
                    "cuGraphExecKernelNodeSetParams", found.executable, native, self._kernel_parameters(node)
                )
            elif isinstance(node, CopyNode):
                parameters = self._copy_parameters(node)
                self._call(
                    "cuGraphExecMemcpyNodeSetParams", found.executable, native, parameters, self._context
                )
            elif isinstance(node, FillNode) and _memset_value(node) is not None:
                fill = self._fill_parameters(node)
                self._call("cuGraphExecMemsetNodeSetParams", found.executable, native, fill, self._context)
            else:
                return False
        except (DriverError, OutOfMemoryError):
            return False  # what may change in place depends on the node; anew, everything may
        return True

    def graph_destroy(self, graph: GraphHandle) -> None:
        """Destroy a graph, or captured work. One that was never launched goes with a later one, if not uploaded."""
        found = self._graphs[graph]
        del self._graphs[graph]
        uploaded = self._uploads.pop(graph, None)
        if uploaded is None:
            self._destroy(found)
        else:
            self._never_launched.append((uploaded, found))
        self._destroy_uploaded()

    def _destroy_uploaded(self) -> None:
        """Those of the graphs that were destroyed without a launch."""
        while self._never_launched and self.event_query(self._never_launched[0][0]):
            uploaded, found = self._never_launched.popleft()
            self.event_destroy(uploaded)
            self._destroy(found)

    def _destroy(self, graph: _Graph) -> None:
        if graph.executable is not None:
            self._call("cuGraphExecDestroy", graph.executable)
        self._call("cuGraphDestroy", graph.native)

    # -- other libraries' work

    def capture_begin(self, stream: StreamHandle) -> None:
        """What is enqueued in the stream from now on is captured. No other thread is restricted by that."""
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._call("cuStreamBeginCapture", self._streams[stream], mode)

    def capture_end(self, stream: StreamHandle) -> GraphHandle | None:
        """What was captured, to be given back with `graph_destroy`; None when that is nothing.

        Raises:
            CaptureError: the capture became invalid.
        """
        try:
            native = self._call("cuStreamEndCapture", self._streams[stream])
        except DriverError as error:
            raise CaptureError(
                f"what another library enqueued could not be captured: {error}; it must not allocate, synchronize "
                "or use other streams that are not joined again, and another library may have asked for an event "
                "behind all work of the context meanwhile: then try again"
            ) from error
        count = self._call("cuGraphGetNodes", native, 0)[1]
        if not count:
            self._call("cuGraphDestroy", native)
            return None
        handle = GraphHandle(int(native))
        self._graphs[handle] = _Graph(native)
        return handle

    # -- adding nodes

    def _add_all(
        self, graph: _Graph, native: Any, nodes: Sequence[Node], before: tuple[Any, ...], *, is_top: bool
    ) -> list[Any]:
        """Add `nodes` to the `CUgraph` `native`, the first ones behind `before`; the last ones' natives."""
        last: dict[Node, Any] = {}
        for node in nodes:
            after = [last[d] for d in node.dependencies] or before
            dependencies = list(
                {int(native): native for native in after}.values()
            )  # the driver wants no two alike
            last[node] = self._add(graph, native, node, dependencies, is_top=is_top)
        return [last[node] for node in leaves(nodes)]

    def _add(self, graph: _Graph, native: Any, node: Node, dependencies: list[Any], *, is_top: bool) -> Any:
        """Add one node of ours behind the driver's nodes `dependencies`; what follows it has to wait for."""
        match node:
            case KernelNode():
                if _begins_early(node):
                    added = self._add_kernel(native, [], node)
                    self._add_early_edge(native, dependencies[0], added)
                else:
                    added = self._add_kernel(native, dependencies, node)
            case CopyNode():
                added = self._add_copy(native, dependencies, self._copy_parameters(node))
            case FillNode():
                if _memset_value(node) is None:
                    value = int.from_bytes(node.pattern, "little")
                    return self._add_own(
                        native, dependencies, ("fill",), [node.dst, value, node.count], node.count
                    )
                added = self._call(
                    "cuGraphAddMemsetNode",
                    native,
                    dependencies,
                    len(dependencies),
                    self._fill_parameters(node),
                    self._context,
                )
            case StridedCopyNode():
                return self._add_strided(native, dependencies, node)
            case ConvertNode():
                return self._add_convert(native, dependencies, node)
            case ChildNode():
                last = self._add_all(graph, native, node.nodes, tuple(dependencies), is_top=False)
                return last[0] if len(last) == 1 else self._add_empty(native, last or dependencies)
            case ConditionalNode():
                return self._add_conditional(graph, native, dependencies, node)
            case ForeignNode():
                captured = self._graphs[node.captured].native
                return self._call(
                    "cuGraphAddChildGraphNode", native, dependencies, len(dependencies), captured
                )
            case EmptyNode():
                return self._add_empty(native, dependencies)
            case _:
                raise AssertionError(f"unknown node {node!r}")
        if is_top:
            graph.nodes[node] = added
        return added

    def _add_empty(self, native: Any, dependencies: list[Any]) -> Any:
        return self._call("cuGraphAddEmptyNode", native, dependencies, len(dependencies))

    # -- kernels

    def _kernel_parameters(self, node: KernelNode) -> Any:
        return self._launch_parameters(
            node.function, node.grid, node.block, node.shared_bytes, node.arguments
        )

    def _launch_parameters(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: ArgumentBlock,
    ) -> Any:
        parameters = self._api.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = self._functions[function]
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = grid
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = block
        parameters.sharedMemBytes = shared_bytes
        parameters.kernelParams = arguments.pointers_address
        return parameters

    def _add_kernel(self, native: Any, dependencies: list[Any], node: KernelNode) -> Any:
        parameters = self._kernel_parameters(node)
        added = self._call("cuGraphAddKernelNode", native, dependencies, len(dependencies), parameters)
        ids = self._api.CUkernelNodeAttrID
        if node.cluster is not None:
            self._allow_large_cluster(node.function, node.cluster)
            value = self._api.CUkernelNodeAttrValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = node.cluster
            attribute = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            self._call("cuGraphKernelNodeSetAttribute", added, attribute, value)
        if node.cooperative:
            value = self._api.CUkernelNodeAttrValue()
            value.cooperative = 1
            attribute = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            self._call("cuGraphKernelNodeSetAttribute", added, attribute, value)
        return added

    def _add_early_edge(self, native: Any, before: Any, after: Any) -> None:
        """`after` may begin once all blocks of the kernel `before` allow it; it waits for its end by itself."""
        api = self._api
        edge = api.CUgraphEdgeData()
        edge.from_port = int(api.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
        edge.type = int(api.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        self._call("cuGraphAddDependencies", native, [before], [after], [edge], 1)

    def _add_own(
        self,
        native: Any,
        dependencies: list[Any],
        key: tuple[object, ...],
        values: list[int],
        count: int,
    ) -> Any:
        """Add one of this driver's own kernels."""
        function, blocks, arguments = self._own_launch(self._own_kernel(key), values, count)
        parameters = self._launch_parameters(function, (blocks, 1, 1), (BLOCK_THREADS, 1, 1), 0, arguments)
        return self._call("cuGraphAddKernelNode", native, dependencies, len(dependencies), parameters)

    # -- copies and fills

    def _copy_parameters(self, node: CopyNode) -> Any:
        return self._memcpy(node.dst, node.src, node.size_bytes, from_host=node.from_host)

    def _memcpy(
        self,
        dst: int,
        src: int,
        row_bytes: int,
        rows: int = 1,
        dst_pitch: int = 0,
        src_pitch: int = 0,
        *,
        from_host: bool = False,
    ) -> Any:
        """A copy of rows. One row has no pitch: there is a limit to those, and none to its length."""
        kinds = self._api.CUmemorytype
        copy = self._api.CUDA_MEMCPY3D()
        if from_host:
            copy.srcMemoryType = kinds.CU_MEMORYTYPE_HOST
            copy.srcHost = src
        else:
            copy.srcMemoryType = kinds.CU_MEMORYTYPE_DEVICE
            copy.srcDevice = self._api.CUdeviceptr(src)
        copy.dstMemoryType = kinds.CU_MEMORYTYPE_DEVICE
        copy.dstDevice = self._api.CUdeviceptr(dst)
        copy.srcPitch, copy.dstPitch = src_pitch, dst_pitch
        copy.WidthInBytes, copy.Height, copy.Depth = row_bytes, rows, 1
        return copy

    def _add_copy(self, native: Any, dependencies: list[Any], parameters: Any) -> Any:
        return self._call(
            "cuGraphAddMemcpyNode", native, dependencies, len(dependencies), parameters, self._context
        )

    def _fill_parameters(self, node: FillNode) -> Any:
        found = _memset_value(node)
        assert found is not None
        size, value, count = found
        parameters = self._api.CUDA_MEMSET_NODE_PARAMS()
        parameters.dst = self._api.CUdeviceptr(node.dst)
        parameters.elementSize, parameters.value = size, value
        parameters.width, parameters.height = count, 1
        return parameters

    def _add_strided(self, native: Any, dependencies: list[Any], node: StridedCopyNode) -> Any:
        plan = plan_copy(
            node.dst, node.dst_strides_bytes, node.src, node.src_strides_bytes, node.shape, node.itemsize
        )
        if plan is None:
            return self._add_empty(native, dependencies)
        run = plan.run_bytes
        if run is not None:
            return self._add_copy(native, dependencies, self._memcpy(plan.dst, plan.src, run))
        rows = plan.rows
        if rows is not None and rows[0] >= LONG_ROW_BYTES and self._fits_pitch(plan):
            parameters = self._memcpy(plan.dst, plan.src, *rows, plan.dst_strides[0], plan.src_strides[0])
            return self._add_copy(native, dependencies, parameters)
        added = None
        for piece in split_axes(plan):
            added = self._add_own(
                native, dependencies, self._strided_key(piece), strided_arguments(piece), piece.count
            )
            dependencies = [added]
        return added

    def _add_convert(self, native: Any, dependencies: list[Any], node: ConvertNode) -> Any:
        dst, src = check_convertible(node.dst_dtype), check_convertible(node.src_dtype)
        if dst == src:
            size = node.count * node.dst_dtype.itemsize
            return self._add_copy(native, dependencies, self._memcpy(node.dst, node.src, size))
        return self._add_own(
            native, dependencies, ("convert", dst, src), [node.dst, node.src, node.count], node.count
        )

    # -- conditional nodes

    def _add_conditional(
        self, graph: _Graph, native: Any, dependencies: list[Any], node: ConditionalNode
    ) -> Any:
        api = self._api
        handle = self._call("cuGraphConditionalHandleCreate", native, self._context, 0, 0)
        setter = self._add_setter(native, dependencies, handle, node)
        kinds = api.CUgraphConditionalNodeType
        conditional = api.CUDA_CONDITIONAL_NODE_PARAMS()
        conditional.handle = handle
        conditional.type = (
            kinds.CU_GRAPH_COND_TYPE_IF if node.kind is ConditionKind.IF else kinds.CU_GRAPH_COND_TYPE_WHILE
        )
        conditional.size = len(node.bodies)
        conditional.ctx = self._context
        parameters = api.CUgraphNodeParams()
        parameters.type = api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        parameters.conditional = conditional
        added = self._call("cuGraphAddNode", native, [setter], None, 1, parameters)
        for body, inner in zip(node.bodies, parameters.conditional.phGraph_out):
            last = self._add_all(graph, inner, body, (), is_top=False)
            if node.kind is ConditionKind.WHILE:
                self._add_setter(inner, last, handle, node)
        return added

    def _add_setter(self, native: Any, dependencies: list[Any], handle: Any, node: ConditionalNode) -> Any:
        """The kernel that reads the predicate and sets the handle."""
        kernel = self._own_kernel(("condition", node.itemsize))
        function, _, arguments = self._own_launch(kernel, [int(handle), node.predicate], 1)
        parameters = self._launch_parameters(function, (1, 1, 1), (1, 1, 1), 0, arguments)
        return self._call("cuGraphAddKernelNode", native, dependencies, len(dependencies), parameters)


def _begins_early(node: KernelNode) -> bool:
    """Whether it is a programmatic launch right behind one kernel, as on a stream."""
    return node.programmatic and len(node.dependencies) == 1 and isinstance(node.dependencies[0], KernelNode)


def _memset_value(node: FillNode) -> tuple[int, int, int] | None:
    """(element size, value, count) for a memset node; None where a kernel has to fill."""
    size, pattern, count = len(node.pattern), node.pattern, node.count
    if size == 8:
        if pattern[:4] != pattern[4:]:
            return None
        size, pattern, count = 4, pattern[:4], 2 * count
    return size, int.from_bytes(pattern, "little"), count
