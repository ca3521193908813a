"""Memory: tensors, views of them in tiles, loads and stores, and tokens that order them.

Loads and stores have no order of their own: one comes after another only if its token derives from the
other's. The front end leaves tokens out; the pass `order-memory` adds them. The interpreter runs in
program order and needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ._op import Op, Operand, Operands, OptionalOperand, Result, Results, Value
from ._types import (
    PADDINGS,
    PointerType,
    SparseViewType,
    TensorType,
    TileType,
    TokenType,
    Type,
    ViewType,
    tile_shape_problem,
)

__all__ = [
    "ATOMIC_ORDERINGS",
    "LOAD_ORDERINGS",
    "SCOPES",
    "STORE_ORDERINGS",
    "IndexSpaceOp",
    "JoinTokensOp",
    "LoadOp",
    "LoadSparseOp",
    "MakeTensorOp",
    "MakeTokenOp",
    "MakeViewOp",
    "MemoryOp",
    "StoreOp",
    "StoreSparseOp",
]

LOAD_ORDERINGS = ("weak", "relaxed", "acquire")
STORE_ORDERINGS = ("weak", "relaxed", "release")
ATOMIC_ORDERINGS = ("relaxed", "acquire", "release", "acq_rel")
"""How an access is ordered with those of other blocks; "weak" promises that none conflicts."""

SCOPES = ("block", "device", "sys")
"""Whom an access that is not weak is ordered with."""


def _integer_scalars(op: Op, what: str, values: Operands) -> None:
    """Check that `values` are integer scalars of one type."""
    types: set[Type] = {v.type for v in values}
    for kind in types:
        if not isinstance(kind, TileType) or kind.shape or not kind.number.is_integer:
            raise op.fail(f"{what} are integer scalars, got {kind}")
    if len(types) > 1:
        raise op.fail(f"{what} have one type, got {', '.join(sorted(map(str, types)))}")


class MakeTensorOp(Op, mnemonic="make_tensor"):
    """Memory from a base address; one operand per unknown dimension and stride of the type, in order.

    `overlapping`: two indices may be of one element.
    """

    base: Operand
    shape: Operands
    strides: Operands
    overlapping: bool = False
    result: Result

    def verify(self) -> None:
        kind = self.result.type
        if not isinstance(kind, TensorType):
            raise self.fail(f"the result is a tensor, got {kind}")
        if self.base.type != TileType(PointerType(kind.dtype)):
            raise self.fail(f"the base is ptr<{kind.dtype}>, got {self.base.type}")
        if len(kind.shape) != len(kind.strides) or not kind.shape:
            raise self.fail(f"a tensor has rank 1 or more and a stride per dimension, got {kind}")
        if any(n is not None and n < 1 for n in (*kind.shape, *kind.strides)):
            raise self.fail("known dimensions and strides are at least 1")
        for what, values, known in (
            ("dimensions", self.shape, kind.shape),
            ("strides", self.strides, kind.strides),
        ):
            if len(values) != known.count(None):
                raise self.fail(f"{known.count(None)} {what} are unknown, got {len(values)} operands")
            _integer_scalars(self, what, values)


class MakeViewOp(Op, mnemonic="make_view"):
    """A tensor cut into tiles, or with the rows of one axis to be picked."""

    tensor: Operand
    result: Result

    def verify(self) -> None:
        view = self.result.type
        if not isinstance(view, ViewType | SparseViewType) or view.tensor != self.tensor.type:
            raise self.fail(f"the result is a view of {self.tensor.type}, got {view}")
        rank = view.tensor.rank
        if len(view.tile_shape) != rank:
            raise self.fail(f"the tile shape has the tensor's rank {rank}")
        if isinstance(view, SparseViewType):
            if not 0 <= view.axis < rank:
                raise self.fail(f"no axis {view.axis} in a tensor of rank {rank}")
        elif sorted(view.order) != list(range(rank)):
            raise self.fail(f"the order has the tensor's rank {rank} and names every axis once")
        elif view.steps and (len(view.steps) != rank or min(view.steps) < 1):
            raise self.fail(f"there is a step of 1 or more for each of {rank} axes, got {view.steps}")
        if problem := tile_shape_problem(view.tile_shape):
            raise self.fail(problem)
        if view.padding not in PADDINGS or (view.padding != "zero" and not view.tensor.dtype.is_float):
            raise self.fail(f"no padding {view.padding} for {view.tensor.dtype}")


class IndexSpaceOp(Op, mnemonic="index_space"):
    """The number of tiles of a view along each axis, the partial one at the edge included."""

    view: Operand
    counts: Results

    def verify(self) -> None:
        if not isinstance(self.view.type, ViewType):
            raise self.fail(f"takes a view, got {self.view.type}")
        if len(self.counts) != len(self.view.type.tile_shape):
            raise self.fail("gives one count per axis")
        _integer_scalars(self, "counts", self.counts)


class _TokenOp(Op):
    def check_tokens(self, *values: Value | None) -> None:
        if any(v is not None and not isinstance(v.type, TokenType) for v in values):
            raise self.fail("tokens have type token")


class MemoryOp(_TokenOp):
    """Base of what reads or writes memory: takes a token or none, and gives one.

    Attributes:
        accessed: the view, or the pointers, it goes through.
        ordering, scope: see `LOAD_ORDERINGS` and `SCOPES`; a weak access has no scope.
    """

    through: ClassVar[str] = "view"
    orderings: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:  # fields of the subclasses, in their own order
        token: OptionalOperand
        ordering: str
        scope: str | None
        result_token: Result

    @property
    def accessed(self) -> Value:
        value: Value = getattr(self, self.through)
        return value

    @property
    def acquires(self) -> bool:
        """True when what comes after it must not be seen before it, whatever it accesses."""
        return self.ordering in ("acquire", "acq_rel")

    @property
    def releases(self) -> bool:
        """True when what comes before it must be seen first, whatever it accesses."""
        return self.ordering in ("release", "acq_rel")

    def check_order(self) -> None:
        """Check tokens, ordering and scope."""
        self.check_tokens(self.token, self.result_token)
        if self.ordering not in self.orderings:
            raise self.fail(f"ordering is one of {', '.join(self.orderings)}, got {self.ordering}")
        if (self.scope is None) != (self.ordering == "weak"):
            raise self.fail(
                f"a weak access has no scope and others have one, got {self.ordering}, {self.scope}"
            )
        if self.scope is not None and self.scope not in SCOPES:
            raise self.fail(f"scope is one of {', '.join(SCOPES)}, got {self.scope}")

    def check_latency(self, latency: int | None) -> None:
        """Check the hint of a load or store."""
        if latency is not None and not 1 <= latency <= 10:
            raise self.fail(f"latency is 1 to 10, got {latency}")


class LoadOp(MemoryOp, mnemonic="load", effect="read"):
    """The tile of a view at an index; elements past the tensor's edge are the view's padding.

    `contained` promises that the tile lies in the tensor. `latency` (1 to 10) and `allow_tma` are hints; they
    change nothing but speed.
    """

    orderings = LOAD_ORDERINGS
    view: Operand
    index: Operands
    token: OptionalOperand = None
    latency: int | None = None
    allow_tma: bool | None = None
    ordering: str = "weak"
    scope: str | None = None
    contained: bool = False
    result: Result
    result_token: Result

    def verify(self) -> None:
        verify_access(self, self.index, self.result)
        self.check_latency(self.latency)
        self.check_order()


class StoreOp(MemoryOp, mnemonic="store", effect="write"):
    """Write a tile to a view at an index; elements past the tensor's edge are dropped."""

    orderings = STORE_ORDERINGS
    view: Operand
    tile: Operand
    index: Operands
    token: OptionalOperand = None
    latency: int | None = None
    allow_tma: bool | None = None
    ordering: str = "weak"
    scope: str | None = None
    contained: bool = False
    result_token: Result

    def verify(self) -> None:
        verify_access(self, self.index, self.tile)
        self.check_latency(self.latency)
        self.check_order()


