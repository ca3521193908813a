"""The kernels themselves: `@tk.kernel` functions to launch with tiles of your choice, or to copy and change.

Outputs come first: partitions, of which each block computes one tile, or whole tensors given as `ca.mut(t)`, where the
docstring says so and gives the grid. Where a function needs two kernels, the second one may begin while the first ends,
if it is launched with `programmatic_dependent_launch`, and waits for what that writes.
"""

from ._attention import attention
from ._decode import attention_decode, combine_shares, update_cache
from ._elementwise import activation, add, mul, saxpy, silu_mul
from ._long_rows import long_layer_norm, long_rms_norm, long_softmax, softmax_of_shares, softmax_shares
from ._loss import cross_entropy, reduce_losses
from ._matmul import (
    batched_matmul,
    batched_matmul_persistent,
    matmul,
    matmul_epilogue,
    matmul_pair,
    matmul_persistent,
    matmul_split_k,
    matmul_stationary,
    matvec,
    sum_splits,
)
from ._normalise import (
    add_layer_norm,
    add_rms_norm,
    layer_norm,
    persistent_add_layer_norm,
    persistent_add_rms_norm,
    persistent_layer_norm,
    persistent_rms_norm,
    persistent_row_softmax,
    rms_norm,
    row_softmax,
)
from ._positions import rotary, rotary_in_place
from ._random import dropout
from ._rows import batched_transpose, embedding, mean_pool, transpose
from ._sampling import argmax_chunks, argmax_of_chunks, sample_candidates, top_k_chunks

__all__ = [
    "activation",
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "argmax_chunks",
    "argmax_of_chunks",
    "attention",
    "attention_decode",
    "batched_matmul",
    "batched_matmul_persistent",
    "batched_transpose",
    "combine_shares",
    "cross_entropy",
    "dropout",
    "embedding",
    "layer_norm",
    "long_layer_norm",
    "long_rms_norm",
    "long_softmax",
    "matmul",
    "matmul_epilogue",
    "matmul_pair",
    "matmul_persistent",
    "matmul_split_k",
    "matmul_stationary",
    "matvec",
    "mean_pool",
    "mul",
    "persistent_add_layer_norm",
    "persistent_add_rms_norm",
    "persistent_layer_norm",
    "persistent_rms_norm",
    "persistent_row_softmax",
    "reduce_losses",
    "rms_norm",
    "rotary",
    "rotary_in_place",
    "row_softmax",
    "sample_candidates",
    "saxpy",
    "silu_mul",
    "softmax_of_shares",
    "softmax_shares",
    "sum_splits",
    "top_k_chunks",
    "transpose",
    "update_cache",
]
