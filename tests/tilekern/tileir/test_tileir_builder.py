"""What the builder refuses, and how it says so."""

import pytest
from tileir_op_samples import kernel

from tilekern.tileir import (
    DivBy,
    FunctionBuilder,
    ModuleWriter,
    SourceLocation,
    Value,
    decode_module,
    types,
)
from tilekern.tileir.errors import BytecodeError

I32 = types.tile(types.i32)
F32 = types.tile(types.f32)


@pytest.fixture
def fn() -> FunctionBuilder:
    return ModuleWriter().function("k", [I32, F32, types.tile(types.i1)])


@pytest.mark.parametrize(
    ("name", "operands", "attributes", "results", "message"),
    [
        ("frobnicate", 0, {}, [], "no Tile IR operation 'frobnicate'"),
        ("absi", 2, {}, [I32], r"takes 1 operands \(source\), got 2"),
        ("addi", 1, {"overflow": "NONE"}, [I32], "operand 'rhs' is one value, got None; .*lhs, rhs"),
        ("absi", 1, {}, [], r"has 1 results \(result\) in bytecode 13\.3, got 0"),
        ("absi", 1, {}, [7], "result type is 7"),
        ("absi", 1, {"speed": 3}, [I32], "no attribute 'speed'; it has none"),
        ("addi", 2, {}, [I32], "attribute 'overflow' is missing"),
        ("addi", 2, {"overflow": "MAYBE"}, [I32], "overflow is one of NONE, NSW, NUW, NW, got 'MAYBE'"),
        ("cat", 2, {"dim": -1}, [I32], "attribute 'dim' is of kind 'integer', got -1"),
        ("cat", 2, {"dim": True}, [I32], "attribute 'dim' is of kind 'integer', got True"),
        ("maxf", 2, {"propagate_nan": 1}, [I32], "'propagate_nan' is of kind 'unit', got 1"),
        ("assume", 1, {"predicate": 16}, [I32], "'predicate' is of kind 'tagged', got 16"),
        ("for", 3, {}, [], "has 1 regions, got 0"),
    ],
)
def test_emit_checks_against_the_table(
    fn: FunctionBuilder, name: str, operands: int, attributes: object, results: object, message: str
) -> None:
    with pytest.raises(BytecodeError, match=message) as caught:
        fn.emit(name, [fn.arguments[0]] * operands, attributes, results)
    assert caught.value.op == name


@pytest.mark.parametrize(
    ("ordering", "scope", "message"),
    [("WEAK", "DEVICE", "WEAK takes no memory_scope"), ("ACQUIRE", None, "ACQUIRE needs a memory_scope")],
)
def test_scope_and_ordering_go_together(ordering: str, scope: str | None, message: str) -> None:
    with kernel((13, 3)) as sample, pytest.raises(BytecodeError, match=message):
        sample.fn.load_ptr(sample.pointer, ordering=ordering, scope=scope)


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        ({"sm_75": {"latency": 1}}, "no hint target 'sm_75'; use 'default' or one of sm_80"),
        ({"sm_90": {"speed": 1}}, "no hint 'speed'; it takes latency, allow_tma"),
        ({"sm_90": {"latency": 11}}, "hint latency is 1 to 10, got 11"),
        ({"sm_90": {"allow_tma": 1}}, "hint allow_tma is one of"),
        ({"sm_90": {"latency": True}}, "hint latency is 1 to 10, got True"),
    ],
)
def test_hints_the_assembler_would_ignore_are_refused(hints: object, message: str) -> None:
    with kernel((13, 3)) as sample, pytest.raises(BytecodeError, match=message):
        sample.fn.load_view(sample.view(), sample.index(), hints=hints)


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        ({"sm_90": {"num_cta_in_cga": 3}}, "num_cta_in_cga is one of"),
        ({"default": {"occupancy": 0}}, "occupancy is 1 to 32, got 0"),
        ({"default": {"latency": 1}}, "it takes num_cta_in_cga, occupancy, num_worker_warps_per_cta"),
    ],
)
def test_entry_hints_are_checked(hints: object, message: str) -> None:
    with pytest.raises(BytecodeError, match=message):
        ModuleWriter().function("k", [], hints=hints)


