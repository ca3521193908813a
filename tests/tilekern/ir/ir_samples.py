"""One valid example per IR operation, and what its verifier refuses.

A sample is the operations between a prelude, which defines values of all kinds, and `return`. Registry tests
fail for an operation without a sample here.
"""

from ir_memory_samples import MORE_PRELUDE
from ir_memory_samples import REFUSED as MEMORY_REFUSED
from ir_memory_samples import SAMPLES as MEMORY_SAMPLES

from tilekern import ir

PRELUDE = """\
  %t = constant value=1.5 : tile<4x8xf32>
  %u = constant value=0.5 : tile<4x8xf32>
  %half = constant value=0.5 : tile<4x8xf16>
  %ints = constant value=7 : tile<4x8xi32>
  %ints2 = constant value=-2 : tile<4x8xi32>
  %words = constant value=7 : tile<4x8xu32>
  %bools = constant value=true : tile<4x8xbool>
  %row = constant value=2.0 : tile<1x8xf32>
  %a = constant value=1.0 : tile<16x32xf16>
  %b = constant value=1.0 : tile<32x16xf16>
  %acc = constant value=0.0 : tile<16x16xf32>
  %fp8 = constant value=1.0 : tile<4x8xf8e4m3fn>
  %fp8a = constant value=1.0 : tile<16x64xf8e4m3fn>
  %fp8c = constant value=1.0 : tile<64x16xf8e4m3fn>
  %scale_a = constant value=1.0 : tile<16x2xf8e8m0fnu>
  %scale_b = constant value=1.0 : tile<2x16xf8e8m0fnu>
  %bytes = constant value=3 : tile<32xu8>
  %list = constant value=1.5 : tile<8xf32>
  %part = constant value=2.0 : tile<2x4xf32>
  %zero = constant value=0 : i32
  %one = constant value=1 : i32
  %yes = constant value=true : bool
  %tensor = make_tensor %p, [%n, %m], [%m] : tensor<?x?xf32, [?, 1]>
  %view = make_view %tensor : view<4x8, tensor<?x?xf32, [?, 1]>>
"""
PARAMETERS = "%p: ptr<f32>, %n: i32, %m: i32, %s: f32, %ip: ptr<i32>"

