"""What the environment says about the host device, read when a device is opened.

- `CUDA_ASYNC_HOST_MEMORY`: memory of one device in bytes, or with a suffix such as `512MiB` or `4G`. Default:
  16 GiB, at most the machine's memory.
- `CUDA_ASYNC_HOST_DEVICES`: how many devices there are. Default: 1.
- `CUDA_ASYNC_POISON_FREED`: `1` to fill freed memory with 0xDD. Default: `0`. Other devices do so too (`_switches`).
- `CUDA_ASYNC_HOST_SEED`: a number, to draw the order of everything from it; `random` to draw that number too, and
  print it. Default: none, and an engine thread advances streams as time allows.
- `CUDA_ASYNC_HOST_CHECK`: `1` to look for races and misuse of memory and fail what has them, `collect` to only collect
  and print what is found. Default: `0`.
"""

from __future__ import annotations

import os
import re
import sys

from ...errors import ContextError
from .._switches import OFF, ON

__all__ = [
    "host_check",
    "host_device_count",
    "host_seed",
    "memory_size_bytes",
    "parse_size_bytes",
]

_SUFFIX = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_size_bytes(text: str) -> int:
    """`"4096"`, `"512M"`, `"1.5GiB"` as bytes. Suffixes are powers of 1024.

    Raises:
        ValueError: not a size, or not positive.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    size = int(float(match[1]) * (1 << _SUFFIX[match[2].upper()])) if match else 0
    if size <= 0:
        raise ValueError(f"not a memory size: {text!r}; give bytes, or a number and K, M, G or T: 4GiB")
    return size


def memory_size_bytes() -> int | None:
    """`CUDA_ASYNC_HOST_MEMORY` in bytes; None when it is not set."""
    text = os.environ.get("CUDA_ASYNC_HOST_MEMORY", "").strip()
    if not text:
        return None
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise ContextError(f"CUDA_ASYNC_HOST_MEMORY: {error}") from None


def host_device_count() -> int:
    """How many host devices there are: `CUDA_ASYNC_HOST_DEVICES`, or 1."""
    text = os.environ.get("CUDA_ASYNC_HOST_DEVICES", "").strip() or "1"
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ContextError(f"CUDA_ASYNC_HOST_DEVICES is {text!r}; give a number of devices from 1 to 64")
    return int(text)


def host_check() -> str:
    """`CUDA_ASYNC_HOST_CHECK`: `"raise"`, `"collect"`, or nothing."""
    text = os.environ.get("CUDA_ASYNC_HOST_CHECK", "").strip().lower()
    if text in OFF:
        return ""
    if text in (*ON, "raise"):
        return "raise"
    if text == "collect":
        return text
    raise ContextError(f"CUDA_ASYNC_HOST_CHECK is {text!r}; give 1, collect or 0")


def host_seed() -> int | None:
    """`CUDA_ASYNC_HOST_SEED`; None when it is not set. `random` draws one and prints it, so that it can be given."""
    text = os.environ.get("CUDA_ASYNC_HOST_SEED", "").strip()
    if not text:
        return None
    if text.lower() == "random":
        seed = int.from_bytes(os.urandom(4), "little")
        print(f"CUDA_ASYNC_HOST_SEED={seed}", file=sys.stderr)
        return seed
    if not text.isdecimal():
        raise ContextError(f"CUDA_ASYNC_HOST_SEED is {text!r}; give a number from 0, or random")
    return int(text)
