"""Recording: operations enqueue on streams that only take notes.

Theory. A graph could be made by capturing a stream of the driver's. That mode forbids things to other threads, or to
this one, is broken by what other libraries do meanwhile, has no meaning on the host device, and would have to be
held while an operation is being prepared. Here nothing of the driver's is touched: the operations run against a
`RecordingStream`, and what they do comes back to the `Recorder` as orderings (`note_read`, `note_write`),
allocations and driver calls, which become nodes. The execution may stop and go on as often as it likes; errors and
cancellation leave nothing to be undone. Orderings are noted here only, so the buffers' own last uses stay as they
were.

Branches. A lane is a branch: its nodes come one after the other. `parallel` forks lanes and joins them. Nodes of
different lanes that use the same memory are ordered as on streams: a lane waits for the lane of the last write, and
with a write for those of the reads since, unless it comes behind that lane anyway (`Lane.known`). The bodies of
conditional nodes are lists of nodes of their own; no node of a body depends on one outside of it, so such waits go
to the conditional node.

Other libraries put work on a stream by its handle. Asking a recording stream for its `handle` (or `__cuda_stream__`)
begins a capture by the driver, on a stream that is the lane's own, in the mode that forbids nothing to anybody; it
ends with the next node, or when the operation is done, and what was captured becomes one node. Operations of this
package use `Stream._handle` and never begin one.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ..driver._inline import current_runner
from ..driver.graph import ForeignNode, GraphHandle, KernelNode, Node
from ..errors import CaptureError, ContextError
from ..ops import ExecutionContext
from ..ops._turns import MAX_ENQUEUEING_S
from ..scheduling import Stream, checkpoint, run_in_worker
from ._driver import RecordingDriver
from ._memory import OF_A_BODY, GraphBuffer, GraphMemory, GraphState, living, root_of
from ._outputs import output_of_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ..driver import ArgumentBlock, Driver, FunctionHandle, StreamHandle
    from ..memory import Buffer
    from ..ops._execution import Execution
    from ..ops._shared import Gate
    from ..scheduling import Device, Submission, Unfinished
    from ..scheduling._recorder import Recorder as RecorderProtocol
    from ._graph import CudaGraph
    from ._updates import UpdatedGraphLaunch

__all__ = ["Lane", "Recorder", "RecordingContext", "RecordingStream", "Uses"]

Uses = tuple[tuple["Buffer", ...], tuple["Buffer", ...]]
"""The buffers that a node reads, and those that it writes."""


@dataclass
class Mark:
    """Where a recording is, to go back to: its root lane's last nodes, the named inputs, those of them that nothing has
    used yet, and how many of all else."""

    tail: list[Node]
    extra: list[Node]
    inputs: dict[str, Any]
    nodes: int
    uses: int
    lanes: int
    held: int
    captured: int
    children: int
    yielded: int
    shared: int
    overwritten: int
    updated: int
    unused: list[Buffer]


class RecordingStream(Stream):
    """A stream on which nothing is enqueued."""

    __slots__ = ("_lane",)

    _lane: Lane

    @property
    def handle(self) -> StreamHandle:
        """For other libraries: a stream that is being captured for the graph."""
        return self._lane.begin_foreign()

    def _wait_for(self, source: Stream, number: int) -> None:
        """Launches of the graph are ordered by what they use; the recording waits for nothing."""

    def _record(self) -> Any:  # None: there is no submission, and whoever asks here knows that
        return None

    def _submit(self, *, theirs: bool = False) -> Submission | None:
        return None

    def _refuse(self, what: str) -> NoReturn:
        raise CaptureError(
            f"{what} while a graph is recorded on this stream: nothing runs until it is launched"
        )

    def synchronize(self) -> None:
        """Refused."""
        self._refuse("synchronize()")

    def record(self) -> NoReturn:
        """Refused."""
        self._refuse("an event was recorded")

    def wait(self, event: object) -> None:
        """Refused."""
        self._refuse("wait()")

    def close(self) -> None:
        """Refused."""
        self._refuse("close()")

    async def aclose(self) -> None:
        """Refused."""
        self._refuse("aclose()")


class RecordingContext(ExecutionContext):
    """What operations see while they are recorded."""

    __slots__ = ()

    def __init__(self, device: Device, stream: Stream, driver: RecordingDriver) -> None:
        super().__init__(device, stream)
        self._driver = cast("Driver", driver)

    @property
    def driver(self) -> Driver:
        """What makes nodes of its calls."""
        return self._driver

    def _order_again(self) -> None:
        """One execution at a time is recorded, and no other thread comes in between."""

    def _settle(self) -> None:
        self._noted_in = 0
        self._touched.clear()
        self._retained = []
        cast("RecordingStream", self.stream)._lane.end_foreign()


class Lane:
    """A branch of a graph.

    Attributes:
        body: the list that its nodes go to. outer: the lane that a conditional body belongs to.
        tail: what the next node comes behind. extra: more that it comes behind, in other lanes.
        known: lanes that all of this one comes behind.
        repeats: it is the body of a loop.
        reads, writes: what the next node uses, other than memory of the graph's own.
        read, written: address and size of all that it uses.
        overwritten: of the body of a conditional: how many outputs were stale before.
    """

    overwritten = 0

    def __init__(
        self, recorder: Recorder, body: list[Node], outer: Lane | None = None, *, repeats: bool = False
    ) -> None:
        self.recorder = recorder
        self.body = body
        self.outer = outer
        self.repeats = repeats
        self.tail: list[Node] = []
        self.extra: list[Node] = []
        self.known: set[Lane] = set()
        self.reads: dict[Buffer, None] = {}
        self.writes: dict[Buffer, None] = {}
        self.read: list[tuple[int, int]] = []
        self.written: list[tuple[int, int]] = []
        self._foreign: StreamHandle | None = None
        home = recorder.home
        driver = RecordingDriver(self, recorder.device.driver)
        stream = RecordingStream._make(
            recorder.device, home._handle, home.priority, f"recording on {home.name}"
        )
        assert isinstance(stream, RecordingStream)
        stream._lane = self
        stream._recorder = cast("RecorderProtocol", recorder)
        self.stream = stream
        self.context = RecordingContext(recorder.device, stream, driver)

    def add(self, node: Node) -> None:
        """Append a node that comes behind everything in this lane."""
        self.end_foreign()
        self._append(node)

    def _append(self, node: Node) -> None:
        node.dependencies = tuple(dict.fromkeys((*self.tail, *self.extra)))
        memory = self.recorder.memory
        if memory.renewed and self.outer is None:  # once, and not in every turn of a body
            node.renewed = tuple(memory.renewed)
            memory.renewed.clear()
        self.tail = [node]
        self.extra = []
        self.body.append(node)
        self.recorder.uses[node] = (tuple(self.reads), tuple(self.writes))
        node.read = tuple(dict.fromkeys(self.read))
        node.written = tuple(dict.fromkeys(self.written))
        if isinstance(node, KernelNode):
            node.recorded_written = node.written
        self.forget_uses()

    def forget_uses(self) -> None:
        """What was noted for the next node is no node's."""
        self.reads.clear()
        self.writes.clear()
        self.read.clear()
        self.written.clear()

    def is_within(self, body: list[Node]) -> bool:
        """Whether what is recorded here runs in `body`, or in a body of a conditional in it."""
        lane: Lane | None = self
        while lane is not None and lane.body is not body:
            lane = lane.outer
        return lane is not None

    def loops(self) -> list[Lane]:
        """Those that this is in: the lanes of their bodies."""
        found, lane = [], self
        while lane.outer is not None:
            if lane.repeats:
                found.append(lane)
            lane = lane.outer
        return found

    def wait_for(self, other: Lane) -> None:
        """What comes next here comes behind all of `other` so far."""
        if other is self or other in self.known:
            return
        mine: Lane | None = self
        enclosing: dict[int, Lane] = {}
        while mine is not None:
            enclosing[id(mine.body)] = mine
            mine = mine.outer
        theirs: Lane | None = other
        while theirs is not None and id(theirs.body) not in enclosing:
            theirs = theirs.outer
        if theirs is not None:
            waiting = enclosing[id(theirs.body)]
            if waiting is not theirs:
                waiting.extra += theirs.tail

    # -- other libraries' work

    def begin_foreign(self) -> StreamHandle:
        """A stream whose work becomes part of this lane."""
        device = self.recorder.device
        if device.kind != "cuda":
            return self.stream._handle  # the calls of this device's driver are recorded whatever they name
        if self._foreign is None:
            driver: Any = device.driver  # the CUDA driver has these calls
            handle = driver.stream_create()
            driver.capture_begin(handle)
            self._foreign = handle
        return self._foreign

    def end_foreign(self, *, keep: bool = True) -> None:
        """Make a node of what other libraries enqueued since; or forget it.

        Raises:
            CaptureError: it cannot be part of a graph.
        """
        handle, self._foreign = self._foreign, None
        if handle is None:
            return
        driver: Any = self.recorder.device.driver
        try:
            driver.bind()  # it may be another thread that gives up
            captured = driver.capture_end(handle)
        finally:
            driver.stream_destroy(handle)
        if captured is None:
            return
        self.recorder.captured.append(captured)
        if keep:
            self._append(ForeignNode(captured=captured))


