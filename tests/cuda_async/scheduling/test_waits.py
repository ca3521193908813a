"""What waits for everything waits for each part of it: removing one wait shows."""

from __future__ import annotations

import gc
import queue
import threading
import time
import types
import weakref

import pytest

import cuda_async as ca
from cuda_async.driver._bell import Bell
from cuda_async.scheduling import _device, _lookout, _stream, _submission
from cuda_async.scheduling._lookout import look


def advance_when_blocked(stepped, thread, submissions):
    """Let the device go on only once `thread` sleeps on one of `submissions()`; True when it did."""
    until = time.monotonic() + 10
    while thread.is_alive() and time.monotonic() < until:
        if any(submission.sleepers for submission in submissions()):
            stepped.driver.advance_all()
            return True
    return False


def pending(*streams):
    return lambda: [submission for stream in streams if stream for submission in list(stream._pending)]


@pytest.mark.timeout(30)
def test_device_synchronize_waits_for_each_stream(stepped):
    streams = [stepped.create_stream() for _ in range(2)]
    futures = [ca.zeros(4).start(ca.SingleStream(stream)) for stream in streams]
    thread = threading.Thread(target=stepped.synchronize)
    thread.start()
    assert advance_when_blocked(stepped, thread, pending(*streams))
    thread.join(10)
    assert not thread.is_alive()
    assert all(future.done for future in futures)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "wait", [lambda d: d.synchronize(), lambda d: ca.drain().sync()], ids=["device", "drain"]
)
def test_memory_of_several_streams_is_freed_when_it_returns(stepped, monkeypatch, wait):
    """The frees go behind the last uses, on a stream of their own, which is waited for as well."""
    monkeypatch.setitem(_device._registry, "host:0", stepped)
    first, second = (ca.SingleStream(stepped.create_stream()) for _ in range(2))
    tensor = ca.zeros(4).start(first)
    stepped.driver.advance_all()
    value = tensor.result()
    future = ca.copy(value).start(second)
    stepped.driver.advance_all()
    assert future.done
    address = value._address
    del tensor, value
    gc.collect()  # a free-threaded Python may put off what another thread let go of
    thread = threading.Thread(target=wait, args=(stepped,))
    thread.start()
    assert advance_when_blocked(stepped, thread, lambda: pending(stepped._reclaim)())
    thread.join(10)
    assert not thread.is_alive()
    assert address in stepped.driver.freed


@pytest.mark.timeout(30)
@pytest.mark.parametrize("start", [lambda op: op.sync(), lambda op: op.start().sync()], ids=["sync", "start"])
def test_drain_in_a_callback_is_refused(host, start):
    """It would wait for the operation that it is part of, where that goes on on a worker thread."""
    op = ca.zeros(4).to_host().map(lambda _: ca.drain().sync())
    with pytest.raises(ca.ReentrancyError, match=r"drain\(\)\.sync\(\) inside a callback"):
        start(op)


@pytest.mark.timeout(30)
def test_drain_waits_for_frees(stepped, monkeypatch):
    """Freed on the one stream that used it: the free is work of that stream, and waited for."""
    monkeypatch.setitem(_device._registry, "host:0", stepped)
    stream = stepped.create_stream()
    tensor = ca.zeros(4).start(ca.SingleStream(stream))
    stepped.driver.advance_all()
    address = tensor.result()._address
    del tensor
    thread = threading.Thread(target=ca.drain().sync)
    thread.start()
    assert advance_when_blocked(stepped, thread, pending(stream))
    thread.join(10)
    assert address in stepped.driver.freed


@pytest.mark.timeout(30)
@pytest.mark.parametrize("close", ["stream", "device"])
def test_closing_ends_the_thread_that_sleeps_for_callbacks(stepped, close):
    """At once, and not when it has been idle for long."""
    stepped.driver.notifies = False
    stream = stepped.create_stream()
    future = ca.zeros(4).start(ca.SingleStream(stream))
    woken = threading.Event()
    assert future._submission.add_callback(woken.set)
    stepped.driver.advance_all()
    assert woken.wait(10)
    began = time.monotonic()
    if close == "stream":
        stream.close()
    else:
        stepped._close("the test is over")
    while stream._waiter:
        assert time.monotonic() - began < 3


