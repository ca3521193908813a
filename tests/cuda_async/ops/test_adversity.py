"""Operations used in ways that nobody would: deep nesting, rubbish, errors, several devices, odd moments."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import signal
import threading
import time

import anyio
import numpy as np
import pytest

import cuda_async as ca

DEPTH = 3000

# ------------------------------------------------------------------------------- deep nesting

NESTINGS = {
    "zip": lambda op: ca.zip(op).first(),
    "second of a zip": lambda op: ca.zip(ca.value(0), op).last(),
    "collect": lambda op: ca.collect([op])[0],
    "parallel": lambda op: ca.parallel(op).first(),
    "schedule": lambda op: op.schedule(ca.SingleStream()),
    "shared": lambda op: op.map(lambda x: x).shared(),
    "unzip": lambda op: ca.zip(op, ca.value(1)).unzip()[0],
    "map": lambda op: op.map(lambda x: x),
    "then": lambda op: op.then(lambda x: ca.value(x)),
    "unwrap": lambda op: op.shared().unwrap_shared(),
}


@pytest.mark.parametrize("nesting", NESTINGS)
def test_nesting_needs_no_recursion(device, nesting):
    op = ca.value(7)
    for _ in range(300 if nesting == "schedule" else DEPTH):
        op = NESTINGS[nesting](op)
    assert op.sync() == 7


@pytest.mark.anyio
@pytest.mark.parametrize("nesting", ["zip", "shared", "unzip"])
async def test_nesting_awaited(device, nesting):
    op = ca.value(7)
    for _ in range(DEPTH):
        op = NESTINGS[nesting](op)
    assert await op == 7


def test_deep_operation_that_never_runs_is_dropped():
    for make in NESTINGS.values():
        op = ca.value(7)
        for _ in range(20_000):
            op = make(op)
        del op
    gc.collect()


def test_shared_operations_that_use_each_other(device):
    """A graph with many ways from top to bottom: each step runs once."""
    runs = []
    level = [ca.value(1).inspect(runs.append).shared() for _ in range(3)]
    for _ in range(60):
        level = [
            ca.zip(*level).map(sum).map(lambda x: x % 1000).inspect(runs.append).shared() for _ in range(3)
        ]
    values = [op.sync() for op in level]
    assert values == [pow(3, 60, 1000)] * 3
    assert len(runs) == 61 * 3


def test_error_at_the_bottom_of_a_deep_sharing(device):
    op = ca.value(1).map(lambda _: 1 / 0)
    for _ in range(200):
        op = op.map(lambda x: x).shared()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            op.sync()


# ------------------------------------------------------------------------------------ policies


class Answers:
    def __init__(self, answer):
        self.answer = answer

    def next_stream(self):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


WAYS = {
    "schedule": lambda policy: ca.zeros(2).schedule(policy).sync(),
    "start": lambda policy: ca.zeros(2).start(policy).sync(),
    "in a chain": lambda policy: ca.zeros(2).then(lambda t: ca.zeros(2).schedule(policy)).sync(),
    "in a zip": lambda policy: ca.zip(ca.zeros(2), ca.zeros(2).schedule(policy)).sync(),
}


def parallel_with(policy, device):
    with ca.use_policy(policy):
        return ca.parallel(ca.zeros(1), ca.zeros(2)).sync_on(device.policy.next_stream())


@pytest.mark.parametrize("way", [*WAYS, "parallel"])
@pytest.mark.parametrize("answer", [None, 3, "stream", object, [1]], ids=lambda a: type(a).__name__)
def test_policy_that_answers_rubbish(device, way, answer):
    with pytest.raises(ca.SchedulingError, match=r"Answers\.next_stream\(\) returned .*, expected a Stream"):
        parallel_with(Answers(answer), device) if way == "parallel" else WAYS[way](Answers(answer))
    assert ca.value(1).sync() == 1


@pytest.mark.parametrize("way", [*WAYS, "parallel"])
def test_error_in_a_policy_comes_out(device, way):
    with pytest.raises(OSError, match="mine"):
        parallel_with(Answers(OSError("mine")), device) if way == "parallel" else WAYS[way](
            Answers(OSError("mine"))
        )


@pytest.mark.parametrize("way", [*WAYS, "parallel"])
def test_policy_that_answers_a_closed_stream(device, way):
    stream = device.create_stream()
    stream.close()
    with pytest.raises(ca.ClosedError, match="closed"):
        parallel_with(Answers(stream), device) if way == "parallel" else WAYS[way](Answers(stream))


@pytest.mark.parametrize("policy", [None, 3, "x", ca.SingleStream], ids=str)
def test_what_is_no_policy(device, policy):
    op = ca.value(1)
    with pytest.raises(TypeError, match="an object with a method next_stream"):
        op.schedule(policy)
    with pytest.raises(TypeError, match="an object with a method next_stream"), ca.use_policy(policy):
        pass
    if policy is not None:
        with pytest.raises(TypeError, match="an object with a method next_stream"):
            op.start(policy)
    else:
        assert op.start(policy).sync() == 1


@pytest.mark.parametrize("stream", [None, 3, ca.SingleStream()], ids=lambda s: type(s).__name__)
def test_what_is_no_stream(device, stream):
    op = ca.value(1)
    with pytest.raises(TypeError, match="expected a Stream"):
        op.sync_on(stream)
    assert op.sync() == 1


@pytest.mark.parametrize("name", [None, 0, b"host:0", ["host:0"]], ids=str)
def test_what_is_no_device(name):
    with pytest.raises(TypeError, match="a device is"), ca.use_device(name):
        pass


@pytest.mark.parametrize(
    "name", ["gpu:0", "host:-1", "host:1.5", "HOST:0", "host:0 ", "host:٣", "", ":0", "host:x"]
)
def test_what_is_no_name_of_a_device(name):
    with pytest.raises(ValueError, match="a device is"):
        ca.Device(name)


class Records:
    """A policy that notes who asked."""

    def __init__(self, device):
        self.stream = device.create_stream()
        self.asked = 0

    def next_stream(self):
        self.asked += 1
        return self.stream


def where(ctx):
    return ca.value(ctx.stream)


def test_scheduled_parts_run_where_they_were_scheduled(device):
    """Alone, inside another choice, shared, in a chain and with a stream given from outside."""
    inner, outer = Records(device), Records(device)
    given = device.create_stream()

    def scheduled():
        return ca.with_context(where).schedule(inner)

    assert scheduled().sync() is inner.stream
    assert inner.asked == 1
    assert scheduled().schedule(outer).sync() is inner.stream
    assert scheduled().shared().sync() is inner.stream
    assert scheduled().sync_on(given) is inner.stream
    assert scheduled().start(outer).sync() is inner.stream
    assert scheduled().start(inner).sync() is inner.stream
    assert ca.value(1).then(lambda _: scheduled()).sync() is inner.stream
    assert ca.value(1).then(lambda _: scheduled().shared()).sync() is inner.stream
    assert scheduled().then(lambda s: ca.with_context(lambda ctx: ca.value((s, ctx.stream)))).sync_on(
        given
    ) == (
        inner.stream,
        given,
    )
    assert outer.asked == 2


def test_first_call_of_a_policy_that_is_not_ready(device):
    """Is made off the loop's thread; a policy that is never ready is asked all the same."""

    class Slow(Records):
        is_ready = False

        def next_stream(self):
            self.threads.append(threading.get_ident())
            return super().next_stream()

    policy = Slow(device)
    policy.threads = []

    async def main():
        return await ca.full(2, 1.0).schedule(policy)

    assert asyncio.run(main()).shape == (2,)
    assert policy.threads[0] != threading.get_ident()