class _Pause:
    """A recording that took a while lets the loop's other tasks run. Nothing is open meanwhile."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def begin(self, wake: Callable[[], None]) -> Callable[[], None]:
        run_in_worker(wake)
        return lambda: None

    def run_blocking(self) -> None:
        """Nobody to let run."""

    async def wait(self) -> None:
        await checkpoint()

    def describe(self) -> str:
        return "the recording of a graph"

    def raise_error(self) -> None:
        """Called when the recording goes on."""
        self._recorder.went_on_s = time.perf_counter()


class _Users:
    """Who used a piece of memory last, in the recording.

    Attributes:
        buffer: one over it, whose usage tells what it shares memory with; None for memory of the graph's own.
        writers: of each of its parts, where they were joined since.
    """

    __slots__ = ("buffer", "readers", "writers")

    def __init__(self, buffer: Buffer | None) -> None:
        self.buffer = buffer
        self.writers: dict[Lane, None] = {}  # in order, so that a graph is the same each time
        self.readers: dict[Lane, None] = {}

    def add(self, others: _Users) -> None:
        """Those of memory that is ordered as one with this by now."""
        self.writers |= others.writers
        self.readers |= others.readers


class Recorder:
    """One recording. Made for a stream, whose device and order its memory comes from.

    Attributes:
        nodes: of the graph itself; the bodies of conditional nodes have lists of their own.
        uses: what each node reads and writes besides memory of this graph.
        captured: other libraries' work. inputs: tensors by name, those that were given and then the graph's own.
        children: graphs that are part of this one, and whether they run with it for sure, in no body of a conditional.
        went_on_s: when the recording began, or went on after a pause.
        is_over: its graph is made, or nothing is left of it to give up.
        is_abandoned: who recorded is gone, and an interrupt kept it from `discard()`.
    """

    def __init__(self, home: Stream, inputs: Mapping[str, Any]) -> None:
        home._check_open()
        if home._recorder is not None:
            raise CaptureError(
                "a graph cannot be captured while another one is recorded; capture it before, and make it a part "
                "of this one with graph.launch()"
            )
        for name, tensor in inputs.items():
            if tensor.device is not home.device:
                raise ContextError(
                    f"the graph's input {name!r} is on {tensor.device}, but the graph is captured on {home.device}"
                )
        self.home = home
        self.device = home.device
        self.state = GraphState()
        self.memory = GraphMemory(home)
        self.nodes: list[Node] = []
        self.uses: dict[Node, Uses] = {}
        self.captured: list[GraphHandle] = []
        self.inputs: dict[str, Any] = dict(inputs)  # tensors
        self.children: list[tuple[GraphState, bool]] = []
        self._yielded: list[tuple[GraphState, list[GraphBuffer]]] = []
        self._overwritten: list[GraphBuffer] = []
        self._used_in_bodies: dict[GraphBuffer, set[Lane]] = {}  # of memory of other graphs
        self._shared: list[tuple[Gate, Lane]] = []
        self._kept: list[tuple[Gate, Any, Callable[[], None], Callable[[], bool]]] = []  # see Gate.keep
        self._updated: list[UpdatedGraphLaunch[Any]] = []  # launches behind updates, in order
        self._leaving: list[Unfinished] = []
        self._made: list[weakref.ref[GraphBuffer]] | None = None  # since the mark
        self.held: list[object] = []
        self._users: dict[object, _Users] = {}
        self._usages_joined = self.device._usages_joined
        self._names: dict[FunctionHandle, str] = {}
        self._lanes: list[Lane] = []
        self._branches = 0
        self.is_over = self.is_abandoned = False
        self._abandoned_lock = threading.RLock()  # held while callbacks run
        self.went_on_s = time.perf_counter()
        self.root = self._lane(self.nodes)

    def _lane(self, body: list[Node], outer: Lane | None = None, *, repeats: bool = False) -> Lane:
        lane = Lane(self, body, outer, repeats=repeats)
        lane.stream._retained = self.held  # a graph keeps what its launches use
        self._lanes.append(lane)
        return lane

    # -- what operations do; no lock guards it, as one execution at a time is recorded

    def note_read(self, stream: RecordingStream, buffer: Buffer) -> None:
        """What is recorded next reads the buffer."""
        lane = stream._lane
        self._check_there(lane, buffer)
        users = self._users_of(buffer)
        for writer in users.writers:
            lane.wait_for(writer)
        users.readers[lane] = None
        lane.read.append((buffer.start, buffer.size_bytes))
        if not self.is_own(buffer):
            lane.reads[buffer] = None

    def note_write(self, stream: RecordingStream, buffer: Buffer) -> None:
        """What is recorded next writes the buffer."""
        lane = stream._lane
        self._check_there(lane, buffer)
        users = self._users_of(buffer)
        for user in (*users.writers, *users.readers):
            lane.wait_for(user)
        users.writers = {lane: None}
        users.readers = {}
        lane.written.append((buffer.start, buffer.size_bytes))
        if not self.is_own(buffer):
            lane.writes[buffer] = None

    def _check_there(self, lane: Lane, buffer: Buffer) -> None:
        """Refuse what another recording has yet to fill, or the body of a conditional may not have filled."""
        if isinstance(buffer, GraphBuffer):
            if buffer.is_recorded and buffer.state is not self.state:
                buffer.check_filled()
            if buffer.body is not None and not lane.is_within(buffer.body):
                raise CaptureError(OF_A_BODY)
            if lane.outer is not None and not self.is_own(buffer):
                self._used_in_bodies.setdefault(buffer, set()).add(lane)

    def is_own(self, buffer: Buffer) -> bool:
        """Whether it is memory of this graph: every launch uses all of that, and it may be dropped meanwhile.

        What a part of this graph yields is the part's, or of whoever else has it.
        """
        is_ours = isinstance(buffer, GraphBuffer) and buffer.state is self.state
        return is_ours and self.memory.has(root_of(buffer))

    def has_users(self, buffer: Buffer) -> bool:
        """Whether anything that was recorded uses this memory of the graph's own."""
        return id(buffer) in self._users

    def _users_of(self, buffer: Buffer) -> _Users:
        # Buffers of one graph share their chunks' usages, and are told apart here: where one has the number of another
        # that was dropped, it is ordered behind that one's users too. All others share a usage if they share memory.
        is_own = self.is_own(buffer)
        if self._usages_joined != self.device._usages_joined:
            self._join_users()
        key: object = id(buffer) if is_own else buffer.usage
        users = self._users.get(key)
        if users is None:
            users = self._users[key] = _Users(None if is_own else buffer)
        return users

    def _join_users(self) -> None:
        """Memory came in from another library, over what was used here: it is ordered as one from then on."""
        self._usages_joined = self.device._usages_joined
        for key, users in list(self._users.items()):
            if users.buffer is not None and users.buffer.usage is not key:
                del self._users[key]
                self._users.setdefault(users.buffer.usage, users).add(users)

    def allocate(self, size_bytes: int, stream: Stream, *, is_input: bool = False) -> Buffer:
        """Memory that belongs to the graph."""
        buffer = self.memory.allocate(size_bytes, self.state, may_reuse=not self._branches, is_input=is_input)
        if isinstance(buffer, GraphBuffer):
            if is_input:
                self._users.pop(id(buffer), None)  # of another one, which was dropped
            else:
                self._note_body(cast("RecordingStream", stream), buffer)
            if self._made is not None:
                self._made.append(weakref.ref(buffer))
        return buffer

    def _note_body(self, stream: RecordingStream, buffer: GraphBuffer) -> None:
        body = stream._lane.body
        if body is not self.nodes:
            buffer.body = body

    def bind_launch(
        self,
        stream: RecordingStream,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: ArgumentBlock,
    ) -> Callable[[], object]:
        """One launch with what `arguments` holds when it is called."""
        enqueue: Callable[[], object] = stream._lane.context._driver.bind_launch(
            function, grid, block, shared_bytes, stream._handle, arguments
        )
        return enqueue

    def context(self, stream: RecordingStream) -> ExecutionContext:
        """The context of the stream's lane."""
        return stream._lane.context

    def kernel_name(self, function: FunctionHandle) -> str:
        """What the driver calls it."""
        name = self._names.get(function)
        if name is None:
            name = self._names[function] = self.device.driver.function_info(function).name
        return name

    def pause(self, execution: Execution, frame: Any, value: Any) -> bool:
        """Stop where the recording has held the loop for long enough. With a seeded device, time decides nothing."""
        if current_runner() is not None or time.perf_counter() - self.went_on_s < MAX_ENQUEUEING_S:
            return False
        for lane in self._lanes:
            lane.end_foreign()
        execution.frames.append(frame)
        execution.value = value
        execution.block = _Pause(self)
        return True

    # -- branches and bodies

    def fork(self, stream: RecordingStream) -> RecordingStream:
        """A new branch."""
        home = stream._lane
        home.end_foreign()
        lane = self._lane(home.body, home.outer, repeats=home.repeats)
        lane.tail = list(home.tail)
        lane.extra = list(home.extra)
        lane.known = {home, *home.known}
        self._branches += 1
        return lane.stream

    def join(self, stream: RecordingStream, branches: Sequence[RecordingStream]) -> None:
        """`stream` goes on behind all branches."""
        home = stream._lane
        before = home.tail
        tail: list[Node] = []
        for branch in branches:
            lane = branch._lane
            lane.end_foreign()
            if lane.tail != before:
                tail += lane.tail
            home.extra += lane.extra
            home.known |= {lane, *lane.known}
            home.reads |= lane.reads
            home.writes |= lane.writes
            self._branches -= 1
        home.tail = tail or before
        home.extra = list(dict.fromkeys(home.extra))

    def overwrite_outputs(self, lane: Lane, child: GraphState) -> None:
        """A graph is launched inside: what it, or one that is linked to it, has yielded here before is stale."""
        overwritten = {child, *living(child.linked)}
        loops = lane.loops()
        for state, buffers in self._yielded:
            if state not in overwritten:
                continue
            for buffer in buffers:
                if buffer.is_overwritten:
                    continue
                if any(self._is_used_again(buffer, loop) for loop in loops):
                    raise CaptureError(
                        "a loop's body uses what a graph yields before the loop, and launches that graph again, which "
                        "writes over it: the next turn would find the later numbers there; call the graph before the "
                        "loop, graph(...), which copies what it yields"
                    )
                buffer.is_overwritten = True
                self._overwritten.append(buffer)

    def _is_used_again(self, buffer: GraphBuffer, loop: Lane) -> bool:
        """Whether every turn of the loop uses what no turn makes."""
        is_made_there = any(lane.body is buffer.body and lane.is_within(loop.body) for lane in self._lanes)
        users = self._used_in_bodies.get(buffer, ())
        return not is_made_there and any(user.is_within(loop.body) for user in users)

    def note_outputs(self, stream: RecordingStream, child: GraphState, buffers: list[GraphBuffer]) -> None:
        """What a part of this graph yields."""
        self._yielded.append((child, buffers))
        for buffer in buffers:
            self._note_body(stream, buffer)

    # -- shared operations, which run where they are used first

    def note_shared(self, stream: RecordingStream, gate: Gate) -> None:
        """The source of a shared operation is recorded on `stream`."""
        self._shared.append((gate, stream._lane))
        # in a run that another thread has not ended yet: whoever gave up may have looked already
        if self.state.failed:
            gate.undo(self, self._leaving)

    def check_shared(self, stream: RecordingStream, gate: Gate) -> None:
        """Refuse a shared operation that a body of a conditional has, which may not have run."""
        for known, lane in self._shared:
            if known is gate and not stream._lane.is_within(lane.body):
                raise CaptureError(
                    "this shared operation is used first in the body of a conditional, which may not have run, and "
                    "then outside of it; use it before the conditional, ca.zip(shared, ...), or make one for the body"
                )

    def note_updated(self, stream: RecordingStream, launch: UpdatedGraphLaunch[Any]) -> None:
        """A launch behind updates is recorded."""
        self._updated.append(launch)
        if self.state.failed:  # as above
            launch.give_back()
        elif stream._lane.body is not self.nodes:
            self.refuse_updates_in_body()

    def refuse_updates_in_body(self) -> NoReturn:
        """A launch in a body would run them."""
        raise CaptureError(
            "a graph that update() was given something for, or one that it is part of, is launched in the body of a "
            "conditional, which may run never or often, and the update is to run: launch the graph before, or make "
            "the update part of the body"
        )

    def begin_body(self, stream: RecordingStream, *, repeats: bool) -> RecordingStream:
        """The lane of a conditional node's body, with a list of nodes of its own."""
        outer = stream._lane
        outer.end_foreign()
        lane = self._lane([], outer, repeats=repeats)
        lane.known = {outer, *outer.known}
        self._branches += 1
        lane.overwritten = len(self._overwritten)
        return lane.stream

    def end_body(
        self, stream: RecordingStream, body: RecordingStream, overwritten: list[GraphBuffer]
    ) -> list[Node]:
        """The body's nodes. What it made stale is added to `overwritten`: for another body, in its place, it is not."""
        outer, lane = stream._lane, body._lane
        lane.end_foreign()
        outer.known |= {lane, *lane.known}
        outer.reads |= lane.reads
        outer.writes |= lane.writes
        self._branches -= 1
        for buffer in self._overwritten[lane.overwritten :]:
            buffer.is_overwritten = False
            overwritten.append(buffer)
        del self._overwritten[lane.overwritten :]
        return lane.body

    def end_bodies(self, overwritten: list[GraphBuffer]) -> None:
        """What comes now comes behind all of them."""
        for buffer in overwritten:
            if not buffer.is_overwritten:
                buffer.is_overwritten = True
                self._overwritten.append(buffer)

    # -- the end

    def finish(self) -> None:
        """Nothing more comes."""
        self.root.end_foreign()
        self._check_joined()
        self.state.is_recording = False

    def _check_joined(self) -> None:
        assert not self._branches, "a branch was not joined"

    def release(self) -> None:
        """Let go of all that is heavy: lanes and streams refer to each other, so this object may live on."""
        self.memory = GraphMemory(self.home)
        self.nodes = []
        self.uses = {}
        self.captured = []
        self.inputs = {}
        self.children = []
        self._yielded = []
        self._overwritten = []
        self._used_in_bodies = {}
        self.held = []
        self._users = {}
        for lane in self._lanes:
            lane.stream._retained = []
            lane.forget_uses()

    def discard(self) -> None:
        """The recording failed: nothing of it is used."""
        self.state.failed = True
        self.state.is_recording = False
        for lane in self._lanes:
            with contextlib.suppress(Exception):  # the error that led here is the one to report
                lane.end_foreign(keep=False)
        try:
            self._give_up()
        except BaseException:  # an interrupt
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Each does what is left."""
        self._drop_captured(0)
        self.release()
        self._undo(0, 0)
        self.is_over = True
        self._shared = []
        self._kept = []
        self._updated = []

    def abandon(self) -> None:
        """From a finalizer of who recorded. Takes no lock that waits: shared operations are told when they are used."""
        if not self.is_over:
            self.state.failed = True
            self.state.is_recording = False
            self.is_abandoned = True
            self._drop_captured(0)
            for launch in self._updated:
                launch.give_back()

    def discard_abandoned(self) -> None:
        """What `abandon` left, if it did; once, whoever comes."""
        if self.is_abandoned:
            with self._abandoned_lock:
                if not self.is_over:
                    self.discard()

    def _drop_captured(self, count: int) -> None:
        """Leave what was captured, but for the first ones, to the device; each once, also where this is done again."""
        while len(self.captured) > count:
            self.device._dropped_graphs.append(self.captured.pop())

    @property
    def has_failed(self) -> bool:
        """Whether it was given up."""
        return self.state.failed

    @property
    def node_count(self) -> int:
        """Nodes so far, those of bodies among them."""
        return len(self.uses)

    def take_shared(self, graph: CudaGraph[Any], written: Collection[Buffer]) -> None:
        """What shared operations that were recorded yield for others, as outputs of `graph`, which writes these."""
        state = self.state
        state.graph = weakref.ref(graph)
        state.take_parts(self.children)
        self._kept = []
        for gate, lane in self._shared:
            body = None if lane.body is self.nodes else lane.body
            value = output_of_shared(gate.value, written, self.device, state, body)
            check = functools.partial(state.check_launched, body is not None)
            self._kept.append((gate, value, check, state.has_ended))

    def keep_shared(self) -> None:
        """The graph is made: shared operations and updates that were recorded have run."""
        for gate, *kept in self._kept:
            self.state.waiting.append(weakref.ref(gate))
            gate.keep(*kept)
        for launch in self._updated:
            self.state.updates += [weakref.ref(update.gate) for update in launch.recorded]
            launch.keep(self.state.has_ended)
        self.is_over = True
        self._shared = []
        self._kept = []
        self._updated = []

    def _undo(self, shared: int, updated: int) -> None:
        """Shared operations and updates, but for the first ones, have not run; said again it says nothing new."""
        for gate, _ in self._shared[shared:]:
            gate.undo(self, self._leaving)
        for launch in reversed(self._updated[updated:]):
            launch.give_back()

    def leaving(self) -> list[Unfinished]:
        """What is over when no other thread is at a step of a run that was given up, in this recording."""
        self._leaving = [left for left in self._leaving if not left.done]
        return self._leaving

    # -- going back, where one operation of several failed

    def mark(self) -> Mark:
        """Where the recording is."""
        self._made = []
        return Mark(
            tail=list(self.root.tail),
            extra=list(self.root.extra),
            inputs=dict(self.inputs),
            nodes=len(self.nodes),
            uses=len(self.uses),
            lanes=len(self._lanes),
            held=len(self.held),
            captured=len(self.captured),
            children=len(self.children),
            yielded=len(self._yielded),
            shared=len(self._shared),
            overwritten=len(self._overwritten),
            updated=len(self._updated),
            unused=[t._buffer for t in self.inputs.values() if not self.has_users(t._buffer)],
        )

    def back_to(self, mark: Mark) -> bool:
        """Forget what was recorded since `mark`; no branch is open then. Its order still counts.

        False where another thread is at a step of it still: once all of `leaving()` are over, do it again. So, too,
        where an interrupt came into it.
        """
        self._undo(mark.shared, mark.updated)
        if self.leaving():
            return False
        # nobody is at a step now, but somebody may have noted more meanwhile
        self._undo(mark.shared, mark.updated)
        del self._shared[mark.shared :]
        del self._updated[mark.updated :]
        self.root.tail, self.root.extra, self.inputs = mark.tail, mark.extra, mark.inputs
        for buffer in mark.unused:
            self._users.pop(id(buffer), None)
        for node in list(self.uses)[mark.uses :]:  # those of bodies, too
            del self.uses[node]
        del self.nodes[mark.nodes :]
        self.root.forget_uses()
        for lane in self._lanes[mark.lanes :]:
            lane.end_foreign(keep=False)
            lane.tail = []  # whoever waits for it waits for nothing
            lane.extra = []
        self.root.end_foreign(keep=False)
        self._branches = 0
        for buffer in self._overwritten[mark.overwritten :]:
            buffer.is_overwritten = False
        self._drop_captured(mark.captured)
        del self._overwritten[mark.overwritten :]
        del self.held[mark.held :]
        for child, _ in self.children[mark.children :]:
            child.note_part_of_no_more(self.state)
        del self.children[mark.children :]
        del self._yielded[mark.yielded :]
        for made in self._made or ():
            if (alive := made()) is not None:
                alive.undo()
        self._made = None
        return True
