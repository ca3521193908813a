"""For tests of programs that use this package: host devices whose order of events a test decides, or searches, and
devices that look for races (`_checked`).

`_devices` makes one that advances when told, or as a seed says; `_explore` runs a program under many schedules, on the
loop of `_loop`, in the small world of `_world`; `_search` goes through all schedules; `_trace` writes them down.
"""

from ..driver.host.check import CheckReport, ReportedAccess
from ._checked import check_reports, checked_device
from ._devices import seeded_device, stepped_device
from ._explore import Exploration, Failure, explore, replay
from ._trace import format_trace, parse_trace

__all__ = [
    "CheckReport",
    "Exploration",
    "Failure",
    "ReportedAccess",
    "check_reports",
    "checked_device",
    "explore",
    "format_trace",
    "parse_trace",
    "replay",
    "seeded_device",
    "stepped_device",
]
