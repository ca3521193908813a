"""What another thread does to a tensor, or to a stream, between an operation's look at it and its enqueueing."""

import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import cuda_async as ca

SAXPY = Path(__file__).resolve().parents[3] / "examples" / "simt" / "saxpy.ptx"
N = 4


@pytest.fixture
def saxpy(stepped, without_workers):
    function = ca.Module.from_file(SAXPY).function("saxpy_f32")
    function.load(stepped)
    return function


@pytest.fixture
def tensors(stepped, streams):
    """x of ones and y of zeros, which the device is done with."""
    made = ca.zip(ca.ones(N), ca.zeros(N)).start(streams[0])
    stepped.driver.advance_all()
    return made.result()


def on_a_thread(act):
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def values(tensor, dtype="f4"):
    return tensor.device.driver.memory.view(tensor._address, tensor.nbytes).view(dtype).tolist()


class Lock:
    """A device's lock; before it is taken for the n-th time, another thread comes in and acts."""

    def __init__(self, device, n, act):
        self._lock, self._left, self._act = device._lock, n, act

    def acquire(self, *args):
        self._left -= 1
        if self._left == 0:
            on_a_thread(self._act)
        return self._lock.acquire(*args)

    __enter__ = acquire

    def release(self):
        self._lock.release()

    def __exit__(self, *_):
        self.release()

    def locked(self):
        return self._lock.locked()

    @property
    def came_in(self):
        return self._left <= 0


@pytest.fixture
def comes_in(monkeypatch):
    """`comes_in(device, n, act)`: the lock that is that device's from now on."""

    def install(device, n, act):
        lock = Lock(device, n, act)
        monkeypatch.setattr(device, "_lock", lock)
        monkeypatch.setattr(device, "_launch_lock", lock)
        return lock

    yield install
    monkeypatch.undo()


# ----------------------------------------------------------------------- addresses that were asked for


class Scaled(ca.DeviceOp):
    """out = a * x + y; `between` runs between its asking for addresses and its enqueueing."""

    def __init__(self, function, a, x, y, out, between):
        self.function, self.a, self.x, self.y, self.out, self.between = function, a, x, y, out, between

    def execute(self, ctx):
        values = (N, self.a, ctx.read(self.x), ctx.read(self.y), ctx.write(self.out))
        self.between()
        self.function.enqueue(ctx, 1, 32, values)
        return self.out


@pytest.mark.parametrize("later_first", [True, False])
def test_what_is_read_was_written_meanwhile(stepped, saxpy, streams, tensors, run_to_a_stop, later_first):
    """The kernel comes behind the other thread's fill, whichever stream the device goes on with."""
    x, y = tensors
    op = Scaled(saxpy, 2.0, x, y, y, lambda: on_a_thread(lambda: ca.fill(x, 3.0).start(streams[1])))
    op.start(streams[0])
    if not later_first:
        run_to_a_stop(streams[1])
    run_to_a_stop(streams[0])
    stepped.driver.advance_all()
    assert values(y) == [6.0] * N


@pytest.mark.parametrize("use", ["fill", "copy"])
def test_what_is_written_was_used_meanwhile(stepped, saxpy, streams, tensors, run_to_a_stop, use):
    x, y = tensors
    uses = {"fill": lambda: ca.fill(y, 3.0), "copy": lambda: ca.copy(y)}
    others = []
    op = Scaled(
        saxpy, 2.0, x, x, y, lambda: on_a_thread(lambda: others.append(uses[use]().start(streams[1])))
    )
    op.start(streams[0])
    assert run_to_a_stop(streams[0])
    stepped.driver.advance_all()
    assert values(y) == [3.0] * N
    if use == "copy":
        assert values(others[0].result()) == [0.0] * N


def test_both_of_two_launches_of_one_operation_are_ordered(stepped, saxpy, streams, tensors, run_to_a_stop):
    x, y = tensors

    class Twice(Scaled):
        def execute(self, ctx):
            values = (N, 2.0, ctx.read(self.x), ctx.read(self.y), ctx.write(self.y))
            for number in (3.0, 5.0):
                on_a_thread(lambda: ca.fill(self.x, number).start(streams[1]))  # noqa: B023  # called at once
                self.function.enqueue(ctx, 1, 32, values)

    Twice(saxpy, 2.0, x, y, y, None).start(streams[0])
    run_to_a_stop(streams[0])
    stepped.driver.advance_all()
    assert values(y) == [2 * 3.0 + 2 * 5.0] * N


