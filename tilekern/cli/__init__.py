"""The command `tilekern`: compiling kernels ahead of time, reports on them, and the disk cache."""

from ._main import main

__all__ = ["main"]