@pytest.mark.timeout(30)
def test_events_interrupt_the_host_only_where_it_sleeps_most_of_the_time(stepped):
    """An interrupt costs the host microseconds, whether it waits or not."""
    made = {}
    create = stepped.driver.event_create

    def noted(*, timing=False, interrupts=False):
        event = create(timing=timing, interrupts=interrupts)
        made[event] = interrupts
        return event

    stepped.driver.event_create = noted

    def wait_and_record(slept):
        """Whether the event behind the next work interrupts, the waits before having slept or not."""
        for _ in range(10):
            stepped._note_wait(1e-3, slept)
        submission = ca.zeros(4).start(ca.SingleStream(stream))._submission
        stepped.driver.advance_all()
        assert submission.poll()
        return made[submission.event]

    stream = stepped.create_stream()
    assert not wait_and_record(True), "a device that calls back needs none"
    stepped.driver.notifies = False
    assert not wait_and_record(False)
    assert wait_and_record(True)
    assert not wait_and_record(False)
    assert wait_and_record(True)
    assert len(made) == 2, "an event goes back to those of its kind"
    assert [made[event] for event in stepped._events + stepped._interrupting_events] == [False, True]
    stream.close()


class Woken(threading.Event):
    """Is set when the device is past what is enqueued on a stream now."""

    def __init__(self, stream):
        super().__init__()
        assert ca.zeros(4).start(ca.SingleStream(stream))._submission.add_callback(self.set)


@pytest.mark.timeout(30)
def test_thread_that_sleeps_for_callbacks_sleeps_again_when_it_could_not(stepped):
    """In the driver, and not in a loop that keeps asking: once for each time that it is refused."""
    stepped.driver.notifies = False
    sleep = stepped.driver.event_synchronize
    sleeps, sleeping = [], threading.Event()

    def refused_once(event):
        sleeps.append(event)
        if len(sleeps) == 1:
            raise RuntimeError("made to fail")
        sleeping.set()
        sleep(event)

    stepped.driver.event_synchronize = refused_once
    stream = stepped.create_stream()
    woken = Woken(stream)
    try:
        assert sleeping.wait(5)
        assert not woken.is_set()
    finally:
        stepped.driver.advance_all()
    assert woken.wait(5)
    assert len(sleeps) == 2
    stream.close()


class Deaf:
    """A driver's sleep from which no thread ever wakes; until the end of the test."""

    def __init__(self, stepped):
        stepped.driver.notifies = False
        self.sleep = stepped.driver.event_synchronize
        self.over = threading.Event()
        self.sleeping = threading.Event()
        self.forgotten = threading.Event()
        stepped.driver.event_synchronize = self.event_synchronize
        stepped.driver.forget_interrupts = self.forget_interrupts
        for _ in range(10):
            stepped._note_wait(1e-3, True)  # so events interrupt

    def event_synchronize(self, event):
        if self.forgotten.is_set():
            return self.sleep(event)
        self.sleeping.set()
        assert self.over.wait(20)

    def forget_interrupts(self):
        self.forgotten.set()


@pytest.mark.timeout(30)
def test_interrupt_that_is_lost_is_made_up_for(stepped, monkeypatch, caplog):
    """Whoever waits hears at the next look, a thread that sleeps on is replaced, and interrupts are not used again."""
    monkeypatch.setattr(_lookout, "_thread", Threadless())
    deaf = Deaf(stepped)
    stream = stepped.create_stream()
    woken = Woken(stream)
    assert deaf.sleeping.wait(5)
    (asleep,) = look(stepped, set())
    assert not asleep.done
    stepped.driver.advance_all()
    assert not woken.is_set()
    assert look(stepped, set()) == [asleep]
    assert woken.is_set()
    assert not caplog.records, "the thread may be about to wake"
    later = Woken(stream)
    assert look(stepped, {asleep}) == []
    assert deaf.forgotten.is_set()
    assert "an interrupt was lost" in caplog.text
    stepped.driver.advance_all()
    assert later.wait(5), "another thread sleeps for it"
    stepped._note_wait(1e-3, True)
    assert not stepped._interrupts
    deaf.over.set()
    stream.close()
    while asleep.sleepers:
        pass
    assert look(stepped, set()) == []
    assert not stepped._lookout


class Threadless:
    """Starts no thread: the test looks."""

    @staticmethod
    def start_new_thread(function, args):
        assert function is _lookout._look


