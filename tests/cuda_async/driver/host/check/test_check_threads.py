"""The checking mode inside of PTX kernels: threads, warps, blocks, barriers, atomics, and what a launch names."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver import ArgumentBlock
from cuda_async.driver.host import HostDriver
from cuda_async.driver.host.check import process_checker
from cuda_async.errors import CheckError
from cuda_async.testing import check_reports, checked_device

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"

KERNEL = (
    HEAD
    + """
.visible .entry f(.param .u64 p)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<10>;
    .reg .b64 %d<8>;
    .shared .align 16 .b32 s[256];
    ld.param.u64 %d1, [p];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %d2, %r4, 4;
    add.s64 %d3, %d1, %d2;      // element of this thread
    mov.u32 %r5, s;
    shl.b32 %r6, %r1, 2;
    add.s32 %r7, %r5, %r6;      // the same in shared memory
    xor.b32 %r8, %r6, {swap};
    add.s32 %r8, %r5, %r8;      // that of another thread
    mov.u32 %r9, 1;
    {body}
    ret;
}}
"""
)


@pytest.fixture(autouse=True)
def no_findings():
    process_checker().take_reports()
    yield
    process_checker().take_reports()


def run(body: str, *, grid: int = 1, block: int = 128, swap: int = 256, memory: np.ndarray | None = None):
    """Findings of a kernel over an array of zeros."""
    driver = HostDriver(stepped=True, memory_bytes=1 << 20, check="collect")
    try:
        stream = driver.stream_create()
        size = 4 * max(grid * block, 1024)
        address = driver.memory_alloc_async(size, stream)
        driver.fill_async(address, b"\0", size, stream)
        module = driver.module_load(KERNEL.format(body=body, swap=swap).encode(), "test.ptx")
        function = driver.module_function(module, "f")
        arguments = ArgumentBlock(driver.function_info(function).parameters)
        arguments.buffer[:8] = address.to_bytes(8, "little")
        driver.launch(function, (grid, 1, 1), (block, 1, 1), 0, stream, arguments)
        driver.advance_all()
        driver.stream_synchronize(stream)
        return [report for report in process_checker().take_reports() if report.kind != "leak"]
    finally:
        driver.close()


EXCHANGE = "st.shared.u32 [%r7], %r1;\n {between}\n ld.shared.u32 %r9, [%r8];\n st.global.u32 [%d3], %r9;"


def test_exchange_over_a_barrier():
    assert run(EXCHANGE.format(between="bar.sync 0;"), grid=3) == []


def test_missing_barrier_names_both_places():
    (report,) = run(EXCHANGE.format(between=""), grid=3)
    assert report.kind == "race"
    assert report.what.startswith("nothing orders two threads of one block: byte")
    assert "ld.shared.u32" in report.second.place
    assert "st.shared.u32" in report.first.place
    assert report.first.thread != report.second.thread
    assert report.first.block == report.second.block
    where = re.search(r"byte (\d+) of the shared memory of block (.*)$", report.what)
    assert where[2] == str(report.second.block)
    assert int(where[1]) < 1024
    assert "__syncthreads" in report.advice


@pytest.mark.parametrize("block", [1, 128])
def test_blocks_are_named_where_threads_of_several_race(block):
    """Also where so many have accessed it that none is known."""
    reports = run("ld.global.u32 %r9, [%d1];\n st.global.u32 [%d1], %r9;", grid=3, block=block)
    assert reports
    for report in reports:
        assert report.what.startswith("nothing orders two blocks of one launch: byte 0")
        assert report.advice.startswith("blocks run in any order")


@pytest.mark.parametrize(("swap", "kinds"), [(4, []), (256, ["race"])], ids=["in the warp", "beyond it"])
def test_warp_barrier_orders_its_warp(swap, kinds):
    reports = run(EXCHANGE.format(between="bar.warp.sync 0xffffffff;"), swap=swap)
    assert [report.kind for report in reports] == kinds


def test_shuffle_orders_its_warp():
    shuffle = "shfl.sync.bfly.b32 %r9, %r9, 1, 0x1f, 0xffffffff;"
    assert run(EXCHANGE.format(between=shuffle), swap=4) == []


def test_barrier_that_only_half_of_the_block_needs():
    """A named barrier of 64 threads orders those."""
    body = "setp.ge.u32 %p1, %r1, 64;\n @%p1 bra END;\n" + EXCHANGE.format(between="bar.sync 1, 64;")
    assert run(body + "\nEND:", swap=128) == []


def test_write_after_read_needs_a_barrier():
    body = "st.shared.u32 [%r7], %r1;\n bar.sync 0;\n ld.shared.u32 %r9, [%r8];\n {between}\n st.shared.u32 [%r7], %r9;"
    assert run(body.format(between="bar.sync 0;")) == []
    (report,) = run(body.format(between=""))
    assert (report.first.access, report.second.access) == ("read", "write")


def test_shared_memory_that_was_never_written():
    (report,) = run("ld.shared.u32 %r9, [%r7];\n st.global.u32 [%d3], %r9;")
    assert report.kind == "never written"
    assert report.what.endswith("byte 0 of the shared memory of block (0, 0, 0)")


def test_all_threads_write_one_place():
    body = "st.global.u32 [%d1], %r1;"
    (report,) = run(body)
    assert report.first.thread != report.second.thread


def test_all_threads_write_the_same():
    """Which of them is last makes no difference: a flag that many may set."""
    assert run("st.global.u32 [%d1], %r9;", grid=4) == []


def test_blocks_write_one_place():
    body = "mul.wide.u32 %d2, %r1, 4;\n add.s64 %d3, %d1, %d2;\n st.global.u32 [%d3], %r2;"
    (report,) = run(body, grid=4)
    assert report.first.block != report.second.block
    assert report.first.thread == report.second.thread
    assert "two launches" in report.advice


def test_blocks_read_what_others_write():
    body = "st.global.u32 [%d3], %r1;\n bar.sync 0;\n ld.global.u32 %r9, [%d1];\n st.global.u32 [%d3], %r9;"
    assert run(body, grid=1) != []  # thread 0 writes again what others read
    kinds = {report.kind for report in run(body, grid=2)}
    assert kinds == {"race"}


def test_atomics_do_not_conflict():
    assert run("red.global.add.u32 [%d1], 1;\n atom.global.add.u32 %r9, [%d1+4], 1;", grid=4) == []


def test_atomics_conflict_with_plain_accesses():
    reports = run("red.global.add.u32 [%d1], 1;\n ld.global.u32 %r9, [%d1];\n st.global.u32 [%d3+512], %r9;")
    assert any({report.first.access, report.second.access} == {"read", "update"} for report in reports)


@pytest.mark.parametrize("storer", [0, 1])
@pytest.mark.parametrize("atomic", ["red.global.add.u32 [%d1], 1;", "atom.global.exch.b32 %r9, [%d1], 1;"])
def test_atomic_conflicts_with_a_store_of_the_value_it_makes(atomic, storer):
    """In one order the sum is 1 and in the other 2; what `exch` returns is 0 or 1."""
    body = f"setp.eq.u32 %p1, %r2, {storer};\n @%p1 bra B;\n {atomic}\n ret;\n B: st.global.u32 [%d1], 1;"
    (report,) = run(body, grid=2, block=1)
    assert {report.first.access, report.second.access} == {"write", "update"}


LAST_BLOCK = """
    add.s64 %d4, %d3, 128;
    st.global.u32 [%d4], %r1;                // a result per block
    {fence}
    atom.global.inc.u32 %r9, [%d1], 100;     // one thread: how many are done
    setp.ne.u32 %p1, %r9, 7;
    @%p1 bra END;
    ld.global.u32 %r9, [%d1+128];            // the last one reads them
    ld.global.u32 %r9, [%d1+132];
    st.global.u32 [%d1+4], %r9;
