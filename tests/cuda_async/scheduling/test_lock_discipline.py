"""What a lock guards is only changed while it is held: the fields say so themselves, while programs run.

A lock that is not taken hardly ever shows by what comes out, under the interpreter lock. So each guarded field, guarded
container and driver call is made to look whether its lock is held, and the core programs run in one thread: held
means held by whoever changes it.
"""

from __future__ import annotations

import collections
import gc
import re
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

import cuda_async as ca
from cuda_async.driver._inline import set_runner
from cuda_async.errors import KernelError
from cuda_async.graph._memory import GraphState
from cuda_async.graph._recorder import Recorder
from cuda_async.graph._updates import Updates
from cuda_async.memory import PinnedPool, Usage
from cuda_async.ops._future import DeviceFuture
from cuda_async.ops._shared import Gate
from cuda_async.scheduling import Submission, Unfinished, _device, _lookout, _policies, _watchdog, _workers
from cuda_async.scheduling._submission import Failure
from cuda_async.testing import checked_device, explore

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from drawn_programs import CORE, Kernels

OF_THE_DEVICE = (
    *("stream_wait_event", "event_record", "memory_free_async", "launch", "graph_launch", "fill_async"),
    *("convert_async", "copy_strided_async", "copy_host_to_device_async", "copy_device_to_host_async"),
    "copy_device_to_device_async",
)
"""Calls of the driver that enqueue: check, order and enqueue are one."""
FIELDS = {
    ca.Stream: (
        "_next",
        "_done",
        "_dirty",
        "_last",
        "_retained",
        "_closed",
        "_waiter",
        "_users",
        "_asleep_for",
    ),
    Failure: ("reported",),
    Submission: ("done", "error", "callbacks", "sleepers", "retained"),
    ca.Device: ("_used", "_used_high", "_lookout", "_interrupts_lost"),
    DeviceFuture: ("_state", "_submission", "_value", "_error", "_execution"),
    Gate: ("source", "settled", "value", "error", "submission"),
    Unfinished: ("_done", "_callbacks"),
    Updates: ("last", "_waiting", "_recorded"),
}
BROKEN: list[str] = []


def lock_of(thing):
    if isinstance(thing, ca.Stream):
        return thing.device._lock
    if isinstance(thing, Submission):
        return thing.stream.device._lock
    if isinstance(thing, Failure):
        return thing.device._lock
    if isinstance(thing, Unfinished):
        return _workers._abandoned_lock
    return thing.lock if isinstance(thing, (Gate, _workers._Workers)) else thing._lock


def look(lock, what):
    if not lock.locked():
        caller = sys._getframe(2)
        BROKEN.append(f"{what} at {Path(caller.f_code.co_filename).name}:{caller.f_lineno}")


def records(thing):
    """A recording stream belongs to its recorder alone."""
    return isinstance(thing, ca.Stream) and thing._recorder is not None


def guard(monkeypatch, owner, name):
    """Replace a field by one that looks at each change but the first; so do the lists of callbacks that it holds."""
    slot = vars(owner).get(name)

    def read(self):
        if slot is not None:
            return slot.__get__(self)
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    def write(self, value):
        try:
            read(self)
        except AttributeError:
            pass  # it is being made
        else:
            if not records(self):
                look(lock_of(self), f"{owner.__name__}.{name} is set")
        if name.endswith("callbacks") and value is not None:
            value = GuardedList(lock_of(self), f"{owner.__name__}.{name}", value)
        if slot is not None:
            slot.__set__(self, value)
        else:
            vars(self)[name] = value

    def delete(self):
        look(lock_of(self), f"{owner.__name__}.{name} is deleted")
        if slot is not None:
            slot.__delete__(self)
        else:
            del vars(self)[name]

    monkeypatch.setattr(owner, name, property(read, write, delete), raising=False)


def called_under_its_lock(owner, name, method):
    """A method whose docstring says that the lock is held."""

    def called(self, *args, **kwargs):
        if not records(self):
            look(lock_of(self), f"{owner.__name__}.{name}")
        return method(self, *args, **kwargs)

    return called


