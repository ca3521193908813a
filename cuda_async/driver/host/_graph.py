"""Graphs on the host device: what the nodes do, as entries that every launch goes through again.

Nodes come after those they depend on, so one after the other is a right order. A launch is one entry of its stream, in
steps like any other; it holds the entries as they were when it was enqueued, so a node that is changed meanwhile
changes later launches only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph import (
    ChildNode,
    ConditionalNode,
    ConditionKind,
    ConvertNode,
    CopyNode,
    EmptyNode,
    FillNode,
    ForeignNode,
    KernelNode,
    Node,
    StridedCopyNode,
)
from ._entries import Entry
from ._memory import HostMemory, memory_window
from ._work import ConvertEntry, CopyEntry, FillEntry, StridedCopyEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ._work import LaunchEntry
    from .check import GraphStep

__all__ = ["ConditionalEntry", "GraphEntry", "HostGraph"]


class HostGraph:
    """What a graph handle of a host device stands for.

    Args:
        nodes: as given; looked at again by the next launch behind an `update`.
        memory: the device's. launch: makes the entry of a kernel node, checked.
    """

    def __init__(
        self, nodes: Sequence[Node], memory: HostMemory, launch: Callable[[KernelNode], LaunchEntry]
    ) -> None:
        self._nodes = list(nodes)
        self._memory = memory
        self._launch = launch
        self._renewed: dict[Entry, Sequence[tuple[int, int]]] = {}
        self._entries = self._all(self._nodes)
        self._outdated = False
        self._steps: tuple[GraphStep, ...] = ()
        if memory.checker is not None:
            from .check import graph_steps

            self._steps = graph_steps(self._nodes)

    def update(self, node: Node) -> None:
        """Launches from now on do what the node says now; raises what it cannot be launched for."""
        self._some(node)
        self._outdated = True

    def entry(self) -> GraphEntry:
        """One launch."""
        if self._outdated:
            self._renewed = {}
            self._entries = self._all(self._nodes)
            self._outdated = False
        return GraphEntry(self._entries, self._steps, self._memory, self._renewed)

    def _all(self, nodes: Sequence[Node]) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        for node in nodes:
            made = self._some(node)
            if node.renewed and made and self._memory.checker is not None:
                self._renewed[made[0]] = node.renewed
            entries += made
        return tuple(entries)

    def _some(self, node: Node) -> tuple[Entry, ...]:
        memory = self._memory
        match node:
            case KernelNode():
                return (self._launch(node),)
            case CopyNode():
                return (CopyEntry(memory, node.dst, node.src, node.size_bytes),)
            case FillNode():
                return (FillEntry(memory, node.dst, node.pattern, node.count),)
            case StridedCopyNode():
                return (
                    StridedCopyEntry(
                        memory,
                        node.dst,
                        node.dst_strides_bytes,
                        node.src,
                        node.src_strides_bytes,
                        node.shape,
                        node.itemsize,
                    ),
                )
            case ConvertNode():
                return (ConvertEntry(memory, node.dst, node.dst_dtype, node.src, node.src_dtype, node.count),)
            case ChildNode():
                return self._all(node.nodes)
            case ConditionalNode():
                bodies = tuple(self._all(body) for body in node.bodies)
                return (ConditionalEntry(memory, node.kind, node.predicate, node.itemsize, bodies),)
            case EmptyNode():
                return ()
            case ForeignNode():
                raise TypeError("no other library's work can be captured on a simulated device")
            case _:
                raise AssertionError(f"unknown node {node!r}")


class GraphEntry(Entry):
    """One launch of a graph.

    Args:
        steps: for a checker, what comes before each entry. renewed: likewise, memory that is another tensor's from an
            entry on.
    """

    __slots__ = ("_checker", "_memory", "_renewed", "_steps", "entries", "kernel")

    def __init__(
        self,
        entries: tuple[Entry, ...],
        steps: tuple[GraphStep, ...],
        memory: HostMemory,
        renewed: Mapping[Entry, Sequence[tuple[int, int]]],
    ) -> None:
        self.entries = entries
        self.kernel = ""
        self._steps = steps
        self._memory = memory
        self._checker = memory.checker
        self._renewed = renewed

    def start(self) -> Iterator[None]:
        return self._run(self.entries)

    def _run(self, entries: tuple[Entry, ...]) -> Iterator[None]:
        for number, entry in enumerate(entries):
            step = self._steps[number] if self._steps and entries is self.entries else None
            self._renew(entry)
            self._go_on_with(entry, step)
            if isinstance(entry, ConditionalEntry):
                while (body := entry.next_body()) is not None:
                    yield from self._run(body)
                    yield
                    if entry.kind is ConditionKind.IF:
                        break
                    self._go_on_with(entry, step)  # which looks at its predicate again
                continue
            steps = entry.start()
            if steps is not None:
                yield from steps
            else:
                yield

    def _renew(self, entry: Entry) -> None:
        if self._checker is None:
            return
        for address, size_bytes in self._renewed.get(entry, ()):
            block = self._memory.block_of(address)
            if block is not None:
                self._checker.renewed(block, address, size_bytes)

    def _go_on_with(self, entry: Entry, step: GraphStep | None) -> None:
        """Whose fault it is, if one happens, and whose accesses these are."""
        self.kernel = entry.kernel
        if self._checker is not None:
            self._checker.graph_step(step, entry)


class ConditionalEntry(Entry):
    """Bodies that run by what a number in memory says then; `GraphEntry` runs them."""

    __slots__ = ("bodies", "dtype", "kind", "memory", "predicate")

    def __init__(
        self,
        memory: HostMemory,
        kind: ConditionKind,
        predicate: int,
        itemsize: int,
        bodies: tuple[tuple[Entry, ...], ...],
    ) -> None:
        self.memory = memory
        self.kind = kind
        self.predicate = predicate
        self.dtype = np.dtype(f"u{itemsize}")
        self.bodies = bodies

    def next_body(self) -> tuple[Entry, ...] | None:
        """What runs now; None when nothing does."""
        window = memory_window(self.memory, self.predicate, self.dtype.itemsize, "read")
        if window.view(self.dtype)[0]:
            return self.bodies[0]
        if self.kind is ConditionKind.IF and len(self.bodies) > 1:
            return self.bodies[1]
        return None
