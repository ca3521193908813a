"""What a graph is made of, in our own types: nodes that say what to do and what must come before.

A graph is a list of nodes in an order in which each comes after those it depends on. Both drivers make something of
such a list that can be launched again and again (`Driver.graph_create`): the CUDA driver an executable graph, the
host device a list of entries that it goes through on every launch.

Nodes are plain data. Their fields may be changed afterwards; `Driver.graph_update` makes a driver look at them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ._arguments import ArgumentBlock
    from ._protocol import FunctionHandle

__all__ = [
    "ChildNode",
    "ConditionKind",
    "ConditionalNode",
    "ConvertNode",
    "CopyNode",
    "EmptyNode",
    "FillNode",
    "ForeignNode",
    "GraphHandle",
    "KernelNode",
    "Node",
    "StridedCopyNode",
    "leaves",
]

GraphHandle = NewType("GraphHandle", int)


@dataclass(eq=False, kw_only=True, slots=True)
class Node:
    """One step of a graph; runs once everything in `dependencies` is done.

    Attributes:
        renewed: memory, (address, bytes) each, that was one tensor's before it and is another's from it on. For
            devices that check.
        read, written: address and size of each buffer that it was said to use so; for who changes nodes.
    """

    dependencies: tuple[Node, ...] = field(default=(), repr=False)
    renewed: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    read: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    written: tuple[tuple[int, int], ...] = field(default=(), repr=False)


@dataclass(eq=False, kw_only=True, slots=True)
class EmptyNode(Node):
    """Does nothing; others wait for it."""


@dataclass(eq=False, kw_only=True, slots=True)
class KernelNode(Node):
    """A kernel launch. `arguments` is the node's own; `programmatic` as for `Driver.launch_with_attributes`.

    `recorded_written` is `written` as it was first.
    """

    name: str
    function: FunctionHandle
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: ArgumentBlock
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False
    programmatic: bool = False
    recorded_written: tuple[tuple[int, int], ...] = field(default=(), repr=False)


@dataclass(eq=False, kw_only=True, slots=True)
class CopyNode(Node):
    """`size_bytes` > 0 bytes, on the device or, with `from_host`, from pinned memory."""

    dst: int
    src: int
    size_bytes: int
    from_host: bool = False


@dataclass(eq=False, kw_only=True, slots=True)
class StridedCopyNode(Node):
    """`Driver.copy_strided_async` as a node."""

    dst: int
    dst_strides_bytes: tuple[int, ...]
    src: int
    src_strides_bytes: tuple[int, ...]
    shape: tuple[int, ...]
    itemsize: int


@dataclass(eq=False, kw_only=True, slots=True)
class FillNode(Node):
    """`count` > 0 copies of a pattern of 1, 2, 4 or 8 bytes."""

    dst: int
    pattern: bytes
    count: int


@dataclass(eq=False, kw_only=True, slots=True)
class ConvertNode(Node):
    """`Driver.convert_async` as a node; `count` > 0."""

    dst: int
    dst_dtype: np.dtype[np.generic]
    src: int
    src_dtype: np.dtype[np.generic]
    count: int


@dataclass(eq=False, kw_only=True, slots=True)
class ChildNode(Node):
    """Another graph's nodes, all of them."""

    nodes: list[Node]


class ConditionKind(Enum):
    """What a number on the device decides."""

    IF = "if"
    """The first body runs once where it is not 0, the second, if there is one, where it is."""
    WHILE = "while"
    """The body runs again and again, as long as it is not 0."""


@dataclass(eq=False, kw_only=True, slots=True)
class ConditionalNode(Node):
    """Bodies that run or not, by the integer of `itemsize` bytes that is at `predicate` when the turn comes."""

    kind: ConditionKind
    predicate: int
    itemsize: int
    bodies: tuple[list[Node], ...]


@dataclass(eq=False, kw_only=True, slots=True)
class ForeignNode(Node):
    """What another library enqueued while its stream was captured. On CUDA only."""

    captured: GraphHandle


def leaves(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that no other depends on, in order."""
    inner = {id(dependency) for node in nodes for dependency in node.dependencies}
    return [node for node in nodes if id(node) not in inner]
