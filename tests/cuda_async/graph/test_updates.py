"""`graph.update()`: what runs before the next launch, and whose it is where that launch does not come."""

from __future__ import annotations

import threading

import anyio
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.errors import CaptureError, NotFilledYetError
from cuda_async.ops._shared import Gate

pytestmark = pytest.mark.anyio


async def test_updates_run_before_the_next_launch(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    graph.update(ca.memcpy(x, np.full(8, 5.0, "f4")))
    graph.update(kernels.scale(x, 1.0, 1.0))
    assert (await x.to_host())[0] == 1.0
    assert (await graph.launch().to_host())[0] == 12.0
    assert (await graph.launch().to_host())[0] == 12.0
    with pytest.raises(TypeError, match="DeviceOp"):
        graph.update(5)


@pytest.mark.parametrize("lost", ["dropped", "cancelled", "refused"])
async def test_update_of_a_launch_that_did_not_begin_is_for_the_next(device, kernels, lost):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph(inputs={"x": x})
    graph.update(ca.fill(x, 5.0))
    if lost == "refused":
        with pytest.raises(ValueError, match="shape"):
            graph.replay(x=np.ones(3, "f4"))
    else:
        launch = graph.launch()
        if lost == "cancelled":
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
                await launch
    assert (await graph.launch().to_host())[0] == 10.0


async def test_update_is_for_launches_made_afterwards(device, kernels):
    graph = await ca.graph_input("x", (8,)).then(lambda x: kernels.scaled(x, 1.0, 0.0)).graph()
    earlier = graph(x=ca.full(8, 3.0))
    graph.update(ca.fill(graph.inputs["x"], 5.0))
    assert (await earlier.to_host())[0] == 3.0
    assert (await graph.launch().to_host())[0] == 5.0


@pytest.mark.parametrize("make", [lambda graph: graph.launch(), lambda graph: graph()])
async def test_another_update_that_waits_changes_nothing_for_launches_made_before(device, kernels, make):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 1.0, 0.0).graph()
    graph.update(kernels.scale(x, 1.0, 1.0))
    earlier = make(graph)
    graph.update(ca.fill(x, 5.0))
    assert (await earlier.to_host())[0] == 2.0
    assert (await make(graph).to_host())[0] == 5.0


async def test_computed_inputs_do_not_make_a_launch_later_than_it_was_made(device, kernels):
    y = await ca.zeros(8)
    graph = await ca.graph_input("x", (8,)).then(lambda x: kernels.scaled(x, 1.0, 0.0)).graph()
    graph.update(kernels.scale(y, 1.0, 1.0))
    earlier = graph(x=ca.full(8, 3.0))
    graph.update(ca.fill(y, 5.0))
    assert (await earlier.to_host())[0] == 3.0
    assert (await y.to_host())[0] == 1.0
    await graph.launch()
    assert (await y.to_host())[0] == 5.0


def fails(_):
    raise ValueError("as planned")


class Held(ca.DeviceOp[None]):
    """A worker thread is at it until it is released."""

    def __init__(self):
        self.began, self.released = threading.Event(), threading.Event()

    def prepare(self, ctx):
        """On a worker thread, which goes on with it."""

    def execute(self, ctx):
        self.began.set()
        assert self.released.wait(10)


async def test_update_that_is_left_is_for_a_launch_made_while_another_had_it(device, kernels):
    """None waited then."""
    x, held, other = await ca.ones(8), Held(), None
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    graph.update(held)
    graph.update(ca.fill(x, 5.0))

    async def run():
        await graph.launch()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.to_thread.run_sync(held.began.wait, 10)
        assert graph._updates._waiting == ()
        other = graph.launch()
        group.cancel_scope.cancel()
    held.released.set()
    assert (await other.to_host())[0] == 10.0


