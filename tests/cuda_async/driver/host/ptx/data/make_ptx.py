"""Make the committed PTX. `python make_ptx.py nvcc`, `rust` or `triton`, each with

- nvcc 13.0 on the path:

      nvcc -arch=sm_80 -std=c++17 -O3 -ptx kernels.cu -o kernels_O3.ptx
      nvcc -arch=sm_80 -std=c++17 -G -ptx kernels.cu -o kernels_G.ptx

- rustc 1.95, whose unstable features are opened by RUSTC_BOOTSTRAP=1:

      rustc --target nvptx64-nvidia-cuda -C target-cpu=sm_80 -O --emit asm -o rust_release.ptx kernels.rs
      rustc --target nvptx64-nvidia-cuda -C target-cpu=sm_80 -g --emit asm -o rust_debug.ptx kernels.rs

- Triton 3.9 (see triton_kernels.py; it needs no GPU).

Compilers run in a temporary folder. Afterwards what only tells about the machine is removed: folders in
`.file` lines, and the bytes of debug sections, of which the first lines stay as zeros.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NVCC = ["nvcc", "-arch=sm_80", "-std=c++17"]
RUSTC = ["rustc", "--target", "nvptx64-nvidia-cuda", "-C", "target-cpu=sm_80", "--emit", "asm"]
COMMANDS = {
    "nvcc": {
        "kernels_O3.ptx": [*NVCC, "-O3", "-ptx", "kernels.cu", "-o"],
        "kernels_G.ptx": [*NVCC, "-G", "-ptx", "kernels.cu", "-o"],
    },
    "rust": {
        "rust_release.ptx": [*RUSTC, "-O", "kernels.rs", "-o"],
        "rust_debug.ptx": [*RUSTC, "-g", "kernels.rs", "-o"],
    },
}


def cleaned(text: str) -> str:
    """The PTX without folders and without the contents of debug sections."""
    text = re.sub(r'(\.file\s+\d+\s+)"[^"]*?([^/"]+)"', r'\1"\2"', text)
    return re.sub(r"\.section\s+\.debug_\w+\s*\{[^}]*\}", _shortened, text)


def _shortened(section: re.Match[str]) -> str:
    head, _, body = section.group().partition("{")
    lines = [line for line in body.rstrip("}").split("\n") if line.strip()]
    kept = [re.sub(r"(\.b\d+) .*", r"\1 0", line) for line in lines[:12]]
    return "\n".join([head + "{", *kept, "\t}"])


def main() -> None:
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    if what == "triton":
        import triton_kernels

        for name in triton_kernels.BUILDS:
            (HERE / name).write_text(cleaned(triton_kernels.ptx(name)))
        return
    if what not in COMMANDS:
        sys.exit(f"python make_ptx.py {' | '.join([*COMMANDS, 'triton'])}")
    with tempfile.TemporaryDirectory() as folder:
        for source in ("kernels.cu", "kernels.rs"):
            shutil.copy(HERE / source, folder)
        for name, command in COMMANDS[what].items():
            environment = {**os.environ, "RUSTC_BOOTSTRAP": "1"}
            subprocess.run([*command, name], cwd=folder, check=True, env=environment)
            (HERE / name).write_text(cleaned((Path(folder) / name).read_text()))


if __name__ == "__main__":
    main()
