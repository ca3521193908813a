"""The main job: a tile kernel and a raw PTX kernel on one stream, in one chain, behind one await.

The input is what a classifier says about images of handwritten digits: a row of class scores for each
(examples/data/, made by make_digits_scores.py). A tile kernel written in Python turns rows into probabilities; a
SIMT kernel compiled from CUDA C++ (examples/simt/threshold_scale.cu) keeps those at or above a threshold, scaled.
Upload, both kernels and download are one operation. The result is checked against NumPy in float64.

    python examples/tile_simt_interop.py
    python examples/tile_simt_interop.py --input scores.npy --threshold 0.05 --scale 10 --device host:0
    python examples/tile_simt_interop.py --ptx other.ptx --entry name    # of the same signature and meaning

The last line starts with PASS (exit code 0) or FAIL (1). Bad input is a message and exit code 2. It runs on a GPU
and, unchanged, without one.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

import cuda_async as ca
import tilekern as tk

HERE = Path(__file__).parent
BLOCK = 256  # threads of the SIMT kernel's blocks
TILE_ELEMENTS = 4096  # of the tile kernel's tiles
RELATIVE_ERROR = 2e-6  # exp, a sum and a division in float32, against float64
SMALLEST = 2.0**-149  # the smallest float32 above 0: below 2**-126 they are that far apart
AS_FLOATS = "floats are needed: np.save(file, array.astype(np.float32))"
PARAMETERS = "(u32 n, f32 threshold, f32 scale, const f32* in, f32* out)"
MOST_ELEMENTS = 2**32 - 1  # the SIMT kernel counts them in 32 bits


class BadInput(Exception):
    """What was asked for makes no sense; the message says why."""


# ------------------------------------------------------------------------------------- kernels


@tk.kernel
def row_softmax(out: tk.Tile2D, x: tk.Tensor2D):
    """Whole rows in one tile. Past the edge of `x` a tile holds -inf, which adds nothing to a sum of exp."""
    t = tk.load_like(x, out, padding_mode=tk.PaddingMode.NEG_INF)
    e = tk.exp(t - tk.max(t, axis=1, keepdims=True))
    out.store(e / tk.sum(e, axis=1, keepdims=True))


@tk.kernel
def wide_row_softmax(out: tk.Tensor2D, x: tk.Tensor2D, COLUMNS: tk.Constant[int]):
    """One row per block, too wide for a tile: three passes over its tiles."""
    row = tk.bid(0)
    tiles = tk.num_tiles(x, 1, (1, COLUMNS))
    top = tk.full((1, 1), -math.inf, tk.float32)
    for j in range(tiles):
        t = tk.load(x, (row, j), (1, COLUMNS), padding_mode=tk.PaddingMode.NEG_INF)
        top = tk.maximum(top, tk.max(t, axis=1, keepdims=True))
    total = tk.zeros((1, 1), tk.float32)
    for j in range(tiles):
        t = tk.load(x, (row, j), (1, COLUMNS), padding_mode=tk.PaddingMode.NEG_INF)
        total = total + tk.sum(tk.exp(t - top), axis=1, keepdims=True)
    for j in range(tiles):
        t = tk.load(x, (row, j), (1, COLUMNS), padding_mode=tk.PaddingMode.NEG_INF)
        tk.store(out, (row, j), tk.exp(t - top) / total)


def softmax_rows(x: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
    """An operation that yields the softmax of each row of `x`, as a new tensor."""
    rows, columns = x.shape
    width = 1 << (columns - 1).bit_length()  # sides of tiles are powers of two
    out = ca.empty(x.shape, x.dtype)
    if width > TILE_ELEMENTS:
        return out.then(lambda y: wide_row_softmax(ca.mut(y), x, TILE_ELEMENTS).grid((rows, 1, 1)).first())
    tile = (TILE_ELEMENTS // width, width)
    return row_softmax(out.partition(tile), x).first().unpartition()


# ------------------------------------------------------------------------------------ the chain


@dataclass
class Counts:
    """What one run used, noted where it happens."""

    policy: ca.SchedulingPolicy
    streams: set[ca.Stream] = field(default_factory=set)
    launches: int = 0
    completions: int = 0

    def next_stream(self) -> ca.Stream:
        """As a policy: the wrapped one's next stream, noted."""
        stream = self.policy.next_stream()
        self.streams.add(stream)
        return stream


