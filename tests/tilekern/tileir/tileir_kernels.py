"""Three whole kernels in the shapes real ones have; compiled for every target in the tests."""

from tilekern.tileir import (
    DivBy,
    Hints,
    ModuleWriter,
    PaddingValue,
    RoundingMode,
    SourceLocation,
    Value,
    types,
)

I32 = types.tile(types.i32)
F32 = types.f32


def at(line: int, column: int = 5, file: str = "kernels.py", **inlined: object) -> SourceLocation:
    return SourceLocation(file, line, column, **inlined)


def row_softmax(columns: int = 1024) -> bytes:
    """One block a row; a partial row is padded with -inf."""
    module = ModuleWriter()
    pointer = types.tile(types.ptr(F32))
    fn = module.function("row_softmax", [pointer, pointer, I32, I32], location=at(1))
    out, x, rows, stride = fn.arguments
    memory = types.tensor_view(F32, (None, columns - 24), (None, 1))
    stride = fn.assume(stride, DivBy(4))
    views = [
        fn.make_view(
            types.partition_view((1, columns), memory, padding=padding),
            fn.make_tensor_view(memory, fn.assume(base, DivBy(16)), [rows], [stride]),
        )
        for base, padding in ((x, PaddingValue.NEG_INF), (out, PaddingValue.ZERO))
    ]
    row, _, _ = fn.tile_block_id()
    index = [row, fn.constant(I32, 0)]
    tile, token = fn.load_view(views[0], index)

    def reduced(name: str, value: Value, identity: float) -> Value:
        with fn.reduce([value], 1, [identity]) as body:
            fn.yield_(getattr(fn, name)(*body.arguments))
        return fn.broadcast(fn.reshape(body.results[0], (1, 1)), (1, columns))

    with fn.at(at(3)):
        powers = fn.exp(fn.subf(tile, reduced("maxf", tile, float("-inf"))))
        result = fn.divf(powers, reduced("addf", powers, 0.0), RoundingMode.APPROX)
    fn.store_view(result, views[1], index, token)
    fn.return_()
    return module.to_bytes()


def matmul(
    element: types.NumberType = types.f16,
    tile: int = 64,
    hints: Hints | None = None,
    *,
    located: bool = True,
    ill_typed: bool = False,
    aligned: bool = True,
) -> bytes:
    """C = A @ B, 1024 x 1024. With `ill_typed`, an addf of two types at line 9, inlined from a helper."""
    module = ModuleWriter()
    data = types.tile(types.ptr(element))
    fn = module.function(
        "matmul",
        [data, data, types.tile(types.ptr(F32)), I32],
        hints=hints,
        location=at(1) if located else None,
    )
    a, b, c, steps = fn.arguments

    def view(base: Value, kind: types.NumberType) -> Value:
        memory = types.tensor_view(kind, (1024, 1024), (1024, 1))
        base = fn.assume(base, DivBy(16)) if aligned else base
        return fn.make_view(types.partition_view((tile, tile), memory), fn.make_tensor_view(memory, base))

    with fn.at(at(2)):
        views = view(a, element), view(b, element), view(c, F32)
    i, j, _ = fn.tile_block_id()
    zero, one = fn.constant(I32, 0), fn.constant(I32, 1)
    with fn.at(at(7)), fn.for_(zero, steps, one, [fn.constant(types.tile(F32, (tile, tile)), 0.0)]) as loop:
        with fn.at(at(8)):
            x, _ = fn.load_view(views[0], [i, loop.induction])
            y, _ = fn.load_view(views[1], [loop.induction, j])
        (total,) = loop.carried
        if ill_typed:
            with fn.at(at(40, 9, "helper.py", function="helper", caller=at(9, 11))):
                fn.emit("addf", [total, x], {"rounding_mode": "NEAREST_EVEN"}, [total.type])
        with fn.at(at(10)):
            fn.continue_(fn.mmaf(x, y, total))
    with fn.at(at(11)):
        fn.store_view(loop.results[0], views[2], [i, j])
    fn.return_()
    return module.to_bytes()
