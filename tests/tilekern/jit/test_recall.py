"""Compilations remembered across processes: right whatever has changed, quick where nothing has.

The other process is played by modules executed anew: nothing of the kernel object survives.
"""

import enum
import json
import subprocess
import sys
import types

import numpy as np
import pytest

import tilekern as tk
from tilekern.jit import KernelOptions, _compile
from tilekern.jit._disk_cache import DiskCache
from tilekern.jit._obtain import obtain
from tilekern.jit._portable import NotPortable, from_portable, to_portable
from tilekern.jit._recall import mark_of
from tilekern.jit._specialize import specialize

OPTIONS = KernelOptions()
M = tk.meta

HEAD = "import tilekern as tk\nimport numpy as np\nimport enum\n"
KERNEL = "@tk.kernel\ndef k(out: tk.Tile1D, x: tk.Tensor1D):\n    out.store({})\n"


def module_of(tmp_path, text, name="recalled"):
    """A module executed from a file, as a new process would."""
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    module = types.ModuleType(name)
    exec(compile(text, str(file), "exec"), vars(module))
    return module


def origin(kernel, cache, *, target="sm_90", args=None, options=OPTIONS):
    """Where the code comes from in a process that has not compiled it yet."""
    args = args or (M(64, "f4").partition(16), M(64, "f4"))
    specs = specialize(kernel.name, kernel.parameters, args, 16)
    return obtain(kernel, kernel._function, specs, options, target, cache).timings.origin


REMEMBERED = {
    "plain": ("", "tk.load_like(x, out) * 2"),
    "global": ("SCALE = 3.0\n", "tk.load_like(x, out) * SCALE"),
    "helper": ("FACTOR = 2\ndef h(t):\n    return t * FACTOR\n", "h(tk.load_like(x, out))"),
    "default": ("def h(t, by=2):\n    return t * by\n", "h(tk.load_like(x, out))"),
    "enum": ("class Mode(enum.Enum):\n    A = 1\n    B = 2\n", "tk.load_like(x, out) * Mode.B.value"),
    "array": ("TABLE = np.arange(4, dtype=np.float32)\n", "tk.load_like(x, out) * TABLE[3]"),
    "tuple": ("PAIR = (2, 3.5)\n", "tk.load_like(x, out) * PAIR[1]"),
}


@pytest.mark.parametrize(("before", "body"), REMEMBERED.values(), ids=REMEMBERED)
def test_second_process_runs_no_front_end(before, body, disassemble, tmp_path, monkeypatch):
    cache = DiskCache(tmp_path / "cache")
    text = HEAD + before + KERNEL.format(body)
    assert origin(module_of(tmp_path, text).k, cache) == "assembled"
    monkeypatch.setattr(_compile, "build_program", None)
    assert origin(module_of(tmp_path, text).k, DiskCache(tmp_path / "cache")) == "recalled"


EDITS = {
    "kernel": ("tk.load_like(x, out) * 2", "tk.load_like(x, out) * 3"),
    "global": ("SCALE = 3.0", "SCALE = 4.0"),
    "type of a global": ("COUNT = 1", "COUNT = True"),
    "sign of zero": ("ZERO = 0.0", "ZERO = -0.0"),
    "helper": ("return t + COUNT", "return t - COUNT"),
    "helper of a helper": ("return -t", "return t"),
    "default": ("by=2", "by=3"),
    "element of a tuple": ("PAIR = (2, 3)", "PAIR = (2, 5)"),
}

EDITED = (
    HEAD
    + """
SCALE = 3.0
COUNT = 1
ZERO = 0.0
PAIR = (2, 3)

def inner(t):
    return -t

def helper(t, by=2):
    t = inner(t) * by
    return t + COUNT

@tk.kernel
def k(out: tk.Tile1D, x: tk.Tensor1D):
    t = tk.load_like(x, out) * 2
    out.store(helper(t) * SCALE + ZERO + PAIR[1])
"""
)


@pytest.mark.parametrize(("old", "new"), EDITS.values(), ids=EDITS)
def test_every_edit_is_noticed(old, new, disassemble, tmp_path):
    cache = DiskCache(tmp_path / "cache")
    assert origin(module_of(tmp_path, EDITED, "before").k, cache) == "assembled"
    assert EDITED.count(old) == 1
    # under another name as well: the same file must not be the reason why it is noticed
    assert origin(module_of(tmp_path, EDITED.replace(old, new), "before").k, cache) != "recalled"
    assert origin(module_of(tmp_path, EDITED, "before").k, cache) == "recalled"


