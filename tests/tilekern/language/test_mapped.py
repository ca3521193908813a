"""Mapped partitions: walks over tiles by a fixed number of blocks."""

from collections import Counter

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


def zeros(*shape, dtype="i4"):
    return ca.zeros(shape, dtype).sync()


@tk.kernel
def visit(out, counts):
    """Adds one to each tile, and writes down which block came when."""
    turn = 0
    for index in out.iter_indices():
        turn = turn + 1
        out.store(out.load(index) + 1 + 100 * tk.bid(0), index)
    tk.store(counts, tk.bid(0), turn)


@pytest.mark.parametrize(
    ("shape", "tile", "map_shape"),
    [
        ((37,), (4,), (3,)),
        ((20, 33), (4, 8), (1, 1)),
        ((20, 33), (4, 8), (2, 3)),
        ((20, 33), (4, 8), (100, 1)),
        ((5, 9, 7), (2, 2, 4), (2, 3, 1)),
        ((5, 9, 7), (2, 2, 4), (1, 2, 2)),
    ],
)
@pytest.mark.parametrize("blocks", [1, 4, 7])
def test_every_tile_is_visited_once(device, shape, tile, map_shape, blocks):
    out, counts = zeros(*shape), zeros(blocks)
    part = out.partition(tile)
    visit(part.map(map_shape, blocks), ca.mut(counts)).sync()
    result = out.to_host().sync()
    assert (result % 100 == 1).all()
    total = int(np.prod(part.grid))
    assert sorted(counts.to_host().sync()) == sorted([len(range(b, total, blocks)) for b in range(blocks)])


@tk.kernel
def order(out: tk.Tiles2D, places: tk.Tensor2D):
    turn = 0
    for index in out.iter_indices():
        m, n = index.components()
        tk.store(places, (turn, 0), m)
        tk.store(places, (turn, 1), n)
        out.store(turn, index)
        turn = turn + 1


def test_walk_goes_group_by_group(device):
    """Groups of 2 x 2 in row-major order, those at the edge smaller; written out by hand for 3 x 5 tiles."""
    out, places = zeros(3, 5), zeros(15, 2)
    order(out.partition((1, 1)).map((2, 2), 1), ca.mut(places)).sync()
    expected = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (0, 4), (1, 4)]
    expected += [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]
    assert [tuple(p) for p in places.to_host().sync().tolist()] == expected


@tk.kernel
def two(a, b, x):
    for index in a.iter_indices_with(b):
        m, n = index.components()
        t = tk.load(x, (m, n), a.shape)
        a.store(t, index)
        b.store(-t, index)


def test_one_walk_over_two_outputs(device):
    x = ca.from_host(np.arange(63, dtype="i4").reshape(7, 9)).sync()
    a, b = zeros(7, 9), zeros(7, 9)
    two(a.partition((2, 4)).map((2, 1), 3), b.partition((2, 4)).map((2, 1), 3), x).sync()
    assert np.array_equal(a.to_host().sync(), x.to_host().sync())
    assert np.array_equal(b.to_host().sync(), -x.to_host().sync())
    with pytest.raises(
        ca.LaunchError, match="a and b are walked together, but have 4 and 5 tiles along axis 0"
    ):
        two(a.partition((2, 4)).map((2, 1), 3), zeros(9, 9).partition((2, 4)).map((2, 1), 3), x).sync()
    with pytest.raises(tk.KernelValueError, match="a has map shape"):
        two(a.partition((2, 4)).map((2, 1), 3), b.partition((2, 4)).map((1, 1), 3), x).sync()


@tk.kernel
def boxes(out, first, count):
    for _ in range(2):
        for index in out.iter_indices_within((first, count), (1, -1)):
            out.store(out.load(index) + 1, index)


@pytest.mark.parametrize(("first", "count"), [(0, 2), (1, 2), (2, 9), (1, 0)])
def test_walk_within_a_box(device, first, count):
    out = zeros(8, 12)
    boxes(out.partition((2, 4)).map((1, 2), 3), first, count).sync()
    expected = np.zeros((8, 12))
    expected[2 * first : 2 * (first + count), 4:] = 2
    assert np.array_equal(out.to_host().sync(), expected)


@tk.kernel
def rows(out, x):
    for index in out.iter_indices():
        (m,) = index.components()
        for n in range(tk.num_tiles(x, 1, out.shape)):
            out.store(tk.load(x, (m, n), out.shape) * 2, index.at(n))


def test_operation_that_yields_a_partition_is_mapped(device):
    x = ca.from_host(np.arange(70, dtype="i4").reshape(7, 10))
    op = rows(ca.empty((7, 10), "i4").partition((2, 4)).map_partition((1, 0), 2), x)
    assert np.array_equal(op.first().unpartition().to_host().sync(), 2 * np.arange(70).reshape(7, 10))


def test_axis_that_is_not_walked(device):
    x = ca.from_host(np.arange(70, dtype="i4").reshape(7, 10)).sync()
    out = zeros(7, 10)
    rows(out.partition((2, 4)).map((1, 0), 2), x).sync()
    assert np.array_equal(out.to_host().sync(), 2 * x.to_host().sync())


def test_place_along_an_axis_that_is_not_walked_is_checked(host):
    x = zeros(7, 20)
    with pytest.raises(tk.KernelIndexError):
        rows(zeros(7, 10).partition((2, 4)).map((1, 0), 2), x).sync()


def test_stores_through_a_walk_need_no_check():
    part = tk.meta((7, 10), "i4").partition((2, 4)).map((1, 1), 2)
    report = two.check_report(part, part, tk.meta((7, 10), "i4"))
    assert Counter((a.access, a.rung) for a in report.accesses) == {
        ("store", "proven"): 2,
        ("load", "variant"): 2,
        ("store", "variant"): 2,
    }
    assert not report.in_kernel


