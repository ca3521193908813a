"""Random operations: cancelled anywhere, from many threads and loops at once, on a device that is lost."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading

import anyio
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver.host import HostDriver
from cuda_async.scheduling import _device
from cuda_async.testing import explore


def settled(device):
    """What is live once everything is done and dropped."""
    for _ in range(3):
        gc.collect()
        device.synchronize()
        device.collect()
    return (
        device.memory_stats().used_bytes,
        sum(len(stream._retained) + len(stream._pending) for stream in device._streams),
    )


# ------------------------------------------------------------------------- cancelled anywhere


class Prepared(ca.DeviceOp):
    def prepare(self, ctx):
        pass

    def execute(self, ctx):
        return ctx.empty((4,), "float32")


class Builder:
    """Random trees of operations; what they yield does not matter."""

    def __init__(self, device, seed):
        self.device = device
        self.chance = random.Random(seed)

    def leaf(self):
        kinds = [
            lambda: ca.value(1),
            lambda: ca.zeros(16),
            lambda: ca.full(10, 3.0).to_host(),
            lambda: ca.from_host(np.ones(9000)),
            lambda: ca.empty(0),
            Prepared,
        ]
        return self.chance.choice(kinds)()

    def tree(self, depth):
        kind = self.chance.randrange(14)
        if depth == 0 or kind < 3:
            return self.leaf()
        a = self.tree(depth - 1)
        if kind == 3:
            return ca.zip(a, self.tree(depth - 1))
        if kind == 4:
            return ca.parallel(a, self.tree(depth - 1), self.tree(depth - 1))
        if kind == 5:
            return a.map(lambda x: x)
        if kind == 6:
            return a.then(lambda x: ca.value(x))
        if kind == 7:
            return a.shared()
        if kind == 8:
            return a.schedule(ca.SingleStream(self.device.policy.next_stream()))
        if kind == 9:
            b = self.tree(depth - 1)
            return a.then(lambda _: b)
        if kind == 10:
            return ca.zip(a, self.tree(depth - 1)).unzip()[self.chance.randrange(2)]
        if kind == 11:
            return a.inspect(lambda _: None)
        if kind == 12:
            shared = a.shared()
            return ca.zip(shared, shared, shared.map(lambda x: x))
        return ca.with_context(lambda _: a)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 20))], ids=lambda n: f"seed{n}"
)
async def test_cancelled_after_any_number_of_turns(device, seed):
    with anyio.fail_after(60):
        ended = await cancel_many(device, seed, rounds=250, turns=20)
    assert min(ended.values()) > 0


def test_cancelled_at_any_moment_in_any_order():
    for seed in range(20, 24):
        explore(lambda device, seed=seed: cancel_many(device, seed, rounds=10, turns=8), seeds=10)


async def cancel_many(device, seed, rounds, turns):
    """Run random operations and cancel each at some moment; at the end nothing is left. How many ended in which way."""
    before = settled(device)
    builder = Builder(device, seed)
    chance = builder.chance
    ended = {"result": 0, "cancelled": 0}

    async def cancel_after(turns, scope):
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    for _ in range(rounds):
        op = builder.tree(4)
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                group.start_soon(cancel_after, chance.randrange(turns), scope)
                await op
            ended["cancelled" if scope.cancelled_caught else "result"] += 1
    op = None
    builder = None
    await ca.drain()
    assert settled(device) == before
    return ended


# ----------------------------------------------------------------- many threads, several loops


class Load:
    """Operations with known results, from anywhere."""

    def __init__(self, device, rounds):
        self.device = device
        self.rounds = rounds
        self.problems = []
        self.shared = ca.full(500, 11.0).shared()
        self.tensor = ca.full(1000, 5.0).sync()

    def operation(self, chance):
        """(operation, what each element must be)."""
        number = chance.randrange(1, 200)
        kind = chance.randrange(6)
        if kind == 0:
            return ca.full(100, float(number)).to_host(), number
        if kind == 1:
            return ca.from_host(np.full(12_000, number, np.float32)).to_host(), number
        if kind == 2:
            return self.shared.to_host(), 11
        if kind == 3:
            return self.tensor[10:20].to_host(), 5
        if kind == 4:
            op = ca.full((7, 9), 1.0).then(
                lambda t: ca.fill(t[:, ::2], float(number)).map(lambda _: t[:, ::2])
            )
            return op.then(ca.copy).to_host(), number
        shared = ca.full(50, float(number)).shared()
        views = ca.parallel(
            shared.to_host(), shared.map(lambda t: t[5:]).to_host(), shared.then(ca.copy).to_host()
        )
        return views.map(np.concatenate), number

    def check(self, array, expected, where):
        if not (array == expected).all():
            self.problems.append(f"{where}: {expected} expected, got {np.unique(array)}")

    def in_thread(self, seed):
        chance = random.Random(seed)
        for _ in range(self.rounds):
            op, expected = self.operation(chance)
            how = chance.randrange(3)
            if how == 0:
                array = op.sync()
            elif how == 1:
                array = op.start().sync()
            else:
                array = op.sync_on(self.device.policy.next_stream())
            self.check(array, expected, "thread")

    async def in_task(self, chance):
        for _ in range(self.rounds // 3):
            op, expected = self.operation(chance)
            with anyio.move_on_after(chance.choice([10, 10, 1e-4, 1e-3])):
                array = await (op.start() if chance.random() < 0.5 else op)
                self.check(array, expected, "task")

    async def in_loop(self, seed):
        chance = random.Random(seed)
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(self.in_task, chance)

    def in_asyncio(self, seed):
        asyncio.run(self.in_loop(seed))

    def in_trio(self, seed):
        import trio

        trio.run(self.in_loop, seed)

    def with_streams(self, seed):
        """Streams that come and go."""
        for _ in range(self.rounds // 4):
            first, second = self.device.create_stream(), self.device.create_stream()
            tensor = ca.full(30, 4.0).sync_on(first)
            copied = self.shared.then(ca.copy).start(ca.SingleStream(first))
            second.wait(first.record())
            self.check(ca.fill(tensor, 5.0).to_host().sync_on(second), 5, "streams")
            self.check(copied.sync().to_host().sync(), 11, "streams")
            first.close()
            second.close()
            self.device.memory_stats()

    def guarded(self, f, *args):
        try:
            f(*args)
        except BaseException as error:
            self.problems.append(repr(error))


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_threads_and_loops_at_once(device, rounds, monkeypatch):
    pytest.importorskip("trio")
    before = settled(device)
    monkeypatch.setattr(device, "_poison", True)
    load = Load(device, rounds)
    jobs = [(load.in_thread, seed) for seed in range(3)]
    jobs += [(load.in_asyncio, 10), (load.in_trio, 11), (load.with_streams, 20)]
    threads = [threading.Thread(target=load.guarded, args=job) for job in jobs]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    gc.freeze()  # what other tests have loaded need not be looked through again and again
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            gc.collect()
            threads[0].join(0.02)
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()
    assert load.problems == []
    del load, jobs, threads
    assert settled(device) == before


# ---------------------------------------------------------------------------- a device that is lost


@pytest.fixture
def private(monkeypatch):
    """A host device of the test's own, which may break."""
    driver = HostDriver()
    device = ca.Device._make("host", 0, driver)
    monkeypatch.setattr(_device, "_default", device)
    yield device
    driver.close()


