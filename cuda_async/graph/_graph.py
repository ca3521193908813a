"""`CudaGraph`: recorded work that is launched again and again.

Theory. What a launch needs is worked out when the graph is made: the ordinary buffers that any node reads or writes, in
two tuples, and the driver's executable graph. A launch orders those buffers on its stream as a single operation would
(so work outside, on any stream, is ordered with it, and so are two launches of one graph: they both write its memory
and its token), makes one driver call and raises the generation. The executable is retained by every submission that
it is part of, with all that the nodes use: kernels, staging memory, other graphs' parts. When the last of them is past
and the graph is gone, a note is left with the device, which destroys it.

Changing a node changes later launches only. What the driver cannot change in place is made anew before the next launch,
on a worker thread where the caller is on a loop.

A change is several steps: the node's fields, what it uses, what a launch orders (and so keeps), the driver's graph. An
interrupt or an error of the driver's may come between any two. So the whole change is written down first, and from
before the first step to behind the last one the executable counts as outdated. It is never launched then, and whoever
makes the next one first does what is written down. So a change that raised has not begun, or all of it is made before
the next launch; and the buffers that an executable uses are kept for as long as it may be launched.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

import numpy as np

from ..driver.graph import ChildNode, ConditionalNode, KernelNode, Node
from ..errors import CaptureError, ClosedError, ContextError, CudaAsyncError
from ..memory import Buffer, Mut, Read, Tensor, Usage
from ..ops import DeviceOp, collect, fill, memcpy
from ..ops._unprepared import UNPREPARED
from ..scheduling import destroy_dropped, order_read, order_write, wait_for_submission
from ._memory import CANDIDATES, FIRST_RUN, GraphBuffer, are_over_same_memory, root_of
from ._nodes import all_nodes, nodes_of
from ._outputs import OutputTemplate
from ._picture import graph_to_dot, graph_to_svg
from ._updates import UpdatedGraphLaunch, Updates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from ..driver.graph import GraphHandle
    from ..ops import ExecutionContext
    from ..ops._copies import Fill, Memcpy, Upload
    from ..scheduling import Device, Stream, Submission
    from ._memory import GraphState, Turn
    from ._nodes import GraphNode
    from ._recorder import Recorder, RecordingStream, Uses
    from ._scope import Scope

    ToInput: TypeAlias = Fill | Memcpy | Upload  # what sets an input

__all__ = ["CudaGraph", "GraphLaunch"]

T = TypeVar("T")


class _Contents:
    """What launches of a graph use and do not order: kernels, staging memory, captured work, other graphs."""

    def __init__(self, device: Device, held: list[object], captured: list[GraphHandle]) -> None:
        self._device = device
        self._held = held
        self._captured = captured

    def __del__(self) -> None:
        # At the end of the process the globals of this module may be gone; and the list is not there where an interrupt
        # came before it was made. It is the recorder's: one that failed since has emptied it.
        captured: list[GraphHandle] = getattr(self, "_captured", [])
        while captured:
            self._device._dropped_graphs.append(captured.pop())


class _Executable:
    """The driver's graph. Submissions retain it; when nobody does any more, the device destroys it.

    Attributes:
        handle: there once the driver has made its graph, which has an owner from the start: an interrupt may come next.
        is_kernel, name: messages name it among the kernels in flight. note_failed: who retained it hears of failures.
    """

    handle: GraphHandle
    is_kernel = True

    def __init__(self, device: Device, contents: _Contents, state: GraphState, name: str) -> None:
        self.name = name
        self.note_failed = state.note_failed
        self._device = device
        self._contents = contents

    def __del__(self) -> None:
        handle: GraphHandle | None = getattr(self, "handle", None)
        if handle is not None:
            self._device._dropped_graphs.append(handle)


class _Change(NamedTuple):
    """What a node, and what it uses, become; `uses` is None where that stays."""

    node: Node
    fields: Mapping[str, object]
    uses: Uses | None


class CudaGraph(Generic[T]):
    """Recorded work. Made by `op.graph()`, `op.graph_on(stream)` and `CudaGraph.scope(stream)`.

    It owns all it uses: tensors that only the recording knew, kernels, host data that is uploaded. `launch()` and
    `replay()` make operations that run all of it again. Works on every device, in `async with`, and from any task,
    thread and stream.
    """

    _device: Device
    _stream: Stream
    _state: GraphState
    _nodes: list[Node]
    _uses: dict[Node, Uses]
    _chunks: list[Buffer]
    _token: Buffer  # written by every launch
    _more_reads: list[Buffer]  # of no node
    _more_writes: list[Buffer]
    _contents: _Contents
    _executable: _Executable | None
    _reads: tuple[Buffer, ...]
    _writes: tuple[Buffer, ...]
    _inputs: dict[str, Tensor]
    _updates: Updates  # for the next launch
    _outdated: bool  # the executable graph is not what the nodes say, and must not be launched
    _changes: int  # of nodes, so far
    _change: _Change | None  # that is being made, or was when an interrupt came
    _turn: Turn  # held while inputs are set and the graph is launched

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("graphs are made by op.graph(), op.graph_on(stream) and CudaGraph.scope(stream)")

    @classmethod
    def _of(cls, recorder: Recorder, output: Any) -> CudaGraph[T]:
        """A graph of what was recorded; `_instantiate` makes it ready."""
        recorder.finish()
        with _nesting_refused():
            return cls._made(recorder, output)

    @classmethod
    def _made(cls, recorder: Recorder, output: Any) -> CudaGraph[T]:
        self = object.__new__(cls)
        self._device = recorder.device
        self._stream = recorder.home
        self._state = recorder.state
        self._nodes = recorder.nodes
        self._uses = recorder.uses
        self._chunks = recorder.memory.chunks
        self._token = Buffer(recorder.device, 0, 0, Usage())
        self._more_reads = list(recorder.root.reads)
        self._more_writes = list(recorder.root.writes)
        held = list({id(thing): thing for thing in recorder.held}.values())
        self._contents = _Contents(recorder.device, held, recorder.captured)
        self._inputs = {name: self._settable(tensor) for name, tensor in recorder.inputs.items()}
        self._updates = Updates()
        self._executable = None
        self._closed = False
        self._outdated = False
        self._changes = 0
        self._change = None
        self._turn = self._state.turn
        self._state.link(child for child, _ in recorder.children)
        self._plan()
        written = {*self._writes, *(root_of(tensor._buffer) for tensor in self._inputs.values())}
        self._template = OutputTemplate(output, written, self._device, self._state)
        self._check_inputs(recorder)
        for buffer in self._template.shared:
            buffer.note_shared()
        recorder.take_shared(self, self._writes)
        recorder.release()
        self._state.note_writes(written)
        return self

    def _settable(self, tensor: Tensor) -> Tensor:
        """What another graph yields is good until that one's next launch; it is set whichever launch was the last."""
        given = tensor._buffer
        if not isinstance(given, GraphBuffer) or given.state is self._state:
            return tensor
        memory = GraphBuffer(self._state, None, given.root, given.start, given.size_bytes)
        return Tensor._make(memory, tensor._address, tensor.dtype, tensor.shape, tensor.strides)

    def _check_inputs(self, recorder: Recorder) -> None:
        """Refuse an input that nothing recorded uses: setting it would do nothing."""
        used = (*self._reads, *self._writes)
        for name, tensor in self._inputs.items():
            buffer = tensor._buffer
            is_used = (
                recorder.has_users(buffer)
                if recorder.is_own(buffer)
                else any(are_over_same_memory(root_of(buffer), other) for other in used)
            )
            if tensor.size and not is_used and not self._template.has(tensor._address):
                raise CaptureError(
                    f"nothing in the graph uses its input {name!r}, {tensor!r}; name the tensor that is read, or leave "
                    "the name out"
                )

    def _plan(self) -> None:
        """Work out what a launch orders."""
        reads: dict[Buffer, None] = {}
        writes: dict[Buffer, None] = dict.fromkeys((*self._chunks, self._token))
        for node in all_nodes(self._nodes):
            node_reads, node_writes = self._uses.get(node, ((), ()))
            reads.update(dict.fromkeys(map(root_of, node_reads)))
            writes.update(dict.fromkeys(map(root_of, node_writes)))
        reads.update(dict.fromkeys(map(root_of, self._more_reads)))
        writes.update(dict.fromkeys(map(root_of, self._more_writes)))
        self._writes = tuple(writes)
        self._reads = tuple(buffer for buffer in reads if buffer not in writes)

    def _instantiate(self) -> None:
        """Make the driver's graph; slow, so no turn is held: nodes may change meanwhile, and the graph be closed."""

        def begin() -> tuple[list[Node], _Contents, int]:
            self._finish_change()
            return self._nodes, self._contents, self._changes

        nodes, contents, changes = self._turn.hold(begin)
        with _nesting_refused():
            executable = self._executable_of(nodes, contents)

        def install() -> None:
            self._check_open()
            self._executable = executable
            self._outdated = self._changes != changes  # then it is made once more, before it is launched

        self._turn.hold(install)

    def _executable_of(self, nodes: list[Node], contents: _Contents) -> _Executable:
        count = len(nodes)
        names = ", ".join(dict.fromkeys(n.name for n in all_nodes(nodes) if isinstance(n, KernelNode)))
        name = f"graph of {count} node{'' if count == 1 else 's'}{f' ({names})' if names else ''}"
        executable = _Executable(self._device, contents, self._state, name)
        driver = self._device.driver
        driver.bind()
        with self._device._lock:
            destroy_dropped(self._device)
        executable.handle = driver.graph_create(nodes)
        return executable

    # -- facts

    @property
    def device(self) -> Device:
        """Where it runs."""
        return self._device

    @property
    def stream(self) -> Stream:
        """The stream it was captured for; launches run on any."""
        return self._stream

    @property
    def is_closed(self) -> bool:
        """True after `close()`."""
        return self._closed

    @property
    def launches(self) -> int:
        """How often it was launched."""
        return self._state.generation

    @property
    def nodes(self) -> tuple[GraphNode, ...]:
        """The nodes, each after those it depends on; those of children and conditional bodies are in `node.bodies`.

        Raises:
            ClosedError: the graph is closed.
        """
        self._check_not_closed()
        return nodes_of(self, self._nodes)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The named inputs: tensors that may be written before a launch, in any way.

        Raises:
            ClosedError: the graph is closed.
        """
        self._check_not_closed()
        return dict(self._inputs)

    def __repr__(self) -> str:
        what = "closed CudaGraph" if self._closed else f"CudaGraph of {len(self._nodes)} nodes"
        return f"<{what} on {self._device}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CudaGraph cannot be copied or pickled; capture another one")

    # -- launching

    def launch(self) -> DeviceOp[T]:
        """An operation that runs all of the graph; yields its output, good until the next launch.

        What `update()` was given runs before it. Inside a capture it makes this graph a part of the one that is
        captured.

        Raises:
            ClosedError: the graph is closed; when it runs also, a tensor that it uses was freed.
            DeviceLostError: the device is known to be lost; else, when it runs.
        """
        self._check_open()
        return self._behind_updates(GraphLaunch(self), self._updates.last)

    def replay(self, /, *unnamed: Any, **inputs: Any) -> DeviceOp[T]:
        """`launch()`, with named inputs set before.

        Args:
            inputs: by name, a tensor or an array of the input's shape and type, which is copied into it; a number,
                which fills it as `fill` does; or an operation that yields a tensor. Inputs that are not named stay what
                they are.
        Raises:
            TypeError: no such input, a value without a name, or another element type. ValueError: another shape.
                ContextError: a tensor of another device. OverflowError: a number that an integer type cannot hold.
                (Of operations: when it runs.)
        """
        return self._with_inputs(unnamed, inputs, copies=False)

    def __call__(self, /, *unnamed: Any, **inputs: Any) -> DeviceOp[T]:
        """`replay()`, with the output copied to tensors of its own: they stay good whatever is launched later.

        Setting the inputs, launching and copying is one step that no other launch comes into, so one graph may be
        called from many tasks and threads at once.
        """
        return self._with_inputs(unnamed, inputs, copies=True)

    def _with_inputs(self, unnamed: tuple[Any, ...], inputs: dict[str, Any], *, copies: bool) -> DeviceOp[T]:
        tensors = self._inputs  # first: another thread may close the graph, and then it has none
        self._check_open()
        if unnamed:
            named = ", ".join(f"{name}=..." for name in tensors) or "name them with graph(inputs={...})"
            raise TypeError(f"a graph's inputs are given by name: {named}")
        for name in inputs:
            if name not in tensors:
                there = ", ".join(tensors) or "none; name them with graph(inputs={...}) or graph_input()"
                raise TypeError(f"the graph has no input {name!r}; its inputs: {there}")
        computed = [name for name, value in inputs.items() if isinstance(value, DeviceOp)]
        steps = {n: set_input(n, tensors[n], v) for n, v in inputs.items() if n not in computed}
        if not computed:
            launch = GraphLaunch(self, list(steps.values()), copies=copies)
            return self._behind_updates(launch, self._updates.last)

        last = self._updates.last  # later ones are for launches that are made later

        def go_on(values: list[Any]) -> DeviceOp[T]:
            for name, value in zip(computed, values):
                steps[name] = set_input(name, tensors[name], value)
            return self._behind_updates(GraphLaunch(self, list(steps.values()), copies=copies), last)

        return collect([inputs[name] for name in computed]).then(go_on)

    def _behind_updates(self, launch: GraphLaunch[T], last: int) -> DeviceOp[T]:
        """The launch, behind what `update()` was given up to number `last`, if it was given anything.

        A launch that begins before it may leave some to it, so whether there are any now says nothing.
        """
        return UpdatedGraphLaunch(self._updates, last, launch) if last else launch

    def update(self, op: DeviceOp[Any]) -> None:
        """Run `op` before the next launch, on the launch's stream: a `memcpy` into a tensor the graph reads, say.

        Lazy: of the operations that `launch()`, `replay()` and calls of the graph make afterwards, the first that
        begins to run runs it, and has its errors. One that is dropped, or cancelled before it begins, leaves it to the
        next of them. So does one that is cancelled later, or fails by an earlier update, before all of this one is
        enqueued: it runs once, so where it has begun it goes on, and the next launch waits for it. A capture that is
        cancelled or fails, or whose graph ends without a launch, leaves all updates that it recorded, but for one that
        it failed by; else they are steps of its graph, and run in each launch of that. Recorded in the body of a
        conditional, such a launch is a `CaptureError`.
        """
        self._check_open()
        if not isinstance(op, DeviceOp):
            raise TypeError(f"update() takes a DeviceOp, got {type(op).__name__}")
        self._updates.add(op)

    def take_output(self) -> T:
        """The output of the last launch; before the first one, of that.

        It holds nothing before the first launch, and is stale after the next.

        Raises (when it is used):
            StaleOutputError: it is not the last launch's.
        """
        self._check_open()
        output: T = self._template.build(self._state, max(1, self._state.generation))
        return output

    def _launch_on(self, ctx: ExecutionContext, copies: bool, rooms: Sequence[Tensor]) -> Any:
        """Turn held. Enqueue a launch; the output, copied to `rooms` if `copies`."""
        executable = self._executable
        assert executable is not None
        stream = ctx.stream
        self._check_device(ctx)
        if stream._recorder is not None:
            recorder: Any = stream._recorder
            self._record_into(recorder, stream)  # type: ignore[arg-type]  # with it comes such a stream
            if copies:
                return self._template.build_copy(recorder.state, FIRST_RUN, ctx, self._template.rooms(ctx))
            output, buffers = self._template.build_recorded(recorder.state)
            recorder.note_outputs(stream, self._state, buffers)
            return output
        state = self._state
        before = state.generation
        if len(state.runs) >= CANDIDATES or state.sure:
            state.ask()
        try:
            generation = self._enqueue(ctx, executable)
        except BaseException as error:
            # Whether an interrupt came before the driver took the launch or behind it, nobody knows. A signal handler
            # may raise anything.
            if not isinstance(error, CudaAsyncError):
                with self._device._lock:
                    state.interrupt(error, before)
                state.note_launched()
            raise
        if state.is_waited_for():
            try:
                state.note_launched()
            finally:  # behind an interrupt: what is left
                state.note_launched()
        if copies:
            return self._template.build_copy(state, generation, ctx, rooms)
        return self._template.build(state, generation)

    def _check_device(self, ctx: ExecutionContext) -> None:
        if ctx.device is not self._device:
            raise ContextError(
                f"the graph was captured on {self._device}, but this runs on {ctx.device}; capture it there too"
            )

    def _enqueue(self, ctx: ExecutionContext, executable: _Executable) -> int:
        """Which launch it is."""
        reads, writes, stream = self._reads, self._writes, ctx.stream
        device = self._device
        with device._lock:
            number = stream._next
            # order_read and order_write, with the case of one stream written out: a model has hundreds of weights.
            # A buffer that is plain is not freed.
            for buffer in reads:
                if buffer.plain_on is device:
                    usage = buffer.usage
                    if usage.quick_reader is stream:
                        usage.read_number = number
                        continue
                elif buffer.address < 0:
                    self._refuse_freed(buffer)
                order_read(stream, buffer)
            for buffer in writes:
                if buffer.plain_on is device:
                    usage = buffer.usage
                    if usage.write_stream is stream and usage.read_stream is None:
                        usage.write_number = number
                        continue
                elif buffer.address < 0:
                    self._refuse_freed(buffer)
                order_write(stream, buffer)
            stream._retained.append(executable)  # first: an interrupt may come behind the driver's call
            stream._dirty = True
            ctx._driver.graph_launch(executable.handle, stream._handle)
            return self._state.advance(stream, number)

    def _note_inputs_set(self, steps: Sequence[ToInput]) -> None:
        """Turn held. Inputs may have been set for a launch that did not come: what is yielded of them is stale."""
        is_yielded = any(self._template.has(step.target._address) for step in steps)
        with self._device._lock:
            if is_yielded:
                self._state.is_current = False
            self._state.overwrite()  # what others yield is not known here

    def _refuse_freed(self, buffer: Buffer) -> NoReturn:
        raise ClosedError(
            f"the graph uses {buffer.size_bytes} bytes that were freed with tensor.free(); capture it anew, with "
            "tensors that are kept"
        )

    def _record_into(self, recorder: Recorder, stream: RecordingStream) -> None:
        """Become a part of another graph."""
        for buffer in (*self._reads, *self._writes):
            if buffer.address < 0:
                self._refuse_freed(buffer)
        lane = stream._lane
        reads, writes = tuple(lane.reads), tuple(lane.writes)
        for buffer in self._reads:
            recorder.note_read(stream, buffer)
        for buffer in self._writes:
            recorder.note_write(stream, buffer)
        is_sure = lane.body is recorder.nodes
        if not is_sure and self._state.has_updates():
            recorder.refuse_updates_in_body()
        recorder.overwrite_outputs(lane, self._state)
        node = ChildNode(nodes=copied_nodes(self._nodes, recorder, self._uses))
        lane.add(node)
        # What its nodes use is theirs, and may be changed there.
        recorder.uses[node] = (
            (*reads, *self._more_reads),
            (*writes, *self._chunks, self._token, *self._more_writes),
        )
        recorder.held.append(self._contents)
        self._state.note_part_of(recorder.state)
        recorder.children.append((self._state, is_sure))

    # -- changing nodes

    def _change_node(self, node: Node, fields: Mapping[str, object], uses: Uses | None) -> None:
        """Turn held, no change begun. Later launches use the node as it is then.

        Args:
            fields: of the node, by name. uses: of it; None leaves that as it is.
        """
        executable = None if self._outdated else self._executable
        self._outdated = True
        self._changes += 1  # first: who is making the driver's graph meanwhile has to make it again
        self._change = _Change(node, fields, uses)
        self._finish_change()
        if executable is not None and self._device.driver.graph_update(executable.handle, node):
            self._outdated = False

    def _finish_change(self) -> None:
        """Turn held. Make the change that is written down; each step may be done twice."""
        change = self._change
        if change is not None:
            for name, value in change.fields.items():
                setattr(change.node, name, value)
            if change.uses is not None:
                self._uses[change.node] = change.uses
                self._plan()
            self._change = None

    # -- looking at it

    def to_dot(self) -> str:
        """The graph in Graphviz's language; of a closed one, `ClosedError`."""
        self._check_not_closed()
        return graph_to_dot(self._nodes)

    def to_svg(self) -> str:
        """The graph as a picture: an SVG document; of a closed one, `ClosedError`."""
        self._check_not_closed()
        return graph_to_svg(self._nodes)

    def _repr_svg_(self) -> str | None:
        """For notebooks."""
        return None if self._closed else self.to_svg()

    # -- recording step by step

    @staticmethod
    def scope(stream: Stream, *, inputs: Mapping[str, Tensor] | None = None) -> Scope:
        """Record several operations into one graph: `with CudaGraph.scope(stream) as s: s.record(op)`.

        `s.graph` is the graph, after the block. With `async with`, what is slow is done off the loop.

        Args:
            stream: whose device the graph is for. inputs: tensors that `replay()` sets, by name.
        """
        from ._scope import Scope

        return Scope._make(stream, inputs)

    # -- closing

    def _check_open(self) -> None:
        self._check_not_closed()
        self._device._check_usable()

    def _check_not_closed(self) -> None:
        if self._closed:
            raise ClosedError("this graph is closed; capture another one")

    def _last_submission(self) -> Submission | None:
        last = self._state.last
        if last is None or not self._device.is_healthy:
            return None
        stream, number = last
        self._device.driver.bind()
        with self._device._lock:
            return stream._covering(number)

    def close(self) -> None:
        """Wait for the last launch and give back what the graph owns. Closing twice is fine.

        What the last launch yielded stays good.
        """
        if not self._closed:
            submission = self._last_submission()
            if submission is not None:
                submission.block()
            self._end()

    async def aclose(self) -> None:
        """`close()`, without blocking the loop. Errors of the last launch belong to its await."""
        if not self._closed:
            submission = self._last_submission()
            if submission is not None:
                try:
                    await wait_for_submission(submission)
                except Exception:  # raised where the launch was awaited
                    if submission.error is None:
                        raise
            self._end()

    def _end(self) -> None:
        self._turn.hold(self._let_go)

    def _let_go(self) -> None:
        """Turn held."""
        self._closed = True
        self._executable = None
        self._change = None
        self._nodes = []
        self._uses = {}
        self._reads = self._writes = ()
        self._chunks = []
        self._more_reads = []
        self._more_writes = []
        self._inputs = {}
        self._updates.close()
        self._template = OutputTemplate(None, (), self._device)
        self._contents = _Contents(self._device, [], [])

    async def __aenter__(self) -> CudaGraph[T]:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __enter__(self) -> CudaGraph[T]:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class GraphLaunch(DeviceOp[T]):
    """One launch of a graph. Made by `CudaGraph.launch()`, `replay()` and by calling it.

    All that is slow is prepared first; then the inputs are set, and the graph is launched and its output copied if that
    was asked for, in one go that no other launch of the graph comes into.
    """

    _reports_unprepared = True
    _checks_output = False
    _mapped = False

    def __init__(self, graph: CudaGraph[T], steps: Sequence[ToInput] = (), *, copies: bool = False) -> None:
        self._graph = graph
        self._steps = steps
        self._copies = copies

    def _device_hint(self) -> Device:
        return self._graph._device

    def prepare(self, ctx: ExecutionContext) -> None:
        graph = self._graph
        if graph._executable is None or graph._outdated:
            graph._check_open()
            graph._instantiate()
        for step in self._steps:
            if step.needs_prepare(ctx):
                step.prepare(ctx)
        if self._copies and ctx.device._would_map(graph._template.size_bytes):
            ctx.device._map_ahead(graph._template.size_bytes, ctx.stream)

    def execute(self, ctx: ExecutionContext) -> Any:
        graph = self._graph
        if ctx.device is graph._device:
            for step in self._steps:
                if step.needs_prepare(ctx):
                    return UNPREPARED
            if self._copies and not self._mapped and ctx.device._would_map(graph._template.size_bytes):
                self._mapped = (
                    True  # once is enough: another may have taken it, and then this one maps it here
                )
                return UNPREPARED
        return graph._turn.hold(functools.partial(self._launch, ctx))

    def _launch(self, ctx: ExecutionContext) -> Any:
        """Turn held."""
        graph = self._graph
        if graph._executable is None or graph._outdated:
            graph._check_open()
            return UNPREPARED
        for step in self._steps:
            step.check_operands(ctx)
        for i, step in enumerate(self._steps):
            step.read_before(self._steps[:i], ctx)
        rooms: Sequence[Tensor] = ()
        if self._copies and ctx.stream._recorder is None:
            graph._check_device(ctx)
            rooms = graph._template.rooms(ctx)
        if not self._steps:
            return graph._launch_on(ctx, self._copies, rooms)
        try:
            for step in self._steps:
                step.execute(ctx)
            return graph._launch_on(ctx, self._copies, rooms)
        except BaseException:
            if ctx.stream._recorder is None:
                graph._note_inputs_set(self._steps)
            raise