_UNARY_FLOAT = (
    *("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "floor"),
    "ceil",
)
_TWO_FLOATS = ("add", "sub", "mul", "div", "mod", "pow", "max", "min", "atan2")
_TWO_INTS = ("floordiv", "truncdiv", "and", "or", "xor", "shl", "shr")

SAMPLES: dict[str, list[str]] = {
    **{name: [f"%r = {name} %t : tile<4x8xf32>"] for name in _UNARY_FLOAT},
    **{name: [f"%r = {name} %t, %u : tile<4x8xf32>"] for name in _TWO_FLOATS},
    **{name: [f"%r = {name} %ints, %ints : tile<4x8xi32>"] for name in _TWO_INTS},
    "add": [
        "%r = add %t, %u : tile<4x8xf32>",
        "%r = add %t, %u rounding=zero flush_to_zero=true : tile<4x8xf32>",
    ],
    "div": [
        "%r = div %t, %u : tile<4x8xf32>",
        "%r = div %half, %half rounding=negative_inf : tile<4x8xf16>",
        "%r = div %t, %u rounding=approx : tile<4x8xf32>",
        "%r = div %t, %u rounding=full flush_to_zero=true : tile<4x8xf32>",
    ],
    "exp": ["%r = exp %t : tile<4x8xf32>", "%r = exp %t rounding=approx : tile<4x8xf32>"],
    "tanh": ["%r = tanh %half : tile<4x8xf16>", "%r = tanh %t rounding=approx : tile<4x8xf32>"],
    "exp2": ["%r = exp2 %half : tile<4x8xf16>", "%r = exp2 %t flush_to_zero=true : tile<4x8xf32>"],
    "rsqrt": ["%r = rsqrt %half : tile<4x8xf16>", "%r = rsqrt %t flush_to_zero=true : tile<4x8xf32>"],
    "sqrt": [
        "%r = sqrt %t : tile<4x8xf32>",
        "%r = sqrt %half rounding=positive_inf : tile<4x8xf16>",
        "%r = sqrt %t rounding=approx flush_to_zero=true : tile<4x8xf32>",
    ],
    "max": [
        "%r = max %t, %u : tile<4x8xf32>",
        "%r = max %t, %u propagate_nan=false flush_to_zero=true : tile<4x8xf32>",
    ],
    "neg": ["%r = neg %t : tile<4x8xf32>", "%r = neg %ints : tile<4x8xi32>"],
    "abs": [
        "%r = abs %t : tile<4x8xf32>",
        "%r = abs %ints : tile<4x8xi32>",
        "%r = abs %words : tile<4x8xu32>",
    ],
    "not": ["%r = not %bools : tile<4x8xbool>", "%r = not %ints : tile<4x8xi32>"],
    "mulhi": ["%r = mulhi %words, %words : tile<4x8xu32>", "%r = mulhi %ints, %ints2 : tile<4x8xi32>"],
    "fma": [
        "%r = fma %t, %u, %t : tile<4x8xf32>",
        "%r = fma %t, %u, %t rounding=zero flush_to_zero=true : tile<4x8xf32>",
    ],
    "compare": [
        *[
            f"%r = compare %t, %u predicate={p} : tile<4x8xbool>"
            for p in ("eq", "ne", "lt", "le", "gt", "ge")
        ],
        "%r = compare %words, %words predicate=lt : tile<4x8xbool>",
    ],
    "select": ["%r = select %bools, %t, %u : tile<4x8xf32>"],
    "cast": [
        "%r = cast %t : tile<4x8xf16>",
        "%r = cast %t : tile<4x8xi8>",
        "%r = cast %bools : tile<4x8xf32>",
        "%r = cast %bools : tile<4x8xi64>",
        "%r = cast %ints : tile<4x8xu32>",
        "%r = cast %ints : tile<4x8xi16>",
        "%r = cast %half : tile<4x8xbf16>",
        "%r = cast %t : tile<4x8xtf32>",
        "%r = cast %half rounding=positive_inf : tile<4x8xf8e8m0fnu>",
        "%r = cast %t : tile<4x8xf4e2m1fn>",
        "%r = cast %t rounding=zero : tile<4x8xbf16>",
    ],
    "bitcast": ["%r = bitcast %t : tile<4x8xi32>", "%r = bitcast %ints : tile<4x8xu32>"],
    "constant": [
        "%r = constant value=inf : tile<4xf32>",
        "%r = constant value=[1, 2, -3, 4] : tile<2x2xi8>",
        "%r = constant value=[0.5, -0.0, nan, -inf] : tile<4xbf16>",
        "%r = constant value=false : bool",
    ],
    "iota": ["%r = iota : tile<256xi8>".replace("xi8", "xu8"), "%r = iota : tile<16xi32>"],
    "block_id": ["%r = block_id axis=2 : i32"],
    "num_blocks": ["%r = num_blocks axis=0 : i32"],
    "assume_div_by": ["%r = assume_div_by %p divisor=16 : ptr<f32>", "%r = assume_div_by %n divisor=8 : i32"],
    "assume_below": ["%r = assume_below %n, %m : i32"],
    "assume_bounded": [
        "%r = assume_bounded %n lower=0 upper=none : i32",
        "%r = assume_bounded %n lower=-4 upper=4096 : i32",
    ],
    "assert": ['assert %bools message="all \\"must\\" hold"', "assert %yes message=never"],
    "reshape": ["%r = reshape %t : tile<32xf32>", "%r = reshape %s : tile<1x1xf32>"],
    "broadcast": ["%r = broadcast %row : tile<4x8xf32>"],
    "permute": ["%r = permute %t order=[1, 0] : tile<8x4xf32>"],
    "cat": ["%r = cat %t, %u axis=1 : tile<4x16xf32>"],
    "extract": ["%r = extract %t, [%one, %zero] : tile<2x8xf32>"],
    "insert": ["%r = insert %part, %t, [%one, %zero] : tile<4x8xf32>"],
    "pack": ["%r = pack %list : tile<32xu8>"],
    "unpack": ["%r = unpack %bytes : tile<8xf32>", "%r = unpack %bytes : tile<64xf4e2m1fn>"],
    "print": [
        'print [%n, %t, %bools] text="n %d, t %5.2f, b %d, 100%%\\n"',
        'print [] text="here\\n"',
        'print [%half, %words] text="%e %x"',
    ],
    "grid_wait": ["%tok = grid_wait _ : token"],
    "grid_launch_dependents": [
        "%tok = grid_wait _ : token\n%tok2 = grid_launch_dependents %tok : token",
    ],
    "reduce_with": [
        "%r = reduce_with [%t] axis=1 identities=[-inf] : tile<4xf32> (%x: f32, %y: f32) {\n"
        "%z = max %x, %y : f32\nyield [%z]\n}",
        "%r, %q = reduce_with [%t, %ints] axis=0 identities=[0.0, 1] : tile<8xf32>, tile<8xi32> "
        "(%x: f32, %i: i32, %y: f32, %j: i32) {\n"
        "%z = add %x, %y : f32\n%k = mul %i, %j : i32\n%w = mul %z, %s : f32\nyield [%w, %k]\n}",
        "%r = reduce_with [%words] axis=0 identities=[4294967295] : tile<8xu32> (%x: u32, %y: u32) {\n"
        "%c = compare %x, %y predicate=lt : bool\n"
        "%z = if %c : u32 {\nyield [%x]\n} else {\nyield [%y]\n}\nyield [%z]\n}",
    ],
    "scan_with": [
        "%r = scan_with [%t] axis=1 identities=[1.0] reverse=true : tile<4x8xf32> (%x: f32, %y: f32) {\n"
        "%z = mul %x, %y : f32\nyield [%z]\n}",
    ],
    "reduce": [
        *[f"%r = reduce %t axis=1 kind={k} : tile<4xf32>" for k in ("sum", "prod", "max", "min")],
        "%r = reduce %t axis=0 kind=max propagate_nan=false : tile<8xf32>",
        "%r = reduce %words axis=0 kind=min : tile<8xu32>",
        "%r = reduce %t axis=1 kind=sum rounding=zero flush_to_zero=true : tile<4xf32>",
    ],
    "arg_reduce": [
        "%r = arg_reduce %t axis=1 kind=max : tile<4xi32>",
        "%r = arg_reduce %words axis=0 kind=min : tile<8xi32>",
        "%r = arg_reduce %t axis=1 kind=min propagate_nan=false : tile<4xi32>",
    ],
    "scan": [
        "%r = scan %t axis=1 kind=sum : tile<4x8xf32>",
        "%r = scan %ints axis=0 kind=prod reverse=true : tile<4x8xi32>",
        "%r = scan %t axis=0 kind=sum rounding=positive_inf : tile<4x8xf32>",
    ],
    "mma": [
        "%r = mma %a, %b, %acc : tile<16x16xf32>",
        "%r = mma %fp8a, %fp8c, %acc fast_acc=true : tile<16x16xf32>",
    ],
    "mma_scaled": ["%r = mma_scaled %fp8a, %scale_a, %fp8c, %scale_b, %acc : tile<16x16xf32>"],
    "make_tensor": [
        "%r = make_tensor %p, [%n], [] : tensor<?xf32, [1]>",
        "%r = make_tensor %p, [], [%m] : tensor<4x64xf32, [?, 1]>",
    ],
    "index_space": ["%r, %q = index_space %view : i32, i32"],
    "make_token": ["%tok = make_token : token"],
    "join_tokens": [
        "%tok = make_token : token\n%tok2 = make_token : token\n%tok3 = join_tokens [%tok, %tok2] : token"
    ],
    "if": [
        "%r = if %yes : f32 {\nyield [%s]\n} else {\n%h = constant value=0.5 : f32\nyield [%h]\n}",
        "if %yes {\nreturn\n} else {\nyield []\n}",
    ],
    "for": [
        "%r = for %zero, %n, %one, [%t] : tile<4x8xf32> (%i: i32, %x: tile<4x8xf32>) {\n"
        "%y = add %x, %t : tile<4x8xf32>\ncontinue [%y]\n}"
    ],
    "loop": [
        "%r = loop [%zero] : i32 (%i: i32) {\n%j = add %i, %one : i32\n%c = compare %j, %n predicate=lt : bool\n"
        "if %c {\ncontinue [%j]\n} else {\nbreak [%j]\n}\ncontinue [%i]\n}"
    ],
    **MEMORY_SAMPLES,
    # terminators stand in the samples above
    "yield": ["if %yes {\nyield []\n} else {\nyield []\n}"],
    "continue": ["for %zero, %n, %one, [] (%i: i32) {\ncontinue []\n}"],
    "break": ["loop [] {\nbreak []\n}"],
    "return": [""],
}

REFUSED: dict[str, list[tuple[str, str]]] = {
    **{
        name: [(f"%r = {name} %ints : tile<4x8xi32>", "takes float elements, got i32")]
        for name in _UNARY_FLOAT
    },
    **{
        name: [(f"%r = {name} %t, %row : tile<4x8xf32>", "needs one type for operands and result")]
        for name in _TWO_FLOATS
    },
    **{
        name: [(f"%r = {name} %t, %t : tile<4x8xf32>", "elements, got f32")] for name in (*_TWO_INTS, "mulhi")
    },
    "neg": [
        ("%r = neg %bools : tile<4x8xbool>", "got bool"),
        ("%r = neg %fp8 : tile<4x8xf8e4m3fn>", "cast it first"),
    ],
    "add": [
        ("%r = add %t, %row : tile<4x8xf32>", "needs one type for operands and result"),
        ("%r = add %t, %u rounding=approx : tile<4x8xf32>", "rounding is one of nearest_even, zero"),
        ("%r = add %ints, %ints rounding=zero : tile<4x8xi32>", "only floats are rounded"),
        ("%r = add %half, %half flush_to_zero=true : tile<4x8xf16>", "flush_to_zero is for f32"),
    ],
    "div": [("%r = div %half, %half rounding=full : tile<4x8xf16>", "rounding full is for f32, got f16")],
    "exp": [
        ("%r = exp %ints : tile<4x8xi32>", "takes float elements, got i32"),
        ("%r = exp %t flush_to_zero=true : tile<4x8xf32>", "has no flush_to_zero"),
    ],
    "max": [("%r = max %half, %half flush_to_zero=true : tile<4x8xf16>", "flush_to_zero is for f32")],
    "abs": [("%r = abs %t : tile<4x8xf16>", "the result has the type of the source")],
    "not": [("%r = not %t : tile<4x8xf32>", "takes bool or int or uint elements, got f32")],
    "fma": [
        ("%r = fma %t, %u, %row : tile<4x8xf32>", "needs one type"),
        ("%r = fma %ints, %ints, %ints : tile<4x8xi32>", "takes float elements"),
    ],
    "compare": [
        ("%r = compare %t, %row predicate=lt : tile<4x8xbool>", "needs one type for both operands"),
        ("%r = compare %t, %u predicate=below : tile<4x8xbool>", "predicate is one of"),
        ("%r = compare %t, %u predicate=lt : tile<4x8xi32>", "the result is a bool tile"),
        ("%r = compare %bools, %bools predicate=lt : tile<4x8xbool>", "compares numbers"),
    ],
    "select": [
        ("%r = select %ints, %t, %u : tile<4x8xf32>", "the condition is a bool tile"),
        ("%r = select %bools, %t, %row : tile<4x8xf32>", "have one tile type"),
    ],
    "cast": [
        ("%r = cast %t : tile<4x8xf32>", "both tile<4x8xf32>"),
        ("%r = cast %t : tile<4xf16>", "tiles of one shape"),
        ("%r = cast %t : tile<4x8xbool>", "compare with 0"),
        ("%r = cast %t rounding=positive_inf : tile<4x8xf16>", "by rounding nearest_even or zero"),
        ("%r = cast %t : tile<4x8xf8e8m0fnu>", "by rounding zero or positive_inf"),
    ],
    "bitcast": [("%r = bitcast %t : tile<4x8xi16>", "element types of one width")],
    "constant": [
        ("%r = constant value=1 : tile<4xf32>", "a value of f32 is float, got 1"),
        ("%r = constant value=200 : tile<4xi8>", "200 does not fit i8"),
        ("%r = constant value=[1, 2] : tile<4xi8>", "2 values for a tile of 4"),
        ("%r = constant value=1.0 : tile<3xf32>", "power of two"),
        ("%r = constant value=1.0 : tile<16777216x2xf32>", "at most 2\\*\\*24"),
    ],
    "iota": [
        ("%r = iota : tile<2x2xi32>", "an integer tile of rank 1"),
        ("%r = iota : tile<512xu8>", "u8 cannot count to 512"),
    ],
    "block_id": [("%r = block_id axis=3 : i32", "grid axes are 0, 1 and 2, got 3")],
    "num_blocks": [("%r = num_blocks axis=0 : i64", "the result is i32")],
    "assume_div_by": [
        ("%r = assume_div_by %n divisor=3 : i32", "the divisor is a power of two"),
        ("%r = assume_div_by %s divisor=2 : f32", "integers or pointers"),
    ],
    "assume_below": [
        ("%r = assume_below %s, %s : f32", "an integer scalar"),
        ("%r = assume_below %zero, %s : i32", "the type of the source"),
    ],
    "assume_bounded": [
        ("%r = assume_bounded %n lower=0 upper=4294967296 : i32", "does not fit i32"),
        ("%r = assume_bounded %s lower=0 upper=1 : f32", "a tile of integers"),
    ],
    "assert": [("assert %ints message=no", "the condition is a bool tile")],
    "reshape": [
        ("%r = reshape %t : tile<64xf32>", "32 elements do not fill"),
        ("%r = reshape %t : tile<32xi32>", "one element type"),
    ],
    "broadcast": [
        ("%r = broadcast %row : tile<8x4xf32>", "does not broadcast"),
        ("%r = broadcast %s : tile<4xf32>", "does not broadcast"),
    ],
    "permute": [
        ("%r = permute %t order=[0, 0] : tile<4x4xf32>", "no permutation"),
        ("%r = permute %t order=[1, 0] : tile<4x8xf32>", "is not"),
    ],
    "cat": [
        ("%r = cat %t, %row axis=0 : tile<8x8xf32>", "two tiles of one type"),
        ("%r = cat %t, %u axis=0 : tile<4x16xf32>", "the result has shape"),
    ],
    "extract": [
        ("%r = extract %t, [%one] : tile<2x8xf32>", "have one rank"),
        ("%r = extract %t, [%one, %zero] : tile<8x8xf32>", "does not divide"),
    ],
    "reduce": [
        ("%r = reduce %t axis=2 kind=sum : tile<4xf32>", "axis 2 of a tile of rank 2"),
        ("%r = reduce %t axis=1 kind=mean : tile<4xf32>", "kind is one of"),
        ("%r = reduce %t axis=1 kind=sum : tile<8xf32>", "the result is tile<4xf32>"),
        ("%r = reduce %fp8 axis=1 kind=sum : tile<4xf8e4m3fn>", "cast it first"),
        ("%r = reduce %t axis=1 kind=max rounding=zero : tile<4xf32>", "sums and products are rounded by"),
        ("%r = reduce %half axis=1 kind=sum flush_to_zero=true : tile<4xf16>", "flush_to_zero is for f32"),
    ],
    "insert": [
        ("%r = insert %part, %t, [%one] : tile<4x8xf32>", "have one rank"),
        ("%r = insert %t, %part, [%zero, %zero] : tile<2x4xf32>", "does not divide"),
        ("%r = insert %part, %t, [%one, %zero] : tile<2x4xf32>", "the type of the target"),
    ],
    "pack": [
        ("%r = pack %list : tile<16xu8>", "a row of elements and a row of as many bytes"),
        ("%r = pack %bytes : tile<32xu8>", "u8 is not packed"),
    ],
    "unpack": [("%r = unpack %bytes : tile<4x2xf32>", "a row of elements")],
    "print": [
        ('print [%n] text="n"', "0 conversions for 1 values"),
        ('print [%n] text="%f"', "%f for i32"),
        ('print [] text="50%"', "begins no conversion"),
        ('print [%p] text="%d"', "prints tiles of numbers"),
    ],
    "grid_wait": [("%tok = grid_wait _ : i32", "tokens have type token")],
    "grid_launch_dependents": [("%tok = grid_launch_dependents %n : token", "tokens have type token")],
    "reduce_with": [
        (
            "%r = reduce_with [%t] axis=1 identities=[0] : tile<4xf32> (%x: f32, %y: f32) {\nyield [%x]\n}",
            "an identity of f32 is float",
        ),
        (
            "%r = reduce_with [%t] axis=1 identities=[0.0] : tile<4xf32> (%x: f32) {\nyield [%x]\n}",
            "two scalars of each",
        ),
        (
            "%r = reduce_with [%t] axis=1 identities=[0.0] : tile<8xf32> (%x: f32, %y: f32) {\nyield [%x]\n}",
            "the results are tile<4xf32>",
        ),
        (
            "%r = reduce_with [%t] axis=1 identities=[0.0] : tile<4xf32> (%x: f32, %y: f32) {\n"
            "assert %yes message=no\nyield [%x]\n}",
            "only computes scalars, and has assert",
        ),
        (
            "%r, %q = reduce_with [%t, %row] axis=1 identities=[0.0, 0.0] : tile<4xf32>, tile<1xf32> "
            "(%x: f32, %y: f32, %z: f32, %w: f32) {\nyield [%x, %y]\n}",
            "several of one shape",
        ),
    ],
    "scan_with": [
        (
            "%r = scan_with [%t] axis=2 identities=[0.0] : tile<4x8xf32> (%x: f32, %y: f32) {\nyield [%x]\n}",
            "axis 2 of tiles of rank 2",
        ),
        (
            "%r = scan_with [%fp8] axis=1 identities=[0.0] : tile<4x8xf8e4m3fn> "
            "(%x: f8e4m3fn, %y: f8e4m3fn) {\nyield [%x]\n}",
            "numbers to compute with",
        ),
    ],
    "mma_scaled": [
        (
            "%r = mma_scaled %a, %scale_a, %b, %scale_b, %acc : tile<16x16xf32>",
            "f16 factors take no scales of f8e8m0fnu",
        ),
        ("%r = mma_scaled %fp8a, %scale_b, %fp8c, %scale_b, %acc : tile<16x16xf32>", "do not fit"),
    ],
    "arg_reduce": [("%r = arg_reduce %t axis=1 kind=max : tile<4xi64>", "the result is tile<4xi32>")],
    "scan": [
        ("%r = scan %t axis=1 kind=max : tile<4x8xf32>", "kind is one of"),
        ("%r = scan %t axis=1 kind=sum : tile<4xf32>", "the type of the source"),
    ],
    "mma": [
        ("%r = mma %a, %b, %t : tile<4x8xf32>", "do not fit"),
        ("%r = mma %a, %a, %acc : tile<16x16xf32>", "do not fit"),
        ("%r = mma %ints, %ints, %acc : tile<16x16xf32>", "accumulate in nothing"),
        ("%r = mma %a, %b, %acc fast_acc=true : tile<16x16xf32>", "fast_acc is for 8-bit floats"),
    ],
    "make_tensor": [
        ("%r = make_tensor %p, [%n], [] : tensor<?xf16, [1]>", "the base is ptr<f16>"),
        ("%r = make_tensor %p, [], [] : tensor<?xf32, [1]>", "1 dimensions are unknown, got 0"),
        ("%r = make_tensor %p, [%s], [] : tensor<?xf32, [1]>", "integer scalars"),
        ("%r = make_tensor %p, [], [] : tensor<4xf32, [0]>", "at least 1"),
    ],
    "make_view": [
        ("%r = make_view %tensor : view<4, tensor<?xf32, [1]>>", "a view of tensor<\\?x\\?xf32"),
        ("%r = make_view %tensor : view<4x3, tensor<?x?xf32, [?, 1]>>", "power of two"),
        ("%r = make_view %tensor : view<4x8, tensor<?x?xf32, [?, 1]>, order=[0, 0]>", "the tensor's rank"),
        ("%r = make_view %tensor : view<4x8, tensor<?x?xf32, [?, 1]>, padding=ones>", "no padding ones"),
    ],
    "index_space": [("%r = index_space %view : i32", "one count per axis")],
    "load": [
        ("%r, %tok = load %view, [%zero], _ : tile<4x8xf32>, token", "one number per axis"),
        ("%r, %tok = load %view, [%zero, %one], _ : tile<8x4xf32>, token", "the tile is tile<4x8xf32>"),
        ("%r, %tok = load %view, [%zero, %one], _ latency=11 : tile<4x8xf32>, token", "latency is 1 to 10"),
        ("%r, %tok = load %view, [%zero, %one], %zero : tile<4x8xf32>, token", "tokens have type token"),
    ],
    "store": [("%tok = store %view, %row, [%zero, %one], _ : token", "the tile is tile<4x8xf32>")],
    "make_token": [("%tok = make_token : i32", "tokens have type token")],
    "join_tokens": [("%tok = make_token : token\n%tok2 = join_tokens [%tok] : token", "two or more tokens")],
    "if": [
        ("if %n {\nyield []\n} else {\nyield []\n}", "the condition is a bool"),
    ],
    "for": [
        ("for %zero, %s, %one, [] (%i: i32) {\ncontinue []\n}", "bounds and step have one type"),
        ("for %zero, %n, %one, [%t] (%i: i32) {\ncontinue []\n}", "the counter and the carried values"),
        (
            "%r = for %zero, %n, %one, [%tensor] : tensor<?x?xf32, [?, 1]> (%i: i32, %x: tensor<?x?xf32, [?, 1]>) {\n"
            "continue [%x]\n}",
            "only tiles and tokens can be carried",
        ),
    ],
    "loop": [("%r = loop [%zero] : i32 (%i: f32) {\nbreak [%i]\n}", "the carried values")],
    "yield": [
        (
            "%r = if %yes : f32 {\nyield [%s]\n} else {\nyield [%n]\n}",
            "hands over \\(i32\\), its target takes \\(f32\\)",
        ),
        ("yield []", "only a branch of `if`"),
        ("loop [] {\nyield []\n}", "only a branch"),
    ],
    "continue": [("continue []", "outside of a loop")],
    "break": [
        ("break []", "outside of `loop`"),
        ("for %zero, %n, %one, [] (%i: i32) {\nbreak []\n}", "outside of `loop`"),
    ],
    "return": [
        ("loop [] {\nreturn\n}", "return inside of a loop"),
        ("return\n  %r = neg %t : tile<4x8xf32>", "ends its block early"),
    ],
}


for _name, _cases in MEMORY_REFUSED.items():
    REFUSED[_name] = REFUSED.get(_name, []) + _cases

_MORE_NAMES = [line.split()[0] for line in MORE_PRELUDE.splitlines()]


def function(body: str, end: str = "return") -> ir.Function:
    """The function with these operations behind the prelude."""
    more = MORE_PRELUDE if any(name in body for name in _MORE_NAMES) else ""
    return ir.parse(f"func @sample({PARAMETERS}) {{\n{PRELUDE}{more}{body}\n{end}\n}}")
