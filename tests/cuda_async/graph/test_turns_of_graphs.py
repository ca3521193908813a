"""A graph that is part of another one: calling it from one thread while the other is launched from another."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.graph import _memory, _outputs
from cuda_async.graph._memory import living


def doubled(kernels, x):
    return kernels.scaled(x, 2.0, 0.0)


@pytest.fixture
def part_and_whole(device, kernels):
    """A graph `2 * x`, and one that has it as a part, with another input."""
    part = ca.graph_input("x", (64,)).then(lambda x: doubled(kernels, x)).graph().sync()
    whole = part.replay(x=100.0).then(ca.copy).graph().sync()
    return part, whole


def test_no_launch_of_the_whole_comes_into_a_call_of_the_part(device, part_and_whole, monkeypatch):
    """Between a call's launch and the copy of its output, another thread launches the graph that it is a part of."""
    part, whole = part_and_whole
    assert (part(x=1.0).sync().to_host().sync() == 2).all()
    assert (whole.launch().sync().to_host().sync() == 200).all()
    copying, launching = threading.Event(), threading.Event()
    build_copy = _outputs.OutputTemplate.build_copy

    def slow(self, *args):
        copying.set()
        assert launching.wait(10)
        thread.join(0.2)  # it must not come to its launch; that it does not can only be waited for
        return build_copy(self, *args)

    monkeypatch.setattr(_outputs.OutputTemplate, "build_copy", slow)

    def launch_whole():
        assert copying.wait(10)
        launching.set()
        seen.append(whole.launch().sync().to_host().sync())

    seen = []
    thread = threading.Thread(target=launch_whole)
    thread.start()
    called = part(x=3.0).sync().to_host().sync()
    thread.join()
    assert (called == 6).all()
    assert (seen[0] == 200).all()


