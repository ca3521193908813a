"""Kernels in Python, compiled by Numba; `python numba_kernels.py` writes the PTX beside it.

It took Numba-CUDA 0.30 with NVVM 13.5; no GPU.
"""

from __future__ import annotations

import math
from pathlib import Path

from numba import cuda, float32, float64, int32, void

HERE = Path(__file__).parent


def matmul(a, b, c):
    tile_a = cuda.shared.array((8, 8), float32)
    tile_b = cuda.shared.array((8, 8), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for i in range((a.shape[1] + 7) // 8):
        tile_a[ty, tx] = 0
        tile_b[ty, tx] = 0
        if y < a.shape[0] and tx + i * 8 < a.shape[1]:
            tile_a[ty, tx] = a[y, tx + i * 8]
        if x < b.shape[1] and ty + i * 8 < b.shape[0]:
            tile_b[ty, tx] = b[ty + i * 8, x]
        cuda.syncthreads()
        for j in range(8):
            total += tile_a[ty, j] * tile_b[j, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


def mixture(x, out, histogram):
    i = cuda.grid(1)
    if i >= x.size:
        return
    v = x[i]
    total, k = 0.0, 0
    while k < 20:
        k += 1
        if k % 3 == 0:
            continue
        if total > 50:
            break
        total += math.exp(v) * k // 1.5 - (k % -4) + v**3
    z = complex(v, 1.0) ** 2
    out[i] = total + z.real * z.imag + math.erf(v) + abs(z) + (int(v * 100) // 7) + (int(v * 100) % -7)
    cuda.atomic.add(histogram, int(abs(v) * 4) & 7, 1)
    cuda.atomic.max(histogram, 8, int(v * 100))
    multiples = cuda.local.array(10, int32)
    for q in range(10):
        multiples[q] = q * i
    out[i] += multiples[i % 10]
    third = cuda.shfl_sync(0xFFFFFFFF, i, 3)
    if cuda.laneid == 0:
        out[i] += third


SIGNATURES = {
    matmul: void(float32[:, :], float32[:, :], float32[:, :]),
    mixture: void(float64[:], float64[:], int32[:]),
}

if __name__ == "__main__":
    for function, signature in SIGNATURES.items():
        ptx, _ = cuda.compile(function, signature, cc=(8, 0), device=False, abi="numba", output="ptx")
        text = ptx if isinstance(ptx, str) else ptx.decode()
        (HERE / f"numba_{function.__name__}.ptx").write_text(text)
