"""The frame of the IR: structure, names, types as text, building."""

import pytest
from ir_samples import function

from tilekern import ir
from tilekern.dtypes import DTYPES, bool_, dtype_of, float32, int8, int32, uint8
from tilekern.errors import ParseError, VerifyError

TYPES = (
    *("f32", "bool", "tile<4x8xbf16>", "ptr<f64>", "tile<8xptr<i8>>", "token", "tensor<?x64xf32, [64, 1]>"),
    "tensor<?xu16, [?]>",
    "view<2x32, tensor<?x64xf32, [64, 1]>>",
    "view<32x2, tensor<?x?xf8e5m2, [?, 1]>, order=[1, 0], padding=neg_inf>",
)


@pytest.mark.parametrize("text", TYPES)
def test_type_round_trips(text):
    assert str(ir.parse_type(text)) == text


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_dtype_is_found_by_its_numpy_type(dtype):
    if dtype.short != "tf32":
        assert dtype_of(dtype.dtype) is dtype
    assert dtype.itemsize == dtype.dtype.itemsize


def test_unknown_numpy_type_is_refused():
    with pytest.raises(TypeError, match="no element type complex64"):
        dtype_of("complex64")


def test_integer_ranges():
    assert (int8.lowest, int8.highest, uint8.lowest, uint8.highest) == (-128, 127, 0, 255)
    assert bool_.highest == 1
    assert not int8.holds(128)


def test_names_are_made_unique():
    first, second = ir.Value(ir.scalar(float32), "x"), ir.Value(ir.scalar(float32), "x")
    unnamed = ir.Value(ir.scalar(float32))
    block = ir.Block([first, second, unnamed])
    block.ops.append(ir.ReturnOp())
    text = str(ir.Function("f", block, {}))
    assert text.startswith("func @f(%x: f32, %x_1: f32, %0: f32) {")


def test_hints_round_trip():
    text = "func @f() num_ctas=2 occupancy=1 {\n  return\n}\n"
    made = ir.parse(text)
    assert made.hints == {"num_ctas": 2, "occupancy": 1}
    assert str(made) == text


def test_locations_are_printed_on_request():
    made = function("%r = exp %t : tile<4x8xf32>")
    made.body.ops[-2].location = ir.Location("kernels.py", 3, 4, 3, 9, "f")
    assert "exp %t : tile<4x8xf32>  // kernels.py:3:5" in ir.format_function(made, locations=True)
    assert "//" not in str(made)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func @f( {", "expected a name with %"),
        ("func @f() {\n  %x = ad %y : f32\n}", "line 2: no operation is called ad"),
        ("func @f() {\n  %x = neg %y : f32\n}", "line 2: %y is not defined"),
        ("func @f(%x: f31) {\n}", "expected an element type"),
        ("func @f(%x: f32, %x: f32) {\n}", "%x is defined twice"),
        ("func @f() {\n  return : f32\n}", "line 2: expected a word"),
        ("func @f(%x: f32) {\n  %y = neg %x : f32, f32\n}", "1 results have 2 types"),
        ("func @f(%x: f32) {\n  neg %x\n}", "neg has more results"),
        ("func @f() {\n  return\n} extra", "expected the end"),
        ("func @f(%x: f32) {\n  %y = neg %x kind=3 : f32\n}", "neg has no attribute kind"),
    ],
)
def test_parser_says_where(text, message):
    with pytest.raises(ParseError, match=message):
        ir.parse(text)


def test_use_before_definition_is_refused():
    made = function("%r = exp %t : tile<4x8xf32>\n%q = exp %r : tile<4x8xf32>")
    ops = made.body.ops
    ops[-2], ops[-3] = ops[-3], ops[-2]
    with pytest.raises(VerifyError, match="which is not defined before it"):
        made.verify()


def test_value_of_a_branch_is_not_visible_outside():
    made = function(
        "if %yes {\n%x = exp %t : tile<4x8xf32>\nyield []\n} else {\nyield []\n}\n%q = exp %t : tile<4x8xf32>"
    )
    inner = made.body.ops[-3].then.ops[0].result
    made.body.ops[-2].source = inner
    with pytest.raises(VerifyError, match="not defined before"):
        made.verify()


def test_block_without_terminator_is_refused():
    made = function("")
    made.body.ops.pop()
    with pytest.raises(VerifyError, match="ends a block, but is no terminator"):
        made.verify()


def test_parameters_are_scalars():
    with pytest.raises(VerifyError, match="is no scalar"):
        ir.parse("func @f(%x: tile<4xf32>) {\n  return\n}").verify()


def test_builder_verifies_and_locates():
    block = ir.Block()
    builder = ir.Builder(block)
    builder.location = ir.Location("k.py", 1, 0, 1, 1, "k")
    one = builder.add(ir.ConstantOp(value=1, result=ir.Value(ir.scalar(int32)))).result
    assert block.ops[0].location is builder.location
    with pytest.raises(VerifyError, match="takes float elements"):
        builder.add(ir.ExpOp(source=one, result=ir.Value(one.type)))
    assert len(block.ops) == 1


def test_fields_are_required():
    with pytest.raises(TypeError, match="AddOp needs rhs"):
        ir.AddOp(lhs=ir.Value(ir.scalar(float32)))
    with pytest.raises(TypeError, match="ReturnOp has no value"):
        ir.ReturnOp(value=1)


def test_structural_equality_sees_attributes():
    a = function("%r = reduce %t axis=1 kind=max : tile<4xf32>")
    b = function("%r = reduce %t axis=1 kind=min : tile<4xf32>")
    assert not ir.structurally_equal(a, b)
    assert ir.structurally_equal(a, function("%other = reduce %t axis=1 kind=max : tile<4xf32>"))


def test_error_shows_line_caret_and_calls(tmp_path):
    file = tmp_path / "user.py"
    file.write_text("def f(x):\n    return x + y\n")
    call = ir.Location(str(file), 1, 0, 1, 3, "kernel")
    place = ir.Location(str(file), 2, 15, 2, 16, "f", call)
    assert place.describe("no y") == (
        f"{file}:2:16: no y\n"
        "    2 | return x + y\n"
        "      |            ^\n"
        f"called from {file}:1:1, in kernel\n"
        "    1 | def f(x):\n"
        "      | ^^^"
    )
