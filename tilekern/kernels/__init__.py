"""A library of tile kernels, for float16, bfloat16 and float32 and any size.

Each function checks its operands, picks tiles and hints for the device, and returns an operation that yields the
result: `y = await tk.kernels.softmax(x)`. Operands are tensors or operations that yield them, so calls nest:
`k.linear(k.rms_norm(x, w1), w2)`. `out=` says where a result goes, which a captured graph wants.

Layout: `raw` has the kernels, one file per family, to launch with other tiles or to copy; here are functions of
the same families. `_plans.py` has the tiles and hints of matrix products and attention.
"""

from . import raw
from ._attention import attention, attention_decode, rotary, rotary_tables, update_cache
from ._elementwise import add, dropout, gelu, mul, silu_mul
from ._matmul import batched_matmul, linear, matmul, matvec
from ._normalise import add_layer_norm, add_rms_norm, layer_norm, rms_norm, softmax
from ._rows import embedding, mean_pool, transpose
from ._sampling import argmax, cross_entropy, sample_top_k

__all__ = [
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "argmax",
    "attention",
    "attention_decode",
    "batched_matmul",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "matmul",
    "matvec",
    "mean_pool",
    "mul",
    "raw",
    "rms_norm",
    "rotary",
    "rotary_tables",
    "sample_top_k",
    "silu_mul",
    "softmax",
    "transpose",
    "update_cache",
]
