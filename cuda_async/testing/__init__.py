"""For tests of programs that use this package: host devices whose order of events a test decides, or searches.

`_devices` makes one that advances when told, or as a seed says; `_explore` runs a program under many schedules, on the
loop of `_loop`, in the small world of `_world`; `_search` goes through all schedules; `_trace` writes them down.
"""

from ._devices import seeded_device, stepped_device
from ._explore import Exploration, Failure, explore, replay
from ._trace import format_trace, parse_trace

__all__ = [
    "Exploration",
    "Failure",
    "explore",
    "format_trace",
    "parse_trace",
    "replay",
    "seeded_device",
    "stepped_device",
]
