"""`Module` and `Function`: kernels from PTX, cubin, CUDA C++ and files, loaded on each device on first use."""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..driver import ArgumentBlock, FunctionHandle, FunctionInfo, HostImage, ModuleHandle
from ..errors import CompileError, LaunchError
from ..memory import Mut, Read, Tensor
from ..native import compiled
from ..scheduling import Device, order_read, order_write
from ._arguments import LaunchPlan, make_plan, parse_signature
from ._context import check_operand
from ._launch import (
    MAX_STREAMS,
    BoundLaunch,
    Launch,
    LaunchConfig,
    LaunchWithOptions,
    PlainLaunch,
    as_dimensions,
    as_shared_bytes,
    check_argument_aliases,
    full_dimensions,
    launch_step_by_step,
    shared_memory_problem,
)
from ._unprepared import UNPREPARED
from ._written import LaunchFunction, write_launch

if TYPE_CHECKING:
    from ..driver import Driver
    from ..memory import ShapeLike
    from ..scheduling import Stream
    from ._context import ExecutionContext

__all__ = ["Function", "LoadedFunction", "Module"]

NO_USES: Sequence[Read | Mut] = ()
MAX_CONFIGS = 1024
"""Launch configurations remembered per kernel."""
CheckedConfig = tuple[LaunchConfig | None, dict[object, Callable[[], object]]]

ELF_MAGIC = b"\x7fELF"
FATBIN_MAGIC = b"\x50\xed\x55\xba"
FILE_SUFFIXES = (".ptx", ".cubin", ".fatbin", ".cu")
PTX_VERSION = re.compile(r"^\s*\.version\s+\d", re.MULTILINE)


