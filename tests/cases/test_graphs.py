"""Graphs: what they keep, what their outputs hold, what a capture leaves behind."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import threading
import time

import anyio
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from cuda_async.errors import CaptureError, StaleOutputError

pytestmark = pytest.mark.anyio


def affine(kernels, x, a, b):
    """x = a*x + b, in place."""
    n = x.size
    return kernels.affine.launch(-(-n // 256), 256, ca.mut(x), n, a, b).first()


def affine_of(kernels, x, a, b):
    """A new tensor a*x + b."""
    return ca.copy(x).then(lambda y: affine(kernels, y, a, b))


# ------------------------------------------------------- Case C03: a graph keeps what it uses


async def test_graph_keeps_what_it_uses(device, memory_is_back, kernels):
    """Case C03: tensors exist only inside the capture; others of their size are made and filled meanwhile."""
    count = 4096

    async def capture():
        x = await ca.from_host(np.arange(count, dtype="f4"))
        y = await ca.ones(count)
        op = affine(kernels, y, 0.0, 3.0).then(
            lambda t: affine_of(kernels, x, 2.0, 1.0).map(lambda z: (t, z))
        )
        return await op.graph()

    graph = await capture()
    gc.collect()
    others = [await ca.full(count, -1.0) for _ in range(100)]
    for _ in range(100):
        t, z = await graph.launch()
    assert (await t.to_host() == 3.0).all()
    assert (await z.to_host() == 2.0 * np.arange(count, dtype="f4") + 1.0).all()
    for other in others:
        assert (await other.to_host() == -1.0).all()
    del graph, t, z, others, other


# ----------------------------------------------------------- Case C04: results of two replays


async def test_results_of_two_replays(device, kernels):
    """Case C04: the first result is 4.0, and after the second replay an error, never 6.0."""
    x = await ca.zeros(16)
    graph = await affine_of(kernels, x, 2.0, 1.0).graph(inputs={"x": x})
    first = await graph.replay(x=1.5)
    kept = await ca.copy(first)
    second = await graph.replay(x=2.5)
    assert (await second.to_host() == 6.0).all()
    assert (await kept.to_host() == 4.0).all()
    for use in (
        first.to_host,
        lambda: ca.copy(first[3:]),
        lambda: affine(kernels, first.reshape(4, 4), 1.0, 0.0),
    ):
        with pytest.raises(StaleOutputError, match="stale: it is of launch 1"):
            await use()


async def test_results_that_are_the_input(device, kernels):
    """Case C04: the graph's output is its own input tensor."""
    x = await ca.zeros(16)
    graph = await affine(kernels, x, 2.0, 1.0).graph(inputs={"x": x})
    first = await graph.replay(x=1.5)
    assert (await first.to_host() == 4.0).all()
    second = await graph.replay(x=2.5)
    with pytest.raises(StaleOutputError, match="stale"):
        await first.to_host()
    assert (await second.to_host() == 6.0).all()
    assert (await x.to_host() == 6.0).all()


# --------------------------------------- Case C05: the host device's graph runs everything again


async def test_every_node_runs_again(device, kernels_can_be_compiled):
    """Case C05: out = sum(a * a)."""
    module = ca.Module.from_cuda_source(
        'extern "C" __global__ void squares(float* out, const float* a, int n) {'
        "float s = 0; for (int i = 0; i < n; i++) s += a[i] * a[i]; *out = s; }"
    )
    a, out = await ca.zip(ca.from_host(np.array([2, 3, 4], "f4")), ca.zeros(1))
    graph = await module.function("squares").launch(1, 1, ca.mut(out), ca.read(a), 3).graph()
    await ca.fill(out, 0.0)
    await graph.launch()
    assert (await out.to_host()).tolist() == [29.0]
    await ca.memcpy(a, np.ones(3, "f4"))
    await graph.launch()
    assert (await out.to_host()).tolist() == [3.0]


# ------------------------------------------------- Case C06: capture while other threads work


@pytest.mark.parametrize(
    ("seconds", "captures"),
    [pytest.param(0.5, 20, id="scaled"), pytest.param(5.0, 200, id="full", marks=pytest.mark.slow)],
)
async def test_capture_while_other_threads_work(device, kernels, seconds, captures):
    """Case C06: another thread allocates, uploads and waits for its own stream."""
    problems = []
    rounds = 0
    stop = threading.Event()
    stream = device.create_stream()

    def work():
        nonlocal rounds
        try:
            while not stop.is_set():
                array = np.full(1000, rounds, "f4")
                tensor = ca.from_host(array).sync_on(stream)
                stream.synchronize()
                assert (tensor.to_host().sync_on(stream) == array).all()
                del tensor
                ca.drain().sync()
                rounds += 1
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    x = await ca.zeros(64)
    began = time.monotonic()
    done = 0
    try:
        while done < captures or time.monotonic() - began < seconds:
            op = affine_of(kernels, x, 2.0, float(done)).then(lambda y: affine(kernels, y, 1.0, 1.0))
            graph = await op.graph(inputs={"x": x})
            assert (await graph.replay(x=3.0).to_host() == 7.0 + done).all()
            done += 1
    finally:
        stop.set()
        await anyio.to_thread.run_sync(thread.join)
    assert problems == []
    assert rounds > 0


