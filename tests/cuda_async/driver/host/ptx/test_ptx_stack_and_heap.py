"""Local memory taken with alloca, and device memory taken with malloc."""

from __future__ import annotations

import pytest

from cuda_async.errors import CompileError, CudaAsyncError

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


def kernel(body: str) -> str:
    return (
        HEADER
        + """.visible .entry k(.param .u64 out) {
        .reg .pred p; .reg .b32 t, v; .reg .b64 o, a, b, c, s, n;
        ld.param.u64 o, [out]; mov.u32 t, %tid.x; mul.wide.u32 a, t, 8; add.s64 o, o, a;
        cvt.u64.u32 n, t;"""
        + body
        + " ret; }"
    )


# -------------------------------------------------------------------------------- the stack


def test_alloca_with_calls_and_divergence(ptx_device):
    # deep(n, t): n numbers i * t on the stack, deep(n - 2, t) below them, then their sum.
    functions = ptx_device.load(
        HEADER
        + """
        .func (.param .b32 r) total(.param .b64 q, .param .b32 n) {
            .local .align 16 .b8 own[64];
            .reg .pred p; .reg .b32 c, i, v, s; .reg .b64 a;
            st.local.b32 [own], 1000; st.local.b32 [own+60], 1000;
            ld.param.b64 a, [q]; ld.param.b32 c, [n]; mov.b32 s, 0;
        LOOP:
            setp.eq.s32 p, c, 0; @p bra DONE;
            ld.b32 v, [a]; add.s32 s, s, v; add.s64 a, a, 4; sub.s32 c, c, 1; bra LOOP;
        DONE:
            st.param.b32 [r], s; ret;
        }
        .func (.param .b32 r) deep(.param .b32 n, .param .b32 t) {
            .reg .pred p; .reg .b32 c, i, t1, v, s, less; .reg .b64 a, q, size;
            ld.param.b32 c, [n]; ld.param.b32 t1, [t];
            mul.wide.u32 size, c, 4; alloca.u64 q, size, 16; mov.b64 a, q; cvta.local.u64 q, q;
            mov.b32 i, 0;
        FILL:
            mul.lo.s32 v, i, t1; st.local.b32 [a], v; add.s64 a, a, 4; add.s32 i, i, 1;
            setp.lt.s32 p, i, c; @p bra FILL;
            mov.b32 s, 0; setp.le.s32 p, c, 2; @p bra SUM;
            sub.s32 less, c, 2;
            { .param .b32 x; .param .b32 y; .param .b32 z; st.param.b32 [x], less; st.param.b32 [y], t1;
              call (z), deep, (x, y); ld.param.b32 s, [z]; }
        SUM:
            { .param .b64 x; .param .b32 y; .param .b32 z; st.param.b64 [x], q; st.param.b32 [y], c;
              call (z), total, (x, y); ld.param.b32 v, [z]; }
            add.s32 s, s, v; st.param.b32 [r], s; ret;
        }
        .visible .entry k(.param .u64 out) {
            .reg .pred p, odd; .reg .b32 t, c, i, v, s; .reg .b64 o, a, q, size;
            ld.param.u64 o, [out]; mov.u32 t, %tid.x; mad.wide.u32 o, t, 4, o;
            rem.u32 c, t, 5; add.u32 c, c, 1;
            mul.wide.u32 size, c, 4; alloca.u64 q, size, 16; mov.b64 a, q; cvta.local.u64 q, q;
            mov.b32 i, 0;
        FILL:
            add.s32 v, i, t; st.local.b32 [a], v; add.s64 a, a, 4; add.s32 i, i, 1;
            setp.lt.s32 p, i, c; @p bra FILL;
            and.b32 s, t, 1; setp.ne.u32 odd, s, 0; mov.b32 s, 0;
            @!odd bra SUM;
            { .param .b32 x; .param .b32 y; .param .b32 z; st.param.b32 [x], c; st.param.b32 [y], t;
              call (z), deep, (x, y); ld.param.b32 s, [z]; }
        SUM:
            { .param .b64 x; .param .b32 y; .param .b32 z; st.param.b64 [x], q; st.param.b32 [y], c;
              call (z), total, (x, y); ld.param.b32 v, [z]; }
            mad.lo.s32 s, v, 10000, s; st.global.b32 [o], s; ret;
        }"""
    ).functions
    threads = 1024
    out = ptx_device.zeros(threads, "i4")
    ptx_device.run(functions["k"], 1, threads, out)

    def expected(t):
        n = t % 5 + 1
        deep = sum(i * t for m in range(n, 0, -2) for i in range(m))
        return (deep if t & 1 else 0) + 10000 * sum(i + t for i in range(n))

    assert ptx_device.get(out, threads, "i4").tolist() == [expected(t) for t in range(threads)]


def test_alloca_aligns_and_stackrestore_takes_back(ptx_device):
    functions = ptx_device.load(
        kernel(
            """
            stacksave.u64 s;
            alloca.u64 a, n, 32;
            alloca.u64 b, 8;
            st.local.u64 [b], n;
            stackrestore.u64 s;
            alloca.u64 c, n, 32;
            setp.ne.u64 p, a, c;
            @p trap;
            and.b64 a, a, 31; and.b64 c, b, 7; or.b64 a, a, c; setp.ne.u64 p, a, 0;
            @p trap;
            ld.local.u64 n, [b];
            st.global.u64 [o], n;"""
        )
    ).functions
    out = ptx_device.zeros(40, "u8")
    ptx_device.run(functions["k"], 1, 40, out)
    assert ptx_device.get(out, 40, "u8").tolist() == list(range(40))


