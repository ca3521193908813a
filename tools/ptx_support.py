"""Write docs/ptx-support.md: which PTX instructions the host device runs, by type and modifier.

    python tools/ptx_support.py           write the page
    python tools/ptx_support.py --check   exit code 1 if the committed page is not what would be written

Instructions on registers are listed from the forms the interpreter matches them with. The others (memory,
control, warps) translate themselves, so every combination listed for them here is translated; one that the
interpreter refuses stops this script with its message.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from cuda_async.driver.host._memory import HostMemory
from cuda_async.driver.host.ptx import parse_module
from cuda_async.driver.host.ptx._semantics import FORMS
from cuda_async.driver.host.ptx._semantics_forms import Form, form

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ptx-support.md"

SECTIONS = {
    "Integer arithmetic": "add sub mul mad mul24 mad24 sad div rem abs neg min max dp4a dp2a addc subc madc",
    "Floating point": "fma rcp sqrt rsqrt sin cos lg2 ex2 tanh testp copysign",
    "Comparison and selection": "set setp selp slct",
    "Logic, shifts and bit fields": "and or xor not cnot lop3 shl shr shf prmt bfe bfi szext bmsk",
    "Bit counting": "popc clz bfind brev fns",
    "Moves and conversions": "mov cvt",
    "Video": "vadd vsub vabsdiff vmin vmax vset vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 vset2 vadd4 vsub4 vavrg4 "
    "vabsdiff4 vmin4 vmax4 vset4",
}
HEADER = "| instruction | types | modifiers |\n|---|---|---|\n"
TYPE_SLOTS = {"type", "dtype", "atype", "btype", "stype", "convert"}
LITERAL_TYPES = {"b16", "b32", "u32", "s32", "f32", "f64", "f16x2", "bf16x2", "tf32", "pred", "ue8m0x2"}
INTRODUCTION = """\
# PTX on the host device

Written by `tools/ptx_support.py`; a test holds that it is up to date. A launch of a kernel with any other
instruction is refused with a `CompileError` that names the instruction and its line. PTX 3.0 to 9.x is read, for
any `sm_` target.

How to read the tables: one modifier of each group in the last column, in any order; groups in braces are
optional. Of types with an arrow the result's comes first. Results are NVIDIA's, bit by bit (compared with an
H100), including rounding modes, subnormals, saturation and NaN. Exceptions are the approximate instructions
(`.approx`, `.full`), which are computed more accurately than the hardware does, and what the PTX manual leaves
undefined. Matrix products are exact sums, rounded once; hardware sums in an order that it does not promise.
`wgmma` is listed with 8 columns and takes every multiple of 8 up to 256. `discard` does nothing: the contents,
undefined then, stay as they were. So do the instructions that steer caches.