def test_memory_that_was_freed_meanwhile_is_not_enqueued(stepped, saxpy, streams, tensors):
    x, y = tensors

    def free():
        x.free()
        stepped.collect()

    future = Scaled(saxpy, 2.0, x, y, y, lambda: on_a_thread(free)).start(streams[0])
    stepped.driver.advance_all()
    with pytest.raises(ca.ClosedError, match="freed"):
        future.result()
    assert values(y) == [0.0] * N


def test_memory_freed_behind_the_launch_is_no_failure(stepped, saxpy, streams, tensors):
    x, y = tensors

    class ThenFreed(Scaled):
        def execute(self, ctx):
            super().execute(ctx)
            on_a_thread(lambda: ca.fill(x, 3.0).start(streams[1]))
            x.free()
            stepped.collect()

    ThenFreed(saxpy, 2.0, x, y, y, lambda: None).start(streams[0]).cancel()
    stepped.driver.advance_all()
    assert values(y) == [2.0] * N


@pytest.mark.parametrize("later_first", [True, False])
def test_calls_of_the_context_s_driver_are_ordered(stepped, streams, tensors, run_to_a_stop, later_first):
    x, y = tensors

    class Copies(ca.DeviceOp):
        def execute(self, ctx):
            source, target = ctx.read(x), ctx.write(y)
            on_a_thread(lambda: ca.fill(x, 3.0).start(streams[1]))
            ctx.driver.copy_device_to_device_async(target, source, x.nbytes, ctx.stream.handle)

    Copies().start(streams[0])
    if not later_first:
        run_to_a_stop(streams[1])
    run_to_a_stop(streams[0])
    stepped.driver.advance_all()
    assert values(y) == [3.0] * N


class Reads(ca.DeviceOp):
    """Enqueues by itself, when another thread has written what it asked for."""

    def __init__(self, tensor, between):
        self.tensor, self.between = tensor, between

    def execute(self, ctx):
        ctx.read(self.tensor)
        self.between()


def test_next_reader_waits_for_the_write_that_came_in_between(
    stepped, saxpy, streams, tensors, run_to_a_stop
):
    """The operation's own read cannot be ordered any more; what follows on its stream can."""
    x, y = tensors
    Reads(x, lambda: on_a_thread(lambda: ca.fill(x, 3.0).start(streams[1]))).start(streams[0])
    saxpy.launch(1, 32, *scaled(x, y)).start(streams[0])
    assert run_to_a_stop(streams[0])
    stepped.driver.advance_all()
    assert values(y) == [9.0] * N


class Fills(ca.DeviceOp):
    """Enqueues by itself, when another thread has written what it writes, too."""

    def __init__(self, tensor, stream):
        self.tensor, self.stream = tensor, stream

    def execute(self, ctx):
        address = ctx.write(self.tensor)
        on_a_thread(lambda: ca.fill(self.tensor, 3.0).start(self.stream))
        ctx.device.driver.fill_async(address, b"\0\0\0\0", N, ctx.stream.handle)


def test_next_reader_elsewhere_waits_for_both_writes(stepped, streams, tensors, run_to_a_stop):
    """It knows the last one only, so that one's stream has waited for the other."""
    x, _ = tensors
    Fills(x, streams[1]).start(streams[0])
    copied = ca.copy(x).start(ca.SingleStream(stepped.create_stream()))
    run_to_a_stop(streams[0])
    reader = copied._submission.stream
    while stepped.driver.advance(reader._handle):
        pass
    assert not copied.done
    stepped.driver.advance_all()
    assert copied.done


def test_memory_is_freed_behind_a_write_that_was_overtaken(stepped, streams):
    """Though the other thread's write was noted last."""
    made = ca.ones(N).start(streams[1])
    stepped.driver.advance_all()
    tensor = made.result()
    Fills(tensor, streams[1]).start(streams[0])
    address = tensor._address
    del tensor, made
    stepped.collect()
    first, second = (policy.next_stream()._handle for policy in streams[:2])
    assert stepped.driver.advance(first)  # the event that the other thread's fill waits for
    while any(map(stepped.driver.advance, {second, *(s._handle for s in stepped._streams)} - {first})):
        pass
    assert stepped.driver.pending(first)
    assert address not in stepped.driver.freed
    stepped.driver.advance_all()
    assert address in stepped.driver.freed


