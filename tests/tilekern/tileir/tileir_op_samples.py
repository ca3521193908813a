"""One accepted use of every Tile IR operation, by name; the tests put them into modules."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tilekern.tileir import (
    Bounded,
    DivBy,
    FunctionBuilder,
    ModuleWriter,
    PointerKind,
    SameElements,
    Value,
    Version,
    encode_elements,
    types,
)

SHAPE = (8, 16)
I1, I8, I16, I32, I64 = types.i1, types.i8, types.i16, types.i32, types.i64
F16, F32 = types.f16, types.f32
WEAK = {"memory_ordering_semantics": "WEAK"}
RELAXED = {"memory_ordering_semantics": "RELAXED", "memory_scope": "DEVICE"}
NEAREST = {"rounding_mode": "NEAREST_EVEN"}


class Sample:
    """A kernel under construction, with what the samples need at hand."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.module = ModuleWriter(version)
        data = types.tile(F32, (4,))
        self.module.add_global("table", data, encode_elements(data, [1.0, 2.0, 3.0, 4.0]), alignment=16)
        parameters = [types.tile(types.ptr(F32)), types.tile(I32)]
        if version >= (13, 5):
            parameters.append(types.tile(types.ptr(F32, PointerKind.MULTICAST)))
        self.fn: FunctionBuilder = self.module.function("sample", parameters)
        self.pointer, self.size, *multicast = self.fn.arguments
        self.multicast = multicast[0] if multicast else None

    def tile(self, element: types.NumberType, shape: tuple[int, ...] = SHAPE) -> Value:
        return self.fn.constant(types.tile(element, shape), 1)

    def pointers(self) -> Value:
        return self.fn.splat(self.pointer, (16,))

    def tensor(self, kind: PointerKind = PointerKind.DEFAULT) -> Value:
        view = types.tensor_view(F32, (types.DYNAMIC, 64), (64, 1), kind)
        base = self.pointer if kind is PointerKind.DEFAULT else self.multicast
        return self.fn.make_tensor_view(view, base, [self.size])

    def view(self, kind: PointerKind = PointerKind.DEFAULT) -> Value:
        tensor = self.tensor(kind)
        return self.fn.make_view(types.partition_view(SHAPE, tensor.type), tensor)

    def index(self) -> list[Value]:
        return [self.tile(I32, ()), self.tile(I32, ())]


def _unary(name: str, element: types.NumberType, s: Sample, **attributes: object) -> None:
    s.fn.unary(name, s.tile(element), **attributes)


def _binary(name: str, element: types.NumberType, s: Sample, **attributes: object) -> None:
    s.fn.binary(name, s.tile(element), s.tile(element), **attributes)


def _convert(
    name: str, source: types.NumberType, to: types.NumberType, s: Sample, **attributes: object
) -> None:
    s.fn.emit(name, [s.tile(source)], attributes, [types.tile(to, SHAPE)])


def _fma(s: Sample) -> None:
    s.fn.fma(s.tile(F32), s.tile(F32), s.tile(F32), ftz=True)


def _fpowi(s: Sample) -> None:
    s.fn.emit("fpowi", [s.tile(F32), s.tile(I16)], None, [types.tile(F32, SHAPE)])


def _int_to_ptr(s: Sample) -> None:
    s.fn.int_to_ptr(s.tile(I64), F32)


def _ptr_to_ptr(s: Sample) -> None:
    s.fn.ptr_to_ptr(s.pointers(), I32)


def _pack(s: Sample) -> None:
    s.fn.emit("pack", [s.tile(I16, (8,))], None, [types.tile(I8, (16,))])


def _unpack(s: Sample) -> None:
    s.fn.emit("unpack", [s.tile(I8, (8,))], None, [types.tile(types.i4, (16,))])


def _assume(s: Sample) -> None:
    s.fn.assume(s.pointer, DivBy(16))
    s.fn.assume(s.tile(I32), DivBy(8, every=4, along=1))
    s.fn.assume(s.size, Bounded(-5, None))
    s.fn.assume(s.size, Bounded(None, 1 << 20))
    s.fn.assume(s.tile(I32), SameElements((1, 4)))


def _extract(s: Sample) -> None:
    s.fn.extract(s.tile(F32), s.index(), (4, 16))


def _insert(s: Sample) -> None:
    s.fn.insert(s.tile(F32, (4, 16)), s.tile(F32), s.index())


