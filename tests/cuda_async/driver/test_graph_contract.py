"""Graphs of both drivers: every kind of node, in order, launch after launch."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest

from cuda_async.driver import ArgumentBlock
from cuda_async.driver.graph import (
    ChildNode,
    ConditionalNode,
    ConditionKind,
    ConvertNode,
    CopyNode,
    EmptyNode,
    FillNode,
    KernelNode,
    StridedCopyNode,
    leaves,
)
from cuda_async.errors import DriverError

ADD = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 x, .param .u32 amount)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r1, [amount];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd1, %rd1, %rd2;
    ld.global.u32 %r3, [%rd1];
    add.u32 %r3, %r3, %r1;
    st.global.u32 [%rd1], %r3;
    ret;
}
"""


class Lab:
    """A driver with a stream, 4 KiB of zeros on the device, and as much pinned memory."""

    def __init__(self, driver):
        self.driver = driver
        driver.bind()
        self.stream = driver.stream_create()
        self.memory = driver.memory_alloc_async(4096, self.stream)
        self.pinned = driver.pinned_alloc(4096)
        self.host = np.frombuffer((ctypes.c_ubyte * 4096).from_address(self.pinned), "u1")
        driver.fill_async(self.memory, b"\0", 4096, self.stream)
        module = driver.module_load(ADD, "add.ptx")
        self.add = driver.module_function(module, "add")
        self.parameters = driver.function_info(self.add).parameters

    def kernel(self, offset, amount, *dependencies):
        """Add `amount` to 8 words at `offset`."""
        arguments = ArgumentBlock(self.parameters)
        struct.pack_into("<QI", arguments.buffer, 0, self.memory + offset, amount)
        return KernelNode(
            dependencies=dependencies,
            name="add",
            function=self.add,
            grid=(1, 1, 1),
            block=(8, 1, 1),
            shared_bytes=0,
            arguments=arguments,
        )

    def words(self, offset, count=8, dtype="i4"):
        """What is there now."""
        size = count * np.dtype(dtype).itemsize
        self.driver.bind()
        self.driver.copy_device_to_host_async(self.pinned + 2048, self.memory + offset, size, self.stream)
        self.driver.stream_synchronize(self.stream)
        return self.host[2048 : 2048 + size].view(dtype).tolist()

    def launch(self, graph, times=1):
        self.driver.bind()
        for _ in range(times):
            self.driver.graph_launch(graph, self.stream)

    def close(self):
        self.driver.stream_synchronize(self.stream)
        self.driver.memory_free_async(self.memory, self.stream)
        self.driver.pinned_free(self.pinned)
        self.driver.stream_destroy(self.stream)


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def lab(request):
    if request.param == "host":
        from cuda_async.driver.host import open_host_driver as open_driver
    else:
        from cuda_async.driver.cuda import open_cuda_driver as open_driver
    lab = Lab(open_driver(0))
    yield lab
    lab.close()


def test_creating_runs_nothing(lab):
    graph = lab.driver.graph_create([lab.kernel(0, 5)])
    assert lab.words(0) == [0] * 8
    lab.launch(graph, 3)
    assert lab.words(0) == [15] * 8
    lab.driver.graph_destroy(graph)
    with pytest.raises(DriverError, match="HANDLE"):
        lab.launch(graph)


def test_update_that_cannot_be(lab):
    """The driver says no, and raises nothing; the graph does what it did."""
    node = lab.kernel(0, 5)
    graph = lab.driver.graph_create([node])
    node.block = (1 << 16, 1, 1)
    assert not lab.driver.graph_update(graph, node)
    lab.launch(graph)
    assert lab.words(0) == [5] * 8
    lab.driver.graph_destroy(graph)