END:
"""


def test_last_block_reads_behind_a_fence():
    assert run(LAST_BLOCK.format(fence="membar.gl;"), grid=8, block=1) == []
    assert {report.kind for report in run(LAST_BLOCK.format(fence=""), grid=8, block=1)} == {"race"}


def test_vectors_and_bytes_of_one_place():
    """Accesses of different sizes meet where their bytes do."""
    body = """
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra OTHER;
        st.global.v4.u32 [%d1], {%r1, %r1, %r1, %r1};
        bra END;
    OTHER:
        setp.ne.u32 %p2, %r1, 1;
        @%p2 bra END;
        st.global.u8 [%d1+OFFSET], %r1;
    END:
    """
    assert run(body.replace("OFFSET", "16")) == []
    (report,) = run(body.replace("OFFSET", "15"))
    assert report.size_bytes == 1


# ---------------------------------------------------------------------------------- what a launch names


COPY = (
    HEAD
    + """
.visible .entry copy(.param .u64 to, .param .u64 from, .param .u32 first)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [to];
    ld.param.u64 %d2, [from];
    ld.param.u32 %r1, [first];
    mov.u32 %r2, %tid.x;
    add.s32 %r1, %r1, %r2;
    mul.wide.s32 %d3, %r1, 4;
    add.s64 %d1, %d1, %d3;
    add.s64 %d2, %d2, %d3;
    ld.global.u32 %r3, [%d2];
    st.global.u32 [%d1], %r3;
    ret;
}
"""
)


@pytest.fixture
def device():
    with ca.use_device(checked_device()) as device:
        yield device
        device.close()


@pytest.fixture
def copy():
    return ca.Module.from_ptx(COPY).function("copy")


def test_launches_that_say_what_they_use_are_clean(device, copy):
    x, y = ca.ones(64, "i4").sync(), ca.zeros(64, "i4").sync()
    for stream in (device.create_stream(), device.create_stream()):
        copy.launch(1, 64, ca.mut(y), ca.read(x), 0).sync_on(stream)
    copy.bind(1, 64, ca.mut(x), ca.read(y), 0, device=device).launch().sync()
    assert check_reports() == []


def test_write_to_what_was_passed_as_read(device, copy):
    x, y = ca.ones(64, "i4").sync(), ca.zeros(64, "i4").sync()
    with pytest.raises(CheckError, match=r"passed as read[\s\S]*st\.global") as caught:
        copy.launch(1, 64, ca.read(y), ca.read(x), 0).sync()
    assert caught.value.reports[0].kind == "read only"


def test_write_to_the_part_that_was_passed_as_read(device, copy):
    """A launch may read one part of a buffer and write another."""
    x, y = ca.ones(64, "i4").sync(), ca.zeros(128, "i4").sync()
    copy.launch(1, 64, ca.mut(y[64:]), ca.read(y[:64]), 0).sync()
    copy.launch(1, 32, ca.mut(y[:32]), ca.read(x[:32]), 0, uses=[ca.read(y[32:])]).sync()
    with pytest.raises(CheckError, match="passed as read"):
        copy.launch(1, 64, ca.mut(y[:32]), ca.read(x), 0, uses=[ca.read(y[32:])]).sync()


def test_reach_into_the_neighbouring_allocation(device, copy):
    x, y = ca.ones(64, "i4").sync(), ca.zeros(64, "i4").sync()
    other = ca.ones(4096, "i4").sync()
    first = (other._address - x._address) // 4 + 128
    with pytest.raises(CheckError, match="does not name"):
        copy.launch(1, 64, ca.mut(y), ca.read(x), first).sync()
    copy.launch(1, 64, ca.mut(y), ca.read(x), first, uses=[ca.mut(other)]).sync()


def test_arguments_that_a_node_is_given_later(device, copy):
    """What it was given before counts no more, and what it is given now does."""
    x, y, z = ca.zip(ca.ones(64, "i4"), ca.zeros(64, "i4"), ca.zeros(64, "i4")).sync()
    graph = copy.launch(1, 64, ca.mut(y), ca.read(x), 0).map(lambda _: None).graph().sync()
    graph.nodes[0].set_arguments({0: ca.read(z)})
    with pytest.raises(CheckError, match="passed as read"):
        graph.launch().sync()
    graph.nodes[0].set_arguments({0: ca.mut(z)})
    graph.launch().sync()
    neighbour = ca.ones(128, "i4").sync()
    assert neighbour._address > z._address
    graph.nodes[0].set_arguments({2: 64})  # beyond both
    with pytest.raises(CheckError, match="does not name"):
        graph.launch().sync()
    wide = ca.ones(128, "i4").sync(), ca.zeros(128, "i4").sync()
    graph.nodes[0].set_arguments({0: ca.mut(wide[1]), 1: ca.read(wide[0])})
    graph.launch().sync()


def test_memory_of_a_graph_that_is_another_tensors_before(device):
    """Nobody has written it for the second one, though the first one did."""

    def unwritten(before):
        return before.then(lambda _: ca.empty(64)).then(ca.copy).graph().sync()

    for before in (ca.value(None), ca.full(64, 1.0).then(ca.copy).map(lambda _: None)):
        with pytest.raises(CheckError, match="nothing has written"):
            unwritten(before).launch().sync()
    written = (
        ca.full(64, 1.0)
        .then(ca.copy)
        .then(lambda _: ca.empty(64))
        .then(lambda x: ca.fill(x, 2.0))
        .then(ca.copy)
    )
    graph = written.graph().sync()
    for _ in range(3):
        assert (graph.launch().to_host().sync() == 2.0).all()


def test_memory_that_is_written_in_a_body_only(device):
    """The body runs again and again, and what it wrote stays written."""
    left = ca.full(1, 3, "i4").sync()
    count = ca.Module.from_ptx(
        HEAD
        + """
