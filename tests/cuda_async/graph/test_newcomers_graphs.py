"""What users try first, and what they get wrong: inputs, names, outputs that are inputs, closed graphs in a cache."""

from __future__ import annotations

import threading

import anyio
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.errors import AliasError, CaptureError, StaleOutputError
from cuda_async.testing import checked_device

pytestmark = pytest.mark.anyio


async def test_output_that_is_a_named_input(device, kernels):
    """Replaying sets it, so the first result is an error later, and never another replay's numbers."""
    x = await ca.zeros(8)
    graph = await ca.value((x, x[2:4], 5)).graph(inputs={"x": x})
    first, view, number = await graph.replay(x=1.5)
    assert number == 5
    assert (await first.to_host()).tolist() == [1.5] * 8
    assert (await view.to_host()).tolist() == [1.5] * 2
    second, _, _ = await graph.replay(x=2.5)
    for stale in (first, view):
        with pytest.raises(StaleOutputError, match="stale: it is of launch 1"):
            await stale.to_host()
    assert (await second.to_host())[0] == (await x.to_host())[0] == 2.5
    kept = [(await graph(x=float(i)))[0] for i in range(3)]
    assert [(await k.to_host())[0] for k in kept] == [0.0, 1.0, 2.0]


async def test_a_graphs_memory_is_not_read_while_it_is_recorded(device, kernels):
    """What is recorded yields tensors that hold nothing yet; ordinary work on them is refused, before and behind."""
    x = await ca.ones(8)
    async with ca.CudaGraph.scope(device.create_stream()) as scope:
        y = await scope.arecord(kernels.scaled(x, 2.0, 1.0))
        for use in (
            y.to_host,
            lambda: ca.copy(y[2:]),
            lambda: kernels.scale(y, 1.0, 1.0),
            lambda: ca.fill(y, 1),
        ):
            with pytest.raises(StaleOutputError, match="being recorded, and holds nothing yet"):
                await use()
        scope.returns(await scope.arecord(kernels.scaled(y, 1.0, 1.0)))
    with pytest.raises(StaleOutputError, match="empty"):
        await y.to_host()
    assert (await (await scope.graph.launch()).to_host())[0] == 4.0


async def test_an_input_that_belongs_to_the_graph_may_be_set_while_it_is_recorded(device, kernels):
    async with ca.CudaGraph.scope(device.create_stream()) as scope:
        x = await scope.arecord(ca.graph_input("x", (8,)))
        await ca.fill(x, 3.0)
        scope.returns(await scope.arecord(kernels.scaled(x, 2.0, 1.0)))
    assert (await (await scope.graph.launch()).to_host())[0] == 7.0


@pytest.mark.parametrize("how", ["replay", "__call__"])
async def test_values_of_the_wrong_kind_are_named(device, kernels, how):
    """The message says which input, what it is, and what was given; updates are kept for the next launch."""
    x, y = await ca.zip(ca.zeros((2, 4)), ca.zeros(2, "int8"))
    both = kernels.scaled(x, 2.0, 1.0).then(lambda out: ca.copy(y).map(lambda _: out))
    graph = await both.graph(inputs={"x": x, "y": y})
    graph.update(ca.fill(x, 4.0))
    for name, value, error, message in (
        ("x", np.zeros((2, 3), "f4"), ValueError, r"input 'x', float32 \(2, 4\): .*\(2, 3\)"),
        ("x", np.zeros((2, 4)), TypeError, r"input 'x', float32 \(2, 4\): .*float64"),
        ("x", "no", TypeError, r"input 'x', float32"),
        ("x", None, TypeError, r"input 'x', float32"),
        ("y", 300, OverflowError, r"input 'y', int8 \(2,\): .*300"),
    ):
        with pytest.raises(error, match=f"the graph's {message}"):
            await getattr(graph, how)(**{name: value})
    assert (await (await getattr(graph, how)()).to_host())[0, 0] == 9.0
    with pytest.raises(ValueError, match=r"the graph's input 'x', float32 \(2, 4\)"):
        await getattr(graph, how)(x=ca.zeros(3))  # an operation: when it has run


@pytest.mark.parametrize(
    "number", [2, 2.0, np.float32(2), np.float64(2), np.int32(2), ca.bfloat16.type(2)], ids=repr
)
async def test_any_number_fills_an_input(device, kernels, number):
    x = await ca.zeros((2, 4))
    graph = await kernels.scaled(x, 2.0, 1.0).graph(inputs={"x": x})
    assert (await (await graph.replay(x=number)).to_host() == 5.0).all()


