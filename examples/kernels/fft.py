"""Fast Fourier transform by matrix products.

For n = r c, write the signal as an (r, c) matrix by rows: element (i, j) is x[c i + j]. Then (Cooley and Tukey 1965)

    X[p + r q] = sum over j of e(j q / c) e(j p / n) sum over i of e(i p / r) x[c i + j],    e(t) = exp(-2 pi i t)

that is: transform the columns, which is a product with the (r, r) Fourier matrix; multiply element (p, j) by
e(j p / n); transform the rows, a product with the (c, c) Fourier matrix; read the result by columns. A block transforms
one signal.

    python examples/kernels/fft.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import numpy as np

import cuda_async as ca
import tilekern as tk


def product(ar: tk.Tile, ai: tk.Tile, br: tk.Tile, bi: tk.Tile) -> tuple[tk.Tile, tk.Tile]:
    """Product of complex matrices, as real and imaginary parts."""
    zeros = tk.zeros((ar.shape[0], br.shape[1]), tk.float32)
    return tk.mma(ar, br, tk.mma(-ai, bi, zeros)), tk.mma(ar, bi, tk.mma(ai, br, zeros))


@tk.kernel
def fft(out: tk.Tile3D, x: tk.Tensor3D, rows: tk.Tensor3D, columns: tk.Tensor3D, twiddle: tk.Tensor3D):
    """x: (signals, n, 2), real and imaginary parts; rows, columns, twiddle: (2, ., .). out is like x."""
    r, c = tk.static_eval(side(out.shape[1]))
    signal = tk.load(x, (out.index[0], 0, 0), (1, r * c, 2)).reshape((r, c, 2))
    real = tk.extract(signal, (0, 0, 0), (r, c, 1)).reshape((r, c))
    imaginary = tk.extract(signal, (0, 0, 1), (r, c, 1)).reshape((r, c))

    by_columns = parts(columns, r, r)
    real, imaginary = product(*by_columns, real, imaginary)
    tr, ti = parts(twiddle, r, c)
    real, imaginary = real * tr - imaginary * ti, real * ti + imaginary * tr
    by_rows = parts(rows, c, c)
    real, imaginary = product(real, imaginary, *by_rows)

    both = tk.cat((real.transpose()[:, :, None], imaginary.transpose()[:, :, None]), 2)
    out.store(both.reshape((1, r * c, 2)))


def side(n: int) -> tuple[int, int]:
    """Rows and columns for a power of two."""
    r = 1 << (n.bit_length() // 2)
    return r, n // r


def parts(x: tk.Tensor3D, rows: int, columns: int) -> tuple[tk.Tile, tk.Tile]:
    """Real and imaginary parts of a matrix that fits into a tile."""
    return (
        tk.load(x, (0, 0, 0), (1, rows, columns)).reshape((rows, columns)),
        tk.load(x, (1, 0, 0), (1, rows, columns)).reshape((rows, columns)),
    )


def roots(exponents: np.ndarray, n: int) -> np.ndarray:
    """e(exponent / n) as float32, real and imaginary parts in front."""
    values = np.exp(-2j * np.pi * (exponents % n) / n)
    return np.stack((values.real, values.imag)).astype(np.float32)


async def run() -> int:
    signals, n = 7, 512
    r, c = side(n)
    random = np.random.default_rng(0)
    x_host = random.standard_normal((signals, n, 2), dtype=np.float32)
    tables = (
        roots(np.outer(np.arange(c), np.arange(c)), c),
        roots(np.outer(np.arange(r), np.arange(r)), r),
        roots(np.outer(np.arange(r), np.arange(c)), n),
    )
    x, *factors = await ca.zip(ca.from_host(x_host), *map(ca.from_host, tables))
    result = await fft(ca.empty(x.shape).partition((1, n, 2)), x, *factors).first().unpartition().to_host()

    expected = np.fft.fft(x_host[..., 0].astype(np.float64) + 1j * x_host[..., 1].astype(np.float64))
    error = float(np.max(np.abs(result[..., 0] + 1j * result[..., 1].astype(np.float64) - expected)))
    passed = error < 1e-4  # float32, values up to about 100
    print(
        f"{'PASS' if passed else 'FAIL'}: {signals} signals of {n} = {r} x {c} on {x.device}, largest error {error:.1e}"
    )
    return 0 if passed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="cuda:0 or host:0; default: the GPU where there is one")
    name = parser.parse_args().device
    try:
        device = (ca.current_device() if name is None else ca.Device(name)).open()
    except (ValueError, ca.ContextError) as error:
        parser.exit(2, f"error: {error}\n")
    with ca.use_device(device):
        return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
