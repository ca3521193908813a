"""`CudaGraph.scope(stream)`: recording step by step."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..errors import CaptureError
from ..ops import DeviceOp
from ..ops._execution import Execution, _WorkerBlock, check_not_in_callback, check_stream
from ..scheduling import wait_for_callback
from ._capture import check_inputs
from ._graph import CudaGraph
from ._recorder import Mark, Recorder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from ..memory import Tensor
    from ..scheduling import Stream

__all__ = ["Scope"]

T = TypeVar("T")


class Scope:
    """Records operations, in order, into one graph. Made by `CudaGraph.scope(stream)`.

    Ordinary operations may be run inside the block too; only what is given to `record` becomes part of the graph.
    """

    _recorder: Recorder
    _output: Any
    _graph: CudaGraph[Any] | None
    _state: str  # "new", "open", "done" or "failed"
    _recording: object | None  # who is recording an operation: each call has an object to be told by
    _lock: threading.Lock  # held while that is claimed
    _behind: Mark | None  # where to go back to, once other threads have ended the step of it that they are at

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("scopes are made by CudaGraph.scope(stream)")

    @classmethod
    def _make(cls, stream: Stream, inputs: Mapping[str, Tensor] | None) -> Scope:
        check_stream(stream)
        self = object.__new__(cls)
        self._recorder = Recorder(stream, check_inputs(inputs))
        self._output = None
        self._graph = None
        self._state = "new"
        self._recording = None
        self._lock = threading.Lock()
        self._behind = None
        return self

    def record(self, op: DeviceOp[T]) -> T:
        """Add an operation; its output, whose contents exist once the graph is launched.

        What has to be prepared first is prepared on this thread; on an event loop use `arecord`. An operation that
        fails leaves the recording as it was.

        Raises:
            CaptureError: the scope is not open, another task or thread is recording an operation in it, or the
                operation cannot be part of a graph.
        """
        mine, mark = object(), None
        try:
            execution = self._begin(op, mine)
            self._go_back()
            mark = self._recorder.mark()
            while not execution.run():
                assert execution.block is not None
                execution.block.run_blocking()
                self._check_going_on()
        except BaseException:
            if mark is not None:
                self._behind = mark  # first: an interrupt may come into what follows
                execution.abandon()
                self._forget_left()
            raise
        finally:  # calls nothing, so no interrupt comes
            if self._recording is mine:
                self._recording = None
        value: T = execution.value
        return value

    async def arecord(self, op: DeviceOp[T]) -> T:
        """`record`, with slow preparation off the loop."""
        mine, mark = object(), None
        try:
            execution = self._begin(op, mine)
            await self._ago_back()
            mark = self._recorder.mark()
            while not execution.run():
                assert execution.block is not None
                await execution.block.wait()
                self._check_going_on()
        except BaseException:
            if mark is not None:
                self._behind = mark
                execution.abandon()
                self._forget_left()
            raise
        finally:
            if self._recording is mine:
                self._recording = None
        value: T = execution.value
        return value

    def _begin(self, op: DeviceOp[Any], mine: object) -> Execution:
        check_not_in_callback("record()")
        if self._state != "open":
            raise CaptureError(
                "operations are recorded inside the scope: with CudaGraph.scope(stream) as s: s.record(op)"
            )
        if not isinstance(op, DeviceOp):
            raise TypeError(f"record() takes a DeviceOp, got {type(op).__name__}")
        if not self._claim(mine):
            raise CaptureError(
                "another task or thread is recording an operation in this scope; record one after the other, or "
                "branches as one operation, ca.parallel(...)"
            )
        execution = Execution(op._take(), stream=self._recorder.root.stream)
        execution.host_pending = True  # in a recording: stop now and then
        self._recorder.went_on_s = time.perf_counter()
        return execution

    def _claim(self, mine: object) -> bool:
        """Note who is recording; False where somebody else is."""
        with self._lock:
            if self._recording is not None:
                return False
            self._recording = mine
            return True

    def _check_going_on(self) -> None:
        """Behind a wait: the block may be over."""
        if self._state != "open":
            raise CaptureError(
                "the scope ended while this operation was being recorded; await it in the block"
            )

    def _go_back(self) -> None:
        """Where an operation was given up while another thread was at a step of it: wait for that, and forget it."""
        while self._behind is not None:
            for left in self._recorder.leaving():
                left.block()
            self._forget_left()

    async def _ago_back(self) -> None:
        while self._behind is not None:
            for left in self._recorder.leaving():
                await wait_for_callback(left.begin_waiting, _describe_left)
            self._forget_left()
            self._check_going_on()

    def _forget_left(self) -> None:
        if self._behind is not None and self._recorder.back_to(self._behind):
            self._behind = None

    def returns(self, output: Any, *more: Any) -> None:  # tensors, in tuples and the like
        """Say what launches of the graph yield; without this, None. Given several, they yield a tuple.

        Raises:
            TypeError: an operation, also in tuples and the like: `record` it, and give its output. CaptureError: the
                scope is not open.
        """
        if self._state != "open":
            raise CaptureError(
                "what a graph yields is said inside the scope's block, before the graph is made"
            )
        if more:
            output = (output, *more)
        if _has_operation(output):
            raise TypeError(
                "returns() takes what recorded operations gave, got an operation, which the graph would not run; "
                "write s.returns(s.record(op))"
            )
        self._output = output

    @property
    def graph(self) -> CudaGraph[Any]:
        """The graph, once the block is over.

        Raises:
            CaptureError: it is not, or it ended with an error.
        """
        if self._graph is None:
            raise CaptureError(
                "this scope has no graph: it ended with an error"
                if self._state == "failed"
                else "the graph of a scope is there after the block"
            )
        return self._graph

    # -- the block

    def _open(self) -> Scope:
        if self._state != "new":
            raise CaptureError("a scope is used once; make another one with CudaGraph.scope(stream)")
        self._state = "open"
        return self

    def _finish(self) -> CudaGraph[Any]:
        self._state = "failed"  # unless all goes well
        if not self._claim(self):  # for good
            raise CaptureError(
                "an operation is still being recorded in this scope; await it inside of the block"
            )
        return CudaGraph._of(self._recorder, self._output)

    def _done(self, graph: CudaGraph[Any]) -> None:
        self._recorder.keep_shared()
        self._graph = graph
        self._state = "done"
        self._output = None

    def _discard(self) -> None:
        self._state = "failed"
        self._recorder.discard()

    def _give_up(self) -> None:
        """The block has failed."""
        try:
            self._discard()
        except BaseException:  # an interrupt
            self._discard()
            raise

    def __del__(self) -> None:
        recorder = getattr(self, "_recorder", None)
        if recorder is not None:
            recorder.abandon()

    def __enter__(self) -> Scope:
        return self._open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            self._give_up()
            return
        try:
            self._go_back()
            graph = self._finish()
            graph._instantiate()
            self._done(graph)
        except BaseException:
            self._discard()
            raise

    async def __aenter__(self) -> Scope:
        return self._open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            self._give_up()
            return
        try:
            await self._ago_back()
            graph = self._finish()
            block = _WorkerBlock(graph._instantiate)
            await block.wait()
            block.raise_error()
            self._done(graph)
        except BaseException:
            self._discard()
            raise

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Scope cannot be copied or pickled")


def _has_operation(output: Any) -> bool:  # tensors, in tuples and the like
    if isinstance(output, tuple | list):
        return any(_has_operation(item) for item in output)
    if isinstance(output, dict):
        return any(_has_operation(item) for item in output.values())
    return isinstance(output, DeviceOp)


def _describe_left() -> str:
    return "the step of a cancelled recording that another thread is at"
