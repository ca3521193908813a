"""Branches (`parallel`, and `schedule` in a chain) begin behind the chain's stream, which goes on behind them all."""

import pytest

import cuda_async as ca

pytestmark = pytest.mark.usefixtures("without_workers")


@pytest.fixture
def tensor(make_tensor):
    return make_tensor(4)


def test_branches_begin_behind_the_chain(stepped, streams, tensor, run_to_a_stop):
    """Also where they share no memory with it."""
    home, other = streams[:2]
    ca.fill(tensor, 1).then(lambda _: ca.zeros(2).schedule(other)).start(home)
    assert run_to_a_stop(other)
    run_to_a_stop(home)  # up to where it waits for the branch
    assert not run_to_a_stop(other)
    stepped.driver.advance_all()


def test_the_chain_goes_on_behind_its_branches(stepped, streams, tensor, run_to_a_stop):
    home, other = streams[:2]
    behind = ca.value(None).then(lambda _: ca.zeros(2).schedule(other))
    behind.then(lambda _: ca.fill(tensor, 1)).start(home)
    assert run_to_a_stop(home)
    stepped.driver.advance_all()


class WaitedFor(ca.DeviceOp):
    """As if another stream waited for all that is on this one so far."""

    def execute(self, ctx):
        with ctx.device._lock:
            ctx.stream._record()


def test_the_chain_goes_on_behind_a_branch_that_is_waited_for_already(
    stepped, streams, tensor, run_to_a_stop
):
    """Its last work has an event of its own when the branches are joined."""
    home, branch = streams[:2]
    filled = ca.fill(tensor, 1).then(lambda _: WaitedFor())
    joined = ca.value(None).then(lambda _: filled.schedule(branch))
    joined.then(lambda _: ca.zeros(2)).start(home)
    assert run_to_a_stop(home)
    assert not run_to_a_stop(branch)
    assert not run_to_a_stop(home)
    stepped.driver.advance_all()


def test_a_chain_of_branches_alone_is_done_when_they_are(stepped, streams, tensor, run_to_a_stop):
    home, other = streams[:2]
    future = ca.value(None).then(lambda _: ca.fill(tensor, 1).schedule(other)).start(home)
    assert run_to_a_stop(home)
    assert not future.done
    assert not run_to_a_stop(other)
    assert not run_to_a_stop(home)
    stepped.driver.advance_all()
    assert future.done
