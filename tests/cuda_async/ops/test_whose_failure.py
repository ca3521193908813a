"""Whose a failure on the host device is: of the operation whose work failed, whoever else enqueues on its stream.

While an operation stands still (a step is prepared, a shared operation is run by another consumer, host data is waited
for), others come to its stream, and close and fail what they like.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import cuda_async as ca
from cuda_async.errors import KernelError
from cuda_async.testing import explore

pytestmark = pytest.mark.anyio

SAXPY = Path(__file__).resolve().parents[3] / "examples" / "simt" / "saxpy.ptx"


def fail(_):
    raise ValueError("as planned")


def fail_otherwise(_):
    raise ValueError("another's")


class Held(ca.DeviceOp[None]):
    """Is prepared until it is released."""

    def __init__(self):
        self.began, self.release = threading.Event(), threading.Event()

    def prepare(self, ctx):
        self.began.set()
        assert self.release.wait(10)

    def execute(self, ctx):
        return None


class InTurn:
    """A policy that gives these streams, one after the other."""

    def __init__(self, *streams):
        self.streams = list(streams)

    def next_stream(self):
        self.streams.append(self.streams.pop(0))
        return self.streams[-1]


@pytest.fixture
def on_it(host):
    """A policy of one stream, on which a failing kernel is prepared."""
    ca.foreign(lambda _: None).sync()
    return ca.SingleStream(host.create_stream())


def outcome_of(op):
    """What it gives or raises, as text."""
    try:
        return str(op.sync())
    except (KernelError, ca.ClosedError) as error:
        return f"{type(error).__name__}: {error}"


class OnStreams:
    """An operation to be run on `home`, with its branches on others."""

    def __init__(self, op, home, *branches):
        self.op, self.home, self.branches = op, home, branches

    def sync(self):
        with ca.use_policy(InTurn(*self.branches)):
            return self.op.sync_on(self.home)


class InThread:
    """The outcome of an operation that another thread runs."""

    def __init__(self, op):
        self._op = op
        self.outcome = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        self.outcome = outcome_of(self._op)

    def join(self):
        self._thread.join(10)
        return self.outcome


def enqueued(future):
    """The future, once all of it is enqueued."""
    ready = threading.Event()
    future._begin(ready.set)
    assert ready.wait(10)
    return future


def chain(x, held):
    """Fails on the device at its beginning, stops for a preparation, and goes on."""
    return ca.foreign(fail, writes=[x]).then(lambda _: held).then(lambda _: ca.copy(x))


def wait_until_done(policy):
    while not policy.next_stream().is_done:
        pass


OTHERS = {
    "stream.synchronize": lambda device, policy: policy.next_stream().synchronize(),
    "stream.is_done": lambda device, policy: wait_until_done(policy),
    "device.synchronize": lambda device, policy: device.synchronize(),
    "an operation": lambda device, policy: ca.ones(4).schedule(policy).sync(),
    "many failures": lambda device, policy: [
        outcome_of(ca.foreign(fail_otherwise).schedule(policy)) for _ in range(40)
    ],
    "close": lambda device, policy: policy.next_stream().close(),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("how", ["start", "sync", "shared"])
def test_an_operation_whose_work_failed_gives_no_value(host, on_it, how, other):
    """Though another's event closed that work, and another had the error."""
    x = ca.zeros(4).sync()
    held = Held()
    op = chain(x, held)
    waited = op.shared() if how == "shared" else op
    runs = InThread(waited.start(on_it) if how == "start" else waited.schedule(on_it))
    assert held.began.wait(10)
    with contextlib.suppress(KernelError):
        OTHERS[other](host, on_it)
    held.release.set()
    outcome = runs.join()
    if other != "close":
        assert "as planned" in outcome
    else:
        assert outcome.startswith(("KernelError", "ClosedError"))


async def test_an_awaited_operation_too(host, on_it):
    x = await ca.zeros(4)
    held = Held()

    async def drain():
        await anyio.to_thread.run_sync(held.began.wait, 10)
        await ca.drain()
        held.release.set()

    async with anyio.create_task_group() as group:
        group.start_soon(drain)
        with pytest.raises(KernelError, match="as planned"):
            await chain(x, held).schedule(on_it)
    assert (await x.to_host()).tolist() == [0.0] * 4


