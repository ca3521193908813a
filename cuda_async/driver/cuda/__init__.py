"""CUDA devices, through `cuda.bindings`: `open_cuda_driver`, and NVRTC for CUDA C++ sources.

Importing this takes nothing of NVIDIA's; the packages and the driver are looked for on first use.
`_bindings` finds them, `_calls` turns results into errors, `_modules`, `_memory` and `_driver` are the
protocol's parts, `_kernel_text`, `_strided` and `_convert` write the few kernels the driver brings itself,
`_nvrtc` compiles CUDA C++.
"""

from ._bindings import cuda_device_count, cuda_unavailable_reason
from ._driver import CudaDriver, borrow_context, open_cuda_driver
from ._nvrtc import (
    CompiledSource,
    compile_cuda_program,
    compile_cuda_source,
    cuda_include_paths,
    nvrtc_supported_architectures,
    nvrtc_version,
)

__all__ = [
    "CompiledSource",
    "CudaDriver",
    "borrow_context",
    "compile_cuda_program",
    "compile_cuda_source",
    "cuda_device_count",
    "cuda_include_paths",
    "cuda_unavailable_reason",
    "nvrtc_supported_architectures",
    "nvrtc_version",
    "open_cuda_driver",
]
