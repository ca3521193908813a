"""A stepped device, and tensors on it, for tests that look at facts and not at contents."""

from __future__ import annotations

import pytest

from cuda_async.ops import ExecutionContext
from cuda_async.testing import stepped_device


@pytest.fixture
def stepped():
    """(device, its controls)."""
    device, controls = stepped_device()
    yield device, controls
    controls.close()


@pytest.fixture
def empty(stepped):
    """empty(shape, dtype) -> a tensor whose allocation is enqueued on a stream of the stepped device."""
    device, _ = stepped
    context = ExecutionContext(device, device.create_stream())
    return context.empty
