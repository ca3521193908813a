"""The model and its tokenizer in plain Python and NumPy, float32: what the tile kernels are compared with.

Written from the mathematics, one sentence at a time, without padding; it shares nothing with the kernels but the
weights, and nothing with the package `tokenizers` but the vocabulary.
"""

from __future__ import annotations

import math
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from encoder_file import Config, Weights
    from numpy.typing import NDArray

__all__ = ["Reference", "word_pieces"]

LONGEST_WORD = 100
"""Characters; a longer word is unknown."""


def erf(x: NDArray[Any]) -> NDArray[Any]:
    """The error function, by C's."""
    return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


class Reference:
    """The encoder: tokens of one sentence to its embedding."""

    def __init__(self, config: Config, weights: Weights) -> None:
        self._config = config
        self._weights = weights

    def _norm(self, x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]) -> NDArray[Any]:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        return centred / np.sqrt(variance + np.float32(self._config.norm_epsilon)) * weight + bias

    def _heads(self, x: NDArray[Any]) -> NDArray[Any]:
        """(tokens, hidden) as (heads, tokens, head size)."""
        return x.reshape(len(x), self._config.heads, self._config.head_size).swapaxes(0, 1)

    def tokens(self, ids: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
        """Activations of all tokens behind the last layer, (tokens, hidden)."""
        w = self._weights
        x = w.words[np.asarray(ids)] + w.places[: len(ids)] + w.kinds[0]
        x = self._norm(x, w.norm, w.norm_bias)
        for layer in w.layers:
            query = self._heads(x @ layer.query.T + layer.query_bias)
            key = self._heads(x @ layer.key.T + layer.key_bias)
            value = self._heads(x @ layer.value.T + layer.value_bias)
            scores = query @ key.swapaxes(1, 2) / np.float32(math.sqrt(self._config.head_size))
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            shares /= shares.sum(axis=-1, keepdims=True)
            mixed = (shares @ value).swapaxes(0, 1).reshape(x.shape)
            x = self._norm(
                x + mixed @ layer.output.T + layer.output_bias,
                layer.attention_norm,
                layer.attention_norm_bias,
            )
            h = x @ layer.up.T + layer.up_bias
            h = (h * (1 + erf(h / math.sqrt(2))) / 2).astype(np.float32)
            x = self._norm(x + h @ layer.down.T + layer.down_bias, layer.mlp_norm, layer.mlp_norm_bias)
        return x

    def embed(self, ids: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
        """The mean of the tokens' activations, of length 1: (hidden,)."""
        mean = self.tokens(ids).mean(axis=0)
        return mean / np.sqrt(np.sum(mean * mean))


def _is_punctuation(c: str) -> bool:
    """All of ASCII that is no letter, digit or space counts, as BERT has it."""
    return (c.isascii() and c.isprintable() and not c.isalnum() and c != " ") or unicodedata.category(c)[
        0
    ] == "P"


def _is_ideograph(c: str) -> bool:
    """The blocks of Chinese characters, each of which is a word."""
    code = ord(c)
    blocks = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF), (0x2F800, 0x2FA1F))
    return any(first <= code <= last for first, last in blocks)


def _words(text: str) -> Iterator[str]:
    """Words in lower case, without accents; punctuation marks and ideographs are words."""
    word = ""
    for c in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(c)
        if c in "\t\n\r" or kind == "Zs":
            alone, c = True, ""
        elif kind[0] == "C" or kind == "Mn" or c == "\ufffd":
            continue
        else:
            alone = _is_punctuation(c) or _is_ideograph(c)
        if alone:
            yield from (part for part in (word, c.lower()) if part)
            word = ""
        else:
            word += c.lower()
    if word:
        yield word


def word_pieces(text: str, vocabulary: dict[str, int]) -> list[int]:
    """Tokens of the text between [CLS] and [SEP]: of each word the longest beginning that is known, and so on."""
    found = [vocabulary["[CLS]"]]
    for word in _words(text):
        pieces: list[int] = []
        start = 0
        while start < len(word) and len(word) <= LONGEST_WORD:
            before = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if before + word[start:end] in vocabulary), None)
            if end is None:
                break
            pieces.append(vocabulary[before + word[start:end]])
            start = end
        found += pieces if start == len(word) else [vocabulary["[UNK]"]]
    return [*found, vocabulary["[SEP]"]]
