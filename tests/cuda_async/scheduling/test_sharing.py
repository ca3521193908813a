"""Memory lent to and borrowed from other libraries on a CUDA device.

The device here is the stepped one under the other's name, with the calls for foreign streams; tests on a GPU are in
`test_dlpack_on_gpu.py`.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver import StreamHandle
from cuda_async.driver.host import HostDriver
from cuda_async.errors import DriverError
from cuda_async.ops import ExecutionContext
from cuda_async.scheduling import Device, SingleStream


class ForeignDriver(HostDriver):
    """A stepped device on which other libraries have streams too. Touching a destroyed stream is an error."""

    def __init__(self) -> None:
        # other libraries work here without asking anybody: nothing for the checking mode
        super().__init__(stepped=True, memory_bytes=1 << 20, check="")
        self.theirs: set[int] = set()
        self.loans: dict[int, int] = {}
        self.context_events = 0
        self.captured: set[int] = set()
        while super().stream_create() < 8:  # addresses 0 to 2 have meanings of their own
            pass
        self.legacy = self.their_stream()
        self._hidden = super().stream_create()

    def their_stream(self) -> StreamHandle:
        handle = super().stream_create()
        self.theirs.add(handle)
        return handle

    def their_stream_destroy(self, handle: StreamHandle) -> None:
        self.theirs.remove(handle)
        super().stream_destroy(handle)

    def stream_borrow(self, address: int) -> StreamHandle:
        handle = self.legacy if address == 1 else StreamHandle(address)
        assert handle in self.theirs, "a stream that does not exist"
        self.loans[handle] = self.loans.get(handle, 0) + 1
        return handle

    def stream_destroy(self, stream: StreamHandle) -> None:
        if stream in self.loans:
            self.loans[stream] -= 1
            if not self.loans[stream]:
                del self.loans[stream]
        else:
            super().stream_destroy(stream)

    def stream_is_capturing(self, stream: StreamHandle) -> bool:
        assert stream in self._streams, "a stream that does not exist"
        return stream in self.captured

    def event_record_context(self, event) -> None:
        self.context_events += 1
        if self.captured:
            raise DriverError("cuCtxRecordEvent", 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not now")
        for stream in list(self._streams):
            if stream != self._hidden:
                behind = self.event_create()
                HostDriver.event_record(self, behind, stream)
                HostDriver.stream_wait_event(self, self._hidden, behind)
        HostDriver.event_record(self, event, self._hidden)

    def pointer_device(self, address: int) -> int:
        return 0


class Outside(weakref.WeakSet):
    """What other libraries know, changed under the device's lock only."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def add(self, item):
        assert self.device._lock.locked()
        super().add(item)


class Lab:
    def __init__(self) -> None:
        self.driver = ForeignDriver()
        self.device = Device._make("cuda", 0, self.driver)
        self.stream = self.device.create_stream()
        self.policy = SingleStream(self.stream)
        self.other = self.device.create_stream()
        self.device._outside = Outside(self.device)
        for name in ("stream_wait_event", "stream_borrow"):
            setattr(self.driver, name, self._under_the_lock(getattr(self.driver, name)))

    def _under_the_lock(self, call):
        """Where it is ours, it has the device's lock."""

        def looks(*args):
            ours = sys._getframe(1).f_globals["__name__"].startswith("cuda_async")
            assert not ours or self.device._lock.locked()
            return call(*args)

        return looks

    def tensor(self, value: int = 0) -> ca.Tensor:
        t = ExecutionContext(self.device, self.stream).empty((4,), "int32")
        self.fill(t, value)
        return t

    def fill(self, t: ca.Tensor, value: int, stream: ca.Stream | None = None) -> None:
        ca.fill(t, value).start(self.policy if stream is None else SingleStream(stream))

    def they_fill(self, handle: StreamHandle, address: int, value: int) -> None:
        """Work of theirs on 4 ints."""
        self.driver.fill_async(address, value.to_bytes(4, "little"), 4, handle)

    def run(self, handle: int) -> None:
        """Let one stream go as far as it can."""
        while self.driver.advance(StreamHandle(handle)):
            pass

    def contents(self, address: int) -> list[int]:
        return self.driver.memory.view(address, 16).view(np.int32).tolist()

    def finish(self) -> None:
        gc.collect()
        for _ in range(2):
            self.device.collect()
            for stream in list(self.device._streams):
                stream._submit()
            self.driver.advance_all()


