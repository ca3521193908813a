"""`KeyboardInterrupt` wherever the interpreter looks for signals as a graph is recorded, made and changed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import itertools
import sys
import threading

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver.host._settings import host_check
from cuda_async.errors import CaptureError
from cuda_async.graph import _recorder
from cuda_async.graph._graph import CudaGraph
from cuda_async.graph._scope import Scope
from cuda_async.ops import _execution

pytestmark = pytest.mark.skipif(
    bool(host_check()), reason="an interrupt may leave the books of the checking mode wrong"
)


def may_be_finalizing(frame):
    if frame.f_code.co_flags & inspect.CO_GENERATOR:
        return True
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def is_interrupted(n, work):
    """Run `work()` with an interrupt at the n-th place: a call of a function of the package's, or the return of a
    built-in one to it. Finalizers and generators, which may be closed by one, are left out: Python drops what they
    raise. False where there are fewer places."""
    left = n

    def look(frame, event, _):
        nonlocal left
        if (
            event in ("call", "c_return")
            and frame.f_globals.get("__name__", "").startswith("cuda_async.")
            and not may_be_finalizing(frame)
        ):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


def places(make, step=1):
    """Of each run of what `make()` gives, with one interrupt after the other: what else it gave, and whether it is the
    last, which was not interrupted. Every `step`-th place is tried."""
    for n in itertools.count(1, step):
        work, *given = make()
        interrupted = is_interrupted(n, work)
        yield *given, not interrupted
        if not interrupted:
            assert n > 10
            return


def partly(kernels, x):
    """The first 32 elements."""
    return ca.zeros(64).then(
        lambda y: kernels.affine_to.launch(1, 32, ca.mut(y), ca.read(x), 64, 2.0, 0.0).first()
    )


CHANGES = {
    "arguments": (
        lambda kernels, x: kernels.scaled(x, 2.0, 0.0).graph(),
        lambda graph, y: graph.nodes[0].set_arguments({1: ca.read(y), 4: 1.0}),
        (128.0, 704.0),
    ),
    "arguments of a part": (
        lambda kernels, x: kernels.scaled(x, 2.0, 0.0).graph().then(lambda g: g.launch().graph()),
        lambda graph, y: graph.nodes[0].bodies[0][0].set_arguments({1: ca.read(y), 4: 1.0}),
        (128.0, 704.0),
    ),
    "source": (
        lambda kernels, x: ca.copy(x).graph(),
        lambda graph, y: graph.nodes[0].set_source(y),
        (64.0, 320.0),
    ),
    "value": (
        lambda kernels, x: ca.full(64, 1.0).graph(),
        lambda graph, y: graph.nodes[0].set_value(5.0, "float32"),
        (64.0, 320.0),
    ),
    "launch": (
        lambda kernels, x: partly(kernels, x).graph(),
        lambda graph, y: graph.nodes[1].set_launch(grid=3, block=16),
        (64.0, 96.0),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_interrupted_change_is_whole_or_none(host, kernels, what):
    """Launches use memory that the graph keeps, whichever it is."""
    record, change, (old, new) = CHANGES[what]

    def make():
        graph = record(kernels, ca.ones(64).sync()).sync()
        y = ca.full(64, 5.0).sync()
        return lambda: change(graph, y), graph

    found = set()
    for graph, is_last in places(make):
        others = [ca.full(64, -7.0).sync() for _ in range(3)]
        sums = {float(graph.launch().to_host().sync().sum()) for _ in range(2)}
        assert len(sums) == 1, "a change that came late"
        found |= sums
        assert not is_last or sums == {new}
        del others
    assert found == {old, new}


def test_change_behind_an_interrupted_one(host, kernels):
    """It is made on top of it, and lets go of nothing that is used."""

    def make():
        graph = kernels.scaled(ca.ones(64).sync(), 2.0, 0.0).graph().sync()
        y = ca.full(64, 5.0).sync()
        return lambda: graph.nodes[0].set_arguments({1: ca.read(y)}), graph

    for graph, _ in places(make):
        graph.nodes[0].set_arguments({4: 1.0})
        others = [ca.full(64, -7.0).sync() for _ in range(3)]
        assert graph.launch().to_host().sync()[0] in (3.0, 11.0)
        del others


def test_interrupted_sizes_stay_as_they_were_set(host, kernels):
    """What the next change does not name is what the interrupted one made it."""
    x = ca.ones(64).sync()
    graph = partly(kernels, x).graph().sync()
    node = graph.nodes[1]
    finish = CudaGraph._finish_change

    def interrupted(graph):
        if graph._change is not None:
            raise KeyboardInterrupt
        finish(graph)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaGraph, "_finish_change", interrupted)
        with pytest.raises(KeyboardInterrupt):
            node.set_launch(grid=3)
    node.set_launch(block=16)
    assert graph.launch().to_host().sync().sum() == 96.0


def test_driver_that_fails_as_a_node_is_changed(stepped, kernels):
    def run(op):
        future = op.start()
        while not future.done:
            stepped.driver.advance_all()
        return future.result()

    graph = run(kernels.scaled(run(ca.ones(64)), 2.0, 0.0).graph())
    stepped.driver.fail_next("graph_update", ca.DriverError("graph_update", 1, "X", "planned"))
    with pytest.raises(ca.DriverError, match="planned"):
        graph.nodes[0].set_arguments({1: ca.read(run(ca.full(64, 5.0)))})
    others = [run(ca.full(64, -7.0)) for _ in range(3)]
    assert run(graph.launch().to_host())[0] == 10.0
    del others


def test_interrupted_making_of_a_graph_leaves_no_graph_of_the_driver(host):
    x = ca.ones(4).sync()

    def count():
        gc.collect()  # what other tests have left
        host.synchronize()
        host.collect(everything=True)
        return len(host.driver._graphs)

    before = count()
    for _ in places(lambda: (ca.copy(x).graph().sync()._instantiate,)):
        pass
    assert count() == before


# -- scopes


def fails(kernels, x):
    return ca.parallel(kernels.scale(x, 9.0, 0.0), kernels.scale(x, 9.0, 0.0).then(lambda _: 1 / 0))


@pytest.mark.parametrize("method", ["record", "arecord"])
@pytest.mark.parametrize("operation", ["that is recorded", "that fails"])
def test_interrupted_record_leaves_the_scope_open(host, kernels, monkeypatch, method, operation):
    """And the recording as it was."""
    monkeypatch.setattr(
        _recorder, "MAX_ENQUEUEING_S", 1e9
    )  # on a busy machine it would make way for other tasks
    x = ca.ones(8).sync()
    stream = host.create_stream()

    def make():
        s = ca.CudaGraph.scope(stream)
        s._open()
        s.record(kernels.scale(x, 2.0, 0.0))
        op = fails(kernels, x) if operation == "that fails" else kernels.scale(x, 9.0, 0.0)

        def work():
            try:
                s.record(op) if method == "record" else run_through(s.arecord(op))
            except ZeroDivisionError:
                pass

        return work, s

    for s, is_last in places(make):
        s.record(kernels.scale(x, 1.0, 1.0))
        s.__exit__(None, None, None)
        is_recorded = is_last and operation == "that is recorded"
        assert [node.depends_on for node in s.graph.nodes] == [(), (0,), (1,)][: 3 if is_recorded else 2]
        ca.fill(x, 1.0).sync_on(stream)
        s.graph.launch().sync_on(stream)
        assert x.to_host().sync()[0] == (19.0 if is_recorded else 3.0)


def run_through(coroutine):
    """Run what has nothing to wait for."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def tripled(kernels, shared):
    return shared.then(lambda y: kernels.scaled(y, 3.0, 0.0))


