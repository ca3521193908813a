"""Kernels for graphs, on every device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import cuda_async as ca

PTX = (Path(__file__).parent / "kernels.ptx").read_text(encoding="utf-8")
_module = ca.Module.from_ptx(PTX, name="kernels.ptx")
NAMES = ("affine", "affine_to", "add_to", "sum_squares", "count_down", "wild_write")


class Kernels(SimpleNamespace):
    """The kernels by name, and operations made of them."""

    def scaled(self, x, a, b):
        """A new tensor a*x + b."""
        y = ca.empty(x.shape)
        return y.then(lambda y: self.affine_to.launch(1, x.size, ca.mut(y), ca.read(x), x.size, a, b)).first()

    def scale(self, x, a, b):
        """x = a*x + b, in place."""
        return self.affine.launch(1, x.size, ca.mut(x), x.size, a, b).first()


@pytest.fixture
def kernels():
    return Kernels(**{name: _module.function(name) for name in NAMES})
