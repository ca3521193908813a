"""Faults, traps and instructions nobody knows: the error names kernel, line, block and thread."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_async import errors
from cuda_async.driver.host.ptx import KernelError, KernelMemoryFault
from cuda_async.errors import CompileError, LaunchError, MemoryFault

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


def test_out_of_bounds_store_names_the_thread(ptx_device):
    functions = ptx_device.cuda(
        """
        extern "C" __global__ void fill(int* out, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            out[i] = 1;
        }""",
        "-lineinfo",
    )
    out = ptx_device.zeros(1000, "i4")
    with pytest.raises(KernelMemoryFault) as caught:
        ptx_device.run(functions["fill"], 4, 256, out, 1000)
    fault = caught.value
    assert isinstance(fault, MemoryFault)
    assert fault.address == out + 4000
    assert fault.access == "write"
    assert fault.kernel == "fill"
    assert fault.place.block == (3, 0, 0)
    assert fault.place.thread == (232, 0, 0)
    assert fault.place.instruction.opcode == "st"
    assert fault.place.instruction.location.line == 4
    text = str(fault)
    assert "write of 4 bytes" in text
    assert f"line {fault.place.instruction.line} of kernel.ptx: st" in text
    assert "st.global.u32" in text
    assert "kernel.cu:4" in text


@pytest.mark.parametrize(
    ("statement", "message", "thread"),
    [
        ("out[i] = ((int*)((long long)out & 7))[i];", "null pointer", 0),
        ("out[i] = *(int*)((char*)out + 4 * i + (i == 40 ? 2 : 0));", "misaligned", 40),
        ("out[i] = i > 33 ? s[i + 4096] : 0;", "out of bounds: the block has 512 bytes of shared memory", 34),
        ("out[i] = *((volatile int*)s + i * 2);", "out of bounds: the block has 512 bytes", 64),
        ("((int4*)out)[i / 4 * 0] = *(int4*)(out + i);", "misaligned", 1),
        ("out[i] = out[(1ll << 40) + i];", "not in a live allocation", 0),
    ],
)
def test_faults(ptx_device, statement, message, thread):
    functions = ptx_device.cuda(f"""
        extern "C" __global__ void bad(int* out) {{
            __shared__ int s[128];
            int i = threadIdx.x;
            s[i] = i;
            __syncthreads();
            {statement}
        }}""")
    out = ptx_device.zeros(256, "i4")
    with pytest.raises(KernelMemoryFault, match=message) as caught:
        ptx_device.run(functions["bad"], 2, 128, out)
    assert caught.value.place.thread == (thread, 0, 0)
    assert caught.value.place.block == (0, 0, 0)


def test_freed_memory_is_a_fault(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void read(const int* x, int* out) { out[threadIdx.x] = x[threadIdx.x]; }""")
    x, out = ptx_device.zeros(32, "i4"), ptx_device.zeros(32, "i4")
    ptx_device.memory.release(x)
    with pytest.raises(KernelMemoryFault, match="freed"):
        ptx_device.run(functions["read"], 1, 32, x, out)


def test_failed_assert_has_message_file_and_line(ptx_device):
    functions = ptx_device.cuda("""
        #define NULL 0
        extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, unsigned long);
        extern "C" __global__ void check(int n) {
            if (threadIdx.x == n) __assertfail("x < n", "kernel.cu", 42, "check", 1);
        }""")
    ptx_device.run(functions["check"], 2, 64, 100)
    with pytest.raises(KernelError) as caught:
        ptx_device.run(functions["check"], 2, 64, 37)
    assert "assertion failed: 'x < n', in check at kernel.cu:42" in str(caught.value)
    assert caught.value.place.thread == (37, 0, 0)


