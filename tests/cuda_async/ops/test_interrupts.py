"""`KeyboardInterrupt` between any two instructions of a launch."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver import FunctionInfo, HostImage, ParameterInfo

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")


class Nothing:
    """A kernel with one tensor that does nothing."""

    info = FunctionInfo(
        name="nothing",
        parameters=(ParameterInfo(name="x", offset_bytes=0, size_bytes=8),),
        max_threads_per_block=64,
    )

    def start(self, launch):
        yield


@pytest.fixture
def interrupts():
    """Arms a timer that raises `KeyboardInterrupt` wherever the main thread is then."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("how", ["launch", "bound"])
def test_no_lock_is_left_behind(stepped, interrupts, how):
    """The functions that are written for launches take the device's lock; an interrupt must not come in between."""
    assert threading.current_thread() is threading.main_thread()
    function = ca.Module.from_host_image(HostImage(functions={"nothing": Nothing()}, name="x")).function(
        "nothing"
    )
    x = ca.zeros(4).start()
    stepped.driver.advance_all()
    tensor = x.result()
    stream = stepped.create_stream()
    bound = function.bind(1, 1, ca.mut(tensor), device=stepped)
    function.launch(1, 1, ca.mut(tensor)).start(ca.SingleStream(stream))
    context = ca.ExecutionContext(stepped, stream)
    stepped.driver.launch = lambda *_: None  # the driver's part is the driver's
    random = np.random.default_rng(1)
    for _ in range(150):
        op = bound.launch() if how == "bound" else function.launch(1, 1, ca.mut(tensor))
        try:
            interrupts(random.uniform(1e-4, 6e-4))
            while True:
                op.execute(context)
        except KeyboardInterrupt:
            pass
        assert not stepped._lock.locked()
        assert stream._dirty
    del stepped.driver.launch
    stepped.driver.advance_all()
    with stepped._lock:
        submission = stream._record()
    stepped.driver.advance_all()
    assert submission.poll()
    assert not stream._retained
