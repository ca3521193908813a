"""Sentences of many tasks, embedded in batches: one launch of a graph for each.

Each bucket of tokens has a line of sentences that wait. A line is served by up to `ahead` batches at once; a batch
takes what has come in until it begins, up to the largest bucket of sentences. So a sentence that comes alone begins in
the loop's next turn, and what comes while the device is busy shares the next launch: nothing waits for a timer.

A batch belongs to the service, not to a task. Cancelling a task takes those of its sentences that still wait out of
their lines; those that have begun are computed, and thrown away. A batch that fails is an exception for each task that
has a sentence in it, and for no other.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import cuda_async as ca

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from encoder import Encoder
    from model_file import Tokenizer, Tokens
    from numpy.typing import NDArray

__all__ = ["Embedder", "Statistics"]

Waiter = asyncio.Future[np.ndarray[Any, np.dtype[np.float32]]]

LONG_TEXT = 20_000
"""Characters; more of them are made tokens of on another thread, for that takes some milliseconds."""


@dataclass
class Statistics:
    """What a service has done so far.

    Attributes:
        sentences: that were embedded. batches: launches for them. tokens: of these sentences. places: for tokens, in
            these batches, padding included.
    """

    sentences: int = 0
    batches: int = 0
    tokens: int = 0
    places: int = 0


@dataclass
class Line:
    """One bucket of tokens.

    Attributes:
        waiting: sentences that no batch has taken, with what their tasks wait for. begun: batches that are not over.
            idle: those of them that have not taken their sentences yet.
    """

    waiting: deque[tuple[NDArray[np.int32], Waiter]] = field(default_factory=deque)
    begun: int = 0
    idle: int = 0


class Embedder:
    """Embeds sentences for any number of tasks; belongs to one event loop.

    Args:
        ahead: batches of a bucket that may run at once: while one is on the device, the next is made ready.
    """

    def __init__(self, encoder: Encoder, tokenizer: Tokenizer, *, ahead: int = 2) -> None:
        if ahead < 1:
            raise ValueError(f"ahead is {ahead}; at least 1 batch runs")
        self.encoder = encoder
        self.tokenizer = tokenizer
        self._ahead = ahead
        self._lines: dict[int, Line] = {}
        self._batches: set[asyncio.Task[None]] = set()
        self._statistics = Statistics()
        self._closed = False
        self._context = contextvars.copy_context()

    async def embed(self, sentences: Sequence[str], *, truncate: bool = True) -> NDArray[np.float32]:
        """The embeddings of the sentences, of length 1: (sentences, hidden). Their dot products are their similarities.

        Args:
            truncate: cut longer sentences off at the tokenizer's limit.
        Raises:
            TypeError, ValueError: what `Tokenizer.encode` refuses; nothing is embedded then.
            ClosedError: the service is closed.
        """
        return await self.embed_tokens(await self.tokens(sentences, truncate=truncate))

    async def tokens(self, sentences: Sequence[str], *, truncate: bool = True) -> list[Tokens]:
        """What `Tokenizer.encode` makes of the sentences, without holding the loop up."""
        if sum(len(s) for s in sentences if isinstance(s, str)) <= LONG_TEXT:
            return self.tokenizer.encode(sentences, truncate=truncate)
        return await asyncio.to_thread(self.tokenizer.encode, sentences, truncate=truncate)

    async def embed_tokens(self, tokens: Sequence[Tokens]) -> NDArray[np.float32]:
        """As `embed`, of sentences that are tokens already."""
        if self._closed:
            raise ca.ClosedError("this service is closed; make a new one")
        if not tokens:
            return np.zeros((0, self.encoder.config.hidden), np.float32)
        self.encoder.check([t.ids for t in tokens])
        return np.stack(await asyncio.gather(*[self._join(t.ids) for t in tokens]))

    def statistics(self) -> Statistics:
        """What was done so far, as a snapshot."""
        return replace(self._statistics)

    def _join(self, ids: NDArray[np.int32]) -> Waiter:
        """Put a sentence into its line."""
        _, length = self.encoder.bucket(1, ids.size)
        line = self._lines.setdefault(length, Line())
        waiter: Waiter = asyncio.get_running_loop().create_future()
        line.waiting.append((ids, waiter))
        self._serve(line)
        return waiter

    def _serve(self, line: Line) -> None:
        """Begin batches, as many as there is room for, and as those that are idle do not take what waits."""
        while line.begun < self._ahead and len(line.waiting) > line.idle * self.encoder.batches[-1]:
            line.begun += 1
            line.idle += 1
            # in a context of its own: what the task that came first has set is nothing to the others
            task = asyncio.get_running_loop().create_task(self._batch(line), context=self._context.copy())
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    async def _batch(self, line: Line) -> None:
        """Take sentences from the line, compute them, and tell those who wait."""
        line.idle -= 1
        taken: list[tuple[NDArray[np.int32], Waiter]] = []
        while line.waiting and len(taken) < self.encoder.batches[-1]:
            sentence = line.waiting.popleft()
            if not sentence[1].done():  # cancelled
                taken.append(sentence)
        try:
            if taken:
                rows = await self._compute([ids for ids, _ in taken])
                for (_, waiter), row in zip(taken, rows):
                    if not waiter.done():
                        waiter.set_result(row)
        except asyncio.CancelledError:  # the loop is ending
            self._closed = True
            for other in self._lines.values():
                taken += other.waiting
                other.waiting.clear()
            for _, waiter in taken:
                waiter.cancel()
            raise
        except Exception as error:
            for _, waiter in taken:
                if not waiter.done():
                    waiter.set_exception(error)
        finally:
            line.begun -= 1
            self._serve(line)

    async def _compute(self, sentences: list[NDArray[np.int32]]) -> NDArray[np.float32]:
        """One launch: embeddings of up to the largest bucket of sentences."""
        bucket, batch = self.encoder.pack(sentences)
        with ca.use_device(self.encoder.device):
            graph = await self.encoder.graphs.get(bucket)
            found = await graph(batch=batch).to_host()
        done = self._statistics
        done.sentences += len(sentences)
        done.batches += 1
        done.tokens += sum(ids.size for ids in sentences)
        done.places += bucket[0] * bucket[1]
        return found[: len(sentences)]

    async def aclose(self) -> None:
        """Refuse further sentences, and wait for those that were given. Closing twice is fine."""
        self._closed = True
        while self._batches:
            await asyncio.wait(self._batches)

    async def __aenter__(self) -> Embedder:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
