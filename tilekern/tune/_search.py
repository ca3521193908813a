"""The search: each configuration made, verified and measured; the two fastest compared in the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cuda_async import Device, DeviceOp, current_device

from ..errors import TilekernError
from ._log import TrialLog
from ._runner import Here, Outcome, Runner
from ._space import Config, Space, config_key
from ._trial import Trial, TuneResult

if TYPE_CHECKING:
    from ..bench import Comparison, MeasureOptions

__all__ = ["search"]


def search(
    space: Space,
    # Any: what operations yield is the caller's
    make: Callable[[Config], Callable[[], DeviceOp[Any]]],
    *,
    verify: Callable[[Any], object] | None = None,
    order: Literal["grid", "random"] = "grid",
    limit: int | None = None,
    seed: int = 0,
    budget_s: float | None = None,
    prune: Callable[[Config, Sequence[Trial]], bool] | None = None,
    give_up_ratio: float = 2.0,
    log: str | os.PathLike[str] | None = None,
    problem: str = "",
    timeout_s: float | None = None,
    device: Device | None = None,
    options: MeasureOptions | None = None,
    progress: Callable[[Trial, int, int], object] | None = None,
) -> TuneResult:
    """The fastest configuration of a space. Blocks: on an event loop, `await asyncio.to_thread(search, ...)`.

    Each configuration is made, run once and verified, looked at for a few repetitions, and measured in full if it
    may win. One that does not compile, does not launch or is wrong is a trial like others, and no error. In
    the end the two fastest are run in turns, and the winner of that is the best.

    Args:
        make: `make(config)` gives a function that makes the operation, anew every time. Allocate and bind in
            `make`, so that only the kernel is measured.
        verify: called with what the operation yields; returns False or raises where that is wrong. `None` and
            True say that it is right.
        order: every combination in order, or in the random order that `seed` gives.
        limit: how many configurations to look at, those of the log included.
        budget_s: no new configuration is begun after that many seconds.
        prune: `prune(config, trials so far)`; True leaves the configuration out.
        give_up_ratio: a configuration that takes that many times longer than the best so far in a short look is
            not measured in full.
        log: a file of JSON lines; configurations in it are not tried again. It belongs to this space, device and
            `problem`.
        problem: what is tuned, in your words, such as "matmul 4096 bf16".
        timeout_s: run configurations in a process of its own, and kill that when one takes longer (compiling
            included); a kernel that never ends cannot be stopped otherwise. `make` and `verify` must be
            functions at the top of a module, which that process imports.
        device: where; the current one if not given.
        options: how long to measure.
        progress: called after each configuration with the trial, its number and how many there are.
    Raises:
        TilekernError: no configuration could be measured; says what went wrong with the first ones.
        TuneLogError: the log is of another search.
        SchedulingError: called on the thread of a running event loop.
    """
    if not isinstance(space, Space):
        raise TypeError(f"what is searched is a tk.tune.Space, as in Space(tile=[64, 128]); got {space!r}")
    if order not in ("grid", "random"):
        raise ValueError(f"order is 'grid' or 'random', got {order!r}")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit is a number from 1 on, got {limit!r}")
    if give_up_ratio < 1:
        raise ValueError(f"give_up_ratio is at least 1, got {give_up_ratio!r}")
    if budget_s is not None and not budget_s >= 0:
        raise ValueError(f"budget_s is a number of seconds from 0 on, got {budget_s!r}")
    target = (device or current_device()).open()
    configs = list(space) if order == "grid" else space.shuffled(seed)
    configs = configs[:limit]
    if not configs:
        raise ValueError(f"{space} has no allowed combination")
    kept = TrialLog(log, space, target.name, problem)
    with _runner(make, verify, target, options, timeout_s) as runner:
        trials = _try_all(configs, kept, runner, prune, give_up_ratio, budget_s, progress)
        measured = sorted([t for t in trials if t.status == "ok"], key=lambda t: t.ms or 0.0)
        if not measured:
            raise TilekernError(f"no configuration of {space} could be measured:\n{_complaints(trials)}")
        best, comparison = measured[0], None
        if len(measured) > 1:
            best, comparison = _final(measured[0], measured[1], runner)
    assert best.ms is not None
    return TuneResult(best.config, best.ms, tuple(trials), comparison)


def _runner(
    make: Callable[[Config], Callable[[], DeviceOp[Any]]],
    verify: Callable[[Any], object] | None,
    device: Device,
    options: MeasureOptions | None,
    timeout_s: float | None,
) -> Runner:
    if timeout_s is None:
        return Here(make, verify, device, options)
    from ._isolated import Isolated

    return Isolated(make, verify, device, options, timeout_s)


def _try_all(
    configs: Sequence[Config],
    kept: TrialLog,
    runner: Runner,
    prune: Callable[[Config, Sequence[Trial]], bool] | None,
    give_up_ratio: float,
    budget_s: float | None,
    progress: Callable[[Trial, int, int], object] | None,
) -> list[Trial]:
    began = time.monotonic()
    trials: list[Trial] = []
    for number, config in enumerate(configs, 1):
        known = kept.trials.get(config_key(config))
        if known is None:
            if budget_s is not None and trials and time.monotonic() - began > budget_s:
                break
            if prune is not None and prune(config, trials):
                known = Trial(config, "pruned")
            else:
                best_ms = min([t.ms for t in trials if t.status == "ok" and t.ms is not None], default=None)
                slow_ms = None if best_ms is None else best_ms * give_up_ratio
                outcome = runner.run(config, slow_ms)
                known = Trial(config, outcome.status, outcome.ms, outcome.error)
            kept.add(known)
        trials.append(known)
        if progress is not None:
            progress(known, number, len(configs))
    return trials


def _final(first: Trial, second: Trial, runner: Runner) -> tuple[Trial, Comparison | None]:
    """The two fastest, compared in turns; the first stays the best unless it clearly loses."""
    comparison: Comparison | Outcome = runner.compare(first.config, second.config)
    if isinstance(comparison, Outcome):
        return first, None
    return (second if comparison.ratio < 1 and comparison.is_significant else first), comparison


def _complaints(trials: Sequence[Trial]) -> str:
    lines = [f"  {dict(t.config)}: {t.status}{': ' + t.error if t.error else ''}" for t in trials[:5]]
    if len(trials) > 5:
        lines.append(f"  and {len(trials) - 5} more")
    return "\n".join(lines)