def test_pools_know_whether_they_are_ready(device):
    closed = ca.Device._make("host", 0, None)
    for kind in (ca.SingleStream, ca.StreamPoolRoundRobin, ca.LeastLoaded, ca.PriorityStreams):
        assert kind(device=device).is_ready
        assert not kind(device=closed).is_ready


@pytest.mark.parametrize("count", [0, -1, 2.5, "2", None, True])
def test_pool_of_no_streams(count):
    with pytest.raises(ca.SchedulingError, match="a number of streams, at least 1"):
        ca.StreamPoolRoundRobin(count)


# ---------------------------------------------------------------------------- refused requests


@pytest.mark.parametrize("combine", [ca.zip, ca.parallel, lambda *ops: ca.collect(ops)])
def test_refused_combination_leaves_its_parts_alone(device, combine):
    used, fresh, shared = ca.value(1), ca.value(2), ca.value(3).shared()
    used.sync()
    with pytest.raises(ca.ConsumedError):
        combine(fresh, shared, used)
    with pytest.raises(ca.ConsumedError):
        combine(fresh, fresh)
    with pytest.raises(TypeError):
        combine(fresh, 3)
    assert combine(fresh, shared).sync() in ((2, 3), [2, 3])


# -------------------------------------------------------------------------------- two devices


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setenv("CUDA_ASYNC_HOST_DEVICES", "2")
    return ca.Device("host:1").open()


