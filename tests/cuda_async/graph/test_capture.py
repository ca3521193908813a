"""Capturing operations: what is recorded, what is not run, what is refused."""

from __future__ import annotations

import gc
import sys
import threading

import anyio
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.errors import CaptureError, ClosedError, ConsumedError, ContextError, KernelError
from cuda_async.testing import stepped_device

pytestmark = pytest.mark.anyio


async def test_capture_runs_nothing(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scale(x, 2.0, 1.0).graph()
    assert (await x.to_host()).tolist() == [1.0] * 8
    assert graph.launches == 0
    await graph.launch()
    assert (await x.to_host()).tolist() == [3.0] * 8


async def test_capture_leaves_last_uses_alone(device, kernels):
    x, y = await ca.zip(ca.ones(8), ca.zeros(8))
    before = [
        (u.write_stream, u.write_number, u.read_stream, u.read_number)
        for u in (x._buffer.usage, y._buffer.usage)
    ]
    await kernels.affine_to.launch(1, 8, ca.mut(y), ca.read(x), 8, 1.0, 1.0).graph()
    after = [
        (u.write_stream, u.write_number, u.read_stream, u.read_number)
        for u in (x._buffer.usage, y._buffer.usage)
    ]
    assert before == after


def test_stepped_device_gets_no_work_of_a_capture(stepped, kernels):
    """Only the launch enqueues: one entry, and the event behind it."""
    stream = stepped.create_stream()
    tensor = _start(ca.ones(8), stream, stepped)
    kernels.affine.load(stepped)
    graph = kernels.scale(tensor, 2.0, 0.0).graph_on(stream).sync()
    assert stepped.driver.pending() == 0
    future = graph.launch().start(ca.SingleStream(stream))
    assert stepped.driver.pending(stream.handle) == 2
    stepped.driver.advance_all()
    assert future.done


def _start(op, stream, stepped):
    future = op.start(ca.SingleStream(stream))
    stepped.driver.advance_all()
    return future.result()


async def test_allocation_inside_belongs_to_the_graph(device, kernels):
    """Memory that a recorded chain makes has one address for good."""
    x = await ca.from_host(np.arange(8, dtype="f4"))
    graph = (
        await ca.zeros(8)
        .then(lambda y: ca.full(8, 3.0).then(lambda z: ca.memcpy(y, z)))
        .then(lambda y: kernels.add_to.launch(1, 8, ca.mut(y), ca.read(x), ca.read(x), 8))
        .first()
        .graph()
    )
    first = await graph.launch()
    address = first._address
    assert (await first.to_host()).tolist() == [2.0 * i for i in range(8)]
    again = await graph.launch()
    assert again._address == address


async def test_uploaded_array_is_the_captured_one(device):
    array = np.arange(4, dtype="f4")
    graph = await ca.from_host(array).graph()
    array[:] = -1
    tensor = await graph.launch()
    await ca.fill(tensor, 7.0)
    assert (await graph.launch().to_host()).tolist() == [0.0, 1.0, 2.0, 3.0]


async def test_dropped_memory_is_used_again_in_one_recording(device, kernels):
    x = await ca.ones(1024)

    def chain(t, depth):
        op = kernels.affine_to
        made = ca.empty(1024).then(lambda y: op.launch(8, 128, ca.mut(y), ca.read(t), 1024, 1.0, 1.0)).first()
        return made.then(lambda y: chain(y, depth - 1)) if depth else made

    before = device.memory_stats().used_bytes
    graph = await chain(x, 60).graph()
    assert device.memory_stats().used_bytes - before <= 64 << 10  # of 244 KiB
    assert (await graph.launch().to_host()).tolist() == [62.0] * 1024


async def test_conversion_and_strided_copies_are_recorded(device):
    x = await ca.from_host(np.arange(12, dtype="i4").reshape(3, 4))
    graph = await ca.copy(x.T).then(lambda t: t.astype("f8")).graph()
    assert (await graph.launch().to_host()).tolist() == np.arange(12.0).reshape(3, 4).T.tolist()
    await ca.fill(x[1], -5)
    assert (await graph.launch().to_host())[:, 1].tolist() == [-5.0] * 4


@pytest.mark.parametrize("size", [1, 2, 4, 8])
async def test_fills_of_every_size_are_recorded(device, size):
    dtype = np.dtype(f"u{size}")
    value = int.from_bytes(bytes(range(1, size + 1)), "little")
    graph = await ca.full(100, value, dtype).graph()
    assert (await graph.launch().to_host() == value).all()


async def test_empty_tensors_in_a_graph(device, kernels):
    """Case C20."""
    for shape in [(0,), (0, 3), (3, 0)]:
        x = await ca.zeros(shape)
        graph = (
            await ca.copy(x)
            .then(lambda y: kernels.affine.launch(0, 32, ca.mut(y), 0, 1.0, 1.0))
            .first()
            .graph()
        )
        out = await graph.launch()
        assert out.shape == shape
        assert (await out.to_host()).shape == shape
        await graph.launch()


async def test_parallel_becomes_branches(device, kernels):
    x = await ca.ones(8)
    op = ca.parallel(*(kernels.scaled(x, float(i), 0.0) for i in range(3))).then(
        lambda parts: kernels.add_to.launch(1, 8, ca.mut(parts[0]), ca.read(parts[1]), ca.read(parts[2]), 8)
    )
    graph = await op.first().graph()
    assert [node.depends_on for node in graph.nodes] == [(), (), (), (0, 1, 2)]
    assert (await graph.launch().to_host()).tolist() == [3.0] * 8


async def test_branches_that_share_memory_are_ordered(device, kernels):
    """As on streams: the second branch reads what the first one writes, the third writes what both used."""
    x, y, z = await ca.zip(ca.ones(8), ca.zeros(8), ca.zeros(8))
    affine_to = kernels.affine_to
    op = ca.parallel(
        affine_to.launch(1, 8, ca.mut(y), ca.read(x), 8, 2.0, 0.0),
        affine_to.launch(1, 8, ca.mut(z), ca.read(y), 8, 1.0, 1.0),
        kernels.scale(x, 0.0, 5.0),
    )
    graph = await op.graph()
    assert [node.depends_on for node in graph.nodes] == [(), (0,), (0,)]
    await graph.launch()
    assert [(await t.to_host())[0] for t in (x, y, z)] == [5.0, 2.0, 3.0]


COME_IN = {
    "written": (lambda whole: ca.fill(whole, 3.0), [(), (), (0, 1), (2,)]),
    "read": (ca.copy, [(), (), (0, 1), (0, 1, 2)]),
}


@pytest.mark.parametrize("use", COME_IN)
def test_branches_are_ordered_by_memory_that_comes_in_meanwhile(host, use):
    """Both halves of an array are ordered as one, from when a callback takes in the whole."""
    array = np.zeros(8, "f4")
    low, high = ca.from_dlpack(array[:4]), ca.from_dlpack(array[4:])
    used, dependencies = COME_IN[use]
    op = ca.parallel(
        ca.fill(low, 1.0),
        ca.fill(high, 2.0),
        ca.value(None).then(lambda _: used(ca.from_dlpack(array))),
        ca.fill(low, 4.0),
    )
    graph = op.graph().sync()
    assert [node.depends_on for node in graph.nodes] == dependencies


async def test_scheduled_step_is_a_branch(device, kernels):
    x = await ca.ones(8)
    op = kernels.scale(x, 2.0, 0.0).then(lambda t: kernels.scale(t, 1.0, 1.0).schedule(device.policy))
    graph = await op.then(lambda t: kernels.scale(t, 3.0, 0.0)).graph()
    assert [node.depends_on for node in graph.nodes] == [(), (0,), (1,)]
    await graph.launch()
    assert (await x.to_host())[0] == 9.0


async def test_shared_operation_belongs_to_the_graph(device, kernels):
    x = await ca.ones(8)
    once = kernels.scaled(x, 2.0, 0.0).shared()
    op = ca.parallel(
        once.then(lambda t: kernels.scaled(t, 1.0, 1.0)), once.then(lambda t: kernels.scaled(t, 1.0, 2.0))
    )
    graph = await op.graph()
    assert [node.kind for node in graph.nodes] == ["kernel"] * 3
    a, b = await graph.launch()
    assert (await a.to_host())[0] == 3.0
    assert (await b.to_host())[0] == 4.0
    assert (await x.to_host())[0] == 1.0


async def test_shared_value_that_exists_is_used(device, kernels):
    weights = ca.full(8, 4.0).shared()
    await weights
    graph = await weights.then(lambda w: kernels.scaled(w, 0.5, 0.0)).graph()
    assert len(graph.nodes) == 1
    assert (await graph.launch().to_host())[0] == 2.0


async def test_to_host_is_refused_by_name(device):
    x = await ca.ones(4)
    with pytest.raises(
        CaptureError, match=r"to_host\(\) cannot be part of a graph.*graph.launch\(\).to_host\(\)"
    ):
        await ca.copy(x).to_host().graph()
    assert (await x.to_host())[0] == 1.0


async def test_own_operation_that_allocates_is_refused_by_name(device):
    class Allocates(ca.DeviceOp):
        def execute(self, ctx):
            return ctx.driver.memory_alloc_async(64, ctx.stream._handle)

    with pytest.raises(CaptureError, match=r"allocation by ctx\.driver\.memory_alloc_async.*ctx\.empty"):
        await Allocates().graph()


async def test_own_operation_is_recorded(device, kernels):
    class Double(ca.DeviceOp):
        def __init__(self, x):
            self.x = x

        def prepare(self, ctx):
            kernels.affine_to.load(ctx.device)

        def execute(self, ctx):
            y = ctx.empty(self.x.shape, self.x.dtype)
            n = self.x.size
            kernels.affine_to.enqueue(ctx, 1, n, (ctx.write(y), ctx.read(self.x), n, 2.0, 0.0))
            return y

    x = await ca.full(8, 3.0)
    graph = await Double(x).graph()
    assert (await graph.launch().to_host())[0] == 6.0


async def test_bound_launch_is_recorded(device, kernels):
    x = await ca.ones(8)
    bound = kernels.affine.bind(1, 8, ca.mut(x), 8, 2.0, 1.0, device=device)
    graph = await bound.launch().then(lambda _: bound.launch()).graph()
    assert len(graph.nodes) == 2
    await graph.launch()
    assert (await x.to_host())[0] == 7.0
    await bound.launch()
    assert (await x.to_host())[0] == 15.0


async def test_synchronizing_a_recording_stream_is_refused(device):
    def look(ctx):
        ctx.stream.synchronize()
        return ca.value(1)

    with pytest.raises(CaptureError, match="synchronize"):
        await ca.with_context(look).graph()


async def test_capture_inside_a_capture_is_refused(device, kernels):
    x = await ca.ones(4)
    with pytest.raises(CaptureError, match="while another one is recorded"):
        await kernels.scale(x, 1.0, 1.0).then(lambda t: kernels.scale(t, 1.0, 1.0).graph()).graph()


async def test_captured_operation_is_consumed(device):
    op = ca.ones(4)
    await op.graph()
    with pytest.raises(ConsumedError):
        await op


async def test_graph_on_another_device_is_refused(device, kernels):
    x = await ca.ones(4)
    graph = await kernels.scale(x, 1.0, 1.0).graph()
    private, _ = stepped_device()
    with pytest.raises(ContextError, match="was captured on"):
        graph.launch().sync_on(private.create_stream())


async def test_error_of_a_callback_comes_out_unchanged(device, kernels):
    x = await ca.ones(4)
    problem = ValueError("mine")

    def fails(_):
        raise problem

    with pytest.raises(ValueError, match="mine") as caught:
        await kernels.scale(x, 1.0, 1.0).then(fails).graph()
    assert caught.value is problem
    assert (await x.to_host())[0] == 1.0


async def test_cancelled_capture_leaves_everything_usable(device, kernels):
    """Cancelled while a step is being prepared; the stream and the operands work on."""
    x = await ca.ones(4)
    started = anyio.Event()
    loop_token = anyio.lowlevel.current_token()
    go_on = threading.Event()

    class Slow(ca.DeviceOp):
        def prepare(self, ctx):
            anyio.from_thread.run_sync(started.set, token=loop_token)
            go_on.wait(20)

        def execute(self, ctx):
            return None

    async with anyio.create_task_group() as group:

        async def capture():
            await kernels.scale(x, 5.0, 0.0).then(lambda _: Slow()).graph()

        group.start_soon(capture)
        await started.wait()
        group.cancel_scope.cancel()
    go_on.set()
    graph = await kernels.scale(x, 2.0, 0.0).graph()
    await graph.launch()
    assert (await x.to_host())[0] == 2.0


async def test_failed_capture_gives_its_memory_back(device, kernels):
    for _ in range(
        2
    ):  # what tests before this one left, down to what only a finalizer's finalizer lets go of
        gc.collect()
        await ca.drain()
    before = device.memory_stats().used_bytes
    with pytest.raises(CaptureError):
        await ca.zeros(1 << 16).to_host().graph()
    gc.collect()
    await ca.drain()
    assert device.memory_stats().used_bytes == before


async def test_graph_keeps_what_only_the_capture_knew(device, kernels):
    graph = await ca.from_host(np.full(8, 2.0, "f4")).then(lambda x: kernels.scaled(x, 3.0, 1.0)).graph()
    gc.collect()
    others = [await ca.full(8, 9.0) for _ in range(20)]
    assert (await graph.launch().to_host())[0] == 7.0
    assert len(others) == 20


async def test_freed_operand_is_an_error_at_launch(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scale(x, 1.0, 1.0).graph()
    x.free()
    with pytest.raises(ClosedError, match="freed"):
        await graph.launch()


async def test_capture_is_part_of_a_chain(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scale(x, 2.0, 0.0).then(lambda t: kernels.scale(t, 1.0, 1.0).graph())
    assert (await x.to_host())[0] == 2.0
    await graph.launch()
    assert (await x.to_host())[0] == 3.0


def test_capture_by_start_and_sync(device, kernels):
    x = ca.ones(8).sync()
    graph = kernels.scale(x, 2.0, 0.0).graph().start().sync()
    graph.launch().sync()
    assert x.to_host().sync()[0] == 2.0


def test_failing_driver_call_fails_the_capture(stepped, kernels):
    stream = stepped.create_stream()
    x = _start(ca.ones(8), stream, stepped)
    kernels.affine.load(stepped)
    stepped.driver.fail_next("graph_create", RuntimeError("no graph today"))
    with pytest.raises(RuntimeError, match="no graph today"):
        kernels.scale(x, 1.0, 1.0).graph_on(stream).sync()
    assert kernels.scale(x, 1.0, 1.0).graph_on(stream).sync().launches == 0


def test_dropped_graph_is_destroyed_once_it_is_past(stepped, kernels):
    stream = stepped.create_stream()
    x = _start(ca.ones(8), stream, stepped)
    kernels.affine.load(stepped)
    graph = kernels.scale(x, 2.0, 0.0).graph_on(stream).sync()
    future = graph.launch().start(ca.SingleStream(stream))
    del graph
    gc.collect()
    stepped.collect()
    assert stepped.driver.calls["graph_destroy"] == 0
    stepped.driver.advance_all()
    assert future.done
    del future
    gc.collect()
    stepped.collect()
    stepped.collect()
    assert stepped.driver.calls["graph_destroy"] == 1


async def test_capture_on_every_loop_keeps_the_loop_live(device, kernels):
    """Other tasks run while a step is prepared and the graph made."""
    x = await ca.ones(8)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await kernels.scale(x, 1.0, 1.0).graph()
        group.cancel_scope.cancel()
    assert ticks > 1


async def test_long_recording_lets_other_tasks_run(device):
    """It stops between steps, several times; the graph is the same."""
    x = await ca.zeros(8)
    turns = 0
    recorded = []

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    op = ca.fill(x, 0.0)
    for i in range(3000):
        op = op.then(lambda t, i=i: ca.fill(t, float(i)))
    async with anyio.create_task_group() as group:
        group.start_soon(count_turns)
        await anyio.lowlevel.checkpoint()
        before = turns
        graph = await op.inspect(lambda _: recorded.append(turns - before)).graph()
        group.cancel_scope.cancel()
    assert recorded[0] > 3
    assert [node.depends_on for node in graph.nodes] == [(), *((i,) for i in range(3000))]


def test_graphs_nested_too_deeply(host):
    """Gone through by functions that call themselves; the last that could be made still runs."""
    target = ca.zeros(4).sync()
    graphs = [ca.fill(target, 1.0).graph().sync()]

    def nest():
        for _ in range(sys.getrecursionlimit()):
            graphs.append(graphs[-1].launch().graph().sync())

    with pytest.raises(CaptureError, match="nest too deeply"):
        nest()
    graphs[-1].launch().sync()
    assert target.to_host().sync()[0] == 1.0


@pytest.mark.parametrize("when", ["before the capture", "behind it"])
def test_failure_of_others_on_the_stream_of_the_capture_is_not_the_graphs(stepped, when):
    """The graph's memory was allocated there; nothing else of it has to do with that stream."""

    def refuse(_):
        raise ValueError("of another request")

    stream, other = stepped.create_stream(), stepped.create_stream()
    array = ca.from_dlpack(np.zeros(8, "f4"))
    foreign = ca.foreign(refuse, writes=[array])

    def enqueued(op, stream):
        future, settled = op.start(ca.SingleStream(stream)), threading.Event()
        future._begin(settled.set)
        assert settled.wait(30)
        return future

    if when == "before the capture":
        failing = enqueued(foreign, stream)
    graph = ca.full(4, 3.0).graph_on(stream).sync()
    if when == "behind it":
        failing = enqueued(foreign, stream)
    launched = enqueued(graph.launch().to_host(), other)
    stepped.driver.advance_all()
    with pytest.raises(KernelError, match="of another request"):
        failing.sync()
    assert (launched.sync() == 3.0).all()


@pytest.mark.parametrize("launched", [False, True])
def test_captures_for_a_stream_that_nobody_awaits_leave_nothing_there(host, launched):
    """Their numbers are retired by the captures that follow."""
    stream, other = host.create_stream(), ca.SingleStream(host.create_stream())
    for _ in range(20):
        graph = ca.full(4, 3.0).graph_on(stream).sync()
        if launched:
            graph.launch().start(other).sync()
        host.driver.stream_synchronize(stream.handle)
        assert len(stream._pending) <= 3
