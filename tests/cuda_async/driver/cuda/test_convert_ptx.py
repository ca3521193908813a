"""The conversion kernels' PTX, run by the host device's interpreter against exact arithmetic."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver.cuda._convert import CONVERTIBLE, check_convertible, convert_kernel
from cuda_async.driver.cuda._kernel_text import module_text
from cuda_async.driver.host import open_host_driver
from cuda_async.errors import DriverError

TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "e4m3fn", "e5m2"),
)


def run_conversion(dst_dtype, values, *, blocks=1):
    """`values` converted by the kernel for the pair of types."""
    driver = open_host_driver(0)
    kernel = convert_kernel(dst_dtype.name, values.dtype.name)
    module = driver.module_load(module_text(kernel).encode(), kernel.name)
    stream = driver.stream_create()
    result = np.zeros(values.size, dst_dtype)
    source, target = driver.pinned_alloc(values.nbytes), driver.pinned_alloc(result.nbytes)
    ctypes.memmove(source, values.ctypes.data, values.nbytes)
    block = ArgumentBlock(kernel.parameters)
    for i, value in enumerate((target, source, values.size)):
        block.buffer[8 * i : 8 * i + 8] = value.to_bytes(8, "little")
    function = driver.module_function(module, kernel.name)
    driver.launch(function, (blocks, 1, 1), (256, 1, 1), 0, stream, block)
    driver.stream_synchronize(stream)
    ctypes.memmove(result.ctypes.data, target, result.nbytes)
    driver.pinned_free(source)
    driver.pinned_free(target)
    driver.stream_destroy(stream)
    driver.module_unload(module)
    return result


@pytest.mark.parametrize("src", TYPES)
def test_kernel_converts_exactly(conversions, src):
    values = conversions.samples(src)
    for dst, dtype in conversions.types.items():
        if dst != src:
            conversions.check(run_conversion(dtype, values), values, src, dst)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1024, 1025, 5000])
@pytest.mark.parametrize("blocks", [1, 2])
def test_every_index_is_converted_once(count, blocks):
    """The main loop takes four at a time, the rest follows."""
    values = np.arange(count, dtype="i4")
    assert np.array_equal(run_conversion(np.dtype("f8"), values, blocks=blocks), np.arange(count, dtype="f8"))


def test_bytes_of_a_bool_count_as_one():
    values = np.array([0, 1, 2, 255], "u1").view("?")
    assert run_conversion(np.dtype("i4"), values).tolist() == [0, 1, 1, 1]


def test_names_are_those_of_the_dtypes(conversions):
    assert {dtype.name for dtype in conversions.types.values()} == set(CONVERTIBLE)
    assert [check_convertible(dtype) for dtype in conversions.types.values()]


@pytest.mark.parametrize("dtype", ["c8", ">f4", "S4", "M8[s]"])
def test_other_types_are_refused(dtype):
    with pytest.raises(DriverError, match="no conversion of"):
        check_convertible(np.dtype(dtype))
