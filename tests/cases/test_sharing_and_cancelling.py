"""Shared operations, single use, timeouts, and cancelling at the finish line."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import threading
import time

import anyio
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio

TASK_LOOPS = [
    pytest.param(("asyncio", {}), id="asyncio"),
    pytest.param(
        ("asyncio", {"use_uvloop": True}),
        id="uvloop",
        marks=pytest.mark.skipif(not importlib.util.find_spec("uvloop"), reason="uvloop is not installed"),
    ),
]


# --------------------------------------- Case C10: one waiter of a shared operation goes away


class Prepared(ca.DeviceOp):
    """Is pending until `release` is set, on a worker thread; counts its runs."""

    def __init__(self, release, runs):
        self.release, self.runs = release, runs

    def prepare(self, ctx):
        assert self.release.wait(10)

    def execute(self, ctx):
        self.runs.append(1)
        return 42


def pending_in_prepare(latch, runs):
    release = threading.Event()
    return Prepared(release, runs), release.set


def pending_on_the_device(latch, runs):
    gate = latch()
    op = gate.hold().then(lambda _: ca.full((), 42, "int32").inspect(runs.append).to_host()).map(int)
    return op, gate.open


@pytest.mark.parametrize("pending", [pending_in_prepare, pending_on_the_device])
@pytest.mark.parametrize("cancelled", [{0}, {1}, {0, 1}, {1, 2}, {0, 2}], ids=str)
async def test_waiter_of_a_shared_operation_goes_away(device, latch, pending, cancelled):
    """Case C10: first or second to wait; the others get the value and the work ran once."""
    runs, results = [], {}
    source, release = pending(latch, runs)
    op = source.shared()
    scopes = [anyio.CancelScope() for _ in range(3)]

    async def wait(i):
        with scopes[i]:
            results[i] = await op

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for i in range(3):
                group.start_soon(wait, i)
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()
            for i in cancelled:
                scopes[i].cancel()
            await anyio.lowlevel.checkpoint()
            release()
        assert await op == 42
    assert results == {i: 42 for i in range(3) if i not in cancelled}
    assert len(runs) == 1


@pytest.mark.parametrize("pending", [pending_in_prepare, pending_on_the_device])
async def test_all_waiters_go_away(device, latch, pending):
    """Case C10: the operation belongs to nobody, so it still runs once, and late comers get the value."""
    runs = []
    source, release = pending(latch, runs)
    op = source.shared()
    with anyio.move_on_after(0.005):
        await op
    release()
    with anyio.fail_after(5):
        assert await op == 42
        assert await op.map(lambda x: x + 1) == 43
    assert len(runs) == 1


@pytest.mark.parametrize("use", ["zip", "parallel", "then", "start"])
async def test_waiter_in_a_composition_goes_away(device, latch, use):
    """Case C10 where the shared operation is a part of another."""
    runs = []
    source, release = pending_in_prepare(latch, runs)
    op = source.shared()

    def other():
        if use == "zip":
            return ca.zip(ca.value(1), op).map(sum)
        if use == "parallel":
            return ca.parallel(ca.value(1), op).map(sum)
        if use == "start":
            return op.map(lambda x: x + 1).start()
        return ca.value(1).then(lambda one: op.map(lambda x: x + one))

    with anyio.move_on_after(0.005):
        await other()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            results = []

            async def wait():
                results.append(await other())

            group.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            release()
    assert results == [43]
    assert len(runs) == 1


# ----------------------------------------------- Case C11: awaiting a plain operation twice


def plain_operations(counter):
    """Operations of different make that add one to a counter when they run."""

    class Custom(ca.DeviceOp):
        def execute(self, ctx):
            counter.append(1)
            return 1

    return {
        "custom": Custom(),
        "map": ca.value(1).inspect(counter.append),
        "then": ca.value(1).then(lambda x: ca.value(x).inspect(counter.append)),
        "device": ca.ones(4).inspect(counter.append),
        "zip": ca.zip(ca.value(1).inspect(counter.append), ca.value(2)),
        "parallel": ca.parallel(ca.value(1).inspect(counter.append)),
        "with_context": ca.with_context(lambda ctx: ca.value(1).inspect(counter.append)),
        "scheduled": ca.value(1).inspect(counter.append).schedule(ca.SingleStream()),
        "component": ca.zip(ca.value(1).inspect(counter.append), ca.value(2)).unzip()[0],
    }


USES = {
    "await": lambda op: op,
    "zip": lambda op: ca.zip(ca.value(0), op),
    "parallel": lambda op: ca.parallel(ca.value(0), op),
    "collect": lambda op: ca.collect([op]),
    "then": lambda op: op.then(lambda _: ca.value(0)),
    "map": lambda op: op.map(lambda _: 0),
    "shared": lambda op: op.shared(),
    "schedule": lambda op: op.schedule(ca.SingleStream()),
    "start": lambda op: op.start(),
    "in a callback": lambda op: ca.value(0).then(lambda _: op),
}


@pytest.mark.parametrize("kind", sorted(plain_operations([])))
@pytest.mark.parametrize("second", USES)
async def test_second_use_is_an_error(device, kind, second):
    """Case C11: the counter is 1; a second use says that the operation was consumed."""
    counter = []
    op = plain_operations(counter)[kind]
    with anyio.fail_after(5):
        await op
        with pytest.raises(ca.ConsumedError, match=r"already run.*\.shared\(\)"):
            await USES[second](op)
    assert len(counter) == 1


@pytest.mark.parametrize("first", [use for use in USES if use not in ("await", "in a callback")])
async def test_awaiting_what_was_composed_is_an_error(device, first):
    """Case C11: the same operation alone and inside a zip."""
    counter = []
    op = ca.value(1).inspect(counter.append)
    with anyio.fail_after(5):
        whole = USES[first](op)
        with pytest.raises(ca.ConsumedError):
            await op
        await whole
    assert len(counter) == 1


async def test_two_tasks_await_one_plain_operation(device, latch):
    """Case C11: the second is refused while the first waits."""
    gate = latch()
    counter = []
    op = gate.hold().inspect(counter.append)

    async def wait():
        await op

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            while not counter:
                await anyio.lowlevel.checkpoint()
            with pytest.raises(ca.ConsumedError):
                await op
            gate.open()
    assert len(counter) == 1


# ---------------------------------------- Case C12: timeouts, and cancelling at the finish line


def asyncio_timeout(awaitable):
    async def run():
        async with asyncio.timeout(0.05):
            await awaitable

    return run()


def asyncio_wait_for(awaitable):
    return asyncio.wait_for(awaitable, 0.05)


def anyio_fail_after(awaitable):
    async def run():
        with anyio.fail_after(0.05):
            await awaitable

    return run()


@pytest.mark.timing
@pytest.mark.parametrize("limit", [asyncio_timeout, asyncio_wait_for, anyio_fail_after])
@pytest.mark.parametrize("kind", ["operation", "future", "event", "shared", "preparing"])
async def test_timeout_around_a_long_operation(device, latch, anyio_backend, limit, kind):
    """Case C12 (a): the loop's own error within 0.25 s; the task carries no left-over request to cancel it."""
    if anyio_backend[0] == "trio" and limit is not anyio_fail_after:
        pytest.skip("a timeout of asyncio")
    gate, release = latch(), threading.Event()
    stream = device.create_stream()
    if kind == "event":
        gate.hold().start(ca.SingleStream(stream))
        waited = stream.record()
    elif kind == "preparing":
        waited = Prepared(release, [])
    else:
        op = gate.hold()
        waited = {"operation": op, "future": None, "shared": None}[kind]
        waited = waited or (op.start() if kind == "future" else op.shared())
    began = time.perf_counter()
    with pytest.raises(TimeoutError):
        await limit(waited)
    assert time.perf_counter() - began < 0.25
    if anyio_backend[0] == "asyncio":
        assert asyncio.current_task().cancelling() == 0
    await anyio.lowlevel.checkpoint()
    assert await ca.value(3).start() == 3
    gate.open()
    release.set()
    await stream.aclose()


