"""PTX, module images, Tile IR bytecode and IR text, damaged: the documented error or a result, in bounded time."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from damage import FAST, LONG, damaged_bytes, damaged_text, survives
from hypothesis import given

from cuda_async.driver._ptx_signature import read_ptx_header, read_ptx_signatures
from cuda_async.driver.cuda._images import cubin_architecture, fatbin_contents, sniff_image
from cuda_async.driver.host.ptx import parse_module
from cuda_async.errors import CompileError
from tilekern import ir, lowering
from tilekern.errors import ParseError
from tilekern.tileir import decode_module, print_module
from tilekern.tileir._encoder import Section
from tilekern.tileir.errors import DecodeError

ROOT = Path(__file__).parents[2]

IR = [
    "func @k(%n: i32, %x: f32) num_ctas=2 {\n  %c = compare %n, %n predicate=lt : bool\n"
    "  %r = if %c : f32 {\n    yield [%x]\n  } else {\n    %y = add %x, %x rounding=zero : f32\n    yield [%y]\n  }\n"
    "  for %n, %n, %n, [] (%i: i32) {\n    continue []\n  }\n  return\n}",
    "func @t(%x: tensor<?x4xf32, [4, 1]>) {\n  return\n}",
]
TYPES = [
    "tile<4x8xf32>",
    "tensor<?x4xf32, [1, ?]>",
    "view<4x8, tensor<?x4xf32, [4, 1]>, order=[1, 0], padding=nan, steps=[2, 2]>",
    "sparse_view<4x8, tensor<?x4xf32, [4, 1]>, axis=1>",
    "tile<2xptr<i32>>",
]
BYTECODE = [
    lowering.lower(ir.parse("func @k(%n: i32) {\n  %a = add %n, %n : i32\n  return\n}")),
    lowering.lower(
        ir.parse("func @k(%n: i32) {\n  for %n, %n, %n, [] (%i: i32) {\n    continue []\n  }\n  return\n}")
    ),
]
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"
PTX = [
    (ROOT / "benchmarks" / "kernels" / "small.ptx").read_text(encoding="utf-8"),
    HEADER
    + ".global .align 4 .b32 t[2][3] = {{1, 2, 3}, {4}};\n.visible .entry k(.param .align 8 .b8 p[24])\n"
    ".reqntid 32, 1, 1\n{\n.reg .pred %p<3>;\n.reg .b32 %r<9>;\n.shared .b8 s[64];\nL: mov.u32 %r1, %tid.x;\n"
    "setp.lt.u32 %p1, %r1, 7;\n@!%p1 bra L;\nbar.sync 0;\nret;\n}\n",
]


def elf(sections: int, segments: int) -> bytes:
    """A cubin's headers, with nothing in it."""
    ident = b"\x7fELF" + bytes([2, 1, 1, 0x41, 8]) + bytes(7)
    fields = (2, 190, 1, 0, 64, 64 + 56 * segments, 0x5A00, 64, 56, segments, 64, sections, 0)
    return (
        ident
        + struct.pack("<HHIQQQIHHHHHH", *fields)
        + struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 16, 16, 8) * segments
        + struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, 64, 16, 0, 0, 1, 0) * sections
        + bytes(64)
    )


FATBIN = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 200) + b"".join(
    struct.pack("<HHIQ", kind, 1, 64, 36) + bytes(12) + struct.pack("<I", 80) + bytes(68) for kind in (1, 2)
)
IMAGES = [elf(3, 2), elf(0, 0), FATBIN, HEADER.encode(), b"// from\n/* nowhere */ .version 8.0\n"]


def read_bytecode(data):
    print_module(decode_module(data), locations=True)


def look_at_image(data):
    cubin_architecture(data)
    fatbin_contents(data)
    sniff_image(data, "image")


def read_headers(text):
    read_ptx_header(text)
    read_ptx_signatures(text)


def read_ir(text):
    str(ir.parse(text))


