"""Atomics: on elements of tensors, and through pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ...dtypes import DTYPES, DType
from ...ir import AtomicCasOp, AtomicOp, TokenType, Value, atomic_types
from .._pointers import broadcast_pointers, offset_pointers, place_tile
from .._promotion import broadcast_shape
from .._values import is_pointer, pointee, tile_type
from ._access import mask_tile, ordering_option, shapes_together, stored_value, writable_tensor
from ._gather import element_pointers
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__ = ["atomic_cas", "atomic_update", "check_atomic_type"]


def check_atomic_type(t: Translator, name: str, mode: str, dtype: DType, of: str) -> None:
    """Refuse element types that an atomic operation is not there for."""
    if dtype.short not in atomic_types(mode):
        names = ", ".join(DTYPES[short].name for short in atomic_types(mode))
        raise t.wrong_type(f"{name} is for {names}; {of} holds {dtype.name}")


def _places(
    t: Translator,
    name: str,
    array: object,
    indices: object,
    mask: object,
    check_bounds: object,
    *beside: object,
) -> tuple[Value, Value | None, str]:
    """Where an atomic works: pointers and a mask, in the shape of all together, and what messages call the memory."""
    if is_pointer(array):
        pointers = offset_pointers(t, array, place_tile(t, indices, "an offset"))
        shape = broadcast_shape(t, tile_type(pointers).shape, shapes_together(t, mask, *beside))
        return broadcast_pointers(t, pointers, shape), mask_tile(t, mask, shape), array.name or "the memory"
    tensor = writable_tensor(t, array, name)
    pointers, chosen = element_pointers(t, tensor, indices, mask, check_bounds, *beside)
    t.effects.stored.add(tensor.name)
    return pointers, chosen, tensor.name


def atomic_update(
    t: Translator,
    mode: str,
    pointers: Value,
    mask: Value | None,
    update: object,
    of: str,
    order: object,
    scope: object,
) -> Value:
    """Combine a value with what pointers point to."""
    dtype = pointee(pointers)
    check_atomic_type(t, f"atomic_{mode}", mode, dtype, of)
    ordering, within = ordering_option(t, "atomic", order, scope)
    shape = tile_type(pointers).shape
    tile = stored_value(t, update, dtype, of, shape)
    op = AtomicOp(
        pointers=pointers,
        tile=tile,
        mask=mask,
        mode=mode,
        ordering=ordering,
        scope=within,
        result=Value(tile.type),
        result_token=Value(TokenType()),
    )
    return t.add(op).result


def atomic_cas(
    t: Translator,
    pointers: Value,
    mask: Value | None,
    expected: object,
    desired: object,
    of: str,
    order: object,
    scope: object,
) -> Value:
    """Compare and swap what pointers point to."""
    dtype = pointee(pointers)
    check_atomic_type(t, "atomic_cas", "cas", dtype, of)
    ordering, within = ordering_option(t, "atomic", order, scope)
    shape = tile_type(pointers).shape
    before = stored_value(t, expected, dtype, of, shape)
    op = AtomicCasOp(
        pointers=pointers,
        expected=before,
        desired=stored_value(t, desired, dtype, of, shape),
        mask=mask,
        ordering=ordering,
        scope=within,
        result=Value(before.type),
        result_token=Value(TokenType()),
    )
    return t.add(op).result


def _implement(mode: str) -> None:
    @implements(getattr(language, f"atomic_{mode}"))
    def atomic(
        t: Translator,
        array: object,
        indices: object,
        update: object,
        mask: object,
        check_bounds: object,
        memory_order: object,
        memory_scope: object,
    ) -> object:
        pointers, chosen, of = _places(t, f"atomic_{mode}", array, indices, mask, check_bounds, update)
        return atomic_update(t, mode, pointers, chosen, update, of, memory_order, memory_scope)


for _mode in ("add", "max", "min", "and", "or", "xor", "xchg"):
    _implement(_mode)


@implements(language.atomic_cas)
def _atomic_cas(
    t: Translator,
    array: object,
    indices: object,
    expected: object,
    desired: object,
    mask: object,
    check_bounds: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    pointers, chosen, of = _places(t, "atomic_cas", array, indices, mask, check_bounds, expected, desired)
    return atomic_cas(t, pointers, chosen, expected, desired, of, memory_order, memory_scope)
