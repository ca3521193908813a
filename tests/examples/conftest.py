"""Loads the example programs as modules, and runs them on each device."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import cuda_async as ca

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.fixture
def load_example():
    """`load_example(name)`: the example as a module, its `main` not run."""
    loaded = []

    def load(name):
        unique = f"example_{name.replace('/', '_')}"
        spec = importlib.util.spec_from_file_location(unique, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module  # dataclasses look their module up
        loaded.append(unique)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in loaded:
        del sys.modules[name]


@pytest.fixture(params=["host:0", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request):
    """The device that is current during the test."""
    with ca.use_device(request.param) as device:
        yield device
