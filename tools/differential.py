"""Runs random tile kernels through the interpreter and the compiler, and both against NumPy.

    python tools/differential.py --count 2000                        # the interpreter against NumPy
    python tools/differential.py --count 2000 --orders               # and in other orders that a GPU might take
    python tools/differential.py --count 2000 --device cuda:0        # and the compiled kernels against both
    python tools/differential.py --count 200 --assemble sm_120       # each is assembled, nothing is launched
    python tools/differential.py --count 200 --assembled             # the assembler's PTX, on the simulated device
    python tools/differential.py --seed 1234 --device cuda:0         # one program again, with its source

A mismatch is shown with the statements that the wrong output depends on. Ends with exit code 1 where there was one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

sys.path.insert(0, str(Path(__file__).parent))

import random_kernels
from assembled_code import assembled_code
from random_kernels import Drawn
from random_kernels.geometry import Geometry, View
from random_kernels.orders import another_order

from tilekern.tileir.errors import CompilerCrashedError, CompilerFailedError

Array = np.ndarray[Any, Any]
GAVE_UP = "the assembler gave up"
"""Not counted as a problem: NVIDIA's assembler fails on some kernels with scans (docs/limits.md)."""


def draw(seed: int) -> Drawn:
    """Every operation comes first in turn, so that all are drawn often."""
    names = list(random_kernels.OPERATIONS)
    return random_kernels.draw(seed, first=names[seed % len(names)])


