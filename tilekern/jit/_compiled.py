"""Kernels compiled ahead of time: a folder of cubins with a manifest, used where there is no assembler.

A manifest names, per variant, the kernel, the architecture, the options, the specs it was compiled for, and
two checksums: of the cubin's file, and of the bytecode it was assembled from. The front end still runs when
a variant is first used (it needs no assembler), and its bytecode must have that checksum: so code that is
out of date, because the kernel, a helper, a captured value or this package has changed, is never run.

A variant serves a call if all it takes for granted holds: a tensor compiled for extents that are multiples
of 8 serves multiples of 16. Of several the one that knows most is taken.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import stat
import threading
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import CompiledKernelError
from ..frontend import ConstantSpec, ParameterSpec, PartitionSpec, PointerSpec, TensorSpec
from ._obtain import LOADED
from ._portable import NotPortable, from_portable
from ._written import constant_key

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator, Sequence

    from ._kernel import Kernel
    from ._options import KernelOptions
    from ._variant import Variant

__all__ = [
    "FORMAT",
    "MANIFEST",
    "CompiledKernels",
    "CompiledVariant",
    "covers",
    "find_compiled",
    "kernel_id",
    "load",
]

FORMAT = 1
MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class CompiledVariant:
    """One variant in a folder.

    Attributes:
        kernel: "module:qualified name".
        architecture: such as "sm_90".
        options: it was compiled with.
        specs: of the arguments it was compiled for.
        arguments: the same as text, for people.
        bytecode_sha256: checksum of the bytecode it was made of.
        cubin: the machine code.
    """

    kernel: str
    architecture: str
    options: KernelOptions
    specs: tuple[ParameterSpec, ...]
    arguments: str
    bytecode_sha256: str
    cubin: bytes


class CompiledKernels:
    """The kernels of a folder that `load_compiled` opened. They serve until `unload`, or the end of a `with` block.

    Attributes:
        folder: where they are.
        variants: what there is.
        only: launches that none of them serves are refused, not compiled.
    """

    def __init__(self, folder: str, variants: tuple[CompiledVariant, ...], made_by: str, only: bool) -> None:
        self.folder = folder
        self.variants = variants
        self.only = only
        self._made_by = made_by

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels, each once."""
        return tuple(dict.fromkeys(v.kernel for v in self.variants))

    def unload(self) -> None:
        """Use them no more for what has not been launched yet. Again is fine."""
        with _lock:
            if self in LOADED:
                LOADED.remove(self)

    def __enter__(self) -> CompiledKernels:
        return self

    def __exit__(self, *error: object) -> None:
        self.unload()

    def __repr__(self) -> str:
        kernels = f"{len(self.kernels)} kernel{'s' * (len(self.kernels) != 1)}"
        return f"<CompiledKernels in {self.folder}: {len(self.variants)} variants of {kernels}>"


_lock = threading.Lock()


def load(folder: str | os.PathLike[str], only: bool) -> CompiledKernels:
    """`load_compiled`."""
    path = Path(folder)
    manifest = _manifest(path)
    variants = tuple([_variant(path, entry) for entry in manifest["variants"]])
    loaded = CompiledKernels(str(path), variants, str(manifest.get("made_by", "unknown")), only)
    with _lock:
        LOADED.append(loaded)
    return loaded


def _read(file: Path) -> bytes:
    """What a regular file holds: reading a pipe would wait for a writer, and some devices never end.

    Raises:
        OSError: it cannot be read, or is something else.
    """
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        with open(handle, "rb", closefd=False) as opened:
            return opened.read()
    finally:
        os.close(handle)


