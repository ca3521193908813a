"""Sequences, identity matrices and conversion, against NumPy."""

import math

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

WHOLE = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]


def dtype(name):
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def get(op):
    return op.to_host().sync()


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("bounds", [(10,), (3, 100, 7), (100, -100, -9), (0, 3000, 1)], ids=str)
def test_arange_of_whole_numbers(bounds, name, device):
    got = get(tk.arange(*bounds, dtype=name))
    assert got.dtype == name
    np.testing.assert_array_equal(got, np.arange(*bounds, dtype=np.int64).astype(name))


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize(
    "bounds", [(0.0, 1.0, 0.25), (5.0, -5.0, -0.125), (100,), (1e-3, 2e-3, 1e-5)], ids=str
)
def test_arange_of_floats_is_rounded_once(bounds, name, device):
    got = get(tk.arange(*bounds, dtype=name))
    start, step = (0.0, 1.0) if len(bounds) == 1 else (bounds[0], bounds[2])
    exact = start + np.arange(len(np.arange(*bounds))) * step
    np.testing.assert_array_equal(got.astype("f8"), exact.astype(dtype(name)).astype("f8"))


def test_arange_chooses_its_type(device):
    assert get(tk.arange(3)).dtype == np.int64
    assert get(tk.arange(0, 3, 0.5)).dtype == np.float32
    assert get(tk.arange(0, 3, dtype=tk.bfloat16)).dtype == ml_dtypes.bfloat16
    assert get(tk.arange(0)).shape == get(tk.arange(5, 5)).shape == get(tk.arange(5, 0, 2)).shape == (0,)
    large = get(tk.arange((1 << 63) - 2, (1 << 63) + 3, dtype="uint64"))
    assert large.tolist() == [(1 << 63) - 2 + i for i in range(5)]


def test_arange_is_one_name_for_two_things(device):
    @tk.kernel
    def k(out: tk.Tile1D):
        out.store(tk.arange(8, start=3, step=2, dtype=tk.int32))

    assert get(k(ca.empty((8,), "i4").partition(8)).first().unpartition()).tolist() == list(range(3, 19, 2))
    with pytest.raises(TypeError, match="start= is for kernels"):
        tk.arange(8, start=3)


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(endpoint, name, device):
    for start, stop, num in ((0, 1, 50), (-3, 10, 1025), (2, 2, 3), (0, 7, 1), (1, 0.1, 2)):
        got = get(tk.linspace(start, stop, num, endpoint=endpoint, dtype=name))
        wanted = np.linspace(start, stop, num, endpoint=endpoint, dtype="f8")
        if np.dtype(name).kind in "iu":
            wanted = np.floor(wanted).clip(0 if name == "uint8" else None)
        np.testing.assert_array_equal(got, wanted.astype(name))
    assert get(tk.linspace(0, 1, 0)).shape == (0,)


@pytest.mark.parametrize("name", ["bool", "int8", "float16", "float32", "bfloat16", "float8_e5m2"])
def test_eye(name, device):
    for rows, columns, k in ((1, 1, 0), (5, 5, 0), (17, 70, 3), (70, 17, -20), (4, 4, 9), (3, 200, 130)):
        got = get(tk.eye(rows, columns, k, dtype=name))
        np.testing.assert_array_equal(got.astype("f8"), np.eye(rows, columns, k))
    assert get(tk.eye(3)).dtype == np.float32
    assert get(tk.eye(0, 4)).shape == (0, 4)
    assert get(tk.eye(2, 2, 1 << 40)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("to", [*WHOLE, *FLOATS, "bool"])
@pytest.mark.parametrize("source", ["int32", "float32", "float16", "uint8", "bool"])
def test_convert(source, to, device):
    if source == to == "bool":
        pytest.skip("nothing to convert")
    values = np.arange(-50, 51, 0.25) if np.dtype(source).kind == "f" else np.arange(101)
    x = values.reshape(-1).astype(source)
    got = get(tk.convert(ca.from_host(x), to))
    wide = np.trunc(x.astype("f8")) if np.dtype(dtype(to)).kind in "iu" else x.astype("f8")
    if dtype(to).kind in "iu":
        info = np.iinfo(to)
        wide = wide.clip(info.min, info.max) if np.dtype(source).kind == "f" else wide
    np.testing.assert_array_equal(got.astype("f8"), wide.astype(dtype(to)).astype("f8"))


def test_convert_keeps_shapes_and_takes_views(device):
    x = np.arange(60, dtype="f4").reshape(3, 4, 5)
    tensor = ca.from_host(x).sync()
    np.testing.assert_array_equal(get(tk.convert(tensor, "int16")), x.astype("int16"))
    np.testing.assert_array_equal(get(tk.convert(tensor[:, ::2, 1:], "f8")), x[:, ::2, 1:])
    np.testing.assert_array_equal(get(tk.convert(ca.from_host(x[0]), "f2").reshape((20,))), x[0].ravel())
    assert get(tk.convert(ca.zeros((0, 3)), "i4")).shape == (0, 3)
    with pytest.raises(TypeError, match="takes a tensor"):
        tk.convert(x, "f8")


WRONG = {
    "step of 0": (lambda: tk.arange(0, 1, 0), ValueError, "the step is 0"),
    "infinite bound": (lambda: tk.arange(0, math.inf), ValueError, "stop is inf"),
    "text": (lambda: tk.arange("3"), TypeError, "stop is a number, got str"),
    "negative count": (lambda: tk.linspace(0, 1, -1), ValueError, "from 0 on"),
    "NaN": (lambda: tk.linspace(0, math.nan), ValueError, "stop is nan"),
    "negative rows": (lambda: tk.eye(-1), ValueError, "-1"),
    "diagonal": (lambda: tk.eye(2, k=0.5), TypeError, "whole number"),
    "type": (lambda: tk.arange(3, dtype="complex64"), TypeError, "not a supported element type"),
}


@pytest.mark.parametrize(("make", "error", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_kernels_are_valid_tile_ir(disassemble):
    from tilekern.arrays import _kernels, _philox

    M = tk.meta
    for name in (*WHOLE, "float16", "bfloat16", "float32", "float64", "float8_e5m2", "bool"):
        kind = getattr(tk, "bool_" if name == "bool" else name)
        flat = M(5000, kind).partition(1024)
        calls = [
            (_kernels.float_sequence, (flat, np.float64(0), np.float64(1))),
            (_kernels.converted, (flat, M(5000, "f4" if kind is not tk.float32 else "f8"))),
            (_kernels.diagonal, (M((40, 200), kind).partition((16, 64)), np.int64(3))),
        ]
        if kind.kind in ("int", "uint"):
            calls.append((_kernels.whole_sequence, (flat, np.int64(0), np.int64(1))))
        if name in ("float16", "float32"):
            calls.append((_philox.uniform, (flat, np.uint32(1), np.uint32(2), 11)))
            calls.append((_philox.normal, (flat, np.uint32(1), np.uint32(2))))
        if name == "float64":
            calls += [
                (_philox.uniform64, (flat, np.uint32(1), np.uint32(2))),
                (_philox.normal64, (flat, np.uint32(1), np.uint32(2))),
            ]
        for kernel, args in calls:
            assert "entry @" in disassemble(kernel.bytecode(*args))
