"""The operations that tensor methods build, declared here and provided by the layer above.

`Tensor.to_host()` returns a DeviceOp, but memory knows nothing of operations. So it states what it needs;
`cuda_async.ops` installs it when it is imported (the package always imports it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..ops import DeviceOp
    from ._dtypes import DType
    from ._tensor import Tensor

__all__ = ["OpFactory", "install", "op_factory"]


class OpFactory(Protocol):
    """Makes the operations behind `Tensor`'s methods."""

    def to_host(self, tensor: Tensor) -> DeviceOp[Any]: ...
    def astype(self, tensor: Tensor, dtype: DType) -> DeviceOp[Tensor]: ...


_installed: list[OpFactory] = []


def install(factory: OpFactory) -> None:
    """Called once by `cuda_async.ops`."""
    _installed[:] = [factory]


def op_factory() -> OpFactory:
    return _installed[0]