@pytest.mark.timeout(30)
def test_thread_looks_while_others_sleep_for_interrupts(stepped, monkeypatch):
    looks, go_on = queue.SimpleQueue(), queue.SimpleQueue()

    def pause(seconds):
        looks.put(seconds)
        go_on.get(timeout=20)

    monkeypatch.setattr(_lookout, "time", types.SimpleNamespace(sleep=pause))
    deaf = Deaf(stepped)
    stream = stepped.create_stream()
    woken = Woken(stream)
    assert looks.get(timeout=5) == 1.0
    stepped.driver.advance_all()
    go_on.put(None)
    assert woken.wait(5)
    assert looks.get(timeout=5) == 1.0
    assert not deaf.forgotten.is_set()
    go_on.put(None)
    assert deaf.forgotten.wait(5), "the thread that sleeps on is given up"
    deaf.over.set()
    stream.close()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("wait", ["sync", "thread"])
def test_blocked_thread_does_not_sleep_in_the_driver(stepped, monkeypatch, wait):
    """It is called by the stream's, and looks itself where it is not, or where there is no such thread."""
    monkeypatch.setattr(_submission, "LOOK_S", 1e-3)
    if wait == "thread":
        monkeypatch.setattr(_stream, "_thread", Refusing())
    else:
        Deaf(stepped)
    stream = stepped.create_stream()
    submission = ca.zeros(4).start(ca.SingleStream(stream))._submission
    blocked = threading.Thread(target=submission.synchronize)
    stepped.driver.notifies = False
    blocked.start()
    stepped.driver.advance_all()
    blocked.join(10)
    assert not blocked.is_alive()
    assert not submission.callbacks


class Refusing:
    @staticmethod
    def start_new_thread(function, args):
        raise RuntimeError("can't start new thread")


class Idle(Bell):
    """Says when a thread begins to wait."""

    def __init__(self):
        super().__init__()
        self.began = threading.Event()

    def wait(self, timeout_s=None):
        self.began.set()
        return super().wait(timeout_s)


@pytest.mark.timeout(30)
def test_idle_thread_is_woken_for_the_next_callback(stepped):
    """At once, and not when it has been idle for long."""
    stepped.driver.notifies = False
    stream = stepped.create_stream()
    stream._bell = idle = Idle()
    first = Woken(stream)
    stepped.driver.advance_all()
    assert first.wait(5)
    assert idle.began.wait(5)
    second = Woken(stream)
    stepped.driver.advance_all()
    assert second.wait(3)
    stream.close()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("wait", [ca.Stream.close, ca.Stream.synchronize])
def test_stream_waits_for_its_work(stepped, wait):
    stream = stepped.create_stream()
    future = ca.zeros(4).start(ca.SingleStream(stream))
    thread = threading.Thread(target=wait, args=(stream,))
    thread.start()
    assert advance_when_blocked(stepped, thread, pending(stream))
    thread.join(10)
    assert not thread.is_alive()
    assert future.done


def test_a_stream_that_only_waits_is_not_done_before(stepped):
    """Its wait is work like any other, though nothing else was ever enqueued there."""
    first, second = stepped.create_stream(), stepped.create_stream()
    ca.zeros(4).start(ca.SingleStream(first))
    second.wait(first.record())
    assert not second.is_done
    thread = threading.Thread(target=second.synchronize)
    thread.start()
    assert advance_when_blocked(stepped, thread, pending(first, second))
    thread.join(10)
    assert not thread.is_alive()
    assert second.is_done


def test_lent_memory_is_kept_by_what_uses_it(stepped):
    """Other libraries know it: the buffer itself is held until the device is past each use."""
    made = ca.zeros(4).start()
    stepped.driver.advance_all()
    tensor = made.result()
    assert not tensor._buffer.retained_on_use
    capsule = tensor.__dlpack__()
    assert tensor._buffer.retained_on_use
    future = ca.fill(tensor, 1.0).start()
    assert tensor._buffer in future._submission.retained
    stepped.driver.advance_all()
    assert future.done
    del capsule


class Uses(ca.DeviceOp):
    """An operation of one's own: it copies what it reads, or fills what it writes."""

    def __init__(self, tensor, out):
        super().__init__()
        self.tensor, self.out = tensor, out

    def execute(self, ctx):
        if self.out is None:
            ctx.driver.fill_async(ctx.write(self.tensor), b"\x07", 16, ctx.stream.handle)
        else:
            source, target = ctx.read(self.tensor), ctx.write(self.out)
            ctx.driver.copy_device_to_device_async(target, source, 16, ctx.stream.handle)


