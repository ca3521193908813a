"""The operations that launch and compile tile kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuda_async import DeviceOp, ExecutionContext
from cuda_async.ops import collect
from cuda_async.ops._unprepared import UNPREPARED

from ._grid import Grid, as_grid

if TYPE_CHECKING:
    from ._kernel import Kernel
    from ._options import KernelOptions

__all__ = ["CompileOp", "KernelLaunch"]


class KernelLaunch(DeviceOp[tuple[Any, ...]]):
    """A launch of a tile kernel. Made by calling the kernel; yields its arguments, in order."""

    _reports_unprepared = True
    _lazy: DeviceOp[list[Any]] | None = None
    _grid: Grid | None = None

    def __init__(self, kernel: Kernel, args: tuple[Any, ...]) -> None:
        self._kernel = kernel
        self._args = args
        self._options = kernel.options
        for arg in args:
            if isinstance(arg, DeviceOp):
                # the operations among the arguments run first
                self._composite = True
                self._lazy = collect([a for a in args if isinstance(a, DeviceOp)])._take()
                break

    def grid(self, grid: Any) -> KernelLaunch:
        """Launch that many blocks: an int, or 1 to 3 ints (x, y, z). Gives the operation back.

        Not needed where an output is a partition: every one of its tiles gets a block.

        Raises:
            TypeError: no ints. LaunchError: more than three.
        """
        self._grid = as_grid(grid)
        return self

    def const_grid(self, grid: Any = None) -> KernelLaunch:
        """As `grid`, and compiled in: `tk.num_blocks` is known at compile time. Gives the operation back.

        Without `grid`, that of the partitions is. Each grid is a compilation of its own.
        """
        if grid is not None:
            self._grid = as_grid(grid)
        self._options = self._options.updated({"const_grid": True})
        return self

    def with_options(self, **options: float | None) -> KernelLaunch:
        """Compile with some options changed for this call; see `KernelOptions`. Gives the operation back.

        Raises:
            KernelOptionError: an option or value there is not.
        """
        self._options = self._options.updated(options)
        return self

    def _arity(self) -> int:
        return len(self._args)

    def _enter(self, execution: Any) -> DeviceOp[Any]:
        assert self._lazy is not None
        execution.frames.append(self)
        return self._lazy  # it was taken once: a shared operation may come here again

    def _resume(self, execution: Any, values: list[Any]) -> DeviceOp[Any] | None:
        if execution.host_pending and execution.wait_for_host_data(self, values):
            return None
        return self._launch_with(values)

    def _launch_with(self, values: list[Any]) -> KernelLaunch:
        """The launch, with the outputs of the operations among the arguments in their places."""
        outputs = iter(values)
        args = [next(outputs) if isinstance(a, DeviceOp) else a for a in self._args]
        op = type(self)(self._kernel, tuple(args))
        op._grid = self._grid
        op._options = self._options
        return op

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        return self._kernel._find(self._args, ctx.device, self._grid, self._options) is None

    def prepare(self, ctx: ExecutionContext) -> None:
        self._kernel._prepare(self._args, ctx.device, self._grid, self._options)

    def execute(self, ctx: ExecutionContext) -> Any:
        args = self._args
        path = self._kernel._paths.get(tuple(map(type, args)))
        return UNPREPARED if path is None else path.launch(args, ctx, self._grid, self._options)


class CompileOp(DeviceOp[None]):
    """Compiles a kernel without launching it. Made by `kernel.compile(...)`."""

    def __init__(self, kernel: Kernel, args: tuple[Any, ...], options: KernelOptions) -> None:
        self._kernel = kernel
        self._args = args
        self._options = options

    def prepare(self, ctx: ExecutionContext) -> None:
        self._kernel._warm_up(self._args, ctx.device, self._options)

    def execute(self, ctx: ExecutionContext) -> None:
        return None
