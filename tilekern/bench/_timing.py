"""Results of measurements: samples, and what is said of them."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

__all__ = ["Comparison", "Timing", "median_interval"]


@dataclass(frozen=True, slots=True)
class Timing:
    """What repetitions of an operation took on the device, in milliseconds, in the order they ran."""

    samples_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """Half of the repetitions took less."""
        return statistics.median(self.samples_ms)

    @property
    def mean_ms(self) -> float:
        """The average; a single slow repetition moves it."""
        return statistics.fmean(self.samples_ms)

    @property
    def min_ms(self) -> float:
        """The fastest repetition."""
        return min(self.samples_ms)

    def quantile_ms(self, share: float) -> float:
        """What that share of the repetitions took at most, between neighbours by proportion; 0.5 is the median."""
        if not 0 <= share <= 1:
            raise ValueError(f"a share is a number from 0 to 1, got {share!r}")
        ordered = sorted(self.samples_ms)
        place = share * (len(ordered) - 1)
        below = math.floor(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

    def __str__(self) -> str:
        low, high = self.quantile_ms(0.2), self.quantile_ms(0.8)
        return f"{_text(self.median_ms)} (20 % to 80 %: {_text(low)} to {_text(high)}, {len(self.samples_ms)} runs)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two operations that were run in turn: the first, the second, the first, and so on.

    Attributes:
        first: what the first took.
        second: what the second took, sample by sample right after the first.
        ratio: median of second / first over the pairs; below 1, the second is faster.
        interval: where the ratio's true median lies with 95 % confidence (order statistics of the pairs).
    """

    first: Timing
    second: Timing
    ratio: float
    interval: tuple[float, float]

    @property
    def is_significant(self) -> bool:
        """True if the interval leaves out 1: one of them is faster."""
        return not self.interval[0] <= 1 <= self.interval[1]

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"second / first = {self.ratio:.3f} ({low:.3f} to {high:.3f})\n"
            f"  first   {self.first}\n  second  {self.second}"
        )


def median_interval(values: list[float]) -> tuple[float, float]:
    """Where the median of what the values are drawn from lies, with 95 % confidence.

    The number of draws below the median is binomial with chance 1/2; its normal approximation gives the ranks.
    """
    ordered = sorted(values)
    reach = math.ceil((1 + 1.96 * math.sqrt(len(ordered))) / 2)
    middle = len(ordered) / 2
    low = max(0, math.floor(middle - reach))
    high = min(len(ordered) - 1, math.ceil(middle + reach) - 1)
    return ordered[low], ordered[high]


def _text(ms: float) -> str:
    if ms >= 1000:
        return f"{ms / 1e3:.4g} s"
    return f"{ms:.4g} ms" if ms >= 1 else f"{ms * 1e3:.4g} us"
