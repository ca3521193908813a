"""From a kernel's source to bytecode is quick: every kernel of the library, and long unrolled loops.

Times are compared with what Python's own parser takes for a module of the standard library on the same
machine at the same time: about 11 ms where the limits were set, and the limit for a library kernel is 50 ms.
"""

import ast
import importlib.util
import inspect
from pathlib import Path
from time import perf_counter

import pytest

import tilekern as tk
from tilekern.frontend import translate

M = tk.meta
PARSED = inspect.getsource(ast)
FRONT_END_LIMIT = 5.0
"""Times the parser's time: 50 ms are 4.4 of them, and the rest is for the noise of a machine that does more."""

ATTEMPTS = 5


def library_samples():
    """Kernels of the library by name, with the arguments they are compiled for."""
    file = Path(__file__).parents[1] / "kernels" / "kernel_samples.py"
    spec = importlib.util.spec_from_file_location("timed_kernel_samples", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.samples("f2")


def best_ms(function, attempts=7):
    """The shortest time of several calls."""
    found = []
    for _ in range(attempts):
        began = perf_counter()
        function()
        found.append((perf_counter() - began) * 1e3)
    return min(found)


@pytest.mark.timing
def test_library_kernels_become_bytecode_within_50_ms():
    slow = library_samples()
    assert len(slow) > 30
    for _ in range(ATTEMPTS):
        measured = {
            name: (best_ms(lambda s=sample: s[0].bytecode(*s[1]), 2), best_ms(lambda: ast.parse(PARSED), 2))
            for name, sample in slow.items()
        }
        slow = {
            name: slow[name] for name, (taken, parser) in measured.items() if taken > FRONT_END_LIMIT * parser
        }
        if not slow:
            return
    shown = {name: "{:.1f} ms, the parser {:.1f} ms".format(*measured[name]) for name in slow}
    pytest.fail(f"slow to compile: {shown}")


@tk.kernel
def unrolled(out: tk.Tile1D, x: tk.Tensor1D, turns: tk.Constant[int]):
    total = tk.zeros((4,), tk.float32)
    for i in tk.static_iter(range(turns)):
        if tk.bid(0) > i:
            total = total + tk.load(x, i, 4)
    out.store(total)


@pytest.mark.timing
def test_time_grows_with_the_code_and_no_faster():
    def taken(turns):
        specs = unrolled._specs((M(4, "f4").partition(4), M(8192, "f4"), turns), {})
        return best_ms(lambda: translate(unrolled.source, specs), 4)

    assert taken(320) < 3.0 * 8 * taken(40)
