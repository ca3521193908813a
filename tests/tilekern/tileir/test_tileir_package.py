"""The package's door: names come on first use, and nothing more is imported than is needed."""

import subprocess
import sys

import pytest

import tilekern.tileir as tileir


def test_every_name_is_there() -> None:
    for name in tileir.__all__:
        assert getattr(tileir, name) is not None
    assert set(tileir._HOME_OF) | {"errors", "types"} == set(tileir.__all__)
    assert set(tileir.__all__) <= set(dir(tileir))


def test_every_class_and_function_is_documented() -> None:
    for name in tileir.__all__:
        thing = getattr(tileir, name)
        if isinstance(thing, type) or callable(thing):
            assert thing.__doc__, name


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'frobnicate'"):
        _ = tileir.frobnicate


def test_cache_key_needs_little() -> None:
    """Asking for the toolchain's fingerprint imports neither the writer nor the module that runs tools."""
    script = """
import sys
from tilekern.tileir import errors, find_toolchain
try:
    find_toolchain()
except errors.CompilerNotFoundError:
    pass
print(*sorted(name for name in sys.modules if name.startswith("tilekern.tileir.")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {
        f"tilekern.tileir.{name}" for name in ("_process", "_toolchain", "_version", "errors")
    }
