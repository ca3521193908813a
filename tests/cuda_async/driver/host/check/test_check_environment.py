"""`CUDA_ASYNC_HOST_CHECK` and `CUDA_ASYNC_POISON_FREED`, and what is printed at the end of a process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

import cuda_async as ca
from cuda_async.driver._switches import poison_freed
from cuda_async.driver.host import HostDriver
from cuda_async.driver.host._settings import host_check
from cuda_async.errors import ContextError
from cuda_async.scheduling import Device
from cuda_async.testing import check_reports, checked_device, stepped_device

PROGRAM = """
import cuda_async as ca

ca.empty(4).to_host().sync()
ca.ones(4).sync()
kept = ca.ones(16).sync()
"""


CYCLE = """
import gc
import cuda_async as ca

gc.disable()
cycle = [ca.ones(16).sync()]
cycle.append(cycle)
del cycle
"""


FAILURES = """
import asyncio
import cuda_async as ca
from cuda_async.errors import KernelError

def fails(_):
    raise ValueError("as planned")

async def request():
    x = await ca.ones(320)
    await ca.foreign(fails, writes=[x])

async def main():
    for _ in range(3):
        try:
            await request()
        except KernelError:
            pass

asyncio.run(main())
"""


def run(mode: str, program: str = PROGRAM) -> tuple[int, str]:
    environment = {**os.environ, "CUDA_ASYNC_DRIVER": "host", "CUDA_ASYNC_HOST_CHECK": mode}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_collected_findings_and_leaks_are_printed_at_the_end():
    code, printed = run("collect")
    assert code == 0
    assert "CUDA_ASYNC_HOST_CHECK found:" in printed
    assert printed.count("never written:") == 1
    assert printed.count("leak: 64 bytes") == printed.count("leak:") == 1


def test_what_was_dropped_in_a_cycle_is_no_leak():
    assert run("1", CYCLE) == (0, "")


def test_what_caught_errors_have_held_is_no_leak():
    """A thread of the device may still be at the end of what told of them: mostly not, so it is tried some times."""
    for _ in range(6):
        assert run("1", FAILURES) == (0, "")


def test_findings_are_raised():
    code, printed = run("1")
    assert code == 1
    assert "CheckError: never written: memory is read that nothing has written" in printed


@pytest.mark.parametrize(("text", "mode"), [("", ""), ("0", ""), ("1", "raise"), ("Collect", "collect")])
def test_settings(monkeypatch, text, mode):
    monkeypatch.setenv("CUDA_ASYNC_HOST_CHECK", text)
    assert host_check() == mode


def test_other_settings_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_ASYNC_HOST_CHECK", "2")
    with pytest.raises(ContextError, match="give 1, collect or 0"):
        HostDriver(memory_bytes=1 << 20)


@pytest.mark.parametrize(
    ("text", "on"), [("", False), ("0", False), ("False", False), (" 1 ", True), ("on", True)]
)
def test_freed_memory_is_poisoned_where_the_variable_says_so(monkeypatch, text, on):
    monkeypatch.setenv("CUDA_ASYNC_POISON_FREED", text)
    assert poison_freed() is on
    assert Device._make("host", 0, HostDriver(memory_bytes=1 << 20, poison=False))._poison is on


def test_other_words_than_on_and_off_are_refused(monkeypatch):
    driver = HostDriver(memory_bytes=1 << 20)
    monkeypatch.setenv("CUDA_ASYNC_POISON_FREED", "maybe")
    for make in (lambda: HostDriver(memory_bytes=1 << 20), lambda: Device._make("host", 0, driver)):
        with pytest.raises(ContextError, match="CUDA_ASYNC_POISON_FREED is 'maybe'; give 1 or 0"):
            make()


def test_leaks_are_of_a_device_that_checks():
    device, _ = stepped_device()
    with pytest.raises(ContextError, match="does not check what runs on it; use checked_device"):
        check_reports(leaks_of=device)
    for wrong in (5, "host:0"):
        with pytest.raises(TypeError, match="leaks_of is a Device"):
            check_reports(leaks_of=wrong)
    assert check_reports(leaks_of=checked_device()) == []


def test_a_device_of_ones_own_leaves_no_thread_behind(monkeypatch):
    """Whether it is closed, or dropped and idle."""
    before = set(threading.enumerate())

    def used():
        device = checked_device()
        with ca.use_device(device):
            assert ca.ones(3).to_host().sync().all()
        return device

    def none_is_left():
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
        return not set(threading.enumerate()) - before

    for _ in range(3):
        used().close()
    assert none_is_left()
    monkeypatch.setattr("cuda_async.driver.host._driver.IDLE_S", 0.01)
    device = used()
    assert none_is_left()
    with ca.use_device(device):  # another one goes on
        assert ca.ones(3).then(ca.copy).to_host().sync().all()
    assert none_is_left()