def probabilities_above(
    scores: np.ndarray, threshold: float, scale: float, kernel: ca.Function, counts: Counts
) -> ca.DeviceOp[np.ndarray]:
    """Upload, tile kernel, SIMT kernel, download: nothing runs before it is awaited."""

    def tile(x: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
        counts.launches += 1
        return softmax_rows(x)

    def simt(soft: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
        counts.launches += 1
        n = soft.size
        gated = ca.empty(soft.shape, soft.dtype)
        return gated.then(
            lambda g: kernel.launch(-(-n // BLOCK), BLOCK, n, threshold, scale, ca.read(soft), ca.mut(g))
        ).last()

    return ca.from_host(scores).then(tile).then(simt).to_host()


# ------------------------------------------------------------------------------------- checking


class Comparison(NamedTuple):
    """A result against NumPy's in float64."""

    error: float  # the largest, relative to the scale
    wrong: int  # elements beyond the tolerance
    kept: int  # probabilities at or above the threshold


def compare(result: np.ndarray, scores: np.ndarray, threshold: float, scale: float) -> Comparison:
    """Check a result.

    A probability as close to the threshold as float32 arithmetic can be off may fall on either side of it. The
    tolerance is relative, except for what float32 cannot say finely: numbers near its smallest.
    """
    wide = scores.astype(np.float64)
    exponentials = np.exp(wide - wide.max(axis=1, keepdims=True))
    soft = exponentials / exponentials.sum(axis=1, keepdims=True)
    tolerance = RELATIVE_ERROR * soft * max(1.0, input_error(wide)) + np.finfo(np.float32).tiny
    kept_error = np.abs(result - soft * scale)
    zero_error = np.abs(result.astype(np.float64))
    error = np.where(soft >= threshold, kept_error, zero_error)
    close = np.abs(soft - threshold) <= tolerance
    error = np.where(close, np.minimum(kept_error, zero_error), error)
    wrong = ~(error <= tolerance * abs(scale) + 2 * SMALLEST)
    # What is close to the threshold is kept where the result shows it: a scale of 0 does not.
    shows = close & (np.abs(soft * scale) > SMALLEST)
    kept = np.where(shows, result != 0, soft.astype(np.float32) >= threshold)
    return Comparison(
        float(np.max(error)) / (abs(scale) or 1.0), int(np.count_nonzero(wrong)), int(np.count_nonzero(kept))
    )


def input_error(wide: np.ndarray) -> float:
    """How rounding `x - max` to float32 adds to the error of exp: in multiples of the other errors."""
    finite = wide[np.isfinite(wide)]
    return float(finite.max() - finite.min()) / 16


# --------------------------------------------------------------------------------- command line


def read_scores(path: Path) -> np.ndarray:
    """A 2-D float array from a .npy file, as float32.

    Raises:
        BadInput: no such file, not a .npy file, another rank or type, nothing in it, or values without a softmax.
    """
    if path.exists() and not path.is_file():
        raise BadInput(f"{path}: not a file; --input names one")
    try:
        with path.open("rb") as file:
            start = file.read(6)
        if start.startswith(b"PK"):
            raise BadInput(f"{path}: an archive of several arrays; give a .npy file with one")
        if start != b"\x93NUMPY":
            raise BadInput(f"{path}: not a readable .npy file; np.save() makes one")
        # Mapped, so that a header that promises more than the file has is an error and no allocation.
        scores = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file") from None
    except BadInput:
        raise
    except (
        Exception
    ) as error:  # NumPy reads the header as Python: a damaged one is a TokenError, a TypeError, ...
        if "Python objects" in str(error):
            raise BadInput(f"{path}: the elements are Python objects; {AS_FLOATS}") from None
        raise BadInput(f"{path}: not a readable .npy file ({error})") from None
    if scores.dtype.names is not None:
        raise BadInput(
            f"{path}: the elements are structured, with the fields {scores.dtype.names}; floats are needed: "
            "np.save(file, array[field].astype(np.float32)) saves one field"
        )
    if scores.ndim != 2:
        raise BadInput(f"{path}: the array has shape {scores.shape}; a 2-D array (rows of scores) is needed")
    if scores.dtype.kind != "f":
        kind = "bytes, as NumPy stores bfloat16" if scores.dtype.kind == "V" else str(scores.dtype)
        raise BadInput(f"{path}: the elements are {kind}; {AS_FLOATS}")
    if scores.size == 0:
        raise BadInput(f"{path}: the array is empty, its shape is {scores.shape}")
    if scores.size > MOST_ELEMENTS:
        raise BadInput(f"{path}: {scores.size} elements; the SIMT kernel takes at most {MOST_ELEMENTS}")
    with np.errstate(over="ignore"):
        scores = scores.astype(np.float32)
    if np.isnan(scores).any():
        row, column = np.argwhere(np.isnan(scores))[0]
        raise BadInput(f"{path}: element [{row}, {column}] is NaN; its row has no softmax")
    unbounded = np.isposinf(scores).any(axis=1) | np.isneginf(scores).all(axis=1)
    if unbounded.any():
        row = int(np.argmax(unbounded))
        raise BadInput(f"{path}: row {row} holds inf (as float32), or only -inf; it has no softmax")
    return scores


def number(text: str) -> float:
    """A float that float32 can hold, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number is wanted, got {text!r}") from None
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise argparse.ArgumentTypeError(f"{text} is not a finite float32")
    if value and not np.float32(value):
        raise argparse.ArgumentTypeError(f"{text} is 0 as a float32")
    return float(np.float32(value))


def with_negative_numbers(arguments: list[str]) -> list[str]:
    """`--threshold -1e-5` as `--threshold=-1e-5`: argparse takes a number with an exponent for an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in ("--threshold", "--scale") and argument.startswith("-"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Row softmax by a tile kernel, threshold by a PTX kernel.")
    parser.add_argument(
        "--input",
        type=Path,
        default=HERE / "data" / "digits_scores.npy",
        metavar="FILE.npy",
        help="a 2-D array of floats, a row of scores for each softmax; default: those of the digits classifier",
    )
    parser.add_argument(
        "--threshold",
        type=number,
        default=0.01,
        help="smallest probability to keep, %(default)s if not given",
    )
    parser.add_argument(
        "--scale", type=number, default=2.0, help="factor for those that are kept, %(default)s if not given"
    )
    parser.add_argument(
        "--ptx",
        type=Path,
        default=HERE / "simt" / "threshold_scale.ptx",
        metavar="FILE",
        help=f"PTX of another kernel, of {PARAMETERS} and the same meaning: scale * p where p >= threshold, else 0",
    )
    parser.add_argument(
        "--entry",
        default="threshold_scale_f32",
        metavar="NAME",
        help="kernel in the PTX file, %(default)s if not given",
    )
    parser.add_argument("--device", help="cuda:0, host:0; default: the GPU where there is one")
    return parser.parse_args(with_negative_numbers(sys.argv[1:] if arguments is None else arguments))


async def run(options: argparse.Namespace) -> int:
    scores = read_scores(options.input)
    if options.ptx.exists() and not options.ptx.is_file():
        raise BadInput(f"{options.ptx}: not a file; --ptx names one")
    try:
        kernel = ca.Module.from_ptx(options.ptx.read_text(), name=str(options.ptx)).function(options.entry)
    except OSError as error:
        raise BadInput(f"{options.ptx}: {error.strerror or error}") from None
    except ca.CompileError as error:
        hint = ""
        if options.ptx.suffix == ".cu":
            hint = f"\nmake PTX of it: nvcc -ptx -arch=compute_75 {options.ptx}"
        raise BadInput(f"{error}{hint}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{options.ptx}: not a text file, so not PTX") from None
    try:
        device = ca.current_device() if options.device is None else ca.Device(options.device)
        device.open()
    except (ValueError, ca.ContextError) as error:
        raise BadInput(str(error) if options.device is None else f"--device: {error}") from None
    print(f"{options.input.name}: {scores.shape[0]} x {scores.shape[1]}, on {device} ({device.name})")

    with ca.use_device(device):
        counts = Counts(device.policy)
        op = probabilities_above(scores, options.threshold, options.scale, kernel, counts)
        begin = time.perf_counter()
        try:
            result = await op.schedule(counts)  # the one await
        except (ca.CompileError, ca.LaunchError, ca.OutOfMemoryError, TypeError) as error:
            hint = ""
            if isinstance(error, (ca.LaunchError, TypeError)) or "has no kernel" in str(error):
                hint = f"\n--entry names the kernel in --ptx; its parameters are {PARAMETERS}"
            raise BadInput(f"{error}{hint}") from error
        except ca.CudaAsyncError as error:
            print(f"FAIL: {error}")
            return 1
        counts.completions += 1
        seconds = time.perf_counter() - begin

    error, wrong, kept = compare(result, scores, options.threshold, options.scale)
    print(
        f"kept {kept} of {result.size} probabilities (threshold {options.threshold:g}, scale {options.scale:g})"
    )
    if not kept:
        print("that is none: the threshold is above them all")
    facts = (
        f"largest error {error:.1e}, device {device}, streams {len(counts.streams)}, "
        f"launches {counts.launches}, completions awaited {counts.completions}, {seconds * 1e3:.1f} ms"
    )
    if wrong:
        print(
            f"FAIL: {wrong} of {result.size} values are not scale * p where p >= threshold, else 0; {facts}"
        )
        return 1
    print(f"PASS: {facts}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        return asyncio.run(run(options))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; CUDA_ASYNC_WATCHDOG_S=2 says what is waited for", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