def load_kernel(drawn: Drawn, folder: Path) -> Any:
    path = folder / f"drawn_{drawn.seed}.py"
    path.write_text(drawn.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.drawn.with_options(**drawn.options) if drawn.options else module.drawn


def element_type(name: str) -> str:
    return "bool" if name == "bool_" else name


def run(kernel: Any, drawn: Drawn, device: str) -> list[Array]:
    """The memory of the outputs and of what else is written. Outputs hold ones before: what is not stored shows."""
    import cuda_async as ca

    with ca.use_device(device):

        def there(view: View, array: Array) -> tuple[Any, Any]:
            tensor = ca.from_host(array).sync()
            return tensor, tensor[view.slices].permute(*view.order)

        outputs = [there(out.view, out.view.base) for out in drawn.outputs]
        inputs = [there(view, view.base)[1] for view in drawn.inputs]
        written = [ca.from_host(memory.before).sync() for memory in drawn.memories]
        parts = [partitioned(view, drawn.geometry) for _, view in outputs]
        call = kernel(*parts, *inputs, *map(ca.mut, written), drawn.number)
        if drawn.geometry.mode == "prefix":
            call = call.grid((*drawn.geometry.reached, 1, 1)[:3])
        elif drawn.const_grid:
            call = call.const_grid()
        call.sync()
        return [tensor.to_host().sync() for tensor in [*[base for base, _ in outputs], *written]]


def partitioned(tensor: Any, geometry: Geometry) -> Any:
    """A tensor, or what stands for one, as an output of such a geometry."""
    if geometry.mode == "prefix":
        return tensor.partition_prefix(geometry.tile)
    part = tensor.partition(geometry.tile)
    return part.map(geometry.map_shape, geometry.tile_blocks) if geometry.mode == "mapped" else part


def agrees(found: Array, expected: Array, tolerance: Array | None) -> Array:
    """Per element: bit for bit but for the kind of NaN, or within the tolerance."""
    if expected.dtype.kind in "iub":
        return np.asarray(found == expected)
    a, b = random_kernels.wide(found), random_kernels.wide(expected)
    both_nan = np.isnan(a) & np.isnan(b)
    if tolerance is None:
        return np.asarray(both_nan | ((a == b) & (np.signbit(a) == np.signbit(b))))
    with np.errstate(all="ignore"):
        near = np.abs(a.astype(np.float64) - b.astype(np.float64)) <= tolerance
    return np.asarray(both_nan | near | (a == b) | np.isinf(tolerance))


def expected_of(drawn: Drawn) -> list[tuple[str, Array, Array | None]]:
    """The outputs, and the other memory that is written."""
    return [
        *[(out.dtype, out.expected, out.tolerance) for out in drawn.outputs],
        *[(memory.dtype, memory.now, None) for memory in drawn.memories],
    ]


def stand_ins(drawn: Drawn) -> tuple[Any, ...]:
    """The arguments of a program, without memory."""
    import tilekern as tk

    def meta(view: View) -> Any:
        array, itemsize = view.array, view.base.itemsize
        strides = tuple([s // itemsize for s in array.strides])
        return tk.meta(array.shape, element_type(str(array.dtype)), strides=strides)

    outputs = [partitioned(meta(out.view), drawn.geometry) for out in drawn.outputs]
    written = [tk.meta(m.before.shape, m.dtype).mut() for m in drawn.memories]
    return (*outputs, *map(meta, drawn.inputs), *written, drawn.number)


def assemble_for(kernel: Any, drawn: Drawn, arch: str) -> None:
    """Compile without a device. An architecture without fp8 has to refuse it, by its name."""
    import tilekern as tk

    try:
        kernel.cubin(*stand_ins(drawn), arch=arch)
    except tk.KernelTypeError as error:
        if arch != "sm_80" or "float8" not in str(error):
            raise


def check(
    seed: int,
    device: str | None,
    assemble: str | None,
    folder: Path,
    orders: bool = False,
    assembled: bool = False,
) -> list[str]:
    """What is wrong with the program of a seed."""
    drawn = draw(seed)
    problems: list[str] = []
    try:
        kernel = load_kernel(drawn, folder)
        if assemble:
            assemble_for(kernel, drawn, assemble)
            return []
        sides = {"host:0": run(kernel, drawn, "host:0")}
        if orders:
            for order in (None, seed):
                with another_order(order):
                    side = "host:0, the latest first" if order is None else "host:0, in any order"
                    sides[side] = run(load_kernel(drawn, folder), drawn, "host:0")
        if assembled:
            with assembled_code():
                sides["host:0, assembled"] = run(load_kernel(drawn, folder), drawn, "host:0")
        if device is not None:
            sides[device] = run(kernel, drawn, device)
    except (CompilerCrashedError, CompilerFailedError) as error:
        return [f"{GAVE_UP} on seed {seed}: {error}"]
    except Exception as error:
        return [f"seed {seed}: {type(error).__name__}: {error}"]
    for side, results in sides.items():
        for i, (found, (dtype, expected, tolerance)) in enumerate(
            zip(results, expected_of(drawn), strict=True)
        ):
            wrong = np.argwhere(~agrees(found, expected, tolerance))
            if len(wrong):
                at = tuple(wrong[0].tolist())
                problems.append(
                    f"seed {seed}: {side} gives {found[at]!r} for element {at} of output {i} ({dtype}), NumPy "
                    f"{expected[at]!r}; {len(wrong)} of {found.size} differ ({drawn.geometry}):\n"
                    + "\n".join(drawn.slice_of(i))
                )
    if device is not None and not problems:
        for i, (one, two) in enumerate(zip(sides["host:0"], sides[device], strict=True)):
            tolerance = expected_of(drawn)[i][2]
            twice = None if tolerance is None else 2 * tolerance
            if not agrees(one, two, twice).all():
                problems.append(f"seed {seed}: output {i} differs between the devices")
    return problems


class Findings:
    """What was found so far."""

    def __init__(self) -> None:
        self.programs = 0
        self.used: Counter[str] = Counter()
        self.problems: list[str] = []
        self.gave_up: list[str] = []

    def add(self, seed: int, problems: list[str]) -> None:
        """A program was looked at."""
        self.programs += 1
        self.used.update(draw(seed).used)
        self.problems += [problem for problem in problems if not problem.startswith(GAVE_UP)]
        self.gave_up += [problem for problem in problems if problem.startswith(GAVE_UP)]


def serve(
    connection: Connection, device: str | None, assemble: str | None, orders: bool, assembled: bool
) -> None:
    """Check the programs whose seeds come in, until None does."""
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        while (seed := connection.recv()) is not None:
            connection.send(check(seed, device, assemble, Path(folder), orders, assembled))


class Worker:
    """A process that checks one program at a time: one that hangs, or ends its process, costs no other."""

    def __init__(self, arguments: tuple[str | None, str | None, bool, bool]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, *arguments), daemon=True)
        self.process.start()
        other.close()
        self.seed: int | None = None
        self.since = 0.0

    def begin(self, seed: int) -> None:
        self.seed, self.since = seed, time.time()
        self.connection.send(seed)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def check_all(seeds: list[int], options: argparse.Namespace) -> Findings:
    """Check programs until the time is over or too many have problems."""
    found = Findings()
    until = time.time() + options.time_limit
    waiting = seeds[::-1]
    arguments = options.device, options.assemble, options.orders, options.assembled
    if options.workers == 1:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("error")
            while waiting and time.time() < until and len(found.problems) < options.most_problems:
                seed = waiting.pop()
                found.add(seed, check(seed, *arguments[:2], Path(folder), *arguments[2:]))
        return found
    workers = [Worker(arguments) for _ in range(min(options.workers, len(seeds)))]
    while True:
        goes_on = time.time() < until and len(found.problems) < options.most_problems
        for worker in workers:
            if worker.seed is None and waiting and goes_on:
                worker.begin(waiting.pop())
        busy = {worker.connection: worker for worker in workers if worker.seed is not None}
        if not busy:
            break
        ready = multiprocessing.connection.wait(busy, timeout=1.0)
        for connection, worker in busy.items():
            assert worker.seed is not None
            if connection in ready:
                try:
                    problems = worker.connection.recv()
                    found.add(worker.seed, problems)
                    worker.seed = None
                    if not any("DeviceLostError" in problem for problem in problems):
                        continue  # else nothing runs in that process any more
                except EOFError:
                    found.add(worker.seed, [f"seed {worker.seed}: its process ended"])
            elif time.time() - worker.since > options.patience:
                found.add(worker.seed, [f"seed {worker.seed}: not done after {options.patience:.0f} s"])
            else:
                continue
            worker.end()
            workers[workers.index(worker)] = Worker(arguments)
    for worker in workers:
        worker.end()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="how many programs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this program, and show it")
    parser.add_argument("--device", help="cuda:0: run the compiled kernels too")
    parser.add_argument("--assemble", metavar="ARCH", help="only assemble them for an architecture")
    parser.add_argument(
        "--assembled", action="store_true", help="run the assembler's PTX too, on the simulated device"
    )
    parser.add_argument("--orders", action="store_true", help="also in other orders that the tokens allow")
    parser.add_argument("--most-problems", type=int, default=20, help="stop after so many")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds for one program, with several workers"
    )
    parser.add_argument("--time-limit", type=float, default=3600.0, help="stop after so many seconds")
    parser.add_argument("--out", type=Path, help="write the counts here as JSON")
    options = parser.parse_args()
    os.environ["TILEKERN_CACHE_DIR"] = "off"  # each is compiled
    seeds = list(range(options.first, options.first + options.count))
    if options.seed is not None:
        seeds = [options.seed]
        print(draw(options.seed).source)
    began = time.time()
    found = check_all(seeds, options)
    for problem in found.problems[:10]:
        print(problem)
    least = min(found.used.values(), default=0)
    print(
        f"{found.programs} programs in {time.time() - began:.0f} s, {len(found.used)} operations, the rarest drawn "
        f"{least} times, {len(found.problems)} problems, {len(found.gave_up)} not assembled"
    )
    if options.out:
        facts = {
            "programs": found.programs,
            "first_seed": options.first,
            "device": options.device or options.assemble or "host:0",
            "problems": found.problems,
            "not_assembled": found.gave_up,
            "drawn": dict(sorted(found.used.items())),
        }
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
