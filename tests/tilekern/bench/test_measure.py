"""Timing operations: what is measured, how often, and what is refused."""

import asyncio

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.bench import Comparison, MeasureOptions, Timing, compare, measure
from tilekern.bench._timing import median_interval

QUICK = MeasureOptions(warm_up_ms=0, measure_ms=2, min_runs=4, max_runs=20)


@tk.kernel
def add(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D):
    out.store(tk.load_like(x, out) + tk.load_like(y, out))


def bound(device, tile, n=4096):
    x, y, out = ca.ones((n,)).sync(), ca.ones((n,)).sync(), ca.zeros((n,)).sync()
    return add.bind(out.partition(tile), x, y, device=device)


def test_measures_repetitions(device):
    launch = bound(device, 512)
    calls = []

    def make():
        calls.append(1)
        return launch.launch()

    timing = measure(make, device=device, options=QUICK)
    assert 4 <= len(timing.samples_ms) <= 20
    assert len(calls) >= len(timing.samples_ms) + 2
    assert all(0 < ms < 1000 for ms in timing.samples_ms)
    assert timing.min_ms <= timing.median_ms <= timing.quantile_ms(1)


def test_more_work_takes_longer(device):
    """8 times the elements; on a GPU by many more, where launches alone would hide it."""
    factor = 8 if device.kind == "host" else 65536
    small, large = bound(device, 512, 4096), bound(device, 512, 4096 * factor)
    found = compare(small.launch, large.launch, device=device, options=QUICK)
    assert found.ratio > 1.5
    assert found.is_significant
    assert len(found.first.samples_ms) == len(found.second.samples_ms)


def test_operations_that_allocate_are_measured(device):
    op = measure(lambda: ca.zeros((100,)), device=device, options=QUICK)
    assert op.median_ms > 0


def test_first_use_is_not_measured(host):
    @tk.kernel
    def fresh(out: tk.Tile1D):
        out.store(1.0)

    out = ca.zeros((64,)).sync()
    timing = measure(lambda: fresh(out.partition(16)), device=host, options=QUICK)
    assert len(fresh.timings) == 1
    assert timing.quantile_ms(1) < fresh.timings[0].total_ms + 50


def test_statistics_of_samples():
    """Against NumPy."""
    samples = np.random.default_rng(0).exponential(size=101)
    timing = Timing(tuple(samples.tolist()))
    assert timing.median_ms == np.median(samples)
    assert timing.mean_ms == pytest.approx(np.mean(samples))
    for share in (0, 0.2, 0.333, 0.5, 0.99, 1):
        assert timing.quantile_ms(share) == pytest.approx(np.quantile(samples, share))
    assert "101 runs" in str(timing)
    with pytest.raises(ValueError, match="from 0 to 1"):
        timing.quantile_ms(1.5)
    assert str(Timing((1500.0, 1500.0))).startswith("1.5 s")
    assert str(Timing((0.002,))).startswith("2 us")


def test_interval_holds_the_median_that_often():
    """95 % of intervals of draws from a known distribution hold its median; of 2000, 1900 +- 30."""
    draws = np.random.default_rng(1).exponential(size=(2000, 40))
    held = sum(low <= np.log(2) <= high for low, high in (median_interval(list(row)) for row in draws))
    assert 1860 <= held <= 1990


def test_comparison_reads_well():
    one = Comparison(Timing((1.0, 2.0)), Timing((0.5, 1.0)), 0.5, (0.4, 0.6))
    assert one.is_significant
    assert "second / first = 0.500 (0.400 to 0.600)" in str(one)
    assert not Comparison(one.first, one.second, 1.0, (0.9, 1.1)).is_significant


def test_refused(host):
    with pytest.raises(TypeError, match="it gave int"):
        measure(lambda: 3, device=host, options=QUICK)
    with pytest.raises(TypeError, match=r"each runs once: lambda"):
        measure(ca.zeros((1,)), device=host, options=QUICK)
    for options in (
        {"measure_ms": -1},
        {"warm_up_ms": float("nan")},
        {"min_runs": 0},
        {"min_runs": 5, "max_runs": 4},
    ):
        with pytest.raises(ValueError, match=r"is a number|are whole numbers"):
            MeasureOptions(**options)

    async def on_a_loop():
        with pytest.raises(ca.SchedulingError, match="to_thread"):
            measure(lambda: ca.zeros((1,)), device=host)
        return await asyncio.to_thread(measure, lambda: ca.zeros((1,)), device=host, options=QUICK)

    assert asyncio.run(on_a_loop()).median_ms > 0


def test_errors_come_out(host):
    def fail():
        raise KeyError("no operation today")

    with pytest.raises(KeyError, match="no operation today"):
        measure(fail, device=host, options=QUICK)
    with pytest.raises(tk.KernelArgumentError):
        measure(
            lambda: add(ca.zeros((10,)), ca.zeros((10,)), ca.zeros((10,))).grid(1), device=host, options=QUICK
        )
