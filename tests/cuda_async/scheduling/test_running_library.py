"""Which event loop library the caller runs in, while another thread is importing one."""

from __future__ import annotations

import asyncio
import sys
import types

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.scheduling import running_library, wait_for_callback
from cuda_async.scheduling._sharing import _current_streams
from cuda_async.testing import seeded_device


@pytest.mark.parametrize("partial", ["trio", "trio.lowlevel"])
def test_another_thread_is_importing_trio(host, monkeypatch, partial):
    """Its modules are in `sys.modules` before they define anything."""
    for name in ("trio", "trio.lowlevel"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "trio", types.ModuleType("trio"))
    if partial == "trio.lowlevel":
        monkeypatch.setitem(sys.modules, partial, types.ModuleType(partial))

    async def main():
        assert running_library() == "asyncio"
        return await ca.full(3, 2.0).to_host()

    assert asyncio.run(main()).tolist() == [2, 2, 2]


def test_another_thread_is_importing_asyncio(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncio", types.ModuleType("asyncio"))
    assert running_library() is None


@pytest.mark.parametrize("partial", ["asyncio", "trio", "trio.lowlevel"])
def test_a_seeded_device_while_another_thread_is_importing(monkeypatch, partial):
    device, _ = seeded_device(1)
    monkeypatch.setitem(sys.modules, partial, types.ModuleType(partial))
    with ca.use_device(device):
        assert ca.full(3, 2.0).then(ca.copy).to_host().sync().tolist() == [2, 2, 2]


def test_another_thread_is_importing_numpy_ma(host, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy.ma", types.ModuleType("numpy.ma"))
    assert ca.from_host([1.0, 2.0]).to_host().sync().tolist() == [1, 2]


@pytest.mark.parametrize("partial", ["torch", "torch.cuda", "cupy"])
def test_another_thread_is_importing_a_library_that_has_streams(host, monkeypatch, partial):
    """Memory that is handed out is ordered with such a library's current stream, if it has one."""
    tensor = ca.ones(3).sync()
    name, _, part = partial.partition(".")
    module = types.ModuleType(name)
    if part:
        setattr(module, part, types.ModuleType(partial))
    monkeypatch.setitem(sys.modules, name, module)
    assert _current_streams(host) == {}
    assert np.from_dlpack(tensor).tolist() == [1, 1, 1]


@pytest.mark.parametrize("when", ["asked for", "before it waits"])
def test_interrupt_as_a_trio_task_begins_to_wait(monkeypatch, when):
    """Its wake-up comes all the same, and must not reach what the task does next."""
    trio = pytest.importorskip("trio")
    wakes, given_up = [], []

    def begin(wake):
        wakes.append(wake)
        if when == "asked for":
            raise KeyboardInterrupt
        return lambda: given_up.append(wake)

    def interrupted(abort):
        raise KeyboardInterrupt

    async def main():
        with monkeypatch.context() as patch:
            if when == "before it waits":
                patch.setattr(trio.lowlevel, "wait_task_rescheduled", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await wait_for_callback(begin, str)
        wakes[0]()
        event = trio.Event()

        async def later():
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            event.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            await event.wait()

    trio.run(main)
    assert len(given_up) == (when == "before it waits")


@pytest.mark.parametrize("seed", range(40))
def test_a_trio_run_ends_with_work_in_flight_on_a_seeded_device(seed):
    """The device's own turns of the loop end with it."""
    trio = pytest.importorskip("trio")
    device, _ = seeded_device(seed)

    async def work():
        op = ca.ones(100)
        for _ in range(10):
            op = op.then(ca.copy)
        await op.to_host()

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            for _ in range(seed % 5):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    with ca.use_device(device):
        trio.run(main)
        ca.drain().sync()
        assert ca.ones(3).to_host().sync().tolist() == [1, 1, 1]