class GuardedUsage:
    """Uses of memory change under the lock of the device whose stream uses it."""

    @staticmethod
    def wrap(monkeypatch, name):
        method = getattr(Usage, name)

        def noted(self, stream, number):
            look(stream.device._lock, f"Usage.{name}")
            return method(self, stream, number)

        monkeypatch.setattr(Usage, name, noted)


class GuardedList(list):
    """A device's events, or what waits for something."""

    def __init__(self, lock, what, items=()):
        super().__init__(items)
        self.lock, self.what = lock, what

    def append(self, item):
        look(self.lock, f"{self.what}.append")
        super().append(item)

    def pop(self, *args):
        look(self.lock, f"{self.what}.pop")
        return super().pop(*args)

    def remove(self, item):
        look(self.lock, f"{self.what}.remove")
        super().remove(item)


class GuardedQueue(GuardedList):
    """Who is woken one after the other: the first is looked at, and goes, under the lock."""

    def __getitem__(self, index):
        look(self.lock, f"{self.what} is looked at")
        return super().__getitem__(index)

    def __delitem__(self, index):
        look(self.lock, f"{self.what} is taken from")
        super().__delitem__(index)


class GuardedDeque(collections.deque):
    """A stream's pending submissions."""

    def __init__(self, stream):
        super().__init__()
        self.stream = stream

    def append(self, item):
        look(self.stream.device._lock, "Stream._pending.append")
        super().append(item)

    def popleft(self):
        look(self.stream.device._lock, "Stream._pending.popleft")
        return super().popleft()


class GuardedDict(dict):
    """A pool's free blocks, or the devices by name."""

    def __init__(self, lock, what, items=()):
        super().__init__(items)
        self.lock, self.what = lock, what

    def get(self, *args):
        look(self.lock, f"{self.what}.get")
        return super().get(*args)

    def setdefault(self, *args):
        look(self.lock, f"{self.what}.setdefault")
        return super().setdefault(*args)

    def __setitem__(self, key, value):
        look(self.lock, f"{self.what} is added to")
        super().__setitem__(key, value)

    def __delitem__(self, key):
        look(self.lock, f"{self.what} is taken from")
        super().__delitem__(key)


class GuardedWork(dict):
    """Work that nobody waits for."""

    def __setitem__(self, item, value):
        look(_workers._abandoned_lock, "_abandoned is added to")
        super().__setitem__(item, value)

    def pop(self, *args):
        look(_workers._abandoned_lock, "_abandoned.pop")
        return super().pop(*args)

    def __iter__(self):
        look(_workers._abandoned_lock, "_abandoned is listed")
        return super().__iter__()


@pytest.fixture
def guarded(monkeypatch):
    """Everything that a lock guards looks whether it is held; fails for what was not."""
    BROKEN.clear()
    for owner, names in FIELDS.items():
        for name in names:
            guard(monkeypatch, owner, name)
    for name in ("add_read", "set_write"):
        GuardedUsage.wrap(monkeypatch, name)
    for owner in (ca.Device, ca.Stream, Submission, DeviceFuture):
        for name, method in list(vars(owner).items()):
            if re.search(r"\bLock held|the lock is held", getattr(method, "__doc__", None) or ""):
                monkeypatch.setattr(owner, name, called_under_its_lock(owner, name, method))
    forgets = ca.Device._forget_notes
    monkeypatch.setattr(
        ca.Device, "_forget_notes", called_under_its_lock(ca.Device, "_forget_notes", forgets)
    )
    make_stream = ca.Stream._make.__func__

    def made(cls, *args, **kwargs):
        stream = make_stream(cls, *args, **kwargs)
        stream._pending = GuardedDeque(stream)
        return stream

    monkeypatch.setattr(ca.Stream, "_make", classmethod(made))
    make_pool = PinnedPool.__init__

    def pooled(self, driver):
        make_pool(self, driver)
        self._free = GuardedDict(self._lock, "PinnedPool._free")

    monkeypatch.setattr(PinnedPool, "__init__", pooled)
    make_gate = Gate.__init__

    def gated(self, source):
        make_gate(self, source)
        self._waiting = GuardedList(self.lock, "Gate._waiting")

    monkeypatch.setattr(Gate, "__init__", gated)
    monkeypatch.setattr(_workers, "_abandoned", GuardedWork())
    yield
    assert sorted(set(BROKEN)) == []