@pytest.mark.parametrize("writes", [True, False])
def test_own_operation_is_ordered(stepped, writes):
    """Behind earlier work on another stream, and later work there behind it."""
    first, second = (stepped.create_stream() for _ in range(2))
    made = ca.zip(ca.zeros(4, "int32"), ca.zeros(4, "int32")).start(ca.SingleStream(first))
    stepped.driver.advance_all()
    tensor, out = made.result()
    ca.fill(tensor, 1).start(ca.SingleStream(first))
    Uses(tensor, None if writes else out).start(ca.SingleStream(second))
    ca.fill(tensor, 2).start(ca.SingleStream(first))
    while stepped.driver.advance(second.handle):
        pass
    assert stepped.driver.is_blocked(second.handle)
    while stepped.driver.advance(first.handle):
        pass
    assert stepped.driver.is_blocked(first.handle)
    stepped.driver.advance_all()
    view = stepped.driver.memory.view
    assert view(tensor._address, 16).view("i4").tolist() == [2] * 4
    if not writes:
        assert view(out._address, 16).view("i4").tolist() == [1] * 4


class ClosedBetween(ca.DeviceOp):
    """Another thread closes the number of the stream between the operation's asking and its enqueueing."""

    def __init__(self, tensor, out):
        super().__init__()
        self.tensor, self.out = tensor, out

    def execute(self, ctx):
        source, target = ctx.read(self.tensor), ctx.write(self.out)
        with ctx.device._lock:
            ctx.stream._record()
        ctx.device.driver.copy_device_to_device_async(target, source, 16, ctx.stream.handle)


def in_a_context(tensor, out):
    """The same, by a function that is given the context."""

    def enqueue(ctx):
        ClosedBetween(tensor, out).execute(ctx)
        # on a stream of its own: nothing more is enqueued on this one
        return ca.zeros(2).schedule(ca.SingleStream(ctx.device.create_stream()))

    return ca.with_context(enqueue)


@pytest.mark.parametrize("of", ["what it reads", "what it writes"])
@pytest.mark.parametrize("how", [ClosedBetween, in_a_context])
def test_own_operation_that_enqueues_late_is_waited_for(stepped, of, how):
    first, second = (stepped.create_stream() for _ in range(2))
    made = ca.zip(ca.zeros(4, "int32"), ca.zeros(4, "int32")).start(ca.SingleStream(first))
    stepped.driver.advance_all()
    tensor, out = made.result()
    future = how(tensor, out).start(ca.SingleStream(second))
    ca.fill(tensor if of == "what it reads" else out, 2).start(ca.SingleStream(first))
    assert stepped.driver.advance(second.handle)  # the event of the number that was closed
    while stepped.driver.advance(first.handle):
        pass
    assert stepped.driver.is_blocked(first.handle)
    assert not future.done
    stepped.driver.advance_all()
    assert future.done


class Retains(ca.DeviceOp):
    """Enqueues nothing; keeps something until the device is here."""

    def __init__(self, thing):
        super().__init__()
        self.thing = thing

    def execute(self, ctx):
        ctx.retain(self.thing)
        self.thing = None


def test_what_is_retained_is_released_when_the_device_is_there(stepped):
    class Thing:
        pass

    stream = stepped.create_stream()
    tensor = ca.zeros(4).start(ca.SingleStream(stream))
    stepped.driver.advance_all()
    assert tensor.done
    thing = Thing()
    released = weakref.ref(thing)
    op = Retains(thing)
    del thing
    future = op.start(ca.SingleStream(stream))
    del op
    assert released() is not None
    stepped.driver.advance_all()
    assert future.done
    stepped.collect()
    assert released() is None


def test_looking_at_work_while_another_thread_closes_its_device_says_nothing(stepped):
    """The driver is gone by then, and who closes tells those who wait: see `Device._give_back`."""
    stream = stepped.create_stream()
    future = ca.zeros(4).start(ca.SingleStream(stream))
    (submission,) = pending(stream)()
    driver, stepped._driver = stepped._driver, None
    because, stepped._closed_because = stepped._closed_because, "it was given back"
    try:
        assert not submission.poll()
        assert not submission.poll(passed=True)
    finally:
        stepped._driver, stepped._closed_because = driver, because
    driver.advance_all()
    assert future.sync().shape == (4,)


def in_flight(stream, count):
    """So many submissions."""
    return [ca.zeros(4).start(ca.SingleStream(stream))._submission for _ in range(count)]


