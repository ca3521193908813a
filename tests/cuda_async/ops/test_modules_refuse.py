"""What modules cannot be made of: the error says what was given and what is expected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cuda_async as ca
from cuda_async.driver import HostImage

PTX = (Path(__file__).resolve().parents[3] / "examples" / "simt" / "saxpy.ptx").read_text()
SOURCE = 'extern "C" __global__ void nothing() {}'

PTX_IS = r"from_ptx\(\) takes PTX as str or bytes"
CUBIN_IS = r"from_cubin\(\) takes the bytes of a cubin or fatbin"
SOURCE_IS = r"from_cuda_source\(\) takes CUDA C\+\+ as str"
M = ca.Module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: M.from_ptx(5), f"{PTX_IS}, got int 5"),
        (lambda: M.from_ptx(True), f"{PTX_IS}, got bool True"),
        (lambda: M.from_ptx(None), f"{PTX_IS}, got NoneType None"),
        (lambda: M.from_ptx([46, 118]), f"{PTX_IS}, got list"),
        (lambda: M.from_ptx({"k": "v" * 100}), rf"{PTX_IS}, got dict {{'k': 'v+\.\.\.$"),
        (lambda: M.from_ptx(Path("a.ptx")), rf"{PTX_IS}, got the path 'a.ptx'; use Module.from_file\(\)"),
        (lambda: M.from_ptx(PTX, name=5), "a module's name is a str, got 5"),
        (lambda: M.from_cubin("abc"), f"{CUBIN_IS}, got str 'abc'"),
        (lambda: M.from_cubin(5), f"{CUBIN_IS}, got int 5"),
        (lambda: M.from_cubin(Path("a.cubin")), rf"{CUBIN_IS}, got the path .*from_file\(\)"),
        (lambda: M.from_cuda_source(5), f"{SOURCE_IS}, got int 5"),
        (lambda: M.from_cuda_source(b"x"), f"{SOURCE_IS}, got bytes b'x'"),
        (
            lambda: M.from_cuda_source(Path("a.cu")),
            rf"{SOURCE_IS}, got the path 'a.cu'; use Module.from_file\(\)",
        ),
        (lambda: M.from_cuda_source(SOURCE, options="-G"), "options is a sequence of strings, got '-G'"),
        (lambda: M.from_cuda_source(SOURCE, options=5), "options is a sequence of strings, got 5"),
        (lambda: M.from_cuda_source(SOURCE, options=["-G", 5]), "options is a sequence .*, got 5 in it"),
        (
            lambda: M.from_cuda_source(SOURCE, include_paths="inc"),
            "include_paths is a sequence .*, got 'inc'",
        ),
        (lambda: M.from_cuda_source(SOURCE, include_paths=Path("inc")), "include_paths is a sequence .*inc"),
        (lambda: M.from_cuda_source(SOURCE, name_expressions="k<int>"), "name_expressions is a sequence"),
        (lambda: M.from_cuda_source(SOURCE, headers=["a.h"]), "headers maps names to texts, got "),
        (lambda: M.from_cuda_source(SOURCE, headers={"a.h": b""}), "both str; got bytes for 'a.h'"),
        (lambda: M.from_host_image(5), r"from_host_image\(\) takes a HostImage, got int 5"),
        (lambda: M.from_file(5), "int"),
        (lambda: M.from_ptx(PTX).function(5), "a kernel's name is a str, got 5"),
    ],
)
def test_no_module_of_another_type(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_source_is_no_ptx():
    with pytest.raises(
        ca.CompileError, match=r"a.cu: this is CUDA C\+\+, not PTX; use Module.from_cuda_source\(\)"
    ):
        M.from_ptx(SOURCE, name="a.cu")


@pytest.mark.parametrize(
    "made_of",
    [str, str.encode, lambda text: bytearray(text.encode()), lambda text: memoryview(text.encode())],
)
def test_text_and_whatever_has_bytes_are_taken(host, made_of):
    assert M.from_ptx(made_of(PTX)).function_names(host) == ["saxpy_f32"]


def test_paths_and_strings_are_taken_together():
    module = M.from_cuda_source(
        SOURCE,
        options=("-G",),
        include_paths=[Path("a"), "b"],
        headers={"a.h": ""},
        name_expressions=iter(["k<int>"]),
    )
    assert repr(module) == "Module('source.cu')"
    assert M.from_host_image(HostImage(functions={}, name="none")).name == "none"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_no_file(tmp_path):
    """Which nobody may ever write to."""
    os.mkfifo(tmp_path / "a.ptx")
    with pytest.raises(ca.CompileError, match=r"a\.ptx: not a regular file"):
        M.from_file(tmp_path / "a.ptx")
    with pytest.raises(IsADirectoryError):
        M.from_file(tmp_path)
