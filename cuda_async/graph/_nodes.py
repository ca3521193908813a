"""Nodes of a graph as users see them: what they do, and how to change that for later launches."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..driver import ArgumentBlock, ParameterKind
from ..driver.graph import (
    ChildNode,
    ConditionalNode,
    ConvertNode,
    CopyNode,
    FillNode,
    ForeignNode,
    KernelNode,
    Node,
    StridedCopyNode,
)
from ..errors import AliasError, CaptureError, LaunchError
from ..memory import Buffer, Mut, Read, Tensor, extent, fill_pattern
from ..ops import check_operand
from ..ops._arguments import MUT, OTHER, READ, Step, _argument_step, describe_parameter
from ..ops._declared import redeclare
from ..ops._foreign import FOREIGN_CALL
from ..ops._launch import (
    as_dimensions,
    as_shared_bytes,
    check_aliases,
    cluster_problem,
    shared_memory_problem,
)
from ._memory import root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

    from ..scheduling import Device
    from ._graph import CudaGraph
    from ._recorder import Uses

__all__ = ["GraphNode", "all_nodes", "kind_of", "label_of", "nodes_of"]


def kind_of(node: Node) -> str:
    """What sort of node it is: `"kernel"`, `"copy"`, `"upload"`, ..."""
    match node:
        case KernelNode():
            return "foreign" if node.name == FOREIGN_CALL else "kernel"
        case CopyNode():
            return "upload" if node.from_host else "copy"
        case StridedCopyNode():
            return "copy"
        case FillNode():
            return "fill"
        case ConvertNode():
            return "convert"
        case ChildNode():
            return "graph"
        case ConditionalNode():
            return node.kind.value
        case ForeignNode():
            return "foreign"
        case _:
            return "join"


def label_of(node: Node) -> str:
    """A short description, for pictures."""
    match node:
        case KernelNode() if kind_of(node) == "kernel":
            return f"{node.name} {_short(node.grid)} x {_short(node.block)}"
        case CopyNode():
            return f"{kind_of(node)} {_bytes(node.size_bytes)}"
        case StridedCopyNode():
            return f"copy {' x '.join(map(str, node.shape))} of {node.itemsize} bytes"
        case FillNode():
            return f"fill {_bytes(node.count * len(node.pattern))}"
        case ConvertNode():
            return f"convert {node.count} {node.src_dtype.name} to {node.dst_dtype.name}"
        case ChildNode():
            return f"graph of {len(node.nodes)} nodes"
        case _:
            kind = kind_of(node)
            return "other library's work" if kind == "foreign" else kind


def _short(dims: tuple[int, int, int]) -> str:
    kept = [dims[0]] if dims[1:] == (1, 1) else list(dims)
    return f"({', '.join(map(str, kept))})"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % (size >> 4) == 0:
            return f"{count / size:g} {unit}"
    return f"{count} bytes"


class GraphNode:
    """One node of a graph. Changes take effect with the next launch that is enqueued; those in flight keep the old.

    A change that an interrupt came into, or an error of the driver's, holds from then on too, or was not begun.

    Attributes:
        index: its place in its list. kind: `"kernel"`, `"copy"`, `"upload"` (from staged host data), `"fill"`,
            `"convert"`, `"graph"` (another graph), `"if"`, `"while"`, `"foreign"` (another library's work), `"join"`.
        depends_on: indices of the nodes it comes right behind.
    """

    index: int
    kind: str
    depends_on: tuple[int, ...]
    _graph: CudaGraph[Any]
    _node: Node

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("nodes are those of CudaGraph.nodes")

    @classmethod
    def _make(cls, graph: CudaGraph[Any], node: Node, index: Mapping[Node, int]) -> GraphNode:
        self = object.__new__(cls)
        self._graph = graph
        self._node = node
        self.index = index[node]
        self.kind = kind_of(node)
        self.depends_on = tuple(index[d] for d in node.dependencies)
        return self

    @property
    def name(self) -> str:
        """The kernel's name; empty for other kinds."""
        return self._node.name if isinstance(self._node, KernelNode) and self.kind == "kernel" else ""

    @property
    def bodies(self) -> tuple[tuple[GraphNode, ...], ...]:
        """The nodes inside: of `"graph"` and `"while"` one list, of `"if"` one or two (what runs else); of others none.

        A change of such a node makes the driver's graph anew before the next launch.
        """
        node = self._node
        if isinstance(node, ChildNode):
            lists = [node.nodes]
        elif isinstance(node, ConditionalNode):
            lists = list(node.bodies)
        else:
            return ()
        return tuple(nodes_of(self._graph, nodes) for nodes in lists)

    def __repr__(self) -> str:
        return f"<GraphNode {self.index}: {label_of(self._node)}>"

    # -- kernels

    def set_arguments(self, arguments: Mapping[int, object]) -> None:
        """Give the kernel other arguments, by position (of a tile kernel: of its flat parameters).

        Args:
            arguments: `read(tensor)`, `mut(tensor)`, numbers, NumPy scalars, `ctypes` values, as for `launch`; the
                function's signature counts.
        Raises:
            CaptureError: no kernel, or it would no longer write what the graph yields, or write what it yields as it
                was. IndexError: no such parameter.
            TypeError, OverflowError, AliasError: as for a launch, aliases among the arguments that are given.
            AliasError: also memory that a node uses which may run beside this one, where one of the two writes it.
            LaunchError: a tile kernel would be given another tensor, extent or stride, or a check that it made before
            its launch does not hold. Nothing was changed.
        """
        node = self._kernel("set_arguments")
        if not isinstance(arguments, Mapping):
            raise TypeError(
                f"arguments are given by position, as {{0: value}}, got {type(arguments).__name__}"
            )
        device = self._graph._device
        parameters = device.driver.function_info(node.function).parameters
        signature = node.arguments.signature
        packed: list[tuple[int, bytes]] = []
        pointers: list[tuple[int, bytes, bool]] = []
        reads: list[Buffer] = []
        writes: list[Buffer] = []
        for position, value in arguments.items():
            if not hasattr(position, "__index__"):
                raise TypeError(f"arguments are given by position, as {{0: value}}, got the key {position!r}")
            if not 0 <= position < len(parameters):
                raise IndexError(
                    f"{node.name} has {len(parameters)} parameters, 0 to {len(parameters) - 1}; got {position}"
                )
            parameter = parameters[position]
            exact = signature[position] if signature is not None else None
            is_pointer = exact == "ptr" or parameter.kind is ParameterKind.POINTER
            if is_pointer and _is_another(value, node, parameter.offset_bytes):
                raise LaunchError(
                    f"{node.name}: argument {position} is part of what the tile kernel was made and checked for: its "
                    "numbers can be replaced, and what a tk.Pointer points to, but no tensors; write into the tensor "
                    "that it uses, or capture a graph of the other one"
                )
            step, code = _argument_step(
                node.name, position, parameter, exact, type(value), describe_parameter(parameter, exact)
            )
            number, buffer = _checked(step, value, node.name, device)
            data = struct.pack(f"<{code}", number)
            if is_pointer and step[0] not in (READ, MUT) and any(data):
                raise TypeError(
                    f"{node.name}: {step[4]} was given an address as an integer; pass read(tensor) or mut(tensor)"
                )
            packed.append((parameter.offset_bytes, data))
            if parameter.size_bytes == 8:
                pointers.append((position, data, step[0] == MUT))
            if buffer is not None:
                (writes if step[0] == MUT else reads).append(buffer)
        written_tensors = [a.tensor for a in arguments.values() if isinstance(a, Mut)]
        read_tensors = [a.tensor for a in arguments.values() if isinstance(a, Read)]
        check_aliases(node.name, written_tensors, read_tensors)
        kept = [(p.offset_bytes, p.size_bytes) for i, p in enumerate(parameters) if i not in arguments]

        def changed() -> tuple[dict[str, object], Uses | None]:
            for position, data, is_written in pointers:
                self._check_yielded(node, position, data, is_written=is_written)
            template = self._graph._template
            for tensor in written_tensors:
                if template.passes(root_of(tensor._buffer).usage):
                    raise CaptureError(
                        f"{node.name}: the graph yields {tensor!r} as what it does not write; capture a graph that "
                        "writes it, or yields something else"
                    )
            old = node.arguments
            words = [_word(old, offset) for offset, size in kept if size == 8]
            for tensor in read_tensors:
                _check_not_written(node, tensor, words)
            new = old.copy()
            for offset, data in packed:
                new.buffer[offset : offset + len(data)] = data
            if new.rule is not None:
                problem = new.rule(old.numbers(), new.numbers(), node.grid)
                if problem is not None:
                    raise LaunchError(f"{node.name}: {problem}")
            redeclare(old, new, [offset for offset, _ in packed], read_tensors, written_tensors)
            if not pointers:
                return {"arguments": new}, None
            return self._using(old, new, reads, writes)

        self._change(changed, read_tensors, written_tensors)

    def _check_yielded(self, node: KernelNode, position: int, data: bytes, *, is_written: bool) -> None:
        """Refuse that launches go on yielding a tensor that they do not write.

        Memory of one allocation counts as a whole, and what the node was captured with.
        """
        offset = self._graph._device.driver.function_info(node.function).parameters[position].offset_bytes
        old = int.from_bytes(node.arguments.buffer[offset : offset + 8], "little")
        template = self._graph._template
        was_written = any(start <= old < start + size for start, size in node.recorded_written)
        still_is = is_written and old == int.from_bytes(data, "little")
        if was_written and template.has(old) and not still_is:
            raise CaptureError(
                f"{node.name}: argument {position} is what the graph yields, and launches would go on yielding the "
                "tensor that it was captured with; capture a graph that writes the other one, or yields nothing"
            )

    def set_launch(
        self, *, grid: object = None, block: object = None, shared_mem_bytes: int | None = None
    ) -> None:
        """Launch the kernel with another grid, block or amount of dynamic shared memory.

        Raises:
            CaptureError: no kernel, beyond the device's limits, a grid that its clusters do not divide, or the grid of
                a tile kernel. DriverError: (by each launch, until it is set to something else) what only the kernel
                cannot, such as a block with too many threads for its registers.
        """
        node = self._kernel("set_launch")
        if node.arguments.rule is not None and (grid, block) != (None, None):
            raise CaptureError(
                f"{node.name} is a tile kernel, whose grid follows from its operands; capture another graph for another"
            )
        limits = self._graph._device.limits
        fields: dict[str, object] = {}
        for what, given, most in (("grid", grid, limits.max_grid), ("block", block, limits.max_block)):
            if given is None:
                continue
            dims = as_dimensions(given, what)
            if any(not 1 <= size <= limit for size, limit in zip(dims, most)):
                raise CaptureError(
                    f"{node.name}: {what} {dims} is beyond 1 to {most}; capture another graph for that"
                )
            fields[what] = dims
            problem = (
                cluster_problem(dims, node.cluster) if what == "grid" and node.cluster is not None else ""
            )
            if problem:
                raise CaptureError(f"{node.name}: {problem}")
        if shared_mem_bytes is not None:
            fields["shared_bytes"] = shared = as_shared_bytes(shared_mem_bytes)
            self._allow_shared(node, shared)
        self._change(lambda: (fields, None))

    def _change(
        self,
        changed: Callable[[], tuple[dict[str, object], Uses | None]],
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
    ) -> None:
        """Between launches: give the node the fields and uses that `changed()` gives, which itself changes nothing.

        Args:
            reads, writes: tensors that it is to use.
        """
        graph = self._graph

        def work() -> None:
            graph._check_open()
            graph._finish_change()  # an interrupted one, before anybody looks at the node
            self._check_ordered(reads, writes)
            graph._change_node(self._node, *changed())

        graph._state.note_writes([root_of(tensor._buffer) for tensor in writes])
        graph._turn.hold(work)

    def _allow_shared(self, node: KernelNode, size_bytes: int) -> None:
        device = self._graph._device
        static = device.driver.function_info(node.function).static_shared_bytes
        problem = shared_memory_problem(size_bytes, static, device)
        if problem:
            raise CaptureError(f"{node.name}: {problem}")
        if size_bytes + static > device.limits.max_shared_bytes_per_block:
            device.driver.function_allow_shared_bytes(node.function, size_bytes)

    def _kernel(self, what: str) -> KernelNode:
        self._graph._check_open()
        if not isinstance(self._node, KernelNode) or self.kind != "kernel":
            raise CaptureError(f"{what}() is for kernels; node {self.index} is of kind {self.kind!r}")
        return self._node

    # -- copies and fills

    def set_source(self, tensor: Tensor) -> None:
        """Copy from another tensor, contiguous and of as many bytes.

        Raises:
            CaptureError: no plain copy between contiguous tensors, or another number of bytes.
            AliasError: the memory that the node writes is part of it, or a node that may run beside this one writes it.
        """
        self._graph._check_open()
        node = self._node
        if not isinstance(node, CopyNode) or node.from_host:
            raise CaptureError(
                f"set_source() is for copies of contiguous tensors; node {self.index} is {self!r}"
            )
        buffer = check_operand(tensor, self._graph._device, "the source")
        if not tensor.is_contiguous or tensor.nbytes != node.size_bytes:
            raise CaptureError(
                f"the node copies {node.size_bytes} contiguous bytes, {tensor!r} is something else"
            )
        if tensor._address < node.dst + node.size_bytes and node.dst < tensor._address + node.size_bytes:
            raise AliasError(f"the node writes memory of {tensor!r}; copy from other memory")

        self._change(
            lambda: ({"src": tensor._address}, ((buffer,), self._graph._uses[node][1])), reads=(tensor,)
        )

    def set_value(self, value: float | np.generic, dtype: object) -> None:
        """Fill with another value; `dtype` is the filled tensor's, which the node does not know.

        Raises:
            CaptureError: no fill, or another size of element.
        """
        from ..memory import as_dtype

        self._graph._check_open()
        node = self._node
        if not isinstance(node, FillNode):
            raise CaptureError(f"set_value() is for fills; node {self.index} is of kind {self.kind!r}")
        pattern = fill_pattern(value, as_dtype(dtype))
        if len(pattern) != len(node.pattern):
            raise CaptureError(
                f"the node fills elements of {len(node.pattern)} bytes, got one of {len(pattern)}"
            )

        self._change(lambda: ({"pattern": pattern}, None))

    # -- what it uses

    def _check_ordered(self, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
        """Refuse memory that a node uses which may run beside this one: a change orders nothing.

        What a kernel uses counts as the whole allocations; fills and copies that are contiguous are known to the byte.
        """
        read, written = (
            [_extent_of(tensor) for tensor in tensors if tensor.size] for tensors in (reads, writes)
        )
        if not read and not written:
            return
        for nodes, inside in _path_to(self._graph._nodes, self._node):
            ordered = _ordered_with(nodes, inside)
            for i, other in enumerate(nodes):
                if other in ordered:
                    continue
                for each in all_nodes([other]):
                    other_reads, other_writes = _touched(each)
                    if _meet([*read, *written], other_writes) or _meet(written, other_reads):
                        raise AliasError(
                            f"node {i} of the graph, {label_of(other)}, may run beside node {self.index}, and uses "
                            "this memory too; capture a graph in which one follows the other"
                        )

    def _using(
        self, old: ArgumentBlock, new: ArgumentBlock, reads: list[Buffer], writes: list[Buffer]
    ) -> tuple[dict[str, object], Uses]:
        """The kernel's fields and uses with other arguments.

        Memory that no argument points to any more is not used any more; what is named otherwise still is.
        """
        before, after = _words(old), _words(new)

        def is_kept(there: range) -> bool:
            return _points_to(after, there) or not _points_to(before, there)

        def memory(old: tuple[tuple[int, int], ...], new: list[Buffer]) -> tuple[tuple[int, int], ...]:
            kept = [each for each in old if is_kept(_bytes_at(each))]
            return tuple(dict.fromkeys([*kept, *((buffer.start, buffer.size_bytes) for buffer in new)]))

        def buffers(old: tuple[Buffer, ...], new: list[Buffer]) -> tuple[Buffer, ...]:
            return tuple(dict.fromkeys([*(b for b in old if is_kept(_range(b))), *new]))

        node = self._node
        old_reads, old_writes = self._graph._uses.get(node, ((), ()))
        fields = {
            "arguments": new,
            "read": memory(node.read, reads),
            "written": memory(node.written, writes),
        }
        return fields, (buffers(old_reads, reads), buffers(old_writes, writes))


def all_nodes(nodes: list[Node]) -> list[Node]:
    """The nodes, and those of children and bodies."""
    found: list[Node] = []
    for node in nodes:
        found.append(node)
        for inner in _inside(node):
            found += all_nodes(inner)
    return found


def _inside(node: Node) -> Sequence[list[Node]]:
    """The lists of nodes in a node."""
    if isinstance(node, ChildNode):
        return (node.nodes,)
    return node.bodies if isinstance(node, ConditionalNode) else ()


def _path_to(nodes: list[Node], wanted: Node) -> list[tuple[list[Node], Node]]:
    """The lists that `wanted` is in, from the graph's own on, each with the node that it is, or that it is in."""
    for node in nodes:
        if node is wanted:
            return [(nodes, node)]
        for inner in _inside(node):
            if path := _path_to(inner, wanted):
                return [(nodes, node), *path]
    return []


def _ordered_with(nodes: list[Node], node: Node) -> set[Node]:
    """It, those that it comes behind, and those that come behind it; each of `nodes` is behind those it depends on."""
    before = {node}
    waiting = [node]
    while waiting:
        new = [d for d in waiting.pop().dependencies if d not in before]
        before.update(new)
        waiting += new
    behind = {node}
    for other in nodes:
        if not behind.isdisjoint(other.dependencies):
            behind.add(other)
    return before | behind


def _touched(node: Node) -> tuple[list[range], list[range]]:
    """The bytes that a node reads, and those that it writes, by address; of one with nodes inside, but for theirs."""
    if isinstance(node, CopyNode):
        read = [] if node.from_host else [range(node.src, node.src + node.size_bytes)]
        return read, [range(node.dst, node.dst + node.size_bytes)]
    if isinstance(node, FillNode):
        return [], [range(node.dst, node.dst + node.count * len(node.pattern))]
    if isinstance(node, ConditionalNode):
        return [range(node.predicate, node.predicate + node.itemsize)], []
    if isinstance(node, ChildNode):
        return [], []
    return [*map(_bytes_at, node.read)], [*map(_bytes_at, node.written)]


def _meet(some: Iterable[range], others: Iterable[range]) -> bool:
    """Whether some byte is in one of each."""
    ranges = list(others)
    return any(a.start < b.stop and b.start < a.stop for a in some for b in ranges)


def _range(buffer: Buffer) -> range:
    return _bytes_at((buffer.start, buffer.size_bytes))


def _bytes_at(memory: tuple[int, int]) -> range:
    start, size = memory
    return range(start, start + size)


def _extent_of(tensor: Tensor) -> range:
    low, high = extent(tensor.shape, tensor.strides)
    size = tensor.dtype.itemsize
    return range(tensor._address + low * size, tensor._address + high * size)


def nodes_of(graph: CudaGraph[Any], nodes: list[Node]) -> tuple[GraphNode, ...]:
    """Nodes as users see them."""
    index = {node: i for i, node in enumerate(nodes)}
    return tuple(GraphNode._make(graph, node, index) for node in nodes)


def _checked(step: Step, value: Any, kernel: str, device: Device) -> tuple[Any, Buffer | None]:
    """What to pack for an argument, and the buffer that it points to."""
    code, low, high, extra, name = step
    if code in (READ, MUT):
        return value.tensor._address, check_operand(value.tensor, device, f"{kernel}: {name}")
    if code == OTHER:
        return extra(value), None
    if not low <= value <= high:
        raise OverflowError(f"{kernel}: {name} takes {low} to {high}, got {value}")
    return value & extra, None


def _words(block: ArgumentBlock) -> list[int]:
    """The 64-bit numbers in an argument block: addresses are among them."""
    data = bytes(block)
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data) - 7, 4)]


def _word(block: ArgumentBlock, offset: int) -> int:
    return int.from_bytes(block.buffer[offset : offset + 8], "little")


def _check_not_written(node: KernelNode, tensor: Tensor, words: list[int]) -> None:
    """Refuse to read what the node was captured to write, and still does by an argument with one of these words."""
    start = tensor._address
    for first, size in node.written:
        if (
            first < start + tensor.nbytes
            and start < first + size
            and any(first <= w < first + size for w in words)
        ):
            raise AliasError(
                f"{node.name}: {tensor!r} is written by an argument that stays; read other memory"
            )


def _is_another(value: object, node: KernelNode, offset: int) -> bool:
    """Whether it is another tensor than the one there, which a tile kernel was made and checked for."""
    tensor = value.tensor if isinstance(value, (Mut, Read)) else value
    old = node.arguments
    if old.rule is None or not isinstance(tensor, Tensor) or tensor._address == _word(old, offset):
        return False
    new = old.copy()
    new.buffer[offset] ^= 1
    return old.rule(old.numbers(), new.numbers(), node.grid) is not None


def _points_to(words: list[int], there: range) -> bool:
    return any(word in there for word in words)
