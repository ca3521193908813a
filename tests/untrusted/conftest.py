"""Input that nobody vouches for: parsers take any bytes, and neither hang, nor take all memory, nor fail otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

MOST_BYTES = 1 << 30
"""What a test may take beside what the process has."""


@pytest.fixture(autouse=True)
def bounded_memory():
    """An allocation whose size comes from the input is a `MemoryError`, where the system can limit it."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + MOST_BYTES
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
