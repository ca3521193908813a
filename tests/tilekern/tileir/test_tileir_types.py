"""Rules and spelling of types, and their gates by version."""

import pytest

from tilekern.tileir import ModuleWriter, PaddingValue, PointerKind, types
from tilekern.tileir.errors import BytecodeError, TypeRuleError

VIEW = types.tensor_view(types.f32, (None, 64), (64, 1))
INTS = types.tensor_view(types.i32, (64,), (1,))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (types.tile(types.f32), "tile<f32>"),
        (types.tile(types.ptr(types.f8e4m3fn), (8, 16)), "tile<8x16xptr<f8E4M3FN>>"),
        (VIEW, "tensor_view<?x64xf32, strides=[64,1]>"),
        (
            types.partition_view((64, 8), VIEW, (1, 0), PaddingValue.NEG_INF),
            "partition_view<tile=(64x8), padding_value = neg_inf, "
            "tensor_view<?x64xf32, strides=[64,1]>, dim_map=[1, 0]>",
        ),
        (types.func([types.tile(types.i32)]), "(tile<i32>) -> ()"),
    ],
)
def test_types_are_spelled_as_nvidia_does(kind: types.Type, text: str) -> None:
    assert str(kind) == text


@pytest.mark.parametrize("shape", [(3,), (0,), (-2,), (8, 12)], ids=str)
def test_tile_sides_are_powers_of_two(shape: tuple[int, ...]) -> None:
    with pytest.raises(TypeRuleError, match="power of two"):
        types.tile(types.f32, shape)


def test_tile_that_is_too_big_is_refused() -> None:
    assert types.tile(types.i8, (4096, 4096)).size == 1 << 24
    with pytest.raises(TypeRuleError, match=r"at most 16777216 elements, shape \(8192, 4096\) has 33554432"):
        types.tile(types.i8, (8192, 4096))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: types.tile(types.token, (2,)), "holds numbers or pointers"),
        (lambda: types.ptr(types.ptr(types.f32)), "points to a number type"),
        (lambda: types.tensor_view(types.f32, (64,), (0,)), "static stride .* is a positive integer, got 0"),
        (lambda: types.tensor_view(types.f32, (64, 64), (1,)), "needs as many strides"),
        (lambda: types.tensor_view(types.i4, (64,), (1,)), "other than i4"),
        (lambda: types.partition_view((8,), VIEW), "needs the rank of"),
        (lambda: types.partition_view((8, 8), VIEW, (0, 0)), "lists every axis"),
        (lambda: types.partition_view((8,), INTS, padding=PaddingValue.NAN), "padding NAN is for float"),
        (lambda: types.partition_view((8,), types.f32), "made from a tensor_view"),
        (lambda: types.strided_view((8, 8), (0, 1), VIEW), "positive traversal stride"),
        (lambda: types.gather_scatter_view((8, 8), VIEW, 2), "sparse_dim"),
        (lambda: types.number("f33"), "no element type 'f33'"),
    ],
)
def test_broken_rules_are_named(make: object, message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        make()


def test_equal_types_are_one_entry() -> None:
    module = ModuleWriter()
    fn = module.function("k", [types.tile(types.f32), types.tile(types.f32)])
    fn.addf(*fn.arguments)
    fn.return_()
    assert module.to_bytes().count(bytes.fromhex("0d 00 00")) == 1  # tile of type 0, rank 0


@pytest.mark.parametrize(
    ("kind", "since"),
    [
        (types.tile(types.f8e8m0fnu), (13, 2)),
        (types.tile(types.f4e2m1fn), (13, 3)),
        (types.tile(types.i4), (13, 3)),
        (types.tile(types.fnv8e5m3fnu), (13, 4)),
        (types.tile(types.ptr(types.f32, PointerKind.MULTICAST)), (13, 4)),
    ],
    ids=str,
)
def test_types_need_their_version(kind: types.Type, since: tuple[int, int]) -> None:
    assert types.since(kind) == since
    ModuleWriter(since).function("k", [kind])
    before = (13, since[1] - 1)
    with pytest.raises(BytecodeError, match=rf"needs bytecode 13\.{since[1]}, .* written as 13\.{before[1]}"):
        ModuleWriter(before).function("k", [kind])


@pytest.mark.parametrize(
    "kind", [types.strided_view((8, 8), (1, 1), VIEW), types.gather_scatter_view((8, 8), VIEW, 0)]
)
def test_views_of_13_3(kind: types.ViewType) -> None:
    assert types.since(kind) == (13, 3)
    fn = ModuleWriter((13, 2)).function("k", [types.tile(types.ptr(types.f32)), types.tile(types.i32)])
    tensor = fn.make_tensor_view(VIEW, fn.arguments[0], [fn.arguments[1]])
    with pytest.raises(BytecodeError, match=r"needs bytecode 13\.3"):
        fn.make_view(kind, tensor)
