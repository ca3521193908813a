"""Shared operations and unzip."""

from __future__ import annotations

import threading

import anyio
import pytest

import cuda_async as ca


def test_runs_once_for_all_uses(device):
    runs = []
    op = ca.full(4, 2.0).inspect(lambda _: runs.append(1)).shared()
    assert op.sync() is op.sync()
    both = ca.zip(op, op).sync()
    assert both[0] is both[1]
    assert runs == [1]


def test_same_exception_for_all(device):
    op = ca.value(1).map(lambda _: 1 / 0).shared()
    errors = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as info:
            op.sync()
        errors.append(info.value)
    assert errors[0] is errors[1]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupt_is_one_threads_own(device, interrupt):
    """What interrupts the thread that runs the source ends the work, and later consumers are not interrupted by it."""
    ca.zeros(1).sync()  # nothing is left to prepare, so it runs on this thread

    def interrupted(_):
        raise interrupt

    op = ca.value(1).map(interrupted).shared()
    with pytest.raises(interrupt):
        op.sync()
    for _ in range(2):
        with pytest.raises(ca.OperationCancelledError, match=f"a {interrupt.__name__} ended this operation"):
            op.sync()


def test_shared_value_exists_already(device):
    assert ca.shared(5).map(lambda x: x + 1).sync() == 6


@pytest.mark.anyio
async def test_cancelled_waiter_takes_nothing_with_it(device):
    """Case C10: whichever of two waiters goes away, the other gets the value and the work ran once."""
    for cancelled in (0, 1):
        entered, release, runs = threading.Event(), threading.Event(), []

        class Gated(ca.DeviceOp):
            def __init__(self, entered, release, runs):
                self.entered, self.release, self.runs = entered, release, runs

            def prepare(self, ctx):
                self.entered.set()
                self.release.wait(10)

            def execute(self, ctx):
                self.runs.append(1)
                return 42

        op = Gated(entered, release, runs).shared()
        results = {}
        scopes = [anyio.CancelScope(), anyio.CancelScope()]

        async def wait(i, op=op, results=results, scopes=scopes):
            with scopes[i]:
                results[i] = await op

        async with anyio.create_task_group() as group:
            group.start_soon(wait, 0)
            await anyio.to_thread.run_sync(entered.wait)
            group.start_soon(wait, 1)
            await anyio.lowlevel.checkpoint()
            scopes[cancelled].cancel()
            await anyio.lowlevel.checkpoint()
            release.set()
        assert results == {1 - cancelled: 42}
        assert runs == [1]


def test_threads_get_one_run(device):
    runs = []
    op = ca.full(100, 3.0).inspect(lambda _: runs.append(1)).shared()
    results = []
    barrier = threading.Barrier(8)

    def use():
        barrier.wait()
        results.append(float(op.to_host().sync().sum()))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [300.0] * 8
    assert runs == [1]


def test_consumer_on_other_stream_waits_on_the_device(stepped):
    first, second = stepped.create_stream(), stepped.create_stream()
    op = ca.full(16, 1.0).shared()
    made = op.start(ca.SingleStream(first))
    used = op.then(lambda t: ca.fill(t, 2.0)).start(ca.SingleStream(second))
    assert stepped.driver.calls["stream_wait_event"] >= 1
    assert stepped.driver.is_blocked(second.handle)
    stepped.driver.advance_all()
    assert made.done
    assert used.done


def test_unwrap_takes_the_value_out(device):
    op = ca.value([1]).shared()
    unwrapped = op.unwrap_shared()
    del op
    assert unwrapped.sync() == [1]


def test_unwrap_refuses_other_owners(device):
    op = ca.value([1]).shared()
    with pytest.raises(ca.ConsumedError, match="only reference"):
        op.unwrap_shared().sync()


def test_unzip_runs_source_once(device):
    runs = []
    a, b = ca.zip(ca.value(1).inspect(runs.append), ca.value("x")).unzip()
    assert b.sync() == "x"
    assert a.sync() == 1
    assert runs == [1]
    with pytest.raises(ca.ConsumedError):
        a.sync()


def test_unzip_needs_a_known_length():
    with pytest.raises(ca.CudaAsyncError, match=r"say unzip\(count\)"):
        ca.value((1, 2)).map(lambda x: x).unzip()
    assert len(ca.value((1, 2)).map(lambda x: x).unzip(2)) == 2
    assert [op.sync() for op in ca.value((1, 2)).unzip()] == [1, 2]
    with pytest.raises(ValueError, match=r"unzip\(3\) of an operation that yields 2"):
        ca.zip(ca.value(1), ca.value(2)).unzip(3)


def test_unzip_refuses_what_is_no_number_of_components():
    op = ca.value((1, 2)).map(lambda x: x)
    for count in ("abc", 2.0):
        with pytest.raises(TypeError, match=r"unzip\(\) takes a number of components, got"):
            op.unzip(count)
    for count in (-1, 10**24):
        with pytest.raises(ValueError, match="a number of components is 0 to 1048576"):
            op.unzip(count)
    assert [part.sync() for part in op.unzip(2)] == [1, 2]


def test_parallel_forks_and_joins(stepped):
    stepped.policy = ca.StreamPoolRoundRobin(4, device=stepped)
    future = ca.parallel(ca.full(4, 1.0), ca.full(4, 2.0), ca.full(4, 3.0)).start()
    used = [s for s in stepped._streams if stepped.driver.pending(s.handle)]
    assert len(used) == 4
    stepped.driver.advance_all()
    assert [t.shape for t in future.result()] == [(4,)] * 3


def test_parallel_runs_after_what_came_before(device):
    base = ca.full(100_000, 1.0).then(
        lambda t: ca.parallel(*(t[i * 10_000 : (i + 1) * 10_000].to_host() for i in range(5)))
    )
    assert [float(a.sum()) for a in base.sync()] == [10_000.0] * 5


def test_scheduled_branch_inside_a_chain(device):
    other = ca.StreamPoolRoundRobin(1, device=device)
    op = ca.full(1000, 1.0).then(lambda t: ca.fill(t, 5.0).schedule(other)).then(ca.to_host)
    assert float(op.sync().sum()) == 5000.0
