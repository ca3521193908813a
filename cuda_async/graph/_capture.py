"""`op.graph()`: an operation that records another one and yields the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..errors import CaptureError, ContextError
from ..memory import DType, Tensor, as_dtype, as_shape, contiguous_strides
from ..memory._hints import instead_of_a_value
from ..ops import DeviceOp, ExecutionContext
from ..ops._execution import _WorkerBlock
from ..scheduling import SingleStream
from ._graph import CudaGraph
from ._recorder import Recorder, RecordingStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..memory import ShapeLike
    from ..ops._execution import Execution
    from ..scheduling import Device, Stream

__all__ = ["Capture", "check_inputs", "graph_input"]

T = TypeVar("T")


class Capture(DeviceOp[CudaGraph[T]]):
    """`op.graph()` and `op.graph_on(stream)`."""

    _composite = True

    def __init__(
        self, source: DeviceOp[T], stream: Stream | None, inputs: Mapping[str, Tensor] | None
    ) -> None:
        self._inputs = check_inputs(inputs)
        self._captured = source._take()
        self._stream = stream
        self._scheduling_policy = (
            self._captured._scheduling_policy if stream is None else SingleStream(stream)
        )

    def _device_hint(self) -> Device | None:
        return None if self._stream is None else self._stream.device

    def _parts(self) -> Sequence[DeviceOp[Any]]:
        return (self._captured,)

    def __getattr__(self, name: str) -> NoReturn:
        hint = ""
        if not name.startswith("_") and hasattr(CudaGraph, name):
            hint = f"; it is an operation that makes a graph: await it, or call .sync(), and ask the graph for .{name}"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def _enter(self, execution: Execution) -> DeviceOp[Any]:
        ctx = execution.ctx
        stream = self._stream or ctx.stream
        if stream.device is not ctx.device:
            raise ContextError(
                f"the graph is to be captured on {stream!r}, but the chain runs on {ctx.device}"
            )
        execution.close_part()
        recorder = Recorder(ctx.stream if ctx.stream._recorder is not None else stream, self._inputs)
        execution.frames += (_GivenUpFrame(recorder), _CaptureFrame(execution, recorder))
        execution.ctx = recorder.root.context
        execution.host_pending = True
        return self._captured


class _GivenUpFrame:
    """Below the one that follows, which is taken off before it goes on: an interrupt may come in between.

    One that comes before `given_up` does its work leaves that to the finalizer.
    """

    __slots__ = ("recorder",)

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def _resume(self, execution: Execution, value: Any) -> None:
        execution.value = value

    def given_up(self) -> None:
        """An error, an interrupt or a cancel came before the graph was made."""
        self.recorder.discard()

    def __del__(self) -> None:
        recorder = getattr(self, "recorder", None)
        if recorder is not None:
            recorder.abandon()


class _CaptureFrame:
    """Waits for the recorded output, then for the driver's graph."""

    __slots__ = ("ctx", "graph", "host_pending", "recorder")

    def __init__(self, execution: Execution, recorder: Recorder) -> None:
        self.ctx = execution.ctx
        self.host_pending = execution.host_pending
        self.recorder = recorder
        self.graph: CudaGraph[Any] | None = None

    def _resume(self, execution: Execution, value: Any) -> None:
        graph = self.graph
        if graph is None:
            execution.ctx = self.ctx
            execution.enqueued = 0  # nothing was: there is nothing to wait for
            execution.host_pending = self.host_pending
            graph = self.graph = CudaGraph._of(self.recorder, value)
            execution.frames.append(self)
            execution.block = _WorkerBlock(graph._instantiate)
            return
        self.recorder.keep_shared()
        execution.value = graph


def check_inputs(inputs: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Raises `TypeError` for what cannot be named inputs."""
    if inputs is None:
        return {}
    if not isinstance(inputs, Mapping):
        raise TypeError(f"a graph's inputs are tensors by name, as {{'x': x}}, got {type(inputs).__name__}")
    for name, tensor in inputs.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"a graph's inputs are named by words, as {{'x': x}}, got the name {name!r}")
        if not isinstance(tensor, Tensor):
            hint = instead_of_a_value(tensor)
            raise TypeError(
                f"a graph's inputs are tensors by name, got {name!r}: {type(tensor).__name__}{hint}"
            )
    return dict(inputs)


class GraphInput(DeviceOp[Tensor]):
    """`graph_input(name, shape, dtype)`."""

    _checks_output = False

    def __init__(self, name: str, shape: tuple[int, ...], dtype: DType) -> None:
        self._name = name
        self._shape = shape
        self._dtype = dtype

    def execute(self, ctx: ExecutionContext) -> Tensor:
        stream = ctx.stream
        if not isinstance(stream, RecordingStream):
            raise CaptureError(
                f"graph_input({self._name!r}) is for operations that are captured: op.graph(), or scope.record(op)"
            )
        recorder = stream._lane.recorder
        if self._name in recorder.inputs:
            raise CaptureError(f"the graph has an input {self._name!r} already; names are used once")
        size = self._dtype.itemsize
        for extent in self._shape:
            size *= extent
        buffer = recorder.allocate(size, stream, is_input=True)
        tensor = Tensor._make(
            buffer, buffer.address, self._dtype, self._shape, contiguous_strides(self._shape)
        )
        recorder.inputs[self._name] = tensor
        return tensor


def graph_input(name: str, shape: ShapeLike, dtype: object = "float32") -> DeviceOp[Tensor]:
    """Inside a capture: a new tensor that belongs to the graph and that `graph.replay(name=...)` sets.

    Its contents are undefined until then.

    Raises (when it runs):
        CaptureError: outside of a capture, or a name that is used already.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"a graph's inputs are named by words, got {name!r}")
    return GraphInput(name, as_shape(shape), as_dtype(dtype))
