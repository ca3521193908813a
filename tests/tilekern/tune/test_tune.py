"""Searches: order, verification, logs that resume, candidates that hang or die."""

import json
import sys
from pathlib import Path

import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.bench import MeasureOptions
from tilekern.tune import Space, TuneLogError, search

sys.path.insert(0, str(Path(__file__).parent))
import tuned_kernels

QUICK = MeasureOptions(warm_up_ms=0, measure_ms=1, min_runs=3, max_runs=5)
TILES = Space(tile=[32, 256, 1024])


def quick(space, make=tuned_kernels.make, **more):
    return search(space, make, options=QUICK, **more)


def test_finds_the_fastest(device):
    seen = []
    result = quick(
        TILES, verify=tuned_kernels.verify, progress=lambda *told: seen.append(told), give_up_ratio=1e9
    )
    assert [t.status for t in result.trials] == ["ok"] * 3
    assert [told[1:] for told in seen] == [(1, 3), (2, 3), (3, 3)]
    assert result.comparison is not None
    assert result.best in [t.config for t in result.trials]
    if device.kind == "host":
        assert result.best != {"tile": 32}  # 64 blocks take far longer than 2
    assert "best tile=" in str(result)
    assert "3 measured" in str(result)


def test_spaces_and_their_conditions():
    space = Space(a=[1, 2], b=["x", (1, 2)], where=lambda c: (c["a"], c["b"]) != (2, "x"))
    assert list(space) == [{"a": 1, "b": "x"}, {"a": 1, "b": (1, 2)}, {"a": 2, "b": (1, 2)}]
    assert len(space) == 3
    assert space.digest != Space(a=[1, 2], b=["x", (1, 2)]).digest
    assert (
        space.digest == Space(a=[1, 2], b=["x", (1, 2)], where=lambda c: c["a"] == 1 or c["b"] != "x").digest
    )
    assert sorted(map(str, space.shuffled(3))) == sorted(map(str, space))
    assert space.shuffled(3) == space.shuffled(3)
    for axes, error, message in (
        ({}, ValueError, "at least one axis"),
        ({"a": []}, ValueError, "at least one"),
        ({"a": "xyz"}, ValueError, "is a list"),
        ({"a": [1, 1]}, ValueError, "twice"),
        ({"a": [[1]]}, TypeError, "has a list"),
        ({"a": [object()]}, TypeError, "written to a log"),
    ):
        with pytest.raises(error, match=message):
            Space(**axes)
    assert len(Space(a=[1, True, 1.0])) == 3


def test_faults_are_data(host):
    space = Space(behaviour=["raises", "wrong", "right"])
    result = quick(space, verify=tuned_kernels.verify)
    assert [t.status for t in result.trials] == ["invalid", "wrong", "ok"]
    assert "ValueError: no such configuration" in result.trials[0].error
    assert result.best == {"behaviour": "right"}
    assert result.comparison is None
    assert "1 measured, 1 invalid, 1 wrong" in str(result)
    with pytest.raises(tk.TilekernError, match=r"(?s)no configuration.*no such configuration"):
        quick(Space(behaviour=["raises"]))


def test_verify_may_return_raise_or_say_nothing(host):
    def refuse(value):
        raise AssertionError("differs at element 3")

    assert quick(Space(tile=[256]), verify=lambda value: None).best == {"tile": 256}
    for verify, message in ((refuse, "differs at element 3"), (lambda value: False, "verify said so")):
        with pytest.raises(tk.TilekernError, match=message):
            quick(Space(tile=[256]), verify=verify)


def test_slow_candidates_are_given_up(host):
    order = Space(tile=[1024, 32])
    slow = quick(order, give_up_ratio=1.5)
    assert [t.status for t in slow.trials] == ["ok", "slow"]
    assert slow.trials[1].ms > slow.trials[0].ms


def test_pruning_limits_budgets_and_orders(host):
    pruned = quick(TILES, prune=lambda config, trials: config["tile"] < 100)
    assert pruned.trials[0].status == "pruned"
    assert len(quick(TILES, limit=1).trials) == 1
    assert len(quick(TILES, budget_s=0).trials) == 1
    first = quick(TILES, order="random", seed=5, limit=2)
    assert [t.config for t in first.trials] == TILES.shuffled(5)[:2]
    for wrong, message in (
        ({"order": "best"}, "'grid' or 'random'"),
        ({"limit": 0}, "limit"),
        ({"give_up_ratio": 0.5}, "at least 1"),
        ({"budget_s": -1}, "budget_s is a number of seconds from 0 on"),
    ):
        with pytest.raises(ValueError, match=message):
            quick(TILES, **wrong)
    with pytest.raises(TypeError, match=r"is a tk\.tune\.Space"):
        quick({"tile": [64]})
    with pytest.raises(ValueError, match="no allowed combination"):
        quick(Space(a=[1], where=lambda c: False))


