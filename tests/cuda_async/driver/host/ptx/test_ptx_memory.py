"""Loads, stores and addresses: widths, vectors, spaces, guards."""

from __future__ import annotations

import numpy as np
import pytest

RANDOM = np.random.default_rng(17)
HEADER = ".version 8.8\n.target sm_100\n.address_size 64\n"


def entry(body: str, registers: str = "", parameters: str = ".param .u64 in, .param .u64 out") -> str:
    """`%a` and `%b` are the addresses of in and out; `%t` is the thread."""
    return f"""{HEADER}
.visible .entry k({parameters})
{{
    .reg .b32 %t, %r<9>; .reg .b64 %a, %b, %i, %j, %d<5>; .reg .b16 %h<5>; .reg .pred %p;
    {registers}
    ld.param.u64 %a, [in]; ld.param.u64 %b, [out];
    mov.u32 %t, %tid.x;
    {body}
    ret;
}}"""


def run(ptx_device, text, values, shape, dtype, threads=64, **options) -> np.ndarray:
    out = ptx_device.zeros(shape, dtype)
    ptx_device.run(ptx_device.load(text).functions["k"], 1, threads, ptx_device.put(values), out, **options)
    return ptx_device.get(out, shape, dtype)


@pytest.mark.parametrize(
    ("ptx_type", "dtype", "wide"),
    [
        ("u8", "u1", "u4"),
        ("s8", "i1", "i4"),
        ("u16", "u2", "u4"),
        ("s16", "i2", "i4"),
        ("b8", "u1", "u4"),
        ("s32", "i4", "i8"),
        ("u32", "u4", "u8"),
        ("s16", "i2", "i8"),
    ],
)
def test_narrow_loads_fill_wider_registers(ptx_device, ptx_type, dtype, wide):
    size, wide_size = np.dtype(dtype).itemsize, np.dtype(wide).itemsize
    register = "%r1" if wide_size == 4 else "%d1"
    text = entry(f"""
        mad.wide.u32 %i, %t, {size}, %a; mad.wide.u32 %j, %t, {wide_size}, %b;
        ld.global.{ptx_type} {register}, [%i];
        st.global.b{8 * wide_size} [%j], {register};""")
    limits = np.iinfo(dtype)
    values = RANDOM.integers(limits.min, limits.max, 64, dtype, endpoint=True)
    np.testing.assert_array_equal(run(ptx_device, text, values, 64, wide), values.astype(wide))


SMALL_VECTORS = [(2, 8), (4, 16), (2, 32), (4, 32), (2, 64)]
VECTORS = [(s, *v) for s in ("global", "shared", "local", "generic") for v in SMALL_VECTORS] + [
    (space, *vector) for space in ("global", "generic") for vector in ((8, 32), (4, 64))
]


@pytest.mark.parametrize(("space", "count", "bits"), VECTORS)
def test_vectors(ptx_device, space, count, bits):
    """Written as one vector and read back in pieces, and the other way round."""
    size = count * bits // 8
    bank = {8: "%h", 16: "%h", 32: "%v", 64: "%w"}[bits]
    names = ", ".join(f"{bank}{i}" for i in range(count))
    vector = f"v{count}.b{bits}"
    through = ""
    if space == "shared":
        through = f"mov.u64 %j, s; mad.wide.u32 %j, %t, {size}, %j;"
    if space == "local":
        through = "mov.u64 %j, stack;"
    if through:
        through += f"st.{space}.{vector} [%j], {{{names}}}; ld.{space}.{vector} {{{names}}}, [%j];"
    space_name = "" if space == "generic" else ".global"
    text = entry(
        f"""
        mad.wide.u32 %i, %t, {size}, %a; mad.wide.u32 %j, %t, {size}, %b; mov.u64 %d1, %j;
        ld{space_name}.{vector} {{{names}}}, [%i];
        {through}
        st{space_name}.{vector} [%d1], {{{names}}};""",
        f""".reg .b32 %v<8>; .reg .b64 %w<4>; .shared .align 16 .b8 s[{64 * 16}];
        .local .align 16 .b8 stack[32];""",
    )
    values = RANDOM.integers(0, 256, 64 * size).astype("u1")
    np.testing.assert_array_equal(run(ptx_device, text, values, 64 * size, "u1"), values)


