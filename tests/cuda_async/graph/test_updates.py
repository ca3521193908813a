"""`graph.update()`: what runs before the next launch, and whose it is where that launch does not come."""

from __future__ import annotations

import threading

import anyio
import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio


async def test_updates_run_before_the_next_launch(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    graph.update(ca.memcpy(x, np.full(8, 5.0, "f4")))
    graph.update(kernels.scale(x, 1.0, 1.0))
    assert (await x.to_host())[0] == 1.0
    assert (await graph.launch().to_host())[0] == 12.0
    assert (await graph.launch().to_host())[0] == 12.0
    with pytest.raises(TypeError, match="DeviceOp"):
        graph.update(5)


@pytest.mark.parametrize("lost", ["dropped", "cancelled", "refused"])
async def test_update_of_a_launch_that_did_not_begin_is_for_the_next(device, kernels, lost):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph(inputs={"x": x})
    graph.update(ca.fill(x, 5.0))
    if lost == "refused":
        with pytest.raises(ValueError, match="shape"):
            graph.replay(x=np.ones(3, "f4"))
    else:
        launch = graph.launch()
        if lost == "cancelled":
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
                await launch
    assert (await graph.launch().to_host())[0] == 10.0


async def test_update_is_for_launches_made_afterwards(device, kernels):
    graph = await ca.graph_input("x", (8,)).then(lambda x: kernels.scaled(x, 1.0, 0.0)).graph()
    earlier = graph(x=ca.full(8, 3.0))
    graph.update(ca.fill(graph.inputs["x"], 5.0))
    assert (await earlier.to_host())[0] == 3.0
    assert (await graph.launch().to_host())[0] == 5.0


def fails(_):
    raise ValueError("as planned")


@pytest.mark.parametrize("how", ["captured", "recorded", "shared"])
def test_update_of_a_recording_that_failed_is_for_the_next(device, kernels, how):
    x = ca.ones(8).sync()
    graph = kernels.scaled(x, 2.0, 0.0).graph().sync()
    graph.update(ca.fill(x, 5.0))
    launch = graph.launch().shared() if how == "shared" else graph.launch()
    if how == "recorded":
        with ca.CudaGraph.scope(device.create_stream()) as scope, pytest.raises(ValueError, match="planned"):
            scope.record(launch.then(fails))
    else:
        with pytest.raises(ValueError, match="planned"):
            launch.then(fails).graph().sync()
    again = launch if how == "shared" else graph.launch()
    assert again.to_host().sync()[0] == 10.0


def test_update_that_fails_in_a_recording_has_begun(device, kernels):
    graph = kernels.scaled(ca.ones(8).sync(), 2.0, 0.0).graph().sync()
    graph.update(ca.value(None).then(fails))
    with pytest.raises(ValueError, match="planned"):
        graph.launch().graph().sync()
    outer = graph.launch().then(ca.copy).graph().sync()
    assert outer.launch().to_host().sync()[0] == 2.0


def test_shared_launch_of_a_graph_that_ended_unlaunched_has_its_updates(device, kernels):
    x = ca.ones(8).sync()
    graph = kernels.scaled(x, 2.0, 0.0).graph().sync()
    graph.update(ca.fill(x, 5.0))
    shared = graph.launch().shared()
    shared.then(ca.copy).graph().sync().close()
    assert shared.to_host().sync()[0] == 10.0


def test_each_update_runs_once(host, kernels):
    """Launches of several threads, each made while there is something to run before it."""
    count = ca.zeros(8).sync()
    graph = kernels.scaled(count, 1.0, 0.0).graph().sync()
    for _ in range(20):
        for _ in range(4):
            graph.update(kernels.scale(count, 1.0, 1.0))
        launches = [graph.launch() for _ in range(4)]
        threads = [threading.Thread(target=launch.sync) for launch in launches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert count.to_host().sync()[0] == 80.0


async def test_failing_update_is_the_launch_s_error(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    graph.update(ca.value(1).then(lambda _: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        await graph.launch()
    assert (await graph.launch().to_host())[0] == 2.0