def test_helpers_of_another_module(disassemble, tmp_path, monkeypatch):
    """Read as attributes of the module, one of them chosen by a constant; both ways of importing."""
    text = (
        HEAD
        + "import recalled_helpers\nfrom recalled_helpers import plus\n"
        + "@tk.kernel\ndef k(out: tk.Tile1D, which: tk.Constant[str]):\n"
        + "    out.store(plus(recalled_helpers.HELPERS[which](out.load())))\n"
    )
    helpers = "N = 2\ndef plus(t):\n    return t + N\ndef twice(t):\n    return t * 2\n"
    helpers += "def thrice(t):\n    return t * 3\nHELPERS = {'twice': twice, 'thrice': thrice}\n"
    cache = DiskCache(tmp_path / "cache")

    def origins(helpers):
        module = module_of(tmp_path, helpers, "recalled_helpers")
        monkeypatch.setitem(sys.modules, "recalled_helpers", module)
        kernel = module_of(tmp_path, text).k
        return [
            origin(kernel, cache, args=(M(64, "f4").partition(16), which)) for which in ("twice", "thrice")
        ]

    assert origins(helpers) == ["assembled", "assembled"]
    assert origins(helpers) == ["recalled", "recalled"]
    assert origins(helpers.replace("t * 3", "t * 5")) == ["disk cache", "assembled"]
    assert origins(helpers.replace("N = 2", "N = 3")) == ["assembled", "assembled"]
    assert origins(helpers) == ["recalled", "recalled"]


def test_closures_are_told_apart(disassemble, tmp_path):
    text = (
        HEAD
        + "def make(n, h):\n    @tk.kernel\n    def k(out: tk.Tile1D):\n        out.store(h(out.load()) + n)\n"
        + "    return k\ndef twice(t):\n    return t * 2\ndef thrice(t):\n    return t * 3\n"
    )
    cache = DiskCache(tmp_path / "cache")
    args = (M(64, "f4").partition(16),)
    for expected in ("assembled", "recalled"):
        module = module_of(tmp_path, text)
        for n, helper in ((1, module.twice), (2, module.twice), (1, module.thrice)):
            assert origin(module.make(n, helper), cache, args=args) == expected


def test_target_options_and_arguments_belong_to_the_key(disassemble, tmp_path):
    cache = DiskCache(tmp_path / "cache")
    text = HEAD + KERNEL.format("tk.load_like(x, out) * 2")
    calls = [
        {},
        {"target": "sm_80"},
        {"options": KernelOptions(occupancy=2)},
        {"args": (M(64, "f4").partition(32), M(64, "f4"))},
        {"args": (M(64, "f8").partition(16), M(64, "f8"))},
    ]
    for expected in ("assembled", "recalled"):
        kernel = module_of(tmp_path, text).k
        assert [origin(kernel, cache, **call) for call in calls] == [expected] * len(calls)
    assert origin(kernel, cache, options=KernelOptions(compile_timeout_s=99)) == "recalled"


def test_what_has_no_mark_takes_the_long_way(disassemble, tmp_path):
    text = HEAD + "class Box:\n    n = 2\nbox = Box()\n" + KERNEL.format("tk.load_like(x, out) * box.n")
    cache = DiskCache(tmp_path / "cache")
    assert origin(module_of(tmp_path, text).k, cache) == "assembled"
    assert origin(module_of(tmp_path, text).k, cache) == "disk cache"


@pytest.mark.parametrize("name", ["tk.static_eval", "evaluate"])
def test_what_python_evaluates_takes_the_long_way(name, disassemble, tmp_path):
    text = HEAD + "from tilekern import static_eval as evaluate\nclass Box:\n    n = 2\n"
    text += KERNEL.format(f"tk.load_like(x, out) * {name}(Box.n)")
    cache = DiskCache(tmp_path / "cache")
    assert origin(module_of(tmp_path, text).k, cache) == "assembled"
    assert origin(module_of(tmp_path, text).k, cache) == "disk cache"


