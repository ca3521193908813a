"""Recordings that are given up by several, or twice: each shared operation and update once, whoever has it by then."""

from __future__ import annotations

import gc

import pytest

import cuda_async as ca
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