def set_input(name: str, tensor: Tensor, value: Any) -> ToInput:
    """An operation, of one step, that puts `value` into an input; errors name it."""
    try:
        if isinstance(value, Tensor) and value.device is not tensor.device:
            value.device._check_not_closed()
            raise ContextError(
                f"the tensor is on {value.device}, the graph on {tensor.device}; bring its elements over first, "
                "with await tensor.to_host()"
            )
        if value is None or isinstance(value, (Mut, Read)):
            raise TypeError(f"it is set to a tensor, an array or a number, got {type(value).__name__}")
        if isinstance(value, (int, float, np.generic)):
            return cast("ToInput", fill(tensor, value))
        return cast("ToInput", memcpy(tensor, value))
    except (TypeError, ValueError, OverflowError, ContextError) as error:
        if type(error) not in (TypeError, ValueError, OverflowError, ContextError):
            raise
        expected = f"{tensor.dtype.name} {tuple(tensor.shape)}"
        problem = str(error).removeprefix("memcpy() ")  # which the caller has not called
        raise type(error)(f"the graph's input {name!r}, {expected}: {problem}") from error


@contextlib.contextmanager
def _nesting_refused() -> Iterator[None]:
    """Graphs and bodies are gone through by functions that call themselves."""
    try:
        yield
    except RecursionError:
        raise CaptureError(
            "graphs or conditionals nest too deeply in this graph (some hundred deep); record the operations instead "
            "of a graph of a graph, and loops with while_loop()"
        ) from None


def copied_nodes(nodes: list[Node], recorder: Recorder, uses: Mapping[Node, Any]) -> list[Node]:
    """Nodes of a graph, to become part of another one: changes of either concern that one only.

    Captured work is not copied: the contents of the graph it comes from keep it.
    """
    copies: dict[Node, Node] = {}
    for node in nodes:
        made = copies[node] = copy.copy(node)
        made.dependencies = tuple(copies[d] for d in node.dependencies)
        if isinstance(made, KernelNode):
            made.arguments = made.arguments.copy()
        elif isinstance(made, ChildNode):
            made.nodes = copied_nodes(made.nodes, recorder, uses)
        elif isinstance(made, ConditionalNode):
            made.bodies = tuple(copied_nodes(body, recorder, uses) for body in made.bodies)
        recorder.uses[made] = uses.get(node, ((), ()))
    return list(copies.values())
