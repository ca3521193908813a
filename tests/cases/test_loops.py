"""Completions, event loops and what outlives them."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import random
import threading

import anyio
import numpy as np
import pytest

import cuda_async as ca

# ------------------------------------------------- Case C08: many cancelled waits, then one more


@pytest.mark.anyio
async def test_many_cancelled_waits_do_not_stop_later_ones(device, memory_is_back, anyio_backend):
    """Case C08: tasks are cancelled after 0 to 5 ms; the loop's exception handler hears nothing."""
    reports = []
    if anyio_backend[0] == "asyncio":
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    chance = random.Random(8)
    array = np.arange(20_000, dtype=np.float32)
    kinds = [
        lambda: ca.full(2000, 1.0),
        lambda: ca.full(2000, 1.0).to_host(),
        lambda: ca.from_host(array).to_host(),
        lambda: ca.parallel(ca.zeros(100), ca.ones(100).to_host()),
        lambda: ca.ones(100).shared().to_host(),
        lambda: ca.ones(100).start(),
    ]

    async def one(make, delay_s):
        with anyio.move_on_after(delay_s):
            await make()

    async with anyio.create_task_group() as group:
        for i in range(1000):
            group.start_soon(one, kinds[i % len(kinds)], chance.uniform(0, 0.005))
    with anyio.fail_after(5):
        assert (await ca.full(10, 4.0).to_host() == 4.0).all()
    gc.collect()
    await anyio.lowlevel.checkpoint()
    assert reports == []


@pytest.mark.anyio
async def test_cancelled_waits_leave_no_callbacks(device, latch):
    """Case C08: a wait that was given up is forgotten, so that waits on one long operation do not pile up."""
    gate = latch()
    future = gate.hold().start()
    for _ in range(50):
        with anyio.move_on_after(0.001):
            await future
    submission = future._submission
    assert not submission.done
    assert not submission.callbacks
    gate.open()
    with anyio.fail_after(5):
        await future


# ------------------------------------------------------------ Case C09: objects outlive a loop


class Globals:
    """What a service keeps at module level."""

    def __init__(self, device, kernels):
        self.device = device
        self.pool = ca.StreamPoolRoundRobin(3, device=device)
        self.affine = kernels.affine
        self.shared = ca.full(64, 5.0).shared()
        self.future = ca.full(64, 6.0).start()
        self.tensor = ca.full(64, 7.0).sync()
        self.bound = self.affine.bind(1, 64, ca.mut(ca.zeros(64).sync()), 64, 0.0, 8.0, device=device)


async def use(objects, results):
    """Everything of `objects`, from whatever loop this runs in; one number that tells."""

    def affine(tensor):
        return objects.affine.launch(1, 64, ca.mut(tensor), 64, 2.0, 1.0)

    total = (await ca.full(64, 3.0).then(affine).first().to_host().schedule(objects.pool)).sum()
    total += (await objects.shared.to_host()).sum()
    total += (await (await objects.future).to_host()).sum()
    total += (await objects.tensor.to_host()).sum()
    total += (await objects.bound.launch().first().to_host()).sum()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(other_task, objects)
    results.append(float(total) / 64)


async def other_task(objects):
    await objects.tensor.to_host().schedule(objects.pool)


EXPECTED = 2 * 3 + 1 + 5 + 6 + 7 + 8


def asyncio_run(main):
    asyncio.run(main())


def uvloop_run(main):
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def trio_run(main):
    import trio

    trio.run(main)


RUNNERS = [asyncio_run]
if importlib.util.find_spec("uvloop"):
    RUNNERS.append(uvloop_run)
if importlib.util.find_spec("trio"):
    RUNNERS.append(trio_run)


def test_objects_outlive_loops(device, kernels):
    """Case C09: one run after the other, each kind of loop twice."""
    objects, results = Globals(device, kernels), []
    for run in [*RUNNERS, *RUNNERS]:
        run(lambda: use(objects, results))
    assert results == [EXPECTED] * len(RUNNERS) * 2


@pytest.mark.parametrize("first", RUNNERS)
@pytest.mark.parametrize("second", RUNNERS)
def test_two_loops_in_two_threads(device, kernels, first, second):
    """Case C09: at the same time."""
    objects, results, problems = Globals(device, kernels), [], []
    barrier = threading.Barrier(2)

    def thread(run):
        async def main():
            barrier.wait(10)
            for _ in range(10):
                await use(objects, results)

        try:
            run(main)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=thread, args=(run,)) for run in (first, second)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert problems == []
    assert results == [EXPECTED] * 20


@pytest.mark.parametrize("run", RUNNERS)
def test_loop_that_ends_with_work_in_flight(device, latch, run):
    """Case C09: a closed loop loses its wake-ups; the future that it waited for is awaited in the next one."""
    gate = latch()
    futures = []

    async def leaves():
        futures.append(gate.hold().then(lambda _: ca.full(8, 9.0).to_host()).start())
        with anyio.move_on_after(0.01):
            await futures[0]

    async def comes_after():
        with anyio.fail_after(5):
            assert (await futures[0] == 9.0).all()

    run(leaves)
    gate.open()
    for again in RUNNERS:
        again(comes_after)


def test_asyncio_loop_closed_under_a_waiting_task(device, latch):
    """Case C09: not even the task's end is waited for."""
    gate = latch()
    loop = asyncio.new_event_loop()

    async def waits():
        await gate.hold()

    task = loop.create_task(waits())
    loop.run_until_complete(asyncio.sleep(0.01))
    task._log_destroy_pending = False
    loop.close()
    gate.open()
    device.synchronize()
    del task, loop
    gc.collect()
    assert asyncio.run(_double(4.0)) == 8.0


async def _double(x):
    return float((await ca.full(1, x).map(lambda t: t).to_host())[0]) * 2


@pytest.mark.parametrize("kind", ["future", "shared operation", "event"])
def test_awaited_from_every_loop_while_in_flight(device, latch, kind):
    """Case C09: one future, shared operation or event, awaited in loops of every kind in threads of their own."""
    gate = latch()
    stream = device.create_stream()
    op = gate.hold().then(lambda _: ca.full(8, 9.0).to_host())
    if kind == "future":
        awaited = op.start()
    elif kind == "shared operation":
        awaited = op.shared()
        awaited.start()
    else:
        gate.hold().start(ca.SingleStream(stream))
        awaited = stream.record()
    results, problems = [], []
    waiting = threading.Barrier(len(RUNNERS) * 2 + 1)

    async def main():
        async def wait():
            results.append(await awaited)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(wait)
                await anyio.sleep(0.01)
                waiting.wait(10)

    def thread(run):
        try:
            run(main)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=thread, args=(run,)) for run in [*RUNNERS, *RUNNERS]]
    for one in threads:
        one.start()
    waiting.wait(10)
    assert results == []
    gate.open()
    for one in threads:
        one.join(30)
    assert problems == []
    assert len(results) == len(threads) * 3
    if kind != "event":
        assert all((result == 9.0).all() for result in results)
    stream.close()
