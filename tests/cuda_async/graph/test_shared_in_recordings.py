"""Shared operations that a recording runs first: part of the graph there, and of nothing where the recording fails."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import weakref
from dataclasses import dataclass

import anyio
import anyio.to_thread
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.errors import CaptureError, StaleOutputError
from cuda_async.ops._shared import Gate

pytestmark = pytest.mark.anyio


def fails(_):
    raise RuntimeError("as planned")


class Held(ca.DeviceOp[None]):
    """Is prepared until it is released."""

    def __init__(self, latches):
        self.latches = latches

    def prepare(self, ctx):
        began, released = self.latches
        began.set()
        assert released.wait(10)

    def execute(self, ctx):
        return None


async def cancel_while_held(record, latches):
    """Run `record()` until the operation that is held is being prepared, cancel it, and let that go on."""
    began, released = latches
    async with anyio.create_task_group() as group:
        group.start_soon(record)
        await anyio.to_thread.run_sync(began.wait, 10)
        group.cancel_scope.cancel()
    released.set()


async def test_what_runs_before_a_conditional_serves_both_bodies(device):
    x, out, flag = await ca.zip(ca.full(4, 3.0), ca.zeros(4), ca.zeros(1, "int32"))
    pre = ca.copy(x).shared()

    def body():
        return pre.then(lambda p: ca.memcpy(out, p))

    graph = await pre.then(lambda _: ca.if_else(flag, body, body)).graph(inputs={"flag": flag})
    for taken in (0, 1, 0):
        await ca.fill(x, 5.0 + taken)
        await graph.replay(flag=taken)
        assert (await out.to_host())[0] == 5.0 + taken


async def test_a_cancelled_future_gives_up_its_recording_at_once(device):
    """Though a worker thread is still preparing a step of it."""
    latches = began, released = threading.Event(), threading.Event()
    x = await ca.full(4, 3.0)
    shared = ca.copy(x).shared()
    future = shared.then(lambda c: Held(latches).then(lambda _: ca.copy(c))).graph().start()
    await anyio.to_thread.run_sync(began.wait, 10)
    assert future.cancel()
    assert (await shared.to_host()).tolist() == [3.0] * 4
    released.set()
    await ca.drain()
    assert (await shared.to_host()).tolist() == [3.0] * 4


def test_a_loop_that_is_closed_leaves_no_recording_behind(device):
    """What a finalizer could not do, because it may run inside a lock, the next operation does."""
    latches = began, released = threading.Event(), threading.Event()
    x = ca.full(4, 3.0).sync()
    shared = ca.copy(x).shared()

    async def record():
        await shared.then(lambda c: Held(latches).then(lambda _: ca.copy(c))).graph()

    async def until_it_is_held():
        task = asyncio.ensure_future(record())
        await asyncio.to_thread(began.wait, 10)
        left.append(task.get_coro())
        task._log_destroy_pending = False

    left = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(until_it_is_held())
    loop.close()
    left.pop().close()
    assert shared.to_host().sync().tolist() == [3.0] * 4
    released.set()
    ca.drain().sync()
    assert shared.to_host().sync().tolist() == [3.0] * 4


@pytest.mark.parametrize("passes_on", [False, True])
async def test_what_builds_on_a_recorded_operation_is_run_when_that_is_over(device, passes_on):
    """Its failure meanwhile is not kept: the recording is cancelled, and both run then."""
    latches = began, released = threading.Event(), threading.Event()
    inner = ca.ones(3).shared()
    outer = inner.then(ca.value if passes_on else ca.copy).shared()

    async def record():
        await inner.then(lambda t: Held(latches).then(lambda _: ca.copy(t))).graph()

    async with anyio.create_task_group() as group:
        group.start_soon(record)
        await anyio.to_thread.run_sync(began.wait, 10)
        for _ in range(2):
            with pytest.raises(StaleOutputError, match="belongs to a graph that is being recorded"):
                await outer.then(ca.copy)
        group.cancel_scope.cancel()
    released.set()
    await ca.drain()
    assert (await outer.then(ca.copy).to_host()).tolist() == [1.0] * 3
    assert (await inner.to_host()).tolist() == [1.0] * 3


@dataclass
class Wrapped:
    tensor: ca.Tensor


WRAPS = {
    "partition": (lambda t: t.partition(2), lambda v: v.tensor),
    "mapped partition": (lambda t: t.partition(2).map(1, 1), lambda v: v.partition.tensor),
    "operand": (ca.mut, lambda v: v.tensor),
    "dataclass": (Wrapped, lambda v: v.tensor),
    "nested": (lambda t: [[[[{"t": t}]]]], lambda v: v[0][0][0][0]["t"]),
}


@pytest.mark.parametrize("kind", WRAPS)
async def test_whatever_a_recorded_operation_yields_holds_nothing_yet(device, kind):
    wrap, taken = WRAPS[kind]
    latches = began, released = threading.Event(), threading.Event()
    inner = ca.full(4, 2.0).map(wrap).shared()
    outer = inner.map(lambda value: value).shared()
    future = inner.then(lambda v: Held(latches).then(lambda _: ca.copy(taken(v)))).then(fails).graph().start()
    await anyio.to_thread.run_sync(began.wait, 10)
    with pytest.raises(StaleOutputError, match="belongs to a graph that is being recorded"):
        await outer
    released.set()
    with pytest.raises(RuntimeError, match="as planned"):
        await future
    for op in (outer, inner):
        assert (await taken(await op).to_host()).tolist() == [2.0] * 4


async def test_a_recording_that_is_given_up_while_somebody_takes_its_outcome(device, monkeypatch):
    """By another thread, between the two steps of a consumer."""
    latches = began, released = threading.Event(), threading.Event()
    inner = ca.ones(3).shared()
    outer = inner.then(ca.copy).shared()
    deliver = Gate.deliver

    def given_up_and_delivered(gate, execution):
        if gate is inner._gate:
            gate.undo()
        return deliver(gate, execution)

    future = inner.then(lambda t: Held(latches).then(lambda _: ca.copy(t))).graph().start()
    await anyio.to_thread.run_sync(began.wait, 10)
    with monkeypatch.context() as patched:
        patched.setattr(Gate, "deliver", given_up_and_delivered)
        with pytest.raises(StaleOutputError, match="given up at this moment; use it again"):
            await outer
    assert future.cancel()
    released.set()
    await ca.drain()
    for op in (outer, inner):
        assert (await op.then(ca.copy).to_host()).tolist() == [1.0] * 3


def test_who_waits_for_what_nobody_runs_goes_on(device):
    """A recording was given up between asking and waiting: who asked runs it."""
    told = []
    ca.ones(3).shared()._gate.begin(lambda: told.append(1))
    assert told == [1]


async def test_what_builds_on_a_recorded_operation_is_run_when_the_graph_is_made(device):
    latches = began, released = threading.Event(), threading.Event()
    inner = ca.ones(3).shared()
    first, second = inner.map(lambda t: (t, t)).unzip(2)
    future = inner.then(lambda t: Held(latches).then(lambda _: ca.copy(t))).graph().start()
    await anyio.to_thread.run_sync(began.wait, 10)
    with pytest.raises(StaleOutputError, match="belongs to a graph that is being recorded"):
        await first
    released.set()
    graph = await future
    await graph.launch()
    assert (await second.then(ca.copy).to_host()).tolist() == [1.0] * 3


async def test_what_a_body_runs_first_is_refused_outside_of_it(device):
    x, out, flag = await ca.zip(ca.full(4, 3.0), ca.zeros(4), ca.zeros(1, "int32"))
    pre = ca.copy(x).shared()

    def body():
        return pre.then(lambda p: ca.memcpy(out, p))

    uses = {
        "both bodies": lambda: ca.if_else(flag, body, body),
        "a body and behind": lambda: ca.if_else(flag, body).then(lambda _: pre),
        "a loop and behind": lambda: ca.while_loop(flag, body).then(lambda _: pre),
        "an inner body and the outer one": lambda: ca.if_else(
            flag, lambda: ca.if_else(flag, body).then(lambda _: body())
        ),
    }
    for use in uses.values():
        with pytest.raises(CaptureError, match="used first in the body of a conditional"):
            await use().graph()
    assert (await pre.to_host())[0] == 3.0  # no graph was made, so it runs now


async def test_a_body_may_use_its_own_twice_and_in_bodies_of_it(device):
    x, out, flag = await ca.zip(ca.full(4, 3.0), ca.zeros(4), ca.ones(1, "int32"))
    pre = ca.copy(x).shared()

    def use(_=None):
        return pre.then(lambda p: ca.memcpy(out, p))

    op = ca.if_else(flag, lambda: use().then(use).then(lambda _: ca.if_else(flag, use)))
    graph = await op.graph()
    await ca.fill(x, 4.0)
    await graph.launch()
    assert (await out.to_host())[0] == 4.0


async def test_one_that_a_failed_record_has_run_runs_again(device):
    x = await ca.full(4, 3.0)
    pre = ca.copy(x).shared()
    async with ca.CudaGraph.scope(device.create_stream()) as scope:
        with pytest.raises(RuntimeError, match="as planned"):
            await scope.arecord(pre.then(fails))
        scope.returns(await scope.arecord(pre.then(ca.copy)))
    assert len(scope.graph.nodes) == 2
    for value in (3.0, 4.0):
        await ca.fill(x, value)
        assert (await (await scope.graph.launch()).to_host())[0] == value


async def test_a_tensor_of_a_failed_record_holds_nothing(device):
    x = await ca.full(4, 3.0)
    kept = []
    async with ca.CudaGraph.scope(device.create_stream()) as scope:
        with pytest.raises(RuntimeError, match="as planned"):
            await scope.arecord(ca.copy(x).then(lambda y: kept.append(y) or fails(y)))
        with pytest.raises(StaleOutputError, match="could not be recorded"):
            await scope.arecord(ca.copy(kept[0]))
        scope.returns(await scope.arecord(ca.copy(x)))
    await scope.graph.launch()
    with pytest.raises(StaleOutputError, match="could not be recorded"):
        await kept[0].to_host()


async def test_a_cache_tries_again_with_what_its_graphs_share(device):
    weights = ca.from_host(np.full(8, 5.0, "f4")).shared()
    tries = []

    def step(w):
        tries.append(w)
        return fails(w) if len(tries) == 1 else ca.copy(w)

    cache = ca.GraphCache(lambda n: weights.then(step))
    with pytest.raises(RuntimeError, match="as planned"):
        await cache.get(8)
    graph = await cache.get(8)
    assert (await graph.launch().to_host())[0] == 5.0


async def test_one_that_cannot_be_captured_runs_outside(device):
    shared = ca.ones(4).to_host().map(lambda array: array.tolist()).shared()
    with pytest.raises(CaptureError, match="to_host"):
        await shared.graph()
    assert await shared == [1.0] * 4


async def test_one_that_a_cancelled_capture_was_running_runs_again(device):
    latches = threading.Event(), threading.Event()
    x = await ca.full(4, 3.0)
    shared = ca.copy(x).then(lambda y: Held(latches).map(lambda _: y)).shared()

    async def capture():
        await shared.then(ca.copy).graph()

    await cancel_while_held(capture, latches)
    assert (await shared.to_host())[0] == 3.0


async def test_memory_of_a_recording_is_not_for_another_one(device):
    x = await ca.full(8, 3.0)
    async with ca.CudaGraph.scope(device.create_stream()) as scope:
        recorded = await scope.arecord(ca.copy(x))
        with pytest.raises(StaleOutputError, match="a graph that is being recorded"):
            await ca.copy(recorded).graph()
        scope.returns(recorded)
    assert (await (await scope.graph.launch()).to_host())[0] == 3.0


async def test_a_failed_record_of_a_graph_s_launch_leaves_the_earlier_one(device):
    """What the rolled back launch would have written over is not stale, and the graphs have nothing in common."""
    x = await ca.full(8, 3.0)
    inner = await ca.copy(x).graph()
    other = await ca.copy(x).graph()
    async with ca.CudaGraph.scope(device.create_stream()) as scope:
        first = await scope.arecord(inner.launch())
        with pytest.raises(RuntimeError, match="as planned"):
            await scope.arecord(inner.launch().then(fails))
        with pytest.raises(RuntimeError, match="as planned"):
            await scope.arecord(other.launch().then(fails))
        scope.returns(await scope.arecord(ca.copy(first)))
    yielded = await other.launch()
    assert (await (await scope.graph.launch()).to_host())[0] == 3.0
    assert (await yielded.to_host())[0] == 3.0


async def test_a_graph_that_is_made_lets_go_of_sources(device):
    """Only the output counts from then on; a source may hold host memory."""

    class Source:
        def __call__(self, y):
            return y

    source = Source()
    known = weakref.ref(source)
    shared = ca.ones(4).map(source).shared()
    del source
    graph = await shared.then(ca.copy).graph()
    gc.collect()
    assert known() is None
    assert (await graph.launch().to_host())[0] == 1.0


async def test_a_run_that_is_undone_records_nothing_more(device):
    """Neither into the scope that goes on, nor into the graph that comes of it; and it runs anew."""
    latches = threading.Event(), threading.Event()
    x, y = await ca.full(4, 3.0), await ca.zeros(4)
    shared = (
        ca.copy(x)
        .then(lambda made: Held(latches).map(lambda _: made))
        .then(lambda made: ca.memcpy(y, made))
        .shared()
    )
    async with ca.CudaGraph.scope(device.create_stream()) as scope:
        await cancel_while_held(functools.partial(scope.arecord, shared), latches)
        await ca.drain()
        scope.returns(await scope.arecord(ca.copy(x)))
    assert len(scope.graph.nodes) == 1
    await scope.graph.launch()
    assert (await y.to_host()).tolist() == [0.0] * 4
    assert (await shared.to_host()).tolist() == [3.0] * 4


async def test_one_that_comes_first_in_a_run_that_is_undone_runs_again(device):
    latches = threading.Event(), threading.Event()
    weights = ca.ones(4).shared()
    model = ca.zeros(4).then(lambda _: Held(latches)).then(lambda _: weights).shared()

    async def capture():
        await model.then(ca.copy).graph()

    await cancel_while_held(capture, latches)
    await ca.drain()
    for op in (weights, model):
        assert (await op.to_host()).tolist() == [1.0] * 4
