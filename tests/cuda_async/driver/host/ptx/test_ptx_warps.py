"""Exchange inside warps, against a lane-by-lane model of the manual's pseudo-code."""

from __future__ import annotations

import numpy as np
import pytest

RANDOM = np.random.default_rng(5)
HEADER = ".version 7.8\n.target sm_80\n.address_size 64\n"


def warp_kernel(body: str, registers: str = "", arch: str = "sm_80") -> str:
    """An entry `k(in, out)`: %v is in[i] of thread i of all blocks; %o goes to out[i]."""
    return f"""{HEADER.replace("sm_80", arch)}
.visible .entry k(.param .u64 in, .param .u64 out)
{{
    .reg .b32 %v, %o, %t, %n, %c, %lane;
    .reg .b64 %a, %b, %i;
    .reg .pred %p, %q;
    {registers}
    mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %c, %ctaid.x; mov.u32 %lane, %laneid;
    mad.lo.u32 %t, %c, %n, %t;
    mul.wide.u32 %i, %t, 4;
    ld.param.u64 %a, [in]; ld.param.u64 %b, [out];
    add.u64 %a, %a, %i; add.u64 %b, %b, %i;
    ld.global.b32 %v, [%a];
    mov.u32 %o, 0;
    {body}
    st.global.b32 [%b], %o;
    ret;
}}
"""


