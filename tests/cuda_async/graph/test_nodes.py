"""Changing nodes of a graph that is there already."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.errors import CaptureError
from cuda_async.graph._memory import Turn

pytestmark = pytest.mark.anyio


async def test_scalar_argument(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    assert (await graph.launch().to_host())[0] == 2.0
    (node,) = graph.nodes
    assert (node.name, node.kind, node.depends_on) == ("affine_to", "kernel", ())
    node.set_arguments({3: 5.0, 4: np.float32(1.0)})
    assert (await graph.launch().to_host())[0] == 6.0


async def test_launch_in_flight_keeps_the_old_arguments(stepped, kernels):
    stream = stepped.create_stream()
    future = ca.ones(8).start(ca.SingleStream(stream))
    stepped.driver.advance_all()
    x = future.result()
    kernels.affine.load(stepped)
    graph = kernels.scale(x, 2.0, 0.0).graph_on(stream).sync()
    graph.launch().start(ca.SingleStream(stream))
    graph.nodes[0].set_arguments({2: 10.0})
    graph.launch().start(ca.SingleStream(stream))
    stepped.driver.advance_all()
    data = stepped.driver.memory.view(x._address, 4).view("f4")
    assert data[0] == 20.0


async def test_tensor_argument_is_ordered_and_kept(device, kernels):
    x, y = await ca.zip(ca.ones(8), ca.full(8, 7.0))
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    graph.nodes[0].set_arguments({1: ca.read(y)})
    old = x._buffer
    assert old not in graph._reads
    assert y._buffer in graph._reads
    del x, y, old
    gc.collect()
    assert (await graph.launch().to_host())[0] == 14.0


async def test_bad_arguments_change_nothing(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    node = graph.nodes[0]
    with pytest.raises(IndexError, match="5 parameters"):
        node.set_arguments({5: 1})
    with pytest.raises(TypeError, match="read\\(tensor\\) or mut"):
        node.set_arguments({3: 9.0, 1: x})
    with pytest.raises(OverflowError, match="argument 2"):
        node.set_arguments({2: 1 << 40})
    y = await ca.ones(8)
    with pytest.raises(ca.AliasError, match="the same memory"):
        node.set_arguments({0: ca.mut(y), 1: ca.read(y[4:])})
    for arguments in (5, [1.0], {"a": 1.0}):
        with pytest.raises(TypeError, match="arguments are given by position"):
            node.set_arguments(arguments)
    assert (await graph.launch().to_host())[0] == 2.0


async def test_another_grid(device, kernels):
    x = await ca.ones(64)
    graph = await kernels.affine.launch(1, 32, ca.mut(x), 64, 2.0, 0.0).graph()
    await graph.launch()
    graph.nodes[0].set_launch(grid=2)
    await graph.launch()
    assert (await x.to_host())[[0, 31, 32, 63]].tolist() == [4.0, 4.0, 2.0, 2.0]
    with pytest.raises(CaptureError, match="grid"):
        graph.nodes[0].set_launch(grid=(0, 1))
    with pytest.raises(TypeError, match="shared_mem_bytes is '16'; expected an int"):
        graph.nodes[0].set_launch(shared_mem_bytes="16")
    graph.nodes[0]._node.cluster = (2, 1, 1)  # as captured with cluster=2, which not every device has
    with pytest.raises(CaptureError, match="grid axis x is 3, which clusters of 2 do not divide"):
        graph.nodes[0].set_launch(grid=3)
    graph.nodes[0]._node.cluster = None


SMALL_BLOCKS = ca.Module.from_ptx(
    re.sub(
        r"(entry affine_to\([^)]*\))",
        r"\1\n.maxntid 64, 1, 1",
        (Path(__file__).parent / "kernels.ptx").read_text(encoding="utf-8"),
    ),
    name="small_blocks.ptx",
)


async def test_launch_that_the_kernel_cannot_do(device):
    """Each launch says so until the node is set to something else; what else was changed meanwhile counts."""
    x, y = await ca.zip(ca.ones(64), ca.full(64, 5.0))
    function = SMALL_BLOCKS.function("affine_to")

    def doubled(x):
        made = ca.zeros(64)
        return made.then(lambda out: function.launch(1, 64, ca.mut(out), ca.read(x), 64, 2.0, 0.0)).first()

    graph = await doubled(x).graph()
    node = graph.nodes[1]
    node.set_launch(block=128)
    node.set_arguments({1: ca.read(y)})
    del x, y
    gc.collect()
    for _ in range(2):
        with pytest.raises(ca.DriverError):
            await graph.launch()
    others = await ca.zip(*[ca.full(64, -7.0) for _ in range(3)])
    node.set_launch(block=32)
    assert (await graph.launch().to_host()).sum() == 320.0
    del others


async def test_copies_and_fills(device, kernels):
    x, y = await ca.zip(ca.ones(8), ca.full(8, 7.0))
    graph = await ca.copy(x).then(lambda c: ca.full(8, 3.0).map(lambda f: (c, f))).graph()
    copied, filled = graph.nodes
    assert (copied.kind, filled.kind) == ("copy", "fill")
    copied.set_source(y)
    filled.set_value(4.0, "float32")
    a, b = await graph.launch()
    assert ((await a.to_host())[0], (await b.to_host())[0]) == (7.0, 4.0)
    with pytest.raises(CaptureError, match="bytes"):
        copied.set_source(y[:4])
    with pytest.raises(CaptureError, match="for fills"):
        copied.set_value(1.0, "float32")
    with pytest.raises(CaptureError, match="for kernels"):
        filled.set_arguments({0: 1})


async def test_memory_of_a_node_that_runs_beside_is_refused(device, kernels):
    """A change orders nothing; in a branch, and in a graph that is part of a branch."""
    x, y, z, w, v = await ca.collect([ca.full(8, float(i)) for i in range(5)])
    inner = await ca.memcpy(y, x).graph()
    branches = ca.parallel(inner.launch(), ca.memcpy(w, z), kernels.scale(v, 1.0, 0.0))
    graph = await branches.map(lambda _: None).graph()
    child, copy, kernel = graph.nodes
    for change in (lambda: copy.set_source(y), lambda: kernel.set_arguments({0: ca.mut(y)})):
        with pytest.raises(ca.AliasError, match="may run beside node"):
            change()
    with pytest.raises(ca.AliasError, match="node 1 of the graph, copy 32 bytes, may run beside node 0"):
        child.bodies[0][0].set_source(w)
    copy.set_source(x)  # both read it
    await graph.launch()
    assert (await w.to_host())[0] == 0.0


async def test_other_bytes_of_an_allocation_are_taken(device):
    m, x, y = await ca.collect([ca.zeros(48), ca.full(8, 3.0), ca.zeros(8)])
    graph = await ca.parallel(ca.memcpy(m[:8], x), ca.memcpy(y, x)).map(lambda _: None).graph()
    graph.nodes[1].set_source(m[40:48])
    with pytest.raises(ca.AliasError, match="may run beside"):
        graph.nodes[1].set_source(m[4:12])
    await graph.launch()
    assert (await y.to_host())[0] == 0.0


async def test_memory_of_a_node_that_comes_before_is_taken(device):
    x, y, w = await ca.collect([ca.full(8, float(i)) for i in range(3)])
    graph = await ca.memcpy(y, x).then(lambda y: ca.memcpy(w, x)).graph()
    graph.nodes[1].set_source(y)
    await graph.launch()
    assert (await w.to_host())[0] == 0.0


async def test_closed_graph_has_no_nodes_to_change(device):
    graph = await ca.fill(await ca.zeros(8), 1.0).graph()
    await graph.aclose()
    for ask in (lambda: graph.nodes, lambda: graph.inputs, graph.to_dot, graph.to_svg):
        with pytest.raises(ca.ClosedError, match="closed; capture another"):
            ask()
    assert "closed" in repr(graph)


async def test_what_the_driver_cannot_change_is_made_anew(stepped, kernels):
    stream = stepped.create_stream()
    future = ca.ones(8).start(ca.SingleStream(stream))
    stepped.driver.advance_all()
    kernels.affine.load(stepped)
    graph = kernels.scale(future.result(), 2.0, 0.0).graph_on(stream).sync()
    stepped.driver.graph_update = lambda graph, node: False
    graph.nodes[0].set_arguments({2: 3.0})
    made = stepped.driver.calls["graph_create"]
    launched = graph.launch().start(ca.SingleStream(stream))
    stepped.driver.wait_enqueued(stream.handle, 2)  # the graph, and the event that says that it is done
    assert stepped.driver.calls["graph_create"] == made + 1
    stepped.driver.advance_all()
    assert launched.sync()[:] is not None


async def test_nodes_inside_of_others(device, kernels):
    """Of a child, whose own graph stays what it was, and of a loop's body."""
    x, n = await ca.zip(ca.zeros(8), ca.full(1, 2, "int32"))
    inner = await kernels.scale(x, 1.0, 1.0).graph()
    body = kernels.scale(x, 1.0, 10.0).then(lambda _: kernels.count_down.launch(1, 1, ca.mut(n)))
    graph = await inner.launch().then(lambda _: ca.while_loop(n, lambda: body)).graph(inputs={"n": n})
    child, loop = graph.nodes
    assert [[len(nodes) for nodes in node.bodies] for node in (child, loop)] == [[1], [2]]
    child.bodies[0][0].set_arguments({3: 2.0})
    loop.bodies[0][0].set_arguments({3: 100.0})
    await graph.replay(n=3)
    assert (await x.to_host())[0] == 302.0
    await inner.launch()
    assert (await x.to_host())[0] == 303.0


