"""atom and red: as if the lanes of an instruction ran one after another."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

RANDOM = np.random.default_rng(13)
HEADER = ".version 8.6\n.target sm_90\n.address_size 64\n"
BITS = {"u32": 32, "s32": 32, "b32": 32, "f32": 32, "u64": 64, "s64": 64, "b64": 64, "f64": 64, "b16": 16}
NUMPY = {
    "u32": "u4",
    "s32": "i4",
    "b32": "u4",
    "f32": "f4",
    "u64": "u8",
    "s64": "i8",
    "b64": "u8",
    "f64": "f8",
}


def kernel(operation: str, ptx_type: str, space: str, operands: int, guard: str = "") -> str:
    """out[i] = atom(memory[at[i]], b[i], c[i]); memory is copied to shared memory and back for that space."""
    bits = BITS[ptx_type]
    size = bits // 8
    sources = ", ".join(["%b", "%c"][:operands])
    base = "s" if space == "shared" else ""
    address = "%sa" if space == "shared" else "%ga"
    copy = f"""
        setp.lt.u32 %p, %t, 64; @%p ld.global.b{bits} %x, [%ma]; @%p st.shared.b{bits} [%st], %x; bar.sync 0;"""
    back = f"""
        bar.sync 0; @%p ld.shared.b{bits} %x, [%st]; @%p st.global.b{bits} [%ma], %x;"""
    return f"""{HEADER}
.visible .entry k(.param .u64 memory, .param .u64 at, .param .u64 bs, .param .u64 cs, .param .u64 out)
{{
    .shared .align 8 .b8 s[{64 * size}];
    .reg .b{bits} %x, %b, %c; .reg .b32 %t, %at, %sa, %st, %q; .reg .b64 %m, %ga, %ma, %i, %w, %a<5>; .reg .pred %p, %g;
    ld.param.u64 %m, [memory]; ld.param.u64 %a1, [at]; ld.param.u64 %a2, [bs]; ld.param.u64 %a3, [cs];
    ld.param.u64 %a4, [out];
    mov.u32 %t, %tid.x; mul.wide.u32 %i, %t, 4; mul.wide.u32 %w, %t, {size};
    add.u64 %a1, %a1, %i; add.u64 %a2, %a2, %w; add.u64 %a3, %a3, %w; add.u64 %a4, %a4, %w; add.u64 %ma, %m, %w;
    ld.global.u32 %at, [%a1]; ld.global.b{bits} %b, [%a2]; ld.global.b{bits} %c, [%a3];
    mul.wide.u32 %ga, %at, {size}; add.u64 %ga, %ga, %m;
    mov.u32 %st, s; mad.lo.u32 %sa, %at, {size}, %st; mad.lo.u32 %st, %t, {size}, %st;
    and.b32 %q, %t, 3; setp.ne.u32 %g, %q, 0;
    {copy if base else ""}
    mov.b{bits} %x, 0;
    {guard} atom.{space}.{operation}.{ptx_type} %x, [{address}], {sources};
    st.global.b{bits} [%a4], %x;
    {back if base else ""}
    ret;
}}"""


def model(operation: str, old, b, c):
    with np.errstate(over="ignore"):
        match operation:
            case "add":
                return old + b
            case "min":
                return min(old, b)
            case "max":
                return max(old, b)
            case "and":
                return old & b
            case "or":
                return old | b
            case "xor":
                return old ^ b
            case "exch":
                return b
            case "cas":
                return c if old == b else old
            case "inc":
                return type(old)(0) if old >= b else old + type(old)(1)
            case "dec":
                return b if old == 0 or old > b else old - type(old)(1)
    raise AssertionError(operation)


CASES = [
    *[("add", t) for t in ("u32", "s32", "u64", "s64", "f32", "f64")],
    *[(op, t) for op in ("min", "max") for t in ("u32", "s32", "u64", "s64")],
    *[(op, t) for op in ("and", "or", "xor", "exch", "cas") for t in ("b32", "b64")],
    ("inc", "u32"),
    ("dec", "u32"),
]


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("operation", "ptx_type"), CASES, ids=[f"{o}-{t}" for o, t in CASES])
def test_results_are_those_of_a_sequence(ptx_device, operation, ptx_type, space):
    """Addresses hit once, a few times, and very often."""
    dtype = np.dtype(NUMPY[ptx_type])
    at = np.concatenate([np.full(90, 5), np.repeat(np.arange(10, 20), 8), RANDOM.integers(20, 64, 86)])
    RANDOM.shuffle(at)
    if dtype.kind == "f":
        memory, b, c = (RANDOM.standard_normal(n).astype(dtype) for n in (64, 256, 256))
    else:
        small = operation in ("cas", "inc", "dec")
        low, high = (0, 5) if small else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        memory, b, c = (RANDOM.integers(low, high, n, dtype=dtype) for n in (64, 256, 256))
    on_memory, out = ptx_device.put(memory), ptx_device.zeros(256, dtype)
    functions = ptx_device.load(
        kernel(operation, ptx_type, space, 2 if operation == "cas" else 1, "@%g")
    ).functions
    ptx_device.run(
        functions["k"],
        1,
        256,
        on_memory,
        ptx_device.put(at.astype("u4")),
        ptx_device.put(b),
        ptx_device.put(c),
        out,
    )
    olds = np.zeros(256, dtype)
    for lane in range(256):
        if lane & 3:
            olds[lane] = memory[at[lane]]
            memory[at[lane]] = model(operation, memory[at[lane]], b[lane], c[lane])
    np.testing.assert_array_equal(ptx_device.get(out, 256, dtype), olds)
    np.testing.assert_array_equal(ptx_device.get(on_memory, 64, dtype), memory)


@pytest.mark.parametrize(
    ("ptx_type", "dtype"), [("f16x2", np.dtype("f2")), ("bf16x2", np.dtype(ml_dtypes.bfloat16))]
)
def test_packed_halves(ptx_device, ptx_type, dtype):
    text = f"""{HEADER}
