"""Closing devices: what was on them, what comes after, and work in flight. Each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PREAMBLE = """
import asyncio, gc, sys, threading, time
import numpy as np
import cuda_async as ca

NAME = {name!r}

def expect(error, match, do):
    try:
        do()
    except error as e:
        assert match in str(e), e
    else:
        raise AssertionError(f"no {{error.__name__}}")
"""

PROGRAMS = {
    "everything on it is closed": """
device = ca.Device(NAME)
with ca.use_device(device):
    x = ca.ones(1000).sync()
    stream = device.create_stream()
device.close()
device.close()
assert not device.is_healthy and not device.is_open
with ca.use_device(device):
    expect(ca.ClosedError, "closed", ca.zeros(3).sync)
expect(ca.ClosedError, "closed", x.to_host().sync)
expect(ca.ClosedError, "closed", stream.record)
expect(ca.ClosedError, "closed", lambda: ca.zeros(3).sync_on(stream))
expect(ca.ClosedError, "closed", device.create_stream)
again = ca.Device(NAME)
assert again is not device
with ca.use_device(again):
    assert ca.ones(3).to_host().sync().tolist() == [1, 1, 1]
    expect(ca.ClosedError, "closed", ca.memcpy(ca.zeros(1000).sync(), x).sync)
assert again.memory_stats().used_bytes == 0
""",
    "kernels and arrays outlive it": """
import tilekern as tk

@tk.kernel
def double(out: tk.Tile1D, x: tk.Tensor1D):
    out.store(tk.load_like(x, out) * 2)

async def main():
    for i in range(3):
        async with ca.Device(NAME) as device:
            with ca.use_device(device):
                x = await ca.from_host(np.full(100, i, "f4"))
                array = await double(ca.empty(100).partition(32), x).first().unpartition().to_host()
        assert (array == 2 * i).all()

asyncio.run(main())
""",
    "the default device is made anew": """
import os
os.environ["CUDA_ASYNC_DRIVER"] = NAME.partition(":")[0]
first = ca.current_device()
assert ca.ones(2).to_host().sync().sum() == 2
first.close()
assert ca.current_device() is not first
assert ca.ones(2).to_host().sync().sum() == 2
""",
    "its name is free when its driver is": """
sys.setswitchinterval(1e-6)
for _ in range(200):
    first = ca.Device(NAME).open()
    thread = threading.Thread(target=first.close)
    thread.start()
    while (second := ca.Device(NAME)) is first:
        pass
    with ca.use_device(second):
        assert ca.ones(2).to_host().sync().sum() == 2
    thread.join()
    with ca.use_device(second):
        assert ca.ones(2).to_host().sync().sum() == 2
    second.close()
""",
    "two who close it": """
closing, goes_on, fresh = threading.Event(), threading.Event(), []
first = ca.Device(NAME).open()
driver, close = first.driver, first.driver.close

def close_when_told():
    closing.set()
    assert goes_on.wait(10)
    close()

def close_and_open():
    first.close()
    fresh.append(ca.Device(NAME))

driver.close = close_when_told
threads = [threading.Thread(target=first.close), threading.Thread(target=close_and_open)]
threads[0].start()
assert closing.wait(10)
threads[1].start()
threads[1].join(0.2)
assert threads[1].is_alive()
goes_on.set()
for thread in threads:
    thread.join()
assert fresh[0] is not first
with ca.use_device(fresh[0]):
    assert ca.ones(2).to_host().sync().sum() == 2
""",
    "closed while it is opened": """
from cuda_async.driver import cuda, host
module = host if NAME.startswith("host") else cuda
opener = "open_host_driver" if module is host else "open_cuda_driver"
opening, goes_on, closed = threading.Event(), threading.Event(), threading.Event()
opens = getattr(module, opener)

def open_slowly(ordinal):
    driver = opens(ordinal)
    close = driver.close
    driver.close = lambda: (closed.set(), close())
    opening.set()
    assert goes_on.wait(30)
    return driver