@pytest.mark.anyio
async def test_shared_host_data_of_another_device_has_arrived(stepped, elsewhere):
    """A consumer on another device waits on the host, since its stream cannot wait for the source's."""
    stepped.pinned.take(400)  # makes staging memory, so that the download is submitted at once
    shared = ca.full(100, 5.0).to_host().shared()
    source = shared.start()
    assert source.state == "submitted"
    policy = ca.SingleStream(device=elsewhere)
    plain = shared.start(policy)
    used = shared.map(lambda a: float(a.sum())).start(policy)
    assert [plain.state, used.state] == ["enqueueing", "enqueueing"]
    stepped.driver.advance_all()
    assert await used == 500.0
    assert (await plain == 5.0).all()
    assert (await source == 5.0).all()


def test_shared_operation_scheduled_elsewhere(device, elsewhere):
    shared = ca.full(10, 5.0).schedule(ca.SingleStream(device=elsewhere)).shared()
    assert shared.sync().device is elsewhere
    assert (shared.to_host().sync() == 5.0).all()


@pytest.mark.parametrize("yields", ["an array", "a number"])
def test_what_a_shared_operation_yields_on_the_host_is_bound_to_no_device(device, elsewhere, yields):
    """Before it has run, and afterwards; a tensor is where it is."""
    if yields == "an array":
        shared = ca.full(4, 3.0).to_host().shared()
    else:
        shared = ca.full(4, 3.0).map(lambda _: np.full(4, 3.0, np.float32)[0]).shared()
    tensor = ca.full(4, 2.0).shared()
    for op in (shared, tensor):
        op.sync()
    with ca.use_device(elsewhere):
        there = ca.zeros(4).sync()
        assert shared.then(lambda a: ca.full(4, float(np.max(a)))).sync().device is elsewhere
        assert shared.then(lambda _: ca.ones(2).then(ca.copy)).graph().sync().device is elsewhere
        shared.then(lambda a: ca.memcpy(there, np.broadcast_to(a, 4))).sync()
        assert there.to_host().sync().tolist() == [3.0] * 4
        assert tensor.then(ca.copy).sync().device is device


# -------------------------------------------------------------------------------------- errors


@pytest.mark.anyio
@pytest.mark.parametrize("when", ["in flight", "afterwards"])
@pytest.mark.parametrize("where", ["same stream", "other stream", "other device"])
@pytest.mark.parametrize("levels", [1, 2, 5])
async def test_fault_in_a_shared_operation_comes_out_of_every_consumer(
    device, elsewhere, when, where, levels
):
    """Whether the device has reported it before or after the consumer was enqueued."""
    if device.kind != "host":
        pytest.skip("a CUDA device would be lost")
    release = threading.Event()
    first, second = ca.SingleStream(device=device), ca.SingleStream(device=device)
    policy = {
        "same stream": first,
        "other stream": second,
        "other device": ca.SingleStream(device=elsewhere),
    }[where]

    def fails(stream):
        release.wait(10)
        raise OSError("mine")

    shared = ca.value(1).then(lambda _: ca.foreign(fails)).map(lambda _: 42).shared()
    for level in range(1, levels):
        shared = ca.zip(shared, ca.zeros(4).shared()).first().map(lambda x: x).shared()
        if level % 2:
            shared.start(second)
    source = shared.start(first)
    while source.state == "enqueueing":
        await anyio.lowlevel.checkpoint()
    if when == "in flight" and where != "other device":
        consumers = [shared.start(policy), shared.map(lambda x: x + 1).start(policy)]
        release.set()
    else:
        release.set()
        with pytest.raises(ca.errors.KernelError, match="mine"):
            await source
        consumers = [shared.start(policy), shared.map(lambda x: x + 1).start(policy)]
    for consumer in consumers:
        with pytest.raises(ca.errors.KernelError, match="mine"):
            await consumer
    with pytest.raises(ca.errors.KernelError, match="mine"):
        await shared.schedule(policy)
    with pytest.raises(ca.errors.KernelError, match="mine"):
        shared.map(lambda x: x).sync()


