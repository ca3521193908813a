"""The model in NumPy, float32, written from its mathematics: what the tile kernels are compared with.

It shares nothing with the kernels but the weights. Attention keeps keys and values of all earlier positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model_file import Config, Weights
    from numpy.typing import NDArray

__all__ = ["Reference"]

Array = "NDArray[np.float32]"


class Reference:
    """A conversation: feed tokens, get the logits behind each."""

    def __init__(self, config: Config, weights: Weights) -> None:
        self._config = config
        self._weights = weights
        self._keys: list[list[NDArray[Any]]] = [[] for _ in weights.layers]
        self._values: list[list[NDArray[Any]]] = [[] for _ in weights.layers]
        self._position = 0
        half = np.arange(config.head_size // 2, dtype=np.float64)
        self._frequencies = config.rope_base ** (-2.0 * half / config.head_size)

    def _norm(self, x: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self._config.norm_epsilon))
        return x / scale * weight

    def _rotate(self, x: NDArray[Any], positions: NDArray[Any]) -> NDArray[Any]:
        """Turn the pairs of each head by their position: x is (tokens, heads, head size)."""
        angles = positions[:, None, None] * self._frequencies
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * cos - odd * sin
        out[..., 1::2] = even * sin + odd * cos
        return out

    def _attend(self, i: int, x: NDArray[Any], positions: NDArray[Any]) -> NDArray[Any]:
        config, layer = self._config, self._weights.layers[i]
        count = len(x)
        query = self._rotate((x @ layer.query.T).reshape(count, config.heads, config.head_size), positions)
        key = self._rotate((x @ layer.key.T).reshape(count, config.kv_heads, config.head_size), positions)
        self._keys[i].append(key)
        self._values[i].append((x @ layer.value.T).reshape(count, config.kv_heads, config.head_size))
        keys, values = np.concatenate(self._keys[i]), np.concatenate(self._values[i])
        group = config.heads // config.kv_heads
        keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", query, keys) / np.float32(np.sqrt(config.head_size))
        visible = np.arange(len(keys))[None, :] <= positions[:, None]
        scores = np.where(visible, scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, values).reshape(count, -1)
        return mixed @ layer.output.T

    def feed(self, tokens: Sequence[int]) -> NDArray[Any]:
        """Go on with `tokens`; returns the logits behind the last one, (vocabulary,)."""
        weights = self._weights
        positions = np.arange(self._position, self._position + len(tokens))
        self._position += len(tokens)
        x = weights.embedding[np.asarray(tokens)]
        for i, layer in enumerate(weights.layers):
            x = x + self._attend(i, self._norm(x, layer.attention_norm), positions)
            normed = self._norm(x, layer.mlp_norm)
            gate = normed @ layer.gate.T
            x = x + (gate / (1 + np.exp(-gate)) * (normed @ layer.up.T)) @ layer.down.T
        return self._norm(x[-1], weights.norm) @ weights.embedding.T