class LoadSparseOp(MemoryOp, mnemonic="load_sparse", effect="read"):
    """Rows of a sparse view; along the other axes the window that starts at an element.

    The index has the row numbers, a tile of rank 1, at the view's axis, and elsewhere scalars. Rows that are
    not in the tensor, and elements past its edge, are the view's padding.
    """

    orderings = LOAD_ORDERINGS
    view: Operand
    index: Operands
    token: OptionalOperand = None
    latency: int | None = None
    allow_tma: bool | None = None
    ordering: str = "weak"
    scope: str | None = None
    result: Result
    result_token: Result

    def verify(self) -> None:
        _verify_sparse(self, self.index, self.result)
        self.check_latency(self.latency)
        self.check_order()


class StoreSparseOp(MemoryOp, mnemonic="store_sparse", effect="write"):
    """Write rows of a sparse view, see `load_sparse`; what lies outside of the tensor is dropped."""

    orderings = STORE_ORDERINGS
    view: Operand
    tile: Operand
    index: Operands
    token: OptionalOperand = None
    latency: int | None = None
    allow_tma: bool | None = None
    ordering: str = "weak"
    scope: str | None = None
    result_token: Result

    def verify(self) -> None:
        _verify_sparse(self, self.index, self.tile)
        self.check_latency(self.latency)
        self.check_order()


class MakeTokenOp(_TokenOp, mnemonic="make_token"):
    """A token that comes after nothing."""

    result: Result

    def verify(self) -> None:
        self.check_tokens(self.result)


class JoinTokensOp(_TokenOp, mnemonic="join_tokens"):
    """A token that comes after two or more others."""

    tokens: Operands
    result: Result

    def verify(self) -> None:
        self.check_tokens(*self.tokens, self.result)
        if len(self.tokens) < 2:
            raise self.fail(f"joins two or more tokens, got {len(self.tokens)}")


def verify_access(op: MemoryOp, index: Operands, tile: Operand) -> None:
    view = op.accessed.type
    if not isinstance(view, ViewType):
        raise op.fail(f"takes a view, got {view}")
    if len(index) != len(view.tile_shape):
        raise op.fail(f"the index has one number per axis of {view}, got {len(index)}")
    _integer_scalars(op, "index numbers", index)
    if tile.type != view.tile:
        raise op.fail(f"the tile is {view.tile}, got {tile.type}")


def _verify_sparse(op: MemoryOp, index: Operands, tile: Operand) -> None:
    view = op.accessed.type
    if not isinstance(view, SparseViewType):
        raise op.fail(f"takes a sparse view, got {view}")
    if len(index) != len(view.tile_shape):
        raise op.fail(f"the index has one part per axis of {view}, got {len(index)}")
    rows = index[view.axis].type
    if (
        not isinstance(rows, TileType)
        or rows.shape != (view.tile_shape[view.axis],)
        or not rows.number.is_integer
    ):
        raise op.fail(f"row numbers are {view.tile_shape[view.axis]} integers, got {rows}")
    _integer_scalars(op, "starts of windows", tuple([v for axis, v in enumerate(index) if axis != view.axis]))
    if tile.type != view.tile:
        raise op.fail(f"the tile is {view.tile}, got {tile.type}")
