"""The log of a search: one line of JSON per configuration, so that a search that was stopped goes on.

The first line says what was searched: a digest of the space, the device, and the caller's own words for the
problem. A log of another search is refused. A last line that was cut short is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import TilekernError
from ._space import config_key
from ._trial import Trial

__all__ = ["TrialLog", "TuneLogError", "value_from_json"]

_FORMAT = 1


class TuneLogError(TilekernError, ValueError):
    """A log that is damaged, or of another search."""


class TrialLog:
    """A log that is read when it is opened, and appended to. Without a path, nothing is kept.

    Attributes:
        trials: what is in it, by configuration.
    """

    def __init__(self, path: str | os.PathLike[str] | None, about: Mapping[str, str]) -> None:
        """`about` tells searches apart."""
        self.trials: dict[str, Trial] = {}
        self._path = None if path is None else Path(path)
        self._about = {"format": _FORMAT, **about}
        if self._path is None:
            return
        if self._path.exists() and self._path.stat().st_size:
            self._read(self._path)
        else:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._append(self._about)

    def add(self, trial: Trial) -> None:
        """Write a configuration down."""
        self.trials[config_key(trial.config)] = trial
        line = {"config": json.loads(config_key(trial.config)), "status": trial.status}
        if trial.ms is not None:
            line["ms"] = trial.ms
        if trial.error:
            line["error"] = trial.error
        self._append(line)

    def _append(self, line: Mapping[str, object]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _read(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        whole = text if text.endswith("\n") else text[: text.rfind("\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            about = lines[0]
            found = [self._trial(line) for line in lines[1:]]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise TuneLogError(f"{path} is no log of a search, or damaged: {error}; remove it") from None
        if about != self._about:
            differ = sorted(k for k in {*about, *self._about} if about.get(k) != self._about.get(k))
            what = ", ".join(f"{k} ({about.get(k)}, here {self._about.get(k)})" for k in differ)
            raise TuneLogError(
                f"{path} is the log of another search: they differ in {what}; use another file"
            )
        if len(whole) < len(text):
            path.write_text(whole, encoding="utf-8")
        self.trials = {config_key(trial.config): trial for trial in found}

    def _trial(self, line: Mapping[str, object]) -> Trial:
        config = line["config"]
        if not isinstance(config, dict):
            raise TypeError("a line has no configuration")
        values = {name: value_from_json(value) for name, value in config.items()}
        # the fields are this package's own words
        return Trial(values, line["status"], line.get("ms"), line.get("error", ""))  # type: ignore[arg-type]


def value_from_json(value: object) -> object:
    """A value of a configuration: JSON has no tuples."""
    return tuple(map(value_from_json, value[1:])) if isinstance(value, list) else value
