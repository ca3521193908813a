"""The simulated device: runs the same programs where there is no GPU.

- `_driver.py` implements the `Driver` protocol; `_registry.py` has one per device; `_stepped.py` is for tests.
- `_engine.py` advances the streams (`_queue.py`) entry by entry (`_entries.py`, `_work.py`); `_order.py` says
  which one goes next.
- `_memory.py` is the address space (`_blocks.py`, `_ranges.py`, `_mapping.py`), `_pool.py` the stream-ordered
  pool in it, `_convert.py` the arithmetic of conversions.
- `_modules.py` loads modules; `ptx/` parses and interprets PTX; `_limits.py` says what a launch may ask for.
- `_fork.py` keeps locks whole over a fork; `_settings.py` reads the environment.
"""

from ._driver import HostDriver
from ._memory import HostMemory
from ._registry import open_host_driver
from ._settings import host_device_count

__all__ = ["HostDriver", "HostMemory", "host_device_count", "open_host_driver"]