@pytest.mark.timeout(20)
def test_shared_operation_that_uses_itself(device):
    """Is an error, not a deadlock: directly, through another one, from several threads."""
    alone = ca.value(1).then(lambda _: alone).shared()
    with pytest.raises(ca.ReentrancyError, match="uses itself"):
        alone.sync()
    ring = []
    for i in range(5):
        ring.append(ca.value(1).then(lambda _, i=i: ring[(i + 1) % 5]).shared())
    with pytest.raises(ca.ReentrancyError, match="uses itself"):
        ring[2].sync()
    for op in ring:
        with pytest.raises(ca.ReentrancyError):
            op.sync()

    barrier = threading.Barrier(5)

    class Slow(ca.DeviceOp):
        def prepare(self, ctx):
            barrier.wait(10)

        def execute(self, ctx):
            return 1

    ring.clear()
    for i in range(5):
        ring.append(Slow().then(lambda _, i=i: ring[(i + 1) % 5]).shared())
    futures = [op.start() for op in ring]
    for future in futures:
        with pytest.raises(ca.ReentrancyError, match="uses itself"):
            future.sync()


def frames(error):
    count, traceback = 0, error.__traceback__
    while traceback is not None:
        count, traceback = count + 1, traceback.tb_next
    return count


def fault(_):
    """An operation that fails on the host device."""
    return ca.foreign(lambda stream: 1 / 0)


@pytest.mark.parametrize("kind", ["future", "failing future", "shared", "failing shared"])
def test_traceback_does_not_grow(stepped, kind):
    """The same exception is raised each time, from where it was."""
    op = ca.value(1).then(fault) if "failing" in kind else ca.value(1).map(lambda _: 1 / 0)
    op = op.start() if "future" in kind else op.shared()
    depths = []
    for _ in range(4):
        future = op if "future" in kind else op.start()
        while not future.done:
            stepped.driver.advance_all()
        with pytest.raises((ZeroDivisionError, ca.errors.KernelError)) as info:
            future.result()
        depths.append(frames(info.value))
        del info
    assert len(set(depths[1:])) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["sync", "await", "future", "stream"])
async def test_failed_work_keeps_no_frames(device, how):
    """An error holds the frames it went through, and their tensors; nobody of ours holds the error afterwards."""
    if device.kind != "host":
        pytest.skip("a CUDA device would be lost")
    gc.collect()
    await ca.drain()
    before = device.memory_stats().used_bytes
    stream = device.create_stream()
    policy = ca.SingleStream(stream)

    async def fails():
        tensor = ca.ones(100_000).sync()
        op = ca.value(1).then(fault)
        if how == "sync":
            op.sync_on(stream)
        elif how == "await":
            await op.schedule(policy)
        else:
            future = op.start(policy)
            if how == "future":
                await future
            while future.state == "enqueueing":
                await anyio.lowlevel.checkpoint()
            stream.synchronize()
        return tensor

    with pytest.raises(ca.errors.KernelError, match="division by zero"):
        await fails()
    for _ in range(100):  # a worker thread may have it in hand still
        gc.collect()
        if device.memory_stats().used_bytes == before:
            break
        await anyio.sleep(0.01)
    assert device.memory_stats().used_bytes == before
    await stream.aclose()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, RecursionError])
@pytest.mark.parametrize("place", ["callback", "prepare", "execute", "policy", "shared"])
def test_any_exception_comes_out_unchanged(device, error, place):
    problem = error("mine")

    class Raises(ca.DeviceOp):
        def prepare(self, ctx):
            if place == "prepare":
                raise problem

        def execute(self, ctx):
            raise problem

    def raises(_):
        raise problem

    op = {
        "callback": lambda: ca.zeros(1).map(raises),
        "prepare": lambda: ca.zeros(1).then(lambda _: Raises()),
        "execute": lambda: ca.zeros(1).then(lambda _: Raises()),
        "policy": lambda: ca.zeros(1).schedule(Answers(problem)),
        "shared": lambda: ca.zeros(1).map(raises).shared(),
    }[place]()
    with pytest.raises(error) as info:
        op.sync()
    assert info.value is problem
    assert (ca.ones(3).to_host().sync() == 1).all()


