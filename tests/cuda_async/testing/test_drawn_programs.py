"""Drawn programs and the core programs under explored schedules; planted races are found.

`python tools/explore.py` does the same a hundred thousand times.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import cuda_async as ca
from cuda_async.errors import CheckError
from cuda_async.testing import explore

TOOLS = Path(__file__).parents[3] / "tools"
sys.path.insert(0, str(TOOLS))

from drawn_programs import ACTIONS, BUGS, CORE, Kernels, Plan, draw_action, draw_plan, program  # noqa: E402

PTX = Path(__file__).parents[1] / "graph" / "kernels.ptx"


@pytest.mark.parametrize("core_program", CORE, ids=lambda found: found.__qualname__)
def test_core_programs(core_program):
    found = explore(core_program, seeds=12)
    assert found.distinct > 6


@pytest.mark.parametrize("core_program", CORE, ids=lambda found: found.__qualname__)
def test_core_programs_have_no_races(core_program):
    explore(core_program, seeds=2, check=True)


def test_checks_find_a_race_that_did_no_harm():
    """In the first schedule, where values alone take dozens."""
    (bug,) = (bug for bug in BUGS if bug.name == "a write waits for one of several readers")
    with bug.planted(), pytest.raises(CheckError, match="nothing orders two accesses"):
        explore(CORE[0], seeds=1, check=True)


@pytest.mark.parametrize("number", range(16))
def test_drawn_programs(number):
    explore(program(draw_plan(random.Random(1000 + number).randrange)), seeds=6)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_any_program_under_any_schedule(data, seed):
    plan = draw_plan(lambda count: data.draw(st.integers(0, count - 1)))
    explore(program(plan), seeds=[seed])


class Programs(RuleBasedStateMachine):
    """Draws a program action by action: who does what next, among up to four tasks."""

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed):
        self.seed = seed
        self.tasks: list[list[object]] = [[]]

    @rule()
    def another_task(self):
        if len(self.tasks) < 4:
            self.tasks.append([])

    @rule(name=st.sampled_from([name for name, _ in ACTIONS]), task=st.integers(0, 3), data=st.data())
    def act(self, name, task, data):
        draw = lambda count: data.draw(st.integers(0, count - 1))  # noqa: E731
        self.tasks[task % len(self.tasks)].append(draw_action(draw, name))

    def teardown(self):
        plan = Plan(tuple(map(tuple, getattr(self, "tasks", ()))))
        if plan.size:
            explore(program(plan), seeds=[self.seed, self.seed + 1])


TestPrograms = Programs.TestCase
TestPrograms.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_race_is_found(bug):
    with bug.planted():
        for seed in range(60):
            if any(explore(each, seeds=[seed], raising=False).failure is not None for each in CORE):
                return
    pytest.fail(f"not found: {bug}")


@pytest.mark.parametrize("number", range(6))
def test_drawn_programs_on_every_device(device, number):
    """As they come, on the process's own device."""
    module = ca.Module.from_ptx(PTX.read_text(encoding="utf-8"))
    drawn = program(draw_plan(random.Random(number).randrange), lambda: Kernels(module, grid=1, block=32))
    gc.collect()  # what tests before this one left
    ca.drain().sync()
    with ca.use_device(device):
        asyncio.run(drawn(device))
