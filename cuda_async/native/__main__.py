"""`python -m cuda_async.native`: says whether launches are compiled; compiles `_native.c` in a checkout without it.

For one that is on `PYTHONPATH` instead of installed; `pip install` does it by itself.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from ._load import SWITCH, find_compiled, is_switched_off


def main() -> int:
    found = find_compiled()
    if found is None and not is_checkout():
        print("launches run in Python: the package was installed where there was no C compiler")
        return 0
    if found is None:
        failed = compile_it()
        if failed or not is_switched_off():
            return failed
    if is_switched_off():
        print(f"launches run in Python: switched off by {SWITCH}={os.environ[SWITCH]}")
    else:
        print(f"launches are compiled: {found.__file__}")
    return 0


def is_checkout() -> bool:
    """Whether the package lies in the project's own folder."""
    return Path(__file__).parents[2].joinpath("pyproject.toml").exists()


def compile_it() -> int:
    """Compile `_native.c`, and say how that went; 0 where it went well."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        print("this Python has no GIL: launches run in Python", file=sys.stderr)
        return 1
    source = Path(__file__).with_name("_native.c")
    module = source.with_name(f"_native{sysconfig.get_config_var('EXT_SUFFIX')}")
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    command = [compiler, "-O2", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source)]
    try:
        compiled = subprocess.run([*command, "-o", str(module)], capture_output=True, text=True)
    except OSError as error:
        print(f"no C compiler: {error}; launches run in Python", file=sys.stderr)
        return 1
    if compiled.returncode != 0:
        print(f"{compiled.stderr}{shlex.join(command)} failed; launches run in Python", file=sys.stderr)
        return 1
    print(f"compiled {module}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
