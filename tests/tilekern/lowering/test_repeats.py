"""Each element of a row repeated, and computed with: NVIDIA's assembler needs help with these.

On the host device runs what the assembler made.
"""

import numpy as np
import pytest

import tilekern as tk

pytestmark = pytest.mark.usefixtures("assembled")

USES = {
    "plus": (lambda t: t + 3, lambda a: a + 3),
    "and": (lambda t: t & 13, lambda a: a & 13),
    "rest": (lambda t: t % 7, lambda a: a % 7),
    "less": (lambda t: tk.where(t < 5, 1, 2).astype(t.dtype), lambda a: np.where(a < 5, 1, 2)),
    "high": (lambda t: tk.mulhi(t, 1 << (t.dtype.bits - 2)), lambda a: a >> 2),
}


def repeated():
    @tk.kernel
    def kernel(
        out,
        x,
        size: tk.Constant[int],
        shape: tk.Constant[tuple],
        sides: tk.Constant[tuple],
        use: tk.Constant[str],
    ):
        row = tk.load(x, 0, size).reshape(sides)
        tile = tk.broadcast_to(row, shape).reshape(out.shape)
        out.store(USES[use][0](tile))

    return kernel


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u4"])
@pytest.mark.parametrize(
    ("sides", "shape"),
    [
        ((8, 1), (8, 2)),
        ((512, 1), (512, 2)),
        ((1024, 1), (1024, 4)),
        ((4, 64, 1), (4, 64, 8)),
        ((256, 1, 2, 1), (256, 2, 2, 4)),
        ((1, 512), (4, 512)),
        ((64, 1, 16), (64, 4, 16)),
    ],
    ids=str,
)
def test_repeated_elements(run, dtype, sides, shape, use):
    x = np.random.default_rng(1).integers(0, 50, int(np.prod(sides))).astype(dtype)
    expected = USES[use][1](np.broadcast_to(x.reshape(sides), shape).reshape(-1)).astype(dtype)
    if use == "high" and dtype == "u4":
        expected = x.dtype.type(0) + expected  # a product of 2**30, and 32 bits, as with signs
    found = run(repeated(), ((expected.size,), dtype, (expected.size,)), x, x.size, shape, sides, use)
    np.testing.assert_array_equal(found, expected)


def test_repeated_elements_among_scans(run):
    """Small tiles too, where a thread holds several elements."""

    @tk.kernel
    def kernel(out, x):
        row = tk.load(x, 0, 16)
        pairs = tk.sum(row.reshape((2, 2, 4)), 1).reshape((8, 1))
        tile = tk.broadcast_to(pairs, (8, 2)).reshape((16,))
        _, total = tk.scan((row, tile), 0, lambda s, h, u, k: (s * u, h * u + k), (1, 0))
        out.store((tile + 3) ^ total)

    x = np.random.default_rng(1).integers(-3, 4, 16)
    tile = np.repeat(x.reshape(2, 2, 4).sum(1).reshape(-1), 2)
    total = [0]
    for factor, plus in zip(x, tile):
        total.append(total[-1] * factor + plus)
    np.testing.assert_array_equal(run(kernel, ((16,), "i8", (16,)), x), (tile + 3) ^ np.array(total[1:]))
