"""Approximate instructions: within the error the manual allows, and its special values exactly."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from cuda_async.driver.host.ptx._semantics import operation

INF = math.inf


def apply(opcode: str, modifiers: tuple[str, ...], *values: np.ndarray) -> np.ndarray:
    """The instruction on f32 values."""
    (result,) = operation(opcode, modifiers).fn(*[np.asarray(v, np.float32).view(np.uint32) for v in values])
    return result.view(np.float32)


REFERENCES: dict[str, tuple[Callable, float, float]] = {
    # reference in double precision, range of arguments
    "rcp": (lambda x: 1 / x, -1e30, 1e30),
    "sqrt": (math.sqrt, 0, 1e38),
    "rsqrt": (lambda x: 1 / math.sqrt(x), 1e-30, 1e38),
    "sin": (math.sin, -math.pi, math.pi),
    "cos": (math.cos, -math.pi, math.pi),
    "lg2": (math.log2, 1e-30, 1e38),
    "ex2": (lambda x: 2.0**x, -125, 127),
    "tanh": (math.tanh, -10, 10),
}


@pytest.mark.parametrize("opcode", list(REFERENCES))
def test_result_is_the_nearest_f32(opcode: str) -> None:
    reference, low, high = REFERENCES[opcode]
    x = np.random.default_rng(1).uniform(low, high, 500).astype(np.float32)
    want = np.array([reference(float(v)) for v in x])
    got = apply(opcode, ("approx", "f32"), x)
    # Half a last place is a correctly rounded result; a thousandth more covers the double's own error.
    assert (np.abs(got - want) <= np.spacing(np.abs(want).astype(np.float32)) * 0.501).all()


# From the manual's tables of special arguments.
SPECIAL = [
    ("rcp", -INF, -0.0),
    ("rcp", -0.0, -INF),
    ("rcp", 0.0, INF),
    ("rcp", INF, 0.0),
    ("sqrt", -INF, math.nan),
    ("sqrt", -1.0, math.nan),
    ("sqrt", -0.0, -0.0),
    ("sqrt", INF, INF),
    ("rsqrt", -0.0, -INF),
    ("rsqrt", 0.0, INF),
    ("rsqrt", INF, 0.0),
    ("rsqrt", -1.0, math.nan),
    ("sin", -0.0, -0.0),
    ("sin", INF, math.nan),
    ("cos", 0.0, 1.0),
    ("cos", -INF, math.nan),
    ("lg2", 0.0, -INF),
    ("lg2", -0.0, -INF),
    ("lg2", INF, INF),
    ("lg2", -1.0, math.nan),
    ("ex2", -INF, 0.0),
    ("ex2", -0.0, 1.0),
    ("ex2", INF, INF),
    ("tanh", -INF, -1.0),
    ("tanh", INF, 1.0),
    ("tanh", -0.0, -0.0),
]


@pytest.mark.parametrize(("opcode", "argument", "want"), SPECIAL)
def test_special_arguments(opcode: str, argument: float, want: float) -> None:
    (got,) = apply(opcode, ("approx", "f32"), np.array([argument]))
    assert (
        math.isnan(got)
        if math.isnan(want)
        else (got, math.copysign(1, got)) == (want, math.copysign(1, want))
    )


def test_nan_result_is_canonical() -> None:
    for opcode in REFERENCES:
        given = np.array([0xFFC12345], np.uint32)
        assert operation(opcode, ("approx", "f32")).fn(given)[0].tolist() == [0x7FFFFFFF]


def test_flushing_variants_take_subnormals_for_zero() -> None:
    small = np.array([1, 0x80000001], np.uint32).view(np.float32)
    assert apply("rcp", ("approx", "ftz", "f32"), small).tolist() == [INF, -INF]
    assert apply("lg2", ("approx", "ftz", "f32"), small).tolist() == [-INF, -INF]
    assert apply("lg2", ("approx", "f32"), small[:1]).tolist() == [-149]
    assert apply("ex2", ("approx", "ftz", "f32"), np.array([-149])).tolist() == [0]
    assert apply("ex2", ("approx", "f32"), np.array([-149])).tolist() == [2.0**-149]


def test_division() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(500).astype(np.float32) for _ in range(2))
    want = a.astype(np.float64) / b
    for modifiers in (("approx", "f32"), ("full", "f32"), ("full", "ftz", "f32")):
        got = apply("div", modifiers, a, b)
        assert (np.abs(got - want) <= 2 * np.spacing(np.abs(want).astype(np.float32))).all()


def test_approximate_division_by_huge_numbers() -> None:
    """The manual: for 2**126 < |b| < 2**128 the result is 0, or NaN for infinite a; not so for `.full`."""
    a, b = np.array([1e38, INF, 1.0, 1.0]), np.array([2.0**127, 2.0**127, 2.0**127, 2.0**126])
    got = apply("div", ("approx", "f32"), a, b)
    assert got[0] == 0
    assert math.isnan(got[1])
    assert got[2:].tolist() == [0, 2.0**-126]
    assert apply("div", ("full", "f32"), a[:1], b[:1])[0] == np.float32(np.float32(1e38) / 2.0**127)


def test_f64_forms() -> None:
    x = np.random.default_rng(3).uniform(1e-3, 1e3, 200)
    (exact,) = operation("rsqrt", ("approx", "f64")).fn(x.view(np.uint64))
    assert np.allclose(exact.view(np.float64), 1 / np.sqrt(x), rtol=2.0**-51, atol=0)
    for opcode, reference in (("rcp", 1 / x), ("rsqrt", 1 / np.sqrt(x))):
        (coarse,) = operation(opcode, ("approx", "ftz", "f64")).fn(x.view(np.uint64))
        assert not (coarse & np.uint64(0xFFFFFFFF)).any()  # only the upper 32 bits are computed
        assert np.allclose(coarse.view(np.float64), reference, rtol=2.0**-19, atol=0)


@pytest.mark.parametrize("half", ["f16", "f16x2", "bf16", "bf16x2"])
def test_half_precision_forms(half: str) -> None:
    bits = np.arange(0, 65536, 2, dtype=np.uint16)
    scalar = half.removesuffix("x2")
    wide = np.uint32 if half.endswith("x2") else np.uint16
    (values,) = operation("cvt", ("f32", scalar)).fn(bits)
    with np.errstate(invalid="ignore"):
        x = values.view(np.float32).astype(np.float64)
    flush = ("ftz",) if scalar == "bf16" else ()
    with np.errstate(all="ignore"):
        references = {"tanh": np.tanh(x), "ex2": np.exp2(np.where(np.abs(x) < 2.0**-126, 0, x))}
        for opcode, want in references.items():
            modifiers = ("approx", *(flush if opcode == "ex2" else ()), half)
            (result,) = operation(opcode, modifiers).fn(bits.view(wide))
            (got,) = operation("cvt", ("f32", scalar)).fn(result.view(np.uint16))
            error = np.abs(got.view(np.float32) - want)
            last, smallest = (2.0**-11, 2.0**-25) if scalar == "f16" else (2.0**-8, 2.0**-126)
            largest = 65504 if scalar == "f16" else 3.38e38
            inside = np.isfinite(want) & (want < largest)
            assert (error <= np.abs(want) * last * 1.001 + smallest)[inside].all()
