"""Run kernel tests and examples under NVIDIA's compute-sanitizer: memcheck, with stream-ordered races, and racecheck.

    python tools/sanitize.py --tool memcheck --out memcheck.json
    python tools/sanitize.py --tool racecheck --only tests --minutes 9

Needs a GPU, pytest for the tests, and `compute-sanitizer` of a CUDA toolkit: named by --sanitizer, on the path, in
CUDA_HOME or CUDA_PATH, or in /usr/local/cuda. The packages need not be installed: they are taken from this folder.
memcheck tells of accesses out of bounds and misaligned, and of memory that is used before its allocation, or after its
freeing, in stream order. racecheck looks at shared memory. The programs run by way of `waited_queries.py`, which says
why. The exit code is 1 where something was found, failed, or was not run for lack of time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    "tests/tilekern/kernels",
    "tests/cases/test_memory_in_use.py",
    "tests/cuda_async/graph/test_random_graphs.py",
)
EXAMPLES = ("add", "saxpy", "graph_replay", "async_pipeline", "tile_simt_interop")
OPTIONS = {
    "memcheck": ["--tool", "memcheck", "--track-stream-ordered-races", "all", "--report-api-errors", "no"],
    "racecheck": ["--tool", "racecheck", "--racecheck-report", "all"],
    "initcheck": ["--tool", "initcheck"],
    "synccheck": ["--tool", "synccheck"],
}
CONDITIONAL = ("tests/cuda_async/graph/test_random_graphs.py",)
"""What launches graphs with conditional nodes. Under memcheck of CUDA 13.0 that fails, without a report of an error:
with one node and nothing else where stream-ordered races are tracked, with many nodes else too. So memcheck leaves them
out; without it, and under racecheck, they are right."""
MEMORY_COUNTED = ("tests/cases/test_memory_in_use.py",)
"""What asks whether tensors are freed: for its backtraces the sanitizer keeps Python frames, and what is in them."""
FOUND = 99
"""The sanitizer's exit code where it has found something."""
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")
_NO_CALL = "Target application terminated before first instrumented API call"
_ONLY_DESELECTED = re.compile(r"^=*\s*\d+ deselected in ", re.MULTILINE)
_REPORT = re.compile(r"^=+ (.*)$", re.MULTILINE)


def find_sanitizer() -> str | None:
    """The program's path, or None."""
    places = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    places += ["/usr/local/cuda", *map(str, sorted(Path("/usr/local").glob("cuda-*"), reverse=True))]
    for place in places:
        for folder in ("bin", "compute-sanitizer", "extras/compute-sanitizer"):
            found = Path(place) / folder / "compute-sanitizer"
            if found.is_file():
                return str(found)
    return shutil.which("compute-sanitizer")


def commands(only: str, more: list[str]) -> list[tuple[str, list[str]]]:
    """What is run, by name; each in a process of its own."""
    found: list[tuple[str, list[str]]] = []
    python = [sys.executable, "tools/waited_queries.py"]
    pytest = [
        *python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "timeout=0",
        "-m",
        "gpu and not slow",
    ]
    if only in ("all", "examples"):
        names = [f"examples/{name}.py" for name in EXAMPLES]
        names += [
            f"examples/kernels/{path.name}" for path in sorted((ROOT / "examples" / "kernels").glob("*.py"))
        ]
        found += [(name, [*python, name]) for name in names]
    if only in ("all", "tests"):
        for place in TESTS:
            folder = ROOT / place
            files = sorted(folder.glob("test_*.py")) if folder.is_dir() else [folder]
            found += [(str(f.relative_to(ROOT)), [*pytest, str(f.relative_to(ROOT)), *more]) for f in files]
    return found


def run(command: list[str], limit_s: float) -> tuple[int | None, str]:
    """Exit code and output; None where it was stopped because its time was over."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "CUDA_ASYNC_DRIVER": "cuda",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return None, output
    return process.returncode, output


def sanitized(sanitizer: str, tool: str, name: str, command: list[str]) -> list[str]:
    """The command that runs one program under the sanitizer."""
    flags = [*OPTIONS[tool], "--error-exitcode", str(FOUND), "--target-processes", "all"]
    if name in MEMORY_COUNTED:
        flags += ["--show-backtrace", "no"]
    return [sanitizer, *flags, *command]


def look_at(name: str, command: list[str], over_at: float) -> dict[str, Any]:
    """What the sanitizer says of one program."""
    began = time.monotonic()
    if over_at - began < 5:
        return {"name": name, "outcome": "not run", "summaries": [], "seconds": 0.0}
    code, output = run(command, over_at - began)
    summaries = _SUMMARY.findall(output)
    # pytest's 5: none of the tests is for a GPU; the sanitizer then has a code of its own.
    outcomes = {None: "stopped: its time was over", 0: "clean", 5: "no tests", FOUND: "found"}
    outcome = outcomes.get(code, "failed")
    if _NO_CALL in output and _ONLY_DESELECTED.search(output):
        outcome = "no tests"
    if outcome == "clean" and any(not text.startswith("0 ") for text in summaries):
        outcome = "found"
    found: dict[str, Any] = {
        "name": name,
        "outcome": outcome,
        "summaries": summaries,
        "seconds": round(time.monotonic() - began, 1),
    }
    if outcome not in ("clean", "no tests"):
        found["report"] = _REPORT.findall(output)[:60]
        found["end"] = output[-3000:]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tool", choices=tuple(OPTIONS), default="memcheck")
    parser.add_argument("--only", choices=("all", "tests", "examples"), default="all")
    parser.add_argument("--sanitizer", default=None, help="path of compute-sanitizer")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="for all of it; what is left then is not run"
    )
    parser.add_argument(
        "--start", type=int, default=0, help="the number of the first thing to run, to go on from"
    )
    parser.add_argument("--workers", type=int, default=4, help="programs that run at once, on one GPU")
    parser.add_argument("--out", type=Path, default=None, help="write what was found here as JSON")
    parser.add_argument("more", nargs="*", help="more arguments for pytest, behind --")
    options = parser.parse_args()
    sanitizer = options.sanitizer or find_sanitizer()
    if sanitizer is None:
        print("compute-sanitizer was not found; it comes with the CUDA toolkit: name it with --sanitizer")
        return 2
    over_at = time.monotonic() + options.minutes * 60
    todo = list(enumerate(commands(options.only, options.more)))[options.start :]
    if options.tool == "memcheck":
        todo = [(number, job) for number, job in todo if job[0] not in CONDITIONAL]

    def one(number: int, name: str, command: list[str]) -> dict[str, object]:
        found = look_at(name, sanitized(sanitizer, options.tool, name, command), over_at)
        summaries = ", ".join(found["summaries"]) or "no summary"
        print(f"{number}: {name}: {found['outcome']} ({summaries}), {found['seconds']:.0f} s", flush=True)
        if "end" in found:
            print(found["end"], flush=True)
        return {"number": number, **found}

    with ThreadPoolExecutor(options.workers) as pool:
        results = list(pool.map(lambda job: one(job[0], *job[1]), todo))
    not_run = [result["number"] for result in results if result["outcome"] == "not run"]
    if not_run:
        print(f"the time was over before all had run; go on with --start {not_run[0]}")
    clean = all(result["outcome"] in ("clean", "no tests") for result in results)
    if options.out is not None:
        about = {"tool": options.tool, "options": OPTIONS[options.tool], "results": results}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