@pytest.fixture
def current_stream(monkeypatch):
    """current_stream(library, address): that library is loaded and has this current stream."""

    def install(library: str, address: int, *, external: bool = False) -> object:
        if library == "torch":
            stream = SimpleNamespace(cuda_stream=int(address), stream_id=int(address) if external else 3)
            cuda = SimpleNamespace(is_initialized=lambda: True, current_stream=lambda device: stream)
        else:
            own, borrowed = type("Stream", (), {}), type("ExternalStream", (), {})
            stream = borrowed() if external else own()
            stream.ptr = int(address)
            cuda = SimpleNamespace(Stream=own, get_current_stream=lambda device: stream)
        monkeypatch.setitem(sys.modules, library, SimpleNamespace(cuda=cuda))
        return stream

    for library in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, library, raising=False)
    return lambda library, address, **more: (
        install(library, address, **more) if library in ("torch", "cupy") else None
    )


@pytest.fixture
def lab():
    lab = Lab()
    yield lab
    assert not lab.driver.loans or any(s._borrowed for s in lab.device._streams)
    lab.driver.close()


class Theirs:
    """Another library's array on the same memory."""

    def __init__(
        self, address: int, shape=(4,), *, stream: int | None = None, version: int = 3, **changes
    ) -> None:
        self.__cuda_array_interface__ = {
            "version": version,
            "shape": shape,
            "typestr": "<i4",
            "data": (address, False),
            "strides": None,
            **({} if stream is None else {"stream": stream}),
            **changes,
        }


def header(capsule) -> tuple[int, int]:
    """Device type and number in an unversioned capsule: they follow the data pointer."""
    get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    found = (ctypes.c_int32 * 2).from_address(get_pointer(capsule, b"dltensor") + 8)
    return found[0], found[1]


# ---------------------------------------------------------------------------------------- lending


def test_exported_tensor_is_on_its_cuda_device(lab):
    t = lab.tensor()
    assert t.__dlpack_device__() == (2, 0)
    capsule = t.__dlpack__()
    assert header(capsule) == (2, 0)


@pytest.mark.parametrize("named", ["none", "legacy", "per-thread", "stream"])
def test_consumers_stream_waits_for_our_write(lab, named):
    theirs = lab.driver.their_stream() if named == "stream" else lab.driver.legacy
    t = lab.tensor(7)
    given = {"none": None, "legacy": 1, "per-thread": 2, "stream": int(theirs)}[named]
    capsule = t.__dlpack__(stream=given)
    lab.they_fill(theirs, t._address, 9)
    lab.run(theirs)
    assert lab.driver.is_blocked(theirs)
    lab.run(lab.stream.handle)
    assert lab.contents(t._address) == [7] * 4
    lab.run(theirs)
    assert lab.contents(t._address) == [9] * 4
    assert not lab.driver.loans
    del capsule


def test_no_ordering_is_asked_for(lab):
    t = lab.tensor(7)
    calls = lab.driver.calls["stream_wait_event"]
    capsule = t.__dlpack__(stream=-1)
    assert lab.driver.calls["stream_wait_event"] == calls
    del capsule


def test_consumer_on_one_of_our_streams(lab):
    t = lab.tensor(7)
    capsule = t.__dlpack__(stream=int(lab.other.handle))
    lab.run(lab.other.handle)
    assert lab.driver.is_blocked(lab.other.handle)
    same = t.__dlpack__(stream=int(lab.stream.handle))
    del capsule, same


@pytest.mark.parametrize("stream", [0, -2])
def test_ambiguous_streams_are_refused(lab, stream):
    with pytest.raises(BufferError, match=rf"stream is {stream}; expected None or 1 \(legacy default\)"):
        lab.tensor().__dlpack__(stream=stream)


@pytest.mark.parametrize("kind", ["default", "torch", "cupy", "unknown"])
def test_freeing_waits_for_the_consumers_work(lab, current_stream, kind):
    theirs = lab.driver.legacy if kind == "default" else lab.driver.their_stream()
    current_stream(kind, theirs)
    t = lab.tensor()
    address = t._address
    capsule = t.__dlpack__(stream=1 if kind == "default" else int(theirs))
    lab.they_fill(theirs, address, 9)
    del t, capsule
    gc.collect()
    lab.device.collect(everything=kind == "unknown")
    for handle in list(lab.driver._streams):
        if handle != theirs:
            lab.run(handle)
    assert not lab.driver.freed
    lab.driver.advance_all()
    assert lab.driver.freed == [address]
    assert lab.driver.context_events == (kind == "unknown")


