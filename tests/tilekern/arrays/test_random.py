"""Random arrays: the generator against published vectors, elements against the formulas in integers and float64."""

import math

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.arrays._philox import philox4x32

# Random123 1.14, tests/kat_vectors, "philox4x32 10": counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


def reference(counter, key):
    """The generator in Python's integers, from the paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second & 0xFFFFFFFF, first >> 32 ^ c[3] ^ k[1], first & 0xFFFFFFFF]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c


def drawn(count, seed):
    """The words of the first counters."""
    key = seed & 0xFFFFFFFF, seed >> 32
    return np.array([reference((i & 0xFFFFFFFF, i >> 32, 0, 0), key) for i in range(count)], dtype=np.uint64)


def get(op):
    return op.to_host().sync()


@tk.kernel
def known(out: tk.Tile2D, given: tk.Tensor2D):
    c0, c1, c2, c3, k0, k1 = [
        tk.load(given, (out.index[0], column), (1, 1), padding_mode=tk.PaddingMode.ZERO)
        for column in tk.static_eval(tuple(range(6)))
    ]
    r0, r1, r2, r3 = philox4x32(c0, c1, c2, c3, k0, k1)
    out.store(tk.cat((tk.cat((r0, r1), 1), tk.cat((r2, r3), 1)), 1))


def test_generator_gives_the_published_vectors(device):
    given = np.array([words(counter) + words(key) for counter, key, _ in KNOWN], dtype=np.uint32)
    got = get(known(ca.zeros((3, 4), "u4").partition((1, 4)), ca.from_host(given)).first().unpartition())
    assert got.tolist() == [words(result) for _, _, result in KNOWN]
    assert [reference(words(c), words(k)) for c, k, _ in KNOWN] == got.tolist()


SEEDS = [0, 1, 0x123456789ABCDEF0, (1 << 64) - 1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "bits"), [("float32", 24), ("float16", 11), ("bfloat16", 8)])
def test_uniform_elements_are_words(name, bits, seed, device):
    got = get(tk.rand(4100, name, seed=seed)).astype("f8")
    wanted = (drawn(1025, seed).ravel() >> np.uint64(32 - bits)).astype("f8") * 2.0**-bits
    np.testing.assert_array_equal(got, wanted)


def test_uniform_doubles_are_pairs_of_words(device):
    got = get(tk.rand(1030, "float64", seed=7))
    pairs = drawn(515, 7).reshape(-1, 2)
    wanted = ((pairs[:, 0] >> np.uint64(5)) * np.uint64(1 << 26) + (pairs[:, 1] >> np.uint64(6))).astype("f8")
    np.testing.assert_array_equal(got, wanted * 2.0**-53)


def box_muller(u, turn):
    radius = np.sqrt(-2 * np.log(u))
    return np.stack([radius * np.cos(2 * math.pi * turn), radius * np.sin(2 * math.pi * turn)], -1).ravel()


def test_normal_elements(device):
    values = drawn(2048, 5).reshape(-1, 2) >> np.uint64(8)
    wanted = box_muller(
        (values[:, 0] + np.uint64(1)).astype("f8") * 2.0**-24, values[:, 1].astype("f8") * 2.0**-24
    )
    got = get(tk.randn(8192, seed=5))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=6e-6)
    for name, unit in (("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        rounded = get(tk.randn(8192, name, seed=5)).astype("f8")
        np.testing.assert_allclose(rounded, wanted, rtol=unit, atol=7e-6)


def test_normal_doubles(device):
    values = drawn(1000, 9)
    u = ((values[:, 0::2] >> np.uint64(5)) * np.uint64(1 << 26) + (values[:, 1::2] >> np.uint64(6))).astype(
        "f8"
    )
    wanted = box_muller(u[:, 0] * 2.0**-53 + 2.0**-53, u[:, 1] * 2.0**-53)
    np.testing.assert_allclose(get(tk.randn(2000, "float64", seed=9)), wanted, rtol=0, atol=2e-14)


def test_moments(device):
    x = get(tk.randn((300, 400), seed=3)).astype("f8")
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((x**3).mean()) < 0.05
    assert abs((x**4).mean() - 3) < 0.1
    assert np.isfinite(x).all()


def test_shape_and_type_change_no_draw(device):
    flat = get(tk.rand(24, seed=11))
    np.testing.assert_array_equal(get(tk.rand((2, 3, 4), seed=11)).ravel(), flat)
    np.testing.assert_array_equal(get(tk.rand(2000, seed=11))[:24], flat)
    assert get(tk.rand((), seed=11)).shape == ()
    assert get(tk.randn((3, 0), seed=11)).shape == (3, 0)
    assert get(tk.rand(3, ml_dtypes.bfloat16, seed=0)).dtype == ml_dtypes.bfloat16


def test_without_a_seed_no_two_are_equal(device):
    assert not np.array_equal(get(tk.rand(8)), get(tk.rand(8)))


def test_wrong_arguments():
    with pytest.raises(TypeError, match="makes float16, bfloat16, float32 and float64, got int32"):
        tk.rand(3, "int32")
    for seed in (-1, 1 << 64, 1.5, True):
        with pytest.raises(ValueError, match="a seed is a whole number"):
            tk.randn(3, seed=seed)
    with pytest.raises(ValueError, match="-3"):
        tk.rand(-3, seed=1)
