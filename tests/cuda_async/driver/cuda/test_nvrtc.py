"""CUDA C++ through NVRTC; needs no GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cuda_async as ca
from cuda_async.driver._ptx_signature import read_ptx_header, read_ptx_signatures
from cuda_async.driver.cuda import (
    compile_cuda_program,
    compile_cuda_source,
    cuda_include_paths,
    nvrtc_supported_architectures,
    nvrtc_version,
)
from cuda_async.driver.cuda._images import cubin_architecture
from cuda_async.errors import CompileError

SCALE = 'extern "C" __global__ void scale(float *x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }\n'


def test_ptx_for_the_host_device():
    image = compile_cuda_source(SCALE, "scale.cu", arch="compute_90", output="ptx")
    assert not image.endswith(b"\0")
    version, target = read_ptx_header(image.decode())
    assert version is not None
    assert version >= (9, 0)
    assert target == "sm_90"
    parameters = read_ptx_signatures(image.decode())["scale"].parameters
    assert [(p.offset_bytes, p.size_bytes) for p in parameters] == [(0, 8), (8, 4)]


def test_cubin_for_exactly_the_architecture():
    image = compile_cuda_source(SCALE, "scale.cu", arch="compute_80", output="cubin")
    assert cubin_architecture(image) == 80


def test_errors_have_file_and_line():
    with pytest.raises(CompileError, match=r"refused bad\.cu for sm_90:\nbad\.cu\(2\): error") as caught:
        compile_cuda_source("__global__ void f() {\n  int x = ;\n}\n", "bad.cu", arch="sm_90", output="cubin")
    assert "int x = ;" in caught.value.log


def test_warnings_are_in_the_log():
    result = compile_cuda_program(
        "__global__ void f() { int unused; }\n", "warn.cu", arch="sm_90", output="ptx", name_expressions=["f"]
    )
    assert "warn.cu(1): warning" in result.log


@pytest.mark.skipif(not cuda_include_paths(), reason="needs the package nvidia-cuda-runtime or a toolkit")
def test_toolkit_headers_are_found():
    source = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n__global__ void f(__half *x) { *x = __hadd(*x, *x); }\n"
    assert compile_cuda_source(source, "half.cu", arch="sm_80", output="cubin")


def test_own_headers_and_folders(tmp_path):
    (tmp_path / "two.h").write_text("#define TWO 2\n")
    source = '#include "one.h"\n#include <two.h>\nextern "C" __global__ void f(int *x) { *x = ONE + TWO; }\n'
    image = compile_cuda_source(
        source,
        "sum.cu",
        arch="sm_80",
        output="ptx",
        headers={"one.h": "#define ONE 1\n"},
        include_paths=[tmp_path],
    )
    assert b", 3;" in image


def test_missing_header_names_the_folders():
    with pytest.raises(CompileError, match=r"no_such\.h.*(?s:.*)folders of the toolkit's headers"):
        compile_cuda_source("#include <no_such.h>\n", "f.cu", arch="sm_80", output="ptx")


def test_options_are_passed_on():
    source = 'extern "C" __global__ void f(int *x) { *x = VALUE; }\n'
    image = compile_cuda_source(source, "f.cu", arch="sm_80", output="ptx", options=["-DVALUE=12345"])
    assert b"12345" in image


def test_names_of_template_instances():
    source = "template <class T> __global__ void twice(T *x) { *x *= 2; }\n"
    result = compile_cuda_program(
        source, "t.cu", arch="sm_80", output="ptx", name_expressions=["twice<float>", "twice<int>"]
    )
    kernels = read_ptx_signatures(result.image.decode())
    assert set(result.lowered_names.values()) == set(kernels)
    assert len(kernels) == 2


def test_unknown_name_expression():
    with pytest.raises(CompileError, match="no_such"):
        compile_cuda_program(SCALE, "t.cu", arch="sm_80", output="ptx", name_expressions=["no_such<float>"])


def test_unknown_architecture_lists_those_there_are():
    with pytest.raises(CompileError, match=r"does not compile for sm_30; it knows .*sm_80.*sm_90"):
        compile_cuda_source(SCALE, "f.cu", arch="sm_30", output="cubin")


@pytest.mark.parametrize("arch", ["", "90", "sm90", "sm_90x", "compute_"])
def test_malformed_architecture(arch):
    with pytest.raises(ValueError, match="expected an architecture such as"):
        compile_cuda_source(SCALE, "f.cu", arch=arch, output="cubin")


@pytest.mark.parametrize("option", ["-arch=sm_80", "--gpu-architecture=sm_80", "-gpu-arch"])
def test_architecture_is_no_option(option):
    with pytest.raises(ValueError, match="give it as arch="):
        compile_cuda_source(SCALE, "f.cu", arch="sm_90", output="cubin", options=[option])


def test_unknown_option():
    with pytest.raises(CompileError, match=r"does not know an option for f\.cu: --no-such-option"):
        compile_cuda_source(SCALE, "f.cu", arch="sm_90", output="cubin", options=["--no-such-option"])


def test_unknown_output():
    with pytest.raises(ValueError, match='expected "ptx" or "cubin"'):
        compile_cuda_source(SCALE, "f.cu", arch="sm_90", output="sass")


def test_facts_about_nvrtc():
    assert nvrtc_version() >= (13, 0)
    assert {80, 90, 100, 120} <= set(nvrtc_supported_architectures())


@pytest.mark.parametrize(
    ("blocked", "message"),
    [("cuda", "the package cuda-bindings is not installed"), ("cuda.bindings.nvrtc", "is not installed")],
)
def test_missing_package_says_what_to_install(blocked, message):
    code = (
        f"import sys; sys.modules[{blocked!r}] = None\n"
        "from cuda_async.driver.cuda import nvrtc_version\n"
        "from cuda_async.errors import ContextError\n"
        "try: nvrtc_version()\n"
        "except ContextError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert message in done.stdout
    assert 'pip install "cuda-bindings>=13" "nvidia-cuda-nvrtc>=' in done.stdout


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("halve", "declare it extern \"C\", or compile it with name_expressions=['halve']"),
        ("k", "declare it extern \"C\", or compile it with name_expressions=['k']"),
        ("halve<int>", "; compile it with name_expressions=['halve<int>']"),
        ("mine::halve", "; compile it with name_expressions=['mine::halve']"),
        ("hal", None),
    ],
)
def test_a_kernel_that_cpp_renames_is_pointed_out(name, hint):
    source = (
        "__global__ void halve(int *x) { *x /= 2; } __global__ void halves() {} __global__ void k(int x) {}"
    )
    with pytest.raises(CompileError, match="has no kernel") as caught:
        ca.Module.from_cuda_source(source).function(name).load(ca.Device("host:0"))
    assert ("name_expressions" not in str(caught.value)) if hint is None else str(caught.value).endswith(hint)
