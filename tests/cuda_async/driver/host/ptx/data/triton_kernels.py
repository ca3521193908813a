"""Triton kernels whose PTX is committed beside this file; make_ptx.py says how it was made."""

import triton
import triton.language as tl


@triton.jit
def softmax(out, x, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + column, mask=column < columns, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride + column, e / tl.sum(e, axis=0), mask=column < columns)


@triton.jit
def layer_norm(x, out, weight, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * n + column, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, v - tl.sum(v) / n, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred) / n + eps)
    w = tl.load(weight + column, mask=inside)
    tl.store(out + row * n + column, (centred * scale * w).to(tl.float16), mask=inside)


@triton.jit
def scan_and_count(x, out, bins, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_add(bins + v % 16, 1, mask=i < n)
    tl.store(out + i, tl.sort(tl.cumsum(v, axis=0)), mask=i < n)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        at = k + step * BK
        left = tl.load(a + m[:, None] * K + at[None, :], mask=(m[:, None] < M) & (at[None, :] < K), other=0.0)
        right = tl.load(
            b + at[:, None] * N + n[None, :], mask=(at[:, None] < K) & (n[None, :] < N), other=0.0
        )
        total += tl.dot(left, right)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


MATMUL = {"a": "*{0}", "b": "*{0}", "c": "*fp32", "M": "i32", "N": "i32", "K": "i32"}
TILES = {"BM": 64, "BN": 64, "BK": 32}
BUILDS = {
    # file -> (kernel, architecture, types of the arguments, constants)
    "triton_softmax.ptx": (
        softmax,
        80,
        {"out": "*fp32", "x": "*fp32", "stride": "i32", "columns": "i32"},
        {"BLOCK": 1024},
    ),
    "triton_layer_norm.ptx": (
        layer_norm,
        80,
        {"x": "*fp16", "out": "*fp16", "weight": "*fp32", "n": "i32", "eps": "fp32"},
        {"BLOCK": 512},
    ),
    "triton_scan_and_count.ptx": (
        scan_and_count,
        80,
        {"x": "*i32", "out": "*i32", "bins": "*i32", "n": "i32"},
        {"BLOCK": 256},
    ),
    "triton_matmul_f16_sm80.ptx": (matmul, 80, {k: v.format("fp16") for k, v in MATMUL.items()}, TILES),
    "triton_matmul_bf16_sm90.ptx": (matmul, 90, {k: v.format("bf16") for k, v in MATMUL.items()}, TILES),
    "triton_matmul_f32_sm90.ptx": (matmul, 90, {k: v.format("fp32") for k, v in MATMUL.items()}, TILES),
}


def ptx(name: str) -> str:
    """Compile one of the builds; needs no GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, architecture, types, constants = BUILDS[name]
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
    shared = f"// dynamic shared memory: {compiled.metadata.shared} bytes\n"
    return shared + compiled.asm["ptx"]
