"""Partitions and what says how operands are used."""

from __future__ import annotations

import numpy as np
import pytest

import cuda_async as ca


@pytest.mark.parametrize(
    ("shape", "tile", "grid"),
    [
        ((8,), (4,), (2,)),
        ((9,), (4,), (3,)),
        ((4, 6), (2, 4), (2, 2)),
        ((5, 7, 3), (4, 4, 4), (2, 2, 1)),
        ((0, 3), (4, 3), (0, 1)),
        ((2,), (1024,), (1,)),
    ],
)
def test_grid_covers_the_tensor(empty, shape, tile, grid):
    t = empty(shape, "float32")
    p = t.partition(tile)
    assert (p.grid, p.tile_shape, p.prefix) == (grid, tile, False)
    assert p.unpartition() is t
    assert t.partition_prefix(tile).prefix


def test_tile_shape_takes_numpy_ints(empty):
    assert empty((8,), "int8").partition(np.int64(4)).tile_shape == (4,)


@pytest.mark.parametrize(
    ("shape", "tile", "message"),
    [
        ((8, 8), (4,), r"tile shape \(4,\) has 1 axes, the tensor has 2 \(8, 8\)"),
        ((2, 2, 2, 2), (1, 1, 1, 1), "partitions have 1 to 3 axes, because a grid has"),
        ((), (), "partitions have 1 to 3 axes"),
        ((8,), (0,), "empty axis; tiles have at least one element"),
        ((8,), (-1,), "cannot be negative"),
    ],
)
def test_partition_refuses(empty, shape, tile, message):
    with pytest.raises(ValueError, match=message):
        empty(shape, "int8").partition(tile)


def test_partition_refuses_what_is_no_shape(empty):
    with pytest.raises(TypeError, match="expected an integer"):
        empty((8,), "int8").partition((2.0,))


def test_partition_says_where_the_tensor_is(empty):
    part = empty((6, 4), "f4").partition((2, 2))
    for one in (part, part.map((1, 1), 2)):
        for name in ("to_host", "shape", "reshape", "dtype"):
            assert not hasattr(one, name)
            with pytest.raises(
                AttributeError, match=rf"{type(one).__name__} has no '{name}'; get .*\.unpartition\(\)"
            ):
                getattr(one, name)
        with pytest.raises(TypeError, match=r"no arithmetic.*\.unpartition\(\)"):
            one + 1


def test_mapped_partition(empty):
    t = empty((10, 10), "int8")
    m = t.partition((4, 4)).map((2, 1), 5)
    assert (m.map_shape, m.tile_blocks, m.tensor, m.unpartition()) == ((2, 1), 5, t, t)


@pytest.mark.parametrize(
    ("map_shape", "blocks", "message"),
    [
        ((2,), 1, "must have 2 axes: each at least 1"),
        ((0, 0), 1, "but not all of them"),
        ((1, 1), 0, "tile_blocks is 0; expected 1 to the number of tiles walked, 9"),
        ((1, 1), 10, "walked, 9; where sizes vary, give the smaller"),
        ((0, 1), 4, "expected 1 to the number of tiles walked, 3"),
    ],
)
def test_map_refuses(empty, map_shape, blocks, message):
    with pytest.raises(ValueError, match=message):
        empty((10, 10), "int8").partition((4, 4)).map(map_shape, blocks)


def test_prefix_partition_cannot_be_mapped(empty):
    with pytest.raises(ValueError, match="a walk covers every tile"):
        empty((10,), "int8").partition_prefix((4,)).map((1,), 1)


def test_reprs_name_the_tensor(empty):
    t = empty((10,), "int8")
    p = t.partition((4,))
    assert repr(p) == f"Partition({t!r}, tiles of (4,), grid (3,))"
    assert repr(t.partition_prefix((4,))).endswith("grid (3,), prefix)")
    assert repr(p.map((1,), 2)) == f"MappedPartition({p!r}, map (1,), 2 blocks)"
    assert repr(ca.read(t)) == f"read({t!r})"
    assert repr(ca.mut(t)) == f"mut({t!r})"


@pytest.mark.parametrize("wrap", [ca.read, ca.mut])
@pytest.mark.parametrize("thing", [np.zeros(3), 3, None], ids=["array", "int", "None"])
def test_read_and_mut_take_tensors_only(wrap, thing):
    with pytest.raises(TypeError, match=rf"{wrap.__name__}\(\) takes a Tensor, got {type(thing).__name__}"):
        wrap(thing)
