"""Kernels as NVRTC compiles them, against NumPy in higher precision."""

from __future__ import annotations

import numpy as np
import pytest

RANDOM = np.random.default_rng(7)


def test_elementwise_with_branches(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void f(float a, const float* x, float* y, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i >= n) return;
            float v = x[i];
            if (v > 0.5f) y[i] = a * v;
            else if (v < -0.5f) y[i] = expf(v) + sqrtf(-v);
            else y[i] = v / 3.0f + y[i];
        }""")
    x = RANDOM.standard_normal(20001).astype("f4")
    y = RANDOM.standard_normal(20001).astype("f4")
    on_x, on_y = ptx_device.put(x), ptx_device.put(y)
    ptx_device.run(functions["f"], 80, 256, np.float32(2.5), on_x, on_y, 20000)
    wide = x.astype("f8")
    expected = np.where(
        wide > 0.5, 2.5 * wide, np.where(wide < -0.5, np.exp(wide) + np.sqrt(np.abs(wide)), wide / 3 + y)
    )
    expected[20000:] = y[20000:]
    np.testing.assert_allclose(ptx_device.get(on_y, 20001, "f4"), expected, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("block", [32, 48, 256, 1024])
def test_block_reduction_in_shared_memory(ptx_device, block):
    functions = ptx_device.cuda("""
        extern "C" __global__ void sum(const float* x, float* out, int n) {
            extern __shared__ float s[];
            float v = 0;
            for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
            s[threadIdx.x] = v;
            __syncthreads();
            int count = blockDim.x;
            while (count > 1) {
                int half = (count + 1) / 2;
                if (threadIdx.x < count / 2) s[threadIdx.x] += s[threadIdx.x + half];
                __syncthreads();
                count = half;
            }
            if (threadIdx.x == 0) out[blockIdx.x] = s[0];
        }""")
    x = RANDOM.standard_normal(30011).astype("f4")
    on_x, out = ptx_device.put(x), ptx_device.zeros(7, "f4")
    ptx_device.run(functions["sum"], 7, block, on_x, out, x.size, shared=4 * block)
    assert ptx_device.get(out, 7, "f4").astype("f8").sum() == pytest.approx(x.astype("f8").sum(), abs=1e-2)


def test_warp_shuffle_reduction(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void sums(const int* x, int* out) {
            int v = x[blockIdx.x * blockDim.x + threadIdx.x];
            for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
            __shared__ int s[32];
            if ((threadIdx.x & 31) == 0) s[threadIdx.x / 32] = v;
            __syncthreads();
            if (threadIdx.x < 32) {
                v = threadIdx.x < blockDim.x / 32 ? s[threadIdx.x] : 0;
                for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
                if (threadIdx.x == 0) out[blockIdx.x] = v;
            }
        }""")
    x = RANDOM.integers(-1000, 1000, (9, 192)).astype("i4")
    on_x, out = ptx_device.put(x), ptx_device.zeros(9, "i4")
    ptx_device.run(functions["sums"], 9, 192, on_x, out)
    np.testing.assert_array_equal(ptx_device.get(out, 9, "i4"), x.sum(axis=1))