def _select(s: Sample) -> None:
    s.fn.select(s.tile(I1), s.tile(F32), s.tile(F32))


def _offset(s: Sample) -> None:
    s.fn.offset(s.pointers(), s.fn.iota(types.tile(I32, (16,))))


def _mmaf(s: Sample) -> None:
    fast = s.version >= (13, 3)
    s.fn.mmaf(s.tile(types.f8e4m3fn, (16, 16)), s.tile(types.f8e4m3fn, (16, 16)), s.tile(F32, (16, 16)), fast)


def _mmai(s: Sample) -> None:
    s.fn.mmai(s.tile(I8, (16, 16)), s.tile(I8, (16, 16)), s.tile(I32, (16, 16)))


def _mmaf_scaled(s: Sample) -> None:
    data = s.tile(types.f8e4m3fn, (64, 64))
    scales = [s.tile(types.f8e8m0fnu, shape) for shape in ((64, 2), (2, 64))]
    s.fn.mmaf_scaled(data, data, s.tile(F32, (64, 64)), *scales)


def _reduce(s: Sample) -> None:
    with s.fn.reduce([s.tile(F32), s.tile(I32)], 1, [0.0, -(2**31)]) as body:
        element, total, index, largest = body.arguments
        s.fn.yield_(s.fn.addf(element, total), s.fn.maxi(index, largest))


def _scan(s: Sample) -> None:
    with s.fn.scan([s.tile(types.f64)], 0, [-1.5], reverse=True) as body:
        s.fn.yield_(s.fn.addf(*body.arguments))


def _for(s: Sample) -> None:
    zero, one = s.fn.constant(types.tile(I32), 0), s.tile(I32, ())
    with s.fn.for_(zero, s.size, one, [s.tile(F32)]) as body:
        s.fn.continue_(s.fn.addf(body.carried[0], body.carried[0]))
    unsigned = s.version >= (13, 2)
    with s.fn.for_(zero, s.size, one, unsigned=unsigned):
        pass


def _loop(s: Sample) -> None:
    with s.fn.loop([s.size, s.tile(F32)], [types.tile(I32)]) as body:
        count, value = body.carried
        with s.fn.if_(s.fn.cmpi(_predicate("EQUAL"), count, count)) as branch, branch.then():
            s.fn.break_(count)
        s.fn.continue_(count, value)


def _predicate(name: str) -> object:
    from tilekern.tileir import ComparisonPredicate

    return ComparisonPredicate[name]


def _if(s: Sample) -> None:
    with s.fn.if_(s.tile(I1, ()), [types.tile(F32)]) as branch:
        with branch.then():
            s.fn.yield_(s.tile(F32, ()))
        with branch.otherwise():
            s.fn.yield_(s.tile(F32, ()))
    with s.fn.if_(s.tile(I1, ())) as branch, branch.then():
        s.fn.return_()


def _print(s: Sample) -> None:
    token = s.fn.print_("%f %%\n", [s.tile(F32)])
    s.fn.print_("done\n", (), token)


def _load_view(s: Sample) -> None:
    view, index = s.view(), s.index()
    _, token = s.fn.load_view(view, index)
    s.fn.emit(
        "load_view_tko",
        [view, index, token],
        {
            **WEAK,
            "memory_ordering_semantics": "ACQUIRE",
            "memory_scope": "SYS",
            "optimization_hints": {"sm_90": {"latency": 3, "allow_tma": False}, "default": {"latency": 1}},
            "inbounds": (True, False) if s.version >= (13, 4) else (),
        },
        [types.tile(F32, SHAPE), types.token],
    )


def _store_view(s: Sample) -> None:
    token = s.fn.store_view(s.tile(F32), s.view(), s.index(), hints={"sm_80": {"latency": 10}})
    s.fn.store_view(s.tile(F32), s.view(), s.index(), token)


def _load_ptr(s: Sample) -> None:
    pointers = s.pointers()
    _, token = s.fn.load_ptr(pointers)
    hints = {"sm_100": {"latency": 2}}
    s.fn.load_ptr(pointers, s.tile(I1, (16,)), s.tile(F32, (16,)), token, hints=hints)
    s.fn.load_ptr(pointers, token=token)


def _store_ptr(s: Sample) -> None:
    token = s.fn.store_ptr(s.pointers(), s.tile(F32, (16,)))
    s.fn.store_ptr(s.pointers(), s.tile(F32, (16,)), s.tile(I1, (16,)), token)


