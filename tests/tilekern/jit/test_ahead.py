"""Compiling ahead of time: what a folder serves, what it does not and why, and damage."""

import json
import os
import types
from dataclasses import replace

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern import tileir
from tilekern.jit import KernelOptions
from tilekern.jit._argument_text import arguments_from_text
from tilekern.jit._disk_cache import DiskCache
from tilekern.jit._obtain import obtain
from tilekern.jit._specialize import specialize

M = tk.meta
HEAD = "import tilekern as tk\n"
KERNEL = """
FACTOR = 2
@tk.kernel
def scale(out: tk.Tile2D, x: tk.Tensor2D, a: float, n: tk.Constant[int] = 1):
    out.store(tk.load_like(x, out) * a * n * FACTOR)
"""


@pytest.fixture
def kernel(tmp_path):
    """Makes the kernel from a file, anew every time, as in another process."""

    def make(text=KERNEL):
        file = tmp_path / "ahead.py"
        file.write_text(HEAD + text)
        module = types.ModuleType("ahead")
        exec(compile(HEAD + text, str(file), "exec"), vars(module))
        return module.scale

    return make


def arguments(rows=64, columns=64, tile=(16, 16), dtype="f4", a=1.0, n=1):
    return M((rows, columns), dtype).partition(tile), M((rows, columns), dtype), a, n


def variant(kernel, args, cache, target="sm_90", options=None):
    options = options or kernel.options
    specs = specialize(kernel.name, kernel.parameters, args, 16)
    return obtain(kernel, kernel._function, specs, options, target, cache)