def test_linking_while_others_are_launched(device, kernels, part_and_whole):
    """Captures with a graph inside, from several threads, while it is called from others."""
    part, _ = part_and_whole
    start = threading.Barrier(4)
    problems = []

    def call(number):
        start.wait()
        for i in range(30):
            value = float(number * 100 + i)
            if not (part(x=value).sync().to_host().sync() == 2 * value).all():
                problems.append(f"call with {value}")

    def capture(number):
        start.wait()
        for i in range(15):
            value = float(number * 100 + i)
            graph = part(x=value).then(lambda y: kernels.scaled(y, 1.0, 1.0)).graph().sync()
            if not (graph().sync().to_host().sync() == 2 * value + 1).all():
                problems.append(f"capture with {value}")

    def guarded(f, number):
        try:
            f(number)
        except BaseException as error:
            problems.append(repr(error))

    threads = [
        threading.Thread(target=guarded, args=(f, n)) for n, f in enumerate([call, call, capture, capture])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_graphs_that_ended_are_linked_no_more(host, kernels):
    """A part of many graphs, one after the other, knows those that are there."""
    part = ca.graph_input("x", (8,)).then(lambda x: doubled(kernels, x)).graph().sync()
    kept = [part.replay(x=1.0).then(ca.copy).graph().sync() for _ in range(5)][-1]
    gc.collect()
    last = part.replay(x=2.0).then(ca.copy).graph().sync()
    assert set(living(part._state.linked)) == {kept._state, last._state}
    assert set(living(kept._state.linked)) == {part._state, last._state}
    for _ in range(20):
        part.replay(x=2.0).then(ca.copy).graph().sync()
        gc.collect()
    assert max(len(graph._state.linked) for graph in (part, kept, last)) < 8
    assert len(part._state.turn.states) <= 4


def test_graphs_that_ended_take_turns_no_more(host, kernels):
    """Those that come and go in twos, beside one that stays."""
    x = ca.zeros(8).sync()
    kept = ca.fill(x, 1.0).graph().sync()
    for _ in range(60):
        part = ca.ones(8).graph().sync()
        part.launch().then(lambda t: ca.memcpy(x, t)).graph().sync().launch().sync()
        del part
        gc.collect()
    assert len(kept._state.turn.states) < 16
    assert len(x._buffer.usage.written_by) < 16


def test_graphs_over_parts_of_an_array_take_turns_with_one_over_all_of_it(host):
    array = np.zeros(64, "f4")
    parts = [ca.from_dlpack(array[:32]), ca.from_dlpack(array[32:])]
    graphs = [ca.fill(part, 1.0).graph().sync() for part in parts]
    assert graphs[0]._turn.lock is not graphs[1]._turn.lock
    graphs.append(ca.fill(ca.from_dlpack(array), 3.0).graph().sync())
    assert len({id(graph._turn.lock) for graph in graphs}) == 1


def test_import_that_joins_memory_while_it_is_noted_who_writes_it(host, monkeypatch):
    array, joined = np.zeros(16, "f4"), []
    part, other = ca.from_dlpack(array[:8]), ca.from_dlpack(array[8:])
    without_gone = _memory.without_gone

    def join(references, more=1):
        if not joined:
            thread = threading.Thread(target=lambda: joined.append(ca.from_dlpack(array)))
            thread.start()
            thread.join()
        return without_gone(references, more)

    monkeypatch.setattr(_memory, "without_gone", join)
    graphs = [ca.fill(tensor, 1.0).graph().sync() for tensor in (part, other)]
    assert joined
    assert graphs[0]._turn.lock is graphs[1]._turn.lock


def test_import_that_joins_memory_while_it_is_noted_what_is_yielded(host, monkeypatch):
    """What the graph yields is memory that it writes, by then."""
    array, joined = np.zeros(16, "f4"), []
    part, other = ca.from_dlpack(array[:8]), ca.from_dlpack(array[8:])
    of_tensor = _outputs.OutputTemplate._of_tensor

    def join(self, tensor):
        made = of_tensor(self, tensor)
        if not joined:
            joined.append(ca.from_dlpack(array))
        return made

    monkeypatch.setattr(_outputs.OutputTemplate, "_of_tensor", join)
    graph = ca.fill(part, 1.0).map(lambda _: other).graph().sync()
    kept = graph.launch().sync()
    graph.launch().sync()
    with pytest.raises(ca.StaleOutputError):
        kept.to_host().sync()


@pytest.mark.parametrize("how", ["captured", "changed", "imported", "imported later", "freed"])
def test_graphs_that_write_the_same_memory_take_turns(device, kernels, how):
    x, y = ca.zip(ca.zeros(8), ca.zeros(8)).sync()
    again = x
    graph = ca.copy(x).graph(inputs={"x": x}).sync()
    if how == "imported":
        x, again = ca.from_dlpack(x), ca.from_dlpack(x)
        graph = ca.copy(x).graph(inputs={"x": x}).sync()
    elif how == "imported later":
        x = ca.from_dlpack(x)
        graph = ca.copy(x).graph(inputs={"x": x}).sync()
        again = ca.from_dlpack(x)
    elif how == "freed":
        del graph
        gc.collect()
        graph = ca.copy(x).graph(inputs={"x": x}).sync()
    other = kernels.scale(y if how == "changed" else again, 1.0, 1.0).graph().sync()
    apart = kernels.scale(y, 1.0, 1.0).map(lambda _: None).graph().sync()
    if how == "changed":
        (node,) = kernels.scale(y, 1.0, 1.0).map(lambda _: None).graph().sync().nodes
        node.set_arguments({0: ca.mut(x)})
        other = node._graph
    assert graph._turn.lock is other._turn.lock
    assert how == "changed" or graph._turn.lock is not apart._turn.lock


def test_memory_that_came_in_twice_is_yielded_as_what_is_written(device, kernels):
    x = ca.zeros(8).sync()
    one, two = ca.from_dlpack(x), ca.from_dlpack(x)
    graph = kernels.scale(one, 1.0, 1.0).map(lambda _: two).graph().sync()
    called = [graph().sync() for _ in range(3)]
    assert [t.to_host().sync()[0] for t in called] == [1.0, 2.0, 3.0]
    kept = graph.launch().sync()
    graph.launch().sync()
    with pytest.raises(ca.StaleOutputError):
        kept.to_host().sync()


def owned(kind):
    """A tensor: the caller's, or what another graph yields, with that graph."""
    if kind == "caller's":
        return ca.zeros(64).sync(), None
    owner = ca.full(64, 9.0).graph().sync()
    return owner.launch().sync(), owner


@pytest.mark.parametrize("kind", ["caller's", "another graph's"])
@pytest.mark.parametrize("uses", ["read", "written"])
def test_no_launch_of_a_graph_that_writes_the_same_tensor_comes_into_a_call(device, monkeypatch, kind, uses):
    """Between setting the input and the launch, or the launch and the copy of the output."""
    x, owner = owned(kind)
    if uses == "read":
        graph, other = (ca.copy(x).graph(inputs={"x": x}).sync() for _ in range(2))
        call, disturb = (lambda: graph(x=1.0)), (lambda: other(x=2.0))
        where, name = type(graph), "_launch_on"
    else:
        graph, other = (ca.fill(x, value).graph().sync() for value in (1.0, 2.0))
        call, disturb = (lambda: graph()), (lambda: other.launch())
        where, name = _outputs.OutputTemplate, "build_copy"
    if owner is not None:
        disturb = owner.launch
    held, mine, threads = getattr(where, name), threading.get_ident(), []

    def let_in(self, *args):
        if threading.get_ident() == mine and not threads:
            threads.append(threading.Thread(target=lambda: disturb().sync()))
            threads[0].start()
            threads[0].join(0.2)  # it must not come to its launch; that it does not can only be waited for
        return held(self, *args)

    disturb().sync()  # prepares it
    call().sync()
    monkeypatch.setattr(where, name, let_in)
    found = call().sync()
    threads[0].join()
    assert (found.to_host().sync() == 1.0).all()


def test_input_that_is_an_import_of_what_the_graph_uses(device):
    """Memory that came in twice is one memory for inputs too; other bytes of it are not."""
    array = np.arange(8, dtype="f4") if device.kind == "host" else ca.ones(8).sync()
    one, two = ca.from_dlpack(array), ca.from_dlpack(array)
    graph = ca.copy(one[:4]).graph(inputs={"x": two}).sync()
    assert (graph(x=5.0).sync().to_host().sync() == 5).all()
    other = ca.zeros(8).sync()
    with pytest.raises(ca.CaptureError, match="nothing in the graph uses its input 'x'"):
        ca.copy(one).graph(inputs={"x": other}).sync()


def test_input_beside_what_the_graph_uses_of_one_memory(host):
    array = np.zeros(16, "f4")
    used, beside, everything = (ca.from_dlpack(a) for a in (array[:8], array[8:], array))
    with pytest.raises(ca.CaptureError, match="nothing in the graph uses its input 'x'"):
        ca.copy(used).graph(inputs={"x": beside}).sync()
    graph = ca.copy(used).graph(inputs={"x": everything}).sync()
    assert (graph(x=5.0).sync().to_host().sync() == 5).all()
