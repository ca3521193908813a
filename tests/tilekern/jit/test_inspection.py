"""Looking at compiled kernels: reports, resources, PTX, machine code; needs the assembler, but no GPU."""

import pytest

import tilekern as tk
from tilekern import tileir

M = tk.meta


@tk.kernel
def matmul(out: tk.Tile2D, a: tk.Tensor2D, b: tk.Tensor2D, k: tk.Constant[int]):
    rows, columns = out.shape
    total = tk.zeros((rows, columns), tk.float32)
    for step in range(tk.num_tiles(a, 1, (rows, k))):
        left = tk.load(a, (out.index[0], step), (rows, k))
        right = tk.load(b, (step, out.index[1]), (k, columns))
        total = tk.mma(left, right, total)
    out.store(total.astype(out.dtype))


@tk.kernel
def row_softmax(out: tk.Tile2D, x: tk.Tensor2D):
    t = tk.load_like(x, out)
    e = tk.exp(t - tk.max(t, axis=1, keepdims=True))
    out.store(e / tk.sum(e, axis=1, keepdims=True))


PRODUCT = (
    M((512, 512), tk.bfloat16).partition((64, 64)),
    M((512, 512), tk.bfloat16),
    M((512, 512), tk.bfloat16),
    32,
)


def test_report_says_what_runs_on_which_unit(disassemble):
    report = matmul.report(*PRODUCT, arch="sm_90")
    assert (report.tma_loads, report.tma_stores, report.uses_tensor_cores) == (2, 1, True)
    assert report.resources.spill_store_bytes == 0
    text = str(report)
    assert "matmul for sm_90" in text
    assert "registers a thread, no spills" in text
    lines = matmul.source.node
    places = [remark.place for remark in report.remarks if remark.place]
    assert places
    assert all(file == matmul.source.file for file, _, _ in places)
    assert all(lines.decorator_list[0].lineno <= line <= lines.end_lineno for _, line, _ in places)


def test_report_says_why_not(disassemble):
    """Rows of 1023 floats: their stride is no multiple of 16 bytes, which the copy engine needs."""
    args = (M((64, 1023), "f4").partition((1, 1024)), M((64, 1023), "f4"))
    report = row_softmax.report(*args, arch="sm_90")
    assert (report.tma_loads, report.tma_stores, report.uses_tensor_cores) == (0, 0, False)
    assert "not optimised: Failed to select TMA store" in str(report)
    assert "16-byte aligned" in str(report)


def test_resources_of_older_architecture(disassemble):
    resources = matmul.resources(*PRODUCT, arch="sm_80")
    assert 0 < resources.registers <= 255
    assert resources.threads in (128, 256)
    assert resources.shared_bytes > 0
    assert not matmul.report(*PRODUCT, arch="sm_80").tma_loads


def test_ptx_and_cubin(disassemble):
    ptx = row_softmax.ptx(M((64, 128), "f4").partition((1, 128)), M((64, 128), "f4"), arch="sm_90")
    assert ".entry row_softmax(" in ptx
    assert ".target sm_90" in ptx
    assert row_softmax.cubin(M((64, 128), "f4").partition((1, 128)), M((64, 128), "f4"))[:4] == b"\x7fELF"


def test_text_by_nvidia(disassemble):
    args = (M((64, 128), "f4").partition((1, 128)), M((64, 128), "f4"))
    assert "entry @row_softmax" in row_softmax.tile_ir(*args, by_nvidia=True)
    assert "test_inspection.py" in row_softmax.tile_ir(*args, locations=True)


def test_machine_code_needs_a_disassembler(disassemble, monkeypatch, tmp_path):
    args = (M((64, 128), "f4").partition((1, 128)), M((64, 128), "f4"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        tileir.errors.CompilerNotFoundError, match=r"neither nvdisasm nor cuobjdump.*cuda-nvdisasm"
    ):
        row_softmax.sass(*args, arch="sm_90")
    tool = tmp_path / "nvdisasm"
    tool.write_text('#!/bin/sh\n[ "$1" = --print-code ] && [ -s "$2" ] && echo "MOV R1, c[0x0][0x28]"\n')
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert row_softmax.sass(*args, arch="sm_90") == "MOV R1, c[0x0][0x28]\n"
    monkeypatch.setenv("TILEKERN_NVDISASM", str(tmp_path / "nowhere"))
    with pytest.raises(tileir.errors.CompilerNotFoundError, match="is no file"):
        row_softmax.sass(*args, arch="sm_90")
    tool.write_text("#!/bin/sh\necho not an ELF >&2; exit 1\n")
    monkeypatch.setenv("TILEKERN_NVDISASM", str(tool))
    with pytest.raises(tileir.errors.CompilerFailedError, match=r"(?s)exit code 1.*not an ELF"):
        row_softmax.sass(*args, arch="sm_90")


def test_line_info_and_debug_builds(disassemble):
    args = (M((64, 128), "f4").partition((1, 128)), M((64, 128), "f4"))
    plain = row_softmax.cubin(*args, arch="sm_90")
    lines = row_softmax.with_options(line_info=True).cubin(*args, arch="sm_90")
    debug = row_softmax.with_options(debug=True).cubin(*args, arch="sm_90")
    assert b"debug_line" not in plain
    assert b"debug_line" in lines
    assert b"test_inspection.py" in lines
    assert b"debug_info" in debug


def test_timings_say_where_code_came_from(host):
    @tk.kernel
    def twice(out: tk.Tile1D, x: tk.Tensor1D):
        out.store(tk.load_like(x, out) * 2)

    assert twice.timings == ()
    twice.compile(M(64, "f4").partition(16), M(64, "f4")).sync()
    (timing,) = twice.timings
    assert (timing.kernel, timing.target, timing.origin) == ("twice", "host", "interpreted")
    assert 0 < timing.front_end_ms <= timing.total_ms
    assert timing.assembler_ms == 0
    assert "interpreted" in str(timing)


def test_copies_with_the_same_options_share_their_code(host):
    @tk.kernel
    def twice(out: tk.Tile1D, x: tk.Tensor1D):
        out.store(tk.load_like(x, out) * 2)

    args = M(64, "f4").partition(16), M(64, "f4")
    for kernel in (twice.with_options(occupancy=2), twice.with_options(occupancy=2), twice):
        kernel.compile(*args).sync()
    assert len(twice.timings) == 2
