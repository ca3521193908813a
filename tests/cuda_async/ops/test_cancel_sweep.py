"""Cancelling at every turn of the loop: nothing is left, nothing is wrong, the next operation works.

A program runs beside a task that advances a stepped device by one entry a turn, and that cancels it after k turns: for
k = 0, 1, 2, ... until the program is faster. So every await of it is met, with everything the device can stand at then.
"""

from __future__ import annotations

import gc

import anyio
import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio
N = 8
MOST_TURNS = 400


def same(array, value):
    assert (array == value).all()


async def chain():
    same(await ca.full(N, 1.0).then(lambda t: ca.fill(t, 2.0)).then(ca.copy).to_host(), 2)


async def round_trip():
    x = await ca.from_host(np.arange(N))
    same(await x.to_host(), np.arange(N))


async def several():
    a, b = await ca.zip(ca.full(N, 1.0), ca.from_host(np.ones(N)))
    same((await ca.parallel(ca.copy(a), b.to_host()))[1], 1)


async def looks_at_host_data():
    x = await ca.full(N, 2.0)
    same(await x.to_host().map(lambda a: float(a[0])).then(lambda v: ca.fill(x, 2 * v)).to_host(), 4)


async def shared_by_two():
    op = ca.full(N, 3.0).shared()

    async def consumes():
        same(await op.then(ca.copy).to_host(), 3)

    async with anyio.create_task_group() as group:
        group.start_soon(consumes)
        group.start_soon(consumes)


async def future():
    started = ca.full(N, 1.0).to_host().start()
    same(await started, 1)
    same(await started, 1)


async def graph():
    x = await ca.zeros(N)
    made = await ca.zip(ca.fill(x, 3.0), ca.copy(x)).graph()
    await made.launch()
    await made.launch()
    same(await x.to_host(), 3)
    await made.aclose()


async def streams_and_events():
    async with ca.current_device().create_stream() as stream:
        x = await ca.full(N, 1.0).schedule(ca.SingleStream(stream))
        await stream.record()
        await ca.fill(x, 2.0)
    await ca.drain()


PROGRAMS = (chain, round_trip, several, looks_at_host_data, shared_by_two, future, graph, streams_and_events)


async def run(program, driver, turns):
    """True when the program came to its end before it was cancelled."""
    ended = False

    async def runs():
        nonlocal ended
        await program()
        ended = True

    async with anyio.create_task_group() as group:
        group.start_soon(runs)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
            driver.advance()
            if ended:
                return True
        group.cancel_scope.cancel()
    return ended


def until_nothing_is_left(device):
    """Work that worker threads are still at comes to its end, too."""
    driver = device.driver
    for _ in range(200):
        driver.advance_all()
        gc.collect()
        device.collect()
        busy = [stream for stream in device._streams if stream._pending or stream._retained]
        if not busy and not device.memory_stats().used_bytes:
            return
        for stream in device._streams:
            stream._submit()
    raise AssertionError((busy, device.memory_stats()))


@pytest.fixture
def no_frozen():
    """What is there already is not looked at again by each collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
async def test_cancel_at_every_turn(program, stepped, no_frozen):
    device = stepped
    for turns in range(MOST_TURNS):
        ended = await run(program, device.driver, turns)
        await anyio.to_thread.run_sync(until_abandoned_is_over)
        until_nothing_is_left(device)
        assert not device._lock.locked()
        future = ca.full(N, 3.0).then(ca.copy).to_host().start()
        async with anyio.create_task_group() as group:
            group.start_soon(check, future)
            while not future.done:
                await anyio.lowlevel.checkpoint()
                device.driver.advance_all()
        del future
        if ended:
            assert turns > 2
            return
    raise AssertionError(f"not at its end after {MOST_TURNS} turns")


async def check(future):
    same(await future, 3)


def until_abandoned_is_over():
    """Preparations that a cancelled task has left to worker threads."""
    from cuda_async.scheduling._workers import abandoned_work

    for work in abandoned_work():
        work.block()
