"""Memory that the device still uses is neither freed nor overwritten."""

from __future__ import annotations

import random

import anyio
import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio


def sizes(small, full):
    """Counts for the normal run, and those of the case as a slow one."""
    return [pytest.param(small, id="scaled"), pytest.param(full, id="full", marks=pytest.mark.slow)]


# ------------------------------------------------------------------ Case C01: cancel in flight


@pytest.mark.parametrize("rounds", sizes(12, 200))
async def test_cancel_while_work_is_in_flight(device, memory_is_back, kernels, latch, rounds):
    """Case C01: a task that is cancelled leaves its memory to the device; tensors made at once are not touched by it.

    The task uploads, runs a kernel behind a closed latch, and downloads; so it is in flight whenever it is cancelled.
    """
    count = 1 << 16 if device.kind == "host" else 1 << 24
    chance = random.Random(rounds)
    array = np.arange(count, dtype=np.float32)
    streams = [device.create_stream() for _ in range(4)]
    grid = -(-count // 256)
    await ca.from_host(array).to_host()  # makes the staging memory, which a held device may not do

    async def work(stream, latch):
        def slow(tensor):
            return latch.hold(ca.mut(tensor)).then(
                lambda _: kernels.affine.launch(grid, 256, ca.mut(tensor), count, 2.0, 1.0)
            )

        op = ca.from_host(array).then(slow).first().to_host()
        await op.schedule(ca.SingleStream(stream))
        raise AssertionError("the latch was open before the task was cancelled")

    for number in range(rounds):
        gate = latch()
        own = streams[number % 4]
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(work, own, gate)
                if number % 3:
                    await anyio.sleep(chance.uniform(0, 0.05 if rounds > 100 else 0.02))
                else:  # while the upload is being staged, more or less
                    for _ in range(number):
                        await anyio.lowlevel.checkpoint()
                scope.cancel()
        assert scope.cancelled_caught
        fills = [
            ca.full(count, 7.0).to_host().start(ca.SingleStream(stream))
            for stream in streams
            if stream is not own
        ]
        gate.open()
        for fill in fills:
            assert (await fill == 7.0).all()
    del fills, fill
    for stream in streams:
        await stream.aclose()


@pytest.mark.parametrize("phase", ["fill", "copy", "download"])
async def test_cancelled_chain_keeps_writing_only_its_own_memory(device, memory_is_back, latch, phase):
    """Case C01, for other operations than kernels behind the latch."""
    stream = device.create_stream()
    policy = ca.SingleStream(stream)
    await ca.zeros(5000).to_host()
    for _ in range(10):
        gate = latch()

        def behind(tensor, gate=gate):
            def then(_):
                if phase == "fill":
                    return ca.fill(tensor, 99.0)
                return ca.copy(tensor) if phase == "copy" else tensor.to_host()

            return gate.hold(ca.mut(tensor)).then(then)

        with anyio.move_on_after(0.002) as scope:
            await ca.full(5000, 3.0).then(behind).schedule(policy)
        assert scope.cancelled_caught
        others = [ca.full(5000, float(i)).to_host().start() for i in range(8)]
        gate.open()
        for i, other in enumerate(others):
            assert (await other == i).all()
        del others, other
    await stream.aclose()


# ------------------------------------------- Case C02: the source array after an awaited upload


def plain(count):
    return np.zeros(count, np.int32)


def pinned(count):
    """An array in page-locked memory."""
    return ca.zeros(count, "int32").to_host().sync()


@pytest.mark.parametrize("make", [plain, pinned])
@pytest.mark.parametrize(
    ("count", "steps"),
    [
        pytest.param(1000, 60, id="staged on the loop"),
        pytest.param(20_000, 40, id="staged on a worker"),
        pytest.param(1 << 20, 500, id="full", marks=pytest.mark.slow),
    ],
)
async def test_source_array_may_change_after_the_await(device, make, count, steps):
    """Case C02."""
    array = make(count)
    tensors = []
    for i in range(steps):
        array[:] = i
        tensors.append(await ca.from_host(array))
    for i, tensor in enumerate(tensors):
        assert (await tensor.to_host() == i).all()


@pytest.mark.parametrize("make", [plain, pinned])
@pytest.mark.parametrize("combine", [ca.zip, ca.parallel])
async def test_several_uploads_of_one_array_at_once(device, make, combine):
    """Case C02 with 8 uploads per step."""
    array = make(20_000)
    groups = []
    for i in range(8):
        array[:] = i
        groups.append(await combine(*(ca.from_host(array) for _ in range(8))))
    for i, group in enumerate(groups):
        for tensor in group:
            assert (await tensor.to_host() == i).all()


@pytest.mark.parametrize("count", [1000, 20_000])
async def test_source_of_an_upload_into_a_tensor_may_change(device, count):
    """Case C02 for `memcpy`, whole and into a strided view."""
    array = np.zeros(count, np.int32)
    whole, view = [], []
    for i in range(20):
        array[:] = i
        whole.append(await ca.empty(count, "int32").then(lambda t: ca.memcpy(t, array)))
        view.append(await ca.zeros((count, 2), "int32"))
        await ca.memcpy(view[-1][:, 1], array)
    for i in range(20):
        assert (await whole[i].to_host() == i).all()
        assert (await view[i].to_host() == [0, i]).all()
