"""Which tests run where: those marked `gpu` are skipped without a GPU, unless they were asked for."""

from __future__ import annotations

import ctypes
import functools

import pytest


@functools.cache
def has_gpu() -> bool:
    """True where the CUDA driver is installed and finds a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen: str = config.option.markexpr
    asked_for = "gpu" in chosen and "not gpu" not in chosen
    if asked_for or has_gpu():
        return
    skip = pytest.mark.skip(reason="no CUDA device on this machine")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)
