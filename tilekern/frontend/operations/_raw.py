"""Raw memory, and pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ...ir import Value
from .._pointers import broadcast_pointers, offset_pointers, place_tile, reshape_pointers
from .._promotion import broadcast_shape
from .._values import RawMemoryValue, describe, is_pointer, tile_type
from ._access import mask_tile, shapes_together, tensor_argument
from ._atomics import atomic_cas, atomic_update
from ._gather import load_pointers, store_pointers
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__: list[str] = []


@implements(language.Tensor.get_raw_memory)
def get_raw_memory(t: Translator, self: object) -> object:
    return RawMemoryValue(tensor_argument(t, self, "get_raw_memory"))


def _raw(t: Translator, value: object, name: str, stores: bool = False) -> RawMemoryValue:
    if not isinstance(value, RawMemoryValue):
        raise t.wrong_type(f"{name} is a method of raw memory, got {describe(value)}")
    if stores and not value.tensor.writable:
        raise t.wrong_type(
            f"{value.name} is given for reading; give it as ca.mut({value.name}) to store to it"
        )
    (t.effects.stored if stores else t.effects.loaded).add(value.name)
    return value


def _places(
    t: Translator, pointers: Value, offset: object, mask: object, *beside: object
) -> tuple[Value, Value | None]:
    """Pointers and a mask, in the shape that all have together."""
    if offset is not None:
        pointers = offset_pointers(t, pointers, place_tile(t, offset, "an offset"))
    shape = broadcast_shape(t, tile_type(pointers).shape, shapes_together(t, mask, *beside))
    return broadcast_pointers(t, pointers, shape), mask_tile(t, mask, shape)


@implements(language.RawMemory.load_offset)
def load_offset(
    t: Translator,
    self: object,
    offset: object,
    mask: object,
    padding_value: object,
    latency: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    raw = _raw(t, self, "load_offset")
    pointers, chosen = _places(t, raw.tensor.base, offset, mask)
    return load_pointers(t, pointers, chosen, padding_value, raw.name, latency, memory_order, memory_scope)


@implements(language.RawMemory.store_offset)
def store_offset(
    t: Translator,
    self: object,
    offset: object,
    value: object,
    mask: object,
    latency: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    raw = _raw(t, self, "store_offset", stores=True)
    pointers, chosen = _places(t, raw.tensor.base, offset, mask, value)
    store_pointers(t, pointers, chosen, value, raw.name, latency, memory_order, memory_scope)
    return None


def _implement(mode: str) -> None:
    name = f"atomic_{mode}_offset"

    @implements(getattr(language.RawMemory, name))
    def atomic(
        t: Translator,
        self: object,
        offset: object,
        update: object,
        mask: object,
        memory_order: object,
        memory_scope: object,
    ) -> object:
        raw = _raw(t, self, name, stores=True)
        pointers, chosen = _places(t, raw.tensor.base, offset, mask, update)
        return atomic_update(t, mode, pointers, chosen, update, raw.name, memory_order, memory_scope)


for _mode in ("add", "max", "min", "and", "or", "xor", "xchg"):
    _implement(_mode)


@implements(language.RawMemory.atomic_cas_offset)
def atomic_cas_offset(
    t: Translator,
    self: object,
    offset: object,
    expected: object,
    desired: object,
    mask: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    raw = _raw(t, self, "atomic_cas_offset", stores=True)
    pointers, chosen = _places(t, raw.tensor.base, offset, mask, expected, desired)
    return atomic_cas(t, pointers, chosen, expected, desired, raw.name, memory_order, memory_scope)


# ------------------------------------------------------------------ pointers


def _pointers(t: Translator, value: object, name: str) -> Value:
    if not is_pointer(value):
        raise t.wrong_type(f"{name} is a method of pointers, got {describe(value)}")
    return value


@implements(language.Pointer.reshape)
def reshape(t: Translator, self: object, shape: object) -> object:
    pointers = _pointers(t, self, "reshape")
    sides = t.static_shape(shape)
    if tile_type(pointers).with_shape(sides).size != tile_type(pointers).size:
        raise t.wrong_value(f"{describe(pointers)} does not fill shape {sides}")
    return reshape_pointers(t, pointers, sides)


@implements(language.Pointer.broadcast_to)
def broadcast_to(t: Translator, self: object, shape: object) -> object:
    return broadcast_pointers(t, _pointers(t, self, "broadcast_to"), t.static_shape(shape))


@implements(language.Pointer.load)
def load(
    t: Translator,
    self: object,
    mask: object,
    padding_value: object,
    latency: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    pointers, chosen = _places(t, _pointers(t, self, "load"), None, mask)
    return load_pointers(
        t, pointers, chosen, padding_value, "the memory", latency, memory_order, memory_scope
    )


@implements(language.Pointer.store)
def store(
    t: Translator,
    self: object,
    value: object,
    mask: object,
    latency: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    pointers, chosen = _places(t, _pointers(t, self, "store"), None, mask, value)
    store_pointers(t, pointers, chosen, value, "the memory", latency, memory_order, memory_scope)
    return None
