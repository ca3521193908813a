"""Random kernels that stream tiles through loops, against NumPy: what warps that load, compute and store do apart.

    python tools/random_pipelines.py --count 500                     # the interpreter
    python tools/random_pipelines.py --count 1500 --device cuda:0    # the compiled kernels
    python tools/random_pipelines.py --count 200 --assembled         # the assembler's PTX, on the simulated device
    python tools/random_pipelines.py --seed 1234 --device cuda:0     # one program again, with its source

`differential.py` draws from the whole language, with tiles of 16 elements, which the tensor memory accelerator never
moves. These tiles are as large as it takes, and the programs are made of what it is used for: loads at the turn's
place and at others, kept for later turns or made ahead, in branches and inner loops, reductions that make warps wait
for each other, products, stores to other tensors and over what was loaded. Numbers are small integers, so every
result is exact. What is expected comes from the same text, run by Python on NumPy's arrays, block by block.

Programs run in processes of their own: a kernel that hangs or breaks the context ends one, and is a finding.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

SHAPES = ((1, 1024), (4, 256), (16, 64), (64, 64), (2, 2048), (128, 32))
DTYPES = ("float32", "bfloat16", "float16", "int32")
TURNS = 5
"""Tiles of each tensor."""
LIMIT = 8
"""No number gets larger than this, or than what a sum or product of such gives before it is limited."""


@dataclass
class Pipeline:
    """A program: the body's lines, and what it is launched with."""

    seed: int
    shape: tuple[int, int]
    dtype: str
    blocks: int
    lines: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The kernel."""
        parameters = "out, other, last, x, y, n: int"
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"def pipeline({parameters}):\n{body}\n"


def draw(seed: int) -> Pipeline:
    """The program of a seed."""
    r = random.Random(seed)
    made = Pipeline(seed, r.choice(SHAPES), r.choice(DTYPES), r.choice((1, 1, 2)))
    if r.random() < 0.5:
        made.options["occupancy"] = r.choice((1, 2, 4))
    if r.random() < 0.3:
        made.options["num_worker_warps"] = r.choice((4, 8))
    if r.random() < 0.2:
        made.options["fuse_multiply_add"] = True
    _Drawing(made, r).program()
    return made


class _Drawing:
    """A program being drawn. Names: k0, k1 are carried by the loop over the turns; v0, v1, ... are of one turn."""

    def __init__(self, made: Pipeline, r: random.Random) -> None:
        self._made = made
        self._r = r
        self._count = 0
        self._shape = f"({made.shape[0]}, {made.shape[1]})"

    def program(self) -> None:
        r, lines = self._r, self._made.lines
        kept = [f"k{i}" for i in range(r.randrange(0, 4))]
        lines.append("b, blocks = tk.bid(0), tk.num_blocks(0)")
        lines += [f"{name} = {self._first()}" for name in kept]
        fixed = []
        if r.random() < 0.3:
            lines.append(f"w = {self._load('0')}")
            fixed.append("w")
        start, step = r.choice((("b", "blocks"), ("b", "blocks"), ("0", "1")))
        alone = start == "b" or self._made.blocks == 1
        lines.append(f"for i in range({start}, n, {step}):")
        body = self._turn(kept, fixed, stores=alone)
        lines += [f"    {line}" for line in body]
        for tensor in ("out", "other"):  # what is given to be written has to be
            if not any(f"tk.store({tensor}," in line for line in body):
                lines.append(f"tk.store({tensor}, (b, 0), {self._load('b')})")
        end = self._value([*kept, *fixed]) if kept or fixed else self._load("n - 1")
        lines.append(f"tk.store(last, (b, 0), {end})")

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _first(self) -> str:
        r = self._r
        if r.random() < 0.6:
            return self._load(r.choice(("b", "0", "n - 1")))
        return f"tk.full({self._shape}, {r.randrange(-2, 3)}, x.dtype)"

    def _load(self, place: str, tensor: str | None = None) -> str:
        tensor = tensor or self._r.choice("xy")
        latency = f", latency={self._r.choice((1, 4, 8))}" if self._r.random() < 0.1 else ""
        return f"tk.load({tensor}, ({place}, 0), {self._shape}{latency})"

    def _place(self) -> str:
        ahead = f"tk.minimum(i + {self._r.choice(('1', '2', 'blocks'))}, n - 1)"
        return self._r.choice(("i", "i", "i", ahead, ahead, "tk.maximum(i - 1, 0)", "0", "n - 1 - i"))

    def _value(self, names: list[str]) -> str:
        """An expression of tiles, whose numbers stay small."""
        r = self._r
        a, b = r.choice(names), r.choice(names)
        kind = r.randrange(9)
        if kind < 2:
            return a
        if kind < 4:
            return f"limited({a} + tk.max({b}, axis=1, keepdims=True))"
        if kind == 4:
            return f"limited({a} - tk.min({b}, axis=0, keepdims=True))"
        if kind == 5:
            return f"limited({a} + {b})"
        if kind == 6:
            return f"limited({a}.astype(tk.float32) * {b}.astype(tk.float32)).astype(x.dtype)"
        if kind == 7:
            return (
                f"tk.where(i % 3 == {r.randrange(3)}, {a}, {b})" if "v1" in names else f"limited({a} - {b})"
            )
        if self._made.dtype in ("bfloat16", "float16") and min(self._made.shape) >= 16:
            square = f"tk.mma({a}, tk.transpose({b}), tk.zeros(({self._made.shape[0]},) * 2, tk.float32))"
            return f"limited({a} + limited(tk.max({square}, axis=1, keepdims=True)).astype(x.dtype))"
        turned = f"limited(tk.transpose({a}) + 1)"
        return f"tk.transpose({turned})"

    def _turn(self, kept: list[str], fixed: list[str], *, stores: bool) -> list[str]:
        r = self._r
        names = [*kept, *fixed]
        lines: list[str] = []

        def new(text: str) -> str:
            name = self._name()
            lines.append(f"{name} = {text}")
            names.append(name)
            return name

        here = new(self._load(self._place()))
        for _ in range(r.randrange(1, 6)):
            kind = r.randrange(10)
            if kind < 3:
                here = new(self._load(self._place()))
            elif kind < 6:
                here = new(self._value(names))
            elif kind == 6 and kept:
                lines.append(
                    f"{r.choice(kept)} = {self._value(names) if r.random() < 0.5 else r.choice(names)}"
                )
            elif kind == 7 and kept:
                name = r.choice(kept)
                lines.append(f"if i % 3 == {r.randrange(3)}:")
                lines.append(
                    f"    {name} = {self._load(self._place()) if r.random() < 0.6 else r.choice(names)}"
                )
                if r.random() < 0.3:
                    lines += ["else:", f"    {name} = {self._value(names)}"]
            elif kind == 8:
                name = new(r.choice(names))
                lines.append(f"for j in range({r.choice(('2', 'i', '3'))}):")
                added = self._load("tk.minimum(i + j, n - 1)")
                lines.append(f"    {name} = {added if r.random() < 0.4 else f'limited({name} + {added})'}")
                here = name
            elif stores:
                # over what was loaded, by the one block that has it
                lines.append(f"tk.store(other, (i, 0), {self._value(names)})")
                here = new(self._load("i", "other"))
        if kept and r.random() < 0.7:
            lines.append(f"{r.choice(kept)} = {self._load(self._place()) if r.random() < 0.6 else here}")
        if stores:
            lines.append(f"tk.store(out, (i, 0), {self._value([here, *names])})")
        return lines


HELPERS = f"""
def limited(t):
    return tk.minimum(tk.maximum(t, {-LIMIT}), {LIMIT})

