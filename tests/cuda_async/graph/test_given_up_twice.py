"""Recordings that are given up by several, or twice, and graphs that end without a launch: each shared operation and
update runs once, whoever has it by then."""

from __future__ import annotations

import gc
import threading

import pytest

import cuda_async as ca
from cuda_async.errors import NotFilledYetError
from cuda_async.graph._recorder import Recorder
from cuda_async.graph._scope import Scope
from cuda_async.ops._execution import Execution
from cuda_async.ops._shared import Gate


def added(kernels, x):
    """One is added to it, once."""
    return ca.value(0).then(lambda _: kernels.scale(x, 1.0, 1.0)).shared()


def fails(scope, *ops):
    """With these in it."""
    with scope:
        for op in ops:
            scope.record(op)
        raise ZeroDivisionError


def test_operation_that_another_recording_has_is_not_undone_again(device, kernels):
    x = ca.zeros(8).sync()
    stream = device.create_stream()
    first = added(kernels, x)
    failed = ca.CudaGraph.scope(stream)
    with pytest.raises(ZeroDivisionError):
        fails(failed, first)
    with ca.CudaGraph.scope(stream) as s:
        s.record(first)
        first._gate.undo(failed._recorder, [])
        s.record(first)
    s.graph.launch().sync()
    assert x.to_host().sync().tolist() == [1.0] * 8


