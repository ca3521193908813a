"""One compiled variant of a kernel, and the key it is known by. What makes one is `_compile.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..frontend import ConstantSpec, GroupSpec
from ._written import constant_key

if TYPE_CHECKING:
    from cuda_async import Function as DeviceFunction

    from ..frontend import Capture, LaunchCheck, ParameterSpec
    from ._timings import CompileTimings

__all__ = ["HOST", "Variant", "spec_key", "target_of"]

HOST = "host"
"""The target that stands for the interpreter."""


def target_of(kind: str, compute_capability: tuple[int, int]) -> str:
    """What kernels are compiled for on a device."""
    major, minor = compute_capability
    return HOST if kind == "host" else f"sm_{major}{minor}"


@dataclass(frozen=True, eq=False)
class Variant:
    """Compiled code.

    Attributes:
        function: loads and launches it.
        checks: what every launch must satisfy.
        specs: what it was compiled for.
        target: "host" or an architecture.
        captures: what is compiled in of the program around the kernel.
        timings: what it took to get it.
        signature: types of the flat arguments, as the launcher checks them.
        cubin_name: name of the cubin's entry in the disk cache; empty on the host device.
    """

    function: DeviceFunction
    checks: tuple[LaunchCheck, ...]
    specs: tuple[ParameterSpec, ...]
    target: str
    captures: tuple[Capture, ...]
    timings: CompileTimings
    signature: tuple[str, ...] = ()
    cubin_name: str = ""

    def is_current(self) -> bool:
        """True while what was captured is what it was."""
        return all(capture.holds() for capture in self.captures)


def spec_key(specs: tuple[ParameterSpec, ...]) -> object:
    """A key for specs: constants are told apart by type as well as value."""
    return tuple([_spec_key(spec) for spec in specs])


def _spec_key(spec: ParameterSpec) -> object:
    if isinstance(spec, ConstantSpec):
        return constant_key(spec.value)
    return (spec.cls, spec.keys, spec_key(spec.parts)) if isinstance(spec, GroupSpec) else spec
