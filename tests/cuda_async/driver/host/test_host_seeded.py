"""The seeded host device: the same seed gives the same order, in every process and on every loop that keeps its own."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver import FunctionInfo, HostImage
from cuda_async.driver.host import FIRST_QUEUE, ReplayedOrder, SeededOrder
from cuda_async.testing import explore, seeded_device

PROGRAM = """
import asyncio, sys
import numpy as np
import cuda_async as ca

async def main():
    shared = ca.full(5, 2.0).shared()
    await asyncio.gather(
        ca.from_host(np.arange(1000.0)).to_host(),
        ca.parallel(ca.zeros(3).to_host(), ca.ones(5).astype("f8").to_host()),
        *(shared.then(ca.copy).to_host() for _ in range(3)),
    )
    future = ca.ones(7).to_host().map(lambda array: array.sum()).start()
    while not future.done:
        await asyncio.sleep(0)
    assert future.result() == 7

def alone():
    future = ca.ones(5).astype("f8").to_host().map(lambda array: array + 1).start()
    while not future.done:
        pass
    assert future.sync().tolist() == [2] * 5
    ca.drain().sync()

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
elif sys.argv[1] == "asyncio":
    asyncio.run(main())
alone()
print(ca.current_device().driver.engine.order.trace)
"""


def trace_of(seed, loop="asyncio", hash_seed=0):
    environment = {
        **os.environ,
        "CUDA_ASYNC_DRIVER": "host",
        "CUDA_ASYNC_HOST_SEED": str(seed),
        "PYTHONHASHSEED": str(hash_seed),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, loop], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_seed_of_the_environment_replays():
    first = trace_of(5, hash_seed=1)
    assert len(first[0]) > 100
    assert trace_of(5, hash_seed=2) == first
    if importlib.util.find_spec("uvloop"):
        assert trace_of(5, "uvloop") == first
    assert trace_of(6) != first


def test_random_seed_is_printed():
    trace, printed = trace_of("random", "none")
    name, _, seed = printed.strip().partition("=")
    assert name == "CUDA_ASYNC_HOST_SEED"
    assert trace_of(seed, "none")[0] == trace


def test_bad_seed_is_refused(monkeypatch):
    from cuda_async.driver.host._settings import host_seed

    monkeypatch.setenv("CUDA_ASYNC_HOST_SEED", "-3")
    with pytest.raises(ca.ContextError, match="'-3'; give a number from 0, or random"):
        host_seed()
    monkeypatch.setenv("CUDA_ASYNC_HOST_SEED", " ")
    assert host_seed() is None


@pytest.mark.anyio
async def test_every_loop_advances_a_seeded_device(seeded):
    async with anyio.create_task_group() as group:
        for value in range(3):
            group.start_soon(check_fill, value)
    assert seeded.driver.engine.order.trace


@pytest.mark.anyio
async def test_threads_share_a_seeded_device(seeded):
    """Not in the same order each time, but right."""

    def in_thread(value):
        for _ in range(5):
            assert (ca.full(9, float(value)).then(ca.copy).to_host().sync() == value).all()

    async with anyio.create_task_group() as group:
        for value in range(3):
            group.start_soon(anyio.to_thread.run_sync, in_thread, value)
            group.start_soon(check_fill, value)


FAILING = """
import cuda_async as ca

def test_fails():
    assert ca.parallel(ca.ones(3), ca.zeros(3)).sync() is None
"""


def test_failing_test_says_its_seed(tmp_path):
    conftest = Path(__file__).parents[3] / "conftest.py"
    (tmp_path / "conftest.py").write_text(conftest.read_text())
    (tmp_path / "test_it.py").write_text(FAILING)
    environment = {**os.environ, "CUDA_ASYNC_DRIVER": "host", "CUDA_ASYNC_HOST_SEED": "12"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "CUDA_ASYNC_HOST_SEED=12 python -m pytest 'test_it.py::test_fails'" in done.stdout
    assert re.search(r"^trace: (\w+ )+", done.stdout, re.MULTILINE)


async def check_fill(value):
    assert (await ca.full(9, float(value)).to_host() == value).all()
    assert (await ca.full(9, value, "i4").to_host().map(lambda array: array + 1) == value + 1).all()


class Blocks:
    """A kernel of the host device that notes the order of its blocks."""

    def __init__(self, notes):
        self.info = FunctionInfo(name="blocks", parameters=(), max_threads_per_block=1)
        self.notes = notes

    def start(self, launch):
        waiting = list(range(launch.grid[0]))
        while waiting:
            self.notes.append(waiting.pop(launch.pick(len(waiting)) if launch.pick else 0))
            yield


def test_blocks_go_in_the_order_of_the_seed():
    orders = []

    def program(device):
        notes = []
        module = ca.Module.from_host_image(HostImage(functions={"blocks": Blocks(notes)}))
        module.function("blocks").launch(4, 1).sync()
        orders.append(tuple(notes))

    explore(program, seeds=200)
    assert len(set(orders)) == 24
    del orders[:]
    explore(program, exhaustive=True)
    assert set(orders) == {(0, 1, 2, 3)}


ADD_BLOCKS = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry last_block(.param .u64 out)
{
    .reg .u32 %r<2>;
    .reg .u64 %d<2>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %ctaid.x;
    atom.global.exch.b32 %r0, [%d1], %r1;
    ret;
}
"""


def test_ptx_blocks_go_in_the_order_of_the_seed():
    ends = set()

    def program(device):
        function = ca.Module.from_ptx(ADD_BLOCKS).function("last_block")
        out = ca.zeros(1, "i4").sync()
        function.launch(3, 1, ca.mut(out)).sync()
        ends.add(int(out.to_host().sync()[0]))

    explore(program, seeds=30)
    assert ends == {0, 1, 2}


def test_host_gives_way_to_the_device_in_the_end():
    """A program that polls ends, though the seed may prefer it for long."""

    def program(device):
        future = ca.zeros(3).to_host().start()
        while not future.done:
            pass

    explore(program, seeds=60)


def test_orders_refuse_what_cannot_act():
    order = ReplayedOrder([FIRST_QUEUE + 1, -3])
    assert order.choose([FIRST_QUEUE, FIRST_QUEUE + 1]) == FIRST_QUEUE + 1
    with pytest.raises(ca.SchedulingError, match="at decision 1"):
        order.pick(2)
    order = SeededOrder(3)
    first = [order.choose([0, 4, 5]) for _ in range(50)]
    order.restart(3)
    assert [order.choose([0, 4, 5]) for _ in range(50)] == first == order.trace


def test_step_chosen_by_hand_is_drawn_too():
    device, order = seeded_device(1)
    streams = [device.create_stream() for _ in range(2)]
    address = device.driver.memory_alloc_async(64, streams[0].handle)
    device.driver.stream_synchronize(streams[0].handle)
    ready = [device.driver.engine.add_queue() for _ in range(3)]
    assert order.next_queue(ready) in ready
    device.driver.fill_async(address, np.uint8(7).tobytes(), 64, streams[1].handle)
    device.driver.synchronize()
    assert device.driver.memory.view(address, 64).tolist() == [7] * 64
