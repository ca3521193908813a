"""Failures of work that is closed by others' events: nobody's operation gives a value, nothing is told to nobody."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import cuda_async as ca
from cuda_async.errors import KernelError
from cuda_async.scheduling import wait_for_submission

pytestmark = pytest.mark.anyio


def fail(_):
    raise ValueError("as planned")


class Held(ca.DeviceOp[None]):
    """Is prepared until it is released."""

    def __init__(self):
        self.began, self.release = threading.Event(), threading.Event()

    def prepare(self, ctx):
        self.began.set()
        assert self.release.wait(10)

    def execute(self, ctx):
        return None


@pytest.fixture
def on_it(host):
    """A policy of one stream, on which a failing kernel is prepared."""
    ca.foreign(lambda _: None).sync()
    return ca.SingleStream(host.create_stream())


def chain(x, held):
    """Fails on the device at its beginning, stops for a preparation, and goes on."""
    return ca.foreign(fail, writes=[x]).then(lambda _: held).then(lambda _: ca.copy(x))


OTHERS = {
    "stream.synchronize": lambda device, policy: policy.next_stream().synchronize(),
    "device.synchronize": lambda device, policy: device.synchronize(),
    "another operation": lambda device, policy: ca.ones(4).schedule(policy).sync(),
    "close": lambda device, policy: policy.next_stream().close(),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("how", ["start", "thread", "shared"])
def test_an_operation_whose_work_failed_gives_no_value(host, on_it, how, other):
    """Though another's event closed that work, and another had the error."""
    x = ca.zeros(4).sync()
    held = Held()
    op = chain(x, held)
    outcome = []

    def run():
        try:
            waited = op.shared() if how == "shared" else op
            outcome.append(waited.start(on_it).sync() if how == "start" else waited.schedule(on_it).sync())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert held.began.wait(10)
    try:
        OTHERS[other](host, on_it)
    except KernelError:
        pass
    held.release.set()
    thread.join(10)
    if other == "close":
        assert isinstance(outcome[0], (KernelError, ca.ClosedError))
    else:
        assert isinstance(outcome[0], KernelError)
        assert "as planned" in str(outcome[0])
    ca.drain().sync()


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


def test_what_others_failed_with_meanwhile_is_theirs(host, on_it):
    """While an operation stands still, another one on its stream comes and fails."""
    held = Held()
    x = ca.zeros(4).sync()
    future = ca.fill(x, 2.0).then(lambda _: held).then(lambda _: x.to_host()).start(on_it)
    assert held.began.wait(10)
    ca.ones(4).schedule(on_it).sync()
    with pytest.raises(KernelError, match="as planned"):
        ca.foreign(fail, writes=[ca.empty(1).sync()]).schedule(on_it).sync()
    ca.ones(4).schedule(on_it).sync()
    held.release.set()
    assert future.sync().tolist() == [2.0] * 4


def test_a_branch_whose_stream_is_closed(host, on_it):
    x = ca.zeros(4).sync()

    def close(_):
        with pytest.raises(KernelError, match="as planned"):
            on_it.next_stream().close()

    branch = ca.foreign(fail, writes=[x]).map(close).schedule(on_it)
    op = ca.value(1).then(lambda _: branch).then(lambda _: ca.value("a value"))
    with pytest.raises(KernelError, match="as planned"):
        op.sync_on(host.create_stream())


@pytest.mark.parametrize("is_known_elsewhere", [False, True])
@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("look", ["stream", "device", "close"])
def test_who_synchronizes_hears_of_it_once(host, on_it, look, more, is_known_elsewhere):
    """Whatever was enqueued and closed behind it, as long as nobody has waited for that."""
    stream = on_it.next_stream()
    if is_known_elsewhere:
        stream.handle  # noqa: B018
    ca.foreign(fail).start(on_it)
    for _ in range(more):
        ca.ones(4).start(on_it)
    looks = {"stream": stream.synchronize, "device": host.synchronize, "close": stream.close}
    with pytest.raises(KernelError, match="as planned"):
        looks[look]()
    looks[look]()
    host.synchronize()


@pytest.mark.parametrize("wait", ["await", "event"])
async def test_who_waits_for_later_work_has_waited_past_it(host, on_it, wait):
    """As docs/reliability.md says."""
    stream = on_it.next_stream()
    ca.foreign(fail).start(on_it)
    if wait == "await":
        await wait_for_submission(ca.ones(4).start(on_it)._submission)
    else:
        await stream.record()
    stream.synchronize()
    host.synchronize()


@pytest.mark.parametrize("first", ["close", "aclose"])
async def test_one_of_two_who_close_hears_of_it(host, on_it, first):
    stream = on_it.next_stream()
    began, goes_on = threading.Event(), threading.Event()
    heard = []

    def wait_and_fail(_):
        began.set()
        assert goes_on.wait(10)
        fail(_)

    def close():
        try:
            stream.close()
        except KernelError as error:
            heard.append(error)

    ca.foreign(wait_and_fail).start(on_it)
    assert began.wait(10)
    thread = threading.Thread(target=close)
    thread.start()
    goes_on.set()
    if first == "close":
        thread.join(10)
    try:
        await stream.aclose()
    except KernelError as error:
        heard.append(error)
    thread.join(10)
    assert ["as planned" in str(error) for error in heard] == [True]


@pytest.mark.parametrize("how", ["close", "aclose"])
async def test_a_failure_and_a_stream_that_is_not_given_back(stepped, how):
    """Both are told: the failure, and behind it the driver's."""
    stream = stepped.create_stream()
    future = ca.foreign(fail).start(ca.SingleStream(stream))
    while future.state == "enqueueing":
        await anyio.lowlevel.checkpoint()
    stepped.driver.advance_all()
    stepped.driver.fail_next(
        "stream_destroy", ca.DriverError("cuStreamDestroy", 999, "CUDA_ERROR_UNKNOWN", "planted")
    )
    with pytest.raises(KernelError, match="as planned") as info:
        stream.close() if how == "close" else await stream.aclose()
    assert isinstance(info.value.__context__, ca.DriverError)


def test_a_loss_that_giving_back_finds_is_noted(stepped):
    stream = stepped.create_stream()
    stepped.driver.fail_next("stream_destroy", ca.DeviceLostError("planted loss"))
    with pytest.raises(ca.DeviceLostError, match=r"host:0 is lost: planted loss\..*restart the process"):
        stream.close()
    assert not stepped.is_healthy
