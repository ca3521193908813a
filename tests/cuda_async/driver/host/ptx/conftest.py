"""A device to run PTX on, and NVRTC to make it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cuda_async.driver._protocol import HostLaunch
from cuda_async.driver.host._memory import HostMemory
from cuda_async.driver.host.ptx import parse_module

DATA = Path(__file__).parent / "data"


@cache
def nvrtc_ptx(source: str, arch: str, options: tuple[str, ...]) -> str:
    """PTX of CUDA C++ source; NVRTC needs no GPU."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")

    def check(result):
        code, *values = result
        if int(code):
            raise RuntimeError(str(code))
        return values[0] if values else None

    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    arguments = [f"--gpu-architecture={arch}".encode(), *(option.encode() for option in options)]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
    if int(code):
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    text = b" " * check(nvrtc.nvrtcGetPTXSize(program))
    check(nvrtc.nvrtcGetPTX(program, text))
    return text.decode()


@cache
def parsed(name: str):
    """The module of a file in `data/`, which may be loaded many times."""
    return parse_module((DATA / name).read_text(), name)


class PtxDevice:
    """Host memory, and launches that run to their end at once."""

    folder = DATA

    def __init__(self) -> None:
        self.memory = HostMemory(1 << 28)
        self.modules = []

    def load(self, text: str, name: str = "kernel.ptx"):
        module = parse_module(text, name).load(self.memory)
        self.modules.append(module)
        return module

    def cuda(self, source: str, *options: str, arch: str = "sm_80"):
        """The functions of CUDA C++ source."""
        return self.load(nvrtc_ptx(source, arch, options)).functions

    def data(self, name: str):
        """The functions of a file in `data/`."""
        module = parsed(name).load(self.memory)
        self.modules.append(module)
        return module.functions

    def put(self, array: np.ndarray) -> int:
        """A copy of an array in device memory."""
        array = np.ascontiguousarray(array)
        address = self.memory.allocate(max(1, array.nbytes))
        self.memory.view(address, array.nbytes, "write")[:] = array.reshape(-1).view(np.uint8)
        return address

    def zeros(self, shape, dtype) -> int:
        return self.put(np.zeros(shape, dtype))

    def get(self, address: int, shape, dtype) -> np.ndarray:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        return self.memory.view(address, size).view(dtype).reshape(shape).copy()

    def steps(self, function, grid, block, *arguments, shared=0, cooperative=False, cluster=None):
        """The iterator of a launch. Arguments: ints fit any integer parameter; else NumPy scalars, bytes."""
        parameters = function.info.parameters
        packed = bytearray(max((p.offset_bytes + p.size_bytes for p in parameters), default=0))
        for parameter, argument in zip(parameters, arguments, strict=True):
            size = parameter.size_bytes
            if isinstance(argument, bytes):
                raw = argument
            elif isinstance(argument, np.generic):
                raw = argument.tobytes()
            else:
                raw = int(argument).to_bytes(size, "little", signed=argument < 0)
            assert len(raw) == size, (parameter, argument)
            packed[parameter.offset_bytes : parameter.offset_bytes + size] = raw
        launch = HostLaunch(
            grid=_three(grid),
            block=_three(block),
            shared_bytes=shared,
            arguments=bytes(packed),
            memory=self.memory,
            cooperative=cooperative,
            cluster=cluster,
        )
        return function.start(launch)

    def run(self, function, grid, block, *arguments, **options) -> None:
        for _ in self.steps(function, grid, block, *arguments, **options):
            pass


def _three(extents) -> tuple[int, int, int]:
    if isinstance(extents, int):
        extents = (extents,)
    return tuple((*extents, 1, 1)[:3])


@pytest.fixture
def ptx_device() -> PtxDevice:
    return PtxDevice()
