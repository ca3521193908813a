"""What loads, stores and atomics have in common: their tensor, ordering, hints, masks and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dtypes import DType, bool_
from ...ir import ATOMIC_ORDERINGS, LOAD_ORDERINGS, STORE_ORDERINGS, Value
from ...language import MemoryOrder, MemoryScope, PaddingMode
from .._promotion import as_tile, broadcast_shape, broadcast_to, cast, common_dtype, loose_dtype, meet
from .._values import Loose, OwnedTileValue, TensorValue, describe, is_loose, is_pointer, is_tile, tile_type

if TYPE_CHECKING:
    from .._translator import Translator

__all__ = [
    "fill_tile",
    "hint_options",
    "latency_option",
    "mask_tile",
    "ordering_option",
    "padding_option",
    "shapes_together",
    "stored_value",
    "tensor_argument",
    "writable_tensor",
]

_ORDERINGS = {"load": LOAD_ORDERINGS, "store": STORE_ORDERINGS, "atomic": ATOMIC_ORDERINGS}


def tensor_argument(t: Translator, array: object, name: str) -> TensorValue:
    """The tensor that the function `name` is given."""
    if isinstance(array, OwnedTileValue):
        raise t.wrong_type(
            f"{array.name} is a partition, and a block has only its own tile of it: use {array.name}.load() "
            f"and {array.name}.store(tile)"
        )
    if not isinstance(array, TensorValue):
        hint = (
            "; use the pointer's own load and store, or tk.make_tensor(pointer, shape)"
            if is_pointer(array)
            else ""
        )
        raise t.wrong_type(f"{name} takes a tensor parameter, got {describe(array)}{hint}")
    return array


def writable_tensor(t: Translator, array: object, name: str) -> TensorValue:
    """The tensor that the function `name` is given, one that can be stored to."""
    tensor = tensor_argument(t, array, name)
    if not tensor.writable:
        raise t.wrong_type(
            f"{tensor.name} is given for reading; give it as ca.mut({tensor.name}) to store to it, or as a "
            "partition"
        )
    return tensor


def ordering_option(
    t: Translator, what: str, order: object, scope: object, scopes: tuple[MemoryScope, ...] = ()
) -> tuple[str, str | None]:
    """Ordering and scope of a "load", "store" or "atomic", in the IR's words.

    No scope stands for the device, and a weak access has none, whatever is given.
    """
    if not isinstance(order, MemoryOrder):
        raise t.wrong_type(f"memory_order is one of tk.MemoryOrder, got {describe(order)}")
    if scope is not None and not isinstance(scope, MemoryScope):
        raise t.wrong_type(f"memory_scope is one of tk.MemoryScope, got {describe(scope)}")
    if order.value not in _ORDERINGS[what]:
        names = ", ".join(MemoryOrder(o).name for o in _ORDERINGS[what])
        article = "an" if what == "atomic" else "a"
        raise t.wrong_value(f"the memory_order of {article} {what} is {names}, got {order.name}")
    if order is MemoryOrder.WEAK:
        return "weak", None
    if scope is MemoryScope.NONE:
        raise t.wrong_value(f"{order.name} needs a memory_scope: BLOCK, DEVICE or SYS")
    if scope is not None and scopes and scope not in scopes:
        names = ", ".join(s.name for s in scopes)
        raise t.wrong_value(f"memory_scope is {names} here, got {scope.name}")
    return order.value, "device" if scope is None else scope.value


def latency_option(t: Translator, latency: object) -> int | None:
    """The latency hint."""
    steps = None if latency is None else t.static_int(latency, "latency")
    if steps is not None and not 1 <= steps <= 10:
        raise t.wrong_value(f"latency is 1 to 10, got {steps}")
    return steps


def hint_options(t: Translator, latency: object, allow_tma: object) -> tuple[int | None, bool | None]:
    """The hints of accesses through views."""
    return latency_option(t, latency), None if allow_tma is None else t.static_bool(allow_tma, "allow_tma")


def padding_option(t: Translator, tensor: TensorValue, mode: object) -> str:
    """What loads give past the edge, in the IR's words."""
    if mode is None:
        return "zero"
    if not isinstance(mode, PaddingMode):
        raise t.wrong_type(f"padding_mode is one of tk.PaddingMode, got {describe(mode)}")
    padding = "zero" if mode is PaddingMode.UNDETERMINED else mode.value
    if padding != "zero" and not tensor.dtype.is_float:
        raise t.wrong_type(f"padding {mode.name} is for floats; {tensor.name} holds {tensor.dtype.name}")
    return padding


def shapes_together(t: Translator, *values: object) -> tuple[int, ...]:
    """The shape in which tiles and numbers meet."""
    shape: tuple[int, ...] = ()
    for value in values:
        if is_tile(value):
            shape = broadcast_shape(t, shape, tile_type(value).shape)
    return shape


def mask_tile(t: Translator, mask: object, shape: tuple[int, ...]) -> Value | None:
    """A mask, broadcast to `shape`."""
    if mask is None:
        return None
    tile = as_tile(t, mask, "mask")
    if tile_type(tile).dtype is not bool_:
        raise t.wrong_type(f"a mask is a bool tile, got {describe(mask)}; compare it, as in mask != 0")
    return broadcast_to(t, tile, shape)


def fill_tile(t: Translator, value: object, dtype: DType, name: str, shape: tuple[int, ...]) -> Value:
    """`padding_value` as a tile of an element type."""
    if dtype.restricted and is_loose(value) and not isinstance(value, Loose):
        return t.constant(value, dtype, shape)
    return stored_value(t, value, dtype, name, shape)


def stored_value(t: Translator, tile: object, dtype: DType, name: str, shape: tuple[int, ...]) -> Value:
    """`tile` as stored to `name`, which holds `dtype`: in `shape`, converted only where nothing is lost by rule."""
    if is_loose(tile):
        if loose_dtype(tile).is_float and not dtype.is_float:
            raise t.wrong_type(f"{name} holds {dtype.name}, got {describe(tile)}; cast it first")
        if isinstance(tile, Loose):
            return broadcast_to(t, meet(t, tile, dtype), shape)
        return t.constant(tile, dtype, shape)
    value = as_tile(t, tile, "what is stored")
    own = tile_type(value).number
    if own is not dtype and (
        own.restricted or dtype.restricted or dtype is bool_ or common_dtype(t, own, dtype) is not dtype
    ):
        wanted = f"{name}.dtype" if name.isidentifier() else f"tk.{dtype.name}"
        raise t.wrong_type(
            f"{name} holds {dtype.name}, got {describe(value)}; convert it: tile.astype({wanted})"
        )
    return broadcast_to(t, cast(t, value, dtype), shape)
