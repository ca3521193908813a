"""Every operation in every version that has it, read back by NVIDIA's disassembler and by our decoder."""

import re
from collections.abc import Callable

import pytest
from tileir_op_samples import SAMPLES, kernel

from tilekern.tileir import (
    SUPPORTED_VERSIONS,
    Version,
    decode_module,
    encode_module,
    print_module,
    types,
)
from tilekern.tileir._op_table import OPS
from tilekern.tileir._operation import make_operation
from tilekern.tileir.errors import BytecodeError

EACH_VERSION = pytest.mark.parametrize("version", SUPPORTED_VERSIONS, ids=lambda v: f"{v[0]}.{v[1]}")


def everything(version: Version) -> bytes:
    with kernel(version) as sample:
        for name, add in SAMPLES.items():
            if OPS[name].since <= version:
                add(sample)
    return sample.module.to_bytes()


def mnemonics(text: str) -> list[str]:
    """Operation names of a disassembly in order.

    Constants are left out (the printer moves them), and the empty terminators it does not print are not there.
    """
    found = []
    for line in text.splitlines():
        match = re.match(r"\s+(?:%[\w:, %]+ = )?([a-z]\w*)\b", line)
        if match and match[1] != "constant":
            found.append(match[1])
    return found


def test_every_operation_has_a_sample() -> None:
    assert SAMPLES.keys() == OPS.keys()


@EACH_VERSION
def test_disassembler_sees_the_same_operations(version: Version, disassembled: Callable[..., str]) -> None:
    data = everything(version)
    (function,) = decode_module(data).functions
    ours = [
        op.name
        for op in function.operations()
        if op.name != "constant" and not (op.name in ("yield", "continue") and not any(op.values()))
    ]
    older_names = {"fpowf": "pow", "print_tko": "print"}
    theirs = mnemonics(disassembled(data))
    assert [older_names.get(name, name) for name in theirs] == [older_names.get(name, name) for name in ours]
    assert {name for name in OPS if OPS[name].since <= version} - {"constant"} <= set(ours) | {"yield"}


@EACH_VERSION
def test_encoding_round_trips_to_the_byte(version: Version) -> None:
    data = everything(version)
    module = decode_module(data)
    assert module.version == version
    assert encode_module(module) == data
    assert print_module(decode_module(encode_module(module))) == print_module(module)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "version"),
    [
        (name, version)
        for name, spec in OPS.items()
        for version in SUPPORTED_VERSIONS
        if version >= spec.since
    ],
    ids=str,
)
def test_operation_alone_is_accepted(name: str, version: Version, disassembled: Callable[..., str]) -> None:
    with kernel(version) as sample:
        SAMPLES[name](sample)
    data = sample.module.to_bytes()
    disassembled(data)
    assert encode_module(decode_module(data)) == data


@pytest.mark.parametrize("name", [name for name, spec in OPS.items() if spec.since > (13, 1)])
def test_newer_operations_name_their_version(name: str) -> None:
    since = OPS[name].since
    before = (13, since[1] - 1)
    message = (
        rf"^{name}: the operation needs bytecode 13\.{since[1]}, this module is written as 13\.{before[1]}$"
    )
    with pytest.raises(BytecodeError, match=message) as caught:
        make_operation(before, name)
    assert caught.value.op == name


@pytest.mark.parametrize(
    ("name", "attributes", "since"),
    [
        ("exp", {"rounding_mode": "APPROX"}, (13, 3)),
        ("tanh", {"rounding_mode": "APPROX"}, (13, 2)),
        ("negi", {"overflow": "NSW"}, (13, 2)),
    ],
)
def test_newer_attributes_name_their_version(
    name: str, attributes: dict[str, object], since: Version
) -> None:
    for version in SUPPORTED_VERSIONS:
        with kernel(version) as sample:
            tile = sample.tile(types.i32 if name == "negi" else types.f32)
            if version >= since:
                sample.fn.unary(name, tile, **attributes)
                continue
            sample.fn.unary(name, tile)
            with pytest.raises(BytecodeError, match=rf"{name}: attribute .* needs bytecode 13\.{since[1]}"):
                sample.fn.unary(name, tile, **attributes)


