"""The soak program: it runs, it counts, and it notices work that is not ordered."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"

UNORDERED = """
import sys, runpy
sys.path.insert(0, {folder!r})
sys.argv = ["benchmarks/soak.py", *{arguments!r}]
from cuda_async.scheduling import Stream
Stream._wait_for = lambda self, source, number: None
runpy.run_path({script!r}, run_name="__main__")
"""

WRONG = """
import sys, runpy
sys.path.insert(0, {folder!r})
sys.argv = ["benchmarks/soak.py", *{{arguments!r}}]
import _soak_tasks
done = _soak_tasks.Task.done
count = iter(range(10**9))
def late(self, program, times=1):
    done(self, program, times)
    if next(count) % 10 == 9:
        self.arrays[0] = self.arrays[0] + 1
_soak_tasks.Task.done = late
runpy.run_path({script!r}, run_name="__main__")
"""


def arguments(tmp_path, *more):
    return [
        "--device",
        "host:0",
        "--minutes",
        "0.08",
        "--round-seconds",
        "1",
        "--out",
        str(tmp_path / "o.json"),
        *more,
    ]


def test_soak_on_the_host_device(tmp_path):
    """Short, so what grows cannot be told; the values can."""
    command = [sys.executable, str(FOLDER / "soak.py"), *arguments(tmp_path, "--tasks", "16")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "o.json").read_text())
    assert found["problems"] == []
    assert found["counts"]["captures"] > 0
    assert found["counts"]["replays"] > 0
    assert found["counts"]["values"] > 10_000
    assert sum(found["cancels"].values()) > 0
    assert len({point["used_bytes"] for point in found["quiet_points"]}) == 1


def test_trace_of_what_was_enqueued(tmp_path):
    """Written for a wrong value, made up here; everything in it is ordered, and what is taken out is missed."""
    code = WRONG.format(folder=str(FOLDER), script=str(FOLDER / "soak.py"))
    code = code.format(arguments=arguments(tmp_path, "--tasks", "8", "--trace", str(tmp_path / "trace")))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert "wrong values after" in done.stdout
    assert "the program before: " in done.stdout
    sys.path.insert(0, str(FOLDER))
    try:
        unordered = importlib.import_module("_soak_trace").unordered
    finally:
        sys.path.remove(str(FOLDER))
    lines = (tmp_path / "trace").read_text().splitlines()
    count, found = unordered(iter(lines))
    assert count > 100
    assert found == []
    kept = (line for line in lines if line.split()[1] not in ("wait", "finish"))
    assert unordered(kept)[1]


@pytest.mark.slow
def test_soak_notices_streams_that_do_not_wait(tmp_path):
    """The same with the waits between streams taken out."""
    code = UNORDERED.format(folder=str(FOLDER), arguments=arguments(tmp_path), script=str(FOLDER / "soak.py"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads((tmp_path / "o.json").read_text())["counts"]["problems"] > 0


@pytest.fixture
def programs():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("_soak_programs")
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("_soak_programs", None)


def test_repeated_steps_are_powers(programs):
    """Against the same step again and again, in NumPy's wrapping integers."""
    for a, b, rounds in [(3, 5, 0), (-7, 999, 1), (5, -3, 40), (-1, 7, 1001)]:
        x = np.array([0, 1, -1, 2**31 - 1, -(2**31), 12345], np.int32)
        total_a, total_b = programs.affine_power(a, b, rounds)
        expected = x.copy()
        for _ in range(rounds):
            expected = (expected.astype(np.int64) * a + b).astype(np.int32)
        assert (programs.linear([(total_a, x)], total_b) == expected).all()


def test_growth_is_told_from_noise():
    sys.path.insert(0, str(FOLDER))
    try:
        soak = importlib.import_module("soak")
    finally:
        sys.path.remove(str(FOLDER))
    point = {
        "used_bytes": 5,
        "reserved_bytes": 1 << 20,
        "pinned_bytes": 0,
        "resident_bytes": 1 << 27,
        "objects": 60_000,
    }
    assert soak.growth([point] * 12) == []
    growing = [{**point, "resident_bytes": (1 << 27) + i * (16 << 20)} for i in range(12)]
    assert any("resident_bytes grows" in text for text in soak.growth(growing))
    assert any("live bytes" in text for text in soak.growth([point, {**point, "used_bytes": 6}]))
