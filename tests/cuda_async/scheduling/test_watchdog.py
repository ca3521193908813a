"""The watchdog: what a wait that goes on is for."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading

import anyio
import pytest

import cuda_async as ca
from cuda_async.driver import FunctionInfo, HostFunction, HostImage
from cuda_async.scheduling import _watchdog


class Slow(ca.DeviceOp):
    """Is prepared until it is released."""

    def __init__(self):
        self.release = threading.Event()

    def prepare(self, ctx):
        assert self.release.wait(10)

    def execute(self, ctx):
        return 1


class Nothing(HostFunction):
    info = FunctionInfo(name="slow", parameters=(), max_threads_per_block=1)

    def start(self, launch):
        yield


@pytest.fixture
def reports():
    """Reports of waits longer than a millisecond, and an event for the first."""
    found, first = [], threading.Event()

    def report(wait):
        found.append(wait)
        first.set()

    ca.set_watchdog(1e-3, report)
    yield found, first
    ca.set_watchdog(None)


@pytest.mark.anyio
async def test_await_says_what_it_waits_for(stepped, reports):
    found, first = reports
    stream = stepped.create_stream(name="mine")

    async def waits():
        await ca.full(4, 1.0).schedule(ca.SingleStream(stream))

    async with anyio.create_task_group() as group:
        group.start_soon(waits, name="the reader")
        await anyio.to_thread.run_sync(first.wait, 10)
        (wait,) = ca.pending_waits()
        stepped.driver.advance_all()
    assert (wait.device, wait.stream, wait.submission, wait.passed) == ("host:0", "mine", 1, 0)
    assert wait.seconds > 0
    assert "submission 1 of 'mine' on host:0" in str(wait)
    assert "passed submission 0" in str(wait)
    assert "the reader" in wait.who
    assert ca.pending_waits() == []
    assert found[0].submission == 1


def test_blocking_call_and_what_its_stream_waits_for(stepped, reports):
    """The stream stands at an earlier submission, which waits for another stream."""
    _, first = reports
    one, two = stepped.create_stream(name="one"), stepped.create_stream(name="two")
    ca.zeros(4).start(ca.SingleStream(one))
    event = one.record()
    two.wait(event)
    ca.zeros(4).start(ca.SingleStream(two))
    last = two.record()
    thread = threading.Thread(target=last.synchronize, name="blocked")
    thread.start()
    assert first.wait(10)
    (wait,) = ca.pending_waits()
    stepped.driver.advance_all()
    thread.join(10)
    assert not thread.is_alive()
    assert "thread 'blocked'" in wait.who
    assert "stands at 1" in wait.what
    assert "waits for submission" in wait.what
    assert "'one'" in wait.what


def test_what_the_stream_waits_for_is_named(stepped, reports):
    """Also where whoever launched it waits no more."""
    _, first = reports
    made = ca.zeros(4).start()
    stepped.driver.advance_all()
    x = made.sync()
    kernel = ca.Module.from_host_image(HostImage(functions={"slow": Nothing()})).function("slow")
    enqueued = threading.Event()
    launch = kernel.launch(1, 1, uses=[ca.mut(x)]).map(lambda _: enqueued.set())
    launch.start(ca.SingleStream(stepped.create_stream(name="one")))
    assert enqueued.wait(10)
    read = ca.copy(x).start(ca.SingleStream(stepped.create_stream(name="two")))
    thread = threading.Thread(target=read.sync)
    thread.start()
    assert first.wait(10)
    (wait,) = ca.pending_waits()
    stepped.driver.advance_all()
    thread.join(10)
    assert "work on it waits for submission 1 of 'one' (kernels slow)" in wait.what


def test_preparation_is_named(host, reports):
    _, first = reports
    slow = Slow()
    future = ca.value(1).then(lambda _: slow).start()
    thread = threading.Thread(target=future.sync)
    thread.start()
    assert first.wait(10)
    waits = ca.pending_waits()
    slow.release.set()
    thread.join(10)
    assert any("still being prepared" in wait.what for wait in waits)
    assert waits[0].stream is None


@pytest.mark.parametrize("depth", [1, 2])
def test_preparation_of_a_shared_operation_is_named(host, reports, depth):
    """Also through shared operations that wait for one another, and for the consumer that started it."""
    _, first = reports
    slow = Slow()
    shared = slow.shared()
    if depth == 2:
        shared = ca.value(1).then(lambda _, inner=shared: inner).shared()
    threads = [threading.Thread(target=shared.sync) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert first.wait(10)
    waits = ca.pending_waits()
    slow.release.set()
    for thread in threads:
        thread.join(10)
    described = "the run of a shared operation, which stands at the preparation of Slow"
    assert described in {wait.what for wait in waits}
    assert ca.pending_waits() == []


def test_off_unless_asked_for(stepped):
    future = ca.zeros(4).start()
    thread = threading.Thread(target=future.sync)
    thread.start()
    assert ca.pending_waits() == []
    stepped.driver.advance_all()
    thread.join(10)


@pytest.mark.parametrize("after", [0, -1, float("nan"), float("inf"), 2 * threading.TIMEOUT_MAX, "5", True])
def test_times_that_make_no_sense(after):
    with pytest.raises(ValueError, match="greater than 0"):
        ca.set_watchdog(after)


@pytest.mark.parametrize("report", [3, 0, "print"])
def test_reports_that_cannot_be_called(report):
    with pytest.raises(TypeError, match="a function of a PendingWait"):
        ca.set_watchdog(5, report)
    assert _watchdog._current is None


def test_its_thread_ends_when_it_is_switched_off(monkeypatch):
    """At once, and not when it would look again."""
    asked = threading.Event()

    def long_from_now(watchdog):
        asked.set()  # under the lock, which it gives back by waiting
        return 3600

    monkeypatch.setattr(_watchdog._Watchdog, "_until_next_s", long_from_now)
    before = set(threading.enumerate())
    ca.set_watchdog(3600)
    (thread,) = (t for t in set(threading.enumerate()) - before if t.name == "cuda_async watchdog")
    assert asked.wait(10)
    ca.set_watchdog(None)
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_report_that_fails_is_not_the_last(stepped, capfd, error):
    seen = threading.Semaphore(0)

    def report(wait):
        seen.release()
        raise error("mine")

    ca.set_watchdog(1e-3, report)
    future = ca.zeros(4).start()
    thread = threading.Thread(target=future.sync)
    thread.start()
    assert seen.acquire(timeout=10)
    assert seen.acquire(timeout=10)
    ca.set_watchdog(None)
    stepped.driver.advance_all()
    thread.join(10)
    assert f"report failed: {error.__name__}('mine')" in capfd.readouterr().err


def test_goes_on_when_standard_error_is_closed(stepped, monkeypatch):
    """The report fails, and so does saying so; the watchdog looks on."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    seen = threading.Semaphore(0)

    def report(wait):
        seen.release()
        raise RuntimeError("mine")

    ca.set_watchdog(1e-3, report)
    future = ca.zeros(4).start()
    thread = threading.Thread(target=future.sync)
    thread.start()
    assert all(seen.acquire(timeout=10) for _ in range(3))
    ca.set_watchdog(None)
    stepped.driver.advance_all()
    thread.join(10)
    assert not thread.is_alive()


