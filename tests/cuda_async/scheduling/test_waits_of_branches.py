"""Branches (`parallel`, and `schedule` in a chain) begin behind the chain's stream, which goes on behind them all."""

import pytest

import cuda_async as ca
from cuda_async.driver._inline import set_runner


class AtOnce:
    """Runs what worker threads would: all is enqueued when `start` returns."""

    def defer(self, work):
        work()

    def wait_until(self, condition):
        assert condition()


@pytest.fixture(autouse=True)
def without_workers():
    before = set_runner(AtOnce())
    yield
    set_runner(before)


@pytest.fixture
def streams(stepped):
    return [ca.SingleStream(stepped.create_stream()) for _ in range(4)]


@pytest.fixture
def tensor(stepped, streams):
    made = ca.zeros(4, "i4").start(streams[0])
    stepped.driver.advance_all()
    return made.result()


def run_to_a_stop(driver, policy):
    """Whether a stream comes to a wait for another one."""
    handle = policy.next_stream().handle
    while driver.advance(handle):
        pass
    return driver.is_blocked(handle)


def test_branches_begin_behind_the_chain(stepped, streams, tensor):
    """Also where they share no memory with it."""
    home, other = streams[:2]
    ca.fill(tensor, 1).then(lambda _: ca.zeros(2).schedule(other)).start(home)
    assert run_to_a_stop(stepped.driver, other)
    run_to_a_stop(stepped.driver, home)  # up to where it waits for the branch
    assert not run_to_a_stop(stepped.driver, other)
    stepped.driver.advance_all()


def test_the_chain_goes_on_behind_its_branches(stepped, streams, tensor):
    home, other = streams[:2]
    behind = ca.value(None).then(lambda _: ca.zeros(2).schedule(other))
    behind.then(lambda _: ca.fill(tensor, 1)).start(home)
    assert run_to_a_stop(stepped.driver, home)
    stepped.driver.advance_all()


class WaitedFor(ca.DeviceOp):
    """As if another stream waited for all that is on this one so far."""

    def execute(self, ctx):
        with ctx.device._lock:
            ctx.stream._record()


def test_the_chain_goes_on_behind_a_branch_that_is_waited_for_already(stepped, streams, tensor):
    """Its last work has an event of its own when the branches are joined."""
    home, branch = streams[:2]
    filled = ca.fill(tensor, 1).then(lambda _: WaitedFor())
    joined = ca.value(None).then(lambda _: filled.schedule(branch))
    joined.then(lambda _: ca.zeros(2)).start(home)
    assert run_to_a_stop(stepped.driver, home)
    assert not run_to_a_stop(stepped.driver, branch)
    assert not run_to_a_stop(stepped.driver, home)
    stepped.driver.advance_all()


def test_a_chain_of_branches_alone_is_done_when_they_are(stepped, streams, tensor):
    home, other = streams[:2]
    future = ca.value(None).then(lambda _: ca.fill(tensor, 1).schedule(other)).start(home)
    assert run_to_a_stop(stepped.driver, home)
    assert not future.done
    assert not run_to_a_stop(stepped.driver, other)
    assert not run_to_a_stop(stepped.driver, home)
    stepped.driver.advance_all()
    assert future.done
