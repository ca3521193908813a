"""Random programs for minutes: 64 tasks on the loops of 4 threads, cancels, captures, replays, freed memory poisoned.

Every task draws programs from the seed, runs each in one of many ways (awaited, as a future, on a stream of its own,
from a worker thread, cancelled after some turns of its loop, with an error in a callback, captured and launched again
and again), and compares every value with NumPy's; after a cancel or an error the values must be those after the step
it came to. Tensors go from thread to thread, and results, graphs and tensors are shared by all. Each round ends at a
quiet point, where everything is waited for: what is held there must not grow.

    python benchmarks/soak.py --minutes 9 --seed 1 --device cuda:0 --out FILE.json

The exit code is 1 for a wrong value, an unexpected error, a round that does not end, or memory that grows.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
from _harness import Unavailable, machine, print_table, run_on_loop, write_results
from _soak_programs import BLOCK, Common, Kernels
from _soak_tasks import SIZES, Exchange, Tally, Task
from _soak_trace import Trace

import cuda_async as ca

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 4
TASKS = 64
LOOPS = ("asyncio", "uvloop", "trio", "asyncio")
"""One for each thread; asyncio where one is not installed."""
LONGEST_ROUND_S = 180
"""What a round may take after its time is over, before it counts as stuck."""

Snapshot = dict[str, int]


# ------------------------------------------------------------------------------------ what is shared


def tile_kernel(device: ca.Device) -> Callable[..., Any] | None:
    """A tile kernel `a * x + y + b`; None on a GPU where the assembler is not installed."""
    import tilekern as tk
    from tilekern.tileir.errors import CompilerNotFoundError

    @tk.kernel
    def weighted(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D, a: int, b: int):
        out.store(a * tk.load_like(x, out) + tk.load_like(y, out) + b)

    x, y = ca.zeros(SIZES[0], "int32").sync(), ca.zeros(SIZES[0], "int32").sync()
    try:
        weighted(ca.empty(SIZES[0], "int32").partition(128), x, y, 2, 3).sync()
    except CompilerNotFoundError as error:
        print(f"without tile kernels: {error}", file=sys.stderr)
        return None
    return weighted


def affine_of_copy(kernels: Kernels, size: int, x: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
    """The operation that common graphs hold: 3 * x + 1, in a new tensor."""
    kernel = kernels.affine
    return (
        ca.copy(x).then(lambda y: kernel.launch(-(-size // BLOCK), BLOCK, ca.mut(y), size, 3, 1, 1)).first()
    )


def make_common(device: ca.Device) -> Common:
    kernels = Kernels(device, tile_kernel(device))
    priorities = ca.PriorityStreams(2, device=device)
    policies: list[ca.SchedulingPolicy] = [
        ca.StreamPoolRoundRobin(3, device=device),
        ca.LeastLoaded(3, device=device),
        priorities.normal(),
        priorities.high(),
    ]
    common = Common(kernels, 200_000 if device.kind == "cuda" else 40, policies)
    random = np.random.default_rng(0)
    for size in SIZES:
        value = random.integers(-1000, 1000, size, np.int32)
        common.tensors[size] = (ca.from_host(value).sync(), value)
        common.shared[size] = (ca.from_host(value + 1).shared(), value + 1)
        common.shared[size][0].sync()
        recorded = ca.graph_input("x", (size,), "int32").then(
            functools.partial(affine_of_copy, kernels, size)
        )
        common.graphs[size] = recorded.graph().sync()
    return common


# ------------------------------------------------------------------------------------------- rounds


class Soak:
    """Rounds of all threads, and what was found at the quiet points between them."""

    def __init__(self, device: ca.Device, seed: int, tasks: int) -> None:
        self.device = device
        self.seed = seed
        self.tasks = tasks
        self.tally = Tally()
        self.exchange = Exchange()
        self.common = make_common(device)
        self.quiet: list[Snapshot] = []
        self.loops: set[str] = set()

    def round(self, number: int, seconds: float) -> bool:
        """Run all threads; False if they did not come to an end."""
        over_at = time.monotonic() + seconds
        together = threading.Barrier(THREADS)
        threads = [
            threading.Thread(target=self.in_thread, args=(number, i, together, over_at), name=f"soak {i}")
            for i in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, over_at + LONGEST_ROUND_S - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            faulthandler.dump_traceback(all_threads=True)
            self.tally.problem(f"round {number} did not end within {LONGEST_ROUND_S} s after its time")
            return False
        self.tally.add("threads", THREADS)
        self.exchange.clear()
        return True

    def in_thread(self, number: int, index: int, together: threading.Barrier, over_at: float) -> None:
        async def main() -> None:
            async with anyio.create_task_group() as group:
                for i in range(index, self.tasks, THREADS):
                    name = f"seed {self.seed}, round {number}, thread {index}, task {i}"
                    task = Task(
                        name,
                        f"{self.seed}/{number}/{i}",
                        self.device,
                        self.common,
                        self.exchange,
                        self.tally,
                        lambda: time.monotonic() > over_at,
                    )
                    group.start_soon(task.run)

        together.wait()
        loop = LOOPS[index]
        try:
            try:
                run_on_loop(loop, main)
                self.loops.add(loop)
            except Unavailable:
                run_on_loop("asyncio", main)
        except BaseException as error:
            self.tally.problem(f"round {number}, thread {index} on {loop}: {error!r}")

    def look(self) -> Snapshot:
        """Wait for everything, and note what is held then."""
        ca.drain().sync()
        self.device.synchronize()
        gc.collect()
        ca.drain().sync()
        gc.collect()
        stats = self.device.memory_stats()
        found = {
            "used_bytes": stats.used_bytes,
            "reserved_bytes": stats.reserved_bytes,
            "pinned_bytes": stats.pinned_bytes,
            "resident_bytes": resident_bytes(),
            "objects": len(gc.get_objects()),
            "threads": threading.active_count(),
        }
        self.quiet.append(found)
        return found


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


SLACK = {"reserved_bytes": 16 << 20, "pinned_bytes": 16 << 20, "resident_bytes": 48 << 20, "objects": 5000}
"""What the most in the second half of the quiet points may be above the most in the first half, beside a tenth."""
ENOUGH_QUIET_POINTS = 6


def growth(quiet: list[Snapshot]) -> list[str]:
    """What grows from quiet point to quiet point; the first one is before any round."""
    found = []
    used = {point["used_bytes"] for point in quiet}
    if len(used) != 1:
        found.append(f"live bytes at quiet points differ: {sorted(used)}")
    rounds = quiet[1:]
    if len(rounds) < ENOUGH_QUIET_POINTS:
        return found
    half = len(rounds) // 2
    for name, slack in SLACK.items():
        before, after = (max(point[name] for point in part) for part in (rounds[:half], rounds[half:]))
        if after > before * 1.1 + slack:
            found.append(f"{name} grows: at most {before} in the first half, {after} in the second")
    return found


# --------------------------------------------------------------------------------------------- main


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="how long, rounds and quiet points together"
    )
    parser.add_argument("--seed", type=int, default=1, help="what is drawn; the moments are the machine's")
    parser.add_argument("--device", default=None, help="cuda:0 (default where there is one) or host:0")
    parser.add_argument("--tasks", type=int, default=TASKS, help="over all threads")
    parser.add_argument("--round-seconds", type=float, default=None, help="default: a thirtieth of the time")
    parser.add_argument("--out", type=Path, default=None, help="write the numbers here as JSON")
    parser.add_argument(
        "--trace", type=Path, default=None, help="write what was enqueued here, for a wrong value"
    )
    options = parser.parse_args()

    os.environ["CUDA_ASYNC_POISON_FREED"] = "1"  # read when a device is made
    began = time.monotonic()
    device = ca.Device(options.device) if options.device else ca.current_device()
    total_s = options.minutes * 60
    round_s = options.round_seconds or max(1.0, total_s / 30)
    sys.setswitchinterval(1e-5)  # threads change places often
    with ca.use_device(device):
        device.open()
        soak = Soak(device, options.seed, options.tasks)
        if options.trace is not None:
            trace = Trace()
            trace.install()
            soak.tally.on_wrong_value = functools.partial(trace.write, options.trace)
        soak.look()
        rounds, ended, longest_s = 0, True, round_s
        while ended and time.monotonic() - began + longest_s <= total_s:
            start = time.monotonic()
            ended = soak.round(rounds, round_s)
            if ended:
                soak.look()
            rounds += 1
            longest_s = max(longest_s, time.monotonic() - start)
            count = soak.tally.counts
            print(
                f"round {rounds}: {count['programs']} programs, {sum(soak.tally.cancels.values())} cancels, "
                f"{count['replays']} replays, {count['problems']} problems",
                flush=True,
            )
        tally = soak.tally
        for text in growth(soak.quiet):
            tally.problem(text)
        counts = {**tally.counts, "rounds": rounds, "problems": tally.counts["problems"]}
        rows = [*sorted(counts.items()), *((f"cancel: {k}", v) for k, v in sorted(tally.cancels.items()))]
        about = machine(device)
        print_table(f"soak, {about['device']}, seed {options.seed}", ("what", "number"), rows)
        names = list(soak.quiet[0])
        shown = [
            soak.quiet[i]
            for i in dict.fromkeys((0, 1, len(soak.quiet) // 2, len(soak.quiet) - 1))
            if i < len(soak.quiet)
        ]
        print_table(
            "at quiet points", ("", *names), [(i, *(p[n] for n in names)) for i, p in enumerate(shown)]
        )
        for text in tally.problems:
            print(f"PROBLEM {text}")
        results: dict[str, object] = {
            "machine": about,
            "seed": options.seed,
            "seconds": time.monotonic() - began,
            "loops": sorted(soak.loops),
            "tile_kernels": soak.common.kernels.tile_kernel is not None,
            "threads_at_once": THREADS,
            "tasks_at_once": options.tasks,
            "counts": counts,
            "cancels": dict(tally.cancels),
            "quiet_points": soak.quiet,
            "enough_quiet_points": len(soak.quiet) > ENOUGH_QUIET_POINTS,
            "problems": tally.problems,
        }
        write_results(options.out, results)
    sys.stdout.flush()
    if not ended:
        os._exit(1)  # threads that are stuck would hold up the end
    return 1 if tally.counts["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
