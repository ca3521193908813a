"""The main job's program: its options, its exit codes, and that its check finds wrong values."""

import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
PTX = (EXAMPLES / "simt" / "threshold_scale.ptx").read_text(encoding="utf-8")


@pytest.fixture
def demo(load_example, device, capsys):
    """`demo(*arguments)` runs the program; returns exit code, printed lines and messages."""
    module = load_example("tile_simt_interop")

    def run(*arguments):
        capsys.readouterr()
        code = module.main(["--device", str(device), *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out.splitlines(), printed.err

    return run


@pytest.fixture
def demo_on_host(load_example, capsys):
    """The same on the host device only: for what does not depend on the device."""
    module = load_example("tile_simt_interop")

    def run(*arguments):
        code = module.main(["--device", "host:0", *map(str, arguments)])
        return code, capsys.readouterr().err

    return run


def save(folder, array):
    path = folder / "input.npy"
    np.save(path, array)
    return path


def scores(rows, columns, seed=0, spread=5.0):
    return np.random.default_rng(seed).normal(0.0, spread, (rows, columns)).astype(np.float32)


def test_digits_pass(demo, device):
    code, lines, _ = demo()
    assert code == 0
    assert lines[0].startswith(f"digits_scores.npy: 1797 x 10, on {device}")
    assert lines[-1].startswith("PASS: largest error ")
    for fact in (f"device {device}", "streams 1", "launches 2", "completions awaited 1", " ms"):
        assert fact in lines[-1]


def test_kept_probabilities_are_counted(demo):
    """Counted here in float64, from the committed scores."""
    wide = np.load(EXAMPLES / "data" / "digits_scores.npy").astype(np.float64)
    soft = np.exp(wide - wide.max(axis=1, keepdims=True))
    soft /= soft.sum(axis=1, keepdims=True)
    _, lines, _ = demo("--threshold", 0.25, "--scale", 3)
    assert lines[1].startswith(f"kept {np.count_nonzero(soft >= 0.25)} of 17970 ")


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 7), (7, 1), (33, 64), (5, 1000), (3, 4096), (2, 4097), (3, 9001)], ids=str
)
def test_any_shape_passes(demo, tmp_path, shape):
    code, lines, error = demo("--input", save(tmp_path, scores(*shape)), "--threshold", 1e-4)
    assert (code, error) == (0, "")
    assert lines[-1].startswith("PASS")


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_any_float_type_passes(demo, tmp_path, dtype):
    code, lines, _ = demo("--input", save(tmp_path, scores(40, 10).astype(dtype)))
    assert code == 0
    assert lines[-1].startswith("PASS")


def test_column_order_and_minus_infinity_pass(demo, tmp_path):
    array = np.asfortranarray(scores(50, 12))
    array[3, 4] = -np.inf
    assert demo("--input", save(tmp_path, array))[0] == 0


@pytest.mark.parametrize(
    ("threshold", "scale"),
    [(0, 1), (0.5, -2), (2, 3), (-1, 1e30), (0.01, 0), (1e-30, 1), (0.01, 1e-40), (0.01, 1e-45)],
)
def test_thresholds_and_scales(demo, threshold, scale):
    code, lines, _ = demo(f"--threshold={threshold}", f"--scale={scale}")
    assert code == 0
    assert lines[-1].startswith("PASS")


def test_tiny_scale_still_finds_wrong_values(demo, tmp_path):
    path = tmp_path / "wrong.ptx"
    path.write_text(PTX.replace("setp.ge.f32", "setp.le.f32"), encoding="utf-8")
    code, lines, _ = demo("--ptx", path, "--scale", "1e-40")
    assert code == 1
    assert lines[-1].startswith("FAIL")


def test_scale_zero_counts_what_is_kept(demo, tmp_path):
    code, lines, _ = demo(
        "--input", save(tmp_path, np.zeros((3, 10), np.float32)), "--threshold", 0.05, "--scale", 0
    )
    assert code == 0
    assert lines[1].startswith("kept 30 of 30 ")