def watched(program):
    """The program, on a device whose containers and whose driver look too."""

    def run(device):
        device._events = GuardedList(device._lock, "Device._events")
        device._streams = GuardedList(device._lock, "Device._streams", device._streams)
        driver = device.driver
        for name in OF_THE_DEVICE:
            call = getattr(driver, name)

            def looking(*args, call=call, name=name, **kwargs):
                look(device._lock, name)
                return call(*args, **kwargs)

            setattr(driver, name, looking)
        return program(device)

    return run


@pytest.mark.parametrize("program", CORE, ids=lambda found: found.__qualname__)
def test_what_locks_guard_is_changed_under_them(guarded, program):
    explore(watched(program), seeds=2)


def test_lock_of_launches_is_the_devices(stepped):
    with stepped._launch_lock:
        assert stepped._lock.locked()
    assert not stepped._lock.locked()
    with pytest.raises(KeyboardInterrupt), stepped._launch_lock:
        raise KeyboardInterrupt
    assert not stepped._lock.locked()


def test_lost_device_forgets_under_its_lock(guarded, stepped):
    tensor = ca.zeros(4).start()
    stepped.driver.advance_all()
    tensor.result()
    stepped.driver.fail_next("event_record", ca.DeviceLostError("made to fail"))
    with pytest.raises(ca.DeviceLostError):
        ca.zeros(4).start().result()
    del tensor
    gc.collect()
    stepped.collect()
    assert stepped.memory_stats().used_bytes == 0


def test_devices_are_known_under_the_lock(guarded, monkeypatch):
    monkeypatch.setattr(_device, "_registry", GuardedDict(_device._registry_lock, "_registry"))
    ca.Device("host:0").close()
    assert _device._registry == {}


def test_memory_for_a_large_tensor_is_looked_for_under_the_lock(guarded, stepped):
    """What was dropped is freed first."""
    dropped = ca.zeros(4).start()
    stepped.driver.advance_all()
    dropped.result()
    del dropped
    gc.collect()
    assert stepped._notes
    stepped._would_map(_device.MAPPED_AHEAD_BYTES)
    assert not stepped._notes


def test_memory_is_lent_to_the_host_under_the_lock(guarded, stepped):
    made = ca.zeros(4).start()
    stepped.driver.advance_all()
    tensor = made.result()
    ca.fill(tensor, 1).start()
    with pytest.raises(BufferError, match="still being written"):
        tensor.__dlpack__()
    stepped.driver.advance_all()
    assert tensor.__dlpack__() is not None


def test_failure_is_reported_under_the_lock(guarded, stepped):
    future = ca.zeros(4).start()
    stepped.driver.advance_all()
    stepped.driver.fail_next("event_query", KernelError("made to fail"))
    with pytest.raises(KernelError, match="made to fail"):
        future.result()


def test_shared_operation_of_a_failed_capture_is_undone_under_its_lock(guarded, stepped):
    shared = ca.value(5).shared()
    with pytest.raises(ValueError, match="as planned"):
        shared.then(fail).graph().sync()
    assert shared.sync() == 5


def test_callback_is_forgotten_under_the_lock(guarded, stepped):
    future = ca.zeros(4).start()
    future._submission.add_callback(print)
    future._submission.remove_callback(print)
    stepped.driver.advance_all()


@pytest.mark.timeout(30)
def test_callback_that_ends_the_thread_that_slept_for_it(guarded, stepped):
    """Which it should not; the next who waits gets another thread."""
    stepped.driver.notifies = False
    stream = stepped.create_stream()
    called = threading.Event()
    for callback in (sys.exit, called.set):
        future = ca.zeros(4).start(ca.SingleStream(stream))
        assert future._submission.add_callback(callback)
        stepped.driver.advance_all()
        while callback is sys.exit and stream._waiter:
            pass  # until the timeout, if it stays
    assert called.wait(10)
    stream.close()


