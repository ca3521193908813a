"""The table of what targets refuse, held against the assembler."""

import pytest

from tilekern.tileir import (
    ARCHITECTURES,
    AtomicMode,
    ModuleWriter,
    PointerKind,
    assemble,
    decode_module,
    find_toolchain,
    refused_operations,
    refused_type,
    types,
)
from tilekern.tileir.errors import ArchitectureError

GENERATIONS = ("sm_80", "sm_90", "sm_100", "sm_120")
NARROW = (types.f8e4m3fn, types.f8e5m2, types.f8e8m0fnu, types.f4e2m1fn, types.fnv8e5m3fnu)


def copy(element: types.NumberType) -> bytes:
    module = ModuleWriter(max(types.since(element), (13, 3)))
    fn = module.function("copy", [types.tile(types.ptr(element))] * 2)
    memory = types.tensor_view(element, (64, 64), (64, 1))
    tiles = types.partition_view((16, 16), memory)
    source, target = (fn.make_view(tiles, fn.make_tensor_view(memory, base)) for base in fn.arguments)
    index = [fn.constant(types.tile(types.i32), 0)] * 2
    tile, token = fn.load_view(source, index)
    fn.store_view(tile, target, index, token)
    fn.return_()
    return module.to_bytes()


def atomic_add(element: types.NumberType) -> bytes:
    module = ModuleWriter()
    fn = module.function("add", [types.tile(types.ptr(element))])
    fn.atomic_rmw(AtomicMode.ADDF, fn.arguments[0], fn.constant(types.tile(element), 1.0))
    fn.return_()
    return module.to_bytes()


def multimem() -> bytes:
    module = ModuleWriter((13, 5))
    pointer = types.ptr(types.f32, PointerKind.MULTICAST)
    fn = module.function("store", [types.tile(pointer)])
    memory = types.tensor_view(types.f32, (64,), (1,), PointerKind.MULTICAST)
    view = fn.make_view(types.partition_view((16,), memory), fn.make_tensor_view(memory, fn.arguments[0]))
    tile = fn.constant(types.tile(types.f32, (16,)), 0.0)
    zero = fn.constant(types.tile(types.i32), 0)
    weak = {"memory_ordering_semantics": "WEAK"}
    fn.emit("multimem_store_view_tko", [view, tile, [zero]], weak, [types.token])
    fn.return_()
    return module.to_bytes()


def check(bytecode: bytes, arch: str) -> None:
    """The table and the assembler agree."""
    refused = [reason for _, reason in refused_operations(arch, decode_module(bytecode))]
    if not refused:
        assert assemble(bytecode, arch).cubin
        return
    assert arch in refused[0]
    with pytest.raises(ArchitectureError):
        assemble(bytecode, arch)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("arch", GENERATIONS)
@pytest.mark.parametrize("element", NARROW, ids=str)
def test_narrow_floats(element: types.NumberType, arch: str) -> None:
    check(copy(element), arch)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("arch", ["sm_88", "sm_89"])
def test_atomic_addition_of_bf16(arch: str) -> None:
    check(atomic_add(types.bf16), arch)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("arch", ["sm_90", "sm_103", "sm_110"])
def test_multicast_memory(arch: str) -> None:
    check(multimem(), arch)


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("element", [t for t in types.NUMBER_TYPES.values() if t != types.i4], ids=str)
def test_every_type_on_every_target(element: types.NumberType, arch: str) -> None:
    check(copy(element), arch)
    if element in (types.f16, types.bf16, types.f32, types.f64):
        check(atomic_add(element), arch)


@pytest.mark.usefixtures("tools")
def test_table_has_the_assembler_s_targets() -> None:
    assert find_toolchain().architectures == ARCHITECTURES


def test_reason_says_what_would_do() -> None:
    view = types.partition_view((16,), types.tensor_view(types.f8e4m3fn, (64,), (1,)))
    assert refused_type("sm_80", view) == (
        "element type float8_e4m3fn needs sm_89 or later, not sm_80; "
        "convert to a type it has, or compile for another target"
    )
    assert refused_type("sm_90", view) is None
    assert "needs sm_107, not sm_120" in str(refused_type("sm_120", types.fnv8e5m3fnu))


def test_unknown_targets_are_left_to_the_assembler() -> None:
    assert refused_type("sm_200", types.f4e2m1fn) is None
