"""Write docs/tile-support.md: which operation of the tile language takes which element type, from which GPU on.

    python tools/tile_support.py            write the page
    python tools/tile_support.py --check    exit code 1 if the committed page is not what would be written
    python tools/tile_support.py --probe    assemble all of it for every target and compare; takes minutes

Nothing on the page is written by hand: each case is given to the front end once per element type, and what it
accepts is held against the table of what targets refuse. `--probe` holds that table against the assembler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tilekern as tk
from tilekern.dtypes import DTYPES, DType
from tilekern.frontend import translate
from tilekern.ir import ATOMIC_MODES, Function, atomic_types, cast_roundings
from tilekern.lowering import lower, refusals
from tilekern.tileir import ARCHITECTURES, refused_atomic_add, refused_type
from tilekern.tileir.types import number

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tile-support.md"

SIDE = 8
E8, E4 = tk.float8_e8m0fnu, tk.float8_e4m3fn


class Case(NamedTuple):
    """One row: a language function, or a variant of it, as a function of three tiles of one element type."""

    section: str
    label: str
    name: str
    function: Callable[..., Any]


def _unary(section: str, *functions: Callable[..., Any]) -> Iterator[Case]:
    for function in functions:
        name = function.__name__
        yield Case(section, name, name, lambda a, b, c, f=function: f(a))


def _binary(section: str, *functions: Callable[..., Any]) -> Iterator[Case]:
    for function in functions:
        name = function.__name__
        yield Case(section, name, name, lambda a, b, c, f=function: f(a, b))


def _scaled(a: tk.Tile, scales: DType, count: int) -> tk.Tile:
    """A scaled product with that many scales along K, which is 32."""
    x = tk.cat((tk.cat((a, a, a, a), 1),) * 2, 0)
    y = tk.transpose(x)
    x_scale, y_scale = tk.full((16, count), 1.0, scales), tk.full((count, 16), 1.0, scales)
    return tk.mma_scaled(x, x_scale, y, y_scale, tk.zeros((16, 16), tk.float32))


def _powers(a: tk.Tile) -> tk.Tile:
    return a**3


CASES: tuple[Case, ...] = (
    *_binary("Arithmetic", tk.add, tk.sub, tk.mul, tk.truediv, tk.floordiv, tk.mod, tk.divmod, tk.minimum),
    *_binary("Arithmetic", tk.maximum, tk.mulhi, tk.atan2),
    Case("Arithmetic", "fma", "fma", lambda a, b, c: tk.fma(a, b, c)),
    Case("Arithmetic", "pow, constant exponent", "pow", lambda a, b, c: _powers(a)),
    Case("Arithmetic", "pow, exponent a tile", "pow", lambda a, b, c: tk.pow(a, b)),
    Case("Arithmetic", "`flush_to_zero` of add", "add", lambda a, b, c: tk.add(a, b, flush_to_zero=True)),
    Case(
        "Arithmetic",
        "rounding RZ, RM, RP of add",
        "add",
        lambda a, b, c: tk.add(a, b, rounding_mode=tk.RoundingMode.RZ),
    ),
    *_unary("Arithmetic", tk.negative, tk.abs, tk.floor, tk.ceil, tk.isnan),
    *_unary("Functions", tk.exp, tk.exp2, tk.log, tk.log2, tk.sqrt, tk.rsqrt, tk.sin, tk.cos, tk.tan),
    *_unary("Functions", tk.sinh, tk.cosh, tk.tanh),
    Case("Functions", "exp, APPROX", "exp", lambda a, b, c: tk.exp(a, rounding_mode=tk.RoundingMode.APPROX)),
    *_binary("Bits and comparisons", tk.bitwise_and, tk.bitwise_or, tk.bitwise_xor),
    Case("Bits and comparisons", "bitwise_not", "bitwise_not", lambda a, b, c: tk.bitwise_not(a)),
    *_binary("Bits and comparisons", tk.bitwise_lshift, tk.bitwise_rshift),
    *_binary("Bits and comparisons", tk.equal, tk.not_equal, tk.less, tk.less_equal, tk.greater),
    *_binary("Bits and comparisons", tk.greater_equal),
    Case("Bits and comparisons", "where", "where", lambda a, b, c: tk.where(True, a, b)),
    Case("Creation and shape", "full", "full", lambda a, b, c: tk.full((8,), 1, a.dtype)),
    Case("Creation and shape", "zeros", "zeros", lambda a, b, c: tk.zeros((8,), a.dtype)),
    Case("Creation and shape", "ones", "ones", lambda a, b, c: tk.ones((8,), a.dtype)),
    Case("Creation and shape", "arange", "arange", lambda a, b, c: tk.arange(8, dtype=a.dtype)),
    Case("Creation and shape", "astile", "astile", lambda a, b, c: tk.astile((1, 0), a.dtype)),
    Case("Creation and shape", "reshape", "reshape", lambda a, b, c: tk.reshape(a, -1)),
    Case(
        "Creation and shape",
        "broadcast_to",
        "broadcast_to",
        lambda a, b, c: tk.broadcast_to(a, (2, SIDE, SIDE)),
    ),
    Case("Creation and shape", "expand_dims", "expand_dims", lambda a, b, c: tk.expand_dims(a, 0)),
    Case("Creation and shape", "permute", "permute", lambda a, b, c: tk.permute(a, (1, 0))),
    Case("Creation and shape", "transpose", "transpose", lambda a, b, c: tk.transpose(a)),
    Case("Creation and shape", "cat", "cat", lambda a, b, c: tk.cat((a, b), 0)),
    Case("Creation and shape", "extract", "extract", lambda a, b, c: tk.extract(a, (0, 0), (4, 4))),
    Case(
        "Creation and shape",
        "insert",
        "insert",
        lambda a, b, c: tk.insert(a, (0, 1), tk.extract(b, (0, 0), (4, 4))),
    ),
    Case("Creation and shape", "item", "item", lambda a, b, c: tk.item(tk.extract(a, (0, 0), (1, 1)))),
    Case("Creation and shape", "pack_to_bytes", "pack_to_bytes", lambda a, b, c: tk.pack_to_bytes(a)),
    Case(
        "Creation and shape",
        "unpack_from_bytes",
        "unpack_from_bytes",
        lambda a, b, c: tk.unpack_from_bytes(tk.zeros((64,), tk.uint8), a.dtype),
    ),
    *_unary("Reductions and scans", tk.sum, tk.prod, tk.max, tk.min, tk.argmax, tk.argmin, tk.cumsum),
    *_unary("Reductions and scans", tk.cumprod),
    Case("Reductions and scans", "reduce", "reduce", lambda a, b, c: tk.reduce(a, 0, lambda x, y: x, 0)),
    Case("Reductions and scans", "scan", "scan", lambda a, b, c: tk.scan(a, 0, lambda x, y: x, 0)),
    *(
        Case(
            "Matrix products",
            f"mma into {kept.name}",
            "mma",
            lambda a, b, c, kept=kept: tk.mma(a, b, tk.zeros((SIDE, SIDE), kept)),
        )
        for kept in (tk.float16, tk.float32, tk.float64, tk.int32)
    ),
    Case("Matrix products", "matmul, `@`", "matmul", lambda a, b, c: tk.matmul(a, b)),
    Case("Matrix products", "mma_scaled by float8_e8m0fnu", "mma_scaled", lambda a, b, c: _scaled(a, E8, 1)),
    Case("Matrix products", "mma_scaled by float8_e4m3fn", "mma_scaled", lambda a, b, c: _scaled(a, E4, 2)),
    Case("Diagnostics", "print", "print", lambda a, b, c: tk.print(a)),
    Case("Diagnostics", "assert_", "assert_", lambda a, b, c: tk.assert_(a)),  # noqa: PT009
    Case(
        "Diagnostics",
        "assume_divisible_by",
        "assume_divisible_by",
        lambda a, b, c: tk.assume_divisible_by(a, 1),
    ),
)


@tk.kernel
def _cases(out: tk.Tile1D, x: tk.Tensor2D, functions: tk.Constant[tuple], dtype: tk.Constant[object]) -> None:
    a, b, c = (tk.load(x, (0, i), (SIDE, SIDE)).astype(dtype) for i in range(3))
    total = out.load()
    for function in tk.static_iter(functions):
        result = function(a, b, c)
        # something of every result is used, so that none of it is left out
        for tile in tk.static_iter(result if isinstance(result, tuple) else (result,)):
            if isinstance(tile, tk.Tile):
                part = tk.extract(tile.reshape(-1), 0, min(2, tile.size)).astype(tk.float32)
                total = total + tk.max(part)
    out.store(total)


def translated(functions: tuple[Callable[..., Any], ...], dtype: DType) -> Function | None:
    """A kernel that computes functions of three tiles of that type; None where the language refuses one."""
    out, x = tk.meta(8, tk.float32).partition(1), tk.meta((SIDE, 3 * SIDE), tk.float32)
    specs = _cases._specs((out, x, functions, dtype), {})
    try:
        return translate(_cases.source, specs, {}).function
    except tk.KernelError:
        return None


def refusing(function: Function) -> tuple[str, ...]:
    """The targets that cannot run it."""
    if next(refusals(function, ARCHITECTURES[0]), None) is None:
        return ()  # what the oldest has, all have
    return tuple([arch for arch in ARCHITECTURES if next(refusals(function, arch), None) is not None])


def cell(function: Function | None) -> str:
    """Where a case runs: nowhere, everywhere, or from a target on."""
    if function is None:
        return "–"
    refused = refusing(function)
    if not refused:
        return "✓"
    assert refused == ARCHITECTURES[: len(refused)], "later targets refuse what earlier ones take"
    return ARCHITECTURES[len(refused)].removeprefix("sm_")


def since(refuses: Callable[[str], object]) -> str:
    """The same of something that targets refuse or not."""
    refused = [arch for arch in ARCHITECTURES if refuses(arch) is not None]
    return ARCHITECTURES[len(refused)].removeprefix("sm_") if refused else "✓"


ACCESSES = "load store load_like gather scatter load_advanced_indexing store_advanced_indexing"


def memory_rows() -> Iterator[tuple[str, list[str], tuple[str, ...]]]:
    """Accesses to memory, by the element type of the tensor."""
    types = {
        dtype: number(f"i{max(dtype.bits, 8)}" if not dtype.is_float else dtype.short)
        for dtype in DTYPES.values()
    }
    cells = [
        "–"
        if dtype in (tk.tfloat32, tk.float4_e2m1fn)
        else since(lambda arch, t=element: refused_type(arch, t))
        for dtype, element in types.items()
    ]
    yield "Memory", [f"`{name}`" for name in ACCESSES.split()], tuple(cells)
    found: dict[tuple[str, ...], list[str]] = {}
    for mode in (*ATOMIC_MODES, "cas"):
        taken = [
            "–"
            if dtype.short not in atomic_types(mode)
            else since(lambda arch, t=element, m=mode: refused_atomic_add(arch, t) if m == "add" else None)
            for dtype, element in types.items()
        ]
        found.setdefault(tuple(taken), []).append(f"`atomic_{mode}`")
    for taken_cells, labels in found.items():
        yield "Memory", labels, taken_cells


def rows() -> Iterator[tuple[str, list[str], tuple[str, ...]]]:
    """Section, labels, and cells; cases of a section with the same cells stand together."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for case in CASES:
        cells = tuple([cell(translated((case.function,), dtype)) for dtype in DTYPES.values()])
        label = case.label if " " in case.label else f"`{case.label}`"
        found.setdefault((case.section, cells), []).append(label)
    for section in dict.fromkeys(case.section for case in CASES):
        for (own, cells), labels in found.items():
            if own == section:
                yield section, labels, cells


