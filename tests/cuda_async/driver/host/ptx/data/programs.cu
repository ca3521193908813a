// Kernels of the kind users write, without headers; test_ptx_programs.py says what each must give.
// Compiled by NVRTC in the test: as it comes, with --use_fast_math, and with -G.

#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)
#define ALL 0xffffffffu

// ------------------------------------------------------------------------------------------ warps and blocks

extern "C" __global__ void warp_primitives(const int* x, int* out, int n) {
    int i = INDEX, lane = threadIdx.x & 31;
    int v = i < n ? x[i] : 0;
    int sum = v;
    for (int d = 1; d < 32; d <<= 1) {
        int other = __shfl_up_sync(ALL, sum, d);
        if (lane >= d) sum += other;
    }
    unsigned odd = __ballot_sync(ALL, v & 1);
    unsigned same = __match_any_sync(ALL, v & 7);
    int exchanged = __shfl_xor_sync(ALL, v, 5, 8);
    long long wide = __shfl_down_sync(ALL, v * 0x100000001ll, 3);
    double third = __shfl_sync(ALL, v * 0.5, lane / 3, 16);
    int results[8] = {sum,
                      __popc(odd & ((1u << lane) - 1)),
                      __ffs(same) - 1,
                      exchanged,
                      (int)(wide >> 32) ^ (int)wide,
                      (int)(third * 2),
                      __any_sync(ALL, v > 1000),
                      __all_sync(ALL, v > -2000)};
    if (i < n)
        for (int k = 0; k < 8; ++k) out[8 * i + k] = results[k];
}

