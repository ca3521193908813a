"""The page that lists the PTX instructions says what the interpreter does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[5]


def test_committed_page_is_what_the_tool_writes() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "ptx_support.py"), "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
