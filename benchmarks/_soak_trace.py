"""What a soak enqueues, in a ring: which work on which stream, and which streams wait for which.

`soak.py --trace FILE` writes the ring when a value is wrong. This program then says, of every use of memory that is in
it, whether something orders it behind the uses before it, on the device or by the host that has seen the end:

    python benchmarks/_soak_trace.py FILE [ADDRESS]      # with an address: what concerns it, too

Uses by raw kernels are not in it (they are ordered in C), only the waits that they caused.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import defaultdict, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_async.graph._graph import CudaGraph
from cuda_async.graph._memory import GraphState, root_of
from cuda_async.scheduling import Device, Stream, Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENTRIES = 400_000


class Trace:
    """The ring. Entries are made under the device's lock, so their order is that of the enqueueing."""

    def __init__(self) -> None:
        self._ring: deque[tuple[Any, ...]] = deque(maxlen=ENTRIES)
        self._writes: dict[int, str] = {}

    def put(self, *entry: Any) -> None:
        self._ring.append((threading.get_ident(), *entry))

    def write(self, file: Path) -> None:
        """All that is kept, a line for each entry."""
        file.write_text("".join(" ".join(map(str, entry)) + "\n" for entry in list(self._ring)))

    def install(self) -> None:
        """From now on everything is noted."""
        self._wrap(Stream, "_record", self._record)
        self._wrap(Stream, "_wait_for", self._wait_for)
        self._wrap(Submission, "_finish", self._finish)
        self._wrap(Device, "_allocate", self._allocate)
        self._wrap(Device, "_order", self._order)
        self._wrap(CudaGraph, "_enqueue", self._enqueue)
        self._wrap(GraphState, "advance", self._advance)

    def _wrap(self, owner: type, name: str, instead: Callable[..., Any]) -> None:
        method = getattr(owner, name)

        @functools.wraps(method)
        def noted(*args: Any, **kwargs: Any) -> Any:
            return instead(method, *args, **kwargs)

        setattr(owner, name, noted)

    def _record(self, method: Any, stream: Stream) -> Any:
        number = stream._next
        made = method(stream)
        if made is not None and made.number == number:
            self.put("record", _name(stream), number, made.event)
        return made

    def _wait_for(self, method: Any, stream: Stream, source: Stream, number: int) -> None:
        done = source._done
        method(stream, source, number)
        if source is not stream and stream._recorder is None:
            self.put("wait", _name(stream), _name(source), number, stream._waited.get(source, 0), done)

    def _finish(self, method: Any, submission: Submission, *args: Any) -> None:
        self.put("finish", _name(submission.stream), submission.number, submission.event)
        method(submission, *args)

    def _allocate(self, method: Any, device: Device, size: int, stream: Stream, **more: Any) -> Any:
        buffer = method(device, size, stream, **more)
        if stream._recorder is None and size:
            self.put("new", _name(stream), hex(id(buffer)), hex(buffer.start), size)
        return buffer

    def _order(self, method: Any, device: Device, stream: Stream, reads: Any, writes: Any) -> None:
        method(device, stream, reads, writes)
        if stream._recorder is None:
            self.put("use", _name(stream), stream._next, _names(reads), _names(writes))

    def _enqueue(self, method: Any, graph: CudaGraph[Any], *args: Any) -> Any:
        self._writes[id(graph._state)] = _names(b for b in graph._writes if b is not graph._token)
        return method(graph, *args)

    def _advance(self, method: Any, state: GraphState, stream: Stream, number: int) -> int:
        self.put("use", _name(stream), number, "-", self._writes.get(id(state), "-"))
        launched: int = method(state, stream, number)
        return launched


def _name(stream: Stream) -> str:
    return stream.name.replace(" ", "_")


def _names(buffers: Any) -> str:
    return ",".join(hex(id(root_of(buffer))) for buffer in buffers if buffer.size_bytes) or "-"


def unordered(lines: Iterator[str]) -> tuple[int, list[str]]:
    """How many pairs of uses were looked at, and those that nothing orders."""
    known: defaultdict[str, dict[str, int]] = defaultdict(
        dict
    )  # of each stream: numbers of others that it is behind
    closed: dict[tuple[str, int], dict[str, int]] = {}
    done: defaultdict[str, int] = defaultdict(int)
    written: dict[str, tuple[str, int]] = {}
    read: defaultdict[str, dict[str, int]] = defaultdict(dict)
    live: set[str] = set()
    count, found = 0, []
    for place, line in enumerate(lines, 1):
        _, kind, stream, *rest = line.split()
        if kind == "record":
            closed[stream, int(rest[0])] = {**known[stream], stream: int(rest[0])}
        elif kind == "finish":
            done[stream] = max(done[stream], int(rest[0]))
        elif kind == "wait":
            source, number, waited, seen = rest[0], *map(int, rest[1:])
            done[source] = max(done[source], seen)
            if waited >= number:
                for other, n in closed.get((source, waited), {source: waited}).items():
                    known[stream][other] = max(n, known[stream].get(other, 0))
        elif kind == "new":
            live.add(rest[0])
            written.pop(rest[0], None)
            read.pop(rest[0], None)
        elif kind == "use":
            number = int(rest[0])
            reads, writes = (live.intersection(names.split(",")) for names in rest[1:])
            for buffer in reads | writes:
                before = [written[buffer]] if buffer in written else []
                before += read[buffer].items() if buffer in writes else []
                for source, n in before:
                    count += 1
                    if source != stream and known[stream].get(source, 0) < n and done[source] < n:
                        found.append(f"line {place}: {buffer} in {stream} {number}, not behind {source} {n}")
            for buffer in writes:
                written[buffer] = stream, number
                read.pop(buffer, None)
            for buffer in reads - writes:
                read[buffer][stream] = number
    return count, found


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__)
        return 2
    lines = Path(sys.argv[1]).read_text().splitlines()
    for address in sys.argv[2:]:
        names = {line.split()[3] for line in lines if line.split()[1] == "new" and line.split()[4] == address}
        print(*(line for line in lines if any(name in line for name in names)), sep="\n")
    count, found = unordered(iter(lines))
    print(*found, f"{count} pairs of uses, {len(found)} not ordered", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
