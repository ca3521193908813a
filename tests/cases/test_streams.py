"""Streams: a download is whole, a free follows the last use, nobody waits for somebody else's stream."""

from __future__ import annotations

import threading
import time

import anyio
import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio


@pytest.fixture
async def two_streams(device):
    first, second = device.create_stream(name="A"), device.create_stream(name="B")
    yield ca.SingleStream(first), ca.SingleStream(second)
    await first.aclose()
    await second.aclose()


# ------------------------------------------------ Case C13: a download is complete when awaited


@pytest.mark.parametrize("count", [100, 50_000])
async def test_download_is_complete_when_awaited(device, two_streams, count):
    """Case C13: 1000 times, each array is read at once; then the tensor is written on another stream."""
    a, b = two_streams
    tensor = await ca.empty(count, "int32")
    arrays = []
    for i in range(1000 if count == 100 else 100):
        await ca.fill(tensor, i).schedule(a)
        array = await tensor.to_host().schedule(a)
        assert (array == i).all()
        write = ca.fill(tensor, -1).start(b)
        assert (array == i).all()
        if i % 50 == 0:
            arrays.append((i, array))
    await write
    for i, array in arrays:
        assert (array == i).all()


async def test_download_with_a_write_racing_behind(device, two_streams):
    """Case C13: fill, download and the next write are all submitted before anything is awaited.

    A download may have to wait for staging memory before it is submitted, so that is waited for.
    """
    a, b = two_streams
    tensor = await ca.empty(20_000, "int32")
    downloads = []
    for i in range(100):
        ca.fill(tensor, i).start(a)
        downloads.append(tensor.to_host().start(a))
        while downloads[-1].state == "enqueueing":
            await anyio.lowlevel.checkpoint()
        ca.fill(tensor, -1).start(b)
    for i, download in enumerate(downloads):
        assert (await download == i).all()


# -------------------------------------------------------- Case C14: freeing follows the last use


def copy_of(kernels, tensor):
    def copy(new):
        return kernels.copy_floats.launch(16, 256, ca.read(tensor), ca.mut(new), tensor.size)

    return ca.empty(tensor.size).then(copy)[1]


@pytest.mark.parametrize("last_use", ["read", "write"])
async def test_freeing_follows_the_last_use(device, memory_is_back, kernels, latch, two_streams, last_use):
    """Case C14: made on A, last used by a slow kernel on B, dropped by another thread, and made anew on A."""
    a, b = two_streams
    count = 4096
    await ca.zip(
        *(ca.zeros(count).to_host() for _ in range(3))
    )  # staging memory, so that all is submitted at once
    for i in range(100 if device.kind == "host" else 300):
        gate = latch()
        tensor = await ca.full(count, float(i)).schedule(a)
        uses = ca.read(tensor) if last_use == "read" else ca.mut(tensor)
        gate.hold(uses).start(b)
        if last_use == "read":
            copied = copy_of(kernels, tensor)
        else:
            copied = kernels.affine.launch(16, 256, ca.mut(tensor), count, 1.0, 0.0).first()
        result = copied.to_host().start(b)
        del copied, uses
        holder = [tensor]
        del tensor
        thread = threading.Thread(target=holder.clear)
        thread.start()
        thread.join()
        fill = ca.full(count, 7.0).to_host().start(a)
        gate.open()
        assert (await fill == 7.0).all()
        assert (await result == i).all()
    del fill, result


# ------------------------------------------------------ Case C15: streams do not wait for each other


@pytest.mark.parametrize("what", ["download", "upload", "kernel", "new tensor", "strided", "event"])
async def test_stream_does_not_wait_for_another(device, kernels, latch, two_streams, what):
    """Case C15: while a kernel holds B, work on A is done within 0.2 s."""
    a, b = two_streams
    tensor = await ca.full((64, 64), 3.0)
    array = np.ones((64, 64), np.float32)

    def work():
        if what == "download":
            return tensor.to_host()
        if what == "upload":
            return ca.from_host(array).to_host()
        if what == "kernel":
            return kernels.affine.launch(16, 256, ca.mut(tensor), 4096, 1.0, 0.0)
        if what == "new tensor":
            return ca.zeros((64, 64)).to_host()
        if what == "strided":
            return tensor.T[::2].to_host()
        return ca.copy(tensor)

    await work().schedule(a)  # staging memory and code are there from now on
    gate = latch()
    held = gate.hold().start(b)
    with anyio.fail_after(5):
        began = time.perf_counter()
        if what == "event":
            work().start(a)
            await a.next_stream().record()
        else:
            await work().schedule(a)
        took_s = time.perf_counter() - began
        assert not held.done
        gate.open()
        await held
    assert took_s < 0.2
