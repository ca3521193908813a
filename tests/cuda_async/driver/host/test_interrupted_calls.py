"""`KeyboardInterrupt` wherever Python may raise it in the host device's own calls: the device goes on."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver.host import HostDriver
from cuda_async.driver.host._order import SeededOrder
from cuda_async.driver.host._pool import Pool
from cuda_async.driver.host._ranges import FreeRanges
from cuda_async.driver.host._seeded import SeededEngine
from cuda_async.driver.host._settings import host_check
from cuda_async.driver.host._work import FreeEntry
from cuda_async.errors import KernelError

SAXPY = Path(__file__).resolve().parents[4] / "examples" / "simt" / "saxpy.ptx"


class Interrupts:
    """Raises a `KeyboardInterrupt` at one of the places where signals are looked at: calls of functions, and returns
    to Python's code from C's, which makes objects too."""

    def __init__(self, error=KeyboardInterrupt):
        self.seen = 0
        self.at = 0
        self.error = error

    def __call__(self, frame, event, argument):
        name = frame.f_code.co_name
        if (
            event in ("call", "c_return") or (event, name) == ("return", "__init__")
        ) and name != "_ask_for_stack":
            self.seen += 1
            if self.seen == self.at:
                raise self.error

    def run(self, program, at=0):
        self.seen, self.at = 0, at
        before, unraisable = sys.getprofile(), sys.unraisablehook

        def finalizer_failed(what):
            if what.exc_type is not self.error:  # those, Python reports and drops
                unraisable(what)

        sys.unraisablehook = finalizer_failed
        sys.setprofile(self)
        try:
            program()
        finally:
            sys.setprofile(before)
            sys.unraisablehook = unraisable
        return self.seen


def round_trip(device, streams):
    uploaded = ca.from_host(np.arange(8.0)).then(ca.copy).to_host()
    assert uploaded.schedule(streams[0]).sync().tolist() == list(range(8))


def frees_and_waits(device, streams):
    first = ca.ones(1000).schedule(streams[0]).sync()
    copy = ca.copy(first).start(streams[1])
    del first
    several = ca.zip(*[ca.zeros(100 + 300 * i) for i in range(3)]).schedule(streams[0]).sync()
    del several
    assert copy.sync().to_host().sync().all()


def trimmed(device, streams):
    device.driver.pool_trim(0)
    ca.ones(300).schedule(streams[1]).sync()


unchecked = pytest.mark.skipif(
    bool(host_check()), reason="an interrupt within the checking mode's own calls leaves its books wrong"
)


ENGINES = {"a thread's steps": lambda: None, "seeded steps": lambda: SeededEngine(SeededOrder(1))}


@unchecked
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])  # a signal handler may raise anything
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("program", [round_trip, frees_and_waits, trimmed])
def test_device_goes_on(program, engine, error):
    driver = HostDriver(memory_bytes=64 << 20, engine=ENGINES[engine]())
    device = ca.Device._make("host", 0, driver)
    interrupts = Interrupts(error)
    with ca.use_device(device):
        streams = [ca.SingleStream(device.create_stream()) for _ in range(2)]

        def run():
            program(device, streams)

        def afterwards():
            with ca.use_device(device):
                program(device, streams)
                device.synchronize()
                done.set()

        run()
        places = interrupts.run(run)
        assert places > 50
        for at in range(1, places + 1, 1 + places // 400):
            try:
                interrupts.run(run, at)
            except (error, KernelError):
                pass
            if (
                not driver.engine.threaded
            ):  # the thread that waits does the work, which then fails by the interrupt
                with contextlib.suppress(KernelError):
                    device.synchronize()
            done = threading.Event()
            thread = threading.Thread(target=afterwards, daemon=True)
            thread.start()
            assert done.wait(20), f"the device hangs, or fails, after an interrupt at place {at}"
            run()
            thread.join()
    device.close()


def test_device_goes_on_after_recursion_errors():
    """Wherever in a call the stack ends: the program that comes next has its results, and its own errors only."""

    def at_depth(depth, program):
        return at_depth(depth - 1, program) if depth else program()

    device = ca.Device._make("host", 0, HostDriver(memory_bytes=64 << 20))
    with ca.use_device(device):
        streams = [ca.SingleStream(device.create_stream()) for _ in range(2)]

        def afterwards():
            with ca.use_device(device):
                round_trip(device, streams)
                ca.zeros(100).schedule(streams[1]).sync()
                done.set()

        here = len(inspect.stack(0))
        refused = 0
        for depth in range(sys.getrecursionlimit() - here - 60, sys.getrecursionlimit() - here, 1):
            try:
                at_depth(depth, lambda: round_trip(device, streams))
            except RecursionError:
                refused += 1
            done = threading.Event()
            thread = threading.Thread(target=afterwards, daemon=True)
            thread.start()
            assert done.wait(20), f"the device hangs, or fails, after a RecursionError at depth {depth}"
            thread.join()
        assert refused > 5
    device.close()


def first_launch(module):
    """Its results; the module is loaded, the kernel may not be."""
    x, y, out = ca.zip(ca.full(8, 2.0), ca.ones(8), ca.zeros(8)).sync()
    op = module.function("saxpy_f32").launch(1, 8, 8, 3.0, ca.read(x), ca.read(y), ca.mut(out))
    op.sync()
    return out.to_host().sync().tolist()


def unloaded(host):
    """A kernel that is not loaded, of a module that is."""
    module = ca.Module.from_file(SAXPY)
    module.function_names(host)
    return module.function("saxpy_f32")


@unchecked
def test_kernel_whose_loading_was_interrupted_is_loaded_by_the_next_launch(host):
    interrupts = Interrupts()
    places = interrupts.run(functools.partial(unloaded(host).load, host))
    for at in range(1, places + 1):
        kernel = unloaded(host)
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.run(functools.partial(kernel.load, host), at)
        assert first_launch(kernel.module) == [7.0] * 8, f"after an interrupt at place {at}"


def test_kernel_that_two_threads_load_at_once(host):
    """One of them loses the processor wherever a built-in returns in the driver's call."""

    def places_seen(at):
        kernel = unloaded(host)
        stands, goes_on, found, seen = threading.Event(), threading.Event(), [], 0

        def look(frame, event, _):
            nonlocal seen
            if event == "c_return" and frame.f_code.co_name == "module_function":
                seen += 1
                if seen == at:
                    stands.set()
                    assert goes_on.wait(10)

        def stopped():
            sys.setprofile(look)
            try:
                found.append(first_launch(kernel.module))
            finally:
                sys.setprofile(None)
                stands.set()

        thread = threading.Thread(target=stopped)
        thread.start()
        assert stands.wait(10)
        try:
            found.append(first_launch(kernel.module))
        finally:
            goes_on.set()
            thread.join()
        assert found == [[7.0] * 8] * 2
        return seen

    at = 1
    while places_seen(at) >= at:
        at += 1
    assert at > 3


