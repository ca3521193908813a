"""Errors that are kept for whoever awaits, and the memory that they hold.

The frames of a traceback hold what was in their variables, tensors too; and where they, or their callers, also hold
the future, shared operation or submission that keeps the error, that is a cycle, which Python frees when its collector
runs. No frame can be told to forget its caller; so where memory is short, and something that keeps an error is alive,
the collector is run.
"""

from __future__ import annotations

import gc
import weakref

__all__ = ["collect_kept_errors", "note_kept_error"]

_keepers: weakref.WeakSet[object] = weakref.WeakSet()


def note_kept_error(keeper: object) -> None:
    """`keeper` refers to an error that was or will be raised."""
    _keepers.add(keeper)


def collect_kept_errors() -> bool:
    """Free what nothing but such cycles holds; False where there cannot be any. Hold no lock, it runs finalizers."""
    if not _keepers:
        return False
    gc.collect()
    return True
