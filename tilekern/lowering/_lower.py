"""From a function of the IR to Tile IR bytecode."""

from __future__ import annotations

from ..dtypes import bool_
from ..ir import Function, TileType
from ..tileir import DEFAULT_VERSION, Hints, ModuleWriter, Version, types
from ..tileir.errors import NewerBytecodeError
from ._lowerer import Lowerer, source_location, tile_type

__all__ = ["ENTRY_HINTS", "lower"]

ENTRY_HINTS = {
    "num_ctas": "num_cta_in_cga",
    "occupancy": "occupancy",
    "num_worker_warps": "num_worker_warps_per_cta",
}
"""Name of each of a function's hints in Tile IR."""


def lower(function: Function, *, version: Version | None = None, locations: bool = False) -> bytes:
    """The bytecode of a module that holds `function`.

    Its parameters become entry parameters one to one; a bool is passed as a byte.

    Args:
        version: of the bytecode; if not given, 13.3, or the first that has what the function needs.
        locations: put source locations in, for debuggers and for errors of the assembler. They make the
            bytecode depend on where the source lies.
    Raises:
        NewerBytecodeError: `version` was given and is too old.
    """
    chosen = DEFAULT_VERSION if version is None else version
    while True:
        try:
            return _lower(function, chosen, locations)
        except NewerBytecodeError as error:
            if version is not None or error.needed <= chosen:
                raise
            chosen = error.needed


def _lower(function: Function, version: Version, locations: bool) -> bytes:
    writer = ModuleWriter(version, producer="tilekern")
    entries = {ENTRY_HINTS[name]: value for name, value in function.hints.items()}
    hints: Hints | None = {"default": entries} if entries else None
    fn = writer.function(
        function.name,
        _parameter_types(function),
        hints=hints,
        location=source_location(function.location) if locations else None,
    )
    Lowerer(function, fn).block(function.body)
    return writer.to_bytes()


def _parameter_types(function: Function) -> list[types.TileType]:
    found = []
    for value in function.body.arguments:
        assert isinstance(value.type, TileType)
        is_bool = value.type.dtype is bool_
        found.append(types.tile(types.i8) if is_bool else tile_type(value.type))
    return found
