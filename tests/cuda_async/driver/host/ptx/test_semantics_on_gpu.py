"""Every instruction the interpreter knows, against the hardware, bit by bit.

One kernel per spelling loads its operands, executes the one instruction and stores its results; what the
driver refuses for this device is left out. Approximate instructions are compared within the error the
manual allows. On an H100 all 5500 spellings of sm_90 agree but for what `unlike` and `same_nan` say.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest

from cuda_async.driver.host.ptx._semantics import FORMS, Operation, bits_dtype, operation, type_bits

LANES = 4096
VERSION, TARGET = "8.6", "sm_90"
Spelling = tuple[tuple[str, ...], Operation, int | None]


# lop3's table is an immediate; these take every path of its implementation.
TABLES = (
    0x00,
    0x01,
    0x1A,
    0x3C,
    0x6A,
    0x78,
    0x7F,
    0x80,
    0x96,
    0xB4,
    0xCA,
    0xE2,
    0xE8,
    0xEA,
    0xF8,
    0xFE,
    0xFF,
)


def spellings(opcode: str) -> Iterator[Spelling]:
    for form in FORMS[opcode]:
        for modifiers in form.spellings():
            made = operation(opcode, modifiers, form.operands)
            for table in TABLES if opcode == "lop3" else (None,):
                yield modifiers, made, table


def register(ptx_type: str, modifiers: tuple[str, ...]) -> str:
    """Register type for an operand; only conversions between 8 bits and the newer types want `.b8`."""
    if ptx_type == "pred":
        return "pred"
    bits = type_bits(ptx_type)
    return f"b{bits}" if bits > 8 or {"bf16", "e2m1x2"} & set(modifiers) else "b16"


def kernel(name: str, opcode: str, modifiers: tuple[str, ...], op: Operation, table: int | None) -> str:
    """PTX of one kernel: parameters are one pointer per operand, then one per result."""
    lines: list[str] = []
    operands, results = list(op.operand_types), list(op.result_types)
    carries_in = ["pred"] if op.reads_carry else []
    carries_out = ["pred"] if op.writes_carry else []
    pointers = operands + carries_in + results + carries_out
    parameters = ", ".join(f".param .u64 p{i}" for i in range(len(pointers)))
    for i, ptx_type in enumerate(pointers):
        size = max(1, type_bits(ptx_type) // 8)
        lines += [
            f".reg .b64 base{i}; .reg .{register(ptx_type, modifiers)} v{i};",
            f"ld.param.u64 base{i}, [p{i}];",
            f"mad.wide.u32 base{i}, tid, {size}, base{i};",
        ]
    inputs = len(operands) + len(carries_in)
    for i, ptx_type in enumerate(pointers[:inputs]):
        if ptx_type == "pred":
            lines += [f".reg .b16 byte{i}; ld.global.u8 byte{i}, [base{i}]; setp.ne.b16 v{i}, byte{i}, 0;"]
        else:
            lines.append(f"ld.global.b{type_bits(ptx_type)} v{i}, [base{i}];")
    if op.reads_carry:
        lines.append(f".reg .b32 flag, junk; selp.b32 flag, 1, 0, v{inputs - 1};")
        lines.append("add.cc.u32 junk, flag, 0xffffffff;")
    sources = [f"v{i}" for i in range(len(operands))]
    if table is not None:
        sources[3] = str(table)
    targets = [f"v{inputs + i}" for i in range(len(results))]
    if opcode == "setp" and modifiers[-1] in ("f16", "bf16"):
        # These have no second destination; what the interpreter gives for it is the complement.
        lines.append(f"setp.eq.b32 {targets[1]}, tid, tid;")
        targets = targets[:1]
    if len(sources) == 5 and modifiers[0] == "rs":
        sources = ["{" + ", ".join(sources[:4]) + "}", sources[4]]
    lines.append(f"{'.'.join((opcode, *modifiers))} {'|'.join(targets)}, {', '.join(sources)};")
    if op.writes_carry:
        lines.append(".reg .b32 out; addc.u32 out, 0, 0;")
        lines.append(f"setp.ne.b32 v{len(pointers) - 1}, out, 0;")
    for i in range(inputs, len(pointers)):
        if pointers[i] == "pred":
            lines.append(f".reg .b16 byte{i}; selp.b16 byte{i}, 1, 0, v{i}; st.global.b8 [base{i}], byte{i};")
        else:
            lines.append(f"st.global.b{type_bits(pointers[i])} [base{i}], v{i};")
    body = "\n".join(lines)
    return f""".visible .entry {name}({parameters}) {{
.reg .b32 tid, t, n; mov.u32 t, %ctaid.x; mov.u32 n, %ntid.x; mov.u32 tid, %tid.x;
mad.lo.u32 tid, t, n, tid;
{body}
ret; }}
"""


def module_text(kernels: list[str], version: str = VERSION, target: str = TARGET) -> str:
    return f".version {version}\n.target {target}\n.address_size 64\n" + "".join(kernels)


FLOAT_EDGES = {
    "f16": (
        "0 1 2 3ff 400 401 3800 3c00 3c01 3bff 3e00 4000 4100 7bff 7c00 7c01 7e00 7fff 5bf8 6800 1400 200"
    ),
    "bf16": ("0 1 2 7f 80 81 3f00 3f80 3f81 3f7f 3fc0 4000 4020 7f7f 7f80 7f81 7fc0 7fff 4f00 4b00 4300 40"),
    "f32": (
        "0 1 2 7fffff 800000 800001 3f000000 3f800000 3f800001 3f7fffff 3fc00000 40000000 "
        "40200000 7f7fffff 7f800000 7f800001 7fc00000 7fffffff 4f000000 4effffff 5f000000 "
        "4b800000 33800000 33000000 33000001 38800000 387fe000 477fe000 477fefff 477ff000 "
        "43e00000 43e80000 47600000 7f7f8000 400000"
    ),
    "f64": (
        "0 1 2 fffffffffffff 10000000000000 10000000000001 3fe0000000000000 3ff0000000000000 "
        "3ff0000000000001 3fefffffffffffff 3ff8000000000000 4000000000000000 4004000000000000 "
        "7fefffffffffffff 7ff0000000000000 7ff0000000000001 7ff8000000000000 7fffffffffffffff "
        "41e0000000000000 41dfffffffc00000 43e0000000000000 43f0000000000000 36a0000000000000 "
        "3690000000000000 3690000000000001 3810000000000000 47efffffe0000000 47effffff0000000 "
        "40effc0000000000 40effdffffffffff 40effe0000000000 3e70000000000000"
    ),
}


@cache
def values(ptx_type: str, place: int) -> np.ndarray:
    """Input lanes for the operand at this place: edges against edges, then random in several manners."""
    rng = np.random.default_rng([place, *ptx_type.encode()])
    if ptx_type == "pred":
        return rng.integers(0, 2, LANES).astype(bool)
    bits, dtype = type_bits(ptx_type), bits_dtype(ptx_type)
    scalar = ptx_type.removesuffix("x2")
    if scalar in FLOAT_EDGES:
        width = type_bits(scalar)
        top = 1 << (width - 1)
        patterns = [int(e, 16) for e in FLOAT_EDGES[scalar].split()]
        edges = np.array([e | s for e in patterns for s in (0, top)], dtype=np.uint64)
    else:
        width = bits
        numbers = [0, 1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 100, 127, 128, 255, 256, 1 << (bits - 1)]
        numbers += [
            (1 << (bits - 1)) - 1,
            (1 << bits) - 1,
            (1 << bits) - 2,
            0x0F0F0F0F0F0F0F0F,
            0x8000,
            0x7FFF,
        ]
        edges = np.array([n & ((1 << bits) - 1) for n in numbers], dtype=np.uint64)
    lanes = LANES * bits // width
    n = np.arange(lanes)
    index = (
        n % edges.size
        if place == 0
        else n // edges.size
        if place == 1
        else rng.integers(0, edges.size, lanes)
    )
    chosen = edges[index % edges.size]
    random = (
        rng.integers(0, 1 << width, lanes, dtype=np.uint64, endpoint=False)
        if width < 64
        else rng.integers(0, 2**64, lanes, dtype=np.uint64)
    )
    kind = n * 8 // lanes
    if scalar in FLOAT_EDGES:
        normal = rng.standard_normal(lanes) * 2.0 ** rng.integers(-4, 5, lanes)
        short = np.round(normal * 8) / 8
        packed = [_encode(v, scalar) for v in (normal, short)]
        result = np.where(kind < 4, chosen, np.where(kind < 6, random, np.where(kind < 7, *packed)))
        if place == 2:
            # Addends that nearly cancel the product of the first two operands.
            with np.errstate(all="ignore"):
                first, second = (_decode(values(ptx_type, i), scalar) for i in (0, 1))
                near = _encode(-(first * second), scalar) + rng.integers(-2, 3, lanes).astype(np.uint64)
            result = np.where(kind >= 6, near, result)
    else:
        small = rng.integers(0, 70, lanes, dtype=np.uint64)
        result = np.where(kind < 4, chosen, np.where(kind < 6, random, np.where(kind < 7, small, ~small)))
    return np.ascontiguousarray(result.astype(f"u{width // 8}")).view(dtype)


def _decode(bits: np.ndarray, scalar: str) -> np.ndarray:
    parts = bits.view(f"u{type_bits(scalar) // 8}")
    if scalar == "bf16":
        numbers = (parts.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        numbers = parts.view(f"f{type_bits(scalar) // 8}")
    with np.errstate(invalid="ignore"):
        return numbers.astype(np.float64)


def _encode(numbers: np.ndarray, scalar: str) -> np.ndarray:
    if scalar == "f64":
        return numbers.view(np.uint64)
    if scalar == "f16":
        return numbers.astype(np.float16).view(np.uint16).astype(np.uint64)
    bits = numbers.astype(np.float32).view(np.uint32).astype(np.uint64)
    return bits >> np.uint64(16) if scalar == "bf16" else bits


def inputs(opcode: str, op: Operation, table: int | None) -> list[np.ndarray]:
    """Operands within the range the manual defines."""
    types = [*op.operand_types, *(["pred"] if op.reads_carry else [])]
    operands = [values(t, i) for i, t in enumerate(types)]
    if opcode in ("bfe", "bfi"):
        operands[-2:] = [v & np.uint32(0xFF) for v in operands[-2:]]
    if opcode == "fns":
        operands[1] = operands[1] & np.uint32(31)
        operands[2] = (operands[2].astype(np.int8) >> 2).astype(np.int32).view(np.uint32)
    if table is not None:
        operands[3] = np.full(LANES, table, np.uint32)
    return operands


class Gpu:
    """As much of the driver as the test needs, through its C interface."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.driver, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def load(self, text: str) -> ctypes.c_void_p | None:
        """The module, or None where the driver refuses it."""
        module = ctypes.c_void_p()
        code = self.driver.cuModuleLoadData(ctypes.byref(module), text.encode() + b"\0")
        return module if code == 0 else None

    def run(self, module: ctypes.c_void_p, name: str, operands: list[np.ndarray], results: list[str]) -> list:
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        outputs = [np.zeros(LANES, np.uint8 if t == "pred" else bits_dtype(t)) for t in results]
        arrays = [np.ascontiguousarray(a).view(np.uint8) for a in (*operands, *outputs)]
        pointers = []
        for array in arrays:
            pointer = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(array.nbytes))
            data = array.ctypes.data_as(ctypes.c_void_p)
            self.call("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(array.nbytes))
            pointers.append(pointer)
        packed = (ctypes.c_void_p * len(pointers))(*[ctypes.addressof(p) for p in pointers])
        self.call("cuLaunchKernel", function, LANES // 128, 1, 1, 128, 1, 1, 0, None, packed, None)
        self.call("cuCtxSynchronize")
        for array, pointer in zip(outputs, pointers[len(operands) :]):
            data = array.ctypes.data_as(ctypes.c_void_p)
            self.call("cuMemcpyDtoH_v2", data, pointer, ctypes.c_size_t(array.nbytes))
        for pointer in pointers:
            self.call("cuMemFree_v2", pointer)
        return [a.astype(bool) if t == "pred" else a for a, t in zip(outputs, results)]


def loaded(gpu: Gpu, opcode: str, cases: list[Spelling]) -> Iterator[tuple[ctypes.c_void_p, str, Spelling]]:
    """Modules with these cases, halved until what the driver refuses stands alone."""
    kernels = [kernel(f"k{i}", opcode, m, op, table) for i, (m, op, table) in enumerate(cases)]
    module = gpu.load(module_text(kernels))
    if module is not None:
        for i, case in enumerate(cases):
            yield module, f"k{i}", case
        gpu.call("cuModuleUnload", module)
    elif len(cases) > 1:
        middle = len(cases) // 2
        yield from loaded(gpu, opcode, cases[:middle])
        yield from loaded(gpu, opcode, cases[middle:])


def is_nan(bits: np.ndarray, scalar: str) -> np.ndarray:
    return np.isnan(_decode(bits, scalar))


def relative(bits: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda exact, _: np.abs(exact) * 2.0**bits


# Error the manual allows against the exact result: f(result, first operand).
ALLOWED: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "div": relative(-22),
    "rcp": relative(-23),
    "sqrt": relative(-22),
    "rsqrt": relative(-22),
    "ex2": relative(-21),
    "tanh": relative(-10),
    "lg2": lambda exact, x: np.maximum(np.abs(exact) * 2.0**-21, np.where((x > 0.5) & (x < 2), 2.0**-21, 0)),
    "sin": lambda _, x: np.where(np.abs(x) <= np.pi, 2.0**-20, 3.0),
    "cos": lambda _, x: np.where(np.abs(x) <= np.pi, 2.0**-20, 3.0),
}
PRECISION = {
    "f16": (-9, 2.0**-24),
    "bf16": (-6, 2.0**-132),
    "f32": (-22, 2.0**-148),
    "f64": (-20, 2.0**-1022),
}


def assert_close(opcode: str, scalar: str, ours: np.ndarray, theirs: np.ndarray, first: np.ndarray) -> None:
    """Both within the allowed error of each other, NaN and infinity in the same places."""
    assert np.array_equal(is_nan(ours, scalar), is_nan(theirs, scalar))
    a, b = _decode(ours, scalar), _decode(theirs, scalar)
    with np.errstate(all="ignore"):
        last, smallest = PRECISION[scalar]
        allowed = ALLOWED[opcode](a, _decode(first, scalar)) + np.abs(a) * 2.0**last + smallest
        close = (np.abs(a - b) <= allowed) | (a == b) | np.isnan(a)
    assert close.all(), (opcode, scalar, a[~close][:5], b[~close][:5])


def unlike(opcode: str, modifiers: tuple[str, ...], operands: list[np.ndarray]) -> np.ndarray | None:
    """Lanes where we follow the manual and an H100 does not.

    Directed f32 to f16 conversions do not flush there, and conversion to tf32 with ties away passes bits of
    NaN on.
    """
    if opcode == "cvt" and modifiers[0] in ("rm", "rp") and {"ftz", "f16", "f32"} <= set(modifiers):
        return (operands[0] & np.uint32(0x7F800000)) == 0
    if opcode == "cvt" and modifiers[0] == "rna":
        return is_nan(operands[0], "f32")
    return None


def same_nan(opcode: str, result_type: str, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray | bool:
    """Lanes where both are NaN and the manual leaves open which of the operands' NaN is handed on.

    PTX ISA 9.7.3: f64 instructions support NaN payloads; nothing says whose wins, and fma takes another one
    with another driver. NaN of the shorter types are canonical in fact, and their bits are compared.
    """
    if result_type != "f64" or opcode in ("copysign", "selp", "slct"):
        return False
    return is_nan(ours, "f64") & is_nan(theirs, "f64")


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return Gpu()


@pytest.mark.gpu
@pytest.mark.parametrize("opcode", sorted(set(FORMS) - {"mov"}))
def test_instruction_agrees_with_hardware(gpu: Gpu, opcode: str) -> None:
    compared = 0
    for module, name, (modifiers, op, table) in loaded(gpu, opcode, list(spellings(opcode))):
        operands = inputs(opcode, op, table)
        results = [*op.result_types, *(["pred"] if op.writes_carry else [])]
        given = [v.astype(np.uint8) if v.dtype == bool else v for v in operands]
        theirs = gpu.run(module, name, given, results)
        if table is not None:
            operands[3] = operands[3][:1]
        ours = [np.broadcast_to(r, LANES) for r in op.fn(*operands)]
        if opcode == "setp" and modifiers[-1] in ("f16", "bf16"):
            theirs, ours = theirs[:1], ours[:1]
        compared += 1
        if {"approx", "full"} & set(modifiers):
            scalar = op.result_types[0].removesuffix("x2")
            assert_close(opcode, scalar, np.ascontiguousarray(ours[0]), theirs[0], operands[0])
            continue
        aside = unlike(opcode, modifiers, operands)
        for result_type, mine, other in zip(results, ours, theirs):
            different = mine != other if aside is None else (mine != other) & ~aside
            different &= ~np.asarray(same_nan(opcode, result_type, np.ascontiguousarray(mine), other))
            at = np.flatnonzero(different)[:3]
            shown = [tuple(hex(int(v[i % v.size])) for v in (*operands, other, mine)) for i in at]
            assert not at.size, f"{opcode}.{'.'.join(modifiers)}: operands, hardware, interpreter: {shown}"
    if compared == 0:
        pytest.skip("this device has no such instruction")