def pieces(ranges):
    """What is free, after checking that the books agree."""
    free = dict(ranges)
    assert sorted((size, start) for start, size in free.items()) == ranges._by_size
    assert {start + size: start for start, size in free.items()} == ranges._start_of_end
    assert sum(free.values()) == ranges.total_bytes
    return free


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (lambda r: r.take(100, 256), {10: 1000}, {10: 246, 356: 654}),
        (lambda r: r.take_range(10, 1000), {10: 1000}, {}),
        (lambda r: r.add(300, 200), {100: 200, 500: 300}, {100: 700}),
        (lambda r: r.add(300, 200), {100: 100, 500: 300}, {100: 100, 300: 500}),
    ],
)
def test_free_ranges(change, before, after):
    def made():
        ranges = FreeRanges()
        for start, size in before.items():
            ranges.add(start, size)
        return ranges

    interrupts = Interrupts()
    ranges = made()
    places = interrupts.run(lambda: change(ranges))
    assert pieces(ranges) == after
    for at in range(1, places + 1):
        ranges = made()
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.run(lambda ranges=ranges: change(ranges), at)
        assert pieces(ranges) in (before, after)


def test_pending_ranges_are_as_before_or_taken():
    driver = HostDriver(stepped=True, memory_bytes=1 << 20)
    stream = driver.stream_create()
    interrupts = Interrupts()
    queue = driver._streams[stream]
    pool: Pool = driver.pool
    for at in range(1, 40):
        address = driver.memory_alloc_async(4096, stream)
        driver.advance_all()
        driver.memory_free_async(address, stream)
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.run(lambda: driver.memory_alloc_async(512, stream), at)
        for pending in pool._pending.values():
            known = {(size, at) for ticket in pending.ticket_at.values() for at, size in ticket.pieces}
            assert sorted(known) == pending.by_size
        driver.advance_all()
        assert not queue.entries
    driver.close()


