"""The engine: order within and across queues, failures, fairness; stepped where possible, threaded where needed."""

import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async.driver.host._engine import Engine
from cuda_async.driver.host._entries import NOT_RUN, Entry, EventRecord, WaitEntry
from cuda_async.driver.host._order import FairOrder, SteppedOrder
from cuda_async.errors import KernelError


class Work(Entry):
    """Appends its name to a log; in `steps` steps; raises at the end when told."""

    def __init__(self, log, name, steps=0, error=None):
        self.log, self.name, self.steps, self.error = log, name, steps, error

    def start(self):
        if self.steps:
            return self.run()
        self.finish()
        return None

    def run(self):
        for i in range(self.steps):
            self.log.append(f"{self.name}{i}")
            yield
        self.finish()

    def finish(self):
        self.log.append(self.name)
        if self.error is not None:
            raise self.error


class Bookkeeping(Work):
    skippable = False


@pytest.fixture
def engine():
    return Engine(SteppedOrder(), threaded=False)


@pytest.fixture
def threaded():
    engine = Engine()
    yield engine
    engine.close()


def run(engine):
    while True:
        try:
            engine.step()
        except LookupError:
            return


def test_entries_run_first_in_first_out(engine):
    log, queue = [], engine.add_queue()
    for name in "abcd":
        engine.enqueue(queue, Work(log, name, steps=ord(name) % 3))
    run(engine)
    assert [name for name in log if len(name) == 1] == ["a", "b", "c", "d"]


def test_queues_without_events_are_independent(engine):
    log, one, two = [], engine.add_queue(), engine.add_queue()
    engine.enqueue(one, Work(log, "a"))
    engine.enqueue(two, Work(log, "b"))
    engine.step(two)
    assert log == ["b"]


def test_wait_holds_a_queue_until_the_record(engine):
    log, one, two, record = [], engine.add_queue(), engine.add_queue(), EventRecord()
    engine.enqueue(one, Work(log, "a"))
    engine.enqueue(one, record)
    engine.enqueue(two, WaitEntry(record))
    engine.enqueue(two, Work(log, "b"))
    with pytest.raises(LookupError, match="waits for an event"):
        engine.step(two)
    engine.step(one)
    assert not engine.is_ready(two)
    engine.step(one)
    assert record.done
    engine.step(two)
    engine.step(two)
    assert log == ["a", "b"]


def test_wait_for_a_done_record_passes(engine):
    log, one, two, record = [], engine.add_queue(), engine.add_queue(), EventRecord()
    engine.enqueue(one, record)
    engine.step(one)
    engine.enqueue(two, WaitEntry(record))
    engine.enqueue(two, Work(log, "b"))
    run(engine)
    assert log == ["b"]


def test_wait_across_engines():
    """A record of one engine wakes a queue of another, threaded one."""
    stepped, other = Engine(SteppedOrder(), threaded=False), Engine()
    log, record = [], EventRecord()
    one, two = stepped.add_queue(), other.add_queue()
    stepped.enqueue(one, record)
    other.enqueue(two, WaitEntry(record))
    other.enqueue(two, Work(log, "b"))
    assert log == []
    stepped.step(one)
    other.wait_queue(two)
    assert log == ["b"]
    other.close()


@st.composite
def programs(draw):
    """Per queue a list of actions; waits name an event, records too."""
    queues = draw(st.integers(1, 4))
    length = draw(st.integers(1, 30))
    return [
        (
            draw(st.integers(0, queues - 1)),
            draw(st.sampled_from(["work", "record", "wait"])),
            draw(st.integers(0, 3)),
        )
        for _ in range(length)
    ]