async def test_what_the_graph_yields_stays_what_its_kernel_writes(device, kernels):
    """Or launches would yield another launch's numbers for their own."""
    x, own, other = await ca.zip(ca.ones(8), ca.zeros(8), ca.zeros(8))

    def into(out):
        return kernels.affine_to.launch(1, 8, ca.mut(out), ca.read(x), 8, 2.0, 0.0).first()

    for op in (into(own), kernels.scaled(x, 2.0, 0.0)):
        graph = await op.graph()
        with pytest.raises(CaptureError, match="affine_to: argument 0 is what the graph yields"):
            graph.nodes[0].set_arguments({0: ca.mut(other), 3: 5.0})
        assert (await graph.launch().to_host())[0] == 2.0  # nothing was changed
    silent = await into(own).map(lambda _: None).graph()
    silent.nodes[0].set_arguments({0: ca.mut(other), 3: 5.0})
    await silent.launch()
    assert ((await own.to_host())[0], (await other.to_host())[0]) == (2.0, 5.0)


@pytest.mark.parametrize("where", ["graph", "body", "child", "child in a body"])
async def test_arguments_that_were_replaced_are_let_go(device, kernels, where):
    flag, out = await ca.zip(ca.ones(1, "int32"), ca.zeros(8))
    replaced, small = [await ca.ones(100_000)], await ca.full(8, 3.0)

    def op():
        launch = kernels.affine_to.launch(1, 8, ca.mut(out), ca.read(replaced[0]), 8, 2.0, 0.0)
        return launch.map(lambda _: None)

    child = await op().graph()
    makes = {
        "graph": op,
        "body": lambda: ca.if_else(flag, op),
        "child": child.launch,
        "child in a body": lambda: ca.if_else(flag, child.launch),
    }
    graph = await makes[where]().graph()
    (node,) = graph.nodes
    while node.bodies:
        ((node,),) = node.bodies
    for changed in {node, child.nodes[0]}:
        changed.set_arguments({1: ca.read(small)})
    before = device.memory_stats().used_bytes
    replaced.clear()
    gc.collect()
    assert before - device.memory_stats().used_bytes >= 400_000
    await graph.launch()
    assert (await out.to_host())[0] == 6.0


