"""Many captures and replays, beside other work: results right, memory flat."""

from __future__ import annotations

import gc
import os

import anyio
import numpy as np
import pytest

import cuda_async as ca

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        bool(os.environ.get("CUDA_ASYNC_HOST_CHECK")), reason="the checking mode remembers accesses"
    ),
]


@pytest.mark.parametrize(
    ("captures", "replays"),
    [
        pytest.param(20, 5, id="scaled"),
        pytest.param(1000, 100, id="full", marks=pytest.mark.slow),
    ],
)
async def test_captures_and_replays_leave_nothing(device, kernels, captures, replays):
    x = await ca.ones(256)
    other = await ca.zeros(256)
    running = True

    async def work_beside():
        """On streams of the pool, over tensors that the graphs read too."""
        while running:
            copied = await ca.copy(x)
            await kernels.add_to.launch(1, 256, ca.mut(other), ca.read(copied), ca.read(x), 256)

    def step(value):
        both = ca.parallel(kernels.scaled(x, value, 0.0), kernels.scaled(x, 1.0, value))
        return both.then(lambda ab: ca.copy(ab[1]).map(lambda c: (ab[0], c)))

    async def rounds(count):
        for i in range(count):
            async with await step(float(i)).graph() as graph:
                for _ in range(replays - 1):
                    await graph.launch()
                a, c = await graph.launch()
                assert (await a.to_host())[0] == i
                assert (await c.to_host())[0] == 1 + i

    async with anyio.create_task_group() as group:
        group.start_soon(work_beside)
        await rounds(3)  # pools and caches reach their size
        gc.collect()
        before = (device.memory_stats().reserved_bytes, len(gc.get_objects()))
        await rounds(captures)
        gc.collect()
        after = (device.memory_stats().reserved_bytes, len(gc.get_objects()))
        running = False
    assert after[0] <= before[0] + (1 << 20)
    assert after[1] <= before[1] + 500
    assert np.isfinite(await other.to_host()).all()


async def test_one_graph_many_replays(device, kernels):
    """Each launch reads what the last one wrote."""
    n = await ca.full(1, 300, "int32")
    graph = await kernels.count_down.launch(1, 1, ca.mut(n)).graph()
    streams = [ca.SingleStream(device.create_stream()) for _ in range(3)]
    futures = [graph.launch().start(streams[i % 3]) for i in range(300)]
    for future in futures:
        await future
    assert (await n.to_host()).tolist() == [0]
