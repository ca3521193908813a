"""A call of every function of the library, with operands of zeros."""

import numpy as np

import cuda_async as ca
import tilekern as tk

k = tk.kernels

INTS = ("ids", "lengths", "positions", "counters", "labels")

# The call, the shapes of operands by parameter, and options; where sizes decide, also those that take two kernels.
CALLS = {
    "add": (k.add, {"x": (4, 6), "y": (4, 6), "out": (4, 6)}, {}),
    "mul": (k.mul, {"x": (4, 6), "y": (4, 6), "out": (4, 6)}, {}),
    "gelu": (k.gelu, {"x": (4, 6), "out": (4, 6)}, {}),
    "silu_mul": (k.silu_mul, {"gate": (4, 6), "up": (4, 6), "out": (4, 6)}, {}),
    "dropout": (k.dropout, {"x": (4, 6), "out": (4, 6)}, {"share": 0.5, "seed": 1}),
    "softmax": (k.softmax, {"x": (4, 6), "out": (4, 6)}, {}),
    "softmax of few long rows": (k.softmax, {"x": (2, 8200), "out": (2, 8200)}, {}),
    "rms_norm": (k.rms_norm, {"x": (4, 6), "weight": (6,), "out": (4, 6)}, {}),
    "layer_norm": (k.layer_norm, {"x": (4, 6), "weight": (6,), "bias": (6,), "out": (4, 6)}, {}),
    "add_rms_norm": (
        k.add_rms_norm,
        {"x": (4, 6), "residual": (4, 6), "weight": (6,), "out": (4, 6), "total": (4, 6)},
        {},
    ),
    "add_layer_norm": (
        k.add_layer_norm,
        {"x": (4, 6), "residual": (4, 6), "weight": (6,), "bias": (6,), "out": (4, 6)},
        {},
    ),
    "embedding": (k.embedding, {"ids": (4,), "table": (5, 6), "out": (4, 6)}, {}),
    "transpose": (k.transpose, {"x": (4, 6), "out": (6, 4)}, {}),
    "mean_pool": (k.mean_pool, {"x": (2, 4, 6), "lengths": (2,), "out": (2, 6)}, {}),
    "matmul": (k.matmul, {"a": (4, 8), "b": (8, 6), "bias": (6,), "residual": (4, 6), "out": (4, 6)}, {}),
    "matmul in parts": (
        k.matmul,
        {"a": (4, 512), "b": (512, 6), "bias": (6,), "residual": (4, 6), "out": (4, 6)},
        {"splits": 2},
    ),
    "linear": (
        k.linear,
        {"x": (8, 512), "weight": (6, 512), "bias": (6,), "residual": (8, 6), "out": (8, 6)},
        {},
    ),
    "linear of few rows": (
        k.linear,
        {"x": (2, 8), "weight": (6, 8), "bias": (6,), "residual": (2, 6), "out": (2, 6)},
        {},
    ),
    "matvec": (k.matvec, {"weight": (6, 8), "x": (8,), "bias": (6,), "out": (6,)}, {}),
    "batched_matmul": (k.batched_matmul, {"a": (2, 4, 8), "b": (2, 8, 6), "out": (2, 4, 6)}, {}),
    "attention": (
        k.attention,
        {"q": (2, 2, 4, 8), "k": (2, 2, 4, 8), "v": (2, 2, 4, 8), "lengths": (2,), "out": (2, 2, 4, 8)},
        {},
    ),
    "attention_decode": (
        k.attention_decode,
        {"q": (2, 2, 8), "keys": (2, 2, 4, 8), "values": (2, 2, 4, 8), "positions": (2,), "out": (2, 2, 8)},
        {},
    ),
    "update_cache": (
        k.update_cache,
        {
            "keys": (2, 2, 4, 8),
            "values": (2, 2, 4, 8),
            "k": (2, 2, 1, 8),
            "v": (2, 2, 1, 8),
            "positions": (2,),
        },
        {},
    ),
    "rotary": (
        k.rotary,
        {"x": (3, 2, 8), "cosine": (5, 4), "sine": (5, 4), "positions": (3,), "out": (3, 2, 8)},
        {},
    ),
    "rotary in place": (
        k.rotary,
        {"x": (3, 2, 8), "cosine": (5, 4), "sine": (5, 4), "positions": (3,)},
        {"in_place": True},
    ),
    "argmax": (k.argmax, {"x": (4, 6), "out": (4,)}, {}),
    "argmax of long rows": (k.argmax, {"x": (4, 3000), "out": (4,)}, {}),
    "sample_top_k": (k.sample_top_k, {"logits": (4, 6), "counters": (4,), "out": (4,)}, {"k": 2}),
    "cross_entropy": (k.cross_entropy, {"logits": (4, 6), "labels": (4,)}, {}),
}


def written_by(case):
    if case == "rotary in place":
        return ("x",)
    return ("keys", "values") if case == "update_cache" else ("out", "total")


def type_of(case, parameter):
    is_place = parameter == "out" and case.split()[0] in ("argmax", "sample_top_k")
    return np.dtype("int32" if parameter in INTS or is_place else "float32")


def zeros(case, parameter):
    return ca.zeros(CALLS[case][1][parameter], type_of(case, parameter)).sync()


def called(case, **others):
    """The call with operands of zeros, but for those that are given."""
    function, shapes, options = CALLS[case]
    operands = {name: others[name] if name in others else zeros(case, name) for name in shapes}
    return function(**operands, **options)