async def test_a_call_on_the_host_device_is_no_kernel(host, kernels):
    x = await ca.ones(8)
    graph = await ca.foreign(lambda stream: None, writes=[x]).graph()
    (node,) = graph.nodes
    assert (node.kind, node.name) == ("foreign", "")
    assert "other library" in graph.to_dot()
    with pytest.raises(CaptureError, match="for kernels"):
        node.set_arguments({0: 1})
    with pytest.raises(CaptureError, match="for kernels"):
        node.set_launch(grid=3)


SIGNED = ca.Module.from_ptx(
    (Path(__file__).parent / "kernels.ptx").read_text(encoding="utf-8"), name="signed.ptx"
)


async def test_the_functions_signature_counts(device):
    """Values that a launch refuses."""
    x, y = await ca.zip(ca.ones(8), ca.zeros(8))
    function = SIGNED.function("affine_to", signature=("ptr", "ptr", "u32", "f32", "f32"))

    def launch(x, n):
        return function.launch(1, 8, ca.mut(y), x, n, 2.0, 0.0)

    graph = await launch(ca.read(x), 8).first().graph()
    (node,) = graph.nodes
    for position, value, error in (
        (2, -1, OverflowError),
        (2, np.float32(3), TypeError),
        (2, 1.5, TypeError),
        (1, 12345678, TypeError),
    ):
        with pytest.raises(error) as refused:
            await launch(*((ca.read(x), value) if position == 2 else (value, 8)))
        with pytest.raises(error) as refused_there:
            node.set_arguments({position: value})
        said, said_there = str(refused.value), str(refused_there.value)
        assert said.startswith(said_there), (said, said_there)
    node.set_arguments({2: 4})
    assert (await graph.launch().to_host()).tolist() == [2.0] * 4 + [0.0] * 4


