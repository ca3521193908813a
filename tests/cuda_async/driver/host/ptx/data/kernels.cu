// Kernels whose PTX is committed beside this file; make_ptx.py says how it was made.
#include <cassert>
#include <cooperative_groups.h>
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#ifndef __CUDACC_DEBUG__
#include <cuda/barrier>
#endif

namespace cg = cooperative_groups;

// A dense switch becomes an indexed branch.
extern "C" __global__ void opcodes(const int *code, const int *x, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i], r;
    switch (code[i]) {
    case 0: r = v + 7; break;
    case 1: r = v * v; break;
    case 2: r = v ^ 0x5555; break;
    case 3: r = v < 0 ? -v : v; break;
    case 4: r = v / 3; break;
    case 5: r = v % 5; break;
    case 6: r = 0; for (int k = 0; k < (v & 15); k++) r += k * v; break;
    case 7: r = __popc(v); break;
    case 8: r = __clz(v); break;
    case 9: r = (int)__brev(v); break;
    default: r = -1;
    }
    out[i] = r;
}

__device__ __noinline__ unsigned long long binomial(int n, int k) {
    if (k == 0 || k == n) return 1;
    return binomial(n - 1, k - 1) + binomial(n - 1, k);
}

extern "C" __global__ void binomials(unsigned long long *out, int n) {
    int i = threadIdx.x;
    if (i < n) out[i] = binomial(10, i % 11);
}

struct Affine {
    float factor;
    float offset;
    int clamp[2];
};

__device__ float apply(const Affine &a, float v) {
    v = a.factor * v + a.offset;
    return v < a.clamp[0] ? a.clamp[0] : v > a.clamp[1] ? a.clamp[1] : v;
}

__constant__ float weights[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};

// A filter with a halo in dynamic shared memory, weights in constant memory, a struct by value.
extern "C" __global__ void blur(const float *x, float *out, int n, Affine a) {
    extern __shared__ float s[];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t + 2] = i < n ? x[i] : 0;
    if (t < 2) {
        s[t] = i >= 2 ? x[i - 2] : 0;
        s[t + blockDim.x + 2] = i + blockDim.x < n ? x[i + blockDim.x] : 0;
    }
    __syncthreads();
    if (i >= n) return;
    float sum = 0;
    for (int k = 0; k < 5; k++) sum += weights[k] * s[t + k];
    out[i] = apply(a, sum);
}

// Local arrays indexed at run time.
extern "C" __global__ void digits(const unsigned *x, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned char digit[10];
    int count = 0;
    for (unsigned v = x[i]; v || !count; v /= 10) digit[count++] = v % 10;
    unsigned reversed = 0;
    for (int k = 0; k < count && k < 9; k++) reversed = reversed * 10 + digit[k];
    out[i] = reversed;
}

extern "C" __global__ void functions(const double *x, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i];
    out[6 * i] = sin(v);
    out[6 * i + 1] = exp(v * 0.1);
    out[6 * i + 2] = log(fabs(v) + 1e-3);
    out[6 * i + 3] = pow(fabs(v), 1.7);
    out[6 * i + 4] = cbrt(v);
    out[6 * i + 5] = atan2(v, 2.0);
}

extern "C" __global__ void halves(const __half *x, const __nv_bfloat16 *y, float *out, __half2 *pairs, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half h = __hfma(x[i], __float2half(2.0f), __float2half(0.5f));
    out[i] = __half2float(h) + __bfloat162float(y[i]);
    pairs[i] = __hmul2(__halves2half2(x[i], h), __float2half2_rn(0.5f));
}

// The block with the last ticket adds up; 64-bit atomics.
__device__ unsigned long long tickets = 0;

extern "C" __global__ void total(const int *x, unsigned long long *sums, long long *out, int n) {
    __shared__ unsigned long long s;
    __shared__ bool last;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    long long mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) mine += x[i];
    atomicAdd(&s, (unsigned long long)mine);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicExch(&sums[blockIdx.x], s);
        __threadfence();
        last = atomicAdd(&tickets, 1ull) % gridDim.x == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        long long sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += (long long)atomicAdd(&sums[b], 0ull);
        *out = sum;
    }
}

// Jacobi steps with a barrier of the whole grid between them.
extern "C" __global__ void relax(float *a, float *b, int n, int rounds) {
    cg::grid_group grid = cg::this_grid();
    int i = grid.thread_rank();
    for (int r = 0; r < rounds; r++) {
        if (i < n) b[i] = i == 0 || i == n - 1 ? a[i] : 0.5f * (a[i - 1] + a[i + 1]);
        grid.sync();
        float *t = a;
        a = b;
        b = t;
    }
}

// Tiles of a block, with shuffles in halves of warps.
extern "C" __global__ void tiles(const int *x, int *out) {
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<16>(block);
    int v = x[block.group_index().x * block.size() + block.thread_rank()];
    for (int d = tile.size() / 2; d > 0; d /= 2) v += tile.shfl_xor(v, d);
    if (tile.any(v > 100)) v = -v;
    out[block.group_index().x * block.size() + block.thread_rank()] = v;
}

// A warp multiplies 16 by 16 tiles.
extern "C" __global__ void tensor_tiles(const __half *a, const __half *b, float *c, int n) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __half, row_major> left;
    fragment<matrix_b, 16, 16, 16, __half, col_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    for (int k = 0; k < n; k += 16) {
        load_matrix_sync(left, a + row * n + k, n);
        load_matrix_sync(right, b + column * n + k, n);
        mma_sync(sum, left, right, sum);
    }
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= 0.5f;
    store_matrix_sync(c + row * n + column, sum, n, mem_row_major);
}

// Copies that complete on a barrier of libcu++, which is an mbarrier. Its debug build is very large.
#ifndef __CUDACC_DEBUG__
extern "C" __global__ void staged(const float *x, float *out, int rounds) {
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    __shared__ float s[128];
    if (threadIdx.x == 0) init(&ready, blockDim.x);
    __syncthreads();
    for (int r = 0; r < rounds; r++) {
        cuda::memcpy_async(&s[threadIdx.x], x + r * 128 + threadIdx.x, sizeof(float), ready);
        ready.arrive_and_wait();
        out[r * 128 + threadIdx.x] = s[127 - threadIdx.x];
        ready.arrive_and_wait();
    }
}
#endif

struct Shape {
    __device__ virtual float area() const = 0;
};
struct Square : Shape {
    float side;
    __device__ Square(float s) : side(s) {}
    __device__ float area() const override { return side * side; }
};
struct Disc : Shape {
    float radius;
    __device__ Disc(float r) : radius(r) {}
    __device__ float area() const override { return 3.0f * radius * radius; }
};

extern "C" __global__ void areas(const int *kind, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Square square(i);
    Disc disc(i);
    const Shape *shape = kind[i] ? (const Shape *)&square : (const Shape *)&disc;
    out[i] = shape->area();
}

extern "C" __global__ void report(int n, float value) {
    if (threadIdx.x < n) printf("thread %d of %d: %.2f %s\n", threadIdx.x, n, value * threadIdx.x, "ok");
    assert(n < 4);
}
