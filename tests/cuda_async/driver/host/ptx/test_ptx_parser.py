"""What the parser reads, and how it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_async.driver._protocol import ParameterKind
from cuda_async.driver.host._memory import HostMemory
from cuda_async.driver.host.ptx import parse_module
from cuda_async.driver.host.ptx._parser import parse_text
from cuda_async.driver.host.ptx._syntax import Immediate, RegisterOperand
from cuda_async.errors import CompileError

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


def entry(body: str, parameters: str = "") -> str:
    return f"{HEADER}.visible .entry k({parameters})\n{{\n{body}\n}}\n"


def refused(text: str) -> str:
    with pytest.raises(CompileError) as caught:
        parse_module(text, "bad.ptx")
    return str(caught.value)


# ---------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("text", ["", "  \n\t\n", "\0"])
def test_empty_text(text):
    assert "bad.ptx: the PTX text is empty" in refused(text)


def test_syntax_error_shows_line_and_caret():
    message = refused(entry("    .reg .b32 %r<3>;\n    add.s32 %r1 %r2, 3;\n    ret;"))
    first, source, caret = message.splitlines()
    assert first == "line 7 of bad.ptx: expected ';' at the end of add.s32, found '%r2'"
    assert source == "    7 |     add.s32 %r1 %r2, 3;"
    assert caret.index("^") == source.index("%r2")


def test_missing_semicolon_points_at_the_end_of_its_line():
    message = refused(entry("    .reg .b32 %r<3>;\n    mov.u32 %r1, 3\n    ret;"))
    assert message.startswith("line 7 of bad.ptx: expected ';' at the end of mov.u32")


def test_newer_version_names_both():
    message = refused(".version 99.0\n.target sm_90\n")
    assert "PTX version 99.0 is not supported" in message
    assert "reads PTX 3.0 to 9.x" in message
    assert message.startswith("line 1 of bad.ptx:")


def test_unknown_target_is_named():
    message = refused(".version 8.0\n.target sm_999\n")
    assert "target 'sm_999' is not known (PTX version 8.0)" in message
    assert "sm_90" in message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.u32 %r1, 3;", "register '%r1' is not declared"),
        (".reg .b32 %r<2>; mov.u32 %r2, 3;", "register '%r2' is not declared"),
        (".reg .b64 %a; mov.u64 %a, nowhere;", "name 'nowhere' is not declared"),
        ("bra L1;", "label 'L1' is not defined in 'k'"),
        ("L1: ret; L1: ret;", "label 'L1' is defined twice in this scope"),
        (".reg .b32 %r; @%r ret;", "a guard is a predicate register"),
        (".reg .b32 %r; { .reg .b32 %s; } mov.u32 %s, %r;", "register '%s' is not declared"),
        (".reg .f33 %f;", "expected a type such as .b32, found '.f33'"),
        ("mov.u32 # 3;", "unexpected character '#'"),
        (".reg .b32 %r; mov.u32 %r, 08;", "unexpected character '0'"),
        (".reg .b32 %r; mov.u32 %r, 1u;", "unexpected character '1'"),
        (".reg .f32 %f; mov.f32 %f, 0f3F8;", "unexpected character '0'"),
        (".reg .f32 %f; mov.f32 %f, .5f;", "unexpected character '.'"),
        ('.pragma "nounroll" mov.u32 %r, 1;', "expected ';' after .pragma, found 'mov.u32'"),
        (".pragma nounroll;", "expected a string after .pragma, found 'nounroll'"),
        (".loc 1 3 ret;", "expected a column, found 'ret'"),
        (".loc 1 3 4, somewhere 2; ret;", "expected function_name or inlined_at, found 'somewhere'"),
        (".reg .b32 %r; ld.global.u32 %r, [%r;", "expected ']' after an address"),
        (".reg .b32 %i; brx.idx %i, list;", "'list' is not a .branchtargets list"),
    ],
)
def test_bad_bodies(body, message):
    assert message in refused(entry(body))


@pytest.mark.parametrize("value", [0, 3, 24])
def test_alignments_are_powers_of_two(value):
    message = f"an alignment is a power of two, got {value}"
    assert message in refused(entry("ret;", f".param .align {value} .b8 p[24]"))
    assert message in refused(HEADER + f".global .align {value} .b8 x[24];\n.entry k() {{ ret; }}")


@pytest.mark.parametrize("space", ["global", "shared", "local"])
def test_extents_are_not_negative(space):
    message = "an extent of -5; an array has 0 elements or more"
    assert message in refused(entry(f".{space} .b8 x[-5]; ret;"))


@pytest.mark.parametrize("linkage", ["", ".visible", ".weak", ".common"])
def test_variable_is_defined_once(linkage):
    """As for ptxas: Duplicate definition of variable 'g'."""
    message = refused(HEADER + f"{linkage} .global .b32 g;\n.const .f32 h;\n{linkage} .global .b32 f, g;\n")
    first, source, caret = message.splitlines()
    assert first == "line 6 of bad.ptx: 'g' is defined twice; first in line 4"
    assert caret.index("^") == source.index(".b32")


def test_declarations_of_a_variable_go_with_its_definition():
    declared, defined = ".extern .global .b32 g;", ".visible .global .b32 g = 7;"
    for text in (declared + defined, defined + declared, declared + defined + declared):
        module = parse_text(HEADER + text, "k")
        assert [element.value for _, element in module.variables["g"].initializer] == [7]


@pytest.mark.parametrize("header", [".entry k({})", ".func f({})", ".func ({}) f()"])
def test_parameters_have_different_names(header):
    """As for ptxas: Duplicate definition of variable 'a'."""
    text = header.format(".param .b32 a,\n.param .b64 b,\n.param .b32 a")
    assert refused(HEADER + text + " { ret; }").startswith(
        "line 6 of bad.ptx: two parameters have the name 'a'"
    )
    parse_text(HEADER + header.format(".param .b32 _, .param .b32 _") + ";", "k")


@pytest.mark.parametrize(
    ("number", "refusal"),
    [
        (str(2**64 - 1), None),
        (f"-{2**63}", None),
        (str(2**64), f"the integer {2**64} has more than 64 bits"),
        (hex(2**65), f"the integer {hex(2**65)} has more than 64 bits"),
    ],
)
@pytest.mark.parametrize("use", ["ld.local.b64 %r, [{}];", "ld.local.b64 %r, [%r+{}];", "mov.b64 %r, {};"])
def test_integers_have_64_bits(use, number, refusal):
    """As for ptxas: Constant overflow."""
    text = entry(f".reg .b64 %r;\n{use.format(number)}\nret;")
    if refusal is None:
        parse_text(text, "k")
    else:
        assert refused(text).startswith(f"line 7 of bad.ptx: {refusal}")


def loaded_kernel(text: str):
    return parse_module(HEADER + text, "k").load(HostMemory(1 << 20)).functions["k"].info


def test_static_shared_memory_has_the_limit_of_ptxas():
    """It says: Entry function 'k' uses too much shared data (0xc001 bytes, 0xc000 max)."""
    kernel = ".shared .b8 a[20000]; .shared .b8 b[{size}]; .entry k() {{ {first} {second} ret; }}"
    first, second = ".reg .b32 %r<2>; mov.b32 %r0, a;", "mov.b32 %r1, b;"
    fits = kernel.format(size=0xC000 - 20000, first=first, second=second)
    assert loaded_kernel(fits).static_shared_bytes == 0xC000
    assert loaded_kernel(kernel.format(size=0xC000, first="", second="")).static_shared_bytes == 0
    with pytest.raises(
        CompileError,
        match=r"'k' declares 49153 bytes of static shared memory; the limit is 49152: declare it \.extern",
    ):
        loaded_kernel(kernel.format(size=0xC001 - 20000, first=first, second=second))


@pytest.mark.parametrize(
    ("sizes", "refused_bytes"),
    [
        (".const .b8 a[65536];", None),
        (".const .b8 a[65530]; .const .b8 b[7];", 65537),
        (".const .b8 a; .const .align 8 .b8 b[65528]; .const .b8 c;", 0x10001),
        (".extern .const .b8 a[40000]; .const .b8 a[40000];", None),
    ],
)
def test_constants_have_the_limit_of_ptxas(sizes, refused_bytes):
    """It says: File uses too much global constant data (0x10001 bytes, 0x10000 max)."""
    text = HEADER + sizes + ".entry k() { ret; }"
    if refused_bytes is None:
        parse_text(text, "k")
        return
    with pytest.raises(CompileError, match=rf"take {refused_bytes} bytes; a module has at most 65536"):
        parse_text(text, "k")


@pytest.mark.parametrize(
    ("version", "target", "parameters", "refused_bytes"),
    [
        ("8.0", "sm_80", ".param .b8 p[4352]", None),
        ("8.0", "sm_80", ".param .b8 p[4345], .param .b64 q", 0x1108),
        ("8.1", "sm_60", ".param .b8 p[4353]", 4353),
        ("8.1", "sm_80", ".param .b8 p[32764]", None),
        ("8.1", "sm_80", ".param .b8 p[32765]", 0x7FFD),
    ],
)
def test_parameters_have_the_limits_of_ptxas(version, target, parameters, refused_bytes):
    """It says: Entry function 'k' uses too much parameter space (0x1108 bytes, 0x1100 max)."""
    text = f".version {version}\n.target {target}\n.address_size 64\n.entry k({parameters}) {{ ret; }}"
    if refused_bytes is None:
        parse_text(text, "k")
        return
    with pytest.raises(
        CompileError, match=f"the parameters of 'k' take {refused_bytes} bytes; a kernel has at most"
    ):
        parse_text(text, "k")


def test_refused_module_gives_its_memory_back():
    memory = HostMemory(1 << 20)
    text = HEADER + ".global .b8 g[4096]; .entry k() { .shared .b8 x[50000]; ret; }"
    with pytest.raises(CompileError, match="50000 bytes of static shared memory"):
        parse_module(text, "k").load(memory)
    memory.allocate(1 << 20)


def test_tile_kernels_may_declare_more_static_shared_memory():
    """`tileiras`, which assembles them, has its own limit; it declares 96 KiB for a product of matrices."""
    tile = ".entry k() .reqntid 128 .language 7 { .shared .align 128 .b8 x[98304]; ret; }"
    assert loaded_kernel(tile).static_shared_bytes == 98304


def test_local_memory_of_a_thread_has_a_limit():
    """Before anything is allocated: a launch would ask for it once for every thread."""

    def load(size):
        text = HEADER + f".entry k() {{ .local .b8 x[{size}]; ret; }}"
        return parse_module(text, "k").load(HostMemory(1 << 20)).functions["k"].info

    assert load(512 << 10).local_bytes == 512 << 10
    with pytest.raises(
        CompileError, match="'k' needs 524289 bytes of local memory for each thread; the limit is 524288"
    ):
        load((512 << 10) + 1)


def test_unfinished_function():
    assert "the function's '{' has no '}'" in refused(HEADER + ".entry k() { ret;")


def test_definition_twice():
    assert "'k' is defined twice" in refused(entry("ret;") + ".entry k() { ret; }")


# ---------------------------------------------------------------------------------- contents


def test_scopes_hide_outer_registers():
    module = parse_text(
        entry(
            """
            .reg .b32 %r<3>;
            mov.u32 %r1, 1;
            { .reg .b32 %r1; mov.u32 %r1, 2; { .reg .f32 %r1; mov.f32 %r1, 0f3F800000; } mov.u32 %r1, 4; }
            mov.u32 %r1, 5;"""
        ),
        "scopes.ptx",
    )
    body = module.functions["k"].body
    written = [instruction.operands[0] for instruction in body]
    assert all(isinstance(operand, RegisterOperand) for operand in written)
    registers = [operand.register for operand in written]
    assert registers[0] is registers[4]
    assert registers[1] is registers[3]
    assert len({id(register) for register in registers}) == 3
    assert [register.type for register in registers] == ["b32", "b32", "f32", "b32", "b32"]


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("42", 42, "int"),
        ("-7", -7, "int"),
        ("0x1F", 31, "int"),
        ("0b101U", 5, "int"),
        ("017", 15, "int"),
        ("(1 << 4) + 3 * 2", 22, "int"),
        ("~0", -1, "int"),
        ("WARP_SZ", 32, "int"),
        ("0f3F800000", 0x3F800000, "f32"),
        ("0d3FF0000000000000", 0x3FF0000000000000, "f64"),
        ("-0f3F800000", 0xBF800000, "f32"),
        ("1.5", int(np.float64(1.5).view("u8")), "decimal"),
        ("(.u64)-1", 0xFFFFFFFFFFFFFFFF, "int"),
        ("3 > 2 ? 10 : 20", 10, "int"),
        ("-7 / 2", -3, "int"),
        ("0B101", 5, "int"),
        ("0X1fU", 31, "int"),
        ("017U", 15, "int"),
        ("42U", 42, "int"),
        ("-.5", int(np.float64(-0.5).view("u8")), "decimal"),
        (".5e3", int(np.float64(500).view("u8")), "decimal"),
        ("1.", int(np.float64(1).view("u8")), "decimal"),
        ("1.e-2", int(np.float64(0.01).view("u8")), "decimal"),
        ("25E+1", int(np.float64(250).view("u8")), "decimal"),
        ("0F3F800000", 0x3F800000, "f32"),
        ("0D3FF0000000000000", 0x3FF0000000000000, "f64"),
        ("-7 % 2", -1, "int"),
    ],
)
def test_constants(text, value, kind):
    module = parse_text(entry(f".reg .b64 %a; mov.b64 %a, {text};"), "constants.ptx")
    assert module.functions["k"].body[0].operands[1] == Immediate(value, kind)


def test_source_lines_follow_loc():
    module = parse_text(
        HEADER
        + '.file 1 "kernel.cu"\n.file 2 "other.h", 12, 34\n'
        + """.entry k() {
            .reg .b32 %r;
            .loc 1 10 3
            mov.u32 %r, 1;
            .loc 2 20 5, function_name $L__info_string0, inlined_at 1 11 2
            mov.u32 %r, 2;
        }
        .section .debug_str { $L__info_string0: .b8 95,90,0 }
        .section .debug_info
        {
        .b32 12
        }""",
        "lines.ptx",
    )
    assert [str(i.location) for i in module.functions["k"].body] == ["kernel.cu:10", "other.h:20"]


@pytest.mark.parametrize(
    "before",
    [
        ".loc 1 3 4",
        ".loc 1 3 4, function_name $L__info_string0, inlined_at 1 11 2",
        ".loc 1 3 4, function_name $L__info_string0+16, inlined_at 1 11 2",
        '.file 2 "other.cu"',
        '.file 2 "other.cu", 12, 34',
        '.pragma "nounroll";',
        '.pragma "nounroll",\n"used_bytes_mask 0xff";',
        "/* .loc 1 3 4 */",
        "// a comment ends with its line \\\n",
        "/* two\n // lines */",
        "here: .loc 1 3 4",
    ],
)
def test_instruction_behind_a_directive_on_its_line(ptx_device, before):
    text = entry(
        f".reg .b64 %a; ld.param.u64 %a, [out]; {before} st.global.u32 [%a], 7; ret;", ".param .u64 out"
    )
    text = text.replace(".visible", '.file 1 "kernel.cu" .visible')
    text += ".section .debug_str { $L__info_string0: .b8 95,90,0 }"
    out = ptx_device.zeros(1, "u4")
    ptx_device.run(ptx_device.load(text).functions["k"], 1, 1, out)
    assert ptx_device.get(out, 1, "u4")[0] == 7


@pytest.mark.parametrize(
    "before",
    [
        '.file 1 "kernel.cu"',
        '.file 1 "kernel.cu" .loc 1 2 3',
        '.pragma "nounroll";',
        ".section .debug_str { .b8 95,0 }",
        ".section .debug_str { // }\n.b8 95 /* } */\n}",
        "/*\n.section .a {\n*/",
        "// .section .a {\n",
        "@@DWARF .section .a {\n",
    ],
)
def test_kernel_behind_a_directive_on_its_line(before):
    module = parse_text(f"{HEADER}{before} .visible .entry k() {{ ret; }} /* }} */", "line.ptx")
    assert [i.text for i in module.functions["k"].body] == ["ret;"]


def test_debug_sections_do_not_shift_lines():
    text = HEADER + ".section .debug_abbrev\n{\n.b8 1\n.b8 2\n}\n.entry k()\n{\n  mov.u32 #;\n}\n"
    assert refused(text).startswith("line 11 of bad.ptx: ")


def test_parameters_lie_in_the_argument_block(ptx_device):
    function = ptx_device.load(
        entry(
            "ret;",
            """.param .u8 a, .param .f64 b, .param .align 16 .b8 c[20], .param .u64 .ptr .global .align 4 d,
            .param .f16 e, .param .b32 f""",
        )
    ).functions["k"]
    kinds = ParameterKind
    assert [(p.name, p.offset_bytes, p.size_bytes, p.kind) for p in function.info.parameters] == [
        ("a", 0, 1, kinds.INTEGER),
        ("b", 8, 8, kinds.FLOAT),
        ("c", 16, 20, kinds.STRUCT),
        ("d", 40, 8, kinds.POINTER),
        ("e", 48, 2, kinds.FLOAT),
        ("f", 52, 4, kinds.INTEGER),
    ]


def test_limits_and_shared_memory_are_reported(ptx_device):
    function = ptx_device.load(
        HEADER
        + """.shared .align 8 .b8 unused[4096];
        .shared .align 16 .b8 table[40];
        .extern .shared .align 16 .b8 dynamic[];
        .entry k() .maxntid 128, 2, 1 .minnctapersm 2 .maxnreg 64
        {
            .shared .align 8 .f64 own[3];
            .reg .b32 %r<3>;
            mov.u32 %r1, table; mov.u32 %r2, dynamic;
            ret;
        }
        .entry exact() .reqntid 32, 4, 1 { ret; }"""
    ).functions
    assert function["k"].info.max_threads_per_block == 256
    assert function["k"].info.static_shared_bytes == 40 + 24
    assert function["exact"].info.required_block == (32, 4, 1)
    assert function["exact"].info.max_threads_per_block == 128


def test_initial_values(ptx_device):
    module = ptx_device.load(
        HEADER
        + """
        .func f() { ret; }
        .global .align 4 .u32 number = 7;
        .global .align 8 .f32 floats[4] = {0f3FC00000, -2.5, 1};
        .global .align 2 .u16 table[2][3] = {{1, 2}, {3}};
        .global .align 8 .u64 pointers[3] = {generic(number), generic(table)+4, f};
        .global .align 1 .b8 bytes[8] = {0xFF(number), 0xFF00(number), 0xFF0000(number), 1};
        .const .align 4 .s32 open[] = {-1, -2, -3};
        .visible .global .align 16 .v4 .f32 vector;
        .extern .global .u32 elsewhere;
        .entry k() { ret; }""",
        "values.ptx",
    )

    def read(name, dtype):
        address, size = module.globals[name]
        return ptx_device.memory.view(address, size).view(dtype).tolist()

    assert read("number", "u4") == [7]
    assert read("floats", "f4") == [1.5, -2.5, np.uint32(1).view("f4"), 0]
    assert read("table", "u2") == [1, 2, 0, 3, 0, 0]
    number, table = module.globals["number"][0], module.globals["table"][0]
    assert read("pointers", "u8")[:2] == [number, table + 4]
    assert read("bytes", "u1") == [*number.to_bytes(8, "little")[:3], 1, 0, 0, 0, 0]
    assert read("open", "i4") == [-1, -2, -3]
    assert module.globals["vector"][1] == 16
    assert "elsewhere" not in module.globals


def test_unloading_gives_memory_back(ptx_device):
    module = ptx_device.load(HEADER + ".global .b8 big[1000]; .entry k() { ret; }")
    address, size = module.globals["big"]
    module.unload()
    with pytest.raises(Exception, match="freed"):
        ptx_device.memory.view(address, size)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_odd_layout(ptx_device, line_end):
    text = line_end.join(
        [
            "// comment",
            ".version 7.0",
            ".target sm_80, texmode_independent, debug",
            ".address_size 64",
            '.pragma "nothing";',
            '.visible .entry k(.param .u64 out) .pragma "nounroll"; {',
            "  .reg .b32 %r<3>; .reg .b64 %a; .reg .pred p, q; /* two",
            "  lines */ ld.param.u64 %a, [out];",
            "  mov.u32",
            "     %r1, // in the middle",
            "     5;;",
            "  setp.eq.u32 p|q, %r1, 5;",
            "  @!p bra END; @q bra END;",
            "  st.global.u32 [%a+-4+4], %r1; END: ret;",
            "}",
        ]
    )
    functions = ptx_device.load(text).functions
    out = ptx_device.zeros(1, "u4")
    ptx_device.run(functions["k"], 1, 1, out)
    assert ptx_device.get(out, 1, "u4")[0] == 5


def test_alias_and_forward_declaration(ptx_device):
    functions = ptx_device.load(
        HEADER
        + """
        .func (.param .b32 r) twice (.param .b32 x);
        .func (.param .b32 r) other (.param .b32 x);
        .visible .entry k(.param .u64 out) {
            .reg .b32 %r<3>; .reg .b64 %a;
            ld.param.u64 %a, [out];
            { .param .b32 p; .param .b32 q; st.param.b32 [p], 21; call.uni (q), other, (p); ld.param.b32 %r1, [q]; }
            st.global.u32 [%a], %r1;
            ret;
        }
        .func (.param .b32 r) twice (.param .b32 x) {
            .reg .b32 %r<3>;
            ld.param.b32 %r1, [x]; add.u32 %r1, %r1, %r1; st.param.b32 [r], %r1;
            ret;
        }
        .alias other, twice;"""
    ).functions
    out = ptx_device.zeros(1, "u4")
    ptx_device.run(functions["k"], 1, 1, out)
    assert ptx_device.get(out, 1, "u4")[0] == 42
