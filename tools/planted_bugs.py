"""Plants bugs in a copy of tilekern, one at a time, and sees whether tools/differential.py finds each.

    python tools/planted_bugs.py                       # bugs of the interpreter and the passes, against NumPy
    python tools/planted_bugs.py --device cuda:0       # and bugs of the lowering, which only a GPU shows

Prints a line per bug, and ends with exit code 1 if fewer than nine of ten were found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Bug(NamedTuple):
    """What to replace by what in which file."""

    name: str
    file: str
    right: str
    wrong: str


ON_THE_HOST = [
    Bug(
        "floor division truncates",
        "interpreter/_elementwise.py",
        "_binary(FloorDivOp, np.floor_divide)",
        "_binary(FloorDivOp, lambda a, b: (a / b).astype(a.dtype))",
    ),
    Bug(
        "modulo has the sign of the dividend",
        "interpreter/_elementwise.py",
        "_binary(ModOp, np.mod)",
        "_binary(ModOp, np.fmod)",
    ),
    Bug(
        "NaN loses in max",
        "interpreter/_reduce.py",
        "propagate = op.propagate_nan or not dtype.is_float",
        "propagate = not dtype.is_float",
    ),
    Bug(
        "scans do not turn back",
        "interpreter/_reduce.py",
        "        result = np.flip(result, axis)\n",
        "        pass\n",
    ),
    Bug(
        "operands of a user's scan are swapped",
        "interpreter/_combine.py",
        "[a[..., :-distance] for a in values],\n            [a[..., distance:] for a in values],",
        "[a[..., distance:] for a in values],\n            [a[..., :-distance] for a in values],",
    ),
]
ON_A_GPU = [
    Bug(
        "sub is swapped",
        "lowering/_elementwise.py",
        "b.fn.subi(b[op.lhs], b[op.rhs])",
        "b.fn.subi(b[op.rhs], b[op.lhs])",
    ),
    Bug(
        "less is less or equal",
        "lowering/_elementwise.py",
        '"lt": ComparisonPredicate.LESS_THAN,',
        '"lt": ComparisonPredicate.LESS_THAN_OR_EQUAL,',
    ),
    Bug(
        "shifts right are unsigned",
        "lowering/_elementwise.py",
        "b.fn.shri(b[op.lhs], b[op.rhs], signedness(dtype_of_value(op.lhs)))",
        "b.fn.shri(b[op.lhs], b[op.rhs], signedness(dtype_of_value(op.lhs)).__class__.UNSIGNED)",
    ),
    Bug(
        "padding of NaN is infinity",
        "lowering/_memory.py",
        '"nan": PaddingValue.NAN',
        '"nan": PaddingValue.POS_INF',
    ),
    Bug("floor is ceil", "lowering/_elementwise.py", '(FloorOp, "floor")', '(FloorOp, "ceil")'),
    Bug(
        "the neutral element of min is 0",
        "lowering/_reduce.py",
        'return dtype.lowest if kind == "max" else dtype.highest',
        'return dtype.lowest if kind == "max" else 0',
    ),
]


def finds(bug: Bug, count: int, device: str | None, workers: int) -> str:
    """`found`, `missed`, or what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        for package in ("cuda_async", "tilekern", "tools"):
            shutil.copytree(
                ROOT / package, Path(folder) / package, ignore=shutil.ignore_patterns("__pycache__")
            )
        path = Path(folder) / "tilekern" / bug.file
        text = path.read_text()
        if text.count(bug.right) != 1:
            return f"cannot be planted: {bug.file} holds {bug.right!r} {text.count(bug.right)} times"
        path.write_text(text.replace(bug.right, bug.wrong))
        command = [sys.executable, "tools/differential.py", "--count", str(count), "--workers", str(workers)]
        if device is not None:
            command += ["--device", device]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            timeout=600,
        )
        if "programs in" not in done.stdout:
            return done.stderr[-300:]
        return "found" if done.returncode else "missed"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="cuda:0: plant the bugs that only a GPU shows, too")
    parser.add_argument("--count", type=int, default=200, help="programs per bug")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    outcomes = []
    for device, bugs in ((None, ON_THE_HOST), (options.device, ON_A_GPU if options.device else [])):
        for bug in bugs:
            outcome = finds(bug, options.count, device, options.workers)
            outcomes.append(outcome)
            print(f"{outcome:8} {bug.name} ({bug.file})", flush=True)
    found = outcomes.count("found")
    print(f"{found} of {len(outcomes)} found")
    return 0 if found >= 0.9 * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
