"""Tensors, loads and stores."""

from __future__ import annotations

from ..dtypes import bool_
from ..ir import (
    IndexSpaceOp,
    JoinTokensOp,
    LoadOp,
    LoadSparseOp,
    MakeTensorOp,
    MakeTokenOp,
    MakeViewOp,
    MemoryOp,
    SparseViewType,
    StoreOp,
    StoreSparseOp,
    TensorType,
    TileType,
    Value,
    ViewType,
)
from ..tileir import ComparisonPredicate, Hints, MemoryOrdering, MemoryScope, PaddingValue, Signedness, types
from ..tileir import Value as TileValue
from ._lowerer import Lowerer, element_type, lowers, stored_element_type

__all__ = ["as_read", "as_stored", "hints_of", "ordering_of", "scope_of", "token_of"]

_ORDERINGS = {
    "weak": MemoryOrdering.WEAK,
    "relaxed": MemoryOrdering.RELAXED,
    "acquire": MemoryOrdering.ACQUIRE,
    "release": MemoryOrdering.RELEASE,
    "acq_rel": MemoryOrdering.ACQ_REL,
}
_SCOPES = {"block": MemoryScope.TL_BLK, "device": MemoryScope.DEVICE, "sys": MemoryScope.SYS}

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
    b.tensors[op.result] = op


@lowers(MakeViewOp)
def _make_view(b: Lowerer, op: MakeViewOp) -> None:
    view = op.result.type
    assert isinstance(view, ViewType | SparseViewType)
    tensor, padding = _tensor_type(b, view.tensor), _PADDING[view.padding]
    kind: types.ViewType
    if isinstance(view, SparseViewType):
        kind = types.gather_scatter_view(view.tile_shape, tensor, view.axis, padding)
    elif view.steps:
        kind = types.strided_view(view.tile_shape, view.steps, tensor, view.order, padding)
    else:
        kind = types.partition_view(view.tile_shape, tensor, view.order, padding)
    b[op.result] = b.fn.make_view(kind, b[op.tensor])


@lowers(IndexSpaceOp)
def _index_space(b: Lowerer, op: IndexSpaceOp) -> None:
    kind = op.counts[0].type
    assert isinstance(kind, TileType)
    b.set_all(op.counts, b.fn.index_space_shape(b[op.view], element_type(kind.number)))


# ------------------------------------------------------------------ what accesses have in common


def token_of(b: Lowerer, op: MemoryOp) -> TileValue | None:
    """The token an access comes after."""
    return None if op.token is None else b[op.token]


def ordering_of(op: MemoryOp) -> MemoryOrdering:
    """How an access is ordered with those of other blocks."""
    return _ORDERINGS[op.ordering]


def scope_of(op: MemoryOp) -> MemoryScope | None:
    """Whom it is ordered with."""
    return None if op.scope is None else _SCOPES[op.scope]


def hints_of(latency: int | None, allow_tma: bool | None = None) -> Hints | None:
    """The hints of a load or store."""
    hints: dict[str, int | bool] = {}
    if latency is not None:
        hints["latency"] = latency
    if allow_tma is not None:
        hints["allow_tma"] = allow_tma
    return {"default": hints} if hints else None


def as_read(b: Lowerer, result: Value, loaded: TileValue) -> TileValue:
    """What was loaded, as values: bools are bytes in memory."""
    assert isinstance(result.type, TileType)
    if result.type.dtype is not bool_:
        return loaded
    return b.fn.cmpi(ComparisonPredicate.NOT_EQUAL, loaded, b.fn.constant(loaded.tile_type, 0))


def as_stored(b: Lowerer, tile: Value) -> TileValue:
    """A tile as it is in memory."""
    assert isinstance(tile.type, TileType)
    if tile.type.dtype is not bool_:
        return b[tile]
    return b.fn.exti(b[tile], types.i8, Signedness.UNSIGNED)


# ------------------------------------------------------------------ through views


@lowers(LoadOp)
def _load(b: Lowerer, op: LoadOp) -> None:
    tile, b[op.result_token] = b.fn.load_view(
        b[op.view],
        b.all(op.index),
        token_of(b, op),
        ordering=ordering_of(op),
        scope=scope_of(op),
        hints=hints_of(op.latency, op.allow_tma),
        inbounds=(True,) * len(op.index) if op.contained else (),
    )
    b[op.result] = as_read(b, op.result, tile)


@lowers(StoreOp)
def _store(b: Lowerer, op: StoreOp) -> None:
    b[op.result_token] = b.fn.store_view(
        as_stored(b, op.tile),
        b[op.view],
        b.all(op.index),
        token_of(b, op),
        ordering=ordering_of(op),
        scope=scope_of(op),
        hints=hints_of(op.latency, op.allow_tma),
        inbounds=(True,) * len(op.index) if op.contained else (),
    )


@lowers(LoadSparseOp)
def _load_sparse(b: Lowerer, op: LoadSparseOp) -> None:
    tile, b[op.result_token] = b.fn.load_view(
        b[op.view],
        b.all(op.index),
        token_of(b, op),
        ordering=ordering_of(op),
        scope=scope_of(op),
        hints=hints_of(op.latency, op.allow_tma),
    )
    b[op.result] = as_read(b, op.result, tile)


@lowers(StoreSparseOp)
def _store_sparse(b: Lowerer, op: StoreSparseOp) -> None:
    b[op.result_token] = b.fn.store_view(
        as_stored(b, op.tile),
        b[op.view],
        b.all(op.index),
        token_of(b, op),
        ordering=ordering_of(op),
        scope=scope_of(op),
        hints=hints_of(op.latency, op.allow_tma),
    )


@lowers(MakeTokenOp)
def _make_token(b: Lowerer, op: MakeTokenOp) -> None:
    b[op.result] = b.fn.make_token()


@lowers(JoinTokensOp)
def _join_tokens(b: Lowerer, op: JoinTokensOp) -> None:
    b[op.result] = b.fn.join_tokens(*b.all(op.tokens))
