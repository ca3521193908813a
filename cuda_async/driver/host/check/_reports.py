"""What the checking mode finds, in words and in fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["CheckReport", "Kind", "ReportedAccess"]

Kind = Literal["race", "never written", "read only", "not given", "out of bounds", "freed", "leak"]
"""The sort of a finding:

- `race`: two accesses of one place that nothing orders, and one of them writes;
- `never written`: memory is read that nobody has written;
- `read only`: a kernel writes what it was passed as `read`;
- `not given`: a kernel touches memory of the pool that no argument of its launch, and no `uses=`, names;
- `out of bounds`, `freed`: an access outside of every live allocation;
- `leak`: memory that is still allocated at the end.
"""


@dataclass(frozen=True, kw_only=True)
class ReportedAccess:
    """One side of a finding.

    Attributes:
        access: `read`, `write`, `update` (an atomic), `compare and swap`, `free` or `allocation`.
        work: what did it: `kernel scale`, `copy`, `fill`, `the host`, ...
        place: the line and operation of the kernel; empty for other work, and for `out of bounds` and `freed`, where
            the `MemoryFault` says it.
        block, thread: which ones, for a kernel; None where there were several, and where `place` is empty.
        stream: number of the stream on its device, None for the host. device: such as `host:0`.
        enqueued: the line of the program that asked for it; empty where that is not known, as on a worker thread.
    """

    access: str
    work: str
    place: str = ""
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    stream: int | None = None
    device: str = ""
    enqueued: str = ""

    def __str__(self) -> str:
        is_itself = self.work == self.access or self.work.startswith(
            f"{self.access} of "
        )  # an allocation, a free
        text = self.work if is_itself else f"{self.access} by {self.work}"
        if self.block is not None:
            text += f", block {self.block}"
        if self.thread is not None:
            text += f", thread {self.thread}"
        if self.place:
            text += f", {self.place}"
        if self.stream is not None:
            text += f", on stream {self.stream} of {self.device}"
        if self.enqueued:
            text += f", enqueued at {self.enqueued}"
        return text


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """One finding of the checking mode.

    Attributes:
        kind: what sort it is; see `Kind`.
        what: the finding in a sentence.
        address, size_bytes: where; 0 where that has no meaning.
        first: the earlier access (in this run), or what set the rule that `second` breaks; None where there is none.
        second: the access that was noticed; None for a leak.
        advice: what to do.
    """

    kind: Kind
    what: str
    address: int = 0
    size_bytes: int = 0
    first: ReportedAccess | None = None
    second: ReportedAccess | None = field(default=None)
    advice: str = ""

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.what}"]
        lines += [f"  {one}" for one in (self.second, self.first) if one is not None]
        if self.advice:
            lines.append(f"  {self.advice}")
        return "\n".join(lines)