"""


def kernel_of(made: Pipeline) -> Any:
    """The program as a tile kernel."""
    import tilekern as tk

    text = HELPERS + made.source
    space: dict[str, Any] = {"tk": tk}
    exec(compile(text, tk.register_source(text), "exec"), space)
    return tk.kernel(space["pipeline"]).with_options(**made.options)


class _Numbers:
    """The part of the language that the programs use, on NumPy's arrays in float64, for one block."""

    float32 = np.float64

    def __init__(self, block: int, blocks: int) -> None:
        self._block, self._blocks = block, blocks

    def bid(self, axis: int) -> int:
        return self._block

    def num_blocks(self, axis: int) -> int:
        return self._blocks

    @staticmethod
    def load(array: Any, index: tuple[int, int], shape: tuple[int, int], latency: int = 0) -> Array:
        start = index[0] * shape[0]
        found: Array = array.numbers[start : start + shape[0]].copy()
        return found

    @staticmethod
    def store(array: Any, index: tuple[int, int], tile: Array) -> None:
        start = index[0] * tile.shape[0]
        array.numbers[start : start + tile.shape[0]] = tile

    @staticmethod
    def full(shape: tuple[int, int], value: int, dtype: Any) -> Array:
        return np.full(shape, float(value))

    @staticmethod
    def zeros(shape: tuple[int, int], dtype: Any) -> Array:
        return np.zeros(shape)

    @staticmethod
    def mma(a: Array, b: Array, total: Array) -> Array:
        return a @ b + total

    minimum = staticmethod(lambda a, b: np.minimum(a, b) if isinstance(a, np.ndarray) else min(a, b))
    maximum = staticmethod(lambda a, b: np.maximum(a, b) if isinstance(a, np.ndarray) else max(a, b))
    where = staticmethod(np.where)
    max = staticmethod(np.max)
    min = staticmethod(np.min)
    transpose = staticmethod(np.transpose)


