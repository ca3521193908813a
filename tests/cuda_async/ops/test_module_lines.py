"""Errors of kernels say of which text their line is: of the PTX that a module was given, or that was made of it."""

from __future__ import annotations

import re

import pytest

import cuda_async as ca
from cuda_async.driver.host.ptx import KernelError
from cuda_async.errors import CheckError, MemoryFault
from cuda_async.testing import checked_device

SOURCE = """extern "C" __global__ void twice(float* x) {
  x[0] = threadIdx.x;
}
extern "C" __global__ void beyond(float* x) { x[threadIdx.x + (1 << 20)] = 1; }
extern "C" __global__ void ends(float* x) { __trap(); }
"""
PTX = """.version 8.0
.target sm_80
.address_size 64
.entry twice(.param .u64 x) { .reg .b64 %a; .reg .b32 %t;
ld.param.u64 %a, [x]; mov.u32 %t, %tid.x;
st.global.u32 [%a], %t; ret; }
.entry beyond(.param .u64 x) { .reg .b64 %a;
ld.param.u64 %a, [x];
ld.global.u32 _, [%a+1048576]; ret; }
.entry ends(.param .u64 x) {
trap; }
"""
EXPECTED = [("twice", CheckError, 6), ("beyond", MemoryFault, 9), ("ends", KernelError, 11)]


def message_of(module, kernel, error):
    with ca.use_device(checked_device()):
        x = ca.zeros(8).sync()
        with pytest.raises(error) as caught:
            module.function(kernel).launch(1, 64, ca.mut(x)).sync()
    return str(caught.value)


@pytest.mark.parametrize(("kernel", "error", "line"), EXPECTED)
def test_line_of_ptx_names_the_module(kernel, error, line):
    message = message_of(ca.Module.from_ptx(PTX, name="mine.ptx"), kernel, error)
    assert f", line {line} of mine.ptx: {PTX.splitlines()[line - 1].split(';')[0]};" in message


@pytest.mark.parametrize(("kernel", "error"), [(kernel, error) for kernel, error, _ in EXPECTED])
def test_line_of_compiled_source_is_one_of_its_ptx(kernel, error):
    pytest.importorskip("cuda.bindings.nvrtc")
    message = message_of(ca.Module.from_cuda_source(SOURCE, name="mine.cu"), kernel, error)
    (line,) = set(re.findall(r", line (\d+) of the PTX of mine\.cu: ", message))
    assert int(line) > len(SOURCE.splitlines())
    assert "mine.cu:" not in message.replace("PTX of mine.cu:", "")