@given(programs(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_any_order_respects_every_dependency(program, random):
    """Whatever queue is chosen at each step: FIFO holds, and work after a wait comes after what the record covers."""
    engine = Engine(SimpleNamespace(next_queue=random.choice), threaded=False)
    queues = [engine.add_queue() for _ in range(4)]
    log, last_record = [], {}
    before = {i: set() for i in range(4)}  # what must come before the next work of a queue
    needs = {}
    for i, (q, kind, event) in enumerate(program):
        if kind == "work":
            engine.enqueue(queues[q], Work(log, i, steps=0))
            needs[i] = set(before[q])
            before[q].add(i)
        elif kind == "record":
            record = EventRecord()
            engine.enqueue(queues[q], record)
            last_record[event] = (record, set(before[q]))
        elif event in last_record:
            record, covered = last_record[event]
            engine.enqueue(queues[q], WaitEntry(record))
            before[q] |= covered
    run(engine)
    assert sorted(log) == sorted(needs)
    position = {name: i for i, name in enumerate(log)}
    assert all(position[a] < position[b] for b, earlier in needs.items() for a in earlier)


# -------------------------------------------------------------------------------- failures


def fail(log, error=None):
    return Work(log, "bad", error=error or ZeroDivisionError("no"))


def test_failure_skips_up_to_the_next_record(engine):
    log, queue = [], engine.add_queue()
    first, second = EventRecord(), EventRecord()
    for entry in (
        fail(log),
        Work(log, "skipped"),
        Bookkeeping(log, "books"),
        first,
        Work(log, "after"),
        second,
    ):
        engine.enqueue(queue, entry)
    run(engine)
    assert log == ["bad", "books", "after"]
    with pytest.raises(KernelError, match="ZeroDivisionError: no") as caught:
        engine.wait_record(first)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    engine.wait_record(second)


class Mute(Exception):
    """An error of somebody else's that does not even let itself be told."""

    def refuse(self, *_):
        raise LookupError("not to be had")

    __str__ = __repr__ = refuse
    __traceback__ = __context__ = __notes__ = property(refuse, refuse)


def in_a_ring():
    first, second = ValueError("first"), KeyError("second")
    first.__context__, second.__context__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Mute(), "Mute, which cannot be told: its text is a LookupError"),
        (ExceptionGroup("several", [Mute()]), "ExceptionGroup: several"),
        (in_a_ring(), "ValueError: first"),
    ],
    ids=["mute", "group", "ring"],
)
def test_failure_is_told_whatever_the_error_is(threaded, error, told):
    queue, record = threaded.add_queue(), EventRecord()
    threaded.enqueue(queue, fail([], error))
    threaded.enqueue(queue, record)
    with pytest.raises(KernelError, match=rf"work failed on the host device: {told}") as caught:
        threaded.wait_record(record)
    assert caught.value.__cause__ is error


def test_record_raises_the_same_error_each_time(engine):
    """A copy each time, for an error that is raised keeps everything alive that it comes through."""
    queue, record = engine.add_queue(), EventRecord()
    original = KernelError("broken", "kernel")
    original.__cause__ = ValueError("cause")
    original.add_note("note")
    engine.enqueue(queue, fail([], original))
    engine.enqueue(queue, record)
    run(engine)
    errors, depths = [], []
    for _ in range(3):
        with pytest.raises(KernelError, match="broken") as caught:
            engine.wait_record(record)
        errors.append(caught.value)
        depths.append(len(caught.traceback))
    assert len({id(error) for error in (original, *errors)}) == 4
    for error in errors:
        assert (error.kernel, error.__cause__, error.__notes__) == ("kernel", original.__cause__, ["note"])
    assert depths[0] == depths[1] == depths[2], "the traceback grows"


def test_waiting_queue_inherits_the_failure(engine):
    log, one, two = [], engine.add_queue(), engine.add_queue()
    record, inherited, clean = EventRecord(), EventRecord(), EventRecord()
    engine.enqueue(one, fail(log))
    engine.enqueue(one, record)
    for entry in (
        Work(log, "before"),
        WaitEntry(record),
        Work(log, "skipped"),
        inherited,
        Work(log, "later"),
        clean,
    ):
        engine.enqueue(two, entry)
    run(engine)
    assert sorted(log) == ["bad", "before", "later"]
    assert clean.failure is None
    reported = two.reported
    assert not reported.observed
    with pytest.raises(KernelError, match="ZeroDivisionError: no") as own:
        engine.wait_record(record)
    assert reported.observed, "it is one failure"
    assert NOT_RUN not in own.value.__notes__
    for _ in range(2):
        with pytest.raises(KernelError, match="ZeroDivisionError: no") as caught:
            engine.wait_record(inherited)
        assert caught.value.__notes__ == [*own.value.__notes__, NOT_RUN]


def test_failure_that_is_handed_on_twice_says_so_once(engine):
    queues = [engine.add_queue() for _ in range(3)]
    records = [EventRecord() for _ in queues]
    engine.enqueue(queues[0], fail([]))
    engine.enqueue(queues[0], records[0])
    for before, record, queue in zip(records, records[1:], queues[1:]):
        engine.enqueue(queue, WaitEntry(before))
        engine.enqueue(queue, record)
    run(engine)
    with pytest.raises(KernelError) as caught:
        engine.wait_record(records[2])
    assert caught.value.__notes__.count(NOT_RUN) == 1


