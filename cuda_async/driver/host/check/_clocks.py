"""What comes before what: vector clocks of streams, branches of graphs, and the program.

An *actor* does one thing after the other: a stream, a branch of a graph on a stream, or the program. A piece of
`Work` is one thing an actor did, numbered by `count`. A clock says for each actor up to which number its work came
before. So work X comes before work Y if Y's clock has X's actor at X's number or beyond. A stream that is closed, once
the program knows all of it to be done, leaves its actor to a later one.

The program is one actor, whatever threads and tasks it has: how those order themselves is not seen here, and what one
of them knows to be done is done for all.

Clocks are never changed, only replaced, so whoever keeps one keeps it as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...graph import ChildNode, EmptyNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._arguments import DeclaredUses
    from ...graph import Node
    from ._threads import LaunchOrder

__all__ = ["PROGRAM", "Branch", "Clock", "GraphStep", "Track", "Work", "graph_steps", "merged"]

Clock = Mapping[int, int]
PROGRAM = 0
"""The program's number among the actors."""


def merged(one: Clock, other: Clock) -> Clock:
    """The clock of what comes behind both."""
    if one is other or not other:
        return one
    if not one:
        return other
    newer = {actor: count for actor, count in other.items() if one.get(actor, 0) < count}
    return {**one, **newer} if newer else one


class Work:
    """One thing that an actor did.

    Attributes:
        actor, count, clock: its place in the order.
        name: `kernel f`, `copy`, ... stream, device, enqueued: as in `ReportedAccess`.
        order: of a kernel's blocks and threads; None for what is one thing.
        module: what messages call the PTX of a kernel; empty for anything else.
        declared: what a launch was told it may touch, where that is known.
        ids: numbers of its accesses, by place and sort. fresh: those below are not used again.
    """

    __slots__ = (
        "actor",
        "clock",
        "count",
        "declared",
        "device",
        "enqueued",
        "fresh",
        "ids",
        "module",
        "name",
        "order",
        "stream",
    )

    def __init__(
        self,
        actor: int,
        count: int,
        clock: Clock,
        name: str,
        *,
        stream: int | None = None,
        device: str = "",
        enqueued: str = "",
    ) -> None:
        self.actor = actor
        self.count = count
        self.clock = clock
        self.name = name
        self.stream = stream
        self.device = device
        self.enqueued = enqueued
        self.order: LaunchOrder | None = None
        self.module = ""
        self.declared: DeclaredUses | None = None
        self.ids: dict[tuple[int, str, bool], int] = {}
        self.fresh = 0

    def before(self, other: Work) -> bool:
        """Whether this is done before `other` begins, whatever the device does."""
        if self.actor == other.actor:
            return self.count <= other.count
        return other.clock.get(self.actor, 0) >= self.count


class Branch:
    """The n-th branch of any graph on a stream, as an actor."""

    __slots__ = ("actor", "count")

    def __init__(self, actor: int, count: int) -> None:
        self.actor = actor
        self.count = count


class Track:
    """A stream as an actor: how far it is, and what came before.

    Attributes:
        actor: its number. branches: of graphs on this stream.
        stream: the number it has in reports, from 0 on each device.
    """

    __slots__ = ("actor", "branches", "clock", "count", "device", "stream")

    def __init__(self, actor: int, count: int, stream: int, device: str) -> None:
        self.actor = actor
        self.stream = stream
        self.device = device
        self.count = count
        self.clock: Clock = {}
        self.branches: list[Branch] = []

    def now(self) -> Clock:
        """The clock of what comes behind all that the stream has done."""
        return {**self.clock, self.actor: self.count}


class GraphStep:
    """One entry of a graph: in which branch, at which place of it, and how much of the others comes before."""

    __slots__ = ("branch", "known", "place")

    def __init__(self, branch: int, place: int, known: dict[int, int]) -> None:
        self.branch = branch
        self.place = place
        self.known = known


def graph_steps(nodes: Sequence[Node]) -> tuple[GraphStep, ...]:
    """A step for each entry that the host device makes of `nodes`, in their order.

    Branches are chains: a node goes on the branch of one it depends on, if nothing else has gone on there.
    """
    flat: list[tuple[Node, bool]] = []
    inner: dict[Node, tuple[Node, ...]] = {}
    ends: dict[Node, tuple[Node, ...]] = {}
    _flatten(nodes, (), flat, inner, ends)
    known: dict[Node, dict[int, int]] = {}
    lengths: list[int] = []
    steps = []
    for node, has_entry in flat:
        before: dict[int, int] = {}
        for other in inner[node]:
            for end in ends.get(other, (other,)):
                for branch, place in known[end].items():
                    before[branch] = max(before.get(branch, 0), place)
        if has_entry:
            branch = next((b for b, place in before.items() if lengths[b] == place), len(lengths))
            if branch == len(lengths):
                lengths.append(0)
            lengths[branch] += 1
            steps.append(GraphStep(branch, lengths[branch], dict(before)))
            before[branch] = lengths[branch]
        known[node] = before
    return tuple(steps)


def _flatten(
    nodes: Sequence[Node],
    outer: tuple[Node, ...],
    flat: list[tuple[Node, bool]],
    inner: dict[Node, tuple[Node, ...]],
    ends: dict[Node, tuple[Node, ...]],
) -> None:
    """Other graphs' nodes stand in the place of the node that holds them; `ends` has what it ends with."""
    for node in nodes:
        before = node.dependencies or outer
        if isinstance(node, ChildNode):
            _flatten(node.nodes, before, flat, inner, ends)
            used = {id(d) for child in node.nodes for d in child.dependencies}
            last = tuple(child for child in node.nodes if id(child) not in used)
            ends[node] = tuple(e for child in last for e in ends.get(child, (child,))) or tuple(
                e for other in before for e in ends.get(other, (other,))
            )
            continue
        inner[node] = before
        flat.append((node, not isinstance(node, EmptyNode)))
