"""The encoder of embeddings.py in torch: padded batches, as they are or as CUDA graphs.

Written as one would who knows torch: query, key and value in one product, the library's attention with a mask of the
sentences' own tokens, its layer norm and gelu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TorchBatch", "TorchBert"]


class TorchBert:
    """The weights, and `encode`."""

    def __init__(self, config: Any, weights: Any, dtype: str, device: str = "cuda") -> None:
        self.config = config
        self.device = device
        kind = getattr(torch, dtype)

        def there(*arrays: np.ndarray[Any, Any]) -> torch.Tensor:
            joined = np.ascontiguousarray(np.concatenate(arrays))
            return torch.from_numpy(joined).to(device=device, dtype=kind)

        self.words = there(weights.words)
        self.places = there(weights.places + weights.kinds[0])
        self.norm = there(weights.norm), there(weights.norm_bias)
        self.layers = [
            (
                (there(w.query, w.key, w.value), there(w.query_bias, w.key_bias, w.value_bias)),
                (there(w.output), there(w.output_bias)),
                (there(w.attention_norm), there(w.attention_norm_bias)),
                (there(w.up), there(w.up_bias)),
                (there(w.down), there(w.down_bias)),
                (there(w.mlp_norm), there(w.mlp_norm_bias)),
            )
            for w in weights.layers
        ]

    def encode(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Embeddings, float32 (sentences, hidden), of ids (sentences, tokens) and how many of them count."""
        c = self.config
        count, tokens = ids.shape
        hidden = (c.hidden,)
        counts = torch.arange(tokens, device=ids.device) < lengths[:, None]
        # a row of no sentence looks at its first token: attention to nothing is no number
        sees = counts.clone()
        sees[:, 0] = True
        mask = sees[:, None, None, :]
        x = functional.embedding(ids, self.words) + self.places[:tokens]
        x = functional.layer_norm(x, hidden, *self.norm, c.norm_epsilon)
        for qkv, output, norm1, up, down, norm2 in self.layers:
            rows = functional.linear(x, *qkv).view(count, tokens, 3, c.heads, c.head_size)
            q, k, v = rows.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            mixed = mixed.transpose(1, 2).reshape(count, tokens, c.hidden)
            x = functional.layer_norm(x + functional.linear(mixed, *output), hidden, *norm1, c.norm_epsilon)
            h = functional.linear(functional.gelu(functional.linear(x, *up)), *down)
            x = functional.layer_norm(x + h, hidden, *norm2, c.norm_epsilon)
        total = torch.where(counts[:, :, None], x.float(), 0.0).sum(dim=1)
        return functional.normalize(total / lengths.clamp(min=1)[:, None], dim=1)


class TorchBatch:
    """A batch of one size in torch, whose inputs stay where they are."""

    def __init__(self, model: TorchBert, bucket: tuple[int, int]) -> None:
        self.model = model
        self.bucket = bucket
        count, tokens = bucket
        self.batch = torch.ones(count * (tokens + 1), dtype=torch.int32, device=model.device)
        self.ids, self.lengths = self.batch[:-count].view(bucket), self.batch[-count:]
        self.staging = torch.zeros(
            self.batch.shape, dtype=torch.int32, pin_memory=self.batch.device.type == "cuda"
        )

    def set_inputs(self, packed: np.ndarray[Any, Any]) -> None:
        """Upload a batch as `Encoder.pack` makes it, when what was uploaded before is over."""
        self.staging.copy_(torch.from_numpy(packed))
        self.batch.copy_(self.staging, non_blocking=True)

    def eager(self) -> torch.Tensor:
        """Enqueue it, operation by operation."""
        with torch.no_grad():
            return self.model.encode(self.ids, self.lengths)

    def captured(self, *, compiled: bool) -> tuple[Callable[[], None], torch.Tensor]:
        """What replays it as a CUDA graph, on the current stream, and where the embeddings will be.

        Args:
            compiled: by `torch.compile` first.
        """
        encode = self.model.encode
        if compiled:
            torch.compiler.reset()  # else the ninth size is not compiled any more
            encode = torch.compile(encode, dynamic=False)
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(3):
                encode(self.ids, self.lengths)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with (
            torch.no_grad(),
            # other threads may call the driver meanwhile
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            out = encode(self.ids, self.lengths)
        torch.cuda.synchronize()
        return graph.replay, out