def test_interrupted_end_of_a_scope_gives_shared_operations_back(host, kernels):
    """Whoever comes next runs them, and no graph is there."""
    x = ca.ones(8).sync()
    stream = host.create_stream()

    def make():
        shared = kernels.scaled(x, 2.0, 0.0).shared()
        s = ca.CudaGraph.scope(stream)
        s._open()
        s.returns(s.record(tripled(kernels, shared)))
        return lambda: s.__exit__(None, None, None), s, shared

    for s, shared, is_last in places(make):
        if s._state == "open":  # Python's call of it was interrupted, and nothing of it was done
            s.__exit__(None, None, None)
        elif not is_last:
            with pytest.raises(CaptureError, match="ended with an error"):
                _ = s.graph
        if s._state == "done":
            assert s.graph.launch().to_host().sync()[0] == 6.0
        assert shared.then(ca.copy).to_host().sync()[0] == 2.0


def test_interrupted_capture_gives_shared_operations_back(host, kernels):
    """Or they have ended with it: see docs/reliability.md."""
    x = ca.ones(8).sync()

    def make():
        shared = kernels.scaled(x, 2.0, 0.0).shared()
        op = tripled(kernels, shared).graph()
        return op.sync, shared

    for shared, is_last in places(make, step=5):
        if not is_last:
            with contextlib.suppress(ca.OperationCancelledError):
                assert shared.then(ca.copy).to_host().sync()[0] == 2.0


def raises(_):
    raise ZeroDivisionError("as planned")


class NotAtOnce(ca.DeviceOp[None]):
    """A worker thread prepares it."""

    def prepare(self, ctx):
        """Nothing to do."""

    def execute(self, ctx):
        """Nothing to do."""


def cancelled(graph, _):
    graph.update(NotAtOnce())
    graph.launch().start().cancel()
    ca.drain().sync()


def captured_in_vain(graph, _):
    with contextlib.suppress(ZeroDivisionError):
        graph.launch().then(raises).graph().sync()


def recorded_in_vain(graph, stream):
    with contextlib.suppress(ZeroDivisionError), ca.CudaGraph.scope(stream) as s:
        s.record(graph.launch())
        raises(s)