class Module:
    """A set of kernels. Made by `from_ptx`, `from_cubin`, `from_cuda_source` or `from_file`; not bound to a device.

    Loading (and compiling, for CUDA C++) happens on a device's first use, off the event loop, or with
    `await module.load()`.
    """

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(
            "modules are made by Module.from_ptx(), from_cubin(), from_cuda_source() or from_file()"
        )

    @classmethod
    def _make(cls, name: str, image: bytes | HostImage | None, source: _CudaSource | None = None) -> Module:
        if not isinstance(name, str):
            raise TypeError(f"a module's name is a str, got {name!r}")
        self = object.__new__(cls)
        self.name = name
        self._image = image
        self._source = source
        self._loaded = {}
        self._lock = threading.Lock()
        self._lowered = {}
        return self

    name: str
    """What messages call it."""
    _image: bytes | HostImage | None
    _source: _CudaSource | None
    _loaded: dict[Device, ModuleHandle]
    _lock: threading.Lock
    _lowered: dict[str, str]

    @classmethod
    def from_ptx(cls, ptx: str | bytes, *, name: str = "PTX") -> Module:
        """Kernels in PTX text. Runs on CUDA devices (the driver compiles it) and on the host device.

        Raises:
            TypeError: neither text nor bytes.
            CompileError: empty, or no PTX; what the text itself has wrong is reported when it is loaded.
        """
        data = (
            ptx.encode() if isinstance(ptx, str) else _as_bytes("from_ptx() takes PTX as str or bytes", ptx)
        )
        if not data.strip(b" \t\r\n\0"):
            raise CompileError(f"{name}: the PTX is empty")
        if data.startswith((ELF_MAGIC, FATBIN_MAGIC)):
            raise CompileError(f"{name}: this is a binary image, not PTX; use Module.from_cubin()")
        if b"\n" not in data:
            _refuse_path(name, data.decode(errors="replace"), "PTX")
        if b"__global__" in data and b".version" not in data:
            raise CompileError(f"{name}: this is CUDA C++, not PTX; use Module.from_cuda_source()")
        return cls._make(name, data)

    @classmethod
    def from_cubin(cls, cubin: bytes, *, name: str = "cubin") -> Module:
        """Kernels in a cubin or fatbin. Runs on CUDA devices of its architecture.

        Raises:
            TypeError: no bytes. CompileError: empty, or neither a cubin nor a fatbin.
        """
        data = _as_bytes("from_cubin() takes the bytes of a cubin or fatbin", cubin)
        if not data.startswith((ELF_MAGIC, FATBIN_MAGIC)):
            what = "empty" if not data else f"no cubin or fatbin (it starts with {data[:4]!r})"
            raise CompileError(f"{name}: the image is {what}")
        return cls._make(name, data)

    @classmethod
    def from_cuda_source(
        cls,
        source: str,
        *,
        name: str = "source.cu",
        options: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        include_paths: Sequence[str | os.PathLike[str]] = (),
        name_expressions: Sequence[str] = (),
    ) -> Module:
        """Kernels in CUDA C++, compiled with NVRTC for each device on first use (PTX for the host device).

        Args:
            options: NVRTC options such as `"--use_fast_math"`. headers: name -> text for `#include`.
            name_expressions: such as `"scale<float>"`, to be used as names in `function()`.
        Raises:
            TypeError: the source is no text, or what goes with it is no sequence or mapping of strings.
            CompileError: empty; when it is loaded, with NVRTC's log.
            ContextError: (when it is loaded) NVRTC is not installed.
        """
        if not isinstance(source, str):
            raise _refused("from_cuda_source() takes CUDA C++ as str", source)
        if not source.strip():
            raise CompileError(f"{name}: the CUDA source is empty")
        _refuse_path(name, source, "CUDA C++")
        if "__global__" not in source and PTX_VERSION.search(source):
            raise CompileError(f"{name}: this is PTX, not CUDA C++; use Module.from_ptx()")
        return cls._make(
            name,
            None,
            _CudaSource(
                source,
                _as_strings("options", options),
                _as_headers(headers),
                _as_strings("include_paths", include_paths),
                _as_strings("name_expressions", name_expressions),
            ),
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Module:
        """Kernels in a file: PTX, cubin or fatbin by its contents, CUDA C++ by its suffix `.cu`.

        Raises:
            FileNotFoundError: there is no such file. CompileError: empty, or a pipe or device.
        """
        file = Path(path)
        if file.exists() and not (file.is_file() or file.is_dir()):  # reading might wait for ever
            raise CompileError(f"{file}: not a regular file")
        data = file.read_bytes()
        if not data:
            raise CompileError(f"{file}: the file is empty")
        if data.startswith((ELF_MAGIC, FATBIN_MAGIC)):
            return cls.from_cubin(data, name=str(file))
        if file.suffix == ".cu":
            return cls.from_cuda_source(data.decode(), name=str(file), include_paths=[file.parent])
        return cls.from_ptx(data, name=str(file))

    @classmethod
    def from_host_image(cls, image: HostImage) -> Module:
        """Kernels that are Python objects; run on the host device only."""
        if not isinstance(image, HostImage):
            raise _refused("from_host_image() takes a HostImage", image)
        return cls._make(image.name, image)

    def function(self, name: str, *, signature: Sequence[str | None] | None = None) -> Function:
        """A kernel by name.

        Args:
            name: as in the PTX (mangled, for C++ without `extern "C"`), or a name expression.
            signature: parameter types, in order, as the kernel's author meant them: `"ptr"`, `"i8"` to `"i64"`, `"u8"`
                to `"u64"`, `"f16"`, `"f32"`, `"f64"`, `"bool"`, None for a structure. PTX does not tell signed from
                unsigned, and a cubin tells sizes only; with a signature ints are checked against their exact range.
        Raises:
            TypeError: the name is no str. ValueError: no such parameter type.
            CompileError: (when it is loaded) no such kernel; the message lists those there are.
        """
        if not isinstance(name, str):
            raise TypeError(f"a kernel's name is a str, got {name!r}")
        return Function._make(self, name, None if signature is None else parse_signature(signature))

    def function_names(self, device: Device) -> list[str]:
        """Names of the kernels in this module; loads it on `device`, which is slow."""
        if not isinstance(device, Device):
            raise TypeError(f'a Device is expected, got {device!r}; Device("cuda:0") gives one')
        return device.driver.module_function_names(self._load(device))

    def _load(self, device: Device) -> ModuleHandle:
        """Load on `device`, once; slow."""
        handle = self._loaded.get(device)
        if handle is not None:
            return handle
        with self._lock:
            handle = self._loaded.get(device)
            if handle is None:
                image, name = self._image, self.name
                if self._source is not None:
                    image = self._compile(device, self._source)
                    name = f"the PTX of {name}" if device.kind != "cuda" else name
                assert image is not None
                handle = device.driver.module_load(image, name)
                _forget_closed(self._loaded)
                self._loaded[device] = handle
        return handle

    def _compile(self, device: Device, source: _CudaSource) -> bytes:
        from ..driver.cuda import compile_cuda_program

        major, minor = device.compute_capability
        on_cuda = device.kind == "cuda"
        compiled = compile_cuda_program(
            source.text,
            self.name,
            arch=f"sm_{major}{minor}" if on_cuda else f"compute_{major}{minor}",
            output="cubin" if on_cuda else "ptx",
            options=source.options,
            include_paths=source.include_paths,
            headers=source.headers,
            name_expressions=source.name_expressions,
        )
        self._lowered.update(compiled.lowered_names)
        return compiled.image

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Module cannot be copied or pickled; make another one, from the same text or file")

    def __repr__(self) -> str:
        return f"Module({self.name!r})"


def _refuse_path(name: str, text: str, language: str) -> None:
    if not any(mark in text for mark in "\n{;") and text.rstrip().lower().endswith(FILE_SUFFIXES):
        raise CompileError(f"{name}: {text!r} is no {language}; is it a path? use Module.from_file()")


def _refused(expected: str, given: object) -> TypeError:
    if isinstance(given, os.PathLike):
        return TypeError(f"{expected}, got the path {os.fspath(given)!r}; use Module.from_file()")
    text = repr(given)
    return TypeError(
        f"{expected}, got {type(given).__name__} {text if len(text) < 80 else text[:77] + '...'}"
    )


def _as_bytes(expected: str, given: Any) -> bytes:
    """What has a buffer. `bytes()` itself would take numbers, for so many zeros."""
    if type(given) is bytes:
        return given
    try:
        return memoryview(given).tobytes()
    except TypeError:
        raise _refused(expected, given) from None


def _as_strings(what: str, given: object) -> tuple[str, ...]:
    """Not one string: its letters would be taken for strings."""
    if isinstance(given, str | bytes | os.PathLike) or not isinstance(given, Iterable):
        raise TypeError(f"{what} is a sequence of strings, got {given!r}")
    found = []
    for one in given:
        text = os.fspath(one) if isinstance(one, os.PathLike) else one
        if not isinstance(text, str):
            raise TypeError(f"{what} is a sequence of strings, got {one!r} in it")
        found.append(text)
    return tuple(found)


def _as_headers(given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"headers maps names to texts, got {given!r}")
    for name, text in given.items():
        if not (isinstance(name, str) and isinstance(text, str)):
            raise TypeError(f"headers maps names to texts, both str; got {type(text).__name__} for {name!r}")
    return dict(given)


class _CudaSource:
    def __init__(
        self,
        text: str,
        options: tuple[str, ...],
        headers: dict[str, str],
        include_paths: tuple[str, ...],
        name_expressions: tuple[str, ...],
    ) -> None:
        self.text = text
        self.options = options
        self.headers = headers
        self.include_paths = include_paths
        self.name_expressions = name_expressions


class LoadedFunction:
    """A kernel on one device: its handle, its argument block, and what was worked out for it once.

    Attributes:
        block: the argument block; written and launched from under the device's lock.
        plans, launchers: how to pack arguments, and the written-out launches, by their Python types.
        launch: (args, ctx, config) -> outputs; the written-out launch that was used last.
        checked: the (grid, block, shared bytes) that was launched last, and its launches by the key of their stream.
            One tuple, so that no thread sees the one without the other; other threads may change it at any time.
        is_kernel: marks it among the things a submission retains.
    """

    is_kernel = True

    def __init__(
        self, function: Function, device: Device, handle: FunctionHandle, info: FunctionInfo, driver: Driver
    ) -> None:
        self.function = function
        self.name = function.name
        self.handle = handle
        self.info = info
        self.device = device
        self.driver = driver
        self.signature = function._signature
        self.block = ArgumentBlock(info.parameters, function._signature)
        self.plans: dict[tuple[type, ...], LaunchPlan] = {}
        self.launchers: dict[tuple[type, ...], tuple[LaunchFunction, LaunchFunction]] = {}
        self.launch: LaunchFunction = self.launch_anew
        self.checked: CheckedConfig = (None, {})
        self._configs: dict[LaunchConfig, CheckedConfig] = {}
        self._allowed_shared = device.limits.max_shared_bytes_per_block

    def plan(self, types: tuple[type, ...]) -> LaunchPlan:
        """How to pack arguments of these types.

        Raises:
            TypeError: another number of arguments, or a type that no parameter takes.
        """
        plan = self.plans.get(types)
        if plan is None:
            plan = make_plan(self.name, self.info.parameters, self.signature, types)
            if len(self.plans) >= MAX_CONFIGS:  # classes made anew for each launch, for instance
                self.plans.clear()
                self.launchers.clear()
            self.plans[types] = plan
        return plan

    def launch_anew(
        self, args: tuple[Any, ...], ctx: ExecutionContext, config: LaunchConfig
    ) -> tuple[Any, ...]:
        """Launch with arguments of other types, or another config, than last time; becomes the new fast path."""
        checked = self.check_config(config)
        types = tuple(map(type, args))
        plan = self.plan(types)
        if plan.addresses or 0 in full_dimensions(config[0]):
            return launch_step_by_step(self, args, ctx, config)
        launchers = self.launchers.get(types)
        if launchers is None:
            launchers = self.launchers[types] = self._write_launch(plan, types)
        quick, careful = launchers
        self.checked = checked
        self.launch = self.function._launch = quick
        outputs: tuple[Any, ...] = careful(args, ctx, checked)
        return outputs

    def _write_launch(
        self, plan: LaunchPlan, types: tuple[type, ...]
    ) -> tuple[LaunchFunction, LaunchFunction]:
        return write_launch(
            plan,
            types,
            {
                "launch_anew": self.function._launch_anywhere,
                "own_device": self.device,
                "loaded": self,
                "driver": self.driver,
                "block": self.block,
                "order_read": order_read,
                "order_write": order_write,
                "check_aliases": check_argument_aliases,
            },
        )

    def check_config(self, config: LaunchConfig) -> CheckedConfig:
        """Check grid, block and shared memory against the device and the kernel, and opt in where needed.

        Raises:
            LaunchError: with the value asked for and the limit; nothing was enqueued.
        """
        known = self._configs.get(config)
        if known is not None:
            return known
        grid, block, shared_bytes = full_dimensions(config[0]), full_dimensions(config[1]), config[2]
        limits = self.device.limits
        for axis, size, limit in zip("xyz", grid, limits.max_grid):
            if not 0 <= size <= limit:
                raise LaunchError(
                    f"{self.name}: grid axis {axis} is {size}, the limit on {self.device} is {limit} (and 0 the least)"
                )
        for axis, size, limit in zip("xyz", block, limits.max_block):
            if not 1 <= size <= limit:
                raise LaunchError(
                    f"{self.name}: block axis {axis} is {size}, the limit on {self.device} is {limit} (and 1 the least)"
                )
        threads = block[0] * block[1] * block[2]
        most = min(self.info.max_threads_per_block, limits.max_threads_per_block)
        if threads > most:
            why = (
                ""
                if most == limits.max_threads_per_block
                else f" (by its registers or .maxntid, not {self.device})"
            )
            raise LaunchError(
                f"{self.name}: a block of {block} has {threads} threads, the limit is {most}{why}; "
                "use a smaller block and a larger grid"
            )
        required = self.info.required_block
        if required is not None and required != block:
            raise LaunchError(f"{self.name}: the kernel was compiled for blocks of {required}, got {block}")
        problem = shared_memory_problem(shared_bytes, self.info.static_shared_bytes, self.device)
        if problem:
            raise LaunchError(f"{self.name}: {problem}")
        if shared_bytes + self.info.static_shared_bytes > self._allowed_shared:
            self.driver.function_allow_shared_bytes(self.handle, shared_bytes)
            self._allowed_shared = shared_bytes + self.info.static_shared_bytes
        if 0 in grid:
            return config, {}  # nothing will be launched, so it is no config for the fast path
        if len(self._configs) >= MAX_CONFIGS:
            self._configs.clear()
        return self._configs.setdefault(config, (config, {}))

    def bind_on(self, stream: Stream, checked: CheckedConfig) -> Callable[[], object]:
        """Lock held: the launch of the argument block on `stream` with a checked config, made once."""
        config, launches = checked
        assert config is not None
        grid, block, shared_bytes = full_dimensions(config[0]), full_dimensions(config[1]), config[2]
        if stream._recorder is not None:
            return stream._recorder.bind_launch(stream, self.handle, grid, block, shared_bytes, self.block)
        if len(launches) >= MAX_STREAMS:
            launches.clear()
        launch = self.driver.bind_launch(self.handle, grid, block, shared_bytes, stream._handle, self.block)
        launches[stream._launch_key] = launch
        return launch


def _forget_closed(loaded: dict[Device, Any]) -> None:
    """A kernel may outlive devices, which must not live on for it."""
    for device in [device for device in loaded.copy() if device._closed_because]:
        loaded.pop(device, None)


class Function:
    """A kernel of a module. Made by `Module.function()`."""

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("functions are made by Module.function()")

    @classmethod
    def _make(cls, module: Module, name: str, signature: tuple[str | None, ...] | None) -> Function:
        self = object.__new__(cls)
        self.module = module
        self.name = name
        self._signature = signature
        self._loaded = {}
        self._launch = None
        return self

    if not TYPE_CHECKING:

        def __call__(self, *_: object, **__: object) -> NoReturn:
            raise TypeError(f"{self.name} is launched with function.launch(grid, block, *arguments)")

        def __getitem__(self, _: object) -> NoReturn:
            self()

    module: Module
    name: str
    _launch: LaunchFunction | None  # the written-out launch that was used last
    _signature: tuple[str | None, ...] | None
    _loaded: dict[Device, LoadedFunction]

    def _launch_with(
        self,
        grid: ShapeLike,  # 1 to 3 ints
        block: ShapeLike,
        *args: Any,  # whatever a kernel takes
        shared_mem_bytes: int = 0,
        cluster: Any = None,
        cooperative: bool = False,
        uses: Sequence[Read | Mut] = NO_USES,
    ) -> Launch:
        """An operation that launches the kernel; yields the arguments, in order, `read(t)` and `mut(t)` as `t`.

        Args:
            grid: blocks, as an int or 1 to 3 ints (x, y, z); a 0 does nothing. block: threads per block, likewise.
            args: `read(tensor)`, `mut(tensor)`, Python numbers, NumPy scalars (`np.void` for structs), `ctypes` values.
            shared_mem_bytes: dynamic shared memory per block.
            cluster: blocks per cluster. cooperative: all blocks resident at once.
            uses: tensors that the kernel reaches in another way, such as by an address among the arguments.
        Raises:
            TypeError: a float in grid, block or shared memory; when it runs: a bare tensor, a wrong number or type of
                arguments.
            LaunchError: (when it runs) grid, block or shared memory beyond a limit.
            OverflowError: (when it runs) an int that does not fit its parameter.
            AliasError: the same memory exclusively and once more. ContextError: a tensor on another device.
        """
        op = self.launch(grid, block, *args)
        assert op._config is not None
        op._config = (*op._config[:2], as_shared_bytes(shared_mem_bytes))
        if uses is NO_USES and cluster is None and not cooperative:
            return op
        dimensions = None if cluster is None else as_dimensions(cluster, "cluster")
        return LaunchWithOptions._of(op, uses, dimensions, cooperative)

    if TYPE_CHECKING:
        launch = _launch_with
    else:
        # A launch with its options left out, which most are: looking up the defaults of four costs as much as half of
        # the rest.
        def launch(self, grid: ShapeLike, block: ShapeLike, *args: Any, **options: Any) -> Launch:
            if options:
                return self._launch_with(grid, block, *args, **options)
            op = PlainLaunch()
            op._consumed = False
            op._bound_on = None
            op._function = self
            op._config = (
                grid if type(grid) is int else as_dimensions(grid, "grid"),
                block if type(block) is int else as_dimensions(block, "block"),
                0,
            )
            op._args = args
            op._launch = self._launch or self._launch_anywhere
            return op

        _launch_with.__name__, _launch_with.__qualname__ = "launch", "Function.launch"
        functools.update_wrapper(launch, _launch_with)

    def _launch_anywhere(self, args: tuple[Any, ...], ctx: ExecutionContext, config: LaunchConfig) -> Any:
        """Launch on whatever device; UNPREPARED where the kernel is not loaded yet."""
        loaded = self._loaded.get(ctx.device)
        if loaded is None:
            return UNPREPARED
        return loaded.launch_anew(args, ctx, config)

    def bind(
        self,
        grid: ShapeLike,  # 1 to 3 ints
        block: ShapeLike,
        *args: Any,  # whatever a kernel takes
        shared_mem_bytes: int = 0,
        device: Device,
    ) -> BoundLaunch:
        """A launch whose arguments are packed and checked once; `bound.launch()` makes operations of it.

        Alias, ordering and lifetime checks stay. Loads the kernel on `device`, which is slow the first time.
        """
        return BoundLaunch(
            self.load(device),
            as_dimensions(grid, "grid"),
            as_dimensions(block, "block"),
            args,
            as_shared_bytes(shared_mem_bytes),
        )

    def load(self, device: Device) -> LoadedFunction:
        """Load on `device`; slow the first time, so for `prepare` and for programs without a loop.

        Raises:
            CompileError: the image is refused, or has no such kernel. TypeError: no `Device`.
        """
        loaded = self._loaded.get(device)
        if loaded is None:
            if not isinstance(device, Device):
                raise TypeError(f'device is {device!r}; expected a Device, such as ca.Device("cuda:0")')
            handle = self.module._load(device)
            driver = device.driver
            try:
                function = driver.module_function(handle, self.module._lowered.get(self.name, self.name))
            except LookupError:
                names = driver.module_function_names(handle)
                mangled = f"_Z{len(self.name)}{self.name}"
                hint = ""
                if any(name.startswith(mangled) for name in names):
                    hint = (
                        f'; C++ gives names of its own: declare it extern "C", or compile it with '
                        f"name_expressions=[{self.name!r}]"
                    )
                elif "<" in self.name or "::" in self.name:
                    hint = f"; compile it with name_expressions=[{self.name!r}]"
                raise CompileError(
                    f"{self.module.name} has no kernel {self.name!r}; it has: {', '.join(names) or 'none'}{hint}"
                ) from None
            info = driver.function_info(function)
            _forget_closed(self._loaded)
            loaded = self._loaded.setdefault(device, LoadedFunction(self, device, function, info, driver))
        return loaded

    def is_loaded(self, device: Device) -> bool:
        """Whether `load` was done on `device`: for the `needs_prepare` of an operation of one's own."""
        return device in self._loaded

    def enqueue(
        self,
        ctx: ExecutionContext,
        grid: ShapeLike,  # 1 to 3 ints
        block: ShapeLike,
        values: Sequence[Any],
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
        shared_mem_bytes: int = 0,
    ) -> None:
        """For operations of one's own: enqueue a launch from `execute`, with `load()` called in `prepare`.

        `values` are plain numbers, one per parameter; addresses are `ctx.read(t)` and `ctx.write(t)`, or those of
        tensors named in `reads` and `writes`, which are then ordered together with the launch in one go.

        Raises:
            LaunchError: the kernel is not loaded on the device; grid, block or shared memory beyond a limit.
            TypeError: a wrong number or type of values, or a tensor among them. OverflowError: an int that does not
                fit its parameter.
        """
        loaded = self._loaded.get(ctx.device)
        if loaded is None:
            raise LaunchError(
                f"{self.name} is not loaded on {ctx.device}: call function.load(ctx.device) in prepare(), which runs "
                "before execute() unless needs_prepare() says that it need not, and keep that Function: "
                "module.function() makes another one each time"
            )
        grid = as_dimensions(grid, "grid")
        block = as_dimensions(block, "block")
        values = tuple(values)  # an iterator would be used up by the first look
        types = tuple(map(type, values))
        if Read in types or Mut in types or Tensor in types:
            _refuse_tensors(self.name, values)
        config = (grid, block, as_shared_bytes(shared_mem_bytes))
        loaded.check_config(config)
        plan = loaded.plan(types)
        packed = plan.pack_values(values)
        if 0 in grid:
            return
        read_buffers = [check_operand(t, ctx.device, f"{self.name}: a tensor that is read") for t in reads]
        write_buffers = [
            check_operand(t, ctx.device, f"{self.name}: a tensor that is written") for t in writes
        ]
        device = ctx.device
        with device._lock:
            ctx._order_again()
            device._order(ctx.stream, read_buffers, write_buffers)
            plan.struct.pack_into(loaded.block.buffer, 0, *packed)
            ctx.stream._retained.append(loaded)  # first: an interrupt may come behind the driver's call
            ctx._driver.launch(loaded.handle, grid, block, config[2], ctx.stream._handle, loaded.block)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Function cannot be copied or pickled; take it from a module with Module.function()"
        )

    def __repr__(self) -> str:
        return f"Function({self.name!r} of {self.module.name!r})"


Function.launch = compiled("MAKES_LAUNCH", Function.launch, PlainLaunch)


def _refuse_tensors(name: str, values: Sequence[Any]) -> None:
    for i, value in enumerate(values):
        if isinstance(value, (Read, Mut, Tensor)):
            raise TypeError(
                f"{name}: value {i} is a {type(value).__name__}, and enqueue() takes plain numbers; "
                "pass ctx.read(tensor) where the kernel only reads it, else ctx.write(tensor)"
            )