def test_guarded_alloca_leaves_the_others_alone(ptx_device):
    functions = ptx_device.load(
        kernel(
            """
            setp.lt.u32 p, t, 3; mov.u64 a, 77;
            @p alloca.u64 a, 16, 16;
            @p mov.u64 a, 5;
            alloca.u64 b, 8, 16; alloca.u64 c, 8, 16; sub.u64 b, c, b; mad.lo.u64 a, b, 100, a;
            st.global.u64 [o], a;"""
        )
    ).functions
    out = ptx_device.zeros(5, "u8")
    ptx_device.run(functions["k"], 1, 5, out)
    assert ptx_device.get(out, 5, "u8").tolist() == [1605, 1605, 1605, 1677, 1677]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("alloca.u64 a, 0xFFFFFFFFFFFFFFFF;", "stack overflow"),
        ("alloca.u64 a, 1048576;", "stack overflow"),
        ("stackrestore.u64 4096;", "stackrestore of 0x1000, which stacksave did not give"),
    ],
)
def test_stack_misuse_ends_the_launch(ptx_device, body, message):
    functions = ptx_device.load(kernel(body)).functions
    with pytest.raises(CudaAsyncError, match=message):
        ptx_device.run(functions["k"], 1, 32, ptx_device.zeros(32, "u8"))


def test_alignment_is_a_constant_power_of_two(ptx_device):
    functions = ptx_device.load(kernel("alloca.u64 a, n, 12;")).functions
    with pytest.raises(CompileError, match="the alignment is a constant, a power of two"):
        functions["k"].prepare()


# --------------------------------------------------------------------------------- the heap


def test_each_thread_has_its_own_memory(ptx_device):
    functions = ptx_device.cuda(
        """
        extern "C" __global__ void k(int* o, int n) {
            int t = threadIdx.x;
            int* p = (int*)malloc(4 * n * (t + 1));
            for (int i = 0; i < n * (t + 1); ++i) p[i] = i * t;
            __syncthreads();
            int s = 0;
            for (int i = 0; i < n * (t + 1); ++i) s += p[i];
            o[t] = (unsigned long long)p % 16 ? -1 : s;
            if (t != 3) free(p);
            int* q = new int(t);
            o[t] += *q;
            delete q;
        }"""
    )
    before = ptx_device.memory.unreserved_bytes
    out = ptx_device.zeros(40, "i4")
    after = ptx_device.memory.unreserved_bytes
    ptx_device.run(functions["k"], 1, 40, out, 5)
    expected = [t * sum(range(5 * (t + 1))) + t for t in range(40)]
    assert ptx_device.get(out, 40, "i4").tolist() == expected
    assert ptx_device.memory.unreserved_bytes == after - 256  # what thread 3 kept
    ptx_device.modules[-1].unload()
    assert before > after == ptx_device.memory.unreserved_bytes


def test_memory_outlives_the_launch(ptx_device):
    functions = ptx_device.cuda(
        """
        __device__ int* kept;
        extern "C" __global__ void first() { kept = (int*)malloc(4); *kept = 42; }
        extern "C" __global__ void second(int* o) { o[0] = *kept; free(kept); free(nullptr); }"""
    )
    out = ptx_device.zeros(1, "i4")
    ptx_device.run(functions["first"], 1, 1)
    ptx_device.run(functions["second"], 1, 1, out)
    assert ptx_device.get(out, 1, "i4")[0] == 42
    with pytest.raises(CudaAsyncError, match="freed"):
        ptx_device.run(functions["second"], 1, 1, out)


def test_a_full_heap_gives_null(ptx_device):
    functions = ptx_device.cuda(
        """
        extern "C" __global__ void k(int* o) { o[threadIdx.x] = malloc(1 << 20) != nullptr; }
        extern "C" __global__ void huge(int* o) { o[0] = malloc(-1ull) != nullptr; }"""
    )
    out = ptx_device.zeros(32, "i4")
    ptx_device.run(functions["k"], 1, 32, out)
    assert ptx_device.get(out, 32, "i4").sum() == 8  # of 8 MiB
    ptx_device.run(functions["huge"], 1, 1, out)
    assert ptx_device.get(out, 1, "i4")[0] == 0


def test_free_of_something_else_ends_the_launch(ptx_device):
    functions = ptx_device.cuda('extern "C" __global__ void k(int* o) { free(o); }')
    with pytest.raises(CudaAsyncError, match="which this module's malloc did not return"):
        ptx_device.run(functions["k"], 1, 1, ptx_device.zeros(1, "i4"))


def test_access_behind_the_memory_is_a_fault(ptx_device):
    functions = ptx_device.cuda(
        'extern "C" __global__ void k(int* o) { int* p = (int*)malloc(8); o[0] = p[2]; free(p); }'
    )
    with pytest.raises(CudaAsyncError, match="out of bounds"):
        ptx_device.run(functions["k"], 1, 1, ptx_device.zeros(1, "i4"))
