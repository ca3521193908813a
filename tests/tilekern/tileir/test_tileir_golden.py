"""Whole files and instructions against bytes of the format description, worked out by hand."""

import pytest

from tilekern.tileir import ModuleWriter, Version, types

HEADER = "7f 54 69 6c 65 49 52 00 0d 03 00 00"


def test_smallest_module() -> None:
    module = ModuleWriter()
    module.function("k", []).return_()
    assert module.to_bytes() == bytes.fromhex(
        f"{HEADER} 82 09 08 cb 01 00 00 02 00 03 5c 00 00"  # function section, body: return
        "85 0b 04 01 cb cb cb 00 00 00 00 10 00 00"  # type section: () -> ()
        "81 09 04 cb cb 01 cb cb cb 00 00 00 00 6b 00"  # string section: "k"; end
    )


def test_smallest_module_of_13_5() -> None:
    module = ModuleWriter((13, 5))
    module.function("k", []).return_()
    data = module.to_bytes()
    assert data[8:10] == bytes([13, 5])
    assert bytes.fromhex("01 00 00 02 00 0b 00 06 00 03 5c 00 00") in data


def body_of(data: bytes) -> bytes:
    """The first function's body: the function section is the first, and these bodies are short."""
    length = data[13]
    payload = data[16 : 16 + length]
    assert payload[:1] == b"\x01"
    return payload[6:]


def test_addf() -> None:
    """addf of values 5 and 4 -> a tile type, nearest_even, no ftz."""
    module = ModuleWriter()
    scalar = types.tile(types.f32)
    fn = module.function("k", [scalar] * 6)
    fn.addf(fn.arguments[5], fn.arguments[4])
    fn.return_()
    tile_index = 1  # types: f32, tile<f32>, function
    assert body_of(module.to_bytes()) == bytes([2, tile_index, 0, 0, 5, 4, 92, 0, 0])


@pytest.mark.parametrize(
    ("version", "inbounds"), [((13, 3), ""), ((13, 4), "02 00 00"), ((13, 5), "02 00 00")], ids=str
)
def test_load_view(version: Version, inbounds: str) -> None:
    """Weak, two indices, no token: opcode 3E, two results, no flags, ordering, view, indices."""
    module = ModuleWriter(version)
    pointer, index = types.tile(types.ptr(types.f32)), types.tile(types.i32)
    fn = module.function("k", [pointer, index, index])
    base, i, j = fn.arguments
    memory = types.tensor_view(types.f32, (64, 64), (64, 1))
    view = fn.make_view(types.partition_view((16, 16), memory), fn.make_tensor_view(memory, base))
    fn.load_view(view, [i, j])
    fn.return_()
    data = module.to_bytes()
    # Values: 0-2 arguments, 3 tensor view, 4 partition view. Types: f32, ptr, tile of it, i32, tile of
    # it, function, tensor_view, partition_view, tile<16x16xf32>, token = 0 to 9.
    expected = bytes.fromhex(f"3e 02 08 09 00 00 {inbounds} 04 02 01 02 5c 00 00")
    assert expected in data


def test_results_of_regions_are_numbered_last() -> None:
    """The loop's values take 4 and 5; behind it the loop's result is 4 again."""
    module = ModuleWriter()
    scalar = types.tile(types.i32)
    fn = module.function("k", [scalar] * 4)
    a, b, c, d = fn.arguments
    with fn.for_(a, b, c, [d]) as loop:
        fn.continue_(fn.unary("absi", loop.carried[0]))
    fn.unary("absi", loop.results[0])
    fn.return_()
    # for: opcode 41, 1 result of type 1, flags, 4 operands, 1 region of 1 block with 2 arguments and 2 ops.
    body = (
        "29 01 01 00 04 00 01 02 03 01 01 02 01 01 02" + "01 01 05" + "11 00 01 06" + "01 01 04" + "5c 00 00"
    )
    assert body_of(module.to_bytes()) == bytes.fromhex(body)


def test_if_without_else_writes_an_empty_region() -> None:
    module = ModuleWriter()
    fn = module.function("k", [types.tile(types.i1)])
    with fn.if_(fn.arguments[0]) as branch, branch.then():
        pass
    fn.return_()
    # if: opcode 50, no results, condition 0, 2 regions: one block with a yield, none.
    assert body_of(module.to_bytes()) == bytes.fromhex("32 00 00 02 01 00 01 6d 00 00 00 5c 00 00")
