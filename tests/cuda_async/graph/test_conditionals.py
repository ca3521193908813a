"""Conditional nodes, and what the same operations do outside of a graph."""

from __future__ import annotations

import pytest

import cuda_async as ca
from cuda_async.errors import CaptureError
from cuda_async.testing import checked_device

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "uint16"])
async def test_if_else_decides_on_the_device(device, kernels, dtype):
    x = await ca.ones(8)
    flag = await ca.zeros(1, dtype)
    graph = await ca.if_else(
        flag, lambda: kernels.scale(x, 1.0, 10.0), lambda: kernels.scale(x, 1.0, 100.0)
    ).graph(inputs={"flag": flag})
    assert [node.kind for node in graph.nodes] == ["if"]
    await graph.launch()
    assert (await x.to_host())[0] == 101.0
    await graph.replay(flag=1)
    assert (await x.to_host())[0] == 111.0


async def test_if_without_else(device, kernels):
    x, flag = await ca.zip(ca.ones(8), ca.zeros((), "int32"))
    graph = await ca.if_else(flag, lambda: kernels.scale(x, 5.0, 0.0)).graph()
    await graph.launch()
    assert (await x.to_host())[0] == 1.0
    await ca.fill(flag, -3)
    await graph.launch()
    assert (await x.to_host())[0] == 5.0


async def test_while_loop_runs_until_zero(device, kernels):
    x, n = await ca.zip(ca.ones(8), ca.zeros(1, "int32"))
    body = kernels.scale(x, 2.0, 0.0).then(lambda _: kernels.count_down.launch(1, 1, ca.mut(n)))
    graph = await ca.while_loop(n, lambda: body).graph(inputs={"n": n})
    for turns in (0, 1, 5):
        await ca.fill(x, 1.0)
        await graph.replay(n=turns)
        assert (await x.to_host())[0] == 2.0**turns
        assert (await n.to_host())[0] == 0


async def test_bodies_may_allocate_and_nest(device, kernels):
    x, n, flag = await ca.zip(ca.ones(8), ca.full(1, 3, "int32"), ca.ones(1, "int32"))

    def body():
        step = kernels.scaled(x, 1.0, 1.0).then(lambda y: ca.memcpy(x, y))
        chosen = step.then(lambda _: ca.if_else(flag, lambda: kernels.scale(x, 2.0, 0.0)))
        return chosen.then(lambda _: kernels.count_down.launch(1, 1, ca.mut(n)))

    graph = await ca.while_loop(n, body).then(lambda _: kernels.scaled(x, 1.0, 0.5)).graph()
    assert (await graph.launch().to_host())[0] == 22.5  # 1 -> 4 -> 10 -> 22


async def test_outside_of_a_graph(device, kernels):
    x, n, flag = await ca.zip(ca.ones(8), ca.full(1, 3, "int32"), ca.zeros(1, "int32"))
    await ca.if_else(flag, lambda: kernels.scale(x, 9.0, 0.0), lambda: kernels.scale(x, 1.0, 1.0))
    assert (await x.to_host())[0] == 2.0
    await ca.if_else(flag, lambda: kernels.scale(x, 9.0, 0.0))
    await ca.while_loop(
        n, lambda: kernels.scale(x, 2.0, 0.0).then(lambda _: kernels.count_down.launch(1, 1, ca.mut(n)))
    )
    assert (await x.to_host())[0] == 16.0


async def test_body_waits_for_another_branch_through_its_node(device, kernels):
    x, y, flag = await ca.zip(ca.ones(8), ca.zeros(8), ca.ones(1, "int32"))
    to_y = kernels.affine_to.launch(1, 8, ca.mut(y), ca.read(x), 8, 3.0, 0.0)
    op = ca.parallel(kernels.scale(x, 2.0, 0.0), ca.if_else(flag, lambda: to_y))
    graph = await op.graph()
    assert [(node.kind, node.depends_on) for node in graph.nodes] == [("kernel", ()), ("if", (0,))]
    await graph.launch()
    assert (await y.to_host())[0] == 6.0


