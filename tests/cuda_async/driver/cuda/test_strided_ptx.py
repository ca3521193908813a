"""The strided copy and fill kernels' PTX, run by the host device's interpreter against NumPy."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest

from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver.cuda._kernel_text import module_text
from cuda_async.driver.cuda._strided import (
    CopyPlan,
    fill_kernel,
    plan_copy,
    split_axes,
    strided_arguments,
    strided_kernel,
)
from cuda_async.driver.host import open_host_driver


@pytest.fixture
def memory():
    """1 MiB that kernels may use, as (address, bytes)."""
    driver = open_host_driver(0)
    address = driver.pinned_alloc(1 << 20)
    yield address, np.frombuffer((ctypes.c_ubyte * (1 << 20)).from_address(address), "u1")
    driver.pinned_free(address)


def run_kernel(kernel, values, blocks=2):
    driver = open_host_driver(0)
    module = driver.module_load(module_text(kernel).encode(), kernel.name)
    stream = driver.stream_create()
    block = ArgumentBlock(kernel.parameters)
    for i, value in enumerate(values):  # the table may hold fewer axes than it has room for
        block.buffer[8 * i : 8 * i + 8] = (value % (1 << 64)).to_bytes(8, "little")
    driver.launch(driver.module_function(module, kernel.name), (blocks, 1, 1), (256, 1, 1), 0, stream, block)
    driver.stream_synchronize(stream)
    driver.stream_destroy(stream)
    driver.module_unload(module)


def run_plan(plan, wide):
    for piece in split_axes(plan):
        run_kernel(strided_kernel(piece.unit, wide_index=wide), strided_arguments(piece))


VIEWS = {
    "transposed": lambda x: x.transpose(2, 0, 1),
    "every second": lambda x: x[:, ::2, ::3],
    "backwards": lambda x: x[::-1, :, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:, :1, :], x.shape),
    "one column": lambda x: x[..., 1],
}


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("view", VIEWS, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "f8", "c16"])
def test_strided_kernel_copies_views(memory, dtype, view, wide):
    address, data = memory
    array = np.arange(4 * 6 * 9 * np.dtype(dtype).itemsize, dtype="u1").view(dtype).reshape(4, 6, 9)
    data[: array.nbytes] = array.view("u1").reshape(-1)
    source = VIEWS[view](array)
    packed = np.ascontiguousarray(source)
    offset = source.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    plan = plan_copy(
        address + (1 << 19), packed.strides, address + offset, source.strides, source.shape, array.itemsize
    )
    assert plan is not None
    run_plan(plan, wide)
    assert data[1 << 19 : (1 << 19) + packed.nbytes].tobytes() == packed.tobytes()
    assert not data[(1 << 19) + packed.nbytes :][:64].any()


@pytest.mark.parametrize("axes", range(1, 9))
def test_strided_kernel_for_each_number_of_axes(memory, axes):
    """Gaps on every axis of the source, so that none merge."""
    address, data = memory
    shape = (3, 2, 2, 3, 2, 2, 2, 2)[:axes]
    source = np.arange(int(np.prod([n + 1 for n in shape])), dtype="i4").reshape([n + 1 for n in shape])
    view = source[tuple(slice(0, n) for n in shape)]
    data[: source.nbytes] = source.view("u1").reshape(-1)
    packed = np.ascontiguousarray(view)
    plan = CopyPlan(
        dst=address + (1 << 19),
        src=address,
        unit=4,
        shape=shape,
        dst_strides=packed.strides,
        src_strides=view.strides,
    )
    run_kernel(strided_kernel(4, wide_index=False), strided_arguments(plan))
    assert data[1 << 19 : (1 << 19) + packed.nbytes].tobytes() == packed.tobytes()


@pytest.mark.parametrize("count", [1, 600, 5000])
def test_fill_kernel(memory, count):
    address, data = memory
    run_kernel(fill_kernel(), [address + 8, struct.unpack("<Q", b"abcdefgh")[0], count])
    assert data[: 8 * count + 24].tobytes() == bytes(8) + b"abcdefgh" * count + bytes(16)
