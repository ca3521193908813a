"""Drawn programs: tasks that share memory, streams, shared operations and graphs, checked against NumPy.

`draw_plan` draws a program as plain data, from any source of numbers; `program(plan)` is it as a coroutine function
of a device, for `cuda_async.testing.explore`. Effects on memory are sequential in the order in which work is enqueued,
whatever the streams: so the model, NumPy arrays, is changed at the moments of enqueueing, and every array that is
read must be what the model held when its copy was enqueued. At the end nothing may be left in use.

`CORE` are small programs written by hand, one for each thing that can go wrong; `BUGS` are planted in the core to see
whether these programs find them.
"""

from ._bugs import BUGS, Bug
from ._core import CORE
from ._kernels import Kernels
from ._plan import ACTIONS, Plan, draw_action, draw_plan
from ._program import program

__all__ = ["ACTIONS", "BUGS", "CORE", "Bug", "Kernels", "Plan", "draw_action", "draw_plan", "program"]
