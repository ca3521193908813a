"""Complete kernels written with the builder; also the examples to copy from."""

from collections.abc import Callable

import pytest

from tilekern.tileir import (
    SUPPORTED_VERSIONS,
    Bounded,
    ComparisonPredicate,
    DivBy,
    ModuleWriter,
    PaddingValue,
    SourceLocation,
    Version,
    types,
)

I32 = types.tile(types.i32)
POINTER = types.tile(types.ptr(types.f32))


def vector_add(version: Version = (13, 3), with_locations: bool = False) -> bytes:
    """z = x + y over n elements in tiles of 128; a block takes every num_blocks-th tile, and prints its sum."""

    def at(line: int, **inlined: object) -> SourceLocation:
        return SourceLocation("kernels/add.py", line, 5, **inlined)

    module = ModuleWriter(version, producer="tilekern")
    fn = module.function(
        "vector_add",
        [POINTER, POINTER, POINTER, I32, I32],
        hints={"sm_90": {"occupancy": 2}},
        location=at(10) if with_locations else None,
    )
    x, y, z, n, tiles = fn.arguments

    # What the compiler may rely on is said once, before views are made from it.
    n = fn.assume(n, Bounded(0, 1 << 30))
    memory = types.tensor_view(types.f32, (types.DYNAMIC,), (1,))
    in_tiles = types.partition_view((128,), memory, padding=PaddingValue.ZERO)
    view_x, view_y, view_z = (
        fn.make_view(in_tiles, fn.make_tensor_view(memory, fn.assume(pointer, DivBy(16)), [n]))
        for pointer in (x, y, z)
    )
    first, _, _ = fn.tile_block_id()
    step, _, _ = fn.num_tile_blocks()
    zeros = fn.constant(types.tile(types.f32, (128,)), 0.0)

    # Tokens are values: the loop carries one, so that iterations stay in order.
    with fn.at(at(12)), fn.for_(first, tiles, step, [fn.make_token(), zeros]) as loop:
        token, total = loop.carried
        index = [loop.induction]
        with fn.at(at(13)):
            a, after_a = fn.load_view(view_x, index, token, hints={"sm_90": {"latency": 4}})
            b, after_b = fn.load_view(view_y, index, token)
        with fn.at(at(3, function="add", caller=at(14))):
            c = fn.addf(a, b)
        token = fn.store_view(c, view_z, index, fn.join_tokens(after_a, after_b))
        fn.continue_(token, fn.addf(total, c))
    token, total = loop.results

    with fn.reduce([total], dim=0, identities=[0.0]) as body:
        element, accumulator = body.arguments
        fn.yield_(fn.addf(element, accumulator))
    (total,) = body.results

    is_positive = fn.cmpf(ComparisonPredicate.GREATER_THAN, total, fn.constant(types.tile(types.f32), 0.0))
    with fn.if_(is_positive, [types.tile(types.f32)]) as branch:
        with branch.then():
            fn.yield_(total)
        with branch.otherwise():
            fn.yield_(fn.unary("negf", total))
    fn.print_("absolute sum %f\n", [branch.results[0]], token if version >= (13, 2) else None)
    fn.return_()
    return module.to_bytes()


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS, ids=str)
@pytest.mark.parametrize("with_locations", [False, True], ids=["plain", "located"])
def test_vector_add_is_accepted(
    version: Version, with_locations: bool, disassembled: Callable[..., str]
) -> None:
    text = disassembled(vector_add(version, with_locations))
    assert "entry @vector_add" in text
    assert "occupancy = 2" in text
    assert "for %loopIdx in (%blockId_x to %arg4, step %gridSize_x)" in text


def test_locations_reach_the_disassembly(disassembled: Callable[..., str]) -> None:
    text = disassembled(vector_add(with_locations=True), "-g")
    for line in (3, 10, 12, 13, 14):
        assert f'loc("kernels/add.py":{line}:5)' in text
    assert "callsite(" in text
    assert 'name = "add"' in text
