"""The simulated device: runs the same programs where there is no GPU.

- `_driver.py` implements the `Driver` protocol; `_registry.py` has one per device; `_stepped.py` is for tests.
- `_engine.py` advances the streams (`_queue.py`) entry by entry (`_entries.py`, `_work.py`); `_order.py` says
  which one goes next; `_seeded.py` is the engine without a thread, for which an order decides everything, and
  `_footprint.py` says which actions may change places there.
- `_memory.py` is the address space (`_blocks.py`, `_ranges.py`, `_mapping.py`), `_pool.py` the stream-ordered
  pool in it, `_convert.py` the arithmetic of conversions.
- `_modules.py` loads modules; `ptx/` parses and interprets PTX; `_limits.py` says what a launch may ask for.
- `check/` looks for races and misuse of memory, where that is wanted: `Engine.checker`, `HostMemory.checker`.
- `_c_text.py` writes numbers as C does; `_fork.py` keeps locks whole over a fork; `_settings.py` reads the environment.
"""

from ._c_text import c_text
from ._driver import HostDriver
from ._engine import failed_work
from ._footprint import Footprint, FootprintBook
from ._memory import HostMemory
from ._order import CALLBACK, FIRST_QUEUE, HOST, TIMER, WORKER, DrawnOrder, ReplayedOrder, SeededOrder
from ._registry import open_host_driver
from ._seeded import SeededEngine
from ._settings import host_device_count

__all__ = [
    "CALLBACK",
    "FIRST_QUEUE",
    "HOST",
    "TIMER",
    "WORKER",
    "DrawnOrder",
    "Footprint",
    "FootprintBook",
    "HostDriver",
    "HostMemory",
    "ReplayedOrder",
    "SeededEngine",
    "SeededOrder",
    "c_text",
    "failed_work",
    "host_device_count",
    "open_host_driver",
]