def test_thread_that_looks_at_what_others_sleep_for_does_so_under_the_lock(guarded, stepped, monkeypatch):
    """Also where it ends by a callback that raises, which it should not."""
    assert _lookout.look(stepped, set()) == []
    monkeypatch.setattr(_lookout, "LOOK_S", 0.0)
    monkeypatch.setattr(_lookout, "look", lambda *_: fail(None))
    with stepped._lock:
        stepped._lookout = True
    with pytest.raises(ValueError, match="as planned"):
        _lookout._look(stepped)
    assert not stepped._lookout


class ClosedMeanwhile(ca.DeviceOp):
    """Asks for an address, and enqueues when another thread has closed the number that it was noted in."""

    def __init__(self, tensor, enqueues):
        self.tensor, self.enqueues = tensor, enqueues

    def execute(self, ctx):
        address = ctx.write(self.tensor)
        thread = threading.Thread(target=ctx.stream.record)
        thread.start()
        thread.join()
        if self.enqueues:
            ctx.driver.fill_async(address, b"\0\0\0\0", 4, ctx.stream._handle)


@pytest.mark.parametrize("enqueues", [True, False])
def test_uses_of_an_operation_of_one_s_own_are_noted_again_under_the_lock(guarded, stepped, enqueues):
    tensor = ca.zeros(4).start()
    stepped.driver.advance_all()
    future = ClosedMeanwhile(tensor.result(), enqueues).start()
    stepped.driver.advance_all()
    future.result()


def test_drain_waits_for_abandoned_work_under_the_lock(guarded):
    work = Unfinished()
    work.abandon()
    assert _workers.abandoned_work() == [work]
    done = threading.Event()
    work.begin_waiting(done.set)
    work.finish()
    assert done.is_set()
    assert _workers.abandoned_work() == []


# ---------------------------------------------------------------------- what is made only once


class Twice:
    """Calls `use` on another thread while the first call of `make` is under way, and counts the calls."""

    def __init__(self, make, use):
        self.make, self.use, self.calls, self.thread = make, use, 0, None

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.thread is None:
            self.thread = threading.Thread(target=self.use)
            self.thread.start()
            self.thread.join(0.05)  # it ends in that time only where nothing makes it wait
        return self.make(*args, **kwargs)


def test_device_is_made_once(monkeypatch):
    name = "host:77"
    found = []
    make = Twice(ca.Device._make, lambda: found.append(ca.Device(name)))
    monkeypatch.setattr(ca.Device, "_make", make)
    found.append(ca.Device(name))
    make.thread.join(10)
    del _device._registry[name]
    assert make.calls == 1
    assert found[0] is found[1]


def test_driver_is_opened_once(monkeypatch):
    from cuda_async.driver import host

    device = ca.Device._make("host", 0, None)
    opening = Twice(lambda ordinal: host.HostDriver(), device.open)
    monkeypatch.setattr(host, "open_host_driver", opening)
    device.open()
    opening.thread.join(10)
    assert opening.calls == 1
    device.close()


def test_pool_of_streams_is_made_once(stepped, monkeypatch):
    """The default policy, its streams, and the stream for what other libraries lend."""
    device = ca.Device._make("host", 0, stepped.driver)
    making = Twice(_policies.StreamPoolRoundRobin, lambda: device.policy)
    monkeypatch.setattr(_policies, "StreamPoolRoundRobin", making)
    policy = device.policy
    making.thread.join(10)
    assert making.calls == 1
    for use, count in ((policy.next_stream, 4), (device._exchange_stream, 1)):
        creating = Twice(device.create_stream, use)
        monkeypatch.setattr(device, "create_stream", creating)
        use()
        creating.thread.join(10)
        assert creating.calls == count
        monkeypatch.delattr(device, "create_stream")


