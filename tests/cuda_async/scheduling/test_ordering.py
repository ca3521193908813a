"""Automatic ordering across streams, on the stepped device: what waits for what, and with how few driver calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async.driver import ArgumentBlock, FunctionInfo, HostFunction, HostImage
from cuda_async.errors import ClosedError, DriverError
from cuda_async.memory import Buffer
from cuda_async.scheduling import Stream, order_uses
from cuda_async.testing import stepped_device


class Work(HostFunction):
    """A kernel that notes in `ran` when it runs."""

    def __init__(self, ran: list, name: object) -> None:
        self._ran = ran
        self._name = name

    @property
    def info(self) -> FunctionInfo:
        return FunctionInfo(name="work", parameters=(), max_threads_per_block=1)

    def start(self, launch):
        self._ran.append(self._name)
        return
        yield


class Lab:
    """A stepped device with named work on it."""

    def __init__(self) -> None:
        self.device, self.controls = stepped_device()
        self.ran: list[object] = []

    def stream(self) -> Stream:
        return self.device.create_stream()

    def buffer(self, stream: Stream) -> Buffer:
        return self.device._allocate(64, stream)

    def use(self, name: object, stream: Stream, reads=(), writes=()) -> None:
        """Enqueue work that reads and writes buffers, as operations do."""
        controls = self.controls
        module = controls.module_load(HostImage(functions={"work": Work(self.ran, name)}))
        function = controls.module_function(module, "work")
        with self.device._lock:
            order_uses(stream, reads, writes)
            controls.launch(function, (1, 1, 1), (1, 1, 1), 0, stream.handle, ArgumentBlock(()))

    def finish(self) -> None:
        """Let the device do everything, and notice."""
        for stream in self.device._streams:
            stream._submit()
        self.controls.advance_all()
        self.device.collect()

    @property
    def waits(self) -> int:
        return self.controls.calls["stream_wait_event"]

    @property
    def records(self) -> int:
        return self.controls.calls["event_record"]

    def only(self, stream: Stream) -> list[object]:
        """What runs when nothing but `stream` may advance."""
        before = len(self.ran)
        while self.controls.advance(stream.handle):
            pass
        return self.ran[before:]


@pytest.fixture
def lab():
    lab = Lab()
    yield lab
    lab.controls.close()


def test_one_stream_costs_no_driver_call(lab):
    a = lab.stream()
    x, y = lab.buffer(a), lab.buffer(a)
    for n in range(5):
        lab.use(n, a, reads=[x], writes=[y])
        lab.use(-n, a, reads=[y], writes=[x])
    assert (lab.waits, lab.records) == (0, 0)


def test_read_waits_for_the_write(lab):
    a, b = lab.stream(), lab.stream()
    x = lab.buffer(a)
    lab.use("write", a, writes=[x])
    lab.use("read", b, reads=[x])
    assert lab.only(b) == []
    assert lab.controls.is_blocked(b.handle)
    assert lab.only(a) == ["write"]
    assert lab.only(b) == ["read"]
    assert (lab.waits, lab.records) == (1, 1)


def test_write_waits_for_the_read(lab):
    a, b = lab.stream(), lab.stream()
    x = lab.buffer(a)
    lab.use("fill", a, writes=[x])
    lab.use("read", b, reads=[x])
    lab.use("write", a, writes=[x])
    assert lab.only(a) == ["fill"]
    assert lab.only(b) == ["read"]
    assert lab.only(a) == ["write"]


def test_write_waits_for_the_write(lab):
    a, b = lab.stream(), lab.stream()
    x = lab.buffer(a)
    lab.use("first", a, writes=[x])
    lab.use("second", b, writes=[x])
    assert lab.only(b) == []
    lab.use("third", a, reads=[x])
    assert lab.only(a) == ["first"]
    assert lab.only(b) == ["second"]
    assert lab.only(a) == ["third"]


def test_reads_do_not_wait_for_each_other(lab):
    a, b, c = lab.stream(), lab.stream(), lab.stream()
    x = lab.buffer(a)
    lab.finish()
    before = lab.waits
    lab.use("b", b, reads=[x])
    lab.use("c", c, reads=[x])
    lab.use("a", a, reads=[x])
    assert lab.waits == before
    assert lab.only(c) == ["c"]


def test_write_waits_for_all_readers(lab):
    a, b, c, d = (lab.stream() for _ in range(4))
    x = lab.buffer(a)
    for name, stream in (("b", b), ("c", c), ("d", d)):
        lab.use(name, stream, reads=[x])
    lab.use("write", a, writes=[x])
    lab.only(a)
    assert lab.only(b) == ["b"]
    assert lab.only(d) == ["d"]
    assert lab.only(a) == [], "c has not read yet"
    assert lab.only(c) == ["c"]
    assert lab.only(a) == ["write"]


def test_other_memory_does_not_wait(lab):
    a, b = lab.stream(), lab.stream()
    x, y = lab.buffer(a), lab.buffer(b)
    lab.use("slow", a, writes=[x])
    lab.use("other", b, writes=[y])
    assert lab.only(b) == ["other"]


def test_wait_is_for_the_first_event_that_covers(lab):
    a, b = lab.stream(), lab.stream()
    x, y = lab.buffer(a), lab.buffer(a)
    lab.use("x", a, writes=[x])
    a._submit()
    lab.use("y", a, writes=[y])
    a._submit()
    lab.use("read x", b, reads=[x])
    assert lab.records == 2, "no third event is needed"
    while "x" not in lab.ran:
        lab.controls.advance(a.handle)
    lab.controls.advance(a.handle)
    assert "y" not in lab.ran
    assert lab.only(b) == ["read x"]


def test_event_is_recorded_once_for_all_who_wait(lab):
    a, b, c, d = (lab.stream() for _ in range(4))
    x = lab.buffer(a)
    lab.use("write", a, writes=[x])
    for stream in (b, c, d):
        lab.use("read", stream, reads=[x])
    assert (lab.waits, lab.records) == (3, 1)


def test_wait_is_not_repeated(lab):
    a, b = lab.stream(), lab.stream()
    x, y = lab.buffer(a), lab.buffer(a)
    lab.use("x and y", a, writes=[x, y])
    for _ in range(3):
        lab.use("read", b, reads=[x, y])
    assert (lab.waits, lab.records) == (1, 1)


def test_later_wait_covers_earlier_work(lab):
    a, b = lab.stream(), lab.stream()
    x, y = lab.buffer(a), lab.buffer(a)
    lab.use("x", a, writes=[x])
    a._submit()
    lab.use("y", a, writes=[y])
    lab.use("read y", b, reads=[y])
    lab.use("read x", b, reads=[x])
    assert lab.waits == 1


def test_work_that_is_done_is_not_waited_for(lab):
    a, b = lab.stream(), lab.stream()
    x = lab.buffer(a)
    lab.use("write", a, writes=[x])
    lab.finish()
    lab.use("read", b, reads=[x])
    assert lab.waits == 0


def test_closed_stream_is_not_waited_for(lab):
    a, b = lab.stream(), lab.stream()
    x = lab.buffer(a)
    lab.use("write", a, writes=[x])
    lab.finish()
    a.close()
    lab.use("read", b, reads=[x])
    assert lab.waits == 0
    assert lab.only(b) == ["read"]
    with pytest.raises(ClosedError, match="is closed; create another"):
        a.record()


def test_memory_that_is_only_read_forgets_streams_that_are_done(lab):
    """Weights, read by a stream for each request: neither streams that were closed nor idle ones are kept."""
    first, keeps = lab.stream(), lab.stream()
    x = lab.buffer(first)
    lab.finish()
    lab.use("first", first, reads=[x])
    for number in range(100):
        stream = lab.stream()
        lab.use(number, stream, reads=[x])
        stream._submit()
        lab.only(stream)
        stream._refresh()
        if number % 2:
            stream.close()
    lab.use("last", keeps, reads=[x])
    assert len(x.usage.more_reads) <= 9
    # What is not done is still waited for.
    writer = lab.stream()
    lab.use("write", writer, writes=[x])
    assert lab.only(writer) == []
    lab.finish()
    assert lab.ran.index("write") > max(lab.ran.index("first"), lab.ran.index("last"))


def test_allocation_on_another_stream_is_waited_for(lab):
    a, b = lab.stream(), lab.stream()
    x = lab.buffer(a)
    lab.use("write", b, writes=[x])
    assert lab.only(b) == []
    lab.only(a)
    assert lab.only(b) == ["write"]


# ---------------------------------------------------------------------------------------- freeing


def test_freeing_waits_for_all_readers(lab):
    a, b, c = lab.stream(), lab.stream(), lab.stream()
    x = lab.buffer(a)
    address = x.address
    for name, stream in (("a", a), ("b", b), ("c", c)):
        lab.use(name, stream, reads=[x])
    del x
    lab.device.collect()
    lab.only(a)
    lab.only(b)
    assert lab.controls.freed == []
    lab.only(c)
    lab.controls.advance_all()
    assert lab.controls.freed == [address]


def test_freeing_costs_nothing_on_one_stream(lab):
    a = lab.stream()
    x = lab.buffer(a)
    lab.use("write", a, writes=[x])
    lab.use("read", a, reads=[x])
    del x
    lab.device.collect()
    assert (lab.waits, lab.records) == (0, 0)
    assert lab.device._streams == [a]
    assert lab.device.memory_stats().used_bytes == 0


def test_next_allocation_frees_what_was_dropped(lab):
    a = lab.stream()
    x = lab.buffer(a)
    del x
    y = lab.buffer(a)
    assert lab.controls.calls["memory_free_async"] == 1
    lab.finish()
    assert y.address not in lab.controls.freed or lab.controls.freed == [y.address]


def test_freeing_holds_up_no_reader(lab):
    """Nor does it hand an error of one reader on to another."""
    a, b = lab.stream(), lab.stream()
    x = lab.buffer(a)
    lab.use("read", b, reads=[x])
    lab.only(a)
    lab.only(b)
    lab.use("slow", a, reads=[x])
    del x
    lab.device.collect()
    lab.use("next", b)
    assert lab.only(b) == ["next"]


def test_memory_of_a_closed_stream_is_freed(lab):
    a = lab.stream()
    x = lab.buffer(a)
    lab.finish()
    a.close()
    address = x.address
    del x
    lab.device.collect()
    lab.controls.advance_all()
    assert lab.controls.freed == [address]
    assert lab.device.memory_stats().used_bytes == 0


def test_free_that_a_capture_forbids_is_tried_again(lab):
    a = lab.stream()
    x = lab.buffer(a)
    address = x.address
    refusal = DriverError("cuMemFreeAsync", 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not now")
    lab.controls.fail_next("memory_free_async", refusal)
    del x
    lab.device.collect()
    assert lab.device.memory_stats().used_bytes == 0
    lab.controls.advance_all()
    assert lab.controls.freed == [address]


def test_freed_memory_is_poisoned_first(monkeypatch):
    monkeypatch.setenv("CUDA_ASYNC_POISON_FREED", "1")
    lab = Lab()
    a, b = lab.stream(), lab.stream()
    x = lab.buffer(a)
    address = x.address
    lab.use("read", b, reads=[x])
    del x
    lab.device.collect()
    assert lab.controls.calls["fill_async"] == 1
    while lab.controls.pending() > 1:
        lab.controls.advance()
    assert lab.ran == ["read"]
    assert bytes(lab.controls.memory.view(address, 64)) == b"\xdd" * 64
    lab.controls.advance_all()
    assert lab.controls.freed == [address]
    lab.controls.close()


# --------------------------------------------------------------------------------------- any program

STREAMS, BUFFERS = 3, 3
PROGRAM = st.lists(
    st.one_of(
        st.tuples(
            st.just("use"),
            st.integers(0, STREAMS - 1),
            st.frozensets(st.integers(0, BUFFERS - 1), max_size=2),
            st.frozensets(st.integers(0, BUFFERS - 1), max_size=1),
        ),
        st.tuples(st.just("submit"), st.integers(0, STREAMS - 1)),
        st.tuples(st.just("advance"), st.integers(0, STREAMS - 1)),
        st.tuples(st.just("retire")),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(PROGRAM, st.lists(st.integers(0, STREAMS - 1), max_size=60))
def test_conflicting_work_runs_in_the_order_it_was_enqueued(program, schedule):
    """In whatever order the device advances its streams."""
    lab = Lab()
    streams = [lab.stream() for _ in range(STREAMS)]
    buffers = [lab.buffer(streams[n % STREAMS]) for n in range(BUFFERS)]
    used: list[tuple[frozenset[int], frozenset[int]]] = []
    for action, *rest in program:
        if action == "use":
            number, reads, writes = rest
            lab.use(len(used), streams[number], [buffers[n] for n in reads], [buffers[n] for n in writes])
            used.append((reads, writes))
        elif action == "submit":
            streams[rest[0]]._submit()
        elif action == "advance":
            lab.controls.advance(streams[rest[0]].handle)
        else:
            lab.device.collect()
    for number in schedule:
        lab.controls.advance(streams[number].handle)
    lab.finish()
    position = {name: place for place, name in enumerate(lab.ran)}
    assert len(position) == len(used)
    for later, (reads, writes) in enumerate(used):
        for earlier in range(later):
            before_reads, before_writes = used[earlier]
            if writes & (before_reads | before_writes) or reads & before_writes:
                assert position[earlier] < position[later]
    lab.controls.close()
