"""The quick path of launches, compiled and in Python, fresh and bound: order between streams, the lock, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuda_async as ca
from cuda_async.driver import FunctionInfo, HostFunction, HostImage, ParameterInfo
from cuda_async.native import native
from cuda_async.ops import _written
from cuda_async.ops._context import context_on
from cuda_async.testing import stepped_device

STREAMS, TENSORS = 3, 3


class Noted(HostFunction):
    """A kernel of (read, written, number) that notes its number when it runs."""

    info = FunctionInfo(
        name="noted",
        parameters=tuple(ParameterInfo(name=f"p{i}", offset_bytes=8 * i, size_bytes=8) for i in range(3)),
        max_threads_per_block=1,
    )

    def __init__(self, ran):
        self.ran = ran

    def start(self, launch):
        self.ran.append(int.from_bytes(launch.arguments[16:24], "little"))
        return
        yield


class Lab:
    """A stepped device with a kernel that was launched on each of its streams."""

    def __init__(self):
        self.device, self.controls = stepped_device()
        self.ran = []
        self.streams = [self.device.create_stream() for _ in range(STREAMS)]
        with ca.use_device(self.device):
            made = [ca.full(4, 0.0).start(ca.SingleStream(self.streams[0])) for _ in range(TENSORS)]
            self.finish()
            self.tensors = [future.result() for future in made]
            self.kernel = ca.Module.from_host_image(HostImage(functions={"noted": Noted(self.ran)})).function(
                "noted"
            )
            self.loaded = self.kernel.load(self.device)
            for stream in self.streams:
                self.launch(stream, 0, 1, 999)
        self.finish()
        self.ran.clear()

    def operands(self, read, written, number):
        return ca.read(self.tensors[read]), ca.mut(self.tensors[written]), number

    def launch(self, stream, read, written, number, *, bound=False):
        operands = self.operands(read, written, number)
        if bound:
            op = self.kernel.bind(1, 1, *operands, device=self.device).launch()
        else:
            op = self.kernel.launch(1, 1, *operands)
        return op.start(ca.SingleStream(stream))

    def finish(self):
        self.controls.advance_all()
        self.device.collect()


@pytest.fixture(params=["compiled", "in Python"])
def way(request):
    """The launches of kernels that are loaded from here on."""
    if request.param == "compiled" and native is None:
        pytest.skip("the compiled module is not built, or left out")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in Python":
            patch.setattr(_written, "native", None)
        yield request.param


@pytest.fixture
def lab(way):
    lab = Lab()
    yield lab
    lab.finish()
    lab.controls.close()


def test_the_way_is_the_one(lab, way):
    names = {"compiled": ("QuickLaunch", "QuickBoundLaunch"), "in Python": ("function", "function")}[way]
    bound = lab.kernel.bind(1, 1, *lab.operands(0, 1, 5), device=lab.device)
    assert (type(lab.loaded.launch).__name__, type(bound._launch).__name__) == names


ACTIONS = st.one_of(
    st.tuples(
        st.just("launch"),
        st.integers(0, STREAMS - 1),
        st.permutations(range(TENSORS)),
        st.booleans(),
    ),
    st.tuples(st.just("advance"), st.integers(0, STREAMS - 1), st.integers(1, 3)),
)


def ordered_as_enqueued(launched, ran):
    """Of two launches of which one writes what the other uses, the first one runs first."""
    place = {number: at for at, number in enumerate(ran)}
    for later, (read, written) in launched.items():
        for earlier in range(later):
            was_read, was_written = launched[earlier]
            if was_written in (read, written) or was_read == written:
                assert place[earlier] < place[later], (earlier, later)


@pytest.mark.parametrize("native_too", [True, False], ids=["compiled", "in Python"])
@given(actions=st.lists(ACTIONS, min_size=4, max_size=14), last=st.permutations(range(STREAMS)))
@settings(max_examples=150, deadline=None)
def test_launches_on_several_streams_run_in_order(native_too, actions, last):
    """However the device gets ahead on one stream or the other."""
    with pytest.MonkeyPatch.context() as patch:
        if not native_too:
            patch.setattr(_written, "native", None)
        lab = Lab()
    launched = {}
    for what, stream, *rest in actions:
        if what == "launch":
            (read, written, _), bound = rest
            number = len(launched)
            launched[number] = read, written
            lab.launch(lab.streams[stream], read, written, number, bound=bound)
        else:
            lab.controls.advance(lab.streams[stream].handle, rest[0])
            lab.device.collect()
    for stream in last:  # each as far as it goes by itself
        while lab.controls.advance(lab.streams[stream].handle):
            pass
    lab.finish()
    assert sorted(lab.ran) == sorted(launched)
    ordered_as_enqueued(launched, lab.ran)
    lab.controls.close()


@pytest.mark.parametrize("bound", [False, True], ids=["fresh", "bound"])
def test_the_lock_is_held_while_the_driver_is_called_and_not_afterwards(lab, bound, monkeypatch):
    seen, call = [], lab.controls.launch

    def launch(*args):
        seen.append(lab.device._lock.locked())
        return call(*args)

    monkeypatch.setattr(lab.controls, "launch", launch)
    lab.launch(lab.streams[0], 0, 1, 1, bound=bound)
    assert seen == [True]
    assert not lab.device._lock.locked()


@pytest.mark.parametrize(
    "error",
    [ca.DriverError("launch", 1, "CUDA_ERROR_INVALID_VALUE", "made to fail"), KeyboardInterrupt()],
    ids=["refused", "interrupt"],
)
@pytest.mark.parametrize("dirty", [False, True])
@pytest.mark.parametrize("bound", [False, True], ids=["fresh", "bound"])
def test_a_launch_that_fails_leaves_the_lock_and_the_stream(lab, bound, dirty, error):
    """A refused one leaves no work that an event would be recorded behind; an interrupt may have come behind it."""
    stream = lab.streams[0]
    operands = lab.operands(0, 1, 7)
    launch = lab.kernel.bind(1, 1, *operands, device=lab.device)._launch if bound else lab.loaded.launch
    ctx = context_on(stream)
    launch(operands, ctx, (1, 1, 0))  # what it needs on this stream is there
    lab.finish()
    retained = len(stream._retained)
    stream._dirty = dirty
    lab.controls.fail_next("launch", error)
    with pytest.raises(type(error)):
        launch(operands, ctx, (1, 1, 0))
    assert not lab.device._lock.locked()
    assert stream._dirty is (dirty or isinstance(error, KeyboardInterrupt))
    kept = [lab.loaded] * isinstance(error, KeyboardInterrupt)
    assert stream._retained[retained:] == kept
    assert launch(operands, ctx, (1, 1, 0)) == (lab.tensors[0], lab.tensors[1], 7)
    assert stream._dirty
    assert stream._retained[retained:] == [*kept, lab.loaded]


@pytest.mark.parametrize("bound", [False, True], ids=["fresh", "bound"])
@pytest.mark.parametrize("when", ["event_record", "stream_wait_event"])
def test_an_ordering_that_fails_enqueues_nothing(lab, bound, when):
    one, other = lab.streams[:2]
    operands = lab.operands(0, 1, 8)
    launch = lab.kernel.bind(1, 1, *operands, device=lab.device)._launch if bound else lab.loaded.launch
    launch(operands, context_on(one), (1, 1, 0))
    before = lab.controls.pending(other.handle)
    lab.controls.fail_next(when, ca.DriverError("launch", 1, "CUDA_ERROR_INVALID_VALUE", "made to fail"))
    with pytest.raises(ca.DriverError, match="made to fail"):
        launch(operands, context_on(other), (1, 1, 0))
    assert not lab.device._lock.locked()
    assert lab.controls.pending(other.handle) == before
    launch(operands, context_on(other), (1, 1, 0))
    lab.finish()
    assert lab.ran.count(8) == 2


@pytest.mark.parametrize("bound", [False, True], ids=["fresh", "bound"])
def test_a_stream_that_was_closed_is_refused(lab, bound):
    stream = lab.device.create_stream()
    ctx = context_on(stream)
    stream.close()
    operands = lab.operands(0, 1, 9)
    launch = lab.kernel.bind(1, 1, *operands, device=lab.device)._launch if bound else lab.loaded.launch
    with pytest.raises(ca.ClosedError):
        launch(operands, ctx, (1, 1, 0))
    assert not lab.device._lock.locked()


def test_bound_launches_of_freed_and_lent_memory(lab):
    bound = lab.kernel.bind(1, 1, *lab.operands(0, 1, 10), device=lab.device)
    lab.tensors[0]._buffer.note_shared()
    future = bound.launch().start(ca.SingleStream(lab.streams[0]))
    lab.finish()
    assert future.result()[2] == 10
    assert lab.ran == [10]
    lab.tensors[1].free()
    with pytest.raises(ca.ClosedError, match="memory was freed"):
        bound.launch().start(ca.SingleStream(lab.streams[0])).result()
