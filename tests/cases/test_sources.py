"""Kernels without a source file: they work wherever the source can be found, and else say what to do."""

import importlib.util
import linecache
import os
import subprocess
import sys
import textwrap

import pytest

import cuda_async as ca
import tilekern as tk

KERNEL = """
import cuda_async as ca, tilekern as tk

def doubled(t):
    return t * 2

@tk.kernel
def k(out: tk.Tile1D, n: int):
    out.store(doubled(n) + (lambda t: t + 1)(n))
"""
RUN = "print('result', k(ca.zeros((4,), 'i4').partition(4), 5).first().unpartition().to_host().sync().tolist())\n"
EXPECTED = "result [16, 16, 16, 16]"
HAS_NEW_SOURCES = sys.version_info >= (3, 13)


def python(*arguments, text=None, stdin=None):
    """Run a new Python; gives what it printed and its errors, and its exit status."""
    environment = {**os.environ, "CUDA_ASYNC_DRIVER": "host", "PYTHON_BASIC_REPL": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, *arguments],
        input=text,
        stdin=stdin,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr, done.returncode


def is_clear(text):
    """The error says that the source is missing, and what to do."""
    return (
        "KernelSourceError" in text
        and "the source of k" in text
        and "is not available" in text
        and "tk.register_source(text)" in text
        and "internal" not in text.lower()
    )


def test_command_line():
    text, status = python("-c", KERNEL + RUN)
    assert EXPECTED in text
    assert status == 0


def test_indented_command_line():
    text, status = python("-c", textwrap.dedent(KERNEL + "if True:\n    " + RUN))
    assert EXPECTED in text
    assert status == 0


def test_standard_input_from_a_file(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(KERNEL + RUN)
    with script.open() as file:
        text, status = python("-", stdin=file)
    assert EXPECTED in text
    assert status == 0


def test_standard_input_from_a_pipe():
    text, status = python("-", text=KERNEL + RUN)
    assert EXPECTED in text or (is_clear(text) and status == 1)


def test_interactive_session_goes_on():
    session = (
        KERNEL.replace("\n    return t * 2\n", "\n    return t * 2\n\n")
        + "\n"
        + RUN
        + "print('still', 6 * 7)\n"
    )
    text, status = python("-i", "-q", text=session)
    assert EXPECTED in text or is_clear(text)
    assert "still 42" in text
    assert status == 0


def test_exec_of_a_string():
    names = {}
    exec(KERNEL, names)
    with pytest.raises(tk.KernelSourceError) as caught:
        names["k"].ir(tk.meta(4, "i4").partition(4), 5)
    assert is_clear(f"KernelSourceError: {caught.value}")


def launch(names):
    out = names["k"](ca.zeros((4,), "i4").partition(4), 5)
    return out.first().unpartition().to_host().sync().tolist()


def test_exec_of_a_registered_string(device):
    names = {}
    name = tk.register_source(KERNEL)
    assert tk.register_source(KERNEL) == name
    exec(compile(KERNEL, name, "exec"), names)
    assert launch(names) == [16] * 4


def test_exec_under_a_name_of_linecache(device):
    """What doctest, notebooks and debuggers do."""
    name = "<cell 1>"
    linecache.cache[name] = (len(KERNEL), None, KERNEL.splitlines(keepends=True), name)
    names = {}
    exec(compile(KERNEL, name, "exec"), names)
    assert launch(names) == [16] * 4


def test_error_in_a_registered_string_shows_its_line():
    text = KERNEL.replace("t * 2", "t @ 2")
    names = {}
    exec(compile(text, tk.register_source(text, "generated.py"), "exec"), names)
    with pytest.raises(tk.KernelTypeError, match=r"generated.py:5:12: (.|\n)*return t @ 2"):
        names["k"].ir(tk.meta(4, "i4").partition(4), 5)


def test_two_strings_of_one_name_are_not_mixed_up():
    """The text known under a name is another's: no kernel is made of it."""
    first, second = {}, {}
    linecache.cache["<string>"] = (len(KERNEL), None, KERNEL.splitlines(keepends=True), "<string>")
    try:
        exec(KERNEL, first)
        exec(KERNEL.replace("t * 2", "t * 3"), second)
        out = tk.meta(4, "i4").partition(4)
        assert "constant value=2" in first["k"].ir(out, 5)
        with pytest.raises(tk.KernelSourceError, match="the source of doubled"):
            second["k"].ir(out, 5)
    finally:
        del linecache.cache["<string>"]


def test_lambda_is_no_kernel_but_a_helper(device):
    with pytest.raises(TypeError, match="a kernel is a function made by def; a lambda has no statements"):
        tk.kernel(lambda out: out.store(1))

    @tk.kernel
    def kernel(out: tk.Tile1D, f: tk.Constant[object]):
        out.store(f(3))

    functions = (lambda t: t + 1), (lambda t: t * 10)
    for function, expected in zip(functions, (4, 30), strict=True):
        out = kernel(ca.zeros((2,), "i4").partition(2), function)
        assert out.first().unpartition().to_host().sync().tolist() == [expected] * 2


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in CELLS:
    shell.run_cell(cell, store_history=True)
"""


def in_notebook(tmp_path, *cells):
    """What a shell prints that runs these cells one after the other."""
    script = tmp_path / "cells.py"
    script.write_text(f"CELLS = {cells!r}\n{CELLS}")
    return python(str(script))[0]


needs_ipython = pytest.mark.skipif(
    importlib.util.find_spec("IPython") is None, reason="IPython is not installed"
)


@needs_ipython
def test_notebook_cells(tmp_path):
    assert EXPECTED in in_notebook(tmp_path, KERNEL, RUN)


@needs_ipython
def test_helpers_and_kernels_of_other_cells_may_change(tmp_path):
    helper = "def helper(t):\n    return t * {}\n"
    kernel = "@tk.kernel\ndef k(out: tk.Tile1D):\n    out.store({})\n"
    run = "print('is', k(ca.ones(2).partition(2)).first().unpartition().to_host().sync().tolist())"
    text = in_notebook(
        tmp_path,
        "import tilekern as tk, cuda_async as ca\n" + helper.format(2),
        kernel.format("helper(out.load())"),
        run,
        helper.format(5),
        run,
        kernel.format("-out.load()"),
        run,
    )
    assert [line for line in text.splitlines() if line.startswith("is")] == [
        "is [2.0, 2.0]",
        "is [5.0, 5.0]",
        "is [-1.0, -1.0]",
    ]


def test_magics_that_keep_no_text_are_named():
    names = {"tk": tk}
    exec(compile("@tk.kernel\ndef k(out: tk.Tile1D):\n    out.store(0)\n", "<timed exec>", "exec"), names)
    with pytest.raises(tk.KernelSourceError, match=r"%%time runs a cell .* in a cell of its own"):
        names["k"].ir(tk.meta(4, "f4").partition(4))
