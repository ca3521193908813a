"""A device that is lost names the kernels that were in flight, in whatever way they were launched.

Nothing else keeps a launched kernel known: its stream's open number retains it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import cuda_async as ca

SAXPY = Path(__file__).resolve().parents[3] / "examples" / "simt" / "saxpy.ptx"


class Enqueues(ca.DeviceOp):
    """An operation of one's own."""

    def __init__(self, function, x, y):
        self.function, self.x, self.y = function, x, y

    def execute(self, ctx):
        x, y = ctx.read(self.x), ctx.write(self.y)
        self.function.enqueue(ctx, 1, 8, [8, 2.0, x, x, y])


def arguments(x, y):
    return 8, 2.0, ca.read(x), ca.read(x), ca.mut(y)


WAYS = {
    "launch": lambda f, x, y: f.launch(1, 8, *arguments(x, y)),
    "launch with uses": lambda f, x, y: f.launch(1, 8, *arguments(x, y), uses=[ca.read(x)]),
    "bound launch": lambda f, x, y: f.bind(1, 8, *arguments(x, y), device=x.device).launch(),
    "enqueue": Enqueues,
    "graph": lambda f, x, y: f.launch(1, 8, *arguments(x, y)).graph().sync().launch(),
}


@pytest.mark.parametrize("again", [False, True], ids=["", "again"])
@pytest.mark.parametrize("way", WAYS)
def test_lost_device_names_the_kernel(stepped, way, again):
    """The second launch takes the quicker path."""
    function = ca.Module.from_file(SAXPY).function("saxpy_f32")
    function.load(stepped)
    future = ca.zip(ca.zeros(8), ca.zeros(8)).start()
    stepped.driver.advance_all()
    x, y = future.result()
    if again:
        future = WAYS[way](function, x, y).start()
        stepped.driver.advance_all()
        future.result()
        stepped.collect()
    op = WAYS[way](function, x, y)
    stepped.driver.fail_next("event_record", ca.DeviceLostError("made to fail"))
    with pytest.raises(ca.DeviceLostError, match="saxpy_f32") as caught:
        op.sync()
    assert len(caught.value.kernels) == 1