Calls may go through pointers, to themselves, and to functions with `...`. Of functions defined elsewhere there
are `vprintf`, `__assertfail`, `malloc` and `free`; the heap has 8 MiB, as CUDA's by default, one for each module,
and goes with it. Module-level `.local` variables are refused.
"""


@dataclass(frozen=True)
class Probe:
    """Instructions that are not functions of registers, and operands to translate them with."""

    form: Form
    operands: str
    """`{d}` and `{a}` are registers of the type picked."""


def probe(opcodes: str, syntax: str, operands: str, **choices: str) -> list[Probe]:
    """One probe per opcode."""
    made = form(opcodes, syntax, lambda picks: (_ for _ in ()).throw(NotImplementedError), **choices)
    return [Probe(item, operands) for item in made]


_DATA = "b8 u8 s8 b16 u16 s16 b32 u32 s32 f32 b64 u64 s64 f64"
_VECTOR4 = "b8 u8 s8 b16 u16 s16 b32 u32 s32 f32"
_ORDER = "weak volatile relaxed acquire"
_SCOPE = "cta cluster gpu sys"
_SPACES = "global shared shared::cta shared::cluster local const"

_SHARED = "shared shared::cta shared::cluster"
_INTEGERS = "u32 s32 u64 s64"
_HALVES = "f16 f16x2 bf16 bf16x2"
_ADDED = "u32 s32 u64 s64 f32 f64"
_BOTH = "global shared"

_FOUR = "{{word0, word1, word2, word3}}"
_EIGHT = "{{word0, word1, word2, word3, word4, word5, word6, word7}}"
_MMA_F16 = f"{_FOUR}, {_FOUR}, {{{{word4, word5}}}}, {_FOUR}"
_MMA_SMALL = f"{_FOUR}, {{{{word0, word1}}}}, {{{{word4}}}}, {_FOUR}"
_MMA_HALF = "{{word6, word7}}, " + f"{_FOUR}, {{{{word4, word5}}}}, " + "{{word6, word7}}"

# fmt: off
PROBES: dict[str, list[Probe]] = {
    "Memory": [
        *probe("ld", "{.order}{.scope}{.space}{.cache}.type", "{d}, [address]", type=_DATA,
               order=_ORDER, scope=_SCOPE, space=_SPACES, cache="ca cg cs lu cv"),
        *probe("ld", "{.space}.v2.type", "{{{d}, {e}}}, [address]", space=_SPACES, type=_DATA),
        *probe("ld", "{.space}.v4.type", "{{{d}, {e}, {f}, {g}}}, [address]", space=_SPACES, type=_VECTOR4),
        *probe("ld", ".global.nc{.cache}.type", "{d}, [address]", cache="ca cg cs", type=_DATA),
        *probe("ld", ".param.type", "{d}, [parameter]", type=_DATA),
        *probe("ldu", ".global.type", "{d}, [address]", type=_DATA),
        *probe("st", "{.order}{.scope}{.space}{.cache}.type", "[address], {a}", type=_DATA,
               order="weak volatile relaxed release", scope=_SCOPE, cache="wb cg cs wt",
               space=f"global {_SHARED} local"),
        *probe("st", "{.space}.v2.type", "[address], {{{a}, {b}}}", space=f"{_BOTH} local", type=_DATA),
        *probe("st", "{.space}.v4.type", "[address], {{{a}, {b}, {c}, {e}}}", type=_VECTOR4,
               space=f"{_BOTH} local"),
        *probe("cp", ".async.ca.shared.global", "[small], [address], 8"),
        *probe("cp", ".async.cg.shared.global", "[small], [address], 16"),
        *probe("cp", ".async.commit_group", ""),
        *probe("cp", ".async.wait_group", "0"),
        *probe("cp", ".async.wait_all", ""),
        *probe("membar", ".scope", "", scope="cta gl sys"),
        *probe("fence", "{.order}.scope", "", order="sc acq_rel", scope=_SCOPE),
        *probe("prefetch", ".space.level", "[address]", space="global local", level="L1 L2"),
        *probe("discard", "{.space}.L2", "[address], 128", space="global"),
        *probe("alloca", ".type", "{d}, {a}, 16", type="u32 u64"),
        *probe("stacksave", ".type", "{d}", type="u32 u64"),
        *probe("stackrestore", ".type", "{a}", type="u32 u64"),
    ],
    "Addresses": [
        *probe("cvta", "{.to}.space.type", "{d}, {a}", space="global shared local const", type="u64"),
        *probe("isspacep", ".space", "flag, address", space=f"global {_SHARED} local const"),
        *probe("mapa", "{.space}.type", "{d}, {a}, word0", space="shared::cluster", type="u32 u64"),
        *probe("getctarank", "{.space}.type", "word1, {a}", space="shared::cluster", type="u32 u64"),
    ],
    "Atomics": [
        *probe("atom", "{.order}{.scope}{.space}.add.type", "{d}, [address], {a}", type=_ADDED,
               order="relaxed acquire release acq_rel", scope=_SCOPE, space=f"global {_SHARED}"),
        *probe("atom", "{.space}.add.noftz.type", "{d}, [address], {a}", space=_BOTH, type=_HALVES),
        *probe("atom", "{.space}.op.type", "{d}, [address], {a}", space=_BOTH, op="min max", type=_INTEGERS),
        *probe("atom", "{.space}.op.type", "{d}, [address], {a}", space=_BOTH, op="and or xor exch",
               type="b32 b64"),
        *probe("atom", "{.space}.op.u32", "word1, [address], word0", space=_BOTH, op="inc dec"),
        *probe("atom", "{.space}.cas.type", "{d}, [address], {a}, {b}", space=_BOTH, type="b16 b32 b64"),
        *probe("red", "{.order}{.scope}{.space}.add.type", "[address], {a}", type=_ADDED,
               order="relaxed release", scope=_SCOPE, space=f"global {_SHARED}"),
        *probe("red", "{.space}.add.noftz.type", "[address], {a}", space=_BOTH, type=_HALVES),
        *probe("red", "{.space}.op.type", "[address], {a}", space=_BOTH, op="min max", type=_INTEGERS),
        *probe("red", "{.space}.op.type", "[address], {a}", space=_BOTH, op="and or xor", type="b32 b64"),
        *probe("red", "{.space}.op.u32", "[address], word0", space=_BOTH, op="inc dec"),
    ],
    "Warps": [
        *probe("shfl", ".sync.mode.b32", "word1|flag, word2, word0, 31, -1", mode="up down bfly idx"),
        *probe("shfl", ".mode.b32", "word1|flag, word2, word0, 31", mode="up down bfly idx"),
        *probe("vote", ".sync.mode.pred", "flag, flag, -1", mode="all any uni"),
        *probe("vote", ".sync.ballot.b32", "word0, flag, -1"),
        *probe("match", ".any.sync.type", "word0, {a}, -1", type="b32 b64"),
        *probe("match", ".all.sync.type", "word0|flag, {a}, -1", type="b32 b64"),
        *probe("redux", ".sync.op.type", "{d}, {a}, -1", op="add min max", type="u32 s32"),
        *probe("redux", ".sync.op.b32", "word0, word1, -1", op="and or xor"),
        *probe("activemask", ".b32", "word0"),
        *probe("elect", ".sync", "word0|flag, -1"),
    ],
    "Barriers and control": [
        *probe("bar", ".sync", "0"),
        *probe("bar", ".sync", "1, 64"),
        *probe("bar", ".arrive", "1, 64"),
        *probe("bar", ".red.popc.u32", "word0, 0, flag"),
        *probe("bar", ".red.op.pred", "flag, 0, flag", op="and or"),
        *probe("bar", ".warp.sync", "-1"),
        *probe("barrier", ".sync{.aligned}", "0"),
        *probe("barrier", ".cluster.arrive{.order}{.aligned}", "", order="release relaxed"),
        *probe("barrier", ".cluster.wait{.acquire}{.aligned}", ""),
        *probe("bra", "{.uni}", "end"),
        *probe("brx", ".idx", "word0, targets"),
        *probe("call", "{.uni}", "helper"),
        *probe("ret", "{.uni}", ""),
        *probe("exit", "", ""),
        *probe("trap", "", ""),
        *probe("nanosleep", ".u32", "word0"),
    ],
    "Matrices": [
        *probe("mma", ".sync.aligned.shape.row.col.f32.f16.f16.f32", _MMA_F16, shape="m16n8k16"),
        *probe("mma", ".sync.aligned.shape.row.col.f32.bf16.bf16.f32", _MMA_F16, shape="m16n8k16"),
        *probe("mma", ".sync.aligned.shape.row.col.f32.f16.f16.f32", _MMA_SMALL, shape="m16n8k8"),
        *probe("mma", ".sync.aligned.shape.row.col.f32.bf16.bf16.f32", _MMA_SMALL, shape="m16n8k8"),
        *probe("mma", ".sync.aligned.shape.row.col.f16.f16.f16.f16", _MMA_HALF, shape="m16n8k16"),
        *probe("mma", ".sync.aligned.shape.row.col.f32.tf32.tf32.f32", _MMA_F16, shape="m16n8k8"),
        *probe("mma", ".sync.aligned.shape.row.col.f32.tf32.tf32.f32", _MMA_SMALL, shape="m16n8k4"),
        *probe("mma", ".sync.aligned.shape.row.col{.satfinite}.s32.left.right.s32", _MMA_F16,
               shape="m16n8k32", left="s8 u8", right="s8 u8"),
        *probe("mma", ".sync.aligned.shape.row.col{.satfinite}.s32.left.right.s32", _MMA_SMALL,
               shape="m16n8k16", left="s8 u8", right="s8 u8"),
        *probe("mma", ".sync.aligned.shape.row.col.f32.left.right.f32", _MMA_F16,
               shape="m16n8k32", left="e4m3 e5m2", right="e4m3 e5m2"),
        *probe("mma", ".sync.aligned.shape.row.col.f64.f64.f64.f64",
               "{{long0, long1}}, {{long2}}, {{long3}}, {{long0, long1}}", shape="m8n8k4"),
        *probe("ldmatrix", ".sync.aligned.m8n8.x1{.trans}{.shared}.b16", "{{word0}}, [address]"),
        *probe("ldmatrix", ".sync.aligned.m8n8.x2{.trans}{.shared}.b16", "{{word0, word1}}, [address]"),
        *probe("ldmatrix", ".sync.aligned.m8n8.x4{.trans}{.shared}.b16", f"{_FOUR}, [address]"),
        *probe("stmatrix", ".sync.aligned.m8n8.x1{.trans}{.shared}.b16", "[address], {{word0}}"),
        *probe("stmatrix", ".sync.aligned.m8n8.x2{.trans}{.shared}.b16", "[address], {{word0, word1}}"),
        *probe("stmatrix", ".sync.aligned.m8n8.x4{.trans}{.shared}.b16", f"[address], {_FOUR}"),
        *probe("movmatrix", ".sync.aligned.m8n8.trans.b16", "word0, word1"),
        *probe("wmma", ".load.part.sync.aligned.layout.shape{.space}.f16", f"{_EIGHT}, [address], word0",
               part="a b", layout="row col", shape="m16n16k16 m8n32k16 m32n8k16", space=_BOTH),
        *probe("wmma", ".load.c.sync.aligned.layout.shape{.space}.f32", f"{_EIGHT}, [address], word0",
               layout="row col", shape="m16n16k16 m8n32k16 m32n8k16", space=_BOTH),
        *probe("wmma", ".mma.sync.aligned.left.right.shape.f32.f32",
               f"{_EIGHT}, {_EIGHT}, {_EIGHT}, {_EIGHT}", left="row", right="col",
               shape="m16n16k16 m8n32k16 m32n8k16"),
        *probe("wmma", ".store.d.sync.aligned.layout.shape{.space}.f32", f"[address], {_EIGHT}, word0",
               layout="row col", shape="m16n16k16 m8n32k16 m32n8k16", space=_BOTH),
        *probe("wgmma", ".mma_async.sync.aligned.shape.f32.f16.f16", f"{_FOUR}, long0, long1, flag, 1, 1, 0, 0",
               shape="m64n8k16"),
        *probe("wgmma", ".mma_async.sync.aligned.shape.f32.bf16.bf16",
               f"{_FOUR}, long0, long1, flag, 1, 1, 0, 0", shape="m64n8k16"),
        *probe("wgmma", ".mma_async.sync.aligned.shape.f32.tf32.tf32", f"{_FOUR}, long0, long1, flag, 1, 1",
               shape="m64n8k8"),
        *probe("wgmma", ".mma_async.sync.aligned.shape.f32.left.right", f"{_FOUR}, long0, long1, flag, 1, 1",
               shape="m64n8k32", left="e4m3 e5m2", right="e4m3 e5m2"),
        *probe("wgmma", ".mma_async.sync.aligned.shape.s32.left.right", f"{_FOUR}, long0, long1, flag",
               shape="m64n8k32", left="s8 u8", right="s8 u8"),
        *probe("wgmma", ".operation.sync.aligned", "", operation="fence commit_group"),
        *probe("wgmma", ".wait_group.sync.aligned", "0"),
    ],
    "Asynchronous barriers and copies": [
        *probe("mbarrier", ".init{.space}.b64", "[address], 1", space=_SHARED),
        *probe("mbarrier", ".inval{.space}.b64", "[address]", space=_SHARED),
        *probe("mbarrier", ".arrive{.order}{.scope}{.space}.b64", "_, [address]", order="release relaxed",
               scope="cta cluster", space=_SHARED),
        *probe("mbarrier", ".arrive.expect_tx{.space}.b64", "_, [address], word0", space=_SHARED),
        *probe("mbarrier", ".arrive_drop{.space}.b64", "long0, [address]", space=_SHARED),
        *probe("mbarrier", ".wait{.space}.b64", "flag, [address], long0", wait="test_wait try_wait",
               space=_SHARED),
        *probe("mbarrier", ".wait.parity{.space}.b64", "flag, [address], word0", wait="test_wait try_wait",
               space=_SHARED),
        *probe("mbarrier", ".pending_count.b64", "word0, long0"),
        *probe("cp", ".async.mbarrier.arrive{.noinc}.space.b64", "[address]", space="shared shared::cta"),
        *probe("cp", ".async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
               "[small], [address], word0, [address]"),
        *probe("cp", ".async.bulk.global.shared::cta.bulk_group", "[address], [small], word0"),
        *probe("cp", ".async.bulk.commit_group", ""),
        *probe("cp", ".async.bulk.wait_group{.read}", "0"),
    ],
}
# fmt: on

_REGISTERS = {1: "flag", 8: "half", 16: "half", 32: "word", 64: "long"}


def statement(item: Probe, picks: dict[str, str], spelling: str) -> str:
    """The instruction with registers of the type it was spelled with."""
    ptx_type = picks.get("type", "b32")
    bits = 32 if ptx_type.endswith("x2") else int("".join(c for c in ptx_type if c.isdigit()))
    names = {letter: f"{_REGISTERS[bits]}{i}" for i, letter in enumerate("dabcefg")}
    return f"{spelling} {item.operands.format(**names)};".replace(" ;", ";")


def probe_spellings(item: Form) -> Iterator[dict[str, str]]:
    """Every required choice with each optional one by itself, and with none."""
    required = [s for s in item.slots if not s.optional]
    for chosen in product(*(s.choices for s in required)):
        base = {s.name: c for s, c in zip(required, chosen)}
        yield base
        for slot in item.slots:
            if slot.optional:
                for choice in slot.choices:
                    picks = {**base, slot.name: choice}
                    if slot.name == "order" and choice in ("relaxed", "acquire", "release", "acq_rel"):
                        picks |= {s.name: "gpu" for s in item.slots if s.name == "scope"}
                    yield picks


def module_of(statements: list[str]) -> str:
    """A kernel with the statements, each skipped by a branch so that control flow stays whole."""
    lines = []
    for i, text in enumerate(statements):
        lines += [f"@flag0 bra skip{i};", text, f"skip{i}:"]
    body = "\n".join(lines)
    return f""".version 9.0