@pytest.fixture
def no_assembler(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEKERN_TILEIRAS", str(tmp_path / "nowhere"))


@pytest.fixture
def folder(disassemble, kernel, tmp_path):
    """One variant for any rows, and columns that are multiples of 16."""
    k = kernel()
    given = arguments_from_text(
        k, {"out": "float32[*,*16]/16x16", "x": "float32[*,*16]", "a": "float", "n": 1}
    )
    files = tk.export_compiled(tmp_path / "kernels", [k.compile(**given)], arch=["sm_90", "sm_80"])
    assert [f.read_bytes()[:4] for f in files] == [b"\x7fELF"] * 2
    return tmp_path / "kernels"


def test_serves_without_an_assembler(folder, kernel, tmp_path, no_assembler):
    cache = DiskCache(tmp_path / "cache")
    with tk.load_compiled(folder, only=True) as loaded:
        assert loaded.kernels == ("ahead:scale",)
        assert len(loaded.variants) == 2
        for rows, columns in ((64, 64), (63, 64), (1, 1 << 10)):
            made = variant(kernel(), arguments(rows, columns), cache)
            assert made.timings.origin == "ahead of time"
            assert made.function.name == "scale"
        assert variant(kernel(), arguments(), cache, "sm_80").timings.origin == "ahead of time"
    with pytest.raises(tileir.errors.CompilerNotFoundError):
        variant(kernel(), arguments(), cache)


MISFITS = {
    "extent": ({"columns": 63}, {}, "axis 1 that is no multiple of 16"),
    "dtype": ({"dtype": "f8"}, {}, "has elements float64, compiled for float32"),
    "tile": ({"tile": (8, 16)}, {}, r"tiles \(8, 16\), compiled for \(16, 16\)"),
    "constant": ({"n": 2}, {}, "is 2, compiled for 1"),
    "architecture": ({}, {"target": "sm_100"}, "is for sm_90"),
    "options": ({}, {"options": KernelOptions(occupancy=2)}, "was compiled with KernelOptions"),
}


@pytest.mark.parametrize(("args", "more", "message"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_says_why(args, more, message, folder, kernel, tmp_path, no_assembler):
    cache = DiskCache(tmp_path / "cache")
    with tk.load_compiled(folder, only=True), pytest.raises(tk.CompiledKernelError, match=message):
        variant(kernel(), arguments(**args), cache, **more)


def test_another_kernel_is_not_served(folder, tmp_path, no_assembler):
    @tk.kernel
    def other(out: tk.Tile1D):
        out.store(0.0)

    with (
        tk.load_compiled(folder, only=True),
        pytest.raises(tk.CompiledKernelError, match=r"no kernel .*other; it has ahead:scale"),
    ):
        variant(other, (M(16, "f4").partition(16),), DiskCache(tmp_path / "cache"))


@pytest.mark.parametrize(
    "edit", [("* a * n", "+ a * n"), ("FACTOR = 2", "FACTOR = 4")], ids=["kernel", "capture"]
)
def test_code_out_of_date_is_never_used(edit, folder, kernel, tmp_path):
    with tk.load_compiled(folder, only=True), pytest.raises(tk.CompiledKernelError, match="is out of date"):
        variant(kernel(KERNEL.replace(*edit)), arguments(), DiskCache(tmp_path / "cache"))


def test_others_are_compiled_and_a_missing_assembler_gives_the_reason(folder, kernel, tmp_path, monkeypatch):
    cache = DiskCache(tmp_path / "cache")
    with tk.load_compiled(folder):
        assert variant(kernel(), arguments(columns=63), cache).timings.origin == "assembled"
        monkeypatch.setenv("TILEKERN_TILEIRAS", str(tmp_path / "nowhere"))
        with pytest.raises(tileir.errors.CompilerNotFoundError) as caught:
            variant(kernel(), arguments(columns=62), cache)
    assert "no multiple of 16" in caught.value.__notes__[0]


def test_the_variant_that_knows_most_is_taken(disassemble, kernel, tmp_path):
    k = kernel()
    ops = []
    for shape in ("*,*", "*16,*16"):
        texts = {"out": f"float32[{shape}]/16x16", "x": f"float32[{shape}]", "a": "float"}
        ops.append(k.compile(**arguments_from_text(k, texts)))
    tk.export_compiled(tmp_path / "kernels", ops, arch="sm_90")
    with tk.load_compiled(tmp_path / "kernels", only=True):
        for columns, divisor in ((64, 16), (63, 1)):
            found = variant(kernel(), arguments(columns=columns), DiskCache(tmp_path / "cache"))
            assert found.specs[1].shape_divisors[1] == divisor


def test_damage_is_found_when_it_is_loaded(folder, tmp_path):
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    cubin = next(folder.glob("*.cubin"))
    code = cubin.read_bytes()
    cubin.write_bytes(code[:-1] + b"?")
    with pytest.raises(tk.CompiledKernelError, match="checksum differs"):
        tk.load_compiled(folder)
    cubin.unlink()
    with pytest.raises(tk.CompiledKernelError, match="cannot be read"):
        tk.load_compiled(folder)
    cubin.write_bytes(code)
    for wrong, message in (
        (text[:100], "is damaged"),
        (json.dumps({"format": 99}), "has format 99, this version reads 1"),
        (text.replace('"specs"', '"speks"'), "cannot be read"),
        (text.replace(cubin.name, f"../{cubin.name}"), "not in its folder"),
    ):
        manifest.write_text(wrong)
        with pytest.raises(tk.CompiledKernelError, match=message):
            tk.load_compiled(folder)
    with pytest.raises(tk.CompiledKernelError, match=r"manifest\.json cannot be read"):
        tk.load_compiled(tmp_path / "elsewhere")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_is_no_file_is_refused(folder):
    """A pipe would be waited for, and some devices never end."""
    entries = json.loads((folder / "manifest.json").read_text())["variants"]
    cubin = folder / entries[0]["cubin"]
    for path, target in ((cubin, "/dev/zero"), (cubin, None), (folder / "manifest.json", None)):
        path.unlink()
        if target is None:
            os.mkfifo(path)
        else:
            path.symlink_to(target)
        with pytest.raises(tk.CompiledKernelError, match="cannot be read: it is no regular file"):
            tk.load_compiled(folder)


def test_exported_again_leaves_nothing_behind(folder, kernel):
    k = kernel()
    tk.export_compiled(folder, [k.compile(*arguments(dtype="f2"))], arch="sm_90")
    assert len(list(folder.iterdir())) == 2


def test_constants_of_own_classes_are_refused(disassemble, tmp_path):
    class Mode:
        pass

    @tk.kernel
    def k(out: tk.Tile1D, mode: tk.Constant[Mode]):
        out.store(1.0)

    with pytest.raises(tk.CompiledKernelError, match="cannot be exported"):
        tk.export_compiled(tmp_path, [k.compile(M(16, "f4").partition(16), Mode())], arch="sm_90")
    with pytest.raises(TypeError, match="made by kernel"):
        tk.export_compiled(tmp_path, [3], arch="sm_90")
    with pytest.raises(ValueError, match="no architecture"):
        tk.export_compiled(tmp_path, [], arch=[])


def test_arguments_as_text(kernel):
    k = kernel()

    def read(**texts):
        return arguments_from_text(k, texts)

    assert read(x="float32[4096,1024]")["x"] == M((4096, 1024), "f4")
    assert read(out="bfloat16[*,*8]/16x16")["out"] == M((3, 24), tk.bfloat16).partition((16, 16))
    assert read(x="mut int8[*]")["x"] == M(3, "i1").mut()
    assert read(a="float", n="128") == {"a": 0.5, "n": 128}
    assert read(a="float64")["a"] == np.float64(1)
    assert read(n="(1, 2)")["n"] == (1, 2)
    assert read(n="float16")["n"] is tk.float16
    for texts, message in (
        ({"y": "int"}, "has no parameter y; it has out, x, a, n"),
        ({"x": "float31[*]"}, "there is no element type float31"),
        ({"x": "float32[3*]"}, "an extent is a number"),
        ({"x": "float32[*3]"}, r"\*3 is none of"),
        ({"x": "float32[*]/4x4"}, "does not fit"),
        ({"x": "mut float32[*]/4"}, "exclusive already"),
        ({"a": "what"}, "is no argument"),
    ):
        with pytest.raises(tk.KernelArgumentError, match=message):
            arguments_from_text(k, texts)


@pytest.mark.gpu
def test_launches_on_a_gpu(kernel, tmp_path, monkeypatch):
    device = ca.Device("cuda:0")
    major, minor = device.compute_capability
    k = kernel()
    given = arguments_from_text(k, {"out": "float32[*,*16]/16x16", "x": "float32[*,*16]", "a": "float"})
    tk.export_compiled(tmp_path / "kernels", [k.compile(**given)], arch=f"sm_{major}{minor}")
    monkeypatch.setenv("TILEKERN_TILEIRAS", str(tmp_path / "nowhere"))
    x = np.random.default_rng(0).standard_normal((37, 48)).astype("f4")
    with tk.load_compiled(tmp_path / "kernels", only=True), ca.use_device(device):
        out = ca.zeros(x.shape, "f4").partition((16, 16))
        got = kernel()(out, ca.from_host(x), 3.0).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(got, x * np.float32(3) * 2)


def test_variant_that_checks_bounds_itself_is_exported_too(disassemble, tmp_path, no_assembler, monkeypatch):
    """The load is not always reached, so whether it is in range decides between two variants at each call."""

    @tk.kernel
    def k(out: tk.Tile1D, x: tk.Tensor1D):
        t = out.load()
        if out.index[0] > 1:
            t = t + tk.load(x, (3,), (16,))
        out.store(t)

    args = M(64, "f4").partition(16), M(64, "f4")
    monkeypatch.delenv("TILEKERN_TILEIRAS")
    tk.export_compiled(tmp_path / "kernels", [k.compile(*args)], arch="sm_90")
    monkeypatch.setenv("TILEKERN_TILEIRAS", str(tmp_path / "nowhere"))
    cache = DiskCache(tmp_path / "cache")
    with tk.load_compiled(tmp_path / "kernels", only=True) as loaded:
        assert sorted(v.options.check_variants for v in loaded.variants) == [False, True]
        for check_variants in (True, False):
            options = replace(k.options, check_variants=check_variants)
            assert variant(k, args, cache, options=options).timings.origin == "ahead of time"


def test_grouped_arguments(disassemble, tmp_path, no_assembler, monkeypatch):
    @tk.kernel
    def k(out: tk.Tile1D, pair: tuple):
        out.store(tk.load_like(pair[0], out) * pair[1])

    def args(n):
        return M(n, "f4").partition(16), (M(n, "f4"), 2.0)

    monkeypatch.delenv("TILEKERN_TILEIRAS")
    tk.export_compiled(tmp_path / "kernels", [k.compile(*args(3))], arch="sm_90")
    monkeypatch.setenv("TILEKERN_TILEIRAS", str(tmp_path / "nowhere"))
    cache = DiskCache(tmp_path / "cache")
    with tk.load_compiled(tmp_path / "kernels", only=True) as loaded:
        assert loaded.variants[0].arguments == "float32[*]/16, (float32[*], float64)"
        for n in (5, 64):
            found = obtain(k, k._function, k._specs(args(n), {}), k.options, "sm_90", cache)
            assert found.timings.origin == "ahead of time"


def test_prefix_partitions_have_a_stand_in():
    @tk.kernel
    def doubled(out: tk.Tile1D, x: tk.Tensor1D):
        out.store(tk.load_like(x, out) * 2)

    x = M(64, "f4")
    assert doubled.ir(x.partition_prefix(16), x).count("store") == 1
    with pytest.raises(ValueError, match="does not fit"):
        x.partition_prefix((4, 4))
