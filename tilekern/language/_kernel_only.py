"""What every language function does when Python itself calls it."""

from __future__ import annotations

import sys
from typing import NoReturn

from ..errors import TilekernError

__all__ = ["kernel_only"]


def kernel_only(name: str = "") -> NoReturn:
    """Raise the error for a call outside of a kernel; the name is the caller's own if left out."""
    name = name or sys._getframe(1).f_code.co_name
    raise TilekernError(
        f"{name} has a meaning only inside a kernel; call it from a function marked @tilekern.kernel "
        "(or from a helper that such a function calls)"
    )