async def test_update_that_uses_what_is_not_filled_yet_fails_one_launch(device, kernels):
    """A shared operation would be tried again."""
    x, y = await ca.ones(8), await ca.zeros(8)
    never_launched = await kernels.scaled(x, 2.0, 0.0).graph()
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    graph.update(kernels.scale(y, 1.0, 1.0).then(lambda _: ca.memcpy(x, never_launched.take_output())))
    with pytest.raises(NotFilledYetError):
        await graph.launch()
    assert (await graph.launch().to_host())[0] == 2.0
    assert (await y.to_host())[0] == 1.0


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("through", ["a shared operation", "another graph's update"])
async def test_launch_that_an_update_waits_for_does_not_wait_for_it(device, kernels, is_cancelled, through):
    graph, other = [await kernels.scaled(await ca.ones(8), 2.0, 0.0).graph() for _ in range(2)]
    held = Held()
    if through == "a shared operation":
        inner = ca.value(0).then(lambda _: graph.launch().then(ca.copy)).shared()
        graph.update(held.then(lambda _: inner))
    else:
        other.update(ca.value(0).then(lambda _: graph.launch()))
        graph.update(held.then(lambda _: other.launch()))
    async with anyio.create_task_group() as group:
        group.start_soon(awaited(graph.launch))
        await anyio.to_thread.run_sync(held.began.wait, 10)
        if is_cancelled:
            group.cancel_scope.cancel()
        held.released.set()
    for one in (graph, other, graph):
        assert (await one.launch().to_host())[0] == 2.0


async def cancel_while_held(run, held):
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.to_thread.run_sync(held.began.wait, 10)
        group.cancel_scope.cancel()
    held.released.set()


def awaited(make):
    async def run():
        await make()

    return run


@pytest.mark.parametrize("how", ["launched", "captured", "recorded"])
async def test_updates_of_a_launch_that_is_cancelled_while_one_runs_are_for_the_next(device, kernels, how):
    """In their order, and each runs once."""
    x, held = await ca.ones(8), Held()
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    graph.update(kernels.scale(x, 1.0, 1.0))
    graph.update(held.then(lambda _: kernels.scale(x, 1.0, 2.0)))
    graph.update(kernels.scale(x, 10.0, 0.0))
    if how == "recorded":
        async with ca.CudaGraph.scope(device.create_stream()) as scope:
            await cancel_while_held(awaited(lambda: scope.arecord(graph.launch())), held)
            launched = await graph.launch().to_host()
    else:
        cancelled = graph.launch() if how == "launched" else graph.launch().graph()
        await cancel_while_held(awaited(lambda: cancelled), held)
        launched = await graph.launch().to_host()
    assert launched[0] == 80.0
    assert (await graph.launch().to_host())[0] == 80.0


async def test_update_that_fails_when_its_launch_was_cancelled_is_the_next_one_s_error(device, kernels):
    held = Held()
    graph = await kernels.scaled(await ca.ones(8), 2.0, 0.0).graph()
    graph.update(held.then(fails))
    await cancel_while_held(awaited(graph.launch), held)
    with pytest.raises(ValueError, match="planned"):
        await graph.launch()
    assert (await graph.launch().to_host())[0] == 2.0


RUNS = {
    "launched": lambda launch, scope: launch.sync(),
    "captured": lambda launch, scope: launch.graph().sync(),
    "recorded": lambda launch, scope: scope.record(launch),
}


@pytest.mark.parametrize("how", RUNS)
def test_updates_beside_one_that_fails_are_run_once(device, kernels, how):
    x = ca.ones(8).sync()
    graph = kernels.scaled(x, 2.0, 0.0).graph().sync()
    graph.update(kernels.scale(x, 1.0, 2.0))
    graph.update(ca.value(None).then(fails))
    graph.update(kernels.scale(x, 10.0, 0.0))
    with ca.CudaGraph.scope(device.create_stream()) as scope, pytest.raises(ValueError, match="planned"):
        RUNS[how](graph.launch(), scope)
    for _ in range(2):
        assert graph.launch().to_host().sync()[0] == 60.0


@pytest.mark.parametrize("how", ["captured", "recorded"])
def test_updates_of_a_recording_that_the_driver_refuses_are_for_the_next(device, kernels, how, monkeypatch):
    x = ca.ones(8).sync()
    graph = kernels.scaled(x, 2.0, 0.0).graph().sync()
    graph.update(ca.fill(x, 5.0))
    with monkeypatch.context() as patched:
        patched.setattr(ca.CudaGraph, "_instantiate", fails)
        with pytest.raises(ValueError, match="planned"), ca.CudaGraph.scope(device.create_stream()) as scope:
            RUNS[how](graph.launch(), scope)
    assert graph.launch().to_host().sync()[0] == 10.0


