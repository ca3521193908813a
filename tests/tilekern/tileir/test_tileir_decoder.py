"""Reading bytecode: round trips, and files that are damaged."""

import random
import sys

import pytest
from tileir_op_samples import SAMPLES, kernel

from tilekern.tileir import (
    SUPPORTED_VERSIONS,
    Block,
    ModuleWriter,
    Region,
    SourceLocation,
    Version,
    decode_module,
    encode_module,
    print_module,
    types,
)
from tilekern.tileir._debug import CallSite, Location
from tilekern.tileir._operation import make_operation
from tilekern.tileir.errors import DecodeError

SMALLEST = bytes.fromhex(
    "7f54696c6549520 00d030000 820908cb010000020003 5c0000 850b0401cbcbcb00000000100000"
    "810904cbcb01cbcbcb000000006b00".replace(" ", "")
)


def located(version: Version) -> bytes:
    """Two kernels, one with locations (also through two inlined calls), one without."""
    module = ModuleWriter(version, producer="tests")
    fn = module.function("first", [], location=SourceLocation("src/first.py", 4))
    outer = SourceLocation("src/first.py", 6, 3)
    middle = SourceLocation("src/lib.py", 20, 9, function="middle", caller=outer)
    with fn.at(outer):
        fn.make_token()
        with fn.at(SourceLocation("/abs/deep.py", 1, 1, function="deep", caller=middle)):
            fn.make_token()
    fn.return_()
    module.function("second", []).return_()
    return module.to_bytes()


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS, ids=str)
def test_locations_are_read_back(version: Version) -> None:
    data = located(version)
    module = decode_module(data)
    assert encode_module(module) == data
    first, second = module.functions
    assert second.location is None
    assert isinstance(first.location, Location)
    assert (first.location.file_name, first.location.line) == ("src/first.py", 4)
    plain, inlined, last = (op.location for op in first.operations())
    assert isinstance(plain, Location)
    assert (plain.line, plain.column) == (6, 3)
    assert isinstance(inlined, CallSite)
    assert "deep.py:1:1 called at src/lib.py:20:9 called at src/first.py:6:3" in print_module(
        module, locations=True
    )
    assert last == first.location


def test_producer_is_kept_from_13_3() -> None:
    assert decode_module(located((13, 2))).producer is None
    assert decode_module(located((13, 3))).producer == "tests"


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS, ids=str)
def test_located_modules_are_accepted(version: Version, disassembled: object) -> None:
    text = disassembled(located(version), "-g")
    assert 'loc("src/lib.py":20:9)' in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: b"", "not Tile IR bytecode"),
        (lambda d: b"ELF" + d, "not Tile IR bytecode"),
        (lambda d: d[:9] + b"\x09" + d[10:], r"version 13\.9 is not known"),
        (lambda d: d[:30], "bytes wanted where"),
        (lambda d: d + b"\x00", "behind the end marker"),
        (lambda d: d[:19] + b"\x00" + d[20:], "no public kernel entry"),
        (lambda d: d[:22] + b"\x1b" + d[23:], "opcode 27 is not known"),
        (lambda d: d[:12] + b"\x89" + d[13:], "section 9 is unknown"),
        (lambda d: d[:14] + b"\x00" + d[15:], "aligned to 0 bytes"),
    ],
)
def test_damage_is_named(change: object, message: str) -> None:
    assert decode_module(SMALLEST).functions[0].name == "k"
    with pytest.raises(DecodeError, match=message):
        decode_module(change(SMALLEST))


def test_random_damage_never_escapes() -> None:
    """Whatever bytes change, reading gives a module or a DecodeError."""
    with kernel((13, 5)) as sample:
        for add in SAMPLES.values():
            add(sample)
    original = sample.module.to_bytes()
    choose = random.Random(20)
    outcomes = {True: 0, False: 0}
    for _ in range(300):
        data = bytearray(original)
        for _ in range(choose.randint(1, 3)):
            data[choose.randrange(12, len(data))] = choose.randrange(256)
        try:
            print_module(decode_module(bytes(data)))
            outcomes[True] += 1
        except DecodeError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 5


def test_deep_nesting_is_refused() -> None:
    """Written with a higher recursion limit than it is read with."""
    module = ModuleWriter()
    fn = module.function("k", [types.tile(types.i1)])
    body = Block()
    for _ in range(2000):
        branch = make_operation((13, 3), "if", fn.arguments, regions=[Region([body]), Region()])
        body = Block((), [branch])
    fn._append(branch)
    fn.return_()
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(100_000)
        data = module.to_bytes()
    finally:
        sys.setrecursionlimit(limit)
    with pytest.raises(DecodeError, match="nested too deep"):
        decode_module(data)
