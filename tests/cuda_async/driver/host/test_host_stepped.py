"""The stepped host device: entries advance when told, calls fail when told."""

import threading

import numpy as np
import pytest

from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver._protocol import FunctionInfo, HostImage
from cuda_async.driver.host import HostDriver
from cuda_async.errors import ContextError, DriverError, OutOfMemoryError
from cuda_async.testing import checked_device, seeded_device, stepped_device

MIB = 1 << 20


class Counting:
    """A kernel of three steps."""

    info = FunctionInfo(name="counting", parameters=(), max_threads_per_block=1024)

    def __init__(self):
        self.steps = 0

    def start(self, launch):
        for _ in range(3):
            self.steps += 1
            yield


@pytest.fixture
def host():
    return HostDriver(stepped=True, memory_bytes=16 * MIB)


@pytest.fixture
def stream(host):
    return host.stream_create()


def test_nothing_runs_until_told(host, stream):
    a = host.memory_alloc_async(16, stream)
    host.fill_async(a, b"a", 16, stream)
    host.memory_free_async(a, stream)
    assert host.pending(stream) == 3
    assert host.advance(stream) == 1
    view = host.memory.view(a, 16)
    view[:] = 0
    assert host.advance(stream) == 1
    assert (view == ord("a")).all()
    assert host.freed == []
    assert host.advance(stream, 5) == 1
    assert host.freed == [a]
    assert host.pending() == 0


def test_advance_completes_a_whole_kernel(host, stream):
    kernel = Counting()
    function = host.module_function(host.module_load(HostImage(functions={"counting": kernel})), "counting")
    host.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, ArgumentBlock(()))
    assert host.advance(stream) == 1
    assert kernel.steps == 3


def test_step_advances_a_kernel_bit_by_bit(host, stream):
    kernel, event = Counting(), host.event_create()
    function = host.module_function(host.module_load(HostImage(functions={"counting": kernel})), "counting")
    host.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, ArgumentBlock(()))
    host.event_record(event, stream)
    assert [host.step(stream) for _ in range(4)] == [False, False, False, True]
    assert not host.event_query(event)
    assert host.step(stream)
    assert host.event_query(event)
    with pytest.raises(LookupError, match="empty"):
        host.step(stream)


def test_advance_stops_at_a_wait(host, stream):
    other, event = host.stream_create(), host.event_create()
    host.event_record(event, other)
    host.stream_wait_event(stream, event)
    assert host.is_blocked(stream)
    assert host.advance(stream) == 0
    assert host.advance(other) == 1
    assert not host.is_blocked(stream)
    assert host.advance(stream) == 1


def test_advance_all_is_the_same_each_time(host):
    def run():
        driver = HostDriver(stepped=True, memory_bytes=MIB)
        streams = [driver.stream_create() for _ in range(3)]
        blocks = [driver.memory_alloc_async(256 * (i + 1), streams[i % 3]) for i in range(9)]
        for i, block in enumerate(blocks):
            driver.memory_free_async(block, streams[i % 3])
        assert driver.advance_all() == 18
        return [block - driver.memory.base for block in driver.freed]

    assert run() == run()


def test_wait_enqueued_sees_another_threads_work(host, stream):
    event = host.event_create()
    thread = threading.Thread(target=lambda: [host.event_record(event, stream) for _ in range(3)])
    thread.start()
    host.wait_enqueued(stream, 3)
    assert host.pending(stream) == 3
    thread.join()


def test_wait_enqueued_gives_up(host, stream):
    with pytest.raises(TimeoutError, match=r"0 entries after 0\.01 s"):
        host.wait_enqueued(stream, timeout_s=0.01)


def test_blocking_calls_wait_for_whoever_advances(host, stream):
    event, order = host.event_create(), []
    host.event_record(event, stream)

    def wait():
        host.event_synchronize(event)
        order.append("waited")

    thread = threading.Thread(target=wait)
    thread.start()
    order.append("advance")
    host.advance_all()
    thread.join(10)
    assert order == ["advance", "waited"]


