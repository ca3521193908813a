"""A Llama model on a device: prompts by large tiles, then one token per step by the kernels of `decode_kernels.py`.

Weights of one kind are one allocation, and a conversation's cache is one: a launched graph orders the memory it uses by
allocation, and there are three of those instead of three hundred.

The weights' rows that make queries and keys are put into the order in which rotation pairs element i of a head with
i + head size / 2; a GGUF file has neighbours as pairs. Scores are the same, for both are reordered alike.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from decode_kernels import advance, attend, embed, project

import cuda_async as ca
import tilekern as tk
from tilekern.kernels import raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model_file import Config, Weights

__all__ = ["CHUNK", "DTYPES", "GREEDY", "Cache", "Llama", "Plan", "Sampling"]

k = tk.kernels

CHUNK = 128
"""Tokens of a prompt that are computed at once; a context is a multiple of it."""

DTYPES = {"float32": ca.float32, "bfloat16": ca.bfloat16, "float16": ca.float16}
"""Types that weights and caches may have."""

ALIGNMENT = 256
"""Elements; what begins at a multiple of it can be loaded in the widest pieces."""

MAX_TOP_K = 128
"""What `tk.kernels.sample_top_k` takes at most."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: of the `top_k` likeliest, or, at temperature 0, the likeliest.

    Raises:
        ValueError: what `tk.kernels.sample_top_k` refuses.
    """

    temperature: float = 0.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= float(np.finfo(np.float32).max):
            raise ValueError(
                f"temperature is {self.temperature}; 0 takes the likeliest token, 1 draws as the model does"
            )
        if not isinstance(self.top_k, Integral) or not 1 <= self.top_k <= MAX_TOP_K:
            raise ValueError(f"top_k is {self.top_k}; the token is one of the 1 to {MAX_TOP_K} likeliest")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it is a share, above 0 and up to 1")
        if not isinstance(self.seed, Integral) or not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed is {self.seed}; it is a number from 0 to 2**64 - 1")


GREEDY = Sampling()


@dataclass(frozen=True)
class Plan:
    """Tiles of a decode step.

    Attributes:
        columns: largest number of outputs of a block. blocks: how many blocks a product shall have at least, where
            that leaves one output for each. depths: inputs taken at once, the one that wastes least.
        shares: blocks that the keys of a head are split over. keys: those taken at once, of 2 bytes an element.
        tma: whether weights may come through the tensor memory accelerator, where there is one.
        early: whether a kernel may be made ready while the one before it still runs, on sm_90 and later.
    """

    columns: int
    blocks: int
    depths: tuple[int, ...]
    shares: int
    keys: int
    tma: bool = True
    early: bool = False

    @classmethod
    def of(cls, device: ca.Device) -> Plan:
        """What suits the device."""
        if device.kind == "host":  # the interpreter wants few, large tiles
            return cls(columns=128, blocks=1, depths=(64,), shares=1, keys=64)
        return cls(
            columns=8,
            blocks=2 * device.limits.multiprocessors,
            depths=(1024, 512, 256),
            shares=8,
            keys=64,
            early=device.compute_capability >= (9, 0),
        )

    def tile(self, n: int, inputs: int) -> tuple[int, int]:
        """Outputs and inputs of a block, for a weight (n, inputs)."""
        columns = 1
        while columns < self.columns and n // (2 * columns) >= self.blocks:
            columns *= 2
        return columns, min(self.depths, key=lambda depth: (-(-inputs // depth) * depth, -depth))


@dataclass(frozen=True)
class DeviceLayer:
    """One layer's weights on the device: norms (hidden,), products (1, n, k), gate and up together (2, n, k)."""

    attention_norm: ca.Tensor
    qkv: ca.Tensor
    output: ca.Tensor
    mlp_norm: ca.Tensor
    gate_up: ca.Tensor
    down: ca.Tensor


class Cache:
    """What the device knows of one conversation.

    Attributes:
        layers: keys and values of each layer, (key heads, capacity, head size).
        token: int32 (1,), the last token, not yet in the cache. position: int32 (1,), where it will stand.
    """

    def __init__(self, config: Config, memory: ca.Tensor, token: ca.Tensor, position: ca.Tensor) -> None:
        self.layers = [(memory[i, 0], memory[i, 1]) for i in range(config.layers)]
        self.memory = memory
        self.token = token
        self.position = position

    @property
    def capacity(self) -> int:
        """Tokens that it holds."""
        return self.memory.shape[3]


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


