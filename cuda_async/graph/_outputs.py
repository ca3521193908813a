"""What a graph yields: the recorded output, with each tensor that the graph writes taken for one launch.

Tuples, lists, dicts, dataclasses, partitions and operands (`mut`, `read`) are looked through; in other objects such a
tensor is refused. What the graph does not write (weights that it returns, numbers) is yielded as it was recorded.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
from collections import deque
from collections.abc import Mapping
from types import FunctionType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any

from ..errors import CaptureError
from ..memory import MappedPartition, Mut, Partition, Read, Tensor, mut, read
from ..ops._copies import copy_into
from ._memory import FIRST_RUN, GraphBuffer, GraphState, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Sequence

    from ..driver.graph import Node
    from ..memory import Buffer, DType, Usage
    from ..ops import ExecutionContext
    from ..scheduling import Device

__all__ = ["OutputTemplate", "output_of_shared"]


class _Launch:
    """The buffers of one launch's outputs, made as they are needed: views share them."""

    __slots__ = ("_buffers", "_generation", "_state")

    def __init__(self, state: GraphState, generation: int) -> None:
        self._state = state
        self._generation = generation
        self._buffers: dict[Buffer, GraphBuffer] = {}

    def buffer(self, recorded: Buffer) -> GraphBuffer:
        found = self._buffers.get(recorded)
        if found is None:
            start = recorded.start
            found = self._buffers[recorded] = GraphBuffer(
                self._state, self._generation, root_of(recorded), start, recorded.size_bytes
            )
        return found

    def tensor(
        self, recorded: Buffer, address: int, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Tensor:
        """One tensor of the output."""
        return Tensor._make(self.buffer(recorded), address, dtype, shape, strides)


class _Copied(_Launch):
    """Copies of one launch's outputs to `rooms`, enqueued behind it."""

    __slots__ = ("_ctx", "_rooms")

    def __init__(
        self, state: GraphState, generation: int, ctx: ExecutionContext, rooms: Sequence[Tensor]
    ) -> None:
        super().__init__(state, generation)
        self._ctx = ctx
        self._rooms = iter(rooms)

    def tensor(
        self, recorded: Buffer, address: int, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Tensor:
        return copy_into(
            self._ctx, next(self._rooms), super().tensor(recorded, address, dtype, shape, strides)
        )


OBJECTS_DEEP = 2
"""Objects that objects refer to are searched for tensors too; what is further away, nobody takes for the output."""

OF_THE_PACKAGE = ("cuda_async.graph", "cuda_async.ops", "cuda_async.scheduling")
"""Where graphs, operations and streams come from, which refer to tensors of their own."""


def _items(value: Any) -> Iterable[Any]:
    """What is in a value that cannot be made anew."""
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    if isinstance(value, (tuple, list, set, frozenset, deque)):
        return value
    kind = type(value)
    if isinstance(value, (type, Tensor)) or kind.__module__.startswith(OF_THE_PACKAGE):
        return ()
    found = [*getattr(value, "__dict__", {}).values()]
    if isinstance(value, FunctionType):
        found += inspect.getclosurevars(value).nonlocals.values()
    elif isinstance(value, (BaseException, functools.partial, MethodType)):
        found += (getattr(value, name, None) for name in ("args", "keywords", "func", "__self__"))
    for base in kind.__mro__:
        if "__slots__" in base.__dict__:
            slots = (slot for slot in base.__dict__.values() if isinstance(slot, MemberDescriptorType))
            found += (slot.__get__(value) for slot in slots if hasattr(value, slot.__name__))
    return found


class OutputTemplate:
    """Makes a graph's output, for one launch after another.

    Args:
        value: as recorded. written: the ordinary buffers that the graph writes, or that are set before it is launched.
        device: where they are. state: the graph's. What a part of it yields is its own output, also what that part does
            not write.
    Attributes:
        size_bytes: of `rooms`.
    """

    def __init__(
        self, value: Any, written: Collection[Buffer], device: Device, state: GraphState | None = None
    ) -> None:
        self._state = state
        joined = -1
        try:
            # What is imported meanwhile may make memory of two the same, which has two buffers and one usage then.
            while joined != device._usages_joined:
                joined = device._usages_joined
                self._written = {buffer.usage for buffer in written}
                self._shared: list[Buffer] = []
                self._ranges: list[range] = []
                self._passed: set[Buffer] = set()
                self._copied: list[tuple[tuple[int, ...], DType]] = []
                self._build = self._of(value)
        except RecursionError:
            raise CaptureError(
                "the graph yields something that contains itself, or nests too deeply; yield tuples, lists, dicts or "
                "dataclasses of tensors"
            ) from None
        self._value = value
        self.size_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in self._copied)

    @property
    def value(self) -> Any:
        """As it was recorded."""
        return self._value

    @property
    def shared(self) -> list[Buffer]:
        """Buffers of the caller's that come back under a second name."""
        return self._shared

    def passes(self, usage: Usage) -> bool:
        """Whether what is over that memory is yielded as it was recorded."""
        return any(root_of(buffer).usage is usage for buffer in self._passed)

    def has(self, address: int) -> bool:
        """Whether a tensor of the output that the graph writes is there."""
        return any(address in found for found in self._ranges)

    def build(self, state: GraphState, generation: int) -> Any:
        """The output of launch `generation`."""
        build = self._build
        return self._value if build is None else build(_Launch(state, generation))

    def build_recorded(self, state: GraphState) -> tuple[Any, list[GraphBuffer]]:
        """The output inside of a recording, and the buffers that it is in."""
        build = self._build
        if build is None:
            return self._value, []
        launch = _Launch(state, FIRST_RUN)
        return build(launch), list(launch._buffers.values())

    def rooms(self, ctx: ExecutionContext) -> list[Tensor]:
        """Memory for a copy of the output. It is there before a launch: one that is refused has not run."""
        return [ctx._empty(shape, dtype) for shape, dtype in self._copied]

    def build_copy(
        self, state: GraphState, generation: int, ctx: ExecutionContext, rooms: Sequence[Tensor]
    ) -> Any:
        """The output of launch `generation`, which was enqueued last, copied to `rooms`."""
        build = self._build
        return self._value if build is None else build(_Copied(state, generation, ctx, rooms))

    def _of(self, value: Any) -> Callable[[_Launch], Any] | None:
        """How to make `value` anew; None where it stays as it is."""
        if isinstance(value, Tensor):
            return self._of_tensor(value)
        if isinstance(value, Partition):
            return self._of_part(value, "tensor")
        if isinstance(value, MappedPartition):
            return self._of_part(value, "partition")
        if isinstance(value, (tuple, list)):
            self._check_attributes(value)
            return self._of_sequence(value)
        if isinstance(value, dict):
            self._check_attributes(value)
            return self._of_dict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            self._check_attributes(value, {field.name for field in dataclasses.fields(value)})
            return self._of_fields(value)
        if isinstance(value, (Mut, Read)):
            return self._of_operand(value)
        self._check_hidden(value, type(value), 0, set())
        return None

    def _check_attributes(self, value: Any, known: Container[str] = ()) -> None:
        """Refuse a tensor that the graph writes beside what is made anew."""
        fields = getattr(value, "__dict__", None)
        if fields:
            more = tuple(item for name, item in fields.items() if name not in known)
            self._check_hidden(more, type(value), 0, set())

    def _check_hidden(self, value: Any, outer: type, depth: int, seen: set[int]) -> None:
        """Refuse a tensor that the graph writes in an object that cannot be made anew."""
        if id(value) in seen:
            return
        seen.add(id(value))
        for item in _items(value):
            if isinstance(item, Tensor) and self._is_output(item._buffer):
                raise CaptureError(
                    f"the graph yields a tensor in a {outer.__name__}, and cannot say there which launch its contents "
                    "are of; yield tuples, lists, dicts or dataclasses of tensors"
                )
            if depth < OBJECTS_DEEP:
                self._check_hidden(item, outer, depth + 1, seen)

    def _is_output(self, buffer: Buffer) -> bool:
        """Whether its contents are of a launch."""
        is_of_a_part = isinstance(buffer, GraphBuffer) and buffer.state is self._state
        return is_of_a_part or root_of(buffer).usage in self._written

    def _of_tensor(self, tensor: Tensor) -> Callable[[_Launch], Any] | None:
        buffer = tensor._buffer
        if not self._is_output(buffer) or not buffer.size_bytes:
            self._passed.add(buffer)
            return None
        if not isinstance(buffer, GraphBuffer):
            self._shared.append(buffer)
        elif buffer.is_overwritten or buffer.is_void or buffer.is_freed:
            buffer.check_usable()
        self._copied.append((tensor.shape, tensor.dtype))  # in the order in which they are made
        start = buffer.start
        self._ranges.append(range(start, start + buffer.size_bytes))
        address, dtype, shape, strides = tensor._address, tensor.dtype, tensor.shape, tensor.strides
        return lambda launch: launch.tensor(buffer, address, dtype, shape, strides)

    def _of_operand(self, value: Mut | Read) -> Callable[[_Launch], Any] | None:
        inner = self._of(value.tensor)
        wrap = mut if isinstance(value, Mut) else read
        return None if inner is None else lambda launch: wrap(inner(launch))

    def _of_part(self, value: Any, name: str) -> Callable[[_Launch], Any] | None:
        inner = self._of(getattr(value, name))
        if inner is None:
            return None

        def build(launch: _Launch) -> Any:
            made = copy.copy(value)
            setattr(made, name, inner(launch))
            return made

        return build

    def _of_sequence(self, value: Any) -> Callable[[_Launch], Any] | None:
        parts = [self._of(part) for part in value]
        if not any(parts):
            return None
        pairs = list(zip(value, parts))

        def build(launch: _Launch) -> Any:
            items = [part if inner is None else inner(launch) for part, inner in pairs]
            if isinstance(value, list):
                made = copy.copy(value)
                made[:] = items
                return made
            # What a class of its own takes to be made, only that class knows.
            made = tuple.__new__(type(value), items)
            if hasattr(value, "__dict__"):
                made.__dict__.update(value.__dict__)
            return made

        return build

    def _of_dict(self, value: dict[Any, Any]) -> Callable[[_Launch], Any] | None:
        self._check_hidden(tuple(value), type(value), 0, set())
        parts = {key: self._of(part) for key, part in value.items()}
        if not any(parts.values()):
            return None

        def build(launch: _Launch) -> Any:
            made = copy.copy(value)
            made.update((key, inner(launch)) for key, inner in parts.items() if inner is not None)
            return made

        return build

    def _of_fields(self, value: Any) -> Callable[[_Launch], Any] | None:
        parts = {
            field.name: inner
            for field in dataclasses.fields(value)
            if (inner := self._of(getattr(value, field.name))) is not None
        }
        if not parts:
            return None

        def build(launch: _Launch) -> Any:
            made = copy.copy(value)
            for name, inner in parts.items():
                object.__setattr__(made, name, inner(launch))  # it may be frozen
            return made

        return build


class _SharedTemplate(OutputTemplate):
    """Of what a shared operation yields: memory of graphs' own, but for their inputs, is told apart as it is."""

    def _of_tensor(self, tensor: Tensor) -> Callable[[_Launch], Any] | None:
        buffer = tensor._buffer
        is_told_apart = isinstance(buffer, GraphBuffer) and buffer.generation is not None
        return None if is_told_apart else super()._of_tensor(tensor)


def output_of_shared(
    value: Any, written: Collection[Buffer], device: Device, state: GraphState, body: list[Node] | None
) -> Any:  # whatever an operation yields
    """What a shared operation that was recorded yields for others: an output of the first launch.

    Args:
        body: of the conditional that it was recorded in, if it was.
    """
    try:
        template = _SharedTemplate(value, written, device)
    except CaptureError:  # in an object that cannot be made anew: it stays what it is
        return value
    made, buffers = template.build_recorded(state)
    for buffer in buffers:
        buffer.body = body
    for given in template.shared:
        given.note_shared()
    return made
