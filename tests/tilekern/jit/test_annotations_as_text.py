"""`from __future__ import annotations` makes them text; names in it may be local to where the kernel is defined."""

from __future__ import annotations

import pytest

META = 8, "f4"


def test_name_that_only_annotations_use():
    import tilekern as tk

    @tk.kernel
    def kernel(out: tk.Tile1D, n: tk.Constant[int]):
        out.store(n)

    assert [p.kind for p in kernel.parameters] == ["partition", "constant"]
    assert [p.kind for p in kernel.with_options(occupancy=2).parameters] == ["partition", "constant"]


def test_name_that_the_body_uses_too():
    import tilekern as tk

    @tk.kernel(occupancy=2)
    def kernel(out: tk.Tile1D, x: tk.Tensor1D):
        out.store(tk.load_like(x, out))

    kernel.ir(tk.meta(*META).partition(4), tk.meta(*META))


def test_name_that_is_nowhere_is_an_error_that_names_the_parameter():
    import tilekern

    @tilekern.kernel
    def kernel(out: tkk.Tile1D):  # noqa: F821
        out.store(1)

    with pytest.raises(
        tilekern.KernelArgumentError, match=r"annotation of out, tkk\.Tile1D, cannot be evaluated .* import"
    ):
        _ = kernel.parameters
