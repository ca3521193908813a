"""Running on the simulated device what NVIDIA's assembler makes of tile kernels: its PTX, thread by thread.

So the assembler's work is looked at without a GPU: wrong results, and accesses out of bounds or not aligned, which a
GPU need not notice. Kernels are assembled for a target without the tensor memory accelerator, which the simulated
device does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda_async import Module
from tilekern.jit import _compile
from tilekern.jit._variant import HOST, Variant

TARGET = "sm_89"
"""The last one without: it moves tiles by plain and asynchronous copies and multiplies with `mma.sync`, float8 too."""


@contextmanager
def assembled_code(target: str = TARGET) -> Iterator[None]:
    """Compile kernels for the host device as for a GPU: with tokens, by the assembler. Kernels compiled before stay."""
    compile_variant = _compile.compile_variant

    def compiled(
        source: Any, specs: Any, options: Any, wanted: str, disk_cache: Any, began: float | None = None
    ) -> Variant:
        if wanted != HOST:
            return compile_variant(source, specs, options, wanted, disk_cache, began)
        clock = _compile._Clock.start(began)
        program = _compile.build_program(source, specs, options, for_device=True, clock=clock)
        function = program.function
        toolchain = _compile.toolchain_for(function, target, disk_cache)
        bytecode = _compile.bytecode_of(function, options)
        ptx = _compile.assembled(function, bytecode, options, target, toolchain, keep_ptx=True).ptx
        signature = _compile.entry_signature(function)
        loaded = Module.from_ptx(ptx, name=f"the PTX of {function.name}").function(
            function.name, signature=signature
        )
        timings = clock.timings(function.name, target, "assembled")
        return Variant(loaded, program.checks, specs, wanted, program.captures, timings, signature, "")

    _compile.compile_variant = compiled
    try:
        yield
    finally:
        _compile.compile_variant = compile_variant
