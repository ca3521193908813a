"""A BERT encoder on a device: tokens of many sentences to their embeddings, in one graph per size of batch.

Sentences are padded to a bucket of tokens, and batches to a bucket of sentences, so that a few graphs serve all sizes.
What padding adds is seen by nothing: attention looks at the keys of a sentence's own tokens, the mean is taken over
those, and the rows of no sentence are thrown away.

A batch reaches the device as one array, tokens first and lengths behind them: one copy, one launch. All matrices are
views of one allocation, what stays float32 of another, for a launch orders the memory that a graph uses by allocation.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from encoder_kernels import embed_tokens, pool

import cuda_async as ca
import tilekern as tk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from encoder_file import Config, Weights

__all__ = ["BATCHES", "DTYPES", "LENGTHS", "Encoder"]

k = tk.kernels

BATCHES = (1, 2, 4, 8, 16, 32)
"""Sentences of a batch."""

LENGTHS = (16, 32, 64, 128, 256, 512)
"""Tokens that sentences are padded to."""

DTYPES = {"float32": ca.float32, "float16": ca.float16, "bfloat16": ca.bfloat16}
"""Types that matrices and activations may have."""

ALIGNMENT = 256
"""Elements; what begins at a multiple of it can be loaded in the widest pieces."""

ELEMENTS = 8192
"""Of a tile that fits into registers."""

FEW_ROWS = 2
"""Tokens of a block of the first kernel on a GPU: then 8 fit on a multiprocessor and hide the time of memory."""


@dataclass(frozen=True)
class DeviceLayer:
    """One layer's weights on the device: matrices (n, k), and float32 vectors; query, key and value are one matrix."""

    qkv: ca.Tensor
    output: ca.Tensor
    up: ca.Tensor
    down: ca.Tensor
    qkv_bias: ca.Tensor
    output_bias: ca.Tensor
    attention_norm: ca.Tensor
    attention_norm_bias: ca.Tensor
    up_bias: ca.Tensor
    down_bias: ca.Tensor
    mlp_norm: ca.Tensor
    mlp_norm_bias: ca.Tensor


