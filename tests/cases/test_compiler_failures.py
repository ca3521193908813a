"""Compiler failures say what is wrong, and which kind it is can be told apart in code. Needs no GPU."""

import sys

import pytest

import tilekern as tk
from cuda_async import CompileError
from tilekern.tileir import find_toolchain
from tilekern.tileir.errors import (
    AssemblerError,
    CompilerCrashedError,
    CompilerFailedError,
    CompilerNotFoundError,
    CompilerTimeoutError,
    CompilerTooOldError,
    UnknownArchitectureError,
)

M = tk.meta
ARGUMENTS = (M(64, "f4").partition(16), M(64, "f4"))


@tk.kernel
def twice(out: tk.Tile1D, x: tk.Tensor1D):
    out.store(tk.load_like(x, out) * 2)


STAND_IN = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 13.2, V13.2.9"; exit 0;;
  --list-versions) printf '13.1\\n13.2\\n'"{newer}"; exit 0;;
  --help) echo "    =sm_90    -   SM 90"; exit 0;;
esac
{script}
"""


@pytest.fixture
def assembler(tmp_path, monkeypatch):
    """A shell script as the assembler."""

    def make(script, newer="'13.3\\n'"):
        for name in ("lib/libnvvm.so.4", "bin/ptxas", "bin/tileiras"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("")
        tool = tmp_path / "bin" / "tileiras"
        tool.write_text(STAND_IN.format(script=script, newer=newer.strip("'")))
        tool.chmod(0o755)
        monkeypatch.setenv("TILEKERN_TILEIRAS", str(tool))
        monkeypatch.setenv("TILEKERN_CACHE_DIR", "off")
        return str(tool)

    return make


def check_facts(error, compiler=None):
    """What every such error carries, as attributes and in its text."""
    text = str(error)
    line = twice.__wrapped__.__code__.co_firstlineno
    assert isinstance(error, CompileError)
    assert error.kernel == "twice"
    assert error.architecture == "sm_90"
    assert error.source.startswith(f"{__file__}:")
    assert line <= int(error.source.rpartition(":")[2]) <= line + 2
    assert "twice" in text
    assert "sm_90" in text
    assert error.source in text
    if compiler is not None:
        assert (error.compiler, error.compiler_version) == (compiler, "13.2.9")
        assert compiler in text
        assert "13.2.9" in text
        assert error.log in text


def test_architecture_the_compiler_does_not_know():
    try:
        find_toolchain()
    except CompilerNotFoundError as error:
        pytest.skip(str(error))
    with pytest.raises(UnknownArchitectureError, match="no target 'sm_75'") as caught:
        twice.cubin(*ARGUMENTS, arch="sm_75")
    error = caught.value
    assert (error.kernel, error.architecture) == ("twice", "sm_75")
    assert "sm_90" in error.known
    assert error.compiler in str(error)
    assert error.compiler_version in str(error)


@pytest.mark.parametrize("named", [True, False], ids=["named", "searched"])
def test_no_compiler(named, tmp_path, monkeypatch):
    if named:
        monkeypatch.setenv("TILEKERN_TILEIRAS", str(tmp_path / "nowhere"))
    else:
        monkeypatch.delenv("TILEKERN_TILEIRAS", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(sys, "path", [])
    with pytest.raises(CompilerNotFoundError) as caught:
        twice.cubin(*ARGUMENTS, arch="sm_90")
    check_facts(caught.value)
    assert ("TILEKERN_TILEIRAS" if named else 'pip install "nvidia-cuda-tileiras>=') in str(caught.value)


def test_compiler_too_old(assembler):
    tool = assembler("echo 'error: unsupported Tile IR bytecode version: 13.3' >&2; exit 3", newer="")
    with pytest.raises(CompilerTooOldError, match=r"only 13\.1, 13\.2; .* pip install --upgrade") as caught:
        twice.cubin(*ARGUMENTS, arch="sm_90")
    check_facts(caught.value, tool)
    assert caught.value.needed >= (13, 3)
    assert caught.value.supported == ((13, 1), (13, 2))


def test_compiler_that_hangs(assembler, monkeypatch):
    tool = assembler("echo 'still thinking' >&2; sleep 1000")
    with pytest.raises(CompilerTimeoutError, match=r"did not end within 0\.4 s") as caught:
        twice.with_options(compile_timeout_s=0.4).cubin(*ARGUMENTS, arch="sm_90")
    check_facts(caught.value, tool)
    assert caught.value.timeout_s == 0.4
    assert caught.value.log == "still thinking"
    monkeypatch.setenv("TILEKERN_COMPILE_TIMEOUT", "0.3")
    with pytest.raises(CompilerTimeoutError, match=r"within 0\.3 s.*TILEKERN_COMPILE_TIMEOUT"):
        twice.cubin(*ARGUMENTS, arch="sm_90")
    monkeypatch.setenv("TILEKERN_COMPILE_TIMEOUT", "soon")
    with pytest.raises(
        tk.KernelOptionError, match=r"TILEKERN_COMPILE_TIMEOUT is 'soon'; .* number of seconds"
    ):
        twice.cubin(*ARGUMENTS, arch="sm_90")


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("kill -SEGV $$", CompilerCrashedError, "ended by SIGSEGV"),
        (
            "echo 'error: ptxas is unwell' >&2; exit 5",
            CompilerFailedError,
            r"exit code 5(.|\n)*ptxas is unwell",
        ),
        ("exit 0", CompilerFailedError, "left no cubin"),
    ],
    ids=["crashes", "fails", "no output"],
)
def test_compiler_that_fails(script, kind, message, assembler):
    tool = assembler(script)
    with pytest.raises(kind, match=message) as caught:
        twice.cubin(*ARGUMENTS, arch="sm_90")
    check_facts(caught.value, tool)


def test_kinds_are_told_apart():
    kinds = {
        UnknownArchitectureError,
        CompilerNotFoundError,
        CompilerTooOldError,
        CompilerTimeoutError,
        CompilerCrashedError,
        CompilerFailedError,
    }
    for kind in kinds:
        assert issubclass(kind, AssemblerError)
        assert not any(issubclass(kind, other) for other in kinds - {kind})


def test_ill_typed_operation():
    @tk.kernel
    def wrong(out: tk.Tile1D, x: tk.Tensor1D):
        out.store(tk.load_like(x, out) % "two")

    with pytest.raises(tk.KernelTypeError) as caught:
        wrong.compile(*ARGUMENTS).sync()
    assert isinstance(caught.value, CompileError)
    assert 'out.store(tk.load_like(x, out) % "two")' in str(caught.value)
    assert "^" in str(caught.value)


def test_tile_that_is_too_big():
    @tk.kernel
    def wrong(out: tk.Tile1D):
        out.store(tk.sum(tk.zeros((1 << 14, 1 << 14), tk.float32)))

    with pytest.raises(CompileError) as caught:
        wrong.compile(M(64, "f4").partition(16)).sync()
    assert isinstance(caught.value, tk.KernelError)
    assert "1 << 14" in str(caught.value)
    assert "^" in str(caught.value)