setattr(module, opener, open_slowly)
first = ca.Device(NAME)
thread = threading.Thread(target=lambda: expect(ca.ClosedError, "closed", first.open))
thread.start()
assert opening.wait(30)
first.close()
goes_on.set()
thread.join()
assert closed.is_set()
assert not first.is_open
""",
    "streams that are closed at the same time": """
sys.setswitchinterval(1e-6)
errors = []

def close_all(streams):
    try:
        for stream in streams:
            stream.close()
            stream.close()
    except Exception as error:
        errors.append(error)

for _ in range(50):
    device = ca.Device(NAME).open()
    streams = [device.create_stream() for _ in range(8)]
    for stream in streams:
        ca.ones(4).sync_on(stream)
        ca.ones(4).start(ca.SingleStream(stream))
    threads = [threading.Thread(target=close_all, args=(streams,)), threading.Thread(target=device.close)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert not device.is_open
""",
    "arrays that outlive it give their pinned memory back": """
from cuda_async.memory import _pinned

def is_pinned(array_address):
    if NAME.startswith("host"):
        from cuda_async.driver.host import _memory
        return _memory._pinned.find(array_address) is not None
    from cuda.bindings import driver
    return driver.cuMemHostGetFlags(array_address)[0] == 0

def downloads():
    with ca.use_device(ca.Device(NAME)):
        return [ca.from_host(np.arange(n, dtype="i4")).to_host().sync() for n in (1000, 3 << 20)]

arrays = downloads()
pool = ca.Device(NAME).pinned
ca.Device(NAME).close()
assert pool.reserved_bytes == 17 << 20
addresses = [array.ctypes.data for array in arrays]
assert [is_pinned(address) for address in addresses] == [True, True]
assert [int(array[-1]) for array in arrays] == [999, (3 << 20) - 1]
arrays.pop()
assert int(downloads()[0][-1]) == 999  # takes new memory
assert pool.reserved_bytes == 1 << 20
assert int(arrays.pop()[-1]) == 999
ca.Device(NAME).close()
assert [is_pinned(address) for address in addresses] == [False, False]
assert not _pinned._left
""",
    "work in flight is waited for": """
async def main():
    device = ca.Device(NAME)
    with ca.use_device(device):
        ones = await ca.ones(1 << 20)
        await ca.zip(ca.copy(ones).to_host(), ca.copy(ones).to_host())  # later ones need no preparation
        gc.collect()
        began = time.monotonic()  # another thread may be letting go of the first ones
        while blocks_in_use(device.pinned) and time.monotonic() < began + 1:
            await asyncio.sleep(0)
        begun = asyncio.Event()
        task = asyncio.create_task(awaited(ca.copy(ones).inspect(lambda _: begun.set()).to_host()))
        future = ca.copy(ones).to_host().start()
        await begun.wait()  # a turn of the loop need not suffice for the task to enqueue
        await device.aclose()
    assert (await task).sum() == 1 << 20
    assert (await future).sum() == 1 << 20

async def awaited(op):
    return await op

def blocks_in_use(pool):
    there = [*pool._returned, *((size, one) for size, found in pool._free.items() for one in found)]
    return pool.reserved_bytes - sum(size for size, _ in there)

asyncio.run(main())
""",
    "threads that use it get an error or a result": """
device = ca.Device(NAME)
outcomes = []

def use():
    try:
        while True:
            with ca.use_device(device):
                found = ca.ones(100).to_host().sync()
            if found.sum() != 100:
                outcomes.append(found)
            started.set()
    except ca.ClosedError:
        outcomes.append("closed")
    except BaseException as error:
        outcomes.append(repr(error))

started = threading.Event()
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
started.wait()
device.close()
for thread in threads:
    thread.join(20)
assert outcomes == ["closed"] * 4, outcomes
""",
}


@pytest.mark.parametrize("kind", ["host", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_closing(tmp_path, kind, program):
    path = tmp_path / "program.py"
    path.write_text(PREAMBLE.format(name=f"{kind}:0") + PROGRAMS[program])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ,
    )
    assert (done.returncode, done.stderr[-1500:]) == (0, ""), done.stderr[-1500:]
