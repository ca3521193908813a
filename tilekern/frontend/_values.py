"""What names are bound to while a kernel is translated, besides IR values and plain Python objects.

A tile or scalar is an `ir.Value`; a compile-time value is the Python object itself. The rest is here.
"""

from __future__ import annotations

import enum
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from ..dtypes import DType
from ..ir import PointerType, TensorType, TileType, Value, ViewType
from ._aggregates import is_named_tuple, parts_of, record_fields

if TYPE_CHECKING:
    from ._frame import Frame
    from ._source import FunctionSource

__all__ = [
    "VALUE",
    "BoundMethod",
    "FormattedText",
    "Hole",
    "InnerFunction",
    "Loose",
    "Nothing",
    "OwnedTileValue",
    "PartialFunction",
    "RangeValue",
    "RawMemoryValue",
    "StaticItems",
    "TensorValue",
    "TiledViewValue",
    "Unset",
    "describe",
    "is_loose",
    "is_number",
    "is_numpy_type",
    "is_pointer",
    "is_scalar",
    "is_tile",
    "pointee",
    "tile_type",
]


class Loose(Value):
    """A Python number that is known only at run time: a scalar without a type of its own.

    It is held in int32, int64, uint64 or float64 and takes the type of the tile it meets, as a number in the
    source does. Arithmetic of loose numbers gives loose numbers.
    """

    __slots__ = ()


@dataclass(eq=False)
class TensorValue:
    """A tensor parameter.

    Attributes:
        name: of the parameter.
        value: the tensor in the IR.
        shape: dimensions, as numbers where they are known.
        strides: likewise.
        writable: whether it was given as `mut`.
        flat: position of each unknown dimension among the launch's flat arguments, None for known ones, and
            for those that the kernel computed.
        base: address of its first element.
        is_derived: made by the kernel: a slice, or memory behind a pointer.
    """

    name: str
    value: Value
    shape: tuple[Value | int, ...]
    strides: tuple[Value | int, ...]
    writable: bool
    flat: tuple[int | None, ...]
    base: Value
    is_derived: bool = False

    @property
    def type(self) -> TensorType:
        assert isinstance(self.value.type, TensorType)
        return self.value.type

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def is_wide(self) -> bool:
        """Whether its extents and strides take 64 bits."""
        parts = [part for part in (*self.shape, *self.strides) if isinstance(part, Value)]
        return any(tile_type(part).number.bits == 64 for part in parts)


@dataclass(eq=False)
class TiledViewValue:
    """`tensor.tiled_view(...)`."""

    tensor: TensorValue
    value: Value

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def type(self) -> ViewType:
        assert isinstance(self.value.type, ViewType)
        return self.value.type


@dataclass(eq=False)
class RawMemoryValue:
    """`tensor.get_raw_memory()`."""

    tensor: TensorValue

    @property
    def name(self) -> str:
        return self.tensor.name


@dataclass(eq=False)
class OwnedTileValue:
    """A partition parameter: this block's tile of a tensor."""

    tensor: TensorValue
    tile_shape: tuple[int, ...]
    index: tuple[Value, ...]

    @property
    def name(self) -> str:
        return self.tensor.name


@dataclass(eq=False)
class RangeValue:
    """`range(...)`: numbers or integer scalars."""

    start: Value | int
    stop: Value | int
    step: Value | int


@dataclass(eq=False)
class StaticItems:
    """`tk.static_iter(...)`: a loop over it is unrolled."""

    items: tuple[object, ...]


@dataclass(eq=False)
class BoundMethod:
    """A method of a tile or parameter: a language function with its first argument."""

    name: str
    target: object


@dataclass(eq=False)
class InnerFunction:
    """A function or lambda defined inside of a kernel; it sees the variables around it."""

    source: FunctionSource
    frame: Frame


@dataclass(eq=False)
class PartialFunction:
    """`functools.partial(function, *args, **kwargs)` made in a kernel."""

    function: object
    args: tuple[object, ...]
    kwargs: dict[str, object]


@dataclass(frozen=True, eq=False)
class Hole:
    """A tile, or an aggregate with tiles in it, in an f-string, and the format it is to be shown in."""

    value: object
    format: str


@dataclass(eq=False)
class FormattedText:
    """An f-string with tiles in it."""

    parts: tuple[str | Hole, ...]


VALUE = "the value returned"
"""Variable that holds what a function returns from inside of a loop; see `_loop_exits`."""


class Nothing:
    """What it is before it is known what will be returned."""


@dataclass(frozen=True)
class Unset:
    """A variable that has no usable value here, and why."""

    reason: str


def is_tile(value: object) -> TypeGuard[Value]:
    """True for tiles and scalars of the running kernel; pointers are not among them."""
    return (
        isinstance(value, Value)
        and isinstance(value.type, TileType)
        and not isinstance(value.type.dtype, PointerType)
    )


