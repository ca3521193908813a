"""The key of a call: what tells calls apart that need different code, flat arguments or grids.

It is made on every launch, so it takes shapes, strides and addresses (modulo 256) as they are instead of
working out what the compiler is told of them: finer than needed, and cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuda_async import Mut, Partition, Read, Tensor

__all__ = ["call_key", "constant_key"]


def call_key(args: Sequence[Any], constants: tuple[bool, ...]) -> tuple[object, ...]:
    """What tells calls apart that need different code, flat arguments or grids."""
    parts: list[object] = []
    for arg, is_constant in zip(args, constants, strict=False):
        kind = type(arg)
        if is_constant:
            parts.append(constant_key(arg))
        elif kind is Tensor:
            parts.append((arg.shape, arg.strides, arg.dtype.num, arg._address & 255))
        elif kind is Partition:
            tensor = arg.tensor
            parts.append((tensor.shape, tensor.strides, tensor.dtype.num, tensor._address & 255))
            parts.append((arg.tile_shape, arg.prefix))
        elif kind is Mut or kind is Read:
            tensor = arg.tensor
            parts.append((kind, tensor.shape, tensor.strides, tensor.dtype.num, tensor._address & 255))
        elif kind is int:
            parts.append(1 if -0x80000000 <= arg <= 0x7FFFFFFF else 2 if -(1 << 63) <= arg < 1 << 63 else 3)
        else:
            parts.append(kind)
    return tuple(parts)


def constant_key(value: object) -> object:
    """A key that tells 1, 1.0 and True apart, and 0.0 from -0.0."""
    if isinstance(value, tuple):
        return (tuple, *map(constant_key, value))
    if isinstance(value, float):
        return (float, repr(value))
    return (type(value), value)
