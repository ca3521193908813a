"""Explores schedules of the core on the simulated device, and plants races to see that they would be found.

    python tools/explore.py                            # 100,000 distinct schedules, then the planted bugs
    python tools/explore.py --schedules 5000           # fewer
    python tools/explore.py --bugs-only --only join    # planted bugs whose name holds a word
    python tools/explore.py --out benchmarks/results/schedules.json

The core programs and 200 drawn ones (`drawn_programs/`) run under seed after seed until so many different schedules,
counted by their traces, have passed. A failure is printed with its program, seed and trace, and ends with exit code 1;
so does a planted bug that is not found within 10,000 schedules.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import multiprocessing
import os
import platform
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import numpy as np  # noqa: E402
from drawn_programs import BUGS, CORE, Bug, draw_plan, program  # noqa: E402

from cuda_async.testing import Failure, explore  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_PER_BUG = 10_000
MOST_WITH_CHECKS = 500
CHECKED_SEEDS = 5
SEEDS_AT_A_TIME = 50


def named_program(name: str) -> Callable[..., Any]:
    """`core 3` or `drawn 17`."""
    kind, number = name.split()
    if kind == "core":
        return CORE[int(number)]
    chance = random.Random(int(number))
    return program(draw_plan(chance.randrange))


def run_seeds(name: str, first: int, count: int, check: bool = False) -> tuple[int, frozenset[bytes], str]:
    """(runs, digests of traces, what failed) of a program under seeds."""
    found = explore(named_program(name), seeds=range(first, first + count), check=check, raising=False)
    return found.runs, found.digests(), "" if found.failure is None else described(name, found.failure)


def described(name: str, failure: Failure) -> str:
    what = name if name.startswith("drawn") else f"{name} ({named_program(name).__qualname__})"
    return f"{what}: {failure}"


def find(bug: Bug, limit: int, drawn: int) -> dict[str, Any]:
    """Plant a bug, and run until something fails; and once more, looking for races in every run."""
    by_values = find_one_way(bug, limit, drawn, check=False)
    by_checks = find_one_way(bug, min(limit, MOST_WITH_CHECKS), drawn, check=True)
    return {
        **by_values,
        "with_checks": {name: by_checks[name] for name in ("found", "schedules", "by", "error", "seconds")},
    }


def find_one_way(bug: Bug, limit: int, drawn: int, *, check: bool) -> dict[str, Any]:
    """Each core program and a drawn one in turn, seed by seed."""
    began = time.perf_counter()
    names = [f"core {i}" for i in range(len(CORE))]
    programs = {name: named_program(name) for name in names}
    schedules, seed, failure, where = 0, 0, None, ""
    with bug.planted():
        while failure is None and schedules < limit:
            drawn_now = f"drawn {seed % drawn}"
            programs[drawn_now] = programs.get(drawn_now) or named_program(drawn_now)
            for name in (*names, drawn_now):
                found = explore(programs[name], seeds=[seed], check=check, raising=False)
                schedules += 1
                if found.failure is not None:
                    failure, where = found.failure, name
                    break
            seed += 1
    return {
        "name": bug.name,
        "where": bug.function,
        "found": failure is not None,
        "schedules": schedules,
        "by": where if not where.startswith("core") else programs[where].__qualname__,
        "error": "" if failure is None else f"{type(failure.error).__name__}: {first_line(failure.error)}",
        "seconds": round(time.perf_counter() - began, 2),
    }


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:100]


def explore_all(
    pool: concurrent.futures.Executor, wanted: int, drawn: int
) -> tuple[dict[str, Any], list[str]]:
    """Run seeds of all programs, round by round, until `wanted` different schedules have passed."""
    began = time.perf_counter()
    names = [f"core {i}" for i in range(len(CORE))] + [f"drawn {i}" for i in range(drawn)]
    seen: dict[str, set[bytes]] = {name: set() for name in names}
    runs = first = 0
    failures: list[str] = []
    while not failures and sum(map(len, seen.values())) < wanted:
        # A core program stands for more than a drawn one.
        jobs = [
            (name, first * times + i * SEEDS_AT_A_TIME)
            for name in names
            for times in ((6,) if name.startswith("core") else (1,))
            for i in range(times)
        ]
        pending = {pool.submit(run_seeds, name, seed, SEEDS_AT_A_TIME): name for name, seed in jobs}
        for done in concurrent.futures.as_completed(pending):
            count, digests, failure = done.result()
            runs += count
            seen[pending[done]] |= digests
            if failure:
                failures.append(failure)
        first += SEEDS_AT_A_TIME
        passed, seconds = sum(map(len, seen.values())), time.perf_counter() - began
        print(f"{runs} runs, {passed} different schedules, {runs / seconds:.0f} runs/s", flush=True)
    core = sum(len(found) for name, found in seen.items() if name.startswith("core"))
    seconds = time.perf_counter() - began
    result = {
        "runs": runs,
        "distinct": sum(map(len, seen.values())),
        "distinct_of_core_programs": core,
        "core_programs": len(CORE),
        "drawn_programs": drawn,
        "failures": len(failures),
        "seconds": round(seconds, 1),
        "runs_per_second": round(runs / seconds, 1),
    }
    return result, failures


def check_all(pool: concurrent.futures.Executor, drawn: int) -> tuple[dict[str, Any], list[str]]:
    """Look for races in a few schedules of every program."""
    names = [f"core {i}" for i in range(len(CORE))] + [f"drawn {i}" for i in range(drawn)]
    done = list(pool.map(run_seeds, names, *zip(*[(0, CHECKED_SEEDS, True)] * len(names))))
    failures = [failure for _, _, failure in done if failure]
    result = {
        "runs": sum(runs for runs, _, _ in done),
        "distinct": sum(len(digests) for _, digests, _ in done),
        "failures": len(failures),
    }
    return result, failures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=100_000, help="how many different ones")
    parser.add_argument("--drawn", type=int, default=200, help="how many drawn programs")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-bugs", action="store_true", help="plant none")
    parser.add_argument("--bugs-only", action="store_true", help="only plant bugs")
    parser.add_argument("--only", default="", help="bugs whose name holds this")
    parser.add_argument("--limit", type=int, default=MOST_PER_BUG, help="schedules for one bug")
    parser.add_argument("--out", type=Path, help="write the numbers here, as JSON")
    options = parser.parse_args()

    result: dict[str, Any] = {
        "what": "schedules of the simulated device, by tools/explore.py",
        "machine": {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "workers": options.workers,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "command": " ".join(["python", "tools/explore.py", *sys.argv[1:]]),
        },
    }
    failures: list[str] = []
    missed: list[str] = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.workers, context) as pool:
        if not options.bugs_only:
            result["exploration"], failures = explore_all(pool, options.schedules, options.drawn)
            result["exploration_with_checks"], more = check_all(pool, options.drawn)
            print(f"{result['exploration_with_checks']['runs']} runs with checks", flush=True)
            failures += more
            for failure in failures:
                print("FAILED", failure)
        if not options.no_bugs:
            bugs = [bug for bug in BUGS if options.only in bug.name]
            found = list(pool.map(find, bugs, [options.limit] * len(bugs), [options.drawn] * len(bugs)))
            result["planted_bugs"] = found
            for one in found:
                how = f"found after {one['schedules']}" if one["found"] else f"MISSED in {one['schedules']}"
                checked = one["with_checks"]
                again = f"with checks {checked['schedules'] if checked['found'] else 'not'}"
                print(f"{how:>20}, {again:>15}  {one['name']}  ({one['by']}: {one['error']})")
            missed = [one["name"] for one in found if not one["found"]]
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if failures or missed else 0


if __name__ == "__main__":
    sys.exit(main())
