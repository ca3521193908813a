"""`tilekern cache info`, `list` and `clear`."""

from __future__ import annotations

import argparse
import sys
import time

from ..jit._kernel import disk_cache

__all__ = ["clear_cache", "list_cache", "show_cache"]


def show_cache(given: argparse.Namespace) -> int:
    """Print where the cache is and how full."""
    info = disk_cache().info()
    lines = [f"folder    {info.folder or 'none'}"]
    if not info.is_enabled:
        lines.append(f"off       {info.reason}")
    share = 100 * info.size_bytes / info.max_bytes if info.max_bytes else 0.0
    lines += [
        f"entries   {info.entries}",
        f"size      {_size(info.size_bytes)} of {_size(info.max_bytes)} ({share:.1f} %)",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def list_cache(given: argparse.Namespace) -> int:
    """Print the entries, the last used first."""
    for entry in disk_cache().entries():
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.used))
        about = entry.metadata
        name = about.get("kernel") or about.get("assembler") or ""
        kind = about.get("kind", "cubin")
        details = [str(about[key]) for key in ("target", "source") if about.get(key)]
        if "assembler_ms" in about:
            details.append(f"{about['assembler_ms']} ms to assemble")
        line = f"{used}  {_size(entry.size_bytes):>9}  {kind:12}  {name}  {'  '.join(details)}"
        sys.stdout.write(line.rstrip() + "\n")
    return 0


def clear_cache(given: argparse.Namespace) -> int:
    """Remove every entry."""
    cache = disk_cache()
    folder = cache.info().folder or "none"
    sys.stdout.write(f"{cache.clear()} entries removed from {folder}\n")
    return 0


def _size(size_bytes: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            return f"{size_bytes / 1024**power:.1f} {unit}"
    return f"{size_bytes} B"