def test_sixteen_byte_registers(ptx_device):
    text = entry(
        """
        mad.wide.u32 %i, %t, 16, %a; mad.wide.u32 %j, %t, 16, %b;
        ld.global.b128 %q, [%i];
        mov.b128 {%d1, %d2}, %q;
        mov.b128 %q, {%d2, %d1};
        st.global.b128 [%j], %q;""",
        ".reg .b128 %q;",
    )
    values = RANDOM.integers(0, 1 << 63, (64, 2)).astype("u8")
    np.testing.assert_array_equal(run(ptx_device, text, values, (64, 2), "u8"), values[:, ::-1])


def test_guarded_accesses_leave_the_rest_alone(ptx_device):
    """Lanes without the predicate neither fault nor change their register."""
    text = entry("""
        setp.lt.u32 %p, %t, 20;
        mul.wide.u32 %i, %t, 4; add.u64 %j, %b, %i;
        @%p add.u64 %i, %i, %a;
        mov.u32 %r1, 7;
        @%p ld.global.u32 %r1, [%i];
        @!%p st.global.u32 [%j], %r1;
        add.u32 %r1, %r1, 1;
        @%p st.global.u32 [%j], %r1;""")
    values = RANDOM.integers(0, 99, 20).astype("u4")
    expected = np.full(64, 7)
    expected[:20] = values + 1
    np.testing.assert_array_equal(run(ptx_device, text, values, 64, "u4"), expected)


def test_pack_and_unpack(ptx_device):
    text = entry("""
        mad.wide.u32 %i, %t, 8, %a; mad.wide.u32 %j, %t, 8, %b;
        ld.global.b64 %d1, [%i];
        mov.b64 {%r1, %r2}, %d1;
        mov.b32 {%h1, %h2}, %r1;
        mov.b64 {%h1, _, %h3, %h4}, %d1;
        mov.b32 %r3, {%h4, %h1};
        mov.b64 %d1, {%r3, %r2};
        st.global.b64 [%j], %d1;""")
    values = RANDOM.integers(0, 1 << 16, (64, 4)).astype("u2")
    result = run(ptx_device, text, values, (64, 4), "u2")
    np.testing.assert_array_equal(result, values[:, [3, 0, 2, 3]])


def test_stores_to_one_address_keep_one_value(ptx_device):
    text = entry("""
        st.global.u32 [%b], %t;
        mov.u32 %r1, 5; st.global.u32 [%b+4], %r1;""")
    assert run(ptx_device, text, np.zeros(1, "u4"), 2, "u4").tolist() == [63, 5]


def test_parameters_indexed_at_run_time(ptx_device):
    text = entry(
        """
        and.b32 %r1, %t, 7;
        mov.b64 %d1, table; mad.wide.u32 %d2, %r1, 4, %d1;
        ld.param.u32 %r2, [%d2];
        cvta.param.u64 %d1, %d1; mad.wide.u32 %d2, %r1, 4, %d1;
        ld.u32 %r3, [%d2];
        cvta.to.param.u64 %d2, %d2;
        ld.param.u32 %r4, [%d2];
        add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4;
        mad.wide.u32 %j, %t, 4, %b; st.global.u32 [%j], %r2;""",
        parameters=".param .u64 in, .param .align 8 .b8 table[32], .param .u64 out",
    )
    table = RANDOM.integers(0, 1000, 8).astype("u4")
    out = ptx_device.zeros(64, "u4")
    ptx_device.run(ptx_device.load(text).functions["k"], 1, 64, 0, table.tobytes(), out)
    np.testing.assert_array_equal(ptx_device.get(out, 64, "u4"), 3 * table[np.arange(64) % 8])