# ------------------------------------------------------------------------------- what is retained


class Thing:
    pass


def test_what_is_retained_stays_until_the_work_behind_it_is_done(stepped, saxpy, streams, tensors):
    """Though another thread closes the number in which it was retained, and the device passes that."""
    x, y = tensors
    alive = []

    class Keeps(Scaled):
        def execute(self, ctx):
            thing = Thing()
            alive.append(weakref.ref(thing))
            ctx.retain(thing)
            del thing
            super().execute(ctx)

    stream = streams[0].next_stream()

    def close_the_number():
        stream.record()
        while stepped.driver.advance(stream._handle):
            pass
        stepped.collect()

    Keeps(saxpy, 2.0, x, y, y, lambda: on_a_thread(close_the_number)).start(streams[0])
    stepped.collect()
    assert alive[0]() is not None
    stepped.driver.advance_all()
    stepped.collect()
    assert alive[0]() is None
    assert values(y) == [2.0] * N


def test_function_of_another_library_is_called_though_its_number_is_closed(
    stepped, streams, comes_in, without_workers
):
    """Wherever another thread closes it."""
    stream = streams[0].next_stream()
    called = []

    def close_the_number():
        ca.fill(other, 1.0).start(streams[0])

    for n in range(1, 100):
        made = ca.zip(ca.zeros(N), ca.zeros(N)).start(streams[0])
        stepped.driver.advance_all()
        tensor, other = made.result()
        lock = comes_in(stepped, n, close_the_number)
        future = ca.foreign(called.append, writes=[tensor]).start(streams[0])
        while stepped.driver.advance(stream._handle):
            stepped.collect()  # lets go of what was retained for what the device has passed
        future.result()
        assert len(called) == n
        if not lock.came_in:
            return
        stepped._lock, stepped._launch_lock = lock._lock, lock._lock
    pytest.fail("the lock is taken without an end")


# ----------------------------------------------------------------------------------- tensor.free()


def scaled(x, y):
    """Arguments of a launch: y = 2 * x + x."""
    return N, 2.0, ca.read(x), ca.read(x), ca.mut(y)


USES = {
    "copy": lambda k, x, y: ca.copy(x),
    "memcpy from": lambda k, x, y: ca.memcpy(y, x),
    "memcpy to": lambda k, x, y: ca.memcpy(x, y),
    "fill": lambda k, x, y: ca.fill(x, 3.0),
    "to_host": lambda k, x, y: x.to_host(),
    "astype": lambda k, x, y: x.astype("int32"),
    "launch": lambda k, x, y: k.launch(1, 32, *scaled(x, y)),
    "launch that writes": lambda k, x, y: k.launch(1, 32, *scaled(y, x)),
    "launch with uses": lambda k, x, y: k.launch(1, 32, *scaled(x, y), uses=[ca.read(x)]),
    "bound launch": lambda k, x, y: k.bind(1, 32, *scaled(x, y), device=x.device).launch(),
    "graph": lambda k, x, y: k.launch(1, 32, *scaled(x, y)).graph().sync().launch(),
    "operation": lambda k, x, y: Scaled(k, 2.0, x, x, y, lambda: None),
    "foreign": lambda k, x, y: ca.foreign(lambda _: None, reads=[x]),
}


@pytest.mark.parametrize("is_warm", [True, False])
@pytest.mark.parametrize("use", USES)
def test_memory_that_is_freed_meanwhile_is_not_used(
    stepped, saxpy, streams, comes_in, monkeypatch, use, is_warm
):
    """Wherever the other thread frees it: the operation is refused, or the free comes behind it.

    Cold, the use is the first of its stream; warm, the tensor was used there before.
    """
    monkeypatch.setattr(stepped, "_poison", True)
    for n in range(1, 100):
        made = ca.zip(ca.ones(N), ca.ones(N)).start(streams[0])
        stepped.driver.advance_all()
        x, y = made.result()
        op = USES[use](saxpy, x, y)
        policy = streams[0] if is_warm else streams[1]
        if is_warm:
            saxpy.launch(1, 32, *scaled(x, y)).start(policy)
            stepped.driver.advance_all()

        def free():
            x.free()  # noqa: B023  # called at once
            stepped.collect()
            stepped.driver.advance_all()

        lock = comes_in(stepped, n, free)
        future = op.start(policy)
        if not lock.came_in:
            free()
        stepped._lock, stepped._launch_lock = lock._lock, lock._lock
        stepped.driver.advance_all()
        try:
            result = future.result()
        except ca.ClosedError:
            assert lock.came_in
        else:
            if use == "to_host":
                assert result.tolist() == [1.0] * N
            elif use in ("copy", "astype"):
                assert values(result, result.dtype) == [1.0] * N
        if not lock.came_in:
            return
    pytest.fail("the lock is taken without an end")