.target sm_90
.address_size 64
.func helper() {{ ret; }}
.visible .entry kernel(.param .u64 parameter) {{
.reg .pred flag, flag0; .reg .b16 half<8>; .reg .b32 word<8>; .reg .b64 long<8>; .reg .b64 address;
.reg .b32 small;
setp.eq.u32 flag0, word0, 0;
targets: .branchtargets end;
{body}
end:
ret; }}
"""


def verify_probes() -> None:
    """Translate every combination the page will claim.

    Raises:
        CompileError: the interpreter refuses one; names it.
    """
    memory = HostMemory(1 << 20)
    statements = []
    for probes in PROBES.values():
        for item in probes:
            for picks in probe_spellings(item.form):
                chosen = [picks[s.name] for s in item.form.slots if s.name in picks]
                spelling = ".".join((item.form.opcode, *chosen))
                statements.append(statement(item, picks, spelling))
    loaded = parse_module(module_of(statements), "ptx-support").load(memory)
    loaded.functions["kernel"].prepare()
    loaded.unload()


def modifier_text(item: Form) -> str:
    """All slots but types, in the manual's notation."""
    parts = []
    for slot in item.slots:
        if is_type(slot.name):
            continue
        text = " ".join(f".{choice}" for choice in slot.choices)
        if slot.optional:
            parts.append(f"{{{text}}}")
        else:
            parts.append(f"({text})" if " " in text else text)
    return " ".join(parts)