MODES = {"nearest_even": "RN", "zero": "RZ", "negative_inf": "RM", "positive_inf": "RP", "nearest_away": "RA"}

INTRODUCTION = """\
# Operations by element type and GPU

Written by `tools/tile_support.py`; a test holds that it is up to date. What the operations mean is in
[the tile language](language.md).

✓: on every target from sm_80 on. A number: from that target on; for an earlier one, a kernel that uses it is
refused with a `KernelTypeError` at its line, before the assembler runs. –: not of that type; a cast is needed. What
takes bools and is arithmetic takes them as int32; functions of floats take integers as float32. The host
device runs all of it. fp4 lies in memory as bytes, two numbers in each: load uint8 and use `unpack_from_bytes`.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    names = [dtype.name for dtype in DTYPES.values()]
    short = [
        name.replace("float", "f").replace("uint", "u").replace("int", "i").rstrip("_") for name in names
    ]
    current = ""
    for section, labels, cells in (*rows(), *memory_rows()):
        if section != current:
            parts.append(f"\n## {section}\n\n| | {' | '.join(short)} |\n|---{'|---' * len(short)}|\n")
            current = section
        parts.append(f"| {', '.join(labels)} | {' | '.join(cells)} |\n")
    parts.append("\n## Rounding of conversions\n\n")
    parts.append(
        "`x.astype(dtype, rounding_mode=...)`; the first is the usual one. All others round to nearest even, or are "
    )
    parts.append("exact. Floats become integers by RZI.\n\n| from | to | modes |\n|---|---|---|\n")
    modes: dict[tuple[str, str], list[str]] = {}
    for source in DTYPES.values():
        for target in DTYPES.values():
            allowed = cast_roundings(source, target)
            if source is not target and allowed != ("nearest_even",):
                key = target.name, ", ".join(MODES[mode] for mode in allowed)
                modes.setdefault(key, []).append(source.name)
    for (target_name, allowed_names), sources in modes.items():
        parts.append(f"| {', '.join(sources)} | {target_name} | {allowed_names} |\n")
    return "".join(parts)


def taken_cases(dtype: DType, arch: str) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """The cases a target has for an element type, and those it refuses, by the table."""
    taken: list[Case] = []
    refused: list[Case] = []
    for case in CASES:
        function = translated((case.function,), dtype)
        if function is not None:
            (refused if next(refusals(function, arch), None) is not None else taken).append(case)
    return tuple(taken), tuple(refused)


def bytecode(cases: tuple[Case, ...], dtype: DType) -> bytes:
    """A kernel that has all these cases."""
    function = translated(tuple([case.function for case in cases]), dtype)
    assert function is not None
    return lower(function)


def probe() -> int:
    """Assemble every accepted case for every target; says where assembler and table differ."""
    from tilekern.tileir import assemble
    from tilekern.tileir.errors import AssemblerError

    def is_taken(cases: tuple[Case, ...], dtype: DType, arch: str) -> bool:
        try:
            assemble(bytecode(cases, dtype), arch, timeout_s=300)
        except AssemblerError:
            return False
        return True

    wrong = 0
    for dtype in DTYPES.values():
        for arch in ARCHITECTURES:
            taken, refused = taken_cases(dtype, arch)
            differs = [case for case in refused if is_taken((case,), dtype, arch)]
            if taken and not is_taken(taken, dtype, arch):
                differs += [case for case in taken if not is_taken((case,), dtype, arch)]
            for case in differs:
                print(f"{case.label} of {dtype.name} on {arch} is not as the table says")
            wrong += len(differs)
        print(f"{dtype.name}: probed", flush=True)
    return wrong


def main() -> int:
    if "--probe" in sys.argv[1:]:
        return min(probe(), 1)
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE.name} is out of date; run python tools/tile_support.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
