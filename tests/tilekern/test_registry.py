"""Nothing of the tile language is without its tests: every function and every operation has all of them.

An operation of the IR: sample, refused uses, interpreter and emitter (`ir/test_ir_operations.py`, which goes over the
same registry), and a case of the support table that uses it, which is verified and assembled for every
element type. A function of the language: a handler, a docstring, a line in docs/language.md, and a test over
element types.
"""

import ast
import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest

from tilekern import ir, language
from tilekern.dtypes import DTYPES
from tilekern.frontend.operations import HANDLERS

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parents[1]

# of which type a test is parametrised, by what it calls that
OVER_TYPES = ("dtype", "source", "target", "data", "kept", "d")

BY_FILE = {
    "language/test_elementwise.py": {
        "test_float_function": "exp exp2 log log2 sqrt rsqrt sin cos tan sinh cosh tanh",
        "test_exact_float_function": "floor ceil abs negative",
        "test_float_minimum_and_maximum": "minimum maximum",
        "test_comparison": "equal not_equal less less_equal greater greater_equal",
        "test_integers_like_python_modulo_their_width": "floordiv mod bitwise_and bitwise_or bitwise_xor",
        "test_integer_unary_and_shifts": "bitwise_not bitwise_lshift bitwise_rshift",
        "test_power": "pow",
        "test_fma_rounds_once": "fma",
        "test_cast": "astype",
    },
    "language/test_rounding.py": {
        "test_arithmetic_in_every_mode": "add sub mul truediv",
        "test_fma_in_every_mode": "fma",
        "test_square_root_in_every_mode": "sqrt",
        "test_conversion_in_every_mode": "astype",
    },
    "language/test_every_type.py": {
        "test_elements_are_moved": "reshape broadcast_to expand_dims permute transpose cat extract insert",
        "test_numbers_are_computed": "where item divmod isnan astile full zeros ones arange mulhi",
        "test_angle_of_a_point": "atan2",
        "test_bits_are_read_as_another_type": "bitcast",
    },
    "language/test_combine.py": {
        "test_reduction_with_a_function": "reduce",
        "test_scan_with_a_function": "scan",
        "test_arg_reductions_leave_nan_out_on_request": "argmax argmin",
    },
    "language/test_shapes.py": {
        "test_reduction": "sum prod max min",
        "test_arg_reductions": "argmax argmin",
        "test_scan": "cumsum cumprod",
        "test_mma_of_whole_numbers_is_exact": "mma",
    },
    "language/test_bytes_and_scales.py": {
        "test_bytes_are_those_of_memory": "pack_to_bytes unpack_from_bytes",
        "test_scaled_product": "mma_scaled",
    },
    "language/test_print.py": {"test_every_type_is_printed": "print"},
    "language/test_memory.py": {"test_copy_of_ragged_shapes": "load store load_like"},
    "language/test_gather.py": {
        "test_gather_of_every_type": "gather",
        "test_scatter_of_a_number": "scatter",
        "test_rows_by_number": "load_advanced_indexing store_advanced_indexing",
    },
    "language/test_atomics.py": {
        "test_distinct_elements": "atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor atomic_xchg",
        "test_compare_and_swap": "atomic_cas",
    },
}
COMPUTE = ("_creation", "_math", "_reduce", "_shape")
"""Files of the language whose functions compute; they have rows in the support table."""
TYPED = (*COMPUTE, "_atomics", "_gather", "_memory")
"""Files whose functions are each tested over element types."""

WITHOUT_TYPES = {"matmul", "num_tiles"}
"""Functions made of others of these (`mma`), or that see no elements."""

MADE_BY_PASSES = {"truncdiv"}
"""Operations no function of the language makes by itself."""


def functions():
    """The functions of the language, without methods of tensors."""
    return {f.__name__: f for f in HANDLERS if inspect.isfunction(f) and "." not in f.__qualname__}


def functions_of(files):
    return {name: f for name, f in functions().items() if f.__module__.rpartition(".")[2] in files}


@pytest.fixture(scope="module")
def parametrised():
    """Names of the tests of each file that are parametrised over an element type."""
    found = {}
    for file in BY_FILE:
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                marks = [ast.unparse(d) for d in node.decorator_list]
                names = re.findall(
                    r"\w+", " ".join(re.findall(r"parametrize\(\(?([^\[{]*)", " ".join(marks)))
                )
                if set(names) & set(OVER_TYPES):
                    found.setdefault(file, set()).add(node.name)
    return found


@pytest.mark.parametrize("file", BY_FILE)
def test_named_tests_are_there_and_go_over_types(file, parametrised):
    missing = set(BY_FILE[file]) - parametrised.get(file, set())
    assert not missing, f"{file} has no such test over element types"


@pytest.mark.parametrize("name", sorted(functions_of(TYPED)))
def test_function_is_tested_over_types(name):
    tested = {word for tests in BY_FILE.values() for names in tests.values() for word in names.split()}
    assert name in tested | WITHOUT_TYPES, f"no test over element types; name it in {Path(__file__).name}"


@pytest.mark.parametrize("name", sorted(functions()))
def test_function_is_documented_and_tested(name):
    function = functions()[name]
    assert function.__doc__, "no docstring"
    assert getattr(language, name) is function
    page = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    assert re.search(rf"(?<![A-Za-z0-9_]){name}(?![A-Za-z0-9_])", page), "docs/language.md does not name it"
    files = [*TESTS.rglob("*.py"), ROOT / "tools" / "tile_support.py"]  # its cases are compiled by a test
    texts = (path.read_text(encoding="utf-8") for path in files)
    pattern = re.compile(rf"\btk\.{name}\b|\.{name}\(")
    assert any(pattern.search(text) for text in texts), "no test uses it"


@pytest.fixture(scope="module")
def emitted():
    """Mnemonics of the operations that the cases of the support table are made of."""
    path = ROOT / "tools" / "tile_support.py"
    spec = importlib.util.spec_from_file_location("tile_support", path)
    tool = sys.modules.setdefault("tile_support", importlib.util.module_from_spec(spec))
    if not hasattr(tool, "CASES"):
        spec.loader.exec_module(tool)
    found = set()
    for case in tool.CASES:
        for short in ("bool", "u32", "i32", "f32", "f8e4m3fn", "f4e2m1fn"):
            function = tool.translated((case.function,), DTYPES[short])
            if function is not None:
                found |= {op.mnemonic for op in ir.walk(function.body)}
    return found


COMPUTING = ("_combine", "_debug", "_elementwise", "_reduce", "_shape")


@pytest.mark.parametrize(
    "name", [n for n, op in ir.OPERATIONS.items() if op.__module__.rpartition(".")[2] in COMPUTING]
)
def test_operation_is_in_the_support_table(name, emitted):
    assert name in emitted | MADE_BY_PASSES, "tools/tile_support.py has no case that makes it"


def test_every_function_that_computes_has_a_row():
    path = ROOT / "tools" / "tile_support.py"
    names = set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    missing = set(functions_of(COMPUTE)) - names - {"astype", "bitcast"}
    assert not missing, "functions without a row in the support table"
