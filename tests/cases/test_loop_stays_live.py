"""The loop stays live: a ticker of 1 ms beside whatever the device is asked to do."""

from __future__ import annotations

import gc
import sys
import threading
import time

import anyio
import numpy as np
import pytest

import cuda_async as ca

pytestmark = [pytest.mark.anyio, pytest.mark.timing]

LONGEST_GAP_S = {"host": 0.025, "cuda": 0.025}


async def longest_gap(work):
    """The longest time between two ticks while `work` runs, and when it was, in seconds after the start."""
    worst = (0.0, 0.0)
    running = True

    async def tick():
        nonlocal worst
        last = began
        while running:
            await anyio.sleep(0.001)
            now = time.perf_counter()
            worst = max(worst, (now - last, now - began))
            last = now

    gc.collect()
    gc.freeze()  # what the test run has on its heap takes the collector longer than what is measured here
    try:
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await anyio.sleep(0.005)
            await work()
            await anyio.sleep(0.002)
            running = False
    finally:
        gc.unfreeze()
    return worst


async def expect_live(device, work):
    """Three tries: another process on this machine may hold up one."""
    gaps = []
    for _ in range(3):
        gap, when = await longest_gap(work)
        if gap <= LONGEST_GAP_S[device.kind]:
            return
        gaps.append(f"{gap * 1e3:.1f} ms at {when * 1e3:.0f} ms")
    raise AssertionError(f"the loop was held for {', '.join(gaps)}")


async def test_beside_a_long_kernel(device, latch):
    """Case C40: a kernel of 0.5 s."""

    async def work():
        gate = latch()
        timer = threading.Timer(0.5, gate.open)
        timer.start()
        await gate.hold()
        await anyio.to_thread.run_sync(timer.join)

    await expect_live(device, work)


async def test_beside_an_interpreted_kernel(device, kernels):
    """Case C40 with a kernel that the host device has to compute."""
    count = 1 << 18 if device.kind == "host" else 1 << 26
    tensor = await ca.zeros(count)

    async def work():
        for _ in range(2):
            await kernels.affine.launch(-(-count // 256), 256, ca.mut(tensor), count, 2.0, 1.0)

    await expect_live(device, work)


@pytest.mark.parametrize(
    "size_bytes", [16 << 20, pytest.param(256 << 20, marks=pytest.mark.slow)], ids=["16 MiB", "256 MiB"]
)
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
async def test_beside_large_copies(device, size_bytes, layout):
    """Case C40: upload, and download to memory that is not staged yet."""
    array = np.zeros(size_bytes // 4, np.float32)
    if layout == "strided":
        array = array.reshape(-1, 1024).T

    async def work():
        tensor = await ca.from_host(array)
        await (tensor.to_host() if layout == "contiguous" else tensor.T.to_host())
        await ca.memcpy(tensor, array)

    await expect_live(device, work)


async def test_beside_a_first_compile(device, kernels_can_be_compiled):
    """Case C40: CUDA C++ that was never compiled, and PTX that was never loaded."""

    async def work():
        stamp = time.perf_counter_ns()
        body = "\n".join(f"x[i] = x[i] * {n}.5f + sinf(x[i]);" for n in range(5))
        source = (
            f'extern "C" __global__ void f(float* x, int n) {{ int i = threadIdx.x; /* {stamp} */ {body} }}'
        )
        function = ca.Module.from_cuda_source(source, name=f"first{stamp}.cu").function("f")
        await ca.zeros(32).then(lambda t: function.launch(1, 32, ca.mut(t), 32))

    await expect_live(device, work)


async def test_beside_many_operations_at_once(device):
    """Case C40: 200 at once, of several kinds."""
    array = np.zeros(5000, np.float32)
    kinds = [
        lambda: ca.zeros(1000).to_host(),
        lambda: ca.from_host(array).to_host(),
        lambda: ca.parallel(ca.zeros(10), ca.ones(10)),
        lambda: ca.ones(100).then(lambda t: ca.fill(t, 2.0)).astype("int32"),
    ]

    async def work():
        async with anyio.create_task_group() as group:
            for i in range(200):
                group.start_soon(one, kinds[i % 4])

    async def one(make):
        await make()

    await expect_live(device, work)


async def test_beside_a_busy_task(device):
    """Case C40: one task that awaits one small operation after another."""

    async def work():
        for _ in range(500):
            await ca.full(100, 1.0)

    await expect_live(device, work)


async def test_beside_a_long_chain(device):
    """Case C40: a chain is enqueued back to back, so its length is what the loop waits for; 500 steps are not many."""

    async def work():
        op = ca.zeros(16)
        for i in range(500):
            op = op.then(lambda t, i=i: ca.fill(t, float(i)))
        await op

    await expect_live(device, work)


FIRST_USE = """
import sys, time, asyncio
import numpy as np
import cuda_async as ca

async def main():
    worst, last = 0.0, time.perf_counter()
    running = True

    async def tick():
        nonlocal worst, last
        while running:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            worst, last = max(worst, now - last), now

    task = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    with ca.use_device(sys.argv[1]):
        await ca.from_host(np.ones(1000, np.float32)).to_host()
    running = False
    await task
    print(worst)

asyncio.run(main())
"""


async def test_beside_the_first_use_of_a_device(device, anyio_backend):
    """Case C40: the driver is loaded and the context made on a worker thread. In a new process, three tries."""
    gaps = []
    for _ in range(3):
        done = await anyio.run_process([sys.executable, "-c", FIRST_USE, str(device)])
        gaps.append(float(done.stdout))
        if gaps[-1] <= LONGEST_GAP_S[device.kind]:
            return
    raise AssertionError(f"the loop was held for {gaps} s")


async def test_beside_the_capture_of_a_graph(device):
    """Case C40: 300 nodes are recorded and made a graph, and the graph is replayed."""
    x = await ca.ones(1 << 16)

    async def work():
        op = ca.copy(x)
        for _ in range(299):
            op = op.then(ca.copy)
        graph = await op.graph()
        for _ in range(3):
            await graph.launch()

    await expect_live(device, work)
