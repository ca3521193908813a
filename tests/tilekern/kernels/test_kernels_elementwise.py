"""Elementwise functions of the library, and dropout."""

import math

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

k = tk.kernels
erf = np.vectorize(math.erf)


def test_add_and_mul_take_any_shape(values):
    x, x64 = values(7, 5, 3)
    y, y64 = values(7, 5, 3)
    values.close(k.add(x, y), x64 + y64)
    values.close(k.mul(x, y), x64 * y64)


def test_gelu_is_that_of_the_error_function(values):
    x, x64 = values(1337, scale=3.0)
    values.close(k.gelu(x), 0.5 * x64 * (1 + erf(x64 / math.sqrt(2))), scale=np.abs(x64))


def test_gelu_is_exact_everywhere(device):
    x = np.concatenate(
        [np.linspace(-17, 17, 20001), np.geomspace(1e-38, 3e38, 777), -np.geomspace(1e-38, 3e38, 777)]
    )
    x = x.astype(np.float32)
    exact = np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x.astype(np.float64)])
    result = k.gelu(ca.from_host(x)).to_host().sync()
    assert (np.abs(result - exact) <= 2e-7 * np.abs(x)).all()
    ends = k.gelu(ca.from_host(np.array([np.inf, -np.inf, np.nan], np.float32))).to_host().sync()
    assert ends[0] == np.inf
    assert ends[1] == 0
    assert np.isnan(ends[2])


def test_gelu_by_hyperbolic_tangent(values):
    x, x64 = values(33, 9, scale=3.0)
    inner = math.sqrt(2 / math.pi) * (x64 + 0.044715 * x64**3)
    values.close(k.gelu(x, approximate="tanh"), 0.5 * x64 * (1 + np.tanh(inner)), scale=3 * np.abs(x64))


def test_silu_mul_of_two_and_of_halves(values):
    both, both64 = values(2, 5, 2 * 37, scale=2.0)
    gate, up = both64[..., :37], both64[..., 37:]
    expected = gate / (1 + np.exp(-gate)) * up
    values.close(k.silu_mul(both), expected)
    values.close(k.silu_mul(both[1, :, :37], both[1, :, 37:]), expected[1])


def test_dropout_keeps_what_the_random_numbers_say(values):
    x, x64 = values(70, 30)
    u = tk.rand((70, 30), seed=2**40 + 3).to_host().sync()
    expected = np.where(u >= np.float32(0.3), x64 / 0.7, 0)
    result = values.close(k.dropout(x, 0.3, 2**40 + 3), expected, scale=np.abs(expected))
    assert 0.6 < np.count_nonzero(result) / result.size < 0.8


def test_results_go_where_they_are_told(values):
    x, x64 = values(40)
    place = ca.zeros(40, values.dtype).sync()
    k.add(x, x, out=place).sync()
    values.close(ca.copy(place), 2 * x64)


def test_operands_may_be_operations(device):
    op = k.mul(k.add(ca.ones((3, 4)), ca.full((3, 4), 2.0)), ca.full((3, 4), 5.0))
    assert (op.to_host().sync() == 15.0).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: k.add(x, x[:2]), ValueError, r"add: y has the shape \(2,\), it must be \(4,\)"),
        (lambda x: k.add(np.ones(4), x), TypeError, "from_host"),
        (lambda x: k.add(x.partition(4), x), TypeError, r"tilekern\.kernels\.raw"),
        (lambda x: k.gelu(x, approximate="fast"), ValueError, "approximate"),
        (lambda x: k.gelu(x, out=ca.ones(2).sync()), ValueError, "out is float32"),
        (lambda x: k.dropout(x, 1.0, 0), ValueError, "share"),
        (lambda x: k.dropout(x, 0.5, -1), ValueError, "seed"),
        (lambda x: k.silu_mul(x[:3]), ValueError, "odd"),
    ],
)
def test_wrong_operands_are_refused_at_the_call(host, call, error, message):
    x = ca.ones(4).sync()
    with pytest.raises(error, match=message):
        call(x)


def test_other_element_types_are_refused(host):
    with pytest.raises(TypeError, match=r"add: x is int32; it takes bfloat16, float32, float16"):
        k.add(ca.ones(4, "int32").sync(), ca.ones(4, "int32").sync())