def test_address_of_a_function_parameter(ptx_device):
    """A parameter whose address is taken lives in local memory."""
    text = (
        HEADER
        + """
        .func (.param .b32 r) pick(.param .align 4 .b8 table[16], .param .b32 index) {
            .reg .b32 %i, %v; .reg .b64 %a;
            ld.param.u32 %i, [index];
            mov.b64 %a, table; mad.wide.u32 %a, %i, 4, %a;
            ld.param.u32 %v, [%a];
            st.param.b32 [r], %v;
            ret;
        }"""
        + entry(
            """
            mul.lo.u32 %r1, %t, 10; and.b32 %r2, %t, 3;
            setp.lt.u32 %p, %t, 50; @!%p bra skip;
            { .param .align 4 .b8 p[16]; .param .b32 q; .param .b32 v;
              st.param.v2.b32 [p], {%r1, %t}; st.param.b32 [p+8], 3; st.param.b32 [p+12], 4;
              st.param.b32 [q], %r2;
              call.uni (v), pick, (p, q);
              ld.param.b32 %r3, [v]; }
            mad.wide.u32 %j, %t, 4, %b; st.global.u32 [%j], %r3;
            skip:"""
        ).replace(HEADER, "")
    )
    t = np.arange(64)
    expected = np.choose(t % 4, [10 * t, t, 3, 4])
    np.testing.assert_array_equal(
        run(ptx_device, text, np.zeros(1, "u4"), 64, "u4"), np.where(t < 50, expected, 0)
    )


def test_parameter_bytes_are_reinterpreted(ptx_device):
    """What was stored as one width may be loaded as another."""
    text = (
        HEADER
        + """
        .func (.param .align 8 .b8 r[8]) swap(.param .align 8 .b8 x[8]) {
            .reg .b16 %h<4>; .reg .b32 %w;
            ld.param.b16 %h0, [x]; ld.param.b16 %h1, [x+2]; ld.param.b32 %w, [x+4];
            st.param.b32 [r], %w; st.param.v2.b16 [r+4], {%h1, %h0};
            ret;
        }"""
        + entry("""
            mad.wide.u32 %i, %t, 8, %a; mad.wide.u32 %j, %t, 8, %b;
            ld.global.b64 %d1, [%i];
            { .param .align 8 .b8 p[8]; .param .align 8 .b8 q[8];
              st.param.b64 [p], %d1;
              call.uni (q), swap, (p);
              ld.param.b64 %d1, [q]; }
            st.global.b64 [%j], %d1;""").replace(HEADER, "")
    )
    values = RANDOM.integers(0, 1 << 16, (64, 4)).astype("u2")
    np.testing.assert_array_equal(run(ptx_device, text, values, (64, 4), "u2"), values[:, [2, 3, 1, 0]])


def test_register_parameters(ptx_device):
    text = (
        HEADER
        + """
        .func (.reg .b32 sum) add(.reg .b32 x, .reg .b32 y) { add.u32 sum, x, y; ret; }"""
        + entry("""
            setp.gt.u32 %p, %t, 9; mov.u32 %r1, 5;
            @!%p bra skip;
            call (%r1), add, (%t, %t);
            skip:
            mad.wide.u32 %j, %t, 4, %b; st.global.u32 [%j], %r1;""").replace(HEADER, "")
    )
    t = np.arange(64)
    np.testing.assert_array_equal(
        run(ptx_device, text, np.zeros(1, "u4"), 64, "u4"), np.where(t > 9, 2 * t, 5)
    )


def test_spaces_are_told_apart(ptx_device):
    text = (
        HEADER
        + ".const .u32 c = 1; .global .u32 g = 2;"
        + entry(
            """
            mov.u32 %r2, 0;
            mov.u64 %d0, s; cvta.shared.u64 %d0, %d0;
            mov.u64 %d1, stack; cvta.local.u64 %d1, %d1;
            mov.u64 %d2, c; cvta.const.u64 %d2, %d2;
            mov.u64 %d3, g; cvta.global.u64 %d3, %d3;
            """
            + "".join(
                f"isspacep.{space} %p, %d{i}; @%p add.u32 %r2, %r2, {1 << (4 * row + i)};"
                for row, space in enumerate(("shared", "local", "const", "global"))
                for i in range(4)
            )
            + "mad.wide.u32 %j, %t, 4, %b; st.global.u32 [%j], %r2;",
            ".shared .b32 s; .local .b32 stack;",
        ).replace(HEADER, "")
    )
    result = run(ptx_device, text, np.zeros(1, "u4"), 64, "u4")
    expected = sum(1 << (5 * row) for row in range(4))
    np.testing.assert_array_equal(result, expected)


