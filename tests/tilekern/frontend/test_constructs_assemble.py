"""Control flow and values of the other tests here, compiled for a GPU: NVIDIA's assembler takes all of it."""

import importlib.util
from pathlib import Path

import pytest

import tilekern as tk

FILES = ("test_control_flow", "test_values", "test_returns_in_loops")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_function_assembles(name, disassemble):
    spec = importlib.util.spec_from_file_location(f"assembled_{name}", Path(__file__).parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    numbers = tk.meta(8, "i4")
    for function in module.FUNCTIONS:
        assert module.per_block.cubin(numbers.partition(1), numbers, numbers, function, arch="sm_90")