template <int threads> __device__ int block_scan(int value, int* total) {
    __shared__ int sums[threads / 32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = value;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(ALL, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        int s = lane < threads / 32 ? sums[lane] : 0;
        for (int d = 1; d < threads / 32; d *= 2) {
            int other = __shfl_up_sync(ALL, s, d);
            if (lane >= d) s += other;
        }
        if (lane < threads / 32) sums[lane] = s;
    }
    __syncthreads();
    if (warp) sum += sums[warp - 1];
    *total = sums[threads / 32 - 1];
    __syncthreads();
    return sum - value;
}

extern "C" __global__ void compact(const float* x, float* out, int* count, int n) {
    __shared__ int base;
    for (int start = blockIdx.x * 256; start < n; start += gridDim.x * 256) {
        int i = start + threadIdx.x, total;
        bool keep = i < n && x[i] > 0.25f;
        int at = block_scan<256>(keep, &total);
        if (threadIdx.x == 0) base = atomicAdd(count, total);
        __syncthreads();
        if (keep) out[base + at] = x[i];
        __syncthreads();
    }
}

extern "C" __global__ void transpose(const double* a, double* b, int rows, int cols) {
    __shared__ double tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    for (int j = 0; j < 16; j += 4)
        if (x < cols && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = a[(y + j) * cols + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x, y = blockIdx.x * 16 + threadIdx.y;
    for (int j = 0; j < 16; j += 4)
        if (x < rows && y + j < cols) b[(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
}

template <class F> __device__ float warp_all(float v, F combine) {
    for (int o = 16; o; o >>= 1) v = combine(v, __shfl_xor_sync(ALL, v, o));
    return v;
}

extern "C" __global__ void online_softmax(const float* __restrict__ x, float* __restrict__ y, int rows,
                                          int cols) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const float lowest = __int_as_float(0xff800000);
    float largest = lowest, sum = 0;
    for (int c = threadIdx.x; c < cols; c += 32) {
        float v = x[row * cols + c], next = fmaxf(largest, v);
        sum = sum * expf(largest - next) + expf(v - next);
        largest = next;
    }
    float top = warp_all(largest, [](float a, float b) { return fmaxf(a, b); });
    sum = largest == lowest ? 0 : sum * expf(largest - top);
    sum = warp_all(sum, [](float a, float b) { return a + b; });
    for (int c = threadIdx.x; c < cols; c += 32) y[row * cols + c] = expf(x[row * cols + c] - top) / sum;
}

extern "C" __global__ void layer_norm(const float4* x, const float4* w, const float4* b, float4* y, int cols,
                                      float eps) {
    extern __shared__ float sums[];
    float* squares = sums + blockDim.x;
    const float4* row = x + blockIdx.x * cols;
    float s = 0, q = 0;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float4 v = __ldg(row + c);
        s += v.x + v.y + v.z + v.w;
        q += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    sums[threadIdx.x] = s, squares[threadIdx.x] = q;
    __syncthreads();
    for (int d = blockDim.x / 2; d; d /= 2) {
        if (threadIdx.x < d) {
            sums[threadIdx.x] += sums[threadIdx.x + d];
            squares[threadIdx.x] += squares[threadIdx.x + d];
        }
        __syncthreads();
    }
    float mean = sums[0] / (4 * cols), scale = rsqrtf(squares[0] / (4 * cols) - mean * mean + eps);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float4 v = row[c], f = w[c], o = b[c];
        y[blockIdx.x * cols + c] =
            make_float4((v.x - mean) * scale * f.x + o.x, (v.y - mean) * scale * f.y + o.y,
                        (v.z - mean) * scale * f.z + o.z, (v.w - mean) * scale * f.w + o.w);
    }
}

// ------------------------------------------------------------------------------------------ atomics and
// locks

extern "C" __global__ void many_atomics(const float* x, float* f, double* d, int* s, unsigned long long* u,
                                        int n) {
    __shared__ float sum;
    __shared__ double squares;
    __shared__ int histogram[16];
    __shared__ unsigned long long largest;
    if (threadIdx.x == 0) sum = 0, squares = 0, largest = 0;
    if (threadIdx.x < 16) histogram[threadIdx.x] = 0;
    __syncthreads();
    int i = INDEX;
    if (i < n) {
        float v = x[i];
        int hundreds = (int)(v * 100);
        atomicAdd(&sum, v);
        atomicAdd(&squares, (double)v * v);
        atomicAdd(histogram + ((int)(v * 2) & 15), 1);
        atomicMax(&largest, (unsigned long long)(v * v * 1e6f));
        atomicMin(s, hundreds);
        atomicMax(s + 1, hundreds);
        atomicXor(s + 2, i * 77);
        atomicOr((unsigned*)s + 3, 1u << (i & 31));
        atomicAnd(s + 4, ~(1 << (i % 7)));
        atomicInc((unsigned*)s + 5, 12);
        atomicDec((unsigned*)s + 6, 9);
        atomicSub(s + 7, 3);
        atomicExch(s + 8 + i % 3, i);
        unsigned *p = (unsigned*)f + 1, old = *p, seen; // the largest float, by compare and swap
        do {
            seen = old;
            if (__uint_as_float(seen) >= v) break;
            old = atomicCAS(p, seen, __float_as_uint(v));
        } while (old != seen);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(f, sum);
        atomicAdd(d, squares);
        atomicMax(u, largest);
    }
    if (threadIdx.x < 16) atomicAdd(u + 1 + threadIdx.x, (unsigned long long)histogram[threadIdx.x]);
}

// Every thread takes the lock for itself, so that the lanes of a warp wait for each other.
extern "C" __global__ void critical(int* lock, volatile int* sum) {
    bool waiting = true;
    while (waiting) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *sum += 1;
            __threadfence();
            atomicExch(lock, 0);
            waiting = false;
        }
    }
}

struct Node {
    int key, next;
};

// Lists in buckets, pushed to without locks; the last block walks along them.
extern "C" __global__ void bucket_lists(const int* keys, Node* nodes, int* heads, unsigned* done, int* out,
                                        int n) {
    __shared__ bool last;
    int i = INDEX;
    if (i < n) {
        int bucket = (unsigned)keys[i] * 2654435761u >> 28, head;
        nodes[i].key = keys[i];
        do {
            head = *(volatile int*)(heads + bucket);
            nodes[i].next = head;
            __threadfence();
        } while (atomicCAS(heads + bucket, head, i) != head);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(done, 1) == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x < 16) {
        int count = 0, sum = 0;
        for (int p = ((volatile int*)heads)[threadIdx.x]; p >= 0; p = ((volatile Node*)nodes)[p].next)
            ++count, sum += ((volatile Node*)nodes)[p].key;
        out[2 * threadIdx.x] = count, out[2 * threadIdx.x + 1] = sum;
    }
}

extern "C" __global__ void counted_barriers(const int* x, int* out) {
    int t = threadIdx.x, v = x[t];
    int above = __syncthreads_count(v > 0), all = __syncthreads_and(v > -100),
        some = __syncthreads_or(v == 77);
    unsigned odd = __ballot_sync(ALL, v & 1);
    if (v & 1) {
        __syncwarp(odd);
        v = __shfl_sync(odd, v, __ffs(odd) - 1);
    }
    out[t] = above + (all ? 1000 : 0) + (some ? 2000 : 0) + 10000 * (v & 255);
}

// ------------------------------------------------------------------------------------------ calls

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
    return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

__device__ void quicksort(int* a, int low, int high) {
    if (low >= high) return;
    int pivot = a[(low + high) / 2], i = low, j = high;
    while (i <= j) {
        while (a[i] < pivot) i++;
        while (a[j] > pivot) j--;
        if (i <= j) {
            int t = a[i];
            a[i++] = a[j];
            a[j--] = t;
        }
    }
    quicksort(a, low, j);
    quicksort(a, i, high);
}

__device__ int is_even(int n);
__device__ __noinline__ int is_odd(int n) { return n == 0 ? 0 : is_even(n - 1); }
__device__ __noinline__ int is_even(int n) { return n == 0 ? 1 : is_odd(n - 1); }

extern "C" __global__ void recursion(int* a, int length, unsigned* out) {
    int t = threadIdx.x;
    quicksort(a + t * length, 0, length - 1 - (t & 3));
    out[2 * t] = ackermann(1 + (t & 1), t % 5);
    out[2 * t + 1] = is_even(t);
}

typedef float (*Binary)(float, float);
__device__ float add(float a, float b) { return a + b; }
__device__ float multiply(float a, float b) { return a * b; }
__device__ float power(float a, float b) {
    float r = 1;
    for (int i = 0; i < (int)b; ++i) r *= a;
    return r;
}
__device__ Binary functions[3] = {add, multiply, power};
__constant__ Binary constant_functions[2] = {multiply, add};

struct Shape {
    float s;
    __device__ Shape(float s) : s(s) {}
    __device__ virtual float area() const { return s * s; }
    __device__ virtual float both(const Shape& other) const { return area() + other.area(); }
};
struct Circle : Shape {
    float pi;
    __device__ Circle(float r) : Shape(r), pi(3.0f) {}
    __device__ float area() const override { return pi * s * s; }
};
struct Ring : Circle {
    float inner;
    __device__ Ring(float r, float inner) : Circle(r), inner(inner) {}
    __device__ float area() const override { return Circle::area() - pi * inner * inner; }
};

extern "C" __global__ void function_pointers(const int* which, const float* a, const float* b, float* out,
                                             int n) {
    int i = INDEX;
    if (i < n) out[i] = functions[which[i] % 3](a[i], b[i]) + constant_functions[which[i] & 1](a[i], 2.f);
}

extern "C" __global__ void virtual_calls(const int* which, const float* a, float* out, int n) {
    int i = INDEX;
    if (i >= n) return;
    Shape shape(a[i]);
    Circle circle(a[i]);
    Ring ring(a[i], 0.5f);
    Shape* p = which[i] == 0 ? &shape : which[i] == 1 ? (Shape*)&circle : &ring;
    out[i] = p->area() + p->both(which[i] ? shape : (Shape&)ring);
}

struct Large {
    double d[5];
    int n;
    char tag[7];
};

__device__ __noinline__ Large twist(Large a, short by, bool negative, float4 f, const Large& b) {
    for (int i = 0; i < 5; ++i) a.d[(i + by) % 5] = (negative ? -1 : 1) * (a.d[i] + b.d[4 - i]);
    a.n += (int)f.w;
    a.tag[by % 7] = 'Z';
    return a;
}

__device__ __noinline__ int total(int n, const int* a) {
    int s = 0;
    while (n--) s += *a++;
    return s;
}

extern "C" __global__ void large_arguments(const int* x, double* out) {
    int t = threadIdx.x, array[16];
    Large a;
    for (int i = 0; i < 5; ++i) a.d[i] = x[t] * i;
    for (int i = 0; i < 7; ++i) a.tag[i] = 'a' + i;
    a.n = t;
    Large b = a;
    b.d[2] = 0.5;
    Large r = twist(a, (short)(t % 9), t & 1, make_float4(0, 0, 0, t), b);
    for (int i = 0; i < 16; ++i) array[i] = (i * x[t]) ^ i;
    array[t & 15] = 1000;
    double s = 0;
    for (int i = 0; i < 5; ++i) s = s * 3 + r.d[i];
    out[2 * t] = s + r.n;
    out[2 * t + 1] = total(16 - (t & 7), array + (t & 7)) + r.tag[(t % 9) % 7];
}

template <class T, int N> struct Vector {
    T v[N];
    __device__ T& operator[](int i) { return v[i]; }
    __device__ const T& operator[](int i) const { return v[i]; }
};
template <class T, int N> __device__ Vector<T, N> operator+(const Vector<T, N>& a, const Vector<T, N>& b) {
    Vector<T, N> r;
    for (int i = 0; i < N; ++i) r[i] = a[i] + b[i];
    return r;
}
template <class... Ts> __device__ auto sum_of(Ts... terms) { return (terms + ...); }
template <class F> __device__ void for_each(int n, F f) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) f(i);
}
template <class T> __global__ void templated(T a, const T* x, T* y, int n) {
    for_each(n, [=](int i) {
        Vector<T, 3> u{{x[i], a, T(2)}}, w{{y[i], a, T(i)}};
        auto r = u + w;
        if constexpr (sizeof(T) == 8)
            y[i] = sum_of(r[0], r[1], r[2]);
        else
            y[i] = sum_of(r[0] * T(2), r[1], T(1));
    });
}

