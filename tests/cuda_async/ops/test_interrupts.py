"""`KeyboardInterrupt` wherever the interpreter looks for signals."""

from __future__ import annotations

import gc
import signal
import sys
import threading

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver import FunctionInfo, HostImage, ParameterInfo
from cuda_async.driver.host._settings import host_check

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")


class Nothing:
    """A kernel with one tensor that does nothing."""

    info = FunctionInfo(
        name="nothing",
        parameters=(ParameterInfo(name="x", offset_bytes=0, size_bytes=8),),
        max_threads_per_block=64,
    )

    def start(self, launch):
        yield


@pytest.fixture
def interrupts():
    """Arms a timer that raises `KeyboardInterrupt` wherever the main thread is then; 0 disarms it.

    Again 50 ms later: where a finalizer ran, Python has dropped the first. No collection comes in between, whose
    callbacks Python guards in the same way.
    """

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.enable()
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("how", ["launch", "bound"])
def test_no_lock_is_left_behind(stepped, interrupts, how):
    """The functions that are written for launches take the device's lock; an interrupt must not come in between."""
    assert threading.current_thread() is threading.main_thread()
    function = ca.Module.from_host_image(HostImage(functions={"nothing": Nothing()}, name="x")).function(
        "nothing"
    )
    x = ca.zeros(4).start()
    stepped.driver.advance_all()
    tensor = x.result()
    stream = stepped.create_stream()
    bound = function.bind(1, 1, ca.mut(tensor), device=stepped)
    function.launch(1, 1, ca.mut(tensor)).start(ca.SingleStream(stream))
    context = ca.ExecutionContext(stepped, stream)
    stepped.driver.launch = lambda *_: None  # the driver's part is the driver's
    random = np.random.default_rng(1)
    for _ in range(150):
        op = bound.launch() if how == "bound" else function.launch(1, 1, ca.mut(tensor))
        try:
            interrupts(random.uniform(1e-4, 6e-4))
            while True:
                op.execute(context)
        except KeyboardInterrupt:
            interrupts(0)
        assert not stepped._lock.locked()
        assert stream._dirty
    del stepped.driver.launch
    stepped.driver.advance_all()
    with stepped._lock:
        submission = stream._record()
    stepped.driver.advance_all()
    assert submission.poll()
    assert not stream._retained


class Interrupter:
    """Raises `KeyboardInterrupt` where the interpreter looks for signals: as a function of ours begins, or a call of a
    built-in one that it makes is back. At the n-th such place, but not inside of finalizers, whose exceptions Python
    prints and drops."""

    def __init__(self, n):
        self.left = n

    def __call__(self, frame, event, _):
        if event not in ("call", "c_return") or "cuda_async" not in frame.f_code.co_filename:
            return
        if frame.f_globals["__name__"].startswith("cuda_async."):
            finalizing = frame
            while finalizing is not None:
                if finalizing.f_code.co_name in ("__del__", "<genexpr>"):
                    return
                finalizing = finalizing.f_back
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


def in_time(work):
    """What `work()` gives or raises on another thread, which must not wait for ever."""
    found = []

    def run():
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert found, "the other thread hangs"
    return found[0]


def shared_upload():
    op = ca.from_host(np.arange(8.0)).then(ca.copy).shared()
    return lambda: op.to_host().sync()


def called_graph():
    graph = ca.graph_input("x", (8,), "float64").then(ca.copy).graph().sync()
    return lambda: graph(x=np.arange(8.0)).to_host().sync()


def cached_graph():
    cache = ca.GraphCache(lambda n: ca.graph_input("x", (n,), "float64").then(ca.copy))
    return lambda: cache.get(8).sync()(x=np.arange(8.0)).to_host().sync()


unchecked = pytest.mark.skipif(
    bool(host_check()), reason="an interrupt within the checking mode's own calls leaves its books wrong"
)


@unchecked
@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of generators that are let go of
@pytest.mark.parametrize("make", [shared_upload, called_graph, cached_graph])
def test_interrupt_anywhere_stops_nobody_else(make):
    """Who else uses what was interrupted gets its value or is told; the thread and the device work on."""
    with ca.use_device("host:0") as device:
        make()()  # whatever is slow the first time
        n = interrupted = 0
        while True:
            n += 1
            work = make()
            before = sys.getprofile()
            sys.setprofile(Interrupter(n))
            try:
                work()
                break
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.setprofile(before)

            def elsewhere(work=work):
                with ca.use_device(device):
                    return work()

            result = in_time(elsewhere)
            if not isinstance(result, ca.OperationCancelledError):
                assert isinstance(result, np.ndarray), (n, result)
                assert (result == np.arange(8.0)).all(), n
            assert in_time(lambda: device._lock.acquire(timeout=5) and (device._lock.release() or True))
            assert (make()() == np.arange(8.0)).all()  # on this thread, in this context
            assert in_time(lambda: ca.drain().sync() is None)
        assert interrupted > 80
        del work
        gc.collect()
        device.synchronize()


