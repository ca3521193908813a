"""Machine code from the disk cache that a device refuses: forgotten, made anew, and only then an error."""

from dataclasses import replace

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.jit import _kernel, _obtain
from tilekern.jit._disk_cache import DiskCache, name_of

KEY = b"what the machine code depends on"


def fresh():
    @tk.kernel
    def doubled(out: tk.Tile1D, x: tk.Tensor1D):
        out.store(tk.load_like(x, out) * 2)

    return doubled


class Refused:
    """Code that no device takes."""

    name = "doubled"

    def load(self, device):
        raise ca.CompileError("the image is refused")


class Damaged:
    """A disk cache whose entry cannot be loaded, the first times it is used."""

    def __init__(self, folder, monkeypatch):
        self.cache = DiskCache(folder)
        self.cache.put(KEY, b"damaged")
        self.times = 1
        self.origins = []
        self._usual = _obtain.obtain
        monkeypatch.setattr(_obtain, "obtain", self._obtain)
        monkeypatch.setattr(_kernel, "disk_cache", lambda: self.cache)

    def _obtain(self, *args):
        variant = self._usual(*args)
        origin = "recalled" if self.cache.get(KEY) is not None else "assembled"
        self.origins.append(origin)
        function = Refused() if len(self.origins) <= self.times else variant.function
        timings = replace(variant.timings, origin=origin)
        return replace(variant, function=function, timings=timings, cubin_name=name_of(KEY))


@pytest.fixture
def damaged(host, tmp_path, monkeypatch):
    return Damaged(tmp_path, monkeypatch)


@pytest.mark.parametrize("how", ["launch", "compile", "bind"])
def test_refused_code_is_made_anew(damaged, how):
    kernel = fresh()
    x, out = ca.ones((8,)).sync(), ca.empty((8,), "f4").sync()
    if how == "compile":
        kernel.compile(out.partition(4), x).sync()
    elif how == "bind":
        kernel.bind(out.partition(4), x, device=ca.current_device()).launch().sync()
    kernel(out.partition(4), x).sync()
    assert out.to_host().sync().tolist() == [2.0] * 8
    assert damaged.origins == ["recalled", "assembled"]
    assert damaged.cache.get(KEY) is None


def test_refused_twice_is_an_error(damaged):
    damaged.times = 2
    with pytest.raises(ca.CompileError, match="the image is refused") as caught:
        fresh()(ca.empty((8,), "f4").partition(4), ca.ones((8,))).sync()
    assert "machine code from the disk cache was refused" in caught.value.__notes__[0]
    assert damaged.origins == ["recalled", "assembled"]


def test_new_code_that_is_refused_is_not_made_again(damaged):
    damaged.cache.clear()
    with pytest.raises(ca.CompileError, match="the image is refused"):
        fresh()(ca.empty((8,), "f4").partition(4), ca.ones((8,))).sync()
    assert damaged.origins == ["assembled"]


@pytest.mark.gpu
def test_damaged_entry_is_replaced(tmp_path, monkeypatch):
    """The entry's checksum is right; what it holds is no machine code."""
    cache, device = DiskCache(tmp_path), ca.Device("cuda:0")
    monkeypatch.setattr(_kernel, "disk_cache", lambda: cache)
    put = cache.put

    def keep(key, value, about=None):
        return put(key, b"\x7fELF damaged" if value.startswith(b"\x7fELF") else value, about)

    with ca.use_device(device), monkeypatch.context() as patch:
        patch.setattr(cache, "put", keep)
        x, out = ca.ones((8,)).sync(), ca.empty((8,), "f4").sync()
        fresh()(out.partition(4), x).sync()
    with ca.use_device(device):
        again = fresh()
        again(out.partition(4), x).sync()
        np.testing.assert_array_equal(out.to_host().sync(), [2.0] * 8)
    assert [one.origin for one in again.timings][-1] == "assembled"
    with ca.use_device(device):
        third = fresh()
        third(out.partition(4), x).sync()
    assert third.timings[-1].origin in ("recalled", "disk cache")
