"""From a Python function and what is known of its arguments to a function of the IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._terms import LaunchFacts, Term, argument, constant
from ..dtypes import DType
from ..ir import (
    AssumeBoundedOp,
    AssumeDivByOp,
    Block,
    Function,
    MakeTensorOp,
    PointerType,
    ReturnOp,
    TensorType,
    TileType,
    Value,
    scalar,
    tile_shape_problem,
)
from ._aggregates import new_record, record_fields
from ._calls import run_function
from ._effects import check_effects, note_accesses
from ._extents import dimension, tile_count
from ._frame import Frame
from ._mapped import MappedTilesValue
from ._preconditions import apply_preconditions
from ._specs import (
    ConstantSpec,
    GroupSpec,
    ParameterSpec,
    PartitionSpec,
    PointerSpec,
    ScalarSpec,
    TensorSpec,
)
from ._translator import Translator
from ._values import Loose, OwnedTileValue, TensorValue
from .operations import block_id

if TYPE_CHECKING:
    from ._captures import Capture
    from ._checks import LaunchCheck
    from ._source import FunctionSource

__all__ = ["Program", "translate"]


@dataclass(frozen=True)
class Program:
    """A translated kernel.

    Attributes:
        function: the kernel in the IR; its parameters are the flat arguments of a launch.
        checks: what every launch must satisfy.
        captures: what is compiled in of the program around it.
        facts: what the launcher sees to, for proofs about indices.
    """

    function: Function
    checks: tuple[LaunchCheck, ...]
    captures: tuple[Capture, ...]
    facts: LaunchFacts


def translate(
    source: FunctionSource,
    specs: Sequence[ParameterSpec],
    hints: dict[str, int] | None = None,
    grid: tuple[int, int, int] | None = None,
    preconditions: Sequence[str] = (),
) -> Program:
    """Translate a kernel for arguments of those specs, in the order of its parameters.

    Args:
        grid: compiled in where it is given, so that `tk.num_blocks` is known at compile time.
        preconditions: what the kernel declares of its arguments; see `_preconditions.py`.
    Raises:
        KernelError: the kernel's code is wrong; the message points at it.
    """
    # the symbol of the entry; not every Python name is one
    name = source.name if source.name.isascii() else "kernel"
    function = Function(name, Block(), dict(hints or {}))
    t = Translator(function.body)
    t.grid = grid
    frame = Frame(source, t.captures)
    arguments = source.node.args
    nodes = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    names = [node.arg for node in nodes]
    assert len(names) == len(specs), "one spec per parameter"
    t.at(frame, source.node)
    function.location = t.location
    for node, name, spec in zip(nodes, names, specs, strict=True):
        t.at(frame, node)
        frame.variables[name] = _parameter(t, name, spec)
    t.at(frame, source.node)
    parameters = dict(frame.variables)
    facts, checks = apply_preconditions(preconditions, _extents(t, parameters), _facts(t, grid), t.location)
    t.checks += checks
    try:
        run_function(t, frame)
    except RecursionError:
        raise t.wrong_value(
            "the code nests too deeply here: calls of helpers, or returns that each wait for the one before; make "
            "helpers shorter, or set a variable and return once"
        ) from None
    note_accesses(t, function)
    check_effects(t.effects, frame, parameters, t.memory)
    t.at(frame, source.node)
    t.add(ReturnOp())
    function.verify()
    facts = facts._replace(grid_limits=(*facts.grid_limits, *t.grid_limits))
    return Program(function, tuple(dict.fromkeys(t.checks)), t.captures.steady(), facts)


def _facts(t: Translator, grid: tuple[int, int, int] | None) -> LaunchFacts:
    """What is known of the grid, and which arguments are numbers of a launch."""
    limits = tuple([(axis, constant(size)) for axis, size in enumerate(grid or ())])
    numbers = [position for value, position in t.entry.items() if value not in t.dimensions]
    return LaunchFacts(grid_limits=limits, scalars=frozenset(numbers))


def _extents(t: Translator, parameters: dict[str, object]) -> Callable[[str, int], Term | None]:
    """The dimension of a tensor or partition parameter along an axis."""

    def extent(name: str, axis: int) -> Term | None:
        value = parameters.get(name)
        tensor = value.tensor if isinstance(value, OwnedTileValue) else value
        if not isinstance(tensor, TensorValue) or axis >= tensor.rank:
            return None
        return dimension(tensor, axis)

    return extent


def _parameter(t: Translator, name: str, spec: ParameterSpec) -> object:
    """What a parameter is inside of the kernel; adds its entry arguments and what is assumed of them."""
    if isinstance(spec, ConstantSpec):
        return spec.value
    if isinstance(spec, ScalarSpec):
        return _entry_argument(t, scalar(spec.dtype), name, Loose if spec.loose else Value)
    if isinstance(spec, PartitionSpec):
        if problem := tile_shape_problem(spec.tile_shape):
            raise t.wrong_value(f"{name} is a partition in tiles of {spec.tile_shape}: {problem}")
        tensor = _tensor(t, name, spec.tensor)
        if spec.map_shape is not None:
            return MappedTilesValue(tensor, spec.tile_shape, (), spec.map_shape)
        index = tuple([block_id(t, axis) for axis in range(len(spec.tile_shape))])
        own = OwnedTileValue(tensor, spec.tile_shape, index)
        t.grid_limits += [(axis, tile_count(own, axis)) for axis in range(len(index))]
        return own
    if isinstance(spec, PointerSpec):
        return _pointer(t, name, spec)
    if isinstance(spec, GroupSpec):
        return _group(t, name, spec)
    return _tensor(t, name, spec)


def _group(t: Translator, name: str, spec: GroupSpec) -> object:
    """A tuple, dict or record of parameters."""
    fields: Sequence[str] | None = getattr(spec.cls, "_fields", None)
    if spec.cls is not None and fields is None:
        fields = record_fields(spec.cls)
    if spec.keys is not None:
        names = [f"{name}[{key!r}]" for key in spec.keys]
    elif fields is not None:
        names = [f"{name}.{field}" for field in fields]
    else:
        names = [f"{name}[{i}]" for i in range(len(spec.parts))]
    parts = [_parameter(t, own, part) for own, part in zip(names, spec.parts, strict=True)]
    if spec.keys is not None:
        return dict(zip(spec.keys, parts, strict=True))
    if spec.cls is None:
        return tuple(parts)
    if issubclass(spec.cls, tuple):
        named: type = spec.cls
        return named(*parts)
    assert fields is not None
    record = new_record(spec.cls, dict(zip(fields, parts, strict=True)))
    t.captures.own(record)
    return record


def _entry_argument(t: Translator, kind: TileType, name: str, make: type[Value] = Value) -> Value:
    value = make(kind, name)
    arguments = t.builder.block.arguments
    t.entry[value] = len(arguments)
    if make is Loose and isinstance(kind.dtype, DType) and kind.dtype.is_integer:
        t.terms[value] = argument(len(arguments), name)
    arguments.append(value)
    return value


def _pointer(t: Translator, name: str, spec: PointerSpec) -> Value:
    base = _entry_argument(t, TileType(PointerType(spec.dtype)), name)
    aligned = _assume_multiple(t, base, spec.alignment)
    t.memory[base] = t.memory[aligned] = (name, spec.writable)
    return aligned


def _tensor(t: Translator, name: str, spec: TensorSpec) -> TensorValue:
    base = _entry_argument(t, TileType(PointerType(spec.dtype)), name)
    t.memory[base] = (name, spec.writable)
    shape: list[Value | int] = []
    flat: list[int | None] = []
    for axis, extent in enumerate(spec.shape):
        if extent is None:
            entry = _entry_argument(t, scalar(spec.index_dtype), f"{name}_shape{axis}")
            t.dimensions.add(entry)
            flat.append(t.entry[entry])
            shape.append(entry)
        else:
            flat.append(None)
            shape.append(extent)
    strides: list[Value | int] = [
        _entry_argument(t, scalar(spec.index_dtype), f"{name}_stride{axis}") if stride is None else stride
        for axis, stride in enumerate(spec.strides)
    ]
    base = _assume_multiple(t, base, spec.alignment)
    shape = [
        _assume_multiple(t, _assume_positive(t, part), divisor) if isinstance(part, Value) else part
        for part, divisor in zip(shape, spec.shape_divisors, strict=True)
    ]
    strides = [
        _assume_multiple(t, part, divisor) if isinstance(part, Value) else part
        for part, divisor in zip(strides, spec.stride_divisors, strict=True)
    ]
    op = MakeTensorOp(
        base=base,
        shape=tuple([part for part in shape if isinstance(part, Value)]),
        strides=tuple([part for part in strides if isinstance(part, Value)]),
        result=Value(TensorType(spec.dtype, spec.shape, spec.strides), f"{name}_tensor"),
    )
    tensor = t.add(op).result
    return TensorValue(name, tensor, tuple(shape), tuple(strides), spec.writable, tuple(flat), base)


def _assume_multiple(t: Translator, value: Value, divisor: int) -> Value:
    if divisor == 1:
        return value
    return t.add(AssumeDivByOp(source=value, divisor=divisor, result=Value(value.type, value.name))).result


def _assume_positive(t: Translator, value: Value) -> Value:
    op = AssumeBoundedOp(source=value, lower=0, upper=None, result=Value(value.type, value.name))
    return t.add(op).result