@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_stream_that_another_library_only_borrowed_is_unknown(lab, current_stream, kind):
    theirs = lab.driver.their_stream()
    current_stream(kind, theirs, external=True)
    t = lab.tensor()
    capsule = t.__dlpack__(stream=int(theirs))
    assert t._buffer.usage.lent == {theirs: None}
    del capsule


def test_cupys_stream_is_kept(lab, current_stream):
    theirs = lab.driver.their_stream()
    stream = current_stream("cupy", theirs)
    t = lab.tensor()
    capsule = t.__dlpack__(stream=int(theirs))
    assert t._buffer.usage.lent == {theirs: stream}
    del capsule


def test_consumer_may_destroy_its_stream(lab):
    """Naming it again would end the process; its work in flight is waited for all the same."""
    theirs = lab.driver.their_stream()
    t = lab.tensor()
    address = t._address
    capsule = t.__dlpack__(stream=int(theirs))
    lab.driver.their_stream_destroy(theirs)
    lab.fill(t, 3)
    del t, capsule
    lab.finish()
    assert not lab.driver.freed
    assert lab.driver.context_events == 0, "nobody has asked for something that breaks captures"
    assert lab.device.memory_stats().used_bytes == 16
    lab.device.trim()
    lab.finish()
    assert lab.driver.freed == [address]
    assert lab.device.memory_stats().used_bytes == 0


@pytest.mark.parametrize("shortage", ["limit", "memory"])
def test_held_memory_is_freed_when_it_is_needed(lab, shortage):
    theirs = lab.driver.their_stream()
    half = lab.driver.memory.size_bytes // 2
    context = ExecutionContext(lab.device, lab.stream)
    t = context.empty((half + 4096,), "int8")
    capsule = t.__dlpack__(stream=int(theirs))
    del t, capsule
    gc.collect()
    if shortage == "limit":
        lab.device.memory_limit = half + 8192
    context.empty((half,), "int8")
    assert lab.driver.context_events == 1
    lab.driver.advance_all()
    assert len(lab.driver.freed) == 1


def test_freeing_lent_memory_holds_up_nothing_of_ours(lab, current_stream):
    theirs = lab.driver.their_stream()
    current_stream("torch", theirs)
    t = lab.tensor()
    capsule = t.__dlpack__(stream=int(theirs))
    lab.run(lab.stream.handle)
    lab.they_fill(theirs, t._address, 9)
    del t, capsule
    gc.collect()
    lab.device.collect()
    other = lab.tensor(5)
    lab.run(lab.stream.handle)
    assert lab.contents(other._address) == [5] * 4


@pytest.mark.parametrize("kind", ["default", "torch", "unknown"])
def test_freeing_is_put_off_during_a_capture(lab, current_stream, kind):
    theirs = lab.driver.legacy if kind == "default" else lab.driver.their_stream()
    current_stream(kind, theirs)
    t = lab.tensor()
    address = t._address
    capsule = t.__dlpack__(stream=1 if kind == "default" else int(theirs))
    del t, capsule
    lab.driver.captured.add(theirs)
    lab.finish()
    lab.device.trim()
    lab.finish()
    assert not lab.driver.freed
    lab.driver.captured.clear()
    lab.device.trim()
    lab.finish()
    assert lab.driver.freed == [address]


def test_captured_stream_cannot_wait_for_a_write(lab):
    theirs = lab.driver.their_stream()
    lab.driver.captured.add(theirs)
    t = lab.tensor()
    with pytest.raises(
        BufferError, match="a stream that is being captured cannot wait for them; await the op"
    ):
        t.__dlpack__(stream=int(theirs))
    assert not t._buffer.holders
    lab.finish()
    capsule = t.__dlpack__(stream=int(theirs))
    del capsule


def test_exported_array_interface(lab):
    t = lab.tensor()
    interface = t.__cuda_array_interface__
    assert interface == {
        "version": 3,
        "shape": (4,),
        "typestr": "<i4",
        "data": (t._address, False),
        "strides": None,
        "stream": int(lab.stream.handle),
    }
    lab.finish()
    assert t[::2].__cuda_array_interface__["strides"] == (8,)
    assert t[1:].__cuda_array_interface__["data"] == (t._address + 4, False)
    assert t.__cuda_array_interface__["stream"] is None
    assert t[:0].__cuda_array_interface__["data"] == (0, False)


def test_memory_known_by_its_array_interface_is_kept_by_what_uses_it(lab):
    """Whoever has it may have other tensors made over the same bytes."""
    t = lab.tensor()
    assert t.__cuda_array_interface__["stream"] == int(lab.stream.handle)
    future = ca.fill(t, 1).start(lab.policy)
    assert t._buffer in future._submission.retained


