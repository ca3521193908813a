"""Arguments that each kernel of the library is compiled for, as stand-ins for tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilekern as tk
from tilekern.kernels import raw

M = tk.meta
I4 = "int32"


def transposed(rows: int, columns: int, dtype: Any) -> Any:
    """A view (rows, columns) of memory that lies the other way round."""
    return M((rows, columns), dtype, strides=(1, rows))


def samples(d: Any) -> dict[str, tuple[tk.Kernel, tuple[Any, ...]]]:
    """By name: kernel and arguments with the tiles that the library picks, for tensors of element type `d`."""
    f4, key = tk.float32, (np.uint32(1), np.uint32(2))
    wide = d == "f4"
    precision = "tf32x3" if wide else "ieee"
    tile = (64, 64) if wide else (128, 128)
    large = raw.matmul_epilogue if wide else raw.matmul_epilogue.with_options(num_ctas=2, num_worker_warps=8)
    product = (M((512, 256), d), M((256, 768), d))
    rows = M((64, 576), d)
    row = rows.partition((1, 1024))
    walked = M((67, 576), d).partition((4, 1024)).map((1, 1), 5)
    many = M((67, 576), d)
    heads = (1, 6, 200, 64)
    shared = (1, 2, 200, 64)
    scores = M((2, 49152), d)
    cache, new = M((2, 3, 256, 64), d), M((2, 3, 1, 64), d)
    table = M((256, 32), "f4")
    queries = (16, 16, 64) if wide else (128, 128, 64)
    attention = raw.attention.with_options(occupancy=None if wide else 1, num_worker_warps=8)
    places = (M((2, 24), "f4").partition((1, 1)), M((2, 24), I4).partition((1, 1)))
    candidates = (M((2, 1536), "f4").partition((1, 64)), M((2, 1536), I4).partition((1, 64)))
    shares = [M((2, 48), "f4").partition((1, 1)) for _ in range(2)]
    turned = ((3, 9, 2, 32), (3, 9, 32, 2))
    return {
        "add": (raw.add, (M(1000, d).partition(1024), M(1000, d), M(1000, d))),
        "mul": (raw.mul, (M(1000, d).partition(1024), M(1000, d), M(1000, d))),
        "saxpy": (raw.saxpy, (M(4096, d).partition(1024), 2.0, M(4096, d))),
        "gelu": (raw.activation, (M(4096, d).partition(1024), M(4096, d), "gelu")),
        "silu_mul": (
            raw.silu_mul,
            (M((3, 1536), d).partition((1, 1024)), M((3, 1536), d), M((3, 1536), d)),
        ),
        "dropout": (raw.dropout, (M(4096, d).partition(1024), M(4096, d), 0.1, *key)),
        "row_softmax": (raw.row_softmax, (row, rows)),
        "rms_norm": (raw.rms_norm, (row, rows, M(576, d), 1e-5)),
        "add_rms_norm": (raw.add_rms_norm, (row, row, rows, rows, M(576, d), 1e-5)),
        "layer_norm": (raw.layer_norm, (row, rows, M(576, d), M(576, d), 1e-5)),
        "add_layer_norm": (raw.add_layer_norm, (row, rows, rows, M(576, d), None, 1e-5)),
        "persistent_row_softmax": (raw.persistent_row_softmax, (walked, many)),
        "persistent_rms_norm": (raw.persistent_rms_norm, (walked, many, M(576, d), 1e-5)),
        "persistent_add_rms_norm": (
            raw.persistent_add_rms_norm,
            (walked, walked, many, many, M(576, d), 1e-5),
        ),
        "persistent_layer_norm": (raw.persistent_layer_norm, (walked, many, M(576, d), M(576, d), 1e-5)),
        "persistent_add_layer_norm": (
            raw.persistent_add_layer_norm,
            (walked, many, many, M(576, d), None, 1e-5),
        ),
        "long_softmax": (raw.long_softmax, (scores.mut(), scores, 4096)),
        "softmax_shares": (raw.softmax_shares, (*shares, scores, 1024)),
        "softmax_of_shares": (
            raw.softmax_of_shares,
            (scores.partition((1, 1024)), scores, M((2, 48), "f4"), M((2, 48), "f4"), 64),
        ),
        "long_rms_norm": (raw.long_rms_norm, (scores.mut(), scores, M(49152, d), 1e-5, 4096)),
        "long_layer_norm": (
            raw.long_layer_norm,
            (scores.mut(), scores, M(49152, d), M(49152, d), 1e-5, 4096),
        ),
        "matmul": (raw.matmul, (M((512, 768), d).partition(tile), *product, 32)),
        "matmul_epilogue": (
            large,
            (M((512, 768), d).partition(tile), *product, M(768, d), M((512, 768), d), 32, "gelu", precision),
        ),
        "matmul_transposed": (
            raw.matmul_epilogue,
            (M((30, 70), d).partition((32, 64)), M((30, 50), d), transposed(50, 70, d), None, None, 32),
        ),
        "matmul_persistent": (
            raw.matmul_persistent,
            (M((512, 768), d).partition(tile).map((8, 8), 4), *product, None, None, 32, "none"),
        ),
        "matmul_pair": (
            raw.matmul_pair,
            (
                M((512, 512), d).partition((64, 32 if wide else 128)),
                M((512, 256), d).partition((64, 16 if wide else 64)),
                M((512, 256), d),
                *(transposed(256, 512, d), transposed(256, 256, d), M(512, d), M(256, d), None, None),
                *(16 if wide else 64, "silu", precision),
            ),
        ),
        "matmul_stationary": (
            raw.matmul_stationary if wide else raw.matmul_stationary.with_options(num_worker_warps=8),
            (
                M((512, 768), d).mut(),
                M((512, 384), d),
                transposed(384, 768, d),
                M(768, d),
                M((512, 768), d),
                (64, 32, 32) if wide else (64, 128, 128),
                *(12 if wide else 3, "none", precision),
            ),
        ),
        "matmul_split_k": (
            raw.matmul_split_k,
            (M((4, 512, 768), f4).partition((1, 64, 64)), *product, 32),
        ),
        "sum_splits": (
            raw.sum_splits,
            (M((512, 768), d).partition((64, 64)), M((4, 512, 768), f4), None, None),
        ),
        "batched_matmul": (
            raw.batched_matmul,
            (M((3, 64, 96), d).partition((1, 64, 64)), M((3, 64, 80), d), M((3, 80, 96), d), 32),
        ),
        "batched_matmul_persistent": (
            raw.batched_matmul_persistent,
            (
                M((3, 512, 768), d).partition((1, *tile)).map((1, 8, 8), 4),
                *(M((3, 512, 256), d), M((3, 256, 768), d), 32),
            ),
        ),
        "matvec": (
            raw.matvec,
            (
                M((2, 1536), d).partition((2, 4)),
                M((2, 576), d),
                M((1536, 576), d),
                M(1536, d),
                None,
                512,
                "silu",
            ),
        ),
        "attention": (
            attention,
            (M(heads, d).mut(), M(heads, d), M(shared, d), M(shared, d), None, 0.125, None, True, 3, queries),
        ),
        "attention_window_lengths": (
            attention,
            (
                M(heads, d).mut(),
                M(heads, d),
                M(shared, d),
                M(shared, d),
                M(1, I4),
                0.125,
                64,
                True,
                3,
                queries,
            ),
        ),
        "attention_decode": (
            raw.attention_decode,
            (
                *(M((2, 3, 4, 3, 64), f4).mut(), M((2, 3, 4, 3), f4).mut(), M((2, 3, 3, 64), d)),
                *(cache, cache, M(2, I4), 0.125, 0, (16, 64, 64)),
            ),
        ),
        "combine_shares": (
            raw.combine_shares,
            (M((2, 3, 3, 64), d).mut(), M((2, 3, 4, 3, 64), f4), M((2, 3, 4, 3), f4), (4, 4, 64)),
        ),
        "update_cache": (raw.update_cache, (cache.mut(), cache.mut(), new, new, M(2, I4), (4, 64))),
        "rotary": (
            raw.rotary,
            (M(turned[0], d).mut(), M(turned[0], d), table, table, M(3, I4), (16, 32), False),
        ),
        "rotary_interleaved": (
            raw.rotary_in_place,
            (M(turned[1], d).mut(), table, table, M(3, I4), (16, 32), True),
        ),
        "embedding": (raw.embedding, (M((7, 576), d).partition((1, 1024)), M(7, I4), M((49152, 576), d))),
        "transpose": (raw.transpose, (M((300, 200), d).partition((64, 64)), M((200, 300), d))),
        "batched_transpose": (
            raw.batched_transpose,
            (M((3, 300, 200), d).partition((1, 64, 64)), M((3, 200, 300), d)),
        ),
        "mean_pool": (
            raw.mean_pool,
            (M((4, 384), d).partition((1, 128)), M((4, 50, 384), d), M(4, I4), 32),
        ),
        "argmax_chunks": (raw.argmax_chunks, (*places, scores, 2048)),
        "argmax_of_chunks": (
            raw.argmax_of_chunks,
            (M(2, I4).partition(1), M((2, 24), "f4"), M((2, 24), I4), 32),
        ),
        "top_k_chunks": (raw.top_k_chunks, (*candidates, scores, 50, 2048)),
        "sample_candidates": (
            raw.sample_candidates,
            (
                *(M(2, I4).partition(1), M((2, 1536), "f4"), M((2, 1536), I4), M(2, I4), 0.7, 0.9, *key),
                *(50, (2048, 64)),
            ),
        ),
        "cross_entropy": (
            raw.cross_entropy,
            (M(2, "f4").partition(1), scores, M(2, "int64"), -100, 4096),
        ),
        "reduce_losses": (
            raw.reduce_losses,
            (M(1, "f4").partition(1), M(300, "f4"), M(300, "int64"), -100, True, 512),
        ),
    }