async def test_names_of_inputs(device, kernels):
    """Used once, wherever they come from; any text, also what methods name their own."""
    x = await ca.zeros(8)
    own = ca.graph_input("x", (8,)).then(lambda t: kernels.scaled(t, 2.0, 1.0))
    with pytest.raises(CaptureError, match="input 'x' already; names are used once"):
        await own.graph(inputs={"x": x})
    stream = device.create_stream()
    with (
        pytest.raises(CaptureError, match="input 'x' already"),
        ca.CudaGraph.scope(stream, inputs={"x": x}) as scope,
    ):
        scope.record(ca.graph_input("x", (8,)))
    graph = await kernels.scaled(x, 2.0, 1.0).graph(inputs={"self": x})
    assert (await (await graph.replay(self=1.0)).to_host())[0] == 3.0
    assert (await (await graph(self=2.0)).to_host())[0] == 5.0


async def test_a_name_is_free_again_when_its_operation_failed(device, kernels):
    """Recording an operation that fails leaves the recording as it was: without its inputs."""
    with ca.CudaGraph.scope(device.create_stream()) as scope:
        with pytest.raises(ZeroDivisionError):
            scope.record(ca.graph_input("x", (3,)).then(lambda x: 1 / 0))
        x = scope.record(ca.graph_input("x", (8,)))
        scope.returns(scope.record(kernels.scaled(x, 2.0, 1.0)))
    assert list(scope.graph.inputs) == ["x"]
    assert (await (await scope.graph.replay(x=1.0)).to_host()).tolist() == [3.0] * 8


async def test_a_closed_graph_makes_room_in_its_cache(device, kernels):
    """Whoever asks next gets a graph that can be launched."""
    cache = ca.GraphCache(lambda n: ca.graph_input("x", (n,)).then(lambda x: kernels.scaled(x, 2.0, 1.0)))
    graph = await cache.get(8)
    assert await cache.get(8) is graph
    await graph.aclose()
    again = await cache.get(8)
    assert (await (await again(x=1.0)).to_host())[0] == 3.0
    assert len(cache) == 1


def test_caches_are_refused_at_once():
    for build in (3, ca.value(3)):
        with pytest.raises(TypeError, match="build is a function of a key"):
            ca.GraphCache(build)
    with pytest.raises(TypeError, match="max_graphs is a number of graphs, got 'a'"):
        ca.GraphCache(ca.zeros, max_graphs="a")
    with pytest.raises(TypeError, match=r"buckets are sizes, such as .* got 5"):
        ca.GraphCache(ca.zeros, buckets=5)
    with pytest.raises(ValueError, match="buckets are sizes from 0 on, got -1"):
        ca.GraphCache(ca.zeros, buckets=(4, -1))


async def test_a_choice_needs_something_to_choose(device):
    with pytest.raises(TypeError, match=r"if_else\(\) takes functions that return operations, got NoneType"):
        ca.if_else(await ca.ones(1, "int32"), None)


class Pausing(ca.DeviceOp):
    """An operation whose preparation waits, so that others come in between."""

    def __init__(self, begun, go_on):
        self.begun = begun
        self.go_on = go_on

    def needs_prepare(self, ctx):
        return not self.go_on.is_set()

    def prepare(self, ctx):
        self.begun.set()
        assert self.go_on.wait(30)

    def execute(self, ctx):
        return None


async def test_one_operation_at_a_time_is_recorded(device, kernels):
    """Two at once would be one graph in an order that nobody chose, and undoing one would take of the other."""
    x = await ca.ones(8)
    begun, go_on = threading.Event(), threading.Event()
    async with ca.CudaGraph.scope(device.create_stream()) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(scope.arecord, Pausing(begun, go_on))
            await anyio.to_thread.run_sync(begun.wait)
            with pytest.raises(CaptureError, match="another task or thread is recording"):
                scope.record(kernels.scaled(x, 2.0, 1.0))
            with pytest.raises(CaptureError, match="another task or thread is recording"):
                await scope.arecord(kernels.scaled(x, 2.0, 1.0))
            go_on.set()
        scope.returns(await scope.arecord(kernels.scaled(x, 2.0, 1.0)))
    assert (await (await scope.graph.launch()).to_host())[0] == 3.0