def test_fail_next_fails_one_call(host, stream):
    error = OutOfMemoryError("no", 1, 2, 3)
    host.fail_next("memory_alloc_async", error)
    before = host.pool_statistics()
    with pytest.raises(OutOfMemoryError) as caught:
        host.memory_alloc_async(64, stream)
    assert caught.value is error
    assert (host.pool_statistics(), host.pending()) == (before, 0)
    host.memory_alloc_async(64, stream)


def test_fail_next_queues_failures(host):
    for code in ("first", "second"):
        host.fail_next("stream_create", DriverError("cuStreamCreate", 2, code, "made up"))
    for code in ("first", "second"):
        with pytest.raises(DriverError, match=code):
            host.stream_create()
    host.stream_create()


def test_fail_next_knows_the_calls(host):
    with pytest.raises(ValueError, match=r"no method 'lunch'; it has .*launch"):
        host.fail_next("lunch", RuntimeError())


def test_what_is_no_error_fails_nothing(host, stream):
    with pytest.raises(TypeError, match="a call fails with an error, got 'no'"):
        host.fail_next("fill_async", "no")
    with pytest.raises(TypeError, match="a device is lost by an error, got 'no'"):
        host.fail_device("no")
    host.memory_alloc_async(16, stream)


@pytest.mark.parametrize(
    ("size", "error"), [(-5, ValueError), (0, ValueError), ("x", TypeError), (True, TypeError)]
)
def test_sizes_of_memory_that_make_no_sense(size, error):
    for make in (stepped_device, checked_device, lambda **given: seeded_device(0, **given)):
        with pytest.raises(error, match=r"memory is a number of bytes|at least 1 byte of memory"):
            make(memory_bytes=size)


def test_calls_are_counted_as_made(host, stream):
    """Methods that use each other count once."""
    event = host.event_create(timing=True)
    host.event_record(event, stream)
    host.advance_all()
    host.event_elapsed_ms(event, event)
    a = host.memory_alloc_async(64, stream)
    host.convert_async(a, np.dtype("i4"), a, np.dtype("f4"), 4, stream)
    assert host.calls["event_elapsed_ms"] == host.calls["convert_async"] == host.calls["stream_create"] == 1
    assert host.calls["event_query"] == host.calls["convert_prepare"] == 0


def test_stepped_devices_are_private():
    one, two = (HostDriver(stepped=True, memory_bytes=MIB) for _ in range(2))
    stream = one.stream_create()
    one.memory_alloc_async(64, stream)
    assert two.advance_all() == 0
    assert one.advance_all() == 1


@pytest.mark.parametrize("use", ["advance", "advance_all", "pending"])
def test_controls_need_a_stepped_device(use):
    driver = HostDriver(memory_bytes=MIB)
    with pytest.raises(ContextError, match=r"HostDriver\(stepped=True\)"):
        getattr(driver, use)()
    driver.close()


def test_advancing_from_two_threads_is_refused(host, stream):
    """A step that is under way is not entered twice."""
    inside, leave = threading.Event(), threading.Event()

    class Blocking:
        info = FunctionInfo(name="blocking", parameters=(), max_threads_per_block=1)

        def start(self, launch):
            inside.set()
            leave.wait(10)
            yield

    function = host.module_function(host.module_load(HostImage(functions={"b": Blocking()})), "b")
    host.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, ArgumentBlock(()))
    thread = threading.Thread(target=host.advance_all)
    thread.start()
    inside.wait(10)
    with pytest.raises(RuntimeError, match="one thread at a time"):
        host.advance(stream)
    leave.set()
    thread.join(10)
    assert host.pending() == 0


def test_keyboard_interrupt_reaches_who_advances(host, stream):
    class Interrupted:
        info = FunctionInfo(name="interrupted", parameters=(), max_threads_per_block=1)

        def start(self, launch):
            yield
            raise KeyboardInterrupt

    function = host.module_function(host.module_load(HostImage(functions={"i": Interrupted()})), "i")
    host.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, ArgumentBlock(()))
    with pytest.raises(KeyboardInterrupt):
        host.advance(stream)
    assert host.pending() == 0
