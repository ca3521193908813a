"""The command `tilekern`."""

import json
import os
import subprocess
import sys

import pytest

import tilekern as tk
from tilekern.cli import main

SOURCE = """
import tilekern as tk

@tk.kernel
def scale(out: tk.Tile1D, x: tk.Tensor1D, a: float, BLOCK: tk.Constant[int] = 4):
    out.store(tk.load_like(x, out) * a)

other = 3
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    (tmp_path / "command_line_kernels.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEKERN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("command_line_kernels", None)


ARGUMENTS = ["-a", "out=float32[*16]/256", "-a", "x=float32[*16]", "-a", "a=float"]


def test_compile_writes_a_folder(source, disassemble, capsys):
    options = ["--arch", "sm_80", "sm_90", "--option", "occupancy=2"]
    code = main(["compile", "command_line_kernels:scale", *ARGUMENTS, *options])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "2 variants in compiled_kernels" in out
    with tk.load_compiled("compiled_kernels") as loaded:
        assert {v.architecture for v in loaded.variants} == {"sm_80", "sm_90"}
        assert loaded.variants[0].options.occupancy == 2
        assert loaded.variants[0].arguments == "float32[*16]/256, float32[*16], float64, 4"


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_compile_from_a_file_of_variants(kind, source, disassemble, capsys):
    arguments = {"out": "float32[*]/256", "x": "float32[*]", "a": "float", "BLOCK": 8}
    name = f"variants.{kind}"
    if kind == "json":
        entry = {"kernel": "command_line_kernels.py:scale", "arguments": arguments, "arch": "sm_90"}
        (source / name).write_text(json.dumps({"variant": [entry]}))
    else:
        (source / name).write_text(
            '[[variant]]\nkernel = "command_line_kernels:scale"\noptions = { num_worker_warps = 4 }\n'
            '[variant.arguments]\nout = "float32[*]/256"\nx = "float32[*]"\na = "float"\nBLOCK = 8\n'
        )
    assert main(["compile", "--spec", name, "--out", "made"]) == 0
    assert len(list((source / "made").glob("*.cubin"))) == 1


def test_report(source, disassemble, capsys):
    assert main(["report", "command_line_kernels:scale", *ARGUMENTS, "--arch", "sm_90"]) == 0
    out = capsys.readouterr().out
    assert "scale for sm_90" in out
    assert "registers a thread" in out


WRONG = {
    "no kernel": (["compile"], "no kernel given"),
    "no module": (["compile", "scale"], "write module:kernel"),
    "missing module": (["compile", "no_such_module:scale"], "cannot be imported"),
    "missing file": (["compile", "no_such.py:scale"], "there is no file no_such.py"),
    "not a kernel": (["compile", "command_line_kernels:other"], "has no kernel other; it has scale"),
    "argument": (["compile", "command_line_kernels:scale", "-a", "x"], "written NAME=VALUE"),
    "argument twice": (["compile", "command_line_kernels:scale", "-a", "x=1", "-a", "x=1"], "given twice"),
    "option": (["compile", "command_line_kernels:scale", "--option", "occupancy=x y"], "is a number"),
    "both": (["compile", "command_line_kernels:scale", "--spec", "f.toml"], "not both"),
    "missing spec": (["compile", "--spec", "f.toml"], "f.toml cannot be read"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_command_lines(arguments, message, source, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "lists no variants"),
        ('{"variant": [{"kernal": "x"}]}', "kernal"),
        ('{"variant": [{}]}', "names no kernel"),
        ('{"variant": [3]}', "variant 1: a variant, its options and its arguments are tables"),
        ('{"variant": [{"kernel": "command_line_kernels:scale", "options": 2}]}', "are tables"),
        (
            '{"variant": [{"kernel": "command_line_kernels:scale", "arch": 90}]}',
            "arch is a name such as 'sm_90'",
        ),
    ],
)
def test_wrong_files_of_variants(text, message, source, capsys):
    (source / "v.json").write_text(text)
    assert main(["compile", "--spec", "v.json"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [
        ("x", "float4_e2m1fn[*]", "in memory two float4_e2m1fn share a byte"),
        ("x", f"float32[{10**20}]", "shape (100000000000000000000,) has more than 2**62 elements"),
        ("x", "float32[*]/4x4", "tile shape (4, 4) does not fit"),
        ("a", f"{2**1100}", "is an int too large for float64"),
    ],
)
def test_arguments_that_cannot_be(name, argument, message, source, capsys):
    arguments = {"out": "float32[*]/256", "x": "float32[*]", "a": "1", "BLOCK": "256", name: argument}
    words = [word for pair in arguments.items() for word in ("-a", "=".join(pair))]
    assert main(["report", "command_line_kernels:scale", *words]) == 1
    assert f"tilekern: scale: {name}" in (err := capsys.readouterr().err)
    assert message in err


def test_module_that_is_no_python(source, capsys):
    (source / "no_python.py").write_text("def (")
    assert main(["report", "no_python.py:scale"]) == 2
    assert "no_python.py cannot be imported: invalid syntax (no_python.py, line 1)" in capsys.readouterr().err


def test_kernel_that_does_not_compile(source, capsys):
    assert (
        main(["compile", "command_line_kernels:scale", "-a", "out=float32[*]/256", "-a", "x=float32[*,*]"])
        == 1
    )
    assert "tilekern: scale" in capsys.readouterr().err


def test_cache_commands(source, disassemble):
    def command(*words):
        done = subprocess.run(
            [sys.executable, "-m", "tilekern", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout

    assert "entries   0" in command("cache", "info")
    cache = tk.jit._disk_cache.DiskCache(source / "cache")
    cache.put(b"key", b"value" * 1000, {"kernel": "scale", "target": "sm_90", "assembler_ms": 12.5})
    assert "entries   1" in command("cache", "info")
    listed = command("cache", "list")
    assert "scale  sm_90  12.5 ms to assemble" in listed
    assert "1 entries removed" in command("cache", "clear")
    assert cache.info().entries == 0


def test_without_a_command_help_is_printed(capsys):
    assert main([]) == 2
    assert "compile" in capsys.readouterr().out


@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_nobody_reads_on_ends_it_quietly(tmp_path, buffered):
    """As `tilekern cache list | head` does, once `head` has what it wants."""
    reading, writing = os.pipe()
    os.close(reading)
    unbuffered = [] if buffered else ["-u"]
    environment = {**os.environ, "TILEKERN_CACHE_DIR": str(tmp_path)}
    try:
        done = subprocess.run(
            [sys.executable, *unbuffered, "-m", "tilekern", "cache", "info"],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
