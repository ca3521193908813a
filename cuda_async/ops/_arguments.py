"""How kernel arguments become bytes.

A plan is worked out once per kernel and tuple of Python argument types: one `struct` layout for the whole argument
block, and a small code per argument that says how its value is checked. Packing a launch is then one loop over the
arguments and one `pack_into`.

What is known of a parameter decides what it takes. PTX gives kinds (integers without signedness, floats), a cubin gives
sizes only, a signature gives exact types.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver import ParameterInfo, ParameterKind
from ..errors import ClosedError, StaleOutputError
from ..memory import Mut, Read, Tensor
from ..memory._hints import instead_of_a_value
from ._context import check_operand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..scheduling import Device
    from ._written import Unpack

__all__ = [
    "ADDRESS",
    "MUT",
    "OTHER",
    "READ",
    "LaunchPlan",
    "describe_parameter",
    "make_plan",
    "parse_signature",
]

READ, MUT, INT, ADDRESS, OTHER = range(5)
"""What to do with an argument: a tensor to read, a tensor to write, a range-checked int, an int where the kernel is
known to take an address, anything else (converted)."""

Step = tuple[int, float, float, Any, str]
"""(code, low, high, mask or converter, description) of one argument."""

SIGNATURE_SIZES = {
    "ptr": 8,
    "bool": 1,
    **{f"{s}{n}": n // 8 for s in "iu" for n in (8, 16, 32, 64)},
    "f16": 2,
    "f32": 4,
    "f64": 8,
}
_UNSIGNED_FORMAT = {1: "B", 2: "H", 4: "I", 8: "Q"}
_FLOAT_FORMAT = {2: "e", 4: "f", 8: "d"}
_LARGEST_FLOAT = {2: math.nextafter(65520.0, 0.0), 4: 3.4028235677973362e38, 8: sys.float_info.max}
"""The largest float that still rounds to a finite one of each size."""
_LARGEST_FINITE = {2: 65504.0, 4: 3.4028234663852886e38, 8: sys.float_info.max}


def parse_signature(signature: Sequence[str | None]) -> tuple[str | None, ...]:
    """Check the names of parameter types; None is a parameter that has none, such as a structure."""
    if isinstance(signature, (str, bytes)) or not hasattr(signature, "__iter__"):
        raise TypeError(f'a signature is a sequence such as ("ptr", "i32"), got {signature!r}')
    names = tuple(signature)
    for position, name in enumerate(names):
        if name is not None and not (isinstance(name, str) and name in SIGNATURE_SIZES):
            raise ValueError(
                f"signature entry {position} is {name!r}; expected one of {', '.join(SIGNATURE_SIZES)}, "
                "or None for a structure"
            )
    return names


class LaunchPlan:
    """How to launch one loaded kernel with arguments of given types.

    Attributes:
        struct: the layout of the whole block.
        steps: per argument (code, low, high, mask or converter, description).
        addresses: the arguments that are numbers where the kernel is known to take an address.
    """

    def __init__(
        self, kernel: str, layout: struct.Struct, steps: list[Step], addresses: Sequence[int]
    ) -> None:
        self.kernel = kernel
        self.struct = layout
        self.steps = steps
        self.addresses = addresses

    def refuse_addresses(self, args: Sequence[Any]) -> None:
        """Raise where an argument is an address, other than a null pointer, of memory that was not named."""
        for i in self.addresses:
            code, _, _, convert, name = self.steps[i]
            if args[i] if code == ADDRESS else any(convert(args[i])):
                raise TypeError(
                    f"{self.kernel}: {name} was given an address as an integer; pass read(tensor) or mut(tensor), "
                    "or name the memory it points to with uses=[read(t), mut(t)]"
                )

    @functools.cached_property
    def unpack(self) -> Unpack:
        """(args, device) -> (values, outputs, read buffers, written buffers), checked."""
        from ._written import write_unpack

        return write_unpack(self)

    def overflow(self, index: int, value: int) -> OverflowError:
        """The error for an int that does not fit argument `index`."""
        _, low, high, _, name = self.steps[index]
        return OverflowError(f"{self.kernel}: {name} takes {low} to {high}, got {value}")

    def check_tensor(self, index: int, tensor: Tensor, device: Device) -> None:
        """Raise what is wrong with the tensor given for argument `index`."""
        what = f"{self.kernel}: {self.steps[index][4]}"
        try:
            check_operand(tensor, device, what)
        except (ClosedError, StaleOutputError) as error:
            raise type(error)(f"{what}: {error}") from None

    def pack_values(self, values: Sequence[Any]) -> list[Any]:
        """Plain numbers, checked and ready for the layout."""
        packed = []
        for i, ((code, low, high, extra, _), value) in enumerate(zip(self.steps, values)):
            if code == OTHER:
                packed.append(extra(value))
            else:
                if not low <= value <= high:
                    raise self.overflow(i, value)
                packed.append(value & extra)
        return packed


def make_plan(
    kernel: str,
    parameters: Sequence[ParameterInfo],
    signature: tuple[str | None, ...] | None,
    types: tuple[type, ...],
) -> LaunchPlan:
    """Work out a plan.

    Raises:
        TypeError: another number of arguments, or a type that the parameter does not take.
    """
    expected = [
        describe_parameter(p, signature[i] if signature and i < len(signature) else None)
        for i, p in enumerate(parameters)
    ]
    if signature is not None and len(signature) != len(parameters):
        raise TypeError(
            f"{kernel}: the signature has {len(signature)} types, the kernel {len(parameters)} parameters"
        )
    if len(types) != len(parameters):
        raise TypeError(
            f"{kernel} takes {len(parameters)} arguments ({', '.join(expected)}), got {len(types)} "
            f"({', '.join(t.__name__ for t in types)})"
        )
    steps = []
    addresses = []
    layout = ["<"]
    position = 0
    for i, (parameter, cls) in enumerate(zip(parameters, types)):
        exact = signature[i] if signature is not None else None
        if exact is not None and SIGNATURE_SIZES[exact] != parameter.size_bytes:
            raise TypeError(
                f"{kernel}: signature type {exact} of parameter {i} has {SIGNATURE_SIZES[exact]} bytes, "
                f"the kernel's parameter has {parameter.size_bytes}"
            )
        if parameter.offset_bytes > position:
            layout.append(f"{parameter.offset_bytes - position}x")
        step, code = _argument_step(kernel, i, parameter, exact, cls, expected[i])
        steps.append(step)
        layout.append(code)
        if step[0] not in (READ, MUT) and (exact == "ptr" or parameter.kind is ParameterKind.POINTER):
            addresses.append(i)
        position = parameter.offset_bytes + parameter.size_bytes
    return LaunchPlan(kernel, struct.Struct("".join(layout)), steps, addresses)


def describe_parameter(parameter: ParameterInfo, exact: str | None) -> str:
    """What a parameter takes, in words."""
    size = parameter.size_bytes
    if exact is not None:
        kind = exact
    elif parameter.kind is ParameterKind.INTEGER:
        kind = f"{size * 8}-bit integer" + (" or address" if size == 8 else "")
    elif parameter.kind is ParameterKind.POINTER:
        kind = "address"
    elif parameter.kind is ParameterKind.FLOAT:
        kind = f"f{size * 8}"
    else:
        kind = f"{size} bytes"
    return f"{parameter.name}: {kind}" if parameter.name else kind


def _argument_step(
    kernel: str, index: int, parameter: ParameterInfo, exact: str | None, cls: type, expected: str
) -> tuple[Step, str]:
    """((code, low, high, extra, name), struct format) for one argument."""
    size = parameter.size_bytes
    kind = parameter.kind
    name = f"argument {index} ({expected})"

    def refuse(hint: str) -> TypeError:
        return TypeError(f"{kernel}: {name} was given a {cls.__name__}; {hint}")

    if cls is Read or cls is Mut:
        if (
            size != 8
            or kind in (ParameterKind.FLOAT, ParameterKind.STRUCT)
            or exact not in (None, "ptr", "u64", "i64")
        ):
            raise refuse("a tensor is passed by its address, which has 8 bytes; are the arguments in order?")
        return (READ if cls is Read else MUT, 0, 0, None, name), "Q"
    if issubclass(cls, Tensor):
        raise refuse("say what the kernel does to it: read(tensor) or mut(tensor)")
    if issubclass(cls, np.ndarray):
        raise refuse(
            "kernels take device memory; bring the array over with from_host(), or pass a NumPy scalar"
        )
    if issubclass(cls, (np.generic, ctypes._SimpleCData, ctypes.Structure, ctypes.Array, ctypes.Union)):
        _check_scalar(cls, kind, exact, refuse)
        return _bytes_step(kernel, size, name, cls, refuse)
    if issubclass(cls, int):
        return _int_step(kernel, size, kind, exact, name, refuse)
    if issubclass(cls, float):
        if exact == "ptr" or (exact is None and kind is ParameterKind.POINTER):
            raise refuse("pass read(tensor) or mut(tensor)")
        if exact is not None and exact not in ("f16", "f32", "f64"):
            raise refuse("pass an int")
        if exact is None and kind is ParameterKind.STRUCT:
            raise refuse(f"pass a NumPy scalar of {size} bytes, or np.void or a ctypes structure")
        if exact is None and kind not in (ParameterKind.FLOAT, ParameterKind.UNKNOWN):
            raise refuse("pass an int, or a NumPy scalar of the parameter's size")
        if size not in _FLOAT_FORMAT:
            raise refuse("there is no float of that size")
        largest = _LARGEST_FLOAT[size]
        return (OTHER, -largest, largest, _float_converter(kernel, name, size), name), _FLOAT_FORMAT[size]
    hint = instead_of_a_value(cls)
    raise refuse(f"kernels take read(tensor), mut(tensor), numbers, NumPy scalars and ctypes values{hint}")


def _check_scalar(cls: type, kind: ParameterKind, exact: str | None, refuse: Any) -> None:
    """Refuse an integer where the kernel is known to take a float, and the other way round.

    `.u32` and the like do not tell: compilers declare floats so too. What has no number inside, such as a structure,
    is bytes of anything.
    """
    if issubclass(cls, np.flexible) and not issubclass(cls, np.void):
        raise refuse("pass bytes as np.void(bytes)")
    if issubclass(cls, ctypes._SimpleCData):
        code: str = cls._type_  # type: ignore[attr-defined]  # typeshed leaves it out
        if code in ("O", "z", "Z"):
            raise refuse("it is an address in this process, where no kernel can look")
        is_float = code in ("f", "d", "g")
    elif issubclass(cls, np.inexact):
        is_float = True
    elif issubclass(cls, (np.integer, np.bool_, np.datetime64)):  # timedelta64 is an integer
        is_float = False
    else:
        return
    if exact in ("f16", "f32", "f64") or (exact is None and kind is ParameterKind.FLOAT):
        if not is_float or issubclass(cls, np.complexfloating):
            raise refuse("it is passed bit for bit, and is no float; convert it first, as in float(x)")
    elif is_float and (exact is not None or kind is ParameterKind.POINTER):
        raise refuse("it is passed bit for bit, and is no integer; convert it first, as in int(x)")


def _bytes_step(kernel: str, size: int, name: str, cls: type, refuse: Any) -> tuple[Step, str]:
    """A typed value: passed bit for bit; its own size must be the parameter's."""
    fixed = None
    if issubclass(cls, np.generic) and not issubclass(cls, np.void):
        fixed = np.dtype(cls).itemsize
    elif not issubclass(cls, np.generic):
        fixed = ctypes.sizeof(cls)  # type: ignore[arg-type]  # a ctypes class by now
    if fixed is not None and fixed != size:
        hint = "; convert it first, as in float(x) or int(x)" if issubclass(cls, np.number) else ""
        raise refuse(f"it has {fixed} bytes, the parameter {size}{hint}")

    def convert(value: Any) -> bytes:
        data = value.tobytes() if isinstance(value, np.generic) else bytes(value)
        if len(data) != size:
            raise TypeError(f"{kernel}: {name} was given {len(data)} bytes, the parameter has {size}")
        return data

    return (OTHER, 0, 0, convert, name), f"{size}s"