async def test_a_block_that_ends_while_an_operation_is_recorded(device, kernels):
    """Half of an operation makes no graph: the block fails, and so does the operation."""
    x = await ca.ones(8)
    begun, go_on = threading.Event(), threading.Event()
    problems = []

    async def left_behind(scope):
        try:
            await scope.arecord(kernels.scaled(x, 2.0, 1.0).then(lambda y: Pausing(begun, go_on)))
        except CaptureError as error:
            problems.append(str(error))

    scope = ca.CudaGraph.scope(device.create_stream())
    async with anyio.create_task_group() as group:

        async def block():
            async with scope:
                group.start_soon(left_behind, scope)
                await anyio.to_thread.run_sync(begun.wait)

        with pytest.raises(CaptureError, match="still being recorded in this scope; await it inside"):
            await block()
        go_on.set()
    assert [p.partition(";")[0] for p in problems] == [
        "the scope ended while this operation was being recorded"
    ]
    with pytest.raises(CaptureError, match="ended with an error"):
        _ = scope.graph
    assert (await kernels.scaled(x, 2.0, 1.0).to_host())[0] == 3.0


async def test_a_copy_does_not_read_what_it_writes(device):
    x, y = await ca.zip(ca.zeros(8), ca.ones(4))
    graph = await ca.memcpy(x[1:5], y).graph()
    (copied,) = graph.nodes
    for source in (x[0:4], x[1:5], x[4:8]):
        with pytest.raises(AliasError, match="the node writes memory of"):
            copied.set_source(source)
    await ca.fill(x[5:], 3.0)
    with pytest.raises(CaptureError, match="the node copies 16 contiguous bytes"):
        copied.set_source(x[5:8])
    await graph.launch()
    assert (await x.to_host()).tolist() == [0, 1, 1, 1, 1, 3, 3, 3]


async def test_a_graph_that_is_a_part_twice(device, kernels):
    """Its first output is stale behind the second launch, as it is outside of a recording; copies are not."""
    x = await ca.zeros(8)
    part = await kernels.scaled(x, 2.0, 1.0).graph(inputs={"x": x})

    def used_behind(first):
        return part.replay(x=2.0).then(lambda second: ca.zip(ca.copy(first), ca.copy(second)))

    def used_before(first):
        return ca.copy(first).then(lambda a: part.replay(x=2.0).then(ca.copy).map(lambda b: (a, b)))

    for op in (part.replay(x=1.0).then(used_behind), ca.zip(part.replay(x=1.0), part.replay(x=2.0))):
        with pytest.raises(StaleOutputError, match="the recording launches the graph again"):
            await op.graph()
    for op in (part.replay(x=1.0).then(used_before), ca.zip(part(x=1.0), part(x=2.0))):
        graph = await op.graph()
        for made, expected in zip(await graph.launch(), (3.0, 5.0)):
            assert (await made.to_host()).tolist() == [expected] * 8
    assert (await (await part.replay(x=3.0)).to_host())[0] == 7.0


async def test_a_forgotten_await_is_named(device):
    op = ca.ones(8).graph()
    with pytest.raises(AttributeError, match=r"an operation that makes a graph: await it.*\.launch"):
        op.launch()
    with pytest.raises(AttributeError, match=r"no attribute 'lunch'$"):
        op.lunch()
    assert (await (await op).launch().to_host())[0] == 1.0


def test_an_input_of_another_device_is_named(host):
    with ca.use_device(checked_device()):
        elsewhere = ca.ones(8).sync()
    x = ca.ones(8).sync()
    with pytest.raises(ca.ContextError, match=r"the graph's input 'x' is on host:.*captured on host:"):
        ca.copy(x).graph(inputs={"x": elsewhere}).sync()


async def test_names_of_inputs_are_words(host):
    x = await ca.ones(4)
    for name in (1, ""):
        with pytest.raises(TypeError, match="a graph's inputs are named by words"):
            ca.copy(x).graph(inputs={name: x})
        with pytest.raises(TypeError, match="a graph's inputs are named by words, got"):
            ca.graph_input(name, (4,))
    with pytest.raises(TypeError, match="'x': Full; await it first"):
        ca.copy(x).graph(inputs={"x": ca.ones(4)})


class ClosedMeanwhile(dict):
    """A graph's inputs; the graph is closed when a call looks at them."""

    def __contains__(self, name):
        self.graph.close()
        return super().__contains__(name)


async def test_call_of_a_graph_that_another_thread_closes_meanwhile(host):
    graph = await ca.graph_input("x", (4,)).then(ca.copy).graph()
    graph._inputs = ClosedMeanwhile(graph._inputs)
    graph._inputs.graph = graph
    with pytest.raises(ca.ClosedError, match="this graph is closed"):
        await graph(x=1.0)
