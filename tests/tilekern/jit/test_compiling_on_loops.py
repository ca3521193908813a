"""Compiling from event loops: never on a loop's thread, once for all that ask, and a cancelled one is no loss."""

import asyncio
import secrets
import threading

import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.jit import _compile


def fresh():
    """A kernel that no disk cache knows from before."""
    number = secrets.randbits(31)

    @tk.kernel
    def fresh(out: tk.Tile1D, x: tk.Tensor1D):
        out.store(tk.load_like(x, out) + 1 + number * 0)

    return fresh


class Gate:
    """Holds the front end until it is opened; who ran it, and how often."""

    def __init__(self, monkeypatch):
        self.threads = []
        self.entered = threading.Event()
        self.opened = threading.Event()
        original = _compile.build_program

        def held(*args, **more):
            self.threads.append(threading.get_ident())
            self.entered.set()
            assert self.opened.wait(30)
            return original(*args, **more)

        monkeypatch.setattr(_compile, "build_program", held)


@pytest.fixture
def gate(monkeypatch):
    monkeypatch.setenv(
        "TILEKERN_CACHE_DIR", "off"
    )  # else a second run of the tests has no need of a front end
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def launch(kernel, x):
    return kernel(ca.empty((64,), "f4").partition(16), x).first().unpartition().to_host()


def test_tasks_of_two_loops_share_one_compilation(device, gate):
    kernel, x = fresh(), ca.ones((64,)).sync()
    results, loop_threads, waiting = [], [], threading.Barrier(3)

    async def main():
        loop_threads.append(threading.get_ident())
        tasks = [asyncio.ensure_future(launch(kernel, x)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.to_thread(waiting.wait)
        results.extend(await asyncio.gather(*tasks))

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    waiting.wait()
    assert gate.entered.wait(30)
    gate.opened.set()
    for thread in threads:
        thread.join()
    assert len(gate.threads) == 1
    assert gate.threads[0] not in loop_threads
    assert [set(result.tolist()) for result in results] == [{2.0}] * 6


def test_waiting_for_a_compilation_holds_no_worker(device, gate):
    """There are eight workers, and something else to do meanwhile."""
    kernel, x = fresh(), ca.ones((64,)).sync()

    class Prepared(ca.DeviceOp):
        def prepare(self, ctx):
            gate.opened.set()

        def execute(self, ctx):
            return 7

    async def main():
        tasks = [asyncio.ensure_future(launch(kernel, x)) for _ in range(64)]
        await asyncio.to_thread(gate.entered.wait, 30)
        assert await asyncio.wait_for(Prepared(), 30) == 7
        return await asyncio.gather(*tasks)

    assert [set(result.tolist()) for result in asyncio.run(main())] == [{2.0}] * 64
    assert len(gate.threads) == 1


def test_who_waits_without_a_loop_waits_on_its_thread(host, gate):
    """Also in what runs on a worker: nothing of it is begun twice."""
    kernel, x = fresh(), ca.ones((64,)).sync()
    begun = []

    class Nested(ca.DeviceOp):
        def prepare(self, ctx):
            begun.append(1)
            if len(begun) == 2:
                gate.opened.set()
            self.found = launch(kernel, x).sync()

        def execute(self, ctx):
            return self.found

    async def main():
        return await asyncio.gather(ca.value(0).then(lambda _: Nested()), Nested())

    assert [set(result.tolist()) for result in asyncio.run(main())] == [{2.0}] * 2
    assert len(begun) == 2
    assert len(gate.threads) == 1


@pytest.mark.anyio
async def test_loop_runs_on_while_a_kernel_compiles(host, gate):
    import anyio

    kernel, x = fresh(), await ca.ones((64,))
    done = []

    async def run():
        done.append(await launch(kernel, x))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.to_thread.run_sync(gate.entered.wait)
        for _ in range(20):  # turns of the loop, while the front end is held
            await anyio.lowlevel.checkpoint()
        assert not done
        gate.opened.set()
    assert done[0].tolist() == [2.0] * 64


@pytest.mark.anyio
async def test_cancelled_await_leaves_the_compilation_to_others(host, gate):
    import anyio

    kernel, x = fresh(), await ca.ones((64,))
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel():
                await anyio.to_thread.run_sync(gate.entered.wait)
                scope.cancel()

            group.start_soon(cancel)
            await launch(kernel, x)
    gate.opened.set()
    assert (await launch(kernel, x)).tolist() == [2.0] * 64
    assert len(gate.threads) == 1
