"""Streams that are closed while an operation is still enqueueing there: nothing reaches the driver by them any more."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio

SAXPY = Path(__file__).resolve().parents[3] / "examples" / "simt" / "saxpy.ptx"


def launch(device, x, out):
    function = ca.Module.from_file(SAXPY).function("saxpy_f32")
    return lambda: function.launch(1, 4, 4, 2.0, ca.read(x), ca.read(x), ca.mut(out))


def bound(device, x, out):
    function = ca.Module.from_file(SAXPY).function("saxpy_f32")
    return function.bind(1, 4, 4, 2.0, ca.read(x), ca.read(x), ca.mut(out), device=device).launch


STEPS = {
    "launch": launch,
    "bound launch": bound,
    "graph": lambda device, x, out: ca.fill(x, 3.0).graph().sync().launch,
    "fill": lambda device, x, out: lambda: ca.fill(x, 2.0),
    "copy": lambda device, x, out: lambda: ca.copy(x),
    "strided copy": lambda device, x, out: lambda: ca.copy(x[::2]),
    "astype": lambda device, x, out: lambda: ca.value(x).astype(ca.float64),
    "from_host": lambda device, x, out: lambda: ca.from_host(np.ones(4, np.float32)),
    "to_host": lambda device, x, out: x.to_host,
    "memcpy": lambda device, x, out: lambda: ca.memcpy(x, np.ones(4, np.float32)),
    "empty": lambda device, x, out: lambda: ca.empty(4),
    "foreign": lambda device, x, out: lambda: ca.foreign(lambda stream: None, writes=[x]),
    "parallel": lambda device, x, out: lambda: ca.parallel(ca.fill(x, 2.0), ca.empty(4)),
    "shared": lambda device, x, out: lambda: ca.fill(x, 2.0).shared(),
}


@pytest.fixture(params=STEPS)
def step(request, device):
    x, out = ca.zip(ca.ones(4), ca.empty(4)).sync()
    make = STEPS[request.param](device, x, out)
    make().sync()
    return make


def close_from_another_thread(stream):
    thread = threading.Thread(target=stream.close)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "close", [lambda s: s.close(), close_from_another_thread], ids=["callback", "thread"]
)
def test_the_next_step_says_so(device, step, close):
    stream = device.create_stream(name="short-lived")
    step().sync_on(stream)  # what is bound to the stream by now is not used again
    with pytest.raises(ca.ClosedError, match=r"Stream\('short-lived' .*closed.* is closed; create another"):
        ca.ones(4).inspect(lambda _: close(stream)).then(lambda _: step()).sync_on(stream)
    step().sync()  # the device is well


async def test_aclose_while_a_chain_is_prepared(device, step):
    """The chain goes on on a worker thread, behind the one who closed the stream."""
    stream = device.create_stream()
    goes_on = threading.Event()

    class Prepared(ca.DeviceOp[None]):
        def prepare(self, ctx):
            goes_on.wait(10)

        def execute(self, ctx):
            return None

    await step().schedule(ca.SingleStream(stream))
    future = ca.ones(4).then(lambda _: Prepared()).then(lambda _: step()).start(ca.SingleStream(stream))
    await stream.aclose()
    goes_on.set()
    with pytest.raises(ca.ClosedError, match="is closed; create another"):
        await future
    await step()


def test_what_is_enqueued_while_closing_is_waited_for(device, monkeypatch):
    """Closing looks again once it has waited: what came meanwhile would else lose what it retains."""
    stream = device.create_stream()
    x = ca.zeros(4).sync_on(stream)
    late = []
    submit = stream._submit_rest

    def submit_and_enqueue():
        submission = submit()
        if not late:
            late.append(ca.fill(x, 5.0).start(ca.SingleStream(stream)))
        return submission

    monkeypatch.setattr(type(stream), "_submit_rest", lambda self: submit_and_enqueue())
    stream.close()
    assert late[0].done
    assert stream._closed
    assert not stream._retained
    monkeypatch.undo()
    assert x.to_host().sync().tolist() == [5.0] * 4


def test_a_closed_stream_is_forgotten_by_kernels(device):
    x, out = ca.zip(ca.ones(4), ca.empty(4)).sync()
    launches = [launch(device, x, out), bound(device, x, out)]
    forgotten = []
    for _ in range(3):
        stream = device.create_stream()
        for make in launches:
            make().sync_on(stream)
        stream.close()
        forgotten.append(weakref.ref(stream))
    with pytest.raises(ca.ClosedError, match="is closed"):
        stream.handle  # noqa: B018
    del stream
    ca.fill(x, 1.0).sync()  # tensors know who used them last
    ca.fill(out, 1.0).sync()
    gc.collect()
    assert [made() for made in forgotten] == [None] * 3


async def test_many_closed_streams_and_chains(device):
    """Whatever the moment, a chain gives its values or says that its stream is closed."""
    x, out = await ca.zip(ca.ones(4), ca.empty(4))
    make = launch(device, x, out)
    await make()
    values, closed = 0, 0

    def chain(length):
        op = ca.fill(out, 0.0).map(lambda filled: (filled,))
        for _ in range(length):
            op = op.then(lambda _: make())
        return op.then(lambda outputs: outputs[-1].to_host())

    async def one(n):
        nonlocal values, closed
        stream = device.create_stream()
        task = chain(n % 7).start(ca.SingleStream(stream))
        thread = threading.Thread(target=stream.close)
        thread.start()
        try:
            assert (await task).tolist() == [3.0 if n % 7 else 0.0] * 4
            values += 1
        except ca.ClosedError:
            closed += 1
        thread.join()

    for n in range(40):
        await one(n)
    assert values + closed == 40
