"""Recording step by step."""

from __future__ import annotations

import gc
import weakref

import anyio
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.errors import CaptureError, StaleOutputError

pytestmark = pytest.mark.anyio


def test_steps_become_one_graph(device, kernels):
    x = ca.ones(8).sync()
    stream = device.create_stream()
    with ca.CudaGraph.scope(stream, inputs={"x": x}) as s:
        y = s.record(kernels.scaled(x, 2.0, 0.0))
        z = s.record(kernels.scaled(y, 1.0, 1.0))
        s.returns((y, z))
        with pytest.raises(CaptureError, match="after the block"):
            _ = s.graph
    graph = s.graph
    assert [node.depends_on for node in graph.nodes] == [(), (0,)]
    with pytest.raises(StaleOutputError, match="empty"):
        z.to_host().sync()
    graph.launch().sync_on(stream)
    assert z.to_host().sync()[0] == 3.0
    a, b = graph.replay(x=4.0).sync()
    assert (a.to_host().sync()[0], b.to_host().sync()[0]) == (8.0, 9.0)


def test_scope_yields_none_unless_told(device, kernels):
    x = ca.ones(8).sync()
    with ca.CudaGraph.scope(device.create_stream()) as s:
        s.record(kernels.scale(x, 2.0, 0.0))
    assert s.graph.launch().sync() is None
    assert x.to_host().sync()[0] == 2.0


def test_other_work_runs_inside_the_block(device, kernels):
    x, y = ca.zip(ca.ones(8), ca.ones(8)).sync()
    stream = device.create_stream()
    with ca.CudaGraph.scope(stream) as s:
        s.record(kernels.scale(x, 2.0, 0.0))
        kernels.scale(y, 3.0, 0.0).sync_on(stream)
        assert y.to_host().sync()[0] == 3.0
    assert len(s.graph.nodes) == 1
    assert x.to_host().sync()[0] == 1.0


def test_failed_record_leaves_the_recording_as_it_was(device, kernels):
    x = ca.ones(8).sync()
    with ca.CudaGraph.scope(device.create_stream()) as s:
        s.record(kernels.scale(x, 2.0, 0.0))
        with pytest.raises(ZeroDivisionError):
            s.record(
                ca.parallel(kernels.scale(x, 9.0, 0.0), kernels.scale(x, 9.0, 0.0).then(lambda _: 1 / 0))
            )
        s.record(kernels.scale(x, 1.0, 1.0))
    assert [node.depends_on for node in s.graph.nodes] == [(), (0,)]
    s.graph.launch().sync()
    assert x.to_host().sync()[0] == 3.0


@pytest.mark.parametrize("in_a_body", [False, True])
def test_failed_record_keeps_no_tensors(device, kernels, in_a_body):
    x, flag = ca.ones(8).sync(), ca.zeros(1, "int32").sync()
    buffer = weakref.ref(x._buffer)

    def used(x):
        filled = ca.fill(x, 1.0).map(lambda _: None)
        return ca.if_else(flag, lambda: filled, lambda: ca.value(None)) if in_a_body else filled

    with ca.CudaGraph.scope(device.create_stream()) as s:
        with pytest.raises(ZeroDivisionError):
            s.record(used(x).then(lambda _: 1 / 0))
        s.record(ca.fill(flag, 1))
    assert len(s.graph.nodes) == 1
    del x
    gc.collect()
    assert buffer() is None


def test_exception_in_the_block_comes_out_unchanged(device, kernels):
    """Case C07: then the stream is used normally, then for another capture."""
    x = ca.ones(8).sync()
    stream = device.create_stream()
    problem = ValueError("mine")

    def fails(scope):
        scope.record(kernels.scale(x, 2.0, 0.0))
        raise problem

    with pytest.raises(ValueError, match="mine") as caught, ca.CudaGraph.scope(stream) as s:
        fails(s)
    assert caught.value is problem
    with pytest.raises(CaptureError, match="ended with an error"):
        _ = s.graph
    kernels.scale(x, 1.0, 1.0).sync_on(stream)
    with ca.CudaGraph.scope(stream) as again:
        again.record(kernels.scale(x, 10.0, 0.0))
    again.graph.launch().sync_on(stream)
    assert x.to_host().sync()[0] == 20.0


def test_a_scope_returns_several(device, kernels):
    x, stream = ca.ones(8).sync(), device.create_stream()
    with ca.CudaGraph.scope(stream) as s:
        s.returns(s.record(kernels.scaled(x, 2.0, 0.0)), s.record(kernels.scaled(x, 3.0, 0.0)))
    twice, thrice = s.graph.launch().sync_on(stream)
    assert (twice.to_host().sync()[0], thrice.to_host().sync()[0]) == (2.0, 3.0)


def test_what_a_scope_returns_was_recorded(device, kernels):
    """An operation would never be run, and behind the block nobody would ask."""
    x = ca.ones(8).sync()
    with ca.CudaGraph.scope(device.create_stream()) as s:
        y = s.record(kernels.scaled(x, 2.0, 0.0))
        for output in (ca.ones(3), (y, ca.ones(3)), {"y": [ca.ones(3)]}):
            with pytest.raises(TypeError, match=r"s\.returns\(s\.record\(op\)\)"):
                s.returns(output)
        s.returns(y)
    with pytest.raises(CaptureError, match="inside the scope's block"):
        s.returns((y, y))
    assert s.graph.launch().to_host().sync()[0] == 2.0


async def test_async_scope(device, kernels):
    x = await ca.ones(8)
    async with ca.CudaGraph.scope(device.create_stream()) as s:
        y = await s.arecord(kernels.scaled(x, 2.0, 0.0))
        s.returns(y)
    assert (await s.graph.launch().to_host())[0] == 2.0


async def test_cancelled_async_body(device, kernels):
    """Case C07, second form."""
    x = await ca.ones(8)
    stream = device.create_stream()
    with anyio.CancelScope() as cancelled:
        async with ca.CudaGraph.scope(stream) as s:
            await s.arecord(kernels.scale(x, 2.0, 0.0))
            cancelled.cancel()
            await anyio.sleep_forever()
    assert cancelled.cancelled_caught
    await kernels.scale(x, 1.0, 1.0).schedule(ca.SingleStream(stream))
    graph = await kernels.scale(x, 10.0, 0.0).graph_on(stream)
    await graph.launch()
    assert (await x.to_host())[0] == 20.0


def test_scope_is_used_once_and_open(device, kernels):
    x = ca.ones(8).sync()
    scope = ca.CudaGraph.scope(device.create_stream())
    with pytest.raises(CaptureError, match="inside the scope"):
        scope.record(kernels.scale(x, 1.0, 0.0))
    with scope, pytest.raises(TypeError, match="DeviceOp"):
        scope.record(5)
    with pytest.raises(CaptureError, match="used once"), scope:
        pass
    with pytest.raises(TypeError, match="expected a Stream"):
        ca.CudaGraph.scope(device)


def test_inputs_of_a_scope_are_tensors(device):
    with pytest.raises(TypeError, match="tensors by name"):
        ca.CudaGraph.scope(device.create_stream(), inputs={"x": np.zeros(3)})
    with pytest.raises(TypeError, match=r"tensors by name, .* got Tensor"):
        ca.zeros(3).graph(inputs=ca.zeros(3).sync())
