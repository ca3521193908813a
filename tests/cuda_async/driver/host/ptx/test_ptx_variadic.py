"""Device functions with `...`: callers pass one array, whose size only they know."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_async.errors import CompileError

ADD = """
__device__ __noinline__ double add(int n, ...) {
    va_list l; va_start(l, n);
    double s = 0;
    for (int i = 0; i < n; ++i) s += i % 2 ? va_arg(l, double) : va_arg(l, int);
    va_end(l);
    return s;
}
"""
HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"
SUM = """
.func (.param .b32 r) sum(.param .b32 n, .param .align 8 .b8 %VAParam[]) {
    .reg .pred p; .reg .b32 c, s, v; .reg .b64 a;
    ld.param.b32 c, [n]; mov.u64 a, %VAParam; mov.b32 s, 0;
LOOP:
    setp.eq.s32 p, c, 0; @p bra DONE;
    ld.local.b32 v, [a]; add.s32 s, s, v; add.s64 a, a, 4; sub.s32 c, c, 1; bra LOOP;
DONE:
    st.param.b32 [r], s; ret;
}
"""


def test_mixed_arguments(ptx_device):
    functions = ptx_device.cuda(
        ADD
        + """extern "C" __global__ void k(double* o) {
            int t = threadIdx.x;
            o[t] = add(4, t, 0.5 * t, 3, 2.25);
            if (t & 1) o[t] += add(6, 1, 2.0, t, 4.0, 5, 0.125 * t);
            o[t] += add(0);
        }"""
    )
    out = ptx_device.zeros(64, "f8")
    ptx_device.run(functions["k"], 1, 64, out)
    t = np.arange(64)
    expected = 1.5 * t + 5.25 + np.where(t % 2, 12 + 1.125 * t, 0)
    np.testing.assert_array_equal(ptx_device.get(out, 64, "f8"), expected)


def test_room_does_not_reach_into_other_variables(ptx_device):
    functions = ptx_device.cuda(
        ADD
        + """
        __device__ __noinline__ double keep(int n, int t) {
            volatile double own[4];
            for (int i = 0; i < 4; ++i) own[i] = i + t;
            double s = add(n, 1, 2.0, 3, 4.0, 5, 6.0, 7, 8.0);
            for (int i = 0; i < 4; ++i) s += own[i];
            return s;
        }
        extern "C" __global__ void k(double* o) { o[threadIdx.x] = keep(8, threadIdx.x) + add(1, 100); }"""
    )
    out = ptx_device.zeros(32, "f8")
    ptx_device.run(functions["k"], 1, 32, out)
    np.testing.assert_array_equal(ptx_device.get(out, 32, "f8"), 36 + 6 + 4 * np.arange(32) + 100)


def test_through_a_pointer(ptx_device):
    functions = ptx_device.load(
        HEADER
        + SUM
        + """
        .visible .entry k(.param .u64 out) {
            .reg .b64 f, o; .reg .b32 v;
            ld.param.u64 o, [out]; mov.u64 f, sum;
            proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .align 8 .b8 _[]);
            { .param .b32 n; .param .align 8 .b8 a[12]; .param .b32 q;
              st.param.b32 [n], 3; st.param.b32 [a], 5; st.param.b32 [a+4], 70; st.param.b32 [a+8], 900;
              call (q), f, (n, a), proto; ld.param.b32 v, [q]; }
            st.global.b32 [o], v; ret;
        }"""
    ).functions
    out = ptx_device.zeros(1, "i4")
    ptx_device.run(functions["k"], 1, 1, out)
    assert ptx_device.get(out, 1, "i4")[0] == 975


def test_wrong_number_of_arguments_is_refused(ptx_device):
    functions = ptx_device.load(
        HEADER
        + SUM
        + """
        .visible .entry k() {
            .param .b32 n; .param .align 8 .b8 a[12]; .param .align 8 .b8 b[12]; .param .b32 q;
            call (q), sum, (n, a, b); ret;
        }"""
    ).functions
    with pytest.raises(CompileError, match="sum takes 2 arguments and gives 1 results; 3 and 1 are written"):
        functions["k"].prepare()
