"""What docs/kernels.md says of the functions, and what they are."""

import inspect
import re
from pathlib import Path

import pytest

import tilekern as tk

PAGE = (Path(__file__).parents[3] / "docs" / "kernels.md").read_text()
TABLE = PAGE.split("## Functions")[1].split("##")[0]
SHOWN = {
    name: parameters
    for row in re.findall(r"^\|(.*?)\|", TABLE, re.MULTILINE)
    for name, parameters in re.findall(r"`(\w+)\(([^`]*)\)`", row)
}
NAMES = [name for name in tk.kernels.__all__ if inspect.isfunction(getattr(tk.kernels, name))]


def parameters_of(function):
    """But for where results go, of which the page speaks once."""
    every = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in every if p.name not in ("out", "total")]


def test_every_function_is_in_the_table():
    assert sorted(SHOWN) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_signature_is_as_shown(name):
    shown = eval(f"lambda {SHOWN[name]}: None")
    assert parameters_of(shown) == parameters_of(getattr(tk.kernels, name))
