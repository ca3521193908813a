"""Calls of other libraries on the host device: what the function may not do, and what its failure looks like."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.errors import KernelError
from cuda_async.scheduling import checkpoint

WAITS = {
    "await drain": lambda _: ca.drain(),
    "drain": lambda _: ca.drain().sync(),
    "await event": lambda later: later[0].record(),
    "await future": lambda later: later[1],
    "future": lambda later: later[1].sync(),
    "aclose stream": lambda later: later[0].aclose(),
    "close stream": lambda later: later[0].close(),
    "aclose device": lambda later: later[0].device.aclose(),
    "close device": lambda later: later[0].device.close(),
    "synchronize": lambda later: later[0].device.synchronize(),
    "aclose graph": lambda later: later[2].aclose(),
    "close graph": lambda later: later[2].close(),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_waiting_for_the_device_in_its_work_is_refused(host, wait):
    """The device would wait for itself: the stream, the future and the graph have work behind the call."""
    stream, x = host.create_stream(), ca.zeros(4).sync()
    graph, is_enqueued = ca.zeros(4).graph().sync(), threading.Event()

    async def in_a_loop():
        assert is_enqueued.wait(10)
        await wait(later)

    call = ca.foreign(lambda _: asyncio.run(in_a_loop()), writes=[x]).start(ca.SingleStream(stream))
    later = (stream, ca.copy(x).start(ca.SingleStream(stream)), graph)
    graph.launch().start(ca.SingleStream(stream))
    is_enqueued.set()
    with pytest.raises(KernelError, match="ReentrancyError"):
        call.sync()
    assert ca.ones(4).to_host().sync().tolist() == [1.0] * 4


@pytest.mark.timeout(20)
@pytest.mark.parametrize("wait", [WAITS[w] for w in ("aclose stream", "aclose device", "aclose graph")])
def test_waiting_in_work_that_somebody_awaits_is_refused(host, wait):
    """The awaits have their callbacks on the events already, as the work runs."""
    stream, x = host.create_stream(), ca.zeros(4).sync()
    graph, is_awaited = ca.zeros(4).graph().sync(), threading.Event()

    def work(_):
        assert is_awaited.wait(10)
        asyncio.run(wait(later))

    call = ca.foreign(work, writes=[x]).start(ca.SingleStream(stream))
    later = (stream, ca.copy(x).start(ca.SingleStream(stream)), graph)
    launched = graph.launch().start(ca.SingleStream(stream))

    async def awaited(future):
        return await future

    async def main():
        waits = [asyncio.ensure_future(awaited(future)) for future in (call, later[1], launched)]
        while not all(submission.callbacks for submission in stream._pending):
            await checkpoint()
        is_awaited.set()
        return await asyncio.gather(*waits, return_exceptions=True)

    first, *_ = asyncio.run(main())
    assert "ReentrancyError" in str(first)


class Unspeakable(ca.CudaAsyncError):
    def __str__(self):
        raise LookupError("no text")


def test_error_without_a_text_is_told(host):
    def fail(_):
        raise Unspeakable

    with pytest.raises(KernelError, match="Unspeakable, which cannot be told") as info:
        ca.foreign(fail).sync()
    assert isinstance(info.value.__cause__, Unspeakable)


def from_the_last(last):
    try:
        raise last
    except KernelError as error:
        raise RuntimeError("not tried: it failed the last time") from error


def the_last_again(last):
    raise last


@pytest.mark.parametrize("fails", [from_the_last, the_last_again])
def test_what_is_told_of_failures_that_refer_to_the_last_one_is_bounded(host, fails):
    """As a circuit breaker has it. What one tells is not told again by each of the next."""
    kept, told = [KernelError("the first")], []

    def work(_):
        fails(kept[-1])

    for _ in range(100):
        with pytest.raises(KernelError) as info:
            ca.foreign(work).sync()
        kept.append(info.value)
        told.append(len(info.value.__notes__[0]) + len(str(info.value)))
    assert max(told) < 200_000, told


def test_copies_of_a_failure_have_notes_of_their_own(host):
    """Whoever waited for the work has a copy of its error, and may add to it."""
    streams = [ca.SingleStream(host.create_stream()) for _ in range(2)]
    entered, goes_on, x = threading.Event(), threading.Event(), ca.zeros(4).sync()

    def work(_):
        entered.set()
        assert goes_on.wait(10)
        raise LookupError("as planned")

    future = ca.foreign(work, writes=[x]).start(streams[0])
    assert entered.wait(10)
    waits = x.to_host().start(streams[1])
    goes_on.set()
    with pytest.raises(KernelError) as first:
        future.sync()
    first.value.add_note("of the first")
    with pytest.raises(KernelError) as second:
        waits.sync()
    assert "of the first" not in second.value.__notes__
    assert "of the first" in first.value.__notes__


async def coroutine(_):
    pass


def generator(_):
    yield


@pytest.mark.parametrize("fn", [coroutine, generator])
def test_function_that_would_not_run_is_refused(fn):
    with pytest.raises(TypeError, match=rf"^{fn.__name__} .*foreign\(\)"):
        ca.foreign(fn)


@pytest.mark.parametrize(
    "make", [coroutine, generator, ca.value], ids=["coroutine", "generator", "operation"]
)
def test_what_would_never_run_is_not_returned(host, make):
    with pytest.raises(KernelError, match=r"given to foreign\(\), returned a \w+, which would never run"):
        ca.foreign(lambda stream: make(stream)).sync()


def test_lists_are_lists(host):
    x = ca.ones(4).sync()
    for given in (x, x[0], None, ca.ones(4)):
        for name in ("reads", "writes"):
            with pytest.raises(
                TypeError, match=rf"foreign\(\) takes {name}=\[\.\.\.\], a list of tensors, got "
            ):
                ca.foreign(print, **{name: given})
    assert ca.foreign(lambda _: None, reads=(t for t in [x])).sync()[0].shape == (4,)


def test_arrays_made_before_reach_the_tensors(host):
    """The way that the docstring of `foreign` names; during the call NumPy would not wait for the write."""
    t = ca.zeros(3).sync()
    array = np.from_dlpack(t)
    assert ca.foreign(lambda _: array.fill(3), writes=[t]).last().to_host().sync().tolist() == [3.0] * 3
    with pytest.raises(KernelError, match="BufferError"):
        ca.foreign(lambda _: np.from_dlpack(t), writes=[t]).sync()