def test_printf_writes_to_standard_output(ptx_device, capsys):
    functions = ptx_device.cuda(r"""
        extern "C" __device__ int vprintf(const char*, const void*);
        struct Arguments { int i; double f; const char* s; char c; unsigned x; long long big; };
        extern "C" __global__ void hello(int* counts) {
            if (threadIdx.x % 2) return;
            Arguments a = {-(int)threadIdx.x, threadIdx.x * 0.25, threadIdx.x ? "later" : "first", 'q', 255u,
                           1ll << 40};
            counts[threadIdx.x] = vprintf("%3d|%-8.3f|%s|%c|%#06x|%lld%%\n", &a);
        }""")
    counts = ptx_device.zeros(8, "i4")
    ptx_device.run(functions["hello"], 1, 4, counts)
    assert capsys.readouterr().out == (
        "  0|0.000   |first|q|0x00ff|1099511627776%\n -2|0.500   |later|q|0x00ff|1099511627776%\n"
    )
    assert ptx_device.get(counts, 4, "i4").tolist() == [6, 0, 6, 0]


def test_trap_is_an_error(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void stop(int n) { if (blockIdx.x * 32 + threadIdx.x == n) __trap(); }""")
    ptx_device.run(functions["stop"], 3, 32, -1)
    with pytest.raises(KernelError, match=r"executed 'trap'.*block \(2, 0, 0\), thread \(6, 0, 0\)"):
        ptx_device.run(functions["stop"], 3, 32, 70)


def test_endless_recursion_is_an_error(ptx_device):
    functions = ptx_device.load(
        HEADER
        + """
        .func deep(.param .b32 x) {
            .local .align 8 .b8 stack[4096]; .reg .b32 %r; .reg .b64 %a;
            mov.u64 %a, stack; st.local.u32 [%a], %r;
            { .param .b32 p; st.param.b32 [p], %r; call.uni deep, (p); }
            ret;
        }
        .entry k() { { .param .b32 p; st.param.b32 [p], 1; call.uni deep, (p); } ret; }"""
    ).functions
    with pytest.raises(KernelError, match=r"stack overflow.*function deep"):
        ptx_device.run(functions["k"], 1, 32)


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        ("frobnicate.b32 %r, %r;", "instruction 'frobnicate' is not supported"),
        ("add.f33 %r, %r, %r;", "not supported for add"),
        ("add.s32 %r, %r;", "takes 3 operands, 2 are given"),
        ("ld.global.b32.strange %r, [%a];", "modifiers of ld.global.b32.strange are not known"),
        ("tex.2d.v4.f32.s32 {%r, %r, %r, %r}, [%a, {%r, %r}];", "instruction 'tex' is not supported"),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.tile [%a], [%a, {%r, %r}], [%a];", "not supported"),
        ("atom.global.min.f32 %r, [%a], %r;", "atomic min of .f32 is not supported"),
    ],
)
def test_unsupported_instruction_is_named_before_the_launch(ptx_device, instruction, reason):
    """Other entries of the module run all the same."""
    functions = ptx_device.load(
        HEADER
        + f"""
        .entry good(.param .u64 out) {{
            .reg .b64 %a; ld.param.u64 %a, [out]; st.global.u32 [%a], 9; ret;
        }}
        .entry bad() {{
            .reg .b32 %r; .reg .b64 %a;
            {instruction}
            ret;
        }}""",
        "module.ptx",
    ).functions
    out = ptx_device.zeros(1, "u4")
    ptx_device.run(functions["good"], 1, 1, out)
    assert ptx_device.get(out, 1, "u4")[0] == 9
    for attempt in (functions["bad"].prepare, lambda: ptx_device.steps(functions["bad"], 1, 1)):
        with pytest.raises(CompileError) as caught:
            attempt()
        assert "line 10 of module.ptx: the host device cannot run" in str(caught.value)
        assert instruction in str(caught.value)
        assert reason in str(caught.value)


def test_call_of_an_unknown_function(ptx_device):
    functions = ptx_device.load(
        HEADER
        + """
        .extern .func (.param .b64 r) cudaGetDevice (.param .b64 size);
        .entry k() {
            .reg .b64 %a;
            { .param .b64 p; .param .b64 q; st.param.b64 [p], 8; call.uni (q), cudaGetDevice, (p); }
            ret;
        }"""
    ).functions
    with pytest.raises(CompileError, match="function 'cudaGetDevice' is not defined in this module"):
        functions["k"].prepare()


def test_launches_are_checked(ptx_device):
    functions = ptx_device.load(
        HEADER
        + """.entry exact(.param .u64 p) .reqntid 32, 2 { ret; }
        .entry small() .maxntid 64 { ret; }"""
    ).functions
    with pytest.raises(LaunchError, match=r"block \(64, 1, 1\).*requires \(32, 2, 1\)"):
        ptx_device.run(functions["exact"], 1, 64, 0)
    with pytest.raises(LaunchError, match="128 threads; this kernel takes at most 64"):
        ptx_device.run(functions["small"], 1, 128)
    with pytest.raises(LaunchError, match=r"the grid \(3, 1, 1\) is not a multiple of the cluster"):
        ptx_device.run(functions["small"], 3, 32, cluster=(2, 1, 1))


def test_tile_kernels_are_launched_as_for_a_gpu(ptx_device):
    """With blocks of one thread; they get those that they were compiled for."""
    functions = ptx_device.load(
        HEADER
        + """.entry tiles(.param .u64 p) .reqntid 64 .minnctapersm 1 .language 7 {
            .reg .b64 %a;
            .reg .b32 %n;
            ld.param.b64 %a, [p];
            mov.u32 %n, 1;
            atom.global.add.u32 %n, [%a], %n;
            ret;
        }
        .entry plain() .reqntid 64 { ret; }"""
    ).functions
    count = ptx_device.zeros(1, "u4")
    ptx_device.run(functions["tiles"], 3, 1, count)
    assert ptx_device.get(count, 1, "u4").tolist() == [3 * 64]
    with pytest.raises(LaunchError, match="requires"):
        ptx_device.run(functions["plain"], 1, 1)


def test_failed_launch_leaves_no_numpy_state(ptx_device):
    functions = ptx_device.cuda("""
        extern "C" __global__ void f(float* x, int* null) { x[threadIdx.x] /= 0.0f; *null = 1; }""")
    x = ptx_device.put(np.ones(32, "f4"))
    before = np.geterr()
    with pytest.raises(KernelMemoryFault, match="null pointer"):
        ptx_device.run(functions["f"], 1, 32, x, 0)
    assert np.geterr() == before


def test_indirect_call_of_no_function(ptx_device):
    functions = ptx_device.load(
        HEADER
        + """
        .entry k() {
            .reg .b64 %a;
            mov.u64 %a, 1234;
            proto: .callprototype _ ();
            call %a, (), proto;
            ret;
        }"""
    ).functions
    with pytest.raises(KernelError, match="a call of 0x4d2, which is not the address of a function"):
        ptx_device.run(functions["k"], 1, 32)


def test_branch_index_out_of_range(ptx_device):
    functions = ptx_device.load(
        HEADER
        + """
        .entry k() {
            .reg .b32 %r;
            mov.u32 %r, %tid.x;
            targets: .branchtargets one, two;
            brx.idx %r, targets;
            one: ret;
            two: ret;
        }"""
    ).functions
    ptx_device.run(functions["k"], 1, 2)
    with pytest.raises(KernelError, match=r"brx\.idx with index 31; there are 2 branch targets"):
        ptx_device.run(functions["k"], 1, 32)


def test_builtin_with_too_few_arguments_is_refused(ptx_device):
    functions = ptx_device.load(
        HEADER
        + """
        .extern .func (.param .b64 r) malloc (.param .b64 size);
        .visible .entry k() { .param .b64 q; call.uni (q), malloc; ret; }"""
    ).functions
    with pytest.raises(CompileError, match="malloc takes 1 arguments; 0 are written"):
        functions["k"].prepare()


def test_a_trap_is_one_of_the_package_s_kernel_errors(ptx_device):
    """Who catches `cuda_async.errors.KernelError` catches it, and finds the kernel's name in it."""
    functions = ptx_device.cuda('extern "C" __global__ void stop() { asm("trap;"); }')
    with pytest.raises(errors.KernelError, match="trap") as caught:
        ptx_device.run(functions["stop"], 1, 1)
    assert caught.value.kernel == "stop"