.visible .entry count(.param .u64 left, .param .u64 sum)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [left];
    ld.param.u64 %d2, [sum];
    ld.global.u32 %r1, [%d1];
    add.s32 %r1, %r1, -1;
    st.global.u32 [%d1], %r1;
    st.global.u32 [%d2], %r1;
    ret;
}
"""
    ).function("count")

    def loop(x):
        return ca.while_loop(left, lambda: count.launch(1, 1, ca.mut(left), ca.mut(x))).then(
            lambda _: ca.copy(x)
        )

    graph = ca.full(64, 1.0).then(ca.copy).then(lambda _: ca.empty(1, "i4")).then(loop).graph().sync()
    assert graph.launch().to_host().sync().tolist() == [0]


ASYNC_COPY = (
    "cp.async.ca.shared.global [%r7], [%d3], 4;\n cp.async.wait_all;\n {between}\n ld.shared.u32 %r9, [%r8];"
)


@pytest.mark.parametrize("grid", [1, 3])
def test_asynchronous_copies_of_several_blocks(grid):
    """One instruction reads and writes: each is remembered as what it is."""
    assert run(ASYNC_COPY.format(between="bar.sync 0;"), grid=grid) == []
    report = run(ASYNC_COPY.format(between=""), grid=grid)[0]
    assert report.kind == "race"
    assert {report.first.access, report.second.access} == {"read", "write"}


def test_leaks_of_a_device(device):
    kept = ca.ones(64, "i4").sync()
    ca.ones(64, "i4").sync()
    (leak,) = check_reports(leaks_of=device)
    assert leak.size_bytes == kept.nbytes
    assert "test_check_threads.py" in leak.first.enqueued