@pytest.mark.parametrize("threshold", ["-1e-5", "-.5", "-2", "-1E+3"])
def test_negative_numbers_need_no_equals_sign(demo, threshold):
    code, lines, _ = demo("--threshold", threshold, "--scale", "-1e-3")
    assert code == 0
    assert lines[1].startswith("kept 17970 of 17970 ")


def test_another_kernel_of_the_same_signature(demo, tmp_path):
    path = tmp_path / "other.ptx"
    path.write_text(PTX.replace("threshold_scale_f32", "mine"), encoding="utf-8")
    assert demo("--ptx", path, "--entry", "mine")[0] == 0


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("mul.f32", "add.f32"),
        ("setp.ge.f32", "setp.le.f32"),
        ("0f00000000", "0f3727C5AC"),  # 1e-5 where 0 belongs
    ],
)
def test_wrong_values_fail(demo, tmp_path, right, wrong):
    assert right in PTX
    path = tmp_path / "wrong.ptx"
    path.write_text(PTX.replace(right, wrong), encoding="utf-8")
    code, lines, _ = demo("--ptx", path)
    assert code == 1
    assert lines[-1].startswith("FAIL")


def test_one_wrong_element_fails(load_example):
    """The check itself, against a result that is right but for the last element."""
    module = load_example("tile_simt_interop")
    array = scores(20, 10)
    wide = array.astype(np.float64)
    soft = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    right = np.where(soft >= 0.01, 2 * soft, 0).astype(np.float32)
    assert module.compare(right, array, 0.01, 2.0).wrong == 0
    right[-1, -1] += 1e-4
    assert module.compare(right, array, 0.01, 2.0).wrong == 1
    right[-1, -1] = np.nan
    assert module.compare(right, array, 0.01, 2.0).wrong == 1


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(5, np.float32), r"shape \(5,\); a 2-D array"),
        (np.zeros((2, 2, 2), np.float32), r"shape \(2, 2, 2\); a 2-D array"),
        (np.float32(1), r"shape \(\); a 2-D array"),
        (np.zeros((0, 10), np.float32), "the array is empty"),
        (np.zeros((10, 0), np.float32), "the array is empty"),
        (np.zeros((2, 2), np.int32), "the elements are int32; floats"),
        (np.zeros((2, 2), np.complex64), "the elements are complex64; floats"),
        (np.array([["a"]]), "floats are needed"),
        (np.array([[0, 1], [2, np.nan]], np.float32), r"element \[1, 1\] is NaN"),
        (np.array([[0, np.inf]], np.float32), "row 0 holds inf"),
        (np.array([[0.0, 1e39]]), "row 0 holds inf"),
        (np.array([[0, 1], [-np.inf, -np.inf]], np.float32), "row 1 holds inf"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_array_is_a_message_and_exit_code_2(demo_on_host, tmp_path, array, message):
    code, error = demo_on_host("--input", save(tmp_path, array))
    assert code == 2
    assert error.startswith("error: ")
    assert re.search(message, error)


@pytest.mark.parametrize(
    "content", [b"", b"no array", b"\x93NUMPY\x01\x00", None], ids=["empty", "text", "cut", "none"]
)
def test_bad_file_is_a_message_and_exit_code_2(demo_on_host, tmp_path, content):
    path = tmp_path / "input.npy"
    if content is not None:
        path.write_bytes(content)
    code, error = demo_on_host("--input", path)
    assert code == 2
    assert str(path) in error
    assert "pickle" not in error  # which NumPy offers for whatever it cannot read


def test_object_array_is_refused(demo_on_host, tmp_path):
    path = tmp_path / "input.npy"
    np.save(path, np.array([[1.0, None]], object), allow_pickle=True)
    code, error = demo_on_host("--input", path)
    assert code == 2
    assert "the elements are Python objects; floats are needed" in error


def test_a_threshold_above_everything_is_said_to_be_that(load_example, capsys):
    assert load_example("tile_simt_interop").main(["--threshold", "2", "--device", "host:0"]) == 0
    assert "the threshold is above them all" in capsys.readouterr().out


def test_folder_and_archive_are_refused(demo_on_host, tmp_path):
    assert demo_on_host("--input", tmp_path)[0] == 2
    np.savez(tmp_path / "several.npz", a=scores(2, 2))
    code, error = demo_on_host("--input", tmp_path / "several.npz")
    assert code == 2
    assert "archive" in error


def test_bfloat16_file_is_refused_or_read(demo_on_host, tmp_path):
    """NumPy stores bfloat16 as raw bytes, so its type is lost in a .npy file."""
    code, error = demo_on_host("--input", save(tmp_path, np.zeros((2, 2), ml_dtypes.bfloat16)))
    assert code == 2
    assert "floats are needed" in error


@pytest.mark.parametrize("shape", [3, (2, 2)], ids=str)
def test_structured_file_is_refused_as_that(demo_on_host, tmp_path, shape):
    code, error = demo_on_host("--input", save(tmp_path, np.zeros(shape, [("a", "f4"), ("b", "f4")])))
    assert code == 2
    assert "the elements are structured, with the fields ('a', 'b'); floats are needed" in error


def test_bad_kernels_are_messages_and_exit_code_2(demo_on_host, tmp_path):
    missing, broken, other, empty = (
        tmp_path / f"{name}.ptx" for name in ("missing", "broken", "other", "empty")
    )
    empty.write_bytes(b"")
    broken.write_text(PTX.replace("selp.f32", "selp.banana"), encoding="utf-8")
    other.write_text(
        PTX.replace(".param .u64 threshold_scale_f32_param_4", ".param .u32 extra"), encoding="utf-8"
    )
    for path, entry, message in [
        (missing, "threshold_scale_f32", "No such file"),
        (empty, "threshold_scale_f32", "empty.ptx: the PTX is empty"),
        (broken, "threshold_scale_f32", "broken.ptx"),
        (EXAMPLES / "simt" / "threshold_scale.ptx", "nothing", "it has: threshold_scale_f32\n--entry names"),
        (EXAMPLES / "simt" / "saxpy.ptx", "saxpy_f32", "its parameters are (u32 n, f32 threshold"),
        (EXAMPLES / "simt" / "threshold_scale.cu", "threshold_scale_f32", "make PTX of it: nvcc -ptx"),
        (EXAMPLES / "data" / "digits_scores.npy", "threshold_scale_f32", "PTX"),
    ]:
        code, error = demo_on_host("--ptx", path, "--entry", entry)
        assert code == 2, path
        assert message in error


@pytest.mark.parametrize("name", ["tpu:0", "cuda:99", "host:99", "host:x", ""])
def test_unknown_device_is_a_message_and_exit_code_2(load_example, capsys, name):
    assert load_example("tile_simt_interop").main(["--device", name]) == 2
    assert capsys.readouterr().err.startswith("error: --device: ")


def test_unknown_default_driver_is_not_blamed_on_an_option():
    command = [sys.executable, str(EXAMPLES / "tile_simt_interop.py")]
    environment = {**os.environ, "CUDA_ASYNC_DRIVER": "foo"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 2
    assert finished.stderr == "error: CUDA_ASYNC_DRIVER is 'foo'; expected auto, cuda or host\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--threshold", "nan"],
        ["--threshold"],
        ["--threshold", "--scale", "2"],
        ["--scale", "1e39"],
        ["--scale", "two"],
        ["--what"],
    ],
)
def test_bad_option_is_exit_code_2(load_example, capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        load_example("tile_simt_interop").main(arguments)
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("option", ["--input", "--ptx"])
def test_a_pipe_is_a_message_and_exit_code_2(demo_on_host, tmp_path, option):
    os.mkfifo(tmp_path / "pipe")
    code, error = demo_on_host(option, tmp_path / "pipe")
    assert (code, "not a file" in error) == (2, True)