def stands_and_goes_on(x, held):
    return ca.fill(x, 2.0).then(lambda _: held).then(lambda _: ca.copy(x)).map(lambda _: "fine")


def stands_at_the_end(x, held):
    return ca.fill(x, 2.0).then(lambda _: held).map(lambda _: "fine")


def looks_and_stands(x, held):
    return x.to_host().map(lambda a: a.tolist()).then(lambda _: held).map(lambda _: "fine")


def only_stands(x, held):
    return held.map(lambda _: "fine")


@pytest.mark.parametrize("kind", [stands_and_goes_on, stands_at_the_end, looks_and_stands, only_stands])
@pytest.mark.parametrize("is_awaited", [False, True])
def test_what_others_failed_with_meanwhile_is_theirs(host, on_it, kind, is_awaited):
    held = Held()
    x = ca.zeros(4).sync()
    future = kind(x, held).start(on_it)
    assert held.began.wait(10)
    other = enqueued(ca.foreign(fail_otherwise).start(on_it))
    if is_awaited:
        assert "another's" in outcome_of(other)
    held.release.set()
    assert future.sync() == "fine"
    assert "another's" in outcome_of(other)


def test_who_comes_behind_an_operation_that_raised_is_spared(host, on_it):
    """What a callback left enqueued has an event of its own too."""
    x = ca.zeros(4).sync()

    def stop(_):
        raise RuntimeError("the callback's")

    with pytest.raises(RuntimeError, match="the callback's"):
        ca.foreign(fail, writes=[x]).map(stop).schedule(on_it).sync()
    assert ca.ones(4).map(lambda _: "fine").schedule(on_it).sync() == "fine"


def test_who_comes_meanwhile_is_spared(host, on_it):
    """What an operation enqueued before it stood still has an event of its own."""
    held = Held()
    future = chain(ca.zeros(4).sync(), held).start(on_it)
    assert held.began.wait(10)
    assert (ca.ones(4).then(lambda t: t.to_host())).schedule(on_it).sync().tolist() == [1.0] * 4
    held.release.set()
    with pytest.raises(KernelError, match="as planned"):
        future.sync()


NOTHING = {
    "value": lambda: ca.value("fine"),
    "with_context": lambda: ca.with_context(lambda ctx: ca.value("fine")),
    "parallel": lambda: ca.parallel(ca.value("fine")).first(),
    "zip": lambda: ca.zip(ca.value("fine"), ca.value(1)).first(),
    "shared": lambda: ca.value("fine").shared(),
}


@pytest.mark.parametrize("nothing", NOTHING)
def test_an_operation_that_enqueues_nothing_takes_no_failure_from_its_stream(host, on_it, nothing):
    other = enqueued(ca.foreign(fail_otherwise).start(on_it))
    assert outcome_of(NOTHING[nothing]().schedule(on_it)) == "fine"
    assert "another's" in outcome_of(other)


