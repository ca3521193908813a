"""Other libraries' work in a graph: what they enqueue on a recording stream is captured by the driver."""

from __future__ import annotations

import gc

import pytest

import cuda_async as ca
from cuda_async.errors import CaptureError, DriverError

pytestmark = [pytest.mark.anyio, pytest.mark.gpu]


@pytest.fixture
def cuda(monkeypatch):
    from cuda_async.scheduling import _device

    device = ca.Device("cuda:0")
    monkeypatch.setattr(_device, "_default", device)
    return device.open()


def memset(tensor, value, stream):
    """32-bit words, by a raw driver call on whatever the stream says it is."""
    from cuda.bindings import driver

    _, address = stream.__cuda_stream__()
    code, *_ = driver.cuMemsetD32Async(tensor._address, value, tensor.size, driver.CUstream(address))
    assert code == 0


async def test_foreign_call_is_captured_in_order(cuda, kernels):
    x, n = await ca.zip(ca.ones(8), ca.zeros(8, "int32"))
    op = (
        kernels.scale(x, 2.0, 0.0)
        .then(lambda _: ca.foreign(lambda s: memset(n, 5, s), writes=[n]))
        .then(lambda _: kernels.count_down.launch(1, 1, ca.mut(n)))
    )
    graph = await op.graph()
    assert [(node.kind, node.depends_on) for node in graph.nodes] == [
        ("kernel", ()),
        ("foreign", (0,)),
        ("kernel", (1,)),
    ]
    assert (await n.to_host()).tolist() == [0] * 8
    for _ in range(2):
        await graph.launch()
        assert (await n.to_host()).tolist() == [4] + [5] * 7
    assert (await x.to_host())[0] == 4.0


async def test_own_operation_with_raw_driver_calls(cuda, kernels):
    class Set(ca.DeviceOp):
        def __init__(self, tensor, value):
            self.tensor, self.value = tensor, value

        def execute(self, ctx):
            ctx.write(self.tensor)
            memset(self.tensor, self.value, ctx.stream)
            return self.tensor

    n = await ca.zeros(8, "int32")
    op = ca.parallel(Set(n[:4], 1), Set(n[4:], 2)).then(
        lambda _: kernels.count_down.launch(1, 1, ca.mut(n[3:]))
    )
    graph = await op.graph()
    await graph.launch()
    assert (await n.to_host()).tolist() == [1, 1, 1, 0, 2, 2, 2, 2]


async def test_foreign_call_that_enqueues_nothing(cuda, kernels):
    x = await ca.ones(8)
    graph = await ca.foreign(lambda s: s.handle, reads=[x]).then(lambda _: kernels.scale(x, 2.0, 0.0)).graph()
    assert [node.kind for node in graph.nodes] == ["kernel"]


async def test_exception_in_a_foreign_call_ends_its_capture(cuda, kernels):
    n = await ca.zeros(8, "int32")

    def fails(stream):
        memset(n, 7, stream)
        raise ValueError("theirs")

    for _ in range(3):
        with pytest.raises(ValueError, match="theirs"):
            await ca.foreign(fails, writes=[n]).graph()
    graph = await ca.foreign(lambda s: memset(n, 3, s), writes=[n]).graph()
    assert (await n.to_host()).tolist() == [0] * 8
    await graph.launch()
    assert (await n.to_host()).tolist() == [3] * 8


async def test_foreign_call_that_waits_is_an_error(cuda, kernels):
    from cuda.bindings import driver

    n = await ca.zeros(8, "int32")

    def waits(stream):
        memset(n, 7, stream)
        driver.cuStreamSynchronize(driver.CUstream(stream.handle))

    with pytest.raises((CaptureError, DriverError)):
        await ca.foreign(waits, writes=[n]).graph()
    graph = await ca.foreign(lambda s: memset(n, 3, s), writes=[n]).graph()
    await graph.launch()
    assert (await n.to_host()).tolist() == [3] * 8


async def test_captured_work_is_kept_by_graphs_that_contain_it(cuda, kernels):
    n = await ca.zeros(8, "int32")
    inner = await ca.foreign(lambda s: memset(n, 3, s), writes=[n]).graph()
    outer = await inner.launch().then(lambda _: kernels.count_down.launch(1, 1, ca.mut(n))).graph()
    del inner
    gc.collect()
    await ca.drain()
    outer.nodes[1].set_launch(shared_mem_bytes=64)
    await outer.launch()
    assert (await n.to_host()).tolist() == [2] + [3] * 7


async def test_torch_work_is_captured(cuda):
    torch = pytest.importorskip("torch")
    x = await ca.ones(1024)
    theirs = torch.from_dlpack(x)

    def work(stream):
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.__cuda_stream__()[1])):
            theirs.mul_(2.0).add_(1.0)

    graph = await ca.foreign(work, writes=[x]).graph()
    assert (await x.to_host())[0] == 1.0
    await graph.launch()
    await graph.launch()
    assert (await x.to_host())[0] == 7.0
