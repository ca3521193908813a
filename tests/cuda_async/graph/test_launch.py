"""Launching graphs: outputs and their generations, inputs, order with other work, parts of other graphs, closing."""

from __future__ import annotations

import functools
import gc
import threading
from collections import deque
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import anyio
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver.host import HostDriver
from cuda_async.errors import CaptureError, ClosedError, KernelError, StaleOutputError

pytestmark = pytest.mark.anyio


async def test_output_is_good_until_the_next_launch(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 1.0).graph()
    first = await graph.launch()
    view = first[2:4].reshape(2, 1)
    assert (await view.to_host()).tolist() == [[3.0], [3.0]]
    second = await graph.launch()
    for stale in (first, view):
        with pytest.raises(StaleOutputError, match="stale: it is of launch 1"):
            await stale.to_host()
    assert (await second.to_host())[0] == 3.0


async def test_output_is_empty_before_the_first_launch(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 1.0).graph()
    output = graph.take_output()
    with pytest.raises(StaleOutputError, match="empty"):
        await kernels.scale(output, 1.0, 1.0)
    await graph.launch()
    assert (await output.to_host())[0] == 3.0
    await graph.launch()
    with pytest.raises(StaleOutputError, match="stale"):
        ca.from_dlpack(output)
    assert (await graph.take_output().to_host())[0] == 3.0


async def test_read_that_was_enqueued_before_the_next_launch_is_right(device, kernels):
    """The next launch waits for it, on the device."""
    x, *places = await ca.collect([ca.ones(8)] + [ca.empty(8) for _ in range(10)])
    graph = await kernels.scaled(x, 2.0, 0.0).graph(inputs={"x": x})
    streams = [ca.SingleStream(device.create_stream()) for _ in range(2)]

    def read_into(place):  # all is there: nothing is to be prepared, so it is enqueued at once
        return lambda output: ca.memcpy(place, output)

    for i, place in enumerate(places):
        graph.replay(x=float(i)).then(read_into(place)).start(streams[i % 2])
    for i, place in enumerate(places):
        assert (await place.to_host()).tolist() == [2.0 * i] * 8


class Pair(NamedTuple):
    tensor: object
    number: int


@dataclass(frozen=True)
class Result:
    tensors: dict
    label: str


async def test_structure_of_the_output_is_kept(device, kernels):
    x, weights = await ca.zip(ca.ones(8), ca.full(8, 4.0))

    def pack(y):
        return Result({"pair": Pair(y, 5), "list": [y[:4], weights], "tile": y.partition(4)}, "mine")

    graph = await kernels.scaled(x, 2.0, 0.0).map(pack).graph()
    result = await graph.launch()
    assert type(result) is Result
    assert (result.label, result.tensors["pair"].number) == ("mine", 5)
    assert result.tensors["list"][1] is weights
    assert result.tensors["tile"].tile_shape == (4,)
    assert result.tensors["list"][0]._buffer is result.tensors["pair"].tensor._buffer
    await graph.launch()
    for stale in (
        result.tensors["pair"].tensor,
        result.tensors["list"][0],
        result.tensors["tile"].unpartition(),
    ):
        with pytest.raises(StaleOutputError):
            await stale.to_host()
    assert (await weights.to_host())[0] == 4.0


class Tagged(tuple):
    def __new__(cls, tensor, tag):
        made = super().__new__(cls, (tensor,))
        made.tag = tag
        return made


class Stack(list):
    def __init__(self, *, tensor):
        super().__init__([tensor])


async def test_operands_and_sequences_of_own_classes(device, kernels):
    x = await ca.ones(8)

    def pack(y):
        return ca.mut(y), ca.read(y), Tagged(y, "mine"), Stack(tensor=y)

    graph = await kernels.scaled(x, 2.0, 0.0).map(pack).graph()
    before = await graph.launch()
    for launch in (graph.launch, graph):
        written, read, tagged, stack = await launch()
        assert (type(written), type(read)) == (ca.Mut, ca.Read)
        assert (type(tagged), tagged.tag, type(stack)) == (Tagged, "mine", Stack)
        for tensor in (written.tensor, read.tensor, tagged[0], stack[0]):
            assert (await tensor.to_host())[0] == 2.0
    with pytest.raises(StaleOutputError):
        await before[2][0].to_host()


