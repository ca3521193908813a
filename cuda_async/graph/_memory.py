"""Memory that belongs to a graph, and tensors over it that know to which launch their contents belong.

Theory. Addresses are part of a graph, so what is allocated while a graph is recorded stays for the graph's whole
life: it is cut out of chunks that the graph owns. A chunk is an ordinary buffer of the device; ordering knows only
chunks, so a launch orders a handful of buffers however many tensors there are. What a recorded chain drops again is
reused later in the same recording, where all that comes later in the graph also comes behind all that came before
(no branch open).

Every launch writes the same memory again, so what a launch yields is good until the next one. A `GraphBuffer` is a
buffer over part of another one (its root) with a generation: the number of the launch that fills it. Its address can
be had only while that is the last launch; everybody who uses a buffer asks for its address and finds out. Views
share the buffer, so they share the generation. A graph may yield memory that is not its own, but that it writes:
that comes in a `GraphBuffer` too, while the caller's own tensor over the same memory stays what it is. It is a
second name of that memory then, and shows what others write there.

A graph that is launched inside another one's recording shares its memory with it: launching one makes the outputs of
both stale (`GraphState.linked`). Graphs that write the same memory, of whomever, take turns in being launched: setting
inputs, launching and copying the output is one step for all of them (`Turn`).

What is made while a graph is recorded, and is known outside (by shared operations), is of its first run: by itself, or
as a part of another graph.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..errors import ClosedError, NotFilledYetError, StaleOutputError
from ..memory import Buffer, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..driver.graph import Node
    from ..ops._shared import Gate
    from ..scheduling import Device, Stream
    from ._graph import CudaGraph

__all__ = [
    "CANDIDATES",
    "FIRST_RUN",
    "GraphBuffer",
    "GraphMemory",
    "GraphState",
    "are_over_same_memory",
    "living",
    "root_of",
]

T = TypeVar("T")

OF_A_BODY = (
    "this tensor is made in the body of a conditional, which may not have run; write what is used outside of the body "
    "into a tensor that exists before the conditional"
)
MANY = 8
CANDIDATES = 8
"""For being a graph's first run: when there are so many, the next launch asks whether the first is over."""
FIRST_RUN = 0
"""As a generation: of the first launch that did not fail, or of that of another graph that this one is part of."""
ALIGNMENT_BYTES = 256
"""As of the device's own allocations."""
SMALLEST_CHUNK_BYTES = 64 << 10
LARGEST_CHUNK_BYTES = 8 << 20
"""What a chunk grows to: mapping it must not hold up a loop. Larger tensors get one of their size, mapped ahead."""


class Turn:
    """Held while a graph is launched, and inputs and output are seen to: a lock that graphs have in common.

    Which lock that is changes when graphs are linked, and then with the old one held: whoever has got a lock looks
    whether it is the right one still. It is taken and let go by `with` itself: in a method of ours, an interrupt
    could come in between, and the graph would be held for ever.

    Attributes:
        states: of the graphs that have the lock in common; one list for all of them, used with the lock held.
    """

    __slots__ = ("lock", "states")

    def __init__(self, state: GraphState) -> None:
        self.lock = threading.RLock()
        self.states = [weakref.ref(state)]

    def add(self, states: Iterable[GraphState]) -> None:
        """Held."""
        more = [weakref.ref(state) for state in states]
        if (known := without_gone(self.states, len(more))) is not self.states:
            self.states[:] = known
        self.states += more

    def hold(self, work: Callable[[], T]) -> T:
        """What `work()` gives, which is called with the lock held."""
        while True:
            with (lock := self.lock):
                if lock is self.lock:
                    return work()


def living(references: list[weakref.ref[GraphState]]) -> list[GraphState]:
    """Those that are there: graphs end at any moment, on any thread."""
    found = (reference() for reference in references)
    return [state for state in found if state is not None]


def without_gone(references: list[weakref.ref[GraphState]], more: int = 1) -> list[weakref.ref[GraphState]]:
    """Another list without those that are gone; of a long one now and then, as `more` double it, else the list."""
    before, after = len(references), len(references) + more
    if after > MANY and before.bit_length() == after.bit_length():
        return references
    return [known for known in references if known() is not None]


