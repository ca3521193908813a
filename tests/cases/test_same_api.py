"""The host device has the whole API (case C34): one set of classes over two drivers of one protocol."""

from __future__ import annotations

import inspect

import pytest

import cuda_async as ca
from cuda_async.driver import Driver
from cuda_async.driver.cuda._driver import CudaDriver
from cuda_async.driver.host import HostDriver

METHODS = [name for name, value in vars(Driver).items() if callable(value) and not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_drivers_have_one_signature(name):
    """Case C34: every call of the protocol, by parameter names, kinds and defaults, on both drivers."""

    def parameters(owner):
        signature = inspect.signature(getattr(owner, name))
        return [(p.name, p.kind, p.default) for p in signature.parameters.values()]

    assert parameters(HostDriver) == parameters(Driver)
    assert parameters(CudaDriver) == parameters(Driver)


def test_things_of_a_device_are_of_the_public_classes(device):
    """Case C34: no class of the host device stands in for a public one, so names and signatures are the same."""
    tensor = ca.zeros(4).sync()
    stream = device.create_stream()
    things = {
        ca.Device: device,
        ca.Stream: stream,
        ca.Event: stream.record(),
        ca.Tensor: tensor,
        ca.CudaGraph: ca.fill(tensor, 1.0).graph().sync(),
        ca.MemoryStatistics: device.memory_stats(),
    }
    for public, thing in things.items():
        assert type(thing) is public
    device.synchronize()
    stream.close()


def test_what_a_simulated_device_cannot_do_says_so(host):
    """Case C34: borrowing another library's stream, and being lent to one, are documented errors."""
    with pytest.raises(ca.ContextError, match="simulated"):
        host.borrow_stream(1)
    with pytest.raises(ca.ContextError, match="simulated device; other CUDA libraries cannot use it"):
        host.create_stream().__cuda_stream__()
