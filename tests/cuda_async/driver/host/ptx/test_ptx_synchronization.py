"""Threads that wait for each other: barriers, locks, blocks that signal blocks."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_async.driver.host.ptx import KernelError
from cuda_async.errors import LaunchError

RANDOM = np.random.default_rng(11)


@pytest.mark.parametrize("options", [(), ("--device-debug",)], ids=["optimized", "debug"])
def test_lock_by_compare_and_swap(ptx_device, options):
    functions = ptx_device.cuda(
        """
        extern "C" __global__ void count(int* lock, volatile int* value) {
            bool done = false;
            while (!done) {
                if (atomicCAS(lock, 0, 1) == 0) {
                    *value = *value * 3 % 1000003 + 1;
                    __threadfence();
                    atomicExch(lock, 0);
                    done = true;
                }
            }
        }""",
        *options,
    )
    lock, value = ptx_device.zeros(1, "i4"), ptx_device.zeros(1, "i4")
    ptx_device.run(functions["count"], 5, 40, lock, value)
    expected = 0
    for _ in range(200):
        expected = expected * 3 % 1000003 + 1
    assert ptx_device.get(value, 1, "i4")[0] == expected
    assert ptx_device.get(lock, 1, "i4")[0] == 0


def test_lock_that_is_spun_on_by_whole_warps(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void count(int* lock, volatile int* value) {
            while (atomicCAS(lock, 0, 1) != 0) { }
            *value = *value + 1;
            __threadfence();
            atomicExch(lock, 0);
        }""")
    lock, value = ptx_device.zeros(1, "i4"), ptx_device.zeros(1, "i4")
    ptx_device.run(functions["count"], 2, 64, lock, value)
    assert ptx_device.get(value, 1, "i4")[0] == 128


