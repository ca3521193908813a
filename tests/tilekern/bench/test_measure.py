"""Timing operations: what is measured, how often, and what is refused."""

import asyncio
import time

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.bench import Comparison, MeasureOptions, Timing, _measure, compare, measure
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
    """By so many more elements that launches do not hide it."""
    factor = 64 if device.kind == "host" else 65536
    small, large = bound(device, 512, 4096), bound(device, 512, 4096 * factor)
    found = compare(small.launch, large.launch, device=device, options=QUICK)
    assert found.ratio > 1.5
    assert found.is_significant
    assert len(found.first.samples_ms) == len(found.second.samples_ms)


@pytest.fixture
def waiting(device, monkeypatch):
    """Measurements wait for the host as on a GPU, on every device."""
    if device.kind == "host":
        enter = _measure._Lab.__enter__

        def entered(lab):
            enter(lab)
            lab._wait = ca.Module.from_ptx(_measure._WAIT).function("wait_ns")
            lab._wait.launch(1, 1, 0).sync_on(lab._stream)
            return lab

        monkeypatch.setattr(_measure._Lab, "__enter__", entered)
    return device


def busy_host(op, seconds):
    """The operation, which the host takes long to enqueue."""

    def enqueue(ctx, _):
        over = time.perf_counter() + seconds
        while time.perf_counter() < over:
            pass
        return op()

    return ca.value(None).then_with_context(enqueue)


def test_what_the_host_takes_to_enqueue_is_not_measured(waiting):
    launch = bound(waiting, 512)
    found = measure(lambda: busy_host(launch.launch, 0.001), device=waiting, options=QUICK)
    assert len(found.samples_ms) >= 4
    assert min(found.samples_ms) < 1.0, "a busy machine makes some of them longer"


def test_repetitions_that_the_host_takes_too_long_for_are_fewer_at_once(waiting, monkeypatch):
    """16 of them need longer than the device waits at most."""
    monkeypatch.setattr(_measure, "_MAX_WAIT_NS", 5_000_000)
    counts = []
    batch = _measure._Lab._batch
    monkeypatch.setattr(
        _measure._Lab,
        "_batch",
        lambda lab, makes, count: counts.append(count) or batch(lab, makes, count),
    )
    launch = bound(waiting, 512)
    options = MeasureOptions(warm_up_ms=0, measure_ms=100, min_runs=16, max_runs=16)
    found = measure(lambda: busy_host(launch.launch, 0.001), device=waiting, options=options)
    assert len(found.samples_ms) == 16
    assert min(found.samples_ms) < 1.0, "a busy machine makes some of them longer"
    assert max(counts) > min(counts)


def test_operations_that_wait_for_the_device_are_measured(waiting, monkeypatch):
    """They are late however long the device waits; so their own wait counts."""
    monkeypatch.setattr(_measure, "_MAX_WAIT_NS", 1_000_000)

    def wait(ctx, _):
        ctx.stream.record().synchronize()
        return ca.value(None)

    found = measure(lambda: ca.value(None).then_with_context(wait), device=waiting, options=QUICK)
    assert len(found.samples_ms) >= 4


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
