"""What can be gone through while a kernel is compiled: by unrolled loops, comprehensions, `*` and unpacking."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from ._values import RangeValue, StaticItems, TensorValue, describe, is_tile

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = ["MAX_UNROLLED", "is_static_range", "items_of", "static_range"]

MAX_UNROLLED = 1000
"""Most turns of a loop or comprehension that is unrolled."""

_SEQUENCES: tuple[type[Any], ...] = (
    *(tuple, list, range, str, dict, enum.EnumMeta),
    *(type({}.keys()), type({}.values()), type({}.items())),
)


def is_static_range(value: RangeValue) -> bool:
    """True when the bounds of a range are known at compile time."""
    return not any(is_tile(part) for part in (value.start, value.stop, value.step))


def static_range(value: RangeValue) -> range:
    """Python's range for one whose bounds are known."""
    assert isinstance(value.start, int)
    assert isinstance(value.stop, int)
    assert isinstance(value.step, int)
    return range(value.start, value.stop, value.step)


def items_of(t: Translator, value: object, what: str) -> tuple[object, ...]:
    """The items of something whose number of items is known at compile time.

    Raises:
        KernelTypeError: it is something else, such as a tile; `what` starts the message.
    """
    if isinstance(value, StaticItems):
        return value.items
    if isinstance(value, RangeValue):
        if not is_static_range(value):
            raise t.wrong_type(
                f"{what} a range known at compile time, and a bound of this one is known at run time only; "
                "a `for` loop over range alone takes such bounds, so keep what else it needs in variables"
            )
        items = static_range(value)
        _check_number(t, len(items))
        return tuple(items)
    if isinstance(value, _SEQUENCES):
        _check_number(t, len(value))
        return tuple(value)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        _check_number(t, len(value))
        return tuple(value)
    if isinstance(value, set | frozenset):
        raise t.wrong_type(f"{what} what has an order; use a tuple in place of the set, or sorted(...)")
    if is_tile(value):
        raise t.wrong_type(
            f"{what} range(...), a tuple or tk.static_iter(...), got {describe(value)}; operations on a tile "
            "are on all of its elements at once"
        )
    if isinstance(value, TensorValue):
        raise t.wrong_type(
            f"{what} range(...), a tuple or tk.static_iter(...), got tensor {value.name}; loop over its tiles with "
            f"range(tk.num_tiles({value.name}, axis, shape)) and load each"
        )
    raise t.wrong_type(f"{what} range(...), a tuple or tk.static_iter(...), got {describe(value)}")


def _check_number(t: Translator, count: int) -> None:
    if count > MAX_UNROLLED:
        raise t.wrong_value(
            f"what is unrolled has at most {MAX_UNROLLED} items, this has {count}; a loop over range(...) "
            "that runs has no limit"
        )