def packed(arrays: Sequence[np.ndarray[Any, Any]]) -> ca.DeviceOp[list[ca.Tensor]]:
    """The arrays, of one type, as views of one new allocation."""
    places, end = [], 0
    for array in arrays:
        places.append(end)
        end += -(-array.size // ALIGNMENT) * ALIGNMENT

    def fill(memory: ca.Tensor) -> ca.DeviceOp[list[ca.Tensor]]:
        views = [memory[p : p + a.size].reshape(a.shape) for p, a in zip(places, arrays)]
        copies = [ca.memcpy(v, a) for v, a in zip(views, arrays)]
        return ca.collect(copies).map(lambda _: views)

    return ca.empty((end,), arrays[0].dtype).then(fill)


def arranged(
    weights: Weights, dtype: np.dtype[np.generic]
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """What goes to the device, in its types: the matrices, and what stays float32."""
    matrices: list[np.ndarray[Any, Any]] = []
    # a sentence is a first text throughout, so its kind is part of every position
    places = weights.places + weights.kinds[0]
    vectors: list[np.ndarray[Any, Any]] = [weights.words, places, weights.norm, weights.norm_bias]
    for w in weights.layers:
        matrices += [np.concatenate([w.query, w.key, w.value]), w.output, w.up, w.down]
        vectors += [np.concatenate([w.query_bias, w.key_bias, w.value_bias]), w.output_bias]
        vectors += [w.attention_norm, w.attention_norm_bias, w.up_bias, w.down_bias]
        vectors += [w.mlp_norm, w.mlp_norm_bias]
    return [np.ascontiguousarray(m, dtype) for m in matrices], [
        np.ascontiguousarray(v, "f4") for v in vectors
    ]


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`, as sides of tiles are."""
    return 1 << (n - 1).bit_length()


class Encoder:
    """The model's weights on one device, and operations on them. Made by `await Encoder.load(...)`.

    Attributes:
        batches, lengths: the buckets, increasing. graphs: a graph for each pair of them, captured when it is
            asked for; input "batch" is what `pack` makes, and it yields what `encode` does.
    """

    def __init__(
        self,
        config: Config,
        dtype: np.dtype[np.generic],
        batches: Sequence[int],
        lengths: Sequence[int],
        max_graphs: int | None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = ca.current_device()
        self.batches = sorted(set(batches))
        # the last bucket is the model's own limit, so that every sentence it can take has one
        self.lengths = [*(n for n in sorted(set(lengths)) if n < config.positions), config.positions]
        if not self.batches or self.batches[0] < 1 or self.lengths[0] < 1:
            raise ValueError(f"buckets are sizes from 1 on, got {batches} sentences and {lengths} tokens")
        self.graphs: ca.GraphCache[tuple[int, int], ca.Tensor] = ca.GraphCache(
            self._input_and_encode, max_graphs=max_graphs or len(self.batches) * len(self.lengths)
        )
        self.layers: list[DeviceLayer] = []
        self.words: ca.Tensor
        self.places: ca.Tensor
        self.norm: ca.Tensor
        self.norm_bias: ca.Tensor

    @classmethod
    async def load(
        cls,
        config: Config,
        weights: Weights,
        *,
        dtype: str = "float32",
        batches: Sequence[int] = BATCHES,
        lengths: Sequence[int] = LENGTHS,
        max_graphs: int | None = None,
    ) -> Encoder:
        """Bring the weights to the current device.

        Args:
            dtype: float32, float16 or bfloat16: of factors of products, and of activations. What is added (words,
                positions, biases) and what scales is float32 at any rate.
            batches, lengths: buckets. max_graphs: how many are kept, each with memory of its own; all if left out.
        Raises:
            ValueError: buckets below 1, or another type.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}; choose one of {', '.join(DTYPES)}")
        self = cls(config, DTYPES[dtype], batches, lengths, max_graphs)
        matrices, vectors = await asyncio.to_thread(arranged, weights, self.dtype)
        there = await packed(matrices)
        small = await packed(vectors)
        self.words, self.places, self.norm, self.norm_bias = small[:4]
        for i in range(config.layers):
            self.layers.append(DeviceLayer(*there[4 * i : 4 * i + 4], *small[4 + 8 * i : 12 + 8 * i]))
        return self

    # -- batches

    def bucket(self, count: int, tokens: int) -> tuple[int, int]:
        """The sizes (sentences, tokens) that a batch is padded to.

        Raises:
            ValueError: more sentences, or more tokens, than the largest bucket has.
        """
        if not 1 <= count <= self.batches[-1] or not 1 <= tokens <= self.lengths[-1]:
            raise ValueError(
                f"a batch has 1 to {self.batches[-1]} sentences of 1 to {self.lengths[-1]} tokens, "
                f"got {count} of up to {tokens}"
            )
        at = bisect_left(self.batches, count), bisect_left(self.lengths, tokens)
        return self.batches[at[0]], self.lengths[at[1]]

    def check(self, sentences: Sequence[np.ndarray[Any, Any]]) -> None:
        """Refuse what `pack` takes no notice of.

        Raises:
            ValueError: a sentence without tokens, with too many, or with one that the model does not have.
        """
        for ids in sentences:
            if not 1 <= ids.size <= self.lengths[-1]:
                raise ValueError(f"a sentence has 1 to {self.lengths[-1]} tokens, got {ids.size}")
        if sentences:
            all_ids = np.concatenate(sentences)
            least, largest = all_ids.min(), all_ids.max()
            if least < 0 or largest >= self.config.vocabulary:
                raise ValueError(
                    f"tokens are 0 to {self.config.vocabulary - 1}, got {least} to {largest}; "
                    "is the tokenizer that of the model?"
                )

    def pack(self, sentences: Sequence[np.ndarray[Any, Any]]) -> tuple[tuple[int, int], np.ndarray[Any, Any]]:
        """The bucket of a batch, and the batch as a graph takes it: int32 (sentences * (tokens + 1),).

        Args:
            sentences: the tokens of each, integers (tokens,), which `check` has let pass.
        Raises:
            ValueError: no sentence, or too many.
        """
        count, tokens = self.bucket(len(sentences), max((ids.size for ids in sentences), default=1))
        batch = np.zeros(count * (tokens + 1), np.int32)
        rows, lengths = batch[:-count].reshape(count, tokens), batch[-count:]
        for number, ids in enumerate(sentences):
            lengths[number] = ids.size
            rows[number, : ids.size] = ids
        return (count, tokens), batch

    def encode(self, bucket: tuple[int, int], batch: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
        """Embeddings of a packed batch: float32 (sentences, hidden), of length 1; zeros behind the last sentence."""
        count, tokens = bucket
        ids, lengths = batch[: count * tokens].reshape(count, tokens), batch[count * tokens :]
        c = self.config
        columns = power_of_two(c.hidden)
        # the interpreter wants few, large tiles
        rows = FEW_ROWS if self.device.kind == "cuda" else power_of_two(tokens)
        place = ca.empty((count, tokens, c.hidden), self.dtype).partition((1, rows, columns))
        op = embed_tokens(place, ids, self.words, self.places, self.norm, self.norm_bias, c.norm_epsilon)
        x = op.first().unpartition().reshape(count * tokens, c.hidden)
        for layer in self.layers:
            x = x.then(partial(self._layer, layer, lengths, bucket))

        def mean(x: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
            place = ca.empty((count, c.hidden)).partition((1, columns))
            by_sentence = x.reshape(count, tokens, c.hidden)
            at_once = max(1, min(power_of_two(tokens), ELEMENTS // columns))
            return pool(place, by_sentence, lengths, at_once).first().unpartition()

        return x.then(mean)

    def _input_and_encode(self, bucket: tuple[int, int]) -> ca.DeviceOp[ca.Tensor]:
        size = bucket[0] * (bucket[1] + 1)
        return ca.graph_input("batch", (size,), ca.int32).then(partial(self.encode, bucket))

    def _layer(
        self, layer: DeviceLayer, lengths: ca.Tensor, bucket: tuple[int, int], x: ca.Tensor
    ) -> ca.DeviceOp[ca.Tensor]:
        """One layer for x (sentences * tokens, hidden)."""
        c = self.config

        def attend(qkv: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
            by_head = qkv.reshape(*bucket, 3, c.heads, c.head_size).permute(2, 0, 3, 1, 4)
            return ca.empty((*bucket, c.heads, c.head_size), self.dtype).then(
                lambda out: k.attention(
                    by_head[0], by_head[1], by_head[2], lengths=lengths, out=out.permute(0, 2, 1, 3)
                ).map(lambda _: out.reshape(x.shape))
            )

        def mlp(x: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
            h = k.linear(x, layer.up, layer.up_bias, activation="gelu")
            y = k.linear(h, layer.down, layer.down_bias)
            return k.add_layer_norm(y, x, layer.mlp_norm, layer.mlp_norm_bias, eps=c.norm_epsilon)

        mixed = k.linear(x, layer.qkv, layer.qkv_bias).then(attend)
        y = k.linear(mixed, layer.output, layer.output_bias)
        norm = layer.attention_norm, layer.attention_norm_bias
        return k.add_layer_norm(y, x, *norm, eps=c.norm_epsilon).then(mlp)
