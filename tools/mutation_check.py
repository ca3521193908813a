"""Remove every event wait, keep-alive, lock and fence of the core, one at a time, and see whether a test notices.

    python tools/mutation_check.py                        # all of them; writes benchmarks/results/mutations.json
    python tools/mutation_check.py --list
    python tools/mutation_check.py --only _stream.py --limit-s 60

Works on a copy in a temporary folder. The places are found in the syntax tree by `PATTERNS` and `LOCK`, in the code
that is written as text too; those of the compiled launch are in `NATIVE`, and it is there for their tests alone. One
run of the tests first notes which test executes which of the lines, by `sys.monitoring`, so Python 3.12 or newer; then
each removal is given to those tests, the quickest first, until one fails. What is not executed in the process of the
tests (exits, forks) is given to `ELSEWHERE`.

A removal that no test notices has survived: either a test is missing, or the line is not needed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CORE = ("scheduling", "ops", "memory", "graph")
TESTS = tuple(f"tests/cuda_async/{part}" for part in (*CORE, "testing"))
ELSEWHERE = ("tests/cuda_async/scheduling/test_process_end.py", "tests/cuda_async/scheduling/test_device.py")
LIKELY = {
    "tests/cuda_async/scheduling/test_lock_discipline.py": 3,
    "tests/cuda_async/scheduling/test_ordering.py": 2,
    "tests/cuda_async/ops/test_fault_sweep.py": 1,
}
"""Tests that are tried first, until others have caught more."""
RESULTS = ROOT / "benchmarks" / "results" / "mutations.json"

PATTERNS = {
    "wait": r"(stream_wait_event|stream_hand_on|_wait_for|wait_for_producer|wait_for_borrowers|order_read|order_write"
    r"|order_uses|_order|event_synchronize|\.block|note_read|note_write|set_write|add_read)\(",
    "keep-alive": r"(_retained\.(append|extend)|_retain|note_shared|retain|keep)\(|retained_on_use = |_owner = owner",
    "fence": r"(_dirty = True|(?<!def )_settle\(|close_part\(|event_record\(|\.ring\()",
}
LOCK = re.compile(r"(^|[._])(lock|_?lock\w*)$")


NATIVE_FILE = "cuda_async/native/_native.c"
NATIVE = (
    ("lock", "PyObject_CallMethodNoArgs(lock, (acquire|release)_name)", "Py_NewRef(Py_None)"),
    ("wait", "if (order(self, work) < 0) return FAILED;", ""),
    ("wait", "set(usage, USAGE_READ_NUMBER, number);", ";"),
    ("wait", "set(usage, USAGE_WRITE_NUMBER, number);", ";"),
    ("wait", "get(usage, USAGE_QUICK_READER) == stream", "1"),
    ("wait", "get(usage, USAGE_WRITE_STREAM) == stream", "1"),
    ("wait", "get(usage, USAGE_READ_STREAM) == Py_None", "1"),
    ("fence", "set(stream, STREAM_DIRTY, Py_True);", ""),
    ("fence", "set(stream, STREAM_DIRTY, was_dirty ? Py_True : Py_False);", ""),
    ("keep-alive", "PyList_Append(retained, self->loaded) < 0", "PyList_Append(retained, Py_None) < 0"),
)
"""(kind, text, what stands there instead); `(a|b)` in a text are both of them."""
NATIVE_TESTS = ("tests/cuda_async/ops/test_quick_launches.py", "tests/cuda_async/native")


@dataclass(frozen=True)
class Site:
    """A place that can be removed: lines `first` to `last` of a file, and what stands there instead."""

    file: str
    kind: str
    first: int
    last: int
    text: str
    instead: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.first}: {self.text}"


def sites_of(path: Path) -> list[Site]:
    source = path.read_text()
    lines = source.splitlines()
    file = str(path.relative_to(ROOT))
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            text = ast.unparse(node)
            kind = next(
                (k for k, pattern in PATTERNS.items() if re.search(pattern, text.split("lambda")[0])), None
            )
            if kind is not None and not re.match(r"\w+ = |__slots__", text):
                indent = re.match(r"\s*", lines[node.lineno - 1]).group()
                found.append(Site(file, kind, node.lineno, node.end_lineno or 0, text, f"{indent}pass"))
        elif isinstance(node, (ast.With, ast.AsyncWith)) and len(node.items) == 1:
            name = ast.unparse(node.items[0].context_expr)
            if LOCK.search(name) and node.lineno == node.items[0].context_expr.lineno:
                line = lines[node.lineno - 1]
                instead = re.match(r"\s*", line).group() + "if True:" + line.partition(":")[2]
                found.append(Site(file, "lock", node.lineno, node.lineno, f"with {name}", instead))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and path.name == "_written.py":
            found += written_sites(file, lines, node)
    return sorted(found, key=lambda site: site.first)


def written_sites(file: str, lines: list[str], node: ast.Constant) -> list[Site]:
    """Lines of code that are text here."""
    text = node.value
    line = lines[node.lineno - 1]
    if node.lineno != node.end_lineno or text not in line or "\n" in text:
        return []
    if re.fullmatch(r"with device\.\w*_lock:", text):
        return [Site(file, "lock", node.lineno, node.lineno, f"text: {text}", line.replace(text, "if True:"))]
    for kind, pattern in PATTERNS.items():
        if re.match(r"[\w.]*" + pattern, text) and text.rstrip().endswith((")", "True")):
            return [Site(file, kind, node.lineno, node.lineno, f"text: {text}", line.replace(text, "pass"))]
    return []


def native_sites() -> list[Site]:
    lines = (ROOT / NATIVE_FILE).read_text().splitlines()
    sites = []
    for kind, text, instead in NATIVE:
        first = text.partition("(acquire|release)")[0]
        number = next(i for i, line in enumerate(lines, 1) if first in line)
        sites.append(Site(NATIVE_FILE, kind, number, number, text, instead))
    return sites


def mutate_native(copy: Path, site: Site) -> str:
    """Replace the text, and compile; returns what the file held."""
    path = copy / site.file
    source = path.read_text()
    changed = source
    for one in ("acquire", "release"):
        text = site.text.replace("(acquire|release)", one)
        changed = changed.replace(text, site.instead)
    assert changed != source, site
    path.write_text(changed)
    module = path.with_name("_native" + sysconfig.get_config_var("EXT_SUFFIX"))
    include = sysconfig.get_path("include")
    command = ["cc", "-O1", "-w", "-shared", "-fPIC", f"-I{include}", str(path), "-o", str(module)]
    subprocess.run(command, check=True)
    return source


def find_sites(only: str | None) -> list[Site]:
    files = [path for part in CORE for path in sorted((ROOT / "cuda_async" / part).glob("*.py"))]
    sites = [site for path in files for site in sites_of(path)] + native_sites()
    return [site for site in sites if only is None or only in site.file]


def mutate(copy: Path, site: Site) -> str:
    """Remove the place in the copy; returns what the file held."""
    if site.file == NATIVE_FILE:
        return mutate_native(copy, site)
    path = copy / site.file
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    lines[site.first - 1 : site.last] = [site.instead + "\n"]
    path.write_text("".join(lines))
    ast.parse(path.read_text())
    return source


# ----------------------------------------------------------------------------- running the tests


class Notes:
    """A plugin of pytest: which tests execute which lines, how long each took, which failed."""

    def __init__(self, copy: Path, lines: dict[str, set[int]]) -> None:
        self.wanted = {str(copy / file): (file, numbers) for file, numbers in lines.items()}
        self.reached: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.test = ""
        if lines:
            monitoring = sys.monitoring
            monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutation check")
            monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self.note)
            monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)

    def note(self, code: Any, line: int) -> Any:
        wanted = self.wanted.get(code.co_filename)
        if wanted is not None and line in wanted[1]:
            self.reached[f"{wanted[0]}:{line}"].add(self.test)
        return sys.monitoring.DISABLE

    def pytest_runtest_setup(self, item: Any) -> None:
        self.test = item.nodeid
        if self.wanted:
            sys.monitoring.restart_events()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)


def run_in_child(copy: Path, tests: list[str], answer: Path, lines: dict[str, set[int]], stop: bool) -> None:
    """Run the tests in this process, and write what came out."""
    os.setsid()
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ.update(PYTHONPATH=str(copy), PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    import pytest

    notes = Notes(copy, lines)
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not gpu and not slow and not timing",
        "--timeout=20",
    ]
    code = pytest.main([*options, *(["-x"] if stop else []), *tests], plugins=[notes])
    reached = {place: sorted(found) for place, found in notes.reached.items()}
    found = {"code": int(code), "failed": notes.failed, "seconds": notes.seconds, "reached": reached}
    answer.write_text(json.dumps(found))


def run_tests(
    copy: Path, tests: list[str], limit_s: float, lines: dict[str, set[int]], stop: bool
) -> dict[str, Any]:
    """Run tests of the copy in a forked process, which has pytest and NumPy already."""
    answer = copy / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            run_in_child(copy, tests, answer, lines, stop)
        finally:
            os._exit(0)  # whatever came out: nothing of the parent's is to be cleaned up here
    until = time.monotonic() + limit_s
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.02)
    if not answer.exists():
        return {"code": -1, "failed": [], "seconds": {}, "reached": {}}
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def choose(tests: set[str], seconds: dict[str, float], catches: Counter[str], limit_s: float) -> list[str]:
    """Tests of files that have caught most first, then the quickest; as many as take half of the limit."""
    chosen, total = [], 0.0
    for test in sorted(
        tests, key=lambda test: (-catches[test.partition("::")[0]], seconds.get(test, 0.0), test)
    ):
        total += seconds.get(test, 0.0) + 2e-3
        if total > limit_s / 2:
            break
        chosen.append(test)
    return chosen


def check(copy: Path, site: Site, tests: list[str], limit_s: float) -> dict[str, Any]:
    before = mutate(copy, site)
    began = time.monotonic()
    try:
        found = run_tests(copy, tests, limit_s, {}, stop=True)
    finally:
        (copy / site.file).write_text(before)
        for module in (copy / NATIVE_FILE).parent.glob("*.so"):
            module.unlink()
    # A run that did not come to its end hung or crashed the process, or had too many tests for the limit.
    over = time.monotonic() - began >= limit_s
    outcome = "survived" if found["code"] == 0 else "unfinished" if over else "caught"
    by = found["failed"][0] if found["failed"] else ("the process died" if outcome == "caught" else "")
    return {"outcome": outcome, "by": by, "seconds": round(time.monotonic() - began, 1)}


def keys_of(sites: list[Site]) -> dict[Site, str]:
    """What each is known by from run to run: its file and text, and which of those it is."""
    counts: Counter[tuple[str, str]] = Counter()
    keys = {}
    for site in sites:
        same = (site.file, site.text)
        keys[site] = f"{site.file}: {site.text} #{counts[same]}"
        counts[same] += 1
    return keys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the places and end")
    parser.add_argument("--only", help="files whose path contains this")
    parser.add_argument("--kind", choices=[*PATTERNS, "lock"])
    parser.add_argument("--limit-s", type=float, default=60.0, help="for one removal")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="stop after so long; the rest is left as it was"
    )
    parser.add_argument("--survivors", action="store_true", help="only those that were not caught last time")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="instead of all of the core")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    sites = [site for site in find_sites(options.only) if options.kind in (None, site.kind)]
    if options.list:
        print(*(f"{site.kind:10} {site.name}" for site in sites), f"{len(sites)} places", sep="\n")
        return 0
    results: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}
    until = time.monotonic() + 60 * options.minutes
    import numpy
    import pytest  # both before the fork

    del numpy, pytest
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("cuda_async", "tilekern", "tests", "tools", "examples"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        lines: dict[str, set[int]] = defaultdict(set)
        for site in sites:
            lines[site.file].update(range(site.first, site.last + 1))
        baseline = run_tests(copy, list(options.tests), 1200, lines, stop=False)
        seconds, failing = baseline["seconds"], set(baseline["failed"])
        print(
            f"{len(sites)} places, {len(seconds)} tests; failing without any removal: {sorted(failing)}",
            flush=True,
        )
        keys = keys_of(sites)
        there = keys_of(find_sites(None)).values()
        places: dict[str, Any] = {k: v for k, v in results.get("places", {}).items() if k in there}
        results["places"] = places
        catches: Counter[str] = Counter(LIKELY)
        for site in sites:
            if time.monotonic() > until:
                break
            key = keys[site]
            if options.survivors and places.get(key, {}).get("outcome", "caught") == "caught":
                continue
            numbers = range(site.first, site.last + 1)
            reached = {test for n in numbers for test in baseline["reached"].get(f"{site.file}:{n}", ())}
            tests = choose(reached - failing - {""}, seconds, catches, options.limit_s)
            if site.file == NATIVE_FILE:
                tests = list(NATIVE_TESTS)
            found = check(copy, site, tests or list(ELSEWHERE), options.limit_s)
            catches[found["by"].partition("::")[0]] += 1
            counts = {"tests": len(tests), "reached": len(reached)}
            places[key] = {"kind": site.kind, "line": site.first, **counts, **found}
            print(f"{places[key]['outcome']:10} {site.name} ({places[key]['by']})", flush=True)
            outcomes = Counter(place["outcome"] for place in places.values())
            results["counts"] = dict(sorted(outcomes.items()))
            options.output.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    print(results.get("counts", "nothing to do"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