LAUNCHES = [lambda graph, _: graph.launch().sync(), cancelled, captured_in_vain, recorded_in_vain]


@pytest.mark.parametrize(
    "run", LAUNCHES, ids=["launched", "cancelled", "captured in vain", "recorded in vain"]
)
def test_interrupted_launch_loses_no_updates(host, kernels, run):
    """But one that was interrupted itself, which a launch tells."""
    stream = host.create_stream()

    def make():
        x = ca.zeros(8).sync()
        graph = kernels.scaled(x, 1.0, 0.0).graph().sync()
        for _ in range(3):
            graph.update(kernels.scale(x, 1.0, 1.0))
        return lambda: run(graph, stream), graph, x

    for graph, x, _ in places(make, step=3 if run is cancelled else 1):
        done = 3
        for _ in range(5):
            try:
                graph.launch().sync()
            except ca.OperationCancelledError:
                done -= 1
        assert x.to_host().sync()[0] >= done


def test_interrupted_failure_of_a_capture_gives_shared_operations_back(host, kernels):
    x = ca.ones(8).sync()

    def make():
        shared = kernels.scaled(x, 2.0, 0.0).shared()

        def work():
            with contextlib.suppress(ZeroDivisionError):
                shared.then(raises).graph().sync()

        return work, shared

    for shared, _ in places(make):
        with contextlib.suppress(ca.OperationCancelledError):
            assert shared.then(ca.copy).to_host().sync()[0] == 2.0


def test_interrupted_exports_and_imports_complain_of_nothing(host, monkeypatch):
    """Their finalizers find what was made by then."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    x = ca.zeros(8).sync()

    def work():
        del work.kept[:]
        work.kept += [np.from_dlpack(x), ca.from_dlpack(np.ones(8, "f4"))]

    work.kept = []
    for _ in places(lambda: (work,)):
        pass
    del work.kept[:]
    gc.collect()
    assert told == []


def test_who_records_is_noted_with_the_lock_held(host, kernels, monkeypatch):
    noted = []

    def note(scope, value):
        noted.append(value is None or scope._lock.locked())
        vars(scope)["_recording"] = value

    monkeypatch.setattr(Scope, "_recording", property(lambda s: vars(s)["_recording"], note), raising=False)
    x = ca.ones(8).sync()
    with ca.CudaGraph.scope(host.create_stream()) as s:
        s.record(kernels.scale(x, 2.0, 0.0))
    assert noted == [True] * 4


def test_what_was_captured_is_dropped_once(host):
    """Another library's work that was captured, where the recording fails behind it."""
    host.collect(everything=True)
    scope = ca.CudaGraph.scope(host.create_stream(), inputs={"x": ca.ones(8).sync()})
    with pytest.raises(CaptureError, match="nothing in the graph uses"), scope:
        scope._recorder.captured.append(host.driver.graph_create([]))
    assert len(host._dropped_graphs) == 1


class Waits(ca.DeviceOp[None]):
    """A worker thread prepares it until it is released."""

    def __init__(self):
        self.began, self.released = threading.Event(), threading.Event()

    def prepare(self, ctx):
        self.began.set()
        assert self.released.wait(10)

    def execute(self, ctx):
        pass


@pytest.mark.timeout(30)
def test_interrupt_as_a_shared_run_is_given_up_leaves_nobody_waiting(host, monkeypatch):
    x, waits = ca.full(4, 3.0).sync(), Waits()
    inner = waits.then(lambda _: ca.copy(x)).shared()
    outer = inner.then(ca.copy).shared()
    run_in_worker, interrupts = _execution.run_in_worker, []

    def interrupted(work):
        if interrupts:
            raise interrupts.pop()
        return run_in_worker(work)

    monkeypatch.setattr(_execution, "run_in_worker", interrupted)

    async def cancelled():
        async def capture():
            await outer.then(ca.copy).graph()

        task = asyncio.create_task(capture())
        await asyncio.to_thread(waits.began.wait, 10)
        interrupts.append(KeyboardInterrupt())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cancelled())
    waits.released.set()
    assert outer.then(ca.copy).to_host().sync()[0] == 3.0


def test_interrupted_launch_of_a_whole_tells_its_parts(host, kernels):
    """Their shared operations have run, and are not run again."""

    def make():
        x = ca.zeros(64).sync()
        shared = kernels.scale(x, 1.0, 1.0).map(lambda _: 5).shared()
        other = ca.ones(4).graph().sync()
        part = shared.then(lambda _: ca.copy(x)).graph().sync()
        inner = part.launch().graph().sync()
        whole = ca.zip(other.launch(), inner.launch()).graph().sync()
        return lambda: whole.launch().sync(), x, shared, (other, part, inner, whole)

    for x, shared, graphs, _ in places(make):
        graphs[-1].launch().sync()
        runs = x.to_host().sync()[0]
        assert shared.sync() == 5
        for graph in graphs:
            graph.close()
        assert shared.sync() == 5
        assert x.to_host().sync()[0] == runs