def test_record_before_the_failure_is_clean(engine):
    queue, record = engine.add_queue(), EventRecord()
    engine.enqueue(queue, record)
    engine.enqueue(queue, fail([]))
    run(engine)
    engine.wait_record(record)
    with pytest.raises(KernelError):
        engine.wait_queue(queue)


def test_synchronize_tells_an_unobserved_failure_once(engine):
    log, queue, record = [], engine.add_queue(), EventRecord()
    engine.enqueue(queue, fail(log))
    engine.enqueue(queue, record)
    run(engine)
    with pytest.raises(KernelError):
        engine.wait_queue(queue)
    engine.wait_queue(queue)


def test_synchronize_is_silent_when_the_event_told(engine):
    queue, record = engine.add_queue(), EventRecord()
    engine.enqueue(queue, fail([]))
    engine.enqueue(queue, record)
    run(engine)
    with pytest.raises(KernelError):
        engine.wait_record(record)
    engine.wait_queue(queue)


def test_synchronize_without_a_record_makes_the_queue_usable(engine):
    log, queue = [], engine.add_queue()
    engine.enqueue(queue, fail(log))
    run(engine)
    with pytest.raises(KernelError):
        engine.wait_queue(queue)
    engine.enqueue(queue, Work(log, "next"))
    run(engine)
    assert log == ["bad", "next"]


def test_failing_step_ends_the_entry(engine):
    log, queue, record = [], engine.add_queue(), EventRecord()
    engine.enqueue(queue, Work(log, "k", steps=2, error=KernelError("late")))
    engine.enqueue(queue, record)
    run(engine)
    assert log == ["k0", "k1", "k"]
    assert str(record.failure.error) == "late"


@pytest.mark.parametrize("problem", [SystemExit(3), GeneratorExit(), StopAsyncIteration()])
def test_odd_exceptions_do_not_stop_the_engine(threaded, problem):
    queue, record = threaded.add_queue(), EventRecord()
    threaded.enqueue(queue, Work([], "k", error=problem))
    threaded.enqueue(queue, record)
    with pytest.raises(KernelError, match=type(problem).__name__):
        threaded.wait_record(record)
    log = []
    threaded.enqueue(queue, Work(log, "next"))
    threaded.wait_queue(queue)
    assert log == ["next"]


# -------------------------------------------------------------------------------- which goes next


def queue_like(name, **fields):
    return SimpleNamespace(
        **{"name": name, "priority": 0, "used_s": 0.0, "ready_since": time.perf_counter(), **fields}
    )


def test_fair_order_prefers_priority_then_least_time():
    order = FairOrder(patience_s=1000)
    low, high = queue_like("low", used_s=0), queue_like("high", priority=-1, used_s=5)
    used, fresh = queue_like("used", used_s=2), queue_like("fresh", used_s=1)
    assert order.next_queue([low, high]) is high
    assert order.next_queue([used, fresh]) is fresh
    assert order.next_queue([used]) is used


def test_fair_order_lets_nobody_wait_long():
    starved = queue_like("starved", ready_since=time.perf_counter() - 1)
    assert FairOrder().next_queue([queue_like("high", priority=-5), starved]) is starved


class Turns(Work):
    """Logs each step; each takes at least `step_s`."""

    def __init__(self, log, name, steps, step_s):
        super().__init__(log, name, steps)
        self.step_s = step_s

    def run(self):
        for _ in range(self.steps):
            until = time.perf_counter() + self.step_s
            while time.perf_counter() < until:
                pass
            self.log.append(self.name)
            yield


