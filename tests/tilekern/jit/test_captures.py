"""What a kernel captures is compiled in, and a change of it takes effect at the next call."""

import importlib
import os
import subprocess
import sys
import types

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

SCALE = 2.0
TABLE = [1.0, 2.0]
SETTINGS = types.SimpleNamespace(scale=2.0)


def helper(t):
    return t * SCALE


@tk.kernel
def by_global(out: tk.Tile1D):
    out.store(out.load() * SCALE)


@tk.kernel
def by_helper(out: tk.Tile1D):
    out.store(helper(out.load()))


@tk.kernel
def by_content(out: tk.Tile1D):
    out.store(out.load() * TABLE[1])


@tk.kernel
def by_attribute(out: tk.Tile1D):
    out.store(out.load() * SETTINGS.scale)


def first(kernel, tile=4):
    return float(kernel(ca.ones((8,), "f4").partition(tile)).first().unpartition().to_host().sync()[0])


@pytest.mark.parametrize("kernel", [by_global, by_helper], ids=["kernel", "helper"])
def test_changed_global_takes_effect(device, kernel, monkeypatch):
    assert first(kernel, 4) == 2.0
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert [first(kernel, 4), first(kernel, 8), first(kernel, 4)] == [5.0, 5.0, 5.0]
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert [first(kernel, 8), first(kernel, 4)] == [2.0, 2.0]


def test_type_and_sign_of_a_global_count(device, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", 0.0)
    assert np.signbit(first(by_global)) == np.False_
    monkeypatch.setitem(globals(), "SCALE", -0.0)
    assert np.signbit(first(by_global)) == np.True_


def test_redefined_helper_takes_effect(device, monkeypatch):
    assert first(by_helper) == 2.0

    def other(t):
        return t + 6

    monkeypatch.setitem(globals(), "helper", other)
    assert first(by_helper) == 7.0


def test_helper_whose_code_is_replaced_takes_effect(device, monkeypatch):
    """IPython's autoreload edits functions in place."""

    def other(t):
        return t + 6

    assert first(by_helper) == 2.0
    monkeypatch.setattr(helper, "__code__", other.__code__)
    assert first(by_helper) == 7.0


def test_changed_content_takes_effect(device):
    assert first(by_content) == 2.0
    TABLE[1] = 3.0
    try:
        assert first(by_content) == 3.0
    finally:
        TABLE[1] = 2.0


def test_changed_attribute_takes_effect(device, monkeypatch):
    assert first(by_attribute) == 2.0
    monkeypatch.setattr(SETTINGS, "scale", 3.0)
    assert first(by_attribute) == 3.0


def test_changed_closure_takes_effect(device):
    scale = 2.0

    @tk.kernel
    def kernel(out: tk.Tile1D):
        out.store(out.load() * scale)

    assert first(kernel) == 2.0
    scale = 3.0
    assert first(kernel) == 3.0


def test_deleted_global_is_an_error(device, monkeypatch):
    assert first(by_global) == 2.0
    monkeypatch.delitem(globals(), "SCALE")
    with pytest.raises(tk.KernelNameError, match="'SCALE' is not defined"):
        first(by_global)


def without_disk_cache(monkeypatch):
    """What is remembered there is not compiled."""
    from tilekern.jit import _kernel

    monkeypatch.setenv("TILEKERN_CACHE_DIR", "off")
    monkeypatch.setattr(_kernel, "_disk_cache", None)


def test_change_back_compiles_nothing(device, monkeypatch):
    from tilekern.jit import _compile

    compiled = []
    without_disk_cache(monkeypatch)
    compile_variant = _compile.compile_variant

    def counting(*args):
        compiled.append(args)
        return compile_variant(*args)

    monkeypatch.setattr(_compile, "compile_variant", counting)
    kernel = tk.kernel(by_global.__wrapped__)
    for scale in (2.0, 3.0, 2.0, 3.0, float("2.0")):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert first(kernel) == scale
    assert len(compiled) == 2


def test_value_that_is_never_the_same_does_not_hang(device):
    class Counting:
        count = 0

        @property
        def scale(self):
            self.count += 1
            return float(self.count)

    settings = Counting()

    @tk.kernel
    def kernel(out: tk.Tile1D):
        out.store(out.load() * settings.scale)

    assert first(kernel) == first(kernel) == 1.0


KERNEL = "import tilekern as tk\n\n@tk.kernel\ndef k(out: tk.Tile1D):\n    out.store(out.load() * {})\n"


@pytest.fixture
def edited(request, tmp_path, monkeypatch):
    """A module in a file of its own, and how to write that file."""
    path = tmp_path / "kernel_edited_in_place.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path.write_text(KERNEL.format(request.param))
    yield importlib.import_module(path.stem), lambda factor: path.write_text(KERNEL.format(factor))
    del sys.modules[path.stem]


@pytest.mark.parametrize("edited", ["2.0"], indirect=True)
def test_file_edited_and_loaded_again(device, edited):
    module, write = edited
    assert first(module.k) == 2.0
    write("31.0")
    assert first(module.k) == 2.0
    assert first(importlib.reload(module).k) == 31.0


@pytest.mark.parametrize("edited", ["3.0"], indirect=True)
def test_file_edited_before_it_is_compiled(edited):
    """No line has moved, yet the text is another."""
    module, write = edited
    write("2.5")
    with pytest.raises(tk.KernelSourceError, match="has changed since it was loaded"):
        module.k.ir(tk.meta(8, "f4").partition(4))


def test_file_edited_before_the_front_end_is_loaded(tmp_path):
    """The first kernel of a process loads it, long after its module was read."""
    path = tmp_path / "kernel_of_a_process.py"
    path.write_text(KERNEL.format(3.0))
    program = (
        f"import kernel_of_a_process as m, pathlib, tilekern as tk\n"
        f"pathlib.Path(m.__file__).write_text({KERNEL.format(2.5)!r})\n"
        f"try: m.k.ir(tk.meta(8, 'f4').partition(4))\n"
        f"except tk.KernelSourceError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "the file has changed since it was loaded" in done.stdout
