"""Every example runs to its end and finds its own results right."""

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

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
def test_example_refuses_unknown_devices_and_arguments(name):
    for arguments in (["--device", "tpu:0"], ["--what"]):
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert finished.returncode == 2
        assert arguments[-1] in finished.stderr
        assert "Traceback" not in finished.stderr
