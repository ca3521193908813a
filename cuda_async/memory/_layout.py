"""Shapes and strides as plain tuples; strides are in elements.

Every function checks what it is given and says what was expected; none touches a device.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MAX_AXES",
    "ShapeLike",
    "as_shape",
    "check_reach",
    "contiguous_strides",
    "extent",
    "index_view",
    "inferred_shape",
    "is_contiguous",
    "permuted",
    "reshaped",
    "shares_elements",
]

Shape = tuple[int, ...]
ShapeLike: TypeAlias = SupportsIndex | Iterable[SupportsIndex]
"""What `as_shape` takes."""
MAX_AXES = 64
"""As NumPy's."""
_MAX_ELEMENTS = 2**62
_MAX_ADDRESS = 2**63


def as_shape(shape: object) -> Shape:
    """`shape` as a tuple of ints >= 0: an int, or a sequence of ints (NumPy ints too).

    Raises:
        TypeError: a dimension is no integer. ValueError: negative, more than 2**62 elements, or than 64 axes.
    """
    if type(shape) is tuple:  # of plain ints, as most are
        count = 1
        for n in shape:
            if type(n) is not int or n < 0:
                break
            count *= n
        else:
            if count <= _MAX_ELEMENTS and len(shape) <= MAX_AXES:
                return shape
    dims: Sequence[object]
    if isinstance(shape, int):
        dims = (shape,)
    elif isinstance(shape, (str, bytes, Mapping, Set)):
        raise TypeError(f"a shape is an int or a sequence of ints, got {shape!r}")
    else:
        try:
            # Arrays with axes have __index__ too, so being iterable comes first.
            dims = tuple(shape)  # type: ignore[arg-type]  # any object is tried
        except TypeError:
            if not hasattr(shape, "__index__"):
                raise TypeError(f"a shape is an int or a sequence of ints, got {shape!r}") from None
            dims = (shape,)
    result = []
    for axis, dim in enumerate(dims):
        try:
            size = operator.index(dim)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"shape axis {axis} is {dim!r}; expected an integer") from None
        if size < 0:
            raise ValueError(f"shape axis {axis} is {size}; dimensions cannot be negative")
        result.append(size)
    if len(result) > MAX_AXES:
        raise ValueError(f"a shape has at most {MAX_AXES} axes, as NumPy's, got {len(result)}")
    if math.prod(result) > _MAX_ELEMENTS:
        raise ValueError(f"shape {tuple(result)} has more than 2**62 elements")
    return tuple(result)


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides; zero-sized axes count as 1."""
    if len(shape) == 1:
        return (1,)
    if len(shape) == 2:
        return (shape[1] or 1, 1)
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(1, shape[axis + 1])
    return tuple(strides)


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Row-major without gaps. Axes of size 1 may have any stride; an empty array is contiguous."""
    if 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def extent(shape: Shape, strides: Shape) -> tuple[int, int]:
    """(lowest, one past the highest) element reached, relative to the first element; (0, 0) when empty."""
    low, high = 0, 1
    for size, stride in zip(shape, strides):
        if size == 0:
            return 0, 0
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low, high


def check_reach(address: int, shape: Shape, strides: Shape, itemsize: int) -> None:
    """What another library says of its memory is possible: sizes that are not negative, addresses of 63 bits.

    Args:
        strides: in elements.
    Raises:
        BufferError: it is not.
    """
    if len(shape) != len(strides):
        raise BufferError(f"the array has {len(shape)} axes and {len(strides)} strides")
    if any(size < 0 for size in shape):
        raise BufferError(f"the array's shape {shape} has a negative size")
    if math.prod(shape) > _MAX_ELEMENTS:
        raise BufferError(f"the array's shape {shape} has more than 2**62 elements")
    if 0 in shape:
        return
    if address <= 0:
        raise BufferError(f"the array of shape {shape} is at address {address:#x}, where no memory is")
    low, high = extent(shape, strides)
    if address + low * itemsize < 0 or address + high * itemsize > _MAX_ADDRESS:
        raise BufferError(
            f"the array at {address:#x} of shape {shape} with strides {strides} reaches beyond what has addresses"
        )