def run(ptx_device, text: str, values: np.ndarray, block: int = 64) -> np.ndarray:
    functions = ptx_device.load(text).functions
    out = ptx_device.zeros(values.shape, "u4")
    ptx_device.run(functions["k"], values.size // block, block, ptx_device.put(values), out)
    return ptx_device.get(out, values.shape, "u4")


def shuffle_model(mode: str, values: np.ndarray, b: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    """PTX ISA, "shfl.sync": one warp, lane by lane."""
    result, in_range = np.empty_like(values), np.empty(32, bool)
    for lane in range(32):
        bval, cval, segmask = b & 31, c & 31, c >> 8 & 31
        max_lane = lane & segmask | cval & ~segmask
        min_lane = lane & segmask
        if mode == "up":
            j = lane - bval
            p = j >= max_lane
        elif mode == "down":
            j = lane + bval
            p = j <= max_lane
        elif mode == "bfly":
            j = lane ^ bval
            p = j <= max_lane
        else:
            j = min_lane | (bval & ~segmask)
            p = j <= max_lane
        result[lane] = values[j if p else lane]
        in_range[lane] = p
    return result, in_range


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize(("b", "c"), [(1, 31), (5, 0x1F), (3, 0x181F), (16, 31), (2, 0x1C03), (7, 0)])
def test_shuffles(ptx_device, mode, b, c):
    body = f"""
        shfl.sync.{mode}.b32 %o|%p, %v, {b}, {c}, 0xffffffff;
        @!%p add.u32 %o, %o, 1000000;"""
    values = RANDOM.integers(0, 1000, 96).astype("u4")
    result = run(ptx_device, warp_kernel(body), values, 96)
    for warp in range(3):
        expected, in_range = shuffle_model(mode, values[32 * warp : 32 * warp + 32], b, c)
        np.testing.assert_array_equal(
            result[32 * warp : 32 * warp + 32], expected + np.where(in_range, 0, 1000000)
        )


def test_shuffle_with_a_lane_for_each_thread(ptx_device):
    body = """
        xor.b32 %t, %v, 21;
        shfl.sync.idx.b32 %o, %v, %t, 31, -1;"""
    values = RANDOM.integers(0, 1 << 20, 128).astype("u4")
    result = run(ptx_device, warp_kernel(body), values)
    warps = values.reshape(-1, 32)
    expected = np.take_along_axis(warps, ((warps ^ 21) & 31).astype(int), axis=1)
    np.testing.assert_array_equal(result, expected.reshape(-1))


def test_votes(ptx_device):
    body = """
        .reg .b32 %x;
        and.b32 %x, %v, 1; setp.ne.u32 %p, %x, 0;
        vote.sync.ballot.b32 %o, %p, 0xffffffff;
        vote.sync.all.pred %q, %p, 0xffffffff; @%q add.u32 %o, %o, 1;
        vote.sync.any.pred %q, %p, 0xffffffff; @%q add.u32 %o, %o, 2;
        vote.sync.uni.pred %q, !%p, 0xffffffff; @%q add.u32 %o, %o, 4;"""
    values = RANDOM.integers(0, 9, (5, 32)).astype("u4")
    values[1], values[2] = 1, 2
    result = run(ptx_device, warp_kernel(body), values, 32)
    odd = values & 1 == 1
    ballot = (odd << np.arange(32)).sum(axis=1)
    expected = ballot + odd.all(1) + 2 * odd.any(1) + 4 * (odd.all(1) | ~odd.any(1))
    np.testing.assert_array_equal(result, np.repeat((expected & 0xFFFFFFFF)[:, None], 32, axis=1))


def test_match_finds_equal_lanes(ptx_device):
    body = "match.any.sync.b32 %o, %v, 0xffffffff;"
    values = RANDOM.integers(0, 5, (4, 32)).astype("u4")
    result = run(ptx_device, warp_kernel(body), values, 32)
    expected = ((values[:, :, None] == values[:, None, :]) * (1 << np.arange(32, dtype="u8"))).sum(axis=2)
    np.testing.assert_array_equal(result, expected)


def test_match_all(ptx_device):
    body = """
        match.all.sync.b32 %o|%p, %v, 0xffffffff;
        @%p sub.u32 %o, %o, 7;"""
    values = np.repeat(RANDOM.integers(0, 5, (3, 1)).astype("u4"), 32, axis=1)
    values[1, 9] += 1
    result = run(ptx_device, warp_kernel(body), values, 32)
    np.testing.assert_array_equal(result[:, 0], [0xFFFFFFFF - 7, 0, 0xFFFFFFFF - 7])


@pytest.mark.parametrize(
    ("operation", "reduce"),
    [
        ("add.u32", lambda x: x.sum(axis=1, dtype="u4")),
        ("min.s32", lambda x: x.view("i4").min(axis=1).view("u4")),
        ("max.s32", lambda x: x.view("i4").max(axis=1).view("u4")),
        ("min.u32", lambda x: x.min(axis=1)),
        ("max.u32", lambda x: x.max(axis=1)),
        ("and.b32", lambda x: np.bitwise_and.reduce(x, axis=1)),
        ("or.b32", lambda x: np.bitwise_or.reduce(x, axis=1)),
        ("xor.b32", lambda x: np.bitwise_xor.reduce(x, axis=1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_warp_reductions_of_half_warps(ptx_device, operation, reduce):
    """The two halves of a warp name their own lanes only."""
    body = f"""
        .reg .b32 %m, %h;
        shr.u32 %h, %lane, 4; shl.b32 %h, %h, 4; mov.u32 %m, 0xffff; shl.b32 %m, %m, %h;
        redux.sync.{operation} %o, %v, %m;"""
    values = RANDOM.integers(0, 1 << 32, (6, 16), dtype="u4")
    result = run(ptx_device, warp_kernel(body), values, 32)
    np.testing.assert_array_equal(result, np.repeat(reduce(values)[:, None], 16, axis=1))


def test_active_mask_in_a_branch(ptx_device):
    body = """
        setp.lt.u32 %p, %v, 50;
        @!%p bra skip;
        activemask.b32 %o;
    skip:"""
    values = RANDOM.integers(0, 100, (4, 32)).astype("u4")
    result = run(ptx_device, warp_kernel(body), values, 32)
    mask = ((values < 50) << np.arange(32)).sum(axis=1)[:, None]
    np.testing.assert_array_equal(result, np.where(values < 50, mask, 0))


def test_elect_picks_the_lowest_lane(ptx_device):
    body = """
        .reg .b32 %m;
        setp.ge.u32 %p, %lane, 8;
        @!%p bra low;
        elect.sync %o|%q, 0xffffff00;
        bra done;
    low:
        elect.sync %o|%q, 0x000000ff;
    done:
        @%q add.u32 %o, %o, 100;"""
    result = run(ptx_device, warp_kernel(body, arch="sm_90"), np.zeros(32, "u4"), 32)
    expected = np.where(np.arange(32) >= 8, 8, 0)
    expected[[0, 8]] += 100
    np.testing.assert_array_equal(result, expected)


def test_shuffle_waits_for_lanes_on_another_way(ptx_device):
    """Lanes leave a loop at different times; those that are out wait for the lanes their mask names."""
    body = """
        mov.u32 %n, 0;
    again:
        add.u32 %n, %n, 1;
        setp.lt.u32 %p, %n, %v;
        @%p bra again;
        shfl.sync.bfly.b32 %o, %n, 1, 31, 0xffffffff;"""
    values = RANDOM.integers(1, 30, (3, 64)).astype("u4")
    result = run(ptx_device, warp_kernel(body), values)
    expected = values.reshape(-1, 2)[:, ::-1].reshape(3, 64)
    np.testing.assert_array_equal(result, expected)


def test_guarded_shuffle(ptx_device):
    body = """
        setp.lt.u32 %p, %lane, 16;
        @%p shfl.sync.down.b32 %o, %v, 1, 15, 0xffff;"""
    values = RANDOM.integers(0, 99, (2, 32)).astype("u4")
    result = run(ptx_device, warp_kernel(body), values, 32)
    expected = np.zeros_like(values)
    expected[:, :15], expected[:, 15] = values[:, 1:16], values[:, 15]
    np.testing.assert_array_equal(result, expected)


def test_special_registers_of_lanes(ptx_device):
    body = """
        .reg .b32 %x;
        mov.u32 %o, %lanemask_lt; mov.u32 %x, %lanemask_ge; add.u32 %o, %o, %x;
        mov.u32 %x, %lanemask_eq; sub.u32 %o, %o, %x; mov.u32 %x, %warpid; add.u32 %o, %o, %x;
        mov.u32 %x, %nwarpid; mad.lo.u32 %o, %x, 100, %o;"""
    result = run(ptx_device, warp_kernel(body), np.zeros(192, "u4"), 96)
    lane, warp = np.arange(192) % 32, np.arange(192) % 96 // 32
    expected = 0xFFFFFFFF - (1 << lane) + warp + 300
    np.testing.assert_array_equal(result, expected & 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("shape", "types", "make"),
    [
        ((16, 8, 16), "f32.f16.f16.f32", lambda *s: RANDOM.standard_normal(s).astype("f2")),
        ((16, 8, 8), "f32.f16.f16.f32", lambda *s: RANDOM.standard_normal(s).astype("f2")),
        ((16, 8, 8), "f32.tf32.tf32.f32", lambda *s: RANDOM.integers(-99, 99, s).astype("f4")),
        ((16, 8, 32), "s32.s8.s8.s32", lambda *s: RANDOM.integers(-128, 127, s).astype("i1")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_matrix_multiply(ptx_device, shape, types, make):
    """Fragments are laid out element by element as PTX ISA's figures have them."""
    m, n, k = shape
    a, b = make(m, k), make(k, n)
    per = 4 // a.itemsize
    lane = np.arange(32)
    g, t = lane // 4, lane % 4
    a_fragment = np.empty((32, m * k // 32), a.dtype)
    for i in range(a_fragment.shape[1]):
        row = g + 8 * (i // per % 2)
        column = t * per + i % per + 4 * per * (i // (2 * per))
        a_fragment[:, i] = a[row, column]
    b_fragment = np.empty((32, n * k // 32), b.dtype)
    for i in range(b_fragment.shape[1]):
        b_fragment[:, i] = b[t * per + i % per + 4 * per * (i // per), g]
    a_words, b_words = a_fragment.view("u4"), b_fragment.view("u4")
    ra, rb = a_words.shape[1], b_words.shape[1]
    names_a = ", ".join(f"%r{i}" for i in range(ra))
    names_b = ", ".join(f"%r{ra + i}" for i in range(rb))
    loads = "".join(f"ld.global.b32 %r{i}, [%a+{128 * i}];" for i in range(ra + rb))
    stores = "".join(f"st.global.b32 [%b+{128 * i}], %d{i};" for i in range(4))
    text = f"""{HEADER}
.visible .entry k(.param .u64 in, .param .u64 out)
{{
    .reg .b32 %r<{ra + rb}>, %d<4>, %t; .reg .b64 %a, %b, %i;
    mov.u32 %t, %tid.x; mul.wide.u32 %i, %t, 4;
    ld.param.u64 %a, [in]; ld.param.u64 %b, [out]; add.u64 %a, %a, %i; add.u64 %b, %b, %i;
    {loads}
    mov.b32 %d0, 0; mov.b32 %d1, 0; mov.b32 %d2, 0; mov.b32 %d3, 0;
    mma.sync.aligned.m{m}n{n}k{k}.row.col.{types}
        {{%d0, %d1, %d2, %d3}}, {{{names_a}}}, {{{names_b}}}, {{%d0, %d1, %d2, %d3}};
    {stores}
    ret;
}}"""
    functions = ptx_device.load(text).functions
    out = ptx_device.zeros((4, 32), "u4")
    ptx_device.run(functions["k"], 1, 32, ptx_device.put(np.concatenate([a_words, b_words], axis=1).T), out)
    dtype = "i4" if types.startswith("s32") else "f4"
    got = ptx_device.get(out, (4, 32), dtype)
    result = np.empty((m, n), dtype)
    for i in range(4):
        result[g + 8 * (i // 2), 2 * t + i % 2] = got[i]
    np.testing.assert_allclose(result, a.astype("f8") @ b.astype("f8"), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_through_shared_memory(ptx_device, transposed):
    trans = ".trans" if transposed else ""
    text = f"""{HEADER.replace("sm_80", "sm_90")}
.visible .entry k(.param .u64 in, .param .u64 out)
{{
    .shared .align 16 .b8 s[1024];
    .reg .b32 %r<4>, %t, %x; .reg .b64 %a, %b, %i;
    mov.u32 %t, %tid.x; mul.wide.u32 %i, %t, 16;
    ld.param.u64 %a, [in]; ld.param.u64 %b, [out]; add.u64 %a, %a, %i; add.u64 %b, %b, %i;
    ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%a];
    mov.u32 %x, s; mad.lo.u32 %x, %t, 16, %x;
    st.shared.v4.b32 [%x], {{%r0, %r1, %r2, %r3}};
    bar.warp.sync 0xffffffff;
    ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r0, %r1, %r2, %r3}}, [%x];
    stmatrix.sync.aligned.m8n8.x4.shared.b16 [%x+512], {{%r0, %r1, %r2, %r3}};
    bar.warp.sync 0xffffffff;
    ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%x+512];
    st.global.v4.b32 [%b], {{%r0, %r1, %r2, %r3}};
    ret;
}}"""
    functions = ptx_device.load(text).functions
    matrices = RANDOM.integers(0, 1 << 16, (4, 8, 8)).astype("u2")
    out = ptx_device.zeros((4, 8, 8), "u2")
    ptx_device.run(functions["k"], 1, 32, ptx_device.put(matrices), out)
    expected = matrices.transpose(0, 2, 1) if transposed else matrices
    np.testing.assert_array_equal(ptx_device.get(out, (4, 8, 8), "u2"), expected)
