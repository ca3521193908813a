"""What became of each configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..bench import Comparison
    from ._space import Config

__all__ = ["Status", "Trial", "TuneResult"]

Status = Literal["ok", "slow", "pruned", "invalid", "wrong", "timeout"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration.

    Attributes:
        config: its values.
        status: "ok": measured. "slow": a short look showed that it cannot win. "pruned": left out because
            `prune` said so. "invalid": it does not compile or launch. "wrong": it computes something else.
            "timeout": it did not end in time and its process was killed.
        ms: median time, where it was looked at; else None.
        error: what went wrong, as text; empty where nothing did.
    """

    config: Config
    status: Status
    ms: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What a search found.

    Attributes:
        best: the fastest configuration.
        best_ms: its median time.
        trials: every configuration that was looked at, in order, those of an earlier log first.
        comparison: the two fastest, run in turns (None if only one was measured); the first is the one that
            was faster by itself, `best` the one that won.
    """

    best: Config
    best_ms: float
    trials: tuple[Trial, ...]
    comparison: Comparison | None

    def __str__(self) -> str:
        measured = sorted(
            [t for t in self.trials if t.status == "ok" and t.ms is not None], key=lambda t: t.ms or 0.0
        )
        others: dict[str, int] = {}
        for trial in self.trials:
            if trial.status != "ok":
                others[trial.status] = others.get(trial.status, 0) + 1
        lines = [f"best {_text(self.best)}: {self.best_ms * 1e3:.4g} us"]
        lines += [f"  {(t.ms or 0.0) * 1e3:10.4g} us  {_text(t.config)}" for t in measured[:5]]
        summary = ", ".join(f"{count} {status}" for status, count in others.items())
        lines.append(f"  {len(measured)} measured" + (f", {summary}" if summary else ""))
        return "\n".join(lines)


def _text(config: Config) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items())
