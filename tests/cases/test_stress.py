"""Many small operations from many tasks, many of them cancelled, with freed memory overwritten."""

from __future__ import annotations

import gc
import random

import anyio
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.ops import _execution
from cuda_async.scheduling import _device

pytestmark = pytest.mark.anyio


@pytest.fixture
def poisoned(device, monkeypatch):
    """The device with freed memory overwritten; on the host, one of the test's own."""
    monkeypatch.setenv("CUDA_ASYNC_POISON_FREED", "1")
    if device.kind == "host":
        from cuda_async.driver.host import HostDriver

        driver = HostDriver()
        device = ca.Device._make("host", 0, driver)
        monkeypatch.setattr(_device, "_default", device)
    monkeypatch.setattr(device, "_poison", True)
    yield device
    if device.kind == "host":
        driver.close()


def idle(device):
    """Everything is done and freed; what is still live then: tensors, pool, staging blocks in use."""
    gc.collect()
    for _ in range(3):
        device.synchronize()
    pinned = device.pinned
    pinned.take_cached(1)  # takes back what was returned
    gc.collect()
    pinned.take_cached(1)
    cached = sum(size * len(blocks) for size, blocks in pinned._free.items())
    return {
        "live": device.memory_stats().used_bytes,
        "pool": device.driver.pool_statistics().used_bytes,
        "staging": pinned.reserved_bytes - cached - len(pinned._returned) * 4096,
        "retained": sum(len(stream._retained) for stream in device._streams),
        "pending": sum(len(stream._pending) for stream in device._streams),
        "notes": len(device._notes),
    }


class Stress:
    """`awaits` operations from 100 tasks; `cancels` of them are cancelled, at random moments."""

    def __init__(self, kernels, latch, seed, monkeypatch):
        self.latch = latch
        self.affine = kernels.affine
        self.chance = random.Random(seed)
        self.landed = self.cancelled = self.completed = 0
        self.kept = None
        original = _execution.wait_until_done

        async def counted(submission):
            try:
                await original(submission)
            except anyio.get_cancelled_exc_class():
                # Not done even now: the cancel came between submission and completion.
                self.landed += not submission.poll()
                raise

        monkeypatch.setattr(_execution, "wait_until_done", counted)

    def operation(self):
        """A small operation, and the check of what it yields."""
        chance = self.chance
        number = chance.randrange(1, 250)
        size = chance.choice([1, 16, 100, 700])
        kind = chance.randrange(8)
        if kind == 0:
            return ca.full(size, number, "int32").to_host(), lambda a: (a == number).all()
        if kind == 1:
            array = np.full(size, number, np.float32)
            return ca.from_host(array).to_host(), lambda a: (a == number).all()
        if kind == 2:
            op = ca.full(size, 0.0).then(lambda t: ca.fill(t, float(number))).astype("int16").to_host()
            return op, lambda a: (a == number).all()
        if kind == 3:
            branches = [ca.full(size, number + i, "int32").to_host() for i in range(3)]
            return ca.parallel(*branches), lambda t: all((a == number + i).all() for i, a in enumerate(t))
        if kind == 4:
            return self.kept.to_host(), lambda a: (a == 77).all()
        if kind == 5:
            op = ca.zeros((size, 2), "int32").then(lambda t: ca.fill(t[:, 1], number).map(lambda _: t))
            return op.to_host(), lambda a: (a == [0, number]).all()
        if kind == 6:
            return ca.zip(self.kept.to_host(), ca.copy(self.kept[:50])).first(), lambda a: (a == 77).all()
        op = (
            ca.full(16, float(number))
            .then(lambda t: self.affine.launch(1, 16, ca.mut(t), 16, 2.0, 1.0))
            .first()
        )
        return op.to_host(), lambda a: (a == 2 * number + 1).all()

    async def cancel_later(self, scope, turns):
        for _ in range(self.chance.randrange(0, turns)):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    async def one_task(self, moments):
        async with anyio.create_task_group() as group:
            for cancels in moments:
                op, check = self.operation()
                gate = None
                if (
                    cancels and self.chance.random() < 0.6
                ):  # a device may be too fast for a cancel to come in time
                    gate = self.latch()
                    op = gate.hold().then(lambda _, op=op: op)
                with anyio.CancelScope() as scope:
                    if cancels:
                        # What is held back can be cancelled late: tasks take turns in enqueueing.
                        group.start_soon(self.cancel_later, scope, 4 if gate is None else 60)
                    result = await op
                    assert check(result)
                    self.completed += 1
                self.cancelled += scope.cancelled_caught
                op = result = None
                if gate is not None:
                    gate.open()

    async def run(self, awaits, cancels):
        self.kept = await ca.full(1000, 77, "int32")
        moments = [True] * cancels + [False] * (awaits - cancels)
        self.chance.shuffle(moments)
        async with anyio.create_task_group() as group:
            for i in range(100):
                group.start_soon(self.one_task, moments[i::100])
        assert (await self.kept.to_host() == 77).all()
        self.kept = None


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 12))], ids=lambda n: f"seed{n}"
)
async def test_awaits_with_cancels(poisoned, kernels, latch, monkeypatch, seed):
    """10,000 awaits of small operations from 100 tasks with 1,000 random cancels.

    At least 300 of these land between submission and completion. No wrong value, and memory is back to the start.
    """
    device = poisoned
    start = idle(device)
    run = Stress(kernels, latch, seed, monkeypatch)
    await run.run(10_000, 1_000)
    assert idle(device) == start
    assert run.completed + run.cancelled == 10_000
    assert run.landed >= 300
    print(f"{run.cancelled} cancelled, {run.landed} between submission and completion")
