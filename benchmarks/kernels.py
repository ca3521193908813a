"""Every function of the kernel library beside torch and torch.compile, at the shapes of two models and at large ones.

Each side is recorded as a CUDA graph and the graph's launch is timed with the device's own events, the L2 cache
overwritten before: what counts is the device's time, not what a language costs on the host. The sides take turns, run
by run. Where operands and result lie in memory decides some percents of a small case's time, on either side, so a case
of a model is measured in several rounds, each with operands of its own and graphs recorded anew; the table has the
medians, the file each round. Results are compared with torch's first. A case that a side cannot record or compile says
so in the table.

    python benchmarks/kernels.py [--dtype bf16] [--only PATTERN ...] [--rounds 3] [--no-compile] [--out FILE.json]
    python benchmarks/kernels.py --device host:0      # only ours, small: does it all run?
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from _harness import machine, print_table, write_results
from _kernel_cases import Case, cases

import cuda_async as ca
import tilekern as tk

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype("f2"), "f32": np.dtype("f4")}
TOLERANCE = {"bf16": 2e-2, "f16": 3e-3, "f32": 2e-5}
"""Largest difference from torch, by the largest result: both round, and torch may round in between."""


class Torch:
    """Torch's side: operands, recorded calls."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.functional = torch.nn.functional
        torch.backends.cuda.matmul.allow_tf32 = False
        self._streams: dict[int, Any] = {}

    def upload(self, array: np.ndarray[Any, Any]) -> Any:
        """A tensor on the GPU."""
        torch = self.torch
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()
        return torch.from_numpy(array).cuda()

    def download(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Its numbers in float64."""
        result: np.ndarray[Any, Any] = tensor.detach().double().cpu().numpy()
        return result

    def function(self, case: Case, compiled: bool) -> Callable[[dict[str, Any]], Any]:
        """The case as a function of its operands."""

        def theirs(tensors: dict[str, Any]) -> Any:
            return case.theirs(self.torch, self.functional, tensors)

        if not compiled:
            return theirs
        self.torch.compiler.reset()  # else the ninth case would run as it is: all have this function's code
        made: Callable[[dict[str, Any]], Any] = self.torch.compile(theirs, dynamic=False)
        return made

    def recorded(self, call: Callable[[], Any]) -> Callable[[], ca.DeviceOp[Any]]:
        """Makes operations that launch the graph of a call."""
        torch = self.torch
        side = torch.cuda.Stream()
        with torch.no_grad():
            with torch.cuda.stream(side):
                for _ in range(3):  # compiles, and chooses algorithms
                    call()
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            # other threads may call the driver meanwhile
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                call()
        torch.cuda.synchronize()

        def replay(stream: ca.Stream) -> None:
            handle = int(stream.handle)
            if handle not in self._streams:
                self._streams[handle] = torch.cuda.ExternalStream(handle)
            with torch.cuda.stream(self._streams[handle]):
                graph.replay()

        return lambda: ca.foreign(replay)


def ours_recorded(case: Case, tensors: dict[str, Any]) -> ca.CudaGraph[Any]:
    """The graph of our operation."""
    case.ours(tensors).sync()  # compiles
    return case.ours(tensors).graph().sync()


def in_turns(makes: dict[str, Callable[[], ca.DeviceOp[Any]]]) -> dict[str, float]:
    """Median time in microseconds of each, run by run in turns with the first."""
    names = list(makes)
    ours = names[0]
    if len(names) == 1:
        return {ours: tk.bench.measure(makes[ours]).median_ms * 1e3}
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names[1:]:
        comparison = tk.bench.compare(makes[ours], makes[name])
        times[ours].append(comparison.first.median_ms * 1e3)
        times[name].append(comparison.second.median_ms * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def error_of(ours: ca.Tensor, theirs: np.ndarray[Any, Any]) -> float:
    """Largest difference, by the largest result."""
    mine = ours.to_host().sync().astype(np.float64)
    if mine.shape != theirs.shape:
        raise ValueError(f"our result is {mine.shape}, torch's {theirs.shape}")
    return float(np.max(np.abs(mine - theirs)) / max(1e-30, float(np.max(np.abs(theirs)))))


def measure_case(case: Case, torch: Torch | None, options: argparse.Namespace) -> dict[str, Any]:
    """One row: times in microseconds, error, and what could not be measured."""
    random = np.random.default_rng(0)
    arrays = {name: given.array(random, DTYPES[options.dtype]) for name, given in case.inputs.items()}
    row: dict[str, Any] = {"case": case.name, "model": case.model, "notes": []}
    functions: dict[str, Callable[[dict[str, Any]], Any]] = {}
    if torch is not None:
        functions["torch"] = torch.function(case, compiled=False)
        if not options.no_compile:
            functions["torch.compile"] = torch.function(case, compiled=True)
    kept: list[object] = []  # what a round gave back, the next would get again
    rounds: list[dict[str, float]] = []
    for _ in range(1 if torch is None or case.model == "large" else options.rounds):
        tensors = {name: ca.from_host(array).sync() for name, array in arrays.items()}
        graph = ours_recorded(case, tensors)
        makes: dict[str, Callable[[], ca.DeviceOp[Any]]] = {"ours": graph.launch}
        uploaded: dict[str, Any] = {}
        if torch is not None:
            uploaded = {name: torch.upload(array) for name, array in arrays.items()}
            if not rounds:
                compare_results(row, case, graph, torch, functions["torch"], uploaded, options.dtype)
            for side, function in list(functions.items()):
                try:
                    makes[side] = torch.recorded(functools.partial(function, uploaded))
                except Exception as error:  # whatever a library raises: the row says so and the others go on
                    row["notes"].append(f"{side}: {type(error).__name__}")
                    del functions[side]
                    torch.torch.cuda.synchronize()
        rounds.append(in_turns(makes))
        kept += [tensors, uploaded, makes]
    row["rounds"] = rounds
    row["us"] = {
        side: statistics.median(times[side] for times in rounds if side in times) for side in rounds[0]
    }
    per_second = case.amount / (row["us"]["ours"] * 1e-6)
    row["rate"] = per_second / (1e9 if case.work == "bytes" else 1e12)
    row["unit"] = "GB/s" if case.work == "bytes" else "TFLOP/s"
    return row


def compare_results(
    row: dict[str, Any],
    case: Case,
    graph: ca.CudaGraph[Any],
    torch: Torch,
    function: Callable[[dict[str, Any]], Any],
    uploaded: dict[str, Any],
    dtype: str,
) -> None:
    """Note the difference from torch's result, and whether it is too large."""
    with torch.torch.no_grad():
        expected = torch.download(function(uploaded))
    result = graph.launch().sync()
    if not case.is_random:
        row["error"] = error_of(result, expected)
        if not row["error"] <= TOLERANCE[dtype]:
            row["notes"].append("WRONG")


def ratio_to(row: dict[str, Any], side: str) -> float | None:
    """How many times as long a side takes as ours: the median of the rounds' ratios."""
    ratios = [times[side] / times["ours"] for times in row["rounds"] if side in times]
    return statistics.median(ratios) if ratios else None


def show(rows: list[dict[str, Any]], dtype: str) -> None:
    """The table."""

    print_table(
        f"{dtype}, microseconds on the device; how many times as long the others take",
        (
            "case",
            "model",
            "ours",
            "torch",
            "compile",
            "torch/ours",
            "compile/ours",
            "rate",
            "",
            "error",
            "notes",
        ),
        [
            (
                *(row["case"], row["model"]),
                *(row["us"].get(side, "-") for side in ("ours", "torch", "torch.compile")),
                *(ratio_to(row, side) or "-" for side in ("torch", "torch.compile")),
                *(row["rate"], row["unit"]),
                f"{row['error']:.0e}" if "error" in row else "-",
                "; ".join(row["notes"]),
            )
            for row in rows
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default=None, help="cuda:0 (default where there is one) or host:0")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="element type")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of cases, such as 'linear*'")
    parser.add_argument("--rounds", type=int, default=3, help="with operands elsewhere, of the models' cases")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes minutes")
    parser.add_argument("--out", type=Path, default=None, help="write the numbers here as JSON")
    options = parser.parse_args()
    device = options.device or str(ca.current_device())
    on_gpu = device.startswith("cuda")
    rows: list[dict[str, Any]] = []
    with ca.use_device(device) as current:
        try:
            torch = Torch() if on_gpu else None
        except ImportError:
            print("torch is not installed: only ours is measured")
            torch = None
        for case in cases(DTYPES[options.dtype].itemsize, 1 if on_gpu else 16):
            if not any(fnmatch.fnmatch(case.name, pattern) for pattern in options.only):
                continue
            row = measure_case(case, torch, options)
            rows.append(row)
            times = "  ".join(f"{side} {time:.1f}" for side, time in row["us"].items())
            print(f"{case.model:8} {case.name:40} {times}  {'; '.join(row['notes'])}", flush=True)
        show(rows, options.dtype)
        write_results(options.out, {"machine": machine(current), "dtype": options.dtype, "rows": rows})
    ratios = {row["case"]: ratio_to(row, "torch") for row in rows}
    slower = [f"{case} {ratio:.3f}" for case, ratio in ratios.items() if ratio is not None and ratio < 1]
    if slower:
        print(f"\nslower than torch eager, by the median of the rounds: {', '.join(slower)}")
    return 1 if any("WRONG" in row["notes"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