// ------------------------------------------------------------------------------------------ data

struct Inner {
    char tag;
    double w;
    short s[3];
};
struct alignas(16) Mixed {
    char a;
    int b;
    Inner in[2];
    unsigned char bits;
    float4 f;
    bool flag;
    long long wide;
    unsigned x : 3, y : 13;
    int z : 7;
};
union Word {
    float f;
    unsigned short h[2];
};

extern "C" __global__ void mixed_struct(Mixed p, char c, Word u, const short3* triples, double* out,
                                        Mixed* back) {
    int t = threadIdx.x;
    if (t == 0) {
        double values[14] = {
            (double)p.a,    (double)p.b,         p.in[1].w, (double)p.in[1].s[2], (double)p.bits, p.f.w,
            (double)p.flag, (double)p.wide,      (double)c, (double)u.h[1],       (double)p.x,    (double)p.y,
            (double)p.z,    (double)triples[1].z};
        for (int i = 0; i < 14; ++i) out[i] = values[i];
    }
    if (t == 1) {
        Mixed q = p;
        q.b = -5, q.in[0].s[1] = 99, q.y = 1234, q.z = -3;
        *back = q;
    }
    if (t < 4) out[14 + t] = p.in[t & 1].s[t % 3] + p.in[t & 1].tag;
}

