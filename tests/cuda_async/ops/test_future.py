"""`start()` and the lifecycle of a DeviceFuture."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading

import anyio
import pytest

import cuda_async as ca
from cuda_async.ops._future import TRANSITIONS, Move, State


def test_finished_states_never_change():
    for state in (State.DONE, State.FAILED, State.CANCELLED):
        assert not any((state, move) in TRANSITIONS for move in Move)


TAKES_NO_FUTURE = {
    "from_host": lambda t, f: ca.from_host(f),
    "from_dlpack": lambda t, f: ca.from_dlpack(f),
    "from_cuda_array_interface": lambda t, f: ca.from_cuda_array_interface(f),
    "memcpy": lambda t, f: ca.memcpy(t, f),
    "memcpy into": lambda t, f: ca.memcpy(f, t),
    "fill": lambda t, f: ca.fill(t, f),
    "full": lambda t, f: ca.full(4, f),
    "foreign": lambda t, f: ca.foreign(print, writes=[f]),
    "mut": lambda t, f: ca.mut(f),
    "zip": lambda t, f: ca.zip(f),
    "then": lambda t, f: ca.value(t).then(lambda _: f).sync(),
    "graph": lambda t, f: ca.graph_input("x", (4,)).then(ca.copy).graph().sync()(x=f),
}


@pytest.mark.parametrize("use", TAKES_NO_FUTURE.values(), ids=TAKES_NO_FUTURE)
def test_future_in_place_of_what_it_gives(host, use):
    tensor, future = ca.zeros(4).sync(), ca.zeros(4).start()
    with pytest.raises(
        TypeError, match=r"DeviceFuture; await it first, or go on with \.then\(\) of the operation"
    ):
        use(tensor, future)


def test_start_submits_at_once(stepped):
    future = ca.zeros(8).start()
    assert future.state == "submitted"
    assert not future.done
    with pytest.raises(ca.CudaAsyncError, match="still submitted"):
        future.result()
    stepped.driver.advance_all()
    assert future.done
    assert future.result().shape == (8,)


def test_sync_from_threads(device):
    future = ca.full(4, 2.0).to_host().start()
    results = []
    threads = [threading.Thread(target=lambda: results.append(future.sync().sum())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [8.0] * 4


@pytest.mark.anyio
async def test_await_many_times(device):
    future = ca.full(4, 2.0).start()
    assert await future is await future


@pytest.mark.anyio
async def test_error_is_the_same_each_time(device):
    future = ca.value(1).map(lambda _: 1 / 0).start()
    with pytest.raises(ZeroDivisionError) as first:
        await future
    with pytest.raises(ZeroDivisionError) as second:
        await future
    assert first.value is second.value
    assert future.state == "failed"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupt_comes_out_of_start(device, interrupt):
    """It is meant for the thread, which may never look at the future."""
    ca.zeros(1).sync()  # nothing is left to prepare, so the callback runs on this thread

    def interrupted(_):
        raise interrupt

    with pytest.raises(interrupt):
        ca.value(1).map(interrupted).start()
    assert ca.full(4, 2.0).to_host().sync().sum() == 8.0


def test_cancel_after_submission_does_nothing(device):
    future = ca.zeros(4).start()
    assert not future.cancel()
    assert future.sync().shape == (4,)


@pytest.mark.anyio
async def test_cancel_while_preparing_stops_the_rest(device):
    entered, release, ran = threading.Event(), threading.Event(), []

    class Gated(ca.DeviceOp):
        def prepare(self, ctx):
            entered.set()
            release.wait(10)

        def execute(self, ctx):
            ran.append(1)

    future = Gated().start()
    await anyio.to_thread.run_sync(entered.wait)
    assert future.cancel()
    release.set()
    with pytest.raises(ca.OperationCancelledError):
        await future
    await ca.drain()
    assert ran == []


def test_rest_of_a_prepared_chain_runs_without_a_loop(device):
    class Prepared(ca.DeviceOp):
        def prepare(self, ctx):
            pass

        def execute(self, ctx):
            return 20

    assert Prepared().map(lambda x: x + 1).then(lambda x: ca.value(2 * x)).start().sync() == 42


def test_only_start_makes_futures():
    with pytest.raises(TypeError, match=r"DeviceOp\.start"):
        ca.DeviceFuture()


@pytest.mark.parametrize("many", [2, 20])
def test_cancelled_while_a_worker_thread_enqueues(device, many):
    """The step that it is at is the last one, also where nothing would stop it until the end."""
    steps = []
    box = []
    started = threading.Event()

    class Prepared(ca.DeviceOp):
        def prepare(self, ctx):
            assert started.wait(10)

        def execute(self, ctx):
            return ctx.empty(4, "float32")

    def step(value):
        steps.append(threading.get_ident())
        if len(steps) == 2:
            assert box[0].cancel()
        return ca.value(value)

    op = Prepared()
    for _ in range(many):
        op = op.then(step)
    box.append(op.start())
    started.set()
    with pytest.raises(ca.OperationCancelledError):
        box[0].sync()
    ca.drain().sync()
    assert len(steps) == 2
    assert threading.get_ident() not in steps
    assert box[0].state == "cancelled"


def fails():
    raise ValueError("nobody asks")


@pytest.mark.parametrize(
    ("asks", "is_told"), [(None, True), (lambda f: f.state, True), (lambda f: f.sync(), False)]
)
def test_a_failure_that_nobody_asks_for_is_logged(device, caplog, asks, is_told):
    future = ca.value(1).map(lambda _: fails()).start()
    if asks is not None:
        with contextlib.suppress(ValueError):
            asks(future)
    del future
    gc.collect()
    assert not caplog.records  # a future may be collected while a lock is held, so the next operation says so
    ca.value(1).sync()
    found = [record for record in caplog.records if record.name == "cuda_async"]
    assert len(found) == is_told
    for record in found:
        assert record.levelname == "ERROR"
        assert isinstance(record.exc_info[1], ValueError)
        assert "nobody asked its future" in record.getMessage()


def test_draining_logs_what_nobody_asks_for_and_frees_what_it_holds(host, caplog):
    before = host.memory_stats().used_bytes

    def fail(x):
        raise ValueError("nobody asks")

    ca.zeros(1000).map(fail).start()
    gc.collect()
    ca.drain().sync()
    assert [str(record.exc_info[1]) for record in caplog.records] == ["nobody asks"]
    caplog.clear()
    gc.collect()
    ca.drain().sync()
    assert host.memory_stats().used_bytes == before


def test_what_ends_well_or_is_cancelled_is_not_logged(device, caplog):
    ca.zeros(4).start().sync()
    ca.zeros(4).start()
    release = threading.Event()

    class Slow(ca.DeviceOp):
        def prepare(self, ctx):
            release.wait(10)

        def execute(self, ctx):
            return 1

    assert Slow().start().cancel()
    release.set()
    with pytest.raises(KeyboardInterrupt):
        ca.value(1).map(lambda _: interrupt_now()).start()
    ca.drain().sync()
    gc.collect()
    ca.value(1).sync()
    assert not caplog.records


def interrupt_now():
    raise KeyboardInterrupt


@pytest.mark.parametrize("kept", [True, False])
def test_a_failure_that_nobody_asked_for_is_logged_at_the_end(kept):
    """Whether the future is still held, or in a cycle that was never collected."""
    program = f"""
import gc
import cuda_async as ca

def boom(_):
    raise ValueError("nobody asks")

gc.disable()
future = ca.value(1).map(boom).start()
while future.state == "enqueueing":
    pass
if not {kept}:
    del future
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr.count("nobody asked its future") == 1
    assert "ValueError: nobody asks" in done.stderr
