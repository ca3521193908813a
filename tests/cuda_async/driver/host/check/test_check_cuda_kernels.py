"""The checking mode on kernels in CUDA C++: what warps, blocks and the heap order, and what they do not."""

from __future__ import annotations

from typing import NamedTuple

import pytest

import cuda_async as ca
from cuda_async.testing import check_reports, checked_device

pytest.importorskip("cuda.bindings.nvrtc")

ACQUIRE = (
    'do { asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory"); } while (!v);'
)


class Case(NamedTuple):
    """A body of `kernel(int* o, int* flag)`, run by some blocks of some threads, and whether that is a race."""

    body: str
    grid: int = 1
    block: int = 32
    is_race: bool = False


PUBLISH = "if (b == 0) {{ o[0] = 42; {} }} else {{ int v; {} o[b] = o[0]; }}"
CASES = {
    # what several lanes of a warp did at once
    "neighbours in a warp": Case("s[t] = t; __syncwarp(); int v = s[t] + s[t ^ 1]; __syncwarp(); s[t] = v;"),
    "neighbours in a warp, no barrier": Case(
        "s[t] = t; __syncwarp(); int v = s[t] + s[t ^ 1]; s[t] = v;", is_race=True
    ),
    "neighbours beyond the warp": Case(
        "s[t] = t; __syncwarp(); int v = s[t] + s[t ^ 32]; __syncwarp(); s[t] = v;", block=64, is_race=True
    ),
    "one for the warp": Case(
        "int* mine = s + t / 32; if (t % 32 == 3) *mine = t; __syncwarp(); o[t] = *mine; __syncwarp();"
        " if (t % 32 == 5) *mine = 0;",
        block=128,
    ),
    "one for the warp, read by two": Case(
        "if (t == 3) s[0] = t; __syncthreads(); o[t] = s[0]; __syncwarp(); if (t == 5) s[0] = 0;",
        block=64,
        is_race=True,
    ),
    "one for the block": Case(
        "if (t == 3) s[0] = t; __syncthreads(); o[t] = s[0]; __syncthreads(); if (t == 5) s[0] = 0;", block=64
    ),
    "all store the same": Case("s[0] = 7; __syncwarp(); o[t] = s[0]; __syncwarp(); s[0] = 8;"),
    "counted by atomics": Case("s[0] = 0; __syncwarp(); atomicAdd(s, 1); __syncwarp(); o[t] = s[0];"),
    "counted by atomics of two warps": Case(
        "if (t == 0) s[0] = 0; __syncthreads(); atomicAdd(s, 1); __syncwarp(); o[t] = s[0];",
        block=64,
        is_race=True,
    ),
    # many blocks that read one place
    "fence and atomics": Case(
        "if (t == 0) "
        + PUBLISH.format(
            "__threadfence(); atomicExch(flag, 1);", "while (!atomicAdd(flag, 0)); __threadfence();"
        ),
        grid=2000,
    ),
    "release and acquire": Case(
        PUBLISH.format(
            'asm volatile("st.release.gpu.global.u32 [%0], 1;" :: "l"(flag) : "memory");',
            ACQUIRE,
        ),
        grid=6,
        block=1,
    ),
    "no release": Case(
        PUBLISH.format(
            'asm volatile("st.relaxed.gpu.global.u32 [%0], 1;" :: "l"(flag) : "memory");',
            ACQUIRE,
        ),
        grid=6,
        block=1,
        is_race=True,
    ),
    # the heap
    "memory of each thread": Case(
        "int* p = (int*)malloc(16); p[0] = t; o[g] = p[0]; free(p);", grid=2, block=64
    ),
    "memory of each block": Case(
        "if (t == 0) q = (int*)malloc(512); __syncthreads(); q[t] = t; __syncthreads(); o[g] = q[t ^ 1];"
        " __syncthreads(); if (t == 9) free(q);",
        grid=3,
        block=64,
    ),
    "freed too early": Case(
        "if (t == 0) q = (int*)malloc(512); __syncthreads(); q[t] = t; if (t == 40) free(q);",
        block=64,
        is_race=True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_order_within_a_kernel(name):
    case = CASES[name]
    source = f"""
        extern "C" __global__ void kernel(int* o, int* flag) {{
            __shared__ int s[256];
            __shared__ int* q;
            int t = threadIdx.x, b = blockIdx.x, g = b * blockDim.x + t;
            {case.body}
        }}"""
    with ca.use_device(checked_device(collect=True)) as device:
        check_reports()
        out, flag = ca.zip(ca.zeros(case.grid * case.block, "i4"), ca.zeros(1, "i4")).sync()
        kernel = ca.Module.from_cuda_source(source).function("kernel")
        kernel.launch(case.grid, case.block, ca.mut(out), ca.mut(flag)).sync()
        assert {report.kind for report in check_reports()} == ({"race"} if case.is_race else set())
        device.close()


def test_who_frees_is_named():
    with ca.use_device(checked_device(collect=True)) as device:
        kernel = ca.Module.from_cuda_source("""
            extern "C" __global__ void kernel() {
                __shared__ int* q;
                if (threadIdx.x == 7) q = (int*)malloc(16);
                __syncthreads();
                if (threadIdx.x == 3) q[0] = 1;
                if (threadIdx.x == 40) free(q);
            }""").function("kernel")
        kernel.launch(1, 64).sync()
        (report,) = check_reports()
        assert (report.first.thread, report.second.thread) == ((3, 0, 0), (40, 0, 0))
        assert report.second.access == "free"
        device.close()
