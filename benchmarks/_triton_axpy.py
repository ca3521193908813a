"""The benchmark kernel in Triton, in a file of its own because its import is optional."""

import triton
import triton.language as tl


@triton.jit
def axpy(n, a, x_address, y_address, block: tl.constexpr):
    """y[i] += a * x[i]"""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < n
    x = tl.load(x_address + i, mask=inside)
    y = tl.load(y_address + i, mask=inside)
    tl.store(y_address + i, y + a * x, mask=inside)