@pytest.mark.parametrize("how", ["captured", "recorded", "shared"])
def test_update_of_a_recording_that_failed_is_for_the_next(device, kernels, how):
    x = ca.ones(8).sync()
    graph = kernels.scaled(x, 2.0, 0.0).graph().sync()
    graph.update(ca.fill(x, 5.0))
    launch = graph.launch().shared() if how == "shared" else graph.launch()
    if how == "recorded":
        with ca.CudaGraph.scope(device.create_stream()) as scope, pytest.raises(ValueError, match="planned"):
            scope.record(launch.then(fails))
    else:
        with pytest.raises(ValueError, match="planned"):
            launch.then(fails).graph().sync()
    again = launch if how == "shared" else graph.launch()
    assert again.to_host().sync()[0] == 10.0


def test_update_that_fails_in_a_recording_has_begun(device, kernels):
    graph = kernels.scaled(ca.ones(8).sync(), 2.0, 0.0).graph().sync()
    graph.update(ca.value(None).then(fails))
    with pytest.raises(ValueError, match="planned"):
        graph.launch().graph().sync()
    outer = graph.launch().then(ca.copy).graph().sync()
    assert outer.launch().to_host().sync()[0] == 2.0


def test_shared_launch_of_a_graph_that_ended_unlaunched_has_its_updates(device, kernels):
    x = ca.ones(8).sync()
    graph = kernels.scaled(x, 2.0, 0.0).graph().sync()
    graph.update(ca.fill(x, 5.0))
    shared = graph.launch().shared()
    shared.then(ca.copy).graph().sync().close()
    assert shared.to_host().sync()[0] == 10.0


