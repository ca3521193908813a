"""Choosing tokens, and the loss of scores and labels. Scores are (rows, columns), a column for each token or class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

import cuda_async as ca

from . import raw
from ._operands import (
    FLOATS,
    INT32,
    INTEGERS,
    LARGEST_FLOAT32,
    Operand,
    check_choice,
    check_dtype,
    check_shape,
    first_of,
    following,
    is_count,
    is_number,
    key_of,
    occupancy_of,
    output,
    power_of_two,
    tuned,
    with_later,
    with_tensors,
)

if TYPE_CHECKING:
    from cuda_async import DeviceOp, Tensor

__all__ = ["argmax", "cross_entropy", "sample_top_k"]

CHUNK = 2048
"""Columns that one block looks at."""


def argmax(x: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """Where the largest element of each row is, the first of equals; a NaN counts as the largest.

    Args:
        x: (rows, columns), up to 8 million columns.
        out: where the result goes, int32 (rows,); new memory if not given.
    """

    def launch(x: Tensor) -> DeviceOp[Tensor]:
        check_dtype("argmax", FLOATS, x=x)
        rows, columns = _scores("argmax", x=x)
        chunk = min(CHUNK, power_of_two(columns))
        chunks = -(-columns // chunk)

        if chunks == 1:
            values = ca.empty((rows, 1), ca.float32).partition((1, 1))
            place = output("argmax", out, (rows,), ca.int32).reshape(rows, 1).partition((1, 1))
            return raw.argmax_chunks(values, place, x, chunk)[1].unpartition().reshape(rows)

        def made() -> DeviceOp[Tensor]:
            place = output("argmax", out, (rows,), ca.int32).partition(1)
            values = ca.empty((rows, chunks), ca.float32).partition((1, 1))
            places = ca.empty((rows, chunks), ca.int32).partition((1, 1))
            last = power_of_two(chunks)
            return raw.argmax_chunks(values, places, x, chunk).then(
                lambda found: first_of(
                    following(raw.argmax_of_chunks)(
                        place, found[0].unpartition(), found[1].unpartition(), last
                    )
                )
            )

        return with_later("argmax", made, out=out)

    return with_tensors("argmax", launch, {"out": out}, x=x)


def _scores(name: str, **tensor: Tensor) -> tuple[int, int]:
    check_shape(name, ("rows", "columns"), **tensor)
    ((rows, columns),) = (scores.shape for scores in tensor.values())
    if not 1 <= columns <= 1 << 23:
        raise ValueError(f"{name}: a row has 1 to {1 << 23} elements, got {columns}")
    return rows, columns


def sample_top_k(
    logits: Operand,
    counters: Operand,
    *,
    k: int = 50,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    out: Tensor | None = None,
) -> DeviceOp[Tensor]:
    """Draw a token from the `k` likeliest of each row, with the chance of softmax(logit / temperature).

    A NaN counts as -inf, but where the likeliest is taken, as by `argmax`, to which it is the largest. One seed and
    one counter give one random number (Philox 4x32-10 at (counter, row)), on every device. Counters are read on the
    device, so a recorded graph draws anew in each step: pass the tokens' positions.

    Args:
        logits: (rows, columns). counters: int32 (rows,).
        k: 1 to 128, at most the number of columns.
        temperature: above 0, a float32; 0 takes the likeliest.
        top_p: from above 0 to 1: of the k, only the likeliest that reach this chance together; below the smallest
            normal float32, the likeliest.
        seed: from 0 to 2**64 - 1.
        out: where the result goes, int32 (rows,); new memory if not given.
    """
    if not is_count(k) or k > 128:
        raise ValueError(f"sample_top_k: k is a whole number from 1 to 128, got {k!r}")
    if not is_number(temperature) or not 0.0 <= float(temperature) <= LARGEST_FLOAT32:
        raise ValueError(f"sample_top_k: temperature is a float32 from 0 on, got {temperature!r}")
    if not is_number(top_p) or not 0.0 < top_p <= 1.0:
        raise ValueError(f"sample_top_k: top_p is a number from above 0 to 1, got {top_p!r}")
    k = int(k)
    k0, k1 = key_of("sample_top_k", seed)
    # of at most 128 the likeliest alone reaches more than the smallest float32
    takes_likeliest = np.float32(temperature) == 0.0 or top_p < float(np.finfo(np.float32).tiny)

    def launch(logits: Tensor, counters: Tensor) -> DeviceOp[Tensor]:
        check_dtype("sample_top_k", FLOATS, logits=logits)
        check_dtype("sample_top_k", INT32, counters=counters)
        rows, columns = _scores("sample_top_k", logits=logits)
        check_shape("sample_top_k", (rows,), counters=counters)
        if k > columns:
            raise ValueError(
                f"sample_top_k: k is {k}, a row has {columns} elements; pass k={columns} or less"
            )
        if takes_likeliest:
            output("sample_top_k", out, (rows,), ca.int32)  # refused by this name
            return argmax(logits, out=out)
        size = power_of_two(k)
        chunk = min(CHUNK, power_of_two(columns))
        candidates = -(-columns // chunk) * size
        rest = (counters, float(temperature), float(top_p), k0, k1, k, (power_of_two(candidates), size))

        def made() -> DeviceOp[Tensor]:
            place = output("sample_top_k", out, (rows,), ca.int32).partition(1)
            values = ca.empty((rows, candidates), ca.float32).partition((1, size))
            places = ca.empty((rows, candidates), ca.int32).partition((1, size))
            return raw.top_k_chunks(values, places, logits, k, chunk).then(
                lambda found: first_of(
                    following(raw.sample_candidates)(
                        place, found[0].unpartition(), found[1].unpartition(), *rest
                    )
                )
            )

        return with_later("sample_top_k", made, counters=counters, out=out)

    return with_tensors("sample_top_k", launch, {"out": out}, logits=logits, counters=counters)


def cross_entropy(
    logits: Operand,
    labels: Operand,
    *,
    ignore: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> DeviceOp[Tensor]:
    """log(sum of exp(logits)) - logits[label], in nats, computed in float32.

    Args:
        logits: (rows, classes). labels: int32 or int64 (rows,). One that is no class gives NaN.
        ignore: the label of rows that do not count: their loss is 0, and the mean is over the others, NaN if there are
            none.
        reduction: "mean" and "sum" give float32 (1,), "none" float32 (rows,).
    """
    check_choice("cross_entropy", "reduction", reduction, ("mean", "sum", "none"))

    def launch(logits: Tensor, labels: Tensor) -> DeviceOp[Tensor]:
        check_dtype("cross_entropy", FLOATS, logits=logits)
        check_dtype("cross_entropy", INTEGERS, labels=labels)
        is_whole = isinstance(ignore, int | np.integer) and not isinstance(ignore, bool)
        if not is_whole or not np.iinfo(labels.dtype).min <= ignore <= np.iinfo(labels.dtype).max:
            raise ValueError(
                f"cross_entropy: ignore is a whole number of {labels.dtype.name}, got {ignore!r}"
            )
        rows, columns = _scores("cross_entropy", logits=logits)
        check_shape("cross_entropy", (rows,), labels=labels)
        losses = ca.empty((rows,), ca.float32).partition(1)
        chunk = min(2 * CHUNK, power_of_two(columns))
        kernel = tuned(raw.cross_entropy, occupancy=occupancy_of(chunk))
        op = first_of(kernel(losses, logits, labels, ignore, chunk))
        if reduction == "none":
            return op
        total = ca.empty((1,), ca.float32).partition(1)
        mean = reduction == "mean"
        return first_of(
            following(raw.reduce_losses)(total, op, labels, ignore, mean, min(1024, power_of_two(rows)))
        )

    return with_tensors("cross_entropy", launch, {}, logits=logits, labels=labels)