def halves(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of heads whose pairs are neighbours, reordered so that element i and i + half are a pair."""
    n, inputs = weight.shape
    return weight.reshape(heads, n // heads // 2, 2, inputs).swapaxes(1, 2).reshape(n, inputs)


def arranged(
    config: Config, weights: Weights, dtype: np.dtype[np.generic], context: int
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """What goes to the device, in its types: the matrices, and the norms with the tables of the rotation."""
    matrices: list[np.ndarray[Any, Any]] = [weights.embedding]
    norms: list[np.ndarray[Any, Any]] = [weights.norm]
    for layer in weights.layers:
        query, key = halves(layer.query, config.heads), halves(layer.key, config.kv_heads)
        matrices += [
            np.concatenate([query, key, layer.value])[None],
            layer.output[None],
            np.stack([layer.gate, layer.up]),
            layer.down[None],
        ]
        norms += [layer.attention_norm, layer.mlp_norm]
    norms += k.rotary_tables(context, config.head_size, theta=config.rope_base)
    return [np.ascontiguousarray(m, dtype) for m in matrices], [np.ascontiguousarray(n, "f4") for n in norms]


class Llama:
    """The model's weights on one device, and operations on them. Made by `await Llama.load(...)`."""

    def __init__(self, config: Config, dtype: np.dtype[np.generic], context: int, plan: Plan) -> None:
        if context % CHUNK or not CHUNK <= context <= config.context:
            raise ValueError(
                f"the context is a multiple of {CHUNK} up to {config.context} tokens, got {context}"
            )
        self.config = config
        self.dtype = dtype
        self.context = context
        self.use(plan)
        self.weight_bytes = 0
        self.layers: list[DeviceLayer] = []
        self.embedding: ca.Tensor
        self.norm: ca.Tensor
        self.cosine: ca.Tensor
        self.sine: ca.Tensor

    def use(self, plan: Plan) -> None:
        """Make later steps by this plan."""
        self.plan = plan
        self._embed, self._project, self._attend, self._advance = (
            kernel.with_options(programmatic_dependent_launch=True) if plan.early else kernel
            for kernel in (embed, project, attend, advance)
        )

    @classmethod
    async def load(
        cls,
        config: Config,
        weights: Weights,
        *,
        dtype: str = "float32",
        context: int = 512,
        plan: Plan | None = None,
    ) -> Llama:
        """Bring the weights to the current device, rounded to `dtype`; norms stay float32.

        Args:
            dtype: float32, bfloat16 or float16. context: how many tokens a conversation has at most.
        Raises:
            ValueError: another type, or a context that the model does not have.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}; choose one of {', '.join(DTYPES)}")
        self = cls(config, DTYPES[dtype], context, plan or Plan.of(ca.current_device()))
        matrices, norms = await asyncio.to_thread(arranged, config, weights, self.dtype, context)
        there = await packed(matrices)
        small = await packed(norms)
        self.embedding, self.norm = there[0], small[0]
        self.cosine, self.sine = small[-2:]
        for i in range(config.layers):
            qkv, output, gate_up, down = there[1 + 4 * i : 5 + 4 * i]
            self.layers.append(DeviceLayer(small[1 + 2 * i], qkv, output, small[2 + 2 * i], gate_up, down))
        self.weight_bytes = sum(m.size for m in matrices) * self.dtype.itemsize
        return self

    def new_cache(self) -> ca.DeviceOp[Cache]:
        """Memory for one conversation."""
        c = self.config
        shape = (c.layers, 2, c.kv_heads, self.context, c.head_size)
        parts = ca.zip(ca.zeros(shape, self.dtype), ca.zeros((1,), ca.int32), ca.zeros((1,), ca.int32))
        return parts.map(lambda made: Cache(c, *made))

    # -- one step

    def step(self, cache: Cache, sampling: Sampling = GREEDY) -> ca.DeviceOp[tuple[ca.Tensor, ca.Tensor]]:
        """Take `cache.token` in, choose the next; to be captured. Yields it and its logits, float32 (1, vocabulary).

        Position and token are read and written on the device, so that each launch of one graph is the next step.
        """
        hidden = self.config.hidden
        tile = min(1024, 1 << (hidden - 1).bit_length())
        op = self._embed(ca.empty((1, hidden)).partition((1, tile)), cache.token, self.embedding)
        x = op.first().unpartition()
        for layer, (keys, values) in zip(self.layers, cache.layers):
            x = x.then(partial(self._decode_layer, layer, keys, values, cache.position))
        return x.then(lambda x: self._choose(x, cache, sampling)).then(
            lambda made: self._advance(cache.position.partition(1)).map(lambda _: made)
        )

    def _product(
        self,
        x: ca.Tensor,
        weight: ca.Tensor,
        *,
        counts: ca.Tensor | None = None,
        norm: ca.Tensor | None = None,
        residual: ca.Tensor | None = None,
    ) -> ca.DeviceOp[ca.Tensor]:
        n, inputs = weight.shape[1:]
        columns, depth = self.plan.tile(n, inputs)
        place = ca.empty((1, n)).partition((1, columns))
        tile = (depth, 1 << (x.shape[0] - 1).bit_length())
        eps = self.config.norm_epsilon
        gated = weight.shape[0] == 2
        op = self._project(place, x, counts, norm, weight, residual, eps, tile, gated, self.plan.tma)
        return op.first().unpartition()

    def _decode_layer(
        self, layer: DeviceLayer, keys: ca.Tensor, values: ca.Tensor, position: ca.Tensor, x: ca.Tensor
    ) -> ca.DeviceOp[ca.Tensor]:
        return (
            self._product(x, layer.qkv, norm=layer.attention_norm)
            .then(lambda qkv: self._mix(qkv, keys, values, position))
            .then(lambda made: self._product(made[0], layer.output, counts=made[1], residual=x))
            .then(
                lambda x: self._product(x, layer.gate_up, norm=layer.mlp_norm).then(
                    lambda h: self._product(h, layer.down, residual=x)
                )
            )
        )

    def _mix(
        self, qkv: ca.Tensor, keys: ca.Tensor, values: ca.Tensor, position: ca.Tensor
    ) -> ca.DeviceOp[tuple[ca.Tensor, ca.Tensor]]:
        """The shares of attention and how much they count, both (shares, heads * head size)."""
        c = self.config
        size, group = c.head_size, c.heads // c.kv_heads
        rows = qkv.reshape(c.heads + 2 * c.kv_heads, size)
        query = rows[: c.heads].reshape(c.kv_heads, group, 2, size // 2)
        key = rows[c.heads : c.heads + c.kv_heads].reshape(c.kv_heads, 1, 2, size // 2)
        value = rows[c.heads + c.kv_heads :]
        shares = min(self.plan.shares, -(-self.context // self.plan.keys))
        heads = 1 << (group - 1).bit_length()
        # 16 rows for tensor cores, which float32 is not computed with
        tile = (heads, self.plan.keys // 2, size // 2)
        if self.dtype.itemsize == 2:
            tile = (max(16, heads), self.plan.keys, size // 2)

        def launch(made: tuple[ca.Tensor, ca.Tensor]) -> ca.DeviceOp[tuple[ca.Tensor, ca.Tensor]]:
            op = self._attend(
                *map(ca.mut, (*made, keys, values)),
                *(query, key, value, self.cosine, self.sine, position),
                size**-0.5,
                tile,
            ).grid((shares, c.kv_heads))
            return op.map(lambda out: (out[0].reshape(shares, -1), out[1].reshape(shares, -1)))

        shape = (shares, c.kv_heads, group, size)
        return ca.zip(ca.empty(shape), ca.empty(shape)).then(launch)

    def _choose(
        self, x: ca.Tensor, cache: Cache, sampling: Sampling
    ) -> ca.DeviceOp[tuple[ca.Tensor, ca.Tensor]]:
        """Logits of the activations (1, hidden), and the next token from them, written to `cache.token`."""
        vocabulary = self.embedding.reshape(1, *self.embedding.shape)

        def draw(logits: ca.Tensor) -> ca.DeviceOp[tuple[ca.Tensor, ca.Tensor]]:
            chosen = k.sample_top_k(
                logits,
                cache.position,
                k=sampling.top_k,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=sampling.seed,
                out=cache.token,
            )
            return chosen.map(lambda token: (token, logits))

        return self._product(x, vocabulary, norm=self.norm).then(draw)

    # -- the prompt

    def check(self, prompt: Sequence[int]) -> np.ndarray[Any, Any]:
        """The prompt as an array.

        Raises:
            ValueError: it is empty, longer than the context less one token, or has a token out of range.
        """
        tokens = np.asarray(prompt)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise ValueError(f"the prompt is a sequence of tokens, whole numbers, got {prompt!r:.80}")
        if not 1 <= tokens.size < self.context:
            raise ValueError(
                f"the prompt has {tokens.size} tokens, the context takes 1 to {self.context - 1}; "
                "give a larger context, or a shorter prompt"
            )
        if tokens.min() < 0 or tokens.max() >= self.config.vocabulary:
            raise ValueError(
                f"tokens are 0 to {self.config.vocabulary - 1}, got {tokens.min()} to {tokens.max()}"
            )
        return tokens.astype(np.int32)

    def prefill(
        self, cache: Cache, prompt: Sequence[int], sampling: Sampling = GREEDY
    ) -> ca.DeviceOp[tuple[ca.Tensor, ca.Tensor]]:
        """Begin a conversation: the prompt into the cache, the first token behind it chosen. Yields as `step` does.

        The prompt is computed in chunks, the last one padded. What the padding leaves in the cache is behind all that
        a token sees, and is written over before one sees it.

        Raises:
            ValueError: what `check` refuses.
        """
        tokens = self.check(prompt)
        chunks = [tokens[i : i + CHUNK] for i in range(0, tokens.size, CHUNK)]
        op = self._chunk(cache, chunks[0], 0)
        for i, chunk in enumerate(chunks[1:], 1):
            op = op.then(lambda _, chunk=chunk, i=i: self._chunk(cache, chunk, i * CHUNK))
        return (
            op.then(
                # the counter of the first draw: it stands where the prompt's last token does
                lambda x: ca.fill(cache.position, tokens.size - 1).map(lambda _: x)
            )
            .then(lambda x: self._choose(x, cache, sampling))
            .then(lambda made: self._advance(cache.position.partition(1)).map(lambda _: made))
        )

    def _chunk(self, cache: Cache, tokens: np.ndarray[Any, Any], start: int) -> ca.DeviceOp[ca.Tensor]:
        """Activations (1, hidden) of the last of `tokens`, which stand from `start` on."""
        count = max(16, 1 << (tokens.size - 1).bit_length())
        ids = np.zeros(count, np.int32)
        ids[: tokens.size] = tokens
        places = ca.from_host(np.arange(start, start + count, dtype=np.int32))

        def layers(made: tuple[ca.Tensor, ca.Tensor]) -> ca.DeviceOp[ca.Tensor]:
            op = k.embedding(made[0], self.embedding).astype(ca.float32)
            for layer, (keys, values) in zip(self.layers, cache.layers):
                op = op.then(partial(self._prefill_layer, layer, keys, values, made[1], start + count))
            return op.map(lambda x: x[tokens.size - 1 : tokens.size])

        return ca.zip(ca.from_host(ids), places).then(layers)

    def _prefill_layer(
        self,
        layer: DeviceLayer,
        keys: ca.Tensor,
        values: ca.Tensor,
        places: ca.Tensor,
        end: int,
        x: ca.Tensor,
    ) -> ca.DeviceOp[ca.Tensor]:
        """One layer for x (tokens, hidden), float32, which stand at `places`, up to `end`."""
        c = self.config
        count, size = x.shape[0], c.head_size

        def attend(qkv: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
            rows = qkv.reshape(count, c.heads + 2 * c.kv_heads, size)
            by_head = rows.reshape(1, *rows.shape).permute(0, 2, 1, 3)
            query, key = by_head[:, : c.heads], by_head[:, c.heads : c.heads + c.kv_heads]
            old_keys, old_values = (t.reshape(1, *t.shape) for t in (keys, values))

            def mix(_: object) -> ca.DeviceOp[ca.Tensor]:
                return ca.empty((1, count, c.heads, size), self.dtype).then(
                    lambda out: k.attention(
                        query,
                        old_keys[:, :, :end],
                        old_values[:, :, :end],
                        causal=True,
                        out=out.permute(0, 2, 1, 3),
                    ).map(lambda _: out.reshape(count, c.heads * size))
                )

            turned = k.rotary(rows[:, : c.heads + c.kv_heads], self.cosine, self.sine, places, in_place=True)
            return turned.then(
                lambda _: k.update_cache(
                    old_keys, old_values, key, by_head[:, c.heads + c.kv_heads :], places[:1]
                )
            ).then(mix)

        def mlp(x: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
            gate_up = layer.gate_up.reshape(2 * c.intermediate, c.hidden)
            h = k.silu_mul(k.linear(self._norm(x, layer.mlp_norm), gate_up))
            return h.then(lambda h: self._add_product(h, layer.down[0], x))

        qkv = k.linear(self._norm(x, layer.attention_norm), layer.qkv[0])
        return qkv.then(attend).then(lambda a: self._add_product(a, layer.output[0], x)).then(mlp)

    def _norm(self, x: ca.Tensor, weight: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
        """The RMS norm of float32 rows, as the weights' type."""
        tile = (1, 1 << (x.shape[1] - 1).bit_length())
        place = ca.empty(x.shape, self.dtype).partition(tile)
        return raw.rms_norm(place, x, weight, self.config.norm_epsilon).first().unpartition()

    def _add_product(self, x: ca.Tensor, weight: ca.Tensor, residual: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
        """x @ weight.T + residual, as float32."""
        place = ca.empty(residual.shape).partition((min(64, x.shape[0]), 64))
        depth = 32 if self.dtype.itemsize == 4 else 64
        return raw.matmul_epilogue(place, x, weight.T, None, residual, depth).first().unpartition()