def test_operation_that_was_begun_anew_is_not_undone_again(host, kernels, monkeypatch):
    """An interrupt comes as one of two was undone, and somebody uses that at once."""
    x, y = ca.zeros(8).sync(), ca.zeros(8).sync()
    first, second = added(kernels, x), added(kernels, y)
    undo, interrupts = Gate.undo, [KeyboardInterrupt()]

    def interrupted(gate, *args):
        undo(gate, *args)
        if gate is first._gate and interrupts:
            first.sync()
            raise interrupts.pop()

    monkeypatch.setattr(Gate, "undo", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fails(ca.CudaGraph.scope(host.create_stream()), first, second)
    for op in (first, second, first):
        op.sync()
    assert [t.to_host().sync().tolist() for t in (x, y)] == [[1.0] * 8] * 2


@pytest.mark.parametrize("times", [1, 2])
def test_interrupted_undoing_is_made_up_for(host, kernels, monkeypatch, times):
    """Interrupted twice, by whoever uses it next."""
    x, y = ca.zeros(8).sync(), ca.zeros(8).sync()
    first, second = added(kernels, x), added(kernels, y)
    undo, interrupts = Gate.undo, [KeyboardInterrupt() for _ in range(times)]

    def interrupted(gate, *args):
        if gate is second._gate and interrupts:
            raise interrupts.pop()
        undo(gate, *args)

    monkeypatch.setattr(Gate, "undo", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fails(ca.CudaGraph.scope(host.create_stream()), first, second)
    gc.collect()
    with ca.CudaGraph.scope(host.create_stream()) as s:
        s.record(first)
        s.record(second)
        s.record(first)
    s.graph.launch().sync()
    assert [t.to_host().sync().tolist() for t in (x, y)] == [[1.0] * 8] * 2


@pytest.mark.parametrize("what", ["a shared operation", "an update"])
def test_what_another_thread_notes_as_a_step_is_given_up_is_undone_too(device, kernels, monkeypatch, what):
    """It is at a step of the recording as that is begun to be undone, and has left it before that is over."""
    x, out = ca.zeros(8).sync(), ca.zeros(8).sync()
    kernels.scale(out, 1.0, 0.0).sync()  # loads it
    graph = kernels.affine_to.launch(1, 8, ca.mut(out), ca.read(x), 8, 1.0, 0.0).graph().sync()
    if what == "an update":
        graph.update(added(kernels, x))
        late = graph.launch()
    else:
        late = added(kernels, x)
    leaving, noted = Recorder.leaving, []

    def noting(recorder):
        if not noted:
            noted.append(late)
            execution = Execution(late._take(), stream=recorder.root.stream)
            execution.host_pending = True
            assert execution.run()
        return leaving(recorder)

    with ca.CudaGraph.scope(device.create_stream()) as s:
        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "leaving", noting)
            with pytest.raises(ZeroDivisionError):
                s.record(ca.value(0).then(lambda _: 1 / 0))
        s.record(ca.fill(out, 7.0))
    assert noted
    assert len(s.graph.nodes) == 1
    if what == "a shared operation":
        late.then(ca.copy).sync()
    else:
        graph.launch().sync()
    assert x.to_host().sync().tolist() == [1.0] * 8


def test_interrupt_as_a_block_that_failed_is_left(host, kernels, monkeypatch):
    x = ca.zeros(8).sync()
    first = added(kernels, x)
    discard, interrupts = Scope._discard, [KeyboardInterrupt()]

    def interrupted(scope):
        if interrupts:
            raise interrupts.pop()
        discard(scope)

    monkeypatch.setattr(Scope, "_discard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fails(ca.CudaGraph.scope(host.create_stream()), first)
    first.sync()
    assert x.to_host().sync().tolist() == [1.0] * 8


@pytest.mark.parametrize("end", ["closed", "dropped"])
@pytest.mark.parametrize("nested", [False, True])
def test_memory_of_a_graph_that_was_never_launched_is_allocated_anew(device, kernels, end, nested):
    """By an operation that adds no node to the graph."""
    shared = ca.empty(8).shared()
    if nested:
        shared = shared.map(lambda t: t).shared()
    graph = shared.then(lambda t: ca.fill(t, 1.0)).graph().sync()
    with pytest.raises(NotFilledYetError):
        shared.then(lambda t: ca.fill(t, 2.0)).sync()
    if end == "closed":
        graph.close()
    del graph
    gc.collect()
    assert shared.then(lambda t: ca.fill(t, 2.0)).to_host().sync().tolist() == [2.0] * 8


@pytest.mark.parametrize("end", ["closed", "dropped", "launched"])
def test_update_in_a_graph_is_for_the_next_launch_where_that_was_never_launched(device, kernels, end):
    x, y = ca.zeros(8).sync(), ca.zeros(8).sync()
    graph = ca.fill(y, 3.0).graph().sync()
    graph.update(kernels.scale(x, 1.0, 1.0))
    graph.update(kernels.scale(x, 2.0, 0.0))
    whole = graph.launch().graph().sync()
    graph.launch().sync()
    assert x.to_host().sync()[0] == 0.0, "they are part of that"
    if end == "launched":
        whole.launch().sync()
    if end == "closed":
        whole.close()
    del whole
    gc.collect()
    for _ in range(2):
        graph.launch().sync()
    assert x.to_host().sync()[0] == 2.0
    assert graph._updates._recorded == ()


def test_update_in_a_capture_that_is_cancelled_as_its_graph_is_there(device, kernels, monkeypatch):
    x, y = ca.zeros(8).sync(), ca.zeros(8).sync()
    kernels.scale(x, 1.0, 0.0).sync()  # loads it
    graph = ca.fill(y, 3.0).graph().sync()
    graph.update(kernels.scale(x, 1.0, 1.0))
    keep, started, goes_on = Recorder.keep_shared, [], threading.Event()

    def cancelled(recorder):
        keep(recorder)
        assert goes_on.wait(10)
        assert started.pop().cancel()

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "keep_shared", cancelled)
        started.append(graph.launch().graph().start())
        goes_on.set()
        ca.drain().sync()
    gc.collect()
    graph.launch().sync()
    assert x.to_host().sync()[0] == 1.0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("first", ["the whole", "the part's end"])
def test_what_is_part_of_a_graph_in_a_graph_runs_once(device, kernels, depth, first):
    x = ca.zeros(8).sync()
    shared = added(kernels, x)
    part = shared.graph().sync()
    whole = part.launch().graph().sync()
    if depth == 2:
        whole = whole.launch().graph().sync()
    if first == "the whole":
        whole.launch().sync()
        shared.sync()
    part.close()
    del part
    gc.collect()
    if first == "the whole":
        shared.sync()
    else:
        with pytest.raises(NotFilledYetError, match="launch the graph first"):
            shared.sync()
        whole.launch().sync()
        shared.sync()
    assert x.to_host().sync()[0] == 1.0


def test_what_is_part_of_a_graph_in_a_graph_is_free_when_both_have_ended(device, kernels):
    x = ca.zeros(8).sync()
    shared = added(kernels, x)
    part = shared.graph().sync()
    whole = part.launch().graph().sync()
    part.close()
    with pytest.raises(NotFilledYetError):
        shared.sync()
    whole.close()
    shared.sync()
    assert x.to_host().sync()[0] == 1.0


@pytest.mark.parametrize("what", ["a shared operation", "an update"])
def test_part_that_ends_while_the_whole_is_recorded_is_the_wholes(device, kernels, what):
    x, y = ca.zeros(8).sync(), ca.zeros(8).sync()
    graph = ca.fill(y, 3.0).graph().sync()
    if what == "an update":
        graph.update(kernels.scale(x, 1.0, 1.0))
        part = graph.launch().graph().sync()
    else:
        shared = added(kernels, x)
        part = shared.graph().sync()
    with ca.CudaGraph.scope(device.create_stream()) as s:
        s.record(part.launch())
        part.close()
        if what == "an update":
            graph.launch().sync()
        else:
            with pytest.raises(NotFilledYetError):
                shared.sync()
    s.graph.launch().sync()
    graph.launch().sync()
    assert x.to_host().sync()[0] == 1.0


def test_part_of_an_operation_that_was_taken_back_is_nobodys(device, kernels):
    x = ca.zeros(8).sync()
    shared = added(kernels, x)
    part = shared.graph().sync()
    with ca.CudaGraph.scope(device.create_stream()) as s:
        with pytest.raises(ZeroDivisionError):
            s.record(part.launch().then(lambda _: 1 / 0))
        s.record(ca.fill(ca.zeros(8).sync(), 1.0))
        part.close()
        shared.sync()
    s.graph.launch().sync()
    assert x.to_host().sync()[0] == 1.0


def where(flag, op):
    return ca.if_else(flag, lambda: op, lambda: ca.value(None))


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_part_in_a_body_may_have_run_however_the_whole_ends(device, kernels, taken, end):
    x, flag = ca.zeros(8).sync(), ca.full(1, taken, "int32").sync()
    shared = added(kernels, x)
    part = shared.map(lambda _: None).graph().sync()
    middle = part.launch().graph().sync()
    whole = where(flag, middle.launch()).graph().sync()
    part.close()
    del part, middle
    gc.collect()
    with pytest.raises(NotFilledYetError, match="launch the graph first"):
        shared.sync()
    whole.launch().sync()
    if end == "closed":
        whole.close()
    del whole
    gc.collect()
    with pytest.raises(NotFilledYetError, match="body of a conditional, which may not have run"):
        shared.sync()
    assert x.to_host().sync()[0] == taken


def test_part_of_a_launch_that_failed_has_not_run(host, kernels):
    x, z = ca.zeros(8).sync(), ca.zeros(8).sync()
    shared = added(kernels, x).map(lambda _: None).shared()
    part = shared.graph().sync()
    whole = kernels.wild_write.launch(1, 1, 64).then(lambda _: part.launch()).graph().sync()
    with pytest.raises(ca.CudaAsyncError, match="wild_write"):
        whole.launch().sync()
    with pytest.raises(
        NotFilledYetError, match="launch 1 of the graph that this shared operation is part of failed"
    ):
        shared.then(lambda _: kernels.scale(z, 1.0, 1.0)).sync()
    assert [t.to_host().sync()[0] for t in (x, z)] == [0.0, 0.0]


def test_output_of_a_part_is_stale_when_the_whole_was_launched(device, kernels):
    part = ca.full(8, 2.0).graph().sync()
    output = part.take_output()
    whole = part.launch().graph().sync()
    whole.launch().sync()
    with pytest.raises(ca.StaleOutputError, match="this output of a graph is stale") as caught:
        output.to_host().sync()
    assert type(caught.value) is ca.StaleOutputError


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("ends_by", ["whole", "part", "another whole"])
def test_shared_part_has_its_value_from_the_first_run_in_a_whole_on(device, depth, closes, ends_by):
    """To the next run of the graph that it is part of, by whatever launch that comes."""
    shared = ca.full(8, 2.0).shared()
    part = shared.then(ca.copy).graph().sync()
    graphs = [part]
    for _ in range(depth):
        graphs.append(graphs[-1].launch().graph().sync())
    other = part.launch().graph().sync()
    with pytest.raises(NotFilledYetError):
        shared.sync()
    graphs[-1].launch().sync()
    assert shared.to_host().sync()[0] == 2.0
    if closes:
        for graph in graphs:
            graph.close()
        assert shared.to_host().sync()[0] == 2.0
        return
    {"whole": graphs[-1], "part": part, "another whole": other}[ends_by].launch().sync()
    with pytest.raises(ca.StaleOutputError, match="it is of launch 1"):
        shared.to_host().sync()


def test_shared_part_that_runs_twice_in_a_whole_has_no_value(device):
    shared = ca.full(8, 2.0).shared()
    part = shared.then(ca.copy).graph().sync()
    whole = part.launch().then(lambda _: part.launch()).graph().sync()
    whole.launch().sync()
    with pytest.raises(ca.StaleOutputError):
        shared.to_host().sync()


class MadeOtherwise(NotFilledYetError):
    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


class Prepared(ca.DeviceOp[None]):
    """By a worker thread."""

    def prepare(self, ctx):
        """Nothing to do."""

    def execute(self, ctx):
        """Nothing to do."""


@pytest.mark.timeout(30)
def test_refusal_of_a_class_of_ones_own_comes_out(device):
    def refused(_):
        raise MadeOtherwise("it", "as planned")

    shared = Prepared().then(refused).shared()
    futures = [shared.start() for _ in range(2)]
    for future in futures:
        with pytest.raises(MadeOtherwise, match="it: as planned"):
            future.sync()


def test_what_builds_on_an_operation_of_a_body_runs_when_that_graph_has_ended(device, kernels):
    x, z, flag = ca.zeros(8).sync(), ca.zeros(8).sync(), ca.zeros(1, "int32").sync()
    inner = added(kernels, x)
    outer = ca.value(0).then(lambda _: inner).then(lambda _: kernels.scale(z, 1.0, 1.0)).shared()
    graph = ca.if_else(flag, lambda: inner.map(lambda _: None), lambda: ca.value(None)).graph().sync()
    with pytest.raises(NotFilledYetError, match="first in the body of a conditional"):
        outer.sync()
    graph.close()
    for op in (inner, outer):
        op.sync()
    assert [t.to_host().sync()[0] for t in (x, z)] == [1.0, 1.0]


def test_what_waits_for_a_graph_does_not_keep_it(device, kernels):
    """What it was refused with is remembered, and not where."""
    x, z = ca.zeros(8).sync(), ca.zeros(8).sync()
    inner = added(kernels, x)
    outer = ca.value(0).then(lambda _: inner).then(lambda _: kernels.scale(z, 1.0, 1.0)).shared()

    def refused():
        graph = inner.graph().sync()
        with pytest.raises(NotFilledYetError):
            outer.sync()
        del graph

    refused()
    ca.drain().sync()
    gc.collect()
    for op in (inner, outer):
        op.sync()
    assert [t.to_host().sync()[0] for t in (x, z)] == [1.0, 1.0]
