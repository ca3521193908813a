"""Source text that comes from no file."""

from __future__ import annotations

import linecache
import time
import zlib

__all__ = ["LOADED_AT", "register_source"]

LOADED_AT = time.time() - 0.05
"""When this package was imported, by a clock as coarse as that of file systems.

Kernels are defined after that, but their text is read much later, with the rest of the front end: when one first runs.
"""


def register_source(text: str, name: str | None = None) -> str:
    """Make the text of code known by a file name, and give that name.

    For code that comes from no file, such as generated kernels: compile it under the name that this gives, as
    in `exec(compile(text, tk.register_source(text), "exec"), names)`. Tracebacks and debuggers show its lines
    too.

    Args:
        name: the name; one that says what the text is if left out, the same for the same text.
    """
    if not isinstance(text, str):
        raise TypeError(f"the source is a string, got {type(text).__name__}")
    if name is None:
        name = f"<tile source {zlib.crc32(text.encode()):08x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return name
