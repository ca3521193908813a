"""Functions of the language over every element type they take, against NumPy in float64 or whole numbers.

Which types those are is what docs/tile-support.md says, which `tools/tile_support.py` finds out. Numbers are such
that nothing is rounded, but for `atan2`; rounding has tests of its own.
"""

import importlib.util
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

import tilekern as tk
from tilekern.dtypes import DTYPES

TOOL = Path(__file__).resolve().parents[3] / "tools" / "tile_support.py"
if "tile_support" not in sys.modules:
    SPEC = importlib.util.spec_from_file_location("tile_support", TOOL)
    sys.modules["tile_support"] = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(sys.modules["tile_support"])
tile_support = sys.modules["tile_support"]

S = 8
NUMBERS = [d for d in DTYPES.values() if not d.restricted]


def put(x, index, value):
    result = x.copy()
    rows, columns = (slice(i * n, (i + 1) * n) for i, n in zip(index, value.shape))
    result[rows, columns] = value
    return result


def high(x, y):
    """Of whole numbers in Python; NumPy has none that wide."""
    bits = x.dtype.itemsize * 8
    flat = [int(a) * int(b) >> bits for a, b in zip(x.reshape(-1), y.reshape(-1))]
    return np.array(flat, x.dtype).reshape(x.shape)


# what a kernel computes of two tiles, and NumPy of two arrays
MOVES = {
    "reshape": (lambda a, b: tk.reshape(a, (4, 16)).reshape((S, S)), lambda x, y: x),
    "broadcast_to": (
        lambda a, b: tk.broadcast_to(tk.extract(a, (0, 0), (1, S)), (S, S)),
        lambda x, y: np.broadcast_to(x[:1], (S, S)),
    ),
    "expand_dims": (lambda a, b: tk.expand_dims(a, 1).reshape((S, S)), lambda x, y: x),
    "permute": (lambda a, b: tk.permute(a, (1, 0)), lambda x, y: x.T),
    "transpose": (lambda a, b: tk.transpose(a), lambda x, y: x.T),
    "cat": (
        lambda a, b: tk.cat((tk.extract(a, (0, 0), (4, S)), tk.extract(b, (1, 0), (4, S))), 0),
        lambda x, y: np.concatenate([x[:4], y[4:]]),
    ),
    "extract": (
        lambda a, b: tk.broadcast_to(tk.extract(a, (1, 3), (4, 2))[None, :, :], (4, 4, 2)).reshape((4, S)),
        lambda x, y: np.broadcast_to(x[None, 4:, 6:], (4, 4, 2)).reshape(4, S),
    ),
    "insert": (
        lambda a, b: tk.insert(a, (1, 0), tk.extract(b, (0, 1), (4, 4))),
        lambda x, y: put(x, (1, 0), y[:4, 4:]),
    ),
}

