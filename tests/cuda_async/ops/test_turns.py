"""Tasks that take turns in enqueueing: on one loop, on loops that alternate, and when they are cancelled."""

from __future__ import annotations

import asyncio

import anyio
import pytest

import cuda_async as ca
from cuda_async.ops import _execution, _turns


@pytest.fixture
def no_time(monkeypatch):
    """Every task finds that the turn is used up."""
    monkeypatch.setattr(_turns, "MAX_ENQUEUEING_S", 0.0)
    monkeypatch.setattr(_execution, "MAX_ENQUEUEING_S", 0.0)


@pytest.mark.anyio
async def test_all_get_their_turn(device, no_time):
    results = []

    async def one(i):
        results.append((await ca.full(2, i, "int32").to_host()).tolist())

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for i in range(100):
                group.start_soon(one, i)
    assert sorted(results) == [[i, i] for i in range(100)]


@pytest.mark.anyio
async def test_cancelled_while_waiting_for_a_turn(device, no_time):
    """Does not hold up those behind it."""
    done = []

    async def one(i, scope):
        with scope:
            await ca.zeros(2)
            done.append(i)

    scopes = [anyio.CancelScope() for _ in range(60)]
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for i, scope in enumerate(scopes):
                group.start_soon(one, i, scope)
            await anyio.lowlevel.checkpoint()
            for scope in scopes[::3]:
                scope.cancel()
    assert set(done) >= {i for i in range(60) if i % 3}


@pytest.mark.anyio
async def test_futures_that_are_done_already_give_way_too(device):
    """A task that starts and awaits one after the other lets others run, though none of them suspends it."""
    await ca.zeros(1)
    rounds, reached = 200_000, []

    async def without_waiting():
        for number in range(rounds):
            await ca.value(number).start()
            reached.append(number)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(without_waiting)
            while len(reached) < 100:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert len(reached) < rounds


@pytest.mark.timeout(30)
def test_loops_that_alternate_on_one_thread(device, no_time):
    """A loop that is left for a while finds its tasks' turns when it goes on."""

    async def one():
        return await ca.zeros(4)

    loops = [asyncio.new_event_loop() for _ in range(3)]
    tasks = [[loop.create_task(one()) for _ in range(30)] for loop in loops]
    for _ in range(5):
        for loop in loops:
            loop.run_until_complete(asyncio.sleep(0))
    for loop, own in zip(loops, tasks):
        loop.run_until_complete(asyncio.wait_for(asyncio.gather(*own), 10))
        loop.close()


def test_loop_that_ended_with_tasks_in_the_queue(device, no_time):
    async def leaves():
        for _ in range(30):
            asyncio.get_running_loop().create_task(one())
        await asyncio.sleep(0)

    async def one():
        return await ca.zeros(4)

    for _ in range(3):
        asyncio.run(leaves())
        assert asyncio.run(one()).shape == (4,)


def test_a_trio_run_that_ends_while_tasks_queue():
    """What begins its next turn is called as the run ends. Where it raises, trio ends with an internal error."""
    trio = pytest.importorskip("trio")
    turn = _turns.Turn()
    turn.average_s = 1.0  # one task a turn
    woken = []

    def ended(*_):
        raise trio.RunFinishedError

    turn._loop = loop = object()
    turn._waiting.extend((lambda i=i: woken.append(i), ended) for i in range(2))
    turn._begin(loop)
    assert woken == [0]


def test_an_interrupt_as_a_task_queues_leaves_nobody_behind():
    """Between taking its place and asking for a turn."""
    turn, asked, woken = _turns.Turn(), [], []
    turn._loop = loop = object()

    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turn._queue(lambda: woken.append("interrupted"), loop, interrupted)
    turn._queue(lambda: woken.append("next"), loop, lambda *call: asked.append(call))
    for begin, *arguments in asked:
        begin(*arguments)
    assert woken == ["interrupted", "next"]
