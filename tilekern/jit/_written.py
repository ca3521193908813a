"""The path of a launch, written out as straight-line code for the Python types of a call's arguments.

A launch is short because all that can be is worked out once. For each tuple of argument types a function is
written that builds the call key (a number for the types, shapes, strides, addresses modulo 256, ranges of ints: what
tells calls apart that need different code, flat arguments or grids), looks up what is known of such calls, and hands
the arguments over. For each key, a function is written that puts the flat arguments together and launches.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuda_async import MappedPartition, Mut, Partition, Read, Tensor, mut, read
from cuda_async.errors import AliasError, LaunchError
from cuda_async.ops._launch import check_aliases, launch_step_by_step
from cuda_async.ops._unprepared import UNPREPARED

from ..dtypes import DType

if TYPE_CHECKING:
    from cuda_async.driver._arguments import ArgumentRule
    from cuda_async.ops import LoadedFunction

    from ..frontend import Capture, LaunchCheck
    from ._grid import Grid

__all__ = [
    "CallPath",
    "Run",
    "Slot",
    "are_decided",
    "constant_key",
    "flat_arguments",
    "rule_of",
    "run_checks",
    "write_call_path",
    "write_run",
]

IMPLICIT_CONSTANTS = (
    *(enum.Enum, str, bytes, NoneType, type, DType, np.dtype),
    *(FunctionType, BuiltinFunctionType, MethodType, functools.partial, np.ufunc),
)
"""What can be nothing but a constant, for a parameter that is not declared."""

_path_numbers = itertools.count()
"""One for each call path. In a call key it stands for the argument types: other parts may be equal for other types."""

# Any: arguments are whatever a kernel takes
Run = Callable[..., Any]
"""(ctx, *args) -> UNPREPARED where what is compiled in has changed."""


class CallPath(NamedTuple):
    """The written functions for calls with arguments of some types.

    Attributes:
        key: (args, device, grid, options) -> the call key.
        launch: (args, ctx, grid, options) -> the outputs, or UNPREPARED.
    """

    key: Callable[[Any, Any, Any, Any], Any]
    launch: Callable[[Any, Any, Any, Any], Any]


def write_call_path(
    name: str, types: Sequence[type], constants: Sequence[bool], find: Callable[[Any], Run | None]
) -> CallPath:
    """Write the functions for calls with arguments of `types`; `find` gives what is known of a call key."""
    parts: list[str] = [str(next(_path_numbers))]
    outputs: list[str] = []
    for i, (cls, is_constant) in enumerate(zip(types, constants, strict=True)):
        parts += _key_parts(f"a{i}", cls, is_constant)
        outputs.append(f"a{i}.tensor" if cls in (Mut, Read) and not is_constant else f"a{i}")
    arguments = "".join(f"a{i}, " for i in range(len(types)))
    unpack = f"{arguments}= args" if types else "pass"
    source = f"""
def key(args, device, grid, options):
    {unpack}
    return ({"".join(f"{p}, " for p in parts)}device, grid, options)

def launch(args, ctx, grid, options):
    {unpack}
    device = ctx.device
    run = find(({"".join(f"{p}, " for p in parts)}device, grid, options))
    if run is None: return UNPREPARED
    if run(ctx, {arguments}) is UNPREPARED: return UNPREPARED
    return ({"".join(f"{o}, " for o in outputs)})
