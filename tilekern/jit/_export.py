"""Compiling kernels ahead of time into a folder; `_compiled.py` says what is in it and reads it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CompiledKernelError
from ..frontend import ConstantSpec, ParameterSpec, PartitionSpec, PointerSpec, ScalarSpec, TensorSpec
from ._compiled import FORMAT, MANIFEST, kernel_id
from ._kernel import disk_cache
from ._launch import CompileOp
from ._portable import NotPortable, to_portable

if TYPE_CHECKING:
    from ._kernel import Kernel
    from ._options import KernelOptions

__all__ = ["export"]


def export(
    folder: str | os.PathLike[str], operations: Sequence[CompileOp], arch: str | Sequence[str]
) -> list[Path]:
    """`export_compiled`."""
    targets = (arch,) if isinstance(arch, str) else tuple(arch)
    if not targets:
        raise ValueError("no architecture given; name one, such as arch='sm_90'")
    taken = []
    for op in operations:
        if not isinstance(op, CompileOp):
            raise TypeError(
                f"export_compiled takes operations made by kernel.compile(...), got {type(op).__name__}"
            )
        op._take()
        taken.append(op)
    path = Path(folder)
    made: dict[str, tuple[dict[str, Any], bytes]] = {}
    for op in taken:
        for target in targets:
            made.update(_compile(op, target))
    path.mkdir(parents=True, exist_ok=True)
    before = _written_before(path)
    for name, (_, cubin) in made.items():
        _write(path / name, cubin)
    manifest = {"format": FORMAT, "made_by": _made_by(), "variants": [entry for entry, _ in made.values()]}
    _write(path / MANIFEST, json.dumps(manifest, indent=1).encode())
    for name in before - set(made):
        (path / name).unlink(missing_ok=True)
    return [path / name for name in made]


def _compile(op: CompileOp, target: str) -> dict[str, tuple[dict[str, Any], bytes]]:
    """The variants that such a call may need, by the name of the cubin: manifest entry and machine code."""
    from ._specialize import specialize

    kernel, options = op._kernel, op._options.for_target(target)
    given = specialize(kernel.name, kernel.parameters, op._args, options.max_divisibility)
    specs = kernel.grouped_specs(given)
    entry, cubin, has_other = _compile_one(kernel, specs, options, target)
    made = {entry["cubin"]: (entry, cubin)}
    if has_other:
        # calls whose indices cannot be told to be in range run one that checks them
        entry, cubin, _ = _compile_one(kernel, specs, replace(options, check_variants=False), target)
        made[entry["cubin"]] = entry, cubin
    return made


def _compile_one(
    kernel: Kernel, specs: tuple[ParameterSpec, ...], options: KernelOptions, target: str
) -> tuple[dict[str, Any], bytes, bool]:
    """Manifest entry, machine code, and whether there is another variant for some calls."""
    from ._compile import assembled, build_program, bytecode_of, toolchain_for

    program = build_program(kernel.source, specs, options, for_device=True)
    bytecode = bytecode_of(program.function, options)
    toolchain = toolchain_for(program.function, target, disk_cache())
    cubin = assembled(program.function, bytecode, options, target, toolchain).cubin
    arguments = ", ".join(map(_text, specs))
    try:
        entry = {
            "kernel": kernel_id(kernel._function),
            "architecture": target,
            "options": to_portable(options),
            "specs": to_portable(specs),
        }
    except NotPortable as error:
        raise CompiledKernelError(
            f"{kernel.name} with {arguments} cannot be exported: {error}; constants must be numbers, texts, "
            "element types or tuples of them"
        ) from None
    mark = hashlib.sha256(json.dumps(entry).encode()).hexdigest()[:16]
    entry |= {
        "arguments": arguments,
        "bytecode_sha256": hashlib.sha256(bytecode).hexdigest(),
        "cubin": f"{program.function.name}-{target}-{mark}.cubin",
        "cubin_sha256": hashlib.sha256(cubin).hexdigest(),
        "assembler": toolchain.version,
    }
    return entry, cubin, any(getattr(check, "decides", False) for check in program.checks)


def _text(spec: ParameterSpec) -> str:
    """A spec for people, in the words of `_argument_text.py`."""
    if isinstance(spec, PartitionSpec):
        mapped = "" if spec.map_shape is None else f" mapped {'x'.join(map(str, spec.map_shape))}"
        return f"{_text(spec.tensor).removeprefix('mut ')}/{'x'.join(map(str, spec.tile_shape))}{mapped}"
    if isinstance(spec, TensorSpec):
        extents = zip(spec.shape, spec.shape_divisors, strict=True)
        parts = [str(n) if n is not None else f"*{divisor}" if divisor > 1 else "*" for n, divisor in extents]
        return f"{'mut ' if spec.writable else ''}{spec.dtype.name}[{','.join(parts)}]"
    if isinstance(spec, PointerSpec):
        return f"{'mut ' if spec.writable else ''}{spec.dtype.name}[*]"
    if isinstance(spec, ScalarSpec):
        return spec.dtype.name
    if isinstance(spec, ConstantSpec):
        return repr(spec.value)
    return f"({', '.join(map(_text, spec.parts))})"


def _written_before(folder: Path) -> set[str]:
    """The cubins that an earlier manifest of the folder names."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        names = {str(entry["cubin"]) for entry in manifest["variants"]}
    except (OSError, ValueError, TypeError, KeyError):
        return set()
    return {name for name in names if os.path.basename(name) == name and name.endswith(".cubin")}


def _write(file: Path, data: bytes) -> None:
    """Put a file in place in one step."""
    temporary = file.with_name(f".{file.name}.{os.urandom(4).hex()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _made_by() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"cuda-async {version('cuda-async')}"
    except PackageNotFoundError:
        return "cuda-async, not installed"
