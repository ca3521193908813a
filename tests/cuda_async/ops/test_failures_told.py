"""Who hears of work that failed on the device and that nobody awaits."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import cuda_async as ca
from cuda_async.errors import KernelError, MemoryFault
from cuda_async.scheduling import wait_for_submission

pytestmark = pytest.mark.anyio


def fail(_):
    raise ValueError("as planned")


@pytest.fixture
def on_it(host):
    """A policy of one stream, on which a failing kernel is prepared."""
    ca.foreign(lambda _: None).sync()
    return ca.SingleStream(host.create_stream())


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


@pytest.mark.parametrize("looks", ["before", "behind"])
def test_what_nobody_needs_to_hear_of_is_not_told(host, on_it, looks):
    """Whether a thread that looks at the stream has found the failure by then, or finds it later."""
    stream = on_it.next_stream()
    submission = ca.foreign(fail).start(on_it)._submission
    if looks == "before":
        while not submission.poll():
            pass
    submission.note_heard_of()
    stream.synchronize()


STORE = r"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry stores(.param .u64 x)
{
    .reg .u64 %a;
    ld.param.u64 %a, [x];
    st.global.u32 [%a + 1073741824], 1;
    ret;
}
"""


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("look", ["stream", "device", "close"])
def test_it_is_told_as_what_it_is(host, look, more):
    stores = ca.Module.from_ptx(STORE).function("stores")
    stores.load(host)
    stream, x = host.create_stream(), ca.zeros(4).sync()
    stores.launch(1, 1, ca.mut(x)).start(ca.SingleStream(stream))
    for _ in range(more):
        ca.ones(4).start(ca.SingleStream(stream))
    looks = {"stream": stream.synchronize, "device": host.synchronize, "close": stream.close}
    with pytest.raises(MemoryFault) as caught:
        looks[look]()
    assert (caught.value.kernel, caught.value.access, caught.value.size_bytes) == ("stores", "write", 4)


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