__constant__ float factors[5] = {0.5f, -1.0f, 2.25f, 0, 3e-2f};
__constant__ struct {
    const char* name;
    double d[2];
} settings = {"hello", {1e300, -0.0}};
__device__ int origin = 10, counter;
__device__ const short grid[4][2] = {{1, 2}, {3, 4}, {-5, 6}, {7, -8}};
__device__ float storage[64], *place;
static __device__ unsigned long long pattern = 0xfedcba9876543210ull;

extern "C" __global__ void set_globals(float* out) {
    static __shared__ int mirror[64];
    int t = threadIdx.x;
    if (t == 0) place = storage + 8, counter = origin + 5;
    storage[t] = t * factors[t % 5];
    mirror[t] = grid[t & 3][t >> 2 & 1];
    __syncthreads();
    out[t] = mirror[63 - t] + (t < 5 ? settings.name[t] : 0);
}

extern "C" __global__ void read_globals(double* out) {
    int t = threadIdx.x;
    if (t < 56) out[t] = place[t] + (t == 0 ? counter : 0);
    if (t == 60) out[t] = settings.d[0];
    if (t == 61) out[t] = 1 / settings.d[1];
    if (t == 62) out[t] = (double)(pattern >> 32);
}

extern "C" __global__ void vector_types(const double2* a, const longlong2* b, const uchar4* c,
                                        const short4* d, const char3* e, double2* o, longlong2* p, uchar4* q,
                                        short4* r, char3* s) {
    int i = threadIdx.x;
    double2 x = __ldcs(a + i);
    longlong2 y = __ldcg(b + i);
    uchar4 z = c[i];
    short4 w = __ldg(d + i);
    char3 k = e[i];
    o[i] = make_double2(x.y, -x.x);
    p[i] = make_longlong2(y.x ^ y.y, min(y.x, y.y));
    z.x += z.w, z.y = ~z.y, z.z <<= 1, z.w = z.w > 100;
    __stcg(q + i, z);
    r[i] = make_short4(w.w, -w.z, w.y / 3, w.x % 7);
    s[i] = make_char3(k.z, k.y * 2, k.x - 1);
}

