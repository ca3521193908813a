"""What `kernels.py` measures: each function of the library at the shapes of two models, and at large ones.

SmolLM2-135M: hidden 576, 9 heads and 3 key heads of 64, intermediate 1536, vocabulary 49152; a prompt of 512 tokens,
and one token at position 511. all-MiniLM-L6: hidden 384, 12 heads of 32, intermediate 1536; 32 sentences of up to 128
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import cuda_async as ca
import tilekern as tk

Tensors = dict[str, Any]
"""The operands by name, of one library."""


@dataclass(frozen=True)
class Input:
    """An operand: normal numbers of the benchmark's element type, or whole numbers below `below`."""

    shape: tuple[int, ...]
    below: int | None = None
    exactly: int | None = None
    """All of them this number."""

    def array(self, random: np.random.Generator, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """The values."""
        if self.exactly is not None:
            return np.full(self.shape, self.exactly, np.int32)
        if self.below is not None:
            return random.integers(0, self.below, self.shape, dtype=np.int32)
        return random.standard_normal(self.shape, dtype=np.float32).astype(dtype)


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: the function and the shape. model: what the shape is of.
        inputs: operands by name.
        ours: makes the operation. theirs: the same in torch; called with the modules `torch`, `torch.nn.functional`.
        work: "bytes" or "flops"; amount: how many one run takes at least.
        is_random: results differ, and are not compared.
        scale: what the largest error is measured by; the largest result if left out.
    """

    name: str
    model: str
    inputs: dict[str, Input]
    ours: Callable[[Tensors], ca.DeviceOp[Any]]
    theirs: Callable[[Any, Any, Tensors], Any]
    work: str
    amount: float
    is_random: bool = False


def cases(itemsize: int, scale: int = 1) -> list[Case]:
    """All rows; sides of large tensors are divided by `scale`."""
    return [*_smollm(itemsize, scale), *_minilm(itemsize, scale), *_large(itemsize, scale)]


def _smollm(e: int, scale: int) -> list[Case]:
    k = tk.kernels
    tokens, capacity = max(4, 512 // scale), max(8, 1024 // scale)
    hidden, inner, vocabulary = 576 // scale, 1536 // scale, 49152 // scale
    heads, key_heads, size = 9, 3, 64
    cosine, sine = k.rotary_tables(capacity, size)
    found = []

    def add(
        name: str, inputs: dict[str, Input], ours: Any, theirs: Any, work: str, amount: float, **more: Any
    ) -> None:
        found.append(Case(name, "SmolLM2", inputs, ours, theirs, work, amount, **more))

    for rows in (tokens, 1):
        label = "prompt" if rows > 1 else "token"
        x, w = Input((rows, hidden)), Input((hidden,))
        add(
            f"rms_norm, {label}",
            {"x": x, "w": w},
            lambda t: k.rms_norm(t["x"], t["w"]),
            lambda torch, f, t: f.rms_norm(t["x"], (t["x"].shape[-1],), t["w"], 1e-5),
            "bytes",
            2 * rows * hidden * e,
        )
        add(
            f"add_rms_norm, {label}",
            {"x": x, "r": x, "w": w},
            lambda t: k.add_rms_norm(t["x"], t["r"], t["w"]).first(),
            lambda torch, f, t: f.rms_norm(t["x"] + t["r"], (t["x"].shape[-1],), t["w"], 1e-5),
            "bytes",
            4 * rows * hidden * e,
        )
        for what, n, depth in (
            ("qkv", (heads + 2 * key_heads) * size // scale, hidden),
            ("gate and up", 2 * inner, hidden),
            ("down", hidden, inner),
            ("vocabulary", vocabulary, hidden),
        ):
            if rows > 1 and what == "vocabulary":
                continue
            add(
                f"linear {what}, {label}",
                {"x": Input((rows, depth)), "w": Input((n, depth))},
                lambda t: k.linear(t["x"], t["w"]),
                lambda torch, f, t: f.linear(t["x"], t["w"]),
                *(("flops", 2.0 * rows * n * depth) if rows > 1 else ("bytes", float(n * depth * e))),
            )
        add(
            f"silu_mul, {label}",
            {"both": Input((rows, 2 * inner))},
            lambda t: k.silu_mul(t["both"]),
            lambda torch, f, t: f.silu(t["both"].chunk(2, -1)[0]) * t["both"].chunk(2, -1)[1],
            "bytes",
            3 * rows * inner * e,
        )
        add(
            f"rotary, {label}",
            {"x": Input((rows, heads, size)), "p": Input((rows,), below=capacity)},
            lambda t: k.rotary(t["x"], t["cosine"], t["sine"], t["p"]),
            _torch_rotary,
            "bytes",
            2 * rows * heads * size * e,
        )
        add(
            f"embedding, {label}",
            {"ids": Input((rows,), below=vocabulary), "table": Input((vocabulary, hidden))},
            lambda t: k.embedding(t["ids"], t["table"]),
            lambda torch, f, t: f.embedding(t["ids"], t["table"]),
            "bytes",
            2 * rows * hidden * e,
        )
    heads_of = {
        "q": Input((1, heads, tokens, size)),
        "k": Input((1, key_heads, tokens, size)),
        "v": Input((1, key_heads, tokens, size)),
    }
    add(
        "attention causal, prompt",
        heads_of,
        lambda t: k.attention(t["q"], t["k"], t["v"], causal=True),
        lambda torch, f, t: f.scaled_dot_product_attention(
            t["q"], t["k"], t["v"], is_causal=True, enable_gqa=True
        ),
        "flops",
        2.0 * heads * tokens * tokens * size,
    )
    place = capacity // 2 - 1
    cache = {"keys": Input((1, key_heads, capacity, size)), "values": Input((1, key_heads, capacity, size))}
    add(
        "attention_decode, token",
        {"q": Input((1, heads, size)), **cache, "p": Input((1,), exactly=place)},
        lambda t: k.attention_decode(t["q"], t["keys"], t["values"], t["p"]),
        lambda torch, f, t: f.scaled_dot_product_attention(
            t["q"][:, :, None], t["keys"][:, :, : place + 1], t["values"][:, :, : place + 1], enable_gqa=True
        )[:, :, 0],
        "bytes",
        2 * key_heads * (place + 1) * size * e,
    )
    add(
        "update_cache, token",
        {**cache, "k": Input((1, key_heads, 1, size)), "p": Input((1,), exactly=place)},
        lambda t: k.update_cache(t["keys"], t["values"], t["k"], t["k"], t["p"]).first(),
        lambda torch, f, t: (
            t["keys"].index_copy_(2, t["p"].long(), t["k"]),
            t["values"].index_copy_(2, t["p"].long(), t["k"]),
        )[0],
        "bytes",
        4 * key_heads * size * e,
    )
    scores = Input((1, vocabulary))
    add(
        "argmax, token",
        {"x": scores},
        lambda t: k.argmax(t["x"]),
        lambda torch, f, t: torch.argmax(t["x"], -1),
        "bytes",
        vocabulary * e,
    )
    add(
        "sample_top_k 50, token",
        {"x": scores, "p": Input((1,), exactly=place)},
        lambda t: k.sample_top_k(t["x"], t["p"], k=min(50, vocabulary), temperature=0.8, top_p=0.95),
        _torch_sample,
        "bytes",
        vocabulary * e,
        is_random=True,
    )
    add(
        "softmax, token",
        {"x": scores},
        lambda t: k.softmax(t["x"]),
        lambda torch, f, t: torch.softmax(t["x"], -1),
        "bytes",
        2 * vocabulary * e,
    )
    add(
        "cross_entropy, prompt",
        {"x": Input((tokens, vocabulary)), "labels": Input((tokens,), below=vocabulary)},
        lambda t: k.cross_entropy(t["x"], t["labels"]),
        lambda torch, f, t: f.cross_entropy(t["x"].float(), t["labels"].long()).reshape(1),
        "bytes",
        tokens * vocabulary * e,
    )
    for case in found:
        if case.name.startswith("rotary"):
            case.inputs["cosine"], case.inputs["sine"] = _Table(cosine), _Table(sine)  # type: ignore[assignment]
    return found


class _Table(Input):
    """Given numbers, in float32."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        super().__init__(values.shape)
        object.__setattr__(self, "values", values)

    def array(self, random: np.random.Generator, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """The values."""
        return self.values  # type: ignore[attr-defined,no-any-return]


def _torch_rotary(torch: Any, f: Any, t: Tensors) -> Any:
    x = t["x"].float()
    c, s = (t[name][t["p"].long()][:, None, :] for name in ("cosine", "sine"))
    a, b = x.chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1).to(t["x"].dtype)


def _torch_sample(torch: Any, f: Any, t: Tensors) -> Any:
    scores, ids = torch.topk(t["x"].float(), min(50, t["x"].shape[-1]))
    chances = torch.softmax(scores / 0.8, -1)
    chances = torch.where(torch.cumsum(chances, -1) - chances < 0.95, chances, 0.0)
    return ids.gather(-1, torch.multinomial(chances, 1))[:, 0]


def _minilm(e: int, scale: int) -> list[Case]:
    k = tk.kernels
    batch, tokens, hidden, inner, heads, size = (
        max(2, 32 // scale),
        128 // scale,
        384 // scale,
        1536 // scale,
        12,
        32,
    )
    rows = batch * tokens
    x, w = Input((rows, hidden)), Input((hidden,))
    by_heads = Input((batch, heads, tokens, size))
    found = [
        Case(
            "add_layer_norm",
            "MiniLM",
            {"x": x, "r": x, "w": w, "b": w},
            lambda t: k.add_layer_norm(t["x"], t["r"], t["w"], t["b"], eps=1e-12),
            lambda torch, f, t: f.layer_norm(t["x"] + t["r"], (t["x"].shape[-1],), t["w"], t["b"], 1e-12),
            "bytes",
            3 * rows * hidden * e,
        ),
        Case(
            "layer_norm",
            "MiniLM",
            {"x": x, "w": w, "b": w},
            lambda t: k.layer_norm(t["x"], t["w"], t["b"], eps=1e-12),
            lambda torch, f, t: f.layer_norm(t["x"], (t["x"].shape[-1],), t["w"], t["b"], 1e-12),
            "bytes",
            2 * rows * hidden * e,
        ),
        Case(
            "attention, lengths",
            "MiniLM",
            {"q": by_heads, "k": by_heads, "v": by_heads, "n": Input((batch,), exactly=tokens * 3 // 4)},
            lambda t: k.attention(t["q"], t["k"], t["v"], lengths=t["n"]),
            lambda torch, f, t: f.scaled_dot_product_attention(
                t["q"],
                t["k"],
                t["v"],
                attn_mask=(torch.arange(tokens, device=t["n"].device) < t["n"][:, None])[:, None, None, :],
            ),
            "flops",
            4.0 * batch * heads * tokens * (tokens * 3 // 4) * size,
        ),
        Case(
            "mean_pool, lengths",
            "MiniLM",
            {"x": Input((batch, tokens, hidden)), "n": Input((batch,), exactly=tokens * 3 // 4)},
            lambda t: k.mean_pool(t["x"], t["n"]),
            lambda torch, f, t: (
                (t["x"] * (torch.arange(tokens, device=t["n"].device) < t["n"][:, None])[..., None]).sum(1)
                / t["n"][:, None]
            ).to(t["x"].dtype),
            "bytes",
            rows * 3 / 4 * hidden * e,
        ),
        Case(
            "gelu",
            "MiniLM",
            {"x": Input((rows, inner))},
            lambda t: k.gelu(t["x"]),
            lambda torch, f, t: f.gelu(t["x"]),
            "bytes",
            2 * rows * inner * e,
        ),
    ]
    for what, n, depth, activation in (
        ("qkv", 3 * hidden, hidden, "none"),
        ("up, gelu", inner, hidden, "gelu"),
        ("down", hidden, inner, "none"),
    ):
        found.append(
            Case(
                f"linear {what}",
                "MiniLM",
                {"x": Input((rows, depth)), "w": Input((n, depth)), "b": Input((n,))},
                lambda t, activation=activation: k.linear(t["x"], t["w"], t["b"], activation=activation),
                lambda torch, f, t, activation=activation: (f.gelu if activation == "gelu" else lambda y: y)(
                    f.linear(t["x"], t["w"], t["b"])
                ),
                "flops",
                2.0 * rows * n * depth,
            )
        )
    return found


def _large(e: int, scale: int) -> list[Case]:
    k = tk.kernels
    n, rows, columns = (1 << 26) // scale**3, 16384 // scale, 4096 // scale
    vector, matrix, weight = Input((n,)), Input((rows, columns)), Input((columns,))
    found = []

    def add(
        name: str, inputs: dict[str, Input], ours: Any, theirs: Any, work: str, amount: float, **more: Any
    ) -> None:
        found.append(Case(name, "large", inputs, ours, theirs, work, amount, **more))

    add(
        f"add {n}",
        {"x": vector, "y": vector},
        lambda t: k.add(t["x"], t["y"]),
        lambda torch, f, t: t["x"] + t["y"],
        "bytes",
        3.0 * n * e,
    )
    add(
        f"mul {n}",
        {"x": vector, "y": vector},
        lambda t: k.mul(t["x"], t["y"]),
        lambda torch, f, t: t["x"] * t["y"],
        "bytes",
        3.0 * n * e,
    )
    add(
        f"gelu {n}",
        {"x": vector},
        lambda t: k.gelu(t["x"]),
        lambda torch, f, t: f.gelu(t["x"]),
        "bytes",
        2.0 * n * e,
    )
    add(
        f"dropout {n}",
        {"x": vector},
        lambda t: k.dropout(t["x"], 0.1, 7),
        lambda torch, f, t: f.dropout(t["x"], 0.1),
        "bytes",
        2.0 * n * e,
        is_random=True,
    )
    add(
        f"copy {rows} x {columns}",
        {"x": matrix},
        lambda t: ca.copy(t["x"]),
        lambda torch, f, t: t["x"].clone(),
        "bytes",
        2.0 * rows * columns * e,
    )
    add(
        f"softmax {rows} x {columns}",
        {"x": matrix},
        lambda t: k.softmax(t["x"]),
        lambda torch, f, t: torch.softmax(t["x"], -1),
        "bytes",
        2.0 * rows * columns * e,
    )
    add(
        f"rms_norm {rows} x {columns}",
        {"x": matrix, "w": weight},
        lambda t: k.rms_norm(t["x"], t["w"]),
        lambda torch, f, t: f.rms_norm(t["x"], (columns,), t["w"], 1e-5),
        "bytes",
        2.0 * rows * columns * e,
    )
    add(
        f"layer_norm {rows} x {columns}",
        {"x": matrix, "w": weight, "b": weight},
        lambda t: k.layer_norm(t["x"], t["w"], t["b"]),
        lambda torch, f, t: f.layer_norm(t["x"], (columns,), t["w"], t["b"], 1e-5),
        "bytes",
        2.0 * rows * columns * e,
    )
    add(
        f"add_layer_norm {rows} x {columns}",
        {"x": matrix, "r": matrix, "w": weight, "b": weight},
        lambda t: k.add_layer_norm(t["x"], t["r"], t["w"], t["b"]),
        lambda torch, f, t: f.layer_norm(t["x"] + t["r"], (columns,), t["w"], t["b"], 1e-5),
        "bytes",
        3.0 * rows * columns * e,
    )
    add(
        f"add_rms_norm {rows} x {columns}",
        {"x": matrix, "r": matrix, "w": weight},
        lambda t: k.add_rms_norm(t["x"], t["r"], t["w"]).first(),
        lambda torch, f, t: f.rms_norm(t["x"] + t["r"], (columns,), t["w"], 1e-5),
        "bytes",
        4.0 * rows * columns * e,
    )
    add(
        f"transpose {rows} x {columns}",
        {"x": matrix},
        lambda t: k.transpose(t["x"]),
        lambda torch, f, t: t["x"].t().contiguous(),
        "bytes",
        2.0 * rows * columns * e,
    )
    for side in (4096 // scale, 8192 // scale):
        square = Input((side, side))
        for kind in ("plain", "persistent"):
            add(
                f"matmul {kind} {side}",
                {"a": square, "b": square},
                lambda t, kind=kind: k.matmul(t["a"], t["b"], persistent=kind == "persistent"),
                lambda torch, f, t: t["a"] @ t["b"],
                "flops",
                2.0 * side**3,
            )
    add(
        f"matmul 256 x {rows} x 256",
        {"a": Input((256, rows)), "b": Input((rows, 256))},
        lambda t: k.matmul(t["a"], t["b"]),
        lambda torch, f, t: t["a"] @ t["b"],
        "flops",
        2.0 * 256 * 256 * rows,
    )
    many = Input((64, 512 // scale, 512 // scale))
    add(
        f"batched_matmul 64 x {512 // scale}",
        {"a": many, "b": many},
        lambda t: k.batched_matmul(t["a"], t["b"]),
        lambda torch, f, t: torch.bmm(t["a"], t["b"]),
        "flops",
        2.0 * 64 * (512 // scale) ** 3,
    )
    heads, tokens, size = max(1, 32 // scale), 4096 // scale, 128
    by_heads = Input((4, heads, tokens, size))
    for causal in (False, True):
        add(
            f"attention{' causal' if causal else ''} 4 x {heads} x {tokens} x {size}",
            {"q": by_heads, "k": by_heads, "v": by_heads},
            lambda t, causal=causal: k.attention(t["q"], t["k"], t["v"], causal=causal),
            lambda torch, f, t, causal=causal: f.scaled_dot_product_attention(
                t["q"], t["k"], t["v"], is_causal=causal
            ),
            "flops",
            4.0 * 4 * heads * tokens * tokens * size * (0.5 if causal else 1.0),
        )
    assert math.isfinite(sum(case.amount for case in found))
    return found