PARSERS = {
    "bytecode": (damaged_bytes(BYTECODE), read_bytecode, DecodeError),
    "image": (damaged_bytes(IMAGES), look_at_image, CompileError),
    "ptx": (damaged_text(PTX), lambda text: parse_module(text, "damaged.ptx"), CompileError),
    "ptx headers": (damaged_text(PTX), read_headers, ()),
    "ir": (damaged_text(IR), read_ir, ParseError),
    "ir type": (damaged_text(TYPES), lambda text: str(ir.parse_type(text)), ParseError),
}


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize(
    "effort", [pytest.param(FAST, id="fast"), pytest.param(LONG, id="long", marks=pytest.mark.slow)]
)
def test_damaged_input_gives_the_documented_error(name, effort):
    inputs, parse, allowed = PARSERS[name]

    @effort
    @given(inputs)
    def check(data):
        survives(parse, data, allowed)

    check()


DEEP = 20_000

HOSTILE = {
    "ptx blocks": ("ptx", HEADER + ".visible .entry k() {" + "{" * DEEP + "}" * DEEP + "ret;}"),
    "ptx parentheses": ("ptx", HEADER + ".global .b32 x = " + "(" * DEEP + "1" + ")" * DEEP + ";"),
    "ptx initial values": ("ptx", HEADER + ".global .b32 x[4] = {" + "{" * DEEP + "1" + "}" * DEEP + "};"),
    "ptx long number": ("ptx", HEADER + ".global .b8 x[" + "9" * 5000 + "];"),
    "ptx long version": ("ptx", ".version " + "9" * 5000 + ".0\n.target sm_80\n"),
    "ptx large parameters": ("ptx", HEADER + ".visible .entry k(.param .b8 p[4000000000000]) { ret; }"),
    "ptx open comment": ("ptx", "/*" * 100_000),
    "ir blocks": ("ir", "func @k(%c: bool) {" + "if %c {" * DEEP),
    "ir lists": ("ir", "func @k(%c: f32) { %y = add %c, %c rounding=" + "[" * DEEP),
    "ir pointers": ("ir type", "tile<" + "ptr<" * DEEP),
    "ir long number": ("ir type", "tile<" + "9" * 5000 + "xf32>"),
    "ir bad string": ("ir", 'func @k(%c: f32) { %y = add %c, %c rounding="\\x" : f32\nreturn }'),
    "ir operand as attribute": ("ir", "func @k(%c: f32) { %y = add %c, %c lhs=3 : f32\nreturn }"),
    "image of comments": ("image", b"/**/" * 300_000),
    "bytecode of continued bytes": ("bytecode", BYTECODE[0][:12] + b"\x82" + b"\xff" * 2_000_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_made_to_hurt(name):
    """Nesting, lengths and numbers made to overflow a stack, to take squares of time, or all memory."""
    kind, data = HOSTILE[name]
    _, parse, allowed = PARSERS[kind]
    with pytest.raises(allowed):
        survives(parse, data, ())


def test_headers_of_hostile_ptx():
    for kind, text in HOSTILE.values():
        if kind == "ptx":
            survives(read_headers, text, ())


def test_fatbin_of_tiny_entries():
    entries = struct.pack("<HHIQ", 2, 1, 1, 0) * 20_000
    survives(fatbin_contents, struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40) + entries, ())


def test_function_types_do_not_nest():
    """Each could have the one before twice, and its text would double."""
    count = 64
    types = [bytes([16, 0, 0])] + [bytes([16, 2, i, i, 0]) for i in range(count - 1)]
    offsets = [sum(map(len, types[:i])) for i in range(count)]
    table = (
        bytes([count]) + b"\xcb" * 3 + b"".join(o.to_bytes(4, "little") for o in offsets) + b"".join(types)
    )
    length = bytes([len(table) & 0x7F | 0x80, len(table) >> 7])
    head = BYTECODE[0][:12] + bytes([0x80 | Section.TYPE]) + length + bytes([4])
    data = head + b"\xcb" * (-len(head) % 4) + table + bytes([Section.END])
    with pytest.raises(DecodeError, match="a function type is used as the type of a value"):
        decode_module(data)