def test_inbounds_needs_13_4() -> None:
    with kernel((13, 3)) as sample:
        sample.fn.load_view(sample.view(), sample.index(), inbounds=(False, False))
        with pytest.raises(BytecodeError, match=r"inbounds=\(True, False\) needs bytecode 13\.4"):
            sample.fn.load_view(sample.view(), sample.index(), inbounds=(True, False))


def test_unsigned_loop_needs_13_2() -> None:
    with kernel((13, 1)) as sample:
        bounds = [sample.size] * 3
        with (
            pytest.raises(BytecodeError, match=r"unsignedCmp=True needs bytecode 13\.2"),
            sample.fn.for_(*bounds, unsigned=True),
        ):
            pass


TEXTS = [
    ("addi", {"overflow": "NSW"}, "no_signed_wrap"),
    ("subi", {"overflow": "NUW"}, "no_unsigned_wrap"),
    ("muli", {"overflow": "NW"}, "no_wrap"),
    *[("maxi", {"signedness": s}, s.lower()) for s in ("SIGNED", "UNSIGNED")],
    *[("mulf", {"rounding_mode": r}, f"rounding<{r.lower()}>") for r in ("ZERO", "NEGATIVE_INF", "POSITIVE_INF")],
    ("divf", {"rounding_mode": "APPROX"}, "rounding<approx>"),
    ("divf", {"rounding_mode": "FULL", "flush_to_zero": True}, "rounding<full> flush_to_zero"),
    ("divi", {"signedness": "SIGNED", "rounding": "POSITIVE_INF"}, "signed rounding<positive_inf>"),
    ("minf", {"propagate_nan": True, "flush_to_zero": True}, "flush_to_zero propagate_nan"),
]  # fmt: skip


def test_enumerations_mean_what_they_say(disassembled: Callable[..., str]) -> None:
    """The disassembler prints members by name: the numbers are right if the names come back."""
    with kernel((13, 3)) as sample:
        for name, attributes, _ in TEXTS:
            element = types.f32 if name.endswith("f") else types.i32
            sample.fn.binary(name, sample.tile(element), sample.tile(element), **attributes)
    lines = [line for line in disassembled(sample.module.to_bytes()).splitlines() if "constant" not in line]
    for (name, _, text), line in zip(TEXTS, lines[2:]):
        assert f" {name} " in line
        assert text in line


def test_comparisons_mean_what_they_say(disassembled: Callable[..., str]) -> None:
    predicates = [
        "equal",
        "not_equal",
        "less_than",
        "less_than_or_equal",
        "greater_than",
        "greater_than_or_equal",
    ]
    with kernel((13, 3)) as sample:
        for predicate in predicates:
            for ordering in ("ORDERED", "UNORDERED"):
                attributes = {"comparison_predicate": predicate, "comparison_ordering": ordering}
                tile = sample.tile(types.f32)
                sample.fn.emit("cmpf", [tile, tile], attributes, [types.tile(types.i1, (8, 16))])
    text = disassembled(sample.module.to_bytes())
    for predicate in predicates:
        assert f"cmpf {predicate} ordered" in text
        assert f"cmpf {predicate} unordered" in text


def test_memory_enumerations_mean_what_they_say(disassembled: Callable[..., str]) -> None:
    modes = ["and", "or", "xor", "add", "max", "min", "umax", "umin", "xchg"]
    orders = [("RELAXED", "DEVICE"), ("ACQUIRE", "SYS"), ("RELEASE", "TL_BLK"), ("ACQ_REL", "DEVICE")]
    with kernel((13, 3)) as sample:
        pointers, value = sample.fn.ptr_to_ptr(sample.pointer, types.i32), sample.tile(types.i32, ())
        results = [types.tile(types.i32), types.token]
        for mode in modes:
            for ordering, scope in orders:
                attributes = {"memory_ordering_semantics": ordering, "memory_scope": scope, "mode": mode}
                sample.fn.emit("atomic_rmw_tko", [pointers, value], attributes, results)
    text = disassembled(sample.module.to_bytes())
    for mode in modes:
        for ordering, scope in orders:
            assert re.search(rf"atomic_rmw_tko {ordering.lower()} {scope.lower()} \S+, {mode},", text)
