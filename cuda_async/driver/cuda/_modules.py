"""Modules and kernels: loading images, and saying precisely why one was refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import CompileError, DriverError
from .._protocol import (
    FunctionHandle,
    FunctionInfo,
    HostImage,
    ModuleHandle,
    ParameterInfo,
    ParameterKind,
)
from .._ptx_signature import PtxSignature, read_ptx_header, read_ptx_signatures
from ._calls import DriverCalls
from ._errors import INVALID_VALUE, NOT_FOUND, OUT_OF_MEMORY, STICKY, driver_error
from ._images import ImageKind, cubin_architecture, fatbin_contents, ptx_bytes, sniff_image

if TYPE_CHECKING:
    from .._protocol import DeviceProperties

__all__ = ["ModuleCalls"]

LOG_BYTES = 65536

_INVALID_IMAGE = 200
_NO_BINARY_FOR_GPU = 209
_INVALID_PTX = 218
_JIT_COMPILER_NOT_FOUND = 221
_UNSUPPORTED_PTX_VERSION = 222
_JIT_COMPILATION_DISABLED = 223

_LOG_LINE = re.compile(r"\bline (\d+)\s*[;:]")
_LOG_VERSION = re.compile(r"[Uu]nsupported \.version (\d+\.\d+)\s*;\s*current version is '?(\d+\.\d+)")

# Newest PTX version of each CUDA version where the two are not numbered alike (PTX ISA, "Release Notes").
_PTX_OF_CUDA_12 = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 5, 7: 6, 8: 7, 9: 8}


class ModuleCalls(DriverCalls):
    """The part of the CUDA driver that knows modules and functions."""

    properties: DeviceProperties

    def __init__(self, api: Any, ordinal: int, context: Any) -> None:
        super().__init__(api, ordinal, context)
        # PTX text a module was made from, and its functions so far; by module handle.
        self._ptx_text: dict[int, str] = {}
        self._module_functions: dict[int, list[int]] = {}
        self._function_home: dict[int, tuple[int, str]] = {}
        self._signatures: dict[int, dict[str, PtxSignature]] = {}

    def module_load(self, image: bytes | HostImage, name: str = "") -> ModuleHandle:
        """Load PTX text, a cubin or a fatbin. The driver compiles PTX here, so this is slow.

        Args:
            image: the bytes.
            name: what messages call it.

        Raises:
            CompileError: the driver refused it; with its log, the PTX line, both architectures or versions.
        """
        name = name or "the module"
        if isinstance(image, HostImage):
            raise TypeError(
                f"{name} is a HostImage, which runs on the host device only; {self.label} takes PTX text, a "
                "cubin or a fatbin"
            )
        image = bytes(image)
        kind = sniff_image(image, name)
        data = ptx_bytes(image) if kind is ImageKind.PTX else image
        options = self._api.CUjit_option
        error_log, info_log = bytearray(LOG_BYTES), bytearray(LOG_BYTES)
        names = [
            options.CU_JIT_ERROR_LOG_BUFFER,
            options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            options.CU_JIT_INFO_LOG_BUFFER,
            options.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        ]
        values = [error_log, LOG_BYTES, info_log, LOG_BYTES]
        self.bind()
        code, module = self._api.cuModuleLoadDataEx(data, len(names), names, values)
        if code and int(code) == OUT_OF_MEMORY and self._make_room():
            code, module = self._api.cuModuleLoadDataEx(data, len(names), names, values)
        if code:
            log = "\n".join(text for text in (_log_text(error_log), _log_text(info_log)) if text)
            self._load_failed(code, kind, image, name, log)
        handle = ModuleHandle(int(module))
        if kind is ImageKind.PTX:
            self._ptx_text[handle] = data[:-1].decode("utf-8", "replace")
        self._module_functions[handle] = []
        self._modules[handle] = module
        return handle

    def module_unload(self, module: ModuleHandle) -> None:
        """Unload; kernels and globals of the module must not be in use any more."""
        native = self._modules[module]
        del self._modules[module]
        self._ptx_text.pop(module, None)
        self._signatures.pop(module, None)
        for function in self._module_functions.pop(module, ()):
            self._functions.pop(function, None)
            self._function_home.pop(function, None)
        self._call("cuModuleUnload", native)

    def module_function_names(self, module: ModuleHandle) -> list[str]:
        """The kernels of a module."""
        native = self._modules[module]
        count = self._call("cuModuleGetFunctionCount", native)
        if not count:
            return []
        functions = self._call("cuModuleEnumerateFunctions", count, native)
        return [self._call("cuFuncGetName", function).decode("utf-8", "replace") for function in functions]

    def module_function(self, module: ModuleHandle, name: str) -> FunctionHandle:
        """A kernel by name.

        Raises:
            LookupError: there is none of that name.
        """
        native = self._modules[module]
        if not name:  # the driver calls that an invalid argument
            raise LookupError("a kernel has a name")
        self.bind()
        code, function = self._api.cuModuleGetFunction(native, name.encode())
        if code:
            if int(code) == NOT_FOUND:
                raise LookupError(f"the module has no kernel {name!r}")
            self._fail("cuModuleGetFunction", code)
        handle = FunctionHandle(int(function))
        if handle not in self._functions:
            self._function_home[handle] = (module, name)
            self._module_functions[module].append(handle)
            self._functions[handle] = function
        return handle

    def module_global(self, module: ModuleHandle, name: str) -> tuple[int, int]:
        """(address, size in bytes) of a global variable.

        Raises:
            LookupError: there is none of that name.
        """
        native = self._modules[module]
        self.bind()
        code, address, size_bytes = self._api.cuModuleGetGlobal(native, name.encode())
        if code:
            if int(code) == NOT_FOUND:
                raise LookupError(f"the module has no global variable {name!r}")
            self._fail("cuModuleGetGlobal", code)
        return int(address), int(size_bytes)

    def function_info(self, function: FunctionHandle) -> FunctionInfo:
        """What the driver says about a kernel, and the PTX it was made from where there is one."""
        native = self._functions[function]
        module, name = self._function_home[function]
        attributes = self._api.CUfunction_attribute

        def get(attribute: str) -> int:
            which = getattr(attributes, f"CU_FUNC_ATTRIBUTE_{attribute}")
            return int(self._call("cuFuncGetAttribute", which, native))

        signature = self._signature(module, name)
        return FunctionInfo(
            name=name,
            parameters=_merge_parameters(self._parameter_layout(native), signature),
            max_threads_per_block=get("MAX_THREADS_PER_BLOCK"),
            static_shared_bytes=get("SHARED_SIZE_BYTES"),
            local_bytes=get("LOCAL_SIZE_BYTES"),
            registers=get("NUM_REGS"),
            required_block=signature.required_block if signature is not None else None,
        )

    def function_allow_shared_bytes(self, function: FunctionHandle, size_bytes: int) -> None:
        """Opt in to `size_bytes` of dynamic shared memory."""
        attribute = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuFuncSetAttribute", self._functions[function], attribute, size_bytes)

    def _parameter_layout(self, native: Any) -> list[tuple[int, int]]:
        """(offset, size) of each parameter; the driver ends the list with INVALID_VALUE."""
        layout: list[tuple[int, int]] = []
        self.bind()
        while True:
            code, offset, size_bytes = self._api.cuFuncGetParamInfo(native, len(layout))
            if code:
                if int(code) == INVALID_VALUE:
                    return layout
                self._fail("cuFuncGetParamInfo", code)
            layout.append((int(offset), int(size_bytes)))

    def _signature(self, module: int, name: str) -> PtxSignature | None:
        text = self._ptx_text.get(module)
        if text is None:
            return None
        signatures = self._signatures.get(module)
        if signatures is None:
            signatures = self._signatures[module] = read_ptx_signatures(text)
        return signatures.get(name)

    def _load_failed(self, code: Any, kind: ImageKind, image: bytes, name: str, log: str) -> NoReturn:
        error = driver_error(self._api, "cuModuleLoadDataEx", code)
        if error.code in STICKY:
            self._lose(error)
        if error.code == OUT_OF_MEMORY:
            raise self._out_of_memory(f"cuModuleLoadDataEx of {name}") from error
        major, minor = self.properties.compute_capability
        device = f"{self.label} ({self.properties.name}, sm_{major}{minor})"
        message = _explain(error, kind, image, name, log, device, self.properties.driver_version)
        if log:
            message += f"\n{log}"
        raise CompileError(message, log) from error


def _log_text(buffer: bytearray) -> str:
    return buffer.partition(b"\0")[0].decode("utf-8", "replace").strip()


def _explain(
    error: DriverError,
    kind: ImageKind,
    image: bytes,
    name: str,
    log: str,
    device: str,
    driver_version: tuple[int, int],
) -> str:
    """Why the driver refused an image, in the image's own terms."""
    cuda = ".".join(str(n) for n in driver_version)
    if kind is ImageKind.CUBIN:
        architecture = cubin_architecture(image)
        if architecture is not None and error.code in (_NO_BINARY_FOR_GPU, _INVALID_IMAGE):
            return (
                f"{name} is a cubin for sm_{architecture}, and {device} cannot run it; compile for the "
                f"device's architecture, or load PTX [{error}]"
            )
        return f"{name}: {device} refused the cubin: {error}"
    if kind is ImageKind.FATBIN:
        held = ", ".join(fatbin_contents(image)) or "nothing that can be read"
        return f"{name} is a fatbin with {held}, and nothing in it runs on {device} [{error}]"
    text = image.decode("utf-8", "replace")
    version, target = read_ptx_header(text)
    too_new = _LOG_VERSION.search(log)
    if too_new is not None or error.code == _UNSUPPORTED_PTX_VERSION:
        given = too_new[1] if too_new else ".".join(str(n) for n in version or ("?",))
        newest = too_new[2] if too_new else _newest_ptx(driver_version)
        return (
            f"{name} is PTX {given}, and the driver (CUDA {cuda}) takes up to {newest}; update the driver, "
            f"compile with a toolkit of CUDA {cuda} or older, or compile to a cubin [{error}]"
        )
    if error.code == _NO_BINARY_FOR_GPU:
        return (
            f"{name} is PTX for {target or 'an unknown target'}, and {device} cannot run it; compile for the "
            f"device's architecture or an older one [{error}]"
        )
    if error.code in (_JIT_COMPILER_NOT_FOUND, _JIT_COMPILATION_DISABLED):
        return (
            f"{name} is PTX, and the driver cannot compile it here: {error}; install the driver's PTX "
            "compiler (libnvidia-ptxjitcompiler), or load a cubin"
        )
    line = _LOG_LINE.search(log)
    if line is not None:
        number = int(line[1])
        lines = text.splitlines()
        source = f": {lines[number - 1].strip()}" if 0 < number <= len(lines) else ""
        return f"{name}: {device} refused the PTX at line {number}{source} [{error}]"
    return f"{name}: the driver refused the PTX (.target {target or 'missing'}) for {device}: {error}"


def _newest_ptx(driver_version: tuple[int, int]) -> str:
    """The newest PTX version a driver takes, from its CUDA version: 13.x takes 9.x."""
    major, minor = driver_version
    if major == 12:
        return f"8.{_PTX_OF_CUDA_12.get(minor, 8)}"
    return f"{major - 4}.{minor}"


def _merge_parameters(
    layout: list[tuple[int, int]], signature: PtxSignature | None
) -> tuple[ParameterInfo, ...]:
    """The driver's layout, with names and kinds from the PTX where the two agree."""
    told = signature.parameters if signature is not None else ()
    agree = [(p.offset_bytes, p.size_bytes) for p in told] == layout
    if agree:
        return told
    return tuple(
        ParameterInfo(
            name=f"param_{i}",
            offset_bytes=offset,
            size_bytes=size_bytes,
            alignment_bytes=_alignment(offset, size_bytes),
            kind=ParameterKind.UNKNOWN,
        )
        for i, (offset, size_bytes) in enumerate(layout)
    )


def _alignment(offset: int, size_bytes: int) -> int:
    """The largest power of two, at most 16, that divides both: no type can be aligned to more."""
    bits = offset | size_bytes | 16
    return bits & -bits