def test_histogram_with_atomics(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void histogram(const unsigned char* x, unsigned* bins, int n) {
            __shared__ unsigned local[256];
            for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
            __syncthreads();
            for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
                atomicAdd(&local[x[i]], 1u);
            __syncthreads();
            for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
        }""")
    x = (RANDOM.standard_normal(50000) * 20 + 100).astype("u1")
    on_x, bins = ptx_device.put(x), ptx_device.zeros(256, "u4")
    ptx_device.run(functions["histogram"], 12, 128, on_x, bins, x.size)
    np.testing.assert_array_equal(ptx_device.get(bins, 256, "u4"), np.bincount(x, minlength=256))


def test_tiled_matrix_product(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
            __shared__ float as[16][17], bs[16][17];
            int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
            float sum = 0;
            for (int t = 0; t < k; t += 16) {
                as[threadIdx.y][threadIdx.x] = row < m && t + threadIdx.x < k ? a[row * k + t + threadIdx.x] : 0;
                bs[threadIdx.y][threadIdx.x] = col < n && t + threadIdx.y < k ? b[(t + threadIdx.y) * n + col] : 0;
                __syncthreads();
                for (int i = 0; i < 16; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
                __syncthreads();
            }
            if (row < m && col < n) c[row * n + col] = sum;
        }""")
    m, n, k = 50, 37, 61
    a, b = RANDOM.standard_normal((m, k)).astype("f4"), RANDOM.standard_normal((k, n)).astype("f4")
    out = ptx_device.zeros((m, n), "f4")
    ptx_device.run(functions["matmul"], (3, 4), (16, 16), ptx_device.put(a), ptx_device.put(b), out, m, n, k)
    expected = a.astype("f8") @ b.astype("f8")
    np.testing.assert_allclose(ptx_device.get(out, (m, n), "f4"), expected, rtol=1e-5, atol=1e-5)


def test_prefix_sum(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void scan(const int* x, int* out, int n) {
            extern __shared__ int s[];
            int t = threadIdx.x;
            s[t] = t < n ? x[t] : 0;
            __syncthreads();
            for (int d = 1; d < blockDim.x; d *= 2) {
                int v = t >= d ? s[t - d] : 0;
                __syncthreads();
                s[t] += v;
                __syncthreads();
            }
            if (t < n) out[t] = s[t];
        }""")
    x = RANDOM.integers(-9, 9, 1000).astype("i4")
    out = ptx_device.zeros(1000, "i4")
    ptx_device.run(functions["scan"], 1, 1024, ptx_device.put(x), out, 1000, shared=4096)
    np.testing.assert_array_equal(ptx_device.get(out, 1000, "i4"), np.cumsum(x))


def test_transposition(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void transpose(const double* in, double* out, int rows, int cols) {
            __shared__ double tile[32][33];
            int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
            for (int j = 0; j < 32; j += 8)
                if (x < cols && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * cols + x];
            __syncthreads();
            x = blockIdx.y * 32 + threadIdx.x;
            y = blockIdx.x * 32 + threadIdx.y;
            for (int j = 0; j < 32; j += 8)
                if (x < rows && y + j < cols) out[(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
        }""")
    x = RANDOM.standard_normal((75, 101))
    out = ptx_device.zeros((101, 75), "f8")
    ptx_device.run(functions["transpose"], (4, 3), (32, 8), ptx_device.put(x), out, 75, 101)
    np.testing.assert_array_equal(ptx_device.get(out, (101, 75), "f8"), x.T)