def _atomic_rmw(s: Sample) -> None:
    attributes = {**RELAXED, "mode": "ADDF"}
    results = [types.tile(F32, (16,)), types.token]
    _, token = s.fn.emit("atomic_rmw_tko", [s.pointers(), s.tile(F32, (16,))], attributes, results)
    s.fn.emit(
        "atomic_rmw_tko", [s.pointers(), s.tile(F32, (16,)), s.tile(I1, (16,)), token], attributes, results
    )


def _atomic_cas(s: Sample) -> None:
    value = s.tile(F32, (16,))
    _, token = s.fn.atomic_cas(s.pointers(), value, value)
    s.fn.atomic_cas(s.pointers(), value, value, s.tile(I1, (16,)), token)


def _atomic_red(s: Sample) -> None:
    from tilekern.tileir import AtomicMode

    token = s.fn.atomic_red_view(AtomicMode.ADDF, s.view(), s.index(), s.tile(F32))
    s.fn.atomic_red_view(AtomicMode.ADDF, s.view(), s.index(), s.tile(F32), token)


def _gather_scatter(s: Sample) -> None:
    tensor = s.tensor()
    view = s.fn.make_view(types.gather_scatter_view(SHAPE, tensor.type, 0), tensor)
    s.fn.load_view(view, [s.fn.iota(types.tile(I32, (8,))), s.tile(I32, ())])


def _strided(s: Sample) -> None:
    tensor = s.tensor()
    s.fn.load_view(s.fn.make_view(types.strided_view(SHAPE, (3, 5), tensor.type, (1, 0)), tensor), s.index())


def _gdc(name: str, s: Sample) -> None:
    (token,) = s.fn.emit(name, [], None, [types.token])
    s.fn.emit(name, [token], None, [types.token])


def _fence(s: Sample) -> None:
    s.fn.emit("memory_fence_alias_tko", [s.fn.make_token()], None, [types.token])


def _multimem_load(s: Sample) -> None:
    attributes = {**RELAXED, "reduction": "ADD"}
    results = [types.tile(F32, SHAPE), types.token]
    view = s.view(PointerKind.MULTICAST)
    _, token = s.fn.emit("multimem_load_reduce_view_tko", [view, s.index()], attributes, results)
    s.fn.emit("multimem_load_reduce_view_tko", [view, s.index(), token], attributes, results)


def _multimem_reduce(s: Sample) -> None:
    operands = [s.view(PointerKind.MULTICAST), s.tile(F32), s.index()]
    attributes = {**RELAXED, "reduction": "ADD"}
    (token,) = s.fn.emit("multimem_reduce_view_tko", operands, attributes, [types.token])
    s.fn.emit("multimem_reduce_view_tko", [*operands, token], attributes, [types.token])


def _multimem_store(s: Sample) -> None:
    operands = [s.view(PointerKind.MULTICAST), s.tile(F32), s.index()]
    (token,) = s.fn.emit("multimem_store_view_tko", operands, WEAK, [types.token])
    s.fn.emit("multimem_store_view_tko", [*operands, token], RELAXED, [types.token])