def expected_of(made: Pipeline, x: Array, y: Array) -> list[Array]:
    """What `out`, `other` and `last` hold in the end, by Python and NumPy."""
    rows, columns = made.shape
    tensors = [np.zeros((rows * n, columns)) for n in (TURNS, TURNS, made.blocks)]
    given = [SimpleNamespace(numbers=array, dtype=np.float64) for array in (*tensors, x, y)]
    for block in range(made.blocks):
        space: dict[str, Any] = {"tk": _Numbers(block, made.blocks)}
        exec(HELPERS + made.source, space)
        space["pipeline"](*given, TURNS)
    return tensors


def difference(made: Pipeline, device: str | None, assembled: bool = False) -> str | None:
    """What is wrong with a program's result on a device, or None; `assembled`: of the assembler's code for sm_89."""
    import cuda_async as ca

    if assembled:
        from assembled_code import assembled_code

        with assembled_code():
            return difference(made, device)

    numbers = np.random.default_rng(made.seed)
    x, y = (numbers.integers(-2, 3, (made.shape[0] * TURNS, made.shape[1])).astype("f8") for _ in range(2))
    expected = expected_of(made, x, y)
    dtype = np.dtype(getattr(ml_dtypes, made.dtype, made.dtype))
    with ca.use_device(device or "host:0"):
        given = [ca.from_host(array.astype(dtype)).sync() for array in (x, y)]
        outs = [ca.zeros(array.shape, dtype).sync() for array in expected]
        kernel_of(made)(*map(ca.mut, outs), *given, TURNS).grid(made.blocks).sync()
        for name, out, wanted in zip(("out", "other", "last"), outs, expected, strict=True):
            got = out.to_host().sync().astype("f8")
            if not np.array_equal(got, wanted):
                differ = got != wanted
                tiles = sorted(set((np.flatnonzero(differ.any(axis=1)) // made.shape[0]).tolist()))
                return f"{name}: {np.count_nonzero(differ)} numbers differ, in tiles {tiles}"
    return None


def _check(connection: Any, device: str | None, assembled: bool) -> None:
    while True:
        try:
            seed = connection.recv()
        except EOFError:
            return
        if seed is None:
            return
        try:
            found = difference(draw(seed), device, assembled)
        except Exception as error:
            found = f"{type(error).__name__}: {str(error)[:300]}"
        connection.send(found)


def _worker(
    jobs: Iterator[int],
    device: str | None,
    assembled: bool,
    limit_s: float,
    report: Callable[[int, str | None], None],
) -> None:
    """Give programs to a process, one after another; a new process behind one that hangs or ends."""
    context = multiprocessing.get_context("spawn")
    process = None
    for seed in jobs:
        if process is None:
            ours, theirs = context.Pipe()
            process = context.Process(target=_check, args=(theirs, device, assembled), daemon=True)
            process.start()
            theirs.close()
        try:
            ours.send(seed)
            if not ours.poll(limit_s):
                report(seed, f"no result in {limit_s:.0f} s")
                process.kill()
                process = None
                continue
            found = ours.recv()
        except (EOFError, OSError):
            report(seed, "its process ended")
            process = None
            continue
        report(seed, found)
        if found is not None and "numbers differ" not in found:
            ours.close()  # the context may be broken
            process = None
    if process is not None:
        ours.send(None)
        process.join(10)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, default=None, help="this program alone, with its source")
    parser.add_argument("--device", default=None, help="cuda:0 or host:0; default: host:0")
    parser.add_argument(
        "--assembled", action="store_true", help="run what the assembler makes, on the host device"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0, help="no program begins later")
    parser.add_argument("--limit-s", type=float, default=60.0, help="for one program, compiling included")
    options = parser.parse_args()
    if options.seed is not None:
        made = draw(options.seed)
        print(made.source, made.shape, made.dtype, made.blocks, made.options, sep="\n")
        found = difference(made, options.device, options.assembled)
        print(found or "right")
        return 1 if found else 0

    import threading

    over_at = time.monotonic() + options.minutes * 60
    seeds = iter(range(options.first, options.first + options.count))
    lock = threading.Lock()
    done: list[int] = []
    problems: list[tuple[int, str]] = []

    def jobs() -> Iterator[int]:
        while time.monotonic() < over_at:
            with lock:
                seed = next(seeds, None)
            if seed is None:
                return
            yield seed

    def report(seed: int, found: str | None) -> None:
        with lock:
            done.append(seed)
            if found is not None:
                problems.append((seed, found))
                print(f"seed {seed}: {found}", flush=True)

    threads = [
        threading.Thread(
            target=_worker, args=(jobs(), options.device, options.assembled, options.limit_s, report)
        )
        for _ in range(options.workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{len(done)} programs on {options.device or 'host:0'}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    sys.exit(main())