# --------------------------------------------- Case C07: exception or cancel inside a capture


async def test_exception_inside_a_capture(device, kernels):
    """Case C07: that same exception comes out; the stream is used normally; the second capture is right."""
    x = await ca.ones(64)
    stream = device.create_stream()
    problem = ValueError("in the body")

    def body(_):
        raise problem

    with pytest.raises(ValueError, match="in the body") as caught:
        await affine(kernels, x, 5.0, 0.0).then(body).graph_on(stream)
    assert caught.value is problem
    await affine(kernels, x, 2.0, 0.0).schedule(ca.SingleStream(stream))
    graph = await affine(kernels, x, 1.0, 1.0).graph_on(stream)
    await graph.launch()
    assert (await x.to_host() == 3.0).all()


async def test_cancel_inside_a_capture(device, kernels):
    """Case C07, second form: an async body is cancelled half way."""
    x = await ca.ones(64)
    stream = device.create_stream()
    with anyio.CancelScope() as scope:
        async with ca.CudaGraph.scope(stream) as recording:
            await recording.arecord(affine(kernels, x, 5.0, 0.0))
            scope.cancel()
            await anyio.lowlevel.checkpoint()
            await recording.arecord(affine(kernels, x, 7.0, 0.0))
    assert scope.cancelled_caught
    with pytest.raises(CaptureError, match="ended with an error"):
        _ = recording.graph
    await affine(kernels, x, 2.0, 0.0).schedule(ca.SingleStream(stream))
    graph = await affine(kernels, x, 1.0, 1.0).graph_on(stream)
    await graph.launch()
    assert (await x.to_host() == 3.0).all()


# ------------------------------------------------------ Case C09: a graph outlives its loop


def _loops():
    loops = {"asyncio": asyncio.run, "asyncio again": asyncio.run}
    if importlib.util.find_spec("uvloop"):
        import uvloop

        loops["uvloop"] = uvloop.run
    if importlib.util.find_spec("trio"):
        import trio

        loops["trio"] = lambda coroutine: trio.run(_given(coroutine))
    return loops


def _given(coroutine):
    async def main():
        return await coroutine

    return main


def test_graph_outlives_a_loop(device, kernels):
    """Case C09: captured in one run, replayed in all others, and in two loops of two threads at once."""
    x = ca.zeros(64).sync()
    made = []

    async def capture():
        made.append(await affine_of(kernels, x, 2.0, 1.0).graph(inputs={"x": x}))

    asyncio.run(capture())
    (graph,) = made

    async def replay(value):
        return (await graph(x=value).to_host()).tolist()

    for number, (name, run) in enumerate(_loops().items()):
        assert run(replay(float(number))) == [2.0 * number + 1.0] * 64, name
    results = []

    def thread(value):
        results.append((value, asyncio.run(replay(value))))

    threads = [threading.Thread(target=thread, args=(float(i),)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(results) == [(0.0, [1.0] * 64), (1.0, [3.0] * 64)]


# ----------------------------------------------------------------- Case C20: empty tensors


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
async def test_empty_tensors_in_a_graph(device, kernels, shape):
    """Case C20: created, copied and launched over with a zero grid, in a graph."""
    graph = (
        await ca.zeros(shape)
        .then(lambda x: kernels.affine.launch(0, 256, ca.mut(x), 0, 1.0, 1.0).first())
        .then(ca.copy)
        .graph()
    )
    out = await graph.launch()
    assert out.shape == shape
    assert (await out.to_host()).shape == shape


# ------------------------------------------------------------------ tile kernels and raw ones


@tk.kernel
def scale_add(out: tk.Tile1D, x: tk.Tensor1D, a: float, b: float):
    out.store(a * tk.load_like(x, out) + b)


async def test_tile_kernels_are_captured_like_raw_ones(device, kernels):
    """Compiled, off the loop, while recording; results as without a graph."""
    x = await ca.from_host(np.arange(1000, dtype="f4"))

    def chain():
        op = scale_add(ca.empty(1000).partition(128), x, 2.0, 1.0).first().unpartition()
        return op.then(lambda y: affine(kernels, y, 3.0, 0.0))

    graph = await chain().graph(inputs={"x": x})
    expected = 3.0 * (2.0 * np.arange(1000, dtype="f4") + 1.0)
    assert (await graph.launch().to_host() == expected).all()
    assert (await chain().to_host() == expected).all()
    assert (await graph(x=np.zeros(1000, "f4")).to_host() == 3.0).all()


@tk.kernel
def scale_early(out: tk.Tile1D, x: tk.Tensor1D, a: float):
    tk.grid_dependency_control_wait()
    out.store(a * tk.load_like(x, out))
    tk.grid_dependency_control_launch_dependents()


async def test_launches_that_begin_early_in_a_graph(device, kernels):
    """Each reads what the one before it wrote."""
    x = await ca.ones(1 << 14)

    def step(t):
        launch = scale_early(ca.empty(1 << 14).partition(256), t, 2.0)
        return launch.with_options(programmatic_dependent_launch=True).first().unpartition()

    op = step(x)
    for _ in range(9):
        op = op.then(step)
    graph = await op.graph()
    for _ in range(20):
        assert (await graph.launch().to_host() == 1024.0).all()