async def test_what_cannot_decide_is_refused(device, kernels):
    with pytest.raises(TypeError, match="one bool or integer"):
        ca.if_else(await ca.ones(1), lambda: ca.ones(1))
    with pytest.raises(TypeError, match="one bool or integer"):
        ca.while_loop(await ca.ones(2, "int32"), lambda: ca.ones(1))
    with pytest.raises(TypeError, match="functions that return operations"):
        ca.if_else(await ca.ones(1, "int32"), ca.ones(1))
    with pytest.raises(TypeError, match="returns a DeviceOp, got int"):
        await ca.if_else(await ca.ones(1, "int32"), lambda: 5).graph()
    # Outside of a graph too, where the body that runs is looked at.
    for flag in (0, 1):
        with pytest.raises(TypeError, match=r"a body of if_else\(\) .* returns a DeviceOp, got int"):
            await ca.if_else(await ca.full(1, flag, "int32"), lambda: 5, lambda: 6)
    with pytest.raises(TypeError, match=r"a body of .* returns a DeviceOp, got int"):
        await ca.while_loop(await ca.ones(1, "int32"), lambda: 5)

    async def body():
        return ca.ones(1)

    for conditional in (ca.if_else, ca.while_loop):
        with pytest.raises(TypeError, match="body is an async function"):
            await conditional(await ca.ones(1, "int32"), body)
        with pytest.raises(TypeError, match="body is an async function"):
            await conditional(await ca.ones(1, "int32"), body).graph()


async def test_failing_body_fails_the_capture(device, kernels):
    flag = await ca.ones(1, "int32")
    with pytest.raises(CaptureError, match="to_host"):
        await ca.if_else(flag, lambda: ca.ones(3).to_host()).graph()


async def test_a_branch_that_decides_waits_for_who_writes_the_number(device, kernels):
    """And who writes it in a later branch waits for that."""
    x, flag = await ca.zip(ca.ones(8), ca.zeros(1, "int32"))
    op = ca.parallel(ca.fill(flag, 1), ca.if_else(flag, lambda: kernels.scale(x, 2.0, 0.0)), ca.fill(flag, 0))
    graph = await op.graph()
    assert [(node.kind, node.depends_on) for node in graph.nodes] == [
        ("fill", ()),
        ("if", (0,)),
        ("fill", (0, 1)),
    ]
    await graph.launch()
    assert (await x.to_host())[0] == 2.0


def test_a_launch_waits_for_who_writes_the_number(stepped, kernels):
    streams = [ca.SingleStream(stepped.create_stream()) for _ in range(2)]
    future = ca.zip(ca.ones(8), ca.zeros(1, "int32")).start(streams[0])
    stepped.driver.advance_all()
    x, flag = future.result()
    graph = ca.if_else(flag, lambda: ca.fill(x, 2.0)).graph().sync()
    ca.fill(flag, 1).start(streams[0])
    launched = graph.launch().start(streams[1])
    assert stepped.driver.is_blocked(streams[1].next_stream().handle)
    stepped.driver.advance_all()
    launched.result()
    assert stepped.driver.memory.view(x._address, 4).view("f4")[0] == 2.0


async def test_what_a_body_makes_is_for_the_body(device):
    """Elsewhere it would hold another launch's numbers, or nothing, where the body did not run."""
    x, flag = await ca.zip(ca.ones(8), ca.ones(1, "int32"))
    kept = []

    def body():
        return ca.copy(x).then(lambda made: kept.append(made) or ca.copy(made))

    for behind in (
        lambda _: ca.copy(kept[-1]),
        lambda _: ca.fill(kept[-1], 1.0),
        lambda _: ca.value(kept[-1]),
    ):
        with pytest.raises((CaptureError, ca.StaleOutputError), match="made in the body of a conditional"):
            await ca.if_else(flag, body).then(behind).graph()
    graph = await ca.if_else(flag, body).graph()
    await graph.launch()
    with pytest.raises(ca.StaleOutputError, match="made in the body of a conditional"):
        await kept[-1].to_host()


async def test_what_a_child_yields_in_a_body_is_for_the_body(device):
    x, flag = await ca.zip(ca.ones(8), ca.ones(1, "int32"))
    child = await ca.copy(x).graph()
    kept = []
    op = ca.if_else(flag, lambda: child.launch().map(kept.append)).then(lambda _: ca.copy(kept[0]))
    with pytest.raises(CaptureError, match="made in the body of a conditional"):
        await op.graph()


@pytest.mark.parametrize("kind", ["while", "if"])
def test_the_checking_mode_knows_who_reads_the_predicate(kernels, kind):
    """A loop looks at it again behind the last kernel of its body, which knows nothing of it."""
    with ca.use_device(checked_device()):
        x, n = ca.zip(ca.ones(8), ca.full(1, 3, "int32")).sync()

        def body():
            counted = kernels.count_down.launch(1, 1, ca.mut(n))
            return counted.then(lambda _: kernels.scale(x, 2.0, 0.0))

        op = ca.while_loop(n, body) if kind == "while" else body().then(lambda _: ca.if_else(n, body))
        graph = op.graph().sync()
        graph.launch().sync()
        assert x.to_host().sync()[0] == (8.0 if kind == "while" else 4.0)