extern "C" __global__ void special_registers(unsigned* out) {
    extern __shared__ int words[];
    int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned* o = out + (b * blockDim.x * blockDim.y * blockDim.z + t) * 7;
    long long before = clock64();
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(o[0]));
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(o[1]));
    asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(o[2]));
    asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(o[3]));
    o[4] = blockIdx.z * 100 + blockIdx.y * 10 + blockIdx.x;
    o[5] = warpSize + threadIdx.z;
    o[6] = __isShared(words) && __isGlobal(out) && !__isGlobal(words) && __isLocal(&t) && clock64() >= before;
}

#ifndef NO_PRINTF
extern "C" __global__ void print(const float* x, int n) {
    int i = threadIdx.x;
    if (i < n)
        printf("%d: %s %5.2f|%-6d|%06x|%c|%llu|%e|%%|%u|%lld\n", i, i & 1 ? "odd" : "even", x[i], i * 3,
               i * 255, 'a' + i, (unsigned long long)i << 40, x[i] * 1e10, 4000000000u, -5000000000ll);
    assert(n < 10 && "too many");
}
#endif

// ------------------------------------------------------------------------------------------ integers

extern "C" __global__ void opcodes64(const int* op, const long long* a, const long long* b, long long* out,
                                     int n) {
    typedef unsigned long long U;
    int i = INDEX;
    if (i >= n) return;
    long long x = a[i], y = b[i], r = 0;
    switch (op[i]) {
    case 0: r = x + y; break;
    case 1: r = x - y; break;
    case 2: r = x * y; break;
    case 3: r = y ? x / y : -1; break;
    case 4: r = y ? x % y : -2; break;
    case 5: r = (U)x << (y & 63); break;
    case 6: r = x >> (y & 63); break;
    case 7: r = (U)x >> (y & 63); break;
    case 8: r = __mul64hi(x, y); break;
    case 9: r = __umul64hi(x, y); break;
    case 10: r = y ? (U)x / (U)y : 3; // falls through
    case 11: r ^= x; break;
    case 100: r = __popcll(x) + __clzll(y); break;
    case 101: r = __brevll(x); break;
    case 102: r = __ffsll(x); break;
    case 1000: r = x >> 1 < y ? y : x >> 1; // falls through
    case 1001: r = max(r, y); break;
    case 1002: r = x < y; break;
    case 1003: r = (U)x < (U)y; break;
    case 1004: r = (long long)(float)(x >> 2) + (long long)(double)(y >> 2); break;
    case 1005: r = (int)x * (long long)(int)y; break;
    case 1006: r = (short)x * (signed char)y; break;
    case 1007: r = (long long)((unsigned __int128)(U)x * (U)y >> 40); break;
    case 1008: r = (long long)(((__int128)x << 30) / (y | 1)); break;
    default: r = -op[i];
    }
    out[i] = r;
}

