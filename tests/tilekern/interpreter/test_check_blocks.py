"""The checking mode between the blocks of tile kernels."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from cuda_async.errors import CheckError
from cuda_async.testing import check_reports, checked_device
from tilekern.errors import KernelTypeError

HEADS = 6


@pytest.fixture
def device():
    check_reports()
    with ca.use_device(checked_device()) as device:
        yield device
        device.close()
    check_reports()


@tk.kernel
def permute_heads(out, x, step: tk.Constant):
    head = tk.bid(0)
    tile = tk.load(x, (head, 0), (1, 16))
    tk.store(out, (head * step % tk.num_blocks(0), 0), tile)


@tk.kernel
def permute_loads(out, x, step: tk.Constant):
    tile = tk.load(x, (tk.bid(0) * step % tk.num_blocks(0), 0), (1, 16))
    out.store(tile)


def heads():
    return ca.from_host(np.arange(HEADS * 16, dtype=np.float32).reshape(HEADS, 16)).sync()


def test_head_permutation_that_two_blocks_write(device):
    x, out = heads(), ca.zeros((HEADS, 16)).sync()
    with pytest.raises(CheckError) as caught:
        permute_heads(ca.mut(out), x, 4).grid(HEADS).sync()
    (report,) = caught.value.reports
    assert report.kind == "race"
    assert {report.first.block, report.second.block} == {(0, 0, 0), (3, 0, 0)}
    lines = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "head * step % tk.num_blocks(0), 0), tile)" in text)
    assert report.second.place.endswith(f"test_check_blocks.py:{line}:5 (store)")
    assert report.first.place == report.second.place
    assert "permute_heads" in report.second.work
    assert "partition" in report.advice


def test_head_permutation_that_is_one(device):
    x, out = heads(), ca.zeros((HEADS, 16)).sync()
    permute_heads(ca.mut(out), x, 5).grid(HEADS).sync()
    assert check_reports() == []


def test_partitioned_head_permutation_cannot_be_written(device):
    """A block of a partition has its own tile: there is no index to get wrong."""
    x, out = heads(), ca.zeros((HEADS, 16)).sync()
    with pytest.raises(KernelTypeError, match="a block has only its own tile"):
        permute_heads(out.partition((1, 16)), x, 4).sync()
    with pytest.raises(KernelTypeError, match="out is given for reading"):
        permute_heads(out, x, 4).grid(HEADS).sync()
    permute_loads(out.partition((1, 16)), x, 4).sync()
    assert check_reports() == []


@tk.kernel
def neighbours(out, x):
    i = tk.bid(0)
    following = tk.load(x, ((i + 1) % tk.num_blocks(0),), (16,))
    tk.store(out, (i,), following)


def test_block_reads_what_another_writes(device):
    x, y = ca.ones(128).sync(), ca.zeros(128).sync()
    neighbours(ca.mut(y), x).grid(8).sync()

    @tk.kernel
    def in_place(x):
        i = tk.bid(0)
        following = tk.load(x, ((i + 1) % tk.num_blocks(0),), (16,))
        tk.store(x, (i,), following)

    with pytest.raises(CheckError) as caught:
        in_place(ca.mut(x)).grid(8).sync()
    accesses = {report.first.access + report.second.access for report in caught.value.reports}
    assert accesses <= {"readwrite", "writeread"}


@tk.kernel
def total(out, x):
    tk.atomic_add(out, (0,), tk.sum(tk.load(x, (tk.bid(0),), (16,))))


@tk.kernel
def careless_total(out, x):
    part = tk.sum(tk.load(x, (tk.bid(0),), (16,)))
    so_far = tk.load(out, (0,), (1,))
    tk.store(out, (0,), so_far + part)


def test_atomics_are_the_way_to_share(device):
    x, out = ca.ones(128).sync(), ca.zeros(1).sync()
    total(ca.mut(out), x).grid(8).sync()
    assert out.to_host().sync().tolist() == [128.0]
    with pytest.raises(CheckError, match="use atomics"):
        careless_total(ca.mut(out), x).grid(8).sync()


@tk.kernel
def last_one_adds_up(out, parts, done, x):
    i = tk.bid(0)
    tk.store(parts, (i,), tk.full((1,), tk.sum(tk.load(x, (i,), (16,))), tk.float32))
    before = tk.atomic_add(done, (0,), 1)
    if before == tk.num_blocks(0) - 1:
        tk.store(out, (0,), tk.full((1,), tk.sum(tk.load(parts, (0,), (8,))), tk.float32))


def test_last_block_reads_what_the_others_released(device):
    x = ca.ones(128).sync()
    out, parts, done = ca.zeros(1).sync(), ca.zeros(8).sync(), ca.zeros(1, "int32").sync()
    last_one_adds_up(ca.mut(out), ca.mut(parts), ca.mut(done), x).grid(8).sync()
    assert out.to_host().sync().tolist() == [128.0]


@tk.kernel
def scatter_rows(out, x, where):
    i = tk.bid(0)
    rows = tk.load(where, (i,), (4,))
    values = tk.load(x, (i,), (4,))
    tk.scatter(out, rows, values)


@pytest.mark.parametrize("twice", [False, True])
def test_scatter_meets_where_indices_do(device, twice):
    where = np.arange(32, dtype=np.int32)[::-1].copy()
    if twice:
        where[17] = where[3]
    rows, x, out = ca.from_host(where).sync(), ca.ones(32).sync(), ca.zeros(32).sync()
    launch = scatter_rows(ca.mut(out), x, rows).grid(8)
    if not twice:
        launch.sync()
        return
    with pytest.raises(CheckError) as caught:
        launch.sync()
    (report,) = caught.value.reports
    assert report.address == out._address + 4 * int(where[3])


def test_all_blocks_write_one_tile(device):
    @tk.kernel
    def constant(out):
        tk.store(out, (0,), tk.full((16,), 1.0, tk.float32))

    out = ca.zeros(16).sync()
    constant(ca.mut(out)).grid(1).sync()
    with pytest.raises(CheckError, match="two blocks of one launch"):
        constant(ca.mut(out)).grid(2).sync()


def test_tiles_of_strided_views_meet_where_they_overlap(device):
    """Columns of one matrix, written by blocks through a transposed view."""

    @tk.kernel
    def fill_rows(out):
        i = tk.bid(0)
        tk.store(out, (i, 0), tk.full((1, 8), 1.0, tk.float32))

    matrix = ca.zeros((8, 8)).sync()
    fill_rows(ca.mut(matrix.permute(1, 0))).grid(8).sync()
    fill_rows(ca.mut(matrix[:, ::2])).grid(8).sync()
    assert check_reports() == []


def test_tile_that_nobody_wrote(device):
    x, y = ca.empty(128).sync(), ca.zeros(128).sync()
    with pytest.raises(CheckError, match=r"never written[\s\S]*kernel neighbours[\s\S]*\(load\)"):
        neighbours(ca.mut(y), x).grid(8).sync()


def test_launches_from_many_tasks_are_ordered(device):
    """What cuda_async orders by itself is no finding: tensors that go from stream to stream."""

    async def step(x, y):
        await neighbours(ca.mut(y), x).grid(8)
        return await neighbours(ca.mut(x), y).grid(8)

    async def main():
        x = await ca.ones(128)
        ys = [await ca.zeros(128) for _ in range(6)]
        await asyncio.gather(*(step(x, y) for y in ys))
        return await x.to_host()

    assert asyncio.run(main()).tolist() == [1.0] * 128
    assert check_reports() == []


@pytest.mark.parametrize("is_broken", [False, True], ids=["as it is", "without waits"])
def test_wait_between_streams_that_is_left_out(device, monkeypatch, is_broken):
    """Found in one run, whichever stream is faster: nothing has to go wrong for it."""
    if is_broken:
        monkeypatch.setattr(ca.Stream, "_wait_for", lambda self, source, number: None)
    one, two = device.create_stream(), device.create_stream()
    x, y = ca.ones(128).sync(), ca.zeros(128).sync()
    neighbours(ca.mut(y), x).grid(8).sync()  # compiles: the next one is enqueued at once
    future = neighbours(ca.mut(y), x).grid(8).start(ca.SingleStream(one))
    if not is_broken:
        ca.copy(y).sync_on(two)
        future.sync()
        return
    with pytest.raises(
        CheckError, match=r"nothing orders two accesses[\s\S]*by copy[\s\S]*kernel neighbours"
    ):
        copy_and_wait(y, two, future)


def copy_and_wait(y, stream, future):
    try:
        ca.copy(y).sync_on(stream)
    finally:
        future.sync()
