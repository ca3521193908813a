"""Make a virtual environment for `make`, once: re-used until what it was made from changes.

Standard library only, any Python from 3.11 on. The environment's stamp is a hash of pyproject.toml, the C that is
compiled, the extras, the interpreter and the checkout's place (the package is installed in editable mode), so a second
call costs some 50 ms. A failed installation leaves no stamp and is started anew.

    python3 tools/environment.py build/venv-test dev
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)


class SetupError(Exception):
    """The environment could not be made; the message says what to do."""


def has_gpu() -> bool:
    """True where the CUDA driver is installed and finds a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def stamp(extras: str) -> str:
    """What the environment depends on, as one hash."""
    parts = (
        (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
        (ROOT / "cuda_async" / "native" / "_native.c").read_text(encoding="utf-8"),
        extras,
        sys.version,
        sys.executable,
        str(ROOT),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def create(folder: Path) -> list[str]:
    """Make an empty environment; returns the command that is its pip."""
    python = str(folder / "bin" / "python")
    if importlib.util.find_spec("ensurepip") is not None:
        command = [sys.executable, "-m", "venv", str(folder)]
        pip = [python, "-m", "pip"]
    elif importlib.util.find_spec("pip") is not None:  # Debian without python3-venv, but with pip
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        pip = [sys.executable, "-m", "pip", "--python", python]
    else:
        raise SetupError(
            f"{sys.executable} has neither ensurepip nor pip, so no environment can be made with it; "
            "install python3-venv (Debian, Ubuntu) or name another Python: make PYTHON=/path/to/python3"
        )
    if subprocess.run(command).returncode != 0:
        raise SetupError(f"{' '.join(command)} failed; its message is above")
    return pip


def install(pip: list[str], extras: str) -> None:
    """Install the checkout in editable mode with its extras, quietly unless it fails."""
    what = f"{ROOT}[{extras}]" if extras else str(ROOT)
    command = [*pip, "install", "--disable-pip-version-check", "--editable", what]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.stderr.write(result.stdout)
        raise SetupError(f"{' '.join(command)} failed; its output is above")


def ensure(folder: Path, extras: str) -> None:
    """Leave a complete environment in `folder`, doing nothing when it is there already."""
    mark = folder / "made-from"
    wanted = stamp(extras)
    if mark.is_file() and mark.read_text() == wanted and (folder / "bin" / "python").exists():
        return
    begin = time.perf_counter()
    print(
        f"setting up {folder} with Python {sys.version.split()[0]} ({extras or 'no extras'}) ...", flush=True
    )
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    install(create(folder), extras)
    mark.write_text(wanted)
    print(f"set up in {time.perf_counter() - begin:.0f} s", flush=True)


def main() -> int:
    """Command line: the folder and the extras, separated by commas."""
    if sys.version_info < OLDEST_PYTHON:
        print(f"Python {sys.version.split()[0]} is too old: 3.11 or newer is needed", file=sys.stderr)
        return 1
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the environment goes")
    parser.add_argument("extras", nargs="?", default="", help="extras of pyproject.toml, comma-separated")
    parser.add_argument("--on-gpu", default="", metavar="EXTRAS", help="further extras where there is a GPU")
    arguments = parser.parse_args()
    extras = arguments.extras
    if arguments.on_gpu and has_gpu():
        extras = f"{extras},{arguments.on_gpu}".strip(",")
    try:
        ensure(arguments.folder, extras)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