def test_every_kind_of_node(lab):
    lab.host[:32].view("i4")[:] = np.arange(8)
    m = lab.memory
    upload = CopyNode(dst=m, src=lab.pinned, size_bytes=32, from_host=True)
    add = lab.kernel(0, 100, upload)
    copy = CopyNode(dependencies=(add,), dst=m + 64, src=m, size_bytes=32)
    fills = [
        FillNode(dependencies=(copy,), dst=m + 128 + 64 * i, pattern=pattern, count=4)
        for i, pattern in enumerate((b"a", b"ab", b"abcd", b"abcdabcd", b"abcdefgh"))
    ]
    joined = EmptyNode(dependencies=tuple(fills))
    every_second = StridedCopyNode(
        dependencies=(joined,),
        dst=m + 512,
        dst_strides_bytes=(4,),
        src=m + 64,
        src_strides_bytes=(8,),
        shape=(4,),
        itemsize=4,
    )
    convert = ConvertNode(
        dependencies=(joined,),
        dst=m + 576,
        dst_dtype=np.dtype("f4"),
        src=m + 64,
        src_dtype=np.dtype("i4"),
        count=8,
    )
    child = ChildNode(dependencies=(every_second, convert), nodes=[lab.kernel(512, 1), lab.kernel(64, 1)])
    last = lab.kernel(512, 1000, child)
    nodes = [upload, add, copy, *fills, joined, every_second, convert, child, last]
    assert leaves(nodes) == [last]
    graph = lab.driver.graph_create(nodes)
    for _ in range(2):
        lab.launch(graph)
        assert lab.words(0) == [100 + i for i in range(8)]
        assert lab.words(64) == [101 + i for i in range(8)]
        assert lab.words(512, 4) == [1101, 1103, 1105, 1107]
        assert lab.words(576, 8, "f4") == [100.0 + i for i in range(8)]
        for i, pattern in enumerate((b"a", b"ab", b"abcd", b"abcdabcd", b"abcdefgh")):
            assert bytes(lab.words(128 + 64 * i, 4 * len(pattern), "u1")) == 4 * pattern
    lab.driver.graph_destroy(graph)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_condition_looks_at_all_bytes_of_its_number(lab, itemsize):
    """Only the highest byte is set."""
    flag = lab.memory + 1024
    node = ConditionalNode(
        kind=ConditionKind.IF,
        predicate=flag,
        itemsize=itemsize,
        bodies=([lab.kernel(0, 1)], [lab.kernel(0, 1000)]),
    )
    graph = lab.driver.graph_create([node, lab.kernel(0, 10, node)])
    lab.launch(graph)
    assert lab.words(0) == [1010] * 8
    lab.driver.fill_async(flag + itemsize - 1, b"\x80", 1, lab.stream)
    lab.launch(graph)
    assert lab.words(0) == [1021] * 8
    lab.driver.graph_destroy(graph)


def test_loop_looks_again_after_each_turn(lab):
    count = lab.memory + 1024
    down = lab.kernel(1024, 0xFFFFFFFF)
    loop = ConditionalNode(
        kind=ConditionKind.WHILE, predicate=count, itemsize=4, bodies=([down, lab.kernel(0, 3, down)],)
    )
    graph = lab.driver.graph_create([loop])
    for turns in (0, 1, 7):
        lab.driver.fill_async(lab.memory, b"\0", 32, lab.stream)
        lab.driver.fill_async(count, turns.to_bytes(4, "little"), 1, lab.stream)
        lab.launch(graph)
        assert lab.words(0) == [3 * turns] * 8
    lab.driver.graph_destroy(graph)


def test_changed_nodes_hold_from_the_next_launch(lab):
    m = lab.memory
    add, fill = lab.kernel(0, 1), FillNode(dst=m + 64, pattern=b"abcd", count=8)
    copy = CopyNode(dependencies=(add, fill), dst=m + 128, src=m, size_bytes=32)
    graph = lab.driver.graph_create([add, fill, copy])
    lab.launch(graph)
    struct.pack_into("<QI", add.arguments.buffer, 0, m, 50)
    fill.pattern = (7).to_bytes(4, "little")
    copy.src = m + 64
    assert all(lab.driver.graph_update(graph, node) for node in (add, fill, copy))
    assert lab.words(128) == [1] * 8
    lab.launch(graph)
    assert (lab.words(0), lab.words(64), lab.words(128)) == ([51] * 8, [7] * 8, [7] * 8)
    lab.driver.graph_destroy(graph)


def test_empty_graph_is_launched(lab):
    graph = lab.driver.graph_create([])
    lab.launch(graph)
    assert lab.words(0) == [0] * 8
    lab.driver.graph_destroy(graph)


def test_graphs_are_launched_in_any_stream_or_destroyed_as_soon_as_they_are_made(lab):
    driver, other = lab.driver, lab.driver.stream_create()
    driver.stream_synchronize(lab.stream)
    for _ in range(20):
        driver.graph_destroy(driver.graph_create([lab.kernel(0, 1000)]))
        graph = driver.graph_create([lab.kernel(0, 3)])
        driver.bind()
        driver.graph_launch(graph, other)
        driver.stream_synchronize(other)
        driver.graph_destroy(graph)
    assert lab.words(0) == [60] * 8
    driver.stream_destroy(other)