extern "C" __global__ void bit_tricks(const unsigned* a, const unsigned* b, unsigned* out) {
    unsigned x = a[threadIdx.x], y = b[threadIdx.x], s = y & 31, r[18], *o = out + 18 * threadIdx.x;
    r[0] = __byte_perm(x, y, x & 0x7777);
    r[1] = __funnelshift_l(x, y, s);
    r[2] = __funnelshift_rc(x, y, y & 63);
    r[3] = x << s | x >> (32 - s & 31);
    r[4] = __popc(x & y) + __clz(x) + __ffs(y) + __brev(x & 0xff);
    r[5] = (x ^ (x >> 1)) & -(y & 1);
    r[6] = __umulhi(x, y);
    r[7] = __mulhi((int)x, (int)y);
    r[8] = __usad(x, y, 3);
    r[9] = __sad((int)x, (int)y, 1);
    r[10] = __uhadd(x, y);
    r[11] = __rhadd((int)x, (int)y);
    r[12] = __vadd4(x, y);
    r[13] = __vabsdiffs2(x, y);
    r[14] = __vmaxu4(x, y);
    r[15] = __fns(x, y & 31, 2);
    unsigned v = x & 0xffff; // bits of the lower half with gaps between them
    v = (v | v << 8) & 0x00FF00FF, v = (v | v << 4) & 0x0F0F0F0F, v = (v | v << 2) & 0x33333333;
    r[16] = (v | v << 1) & 0x55555555;
    asm("{ .reg .pred q; setp.lt.u32 q, %1, %2; selp.b32 %0, %1, %2, q; }" : "=r"(r[17]) : "r"(x), "r"(y));
    for (int i = 0; i < 18; ++i) o[i] = r[i];
}

__device__ uint4 philox(uint4 c, uint2 key) {
#pragma unroll 2
    for (int round = 0; round < 10; ++round) {
        unsigned high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
        unsigned high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
        c = make_uint4(high1 ^ c.y ^ key.x, low1, high0 ^ c.w ^ key.y, low0);
        key.x += 0x9E3779B9u, key.y += 0xBB67AE85u;
    }
    return c;
}

extern "C" __global__ void random_numbers(uint4* bits, float2* normal, unsigned long long seed,
                                          unsigned long long offset) {
    int i = INDEX;
    unsigned long long c = offset + i;
    uint4 r = philox(make_uint4((unsigned)c, (unsigned)(c >> 32), 7, 9),
                     make_uint2((unsigned)seed, (unsigned)(seed >> 32)));
    float u = (r.x + 1.0f) * 2.3283064e-10f, angle = r.y * 2.3283064e-10f, s, q;
    sincospif(2 * angle, &s, &q);
    float m = sqrtf(-2 * logf(u));
    bits[i] = r;
    normal[i] = make_float2(m * s, m * q);
}

// ------------------------------------------------------------------------------------------ control flow

extern "C" __global__ void __launch_bounds__(128) collatz(const int* x, int2* out, int n) {
    int i = INDEX;
    if (i >= n) return;
    long long v = x[i], top = v;
    int steps = 0;
    while (true) {
        if (v == 1) break;
        if (steps > 300) {
            steps = -1;
            break;
        }
        if (v & 1) {
            v = 3 * v + 1;
            if (v > top) top = v;
        } else {
            v >>= 1;
            if (v % 10 == 7) {
                steps += 3;
                continue;
            }
        }
        ++steps;
    }
    out[i] = make_int2(steps, (int)(top >> 2));
}

// A loop that can be entered in its middle.
extern "C" __global__ void jump_into_loop(const unsigned char* code, int* out) {
    int i = threadIdx.x, sum = 0, k = code[i] & 7;
    const unsigned char* p = code + i;
    if (code[i] & 1) goto middle;
top:
    sum += p[k];
    if (sum & 4) goto done;
middle:
    sum = sum * 3 + k;
    if (--k < 0) goto done;
    if (sum % 5 == 0) goto middle;
    if (sum < 3000) goto top;
done:
    out[i] = sum * 10 + k;
}