def test_abandoned_parallel_releases_all_its_streams(stepped):
    """After an error in one branch the staging memory of the others comes back when the device is past them."""
    stepped.policy = ca.StreamPoolRoundRobin(3, device=stepped)
    pinned = stepped.pinned
    pinned.take(4)  # makes a slab of them
    array = np.ones(1, np.float32)
    op = ca.parallel(ca.from_host(array), ca.from_host(array), ca.value(1).map(lambda _: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        op.sync()
    stepped.driver.advance_all()
    stepped.collect()
    assert all(not stream._retained and not stream._pending for stream in stepped._streams)


# ------------------------------------------------------------------------- streams and events


def test_event_of_another_device(device, elsewhere):
    here, there = device.create_stream(), elsewhere.create_stream()
    mine, theirs = here.record(), there.record()
    mine.synchronize()
    theirs.synchronize()
    with pytest.raises(ca.ContextError, match="cannot wait for an event of host:1"):
        here.wait(theirs)
    with pytest.raises(ca.ContextError, match="the time between an event on host:1"):
        mine.elapsed_ms(theirs)


@pytest.mark.parametrize("event", [None, 3, ca.value(1)], ids=lambda e: type(e).__name__)
def test_what_is_no_event(device, event):
    stream = device.create_stream()
    with pytest.raises(TypeError, match=r"expected an Event.*stream\.record\(\)"):
        stream.wait(event)
    with pytest.raises(TypeError, match="expected an Event"):
        stream.record().elapsed_ms(event)


def test_closed_stream_is_forgotten(stepped):
    """A stream that waited for another one does not keep it once it is closed."""
    lasting = stepped.create_stream()
    for _ in range(20):
        stream = stepped.create_stream()
        tensor = ca.zeros(4).start(ca.SingleStream(stream))
        ca.value(1).then(lambda _, tensor=tensor: ca.fill(tensor._value, 1.0)).start(ca.SingleStream(lasting))
        stepped.driver.advance_all()
        stream.close()
    assert not lasting._waited


def test_what_a_closed_stream_made_is_still_there(device):
    stream = device.create_stream()
    tensor = ca.full(10, 3.0).sync_on(stream)
    event = stream.record()
    stream.close()
    assert event.is_done
    assert (tensor.to_host().sync() == 3.0).all()
    other = device.create_stream()
    other.wait(event)
    ca.fill(tensor, 4.0).sync_on(other)
    assert (tensor.to_host().sync() == 4.0).all()
    other.close()


# ------------------------------------------------------------------------ interrupted from outside


class Interrupted:
    """`KeyboardInterrupt` in the main thread, from another one, once `ready` is true."""

    def __init__(self, ready):
        self.ready = ready

    def __enter__(self):
        came = threading.Event()

        def interrupt():
            deadline = time.monotonic() + 10
            while not self.ready() and time.monotonic() < deadline:
                time.sleep(1e-3)
            for _ in range(200):  # one that comes just before the thread sleeps does not wake it
                os.kill(os.getpid(), signal.SIGINT)
                if came.wait(0.05):
                    break

        def handler(*_):
            if not came.is_set():
                came.set()
                raise KeyboardInterrupt

        # a process that was begun in the background ignores the signal
        self.before = signal.signal(signal.SIGINT, handler)
        self.thread = threading.Thread(target=interrupt)
        self.thread.start()

    def __exit__(self, *_):
        self.thread.join()
        signal.signal(signal.SIGINT, self.before)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_interrupt_while_waiting_for_the_device(stepped):
    """Ctrl-C ends the waiting; the work, its future and the device go on."""
    future = ca.full(4, 1.0).start()
    submission = future._submission
    with pytest.raises(KeyboardInterrupt), Interrupted(lambda: submission.sleepers):
        future.sync()
    assert submission.sleepers == 0
    assert not future.done
    stepped.driver.advance_all()
    assert future.sync().shape == (4,)
    assert submission.event in stepped._events


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("how", ["sync", "future"])
def test_interrupt_while_a_step_is_prepared(device, how):
    entered, release = threading.Event(), threading.Event()

    class Gated(ca.DeviceOp):
        def prepare(self, ctx):
            entered.set()
            assert release.wait(10)

        def execute(self, ctx):
            return 5

    op = ca.zeros(3).then(lambda _: Gated())
    if how == "future":
        op = op.start()
    with pytest.raises(KeyboardInterrupt), Interrupted(entered.is_set):
        op.sync()
    release.set()
    if how == "future":
        assert op.sync() == 5
    assert (ca.ones(3).to_host().sync() == 1).all()


# ---------------------------------------------------------------------------- copies and pickles


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_stands_for_the_device_cannot_be_copied(device, how):
    """Two objects over one address, or one stream, would each believe to be the only one."""
    stream = device.create_stream()
    tensor = ca.zeros(4).sync()
    things = [tensor, ca.zeros(3), ca.zeros(3).map(str), ca.shared(1), ca.value(1).start(), stream]
    for thing in [*things, stream.record()]:
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            how(thing)
    assert (tensor.to_host().sync() == 0).all()


def test_devices_are_pickled_by_name():
    device = ca.Device("host:0")
    assert pickle.loads(pickle.dumps(device)) is device
    assert copy.deepcopy(device) is device


# -------------------------------------------------------------------------- components and numbers


def test_component_of_what_has_none(device):
    with pytest.raises(TypeError, match=r"yields a int, which has none"):
        ca.value(3).first().sync()
    with pytest.raises(IndexError):
        ca.value((1, 2))[5].sync()


def test_unzip_of_another_length(device):
    for value, count, error in [((1, 2), 3, ValueError), ((1, 2), 1, ValueError), (5, 2, TypeError)]:
        for part in ca.value(value).map(lambda x: x).unzip(count):
            with pytest.raises(error, match="of an operation that yields"):
                part.sync()


@pytest.mark.parametrize(
    "value", [np.nan, np.inf, -np.inf, 1e30, -1e30, np.float16(np.inf), np.float32(-1e20)], ids=str
)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_number_that_an_integer_type_cannot_hold(value, dtype):
    with pytest.raises(OverflowError, match=f"does not fit {dtype}"):
        ca.full(3, value, dtype)


def test_host_data_that_would_be_changed_silently():
    with pytest.raises(TypeError, match="masked array"):
        ca.from_host(np.ma.array([1.0, 2.0], mask=[0, 1]))
    with pytest.raises(OverflowError):
        ca.from_host([300], "uint8")
    with pytest.raises(TypeError, match="complex128"):
        ca.from_host(np.array([1j]), "float32")
    with pytest.raises(TypeError, match="not a supported element type"):
        ca.from_host(["1"], "float32")
    with pytest.raises(TypeError, match=r"memcpy\(\) takes host data, got a Full; await it first"):
        ca.memcpy(ca.zeros(3).sync(), ca.ones(3))


# -------------------------------------------------------------------------------- foreign calls


def settled_bytes(device):
    """What is used once nothing is left that could go."""
    for _ in range(3):
        gc.collect()
        device.synchronize()
    return device.memory_stats().used_bytes


def test_foreign_calls_keep_nothing(device):
    """Not the function, nor what it refers to, once the device is past it."""
    if device.kind != "host":
        pytest.skip("the call is made at once")
    before = settled_bytes(device)

    def call():
        tensor = ca.zeros(1000).sync()
        ca.foreign(lambda stream: tensor.shape, reads=[tensor]).sync()

    call()
    modules = len(device.driver._modules)
    for _ in range(20):
        call()
    assert len(device.driver._modules) == modules
    assert settled_bytes(device) == before


@pytest.mark.timeout(20)
@pytest.mark.parametrize("nested", ["operation", "future", "stream", "event", "device"])
def test_foreign_call_that_waits_for_the_device(device, nested):
    """Would wait for itself: an error, and the device goes on."""
    stream = device.create_stream()
    event = stream.record()
    waits = {
        "operation": lambda s: ca.zeros(3).sync(),
        "future": lambda s: ca.zeros(3).start(),
        "stream": lambda s: s.synchronize(),
        "event": lambda s: s.record().synchronize(),
        "device": lambda s: device.synchronize(),
    }[nested]
    if device.kind == "cuda" and nested in ("stream", "event", "device"):
        ca.foreign(waits).sync()  # allowed there, where it is made while enqueueing
        return
    with pytest.raises((ca.ReentrancyError, ca.errors.KernelError)) as info:
        ca.foreign(waits).sync_on(stream)
    error = info.value
    assert isinstance(error if isinstance(error, ca.ReentrancyError) else error.__cause__, ca.ReentrancyError)
    event.synchronize()
    assert event.is_done
    assert (ca.ones(3).to_host().sync() == 1).all()


def test_foreign_call_of_what_is_no_function(device):
    tensor = ca.zeros(3).sync()
    with pytest.raises(TypeError, match="a function of a stream, got int"):
        ca.foreign(3)
    with pytest.raises(TypeError, match="reads and writes tensors, got ndarray"):
        ca.foreign(print, reads=[np.zeros(3)])
    with pytest.raises(TypeError, match="reads and writes tensors, got Mut"):
        ca.foreign(print, writes=[ca.mut(tensor)])


def test_waiting_that_fails_is_an_error(stepped):
    """And not a result that is not there yet."""
    future = ca.zeros(3).start()
    stepped.driver.fail_next("event_synchronize", OSError("mine"))
    with pytest.raises(OSError, match="mine"):
        future.sync()
    assert not future.done
    stepped.driver.advance_all()
    assert future.sync().shape == (3,)


def test_own_operation_that_forgot_to_load(device):
    function = ca.Module.from_ptx(
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n"
    ).function("nothing")

    class Forgot(ca.DeviceOp):
        def execute(self, ctx):
            function.enqueue(ctx, (1, 1, 1), (1, 1, 1), ())

    with pytest.raises(ca.LaunchError, match=r"nothing is not loaded on .*prepare\(\)"):
        Forgot().sync()


# ------------------------------------------------------------------------------ async callbacks


async def async_callback(*_):
    return ca.value(2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ca.value(1).then(async_callback),
        lambda: ca.value(1).map(async_callback),
        lambda: ca.value(1).then_with_context(async_callback),
        lambda: ca.with_context(async_callback),
    ],
)
def test_async_callback_is_an_error(device, make):
    with pytest.raises(TypeError, match=r"async_callback is an async function"):
        make().sync()
    gc.collect()


def test_async_execute_is_an_error():
    with pytest.raises(TypeError, match=r"Wrong\.execute is an async function"):

        class Wrong(ca.DeviceOp):
            async def execute(self, ctx):
                return 1

    with pytest.raises(TypeError, match=r"AlsoWrong\.prepare .* is called on a worker thread"):

        class AlsoWrong(ca.DeviceOp):
            async def prepare(self, ctx):
                pass


@pytest.mark.parametrize("method", ["then", "then_with_context", "map", "inspect"])
def test_what_is_no_function_is_refused_when_it_is_given(method):
    op = ca.value(1)
    for given, hint in (
        (5, "got int"),
        (None, "got NoneType"),
        (ca.value(2), r"got Value; .*\(lambda _: op\)"),
    ):
        with pytest.raises(TypeError, match=rf"\.{method}\(\) takes a function, {hint}"):
            getattr(op, method)(given)
    assert op.map(str).sync() == "1"  # and it is not consumed


def test_with_context_takes_a_function():
    with pytest.raises(TypeError, match=r"\.with_context\(\) takes a function, got str"):
        ca.with_context("f")


@pytest.mark.parametrize("several", [list, tuple, iter])
def test_foreign_work_keeps_its_operands_however_they_are_given(host, several):
    read, written = ca.zeros(2).sync(), ca.zeros(2).sync()
    op = ca.foreign(lambda _: None, reads=several([read]), writes=several([written]))
    assert op.sync() == (read, written)
    with pytest.raises(TypeError, match="reads and writes tensors, got int"):
        ca.foreign(lambda _: None, reads=several([read, 3]))


def test_async_foreign_call_is_refused():
    with pytest.raises(TypeError, match="async_callback is an async function"):
        ca.foreign(async_callback)
