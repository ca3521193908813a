"""Memory: tensors, views of them in tiles, loads and stores, and tokens that order them.

Loads and stores have no order of their own: one comes after another only if its token derives from the
other's. The front end leaves tokens out; the pass `order-memory` adds them. The interpreter runs in
program order and needs none.
"""

from __future__ import annotations

from ._op import Op, Operand, Operands, OptionalOperand, Result, Results, Value
from ._types import (
    PADDINGS,
    PointerType,
    TensorType,
    TileType,
    TokenType,
    Type,
    ViewType,
    tile_shape_problem,
)

__all__ = [
    "IndexSpaceOp",
    "JoinTokensOp",
    "LoadOp",
    "MakeTensorOp",
    "MakeTokenOp",
    "MakeViewOp",
    "StoreOp",
]


def _integer_scalars(op: Op, what: str, values: Operands) -> None:
    """Check that `values` are integer scalars of one type."""
    types: set[Type] = {v.type for v in values}
    for kind in types:
        if not isinstance(kind, TileType) or kind.shape or not kind.number.is_integer:
            raise op.fail(f"{what} are integer scalars, got {kind}")
    if len(types) > 1:
        raise op.fail(f"{what} have one type, got {', '.join(sorted(map(str, types)))}")


class MakeTensorOp(Op, mnemonic="make_tensor"):
    """Memory from a base address; one operand per unknown dimension and stride of the type, in order."""

    base: Operand
    shape: Operands
    strides: Operands
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
    """A tensor cut into tiles."""

    tensor: Operand
    result: Result

    def verify(self) -> None:
        view = self.result.type
        if not isinstance(view, ViewType) or view.tensor != self.tensor.type:
            raise self.fail(f"the result is a view of {self.tensor.type}, got {view}")
        rank = view.tensor.rank
        if len(view.tile_shape) != rank or sorted(view.order) != list(range(rank)):
            raise self.fail(f"tile shape and order have the tensor's rank {rank}")
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


class LoadOp(_TokenOp, mnemonic="load", effect="read"):
    """The tile of a view at an index; elements past the tensor's edge are the view's padding.

    `latency` (1 to 10) and `allow_tma` are hints; they change nothing but speed.
    """

    view: Operand
    index: Operands
    token: OptionalOperand = None
    latency: int | None = None
    allow_tma: bool | None = None
    result: Result
    result_token: Result

    def verify(self) -> None:
        _verify_access(self, self.view, self.index, self.result)
        self.check_tokens(self.token, self.result_token)


class StoreOp(_TokenOp, mnemonic="store", effect="write"):
    """Write a tile to a view at an index; elements past the tensor's edge are dropped."""

    view: Operand
    tile: Operand
    index: Operands
    token: OptionalOperand = None
    latency: int | None = None
    allow_tma: bool | None = None
    result_token: Result

    def verify(self) -> None:
        _verify_access(self, self.view, self.index, self.tile)
        self.check_tokens(self.token, self.result_token)


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


def _verify_access(op: LoadOp | StoreOp, view: Operand, index: Operands, tile: Operand) -> None:
    if not isinstance(view.type, ViewType):
        raise op.fail(f"takes a view, got {view.type}")
    if len(index) != len(view.type.tile_shape):
        raise op.fail(f"the index has one number per axis of {view.type}, got {len(index)}")
    _integer_scalars(op, "index numbers", index)
    if tile.type != view.type.tile:
        raise op.fail(f"the tile is {view.type.tile}, got {tile.type}")
    if op.latency is not None and not 1 <= op.latency <= 10:
        raise op.fail(f"latency is 1 to 10, got {op.latency}")