def test_memory_that_is_freed_meanwhile_is_not_lent(stepped, streams, comes_in):
    """Wherever the other thread comes in: one of both is refused."""
    for n in range(1, 100):
        made = ca.ones(N).start(streams[0])
        stepped.driver.advance_all()
        tensor = made.result()
        refused = []

        def free():
            try:
                tensor.free()  # noqa: B023  # called at once
            except BufferError as error:
                refused.append(error)  # noqa: B023

        lock = comes_in(stepped, n, free)
        array = None
        try:
            array = np.from_dlpack(tensor)
        except ca.ClosedError as error:
            refused.append(error)
        stepped._lock, stepped._launch_lock = lock._lock, lock._lock
        if not lock.came_in:
            return
        assert len(refused) == 1
        assert (array is None) == tensor._buffer.is_freed
    pytest.fail("the lock is taken without an end")


def test_bound_launch_of_the_context_s_driver_does_not_use_what_was_freed(stepped, saxpy, tensors):
    _, y = tensors
    loaded = saxpy.load(stepped)

    class Bound(ca.DeviceOp):
        def execute(self, ctx):
            ctx.write(y)
            launch = ctx.driver.bind_launch(
                loaded.handle, (1, 1, 1), (32, 1, 1), 0, ctx.stream.handle, loaded.block
            )
            on_a_thread(y.free)
            launch()

    with pytest.raises(ca.ClosedError, match="freed"):
        Bound().start().result()


def test_what_is_retained_is_so_once_in_each_number(stepped, streams, tensors):
    _, y = tensors
    thing, counts = object(), []

    class Retains(ca.DeviceOp):
        def execute(self, ctx):
            ctx.retain(thing)
            address = ctx.write(y)
            on_a_thread(lambda: ca.copy(y).start(streams[1]))  # closes the number
            for _ in range(3):
                ctx.driver.fill_async(address, b"\0\0\0\0", N, ctx.stream.handle)
                counts.append(ctx.stream._retained.count(thing))

    future = Retains().start(streams[0])
    stepped.driver.advance_all()
    future.result()
    assert counts == [1, 1, 1]


class FillsLate(ca.DeviceOp):
    """Fills a tensor with zeros, when another thread has closed the number in which it asked for the address."""

    def __init__(self, tensor, driver_of):
        self.tensor, self.driver_of = tensor, driver_of

    def execute(self, ctx):
        address = ctx.write(self.tensor)
        on_a_thread(ctx.stream.record)
        driver = self.driver_of(ctx)
        driver.fill_async(address, b"\0\0\0\0", N, ctx.stream._handle)


@pytest.mark.parametrize(
    "driver_of", [lambda ctx: ctx.driver, lambda ctx: ctx.device.driver], ids=["ctx", "device"]
)
def test_work_in_the_next_number_is_waited_for(stepped, streams, tensors, driver_of):
    x, _ = tensors
    future = FillsLate(x, driver_of).start(streams[0])
    while not future.done:
        assert stepped.driver.advance()
    assert values(x) == [0.0] * N


def test_borrowed_memory_is_kept_for_work_in_the_next_number(stepped, streams):
    with ca.use_device(stepped):
        tensor = ca.from_dlpack(np.ones(N, "f4"))
    stepped.driver.advance_all()
    stepped.collect()
    buffer = weakref.ref(tensor._buffer)
    FillsLate(tensor, lambda ctx: ctx.device.driver).start(streams[0])
    del tensor
    handle = streams[0].next_stream()._handle
    while stepped.driver.pending(handle) > 1:  # the fill
        assert stepped.driver.advance(handle)
        for stream in list(stepped._streams):
            stream._refresh()
    assert buffer() is not None
    stepped.driver.advance_all()
    stepped.collect()
    assert buffer() is None