def test_pinned_pool_is_made_once(stepped, monkeypatch):
    found = []
    making = Twice(PinnedPool, lambda: found.append(stepped.pinned))
    monkeypatch.setattr(_device, "PinnedPool", making)
    found.append(stepped.pinned)
    making.thread.join(10)
    assert making.calls == 1
    assert found[0] is found[1]


def test_streams_of_high_priority_are_made_once(stepped, monkeypatch):
    policy = ca.PriorityStreams(device=stepped)
    making = Twice(_policies.StreamPoolRoundRobin, policy.high)
    monkeypatch.setattr(_policies, "StreamPoolRoundRobin", making)
    policy.high()
    making.thread.join(10)
    assert making.calls == 1


def test_watchdog_that_is_taken_away_meanwhile(monkeypatch):
    """It is the new one that goes, and not the one before it."""
    making = Twice(_watchdog._Watchdog, lambda: ca.set_watchdog(None))
    monkeypatch.setattr(_watchdog, "_Watchdog", making)
    try:
        ca.set_watchdog(3600)
        making.thread.join(10)
        assert _watchdog._current is None
    finally:
        ca.set_watchdog(None)


def test_workers_count_under_their_lock(monkeypatch):
    """The numbers of threads and of idle ones change under the lock."""
    BROKEN.clear()
    for name in ("threads", "idle"):
        guard(monkeypatch, _workers._Workers, name)
    workers = _workers._Workers()
    for _ in range(3):
        done = threading.Event()
        workers.submit(done.set)
        assert done.wait(10)
    assert workers.threads >= 1
    with workers.lock:
        workers.threads = 2
    workers.queue = SimpleQueue()  # of this thread alone
    workers.queue.put(sys.exit)
    with pytest.raises(SystemExit):
        workers.run()
    assert workers.threads == 1
    assert BROKEN == []


# ------------------------------------------------------------- what the core programs do not come to


class WritesByHand(ca.DeviceOp):
    """An operation of one's own, which asks for addresses and launches a kernel."""

    def __init__(self, function, y, x):
        self.function, self.y, self.x = function, y, x

    def execute(self, ctx):
        values = [ctx.write(self.y), ctx.read(self.x), self.x.size, 2.0, 1.0]
        self.function.enqueue(ctx, 1, 1, values)
        return self.y


def uses_its_own_operation(kernels, x, y, first, second):
    return [WritesByHand(kernels._to, y, x).start(first)]


def launches_with_uses(kernels, x, y, first, second):
    args = (ca.mut(y), ca.read(x), x.size, 2.0, 1.0)
    return [kernels._to.launch(1, 1, *args, uses=[ca.read(x)]).start(first)]


def shares_between_streams(kernels, x, y, first, second):
    shared = ca.fill(x, 3).shared()
    return [shared.start(first), shared.then(ca.copy).start(second)]


def launches_and_closes_a_graph(kernels, x, y, first, second):
    graph = kernels.into(y, x, 2.0, 1.0).graph_on(first.next_stream()).sync()
    future = graph.launch().start(second)
    x.device.driver.advance_all()
    graph.close()
    return [future]


def trims_staging_memory(kernels, x, y, first, second):
    x.device.pinned.take(4 << 20)
    x.device.pinned.trim()
    return []


@pytest.mark.parametrize(
    "use",
    [
        *(uses_its_own_operation, launches_with_uses, shares_between_streams),
        *(launches_and_closes_a_graph, trims_staging_memory),
    ],
    ids=lambda use: use.__name__,
)
def test_what_locks_guard_is_changed_under_them_elsewhere_too(
    guarded, stepped, streams, make_tensor, without_workers, use
):
    kernels = Kernels()
    for function in (kernels._in_place, kernels._to):
        function.load(stepped)
    futures = use(kernels, make_tensor(8), make_tensor(8), *streams[:2])
    stepped.driver.advance_all()
    for future in futures:
        future.result()


