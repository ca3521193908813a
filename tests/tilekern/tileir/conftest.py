"""The disassembler as a check: it verifies a module in about 10 ms without generating code.

`tileir_op_samples.py` in this folder is shared by the tests here; in the import mode these tests run in, a
folder of tests is no import path, so it is made one.
"""

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tools() -> Path:
    """Folder of NVIDIA's tools, as the wheels lay them out."""
    folder = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin")
    if not (folder / "tileiras").exists():
        pytest.skip(f"no tileiras in {sys.prefix}")
    return folder


@pytest.fixture
def disassembled(tools: Path, tmp_path: Path) -> Callable[..., str]:
    """Text of a module, after NVIDIA's reader and verifier accepted it."""

    def run(bytecode: bytes, *options: str) -> str:
        file = tmp_path / "module.tileir"
        file.write_bytes(bytecode)
        done = subprocess.run(
            [tools / "tileirdisasm", file, *options], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