class Launch:
    """One launch that others look back at.

    Attributes:
        stream, number: where it was enqueued. generation: which launch of its graph it is.
        error: what the device reported for it, or None.
    """

    __slots__ = ("error", "generation", "number", "stream")

    def __init__(self, stream: Stream, number: int, generation: int) -> None:
        self.stream = stream
        self.number = number
        self.generation = generation
        self.error: str | None = None

    @property
    def is_over(self) -> bool:
        """The device is past it, and whether it failed is known."""
        return self.stream._done >= self.number


class Run(NamedTuple):
    """That a graph ran in a launch, of itself or of a graph that it is part of.

    Attributes:
        writes: how often its memory had been written by then. is_many: it may have run more than once in that launch.
    """

    launch: Launch
    writes: int
    is_many: bool


class GraphState:
    """Where a graph is in its life, as its outputs see it. Launches change it under the device's lock.

    Attributes:
        generation: launches so far. last: the last one.
        writes: how often its memory was written, by launches of it and of linked graphs, or may have been.
        is_current: no other graph has written this one's memory since, and it has not failed.
        error: what the device reported for the last launch, if it was that.
        is_recording: nothing was launched, and operations that are recorded may use everything.
        failed: the recording ended with an error.
        turn: held while the graph is launched, or one that writes the same memory; changed while it is held.
        waiting: gates of shared operations that are part of it, and have run when it is launched first.
        parts: other graphs that are part of it, and whether they run with it for sure, in no body. sure: all that run
            with it for sure, parts of parts too, and whether more than once. maybe: those in bodies.
        runs: in which launches it ran, up to the first that did not fail and is over, as `first_is_over` says then.
        may_have_run: it was in a body. is_part_of: other graphs.
        looked_back_at: launches of it that are in somebody's runs, and may fail still, by where they were enqueued.
        updates: gates of updates that are part of it, and run when it is launched first.
        linked: other graphs that have memory in common with it, which they know too. Turn held.
    """

    __slots__ = (
        "__weakref__",
        "error",
        "failed",
        "first_is_over",
        "generation",
        "graph",
        "is_current",
        "is_part_of",
        "is_recording",
        "last",
        "linked",
        "looked_back_at",
        "may_have_run",
        "maybe",
        "parts",
        "runs",
        "sure",
        "turn",
        "updates",
        "waiting",
        "writes",
    )

    def __init__(self) -> None:
        self.generation = self.writes = 0
        self.last: tuple[Stream, int] | None = None
        self.error: str | None = None
        self.is_current = True
        self.is_recording = True
        self.failed = False
        self.turn = Turn(self)
        self.waiting: list[weakref.ref[Gate]] = []
        self.parts: tuple[tuple[GraphState, bool], ...] = ()
        self.sure: dict[GraphState, bool] = {}
        self.maybe: tuple[GraphState, ...] = ()
        self.runs: list[Run] = []
        self.first_is_over = False
        self.may_have_run = False
        self.looked_back_at: dict[tuple[Stream, int], list[Launch]] = {}
        self.updates: list[weakref.ref[Gate]] = []
        self.linked: list[weakref.ref[GraphState]] = []
        self.is_part_of: list[weakref.ref[GraphState]] = []
        self.graph: Callable[[], CudaGraph[Any] | None] | None = None

    def take_parts(self, parts: Iterable[tuple[GraphState, bool]]) -> None:
        """The recording has ended: `parts` as above."""
        self.parts = tuple(parts)
        sure: dict[GraphState, bool] = {}
        maybe: dict[GraphState, None] = {}
        for part, is_sure in self.parts:
            maybe.update(dict.fromkeys(part.maybe))
            for state, is_many in ((part, False), *part.sure.items()):
                if is_sure:
                    sure[state] = is_many or state in sure
                else:
                    maybe[state] = None
        self.sure = {state: is_many or state in maybe for state, is_many in sure.items()}
        self.maybe = tuple(maybe)

    def is_waited_for(self) -> bool:
        """Whether there is something for `note_launched` to do."""
        return bool(self.waiting) or any(part.waiting for part in self.sure)

    def note_launched(self) -> None:
        """Turn held, no other lock: what shared operations were made of may go, and with it objects of anybody's.

        An interrupt leaves what it came into to the next one who calls.
        """
        for state in (self, *self.sure):
            while state.waiting:
                gate = state.waiting[-1]()
                if gate is not None:
                    gate.note_launched()
                state.waiting.pop()

    def is_last(self, generation: int) -> bool:
        """Whether its memory holds what that launch, or the `FIRST_RUN`, wrote."""
        if generation != FIRST_RUN:
            return generation == self.generation and self.is_current
        first = self._first_run()
        return first is not None and first.writes == self.writes and not first.is_many

    def has_run(self) -> bool:
        """By itself, or in another graph, and as far as is known without a failure."""
        return self._first_run() is not None

    def _first_run(self) -> Run | None:
        return next((run for run in self.runs if run.launch.error is None), None)

    def ask(self) -> None:
        """No lock of the device's held. Ask whether first runs are over that nobody waits for, before many come."""
        for state in (self, *self.sure):
            if not state.first_is_over and len(state.runs) >= CANDIDATES:
                state.runs[0].launch.stream._refresh()

    def _note_runs(self, launch: Launch) -> None:
        """Device's lock held. Of a launch of this graph, in which parts run too; one may turn out to be the first."""
        known = self.looked_back_at
        known.setdefault((launch.stream, launch.number), []).append(launch)  # first: an interrupt may come
        for state, is_many in ((self, False), *self.sure.items()):
            if not state.first_is_over:
                state._note_run(Run(launch, state.writes, is_many))
        while known and (oldest := next(iter(known)))[0]._done >= oldest[1]:
            del known[oldest]

    def _note_run(self, run: Run) -> None:
        runs = self.runs
        if runs and runs[0].launch.error is not None:
            self.runs = runs = [known for known in runs if known.launch.error is None]
        if runs and runs[0].launch.is_over:
            self.first_is_over = True
            self.runs = runs[:1]
            if all(part.first_is_over for part in self.sure):
                self.looked_back_at = {}
        else:
            runs.append(run)

    def has_updates(self) -> bool:
        """Whether updates run with its next launch."""
        gates = (found() for found in self.updates)
        return any(gate is not None and not gate.has_run for gate in gates) or any(
            is_sure and part.has_updates() for part, is_sure in self.parts
        )

    def note_part_of(self, whole: GraphState) -> None:
        """It is launched in a recording."""
        for found in list(self.is_part_of):
            if found() is None:
                with contextlib.suppress(ValueError):  # another thread has found it too
                    self.is_part_of.remove(found)
        if not self.generation:
            self.is_part_of.append(weakref.ref(whole))

    def note_part_of_no_more(self, whole: GraphState) -> None:
        """The recording has taken the launch back."""
        with contextlib.suppress(ValueError):
            self.is_part_of.remove(weakref.ref(whole))

    def has_ended(self) -> bool:
        """It never was launched, by itself or as a part of another graph, and never will be."""
        if self.failed:
            return True
        if self.graph is None or self.generation or self.runs or self.may_have_run:
            return False
        graph = self.graph()
        if graph is not None and not graph.is_closed:
            return False
        wholes = (found() for found in list(self.is_part_of))  # now nobody makes it a part of more
        return all(w is None or w.has_ended() for w in wholes)

    def link(self, parts: Iterable[GraphState]) -> None:
        """A launch of it writes the parts' memory too, as do launches of others with such a part."""
        distinct = dict.fromkeys(parts)

        def note() -> None:
            known = {self, *living(self.linked)}
            more: list[GraphState] = []
            for part in distinct:
                more += (new := [other for other in (part, *living(part.linked)) if other not in known])
                known.update(new)
            self.linked += map(weakref.ref, more)
            mine = weakref.ref(self)
            for other in more:
                other.linked = without_gone(other.linked)
                other.linked.append(mine)

        for part in distinct:
            self.take_turns(part)
        self.turn.hold(note)

    def take_turns(self, other: GraphState) -> None:
        """From now on they are launched in turns."""
        while self.turn.lock is not other.turn.lock:
            locks = sorted((self.turn.lock, other.turn.lock), key=id)  # one order everywhere
            with locks[0], locks[1]:
                if self.turn.lock not in locks or other.turn.lock not in locks:
                    continue  # another thread has given one of them another one meanwhile
                few, many = sorted((self.turn, other.turn), key=lambda turn: len(turn.states))
                if few.lock is not many.lock:
                    moved = living(few.states)
                    many.add(moved)
                    for state in moved:
                        state.turn.lock, state.turn.states = many.lock, many.states

    def note_writes(self, written: Iterable[Buffer]) -> None:
        """Its launches write these ordinary buffers, or set them before: it takes turns with others that do.

        No turn held: each has its order among the locks.
        """
        for buffer in {buffer.usage: buffer for buffer in written if buffer.size_bytes}.values():
            is_noted = False
            while not is_noted:
                usage = buffer.usage
                before = getattr(usage, "written_by", None)
                after = [*without_gone(before or []), weakref.ref(self)]
                with buffer.device._lock:  # an import gives buffers another usage, with what the old one has
                    if buffer.usage is usage and getattr(usage, "written_by", None) is before:
                        usage.written_by = after
                        is_noted = True
            others = (state for found in before or () if (state := found()) is not None)
            for other in others:
                self.take_turns(other)
                if not getattr(usage, "is_joined", False):  # the rest takes turns with that one already
                    break

    def overwrite(self) -> None:
        """Device's lock held. What this and other graphs have yielded of memory that it writes is good no more."""
        self.writes += 1
        if self.linked:
            for other in living(self.linked):
                other.is_current = False
                other.writes += 1

    def advance(self, stream: Stream, number: int) -> int:
        """A launch was enqueued, in that number of `stream`; which launch it is."""
        self.generation += 1
        self.last = (stream, number)
        self.error = None
        self.overwrite()
        self.is_current = True
        if not self.first_is_over or (self.sure and not all(part.first_is_over for part in self.sure)):
            self._note_runs(Launch(stream, number, self.generation))
        for part in self.maybe:
            part.may_have_run = True
        return self.generation

    def interrupt(self, error: BaseException, before: int) -> None:
        """Maybe there was a launch, and maybe not: what any launch yielded is good no more, until the next one.

        Args:
            before: the generation as it was launched.
        """
        self.error = f"{type(error).__name__} as it was launched"
        for launches in self.looked_back_at.values():
            for launch in launches:
                if launch.generation > before:
                    launch.error = self.error
        self.generation += 1
        self.overwrite()
        self.is_current = False

    def check_launched(self, in_body: bool) -> None:
        """For a shared operation that is part of the graph: raises where it may not have run."""
        if in_body or (self.may_have_run and not self.has_run()):
            raise NotFilledYetError(
                "this shared operation is used first in the body of a conditional, which may not have run; use it "
                "before the conditional, ca.zip(shared, ...), or make one for the body"
            )
        if self.has_run():
            return
        error, generation = self.error, self.generation
        if error is None and self.runs:
            failed = self.runs[-1].launch
            error, generation = failed.error, failed.generation
        if error is None:
            raise NotFilledYetError(
                "this shared operation is part of a graph, and runs with it; launch the graph first"
            )
        raise NotFilledYetError(
            f"launch {generation} of the graph that this shared operation is part of failed ({error}); launch the "
            "graph again, or, where it is closed, make the operation anew"
        )

    def note_failed(self, stream: Stream, number: int, error: BaseException) -> None:
        """Device's lock held. A launch that was enqueued in that number of `stream` has failed."""
        told = f"{type(error).__name__}: {error}"
        for launch in self.looked_back_at.get((stream, number), ()):
            launch.error = told
        if self.last == (stream, number):
            self.error = told
            self.is_current = False