def test_bitonic_sort(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void sort(float* data) {
            extern __shared__ float s[];
            unsigned t = threadIdx.x;
            s[t] = data[blockIdx.x * blockDim.x + t];
            __syncthreads();
            for (unsigned k = 2; k <= blockDim.x; k <<= 1)
                for (unsigned j = k >> 1; j > 0; j >>= 1) {
                    unsigned other = t ^ j;
                    if (other > t && ((t & k) == 0) == (s[t] > s[other])) {
                        float v = s[t]; s[t] = s[other]; s[other] = v;
                    }
                    __syncthreads();
                }
            data[blockIdx.x * blockDim.x + t] = s[t];
        }""")
    x = RANDOM.standard_normal((5, 512)).astype("f4")
    on_x = ptx_device.put(x)
    ptx_device.run(functions["sort"], 5, 512, on_x, shared=2048)
    np.testing.assert_array_equal(ptx_device.get(on_x, (5, 512), "f4"), np.sort(x, axis=1))


def mandelbrot(width: int, height: int, limit: int) -> np.ndarray:
    """Iterations of each point; the kernel computes in double precision, operation by operation."""
    cx = -2.2 + 3.2 * np.arange(width) / width
    cy = -1.2 + 2.4 * np.arange(height)[:, None] / height
    x, y = np.zeros((2, height, width))
    count = np.zeros((height, width), "i4")
    for _ in range(limit):
        inside = x * x + y * y <= 4
        count += inside
        x, y = np.where(inside, x * x - y * y + cx, x), np.where(inside, 2 * x * y + cy, y)
    return count


def test_divergent_loops_of_mandelbrot(ptx_device):
    functions = ptx_device.cuda(
        """
        extern "C" __global__ void mandelbrot(int* out, int width, int height, int limit) {
            int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
            if (px >= width || py >= height) return;
            double cx = -2.2 + 3.2 * px / width, cy = -1.2 + 2.4 * py / height, x = 0, y = 0;
            int n = 0;
            while (n < limit && x * x + y * y <= 4.0) {
                double t = x * x - y * y + cx;
                y = 2 * x * y + cy;
                x = t;
                n++;
            }
            out[py * width + px] = n;
        }""",
        "--fmad=false",
    )
    out = ptx_device.zeros((60, 90), "i4")
    ptx_device.run(functions["mandelbrot"], (6, 8), (16, 8), out, 90, 60, 80)
    np.testing.assert_array_equal(ptx_device.get(out, (60, 90), "i4"), mandelbrot(90, 60, 80))


def test_half_and_bfloat16(ptx_device):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    functions = ptx_device.cuda(
        """
        __device__ float h2f(unsigned short h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
        __device__ unsigned short f2h(float f) {
            unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
        __device__ unsigned short f2b(float f) {
            unsigned short h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
        extern "C" __global__ void halves(const unsigned short* x, unsigned short* y, unsigned short* z,
                                          unsigned* pairs, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i >= n) return;
            unsigned short sum;
            asm("fma.rn.f16 %0, %1, %1, %1;" : "=h"(sum) : "h"(x[i]));
            y[i] = sum;
            z[i] = f2b(h2f(x[i]) * 3.0f);
            unsigned both = x[i] | (unsigned)f2h(2.0f) << 16;
            asm("mul.f16x2 %0, %0, %0;" : "+r"(both));
            pairs[i] = both;
        }""",
        arch="sm_90",
    )
    x = RANDOM.standard_normal(3000).astype("f2")
    y, z, pairs = ptx_device.zeros(3000, "f2"), ptx_device.zeros(3000, "u2"), ptx_device.zeros(3000, "u4")
    ptx_device.run(functions["halves"], 12, 256, ptx_device.put(x), y, z, pairs, 3000)
    wide = x.astype("f8")
    np.testing.assert_array_equal(ptx_device.get(y, 3000, "f2"), (wide * wide + wide).astype("f2"))
    expected = (x.astype("f4") * np.float32(3)).astype(ml_dtypes.bfloat16).view("u2")
    np.testing.assert_array_equal(ptx_device.get(z, 3000, "u2"), expected)
    both = ptx_device.get(pairs, 3000, "u4").view("f2").reshape(-1, 2)
    np.testing.assert_array_equal(both[:, 0], (wide * wide).astype("f2"))
    np.testing.assert_array_equal(both[:, 1], np.full(3000, 4, "f2"))


def test_recursion_and_calls(ptx_device):
    functions = ptx_device.cuda("""
        __device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
        __device__ __noinline__ void accumulate(double* sum, double v) { *sum += v; }
        extern "C" __global__ void run(int* out, double* sums, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            double sum = 0.5;
            for (int k = 0; k < i % 5; k++) accumulate(&sum, k * 1.5);
            if (i < n) { out[i] = fib(i % 12); sums[i] = sum; }
        }""")
    out, sums = ptx_device.zeros(200, "i4"), ptx_device.zeros(200, "f8")
    ptx_device.run(functions["run"], 2, 128, out, sums, 200)
    fibonacci = [0, 1]
    while len(fibonacci) < 12:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    np.testing.assert_array_equal(ptx_device.get(out, 200, "i4"), np.array(fibonacci)[np.arange(200) % 12])
    expected = [0.5 + sum(k * 1.5 for k in range(i % 5)) for i in range(200)]
    np.testing.assert_array_equal(ptx_device.get(sums, 200, "f8"), expected)


def test_function_pointers(ptx_device):
    functions = ptx_device.cuda("""
        typedef float (*Op)(float, float);
        __device__ __noinline__ float add(float a, float b) { return a + b; }
        __device__ __noinline__ float mul(float a, float b) { return a * b; }
        __device__ __noinline__ float sub(float a, float b) { return a - b; }
        __device__ Op table[3] = {add, mul, sub};
        extern "C" __global__ void apply(const float* x, float* out, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) out[i] = table[i % 3](x[i], 2.0f);
        }""")
    x = RANDOM.standard_normal(500).astype("f4")
    out = ptx_device.zeros(500, "f4")
    ptx_device.run(functions["apply"], 4, 128, ptx_device.put(x), out, 500)
    i = np.arange(500) % 3
    expected = np.where(i == 0, x + np.float32(2), np.where(i == 1, x * np.float32(2), x - np.float32(2)))
    np.testing.assert_array_equal(ptx_device.get(out, 500, "f4"), expected)


def test_struct_by_value(ptx_device):
    functions = ptx_device.cuda("""
        struct Params { char tag; double scale; short offset[3]; float* out; };
        extern "C" __global__ void use(int first, Params p, unsigned char last) {
            int i = threadIdx.x;
            p.out[i] = p.tag + p.scale * p.offset[i % 3] + first + last;
        }""")
    out = ptx_device.zeros(64, "f4")
    struct = np.zeros(
        1,
        np.dtype(
            {
                "names": ["tag", "scale", "offset", "out"],
                "formats": ["i1", "f8", ("i2", 3), "u8"],
                "offsets": [0, 8, 16, 24],
                "itemsize": 32,
            }
        ),
    )
    struct["tag"], struct["scale"], struct["offset"], struct["out"] = -3, 0.25, [[1, -200, 3000]], out
    function = functions["use"]
    assert [(p.offset_bytes, p.size_bytes, p.kind.value) for p in function.info.parameters] == [
        (0, 4, "integer"),
        (8, 32, "struct"),
        (40, 1, "integer"),
    ]
    ptx_device.run(function, 1, 64, -7, struct.tobytes(), 200)
    offset = np.array([1, -200, 3000])[np.arange(64) % 3]
    np.testing.assert_array_equal(ptx_device.get(out, 64, "f4"), (-3 + 0.25 * offset - 7 + 200).astype("f4"))


def test_constant_memory_and_globals(ptx_device):
    functions = ptx_device.cuda("""
        __constant__ float factors[4] = {1.5f, -2.0f, 4.0f, 8.0f};
        __constant__ signed char digits[] = {3, 1, 4, 1, 5};
        __device__ int counter = 10;
        __device__ int base = 7;
        __device__ int* pointer = &base;
        extern "C" __global__ void use(float* out) {
            int i = threadIdx.x;
            out[i] = factors[i % 4] * digits[i % 5] + *pointer;
            atomicAdd(&counter, 1);
        }""")
    out = ptx_device.zeros(64, "f4")
    ptx_device.run(functions["use"], 1, 64, out)
    i = np.arange(64)
    expected = np.array([1.5, -2, 4, 8], "f4")[i % 4] * np.array([3, 1, 4, 1, 5])[i % 5] + 7
    np.testing.assert_array_equal(ptx_device.get(out, 64, "f4"), expected)
    address, size = ptx_device.modules[-1].globals["counter"]
    assert size == 4
    assert ptx_device.get(address, 1, "i4")[0] == 64 + 10