"""
    names: dict[str, Any] = {"find": find, "UNPREPARED": UNPREPARED, "constant_key": constant_key}
    exec(compile(source, f"<call of {name}>", "exec"), names)
    return CallPath(names["key"], names["launch"])


def _key_parts(a: str, cls: type, is_constant: bool) -> list[str]:
    """Expressions for what of an argument, besides its type, belongs to the key."""
    if is_constant or issubclass(cls, IMPLICIT_CONSTANTS):
        # equal floats can differ in the sign of zero, and parts of tuples in type
        return [f"constant_key({a})" if issubclass(cls, float | complex | tuple | frozenset) else a]
    if cls is Tensor:
        return _tensor_parts(a)
    if cls is Partition:
        return [*_tensor_parts(f"{a}.tensor"), f"{a}.tile_shape", f"{a}.prefix"]
    if cls is MappedPartition:
        return [*_tensor_parts(f"{a}.tensor"), f"{a}.tile_shape", f"{a}.map_shape", f"{a}.tile_blocks"]
    if cls in (Mut, Read):
        return _tensor_parts(f"{a}.tensor")
    if issubclass(cls, int) and cls is not bool:
        return [f"1 if -0x80000000 <= {a} <= 0x7FFFFFFF else 2 if -(1 << 63) <= {a} < 1 << 63 else 3"]
    return []


def _tensor_parts(tensor: str) -> list[str]:
    return [f"{tensor}.shape", f"{tensor}.strides", f"{tensor}.dtype.num", f"{tensor}._address & 255"]


def constant_key(value: object) -> object:
    """A key that tells 1, 1.0 and True apart, and 0.0 from -0.0."""
    if isinstance(value, tuple | frozenset):
        return (type(value), *map(constant_key, value))
    if isinstance(value, float):
        return (float, repr(value))
    return (type(value), value)


class Slot(NamedTuple):
    """One flat argument: a number that belongs to the key, or an argument, by `convert` if it needs that.

    Attributes:
        is_tensor: the address of a tensor, whose extents and strides are compiled in or follow.
    """

    number: int = 0
    argument: int = -1
    convert: Callable[[Any], Any] | None = None
    is_tensor: bool = False


def flat_arguments(slots: Sequence[Slot], args: Sequence[Any]) -> list[Any]:
    """The flat arguments of a call: tensors as `Read` and `Mut`, numbers as they are packed."""
    values: list[Any] = []
    for slot in slots:
        if slot.argument < 0:
            values.append(slot.number)
            continue
        arg = args[slot.argument]
        if isinstance(arg, Tensor):
            arg = read(arg)
        elif isinstance(arg, Partition | MappedPartition):
            arg = mut(arg.tensor)
        values.append(arg if slot.convert is None else slot.convert(arg))
    return values


def write_run(
    name: str,
    parameters: Sequence[str],
    types: Sequence[type],
    slots: Sequence[Slot],
    loaded: LoadedFunction,
    grid: Grid,
    checks: Sequence[LaunchCheck],
    captures: Sequence[Capture],
    programmatic: bool = False,
) -> Run:
    """Write the function (ctx, *args) that launches calls of one key; `programmatic` ones may begin early.

    It launches nothing when a capture does not hold any more. Checks of what belongs to the key are made
    now; those of scalars, on every launch.

    Raises:
        LaunchError: a check of what belongs to the key does not hold.
    """
    known = [slot.number for slot in slots]
    fixed = [check for check in checks if all(slots[flat].argument < 0 for flat in check.flats)]
    varying = [check for check in checks if check not in fixed]
    run_checks(name, fixed, known, grid)
    names: dict[str, Any] = {
        "mut": mut,
        "read": read,
        "loaded": loaded,
        "config": (grid, (1, 1, 1), 0),
        "launch_early": lambda values, ctx, config: launch_step_by_step(
            loaded, values, ctx, config, programmatic=True
        ),
        "AliasError": AliasError,
        "name_aliases": lambda args: _name_aliases(name, parameters, args),
        "run_checks": lambda values: run_checks(name, varying, values, grid),
    }
    values = []
    for position, slot in enumerate(slots):
        if slot.argument < 0:
            values.append(repr(slot.number))
            continue
        cls, a = types[slot.argument], f"a{slot.argument}"
        if cls is Tensor:
            values.append(f"read({a})")
        elif cls is Partition or cls is MappedPartition:
            values.append(f"mut({a}.tensor)")
        elif slot.convert is None:
            values.append(a)
        else:
            names[f"convert{position}"] = slot.convert
            values.append(f"convert{position}({a})")
    flat = f"({''.join(f'{v}, ' for v in values)})"
    arguments = "".join(f", a{i}" for i in range(len(types)))
    changed = _written_captures(captures, names)
    source = f"""
