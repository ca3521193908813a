"""The model of llm_decode.py in torch: a decode step over a cache of fixed size, to be captured as a CUDA graph.

Written as one would who knows torch: fused products for query, key and value and for gate and up, the library's
attention with grouped heads, its RMS norm, and everything a step changes on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

__all__ = ["TorchLlama"]


def halves(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of heads whose rotary pairs are neighbours, reordered so that element i and i + half are a pair."""
    n, inputs = weight.shape
    return weight.reshape(heads, n // heads // 2, 2, inputs).swapaxes(1, 2).reshape(n, inputs)


class TorchLlama:
    """Weights and one conversation's cache; `step()` takes `token` in at `position` and chooses the next."""

    def __init__(self, config: Any, weights: Any, dtype: str, context: int, device: str = "cuda") -> None:
        self.config = c = config
        kind = getattr(torch, dtype)

        def there(*arrays: np.ndarray[Any, Any]) -> torch.Tensor:
            joined = np.ascontiguousarray(np.concatenate(arrays))
            return torch.from_numpy(joined).to(device=device, dtype=kind)

        self.embedding = there(weights.embedding)
        self.norm = there(weights.norm)
        self.layers = [
            (
                there(w.attention_norm),
                there(halves(w.query, c.heads), halves(w.key, c.kv_heads), w.value),
                there(w.output),
                there(w.mlp_norm),
                there(w.gate, w.up),
                there(w.down),
            )
            for w in weights.layers
        ]
        shape = (len(self.layers), 2, c.kv_heads, context, c.head_size)
        self.cache = torch.zeros(shape, device=device, dtype=kind)
        self.token = torch.zeros(1, device=device, dtype=torch.int64)
        self.position = torch.zeros(1, device=device, dtype=torch.int64)
        self.places = torch.arange(context, device=device)
        speed = c.rope_base ** (-2.0 * np.arange(c.head_size // 2) / c.head_size)
        angle = np.arange(context)[:, None] * speed
        self.cosine = torch.from_numpy(np.cos(angle)).to(device=device, dtype=torch.float32)
        self.sine = torch.from_numpy(np.sin(angle)).to(device=device, dtype=torch.float32)

    def _turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1).to(x.dtype)

    def step(self) -> None:
        """One token, at the position; then both are the next ones."""
        c = self.config
        cosine, sine = self.cosine[self.position], self.sine[self.position]
        visible = (self.places <= self.position)[None, None, None, :]
        hidden, split = (c.hidden,), c.heads + c.kv_heads
        x = functional.embedding(self.token, self.embedding)
        for (norm1, qkv, output, norm2, gate_up, down), cache in zip(self.layers, self.cache):
            rows = functional.linear(functional.rms_norm(x, hidden, norm1, c.norm_epsilon), qkv)
            rows = rows.view(-1, c.head_size)
            turned = self._turn(rows[:split], cosine, sine)
            cache[0].index_copy_(1, self.position, turned[c.heads :, None])
            cache[1].index_copy_(1, self.position, rows[split:, None])
            mixed = functional.scaled_dot_product_attention(
                turned[None, : c.heads, None],
                cache[0][None],
                cache[1][None],
                attn_mask=visible,
                enable_gqa=True,
            )
            x = x + functional.linear(mixed.reshape(1, -1), output)
            both = functional.linear(functional.rms_norm(x, hidden, norm2, c.norm_epsilon), gate_up)
            gate, up = both.chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * up, down)
        logits = functional.linear(functional.rms_norm(x, hidden, self.norm, c.norm_epsilon), self.embedding)
        self.token.copy_(logits.argmax(dim=-1))
        self.position.add_(1)

    def begin(self, token: int, position: int) -> None:
        """Set the token and where it stands."""
        self.token.fill_(token)
        self.position.fill_(position)

    def answer(self, prompt: list[int], count: int) -> list[int]:
        """Greedy tokens behind a prompt, step by step, to compare with ours."""
        found: list[int] = []
        with torch.no_grad():
            for place, token in enumerate(prompt):
                self.begin(token, place)
                self.step()
            for _ in range(count):
                found.append(int(self.token))
                self.step()
        return found

    def captured(self, *, compiled: bool) -> tuple[Any, Any]:
        """The step as a CUDA graph, and the stream to replay it on.

        Args:
            compiled: by `torch.compile` first.
        """
        step = torch.compile(self.step, dynamic=False) if compiled else self.step
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(3):
                self.begin(1, 0)
                step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
            step()
        return graph, stream