def test_log_resumes(host, tmp_path):
    log = tmp_path / "logs" / "add.jsonl"
    made = []

    def make(config):
        made.append(config["tile"])
        return tuned_kernels.make(config)

    first = quick(TILES, make, log=log, limit=2, problem="add", give_up_ratio=1e9)
    text = log.read_text()
    assert len(text.splitlines()) == 3
    log.write_text(text + '{"config": {"ti')  # the process was killed while it wrote
    made.clear()
    second = quick(TILES, make, log=log, problem="add", give_up_ratio=1e9)
    assert made[0] == 1024  # the others are in the log; then come the two that are compared
    assert second.trials[:2] == first.trials
    assert len(log.read_text().splitlines()) == 4
    for line in log.read_text().splitlines():
        json.loads(line)


def test_log_of_another_search_is_refused(host, tmp_path):
    log = tmp_path / "add.jsonl"
    quick(Space(tile=[256]), log=log, problem="add")
    with pytest.raises(TuneLogError, match=r"another search: they differ in axis tile \(\[256\], here \["):
        quick(TILES, log=log, problem="add")
    with pytest.raises(
        TuneLogError, match=r"axis tile \(\[256\], here none\), axis side \(none, here \[\(1, 2\)\]\)"
    ):
        quick(Space(side=[(1, 2)]), log=log, problem="add")
    with pytest.raises(TuneLogError, match=r"differ in problem \(add, here mul\)"):
        quick(Space(tile=[256]), log=log, problem="mul")
    some = tmp_path / "some.jsonl"
    quick(Space(tile=[256, 512], where=lambda c: c["tile"] < 300), log=some, problem="add")
    with pytest.raises(TuneLogError, match=r"which combinations `where` allows \(1, here 2\)"):
        quick(Space(tile=[256, 512]), log=some, problem="add")
    log.write_text("not a log\n")
    with pytest.raises(TuneLogError, match="no log of a search"):
        quick(Space(tile=[256]), log=log, problem="add")


def test_tuples_come_back_from_the_log(host, tmp_path):
    space = Space(shape=[(256, 1), (512, 2)])

    def make(config):
        assert type(config["shape"]) is tuple
        return tuned_kernels.make({"tile": config["shape"][0]})

    for _ in range(2):
        result = quick(space, make, log=tmp_path / "log", give_up_ratio=1e9)
        assert [t.config["shape"] for t in result.trials] == [(256, 1), (512, 2)]


def test_candidates_that_hang_or_die_are_isolated(device):
    space = Space(behaviour=["hangs", "ends", "raises", "wrong", "prints", "right"])
    result = quick(
        space, verify=tuned_kernels.verify, timeout_s=2.5 if device.kind == "host" else 20, give_up_ratio=1e9
    )
    assert [t.status for t in result.trials] == ["timeout", "invalid", "invalid", "wrong", "ok", "ok"]
    assert "killed" in result.trials[0].error
    assert "exit code 7" in result.trials[1].error
    assert result.comparison is not None


def test_isolation_needs_functions_that_can_be_imported(host):
    with pytest.raises(TypeError, match="another process cannot import"):
        quick(TILES, lambda config: None, timeout_s=5)
    with pytest.raises(ValueError, match="timeout_s"):
        quick(TILES, timeout_s=0)


def test_main_program_is_imported_from_its_file(tmp_path):
    import subprocess

    program = tmp_path / "program.py"
    program.write_text(
        "import cuda_async as ca, tilekern as tk\n"
        "@tk.kernel\n"
        "def add(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D):\n"
        "    out.store(tk.load_like(x, out) + tk.load_like(y, out))\n"
        "def make(config):\n"
        "    x, out = ca.ones((512,)).sync(), ca.zeros((512,)).sync()\n"
        "    return add.bind(out.partition(config['tile']), x, x, device=ca.current_device()).launch\n"
        "if __name__ == '__main__':\n"
        "    options = tk.bench.MeasureOptions(warm_up_ms=0, measure_ms=1, max_runs=5)\n"
        "    device = ca.Device('host:0')\n"
        "    print(tk.tune.search(tk.tune.Space(tile=[64, 512]), make, timeout_s=60, device=device, options=options))\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "best tile=" in done.stdout


def test_lost_device_ends_the_search(host, monkeypatch):
    def make(config):
        raise ca.DeviceLostError("the device is lost")

    with pytest.raises(ca.DeviceLostError):
        quick(TILES, make)