def test_array_interface_is_not_there_where_it_cannot_be(lab):
    assert not hasattr(lab.tensor().reinterpret("bfloat16"), "__cuda_array_interface__")
    host = ca.zeros((3,)).then(ca.copy)
    with ca.use_device("host:0"):
        assert not hasattr(host.sync(), "__cuda_array_interface__")


# -------------------------------------------------------------------------------------- borrowing


@pytest.mark.parametrize("stream", [1, 2, "stream"])
def test_our_work_waits_for_the_producer(lab, stream):
    theirs = lab.driver.their_stream() if stream == "stream" else lab.driver.legacy
    memory = lab.driver.memory.allocate(64)
    lab.they_fill(theirs, memory, 7)
    t = ca.from_cuda_array_interface(
        Theirs(memory, stream=int(theirs) if stream == "stream" else stream), device=lab.device
    )
    lab.fill(t, 9)
    for ours in [*lab.device._streams, lab.stream]:
        lab.run(ours.handle)
    assert lab.driver.is_blocked(lab.stream.handle)
    assert lab.driver.is_blocked(lab.device._exchange.handle)  # which ours waits for, and it for theirs
    lab.run(theirs)
    assert lab.contents(memory) == [7] * 4
    lab.driver.advance_all()
    assert lab.contents(memory) == [9] * 4


def test_our_work_waits_for_each_producer(lab):
    """Not only for the first, whose work is behind an event already."""
    streams = [lab.driver.their_stream() for _ in range(2)]
    memory = [lab.driver.memory.allocate(64) for _ in streams]
    for handle, address in zip(streams, memory, strict=True):
        lab.they_fill(handle, address, 7)
        t = ca.from_cuda_array_interface(Theirs(address, stream=int(handle)), device=lab.device)
        lab.fill(t, 9)
    lab.run(streams[0])
    for _ in range(2):
        for ours in lab.device._streams:
            lab.run(ours.handle)
    assert [lab.contents(address) for address in memory] == [[9] * 4, [0] * 4]
    lab.driver.advance_all()
    assert lab.contents(memory[1]) == [9] * 4


def test_memory_that_comes_in_again_is_still_in_use(lab):
    """What a stream of ours does with it comes before what is done with the new tensor."""
    theirs = lab.driver.their_stream()
    memory = lab.driver.memory.allocate(64)
    array = Theirs(memory, stream=int(theirs))
    lab.fill(ca.from_cuda_array_interface(array, device=lab.device), 3)
    lab.fill(ca.from_cuda_array_interface(array, device=lab.device), 9, lab.other)
    for handle in (theirs, lab.device._exchange.handle, lab.other.handle):
        lab.run(handle)
    assert lab.contents(memory) == [0] * 4
    lab.driver.advance_all()
    assert lab.contents(memory) == [9] * 4


@pytest.mark.parametrize("interface", [{}, {"stream": 8, "version": 2}], ids=["no stream", "version 2"])
def test_producer_that_names_no_stream_is_not_waited_for(lab, interface):
    memory = lab.driver.memory.allocate(64)
    t = ca.from_cuda_array_interface(Theirs(memory, **interface), device=lab.device)
    lab.fill(t, 9)
    lab.run(lab.stream.handle)
    assert lab.contents(memory) == [9] * 4


def test_dlpack_producer_is_given_a_stream_of_ours(lab):
    """It makes that stream wait; whatever uses the tensor waits for the stream."""
    theirs = lab.driver.their_stream()
    lab.tensor()
    source = lab.tensor(3)
    lab.finish()

    class Producer:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, *, stream, max_version):
            done = lab.driver.event_create()
            lab.they_fill(theirs, source._address, 7)
            lab.driver.event_record(done, theirs)
            lab.driver.stream_wait_event(StreamHandle(stream), done)
            return source.__dlpack__(stream=-1, max_version=max_version)

    t = ca.from_dlpack(Producer(), device=lab.device)
    assert (t._address, t.device) == (source._address, lab.device)
    lab.fill(t, 9)
    lab.fill(source, 11, lab.other)
    for handle in (lab.stream.handle, lab.other.handle):
        lab.run(handle)
    assert lab.contents(source._address) == [3] * 4
    lab.driver.advance_all()
    assert lab.contents(source._address) == [11] * 4


