"""Plants bugs in a copy of tilekern, one at a time, and sees whether tools/differential.py finds each.

    python tools/planted_bugs.py                       # bugs of the interpreter, the front end and the passes
    python tools/planted_bugs.py --assembled           # and bugs of the lowering: what is assembled runs on the host
    python tools/planted_bugs.py --device cuda:0       # and bugs of the lowering, on a GPU
    python tools/planted_bugs.py --only token          # those whose name has that word

On the host, programs also run in other orders that their tokens allow: so bugs of the token ordering show, and wrong
assumptions, which the interpreter checks. Prints a line per bug, and ends with exit code 1 if fewer than nine of ten
were found.
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
    Bug(
        "edges of loads are an element short",
        "interpreter/_memory.py",
        "            result[row][tuple([slice(n) for n in counts])] = source",
        "            result[row][tuple([slice(n) for n in counts])] = source\n"
        "            result[row][..., counts[-1] - 1] = 0",
    ),
    Bug(
        "indices that are negative are inside",
        "interpreter/_memory.py",
        "found = found & (along >= 0) & (along < extents)",
        "found = found & (along >= -1) & (along < extents)",
    ),
    Bug(
        "a masked store writes everywhere",
        "interpreter/_pointers.py",
        "mask = np.ones([1] * tile.ndim, bool) if op.mask is None else frame[op.mask]",
        "mask = np.ones([1] * tile.ndim, bool)",
    ),
    Bug(
        "conversions to fp8 do not saturate",
        "interpreter/_numeric.py",
        "        array = np.clip(array, -largest, largest)",
        "        array = np.clip(array, -2 * largest, 2 * largest)",
    ),
    Bug(
        "subnormal numbers are flushed",
        "interpreter/_elementwise.py",
        "    return flush(result) if flush_to_zero else result",
        "    return flush(result) if dtype.bits == 32 else result",
    ),
]
IN_THE_PASSES = [
    Bug(
        "equal loads are one, across a store",
        "passes/_eliminate.py",
        'if op.effect == "none" and not op.regions and op.results:',
        'if op.effect in ("none", "read") and not op.regions and op.results:',
    ),
    Bug(
        "results of atomics that nobody uses remove them",
        "passes/_eliminate.py",
        '    return op.effect in ("none", "read")',
        '    return op.effect in ("none", "read") or op.mnemonic == "atomic"',
    ),
    Bug(
        "loads move out of loops",
        "passes/_hoist_invariants.py",
        "def _may_move(op: Op, constants: dict[Value, object]) -> bool:",
        "def _may_move(op: Op, constants: dict[Value, object]) -> bool:\n"
        '    if op.effect == "read":\n        return True',
    ),
    Bug(
        "folding truncates divisions",
        "passes/_fold_constants.py",
        "    FloorDivOp: lambda a, b: a // b,",
        "    FloorDivOp: lambda a, b: int(a / b),",
    ),
    Bug(
        "folding takes a modulo as C does",
        "passes/_fold_constants.py",
        "    ModOp: lambda a, b: a % b,",
        "    ModOp: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),",
    ),
    Bug(
        "x + 0.0 is x",
        "passes/_fold_constants.py",
        "return number == 0 and (not dtype.is_float or _is_negative_zero(number))",
        "return number == 0",
    ),
    Bug(
        "a selection takes the other side",
        "passes/_select_branches.py",
        "SelectOp(condition=condition, if_true=a, if_false=b,",
        "SelectOp(condition=condition, if_true=b, if_false=a,",
    ),
    Bug(
        "turns that meet their neighbours need no token",
        "passes/_loop_distinct.py",
        "found.add((maker.tensor, view.order[axis], side, step, linear))",
        "found.add((maker.tensor, view.order[axis], side, step, linear.factor))",
    ),
    Bug(
        "turns on one tile need no token",
        "passes/_loop_distinct.py",
        "return linear.factor != 0 and abs(linear.factor * step.value) < _HALF",
        "return abs(linear.factor * step.value) < _HALF",
    ),
    Bug(
        "a load has no token of the store before",
        "passes/_order_memory.py",
        "                before += front.loads_after",
        "                before += ()",
    ),
    Bug(
        "a store has no token of the loads before",
        "passes/_order_memory.py",
        "        return _Front(self.loads_after, (*rest, token))",
        "        return _Front(self.loads_after, self.stores_after or (token,))",
    ),
    Bug(
        "a join of tokens is dropped",
        "passes/_order_memory.py",
        "        if len(tokens) < 2:",
        "        if len(tokens) < 99:",
    ),
    Bug(
        "what follows a branch has no token of it",
        "passes/_order_memory.py",
        "_Front(fronts[root].loads_after, (token,)) if only_loads else _Front.of(token)",
        "fronts[root]",
    ),
    Bug(
        "what follows a loop has no token of its stores",
        "passes/_order_memory.py",
        "                fronts[one.root] = _Front.of(result)",
        "                fronts[one.root] = fronts[one.root]",
    ),
    Bug(
        "an upper bound is half of what it is",
        "passes/_state_ranges.py",
        "AssumeBoundedOp(source=value, lower=lower, upper=upper,",
        "AssumeBoundedOp(source=value, lower=lower, upper=None if upper is None else upper >> 23,",
    ),
    Bug(
        "a lower bound is one too high",
        "passes/_state_ranges.py",
        "lower = 0 if self._ranges.proves(term) == NOTHING else None",
        "lower = 1 if self._ranges.proves(term) == NOTHING else None",
    ),
    Bug(
        "extents and strides are taken as multiples of 16",
        "jit/_specialize.py",
        "if divisor <= limit and number % divisor == 0:",
        "if divisor <= limit:",
    ),
    Bug(
        "a walk takes the tiles of a group by columns",
        "frontend/operations/_mapped.py",
        "start = _two(t, MulOp, place, group)",
        "start = _two(t, MulOp, place, size)",
    ),
]
IN_THE_LOWERING = [
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
    Bug(
        "the order of a permutation is turned round",
        "lowering/_values.py",
        "b[op.result] = b.fn.permute(b[op.source], op.order)",
        "b[op.result] = b.fn.permute(b[op.source], [op.order.index(i) for i in range(len(op.order))])",
    ),
    Bug(
        "tiles are put together the other way round",
        "lowering/_values.py",
        "b.fn.cat(b[op.lhs], b[op.rhs], op.axis)",
        "b.fn.cat(b[op.rhs], b[op.lhs], op.axis)",
    ),
    Bug(
        "scans in steps take the wrong end of a run where they go back",
        "passes/_expand_scans.py",
        "last = 0 if is_reverse else run - 1",
        "last = run - 1",
    ),
    Bug(
        "of equal elements the last is the best",
        "lowering/_reduce.py",
        "earlier = b.fn.cmpi(ComparisonPredicate.LESS_THAN, index, best_index)",
        "earlier = b.fn.cmpi(ComparisonPredicate.GREATER_THAN, index, best_index)",
    ),
    Bug(
        "steps of a view are the sides of its tiles",
        "lowering/_memory.py",
        "kind = types.strided_view(view.tile_shape, view.steps, tensor, view.order, padding)",
        "kind = types.partition_view(view.tile_shape, tensor, view.order, padding)",
    ),
    Bug(
        "no access has a token",
        "lowering/_memory.py",
        "    return None if op.token is None else b[op.token]",
        "    return None",
    ),
]


def copied(source: Path, folder: str) -> None:
    for package in ("cuda_async", "tilekern", "tools"):
        shutil.copytree(
            source / package, Path(folder) / package, ignore=shutil.ignore_patterns("__pycache__")
        )


def problems(folder: str, count: int, how: list[str], workers: int) -> str:
    """`found` if the programs show a problem in such a copy, `missed` if not, or why they did not run."""
    command = [sys.executable, "tools/differential.py", "--count", str(count), "--workers", str(workers)]
    done = subprocess.run(
        [*command, "--most-problems", "1", *how],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        timeout=900,
    )
    if "programs in" not in done.stdout:
        return done.stderr[-300:]
    return "found" if done.returncode else "missed"


def finds(bug: Bug, source: Path, count: int, how: list[str], workers: int) -> str:
    """`found`, `missed`, or what went wrong; in a copy of a folder."""
    with tempfile.TemporaryDirectory() as folder:
        copied(source, folder)
        path = Path(folder) / "tilekern" / bug.file
        text = path.read_text()
        if text.count(bug.right) != 1:
            return f"cannot be planted: {bug.file} holds {bug.right!r} {text.count(bug.right)} times"
        path.write_text(text.replace(bug.right, bug.wrong))
        return problems(folder, count, how, workers)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="cuda:0: plant those of the lowering too, which show there")
    parser.add_argument(
        "--assembled",
        action="store_true",
        help="plant those of the lowering too: assembled code runs on the host",
    )
    parser.add_argument("--count", type=int, default=400, help="programs per bug")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="", help="bugs whose name has this word")
    options = parser.parse_args()
    groups: list[tuple[list[str], list[Bug]]] = [([], ON_THE_HOST), (["--orders"], IN_THE_PASSES)]
    if options.device or options.assembled:
        how = ["--device", options.device] if options.device else ["--assembled"]
        groups.append((how, IN_THE_LOWERING))
    groups = [(how, [bug for bug in bugs if options.only in bug.name]) for how, bugs in groups]
    outcomes = []
    # of one state of the files, whoever edits them meanwhile
    with tempfile.TemporaryDirectory() as folder:
        copied(ROOT, folder)
        for how, bugs in groups:
            outcome = problems(folder, 8, how, options.workers) if bugs else "missed"
            if outcome != "missed":
                print(f"without a bug, programs {' '.join(how)} are not right either: {outcome}")
                return 1
        for how, bugs in groups:
            for bug in bugs:
                outcome = finds(bug, Path(folder), options.count, how, options.workers)
                outcomes.append(outcome)
                print(f"{outcome:8} {bug.name} ({bug.file})", flush=True)
    found = outcomes.count("found")
    print(f"{found} of {len(outcomes)} found")
    return 0 if found >= 0.9 * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