.visible .entry k(.param .u64 memory, .param .u64 x)
{{
    .reg .b32 %r<3>; .reg .b64 %a<3>, %i;
    ld.param.u64 %a1, [memory]; ld.param.u64 %a2, [x];
    mov.u32 %r1, %tid.x; mul.wide.u32 %i, %r1, 4; add.u64 %a2, %a2, %i;
    and.b32 %r1, %r1, 1; mul.wide.u32 %i, %r1, 4; add.u64 %a1, %a1, %i;
    ld.global.b32 %r2, [%a2];
    red.global.add.noftz.{ptx_type} [%a1], %r2;
    ret;
}}"""
    x = RANDOM.integers(-8, 8, (32, 2, 2)).astype("f4").astype(dtype)
    memory = ptx_device.zeros(2, "u4")
    functions = ptx_device.load(text).functions
    ptx_device.run(functions["k"], 1, 64, memory, ptx_device.put(x.view("u2")))
    got = ptx_device.get(memory, 4, "u2").view(dtype).astype("f8").reshape(2, 2)
    np.testing.assert_array_equal(got, x.astype("f8").sum(axis=0))


def test_vectors_of_floats(ptx_device):
    text = f"""{HEADER}
.visible .entry k(.param .u64 memory)
{{
    .reg .b32 %t; .reg .f32 %f; .reg .b64 %a;
    ld.param.u64 %a, [memory];
    mov.u32 %t, %tid.x; cvt.rn.f32.u32 %f, %t;
    red.global.v2.f32.add [%a], {{%f, 0f3F800000}};
    ret;
}}""".replace("red.global.v2.f32.add", "red.global.add.v2.f32")
    memory = ptx_device.zeros(2, "f4")
    ptx_device.run(ptx_device.load(text).functions["k"], 2, 32, memory)
    assert ptx_device.get(memory, 2, "f4").tolist() == [2 * sum(range(32)), 64]


def test_sixteen_bytes_compare_and_swap(ptx_device):
    text = f"""{HEADER}
.visible .entry k(.param .u64 memory, .param .u64 out)
{{
    .reg .b128 %old, %cmp, %new; .reg .b64 %a, %b, %lo, %hi, %t, %z; .reg .b32 %r; .reg .pred %p;
    ld.param.u64 %a, [memory]; ld.param.u64 %b, [out];
    mov.u32 %r, %tid.x; cvt.u64.u32 %t, %r; mov.u64 %z, 0;
    mov.b128 %cmp, {{%t, %z}};
    add.u64 %lo, %t, 1;
    mov.b128 %new, {{%lo, %z}};
    atom.global.cas.b128 %old, [%a], %cmp, %new;
    mov.b128 {{%lo, %hi}}, %old;
    mad.lo.u64 %b, %t, 8, %b;
    st.global.u64 [%b], %lo;
    ret;
}}"""
    memory, out = ptx_device.zeros(2, "u8"), ptx_device.zeros(32, "u8")
    ptx_device.run(ptx_device.load(text).functions["k"], 1, 32, memory, out)
    assert ptx_device.get(memory, 2, "u8").tolist() == [32, 0]
    assert ptx_device.get(out, 32, "u8").tolist() == list(range(32))


def test_generic_addresses_in_two_spaces(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void both(int* counts, int* out) {
            __shared__ int s[4];
            if (threadIdx.x < 4) s[threadIdx.x] = 0;
            __syncthreads();
            int* p = threadIdx.x % 3 ? counts + threadIdx.x % 4 : s + threadIdx.x % 4;
            atomicAdd(p, threadIdx.x);
            __syncthreads();
            if (threadIdx.x < 4) out[threadIdx.x] = s[threadIdx.x];
        }""")
    counts, out = ptx_device.zeros(4, "i4"), ptx_device.zeros(4, "i4")
    ptx_device.run(functions["both"], 1, 128, counts, out)
    t = np.arange(128)
    in_global = [t[(t % 3 != 0) & (t % 4 == k)].sum() for k in range(4)]
    in_shared = [t[(t % 3 == 0) & (t % 4 == k)].sum() for k in range(4)]
    assert ptx_device.get(counts, 4, "i4").tolist() == in_global
    assert ptx_device.get(out, 4, "i4").tolist() == in_shared
