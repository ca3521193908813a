"""Operations on memory: views, loads and stores, atomics, tokens, printing.

Memory operations have no order among themselves but the one tokens give: an operation comes after
another only if its token derives from the other's result token. So every one of these gives its token
and takes one (None: after nothing).
"""

from __future__ import annotations

from collections.abc import Sequence

from . import types
from ._attributes import Hints
from ._emitter import OpEmitter
from ._enums import AtomicMode, MemoryOrdering, MemoryScope
from ._module import Value
from .errors import BytecodeError

__all__ = ["MemoryOps"]

_WEAK = MemoryOrdering.WEAK
_RELAXED = MemoryOrdering.RELAXED


class MemoryOps(OpEmitter):
    """One method per operation; loads give (tile, token), stores a token."""

    # Views.

    def make_tensor_view(
        self,
        kind: types.TensorViewType,
        base: Value,
        dynamic_shape: Sequence[Value] = (),
        dynamic_strides: Sequence[Value] = (),
    ) -> Value:
        """Memory at `base` (a scalar pointer) as a tensor; one integer scalar per `None` of the type."""
        for what, given, wanted in (
            ("dimensions", dynamic_shape, kind.dynamic_dims),
            ("strides", dynamic_strides, kind.dynamic_strides),
        ):
            if len(given) != wanted:
                raise BytecodeError(
                    f"make_tensor_view: {kind} has {wanted} run-time {what}, got {len(given)}",
                    "make_tensor_view",
                )
        operands = (base, tuple(dynamic_shape), tuple(dynamic_strides))
        return self.emit_one("make_tensor_view", operands, kind)

    def make_view(self, kind: types.ViewType, tensor_view: Value) -> Value:
        """A partition, strided or gather/scatter view of a tensor view, by the result type."""
        if kind.tensor_view != tensor_view.type:
            raise BytecodeError(
                f"make_view: {kind} is not a view of {tensor_view.type}", "make_partition_view"
            )
        names = {
            types.PartitionViewType: "make_partition_view",
            types.StridedViewType: "make_strided_view",
            types.GatherScatterViewType: "make_gather_scatter_view",
        }
        return self.emit_one(names[type(kind)], (tensor_view,), kind)

    def tensor_shape(self, view: Value, element: types.NumberType = types.i32) -> tuple[Value, ...]:
        """The dimensions of a tensor view, as integer scalars."""
        if not isinstance(view.type, types.TensorViewType):
            raise BytecodeError(
                f"get_tensor_shape: a tensor_view is needed, got {view.type}", "get_tensor_shape"
            )
        return self.emit("get_tensor_shape", (view,), None, (types.tile(element),) * view.type.rank)

    def index_space_shape(self, view: Value, element: types.NumberType = types.i32) -> tuple[Value, ...]:
        """How many tiles a view has along each axis, as integer scalars."""
        rank = len(_tile_of(view, "get_index_space_shape").shape)
        return self.emit("get_index_space_shape", (view,), None, (types.tile(element),) * rank)

    def load_view(
        self,
        view: Value,
        index: Sequence[Value],
        token: Value | None = None,
        *,
        ordering: MemoryOrdering = _WEAK,
        scope: MemoryScope | None = None,
        hints: Hints | None = None,
        inbounds: Sequence[bool] = (),
    ) -> tuple[Value, Value]:
        """The tile at `index` (integer scalars of one type, unsigned), and a token."""
        attributes = {
            "memory_ordering_semantics": ordering,
            "memory_scope": scope,
            "optimization_hints": hints,
            "inbounds": tuple(inbounds),
        }
        results = (_tile_of(view, "load_view_tko"), types.token)
        tile, after = self.emit("load_view_tko", (view, tuple(index), token), attributes, results)
        return tile, after

    def store_view(
        self,
        tile: Value,
        view: Value,
        index: Sequence[Value],
        token: Value | None = None,
        *,
        ordering: MemoryOrdering = _WEAK,
        scope: MemoryScope | None = None,
        hints: Hints | None = None,
        inbounds: Sequence[bool] = (),
    ) -> Value:
        """Write `tile` at `index`; what lies past the tensor's edge is dropped. Gives a token."""
        wanted = _tile_of(view, "store_view_tko")
        if tile.type != wanted:
            raise BytecodeError(
                f"store_view_tko: {view.type} takes {wanted}, got {tile.type}", "store_view_tko"
            )
        attributes = {
            "memory_ordering_semantics": ordering,
            "memory_scope": scope,
            "optimization_hints": hints,
            "inbounds": tuple(inbounds),
        }
        operands = (tile, view, tuple(index), token)
        return self.emit("store_view_tko", operands, attributes, (types.token,))[0]

    def atomic_red_view(
        self,
        mode: AtomicMode,
        view: Value,
        index: Sequence[Value],
        value: Value,
        token: Value | None = None,
        *,
        scope: MemoryScope = MemoryScope.DEVICE,
        inbounds: Sequence[bool] = (),
    ) -> Value:
        """Combine `value` into memory, relaxed, without giving back what was there. Gives a token."""
        attributes = {
            "memory_ordering_semantics": _RELAXED,
            "memory_scope": scope,
            "mode": mode,
            "inbounds": tuple(inbounds),
        }
        operands = (view, tuple(index), value, token)
        return self.emit("atomic_red_view_tko", operands, attributes, (types.token,))[0]

    # Pointers.

    def load_ptr(
        self,
        source: Value,
        mask: Value | None = None,
        padding: Value | None = None,
        token: Value | None = None,
        *,
        ordering: MemoryOrdering = _WEAK,
        scope: MemoryScope | None = None,
        hints: Hints | None = None,
    ) -> tuple[Value, Value]:
        """What a tile of pointers points to; masked-out lanes give `padding` (undefined without it)."""
        pointer = source.tile_type.element
        if not isinstance(pointer, types.PointerType):
            raise BytecodeError(
                f"load_ptr_tko: a tile of pointers is needed, got {source.type}", "load_ptr_tko"
            )
        attributes = {
            "memory_ordering_semantics": ordering,
            "memory_scope": scope,
            "optimization_hints": hints,
        }
        results = (source.tile_type.with_element(pointer.pointee), types.token)
        tile, after = self.emit("load_ptr_tko", (source, mask, padding, token), attributes, results)
        return tile, after

    def store_ptr(
        self,
        destination: Value,
        value: Value,
        mask: Value | None = None,
        token: Value | None = None,
        *,
        ordering: MemoryOrdering = _WEAK,
        scope: MemoryScope | None = None,
        hints: Hints | None = None,
    ) -> Value:
        """Write through a tile of pointers where the mask is set. Gives a token."""
        attributes = {
            "memory_ordering_semantics": ordering,
            "memory_scope": scope,
            "optimization_hints": hints,
        }
        return self.emit("store_ptr_tko", (destination, value, mask, token), attributes, (types.token,))[0]

    def atomic_rmw(
        self,
        mode: AtomicMode,
        pointers: Value,
        value: Value,
        mask: Value | None = None,
        token: Value | None = None,
        *,
        ordering: MemoryOrdering = _RELAXED,
        scope: MemoryScope = MemoryScope.DEVICE,
    ) -> tuple[Value, Value]:
        """Combine `value` into memory; gives what was there before, and a token."""
        attributes = {"memory_ordering_semantics": ordering, "memory_scope": scope, "mode": mode}
        operands = (pointers, value, mask, token)
        old, after = self.emit("atomic_rmw_tko", operands, attributes, (value.type, types.token))
        return old, after

    def atomic_cas(
        self,
        pointers: Value,
        compare: Value,
        value: Value,
        mask: Value | None = None,
        token: Value | None = None,
        *,
        ordering: MemoryOrdering = _RELAXED,
        scope: MemoryScope = MemoryScope.DEVICE,
    ) -> tuple[Value, Value]:
        """Write `value` where memory equals `compare` bit by bit; gives what was there, and a token."""
        attributes = {"memory_ordering_semantics": ordering, "memory_scope": scope}
        operands = (pointers, compare, value, mask, token)
        old, after = self.emit("atomic_cas_tko", operands, attributes, (value.type, types.token))
        return old, after

    # Tokens and diagnostics.

    def make_token(self) -> Value:
        """A token that depends on nothing."""
        return self.emit_one("make_token", (), types.token)

    def join_tokens(self, *tokens: Value) -> Value:
        """A token after all of these; with one of them that one itself."""
        if not tokens:
            raise BytecodeError("join_tokens: needs at least one token", "join_tokens")
        if len(tokens) == 1:
            return tokens[0]
        return self.emit_one("join_tokens", (tokens,), types.token)

    def print_(self, text: str, values: Sequence[Value] = (), token: Value | None = None) -> Value | None:
        """printf; one conversion of `text` per tile. Gives a token (none before bytecode 13.2)."""
        results = (types.token,) if self.version >= (13, 2) else ()
        tokens = self.emit("print_tko", (tuple(values), token), {"str": text}, results)
        return tokens[0] if tokens else None

    def assert_(self, condition: Value, message: str) -> None:
        """Print `message` where the tile of i1 is false."""
        self.emit("assert", (condition,), {"message": message})


def _tile_of(view: Value, name: str) -> types.TileType:
    kind = view.type
    if not isinstance(kind, types.PartitionViewType | types.StridedViewType | types.GatherScatterViewType):
        raise BytecodeError(f"{name}: a view in tiles is needed, got {kind}", name)
    return types.tile(kind.tensor_view.element, kind.tile_shape)