def test_shared_and_local_memory_are_private(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void mark(int* out) {
            __shared__ int s[64];
            volatile int own[4];
            for (int k = 0; k < 4; k++) own[(k + threadIdx.x) % 4] = blockIdx.x * 1000 + threadIdx.x * 4 + k;
            s[threadIdx.x] = blockIdx.x;
            __syncthreads();
            int sum = s[63 - threadIdx.x] * 1000000;
            for (int k = 0; k < 4; k++) sum += own[(k + threadIdx.x) % 4] * (k == 2);
            out[blockIdx.x * 64 + threadIdx.x] = sum;
        }""")
    out = ptx_device.zeros((300, 64), "i4")
    ptx_device.run(functions["mark"], 300, 64, out)
    block, thread = np.arange(300)[:, None], np.arange(64)[None, :]
    expected = block * 1000000 + block * 1000 + thread * 4 + 2
    np.testing.assert_array_equal(ptx_device.get(out, (300, 64), "i4"), expected)


def test_grids_and_blocks_of_three_axes(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void place(int* out) {
            int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
            int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
            int size = blockDim.x * blockDim.y * blockDim.z;
            out[block * size + thread] = threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z
                + 1000 * blockIdx.x + 10000 * blockIdx.y + 100000 * blockIdx.z;
        }""")
    out = ptx_device.zeros((2, 4, 3, 2, 3, 5), "i4")
    ptx_device.run(functions["place"], (3, 4, 2), (5, 3, 2), out)
    bz, by, bx, tz, ty, tx = np.indices((2, 4, 3, 2, 3, 5))
    expected = tx + 10 * ty + 100 * tz + 1000 * bx + 10000 * by + 100000 * bz
    np.testing.assert_array_equal(ptx_device.get(out, expected.shape, "i4"), expected)


def test_carries_survive_divergence(ptx_device):
    text = entry("""
        mad.wide.u32 %i, %t, 8, %a; mad.wide.u32 %j, %t, 8, %b;
        ld.global.v2.u32 {%r1, %r2}, [%i];
        setp.gt.u32 %p, %t, 30;
        @%p bra other;
        add.cc.u32 %r1, %r1, 0x80000000; addc.u32 %r2, %r2, 0;
        bra done;
        other: sub.cc.u32 %r1, %r1, 0x80000000; subc.u32 %r2, %r2, 1;
        done: st.global.v2.u32 [%j], {%r1, %r2};""")
    values = RANDOM.integers(1 << 40, 1 << 60, 64).astype("u8")
    step = np.where(np.arange(64) > 30, -((1 << 31) + (1 << 32)), 1 << 31)
    np.testing.assert_array_equal(
        run(ptx_device, text, values, 64, "u8"), (values.astype("i8") + step).astype("u8")
    )


def test_elementwise_speed(ptx_device):
    """A million elements within two seconds, in steps of a few milliseconds."""
    from time import perf_counter

    functions = ptx_device.cuda("""
        extern "C" __global__ void gelu(const float* x, float* y, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) {
                float v = x[i];
                y[i] = 0.5f * v * (1.0f + tanhf(0.7978846f * (v + 0.044715f * v * v * v)));
            }
        }""")
    x = RANDOM.standard_normal(1 << 20).astype("f4")
    on_x, y = ptx_device.put(x), ptx_device.zeros(x.size, "f4")
    start = before = perf_counter()
    steps = []
    for _ in ptx_device.steps(functions["gelu"], x.size // 256, 256, on_x, y, x.size):
        now = perf_counter()
        steps.append(now - before)
        before = now
    assert perf_counter() - start < 2
    assert np.median(steps) < 0.002
    wide = x.astype("f8")
    expected = 0.5 * wide * (1 + np.tanh(0.7978846 * (wide + 0.044715 * wide**3)))
    np.testing.assert_allclose(ptx_device.get(y, x.size, "f4"), expected, rtol=2e-5, atol=1e-6)