class GraphBuffer(Buffer):
    """Part of `root`, whose contents belong to the launch number `generation` of a graph.

    Attributes:
        root: an ordinary buffer; its last uses are this one's. generation: None for memory that is good at any time.
        is_overwritten: it is what a graph yields inside of a recording, which launches that graph again further on.
        body: of the conditional in which it is filled, if it is in one: for others it may never be.
    """

    __slots__ = (
        "_freed",
        "_start",
        "_undone",
        "body",
        "generation",
        "is_overwritten",
        "reused_by",
        "root",
        "state",
    )

    def __init__(
        self,
        state: GraphState,
        generation: int | None,
        root: Buffer,
        start: int,
        size_bytes: int,
        *,
        reused_by: deque[tuple[int, int, Buffer]] | None = None,
    ) -> None:
        """
        Args:
            start: address. reused_by: where the finalizer leaves the memory, while the graph is recorded.
        """
        self.root = root
        self.state = state
        self.generation = generation
        self.reused_by = reused_by
        self._freed = False
        self._undone = False
        self.is_overwritten = False
        self.body: list[Node] | None = None
        super().__init__(root.device, start, size_bytes, root.usage)
        # Several buffers over one piece of memory, as with memory of other libraries.
        self.retained_on_use = True
        self.plain_on = None
        self.read_only = root.read_only

    # These are attributes of a buffer; here they follow the graph's launches, and the root.

    @property
    def address(self) -> int:
        """Where it is; negative while the contents are not those of its launch."""
        state = self.state
        generation = self.generation
        if self._freed or self._undone or self.is_overwritten or state.failed or self.root.address < 0:
            return -1
        if self.body is not None and not state.is_recording:
            return -1
        if generation is None or state.is_recording or state.is_last(generation):
            return self._start
        return -1

    @address.setter
    def address(self, address: int) -> None:
        self._start = address

    @property
    def start(self) -> int:
        """Where it is, whatever it holds."""
        return self._start

    @property
    def usage(self) -> Usage:
        """The root's."""
        return self.root.usage

    @usage.setter
    def usage(self, usage: Usage) -> None:
        self.root.usage = usage

    @property
    def holders(self) -> set[int] | None:
        """The root's."""
        return self.root.holders

    @holders.setter
    def holders(self, holders: set[int] | None) -> None:
        if holders is not None:  # nor as this is made
            self.root.holders = holders

    @property
    def is_void(self) -> bool:
        """True when no launch is sure to fill it."""
        return self._undone or self.body is not None

    @property
    def is_freed(self) -> bool:
        """True after `free()`, of this or of the root."""
        return self._freed or self.root.is_freed

    def note_shared(self) -> None:
        """Another library knows this memory from now on, so it knows the root's."""
        self.root.note_shared()
        self.device._outside.add(self.root)

    @property
    def is_recorded(self) -> bool:  # type: ignore[override]
        """True while the launch that fills it is still being recorded."""
        return self.generation is not None and self.state.is_recording

    def check_filled(self) -> None:
        """`check_usable`; raises `StaleOutputError` too while the graph that fills it is being recorded."""
        if self.is_recorded and not self.is_freed:
            raise NotFilledYetError(
                "this tensor belongs to a graph that is being recorded, and holds nothing yet: give the operation to "
                "the recording (scope.record(op)), or launch the graph first"
            )
        self.check_usable()

    def check_usable(self) -> None:
        """Raises `StaleOutputError` when the contents are not (yet, or any more) those of its launch."""
        if self.address >= 0:
            return
        if self.is_freed:
            raise ClosedError("this tensor's memory was freed; keep the tensor, or allocate a new one")
        if self.is_overwritten:
            raise StaleOutputError(
                "this output of a graph is stale: the recording launches the graph again, which writes over it; call "
                "the graph, graph(...), which copies what it yields, or use it before"
            )
        if self.state.failed:
            raise StaleOutputError(
                "this tensor was to be filled by a graph whose capture failed; it holds nothing"
            )
        if self._undone:
            raise StaleOutputError(
                "this tensor was to be filled by an operation that could not be recorded; it holds nothing"
            )
        if self.body is not None:
            raise StaleOutputError(OF_A_BODY)
        number = max(1, self.generation or 0)
        has_failed = self.state.error is not None and self.state.generation == number
        if has_failed and not (self.generation == FIRST_RUN and self.state.has_run()):
            raise StaleOutputError(
                f"launch {number} of the graph, which was to fill this tensor, failed ({self.state.error}); "
                "launch the graph again"
            )
        if self.state.generation < number and not self.state.runs:
            raise NotFilledYetError(
                "this output of a graph is empty: the first launch will fill it; launch the graph first, or use "
                "what graph.launch() yields"
            )
        raise StaleOutputError(
            f"this output of a graph is stale: it is of launch {number}, and a later launch, of this graph or "
            "of one that shares a part with it, or what set inputs for one, may have written over it; use what the "
            "last launch yielded (graph.take_output() gives it too), and copy what is to be kept with ca.copy() or "
            "to_host() before the graph is launched again"
        )

    def free(self) -> None:
        """Give the memory back to the recording; later, only make this buffer unusable."""
        if not self._freed:
            self._freed = True
            self._give_back()

    def undo(self) -> None:
        """The operation that was to fill it is no part of the recording any more."""
        self._undone = True
        self._give_back()

    def _give_back(self) -> None:
        reused_by, self.reused_by = self.reused_by, None
        if reused_by is not None:
            reused_by.append((self._start, self.size_bytes, self.root))

    def __del__(self) -> None:
        # At the end of the process the globals of this module may be gone.
        if hasattr(self, "size_bytes"):  # no interrupt came before it was made
            self._give_back()