def is_pointer(value: object) -> TypeGuard[Value]:
    """True for pointers and tiles of them."""
    return (
        isinstance(value, Value)
        and isinstance(value.type, TileType)
        and isinstance(value.type.dtype, PointerType)
    )


def pointee(value: Value) -> DType:
    """What a pointer, or a tile of them, points to."""
    kind = tile_type(value).dtype
    assert isinstance(kind, PointerType)
    return kind.pointee


def is_loose(value: object) -> TypeGuard[bool | int | float | Loose]:
    """True for what takes its type from what it meets: Python's numbers, known now or at run time."""
    return type(value) in (bool, int, float, Loose) or isinstance(value, int)  # members of an IntEnum


def is_scalar(value: object) -> TypeGuard[Value]:
    """True for tiles of rank 0."""
    return is_tile(value) and not tile_type(value).shape


def is_number(value: object) -> TypeGuard[bool | int | float]:
    """True for Python's own numbers, which take their type from what they meet."""
    return type(value) in (bool, int, float) or isinstance(value, int)


def is_numpy_type(value: object) -> TypeGuard[np.dtype[Any] | type[np.generic]]:
    """True for NumPy's own names of element types: `np.float32`, `np.dtype("f4")`."""
    return isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))


def tile_type(value: Value) -> TileType:
    """The type of a value that is known to be a tile."""
    assert isinstance(value.type, TileType)
    return value.type


def describe(value: object) -> str:
    """What `value` is, in the words of an error message."""
    if isinstance(value, Loose):
        return "a Python float" if tile_type(value).number.is_float else "a Python int"
    if is_tile(value):
        kind = tile_type(value)
        name = kind.number.name.rstrip("_")
        article = "an" if name.startswith("int") else "a"
        return f"{article} {name} {f'tile of shape {kind.shape}' if kind.shape else 'scalar'}"
    if is_pointer(value):
        shape = tile_type(value).shape
        of = pointee(value).name.rstrip("_")
        return f"a tile of shape {shape} of pointers to {of}" if shape else f"a pointer to {of}"
    if isinstance(value, TensorValue):
        return f"a tensor made of {value.name}" if value.is_derived else f"tensor {value.name}"
    if isinstance(value, TiledViewValue):
        return f"a tiled view of {value.name}"
    if isinstance(value, RawMemoryValue):
        return f"the raw memory of {value.name}"
    if isinstance(value, OwnedTileValue):
        return f"partition {value.name}"
    if type(value).__name__ == "TileIndexValue":
        return "an index of a walk"
    if isinstance(value, RangeValue):
        return "a range"
    if isinstance(value, InnerFunction):
        return f"function {value.source.name}"
    if isinstance(value, FormattedText):
        return "an f-string that holds tiles"
    if isinstance(value, PartialFunction):
        return f"a partial of {describe(value.function)}"
    if isinstance(value, BoundMethod):
        return f"method {value.name}"
    if isinstance(value, enum.Enum):
        return str(value)
    parts = parts_of(value)
    if parts is not None:
        return _describe_parts(value, parts)
    if is_number(value) or isinstance(value, str):
        return _short(repr(value))
    if value is None or value is Ellipsis or isinstance(value, bytes | slice):
        return _short(repr(value))
    if isinstance(value, DType):
        return f"the element type tk.{value.name}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and isinstance(getattr(value, "__name__", None), str):
        return _describe_callable(value)
    if inspect.ismodule(value):
        return f"module {value.__name__}"
    text = f"{type(value).__name__} {value!s}"
    return text if len(text) <= 80 else f"an object of class {type(value).__name__}"


def _describe_callable(value: Any) -> str:
    if getattr(value, "is_tile_kernel", False):
        return f"kernel {value.__name__}"
    module = getattr(value, "__module__", None) or ""
    is_shown = module not in ("builtins", "__main__") and "." not in module and not inspect.isfunction(value)
    return f"function {module}.{value.__name__}" if is_shown and module else f"function {value.__name__}"


def _short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."


def _describe_parts(value: object, parts: tuple[object, ...]) -> str:
    texts = list(map(describe, parts))
    if isinstance(value, dict):
        return f"a dict {{{', '.join([f'{key!r}: {text}' for key, text in zip(value, texts, strict=True)])}}}"
    if isinstance(value, tuple) and not is_named_tuple(value):
        return f"a tuple ({', '.join(texts)})"
    cls = type(value)
    names: tuple[str, ...] = getattr(cls, "_fields", None) or record_fields(cls) or ()
    return f"{cls.__name__}({', '.join([f'{name}={text}' for name, text in zip(names, texts, strict=True)])})"