def test_environment_variable():
    code = """
import sys, threading, cuda_async as ca
from cuda_async.testing import stepped_device

class Told:
    said = threading.Event()

    def write(self, text):
        sys.__stderr__.write(text)
        self.said.set()

    def flush(self):
        sys.__stderr__.flush()

sys.stderr = Told()
device, controls = stepped_device()
with ca.use_device(device):
    future = ca.zeros(4).start(ca.SingleStream(device.create_stream(name="slow")))
thread = threading.Thread(target=future.sync)
thread.start()
assert Told.said.wait(30)
controls.advance_all()
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"CUDA_ASYNC_WATCHDOG_S": "0.001", "CUDA_ASYNC_DRIVER": "host", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"cuda_async: thread 'Thread-1 \(sync\)' has waited for \d+\.\d s", done.stderr)
    assert "'slow'" in done.stderr


def test_report_that_is_being_made_ends_before_the_interpreter():
    code = """
import atexit, os, threading, cuda_async as ca
from cuda_async.testing import stepped_device

said, ending = threading.Event(), threading.Event()

def report(wait):
    said.set()
    ending.wait(30)
    threading.Event().wait(0.05)
    os.write(1, b"told")

device, controls = stepped_device()
with ca.use_device(device):
    future = ca.zeros(4).start(ca.SingleStream(device.create_stream()))
ca.set_watchdog(0.01, report)
thread = threading.Thread(target=future.sync)
thread.start()
assert said.wait(30)
controls.advance_all()
thread.join()
atexit.register(ending.set)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "told"), done.stderr


def test_environment_variable_is_checked(monkeypatch):
    monkeypatch.setenv("CUDA_ASYNC_WATCHDOG_S", "soon")
    with pytest.raises(ca.ContextError, match="CUDA_ASYNC_WATCHDOG_S is 'soon'"):
        ca.Device._make("host", 0, None)


def test_interrupted_stop_ends_its_thread_the_next_time():
    """Wherever an interrupt comes: no lock is left held that the watchdog's thread needs."""
    for at in range(1, 20):
        watchdog = _watchdog._Watchdog(60.0, print)
        left = at

        def interrupt(frame, event, _):
            nonlocal left
            left -= event in ("call", "c_return")
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

        before = sys.getprofile()
        sys.setprofile(interrupt)
        try:
            watchdog.stop()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before)
        watchdog.end()
        assert not watchdog._thread.is_alive(), at
        if left > 0:
            break