@tk.kernel
def stores_by_hand(out):
    out.store(1, (0, 0))


@tk.kernel
def stores_without_index(out: tk.Tiles2D):
    tk.store(out, (0, 0), 1)


@tk.kernel
def stores_elsewhere(out, other):
    for index in out.iter_indices():
        out.store(1, index)
        other.store(1, index)


@tk.kernel
def keeps_an_index(out):
    last = 0
    for index in out.iter_indices():
        last = index
    out.store(1, last)


@tk.kernel
def owns_none(out):
    out.store(tk.load_like(out, out), 0)


@tk.kernel
def names_no_place(out):
    for index in out.iter_indices():
        out.store(1, index)


MAPPED = tk.meta((8, 8), "i4").partition((4, 4)).map((1, 1), 2)


@pytest.mark.parametrize(
    ("kernel", "args", "message"),
    [
        (stores_by_hand, (MAPPED,), "takes an index that a walk gave"),
        (stores_without_index, (MAPPED,), "is a partition"),
        (stores_elsewhere, (MAPPED, MAPPED), "this index is of a walk over out; to use it for other, too"),
        (keeps_an_index, (MAPPED,), "last"),
        (owns_none, (MAPPED,), "is a mapped partition, of which a block walks several tiles"),
        (
            names_no_place,
            (tk.meta((8, 8), "i4").partition((4, 4)).map((1, 0), 2),),
            "say which tile along them",
        ),
    ],
)
def test_what_could_race_cannot_be_written(kernel, args, message):
    with pytest.raises(tk.KernelError, match=message):
        kernel.ir(*args)


def test_arguments_of_the_other_kind_are_refused():
    plain = tk.meta((8, 8), "i4").partition((4, 4))

    @tk.kernel
    def owned(out: tk.Tile2D):
        out.store(1)

    with pytest.raises(tk.KernelArgumentError, match=r"got a mapped partition; declare it tk.Tiles2D"):
        owned.ir(MAPPED)
    with pytest.raises(tk.KernelArgumentError, match=r"give it as tensor.partition\(tile_shape\).map"):
        order.ir(plain, tk.meta((8, 8), "i4").mut())


def test_partitions_of_a_call_have_one_number_of_blocks(device):
    a, b = zeros(8, 8), zeros(8, 8)
    with pytest.raises(ca.LaunchError, match="map all partitions of a call to the same number"):
        two(a.partition((2, 4)).map((2, 1), 3), b.partition((2, 4)).map((2, 1), 2), zeros(8, 8)).sync()
    with pytest.raises(ca.AliasError):
        two(a.partition((2, 4)).map((2, 1), 3), a.partition((2, 4)).map((2, 1), 3), zeros(8, 8)).sync()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_walks_are_assembled(assembles, arch):
    for kernel, args in (
        (rows, (tk.meta((7, 10), "i4").partition((2, 4)).map((1, 0), 2), tk.meta((7, 10), "i4"))),
        (boxes, (tk.meta((8, 8), "i4").partition((4, 4)).map((2, 2), 2), 1, 2)),
    ):
        assembles(kernel.bytecode(*args), arch)


@tk.kernel
def scaled(out, x):
    for index in out.iter_indices():
        out.store(tk.load(x, index.components(), (16, 16)) * 2, index)


def test_turns_of_a_walk_have_no_order():
    """Their tiles differ: no store waits for another one, and all may take the tensor memory accelerator."""
    x = tk.meta((64, 64), "f4")
    lines = scaled.tile_ir(x.partition((16, 16)).map((2, 2), 4), x).splitlines()
    (store,) = [line for line in lines if "store_view_tko" in line]
    assert "], _)" in store
    assert "allow_tma" not in store


@tk.kernel
def mark_a_box(out: tk.Tiles1D, first: int, count: int):
    for index in out.iter_indices_within((first, count)):
        out.store(tk.ones((1,), tk.int32), index)


@pytest.mark.parametrize(
    ("first", "count", "marked"),
    [
        (2, -1, range(2, 8)),
        (2, 3, range(2, 5)),
        (2, 0, ()),
        (-1, 3, range(2)),
        (2, 2**31 - 1, range(2, 8)),
        (2, 2**32 + 1, range(2, 8)),
        (2, 2**63 - 1, range(2, 8)),
        (2**32, 3, ()),
        (2**31 - 1, -1, ()),
    ],
)
def test_box_by_numbers_that_come_at_run_time(device, first, count, marked):
    out = ca.zeros(8, "i4").sync()
    mark_a_box(out.partition(1).map(1, 3), first, count).sync()
    assert np.flatnonzero(out.to_host().sync()).tolist() == list(marked)


def test_box_of_less_than_no_tiles_is_refused_at_run_time_too(host):
    out = ca.zeros(8, "i4").sync()
    with pytest.raises(tk.KernelAssertionError, match="a box has tiles, or -1 for the rest"):
        mark_a_box(out.partition(1).map(1, 3), 2, -2).sync()


def test_tile_number_beyond_int32_is_none(host):
    @tk.kernel
    def kernel(out: tk.Tiles2D, k: int):
        for index in out.iter_indices():
            out.store(tk.ones((1, 1), tk.int32), index.at(k))

    out = ca.zeros((2, 3), "i4").sync()
    kernel(out.partition((1, 1)).map((1, 0), 2), 1).sync()
    assert out.to_host().sync().tolist() == [[0, 1, 0], [0, 1, 0]]
    with pytest.raises(tk.KernelIndexError, match="4294967297"):
        kernel(out.partition((1, 1)).map((1, 0), 2), 2**32 + 1).sync()