class TestBranches:
    @pytest.fixture
    def streams(self, host):
        """Of the branches two, and the chain's."""
        ca.foreign(lambda _: None).sync()
        return [host.create_stream() for _ in range(3)]

    @pytest.mark.parametrize("kind", ["other streams", "the chain's stream"])
    def test_branches_behind_what_failed(self, host, streams, kind):
        """Where the branch is on the chain's own stream too, on which it waits for nothing."""
        first, second, home = streams
        x = ca.zeros(4).sync()
        with ca.use_policy(InTurn(home) if kind == "the chain's stream" else InTurn(first, second)):
            op = ca.foreign(fail, writes=[x]).then(lambda _: ca.parallel(ca.ones(4), ca.ones(4)))
            with pytest.raises(KernelError, match="as planned"):
                op.sync_on(home)

    @pytest.mark.parametrize("how", ["sync", "future"])
    def test_two_branches_fail_and_one_failure_is_told(self, host, streams, how):
        """Who has the operation's error is told of all of it: nobody hears of the rest."""
        first, second, home = streams
        tensors = [ca.zeros(4).sync() for _ in range(2)]
        with ca.use_policy(InTurn(first, second)):
            op = ca.parallel(*(ca.foreign(fail, writes=[x]) for x in tensors)).then(lambda _: ca.ones(4))
            with pytest.raises(KernelError, match="as planned"):
                op.sync_on(home) if how == "sync" else op.start(ca.SingleStream(home)).sync()
        host.synchronize()
        for stream in streams:
            stream.close()

    def test_branches_start_behind_others_work_without_its_failure(self, stepped):
        """They wait for all that is on the chain's stream, as the stepped device shows."""
        home, aside = stepped.create_stream(), stepped.create_stream()
        seen = []

        def fail_late(_):
            seen.append("another's work")
            raise ValueError("another's")

        other = enqueued(ca.foreign(fail_late).start(ca.SingleStream(home)))
        with ca.use_policy(InTurn(aside)):
            branch = ca.foreign(lambda _: seen.append("the branch"))
            op = ca.value(1).then(lambda _: ca.parallel(branch)).map(lambda _: "fine")
            future = enqueued(op.start(ca.SingleStream(home)))
        stepped.driver.advance_all()
        assert seen == ["another's work", "the branch"]
        assert future.sync() == "fine"
        assert "another's" in outcome_of(other)

    @pytest.mark.parametrize("is_touched", [False, True])
    @pytest.mark.parametrize("look", ["synchronize", "is_done", "operation"])
    def test_a_branch_failed_and_another_stands_still(self, host, streams, look, is_touched):
        first, second, home = streams
        held = Held()
        x = ca.zeros(4).sync()
        second_branch = ca.ones(4).then(lambda _: held) if is_touched else held
        op = ca.parallel(ca.foreign(fail, writes=[x]), second_branch).map(lambda _: "a value")

        runs = InThread(OnStreams(op, home, first, second))
        assert held.began.wait(10)
        if look == "synchronize":
            with pytest.raises(KernelError, match="as planned"):
                first.synchronize()
        elif look == "is_done":
            wait_until_done(ca.SingleStream(first))
        else:
            assert ca.ones(4).map(lambda _: "fine").schedule(ca.SingleStream(first)).sync() == "fine"
        held.release.set()
        assert "as planned" in runs.join()

    def test_others_fail_on_a_branch_s_stream(self, host, streams):
        first, second, home = streams
        held = Held()
        x = ca.zeros(4).sync()
        op = ca.parallel(ca.fill(x, 1.0), held).then(lambda _: x.to_host()).map(lambda a: a.tolist())

        runs = InThread(OnStreams(op, home, first, second))
        assert held.began.wait(10)
        other = enqueued(ca.foreign(fail_otherwise).start(ca.SingleStream(first)))
        held.release.set()
        assert runs.join() == str([1.0] * 4)
        assert "another's" in outcome_of(other)

    @pytest.mark.parametrize("does_fail", [False, True])
    def test_branches_that_the_stream_waits_for_already(self, does_fail):
        """Another task has had the chain's stream wait for one branch while the other stands still, and ends first."""

        async def program(device):
            await ca.foreign(lambda _: None)
            home, first, second = (device.create_stream() for _ in range(3))
            x = await ca.zeros(4)
            done = []

            def work(_):
                done.append(True)
                if does_fail:
                    fail(_)

            async def read_on_its_stream():
                for _ in range(6):
                    await asyncio.sleep(0)
                    with contextlib.suppress(KernelError):
                        await ca.copy(x).schedule(ca.SingleStream(home))

            reads = asyncio.ensure_future(read_on_its_stream())
            with ca.use_policy(InTurn(first, second)):
                looks = ca.ones(4).then(lambda y: y.to_host()).map(lambda _: 1)
                future = ca.parallel(ca.foreign(work, writes=[x]), looks).start(ca.SingleStream(home))
            if does_fail:
                with pytest.raises(KernelError, match="as planned"):
                    await future
            else:
                await future
            assert done
            await reads

        explore(program, seeds=100)

    def test_a_branch_whose_stream_is_closed(self, host, streams):
        aside, _, home = streams
        x = ca.zeros(4).sync()

        def close(_):
            with pytest.raises(KernelError, match="as planned"):
                aside.close()

        branch = ca.foreign(fail, writes=[x]).map(close).schedule(ca.SingleStream(aside))
        op = ca.value(1).then(lambda _: branch).then(lambda _: ca.value("a value"))
        with pytest.raises(KernelError, match="as planned"):
            op.sync_on(home)