extern "C" __global__ void nested_loops(const int* x, int* out) {
    int t = threadIdx.x, c = 0;
    for (int i = 0; i < x[t]; ++i) {
        for (int j = 0;; ++j) {
            if (j > i) break;
            if ((i * j + t) % 3 == 0) continue;
            switch ((i + j) % 4) {
            case 0: c += 1; break;
            case 1:
                if (t & 1) goto done;
                c += 10;
                break;
            case 2: {
                int k = t;
                do c ^= k, k -= 5;
                while (k > 0);
            } break;
            default: c -= 3;
            }
        }
        if (c > 500) break;
    }
done:
    out[t] = c;
    __syncthreads();
    if (t == 0) {
        int s = 0;
        for (int i = 0; i < 64; ++i) s += out[i];
        out[64] = s;
    }
}

extern "C" __global__ void barriers_of_the_living(const int* x, int* out, int n) {
    __shared__ int s[128];
    int t = threadIdx.x;
    if (t >= n) return;
    s[t] = x[t];
    __syncthreads();
    for (int d = 1; d < 128; d *= 2) {
        int v = t >= d ? s[t - d] : 0;
        __syncthreads();
        s[t] += v;
        __syncthreads();
        if (d == 16 && s[0] < -1000) return;
    }
    for (int k = 0;; ++k) {
        if (k * k > s[t]) {
            out[t] = k;
            return;
        }
        if (k > 50) break;
    }
    out[t] = -1;
}

// ------------------------------------------------------------------------------------------ algorithms

extern "C" __global__ void fft(const float2* in, float2* out, int log_n) {
    extern __shared__ __align__(16) unsigned char raw[];
    int n = 1 << log_n;
    float2 *a = (float2*)raw, *twiddle = a + n;
    unsigned short* reversed = (unsigned short*)(twiddle + n / 2);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        reversed[i] = __brev(i) >> (32 - log_n);
        if (i < n / 2) sincospif(-2.0f * i / n, &twiddle[i].y, &twiddle[i].x);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) a[reversed[i]] = in[blockIdx.x * n + i];
    for (int h = 1; h < n; h *= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
            int j = i % h, base = (i / h) * 2 * h + j;
            float2 w = twiddle[j * (n / 2 / h)], u = a[base], v = a[base + h];
            float2 t = make_float2(w.x * v.x - w.y * v.y, w.x * v.y + w.y * v.x);
            a[base] = make_float2(u.x + t.x, u.y + t.y);
            a[base + h] = make_float2(u.x - t.x, u.y - t.y);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = a[i];
}

extern "C" __global__ void bitonic(unsigned* keys, int n) {
    extern __shared__ unsigned long long raw64[];
    unsigned* a = (unsigned*)raw64;
    unsigned char* moved = (unsigned char*)(a + n);
    for (int i = threadIdx.x; i < n; i += blockDim.x) a[i] = keys[i], moved[i] = 0;
    __syncthreads();
    for (int k = 2; k <= n; k <<= 1)
        for (int j = k >> 1; j; j >>= 1) {
            for (int i = threadIdx.x; i < n; i += blockDim.x) {
                int other = i ^ j;
                if (other > i && ((i & k) == 0) == (a[i] > a[other])) {
                    unsigned t = a[i];
                    a[i] = a[other], a[other] = t, moved[i] = 1;
                }
            }
            __syncthreads();
        }
    for (int i = threadIdx.x; i < n; i += blockDim.x) keys[i] = a[i];
}

extern "C" __global__ void convolution(const float* __restrict__ image, const float* __restrict__ w,
                                       float* out, int rows, int cols) {
    __shared__ float tile[18][34];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    for (int dy = threadIdx.y; dy < 18; dy += blockDim.y)
        for (int dx = threadIdx.x; dx < 34; dx += blockDim.x) {
            int gx = blockIdx.x * 32 + dx - 1, gy = blockIdx.y * 16 + dy - 1;
            bool inside = gx >= 0 && gx < cols && gy >= 0 && gy < rows;
            tile[dy][dx] = inside ? image[gy * cols + gx] : 0.f;
        }
    __syncthreads();
    if (x >= cols || y >= rows) return;
    float s = 0;
#pragma unroll
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) s = fmaf(tile[threadIdx.y + i][threadIdx.x + j], w[3 * i + j], s);
    out[y * cols + x] = s;
}

