"""Searching for the fastest configuration of a kernel.

    space = tk.tune.Space(tile=[64, 128, 256], num_worker_warps=[4, 8])
    result = tk.tune.search(space, make, verify=verify, log="matmul.jsonl")
    print(result, result.best)

`make(config)` gives a function that makes the operation, `verify(value)` looks at what it yields. `_space.py`
says what can be searched, `_search.py` how; `_log.py` keeps what was found; `_isolated.py` runs candidates in a
process of its own, which can be killed.
"""

from ._log import TuneLogError
from ._search import search
from ._space import Config, Space
from ._trial import Status, Trial, TuneResult

__all__ = ["Config", "Space", "Status", "Trial", "TuneLogError", "TuneResult", "search"]