class TestSharedOperations:
    def test_a_failure_before_the_shared_operation_is_not_its_own(self, host, on_it):
        """The consumer that comes first runs it, on its own stream, behind what it has enqueued."""
        x = ca.zeros(4).sync()
        shared = ca.ones(4).then(lambda t: t.to_host()).map(lambda a: a.tolist()).shared()
        first = ca.foreign(fail, writes=[x]).then(lambda _: shared)
        with pytest.raises(KernelError, match="as planned"):
            first.schedule(on_it).sync()
        assert shared.sync() == [1.0] * 4

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_what_several_shared_operations_do_is_waited_for(self, stepped, order):
        """One on the consumer's stream and one on another: the consumer is done behind both."""
        here, there = stepped.create_stream(), stepped.create_stream()
        gates = [ca.ones(4).shared(), ca.ones(4).shared()]
        for gate, stream in zip(gates, (here, there), strict=True):
            enqueued(gate.start(ca.SingleStream(stream)))
        future = enqueued(ca.zip(*(gates[i] for i in order)).start(ca.SingleStream(here)))
        while stepped.driver.advance(here._handle):
            pass
        assert future.state == "submitted"
        stepped.driver.advance_all()
        assert future.state == "done"


def test_a_graph_is_made_behind_what_failed(host, on_it):
    """A recording enqueues nothing; what was enqueued before it still has its event."""
    x, y = ca.zeros(4).sync(), ca.zeros(4).sync()
    op = ca.foreign(fail, writes=[x]).then(lambda _: ca.fill(y, 1.0).graph())
    with pytest.raises(KernelError, match="as planned"):
        op.schedule(on_it).sync()


def test_shared_operations_that_the_stream_waits_for_already(stepped):
    """A second consumer needs no waits of its own, and is done behind both sources all the same."""
    here, first, second = (stepped.create_stream() for _ in range(3))
    gates = [ca.ones(4).shared(), ca.ones(4).shared()]
    for gate, stream in zip(gates, (first, second), strict=True):
        enqueued(gate.start(ca.SingleStream(stream)))
    futures = [enqueued(ca.zip(*gates).start(ca.SingleStream(here))) for _ in range(2)]
    while stepped.driver.advance(second._handle):
        pass
    assert [future.state for future in futures] == ["submitted"] * 2
    stepped.driver.advance_all()
    assert [future.state for future in futures] == ["done"] * 2


def test_what_others_close_while_a_callback_runs_is_looked_at(host, on_it):
    """Another thread's event may close what was enqueued before the callback; the operation has its failure."""
    stream = on_it.next_stream()
    x = ca.zeros(4).sync()

    def look(_):
        with pytest.raises(KernelError, match="as planned"):
            stream.synchronize()

    op = ca.foreign(fail, writes=[x]).map(look).then(lambda _: ca.ones(4))
    with pytest.raises(KernelError, match="as planned"):
        op.schedule(on_it).sync()


def test_what_others_fail_with_before_the_first_step_is_theirs(host, on_it):
    """The first callback takes its time, and another thread uses the stream meanwhile."""
    x = ca.zeros(4).sync()

    def elsewhere(_):
        assert "another's" in InThread(ca.foreign(fail_otherwise).schedule(on_it)).join()

    op = ca.value(1).map(elsewhere).then(lambda _: ca.fill(x, 1.0)).then(lambda _: x.to_host())
    assert op.schedule(on_it).sync().tolist() == [1.0] * 4
    branch = ca.parallel(ca.value(1).map(elsewhere))  # behind an empty stream: it waits for nothing
    with ca.use_policy(on_it):
        assert branch.map(lambda _: "fine").sync_on(host.create_stream()) == "fine"


def raw_kernel(x):
    y, function = ca.zeros(4).sync(), ca.Module.from_file(SAXPY).function("saxpy_f32")
    return lambda: function.launch(1, 4, 4, 2.0, ca.read(x), ca.read(x), ca.mut(y))