def test_helpers_check_operand_types(fn: FunctionBuilder) -> None:
    with pytest.raises(BytecodeError, match=r"addf: operands are of one type, got tile<i32> and tile<f32>"):
        fn.addf(fn.arguments[0], fn.arguments[1])
    with pytest.raises(BytecodeError, match="reshape: tile<i32> has not as many elements"):
        fn.reshape(fn.arguments[0], (2,))
    with pytest.raises(BytecodeError, match=r"permute: \(0, 0\) is no order"):
        fn.permute(fn.splat(fn.arguments[0], (2, 4)), (0, 0))
    with pytest.raises(BytecodeError, match="broadcast: tile<2x4xi32> does not widen"):
        fn.broadcast(fn.splat(fn.arguments[0], (2, 4)), (4, 4))
    with pytest.raises(BytecodeError, match="iota: a 1-D integer tile that can hold"):
        fn.iota(types.tile(types.i8, (512,)))
    with pytest.raises(BytecodeError, match="div_by takes a power of two, got 12"):
        DivBy(12)


def test_value_must_be_visible_where_it_is_used() -> None:
    module = ModuleWriter()
    fn = module.function("k", [types.tile(types.i1), I32])
    with fn.if_(fn.arguments[0]) as branch, branch.then():
        inner = fn.unary("absi", fn.arguments[1])
    fn.unary("absi", inner)
    fn.return_()
    with pytest.raises(BytecodeError, match="absi: an operand of tile<i32> is not visible here"):
        module.to_bytes()


def test_nothing_follows_a_terminator(fn: FunctionBuilder) -> None:
    fn.return_()
    with pytest.raises(BytecodeError, match="make_token: the block has ended with 'return'"):
        fn.make_token()


def test_kernel_must_return() -> None:
    module = ModuleWriter()
    module.function("k", [])
    with pytest.raises(BytecodeError, match=r"k: a kernel ends with return_\(\)"):
        module.to_bytes()


def test_module_needs_a_kernel_and_a_known_version() -> None:
    with pytest.raises(BytecodeError, match="at least one kernel"):
        ModuleWriter().to_bytes()
    with pytest.raises(BytecodeError, match=r"\(13, 9\) cannot be written; there are 13\.1, 13\.2"):
        ModuleWriter((13, 9))


def test_names_are_unique_and_parameters_scalar() -> None:
    module = ModuleWriter()
    module.function("k", [])
    with pytest.raises(BytecodeError, match="a name of its own, got 'k'"):
        module.function("k", [])
    with pytest.raises(BytecodeError, match="parameters are scalars such as"):
        module.function("l", [types.tile(types.i32, (4,))])


def test_body_must_hand_on_what_it_promised(fn: FunctionBuilder) -> None:
    i, x, _ = fn.arguments
    ending = r"for: its body must end with 'continue' of \(tile<f32>\)"
    with pytest.raises(BytecodeError, match=ending + r", got \(\)"), fn.for_(i, i, i, [x]):
        fn.continue_()
    with pytest.raises(BytecodeError, match=ending + "$"), fn.for_(i, i, i, [x]):
        pass
    with pytest.raises(BytecodeError, match="loop: its body must end with 'continue' or 'break'"), fn.loop():
        pass


def test_if_with_results_needs_both_bodies(fn: FunctionBuilder) -> None:
    _, x, condition = fn.arguments
    needs_else = pytest.raises(BytecodeError, match="needs an `otherwise` body")
    with needs_else, fn.if_(condition, [F32]) as branch, branch.then():
        fn.yield_(x)
    with pytest.raises(BytecodeError, match="has no `then` body"), fn.if_(condition):
        pass


def test_results_exist_after_the_body(fn: FunctionBuilder) -> None:
    i, x, _ = fn.arguments
    with fn.for_(i, i, i, [x]) as loop:
        with pytest.raises(BytecodeError, match="has no results before its body has ended"):
            _ = loop.results
        fn.continue_(x)
    assert [value.type for value in loop.results] == [F32]


def test_error_in_a_body_leaves_the_operation_out() -> None:
    module = ModuleWriter()
    fn = module.function("k", [I32])
    i = fn.arguments[0]
    with pytest.raises(KeyError), fn.for_(i, i, i):
        raise KeyError
    fn.return_()
    (function,) = decode_module(module.to_bytes()).functions
    assert [op.name for op in function.operations()] == ["return"]


def test_unknown_value_kinds_are_refused(fn: FunctionBuilder) -> None:
    with pytest.raises(TypeError, match="a tile is needed here, got a value of token"):
        _ = Value(types.token).tile_type
    with pytest.raises(BytecodeError, match="operand 'tokens' holds 3, no value"):
        fn.emit("join_tokens", [[3]], None, [types.token])


def test_locations_need_a_located_function() -> None:
    module = ModuleWriter()
    fn = module.function("k", [])
    with fn.at(SourceLocation("k.py", 3)):
        fn.make_token()
    fn.return_()
    (function,) = decode_module(module.to_bytes()).functions
    assert [op.location for op in function.operations()] == [None, None]