COMPUTES = {
    "where": (lambda a, b: tk.where(a > b, a, b), np.maximum),
    "item": (lambda a, b: tk.item(tk.extract(a, (1, 1), (1, 1))) + b, lambda x, y: x[1, 1] + y),
    "divmod": (lambda a, b: tk.divmod(a, b)[0] * b + tk.divmod(a, b)[1], lambda x, y: x),
    "floordiv": (tk.floordiv, lambda x, y: x // y),
    "mod": (tk.mod, lambda x, y: x % y),
    "truediv": (lambda a, b: tk.truediv(a * b, b), lambda x, y: x.astype("f8")),
    "pow": (lambda a, b: a**3, lambda x, y: x**3),
    "isnan": (lambda a, b: tk.where(tk.isnan(a), b, a), lambda x, y: x),
    "floor": (lambda a, b: tk.floor(a) + tk.ceil(b), lambda x, y: x + y),
    "abs": (lambda a, b: tk.abs(tk.abs(a) * -1) if a.dtype.is_signed else tk.abs(a), lambda x, y: x),
    "less": (lambda a, b: (a < b).astype(tk.int32) + (a >= b), lambda x, y: np.ones_like(x)),
    "astile": (
        lambda a, b: tk.astile(((3, 1),) * 2, a.dtype),
        lambda x, y: np.array([[3, 1]] * 2).astype(x.dtype),
    ),
    "full": (lambda a, b: tk.full((S, S), 3, a.dtype), lambda x, y: np.full((S, S), 3).astype(x.dtype)),
    "zeros": (
        lambda a, b: tk.zeros((S, S), a.dtype) + tk.ones((S, S), a.dtype),
        lambda x, y: np.ones_like(x),
    ),
    "arange": (lambda a, b: tk.arange(S, dtype=tk.int32) + b, lambda x, y: np.arange(S) + y),
    "bitwise_and": (lambda a, b: (a & b) | (a ^ b), lambda x, y: x | y),
    "bitwise_lshift": (lambda a, b: (a << 3) >> 2, lambda x, y: x * 2),
    "bitwise_not": (lambda a, b: ~~a, lambda x, y: x),
    "mulhi": (lambda a, b: tk.mulhi(a, b), high),
}
WIDE = {"mulhi"}
"""Of numbers of full width."""


@tk.kernel
def of_two(out, x, y, f: tk.Constant[object], dtype: tk.Constant[object], shape: tk.Constant[tuple]):
    a, b = (tk.load(t, (0, 0), shape).astype(dtype) for t in (x, y))
    out.store(f(a, b).astype(out.dtype))


def accepted(function, dtype):
    return tile_support.translated((lambda a, b, c: function(a, b),), dtype) is not None


def skip_without(device, dtype):
    if device.kind == "cuda" and dtype.restricted:
        function = tile_support.translated((lambda a, b, c: a,), dtype)
        major, minor = device.compute_capability
        if f"sm_{major}{minor}" in tile_support.refusing(function):
            pytest.skip("no such element type here")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_elements_are_moved(name, dtype, run, device):
    skip_without(device, dtype)
    ours, numpy = MOVES[name]
    rng = np.random.default_rng(1)
    # powers of two, which every type has; a bool has 1
    x, y = (2.0 ** rng.integers(0, 3, (S, S)) for _ in range(2))
    as_held = (lambda v: (v != 0) * 1.0) if dtype is tk.bool_ else lambda v: v
    expected = np.ascontiguousarray(numpy(as_held(x), as_held(y)))
    result = run(
        of_two,
        (expected.shape, "f4", expected.shape),
        x.astype("f4"),
        y.astype("f4"),
        ours,
        dtype,
        (S, S),
    )
    assert np.array_equal(result, expected)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(n, d, id=f"{n}-{d}") for n, d in itertools.product(COMPUTES, NUMBERS)],
)
def test_numbers_are_computed(name, dtype, run):
    ours, numpy = COMPUTES[name]
    if not accepted(ours, dtype):
        pytest.skip("not of this type")
    rng = np.random.default_rng(2)
    held = np.dtype("i4") if dtype is tk.bool_ else dtype.dtype if not dtype.is_float else np.dtype("f8")
    if name in WIDE:
        info = np.iinfo(held)
        x, y = (rng.integers(info.min, info.max, (S, S), held, endpoint=True) for _ in range(2))
    else:
        x, y = (rng.integers(1, 2 if dtype is tk.bool_ else 5, (S, S)).astype(held) for _ in range(2))
    expected = np.asarray(numpy(x, y))
    out = expected.dtype if expected.dtype.kind in "iu" else np.dtype("f8")
    if dtype is tk.bool_:
        out, expected = (
            np.dtype("i4"),
            (expected != 0) * 1 if name in ("bitwise_not", "astile", "full") else expected,
        )
    result = run(of_two, (expected.shape, out, expected.shape), x, y, ours, dtype, (S, S))
    assert np.array_equal(result, expected)


@pytest.mark.parametrize("dtype", [d for d in NUMBERS if d.is_float], ids=str)
def test_angle_of_a_point(dtype, run, device):
    """Rounded once on the host device, within 3 units on a GPU."""
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal((S, S)).astype(dtype.dtype) for _ in range(2))
    x[0], y[0] = [0, 0, -0.0, -0.0, 1, -1, np.inf, -np.inf], [0, -0.0, 0, -0.0, 0, 0, np.inf, np.inf]
    exact = np.arctan2(x.astype(np.longdouble), y.astype(np.longdouble))
    result = run(of_two, ((S, S), dtype.dtype, (S, S)), x, y, tk.atan2, dtype, (S, S))
    unit = np.spacing(np.abs(exact).astype(dtype.dtype)).astype("f8")
    error = np.abs(result.astype("f8") - exact.astype("f8")) / unit
    assert error.max() <= (0.51 if dtype is not tk.float64 else 1.0) if device.kind == "host" else 3
    assert np.array_equal(np.signbit(result.astype("f8")), np.signbit(exact.astype("f8")))


@pytest.mark.parametrize("dtype", NUMBERS[1:], ids=str)
def test_bits_are_read_as_another_type(dtype, run):
    """As integers of the width, and back."""
    bits = DTYPES[f"u{dtype.bits}"]
    x = np.random.default_rng(5).integers(1, 100, (S, S)).astype(dtype.dtype)
    result = run(of_two, ((S, S), bits.dtype, (S, S)), x, x, lambda a, b: tk.bitcast(a, bits), dtype, (S, S))
    assert np.array_equal(result, x.view(bits.dtype))
    back = run(
        of_two, ((S, S), dtype.dtype, (S, S)), result, x, lambda a, b: tk.bitcast(a, dtype), bits, (S, S)
    )
    assert back.tobytes() == x.tobytes()