class InterruptsOfFrees(Interrupts):
    """Only while a stream frees memory."""

    def __call__(self, frame, event, argument):
        outer = frame
        while outer is not None and outer.f_globals.get("__name__") != FreeEntry.__module__:
            outer = outer.f_back
        if outer is not None and isinstance(outer.f_locals.get("self"), FreeEntry):
            super().__call__(frame, event, argument)


@unchecked
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("poison", [False, True])
def test_interrupted_free_is_done(poison, error):
    """Wherever it is interrupted, its stream does it, and nothing before: then others may have the memory."""
    driver = HostDriver(stepped=True, memory_bytes=1 << 20, poison=poison)
    stream, other = driver.stream_create(), driver.stream_create()
    at, interrupted = 0, True
    while interrupted:
        at += 1
        address = driver.memory_alloc_async(4096, stream)
        busy = driver.memory_alloc_async(256, stream)
        driver.advance_all()
        driver.fill_async(busy, b"\x01", 256, stream)
        driver.memory_free_async(address, stream)
        driver.memory_free_async(busy, stream)
        interrupted = False
        try:
            InterruptsOfFrees(error).run(driver.advance_all, at)
        except error:
            interrupted = True
        driver.advance_all()
        assert not driver.memory.is_live(address)
        assert driver.pool.statistics().used_bytes == 0
        assert not driver.pool._pending
        content = driver.memory._arena[address - driver.memory.base :][:4096]
        assert not poison or (content == 0xDD).all()
        again = driver.memory_alloc_async(4096, other)  # the smallest range that fits
        driver.fill_async(again, b"\x02", 4096, other)
        driver.memory_free_async(again, other)
        driver.advance_all()
        driver.stream_synchronize(other)
    assert at > 5
    driver.close()


@unchecked
def test_seeded_device_frees_what_an_interrupt_kept():
    """The thread that waits does the freeing, and others' work comes next to it."""
    for at in range(1, 60, 3):
        device, _ = ca.testing.seeded_device(at)
        with ca.use_device(device), ca.use_policy(ca.SingleStream(device.create_stream())):
            tensor = ca.full((9,), 1.0).sync()
            del tensor
            gc.collect()
            with contextlib.suppress(KeyboardInterrupt):
                InterruptsOfFrees().run(lambda device=device: (device.collect(), device.synchronize()), at)
            device.synchronize()
            kept = [ca.full((64,), float(i)).sync() for i in range(4)]
            assert [x.to_host().sync().tolist() for x in kept] == [[float(i)] * 64 for i in range(4)]


def test_lookup_error_of_a_signal_handler_is_no_unknown_address(monkeypatch):
    driver = HostDriver(stepped=True, memory_bytes=1 << 20)
    stream = driver.stream_create()
    address = driver.memory_alloc_async(4096, stream)
    enqueue = driver._enqueue_free

    def handler_runs(*given):
        monkeypatch.setattr(driver, "_enqueue_free", enqueue)
        raise KeyError("of the handler")

    monkeypatch.setattr(driver, "_enqueue_free", handler_runs)
    with pytest.raises(KeyError, match="of the handler"):
        driver.memory_free_async(address, stream)
    driver.advance_all()
    assert not driver.memory.is_live(address)
    with pytest.raises(ca.DriverError, match="is not an allocation of"):
        driver.memory_free_async(address, stream)
    driver.close()