def _manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(_read(file))
    except OSError as error:
        raise CompiledKernelError(
            f"{file} cannot be read: {error.strerror}; `tilekern compile` and export_compiled write such folders"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CompiledKernelError(f"{file} is damaged: {error}; compile the kernels again") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT or not isinstance(manifest.get("variants"), list):
        raise CompiledKernelError(
            f"{file} has format {found}, this version reads {FORMAT}; compile the kernels again with it"
        )
    return manifest


def _variant(folder: Path, entry: Any) -> CompiledVariant:
    try:
        name, wanted = entry["cubin"], entry["cubin_sha256"]
        for field in ("cubin", "cubin_sha256", "kernel", "architecture", "arguments", "bytecode_sha256"):
            if not isinstance(entry[field], str):
                raise TypeError(f"{field} is no text")
        variant = CompiledVariant(
            entry["kernel"],
            entry["architecture"],
            from_portable(entry["options"]),
            from_portable(entry["specs"]),
            entry["arguments"],
            entry["bytecode_sha256"],
            b"",
        )
    except (NotPortable, KeyError, TypeError, RecursionError) as error:
        raise CompiledKernelError(
            f"{folder / MANIFEST} has an entry that cannot be read ({error}): it is damaged or made by another "
            "version; compile the kernels again"
        ) from None
    if os.path.basename(name) != name or "\0" in name:
        raise CompiledKernelError(f"{folder / MANIFEST} names {name!r}, which is not in its folder")
    try:
        cubin = _read(folder / name)
    except OSError as error:
        raise CompiledKernelError(
            f"{folder / name} cannot be read: {error.strerror}; compile the kernels again"
        ) from None
    if hashlib.sha256(cubin).hexdigest() != wanted:
        raise CompiledKernelError(
            f"{folder / name} is not the file its manifest describes: the checksum differs; copy the folder "
            "again, or compile the kernels again"
        )
    return dataclasses.replace(variant, cubin=cubin)


def kernel_id(function: types.FunctionType) -> str:
    """The name of a kernel in manifests."""
    return f"{function.__module__}:{function.__qualname__}"


def find_compiled(
    kernel: Kernel,
    function: types.FunctionType,
    specs: tuple[ParameterSpec, ...],
    options: KernelOptions,
    target: str,
) -> tuple[Variant | None, str]:
    """A variant of the loaded folders that serves these arguments; else None and why there is none.

    The reason is empty where no folder has been loaded.

    Raises:
        CompiledKernelError: there is none, and a folder was loaded with `only`.
    """
    with _lock:
        folders = LOADED[::-1]
    reasons: list[str] = []
    for loaded in folders:
        for candidate in _candidates(loaded, function, specs, options, target, reasons):
            variant = _use(loaded, candidate, kernel, options, target, reasons)
            if variant is not None:
                return variant, ""
    if not folders:
        return None, ""
    text = f"no kernel compiled ahead of time serves {kernel.name} on {target}:\n  " + "\n  ".join(reasons)
    if any(loaded.only for loaded in folders):
        raise CompiledKernelError(text)
    return None, text


def _candidates(
    loaded: CompiledKernels,
    function: types.FunctionType,
    specs: tuple[ParameterSpec, ...],
    options: KernelOptions,
    target: str,
    reasons: list[str],
) -> list[CompiledVariant]:
    """Variants that serve such arguments, the one that knows most of them first; why others do not."""
    name = kernel_id(function)
    own = [v for v in loaded.variants if v.kernel == name]
    if not own:
        reasons.append(f"{loaded.folder} has no kernel {name}; it has {', '.join(loaded.kernels) or 'none'}")
        return []
    found = []
    for variant in own:
        about = f"{loaded.folder}: the variant for {variant.arguments} "
        if variant.architecture != target:
            reasons.append(f"{about}is for {variant.architecture}")
        elif variant.options != options:
            reasons.append(f"{about}was compiled with {variant.options}")
        elif (why := _misfit(variant.specs, specs)) is not None:
            reasons.append(f"{about}does not fit: {why}")
        else:
            found.append(variant)
    return sorted(found, key=_knowledge, reverse=True)


def _use(
    loaded: CompiledKernels,
    candidate: CompiledVariant,
    kernel: Kernel,
    options: KernelOptions,
    target: str,
    reasons: list[str],
) -> Variant | None:
    """The variant, if it was compiled from what the kernel is now."""
    from cuda_async import Module

    from ._compile import build_program, bytecode_of, entry_signature
    from ._timings import CompileTimings
    from ._variant import Variant

    began = perf_counter()
    program = build_program(kernel.source, candidate.specs, options, for_device=True)
    bytecode = bytecode_of(program.function, options)
    if hashlib.sha256(bytecode).hexdigest() != candidate.bytecode_sha256:
        reasons.append(
            f"{loaded.folder}: the variant for {candidate.arguments} is out of date: the kernel, something it "
            f"uses or this package has changed since (it was made by {loaded._made_by})"
        )
        return None
    name, signature = program.function.name, entry_signature(program.function)
    function = Module.from_cubin(candidate.cubin, name=name).function(name, signature=signature)
    total_ms = (perf_counter() - began) * 1e3
    timings = CompileTimings(name, target, "ahead of time", total_ms, 0.0, 0.0, 0.0, total_ms)
    return Variant(function, program.checks, candidate.specs, target, program.captures, timings, signature)


# ------------------------------------------------------------------ which variant serves which call


def covers(compiled: Sequence[ParameterSpec], wanted: Sequence[ParameterSpec]) -> bool:
    """True if code compiled for the first specs is right for arguments of the second."""
    return _misfit(compiled, wanted) is None


def _misfit(compiled: Sequence[ParameterSpec], wanted: Sequence[ParameterSpec]) -> str | None:
    if len(compiled) != len(wanted):
        return f"it has {len(compiled)} parameters, the kernel has {len(wanted)}"
    for position, (have, want) in enumerate(zip(compiled, wanted)):
        why = _misfit_of(have, want)
        if why is not None:
            return f"argument {position + 1} {why}"
    return None


def _misfit_of(have: ParameterSpec, want: ParameterSpec) -> str | None:
    if type(have) is not type(want):
        return f"is a {_kind(want)}, compiled for a {_kind(have)}"
    if isinstance(have, ConstantSpec) and isinstance(want, ConstantSpec):
        is_same = constant_key(have.value) == constant_key(want.value)
        return None if is_same else f"is {want.value!r}, compiled for {have.value!r}"
    if isinstance(have, PartitionSpec) and isinstance(want, PartitionSpec):
        if dataclasses.replace(have, tensor=want.tensor) != want:
            return (
                f"has tiles {want.tile_shape}, compiled for {have.tile_shape}, or another kind of partition"
            )
        return _misfit_of(have.tensor, want.tensor)
    if (
        isinstance(have, PointerSpec)
        and isinstance(want, PointerSpec)
        and want.alignment % have.alignment == 0
    ):
        have = dataclasses.replace(have, alignment=want.alignment)
    if isinstance(have, TensorSpec) and isinstance(want, TensorSpec):
        return _misfit_of_tensor(have, want)
    if (parts := _parts(have)) is not None and (others := _parts(want)) is not None:
        group: Any = have  # whatever has parts
        if dataclasses.replace(group, parts=others) != want:
            return "is another kind of group"
        why = _misfit(parts, others)
        return None if why is None else f"has a part that does not fit: {why}"
    return None if have == want else f"is {want}, compiled for {have}"


def _misfit_of_tensor(have: TensorSpec, want: TensorSpec) -> str | None:
    if have.dtype is not want.dtype:
        return f"has elements {want.dtype.name}, compiled for {have.dtype.name}"
    if have.rank != want.rank:
        return f"has rank {want.rank}, compiled for {have.rank}"
    if have.index_dtype.bits < want.index_dtype.bits:
        return (
            f"is so large that it needs {want.index_dtype.name} indices, compiled for {have.index_dtype.name}"
        )
    for what, known, actual in (("extent", have.shape, want.shape), ("stride", have.strides, want.strides)):
        for axis, (k, a) in enumerate(zip(known, actual)):
            if k is not None and k != a:
                return f"has not the {what} {k} along axis {axis} that is compiled in"
    if want.alignment % have.alignment:
        return f"has an address that is a multiple of {want.alignment} bytes, compiled for {have.alignment}"
    for what, known_by, actual_by in (
        ("an extent", have.shape_divisors, want.shape_divisors),
        ("a stride", have.stride_divisors, want.stride_divisors),
    ):
        for axis, (divisor, actual_divisor) in enumerate(zip(known_by, actual_by)):
            if actual_divisor % divisor:
                return f"has {what} along axis {axis} that is no multiple of {divisor}, which is compiled in"
    same = {f: getattr(want, f) for f in _COMPARED}
    if dataclasses.replace(have, **same) != want:
        return f"is {want}, compiled for {have}"
    return None


_COMPARED = ("shape", "strides", "index_dtype", "alignment", "shape_divisors", "stride_divisors")


def _kind(spec: ParameterSpec) -> str:
    return type(spec).__name__.removesuffix("Spec").lower()


def _knowledge(variant: CompiledVariant) -> int:
    """How much a variant knows of its arguments, to compare those that serve a call."""
    total = 0
    for spec in _flat(variant.specs):
        tensor = spec.tensor if isinstance(spec, PartitionSpec) else spec
        if isinstance(tensor, TensorSpec):
            total += sum(tensor.shape_divisors) + sum(tensor.stride_divisors) + tensor.alignment
            total += sum(known is not None for known in (*tensor.shape, *tensor.strides))
            total += 64 - tensor.index_dtype.bits
    return total


def _parts(spec: ParameterSpec) -> tuple[ParameterSpec, ...] | None:
    """What a group of arguments is made of; None for what is no group."""
    parts: tuple[ParameterSpec, ...] | None = getattr(spec, "parts", None)
    return parts


def _flat(specs: Sequence[ParameterSpec]) -> Iterator[ParameterSpec]:
    for spec in specs:
        parts = _parts(spec)
        yield from (spec,) if parts is None else _flat(parts)