@pytest.mark.parametrize("waits_first", ["the one that cancels", "the one that is cancelled"])
async def test_cancel_in_the_tick_of_completion(device, waits_first):
    """Case C12 (b): two tasks are woken by one completion in one turn of the loop, and one cancels the other.

    2000 times; each ends with the result or cancelled, and a cancelled task never carries on past the await.
    """
    ended = {"result": 0, "cancelled": 0}

    async def once():
        future = ca.full(4, 5.0).start()
        scope = anyio.CancelScope()
        carried_on = []

        async def victim():
            with scope:
                await future
                carried_on.append(1)

        async def canceller():
            await future
            scope.cancel()

        async with anyio.create_task_group() as group:
            tasks = [canceller, victim] if waits_first == "the one that cancels" else [victim, canceller]
            for task in tasks:
                group.start_soon(task)
        if scope.cancelled_caught:
            ended["cancelled"] += 1
            assert carried_on == []
        else:
            ended["result"] += 1
            assert carried_on == [1]

    with anyio.fail_after(60):
        for _ in range(2000):
            await once()
    assert sum(ended.values()) == 2000


@pytest.mark.parametrize("anyio_backend", TASK_LOOPS)
async def test_task_cancel_around_completion(stepped, anyio_backend):
    """Case C12 (b) with `Task.cancel`: in every order of completing, noticing and cancelling within a few turns."""
    passed = []

    async def wait(future):
        result = await future
        passed.append(1)
        return result

    for turns, first in itertools.product(range(6), ["complete", "cancel"]):
        for notice in (True, False):
            passed.clear()
            future = ca.full(4, 5.0).start()
            task = asyncio.create_task(wait(future))
            for _ in range(turns):
                await asyncio.sleep(0)
            for step in [first, "cancel" if first == "complete" else "complete"]:
                if step == "complete":
                    stepped.driver.advance_all()
                    if notice:
                        assert future.done
                else:
                    task.cancel()
            await asyncio.wait([task], timeout=5)
            assert task.done()
            assert task.cancelled() is not bool(passed)
            assert (await future).shape == (4,)
