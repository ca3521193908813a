"""Tensors, loads and stores."""

from __future__ import annotations

from ..dtypes import bool_
from ..ir import (
    IndexSpaceOp,
    JoinTokensOp,
    LoadOp,
    MakeTensorOp,
    MakeTokenOp,
    MakeViewOp,
    StoreOp,
    TensorType,
    TileType,
    ViewType,
)
from ..tileir import ComparisonPredicate, Hints, PaddingValue, Signedness, types
from ._lowerer import Lowerer, element_type, lowers, stored_element_type

__all__: list[str] = []

_PADDING = {
    "zero": PaddingValue.ZERO,
    "neg_zero": PaddingValue.NEG_ZERO,
    "nan": PaddingValue.NAN,
    "pos_inf": PaddingValue.POS_INF,
    "neg_inf": PaddingValue.NEG_INF,
}


def _tensor_type(b: Lowerer, kind: TensorType) -> types.TensorViewType:
    return types.tensor_view(stored_element_type(kind.dtype), kind.shape, kind.strides)


@lowers(MakeTensorOp)
def _make_tensor(b: Lowerer, op: MakeTensorOp) -> None:
    kind = op.result.type
    assert isinstance(kind, TensorType)
    b[op.result] = b.fn.make_tensor_view(
        _tensor_type(b, kind), b[op.base], b.all(op.shape), b.all(op.strides)
    )


@lowers(MakeViewOp)
def _make_view(b: Lowerer, op: MakeViewOp) -> None:
    view = op.result.type
    assert isinstance(view, ViewType)
    kind = types.partition_view(
        view.tile_shape, _tensor_type(b, view.tensor), view.order, _PADDING[view.padding]
    )
    b[op.result] = b.fn.make_view(kind, b[op.tensor])


@lowers(IndexSpaceOp)
def _index_space(b: Lowerer, op: IndexSpaceOp) -> None:
    kind = op.counts[0].type
    assert isinstance(kind, TileType)
    b.set_all(op.counts, b.fn.index_space_shape(b[op.view], element_type(kind.number)))


def _hints(op: LoadOp | StoreOp) -> Hints | None:
    hints: dict[str, int | bool] = {}
    if op.latency is not None:
        hints["latency"] = op.latency
    if op.allow_tma is not None:
        hints["allow_tma"] = op.allow_tma
    return {"default": hints} if hints else None


@lowers(LoadOp)
def _load(b: Lowerer, op: LoadOp) -> None:
    token = None if op.token is None else b[op.token]
    tile, after = b.fn.load_view(b[op.view], b.all(op.index), token, hints=_hints(op))
    if isinstance(op.result.type, TileType) and op.result.type.dtype is bool_:
        zero = b.fn.constant(tile.tile_type, 0)
        tile = b.fn.cmpi(ComparisonPredicate.NOT_EQUAL, tile, zero)
    b[op.result], b[op.result_token] = tile, after


@lowers(StoreOp)
def _store(b: Lowerer, op: StoreOp) -> None:
    token = None if op.token is None else b[op.token]
    tile = b[op.tile]
    if isinstance(op.tile.type, TileType) and op.tile.type.dtype is bool_:
        tile = b.fn.exti(tile, types.i8, Signedness.UNSIGNED)
    b[op.result_token] = b.fn.store_view(tile, b[op.view], b.all(op.index), token, hints=_hints(op))


@lowers(MakeTokenOp)
def _make_token(b: Lowerer, op: MakeTokenOp) -> None:
    b[op.result] = b.fn.make_token()


@lowers(JoinTokensOp)
def _join_tokens(b: Lowerer, op: JoinTokensOp) -> None:
    b[op.result] = b.fn.join_tokens(*b.all(op.tokens))