def run(ctx{arguments}):
    {changed}
    {f"values = {flat}; run_checks(values)" if varying else ""}
    try:
        {"launch_early" if programmatic else "loaded.launch"}({"values" if varying else flat}, ctx, config)
    except AliasError:
        name_aliases(({"".join(f"a{i}, " for i in range(len(types)))}))
        raise
"""
    exec(compile(source, f"<launch of {name}>", "exec"), names)
    run: Run = names["run"]
    return run


def _written_captures(captures: Sequence[Capture], names: dict[str, Any]) -> str:
    """A statement that leaves `run` when a capture does not hold; most are found to by `is`."""
    tests = []
    for i, capture in enumerate(captures):
        names[f"holds{i}"] = capture.holds
        if not capture.is_by_identity:
            tests.append(f"holds{i}()")
            continue
        names[f"owner{i}"], names[f"value{i}"] = capture.owner, capture.value
        read = {"global": f"[{capture.name!r}]", "cell": ".cell_contents"}.get(
            capture.kind, f".{capture.name}"
        )
        tests.append(f"(owner{i}{read} is value{i} or holds{i}())")
    if not tests:
        return ""
    names["UNPREPARED"] = UNPREPARED
    return f"""try:
        if not ({" and ".join(tests)}): return UNPREPARED
    except Exception: return UNPREPARED"""


def _name_aliases(kernel: str, parameters: Sequence[str], args: Sequence[Any]) -> None:
    """Raise the error for arguments that share memory, with the parameters they are given to."""
    tensors = [
        (
            name,
            arg if isinstance(arg, Tensor) else arg.tensor,
            isinstance(arg, Mut | Partition | MappedPartition),
        )
        for name, arg in zip(parameters, args, strict=True)
        if isinstance(arg, Tensor | Mut | Read | Partition | MappedPartition)
    ]
    for i, (name, tensor, is_exclusive) in enumerate(tensors):
        for other, second, is_exclusive_too in tensors[i + 1 :]:
            what = f"{kernel}, parameters {name} and {other}"
            if is_exclusive:
                writes, reads = ([tensor, second], []) if is_exclusive_too else ([tensor], [second])
                check_aliases(what, writes, reads)
            elif is_exclusive_too:
                check_aliases(what, [second], [tensor])


def are_decided(checks: Sequence[LaunchCheck], slots: Sequence[Slot], grid: Grid) -> bool:
    """True when a variant may run a call: all holds of what decides between it and one that checks itself."""
    known = [slot.number for slot in slots]
    return all(check.problem(known, grid) is None for check in checks if getattr(check, "decides", False))


def rule_of(checks: Sequence[LaunchCheck], slots: Sequence[Slot]) -> ArgumentRule:
    """Which flat arguments a launch may be given in the place of those that it was checked with."""

    def rule(before: Sequence[int], now: Sequence[int], grid: Grid) -> str | None:
        for position, (slot, old, new) in enumerate(zip(slots, before, now, strict=True)):
            if old != new and (slot.argument < 0 or slot.is_tensor):
                what = "a tensor's address" if slot.is_tensor else f"an extent or a stride, {old}"
                return (
                    f"argument {position} is {what}, which the kernel was made and checked for; copy what is to be "
                    "used into the tensor that the graph was captured with, or capture another graph"
                )
        for check in checks:
            problem = check.problem(now, grid)
            if problem is not None:
                return check.location.describe(problem) if check.location else problem
        return None

    return rule


def run_checks(name: str, checks: Sequence[LaunchCheck], values: Sequence[Any], grid: Grid) -> None:
    """Raise what is wrong with the flat arguments of a launch."""
    for check in checks:
        problem = check.problem(values, grid)
        if problem is not None:
            reason = f"{name}: {problem}"
            raise LaunchError(check.location.describe(reason) if check.location else reason)