def inferred_shape(shape: Shape, new: object) -> Shape:
    """`new` as the shape of the same elements; one axis may be -1, and is what remains.

    Raises:
        ValueError: another number of elements. TypeError: a dimension is no integer.
    """
    total = math.prod(shape)
    dims = tuple(new) if isinstance(new, (tuple, list)) else (new,)
    if -1 in dims:
        others = as_shape(tuple(d for d in dims if d != -1))
        if len(others) + 1 < len(dims):
            raise ValueError(f"only one axis may be -1, got {dims}")
        rest = math.prod(others)
        if rest == 0 or total % rest:
            raise ValueError(f"cannot reshape {shape} ({total} elements) to {dims}")
        dims = tuple(total // rest if d == -1 else d for d in dims)
    target = as_shape(dims)
    if math.prod(target) != total:
        raise ValueError(
            f"cannot reshape {shape} ({total} elements) to {target} ({math.prod(target)} elements)"
        )
    return target


def reshaped(shape: Shape, strides: Shape, new: object) -> tuple[Shape, Shape]:
    """Shape and strides of a view of the same elements in row-major order; one axis may be -1.

    Raises:
        ValueError: another number of elements, or no such view exists without a copy.
    """
    target = inferred_shape(shape, new)
    if is_contiguous(shape, strides):
        return target, contiguous_strides(target)
    # Walk both shapes in groups of equal element count; a group must be evenly strided.
    old = [(n, s) for n, s in zip(shape, strides) if n != 1]
    result: list[int] = []
    i = 0
    j = 0
    while j < len(target):
        if target[j] == 1:
            result.append(1)
            j += 1
            continue
        group_old, group_new = [old[i]], [target[j]]
        i, j = i + 1, j + 1
        count_old, count_new = group_old[0][0], group_new[0]
        while count_old != count_new:
            if count_old < count_new:
                group_old.append(old[i])
                count_old *= old[i][0]
                i += 1
            else:
                group_new.append(target[j])
                count_new *= target[j]
                j += 1
        for (_, outer), (size, inner) in itertools.pairwise(group_old):
            if outer != size * inner:
                raise ValueError(
                    f"cannot view shape {shape} with strides {strides} as {target} without a copy; "
                    "make it contiguous first with ca.copy(tensor)"
                )
        step = group_old[-1][1]
        steps = []
        for size in reversed(group_new):
            steps.append(step)
            step *= size
        result.extend(reversed(steps))
    return target, tuple(result)


def permuted(shape: Shape, strides: Shape, axes: Sequence[int]) -> tuple[Shape, Shape]:
    """Axes in another order, as `numpy.transpose`.

    Raises:
        ValueError: `axes` is not a permutation of all axes. TypeError: an axis that is no integer.
    """
    rank = len(shape)
    try:
        order = [operator.index(a) for a in axes]
    except TypeError:
        raise TypeError(f"axes {tuple(axes)!r} must be integers, as in permute(1, 0)") from None
    normal = [a + rank if a < 0 else a for a in order]
    if sorted(normal) != list(range(rank)):
        raise ValueError(f"axes {tuple(axes)} are not a permutation of 0 to {rank - 1}")
    return tuple(shape[a] for a in normal), tuple(strides[a] for a in normal)


def index_view(shape: Shape, strides: Shape, key: object) -> tuple[int, Shape, Shape]:
    """(offset in elements, shape, strides) of basic indexing: ints, slices, `...` and `None`.

    Raises:
        IndexError: too many indices or an int out of range. TypeError: any other kind of index.
    """
    items = list(key) if isinstance(key, tuple) else [key]
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > len(shape):
        raise IndexError(f"too many indices: {used} for a tensor of rank {len(shape)}")
    fill = [slice(None)] * (len(shape) - used)
    if Ellipsis in [i for i in items if i is Ellipsis]:
        at = next(n for n, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = fill
    else:
        items.extend(fill)
    offset = 0
    new_shape: list[int] = []
    new_strides: list[int] = []
    axis = 0
    for item in items:
        if item is None:
            new_shape.append(1)
            new_strides.append(0)
            continue
        size, stride = shape[axis], strides[axis]
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            count = len(range(start, stop, step))
            offset += start * stride if count else 0
            new_shape.append(count)
            new_strides.append(stride * step)
        else:
            try:
                if isinstance(item, bool):
                    raise TypeError
                position = operator.index(item)  # type: ignore[arg-type]  # any object is tried
            except TypeError:
                raise TypeError(
                    f"index {item!r} on axis {axis}: tensors take ints, slices, ... and None; "
                    "gather other elements with a kernel"
                ) from None
            if not -size <= position < size:
                raise IndexError(f"index {position} is out of bounds for axis {axis} with size {size}")
            offset += (position + size if position < 0 else position) * stride
        axis += 1
    return offset, tuple(new_shape), tuple(new_strides)


def shares_elements(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two places along an axis, or along two, are one element of memory: a broadcast array, a window."""
    axes = [(n, abs(step)) for n, step in zip(shape, strides) if n > 1]
    if 0 in shape:
        return False
    if any(step == 0 for _, step in axes):
        return True
    for (n, step), (other_n, other_step) in itertools.combinations(axes, 2):
        common = math.gcd(step, other_step)
        if other_step // common < n and step // common < other_n:
            return True
    return False
