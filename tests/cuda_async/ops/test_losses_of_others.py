"""A device that is lost, whose results are asked for in the middle of another device's work: only that one is lost."""

from __future__ import annotations

import pickle

import pytest

import cuda_async as ca
from cuda_async.errors import DeviceLostError, KernelError
from cuda_async.testing import stepped_device


class Asks(ca.DeviceOp[None]):
    """Asks for the result of a future, while it prepares or enqueues."""

    def __init__(self, future, when):
        self.future, self.when = future, when

    def prepare(self, ctx):
        if self.when == "prepare":
            self.future.result()

    def execute(self, ctx):
        self.future.result()


@pytest.fixture
def lost_future():
    """Of a device that is lost."""
    device, controls = stepped_device()
    with ca.use_device(device):
        future = ca.ones(8).start()
    controls.fail_device(RuntimeError("unplugged"))
    with pytest.raises(DeviceLostError):
        future.sync()
    return future


ASKS = {
    "map": lambda future: ca.ones(3).map(lambda _: future.result()),
    "then": lambda future: ca.ones(3).then(lambda _: future.result()),
    "with_context": lambda future: ca.with_context(lambda ctx: future.result()),
    "prepare": lambda future: Asks(future, "prepare"),
    "execute": lambda future: Asks(future, "execute"),
    "shared": lambda future: ca.ones(3).map(lambda _: future.result()).shared(),
    "graph": lambda future: ca.ones(3).map(lambda _: future.result()).graph(),
}


@pytest.mark.parametrize("how", ASKS)
def test_a_callback_that_hears_of_it_leaves_its_own_device_healthy(host, lost_future, how):
    with pytest.raises(DeviceLostError, match="unplugged") as info:
        ASKS[how](lost_future).sync()
    assert host.is_healthy
    assert ca.ones(3).to_host().sync().tolist() == [1.0] * 3
    with pytest.raises(DeviceLostError) as again:
        lost_future.result()
    assert info.value.__cause__ is again.value.__cause__  # it came out as it was raised


def test_a_foreign_call_that_hears_of_it(host, lost_future):
    """What such a function raises, of this package or not, is a failure of the call."""
    x = ca.ones(3).sync()
    with pytest.raises(KernelError, match=r"ca\.foreign failed on the host device: DeviceLostError") as info:
        ca.foreign(lambda stream: lost_future.result(), writes=[x]).sync()
    assert isinstance(info.value.__cause__, DeviceLostError)
    assert host.is_healthy


def test_the_device_s_own_loss_is_noted():
    device, controls = stepped_device()
    with ca.use_device(device):
        future = ca.ones(8).start()
        controls.fail_device(RuntimeError("unplugged"))
        with pytest.raises(DeviceLostError, match="unplugged"):
            ca.ones(3).sync()
    assert not device.is_healthy
    with pytest.raises(DeviceLostError, match="unplugged"):
        future.sync()


def test_the_error_goes_to_other_processes(lost_future):
    with pytest.raises(DeviceLostError) as info:
        lost_future.result()
    copied = pickle.loads(pickle.dumps(info.value))
    assert (str(copied), copied.kernels) == (str(info.value), info.value.kernels)