def root_of(buffer: Buffer) -> Buffer:
    """The ordinary buffer that `buffer` is, or is part of."""
    return buffer.root if isinstance(buffer, GraphBuffer) else buffer


def are_over_same_memory(one: Buffer, other: Buffer) -> bool:
    """Two ordinary buffers: where memory came in twice, not only one and the same."""
    if one.usage is not other.usage:
        return one is other
    return one.start < other.start + other.size_bytes and other.start < one.start + one.size_bytes


class GraphMemory:
    """The memory of one graph, while it is recorded.

    Attributes:
        chunks: what the graph owns.
        renewed: what was given out again since the last node, (address, bytes) each.
    """

    def __init__(self, stream: Stream) -> None:
        self.chunks: list[Buffer] = []
        self.renewed: list[tuple[int, int]] = []
        self._stream = stream
        self._freed: deque[tuple[int, int, Buffer]] = deque()  # by finalizers, which may run anywhere
        self._available: list[tuple[int, int, int]] = []  # (size, address, index of the chunk), ascending
        self._index: dict[Buffer, int] = {}
        self._next = 0
        self._end = 0
        self._total = 0

    def has(self, chunk: Buffer) -> bool:
        """Whether that is one of the chunks."""
        return chunk in self._index

    def allocate(self, size_bytes: int, state: GraphState, *, may_reuse: bool, is_input: bool) -> Buffer:
        """Memory with an address for good.

        Args:
            may_reuse: everything recorded so far comes before all that will be.
            is_input: it keeps what it holds from one launch to the next, so it gets memory of its own.
        Raises:
            OutOfMemoryError: the device has no room for another chunk.
        """
        device = self._stream.device
        if size_bytes == 0:
            return Buffer(device, 0, 0, Usage(self._stream, 0))
        size = _rounded(size_bytes)
        if may_reuse:
            self._take_back()
        # An input is set before the launch, of which what was recorded before it is a part: nothing there may write it.
        found = len(self._available) if is_input else bisect_left(self._available, (size, 0, 0))
        if found < len(self._available):
            room, address, chunk = self._available.pop(found)
            if room > size:
                insort(self._available, (room - size, address + size, chunk))
            self.renewed.append((address, size_bytes))
        else:
            if self._end - self._next < size:
                self._add_chunk(device, size)
            address, chunk = self._next, len(self.chunks) - 1
            self._next += size
        return GraphBuffer(
            state,
            None if is_input else FIRST_RUN,
            self.chunks[chunk],
            address,
            size_bytes,
            reused_by=None if is_input else self._freed,
        )

    def _add_chunk(self, device: Device, size: int) -> None:
        if self._end > self._next:
            insort(self._available, (self._end - self._next, self._next, len(self.chunks) - 1))
        wanted = max(size, min(LARGEST_CHUNK_BYTES, max(SMALLEST_CHUNK_BYTES, self._total)))
        device.driver.bind()
        self._end_number(device)
        chunk = device._allocate(wanted, self._stream)
        self._end_number(device)
        self._index[chunk] = len(self.chunks)
        self.chunks.append(chunk)
        self._next = chunk.address
        self._end = chunk.address + wanted
        self._total += wanted

    def _end_number(self, device: Device) -> None:
        """Of the stream: the first launch waits for the memory, and for nothing that others put there beside.

        Nobody may ever wait for these numbers, so what the device is past is retired here.
        """
        self._stream._refresh()
        with device._lock:
            if self._stream._dirty and not self._stream._closed:
                self._stream._record()

    def _take_back(self) -> None:
        """Join what was freed to what is available."""
        freed = self._freed
        if not freed:
            return
        ranges = [(self._index[root], start, _rounded(size)) for start, size, root in _drained(freed)]
        ranges += [(chunk, address, size) for size, address, chunk in self._available]
        ranges.sort()
        joined: list[tuple[int, int, int]] = []
        for chunk, address, size in ranges:
            if joined and joined[-1][0] == chunk and joined[-1][1] + joined[-1][2] == address:
                joined[-1] = (chunk, joined[-1][1], joined[-1][2] + size)
            else:
                joined.append((chunk, address, size))
        self._available = sorted((size, address, chunk) for chunk, address, size in joined)


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _drained(freed: deque[tuple[int, int, Buffer]]) -> Iterable[tuple[int, int, Buffer]]:
    for _ in range(len(freed)):
        yield freed.popleft()
