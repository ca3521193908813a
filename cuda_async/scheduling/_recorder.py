"""What a recording stream hands its work to: the graph layer, above, has the one there is.

An operation enqueues on a stream and knows no more. On a recording stream nothing is enqueued: the orderings that
operations ask for, the memory they allocate and the calls they make of the driver are noted, to become a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..driver import ArgumentBlock, FunctionHandle
    from ..memory import Buffer
    from ._stream import Stream

__all__ = ["Recorder"]


class Recorder(Protocol):
    """Notes what operations do on its streams (`Stream._recorder`)."""

    def note_read(self, stream: Stream, buffer: Buffer) -> None:
        """What is recorded next on `stream` reads the buffer."""
        ...

    def note_write(self, stream: Stream, buffer: Buffer) -> None:
        """What is recorded next on `stream` writes the buffer."""
        ...

    def allocate(self, size_bytes: int, stream: Stream) -> Buffer:
        """Memory that belongs to the graph."""
        ...

    def bind_launch(
        self,
        stream: Stream,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: ArgumentBlock,
    ) -> Callable[[], object]:
        """`Driver.bind_launch`, for the one launch that is recorded now."""
        ...

    # Any: the context of an operation, which this layer does not know
    def context(self, stream: Stream) -> Any:
        """The execution context for operations on `stream`."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether it was given up."""
        ...

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        ...

    # Any: the gate of a shared operation, which this layer does not know
    def note_shared(self, stream: Stream, gate: Any) -> None:
        """The source of a shared operation is recorded on `stream`; `gate` is told whether that comes to anything."""
        ...

    def discard_abandoned(self) -> None:
        """Give the recording up where whoever recorded is gone, which an interrupt kept from it."""
        ...

    def check_shared(self, stream: Stream, gate: Any) -> None:
        """Refuse a use on `stream` of a shared operation that was recorded where it may not run."""
        ...

    # Any: an execution and its parts, which this layer does not know
    def pause(self, execution: Any, frame: Any, value: Any) -> bool:
        """True when the execution has to stop and let others run; `frame` gets `value` again then."""
        ...

    def fork(self, stream: Stream) -> Stream:
        """A new branch behind what `stream` holds."""
        ...

    def join(self, stream: Stream, branches: Sequence[Stream]) -> None:
        """Later work on `stream` comes behind the branches."""
        ...
