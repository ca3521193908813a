"""Tile IR types: frozen values, equal when they mean the same.

    tile(f32, (64, 64))             a register tile; tile(f32) is a scalar
    ptr(f32)                        an address of f32
    tensor_view(f32, (None, 4096), (4096, 1))      memory with a shape; None is known at run time only
    partition_view((64, 64), view)  a tensor_view cut into tiles
    strided_view(...), gather_scatter_view(...), token, func(inputs)

Construction checks the rules of each kind and raises `TypeRuleError`. `str(type)` is the spelling
of NVIDIA's disassembler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ._enums import PaddingValue, PointerKind
from ._version import Version
from .errors import TypeRuleError

__all__ = [
    "DYNAMIC",
    "MAX_TILE_ELEMENTS",
    "NUMBER_TYPES",
    "FunctionType",
    "GatherScatterViewType",
    "NumberType",
    "PartitionViewType",
    "PointerType",
    "StridedViewType",
    "TensorViewType",
    "TileType",
    "TokenType",
    "Type",
    "ViewType",
    "bf16",
    "components",
    "f4e2m1fn",
    "f8e4m3fn",
    "f8e5m2",
    "f8e8m0fnu",
    "f16",
    "f32",
    "f64",
    "fnv8e5m3fnu",
    "func",
    "gather_scatter_view",
    "i1",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "number",
    "partition_view",
    "ptr",
    "since",
    "strided_view",
    "tensor_view",
    "tf32",
    "tile",
    "token",
]

DYNAMIC = None
"""A dimension or stride of a tensor_view that is an operand of `make_tensor_view`."""

MAX_TILE_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Type:
    """Base of all Tile IR types."""


@dataclass(frozen=True, slots=True)
class NumberType(Type):
    """An element type; integers are signless."""

    name: str
    tag: int
    bits: int
    is_float: bool
    since: Version = (13, 1)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class PointerType(Type):
    """An address of elements of `pointee`."""

    pointee: NumberType
    kind: PointerKind = PointerKind.DEFAULT

    def __post_init__(self) -> None:
        if not isinstance(self.pointee, NumberType):
            raise TypeRuleError(f"a pointer points to a number type, got {self.pointee}")

    def __str__(self) -> str:
        kind = "" if self.kind is PointerKind.DEFAULT else f", <{self.kind.name.lower()}>"
        return f"ptr<{self.pointee}{kind}>"


@dataclass(frozen=True, slots=True)
class TileType(Type):
    """A tile of numbers or pointers; every side a power of two, at most 2^24 elements; rank 0 is a scalar."""

    element: NumberType | PointerType
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.element, (NumberType, PointerType)):
            raise TypeRuleError(f"a tile holds numbers or pointers, got {self.element}")
        _check_tile_shape("a tile", self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return _product(self.shape)

    def with_shape(self, shape: Sequence[int]) -> TileType:
        return TileType(self.element, tuple(shape))

    def with_element(self, element: NumberType | PointerType) -> TileType:
        return TileType(element, self.shape)

    def __str__(self) -> str:
        return f"tile<{_dims(self.shape)}{'x' if self.shape else ''}{self.element}>"


@dataclass(frozen=True, slots=True)
class TensorViewType(Type):
    """Memory seen as a tensor; strides count elements; `None` marks what is known at run time only."""

    element: NumberType
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    pointer_kind: PointerKind = PointerKind.DEFAULT

    def __post_init__(self) -> None:
        if not isinstance(self.element, NumberType) or self.element == i4:
            raise TypeRuleError(f"a tensor_view holds numbers other than i4, got {self.element}")
        if len(self.shape) != len(self.strides):
            raise TypeRuleError(
                f"a tensor_view of shape {self.shape} needs as many strides, got {self.strides}"
            )
        for what, values in (("dimension", self.shape), ("stride", self.strides)):
            for value in values:
                if value is not None and not 0 < value < 1 << 63:
                    raise TypeRuleError(
                        f"a static {what} of a tensor_view is a positive integer, got {value}"
                    )

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dynamic_dims(self) -> int:
        """How many dimensions `make_tensor_view` takes as operands."""
        return self.shape.count(None)

    @property
    def dynamic_strides(self) -> int:
        """How many strides `make_tensor_view` takes as operands."""
        return self.strides.count(None)

    def __str__(self) -> str:
        shape = _dims(self.shape) + ("x" if self.shape else "")
        name = self.pointer_kind.name.lower()
        kind = "" if self.pointer_kind is PointerKind.DEFAULT else f", #cuda_tile.ptr_attr<{name}>"
        return f"tensor_view<{shape}{self.element}, strides=[{_dims(self.strides, ',')}]{kind}>"


@dataclass(frozen=True, slots=True)
class PartitionViewType(Type):
    """A tensor_view cut into equal tiles; index k along tile axis i starts at element k * tile_shape[i]."""

    tile_shape: tuple[int, ...]
    tensor_view: TensorViewType
    dim_map: tuple[int, ...]
    padding: PaddingValue | None = None

    def __post_init__(self) -> None:
        _check_view("a partition_view", self.tile_shape, self.tensor_view, self.padding)
        _check_dim_map("a partition_view", self.dim_map, self.tensor_view)

    def __str__(self) -> str:
        return (
            f"partition_view<tile=({_dims(self.tile_shape)}){_padding(self.padding)}, {self.tensor_view}"
            f"{_dim_map(self.dim_map)}>"
        )


@dataclass(frozen=True, slots=True)
class StridedViewType(Type):
    """A tensor_view read in tiles that start every `traversal_strides` elements, so they may overlap."""

    tile_shape: tuple[int, ...]
    traversal_strides: tuple[int, ...]
    tensor_view: TensorViewType
    dim_map: tuple[int, ...]
    padding: PaddingValue | None = None

    def __post_init__(self) -> None:
        _check_view("a strided_view", self.tile_shape, self.tensor_view, self.padding)
        _check_dim_map("a strided_view", self.dim_map, self.tensor_view)
        if len(self.traversal_strides) != len(self.tile_shape) or min(self.traversal_strides) < 1:
            raise TypeRuleError(
                f"a strided_view needs one positive traversal stride per tile axis {self.tile_shape}, "
                f"got {self.traversal_strides}"
            )

    def __str__(self) -> str:
        return (
            f"strided_view<tile=({_dims(self.tile_shape)}), "
            f"traversal_strides=[{_dims(self.traversal_strides, ',')}]"
            f"{_padding(self.padding)}, {self.tensor_view}{_dim_map(self.dim_map)}>"
        )


@dataclass(frozen=True, slots=True)
class GatherScatterViewType(Type):
    """A tensor_view whose axis `sparse_dim` is picked by a tile of row numbers."""

    tile_shape: tuple[int, ...]
    tensor_view: TensorViewType
    sparse_dim: int
    padding: PaddingValue | None = None

    def __post_init__(self) -> None:
        _check_view("a gather_scatter_view", self.tile_shape, self.tensor_view, self.padding)
        if not 0 <= self.sparse_dim < self.tensor_view.rank:
            raise TypeRuleError(
                f"sparse_dim of a gather_scatter_view is an axis of {self.tensor_view}, got {self.sparse_dim}"
            )

    def __str__(self) -> str:
        return (
            f"gather_scatter_view<tile=({_dims(self.tile_shape)}){_padding(self.padding)}, "
            f"{self.tensor_view}, sparse_dim={self.sparse_dim}>"
        )


@dataclass(frozen=True, slots=True)
class TokenType(Type):
    """Orders memory operations: an op that takes a token comes after the op that gave it."""

    def __str__(self) -> str:
        return "token"


@dataclass(frozen=True, slots=True)
class FunctionType(Type):
    """The signature of an entry; entries have no results."""

    inputs: tuple[Type, ...]
    results: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.results))})"


ViewType = PartitionViewType | StridedViewType | GatherScatterViewType

i1 = NumberType("i1", 0, 1, False)
i4 = NumberType("i4", 22, 4, False, (13, 3))
i8 = NumberType("i8", 1, 8, False)
i16 = NumberType("i16", 2, 16, False)
i32 = NumberType("i32", 3, 32, False)
i64 = NumberType("i64", 4, 64, False)
f16 = NumberType("f16", 5, 16, True)
bf16 = NumberType("bf16", 6, 16, True)
f32 = NumberType("f32", 7, 32, True)
tf32 = NumberType("tf32", 8, 19, True)
f64 = NumberType("f64", 9, 64, True)
f8e4m3fn = NumberType("f8E4M3FN", 10, 8, True)
f8e5m2 = NumberType("f8E5M2", 11, 8, True)
f8e8m0fnu = NumberType("f8E8M0FNU", 18, 8, True, (13, 2))
f4e2m1fn = NumberType("f4E2M1FN", 19, 4, True, (13, 3))
fnv8e5m3fnu = NumberType("fnv8E5M3FNU", 130, 8, True, (13, 4))
token = TokenType()

NUMBER_TYPES: dict[str, NumberType] = {
    t.name.lower(): t
    for t in (
        *(i1, i4, i8, i16, i32, i64),
        *(f16, bf16, f32, tf32, f64),
        *(f8e4m3fn, f8e5m2, f8e8m0fnu, f4e2m1fn, fnv8e5m3fnu),
    )
}
"""Every element type by its lower-case name."""


def number(name: str) -> NumberType:
    """The element type of that name ("f32", "f8e4m3fn", ...; upper or lower case)."""
    try:
        return NUMBER_TYPES[name.lower()]
    except KeyError:
        raise TypeRuleError(f"no element type {name!r}; there are {', '.join(NUMBER_TYPES)}") from None


def ptr(pointee: NumberType, kind: PointerKind = PointerKind.DEFAULT) -> PointerType:
    """Pointer to elements of `pointee`."""
    return PointerType(pointee, kind)


def tile(element: NumberType | PointerType, shape: Sequence[int] = ()) -> TileType:
    """Tile of that shape; without a shape a scalar."""
    return TileType(element, tuple(shape))


def tensor_view(
    element: NumberType,
    shape: Sequence[int | None],
    strides: Sequence[int | None],
    pointer_kind: PointerKind = PointerKind.DEFAULT,
) -> TensorViewType:
    """Tensor in memory; `None` (`DYNAMIC`) for dimensions and strides known at run time only."""
    return TensorViewType(element, tuple(shape), tuple(strides), pointer_kind)


def partition_view(
    tile_shape: Sequence[int],
    view: TensorViewType,
    dim_map: Sequence[int] | None = None,
    padding: PaddingValue | None = None,
) -> PartitionViewType:
    """View in tiles; `dim_map[i]` is the tensor axis of tile axis i, in order if left out."""
    return PartitionViewType(tuple(tile_shape), view, _dim_map_or_identity(dim_map, view), padding)


def strided_view(
    tile_shape: Sequence[int],
    traversal_strides: Sequence[int],
    view: TensorViewType,
    dim_map: Sequence[int] | None = None,
    padding: PaddingValue | None = None,
) -> StridedViewType:
    """View in tiles that start every `traversal_strides` elements (bytecode 13.3)."""
    return StridedViewType(
        tuple(tile_shape), tuple(traversal_strides), view, _dim_map_or_identity(dim_map, view), padding
    )


def gather_scatter_view(
    tile_shape: Sequence[int],
    view: TensorViewType,
    sparse_dim: int,
    padding: PaddingValue | None = None,
) -> GatherScatterViewType:
    """View whose axis `sparse_dim` is picked by row numbers (bytecode 13.3)."""
    return GatherScatterViewType(tuple(tile_shape), view, sparse_dim, padding)


def func(inputs: Sequence[Type], results: Sequence[Type] = ()) -> FunctionType:
    """Signature of a function."""
    return FunctionType(tuple(inputs), tuple(results))


def components(kind: Type) -> Iterator[Type]:
    """The types `kind` is directly made of."""
    match kind:
        case PointerType(pointee=inner) | TileType(element=inner) | TensorViewType(element=inner):
            yield inner
        case PartitionViewType() | StridedViewType() | GatherScatterViewType():
            yield kind.tensor_view
        case FunctionType():
            yield from kind.inputs
            yield from kind.results
        case _:
            return


def since(kind: Type) -> Version:
    """The first bytecode version that can hold `kind`."""
    own: Version = (13, 1)
    match kind:
        case NumberType():
            own = kind.since
        case StridedViewType() | GatherScatterViewType():
            own = (13, 3)
        case PointerType(kind=pointer_kind) | TensorViewType(pointer_kind=pointer_kind):
            own = (13, 1) if pointer_kind is PointerKind.DEFAULT else (13, 4)
        case _:
            pass
    return max((own, *(since(part) for part in components(kind))))


def _product(values: Sequence[int]) -> int:
    total = 1
    for value in values:
        total *= value
    return total


def _dims(values: Sequence[int | None], separator: str = "x") -> str:
    return separator.join("?" if value is None else str(value) for value in values)


def _padding(padding: PaddingValue | None) -> str:
    return "" if padding is None else f", padding_value = {padding.name.lower()}"


def _dim_map(dim_map: tuple[int, ...]) -> str:
    return "" if dim_map == tuple(range(len(dim_map))) else f", dim_map=[{_dims(dim_map, ', ')}]"


def _dim_map_or_identity(dim_map: Sequence[int] | None, view: TensorViewType) -> tuple[int, ...]:
    if dim_map is not None:
        return tuple(dim_map)
    return tuple(range(view.rank)) if isinstance(view, TensorViewType) else ()


def _check_tile_shape(what: str, shape: tuple[int, ...]) -> None:
    for side in shape:
        if not isinstance(side, int) or side < 1 or side & (side - 1):
            raise TypeRuleError(
                f"every side of {what} is a power of two, got shape {shape}; "
                "round the side up and mask or pad what is too much"
            )
    if _product(shape) > MAX_TILE_ELEMENTS:
        raise TypeRuleError(
            f"{what} holds at most {MAX_TILE_ELEMENTS} elements, shape {shape} has {_product(shape)}; "
            "use a smaller tile and a loop over tiles"
        )


def _check_view(
    what: str, tile_shape: tuple[int, ...], view: TensorViewType, padding: PaddingValue | None
) -> None:
    if not isinstance(view, TensorViewType):
        raise TypeRuleError(f"{what} is made from a tensor_view, got {view}")
    _check_tile_shape(f"{what}'s tile", tile_shape)
    if not tile_shape or len(tile_shape) != view.rank:
        raise TypeRuleError(f"{what}'s tile {tile_shape} needs the rank of {view}, which is at least 1")
    if padding is not None and padding is not PaddingValue.ZERO and not view.element.is_float:
        raise TypeRuleError(f"padding {padding.name} is for float elements, {view} holds {view.element}")


def _check_dim_map(what: str, dim_map: tuple[int, ...], view: TensorViewType) -> None:
    if sorted(dim_map) != list(range(view.rank)):
        raise TypeRuleError(f"{what}'s dim_map lists every axis of {view} once, got {dim_map}")