def slept_for(submission):
    """Is set when it is done, for which the stream's thread sleeps in the driver from now on."""
    told = threading.Event()
    assert submission.add_callback(told.set)
    while not submission.sleepers:
        pass
    return told


@pytest.mark.timeout(30)
@pytest.mark.parametrize("wait", ["block", "callback"])
def test_who_waits_for_earlier_work_does_not_wait_for_later(stepped, monkeypatch, wait):
    """The stream's thread sleeps in the driver for the later work already."""
    monkeypatch.setattr(_submission, "LOOK_S", 20.0)
    stepped.driver.notifies = False
    stream = stepped.create_stream()
    earlier, later = in_flight(stream, 2)
    told = {earlier: threading.Event(), later: slept_for(later)}
    if wait == "block":
        blocked = threading.Thread(target=lambda: (earlier.block(), told[earlier].set()))
        blocked.start()
    else:
        assert earlier.add_callback(told[earlier].set)
    while not earlier.sleepers:
        pass
    while not stepped.driver.event_query(earlier.event):
        stepped.driver.advance()
    assert told[earlier].wait(5)
    assert not told[later].is_set()
    stepped.driver.advance_all()
    assert told[later].wait(5)
    stream.close()
    while later.sleepers or earlier.sleepers:
        pass
    events = stepped._events + stepped._interrupting_events
    assert len(events) == len(set(events))


@pytest.mark.timeout(30)
def test_thread_that_sleeps_for_later_work_stays_where_there_is_none_for_earlier_work(stepped, monkeypatch):
    """Who waits for the earlier hears that at once, and the others are told as before."""
    stepped.driver.notifies = False
    stream = stepped.create_stream()
    submissions = in_flight(stream, 3)
    told = [threading.Event() for _ in submissions]
    for number in (1, 2):
        assert submissions[number].add_callback(told[number].set)
    while not submissions[1].sleepers:
        pass
    with monkeypatch.context() as patch:
        patch.setattr(_stream, "_thread", Refusing())
        with pytest.raises(RuntimeError, match="can't start new thread"):
            submissions[0].add_callback(told[0].set)
    for number in (1, 2):
        while not stepped.driver.event_query(submissions[number].event):
            stepped.driver.advance()
        assert told[number].wait(5)
    assert not told[0].is_set()
    stream.close()


@pytest.mark.timeout(30)
def test_thread_that_sleeps_on_is_replaced_when_another_can_be_had(stepped, monkeypatch):
    monkeypatch.setattr(_lookout, "_thread", Threadless())
    deaf = Deaf(stepped)
    stream = stepped.create_stream()
    Woken(stream)
    assert deaf.sleeping.wait(5)
    (asleep,) = look(stepped, set())
    stepped.driver.advance_all()
    later = Woken(stream)
    with monkeypatch.context() as patch:
        patch.setattr(_stream, "_thread", Refusing())
        assert look(stepped, {asleep}) == [asleep]
    assert look(stepped, {asleep}) == []
    stepped.driver.advance_all()
    assert later.wait(5)
    deaf.over.set()
    stream.close()


@pytest.mark.timeout(30)
def test_thread_that_was_replaced_leaves_the_bell_to_the_other(stepped, monkeypatch):
    """Where the driver does not let it sleep, too."""
    ended, refused = queue.SimpleQueue(), threading.Event()
    loop, sleep = ca.Stream._wait_loop, stepped.driver.event_synchronize

    def noted(stream, token):
        loop(stream, token)
        ended.put(token)

    def refused_at_the_end(event):
        if event == later.event and not refused.is_set():
            assert refused.wait(10)
            raise RuntimeError("as planned")
        sleep(event)

    monkeypatch.setattr(ca.Stream, "_wait_loop", noted)
    stepped.driver.event_synchronize = refused_at_the_end
    stepped.driver.notifies = False
    stream = stepped.create_stream()
    earlier, later = in_flight(stream, 2)
    told = {earlier: threading.Event(), later: slept_for(later)}
    replaced = stream._waiter
    assert earlier.add_callback(told[earlier].set)
    while not earlier.sleepers:
        pass
    stream._bell = idle = Idle()
    refused.set()
    assert ended.get(timeout=5) is replaced
    assert not idle.began.is_set()
    stepped.driver.advance_all()
    assert told[earlier].wait(5)
    assert told[later].wait(5)
    stream.close()
