"""Sequences, identity matrices, conversion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from cuda_async import DeviceOp, Tensor, copy, empty
from cuda_async.memory import as_dtype, as_shape

from .. import language
from ..language import Scalar, Tile, means_in_kernels

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ..dtypes import DType

__all__ = ["arange", "convert", "eye", "linspace"]

TILE = 1024
"""Elements that one block writes."""


# The first form is the one of kernels. A call with one number and a DType fits both, and is read as that.
@overload
def arange(size: int, /, *, start: Scalar = 0, step: Scalar = 1, dtype: DType) -> Tile: ...
@overload
def arange(stop: float, /, *, dtype: DTypeLike | None = None) -> DeviceOp[Tensor]: ...
@overload
def arange(
    start: float, stop: float, /, step: float = 1, *, dtype: DTypeLike | DType | None = None
) -> DeviceOp[Tensor]: ...
@means_in_kernels(language.arange)
def arange(
    first: float, stop: float | None = None, /, step: Any = 1, *, start: Any = None, dtype: Any = None
) -> Any:
    """Evenly spaced numbers: `tk.arange(stop)`, `tk.arange(start, stop, step)`.

    Outside of kernels, an operation that yields a new tensor of rank 1 with `start + i * step` for every i that
    stays before `stop`. Whole numbers are computed in int64 and wrap in the element type; floats are computed
    in float64 and rounded once. Inside of a kernel, `tk.arange(size, start=0, step=1, dtype=...)`
    is a tile of `size` elements; a type checker takes a call with one number and a `tk` dtype for that.

    Args:
        dtype: int64 if all numbers are whole, and float32 if not, if left out.
    Raises:
        ValueError: a step of 0, or a bound that is no finite number.
    """
    if start is not None:
        raise TypeError("start= is for kernels; on the host, write tk.arange(start, stop, step)")
    begin, end = (0, first) if stop is None else (first, stop)
    for name, number in (("start", begin), ("stop", end), ("step", step)):
        _check_number("arange", name, number)
    if step == 0:
        raise ValueError("arange: the step is 0")
    is_whole = all(isinstance(number, int | np.integer) for number in (begin, end, step))
    kind = as_dtype((np.int64 if is_whole else np.float32) if dtype is None else dtype)
    if is_whole:
        begin, end, step = int(begin), int(end), int(step)
        count = max(0, -((begin - end) // step))
    else:
        begin, end, step = float(begin), float(end), float(step)
        count = max(0, math.ceil((end - begin) / step))
    if not count:
        return empty((0,), kind)
    from ._kernels import float_sequence, whole_sequence

    # whole numbers wrap, so those of 64 bits are right for every integer type
    if is_whole and kind.kind in "iu":
        low, by = _wrapped(int(begin)), _wrapped(step)
        return _flat(whole_sequence(empty((count,), kind).partition(TILE), low, by))
    return _flat(float_sequence(empty((count,), kind).partition(TILE), np.float64(begin), np.float64(step)))


def linspace(
    start: float, stop: float, num: int = 50, *, endpoint: bool = True, dtype: DTypeLike | DType = np.float32
) -> DeviceOp[Tensor]:
    """`num` evenly spaced numbers from `start` to `stop`, as an operation that yields a new tensor.

    Computed in float64 as `start + i * step` and rounded once to the element type, integers downwards; the last
    one is `stop` itself.

    Args:
        endpoint: whether `stop` is the last; without, it is the first that is left out.
    Raises:
        ValueError: `num` is negative, or a bound no finite number.
    """
    if type(num) is not int or num < 0:
        raise ValueError(f"linspace: num is a whole number from 0 on, got {num!r}")
    _check_number("linspace", "start", start)
    _check_number("linspace", "stop", stop)
    kind = as_dtype(dtype)
    if not num:
        return empty((0,), kind)
    from ._kernels import spaced

    steps = num - 1 if endpoint else num
    step = (float(stop) - float(start)) / steps if steps else 0.0
    last = num - 1 if endpoint and num > 1 else -1
    out = empty((num,), kind).partition(TILE)
    return _flat(spaced(out, np.float64(start), np.float64(step), np.float64(stop), np.int64(last)))


def eye(
    rows: int, columns: int | None = None, k: int = 0, *, dtype: DTypeLike | DType = np.float32
) -> DeviceOp[Tensor]:
    """A matrix with ones on a diagonal and zeros elsewhere, as an operation that yields a new tensor.

    Args:
        columns: as many as rows if left out.
        k: which diagonal; above the main one if positive.
    """
    shape = as_shape((rows, rows if columns is None else columns))
    if type(k) is not int:
        raise TypeError(f"eye: k is a whole number, got {k!r}")
    kind = as_dtype(dtype)
    if 0 in shape:
        return empty(shape, kind)
    from ._kernels import diagonal

    out = empty(shape, kind).partition((16, 64))
    # beyond the matrix, every diagonal is as good as any other
    offset = min(max(k, -shape[0]), shape[1])
    return _output(diagonal(out, np.int64(offset)))


def convert(x: Tensor | DeviceOp[Tensor], dtype: DTypeLike | DType) -> DeviceOp[Tensor]:
    """A new, contiguous tensor with the elements converted, as an operation.

    With the tile language's rules (docs/language.md): floats are rounded to nearest even, to integers towards
    zero with out-of-range values at the nearest and NaN at 0; integers wrap. Between floating-point types,
    and from integers to anything, that is what `astype` gives, but for what is too large for an 8-bit float: here
    that type's largest number, there infinity or NaN.
    """
    kind = as_dtype(dtype)
    if isinstance(x, DeviceOp):
        return cast("DeviceOp[Tensor]", x.then(lambda tensor: convert(tensor, kind)))
    if not isinstance(x, Tensor):
        raise TypeError(f"convert takes a tensor, or an operation that yields one, got {type(x).__name__}")
    if not x.size:
        return empty(x.shape, kind)
    if not x.is_contiguous:
        return copy(x).then(lambda tensor: convert(tensor, kind))
    from ._kernels import converted

    out = empty((x.size,), kind).partition(TILE)
    return _flat(converted(out, x.reshape((x.size,)))).reshape(x.shape)


def _output(launch: DeviceOp[Any]) -> DeviceOp[Tensor]:
    """The tensor of a kernel's first argument, a partition."""
    # Any: a launch yields its arguments, of which the type is not known
    first: Any = launch.first()
    return cast("DeviceOp[Tensor]", first.unpartition())


_flat = _output


def _check_number(function: str, name: str, number: object) -> None:
    if not isinstance(number, int | float | np.integer | np.floating) or isinstance(number, bool):
        raise TypeError(f"{function}: {name} is a number, got {type(number).__name__} {number!r}")
    if not math.isfinite(number):
        raise ValueError(f"{function}: {name} is {number}")


def _wrapped(number: int) -> np.int64:
    return np.int64((number + (1 << 63)) % (1 << 64) - (1 << 63))