SAMPLES: dict[str, Callable[[Sample], object]] = {
    **{
        name: partial(_unary, name, F32)
        for name in [
            "absf",
            "ceil",
            "cos",
            "cosh",
            "floor",
            "log",
            "log2",
            "negf",
            "sin",
            "sinh",
            "tan",
            "exp",
            "tanh",
        ]
    },
    **{name: partial(_unary, name, F32, flush_to_zero=True) for name in ("exp2", "rsqrt")},
    "sqrt": partial(_unary, "sqrt", F32, rounding_mode="APPROX", flush_to_zero=True),
    **{
        name: partial(_binary, name, F32, rounding_mode="ZERO", flush_to_zero=True)
        for name in ("addf", "mulf", "subf", "divf")
    },
    **{name: partial(_binary, name, F32, propagate_nan=True) for name in ("maxf", "minf")},
    **{name: partial(_binary, name, F16) for name in ("fpowf", "remf", "atan2")},
    "cmpf": lambda s: s.fn.cmpf(_predicate("LESS_THAN"), s.tile(F32), s.tile(F32)),
    "fma": _fma,
    "fpowi": _fpowi,
    **{name: partial(_binary, name, I32, overflow="NSW") for name in ("addi", "muli", "shli", "subi")},
    **{name: partial(_binary, name, I32, signedness="UNSIGNED") for name in ("maxi", "mini", "remi", "shri")},
    **{name: partial(_binary, name, I1) for name in ("andi", "ori", "xori")},
    "mulhii": partial(_binary, "mulhii", I64),
    "divi": partial(_binary, "divi", I32, signedness="SIGNED", rounding="NEGATIVE_INF"),
    "absi": partial(_unary, "absi", I16),
    "negi": partial(_unary, "negi", I8),
    "cmpi": lambda s: s.fn.cmpi(_predicate("GREATER_THAN"), s.tile(I64), s.tile(I64)),
    "bitcast": partial(_convert, "bitcast", F32, I32),
    "exti": partial(_convert, "exti", I8, I64, signedness="SIGNED"),
    "ftof": partial(_convert, "ftof", F32, types.bf16, **NEAREST),
    "ftoi": partial(_convert, "ftoi", F32, I32, signedness="SIGNED", rounding_mode="NEAREST_INT_TO_ZERO"),
    "itof": partial(_convert, "itof", I32, F32, signedness="UNSIGNED", **NEAREST),
    "trunci": partial(_convert, "trunci", I32, I1, overflow="NONE"),
    "int_to_ptr": _int_to_ptr,
    "ptr_to_int": lambda s: s.fn.ptr_to_int(s.pointers()),
    "ptr_to_ptr": _ptr_to_ptr,
    "pack": _pack,
    "unpack": _unpack,
    "broadcast": lambda s: s.fn.broadcast(s.tile(F32, (1, 16)), SHAPE),
    "cat": lambda s: s.fn.cat(s.tile(F32), s.tile(F32), 1),
    "constant": lambda s: s.fn.constant(types.tile(I32, (4,)), [1, -2, 3, 2**31 - 1]),
    "extract": _extract,
    "insert": _insert,
    "iota": lambda s: s.fn.iota(types.tile(I8, (256,))),
    "offset": _offset,
    "permute": lambda s: s.fn.permute(s.tile(F32), (1, 0)),
    "reshape": lambda s: s.fn.reshape(s.tile(F32), (2, 64)),
    "select": _select,
    "assume": _assume,
    "get_global": lambda s: s.fn.get_global("table", F32),
    "get_num_tile_blocks": lambda s: s.fn.num_tile_blocks(),
    "get_tile_block_id": lambda s: s.fn.tile_block_id(),
    "mmaf": _mmaf,
    "mmai": _mmai,
    "mmaf_scaled": _mmaf_scaled,
    "reduce": _reduce,
    "scan": _scan,
    "for": _for,
    "loop": _loop,
    "if": _if,
    "break": _loop,
    "continue": _for,
    "yield": _reduce,
    "return": _if,
    "assert": lambda s: s.fn.emit("assert", [s.tile(I1)], {"message": "must hold"}),
    "print_tko": _print,
    "get_index_space_shape": lambda s: s.fn.index_space_shape(s.view()),
    "get_tensor_shape": lambda s: s.fn.tensor_shape(s.tensor(), I64),
    "make_partition_view": lambda s: s.view(),
    "make_gather_scatter_view": _gather_scatter,
    "make_strided_view": _strided,
    "make_tensor_view": lambda s: s.tensor(),
    "load_view_tko": _load_view,
    "store_view_tko": _store_view,
    "atomic_red_view_tko": _atomic_red,
    "multimem_load_reduce_view_tko": _multimem_load,
    "multimem_reduce_view_tko": _multimem_reduce,
    "multimem_store_view_tko": _multimem_store,
    "atomic_cas_tko": _atomic_cas,
    "atomic_rmw_tko": _atomic_rmw,
    "load_ptr_tko": _load_ptr,
    "store_ptr_tko": _store_ptr,
    "alloca": lambda s: s.fn.emit(
        "alloca", (), {"num_elem": 64, "alignment": 16}, [types.tile(types.ptr(F32))]
    ),
    "join_tokens": lambda s: s.fn.join_tokens(s.fn.make_token(), s.fn.make_token()),
    "make_token": lambda s: s.fn.make_token(),
    "gdc_launch_dependents_tko": partial(_gdc, "gdc_launch_dependents_tko"),
    "gdc_wait_tko": partial(_gdc, "gdc_wait_tko"),
    "memory_fence_alias_tko": _fence,
}


@contextmanager
def kernel(version: Version) -> Iterator[Sample]:
    """A kernel that is ended after the samples put into it."""
    sample = Sample(version)
    yield sample
    sample.fn.return_()