def test_each_update_runs_once(host, kernels):
    """Launches of several threads, each made while there is something to run before it."""
    count = ca.zeros(8).sync()
    graph = kernels.scaled(count, 1.0, 0.0).graph().sync()
    for _ in range(20):
        for _ in range(4):
            graph.update(kernels.scale(count, 1.0, 1.0))
        launches = [graph.launch() for _ in range(4)]
        threads = [threading.Thread(target=launch.sync) for launch in launches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert count.to_host().sync()[0] == 80.0


async def test_failing_update_is_the_launch_s_error(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    graph.update(ca.value(1).then(lambda _: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        await graph.launch()
    assert (await graph.launch().to_host())[0] == 2.0


async def test_updates_of_two_launches_that_are_cancelled_keep_their_order(device, kernels):
    x = await ca.ones(8)
    graph = await kernels.scaled(x, 2.0, 0.0).graph()
    scopes, helds, ended = [], [], [anyio.Event(), anyio.Event()]

    async def launched(number):
        with scopes[number]:
            await graph.launch()
        ended[number].set()

    async with anyio.create_task_group() as group:
        for number in range(2):
            scopes.append(anyio.CancelScope())
            helds.append(Held())
            graph.update(helds[number])
            graph.update(ca.fill(x, number + 3.0))
            group.start_soon(launched, number)
            await anyio.to_thread.run_sync(helds[number].began.wait, 10)
        for scope, over in zip(scopes, ended):
            scope.cancel()
            await over.wait()
    for held in helds:
        held.released.set()
    assert (await graph.launch().to_host())[0] == 8.0


async def test_launch_within_an_update_does_not_wait_for_that(device, kernels):
    """The update goes back to those for the next launch, and the launch that it makes is the next."""
    held = Held()
    graph = await kernels.scaled(await ca.ones(8), 2.0, 0.0).graph()
    graph.update(held.then(lambda _: graph.launch()))
    await cancel_while_held(awaited(graph.launch), held)
    assert (await graph.launch().to_host())[0] == 2.0


def test_interrupt_as_a_recording_is_given_up_leaves_updates_and_shared_operations(
    device, kernels, monkeypatch
):
    x = ca.ones(8).sync()
    graph = kernels.scaled(x, 2.0, 0.0).graph().sync()
    graph.update(ca.fill(x, 5.0))
    shared = ca.copy(x).shared()
    undo, interrupts = Gate.undo, [KeyboardInterrupt()]

    def interrupted(gate, *args):
        if interrupts:
            raise interrupts.pop()
        undo(gate, *args)

    monkeypatch.setattr(Gate, "undo", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ca.zip(shared.then(ca.copy), graph.launch()).then(fails).graph().sync()
    assert graph.launch().to_host().sync()[0] == 10.0
    assert shared.then(ca.copy).to_host().sync()[0] == 5.0


def test_update_whose_recording_is_given_up_at_that_moment_is_for_the_next(device, kernels, monkeypatch):
    x = ca.ones(8).sync()
    graph = kernels.scaled(x, 2.0, 0.0).graph().sync()
    graph.update(ca.fill(x, 5.0))

    def given_up(gate, execution):
        raise NotFilledYetError("the recording was given up at this moment")

    with monkeypatch.context() as patched:
        patched.setattr(Gate, "deliver", given_up)
        with pytest.raises(NotFilledYetError):
            graph.launch().graph().sync()
    assert graph.launch().to_host().sync()[0] == 10.0


@pytest.mark.parametrize("kind", ["if", "while"])
async def test_update_is_not_taken_into_the_body_of_a_conditional(device, kernels, kind):
    """It would run never, or more than once."""
    y, flag = await ca.zeros(8), await ca.full(1, 3, "int32")
    graph = await kernels.scaled(y, 1.0, 0.0).graph()
    graph.update(kernels.scale(y, 1.0, 1.0))

    def body():
        return (
            graph.launch().then(lambda _: kernels.count_down.launch(1, 1, ca.mut(flag))).map(lambda _: None)
        )

    def conditional():
        return (
            ca.while_loop(flag, body) if kind == "while" else ca.if_else(flag, body, lambda: ca.value(None))
        )

    with pytest.raises(CaptureError, match="launched in the body of a conditional"):
        await conditional().graph()
    assert (await graph.launch().to_host())[0] == 1.0
    await (await conditional().graph()).launch()
    assert (await y.to_host())[0] == 1.0
    assert (await flag.to_host())[0] == (0 if kind == "while" else 2)


def test_updates_of_a_shared_launch_that_is_recorded_in_vain_stay_in_their_order(host, kernels, monkeypatch):
    """Another thread gives the recording up as the value of the second is taken."""
    x, y, held = ca.zeros(8).sync(), ca.zeros(8).sync(), Held()
    kernels.scale(x, 1.0, 0.0).sync()  # loads it
    graph = ca.fill(y, 3.0).graph().sync()
    graph.update(kernels.scale(x, 2.0, 1.0))
    graph.update(held.then(lambda _: kernels.scale(x, 2.0, 2.0)))
    shared, deliver = graph.launch().shared(), Gate.deliver
    taken, goes_on, numbers = threading.Event(), threading.Event(), []

    def standing(gate, execution):
        value = deliver(gate, execution)
        numbers.append(gate)
        if len(numbers) == 2:
            taken.set()
            assert goes_on.wait(10)
        return value

    with monkeypatch.context() as patch:
        patch.setattr(Gate, "deliver", standing)
        future = shared.graph().start()
        assert held.began.wait(10)
        held.released.set()
        assert taken.wait(10)
        assert future.cancel()
        goes_on.set()
        ca.drain().sync()
    shared.sync()
    graph.launch().sync()
    assert x.to_host().sync()[0] == 4.0


async def test_updates_of_a_closed_graph_are_dropped(device, kernels):
    held = Held()
    graph = await kernels.scaled(await ca.ones(8), 2.0, 0.0).graph()
    graph.update(held)
    launch = graph.launch()
    async with anyio.create_task_group() as group:
        group.start_soon(awaited(lambda: launch))
        await anyio.to_thread.run_sync(held.began.wait, 10)
        await graph.aclose()
        group.cancel_scope.cancel()
    held.released.set()
    assert graph._updates._waiting == ()