SPINS = {
    "a warp, by a shuffle": (
        32,
        "do { if (!lane) v = atomicExch(lock, 1); v = __shfl_sync(~0u, v, 0); } while (v);",
    ),
    "a warp, by its barrier": (
        32,
        "do { if (!lane) s[w] = atomicExch(lock, 1); __syncwarp(); v = s[w]; __syncwarp(); } while (v);",
    ),
    "a warp, by a vote": (
        32,
        "do { v = !lane && atomicExch(lock, 1) == 0; } while (!__any_sync(~0u, v));",
    ),
    "a block, by its barrier": (
        1024,
        "do { if (!t) s[0] = atomicExch(lock, 1); __syncthreads(); v = s[0]; __syncthreads(); } while (v);",
    ),
    "a block, by a barrier that counts": (
        1024,
        "do { v = !t && atomicExch(lock, 1) == 0; } while (!__syncthreads_or(v));",
    ),
}
"""How many threads take the lock together, and how they wait for it."""


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("grid", "block"), [(1, 96), (9, 32), (5, 80)])
@pytest.mark.parametrize(("together", "wait"), SPINS.values(), ids=SPINS)
def test_lock_that_threads_wait_for_together(ptx_device, together, wait, grid, block):
    """Whoever has it must get on, though the others meet at a barrier in each turn of their loop."""
    functions = ptx_device.cuda(
        """
        extern "C" __global__ void count(int* lock, volatile int* value, int together) {
            __shared__ volatile int s[32];
            int t = threadIdx.x, lane = t % 32, w = t / 32, v;
        """
        + wait
        + """
            __threadfence();
            if (t % together == 0) {
                *value = *value * 3 % 1000003 + 1;
                __threadfence();
                atomicExch(lock, 0);
            }
        }"""
    )
    lock, value = ptx_device.zeros(1, "i4"), ptx_device.zeros(1, "i4")
    ptx_device.run(functions["count"], grid, block, lock, value, together)
    expected = 0
    for _ in range(grid * -(-block // together)):
        expected = expected * 3 % 1000003 + 1
    assert ptx_device.get(value, 1, "i4")[0] == expected


def test_last_block_sums_up(ptx_device):
    functions = ptx_device.cuda("""
        __device__ unsigned arrived = 0;
        extern "C" __global__ void sum(const float* x, volatile float* partial, float* out, int n) {
            __shared__ float s[128];
            __shared__ bool last;
            float v = 0;
            for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) v += x[i];
            s[threadIdx.x] = v;
            __syncthreads();
            for (int k = 64; k > 0; k /= 2) {
                if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
                __syncthreads();
            }
            if (threadIdx.x == 0) {
                partial[blockIdx.x] = s[0];
                __threadfence();
                last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
            }
            __syncthreads();
            if (last && threadIdx.x == 0) {
                float total = 0;
                for (int i = 0; i < gridDim.x; i++) total += partial[i];
                *out = total;
            }
        }""")
    x = RANDOM.standard_normal(30000).astype("f4")
    partial, out = ptx_device.zeros(200, "f4"), ptx_device.zeros(1, "f4")
    for _ in range(2):  # the counter wraps, so the kernel can run again
        ptx_device.run(functions["sum"], 200, 128, ptx_device.put(x), partial, out, x.size)
        assert ptx_device.get(out, 1, "f4")[0] == pytest.approx(x.astype("f8").sum(), abs=1e-2)


GRID_BARRIER = """
    __device__ unsigned count = 0;
    __device__ volatile unsigned generation = 0;
    __device__ void grid_barrier() {
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned mine = generation;
            __threadfence();
            if (atomicAdd(&count, 1) == gridDim.x - 1) {
                count = 0;
                __threadfence();
                generation = mine + 1;
            } else while (generation == mine) { }
        }
        __syncthreads();
    }
    extern "C" __global__ void shift(volatile int* a, volatile int* b, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        for (int round = 0; round < 3; round++) {
            b[i] = a[(i + 1) % n];
            grid_barrier();
            a[i] = b[(i + 1) % n];
            grid_barrier();
        }
    }"""


@pytest.mark.parametrize("options", [(), ("--device-debug",)], ids=["optimized", "debug"])
@pytest.mark.parametrize("cooperative", [True, False])
def test_blocks_that_wait_for_all_blocks(ptx_device, cooperative, options):
    """More blocks than one wave holds; ordinary launches of this size are resident on a GPU too."""
    functions = ptx_device.cuda(GRID_BARRIER, *options)
    x = np.arange(100 * 256, dtype="i4")
    a, b = ptx_device.put(x), ptx_device.zeros(x.size, "i4")
    ptx_device.run(functions["shift"], 100, 256, a, b, x.size, cooperative=cooperative)
    np.testing.assert_array_equal(ptx_device.get(a, x.size, "i4"), np.roll(x, -6))


def test_chained_scan_waits_for_earlier_blocks(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void scan(const int* x, int* out, volatile int* sums) {
            __shared__ int s[256];
            __shared__ int before;
            int t = threadIdx.x, i = blockIdx.x * 256 + t;
            s[t] = x[i];
            __syncthreads();
            for (int d = 1; d < 256; d *= 2) {
                int v = t >= d ? s[t - d] : 0;
                __syncthreads();
                s[t] += v;
                __syncthreads();
            }
            if (t == 0) {
                int left = 0;
                if (blockIdx.x > 0) {
                    while ((left = sums[blockIdx.x - 1]) == -1) { }
                }
                sums[blockIdx.x] = left + s[255];
                before = left;
            }
            __syncthreads();
            out[i] = s[t] + before;
        }""")
    x = RANDOM.integers(0, 9, 150 * 256).astype("i4")
    out, sums = ptx_device.zeros(x.size, "i4"), ptx_device.put(np.full(150, -1, "i4"))
    ptx_device.run(functions["scan"], 150, 256, ptx_device.put(x), out, sums)
    np.testing.assert_array_equal(ptx_device.get(out, x.size, "i4"), np.cumsum(x))


def test_named_barriers_between_producer_and_consumer(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void pipe(const int* x, int* out, int rounds) {
            __shared__ int buffer[64];
            int t = threadIdx.x & 63;
            if (threadIdx.x < 64) {
                for (int r = 0; r < rounds; r++) {
                    asm volatile("bar.sync 2, 128;");
                    buffer[t] = x[(blockIdx.x * rounds + r) * 64 + t];
                    asm volatile("bar.arrive 1, 128;");
                }
            } else {
                int sum = 0;
                for (int r = 0; r < rounds; r++) {
                    asm volatile("bar.arrive 2, 128;");
                    asm volatile("bar.sync 1, 128;");
                    sum += buffer[63 - t] * (r + 1);
                }
                out[blockIdx.x * 64 + t] = sum;
            }
        }""")
    x = RANDOM.integers(-99, 99, (3, 5, 64)).astype("i4")
    out = ptx_device.zeros((3, 64), "i4")
    ptx_device.run(functions["pipe"], 3, 128, ptx_device.put(x), out, 5)
    expected = (x[:, :, ::-1] * np.arange(1, 6)[None, :, None]).sum(axis=1)
    np.testing.assert_array_equal(ptx_device.get(out, (3, 64), "i4"), expected)


def test_barrier_reductions(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void votes(const int* x, int* out) {
            int v = x[blockIdx.x * blockDim.x + threadIdx.x];
            int count = __syncthreads_count(v > 0), all = __syncthreads_and(v > -5), any = __syncthreads_or(v > 5);
            if (threadIdx.x == blockDim.x - 1) {
                out[blockIdx.x * 3] = count;
                out[blockIdx.x * 3 + 1] = all != 0;
                out[blockIdx.x * 3 + 2] = any != 0;
            }
        }""")
    x = RANDOM.integers(-4, 5, (8, 100)).astype("i4")
    x[2, 7], x[5, 99], x[6, 0] = -9, 9, -9
    out = ptx_device.zeros((8, 3), "i4")
    ptx_device.run(functions["votes"], 8, 100, ptx_device.put(x), out)
    expected = np.stack([(x > 0).sum(1), (x > -5).all(1), (x > 5).any(1)], axis=1)
    np.testing.assert_array_equal(ptx_device.get(out, (8, 3), "i4"), expected)


def test_barrier_after_some_threads_left(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void leave(int* out, int stay) {
            __shared__ int s[96];
            if (threadIdx.x >= stay) return;
            s[threadIdx.x] = threadIdx.x;
            __syncthreads();
            out[threadIdx.x] = s[stay - 1 - threadIdx.x];
        }""")
    out = ptx_device.zeros(96, "i4")
    ptx_device.run(functions["leave"], 1, 96, out, 50)
    expected = np.zeros(96, "i4")
    expected[:50] = 49 - np.arange(50)
    np.testing.assert_array_equal(ptx_device.get(out, 96, "i4"), expected)


def test_barrier_reached_on_different_ways(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void ways(int* out) {
            __shared__ int s[64];
            int t = threadIdx.x;
            if (t % 3 == 0) { s[t] = 100 + t; asm volatile("barrier.sync 0;"); out[t] = s[63 - t]; }
            else { s[t] = 200 + t; asm volatile("barrier.sync 0;"); out[t] = -s[63 - t]; }
        }""")
    out = ptx_device.zeros((4, 64), "i4")
    for row in range(4):
        ptx_device.run(functions["ways"], 1, 64, out + 256 * row)
    t = np.arange(64)
    s = np.where(t % 3 == 0, 100 + t, 200 + t)
    expected = np.where(t % 3 == 0, s[::-1], -s[::-1])
    np.testing.assert_array_equal(ptx_device.get(out, (4, 64), "i4"), np.tile(expected, (4, 1)))


def test_warp_barrier_orders_a_warp(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void exchange(const int* x, int* out) {
            __shared__ volatile int s[64];
            int t = threadIdx.x;
            if (t & 1) { s[t] = x[t] * 2; __syncwarp(); out[t] = s[t - 1]; }
            else { for (int k = 0; k < t; k++) s[t] = k; s[t] = x[t]; __syncwarp(); out[t] = s[t + 1]; }
        }""")
    x = RANDOM.integers(0, 1000, 64).astype("i4")
    out = ptx_device.zeros(64, "i4")
    ptx_device.run(functions["exchange"], 1, 64, ptx_device.put(x), out)
    t = np.arange(64)
    np.testing.assert_array_equal(
        ptx_device.get(out, 64, "i4"), np.where(t % 2 == 1, x[t - 1], 2 * x[(t + 1) % 64])
    )


def test_cluster_shares_memory(ptx_device):
    functions = ptx_device.cuda(
        """
        extern "C" __global__ void ring(int* out) {
            __shared__ int s[32];
            unsigned rank, address, remote, size;
            int value;
            asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
            asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
            s[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
            asm volatile("barrier.cluster.arrive;\\n barrier.cluster.wait;" ::: "memory");
            asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(address)
                : "l"(&s[31 - threadIdx.x]));
            asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"((rank + 1) % size));
            asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(remote));
            out[blockIdx.x * 32 + threadIdx.x] = value;
            asm volatile("barrier.cluster.arrive;\\n barrier.cluster.wait;" ::: "memory");
        }""",
        arch="sm_90",
    )
    out = ptx_device.zeros((8, 32), "i4")
    ptx_device.run(functions["ring"], 8, 32, out, cluster=(4, 1, 1))
    block = np.arange(8)
    neighbour = block // 4 * 4 + (block % 4 + 1) % 4
    expected = neighbour[:, None] * 100 + 31 - np.arange(32)
    np.testing.assert_array_equal(ptx_device.get(out, (8, 32), "i4"), expected)


def test_cluster_asked_for_by_the_kernel(ptx_device):
    functions = ptx_device.cuda(
        """
        extern "C" __global__ void __cluster_dims__(2, 2, 1) ranks(int* out) {
            unsigned rank, x, y;
            asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
            asm("mov.u32 %0, %%clusterid.x;" : "=r"(x));
            asm("mov.u32 %0, %%clusterid.y;" : "=r"(y));
            out[blockIdx.y * gridDim.x + blockIdx.x] = rank + 10 * x + 100 * y;
        }""",
        arch="sm_90",
    )
    out = ptx_device.zeros((4, 6), "i4")
    ptx_device.run(functions["ranks"], (6, 4), 1, out)
    y, x = np.indices((4, 6))
    expected = y % 2 * 2 + x % 2 + 10 * (x // 2) + 100 * (y // 2)
    np.testing.assert_array_equal(ptx_device.get(out, (4, 6), "i4"), expected)
    with pytest.raises(LaunchError, match=r"requires \(2, 2, 1\)"):
        ptx_device.run(functions["ranks"], (6, 4), 1, out, cluster=(2, 1, 1))


def test_pipeline_on_mbarriers(ptx_device):
    functions = ptx_device.cuda(
        """
        extern "C" __global__ void copy(const float* x, float* out) {
            __shared__ alignas(128) float tile[256];
            __shared__ unsigned long long barrier;
            unsigned b = (unsigned)__cvta_generic_to_shared(&barrier);
            unsigned d = (unsigned)__cvta_generic_to_shared(tile);
            if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(b));
            __syncthreads();
            for (int phase = 0; phase < 4; phase++) {
                if (threadIdx.x == 0) {
                    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(b));
                    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                                 " [%0], [%1], 1024, [%2];"
                                 :: "r"(d), "l"(x + phase * 256), "r"(b) : "memory");
                }
                asm volatile("{ .reg .pred p; wait: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
                             " @p bra done; bra wait; done: }" :: "r"(b), "r"(phase & 1) : "memory");
                out[phase * 256 + threadIdx.x] = tile[255 - threadIdx.x];
                __syncthreads();
            }
        }""",
        arch="sm_90",
    )
    x = RANDOM.standard_normal((4, 256)).astype("f4")
    out = ptx_device.zeros((4, 256), "f4")
    ptx_device.run(functions["copy"], 1, 256, ptx_device.put(x), out)
    np.testing.assert_array_equal(ptx_device.get(out, (4, 256), "f4"), x[:, ::-1])


def test_asynchronous_copies(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void copy(const float4* x, float4* out, int n) {
            __shared__ float4 s[64];
            unsigned d = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
            int take = threadIdx.x < n ? 16 : threadIdx.x == n ? 4 : 0;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(d), "l"(x + threadIdx.x), "r"(take));
            asm volatile("cp.async.commit_group;");
            asm volatile("cp.async.wait_group 0;");
            __syncthreads();
            out[threadIdx.x] = s[63 - threadIdx.x];
        }""")
    x = RANDOM.standard_normal((64, 4)).astype("f4")
    out = ptx_device.zeros((64, 4), "f4")
    ptx_device.run(functions["copy"], 1, 64, ptx_device.put(x), out, 40)
    expected = np.zeros((64, 4), "f4")
    expected[:40] = x[:40]
    expected[40, 0] = x[40, 0]
    np.testing.assert_array_equal(ptx_device.get(out, (64, 4), "f4"), expected[::-1])


def test_deadlock_is_an_error(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void stuck(int n) {
            if (threadIdx.x < n) asm volatile("barrier.sync 1, 64;");
            else asm volatile("barrier.sync 2, 64;");
        }""")
    ptx_device.run(functions["stuck"], 1, 64, 64)
    with pytest.raises(
        KernelError, match=r"deadlock.*32 threads wait for barrier 1.*barrier 2.*kernel stuck"
    ):
        ptx_device.run(functions["stuck"], 1, 64, 32)


def test_waiting_kernel_yields(ptx_device):
    """A kernel that waits for the host goes on as soon as the host writes, and gives up time until then."""
    functions = ptx_device.cuda("""
        extern "C" __global__ void wait(volatile int* flag, int* out) {
            while (*flag == 0) { }
            out[threadIdx.x] = *flag;
        }""")
    flag, out = ptx_device.zeros(1, "i4"), ptx_device.zeros(32, "i4")
    steps = ptx_device.steps(functions["wait"], 1, 32, flag, out)
    for _ in range(20):
        next(steps)
    ptx_device.memory.view(flag, 4, "write").view("i4")[0] = 7
    for _ in steps:
        pass
    np.testing.assert_array_equal(ptx_device.get(out, 32, "i4"), np.full(32, 7))