@pytest.mark.timing
def test_time_is_shared_fairly(threaded):
    """Steps of one queue take four times as long: it gets about a quarter of the steps."""
    log, one, two = [], threaded.add_queue(), threaded.add_queue()
    gate = threading.Event()
    threaded.enqueue(one, Gate(gate))
    threaded.enqueue(one, Turns(log, "slow", 20, 0.002))
    threaded.enqueue(two, Turns(log, "quick", 80, 0.0005))
    gate.set()
    threaded.wait_queue(one)
    threaded.wait_queue(two)
    half = log[: len(log) // 2]
    assert 5 <= half.count("slow") <= 20, half


class Gate(Entry):
    """Steps until an event is set: holds its queue, not the engine."""

    def __init__(self, event):
        self.event = event

    def start(self):
        while not self.event.is_set():
            yield


@pytest.mark.timing
def test_high_priority_goes_first_but_low_is_served(threaded):
    log, gate = [], threading.Event()
    low, high = threaded.add_queue(priority=0), threaded.add_queue(priority=-5)
    threaded.enqueue(high, Gate(gate))
    threaded.enqueue(low, Gate(gate))
    threaded.enqueue(low, Turns(log, "low", 20, 0.001))
    threaded.enqueue(high, Turns(log, "high", 60, 0.001))
    gate.set()
    threaded.wait_queue(high)
    served = log.count("low")
    threaded.wait_queue(low)
    assert 0 < served < 20, "high priority has to finish first, and low must not starve"


def test_idle_queue_saves_no_time(engine):
    """A queue that was idle for long does not push the others aside afterwards."""
    busy, idle = engine.add_queue(), engine.add_queue()
    engine.enqueue(busy, Turns([], "busy", 50, 0.0002))
    for _ in range(40):
        engine.step(busy)
    engine.enqueue(idle, Work([], "x"))
    assert idle.used_s == pytest.approx(busy.used_s)


# -------------------------------------------------------------------------------- the thread


def test_immediate_entry_on_an_empty_queue_is_done_at_once(threaded):
    queue, record = threaded.add_queue(), EventRecord()
    threaded.enqueue(queue, record)
    assert record.done


def test_immediate_entry_behind_work_waits_its_turn(threaded):
    queue, record, gate = threaded.add_queue(), EventRecord(), threading.Event()
    threaded.enqueue(queue, Gate(gate))
    threaded.enqueue(queue, record)
    assert not record.done
    gate.set()
    threaded.wait_record(record)


def test_other_queue_finishes_while_one_is_held(threaded):
    gate, log = threading.Event(), []
    held, free = threaded.add_queue(), threaded.add_queue()
    threaded.enqueue(held, Gate(gate))
    threaded.enqueue(free, Work(log, "a"))
    threaded.wait_queue(free)
    assert log == ["a"]
    assert held.entries
    gate.set()
    threaded.wait_queue(held)


def test_many_threads_enqueue_at_once(threaded):
    log, queues = [], [threaded.add_queue() for _ in range(4)]

    def enqueue(number):
        for i in range(200):
            threaded.enqueue(queues[number % 4], Work(log, (number, i)))

    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for queue in queues:
        threaded.wait_queue(queue)
    for number in range(8):
        assert [i for n, i in log if n == number] == list(range(200))


def test_removed_queue_still_runs(threaded):
    gate, log = threading.Event(), []
    queue, record = threaded.add_queue(), EventRecord()
    for entry in (Gate(gate), Work(log, "a"), record):
        threaded.enqueue(queue, entry)
    threaded.remove_queue(queue)
    gate.set()
    threaded.wait_record(record)
    assert log == ["a"]
    assert not threaded.queues_of(None)


def test_close_wakes_those_who_wait():
    engine, errors = Engine(), []
    queue, record = engine.add_queue(), EventRecord()
    engine.enqueue(queue, Gate(threading.Event()))
    engine.enqueue(queue, record)
    waiting = threading.Barrier(3)

    def wait(call, argument):
        waiting.wait()
        try:
            call(argument)
        except Exception as error:
            errors.append(type(error).__name__)

    threads = [
        threading.Thread(target=wait, args=(engine.wait_record, record)),
        threading.Thread(target=wait, args=(engine.wait_queue, queue)),
    ]
    for thread in threads:
        thread.start()
    waiting.wait()
    engine.close()
    for thread in threads:
        thread.join(10)
    assert errors == ["ClosedError", "ClosedError"]


def test_engine_thread_is_a_daemon_and_ends_with_close():
    engine = Engine()
    queue = engine.add_queue()
    engine.enqueue(queue, Work([], "a"))
    engine.wait_queue(queue)
    thread = engine._thread
    assert thread.daemon
    engine.close()
    assert not thread.is_alive()


@pytest.mark.timeout(20)
def test_callback_that_raises_ends_no_work_but_its_own(monkeypatch):
    """All host devices share the thread: another one takes its place."""
    raised = []
    monkeypatch.setattr(threading, "excepthook", lambda said: raised.append(said.exc_value))
    engine, log, go_on = Engine(), [], threading.Event()
    queue, record = engine.add_queue(), EventRecord()
    error = RuntimeError("of a callback")

    def fails():
        raise error

    engine.enqueue(queue, Gate(go_on))
    engine.enqueue(queue, record)
    assert engine.notify(record, fails)
    engine.enqueue(queue, Work(log, "a", steps=2))
    go_on.set()
    engine.wait_queue(queue)
    assert log == ["a0", "a1", "a"]
    assert raised == [error]
    engine.enqueue(queue, Work(log, "b"))
    engine.wait_queue(queue)
    assert log[3:] == ["b"]
    engine.close()
