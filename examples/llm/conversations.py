"""Several conversations on one model, each a stream of tokens.

A conversation has a slot while it runs: a cache, a stream of the device, and the captured step, one graph for each
way of sampling. Slots are made when they are first needed, at most `slots`; further conversations wait for one.

A step is one launch. The next one is launched before the token of the last is read, so the device does not wait for the
host: what a step needs is on the device. Hence the graph is called, `graph()`, which copies what it yields to memory
of its own: the next launch may come before the token is on its way to the host.

A conversation that ends, by its length, its end token or by being cancelled at any point, leaves at most the step that
was waited for and one more, which write to its own cache. When they are over, the slot is given to the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from llama import GREEDY, Cache, Llama, Sampling

import cuda_async as ca

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from numpy.typing import NDArray

__all__ = ["Conversations", "Slot", "pieces"]

AHEAD = 1
"""Steps that are launched before the last one's token is read."""


class Slot:
    """What one conversation at a time uses.

    Attributes:
        cache: its memory. policy: its stream. graphs: the captured step, by how tokens are chosen and whether it yields
            the logits beside the token.
    """

    def __init__(self, model: Llama, cache: Cache) -> None:
        self.cache = cache
        self.policy = ca.SingleStream()
        self.graphs: ca.GraphCache[tuple[Sampling, bool], tuple[ca.Tensor, ...]] = ca.GraphCache(
            lambda key: yielded(model.step(cache, key[0]), key[1]), max_graphs=4
        )


def yielded(
    made: ca.DeviceOp[tuple[ca.Tensor, ca.Tensor]], with_logits: bool
) -> ca.DeviceOp[tuple[ca.Tensor, ...]]:
    """What a step yields to the host: (token,) or (token, logits)."""
    return made.map(lambda m: m if with_logits else m[:1])


def to_host(tensors: tuple[ca.Tensor, ...]) -> ca.DeviceOp[list[NDArray[Any]]]:
    """All of them, as arrays."""
    return ca.collect([tensor.to_host() for tensor in tensors])


async def pieces(tokenizer: Any, tokens: AsyncGenerator[int, None]) -> AsyncGenerator[str, None]:
    """The text of the tokens, piece by piece, a piece for each token that completes a character."""
    seen: list[int] = []
    done = 0
    try:
        async for token in tokens:
            seen.append(token)
            text = tokenizer.decode(seen, skip_special_tokens=True)
            if text.endswith("\ufffd"):  # the rest of the character is still to come
                continue
            yield text[done:]
            done = len(text)
    finally:
        await tokens.aclose()


class Conversations:
    """Runs conversations on a model's device; belongs to one event loop.

    Args:
        slots: how many run at once; each has a cache of the model's context.
    """

    def __init__(self, model: Llama, slots: int = 4) -> None:
        if slots < 1:
            raise ValueError(f"slots is {slots}; at least 1 conversation runs at once")
        self.model = model
        self._places = asyncio.Semaphore(slots)
        self._free: list[Slot] = []
        self._leaving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def _slot(self, running: deque[ca.DeviceFuture[Any]]) -> AsyncIterator[Slot]:
        """A slot, which is free again when the steps in `running` are over."""
        await self._places.acquire()
        try:
            slot = self._free.pop() if self._free else Slot(self.model, await self.model.new_cache())
        except BaseException:
            self._places.release()
            raise
        try:
            yield slot
        finally:
            task = asyncio.get_running_loop().create_task(self._leave(slot, list(running)))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _leave(self, slot: Slot, running: list[ca.DeviceFuture[Any]]) -> None:
        await asyncio.gather(*running, return_exceptions=True)
        self._free.append(slot)
        self._places.release()

    async def _steps(
        self,
        prompt: Sequence[int],
        count: int,
        sampling: Sampling,
        with_logits: bool,
    ) -> AsyncGenerator[list[NDArray[Any]], None]:
        """Token and, where wanted, logits of each of `count` steps, or of as many as the context has room for."""
        if count < 1:
            raise ValueError(f"the number of tokens is {count}; at least 1 is generated")
        self.model.check(prompt)  # now: not when a slot is free
        running: deque[ca.DeviceFuture[list[NDArray[Any]]]] = deque()
        async with self._slot(running) as slot:
            first = yielded(self.model.prefill(slot.cache, prompt, sampling), with_logits)
            yield await first.then(to_host).schedule(slot.policy)
            left = min(count - 1, self.model.context - len(prompt))
            if left:
                graph = await slot.graphs.get((sampling, with_logits)).schedule(slot.policy)
            while left or running:
                while left and len(running) <= AHEAD:
                    running.append(graph().then(to_host).start(slot.policy))
                    left -= 1
                yield await running[0]
                running.popleft()

    async def tokens(
        self, prompt: Sequence[int], max_tokens: int, sampling: Sampling = GREEDY
    ) -> AsyncGenerator[int, None]:
        """The tokens of the answer, as they are chosen; the end token is not among them.

        Raises:
            ValueError: what `Llama.prefill` refuses.
        """
        steps = self._steps(prompt, max_tokens, sampling, with_logits=False)
        try:
            async for (token,) in steps:
                if token[0] == self.model.config.end_token:
                    return
                yield int(token[0])
        finally:
            await steps.aclose()

    async def trace(
        self, prompt: Sequence[int], count: int
    ) -> AsyncGenerator[tuple[int, NDArray[Any]], None]:
        """The likeliest tokens, past an end token too, each with its logits (vocabulary,)."""
        steps = self._steps(prompt, count, GREEDY, with_logits=True)
        try:
            async for token, logits in steps:
                yield int(token[0]), logits[0]
        finally:
            await steps.aclose()

    async def text(
        self, tokenizer: Any, prompt: Sequence[int], max_tokens: int, sampling: Sampling = GREEDY
    ) -> AsyncGenerator[str, None]:
        """The answer's text, as `pieces` of it."""
        made = pieces(tokenizer, self.tokens(prompt, max_tokens, sampling))
        try:
            async for piece in made:
                yield piece
        finally:
            await made.aclose()
