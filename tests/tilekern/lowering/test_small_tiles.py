"""What is taken from tiles of fewer elements than a block has threads: NVIDIA's assembler needs help with these.

On the host device runs what the assembler made.
"""

import numpy as np
import pytest

import tilekern as tk

pytestmark = pytest.mark.usefixtures("assembled")


def part_of_row():
    @tk.kernel
    def kernel(out, x, tile: tk.Constant[tuple], length: tk.Constant[int], place: tk.Constant[int]):
        row = tk.load(x, (0,) * x.ndim, tile).reshape((length,))
        out.store(tk.extract(row, (place,), out.shape))

    return kernel


@pytest.mark.parametrize(
    ("memory", "tile", "part", "place", "warps"),
    [
        ((4, 32), (2, 32), 8, 1, None),
        ((2, 16), (2, 16), 8, 3, None),
        ((4, 4), (2, 8), 4, 0, None),
        ((5, 8), (2, 8), 2, 6, 16),
        ((4, 4), (2, 4), 2, 0, None),
        ((1, 2, 8), (1, 2, 8), 4, 2, 16),
        ((5, 256), (2, 128), 64, 2, 16),
        ((2, 32), (2, 32), 16, 1, 16),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "u8", "f2", "f4", "f8"])
def test_parts_of_loaded_rows(run, memory, tile, part, place, warps, dtype):
    x = np.random.default_rng(1).integers(0, 2 if dtype == "?" else 50, memory).astype(dtype)
    whole = np.zeros(tile, dtype)
    inside = tuple(slice(0, min(a, b)) for a, b in zip(memory, tile))
    whole[inside] = x[inside]
    options = {"num_worker_warps": warps} if warps else None
    expected = whole.reshape(-1)[place * part :][:part]
    arguments = ((part,), dtype, (part,)), x, tile, whole.size, place
    np.testing.assert_array_equal(run(part_of_row(), *arguments, options=options), expected)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_parts_of_narrow_floats(run, name):
    @tk.kernel
    def kernel(out, x, name: tk.Constant[object]):
        row = tk.load(x, (0, 0), (2, 8)).reshape((16,)).astype(name)
        out.store(tk.extract(row, (3,), (4,)).astype(tk.float32))

    x = np.arange(-8, 8, dtype="f4").reshape(2, 8)
    found = run(kernel, ((4,), "f4", (4,)), x, getattr(tk, name))
    np.testing.assert_array_equal(found, x.reshape(-1)[12:])