class Unprepared(ca.DeviceOp):
    """To be prepared by a worker."""

    def prepare(self, ctx):
        pass

    def execute(self, ctx):
        return None


class Later:
    """Workers that begin when they are told to."""

    def __init__(self):
        self.work = []

    def defer(self, work):
        self.work.append(work)


@pytest.mark.parametrize("kind", ["a future", "a shared operation"])
def test_who_waits_for_what_is_being_enqueued_is_noted_under_its_lock(
    guarded, stepped, without_workers, kind
):
    """And who gives that up: a task that is cancelled."""
    workers = Later()
    set_runner(workers)
    if kind == "a future":
        future = Unprepared().start()
        future._callbacks = GuardedList(future._lock, "DeviceFuture._callbacks")
        begin = future._begin
    else:
        shared = Unprepared().shared()
        shared._gate._waiting = GuardedQueue(shared._gate.lock, "Gate._waiting")
        future = shared.start()
        begin = shared._gate.begin
    assert future.state == "enqueueing"
    woken = []
    give_up = begin(lambda: woken.append("who gave up"))
    begin(lambda: woken.append("who waits"))
    give_up()
    for work in workers.work:
        work()
    assert woken == ["who waits"]
    stepped.driver.advance_all()
    future.result()


def test_module_is_loaded_once(stepped, monkeypatch):
    module = Kernels()._to.module
    loading = Twice(stepped.driver.module_load, lambda: module._load(stepped))
    monkeypatch.setattr(stepped.driver, "module_load", loading)
    module._load(stepped)
    loading.thread.join(10)
    assert loading.calls == 1


def test_graph_of_a_key_is_captured_once(stepped):
    """Of two who ask at once, both get the one operation."""
    found = []
    building = Twice(ca.zeros, lambda: found.append(cache.get(4)))
    cache = ca.GraphCache(building)
    found.append(cache.get(4))
    building.thread.join(10)
    assert building.calls == 1
    assert found[0] is found[1]


def test_cache_is_not_cleared_while_a_graph_is_put_into_it(stepped):
    cache = ca.GraphCache(ca.zeros)
    storing = Twice(collections.OrderedDict.__setitem__, cache.clear)

    class Storing(collections.OrderedDict):
        def __setitem__(self, key, value):
            storing(self, key, value)

    cache._graphs = Storing()
    cache.get(4)
    storing.thread.join(10)
    assert len(cache) == 0


class Kept(collections.OrderedDict):
    """A cache's graphs, which say where they were changed or gone through without its lock."""

    cache = None

    def _look(self):
        if not self.cache._lock._is_owned():
            caller = sys._getframe(2)
            BROKEN.append(f"GraphCache._graphs at {Path(caller.f_code.co_filename).name}:{caller.f_lineno}")

    def __setitem__(self, key, value):
        self._look()
        super().__setitem__(key, value)

    def move_to_end(self, key):
        self._look()
        super().move_to_end(key)

    def pop(self, key):
        self._look()
        return super().pop(key)

    def items(self):
        self._look()
        return super().items()

    def values(self):
        self._look()
        return super().values()


def test_graphs_are_put_into_a_cache_and_taken_out_under_its_lock(guarded, host):
    cache = ca.GraphCache(ca.ones, max_graphs=2)
    cache._graphs = Kept()
    cache._graphs.cache = cache
    captures = [cache.get(n) for n in (1, 2, 3)]
    for capture in captures:
        capture.sync()
    assert cache.get(3) is captures[2]
    assert len(cache) == 2


def test_updates_are_numbered_and_kept_under_their_lock(guarded, host):
    x = ca.ones(4).sync()
    graph = ca.copy(x).graph().sync()
    graph.update(ca.fill(x, 2.0))
    assert graph.launch().to_host().sync().tolist() == [2.0] * 4
    graph.update(ca.fill(x, 3.0))
    graph.launch().graph().sync().close()
    assert graph.launch().to_host().sync().tolist() == [3.0] * 4


