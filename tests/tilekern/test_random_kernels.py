"""Random kernels against NumPy; planted bugs are found. `tools/differential.py` runs many, on a GPU too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def run(tool, *arguments):
    command = [sys.executable, str(TOOLS / tool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200)


def test_interpreter_agrees_with_numpy():
    done = run("differential.py", "--count", 250)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "250 programs" in done.stdout


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_random_kernels_assemble(arch):
    done = run("differential.py", "--count", 6, "--first", 40, "--assemble", arch)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.slow
def test_interpreter_agrees_with_numpy_at_length():
    done = run("differential.py", "--count", 10_000, "--first", 1_000_000, "--workers", 2)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.gpu
def test_compiled_kernels_agree():
    done = run("differential.py", "--count", 60, "--device", "cuda:0", "--workers", 2)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_planted_bugs_are_found():
    done = run("planted_bugs.py", "--workers", 2)
    assert done.returncode == 0, done.stdout + done.stderr[-1000:]
