"""Building a module: `ModuleWriter` holds kernels, `FunctionBuilder` fills one.

    m = ModuleWriter(producer="tilekern")
    fn = m.function("scale", [types.tile(types.ptr(types.f32)), types.tile(types.i32)])
    pointer, n = fn.arguments
    view_type = types.tensor_view(types.f32, (None,), (1,))
    tiles = types.partition_view((128,), view_type)
    x = fn.make_view(tiles, fn.make_tensor_view(view_type, pointer, [n]))
    block, _, _ = fn.tile_block_id()
    tile, token = fn.load_view(x, [block])
    two = fn.constant(tile.tile_type, 2.0)
    fn.store_view(fn.mulf(tile, two), x, [block], token)
    fn.return_()
    bytecode = m.to_bytes()

Every method appends one operation to the current block and gives its results as `Value`s. Any operation
of the table can be made with `fn.emit(name, operands, attributes, result_types)`; the named methods are
the same with inferred types. Bodies are context managers (`for_`, `loop`, `if_`, `reduce`, `scan`).
`fn.at(SourceLocation(...))` says which source line the operations made inside stand for; it has an effect
if the function was given a `location`, which puts debug information into the file.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import types
from ._attributes import ENTRY_HINTS, Hints, check_hints
from ._build_control import ControlOps
from ._build_memory import MemoryOps
from ._build_values import ValueOps
from ._constants import check_constant_size
from ._debug import LocationTable, SourceLocation
from ._encoder import encode_module
from ._module import Block, Function, Global, Module, Value
from ._operation import check_type_version
from ._version import DEFAULT_VERSION, SUPPORTED_VERSIONS, Version, version_text
from .errors import BytecodeError

__all__ = ["FunctionBuilder", "ModuleWriter"]


class FunctionBuilder(ValueOps, MemoryOps, ControlOps):
    """Fills the body of one kernel; made by `ModuleWriter.function`."""

    def __init__(self, version: Version, function: Function, locations: LocationTable | None) -> None:
        super().__init__(version, function.body, locations)
        self._function = function

    @property
    def name(self) -> str:
        """Name of the entry."""
        return self._function.name

    @property
    def arguments(self) -> tuple[Value, ...]:
        """The kernel's parameters."""
        return self._function.body.arguments


class ModuleWriter:
    """A Tile IR module being built; `to_bytes` gives the bytecode.

    Args:
        version: bytecode version; operations, attributes and types newer than it are refused.
        producer: a text saying what made the file (kept from version 13.3 on).
    """

    def __init__(self, version: Version = DEFAULT_VERSION, producer: str | None = None) -> None:
        if version not in SUPPORTED_VERSIONS:
            known = ", ".join(map(version_text, SUPPORTED_VERSIONS))
            raise BytecodeError(f"bytecode version {version} cannot be written; there are {known}")
        self._module = Module(version, producer=producer)

    @property
    def module(self) -> Module:
        """What has been built so far."""
        return self._module

    def function(
        self,
        name: str,
        parameter_types: Sequence[types.Type],
        *,
        hints: Hints | None = None,
        location: SourceLocation | None = None,
    ) -> FunctionBuilder:
        """Add a kernel entry.

        Args:
            name: its symbol in the cubin.
            parameter_types: scalars only: `types.tile(element)` of a number or pointer.
            hints: per target, see `ENTRY_HINTS`; what the assembler would silently ignore is refused.
            location: where the kernel is defined; with it the module gets debug information.
        """
        if not name or any(f.name == name for f in self._module.functions):
            raise BytecodeError(f"a kernel needs a name of its own, got {name!r}")
        for kind in parameter_types:
            if not isinstance(kind, types.TileType) or kind.rank:
                raise BytecodeError(f"{name}: parameters are scalars such as tile<i32>, got {kind}")
            check_type_version(kind, self._module.version, name)
        function = Function(
            name,
            Block(tuple(Value(kind) for kind in parameter_types)),
            check_hints(hints, ENTRY_HINTS, name) if hints else (),
        )
        locations = None
        if location is not None:
            locations = LocationTable(name, location)
            function.location = locations.function
        self._module.functions.append(function)
        return FunctionBuilder(self._module.version, function, locations)

    def add_global(
        self,
        name: str,
        kind: types.TileType,
        data: bytes,
        *,
        alignment: int = 0,
        private: bool = False,
        constant: bool = False,
    ) -> None:
        """Add module data of a rank-1 tile type, encoded by `encode_elements`; alignment 0 is the default."""
        if kind.rank != 1:
            raise BytecodeError(f"global {name}: a rank-1 tile type is needed, got {kind}")
        check_constant_size(kind, data)
        self._module.globals.append(Global(name, kind, data, alignment, private, constant))

    def to_bytes(self) -> bytes:
        """The bytecode file.

        Raises:
            BytecodeError: no kernel, one that does not end with `return_`, or a value used where it is
                not visible.
        """
        if not self._module.functions:
            raise BytecodeError("a module needs at least one kernel")
        for function in self._module.functions:
            operations = function.body.operations
            if not operations or operations[-1].name != "return":
                raise BytecodeError(f"{function.name}: a kernel ends with return_()")
        return encode_module(self._module)