@pytest.mark.anyio
async def test_everything_fails_when_the_device_is_lost(private):
    """Whatever it waited for, and whatever comes later, with the cause; closing and collecting go on quietly."""
    release = threading.Event()

    class Gated(ca.DeviceOp):
        def prepare(self, ctx):
            assert release.wait(10)

        def execute(self, ctx):
            return ctx.empty(3, "float32")

    def held(tensor):
        return ca.foreign(lambda stream: release.wait(10), writes=[tensor])

    outcomes = {}

    async def note(name, awaitable):
        try:
            await awaitable
        except Exception as error:
            outcomes[name] = error
        else:
            outcomes[name] = None

    tensor = await ca.zeros(3)
    stream = private.create_stream()
    event_source = ca.value(1).then(lambda _: held(tensor)).start(ca.SingleStream(stream))
    while event_source.state == "enqueueing":
        await anyio.lowlevel.checkpoint()
    event = stream.record()
    shared = ca.value(1).then(lambda _: held(tensor)).shared()
    preparing = ca.zeros(3).then(lambda _: Gated()).shared()
    pending = {
        "operation": ca.value(1).then(lambda _: held(tensor)),
        "future": ca.value(1).then(lambda _: held(tensor)).start(),
        "event": event,
        "shared": shared,
        "consumer": shared.map(lambda x: x),
        "preparing": Gated(),
        "shared, preparing": preparing,
        "future, preparing": Gated().start(),
        "download": ca.value(1)
        .then(lambda _: held(tensor))
        .then(lambda _: tensor.to_host())
        .map(lambda a: a.sum()),
        "parallel": ca.parallel(ca.value(1).then(lambda _: held(tensor)), Gated()),
    }
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for name, awaitable in pending.items():
                group.start_soon(note, name, awaitable)
            for _ in range(20):
                await anyio.sleep(0.002)
            private.driver.fail_device(ValueError("fault"))
            await anyio.sleep(0.01)
            release.set()
        later = {
            "new": ca.zeros(3),
            "value": ca.value(1),
            "shared again": shared,
            "never started": ca.zeros(3).shared(),
            "of a tensor": tensor.to_host(),
            "started": ca.value(1).shared(),
        }
        for name, awaitable in later.items():
            await note(name, awaitable)
    assert set(outcomes) == {*pending, *later}
    for name, error in outcomes.items():
        assert isinstance(error, ca.DeviceLostError), name
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        assert isinstance(cause, ValueError), name
    assert not private.is_healthy
    for call in (private.synchronize, stream.synchronize, private.create_stream, stream.record):
        with pytest.raises(ca.DeviceLostError):
            call()
    private.collect()
    event.close()
    await stream.aclose()
    stream.close()
    with ca.use_device("host:0"):
        assert (await ca.ones(3).to_host()).tolist() == [1, 1, 1]
