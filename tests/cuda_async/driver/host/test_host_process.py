"""The engine thread and the process: interpreter exit, fork, other start methods. In subprocesses."""

import os
import subprocess
import sys
import textwrap

import pytest

PROLOGUE = """
import os, sys, threading, time
import numpy as np
from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver._protocol import FunctionInfo, HostImage
from cuda_async.driver.host import HostDriver, open_host_driver

class Kernel:
    info = FunctionInfo(name="k", parameters=(), max_threads_per_block=1)
    def __init__(self, body): self.body = body
    def start(self, launch): return self.body(launch)

def endless(launch):
    while True:
        yield

def stuck(launch):
    time.sleep(3600)
    yield

def use(host):
    "Fill, read back."
    stream = host.stream_create()
    a = host.memory_alloc_async(1 << 20, stream)
    host.fill_async(a, b"a", 1 << 20, stream)
    host.stream_synchronize(stream)
    assert (host.memory.view(a, 1 << 20) == ord("a")).all()
    host.memory_free_async(a, stream)
    host.stream_synchronize(stream)
    return stream

def launch(host, stream, body):
    function = host.module_function(host.module_load(HostImage(functions={"k": Kernel(body)})), "k")
    host.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, ArgumentBlock(()))

host = open_host_driver(0)
"""


def run(code, timeout_s=60):
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore:.*fork.*:DeprecationWarning",
            "-c",
            PROLOGUE + textwrap.dedent(code),
        ],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
        "use(host)",
        "launch(host, use(host), endless)",
        "launch(host, use(host), stuck)",
        """
        stream = use(host)
        launch(host, stream, endless)
        event = host.event_create()
        host.event_record(event, stream)
        def wait():
            try:
                host.event_synchronize(event)
            except Exception:
                pass
        threading.Thread(target=wait, daemon=True).start()
        """,
    ],
    ids=["idle", "busy", "stuck", "waited for"],
)
def test_interpreter_exits_at_once_and_silently(code):
    result = run(code)
    assert (result.returncode, result.stderr) == (0, "")


def test_unhandled_error_still_exits():
    result = run("launch(host, use(host), endless)\nraise SystemExit(7)")
    assert result.returncode == 7


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

JOIN = """
def child(body):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, status
            return
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")
"""


@needs_fork
def test_forked_child_has_a_working_device():
    result = run(JOIN + "use(host)\nchild(lambda: use(host))\nuse(host)\nprint('fine')")
    assert (result.stdout, result.stderr) == ("fine\n", "")


@needs_fork
def test_forked_child_has_its_own_copy_of_memory():
    result = run(
        JOIN
        + """
views = [host.memory.view(address, 4, "write") for address in (host.pinned_alloc(4), host.memory.allocate(4))]
def write():
    for view in views:
        view.fill(1)
child(write)
print(*(view.tolist() for view in views))
"""
    )
    assert (result.stdout, result.stderr) == ("[0, 0, 0, 0] [0, 0, 0, 0]\n", "")


@needs_fork
def test_work_in_flight_is_not_done_twice():
    """In the child it fails with an error that speaks of the fork; the parent goes on; frees keep the books."""
    result = run(
        JOIN
        + """
from cuda_async.errors import ContextError
stream = use(host)
go = threading.Event()
def body(launch):
    while not go.is_set():
        yield
event = host.event_create()
a = host.memory_alloc_async(1 << 20, stream)
launch(host, stream, body)
host.memory_free_async(a, stream)
b = host.memory_alloc_async(1 << 19, stream)
host.event_record(event, stream)

def in_child():
    try:
        host.event_synchronize(event)
    except ContextError as error:
        assert "forked" in str(error) and "spawn" in str(error), error
    else:
        raise AssertionError("no error")
    use(host)
    host.fill_async(b, b"x", 1 << 19, stream)
    host.memory_free_async(b, stream)
    host.stream_synchronize(stream)
    assert host.pool_statistics().used_bytes == 0

child(in_child)
assert not host.event_query(event)
go.set()
host.event_synchronize(event)
host.memory_free_async(b, stream)
host.stream_synchronize(stream)
print("fine")
"""
    )
    assert (result.stdout, result.stderr) == ("fine\n", "")


@needs_fork
def test_forks_at_random_moments():
    """Other threads hold locks, and the engine is in the middle of steps, while the process forks."""
    result = run(
        JOIN
        + """
stop = False
def busy():
    while not stop:
        use(host)
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(15):
    child(lambda: [use(host) for _ in range(5)])
stop = True
for thread in threads: thread.join()
use(host)
print("fine")
"""
    )
    assert (result.stdout, result.stderr) == ("fine\n", "")


def test_import_opens_nothing():
    code = "import threading, cuda_async.driver.host; assert threading.active_count() == 1"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