@pytest.mark.parametrize("memory", ["the caller's", "the graph's"])
async def test_what_is_yielded_is_still_written(device, kernels, memory):
    """In the place of a tensor that is yielded nothing comes that is only read; elsewhere it may."""
    x, other, out = await ca.zip(ca.ones(8), ca.full(8, 3.0), ca.zeros(8))
    place = ca.value(out) if memory == "the caller's" else ca.empty(8)
    made = place.then(lambda y: kernels.affine_to.launch(1, 8, ca.mut(y), ca.read(x), 8, 2.0, 0.0)).first()
    read_again = made.then(lambda y: kernels.scaled(y, 1.0, 1.0).map(lambda z: (y, z)))
    graph = await read_again.graph()
    writes, reads = graph.nodes
    for value in (ca.read(other), ca.mut(other), other._address):
        with pytest.raises(CaptureError, match="argument 0 is what the graph yields"):
            writes.set_arguments({0: value})
    reads.set_arguments({1: ca.read(other)})
    y, z = await graph.launch()
    assert ((await y.to_host())[0], (await z.to_host())[0]) == (2.0, 4.0)


class WhileMade:
    """As with a CUDA driver: what is within another graph needs the driver's graph anew, and making one takes time.

    What `do` holds is done once the next one was made of the nodes as they are.
    """

    def __init__(self, driver, monkeypatch, inner):
        self.do = []
        create, update = driver.graph_create, driver.graph_update

        def slow(nodes):
            handle = create(nodes)
            driver._graphs[handle].entry()  # which reads them
            while self.do:
                self.do.pop()()
            return handle

        monkeypatch.setattr(driver, "graph_create", slow)
        monkeypatch.setattr(
            driver, "graph_update", lambda handle, node: node is not inner._node and update(handle, node)
        )


async def test_a_change_while_the_graph_is_made_anew(host, monkeypatch):
    """It holds from the next launch on; another change in between must not get lost."""
    t, c = await ca.zip(ca.zeros(4), ca.zeros(4))
    child = await ca.fill(c, 1.0).graph()
    graph = await ca.zip(child.launch(), ca.fill(t, 1.0)).graph()
    inner, top = graph.nodes[0].bodies[0][0], graph.nodes[1]
    making = WhileMade(host.driver, monkeypatch, inner)
    inner.set_value(5.0, "float32")
    making.do.append(lambda: top.set_value(9.0, "float32"))
    await graph.launch()
    assert ((await c.to_host())[0], (await t.to_host())[0]) == (5.0, 9.0)


