"""Branches (`parallel`, and `schedule` in a chain) begin behind the chain's stream, which goes on behind them all."""

import collections

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver._inline import set_runner

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


class InTurn:
    """A policy whose streams come as they are given."""

    def __init__(self, policies):
        self.streams = [policy.next_stream() for policy in policies]

    def next_stream(self):
        return self.streams.pop(0)


def pending_shared(tensor, stream, held_by):
    """A shared operation that is enqueued on a stream, whose next work waits for another one."""
    source = ca.ones(2).shared()
    source.start(stream)
    ca.fill(tensor, 1).start(held_by)
    return source


def test_a_branch_behind_a_shared_operation_on_its_stream(stepped, streams, tensor, run_to_a_stop):
    """Other branches use that too; what is waited for is the branch, which comes later."""
    home, held_by, shared, other = streams
    another = ca.SingleStream(stepped.create_stream())
    source = pending_shared(tensor, shared, held_by)
    with ca.use_policy(InTurn([other, shared, another])):
        future = ca.parallel(source, ca.fill(tensor, 2), source).start(home)
    assert run_to_a_stop(shared)
    assert not run_to_a_stop(other)
    assert not run_to_a_stop(another)
    assert run_to_a_stop(home)
    assert not future.done
    stepped.driver.advance_all()
    assert future.done


class OneByOne:
    """Keeps what worker threads would do for the test to let it be done."""

    def __init__(self):
        self.work = collections.deque()

    def defer(self, work):
        self.work.append(work)

    def wait_until(self, condition):
        raise AssertionError("nobody waits here")


class Prepared(ca.DeviceOp):
    def prepare(self, ctx):
        pass

    def execute(self, ctx):
        return None


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_branch_whose_stream_waits_already(stepped, streams, tensor, run_to_a_stop, is_nested):
    """Somebody else's work there waits for the shared operation; the chain goes on behind that all the same."""
    home, held_by, shared, branch = streams
    ca.fill(tensor, 1).start(held_by)
    runner = OneByOne()
    set_runner(runner)  # the fixture sets back what was before
    source = Prepared().then(lambda _: ca.fill(tensor, 2)).shared()
    source.start(shared)
    source.start(branch)
    inner = source.schedule(shared) if is_nested else source
    future = ca.value(None).then(lambda _: inner.schedule(branch)).start(home)  # stands within its branch
    while runner.work:
        runner.work.popleft()()
    assert run_to_a_stop(shared)
    assert run_to_a_stop(branch)
    assert run_to_a_stop(home)
    assert not future.done
    stepped.driver.advance_all()
    assert future.done


def test_a_branch_that_looks_at_data_waits_for_no_other_branch(stepped, streams, tensor, run_to_a_stop):
    """It has enqueued nothing itself: it waits for an event of its own, behind what others have put there."""
    home, one, other, _ = streams
    ca.zeros(2).start(other)
    looked = []
    with ca.use_policy(InTurn([one, other])):
        future = ca.parallel(tensor.to_host(), ca.value(np.ones(2)).map(looked.append)).start(home)
    assert not looked
    assert not run_to_a_stop(other)
    assert len(looked) == 1
    stepped.driver.advance_all()
    assert future.done