def test_views_and_refusals_of_the_array_interface(lab):
    memory = lab.driver.memory.allocate(64)
    t = ca.from_cuda_array_interface(Theirs(memory, (2, 2), strides=(16, 8)), device=lab.device)
    assert (t.shape, t.strides, t.dtype.name) == ((2, 2), (4, 2), "int32")
    assert ca.from_cuda_array_interface(Theirs(0, (0, 3)), device=lab.device).shape == (0, 3)
    read_only = ca.from_cuda_array_interface(Theirs(memory, data=(memory, True)), device=lab.device)
    with pytest.raises(ValueError, match="read-only memory"):
        ca.fill(read_only, 1).sync_on(lab.stream)
    for changes, error, message in (
        ({"mask": object()}, BufferError, "masked arrays are not supported"),
        ({"typestr": "<c8"}, TypeError, "not a supported element type"),
        ({"typestr": "|V2"}, TypeError, "not a supported element type"),
        ({"strides": (2,)}, BufferError, "not whole elements of int32"),
        ({"data": (memory + 2, False)}, BufferError, "not aligned for int32"),
        ({"stream": 0}, BufferError, "says stream 0, which the interface forbids"),
    ):
        with pytest.raises(error, match=message):
            ca.from_cuda_array_interface(Theirs(memory, **changes), device=lab.device)
    with pytest.raises(
        TypeError, match="expected an object with __cuda_array_interface__, a dict, got ndarray"
    ):
        ca.from_cuda_array_interface(np.zeros(3), device=lab.device)
    with pytest.raises(ca.ContextError, match=r"host:0 is simulated"):
        ca.from_cuda_array_interface(Theirs(memory), device="host:0")


# --------------------------------------------------------------------------------- borrowed streams


class WithStream:
    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def test_operations_run_on_a_borrowed_stream(lab):
    theirs = lab.driver.their_stream()
    stream = lab.device.borrow_stream(int(theirs))
    t = lab.tensor(1)
    lab.they_fill(theirs, t._address, 5)
    lab.fill(t, 2, stream)
    lab.fill(t, 3)
    lab.driver.advance_all()
    assert lab.contents(t._address) == [3] * 4
    stream.close()
    assert not lab.driver.loans
    assert theirs in lab.driver._streams, "it stays its owner's"
    lab.fill(t, 4)
    lab.driver.advance_all()
    assert lab.contents(t._address) == [4] * 4


def test_same_stream_is_borrowed_once(lab):
    theirs = lab.driver.their_stream()
    first = lab.device.borrow_stream(WithStream(theirs))
    assert lab.device.borrow_stream(int(theirs)) is first
    first.close()
    again = lab.device.borrow_stream(int(theirs))
    assert again is not first
    assert lab.device.borrow_stream(again) is again


def test_default_streams_are_one(lab):
    legacy = lab.device.borrow_stream(1)
    assert legacy.handle == lab.driver.legacy
    assert lab.device.borrow_stream(0).handle == lab.device.borrow_stream(2).handle == legacy.handle


def test_our_own_stream_is_not_borrowed(lab):
    assert lab.device.borrow_stream(int(lab.stream.handle)) is lab.stream
    assert lab.device.borrow_stream(lab.stream) is lab.stream
    assert lab.device.borrow_stream(WithStream(lab.stream.handle)) is lab.stream


def test_borrowed_stream_knows_its_owners_work(lab):
    theirs = lab.driver.their_stream()
    stream = lab.device.borrow_stream(int(theirs))
    assert stream.is_done
    memory = lab.driver.memory.allocate(64)
    lab.they_fill(theirs, memory, 1)
    assert not stream.is_done
    lab.driver.advance_all()
    assert stream.is_done


def test_drain_does_not_touch_borrowed_streams(lab):
    theirs = lab.driver.their_stream()
    stream = lab.device.borrow_stream(int(theirs))
    assert stream._submit() is None
    lab.fill(lab.tensor(), 1, stream)
    assert stream._submit() is not None
    lab.driver.advance_all()
    stream._refresh()
    lab.driver.their_stream_destroy(theirs)
    assert stream._submit().done
    lab.device.collect()


def test_owner_is_kept_until_the_loan_ends(lab):
    owner = WithStream(lab.driver.their_stream())
    stream = lab.device.borrow_stream(owner)
    assert stream._owner is owner
    stream.close()
    assert stream._owner is None


@pytest.mark.parametrize("thing", ["7", None, 3.0, -1])
def test_other_things_are_no_streams(lab, thing):
    with pytest.raises(TypeError, match="expected a stream's address or an object with __cuda_stream__"):
        lab.device.borrow_stream(thing)


def test_simulated_device_borrows_no_streams():
    with pytest.raises(ca.ContextError, match="host:0 is simulated: no stream of another library"):
        ca.Device("host:0").borrow_stream(1)