extern "C" __global__ void edit_distance(const char* a, const char* b, int la, int lb, int* out) {
    extern __shared__ int d[];
    int width = lb + 1;
    for (int i = threadIdx.x; i <= la; i += blockDim.x) d[i * width] = i;
    for (int j = threadIdx.x; j <= lb; j += blockDim.x) d[j] = j;
    __syncthreads();
    for (int s = 2; s <= la + lb; ++s) {
        int i = 1 + threadIdx.x, j = s - i;
        if (i <= la && j >= 1 && j <= lb) {
            int cost = d[(i - 1) * width + j - 1] + (a[i - 1] != b[j - 1]);
            d[i * width + j] = min(cost, min(d[(i - 1) * width + j], d[i * width + j - 1]) + 1);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = d[la * width + lb];
}

extern "C" __global__ void bodies(const float4* p, float3* force, int n) {
    extern __shared__ float4 near[];
    int i = INDEX;
    float4 me = i < n ? p[i] : make_float4(0, 0, 0, 0);
    float3 f = make_float3(0, 0, 0);
    for (int b = 0; b < n; b += blockDim.x) {
        int j = b + threadIdx.x;
        near[threadIdx.x] = j < n ? p[j] : make_float4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < blockDim.x; ++k) {
            float4 q = near[k];
            float dx = q.x - me.x, dy = q.y - me.y, dz = q.z - me.z;
            float r = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-2f), s = q.w * r * r * r;
            f.x += dx * s, f.y += dy * s, f.z += dz * s;
        }
        __syncthreads();
    }
    if (i < n) force[i] = f;
}

// ------------------------------------------------------------------------------------------ functions of
// reals

#define UNARY(name)                                                                                          \
    extern "C" __global__ void name##_of(const double* a, double* o) {                                       \
        o[threadIdx.x] = name(a[threadIdx.x]);                                                               \
    }
UNARY(exp)
UNARY(expm1) UNARY(log) UNARY(log1p) UNARY(log2) UNARY(sin) UNARY(cos) UNARY(tan) UNARY(asin) UNARY(atan)
    UNARY(sinh) UNARY(tanh) UNARY(asinh) UNARY(erf) UNARY(erfc) UNARY(tgamma) UNARY(lgamma) UNARY(sqrt)
        UNARY(cbrt) UNARY(rint) UNARY(round) UNARY(floor)

            extern "C" __global__
    void pairs_of_reals(const double* a, const double* b, double* out, int* whole) {
    double x = a[threadIdx.x], y = b[threadIdx.x], *o = out + 14 * threadIdx.x;
    int *w = whole + 3 * threadIdx.x, k;
    o[0] = pow(fabs(x), y), o[1] = pow(x, trunc(y)), o[2] = fmod(x, y), o[3] = remainder(x, y);
    o[4] = frexp(x, &k), w[0] = k, o[5] = ldexp(x, (int)y * 30), o[6] = modf(x, o + 7), o[8] = hypot(x, y);
    o[9] = atan2(x, y), sincos(x * 1e5, o + 10, o + 11), o[12] = nextafter(x, y), o[13] = scalbn(x, -1060);
    w[1] = (int)llrint(x * 1000), w[2] = ilogb(x) * 4 + isnan(x / 0.0 - x / 0.0) * 2 + (signbit(y) != 0);
}

extern "C" __global__ void conversions(const float* f, const double* d, long long* out) {
    float x = f[threadIdx.x];
    double y = d[threadIdx.x];
    long long* o = out + 10 * threadIdx.x;
    o[0] = __float2int_rd(x), o[1] = __float2uint_ru(x), o[2] = __float2ll_rn(x),
    o[3] = (long long)__float2ull_rz(x);
    o[4] = __double2int_rn(y), o[5] = __double2uint_rd(y), o[6] = __double2ll_ru(y),
    o[7] = (long long)__double2ull_rn(y);
    o[8] = __double2hiint(y), o[9] = (int)rintf(x);
}
