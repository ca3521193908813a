"""Shared operations that a recording runs first: part of the graph there, and of nothing where the recording fails."""

from __future__ import annotations

import asyncio
import contextlib
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
from cuda_async.errors import CaptureError, KernelError, StaleOutputError
from cuda_async.graph._recorder import Recorder
from cuda_async.ops._execution import Execution
from cuda_async.ops._shared import Gate
from cuda_async.scheduling import Unfinished

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


async def test_step_that_fails_by_a_recording_just_given_up_is_no_outcome(device, kernels, monkeypatch):
    """Another thread is at it, between two steps of the one that gives the recording up."""
    latches, settled = (threading.Event(), threading.Event()), threading.Event()
    settle, release = Gate._settle, Recorder.release

    def noted(gate, *args):
        settle(gate, *args)
        settled.set()

    def let_go(recorder):
        release(recorder)
        latches[1].set()
        assert settled.wait(10)

    x = await ca.ones(4)
    shared = ca.copy(x).then(lambda y: Held(latches).then(lambda _: kernels.scale(y, 3.0, 0.0))).shared()
    capture = shared.then(ca.copy).graph()

    async def run():
        await capture

    with monkeypatch.context() as patch:
        patch.setattr(Gate, "_settle", noted)
        patch.setattr(Recorder, "release", let_go)
        await cancel_while_held(run, latches)
    assert (await shared.to_host()).tolist() == [3.0] * 4


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
            gate.undo(gate._recorder, [])
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


async def test_a_graph_that_is_launched_lets_go_of_sources(device):
    """Only the output counts from then on; a source may hold host memory. Till then it may be run again."""

    class Source:
        def __call__(self, y):
            return y

    source = Source()
    known = weakref.ref(source)
    shared = ca.ones(4).map(source).shared()
    del source
    graph = await shared.then(ca.copy).graph()
    assert (await graph.launch().to_host())[0] == 1.0
    gc.collect()
    assert known() is None
    assert (await shared.to_host())[0] == 1.0


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


class Prepared(ca.DeviceOp[None]):
    """Is prepared once, on a worker thread where the caller is on a loop."""

    is_ready = False

    def needs_prepare(self, ctx):
        return not self.is_ready

    def prepare(self, ctx):
        self.is_ready = True

    def execute(self, ctx):
        return None


@pytest.fixture
def when_waited_for(monkeypatch):
    """Set it to what is called when something begins to wait for a run that was given up."""
    begin, hooks = Unfinished.begin_waiting, []

    def begin_waiting(self, wake):
        give_up = begin(self, wake)
        if hooks:
            hooks.pop(0)()
        return give_up

    monkeypatch.setattr(Unfinished, "begin_waiting", begin_waiting)
    return hooks


class Alone(ca.DeviceOp[None]):
    """Stands where it is told to, the first time, and notes how many are at it at once."""

    def __init__(self, stands, latches):
        self.stands, self.latches = stands, latches
        self.lock, self.inside, self.most = threading.Lock(), 0, 0

    def at(self, step):
        began, released = self.latches
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        if step == self.stands and not began.is_set():
            began.set()
            assert released.wait(10)
        with self.lock:
            self.inside -= 1

    def prepare(self, ctx):
        self.at("prepare")

    def execute(self, ctx):
        self.at("execute")
        return None


@pytest.mark.parametrize("stands", ["prepare", "execute"])
@pytest.mark.parametrize("inside", ["it", "another"])
async def test_one_execution_at_a_time_runs_it(device, stands, inside, when_waited_for):
    """Behind a cancelled capture, whose run another thread is still at; it may come in a run of another one there."""
    began, released = latches = threading.Event(), threading.Event()
    op = Alone(stands, latches)
    shared = op.shared()
    run = shared if inside == "it" else Prepared().then(lambda _: shared).shared()

    async def capture():
        await run.then(lambda _: ca.ones(4)).graph()

    async with anyio.create_task_group() as group:
        group.start_soon(capture)
        await anyio.to_thread.run_sync(began.wait, 10)
        group.cancel_scope.cancel()
    when_waited_for.append(released.set)
    await shared
    assert released.is_set()
    await ca.drain()
    assert op.most == 1