def _int_step(
    kernel: str, size: int, kind: ParameterKind, exact: str | None, name: str, refuse: Any
) -> tuple[Step, str]:
    if exact in ("f16", "f32", "f64") or (exact is None and kind is ParameterKind.FLOAT):
        return (OTHER, 0, 0, _float_converter(kernel, name, size), name), _FLOAT_FORMAT[size]
    if exact == "ptr" or kind is ParameterKind.POINTER:
        return (ADDRESS, 0, 2**64 - 1, 2**64 - 1, name), "Q"
    if size not in _UNSIGNED_FORMAT or kind is ParameterKind.STRUCT:
        raise refuse(f"pass the parameter's {size} bytes as np.void or a ctypes structure")
    bits = size * 8
    if exact == "bool":
        low, high = 0, 1
    elif exact is not None:
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if exact[0] == "i" else (0, 2**bits - 1)
    else:
        low, high = -(2 ** (bits - 1)), 2**bits - 1
    return (INT, low, high, 2**bits - 1, name), _UNSIGNED_FORMAT[size]


def _float_converter(kernel: str, name: str, size: int) -> Any:
    """Floats pass as they are; one beyond the type's range is an error, not infinity."""
    largest = _LARGEST_FLOAT[size]

    def convert(value: float) -> float:
        if -largest <= value <= largest or value in (float("inf"), float("-inf")) or value != value:
            return value
        raise OverflowError(f"{kernel}: {name} takes up to {_LARGEST_FINITE[size]:g}, got {value!r}")

    return convert