def test_recording_that_was_abandoned_is_discarded_once(host, monkeypatch):
    """Of two who meet it, one waits for the other."""
    recorder = Recorder(host.create_stream(), {})
    recorder.abandon()
    discard = Twice(recorder.discard, recorder.discard_abandoned)
    monkeypatch.setattr(recorder, "discard", discard)
    recorder.discard_abandoned()
    discard.thread.join(10)
    assert discard.calls == 1


class LookedAt(collections.deque):
    """Failures of a stream that say where they were gone through without its device's lock."""

    device = None

    def __iter__(self):
        look(self.device._lock, "failures")
        return super().__iter__()


def fail(_):
    raise ValueError("as planned")


def test_failures_are_gone_through_under_the_lock(host, monkeypatch):
    monkeypatch.setattr(LookedAt, "device", host)
    stream = host.create_stream()
    stream._failures = LookedAt(maxlen=32)
    guard(monkeypatch, Failure, "reported")
    query = host.driver.stream_query
    monkeypatch.setattr(
        host.driver, "stream_query", lambda h: (look(host._lock, "stream_query"), query(h))[1]
    )
    ca.foreign(lambda _: None).sync()
    ca.foreign(fail).start(ca.SingleStream(stream))
    stream.record().synchronize()  # waited past it
    ca.foreign(fail).start(ca.SingleStream(stream))
    stream.handle  # noqa: B018
    with pytest.raises(ca.CudaAsyncError, match="as planned"):
        stream.synchronize()
    assert stream.is_done
    host.synchronize()  # with a handle that others know, by a call that takes long
    stream.close()
    assert set(BROKEN) == set()


def test_closed_streams_of_a_pool_are_replaced_under_its_lock(host, monkeypatch):
    policy = ca.StreamPoolRoundRobin(2, device=host)
    for _ in range(2):
        policy.next_stream().close()
    create, owned = host.create_stream, []

    def created(**options):
        owned.append(host._pool_lock._is_owned())
        return create(**options)

    monkeypatch.setattr(host, "create_stream", created)
    policy.next_stream()
    assert owned == [True, True]


def test_who_closes_a_device_second_returns_when_it_is_closed(monkeypatch):
    device = checked_device()
    close, inside, goes_on = device.driver.close, threading.Event(), threading.Event()

    def close_slowly():
        inside.set()
        assert goes_on.wait(10)
        close()

    monkeypatch.setattr(device.driver, "close", close_slowly)
    threads = [threading.Thread(target=device.close) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert inside.wait(10)
    threads[1].join(0.2)
    assert threads[1].is_alive()
    goes_on.set()
    for thread in threads:
        thread.join(10)


def test_outputs_become_stale_under_the_lock(host, monkeypatch):
    """Also where inputs were set for a launch that failed, or an interrupt came behind the launch."""
    t = ca.ones(4).sync()
    graph = ca.graph_input("x", (4,)).then(lambda x: ca.fill(t, 1.0).map(lambda _: x)).graph().sync()
    x = graph.replay(x=5.0).sync()
    slot, sets = GraphState.is_current, []

    def write(state, value):
        sets.append(value)
        assert host._lock.locked()
        slot.__set__(state, value)

    monkeypatch.setattr(GraphState, "is_current", property(slot.__get__, write))
    launch = host.driver.graph_launch

    def interrupted(*arguments):
        launch(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(host.driver, "graph_launch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            graph.launch().sync()
    assert sets == [False]
    sets.clear()
    t.free()
    with pytest.raises(ca.ClosedError):
        graph.replay(x=6.0).sync()
    assert sets == [False]
    with pytest.raises(ca.StaleOutputError):
        x.to_host().sync()


def test_a_gate_hears_of_its_graphs_launch_under_its_lock(host, monkeypatch):
    shared = ca.ones(4).shared()
    graph = shared.then(ca.copy).graph().sync()
    held = []

    def write(gate, value):
        held.append(gate.lock.locked())
        vars(gate)["_again"] = value

    monkeypatch.setattr(Gate, "_again", property(lambda gate: vars(gate)["_again"], write), raising=False)
    graph.launch().sync()
    assert held == [True]
