"""Which device, which event loop, and which tests run where.

Tests that take `device` run on the host device, and on a GPU where there is one (`-m gpu` for those alone). Async
tests run on asyncio, uvloop and trio through anyio's plugin. With `CUDA_ASYNC_HOST_SEED` every test begins with that
seed anew, and one that fails says so.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os

import pytest

import cuda_async as ca
from cuda_async.driver._inline import set_runner
from cuda_async.driver.host import SeededEngine
from cuda_async.driver.host._seeded import process_engine
from cuda_async.scheduling import _device
from cuda_async.testing import format_trace, seeded_device


@functools.cache
def has_gpu() -> bool:
    """True where the CUDA driver is installed and finds a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files anew; review the difference"
    )
    parser.addoption(
        "--assembled",
        action="store_true",
        help="tile kernels on the host device: run the PTX that the assembler makes, not the interpreter",
    )


@pytest.fixture(scope="session")
def update_golden(request) -> bool:
    """Whether golden files are to be written instead of compared with."""
    return bool(request.config.getoption("--update-golden"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen: str = config.option.markexpr
    asked_for = "gpu" in chosen and "not gpu" not in chosen
    if asked_for or has_gpu():
        return
    skip = pytest.mark.skip(reason="no CUDA device on this machine")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


def _loop(name: str, options: dict[str, bool], needs: str | None = None):
    missing = needs is not None and importlib.util.find_spec(needs) is None
    marks = pytest.mark.skipif(missing, reason=f"{needs} is not installed") if needs else ()
    return pytest.param((name, options), id=needs or name, marks=marks)


LOOPS = [
    _loop("asyncio", {"use_uvloop": False}),
    _loop("asyncio", {"use_uvloop": True}, needs="uvloop"),
    _loop("trio", {}, needs="trio"),
]


@pytest.fixture(params=LOOPS)
def anyio_backend(request):
    """The event loop of an async test."""
    return request.param


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """The device of a test, which is also the default one in every thread and task."""
    device = ca.Device(f"{request.param}:0")
    monkeypatch.setattr(_device, "_default", device)
    return device.open()


@pytest.fixture
def host(monkeypatch):
    """The host device, as the default one."""
    device = ca.Device("host:0")
    monkeypatch.setattr(_device, "_default", device)
    return device.open()


@pytest.fixture(params=range(3), ids=lambda seed: f"seed{seed}")
def seeded(request, monkeypatch):
    """A private seeded host device, as the default one, that runs slow host work too: `seeded.driver.engine.order`."""
    device, _ = seeded_device(request.param)
    monkeypatch.setattr(_device, "_default", device)
    before = set_runner(device.driver.engine)
    yield device
    set_runner(before)
    device.driver.close()


def seeded_engine():
    """The engine of the process's host devices, where the environment seeds it."""
    engine = process_engine() if os.environ.get("CUDA_ASYNC_HOST_SEED", "").strip() else None
    return engine if isinstance(engine, SeededEngine) else None


def pytest_report_header() -> str | None:
    engine = seeded_engine()
    return None if engine is None else f"CUDA_ASYNC_HOST_SEED={engine.order.seed}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    engine = seeded_engine()
    if engine is not None:
        engine.order.restart(engine.order.seed)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    engine = seeded_engine()
    if report.failed and engine is not None:
        again = f"CUDA_ASYNC_HOST_SEED={engine.order.seed} python -m pytest {item.nodeid!r}"
        report.sections.append(("host seed", f"{again}\ntrace: {format_trace(engine.order.trace)}"))
    return report


@pytest.fixture
def stepped(monkeypatch):
    """A private stepped host device, as the default one; `stepped.driver.advance()` moves it on."""
    from cuda_async.driver.host import HostDriver

    driver = HostDriver(stepped=True)
    device = ca.Device._make("host", 0, driver)
    monkeypatch.setattr(_device, "_default", device)
    device.policy.next_stream()  # makes the streams, which a first use does on a worker thread
    driver.calls.clear()
    yield device
    driver.advance_all()
    driver.close()
