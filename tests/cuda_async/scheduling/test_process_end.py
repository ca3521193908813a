"""The end of a process: work in flight, objects that are still there, threads and loops that go on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PREAMBLE = """
import asyncio, atexit, sys, threading
import numpy as np

def late():
    "Registered first, so it runs after the device was closed."
    print("late", *globals().get("last", ()))

atexit.register(late)

import cuda_async as ca
from cuda_async.driver import FunctionInfo, HostFunction, HostImage

gate = threading.Event()

class Hold(HostFunction):
    info = FunctionInfo(name="hold", parameters=(), max_threads_per_block=1)

    def start(self, launch):
        while not gate.wait(1e-3):
            yield

held = ca.Module.from_host_image(HostImage(functions={"hold": Hold()})).function("hold")

def hold():
    return held.launch(1, 1)
"""

ENDS = {
    "a future in flight": "future = hold().then(lambda _: ca.zeros(4).to_host()).start()",
    "an awaiting task": """
async def wait():
    await hold()

async def main():
    task = asyncio.create_task(wait())
    await asyncio.sleep(0.05)

asyncio.run(main())
""",
    "a step that is never prepared": """
class Never(ca.DeviceOp):
    def prepare(self, ctx):
        threading.Event().wait()

future = Never().start()
""",
    "a step that goes on when the device is closed": """
preparing, closed = threading.Event(), threading.Event()

class Late(ca.DeviceOp):
    def prepare(self, ctx):
        preparing.set()
        closed.wait(30)

    def execute(self, ctx):
        return ca.fill(tensor, 1.0).execute(ctx)

tensor = ca.zeros(4).sync()
future = Late().start()
preparing.wait(30)

@atexit.register
def close():
    from cuda_async.driver.host import _engine

    _engine._close_all()
    closed.set()
    settled = threading.Event()
    future._begin(settled.set)
    assert settled.wait(30)
    assert future.state == "failed"
""",
    "globals of every kind": """
device = ca.current_device()
tensor = ca.ones(1000).sync()
view = tensor[::2]
array = tensor.to_host().sync()
stream = device.create_stream()
event = stream.record()
shared = ca.ones(3).shared()
shared.sync()
future = ca.zeros(3).start()
unused = ca.zeros(3).then(lambda t: t)
cycle = [tensor]
cycle.append(cycle)
borrowed = ca.from_dlpack(np.ones(3))
""",
    "a suspended generator": """
def generator():
    tensor = ca.ones(3).sync()
    yield tensor

suspended = generator()
next(suspended)
""",
}


def run(code):
    environment = {**os.environ, "CUDA_ASYNC_DRIVER": "host", "CUDA_ASYNC_HOST_CHECK": ""}  # leaks are wanted
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PREAMBLE + code],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize("end", ENDS)
def test_process_ends_cleanly(end):
    done = run(ENDS[end])
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "late", "")


def test_thread_that_waits_for_the_device_is_waited_for():
    """A thread that is no daemon may use the device until it ends."""
    done = run("""
ca.ones(4).to_host().sync()  # starts what Python 3.12.1 cannot start once the main thread has ended
threading.Thread(target=lambda: print(hold().then(lambda _: ca.ones(4).to_host()).sync())).start()
threading.Timer(0.2, gate.set).start()
""")
    assert (done.returncode, done.stdout.split("\n")[0], done.stderr) == (0, "[1. 1. 1. 1.]", "")


def test_arrays_outlive_the_device():
    """What `to_host` gave lies in staging memory, which stays."""
    done = run("""
last = [ca.full(100_000, 2.0).to_host().sync()]
class Sum:
    def __init__(self, array): self.array = array
    def __str__(self): return str(self.array.sum())
last = [Sum(*last)]
""")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "late 200000.0", "")


def test_failure_in_a_thread_that_outlives_the_main_one_is_told():
    """A callback's; nobody asks for it."""
    done = run("""
def work():
    threading.main_thread().join()
    future, settled = ca.zeros(3).then(lambda _: 1 // 0).start(), threading.Event()
    future._begin(settled.set)
    assert settled.wait(30)
    del future

ca.ones(4).to_host().sync()
threading.Thread(target=work).start()
""")
    assert (done.returncode, done.stdout.strip()) == (0, "late")
    assert "an operation that was started failed, and nobody asked its future" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_work_after_the_device_was_closed():
    """Is an error that says why."""
    done = run("""
class Late:
    def __str__(self):
        try:
            return str(ca.ones(4).to_host().sync())
        except ca.ClosedError as error:
            return str(error)
last = [Late()]
ca.ones(4).sync()
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the interpreter is exiting" in done.stdout


def test_first_work_in_an_exit_handler():
    """No thread can be started any more: an error, and still a clean end."""
    done = run("""
@atexit.register
def first():
    try:
        print(ca.ones(4).to_host().sync())
    except Exception as error:
        print(type(error).__name__, error)
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[0]


def test_exit_code_of_the_program_is_kept():
    done = run("future = hold().start()\nsys.exit(7)")
    assert (done.returncode, done.stderr) == (7, "")


FORK = """
import os, sys
import cuda_async as ca
from cuda_async.testing import checked_device, seeded_device, stepped_device

kind = sys.argv[1]
if kind == "checked":
    device = checked_device()
elif kind == "seeded":
    device, _ = seeded_device(1)
else:
    device, controls = stepped_device()
    stream = device.create_stream()
with ca.use_device(device):
    op = ca.ones(3)
    if kind == "stepped":
        future = op.start(ca.SingleStream(stream))
        controls.advance_all()
        tensor = future.result()
    else:
        tensor = op.sync()
    child = os.fork()
    if not child:
        for work in (lambda: ca.ones(3).sync(), lambda: tensor.to_host().sync()):
            try:
                work()
            except ca.ContextError as error:
                print(type(error).__name__, "spawn" in str(error), device.is_healthy, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", ["checked", "seeded", "stepped"])
def test_a_forked_child_does_not_use_a_tests_own_device(kind):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, kind], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["ContextError True False"] * 2, done.stdout + done.stderr
