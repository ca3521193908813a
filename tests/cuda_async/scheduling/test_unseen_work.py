"""Work that operations, callbacks and other libraries enqueue by a stream's handle, without a word to us."""

import threading

import pytest

import cuda_async as ca

FILL = (b"\7\0\0\0", 4)
"""Pattern and how many: all of a tensor of four int32."""


def fill(driver, tensor, stream):
    driver.fill_async(tensor._address, *FILL, stream.handle)


class Fills(ca.DeviceOp):
    """Enqueues, and asks for no address."""

    def __init__(self, tensor):
        self.tensor = tensor

    def execute(self, ctx):
        fill(ctx.device.driver, self.tensor, ctx.stream)
        return self.tensor


def filled_in_callback(tensor):
    def enqueue(ctx, _=None):
        fill(ctx.device.driver, tensor, ctx.stream)
        return ca.value(tensor)

    return enqueue


WAYS = {
    "execute": Fills,
    "with_context": lambda t: ca.with_context(filled_in_callback(t)),
    "then_with_context": lambda t: ca.value(None).then_with_context(filled_in_callback(t)),
}


@pytest.fixture
def tensor(stepped, streams):
    made = ca.zeros(4, "i4").start(streams[0])
    stepped.driver.advance_all()
    return made.result()


@pytest.mark.parametrize("way", WAYS)
def test_result_is_there_once_the_device_is_past_it(stepped, streams, tensor, way):
    future = WAYS[way](tensor).start(streams[0])
    assert not future.done
    stepped.driver.advance_all()
    assert future.done
    assert future.result() is tensor


class Gone(Exception):
    pass


def closes_the_number(stream):
    """As another thread may, between asking for an address and enqueueing."""
    stream.record()


class FillsLate(Fills):
    """Asks for the address, and enqueues when the number that was open then is closed."""

    def __init__(self, tensor, error=None):
        super().__init__(tensor)
        self.error = error

    def execute(self, ctx):
        address = ctx.write(self.tensor)
        closes_the_number(ctx.stream)
        ctx.device.driver.fill_async(address, *FILL, ctx.stream.handle)
        if self.error is not None:
            raise self.error
        return self.tensor


def filled_late(tensor, error):
    def enqueue(ctx, _=None):
        return ca.value(FillsLate(tensor, error).execute(ctx))

    return enqueue


LATE = {
    "execute": FillsLate,
    "with_context": lambda t, e: ca.with_context(filled_late(t, e)),
    "then_with_context": lambda t, e: ca.value(None).then_with_context(filled_late(t, e)),
}


@pytest.mark.parametrize("error", [None, Gone()], ids=["", "that fails"])
@pytest.mark.parametrize("way", LATE)
def test_readers_wait_for_work_of_a_number_that_was_open_later(
    stepped, streams, tensor, run_to_a_stop, without_workers, way, error
):
    """The reader's stream stands still until the fill is done, whether its operation failed behind it or not."""
    future = LATE[way](tensor, error).start(streams[0])
    read = tensor.to_host().start(streams[1])
    handle = streams[0].next_stream()._handle
    for _ in range(2):  # what the event and its number are recorded with
        assert stepped.driver.advance(handle)
    assert run_to_a_stop(streams[1])
    stepped.driver.advance_all()
    assert read.result().tolist() == [7, 7, 7, 7]
    if error is None:
        assert future.result() is tensor
    else:
        with pytest.raises(Gone):
            future.result()


def test_work_of_others_by_the_handle_of_our_stream(stepped, streams, tensor):
    """From when the handle was asked for on."""
    stream = streams[0].next_stream()
    other = streams[1].next_stream()
    assert stream.is_done
    stepped.driver.fill_async(tensor._address, *FILL, stream.handle)
    assert not stream.is_done
    assert other.is_done
    stepped.driver.advance_all()
    assert stream.is_done
    stepped.driver.fill_async(tensor._address, *FILL, stream._handle)
    assert not stream.is_done
    stepped.driver.advance_all()
    assert stream.is_done


@pytest.mark.parametrize("wait", ["synchronize", "close"])
def test_waiting_for_a_stream_waits_for_work_of_others(stepped, tensor, wait):
    """It puts an event behind it."""
    stream = stepped.create_stream()
    stepped.driver.fill_async(tensor._address, *FILL, stream.handle)
    waiting = threading.Thread(target=getattr(stream, wait))
    waiting.start()
    try:
        stepped.driver.wait_enqueued(stream._handle, 2, 20)
    finally:
        stepped.driver.advance_all()
        waiting.join()


def test_waiting_for_a_device_waits_for_work_of_others(stepped, tensor):
    stream = stepped.create_stream()
    stepped.driver.fill_async(tensor._address, *FILL, stream.handle)
    waiting = threading.Thread(target=stepped.synchronize)
    waiting.start()
    waiting.join(0.05)  # it ends in that time only where nothing makes it wait
    waits = waiting.is_alive()
    stepped.driver.advance_all()
    waiting.join()
    assert waits


def test_foreign_call_without_tensors_is_waited_for(device):
    """On a GPU the call is made while enqueueing, and its work is no longer than it is asked for here."""
    if device.kind == "host":
        pytest.skip("the call is made by the device")
    driver = device.driver
    event = driver.event_create()
    large = ca.empty(64 << 20, "i4").sync()

    def enqueue(stream):
        for _ in range(200):  # 10 ms
            driver.fill_async(large._address, FILL[0], 64 << 20, stream.handle)
        driver.event_record(event, stream.handle)

    assert ca.foreign(enqueue).sync() == ()
    assert driver.event_query(event)
    driver.event_destroy(event)


def test_stream_with_failed_work_is_closed(stepped, tensor):
    """Its handle was asked for, so closing looks at the stream itself, which says what failed."""
    stream = stepped.create_stream()
    assert stream.handle
    future = ca.fill(tensor, 1).start(ca.SingleStream(stream))
    stepped.driver.fail_next("stream_query", ca.DriverError("cuStreamQuery", 1, "MADE_UP", "made to fail"))
    closing = threading.Thread(target=stream.close)
    closing.start()
    stepped.driver.wait_enqueued(stream._handle, 2, 20)
    while closing.is_alive():  # it may enqueue more
        stepped.driver.advance_all()
        closing.join(0.01)
    future.result()
    with pytest.raises(ca.ClosedError):
        stream.record()