@pytest.mark.parametrize(
    "wrap", [lambda y: SimpleNamespace(y=y), lambda y: {y}, lambda y: frozenset([y]), lambda y: deque([y])]
)
async def test_objects_that_are_not_looked_through_are_refused(device, kernels, wrap):
    x = await ca.ones(8)
    with pytest.raises(CaptureError, match=r"yields a tensor in a (SimpleNamespace|set|frozenset|deque)"):
        await kernels.scaled(x, 2.0, 0.0).map(wrap).graph()
    graph = await kernels.scaled(x, 2.0, 0.0).map(lambda y: (y, wrap(x))).graph()  # x is nobody's output
    assert (await graph.launch())[1] is not None


class Slotted:
    __slots__ = ("__weakref__", "y")

    def __init__(self, y):
        self.y = y

    def get(self):
        return self.y


@dataclass
class Beside:
    """Has an attribute that is no field."""

    name: str

    def beside(self, y):
        self.y = y
        return self


@pytest.mark.parametrize(
    "wrap",
    [
        Slotted,
        lambda y: SimpleNamespace(inner=SimpleNamespace(y=y)),
        lambda y: SimpleNamespace(parts=[Slotted(y)]),
        lambda y: MappingProxyType({"y": y}),
        lambda y: {y: 1},
        lambda y: {"y": {ca.read(y)}},
        lambda y: {("y", y): 1},
        lambda y: lambda: y,
        lambda y: functools.partial(max, y),
        lambda y: functools.partial(max, key=y),
        lambda y: ValueError(y),
        lambda y: Slotted(y).get,
        lambda y: Tagged((), y),
        lambda y: Beside("mine").beside(y),
    ],
)
async def test_tensors_deeper_in_objects_are_refused(device, kernels, wrap):
    x = await ca.ones(8)
    with pytest.raises(CaptureError, match="cannot say there which launch its contents are of"):
        await kernels.scaled(x, 2.0, 0.0).map(wrap).graph()
    graph = await kernels.scaled(x, 2.0, 0.0).map(lambda y: (y, wrap(x))).graph()
    assert (await graph.launch())[1] is not None


async def test_outputs_that_contain_themselves_are_refused(device, kernels):
    x = await ca.ones(8)

    ring: list[object] = []
    ring.append(ring)
    knotted: dict[str, object] = {}
    knotted["me"] = (knotted,)
    for value in (ring, knotted):
        with pytest.raises(CaptureError, match="contains itself"):
            await kernels.scaled(x, 2.0, 0.0).map(lambda y, value=value: (y, value)).graph()
    knot = SimpleNamespace()
    knot.me = knot
    graph = await kernels.scaled(x, 2.0, 0.0).map(lambda y: (y, knot)).graph()
    assert (await graph.launch())[1] is knot


async def test_a_launch_that_failed_filled_nothing(host):
    """What it was to fill is said to be so, to who comes later too, until a launch fills it."""
    fails = True

    def maybe(_):
        if fails:
            raise ValueError("as planned")

    shared = (
        ca.full(2, 7.0)
        .then(lambda x: ca.foreign(maybe, writes=[x]))
        .then(lambda made: ca.copy(made[0]))
        .shared()
    )
    graph = await shared.then(ca.copy).graph()
    launched = graph.launch().start()
    with pytest.raises(KernelError, match="as planned"):
        await launched
    assert graph.launches == 1
    held = graph.take_output()
    for op in (shared.to_host, held.to_host, lambda: ca.copy(graph.take_output())):
        for _ in range(2):
            with pytest.raises(StaleOutputError, match=r"launch 1 of the graph.* failed .*as planned"):
                await op()
    fails = False
    assert (await (await graph.launch()).to_host()).tolist() == [7.0, 7.0]
    with pytest.raises(StaleOutputError, match="a later launch"):
        await held.to_host()


async def test_a_failure_of_an_earlier_launch_concerns_that_one(host):
    """It is known when the next one is enqueued behind it."""
    first = [True]
    goes_on = threading.Event()

    def once(_):
        if first:
            first.clear()
            assert goes_on.wait(10)
            raise ValueError("as planned")

    graph = (
        await ca.full(2, 7.0)
        .then(lambda x: ca.foreign(once, writes=[x]))
        .then(lambda made: ca.copy(made[0]))
        .graph()
    )
    on_it = ca.SingleStream(host.create_stream())
    failed = graph.launch().start(on_it)
    launched = graph.launch().start(on_it)
    goes_on.set()
    with pytest.raises(KernelError, match="as planned"):
        await failed
    assert (await (await launched).to_host()).tolist() == [7.0, 7.0]
    assert (await graph.take_output().to_host()).tolist() == [7.0, 7.0]