async def test_closing_a_graph_while_it_is_made_anew(host, monkeypatch):
    t = await ca.zeros(4)
    child = await ca.fill(t, 1.0).graph()
    graph = await child.launch().graph()
    inner = graph.nodes[0].bodies[0][0]
    making = WhileMade(host.driver, monkeypatch, inner)
    inner.set_value(5.0, "float32")
    making.do.append(graph.close)
    with pytest.raises(ca.ClosedError, match="this graph is closed"):
        await graph.launch()
    assert graph._executable is None
    assert not (await t.to_host()).any()


async def test_yielded_tensors_are_not_written_in_turn(device, kernels):
    """Nor does a kernel write another tensor that is yielded; what it did not write at first, it may."""
    x, a, b, scratch = await ca.zip(ca.ones(8), ca.zeros(8), ca.zeros(8), ca.zeros(8))

    def written(y, factor):
        return kernels.affine_to.launch(1, 8, ca.mut(y), ca.read(x), 8, factor, 0.0)

    graph = (
        await ca.zip(written(a, 2.0), written(b, 3.0), written(scratch, 4.0)).map(lambda _: (a, b)).graph()
    )
    first, _, third = graph.nodes
    with pytest.raises(CaptureError, match="argument 0 is what the graph yields"):
        first.set_arguments({0: ca.mut(b)})
    first.set_arguments({0: ca.mut(a)})
    third.set_arguments({0: ca.mut(b)})
    third.set_arguments({0: ca.mut(scratch)})
    yielded = await graph.launch()
    assert [(await t.to_host())[0] for t in (*yielded, scratch)] == [2.0, 3.0, 4.0]


async def test_a_node_of_a_graph_that_another_thread_closes(host, kernels, monkeypatch):
    """Between the look at the graph and the change of the node."""
    x, y = await ca.zip(ca.ones(8), ca.ones(8))
    hold = Turn.hold
    for change in (
        lambda nodes: nodes[0].set_source(y),
        lambda nodes: nodes[1].set_value(4.0, "float32"),
        lambda nodes: nodes[2].set_arguments({3: 4.0}),
        lambda nodes: nodes[2].set_launch(grid=2),
    ):
        graph = await ca.zip(ca.copy(x), ca.full(8, 3.0), kernels.scaled(x, 2.0, 0.0)).graph()
        nodes = graph.nodes
        with monkeypatch.context() as patch:
            patch.setattr(
                Turn, "hold", lambda turn, work, graph=graph: (graph._let_go(), hold(turn, work))[1]
            )
            with pytest.raises(ca.ClosedError, match="this graph is closed"):
                change(nodes)


async def test_numbers_in_the_place_of_pointers(device):
    x, y = await ca.zip(ca.ones(8), ca.zeros(8))
    function = SIGNED.function("affine_to", signature=("ptr", "ptr", "u32", "f32", "f32"))
    graph = await function.launch(1, 8, ca.mut(y), ca.read(x), 8, 2.0, 0.0).map(lambda _: None).graph()
    for number in (5, 5.0):
        with pytest.raises(TypeError, match=r"pass read\(tensor\) or mut\(tensor\)$"):
            graph.nodes[0].set_arguments({1: number})


async def test_what_is_written_is_not_read_by_another_argument(device, kernels):
    """As in a launch; and then the argument could not be changed back."""
    x, y = await ca.zip(ca.ones(8), ca.full(8, 3.0))
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    (node,) = graph.nodes
    out = await graph.launch()
    with pytest.raises(ca.AliasError, match="is written by an argument that stays"):
        node.set_arguments({1: ca.read(out)})
    node.set_arguments({1: ca.read(y)})
    node.set_arguments({1: ca.read(x)})
    assert (await graph.launch().to_host())[0] == 2.0


async def test_argument_that_was_freed_is_replaced(device, kernels):
    x, y = await ca.zip(ca.ones(8), ca.full(8, 3.0))
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    x.free()
    x.free()
    with pytest.raises(ca.ClosedError, match="freed"):
        await graph.launch()
    graph.nodes[0].set_arguments({3: 5.0})
    with pytest.raises(ca.ClosedError, match="freed"):
        await graph.launch()
    graph.nodes[0].set_arguments({1: ca.read(y)})
    assert (await graph.launch().to_host())[0] == 3.0 * 5.0
