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
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

import cuda_async as ca

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from encoder import Encoder
    from encoder_file import Tokenizer, Tokens

__all__ = ["Embedder", "Statistics"]

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


class Request:
    """Sentences that one task gave together.

    Attributes:
        found: their embeddings, as they come in. left: how many are still to come. done: set when none is.
    """

    __slots__ = ("done", "found", "left")

    def __init__(self, count: int, hidden: int) -> None:
        self.found = np.empty((count, hidden), np.float32)
        self.left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Sentence(NamedTuple):
    """One of a request: its tokens, and its row in what is found."""

    ids: NDArray[np.int32]
    request: Request
    row: int


@dataclass
class Line:
    """One bucket of tokens.

    Attributes:
        waiting: sentences that no batch has taken. begun: batches that are not over. idle: those of them that have not
            taken their sentences yet.
    """

    waiting: deque[Sentence] = field(default_factory=deque)
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
        self._lines: dict[int, Line] = defaultdict(Line)
        self._batches: set[asyncio.Task[None]] = set()
        self._statistics = Statistics()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.copy_context()

    async def embed(self, sentences: Sequence[str], *, truncate: bool = True) -> NDArray[np.float32]:
        """The embeddings of the sentences, of length 1: (sentences, hidden). Their dot products are their similarities.

        Args:
            truncate: cut longer sentences off at the tokenizer's limit.
        Raises:
            TypeError, ValueError: what `Tokenizer.encode` refuses; nothing is embedded then.
            ClosedError: the service is closed. SchedulingError: it was used on another loop.
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
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:
            raise ca.SchedulingError("this service belongs to another event loop; make one for each")
        self.encoder.check([t.ids for t in tokens])
        request = Request(len(tokens), self.encoder.config.hidden)
        if tokens:
            lines = set()
            for row, sentence in enumerate(tokens):
                _, length = self.encoder.bucket(1, sentence.ids.size)
                self._lines[length].waiting.append(Sentence(sentence.ids, request, row))
                lines.add(length)
            for length in lines:
                self._serve(self._lines[length])
            await request.done
        return request.found

    def statistics(self) -> Statistics:
        """What was done so far, as a snapshot."""
        return replace(self._statistics)

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
        """Take sentences from the line, compute them, and hand them to their requests."""
        line.idle -= 1
        taken: list[Sentence] = []
        while line.waiting and len(taken) < self.encoder.batches[-1]:
            sentence = line.waiting.popleft()
            if not sentence.request.done.done():  # cancelled, or failed by another batch
                taken.append(sentence)
        try:
            if taken:
                found = await self._compute([sentence.ids for sentence in taken])
                for (_, request, row), embedding in zip(taken, found):
                    request.found[row] = embedding
                    request.left -= 1
                    if not request.left and not request.done.done():
                        request.done.set_result(None)
        except asyncio.CancelledError:  # the loop is ending
            self._closed = True
            for other in self._lines.values():
                taken += other.waiting
                other.waiting.clear()
            for sentence in taken:
                sentence.request.done.cancel()
            raise
        except Exception as error:
            for sentence in taken:
                if not sentence.request.done.done():
                    sentence.request.done.set_exception(error)
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
