"""Awaiting on asyncio, uvloop and trio; cancelling; several loops; reentrancy."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time

import anyio
import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio


async def test_await_yields_value(device):
    assert (await ca.from_host(np.arange(6).reshape(2, 3)).to_host()).tolist() == [[0, 1, 2], [3, 4, 5]]


async def test_many_tasks_at_once(device):
    results = {}

    async def one(i):
        results[i] = float((await ca.full(257, float(i)).to_host()).sum())

    async with anyio.create_task_group() as group:
        for i in range(100):
            group.start_soon(one, i)
    assert results == {i: 257.0 * i for i in range(100)}


async def test_one_completion_per_chain(stepped):
    """Whatever its length, a chain records one event."""

    def longer(t):
        return ca.fill(t, 2.0).then(lambda t: ca.fill(t, 3.0)).then(lambda t: ca.fill(t, 4.0))

    future = ca.empty(16).then(longer).start()
    assert stepped.driver.calls["event_record"] == 1
    stepped.driver.advance_all()
    await future


async def test_cancelled_await_keeps_memory_until_stream_passes(stepped):
    """Cancelling stops the waiting; the operands are freed behind the work, not before."""
    stepped.policy = ca.SingleStream(device=stepped)
    warm = ca.empty(16).start()
    stepped.driver.advance_all()
    await warm
    del warm
    gc.collect()
    stepped.collect()
    stepped.driver.advance_all()
    before = len(stepped.driver.freed)

    async with anyio.create_task_group() as group:

        async def run():
            await ca.full(64, 7.0).then(lambda t: ca.fill(t, 8.0))

        group.start_soon(run)
        while stepped.driver.calls["fill_async"] < 2:
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    gc.collect()
    assert stepped.driver.pending() > 0
    stepped.collect()
    assert len(stepped.driver.freed) == before
    stepped.driver.advance_all()
    assert len(stepped.driver.freed) == before + 1


async def test_timeout_leaves_no_cancellation_behind(stepped):
    """Case C12 (a)."""
    with anyio.move_on_after(0.05) as scope:
        await ca.zeros(4)
    assert scope.cancelled_caught
    await anyio.lowlevel.checkpoint()
    future = ca.value(3).start()
    assert await future == 3


async def test_prepare_runs_off_the_loop(device):
    loop_thread = threading.get_ident()
    seen = []

    class Slow(ca.DeviceOp):
        def prepare(self, ctx):
            seen.append(threading.get_ident())

        def execute(self, ctx):
            seen.append(threading.get_ident())

    await ca.value(1).then(lambda _: Slow())
    assert seen[0] != loop_thread
    assert seen[1] == loop_thread


async def test_loop_runs_while_a_step_is_prepared(device):
    gate = threading.Event()

    class Gated(ca.DeviceOp):
        def prepare(self, ctx):
            assert gate.wait(10)

        def execute(self, ctx):
            return "done"

    async with anyio.create_task_group() as group:
        result = []

        async def run():
            result.append(await Gated())

        group.start_soon(run)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert result == []
        gate.set()
    assert result == ["done"]


async def test_prepare_sees_context_variables(device):
    variable = contextvars.ContextVar("variable", default="unset")

    class Reads(ca.DeviceOp):
        def prepare(self, ctx):
            self.seen = variable.get()

        def execute(self, ctx):
            return self.seen

    variable.set("set")
    assert await Reads() == "set"


async def test_cancel_during_prepare_stops_the_chain(device):
    entered, release, ran = threading.Event(), threading.Event(), []

    class Gated(ca.DeviceOp):
        def prepare(self, ctx):
            entered.set()
            release.wait(10)

        def execute(self, ctx):
            ran.append(1)

    async with anyio.create_task_group() as group:

        async def run():
            await Gated()

        group.start_soon(run)
        while not entered.is_set():
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    release.set()
    await ca.drain()
    assert ran == []


@pytest.mark.parametrize("nested", ["sync", "start", "await", "future"])
async def test_nested_run_in_callback_is_refused(device, nested):
    future = ca.value(1).start()

    def callback(_):
        if nested == "sync":
            ca.value(2).sync()
        elif nested == "start":
            ca.value(2).start()
        elif nested == "await":
            ca.value(2).__await__()
        else:
            future.sync()
        return ca.value(0)

    with pytest.raises(ca.ReentrancyError, match="inside a callback"):
        await ca.value(1).then(callback)
    assert await ca.value(3) == 3


async def test_thread_started_in_callback_is_free(device):
    results = []

    def callback(x):
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(later))
        thread.start()
        return ca.value(thread)

    started = threading.Event()

    def later():
        started.wait(10)
        results.append(ca.value(5).sync())

    thread = await ca.value(1).then(callback)
    started.set()
    await anyio.to_thread.run_sync(thread.join)
    assert results == [5]


async def test_drain_waits_for_forgotten_work(device):
    future = ca.full(1000, 1.0).start()
    await ca.drain()
    assert future.done


async def test_drain_waits_for_abandoned_preparations(device):
    """What a cancelled task left running on a worker thread holds memory until it ends."""
    started, release = threading.Event(), threading.Event()

    class Prepared(ca.DeviceOp):
        def __init__(self, tensor):
            super().__init__()
            self.tensor = tensor

        def prepare(self, ctx):
            started.set()
            assert release.wait(10)

        def execute(self, ctx):
            return self.tensor

    async def download():
        await ca.zeros(1000).then(Prepared).to_host()

    drained = []

    async def drain():
        await ca.drain()
        gc.collect()  # frames that the cancel went through
        await ca.drain()
        drained.append(device.memory_stats().used_bytes)

    gc.collect()
    await ca.drain()
    before = device.memory_stats().used_bytes
    await ca.zeros(1)
    await ca.drain()
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(download)
                await anyio.to_thread.run_sync(started.wait)
                scope.cancel()
        group.start_soon(drain)
        group.start_soon(anyio.to_thread.run_sync, ca.drain().sync)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert device.memory_stats().used_bytes > before
        assert drained == []
        release.set()
    assert drained == [before]


async def test_events_are_awaitable(device):
    stream = device.create_stream()
    async with stream:
        first = stream.record()
        ca.zeros(1000).sync_on(stream)
        second = stream.record()
        await second
        assert first.is_done
        assert second.elapsed_ms(first) >= 0
        first.close()
        second.close()
    with pytest.raises(ca.ClosedError):
        stream.record()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["threads"])
async def test_two_loops_in_two_threads(device, anyio_backend):
    """Case C09: nothing is tied to a loop."""
    shared = ca.full(10, 4.0).shared()
    results = []

    def other_thread():
        async def main():
            results.extend([float((await shared.to_host()).sum()) for _ in range(20)])

        asyncio.run(main())

    threads = [threading.Thread(target=other_thread) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    assert results == [40.0] * 40


def test_module_objects_outlive_loops(device):
    """Case C09: one asyncio run after another with the same objects."""
    pool = ca.StreamPoolRoundRobin(2, device=device)
    tensor = asyncio.run(_make(pool))
    assert asyncio.run(_read(pool, tensor)) == 30.0


async def _make(pool):
    return await ca.full(10, 3.0).schedule(pool)


async def _read(pool, tensor):
    return float((await tensor.to_host().schedule(pool)).sum())


async def test_many_ready_tasks_let_the_loop_go_round(device):
    """Tasks that become ready at once enqueue in several turns of the loop: others get in between."""
    turns = 0
    done = False

    class Busy(ca.DeviceOp):
        def execute(self, ctx):
            begin = time.perf_counter()
            while time.perf_counter() - begin < 1e-3:
                pass

    async def other():
        nonlocal turns
        while not done:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async def one():
        await Busy()

    async with anyio.create_task_group() as group:
        group.start_soon(other)

        async def all_of_them():
            nonlocal done
            async with anyio.create_task_group() as inner:
                for _ in range(40):
                    inner.start_soon(one)
            done = True

        group.start_soon(all_of_them)
    assert turns >= 10
