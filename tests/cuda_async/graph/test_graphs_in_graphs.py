"""Graphs that are parts of others, or that use what others own: whose launch fills what, and makes what stale."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.errors import CaptureError, KernelError, NotFilledYetError, StaleOutputError


def first(tensor):
    return float(tensor.to_host().sync().ravel()[0])


# ------------------------------------------------------------------------------------ shared operations of parts


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("taken", [0, 1])
def test_shared_operation_in_a_body_of_a_part_may_not_have_run(device, depth, taken):
    flag, x = ca.zip(ca.full(1, taken, "int32"), ca.zeros(4)).sync()
    shared = ca.fill(x, 7.0).map(lambda _: 5).shared()
    graph = ca.if_else(flag, lambda: shared).graph().sync()
    for _ in range(depth):
        graph = graph.launch().graph().sync()
    graph.launch().sync()
    assert first(x) == 7.0 * taken
    with pytest.raises(NotFilledYetError, match="body of a conditional"):
        shared.sync()


def failing_in(launch, tensor):
    """An operation that fails when it is run for the time of that number, on the host device."""
    runs = []

    def work(_):
        runs.append(None)
        if len(runs) == launch:
            raise ValueError("as planned")

    return ca.foreign(work, reads=[tensor], writes=[])


@pytest.mark.parametrize("yields", ["a tensor", "a number"])
@pytest.mark.parametrize("fails", ["it", "the whole"])
@pytest.mark.parametrize("runs", ["it", "the whole", "another whole"])
def test_shared_operation_is_had_from_the_first_run_that_did_not_fail(host, yields, fails, runs):
    x = ca.zeros(4).sync()
    source = ca.full(4, 3.0) if yields == "a tensor" else ca.fill(x, 3.0).map(lambda _: 5)
    shared = source.shared()
    part = shared.then(lambda _: failing_in(1, x)).graph().sync()
    graphs = {"it": part}
    for whole in ("the whole", "another whole"):
        graphs[whole] = part.launch().map(lambda _: None).graph().sync()
    with pytest.raises(KernelError, match="as planned"):
        graphs[fails].launch().sync()
    with pytest.raises(NotFilledYetError):
        shared.sync()
    graphs[runs].launch().sync()
    assert (shared.sync() if yields == "a number" else first(shared.sync())) in (5, 3.0)
    part.close()
    assert (shared.sync() if yields == "a number" else first(shared.sync())) in (5, 3.0)


@pytest.mark.parametrize("yields", ["a tensor", "a number"])
def test_first_launches_in_flight_that_all_fail(host, yields):
    """None has run the shared operation; the next one does."""
    x, fails = ca.zeros(4).sync(), [True]

    def work(_):
        if fails:
            raise ValueError("as planned")

    before = ca.foreign(work, reads=[], writes=[x])
    source = ca.full(4, 3.0) if yields == "a tensor" else ca.fill(x, 3.0).map(lambda _: 5)
    shared = before.then(lambda _: source).shared()
    graph = shared.map(lambda _: None).graph().sync()
    with pytest.raises(KernelError, match="as planned"):
        graph.launch().then(lambda _: graph.launch()).sync()
    with pytest.raises(NotFilledYetError, match="as planned"):
        shared.sync()
    fails.clear()
    graph.launch().sync()
    assert (shared.sync() if yields == "a number" else first(shared.sync())) in (5, 3.0)


def test_shared_operation_whose_launch_fails_while_another_whole_is_launched(host):
    """The one that was in flight behind it is the first then."""
    x, latch = ca.zeros(4).sync(), threading.Event()

    def fail(_):
        assert latch.wait(60)
        raise ValueError("as planned")

    shared = ca.full(4, 3.0).shared()
    part = shared.map(lambda _: None).graph().sync()
    failing = (
        part.launch()
        .then(lambda _: ca.foreign(fail, reads=[x], writes=[]))
        .map(lambda _: None)
        .graph()
        .sync()
    )
    other = part.launch().map(lambda _: None).graph().sync()
    stream = ca.SingleStream(host.create_stream())
    started = [graph.launch().start(stream) for graph in (failing, other)]
    while any(future.state == "enqueueing" for future in started):
        threading.Event().wait(1e-3)
    latch.set()
    with pytest.raises(KernelError, match="as planned"):
        started[0].sync()
    started[1].sync()
    assert first(shared.sync()) == 3.0
    other.launch().sync()
    with pytest.raises(StaleOutputError):
        shared.sync().to_host().sync()


@pytest.mark.parametrize(
    "order", list(itertools.product(["part", "whole", "outer", "both", "body"], repeat=3))
)
def test_value_of_a_shared_operation_is_that_of_its_first_run(host, order):
    """However deep it is in what is launched: it is never that of a later one, and where it ran twice, of none."""
    source, flag = ca.zip(ca.zeros(4), ca.ones(1, "int32")).sync()
    shared = ca.copy(source).shared()
    part = shared.map(lambda _: None).graph().sync()
    graphs = {"part": part, "whole": part.launch().map(lambda _: None).graph().sync()}
    graphs["outer"] = graphs["whole"].launch().map(lambda _: None).graph().sync()
    graphs["both"] = ca.zip(part.launch(), graphs["whole"].launch()).map(lambda _: None).graph().sync()
    body = ca.if_else(flag, lambda: graphs["whole"].launch().map(lambda _: None))
    graphs["body"] = body.map(lambda _: None).graph().sync()
    seen = []
    for turn, name in enumerate(order):
        ca.fill(source, float(turn)).sync()
        graphs[name].launch().sync()
        try:
            seen.append(first(shared.sync()))
        except (NotFilledYetError, StaleOutputError):
            seen.append(None)
    sure = next((turn for turn, name in enumerate(order) if name != "body"), None)
    expected = [None] * 3
    if sure is not None and order[sure] != "both":
        expected[sure] = float(sure)
    assert seen == expected


@pytest.mark.parametrize("target", ["a tensor", "an input"])
def test_shared_operation_that_writes_what_was_there_before(device, target):
    """Its value is of the first launch, whose memory it is all the same."""
    source, mine = ca.zip(ca.ones(4), ca.zeros(4)).sync()
    into = ca.value(mine) if target == "a tensor" else ca.graph_input("x", (4,))
    shared = into.then(lambda x: ca.memcpy(x, source)).shared()
    graph = shared.map(lambda _: None).graph().sync()
    graph.launch().sync()
    assert first(shared.sync()) == 1.0
    ca.fill(source, 2.0).sync()
    graph.launch().sync()
    with pytest.raises(StaleOutputError):
        shared.sync().to_host().sync()


def test_other_parts_of_a_whole_leave_a_shared_operation_its_value(device):
    shared = ca.full(4, 3.0).shared()
    part, other = shared.map(lambda _: None).graph().sync(), ca.full(4, 9.0).graph().sync()
    whole = part.launch().then(lambda _: other.launch()).map(lambda _: None).graph().sync()
    whole.launch().sync()
    other.launch().sync()
    assert first(shared.sync()) == 3.0
    part.launch().sync()
    with pytest.raises(StaleOutputError):
        shared.to_host().sync()


@pytest.mark.parametrize("closes", [False, True])
def test_shared_operation_has_run_whatever_becomes_of_later_launches(host, closes):
    x = ca.zeros(4).sync()
    shared = ca.fill(x, 3.0).map(lambda _: 5).shared()
    graph = shared.then(lambda _: failing_in(2, x)).graph().sync()
    graph.launch().sync()
    with pytest.raises(KernelError, match="as planned"):
        graph.launch().sync()
    if closes:
        graph.close()
    assert shared.sync() == 5


def test_shared_operation_whose_first_launch_failed(host):
    x = ca.zeros(4).sync()
    shared = ca.fill(x, 3.0).map(lambda _: 5).shared()
    graph = shared.then(lambda _: failing_in(1, x)).graph().sync()
    with pytest.raises(KernelError, match="as planned"):
        graph.launch().sync()
    with pytest.raises(NotFilledYetError, match=r"launch 1 .* failed .*as planned.*make the operation anew"):
        shared.sync()
    graph.launch().sync()
    assert shared.sync() == 5


def test_part_is_recorded_while_another_thread_asks_for_its_end(device, kernels):
    """The graph is closed between, and runs as a part of another one."""
    x = ca.zeros(8).sync()
    shared = kernels.scale(x, 1.0, 1.0).map(lambda _: 1).shared()
    part = shared.then(lambda _: ca.copy(x)).graph().sync()
    wholes = []

    def record_and_close():
        wholes.append(part.launch().graph().sync())
        part.close()

    class Found:
        """The other thread comes as the graph is asked whether it is closed."""

        @property
        def is_closed(self):
            if not wholes:
                thread = threading.Thread(target=record_and_close)
                thread.start()
                thread.join(30)
            return part.is_closed

    part._state.graph = Found
    with pytest.raises(NotFilledYetError):
        shared.sync()
    wholes[0].launch().sync()
    assert (shared.sync(), first(x)) == (1, 1.0)


# -------------------------------------------------------------------------------------------------- updates


@pytest.mark.parametrize("depth", [1, 2])
def test_updates_of_a_part_are_not_for_bodies(device, depth):
    flag, x = ca.zip(ca.zeros(1, "int32"), ca.zeros(4)).sync()
    part = ca.copy(x).graph().sync()
    part.update(ca.fill(x, 5.0))
    graph = part
    for _ in range(depth):
        graph = graph.launch().graph().sync()
    with pytest.raises(CaptureError, match="the update is to run"):
        ca.if_else(flag, lambda: graph.launch()).graph().sync()
    assert first(graph.launch().sync()) == 5.0
    whole = ca.if_else(flag, lambda: graph.launch()).graph(inputs={"flag": flag}).sync()  # it has run now
    ca.fill(x, 1.0).sync()
    whole.replay(flag=1).sync()
    assert first(x) == 5.0  # it is a node of that graph


@pytest.mark.parametrize("how", ["run", "captured"])
def test_launch_on_another_device_leaves_updates_alone(host, how):
    other = ca.Device._make("host", 1, type(host.driver)(memory_bytes=1 << 20))
    with ca.use_device(other):
        x = ca.ones(4).sync()
        graph = ca.copy(x).graph().sync()
    graph.update(ca.fill(x, 7.0))
    mine = ca.zeros(4).sync()
    op = ca.copy(mine).then(lambda _: graph.launch())
    with pytest.raises(ca.ContextError, match="captured on host:1"):
        (op.graph() if how == "captured" else op).sync()
    assert first(graph.launch().sync()) == 7.0
    other.close()


# ------------------------------------------------------------------------------------------- loops and outputs


def looped(part, source, sink, uses):
    """A launch of `part`, then a loop of two turns: use its output, and launch it again with other numbers."""
    go, later = ca.zip(ca.zeros(1, "int32"), ca.zeros(1, "int32")).sync()

    def body(output):
        used = uses(sink, output)
        again = used.then(lambda _: ca.fill(source, 9.0)).then(lambda _: part.launch())
        return again.then(lambda _: ca.memcpy(go, later)).then(lambda _: ca.fill(later, 0))

    begun = ca.zip(ca.fill(go, 1), ca.fill(later, 1), ca.fill(source, 3.0)).then(lambda _: part.launch())
    return begun.then(lambda output: ca.while_loop(go, lambda: body(output)))


USES = {
    "copy": lambda sink, output: ca.memcpy(sink, output),
    "in a branch": lambda sink, output: ca.parallel(ca.memcpy(sink, output), ca.full(4, 1.0)),
    "in a body": lambda sink, output: ca.full(1, 1, "int32").then(
        lambda flag: ca.if_else(flag, lambda: ca.memcpy(sink, output))
    ),
    "a view": lambda sink, output: ca.memcpy(sink[:2], output[2:]),
    "written": lambda sink, output: ca.fill(output, 1.0),
}


@pytest.mark.parametrize("use", USES)
def test_body_of_a_loop_uses_no_output_that_its_next_turn_overwrites(device, use):
    source, sink = ca.zip(ca.zeros(4), ca.full(4, -1.0)).sync()
    part = ca.copy(source).graph().sync()
    with pytest.raises(CaptureError, match="the next turn would find the later numbers"):
        looped(part, source, sink, USES[use]).graph().sync()
    with pytest.raises(CaptureError, match="the next turn would find the later numbers"):
        looped(part.launch().graph().sync(), source, sink, USES[use]).graph().sync()


def test_loop_in_a_loop_uses_no_output_that_its_next_turn_overwrites(device):
    """The body of the outer one makes it."""
    source, sink, turns = ca.zip(ca.zeros(4), ca.full(4, -1.0), ca.ones(1, "int32")).sync()
    part = ca.copy(source).graph().sync()
    inner = looped(part, source, sink, USES["copy"])

    def outer():
        return ca.fill(turns, 0).then(lambda _: inner)

    with pytest.raises(CaptureError, match="the next turn would find the later numbers"):
        ca.while_loop(turns, outer).graph().sync()


def test_body_of_a_loop_uses_what_it_makes_itself(device):
    source, sink = ca.zip(ca.zeros(4), ca.full(4, -1.0)).sync()
    part = ca.copy(source).graph().sync()

    def uses(sink, _):
        step = part.launch().then(lambda output: ca.memcpy(sink, output))
        return ca.fill(source, 4.0).then(lambda _: step)

    looped(part, source, sink, uses).graph().sync().launch().sync()
    assert first(sink) == 4.0


def test_copied_output_in_a_loop(device):
    source, sink = ca.zip(ca.zeros(4), ca.full(4, -1.0)).sync()
    part = ca.copy(source).graph().sync()
    go, later = ca.zip(ca.ones(1, "int32"), ca.ones(1, "int32")).sync()

    def body(output):
        used = ca.memcpy(sink, output).then(lambda _: ca.fill(source, 9.0)).then(lambda _: part.launch())
        return used.then(lambda _: ca.memcpy(go, later)).then(lambda _: ca.fill(later, 0))

    op = ca.fill(source, 3.0).then(lambda _: part()).then(lambda o: ca.while_loop(go, lambda: body(o)))
    op.graph().sync().launch().sync()
    assert (first(sink), first(source)) == (3.0, 9.0)


@pytest.mark.parametrize("launches_in", ["then", "otherwise"])
def test_one_body_uses_an_output_that_the_other_overwrites(device, launches_in):
    source, sink = ca.zip(ca.full(4, 3.0), ca.zeros(4)).sync()
    flag = ca.zeros(1, "int32").sync()
    part = ca.copy(source).graph().sync()

    def decided(output):
        bodies = [
            lambda: ca.memcpy(sink, output),
            lambda: ca.fill(source, 4.0).then(lambda _: part.launch()).then(lambda z: ca.memcpy(sink, z)),
        ]
        if launches_in == "then":
            bodies.reverse()
        return ca.if_else(flag, *bodies).map(lambda _: output)

    graph = part.launch().then(decided).map(lambda _: None).graph(inputs={"flag": flag}).sync()
    for taken in (0, 1):
        ca.fill(source, 3.0).sync()
        graph.replay(flag=taken).sync()
        assert first(sink) == (4.0 if taken == (launches_in == "then") else 3.0)
    with pytest.raises(StaleOutputError, match="the recording launches the graph again"):  # behind both
        part.launch().then(decided).then(ca.copy).graph().sync()


# ------------------------------------------------------------------------------- memory that another graph owns


def test_input_that_another_graph_yields(device):
    """It is set whichever launch of that graph was the last."""
    x = ca.ones(4).sync()
    owner = ca.copy(x).graph().sync()
    y = owner.launch().sync()
    user = ca.copy(y).graph(inputs={"y": y}).sync()
    for value in (5.0, 6.0):
        assert first(user(y=value).sync()) == value
        owner.launch().sync()
        assert first(user().sync()) == 1.0
        assert user.inputs["y"].shape == (4,)
    assert first(user.replay(y=8.0).sync()) == 8.0
    ca.memcpy(user.inputs["y"], x).sync()
    assert first(user().sync()) == 1.0
    owner.close()
    assert first(user(y=9.0).sync()) == 9.0


def test_input_of_a_part_is_an_output_of_the_whole(device):
    """Where the part yields it; the whole neither writes it nor sets it."""
    x = ca.ones(4).sync()
    part = ca.copy(x).then(lambda c: ca.value((c, x))).graph(inputs={"x": x}).sync()
    whole = part.launch().graph().sync()
    for value in (1.0, 2.0, 3.0):
        ca.fill(x, value).sync()
        before = whole.take_output() if whole.launches else None
        outputs = [*whole.launch().sync(), *whole.take_output(), *whole().sync()]
        assert [first(t) for t in (*outputs[4:], *whole.take_output())] == [value] * 4
        for stale in (*(before or ()), *outputs[:4]):
            with pytest.raises(StaleOutputError):
                stale.to_host().sync()


def test_outputs_in_memory_that_another_graph_owns_are_names_of_it(device):
    """They go stale with the next launch of their graph, and show till then what others write there."""
    x = ca.ones(4).sync()
    owner = ca.copy(x).graph().sync()
    y = owner.launch().sync()
    users = [ca.fill(y, value).graph().sync() for value in (5.0, 6.0)]
    apart = ca.copy(y).then(lambda z: ca.zip(ca.fill(y, 7.0), ca.value(z))).graph().sync()
    outputs = [user.launch().sync() for user in users]
    in_place, own = apart.launch().sync()
    assert [first(t) for t in (*outputs, in_place, y)] == [7.0] * 4
    owner.launch().sync()
    assert [first(t) for t in (*outputs, in_place)] == [1.0] * 3
    with pytest.raises(StaleOutputError):
        y.to_host().sync()
    assert first(own) == 6.0
    assert first(users[0].launch().sync()) == 5.0
    assert first(users[1]().sync()) == 6.0
    with pytest.raises(StaleOutputError):
        outputs[0].to_host().sync()
    again = owner.launch().sync()
    apart.launch().sync()
    assert first(again) == 7.0  # written in place, as by any operation


@pytest.mark.parametrize("end", ["kept", "dropped"])
def test_graphs_that_are_parts_of_one_have_no_memory_in_common(device, end):
    """Launches of one leave the other's outputs good, and make the whole's stale; and so in a recording."""
    x = ca.ones(4).sync()
    parts = [ca.copy(x).graph().sync() for _ in range(2)]
    whole = ca.zip(*(part.launch() for part in parts)).graph().sync()
    beside = parts[1].launch().graph().sync()
    outputs = [part.launch().sync() for part in parts]
    assert [first(output) for output in outputs] == [1.0, 1.0]
    recorded = parts[0].launch().then(lambda output: parts[1].launch().then(lambda _: ca.copy(output)))
    assert first(recorded.graph().sync().launch().sync()) == 1.0
    if end == "dropped":
        del whole
        gc.collect()
        return
    of_all = (*whole.launch().sync(), beside.take_output(), *(part.take_output() for part in parts))
    assert [first(output) for output in of_all[:2]] == [1.0, 1.0]
    for output in of_all[2:]:
        with pytest.raises(StaleOutputError):
            output.to_host().sync()
    parts[0].launch().sync()
    for output in of_all[:2]:
        with pytest.raises(StaleOutputError):
            output.to_host().sync()
    kept = beside.launch().sync()
    parts[0].launch().sync()
    assert first(kept) == 1.0
    parts[1].launch().sync()
    with pytest.raises(StaleOutputError):
        kept.to_host().sync()


# ------------------------------------------------------------------------------------------------ changed nodes


@pytest.mark.parametrize("memory", ["graph's own", "part's", "caller's"])
@pytest.mark.parametrize("change", ["source", "argument"])
def test_memory_that_a_branch_beside_writes_is_not_given(device, kernels, memory, change):
    x, b, mine = ca.zip(ca.ones(8), ca.zeros(8), ca.zeros(8)).sync()

    def written(y):
        return kernels.affine_to.launch(1, 8, ca.mut(y), ca.read(x), 8, 2.0, 0.0).first()

    made = {
        "graph's own": lambda: ca.empty(8).then(written),
        "part's": lambda: ca.empty(8).then(written).graph().sync().launch(),
        "caller's": lambda: written(mine),
    }[memory]
    beside = ca.copy(b) if change == "source" else kernels.scaled(b, 1.0, 0.0)
    graph = ca.parallel(made(), beside).graph().sync()
    output, _ = graph.launch().sync()
    node = graph.nodes[1]

    def give(tensor):
        node.set_source(tensor) if change == "source" else node.set_arguments({1: ca.read(tensor)})

    with pytest.raises(ca.AliasError, match="may run beside"):
        give(output)
    give(x)
    assert [first(t) for t in graph.launch().sync()] == [2.0, 1.0]


def test_memory_that_a_kernel_has_left_may_be_given(device, kernels):
    """Arguments that were set count, and not those that were recorded."""
    x, b, scratch, other = ca.zip(ca.ones(8), ca.zeros(8), ca.zeros(8), ca.zeros(8)).sync()
    written = kernels.affine_to.launch(1, 8, ca.mut(scratch), ca.read(x), 8, 2.0, 0.0)
    graph = ca.parallel(written, ca.copy(b)).map(lambda both: both[1]).graph().sync()
    kernel, copy = graph.nodes
    with pytest.raises(ca.AliasError, match="may run beside"):
        copy.set_source(scratch)
    kernel.set_arguments({0: ca.mut(other)})
    copy.set_source(scratch)
    with pytest.raises(ca.AliasError, match="may run beside"):
        copy.set_source(other)
    ca.fill(scratch, 4.0).sync()
    assert first(graph.launch().sync()) == 4.0
    assert first(other) == 2.0


def test_what_is_yielded_as_it_was_is_not_given_to_write(device, kernels):
    """Launches would go on yielding the tensor itself, without a launch that its contents are of."""
    x, y, scratch = ca.zip(ca.ones(8), ca.zeros(8), ca.zeros(8)).sync()
    graph = kernels.scale(scratch, 1.0, 1.0).map(lambda _: (x, y)).graph().sync()
    (node,) = graph.nodes
    for tensor in (x, y[2:]):
        with pytest.raises(CaptureError, match=r"yields .* as what it does not write"):
            node.set_arguments({0: ca.mut(tensor)})
    other = ca.zeros(8).sync()
    node.set_arguments({0: ca.mut(other)})
    graph.launch().sync()
    assert [first(t) for t in (x, y, scratch, other)] == [1.0, 0.0, 0.0, 1.0]


def test_what_is_yielded_as_it_was_and_imported_again_is_not_given_to_write(host, kernels):
    array, scratch = np.zeros(16, "f4"), ca.zeros(8).sync()
    part = ca.from_dlpack(array[:8])
    other = ca.from_dlpack(array[8:])
    graph = kernels.scale(scratch, 1.0, 1.0).map(lambda _: part).graph().sync()
    kept = ca.from_dlpack(array)  # from here on all three are one memory
    for tensor in (part, kept, other):
        with pytest.raises(CaptureError, match=r"yields .* as what it does not write"):
            graph.nodes[0].set_arguments({0: ca.mut(tensor)})


def test_predicate_of_a_conditional_beside_is_not_given_to_write(device, kernels):
    flag, x, n = ca.zip(ca.zeros(1, "int32"), ca.zeros(4), ca.full(1, 3, "int32")).sync()
    op = ca.parallel(ca.if_else(flag, lambda: ca.fill(x, 2.0)), kernels.count_down.launch(1, 1, ca.mut(n)))
    graph = op.map(lambda _: None).graph().sync()
    with pytest.raises(ca.AliasError, match="node 0 of the graph, if, may run beside"):
        graph.nodes[1].set_arguments({0: ca.mut(flag)})
