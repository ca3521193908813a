"""NVIDIA's assembler on real kernels: cubins, line tables, remarks, and its refusals told apart."""

import struct
import tempfile
from pathlib import Path

import pytest
from test_tileir_examples import vector_add
from tileir_kernels import matmul, row_softmax

from cuda_async.errors import CompileError
from tilekern.tileir import (
    assemble,
    disassemble,
    find_toolchain,
    tileiras_version,
    types,
    verify,
)
from tilekern.tileir.errors import (
    ArchitectureError,
    AssemblerError,
    CompilerTimeoutError,
    CompilerTooOldError,
    RejectedError,
    UnknownArchitectureError,
)

pytestmark = pytest.mark.usefixtures("tools")

EM_CUDA = 190


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("kernel", [vector_add, row_softmax, matmul], ids=lambda k: k.__name__)
def test_kernels_compile_for_every_generation(kernel: object, arch: str) -> None:
    cubin = assemble(kernel(), arch).cubin
    assert cubin[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", cubin, 18)[0] == EM_CUDA
    assert f".text.{kernel.__name__}".encode() in cubin


def test_line_info_is_an_option() -> None:
    bytecode = vector_add(with_locations=True)
    assert b".debug_line" not in assemble(bytecode).cubin
    cubin = assemble(bytecode, line_info=True).cubin
    assert b".debug_line" in cubin
    assert b"add.py" in cubin


def test_debug_means_unoptimised() -> None:
    bytecode = vector_add(with_locations=True)
    assert b".debug_info" in assemble(bytecode, debug=True).cubin
    with pytest.raises(ValueError, match="debug information needs opt_level 0, got 3"):
        assemble(bytecode, debug=True, opt_level=3)
    with pytest.raises(ValueError, match="opt_level is 0, 1, 2 or 3, got 9"):
        assemble(bytecode, opt_level=9)


def test_remarks_tell_why_tma_was_refused() -> None:
    assembly = assemble(matmul(aligned=False), "sm_90", remarks=True)
    failed = [remark for remark in assembly.remarks if remark.name == "RemarkMemoryTmaLoadFailed"]
    assert failed
    assert failed[0].kind == "failed"
    assert (failed[0].function, failed[0].category) == ("matmul", "Memory")
    assert failed[0].place == ("kernels.py", 8, 5)
    assert "base pointer not 16-byte aligned" in failed[0].details[0]
    assert "category: Tensor-core" in assembly.remarks_text
    names = {remark.name for remark in assemble(matmul(), "sm_90", remarks=True).remarks}
    assert "RemarkMemoryTmaLoadFailed" not in names
    assert "RemarkTensorCoreMMA" in names


def test_environment_cannot_lead_it_astray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A broken libnvvm where CUDA_HOME points would be preferred by the assembler."""
    library = tmp_path / "nvvm" / "lib64" / "libnvvm.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"not a library")
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        monkeypatch.setenv(name, str(tmp_path))
    assert assemble(vector_add()).cubin


def test_nothing_is_left_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bytecode = matmul()
    assemble(bytecode)
    with pytest.raises(CompilerTimeoutError):
        assemble(bytecode, timeout_s=0.05)
    assert list(tmp_path.iterdir()) == []


def test_rejected_program_is_mapped_to_the_source() -> None:
    with pytest.raises(RejectedError) as caught:
        assemble(matmul(ill_typed=True), "sm_90")
    error = caught.value
    assert isinstance(error, CompileError)
    assert error.op == "addf"
    assert "have same type" in error.rule
    assert error.location == ("helper.py", 40, 9)
    assert error.callers == (("kernels.py", 9, 11),)
    assert (error.kernel, error.architecture, error.exit_code) == ("matmul", "sm_90", 3)
    assert error.compiler == find_toolchain().assembler
    assert error.compiler_version == tileiras_version()
    assert "verification failed" in error.log
    text = str(error)
    for part in (
        "matmul: helper.py:40:9: not valid Tile IR: 'cuda_tile.addf' op failed",
        "sm_90",
        error.compiler,
    ):
        assert part in text


def test_rejection_without_locations_still_names_the_operation() -> None:
    with pytest.raises(RejectedError) as caught:
        verify(matmul(ill_typed=True, located=False))
    assert (caught.value.op, caught.value.location) == ("addf", None)


def test_damaged_bytecode_is_rejected() -> None:
    with pytest.raises(RejectedError, match="not valid Tile IR: error at offset") as caught:
        assemble(matmul()[:200], kernel="mine")
    assert caught.value.op == ""
    assert caught.value.kernel == "mine"


def test_architecture_without_fp8_says_so() -> None:
    with pytest.raises(ArchitectureError, match="unsupported type 'f8E4M3FN'") as caught:
        assemble(matmul(types.f8e4m3fn), "sm_80")
    assert "sm_80" in caught.value.reason
    assert caught.value.location == ("kernels.py", 2, 5)
    assert assemble(matmul(types.f8e4m3fn), "sm_90").cubin


@pytest.mark.parametrize("arch", ["sm_75", "sm90", ""])
def test_unknown_architecture_lists_the_known_ones(arch: str) -> None:
    with pytest.raises(UnknownArchitectureError, match=rf"no target '{arch}'; it has sm_80, sm_86") as caught:
        assemble(matmul(), arch)
    assert "sm_90" in caught.value.known


def test_newer_bytecode_than_the_assembler_reads() -> None:
    data = bytearray(matmul())
    data[9] = 9
    with pytest.raises(
        CompilerTooOldError, match=r"does not read bytecode 13\.9, only 13\.1, .*pip install"
    ) as caught:
        assemble(bytes(data))
    assert caught.value.needed == (13, 9)
    assert (13, 3) in caught.value.supported


def test_kinds_share_a_base() -> None:
    for kind in (ArchitectureError, CompilerTimeoutError, RejectedError, UnknownArchitectureError):
        assert issubclass(kind, AssemblerError)


def test_disassembly() -> None:
    text = disassemble(matmul(), locations=True)
    assert "mmaf" in text
    assert 'loc("kernels.py":10:5)' in text
    assert "loc(" not in disassemble(matmul())