async def test_output_that_is_the_callers_tensor(device, kernels):
    """It comes back under a second name; the two are known to be the same memory."""
    x = await ca.ones(8)
    graph = await kernels.scale(x, 2.0, 0.0).graph()
    out = await graph.launch()
    with pytest.raises(ca.AliasError):
        await kernels.affine_to.launch(1, 8, ca.mut(x), ca.read(out), 8, 1.0, 0.0)
    await kernels.scale(x, 1.0, 1.0)
    assert (await out.to_host())[0] == 3.0
    await graph.launch()
    with pytest.raises(StaleOutputError):
        await out.to_host()
    assert (await x.to_host())[0] == 6.0


async def test_output_that_is_the_callers_tensor_is_freed_with_it(device, kernels):
    """Its memory is another tensor's by then, perhaps."""
    x = await ca.ones(8)
    graph = await kernels.scale(x, 2.0, 0.0).graph()
    out = await graph.launch()
    x.free()
    others = [await ca.full(8, 7.0) for _ in range(3)]
    for use in (out.to_host, lambda: ca.fill(out, -1.0), lambda: kernels.scale(out, 1.0, 1.0)):
        with pytest.raises(ClosedError, match="this tensor's memory was freed"):
            await use()
    with pytest.raises(ClosedError, match="this tensor's memory was freed"):
        await ca.copy(out).graph()
    assert [(await other.to_host()).tolist() for other in others] == [[7.0] * 8] * 3


async def test_tensor_is_not_freed_under_an_array_of_an_output_that_it_is(host, kernels):
    x = await ca.ones(8)
    graph = await kernels.scale(x, 2.0, 0.0).graph()
    array = np.from_dlpack(await graph.launch())
    with pytest.raises(BufferError, match=r"in use by 1 other array\(s\)"):
        x.free()
    assert array.tolist() == [2.0] * 8
    del array
    x.free()


async def test_inputs_by_name(device, kernels):
    x, bias, y = await ca.zip(ca.ones(4), ca.zeros(4), ca.empty(4))
    op = kernels.add_to.launch(1, 4, ca.mut(y), ca.read(x), ca.read(bias), 4)
    graph = await op.first().graph(inputs={"x": x, "bias": bias})
    assert (await graph.replay(x=np.arange(4, dtype="f4"), bias=10).to_host()).tolist() == [10, 11, 12, 13]
    assert (await graph.replay(x=await ca.ones(4)).to_host()).tolist() == [11] * 4
    assert (await graph.replay(bias=ca.full(4, 2.5)).to_host()).tolist() == [3.5] * 4
    with pytest.raises(TypeError, match="no input 'z'; its inputs: x, bias"):
        graph.replay(z=1)
    with pytest.raises(ValueError, match="shape"):
        graph.replay(x=np.zeros(5, "f4"))
    assert (await graph.launch().to_host()).tolist() == [3.5] * 4


async def test_numbers_that_fill_inputs_are_converted_as_by_fill(device):
    x, n = await ca.zeros(2), await ca.zeros(2, "int32")
    graph = await ca.zip(ca.copy(x), ca.copy(n)).graph(inputs={"x": x, "n": n})
    floats, whole = await graph.replay(x=1e50, n=1.5)
    assert (await floats.to_host()).tolist() == [np.inf] * 2
    assert (await whole.to_host()).tolist() == [1] * 2
    for wrong in ({"n": 2**31}, {"n": 1e20}, {"x": 10**400}):
        with pytest.raises(OverflowError, match=r"^the graph's input '[xn]', .* does not fit (int|float)32"):
            graph.replay(**wrong)


async def test_input_that_belongs_to_the_graph(device, kernels):
    graph = await ca.graph_input("x", (8,)).then(lambda x: kernels.scaled(x, 3.0, 0.0)).graph()
    assert (await graph.replay(x=np.full(8, 2.0, "f4")).to_host())[0] == 6.0
    assert (await graph.replay(x=5).to_host())[0] == 15.0
    await ca.fill(graph.inputs["x"], 1.0)
    assert (await graph.launch().to_host())[0] == 3.0


async def test_graph_input_outside_of_a_capture_is_refused(device):
    with pytest.raises(ca.CaptureError, match="captured"):
        await ca.graph_input("x", (8,))


async def test_inputs_of_one_call_are_no_other_s(host, kernels, monkeypatch):
    """Operations as inputs, of calls that another thread makes at the same moment."""
    graph = await ca.graph_input("x", (8,)).then(lambda x: kernels.scaled(x, 2.0, 0.0)).graph()
    graph.update(ca.value(None))
    calls = [graph(x=ca.full(8, float(i))) for i in range(3)]
    assert [(await call.to_host())[0] for call in calls] == [0.0, 2.0, 4.0]


