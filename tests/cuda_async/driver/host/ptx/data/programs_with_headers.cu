// Kernels with the toolkit's headers; test_ptx_programs.py says what each must give.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

extern "C" __global__ void groups(const float* x, float* sums, int* scans, int* counts, int n) {
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    auto tile = cg::tiled_partition<8>(warp);
    auto i = cg::this_grid().thread_rank();
    float v = x[i];
    float sum = cg::reduce(tile, v, cg::plus<float>());
    if (tile.thread_rank() == 0) sums[i / 8] = sum;
    int whole = (int)v;
    scans[i] = cg::exclusive_scan(warp, whole, cg::plus<int>());
    if (v > 0) {
        auto active = cg::coalesced_threads();
        int largest = cg::reduce(active, whole, cg::greater<int>());
        if (active.thread_rank() == 0) atomicMax(counts, largest);
        atomicAdd(counts + 1, 1);
    }
    auto parity = cg::binary_partition(warp, whole & 1);
    if (parity.thread_rank() == 0) atomicAdd(counts + 2 + (whole & 1), (int)parity.size());
    auto equal = cg::labeled_partition(warp, whole & 3);
    if (equal.thread_rank() == 0) atomicAdd(counts + 4 + (whole & 3), (int)equal.num_threads());
    block.sync();
    if (block.thread_rank() == block.size() - 1) atomicAdd(counts + 8, (int)block.group_index().x);
}

extern "C" __global__ void relax(float* a, float* b, int n, int iterations) {
    auto grid = cg::this_grid();
    for (int k = 0; k < iterations; ++k) {
        for (int i = grid.thread_rank(); i < n; i += grid.size()) {
            float left = i ? a[i - 1] : 0, right = i + 1 < n ? a[i + 1] : 1;
            b[i] = 0.5f * (left + right);
        }
        grid.sync();
        float* t = a;
        a = b, b = t;
    }
}

extern "C" __global__ void __cluster_dims__(2, 2, 1) neighbours(const int* x, int* out) {
    __shared__ int own[32];
    auto cluster = cg::this_cluster();
    int rank = cluster.block_rank(), t = threadIdx.x, b = blockIdx.y * gridDim.x + blockIdx.x;
    own[t] = x[b * 32 + t] + rank;
    cluster.sync();
    int* next = cluster.map_shared_rank(own, (rank + 1) % cluster.num_blocks());
    int v = next[31 - t];
    cluster.sync();
    atomicAdd(cluster.map_shared_rank(own, 3), 5);
    cluster.sync();
    out[b * 32 + t] =
        v * 10 + (int)cluster.num_threads() / 128 + (rank == 3 && t == 0 ? own[0] - x[b * 32] : 0);
}

extern "C" __global__ void copies_ahead(const float* x, float* out, int n) {
    __shared__ alignas(16) float buffer[2][128];
    int t = threadIdx.x, s = 0;
    float sum = 0;
    __pipeline_memcpy_async(&buffer[0][4 * t], x + 4 * t, 16);
    __pipeline_commit();
    for (int k = 128; k <= n; k += 128) {
        if (k < n) __pipeline_memcpy_async(&buffer[s ^ 1][4 * t], x + k + 4 * t, 16, t == 31 ? 8 : 0);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += buffer[s][t * 7 % 128] + buffer[s][127];
        __syncthreads();
        s ^= 1;
    }
    out[t] = sum;
}

extern "C" __global__ void group_copy(const double* x, double* out) {
    __shared__ double buffer[64];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, buffer, x, sizeof(buffer));
    cg::wait(block);
    out[block.thread_rank()] = buffer[63 - block.thread_rank()] * 2;
}

extern "C" __global__ void half_pairs(const __half2* a, const __half2* b, __half2* out, float* sums) {
    int i = threadIdx.x;
    __half2 x = a[i], y = b[i], r = __hfma2(x, y, __float2half2_rn(0.5f));
    r = __hmin2(__hmax2(r, __float2half2_rn(-1.f)), __habs2(y));
    if (__hbgt2(x, y)) r = __hneg2(r);
    out[i] = r;
    float2 f = __half22float2(r);
    sums[i] = f.x + f.y + __half2float(__hadd(__low2half(x), __high2half(y)));
}

extern "C" __global__ void bfloat_pairs(const __nv_bfloat162* a, __nv_bfloat162* out) {
    int i = threadIdx.x;
    out[i] = __hmul2(__hadd2(a[i], a[i]), __floats2bfloat162_rn(1.5f, -0.75f));
}

extern "C" __global__ void half_dot(const __half* a, const __half* b, __half* out, int n) {
    __half sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum = __hfma(a[i], b[i], sum);
    atomicAdd(out, sum);
    atomicAdd((__half2*)(out + 2), __halves2half2(sum, __hneg(sum)));
}

extern "C" __global__ void eight_bits(const float* x, unsigned char* e4m3, unsigned char* e5m2,
                                      float2* back) {
    int i = threadIdx.x;
    __nv_fp8_e4m3 a(x[i]);
    __nv_fp8_e5m2 b(x[i]);
    e4m3[i] = a.__x, e5m2[i] = b.__x, back[i] = make_float2(float(a), float(b));
}

extern "C" __global__ void complex_quotients(const cuDoubleComplex* a, const cuDoubleComplex* b,
                                             cuDoubleComplex* q, double* m) {
    int i = threadIdx.x;
    q[i] = cuCdiv(a[i], cuConj(b[i]));
    m[i] = cuCabs(cuCfma(a[i], b[i], q[i]));
}
