"""Products and sums rounded once: only where a kernel allows it."""

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


def affine(out, a, b, c):
    x, y, z = tk.load_like(a, out), tk.load_like(b, out), tk.load_like(c, out)
    out.store(x * y + z)


plain = tk.kernel(affine)
fused = tk.kernel(fuse_multiply_add=True)(affine)


def test_fused_only_on_request(device):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 256)).astype("f4")
    c = -(a * b)  # what is left is the rounding of the product
    once = (a.astype("f8") * b.astype("f8") + c.astype("f8")).astype("f4")

    def run(kernel):
        args = [ca.from_host(v) for v in (a, b, c)]
        return kernel(ca.zeros((256,), "f4").partition(64), *args).first().unpartition().to_host().sync()

    assert not run(plain).any()
    assert np.array_equal(run(fused), once)
    assert once.any()


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4"])
def test_which_types_are_fused(dtype):
    x = tk.meta(64, dtype)
    text = fused.ir(x.partition(64), x, x, x)
    assert ("fma" in text) == (dtype in ("f4", "f8"))
    assert "fma" not in plain.ir(x.partition(64), x, x, x)


def test_options_that_are_no_switch_are_refused():
    with pytest.raises(tk.KernelOptionError, match="fuse_multiply_add is True or False"):
        plain.with_options(fuse_multiply_add=1)