def tile_kernel(x):
    tk = pytest.importorskip("tilekern")

    @tk.kernel
    def takes(out: tk.Tile1D, x: tk.Tensor1D):
        out.store(tk.load_like(x, out))

    y = ca.zeros(4).sync()
    return lambda: takes(y.partition(4), x)


def replay(x):
    return ca.copy(x).graph().sync().launch


USES = {
    "to_host": lambda x: x.to_host,
    "copy": lambda x: lambda: ca.copy(x),
    "memcpy": lambda x: lambda: ca.zeros(4).then(lambda y: ca.memcpy(y, x)),
    "foreign": lambda x: lambda: ca.foreign(lambda _: None, reads=[x]),
    "graph": lambda x: lambda: ca.copy(x).graph().then(lambda graph: graph.launch()),
    "replay": replay,
    "call": lambda x: ca.copy(x).graph().sync(),
    "raw kernel": raw_kernel,
    "tile kernel": tile_kernel,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("waits", ["for what came later", "for the same work"])
def test_who_uses_what_failed_hears_of_it_each_time(host, use, waits):
    """Two tensors are written on one stream, the first by what fails. The other stream has used something before."""
    home, stream = host.create_stream(), host.create_stream()
    on_home, on_it = ca.SingleStream(home), ca.SingleStream(stream)
    goes_on = threading.Event()
    x, y = ca.zip(ca.zeros(4), ca.zeros(4)).sync()
    again = use(x)
    again().schedule(on_it).sync()
    again().schedule(on_it).sync()

    def fail_late(_):
        assert goes_on.wait(10)
        raise ValueError("as planned")

    failed = ca.foreign(fail_late, writes=[x] if waits == "for what came later" else [x, y]).start(on_home)
    home.record()
    if waits == "for what came later":
        ca.fill(y, 2.0).start(on_home)
    before = ca.copy(y).start(on_it)  # waits on the device
    stream.record()
    futures = []
    for _ in range(3):
        futures.append(again().start(on_it))
        stream.record()
    goes_on.set()
    for future in (*futures, failed):
        with pytest.raises(KernelError, match="as planned"):
            future.sync()
    if waits == "for what came later":
        assert before.sync().to_host().sync().tolist() == [2.0] * 4
    else:
        with pytest.raises(KernelError, match="as planned"):
            before.sync()
    again().schedule(on_it).sync()


def test_a_write_elsewhere_behind_a_read_that_may_be_told(host):
    """It waits for that read."""
    home, stream = host.create_stream(), host.create_stream()
    on_home, on_it = ca.SingleStream(home), ca.SingleStream(stream)
    first, second = threading.Event(), threading.Event()
    x = ca.zeros(4).sync()
    ca.foreign(lambda _: None, writes=[x]).schedule(on_home).sync()
    ca.foreign(lambda _: first.wait(10), writes=[x]).start(on_home)
    home.record()
    seen = []
    read = ca.foreign(lambda _: (second.wait(10), seen.append("read")), reads=[x]).start(on_it)
    writes = ca.foreign(lambda _: seen.append("write"), writes=[x]).start(on_home)
    first.set()
    second.set()
    writes.sync()
    read.sync()
    assert seen == ["read", "write"]


@pytest.mark.parametrize("kind", ["the submission's", "the run's"])
def test_what_ends_by_a_failure_is_not_told_of_it_again(host, kind):
    """It waits for the same work on another stream too, which fails with it, and later."""
    home, elsewhere = (ca.SingleStream(host.create_stream()) for _ in range(2))
    goes_on = threading.Event()
    x = ca.zeros(4).sync()

    def fail_late(_):
        assert goes_on.wait(10)
        raise ValueError("as planned")

    def ends(_):
        goes_on.set()
        while not failed.done:
            pass

    source = ca.foreign(fail_late, writes=[x])
    if kind == "the run's":  # which looks at host data, so that it has the failure itself
        source = source.then(lambda _: x.to_host()).map(lambda array: array.sum())
    shared = source.shared()
    failed = shared.start(elsewhere)
    waits = ca.copy(x).schedule(home)  # behind what fails
    op = ca.parallel(waits, ca.value(None).inspect(ends), shared)
    with pytest.raises(KernelError, match="as planned"):
        op.schedule(home).sync()
    host.synchronize()
    with pytest.raises(KernelError, match="as planned"):
        failed.sync()