LATE = {
    "a copy": lambda y, flag: ca.fill(y, 99.0),
    "branches": lambda y, flag: ca.parallel(ca.fill(y, 99.0), ca.fill(flag, 1)),
    "a conditional": lambda y, flag: ca.if_else(flag, lambda: ca.fill(y, 99.0)),
    "an input": lambda y, flag: ca.graph_input("x", 4),
    "memory": lambda y, flag: ca.full(4, 99.0).then(ca.copy),
    "a shared one": lambda y, flag: ca.fill(y, 99.0).shared().then(ca.copy),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("ends", ["another operation", "the block"])
async def test_what_a_cancelled_recording_does_late_is_no_part_of_the_graph(
    device, late, ends, when_waited_for
):
    """A callback of a shared operation's run is at work on a worker thread when `arecord` is cancelled."""
    entered, released = threading.Event(), threading.Event()
    y, flag = await ca.zip(ca.zeros(4), ca.zeros(1, "int32"))

    def callback(_):
        entered.set()
        assert released.wait(10)
        return LATE[late](y, flag)

    shared = Prepared().then(callback).shared()
    async with ca.CudaGraph.scope(device.create_stream()) as scope:
        if ends == "the block":
            scope.returns(await scope.arecord(ca.fill(y, 1.0)))
        async with anyio.create_task_group() as group:
            group.start_soon(scope.arecord, shared)
            await anyio.to_thread.run_sync(entered.wait, 10)
            group.cancel_scope.cancel()
        when_waited_for.append(released.set)
        if ends == "another operation":
            scope.returns(await scope.arecord(ca.graph_input("x", 4).then(lambda x: ca.memcpy(y, x))))
    assert released.is_set()
    assert len(scope.graph.nodes) == 1
    values = dict.fromkeys(scope.graph.inputs, 1.0)
    assert (await scope.graph.replay(**values).to_host()).tolist() == [1.0] * 4
    assert (await flag.to_host())[0] == 0


def test_a_recording_that_failed_while_another_thread_was_in_it(device, when_waited_for):
    """`record` blocks until that thread has ended its step; one that is cancelled while it waits records nothing."""
    entered, released = threading.Event(), threading.Event()
    y = ca.zeros(4).sync()

    def callback(_):
        entered.set()
        assert released.wait(10)
        return ca.fill(y, 99.0)

    shared = Prepared().then(callback).shared()

    async def cancelled(scope):
        async with anyio.create_task_group() as group:
            group.start_soon(scope.arecord, shared)
            await anyio.to_thread.run_sync(entered.wait, 10)
            group.cancel_scope.cancel()
        with anyio.CancelScope() as limit:
            when_waited_for.append(limit.cancel)
            await scope.arecord(ca.fill(y, 5.0))
        assert limit.cancelled_caught

    with ca.CudaGraph.scope(device.create_stream()) as scope:
        asyncio.run(cancelled(scope))
        when_waited_for.append(released.set)
        scope.returns(scope.record(ca.fill(y, 1.0)))
        assert released.is_set()  # it waited, and did not only look again and again
    assert scope.graph.launch().to_host().sync().tolist() == [1.0] * 4


WRITERS = {
    "a fill": lambda t: ca.fill(t, 5.0),
    "a copy": lambda t: ca.memcpy(t, np.full(4, 5.0, np.float32)),
    "a part": lambda t: ca.fill(t, 5.0).map(lambda t: t[1:3]),
    "in a tuple": lambda t: ca.fill(t, 5.0).map(lambda t: (7, {"t": t})),
    "passed on": lambda t: ca.fill(t, 5.0).shared().map(lambda t: t),
}


def first_of(value):
    return value[1]["t"] if isinstance(value, tuple) else value


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_in_a_recording_has_not_run_for_others(device, writer):
    """Though it writes memory that was there before: it counts as done when the graph is launched."""
    t = ca.zeros(4).sync()
    shared = WRITERS[writer](t).shared()
    builds = shared.then(lambda value: ca.copy(first_of(value))).shared()
    with ca.CudaGraph.scope(device.create_stream()) as scope:
        scope.record(shared)
        for _ in range(2):
            for use in (shared, builds, builds.map(lambda _: 1)):
                with pytest.raises(StaleOutputError, match="belongs to a graph that is being recorded"):
                    use.sync()
    graph = scope.graph
    for _ in range(2):
        with pytest.raises(
            StaleOutputError, match="is part of a graph, and runs with it; launch the graph first"
        ):
            builds.sync()
    assert t.to_host().sync().tolist() == [0.0] * 4
    graph.launch().sync()
    values = first_of(shared.sync()).to_host().sync()
    assert values.tolist() == [5.0] * len(values)
    assert builds.to_host().sync().tolist() == values.tolist()
    graph.launch().sync()
    with pytest.raises(StaleOutputError, match="of launch 1, and a later launch"):
        ca.copy(first_of(shared.sync())).sync()
    assert builds.to_host().sync().tolist() == values.tolist()
    assert t.to_host().sync().tolist()[1] == 5.0


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_in_a_recording_that_fails_is_run_by_who_comes_next(device, writer):
    t = ca.zeros(4).sync()
    shared = WRITERS[writer](t).shared()
    builds = shared.then(lambda value: ca.copy(first_of(value))).shared()
    scope = ca.CudaGraph.scope(device.create_stream())
    with contextlib.suppress(RuntimeError), scope:
        scope.record(shared)
        with pytest.raises(StaleOutputError):
            builds.sync()
        fails(None)
    values = builds.to_host().sync()
    assert values.tolist() == [5.0] * len(values)
    assert t.to_host().sync().tolist()[1] == 5.0


def test_what_yields_no_tensor_runs_with_its_graph(device):
    t = ca.zeros(4).sync()
    shared = ca.fill(t, 5.0).map(lambda _: 7).shared()
    nothing = ca.value(3).map(lambda n: n + 1).shared()
    with ca.CudaGraph.scope(device.create_stream()) as scope:
        assert scope.record(shared) == 7
        assert scope.record(nothing) == 4
        assert nothing.sync() == 4  # there is nothing in the graph that it waits for
        with pytest.raises(StaleOutputError, match="being recorded"):
            shared.sync()
    with pytest.raises(
        StaleOutputError, match="is part of a graph, and runs with it; launch the graph first"
    ):
        shared.sync()
    scope.graph.launch().sync()
    assert shared.sync() == 7
    assert t.to_host().sync().tolist() == [5.0] * 4


class Counting:
    """A lock that counts how often it was entered, and notes what `look()` gives then and when it is left."""

    def __init__(self, lock, look):
        self.lock, self.look, self.seen = lock, look, []

    def __enter__(self):
        self.lock.acquire()
        self.before = self.look()

    def __exit__(self, *_):
        self.seen.append((self.before, self.look()))
        self.lock.release()


def test_an_outcome_is_taken_and_changed_under_the_gates_lock(device):
    """So that no thread sees half of what another one changes."""
    t = ca.zeros(4).sync()
    shared = ca.fill(t, 5.0).shared()
    gate = shared._gate
    with ca.CudaGraph.scope(device.create_stream()) as scope:
        scope.record(shared)
        recorded = gate.value
        gate.lock = lock = Counting(gate.lock, lambda: (gate.value, gate._recorder is None))
    assert [(before[1], after[1]) for before, after in lock.seen] == [(False, True)]
    assert lock.seen[0][0][0] is recorded
    assert lock.seen[0][1][0] is gate.value is not recorded
    scope.graph.launch().sync()
    lock.seen.clear()
    assert gate.deliver(Execution(ca.value(1), stream=device.create_stream())) is gate.value
    assert len(lock.seen) == 1


def test_what_comes_back_under_a_second_name_is_the_same_memory(device):
    """A launch that reads the one and writes the other is refused."""
    t = ca.zeros(4).sync()
    shared = ca.fill(t, 5.0).shared()
    shared.then(ca.copy).graph().sync().launch().sync()
    value = shared.sync()
    assert value is not t
    source = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry two(.param .u64 a, .param .u64 b) { ret; }"
    kernel = ca.Module.from_ptx(source).function("two")
    for _ in range(2):
        for operands in ((ca.read(value), ca.mut(t)), (ca.mut(value), ca.read(t))):
            with pytest.raises(ca.AliasError):
                kernel.launch(1, 1, *operands).sync()
        kernel.launch(1, 1, ca.read(t), ca.mut(ca.zeros(4).sync())).sync()


YIELDS = {
    "another tensor": lambda x: lambda t: x,
    "a tuple": lambda x: lambda t: (t, 7),
    "what it wrote": lambda x: lambda t: t,
    "a number": lambda x: lambda t: 7,
}


@pytest.mark.parametrize("yields", YIELDS)
def test_whatever_it_yields_it_has_run_when_the_graph_is_launched(device, yields):
    x, t = ca.zip(ca.ones(4), ca.zeros(4)).sync()
    shared = ca.fill(t, 5.0).map(YIELDS[yields](x)).shared()
    copied = shared.then(lambda _: ca.copy(t)).shared()
    said = shared.map(lambda _: "done").shared()
    graph = shared.then(lambda _: ca.copy(x)).graph().sync()
    for _ in range(2):
        for use in (shared, copied, said):
            with pytest.raises(StaleOutputError, match="launch the graph first"):
                use.sync()
    graph.launch().sync()
    assert copied.to_host().sync().tolist() == [5.0] * 4
    assert said.sync() == "done"


def test_components_of_what_was_recorded(device):
    t = ca.zeros(4).sync()
    first, second = (part.shared() for part in ca.fill(t, 5.0).map(lambda t: (t, 7)).unzip(2))
    graph = first.then(ca.copy).graph().sync()
    with pytest.raises(StaleOutputError, match="launch the graph first"):
        second.sync()
    graph.launch().sync()
    assert second.sync() == 7


@pytest.mark.parametrize("yields", YIELDS)
def test_a_launch_that_failed_has_run_nothing(host, yields):
    fails_now = True

    def maybe(_):
        if fails_now:
            raise ValueError("as planned")

    x, t = ca.zip(ca.ones(4), ca.zeros(4)).sync()
    shared = ca.foreign(maybe, writes=[t]).then(lambda _: ca.fill(t, 5.0)).map(YIELDS[yields](x)).shared()
    graph = shared.then(lambda _: ca.copy(x)).graph().sync()
    with pytest.raises(KernelError, match="as planned"):
        graph.launch().sync()
    for _ in range(2):
        with pytest.raises(StaleOutputError, match=r"launch 1 of the graph .* failed .*as planned"):
            shared.sync()
    fails_now = False
    graph.launch().sync()
    shared.sync()
    assert t.to_host().sync().tolist() == [5.0] * 4


@pytest.mark.parametrize("yields", YIELDS)
@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_a_graph_that_ends_without_a_launch_has_run_nothing(device, end, yields):
    """Whoever comes next runs it, once, and by itself or in another graph."""
    x, t = ca.zip(ca.ones(4), ca.zeros(4)).sync()
    runs = []
    source = ca.fill(t, 5.0).map(YIELDS[yields](x))
    shared = source.map(lambda value: (runs.append(1), value)[1]).shared()
    copied = shared.then(lambda _: ca.copy(t)).shared()
    graph = copied.then(ca.copy).graph().sync()
    with pytest.raises(StaleOutputError, match="launch the graph first"):
        copied.sync()
    if end == "closed":
        graph.close()
    else:
        del graph
        gc.collect()
    assert copied.then(ca.copy).graph().sync().launch().to_host().sync().tolist() == [5.0] * 4
    assert copied.to_host().sync().tolist() == [5.0] * 4
    shared.sync()
    assert len(runs) == 2


def test_what_has_nothing_in_the_graph_has_run_whatever_becomes_of_that(device):
    x, runs = ca.ones(4).sync(), []
    shared = ca.value(3).map(lambda n: (runs.append(1), n + 1)[1]).shared()
    graph = shared.then(lambda _: ca.copy(x)).graph().sync()
    assert shared.sync() == 4
    graph.close()
    del graph
    gc.collect()
    assert shared.sync() == 4
    assert len(runs) == 1


@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_a_graph_that_was_launched_and_ends_leaves_its_output(device, end):
    source = ca.full(4, 5.0).then(ca.copy)
    shared = source.shared()
    alive = weakref.ref(source)
    del source
    graph = shared.then(ca.copy).graph().sync()
    graph.launch().sync()
    if end == "closed":
        graph.close()
    del graph
    gc.collect()
    for _ in range(2):
        assert shared.to_host().sync().tolist() == [5.0] * 4
    gc.collect()
    assert alive() is None  # it is not run again


@pytest.mark.parametrize("way", ["scope", "graph"])
async def test_taking_the_value_out_behind_a_cancelled_recording(device, way):
    """While the thread that was at work on that has references: it is no outcome, and works when they are gone."""
    entered, released, calls = threading.Event(), threading.Event(), []
    x = await ca.full(4, 5.0)

    def callback(value):
        calls.append(value)
        if len(calls) == 1:
            entered.set()
            assert released.wait(10)
        return ca.value(value)

    inner = ca.copy(x).then(callback).shared().unwrap_shared()
    shared = ca.zip(Prepared(), inner).map(lambda both: both[1]).then(ca.copy).shared()
    del inner

    async def record():
        if way == "graph":
            await shared.graph()
            return
        async with ca.CudaGraph.scope(device.create_stream()) as scope:
            await scope.arecord(shared)

    async with anyio.create_task_group() as group:
        group.start_soon(record)
        await anyio.to_thread.run_sync(entered.wait, 10)
        group.cancel_scope.cancel()
        released.set()
    with contextlib.suppress(ca.ConsumedError):
        await shared
    await ca.drain()
    gc.collect()
    assert (await shared.to_host()).tolist() == [5.0] * 4


@pytest.mark.parametrize("taken", [0, 1])
def test_what_a_body_writes_is_refused_elsewhere(device, taken):
    t, flag = ca.zip(ca.zeros(4), ca.full(1, taken, "int32")).sync()
    shared = ca.fill(t, 5.0).shared()
    graph = ca.if_else(flag, lambda: shared).graph().sync()
    graph.launch().sync()
    with pytest.raises(StaleOutputError, match="first in the body of a conditional, which may not have run"):
        shared.to_host().sync()
    assert t.to_host().sync().tolist() == [5.0 * taken] * 4


def test_an_operation_on_an_empty_output_is_run_after_the_launch(device):
    """Its failure before is not kept, in a recording of its own either."""
    shared = ca.full(4, 5.0).shared()
    builds, recorded = shared.then(ca.copy).shared(), shared.then(ca.copy).shared()
    graph = shared.then(ca.copy).graph().sync()
    for _ in range(2):
        with pytest.raises(StaleOutputError, match="launch the graph first"):
            builds.sync()
        with pytest.raises(StaleOutputError, match="launch the graph first"):
            recorded.graph().sync()
    graph.launch().sync()
    assert builds.to_host().sync().tolist() == [5.0] * 4
    assert recorded.graph().sync().launch().to_host().sync().tolist() == [5.0] * 4


def test_taking_the_value_out_is_done_anew_where_the_recording_failed(device):
    taken = ca.full(4, 3.0).shared().unwrap_shared().then(ca.copy).shared()
    with ca.CudaGraph.scope(device.create_stream()) as scope:
        for _ in range(2):
            with pytest.raises(RuntimeError):
                scope.record(taken.map(fails))
        scope.returns(scope.record(taken.then(ca.copy)))
    assert scope.graph.launch().to_host().sync().tolist() == [3.0] * 4
    taken = ca.full(4, 3.0).shared().unwrap_shared().then(ca.copy).shared()
    with pytest.raises(RuntimeError):
        taken.map(fails).graph().sync()
    assert taken.to_host().sync().tolist() == [3.0] * 4


def test_taking_out_a_value_that_a_graph_has_yet_to_fill(device):
    shared = ca.full(4, 3.0).shared()
    graph = shared.then(ca.copy).graph().sync()
    taken = shared.unwrap_shared().then(ca.copy).shared()
    del shared
    with pytest.raises(StaleOutputError, match="launch the graph first"):
        taken.sync()
    graph.launch().sync()
    assert taken.to_host().sync().tolist() == [3.0] * 4