def test_cubin_that_was_evicted_is_made_again(disassemble, tmp_path):
    text = HEAD + KERNEL.format("tk.load_like(x, out) * 2")
    cache = DiskCache(tmp_path / "cache")
    origin(module_of(tmp_path, text).k, cache)
    for entry in cache.entries():
        if entry.metadata.get("cubin_bytes"):
            (file,) = (tmp_path / "cache").rglob(f"{entry.name}.entry")
            file.unlink()
    assert origin(module_of(tmp_path, text).k, cache) == "assembled"
    assert origin(module_of(tmp_path, text).k, cache) == "recalled"


def test_recalled_checks_point_at_the_line(disassemble, tmp_path):
    text = HEAD + KERNEL.format("tk.load_like(x, out)")
    cache = DiskCache(tmp_path / "cache")
    args = (M(64, "f4").partition(16), M(64, "f4"))
    for _ in range(2):
        kernel = module_of(tmp_path, text).k
        specs = specialize("k", kernel.parameters, args, 16)
        variant = obtain(kernel, kernel._function, specs, OPTIONS, "sm_90", cache)
    assert variant.timings.origin == "recalled"
    (check,) = variant.checks
    message = check.location.describe("why")
    assert ":6:" in message
    assert "out.store(tk.load_like(x, out))" in message


def test_values_come_back_or_are_refused():
    for value in (None, True, 3, 0.1, float("inf"), "text", b"\x00", (1, (2.0, tk.bfloat16)), OPTIONS):
        assert from_portable(json.loads(json.dumps(to_portable(value)))) == value
    for value in ([1], {}, object(), np.float32(1), lambda: 0):
        with pytest.raises(NotPortable):
            to_portable(value)
    others = (["object", "os:system", {}], ["object", "tilekern.errors:KernelError", {}], ["what"], [])
    for text in (*others, ["dtype", "f1"]):
        with pytest.raises(NotPortable):
            from_portable(text)


class Colour(enum.Enum):
    RED = 1


def test_marks_tell_values_apart():
    values = [
        None,
        1,
        True,
        1.0,
        0.0,
        -0.0,
        "1",
        b"1",
        (1,),
        [1],
        {1},
        {1: 2},
        tk.float32,
        np.float32(1),
        Colour,
    ]
    values += [Colour.RED, np.arange(3), np.arange(3.0), mark_of, np.exp, len]
    marks = []
    for value in values:
        try:
            marks.append(json.dumps(mark_of(value)))
        except NotPortable:
            continue
    assert len(set(marks)) == len(marks) >= 18


WARM = """
import json, sys, time
clock = time.perf_counter
began = clock(); import numpy; numpy_ms = (clock() - began) * 1e3
import tilekern as tk
from cuda_async.scheduling import _opening
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from warm_kernels import kernel
M = tk.meta
args = (M((512, 512), "f4").partition((1, 512)), M((512, 512), "f4"))
device = SimpleNamespace(kind="cuda", compute_capability=(9, 0))
for get_ready in _opening.behind_opening:
    get_ready()
began = clock()
from tilekern.jit._specialize import specialize
specs = specialize("kernel", kernel.parameters, args, 16)
kernel._variant(specs, device, kernel.options)
ms = (clock() - began) * 1e3
print(json.dumps([kernel.timings[0].origin, ms, numpy_ms, "tilekern.ir" in sys.modules]))
"""

ORDINARY_NUMPY_MS = 110.0  # as in test_import_time.py


@pytest.mark.timing
def test_warm_start_is_quick(disassemble, tmp_path, monkeypatch):
    """From the arguments to the code, behind the opening of a device: 20 ms."""
    monkeypatch.setenv("TILEKERN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "warm_kernels.py").write_text(
        "import tilekern as tk\n\n\n@tk.kernel\ndef kernel(out: tk.Tile2D, x: tk.Tensor2D):\n"
        "    t = tk.load_like(x, out)\n    out.store(t - tk.max(t, axis=1, keepdims=True))\n"
    )

    def run():
        command = [sys.executable, "-c", WARM, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return json.loads(done.stdout)

    assert run()[0] == "assembled"
    best_ms = best_numpy_ms = 1e9
    for _ in range(8):
        kind, ms, numpy_ms, compiler_was_imported = run()
        assert kind == "recalled"
        assert not compiler_was_imported
        best_ms, best_numpy_ms = min(best_ms, ms), min(best_numpy_ms, numpy_ms)
        if best_ms < 10:
            break
    assert best_ms < 20 * max(1.0, best_numpy_ms / ORDINARY_NUMPY_MS)