async def test_a_graph_reads_what_the_other_launched_last(device, kernels):
    """It is captured over the other's memory, of whatever launch."""
    first = await ca.graph_input("x", (8,)).then(lambda x: kernels.scaled(x, 2.0, 0.0)).graph()
    second = await kernels.scaled(await first.replay(x=1.0), 10.0, 0.0).graph()
    await first.replay(x=3.0)
    assert (await second.launch().to_host())[0] == 60.0


async def test_launches_compose(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    op = graph.launch().then(lambda t: kernels.scaled(t, 1.0, 1.0))
    a, b = await ca.zip(op, graph.launch())
    assert ((await a.to_host())[0], (await b.to_host())[0]) == (3.0, 2.0)


def test_two_launches_in_flight_are_ordered(stepped, kernels):
    """The second, on another stream, waits for an event behind the first, even where they share no tensor."""
    streams = [stepped.create_stream() for _ in range(2)]
    future = ca.ones(8).start(ca.SingleStream(streams[0]))
    stepped.driver.advance_all()
    x = future.result()
    kernels.affine_to.load(stepped)
    graph = kernels.scaled(x, 2.0, 0.0).graph_on(streams[0]).sync()
    stepped.driver.advance_all()
    first = graph.launch().start(ca.SingleStream(streams[0]))
    second = graph.launch().start(ca.SingleStream(streams[1]))
    assert stepped.driver.is_blocked(streams[1].handle)
    stepped.driver.advance_all()
    assert first.done
    assert second.done


def test_launch_is_ordered_with_work_outside(stepped, kernels):
    """Before it, a write of what it reads; after it, a read of what it writes; each on a stream of its own."""
    streams = [stepped.create_stream() for _ in range(3)]
    policies = [ca.SingleStream(s) for s in streams]
    future = ca.zip(ca.ones(8), ca.zeros(8)).start(policies[0])
    stepped.driver.advance_all()
    x, y = future.result()
    for name in ("affine", "affine_to"):
        getattr(kernels, name).load(stepped)
    launch = kernels.affine_to.launch(1, 8, ca.mut(y), ca.read(x), 8, 2.0, 0.0)
    graph = launch.graph_on(streams[1]).sync()
    stepped.driver.advance_all()
    kernels.scale(x, 5.0, 0.0).start(policies[0])
    graph.launch().start(policies[1])
    assert stepped.driver.is_blocked(streams[1].handle)
    after = kernels.scale(y, 1.0, 1.0).start(policies[2])
    assert stepped.driver.is_blocked(streams[2].handle)
    stepped.driver.advance_all()
    assert after.done


async def test_graph_inside_a_graph(device, kernels):
    x = await ca.ones(8)
    inner = await kernels.scaled(x, 2.0, 0.0).graph()
    outer = await inner.launch().then(lambda y: kernels.scaled(y, 1.0, 1.0)).graph()
    assert [node.kind for node in outer.nodes] == ["graph", "kernel"]
    alone = await inner.launch()
    out = await outer.launch()
    assert (await out.to_host())[0] == 3.0
    with pytest.raises(StaleOutputError):
        await alone.to_host()
    del inner
    gc.collect()
    await ca.fill(x, 4.0)
    assert (await outer.launch().to_host())[0] == 9.0


async def test_graph_inside_a_graph_is_ordered_with_other_branches(device, kernels):
    """With who uses the same memory, before it and after it."""
    x, y = await ca.zip(ca.zeros(8), ca.zeros(8))
    inner = await kernels.affine_to.launch(1, 8, ca.mut(y), ca.read(x), 8, 2.0, 0.0).graph()
    op = ca.parallel(
        kernels.scale(x, 1.0, 3.0), inner.launch(), kernels.scale(x, 0.0, 9.0), kernels.scale(y, 1.0, 1.0)
    )
    graph = await op.graph()
    assert [(node.kind, node.depends_on) for node in graph.nodes] == [
        ("kernel", ()),
        ("graph", (0,)),
        ("kernel", (0, 1)),
        ("kernel", (1,)),
    ]
    await graph.launch()
    assert ((await x.to_host())[0], (await y.to_host())[0]) == (9.0, 7.0)


async def test_output_over_a_childs_memory_is_stale_after_its_launch(device, kernels):
    x = await ca.ones(8)
    inner = await kernels.scaled(x, 2.0, 0.0).graph()
    outer = await inner.launch().graph()
    out = await outer.launch()
    assert (await out.to_host())[0] == 2.0
    await inner.launch()
    with pytest.raises(StaleOutputError):
        await out.to_host()


async def test_replay_inside_a_capture(device, kernels):
    inner = await ca.graph_input("x", (8,)).then(lambda x: kernels.scaled(x, 2.0, 0.0)).graph()
    source = await ca.full(8, 3.0)
    outer = await inner.replay(x=source).then(lambda y: kernels.scaled(y, 1.0, 1.0)).graph()
    assert (await outer.launch().to_host())[0] == 7.0
    await ca.fill(source, 10.0)
    assert (await outer.launch().to_host())[0] == 21.0


async def test_output_may_be_an_operand_of_another_graph(device, kernels):
    x = await ca.ones(8)
    first = await kernels.scaled(x, 2.0, 0.0).graph()
    mid = await first.launch()
    second = await kernels.scaled(mid, 1.0, 1.0).graph()
    del mid
    await ca.fill(x, 10.0)
    await first.launch()
    assert (await second.launch().to_host())[0] == 21.0


async def test_kept_output_outlives_the_graph(device, kernels):
    x = await ca.ones(8)
    async with await kernels.scaled(x, 2.0, 0.0).graph() as graph:
        out = await graph.launch()
    assert graph.is_closed
    del graph
    gc.collect()
    assert (await out.to_host())[0] == 2.0


async def test_closed_graph_says_so(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    op = graph.launch()
    await graph.launch()
    await graph.aclose()
    await graph.aclose()
    for use in (graph.launch, graph.take_output, graph.replay):
        with pytest.raises(ClosedError, match="graph is closed"):
            use()
    with pytest.raises(ClosedError, match="graph is closed"):
        await op


def test_closing_waits_for_the_last_launch(stepped, kernels, monkeypatch):
    streams = [ca.SingleStream(stepped.create_stream()) for _ in range(2)]
    future = ca.ones(8).start(streams[0])
    stepped.driver.advance_all()
    kernels.affine.load(stepped)
    graph = kernels.scale(future.result(), 2.0, 0.0).graph().sync()
    launched = graph.launch().start(streams[1])
    event_synchronize = stepped.driver.event_synchronize

    def let_the_device_go_on(event):
        stepped.driver.advance_all()
        event_synchronize(event)

    monkeypatch.setattr(stepped.driver, "event_synchronize", let_the_device_go_on)
    assert not launched.done
    graph.close()
    assert launched.done


async def test_closing_gives_memory_back(device, kernels):
    await ca.drain()
    gc.collect()
    before = device.memory_stats().used_bytes
    graph = await ca.zeros(1 << 16).graph()
    assert device.memory_stats().used_bytes >= before + (4 << 16)
    await graph.launch()
    graph.close()
    gc.collect()
    assert device.memory_stats().used_bytes == before


async def test_dropped_graph_gives_memory_back(device, kernels):
    await ca.drain()
    gc.collect()
    before = device.memory_stats().used_bytes
    gc.disable()
    try:
        graph = await ca.zeros(1 << 16).then(lambda t: kernels.scaled(t[:8], 1.0, 0.0)).graph()
        await graph.launch()
        del graph
        assert device.memory_stats().used_bytes == before
    finally:
        gc.enable()


async def test_memory_limit_holds_for_graphs(device):
    await ca.drain()
    device.memory_limit = device.memory_stats().used_bytes + 1000
    try:
        with pytest.raises(ca.OutOfMemoryError):
            await ca.zeros(1 << 16).graph()
    finally:
        device.memory_limit = None


@pytest.mark.parametrize("inputs", [{}, {"k": 2.0}], ids=["none", "set"])
async def test_a_call_without_memory_for_its_copy_has_not_launched(device, inputs):
    """Nor set its inputs: it can be made again."""
    x = await ca.zeros(1 << 16)
    k = await ca.ones(1)
    op = ca.fill(x, 1.0).map(lambda _: (x, k))
    graph = await op.graph(inputs={"k": k})
    await ca.drain()
    gc.collect()
    device.memory_limit = device.memory_stats().used_bytes + 1000
    try:
        with pytest.raises(ca.OutOfMemoryError):
            await graph(**inputs)
        assert (await k.to_host()).tolist() == [1.0]
        assert not (await x.to_host()).any()
    finally:
        device.memory_limit = None
    copied, _ = await graph(**inputs)
    assert (await copied.to_host() == 1.0).all()


async def test_launches_from_threads(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scale(x, 1.0, 1.0).graph()

    def launch():
        for _ in range(20):
            graph.launch().sync()

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (await x.to_host()).tolist() == [81.0] * 8
    assert graph.launches == 80


async def test_fault_in_a_launch_is_the_launch_s_error(host, kernels):
    """On the host device, which goes on; it names the kernel."""
    x = await ca.ones(8)
    graph = await kernels.scale(x, 1.0, 1.0).then(lambda _: kernels.wild_write.launch(1, 1, 64)).graph()
    with pytest.raises(ca.errors.MemoryFault, match="wild_write"):
        await graph.launch()
    assert (await x.to_host())[0] == 2.0
    assert (await kernels.scaled(x, 1.0, 0.0).to_host())[0] == 2.0


async def test_foreign_call_on_the_host_device(host, kernels):
    x = await ca.ones(8)
    calls = []
    graph = await ca.foreign(lambda stream: calls.append(1), reads=[x]).graph()
    assert calls == []
    await graph.launch()
    await graph.launch()
    assert calls == [1, 1]


async def test_called_graph_yields_tensors_of_its_own(device, kernels):
    graph = (
        await ca.graph_input("x", (8,))
        .then(lambda x: kernels.scaled(x, 2.0, 0.0))
        .map(lambda y: {"y": y[:4]})
        .graph()
    )
    first = await graph(x=1.0)
    second = await graph(x=2.0)
    assert ((await first["y"].to_host())[0], (await second["y"].to_host())[0]) == (2.0, 4.0)


@pytest.mark.parametrize("count", [8, 1 << 16], ids=["small", "staged by a worker"])
async def test_calls_from_many_tasks_do_not_mix(device, kernels, count):
    """Two inputs, the larger ones staged on worker threads, so tasks wait between them."""
    blocks = -(-count // 256)
    z = ca.empty(count)
    op = ca.zip(ca.graph_input("x", (count,)), ca.graph_input("y", (count,)), z).then(
        lambda xyz: kernels.add_to.launch(
            blocks, 256, ca.mut(xyz[2]), ca.read(xyz[0]), ca.read(xyz[1]), count
        )
    )
    graph = await op.first().graph()
    results = {}

    async def call(i):
        x, y = np.full(count, i, "f4"), np.full(count, 100.0 * i, "f4")
        results[i] = await graph(x=x, y=y).to_host()

    async with anyio.create_task_group() as group:
        for i in range(12):
            group.start_soon(call, i)
    for i, result in results.items():
        assert (result == 101.0 * i).all()


async def test_graph_outlives_its_stream(device, kernels):
    x = await ca.ones(8)
    async with device.create_stream() as stream:
        graph = await kernels.scaled(x, 2.0, 0.0).graph_on(stream)
    assert (await graph.launch().to_host())[0] == 2.0
    graph.nodes[0].set_arguments({3: 3.0})
    graph._outdated = True
    assert (await graph.launch().to_host())[0] == 3.0


async def test_many_launches_of_several_graphs_from_many_tasks(device, kernels):
    """On all streams of the pool, over one tensor that each of them reads and writes."""
    x = await ca.zeros(64)
    graphs = [await kernels.scale(x, 1.0, float(i + 1)).graph() for i in range(3)]

    async def launch(graph):
        for _ in range(10):
            await graph.launch()

    async with anyio.create_task_group() as group:
        for graph in graphs:
            for _ in range(3):
                group.start_soon(launch, graph)
    assert (await x.to_host()).tolist() == [3.0 * 10 * (1 + 2 + 3)] * 64


def test_memory_of_an_output_that_numpy_sees_is_known_elsewhere(host):
    """Of the graph's own memory, which nobody else knew before: launches must not take it for theirs alone."""
    graph = ca.full(4, 3.0).graph().sync()
    output = graph.launch().sync()
    root = output._buffer.root
    assert root.plain_on is host
    seen = np.from_dlpack(output)
    assert seen.tolist() == [3.0] * 4
    assert root.plain_on is None
    assert root in host._outside


async def test_inputs_that_nothing_uses_are_refused(device, kernels):
    """Setting them would change nothing."""
    x, other = await ca.zip(ca.ones(8), ca.ones(8))
    with pytest.raises(CaptureError, match=r"nothing in the graph uses its input 'y', Tensor\(shape=\(8,\)"):
        await kernels.scaled(x, 2.0, 0.0).graph(inputs={"x": x, "y": other})
    graph = await ca.value(other).graph(inputs={"y": other})  # which it yields
    assert (await (await graph.replay(y=3.0)).to_host())[0] == 3.0
    whole = await ca.zeros((2, 8))
    graph = await kernels.scaled(whole[1], 2.0, 0.0).graph(inputs={"all": whole})
    await graph.launch()


async def test_inputs_go_by_name(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph(inputs={"x": x})
    for call in (graph, graph.replay):
        with pytest.raises(TypeError, match=r"inputs are given by name: x=\.\.\."):
            call(x)


@pytest.mark.parametrize("writes", [False, True])
async def test_what_a_part_only_yields_is_ordered_too(stepped, writes):
    """An input that a part passes on is read, or written, by what comes behind that part."""
    stream = stepped.create_stream()
    x = ca.full(8, 1.0).start(ca.SingleStream(stream))
    stepped.driver.advance_all()
    x = x.result()

    def at_once(op):
        future = op.start(ca.SingleStream(stream))
        while not future.done:  # a worker thread makes graphs
            stepped.driver.advance_all()
        return future.result()

    part = at_once(ca.value(x).graph(inputs={"x": x}))
    use = (lambda t: ca.fill(t, 9.0)) if writes else ca.copy
    graph = at_once(part.launch().then(use).graph())
    first, second = stepped.create_stream(), stepped.create_stream()
    ca.fill(x, 5.0).start(ca.SingleStream(first))
    future = graph.launch().start(ca.SingleStream(second))
    while stepped.driver.advance(second._handle):
        pass
    assert stepped.driver.is_blocked(second._handle)
    stepped.driver.advance_all()
    assert future.done


async def test_an_input_made_late_has_memory_of_its_own(device):
    """It is set before the launch, which must not write over it with what was recorded, and dropped, before it."""
    dropped = ca.full((1000,), 7.0).map(lambda _: None)
    graph = await dropped.then(lambda _: ca.graph_input("y", (1000,))).then(ca.copy).graph()
    assert (await (await graph.replay(y=3.0)).to_host()).tolist() == [3.0] * 1000
    assert (await (await graph.launch()).to_host()).tolist() == [3.0] * 1000
    first = ca.graph_input("x", (1000,)).then(lambda x: ca.copy(x).then(ca.copy).map(lambda _: None))
    graph = await first.then(lambda _: ca.graph_input("y", (1000,))).then(ca.copy).graph()
    assert (await (await graph(x=1.0, y=3.0)).to_host()).tolist() == [3.0] * 1000
    with ca.CudaGraph.scope(device.create_stream()) as scope:
        memory = scope.record(ca.full((1000,), 7.0))
        del memory
        y = scope.record(ca.graph_input("y", (1000,)))
        scope.returns(scope.record(ca.copy(y)))
    assert (await (await scope.graph(y=3.0)).to_host()).tolist() == [3.0] * 1000


async def test_a_graph_input_that_nothing_uses_is_refused(device):
    for op in (
        ca.graph_input("x", (3,)).then(lambda _: ca.ones(3)),
        ca.graph_input("x", (3,)).map(lambda _: None),
        ca.graph_input("y", (3,)).then(ca.copy).then(lambda y: ca.graph_input("x", (3,)).map(lambda _: y)),
    ):
        with pytest.raises(CaptureError, match="nothing in the graph uses its input 'x'"):
            await op.graph()


async def test_values_that_cannot_be_set_change_nothing(device):
    """Setting inputs and launching is one step: what the last launch yielded is good until the next one."""
    graph = await ca.zip(ca.graph_input("x", (4,)), ca.graph_input("y", (4,))).graph()
    x, y = await graph.replay(x=5.0, y=6.0)
    freed = await ca.ones(4)
    freed.free()
    with pytest.raises(ca.ClosedError, match="freed"):
        await graph.replay(x=7.0, y=freed)
    assert graph.launches == 1
    assert ((await x.to_host())[0], (await y.to_host())[0]) == (5.0, 6.0)


async def test_inputs_that_were_set_for_a_launch_that_failed(host, kernels):
    """What is yielded of them is not the last launch's any more."""
    t = await ca.ones(4)
    chain = ca.graph_input("x", (4,)).then(lambda x: kernels.scaled(t, 2.0, 0.0).map(lambda y: (x, y)))
    graph = await chain.graph()
    x, _ = await graph.replay(x=5.0)
    t.free()
    with pytest.raises(ca.ClosedError, match="the graph uses 16 bytes that were freed"):
        await graph.replay(x=7.0)
    with pytest.raises(ca.StaleOutputError, match="or what set inputs for one"):
        await x.to_host()


async def test_a_value_of_another_device_is_refused_by_name(host):
    other = ca.Device._make("host", 1, HostDriver(ordinal=1))
    tensor = await ca.ones(4).schedule(ca.SingleStream(device=other))
    graph = await ca.graph_input("x", (4,)).then(ca.copy).graph()
    with pytest.raises(
        ca.ContextError, match=r"input 'x', float32 \(4,\): the tensor is on host:1, the graph on host:0"
    ):
        graph.replay(x=tensor)
    other.close()


async def test_a_tensor_freed_in_the_recording_is_not_yielded(device):
    """Its memory may be another's by then."""

    def capture():
        with ca.CudaGraph.scope(device.create_stream()) as scope:
            a = scope.record(ca.full((4,), 1.0))
            a.free()
            scope.returns((a, scope.record(ca.full((4,), 5.0))))

    with pytest.raises(ca.ClosedError, match="freed"):
        capture()


async def test_inputs_set_from_each_other(device):
    """All values are read before any input is written."""
    graph = await ca.zip(ca.graph_input("x", (4,)), ca.graph_input("z", (4,))).graph()
    for inputs in (graph.inputs, dict(zip("xz", await graph.replay(x=1.0, z=2.0)))):
        await graph.replay(x=1.0, z=2.0)
        if inputs is not graph.inputs:
            inputs = dict(zip("xz", graph.take_output()))
        x, z = await graph.replay(x=inputs["z"], z=inputs["x"])
        assert ((await x.to_host())[0], (await z.to_host())[0]) == (2.0, 1.0)
        x, z = await graph.replay(x=7.0, z=graph.inputs["x"])
        assert ((await x.to_host())[0], (await z.to_host())[0]) == (7.0, 2.0)


@pytest.mark.parametrize("fails", ["the part", "the whole"])
async def test_inputs_set_for_a_launch_that_failed_are_other_graphs_too(host, kernels, fails):
    """A part of another graph that yields its input: the other one yields the same memory."""
    t = await ca.ones(4)
    part = await ca.graph_input("x", (4,)).then(lambda x: kernels.scale(t, 1.0, 0.0).map(lambda _: x)).graph()
    whole = await part.launch().graph(inputs={"x": part.inputs["x"]})
    failing, other = (part, whole) if fails == "the part" else (whole, part)
    held = await other.replay(x=5.0)
    t.free()
    with pytest.raises(ClosedError, match="freed"):
        await failing.replay(x=7.0)
    with pytest.raises(StaleOutputError):
        await held.to_host()


async def test_a_recording_that_fails_leaves_outputs_good(host, kernels):
    t = await ca.ones(4)
    chain = ca.graph_input("x", (4,)).then(lambda x: kernels.scale(t, 1.0, 0.0).map(lambda _: x))
    graph = await chain.graph()
    x = await graph.replay(x=5.0)
    t.free()
    with pytest.raises(ClosedError, match="freed"):
        await graph.replay(x=7.0).graph()
    assert (await x.to_host()).tolist() == [5.0] * 4


async def test_inputs_that_only_something_undone_or_dropped_used(device):
    """Memory of a tensor that was dropped may be the input's next, under the number of the old one."""
    for _ in range(5):
        dropped = ca.full((1000,), 7.0).map(lambda _: None)
        unused = dropped.then(lambda _: ca.graph_input("x", (1000,)).map(lambda _: None))
        with pytest.raises(CaptureError, match="nothing in the graph uses its input 'x'"):
            await unused.then(lambda _: ca.ones(3)).graph()

    def capture():
        with ca.CudaGraph.scope(device.create_stream()) as scope:
            x = scope.record(ca.graph_input("x", (4,)))
            with pytest.raises(ZeroDivisionError):
                scope.record(ca.copy(x).map(lambda _: 1 / 0))
            scope.returns(scope.record(ca.ones(3)))

    with pytest.raises(CaptureError, match="nothing in the graph uses its input 'x'"):
        capture()


async def test_a_capture_that_is_refused_leaves_shared_operations_as_they_were(device):
    """What it yields, or an input, is refused once all is recorded; who comes next runs the operation."""
    for refused in (
        lambda shared: shared.map(lambda t: {t}),
        lambda shared: ca.graph_input("x", (3,)).then(lambda _: shared),
    ):
        shared = ca.ones(4).shared()
        with pytest.raises(CaptureError):
            await refused(shared).graph()
        assert (await shared.to_host()).tolist() == [1.0] * 4


async def test_inputs_set_from_each_other_by_a_shared_operation(device):
    """A capture that failed took copies for itself, in memory of its own."""
    graph = await ca.zip(ca.graph_input("x", (4,)), ca.graph_input("z", (4,))).graph()
    await graph.replay(x=1.0, z=2.0)
    shared = graph.replay(x=graph.inputs["z"], z=graph.inputs["x"]).shared()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await shared.then(lambda _: 1 / 0).graph()
    x, z = await shared
    assert ((await x.to_host())[0], (await z.to_host())[0]) == (2.0, 1.0)
