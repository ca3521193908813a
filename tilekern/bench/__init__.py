"""Timing operations on the device they run on, and comparing two of them.

    timing = tk.bench.measure(lambda: bound.launch())
    print(timing)                                     # median, quantiles, repetitions
    print(tk.bench.compare(lambda: old.launch(), lambda: new.launch()))

`_measure.py` says how it is measured; `_timing.py` holds the results.
"""

from ._measure import MeasureOptions, compare, measure
from ._timing import Comparison, Timing

__all__ = ["Comparison", "MeasureOptions", "Timing", "compare", "measure"]