COPIES = {
    "a download": lambda t: t.to_host(),
    "an upload": lambda t: ca.from_host(np.full(64, 1.0, "f4")),
    "a copy from the host": lambda t: ca.memcpy(t, np.full(64, 1.0, "f4")),
}


@pytest.mark.parametrize("what", COPIES)
def test_staging_memory_of_a_copy_that_is_enqueued_is_in_use(stepped, what):
    """An interrupt behind the driver's call: the copy is on its way, and its host memory must not be another's."""
    stream = stepped.create_stream()
    policy = ca.SingleStream(stream)

    def run(op):
        future = op.start(policy)
        while not future.done:  # a worker thread may be preparing it
            stepped.driver.advance_all()
        return future.result()

    t = run(ca.full(64, 7.0))
    run(t.to_host())
    run(ca.from_host(np.ones(64, "f4")))
    gc.collect()
    for name in ("copy_device_to_host_async", "copy_host_to_device_async"):
        copy = getattr(stepped.driver, name)

        def interrupted(*arguments, copy=copy):
            copy(*arguments)
            raise KeyboardInterrupt

        setattr(stepped.driver, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        COPIES[what](t).start(policy)
    for name in ("copy_device_to_host_async", "copy_host_to_device_async"):
        delattr(stepped.driver, name)
    gc.collect()
    numbers = np.arange(64, dtype="f4")
    assert run(run(ca.from_host(numbers)).to_host()).tolist() == numbers.tolist()
    assert run(t.to_host())[0] == (1.0 if what == "a copy from the host" else 7.0)


def interrupt_behind(driver, name, error=KeyboardInterrupt):
    """The next call of the driver is made, and an interrupt comes as it is back."""
    call = getattr(driver, name)

    def made(*arguments, **more):
        delattr(driver, name)
        call(*arguments, **more)
        raise error

    setattr(driver, name, made)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_outputs_are_stale_behind_an_interrupted_launch(host, error):
    """The device may have written them again: of the graph, and of one that has it as a part."""
    x = ca.ones(4).sync()
    part = ca.graph_input("k", (4,)).then(ca.copy).then(lambda k: ca.copy(x)).graph().sync()
    whole = part.launch().graph().sync()
    of_whole = whole.launch().sync()
    of_part = part.replay(k=1.0).sync()
    of_whole = whole.launch().sync()
    of_part = part.launch().sync()
    for launch in (lambda: part.replay(k=2.0), part.launch):
        of_part = launch().sync()
        assert of_part.to_host().sync().tolist() == [1.0] * 4
        ca.fill(x, 7.0).sync()
        interrupt_behind(host.driver, "graph_launch", error)
        with pytest.raises(error):
            launch().sync()
        for output in (of_part, of_whole):
            with pytest.raises(ca.StaleOutputError):
                output.to_host().sync()
        ca.fill(x, 1.0).sync()
    assert launch().sync().to_host().sync().tolist() == [1.0] * 4


def test_a_shared_operation_of_an_interrupted_launch_does_not_run_again(host):
    """It may have run: who uses it is told so, until the graph is launched."""
    count = ca.zeros(1, "int32").sync()
    ran = []
    shared = ca.foreign(lambda _: ran.append(1), writes=[count]).shared()
    graph = shared.map(lambda _: None).graph().sync()
    interrupt_behind(host.driver, "graph_launch")
    with pytest.raises(KeyboardInterrupt):
        graph.launch().sync()
    host.synchronize()
    assert ran == [1]
    with pytest.raises(ca.StaleOutputError, match="launch the graph again"):
        shared.sync()
    graph.launch().sync()
    shared.sync()
    assert ran == [1, 1]


def test_a_foreign_call_that_was_interrupted_runs(host):
    x = ca.ones(4).sync()
    ca.foreign(lambda _: None, writes=[x]).sync()
    entered, gate, ran = threading.Event(), threading.Event(), []
    stream, other = host.create_stream(), host.create_stream()
    y = ca.ones(4).sync()
    busy = ca.foreign(lambda _: (entered.set(), gate.wait(10)), writes=[y]).start(ca.SingleStream(stream))
    assert entered.wait(10)
    interrupt_behind(host.driver, "launch")
    with pytest.raises(KeyboardInterrupt):
        ca.foreign(lambda _: ran.append(1), writes=[x]).start(ca.SingleStream(stream))
    gc.collect()
    gate.set()
    assert ca.copy(x).to_host().sync_on(other).tolist() == [1.0] * 4
    assert ran == [1]
    busy.sync()
    host.synchronize()


class InterrupterWithin:
    """Raises `error` at the n-th place where the interpreter looks for signals while a function of that name runs,
    whatever module that place is in."""

    def __init__(self, n, within, error):
        self.left = n
        self.within = within
        self.error = error

    def __call__(self, frame, event, _):
        if event in ("call", "c_return"):
            found = frame
            while found is not None and found.f_code.co_name not in self.within:
                found = found.f_back
            if found is not None:
                self.left -= 1
                if self.left == 0:
                    sys.setprofile(None)
                    raise self.error


def interrupted_within(within, error, prepare, limit=400):
    """Runs what `prepare()` gives, interrupted at each place within a function of that name; yields behind each."""
    for n in range(1, limit):
        work = prepare()
        interrupter = InterrupterWithin(n, (within,), error)
        before = sys.getprofile()
        sys.setprofile(interrupter)
        try:
            work()
        except error:
            pass
        finally:
            sys.setprofile(before)
        yield n
        if interrupter.left > 0:
            return
    raise AssertionError(f"more than {limit} places within {within}")


ERRORS = [KeyboardInterrupt, TimeoutError]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("how", ["future", "shared"])
def test_interrupted_wait_for_a_worker_costs_no_worker(host, how, error):
    """Wherever it comes: the worker that would have woken this thread works on, and so does who else waits."""

    class Slow(ca.DeviceOp):
        def __init__(self, gate):
            self.gate = gate

        def prepare(self, ctx):
            assert self.gate.wait(10)

        def execute(self, ctx):
            return 7

    places = 0

    def prepare():
        gate = threading.Event()
        op = Slow(gate).shared()
        future = op.start()
        others = threading.Thread(target=lambda: results.append(op.sync()), daemon=True)
        others.start()
        opens = threading.Timer(0.01, gate.set)
        opens.start()
        running[:] = [others, opens]
        return future.sync if how == "future" else op.sync

    results, running = [], []
    for n in interrupted_within("block_on", error, prepare):
        places = n
        for thread in running:
            thread.join(10)
            assert not thread.is_alive(), n
        assert results == [7] * n
    assert places > 3
    assert in_time(lambda: ca.drain().sync() is None)


@pytest.mark.parametrize("error", ERRORS)
def test_who_else_waits_for_a_submission_is_told(stepped, error):
    """The thread that finds the work done tells all who wait for it, wherever it is interrupted."""
    stream = stepped.create_stream()
    woken = []

    def prepare():
        with stepped._lock:
            stream._dirty = True
            submission = stream._record()
            woken[:] = [[] for _ in range(3)]
            submission.callbacks = [lambda told=told: told.append(1) for told in woken]
        stepped.driver.advance_all()
        return submission.poll

    for n in interrupted_within("call_each", error, prepare):
        assert all(woken), n
    assert n > 3


@unchecked
@pytest.mark.parametrize("error", ERRORS)
def test_memory_is_freed_once_wherever_collecting_is_interrupted(host, error):
    """An error that a signal handler raises is none of the driver's; what was freed is not freed again."""
    stream = host.create_stream()
    policy = ca.SingleStream(stream)
    ca.zeros(300).sync_on(stream)
    several = [ca.zeros(100 + i).schedule(policy).sync() for i in range(2)]
    tensors = []

    def prepare():
        tensors[:] = [ca.zeros(100 + i).schedule(policy).sync() for i in range(2)]
        gc.disable()
        tensors.clear()
        return host.collect

    try:
        for n in interrupted_within("_collect", error, prepare, limit=1000):
            host.collect(everything=True)
            host.synchronize()
            assert not host._notes, n
            assert in_time(lambda: ca.zeros(50).sync_on(stream).size) == 50, n
            host.collect()
            assert host._used == sum(t.size * 4 for t in several), n
        assert n > 20
    finally:
        gc.enable()


@pytest.mark.parametrize("error", ERRORS)
def test_launch_that_a_signal_handler_ended_keeps_its_kernel(stepped, error):
    function = ca.Module.from_host_image(HostImage(functions={"nothing": Nothing()}, name="x")).function(
        "nothing"
    )
    tensor = ca.zeros(4).start()
    stepped.driver.advance_all()
    stream = stepped.create_stream()
    bound = function.bind(1, 1, ca.mut(tensor.result()), device=stepped)
    bound.launch().start(ca.SingleStream(stream))
    launch = stepped.driver.launch

    def interrupted(*arguments):
        launch(*arguments)
        raise error

    stepped.driver.launch = interrupted
    context = ca.ExecutionContext(stepped, stream)
    stepped.driver.advance_all()
    before = len(stream._retained)
    with pytest.raises(error):
        bound.launch().execute(context)
    del stepped.driver.launch
    assert len(stream._retained) == before + 1
    assert stream._dirty
    stepped.driver.advance_all()
