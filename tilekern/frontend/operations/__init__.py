"""What each function of the language means: from its arguments to operations of the IR.

A handler takes the translator and the function's arguments by name, checks them, and returns the value.
One file per family, as in `language`; `_registry.py` says which handler belongs to which function.
"""

from . import (  # noqa: F401 - importing registers their handlers
    _atomics,
    _combine,
    _debug,
    _gather,
    _mapped,
    _math,
    _memory,
    _raw,
    _views,
)
from ._program import assert_, block_id
from ._reduce import matmul
from ._registry import HANDLERS
from ._shape import index_tile
from ._views import choose_tensor

__all__ = ["HANDLERS", "assert_", "block_id", "choose_tensor", "index_tile", "matmul"]
