"""Coroutines that nobody finishes: loops closed under them, collected at the worst moment."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

import cuda_async as ca
from cuda_async.testing import stepped_device


class Gated(ca.DeviceOp):
    """Is prepared on a worker thread until told."""

    def __init__(self, release):
        self.release = release

    def prepare(self, ctx):
        assert self.release.wait(10)

    def execute(self, ctx):
        return 1


def waiting_for_the_device(release):
    return ca.zeros(4)


def waiting_for_a_step(release):
    return ca.zeros(4).then(lambda _: Gated(release))


def waiting_for_a_future(release):
    return waiting_for_a_step(release).start()


def waiting_for_another_consumer(release):
    shared = waiting_for_a_step(release).shared()
    shared.start()
    return ca.zeros(3).then(lambda _: shared)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "make", [waiting_for_the_device, waiting_for_a_step, waiting_for_a_future, waiting_for_another_consumer]
)
def test_collected_while_the_device_is_locked(make):
    """The collector may end a suspended coroutine inside any of our own locks, so ending one may take none."""
    device, controls = stepped_device()
    release = threading.Event()

    async def wait():
        await make(release)

    with ca.use_device(device):
        device.policy.next_stream()
        loop = asyncio.new_event_loop()
        cycle = [loop.create_task(wait())]
        cycle[0]._log_destroy_pending = False
        cycle.append(cycle)
        for _ in range(50):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    gc.disable()
    try:
        del cycle, loop
        release.set()
        for stream in list(device._streams):
            while stream._pending:  # what waits for these is told, and finds its loop closed
                controls.advance_all()
                stream._refresh()
        with device._lock:
            gc.collect()
    finally:
        gc.enable()
    device.collect()
    controls.advance_all()
    device.collect()
    assert device.memory_stats().used_bytes == 0


@pytest.mark.timeout(30)
@pytest.mark.parametrize("cancelled", [False, True])
def test_drain_waits_for_futures_that_are_still_preparing(host, cancelled):
    """Forgotten or cancelled, they hold what they were given until a worker thread is through with them."""
    before = host.memory_stats().used_bytes
    release = threading.Event()
    tensor = ca.zeros(1000).sync()
    future = ca.zip(ca.value(tensor), Gated(release)).first().then(ca.copy).start()
    if cancelled:
        assert future.cancel()
    del future, tensor
    timer = threading.Timer(0.01, release.set)
    timer.start()
    ca.drain().sync()
    assert release.is_set()
    gc.collect()  # a free-threaded Python may put off what another thread let go of
    assert host.memory_stats().used_bytes == before
    timer.join()