def is_type(name: str) -> bool:
    return name in TYPE_SLOTS or name in LITERAL_TYPES


def type_text(item: Form) -> str:
    """The types, of the result first where there are several."""
    groups = [" ".join(s.choices) for s in item.slots if is_type(s.name)]
    return " ← ".join(groups) if item.opcode in ("cvt", "set") else ", ".join(groups)


def row(item: Form) -> str:
    operands = f" ({item.operands} operands)" if item.operands else ""
    modifiers = modifier_text(item)
    notes = [f"`{modifiers}`"] if modifiers else []
    notes += [item.note] if item.note else []
    return f"| `{item.opcode}`{operands} | {type_text(item)} | {'; '.join(notes)} |\n"


def page() -> str:
    """The whole page."""
    verify_probes()
    parts = [INTRODUCTION]
    named = {opcode for text in SECTIONS.values() for opcode in text.split()}
    assert named == set(FORMS), f"in no section: {named ^ set(FORMS)}"
    for title, opcodes in SECTIONS.items():
        parts.append(f"\n## {title}\n\n{HEADER}")
        parts += [row(item) for opcode in opcodes.split() for item in FORMS[opcode]]
    for title, probes in PROBES.items():
        parts.append(f"\n## {title}\n\n{HEADER}")
        parts += dict.fromkeys(row(item.form) for item in probes)
    return "".join(parts)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE.name} is out of date; run python tools/ptx_support.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
